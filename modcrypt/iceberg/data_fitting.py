"""Arrow data as a table's data files have it: columns by their names, with field ids and defaults.

pyiceberg's own fitting takes null lists and maps of structs for empty ones, so that the rows would
be others. Here the projection that reads files fits data, too: once names are field ids.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa
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

from modcrypt.iceberg.avro_rows import FIELD_ID
from modcrypt.iceberg.projection import Projection, arrow_schema

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
            if field.required and (id_ not in parents or parents[id_] in there):
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
    """
    known = [one for one in schema.fields if not isinstance(one.field_type, UnknownType)]
    return sanitize_column_names(Schema(*known, schema_id=schema.schema_id))


def for_file(rows: pa.Table, schema: Schema) -> pa.Table:
    """Give rows that `fitted` gave as a data file has them, with the field ids for Parquet."""
    wanted = file_schema(schema)
    projection = Projection(_with_ids(rows.schema, schema), wanted, {}, _DATA)
    named = _projected(rows, wanted, projection)
    return named.cast(_with_ids(named.schema, wanted))


def _projected(rows: pa.Table, wanted: Schema, projection: Projection) -> pa.Table:
    try:
        batches = [projection.rows(one) for one in rows.to_batches()]
    except pa.ArrowInvalid:  # whose text has the value
        raise ValueError("the data has values that the table's types do not hold") from None
    return pa.Table.from_batches(batches, arrow_schema(wanted))


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
