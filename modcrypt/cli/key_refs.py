"""Keys from files, environment variables and file descriptors, never from the arguments.

A reference that is wrong is not repeated in a message when it may be a key itself.
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
    "from_env",
    "from_fd",
    "from_file",
    "metadata_from_file",
    "read_fd",
    "read_file",
    "read_refs",
]

MAX_KEY_FILE = 4096
"""Bytes read of a key file: the longest key in hex, and a lot of white space, take less."""

MAX_METADATA_FILE = 64 << 10
"""Bytes read of a file of key metadata: sealed under a key service it is longer than a key."""

Unseal = Callable[[bytes], StandardKeyMetadata]

_REF = re.compile(r"(?P<name>.+?)=(?P<kind>file|env|fd):(?P<where>.+)", re.DOTALL)


def read_refs(values: tuple[str, ...]) -> dict[str, Key]:
    """Read the keys of `NAME=file:PATH`, `NAME=env:NAME` and `NAME=fd:N`."""
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
        name: _read(kind, where, f"key of column {name}") for name, (kind, where) in parsed.items()
    }


def _read(kind: str, where: str, what: str) -> Key:
    if kind == "file":
        return from_file(where, what)
    if kind == "env":
        return from_env(where, what)
    return from_fd(int(where), what)


@hide_frames
def from_file(path: str, what: str) -> Key:
    """Read a key file; warns where other users can read it too.

    Raises:
        KeyNotFoundError: no such file.
        KeyAccessDeniedError: it may not be read.
        KeyMaterialError: no key is in it.
    """
    data, where = read_file(path, what, "key file")
    return _parse(data, where)


@hide_frames
def metadata_from_file(path: str, unseal: Unseal | None = None) -> StandardKeyMetadata:
    """Read Iceberg's standard key metadata: raw, or as hex or base64; raises as `from_file`.

    Args:
        path: of the file.
        unseal: opens what is sealed under a key service; with it, key metadata in the clear is
            refused.
    """
    # What is sealed, others may read.
    data, where = read_file(path, "key", "key metadata file", MAX_METADATA_FILE, _is_sealed)
    if _is_sealed(data):
        if unseal is None:
            raise click.UsageError(f"{where} is sealed under a key service: --kms or --policy")
        return unseal(data)
    if unseal is not None:
        raise KeyMaterialError(
            f"{where} is in the clear; it may have been put in the place of one that is sealed: "
            "if not, leave --kms and --policy out"
        )
    if len(data) > MAX_KEY_FILE:
        raise KeyMaterialError(f"{where} has more than {MAX_KEY_FILE} bytes")
    try:
        return StandardKeyMetadata.decode(_metadata_bytes(data))
    except FormatError as error:
        raise KeyMaterialError(f"{where}: {error}") from None


def _is_sealed(data: bytes) -> bool:
    from modcrypt.kms.wrapped_key_metadata import is_sealed  # not to be loaded for the help

    return is_sealed(data)


def read_file(
    path: str,
    what: str,
    kind: str,
    limit: int = MAX_KEY_FILE,
    harmless: Callable[[bytes], bool] = lambda data: False,
) -> tuple[bytes, str]:
    """Give what a file holds, up to one byte more than `limit`, and how to call it in messages.

    Warns where other users can read it too, if it is not `harmless`; raises as `from_file`.
    """
    path = os.path.expanduser(path)  # the shell leaves the ~ of name=file:~/x alone
    shown = "(not repeated, it looks like a key)" if _hides_key(path) else path
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise KeyNotFoundError(f"{what}: there is no {kind} {shown}") from None
    except PermissionError:
        raise KeyAccessDeniedError(f"{what}: {kind} {shown} may not be read") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a file name"
        raise KeyMaterialError(f"{what}: {kind} {shown}: {reason}") from None
    if not harmless(data):
        check_trusted(status, f"{what}: {kind} {shown}")
    mode = stat.S_IMODE(status.st_mode)
    shared = stat.S_ISREG(status.st_mode) and mode & (stat.S_IRGRP | stat.S_IROTH)
    if shared and not harmless(data):
        click.echo(
            f"modcrypt: warning: other users can read {kind} {shown} (mode {mode:04o}); "
            f"chmod 600 keeps it private",
            err=True,
        )
    return data, f"{what}: {kind} {shown}"


def _hides_key(path: str) -> bool:
    """Tell whether a path looks like a key, or like a reference with one in it."""
    return any(looks_like_key(part) for part in (path, path.rpartition(":")[2]))


@hide_frames
def from_env(name: str, what: str) -> Key:
    """Read a key from an environment variable, as hex or base64.

    Raises:
        KeyNotFoundError: the variable is not set.
        KeyMaterialError: no key is in it.
    """
    shown = "(not repeated, it looks like a key)" if looks_like_key(name) else name
    value = os.environ.get(name)
    if not value:
        raise KeyNotFoundError(f"{what}: the environment variable {shown} is not set")
    return _parse(os.fsencode(value), f"{what}: environment variable {shown}", raw=False)


@hide_frames
def from_fd(fd: int, what: str) -> Key:
    """Read a key from an open file descriptor, up to its end.

    Raises:
        KeyNotFoundError: the descriptor is not open, or at its end.
        KeyMaterialError: no key is in it.
    """
    return _parse(read_fd(fd, what), f"{what}: file descriptor {fd}")


@hide_frames
def read_fd(fd: int, what: str) -> bytes:
    """Give what can be read from an open file descriptor, up to a limit; raises as `from_fd`."""
    data = b""
    try:
        if os.isatty(fd):
            raise click.UsageError(f"{what}: file descriptor {fd} is a terminal; pipe it in")
        while len(data) <= MAX_KEY_FILE and (more := os.read(fd, MAX_KEY_FILE)):
            data += more
    except OSError as error:
        raise KeyNotFoundError(f"{what}: file descriptor {fd}: {error.strerror}") from None
    except OverflowError:
        raise KeyNotFoundError(f"{what}: no such file descriptor") from None
    if not data:
        raise KeyNotFoundError(
            f"{what}: file descriptor {fd} has nothing to read; each secret needs its own"
        )
    return data


def _parse(data: bytes, where: str, *, raw: bool = True) -> Key:
    """Take a key as hex, as base64 (either alphabet, padded or not) or, if `raw`, as it is."""
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
    raise KeyMaterialError(f"{where} holds no key: {forms} are wanted, it has {size} bytes")


def _metadata_bytes(data: bytes) -> bytes:
    """Take key metadata out of hex or base64; raw, its first byte is no character of either."""
    text = data.strip()
    if re.fullmatch(rb"([0-9A-Fa-f]{2})+", text):
        return binascii.unhexlify(text)
    standard = text.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    if len(standard) % 4 != 1 and re.fullmatch(rb"[0-9A-Za-z+/]+", standard):
        return base64.b64decode(standard + b"=" * (-len(standard) % 4))
    return data
