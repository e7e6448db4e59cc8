"""Is this machine fit for keys? Checks of packages, files, variables, master keys and logs.

Each check gives what it found and what to do next. Nothing is changed; only `master_key` has a key
service do something: wrap and unwrap random bytes. No value of a secret is given out.
"""

from __future__ import annotations

import hmac
import os
import re
import resource
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    ModcryptError,
)
from modcrypt.event_log import SearchedLog, search_event_log
from modcrypt.keys import Key

if TYPE_CHECKING:
    from modcrypt.jobs.key_scan import ScannedKey
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools
    from modcrypt.parquet.crypto.properties import FileDecryptionProperties

__all__ = [
    "Check",
    "event_log",
    "keyring",
    "machine",
    "master_key",
    "parquet_file",
    "policy_file",
    "secret_file",
    "secret_variables",
]

SLOW_AES = 0.5
"""GB/s of AES-GCM under which it is no hardware that does it."""

_MEASURED = 0.05  # seconds
_PIECE = 1 << 20

State = Literal["ok", "hint", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one check found.

    Attributes:
        check: what was looked at.
        state: `"ok"`; `"hint"` for what may be so on purpose; `"warn"` for a risk; `"fail"`.
        message: what was found.
        advice: what to do next, empty for nothing.
        where: file, line and property name of what is in a log.
    """

    check: str
    state: State
    message: str
    advice: str = ""
    where: Mapping[str, Any] | None = None

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)


# --- the machine ---------------------------------------------------------------------------------


def machine() -> Iterator[Check]:
    """Check what modcrypt stands on: Python, packages, AES, randomness, the process's limits."""
    yield _python()
    yield _packages()
    yield _idl()
    yield _openssl()
    yield _aes()
    yield _randomness()
    yield _umask()
    yield _core_dumps()
    yield _swap()


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    bits = 64 if sys.maxsize > 2**32 else 32
    good = sys.version_info >= (3, 11) and bits == 64
    advice = "" if good else "modcrypt needs Python 3.11 or newer, of 64 bits"
    return Check(
        check="python",
        state="ok" if good else "fail",
        message=f"Python {version}, {bits} bits",
        advice=advice,
    )


_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^\]]*\])?>=(?P<least>[0-9.]+)")


def _packages() -> Check:
    """Hold the packages that are installed against the versions that modcrypt asks for."""
    try:
        wanted = metadata.requires("modcrypt") or []
    except metadata.PackageNotFoundError:
        return Check(
            check="packages", state="hint", message="modcrypt runs uninstalled, from a folder"
        )
    there, old = [], []
    for line in wanted:
        match = _REQUIREMENT.match(line)
        if match is None:
            continue
        name, least = match["name"], match["least"]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if "extra ==" not in line:
                old.append(f"{name} is missing")
            continue
        there.append(f"{name} {version}")
        if _numbers(version) < _numbers(least):
            old.append(f"{name} {version} is older than {least}")
    if old:
        return Check(
            check="packages", state="fail", message="; ".join(old), advice="pip install -U modcrypt"
        )
    return Check(check="packages", state="ok", message=", ".join(there))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _idl() -> Check:
    try:
        from modcrypt.parquet.format import idl

        idl.new("FileMetaData")
    except Exception as error:  # a file that is missing or malformed fails in many ways
        return Check(
            check="thrift IDL",
            state="fail",
            message=f"parquet.thrift can't be read: {type(error).__name__}",
            advice="install modcrypt again",
        )
    return Check(check="thrift IDL", state="ok", message="parquet.thrift is there")


def _openssl() -> Check:
    from cryptography.hazmat.backends.openssl.backend import backend

    return Check(check="OpenSSL", state="ok", message=backend.openssl_version_text())


def _aes() -> Check:
    """Measure how fast AES-GCM seals, and tell what the processor says of it."""
    from modcrypt.aead import GCM_OVERHEAD, GcmCipher

    cipher, data = GcmCipher(Key.generate()), bytes(_PIECE)
    out = memoryview(bytearray(_PIECE + GCM_OVERHEAD))
    cipher.seal_into(out, 0, data, _PIECE, b"")  # the first one finds out what there is
    started, sealed = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < _MEASURED:
        cipher.seal_into(out, 0, data, _PIECE, b"")
        sealed += _PIECE
    rate, flag = sealed / elapsed / 1e9, _aes_flag()
    said = {True: ", by instructions of the processor", False: ", none of the processor's"}
    message = (
        f"AES-GCM does {rate:.1f} GB/s on one core{said.get(flag, '') if flag is not None else ''}"
    )
    if rate >= SLOW_AES and flag is not False:
        return Check(check="AES", state="ok", message=message)
    return Check(
        check="AES",
        state="warn",
        message=message,
        advice="without AES in hardware encryption is slow, and its timing may tell about keys: "
        "use another machine, or have its virtual machine pass the processor's AES on",
    )


def _aes_flag() -> bool | None:
    """Tell whether the processor has AES; None where it doesn't say."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            match = re.search(r"^(?:flags|Features)\s*:(.*)$", file.read(1 << 20), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else "aes" in match[1].split()


def _randomness() -> Check:
    try:
        if hasattr(os, "getrandom"):
            os.getrandom(32, os.GRND_NONBLOCK)
        else:
            os.urandom(32)
    except OSError:
        return Check(
            check="randomness",
            state="fail",
            message="the operating system has no random numbers yet",
            advice="wait, or give the machine a source: keys and nonces are made of them",
        )
    return Check(check="randomness", state="ok", message="the operating system's generator answers")


def _umask() -> Check:
    mask = os.umask(0o077)
    os.umask(mask)
    message = f"umask {mask:03o}"
    if not mask & stat.S_IWOTH:
        return Check(
            check="umask",
            state="warn",
            message=f"{message}: others can alter the files that are made",
            advice="umask 077 keeps them private",
        )
    if not mask & stat.S_IROTH:
        return Check(
            check="umask",
            state="hint",
            message=f"{message}: others can read what decrypt and cat -o write",
            advice="umask 077 keeps it private",
        )
    return Check(check="umask", state="ok", message=message)


def _core_dumps() -> Check:
    if resource.getrlimit(resource.RLIMIT_CORE)[0] == 0:
        return Check(check="core dumps", state="ok", message="are off")
    return Check(
        check="core dumps",
        state="hint",
        message="are on: a crash may write keys to a file",
        advice="ulimit -c 0 turns them off",
    )


def _swap() -> Check:
    try:
        with open("/proc/swaps", encoding="utf-8", errors="replace") as file:
            used = len(file.readlines()) > 1
    except OSError:
        return Check(check="swap", state="hint", message="can't be told here")
    if not used:
        return Check(check="swap", state="ok", message="is off")
    return Check(
        check="swap",
        state="hint",
        message="is on: keys in memory may reach a disk",
        advice="encrypt it, or turn it off",
    )


# --- variables and files -------------------------------------------------------------------------

_SECRET_VARIABLE = re.compile(
    r"passphrase|passw(?:or)?d|secret|token|credentials?$|private_?key|access_?key$|_pin$|(?:^|_)key$",
    re.IGNORECASE,
)


def secret_variables(environment: Mapping[str, str]) -> Check:
    """Tell which environment variables hold secrets, by their names alone."""
    names = sorted(
        name
        for name, value in environment.items()
        if value and not value.startswith("/") and _SECRET_VARIABLE.search(name)
    )
    if not names:
        return Check(check="environment", state="ok", message="no variable is named like a secret")
    return Check(
        check="environment",
        state="warn",
        message=f"variables that are named like secrets: {', '.join(names)}",
        advice="each program that is started gets them, and may show them: hand secrets over by "
        "files of mode 600 or by file descriptors",
    )


def secret_file(path: str, what: str) -> Check:
    """Check that nobody else can read or replace a file that holds a secret."""
    try:
        status = os.stat(path)
    except OSError as error:
        return Check(
            check=what, state="fail", message=f"{path}: {error.strerror}", advice="is it the path?"
        )
    mode = stat.S_IMODE(status.st_mode)
    faults = []
    if stat.S_ISREG(status.st_mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        faults.append(f"others may use it (mode {mode:04o})")
    if status.st_uid not in (os.geteuid(), 0):
        faults.append(f"it belongs to the user {status.st_uid}")
    if others_may_replace(path):
        faults.append("others may write into its folder, and put another in its place")
    if faults:
        return Check(
            check=what,
            state="fail",
            message=f"{path}: {'; '.join(faults)}",
            advice="chmod 600, in a folder of mode 700 of yours",
        )
    return Check(check=what, state="ok", message=f"{path}: private, mode {mode:04o}")


def others_may_replace(path: str) -> bool:
    """Tell whether other users may put another file in the place of one."""
    mode = os.stat(os.path.dirname(os.path.realpath(path))).st_mode
    return bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not mode & stat.S_ISVTX


def policy_file(path: str) -> Check:
    """Check a policy, and that nobody else can alter it: it says what stays in the clear."""
    from modcrypt.kms.policy import Policy

    try:
        policy = Policy.load(path)
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except ValueError as error:
        return Check(
            check="policy", state="fail", message=str(error), advice="correct what is wrong"
        )
    except OSError as error:
        return Check(check="policy", state="fail", message=f"{path}: {error.strerror}")
    if mode & (stat.S_IWGRP | stat.S_IWOTH) or others_may_replace(path):
        return Check(
            check="policy",
            state="warn",
            message=f"{path}: others may alter it (mode {mode:04o}), and have columns left in "
            "the clear",
            advice="chmod go-w, for its folder too",
        )
    masters = len({policy.footer_key, *policy.column_keys})
    return Check(check="policy", state="ok", message=f"{path}: {masters} master keys")


def keyring(path: str) -> Iterator[Check]:
    """Check who may use a keyring's file, and whether it is sealed."""
    from modcrypt.kms.keyring import keyring_file
    from modcrypt.kms.keyring.keyring_document import Sealed, decode_document

    yield secret_file(path, "keyring")
    try:
        sealed = isinstance(decode_document(keyring_file.read(path)[0]).content, Sealed)
    except OSError:
        return  # told already
    except KeyMaterialError as error:
        yield Check(
            check="keyring", state="fail", message=f"{path}: {error}", advice="restore a backup"
        )
        return
    yield Check(
        check="keyring",
        state="ok" if sealed else "warn",
        message=f"{path}: {'sealed under a passphrase' if sealed else 'its keys are in the clear'}",
        advice=""
        if sealed
        else "whoever gets the file, in a backup for one, has the keys: "
        "Keyring.change_passphrase seals it",
    )


# --- the key service -----------------------------------------------------------------------------


def master_key(client: KmsClient, master_key_id: str, aad: bytes = b"") -> Check:
    """Have random bytes wrapped and unwrapped under a master key, which its service may record."""
    from modcrypt.kms.client import unwrap, wrap

    what, probe = f"master key {master_key_id}", os.urandom(16)
    try:
        wrapped = wrap(client, probe, master_key_id, aad)
    except KeyAccessDeniedError as error:
        if isinstance(error, KeyDisabledError):
            return Check(
                check=what, state="fail", message=str(error), advice="enable it, or name another"
            )
        return Check(
            check=what,
            state="warn",
            message=f"does not wrap: {error}",
            advice="who only reads needs no more than unwrapping; who writes needs both",
        )
    except ModcryptError as error:
        return Check(
            check=what, state="fail", message=str(error), advice="is it there, under this id?"
        )
    try:
        same = hmac.compare_digest(unwrap(client, wrapped, master_key_id, aad), probe)
    except ModcryptError as error:
        return Check(
            check=what,
            state="warn" if isinstance(error, KeyAccessDeniedError) else "fail",
            message=f"wraps, but does not unwrap: {error}",
            advice="who only writes needs no more than wrapping; who reads or rotates needs both",
        )
    if not same:
        return Check(check=what, state="fail", message="unwraps something else than it wrapped")
    return Check(
        check=what, state="ok", message="wrapped and unwrapped 16 random bytes, as a probe"
    )


# --- files and logs ------------------------------------------------------------------------------


def parquet_file(
    path: str, tools: KeyTools | None, decryption: FileDecryptionProperties | None
) -> Iterator[Check]:
    """Tell which master keys Parquet files need, and whether footer and columns open."""
    from modcrypt.jobs.key_scan import scan_keys

    files: dict[str, list[ScannedKey]] = {}
    for one in scan_keys(path, tools, decryption=decryption):
        files.setdefault(one.file, []).append(one)
    for name, found in files.items():
        yield _file_told(name, found, decryption)


def _file_told(
    path: str, found: list[ScannedKey], decryption: FileDecryptionProperties | None
) -> Check:
    from modcrypt.parquet.verify.inspection import inspect_parquet

    for one in found:
        if one.kind == "error":
            where = "" if one.message.startswith(one.file) else f"{one.file}: "
            return Check(check="file", state="fail", message=f"{where}{one.message}")
    masters = sorted({one.master_key_id for one in found if one.master_key_id is not None})
    under = (
        f"master keys {', '.join(masters)}" if masters else "keys that its key metadata don't name"
    )
    if decryption is None:
        footer = "sealed" if any(one.kind == "hidden" for one in found) else "readable"
        message = f"{path}: encrypted, under {under}; its footer is {footer}"
        return Check(check="file", state="ok", message=message)
    columns = inspect_parquet(path, decryption).columns or ()
    locked = [one.path for one in columns if one.key is not None and not one.has_key]
    message = f"{path}: encrypted, under {under}; its footer is opened and authenticated"
    if locked:
        names = ", ".join(locked[:10]) + ", ..." * (len(locked) > 10)
        return Check(
            check="file",
            state="warn",
            message=f"{message}; no key opens {len(locked)} of {len(columns)} columns: {names}",
            advice="give their keys, or ask the keeper of their master keys",
        )
    return Check(check="file", state="ok", message=f"{message}, and so is every column")


def event_log(path: str, keys: Iterable[Key] = ()) -> Iterator[Check]:
    """Search a Spark event log, or those in a folder, for what should not be in it.

    Args:
        path: of a file or a folder.
        keys: to be looked for themselves.
    """
    try:
        searched = list(search_event_log(path, keys))
    except OSError as error:
        yield Check(check="event log", state="fail", message=f"{path}: {error.strerror}")
        return
    for one in searched:
        yield from _told(one)
    if not searched:
        yield Check(check="event log", state="warn", message=f"{path}: no log is there")


def _told(log: SearchedLog) -> Iterator[Check]:
    for leak in log.leaks:
        times = f", and {leak.lines - 1} more" if leak.lines > 1 else ""
        name = "" if leak.name is None else f", {leak.name}"
        yield Check(
            check="event log",
            state="fail" if leak.certain else "warn",
            message=f"{leak.file}, line {leak.line}{times}{name}: {leak.what}",
            advice="take it for known to all who could read the log: rotate it, remove the log, "
            "and have spark.redaction.regex cover the name",
            where=leak.fields(),
        )
    if log.unread:
        yield Check(
            check="event log",
            state="warn",
            message=f"{log.file}: read up to its {log.events} events, no further: {log.unread}",
        )
    elif not log.events:
        yield Check(
            check="event log",
            state="warn",
            message=f"{log.file}: no events of Spark are in it",
            advice="is it the path?",
        )
    elif not log.leaks:
        yield Check(
            check="event log",
            state="ok",
            message=f"{log.file}: nothing found in {log.events} events",
        )
