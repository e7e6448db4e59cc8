"""AGS1 streams as `Ags1Writer` and `seal` make them, judged by `cryptography`'s AESGCM alone."""

from __future__ import annotations

import array
import contextlib
import errno
import gc
import io
import json
import os
import shutil
import tempfile
import threading
import tracemalloc
import uuid
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from modcrypt import Key
from modcrypt.ags1 import Ags1Writer, StandardKeyMetadata, blocks, encrypt, writer
from modcrypt.errors import KeyExhaustedError
from modcrypt.io import buffers
from modcrypt.io.sinks import FdSink
from modcrypt.keys import invocation_counter
from tests.support.ags1.streams import (
    PLAIN,
    PREFIX,
    encrypt_stream,
    frames,
    is_stream,
    read_plaintext,
)
from tests.support.cases import each_case
from tests.support.folder_contents import list_folder
from tests.support.keys import FOOTER_KEY, OTHER_KEY
from tests.support.randomness import examples

# --- the judge -----------------------------------------------------------------------------------
# Iceberg's "AES GCM Stream" in a few lines, from its specification. Nothing of modcrypt is in it.


@pytest.mark.parametrize("size", [0, 1, 4, 5, 10, 11])
def test_the_judge_opens_what_it_sealed_and_refuses_the_rest(size: int) -> None:
    stream = encrypt_stream(FOOTER_KEY, PLAIN[:size], 5, PREFIX)
    assert read_plaintext(FOOTER_KEY, stream, PREFIX) == PLAIN[:size]
    assert not is_stream(FOOTER_KEY, stream)
    assert not is_stream(OTHER_KEY, stream, PREFIX)
    assert not is_stream(FOOTER_KEY, stream[:-1], PREFIX)
    assert not is_stream(FOOTER_KEY, stream + bytes(28), PREFIX)
    assert not is_stream(FOOTER_KEY, stream[:-1] + bytes((stream[-1] ^ 1,)), PREFIX)


# --- sinks ---------------------------------------------------------------------------------------


class Seen(io.RawIOBase):
    """A file object that keeps what it gets, and breaks at the append number `fails_at`."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.data = b""
        self.states: list[bytes] = []
        self._fails_at = fails_at

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if len(self.states) == self._fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.data += bytes(data)
        self.states.append(self.data)
        return len(data)


def new_writer(sink: Any, key: Any = FOOTER_KEY, **options: Any) -> Any:
    """Make a writer; mypy knows less of file objects than Python does."""
    return Ags1Writer(sink, key, **options)


@contextlib.contextmanager
def small_thresholds(lot: int = 90) -> Iterator[None]:
    """Have lots, buffers and several threads come into play at a few bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_LOT_BYTES", lot)
        patch.setattr(blocks, "_WORTH_THREADS", 20)
        patch.setattr(buffers, "BLOCK", 50)
        yield


@pytest.fixture(params=[True, False], ids=["small", "as they are"])
def thresholds(request: pytest.FixtureRequest) -> Iterator[None]:
    with small_thresholds() if request.param else contextlib.nullcontext():
        yield


# --- what is written -----------------------------------------------------------------------------

NEAR_A_MEBIBYTE = st.sampled_from([(1 << 20) - 1, 1 << 20, (1 << 20) + 1])


class Writing(RuleBasedStateMachine):
    """Any sequence of writes gives one stream, and no stream before `close`."""

    @initialize(
        block_length=st.one_of(st.integers(1, 70), NEAR_A_MEBIBYTE),
        kind=st.sampled_from(["object", "path", "memory"]),
        threads=st.sampled_from([1, 3]),
        prefix=st.sampled_from([None, b"", PREFIX]),
    )
    def begin(self, block_length: int, kind: str, threads: int, prefix: bytes | None) -> None:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(small_thresholds())
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self.folder, self.seen = Path(folder), Seen()
        self.url = f"memory://modcrypt-{uuid.uuid4()}"
        sinks: dict[str, Any] = {
            "object": self.seen,
            "path": self.folder / "stream",
            "memory": self.url,
        }
        self.kind, self.prefix, self.block_length = kind, prefix, block_length
        self.writer = new_writer(
            sinks[kind],
            aad_prefix=prefix,
            block_length=block_length,
            threads=threads,
        )
        self.plain = b""

    def sunk(self) -> bytes:
        if self.kind == "object":
            return self.seen.data
        path = self.folder / "stream"
        return (
            path.read_bytes() if self.kind == "path" else fsspec.filesystem("memory").cat(self.url)
        )

    def put(self, data: bytes, way: Callable[[bytes], Any] = bytes) -> None:
        assert self.writer.write(way(data)) == len(data)
        self.plain += data

    @rule(
        size=st.one_of(st.integers(0, 200), st.just(3000)),
        way=st.sampled_from([bytes, bytearray, memoryview, lambda data: array.array("b", data)]),
    )
    def write(self, size: int, way: Callable[[bytes], Any]) -> None:
        self.put(PLAIN[:size], way)

    @rule(count=st.integers(1, 4), more=st.integers(-1, 1))
    def write_to_a_border(self, count: int, more: int) -> None:
        """Write to the end of a block, or a byte less or more."""
        if self.block_length > 100:
            count = 1
        size = count * self.block_length - len(self.plain) % self.block_length + more
        self.put((PLAIN * (size // len(PLAIN) + 1))[:size])

    @rule()
    def flush(self) -> None:
        self.writer.flush()

    @invariant()
    def no_stream_yet(self) -> None:
        if not hasattr(self, "writer"):
            return
        assert self.writer.tell() == len(self.plain)
        assert not any(
            is_stream(FOOTER_KEY, state, self.prefix or b"") for state in self.seen.states
        )
        self.seen.states.clear()
        assert not (self.folder / "stream").exists()
        assert not fsspec.filesystem("memory").exists(self.url)

    def teardown(self) -> None:
        if not hasattr(self, "writer"):
            return
        with self._stack:
            self.writer.close()
            stream = self.sunk()
            assert read_plaintext(FOOTER_KEY, stream, self.prefix or b"") == self.plain
            assert self.writer.encrypted_length == len(stream)
            assert {len(frame) - 28 for frame in frames(stream)[:-1]} <= {self.block_length}
            if self.kind == "memory":
                fsspec.filesystem("memory").rm(self.url)


TestWriting = Writing.TestCase
TestWriting.settings = settings(max_examples=examples(60), stateful_step_count=12)


def test_an_empty_stream_is_a_header_and_an_empty_block_of_a_mebibyte() -> None:
    sink = io.BytesIO()
    new_writer(sink, aad_prefix=PREFIX).close()
    for stream in (sink.getvalue(), encrypt(b"", FOOTER_KEY, aad_prefix=PREFIX)):
        assert len(stream) == 36
        assert stream[:8] == b"AGS1\0\0\x10\0"
        assert read_plaintext(FOOTER_KEY, stream, PREFIX) == b""
        assert not is_stream(FOOTER_KEY, stream, b"another prefix")


@each_case("key", [bytes(range(size)) for size in (16, 24, 32)], ids=len)
@each_case("prefix", [None, b"", PREFIX, bytes(1000)], ids=repr)
def test_keys_and_prefixes_of_any_size(key: bytes, prefix: bytes | None) -> None:
    metadata = StandardKeyMetadata(key=key, aad_prefix=prefix)
    stream = encrypt(PLAIN, key, aad_prefix=prefix, block_length=999)
    assert read_plaintext(key, stream, prefix or b"") == PLAIN
    assert read_plaintext(key, encrypt(PLAIN, metadata), prefix or b"") == PLAIN
    assert read_plaintext(key, encrypt(PLAIN, Key(key), aad_prefix=prefix), prefix or b"")


@pytest.mark.parametrize(
    "data",
    [
        array.array("d", [1.5, 2.5]),
        np.arange(12).reshape(3, 4),
        np.empty(0),
        memoryview(b"abcd").cast("H"),
        pa.py_buffer(b"of Arrow"),
    ],
    ids=lambda data: type(data).__name__,
)
def test_any_contiguous_buffer_is_written_by_bytes(data: Any) -> None:
    sink = io.BytesIO()
    with new_writer(sink, block_length=5) as out:
        assert out.write(data) == memoryview(data).nbytes
    assert read_plaintext(FOOTER_KEY, sink.getvalue()) == bytes(data)
    assert read_plaintext(FOOTER_KEY, encrypt(data, FOOTER_KEY)) == bytes(data)


def test_what_is_no_buffer_is_refused_and_harms_nothing() -> None:
    sink = io.BytesIO()
    with new_writer(sink, block_length=5) as out:
        out.write(b"before ")
        for wrong in ("text", 5, None, memoryview(b"abcdef")[::2]):
            with pytest.raises(TypeError):
                out.write(wrong)
        out.write(b"after")
    assert read_plaintext(FOOTER_KEY, sink.getvalue()) == b"before after"


def test_the_caller_may_reuse_the_buffer_after_write() -> None:
    sink, buffer = io.BytesIO(), bytearray(7)
    with new_writer(sink, block_length=10) as out:
        for n in range(10):
            buffer[:] = bytes([n]) * 7
            out.write(buffer)
        buffer.clear()  # nothing holds on to it
    assert read_plaintext(FOOTER_KEY, sink.getvalue()) == b"".join(
        bytes([n]) * 7 for n in range(10)
    )


# --- programs that write to file objects ---------------------------------------------------------


def by_text(out: Any) -> bytes:
    with io.TextIOWrapper(out, encoding="utf-8", newline="") as text:
        json.dump({"grüße": list(range(100))}, text, ensure_ascii=False)
    return json.dumps({"grüße": list(range(100))}, ensure_ascii=False).encode()


def by_copy(out: Any) -> bytes:
    shutil.copyfileobj(io.BytesIO(PLAIN), out, 13)
    return PLAIN


def by_lines(out: Any) -> bytes:
    out.writelines([b"one\n", b"two\n"])
    return b"one\ntwo\n"


def by_buffer(out: Any) -> bytes:
    with io.BufferedWriter(out, 100) as buffered:
        for at in range(0, len(PLAIN), 7):
            buffered.write(PLAIN[at : at + 7])
    return PLAIN


@pytest.mark.parametrize("program", [by_text, by_copy, by_lines, by_buffer])
def test_programs_write_to_it_as_to_any_file(program: Callable[[Any], bytes]) -> None:
    sink = io.BytesIO()
    with new_writer(sink, block_length=64) as out:
        assert (out.writable(), out.readable(), out.seekable()) == (True, False, False)
        expected = program(out)
        if not out.closed:
            out.close()
    assert read_plaintext(FOOTER_KEY, sink.getvalue()) == expected


# --- no stream before its time -------------------------------------------------------------------


def test_nothing_of_a_first_block_is_a_stream_however_it_is_cut() -> None:
    """Cut after whole blocks, a longer one is: which only the trusted length can show."""
    sink = Seen()
    out = new_writer(sink, block_length=40)
    out.write(bytes(79))
    held = sink.data
    assert not any(is_stream(FOOTER_KEY, held[:size]) for size in range(len(held) + 1))
    out.abandon()


# --- how a writer ends ---------------------------------------------------------------------------


class BoomError(Exception):
    """The failure of a caller's own code."""


def by_abandon(sink: Any, **options: Any) -> None:
    out = new_writer(sink, **options)
    out.write(PLAIN[:12])
    out.abandon()
    out.abandon()


def fail_within(manager: Any, error: type[BaseException], data: Any = PLAIN[:12]) -> None:
    with pytest.raises(error):
        write_and_fail(manager, error, data)


def write_and_fail(manager: Any, error: type[BaseException], data: Any) -> None:
    with manager as out:
        out.write(data)
        out.flush()
        raise error


def by_exception(sink: Any, **options: Any) -> None:
    fail_within(new_writer(sink, **options), BoomError)


def by_interrupt(sink: Any, **options: Any) -> None:
    fail_within(new_writer(sink, **options), KeyboardInterrupt)


def by_collection(sink: Any, **options: Any) -> None:
    out = new_writer(sink, **options)
    out.write(PLAIN[:12])
    del out
    gc.collect()


def by_collection_of_a_cycle(sink: Any, **options: Any) -> None:
    out: Any = new_writer(sink, **options)
    out.write(PLAIN[:12])
    out.cycle = [out]
    del out
    gc.collect()


def by_closing_in_finally(sink: Any, **options: Any) -> None:
    out = new_writer(sink, **options)

    def work() -> None:
        try:
            out.write(PLAIN[:12])
            raise BoomError
        finally:
            out.close()

    with pytest.raises(BoomError):
        work()


def by_contextlib(sink: Any, **options: Any) -> None:
    fail_within(contextlib.closing(new_writer(sink, **options)), BoomError)


def by_text_wrapper(sink: Any, **options: Any) -> None:
    fail_within(io.TextIOWrapper(new_writer(sink, **options)), BoomError, "twelve bytes")


def by_text_wrappers_collection(sink: Any, **options: Any) -> None:
    text = io.TextIOWrapper(new_writer(sink, **options))
    text.write("twelve bytes")
    text.flush()
    del text
    gc.collect()


def by_buffers_collection(sink: Any, **options: Any) -> None:
    buffered = io.BufferedWriter(new_writer(sink, **options), 4)
    buffered.write(PLAIN[:12])
    del buffered
    gc.collect()


def by_a_function_that_fails(sink: Any, **options: Any) -> None:
    """The traceback holds on to the wrapper, so it goes when there is no exception any more."""

    def work() -> None:
        text = io.TextIOWrapper(new_writer(sink, **options))
        text.write("twelve bytes")
        text.flush()
        raise BoomError

    with contextlib.suppress(BoomError):
        work()
    gc.collect()


def by_generator(sink: Any, **options: Any) -> None:
    def lines() -> Iterator[None]:
        with new_writer(sink, **options) as out:
            out.write(PLAIN[:12])
            yield

    generator = lines()
    next(generator)
    del generator
    gc.collect()


ENDS = [
    by_abandon,
    by_exception,
    by_interrupt,
    by_collection,
    by_collection_of_a_cycle,
    by_closing_in_finally,
    by_contextlib,
    by_text_wrapper,
    by_text_wrappers_collection,
    by_buffers_collection,
    by_a_function_that_fails,
    by_generator,
]


@each_case("end", ENDS)
@each_case("block_length", [4, 5, 100])
def test_a_file_object_holds_no_stream_after(end: Callable[..., None], block_length: int) -> None:
    sink = Seen()
    end(sink, block_length=block_length)
    assert not is_stream(FOOTER_KEY, sink.data)
    assert bool(sink.data) == (block_length < 12)
    assert not sink.closed


@each_case("end", ENDS)
@each_case("threads", [1, 2])
def test_a_path_is_not_there_after(end: Callable[..., None], threads: int, tmp_path: Path) -> None:
    end(tmp_path / "stream", block_length=4, threads=threads)
    assert list_folder(tmp_path) == []
    (tmp_path / "old").write_bytes(b"old")
    end(tmp_path / "old", block_length=4, threads=threads)
    assert list_folder(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"old"
    assert not {"modcrypt-writer"} & {thread.name for thread in threading.enumerate()}


@each_case("end", ENDS)
def test_a_url_is_not_there_after(end: Callable[..., None]) -> None:
    folder = f"/modcrypt-{uuid.uuid4()}"
    filesystem = fsspec.filesystem("memory")
    filesystem.mkdir(folder)
    try:
        end(f"memory:/{folder}/stream", block_length=4)
        assert filesystem.ls(folder) == []
    finally:
        filesystem.rm(folder, recursive=True)


@pytest.mark.usefixtures("thresholds")
@each_case("block_length", [5, 40])
@each_case("fails_at", range(12))
def test_a_sink_that_breaks_holds_no_stream_and_its_error_is_the_callers(
    block_length: int, fails_at: int
) -> None:
    sink = Seen(fails_at)
    out = new_writer(sink, block_length=block_length)

    def work() -> None:
        for at in range(0, 240, 40):
            out.write(PLAIN[at : at + 40])
        out.close()

    appends = count_appends(block_length)
    with (
        pytest.raises(OSError, match="No space") if fails_at < appends else contextlib.nullcontext()
    ):
        work()
    assert out.closed
    assert is_stream(FOOTER_KEY, sink.data) == (fails_at >= appends)
    if fails_at < appends:
        assert_unusable(out)


def count_appends(block_length: int) -> int:
    sink = Seen()
    with new_writer(sink, block_length=block_length) as out:
        for at in range(0, 240, 40):
            out.write(PLAIN[at : at + 40])
    assert len(sink.states) > 5
    return len(sink.states)


def assert_unusable(out: Ags1Writer) -> None:
    """Check a writer that failed: even a caller who swallowed the error learns of it."""
    assert out.closed
    out.abandon()
    for use in (
        lambda: out.close(),
        lambda: out.__exit__(None, None, None),
        lambda: out.write(b"more"),
        lambda: out.tell(),
        lambda: out.encrypted_length,
        lambda: out.key_metadata,
        lambda: out.__enter__(),
    ):
        with pytest.raises(ValueError, match=r"closed|complete|earlier error"):
            use()
    with contextlib.suppress(BoomError):
        try:
            raise BoomError
        finally:
            out.close()


def test_closing_again_changes_nothing() -> None:
    sink = Seen()
    with new_writer(sink, block_length=4) as out:
        out.write(PLAIN[:9])
        out.close()
        stream = sink.data
        out.close()
        out.abandon()
    with contextlib.suppress(BoomError):
        try:
            raise BoomError
        finally:
            out.close()
    del out
    assert sink.data == stream
    assert read_plaintext(FOOTER_KEY, stream) == PLAIN[:9]


def test_after_close_the_length_is_known_and_nothing_can_be_written() -> None:
    sink = io.BytesIO()
    with new_writer(sink, aad_prefix=PREFIX, block_length=4) as out:
        for _ in range(2):
            with pytest.raises(ValueError, match="complete"):
                _ = out.encrypted_length
            with pytest.raises(ValueError, match="complete"):
                _ = out.key_metadata
            out.write(PLAIN[:9])
    assert out.encrypted_length == len(sink.getvalue())
    assert out.key_metadata == StandardKeyMetadata(
        key=FOOTER_KEY, aad_prefix=PREFIX, file_length=len(sink.getvalue())
    )
    with pytest.raises(ValueError, match="closed"):
        out.write(b"more")
    with pytest.raises(ValueError, match="closed"):
        out.tell()
    assert not sink.closed


def test_the_caller_that_handles_an_error_inside_with_completes_the_stream() -> None:
    sink = io.BytesIO()
    with new_writer(sink) as out:
        try:
            raise BoomError
        except BoomError:
            out.write(b"handled")
    assert read_plaintext(FOOTER_KEY, sink.getvalue()) == b"handled"


def test_a_writer_made_while_an_error_is_handled_completes_its_stream() -> None:
    sinks = [io.BytesIO(), io.BytesIO()]
    try:
        raise BoomError
    except BoomError:
        with new_writer(sinks[0]) as out:
            out.write(b"fallback")
        later = new_writer(sinks[1])
        later.write(b"fallback")
        later.close()
    assert [read_plaintext(FOOTER_KEY, sink.getvalue()) for sink in sinks] == [b"fallback"] * 2


def test_a_with_block_that_ends_well_completes_the_stream_even_while_an_error_is_handled() -> None:
    sink = io.BytesIO()
    out = new_writer(sink)
    try:
        raise BoomError
    except BoomError:
        with out:
            out.write(b"fallback")
    assert read_plaintext(FOOTER_KEY, sink.getvalue()) == b"fallback"


def test_a_writer_holds_on_to_no_exception_once_it_is_closed() -> None:
    class Held:
        pass

    def make_abandoned() -> tuple[Ags1Writer, Any]:
        held = Held()  # in the frame of the traceback
        try:
            raise BoomError
        except BoomError:
            out = new_writer(io.BytesIO())
            out.close()
        return out, weakref.ref(held)

    out, held = make_abandoned()
    gc.collect()
    assert out.closed
    assert held() is None


@pytest.mark.parametrize("failing", ["fsync", "replace", "close"])
def test_a_path_that_cannot_be_published_is_not_there(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = new_writer(tmp_path / "stream")
    out.write(b"something")

    def fail_now(*arguments: Any) -> None:
        if failing == "close":
            real_close(*arguments)
        raise OSError(errno.EIO, "broken")

    real_close = os.close
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail_now)
        with pytest.raises(OSError, match="broken"):
            out.close()
    assert_unusable(out)
    assert list_folder(tmp_path) == []


def test_a_clean_up_that_fails_hides_no_error_and_closes_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = new_writer(tmp_path / "stream", block_length=4, threads=1)
    real_close = os.close

    def append(self: FdSink, data: Any) -> None:
        raise OSError(errno.ENOSPC, "what went wrong first")

    def close(fd: int) -> None:
        real_close(fd)
        raise OSError(errno.EIO, "and then")

    with monkeypatch.context() as patch:
        patch.setattr(FdSink, "append", append)
        patch.setattr(os, "close", close)
        with pytest.raises(OSError, match="what went wrong first"):
            out.write(PLAIN)
    assert_unusable(out)
    assert list_folder(tmp_path) == []


# --- keys, nonces and counts ---------------------------------------------------------------------


def test_every_block_has_a_nonce_of_its_own_and_no_two_seals_agree() -> None:
    streams = [encrypt(PLAIN, FOOTER_KEY, block_length=3) for _ in range(2)]
    with small_thresholds():
        for _ in range(2):
            sink = io.BytesIO()
            with new_writer(sink, block_length=3, threads=3) as out:
                out.write(PLAIN)
            streams.append(sink.getvalue())
    found = [block[:12] for stream in streams for block in frames(stream)]
    assert len(found) == len(set(found)) == 4 * 1667
    # Of all blocks together: the three bytes of one may be those of another.
    ciphertexts = {b"".join(block[12:-16] for block in frames(stream)) for stream in streams}
    assert len(ciphertexts) == 4


@pytest.mark.usefixtures("thresholds")
@each_case(("size", "count"), [(0, 1), (1, 1), (7, 1), (8, 2), (700, 100), (701, 101)])
def test_every_block_counts_once_for_its_key(size: int, count: int) -> None:
    key = Key.generate()
    with Ags1Writer(io.BytesIO(), key, block_length=7, threads=3) as out:
        for at in range(0, size, 100):
            out.write(PLAIN[at : min(at + 100, size)])
    assert key.invocations == count
    encrypt(PLAIN[:size], StandardKeyMetadata(key=key), block_length=7)
    assert key.invocations == 2 * count


@pytest.mark.usefixtures("thresholds")
@each_case("left", [0, 1, 5, 24])
@each_case("threads", [1, 3])
def test_an_exhausted_key_abandons_the_writer(left: int, threads: int, tmp_path: Path) -> None:
    key = Key.generate()
    for sink in (Seen(), tmp_path / "stream"):
        invocation_counter(key).count = 2**32 - left
        out = new_writer(sink, key, block_length=4, threads=threads)
        with pytest.raises(KeyExhaustedError):
            out.writelines(PLAIN[at : at + 20] for at in range(0, 200, 20))
        assert_unusable(out)
        assert not (isinstance(sink, Seen) and is_stream(key._value, sink.data))
    assert list_folder(tmp_path) == []
    with pytest.raises(KeyExhaustedError):
        encrypt(b"data", key)


# --- arguments -----------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "key of 15 bytes": (ValueError, {"key": bytes(15)}),
    "key as text": (ValueError, {"key": "0123456789012345"}),
    "no key": (TypeError, {"key": None}),
    "prefix as text": (TypeError, {"aad_prefix": "prefix"}),
    "block length 0": (ValueError, {"block_length": 0}),
    "block length -1": (ValueError, {"block_length": -1}),
    "block length beyond 64 MiB": (ValueError, {"block_length": (64 << 20) + 1}),
    "block length as text": (TypeError, {"block_length": "5"}),
    "block length 4.5": (TypeError, {"block_length": 4.5}),
    "prefix beside the metadata's": (
        ValueError,
        {"key": StandardKeyMetadata.generate(), "aad_prefix": PREFIX},
    ),
    "metadata with a length": (
        ValueError,
        {"key": StandardKeyMetadata(key=FOOTER_KEY, file_length=100)},
    ),
}


@each_case("mistake", MISTAKES)
def test_a_callers_mistake_is_found_before_anything_is_written(
    mistake: str, tmp_path: Path
) -> None:
    error, changes = MISTAKES[mistake]
    arguments: dict[str, Any] = {"key": FOOTER_KEY} | changes
    sink = Seen()
    for target in (sink, tmp_path / "stream", tmp_path / "absent" / "stream"):
        with pytest.raises(error) as caught:
            new_writer(target, **arguments)
        assert not isinstance(caught.value, OSError)
    with pytest.raises(error):
        encrypt(b"", **arguments)
    assert sink.data == b""
    assert list_folder(tmp_path) == []


def test_other_mistakes_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threads"):
        new_writer(tmp_path / "stream", threads=0)
    with pytest.raises(TypeError, match="destination"):
        new_writer(5)
    (tmp_path / "old").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        new_writer(tmp_path / "old", overwrite=False)
    with pytest.raises(FileNotFoundError):
        new_writer(tmp_path / "absent" / "stream")
    assert list_folder(tmp_path) == ["old"]


def test_the_metadatas_own_prefix_may_be_repeated() -> None:
    metadata = StandardKeyMetadata(key=FOOTER_KEY, aad_prefix=PREFIX)
    stream = encrypt(b"data", metadata, aad_prefix=PREFIX)
    assert read_plaintext(FOOTER_KEY, stream, PREFIX) == b"data"
    with pytest.raises(ValueError, match="prefix"):
        encrypt(b"data", metadata, aad_prefix=b"")


@pytest.mark.parametrize("block_length", [1, 64 << 20])
def test_the_limits_of_block_lengths_are_written(block_length: int) -> None:
    stream = encrypt(b"abc", FOOTER_KEY, block_length=block_length)
    assert stream[4:8] == block_length.to_bytes(4, "little")
    assert read_plaintext(FOOTER_KEY, stream) == b"abc"


# --- memory --------------------------------------------------------------------------------------


class Nowhere(io.RawIOBase):
    size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.size += len(data)
        return len(data)


@each_case(
    ("block_length", "piece", "total"),
    [
        (1 << 20, 8 << 20, 96 << 20),
        (1 << 20, 3 << 15, 96 << 20),
        (1 << 16, 8 << 20, 96 << 20),
    ],
)
@each_case("threads", [1, 4])
@each_case("kind", ["object", "path"])
def test_memory_is_bounded_whatever_the_length(
    block_length: int, piece: int, total: int, threads: int, kind: str, tmp_path: Path
) -> None:
    data, nowhere = bytes(piece), Nowhere()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FdSink, "append", lambda self, data: nowhere.write(data))
        sink: Any = nowhere if kind == "object" else tmp_path / "stream"
        tracemalloc.start()
        try:
            with new_writer(sink, block_length=block_length, threads=threads) as out:
                for _ in range(total // piece):
                    out.write(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert nowhere.size == out.encrypted_length > total
    assert peak < 16 << 20


def test_short_blocks_are_handed_over_in_lots_of_their_sealed_size() -> None:
    """A block of one byte takes 29: counted by plaintext, a lot would be 29 times as large."""
    sink = Seen()
    with small_thresholds(lot=90), new_writer(sink, block_length=1) as out:
        out.write(PLAIN[:700])
    sizes = [len(b) - len(a) for a, b in pairwise(sink.states)]
    assert max(sizes) <= 90 + 16
    assert read_plaintext(FOOTER_KEY, sink.data) == PLAIN[:700]


def test_an_error_leaves_nothing_holding_on_to_the_callers_buffer() -> None:
    buffer = bytearray(PLAIN)
    out = new_writer(Seen(fails_at=1), block_length=4)
    with pytest.raises(OSError, match="No space"):
        out.writelines([buffer] * 2)
    buffer.clear()
    out = new_writer(Seen(), spent_key(), block_length=4)
    buffer = bytearray(PLAIN)
    with pytest.raises(KeyExhaustedError):
        out.write(buffer)
    buffer.clear()  # BufferError where a cycle of traceback and frame still has a view of it


def spent_key() -> Key:
    key = Key.generate()
    invocation_counter(key).count = 2**32 - 3
    return key


def test_a_finalizer_is_noticed_among_the_callers_alone() -> None:
    answers = []

    class Dying:
        def __del__(self) -> None:
            close()

    def close() -> None:
        answers.append(writer._in_finalizer())

    dying = Dying()
    assert not writer._in_finalizer()
    del dying
    gc.collect()
    assert answers == [True]
