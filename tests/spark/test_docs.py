"""The examples of docs/how-to/spark.md run, one after the other."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.paths import ROOT

TEXT = (ROOT / "docs/how-to/spark.md").read_text()


def test_the_examples_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 8
    session = spark.newSession()  # what `SparkSession.builder` returns meanwhile
    monkeypatch.setattr("pyspark.sql.SparkSession._instantiatedSession", session)
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(os.environ):  # the examples set some variables
        exec("\n".join(blocks), scope := {"__name__": "__main__"})
    assert scope["spark"] is session
