"""Files in an S3 server of our own, through pyarrow's file system and through fsspec's.

Two clients judge: boto3 looks at what is in the bucket, the server's log says what was asked for.
"""

from __future__ import annotations

import errno
import gc
import io
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.dirfs import DirFileSystem

import modcrypt as mc
from modcrypt.io.destinations import open_sink
from modcrypt.io.sources import open_source
from modcrypt.parquet.datasets.discovery import as_arrow
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY
from tests.support.object_store import SECRET, Bucket, ObjectStore
from tests.support.tables import small_table, write_plain

MIB = 1 << 20
DATA = bytes(i * 7 & 0xFF for i in range(1000))
ENCRYPTION = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
DECRYPTION = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)


@pytest.fixture
def bucket(store: ObjectStore) -> Bucket:
    """Return a new, empty bucket."""
    return Bucket()


FILE_SYSTEMS: dict[str, Callable[[ObjectStore], Any]] = {
    "pyarrow": lambda store: store.arrow(),
    "s3fs": lambda store: store.s3fs(default_block_size=5 * MIB),
    "pyarrow over s3fs": lambda store: pyarrow.fs.PyFileSystem(
        pyarrow.fs.FSSpecHandler(store.s3fs())
    ),
    "fsspec over pyarrow": lambda store: ArrowFSWrapper(store.arrow()),
}


WRAPPED = [pytest.param(name, marks=pytest.mark.slow) for name in FILE_SYSTEMS if " over " in name]


@pytest.fixture(scope="module", params=["pyarrow", "s3fs", *WRAPPED])
def filesystem(request: pytest.FixtureRequest, store: ObjectStore) -> Any:
    """Return each file system that reaches the server."""
    return FILE_SYSTEMS[request.param](store)


@pytest.fixture(scope="module", params=["pyarrow", "s3fs"])
def direct(request: pytest.FixtureRequest, store: ObjectStore) -> Any:
    """Return the two file systems that do not wrap each other."""
    return FILE_SYSTEMS[request.param](store)


# --- reading -------------------------------------------------------------------------------------


def test_a_source_gives_the_bytes_of_any_place(filesystem: Any, bucket: Bucket) -> None:
    path = bucket.put("folder/source", DATA)
    with open_source(path, filesystem=filesystem) as source:
        assert (source.size, source.name) == (1000, path)
        for start, size in ((0, 0), (0, 1), (0, 1000), (999, 1), (1000, 0), (400, 77)):
            assert source.read_at(start, size) == DATA[start : start + size]
            view = memoryview(bytearray(size + 2))
            source.read_into(start, view[1:-1])
            assert view.tobytes() == b"\0" + DATA[start : start + size] + b"\0"
        for start, size in ((1000, 1), (999, 2), (0, 1001), (5000, 1)):
            with pytest.raises(mc.errors.TruncationError, match="ended at byte"):
                source.read_at(start, size)


def test_what_a_store_refuses_or_lacks_is_a_file_error_with_the_url(
    direct: Any, bucket: Bucket, store: ObjectStore
) -> None:
    path = bucket.put("source", DATA)
    with pytest.raises(FileNotFoundError) as absent:
        mc.inspect_parquet(f"{path}no", filesystem=direct)
    with store.intercept(lambda *_: False), pytest.raises(OSError, match="s3://") as refused:
        mc.inspect_parquet(path, filesystem=direct)
    assert absent.value.filename == f"s3://{path}no"
    assert refused.value.filename == f"s3://{path}"
    assert refused.value.errno in (errno.EACCES, errno.EIO)


def test_a_store_that_cannot_be_reached_and_missing_credentials_are_file_errors(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    nobody = store.s3fs(key=None, secret=None)
    with pytest.raises(OSError, match=r"NoCredentialsError.*'s3://b/key'"):
        mc.inspect_parquet("b/key", filesystem=nobody)
    config = {"retries": {"max_attempts": 0}}
    nowhere = store.s3fs(client_kwargs={"endpoint_url": "http://127.0.0.1:1"}, config_kwargs=config)
    with pytest.raises(OSError, match=r"EndpointConnectionError.*'s3://b/key'"):
        mc.inspect_parquet("b/key", filesystem=nowhere)


def test_a_path_may_be_a_pathlike_and_must_be_a_path(filesystem: Any, bucket: Bucket) -> None:
    path = bucket.put("source", DATA)
    with open_source(Path(path), filesystem=filesystem) as source:
        assert source.read_at(3, 4) == DATA[3:7]
    with pytest.raises(FileNotFoundError), open_source(path + "no", filesystem=filesystem):
        pass


def test_a_read_is_one_request_for_just_its_bytes(
    direct: Any, bucket: Bucket, store: ObjectStore
) -> None:
    path = bucket.put("source", DATA)
    with store.log_requests() as log, open_source(path, filesystem=direct) as source:
        for start, size in ((0, 4), (990, 10), (500, 0), (100, 300), (100, 300)):
            source.read_at(start, size)
    assert [request.method for request in log] == ["HEAD", "GET", "GET", "GET", "GET"]
    ranges = [request.range for request in log[1:]]
    assert ranges == ["bytes=0-3", "bytes=990-999", "bytes=100-399", "bytes=100-399"]
    assert sum(request.answered for request in log) == 4 + 10 + 300 + 300


WRITTEN = {"PUT": 2, "POST": 2, "DELETE": 1}


@each_case(
    ("work", "requests"),
    [
        ("read_table", {"HEAD": 1, "GET": 2}),  # the end with the footer, and all chunks at once
        ("verify_parquet", {"HEAD": 1, "GET": 2}),
        ("inspect_parquet", {"HEAD": 1, "GET": 2}),
        ("encrypt_parquet", {"HEAD": 1, "GET": 2, **WRITTEN}),
        ("decrypt_parquet", {"HEAD": 1, "GET": 2, **WRITTEN}),
        ("write_table", WRITTEN),
    ],
)
def test_a_small_file_takes_few_requests(
    work: str, requests: dict[str, int], bucket: Bucket, store: ObjectStore
) -> None:
    table, key = pa.table({f"c{n}": list(range(100)) for n in range(5)}), bytes(range(16))
    plain, sealed = io.BytesIO(), io.BytesIO()
    pq.write_table(table, plain)
    mc.write_table(table, sealed, key)
    given = bucket.put("plain", plain.getvalue()), bucket.put("sealed", sealed.getvalue())
    arguments: dict[str, tuple[Any, ...]] = {
        "encrypt_parquet": (given[0], f"{given[0]}.new"),
        "decrypt_parquet": (given[1], f"{given[1]}.new"),
        "write_table": (table, f"{given[1]}.new"),
    }
    with store.log_requests() as log:
        getattr(mc, work)(*arguments.get(work, given[1:]), key, filesystem=store.arrow())
    assert Counter(request.method for request in log) == requests


def test_reads_of_several_threads_are_under_way_at_once(
    direct: Any, bucket: Bucket, store: ObjectStore
) -> None:
    """The server answers none before all four have asked."""
    path = bucket.put("source", DATA)
    all_asked = threading.Barrier(4)

    def wait(method: str, *_: str) -> bool:
        if method == "GET":
            all_asked.wait(timeout=30)
        return True

    with (
        open_source(path, filesystem=direct) as source,
        store.intercept(wait),
        ThreadPoolExecutor(4) as pool,
    ):
        found = list(pool.map(lambda n: source.read_at(n * 100, 100), range(4)))
    assert b"".join(found) == DATA[:400]


def test_threads_share_a_source_whatever_is_below(filesystem: Any, bucket: Bucket) -> None:
    path = bucket.put("source", DATA)
    with open_source(path, filesystem=filesystem) as source, ThreadPoolExecutor(8) as pool:
        starts = [n * 37 % 900 for n in range(100)]
        found = list(pool.map(lambda start: source.read_at(start, 100), starts))
    assert found == [DATA[start : start + 100] for start in starts]


def test_one_column_of_16_costs_its_chunk_and_the_footer(
    direct: Any, bucket: Bucket, store: ObjectStore, tmp_path: Path
) -> None:
    """At most 1.05 times their bytes: nothing reads ahead, neither we nor the file system."""
    numbers = np.random.default_rng(1).integers(0, 2**60, (16, 200_000))
    table = pa.table({f"c{c}": column for c, column in enumerate(numbers)})
    plain = write_plain(tmp_path / "plain", table, compression="none", use_dictionary=False)
    mc.encrypt_parquet(plain, tmp_path / "sealed", ENCRYPTION)
    sealed = (tmp_path / "sealed").read_bytes()
    chunk = pq.read_metadata(plain).row_group(0).column(5).total_compressed_size
    footer = int.from_bytes(sealed[-8:-4], "little")
    path = bucket.put("sealed", sealed)
    with (
        store.log_requests() as log,
        mc.open_parquet(path, DECRYPTION, filesystem=direct) as view,
    ):
        found = pq.read_table(view, columns=["c5"])
    assert found.column("c5").equals(table.column("c5"))
    assert {request.method for request in log} == {"HEAD", "GET"}
    assert chunk < sum(request.answered for request in log) <= 1.05 * (chunk + footer)


def test_an_encrypted_file_in_a_store_is_read_by_both(
    filesystem: Any, bucket: Bucket, store: ObjectStore, tmp_path: Path
) -> None:
    """One that PyArrow wrote there, and one that we wrote there, which PyArrow reads."""
    properties = pe.create_encryption_properties(footer_key=FOOTER_KEY)
    theirs = f"{bucket.name}/theirs"
    pq.write_table(
        small_table(), theirs, filesystem=store.arrow(), encryption_properties=properties
    )
    with mc.open_parquet(theirs, DECRYPTION, filesystem=filesystem) as view:
        assert pq.read_table(view).equals(small_table())
    mc.encrypt_parquet(write_plain(tmp_path / "plain"), tmp_path / "sealed", ENCRYPTION)
    ours = f"{bucket.name}/folder/ours"
    with open_sink(ours, overwrite=False, filesystem=filesystem) as sink:
        sink.append((tmp_path / "sealed").read_bytes())
    opening = pe.create_decryption_properties(footer_key=FOOTER_KEY)
    found = pq.read_table(ours, filesystem=store.arrow(), decryption_properties=opening)
    assert found.equals(small_table())


def test_a_url_finds_the_server_by_the_configuration_of_fsspec(
    bucket: Bucket, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", store.storage_options)
    plain = write_plain(tmp_path / "plain")
    for threads in (1, 2):
        url = f"s3://{bucket.name}/sealed-{threads}"
        mc.encrypt_parquet(plain, url, ENCRYPTION, threads=threads)
        mc.decrypt_parquet(url, f"s3://{bucket.name}/back-{threads}", DECRYPTION)
        assert bucket.get(f"sealed-{threads}")[:4] == b"PARE"
        assert bucket.get(f"back-{threads}") == plain.read_bytes()
    for cache in ("simplecache", "filecache"):
        url = f"{cache}::s3://{bucket.name}/sealed-1"
        mc.decrypt_parquet(url, tmp_path / "back", DECRYPTION)
        assert (tmp_path / "back").read_bytes() == plain.read_bytes()
    mc.encrypt_parquet(plain, f"simplecache::s3://{bucket.name}/cached", ENCRYPTION)
    assert bucket.keys() == ["back-1", "back-2", "cached", "sealed-1", "sealed-2"]


# fsspec's cache of blocks leaves the closing of its file to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file <_io.BufferedRandom:ResourceWarning")
def test_who_asks_for_a_cache_of_blocks_reads_through_it(
    bucket: Bucket, store: ObjectStore, tmp_path: Path
) -> None:
    path = bucket.put("source", DATA)
    filesystem = CachingFileSystem(fs=store.s3fs(), cache_storage=str(tmp_path))
    with store.log_requests() as log, open_source(path, filesystem=filesystem) as source:
        for _ in range(3):
            assert source.read_at(100, 10) == DATA[100:110]
    assert [request.method for request in log].count("GET") == 1
    del source, filesystem
    gc.collect()


def test_an_object_replaced_while_it_is_read_is_never_mixed_by_s3fs(
    bucket: Bucket, store: ObjectStore
) -> None:
    path = bucket.put("source", DATA)
    with open_source(path, filesystem=store.s3fs()) as source:
        assert source.read_at(0, 10) == DATA[:10]
        bucket.put("source", DATA[::-1])
        with pytest.raises(OSError, match="no longer exists") as caught:
            source.read_at(10, 10)
        assert caught.value.errno == errno.EBUSY


def test_an_encrypted_object_replaced_while_it_is_read_does_not_authenticate(
    bucket: Bucket, store: ObjectStore, tmp_path: Path
) -> None:
    """pyarrow asks for whatever is there now; the other file has the same layout."""
    plain = write_plain(tmp_path / "plain")
    for name in ("one", "two"):
        mc.encrypt_parquet(plain, tmp_path / name, ENCRYPTION)
    path = bucket.put("sealed", (tmp_path / "one").read_bytes())
    with mc.open_parquet(path, DECRYPTION, filesystem=store.arrow()) as view:
        bucket.put("sealed", (tmp_path / "two").read_bytes())
        with pytest.raises(mc.errors.TagMismatchError):
            view.read_at(4, 1000)


# --- writing -------------------------------------------------------------------------------------

SIZES = {"empty": 0, "small": 1, "several parts": 12}
"""What is written, in MiB: uploads have parts of 5 MiB (s3fs, as opened here) and 10 (pyarrow)."""


def make_content(size: int) -> bytes:
    """Return the bytes that `write` writes."""
    return b"".join(bytes([n]) * MIB for n in range(size))


def write(path: str, filesystem: Any, size: int, *, overwrite: bool = True) -> bytes:
    """Write `size` times a MiB in as many steps."""
    data = memoryview(make_content(size))
    with open_sink(path, overwrite=overwrite, filesystem=filesystem) as sink:
        for start in range(0, len(data), MIB):
            sink.append(data[start : start + MIB])
    return bytes(data)


@each_case("size", SIZES.values(), ids=list(SIZES))
def test_an_object_is_written_whole(filesystem: Any, bucket: Bucket, size: int) -> None:
    path = f"{bucket.name}/folder/new"
    assert write(path, filesystem, size, overwrite=False) == bucket.get("folder/new")
    assert write(path, filesystem, size + 1) == bucket.get("folder/new")
    assert bucket.keys() == ["folder/new"]
    assert bucket.uploads() == []


@each_case("size", SIZES.values(), ids=list(SIZES))
@each_case("before", [None, DATA])
def test_an_exception_leaves_what_was_there_and_nothing_else(
    filesystem: Any, bucket: Bucket, size: int, before: bytes | None
) -> None:
    if before is not None:
        bucket.put("object", before)

    def fail() -> None:
        path = f"{bucket.name}/object"
        with open_sink(path, overwrite=True, filesystem=filesystem) as sink:
            for _ in range(size):
                sink.append(bytes(MIB))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    gc.collect()  # a lost upload stream would complete itself now
    assert bucket.keys() == ([] if before is None else ["object"])
    assert before is None or bucket.get("object") == before
    assert bucket.uploads() == []


class RefusesOne:
    """Refuses the request number `number` after it was set up, and counts them."""

    def __init__(self, number: int) -> None:
        self.number, self.count = number, 0

    def __call__(self, *_: str) -> bool:
        self.count += 1
        return self.count != self.number


@pytest.mark.parametrize("size", [1, 12])
def test_whichever_request_is_refused_the_object_is_the_old_or_the_new_one(
    direct: Any, bucket: Bucket, store: ObjectStore, size: int
) -> None:
    path, refused, failures = f"{bucket.name}/object", RefusesOne(0), 0
    while refused.number <= refused.count:  # until one has got through without a refusal
        refused = RefusesOne(refused.number + 1)
        bucket.put("object", DATA)
        new = b""
        with store.intercept(refused):
            try:
                new = write(path, direct, size)
            except OSError:
                failures += 1
        found = bucket.get("object")
        assert found == new if new else found in (DATA, make_content(size))
        assert bucket.keys() == ["object"]
        # pyarrow has no way to abort the upload of a file that it failed to write.
        assert bucket.uploads() == [] or isinstance(direct, pyarrow.fs.FileSystem)
    is_put = size == 1 and not isinstance(direct, pyarrow.fs.FileSystem)
    assert failures == 1 if is_put else failures >= 3


@pytest.mark.parametrize("size", [1, 12])
@pytest.mark.parametrize(
    "refusal",
    [
        ("412 Precondition Failed", "PreconditionFailed"),  # MinIO does not name the condition
        ("409 Conflict", "ConditionalRequestConflict"),  # AWS, while the other is being written
    ],
)
def test_an_object_of_another_writer_is_not_replaced(
    bucket: Bucket, store: ObjectStore, refusal: tuple[str, str], size: int
) -> None:
    s3fs = FILE_SYSTEMS["s3fs"](store)

    def completes(method: str, _path: str, query: str) -> bool:
        return method == "PUT" if size == 1 else method == "POST" and "uploadId=" in query

    with (
        store.intercept(lambda *request: not completes(*request), refusal),
        pytest.raises(FileExistsError, match="exists") as taken,
        open_sink(f"{bucket.name}/object", overwrite=False, filesystem=s3fs) as sink,
    ):
        sink.append(make_content(size))
    assert taken.value.filename == f"{bucket.name}/object"
    assert (bucket.keys(), bucket.uploads()) == ([], [])


@pytest.mark.parametrize("response", [None, object()])
def test_an_error_of_a_client_without_an_answer_of_s3_stays_as_it_is(
    bucket: Bucket, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, response: object
) -> None:
    kind = pytest.importorskip("s3fs.core").S3File
    close = kind.close

    def fail(file: Any) -> None:
        if not file.path.startswith(bucket.name):  # left by another test, and collected now
            close(file)
            return
        cause = RuntimeError()
        cause.response = response  # type: ignore[attr-defined]  # as clients of HTTP do
        raise OSError(errno.EIO, "connection lost") from cause

    monkeypatch.setattr(kind, "close", fail)
    with (
        pytest.raises(OSError, match="connection lost") as lost,
        open_sink(f"{bucket.name}/object", overwrite=False, filesystem=store.s3fs()) as sink,
    ):
        sink.append(DATA)
    assert lost.value.errno == errno.EIO
    assert bucket.keys() == []


def test_an_abandoned_sink_publishes_nothing(direct: Any, bucket: Bucket) -> None:
    """Not even one that only the garbage collector finds, in whatever order it finalizes."""
    for size in (1, 12):
        opened = open_sink(f"{bucket.name}/new", overwrite=True, filesystem=direct)
        sink = opened.__enter__()
        for _ in range(size):
            sink.append(bytes(MIB))
        cycle: list[Any] = [opened, sink]
        cycle.append(cycle)
        del opened, sink, cycle
        gc.collect()
        assert bucket.keys() == []
        assert bucket.uploads() == []


def test_an_existing_object_is_replaced_only_on_request(filesystem: Any, bucket: Bucket) -> None:
    path = bucket.put("there", DATA)
    with (
        pytest.raises(FileExistsError, match="destination exists; pass overwrite=True") as caught,
        open_sink(path, overwrite=False, filesystem=filesystem),
    ):
        pytest.fail("opened all the same")
    assert (caught.value.errno, caught.value.filename) == (errno.EEXIST, path)
    assert bucket.get("there") == DATA
    write(path, filesystem, 1)
    assert bucket.keys() == ["there"]


@each_case("size", [1, 12])
def test_an_object_that_appears_meanwhile_is_not_replaced(
    filesystem: Any, bucket: Bucket, size: int
) -> None:
    path = f"{bucket.name}/new"

    def write_ours() -> None:
        with open_sink(path, overwrite=False, filesystem=filesystem) as sink:
            for _ in range(size):
                sink.append(bytes(MIB))
            bucket.put("new", DATA)

    with pytest.raises(FileExistsError, match="destination exists; pass overwrite=True") as caught:
        write_ours()
    assert (caught.value.errno, caught.value.filename) == (errno.EEXIST, path)
    assert bucket.get("new") == DATA
    assert bucket.keys() == ["new"]
    assert bucket.uploads() == []


def test_whether_an_object_exists_is_not_read_from_an_old_listing(
    bucket: Bucket, store: ObjectStore
) -> None:
    filesystem, path = store.s3fs(), bucket.put("gone", DATA)
    assert filesystem.ls(bucket.name) == [path]
    store.judge().delete_object(Bucket=bucket.name, Key="gone")
    write(path, filesystem, 1, overwrite=False)
    assert len(bucket.get("gone")) == MIB


def test_an_object_that_is_newer_than_a_listing_is_found(
    bucket: Bucket, store: ObjectStore, tmp_path: Path
) -> None:
    filesystem, table = store.s3fs(), small_table()
    mc.write_table(table, tmp_path / "sealed", ENCRYPTION)
    for name in ("one", "folder/two"):
        filesystem.ls(bucket.name)
        path = bucket.put(name, (tmp_path / "sealed").read_bytes())
        for where in (path, path.removesuffix("/two")):
            assert mc.read_table(where, DECRYPTION, filesystem=filesystem).equals(table)
            filesystem.ls(bucket.name)
    with open_source(bucket.put("three", DATA), filesystem=filesystem) as source:
        assert source.size == len(DATA)
    filesystem.ls(bucket.name)
    with as_arrow(filesystem).open_input_file(bucket.put("four", DATA)) as file:
        assert file.size() == len(DATA)


def test_what_is_written_is_none_of_the_file_systems_next_transaction(
    bucket: Bucket, store: ObjectStore
) -> None:
    filesystem = store.s3fs()
    write(f"{bucket.name}/one", filesystem, 1)
    assert not filesystem.transaction.files
    with filesystem.transaction:
        write(f"{bucket.name}/two", filesystem, 1)
        assert bucket.keys() == ["one", "two"]
    assert bucket.keys() == ["one", "two"]


def test_a_folder_of_a_store_is_a_file_system_too(bucket: Bucket, store: ObjectStore) -> None:
    folder = f"{bucket.name}/folder"
    for name, filesystem in (
        ("arrow", pyarrow.fs.SubTreeFileSystem(folder, store.arrow())),
        ("fsspec", DirFileSystem(folder, store.s3fs())),
    ):
        data = write(f"below/{name}", filesystem, 1, overwrite=False)
        assert bucket.get(f"folder/below/{name}") == data
        with open_source(f"below/{name}", filesystem=filesystem) as source:
            assert source.read_at(0, MIB) == data
    assert bucket.keys() == ["folder/below/arrow", "folder/below/fsspec"]


def test_a_name_that_means_a_compression_to_pyarrow_changes_nothing(
    filesystem: Any, bucket: Bucket
) -> None:
    data = write(f"{bucket.name}/new.gz", filesystem, 1)
    assert bucket.get("new.gz") == data
    with open_source(f"{bucket.name}/new.gz", filesystem=filesystem) as source:
        assert source.read_at(0, MIB) == data


def test_a_missing_bucket_is_an_os_error_without_credentials(filesystem: Any) -> None:
    def write_there() -> None:
        write("no-such-bucket/x", filesystem, 1)

    def read_there() -> None:
        with open_source("no-such-bucket/x", filesystem=filesystem):
            pass

    for attempt in (write_there, read_there):
        with pytest.raises(OSError) as caught:  # noqa: PT011 (which one is the store's affair)
            attempt()
        assert SECRET not in str(caught.value)
