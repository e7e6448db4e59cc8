"""Open local folders below a root without following symbolic links."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import Iterator

from modcrypt.io.store_errors import add_path_to_errors

_FLAGS = getattr(os, "O_PATH", os.O_RDONLY)
_FLAGS |= getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)


def open_folder(
    path: str, root: str | None, *, make: bool = False
) -> contextlib.AbstractContextManager[tuple[int | None, str]]:
    """Open the folder of a local file, and those between it and the root, following no link.

    Yield the folder's descriptor and the file's name in it. Operations by the descriptor stay in
    that folder, even if a link replaces it concurrently. If there is no folder below the root, or
    no root, yield None and the path; all links are followed if `root` is None. Raise OSError if the
    file system refuses; ELOOP for a symbolic link below the root.
    """
    if root is not None:
        return _open_folder_below(path, root, make)
    if make:
        _make_folders(os.path.dirname(path))
    return contextlib.nullcontext((None, path))


@contextlib.contextmanager
def _open_folder_below(path: str, root: str, make: bool) -> Iterator[tuple[int | None, str]]:
    if make:
        _make_folders(root)
    *folders, name = split_below(path, root)
    if not folders:
        yield None, path
        return
    fd = os.open(root or ".", _FLAGS)
    try:
        for folder in folders:
            with add_path_to_errors(path):
                below = _open_subfolder(fd, folder, make, path, root)
            os.close(fd)
            fd = below
        yield fd, name
    finally:
        os.close(fd)


def _make_folders(path: str) -> None:
    try:
        os.makedirs(path or ".", exist_ok=True)
    except FileExistsError:  # no `overwrite` would help
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None


def _open_subfolder(fd: int, folder: str, make: bool, path: str, root: str | None) -> int:
    """Open a folder in another one, on the way to `path`, unless it is a symbolic link."""
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, dir_fd=fd)
    try:
        return os.open(folder, _FLAGS | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:  # systems report a link by different errors
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        if stat.S_ISLNK(os.stat(folder, dir_fd=fd, follow_symlinks=False).st_mode):
            raise symbolic_link_error(path, root) from None
        raise


def relative_to(fd: int | None) -> dict[str, int]:
    """Return the arguments by which functions of `os` find a name in an open folder, if any."""
    return {} if fd is None else {"dir_fd": fd}


def split_below(path: str, root: str) -> list[str]:
    """Split the part of a path below a root into names; raise OSError if it is not below it."""
    prefix = posixpath.join(root, "")  # ends with a slash, unless it is empty
    names = [name for name in path.removeprefix(prefix).split("/") if name not in ("", ".")]
    if not path.startswith(prefix) or not names or ".." in names:
        raise OSError(errno.EINVAL, f"path is not below {root}", path)
    return names


def symbolic_link_error(path: str, root: str | None) -> OSError:
    """Return the error for writing or removing through a symbolic link below the root."""
    return OSError(
        errno.ELOOP,
        f"modcrypt does not write or remove files through a symbolic link below {root}; "
        "name the link's target instead",
        path,
    )
