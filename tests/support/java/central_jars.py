"""Jars of Maven Central, which Spark's Ivy resolves and downloads."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from tests.support.spark.processes import spark_environment

ONLY_CENTRAL = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>"""

_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_MISSING = re.compile(r"(?:not found|download failed): *[\w.;#\-]+")


def fetch_jars(folder: Path, *coordinates: str, without: Sequence[str] = ()) -> list[Path]:
    """Return the jars of some Maven coordinates; skip the test if they cannot be downloaded."""
    (folder / "ivy.xml").write_text(ONLY_CENTRAL)
    (folder / "nothing.py").write_text("")
    settings = {"ivySettings": folder / "ivy.xml", "ivy": folder / "ivy"}
    command: list[object] = [_SUBMIT, "--master", "local[1]", "--packages", ",".join(coordinates)]
    command += [part for n, v in settings.items() for part in ("--conf", f"spark.jars.{n}={v}")]
    command += ["--exclude-packages", ",".join(without)] if without else []
    done = subprocess.run(
        [*map(str, command), folder / "nothing.py"],
        capture_output=True, text=True, check=False, timeout=600, env=spark_environment(),
    )  # fmt: skip
    if done.returncode:
        reasons = _MISSING.findall(done.stderr) or [done.stderr.strip().rpartition("\n")[2]]
        pytest.skip(f"Maven Central does not give {', '.join(coordinates)}: {reasons[0]}")
    return sorted((folder / "ivy" / "jars").glob("*.jar"))
