"""Name the file that the caller knows in errors of file systems and stores, and hide signatures."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from typing import Any

from modcrypt.errors import MAX_MESSAGE, ModcryptError, printable
from modcrypt.io.addresses import is_url

_QUERY = r"\?[^\s'\"]+"  # queries of URLs contain signatures

HADOOP = ("hdfs", "viewfs")
"""Protocols of Hadoop's distributed file system, whose paths do not contain the host."""

_JAVA_TRACE = r"(?s:\n\s+at .*)"  # a server's traceback in its message

_ERRNO: dict[type[OSError], int] = {
    FileExistsError: errno.EEXIST,
    FileNotFoundError: errno.ENOENT,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
    PermissionError: errno.EACCES,
    TimeoutError: errno.ETIMEDOUT,
}
"""Error numbers of the classes that clients of stores raise without a number."""


class add_path_to_errors:  # noqa: N801  # a block, as functions with `contextmanager`
    """Make an OSError of the block name a path that the caller knows, not a temporary file."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, self._path) from error


@contextlib.contextmanager
def add_url_to_errors(filesystem: Any, path: str) -> Iterator[None]:
    """Turn errors of a store into OSErrors that name the URL; also decorates functions.

    The clients of stores have classes of their own for missing credentials and for stores that
    cannot be reached, and many name no object. Python's own errors and modcrypt's stay as they are.
    Without a file system, `path` is a local path or a URL.
    """
    try:
        yield
    except OSError as error:
        if (filesystem is None and not is_url(path)) or error.filename is not None:
            raise
        error = _find_failure(error)
        code = error.errno or _ERRNO.get(type(error), errno.EIO)
        text = os.strerror(code) if code == errno.ENOENT else error.strerror or str(error)
        text = re.sub(_JAVA_TRACE, "", text)
        raise OSError(code, _hide_queries(text), redact_url(filesystem, path)) from error
    except NotImplementedError as error:  # such as writing over HTTP
        text = "this kind of store does not support the operation"
        raise OSError(errno.EOPNOTSUPP, text, redact_url(filesystem, path)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("builtins", "modcrypt", "pyarrow"):
            raise
        text = _hide_queries(f"{type(error).__name__}: {error}")
        raise OSError(errno.EIO, text, redact_url(filesystem, path)) from error


def _find_failure(error: OSError) -> OSError:
    """Return the failure that fsspec's HTTP file system reports as a missing file."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError):
        return error
    if isinstance(cause, OSError):
        return cause
    status = getattr(cause, "status", 404)
    return error if status in (404, 410) else OSError(errno.EIO, f"the server answered {status}")


def format_url(filesystem: Any, path: str) -> str:
    """Return the URL of a file in a store, query included."""
    if is_url(path):  # fsspec's HTTP file system uses the URL as the path
        return path
    protocol = getattr(filesystem, "type_name", None) or filesystem.protocol
    first = protocol if isinstance(protocol, str) else protocol[0]
    if first in HADOOP and hasattr(filesystem, "unstrip_protocol"):
        return str(filesystem.unstrip_protocol(path))
    return f"{first}://{path.lstrip('/')}"


def _hide_queries(text: str) -> str:
    return printable(re.sub(_QUERY, "?(hidden)", text), MAX_MESSAGE)


def redact_url(filesystem: Any, path: str) -> str:
    """Return a local path, or the URL of a file in a store without its query, for messages."""
    return path if filesystem is None else _hide_queries(format_url(filesystem, path))


@contextlib.contextmanager
def name_path_in_errors(path: str) -> Iterator[None]:
    """Add the path of a file to the message of an error, or as a note to it."""
    try:
        yield
    except ModcryptError as error:
        if path not in str(error):
            error.args = (f"{path}: {error}", *error.args[1:])
        raise
    except Exception as error:
        if path not in str(error):
            error.add_note(f"while reading {path}")
        raise
