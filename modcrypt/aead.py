"""AES-GCM and AES-CTR over whole modules and blocks: the only importer of `cryptography`.

    GCM module   length (4, little-endian) | nonce (12) | ciphertext | tag (16)     (PME 5.1)
    CTR module   length (4, little-endian) | nonce (12) | ciphertext                (PME 5.1)
    AGS1 block, wrapped key                  nonce (12) | ciphertext | tag (16)     (AGS1, PKMT1)

The length counts what follows it. Why each nonce is safe: every seal takes 96 fresh bits from
the operating system (NIST SP 800-38D 8.2.2, RBG-based construction), never a counter that a
fork, a snapshot or a second process could repeat, and `InvocationCounter` stops a key after
2**32 of them (8.3). No function here takes a nonce for sealing. Under GCM nothing that did not
authenticate leaves: on a bad tag the output is zeroed before the error is raised.

A `CtrCipher` belongs to one thread at a time; make one per thread, they are cheap. A `GcmCipher`
keeps nothing between calls and serves any number of threads.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from os import urandom
from struct import Struct
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from modcrypt.keys import Key, invocation_counter, key_bytes

__all__ = [
    "BLOCK_OVERHEAD",
    "CTR_OVERHEAD",
    "CTR_SLACK",
    "GCM_OVERHEAD",
    "TAG_SIZE",
    "CtrCipher",
    "GcmCipher",
    "TagError",
    "keyed_hash",
]

ReadableBuffer: TypeAlias = bytes | bytearray | memoryview

LENGTH_SIZE = 4
NONCE_SIZE = 12
TAG_SIZE = 16
GCM_OVERHEAD = LENGTH_SIZE + NONCE_SIZE + TAG_SIZE
"""Bytes that a GCM module adds to its plaintext."""
BLOCK_OVERHEAD = NONCE_SIZE + TAG_SIZE
"""Bytes that an AGS1 block adds to its plaintext."""
CTR_OVERHEAD = LENGTH_SIZE + NONCE_SIZE
"""Bytes that a CTR module adds to its plaintext."""
CTR_SLACK = 15
"""Bytes of room past the result that `CtrCipher` needs in an output buffer."""

_BODY = LENGTH_SIZE + NONCE_SIZE
_put_head = Struct("<I12s").pack_into
# PME 4.2.2: the 16-byte IV is the nonce and a 4-byte counter that starts at 1, big-endian.
_CTR_START = b"\x00\x00\x00\x01"


def keyed_hash(key: Key, label: bytes) -> Callable[[bytes], str]:
    """Return a function from a value to its HMAC-SHA-256, in hex: a pseudonym that joins.

    Args:
        key: Key from which that of the HMAC is derived, by HKDF-SHA-256 (RFC 5869) without salt.
        label: Purpose of the hashes, the `info` of HKDF: those of different purposes never agree.
    """
    derived = Key(HKDF(algorithm=SHA256(), length=32, salt=None, info=label).derive(key_bytes(key)))
    return lambda value: hmac.digest(key_bytes(derived), value, "sha256").hex()


class TagError(Exception):
    """A tag did not match. Callers turn it into a `TagMismatchError` with the module's address."""


class GcmCipher:
    """Seals and opens GCM modules under one key."""

    __slots__ = ("_count", "_decrypt_into", "_encrypt_into", "_gcm", "_key")

    overhead = GCM_OVERHEAD
    slack = 0

    def __init__(self, key: Key) -> None:
        self._gcm = AESGCM(key_bytes(key))
        self._encrypt_into = self._gcm.encrypt_into
        self._decrypt_into = self._gcm.decrypt_into
        self._key = key
        self._count: Callable[[], None] | None = None

    def seal_into(
        self, out: memoryview, at: int, plaintext: ReadableBuffer, size: int, aad: bytes
    ) -> int:
        """Write the module of `plaintext` (`size` bytes) at `out[at:]`; give the module's end.

        Raises:
            KeyExhaustedError: the key has done 2**32 seals.
        """
        if self._count is None:  # at the first seal: opening leaves no counter behind
            self._count = invocation_counter(self._key).add
        self._count()
        nonce = urandom(NONCE_SIZE)
        end = at + GCM_OVERHEAD + size
        _put_head(out, at, size + NONCE_SIZE + TAG_SIZE, nonce)
        self._encrypt_into(nonce, plaintext, aad, out[at + _BODY : end])
        return end

    def seal(self, plaintext: bytes, aad: bytes) -> bytes:
        """Give the whole module of `plaintext`, framing included.

        Raises:
            KeyExhaustedError: the key has done 2**32 seals.
        """
        out = bytearray(GCM_OVERHEAD + len(plaintext))
        self.seal_into(memoryview(out), 0, plaintext, len(plaintext), aad)
        return bytes(out)

    def open(self, module: memoryview, aad: bytes) -> bytes:
        """Open a module that starts at its length field; the length itself is the caller's check.

        Raises:
            TagError: the tag does not match.
        """
        try:
            return self._gcm.decrypt(bytes(module[LENGTH_SIZE:_BODY]), module[_BODY:], aad)
        except InvalidTag:
            raise TagError from None

    def open_into(self, module: memoryview, aad: bytes, out: memoryview) -> None:
        """Open a module into `out`, which has exactly the plaintext's size.

        Raises:
            TagError: the tag does not match; `out` is zeroed.
        """
        try:
            self._decrypt_into(bytes(module[LENGTH_SIZE:_BODY]), module[_BODY:], aad, out)
        except InvalidTag:
            out[:] = bytes(len(out))
            raise TagError from None

    def seal_block_into(self, out: memoryview, plaintext: ReadableBuffer, aad: bytes) -> None:
        """Write the block of `plaintext` into `out`, which has exactly its size.

        Raises:
            KeyExhaustedError: the key has done 2**32 seals.
        """
        if self._count is None:
            self._count = invocation_counter(self._key).add
        self._count()
        nonce = urandom(NONCE_SIZE)
        out[:NONCE_SIZE] = nonce
        self._encrypt_into(nonce, plaintext, aad, out[NONCE_SIZE:])

    def open_block_into(self, block: memoryview, aad: bytes, out: memoryview) -> None:
        """Open a block into `out`, which has exactly the plaintext's size.

        Raises:
            TagError: the tag does not match; `out` is zeroed.
        """
        try:
            self._decrypt_into(bytes(block[:NONCE_SIZE]), block[NONCE_SIZE:], aad, out)
        except InvalidTag:
            out[:] = bytes(len(out))
            raise TagError from None

    def seal_block(self, plaintext: ReadableBuffer, aad: bytes) -> bytes:
        """Give the block of `plaintext`; wrapped keys have this form (PKMT1), too.

        Raises:
            KeyExhaustedError: the key has done 2**32 seals.
        """
        if self._count is None:
            self._count = invocation_counter(self._key).add
        self._count()
        nonce = urandom(NONCE_SIZE)
        return nonce + self._gcm.encrypt(nonce, plaintext, aad)

    def open_block(self, block: ReadableBuffer, aad: bytes) -> bytes:
        """Open a block of any length.

        Raises:
            TagError: the tag does not match, or there is no room for one.
        """
        if len(block) < BLOCK_OVERHEAD:
            raise TagError
        view = memoryview(block)
        try:
            return self._gcm.decrypt(bytes(view[:NONCE_SIZE]), view[NONCE_SIZE:], aad)
        except InvalidTag:
            raise TagError from None

    def sign(self, message: bytes, aad: bytes) -> bytes:
        """Give nonce and tag of a plaintext footer; its ciphertext is thrown away (PME 5.5).

        Raises:
            KeyExhaustedError: the key has done 2**32 seals.
        """
        sealed = self.seal(message, aad)
        return sealed[LENGTH_SIZE:_BODY] + sealed[-TAG_SIZE:]

    def verify(self, message: bytes, signature: bytes, aad: bytes) -> None:
        """Check what `sign` gives, in constant time.

        The message is encrypted again under the signature's nonce; that ciphertext is never
        released, so it does not count as an invocation.

        Raises:
            TagError: the signature does not match.
        """
        nonce, tag = signature[:NONCE_SIZE], signature[NONCE_SIZE:]
        again = self._gcm.encrypt(nonce, message, aad)[-TAG_SIZE:]
        if not hmac.compare_digest(again, tag):
            raise TagError


class CtrCipher:
    """Seals and opens the CTR page modules of AES_GCM_CTR_V1 (PME 4.2.2): no tag, no AAD.

    Takes and ignores an AAD, so that a page loop serves both modes.
    """

    __slots__ = ("_context", "_count", "_key")

    overhead = CTR_OVERHEAD
    slack = CTR_SLACK

    def __init__(self, key: Key) -> None:
        # CTR encrypts and decrypts by the same operation; the IV is set anew for every module.
        self._context = Cipher(AES(key_bytes(key)), CTR(bytes(16))).encryptor()
        self._key = key
        self._count: Callable[[], None] | None = None

    def seal_into(
        self, out: memoryview, at: int, plaintext: ReadableBuffer, size: int, aad: bytes
    ) -> int:
        """Write the module at `out[at:]`, with `CTR_SLACK` bytes to spare after it; give its end.

        Raises:
            KeyExhaustedError: the key has done 2**32 seals.
        """
        if self._count is None:  # at the first seal: opening leaves no counter behind
            self._count = invocation_counter(self._key).add
        self._count()
        nonce = urandom(NONCE_SIZE)
        end = at + CTR_OVERHEAD + size
        _put_head(out, at, size + NONCE_SIZE, nonce)
        context = self._context
        context.reset_nonce(nonce + _CTR_START)
        context.update_into(plaintext, out[at + _BODY : end + CTR_SLACK])
        return end

    def open_into(self, module: memoryview, aad: bytes, out: memoryview) -> None:
        """Decrypt a module into `out`: the plaintext's size and `CTR_SLACK` bytes more."""
        context = self._context
        context.reset_nonce(bytes(module[LENGTH_SIZE:_BODY]) + _CTR_START)
        context.update_into(module[_BODY:], out)
