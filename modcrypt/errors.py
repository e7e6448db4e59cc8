"""The errors of modcrypt, each with an error code.

The command line, test vectors and documentation use the error codes in `ModcryptError.word`.
A caller's mistake, such as a key of 15 bytes or an unknown column, is a plain `ValueError`, raised
before anything is written. An `OSError` of the file system passes through.

Messages never contain key bytes, plaintext, key metadata or bytes of a file: users mix up files,
and a file that is not a Parquet file may be a key. Messages contain names from files, such as those
of columns, keys, codecs and locations; a `ModcryptError` escapes them and limits their length.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AadPrefixError",
    "ChecksumError",
    "CommitConflictError",
    "FooterSignatureError",
    "FormatError",
    "IntegrityError",
    "KeyAccessDeniedError",
    "KeyDisabledError",
    "KeyExhaustedError",
    "KeyMaterialError",
    "KeyNotFoundError",
    "KeyRetrievalError",
    "KmsUnavailableError",
    "LimitError",
    "ModcryptError",
    "PlaintextError",
    "TagMismatchError",
    "TruncationError",
    "UnsupportedFormatError",
    "WriterSignatureError",
]

MAX_MESSAGE = 4000
"""Length limit of a message in characters: a hostile file may have very long column names."""


MAX_NAME = 200
"""Length limit, in characters, of one name from a file in a message that lists several."""


MAX_NAMES = 20
"""Largest number of names from a file or folder that a message lists."""


def printable(text: str, limit: int | None = None) -> str:
    """Return the text with unprintable characters escaped, without its middle if it is too long.

    Names in files may contain newlines, terminal escape codes, marks that reverse text and commands
    of CI systems. At most `limit` characters remain, before and after escaping; None keeps all.
    """
    text = _cut(text, limit)  # first, because escaping takes long for many megabytes
    if not text.isprintable():  # nearly all are, and a call is quicker than one per character
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return _cut(escape_ci_commands(text), limit)


# GitHub runs `::command::` at the beginning of a line, also after white space, and `##[command]`
# anywhere; Azure Pipelines and TeamCity run `##vso[command]` and `##teamcity[command]`. A table may
# begin a line at any word.
_CI_COMMAND = r"(?a:(?<!\S)::|##(?=\w*\[))"


def escape_ci_commands(text: str) -> str:
    """Return the text of a line in which no CI system that logs it finds a command."""
    return re.sub(_CI_COMMAND, lambda found: f"\\x{ord(found[0][0]):02x}{found[0][1:]}", text)


def _cut(text: str, limit: int | None) -> str:
    if limit is None or len(text) <= limit:
        return text
    return f"{text[: limit // 2]}…{text[-(limit // 2) :]}"


def list_names(names: Iterable[str], most: int = MAX_NAMES) -> str:
    """Return the first names for a message, and the number of the others."""
    found = list(names)
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


class ModcryptError(Exception):
    """Base class of the errors about a file or a key; never raised itself.

    Attributes:
        word: The error code.
    """

    word = "error"

    def __str__(self) -> str:
        """Return the message, printable and cut to about `MAX_MESSAGE` characters."""
        return printable(super().__str__(), MAX_MESSAGE)


class FormatError(ModcryptError, ValueError):
    """The bytes violate the format, or PyArrow, which the message names, cannot decode them."""

    word = "format"


class UnsupportedFormatError(FormatError):
    """The file is valid, or a known writer makes such files, but modcrypt does not support it."""

    word = "unsupported"


class LimitError(FormatError):
    """A declared length or count exceeds a limit of modcrypt or of the format."""

    word = "limit"


class IntegrityError(ModcryptError):
    """The file is well formed, but not authentic; subclasses are more specific.

    Seals that do not fit, and other data that their writer did not make, raise this class.
    """

    word = "integrity"


class TagError(Exception):
    """A tag did not match. Callers raise a `TagMismatchError` with the module's address instead."""


class TagMismatchError(IntegrityError):
    """The GCM tag of a module or block does not match: wrong key, wrong AAD or altered bytes.

    Attributes:
        module: Address of the module, block or cell.
    """

    word = "tag"

    def __init__(self, module: object, hint: str = "") -> None:
        self.module = module
        self._hint = hint
        where = "GCM module" if module is None else str(module)
        super().__init__(
            f"{where}: the tag does not match: wrong key, wrong AAD prefix or altered bytes; "
            f"AES-GCM cannot tell which{hint and '. ' + hint}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes pickle the error, with anything that was added to its message.
        return type(self), (self.module, self._hint), {"args": self.args}


class FooterSignatureError(IntegrityError):
    """The signature of a plaintext footer does not match its bytes (PME 5.5)."""

    word = "signature"


class WriterSignatureError(IntegrityError):
    """The signature of a file's writer is missing, by an unknown key, or not for these bytes."""

    word = "writer-signature"


class ChecksumError(IntegrityError):
    """The CRC-32 of a page does not match its stored bytes."""

    word = "checksum"


class AadPrefixError(IntegrityError):
    """The AAD prefix is missing, unused by the file, or differs from the stored one."""

    word = "aad-prefix"


class TruncationError(IntegrityError):
    """A module is cut short, or a stream's length differs from the trusted one."""

    word = "truncation"


class PlaintextError(IntegrityError):
    """A file or column is in plaintext where an encrypted one was expected."""

    word = "plaintext"


class KeyRetrievalError(ModcryptError):
    """A key could not be retrieved; subclasses are more specific."""

    word = "key"


class KeyNotFoundError(KeyRetrievalError):
    """No key was given or found.

    Attributes:
        column: The dotted leaf path of the key's column; None for the footer key.
    """

    word = "no-key"

    def __init__(self, message: str, column: str | None = None) -> None:
        self.column = column
        super().__init__(message)


class KeyAccessDeniedError(KeyRetrievalError):
    """The key exists, but the key service or retriever denies access to it."""

    word = "denied"


class KeyDisabledError(KeyAccessDeniedError):
    """The master key, or the version that is needed, is disabled or scheduled for destruction."""

    word = "disabled"


class KmsUnavailableError(KeyRetrievalError):
    """The key service can't be reached, or is throttling: worth a retry, as no other error of keys.

    Attributes:
        throttled: Whether the service refused the call for its rate, so that it did nothing.
        retry_after: Seconds to wait before another call, if the service says so; None for what is
            no time.
    """

    word = "unavailable"

    def __init__(
        self, message: str, *, throttled: bool = False, retry_after: float | None = None
    ) -> None:
        self.throttled = throttled
        is_time = retry_after is not None and retry_after >= 0  # not so for NaN
        self.retry_after = retry_after if is_time else None
        super().__init__(message)


class KeyMaterialError(KeyRetrievalError, ValueError):
    """A retrieved key is malformed, or wrapped keys are damaged or belong to other data."""

    word = "key-material"


class KeyExhaustedError(ModcryptError):
    """One key has encrypted 2**32 modules (PME 4.1.4; NIST SP 800-38D 8.3)."""

    word = "exhausted"


class CommitConflictError(ModcryptError):
    """A concurrent commit changed the Iceberg table first; this commit changed nothing."""

    word = "conflict"


ERRORS_BY_WORD: dict[str, type[ModcryptError]] = {
    kind.word: kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, ModcryptError)
}
"""The class of each error code."""
