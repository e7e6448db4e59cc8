"""Values of every type as cells, and back."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modcrypt.aead import BLOCK_OVERHEAD, ValueCipher
from modcrypt.errors import UnsupportedFormatError
from modcrypt.subjects.cells import CellColumn, Owners, canonical_subjects, cell_type, find_owners
from tests.support.sample_vault import SampleVault

DAY = datetime.date(2026, 11, 30)
VALUES: dict[Any, list[Any]] = {
    pa.string(): ["", "Ada", "né"],
    pa.large_string(): ["", "Ada"],
    pa.string_view(): ["", "a text that is longer than twelve bytes"],
    pa.binary(): [b"", b"\0\xff"],
    pa.large_binary(): [b"", b"x"],
    pa.binary_view(): [b"", b"x" * 20],
    pa.binary(3): [b"abc", b"\0\0\0"],
    pa.bool_(): [True, False],
    pa.int8(): [-128, 127],
    pa.uint16(): [0, 65535],
    pa.int32(): [-(2**31), 5],
    pa.uint64(): [2**64 - 1],
    pa.float16(): [1.5],
    pa.float32(): [1.5, float("inf")],
    pa.float64(): [-0.0, 1e300],
    pa.date32(): [DAY],
    pa.date64(): [DAY],
    pa.time32("s"): [datetime.time(1, 2, 3)],
    pa.time64("us"): [datetime.time(1, 2, 3, 4)],
    pa.timestamp("us", "UTC"): [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)],
    pa.timestamp("s"): [datetime.datetime(2026, 1, 1)],
    pa.duration("ms"): [datetime.timedelta(seconds=5)],
    pa.decimal32(5, 2): [decimal.Decimal("-1.25")],
    pa.decimal128(20, 3): [decimal.Decimal("-1.250")],
    pa.decimal256(60, 3): [decimal.Decimal("12345678901234567890.250")],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b", "a"],
    pa.uuid(): [uuid.UUID(int=7)],
    pa.list_(pa.string()): [["a", None, ""], [], [None]],
    pa.large_list(pa.large_binary()): [[b"x" * 300], []],
    pa.list_(pa.date32(), 2): [[DAY, None], [DAY, DAY]],
    pa.list_(pa.list_(pa.bool_())): [[[True], None, []], [[]]],
    pa.list_(pa.struct([pa.field("kind", pa.string(), False), ("no", pa.list_(pa.int64()))])): [
        [{"kind": "home", "no": [1, None]}, None],
        [{"kind": "", "no": None}],
        [],
    ],
    pa.map_(pa.string(), pa.decimal128(5, 2)): [[("a", decimal.Decimal("1.25")), ("b", None)], []],
    pa.map_(pa.int8(), pa.struct([pa.field("x", pa.bool_(), False)])): [
        [(1, {"x": True}), (2, None)],
    ],
}


@st.composite
def make_arrays(draw: st.DrawFn) -> pa.Array:
    kind = draw(st.sampled_from([*VALUES]))
    values = st.none() | st.sampled_from(VALUES[kind])
    array = pa.array(draw(st.lists(values, max_size=40)), kind)
    return array[draw(st.integers(0, 5)) :]


@given(array=make_arrays(), data=st.data())
@settings(max_examples=300, deadline=None)
@pytest.mark.seeded
def test_values_come_back(array: pa.Array, data: st.DataObject) -> None:
    vault = SampleVault()
    ids = data.draw(st.lists(st.integers(0, 4), min_size=len(array), max_size=len(array)))
    column = CellColumn("d", ("a", "b"), array.type)
    owners = find_owners(vault, pa.array(ids, pa.int64()), create=True)
    cells = column.encrypt(array, owners)
    cells.validate(full=True)
    assert cells.is_null().equals(array.is_null())
    drop = data.draw(st.integers(0, 3))
    read = find_owners(vault, pa.array([0] * drop + ids, pa.int64())[drop:], create=False)
    found = column.decrypt(cells, read)
    found.validate(full=True)
    assert found.type == array.type
    assert found.to_pylist() == array.to_pylist()
    vault.forget(b"0", b"3")
    if ids:
        left = find_owners(vault, pa.array(ids, pa.int64()), create=False)
        kept = [None if id_ in (0, 3) else v for id_, v in zip(ids, array.to_pylist(), strict=True)]
        assert column.decrypt(cells, left).to_pylist() == kept


def test_a_cell_has_28_more_bytes() -> None:
    owners = find_owners(SampleVault(), pa.array(["x"]), create=True)
    (cell,) = CellColumn("d", ("n",), pa.int64()).encrypt(pa.array([1]), owners)
    assert len(cell.as_py()) == 8 + BLOCK_OVERHEAD == 36


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([7, -7]),
        pa.array([7, -7], pa.int16()),
        pa.array([7, -7], pa.decimal32(2, 0)),
        pa.array([7, -7], pa.decimal64(10, 0)),
        pa.array([7, -7], pa.decimal128(38, 0)),
        pa.array([7, -7], pa.decimal256(60, 0)),
        pa.array(["7", "-7"]),
        pa.array(["7", "-7"], pa.large_string()),
        pa.array([b"7", b"-7"]),
        pa.array(["7", "-7"]).dictionary_encode().dictionary_decode(),
    ],
)
def test_the_type_of_the_key_column_does_not_matter(keys: pa.Array) -> None:
    assert canonical_subjects(keys).to_pylist() == [b"7", b"-7"]
    vault = SampleVault()
    owners = find_owners(vault, keys, create=True)
    assert owners.references == vault.references([b"7", b"-7"])


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(9, 2), pa.date32(), pa.bool_()])
def test_other_types_name_no_subjects(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedFormatError, match="names no subjects"):
        canonical_subjects(pa.array([None], kind))


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.list_(pa.null()),
        pa.list_view(pa.int8()),
        pa.list_(pa.list_(pa.string(), 0)),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.map_(pa.int8(), pa.list_(pa.struct([]))),
    ],
)
def test_types_without_cells(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedFormatError, match="value by value"):
        cell_type(kind, "n")


def test_the_documented_cell_opens() -> None:
    """The vector of docs/reference/api/subjects.md."""
    cell = "0" * 24 + "0dbcb5ded46cfb42f7575635182c9139469379066882b8dcff0700fad3269f"
    owners = Owners([ValueCipher(bytes(range(32)))], [bytes(range(16))], pa.array([0]))
    column = CellColumn("people", ("emails",), pa.list_(pa.string()))
    found = column.decrypt(pa.array([bytes.fromhex(cell)]), owners)
    assert found.to_pylist() == [["a@x", None, ""]]
