"""Error codes, messages and exit codes of failures of a file or of the program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from modcrypt.errors import (
    ERRORS_BY_WORD,
    CommitConflictError,
    FormatError,
    IntegrityError,
    KeyExhaustedError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
    UnsupportedFormatError,
)
from modcrypt.module_ids import BlockId, CellId, ModuleId
from modcrypt.report.json_fields import json_fields
from modcrypt.runtime.extras import name_extra
from modcrypt.runtime.tracebacks import format_origin

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.parquet.verify.inspection import Inspection
    from modcrypt.parquet.verify.verification_results import Verification

# The first class that matches decides: UnsupportedFormatError is a FormatError, too.
_CODES: tuple[tuple[type[ModcryptError], int], ...] = (
    (UnsupportedFormatError, 5),
    (KmsUnavailableError, 4),
    (CommitConflictError, 4),
    (KeyRetrievalError, 3),
    (KeyExhaustedError, 3),
    (IntegrityError, 1),
    (FormatError, 1),
)

# Error codes without an exception class. `describe` distinguishes file errors (2 or 74) by their
# type; from the error code alone, the exit code is 2.
_CODES_OF_OTHER_ERRORS = {"file": 2, "different": 2, "usage": 2, "internal": 70}

_USAGE_OS_ERRORS = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


class Failure(NamedTuple):
    """The report of an exception."""

    word: str
    message: str
    code: int  # the exit code of a program that ends for this reason
    module: ModuleId | BlockId | CellId | None = None

    def line(self) -> str:
        """Return the line for stderr."""
        return f"modcrypt: error: {self.word}: {self.message}"

    def fields(self) -> dict[str, Any]:
        """Return the fields that `--json` prints."""
        module = None if self.module is None else module_fields(self.module)
        return {"error": self.word, "message": self.message, "module": module}


def describe(error: BaseException) -> Failure:
    """Return the report of an exception; for a bug, only its type and location.

    The text of an exception from other packages may contain values of a file.
    """
    if isinstance(error, ModcryptError):
        code = _exit_code_of_class(type(error))
        return Failure(error.word, str(error), code, getattr(error, "module", None))
    if isinstance(error, ModuleNotFoundError):
        return Failure("usage", str(name_extra(error)), 2)
    if isinstance(error, ImportError):
        return Failure("usage", str(error), 2)
    if isinstance(error, OSError):
        code = 2 if isinstance(error, _USAGE_OS_ERRORS) else 74
        return Failure(getattr(error, "word", "file"), _os_message(error), code)
    if type(error) is ValueError:  # subclasses such as UnicodeDecodeError are bugs
        return Failure("usage", str(error), 2)
    what = f"unexpected {type(error).__name__}{format_origin(error)}"
    return Failure("internal", f"{what}: this is a bug in modcrypt, please report it", 70)


def _os_message(error: OSError) -> str:
    if error.strerror is None:
        return str(error) or type(error).__name__
    where = "" if error.filename is None else f"{error.filename}: "
    if isinstance(error, FileExistsError) and "overwrite=True" not in error.strerror:
        from modcrypt.io.places import exists_error  # not to be loaded for the help

        return _os_message(exists_error(error.filename))
    return where + error.strerror


def describe_failure(error: Exception) -> tuple[str, str]:
    """Return error code and message of an error about a file; re-raise internal errors."""
    failure = describe(error)
    if failure.word == "internal":
        raise error
    return failure.word, failure.message


def describe_result(result: Inspection | Verification) -> dict[str, Any]:
    """Return the fields that `--json` prints about a file, locally and on Spark."""
    fields = result.fields()
    del fields["regions"]
    return fields


def module_fields(module: ModuleId | BlockId | CellId) -> dict[str, Any]:
    """Return the address of a module, block or cell as fields for JSON."""
    if isinstance(module, BlockId):
        return {"type": "block", "block": module.index}
    if isinstance(module, CellId):
        return {"type": "cell", "path": module.path}
    return json_fields(module)


def exit_code(error_codes: Iterable[str]) -> int:
    """Return the exit code that all failed files share, else 1."""
    return common_code(map(_exit_code_of, error_codes))


def common_code(codes: Iterable[int]) -> int:
    """Return the exit code that all failures share, 1 if they differ, 0 without failures."""
    distinct = set(codes)
    return 0 if not distinct else distinct.pop() if len(distinct) == 1 else 1


def _exit_code_of(word: str) -> int:
    if word in ERRORS_BY_WORD:
        return _exit_code_of_class(ERRORS_BY_WORD[word])
    return _CODES_OF_OTHER_ERRORS.get(word, 1)


def _exit_code_of_class(error: type[ModcryptError]) -> int:
    return next((code for kind, code in _CODES if issubclass(error, kind)), 1)
