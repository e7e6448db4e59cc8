"""Whatever goes wrong while a file is written, the destination is whole or not there."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from modcrypt import (
    FileDecryptionProperties,
    FileEncryptionProperties,
    ModcryptError,
    ags1,
    decrypt_parquet,
    encrypt_parquet,
)
from modcrypt.ags1 import UNVERIFIED, Ags1Writer
from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyNotFoundError,
    KeyRetrievalError,
    TagMismatchError,
    TruncationError,
)
from modcrypt.io.sinks import FdSink
from modcrypt.io.sources import FileSource
from tests.support import forging
from tests.support.ags1.streams import is_stream, read_plaintext
from tests.support.cases import each_case
from tests.support.folder_contents import list_folder
from tests.support.interrupts import interrupt
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.module_spans import list_modules
from tests.support.tables import read_with_pyarrow, write_plain

WRITER = FileEncryptionProperties(footer_key=FOOTER_KEY)
READER = FileDecryptionProperties(footer_key=FOOTER_KEY)
THREADS = pytest.mark.parametrize("threads", [1, 2])

Job = Callable[..., None]


def encrypt(source: Any, destination: Any, **options: Any) -> None:
    encrypt_parquet(source, destination, WRITER, **options)


def decrypt(source: Any, destination: Any, **options: Any) -> None:
    decrypt_parquet(source, destination, READER, **options)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a plaintext file of 12 MB, several writes long, and its encrypted twin."""
    folder = tmp_path_factory.mktemp("sources")
    numbers = np.random.default_rng(1).integers(0, 2**60, (3, 500_000))
    table = pa.table({name: pa.array(row) for name, row in zip("abc", numbers, strict=True)})
    plain = write_plain(
        folder / "plain.parquet",
        table,
        compression="none",
        use_dictionary=False,
        row_group_size=100_000,
    )
    encrypt(plain, folder / "encrypted.parquet")
    return {"encrypt": plain, "decrypt": folder / "encrypted.parquet"}


JOBS: dict[str, Job] = {"encrypt": encrypt, "decrypt": decrypt}
both_jobs = pytest.mark.parametrize("job", JOBS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the destination's folder, apart from everything else."""
    path = tmp_path / "destination"
    path.mkdir()
    return path


@contextlib.contextmanager
def failing_after(
    monkeypatch: pytest.MonkeyPatch, count: int, fail: Callable[[], object]
) -> Iterator[list[int]]:
    """Let `count` writes to a path succeed and the next one fail; return the sizes written."""
    written: list[int] = []
    append = FdSink.append

    def slow(self: FdSink, data: memoryview | bytes) -> None:
        if len(written) == count:
            fail()
        append(self, data)
        written.append(len(data))

    with monkeypatch.context() as patch:
        patch.setattr(FdSink, "append", slow)
        yield written


def raising(error: BaseException) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


# --- the process ends -----------------------------------------------------------------------------

KILLED = """
import sys, time
from modcrypt import FileDecryptionProperties, FileEncryptionProperties
from modcrypt import decrypt_parquet, encrypt_parquet
from modcrypt.io.sinks import FdSink
append, count = FdSink.append, 0
def stalling(self, data):
    global count
    append(self, data)
    count += 1
    if count == 2:
        print("writing", flush=True)
        time.sleep(600)
FdSink.append = stalling
job, source, destination, threads = sys.argv[1:]
key = sys.stdin.buffer.read(16)
if job == "encrypt":
    encrypt_parquet(source, destination, FileEncryptionProperties(footer_key=key),
                    threads=int(threads))
else:
    decrypt_parquet(source, destination, FileDecryptionProperties(footer_key=key),
                    threads=int(threads))
"""


def start_stalled(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a script in a process of its own that stands still in the middle of writing."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(FOOTER_KEY)
    process.stdin.close()
    assert process.stdout.readline() == b"writing\n"
    return process


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> bytes:
    interrupt(process, lambda: process.send_signal(number))
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        return process.stderr.read()


@both_jobs
@THREADS
def test_a_killed_process_leaves_no_destination(
    job: str, threads: int, sources: dict[str, Path], folder: Path
) -> None:
    destination = folder / "out.parquet"
    process = start_stalled(KILLED, job, sources[job], destination, threads)
    assert not destination.exists()
    end(process, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert list_folder(folder) == []
    JOBS[job](sources[job], destination)
    assert destination.stat().st_size > 10_000_000


@both_jobs
def test_a_killed_process_leaves_the_old_destination_as_it_was(
    job: str, sources: dict[str, Path], folder: Path
) -> None:
    destination = folder / "out.parquet"
    destination.write_bytes(b"old")
    end(start_stalled(KILLED, job, sources[job], destination, 1), signal.SIGKILL)
    assert destination.read_bytes() == b"old"


@both_jobs
@THREADS
def test_a_keyboard_interrupt_leaves_nothing(
    job: str, threads: int, sources: dict[str, Path], folder: Path
) -> None:
    """With one thread a real Ctrl-C; a writer thread that sleeps would delay it, not lose it."""
    if threads == 1:
        process = start_stalled(KILLED, job, sources[job], folder / "out.parquet", threads)
        assert b"KeyboardInterrupt" in end(process, signal.SIGINT)
        assert process.returncode == -signal.SIGINT
    else:
        with pytest.raises(KeyboardInterrupt):
            JOBS[job](
                sources[job],
                folder / "out.parquet",
                threads=threads,
                progress=lambda _: raising(KeyboardInterrupt())(),
            )
    assert list_folder(folder) == []


# --- writing fails --------------------------------------------------------------------------------


@both_jobs
@THREADS
@each_case("count", [0, 3])
@each_case("error", [OSError(28, "No space left on device"), MemoryError()], ids=repr)
def test_a_write_that_fails_gives_its_own_error_and_leaves_nothing(
    job: str,
    threads: int,
    count: int,
    error: Exception,
    sources: dict[str, Path],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        failing_after(monkeypatch, count, raising(error)) as written,
        pytest.raises(type(error)) as raised,
    ):
        JOBS[job](sources[job], folder / "out.parquet", threads=threads)
    assert raised.value is error
    assert len(written) == count
    assert list_folder(folder) == []
    assert "modcrypt-writer" not in [thread.name for thread in threading.enumerate()]


@both_jobs
@THREADS
def test_a_limit_of_the_operating_system_on_file_size_gives_oserror_and_leaves_nothing(
    job: str, threads: int, sources: dict[str, Path], folder: Path
) -> None:
    with limited_file_size(3 << 20), pytest.raises(OSError, match="File too large"):
        JOBS[job](sources[job], folder / "out.parquet", threads=threads)
    assert list_folder(folder) == []


@contextlib.contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 4 MB, where this process may make one."""
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root; the file size limit is tried instead")
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], check=False)
    if done.returncode:
        pytest.skip("mounting a small tmpfs is not allowed; the file size limit is tried instead")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@both_jobs
def test_a_full_disk_gives_oserror_and_leaves_nothing(
    job: str, sources: dict[str, Path], full_disk: Path
) -> None:
    with pytest.raises(OSError, match="No space left"):
        JOBS[job](sources[job], full_disk / "out.parquet")
    assert list_folder(full_disk) == []


@both_jobs
def test_a_failure_to_publish_leaves_nothing(
    job: str, sources: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, lambda *_: raising(OSError(5, "broken"))())
            with pytest.raises(OSError, match="broken"):
                JOBS[job](sources[job], folder / "out.parquet")
        assert list_folder(folder) == []


class Tearing(io.RawIOBase):
    """A file object that takes so many bytes and then breaks, or takes a few at a time."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.taken = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)[:70_001]
        if len(self.taken) + len(piece) > self.room:
            raise OSError(32, "Broken pipe")
        self.taken += piece
        return len(piece)


@both_jobs
def test_a_file_object_that_raises_gives_its_own_error(job: str, sources: dict[str, Path]) -> None:
    with pytest.raises(OSError, match="Broken pipe"):
        JOBS[job](sources[job], Tearing(room=2_000_000))


def test_a_file_object_that_takes_a_few_bytes_at_a_time_gets_them_all(
    sources: dict[str, Path],
) -> None:
    sink = Tearing(room=1 << 30)
    decrypt(sources["decrypt"], sink)
    assert bytes(sink.taken) == sources["encrypt"].read_bytes()


# --- reading fails --------------------------------------------------------------------------------


@both_jobs
@THREADS
@each_case("share", [0.1, 0.5, 0.99])
def test_a_source_cut_short_while_it_is_read_leaves_nothing(
    job: str, threads: int, share: float, sources: dict[str, Path], folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source.parquet"
    shutil.copy(sources[job], source)
    length = int(source.stat().st_size * share)
    with pytest.raises(TruncationError, match="ended at byte"):
        JOBS[job](
            source,
            folder / "out.parquet",
            threads=threads,
            progress=lambda _: os.truncate(source, length),
        )
    assert list_folder(folder) == []


@both_jobs
def test_a_source_whose_reads_fail_gives_its_own_error_and_leaves_nothing(
    job: str, sources: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_into, count = FileSource.read_into, 0

    def failing(self: FileSource, offset: int, view: memoryview) -> None:
        nonlocal count
        count += 1
        if count == 6:
            raise OSError(5, "Input/output error")
        read_into(self, offset, view)

    monkeypatch.setattr(FileSource, "read_into", failing)
    with pytest.raises(OSError, match="Input/output error"):
        JOBS[job](sources[job], folder / "out.parquet")
    assert list_folder(folder) == []


def test_a_flipped_byte_in_the_last_page_leaves_nothing(
    sources: dict[str, Path], folder: Path
) -> None:
    """By then twelve megabytes are written."""
    data = bytearray(sources["decrypt"].read_bytes())
    last = list_modules(bytes(data), READER)[-2]
    data[last.end - 1] ^= 1
    with pytest.raises(TagMismatchError) as raised:
        decrypt(bytes(data), folder / "out.parquet")
    assert raised.value.module == last.module
    assert list_folder(folder) == []


@both_jobs
def test_a_missing_source_leaves_nothing(job: str, folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        JOBS[job](folder / "absent.parquet", folder / "out.parquet")
    assert list_folder(folder) == []


# --- keys -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encrypted_file() -> bytes:
    source = forging.plain_file(pa.table({"a": [1, 2], "b": [3, 4]}))
    return forging.encrypt_bytes(
        source,
        FileEncryptionProperties(
            footer_key=FOOTER_KEY,
            footer_key_metadata=b"kf",
            column_keys={"b": COLUMN_KEY},
            column_key_metadata={"b": b"kb"},
        ),
    )


@each_case(
    ("raised", "error"),
    [
        (KeyError("secret"), KeyNotFoundError),
        (PermissionError("secret"), KeyAccessDeniedError),
        (ConnectionResetError("secret"), KeyRetrievalError),
        (RuntimeError("secret"), KeyRetrievalError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(3), SystemExit),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@each_case("metadata", [b"kf", b"kb"])
def test_a_key_retriever_that_fails_leaves_nothing_and_its_message_is_not_repeated(
    raised: BaseException,
    error: type[BaseException],
    metadata: bytes,
    encrypted_file: bytes,
    folder: Path,
) -> None:
    def retriever(asked: bytes) -> bytes:
        if asked == metadata:
            raise raised
        return FOOTER_KEY

    with pytest.raises(error) as caught:
        decrypt_parquet(
            encrypted_file,
            folder / "out.parquet",
            FileDecryptionProperties(key_retriever=retriever),
        )
    assert list_folder(folder) == []
    assert "secret" not in str(caught.value)
    if isinstance(caught.value, KeyNotFoundError):
        assert caught.value.column == (None if metadata == b"kf" else "b")


@pytest.mark.parametrize(
    "reader",
    [
        FileDecryptionProperties(),
        FileDecryptionProperties(footer_key=FOOTER_KEY),
        FileDecryptionProperties(column_keys={"b": COLUMN_KEY}),
        FileDecryptionProperties(key_retriever={b"kf": FOOTER_KEY}.get),
    ],
    ids=["none", "footer-only", "column-only", "retriever-without-column-key"],
)
def test_a_missing_key_leaves_nothing(
    reader: FileDecryptionProperties, encrypted_file: bytes, folder: Path
) -> None:
    with pytest.raises(KeyNotFoundError):
        decrypt_parquet(encrypted_file, folder / "out.parquet", reader)
    assert list_folder(folder) == []


@pytest.mark.parametrize(
    "reader",
    [
        FileDecryptionProperties(footer_key=OTHER_KEY, column_keys={"b": COLUMN_KEY}),
        FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"b": OTHER_KEY}),
        FileDecryptionProperties(footer_key=FOOTER_KEY + bytes(16), column_keys={"b": COLUMN_KEY}),
    ],
    ids=["footer", "column", "length"],
)
def test_a_wrong_key_leaves_nothing(
    reader: FileDecryptionProperties, encrypted_file: bytes, folder: Path
) -> None:
    with pytest.raises(TagMismatchError):
        decrypt_parquet(encrypted_file, folder / "out.parquet", reader)
    assert list_folder(folder) == []


# --- destinations ---------------------------------------------------------------------------------


def in_parallel(*calls: Callable[[], None]) -> list[BaseException | None]:
    """Run the calls at once; return what each raised."""
    outcomes: list[BaseException | None] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            calls[index]()
        except BaseException as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold two jobs before their last step until both have come so far."""
    barrier, fsync = threading.Barrier(2, timeout=60), os.fsync
    met: set[int] = set()

    def waiting(fd: int) -> None:
        fsync(fd)
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            barrier.wait()

    monkeypatch.setattr(os, "fsync", waiting)


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("overwrite", [True, False])
def test_two_writers_to_one_destination_leave_one_whole_file(overwrite: bool, folder: Path) -> None:
    """Both find no destination when they start: it is the last step that must refuse."""
    tables = [pa.table({"a": list(range(start, start + 1000))}) for start in (0, 5000)]
    files = [forging.plain_file(table) for table in tables]
    destination = folder / "out.parquet"
    outcomes = in_parallel(
        *(lambda f=f: encrypt(f, destination, overwrite=overwrite) for f in files)
    )
    refused = [type(outcome) for outcome in outcomes if outcome]
    assert refused == ([] if overwrite else [FileExistsError])
    assert list_folder(folder) == ["out.parquet"]
    winners = [table for table, outcome in zip(tables, outcomes, strict=True) if not outcome]
    assert read_with_pyarrow(destination, FOOTER_KEY) in winners


@both_jobs
def test_an_existing_destination_is_kept_unless_it_may_be_overwritten(
    job: str, sources: dict[str, Path], folder: Path
) -> None:
    destination = folder / "out.parquet"
    destination.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        JOBS[job](sources[job], destination, overwrite=False)
    assert destination.read_bytes() == b"old"
    (folder / "dangling").symlink_to(folder / "nowhere")
    with pytest.raises(FileExistsError):
        JOBS[job](sources[job], folder / "dangling", overwrite=False)
    assert list_folder(folder) == ["dangling", "out.parquet"]


@both_jobs
def test_a_missing_folder_is_an_error(job: str, sources: dict[str, Path], folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        JOBS[job](sources[job], folder / "absent" / "out.parquet")
    assert list_folder(folder) == []


@both_jobs
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_folder_is_no_destination(
    job: str, overwrite: bool, sources: dict[str, Path], folder: Path
) -> None:
    with pytest.raises((IsADirectoryError, FileExistsError)):
        JOBS[job](sources[job], folder, overwrite=overwrite)
    assert list_folder(folder) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_an_error(sources: dict[str, Path], folder: Path) -> None:
    folder.chmod(0o500)
    with pytest.raises(PermissionError):
        encrypt(sources["encrypt"], folder / "out.parquet")


def test_source_and_destination_may_be_one_path(sources: dict[str, Path], folder: Path) -> None:
    path = folder / "file.parquet"
    shutil.copy(sources["encrypt"], path)
    encrypt(path, path)
    assert path.read_bytes()[:4] == b"PARE"
    decrypt(path, path)
    assert path.read_bytes() == sources["encrypt"].read_bytes()
    with pytest.raises(FileExistsError):
        encrypt(path, path, overwrite=False)
    assert path.read_bytes() == sources["encrypt"].read_bytes()


def test_a_failure_keeps_the_one_path_that_is_source_and_destination(
    sources: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "file.parquet"
    shutil.copy(sources["encrypt"], path)
    error = OSError(28, "No space left on device")
    with failing_after(monkeypatch, 3, raising(error)), pytest.raises(OSError, match="No space"):
        encrypt(path, path)
    assert path.read_bytes() == sources["encrypt"].read_bytes()
    assert list_folder(folder) == ["file.parquet"]


def test_one_file_object_cannot_be_source_and_destination() -> None:
    """It would be overwritten while it is read."""
    file = io.BytesIO(forging.plain_file(pa.table({"a": [1, 2, 3]})))
    before = file.getvalue()
    with pytest.raises((ValueError, ModcryptError)):
        encrypt(file, file)
    assert file.getvalue() == before


def test_a_destination_behind_a_link_is_replaced_and_the_link_stays(
    sources: dict[str, Path], folder: Path
) -> None:
    (folder / "real.parquet").write_bytes(b"old")
    (folder / "link.parquet").symlink_to("real.parquet")
    decrypt(sources["decrypt"], folder / "link.parquet")
    assert (folder / "link.parquet").is_symlink()
    assert (folder / "real.parquet").read_bytes() == sources["encrypt"].read_bytes()


# --- AGS1 streams --------------------------------------------------------------------------------

AGS1_KILLED = """
import sys, time
from modcrypt.ags1 import Ags1Writer
from modcrypt.io.sinks import FdSink, ObjectSink
count, stop = 0, int(sys.argv[3])
def add_stall(append):
    def append_or_stall(self, data):
        global count
        if count == stop:
            print("writing", flush=True)
            time.sleep(600)
        append(self, data)
        count += 1
    return append_or_stall
FdSink.append, ObjectSink.append = add_stall(FdSink.append), add_stall(ObjectSink.append)
kind, destination = sys.argv[1:3]
key = sys.stdin.buffer.read(16)
sink = open(destination, "wb", buffering=0) if kind == "object" else destination
with Ags1Writer(sink, key, threads=int(sys.argv[4])) as writer:
    for size in (3 << 20, 5 << 20, 1 << 20, 100, (1 << 20) - 100):
        writer.write(bytes(size))
"""


def kill_ags1(kind: str, destination: Path, append: int, threads: int) -> None:
    """Kill a writer with -9 when it is about to hand over so many pieces and one more."""
    process = start_stalled(AGS1_KILLED, kind, destination, append, threads)
    assert end(process, signal.SIGKILL) == b""
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("append", range(6))
def test_a_killed_ags1_writer_leaves_no_stream_in_a_file_object(append: int, folder: Path) -> None:
    """Each append ends in the middle of a block: at its border the file would pass for whole."""
    kill_ags1("object", folder / "stream", append, 1)
    data = (folder / "stream").read_bytes()
    assert (len(data) > 1 << 20) == (append > 0)
    assert not is_stream(FOOTER_KEY, data)
    with pytest.raises((TruncationError, TagMismatchError)):
        ags1.decrypt(data, FOOTER_KEY, length=UNVERIFIED)


@THREADS
@pytest.mark.parametrize("append", [0, 2, 4])
def test_a_killed_ags1_writer_leaves_no_destination(
    threads: int, append: int, folder: Path
) -> None:
    (folder / "old").write_bytes(b"old")
    kill_ags1("path", folder / "old", append, threads)
    assert (folder / "old").read_bytes() == b"old"
    assert list_folder(folder) == ["old"]


def write_ags1(destination: Any, threads: int | None = None) -> None:
    with Ags1Writer(destination, FOOTER_KEY, threads=threads) as writer:
        for _ in range(12):
            writer.write(bytes(1 << 20))


@pytest.mark.parametrize("kind", ["path", "object"])
@THREADS
def test_a_full_disk_ends_an_ags1_stream(kind: str, threads: int, full_disk: Path) -> None:
    path = full_disk / "stream"
    if kind == "path":
        with pytest.raises(OSError, match="No space left"):
            write_ags1(path, threads)
        assert list_folder(full_disk) == []
        return
    with path.open("wb", buffering=0) as file:
        with pytest.raises(OSError, match="No space left"):
            write_ags1(file, threads)
        assert not file.closed
    assert path.stat().st_size > 2 << 20
    assert not is_stream(FOOTER_KEY, path.read_bytes())


@THREADS
def test_a_limit_on_file_size_ends_an_ags1_stream(threads: int, folder: Path) -> None:
    with limited_file_size(3 << 20), pytest.raises(OSError, match="File too large"):
        write_ags1(folder / "stream", threads)
    assert list_folder(folder) == []


@pytest.mark.parametrize("count", [0, 3])
@THREADS
def test_an_append_that_fails_ends_an_ags1_stream(
    count: int, threads: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(28, "No space left on device")
    with (
        failing_after(monkeypatch, count, raising(error)),
        pytest.raises(OSError, match="No space left") as raised,
    ):
        write_ags1(folder / "stream", threads)
    assert raised.value is error
    assert list_folder(folder) == []
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("modcrypt-writer", "modcrypt-ags1"))]


def test_two_ags1_writers_to_one_destination_leave_one_whole_stream(folder: Path) -> None:
    """The one that closes last; neither sees the other's bytes."""
    writers = [Ags1Writer(folder / "stream", FOOTER_KEY, block_length=7) for _ in range(2)]
    for n in range(50):
        for number, writer in enumerate(writers):
            writer.write(bytes((number,)) * n)
    for number, writer in enumerate(writers):
        writer.close()
        data = (folder / "stream").read_bytes()
        assert read_plaintext(FOOTER_KEY, data) == bytes((number,)) * 1225
    assert list_folder(folder) == ["stream"]


def test_of_two_ags1_writers_that_may_not_overwrite_one_wins(folder: Path) -> None:
    writers = [Ags1Writer(folder / "stream", FOOTER_KEY, overwrite=False) for _ in range(2)]
    for number, writer in enumerate(writers):
        writer.write(bytes((number,)))
    writers[1].close()
    with pytest.raises(FileExistsError):
        writers[0].close()
    assert read_plaintext(FOOTER_KEY, (folder / "stream").read_bytes()) == b"\1"
    assert list_folder(folder) == ["stream"]
    with pytest.raises(ValueError, match="complete"):
        _ = writers[0].encrypted_length
