"""AGS1 streams of blocks of 1 MiB, and their key metadata, opened by `cryptography` alone."""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MIB = 1 << 20
FRAME = MIB + 28


def decrypt_standard_stream(stream: bytes, key: bytes, aad_prefix: bytes = b"") -> bytes:
    """Open a stream of blocks of 1 MiB, after the spec and not by modcrypt."""
    assert stream[:8] == b"AGS1" + MIB.to_bytes(4, "little")
    out = b""
    for index, start in enumerate(range(8, len(stream), FRAME)):
        block = stream[start : start + FRAME]
        aad = aad_prefix + index.to_bytes(4, "little")
        out += AESGCM(key).decrypt(block[:12], block[12:], aad)
    return out


def varint(data: bytes) -> int:
    """Read one Avro long, of all the bytes."""
    value = sum((byte & 0x7F) << 7 * n for n, byte in enumerate(data))
    return value >> 1


def split_key_metadata(metadata: bytes) -> tuple[bytes, bytes, int]:
    """Return key, AAD prefix of 16 bytes and length of key metadata, by its byte picture."""
    size = metadata[1] >> 1
    key, rest = metadata[2 : 2 + size], metadata[2 + size :]
    assert (metadata[:1], rest[:2], rest[18:19]) == (b"\1", b"\2\x20", b"\2")
    return key, rest[2:18], varint(rest[19:])
