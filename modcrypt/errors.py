"""The failure words of modcrypt: whose fault it is, one word each.

Vectors, error classes and documentation share the words in `ModcryptError.word`.
A caller's own mistake (a key of 15 bytes, an unknown column) is a plain `ValueError`
raised before anything is written; an `OSError` of the file system passes through.

No message ever holds key bytes, plaintext or key metadata, nor bytes of a file: users mix up files,
and the one that is no Parquet file may be a key. Messages name what a format gives a name, such as
columns, keys, codecs and locations, and a `ModcryptError` escapes and bounds what it says.
"""

from __future__ import annotations

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
]

MAX_MESSAGE = 4000
"""Characters of a message: a hostile file may declare a column name of many megabytes."""


MAX_NAME = 200
"""Characters that are shown of one name from a file, where a message lists several."""


MAX_NAMES = 20
"""Names from a file or a folder that a message lists."""


def printable(text: str, limit: int | None = None) -> str:
    """Return the text with unprintable characters escaped, and its middle cut out beyond `limit`.

    Names in files may hold newlines, terminal escape codes and marks that reverse what follows.
    """
    if limit is not None and len(text) > limit:
        text = f"{text[: limit // 2]}…{text[-(limit // 2) :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def list_names(names: Iterable[str], most: int = MAX_NAMES) -> str:
    """Return names for a message: the first ones, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


class ModcryptError(Exception):
    """Base of every error that modcrypt raises about a file or a key. Never raised itself."""

    word = "error"

    def __str__(self) -> str:
        """Return the message, printable and of at most `MAX_MESSAGE` characters or so."""
        return printable(super().__str__(), MAX_MESSAGE)


class FormatError(ModcryptError, ValueError):
    """The bytes break the format's rules."""

    word = "format"


class UnsupportedFormatError(FormatError):
    """Legal, or known from a writer, but not handled; the message names the writer."""

    word = "unsupported"


class LimitError(FormatError):
    """A declared length or count passes one of modcrypt's named limits or the format's own."""

    word = "limit"


class IntegrityError(ModcryptError):
    """Well formed, but does not authenticate. Its subclasses say what."""

    word = "integrity"


class TagMismatchError(IntegrityError):
    """The GCM tag of one module or block does not fit: wrong key, wrong AAD or altered bytes."""

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
        # So that worker processes can raise it, and say what was added to the message.
        return type(self), (self.module, self._hint), {"args": self.args}


class FooterSignatureError(IntegrityError):
    """The signature of a plaintext footer does not fit its bytes (PME 5.5)."""

    word = "signature"


class ChecksumError(IntegrityError):
    """A page's CRC-32 does not fit its stored bytes."""

    word = "checksum"


class AadPrefixError(IntegrityError):
    """The AAD prefix is missing though required, not used by the file, or unlike the stored one."""

    word = "aad-prefix"


class TruncationError(IntegrityError):
    """A module is cut short, or a stream's length differs from the trusted one."""

    word = "truncation"


class PlaintextError(IntegrityError):
    """An encrypted file was expected and a plaintext one found."""

    word = "plaintext"


class KeyRetrievalError(ModcryptError):
    """A key could not be had."""

    word = "key"


class KeyNotFoundError(KeyRetrievalError):
    """No key was given or found; `.column` is the dotted leaf path, None for the footer key."""

    word = "no-key"

    def __init__(self, message: str, column: str | None = None) -> None:
        self.column = column
        super().__init__(message)


class KeyAccessDeniedError(KeyRetrievalError):
    """The key exists, but its keeper refuses it."""

    word = "denied"


class KeyDisabledError(KeyAccessDeniedError):
    """The master key, or the version of it that is needed, is disabled or to be destroyed."""

    word = "disabled"


class KmsUnavailableError(KeyRetrievalError):
    """The key service can't be reached, or asks to wait: the one failure worth a retry."""

    word = "unavailable"


class KeyMaterialError(KeyRetrievalError, ValueError):
    """A retrieved key, or the material that leads to it, is malformed."""

    word = "key-material"


class KeyExhaustedError(ModcryptError):
    """One key has sealed 2**32 modules (PME 4.1.4; NIST SP 800-38D 8.3)."""

    word = "exhausted"


class CommitConflictError(ModcryptError):
    """Somebody else has changed an Iceberg table meanwhile; nothing of it was changed here."""

    word = "conflict"
