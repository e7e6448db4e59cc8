"""Sources read by position, sinks that grow, destinations that are complete or not there."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import gc
import io
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import fsspec.implementations.arrow
import fsspec.implementations.local
import pyarrow.fs
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from modcrypt import (
    FileDecryptionProperties,
    FileEncryptionProperties,
    decrypt_parquet,
    encrypt_parquet,
)
from modcrypt.errors import TruncationError
from modcrypt.io import buffers, publication, sinks, stores
from modcrypt.io.addresses import find_inside, local_path
from modcrypt.io.buffers import Output, Window
from modcrypt.io.destinations import open_replacement, open_sink, open_sink_at
from modcrypt.io.places import Place, place_of
from modcrypt.io.sinks import FdSink, Sink, copy_range
from modcrypt.io.sources import (
    FileSource,
    MemorySource,
    RangeSource,
    SourceStream,
    open_source,
    open_source_at,
    open_stream,
)
from modcrypt.io.store_errors import add_url_to_errors
from modcrypt.io.stores import locate
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY
from tests.support.open_files import open_files
from tests.support.randomness import examples
from tests.support.tables import write_plain

DATA = bytes(i * 7 & 0xFF for i in range(1000))

ENCRYPTION = FileEncryptionProperties(footer_key=FOOTER_KEY)
DECRYPTION = FileDecryptionProperties(footer_key=FOOTER_KEY)


def writer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "modcrypt-writer"]


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    yield
    assert not writer_threads()


@pytest.fixture
def memory_url() -> Iterator[str]:
    """Return a new folder of fsspec's memory file system."""
    folder = f"/modcrypt-{uuid.uuid4()}"
    filesystem = fsspec.filesystem("memory")
    filesystem.mkdir(folder)
    yield f"memory:/{folder}"
    filesystem.rm(folder, recursive=True)


def listing(memory_url: str) -> list[str]:
    filesystem, path = fsspec.core.url_to_fs(memory_url)
    return sorted(name.rsplit("/", 1)[1] for name in filesystem.find(path))


# --- sources -------------------------------------------------------------------------------------


class OneByteAtATime(io.BytesIO):
    """A file object that reads short, as sockets and raw files may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(1 if size else 0)


def as_memory_url(path: Path, url: str, _: contextlib.ExitStack) -> str:
    with fsspec.open(f"{url}/x", "wb") as file:
        file.write(path.read_bytes())
    return f"{url}/x"


def as_open_file(path: Path, _: str, stack: contextlib.ExitStack) -> Any:
    file = stack.enter_context(path.open("rb"))
    file.seek(3)  # where its cursor stands does not matter
    return file


def as_spooled_file(path: Path, _: str, stack: contextlib.ExitStack) -> Any:
    file = stack.enter_context(tempfile.SpooledTemporaryFile())  # noqa: SIM115
    file.write(path.read_bytes())
    return file


def in_memory(kind: Callable[[bytes], Any]) -> Callable[..., Any]:
    return lambda path, *_: kind(path.read_bytes())


SOURCES: dict[str, Callable[[Path, str, contextlib.ExitStack], Any]] = {
    "path": lambda path, *_: path,
    "str": lambda path, *_: str(path),
    "file url": lambda path, *_: f"file://{path}",
    "memory url": as_memory_url,
    "open file": as_open_file,
    "raw file": lambda path, _, stack: stack.enter_context(path.open("rb", buffering=0)),
    "spooled file": as_spooled_file,
    "bytes": in_memory(bytes),
    "bytearray": in_memory(bytearray),
    "memoryview": in_memory(memoryview),
    "slice of a memoryview": in_memory(lambda data: memoryview(b"xx" + data + b"y")[2:-1]),
    "memoryview of rows": in_memory(lambda data: memoryview(data).cast("B", [len(data), 1])),
    "BytesIO": in_memory(io.BytesIO),
    "short reads": in_memory(OneByteAtATime),
}


@contextlib.contextmanager
def given_as(kind: str, path: Path, url: str) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        yield SOURCES[kind](path, url, stack)


@each_case("kind", list(SOURCES))
def test_every_kind_of_source_gives_the_bytes_of_any_place(
    kind: str, tmp_path: Path, memory_url: str
) -> None:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    with given_as(kind, path, memory_url) as given_source, open_source(given_source) as source:
        assert source.size == len(DATA)
        assert source.whole is None or source.whole == DATA
        for start, size in ((0, 0), (0, 1), (0, 1000), (999, 1), (1000, 0), (400, 77), (3, 4)):
            assert source.read_at(start, size) == DATA[start : start + size]
            view = memoryview(bytearray(size + 2))
            source.read_into(start, view[1:-1])
            assert view.tobytes() == b"\0" + DATA[start : start + size] + b"\0"
        for start, size in ((1000, 1), (999, 2), (0, 1001), (5000, 1)):
            with pytest.raises(TruncationError, match="ended at byte"):
                source.read_at(start, size)


def test_a_memoryview_of_numbers_is_read_by_bytes() -> None:
    with open_source(memoryview(array.array("Q", DATA))) as source:
        assert source.size == len(DATA)
        assert source.read_at(3, 10) == DATA[3:13]


@each_case("kind", list(SOURCES))
def test_every_kind_of_source_can_be_encrypted_and_decrypted(
    kind: str, tmp_path: Path, memory_url: str
) -> None:
    plain = write_plain(tmp_path / "plain")
    sealed = tmp_path / "sealed"
    with given_as(kind, plain, memory_url) as source:
        encrypt_parquet(source, sealed, ENCRYPTION)
    with given_as(kind, sealed, memory_url) as source:
        decrypt_parquet(source, tmp_path / "back", DECRYPTION)
    assert (tmp_path / "back").read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("kind", ["open file", "raw file", "BytesIO"])
def test_the_callers_file_object_stays_open(kind: str, tmp_path: Path, memory_url: str) -> None:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    with given_as(kind, path, memory_url) as file:
        with open_source(file):
            pass
        assert not file.closed


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors in /proc")
def test_files_opened_here_are_closed_here_even_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    with open_source(path):
        assert open_files().count(str(path)) == 1
    with pytest.raises(RuntimeError), open_source(path):
        raise RuntimeError
    with pytest.raises(RuntimeError), open_sink(tmp_path / "sink", overwrite=True):
        raise RuntimeError
    assert not [name for name in open_files() if name.startswith(str(tmp_path))]


def test_a_missing_source_is_the_systems_error(tmp_path: Path, memory_url: str) -> None:
    for source in (tmp_path / "none", f"file://{tmp_path}/none", f"{memory_url}/none"):
        with pytest.raises(FileNotFoundError), open_source(source):
            pass
    with pytest.raises(IsADirectoryError), open_source(tmp_path) as opened:
        opened.read_at(0, 1)


FILE_SYSTEMS: dict[str, Callable[[], Any]] = {
    "pyarrow": pyarrow.fs.LocalFileSystem,
    "fsspec": fsspec.implementations.local.LocalFileSystem,
    "pyarrow over fsspec": lambda: pyarrow.fs.PyFileSystem(
        pyarrow.fs.FSSpecHandler(fsspec.implementations.local.LocalFileSystem())
    ),
    "fsspec over pyarrow": lambda: fsspec.implementations.arrow.ArrowFSWrapper(
        pyarrow.fs.LocalFileSystem()
    ),
    "a folder": lambda: pyarrow.fs.SubTreeFileSystem("/", pyarrow.fs.LocalFileSystem()),
}


@pytest.mark.parametrize("kind", list(FILE_SYSTEMS))
def test_what_a_local_file_system_names_is_read_and_written_as_a_path(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem, synced = FILE_SYSTEMS[kind](), list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    for path in (tmp_path / "a b", str(tmp_path / "c%20d")):
        with open_sink(path, overwrite=False, filesystem=filesystem) as sink:
            sink.append(DATA)
            assert not Path(path).exists()
        assert Path(path).read_bytes() == DATA
        with pytest.raises(FileExistsError), open_sink(path, overwrite=False):
            pass
        with open_source(path, filesystem=filesystem) as source:
            assert isinstance(source, FileSource)
            assert source.read_at(3, 4) == DATA[3:7]
    assert sorted(os.listdir(tmp_path)) == ["a b", "c%20d"]
    assert len(synced) == 4


def test_a_folder_of_a_local_file_system_is_the_root_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "one" / "two").mkdir(parents=True)
    filesystem = pyarrow.fs.SubTreeFileSystem(
        "two", pyarrow.fs.SubTreeFileSystem(str(tmp_path / "one"), pyarrow.fs.LocalFileSystem())
    )
    for path in ("relative", "/absolute"):
        with open_sink(path, overwrite=False, filesystem=filesystem) as sink:
            sink.append(DATA)
        with open_source(path, filesystem=filesystem) as source:
            assert source.read_at(0, 1000) == DATA
    assert sorted(os.listdir(tmp_path / "one" / "two")) == ["absolute", "relative"]


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"x"


def test_with_a_file_system_only_a_path_will_do(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for where in (DATA, io.BytesIO(DATA), 3, None, BytesPath()):
        with pytest.raises(TypeError, match="give a path in it"):
            open_source(where, filesystem=memory).__enter__()  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="give a path in it"):
            open_sink(where, overwrite=True, filesystem=memory).__enter__()  # type: ignore[arg-type]


@pytest.mark.parametrize("filesystem", ["s3", 3, os, io.BytesIO(), pyarrow.fs])
def test_a_file_system_is_one_of_pyarrow_or_fsspec(filesystem: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"pyarrow\.fs or of fsspec"):
        open_source(tmp_path / "x", filesystem=filesystem).__enter__()
    with pytest.raises(TypeError, match=r"pyarrow\.fs or of fsspec"):
        open_sink(tmp_path / "x", overwrite=True, filesystem=filesystem).__enter__()
    assert os.listdir(tmp_path) == []


def test_threads_share_the_cursor_of_a_file_object() -> None:
    with open_source(OneByteAtATime(DATA)) as source, ThreadPoolExecutor(8) as pool:
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            found = list(pool.map(lambda start: source.read_at(start, 200), range(0, 800, 7)))
        finally:
            sys.setswitchinterval(before)
    assert found == [DATA[start : start + 200] for start in range(0, 800, 7)]


@pytest.mark.parametrize("name", ["a b", "a%20b", "100%", "x#y?z=1&é", "%zz", "\udcff"])
def test_a_file_url_is_percent_encoded_as_pathlib_and_pyarrow_have_it(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    url = path.as_uri()
    with open_sink(url, overwrite=False) as sink:
        sink.append(DATA)
    assert os.listdir(tmp_path) == [name]
    with open_source(url) as source:
        assert source.read_at(0, 1000) == DATA
    if name.isascii():
        filesystem, there = pyarrow.fs.FileSystem.from_uri(url)
        assert there == str(path)
        assert filesystem.get_file_info(there).is_file


def test_a_local_url_is_taken_as_fsspec_takes_it(tmp_path: Path) -> None:
    (tmp_path / "a%20b").write_bytes(DATA)
    for url in (f"local://{tmp_path}/a%20b", f"file://{tmp_path}/a%2520b"):
        with open_source(url) as source:
            assert source.read_at(0, 1000) == DATA


def test_chained_urls_are_read(tmp_path: Path, memory_url: str) -> None:
    with fsspec.open(f"{memory_url}/x", "wb") as file:
        file.write(DATA)
    with fsspec.open(f"{memory_url}/x.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x", DATA)
    (tmp_path / "x").write_bytes(DATA)
    cached = [f"{kind}::{memory_url}/x" for kind in ("simplecache", "filecache")]
    for url in (*cached, f"zip://x::{memory_url}/x.zip", f"simplecache::file://{tmp_path}/x"):
        with open_source(url) as source:
            assert (source.size, source.name) == (1000, url)
            assert source.read_at(400, 300) == DATA[400:700]
            assert source.read_at(3, 4) == DATA[3:7]


# --- the window ----------------------------------------------------------------------------------


class WatchedSource(MemorySource):
    """Hides that it is in memory, and notes how far it was read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.whole = None
        self.reached = 0

    def read_into(self, offset: int, view: memoryview) -> None:
        super().read_into(offset, view)
        self.reached = max(self.reached, offset + len(view))


FILLS = st.lists(st.tuples(*[st.integers(0, 200)] * 3).map(sorted), max_size=15)


@settings(max_examples=examples(400))
@given(FILLS, st.sampled_from([1, 2, 7, 16, 64]), st.booleans())
def test_a_window_shows_the_sources_bytes(
    fills: list[list[int]], block: int, in_memory: bool
) -> None:
    data = DATA[:200]
    source = MemorySource(data) if in_memory else WatchedSource(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers, "BLOCK", block)
        window = Window(source)
        furthest = 0
        for start, need, end in fills:
            window.fill(start, need, end)
            furthest = max(furthest, end)
            index = start - window.base
            assert index >= 0
            assert window.buffer[index : need - window.base] == data[start:need]
            assert window.view[index : need - window.base] == data[start:need]
            # All that is there is right, not only what was asked for.
            assert window.base + window.stop >= need
            assert window.buffer[: window.stop] == data[window.base : window.base + window.stop]
            if isinstance(source, WatchedSource):
                assert source.reached <= furthest


def test_a_window_reads_ahead_by_blocks_and_each_byte_once() -> None:
    reads: list[tuple[int, int]] = []

    class Counted(WatchedSource):
        def read_into(self, offset: int, view: memoryview) -> None:
            reads.append((offset, len(view)))
            super().read_into(offset, view)

    window = Window(Counted(DATA), block=64)
    for at in range(0, 1000, 10):
        window.fill(at, at + 10, 1000)
    assert sum(size for _, size in reads) == 1000
    assert [offset for offset, _ in reads] == sorted({offset for offset, _ in reads})
    assert len(reads) <= 1000 // 64 * 2
    assert len(window.buffer) < 3 * 64


def test_a_source_that_shrinks_is_a_truncation_and_never_stale_bytes() -> None:
    file = io.BytesIO(DATA)
    with open_source(file) as source:
        window = Window(source, block=16)
        window.fill(0, 100, 1000)
        file.truncate(150)
        for _ in range(2):
            with pytest.raises(TruncationError):
                window.fill(100, 300, 1000)


# --- output --------------------------------------------------------------------------------------


class Collected(Sink):
    """Keeps what it is given, as bytes of its own, and who gave it."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.threads: set[str] = set()

    def append(self, data: memoryview | bytes) -> None:
        self.parts.append(bytes(data))
        self.threads.add(threading.current_thread().name)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["write", "in place", "copy", "flush"]), st.integers(0, 90)),
    max_size=25,
)


@settings(max_examples=examples(300))
@given(OPERATIONS, st.booleans(), st.sampled_from([8, 16, 64]))
def test_output_arrives_whole_and_in_order(
    operations: list[tuple[str, int]], background: bool, block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers, "BLOCK", block)
        patch.setattr(buffers, "_SMALL_BUFFER", 8)  # so that the next ones are larger
        patch.setattr(buffers, "_FIRST_BUFFER", 16)
        sink, expected, source = Collected(), bytearray(), MemorySource(DATA)
        out = Output(sink, background=background)
        for number, (operation, size) in enumerate(operations):
            part = bytes((number + i) & 0xFF for i in range(size))
            if operation == "write":
                out.write(part)
            elif operation == "in place":
                out.reserve(size)
                out.view[out.at : out.at + size] = part
                out.at += size
            elif operation == "copy":
                part = DATA[number : number + size]
                out.copy_from(source, number, number + size)
            else:
                part = b""
                out.flush()
            expected += part
            assert out.position == len(expected)
        threaded = out._writer is not None
        out.close(complete=True)
        assert b"".join(sink.parts) == expected
        assert threaded == (background and "modcrypt-writer" in sink.threads)
        # What is smaller than a buffer, and never flushed, needs no thread.
        assert sink.threads <= ({"modcrypt-writer"} if threaded else {"MainThread"})


def test_a_small_output_takes_little_memory_and_a_large_one_is_written_in_blocks() -> None:
    sink = Collected()
    out = Output(sink, background=False)
    out.write(bytes(1000))
    assert len(out.view) == out.size == 1 << 14
    out.write(bytes(1 << 14))
    assert len(out.view) == out.size == 1 << 16
    for _ in range(3000):
        out.write(bytes(1000))
    out.close(complete=True)
    assert [len(part) >> 20 for part in sink.parts] == [1, 1, 0]


def test_an_output_that_is_not_complete_does_not_write_its_rest() -> None:
    for background in (False, True):
        sink = Collected()
        out = Output(sink, background=background)
        out.write(b"part")
        out.close(complete=False)
        assert sink.parts == []


class FailingSink(Sink):
    def __init__(self, at: int) -> None:
        self.left = at

    def append(self, data: memoryview | bytes) -> None:
        if self.left == 0:
            raise OSError(28, "no space left on device")
        self.left -= 1


@each_case("background", [False, True])
@each_case("at", range(12))
def test_a_sinks_error_surfaces_whenever_it_comes(
    background: bool, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "BLOCK", 16)

    def run() -> None:
        out = Output(FailingSink(at), background=background)
        complete = False
        try:
            for _ in range(12):
                out.write(bytes(18))  # a whole buffer each
            complete = True
        finally:
            out.close(complete=complete)

    with pytest.raises(OSError, match="no space left"):
        run()


def test_after_an_error_nothing_more_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole in the file would be worse than its end."""
    monkeypatch.setattr(buffers, "BLOCK", 16)
    calls: list[bytes] = []

    class FailsOnce(Sink):
        def append(self, data: memoryview | bytes) -> None:
            calls.append(bytes(data))
            if len(calls) == 2:
                raise OSError(28, "no space left on device")

    out = Output(FailsOnce(), background=True)
    with contextlib.suppress(OSError):
        for number in range(12):
            out.write(bytes((number,)) * 18)
    with pytest.raises(OSError, match="no space left"):
        out.close(complete=True)
    assert len(calls) == 2


def test_the_background_thread_goes_round_with_three_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory stays what it was, however long the file."""
    monkeypatch.setattr(buffers, "BLOCK", 16)
    seen_buffers: dict[int, object] = {}

    class Watching(Sink):
        def append(self, data: memoryview | bytes) -> None:
            assert isinstance(data, memoryview)
            seen_buffers[id(data.obj)] = data.obj  # held on to, so that no id comes twice

    out = Output(Watching(), background=True)
    for _ in range(50):
        out.write(bytes(18))
    out.close(complete=True)
    assert 1 <= len(seen_buffers) <= 3


def test_a_callers_file_object_is_called_in_the_callers_thread_alone(tmp_path: Path) -> None:
    callers: set[str] = set()

    class Watched(io.BytesIO):
        def write(self, data: Any) -> int:
            callers.add(threading.current_thread().name)
            return super().write(data)

    encrypt_parquet(write_plain(tmp_path / "plain"), Watched(), ENCRYPTION, threads=2)
    assert callers == {"MainThread"}


@pytest.mark.parametrize("threads", [0, -1])
def test_fewer_than_one_thread_is_a_callers_mistake(tmp_path: Path, threads: int) -> None:
    plain = write_plain(tmp_path / "plain")
    with pytest.raises(ValueError, match="threads"):
        encrypt_parquet(plain, tmp_path / "sealed", ENCRYPTION, threads=threads)
    assert os.listdir(tmp_path) == ["plain"]


# --- file objects as destinations ----------------------------------------------------------------


class ShortWrites(io.RawIOBase):
    """A raw file that takes seven bytes at a time."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: Any) -> int:
        part = bytes(data[:7])
        self.data += part
        return len(part)


class Silent:
    """Someone's own writer, which does not say what it took."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def test_file_objects_get_every_byte_and_stay_open() -> None:
    buffered, short, silent = io.BytesIO(), ShortWrites(), Silent()
    sinks: list[Any] = [buffered, short, silent]
    for file in sinks:
        with open_sink(file, overwrite=False) as sink:
            sink.append(DATA)
            sink.append(memoryview(DATA)[5:9])
    assert buffered.getvalue() == short.data == silent.data == DATA + DATA[5:9]
    assert not buffered.closed
    assert not short.closed


@pytest.mark.parametrize("answer", [0, None])
def test_a_raw_file_that_takes_nothing_is_an_error_and_no_endless_loop(answer: int | None) -> None:
    """RawIOBase.write: "None is returned if the raw stream is set not to block and no single
    byte could be readily written to it."
    """

    class Full(io.RawIOBase):
        calls = 0

        def write(self, data: Any) -> Any:
            self.calls += 1
            assert self.calls < 10, "called again and again"
            return answer

    file: Any = Full()
    with pytest.raises(BlockingIOError), open_sink(file, overwrite=True) as sink:
        sink.append(DATA)


# --- published paths -----------------------------------------------------------------------------


def write_and_raise(
    destination: Any,
    error: type[BaseException] = RuntimeError,
    *,
    overwrite: bool = True,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    with open_sink(destination, overwrite=overwrite) as sink:
        sink.append(DATA)
        meanwhile()
        raise error


@contextlib.contextmanager
def failing_writes(at: int, patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let the write number `at` to a path fail; return a list with the number of writes so far."""
    calls = [0]
    write = os.write

    def write_until_full(fd: int, data: Any) -> int:
        calls[0] += 1
        if calls[0] > at:
            raise OSError(28, "no space left on device")
        return write(fd, data)

    patch.setattr(os, "write", write_until_full)
    yield calls


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("existing", [None, b"what was there"])
def test_a_write_that_fails_leaves_nothing_whichever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, existing: bytes | None
) -> None:
    monkeypatch.setattr(buffers, "BLOCK", 512)
    plain = write_plain(tmp_path / "plain", row_group_size=10)
    destination = tmp_path / "sealed"
    if existing is not None:
        destination.write_bytes(existing)
    before = sorted(os.listdir(tmp_path))
    at = 0
    while True:
        with monkeypatch.context() as patch, failing_writes(at, patch) as calls:
            try:
                encrypt_parquet(plain, destination, ENCRYPTION, threads=threads)
            except OSError as error:
                assert error.errno == 28  # noqa: PT017 (the last round raises nothing)
            else:
                assert calls[0] == at
                break
        assert sorted(os.listdir(tmp_path)) == before
        assert existing is None or destination.read_bytes() == existing
        assert not writer_threads()
        at += 1
    assert at > 10
    decrypt_parquet(destination, tmp_path / "back", DECRYPTION)
    assert (tmp_path / "back").read_bytes() == plain.read_bytes()


@pytest.mark.parametrize(
    ("step", "overwrite"), [("fsync", True), ("replace", True), ("link", False)]
)
def test_a_step_of_publishing_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, overwrite: bool
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(os, step, fail)
    with (
        pytest.raises(OSError, match="input/output"),
        open_sink(tmp_path / "new", overwrite=overwrite) as sink,
    ):
        sink.append(DATA)
    assert os.listdir(tmp_path) == []


@each_case("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
@each_case("overwrite", [True, False])
def test_any_exception_leaves_neither_destination_nor_temporary_file(
    tmp_path: Path, error: type[BaseException], overwrite: bool
) -> None:
    def check() -> None:
        assert os.listdir(tmp_path) == []

    with pytest.raises(error):
        write_and_raise(tmp_path / "new", error, overwrite=overwrite, meanwhile=check)
    assert os.listdir(tmp_path) == []


def test_a_file_is_synced_before_it_is_published_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def record_calls(name: str) -> None:
        function = getattr(os, name)

        def run(*arguments: Any) -> Any:
            steps.append(name)
            return function(*arguments)

        monkeypatch.setattr(os, name, run)

    for name in ("write", "fsync", "replace"):
        record_calls(name)
    with open_sink(tmp_path / "new", overwrite=True) as sink:
        sink.append(DATA)
    assert steps == ["write", "fsync", "replace", "fsync"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_progress_callback_that_raises_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(buffers, "BLOCK", 512)
    plain = write_plain(tmp_path / "plain", row_group_size=10)
    sealed = tmp_path / "sealed"
    encrypt_parquet(plain, sealed, ENCRYPTION)
    before = sealed.read_bytes()
    seen: list[int] = []

    def stop(done: int) -> None:
        seen.append(done)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encrypt_parquet(plain, sealed, ENCRYPTION, threads=threads, progress=stop)
    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        decrypt_parquet(sealed, tmp_path / "back", DECRYPTION, threads=threads, progress=stop)
    assert sorted(os.listdir(tmp_path)) == ["plain", "sealed"]
    assert sealed.read_bytes() == before


@pytest.mark.parametrize("threads", [1, 2])
def test_progress_grows_to_the_size_of_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(buffers, "BLOCK", 512)
    plain, seen, callers = write_plain(tmp_path / "plain"), [0], set()

    def note(done: int) -> None:
        seen.append(done)
        callers.add(threading.current_thread())

    encrypt_parquet(plain, tmp_path / "sealed", ENCRYPTION, threads=threads, progress=note)
    assert seen == sorted(set(seen))
    assert seen[-1] == (tmp_path / "sealed").stat().st_size
    assert callers == {threading.main_thread()}


def test_an_existing_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError) as caught, open_sink(path, overwrite=False):
        pytest.fail("opened all the same")
    assert caught.value.errno == 17
    assert path.read_bytes() == b"old"
    with open_sink(path, overwrite=True) as sink:
        sink.append(b"new")
        assert path.read_bytes() == b"old"  # until it is complete
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["there"]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new"

    def write_ours() -> None:
        with open_sink(path, overwrite=False) as sink:
            sink.append(b"ours")
            path.write_bytes(b"theirs")

    with pytest.raises(FileExistsError):
        write_ours()
    assert path.read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["new"]


def test_a_symbolic_link_keeps_pointing_at_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    target, link, second = tmp_path / "data" / "target", tmp_path / "link", tmp_path / "second"
    target.write_bytes(b"old")
    link.symlink_to(target)
    second.symlink_to("link")
    with open_sink(second, overwrite=True) as sink:
        sink.append(b"new")
    assert link.is_symlink()
    assert second.is_symlink()
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path / "data") == ["target"]
    for path in (link, second):
        with pytest.raises(FileExistsError), open_sink(path, overwrite=False):
            pass


@pytest.mark.parametrize("below", ["", "link/"])
def test_a_relative_path_is_that_of_the_folder_in_which_a_sink_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "link").symlink_to(".")
    monkeypatch.chdir(tmp_path / "here")
    with open_sink(f"{below}new", overwrite=True) as sink:
        sink.append(b"bytes")
        os.chdir(tmp_path / "elsewhere")
    assert (tmp_path / "here" / "new").read_bytes() == b"bytes"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_of_two_threads_one_creates_a_file_in_memory(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have written their files, and moving one takes a while."""
    copy, both = MemoryFileSystem.cp_file, threading.Barrier(2)

    def copy_slowly(filesystem: MemoryFileSystem, old: str, new: str) -> None:
        time.sleep(0.05)
        copy(filesystem, old, new)

    def create(number: int) -> bool:
        try:
            with open_sink(f"{memory_url}/file", overwrite=False) as sink:
                sink.append(b"%d" % number)
                both.wait(timeout=30)
        except FileExistsError:
            return False
        return True

    monkeypatch.setattr(MemoryFileSystem, "cp_file", copy_slowly)
    with ThreadPoolExecutor(2) as pool:
        done = [*pool.map(create, range(2))]
    assert sorted(done) == [False, True]
    with open_source(f"{memory_url}/file") as source:
        assert source.read_at(0, source.size) == (b"0" if done[0] else b"1")
    assert listing(memory_url) == ["file"]


def test_a_link_to_nowhere_counts_as_existing_and_can_be_filled(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError), open_sink(link, overwrite=False):
        pass
    with open_sink(link, overwrite=True) as sink:
        sink.append(b"new")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(
    tmp_path: Path, umask: int, mode: int, overwrite: bool
) -> None:
    before = os.umask(umask)
    try:
        with open_sink(tmp_path / "new", overwrite=overwrite) as sink:
            sink.append(DATA)
            assert isinstance(sink, FdSink)
            assert os.fstat(sink.fd).st_mode & 0o777 == mode  # and at no time more
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == mode


def test_a_directory_or_a_missing_folder_is_the_systems_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError), open_sink(tmp_path / "folder", overwrite=True):
        pass
    with pytest.raises(FileNotFoundError), open_sink(tmp_path / "no" / "new", overwrite=True):
        pass
    assert os.listdir(tmp_path) == ["folder"]


@each_case("rooted", [False, True])
def test_a_file_in_place_of_a_folder_is_no_destination_that_exists(
    rooted: bool, tmp_path: Path
) -> None:
    """The command line would recommend --force, which does not help."""
    (tmp_path / "file").touch()
    root = str(tmp_path / "file") if rooted else None
    with pytest.raises(NotADirectoryError):
        Place(None, str(tmp_path / "file" / "new"), root).make_folder()


# The last two have 254 and 255 bytes, the most that file systems take.
NAMES = ["a::b.parquet", "s3:x", "file:x", "x y", "-", ".hidden", "é" * 127, "n" * 255]


@each_case("name", NAMES)
@each_case("kind", [Path, str])
def test_any_legal_file_name_is_a_local_path(
    tmp_path: Path, name: str, kind: Callable[[Path], Any]
) -> None:
    with open_sink(kind(tmp_path / name), overwrite=False) as sink:
        sink.append(DATA)
    assert os.listdir(tmp_path) == [name]
    with open_source(kind(tmp_path / name)) as source:
        assert source.read_at(0, 1000) == DATA


# --- published URLs ------------------------------------------------------------------------------


def test_a_url_appears_complete_or_not_at_all(memory_url: str) -> None:
    url = f"{memory_url}/new"

    def check() -> None:
        assert "new" not in listing(memory_url)

    with pytest.raises(RuntimeError):
        write_and_raise(url, meanwhile=check)
    assert listing(memory_url) == []
    with open_sink(url, overwrite=False) as sink:
        sink.append(b"first ")
        sink.append(b"version")
    assert listing(memory_url) == ["new"]
    with pytest.raises(RuntimeError):
        write_and_raise(url)
    with fsspec.open(url, "rb") as file:
        assert file.read() == b"first version"
    with pytest.raises(FileExistsError), open_sink(url, overwrite=False):
        pass
    with open_sink(url, overwrite=True) as sink:
        sink.append(b"other")
    with fsspec.open(url, "rb") as file:
        assert file.read() == b"other"
    assert listing(memory_url) == ["new"]


def test_an_output_to_a_url_comes_whole(memory_url: str, tmp_path: Path) -> None:
    plain = write_plain(tmp_path / "plain")
    for threads in (1, 2):
        encrypt_parquet(plain, f"{memory_url}/sealed", ENCRYPTION, threads=threads)
        decrypt_parquet(f"{memory_url}/sealed", f"{memory_url}/back", DECRYPTION, threads=threads)
        with fsspec.open(f"{memory_url}/back", "rb") as file:
            assert file.read() == plain.read_bytes()
    assert listing(memory_url) == ["back", "sealed"]


def test_without_fsspec_a_url_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with (
        pytest.raises(ValueError, match=r'pip install "modcrypt\[s3\]"'),
        open_source("s3://bucket/key"),
    ):
        pass


def test_a_destination_that_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="not a regular file"), open_sink(fifo, overwrite=True):
        pytest.fail("opened")
    assert stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize("overwrite", [True, False])
def test_without_unnamed_files_there_is_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """Network file systems and other systems than Linux have none."""
    monkeypatch.setattr(os, "O_TMPFILE", 0)
    before = os.umask(0o027)
    try:
        with open_sink(tmp_path / "new", overwrite=overwrite) as sink:
            sink.append(DATA)
            (temporary,) = tmp_path.iterdir()
            assert temporary.name.startswith(".modcrypt-")
            assert temporary.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)
    assert os.listdir(tmp_path) == ["new"]
    with pytest.raises(RuntimeError):
        write_and_raise(tmp_path / "two", overwrite=overwrite)
    assert os.listdir(tmp_path) == ["new"]


def test_without_hard_links_a_new_file_is_renamed_and_an_old_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT and many network file systems know no hard links."""

    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    out = tmp_path / "out"
    with open_sink(out, overwrite=False) as sink:
        sink.append(b"new")
    assert out.read_bytes() == b"new"

    def write_while_another_does() -> None:
        with open_sink(tmp_path / "late", overwrite=False) as sink:
            sink.append(b"mine")
            (tmp_path / "late").write_bytes(b"theirs")

    with pytest.raises(FileExistsError):
        write_while_another_does()
    assert (tmp_path / "late").read_bytes() == b"theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["late", "out"]


def test_a_folder_that_cannot_be_synced_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is published by then; drop boxes can be written but not opened."""
    really_open = os.open

    def refuse_folders(path: str, flags: int, *rest: int) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "not readable", path)
        return really_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse_folders)
    with open_sink(tmp_path / "out", overwrite=True) as sink:
        sink.append(b"new")
    assert (tmp_path / "out").read_bytes() == b"new"


def test_who_replaces_a_private_file_keeps_it_private(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    out.chmod(0o600)
    with open_sink(out, overwrite=True) as sink:
        sink.append(b"new")
    assert (out.read_bytes(), stat.S_IMODE(out.stat().st_mode)) == (b"new", 0o600)


# --- file objects and views ----------------------------------------------------------------------


class Kept:
    """Someone's own writer, which keeps what it is given."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def write(self, data: Any) -> int:
        self.parts.append(data)
        return len(data)


class KeptRaw(Kept, io.RawIOBase):
    """One of `io`, which promises to be done with what it is given when `write` returns."""


def test_a_writer_of_someones_own_may_keep_what_it_is_given() -> None:
    own, of_io = Kept(), KeptRaw()
    buffer = bytearray(DATA)
    for file in (own, of_io):
        kept: Any = file
        with open_sink(kept, overwrite=True) as sink:
            sink.append(memoryview(buffer))
    assert isinstance(of_io.parts[0], memoryview), "it was copied for nothing"
    buffer[:] = bytes(len(buffer))
    assert own.parts == [DATA]


# --- what is read once from start to end ---------------------------------------------------------


class OnlyRead:
    """A source with nothing but `read`, which gives seven bytes at a time."""

    name = "of my own"

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int) -> bytes:
        return self._file.read(min(size, 7))


class ReadAndSeek:
    """A file object that doesn't say whether it can be sought."""

    def __init__(self, data: bytes) -> None:
        file = io.BytesIO(data)
        self.read, self.seek, self.tell = file.read, file.seek, file.tell
        file.seek(5)


class NotSeekable(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def seek(self, *_: Any) -> int:
        raise io.UnsupportedOperation("seek")


def read_stream(source: Any, sizes: list[int], **options: Any) -> tuple[int | None, list[bytes]]:
    """Read with buffers of these sizes, the last one again and again; return what each got."""
    parts = []
    with open_stream(source, **options) as stream:
        while True:
            size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
            buffer = bytearray(size)
            count = stream.readinto(memoryview(buffer))
            parts.append(bytes(buffer[:count]))
            if count < size:
                break
        assert stream.readinto(memoryview(bytearray(3))) == 0
        return stream.size, parts


@settings(max_examples=examples(50))
@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6))
def test_a_stream_fills_every_buffer_but_the_last(sizes: list[int]) -> None:
    for source, size in (
        (DATA, 1000),
        (io.BytesIO(DATA), 1000),
        (ReadAndSeek(DATA), 1000),
        (OnlyRead(DATA), None),
        (NotSeekable(DATA), None),
    ):
        reported, parts = read_stream(source, [*sizes])
        assert reported == size
        assert b"".join(parts) == DATA
        assert all(len(part) == size for part, size in zip(parts[:-1], sizes, strict=False))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of POSIX")
def test_pipes_and_devices_are_read_by_their_paths(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    for where in (path, str(path), path.as_uri()):
        thread = threading.Thread(target=path.write_bytes, args=(DATA,), daemon=True)
        thread.start()
        assert read_stream(where, [300]) == (
            None,
            [DATA[:300], DATA[300:600], DATA[600:900], DATA[900:]],
        )
        thread.join(60)
        assert not thread.is_alive()
    assert read_stream("/dev/null", [10]) == (None, [b""])
    before = open_files().count("/dev/zero")
    with open_stream("/dev/zero") as stream:
        assert stream.name == "/dev/zero"
        assert stream.readinto(memoryview(bytearray(5))) == 5
        assert open_files().count("/dev/zero") == before + 1
    assert open_files().count("/dev/zero") == before


def test_a_pipe_without_bytes_for_now_is_an_error_and_not_its_end() -> None:
    class Slow:
        def read(self, size: int) -> None:
            return None

    slow: Any = Slow()
    with open_stream(slow) as stream, pytest.raises(BlockingIOError):
        stream.readinto(memoryview(bytearray(5)))


def test_the_callers_pipe_stays_open() -> None:
    pipe = NotSeekable(DATA)
    with open_stream(pipe) as stream:
        assert stream.readinto(memoryview(bytearray(5))) == 5
    assert not pipe.closed


def test_what_is_no_source_is_no_stream_either(tmp_path: Path) -> None:
    for wrong in (5, None, object()):
        bad: Any = wrong
        with pytest.raises(TypeError), open_stream(bad):
            pass
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises((FileNotFoundError, IsADirectoryError)), open_stream(path):
            pass


def test_a_stream_from_a_store_asks_for_every_byte_once_and_for_much_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[tuple[int, int]] = []

    def fetch(start: int, end: int) -> bytes:
        requests.append((start, end))
        return DATA[start:end]

    source = RangeSource(fetch, len(DATA), "store")
    monkeypatch.setattr(source, "least_read", 300)
    stream, out = SourceStream(source), bytearray()
    for size in (8, 100, 7, 400, 1, 484, 50):
        part = bytearray(size)
        count = stream.readinto(memoryview(part))
        out += part[:count]
    assert out == DATA
    assert [start for start, _ in requests] == [0, *(end for _, end in requests[:-1])]
    assert len(requests) <= 4


def test_a_stream_whose_source_shrinks_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with open_stream(path) as stream:
        assert stream.readinto(memoryview(bytearray(100))) == 100
        os.truncate(path, 150)
        with pytest.raises(TruncationError, match="ended at byte"):
            stream.readinto(memoryview(bytearray(100)))


# --- places --------------------------------------------------------------------------------------

PLACES = ["local", "fsspec", "pyarrow"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, memory_url: str) -> Place:
    """Return the place of a missing file in each kind of file system."""
    if request.param == "local":
        return Place(None, str(tmp_path / "file"))
    memory, folder = fsspec.core.url_to_fs(memory_url)
    if request.param == "fsspec":
        return Place(memory, f"{folder}/file")
    return Place(pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(memory)), f"{folder}/file")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors in /proc")
@each_case("unnamed", [True, False])
def test_a_sink_that_nothing_closes_leaves_no_file_and_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    before = os.listdir("/proc/self/fd")
    opened = open_sink_at(Place(None, str(tmp_path / "file")))
    opened.__enter__().append(b"part")
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    del opened
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert not list(tmp_path.iterdir())


def write_at(place: Place, data: bytes) -> None:
    with open_sink_at(place) as sink:
        sink.append(data)


def content(place: Place) -> bytes:
    with open_source_at(place) as source:
        return source.read_at(0, source.size)


def test_paths_and_urls_have_places(tmp_path: Path, memory_url: str) -> None:
    path = str(tmp_path / "a b%20.parquet")
    for where in (path, Path(path), Path(path).as_uri()):
        assert place_of(where) == Place(None, path)
    for where in ("a", Path("a")):
        assert place_of(where) == Place(None, "a")
    found = place_of(f"{memory_url}/x")
    assert found is not None
    assert (found.filesystem.protocol, found.name) == ("memory", "x")
    assert place_of(path, pyarrow.fs.LocalFileSystem()) == Place(None, path)
    below = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    assert place_of("x", below) == Place(None, str(tmp_path / "x"))


def test_what_lies_in_memory_or_is_open_has_no_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        for where in (b"PAR1", bytearray(), memoryview(b""), io.BytesIO(), file):
            assert place_of(where) is None


def test_with_a_file_system_only_a_path_has_a_place() -> None:
    with pytest.raises(TypeError):
        place_of(io.BytesIO(), pyarrow.fs.LocalFileSystem())
    with pytest.raises(TypeError):
        place_of("x", object())


def test_a_source_knows_its_place_and_bytes_have_none(tmp_path: Path, memory_url: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with open_source(path) as source:
        assert source.place == Place(None, str(path))
    with fsspec.open(f"{memory_url}/x", "wb") as file:
        file.write(DATA)
    with open_source(f"{memory_url}/x") as source:
        assert source.place is not None
        assert content(source.place) == DATA
    with open_source(DATA) as source:
        assert source.place is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a", "b"), ("/a", "/b"), ("x/a", "x/b"), ("/x y/z/a", "/x y/z/b"), ("bucket/a", "bucket/b")],
)
def test_a_place_beside_another_is_in_the_same_folder(path: str, expected: str) -> None:
    filesystem = object()
    assert Place(None, path).beside("b") == Place(None, expected)
    assert Place(filesystem, path).beside("b") == Place(filesystem, expected)
    assert Place(None, path).name == "a"


def test_a_place_is_written_read_and_removed(place: Place) -> None:
    with pytest.raises(FileNotFoundError), open_source_at(place):
        pass
    for data in (b"", DATA, b"new"):
        write_at(place, data)
        assert content(place) == data
    write_at(place.beside("other"), b"o")
    place.remove()
    place.remove()  # there is none
    with pytest.raises(FileNotFoundError), open_source_at(place):
        pass
    assert content(place.beside("other")) == b"o"


def test_what_fails_leaves_the_place_as_it_was(place: Place) -> None:
    write_at(place, b"old")

    def refuse() -> None:
        assert content(place) == b"old"
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError), open_sink_at(place) as sink:
        sink.append(b"new")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), open_sink_at(place, check=refuse) as sink:
        sink.append(b"new")
    assert content(place) == b"old"
    place.remove()
    with contextlib.suppress(ZeroDivisionError), open_sink_at(place):
        raise ZeroDivisionError
    with pytest.raises(FileNotFoundError), open_source_at(place):
        pass


def test_the_last_look_comes_after_everything_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace: list[str] = []
    for name in ("write", "fsync", "unlink", "replace"):
        real = getattr(os, name)

        def noting(*arguments: Any, _real: Any = real, _name: str = name) -> Any:
            trace.append(_name)
            return _real(*arguments)

        monkeypatch.setattr(os, name, noting)
    with open_sink_at(
        Place(None, str(tmp_path / "file")), check=lambda: trace.append("look")
    ) as sink:
        sink.append(DATA)
    *_, at = [index for index, name in enumerate(trace) if name == "look"]
    assert trace[at + 1] == "replace"
    assert "fsync" in trace[:at]
    assert "write" not in trace[at:]


def test_a_stamp_distinguishes_a_file_from_whatever_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    place = Place(None, str(path))
    assert place.stamp() is None
    assert place.beside("n" * 300).stamp() is None
    path.write_bytes(b"same")
    stamps = {place.stamp()}
    assert place.stamp() in stamps
    with open_source(path):  # as long as it is open, its number isn't given to another
        write_at(place, b"same")
        stamps.add(place.stamp())
    path.write_bytes(b"other")
    stamps.add(place.stamp())
    os.utime(path, ns=(1, 1))
    stamps.add(place.stamp())
    assert len(stamps) == 4


def test_a_store_distinguishes_an_object_from_a_newer_one(memory_url: str) -> None:
    place = Place(*fsspec.core.url_to_fs(f"{memory_url}/x"))
    assert place.stamp() is None
    write_at(place, DATA)
    stamp = place.stamp()
    assert stamp is not None
    assert stamp == place.stamp()
    write_at(place, DATA + b"more")
    assert place.stamp() != stamp
    with open_source_at(place) as source:
        place.check_unchanged(source.stamp)
        write_at(place, b"other")
        with pytest.raises(OSError, match="file changed while it was being processed"):
            place.check_unchanged(source.stamp)


@pytest.mark.parametrize("change", ["replaced", "written", "removed", "cut"])
def test_a_file_that_changed_is_not_still_the_one_that_was_opened(
    change: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    place = Place(None, str(path))
    with open_source_at(place) as source:
        place.check_unchanged(source.stamp)
        if change == "replaced":
            write_at(place, DATA)
        elif change == "written":
            path.write_bytes(DATA)
            os.utime(path, ns=(1, 1))  # a clock may be coarser than this test is quick
        elif change == "removed":
            place.remove()
        else:
            os.truncate(path, 10)
        with pytest.raises(OSError, match="file changed while it was being processed"):
            place.check_unchanged(source.stamp)


@pytest.mark.parametrize("name", ["file", "elsewhere/link"])
def test_of_two_replacements_of_a_file_the_later_one_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(None, str(tmp_path / "file"))
    write_at(place, DATA)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link").symlink_to(place.path)
    stamp, publish, others = place.stamp(), publication.publish, list[Future[None]]()

    def replace(path: str, data: bytes) -> None:
        with open_replacement(Place(None, path), stamp) as sink:
            sink.append(data)

    def publish_late(*args: Any) -> None:
        if not others:
            others.append(pool.submit(replace, str(tmp_path / name), b"later"))
            wait(others, 0.2)
        publish(*args)

    monkeypatch.setattr(publication, "publish", publish_late)
    with ThreadPoolExecutor(1) as pool:
        replace(place.path, b"first")
        with pytest.raises(OSError, match="file changed while it was being processed"):
            others[0].result()
    assert Path(place.path).read_bytes() == b"first"


def test_a_file_is_replaced_in_a_folder_that_may_be_written_but_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, open_file = Place(None, str(tmp_path / "file")), os.open
    write_at(place, DATA)

    def open_others(path: str, flags: int, *rest: Any, **more: Any) -> int:
        if (path, flags & os.O_ACCMODE) == (str(tmp_path), os.O_RDONLY):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return open_file(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", open_others)
    with open_replacement(place, place.stamp()) as sink:
        sink.append(b"new")
    assert Path(place.path).read_bytes() == b"new"


def test_a_lock_keeps_others_out_of_the_folder_until_it_is_let_go(tmp_path: Path) -> None:
    place, entered = Place(None, str(tmp_path / "file")), threading.Event()

    def enter() -> None:
        with place.beside("other").lock():
            entered.set()

    for error in (None, ZeroDivisionError):
        entered.clear()
        thread = threading.Thread(target=enter)
        with contextlib.suppress(ZeroDivisionError), place.lock():
            thread.start()
            assert not entered.wait(0.1)
            with Place(None, str(tmp_path.parent / "file")).lock():
                pass  # another folder
            if error:
                raise error
        thread.join()
        assert entered.is_set()
    assert list(tmp_path.iterdir()) == []  # it takes no file


def test_a_lock_is_not_kept_by_a_process_that_was_forked_meanwhile(tmp_path: Path) -> None:
    place = Place(None, str(tmp_path / "file"))
    with place.lock():
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
    try:
        fd = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_in_a_store_a_lock_keeps_nobody_out(memory_url: str) -> None:
    place = Place(*fsspec.core.url_to_fs(f"{memory_url}/x"))
    with place.lock(), place.lock():
        pass


def test_a_pipe_is_no_source_and_nobody_waits_for_its_other_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"), open_source(path):
        pass


# --- ranges copied -------------------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(
    start=st.integers(0, len(DATA)),
    length=st.integers(0, len(DATA)),
    kernel=st.sampled_from(["copies", "copies little", "refuses", "gives up", "has no such call"]),
    sink_kind=st.sampled_from(["file", "object"]),
    source_kind=st.sampled_from(["file", "memory", "object"]),
)
def test_a_range_is_copied_whoever_does_it(
    start: int, length: int, kernel: str, sink_kind: str, source_kind: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("ranges")
    path, end = folder / "file", min(start + length, len(DATA))
    path.write_bytes(DATA)
    what: Any = {"file": path, "memory": DATA, "object": io.BytesIO(DATA)}[source_kind]
    out = io.BytesIO()
    destination: Any = folder / "out" if sink_kind == "file" else out
    real, calls = getattr(os, "copy_file_range", None), 0

    def copy(source: int, sink: int, count: int, offset: int) -> int:
        nonlocal calls
        calls += 1
        if kernel == "refuses" or real is None:
            raise OSError(errno.EXDEV, "not between these")
        if kernel == "gives up" and calls > 1:
            raise OSError(errno.EIO, "no more")
        few = kernel in ("copies little", "gives up")
        return int(real(source, sink, min(count, 7) if few else count, offset))

    with pytest.MonkeyPatch.context() as patch:
        if kernel == "has no such call":
            patch.delattr(os, "copy_file_range", raising=False)
        else:
            patch.setattr(os, "copy_file_range", copy, raising=False)
        with open_source(what) as source, open_sink(destination, overwrite=True) as sink:
            sink.append(b"before")
            copy_range(source, sink, start, end)
            sink.append(b"after")
    written = (folder / "out").read_bytes() if sink_kind == "file" else out.getvalue()
    assert written == b"before" + DATA[start:end] + b"after"


def test_a_range_longer_than_a_buffer_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_COPY_BUFFER", 64)
    out = io.BytesIO()
    with open_sink(out, overwrite=True) as sink:
        copy_range(MemorySource(DATA), sink, 3, 990)
    assert out.getvalue() == DATA[3:990]


def test_a_range_of_a_file_that_shrinks_is_cut_short(tmp_path: Path) -> None:
    path, out = tmp_path / "file", tmp_path / "out"
    path.write_bytes(DATA)
    for size in (0, 400):
        with open_source(path) as source:
            os.truncate(path, size)
            with pytest.raises(TruncationError), open_sink(out, overwrite=False) as sink:
                copy_range(source, sink, 100, 900)
        assert not out.exists()
        path.write_bytes(DATA)


def test_a_disk_that_is_full_is_reported_whoever_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "file", tmp_path / "out"
    path.write_bytes(DATA)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    monkeypatch.setattr(os, "write", full)
    with (
        pytest.raises(OSError, match="No space left"),
        open_source(path) as source,
        open_sink(out, overwrite=False) as sink,
    ):
        copy_range(source, sink, 0, len(DATA))
    assert not out.exists()


# --- which file system -------------------------------------------------------------------------


@each_case(
    ("spelt", "path"),
    [
        ("/folder/x", "/folder/x"),
        ("folder/x", "folder/x"),
        ("./name:/x", "./name:/x"),
        ("a:b", "a:b"),
        ("C:/x", "C:/x"),
        ("/Volumes/catalog/schema/volume/x", "/Volumes/catalog/schema/volume/x"),
        ("file:/folder/x%20y", "/folder/x y"),
        ("FILE:/folder/x", "/folder/x"),
        ("file:///folder/x%20y", "/folder/x y"),
        ("local:///folder/x%20y", "/folder/x%20y"),
    ],
)
def test_local_paths_are_known_by_their_spelling(spelt: str, path: str) -> None:
    assert local_path(spelt) == path
    assert locate(spelt, None) == (None, path)


@each_case(
    "url",
    [
        "dbfs:/mnt/x", "DBFS:/mnt/x", "dbfs:///mnt/x", "hdfs:/x", "s3a:/bucket/x", "viewfs://x/y",
        "memory:/x", "memory://x", "modcrypt::/x", "ags1::memory://x", "abfss:/x",
    ],
)  # fmt: skip
def test_urls_are_not_local_paths(url: str) -> None:
    assert local_path(url) is None
    assert local_path(Path(url)) == str(Path(url))  # a Path is never a URL


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("dbfs:/mnt/x", "use the path /dbfs/mnt/x"),
        ("dbfs:///mnt/x", "use the path /dbfs/mnt/x"),
        ("file:folder/x", "a file URL needs an absolute path"),
        ("file:", "a file URL needs an absolute path"),
        ("viewfs:/x", r'viewfs URLs need an extra: pip install "modcrypt\[hdfs\]"'),
        ("hdfs://namenode:8020/x", r'hdfs URLs need an extra: pip install "modcrypt\[hdfs\]"'),
        ("maprfs:/x", "fsspec knows no such protocol; use another URL"),
        (
            "abfss://c@account.dfs.core.windows.net/x",
            r'URLs need an extra: pip install "modcrypt\[azure-storage\]"',
        ),
        (
            "wasbs://c@account.blob.core.windows.net/x",
            r'URLs need an extra: pip install "modcrypt\[azure-storage\]"',
        ),
        ("gs://bucket/x", r'gs://bucket/x: gs URLs need an extra: pip install "modcrypt\[gcs\]"'),
    ],
)
def test_urls_that_lead_nowhere_are_refused_and_make_no_folder(
    url: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stores, "find_spec", lambda name: None)  # hdfs-native
    with pytest.raises(ValueError, match=message):
        locate(url, None)
    with pytest.raises(ValueError, match=message), open_sink(url, overwrite=True):
        pass
    assert os.listdir(tmp_path) == []


def test_hadoops_older_name_of_a_container_is_that_of_the_data_lake() -> None:
    names = {
        "wasbs://c@account.blob.core.windows.net/a/b.x": "abfss://c@account.dfs.core.windows.net/a/b.x",
        "WASB://c@account.blob.core.chinacloudapi.cn/x": "abfs://c@account.dfs.core.chinacloudapi.cn/x",
        "abfss://c@account.dfs.core.windows.net/x": "abfss://c@account.dfs.core.windows.net/x",
        "wasbs://c@account.dfs.core.windows.net/x": "wasbs://c@account.dfs.core.windows.net/x",
    }
    assert {url: stores._as_data_lake_url(url) for url in names} == names


def test_a_url_with_one_slash_is_that_with_three() -> None:
    filesystem, path = locate("memory:/folder/x", None)
    assert (filesystem.protocol, path) == ("memory", "/folder/x")


def test_a_child_does_not_wait_for_the_threads_of_hadoops_client() -> None:
    """fsspec drops its file systems in a forked child."""
    pytest.importorskip("hdfs_native")
    code = (
        "import fsspec, os\n"
        "from modcrypt.io.stores import locate\n"
        "filesystem = fsspec.filesystem('hdfs', host='127.0.0.1', port=9)\n"
        "locate('/x', filesystem)\n"
        "del filesystem\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


@each_case(
    "url",
    [
        "s3://", "s3:///", "s3:/", "s3a://", "gs://", "abfs://", "hdfs://", "http://", "https://",
        "github://", "ftp://", "modcrypt://x", "modcrypt::s3://a/b", "file://", "local://",
    ],
)  # fmt: skip
def test_a_url_that_names_nothing_is_the_callers_mistake(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))  # no default file system
    with pytest.raises(ValueError, match=re.escape(url)) as caught:
        locate(url, None)
    assert type(caught.value) is ValueError  # which is no bug for the command line


def test_a_store_that_cannot_be_written_is_an_error_of_the_store() -> None:
    with (
        pytest.raises(OSError, match="does not support the operation"),
        add_url_to_errors(None, "http://a/b"),
    ):
        raise NotImplementedError


class Answer(Exception):  # noqa: N818  # stands for an answer of a server
    status = 503


@pytest.mark.parametrize(
    ("cause", "kind", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ConnectionRefusedError, "refused"),
        (Answer(), OSError, "the server answered 503"),
        (KeyError(), FileNotFoundError, "No such file"),
    ],
)
def test_a_store_that_cannot_be_reached_is_no_missing_file(
    cause: Exception, kind: type[OSError], words: str
) -> None:
    with pytest.raises(OSError, match=words) as caught, add_url_to_errors(None, "http://a/b"):
        raise FileNotFoundError("http://a/b") from cause  # as fsspec's HTTP file system
    assert type(caught.value) is kind
    assert caught.value.filename == "http://a/b"


@pytest.mark.parametrize("opener", [open_source, partial(open_sink, overwrite=True)])
def test_a_text_file_is_a_type_error(opener: Any) -> None:
    with pytest.raises(TypeError, match="binary file object, not StringIO"):
        opener(io.StringIO())


INSIDE_BY_TEXT = (
    ("s3://b/a/x", "s3://b/a", "x"), ("s3a://b/a/x/y/", "s3://b/a/", "x/y"),
    ("S3://b/a", "s3a://b/a/", ""), ("gcs://b/a/x", "gs://b/a", "x"),
    ("s3://b/ab", "s3://b/a", None), ("gs://b/a/x", "s3://b/a", None),
    ("s3://B/a/x", "s3://b/a", None), ("/a/x", "s3://b/a", None),
    ("s3://b//a/x", "s3://b/a", None), ("s3://b/%61/x", "s3://b/a", None),  # other objects
)  # fmt: skip


@each_case("case", INSIDE_BY_TEXT)
def test_urls_are_inside_a_folder_by_their_text(case: tuple[str, str, str | None]) -> None:
    assert find_inside(case[0], case[1]) == case[2]


@each_case("kind", ["local", "PyArrow", "fsspec"])
def test_a_file_of_unknown_status_is_not_missing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nothing is lost with keys or files that only seem to be missing."""
    local = fsspec.filesystem("file")
    wrapped = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(local))
    filesystem = {"local": None, "PyArrow": wrapped, "fsspec": local}[kind]
    place = Place(filesystem, str(tmp_path / "file"))
    assert not place.exists()
    (tmp_path / "file").write_bytes(DATA)
    assert place.exists()
    assert not place.below("inside").exists()
    if kind == "local":  # of key material beside a file with a long name
        assert not place.beside("n" * 300).exists()

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", fail)
        patch.setattr(type(local), "info", fail)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            place.exists()
