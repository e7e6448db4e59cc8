"""Checks of files, variables, master keys and logs for `modcrypt doctor`.

Each check returns its result and advice. Checks change nothing; only `master_key` uses a key
service, to wrap and unwrap random bytes. Results never contain the value of a secret.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from modcrypt.doctor.event_log import SearchedLog, search_event_log
from modcrypt.doctor.machine_checks import Check, Subject
from modcrypt.errors import KeyAccessDeniedError, KeyDisabledError, KeyMaterialError, ModcryptError
from modcrypt.io.private_files import others_can_replace
from modcrypt.keys import Key
from modcrypt.keys.lookalikes import show_name

if TYPE_CHECKING:
    from modcrypt.jobs.key_scan import ScannedKey
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools
    from modcrypt.parquet.crypto.properties import FileDecryptionProperties


_SECRET_VARIABLE = re.compile(
    r"passphrase|passw(?:or)?d|secret|token|credentials?$|private_?key|access_?key$|_pin$|(?:^|_)key$",
    re.IGNORECASE,
)


def secret_variables(environment: Mapping[str, str]) -> Check:
    """Check for environment variables that hold secrets, by their names."""
    about = Subject("environment")
    names = sorted(
        name
        for name, value in environment.items()
        if value and not value.startswith("/") and _SECRET_VARIABLE.search(name)
    )
    if not names:
        return about.ok("no variable name suggests a secret")
    return about.warn(
        f"variables whose names suggest secrets: {', '.join(names)}",
        "every child process inherits them and may reveal them: pass secrets in files of "
        "mode 600 or by file descriptors",
    )


def secret_file(path: str, what: str) -> Check:
    """Check that no other user can read or replace a file that contains a secret."""
    about = Subject(what)
    try:
        status = os.stat(path)
    except OSError as error:
        return about.fail(f"{show_name(path)}: {error.strerror}", "check the path")
    mode = stat.S_IMODE(status.st_mode)
    faults = []
    if stat.S_ISREG(status.st_mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        faults.append(f"other users can access it (mode {mode:04o})")
    if status.st_uid not in (os.geteuid(), 0):
        faults.append(f"it belongs to user {status.st_uid}")
    if others_can_replace(path):
        faults.append("other users can write to its folder and replace it")
    if faults:
        return about.fail(
            f"{path}: {'; '.join(faults)}",
            "run chmod 600 on it, and keep it in a folder of your own with mode 700",
        )
    return about.ok(f"{path}: private, mode {mode:04o}")


def policy_file(path: str) -> Check:
    """Check a policy, and that no other user can change the columns that it leaves in plaintext."""
    from modcrypt.kms.policy import Policy

    about = Subject("policy")
    try:
        policy = Policy.load(path)
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except ValueError as error:
        return about.fail(str(error), "correct the policy")
    except OSError as error:
        return about.fail(f"{show_name(path)}: {error.strerror}")
    if mode & (stat.S_IWGRP | stat.S_IWOTH) or others_can_replace(path):
        return about.warn(
            f"{path}: other users can modify it (mode {mode:04o}), and so leave columns "
            "unencrypted",
            "run chmod go-w on it and on its folder",
        )
    masters = len({policy.footer_key, *policy.column_keys})
    return about.ok(f"{path}: {masters} master keys")


def keyring(path: str) -> Iterator[Check]:
    """Check who can access the file of a keyring, and whether a passphrase encrypts it."""
    from modcrypt.kms.keyring import keyring_file
    from modcrypt.kms.keyring.keyring_document import decode_document
    from modcrypt.kms.keyring.passphrase_encryption import EncryptedPart

    about = Subject("keyring")
    yield secret_file(path, "keyring")
    try:
        encrypted = isinstance(decode_document(keyring_file.read(path)[0]).content, EncryptedPart)
    except OSError:
        return  # already reported
    except KeyMaterialError as error:
        yield about.fail(f"{path}: {error}", "restore a backup")
        return
    if encrypted:
        yield about.ok(f"{path}: encrypted with a passphrase")
    else:
        yield about.warn(
            f"{path}: not encrypted",
            "anyone who gets the file, for example from a backup, has its keys: "
            "Keyring.change_passphrase encrypts it",
        )


def wrapping(client: KmsClient, *, signed: bool) -> Iterator[Check]:
    """Check whether readers know who wrapped a key: its service, or by required signatures."""
    from modcrypt.kms.client import capabilities_of

    if capabilities_of(client).public_keys and not signed:
        yield Subject("recipients").warn(
            "everyone who has these public keys can make files that readers accept",
            "sign new files, and require their writers by signed_by in the policy",
        )


def master_key(client: KmsClient, master_key_id: str, aad: bytes = b"") -> Check:
    """Check a master key by wrapping and unwrapping random bytes, which the service may log."""
    from modcrypt.kms.calls import unwrap, wrap

    about, probe = Subject(f"master key {master_key_id}"), os.urandom(16)
    try:
        wrapped = wrap(client, probe, master_key_id, aad)
    except KeyAccessDeniedError as error:
        if isinstance(error, KeyDisabledError):
            return about.fail(str(error), "enable it, or use another")
        return about.warn(
            f"cannot wrap: {error}", "readers only need to unwrap; writers also need to wrap"
        )
    except ModcryptError as error:
        return about.fail(str(error), "check that the key exists under this id")
    try:
        same = hmac.compare_digest(unwrap(client, wrapped, master_key_id, aad), probe)
    except ModcryptError as error:
        return about.result(
            "warn" if isinstance(error, KeyAccessDeniedError) else "fail",
            f"can wrap, but not unwrap: {error}",
            "writers only need to wrap; readers need to unwrap, and rotations need both",
        )
    if not same:
        return about.fail("the unwrapped bytes differ")
    return about.ok("wrapped and unwrapped 16 random bytes")


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

    about = Subject("file")
    for key in keys:
        if key.kind == "error":
            where = "" if key.message.startswith(key.file) else f"{key.file}: "
            return about.fail(f"{where}{key.message}")
    masters = sorted({key.master_key_id for key in keys if key.master_key_id is not None})
    used = f"master keys {', '.join(masters)}" if masters else "keys not named in its key metadata"
    if decryption is None:
        footer = "encrypted" if any(key.kind == "hidden" for key in keys) else "readable"
        message = f"{path}: encrypted with {used}; its footer is {footer}"
        return about.ok(message)
    columns = inspect_parquet(path, decryption).columns or ()
    locked = [column.path for column in columns if column.key is not None and not column.has_key]
    message = f"{path}: encrypted with {used}; its footer was decrypted and authenticated"
    if locked:
        names = ", ".join(locked[:10]) + ", ..." * (len(locked) > 10)
        return about.warn(
            f"{message}; no key for {len(locked)} of {len(columns)} columns: {names}",
            "pass their keys, or ask for access to their master keys",
        )
    return about.ok(f"{message}, and a key opens every column")


def event_log(path: str, keys: Iterable[Key] = ()) -> Iterator[Check]:
    """Search a Spark event log, or all logs in a folder, for secrets and these keys."""
    about = Subject("event log")
    try:
        searched = list(search_event_log(path, keys))
    except OSError as error:
        yield about.fail(f"{show_name(path)}: {error.strerror}")
        return
    for log in searched:
        yield from _check_log(log)
    if not searched:
        yield about.warn(f"{path}: contains no event log")


def _check_log(log: SearchedLog) -> Iterator[Check]:
    about = Subject("event log")
    for leak in log.leaks:
        times = f", and {leak.lines - 1} more" if leak.lines > 1 else ""
        name = "" if leak.name is None else f", {leak.name}"
        yield about.result(
            "fail" if leak.certain else "warn",
            f"{leak.file}, line {leak.line}{times}{name}: {leak.what}",
            "assume that everyone who could read the log knows this secret: rotate it, "
            "remove the log, and add the name to spark.redaction.regex",
            where=leak.fields(),
        )
    if log.unread:
        yield about.warn(f"{log.file}: only the first {log.events} events were read: {log.unread}")
    elif not log.events:
        yield about.warn(f"{log.file}: contains no Spark events", "check the path")
    elif not log.leaks:
        yield about.ok(f"{log.file}: nothing found in {log.events} events")
