"""Arrow data as a table's data files have it: columns by their names, with field ids and defaults.

pyiceberg's own fitting takes null lists and maps of structs for empty ones, so that the rows would
be others. Here the projection that reads files fits data, too: once names are field ids.
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
from pyiceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
    UnknownType,
)

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.format.avro_rows import FIELD_ID
from modcrypt.iceberg.read.schema_projection import Projection, arrow_schema

__all__ = ["as_value_errors", "check_fits", "file_schema", "fitted", "for_file"]

_DATA = "the data"


@contextlib.contextmanager
def as_value_errors() -> Iterator[None]:
    """Make a ValueError of what pyiceberg says of a schema that it can't take."""
    try:
        yield
    except (UnsupportedPyArrowTypeException, ValidationError, TypeError) as error:
        raise ValueError(str(error)) from None


def check_fits(given: pa.Schema, schema: Schema) -> None:
    """Check that data has columns that those of a table can be made of; names count, not ids.

    Raises:
        ValueError: it hasn't; the message names each column, and what is wrong with it.
    """
    plain = pa.schema([_without_ids(one) for one in given])
    with as_value_errors():
        found = _pyarrow_to_schema_without_ids(plain, format_version=3)
        more = found._name_to_id.keys() - schema._name_to_id.keys()
        if more:
            raise ValueError(f"the table has no columns {', '.join(sorted(more))}: leave them out")
        named = pyarrow_to_schema(plain, schema.name_mapping, format_version=3)
    wrong = "; ".join(_misfits(schema, named))
    if wrong:
        raise ValueError(f"the data does not fit the table: {wrong}")


def _misfits(wanted: Schema, found: Schema) -> Iterator[str]:
    """Say what is wrong with the fields of data, which have the ids that the table's have."""
    parents, there = wanted._lazy_id_to_parent, found._lazy_id_to_field
    for id_, field in wanted._lazy_id_to_field.items():
        name, has = wanted.find_column_name(id_), there.get(id_)
        if has is None:
            told = field.write_default is not None
            if field.required and not told and (id_ not in parents or parents[id_] in there):
                yield f"{name} is required, and lacks"
        elif field.required and not has.required:
            yield f"{name} is required, and may be null in the data: its Arrow field is nullable"
        elif not _is_made_of(field.field_type, has.field_type):
            yield f"{name} is {_spelt(field.field_type)}, and {_spelt(has.field_type)} in the data"


def _is_made_of(wanted: IcebergType, found: IcebergType) -> bool:
    if isinstance(wanted, StructType | ListType | MapType):
        return isinstance(found, type(wanted))  # their fields have ids of their own
    try:
        promote(found, wanted)
    except ResolveError:
        return found == wanted
    return True


def _spelt(kind: IcebergType) -> str:
    nested = {StructType: "a struct", ListType: "a list", MapType: "a map"}
    return nested.get(type(kind), str(kind))


def fitted(rows: pa.Table, schema: Schema) -> pa.Table:
    """Give rows with the columns of a table: in order, cast, and those that lack by default.

    Raises:
        FormatError: a column has a type that the table's can't be made of, or a required one
            lacks.
        ValueError: a value does not fit.
    """
    defaults = {
        one.field_id: one.write_default
        for one in schema._lazy_id_to_field.values()
        if one.write_default is not None
    }
    return _projected(
        rows, schema, Projection(_with_ids(rows.schema, schema), schema, defaults, _DATA)
    )


def file_schema(schema: Schema) -> Schema:
    """Give the schema of a table's data files: names that Avro has, and no unknown columns.

    Spec, "Primitive Types": columns of the type unknown are not stored in data files.

    Raises:
        UnsupportedFormatError: of a struct, a list or a map nothing is left, which Parquet has not.
    """
    return sanitize_column_names(Schema(*_known(schema.fields), schema_id=schema.schema_id))


def _known(fields: Sequence[NestedField]) -> list[NestedField]:
    return [
        one.model_copy(update={"field_type": _of_known(one.field_type, one.name)})
        for one in fields
        if not isinstance(one.field_type, UnknownType)
    ]


def _of_known(kind: IcebergType, name: str) -> IcebergType:
    if isinstance(kind, StructType) and (known := _known(kind.fields)):
        return StructType(*known)
    if isinstance(kind, StructType | UnknownType):
        raise UnsupportedFormatError(
            f"column {name}: Parquet has no structs without fields, nor lists of nothing"
        )
    if isinstance(kind, ListType):
        return kind.model_copy(update={"element_type": _of_known(kind.element_type, name)})
    if isinstance(kind, MapType):
        return kind.model_copy(update={"value_type": _of_known(kind.value_type, name)})
    return kind


def for_file(rows: pa.Table, schema: Schema) -> pa.Table:
    """Give rows that `fitted` gave as a data file has them, with the field ids for Parquet."""
    wanted = file_schema(schema)
    projection = Projection(_with_ids(rows.schema, schema), wanted, {}, _DATA)
    named = _projected(rows, wanted, projection)
    shown = _with_ids(named.schema, wanted)
    batches = [
        pa.RecordBatch.from_arrays(
            [_written(array, one, None) for array, one in zip(batch.columns, shown, strict=True)],
            schema=shown,
        )
        for batch in named.to_batches()
    ]
    return pa.Table.from_batches(batches, shown)


def _projected(rows: pa.Table, wanted: Schema, projection: Projection) -> pa.Table:
    try:
        parts = rows.to_batches(max_chunksize=projection.at_once)
        batches = [projection.rows(one) for one in parts]
    except pa.ArrowInvalid:  # whose text has the value
        raise ValueError("the data has values that the table's types do not hold") from None
    return pa.Table.from_batches(batches, arrow_schema(wanted))


# --- as Parquet's writer takes it ----------------------------------------------------------------


def _written(array: pa.Array, field: pa.Field, there: pa.Array | None) -> pa.Array:
    """Give values as a field with ids; none of a required one is null.

    Within a struct that is null they may be: Parquet's writer of Arrow refuses that, as it does
    other nulls, and doesn't store what they are.

    Args:
        array: the values.
        field: as which they are to be.
        there: which of them are in no null struct; None for all.

    Raises:
        ValueError: one is null.
    """
    valid = array.is_valid() if there is None else pc.and_(array.is_valid(), there)
    expected = len(array) if there is None else there.true_count
    if not field.nullable and valid.true_count < expected:
        raise ValueError(f"{field.name} is required, and null in the data")
    mask = array.is_null() if field.nullable and array.null_count else None
    kind, types = field.type, pa.types
    if types.is_struct(kind):
        parts = [_written(array.field(n), one, valid) for n, one in enumerate(kind.fields)]
        return pa.StructArray.from_arrays(parts, fields=kind.fields, mask=mask)
    if types.is_list(kind):
        array = pa.concat_arrays([array])  # without an offset
        items = _written(array.values, kind.value_field, None)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=mask)
    if types.is_map(kind):
        array = pa.concat_arrays([array])
        keys = _written(array.keys, kind.key_field, None)
        items = _written(array.items, kind.item_field, None)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)
    return array if field.nullable or not array.null_count else _filled(array)


def _filled(array: pa.Array) -> pa.Array:
    """Give values in the place of nulls, whichever."""
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, _filled(array.storage))
    rest = array.buffers()[1:]
    return pa.Array.from_buffers(array.type, len(array), [None, *rest], 0, array.offset)


# --- field ids -----------------------------------------------------------------------------------


def _without_ids(given: pa.Field) -> pa.Field:
    """Leave out ids that the data has from another table."""
    types, kind = pa.types, given.type
    if types.is_struct(kind):
        kind = pa.struct([_without_ids(one) for one in kind.fields])
    elif types.is_map(kind):
        kind = pa.map_(_without_ids(kind.key_field), _without_ids(kind.item_field))
    elif types.is_fixed_size_list(kind):
        kind = pa.list_(_without_ids(kind.value_field), kind.list_size)
    elif types.is_large_list(kind):
        kind = pa.large_list(_without_ids(kind.value_field))
    elif types.is_list(kind):
        kind = pa.list_(_without_ids(kind.value_field))
    return pa.field(given.name, kind, given.nullable)


def _with_ids(given: pa.Schema, wanted: Schema) -> pa.Schema:
    """Give an Arrow schema with the field ids that a table's schema has for its names."""
    by_name = {one.name: one for one in wanted.fields}
    return pa.schema([_field(one, by_name.get(one.name)) for one in given])


def _field(given: pa.Field, wanted: NestedField | None) -> pa.Field:
    if wanted is None:
        return given.remove_metadata()
    kind = _type(given.type, wanted.field_type)
    metadata = {FIELD_ID: str(wanted.field_id)}
    return pa.field(given.name, kind, given.nullable, metadata)


def _type(given: pa.DataType, wanted: IcebergType) -> pa.DataType:
    types = pa.types
    if isinstance(wanted, StructType) and types.is_struct(given):
        by_name = {one.name: one for one in wanted.fields}
        return pa.struct([_field(one, by_name.get(one.name)) for one in given.fields])
    if isinstance(wanted, ListType) and hasattr(given, "value_field"):
        item = _field(given.value_field, wanted.element_field)
        if types.is_fixed_size_list(given):
            return pa.list_(item, given.list_size)
        return pa.large_list(item) if types.is_large_list(given) else pa.list_(item)
    if isinstance(wanted, MapType) and types.is_map(given):
        key = _field(given.key_field, wanted.key_field)
        return pa.map_(key, _field(given.item_field, wanted.value_field))
    return given
