"""Checks that no other user controls a file: keyring, key, passphrase, PIN, token or audit file.

Files of root are accepted, because containers mount secrets as files of root.
"""

from __future__ import annotations

import os
import stat

from modcrypt.errors import KeyRetrievalError


def has_owners() -> bool:
    """Return whether files have POSIX owners and modes, which Windows replaces by access lists."""
    return hasattr(os, "geteuid")


def check_owner(status: os.stat_result, what: str) -> None:
    """Raise KeyRetrievalError if a file belongs to a user other than this one and root."""
    if has_owners() and status.st_uid not in (os.geteuid(), 0):
        raise KeyRetrievalError(
            f"{what} belongs to another user (uid {status.st_uid}), who can change it at any time: "
            "copy it to a file of your own, mode 600"
        )


def check_trusted(status: os.stat_result, what: str) -> None:
    """Raise KeyRetrievalError if a file belongs to another user or others may write to it."""
    check_owner(status, what)
    mode = stat.S_IMODE(status.st_mode)
    if has_owners() and stat.S_ISREG(status.st_mode) and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise KeyRetrievalError(
            f"{what} is writable by others (mode {mode:04o}): run chmod 600 to make it private"
        )


def check_private(status: os.stat_result, what: str) -> None:
    """Raise KeyRetrievalError if anyone but the owner may read or write a file."""
    mode = stat.S_IMODE(status.st_mode)
    if has_owners() and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyRetrievalError(
            f"{what}, and others may use the file (mode {mode:04o}): run chmod 600 to make it "
            "private"
        )


def read_secret(path: str | os.PathLike[str], limit: int, what: str) -> bytes:
    """Return up to `limit` bytes of a file that contains a secret; raise as `check_trusted`."""
    with open(path, "rb") as file:
        check_trusted(os.fstat(file.fileno()), f"the {what} {os.fspath(path)}")
        return file.read(limit)
