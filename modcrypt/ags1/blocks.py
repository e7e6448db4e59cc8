"""Seal and open the blocks of one stream, one by one or many on several threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter

from modcrypt.aad import BlockId, block_aad
from modcrypt.aead import BLOCK_OVERHEAD, GcmCipher, TagError
from modcrypt.ags1.lengths import Ags1Key
from modcrypt.errors import TagMismatchError
from modcrypt.io.buffers import Threads, usable_cores
from modcrypt.key_metadata import StandardKeyMetadata, as_prefix
from modcrypt.keys import as_key

__all__ = ["BlockCipher", "Workers", "block_cipher", "check_threads", "part"]

MAX_WORKERS = 4
"""Threads of one stream: AES saturates memory before it does a fifth core."""

_WORTH_THREADS = 4 << 20
"""Bytes at once from which on several threads take less time than one."""


class BlockCipher:
    """The blocks of one stream under its key and AAD prefix; serves any number of threads."""

    __slots__ = ("_gcm", "_prefix")

    def __init__(self, gcm: GcmCipher, aad_prefix: bytes) -> None:
        self._gcm, self._prefix = gcm, aad_prefix

    def seal(self, plaintext: memoryview, block_length: int, first: int, out: memoryview) -> None:
        """Write the blocks of `plaintext`, the first of which has the index `first`, into `out`.

        Raises:
            KeyExhaustedError: the key has done 2**32 seals.
            LimitError: more blocks than their index can number.
        """
        size, at, index = len(plaintext), 0, first
        for start in range(0, size, block_length) if size else (0,):
            part = plaintext[start : start + block_length]
            end = at + len(part) + BLOCK_OVERHEAD
            self._gcm.seal_block_into(out[at:end], part, block_aad(self._prefix, index))
            at, index = end, index + 1

    def open(self, block: memoryview, index: int, out: memoryview) -> None:
        """Open a block into `out`, which has exactly its plaintext's size.

        Raises:
            TagMismatchError: it does not authenticate; `out` is zeroed.
        """
        try:
            self._gcm.open_block_into(block, block_aad(self._prefix, index), out)
        except TagError:
            raise TagMismatchError(BlockId(index)) from None


def block_cipher(key: Ags1Key, aad_prefix: bytes | None) -> BlockCipher:
    """Make the cipher of a stream. No AAD prefix and an empty one are the same.

    Raises:
        ValueError: a key of another size than AES has, or an AAD prefix beside the one in the key
            metadata.
        TypeError: the key or prefix is of another kind.
    """
    prefix = b"" if aad_prefix is None else as_prefix(aad_prefix)
    if isinstance(key, StandardKeyMetadata):
        own = key.aad_prefix or b""
        if aad_prefix is not None and prefix != own:
            raise ValueError("aad_prefix is given, but the key metadata says another one")
        return BlockCipher(GcmCipher(key.key), own)
    return BlockCipher(GcmCipher(as_key(key)), prefix)


def part(first: int, stop: int, count: int) -> list[range]:
    """Part the blocks [first, stop) into lots of up to `count`."""
    return [range(n, min(n + count, stop)) for n in range(first, stop, count)]


def check_threads(threads: int | None) -> None:
    """Raise a ValueError for fewer than one."""
    if threads is not None and threads < 1:
        raise ValueError("threads is at least 1")


class Workers:
    """The threads of one stream, begun when there is enough to do."""

    def __init__(self, count: int | None, name: str) -> None:
        check_threads(count)
        self.count = count or min(MAX_WORKERS, usable_cores())
        self.threads = Threads(self.count, name)

    def spread(self, lots: Sequence[range], size: int, work: Callable[[range], None]) -> None:
        """Have several threads, this one among them, call `work` for each lot of blocks.

        Each takes the next lot that is left, so that one that is late, on a busy machine, is not
        waited for. An error ends it; of several, that of the first lot is raised.

        Args:
            size: bytes that all of it takes; few are done by this thread alone.
        """
        left, errors = deque(lots), list[tuple[int, BaseException]]()

        def run() -> None:
            while left:
                try:
                    lot = left.popleft()
                except IndexError:
                    return
                try:
                    work(lot)
                except BaseException as error:  # raised below, when nobody writes any more
                    errors.append((lot.start, error))
                    left.clear()

        others = min(self.count, len(lots)) - 1 if size >= _WORTH_THREADS else 0
        begun = [self.threads.submit(run) for _ in range(others)]
        run()
        for other in begun:
            if not other.cancel():
                other.result()
        if errors:
            first = min(errors, key=itemgetter(0))[1]
            errors.clear()
            try:
                raise first
            finally:  # its traceback has this frame: a cycle would keep the caller's buffer
                del first

    def close(self) -> None:
        """End the threads, after what is begun."""
        self.threads.close()
