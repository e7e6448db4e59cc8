"""Detectors of types that readers take in different ways."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.format.schema import find_parents, is_repeated, is_required
from modcrypt.parquet.format.structs import SchemaElement
from modcrypt.parquet.writers.plain_view import PlainView
from modcrypt.parquet.writers.quirk import Place
from modcrypt.parquet.writers.versions import is_of

_INT96, _BYTE_ARRAY, _FIXED = 3, 6, 7  # Type of the IDL
_MAP, _MAP_KEY_VALUE, _LIST, _DATE = 1, 2, 3, 6  # ConvertedType of the IDL
_MICROS, _MILLIS = 10, 9
_NEW_SPARK: Final = re.compile(rb"([3-9]|\d\d)\.")


def _children(view: PlainView) -> dict[int, list[int]]:
    """Return the indexes of the fields of each group of the schema, by its own."""
    fields: dict[int, list[int]] = {}
    for n, parent in enumerate(find_parents(view.metadata.schema)):
        if n:
            fields.setdefault(parent, []).append(n)
    return fields


def _annotates(element: SchemaElement, name: str, *converted: int) -> bool:
    logical = element.logicalType
    return element.converted_type in converted or (
        logical is not None and getattr(logical, name) is not None
    )


def _name(element: SchemaElement) -> str:
    return bytes(element.name).decode("utf-8", "replace")


def empty_groups(view: PlainView) -> Iterator[Place]:
    """Find groups without fields."""
    for element in view.metadata.schema[1:]:
        if element.type is None and not element.num_children:
            yield Place(path=_name(element))


def no_repetition_type(view: PlainView) -> Iterator[Place]:
    """Find fields that do not say whether they are optional."""
    for element in view.metadata.schema[1:]:
        if element.repetition_type is None:
            yield Place(path=_name(element))


def _containers(view: PlainView) -> Iterator[tuple[SchemaElement, SchemaElement, list[int]]]:
    """Yield each group with a single field that repeats, that field, and its fields."""
    schema, children = view.metadata.schema, _children(view)
    for parent, fields in children.items():
        if len(fields) == 1 and is_repeated(schema[fields[0]]):
            yield schema[parent], schema[fields[0]], children.get(fields[0], [])


def two_level_lists(view: PlainView) -> Iterator[Place]:
    """Find lists without the level between the repeated group and the element."""
    for element, repeated, inner in _containers(view):
        legacy = _name(repeated) in ("array", f"{_name(element)}_tuple")
        if _annotates(element, "LIST", _LIST) and (len(inner) != 1 or legacy):
            yield Place(path=_name(element))


def unannotated_lists(view: PlainView) -> Iterator[Place]:
    """Find repeated fields outside of lists and maps."""
    schema = view.metadata.schema
    for parent, fields in _children(view).items():
        if not _annotates(schema[parent], "LIST", _LIST) and not _is_map(schema[parent]):
            repeated = (schema[child] for child in fields if is_repeated(schema[child]))
            yield from (Place(path=_name(element)) for element in repeated)


def _is_map(element: SchemaElement) -> bool:
    return _annotates(element, "MAP", _MAP, _MAP_KEY_VALUE)


def optional_map_keys(view: PlainView) -> Iterator[Place]:
    """Find maps whose keys may be null."""
    for element, _, entry in _containers(view):
        if _is_map(element) and entry and not is_required(view.metadata.schema[entry[0]]):
            yield Place(path=_name(element))


def map_key_value(view: PlainView) -> Iterator[Place]:
    """Find maps that are marked by the annotation of their entries alone."""
    for element, _, _ in _containers(view):
        if element.converted_type == _MAP_KEY_VALUE:
            yield Place(path=_name(element))


def int96_timestamps(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find timestamps of 96 bits."""
    if chunk.element.type == _INT96 and chunk.row_group == 0:
        yield ""


def unmarked_strings(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find binaries of writers that do not mark strings."""
    if chunk.element.type != _BYTE_ARRAY or chunk.row_group:
        return
    bare = chunk.element.converted_type is None and chunk.element.logicalType is None
    if bare and is_of(view.created_by, b"impala"):
        yield ""


def julian_dates(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find dates and timestamps that Spark may have written in the Julian calendar."""
    pairs = {pair.key: pair.value or b"" for pair in view.metadata.key_value_metadata or ()}
    version = pairs.get(b"org.apache.spark.version")
    if version is None or chunk.row_group:
        return
    is_int96 = chunk.element.type == _INT96
    legacy = b"org.apache.spark.legacyINT96" if is_int96 else b"org.apache.spark.legacyDateTime"
    is_time = is_int96 or chunk.element.converted_type in (_DATE, _MILLIS, _MICROS)
    if is_time and (legacy in pairs or not _NEW_SPARK.match(version)):
        yield ""


def int128(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find fixed 16 bytes without a meaning that the format knows, as Polars writes integers."""
    element = chunk.element
    bare = element.logicalType is None and element.converted_type is None
    if element.type != _FIXED or element.type_length != 16 or not bare or chunk.row_group:
        return
    if is_of(view.created_by, b"polars"):
        yield ""
