"""Filters by tuples: numbers are compared exactly, and columns beside them may have any type."""

from __future__ import annotations

import datetime as dt
import io
import operator
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import modcrypt as mc
import modcrypt.parquet as mpq
from tests.support.cases import each_case, one_in
from tests.support.keys import FOOTER_KEY

KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
ENCRYPTION = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
UTC = dt.UTC

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "uint64": (pa.uint64(), [2**64 - 1, 0, 5, None, 2**63, 2**63 - 1]),
    "int64": (pa.int64(), [-(2**63), 0, 5, None, 2**63 - 1, -1]),
    "uint8": (pa.uint8(), [0, 255, 5, None]),
    "int8": (pa.int8(), [0, 127, 5, None, -128, -1]),
    "decimal": (pa.decimal128(38, 0), [Decimal(10) ** 30, Decimal(5), None, Decimal(-5)]),
    "small decimal": (pa.decimal128(9, 2), [Decimal("1.50"), Decimal(5), None, Decimal(-5)]),
    "wide decimal": (pa.decimal256(76, 3), [Decimal(10) ** 70, Decimal("0.001"), None]),
    "double": (pa.float64(), [1.5, 5.0, 0.0, None, float(2**63)]),
    "float": (pa.float32(), [1.5, 5.0, None, float(2**31)]),
    "half": (pa.float16(), [1.5, 5.0, 0.0, None, -65504.0]),
    "decimal32": (pa.decimal32(5, 2), [Decimal("1.50"), Decimal(5), None, Decimal(-5)]),
    "decimal64": (pa.decimal64(15, 2), [Decimal("1.50"), Decimal(5), None, Decimal(-5)]),
    "duration": (pa.duration("ns"), [dt.timedelta(1), dt.timedelta(0), None, dt.timedelta(-1)]),
    "seconds": (pa.duration("s"), [dt.timedelta(1), dt.timedelta(0), None, dt.timedelta(-1)]),
    "dictionary": (pa.dictionary(pa.int8(), pa.uint64()), [2**64 - 1, 0, 5, None, 2**63]),
    "us": (pa.timestamp("us"), [dt.datetime(2020, 1, 1), dt.datetime(9999, 12, 31), None]),
    "ns": (pa.timestamp("ns"), [dt.datetime(2020, 1, 1), dt.datetime(2200, 1, 1), None]),
    "zone": (pa.timestamp("ms", "UTC"), [dt.datetime(2020, 1, 1, tzinfo=UTC), None]),
    "date": (pa.date32(), [dt.date(2020, 1, 1), dt.date(9999, 12, 31), None]),
    "bool": (pa.bool_(), [True, False, None]),
    "string": (pa.string(), ["a", "", None]),
    "view": (pa.string_view(), ["a", "", None]),
    "binary view": (pa.binary_view(), [b"a", b"", None]),
    "uuid": (pa.uuid(), [UUID(int=5), UUID(int=2**127), None, UUID(int=0)]),
}
INTEGERS = (0, 5, -5, 128, 256, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30)
TIMES = (dt.datetime(2020, 1, 1), dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1))
DATES = (dt.date(2020, 1, 1), dt.date(9999, 12, 31), dt.date(1, 1, 1))
HALF_SECOND = dt.timedelta(seconds=0.5)
CONSTANTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("uint64", "int64", "uint8", "int8"), (*INTEGERS, Decimal("1.5"), 2.5)),
    **dict.fromkeys(("decimal", "small decimal"), (*INTEGERS, Decimal("1.5"), Decimal(10) ** 30)),
    "wide decimal": (*INTEGERS, Decimal("0.001"), Decimal("0.0005"), Decimal(10) ** 70),
    "dictionary": (*INTEGERS, Decimal("1.5"), 2.5),
    **dict.fromkeys(("decimal32", "decimal64"), (*INTEGERS, Decimal("1.5"), Decimal(10) ** 30)),
    "half": (*INTEGERS, 1.5, -0.5, 70000.0, pa.scalar(1.5, pa.float16())),
    **dict.fromkeys(("duration", "seconds"), (dt.timedelta(1), dt.timedelta(0), HALF_SECOND)),
    **dict.fromkeys(("double", "float"), (*INTEGERS, 1.5, -0.5)),
    **dict.fromkeys(("us", "ns"), (*TIMES, *DATES)),
    "zone": (dt.datetime(2020, 1, 1, tzinfo=UTC), dt.datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    "date": DATES,
    "bool": (True, False),
    "string": ("a", "", "b"),
    "view": ("a", "", "b", pa.scalar("a", pa.string_view())),
    "binary view": (b"a", b"", b"b"),
    "uuid": (UUID(int=5), UUID(int=2**127 + 1), pa.scalar(UUID(int=0), pa.uuid())),
}


def exact(value: Any) -> Any:
    """Return a value that Python compares exactly with others of its kind."""
    if isinstance(value, pa.Scalar):
        return exact(value.as_py())
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return Fraction(value)
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=UTC)
    if isinstance(value, dt.date):
        return dt.datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value


def sealed(table: pa.Table) -> bytes:
    out = io.BytesIO()
    mc.write_table(table, out, ENCRYPTION)
    return out.getvalue()


def count(data: Any, how: str, value: Any) -> int:
    return int(mc.read_table(data, KEYS, filters=[("c", how, value)]).num_rows)


@each_case("name", list(COLUMNS), quick=one_in(2))
def test_every_comparison_agrees_with_python(name: str) -> None:
    kind, values = COLUMNS[name]
    data = sealed(pa.table({"c": pa.array(values, kind)}))
    there = [exact(value) for value in values if value is not None]
    for constant in CONSTANTS[name]:
        for how, compare in COMPARISONS.items():
            wanted = sum(compare(value, exact(constant)) for value in there)
            assert count(data, how, constant) == wanted, (how, constant)
        equal = sum(value == exact(constant) for value in there)
        assert count(data, "in", [constant]) == equal, constant
        assert count(data, "in", [constant, None]) == equal + 1, constant
        assert count(data, "not in", [constant]) == len(values) - equal, constant


SETS: dict[str, Callable[[list[Any], pa.DataType], Any]] = {
    "tuple": lambda values, _: tuple(values),
    "iterator": lambda values, _: iter(values),
    "keys": lambda values, _: dict.fromkeys(values).keys(),
    "set": lambda values, _: set(values),
    "array": pa.array,
    "chunked array": lambda values, kind: pa.chunked_array([pa.array(values, kind)]),
    "dictionary": lambda values, kind: pa.array(values, kind).dictionary_encode(),
    "scalars": lambda values, kind: [pa.scalar(value, kind) for value in values],
    "series": lambda values, _: pd.Series(values, dtype=object),
    "object array": lambda values, _: np.array(values, dtype=object),
}


NO_DICTIONARY = ("view", "binary view", "uuid", "half", "decimal32", "decimal64", "dictionary")


@each_case("name", list(COLUMNS), quick=one_in(3))
def test_values_are_given_by_anything_that_can_be_iterated(name: str) -> None:
    kind, values = COLUMNS[name]
    data = sealed(pa.table({"c": pa.array(values, kind)}))
    there = [value for value in values if value is not None]
    for make in SETS.values():
        if make is SETS["dictionary"] and name in NO_DICTIONARY:
            continue  # PyArrow cannot make it
        assert count(data, "in", make(there, kind)) == len(there)
        assert count(data, "not in", make(there, kind)) == len(values) - len(there)
    for how, nothing, nulls in (("in", 0, 1), ("not in", len(values), len(there))):
        assert count(data, how, []) == nothing
        assert count(data, how, [None]) == nulls
        assert count(data, how, pa.array([], kind)) == nothing


def test_numpy_integers_of_several_types_are_mixed() -> None:
    data = sealed(pa.table({"c": pa.array([2**64 - 1, 5, 7], pa.uint64())}))
    assert count(data, "in", [np.uint64(2**64 - 1), np.int8(-1), np.int64(5)]) == 2
    assert count(data, "in", np.array([2**64 - 1, 5], np.uint64)) == 2
    assert count(data, "=", np.int64(5)) == 1
    assert count(data, ">", np.int8(-1)) == 3
    assert count(data, "in", [2**64 - 1, Decimal(5), None]) == 2
    with pytest.raises(ValueError, match="no common type"):
        count(data, "in", [2**64 - 1, "a"])


def test_nan_differs_from_a_number_that_no_float_equals() -> None:
    nan = float("nan")
    values = pa.array([1.0, nan, None] + [nan] * 5, pa.float64())
    out = io.BytesIO()
    mc.write_table(
        pa.table({"c": values}), out, ENCRYPTION, row_group_size=3, write_page_index=True
    )
    data = out.getvalue()
    for how, wanted in (("!=", 7), ("<", 1), (">", 0), ("=", 0)):
        assert count(data, how, 2**63 - 1) == wanted
        assert count(data, how, 2**63) == wanted
    assert count(data, "=", pa.scalar(None, pa.float64())) == 0


def test_a_null_is_no_time() -> None:
    data = sealed(pa.table({"c": pa.array([dt.datetime(2020, 1, 1), None], pa.timestamp("us"))}))
    for how in COMPARISONS:
        assert count(data, how, pa.scalar(None, pa.timestamp("ns"))) == 0


def test_nulls_of_pandas_are_nulls() -> None:
    day = pd.Timestamp("2026-02-28")
    times = sealed(pa.table({"c": pa.array([day, None], pa.timestamp("us"))}))
    numbers = sealed(pa.table({"c": pa.array([1, None])}))
    for data, value, null in ((times, day, pd.NaT), (numbers, 1, pd.NA)):
        assert count(data, "in", [null, value]) == 2
        assert count(data, "not in", [value, null]) == 0
        assert count(data, "=", null) == 0


def test_nanoseconds_of_pandas_count() -> None:
    """PyArrow cuts times of pandas to microseconds."""
    for kind, make in ((pa.timestamp("ns"), pd.Timestamp), (pa.duration("ns"), pd.Timedelta)):
        data = sealed(pa.table({"c": pa.array([-5, 1000, 1005, None], kind)}))
        for how, number, wanted in (("=", 1005, 1), ("=", 1001, 0), ("<", -4, 1), (">=", 1001, 1)):
            assert count(data, how, make(number, unit="ns")) == wanted, (how, number)
        times = [make(number, unit="ns") for number in (-5, 1000, 1001)]
        assert count(data, "in", times) == count(data, "in", [*times, None]) - 1 == 2
    zone = pa.array([5, 0], pa.timestamp("ns", "Europe/Berlin"))
    assert count(sealed(pa.table({"c": zone})), "=", pd.Timestamp(5, tz="UTC")) == 1


def test_any_number_but_zero_of_a_bool8_is_true() -> None:
    numbers = pa.array([0, 1, 5, -1, None], pa.int8())
    out = io.BytesIO()
    mc.write_table(
        pa.table({"c": pa.ExtensionArray.from_storage(pa.bool8(), numbers)}), out, ENCRYPTION,
        row_group_size=1,
    )  # fmt: skip
    for how, wanted in (("=", 3), ("!=", 1), ("<", 1), (">", 0)):
        assert count(out.getvalue(), how, True) == wanted
    assert count(out.getvalue(), "in", [True, None]) == 4
    assert count(out.getvalue(), "=", pa.scalar(1, pa.bool8())) == 3
    with pytest.raises(ValueError, match=r"column c has the type .*, unlike the values of a set"):
        count(out.getvalue(), "in", ["a"])


def test_nothing_equals_a_null() -> None:
    data = sealed(pa.table({"c": pa.nulls(3)}))
    for how in COMPARISONS:
        assert count(data, how, None) == count(data, how, 1) == count(data, how, "a") == 0
    assert count(data, "in", [1, None]) == count(data, "not in", [1]) == 3


def test_a_nested_type_is_not_compared() -> None:
    data = sealed(pa.table({"c": [[1, 2]], "s": [{"a": 1}]}))
    for name, how, value in (("c", "=", 1), ("s", "in", [1])):
        with pytest.raises(
            ValueError, match=rf"column {name} has the type .*, which is not compared"
        ):
            mc.read_table(data, KEYS, filters=[(name, how, value)])
    assert mc.read_table(data, KEYS, filters=[("s", "is not null", None)]).num_rows == 1


def test_a_set_of_several_types_is_a_mistake() -> None:
    data = sealed(pa.table({"c": pa.array([UUID(int=5)], pa.uuid())}))
    for values in ([b"a", UUID(int=5)], [pd.Timestamp(5), dt.timedelta(0)], [object()]):
        with pytest.raises(ValueError, match="no common type"):
            count(data, "in", values)
    with pytest.raises(TypeError, match='"not in" takes a list of values'):  # as in PyArrow
        count(data, "not in", 5)


def test_uuids_are_given_as_text_or_bytes_too() -> None:
    known = UUID(int=5)
    data = sealed(pa.table({"c": pa.array([known, None, UUID(int=6)], pa.uuid())}))
    for spelt in (str(known), known.bytes, known.hex):
        assert count(data, "=", spelt) == count(data, "in", [spelt, None]) - 1 == 1
    with pytest.raises(ValueError, match="column c has UUIDs, and the text is none"):
        count(data, "=", "5")
    assert count(data, "=", pa.scalar(None, pa.uuid())) == 0
    mapped = sealed(pa.table({"c": pa.array(['{"a": 1}', None, "2"], pa.json_())}))
    assert count(mapped, "=", "2") == count(mapped, "is null", None) == 1


def test_fields_of_structs_are_compared_exactly_too() -> None:
    rows = [{"u": 2**64 - 1, "s": "a"}, {"u": 5, "s": None}, None]
    kind = pa.struct([("u", pa.uint64()), ("s", pa.string_view())])
    data = sealed(pa.table({"c": pa.array(rows, kind)}))
    for filters, wanted in (
        ([(("c", "u"), ">", -1)], 2),
        ([(("c", "u"), "in", [2**64 - 1, -1])], 1),
        ([(("c", "s"), "=", "a"), (("c", "u"), "<=", 2**64)], 1),
        ([[(("c", "u"), "=", 2**70)], [(("c", "s"), "in", ["a"])]], 1),
    ):
        assert mc.read_table(data, KEYS, filters=filters).num_rows == wanted


def test_files_of_a_dataset_are_chosen_exactly(tmp_path: Path) -> None:
    for number, value in ((5, 2**64 - 1), (-5, 7)):
        table = pa.table({"c": pa.array([value], pa.uint64())})
        (tmp_path / f"p={number}").mkdir()
        mc.write_table(table, tmp_path / f"p={number}" / "a.parquet", ENCRYPTION)
    for filters, wanted in (
        ([("p", "<", 2**64)], 2), ([("p", "in", [5, 2**64])], 1), ([("p", ">", 2**63)], 0),
        ([("c", ">", -1), ("p", "=", -5)], 1), ([("p", "not in", [2**70])], 2),
    ):  # fmt: skip
        assert mc.read_table(tmp_path, KEYS, filters=filters).num_rows == wanted


def test_an_expression_that_does_not_fit_is_not_blamed_on_views() -> None:
    """PyArrow casts the field to the constant's type, which a filter may name."""
    views = pa.array([["a"]] * 2, pa.list_(pa.string_view()))
    data = sealed(pa.table({"c": pa.array([2**64 - 1, 5], pa.uint64()), "v": views}))
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        mc.read_table(data, KEYS, filters=pc.field("c") > 1)
    typed = pc.field("c") > pa.scalar(6, pa.uint64())
    assert mc.read_table(data, KEYS, filters=typed).num_rows == 1
    typed = ~pc.field("c").isin(pa.array([2**64 - 1], pa.uint64()))
    assert mc.read_table(data, KEYS, filters=typed)["c"].to_pylist() == [5]


# --- columns of views ----------------------------------------------------------------------------

TEXT, BYTES = pa.string_view(), pa.binary_view()
VIEWS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (TEXT, ["a", None, "c" * 20]),
    "list": (pa.list_(TEXT), [["a" * 13, None], None, []]),
    "large list": (pa.large_list(BYTES), [[b"a", None], None, []]),
    "fixed list": (pa.list_(TEXT, 2), [["a", None], None, ["x" * 30, "y"]]),
    "struct": (pa.struct([pa.field("s", TEXT, metadata={"k": "v"})]), [{"s": "a"}, None, {}]),
    "map": (pa.map_(TEXT, BYTES), [[("k", b"v")], None, [("k", None)]]),
    "deep": (pa.list_(pa.struct([("s", pa.list_(TEXT))])), [[{"s": ["a"]}], None, [None]]),
    "list view": (pa.list_view(pa.int32()), [[1, None], None, []]),
    "list view of text": (pa.large_list_view(TEXT), [["a", None], None, []]),
    "list of list views": (pa.list_(pa.list_view(TEXT)), [[["a"]], None, [None, []]]),
    "extension": (pa.json_(TEXT), ["1", None, "{}"]),
}
READS: dict[str, Callable[[Any, Any], pa.Table]] = {
    "read_table": lambda path, filters: mc.read_table(path, KEYS, filters=filters),
    "folder": lambda path, filters: mc.read_table([path], KEYS, filters=filters),
    "drop-in": lambda path, filters: mpq.read_table(
        path, decryption_properties=KEYS, filters=filters
    ),
    "batches": lambda path, filters: pa.Table.from_batches(
        mc.ParquetFile(path, KEYS).iter_batches(filters=filters)
    ),
}


@each_case("name", list(VIEWS))
def test_rows_with_views_are_filtered_by_another_column(name: str, tmp_path: Path) -> None:
    kind, values = VIEWS[name]
    arrays = [pa.array(range(9)), pa.chunked_array([pa.array(values, kind)] * 3)]
    fields = pa.field("i", pa.int64(), False, {"k": "i"}), pa.field("c", kind, True, {"k": "c"})
    table = pa.table(arrays, schema=pa.schema(fields))
    mc.write_table(table, tmp_path / "a", ENCRYPTION, row_group_size=3)
    whole = mc.read_table(tmp_path / "a", KEYS)
    assert whole["c"].to_pylist() == [*pa.array(values, kind).to_pylist()] * 3
    for read in READS.values():
        for filters in ([("i", "in", [2, 3, 7])], pc.field("i").isin([2, 3, 7])):
            table = read(tmp_path / "a", filters)
            table.validate(full=True)
            assert table.schema.equals(whole.schema, check_metadata=True)
            assert table["c"].to_pylist() == [whole["c"][n].as_py() for n in (2, 3, 7)]
        assert read(tmp_path / "a", [("c", "is null", None), ("i", ">", 1)]).num_rows == 2
