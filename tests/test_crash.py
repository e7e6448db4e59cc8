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
from modcrypt.ags1 import UNVERIFIED
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
from tests.support.ags1.streams import is_stream
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


def interrupt_at_once(_: int) -> None:
    raise KeyboardInterrupt


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
                progress=interrupt_at_once,
            )
    assert list_folder(folder) == []


# --- writing fails --------------------------------------------------------------------------------


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


def reader_with(footer_key: bytes, column_key: bytes) -> FileDecryptionProperties:
    return FileDecryptionProperties(footer_key=footer_key, column_keys={"b": column_key})


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


@each_case(
    ("reader", "error"),
    [
        (FileDecryptionProperties(), KeyNotFoundError),
        (FileDecryptionProperties(footer_key=FOOTER_KEY), KeyNotFoundError),
        (FileDecryptionProperties(column_keys={"b": COLUMN_KEY}), KeyNotFoundError),
        (FileDecryptionProperties(key_retriever={b"kf": FOOTER_KEY}.get), KeyNotFoundError),
        (reader_with(OTHER_KEY, COLUMN_KEY), TagMismatchError),
        (reader_with(FOOTER_KEY, OTHER_KEY), TagMismatchError),
        (reader_with(FOOTER_KEY + bytes(16), COLUMN_KEY), TagMismatchError),
    ],
)
def test_a_missing_or_wrong_key_leaves_nothing(
    reader: FileDecryptionProperties, error: type[Exception], encrypted_file: bytes, folder: Path
) -> None:
    with pytest.raises(error):
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
    path, append, sizes = folder / "file.parquet", FdSink.append, list[int]()
    shutil.copy(sources["encrypt"], path)

    def fail_late(self: FdSink, data: memoryview | bytes) -> None:
        if len(sizes) == 3:
            raise OSError(28, "No space left on device")
        sizes.append(len(data))
        append(self, data)

    monkeypatch.setattr(FdSink, "append", fail_late)
    with pytest.raises(OSError, match="No space"):
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


# --- AGS1 streams --------------------------------------------------------------------------------

AGS1_KILLED = """
import sys, time
from modcrypt.ags1 import Ags1Writer
from modcrypt.io.sinks import ObjectSink
append, count, stop = ObjectSink.append, 0, int(sys.argv[2])
def append_or_stall(self, data):
    global count
    if count == stop:
        print("writing", flush=True)
        time.sleep(600)
    append(self, data)
    count += 1
ObjectSink.append = append_or_stall
key = sys.stdin.buffer.read(16)
with Ags1Writer(open(sys.argv[1], "wb", buffering=0), key, threads=1) as writer:
    for size in (3 << 20, 5 << 20, 1 << 20, 100, (1 << 20) - 100):
        writer.write(bytes(size))
"""


@pytest.mark.parametrize("append", range(6))
def test_a_killed_ags1_writer_leaves_no_stream_in_a_file_object(append: int, folder: Path) -> None:
    """Each append ends in the middle of a block: at its border the file would pass for whole."""
    process = start_stalled(AGS1_KILLED, folder / "stream", append)
    assert end(process, signal.SIGKILL) == b""
    assert process.returncode == -signal.SIGKILL
    data = (folder / "stream").read_bytes()
    assert (len(data) > 1 << 20) == (append > 0)
    assert not is_stream(FOOTER_KEY, data)
    with pytest.raises((TruncationError, TagMismatchError)):
        ags1.decrypt(data, FOOTER_KEY, length=UNVERIFIED)
