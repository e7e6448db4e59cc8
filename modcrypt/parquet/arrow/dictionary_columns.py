"""Dictionary columns in the form that PyArrow encodes well."""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_

import pyarrow as pa


def prepare_dictionaries(table: pa.Table) -> pa.Table:
    """Return a table with the same rows and types, to be encoded by PyArrow."""
    # Each text is once in its dictionary: otherwise PyArrow writes a dictionary page that no page
    # uses. Nulls of structs are nulls of the dictionaries in them, too: otherwise PyArrow does not
    # count them, and readers that look for nulls skip the row group.
    for index, field in enumerate(table.schema):
        if "dictionary<" not in str(field.type) and not isinstance(field.type, pa.ExtensionType):
            continue
        chunks = table.column(index).chunks
        prepared = [_prepare_chunk(chunk) for chunk in chunks]
        if any(new is not old for new, old in zip(prepared, chunks, strict=True)):
            table = table.set_column(index, field, pa.chunked_array(prepared, field.type))
    return table


def _prepare_chunk(chunk: pa.Array) -> pa.Array:
    if _has_repeated_values(chunk):
        # PyArrow unifies the dictionaries of two chunks at least.
        chunk = pa.chunked_array([chunk, chunk.slice(0, 0)]).unify_dictionaries().chunk(0)
    return _repeat_nulls(chunk)


def _repeat_nulls(array: pa.Array) -> pa.Array:
    """Return an array in which nulls of structs are nulls of the dictionaries in them."""
    kind = array.type
    if not pa.types.is_struct(kind) or "dictionary<" not in str(kind):
        return array
    children = [array.field(number) for number in range(kind.num_fields)]
    masked = array.flatten() if array.null_count else children
    new = [
        _repeat_nulls(own) if field.nullable and _is_dictionary_or_struct(field.type) else child
        for field, own, child in zip(kind, masked, children, strict=True)
    ]
    if all(map(is_, new, children)):
        return array
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(new, fields=list(kind), mask=mask)


def _is_dictionary_or_struct(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind) or pa.types.is_struct(kind))


def _has_repeated_values(array: pa.Array) -> bool:
    import pyarrow.compute as pc

    found = list(_find_dictionaries(array))
    if any(values.null_count for values in found):
        return False  # PyArrow unifies no such dictionaries, and says that it does not write them
    return any(pc.count_distinct(values, mode="all").as_py() < len(values) for values in found)


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
