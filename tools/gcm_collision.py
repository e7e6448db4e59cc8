"""Forge a GCM module that has the tag of another one, as a holder of the key can.

    python -m tools.gcm_collision

GCM's tag is a polynomial in a value that the key determines, so whoever has the key can choose a
ciphertext freely but for one block of 16 bytes, and solve for that block. A signature over tags
therefore does not bind the content of modules against readers; docs/explanation/signatures.md says
what follows from it.
"""

from __future__ import annotations

import os
import sys

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB

BLOCK = 16
_POLYNOMIAL = 0xE1 << 120  # x^128 + x^7 + x^2 + x + 1, in GCM's bit order


def multiply(a: int, b: int) -> int:
    """Multiply in GF(2^128), in GCM's bit order."""
    product = 0
    for bit in range(127, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def invert(a: int) -> int:
    """Return the inverse, a^(2^128 - 2)."""
    result, power = 1 << 127, a
    for _ in range(127):
        power = multiply(power, power)
        result = multiply(result, power)
    return result


def blocks_of(data: bytes) -> list[int]:
    """Return the blocks of data, the last one padded with zeros."""
    padded = data + bytes(-len(data) % BLOCK)
    return [int.from_bytes(padded[i : i + BLOCK]) for i in range(0, len(padded), BLOCK)]


def ghash(h: int, aad: bytes, ciphertext: bytes) -> int:
    """Return GHASH of AAD and ciphertext."""
    lengths = (8 * len(aad) << 64) | 8 * len(ciphertext)
    value = 0
    for block in [*blocks_of(aad), *blocks_of(ciphertext), lengths]:
        value = multiply(value ^ block, h)
    return value


def forge(key: bytes, nonce: bytes, aad: bytes, tag: bytes, plaintext: bytes, free: int) -> bytes:
    """Return a ciphertext that opens under `tag`.

    Its plaintext is the one given, except for the 16 bytes of block number `free`.
    """
    if not 0 <= free < len(plaintext) // BLOCK:
        raise ValueError("the free block must be a whole block of the plaintext")
    ecb = Cipher(AES(key), ECB()).encryptor()
    h = int.from_bytes(ecb.update(bytes(BLOCK)))
    mask = int.from_bytes(ecb.update(nonce + b"\0\0\0\1"))
    stream = Cipher(AES(key), CTR(nonce + b"\0\0\0\2")).encryptor()
    ciphertext = bytearray(stream.update(plaintext))
    place = slice(BLOCK * free, BLOCK * free + BLOCK)
    ciphertext[place] = bytes(BLOCK)
    wanted = int.from_bytes(tag) ^ mask
    difference = wanted ^ ghash(h, aad, bytes(ciphertext))
    # The block is multiplied by h once for itself, each block after it, and the lengths.
    after = len(blocks_of(bytes(ciphertext))) - free + 1
    factor = 1 << 127
    for _ in range(after):
        factor = multiply(factor, h)
    ciphertext[place] = multiply(difference, invert(factor)).to_bytes(BLOCK)
    return bytes(ciphertext)


def main() -> int:
    key, nonce, aad = os.urandom(16), os.urandom(12), b"file AAD | page"
    sealed = AESGCM(key).encrypt(nonce, b"paid:   10 EUR to the account of the supplier...", aad)
    tag, false = sealed[-BLOCK:], b"paid: 9999 EUR to the account of someone else..."
    forged = forge(key, nonce, aad, tag, false, free=2)
    print("signed tag", tag.hex())
    print("opens as  ", AESGCM(key).decrypt(nonce, forged + tag, aad))
    return 0


if __name__ == "__main__":
    sys.exit(main())
