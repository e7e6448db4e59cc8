"""Conversion of an exception into a line on stderr, a JSON object and an exit code.

Error codes are those of `modcrypt.errors`, and `usage`, `file`, `interrupted` and `internal` for
faults that concern neither a Parquet file nor a key. A line never contains a traceback, control
characters from a hostile file's column names, or an argument that looks like a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from modcrypt.aad import BlockId, ModuleId
from modcrypt.cli.output.signals import Stopped
from modcrypt.errors import (
    CommitConflictError,
    FormatError,
    IntegrityError,
    KeyExhaustedError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
    UnsupportedFormatError,
    printable,
)

__all__ = [
    "EXIT_CODES",
    "Failure",
    "common_code",
    "exit_code",
    "explain",
    "looks_like_key",
    "module_fields",
    "printable",
    "use_option_names",
]

EXIT_CODES = """\
0    done
1    integrity: the file is not authentic, is damaged or is not the expected one; or several
     files failed with different codes
2    usage: wrong arguments, a file that does not exist, a destination that exists
3    a key is missing, denied, disabled or malformed
4    the key service is unavailable, or a concurrent commit to a table won: try again
5    unsupported: valid, but not supported, or only accepted with an option
70   internal: a bug in modcrypt
74   input or output failed, for example on a full disk
130  interrupted by Ctrl-C; 143 ended by SIGTERM"""

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

# Error codes without an exception class. A file error alone exits with 2 or 74, and here with 2.
_CODES_OF_OTHER_ERRORS = {"file": 2, "usage": 2, "internal": 70}


def exit_code(error_codes: Iterable[str]) -> int:
    """Return the exit code that all failed files share, else 1.

    Args:
        error_codes: Error codes of the failed files.
    """
    return common_code(map(_exit_code_of, error_codes))


def common_code(codes: Iterable[int]) -> int:
    """Return the exit code that all failures share, 1 if they differ, 0 without failures."""
    distinct = set(codes)
    return 0 if not distinct else distinct.pop() if len(distinct) == 1 else 1


def _exit_code_of(word: str) -> int:
    kinds = [ModcryptError]
    for kind in kinds:
        if kind.word == word:
            return _exit_code_of_class(kind)
        kinds += kind.__subclasses__()
    return _CODES_OF_OTHER_ERRORS.get(word, 1)


def _exit_code_of_class(error: type[ModcryptError]) -> int:
    return next((code for kind, code in _CODES if issubclass(error, kind)), 1)


# Names of arguments in the library's messages, and the options that replace them.
_OPTION_NAMES = (
    ("give it in column_keys", "give it with --column-key"),
    ('on_missing_key="drop"', "--on-missing-key drop"),
    ("check_footer_integrity=False", "--no-check-footer"),
    ("pass aad_prefix", "pass --aad-prefix"),
    ("pass master_key_ids", "pass --master-key"),
    ("aad_prefix is given", "--aad-prefix is given"),
    ("pass root=, the", "pass --root FOLDER, the"),
    ("pass shared_aad_prefix=True", "pass --shared-aad-prefix"),
    ("length=…, as the writer reported it", "--length N, as encrypt printed it"),
    ("length=UNVERIFIED", "--unverified-length"),
    ("generate fresh metadata for each file", "make fresh metadata by --new-key-metadata"),
    ('pass algorithms=["AES_GCM_V1"]', "pass --accept AES_GCM_V1"),
    ('pass algorithms=["AES_GCM_CTR_V1"]', "pass --accept AES_GCM_CTR_V1"),
    (
        "no footer key is given",
        "no --key-file, --key-env or --key-fd is given, nor --kms or --policy",
    ),
    (
        "pass require_encrypted=False and no AAD prefix to read it",
        "pass --allow-plaintext and no AAD prefix to schema, head or cat",
    ),
    ("pass encryption for the new file", "pass --new-kms or --new-policy"),
    ("the file is plaintext; pass encryption", "the file is plaintext; run modcrypt encrypt"),
    ("pass pin=, set pin-source in the URI", "set pin-source in the URI"),
    ("open it without a passphrase", "give no passphrase, and unset MODCRYPT_PASSPHRASE"),
    ("map its beginning to a folder with location_map", "map its beginning with --location-map"),
    ("open the table with load_table", "name the catalog with --catalog"),
    ("open_table(at_least=...)", "--at-least"),
    ("open the table with key_store", "open the table with --key-store"),
    ("(expire_history removes", "(expire removes"),
    ("expire_history drops them", "expire drops them"),
    ("with expire_history", "with expire"),
    ("pass force=True, which", "pass --drop-refs, which"),
    ("encrypt_table makes", "iceberg encrypt makes"),
    ("no key_store was given", "no --key-store was given"),
    ("kek_per must be table or files", "--kek-per must be table or files"),
    ("expected_parts", "--expected-parts"),
)

_USAGE_OS_ERRORS = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """The report of an exception to the user.

    Attributes:
        word: The error code.
        message: What went wrong, with the names of options.
        code: The exit code.
        module: The module or block that is affected.
    """

    word: str
    message: str
    code: int
    module: ModuleId | BlockId | None = None

    def line(self) -> str:
        """Return the line for stderr."""
        return f"modcrypt: error: {self.word}: {self.message}"

    def fields(self) -> dict[str, Any]:
        """Return the fields that `--json` prints."""
        module = None if self.module is None else module_fields(self.module)
        return {"error": self.word, "message": self.message, "module": module}


def explain(error: BaseException, arguments: Sequence[str]) -> Failure:
    """Return the report and exit code for an exception that ends the program."""
    failure = _make_failure(error, arguments)
    return replace(failure, message=_hide_queries(failure.message, arguments))


def _make_failure(error: BaseException, arguments: Sequence[str]) -> Failure:
    if isinstance(error, ModcryptError):
        message = printable(use_option_names(str(error)))
        return Failure(
            error.word, message, _exit_code_of_class(type(error)), getattr(error, "module", None)
        )
    if isinstance(error, click.ClickException):
        return Failure("usage", printable(_hide_keys(_click_message(error), arguments)), 2)
    if isinstance(error, ImportError):  # such as a missing fsspec file system
        return Failure("usage", printable(str(error)), 2)
    if isinstance(error, OSError):
        code = 2 if isinstance(error, _USAGE_OS_ERRORS) else 74
        return Failure("file", printable(_os_message(error)), code)
    if isinstance(error, Stopped):
        return Failure("interrupted", f"ended by {error.signal}", int(error.code or 1))
    if type(error) is ValueError:  # subclasses such as UnicodeDecodeError are bugs
        return Failure("usage", printable(_hide_keys(use_option_names(str(error)), arguments)), 2)
    return Failure("internal", _internal_message(error), 70)


def use_option_names(message: str) -> str:
    """Replace names of the library's arguments in a message by names of options."""
    for name, option in _OPTION_NAMES:
        message = message.replace(name, option)
    return message


def _click_message(error: click.ClickException) -> str:
    message = use_option_names(error.format_message().rstrip("."))
    context = error.ctx if isinstance(error, click.UsageError) else None
    return message if context is None else f"{message}; see {context.command_path} --help"


def _os_message(error: OSError) -> str:
    if error.strerror is None:
        return str(error) or type(error).__name__
    where = "" if error.filename is None else f"{error.filename}: "
    if isinstance(error, FileExistsError):
        return f"{where}destination exists; pass --force to replace it"
    return where + error.strerror


def _internal_message(error: BaseException) -> str:
    """Return a message with the place, but without the exception's text, which may hold values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "?")
        place = f" in {name}, line {trace.tb_lineno}"
    return f"unexpected {type(error).__name__}{place}: this is a bug in modcrypt, please report it"


def module_fields(module: ModuleId | BlockId) -> dict[str, Any]:
    """Return the address of a module or block as fields for JSON."""
    if isinstance(module, BlockId):
        return {"type": "block", "block": module.index}
    return {
        "type": module.type.name.lower().replace("_", " "),
        "row_group": module.row_group,
        "column": module.column,
        "path": module.path,
        "page": module.page,
    }


# 16, 24 or 32 bytes as hex, base64, or raw text without a dot or slash.
_KEY_SHAPES = re.compile(
    r"[^./\\]{16}|[^./\\]{24}|[^./\\]{32}"
    r"|[0-9A-Fa-f]{48}|[0-9A-Fa-f]{64}"
    r"|[0-9A-Za-z+/_-]{22}(==)?|[0-9A-Za-z+/_-]{32}|[0-9A-Za-z+/_-]{43}=?"
)

# Iceberg's key metadata, which begins with 1 and the key's length: raw, hex or base64.
_METADATA_SHAPES = re.compile(
    r"\x01[ 0@].+|01[234]0[0-9A-Fa-f]{32,}|A[STU][A-D][0-9A-Za-z+/_-]{20,}={0,2}", re.DOTALL
)


def looks_like_key(text: str) -> bool:
    """Return whether `text` may be a key or key metadata instead of a reference to one."""
    return any(shape.fullmatch(text) for shape in (_KEY_SHAPES, _METADATA_SHAPES))


def _hide_keys(message: str, arguments: Sequence[str]) -> str:
    """Remove arguments that look like a key from a message that repeats them."""
    for argument in arguments:
        tails = [argument[m.end() :] for m in re.finditer("[=:]", argument)]
        pieces = {argument, argument.strip(), *tails, *re.split("[=:]", argument)}
        for piece in sorted(pieces, key=len, reverse=True):
            if looks_like_key(piece) and not piece.startswith("--"):
                message = message.replace(piece, "(hidden)")
    return message


# Parts of a URI, alone or as an option's value, in which a user may have put a secret.
_URI = re.compile(
    r"(?:--[a-z-]+=)?(?P<uri>(?P<shown>[A-Za-z][A-Za-z0-9+.-]*:.*?)(?:\?|pin-value=).*)", re.DOTALL
)


def _hide_queries(message: str, arguments: Sequence[str]) -> str:
    """Remove the queries of URIs among the arguments from a message that repeats them."""
    for argument in arguments:
        if match := _URI.fullmatch(argument):
            visible = printable(match["shown"])
            message = message.replace(printable(match["uri"]), f"{visible}(hidden)")
    return message
