"""AGS1 streams in an S3 server of our own, by `ags1::s3://` URLs.

boto3 looks at what is in the bucket, the server's log says what was asked for, and
`tools/verify_ags1.py` opens what was written.
"""

from __future__ import annotations

import gc
from typing import Any

import fastavro
import fsspec
import pandas as pd
import pytest

import modcrypt as mc
from tests.support.object_store import Bucket, ObjectStore, Request
from tools.verify_ags1 import read_key_metadata, verify

MIB = 1 << 20
BLOCK = 1 << 16
FRAME = BLOCK + 28
DATA = (bytes(i * 7 >> 2 & 0xFF for i in range(1024)) * 2930)[:3_000_000]


@pytest.fixture
def bucket(store: ObjectStore) -> Bucket:
    """Return a new, empty bucket."""
    return Bucket()


class Vault(dict[str, mc.ags1.StandardKeyMetadata]):
    """Keeps key metadata by path, and says how to come to the server."""

    def __init__(self, store: ObjectStore, bucket: Bucket) -> None:
        how = {"skip_instance_cache": True, "default_block_size": 5 * MIB}
        self._s3 = {"s3": {**store.storage_options, **how}}
        self._bucket = bucket

    @property
    def new(self) -> dict[str, Any]:
        fresh = mc.ags1.StandardKeyMetadata.generate
        return {
            "key": lambda path: fresh(),
            "on_written": self.__setitem__,
            "block_length": BLOCK,
            **self._s3,
        }

    @property
    def old(self) -> dict[str, Any]:
        return {"key": self.__getitem__, **self._s3}

    def url(self, name: str) -> str:
        return f"ags1::s3://{self._bucket.name}/{name}"

    def judge(self, name: str) -> bytes:
        """Open an object with nothing but boto3 and `cryptography`."""
        metadata = self[f"{self._bucket.name}/{name}"]
        return verify(self._bucket.get(name), *read_key_metadata(metadata.encode()))


@pytest.fixture
def vault(store: ObjectStore, bucket: Bucket) -> Vault:
    return Vault(store, bucket)


@pytest.fixture
def object_url(vault: Vault) -> str:
    """Return the URL of an object that contains DATA."""
    with fsspec.open(vault.url("folder/sealed"), "wb", **vault.new) as file:
        file.write(DATA)
    return vault.url("folder/sealed")


def ranges(log: list[Request]) -> list[str | None]:
    """Return the ranges read; the first of each file is its header."""
    assert {request.method for request in log} <= {"HEAD", "GET"}
    return [request.range for request in log if request.method == "GET"]


def span(first: int, stop: int) -> str:
    """Return the byte range of the blocks [first, stop)."""
    return f"bytes={8 + first * FRAME}-{min(8 + stop * FRAME, 8 + len(DATA) + 28 * 46) - 1}"


HEADER = "bytes=0-7"


@pytest.mark.parametrize("size", [0, len(DATA), 12 * MIB])
def test_what_is_written_is_there_whole(size: int, vault: Vault, bucket: Bucket) -> None:
    """The longest takes an upload of several parts."""
    data = (DATA * 5)[:size]
    for _ in range(2):  # the second replaces the first
        with fsspec.open(vault.url("below/x"), "wb", **vault.new) as file:
            for start in range(0, size, 700_000):
                file.write(data[start : start + 700_000])
            assert bucket.keys() == ([] if not vault else ["below/x"])
        assert vault.judge("below/x") == data
    with fsspec.open(vault.url("below/x"), **vault.old) as file:
        assert file.read() == data
    assert bucket.uploads() == []


@pytest.mark.parametrize("size", [0, 12 * MIB])
@pytest.mark.parametrize("there", [False, True])
def test_an_aborted_write_leaves_no_object_and_no_upload(
    size: int, there: bool, vault: Vault, bucket: Bucket
) -> None:
    if there:
        bucket.put("x", b"as it was")
    data = (DATA * 5)[:size]

    def fail(mode: str, part: bytes | str) -> None:
        with fsspec.open(vault.url("x"), mode, encoding="latin-1", **vault.new) as file:
            file.write(part)
            raise KeyboardInterrupt

    for mode, part in (("wb", data), ("wt", data.decode("latin-1"))):
        with pytest.raises(KeyboardInterrupt):
            fail(mode, part)
    filesystem, path = fsspec.url_to_fs(vault.url("x"), **vault.new)
    lost = filesystem.open(path, "wb")
    lost.write(data)
    del lost
    gc.collect()
    assert bucket.keys() == (["x"] if there else [])
    assert not there or bucket.get("x") == b"as it was"
    assert bucket.uploads() == []
    assert not vault


def test_an_exclusive_write_replaces_nothing(vault: Vault, bucket: Bucket) -> None:
    bucket.put("x", b"as it was")
    with pytest.raises(FileExistsError):
        fsspec.open(vault.url("x"), "xb", **vault.new).open()
    file = fsspec.open(vault.url("y"), "xb", **vault.new)
    file.open().write(DATA)
    bucket.put("y", b"was faster")
    with pytest.raises(FileExistsError):
        file.close()
    assert (bucket.get("x"), bucket.get("y")) == (b"as it was", b"was faster")
    assert not vault
    assert bucket.uploads() == []


def test_a_range_is_one_request_for_all_the_blocks_it_touches(
    object_url: str, vault: Vault, store: ObjectStore
) -> None:
    filesystem, path = fsspec.url_to_fs(object_url, **vault.old)
    for start, end, blocks in (
        (100_000, 900_000, (1, 14)),
        (BLOCK, 2 * BLOCK, (1, 2)),
        (BLOCK - 1, BLOCK + 1, (0, 2)),
        (-10, None, (45, 46)),
        (None, None, (0, 46)),
    ):
        with store.log_requests() as log:
            assert filesystem.cat_file(path, start, end) == DATA[start:end]
        assert ranges(log) == [HEADER, span(*blocks)]
    with store.log_requests() as log:
        assert filesystem.size(path) == len(DATA)
    assert ranges(log) == [HEADER]
    with store.log_requests() as log:
        filesystem.exists(path)
        filesystem.ls(path.rpartition("/")[0])
    assert [request.range for request in log] == [None] * 2


def test_an_open_file_asks_for_no_block_twice(
    object_url: str, vault: Vault, store: ObjectStore
) -> None:
    with store.log_requests() as log, fsspec.open(object_url, **vault.old) as file:
        for start, size in ((5, 10), (1_000_000, 300_000), (0, 60_000), (1_000_005, 5)):
            file.seek(start)
            assert file.read(size) == DATA[start : start + size]
    assert ranges(log) == [HEADER, span(0, 1), span(15, 20)]


def test_an_object_cut_at_the_end_of_a_block_is_refused_before_any_of_it_is_read(
    object_url: str, vault: Vault, bucket: Bucket, store: ObjectStore
) -> None:
    bucket.put("folder/sealed", bucket.get("folder/sealed")[: 8 + 40 * FRAME])
    with (
        store.log_requests() as log,
        pytest.raises(mc.errors.TruncationError, match="trusted length"),
    ):
        fsspec.open(object_url, **vault.old).open()
    assert ranges(log) == []


def test_a_missing_object_is_not_found(vault: Vault) -> None:
    nothing = fsspec.open(vault.url("x"), **{**vault.old, "key": mc.Key(bytes(16)), "length": 36})
    with pytest.raises(FileNotFoundError):
        nothing.open()


def test_pandas_and_fastavro_write_and_read_by_url(vault: Vault, bucket: Bucket) -> None:
    frame = pd.DataFrame({"a": range(1000), "b": [f"text {n}" for n in range(1000)]})
    frame.to_csv(vault.url("frame.csv"), index=False, storage_options=vault.new)
    assert vault.judge("frame.csv") == frame.to_csv(index=False).encode()
    read = pd.read_csv(vault.url("frame.csv"), storage_options=vault.old)
    pd.testing.assert_frame_equal(read, frame)

    records = frame.to_dict("records")
    schema = fastavro.parse_schema(
        {
            "type": "record",
            "name": "row",
            "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
        }
    )
    with fsspec.open(vault.url("rows.avro"), "wb", **vault.new) as file:
        fastavro.writer(file, schema, records)
    with fsspec.open(vault.url("rows.avro"), **vault.old) as file:
        assert list(fastavro.reader(file)) == records
    assert vault.judge("rows.avro")[:4] == b"Obj\x01"
    assert bucket.keys() == ["frame.csv", "rows.avro"]


def test_objects_are_moved_copied_and_removed_as_they_are(
    object_url: str, vault: Vault, bucket: Bucket
) -> None:
    before = bucket.get("folder/sealed")
    filesystem, path = fsspec.url_to_fs(object_url, **vault.old)
    filesystem.mv(path, f"{bucket.name}/moved")
    filesystem.cp(f"{bucket.name}/moved", f"{bucket.name}/copied")
    assert bucket.keys() == ["copied", "moved"]
    assert bucket.get("moved") == bucket.get("copied") == before
    filesystem.rm([f"{bucket.name}/moved", f"ags1::{bucket.name}/copied"])
    assert bucket.keys() == []


def test_a_cache_behind_it_keeps_encrypted_bytes(
    object_url: str, vault: Vault, bucket: Bucket, store: ObjectStore, tmp_path: Any
) -> None:
    url = object_url.replace("ags1::", "ags1::simplecache::")
    options = {**vault.old, "simplecache": {"cache_storage": str(tmp_path)}}
    for _ in range(2):
        with store.log_requests() as log, fsspec.open(url, **options) as file:
            assert file.read() == DATA
    assert ranges(log) == []
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [bucket.get("folder/sealed")]
