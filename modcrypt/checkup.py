"""Checks of the machine, packages, files, variables, master keys and logs for `modcrypt doctor`.

Each check returns its result and advice. Checks change nothing; only `master_key` uses a key
service, to wrap and unwrap random bytes. Results never contain the value of a secret.
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
"""Speed of AES-GCM in GB/s below which the hardware does not seem to support AES."""

_MEASURED = 0.05  # seconds
_PIECE = 1 << 20

State = Literal["ok", "hint", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check.

    Attributes:
        check: Subject of the check.
        state: `"ok"`; `"hint"` for a state that may be intended; `"warn"` for a risk; or `"fail"`.
        message: Result of the check.
        advice: Next step for the user; empty if there is none.
        where: File, line and property name of a finding in a log.
    """

    check: str
    state: State
    message: str
    advice: str = ""
    where: Mapping[str, Any] | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON."""
        return asdict(self)


# --- the machine ---------------------------------------------------------------------------------


def machine() -> Iterator[Check]:
    """Check Python, packages, AES, random numbers and the limits of the process."""
    yield _check_python()
    yield _check_packages()
    yield _check_idl()
    yield _check_openssl()
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
    return Check(
        check="python",
        state="ok" if good else "fail",
        message=f"Python {version}, {bits}-bit",
        advice=advice,
    )


_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^\]]*\])?>=(?P<least>[0-9.]+)")


def _check_packages() -> Check:
    """Compare the installed packages with the versions that modcrypt requires."""
    try:
        wanted = metadata.requires("modcrypt") or []
    except metadata.PackageNotFoundError:
        return Check(
            check="packages",
            state="hint",
            message="modcrypt runs from a folder, without being installed",
        )
    installed, outdated = [], []
    for line in wanted:
        match = _REQUIREMENT.match(line)
        if match is None:
            continue
        name, least = match["name"], match["least"]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if "extra ==" not in line:
                outdated.append(f"{name} is missing")
            continue
        installed.append(f"{name} {version}")
        if _numbers(version) < _numbers(least):
            outdated.append(f"{name} {version} is older than {least}")
    if outdated:
        return Check(
            check="packages",
            state="fail",
            message="; ".join(outdated),
            advice="run pip install -U modcrypt",
        )
    return Check(check="packages", state="ok", message=", ".join(installed))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _check_idl() -> Check:
    try:
        from modcrypt.parquet.format import idl

        idl.new("FileMetaData")
    except Exception as error:  # a missing or malformed file fails in many ways
        return Check(
            check="thrift IDL",
            state="fail",
            message=f"parquet.thrift can't be read: {type(error).__name__}",
            advice="reinstall modcrypt",
        )
    return Check(check="thrift IDL", state="ok", message="parquet.thrift was parsed")


def _check_openssl() -> Check:
    from cryptography.hazmat.backends.openssl.backend import backend

    return Check(check="OpenSSL", state="ok", message=backend.openssl_version_text())


def _check_aes() -> Check:
    """Measure the speed of AES-GCM, and look for AES among the processor's features."""
    from modcrypt.aead import GCM_OVERHEAD, GcmCipher

    cipher, data = GcmCipher(Key.generate()), bytes(_PIECE)
    out = memoryview(bytearray(_PIECE + GCM_OVERHEAD))
    cipher.seal_into(out, 0, data, _PIECE, b"")  # the first call selects an implementation
    started, sealed = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < _MEASURED:
        cipher.seal_into(out, 0, data, _PIECE, b"")
        sealed += _PIECE
    rate, flag = sealed / elapsed / 1e9, _aes_flag()
    flags = {True: ", with AES instructions", False: ", without AES instructions", None: ""}
    message = f"AES-GCM runs at {rate:.1f} GB/s on one core{flags[flag]}"
    if rate >= SLOW_AES and flag is not False:
        return Check(check="AES", state="ok", message=message)
    return Check(
        check="AES",
        state="warn",
        message=message,
        advice="without AES in hardware, encryption is slow and its timing may reveal keys: use "
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
            advice="wait, or give the machine a source of entropy, which keys and nonces need",
        )
    return Check(check="randomness", state="ok", message="the operating system's generator works")


def _check_umask() -> Check:
    mask = os.umask(0o077)
    os.umask(mask)
    message = f"umask {mask:03o}"
    if not mask & stat.S_IWOTH:
        return Check(
            check="umask",
            state="warn",
            message=f"{message}: other users can modify new files",
            advice="run umask 077 to keep them private",
        )
    if not mask & stat.S_IROTH:
        return Check(
            check="umask",
            state="hint",
            message=f"{message}: other users can read the output of decrypt and cat -o",
            advice="run umask 077 to keep it private",
        )
    return Check(check="umask", state="ok", message=message)


def _check_core_dumps() -> Check:
    if resource.getrlimit(resource.RLIMIT_CORE)[0] == 0:
        return Check(check="core dumps", state="ok", message="off")
    return Check(
        check="core dumps",
        state="hint",
        message="on: a crash may write keys to a file",
        advice="run ulimit -c 0 to turn them off",
    )


def _check_swap() -> Check:
    try:
        with open("/proc/swaps", encoding="utf-8", errors="replace") as file:
            used = len(file.readlines()) > 1
    except OSError:
        return Check(check="swap", state="hint", message="unknown on this system")
    if not used:
        return Check(check="swap", state="ok", message="off")
    return Check(
        check="swap",
        state="hint",
        message="on: keys in memory may be written to disk",
        advice="encrypt swap, or turn it off",
    )


# --- variables and files -------------------------------------------------------------------------

_SECRET_VARIABLE = re.compile(
    r"passphrase|passw(?:or)?d|secret|token|credentials?$|private_?key|access_?key$|_pin$|(?:^|_)key$",
    re.IGNORECASE,
)


def secret_variables(environment: Mapping[str, str]) -> Check:
    """Check for environment variables that hold secrets, by their names."""
    names = sorted(
        name
        for name, value in environment.items()
        if value and not value.startswith("/") and _SECRET_VARIABLE.search(name)
    )
    if not names:
        return Check(
            check="environment", state="ok", message="no variable has the name of a secret"
        )
    return Check(
        check="environment",
        state="warn",
        message=f"variables with names of secrets: {', '.join(names)}",
        advice="every child process inherits them and may reveal them: pass secrets in files of "
        "mode 600 or by file descriptors",
    )


def secret_file(path: str, what: str) -> Check:
    """Check that no other user can read or replace a file that contains a secret."""
    try:
        status = os.stat(path)
    except OSError as error:
        return Check(
            check=what, state="fail", message=f"{path}: {error.strerror}", advice="check the path"
        )
    mode = stat.S_IMODE(status.st_mode)
    faults = []
    if stat.S_ISREG(status.st_mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        faults.append(f"other users can access it (mode {mode:04o})")
    if status.st_uid not in (os.geteuid(), 0):
        faults.append(f"it belongs to user {status.st_uid}")
    if others_can_replace(path):
        faults.append("other users can write to its folder and replace it")
    if faults:
        return Check(
            check=what,
            state="fail",
            message=f"{path}: {'; '.join(faults)}",
            advice="run chmod 600 on it, in a folder of yours with mode 700",
        )
    return Check(check=what, state="ok", message=f"{path}: private, mode {mode:04o}")


def others_can_replace(path: str) -> bool:
    """Return whether other users can replace a file."""
    mode = os.stat(os.path.dirname(os.path.realpath(path))).st_mode
    return bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not mode & stat.S_ISVTX


def policy_file(path: str) -> Check:
    """Check a policy, and that no other user can change the columns that it leaves in plaintext."""
    from modcrypt.kms.policy import Policy

    try:
        policy = Policy.load(path)
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except ValueError as error:
        return Check(check="policy", state="fail", message=str(error), advice="correct the policy")
    except OSError as error:
        return Check(check="policy", state="fail", message=f"{path}: {error.strerror}")
    if mode & (stat.S_IWGRP | stat.S_IWOTH) or others_can_replace(path):
        return Check(
            check="policy",
            state="warn",
            message=f"{path}: other users can modify it (mode {mode:04o}), and so leave columns "
            "unencrypted",
            advice="run chmod go-w on it and on its folder",
        )
    masters = len({policy.footer_key, *policy.column_keys})
    return Check(check="policy", state="ok", message=f"{path}: {masters} master keys")


def keyring(path: str) -> Iterator[Check]:
    """Check who can access the file of a keyring, and whether a passphrase encrypts it."""
    from modcrypt.kms.keyring import keyring_file
    from modcrypt.kms.keyring.keyring_document import Sealed, decode_document

    yield secret_file(path, "keyring")
    try:
        encrypted = isinstance(decode_document(keyring_file.read(path)[0]).content, Sealed)
    except OSError:
        return  # already reported
    except KeyMaterialError as error:
        yield Check(
            check="keyring", state="fail", message=f"{path}: {error}", advice="restore a backup"
        )
        return
    yield Check(
        check="keyring",
        state="ok" if encrypted else "warn",
        message=f"{path}: {'encrypted with a passphrase' if encrypted else 'not encrypted'}",
        advice=""
        if encrypted
        else "anyone who gets the file, for example from a backup, has its keys: "
        "Keyring.change_passphrase encrypts it",
    )


# --- the key service -----------------------------------------------------------------------------


def master_key(client: KmsClient, master_key_id: str, aad: bytes = b"") -> Check:
    """Wrap and unwrap random bytes with a master key, which the key service may record."""
    from modcrypt.kms.client import unwrap, wrap

    what, probe = f"master key {master_key_id}", os.urandom(16)
    try:
        wrapped = wrap(client, probe, master_key_id, aad)
    except KeyAccessDeniedError as error:
        if isinstance(error, KeyDisabledError):
            return Check(
                check=what, state="fail", message=str(error), advice="enable it, or use another"
            )
        return Check(
            check=what,
            state="warn",
            message=f"cannot wrap: {error}",
            advice="readers only need to unwrap; writers also need to wrap",
        )
    except ModcryptError as error:
        return Check(
            check=what,
            state="fail",
            message=str(error),
            advice="check that the key exists under this id",
        )
    try:
        same = hmac.compare_digest(unwrap(client, wrapped, master_key_id, aad), probe)
    except ModcryptError as error:
        return Check(
            check=what,
            state="warn" if isinstance(error, KeyAccessDeniedError) else "fail",
            message=f"can wrap, but not unwrap: {error}",
            advice="writers only need to wrap; readers need to unwrap, and rotations need both",
        )
    if not same:
        return Check(check=what, state="fail", message="unwrapped other bytes than it had wrapped")
    return Check(check=what, state="ok", message="wrapped and unwrapped 16 random bytes")


# --- files and logs ------------------------------------------------------------------------------


def parquet_file(
    path: str, tools: KeyTools | None, decryption: FileDecryptionProperties | None
) -> Iterator[Check]:
    """Check which master keys Parquet files need, and whether footers and columns open."""
    from modcrypt.jobs.key_scan import scan_keys

    files: dict[str, list[ScannedKey]] = {}
    for key in scan_keys(path, tools, decryption=decryption):
        files.setdefault(key.file, []).append(key)
    for name, keys in files.items():
        yield _check_file(name, keys, decryption)


def _check_file(
    path: str, keys: list[ScannedKey], decryption: FileDecryptionProperties | None
) -> Check:
    from modcrypt.parquet.verify.inspection import inspect_parquet

    for key in keys:
        if key.kind == "error":
            where = "" if key.message.startswith(key.file) else f"{key.file}: "
            return Check(check="file", state="fail", message=f"{where}{key.message}")
    masters = sorted({key.master_key_id for key in keys if key.master_key_id is not None})
    used = f"master keys {', '.join(masters)}" if masters else "keys its key metadata does not name"
    if decryption is None:
        footer = "encrypted" if any(key.kind == "hidden" for key in keys) else "readable"
        message = f"{path}: encrypted with {used}; its footer is {footer}"
        return Check(check="file", state="ok", message=message)
    columns = inspect_parquet(path, decryption).columns or ()
    locked = [column.path for column in columns if column.key is not None and not column.has_key]
    message = f"{path}: encrypted with {used}; its footer was decrypted and authenticated"
    if locked:
        names = ", ".join(locked[:10]) + ", ..." * (len(locked) > 10)
        return Check(
            check="file",
            state="warn",
            message=f"{message}; no key for {len(locked)} of {len(columns)} columns: {names}",
            advice="pass their keys, or ask for access to their master keys",
        )
    return Check(check="file", state="ok", message=f"{message}, and a key opens every column")


def event_log(path: str, keys: Iterable[Key] = ()) -> Iterator[Check]:
    """Search a Spark event log, or all logs in a folder, for secrets.

    Args:
        path: Path of a file or folder.
        keys: Keys to search for.
    """
    try:
        searched = list(search_event_log(path, keys))
    except OSError as error:
        yield Check(check="event log", state="fail", message=f"{path}: {error.strerror}")
        return
    for log in searched:
        yield from _check_log(log)
    if not searched:
        yield Check(check="event log", state="warn", message=f"{path}: contains no event log")


def _check_log(log: SearchedLog) -> Iterator[Check]:
    for leak in log.leaks:
        times = f", and {leak.lines - 1} more" if leak.lines > 1 else ""
        name = "" if leak.name is None else f", {leak.name}"
        yield Check(
            check="event log",
            state="fail" if leak.certain else "warn",
            message=f"{leak.file}, line {leak.line}{times}{name}: {leak.what}",
            advice="assume that everyone who could read the log knows it: rotate it, remove the "
            "log, and add the name to spark.redaction.regex",
            where=leak.fields(),
        )
    if log.unread:
        yield Check(
            check="event log",
            state="warn",
            message=f"{log.file}: only the first {log.events} events were read: {log.unread}",
        )
    elif not log.events:
        yield Check(
            check="event log",
            state="warn",
            message=f"{log.file}: contains no Spark events",
            advice="check the path",
        )
    elif not log.leaks:
        yield Check(
            check="event log",
            state="ok",
            message=f"{log.file}: nothing found in {log.events} events",
        )
