"""The examples of docs/how-to/spark.md run, one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TEXT = (ROOT / "docs/how-to/spark.md").read_text()


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 5
    script = tmp_path / "examples.py"
    script.write_text("\n".join(blocks) + "\nspark.stop()\n")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
