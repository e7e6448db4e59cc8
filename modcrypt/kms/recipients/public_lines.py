"""Public keys as lines of text, with a prefix, a kind and a checksum, and files of them.

Users pass a private key by mistake: neither messages nor the frames of errors contain lines, and
messages do not repeat a path that looks like a key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Self, TypeVar

from modcrypt.errors import KeyMaterialError
from modcrypt.io.private_files import read_unalterable
from modcrypt.keys.lookalikes import show_name
from modcrypt.pkmt1.recipient_metadata import ID_SIZE, MAX_RECIPIENTS
from modcrypt.runtime.tracebacks import hide_frames

MAX_LINE = 4096
"""Length limit of a line in a file of public keys, in bytes: a hybrid recipient has 1,690."""

MAX_PUBLIC_FILE = 8 << 20
"""Size limit of a file of public keys in bytes: enough for `MAX_RECIPIENTS` with comments."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)

P = TypeVar("P")


class PublicKey:
    """A public key that is a line of text: what recipients and verifying keys have in common.

    A subclass is made of its kind and its encoded key, which its constructor checks.
    """

    __slots__ = ()
    _prefix: ClassVar[str]  # beginning of its lines
    _word: ClassVar[str]  # word for messages; its plural has an s

    @classmethod
    @hide_frames
    def parse(cls, line: str) -> Self:
        """Parse the line of a public key, without a comment.

        Raises:
            KeyMaterialError: The line is malformed, or its checksum does not match. Messages do not
                repeat the line, which may be a secret by mistake.
        """
        parts = line.split(":")
        if len(parts) != 4 or parts[0] != cls._prefix or not line.isascii():
            raise KeyMaterialError(
                f"not a {cls._word}: expected {cls._prefix}:KIND:KEY:CHECKSUM, as modcrypt writes "
                "to .pub files"
            )
        _, kind, text, checksum = parts
        if (public_key := _decode_base64url(text)) is None:
            raise KeyMaterialError(f"not a {cls._word}: the key is not base64url")
        if cls._hash(kind, public_key).hex() != checksum:
            raise KeyMaterialError(
                f"not a {cls._word}: the checksum does not match, so the line was altered or cut"
            )
        try:
            return cls(kind, public_key)  # type: ignore[call-arg]
        except ValueError as error:  # KeyMaterialError is one, too
            raise KeyMaterialError(f"not a {cls._word}: {error}") from None

    @classmethod
    @hide_frames
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that has one public key.

        Raises:
            KeyMaterialError: The file has none, several or a malformed one.
            OSError: The file cannot be read.
        """
        found = read_lines(path, cls.parse, f"{cls._word}s")
        if len(found) != 1:
            raise KeyMaterialError(f"{os.fspath(path)} has {len(found)} {cls._word}s, not one")
        return found[0]

    def _parts(self) -> tuple[str, bytes]:
        """Return kind and encoded key."""
        raise NotImplementedError

    @classmethod
    def _hash(cls, kind: str, public_key: bytes) -> bytes:
        """Return the id of a key, `ID_SIZE` bytes, which is the checksum of its line."""
        content = f"{cls._prefix}-id\x00{kind}\x00".encode() + public_key
        return hashlib.sha256(content).digest()[:ID_SIZE]

    @property
    def hex_id(self) -> str:
        """Id of the key in hex, as lines and messages show it."""
        return self._hash(*self._parts()).hex()

    def __str__(self) -> str:
        """Return the line that `parse` reads."""
        kind, public_key = self._parts()
        text = base64.urlsafe_b64encode(public_key).rstrip(b"=").decode()
        return f"{self._prefix}:{kind}:{text}:{self.hex_id}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._parts()[0]}, id {self.hex_id})"


def _decode_base64url(text: str) -> bytes | None:
    """Decode unpadded base64url in its only form; return None for other text."""
    data = b""
    if _BASE64URL.fullmatch(text):
        with suppress(binascii.Error):
            data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    # The last character can hide bits, which would allow two texts for one key.
    same = base64.urlsafe_b64encode(data).rstrip(b"=").decode() == text
    return data if data and same else None


@hide_frames
def read_lines(path: str | os.PathLike[str], parse: Callable[[str], P], what: str) -> list[P]:
    """Return the public keys in a file.

    Raises:
        KeyMaterialError: The file has none, a malformed one, or exceeds a limit.
        KeyRetrievalError: Another user may change the file, and so choose who opens files or whose
            signatures count.
    """
    try:
        return parse_lines(read_unalterable(path, MAX_PUBLIC_FILE + 1), parse, what)
    except OSError as error:
        raise OSError(error.errno, error.strerror, show_name(path)) from None
    except KeyMaterialError as error:
        raise KeyMaterialError(f"{os.fspath(path)}: {error}") from None


@hide_frames
def parse_lines(data: bytes, parse: Callable[[str], P], what: str) -> list[P]:
    """Return the public keys in the content of a file; raise as `read_lines`."""
    if len(data) > MAX_PUBLIC_FILE:
        raise KeyMaterialError(f"a file of {what} has at most {MAX_PUBLIC_FILE} bytes")
    found: dict[str, P] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if len(line) > MAX_LINE:
            raise KeyMaterialError(f"line {number} is longer than {MAX_LINE} bytes")
        words = line.split(None, 1)
        if not words or words[0].startswith(b"#"):
            continue
        if len(found) >= MAX_RECIPIENTS:
            raise KeyMaterialError(f"there are more than {MAX_RECIPIENTS} {what}")
        text = words[0].decode("ascii", "replace")
        try:
            found[text] = parse(text)
        except KeyMaterialError as error:
            raise KeyMaterialError(f"line {number}: {error}") from None
    if not found:
        raise KeyMaterialError(f"there are no {what}")
    return list(found.values())
