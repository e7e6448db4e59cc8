"""Lossless decoding and encoding of Parquet's Thrift structs.

`idl_definitions` has what thriftpy2 reads from `thrift/parquet.thrift`. `compact` implements the
protocol, because thriftpy2's implementation drops fields that the IDL does not know, takes about
ten times as long, and raises TypeError, OverflowError or struct.error for bad bytes. Here:

- A field of a newer writer, or one whose type differs from the IDL's, is kept as raw bytes and
  written back in its place; `without_unknown` removes such fields.
- Strings and binaries stay bytes.
- `encode(decode(...))` returns the same bytes for writers that encode canonically (ascending ids,
  shortest varints), as all known writers do.
- Every failure is a FormatError, and every count is checked against the bytes that exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_not
from typing import Any, Final, TypeAlias

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.parquet.format.compact import (
    BINARY,
    INTERPRETED,
    KEPT,
    MAX_FIELD_ID,
    SHARED,
    STRUCT,
    UNKNOWN,
    Field,
    OwnStruct,
    Parts,
    StructPlan,
    read_binary,
    read_int,
    read_struct,
    skip_field,
    skip_struct,
    write_struct,
)
from modcrypt.parquet.format.idl_definitions import IdlStruct, load_definitions
from modcrypt.parquet.format.spelling import end_if_usual
from modcrypt.parquet.format.structs import (
    ColumnChunk,
    ColumnCryptoMetaData,
    ColumnMetaData,
    EncryptionWithColumnKey,
    SchemaElement,
)

ThriftStruct: TypeAlias = Any
"""An instance of a class of `structs`, or of one made here: a field that is not set is None."""

STATISTICS, CHUNKS = 1, 2
"""Laziness of a decoding: statistics of column chunks and their orders, or also the chunks and
their metadata, are only located, and decoded when they are used."""

_LAZY = {
    ("FileMetaData", "schema"): KEPT,
    ("FileMetaData", "column_orders"): STATISTICS,
    ("RowGroup", "columns"): CHUNKS,
    ("ColumnChunk", "meta_data"): CHUNKS,
    ("ColumnMetaData", "encodings"): SHARED,
    ("ColumnMetaData", "encoding_stats"): SHARED,
    ("ColumnMetaData", "statistics"): STATISTICS,
    ("ColumnMetaData", "size_statistics"): STATISTICS,
    ("ColumnMetaData", "geospatial_statistics"): STATISTICS,
}
"""The fields, by struct and name, that are only located from a laziness on, `KEPT` or `SHARED`."""

OWN_CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        ColumnChunk, ColumnCryptoMetaData, ColumnMetaData, EncryptionWithColumnKey, SchemaElement
    )
}  # fmt: skip
"""The classes of structs that have one in `structs`, by name."""


_plans: Final[dict[str, StructPlan]] = {}


def _find_plan(struct: str) -> StructPlan:
    plan = _plans.get(struct)
    if plan is None:
        plan = _plans[struct] = _make_plan(struct)
    return plan


def _make_plan(struct: str) -> StructPlan:
    is_union, rows = load_definitions()[0][struct]
    fields = [
        Field(
            field_id, wire, name, _find_plan(nested) if nested else None, element,
            _LAZY.get((struct, name), 0),
        )
        for field_id, wire, name, _, nested, element in rows
    ]  # fmt: skip
    cls = OWN_CLASSES.get(struct)
    if cls is None:
        # Fields that are not set read as None, without a slot per instance.
        names = (
            UNKNOWN,
            *(f.name for f in fields),
            *(f.slot for f in fields),
            *(f.as_read for f in fields),
        )
        cls = type(struct, (IdlStruct,), dict.fromkeys(filter(None, names)))
    required = sum(1 << row[0] for row in rows if row[3])
    plan = StructPlan(cls, fields, required, is_union)
    first = next((f.plan for f in fields if f.id == 1), None) if plan.is_union else None
    if first is not None and not (first.required or first.is_union):
        plan.shared, _ = read_struct(plan, b"\x1c\0\0", 0, 0, 0)
    return plan


def is_usual(value: ThriftStruct, data: bytes, *, known_only: bool = False) -> bool:
    """Return whether encoding a struct gives the bytes again from which it was decoded.

    With `known_only`, it is encoded without fields that the IDL does not know.
    """
    if not INTERPRETED and end_if_usual(_plan_of(value), data, 0) == len(data):
        return True  # compiled, this takes a fraction of the time
    return bool(encode(without_unknown(value) if known_only else value) == data)


def _plan_of(value: ThriftStruct) -> StructPlan:
    return _find_plan(type(value).__name__)


def enum_name(enum: str, number: int | None) -> str:
    """Return the name of a value of an enum of the IDL, or `unknown(number)`."""
    return load_definitions()[1][enum].get(str(number), f"unknown({number})")


def new(struct: str, **fields: object) -> ThriftStruct:
    """Create a struct of the IDL by its name."""
    plan = _find_plan(struct)
    value: ThriftStruct = plan.create(plan.cls)
    for name, item in fields.items():
        setattr(value, name, item)
    return value


def set_fields(value: ThriftStruct) -> dict[str, Any]:
    """Return the fields of a struct that are set, by name; without those that the IDL lacks."""
    items = {field.name: getattr(value, field.name) for field in _plan_of(value).in_order}
    return {name: item for name, item in items.items() if item is not None}


def extension(value: ThriftStruct) -> bytes | None:
    """Return the struct's extension: the binary under the field id that the format reserves."""
    for field_id, wire, raw in getattr(value, UNKNOWN) or ():
        if field_id == MAX_FIELD_ID and wire == BINARY:
            return read_binary(raw, 0)[0]
    return None


def set_extension(value: ThriftStruct, data: bytes | None) -> None:
    """Set the struct's extension, or remove it."""
    unknown = getattr(value, UNKNOWN) or ()
    others = [entry for entry in unknown if entry[:2] != (MAX_FIELD_ID, BINARY)]
    if data is not None:
        others.append((MAX_FIELD_ID, BINARY, varint(len(data)) + data))
    setattr(value, UNKNOWN, others)


def copy(value: ThriftStruct, keep: tuple[str, ...] | None = None) -> ThriftStruct:
    """Copy a struct one level deep; with `keep`, copy only those fields and no unknown ones."""
    twin: ThriftStruct
    if keep is None and isinstance(value, OwnStruct):
        twin = value._with_fields(value._list_fields())
        twin._unknown = value._unknown
        return twin
    plan = _plan_of(value)
    twin = plan.create(plan.cls)
    for field in plan.in_order:
        if keep is None or field.name in keep:
            setattr(twin, field.slot, getattr(value, field.slot))
            if field.as_read:
                setattr(twin, field.as_read, getattr(value, field.as_read))
    if keep is None:
        setattr(twin, UNKNOWN, getattr(value, UNKNOWN))
    return twin


def restore_field(value: ThriftStruct, name: str) -> None:
    """Let `encode` write the bytes from which a field was decoded, if `decode` kept them."""
    as_read = getattr(value, "_" + name)
    if as_read is not None:
        setattr(value, name, as_read)


def without_unknown(value: ThriftStruct) -> ThriftStruct | None:
    """Return a struct that has only fields of the IDL, at every level.

    Return the struct itself if it has no other fields. Return None if it is invalid without them:
    a union whose member is unknown, or a struct that requires such a union. A union member that is
    an empty struct stays: it is a new type or column order, and its id is all its information.
    """
    plan, unknown = _plan_of(value), getattr(value, UNKNOWN)
    if unknown and plan.is_union:
        return value if _is_bare(unknown) else None
    changed: dict[str, Any] = {}
    for field in plan.nested:
        item = getattr(value, field.name)
        if item is None:
            continue
        known = without_unknown(item) if field.wire == STRUCT else _list_without_unknown(item)
        if known is None and (plan.is_union or plan.required >> field.id & 1):
            return None
        if known is not item:
            changed[field.name] = known
    if not unknown and not changed:
        return value
    twin = copy(value)
    setattr(twin, UNKNOWN, None)
    for name, item in changed.items():
        setattr(twin, name, item)
    return twin


def _is_bare(unknown: Sequence[tuple[int, int, bytes]]) -> bool:
    return all((wire, raw) == (STRUCT, b"\0") for _, wire, raw in unknown)


def _list_without_unknown(items: Sequence[Any]) -> Sequence[Any] | None:
    """Return the elements without unknown fields; None if one is invalid without them."""
    known = [without_unknown(item) for item in items]
    if any(item is None for item in known):
        return None
    return known if any(map(is_not, known, items)) else items


def unknown_fields(value: ThriftStruct) -> Iterator[tuple[ThriftStruct, int]]:
    """Yield each field that `without_unknown` removes: the struct that has it, and its id."""
    plan, unknown = _plan_of(value), getattr(value, UNKNOWN) or ()
    if not (plan.is_union and _is_bare(unknown)):
        yield from ((value, field_id) for field_id, _, _ in unknown)
    for field in plan.nested:
        item = getattr(value, field.name)
        for struct in (item,) if field.wire == STRUCT else item or ():
            if struct is not None:
                yield from unknown_fields(struct)


def has_foreign_types(value: ThriftStruct) -> bool:
    """Return whether a struct has a field of another type than the IDL's."""
    # It is kept as unknown, until the field of the IDL is set, which takes its place.
    by_id = _plan_of(value).by_id
    ids = (field_id for field_id, _, _ in getattr(value, UNKNOWN) or ())
    return any(0 < n < len(by_id) and by_id[n] is not None for n in ids)


def known_bytes(struct: str, data: bytes) -> bytes:
    """Return an encoded struct with only the fields of the IDL, and the bytes that follow it.

    Raise FormatError if the bytes are not that struct, and UnsupportedFormatError if the struct is
    invalid without a field that the IDL does not know.
    """
    value, end = decode(struct, data)
    known = without_unknown(value)
    if known is value:
        return data
    if known is None:
        raise UnsupportedFormatError(
            f"{struct}: modcrypt does not know its kind; pass keep_unknown_fields=True to copy it "
            "unchanged"
        )
    return encode(known) + data[end:]


def is_known(struct: str, data: bytes) -> bool:
    """Return whether an encoded struct, which decodes, certainly has only fields of the IDL."""
    return end_if_usual(_find_plan(struct), data, 0) == len(data)


def decode(struct: str, data: bytes, at: int = 0, *, lazy: int = 0) -> tuple[ThriftStruct, int]:
    """Decode the struct at `data[at:]`; return it and the position after its STOP.

    A `lazy` of 0 decodes all; `STATISTICS` or `CHUNKS` only locates those, so that FormatError is
    raised where they are used. What is never used is written back unchanged. Raise FormatError if
    the bytes are not that struct, and LimitError if the struct is nested deeper than `MAX_NESTING`.
    """
    try:
        return read_struct(_find_plan(struct), data, at, 0, lazy)
    except IndexError:
        raise FormatError(f"{struct}: the bytes end inside the struct") from None
    except FormatError as error:
        raise type(error)(f"{struct}: {error}") from None


def struct_end(data: bytes) -> int:
    """Return the length of the struct that `data` begins with.

    parquet-java pads structs before it encrypts them, so bytes may follow. Raise FormatError if
    `data` does not begin with a struct, or ends inside it.
    """
    try:
        end = skip_struct(data, 0, 0)
    except IndexError:
        end = len(data) + 1
    if end > len(data):
        raise FormatError("the bytes end inside the struct")
    return end


def decode_some(struct: str, data: bytes, names: frozenset[str]) -> tuple[ThriftStruct, int]:
    """Decode only the named fields of a struct and skip the rest: for unauthenticated bytes.

    Raise FormatError if the bytes are not a struct.
    """
    plan = _find_plan(struct)
    value: ThriftStruct = plan.create(plan.cls)
    at = field_id = 0
    try:
        while (head := data[at]) != 0:
            at += 1
            if head > 15:
                field_id += head >> 4
            else:
                field_id, at = read_int(data, at, 16)
            if field_id > MAX_FIELD_ID:
                raise FormatError(f"{struct}: field id {field_id} is out of range")
            end = skip_field(head & 15, data, at, 1)
            field = plan.by_id[field_id] if 0 < field_id < len(plan.by_id) else None
            if field is not None and field.name in names:
                # A struct that has only this field, with its id in the long form.
                alone = bytes((head & 15,)) + varint(zigzag(field_id)) + data[at:end] + b"\0"
                read, _ = read_struct(plan, alone, 0, 0, lazy=0, complete=False)
                if getattr(value, field.slot) is not None:
                    raise FormatError(f"{struct}: field {field.name} comes twice")
                setattr(value, field.slot, getattr(read, field.slot))
            at = end
    except IndexError:
        at = len(data)
    if at >= len(data):
        raise FormatError(f"{struct}: the bytes end inside the struct")
    return value, at + 1


def encode(value: ThriftStruct) -> bytes:
    """Encode a struct in the compact protocol, with fields in ascending order of their ids.

    Ids that are not positive, which the IDL never has, precede only the extension. Raise
    FormatError if an integer does not fit its type.
    """
    out: Parts = [bytearray()]
    write_struct(out, _plan_of(value), value)
    return b"".join(out)


def zigzag(value: int) -> int:
    """Map a signed integer to the unsigned integer that compact varints hold."""
    return value << 1 if value >= 0 else ~(value << 1)


def varint(value: int) -> bytes:
    """Encode an unsigned integer as a varint."""
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
