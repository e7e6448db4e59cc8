"""pandas, Polars, DuckDB, Dask, fastparquet and PyArrow read encrypted files by URL and by object.

Each is judged by what it reads itself from the plaintext original.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import duckdb
import fastparquet
import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.file_reads import watch_reads
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.module_spans import list_modules
from tests.support.object_store import ObjectStore
from tests.support.tables import small_table

ENCRYPTION = mc.FileEncryptionProperties(
    footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY, "address": COLUMN_KEY}
)
COLUMN_KEYS = {"name": COLUMN_KEY, "address": COLUMN_KEY}
KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=COLUMN_KEYS)
OPTIONS = {"decryption": KEYS}

WRONG_KEYS = {
    "footer key": mc.FileDecryptionProperties(footer_key=OTHER_KEY, column_keys=COLUMN_KEYS),
    "column key": mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"name": OTHER_KEY, "address": COLUMN_KEY}
    ),
}

pytestmark = [
    # pandas 3.1 says so of its engine; people have it all the same.
    pytest.mark.filterwarnings("ignore:.*fastparquet.*"),
    # What fastparquet and Dask do with pandas, and fastparquet with local files that it has read.
    pytest.mark.filterwarnings("ignore:make_block is deprecated"),
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]


def give_keys(path: str) -> mc.FileDecryptionProperties:
    """Return the same keys for every path."""
    return KEYS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the same files and dataset as plaintext (`plain`) and encrypted (`sealed`)."""
    folder = tmp_path_factory.mktemp("urls")
    table = small_table(1000)
    parts = {
        "one.parquet": table,
        "set/c=A/1.parquet": table[:600],
        "set/c=B/2.parquet": table[600:],
    }
    for name, rows in parts.items():
        plain, sealed = folder / "plain" / name, folder / "sealed" / name
        for path in (plain, sealed):
            path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, plain, row_group_size=250, data_page_size=512, write_batch_size=50)
        mc.encrypt_parquet(plain, sealed, ENCRYPTION)
    data = bytearray((folder / "sealed/one.parquet").read_bytes())
    (page,) = [
        span
        for span in list_modules(bytes(data), KEYS)
        if str(span.module) == "data page, row group 2, column id, page 1"
    ]
    data[page.end - 1] ^= 1
    (folder / "altered.parquet").write_bytes(data)
    return folder


def filesystem(keys: Any = KEYS, **behind: Any) -> Any:
    return fsspec.filesystem("modcrypt", decryption=keys, **behind)


@pytest.fixture
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a connection with `modcrypt://` registered."""
    with closing(duckdb.connect()) as connection:
        connection.register_filesystem(filesystem())
        yield connection


# --- pandas --------------------------------------------------------------------------------------

ENGINES = ["pyarrow", "fastparquet"]


@pytest.fixture(params=["modcrypt::file://", "modcrypt://", "modcrypt::memory:/"])
def scheme(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Return the prefix that turns a path into a URL for pandas."""
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), str(folder), recursive=True)
    yield request.param
    memory.rm(str(folder), recursive=True)


PANDAS: dict[str, tuple[str, dict[str, Any]]] = {
    "a file": ("one.parquet", {}),
    "columns": ("one.parquet", {"columns": ["name", "score"]}),
    "filters": ("one.parquet", {"filters": [("id", ">=", 800), ("id", "<", 950)]}),
    "a folder": ("set", {}),
    "a folder, columns and filters": (
        "set",
        {"columns": ["id", "name", "c"], "filters": [("c", "==", "B")]},
    ),
}


@each_case("engine", ENGINES)
@each_case("case", PANDAS.values(), ids=PANDAS)
def test_pandas_reads_by_url(
    engine: str, case: tuple[str, dict[str, Any]], folder: Path, scheme: str
) -> None:
    name, how = case
    how = {"engine": engine, **how}
    read = pd.read_parquet(f"{scheme}{folder}/sealed/{name}", storage_options=OPTIONS, **how)
    assert len(read) > 100
    pd.testing.assert_frame_equal(read, pd.read_parquet(f"{folder}/plain/{name}", **how))


def test_pandas_takes_paths_without_a_scheme_for_file_names(folder: Path) -> None:
    with pytest.raises(ValueError, match="storage_options"):
        pd.read_parquet(f"modcrypt::{folder}/sealed/one.parquet", storage_options=OPTIONS)


def test_pandas_without_storage_options_says_what_is_missing(folder: Path) -> None:
    with pytest.raises(TypeError, match=r"storage_options=\{\"decryption\": …\}"):
        pd.read_parquet(f"modcrypt::file://{folder}/sealed/one.parquet")


def test_pandas_does_not_write_by_url(folder: Path) -> None:
    url = f"modcrypt::file://{folder}/new.parquet"
    with pytest.raises(ValueError, match="write_table"):
        pd.DataFrame({"a": [1]}).to_parquet(url, storage_options=OPTIONS)
    assert not (folder / "new.parquet").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_pandas_reads_a_view(engine: Any, folder: Path) -> None:
    plain = pd.read_parquet(folder / "plain/one.parquet", engine=engine)
    with mc.open_parquet(folder / "sealed/one.parquet", KEYS) as view:
        pd.testing.assert_frame_equal(pd.read_parquet(view, engine=engine), plain)


def test_columns_without_a_key_are_nulls_or_not_there(folder: Path) -> None:
    url = f"modcrypt::file://{folder}/sealed/one.parquet"
    plain = pd.read_parquet(folder / "plain/one.parquet")

    def read(**how: Any) -> Any:
        few = {"address": COLUMN_KEY}
        keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=few, **how)
        return pd.read_parquet(url, storage_options={"decryption": keys})

    pd.testing.assert_frame_equal(read(on_missing_key="drop"), plain.drop(columns="name"))
    nulls = read(on_missing_key="null")
    assert nulls["name"].isna().all()
    pd.testing.assert_frame_equal(nulls.drop(columns="name"), plain.drop(columns="name"))
    with pytest.raises(mc.errors.KeyNotFoundError, match="name"):
        read()


# --- PyArrow and Polars --------------------------------------------------------------------------


def test_pyarrow_reads_a_dataset_with_hive_partitions(folder: Path) -> None:
    wrapped = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(filesystem()))
    sealed = ds.dataset(f"{folder}/sealed/set", filesystem=wrapped, partitioning="hive")
    plain = ds.dataset(f"{folder}/plain/set", partitioning="hive")
    assert sealed.schema == plain.schema
    assert sealed.to_table().equals(plain.to_table())
    wanted = (ds.field("c") == "B") & (ds.field("id") > 700)
    assert sealed.count_rows(filter=wanted) == 299
    assert sealed.to_table(["name", "c"], wanted).equals(plain.to_table(["name", "c"], wanted))
    assert pq.read_table(f"{folder}/sealed/one.parquet", filesystem=wrapped).equals(
        pq.read_table(f"{folder}/plain/one.parquet")
    )


def test_polars_reads_file_objects_and_datasets(folder: Path) -> None:
    """It takes no URLs of fsspec."""
    whole = pl.read_parquet(folder / "plain/one.parquet")
    some = whole.filter(pl.col("id") > 700).select("name", "address")
    files = filesystem()
    with files.open(f"{folder}/sealed/one.parquet") as file:
        assert pl.read_parquet(file).equals(whole)
        file.seek(0)
        scan = pl.scan_parquet(file).filter(pl.col("id") > 700).select("name", "address")
        assert scan.collect().equals(some)
    sealed = ds.dataset(f"{folder}/sealed/set", filesystem=files, partitioning="hive")
    lazy = pl.scan_pyarrow_dataset(sealed).filter(pl.col("id") > 700).select("name", "address")
    assert lazy.collect().equals(some)


# --- DuckDB --------------------------------------------------------------------------------------

QUERIES = {
    "all": "select * from '{}/one.parquet' order by id",
    "projection": "select name, address.zip from '{}/one.parquet' order by id",
    "filter": "select id, tags from '{}/one.parquet' where id between 800 and 820 order by id",
    "aggregate": "select count(*), sum(score), count(name) from '{}/one.parquet'",
    "hive": "select c, id, name from read_parquet('{}/set/*/*.parquet', hive_partitioning = true)"
    " where c = 'B' order by id",
    "recursive": "select count(*), sum(id) from read_parquet('{}/set/**/*.parquet')",
    "metadata": "select path_in_schema, stats_min_value from parquet_metadata('{}/one.parquet')",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_duckdb_reads_by_url(query: str, folder: Path, duck: duckdb.DuckDBPyConnection) -> None:
    sealed = duck.sql(query.format(f"modcrypt://{folder}/sealed")).fetchall()
    assert sealed == duck.sql(query.format(f"{folder}/plain")).fetchall()
    assert sealed


def test_duckdb_reads_no_row_group_that_a_filter_excludes(
    folder: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    query = f"select sum(id) from 'modcrypt://{folder}/altered.parquet'"
    assert duck.sql(f"{query} where id >= 750").fetchall() == [(sum(range(750, 1000)),)]
    with pytest.raises(duckdb.Error, match="tag does not match"):
        duck.sql(query).fetchall()


def test_duckdb_keeps_nothing_of_a_file_system_that_is_gone(
    folder: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    query = f"select count(id), count(name) from 'modcrypt://{folder}/sealed/one.parquet'"
    counts = duck.sql(query).fetchall()
    assert counts == [(1000, 857)]
    nulls = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="null")
    for keys, expected in ((nulls, [(1000, 0)]), (KEYS, counts)):
        duck.unregister_filesystem("modcrypt")
        duck.register_filesystem(filesystem(keys))
        assert duck.sql(query).fetchall() == expected
    duck.unregister_filesystem("modcrypt")
    duck.register_filesystem(filesystem(WRONG_KEYS["footer key"]))
    with pytest.raises(duckdb.Error, match="tag does not match"):
        duck.sql(query).fetchall()


def test_duckdb_does_not_write_by_url(folder: Path, duck: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.Error, match="write_table"):
        duck.sql(f"copy (select 1) to 'modcrypt://{folder}/new.parquet' (format parquet)")
    assert not (folder / "new.parquet").exists()


# --- fastparquet ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["view", "fs", "open_with", "folder"])
def test_fastparquet_reads(way: str, folder: Path) -> None:
    files, sealed = filesystem(), f"{folder}/sealed/one.parquet"
    name = "set" if way == "folder" else "one.parquet"
    plain = fastparquet.ParquetFile(f"{folder}/plain/{name}")
    how: dict[str, dict[str, Any]] = {
        "view": {"fn": files.open(sealed)},
        "fs": {"fn": sealed, "fs": files},
        "open_with": {"fn": sealed, "open_with": files.open},
        "folder": {"fn": f"{folder}/sealed/set", "fs": files},
    }
    read = fastparquet.ParquetFile(**how[way])
    pd.testing.assert_frame_equal(read.to_pandas(), plain.to_pandas())
    some = {"columns": ["name", "address.zip"], "filters": [("id", ">=", 700)]}
    pd.testing.assert_frame_equal(read.to_pandas(**some), plain.to_pandas(**some))


@pytest.mark.parametrize("writer", ["polars", "duckdb", "fastparquet", "pyarrow, page index"])
def test_fastparquet_reads_what_others_wrote(writer: str, folder: Path, tmp_path: Path) -> None:
    plain, sealed = tmp_path / "plain.parquet", tmp_path / "sealed.parquet"
    table = pq.read_table(folder / "plain/one.parquet", columns=["id", "name", "score"])
    if writer == "polars":
        pl.DataFrame(pl.from_arrow(table)).write_parquet(plain)
    elif writer == "duckdb":
        with closing(duckdb.connect()) as connection:
            connection.from_arrow(table).write_parquet(str(plain))
    elif writer == "fastparquet":
        fastparquet.write(str(plain), table.to_pandas(), compression="SNAPPY")
    else:
        pq.write_table(table, plain, write_page_index=True, data_page_version="2.0")
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    mc.encrypt_parquet(plain, sealed, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    read = fastparquet.ParquetFile(str(sealed), fs=filesystem(keys)).to_pandas()
    pd.testing.assert_frame_equal(read, fastparquet.ParquetFile(str(plain)).to_pandas())


# --- Dask ----------------------------------------------------------------------------------------

DASK: dict[str, tuple[str, dict[str, Any]]] = {
    "a file": ("one.parquet", {"split_row_groups": True}),
    "columns": ("one.parquet", {"columns": ["id", "name"]}),
    "filters": ("one.parquet", {"filters": [("id", ">=", 800)]}),
    "a folder": ("set", {"columns": ["id", "address", "c"]}),
    "a pattern": ("set/*/*.parquet", {"columns": ["id", "tags"]}),
}


@each_case("how", ["function", "keys", "filesystem"])
@each_case("case", DASK.values(), ids=DASK)
def test_dask_reads_with_threads(how: str, case: tuple[str, dict[str, Any]], folder: Path) -> None:
    name, options = case
    path = f"{folder}/sealed/{name}"
    with dask.config.set(scheduler="threads"):
        if how == "filesystem":
            frame = dd.read_parquet(path, filesystem=filesystem(), **options)
        else:
            given = {"decryption": give_keys if how == "function" else KEYS}
            url = f"modcrypt::file://{path}"
            frame = dd.read_parquet(url, storage_options=given, **options)
        read = frame.compute()
        plain = dd.read_parquet(f"{folder}/plain/{name}", **options).compute()
    assert len(read) >= 200
    pd.testing.assert_frame_equal(read, plain)


def test_dask_never_takes_one_file_system_for_another(folder: Path) -> None:
    path = f"{folder}/sealed/one.parquet"
    nulls = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="null")
    frames = [dd.read_parquet(path, filesystem=filesystem(keys)) for keys in (KEYS, nulls, KEYS)]
    assert len({frame._name for frame in frames}) == 3
    counts = [frame["name"].count().compute(scheduler="threads") for frame in frames]
    assert counts == [857, 0, 857]


def test_dask_takes_keys_to_no_other_process(folder: Path) -> None:
    path = f"{folder}/sealed/one.parquet"
    frame = dd.read_parquet(path, filesystem=filesystem())
    with pytest.raises(TypeError, match="a Key can't be pickled"):
        frame.compute(scheduler="processes", num_workers=1)


# --- failures ------------------------------------------------------------------------------------


def with_pandas(files: Any, keys: Any, path: str) -> object:
    return pd.read_parquet(f"modcrypt://{path}", storage_options={"decryption": keys})


def with_dask(files: Any, keys: Any, path: str) -> object:
    return dd.read_parquet(path, filesystem=files).compute(scheduler="threads")


def with_duckdb(files: Any, keys: Any, path: str) -> object:
    with closing(duckdb.connect()) as connection:
        connection.register_filesystem(files)
        return connection.sql(f"from 'modcrypt://{path}'").fetchall()


# What each reader's user sees: our error, or one of its own with our text in it.
FAILING: dict[str, tuple[Callable[[Any, Any, str], object], type[BaseException]]] = {
    "pandas": (with_pandas, mc.errors.TagMismatchError),
    "pyarrow": (
        lambda files, keys, path: ds.dataset(path, filesystem=files).to_table(),
        mc.errors.TagMismatchError,
    ),
    "dask": (with_dask, mc.errors.TagMismatchError),
    "fastparquet": (
        lambda files, keys, path: fastparquet.ParquetFile(path, fs=files).to_pandas(["id", "name"]),
        mc.errors.TagMismatchError,
    ),
    "duckdb": (with_duckdb, duckdb.Error),
    "polars, through pyarrow": (
        lambda files, keys, path: pl.scan_pyarrow_dataset(
            ds.dataset(path, filesystem=files)
        ).collect(),
        mc.errors.TagMismatchError,
    ),
    "polars": (
        lambda files, keys, path: pl.read_parquet(files.open(path)),
        # A panic where reading fails, an error of ours where opening does.
        (pl.exceptions.PanicException, mc.errors.TagMismatchError),  # type: ignore[dict-item]
    ),
}


@each_case("reader", FAILING.values(), ids=FAILING)
@each_case("wrong", WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_a_wrong_key_is_said_by_every_reader(
    reader: tuple[Any, type[BaseException]], wrong: mc.FileDecryptionProperties, folder: Path
) -> None:
    read, error = reader
    with pytest.raises(error, match="the tag does not match: wrong key"):
        read(filesystem(wrong), wrong, f"{folder}/sealed/one.parquet")


@pytest.mark.parametrize("reader", FAILING.values(), ids=FAILING)
def test_an_altered_page_is_named_by_every_reader(
    reader: tuple[Any, type[BaseException]], folder: Path
) -> None:
    read, error = reader
    with pytest.raises(error, match="row group 2, column id, page 1: the tag does not match"):
        read(filesystem(), KEYS, f"{folder}/altered.parquet")


# --- no more than is asked for -------------------------------------------------------------------

FOOTER = (64 << 10) + len(b"PARE")
"""What is read to open a file: its magic, and a tail of 64 KiB in which the footer is."""


@pytest.fixture(scope="module")
def wide() -> tuple[bytes, int]:
    """Return an encrypted file of 16 columns and the size of one chunk."""
    generator = np.random.default_rng(7)
    table = pa.table({f"c{n}": generator.random(100_000) for n in range(16)})
    out = io.BytesIO()
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    mc.write_table(table, out, encryption, use_dictionary=False, compression="none")
    return out.getvalue(), table["c3"].nbytes


def duckdb_column(files: Any, url: str) -> None:
    with closing(duckdb.connect()) as connection:
        connection.register_filesystem(files)
        connection.sql(f"select sum(c3) from '{url}'").fetchall()


def pandas_column(engine: Any) -> Callable[[Any, str], object]:
    return lambda files, url: pd.read_parquet(
        url, columns=["c3"], engine=engine, storage_options={"decryption": files._decryption}
    )


ONE_COLUMN: dict[str, Any] = {
    "pandas": pandas_column("pyarrow"),
    "fastparquet": pandas_column("fastparquet"),
    "pyarrow": lambda files, url: ds.dataset(
        url.removeprefix("modcrypt://"), filesystem=files
    ).to_table(["c3"]),
    "dask": lambda files, url: dd.read_parquet(
        url.removeprefix("modcrypt://"), filesystem=files, columns=["c3"]
    ).compute(scheduler="sync"),
    "duckdb": duckdb_column,
}


@pytest.mark.parametrize("read", ONE_COLUMN.values(), ids=ONE_COLUMN)
def test_one_column_of_sixteen_costs_its_chunk_and_the_footer_of_each_opening(
    read: Any, wide: tuple[bytes, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, chunk = wide
    opened = 0
    lengths: list[int] = []

    def keys(path: str) -> mc.FileDecryptionProperties:
        nonlocal opened
        opened += 1
        return mc.FileDecryptionProperties(footer_key=FOOTER_KEY)

    (tmp_path / "wide.parquet").write_bytes(data)
    watch_reads(monkeypatch, lambda _offset, length: lengths.append(length))
    read(filesystem(keys), f"modcrypt://{tmp_path}/wide.parquet")
    assert opened <= 8  # DuckDB binds, plans and scans, and asks each time for the size, too
    assert chunk < sum(lengths) <= 1.05 * chunk + opened * FOOTER


# --- S3 ------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(store: ObjectStore, folder: Path) -> str:
    """Return a bucket with the encrypted files."""
    name, client = f"bucket-{uuid.uuid4()}", store.judge()
    client.create_bucket(Bucket=name)
    for path in (folder / "sealed").rglob("*.parquet"):
        key = path.relative_to(folder / "sealed").as_posix()
        client.put_object(Bucket=name, Key=key, Body=path.read_bytes())
    return name


def test_readers_by_s3_url(store: ObjectStore, bucket: str, folder: Path) -> None:
    s3 = {**store.storage_options, "skip_instance_cache": True}
    options = {"decryption": give_keys, "s3": s3}
    url = f"modcrypt::s3://{bucket}"
    for name, how in (("one.parquet", {}), ("set", {"filters": [("c", "==", "B")]})):
        plain = pd.read_parquet(folder / "plain" / name, **how)
        read = pd.read_parquet(f"{url}/{name}", storage_options=options, **how)
        pd.testing.assert_frame_equal(read, plain)
    frame = dd.read_parquet(f"{url}/set/*/*.parquet", storage_options=options, columns=["id"])
    assert frame["id"].sum().compute(scheduler="threads") == sum(range(1000))
    with closing(duckdb.connect()) as connection:
        connection.register_filesystem(filesystem(fs=store.s3fs()))
        query = f"select sum(id), count(name) from 'modcrypt://{bucket}/set/**/*.parquet'"
        assert connection.sql(query).fetchall() == [(sum(range(1000)), 857)]
    files = fsspec.open_files(f"{url}/set/*/*.parquet", **options)
    with files[0] as first, files[1] as second:
        tables = [pq.read_table(first), pq.read_table(second)]
    assert pa.concat_tables(tables).equals(pq.read_table(folder / "plain/one.parquet"))


def test_one_column_of_sixteen_by_s3_url(store: ObjectStore, wide: tuple[bytes, int]) -> None:
    data, chunk = wide
    bucket, client = f"bucket-{uuid.uuid4()}", store.judge()
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="wide.parquet", Body=data)
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    s3 = {**store.storage_options, "skip_instance_cache": True}
    with store.log_requests() as requests:
        read = pd.read_parquet(
            f"modcrypt::s3://{bucket}/wide.parquet",
            columns=["c3"],
            storage_options={"decryption": keys, "s3": s3},
        )
    assert len(read) == 100_000
    taken = sum(request.answered for request in requests if request.method == "GET")
    assert chunk < taken <= 1.05 * chunk + 3 * FOOTER + 10_000  # and what lists the bucket
