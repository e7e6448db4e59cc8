"""Whole files and pipes to and from AGS1, and what can be said of a stream without its key."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.fs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modcrypt import ModcryptError, decrypt_ags1, encrypt_ags1
from modcrypt.ags1 import UNVERIFIED, Ags1Summary, StandardKeyMetadata, files, inspect_ags1, writer
from modcrypt.errors import FormatError, TagMismatchError, TruncationError
from tests.support.ags1.sources import KINDS, Store, source_of
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
from tests.support.keys import FOOTER_KEY

FIFO = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of POSIX")


def encrypt(source: Any, destination: Any, key: Any = FOOTER_KEY, **options: Any) -> int:
    return encrypt_ags1(source, destination, key, **({"aad_prefix": PREFIX} | options))


def decrypt(source: Any, destination: Any, key: Any = FOOTER_KEY, **options: Any) -> int:
    given: dict[str, Any] = {"aad_prefix": PREFIX, "length": UNVERIFIED}
    return decrypt_ags1(source, destination, key, **(given | options))


def decrypt_stream(source: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    assert decrypt(source, out, **options) == len(out.getvalue())
    return out.getvalue()


@pytest.fixture
def small_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files of a few bytes read and written in several lots."""
    monkeypatch.setattr(files, "_READ_BYTES", 100)
    monkeypatch.setattr(files, "_LOT_BYTES", 100)
    monkeypatch.setattr(writer, "_LOT_BYTES", 100)


# --- every kind of source and destination ---------------------------------------------------------

SIZES = [0, 1, 6, 7, 8, 13, 14, 15, 98, 99, 100, 101, 700]


@pytest.mark.usefixtures("small_lots")
@each_case("kind", [kind for kind in KINDS if kind != "store"])
@each_case("size", SIZES)
@each_case("block_length", [1, 7, 1000])
def test_every_kind_of_source_is_encrypted_and_decrypted(
    kind: str, size: int, block_length: int
) -> None:
    out = io.BytesIO()
    with source_of(kind, PLAIN[:size]) as named:
        length = encrypt(**named, destination=out, block_length=block_length)
    stream = out.getvalue()
    assert read_plaintext(FOOTER_KEY, stream, PREFIX) == PLAIN[:size]
    assert length == len(stream) == 8 + size + 28 * max(1, -(-size // block_length))
    with source_of(kind, encrypt_stream(FOOTER_KEY, PLAIN[:size], block_length, PREFIX)) as named:
        assert decrypt_stream(named["source"], length=length) == PLAIN[:size]


@pytest.fixture
def memory_folder() -> Iterator[str]:
    folder = f"/modcrypt-{uuid.uuid4()}"
    filesystem = fsspec.filesystem("memory")
    filesystem.mkdir(folder)
    yield folder
    filesystem.rm(folder, recursive=True)


@pytest.mark.usefixtures("small_lots")
@pytest.mark.parametrize("threads", [1, 2, None])
def test_paths_urls_and_file_systems(
    threads: int | None, tmp_path: Path, memory_folder: str
) -> None:
    memory = fsspec.filesystem("memory")
    local = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())

    def stored_bytes(name: str) -> bytes:
        return bytes(memory.cat(f"{memory_folder}/{name}"))

    def on_disk(name: str) -> bytes:
        return (tmp_path / name).read_bytes()

    places: list[tuple[Callable[[str], Any], dict[str, Any], Callable[[str], bytes]]] = [
        (lambda name: tmp_path / name, {}, on_disk),
        (lambda name: str(tmp_path / name), {}, on_disk),
        (lambda name: (tmp_path / name).as_uri(), {}, on_disk),
        (lambda name: f"memory:/{memory_folder}/{name}", {}, stored_bytes),
        (lambda name: f"{memory_folder}/{name}", {"filesystem": memory}, stored_bytes),
        (lambda name: name, {"filesystem": local}, on_disk),
    ]
    memory.pipe(f"{memory_folder}/plain", PLAIN)
    (tmp_path / "plain").write_bytes(PLAIN)
    for where, options, read in places:
        length = encrypt(where("plain"), where("sealed"), threads=threads, **options)
        decrypt(where("sealed"), where("back"), length=length, threads=threads, **options)
        assert read_plaintext(FOOTER_KEY, read("sealed"), PREFIX) == PLAIN
        assert read("back") == PLAIN
        for path in (tmp_path / "sealed", tmp_path / "back"):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("threads", [1, None])
def test_megabytes_go_round(threads: int | None, tmp_path: Path) -> None:
    plain = os.urandom(9_500_000)
    (tmp_path / "plain").write_bytes(plain)
    length = encrypt(tmp_path / "plain", tmp_path / "sealed", threads=threads)
    stream = (tmp_path / "sealed").read_bytes()
    assert read_plaintext(FOOTER_KEY, stream, PREFIX) == plain
    assert stream[4:8] == (1 << 20).to_bytes(4, "little")
    metadata = StandardKeyMetadata(key=FOOTER_KEY, aad_prefix=PREFIX, file_length=length)
    size = decrypt_ags1(tmp_path / "sealed", tmp_path / "back", metadata, threads=threads)
    assert size == len(plain)
    assert (tmp_path / "back").read_bytes() == plain


def test_source_and_destination_may_be_one_path(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(PLAIN)
    length = encrypt(path, path)
    assert read_plaintext(FOOTER_KEY, path.read_bytes(), PREFIX) == PLAIN
    assert decrypt(path, path, length=length) == len(PLAIN)
    assert path.read_bytes() == PLAIN
    assert list_folder(tmp_path) == ["file"]
    for job in (encrypt, decrypt):
        with pytest.raises((FileExistsError, FormatError)):
            job(path, path, overwrite=False)
        assert path.read_bytes() == PLAIN


@pytest.mark.parametrize("job", [encrypt, decrypt])
def test_one_file_object_cannot_be_source_and_destination(
    job: Callable[..., int], tmp_path: Path
) -> None:
    """It would be overwritten while it is read."""
    content = encrypt_stream(FOOTER_KEY, PLAIN, 100, PREFIX)
    memory, path = io.BytesIO(content), tmp_path / "file"
    path.write_bytes(content)
    with path.open("r+b") as one, path.open("r+b") as two:
        for source, destination in ((memory, memory), (one, one), (one, two), (path, two)):
            with pytest.raises(ValueError, match="source itself"):
                job(source, destination)
    assert memory.getvalue() == path.read_bytes() == content


# --- pipes ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def feed_pipe(data: bytes, piece: int) -> Iterator[io.FileIO]:
    """Yield the reading end of a pipe that another thread fills bit by bit."""
    reading, writing = os.pipe()

    def feed() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "wb", 0) as file:
            for at in range(0, len(data), piece):
                file.write(data[at : at + piece])

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    with os.fdopen(reading, "rb", 0) as file:
        yield file
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.usefixtures("small_lots")
@each_case("size", SIZES)
@each_case("piece", [1, 10, 5000])
def test_pipes_are_encrypted_and_decrypted(size: int, piece: int) -> None:
    out = io.BytesIO()
    with feed_pipe(PLAIN[:size], piece) as pipe:
        length = encrypt(pipe, out, block_length=7)
    assert read_plaintext(FOOTER_KEY, out.getvalue(), PREFIX) == PLAIN[:size]
    for trusted in (length, UNVERIFIED):
        with feed_pipe(out.getvalue(), piece) as pipe:
            assert decrypt_stream(pipe, length=trusted) == PLAIN[:size]
    with feed_pipe(out.getvalue(), piece) as pipe:
        assert inspect_ags1(pipe).encrypted_length == length


@FIFO
def test_a_named_pipe_is_read_by_its_path(tmp_path: Path) -> None:
    path, stream = tmp_path / "fifo", encrypt_stream(FOOTER_KEY, PLAIN, 100, PREFIX)
    os.mkfifo(path)
    for content, job, judge in (
        (PLAIN, encrypt, lambda data: read_plaintext(FOOTER_KEY, data, PREFIX)),
        (stream, decrypt, bytes),
    ):
        thread = threading.Thread(target=path.write_bytes, args=(content,), daemon=True)
        thread.start()
        out = io.BytesIO()
        job(str(path), out)
        assert judge(out.getvalue()) == PLAIN
        thread.join(60)
        assert not thread.is_alive()


@FIFO
@pytest.mark.parametrize("mistake", [{"key": bytes(15)}, {"threads": 0}, {"aad_prefix": "text"}])
def test_a_callers_mistake_is_found_before_a_pipe_is_opened(
    mistake: dict[str, Any], tmp_path: Path
) -> None:
    """Opening one waits for whoever will write it."""
    os.mkfifo(tmp_path / "fifo")
    for job in (encrypt, decrypt):
        with pytest.raises((ValueError, TypeError)) as caught:
            job(tmp_path / "fifo", tmp_path / "out", **mistake)
        assert not isinstance(caught.value, ModcryptError)
    assert list_folder(tmp_path) == ["fifo"]


def test_a_device_is_read_to_its_end(tmp_path: Path) -> None:
    assert encrypt("/dev/null", tmp_path / "out") == 36
    assert read_plaintext(FOOTER_KEY, (tmp_path / "out").read_bytes(), PREFIX) == b""
    with pytest.raises(TruncationError):
        decrypt("/dev/null", tmp_path / "out")


class Bits:
    """A source that has nothing but `read`, and answers as its script says."""

    def __init__(self, *answers: Any) -> None:
        self._answers = [*answers]

    def read(self, size: int) -> Any:
        answer = self._answers.pop(0) if self._answers else b""
        if isinstance(answer, Exception):
            raise answer
        if answer is not None and len(answer) > size:
            self._answers.insert(0, answer[size:])
            return answer[:size]
        return answer


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut bytes into pieces of these sizes, and the rest."""
    ends = [0, *accumulate(sizes), len(data)]
    return [data[start:end] for start, end in pairwise(ends) if start < min(end, len(data))]


@given(st.lists(st.integers(1, 60), max_size=20), st.integers(0, 700))
def test_short_reads_are_read_on(sizes: list[int], size: int) -> None:
    out = io.BytesIO()
    encrypt(Bits(*pieces(PLAIN[:size], sizes)), out, block_length=13)
    stream = out.getvalue()
    assert read_plaintext(FOOTER_KEY, stream, PREFIX) == PLAIN[:size]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_LOT_BYTES", 1)
        assert decrypt_stream(Bits(*pieces(stream, sizes)), length=len(stream)) == PLAIN[:size]


@pytest.mark.parametrize("job", [encrypt, decrypt])
def test_a_source_that_has_nothing_yet_is_an_error(job: Callable[..., int], tmp_path: Path) -> None:
    """It is not its end, and waiting is not for us to do."""
    stream = encrypt_stream(FOOTER_KEY, PLAIN, 100, PREFIX)
    for answers in ([None], [stream[:8], None], [stream[:136], None]):
        with pytest.raises(BlockingIOError):
            job(Bits(*answers), tmp_path / "out")
        assert list_folder(tmp_path) == []
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with (
        os.fdopen(reading, "rb", 0) as pipe,
        os.fdopen(writing, "wb", 0),
        pytest.raises(BlockingIOError),
    ):
        job(pipe, tmp_path / "out")


@pytest.mark.parametrize("job", [encrypt, decrypt])
def test_a_source_whose_reads_fail_gives_its_own_error(
    job: Callable[..., int], tmp_path: Path
) -> None:
    stream = encrypt_stream(FOOTER_KEY, PLAIN, 100, PREFIX)
    error = OSError(errno.EIO, "broken")
    with pytest.raises(OSError, match="broken") as caught:
        job(Bits(stream[:8], stream[8:136], error), tmp_path / "out")
    assert caught.value is error
    assert list_folder(tmp_path) == []


# --- what goes wrong -----------------------------------------------------------------------------

STREAM = encrypt_stream(FOOTER_KEY, PLAIN[:700], 7, PREFIX)


def pipe_bytes(data: bytes) -> Any:
    return Bits(data)


@pytest.mark.usefixtures("small_lots")
@each_case("size", range(1, 80))
def test_a_pipe_that_is_cut_short_or_too_long_is_noticed_wherever_lots_end(
    size: int, tmp_path: Path
) -> None:
    for data in (STREAM[:-size], STREAM + bytes(size)):
        with pytest.raises(TruncationError, match=str(len(STREAM))):
            decrypt(pipe_bytes(data), tmp_path / "out", length=len(STREAM))
    assert list_folder(tmp_path) == []


def test_a_pipe_that_is_too_long_is_not_read_to_its_end() -> None:
    class Endless:
        given = 0

        def read(self, size: int) -> bytes:
            assert self.given < 20 << 20, "it goes on and on"
            start, self.given = self.given, self.given + size
            return (STREAM[start : start + size] + bytes(size))[:size]

    with pytest.raises((TruncationError, TagMismatchError)):
        decrypt(Endless(), io.BytesIO(), length=len(STREAM))
    with pytest.raises(TagMismatchError):
        decrypt(Endless(), io.BytesIO())


@pytest.mark.usefixtures("small_lots")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_progress_callback_counts_up_and_may_end_it(threads: int, tmp_path: Path) -> None:
    seen: dict[str, list[int]] = {"encrypt": [], "decrypt": []}
    encrypt(PLAIN, tmp_path / "sealed", progress=seen["encrypt"].append, threads=threads)
    decrypt(
        tmp_path / "sealed", tmp_path / "back", progress=seen["decrypt"].append, threads=threads
    )
    encrypt(b"", io.BytesIO(), progress=seen["encrypt"].append)
    for steps in seen.values():
        counts = steps[:-1] if steps[-1] == 0 else steps
        assert counts == sorted(set(counts))
        assert counts[-1] == len(PLAIN)
    (tmp_path / "back").unlink()

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    for job in (encrypt, decrypt):
        out = io.BytesIO()
        for destination in (tmp_path / "back", out):
            with pytest.raises(KeyboardInterrupt):
                job(tmp_path / "sealed", destination, progress=stop, threads=threads)
        assert not is_stream(FOOTER_KEY, out.getvalue(), PREFIX)
    assert list_folder(tmp_path) == ["sealed"]


MISTAKES: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "key": (ValueError, {"key": bytes(15)}),
    "prefix": (TypeError, {"aad_prefix": "text"}),
    "two prefixes": (ValueError, {"key": StandardKeyMetadata.generate(), "aad_prefix": b"x"}),
    "threads": (ValueError, {"threads": 0}),
}
ENCRYPTING = {
    "block length 0": (ValueError, {"block_length": 0}),
    "block length": (ValueError, {"block_length": (64 << 20) + 1}),
    "used": (
        ValueError,
        {"key": StandardKeyMetadata(key=FOOTER_KEY, aad_prefix=PREFIX, file_length=36)},
    ),
}
DECRYPTING = {
    "no length": (TypeError, {"length": None}),
    "negative": (ValueError, {"length": -1}),
    "a bool": (TypeError, {"length": True}),
    "text": (TypeError, {"length": "36"}),
    "two lengths": (
        ValueError,
        {
            "key": StandardKeyMetadata(key=FOOTER_KEY, aad_prefix=PREFIX, file_length=36),
            "length": 37,
        },
    ),
}


@each_case(
    ("job", "mistake"),
    [
        *((encrypt, case) for case in (MISTAKES | ENCRYPTING).values()),
        *((decrypt, case) for case in (MISTAKES | DECRYPTING).values()),
    ],
    ids=[
        *(f"encrypt {name}" for name in MISTAKES | ENCRYPTING),
        *(f"decrypt {name}" for name in MISTAKES | DECRYPTING),
    ],
)
def test_a_callers_mistake_is_found_before_any_io(
    job: Callable[..., int], mistake: tuple[type[Exception], dict[str, Any]], tmp_path: Path
) -> None:
    error, options = mistake
    with pytest.raises(error) as caught:
        job(tmp_path / "absent", tmp_path / "out", **options)
    assert not isinstance(caught.value, OSError | ModcryptError)
    assert list_folder(tmp_path) == []


@pytest.mark.parametrize(("threads", "through"), [(1, "path"), (2, "pipe")])
def test_memory_is_bounded_whatever_the_length(threads: int, through: str, tmp_path: Path) -> None:
    size = 64 << 20
    with (tmp_path / "plain").open("wb") as file:
        file.truncate(size)
    with (tmp_path / "plain").open("rb", 0) as plain, trace_peaks() as peaks:
        source = tmp_path / "plain" if through == "path" else Unseekable(plain)
        length = encrypt(source, tmp_path / "sealed", threads=threads)
    with (tmp_path / "sealed").open("rb", 0) as stream, trace_peaks() as more:
        source = tmp_path / "sealed" if through == "path" else Unseekable(stream)
        assert decrypt(source, tmp_path / "back", threads=threads, length=length) == size
    assert max(peaks) < 24 << 20  # two lots that are read, and what a writer may take
    assert max(more) < 16 << 20


class Unseekable:
    """A file that only lets itself be read."""

    def __init__(self, file: Any) -> None:
        self.read = file.read


@contextlib.contextmanager
def trace_peaks() -> Iterator[list[int]]:
    peaks: list[int] = []
    tracemalloc.start()
    try:
        yield peaks
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


# --- without a key -------------------------------------------------------------------------------


@each_case("size", SIZES)
@each_case("block_length", [1, 7, 100, 1 << 20])
def test_a_summary_adds_up_and_agrees_with_the_stream(size: int, block_length: int) -> None:
    stream = encrypt_stream(FOOTER_KEY, PLAIN[:size], block_length)
    for source in (stream, io.BytesIO(stream), pipe_bytes(stream)):
        summary = inspect_ags1(source)
        lengths = [len(frame) - 28 for frame in frames(stream)]
        assert summary == Ags1Summary(
            block_length=block_length,
            encrypted_length=len(stream),
            plaintext_length=size,
            blocks=len(lengths),
            last_block_length=lengths[-1],
        )
        assert 8 + summary.plaintext_length + summary.overhead == summary.encrypted_length


def test_inspecting_reads_the_header_alone(tmp_path: Path) -> None:
    store = Store(STREAM)
    assert inspect_ags1("any", filesystem=store).blocks == 100
    assert sum(end - start for start, end in store.requests) <= len(STREAM)
    path = tmp_path / "sparse"
    path.write_bytes(b"AGS1\0\0\x10\0")
    os.truncate(path, 8 + 1000 * ((1 << 20) + 28))
    assert inspect_ags1(path).plaintext_length == 1000 << 20


@given(st.binary(max_size=200))
def test_any_bytes_are_inspected_and_refused_alike_as_a_file_and_as_a_pipe(data: bytes) -> None:
    for prefix in (b"", b"AGS1", b"AGS1\x05\0\0\0"):
        outcomes = []
        for source in (prefix + data, pipe_bytes(prefix + data)):
            try:
                outcomes.append(str(inspect_ags1(source)))
            except ModcryptError as error:
                outcomes.append(type(error).__name__)
        assert outcomes[0] == outcomes[1]
        with pytest.raises(ModcryptError):
            decrypt(prefix + data, io.BytesIO())
