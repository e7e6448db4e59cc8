"""Encrypt and decrypt the blocks of one stream, in one thread or several."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter

from modcrypt.aad import block_aad
from modcrypt.aead import BLOCK_OVERHEAD, GcmCipher
from modcrypt.ags1.lengths import Ags1Key
from modcrypt.errors import TagError, TagMismatchError
from modcrypt.io.threads import ThreadPool, check_threads, usable_cores
from modcrypt.keys import as_given_key
from modcrypt.keys.metadata import StandardKeyMetadata, as_prefix
from modcrypt.module_ids import BlockId

MAX_WORKERS = 4
"""Most threads of one stream: AES saturates the memory before it saturates a fifth core."""

_WORTH_THREADS = 4 << 20
"""Smallest size in bytes of a request that several threads finish sooner than one."""


class BlockCipher:
    """A cipher for the blocks of one stream, which any number of threads may use."""

    __slots__ = ("_gcm", "_prefix")

    def __init__(self, gcm: GcmCipher, aad_prefix: bytes) -> None:
        self._gcm, self._prefix = gcm, aad_prefix

    def encrypt(
        self, plaintext: memoryview, block_length: int, first: int, out: memoryview
    ) -> None:
        """Encrypt `plaintext` into `out`, block by block; the first one has the index `first`."""
        size, at, index = len(plaintext), 0, first
        for start in range(0, size, block_length) if size else (0,):
            part = plaintext[start : start + block_length]
            end = at + len(part) + BLOCK_OVERHEAD
            self._gcm.encrypt_block_into(out[at:end], part, block_aad(self._prefix, index))
            at, index = end, index + 1

    def decrypt(self, block: memoryview, index: int, out: memoryview) -> None:
        """Decrypt a block into `out`, which has its plaintext's size; on failure, zero `out`."""
        try:
            self._gcm.decrypt_block_into(block, block_aad(self._prefix, index), out)
        except TagError:
            raise TagMismatchError(BlockId(index)) from None


def block_cipher(key: Ags1Key, aad_prefix: bytes | None) -> BlockCipher:
    """Return the cipher of a stream. No AAD prefix and an empty one mean the same.

    Raise ValueError if the key has no length of AES, or the AAD prefix differs from the one in the
    key metadata, and TypeError if the key or AAD prefix has the wrong type.
    """
    prefix = b"" if aad_prefix is None else as_prefix(aad_prefix)
    if isinstance(key, StandardKeyMetadata):
        own = key.aad_prefix or b""
        if aad_prefix is not None and prefix != own:
            raise ValueError("aad_prefix is given, but the key metadata contains another one")
        return BlockCipher(GcmCipher(key.key), own)
    return BlockCipher(GcmCipher(as_given_key(key)), prefix)


def split_blocks(first: int, stop: int, count: int) -> list[range]:
    """Split the blocks [first, stop) into lots of up to `count`."""
    return [range(n, min(n + count, stop)) for n in range(first, stop, count)]


class Workers:
    """The threads of one stream, which start when the work is worth it."""

    def __init__(self, count: int | None, name: str) -> None:
        check_threads(count)
        self.count = count or min(MAX_WORKERS, usable_cores())
        self.threads = ThreadPool(self.count, name)

    def spread(self, lots: Sequence[range], size: int, work: Callable[[range], None]) -> None:
        """Call `work` for each lot of block indexes, in this thread and others.

        Each thread takes the next remaining lot, so a thread that a busy machine delays does not
        hold up the others. The first error ends the work; if several lots fail, this raises the
        error of the first lot. If `size`, the bytes of all lots, is small, this thread works alone.
        """
        remaining, errors = deque(lots), list[tuple[int, BaseException]]()

        def run() -> None:
            while remaining:
                try:
                    lot = remaining.popleft()
                except IndexError:
                    return
                try:
                    work(lot)
                except BaseException as error:  # raised below, when no thread writes any more
                    errors.append((lot.start, error))
                    remaining.clear()

        others = min(self.count, len(lots)) - 1 if size >= _WORTH_THREADS else 0
        futures = [self.threads.submit(run) for _ in range(others)]
        run()
        for future in futures:
            if not future.cancel():
                future.result()
        if errors:
            first = min(errors, key=itemgetter(0))[1]
            errors.clear()
            try:
                raise first
            finally:  # its traceback refers to this frame: a cycle would keep the caller's buffer
                del first

    def close(self) -> None:
        """End the threads once they have finished the lots they work on."""
        self.threads.close()
