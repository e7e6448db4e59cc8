"""Check the content of the zip for executors; `test_clusters` has Spark use it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from click.testing import CliRunner

from modcrypt.spark import shipping
from modcrypt.spark.commands.spark_files import package
from modcrypt.spark.shipping import spark_package


def names_in(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_modcrypt_alone_has_its_data_and_nothing_compiled(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        spark_package(tmp_path / name, alone=True)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    names = names_in(tmp_path / "a.zip")
    assert {name.partition("/")[0] for name in names} == {
        "modcrypt",
        "pyspark_modcrypt.py",
        "pyspark_modcrypt_job.py",
    }
    for name in ("thrift/parquet.thrift", "spark/java_sources/SqlCatalog.java", "__init__.pyi"):
        assert f"modcrypt/{name}" in names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


FROM_ZIP = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import pyarrow as pa
import modcrypt as mc
from importlib.util import find_spec
from modcrypt.spark.jvm import native_jar
assert mc.__file__.startswith(sys.argv[1]), mc.__file__
folder, key = Path(sys.argv[2]), mc.Key.generate()
mc.write_table(pa.table({"a": [1]}), folder / "x", mc.FileEncryptionProperties(footer_key=key))
opening = mc.FileDecryptionProperties(footer_key=key)
assert mc.read_table(folder / "x", opening).to_pydict() == {"a": [1]}
assert mc.report.render_html(mc.inspect_parquet(folder / "x")).startswith("<!DOCTYPE html>")
assert native_jar._read_sources()
assert find_spec("pyspark_modcrypt")
assert find_spec("pyspark_modcrypt_job")
"""


def test_the_package_is_imported_from_a_zip(tmp_path: Path) -> None:
    """As Spark's `--py-files` has it."""
    path = tmp_path / "modcrypt.zip"
    spark_package(path, alone=True)
    command = [sys.executable, "-W", "error", "-c", FROM_ZIP, str(path), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr


def test_an_archive_has_all_that_executors_import(tmp_path: Path) -> None:
    """Of Python packages, Spark itself brings pyspark and py4j."""
    found = shipping._Found({}, set())
    for extra in ("", "spark", "aws"):
        shipping._collect(distribution("modcrypt"), extra, found)
    packages = set(found.packages)
    assert {"cryptography", "cffi", "pyarrow", "thriftpy2", "xxhash", "pandas", "numpy"} < packages
    assert {"boto3", "botocore"} < packages
    assert not {"pyspark", "py4j", "modcrypt", "hvac", "click"} & packages
    names = [name for name, _ in shipping._read_found([found.packages["cryptography"]])]
    assert "modcrypt/__init__.py" in names
    assert "cryptography/__init__.py" in names
    assert [name for name in names if name.endswith(".so")]
    assert len(set(names)) == len(names)


def test_wrong_requests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no extra sparks"):
        spark_package(tmp_path / "x.zip", extras=["sparks"])
    with pytest.raises(ValueError, match="has no extras"):
        spark_package(tmp_path / "x.zip", extras=["aws"], alone=True)
    (tmp_path / "x.zip").touch()
    with pytest.raises(FileExistsError):
        spark_package(tmp_path / "x.zip", alone=True)

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    modcrypt = distribution("modcrypt")
    monkeypatch.setattr(shipping, "distribution", missing)
    with pytest.raises(ModuleNotFoundError, match=r"modcrypt\[aws\]"):
        shipping._collect(modcrypt, "aws", shipping._Found({}, set()), is_needed=True)


def test_the_command_line_says_how_spark_takes_the_zip(tmp_path: Path) -> None:
    path = tmp_path / "modcrypt.zip"

    def run(*arguments: str, code: int = 0) -> str:
        reported = CliRunner().invoke(package, [str(path), *arguments])
        assert reported.exit_code == code
        return reported.output

    assert f"--py-files {path}" in run("--alone")
    assert json.loads(run("--alone", "--force", "--json")) == {
        "schema": "modcrypt.spark.files/1",
        "destination": str(path),
        "destination_bytes": path.stat().st_size,
    }
    assert "--alone leaves out extras" in run("--alone", "--extra", "aws", code=2)
