"""From an exception to one line on stderr, one JSON object and one exit code.

Words are those of `modcrypt.errors`; `usage`, `file`, `interrupted` and `internal` are added for
what is no fault of a Parquet file or a key. A line never shows a traceback, a control character
of a hostile file's column names, or what looks like a key among the arguments.
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
    "exit_code",
    "explain",
    "in_options",
    "looks_like_key",
    "module_fields",
    "printable",
]

EXIT_CODES = """\
0    done
1    integrity: the file does not authenticate, is damaged or is not what was expected; of
     several files, one of them
2    usage: wrong arguments, a file that isn't there, a destination that exists
3    a key is missing, denied, disabled or malformed
4    the key service is unavailable, or others were faster to commit to a table: try again
5    unsupported: legal, but not handled, or not accepted without being asked for
70   internal: a bug in modcrypt
74   input or output failed, as on a full disk
130  interrupted by Ctrl-C; 143 ended by SIGTERM"""

# The first class that fits decides: UnsupportedFormatError is a FormatError, for one.
_CODES: tuple[tuple[type[ModcryptError], int], ...] = (
    (UnsupportedFormatError, 5),
    (KmsUnavailableError, 4),
    (CommitConflictError, 4),
    (KeyRetrievalError, 3),
    (KeyExhaustedError, 3),
    (IntegrityError, 1),
    (FormatError, 1),
)

# Of files that failed: for want of a key, or of the key service.
_CODES_OF_FILES = {"denied": 3, "disabled": 3, "no-key": 3, "unavailable": 4}


def exit_code(words: Iterable[str]) -> int:
    """Return the exit code for files that failed: 3 or 4 if that is the reason of all, else 1.

    Args:
        words: Error codes of the files that failed.
    """
    codes = {_CODES_OF_FILES.get(word, 1) for word in words}
    return 0 if not codes else codes.pop() if len(codes) == 1 else 1


# What the library's messages call its arguments, and what they are called here.
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
        "require_encrypted=False, without an AAD prefix, reads it",
        "--allow-plaintext, of schema, head and cat, reads it, where no AAD prefix is demanded",
    ),
    ("give encryption for the new one", "give --new-kms or --new-policy"),
    ("the file is in plaintext: give encryption", "the file is in plaintext: encrypt it"),
    ("pin=, the URI's pin-source", "the URI's pin-source"),
    ("open it without a passphrase", "give no passphrase, by MODCRYPT_PASSPHRASE neither"),
    ("map its beginning to a folder by location_map", "map its beginning by --location-map"),
    ("open the table by load_table", "name the catalog by --catalog"),
    ("open_table(at_least=...)", "--at-least"),
    ("open the table with key_store", "name that by --key-store"),
    ("(expire_history)", "(expire)"),
    ("expire_history drops them", "expire drops them"),
    ("unless by force=True", "unless by --drop-refs"),
    ("encrypt_table makes", "iceberg encrypt makes"),
    ("no key_store was given", "no --key-store was given"),
    ("kek_per is table or files", "--kek-per table or files"),
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
    """What the user is told about an exception."""

    word: str
    message: str
    code: int
    module: ModuleId | BlockId | None = None

    def line(self) -> str:
        """Give the line for stderr."""
        return f"modcrypt: error: {self.word}: {self.message}"

    def fields(self) -> dict[str, Any]:
        """Give what `--json` prints."""
        module = None if self.module is None else module_fields(self.module)
        return {"error": self.word, "message": self.message, "module": module}


def explain(error: BaseException, arguments: Sequence[str]) -> Failure:
    """Say what happened and with which exit code the program ends."""
    failure = _explained(error, arguments)
    return replace(failure, message=_hide_queries(failure.message, arguments))


def _explained(error: BaseException, arguments: Sequence[str]) -> Failure:
    if isinstance(error, ModcryptError):
        code = next((code for kind, code in _CODES if isinstance(error, kind)), 1)
        message = printable(in_options(str(error)))
        return Failure(error.word, message, code, getattr(error, "module", None))
    if isinstance(error, click.ClickException):
        return Failure("usage", printable(_hide_keys(_click_message(error), arguments)), 2)
    if isinstance(error, ImportError):  # of an fsspec file system, for one
        return Failure("usage", printable(str(error)), 2)
    if isinstance(error, OSError):
        code = 2 if isinstance(error, _USAGE_OS_ERRORS) else 74
        return Failure("file", printable(_os_message(error)), code)
    if isinstance(error, Stopped):
        return Failure("interrupted", f"ended by {error.signal}", int(error.code or 1))
    if type(error) is ValueError:  # subclasses, as UnicodeDecodeError, are no message to a caller
        return Failure("usage", printable(_hide_keys(in_options(str(error)), arguments)), 2)
    return Failure("internal", _internal_message(error), 70)


def in_options(message: str) -> str:
    """Say what a message of the library says with the names of options."""
    for name, option in _OPTION_NAMES:
        message = message.replace(name, option)
    return message


def _click_message(error: click.ClickException) -> str:
    message = in_options(error.format_message().rstrip("."))
    context = error.ctx if isinstance(error, click.UsageError) else None
    return message if context is None else f"{message}; see {context.command_path} --help"


def _os_message(error: OSError) -> str:
    if error.strerror is None:
        return str(error) or type(error).__name__
    where = "" if error.filename is None else f"{error.filename}: "
    if isinstance(error, FileExistsError):
        return f"{where}the destination exists; --force replaces it"
    return where + error.strerror


def _internal_message(error: BaseException) -> str:
    """Name the place but not the exception's text, which may hold values of the file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = ""
    if trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "?")
        where = f" in {name}, line {trace.tb_lineno}"
    return f"unexpected {type(error).__name__}{where}: this is a bug in modcrypt, please report it"


def module_fields(module: ModuleId | BlockId) -> dict[str, Any]:
    """Spell the address of a module or block for JSON."""
    if isinstance(module, BlockId):
        return {"type": "block", "block": module.index}
    return {
        "type": module.type.name.lower().replace("_", " "),
        "row_group": module.row_group,
        "column": module.column,
        "path": module.path,
        "page": module.page,
    }


# 16, 24 or 32 bytes: as text of a key's own length without a dot or slash, hex, or base64.
_KEY_SHAPES = re.compile(
    r"[^./\\]{16}|[^./\\]{24}|[^./\\]{32}"
    r"|[0-9A-Fa-f]{48}|[0-9A-Fa-f]{64}"
    r"|[0-9A-Za-z+/_-]{22}(==)?|[0-9A-Za-z+/_-]{32}|[0-9A-Za-z+/_-]{43}=?"
)

# Iceberg's key metadata, the beginning of which is 1 and the key's length: as it is, hex, base64.
_METADATA_SHAPES = re.compile(
    r"\x01[ 0@].+|01[234]0[0-9A-Fa-f]{32,}|A[STU][A-D][0-9A-Za-z+/_-]{20,}={0,2}", re.DOTALL
)


def looks_like_key(text: str) -> bool:
    """Tell whether `text` may be a key or key metadata, given in place of a reference to one."""
    return any(shape.fullmatch(text) for shape in (_KEY_SHAPES, _METADATA_SHAPES))


def _hide_keys(message: str, arguments: Sequence[str]) -> str:
    """Take what looks like a key among the arguments out of a message that repeats them."""
    for argument in arguments:
        rests = [argument[m.end() :] for m in re.finditer("[=:]", argument)]
        pieces = {argument, argument.strip(), *rests, *re.split("[=:]", argument)}
        for piece in sorted(pieces, key=len, reverse=True):
            if looks_like_key(piece) and not piece.startswith("--"):
                message = message.replace(piece, "(hidden)")
    return message


# What may be a secret where none belongs, in a URI that may be an option's value.
_URI = re.compile(
    r"(?:--[a-z-]+=)?(?P<uri>(?P<shown>[A-Za-z][A-Za-z0-9+.-]*:.*?)(?:\?|pin-value=).*)", re.DOTALL
)


def _hide_queries(message: str, arguments: Sequence[str]) -> str:
    """Take the queries of URIs among the arguments out of a message that repeats them."""
    for argument in arguments:
        if match := _URI.fullmatch(argument):
            shown = printable(match["shown"])
            message = message.replace(printable(match["uri"]), f"{shown}(hidden)")
    return message
