"""Checks of the machine for `modcrypt doctor`: versions, AES, randomness, umask and swap."""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from modcrypt.keys import Key
from modcrypt.parquet.writers.quirk import FoundQuirk
from modcrypt.report.json_fields import JsonFields
from modcrypt.runtime.code_form import code_form

State = Literal["ok", "hint", "warn", "fail"]

SLOW_AES = 0.5  # speed of AES-GCM in GB/s below which the hardware probably lacks AES instructions
_MEASURED = 0.05  # seconds
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(JsonFields):
    """The result of one check."""

    check: str
    # `"ok"`; `"hint"` for a state that may be intended; `"warn"` for a risk; or `"fail"`.
    state: State
    message: str
    advice: str = ""  # next step for the user; empty if there is none
    where: Mapping[str, Any] | None = None  # file, line and property name of a finding in a log
    bug: FoundQuirk | None = None  # bug of the writer of a Parquet file


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of checks, which makes their results."""

    name: str

    def ok(self, message: str, advice: str = "") -> Check:
        """Return the result that all is well."""
        return self.result("ok", message, advice)

    def hint(self, message: str, advice: str = "") -> Check:
        """Return the result that something may be intended."""
        return self.result("hint", message, advice)

    def warn(self, message: str, advice: str = "") -> Check:
        """Return the result that there is a risk."""
        return self.result("warn", message, advice)

    def fail(self, message: str, advice: str = "") -> Check:
        """Return the result that the check failed."""
        return self.result("fail", message, advice)

    def result(self, state: State, message: str, advice: str, **more: Any) -> Check:
        """Return a result."""
        return Check(check=self.name, state=state, message=message, advice=advice, **more)


def machine() -> Iterator[Check]:
    """Check Python, packages, AES, random numbers and the limits of the process."""
    from cryptography.hazmat.backends.openssl.backend import backend

    yield _check_python()
    yield _check_packages()
    yield _check_idl()
    form = code_form()
    advice = "" if form == "compiled" else "compiled code opens files of many columns faster"
    yield Subject("page and footer code").ok(form, advice)
    yield Subject("OpenSSL").ok(backend.openssl_version_text())
    yield _check_aes()
    yield _check_randomness()
    yield _check_umask()
    yield _check_core_dumps()
    yield _check_swap()


def _check_python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    bits = 64 if sys.maxsize > 2**32 else 32
    good = sys.version_info >= (3, 11) and bits == 64
    advice = "" if good else "modcrypt needs Python 3.11 or newer, 64-bit"
    return Subject("python").result(
        "ok" if good else "fail", f"Python {version}, {bits}-bit", advice
    )


_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^\]]*\])?>=(?P<least>[0-9.]+)")


def _check_packages() -> Check:
    about = Subject("packages")
    try:
        wanted = metadata.requires("modcrypt") or []
    except metadata.PackageNotFoundError:
        return about.hint("modcrypt runs from a folder and is not installed")
    installed: dict[str, str] = {}  # several extras may require the same package
    outdated: dict[str, None] = {}
    for line in wanted:
        if (match := _REQUIREMENT.match(line)) is None:
            continue
        name, least = match["name"], match["least"]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if "extra ==" not in line:
                outdated[f"{name} is missing"] = None
            continue
        installed[name] = version
        if _numbers(version) < _numbers(least):
            outdated[f"{name} {version} is older than {least}"] = None
    if outdated:
        return about.fail("; ".join(outdated), "run pip install -U modcrypt")
    return about.ok(", ".join(f"{name} {version}" for name, version in installed.items()))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _check_idl() -> Check:
    about = Subject("thrift IDL")
    try:
        from modcrypt.parquet.format import idl

        idl.new("FileMetaData")
    except Exception as error:  # a missing or malformed file fails in many ways
        return about.fail(
            f"parquet.thrift can't be read: {type(error).__name__}", "reinstall modcrypt"
        )
    return about.ok("parquet.thrift was parsed")


def _check_aes() -> Check:
    """Measure the speed of AES-GCM, and look for AES among the processor's features."""
    from modcrypt.aead import GCM_OVERHEAD, GcmCipher

    about = Subject("AES")
    cipher, data = GcmCipher(Key.generate()), bytes(_PIECE)
    out = memoryview(bytearray(_PIECE + GCM_OVERHEAD))
    cipher.encrypt_into(out, 0, data, _PIECE, b"")  # the first call selects an implementation
    started, size = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < _MEASURED:
        cipher.encrypt_into(out, 0, data, _PIECE, b"")
        size += _PIECE
    rate, flag = size / elapsed / 1e9, _aes_flag()
    flags = {True: ", with AES instructions", False: ", without AES instructions", None: ""}
    message = f"AES-GCM runs at {rate:.1f} GB/s on one core{flags[flag]}"
    if rate >= SLOW_AES and flag is not False:
        return about.ok(message)
    return about.warn(
        message,
        "without AES in hardware, encryption is slow and its timing may reveal keys: use "
        "another machine, or expose the processor's AES instructions to the virtual machine",
    )


def _aes_flag() -> bool | None:
    """Return whether the processor has AES instructions; None if that is unknown."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            match = re.search(r"^(?:flags|Features)\s*:(.*)$", file.read(1 << 20), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else "aes" in match[1].split()


def _check_randomness() -> Check:
    about = Subject("randomness")
    try:
        if hasattr(os, "getrandom"):
            os.getrandom(32, os.GRND_NONBLOCK)
        else:
            os.urandom(32)
    except OSError:
        return about.fail(
            "the operating system has no random numbers yet",
            "wait, or give the machine a source of entropy, which keys and nonces need",
        )
    return about.ok("the operating system's generator works")


def _check_umask() -> Check:
    about = Subject("umask")
    mask = os.umask(0o077)
    os.umask(mask)
    message = f"umask {mask:03o}"
    if not mask & stat.S_IWOTH:
        return about.warn(
            f"{message}: other users can modify new files", "run umask 077 to keep them private"
        )
    if not mask & stat.S_IROTH:
        return about.hint(
            f"{message}: other users can read the output of decrypt and cat -o",
            "run umask 077 to keep it private",
        )
    return about.ok(message)


def _check_core_dumps() -> Check:
    about = Subject("core dumps")
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return about.hint("unknown on this system")
    if resource.getrlimit(resource.RLIMIT_CORE)[0] == 0:
        return about.ok("off")
    return about.hint("on: a crash may write keys to a file", "run ulimit -c 0 to turn them off")


def _check_swap() -> Check:
    about = Subject("swap")
    try:
        with open("/proc/swaps", encoding="utf-8", errors="replace") as file:
            used = len(file.readlines()) > 1
    except OSError:
        return about.hint("unknown on this system")
    if not used:
        return about.ok("off")
    return about.hint("on: keys in memory may be written to disk", "encrypt swap, or turn it off")
