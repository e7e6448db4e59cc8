"""Datasets of encrypted files, held against what pyarrow.dataset makes of the same data.

Files are read with PyArrow's own decryption, each for itself.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import modcrypt as mc
from modcrypt.io.places import Place
from modcrypt.parquet.datasets import dataset_writer
from tests.support.cases import each_case, one_in
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.randomness import examples
from tests.support.tables import small_table

ENCRYPTION = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
DECRYPTION = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
TEMPLATE = "people.part{i}"


def open_with_pyarrow(path: Path, key: bytes = FOOTER_KEY, **properties: Any) -> pq.ParquetFile:
    keys = pe.create_decryption_properties(footer_key=key, **properties)
    return pq.ParquetFile(path, decryption_properties=keys)


def by_folder(base: Path, paths: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows in each folder, in the order of the paths, as PyArrow decrypts them."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in paths:
        with open_with_pyarrow(base / path) as file:
            rows[os.path.dirname(path)] += file.read().to_pylist()
    return dict(rows)


def by_folder_of_pyarrow(base: Path, data: Any, scheme: Any) -> dict[str, list[dict[str, Any]]]:
    """Have pyarrow.dataset write the same in plaintext; return the rows in each folder."""
    ds.write_dataset(data, base, format="parquet", partitioning=scheme, use_threads=False)
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in files(base):
        with pq.ParquetFile(base / path) as file:
            rows[os.path.dirname(path)] += file.read().to_pylist()
    return dict(rows)


def files(base: Path) -> list[str]:
    """Return all files in a folder, hidden ones too."""
    return sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())


def hive(table: pa.Table, *names: str) -> ds.Partitioning:
    return ds.partitioning(pa.schema([table.schema.field(name) for name in names]), flavor="hive")


def by_v(table: pa.Table) -> pa.Table:
    return table.select(sorted(table.column_names)).sort_by("v")


# --- folders and rows, as pyarrow.dataset makes them ----------------------------------------------

DAY = datetime.date(2026, 1, 31)
TEXTS = [
    "a/b", "a b", "a=b", "a%b", "a%2Fb", "ü☃", "", None, "..", "_x", ".y", "a\\b", "a\nb", "?#&+",
]  # fmt: skip
COLUMNS: dict[str, pa.Array] = {
    "texts": pa.array(TEXTS),
    "large texts": pa.array(TEXTS, pa.large_string()),
    "whole numbers": pa.array([0, -1, None, 2**40], pa.int64()),
    "small numbers": pa.array([0, 255, None], pa.uint8()),
    "booleans": pa.array([True, False, None]),
    "days": pa.array([DAY, None]),
    "moments": pa.array([datetime.datetime(2026, 1, 1, 2, 3), None]),
    "moments in a zone": pa.array([0, 1, None], pa.timestamp("ns", "Europe/Berlin")),
    "times": pa.array([1, None], pa.time64("us")),
    "floats": pa.array([1.5, float("nan"), -0.0, 0.0, 1 / 3, None]),
    "bytes that are text": pa.array([b"ab", None]),
    "nulls": pa.nulls(3),
    "a dictionary of texts": pa.array(TEXTS).dictionary_encode(),
    "a dictionary of numbers": pa.array([0, -1, None, 2**40]).dictionary_encode(),
}


def test_text_in_views_makes_the_same_folders(tmp_path: Path) -> None:
    table = pa.table({"p": pa.array(TEXTS, pa.string_view()), "v": range(len(TEXTS))})
    paths = mc.write_dataset(table, tmp_path / "ours", ENCRYPTION, partitioning=["p"])
    expected = by_folder_of_pyarrow(tmp_path / "theirs", table, hive(table, "p"))
    assert by_folder(tmp_path / "ours", paths) == expected


@each_case("name", COLUMNS)
def test_folders_and_their_rows_are_those_of_pyarrow(name: str, tmp_path: Path) -> None:
    values = pa.concat_arrays([COLUMNS[name]] * 3)
    table = pa.table({"p": values, "v": range(len(values))})
    paths = mc.write_dataset(table, tmp_path / "ours", ENCRYPTION, partitioning=["p"])
    assert sorted(paths) == files(tmp_path / "ours")
    expected = by_folder_of_pyarrow(tmp_path / "theirs", table, hive(table, "p"))
    assert by_folder(tmp_path / "ours", paths) == expected


def test_text_with_a_nul_is_refused(tmp_path: Path) -> None:
    table = pa.table({"p": ["a\0b"], "v": [1]})
    with pytest.raises(ValueError, match="cannot represent a value of the partition columns p"):
        mc.write_dataset(table, tmp_path / "ours", ENCRYPTION, partitioning=["p"])
    assert not list(tmp_path.rglob("*.parquet"))


# PyArrow cuts text at a NUL.
FOLDER_TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12
)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.none() | FOLDER_TEXTS, st.none() | st.integers(-9, 9))))
def test_any_text_makes_the_folders_of_pyarrow(keys: list[tuple[str | None, int | None]]) -> None:
    columns = {
        "s": pa.array([text for text, _ in keys], pa.string()),
        "n": pa.array([number for _, number in keys], pa.int8()),
        "v": pa.array(range(len(keys)), pa.int64()),
    }
    table = pa.table(columns)
    with TemporaryDirectory() as folder:
        base = Path(folder)
        paths = mc.write_dataset(table, base / "ours", ENCRYPTION, partitioning=["s", "n"])
        expected = by_folder_of_pyarrow(base / "theirs", table, hive(table, "s", "n"))
        assert by_folder(base / "ours", paths) == expected
        if paths:
            types = hive(table, "s", "n")
            read = mc.read_table(base / "ours", DECRYPTION, partitioning=types)
            assert by_v(read).equals(by_v(table))


def several(rows: int = 60) -> pa.Table:
    return pa.table(
        {
            "day": [None if n % 7 == 0 else DAY for n in range(rows)],
            "v": range(rows),
            "city": ["Ulm", None, "a/b"] * (rows // 3),
            "w": [f"w{n}" for n in range(rows)],
            "n": pa.array([n % 4 for n in range(rows)], pa.int32()),
        }
    )


def test_several_columns_make_folders_in_folders_in_the_order_asked_for(tmp_path: Path) -> None:
    table, names = several(), ("n", "day", "city")
    paths = mc.write_dataset(table, tmp_path / "ours", ENCRYPTION, partitioning=names)
    assert paths[1] == "n=1/day=2026-01-31/city=__HIVE_DEFAULT_PARTITION__/part-1.parquet"
    expected = by_folder_of_pyarrow(tmp_path / "theirs", table, hive(table, *names))
    assert by_folder(tmp_path / "ours", paths) == expected
    assert "n=1/day=2026-01-31/city=__HIVE_DEFAULT_PARTITION__" in expected
    with open_with_pyarrow(tmp_path / "ours" / paths[0]) as file:
        assert file.schema_arrow.names == ["v", "w"]


@pytest.mark.parametrize(
    ("scheme", "file"),
    [
        (ds.DirectoryPartitioning, "2/a=b %/part-2.parquet"),
        (ds.FilenamePartitioning, "2_a=b %_part-2.parquet"),
    ],
)
def test_other_partitionings_are_honoured(scheme: Any, file: str, tmp_path: Path) -> None:
    cities = pa.array(["Ulm", None, "a=b %", "ü"] * 15)
    table = several().drop_columns(["city"]).append_column("city", cities)
    fields = pa.schema([("n", pa.int32()), ("city", pa.string())])
    paths = mc.write_dataset(table, tmp_path / "ours", ENCRYPTION, partitioning=scheme(fields))
    plain = tmp_path / "theirs"
    ds.write_dataset(table, plain, format="parquet", partitioning=scheme(fields))

    def begins(paths: list[str]) -> list[str]:
        return sorted(path.partition("part-")[0] for path in paths)

    assert begins(paths) == begins(files(plain))
    for path in paths:
        (tmp_path / "decrypted" / path).parent.mkdir(parents=True, exist_ok=True)
        mc.decrypt_parquet(tmp_path / "ours" / path, tmp_path / "decrypted" / path, DECRYPTION)
    read = ds.dataset(tmp_path / "decrypted", partitioning=scheme(fields)).to_table()
    assert by_v(read).equals(by_v(table))
    assert file in paths
    ours = mc.read_table(tmp_path / "ours", DECRYPTION, partitioning=scheme(fields))
    assert by_v(ours).equals(by_v(table))


def test_a_hive_partitioning_may_spell_null_otherwise(tmp_path: Path) -> None:
    fields = pa.schema([("city", pa.string())])
    scheme = ds.HivePartitioning(fields, null_fallback="nowhere")
    paths = mc.write_dataset(several(), tmp_path, ENCRYPTION, partitioning=scheme)
    assert sorted({os.path.dirname(p) for p in paths}) == ["city=Ulm", "city=a%2Fb", "city=nowhere"]


def test_values_take_the_type_that_the_partitioning_says(tmp_path: Path) -> None:
    scheme = ds.partitioning(pa.schema([("p", pa.string())]), flavor="hive")
    table = pa.table({"p": pa.array([1, 2, 1]).dictionary_encode(), "v": [0, 1, 2]})
    assert mc.write_dataset(table, tmp_path, ENCRYPTION, partitioning=scheme) == [
        "p=1/part-0.parquet",
        "p=2/part-1.parquet",
    ]


@each_case(
    ("values", "scheme"),
    [
        (pa.array(["a", "__HIVE_DEFAULT_PARTITION__"]), "hive"),  # would be null
        (pa.array([b"\xff"]), "hive"),
        (pa.array([decimal.Decimal("1.5")]), "hive"),
        (pa.array(["a"]).dictionary_encode(), ds.HivePartitioning),
        (pa.array(["a", "b/c"]), ds.DirectoryPartitioning),
        (pa.array([""]), ds.DirectoryPartitioning),  # would be null
        (pa.array(["a", "../../b"]), ds.DirectoryPartitioning),
        (pa.array(["a", "a_b"]), ds.FilenamePartitioning),
        (pa.array(["a", "b/c"]), ds.FilenamePartitioning),
    ],
)
def test_what_a_path_cant_spell_is_refused(values: Any, scheme: Any, tmp_path: Path) -> None:
    table = pa.table({"p": values, "v": range(len(values))})
    partitioning = ["p"] if scheme == "hive" else scheme(table.select(["p"]).schema)
    with pytest.raises(ValueError, match="cannot represent a value of the partition columns p"):
        mc.write_dataset(table, tmp_path / "in", ENCRYPTION, partitioning=partitioning)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["hive", ds.DirectoryPartitioning, ds.FilenamePartitioning])
def test_no_value_of_a_partition_leads_out_of_the_folder(scheme: Any, tmp_path: Path) -> None:
    """Values come from the data, so whoever writes a row could choose a path."""
    values = ["..", ".", "../../out", "/abs", "a/../../../b", "%2e%2e", "a\\..", "a\nb", "x\0y"]
    base = tmp_path / "deep" / "er" / "base"
    for number, value in enumerate(values):
        table = pa.table({"p": [value], "v": [number]})
        partitioning = ["p"] if scheme == "hive" else scheme(table.select(["p"]).schema)
        where = base / str(number)
        try:
            mc.write_dataset(table, where, ENCRYPTION, partitioning=partitioning)
        except ValueError:
            assert not where.exists()
            continue
        reading = "hive" if scheme == "hive" else partitioning
        assert mc.read_table(where, DECRYPTION, partitioning=reading)["p"].to_pylist() == [value]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(base) for path in written)
    assert len(written) >= 2


@pytest.mark.parametrize("value", ["..", "_x", ".y"])
def test_a_folder_that_readers_pass_over_is_refused(value: str, tmp_path: Path) -> None:
    table = pa.table({"p": ["a", value], "_q": [1, 1], "v": [1, 2]})
    scheme = ds.DirectoryPartitioning(pa.schema([("p", pa.string())]))
    for partitioning in (scheme, ["_q"]):
        with pytest.raises(ValueError, match="whose names begin with"):
            mc.write_dataset(table, tmp_path / "in", ENCRYPTION, partitioning=partitioning)
    assert list(tmp_path.iterdir()) == []


def test_a_null_before_a_value_has_no_place_in_folders_without_names(tmp_path: Path) -> None:
    table = pa.table({"p": pa.array([None], pa.string()), "q": [1], "v": [1]})
    scheme = ds.DirectoryPartitioning(pa.schema([("p", pa.string()), ("q", pa.int64())]))
    with pytest.raises(ValueError, match="cannot represent a value of the partition columns p, q"):
        mc.write_dataset(table, tmp_path, ENCRYPTION, partitioning=scheme)


def test_nested_columns_make_no_folders(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="list"):
        mc.write_dataset(small_table(), tmp_path / "in", ENCRYPTION, partitioning=["tags"])
    assert list(tmp_path.iterdir()) == []


# --- what is in the files -------------------------------------------------------------------------


def rich() -> pa.Table:
    numbers = range(300)
    codes = pa.array([bytes([n % 256] * 16) for n in numbers], pa.binary(16))
    more: dict[str, Any] = {
        "kind": pa.array([f"k{n % 5}" for n in numbers]).dictionary_encode(),
        "code": pa.ExtensionArray.from_storage(pa.uuid(), codes),
        "v": numbers,
    }
    small = small_table(300)
    return pa.table({**dict(zip(small.column_names, small.columns, strict=True)), **more})


def test_every_kind_of_column_stands_in_the_files_as_pyarrow_writes_it(tmp_path: Path) -> None:
    table = rich().replace_schema_metadata({"k": "v"})
    for name in ("flag", "day"):
        paths = mc.write_dataset(table, tmp_path / name, ENCRYPTION, partitioning=[name])
        plain = tmp_path / f"plain {name}"
        expected = by_folder_of_pyarrow(plain, table, hive(table, name))
        assert by_folder(tmp_path / name, paths) == expected
        with open_with_pyarrow(tmp_path / name / paths[0]) as file:
            theirs = pq.read_schema(next(plain.rglob("*.parquet")))
            assert file.schema_arrow.equals(theirs, check_metadata=True)


def test_our_own_reader_gives_the_table_back(tmp_path: Path) -> None:
    table = several()
    mc.write_dataset(table, tmp_path, ENCRYPTION, partitioning=["n", "city"])
    read = mc.read_table(tmp_path, DECRYPTION)
    assert by_v(read).equals(by_v(table))
    found = mc.read_table(tmp_path, DECRYPTION, filters=[("city", "=", "a/b"), ("n", "=", 2)])
    assert sorted(found["v"].to_pylist()) == [v for v in range(60) if v % 3 == 2 and v % 4 == 2]


def numbers(start: int, stop: int) -> pa.RecordBatch:
    values = pa.array(range(start, stop), pa.int64())
    return pa.record_batch({"v": values, "p": pa.compute.bit_wise_and(values, 3)})


NUMBERS = numbers(0, 0).schema
WHOLE = pa.Table.from_batches([numbers(0, 100)])
SOURCES: dict[str, Callable[[], Any]] = {
    "table": lambda: WHOLE,
    "chunked table": lambda: pa.concat_tables([WHOLE.slice(n, 7) for n in range(0, 100, 7)]),
    "sliced table": lambda: pa.Table.from_batches([numbers(-50, 150)]).slice(50, 100),
    "batch": lambda: numbers(0, 100),
    "reader": lambda: WHOLE.to_reader(max_chunksize=9),
    "dataset": lambda: ds.dataset(WHOLE),
    "scanner": lambda: ds.dataset(
        pa.Table.from_batches([numbers(-100, 100)]).append_column("x", pa.nulls(200))
    ).scanner(columns=["v", "p"], filter=pa.compute.field("v") >= 0),
    "generator": lambda: (numbers(n, n + 10) for n in range(0, 100, 10)),
    "list with an empty batch": lambda: [numbers(0, 50), numbers(0, 0), numbers(50, 100)],
    "stream of another library": lambda: Stream(),
}


class Stream:
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return WHOLE.__arrow_c_stream__(requested_schema)


@each_case("partitioning", [None, ["p"]])
@each_case("name", SOURCES)
def test_data_comes_in_many_shapes(name: str, partitioning: Any, tmp_path: Path) -> None:
    data = SOURCES[name]()
    schema = None if hasattr(data, "schema") or name.startswith("stream") else NUMBERS
    if name == "scanner":
        schema = None
    paths = mc.write_dataset(data, tmp_path, ENCRYPTION, schema=schema, partitioning=partitioning)
    rows = [row for found in by_folder(tmp_path, paths).values() for row in found]
    assert sorted(row["v"] for row in rows) == list(range(100))
    assert len(paths) == (4 if partitioning else 1)


@pytest.mark.parametrize("data", [WHOLE.slice(0, 0), [], [numbers(0, 0)]])
def test_no_rows_make_a_file_where_nothing_is_partitioned(data: Any, tmp_path: Path) -> None:
    schema = None if isinstance(data, pa.Table) else NUMBERS
    paths = mc.write_dataset(data, tmp_path / "one", ENCRYPTION, schema=schema)
    assert paths == ["part-0.parquet"]
    with open_with_pyarrow(tmp_path / "one" / paths[0]) as file:
        assert file.schema_arrow.equals(NUMBERS)
        assert file.metadata.num_rows == 0
    none = mc.write_dataset(data, tmp_path / "none", ENCRYPTION, schema=schema, partitioning=["p"])
    assert none == files(tmp_path / "none") == []


@each_case(
    ("data", "schema", "error", "words"),
    [
        ([numbers(0, 9)], None, ValueError, "the data has no schema"),
        (WHOLE, pa.schema([("v", pa.int32())]), ValueError, "schema differs"),
        ([WHOLE], NUMBERS, TypeError, "batch must be a pyarrow.RecordBatch, not Table"),
        ([numbers(0, 9).select(["p", "v"])], NUMBERS, ValueError, "a batch's schema differs"),
        ([numbers(0, 9).select(["v"])], NUMBERS, ValueError, "a batch's schema differs"),
        (5, None, ValueError, "the data has no schema"),
    ],
)
@each_case("partitioning", [None, ["p"]])
def test_data_of_another_schema_is_refused(
    data: Any, schema: Any, error: Any, words: str, partitioning: Any, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        mc.write_dataset(data, tmp_path, ENCRYPTION, schema=schema, partitioning=partitioning)
    assert files(tmp_path) == []


# --- sizes ----------------------------------------------------------------------------------------


@each_case("rows, step", itertools.product([1, 24, 25, 26], [7, 25, 100]), quick=one_in(2))
@each_case("partitioning", [None, ["p"]])
def test_files_have_exactly_as_many_rows_as_asked_for(
    rows: int, step: int, partitioning: Any, tmp_path: Path
) -> None:
    batches = [numbers(n, min(n + step, 100)) for n in range(0, 100, step)]
    how: Any = {"schema": NUMBERS, "partitioning": partitioning, "max_rows_per_file": rows}
    paths = mc.write_dataset(batches, tmp_path, ENCRYPTION, **how)
    sizes: dict[str, list[int]] = defaultdict(list)
    for path in paths:
        with open_with_pyarrow(tmp_path / path) as file:
            sizes[os.path.dirname(path)].append(file.metadata.num_rows)
    for found in sizes.values():
        total = 25 if partitioning else 100
        assert found == [rows] * (total // rows) + [total % rows] * (total % rows > 0)
    for where, found_rows in by_folder(tmp_path, paths).items():
        expected = [v for v in range(100) if not partitioning or where == f"p={v & 3}"]
        assert [row["v"] for row in found_rows] == expected


@pytest.mark.parametrize("partitioning", [None, ["p"]])
def test_options_of_the_writer_reach_every_file(partitioning: Any, tmp_path: Path) -> None:
    how: Any = {"row_group_size": 10, "compression": "zstd", "basename_template": "x{i}.pq"}
    paths = mc.write_dataset(WHOLE, tmp_path, ENCRYPTION, partitioning=partitioning, **how)
    for number, path in enumerate(paths):
        assert os.path.basename(path) == f"x{number}.pq"
        with open_with_pyarrow(tmp_path / path) as file:
            groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
            assert {group.num_rows for group in groups} <= {10, 5}
            assert groups[0].column(0).compression == "ZSTD"


def scattered_batches(batches: int = 40, partitions: int = 60) -> Iterator[pa.RecordBatch]:
    for n in range(batches):
        values = range(n * partitions, (n + 1) * partitions)
        yield pa.record_batch({"v": values, "p": [v * 7 % partitions for v in values]})


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return little memory, and few open files."""
    monkeypatch.setattr(dataset_writer, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(dataset_writer, "_GATHERED_BYTES", 4000)
    monkeypatch.setattr(dataset_writer, "_OPEN_FILES", 8)


@pytest.mark.usefixtures("small_limits")
def test_more_partitions_than_open_files_have_several_files_each(tmp_path: Path) -> None:
    how: Any = {"schema": next(scattered_batches()).schema, "aad_prefix_template": TEMPLATE}
    paths = mc.write_dataset(scattered_batches(), tmp_path, ENCRYPTION, partitioning=["p"], **how)
    assert len(paths) > len({os.path.dirname(path) for path in paths}) == 60
    assert sorted(paths) == files(tmp_path)
    rows = by_folder(tmp_path, paths)
    assert all(f"p={row['v'] * 7 % 60}" == where for where in rows for row in rows[where])
    for found in rows.values():
        assert [row["v"] for row in found] == sorted(row["v"] for row in found)
    assert sum(map(len, rows.values())) == 2400
    mc.read_table(tmp_path, DECRYPTION, aad_prefix_template=TEMPLATE, expected_parts=len(paths))


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return what grows with each block that is divided: its bytes, and all that are allocated."""
    seen: list[tuple[int, int]] = []
    split = dataset_writer._split_by_partition

    def watch(block: pa.RecordBatch, scheme: Any) -> Any:
        seen.append((block.nbytes, pa.total_allocated_bytes()))
        return split(block, scheme)

    monkeypatch.setattr(dataset_writer, "_split_by_partition", watch)
    return seen


@pytest.mark.usefixtures("small_limits")
def test_rows_that_wait_are_bounded_in_memory(
    splits: list[tuple[int, int]], tmp_path: Path
) -> None:
    before = pa.total_allocated_bytes()

    def batches() -> Iterator[pa.RecordBatch]:
        # One partition takes nearly all; slices of the others would keep it in memory.
        for n in range(300):
            yield pa.record_batch({"v": range(100), "p": [n % 50, *[99] * 99]})

    schema = next(batches()).schema
    mc.write_dataset(batches(), tmp_path, ENCRYPTION, schema=schema, partitioning=["p"])
    assert max(allocated for _, allocated in splits) - before < 200_000  # all is 480,000
    (path,) = (path for path in files(tmp_path) if path.startswith("p=99"))
    with open_with_pyarrow(tmp_path / path) as file:
        groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    # Of 500 that wait at most: row groups are no smaller than need be.
    assert min(groups[:-1]) > 200


@pytest.mark.usefixtures("small_limits")
def test_a_large_batch_is_divided_bit_by_bit(splits: list[tuple[int, int]], tmp_path: Path) -> None:
    mc.write_dataset(numbers(0, 2000), tmp_path, ENCRYPTION, partitioning=["p"])
    assert sum(size for size, _ in splits) == 32_000
    assert max(size for size, _ in splits) < 2000


@pytest.mark.usefixtures("small_limits")
def test_a_file_that_is_in_use_stays_open(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(200):
            yield pa.record_batch({"v": range(100), "p": [*[99] * 50, *[n % 60] * 50]})

    schema = next(batches()).schema
    mc.write_dataset(batches(), tmp_path, ENCRYPTION, schema=schema, partitioning=["p"])
    assert len(list((tmp_path / "p=99").iterdir())) == 1
    assert len(files(tmp_path)) > 61


FEW_DESCRIPTORS = """
    import os, resource, sys
    import pyarrow as pa
    import modcrypt as mc

    def batches():
        for n in range(3):
            values = range(n * 100, (n + 1) * 100)
            yield pa.record_batch({"v": values, "p": [v * 7 % 100 for v in values]})

    encryption = mc.FileEncryptionProperties(footer_key=b"0123456789012345")
    schema = next(batches()).schema
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, used + 20))
    print(*mc.write_dataset(batches(), sys.argv[1], encryption, schema=schema, partitioning=["p"]))
"""


def test_a_partition_is_one_file_where_rows_fit_into_memory(tmp_path: Path) -> None:
    """In a process of its own, whose number of open files the other tests do not change."""
    command = [sys.executable, "-c", textwrap.dedent(FEW_DESCRIPTORS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    paths = done.stdout.split()
    assert len(paths) == 100
    assert paths[:2] == ["p=0/part-0.parquet", "p=7/part-1.parquet"]  # as they first come


# --- AAD prefixes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("partitioning", [None, ["p"]])
def test_each_file_has_the_aad_prefix_of_its_number(
    stored: bool, partitioning: Any, tmp_path: Path
) -> None:
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, store_aad_prefix=stored)
    how: Any = {"max_rows_per_file": 20, "aad_prefix_template": TEMPLATE}
    paths = mc.write_dataset(WHOLE, tmp_path, properties, partitioning=partitioning, **how)
    assert len(paths) == (8 if partitioning else 5)
    for number, path in enumerate(paths):
        prefix = f"people.part{number}".encode()
        with open_with_pyarrow(tmp_path / path, aad_prefix=prefix) as file:
            assert file.read().num_rows <= 20
        other = f"people.part{number + 1}".encode()
        with pytest.raises(OSError, match=r"(?i)decrypt|AAD"):
            open_with_pyarrow(tmp_path / path, aad_prefix=other)
    read = parts(tmp_path, len(paths))
    assert sorted(read["v"].to_pylist()) == list(range(100))


def parts(base: Path, count: int) -> pa.Table:
    return mc.read_table(base, DECRYPTION, aad_prefix_template=TEMPLATE, expected_parts=count)


def test_a_part_that_is_replaced_after_the_parts_were_checked_is_refused(tmp_path: Path) -> None:
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    options: dict[str, Any] = {"max_rows_per_file": 20, "aad_prefix_template": TEMPLATE}
    paths = mc.write_dataset(WHOLE, tmp_path / "in", properties, **options)
    mc.write_dataset(WHOLE, tmp_path / "again", properties, **options)
    how: dict[str, Any] = {"aad_prefix_template": TEMPLATE, "expected_parts": len(paths)}
    batches = mc.iter_batches(tmp_path / "in", DECRYPTION, **how)
    (tmp_path / "again" / paths[2]).replace(tmp_path / "in" / paths[2])
    with pytest.raises(OSError, match="replaced while it was being read") as caught:
        list(batches)
    assert str(tmp_path / "in" / paths[2]) in str(caught.value)
    assert parts(tmp_path / "in", len(paths)).num_rows == 100


# --- keys by path ---------------------------------------------------------------------------------


def test_each_file_has_the_keys_that_a_function_gives_for_its_path(tmp_path: Path) -> None:
    key_of = {"p=0": FOOTER_KEY, "p=1": COLUMN_KEY, "p=2": OTHER_KEY, "p=3": b"k" * 16}
    asked = []

    def encryption(path: str) -> mc.FileEncryptionProperties:
        asked.append(path)
        return mc.FileEncryptionProperties(footer_key=key_of[os.path.dirname(path)])

    paths = mc.write_dataset(WHOLE, tmp_path, encryption, partitioning=["p"])
    assert asked == paths
    for path in paths:
        with open_with_pyarrow(tmp_path / path, key_of[os.path.dirname(path)]) as file:
            assert file.read().num_rows == 25
        with pytest.raises(OSError, match="decrypt"):
            open_with_pyarrow(tmp_path / path, b"x" * 16)

    def decryption(path: str) -> mc.FileDecryptionProperties:
        return mc.FileDecryptionProperties(footer_key=key_of[Path(path).parent.name])

    assert by_v(mc.read_table(tmp_path, decryption))["v"].to_pylist() == list(range(100))


def test_column_keys_are_those_of_columns_in_the_files(tmp_path: Path) -> None:
    keys = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"v": COLUMN_KEY})
    mc.write_dataset(WHOLE, tmp_path, keys, partitioning=["p"])
    with pytest.raises(mc.errors.KeyNotFoundError):
        mc.read_table(tmp_path, DECRYPTION)
    both = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"v": COLUMN_KEY})
    assert mc.read_table(tmp_path, both).num_rows == 100


# --- mistakes: nothing is made --------------------------------------------------------------------

PUBLIC = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"p": COLUMN_KEY})
UNKNOWN = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"nope": COLUMN_KEY})
DECLARED = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["p"])
PREFIXED = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"x")
MISTAKES: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "a key of a partition column": (PUBLIC, {}, ValueError, "in the names of folders: p"),
    "a declared partition column": (DECLARED, {}, ValueError, "in the names of folders: p"),
    "a key of no column": (UNKNOWN, {}, ValueError, "nope"),
    "two prefixes": (PREFIXED, {"aad_prefix_template": TEMPLATE}, ValueError, "not both"),
    "no number in the prefix": (ENCRYPTION, {"aad_prefix_template": "x"}, ValueError, "{i}"),
    "no number in names": (ENCRYPTION, {"basename_template": "x"}, ValueError, "{i}"),
    "folders in names": (ENCRYPTION, {"basename_template": "a/{i}"}, ValueError, "without folders"),
    "hidden names": (ENCRYPTION, {"basename_template": "_{i}"}, ValueError, "begin with"),
    "hidden files": (
        ENCRYPTION,
        {"basename_template": ".{i}", "partitioning": None},
        ValueError,
        "begin with",
    ),
    "a wrong option": (ENCRYPTION, {"compresion": "zstd"}, TypeError, "compresion"),
    "a wrong value": (ENCRYPTION, {"compression": "nope"}, Exception, "nope|NOPE"),
    "an option of ours": (ENCRYPTION, {"overwrite": True}, TypeError, "overwrite"),
    "PyArrow's keys": (ENCRYPTION, {"encryption_properties": 1}, TypeError, "not supported"),
    "row groups": (ENCRYPTION, {"row_group_size": 0}, ValueError, "row_group_size"),
    "no rows": (ENCRYPTION, {"max_rows_per_file": 0}, ValueError, "max_rows_per_file"),
    "no threads": (ENCRYPTION, {"threads": 0}, ValueError, "threads"),
    "behaviour": (ENCRYPTION, {"existing_data_behavior": "x"}, ValueError, "overwrite_or_ignore"),
    "one name": (ENCRYPTION, {"partitioning": "p"}, ValueError, "names of columns"),
    "no schema": (ENCRYPTION, {"partitioning": ds.partitioning(flavor="hive")}, ValueError, "with"),
    "no such column": (ENCRYPTION, {"partitioning": ["z", "a"]}, ValueError, "twice: a, z"),
    "a column twice": (ENCRYPTION, {"partitioning": ["p", "p"]}, ValueError, "twice: p"),
    "a field of no column": (
        ENCRYPTION,
        {"partitioning": ds.HivePartitioning(pa.schema([("z", pa.int32())]))},
        ValueError,
        "twice: z",
    ),
    "no columns left": (ENCRYPTION, {"partitioning": ["p", "v"]}, ValueError, "all columns"),
    "no encryption": (None, {}, TypeError, "FileEncryptionProperties"),
    "no properties": (lambda _: None, {}, TypeError, "FileEncryptionProperties"),
    "a function's wrong key": (lambda _: PUBLIC, {}, ValueError, "in the names of folders: p"),
    "a function's wrong column": (lambda _: UNKNOWN, {}, ValueError, "nope"),
    "a wrong option and a function": (lambda _: ENCRYPTION, {"foo": 1}, TypeError, "foo"),
    "no file system": (ENCRYPTION, {"filesystem": 5}, TypeError, "filesystem"),
}  # fmt: skip


@each_case("name", MISTAKES)
def test_a_mistake_is_reported_before_there_is_a_file_or_folder(name: str, tmp_path: Path) -> None:
    encryption, arguments, error, words = MISTAKES[name]
    arguments = {"partitioning": ["p"], **arguments}
    with pytest.raises(error, match=words):
        mc.write_dataset(WHOLE, tmp_path / "in", encryption, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_column_that_is_there_twice_makes_no_folders(tmp_path: Path) -> None:
    table = pa.table([[1], [2], [3]], names=["p", "p", "v"])
    with pytest.raises(ValueError, match="occur twice: p"):
        mc.write_dataset(table, tmp_path, ENCRYPTION, partitioning=["p"])


# --- what was there before ------------------------------------------------------------------------


def test_a_folder_with_files_in_it_is_refused(tmp_path: Path) -> None:
    mc.write_dataset(WHOLE, tmp_path / "in", ENCRYPTION, partitioning=["p"])
    before = {path: (tmp_path / "in" / path).read_bytes() for path in files(tmp_path / "in")}
    with pytest.raises(FileExistsError, match="the folder contains files") as caught:
        mc.write_dataset(WHOLE, tmp_path / "in", ENCRYPTION)
    assert caught.value.filename == str(tmp_path / "in")
    assert {path: (tmp_path / "in" / path).read_bytes() for path in before} == before
    assert files(tmp_path / "in") == sorted(before)


def test_a_folder_of_a_store_is_refused_by_its_url() -> None:
    url = f"memory://{uuid.uuid4()}"
    mc.write_dataset(WHOLE, url, ENCRYPTION)
    with pytest.raises(FileExistsError) as caught:
        mc.write_dataset(WHOLE, url, ENCRYPTION)
    assert caught.value.filename.replace("///", "//") == url


def test_empty_folders_and_hidden_files_are_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "p=1").mkdir()
    (tmp_path / "_SUCCESS").touch()
    assert len(mc.write_dataset(WHOLE, tmp_path, ENCRYPTION, partitioning=["p"])) == 4


def test_files_of_the_same_names_are_replaced_on_request_and_others_stay(tmp_path: Path) -> None:
    options: dict[str, Any] = {"aad_prefix_template": TEMPLATE}
    old = mc.write_dataset(WHOLE, tmp_path, ENCRYPTION, max_rows_per_file=30, **options)
    options["existing_data_behavior"] = "overwrite_or_ignore"
    new = mc.write_dataset(WHOLE, tmp_path, ENCRYPTION, max_rows_per_file=40, **options)
    assert (len(old), len(new), len(files(tmp_path))) == (4, 3, 4)
    rows = by_folder(tmp_path, new)[""]
    assert [row["v"] for row in rows] == list(range(100))
    with pytest.raises(mc.errors.AadPrefixError, match="foreign files, beyond 3 parts"):
        parts(tmp_path, len(new))


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield numbers(0, 50)
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / "part-0.parquet").write_bytes(b"somebody else's")

    with pytest.raises(FileExistsError):
        mc.write_dataset(batches(), tmp_path / "in", ENCRYPTION, schema=NUMBERS)
    assert files(tmp_path) == ["in/part-0.parquet"]
    assert (tmp_path / "in" / "part-0.parquet").read_bytes() == b"somebody else's"


# --- what goes wrong on the way -------------------------------------------------------------------


class Oops(BaseException):
    pass


@pytest.mark.parametrize("partitioning", [None, ["p"]])
@pytest.mark.usefixtures("small_limits")
def test_an_exception_in_the_data_leaves_no_file(partitioning: Any, tmp_path: Path) -> None:
    oops = Oops()
    seen = []

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(0, 5000, 100):
            yield numbers(n, n + 100)
        seen.extend(files(tmp_path))
        raise oops

    options = {"schema": NUMBERS, "partitioning": partitioning, "max_rows_per_file": 300}
    with pytest.raises(Oops) as caught:
        mc.write_dataset(batches(), tmp_path, ENCRYPTION, **options)
    assert caught.value is oops
    assert len([path for path in seen if path.endswith(".parquet")]) > 4
    assert files(tmp_path) == []


@pytest.mark.parametrize("partitioning", [None, ["p"]])
def test_an_exception_in_the_function_for_keys_leaves_no_file(
    partitioning: Any, tmp_path: Path
) -> None:
    oops = Oops()

    def encryption(path: str) -> mc.FileEncryptionProperties:
        if "part-3" in path:
            assert len(files(tmp_path)) >= 3
            raise oops
        return ENCRYPTION

    with pytest.raises(Oops) as caught:
        mc.write_dataset(
            WHOLE, tmp_path, encryption, partitioning=partitioning, max_rows_per_file=20
        )
    assert caught.value is oops
    assert files(tmp_path) == []


@pytest.mark.parametrize("partitioning", [None, ["p"]])
def test_a_failure_at_close_leaves_no_file(
    partitioning: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    published = []
    replace = os.link

    def failing(source: str, target: str, **folders: Any) -> None:
        if "part-2" in target:
            raise OSError(28, "No space left on device")
        if not target.endswith(".tmp"):  # each file has this name at first
            published.append(target)
        replace(source, target, **folders)

    monkeypatch.setattr(os, "link", failing)
    with pytest.raises(OSError, match="No space left") as caught:
        mc.write_dataset(
            WHOLE, tmp_path, ENCRYPTION, partitioning=partitioning, max_rows_per_file=20
        )
    assert caught.value.filename == str(
        tmp_path / ("p=1" if partitioning else "") / "part-2.parquet"
    )
    assert len(published) == 2
    assert files(tmp_path) == []


def test_what_went_wrong_first_is_reported_even_if_removing_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    oops = Oops()
    removed = []
    remove = Place.remove

    def failing(place: Place) -> None:
        if place.name == "part-1.parquet":
            raise PermissionError(13, "no")
        removed.append(place.name)
        remove(place)

    monkeypatch.setattr(Place, "remove", failing)

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbers(0, 100)
        raise oops

    with pytest.raises(Oops) as caught:
        mc.write_dataset(batches(), tmp_path, ENCRYPTION, schema=NUMBERS, max_rows_per_file=20)
    assert caught.value is oops
    assert removed == ["part-0.parquet", "part-2.parquet", "part-3.parquet"]
    assert files(tmp_path) == ["part-1.parquet"]


PROGRAM = """
    import os, resource, signal, sys
    import pyarrow as pa
    import modcrypt as mc

    base, fault = sys.argv[1:]
    properties = mc.FileEncryptionProperties(footer_key=b"0123456789012345")
    schema = pa.schema([("v", pa.string()), ("p", pa.int64())])

    def batch(rows):
        text = [os.urandom(500).hex() for _ in range(rows)]
        return pa.record_batch({"v": text, "p": [n % 4 for n in range(rows)]}, schema=schema)

    def batches():
        yield batch(100)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch(4000)

    if fault == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    try:
        mc.write_dataset(batches(), base, properties, schema=schema,
                         max_rows_per_file=10 ** 6 if fault == "full" else 30,
                         partitioning=["p"] if fault == "full" else None)
    except OSError as error:
        print(error.errno, os.path.basename(error.filename))
"""


def run(base: Path, fault: str) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(PROGRAM)
    return subprocess.run(
        [sys.executable, "-c", program, str(base), fault],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_full_disk_is_the_systems_own_error_and_leaves_no_file(tmp_path: Path) -> None:
    done = run(tmp_path, "full")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["27", "part-0.parquet"]  # EFBIG
    assert files(tmp_path) == []


def test_a_killed_process_leaves_complete_files_alone_under_names_of_the_dataset(
    tmp_path: Path,
) -> None:
    assert run(tmp_path, "kill").returncode == -signal.SIGKILL
    complete = files(tmp_path)
    assert complete == ["part-0.parquet", "part-1.parquet", "part-2.parquet"]
    assert len(by_folder(tmp_path, complete)[""]) == 90
    with pytest.raises(FileExistsError):
        mc.write_dataset(WHOLE, tmp_path, ENCRYPTION)
    for path in complete:
        (tmp_path / path).unlink()
    (tmp_path / ".modcrypt-0123456789abcdef.tmp").touch()
    mc.write_dataset(WHOLE, tmp_path, ENCRYPTION)  # what is hidden is no dataset
    assert mc.read_table(tmp_path, DECRYPTION).equals(WHOLE)


# --- file systems ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["local of pyarrow", "subtree", "local of fsspec", "URL"])
def test_local_file_systems_are_the_folder_itself(kind: str, tmp_path: Path) -> None:
    local = pyarrow.fs.LocalFileSystem()
    base, filesystem = {
        "local of pyarrow": (str(tmp_path / "a b"), local),
        "subtree": ("a b", pyarrow.fs.SubTreeFileSystem(str(tmp_path), local)),
        "local of fsspec": (str(tmp_path / "a b"), fsspec.filesystem("file")),
        "URL": ((tmp_path / "a b").as_uri(), None),
    }[kind]
    table = several()
    paths = mc.write_dataset(table, base, ENCRYPTION, partitioning=["city"], filesystem=filesystem)
    assert sorted(paths) == files(tmp_path / "a b")
    expected = by_folder_of_pyarrow(tmp_path / "plain", table, hive(table, "city"))
    assert by_folder(tmp_path / "a b", paths) == expected
    read = mc.read_table(base, DECRYPTION, filesystem=filesystem)
    assert by_v(read)["city"].equals(by_v(table)["city"])


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("partitioning", [None, ["city", "n"]])
def test_a_dataset_may_lie_in_memory(
    wrapped: bool, partitioning: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    memory = fsspec.filesystem("memory")
    base = f"/{tmp_path.name}"
    request.addfinalizer(lambda: memory.rm(base, recursive=True))
    filesystem = pa.fs.PyFileSystem(pa.fs.FSSpecHandler(memory)) if wrapped else memory
    table = several()
    options = {"partitioning": partitioning, "filesystem": filesystem}
    paths = mc.write_dataset(table, base, ENCRYPTION, **options)
    assert sorted(memory.find(base)) == sorted(f"{base}/{path}" for path in paths)
    memory.get(base, str(tmp_path / "copy"), recursive=True)
    rows = by_folder(tmp_path / "copy", paths)
    assert sum(map(len, rows.values())) == 60
    if partitioning:
        expected = by_folder_of_pyarrow(tmp_path / "plain", table, hive(table, *partitioning))
        assert rows == expected
    read = mc.read_table(base, DECRYPTION, filesystem=filesystem)
    assert by_v(read).num_columns == 5
    with pytest.raises(FileExistsError):
        mc.write_dataset(table, base, ENCRYPTION, **options)

    def failing(path: str) -> mc.FileEncryptionProperties:
        if "part-1" in path:
            raise Oops
        return ENCRYPTION

    with pytest.raises(Oops):
        mc.write_dataset(table, base + "/more", failing, max_rows_per_file=5, **options)
    assert sorted(memory.find(base)) == sorted(f"{base}/{path}" for path in paths)
