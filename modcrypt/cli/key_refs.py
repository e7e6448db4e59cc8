"""Keys from files, environment variables and file descriptors, never from the arguments.

A message does not repeat an invalid reference that may be a key itself.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Callable

import click

from modcrypt.cli.output.failures import looks_like_key
from modcrypt.errors import (
    FormatError,
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
)
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.key_text import key_from_base64, key_from_hex
from modcrypt.keys import KEY_LENGTHS, Key
from modcrypt.kms.private_files import check_trusted
from modcrypt.tracebacks import hide_frames

__all__ = [
    "read_column_keys",
    "read_fd",
    "read_file",
    "read_key_env",
    "read_key_fd",
    "read_key_file",
    "read_metadata_file",
]

MAX_KEY_FILE = 4096
"""Maximal length of a key file in bytes: ample for the longest key in hex, and white space."""

MAX_METADATA_FILE = 64 << 10
"""Maximal length of a key metadata file in bytes: encrypted metadata exceeds a key file."""

DecryptMetadata = Callable[[bytes], StandardKeyMetadata]

_REF = re.compile(r"(?P<name>.+?)=(?P<kind>file|env|fd):(?P<where>.+)", re.DOTALL)


def read_column_keys(values: tuple[str, ...]) -> dict[str, Key]:
    """Return the keys of `NAME=file:PATH`, `NAME=env:VARIABLE` and `NAME=fd:N` by name."""
    parsed: dict[str, tuple[str, str]] = {}
    for value in values:
        match = _REF.fullmatch(value)
        if match is None:
            raise click.UsageError(
                "--column-key takes NAME=file:PATH, NAME=env:VARIABLE or NAME=fd:N; a key itself "
                "is never an argument, other users could see it (the value is not repeated here)"
            )
        name, kind, where = match.group("name", "kind", "where")
        if name in parsed:
            raise click.UsageError(f"--column-key is given twice for {name}")
        if kind == "fd" and not (where.isascii() and where.isdigit()):
            raise click.UsageError(f"--column-key {name}=fd:N takes a number")
        parsed[name] = kind, where
    return {
        name: _read_reference(kind, where, f"key of column {name}")
        for name, (kind, where) in parsed.items()
    }


def _read_reference(kind: str, where: str, what: str) -> Key:
    if kind == "file":
        return read_key_file(where, what)
    if kind == "env":
        return read_key_env(where, what)
    return read_key_fd(int(where), what)


@hide_frames
def read_key_file(path: str, what: str) -> Key:
    """Return the key in a file; warn if other users can read the file too.

    Raises:
        KeyNotFoundError: The file does not exist.
        KeyAccessDeniedError: The file may not be read.
        KeyMaterialError: The file holds no key.
    """
    data, where = read_file(path, what, "key file")
    return _parse_key(data, where)


@hide_frames
def read_metadata_file(path: str, decrypt: DecryptMetadata | None = None) -> StandardKeyMetadata:
    """Return Iceberg's standard key metadata from a file: raw, hex or base64.

    Args:
        path: Path of the file.
        decrypt: Function that decrypts metadata encrypted by a key service; with it, unencrypted
            metadata is rejected.

    Raises:
        click.UsageError: The metadata is encrypted, but `decrypt` is missing.
        KeyNotFoundError, KeyAccessDeniedError, KeyMaterialError: As `read_key_file`.
    """
    # Other users may read encrypted metadata.
    data, where = read_file(path, "key", "key metadata file", MAX_METADATA_FILE, _is_encrypted)
    if _is_encrypted(data):
        if decrypt is None:
            raise click.UsageError(
                f"{where} is encrypted under a key service; name it by --kms or --policy"
            )
        return decrypt(data)
    if decrypt is not None:
        raise KeyMaterialError(
            f"{where} is not encrypted and may have replaced a file that was; if it never was, "
            "omit --kms and --policy"
        )
    if len(data) > MAX_KEY_FILE:
        raise KeyMaterialError(f"{where} has more than {MAX_KEY_FILE} bytes")
    try:
        return StandardKeyMetadata.decode(_decode_text(data))
    except FormatError as error:
        raise KeyMaterialError(f"{where}: {error}") from None


def _is_encrypted(data: bytes) -> bool:
    from modcrypt.kms.wrapped_key_metadata import is_sealed  # not to be loaded for the help

    return is_sealed(data)


def read_file(
    path: str,
    what: str,
    kind: str,
    limit: int = MAX_KEY_FILE,
    harmless: Callable[[bytes], bool] = lambda data: False,
) -> tuple[bytes, str]:
    """Return the content of a file, up to one byte more than `limit`, and its name for messages.

    Warn if other users can read the file too, unless its content is `harmless`. Raise as
    `read_key_file`.
    """
    path = os.path.expanduser(path)  # the shell leaves the ~ of name=file:~/x alone
    display = "(not repeated, it looks like a key)" if _may_hold_key(path) else path
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise KeyNotFoundError(f"{what}: {kind} {display} does not exist") from None
    except PermissionError:
        raise KeyAccessDeniedError(f"{what}: {kind} {display} may not be read") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a file name"
        raise KeyMaterialError(f"{what}: {kind} {display}: {reason}") from None
    if not harmless(data):
        check_trusted(status, f"{what}: {kind} {display}")
    mode = stat.S_IMODE(status.st_mode)
    shared = stat.S_ISREG(status.st_mode) and mode & (stat.S_IRGRP | stat.S_IROTH)
    if shared and not harmless(data):
        click.echo(
            f"modcrypt: warning: other users can read {kind} {display} (mode {mode:04o}); make "
            "it private with chmod 600",
            err=True,
        )
    return data, f"{what}: {kind} {display}"


def _may_hold_key(path: str) -> bool:
    """Return whether a path looks like a key, or like a reference that contains one."""
    return any(looks_like_key(part) for part in (path, path.rpartition(":")[2]))


@hide_frames
def read_key_env(name: str, what: str) -> Key:
    """Return the key in an environment variable, as hex or base64.

    Raises:
        KeyNotFoundError: The variable is not set.
        KeyMaterialError: The variable holds no key.
    """
    display = "(not repeated, it looks like a key)" if looks_like_key(name) else name
    value = os.environ.get(name)
    if not value:
        raise KeyNotFoundError(f"{what}: the environment variable {display} is not set")
    return _parse_key(os.fsencode(value), f"{what}: environment variable {display}", raw=False)


@hide_frames
def read_key_fd(fd: int, what: str) -> Key:
    """Return the key from an open file descriptor, read to its end.

    Raises:
        KeyNotFoundError: The descriptor is not open, or at its end.
        KeyMaterialError: The descriptor delivers no key.
    """
    return _parse_key(read_fd(fd, what), f"{what}: file descriptor {fd}")


@hide_frames
def read_fd(fd: int, what: str) -> bytes:
    """Return the content of a file descriptor, up to a limit; raise as `read_key_fd`."""
    data = b""
    try:
        if os.isatty(fd):
            raise click.UsageError(
                f"{what}: file descriptor {fd} is a terminal; use a pipe or file"
            )
        while len(data) <= MAX_KEY_FILE and (more := os.read(fd, MAX_KEY_FILE)):
            data += more
    except OSError as error:
        raise KeyNotFoundError(f"{what}: file descriptor {fd}: {error.strerror}") from None
    except OverflowError:
        raise KeyNotFoundError(f"{what}: no such file descriptor") from None
    if not data:
        raise KeyNotFoundError(
            f"{what}: file descriptor {fd} has nothing to read; use a separate descriptor for "
            "each secret"
        )
    return data


def _parse_key(data: bytes, where: str, *, raw: bool = True) -> Key:
    """Return a key from hex, base64 (any alphabet, padded or not) or, if `raw`, raw bytes."""
    text = data.strip()
    if (key := key_from_hex(text)) is not None:
        return key
    if (key := key_from_base64(text)) is not None:
        # AES-192 as base64 has the length of a raw AES-256 key: a guess could weaken a key.
        if raw and len(data) == 32:
            raise KeyMaterialError(
                f"{where} holds 32 characters, a raw 256-bit key or a 192-bit key as base64; "
                "write a raw key as hex, or end base64 with a newline"
            )
        return key
    if raw and len(data) in KEY_LENGTHS:
        return Key(data)
    forms = (
        "16, 24 or 32 raw bytes, or their hex or base64 text"
        if raw
        else ("the hex or base64 text of 16, 24 or 32 bytes")
    )
    size = f"more than {MAX_KEY_FILE}" if len(data) > MAX_KEY_FILE else str(len(data))
    raise KeyMaterialError(f"{where} holds no key: expected {forms}, found {size} bytes")


def _decode_text(data: bytes) -> bytes:
    """Decode hex or base64; return raw key metadata, which begins otherwise, unchanged."""
    text = data.strip()
    if re.fullmatch(rb"([0-9A-Fa-f]{2})+", text):
        return binascii.unhexlify(text)
    standard = text.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    if len(standard) % 4 != 1 and re.fullmatch(rb"[0-9A-Za-z+/]+", standard):
        return base64.b64decode(standard + b"=" * (-len(standard) % 4))
    return data
