"""Verify an AGS1 stream with only `cryptography`, independently of modcrypt.

This was written from Iceberg's AES GCM Stream Spec, and shares no code with the package.

    python tools/verify_ags1.py FILE --key-file F [--aad-prefix HEX] (--length N | --unverified)

F holds the 16, 24 or 32 bytes of the key. N is the encrypted length from a trusted source.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class VerifyError(Exception):
    """The stream does not verify; has an error code, and the block whose tag does not match."""

    def __init__(self, word: str, message: str, block: int | None = None) -> None:
        self.word, self.block = word, block
        super().__init__(f"{word}: {message}")


def block_length(data: bytes) -> int:
    """Return the block length that the header declares, at most 64 MiB."""
    if data[:4] in (b"Obj\x01", b"PFA1", b"PAR1"):
        raise VerifyError("plaintext", "an Avro, Puffin or Parquet file")
    if not b"AGS1".startswith(data[:4]):
        raise VerifyError("format", "the magic is not AGS1")
    if len(data) < 8:
        raise VerifyError("truncation", f"{len(data)} bytes hold no header")
    length = int.from_bytes(data[4:8], "little", signed=True)
    if not 0 < length <= 64 << 20:
        raise VerifyError("limit" if length > 0 else "format", f"blocks of {length} bytes")
    return length


def blocks(data: bytes, key: bytes, aad_prefix: bytes = b"") -> Iterator[bytes]:
    """Yield the plaintext of each block, in order, after its tag was verified."""
    cipher, size = AESGCM(key), block_length(data) + 28
    for index, at in enumerate(range(8, len(data), size)):
        sealed, aad = data[at : at + size], aad_prefix + index.to_bytes(4, "little")
        if len(sealed) < 28:
            raise VerifyError("truncation", f"block {index} has {len(sealed)} bytes")
        try:
            yield cipher.decrypt(sealed[:12], sealed[12:], aad)
        except InvalidTag:
            raise VerifyError("tag", f"block {index} does not authenticate", index) from None


def verify(data: bytes, key: bytes, aad_prefix: bytes | None, length: int | None) -> bytes:
    """Return the plaintext of a whole stream; `length` is the trusted length, None if unknown."""
    if length not in (None, len(data)):
        raise VerifyError("truncation", f"{len(data)} bytes, not the trusted {length}")
    if 0 < (len(data) - 8) % (block_length(data) + 28) < 28 or len(data) < 36:
        raise VerifyError("truncation", f"{len(data)} bytes do not divide into blocks")
    return b"".join(blocks(data, key, aad_prefix or b""))


def read_key_metadata(data: bytes) -> tuple[bytes, bytes | None, int | None]:
    """Return key, AAD prefix and file length of standard key metadata: 0x01 and an Avro datum."""
    at = 1

    def take(size: int) -> bytes:
        nonlocal at
        if not 0 <= size <= len(data) - at:
            raise VerifyError("format", "a length passes the bytes that exist")
        at += size
        return data[at - size : at]

    def long() -> int:  # zigzag, 7 bits a byte, lowest first
        digits = [take(1)[0]]
        while digits[-1] > 127:
            digits.append(take(1)[0])
        raw = sum((digit & 127) << 7 * place for place, digit in enumerate(digits))
        if raw >= 2**64 or (digits[-1] == 0 and len(digits) > 1):
            raise VerifyError("format", "a number is over-long")
        return raw >> 1 if raw % 2 == 0 else -(raw + 1 >> 1)

    def present() -> bool:
        if (branch := long()) not in (0, 1):
            raise VerifyError("format", f"a union has no branch {branch}")
        return branch == 1

    key = take(long()) if data[:1] == b"\1" else b""
    prefix = take(long()) if present() else None
    length = long() if present() else None
    if len(key) not in (16, 24, 32) or at != len(data):
        raise VerifyError("format", "version, key size, or bytes left over")
    return key, prefix, length


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--key-file", type=Path, required=True, help="the bytes of the key")
    parser.add_argument("--aad-prefix", type=bytes.fromhex, default=b"", help="in hex")
    trust = parser.add_mutually_exclusive_group(required=True)
    trust.add_argument("--length", type=int, help="trusted length of the encrypted file")
    trust.add_argument("--unverified", action="store_true", help="no trusted length is known")
    options = parser.parse_args()
    data = options.file.read_bytes()
    try:
        plaintext = verify(data, options.key_file.read_bytes(), options.aad_prefix, options.length)
    except (VerifyError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    each = block_length(data)
    print(f"{len(data)} bytes in blocks of {each}: {len(plaintext)} bytes of plaintext")
    return 0


if __name__ == "__main__":
    sys.exit(main())
