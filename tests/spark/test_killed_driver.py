"""Table jobs whose driver is killed lose nothing, and a second run completes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.table_jobs import encrypt_table, rekey_table, rotate_keys
from tests.support.spark.processes import spark_environment, spark_settings
from tests.support.tables import small_table, write_plain

FILES, ROWS = 1500, 200
PATIENCE = 300
"""Seconds to wait for a job to begin, and for its workers to end, on a busy machine."""

RUN = """
import sys
from pyspark.sql import SparkSession
import modcrypt as mc
from modcrypt.spark.jobs import table_jobs

table, job, kms, policy, also = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config(map=SETTINGS).getOrCreate()
settings = mc.Settings(kms=kms, policy=mc.Policy.load(policy))
if job == "encrypt":
    report = table_jobs.encrypt_table(spark, table, None, settings)
elif job == "rekey":
    other = mc.Settings(kms=kms, policy=mc.Policy.load(also))
    report = table_jobs.rekey_table(spark, table, None, settings, other)
else:
    report = table_jobs.rotate_keys(spark, table, settings, what="mek")
print(report.count())
"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Settings]:
    """Create a keyring, and settings with two policies."""
    ring = mc.Keyring.create(tmp_path / "keys", passphrase="pass")
    for name in ("one", "two"):
        ring.create_key(name)
    (tmp_path / "passphrase").write_text("pass")
    (tmp_path / "passphrase").chmod(0o600)
    kms = f"file:{tmp_path}/keys?passphrase=file:{tmp_path}/passphrase"
    out = {}
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(f'footer_key = "{name}"\n')
        out[name] = Settings(kms=kms, policy=mc.Policy.load(tmp_path / f"{name}.toml"))
    return out


def stamps(table: Path) -> dict[str, int]:
    # By their names: a listing may miss a file that is being replaced.
    names = [f"{number}.parquet" for number in range(FILES)]
    return {name: (table / name).stat().st_mtime_ns for name in names}


def run_and_kill(script: Path, table: Path, *arguments: str) -> int:
    """Kill the driver of a job that has changed some files; return how many it has changed."""
    before = stamps(table)
    process = subprocess.Popen(
        [sys.executable, script, table, *arguments],
        env=spark_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and count_changes(table, before) < 20:
        assert time.monotonic() < deadline, "the job does not begin"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # Spark's Python workers are in process groups of their own, and end a little later.
    while has_processes(process.pid):
        assert time.monotonic() < deadline + PATIENCE, "a worker does not end"
        time.sleep(0.02)
    return count_changes(table, before)


def count_changes(table: Path, before: dict[str, int]) -> int:
    now = stamps(table)
    return sum(now[name] != stamp for name, stamp in before.items())


def has_processes(session: int) -> bool:
    """Return whether a process of a session is still running."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            state, _parent, _group, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                return True
    return False


def left_behind(table: Path) -> set[str]:
    """Return the files that each of the two workers had named, but not yet renamed."""
    names = {path.name for path in table.glob(".modcrypt-*.tmp")}
    assert len(names) <= 2
    for name in names:
        (table / name).unlink()
    return names


@pytest.mark.slow
def test_a_second_run_completes_what_a_killed_driver_began(
    spark: Any, settings: dict[str, Settings], tmp_path: Path
) -> None:
    """Every file is readable in between, and nothing else is left behind."""
    table, script = tmp_path / "table", tmp_path / "run.py"
    table.mkdir()
    rows = small_table(ROWS)
    write_plain(table / "0.parquet", rows)
    plain = (table / "0.parquet").read_bytes()
    for number in range(1, FILES):
        (table / f"{number}.parquet").write_bytes(plain)
    script.write_text(f"SETTINGS = {spark_settings(tmp_path / 'spark')!r}\n{RUN}")
    one, two = settings["one"], settings["two"]
    policies = [str(tmp_path / "one.toml"), str(tmp_path / "two.toml")]
    jobs: dict[str, tuple[Callable[[], Any], list[Settings]]] = {
        "encrypt": (lambda: encrypt_table(spark, table, None, one), [one]),
        "rotate": (lambda: rotate_keys(spark, table, one, what="mek"), [one]),
        "rekey": (lambda: rekey_table(spark, table, None, one, two), [two]),
    }
    ring = mc.kms.open_kms(f"file:{tmp_path}/keys", passphrase="pass")
    for job, (run, after) in jobs.items():
        if job == "rotate":
            ring.rotate_key("one")  # type: ignore[attr-defined]  # of a keyring
        changed = run_and_kill(script, table, job, str(one.kms), *policies)
        assert 0 < changed < FILES
        results = Counter(row["result"] for row in run().collect())
        assert results.pop("current") == changed
        assert list(results.values()) == [FILES - changed]
        assert {path.name for path in table.iterdir()} == set(stamps(table)) | left_behind(table)
        assert len(stamps(table)) == FILES
        for number in (0, 1, FILES // 2, FILES - 1):
            assert mc.read_table(table / f"{number}.parquet", after[0]).equals(rows)
