"""What pyiceberg, fastavro and PyArrow say of data that is damaged, in our words.

Their messages repeat values of the data, and are of any type: they are told by the name of the
type alone, and nothing of them is kept.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator
from importlib.util import find_spec

from modcrypt.errors import FormatError, ModcryptError

__all__ = ["as_format_errors", "require_extra"]

_LIBRARIES = ("pyiceberg", "fastavro", "pyroaring")


@contextlib.contextmanager
def as_format_errors(name: str) -> Iterator[None]:
    """Make a FormatError of whatever another library raises for the data of a file.

    What is no fault of the data goes through: the file system's OSError, an interruption, too
    little memory. A ModcryptError does, which is told the file if it doesn't name it.

    Args:
        name: of the file.
    """
    try:
        yield
    except MemoryError:
        raise
    except ModcryptError as error:
        if f"/{posixpath.basename(name)}" not in f"/{error}":  # by its location, or its path
            error.args = (f"{name}: {error}", *error.args[1:])
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # PyArrow's own have no number
        raise FormatError(f"{name}: it can't be made sense of ({type(error).__name__})") from None


def require_extra() -> None:
    """Check that the libraries of encrypted Iceberg tables are there, without importing them.

    Raises:
        ModuleNotFoundError: one isn't; the message says how to install them.
    """
    for library in _LIBRARIES:
        if find_spec(library) is None:
            raise ModuleNotFoundError(
                f'Iceberg tables need {library}: pip install "modcrypt[iceberg]"', name=library
            )
