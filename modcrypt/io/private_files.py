"""Checks that no other user controls a file: a file with a secret, or one that commands modcrypt.

Files of root are accepted, because containers mount secrets as files of root.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from modcrypt.errors import KeyRetrievalError

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def state_folder() -> Path:
    """Return the folder of what modcrypt remembers; an XDG_STATE_HOME that is relative is none."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/state")
    return Path(base) / "modcrypt"


def replace_private(
    path: Path, data: bytes, *, check: Callable[[str], object] | None = None
) -> None:
    """Write a file of mode 0600, in a folder that is made if it is missing; raise OSError.

    `check` is called with a temporary file beside it before it appears, and may raise.
    """
    import tempfile

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # of mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


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
    if has_owners() and stat.S_ISREG(status.st_mode) and mode & _WRITABLE_BY_OTHERS:
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


def check_unalterable(path: str | os.PathLike[str], status: os.stat_result) -> None:
    """Raise KeyRetrievalError if another user may change or replace a file that is no secret.

    Such a file decides who can open data, or what modcrypt does: a public key, a policy or a
    declaration. Pipes pass, because nobody can change them afterwards. `status` is that of the
    opened file.
    """
    if not has_owners() or not stat.S_ISREG(status.st_mode):
        return
    where = os.fspath(path)
    check_owner(status, where)
    if status.st_mode & _WRITABLE_BY_OTHERS:
        mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
        raise KeyRetrievalError(f"{where} is writable by others ({mode}): run chmod go-w on it")
    if others_can_replace(path):
        raise KeyRetrievalError(
            f"the folder of {where} is writable by others, who can replace the file: run chmod "
            "go-w on the folder"
        )


def others_can_replace(path: str | os.PathLike[str]) -> bool:
    """Return whether other users can replace a file, because they may write to its folder."""
    folder = os.stat(os.path.dirname(os.path.realpath(path)))
    if has_owners() and folder.st_uid not in (os.geteuid(), 0):
        return True
    return bool(folder.st_mode & _WRITABLE_BY_OTHERS) and not folder.st_mode & stat.S_ISVTX


def end_line(data: bytes) -> bytes:
    """Return lines to which another one can be added; editors may leave the last one unfinished."""
    return data + b"\n" if data and not data.endswith(b"\n") else data


def read_unalterable(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return up to `limit` bytes of a file that passes `check_unalterable`."""
    with open(path, "rb") as file:
        check_unalterable(path, os.fstat(file.fileno()))
        return file.read(limit)


def only_root_can_write(path: str | os.PathLike[str]) -> bool:
    """Return whether only root can change a file, or exchange it, a link or a folder on its path.

    It is false where files have no POSIX owners. Raise OSError if the file does not exist, or its
    links form a circle.
    """
    os.stat(path)
    return has_owners() and all(map(_is_of_root, (Path(path), *Path(path).parents)))


def _is_of_root(path: Path) -> bool:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):  # its mode means nothing
        return status.st_uid == 0 and only_root_can_write(path.parent / os.readlink(path))
    return status.st_uid == 0 and not status.st_mode & _WRITABLE_BY_OTHERS


def read_secret(path: str | os.PathLike[str], limit: int, what: str) -> bytes:
    """Return up to `limit` bytes of a file that contains a secret; raise as `check_trusted`."""
    with open(path, "rb") as file:
        check_trusted(os.fstat(file.fileno()), f"the {what} {os.fspath(path)}")
        return file.read(limit)
