"""AES-GCM and AES-CTR for whole modules and blocks; no other module uses AES.

    GCM module   length (4, little-endian) | nonce (12) | ciphertext | tag (16)     (PME 5.1)
    CTR module   length (4, little-endian) | nonce (12) | ciphertext                (PME 5.1)
    AGS1 block, wrapped key                  nonce (12) | ciphertext | tag (16)     (AGS1, PKMT1)

The length field counts the bytes that follow it. Nonces are safe because each encryption takes 96
fresh bits from the operating system (NIST SP 800-38D 8.2.2, RBG-based construction), never a
counter that a fork, a snapshot or a second process could repeat, and `InvocationCounter` stops a
key after 2**32 encryptions (8.3). No function accepts a nonce for encryption. With GCM, no
unauthenticated plaintext is released: after a bad tag the output is zeroed before the error is
raised.

Only one thread at a time may use a `CtrCipher`; make one per thread, they are cheap. A `GcmCipher`
keeps no state between calls, so any number of threads may use it.
"""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from os import urandom
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from modcrypt.errors import TagError
from modcrypt.keys import Key, invocation_counter, key_bytes
from modcrypt.keys.invocations import InvocationCounter

if TYPE_CHECKING:
    from mypy_extensions import i64

ReadableBuffer: TypeAlias = bytes | bytearray | memoryview

LENGTH_SIZE: Final = 4
NONCE_SIZE: Final = 12
TAG_SIZE: Final = 16
GCM_OVERHEAD: Final = LENGTH_SIZE + NONCE_SIZE + TAG_SIZE
"""Bytes that a GCM module adds to its plaintext."""
BLOCK_OVERHEAD: Final = NONCE_SIZE + TAG_SIZE  # bytes that an AGS1 block adds to its plaintext
CTR_OVERHEAD: Final = LENGTH_SIZE + NONCE_SIZE  # bytes that a CTR module adds to its plaintext
CTR_SLACK: Final = 15  # spare bytes after the result that `CtrCipher` needs in an output buffer
_JOINED: Final = 4096  # number of small objects that stay in the processor's cache until joined

_BODY: Final = LENGTH_SIZE + NONCE_SIZE
_HEAD: Final = Struct("<I12s")
_head: Final = _HEAD.pack
_put_head: Final = _HEAD.pack_into
# PME 4.2.2: the 16-byte IV is the nonce and a 4-byte counter that starts at 1, big-endian.
_CTR_START: Final = b"\x00\x00\x00\x01"


def keyed_hash(key: Key, label: bytes) -> Callable[[bytes], bytes]:
    """Return a function from a value to its HMAC-SHA-256, equal for equal values.

    HKDF-SHA-256 (RFC 5869) without salt derives the key of the HMAC. The label, its `info`, is the
    purpose of the hashes: hashes for different purposes differ.
    """
    from cryptography.hazmat.primitives.hashes import SHA256  # few files need them
    from cryptography.hazmat.primitives.hmac import HMAC

    copy_state = HMAC(key_bytes(_derive(key_bytes(key), label)), SHA256()).copy

    def hash_value(value: bytes) -> bytes:
        state = copy_state()  # half the time of another HMAC of the key
        state.update(value)
        return state.finalize()

    return hash_value


def combine_keys(keys: Sequence[Key], label: bytes) -> Key:
    """Return a key that takes all of some keys, in this order: themselves if there is one.

    HKDF-SHA-256 (RFC 5869) without salt derives it, of 32 bytes; the label, its `info`, is its
    purpose.
    """
    if len(keys) == 1:
        return keys[0]
    secret = b"".join(map(key_bytes, keys))
    return _derive(secret, label)


def _derive(secret: bytes, label: bytes) -> Key:
    from cryptography.hazmat.primitives.hashes import SHA256  # few files need them
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return Key(HKDF(algorithm=SHA256(), length=32, salt=None, info=label).derive(secret))


class ModuleCipher(ABC):
    """A cipher for PME modules, with the count of encryptions under its key."""

    __slots__ = ("_counter", "_key", "overhead", "slack")

    def __init__(self, key: Key, overhead: i64, slack: i64) -> None:
        self._key: Key = key
        self._counter: InvocationCounter | None = None
        self.overhead: i64 = overhead  # bytes that a module adds to its plaintext
        self.slack: i64 = slack  # spare bytes that an output buffer needs after the result

    def has_key(self, key: Key) -> bool:
        """Return whether the cipher was made of this object."""
        return self._key is key

    def count_encryptions(self, number: int) -> None:
        """Count encryptions before they happen.

        Raise KeyExhaustedError if the key would exceed 2**32 encryptions.
        """
        if self._counter is None:  # made by the first encryption: decrypting needs no counter
            self._counter = invocation_counter(self._key)
        self._counter.add(number)

    def encrypt_into(
        self, out: memoryview, at: i64, plaintext: ReadableBuffer, size: i64, aad: bytes
    ) -> i64:
        """Write the module of `plaintext` (`size` bytes) at `out[at:]`; return its end.

        `slack` bytes after the module may be overwritten. Raise KeyExhaustedError if the key has
        encrypted 2**32 modules.
        """
        self.count_encryptions(1)
        return self._write(urandom(NONCE_SIZE), out, at, plaintext, size, aad)

    @abstractmethod
    def decrypt_into(self, module: memoryview, aad: bytes, out: memoryview) -> None:
        """Decrypt a module into `out`, which has the size of the plaintext and of the slack.

        Raise TagError if the tag does not match; `out` is zeroed.
        """

    @abstractmethod
    def _write(
        self, nonce: bytes, out: memoryview, at: i64, plaintext: ReadableBuffer, size: i64,
        aad: bytes,
    ) -> i64:  # fmt: skip
        """Write a module with a fresh nonce; see `encrypt_into`."""


def encrypt_page_into(
    header_cipher: ModuleCipher, page_cipher: ModuleCipher, out: memoryview, at: i64,
    header: bytes, header_aad: bytes, page: ReadableBuffer, size: i64, page_aad: bytes,
) -> i64:  # fmt: skip
    """Write the two modules of a page, its header and its body, at `out[at:]`; return their end.

    Both ciphers have the same key. One request to the operating system yields both nonces. Raise
    KeyExhaustedError if the key would exceed 2**32 encryptions.
    """
    header_cipher.count_encryptions(2)
    nonces = urandom(2 * NONCE_SIZE)
    middle = header_cipher._write(nonces[:NONCE_SIZE], out, at, header, len(header), header_aad)
    return page_cipher._write(nonces[NONCE_SIZE:], out, middle, page, size, page_aad)


class GcmCipher(ModuleCipher):
    """A cipher that encrypts and decrypts GCM modules with one key."""

    __slots__ = ("_decrypt_into", "_encrypt_into", "_gcm")

    def __init__(self, key: Key) -> None:
        super().__init__(key, GCM_OVERHEAD, 0)
        self._gcm: AESGCM = AESGCM(key_bytes(key))
        self._encrypt_into: Callable[..., int] = self._gcm.encrypt_into
        self._decrypt_into: Callable[..., int] = self._gcm.decrypt_into

    def _write(
        self, nonce: bytes, out: memoryview, at: i64, plaintext: ReadableBuffer, size: i64,
        aad: bytes,
    ) -> i64:  # fmt: skip
        end = at + GCM_OVERHEAD + size
        _put_head(out, at, size + (NONCE_SIZE + TAG_SIZE), nonce)
        self._encrypt_into(nonce, plaintext, aad, out[at + _BODY : end])
        return end

    def encrypt(self, plaintext: bytes, aad: bytes) -> bytes:
        """Return the module of `plaintext` with its framing.

        Raise KeyExhaustedError if the key has encrypted 2**32 modules.
        """
        self.count_encryptions(1)
        nonce = urandom(NONCE_SIZE)
        return _head(len(plaintext) + BLOCK_OVERHEAD, nonce) + self._gcm.encrypt(
            nonce, plaintext, aad
        )

    def decrypt(self, module: bytes | memoryview, aad: bytes) -> bytes:
        """Open a module that starts with its length field, which the caller has checked.

        Raise TagError if the tag does not match.
        """
        try:
            return self._gcm.decrypt(module[LENGTH_SIZE:_BODY], module[_BODY:], aad)
        except InvalidTag:
            raise TagError from None

    def decrypt_into(self, module: memoryview, aad: bytes, out: memoryview) -> None:
        """Decrypt a module into `out`, which has exactly the size of the plaintext.

        Raise TagError if the tag does not match; `out` is zeroed.
        """
        try:
            self._decrypt_into(module[LENGTH_SIZE:_BODY], module[_BODY:], aad, out)
        except InvalidTag:
            out[:] = bytes(len(out))
            raise TagError from None

    def encrypt_block_into(self, out: memoryview, plaintext: ReadableBuffer, aad: bytes) -> None:
        """Write the block of `plaintext` into `out`, which has exactly the size of the block.

        Raise KeyExhaustedError if the key has encrypted 2**32 modules.
        """
        self.count_encryptions(1)
        nonce = urandom(NONCE_SIZE)
        out[:NONCE_SIZE] = nonce
        self._encrypt_into(nonce, plaintext, aad, out[NONCE_SIZE:])

    def decrypt_block_into(self, block: memoryview, aad: bytes, out: memoryview) -> None:
        """Open a block into `out`, which has exactly the size of the plaintext.

        Raise TagError if the tag does not match; `out` is zeroed.
        """
        try:
            self._decrypt_into(block[:NONCE_SIZE], block[NONCE_SIZE:], aad, out)
        except InvalidTag:
            out[:] = bytes(len(out))
            raise TagError from None

    def encrypt_block(self, plaintext: ReadableBuffer, aad: bytes) -> bytes:
        """Return the block of `plaintext`; wrapped keys have this form, too (PKMT1).

        Raise KeyExhaustedError if the key has encrypted 2**32 modules.
        """
        self.count_encryptions(1)
        nonce = urandom(NONCE_SIZE)
        return nonce + self._gcm.encrypt(nonce, plaintext, aad)

    def decrypt_block(self, block: ReadableBuffer, aad: bytes) -> bytes:
        """Open a block of any length.

        Raise TagError if the tag does not match, or the block is too short for one.
        """
        if len(block) < BLOCK_OVERHEAD:
            raise TagError
        view = memoryview(block)
        try:
            return self._gcm.decrypt(view[:NONCE_SIZE], view[NONCE_SIZE:], aad)
        except InvalidTag:
            raise TagError from None

    def sign(self, message: bytes, aad: bytes) -> bytes:
        """Return nonce and tag for a plaintext footer; its ciphertext is discarded (PME 5.5).

        Raise KeyExhaustedError if the key has encrypted 2**32 modules.
        """
        module = self.encrypt(message, aad)
        return module[LENGTH_SIZE:_BODY] + module[-TAG_SIZE:]

    def verify(self, message: bytes, signature: bytes, aad: bytes) -> None:
        """Check a signature made by `sign`, in constant time.

        The message is encrypted again with the signature's nonce; the ciphertext is never released,
        so this does not count as an invocation. Raise TagError if the signature does not match.
        """
        nonce, tag = signature[:NONCE_SIZE], signature[NONCE_SIZE:]
        again = self._gcm.encrypt(nonce, message, aad)[-TAG_SIZE:]
        if not hmac.compare_digest(again, tag):
            raise TagError


class ValueCipher(InvocationCounter):
    """A cipher for single values under one of many keys, which keeps as little as possible.

    It counts for itself: no counter stays in the process. `encrypt_values` and `decrypt_values`
    use it, and expand its key each time: expanded keys of many subjects take a kilobyte each, and
    longer to fetch from memory than to compute.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self._key: bytes = key

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ValueCipher can't be pickled or copied")


def encrypt_values(
    ciphers: list[ValueCipher], aads: list[bytes], stops: list[int], values: bytes,
    ends: list[int],
) -> list[bytes]:  # fmt: skip
    """Return nonce, and ciphertext with tag, of each value, one after the other, in some pieces.

    Values that follow each other share a cipher and AAD, those before value `stops[i]` the ones of
    `i`: keys of many subjects do not fit into the processor's cache. Value `i` ends at `ends[i]` in
    `values`. One request to the operating system yields all nonces. Raise KeyExhaustedError if a
    cipher would exceed 2**32 encryptions.
    """
    nonces = urandom(NONCE_SIZE * len(ends))
    pieces: list[bytes] = []
    parts: list[bytes] = []
    start: i64 = 0
    at: i64 = 0
    number: i64 = 0
    for cipher, aad, last in zip(ciphers, aads, stops, strict=True):
        stop: i64 = last
        cipher.add(stop - number)
        encrypt: Callable[..., bytes] = AESGCM(cipher._key).encrypt
        while number < stop:
            end: i64 = ends[number]
            nonce = nonces[at : at + NONCE_SIZE]
            parts.append(nonce)
            parts.append(encrypt(nonce, values[start:end], aad))
            start = end
            at += NONCE_SIZE
            number += 1
        if len(parts) > _JOINED:
            pieces.append(b"".join(parts))
            parts = []
    return pieces + parts


def decrypt_values(
    ciphers: list[ValueCipher], aads: list[bytes], stops: list[int], blocks: bytes,
    ends: list[int],
) -> list[bytes]:  # fmt: skip
    """Return the values of blocks that `encrypt_values` made, in some pieces.

    The arguments are as there. Raise TagError if a tag does not match, or a block is too short for
    one.
    """
    pieces: list[bytes] = []
    values: list[bytes] = []
    start: i64 = 0
    number: i64 = 0
    before: ValueCipher | None = None
    try:
        for cipher, aad, last in zip(ciphers, aads, stops, strict=True):
            stop: i64 = last
            if cipher is not before:  # wrapped keys have one cipher, and an AAD each
                decrypt: Callable[..., bytes] = AESGCM(cipher._key).decrypt
                before = cipher
            while number < stop:
                end: i64 = ends[number]
                text = start + NONCE_SIZE
                if end < text + TAG_SIZE:
                    raise TagError
                values.append(decrypt(blocks[start:text], blocks[text:end], aad))
                start = end
                number += 1
            if len(values) > _JOINED:
                pieces.append(b"".join(values))
                values = []
    except InvalidTag:
        raise TagError from None
    return pieces + values


class CtrCipher(ModuleCipher):
    """A cipher for the CTR page modules of AES_GCM_CTR_V1 (PME 4.2.2), without tag and AAD.

    Its methods accept and ignore an AAD, so that one page loop can use either cipher.
    """

    __slots__ = ("_context",)

    def __init__(self, key: Key) -> None:
        super().__init__(key, CTR_OVERHEAD, CTR_SLACK)
        # CTR encrypts and decrypts by the same operation; each module sets its own IV.
        self._context: Any = Cipher(AES(key_bytes(key)), CTR(bytes(16))).encryptor()

    def _write(
        self, nonce: bytes, out: memoryview, at: i64, plaintext: ReadableBuffer, size: i64,
        aad: bytes,
    ) -> i64:  # fmt: skip
        end = at + CTR_OVERHEAD + size
        _put_head(out, at, size + NONCE_SIZE, nonce)
        context = self._context
        context.reset_nonce(nonce + _CTR_START)
        context.update_into(plaintext, out[at + _BODY : end + CTR_SLACK])
        return end

    def decrypt_into(self, module: memoryview, aad: bytes, out: memoryview) -> None:
        """Decrypt a module into `out`, as long as the plaintext and `CTR_SLACK` bytes."""
        context = self._context
        context.reset_nonce(bytes(module[LENGTH_SIZE:_BODY]) + _CTR_START)
        context.update_into(module[_BODY:], out)
