"""Reading encrypted tables with Spark; PyArrow and Spark's own reader judge."""

from __future__ import annotations

import datetime
import decimal
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import DecimalType, IntegerType, StructType

import modcrypt as mc
from modcrypt.errors import FormatError
from modcrypt.parquet.arrow.scanning.small_files import SmallFiles
from modcrypt.spark.source.arrow_types import (
    conform,
    to_common_schema,
    to_spark_arrow_schema,
    to_spark_schema,
)
from modcrypt.spark.source.data_source import ModcryptDataSource
from modcrypt.spark.source.options import read_options
from modcrypt.spark.source.reading import (
    Reader,
    RowCounter,
    TableFile,
    assign_pieces,
    find_files,
    parse_folder_values,
)
from tests.support.forging import change_footer
from tests.support.recipients import identity
from tests.support.signing import writer_key
from tests.support.spark.lake import COLUMN, FOOTER, Lake
from tests.support.spark.processes import Elsewhere
from tests.support.tables import small_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def encryption(**more: Any) -> mc.FileEncryptionProperties:
    keys = {"name": COLUMN, "address": COLUMN}
    ids = {"name": b"c", "address": b"c"}
    return mc.FileEncryptionProperties(
        footer_key=FOOTER, column_keys=keys, column_key_metadata=ids, **more
    )


def write(path: Path, table: pa.Table, **options: Any) -> Path:
    """Write a file, encrypted, and beside its folder the same in plaintext."""
    plain = path.parent.with_name(f"{path.parent.name}-plain") / path.name
    for file in (path, plain):
        file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, plain, **options)
    mc.encrypt_parquet(plain, path, encryption())
    return path


def load(spark: Any, path: object, options: dict[str, str], schema: str | None = None) -> DataFrame:
    reader = spark.read.format("modcrypt").options(**options)
    reader = reader if schema is None else reader.schema(schema)
    frame: DataFrame = reader.load(str(path))
    return frame


def rows(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in frame.collect())


# --- what is read --------------------------------------------------------------------------------


def test_a_folder_reads_as_sparks_own_reader_reads_its_plaintext_twin(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    table = small_table(3000)
    for n in range(3):
        write(tmp_path / "t" / f"{n}.parquet", table.slice(n * 1000, 1000), row_group_size=300)
    ours, theirs = (
        load(spark, tmp_path / "t", lake.by_keys),
        spark.read.parquet(f"{tmp_path}/t-plain"),
    )
    assert ours.schema == theirs.schema
    assert rows(ours) == rows(theirs)
    assert ours.where("score > 100 and name is not null").count() == (
        theirs.where("score > 100 and name is not null").count()
    )


def test_batches_of_small_files_are_merged_and_those_of_large_ones_are_not(
    lake: Lake, tmp_path: Path
) -> None:
    table = small_table(1000)
    for n in range(20):
        write(tmp_path / "t" / f"{n:02}.parquet", table.slice(n * 50, 50))
    batches = list(read_here(lake, tmp_path / "t"))
    assert [batch.num_rows for batch in batches] == [1000]
    assert pa.Table.from_batches(batches)["id"].to_pylist() == table["id"].to_pylist()
    rows = (1 << 16) + 1
    write(tmp_path / "u" / "0.parquet", pa.table({"id": range(rows), "name": ["x"] * rows,
                                                  "address": ["y"] * rows}))  # fmt: skip
    assert [batch.num_rows for batch in read_here(lake, tmp_path / "u")] == [1 << 16, 1]


def flat_table(rows: int) -> pa.Table:
    return (
        small_table(rows).select(["id", "name", "score"]).append_column("address", [["x"] * rows])
    )


def test_small_files_are_decoded_together(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = flat_table(1000)
    for n in range(20):
        write(tmp_path / "t" / f"{n:02}.parquet", table.slice(n * 50, 50))
    list(read_here(lake, tmp_path / "t"))  # keeps the schema
    opened, real = [], pq.ParquetFile

    def open_file(*args: Any, **named: Any) -> Any:
        opened.append(args)
        return real(*args, **named)

    monkeypatch.setattr(pq, "ParquetFile", open_file)
    (batch,) = read_here(lake, tmp_path / "t")
    assert pa.Table.from_batches([batch])["id"].to_pylist() == table["id"].to_pylist()
    assert len(opened) <= 4  # the first one, all others, and schemas


def test_small_files_that_cannot_be_decoded_together_are_read_alone(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = flat_table(100)
    for n in range(4):
        write(tmp_path / "t" / f"{n}.parquet", table.slice(n * 25, 25))

    def fail(_: object) -> None:
        raise FormatError("damaged")

    for take in (fail, lambda _: None):
        with monkeypatch.context() as patch:
            patch.setattr(SmallFiles, "take", take)
            (batch,) = read_here(lake, tmp_path / "t")
        assert pa.Table.from_batches([batch])["id"].to_pylist() == table["id"].to_pylist()


def test_an_error_of_small_files_names_one_of_them(lake: Lake, tmp_path: Path) -> None:
    for n in range(4):
        names = ["x", None if n == 2 else "y"]
        table = pa.table({"id": [1, 2], "name": names, "address": ["a", "b"]})
        write(tmp_path / "t" / f"{n}.parquet", table)
    source = ModcryptDataSource({**lake.by_keys, "path": str(tmp_path / "t")})
    reader = source.reader(StructType().add("id", "long").add("name", "string", nullable=False))
    with pytest.raises(ValueError, match=r"2\.parquet: column name has nulls"):
        _ = [list(reader.read(pieces)) for pieces in reader.partitions()]


def read_here(lake: Lake, path: Path) -> Iterator[pa.RecordBatch]:
    """Read a table in this process, as the tasks of Spark do."""
    source = ModcryptDataSource({**lake.by_keys, "path": str(path)})
    reader = source.reader(source.schema())
    for pieces in reader.partitions():
        yield from reader.read(pieces)


def test_files_of_several_schemas_in_one_task(lake: Lake, tmp_path: Path) -> None:
    table = small_table(100)
    widths = (pa.int32(), pa.int64(), pa.int32())
    for n, kind in enumerate(widths):
        part = table.slice(n * 10, 10)
        names = part.column_names
        part = part.set_column(names.index("id"), "id", part["id"].cast(kind))
        write(tmp_path / "t" / f"{n}.parquet", part.select(names if n else [*reversed(names)]))
    source = ModcryptDataSource({**lake.by_keys, "path": str(tmp_path / "t")})
    found = source.reader(StructType().add("ID", "long").add("score", "double"))
    batches = [batch for pieces in found.partitions() for batch in found.read(pieces)]
    rows = pa.Table.from_batches(batches)
    assert rows["ID"].to_pylist() == table["id"].to_pylist()[:30]
    assert rows["score"].to_pylist() == table["score"].to_pylist()[:30]


def test_every_type_comes_as_spark_has_it(spark: Any, lake: Lake, tmp_path: Path) -> None:
    moment = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)
    table = pa.table(
        {
            "name": pa.array(["a", None], pa.large_string()),
            "address": pa.array([{"zip": "1"}, None], pa.struct([("zip", pa.string())])),
            "dictionary": pa.array(["x", None]).dictionary_encode(),
            "binary": pa.array([b"ab", None], pa.binary(2)),
            "uint32": pa.array([2**32 - 1, None], pa.uint32()),
            "int8": pa.array([-5, None], pa.int8()),
            "decimal": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(38, 2)),
            "day": pa.array([datetime.date(1, 1, 1), None]),
            "naive_ms": pa.array([moment, None], pa.timestamp("ms")),
            "naive_ns": pa.array([-1, None], pa.timestamp("ns")),
            "zoned": pa.array([moment, None], pa.timestamp("us", "Europe/Berlin")),
            "lists": pa.array([[[1], None], None], pa.large_list(pa.list_(pa.int32()))),
            "map": pa.array(
                [[("k", {"v": 1})], None], pa.map_(pa.string(), pa.struct([("v", pa.int64())]))
            ),
            "required": pa.array([1, 2]),
        },
    )
    fields = [f.with_nullable(f.name != "required") for f in table.schema]
    write(tmp_path / "t" / "f.parquet", table.cast(pa.schema(fields)))
    frame = load(spark, tmp_path / "t", lake.by_keys)
    kinds = dict(frame.dtypes)
    assert kinds == {
        "name": "string", "address": "struct<zip:string>", "dictionary": "string",
        "binary": "binary", "uint32": "bigint", "int8": "tinyint", "decimal": "decimal(38,2)",
        "day": "date", "naive_ms": "timestamp_ntz", "naive_ns": "timestamp_ntz",
        "zoned": "timestamp", "lists": "array<array<int>>", "map": "map<string,struct<v:bigint>>",
        "required": "bigint",
    }  # fmt: skip
    reported = frame.selectExpr(
        *(f"cast({name} as string)" for name in kinds if name != "binary"), "hex(binary) binary"
    ).collect()
    assert reported[0].asDict() == {
        "name": "a", "address": "{1}", "dictionary": "x", "binary": "6162", "uint32": "4294967295",
        "int8": "-5", "decimal": "1.50", "day": "0001-01-01",
        "naive_ms": "1969-12-31 23:59:59.999", "naive_ns": "1969-12-31 23:59:59.999999",
        "zoned": "1969-12-31 18:59:59.999999", "lists": "[[1], null]", "map": "{k -> {1}}",
        "required": "1",
    }  # fmt: skip
    assert {value for name, value in reported[1].asDict().items() if name != "required"} == {None}


def test_times_that_spark_itself_wrote_as_int96_are_read_back(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    query = "select timestamp'2400-02-29 12:00:00.123456 UTC' at, array(timestamp'1800-01-01') many"
    query += ", 'n' name, named_struct('zip', 'z') address"
    spark.sql(query).coalesce(1).write.parquet(f"{tmp_path}/plain")
    (plain,) = (tmp_path / "plain").glob("*.parquet")
    assert pq.ParquetFile(plain).schema.column(0).physical_type == "INT96"
    mc.encrypt_parquet(plain, tmp_path / "f.parquet", encryption())
    frame = load(spark, tmp_path / "f.parquet", lake.by_keys)
    assert frame.schema == spark.read.parquet(str(plain)).schema
    assert rows(frame) == rows(spark.read.parquet(str(plain)))


def test_enumerations_are_text(spark: Any, lake: Lake, tmp_path: Path) -> None:
    """Writers of Avro and protocol buffers have these; PyArrow reads them as binary."""

    def enumerate_names(metadata: Any) -> None:
        leaf = next(element for element in metadata.schema if element.name == b"name")
        leaf.logicalType, leaf.converted_type = None, 4

    plain, file = tmp_path / "plain.parquet", tmp_path / "f.parquet"
    pq.write_table(flat_table(5), plain, store_schema=False)
    mc.encrypt_parquet(plain, file, encryption())
    file.write_bytes(change_footer(file.read_bytes(), FOOTER, enumerate_names))
    keys = mc.FileDecryptionProperties(
        footer_key=FOOTER, column_keys={"name": COLUMN, "address": COLUMN}
    )
    mc.decrypt_parquet(file, plain, keys, overwrite=True, exact=False)
    assert pq.ParquetFile(plain).schema.column(1).logical_type.type == "ENUM"
    ours, theirs = load(spark, file, lake.by_keys), spark.read.parquet(str(plain))
    assert ours.schema == theirs.schema
    assert rows(ours.where("name > 'name-1'")) == rows(theirs.where("name > 'name-1'"))
    assert rows(ours) == rows(theirs)


def test_folders_named_as_hive_names_them_are_columns(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    for country, year in (("NO", 2025), ("NO", 2026), ("AT", 2026)):
        where = tmp_path / "t" / f"country={country}" / f"year={year}"
        where.mkdir(parents=True)
        mc.write_table(small_table(year - 2000), where / "f.parquet", encryption())
    frame = load(spark, tmp_path / "t", lake.by_keys)
    assert [field.name for field in frame.schema][-2:] == ["country", "year"]
    found = {
        (row.country, row.year): row["count"]
        for row in frame.groupBy("country", "year").count().collect()
    }
    assert found == {("NO", 2025): 25, ("NO", 2026): 26, ("AT", 2026): 26}
    only = load(spark, tmp_path / "t", lake.by_keys, "year string, id bigint")
    assert only.where("year = '2025'").agg({"id": "sum"}).collect()[0][0] == sum(range(25))


def test_folders_are_columns_regardless_of_case_and_take_types_of_the_schema(
    lake: Lake, tmp_path: Path
) -> None:
    for path in ("t/Week=01/cost=1.50", "t/week=x/cost=__HIVE_DEFAULT_PARTITION__", "u/week=2"):
        (tmp_path / path).mkdir(parents=True)
        mc.write_table(small_table(1), tmp_path / path / "f.parquet", encryption())
    both = json.dumps([str(tmp_path / name) for name in "tu"])
    source = ModcryptDataSource({**lake.by_keys, "paths": both, "columns": "id,WEEK"})
    assert source.schema().simpleString() == "struct<id:bigint,Week:string>"
    wanted = source.schema().add("cost", DecimalType(5, 2))
    options = {**lake.by_keys, "path": str(tmp_path / "t")}
    reader = ModcryptDataSource(options).reader(wanted)
    (batch,) = [batch for pieces in reader.partitions() for batch in list[Any](reader.read(pieces))]
    weeks, costs = batch["Week"].to_pylist(), batch["cost"].to_pylist()
    assert (weeks, costs) == (["01", "x"], [decimal.Decimal("1.50"), None])
    for name, kind in (("WEEK", IntegerType()), ("cost", DecimalType(2, 0))):
        wrong = ModcryptDataSource(options).reader(StructType().add(name, kind))
        with pytest.raises(ValueError, match=r"[Ww]eek=.*f.parquet: "):
            wrong.partitions()


def test_two_folders_of_a_path_are_no_one_column() -> None:
    with pytest.raises(ValueError, match=r"K=1/k=2/f.parquet: names of folders differ only by"):
        parse_folder_values(["K=1/k=2/f.parquet"], StructType().add("k", IntegerType()))


@pytest.mark.parametrize("folder", ["id=7", "ID=7"])
def test_a_folder_that_names_a_column_of_the_file_is_refused(
    spark: Any, lake: Lake, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "t" / folder).mkdir(parents=True)
    mc.write_table(small_table(5), tmp_path / "t" / folder / "f.parquet", encryption())
    with pytest.raises(
        AnalysisException, match="id: both a column of the file and the name of a folder"
    ):
        load(spark, tmp_path / "t", lake.by_keys)
    with pytest.raises(
        PySparkException, match="id: both a column of the file and the name of a folder"
    ):
        load(spark, tmp_path / "t", lake.by_keys, f"{folder[:2]} bigint").collect()


def test_columns_read_no_others_and_need_no_other_keys(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    write(tmp_path / "t" / "f.parquet", small_table(40))
    footer_alone = {"footerKey": lake.by_keys["footerKey"]}
    table = pq.read_table(tmp_path / "t-plain" / "f.parquet")
    for options, schema in (
        ({"columns": "score, id"}, None),
        ({"columns": '["score", "id"]'}, None),
        ({}, "score double, id bigint"),
    ):
        frame = load(spark, tmp_path / "t", footer_alone | options, schema)
        assert frame.columns == ["score", "id"]
        assert [tuple(row) for row in frame.orderBy("id").collect()] == list(
            zip(table["score"].to_pylist(), table["id"].to_pylist(), strict=True)
        )
    assert len(load(spark, tmp_path / "t", footer_alone).schema) == 8  # that the footer names
    with pytest.raises(PySparkException, match="no key for column name"):
        load(spark, tmp_path / "t", footer_alone).collect()


def test_part_of_a_struct_is_read_alone(spark: Any, lake: Lake, tmp_path: Path) -> None:
    write(tmp_path / "t" / "f.parquet", small_table(10))
    by_option = load(spark, tmp_path / "t", lake.by_keys | {"columns": "address.city,id"})
    by_schema = load(spark, tmp_path / "t", lake.by_keys, "address struct<city:string>, id bigint")
    assert by_option.schema == by_schema.schema
    theirs = spark.read.parquet(f"{tmp_path}/t-plain").selectExpr(
        "if(address is null, null, named_struct('city', address.city)) address", "id"
    )
    assert rows(by_option) == rows(by_schema) == rows(theirs)


@pytest.mark.parametrize("how", ["null", "drop"])
def test_columns_without_a_key_are_null_or_not_there(
    spark: Any, lake: Lake, tmp_path: Path, how: str
) -> None:
    write(tmp_path / "t" / "f.parquet", small_table(40))
    options = {"footerKey": lake.by_keys["footerKey"], "onMissingKey": how}
    frame = load(spark, tmp_path / "t", options)
    ours = mc.read_table(
        tmp_path / "t",
        mc.FileDecryptionProperties(footer_key=FOOTER, on_missing_key=how),  # type: ignore[arg-type]  # one of two
    )
    assert frame.columns == ours.column_names
    assert ("name" in frame.columns) == (how == "null")
    assert frame.agg({"id": "sum"}).collect()[0][0] == sum(range(40))
    if how == "null":
        assert {tuple(row) for row in frame.select("name", "address").collect()} == {(None, None)}


def test_plaintext_is_refused_where_it_is_not_allowed(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    write(tmp_path / "t" / "f.parquet", small_table(5))
    plain = tmp_path / "t-plain"
    with pytest.raises(AnalysisException, match="PlaintextError"):
        load(spark, plain, lake.by_keys)
    with pytest.raises(PySparkException, match="PlaintextError"):
        load(spark, plain, lake.by_keys, "id bigint").collect()
    assert load(spark, plain, lake.by_keys | {"requireEncrypted": "false"}).count() == 5
    named = lake.by_keys | {"requireEncrypted": "name,id"}
    assert load(spark, tmp_path / "t", named).count() == 5


def test_an_altered_page_fails_the_query(spark: Any, lake: Lake, tmp_path: Path) -> None:
    path = write(tmp_path / "t" / "f.parquet", small_table(500))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(PySparkException, match=r"TagMismatchError: .*f\.parquet") as caught:
        load(spark, tmp_path / "t", lake.by_keys).collect()
    assert str(caught.value).index("TagMismatchError") < 600  # below few frames


# --- files that differ ---------------------------------------------------------------------------


def test_files_of_one_table_may_lack_columns_and_have_narrower_types(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    mc.write_table(pa.table({"a": pa.array([1], pa.int64()), "b": ["x"]}), tmp_path / "1", plain())
    mc.write_table(pa.table({"b": ["y"], "a": pa.array([2], pa.int32())}), tmp_path / "2", plain())
    mc.write_table(pa.table({"a": pa.array([3], pa.int64()), "c": [1.5]}), tmp_path / "3", plain())
    options = {"footerKey": lake.by_keys["footerKey"]}
    assert rows(load(spark, tmp_path, options)) == [
        "Row(a=1, b='x')", "Row(a=2, b='y')", "Row(a=3, b=None)",
    ]  # fmt: skip
    assert rows(load(spark, tmp_path, options, "c double, a long")) == [
        "Row(c=1.5, a=3)", "Row(c=None, a=1)", "Row(c=None, a=2)",
    ]  # fmt: skip


def plain() -> mc.FileEncryptionProperties:
    return mc.FileEncryptionProperties(footer_key=FOOTER)


def test_files_whose_types_do_not_fit_are_refused_by_name(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    mc.write_table(pa.table({"a": pa.array([1], pa.int32())}), tmp_path / "1", plain())
    mc.write_table(pa.table({"a": pa.array([2], pa.int64())}), tmp_path / "2", plain())
    options = {"footerKey": lake.by_keys["footerKey"]}
    with pytest.raises(
        PySparkException, match=r"/2: column a is int64 here, .* int32 of the table"
    ):
        load(spark, tmp_path, options).collect()
    assert rows(load(spark, tmp_path, options, "a bigint")) == ["Row(a=1)", "Row(a=2)"]


@pytest.mark.parametrize(
    "schema", ["A int", "place struct<CITY: string>", "PLACE struct<zip: int>"]
)
def test_names_differ_in_case_as_in_sparks_own_reader(
    spark: Any, lake: Lake, tmp_path: Path, schema: str
) -> None:
    place = pa.array([{"City": "Oslo", "zip": 150}, None])
    table = pa.table({"a": pa.array([1, 2], pa.int32()), "Place": place.cast(PLACE)})
    pq.write_table(table, tmp_path / "plain")
    mc.write_table(table, tmp_path / "sealed", plain())
    ours = load(spark, tmp_path / "sealed", {"footerKey": lake.by_keys["footerKey"]}, schema)
    theirs = spark.read.schema(schema).parquet(str(tmp_path / "plain"))
    assert rows(ours) == rows(theirs)


PLACE = pa.struct([("City", pa.string()), ("zip", pa.int32())])


def test_a_name_that_fits_two_columns_but_for_case_is_refused(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    mc.write_table(pa.table({"ab": [1], "aB": [2]}), tmp_path / "1", plain())
    options = {"footerKey": lake.by_keys["footerKey"]}
    assert rows(load(spark, tmp_path, options, "aB bigint")) == ["Row(aB=2)"]
    with pytest.raises(PySparkException, match="column AB: the file has aB, ab; name one of these"):
        load(spark, tmp_path, options, "AB bigint").collect()


def test_a_name_with_dots_that_fits_a_field_of_a_struct_is_refused(
    lake: Lake, tmp_path: Path
) -> None:
    mc.write_table(pa.table({"a.b": [1], "a": [{"b": 5, "c": 6}]}), tmp_path / "1", plain())
    with pytest.raises(ValueError, match=r"column a.b: the file has a.b, a.b; name one of these"):
        list(read_here(lake, tmp_path))  # Arrow would take the column for the field


def test_types_widen_as_in_sparks_own_reader(spark: Any, lake: Lake, tmp_path: Path) -> None:
    day = datetime.date(1969, 7, 20)
    table = pa.table({
        "i": pa.array([1, -(2**31), None], pa.int32()), "l": pa.array([1, -(2**63), None]),
        "f": pa.array([1.5, -0.0, None], pa.float32()), "d": pa.array([day, None, None]),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "plain")
    mc.write_table(table, tmp_path / "sealed", plain())
    for schema in (
        "i bigint, l decimal(20, 0), f double, d timestamp_ntz",
        "i double, l decimal(22, 2)",
        "i decimal(10, 0)",
        "i decimal(12, 2)",
    ):
        ours = load(spark, tmp_path / "sealed", {"footerKey": lake.by_keys["footerKey"]}, schema)
        assert rows(ours) == rows(spark.read.schema(schema).parquet(str(tmp_path / "plain")))


def test_a_merged_schema_has_the_columns_of_all_files(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    tables = [
        pa.table({"a": [1], "s": [{"x": 1}]}),
        pa.table({"b": ["y"], "s": [{"x": 2, "z": "w"}]}),
        pa.table({"c": [[1.5]], "a": [3]}),
    ]
    for folder in ("plain", "sealed"):
        (tmp_path / folder).mkdir()
    for n, table in enumerate(tables):
        pq.write_table(table, tmp_path / "plain" / f"{n}.parquet")
        mc.write_table(table, tmp_path / "sealed" / f"{n}.parquet", plain())
    options = {"footerKey": lake.by_keys["footerKey"], "mergeSchema": "true"}
    ours = load(spark, tmp_path / "sealed", options)
    theirs = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "plain"))
    assert sorted(ours.schema.fields, key=str) == sorted(theirs.schema.fields, key=str)
    assert rows(ours) == rows(theirs.select(*ours.columns))
    some = load(spark, tmp_path / "sealed", options | {"columns": "c,a"})
    assert rows(some) == rows(theirs.select("c", "a"))
    with pytest.raises(PySparkException, match="no file has the column nobody"):
        load(spark, tmp_path / "sealed", options | {"columns": "a,nobody"})


def test_a_merged_schema_takes_the_wider_type_or_is_refused(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    options = {"footerKey": lake.by_keys["footerKey"], "mergeSchema": "true"}
    mc.write_table(pa.table({"a": pa.array([1], pa.int32())}), tmp_path / "1", plain())
    mc.write_table(pa.table({"A": pa.array([2], pa.int64())}), tmp_path / "2", plain())
    assert rows(load(spark, tmp_path, options)) == ["Row(a=1)", "Row(a=2)"]
    mc.write_table(pa.table({"a": ["x"]}), tmp_path / "3", plain())
    with pytest.raises(PySparkException, match="column a is int64 in some files and string"):
        load(spark, tmp_path, options)


def test_rows_are_counted_by_the_footers_alone(spark: Any, lake: Lake, tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / "t" / f"day={n}").mkdir(parents=True)
        table, file = small_table(10 + n), tmp_path / "t" / f"day={n}" / f"{n}.parquet"
        mc.write_table(table, file, encryption())
    only_footer = {"footerKey": lake.by_keys["footerKey"], "rowCounts": "true"}
    counted = load(spark, tmp_path / "t", only_footer)
    assert counted.columns == ["file", "rows"]
    assert counted.agg({"rows": "sum"}).collect()[0][0] == 33
    assert {row.file: row.rows for row in counted.collect()} == {
        str(tmp_path / "t" / f"day={n}" / f"{n}.parquet"): 10 + n for n in range(3)
    }
    wrong_key = load(
        spark, tmp_path / "t", only_footer | {"footerKey": f"file:{new_key_file(tmp_path)}"}
    )
    with pytest.raises(PySparkException, match="footer: the tag does not match"):
        wrong_key.collect()


def new_key_file(folder: Path) -> Path:
    path = folder / "other.key"
    path.touch(mode=0o600)
    path.write_text("00112233445566778899aabbccddeeff")
    return path


def test_a_value_that_sparks_type_can_not_hold_is_not_in_the_message(tmp_path: Path) -> None:
    batch = pa.record_batch({"at": pa.array([2**62], pa.timestamp("s"))})
    with pytest.raises(ValueError, match=r"column at: .* can't represent a value of") as caught:
        conform(batch, pa.schema([("at", pa.timestamp("us"))]))
    assert str(2**62) not in str(caught.value)
    assert caught.value.__cause__ is None


def test_batches_are_what_spark_compares_them_with() -> None:
    """The judge is Spark's own function, and each value's Python form."""
    table = pa.table(
        {
            "s": pa.array([{"l": [[1], None], "m": [("k", None)]}, None, {"l": None, "m": []}],
                          pa.struct([("l", pa.large_list(pa.list_(pa.int8()))),
                                     ("m", pa.map_(pa.string(), pa.large_string()))])),
            "f": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
            "d": pa.array(["a", None, "a"]).dictionary_encode(),
        }
    )  # fmt: skip
    target = to_spark_arrow_schema(to_spark_schema(to_common_schema(table.schema)))
    for batch in (
        table.to_batches()[0],
        table.to_batches()[0].slice(1),
        table.slice(2).to_batches()[0],
    ):
        out = conform(batch, target)
        out.validate(full=True)
        assert out.schema.equals(target)
        assert out.to_pylist() == batch.to_pylist()


def test_nulls_are_refused_where_the_schema_has_none() -> None:
    batch = pa.record_batch({"a": pa.array([1, None])})
    with pytest.raises(ValueError, match="column a has nulls, but the schema says NOT NULL"):
        conform(batch, pa.schema([pa.field("a", pa.int64(), nullable=False)]))


# --- tasks ---------------------------------------------------------------------------------------


def test_large_files_are_cut_by_row_groups_and_small_ones_gathered(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    write(tmp_path / "t" / "large.parquet", small_table(4000), row_group_size=100)
    for n in range(7):
        write(tmp_path / "t" / f"small{n}.parquet", small_table(10))
    size = (tmp_path / "t" / "large.parquet").stat().st_size
    options = lake.by_keys | {"maxSplitBytes": str(size // 6)}
    frame = load(spark, tmp_path / "t", options)
    counts = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    cut = [count for count in counts if count > 10]
    assert len(cut) >= 6
    assert sum(cut) == 4000
    assert {count % 100 for count in cut} == {0}  # whole row groups
    assert max(cut) - min(cut) <= 100
    assert sum(counts) == 4070
    assert rows(frame) == rows(spark.read.parquet(f"{tmp_path}/t-plain"))


def test_a_table_has_about_as_many_tasks_as_are_asked_for(lake: Lake, tmp_path: Path) -> None:
    files = [TableFile(f"{n}", 2_000) for n in range(1_000)]
    assert [len(assign_pieces(files, 128 << 20, number)) for number in (None, 1, 8, 100)] == [
        8, 2, 8, 100,
    ]  # fmt: skip
    write(tmp_path / "t" / "0.parquet", small_table(10))
    write(tmp_path / "t" / "1.parquet", small_table(10))
    for more, number in (({}, 1), ({"minPartitionNum": "2"}, 2)):
        for kind in ({}, {"rowCounts": "true"}):
            source = ModcryptDataSource(
                {**lake.by_keys, "path": str(tmp_path / "t"), **more, **kind}
            )
            found = source.reader(source.schema()).partitions()
            assert len(found) == (2 if kind else number)


def test_every_file_is_in_just_one_task_or_cut_into_equal_shares(tmp_path: Path) -> None:
    for name in "ac":  # their ends are read
        mc.write_table(small_table(10), tmp_path / name, encryption())
    a, c = (str(tmp_path / name) for name in "ac")
    small = [TableFile(f"{n}", 8 << 10) for n in range(20_000)]
    tasks = assign_pieces(small, 128 << 20)
    assert [piece.path for task in tasks for piece in task.pieces] == [file.path for file in small]
    assert all(len(task.pieces) <= 500 for task in tasks)
    assert len(tasks) < 1000
    some = assign_pieces(
        [TableFile(a, 8 << 30), TableFile("b", 1), TableFile(c, 300 << 20)], 128 << 20
    )
    assert [[(p.path, p.split, p.splits) for p in task.pieces] for task in some] == [
        *([(a, n, 64)] for n in range(64)), [("b", 0, 1)], *([(c, n, 3)] for n in range(3)),
    ]  # fmt: skip
    identities = [{piece.identity for task in some for piece in task.pieces if piece.path == path}
                  for path in (a, "b", c)]  # fmt: skip
    assert [len(versions) for versions in identities] == [1, 1, 1]
    assert identities[1] == {None}
    assert identities[0] != identities[2]
    (tmp_path / "large").write_bytes(b"not a Parquet file")
    with pytest.raises(mc.errors.FormatError, match="large"):
        assign_pieces([TableFile(str(tmp_path / "large"), 8 << 30)], 128 << 20)
    assert [
        len(task.pieces) for task in assign_pieces([TableFile("a", 5 << 20)] * 8, 128 << 20)
    ] == [6, 2]


def replace(path: Path, data: bytes) -> None:
    """Replace a file by another."""
    path.with_name("other").write_bytes(data)
    path.with_name("other").replace(path)


def count(reader: Any, tasks: Any) -> int:
    return sum(batch.num_rows for task in tasks for batch in reader.read(task))


@pytest.mark.parametrize("kind", ["encrypted footer", "plaintext footer", "plaintext"])
def test_shares_of_two_versions_of_a_file_are_not_put_together(
    kind: str, lake: Lake, tmp_path: Path
) -> None:
    """Versions with as many rows and row groups, under the same keys and the same AAD prefix."""
    path, versions = tmp_path / "t.parquet", []
    for first, row_groups in ((0, 4), (1000, 4), (0, 3)):
        table = pa.table({"id": range(first, first + 400)})
        how: dict[str, Any] = {"aad_prefix": b"t"}
        how["plaintext_footer"] = kind == "plaintext footer"
        if kind == "plaintext":
            pq.write_table(table, path, row_group_size=400 // row_groups)
        else:
            properties = mc.FileEncryptionProperties(footer_key=FOOTER, **how)
            mc.write_table(table, path, properties, row_group_size=400 // row_groups)
        versions.append(path.read_bytes())
    replace(path, versions[0])
    more = {"requireEncrypted": "false"} if kind == "plaintext" else {"aadPrefix": "t"}
    options = {"footerKey": lake.by_keys["footerKey"], "path": str(path), **more}
    source = ModcryptDataSource({**options, "maxSplitBytes": str(path.stat().st_size // 2)})
    reader = source.reader(source.schema())
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    assert len(tasks) > 1
    assert count(reader, tasks) == 400
    for other in versions[1:]:
        replace(path, other)
        with pytest.raises(OSError, match=r"replaced while it was being read.*read it again"):
            list(reader.read(tasks[1]))
        assert count(reader, reader.partitions()) == 400
    replace(path, versions[0])  # the same bytes in another file are the same version
    assert count(reader, tasks) == 400


def test_an_empty_table_and_one_without_files(spark: Any, lake: Lake, tmp_path: Path) -> None:
    mc.write_table(small_table(0), tmp_path / "t.parquet", encryption())
    assert load(spark, tmp_path / "t.parquet", lake.by_keys).collect() == []
    (tmp_path / "none").mkdir()
    with pytest.raises(AnalysisException, match="no files in"):
        load(spark, tmp_path / "none", lake.by_keys)
    with pytest.raises(AnalysisException, match="FileNotFoundError"):
        load(spark, tmp_path / "nowhere", lake.by_keys)


# --- filters -------------------------------------------------------------------------------------

FILTERS = {
    "id >= 500 and id < 520": [["id", ">=", 500], ["id", "<", 520]],
    "id = 7 or id > 2990 and flag": [[["id", "=", 7]], [["id", ">", 2990], ["flag", "=", True]]],
    "id in (3, 1700)": [["id", "in", [3, 1700]]],
    "name not in ('name-3', 'name-4')": [["name", "not in", ["name-3", "name-4"]]],
    "name is null": [["name", "=", None]],
    "name is not null and id < 9": [["name", "!=", None], ["id", "<", 9]],
    "day >= date'2026-01-27'": [["day", ">=", "2026-01-27"]],
    "price = 12.25": [["price", "==", "12.25"]],
    "score != 3": [["score", "!=", 3]],
    "at < timestamp'2026-01-01 00:00:00 UTC'": [["at", "<", "2026-01-01T00:00:00Z"]],
    "text = 'b'": [["text", "=", "b"]],
    "country = 'NO' and id < 5": [["country", "=", "NO"], ["id", "<", 5]],
    "country = 'NO' or id < 5": [[["country", "=", "NO"]], [["id", "<", 5]]],
}


def test_filters_give_the_rows_that_spark_finds_in_the_plaintext_twin(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    table = small_table(3000)
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    moments = [start + datetime.timedelta(hours=n - 100) for n in range(3000)]
    table = table.append_column("at", pa.array(moments, pa.timestamp("ns", "UTC")))
    table = table.append_column("text", pa.array(["a", "b"] * 1500, pa.large_string()))
    for n, country in enumerate(("NO", "AT")):
        for folder in ("t", "t-plain"):
            (tmp_path / folder / f"country={country}").mkdir(parents=True)
        plain = tmp_path / "t-plain" / f"country={country}" / "f"
        own = tmp_path / "t" / f"country={country}" / "f"
        rows_here = table.slice(n * 1500, 1500)
        pq.write_table(rows_here, plain, row_group_size=500, coerce_timestamps="us")
        mc.write_table(rows_here, own, encryption(), row_group_size=500)
    theirs = spark.read.parquet(f"{tmp_path}/t-plain")
    for predicate, filters in FILTERS.items():
        ours = load(spark, tmp_path / "t", lake.by_keys | {"filters": json.dumps(filters)})
        assert rows(ours) == rows(theirs.where(predicate)), predicate


def test_filters_open_no_row_group_and_no_folder_that_they_rule_out(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    for country in ("NO", "AT"):
        (tmp_path / f"country={country}").mkdir()
        path = tmp_path / f"country={country}" / "f.parquet"
        mc.write_table(small_table(3000), path, encryption(), row_group_size=500)
        if country == "AT":
            data = bytearray(path.read_bytes())
            data[100] ^= 1  # in the first row group
            path.write_bytes(data)

    def count(*filters: object) -> int:
        more = {"columns": "id,country", "filters": json.dumps(filters)}
        return int(load(spark, tmp_path, lake.by_keys | more).count())

    assert count(["id", ">=", 2500]) == 1000
    assert count(["country", "=", "NO"]) == 3000
    assert count(["country", "=", "SE"]) == 0
    with pytest.raises(PySparkException, match="TagMismatchError"):
        count(["id", ">=", 0])


def test_filters_that_mean_nothing_are_refused_without_their_values(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    mc.write_table(small_table(5), tmp_path / "f.parquet", encryption())
    for filters, message in (
        ([["id", ">", "some-secret"]], "filters: id is int64; > needs a value"),
        ([["name", "=", "x"]], "filters: column name is not read; name it in columns, too"),
        (
            [["id", "like", "some-secret"]],
            "filters must be lists of a column, an operator and a value",
        ),
        ([["id", "in", 5]], "filters must be lists of a column, an operator and a value"),
        ([["id", "<", None]], "filters: id is int64; < needs a value"),
    ):
        more = {"columns": "id", "filters": json.dumps(filters)}
        with pytest.raises(AnalysisException, match=message) as caught:
            load(spark, tmp_path / "f.parquet", lake.by_keys | more).collect()
        assert "some-secret" not in str(caught.value)


def test_one_load_serves_queries_with_different_conditions(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    """Spark's own pushdown fails here: it keeps the filters of the last query for all others."""
    mc.write_table(small_table(3000), tmp_path / "f.parquet", encryption())
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, tmp_path / "f.parquet", lake.by_keys)
        assert frame.where("id between 500 and 520").count() == 21
        assert frame.where("id = 7 or id = 2999").count() == 2
        assert frame.where("id < 5").union(frame.where("id > 2990")).count() == 14
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


# --- SQL -----------------------------------------------------------------------------------------


def test_sql_reads_and_appends_by_a_view_or_by_options_of_the_query(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    mc.write_table(small_table(30), tmp_path / "t" / "f.parquet", encryption())
    keys = lake.by_keys | {"path": str(tmp_path / "t")}
    said = ", ".join(f"{name} '{value}'" for name, value in keys.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW people USING modcrypt OPTIONS ({said})")
    spark.sql(f"CREATE TABLE people_table USING modcrypt OPTIONS ({said})")
    asked = ", ".join(f"{name} = '{value}'" for name, value in keys.items())
    try:
        with pytest.raises(AnalysisException, match=r"SELECT \.\.\. FROM t WITH"):
            spark.sql("SELECT count(*) FROM people_table").collect()
        query = f"SELECT sum(id) FROM people_table WITH ({asked})"
        assert spark.sql(query).collect()[0][0] == sum(range(30))
        spark.sql(f"CREATE VIEW lasting AS SELECT * FROM people_table WITH ({asked})")
        spark.sql("INSERT INTO people SELECT * FROM people WHERE id < 10")
        found = spark.sql("SELECT sum(id) FROM lasting").collect()[0][0]
        assert found == sum(range(30)) + sum(range(10))
    finally:
        spark.sql("DROP VIEW IF EXISTS lasting")
        spark.sql("DROP TABLE people_table")
        spark.sql("DROP VIEW people")


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colums": "a"}, "unknown option colums; the options are aadPrefix, acceptAlgorithms"),
        ({"columns": " "}, "columns has no names"),
        ({"columns": "[1]"}, "columns must be a list of names"),
        ({"columns": "[x"}, "columns is not valid JSON"),
        ({"columnKeys": '["ssn"]'}, "columnKeys of? must be|columnKeys must be a table of columns"),
        ({"onMissingKey": "ignore"}, "onMissingKey must be error, drop or null"),
        ({"requireEncrypted": " , "}, "requireEncrypted must be true, false, or names"),
        ({"acceptAlgorithms": "AES"}, "acceptAlgorithms must be one or more of AES_GCM_V1"),
        ({"maxSplitBytes": "0"}, "maxSplitBytes must be a whole number, at least 1"),
        ({"minPartitionNum": "x"}, "minPartitionNum must be a whole number, at least 1"),
        ({"filters": "[]"}, "filters must be lists of a column, an operator and a value"),
        ({"path": ""}, "no path is given"),
        ({"kms": "file:ring"}, "pass exactly one"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_options({"path": "t", "footerKey": "env:K", **options})


def test_an_identity_opens_a_table_that_recipients_were_named_for(
    spark: Any, tmp_path: Path
) -> None:
    me = identity()
    me.save(tmp_path / "me.key")
    folder, rows = str(tmp_path / "table"), spark.createDataFrame([(1, "a")], "id int, name string")
    rows.write.format("modcrypt").option("recipients", str(me.recipient)).mode("append").save(
        folder
    )
    read = spark.read.format("modcrypt").option("identity", f"file:{tmp_path}/me.key").load(folder)
    assert [tuple(row) for row in read.collect()] == [(1, "a")]
    with pytest.raises(ValueError, match="file:PATH"):
        read_options({"path": folder, "identity": "me.key"})


def test_writers_sign_and_readers_require_it(spark: Any, tmp_path: Path, lake: Lake) -> None:
    key = writer_key()
    key.save(tmp_path / "writer.key")
    (tmp_path / "writer.pub").write_text(f"{key.verifier}\n")
    folder, rows = (
        str(tmp_path / "signed"),
        spark.createDataFrame([(1, "a")], "id int, name string"),
    )
    keys = {"footerKey": lake.by_keys["footerKey"]}
    signing = {"signingKey": f"file:{tmp_path}/writer.key", **keys}
    rows.write.format("modcrypt").options(**signing).mode("append").save(folder)
    for named in (str(tmp_path / "writer.pub"), str(key.verifier)):
        reader = spark.read.format("modcrypt").options(signedBy=named, **keys)
        assert [tuple(row) for row in reader.load(folder).collect()] == [(1, "a")]
    other = str(writer_key(number=1).verifier)
    reader = spark.read.format("modcrypt").options(signedBy=other, **keys)
    with pytest.raises(Exception, match="signed by another key"):
        reader.load(folder).collect()
    with pytest.raises(ValueError, match="file:PATH"):
        read_options({"path": folder, "signingKey": "writer.key", **keys})


def test_a_missing_file_of_a_required_seal_is_an_error(tmp_path: Path) -> None:
    """The driver lists the files, so it compares the list with the seal."""
    folder, key, policy = tmp_path / "t", writer_key(), tmp_path / "policy.toml"
    folder.mkdir()
    for name in ("f.parquet", "g.parquet"):
        (folder / name).write_bytes(b"PAR1")
    mc.jobs.seal_dataset(folder, key)
    policy.write_text(
        f'footer_key = "k"\nkms = "file:ring"\nsigned_by = ["{key.verifier}"]\nseal_at_least = 1\n'
    )
    settings, options = read_options({"path": str(folder), "policy": str(policy)})
    assert len(find_files(options, StructType(), settings)) == 2
    for name, missing in (("g.parquet", "g.parquet"), ("f.parquet", "f.parquet and 1 more")):
        (folder / name).unlink()
        for reader in (Reader(settings, options, StructType()), RowCounter(settings, options)):
            with pytest.raises(mc.errors.IntegrityError, match=rf"{missing}: in the seal"):
                reader.partitions()
    for merging in ("false", "true"):  # Spark asks for the schema before there is a reader
        source = ModcryptDataSource(
            {"path": str(folder), "policy": str(policy), "mergeSchema": merging}
        )
        with pytest.raises(mc.errors.IntegrityError, match=r"f\.parquet and 1 more: in the seal"):
            source.schema()


def test_a_declared_dataset_without_its_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "other.parquet").write_bytes(b"PAR1")
    (tmp_path / "modcrypt.toml").write_text(
        'kms = "file:ring"\n[dataset.t]\nlocation = "t"\nfooter_key = "k"\ninclude = "*.pq"\n'
    )
    source = ModcryptDataSource({"lake": str(tmp_path / "modcrypt.toml"), "dataset": "t"})
    with pytest.raises(ValueError, match=r"no file matches '\*\.pq'"):
        source.schema()


def test_a_part_of_a_dataset_has_the_seal_of_the_whole(tmp_path: Path) -> None:
    part = tmp_path / "t" / "day=1"
    for name in ("day=1", "day=2"):
        (tmp_path / "t" / name).mkdir(parents=True)
        (tmp_path / "t" / name / "f.parquet").write_bytes(b"PAR1")
    mc.jobs.seal_dataset(tmp_path / "t", writer_key())
    (tmp_path / "modcrypt.toml").write_text(
        'kms = "file:ring"\n[dataset.t]\nlocation = "t"\nfooter_key = "k"\n'
        f'signed_by = ["{writer_key().verifier}"]\nseal_at_least = 1\n'
    )
    lake = {"lake": str(tmp_path / "modcrypt.toml"), "dataset": "t"}
    settings, options = read_options({"path": str(part), **lake})
    assert len(find_files(options, StructType(), settings)) == 1
    (part / "f.parquet").unlink()
    with pytest.raises(mc.errors.IntegrityError, match=r"day=1/f\.parquet: in the seal"):
        find_files(options, StructType(), settings)


def test_paths_are_those_of_spark_and_hadoop(lake: Lake, tmp_path: Path) -> None:
    for spelt in (f"file:{tmp_path}", f"file://{tmp_path}", str(tmp_path)):
        (tmp_path / "f.parquet").write_bytes(b"PAR1")
        options = read_options({"PATH": spelt, **lake.by_keys})[1]
        assert [file.path for file in find_files(options, StructType())] == [
            str(tmp_path / "f.parquet")
        ]
    several = read_options({"paths": json.dumps([str(tmp_path)] * 2), **lake.by_keys})[1]
    assert len(find_files(several, StructType())) == 2


# --- elsewhere -----------------------------------------------------------------------------------

ELSEWHERE = """
import json, sys

plain, table, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
plain = spark.read.parquet(plain)
plain.repartition(4).write.format("modcrypt").mode("append").options(**options).save(table)
back = spark.read.format("modcrypt").options(**options).load(table)
assert back.schema == plain.schema
assert sorted(map(str, back.collect())) == sorted(map(str, plain.collect()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["cluster", "connect"])
def test_executors_in_processes_of_their_own_read_and_write(
    request: pytest.FixtureRequest, lake: Lake, tmp_path: Path, where: str
) -> None:
    elsewhere: Elsewhere = request.getfixturevalue(where)
    plain, table = tmp_path / "plain.parquet", elsewhere.folder / "written and read"
    pq.write_table(small_table(200), plain)
    # On a cluster it is relative to the driver, wherever tasks run.
    spelt = table.name if where == "cluster" else table
    elsewhere.run(ELSEWHERE, plain, spelt, json.dumps(lake.by_policy))
    files = sorted(table.iterdir())
    assert [path.name[:10] for path in files] == [f"part-{n:05}" for n in range(4)]
    found = mc.read_table(table, lake.open(lake.by_policy))
    assert found.sort_by("id").equals(pq.read_table(plain))
