"""Files that other users must not choose: keyrings, keys, passphrases, PINs, tokens, audits.

Root's files are accepted: containers have their secrets mounted as root's.
"""

from __future__ import annotations

import os
import stat

from modcrypt.errors import KeyRetrievalError

__all__ = ["check_owner", "check_private", "check_trusted", "read_secret"]


def check_owner(status: os.stat_result, what: str) -> None:
    """Raise KeyRetrievalError if a file belongs neither to this user nor to root."""
    if status.st_uid not in (os.geteuid(), 0):
        raise KeyRetrievalError(
            f"{what} belongs to another user (uid {status.st_uid}), who can change it at any time: "
            "copy it to a file of your own, mode 600"
        )


def check_trusted(status: os.stat_result, what: str) -> None:
    """Raise KeyRetrievalError if a file is another user's, or others may write to it."""
    check_owner(status, what)
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode) and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise KeyRetrievalError(
            f"{what}: others may write to the file (mode {mode:04o}): chmod 600 keeps it private"
        )


def check_private(status: os.stat_result, what: str) -> None:
    """Raise KeyRetrievalError if anyone but its owner may read or write a file."""
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyRetrievalError(
            f"{what}, and others may use the file (mode {mode:04o}): chmod 600 keeps it private"
        )


def read_secret(path: str | os.PathLike[str], limit: int, what: str) -> bytes:
    """Return up to `limit` bytes of a file that holds a secret; raises as `check_trusted`.

    Raises:
        OSError: it can't be read.
    """
    with open(path, "rb") as file:
        check_trusted(os.fstat(file.fileno()), f"the {what} {os.fspath(path)}")
        return file.read(limit)
