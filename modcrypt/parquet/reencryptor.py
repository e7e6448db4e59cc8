"""An encrypted file under new keys: every page opened and sealed again, none of them decoded.

The plaintext file that the encryptor reads is never anywhere: it is made twice by the decryptor,
first for its footer, which stands at its end and is kept, then for its pages, which a second
thread hands on as they are asked for.

    decryptor -> footer, kept -> encryptor
    decryptor -> some blocks --^
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from modcrypt.buffers import Output
from modcrypt.errors import TruncationError
from modcrypt.parquet.decryptor import write_plaintext
from modcrypt.parquet.encryptor import Encryption, plan_encryption
from modcrypt.parquet.plan import Plan, plan_decryption
from modcrypt.parquet.properties import Encryption as EncryptionLike
from modcrypt.parquet.properties import FileDecryptionProperties
from modcrypt.storage import Place, Sink, Source

__all__ = ["reencrypt"]

_WAITING = 4  # blocks between the two threads

_KEPT = 1 << 20
"""Bytes that are kept of the file's end: more than a footer is looked for in at first."""


def reencrypt(
    source: Source,
    place: Place,
    decryption: FileDecryptionProperties,
    encryption: Callable[[bool], EncryptionLike],
) -> None:
    """Write an encrypted file anew, under other keys, to a place that may be its own.

    Args:
        source: the file.
        place: where it is to be.
        decryption: opens the file.
        encryption: gives what seals it, told whether its data pages V2 have levels in clear.

    Raises:
        OSError: from the file system, or the file there is no longer the source.
        ModcryptError, ValueError: as `decrypt_parquet` and `encrypt_parquet`.
    """
    # Whatever the caller puts up with when reading: here it would stay so for good.
    strict = replace(decryption, on_missing_key="error", check_footer_integrity=True)
    opened = plan_decryption(source, strict)
    end = _End()
    footer = _decrypt(source, opened, end)
    tail = max(footer, end.data, key=len)
    with _plaintext(source, opened, end.size, tail) as plain:
        clear_levels = any(cipher.clear_levels for cipher in opened.ciphers.values())
        plan = plan_encryption(plain, encryption(clear_levels), place=place)
        with (
            plan.properties.companion() as sealed,
            place.create(check=lambda: place.check_still(source)) as sink,
        ):
            out = Output(sink, background=False)
            written = Encryption(out, plan.properties)
            written.add(plain, plan)
            written.close(plan.metadata)
            out.close(complete=True)
            if sealed is not None:
                sealed()


def _decrypt(source: Source, plan: Plan, sink: Sink) -> bytes:
    out = Output(sink, background=False)
    tail = write_plaintext(source, out, plan)
    out.close(complete=True)
    return tail


class _End:
    """A sink that counts, and keeps the end."""

    def __init__(self) -> None:
        self.size = 0
        self.data = b""

    def append(self, data: memoryview | bytes) -> None:
        self.size += len(data)
        self.data = (self.data + bytes(data[-_KEPT:]))[-_KEPT:]


class _Hand:
    """A sink whose blocks another thread takes."""

    def __init__(self, blocks: queue.Queue[bytes | BaseException]) -> None:
        self._blocks = blocks
        self.stopped = False

    def append(self, data: memoryview | bytes) -> None:
        if self.stopped:
            raise _StoppedError
        self._blocks.put(bytes(data))


class _StoppedError(Exception):
    """Nobody takes any more."""


class _Forward(Source):
    """A plaintext file that is read forward, but for its footer."""

    def __init__(
        self, name: str, size: int, tail: bytes, blocks: queue.Queue[bytes | BaseException]
    ) -> None:
        self.name, self.size = name, size
        self._tail, self._start = tail, size - len(tail)
        self._blocks = blocks
        self._block, self._base = memoryview(b""), 0  # the block at hand and where it begins

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`, not before what was read last, or within the footer."""
        if offset >= self._start:
            view[:] = self._tail[offset - self._start : offset - self._start + len(view)]
            return
        assert offset >= self._base, "read backwards"
        done = 0
        while done < len(view):
            while self._base + len(self._block) <= offset + done:
                self._take()
            part = self._block[offset + done - self._base :][: len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)

    def _take(self) -> None:
        self._base += len(self._block)
        found = self._blocks.get()
        if isinstance(found, BaseException):
            raise found
        self._block = memoryview(found)


@contextmanager
def _plaintext(source: Source, plan: Plan, size: int, tail: bytes) -> Iterator[Source]:
    blocks: queue.Queue[bytes | BaseException] = queue.Queue(_WAITING)
    hand = _Hand(blocks)

    def run() -> None:
        try:
            _decrypt(source, plan, hand)
        except _StoppedError:
            pass
        except BaseException as error:  # raised where the block is missed
            blocks.put(error)
        else:
            blocks.put(TruncationError(f"{source.name}: shorter than it was when it was begun"))

    thread = threading.Thread(target=run, name="modcrypt-decryptor", daemon=True)
    thread.start()
    try:
        yield _Forward(source.name, size, tail, blocks)
    finally:
        hand.stopped = True
        while thread.is_alive():
            try:
                blocks.get(timeout=0.01)
            except queue.Empty:
                thread.join(0.01)
