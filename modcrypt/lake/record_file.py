"""Records beside a declaration: files of lines that no other user may be able to change."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from modcrypt.errors import KeyMaterialError
from modcrypt.io.places import Place
from modcrypt.io.private_files import end_line, read_unalterable, replace_private
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey


def read_lines(path: Path, limit: int) -> list[bytes]:
    """Return the lines of a record; none if there is no record.

    Raises:
        ValueError: It is longer than `limit` bytes.
        KeyRetrievalError: Another user may change it.
        OSError: It cannot be read.
    """
    data = _read(path, limit)
    if len(data) > limit:
        raise ValueError(f"{path} is longer than {limit} bytes")
    return data.splitlines()


def append_lines(
    path: Path, lines: bytes | Callable[[bytes], bytes], limit: int, *, most: int | None = None,
    mode: int = 0o600,
) -> None:  # fmt: skip
    """Add lines to a record, which appears as a whole or not at all, also beside other processes.

    Args:
        lines: The lines, each with its end; or a function that returns them, given the record,
            which no other process changes meanwhile.

    Raises:
        KeyMaterialError: The record would exceed a limit.
        KeyRetrievalError: Another user may change it.
        OSError: It cannot be written.
    """
    with Place(None, str(path)).lock():
        data = end_line(_read(path, limit))
        if len(data) <= limit:
            data += lines(data) if callable(lines) else lines
        if len(data) > limit:
            raise KeyMaterialError(f"{path} would be longer than {limit} bytes")
        if most is not None and data.count(b"\n") > most:
            raise KeyMaterialError(f"{path} would have more than {most:,} lines")
        replace_private(path, data, check=lambda temporary: os.chmod(temporary, mode))


def _read(path: Path, limit: int) -> bytes:
    try:
        return read_unalterable(path, limit + 1)
    except FileNotFoundError:
        return b""


def mode_beside(declaration: str | os.PathLike[str]) -> int:
    """Return the mode of a record that may be read by those who may read the declaration."""
    return stat.S_IMODE(os.stat(declaration).st_mode) & 0o644


def encode_line(given: Mapping[str, Any], signing_key: SigningKey | None = None) -> bytes:
    """Return a line, with its end, of members that include its `schema`, and sign it with a key."""
    if signing_key is not None:
        signature = signing_key.sign(_message(given))
        given = {**given, "signature": base64.b64encode(signature).decode()}
    return json.dumps(given, sort_keys=True).encode() + b"\n"


def find_signer(given: Mapping[str, Any], keys: Collection[VerifyingKey]) -> VerifyingKey | None:
    """Return which of some keys signed the members of a line; None if none of them did.

    Raise ValueError if the signature is not valid base64.
    """
    if "signature" not in given:
        return None
    members = {name: value for name, value in given.items() if name != "signature"}
    try:
        signature = base64.b64decode(given["signature"], validate=True)
    except (TypeError, ValueError):
        raise ValueError("its signature is not valid base64") from None
    message = _message(members)
    return next((key for key in keys if key.verify(signature, message)), None)


def _message(given: Mapping[str, Any]) -> bytes:
    return f"{given['schema']}\n{json.dumps(given, sort_keys=True)}".encode()
