"""Datasets in an S3 server, and for other readers: DuckDB and Polars find the partitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pytest

import modcrypt as mc
from tests.support.keys import FOOTER_KEY
from tests.support.object_store import Bucket, ObjectStore
from tests.support.tables import read_with_pyarrow

ENCRYPTION = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
DECRYPTION = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
TABLE = pa.table(
    {
        "city": ["Ulm", "a/b", "", None, "ü %"] * 8,
        "v": pa.array(range(40), pa.int64()),
        "n": pa.array([n // 2 % 2 for n in range(40)], pa.int32()),
    }
)
TEMPLATE = "people.part{i}"
FILE_SYSTEMS: dict[str, Callable[[ObjectStore], Any]] = {
    "pyarrow": lambda store: store.arrow(),
    "s3fs": lambda store: store.s3fs(),
    "pyarrow over s3fs": lambda store: pyarrow.fs.PyFileSystem(
        pyarrow.fs.FSSpecHandler(store.s3fs())
    ),
}


WRAPPED = pytest.param("pyarrow over s3fs", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=["pyarrow", "s3fs", WRAPPED])
def filesystem(request: pytest.FixtureRequest, store: ObjectStore) -> Any:
    return FILE_SYSTEMS[request.param](store)


@pytest.fixture
def bucket(store: ObjectStore) -> Bucket:
    return Bucket()


def same_rows(read: pa.Table) -> bool:
    return bool(read.select(TABLE.column_names).sort_by("v").equals(TABLE))


@pytest.mark.parametrize("partitioning", [None, ["n", "city"]])
def test_a_dataset_in_a_store_is_found_there_and_read_back(
    partitioning: Any, filesystem: Any, bucket: Bucket, tmp_path: Path
) -> None:
    base = f"{bucket.name}/some/folder"
    paths = mc.write_dataset(
        TABLE,
        base,
        ENCRYPTION,
        partitioning=partitioning,
        filesystem=filesystem,
        max_rows_per_file=30,
        aad_prefix_template=TEMPLATE,
    )
    assert bucket.keys() == sorted(f"some/folder/{path}" for path in paths)
    ds.write_dataset(TABLE, tmp_path, format="parquet", partitioning=hive(partitioning))
    theirs = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")}
    assert {str(Path(path).parent) for path in paths} == theirs
    copy = tmp_path / "copy"
    for number, path in enumerate(paths):
        copy.write_bytes(bucket.get(f"some/folder/{path}"))
        prefix = f"people.part{number}".encode()
        assert 1 <= read_with_pyarrow(copy, FOOTER_KEY, prefix).num_rows <= 30
    read = mc.read_table(
        base,
        DECRYPTION,
        filesystem=filesystem,
        aad_prefix_template=TEMPLATE,
        expected_parts=len(paths),
    )
    assert same_rows(read)


def hive(names: list[str] | None) -> Any:
    fields = [TABLE.schema.field(name) for name in names or []]
    return ds.partitioning(pa.schema(fields), flavor="hive") if names else None


def test_what_is_in_the_store_is_kept(filesystem: Any, store: ObjectStore, bucket: Bucket) -> None:
    options: dict[str, Any] = {"partitioning": ["n"], "filesystem": filesystem}
    base = f"{bucket.name}/folder"
    mc.write_dataset(TABLE.slice(0, 2), base, ENCRYPTION, **options)
    bucket.put("folder/other", b"x")
    store.judge().delete_object(Bucket=bucket.name, Key="folder/n=0/part-0.parquet")
    before = bucket.keys()
    with pytest.raises(FileExistsError):
        mc.write_dataset(TABLE, base, ENCRYPTION, **options)
    assert bucket.keys() == before == ["folder/other"]
    options["existing_data_behavior"] = "overwrite_or_ignore"
    for _ in range(2):
        paths = mc.write_dataset(TABLE, base, ENCRYPTION, **options)
        assert bucket.keys() == [*(f"folder/{path}" for path in paths), "folder/other"]


def test_files_of_somebody_else_show_in_spite_of_an_old_listing(
    filesystem: Any, store: ObjectStore, bucket: Bucket
) -> None:
    base = f"{bucket.name}/folder"
    options: dict[str, Any] = {"partitioning": ["n"], "filesystem": filesystem}
    bucket.put("else/x", b"x")
    mc.write_dataset(TABLE.slice(0, 0), base, ENCRYPTION, **options)  # lists the folder
    if hasattr(filesystem, "ls"):
        assert filesystem.ls(bucket.name) == [f"{bucket.name}/else"]
    bucket.put("folder/n=0/other", b"x")
    with pytest.raises(FileExistsError):
        mc.write_dataset(TABLE, base, ENCRYPTION, **options)
    assert bucket.keys() == ["else/x", "folder/n=0/other"]


def test_objects_that_stand_for_folders_are_no_files(
    filesystem: Any, store: ObjectStore, bucket: Bucket
) -> None:
    bucket.put("folder/n=0/", b"")
    options: dict[str, Any] = {"partitioning": ["n"], "filesystem": filesystem}
    assert len(mc.write_dataset(TABLE, f"{bucket.name}/folder", ENCRYPTION, **options)) == 2


def test_no_bucket_is_made(filesystem: Any, store: ObjectStore) -> None:
    with store.log_requests() as requests, pytest.raises(OSError, match="bucket"):
        mc.write_dataset(TABLE, "no-bucket/folder", ENCRYPTION, filesystem=filesystem)
    assert not any(
        request.path.strip("/") == "no-bucket" for request in requests if request.method == "PUT"
    )


@pytest.mark.parametrize("partitioning", [None, ["n", "city"]])
def test_a_failure_leaves_no_object_and_no_upload(
    partitioning: Any, filesystem: Any, store: ObjectStore, bucket: Bucket
) -> None:
    def encryption(path: str) -> mc.FileEncryptionProperties:
        if "part-3" in path:
            assert bucket.keys()
            raise ZeroDivisionError
        return ENCRYPTION

    with pytest.raises(ZeroDivisionError):
        mc.write_dataset(
            TABLE,
            f"{bucket.name}/folder",
            encryption,
            partitioning=partitioning,
            filesystem=filesystem,
            max_rows_per_file=4,
        )
    assert bucket.keys() == []
    assert bucket.uploads() == []


def test_a_url_names_the_folder(
    store: ObjectStore, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = store.storage_options
    # One that another test has made from the same variables has an endpoint that is gone.
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret"])
    url = f"s3://{bucket.name}/folder"
    paths = mc.write_dataset(TABLE, url, ENCRYPTION, partitioning=["city"])
    assert bucket.keys() == sorted(f"folder/{path}" for path in paths)
    assert same_rows(mc.read_table(url, DECRYPTION))


# --- other readers, of decrypted copies -----------------------------------------------------------


@pytest.fixture
def plain_dataset(tmp_path: Path) -> Path:
    """Return an encrypted dataset after decrypting each file."""
    paths = mc.write_dataset(TABLE, tmp_path / "in", ENCRYPTION, partitioning=["n", "city"])
    for path in paths:
        target = tmp_path / "out" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        mc.decrypt_parquet(tmp_path / "in" / path, target, DECRYPTION)
    return tmp_path / "out"


def test_duckdb_finds_the_partitions(plain_dataset: Path) -> None:
    types = "hive_types = {'n': INTEGER, 'city': VARCHAR}"
    query = f"SELECT * FROM read_parquet('{plain_dataset}/*/*/*', hive_partitioning=true, {types})"
    found = duckdb.sql(query)
    assert found is not None
    assert same_rows(found.to_arrow_table())


def test_polars_finds_the_partitions(plain_dataset: Path) -> None:
    types = {"n": pl.Int32, "city": pl.String}
    read = pl.scan_parquet(plain_dataset, hive_partitioning=True, hive_schema=types).collect()
    assert sorted(read.select("v", "n", "city").rows()) == sorted(
        zip(*(TABLE[name].to_pylist() for name in ("v", "n", "city")), strict=True)
    )


def test_polars_data_is_written(tmp_path: Path) -> None:
    frame = pl.from_arrow(TABLE)
    mc.write_dataset(frame, tmp_path, ENCRYPTION, partitioning=["n", "city"])
    assert same_rows(mc.read_table(tmp_path, DECRYPTION))
