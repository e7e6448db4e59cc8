"""Reading AGS1: streams that AESGCM alone has sealed, whole and damaged, by every way to read."""

from __future__ import annotations

import array
import contextlib
import csv
import functools
import gc
import io
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from modcrypt import Key, ModcryptError, ags1, decrypt_ags1
from modcrypt.ags1 import UNVERIFIED, Ags1Reader, BlockId, StandardKeyMetadata, blocks, reader
from modcrypt.ags1.lengths import check_length
from modcrypt.errors import FormatError, LimitError, TagMismatchError, TruncationError
from modcrypt.io import buffers
from modcrypt.io.sources import FileSource
from tests.support.ags1.sources import KINDS, Store, source_of
from tests.support.ags1.streams import PLAIN, PREFIX, encrypt_stream, read_plaintext
from tests.support.cases import each_case, one_in
from tests.support.keys import FOOTER_KEY, OTHER_KEY
from tests.support.open_files import open_files
from tests.support.randomness import examples


@contextlib.contextmanager
def small_thresholds(block_length: int, cached: int = 5, ahead: int = 2) -> Iterator[None]:
    """Have the cache, look-ahead, several requests and threads come into play at a few bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_WORTH_THREADS", 20)
        patch.setattr(reader, "CACHE_BYTES", cached * block_length)
        patch.setattr(reader, "AHEAD_BYTES", ahead * block_length)
        patch.setattr(reader, "_LOCAL_REQUEST", 2 * (block_length + 28))
        patch.setattr(reader, "_REMOTE_REQUEST", 3 * (block_length + 28))
        yield


class Counted(io.BytesIO):
    """A file object that notes what was read, and by which threads."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.requests: list[tuple[int, int]] = []
        self.threads: set[threading.Thread] = set()

    def read(self, size: int | None = -1) -> bytes:
        start = self.tell()
        data = super().read(size)
        self.requests.append((start, start + len(data)))
        self.threads.add(threading.current_thread())
        return data


def new_reader(source: Any, key: Any = FOOTER_KEY, **options: Any) -> Ags1Reader:
    """Make a reader; by default of a length that is not verified."""
    return Ags1Reader(source, key, **({"length": UNVERIFIED} | options))


# --- any sequence of calls -----------------------------------------------------------------------

MEBIBYTE = 1 << 20


@functools.cache
def large_stream(block_length: int, size: int) -> tuple[bytes, bytes]:
    plain = Random(size).randbytes(size)
    return plain, encrypt_stream(FOOTER_KEY, plain, block_length, PREFIX)


class Reading(RuleBasedStateMachine):
    """Any sequence of calls gives what a `BytesIO` of the plaintext gives."""

    @initialize(
        shape=st.one_of(
            st.tuples(st.integers(1, 70), st.integers(0, 12), st.integers(-1, 1)),
            st.sampled_from([(MEBIBYTE, 1, 1), (MEBIBYTE - 1, 2, 0), (MEBIBYTE + 1, 2, -1)]),
        ),
        kind=st.sampled_from(KINDS),
        threads=st.sampled_from([1, 3]),
        cached=st.sampled_from([1, 3, 5]),
    )
    def begin(self, shape: tuple[int, int, int], kind: str, threads: int, cached: int) -> None:
        block_length, count, more = shape
        size = max(0, block_length * count + more)
        if block_length > 100:
            self.plain, stream = large_stream(block_length, size)
        else:
            self.plain = PLAIN[:size]
            stream = encrypt_stream(FOOTER_KEY, self.plain, block_length, PREFIX)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(small_thresholds(block_length, cached))
        source = self._stack.enter_context(source_of(kind, stream))
        self.reader: Any = self._stack.enter_context(
            Ags1Reader(
                **source, key=FOOTER_KEY, aad_prefix=PREFIX, length=len(stream), threads=threads
            )
        )
        assert (self.reader.size, self.reader.encrypted_length) == (size, len(stream))
        assert self.reader.block_length == block_length
        self.model = io.BytesIO(self.plain)
        self.block_length = block_length

    def place(self, share: float, near: int) -> int:
        """Return a place in the stream, or a little beyond it, often close to a block's border."""
        at = int(share * (len(self.plain) + 3))
        return max(0, at - at % self.block_length + near if abs(near) < 3 else at)

    @rule(share=st.floats(0, 1.1), near=st.integers(-3, 3))
    def seek(self, share: float, near: int) -> None:
        at = self.place(share, near)
        assert self.reader.seek(at) == self.model.seek(at)

    @rule(by=st.integers(-200, 200))
    def seek_on(self, by: int) -> None:
        if self.model.tell() + by >= 0:
            at = self.model.tell() + by
            assert self.reader.seek(by, os.SEEK_CUR) == self.model.seek(at)

    @rule(by=st.integers(-200, 20))
    def seek_from_the_end(self, by: int) -> None:
        if len(self.plain) + by >= 0:
            assert self.reader.seek(by, os.SEEK_END) == self.model.seek(by, os.SEEK_END)

    @rule()
    def seek_before_the_start(self) -> None:
        for offset, whence in ((-1, 0), (-1 - self.model.tell(), 1), (-1 - len(self.plain), 2)):
            with pytest.raises(ValueError, match="negative"):
                self.reader.seek(offset, whence)

    @rule(size=st.one_of(st.integers(0, 40), st.integers(0, 500), st.just(None), st.just(-1)))
    def read(self, size: int | None) -> None:
        assert self.reader.read(size) == self.model.read(size)

    @rule(count=st.integers(1, 30), size=st.integers(1, 9))
    def read_on(self, count: int, size: int) -> None:
        """Read on in small pieces, which has blocks opened ahead."""
        for _ in range(count):
            assert self.reader.read(size) == self.model.read(size)

    @rule()
    def readall(self) -> None:
        assert self.reader.readall() == self.model.read()

    @rule(size=st.integers(0, 200), way=st.sampled_from(["b", "B", "h"]))
    def readinto(self, size: int, way: str) -> None:
        ours, theirs = (array.array(way, bytes(size - size % 2)) for _ in range(2))
        assert self.reader.readinto(ours) == self.model.readinto(theirs)
        assert ours == theirs

    @rule(share=st.floats(0, 1.1), near=st.integers(-3, 3), size=st.integers(0, 300))
    def read_at(self, share: float, near: int, size: int) -> None:
        at = self.place(share, near)
        assert self.reader.read_at(at, size) == self.plain[at : at + size]

    @rule(share=st.floats(0, 1), size=st.integers(0, 4))
    def read_blocks_at(self, share: float, size: int) -> None:
        at = self.place(share, 0)
        size *= self.block_length
        assert self.reader.read_at(at, size) == self.plain[at : at + size]

    @rule()
    def refuse_negative_numbers(self) -> None:
        for offset, size in ((-1, 1), (0, -1)):
            with pytest.raises(ValueError, match="negative"):
                self.reader.read_at(offset, size)

    @rule()
    def tell(self) -> None:
        assert self.reader.tell() == self.model.tell()

    def teardown(self) -> None:
        if hasattr(self, "reader"):
            assert self.reader.tell() == self.model.tell()
            self._stack.close()
            assert self.reader.closed


TestReading = Reading.TestCase
TestReading.settings = settings(max_examples=examples(80), stateful_step_count=15)


@each_case("key", [bytes(range(size)) for size in (16, 24, 32)], ids=len)
@each_case("prefix", [b"", PREFIX, bytes(1000)], ids=len)
def test_keys_and_prefixes_of_any_size_and_no_others(key: bytes, prefix: bytes) -> None:
    stream = encrypt_stream(key, PLAIN, 999, prefix)
    metadata = StandardKeyMetadata(key=key, aad_prefix=prefix or None, file_length=len(stream))
    assert ags1.decrypt(stream, key, aad_prefix=prefix, length=len(stream)) == PLAIN
    assert ags1.decrypt(stream, metadata) == PLAIN
    if not prefix:
        assert ags1.decrypt(stream, Key(key), length=len(stream)) == PLAIN
    for wrong_key, wrong_prefix in (
        (key, prefix + b"x"),
        (key, prefix[:-1] or b"\0"),
        (OTHER_KEY, prefix),
        (key[:15] + bytes((key[15] ^ 1,)) + key[16:], prefix),
    ):
        with pytest.raises(TagMismatchError) as caught:
            ags1.decrypt(stream, wrong_key, aad_prefix=wrong_prefix, length=len(stream))
        assert caught.value.module == BlockId(0)


@pytest.mark.parametrize("block_length", [1, 64 << 20])
def test_the_limits_of_block_lengths_are_read(block_length: int) -> None:
    assert (
        ags1.decrypt(
            encrypt_stream(FOOTER_KEY, b"abc", block_length), FOOTER_KEY, length=UNVERIFIED
        )
        == b"abc"
    )


# --- programs that read from file objects --------------------------------------------------------

RECORDS = [{"name": f"name-{n}", "number": n} for n in range(300)]


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("rows.json", json.dumps(RECORDS))
    return out.getvalue()


def rows() -> bytes:
    return b"name,number\n" + b"".join(f"{r['name']},{r['number']}\n".encode() for r in RECORDS)


def by_csv(file: Any) -> Any:
    text = io.TextIOWrapper(file, newline="")
    return [{**row, "number": int(row["number"])} for row in csv.DictReader(text)]


def by_copy(file: Any) -> Any:
    out = io.BytesIO()
    shutil.copyfileobj(file, out, 13)
    return json.loads(out.getvalue())


PROGRAMS: dict[str, tuple[Callable[[], bytes], Callable[[Any], Any]]] = {
    "zip": (archive, lambda file: json.loads(zipfile.ZipFile(file).read("rows.json"))),
    "csv": (rows, by_csv),
    "copy": (lambda: json.dumps(RECORDS).encode(), by_copy),
    "buffered": (
        lambda: json.dumps(RECORDS).encode(),
        lambda file: json.load(io.BufferedReader(file, 100)),
    ),
}


@each_case("name", PROGRAMS)
@each_case("block_length", [100, 10_000])
def test_programs_read_it_as_any_file(name: str, block_length: int) -> None:
    make, read = PROGRAMS[name]
    with new_reader(encrypt_stream(FOOTER_KEY, make(), block_length)) as file:
        assert (file.readable(), file.writable(), file.seekable()) == (True, False, True)
        assert read(file) == RECORDS


def test_it_is_read_only_and_closes_once() -> None:
    source = io.BytesIO(encrypt_stream(FOOTER_KEY, PLAIN, 100))
    file = new_reader(source)
    with pytest.raises(io.UnsupportedOperation):
        file.write(b"data")
    with pytest.raises(io.UnsupportedOperation):
        file.truncate(0)
    with pytest.raises(io.UnsupportedOperation):
        file.fileno()
    file.close()
    file.close()
    assert not source.closed
    uses: list[Callable[[], object]] = [
        file.read,
        file.readall,
        file.tell,
        lambda: file.seek(0),
        lambda: file.read(5),
        lambda: file.read_at(0, 5),
        lambda: file.readinto(bytearray(5)),
        file.__enter__,
    ]
    for use in uses:
        with pytest.raises(ValueError, match="closed"):
            use()


@pytest.mark.parametrize("wrong", ["text", 1.5, None])
def test_a_position_is_an_int(wrong: Any) -> None:
    with new_reader(encrypt_stream(FOOTER_KEY, PLAIN, 100)) as file:
        for use in (file.seek, lambda at: file.read_at(at, 1), lambda n: file.read_at(0, n)):
            with pytest.raises(TypeError):
                use(wrong)
        with pytest.raises(ValueError, match="whence"):
            file.seek(0, 3)
        with pytest.raises(TypeError):
            file.readinto(b"read only")
        assert file.read() == PLAIN


# --- the trusted length --------------------------------------------------------------------------

WHOLE = encrypt_stream(FOOTER_KEY, PLAIN[:15], 5, PREFIX)  # three whole blocks
PARTS = encrypt_stream(FOOTER_KEY, PLAIN[:12], 5, PREFIX)  # the last one has two bytes
EMPTY = encrypt_stream(FOOTER_KEY, b"", 5, PREFIX)
STREAMS = {"whole": WHOLE, "parts": PARTS, "empty": EMPTY}


@pytest.mark.parametrize("name", STREAMS)
def test_a_length_must_be_given_or_waived(name: str) -> None:
    stream = STREAMS[name]
    for key in (FOOTER_KEY, StandardKeyMetadata(key=FOOTER_KEY, aad_prefix=PREFIX)):
        with pytest.raises(TypeError, match="UNVERIFIED"):
            ags1.decrypt(stream, key)
    for length in (len(stream), UNVERIFIED):
        ags1.decrypt(stream, FOOTER_KEY, aad_prefix=PREFIX, length=length)


@pytest.mark.parametrize("by", [-36, -28, -1, 1, 28, 1 << 40])
def test_another_length_than_the_streams_is_refused_without_reading(by: int) -> None:
    store = Store(PARTS)
    metadata = StandardKeyMetadata(key=FOOTER_KEY, aad_prefix=PREFIX, file_length=len(PARTS) + by)
    for key, length in (
        (FOOTER_KEY, len(PARTS) + by),
        (metadata, None),
        (metadata, UNVERIFIED),  # what is known holds all the same
        (metadata, len(PARTS) + by),
    ):
        with pytest.raises(TruncationError, match=str(len(PARTS) + by)):
            Ags1Reader("any", key, length=length, filesystem=store)
    assert store.requests == []


def test_length_and_metadata_must_agree() -> None:
    metadata = StandardKeyMetadata(key=FOOTER_KEY, aad_prefix=PREFIX, file_length=len(PARTS))
    for length in (None, UNVERIFIED, len(PARTS)):
        assert ags1.decrypt(PARTS, metadata, length=length) == PLAIN[:12]
    for length in (len(PARTS) + 1, 0):
        with pytest.raises(ValueError, match="metadata") as caught:
            ags1.decrypt(PARTS, metadata, length=length)
        assert not isinstance(caught.value, ModcryptError)


def test_unverified_says_its_name() -> None:
    assert repr(UNVERIFIED) == str(UNVERIFIED) == "UNVERIFIED"


# --- damage; the vectors have more ---------------------------------------------------------------


class Pipe(io.RawIOBase):
    """A source that can't be sought and gives a few bytes at a time."""

    def __init__(self, data: bytes, piece: int = 9) -> None:
        super().__init__()
        self._file, self._piece = io.BytesIO(data), piece

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._piece]
        return self._file.readinto(view)


Given = list[tuple[int, bytes]]
"""Plaintext that was returned, each part with its offset."""


def by_one_shot(stream: bytes, given: Given, length: Any) -> None:
    given.append((0, ags1.decrypt(stream, FOOTER_KEY, aad_prefix=PREFIX, length=length)))


def by_streaming(stream: bytes, given: Given, length: Any) -> None:
    with new_reader(stream, aad_prefix=PREFIX, length=length, threads=1) as file:
        while data := file.read(1):
            given.append((file.tell() - 1, data))


def by_readinto(stream: bytes, given: Given, length: Any) -> None:
    """Bytes that a failed call leaves in the caller's buffer count, too."""
    with new_reader(stream, aad_prefix=PREFIX, length=length, threads=1) as file:
        buffer = bytearray(file.size)
        try:
            file.readinto(buffer)
        except ModcryptError:
            given.extend((n, bytes((byte,))) for n, byte in enumerate(buffer) if byte)
            raise
        given.append((0, bytes(buffer)))


def by_random_access(stream: bytes, given: Given, length: Any) -> None:
    first = None
    with new_reader(stream, aad_prefix=PREFIX, length=length, threads=1) as file:
        for at in reversed(range(file.size)):
            try:
                given.append((at, file.read_at(at, 1)))
            except ModcryptError as error:
                first = first or error
    if first is not None:
        raise first


def by_pipe(stream: bytes, given: Given, length: Any) -> None:
    out, pipe = io.BytesIO(), Pipe(stream)
    options: dict[str, Any] = {"aad_prefix": PREFIX, "length": length, "threads": 1}
    try:
        decrypt_ags1(cast(Any, pipe), out, FOOTER_KEY, **options)
    finally:
        given.append((0, out.getvalue()))


WAYS = [by_one_shot, by_streaming, by_readinto, by_random_access, by_pipe]
every_way = each_case("way", WAYS)
Way = Callable[[bytes, Given, Any], None]


def outcome(
    way: Way, stream: bytes, length: Any, plain: bytes
) -> tuple[ModcryptError | None, bool]:
    """Return the error, and whether all plaintext was returned; check that it is authentic."""
    given: Given = []
    error = None
    try:
        way(stream, given, length)
    except ModcryptError as caught:
        error = caught
    for at, data in given:
        assert data == plain[at : at + len(data)], "bytes that nobody has sealed there"
    return error, {n for at, data in given for n in range(at, at + len(data))} == {
        *range(len(plain))
    }


@each_case("step", [7, 1], ids=["each byte", "each bit"], quick=one_in(2))
@every_way
@each_case("name", STREAMS)
def test_every_flipped_bit_is_noticed_but_for_a_block_length_that_changes_nothing(
    way: Way, name: str, step: int
) -> None:
    stream = STREAMS[name]
    plain = read_plaintext(FOOTER_KEY, stream, PREFIX)
    for at, bit in (divmod(n, 8) for n in [*range(64), *range(64, 8 * len(stream), step)]):
        flipped = stream[:at] + bytes((stream[at] ^ 1 << bit,)) + stream[at + 1 :]
        error, whole = outcome(way, flipped, len(stream), plain)
        if at < 4:
            assert type(error) is FormatError
        elif at < 8:
            assert_of_another_block_length(error, flipped, plain, whole)
        else:
            assert isinstance(error, TagMismatchError)
            assert error.module == BlockId((at - 8) // 33)


def assert_of_another_block_length(
    error: ModcryptError | None, stream: bytes, plain: bytes, whole: bool
) -> None:
    """Nothing authenticates it: a stream of a single block may have any that is long enough."""
    block_length = int.from_bytes(stream[4:8], "little", signed=True)
    if block_length < 1:
        assert type(error) is FormatError
    elif block_length > 64 << 20:
        assert isinstance(error, LimitError)
    elif len(plain) <= min(5, block_length):
        assert error is None
        assert whole
    else:
        assert isinstance(error, TagMismatchError | TruncationError)


@every_way
@each_case("name", STREAMS)
def test_only_a_cut_between_blocks_needs_the_trusted_length(way: Way, name: str) -> None:
    """Hence UNVERIFIED must be explicit."""
    stream = STREAMS[name]
    plain = read_plaintext(FOOTER_KEY, stream, PREFIX)
    unnoticed = set()
    for size in range(len(stream)):
        error, _ = outcome(way, stream[:size], len(stream), plain)
        assert isinstance(error, TruncationError)
        error, _ = outcome(way, stream[:size], UNVERIFIED, plain)
        if error is None:
            unnoticed.add(size)
        elif size < 36 or 0 < (size - 8) % 33 < 28:
            assert isinstance(error, TruncationError)
        else:
            assert isinstance(error, TagMismatchError)
    assert unnoticed == set(range(41, len(stream), 33))


@each_case(
    "sizes",
    [(1, 2, 12, 27, 28, 29, 33, 34, 60), range(1, 61)],
    ids=["borders", "all"],
    quick=one_in(2),
)
@every_way
@each_case("name", STREAMS)
@each_case("filler", [b"\0", b"\xff"])
def test_every_tail_is_noticed(way: Way, name: str, filler: bytes, sizes: Iterable[int]) -> None:
    """Java's reader ignores some of them with the trusted length, and some without."""
    stream = STREAMS[name]
    plain = read_plaintext(FOOTER_KEY, stream, PREFIX)
    for size in sizes:
        error, _ = outcome(way, stream + filler * size, len(stream), plain)
        assert isinstance(error, TruncationError)
        error, _ = outcome(way, stream + filler * size, UNVERIFIED, plain)
        assert isinstance(error, TagMismatchError | TruncationError)
        if name == "whole" and size < 28:
            assert isinstance(error, TruncationError)


@pytest.mark.parametrize("size", [0, 15])
def test_an_empty_last_block_is_opened_when_the_reader_is_made(size: int) -> None:
    stream = EMPTY if not size else WHOLE + bytes(28)
    with pytest.raises(TagMismatchError):
        Ags1Reader(stream, OTHER_KEY, aad_prefix=PREFIX, length=len(stream))


def test_a_message_repeats_nothing_of_a_file_that_is_no_stream() -> None:
    with pytest.raises(FormatError) as caught:
        ags1.decrypt(
            b"SSN 078-05-1120 and more than thirty-six bytes", FOOTER_KEY, length=UNVERIFIED
        )
    assert "SSN" not in str(caught.value)


def test_more_blocks_than_an_index_can_number_are_refused() -> None:
    class Vast(Store):
        def size(self) -> int:
            return 8 + 29 * (2**31 + 1)

    with pytest.raises(LimitError, match="index"):
        new_reader("any", filesystem=Vast(b"AGS1\1\0\0\0"))


def test_after_an_error_other_blocks_can_be_read_and_the_cursor_stays() -> None:
    broken = WHOLE[:50] + bytes((WHOLE[50] ^ 1,)) + WHOLE[51:]
    with new_reader(broken, aad_prefix=PREFIX, length=len(broken)) as file:
        assert file.read(5) == PLAIN[:5]
        for _ in range(2):
            with pytest.raises(TagMismatchError, match="block 1"):
                file.read(1)
            assert file.tell() == 5
        file.seek(10)
        assert file.read() == PLAIN[10:15]


def test_a_source_that_shrinks_or_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    path.write_bytes(encrypt_stream(FOOTER_KEY, PLAIN, 100))
    with new_reader(path) as file:
        assert file.read(100) == PLAIN[:100]
        os.truncate(path, 1000)
        with pytest.raises(TruncationError, match="ended at byte"):
            file.read_at(1000, 100)
        with path.open("r+b") as other:
            other.seek(150)
            other.write(bytes(50))
        with pytest.raises(TagMismatchError):
            file.read_at(100, 100)
        assert file.read_at(300, 100) == PLAIN[300:400]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_damaged_block_ahead_is_an_error_only_where_it_is_read(threads: int) -> None:
    plain = PLAIN[:100]
    stream = bytearray(encrypt_stream(FOOTER_KEY, plain, 10))
    stream[8 + 4 * 38 + 20] ^= 1  # in block 4
    with small_thresholds(10), new_reader(bytes(stream), threads=threads) as file:
        assert b"".join(file.read(5) for _ in range(8)) == plain[:40]
        with pytest.raises(TagMismatchError) as caught:
            file.read(5)
        assert caught.value.module == BlockId(4)


@pytest.mark.parametrize("threads", [1, 3])
def test_of_several_damaged_blocks_the_first_is_named(threads: int) -> None:
    """With several threads, each one takes a lot before the first lot fails."""
    started = threading.Barrier(threads)

    def decrypt(lot: range) -> None:
        started.wait(60)
        raise TagMismatchError(BlockId(lot.start))

    workers = blocks.Workers(threads, "test")
    with pytest.raises(TagMismatchError) as caught:
        workers.spread(blocks.split_blocks(3, 12, 3), blocks._WORTH_THREADS, decrypt)
    workers.close()
    assert caught.value.module == BlockId(3)


def test_a_large_read_that_fails_gives_out_no_memory_that_was_not_filled() -> None:
    """Bytes are filled without a copy; the frames of the traceback show them."""
    stream = bytearray(encrypt_stream(FOOTER_KEY, bytes(1 << 20), 1 << 18))
    stream[-20] ^= 1
    buffer = bytearray(b"\xaa" * (1 << 20))
    with new_reader(bytes(stream), threads=1) as file, pytest.raises(TagMismatchError):
        file.readinto(buffer)
    assert buffer[3 << 18 :] == bytes(1 << 18)  # zeroed, and not what the block would have given


# --- requests ------------------------------------------------------------------------------------


def test_opening_asks_for_the_header_alone() -> None:
    for stream, expected in (
        (WHOLE, [(0, 8)]),
        (PARTS, [(0, 8)]),
        (EMPTY, [(0, 8), (8, 36)]),
    ):
        for store in (Store(stream), Counted(stream)):
            source = {"filesystem": store} if isinstance(store, Store) else {}
            with new_reader("any" if source else store, aad_prefix=PREFIX, **source):
                assert store.requests == expected


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_side_by_side_are_one_request_and_are_not_asked_for_again(threads: int) -> None:
    stream = encrypt_stream(FOOTER_KEY, PLAIN[:1000], 10)
    store = Store(stream)
    with new_reader("any", filesystem=store, threads=threads) as file:
        store.requests.clear()
        assert file.read_at(105, 90) == PLAIN[105:195]
        assert store.requests == [(8 + 10 * 38, 8 + 20 * 38)]
        for at in (105, 107, 190):  # the parts of blocks at either end are kept
            assert file.read_at(at, 3) == PLAIN[at : at + 3]
        assert len(store.requests) == 1
        assert file.read_at(107, 88) == PLAIN[107:195]
        assert store.requests[1:] == [(8 + 11 * 38, 8 + 19 * 38)]


def test_a_megabyte_of_blocks_is_one_request_and_eight_are_more() -> None:
    plain, stream = large_stream(MEBIBYTE, 9 * MEBIBYTE + 5)
    store = Store(stream)
    with new_reader("any", aad_prefix=PREFIX, filesystem=store) as file:
        store.requests.clear()
        assert file.read_at(500_000, 6 * MEBIBYTE) == plain[500_000 : 500_000 + 6 * MEBIBYTE]
        assert len(store.requests) == 1
        file.seek(0)
        store.requests.clear()
        assert file.read() == plain
        assert len(store.requests) <= 3
        assert max(end - start for start, end in store.requests) <= 8 << 20


@each_case("piece", [1, 3, 7, 10])
@each_case("threads", [1, 3])
@each_case("block_length", [10, 64])
def test_reading_on_in_small_pieces_asks_for_every_byte_once(
    piece: int, threads: int, block_length: int
) -> None:
    stream = encrypt_stream(FOOTER_KEY, PLAIN[:700], block_length)
    store = Store(stream)
    with (
        small_thresholds(block_length),
        new_reader("any", filesystem=store, threads=threads) as file,
    ):
        for at in range(0, 700, piece):
            assert file.read(piece) == PLAIN[at : min(at + piece, 700)]
            wait(file._ahead.values())  # so that what is opened ahead always comes first
    asked = sorted(store.requests)
    assert [start for start, _ in asked] == [0, *(end for _, end in asked[:-1])]
    assert asked[-1][1] == len(stream)


@pytest.mark.parametrize("piece", [1 << 16, 100_000, 700_000])
def test_blocks_opened_ahead_are_not_driven_out_before_they_are_read(piece: int) -> None:
    plain, stream = large_stream(MEBIBYTE, 20 * MEBIBYTE)
    store = Store(stream)
    with new_reader("any", aad_prefix=PREFIX, filesystem=store, threads=2) as file:
        for at in range(0, len(plain), piece):
            assert file.read(piece) == plain[at : at + piece]
            wait(file._ahead.values())
    assert sum(end - start for start, end in store.requests) == len(stream)


def test_blocks_opened_ahead_make_room_when_reading_goes_on_elsewhere() -> None:
    store = Store(encrypt_stream(FOOTER_KEY, PLAIN, 100))
    with (
        small_thresholds(100, cached=4),
        new_reader("any", filesystem=store, threads=2) as file,
    ):
        for at in range(0, 120, 30):
            assert file.read(30) == PLAIN[at : at + 30]
        wait(file._ahead.values())
        file.seek(2000)  # past those that are opened
        assert file.read(5) == PLAIN[2000:2005]
        store.requests.clear()
        for _ in range(5):
            for at in (3000, 3500, 4000):
                file.seek(at)
                assert file.read(5) == PLAIN[at : at + 5]
    assert len(store.requests) == 3


@pytest.mark.parametrize("threads", [1, 4])
def test_a_callers_file_object_is_called_in_the_callers_thread_alone(threads: int) -> None:
    """Its cursor may matter to the caller, between two reads."""
    file_object = Counted(encrypt_stream(FOOTER_KEY, PLAIN, 100))
    with small_thresholds(100), new_reader(file_object, threads=threads) as file:
        assert b"".join(iter(lambda: file.read(30), b"")) == PLAIN
        assert file.read_at(0, 5000) == PLAIN
    assert file_object.threads == {threading.current_thread()}


def test_two_readers_share_one_file_object() -> None:
    both = io.BytesIO(encrypt_stream(FOOTER_KEY, PLAIN, 100))
    with small_thresholds(100), new_reader(both) as one, new_reader(both) as two:
        for at in range(0, 5000, 30):
            assert one.read(30) == two.read(30) == PLAIN[at : at + 30]


# --- threads -------------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work` in so many threads; an error of one, or a thread that hangs, is a failure."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "it hangs"
    if errors:
        raise errors[0]


@each_case("kind", KINDS)
@each_case("cached", [1, 4])
def test_many_threads_read_at_random_places(kind: str, cached: int) -> None:
    stream = encrypt_stream(FOOTER_KEY, PLAIN, 50, PREFIX)
    with (
        small_thresholds(50, cached),
        source_of(kind, stream) as source,
        new_reader(**source, aad_prefix=PREFIX, threads=3) as file,
    ):

        def work(number: int) -> None:
            random = Random(number)
            for _ in range(40):
                at, size = random.randrange(5100), random.choice([1, 10, 60, 400])
                assert file.read_at(at, size) == PLAIN[at : at + size]

        in_threads(8, work)


@pytest.mark.parametrize("kind", KINDS)
def test_positional_reads_do_not_disturb_one_thread_that_reads_on(kind: str) -> None:
    stream = encrypt_stream(FOOTER_KEY, PLAIN, 50)
    with (
        small_thresholds(50),
        source_of(kind, stream) as source,
        new_reader(**source, threads=3) as file,
    ):

        def work(number: int) -> None:
            random = Random(number)
            if number == 0:
                assert b"".join(iter(lambda: file.read(9), b"")) == PLAIN
            for _ in range(100 if number else 0):
                at = random.randrange(5000)
                assert file.read_at(at, 70) == PLAIN[at : at + 70]

        in_threads(4, work)


@each_case("kind", ["bytes", "path", "object", "store"])
@each_case("trial", range(5))
def test_a_reader_closed_meanwhile_gives_data_or_a_value_error(kind: str, trial: int) -> None:
    stream = encrypt_stream(FOOTER_KEY, PLAIN, 50)
    before = set(threading.enumerate())  # those of earlier tests may still be about to end
    with small_thresholds(50), source_of(kind, stream) as source:
        file, started = new_reader(**source, threads=3), threading.Barrier(5)

        def work(number: int) -> None:
            random = Random(trial * 10 + number)
            started.wait(60)
            if number == 0:
                time.sleep(0.002 * trial)
                file.close()
                return
            with contextlib.suppress(ValueError):
                while True:
                    if number == 1:
                        at = file.tell()
                        assert file.read(40) == PLAIN[at : at + 40]
                        file.seek(random.choice([at, at + 40, 0]))
                    else:
                        at = random.randrange(5000)
                        assert file.read_at(at, 300) == PLAIN[at : at + 300]

        in_threads(5, work)
        assert file.closed
    new = set(threading.enumerate()) - before
    assert not [thread for thread in new if thread.name.startswith("modcrypt-ags1")]


def test_closing_while_blocks_are_opened_ahead_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read_into = tmp_path / "stream", FileSource.read_into
    path.write_bytes(encrypt_stream(FOOTER_KEY, PLAIN, 50))
    going_on = threading.Event()

    def slow(self: FileSource, offset: int, view: memoryview) -> None:
        if threading.current_thread().name.startswith("modcrypt-ags1"):
            going_on.wait(0.05)
        read_into(self, offset, view)

    monkeypatch.setattr(FileSource, "read_into", slow)

    def work(number: int) -> None:
        file = new_reader(path, threads=3)
        assert file.read(60) + file.read(60) == PLAIN[:120]
        if number % 2:
            file.close()

    with small_thresholds(50):
        in_threads(6, work)
    going_on.set()
    for _ in range(200):
        gc.collect()
        if not [t for t in threading.enumerate() if t.name.startswith("modcrypt-ags1")]:
            break
        time.sleep(0.05)
    assert not [t for t in threading.enumerate() if t.name.startswith("modcrypt-ags1")]
    assert str(path) not in open_files()


@pytest.mark.parametrize("size", [10, 100])
def test_a_reader_that_is_lost_while_it_opens_ahead_closes_without_a_complaint(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's thread has the last reference to it then."""
    path, read_into = tmp_path / "stream", FileSource.read_into
    path.write_bytes(encrypt_stream(FOOTER_KEY, PLAIN, size))
    lost = threading.Event()

    def slow(self: FileSource, offset: int, view: memoryview) -> None:
        if threading.current_thread().name.startswith("modcrypt-ags1"):
            assert lost.wait(60)
        read_into(self, offset, view)

    monkeypatch.setattr(FileSource, "read_into", slow)
    gc.collect()  # what earlier tests have left may complain
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    with small_thresholds(size):
        file = new_reader(path, threads=2)
        for _ in range(2):
            file.read(size - 1)
        closed = close_of(file)
        del file
        lost.set()
        assert closed.wait(60)
    assert complaints == []


def close_of(file: Ags1Reader) -> threading.Event:
    """Return an event that is set when the source closes."""
    closed = threading.Event()
    assert file._shared is not None
    resources: Any = file._shared
    resources._resources.callback(closed.set)
    return closed


def run_apart(script: str, path: Path) -> str:
    """Run a script on the stream at `path`, in a process of its own that may not hang or crash."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), path, FOOTER_KEY.decode()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_forked_process_reads_on_though_its_parents_threads_are_not_there(
    tmp_path: Path,
) -> None:
    script = """
        import os, signal, sys, threading
        from modcrypt.ags1 import Ags1Reader, UNVERIFIED
        from modcrypt.ags1 import reader
        from modcrypt.io.sources import FileSource

        reader.AHEAD_BYTES, reader.CACHE_BYTES = 200, 500
        read_into, forked = FileSource.read_into, threading.Event()

        def slow(self, offset, view):
            if threading.current_thread() is not threading.main_thread() and not forked.is_set():
                forked.wait(30)
            read_into(self, offset, view)

        FileSource.read_into = slow
        file = Ags1Reader(sys.argv[1], sys.argv[2].encode(), length=UNVERIFIED, threads=3)
        begun = file.read(60) + file.read(60)
        child = os.fork()
        forked.set()
        if not child:
            signal.alarm(20)
        rest = b"".join(iter(lambda: file.read(60), b""))
        file.close()
        is_right = begun + rest == bytes(n * 7 & 0xFF for n in range(5000))
        if not child:
            os._exit(not is_right)
        print(is_right, os.waitpid(child, 0)[1])
    """
    path = tmp_path / "stream"
    path.write_bytes(encrypt_stream(FOOTER_KEY, PLAIN, 100))
    assert run_apart(script, path).split() == ["True", "0"]


def test_an_interrupt_while_several_threads_open_blocks_is_just_that(tmp_path: Path) -> None:
    """They write into memory that must outlive the call, which has given it up."""
    script = """
        import gc, os, signal, sys, threading
        from modcrypt.ags1 import Ags1Reader, UNVERIFIED
        from modcrypt.io.sources import FileSource

        read_into, once = FileSource.read_into, threading.Lock()
        given_up = threading.Event()

        def interrupt(*_):
            if once.acquire(blocking=False):
                raise KeyboardInterrupt

        def slow(self, offset, view):
            if threading.current_thread() is not threading.main_thread():
                while not given_up.wait(0.1):  # a signal just before a wait does not end the wait
                    os.kill(os.getpid(), signal.SIGINT)
            read_into(self, offset, view)

        signal.signal(signal.SIGINT, interrupt)
        FileSource.read_into = slow
        file = Ags1Reader(sys.argv[1], sys.argv[2].encode(), length=UNVERIFIED, threads=2)
        try:
            file.read_at(0, 9 << 20)
        except KeyboardInterrupt:
            print("interrupted")
        gc.collect()
        others = [bytearray(9 << 20) for _ in range(3)]
        given_up.set()
        file.close()
        print(any(map(any, others)))
    """
    path = tmp_path / "stream"
    path.write_bytes(encrypt_stream(FOOTER_KEY, Random(1).randbytes(9 << 20), MEBIBYTE))
    assert run_apart(script, path).split() == ["interrupted", "False"]


# --- memory --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stream of 48 MiB, sealed in one go with 48 nonces."""
    path = tmp_path_factory.mktemp("long") / "stream"
    with path.open("wb") as file:
        file.write(b"AGS1" + MEBIBYTE.to_bytes(4, "little"))
        for index in range(48):
            nonce = os.urandom(12)
            aad = index.to_bytes(4, "little")
            file.write(nonce + AESGCM(FOOTER_KEY).encrypt(nonce, bytes(MEBIBYTE), aad))
    return path


@contextlib.contextmanager
def peak_below(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


@each_case(
    ("piece", "threads", "kind"),
    [
        (1 << 16, 1, "path"),
        (3 << 19, 4, "path"),
        (8 << 20, 1, "open file"),
        (1 << 16, 4, "open file"),
    ],
)
def test_memory_is_bounded_whatever_the_length(
    long_stream: Path, piece: int, threads: int, kind: str
) -> None:
    buffer, total = bytearray(piece), 0
    with (
        long_stream.open("rb", buffering=0) as raw,
        peak_below(16 << 20),
        new_reader(long_stream if kind == "path" else raw, threads=threads) as file,
    ):
        while size := file.readinto(buffer):
            total += size
        for at in range(0, 48 << 20, 5_000_000):
            file.read_at(at, 4096)
    assert total == 48 << 20


@pytest.mark.parametrize("size", [36, 100])
def test_a_header_that_declares_long_blocks_reserves_no_memory_for_them(size: int) -> None:
    stream = b"AGS1" + (64 << 20).to_bytes(4, "little") + bytes(size - 8)
    for way in WAYS:
        for length in (len(stream), UNVERIFIED):
            if way is by_pipe and length is UNVERIFIED:
                continue  # how much is to come, nobody knows
            with peak_below(2 << 20), pytest.raises(TagMismatchError):
                way(stream, [], length)


# --- the rest ------------------------------------------------------------------------------------


def test_memory_that_is_filled_afterwards_lives_as_long_as_a_view_of_it() -> None:
    views: list[memoryview] = []

    def fill(view: memoryview) -> None:
        view[:] = bytes(range(100))
        views.append(view[10:20])

    assert buffers.fill_bytes(100, fill) == bytes(range(100))
    assert views[0] == bytes(range(10, 20))

    def fail(view: memoryview) -> None:
        fill(view)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        buffers.fill_bytes(100, fail)
    gc.collect()
    assert views[1] == bytes(range(10, 20))


def test_memory_is_filled_without_a_copy() -> None:
    size = 1 << 20
    with peak_below(size + (size >> 4)):
        assert len(buffers.fill_bytes(size, lambda view: view.release())) == size


def test_a_lost_reader_closes_what_it_has_opened(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    path.write_bytes(WHOLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file = new_reader(path, aad_prefix=PREFIX)
        assert open_files().count(str(path)) == 1
        del file
        gc.collect()
        for wrong in (WHOLE[:-1], b"no stream at all, but long enough to be one"):
            path.write_bytes(wrong)
            with pytest.raises((TruncationError, FormatError)):
                new_reader(path, length=len(WHOLE))
            with pytest.raises(ModcryptError):
                new_reader(path, aad_prefix=PREFIX).read()
    gc.collect()
    assert str(path) not in open_files()


def test_an_error_says_which_way_a_length_is_wrong() -> None:
    check_length(8, 8, "a stream")
    check_length(8, None, "a stream")
    for actual, how in ((7, "cut short"), (9, "too long")):
        with pytest.raises(TruncationError, match=f"a stream: {how}: {actual} bytes"):
            check_length(actual, 8, "a stream")
