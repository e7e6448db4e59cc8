"""Leaves of a schema and names that cover them, judged by PyArrow and by plain trees."""

from __future__ import annotations

import io
from typing import TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modcrypt import (
    FileDecryptionProperties,
    FileEncryptionProperties,
    decrypt_parquet,
    encrypt_parquet,
)
from modcrypt.errors import FormatError, LimitError
from modcrypt.parquet.format.idl import ThriftStruct, decode, new
from modcrypt.parquet.format.schema import (
    MAX_SCHEMA_DEPTH,
    covering_name,
    keep_leaves,
    leaf_fields,
    leaf_paths,
)
from tests.support.cases import each_case
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.shared_vectors import shared_vectors
from tests.support.tables import small_table
from tests.support.thrift_judge import footer_of, of_rich_types

INT32 = 1

Tree: TypeAlias = "tuple[str, list[Tree] | None]"
"""Name and children; None makes a leaf."""


def flatten_tree(tree: Tree) -> list[ThriftStruct]:
    name, children = tree
    if children is None:
        return [new("SchemaElement", name=name.encode(), type=INT32)]
    head = new("SchemaElement", name=name.encode(), num_children=len(children))
    return [head, *(element for child in children for element in flatten_tree(child))]


def paths(children: list[Tree], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    out = []
    for name, below in children:
        out += [(*above, name)] if below is None else paths(below, (*above, name))
    return out


def prune_tree(tree: Tree, keep: list[bool]) -> Tree | None:
    """Leave leaves out, taking their flags from `keep` in turn, and the groups this empties."""
    name, children = tree
    if children is None:
        return tree if keep.pop(0) else None
    kept = [child for child in (prune_tree(child, keep) for child in children) if child is not None]
    return (name, kept) if kept or not children else None


def shape(schema: list[ThriftStruct]) -> list[tuple[bytes, int | None, int | None]]:
    return [(element.name, element.type, element.num_children) for element in schema]


TREES = st.recursive(
    st.tuples(st.sampled_from("abc"), st.none()),
    lambda children: st.tuples(st.sampled_from("abc"), st.lists(children, max_size=4)),
    max_leaves=12,
)
ROOTS = st.tuples(st.just("schema"), st.lists(TREES, max_size=4))


# --- leaf_paths ----------------------------------------------------------------------------------


def pyarrow_paths(file: bytes) -> list[str]:
    schema = pq.ParquetFile(io.BytesIO(file)).schema
    return [schema.column(i).path for i in range(len(schema))]


def dotted_paths(file: bytes) -> list[str]:
    return [
        ".".join(path) for path in leaf_paths(decode("FileMetaData", footer_of(file))[0].schema)
    ]


def test_paths_are_pyarrows() -> None:
    out = io.BytesIO()
    pq.write_table(small_table(), out)
    for file in (out.getvalue(), of_rich_types()):
        assert dotted_paths(file) == pyarrow_paths(file)
    assert "address.zip" in dotted_paths(out.getvalue())
    assert "tags.list.element" in dotted_paths(out.getvalue())


def test_paths_of_other_writers_are_pyarrows() -> None:
    files = sorted(shared_vectors().glob("*/twins/*.parquet"))
    assert len(files) > 10
    for path in files:
        assert dotted_paths(path.read_bytes()) == pyarrow_paths(path.read_bytes())


@given(ROOTS)
def test_paths_are_those_of_the_tree(root: Tree) -> None:
    schema, expected = flatten_tree(root), paths(root[1] or [])
    assert leaf_paths(schema) == expected
    assert leaf_fields(schema) == [path[0] for path in expected]


def test_names_that_are_not_ascii_or_hold_dots_are_kept() -> None:
    tree: Tree = ("schema", [("a.b", [("ü\N{SNOWMAN}", None)]), ("", None)])
    assert leaf_paths(flatten_tree(tree)) == [("a.b", "ü\N{SNOWMAN}"), ("",)]


def test_a_leaf_that_says_it_has_no_children_is_a_leaf() -> None:
    leaf = new("SchemaElement", name=b"x", type=INT32, num_children=0)
    assert leaf_paths([new("SchemaElement", name=b"s", num_children=1), leaf]) == [("x",)]


# --- hostile schemas -----------------------------------------------------------------------------


def group(children: int | None, name: bytes = b"g") -> ThriftStruct:
    return new("SchemaElement", name=name, num_children=children)


LEAF = new("SchemaElement", name=b"x", type=INT32)


@each_case(
    ("schema", "why"),
    [
        ([], "empty"),
        ([group(1)], "more children than"),
        ([group(2), LEAF], "more children than"),
        ([group(2**31 - 1), LEAF], "more children than"),
        ([group(2), group(2**31 - 1), LEAF, LEAF], "more children than"),
        ([group(-1), LEAF], "negative"),
        ([group(2), LEAF, group(-(2**31))], "negative"),
        ([group(1), LEAF, LEAF], "belong to no group"),
        ([group(0), LEAF], "belong to no group"),
        ([group(None), LEAF], "belong to no group"),
        ([group(1), new("SchemaElement", name=b"x", type=INT32, num_children=1), LEAF], "both"),
    ],
)
def test_child_counts_that_do_not_add_up_are_refused(schema: list[ThriftStruct], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        leaf_paths(schema)
    with pytest.raises(FormatError, match=why):
        keep_leaves(schema, [True] * len(schema))


@each_case(
    "schema",
    [
        [group(1), new("SchemaElement", name=b"\xff\xfe", type=INT32)],
        [group(1), group(1, b"\x80"), LEAF],
    ],
)
def test_names_that_are_not_utf_8_are_refused(schema: list[ThriftStruct]) -> None:
    with pytest.raises(FormatError, match="not UTF-8"):
        leaf_paths(schema)


def test_deep_nesting_has_a_limit_and_ends_in_no_recursion_error() -> None:
    for depth in (MAX_SCHEMA_DEPTH, MAX_SCHEMA_DEPTH + 1, 100_000):
        schema = [group(1), *([group(1)] * depth), LEAF]
        if depth == MAX_SCHEMA_DEPTH:
            assert len(leaf_paths(schema)[0]) == depth + 1
            assert len(keep_leaves(schema, [True])) == len(schema)
            continue
        with pytest.raises(LimitError, match="nested deeper"):
            leaf_paths(schema)


def test_a_root_with_a_type_is_a_group() -> None:
    root = new("SchemaElement", name=b"schema", type=INT32, num_children=2)
    leaves = [new("SchemaElement", name=name, type=INT32) for name in (b"a", b"b")]
    kept = keep_leaves([root, *leaves], [False, True])
    assert leaf_paths(kept) == [("b",)]
    assert root.num_children == 2


NUMBERS = st.none() | st.integers(-2, 4) | st.sampled_from([2**31 - 1, -(2**31)])


@given(
    st.lists(
        st.builds(
            lambda kind, count: new("SchemaElement", name=b"n", type=kind, num_children=count),
            st.none() | st.just(INT32),
            NUMBERS,
        ),
        max_size=12,
    )
)
def test_any_schema_has_leaves_or_is_a_format_error(schema: list[ThriftStruct]) -> None:
    try:
        leaves = leaf_paths(schema)
    except FormatError:
        return
    assert len(leaves) == sum(element.type is not None for element in schema[1:])
    assert leaf_paths(keep_leaves(schema, [True] * len(leaves))) == leaves
    assert leaf_paths(keep_leaves(schema, [False] * len(leaves))) == []


# --- covering_name -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), None),
        (("a",), "a"),
        (("a", "a.b"), "a.b"),
        (("a.b.c", "a.b", "a"), "a.b.c"),
        (("b", "c", "b.c", "a.b.c.d", "a.", "A", "ab"), None),
    ],
)
def test_the_longest_name_that_is_the_path_or_a_group_around_it_covers(
    names: tuple[str, ...], expected: str | None
) -> None:
    assert covering_name(("a", "b", "c"), dict.fromkeys(names)) == expected


NAMES = st.lists(st.sampled_from(["a", "b", "ab", "a.b", ""]), min_size=1, max_size=4).map(tuple)


@given(NAMES, st.lists(NAMES.map(".".join)))
def test_covering_goes_by_whole_names_and_never_by_parts_of_them(
    path: tuple[str, ...], names: list[str]
) -> None:
    groups = {".".join(path[:n]) for n in range(1, len(path) + 1)}
    expected = max(groups & set(names), key=len, default=None)
    assert covering_name(path, dict.fromkeys(names)) == expected


# --- keep_leaves ---------------------------------------------------------------------------------


@given(ROOTS, st.data())
def test_what_is_kept_is_the_pruned_tree(root: Tree, data: st.DataObject) -> None:
    schema = flatten_tree(root)
    before = shape(schema)
    keep = [data.draw(st.booleans()) for _ in leaf_paths(schema)]
    expected = prune_tree(root, list(keep)) or (root[0], [])  # the root stays, whatever it loses
    assert shape(keep_leaves(schema, keep)) == shape(flatten_tree(expected))
    assert shape(schema) == before, "the schema given was changed"


def test_one_of_two_leaves_of_a_nested_group() -> None:
    tree: Tree = ("s", [("id", None), ("a", [("b", [("c", None), ("d", None)]), ("e", None)])])
    kept = keep_leaves(flatten_tree(tree), [True, False, True, False])
    assert shape(kept) == [
        (b"s", None, 2),
        (b"id", INT32, None),
        (b"a", None, 1),
        (b"b", None, 1),
        (b"d", INT32, None),
    ]


def test_flags_must_be_one_for_each_leaf() -> None:
    for flags in ([], [True], [True] * 3):
        with pytest.raises(ValueError, match="zip"):
            keep_leaves([group(2), LEAF, LEAF], flags)


def test_a_kept_schema_is_one_that_pyarrow_reads() -> None:
    """Judged from outside: PyArrow's own schema of the columns that stay."""
    out = io.BytesIO()
    table = small_table().select(["id", "address", "tags"])
    pq.write_table(table, out)
    metadata, _ = decode("FileMetaData", footer_of(out.getvalue()))
    kept = keep_leaves(metadata.schema, [True, False, True, True])
    expected = io.BytesIO()
    rows = [{**row, "address": {"city": row["address"]["city"]}} for row in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows), expected)
    metadata, _ = decode("FileMetaData", footer_of(expected.getvalue()))
    assert shape(kept) == shape(metadata.schema)


@pytest.mark.parametrize("gone", ["key", "value"])
def test_a_map_that_lost_a_half_is_still_read_by_others(gone: str) -> None:
    """PyArrow and Polars refuse the whole file over a group that calls itself a map and is none."""
    column = pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64()))
    plain, encrypted, opened = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2], "m": column, "whole": column}), plain)
    keys = {f"m.key_value.{gone}": COLUMN_KEY}
    properties = FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys=keys)
    encrypt_parquet(plain, encrypted, properties)
    without = FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="drop")
    decrypt_parquet(encrypted, opened, without)
    frame = pl.read_parquet(io.BytesIO(opened.getvalue()))
    assert frame["id"].to_list() == [1, 2]
    table = pq.read_table(io.BytesIO(opened.getvalue()))
    assert table["whole"].to_pylist() == column.to_pylist()
    left = {"key": 1, "value": "k"}[gone]
    assert repr(left) in repr(table["m"].to_pylist())
    assert repr({1: "k", "k": 1}[left]) not in repr(table["m"].to_pylist())
