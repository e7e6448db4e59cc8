"""Fit Arrow data to a table's schema: match columns by name, add field ids, apply defaults.

pyiceberg's own fitting turns null lists and maps of structs into empty ones, which would change
rows. So this module maps names to field ids and then uses the projection that reads files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import ResolveError, ValidationError
from pyiceberg.io.pyarrow import (
    UnsupportedPyArrowTypeException,
    _pyarrow_to_schema_without_ids,
    pyarrow_to_schema,
)
from pyiceberg.schema import Schema, promote, sanitize_column_names
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType, UnknownType

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.format.avro_rows import FIELD_ID
from modcrypt.iceberg.read.schema_projection import Projection, arrow_schema, change_children

_DATA = "the data"


@contextlib.contextmanager
def as_value_errors() -> Iterator[None]:
    """Convert pyiceberg's errors about an unsupported schema to ValueError."""
    try:
        yield
    except (UnsupportedPyArrowTypeException, ValidationError, TypeError) as error:
        raise ValueError(str(error)) from None


def check_fits(given: pa.Schema, schema: Schema) -> list[str]:
    """Check that columns of data can be converted to those of a table; matched by name, not id.

    Return the names of the table's columns, and of fields in them, that the data lacks. Raise
    ValueError if the data does not fit.
    """
    plain = pa.schema([_without_ids(field) for field in given])
    with as_value_errors():
        converted = _pyarrow_to_schema_without_ids(plain, format_version=3)
        if more := converted._name_to_id.keys() - schema._name_to_id.keys():
            raise ValueError(f"the table has no columns {', '.join(sorted(more))}; remove them")
        named = pyarrow_to_schema(plain, schema.name_mapping, format_version=3)
    if wrong := "; ".join(_describe_misfits(schema, named)):
        raise ValueError(f"the data does not fit the table: {wrong}")
    return sorted(schema._name_to_id.keys() - converted._name_to_id.keys())


def _describe_misfits(wanted: Schema, found: Schema) -> Iterator[str]:
    """Yield a description of each field of data that does not fit; ids are those of the table."""
    parents, there = wanted._lazy_id_to_parent, found._lazy_id_to_field
    for id_, field in wanted._lazy_id_to_field.items():
        name, has = wanted.find_column_name(id_), there.get(id_)
        if has is None:
            has_default = field.write_default is not None
            if field.required and not has_default and (id_ not in parents or parents[id_] in there):
                yield f"{name} is required, and missing in the data"
        elif field.required and not has.required:
            yield f"{name} is required, but its Arrow field is nullable; make it non-nullable"
        elif not _is_convertible(field.field_type, has.field_type):
            yield (
                f"{name} is {_format_type(field.field_type)}, "
                f"but {_format_type(has.field_type)} in the data"
            )


def _is_convertible(wanted: IcebergType, found: IcebergType) -> bool:
    if isinstance(wanted, StructType | ListType | MapType):
        return isinstance(found, type(wanted))  # their fields are checked by their own ids
    try:
        promote(found, wanted)
    except ResolveError:
        return found == wanted
    return True


def _format_type(kind: IcebergType) -> str:
    nested = {StructType: "a struct", ListType: "a list", MapType: "a map"}
    return nested.get(type(kind), str(kind))


def fit_rows(rows: pa.Table, schema: Schema) -> pa.Table:
    """Return rows with a table's columns: ordered, cast, and missing ones filled with defaults.

    Raise FormatError if a column's type cannot be converted to the table's, or a required column is
    missing, and ValueError if a value does not fit.
    """
    # Null where there is none: `initial_default` is for rows that are older than the column.
    defaults = {id_: field.write_default for id_, field in schema._lazy_id_to_field.items()}
    return _project(
        rows, schema, Projection(_with_ids(rows.schema, schema), schema, defaults, _DATA)
    )


def file_schema(schema: Schema) -> Schema:
    """Return the schema of a table's data files: names valid in Avro, no unknown columns.

    Spec, "Primitive Types": columns of the type unknown are not stored in data files. Raise
    UnsupportedFormatError if a struct, list or map has only unknown fields, which Parquet cannot
    store, or a name is empty or stands for another one there.
    """
    known = Schema(*_known_fields(schema.fields), schema_id=schema.schema_id)
    try:
        return sanitize_column_names(known)
    except ValueError as error:
        raise UnsupportedFormatError(f"data files cannot have the columns: {error}") from None


def _known_fields(fields: Sequence[NestedField]) -> list[NestedField]:
    return [
        field.model_copy(update={"field_type": _drop_unknown(field.field_type, field.name)})
        for field in fields
        if not isinstance(field.field_type, UnknownType)
    ]


def _drop_unknown(kind: IcebergType, name: str) -> IcebergType:
    if isinstance(kind, StructType) and (known := _known_fields(kind.fields)):
        return StructType(*known)
    if isinstance(kind, StructType | UnknownType):
        raise UnsupportedFormatError(
            f"column {name}: Parquet cannot store a struct, list or map of only unknown fields"
        )
    if isinstance(kind, ListType):
        return kind.model_copy(update={"element_type": _drop_unknown(kind.element_type, name)})
    if isinstance(kind, MapType):
        return kind.model_copy(update={"value_type": _drop_unknown(kind.value_type, name)})
    return kind


def rows_for_file(rows: pa.Table, schema: Schema) -> pa.Table:
    """Return rows from `fit_rows` as a data file stores them, with the field ids for Parquet."""
    wanted = file_schema(schema)
    projection = Projection(_with_ids(rows.schema, schema), wanted, {}, _DATA)
    named = _project(rows, wanted, projection)
    schema_with_ids = _with_ids(named.schema, wanted)
    batches = [
        pa.RecordBatch.from_arrays(
            [
                _match_field(array, field, None)
                for array, field in zip(batch.columns, schema_with_ids, strict=True)
            ],
            schema=schema_with_ids,
        )
        for batch in named.to_batches()
    ]
    return pa.Table.from_batches(batches, schema_with_ids)


def _project(rows: pa.Table, wanted: Schema, projection: Projection) -> pa.Table:
    try:
        parts = rows.to_batches(max_chunksize=projection.at_once)
        batches = [projection.rows(part) for part in parts]
    except pa.ArrowInvalid:  # its message contains the value
        raise ValueError("the data has values that do not fit the table's types") from None
    return pa.Table.from_batches(batches, arrow_schema(wanted))


def _match_field(array: pa.Array, field: pa.Field, there: pa.Array | None) -> pa.Array:
    """Return values with the type of a field with ids, and without nulls in required fields.

    A required field of a null struct may be null. Arrow's Parquet writer refuses such nulls too,
    so they are replaced by arbitrary values, which Parquet does not store. `there` is true for
    values that are not in a null struct; None for all true. Raise ValueError if a required value is
    null.
    """
    valid = array.is_valid() if there is None else pc.and_(array.is_valid(), there)
    expected = len(array) if there is None else there.true_count
    if not field.nullable and valid.true_count < expected:
        raise ValueError(f"{field.name} is required, but null in the data")
    mask = array.is_null() if field.nullable and array.null_count else None
    kind, types = field.type, pa.types
    if types.is_struct(kind):
        parts = [_match_field(array.field(n), child, valid) for n, child in enumerate(kind.fields)]
        return pa.StructArray.from_arrays(parts, fields=kind.fields, mask=mask)
    if types.is_list(kind):
        array = pa.concat_arrays([array])  # without an offset
        items = _match_field(array.values, kind.value_field, None)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=mask)
    if types.is_map(kind):
        array = pa.concat_arrays([array])
        keys = _match_field(array.keys, kind.key_field, None)
        items = _match_field(array.items, kind.item_field, None)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)
    return array if field.nullable or not array.null_count else _fill_nulls(array)


def _fill_nulls(array: pa.Array) -> pa.Array:
    """Replace nulls by arbitrary values."""
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, _fill_nulls(array.storage))
    rest = array.buffers()[1:]
    return pa.Array.from_buffers(array.type, len(array), [None, *rest], 0, array.offset)


def _without_ids(given: pa.Field) -> pa.Field:
    """Return a field without ids, which the data may have from another table."""
    kind = change_children(given.type, lambda child, _: _without_ids(child))
    return pa.field(given.name, kind, given.nullable)


def _with_ids(given: pa.Schema, wanted: Schema) -> pa.Schema:
    """Return an Arrow schema with the field ids that a table's schema has for its names."""
    by_name = {field.name: field for field in wanted.fields}
    return pa.schema([_field_with_id(field, by_name.get(field.name)) for field in given])


def _field_with_id(given: pa.Field, wanted: NestedField | None) -> pa.Field:
    if wanted is None:
        return given.remove_metadata()
    kind = _type_with_ids(given.type, wanted.field_type)
    metadata = {FIELD_ID: str(wanted.field_id)}
    return pa.field(given.name, kind, given.nullable, metadata)


def _type_with_ids(given: pa.DataType, wanted: IcebergType) -> pa.DataType:
    types, inner = pa.types, dict[str | int, NestedField]()
    if isinstance(wanted, StructType) and types.is_struct(given):
        inner = {field.name: field for field in wanted.fields}
    elif isinstance(wanted, ListType) and hasattr(given, "value_field"):
        inner = {0: wanted.element_field}
    elif isinstance(wanted, MapType) and types.is_map(given):
        inner = {0: wanted.key_field, 1: wanted.value_field}
    else:
        return given
    by_name = types.is_struct(given)
    return change_children(
        given, lambda child, at: _field_with_id(child, inner.get(child.name if by_name else at))
    )
