"""Translate errors of pyiceberg, fastavro and PyArrow about damaged data into FormatError.

Their messages repeat values of the data, and their types vary: the FormatError names only the type
of the original error.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator
from importlib.util import find_spec

from modcrypt.errors import FormatError, ModcryptError
from modcrypt.runtime.extras import missing_extra

_LIBRARIES = ("pyiceberg", "fastavro", "pyroaring")


@contextlib.contextmanager
def as_format_errors(name: str) -> Iterator[None]:
    """Raise FormatError for any error that another library raises about the data of a file.

    Errors that the data did not cause pass through: the file system's OSError, an interruption,
    lack of memory. A ModcryptError passes through as well, with the file's name added if it lacks
    it.
    """
    try:
        yield
    except MemoryError:
        raise
    except ModcryptError as error:
        if f"/{posixpath.basename(name)}" not in f"/{error}":  # named by its location or its path
            error.args = (f"{name}: {error}", *error.args[1:])
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # errors that PyArrow raises itself have no errno
        raise FormatError(f"{name}: the content is malformed ({type(error).__name__})") from None


def require_extra() -> None:
    """Raise ModuleNotFoundError if a library for Iceberg tables is missing, without importing any.

    The message says how to install it.
    """
    for library in _LIBRARIES:
        if find_spec(library) is None:
            raise missing_extra(f"the package {library}", "iceberg", library)
