"""AGS1 streams encrypted and decrypted with nothing but `cryptography`'s AESGCM."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX = b"prefix of sixteen"
PLAIN = bytes(n * 7 & 0xFF for n in range(5000))


class NoStreamError(Exception):
    """Raised for bytes that are not a whole AGS1 stream."""


def encrypt_stream(
    key: bytes, plaintext: bytes, block_length: int, aad_prefix: bytes = b"", tail: bytes = b""
) -> bytes:
    """Return the stream of `plaintext`; `tail` is sealed as one more block, however long it is."""
    parts = [plaintext[n : n + block_length] for n in range(0, len(plaintext), block_length)]
    stream = b"AGS1" + block_length.to_bytes(4, "little")
    for index, part in enumerate((parts or [b""]) + [tail] * bool(tail)):
        nonce, aad = os.urandom(12), aad_prefix + index.to_bytes(4, "little")
        stream += nonce + AESGCM(key).encrypt(nonce, part, aad)
    return stream


def frames(stream: bytes) -> list[bytes]:
    """Part a stream into its blocks: nonce, ciphertext and tag."""
    frame = int.from_bytes(stream[4:8], "little") + 28
    return [stream[at : at + frame] for at in range(8, len(stream), frame)]


def read_plaintext(key: bytes, stream: bytes, aad_prefix: bytes = b"") -> bytes:
    """Return the plaintext of a stream that is well formed to its last byte.

    Raises:
        NoStreamError: it is not.
    """
    if stream[:4] != b"AGS1" or len(stream) < 8 + 28:
        raise NoStreamError("no magic, or no block")
    parts = []
    for index, block in reversed([*enumerate(frames(stream))]):  # most faults are at the end
        if len(block) < 28 or (len(block) == 28 and index):
            raise NoStreamError("a block cut short, or an empty one after another")
        aad = aad_prefix + index.to_bytes(4, "little")
        try:
            parts.append(AESGCM(key).decrypt(block[:12], block[12:], aad))
        except InvalidTag:
            raise NoStreamError(f"block {index}") from None
    return b"".join(reversed(parts))


def is_stream(key: bytes, data: bytes, aad_prefix: bytes = b"") -> bool:
    try:
        read_plaintext(key, data, aad_prefix)
    except NoStreamError:
        return False
    return True
