"""Iceberg's read restrictions in the Spark source: masks hide values from filters, too."""

from __future__ import annotations

import datetime
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import modcrypt as mc
from modcrypt.errors import UnsupportedFormatError
from modcrypt.spark.source.data_source import ModcryptDataSource
from modcrypt.spark.source.options import write_options
from modcrypt.spark.source.restrictions import Restrictions
from modcrypt.spark.source.streaming import stream_reader
from tests.support.iceberg.builder import arrow
from tests.support.spark.lake import COLUMN, FOOTER, Lake

DAY = datetime.date(2026, 7, 14)
SCHEMA = arrow([
    (1, "id", pa.int64()), (2, "name", pa.large_string()), (3, "card", pa.string()),
    (4, "born", pa.date32()), (5, "region", pa.string()), (6, "code", pa.int32()),
])  # fmt: skip
ROWS = pa.table(
    [
        [1, 2, 3, 4], ["Ada-1815", None, "Grace", "Alan"], ["4111-1111", "12", None, "5"],
        [DAY, None, DAY, DAY], ["EU", "US", None, "EU"], [7, None, 7, 8],
    ],
    schema=SCHEMA,
)  # fmt: skip
EU = {"type": "eq", "left": {"type": "reference", "id": 5}, "right": "EU"}


def document(row_filter: Any = None, **actions: str) -> str:
    """Return restrictions as JSON; the actions are on columns by their names."""
    ids = {name: number for number, name in enumerate(SCHEMA.names, 1)}
    projections = [
        {"field-id": ids[name], "action": action.replace("_", "-")}
        for name, action in actions.items()
    ]
    members = {"required-column-projections": projections, "required-row-filter": row_filter}
    return json.dumps({name: value for name, value in members.items() if value is not None})


def write(path: Path, table: pa.Table = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    mc.write_table(table, path, mc.FileEncryptionProperties(footer_key=FOOTER), row_group_size=1)
    return path


def options(lake: Lake, path: Path, restrictions: str, **more: Any) -> dict[str, str]:
    given = {"footerKey": lake.by_keys["footerKey"], "path": str(path)}
    return {**given, "readRestrictions": restrictions, **more}


def read(lake: Lake, path: Path, restrictions: str, **more: Any) -> dict[str, list[Any]]:
    """Read a table as the driver and the tasks of Spark do, each with its own copy."""
    source = ModcryptDataSource(options(lake, path, restrictions, **more))
    schema = source.schema()
    reader: Any = source.reader(schema)
    batches = []
    for pieces in reader.partitions():
        batches += pickle.loads(pickle.dumps(reader)).read(pieces)
    if not batches:
        return {name: [] for name in schema.names}
    return pa.Table.from_batches(batches).to_pydict()  # type: ignore[no-any-return]


# --- what is read --------------------------------------------------------------------------------


def test_masks_are_those_of_mask_parquet(lake: Lake, tmp_path: Path) -> None:
    path = write(tmp_path / "t" / "a.parquet")
    actions = document(
        name="mask_alphanum", card="show_last_4", born="truncate_to_year",
        region="mask_to_fixed_value", code="sha_256_global",
    )  # fmt: skip
    copy = tmp_path / "copy.parquet"
    keys = mc.FileDecryptionProperties(footer_key=FOOTER)
    text = ROWS.set_column(1, SCHEMA.field("name").with_type(pa.string()), ROWS["name"].cast("str"))
    mc.mask_parquet(
        write(tmp_path / "u" / "a.parquet", text), copy, keys,
        read_restrictions=json.loads(actions),
    )  # fmt: skip
    found = read(lake, path.parent, actions)
    assert found == mc.read_table(copy, keys).to_pydict()
    assert found["name"] == ["xxx-nnnn", None, "xxxxx", "xxxx"]
    assert found["region"] == ["XXXXXXXX"] * 4  # nulls, too


def test_nulls_replace_values(lake: Lake, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    assert read(lake, path, document(name="replace_with_null"))["name"] == [None] * 4
    source = ModcryptDataSource(options(lake, path, document(id="replace_with_null")))
    reader: Any = source.reader(StructType().add("id", "long", nullable=False))
    with pytest.raises(UnsupportedFormatError, match="is not for"):
        list(reader.read(reader.partitions()[0]))


def test_a_row_filter_sees_values_and_needs_no_column_of_the_result(
    lake: Lake, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.parquet")
    restrictions = document(EU, region="replace_with_null", name="mask_alphanum")
    found = read(lake, path, restrictions, columns="id,region")
    assert found == {"id": [1, 4], "region": [None, None]}
    assert read(lake, path, restrictions, columns="name") == {"name": ["xxx-nnnn", "xxxx"]}
    assert read(lake, path, document({"type": "not", "child": EU}))["id"] == [2, 3]
    assert read(lake, path, document(False))["id"] == []
    assert read(lake, path, document({"type": "is-null", "term": "name"}))["id"] == [2]


def test_a_row_filter_needs_pyiceberg(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet")
    monkeypatch.setattr(f"{Restrictions.__module__}.find_spec", lambda name: None)
    assert read(lake, path, document(name="replace_with_null"))["name"] == [None] * 4
    with pytest.raises(ModuleNotFoundError, match=r"readRestrictions needs an extra.*\[iceberg\]"):
        read(lake, path, document(EU))


def test_a_row_filter_passes_over_types_that_iceberg_lacks(lake: Lake, tmp_path: Path) -> None:
    kinds = [pa.time64("ns"), pa.duration("us"), pa.null(), pa.uint8(), pa.list_(pa.int8())]
    fields = arrow([(number, f"c{number}", kind) for number, kind in enumerate(kinds, 10)])
    table = pa.table(
        [*ROWS.columns, *(pa.nulls(4, kind) for kind in kinds)],
        schema=pa.schema([*SCHEMA, *fields]),
    )
    write(tmp_path / "a.parquet", table)
    small = {"type": "not", "child": {"type": "gt", "term": "c13", "value": 3}}
    both = {"type": "and", "left": EU, "right": small}
    assert read(lake, tmp_path, document(both), columns="id")["id"] == [1, 4]
    for name in ("c10", "c11", "c14"):
        with pytest.raises(UnsupportedFormatError, match="not a column of the schema"):
            read(lake, tmp_path, document({"type": "is-null", "term": name}), columns="id")


def test_filters_never_see_what_a_mask_hides(lake: Lake, tmp_path: Path) -> None:
    """Neither by rows nor by statistics: a filter on the value finds the same as on any other."""
    write(tmp_path / "a.parquet", ROWS)
    masks = document(name="mask_alphanum", code="replace_with_null", card="mask_to_fixed_value")

    def ids(*filters: Any) -> list[int]:
        found: list[int] = read(lake, tmp_path, masks, filters=json.dumps(filters))["id"]
        return found

    for hidden, other in (("Ada-1815", "no such name"), ("Grace", "Zoe")):
        for how in ("=", "!=", "<", ">="):
            seen = ids(["name", how, hidden])
            masked = {1: "xxx-nnnn", 3: "xxxxx", 4: "xxxx"}
            compare = {
                "=": str.__eq__, "!=": str.__ne__, "<": str.__lt__, ">=": str.__ge__,
            }[how]  # fmt: skip
            assert seen == [id_ for id_, text in masked.items() if compare(text, hidden)]
        assert ids(["name", "=", hidden]) == ids(["name", "=", other]) == []
    assert ids(["name", "=", "xxx-nnnn"]) == [1]
    assert ids(["code", "=", 7]) == ids(["code", "!=", None]) == []
    assert ids(["card", "in", ["XXXXXXXX"]]) == [1, 2, 3, 4]
    assert ids(["id", ">", 2], ["name", "=", "xxxx"]) == [4]
    assert read(
        lake, tmp_path, masks, filters=json.dumps([[["name", "=", "Grace"]], [["id", "=", 2]]])
    )["id"] == [2]  # fmt: skip


def test_files_of_one_query_share_the_salt(lake: Lake, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.parquet")
    salted = document(card="sha_256_query_local", code="sha_256_query_local")
    more = {"minPartitionNum": "2"}
    first, second = (read(lake, tmp_path, salted, **more) for _ in range(2))
    assert first["card"][:4] == first["card"][4:] != second["card"][:4]
    assert first["code"][0] == first["code"][2] != second["code"][0]


def test_columns_are_found_by_field_ids_in_files_that_differ(lake: Lake, tmp_path: Path) -> None:
    """Renamed, moved or absent columns: names say nothing about what is masked."""
    write(tmp_path / "a.parquet")
    fields = [(9, "name", pa.string()), (2, "card", pa.string()), (1, "id", pa.int64())]
    write(tmp_path / "b.parquet", pa.table([["open"], ["hidden"], [5]], schema=arrow(fields)))
    found = read(lake, tmp_path, document(name="mask_alphanum", born="truncate_to_year"))
    assert found["name"] == ["xxx-nnnn", None, "xxxxx", "xxxx", "open"]
    assert found["card"][-1] == "xxxxxx"
    assert found["card"][:2] == ["4111-1111", "12"]


def test_a_path_names_a_file_of_the_driver(lake: Lake, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    (tmp_path / "r.json").write_text(document(card="mask_alphanum"))
    assert read(lake, path, str(tmp_path / "r.json"))["card"][0] == "nnnn-nnnn"


def test_counts_of_rows(lake: Lake, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    found = read(lake, path, document(card="mask_alphanum"), rowCounts="true")
    assert found["rows"] == [4]
    with pytest.raises(ValueError, match="rowCounts counts all rows"):
        read(lake, path, document(EU), rowCounts="true")


@pytest.mark.parametrize(
    "folder", ["region=EU", "name_trunc=Ad", "region=__HIVE_DEFAULT_PARTITION__"]
)
def test_counts_of_rows_show_no_masked_value_in_a_path(
    lake: Lake, tmp_path: Path, folder: str
) -> None:
    write(tmp_path / "t" / folder / "a.parquet", ROWS.drop_columns(["region"]))
    with pytest.raises(UnsupportedFormatError, match="count the rows of a column") as caught:
        read(lake, tmp_path / "t", document(region="replace_with_null"), rowCounts="true")
    assert folder not in str(caught.value)
    found = read(lake, tmp_path / "t", "{}", rowCounts="true")  # restricts nothing
    assert found["file"] == [str(tmp_path / "t" / folder / "a.parquet")]
    part = tmp_path / "t" / folder  # the caller knows the folder's name
    assert read(lake, part, document(name="mask_alphanum"), rowCounts="true")["rows"] == [4]


# --- what is refused -----------------------------------------------------------------------------


def id_action(id_: int, action: str) -> str:
    return json.dumps({"required-column-projections": [{"field-id": id_, "action": action}]})


REFUSED = {
    "no JSON": ("{", ValueError, "readRestrictions is not valid JSON"),
    "a repeated member": (
        '{"required-column-projections": [], "required-column-projections": []}', ValueError,
        "repeats a member",
    ),
    "no file": ("/nowhere/r.json", FileNotFoundError, "r.json"),
    "an unknown member": ('{"required-something": []}', UnsupportedFormatError, "unknown members"),
    "an unknown action": (id_action(2, "mask-all"), UnsupportedFormatError, "'mask-all' is not"),
    "an unknown column": (
        id_action(99, "mask-alphanum"), UnsupportedFormatError, r"no file has .* ids \[99\]",
    ),
    "a truth value as field id": (
        id_action(1, "replace-with-null").replace("1", "true"), UnsupportedFormatError, "malformed",
    ),
    "NaN in the row filter": (
        '{"required-row-filter": {"type": "eq", "term": "id", "value": NaN}}',
        ValueError, "not valid JSON",
    ),
    "another type": (id_action(1, "mask-alphanum"), UnsupportedFormatError, "not for int64"),
    "two actions": (
        json.dumps({"required-column-projections": [
            {"field-id": 1, "action": "replace-with-null"},
            {"field-id": 1, "action": "mask-to-fixed-value"},
        ]}), UnsupportedFormatError, "two actions",
    ),
    "an unknown condition": (document({"type": "maybe"}), UnsupportedFormatError, "is not known"),
    "a condition on an unknown column": (
        document({"type": "is-null", "term": "nothing"}), UnsupportedFormatError, "not a column",
    ),
    "a condition of another type": (
        document({"type": "eq", "term": "id", "value": "x"}), UnsupportedFormatError,
        "not fit the columns$",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_applied(
    text: str, error: type[Exception], message: str, lake: Lake, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.parquet")
    with pytest.raises(error, match=message):
        read(lake, path, text)


def test_columns_without_field_ids_might_be_the_masked_one(lake: Lake, tmp_path: Path) -> None:
    masks = document(card="mask_alphanum")
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", ROWS.cast(pa.schema([(f.name, f.type) for f in SCHEMA])))
    with pytest.raises(UnsupportedFormatError, match="field ids, which the file does not have"):
        read(lake, tmp_path, masks)
    part = SCHEMA.set(2, pa.field("card", pa.string()))
    write(tmp_path / "b.parquet", ROWS.cast(part))
    with pytest.raises(UnsupportedFormatError, match="columns without field ids"):
        read(lake, tmp_path, masks)


def test_the_name_of_a_folder_may_state_a_masked_value(lake: Lake, tmp_path: Path) -> None:
    for region in ("EU", "US"):
        write(tmp_path / f"region={region}" / "a.parquet", ROWS.drop_columns("region"))
    filters = json.dumps([["region", "=", "XX"]])  # drops all files
    with pytest.raises(UnsupportedFormatError, match=r"no file has columns .* \[5\]"):
        read(lake, tmp_path, document(region="replace_with_null"), filters=filters)
    write(tmp_path / "region=EU" / "b.parquet")
    with pytest.raises((ValueError, UnsupportedFormatError), match="folder"):
        read(lake, tmp_path, document(region="replace_with_null"))


def test_the_name_of_a_folder_may_state_a_part_of_a_masked_value(
    lake: Lake, tmp_path: Path
) -> None:
    """As the folders of Iceberg's partitions do."""
    write(tmp_path / "card_trunc=41" / "a.parquet", ROWS.slice(0, 1))
    masks = document(card="mask_alphanum")
    with pytest.raises(UnsupportedFormatError, match=r"without \['card_trunc'\]"):
        read(lake, tmp_path, masks)
    assert read(lake, tmp_path, masks, columns="id,card") == {"id": [1], "card": ["nnnn-nnnn"]}
    assert read(lake, tmp_path, document(EU))["card_trunc"] == [41]


def test_a_row_filter_is_not_applied_to_nulls_in_place_of_values(
    lake: Lake, tmp_path: Path
) -> None:
    keys = mc.FileEncryptionProperties(
        footer_key=FOOTER, column_keys={"region": COLUMN}, column_key_metadata={"region": b"c"}
    )
    mc.write_table(ROWS, tmp_path / "a.parquet", keys)
    elsewhere = document({"type": "not", "child": EU}, region="mask_alphanum")
    with pytest.raises(UnsupportedFormatError, match="a column without an available key"):
        read(lake, tmp_path, elsewhere, onMissingKey="null", columns="id")
    both = {"columnKeys": json.dumps({"region": f"file:{lake.folder / 'column.key'}"})}
    assert read(lake, tmp_path, elsewhere, **both)["region"] == ["xx", None]


def test_a_field_in_a_struct(lake: Lake, tmp_path: Path) -> None:
    ids = {name: {"PARQUET:field_id": str(id_)} for name, id_ in (("deep", 10), ("a", 11))}
    inner = pa.struct([pa.field("a", pa.string(), metadata=ids["a"])])
    table = ROWS.append_column(pa.field("deep", inner, metadata=ids["deep"]), [[{"a": "b"}] * 4])
    path = write(tmp_path / "a.parquet", table)
    for id_ in (10, 11):
        with pytest.raises(UnsupportedFormatError):
            read(lake, path, id_action(id_, "replace-with-null"))


def test_only_reading_takes_restrictions(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="readRestrictions is only for reading"):
        write_options(options(lake, tmp_path, document()))


def test_nothing_represents_restrictions(lake: Lake, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    source = ModcryptDataSource(options(lake, path, document(EU, card="sha_256_query_local")))
    reader: Any = source.reader(source.schema())
    shown = repr(vars(reader)).replace(str(tmp_path.parent), "")  # of any name
    assert "a.parquet" in shown
    assert "EU" not in shown
    assert "salt" not in shown


# --- Spark ---------------------------------------------------------------------------------------


def test_spark_filters_counts_and_aggregates_masked_values(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        write(tmp_path / "t" / f"{name}.parquet")
    text = document(EU, name="mask_alphanum", code="replace_with_null")
    given = options(lake, tmp_path / "t", text)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("modcrypt").options(**given).load()
        assert frame.where("name = 'Ada-1815' or code = 7").count() == 0
        assert frame.where("name = 'xxx-nnnn'").count() == 2
        frame.createOrReplaceTempView("people")
        row = spark.sql(
            "SELECT count(*), count(code), count(DISTINCT name), min(name), max(name) FROM people"
        ).first()
        assert list(row) == [4, 0, 2, "xxx-nnnn", "xxxx"]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_stream_is_masked(spark: Any, lake: Lake, tmp_path: Path) -> None:
    write(tmp_path / "t" / "a.parquet")
    given = options(lake, tmp_path / "t", document(EU, name="mask_alphanum"))
    frame = spark.readStream.format("modcrypt").options(**given).load()
    query = frame.writeStream.format("memory").queryName("masked").trigger(availableNow=True)
    query.start().awaitTermination()
    found = spark.sql("SELECT name FROM masked ORDER BY id").collect()
    assert [row.name for row in found] == ["xxx-nnnn", "xxxx"]
    unknown = options(lake, tmp_path / "t", id_action(99, "mask-alphanum"))
    stream = stream_reader(unknown, StructType().add("name", "string"))
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    with pytest.raises(UnsupportedFormatError, match="no file has"):
        stream.partitions(stream.initialOffset(), end)
