"""Dictionaries whose values are distinct.

PyArrow encodes a column whose dictionary repeats a text as plain values, after a dictionary page
that no page uses.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def make_dictionaries_distinct(table: pa.Table) -> pa.Table:
    """Return a table with the same rows, whose dictionaries have each text or bytes once."""
    for index, field in enumerate(table.schema):
        if "dictionary<" not in str(field.type) and not isinstance(field.type, pa.ExtensionType):
            continue
        column = table.column(index)
        if any(map(_has_repeated_values, column.chunks)):
            chunks = [_unify_dictionaries(chunk) for chunk in column.chunks]
            table = table.set_column(index, field, pa.chunked_array(chunks, field.type))
    return table


def _has_repeated_values(array: pa.Array) -> bool:
    import pyarrow.compute as pc

    return any(
        pc.count_distinct(values, mode="all").as_py() < len(values)
        for values in _find_dictionaries(array)
    )


def _find_dictionaries(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the dictionaries of an array, also within nested types, if they are text or bytes."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _find_dictionaries(array.storage)
    elif pa.types.is_dictionary(kind):
        if kind.value_type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            yield array.dictionary
    elif pa.types.is_map(kind):
        yield from _find_dictionaries(array.keys)
        yield from _find_dictionaries(array.items)
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _find_dictionaries(array.field(number))
    elif (values := getattr(array, "values", None)) is not None:  # of lists
        yield from _find_dictionaries(values)


def _unify_dictionaries(chunk: pa.Array) -> pa.Array:
    # PyArrow unifies the dictionaries of two chunks at least.
    return pa.chunked_array([chunk, chunk.slice(0, 0)]).unify_dictionaries().chunk(0)
