"""The logger is silent by default, and never logs a key."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.jobs.engine import Job
from modcrypt.jobs.listing import Folder, list_tables
from modcrypt.runtime.log import LOGGER


def test_the_logger_has_a_handler_that_does_nothing() -> None:
    assert LOGGER.name == "modcrypt"
    assert [type(handler) for handler in LOGGER.handlers] == [logging.NullHandler]


def test_nothing_is_printed_by_default(tmp_path: Path) -> None:
    script = "from modcrypt.runtime.log import LOGGER; LOGGER.error('text')"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert (run.stdout, run.stderr) == (b"", b"")


def test_a_failed_file_is_logged_by_name_and_kind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = mc.Key(b"Zq7!marker-of-16")
    encryption = mc.FileEncryptionProperties(footer_key=key)
    path = tmp_path / "people.parquet"
    mc.write_table(pa.table({"a": [1]}), path, encryption)
    (file,) = list_tables([Folder(str(path))])

    def fail(_file: object) -> None:
        raise ValueError(b"Zq7!marker-of-16".hex())

    with caplog.at_level(logging.INFO, "modcrypt"):
        Job(fail, lambda _file, _error: None).run(file)
    assert caplog.messages == [f"{path}: failed with ValueError"]
