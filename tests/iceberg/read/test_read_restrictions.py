"""Read restrictions: rows and values that a catalog or policy lets a reader see."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import struct
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.errors import LimitError, UnsupportedFormatError
from modcrypt.iceberg import IcebergTable, create_table, open_table
from modcrypt.parquet.arrow.column_masks import make_mask
from tests.support.iceberg.sample_kms import SampleKms

DAY, TIME = datetime.date(2024, 7, 15), datetime.datetime(2024, 7, 15, 12, 30)
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "region": ["EU", "US", None, "EU"],
        "mail": ["prashant010696@gmail.com", "a", None, "4111-1111-1111-4444"],
        "ratio": [0.5, float("nan"), None, 2.5],
        "day": [DAY, DAY, None, DAY],
        "person": pa.array(
            [{"name": "x", "age": 1}, {"name": "y", "age": 2}, None, {"name": "z", "age": 3}],
            pa.struct([("name", pa.string()), ("age", pa.int32())]),
        ),
    }
)
IDS = {name: number + 1 for number, name in enumerate(ROWS.column_names)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lake") / "t"
    create_table(path, ROWS.schema, SampleKms(), master_key_id="keyA").append(ROWS)
    return path


def opened(folder: Path, **restrictions: Any) -> IcebergTable:
    document = {name.replace("_", "-"): value for name, value in restrictions.items()}
    return open_table(folder, SampleKms(), read_restrictions=document)


def column(name: str) -> dict[str, Any]:
    return {"type": "reference", "id": IDS[name]}


def compare(kind: str, name: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "left": column(name), "right": {"type": "literal", "value": value}}


def mask(**actions: str) -> list[dict[str, Any]]:
    return [
        {"action": action.replace("_", "-"), "field-id": IDS[name]}
        for name, action in actions.items()
    ]


# --- row filters ---------------------------------------------------------------------------------

EU = compare("eq", "region", "EU")


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        (True, [1, 2, 3, 4]), (False, []), ({"type": "true"}, [1, 2, 3, 4]),
        (EU, [1, 4]),
        ({"type": "not", "child": EU}, [2, 3]),
        (compare("not-eq", "region", "EU"), [2, 3]),  # comparisons are null-safe
        ({"type": "not", "child": compare("not-eq", "region", "EU")}, [1, 4]),
        (compare("lt", "ratio", 1.0), [1]),
        ({"type": "not", "child": compare("lt", "ratio", 1.0)}, [2, 3, 4]),  # NaN and null, too
        ({"type": "gt", "left": 3, "right": column("id")}, [1, 2]),
        ({"type": "in", "child": column("region"), "values": ["US", "XX"]}, [2]),
        ({"type": "not-in", "child": column("region"), "values": ["US"]}, [1, 3, 4]),
        ({"type": "not", "child": {"type": "not-in", "child": column("region"),
          "values": {"type": "literals", "values": ["US"], "data-type": "string"}}}, [2]),
        ({"type": "is-null", "child": column("region")}, [3]),
        ({"type": "not", "child": {"type": "is-null", "child": column("region")}}, [1, 2, 4]),
        ({"type": "is-nan", "child": column("ratio")}, [2]),
        ({"type": "not-nan", "child": column("ratio")}, [1, 3, 4]),
        (compare("starts-with", "mail", "4"), [4]),
        (compare("not-starts-with", "mail", "4"), [1, 2, 3]),
        (compare("eq", "day", "2024-07-15"), [1, 2, 4]),
        ({"type": "and", "left": EU, "right": compare("gt", "id", 1)}, [4]),
        ({"type": "not", "child": {"type": "and", "left": EU, "right": compare("gt", "id", 1)}},
         [1, 2, 3]),
        ({"type": "or", "left": EU, "right": compare("gt-eq", "id", 3)}, [1, 3, 4]),
        ({"type": "eq", "term": "region", "value": "EU"}, [1, 4]),  # the deprecated form
        ({"type": "in", "term": {"type": "reference", "term": "id"}, "values": [1, 2]}, [1, 2]),
        ({"type": "is-null", "term": "ratio"}, [3]),
    ],
)  # fmt: skip
def test_only_some_rows_are_read(folder: Path, condition: Any, ids: list[int]) -> None:
    table = opened(folder, required_row_filter=condition)
    assert table.scan().column("id").to_pylist() == ids
    assert [
        row for batch in table.scan_batches(columns=["id"]) for row in batch["id"].to_pylist()
    ] == ids


@pytest.mark.parametrize(
    "condition",
    [
        "true", 1, [], {"type": "maybe"}, {"type": "eq"}, {**EU, "more": 1},
        compare("eq", "region", None), compare("like", "region", "E%"), compare("in", "id", 1),
        {"type": "eq", "left": {"type": "reference", "id": 99}, "right": 1},
        {"type": "eq", "left": column("id"), "right": column("id")},
        {"type": "is-null", "child": {"type": "apply", "function": "f", "arguments": []}},
        {"type": "eq", "term": {"type": "transform", "transform": "year", "term": "day"},
         "value": 54},
        {"type": "in", "child": column("id"), "values": 5},
    ],
)  # fmt: skip
def test_a_filter_that_is_not_understood_fails(folder: Path, condition: Any) -> None:
    with pytest.raises(UnsupportedFormatError, match="read restrictions cannot be applied"):
        opened(folder, required_row_filter=condition).scan().to_arrow()


def test_a_filter_may_not_be_deep(folder: Path) -> None:
    condition: Any = EU
    for _ in range(200):
        condition = {"type": "not", "child": condition}
    with pytest.raises(LimitError, match="deeper than 100"):
        opened(folder, required_row_filter=condition).scan().to_arrow()


# --- masks ---------------------------------------------------------------------------------------


def apply(action: str, values: list[Any], kind: pa.DataType) -> list[Any]:
    masked = make_mask(action, kind, nullable=True)(pa.array(values, kind))
    assert masked.type == kind
    found: list[Any] = masked.to_pylist()
    return found


def test_texts_are_masked_as_in_the_specification() -> None:
    mail, card, short = "prashant010696@gmail.com", "4111-1111-1111-4444", "ab12"
    values = [mail, card, short, "", None, "é\n_", "𝄞5(,.)"]
    assert apply("mask-alphanum", values, pa.string()) == [
        "xxxxxxxxnnnnnn@xxxxx.xxx", "nnnn-nnnn-nnnn-nnnn", "xxnn", "", None, "xxx", "xn(,.)",
    ]  # fmt: skip
    assert apply("show-first-4", values, pa.string()) == [
        "prasxxxxnnnnnn@xxxxx.xxx", "4111-nnnn-nnnn-nnnn", short, "", None, "é\n_", "𝄞5(,.)",
    ]  # fmt: skip
    assert apply("show-last-4", values, pa.string()) == [
        "xxxxxxxxnnnnnn@xxxxx.com", "nnnn-nnnn-nnnn-4444", short, "", None, "é\n_", "xn(,.)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "year", "month"),
    [
        (pa.date32(), DAY, datetime.date(2024, 1, 1), datetime.date(2024, 7, 1)),
        (pa.timestamp("us"), TIME, datetime.datetime(2024, 1, 1), datetime.datetime(2024, 7, 1)),
        (pa.timestamp("us"), datetime.datetime(1931, 5, 6, 7), datetime.datetime(1931, 1, 1),
         datetime.datetime(1931, 5, 1)),
        (pa.timestamp("us", "UTC"), TIME.replace(tzinfo=datetime.UTC),
         datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
         datetime.datetime(2024, 7, 1, tzinfo=datetime.UTC)),
    ],
)  # fmt: skip
def test_times_are_truncated(kind: pa.DataType, value: Any, year: Any, month: Any) -> None:
    assert apply("truncate-to-year", [value, None], kind) == [year, None]
    assert apply("truncate-to-month", [value, None], kind) == [month, None]


def test_hashes_are_those_of_the_specification() -> None:
    text = hashlib.sha256(b"abc")
    assert apply("sha-256-global", ["abc", None], pa.string()) == [text.hexdigest(), None]
    assert apply("sha-256-global", [b"abc"], pa.binary()) == [text.digest()]
    for kind, form in ((pa.int32(), "<i"), (pa.int64(), "<q")):
        digest = hashlib.sha256(struct.pack(form, -7)).digest()
        assert apply("sha-256-global", [-7], kind) == [struct.unpack_from(form, digest)[0]]


def test_hashes_of_a_query_differ_between_queries_only(folder: Path) -> None:
    table = opened(folder, required_column_projections=mask(region="sha_256_query_local"))
    first, second = (table.scan()["region"].to_pylist() for _ in range(2))
    assert first[0] == first[3] != first[1]
    assert first[2] is None
    assert first[0] != second[0]
    assert first[0] != hashlib.sha256(b"EU").hexdigest()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.bool_(), False), (pa.int32(), 0), (pa.int64(), 0), (pa.float32(), 0.0),
        (pa.float64(), 0.0), (pa.decimal128(9, 2), decimal.Decimal("0.00")),
        (pa.string(), "XXXXXXXX"), (pa.date32(), datetime.date(1970, 1, 1)),
        (pa.time64("us"), datetime.time(0)), (pa.timestamp("us"), datetime.datetime(1970, 1, 1)),
        (pa.timestamp("us", "UTC"), datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)),
        (pa.uuid(), uuid.UUID(int=0)), (pa.binary(3), bytes(3)), (pa.binary(), b""),
        (pa.list_(pa.int32()), []), (pa.map_(pa.string(), pa.int32()), []),
        (pa.struct([("a", pa.string()), ("b", pa.int32())]), {"a": "XXXXXXXX", "b": 0}),
    ],
    ids=str,
)  # fmt: skip
def test_fixed_values_replace_nulls_too(kind: pa.DataType, value: Any) -> None:
    assert apply("mask-to-fixed-value", [None, None], kind) == [value, value]
    assert apply("replace-with-null", [value], kind) == [None]


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("mask-alphanum", pa.int64()), ("show-last-4", pa.binary()),
        ("truncate-to-year", pa.string()), ("sha-256-global", pa.float64()),
        ("sha-256-query-local", pa.bool_()),
    ],
)  # fmt: skip
def test_an_action_for_another_type_fails(action: str, kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedFormatError, match="is not for"):
        make_mask(action, kind, nullable=True)


def test_a_required_column_is_not_replaced_by_null() -> None:
    with pytest.raises(UnsupportedFormatError, match="is not for"):
        make_mask("replace-with-null", pa.int64(), nullable=False)


# --- both, and the caller's filters --------------------------------------------------------------


def test_the_row_filter_sees_the_values_and_the_caller_the_masks(folder: Path) -> None:
    table = opened(
        folder, required_row_filter=compare("starts-with", "mail", "p"),
        required_column_projections=mask(mail="mask_alphanum", person="replace_with_null"),
    )  # fmt: skip
    expected = {"id": [1], "mail": ["xxxxxxxxnnnnnn@xxxxx.xxx"], "person": [None]}
    assert table.scan(columns=["id", "mail", "person"]).to_pydict() == expected
    assert table.scan(filters="mail = 'prashant010696@gmail.com'").num_rows == 0
    assert table.scan(filters="mail = 'xxxxxxxxnnnnnn@xxxxx.xxx' and id = 1").num_rows == 1
    found = table.scan(columns=["id"], filters="mail = 'xxxxxxxxnnnnnn@xxxxx.xxx' or id = 9")
    assert found.to_pydict() == {"id": [1]}
    assert table.scan(columns=["id"], filters="mail is null").num_rows == 0


def test_other_columns_stay_as_they_are(folder: Path) -> None:
    table = opened(folder, required_column_projections=mask(mail="replace_with_null"))
    whole = open_table(folder, SampleKms()).scan()
    others = ["mail", "ratio"]  # NaN equals nothing
    assert table.scan().drop(others).equals(whole.drop(others))
    assert table.scan().schema == whole.schema
    assert table.scan(columns=["person.age"], filters="person.name = 'x'").num_rows == 1
    assert table.scan(filters="id > 1 and region = 'EU'")["id"].to_pylist() == [4]


@pytest.mark.parametrize(
    "document",
    [
        {"required-column-projections": [{"action": "apply-expression", "field-id": 1}]},
        {"required-column-projections": [{"action": "mask-alphanum", "field-id": 3, "more": 1}]},
        {"required-column-projections": [{"action": "mask-alphanum"}]},
        {"required-column-projections": {"action": "mask-alphanum", "field-id": 3}},
        {"required-column-projections": 2 * mask(mail="mask_alphanum")},
        {"required-column-projections": [{"action": "mask-alphanum", "field-id": 7}]},
        {"required-column-projections": [{"action": "unheard-of", "field-id": 99}]},
        {"required-column-projections": {}},
        {"required-columns": []},
        ["required-row-filter"],
        [],
        False,
    ],
)  # fmt: skip
def test_what_cannot_be_applied_fails(folder: Path, document: Any) -> None:
    table = open_table(folder, SampleKms(), read_restrictions=document)
    with pytest.raises(UnsupportedFormatError):
        table.scan(columns=["id"]).to_arrow()


def test_fields_of_a_masked_column_are_not_read(folder: Path) -> None:
    table = opened(folder, required_column_projections=mask(person="mask_to_fixed_value"))
    fixed = {"name": "XXXXXXXX", "age": 0}
    assert table.scan()["person"].to_pylist() == [fixed] * 4
    with pytest.raises(UnsupportedFormatError, match="select the whole column"):
        table.scan(columns=["person.age"]).to_arrow()
    with pytest.raises(ValueError, match="fields of structs"):
        table.scan(filters="person.age = 1").to_arrow()


@pytest.mark.parametrize(
    ("masked", "filters"),
    [("a.b", "a.b = 'secret'"), ("s", "s.f is null"), ("s", "not s.f is not null")],
)
def test_no_filter_sees_a_masked_column_by_another_name(
    masked: str, filters: str, tmp_path: Path
) -> None:
    inner = pa.struct([pa.field("f", pa.int64(), nullable=False)])
    columns = {"a": [1, 2], "a.b": ["secret", "x"], "s": pa.array([{"f": 1}, None], inner)}
    rows = pa.table(columns)
    create_table(tmp_path / "t", rows.schema, SampleKms(), master_key_id="keyA").append(rows)
    number = rows.column_names.index(masked) + 1
    table = opened(
        tmp_path / "t",
        required_column_projections=[{"action": "replace-with-null", "field-id": number}],
    )
    if masked == "s":
        with pytest.raises(ValueError, match="fields of structs"):
            table.scan(columns=["a"], filters=filters).to_arrow()
    else:
        assert table.scan(columns=["a"], filters=filters).num_rows == 0


def test_restrictions_stay_after_a_change(folder: Path, tmp_path: Path) -> None:
    create_table(tmp_path / "t", ROWS.schema, SampleKms(), master_key_id="keyA").append(ROWS)
    table = opened(tmp_path / "t", required_row_filter=False)
    assert table.append(ROWS).scan().num_rows == 0
    assert table.refreshed().scan().num_rows == 0


@pytest.mark.parametrize(
    "filters", ["n < 3000000000", "n < 3000000000 or id = 9", "n not in (5, 3000000000)", "d > 0.5"]
)
def test_no_filter_sees_a_masked_column_by_a_literal_of_another_size(
    filters: str, tmp_path: Path
) -> None:
    columns = [("id", pa.int64()), ("n", pa.int32()), ("d", pa.decimal128(5, 2))]
    rows = pa.table([[1, 2], [None, 7], [None, decimal.Decimal("1.00")]], schema=pa.schema(columns))
    create_table(tmp_path / "t", rows.schema, SampleKms(), master_key_id="keyA").append(rows)
    actions = [{"action": "replace-with-null", "field-id": number} for number in (2, 3)]
    table = opened(tmp_path / "t", required_column_projections=actions)
    found = [1, 2] if "not in" in filters else []  # as nulls
    assert table.scan(columns=["id"], filters=filters)["id"].to_pylist() == found
