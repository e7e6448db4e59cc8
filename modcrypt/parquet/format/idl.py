"""Lossless decoding and encoding of Parquet's Thrift structs; the only module with thriftpy2.

thriftpy2 parses `thrift/parquet.thrift` and creates the classes. The compact protocol is
implemented here, because thriftpy2's implementation drops fields that the IDL does not know, takes
about ten times as long, and raises TypeError, OverflowError or struct.error for bad bytes. Here:

- A field of a newer writer, or one whose type differs from the IDL's, is kept as raw bytes and
  written back in its place; `without_unknown` removes such fields.
- Strings and binaries stay bytes.
- `encode(decode(...))` returns the same bytes for writers that encode canonically (ascending ids,
  shortest varints), as all known writers do.
- Every failure is a FormatError, and every count is checked against the bytes that exist.

This module has more than 400 lines because reading, skipping and writing share one protocol.
"""

from __future__ import annotations

import importlib.resources
import io
from collections.abc import Iterator
from functools import cache
from operator import is_not
from struct import Struct
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import thriftpy2

from modcrypt.errors import FormatError, LimitError, UnsupportedFormatError

MAX_NESTING = 64
"""Deepest nesting of structs and containers read from a file; Parquet's own IDL needs 10."""

MAX_LIST = 1_000_000
"""Most elements read from one list in a file; Arrow C++ has the same limit by default."""

MAX_STRUCTS = 100_000
"""Most structs in one list, except page locations: ordinals allow 32,768 columns or row groups, and
a hostile footer of dense structs would take a hundred times its size in memory."""

MAX_FIELD_ID = 32_767
"""Field ids are int16; the last one is reserved for extensions ("Binary Protocol Extensions")."""

ThriftStruct: TypeAlias = Any
"""An instance of a class that thriftpy2 created: a field that is not set is None."""

# Compact protocol wire types.
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
UUID = 13

# thriftpy2's TType numbers (its IDL's types) -> wire types.
_BOOL = 2
_WIRE = {_BOOL: TRUE, 3: BYTE, 4: DOUBLE, 6: I16, 8: I32, 10: I64, 11: BINARY, 12: STRUCT}
_WIRE |= {13: MAP, 14: SET, 15: LIST, 18: BINARY}

_BITS = {I16: 16, I32: 32, I64: 64}
_double = Struct("<d")


class _Field(NamedTuple):
    id: int
    wire: int
    name: str
    plan: _Plan | None  # for a struct, or for the elements of a list of structs
    element: int  # wire type of a list's elements


class _Plan:
    """The codec's description of one struct class."""

    __slots__ = ("by_id", "cls", "in_order", "is_union", "nested", "required")

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.by_id: dict[int, _Field] = {}
        spec: dict[int, tuple[Any, ...]] = cls.thrift_spec  # type: ignore[attr-defined]
        for field_id, (ttype, name, *rest) in sorted(spec.items()):
            sub: Any = rest[0] if len(rest) == 2 else None
            plan, element = None, 0
            if ttype == 12:
                plan = _build_plan(sub)
            elif ttype == 15:
                nested = isinstance(sub, tuple)
                element = _WIRE[sub[0] if nested else sub]
                plan = _build_plan(sub[1]) if nested and element == STRUCT else None
            self.by_id[field_id] = _Field(field_id, _WIRE[ttype], name, plan, element)
            setattr(cls, name, None)  # an unset field reads as None without a slot per instance
        self.in_order = tuple(self.by_id.values())
        self.nested = tuple(field for field in self.in_order if field.plan is not None)
        self.is_union = cls in _load_idl().__thrift_meta__["unions"]
        self.required = tuple(f[1] for f in spec.values() if f[-1])


@cache
def _build_plan(cls: Any) -> _Plan:
    return _Plan(cls)


def _read_idl_text() -> str:
    """Return the text of parquet.thrift, from the package or its zip."""
    package = importlib.resources.files("modcrypt")
    return (package / "thrift" / "parquet.thrift").read_text("utf-8")


@cache
def _load_idl() -> ModuleType:
    module: ModuleType = thriftpy2.load_fp(io.StringIO(_read_idl_text()), "modcrypt_parquet_thrift")
    return module


@cache
def _find_plan(struct: str) -> _Plan:
    return _build_plan(getattr(_load_idl(), struct))


def new(struct: str, **fields: object) -> ThriftStruct:
    """Create a struct of the IDL by its name."""
    value: ThriftStruct = object.__new__(_find_plan(struct).cls)
    value.__dict__.update(fields)
    return value


def extension(value: ThriftStruct) -> bytes | None:
    """Return the struct's extension: the binary under the field id that the format reserves."""
    for field_id, wire, raw in value.__dict__.get("_unknown", ()):
        if field_id == MAX_FIELD_ID and wire == BINARY:
            return _read_binary(raw, 0)[0]
    return None


def set_extension(value: ThriftStruct, data: bytes | None) -> None:
    """Set the struct's extension, or remove it."""
    unknown = value.__dict__.get("_unknown", ())
    others = [entry for entry in unknown if entry[:2] != (MAX_FIELD_ID, BINARY)]
    if data is not None:
        others.append((MAX_FIELD_ID, BINARY, varint(len(data)) + data))
    value._unknown = others


def copy(value: ThriftStruct, keep: tuple[str, ...] | None = None) -> ThriftStruct:
    """Copy a struct one level deep; with `keep`, copy only those fields and no unknown ones."""
    twin = object.__new__(type(value))
    fields = value.__dict__
    twin.__dict__.update(fields if keep is None else {k: fields[k] for k in keep if k in fields})
    return twin


# --- fields that the IDL doesn't know --------------------------------------------------------


def without_unknown(value: ThriftStruct) -> ThriftStruct | None:
    """Return a struct that has only fields of the IDL, at every level.

    Return the struct itself if it has no other fields. Return None if it is invalid without them:
    a union whose member is unknown, or a struct that requires such a union. A union member that is
    an empty struct stays: it is a new type or column order, and its id is all its information.
    """
    fields = value.__dict__
    cls: Any = type(value)
    plan = _build_plan(cls)
    unknown = "_unknown" in fields
    if unknown and plan.is_union:
        return value if _is_bare(fields["_unknown"]) else None
    changed: dict[str, Any] = {}
    for _, wire, name, _, _ in plan.nested:
        item = fields.get(name)
        if item is None:
            continue
        known = without_unknown(item) if wire == STRUCT else _list_without_unknown(item)
        if known is None and (plan.is_union or name in plan.required):
            return None
        if known is not item:
            changed[name] = known
    if not unknown and not changed:
        return value
    twin = copy(value)
    twin.__dict__.pop("_unknown", None)
    twin.__dict__.update(changed)
    return twin


def _is_bare(unknown: list[tuple[int, int, bytes]]) -> bool:
    """Return whether a union's unknown member is an empty struct."""
    return all((wire, raw) == (STRUCT, b"\0") for _, wire, raw in unknown)


def _list_without_unknown(items: list[Any]) -> list[Any] | None:
    """Return the elements without unknown fields; None if one is invalid without them."""
    known = [without_unknown(item) for item in items]
    if any(item is None for item in known):
        return None
    return known if any(map(is_not, known, items)) else items


def unknown_fields(value: ThriftStruct) -> Iterator[tuple[ThriftStruct, int]]:
    """Yield each field that `without_unknown` removes: the struct that has it, and its id."""
    fields = value.__dict__
    cls: Any = type(value)
    plan, unknown = _build_plan(cls), fields.get("_unknown", ())
    if not (plan.is_union and _is_bare(unknown)):
        yield from ((value, field_id) for field_id, _, _ in unknown)
    for _, wire, name, _, _ in plan.nested:
        item = fields.get(name)
        for struct in (item,) if wire == STRUCT else item or ():
            if struct is not None:
                yield from unknown_fields(struct)


def known_bytes(struct: str, data: bytes) -> bytes:
    """Return an encoded struct with only the fields of the IDL, and the bytes that follow it.

    Raises:
        FormatError: The bytes are not that struct.
        UnsupportedFormatError: The struct is invalid without a field that the IDL does not know.
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


# --- reading -------------------------------------------------------------------------------


def decode(struct: str, data: bytes, at: int = 0) -> tuple[ThriftStruct, int]:
    """Decode the struct at `data[at:]`; return it and the position after its STOP.

    Raises:
        FormatError: The bytes are not that struct.
        LimitError: The struct is nested deeper than `MAX_NESTING`.
    """
    try:
        value, end = _read_struct(_find_plan(struct), data, at, 0)
    except IndexError:
        raise FormatError(f"{struct}: the bytes end inside the struct") from None
    except FormatError as error:
        raise type(error)(f"{struct}: {error}") from None
    if end > len(data):
        raise FormatError(f"{struct}: the bytes end inside the struct")
    return value, end


def struct_end(data: bytes) -> int:
    """Return the length of the struct that `data` begins with.

    parquet-java pads structs before it encrypts them, so bytes may follow.

    Raises:
        FormatError: `data` does not begin with a struct, or ends inside it.
    """
    try:
        end = _skip_struct(data, 0, 0)
    except IndexError:
        end = len(data) + 1
    if end > len(data):
        raise FormatError("the bytes end inside the struct")
    return end


def decode_some(struct: str, data: bytes, names: frozenset[str]) -> tuple[ThriftStruct, int]:
    """Decode only the named fields of a struct and skip the rest: for unauthenticated bytes.

    Raises:
        FormatError: The bytes are not a struct.
    """
    plan = _find_plan(struct)
    value: ThriftStruct = object.__new__(plan.cls)
    at = field_id = 0
    try:
        while (head := data[at]) != 0:
            at += 1
            if head > 15:
                field_id += head >> 4
            else:
                field_id, at = read_int(data, at, 16)
            end = skip_field(head & 15, data, at, 1)
            field = plan.by_id.get(field_id)
            if field is not None and field.name in names:
                # A struct that has only this field, with its id in the long form.
                alone = bytes((head & 15,)) + varint(zigzag(field_id)) + data[at:end] + b"\0"
                read, _ = _read_struct(plan, alone, 0, 0, required=())
                if field.name in value.__dict__:
                    raise FormatError(f"{struct}: field {field.name} comes twice")
                value.__dict__.update(read.__dict__)
            at = end
    except IndexError:
        at = len(data)
    if at >= len(data):
        raise FormatError(f"{struct}: the bytes end inside the struct")
    return value, at + 1


def _read_struct(
    plan: _Plan, data: bytes, at: int, depth: int, required: tuple[str, ...] | None = None
) -> tuple[ThriftStruct, int]:
    if depth > MAX_NESTING:
        raise LimitError(f"nested deeper than {MAX_NESTING} levels")
    value: ThriftStruct = object.__new__(plan.cls)
    fields = value.__dict__
    by_id, size = plan.by_id, len(data)
    field_id = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            break
        wire = head & 15
        if head > 15:
            field_id += head >> 4
        else:
            field_id, at = read_int(data, at, 16)
        field = by_id.get(field_id)
        # Thrift's readers also skip a field whose type differs: a snapshot of parquet-mr 1.12
        # wrote a list under the id that now belongs to bloom_filter_length.
        if field is None or (wire != field[1] and (wire, field[1]) != (FALSE, TRUE)):
            at = _keep_unknown(fields, field_id, wire, data, at, depth)
            continue
        _, _, name, sub, _ = field
        if name in fields:
            raise FormatError(f"field {name} comes twice")
        if I16 <= wire <= I64:
            byte = data[at]
            if byte < 128:  # most values take one byte
                fields[name] = (byte >> 1) ^ -(byte & 1)
                at += 1
            else:
                fields[name], at = read_int(data, at, _BITS[wire])
        elif wire == BINARY:
            length = data[at]
            end = at + 1 + length
            if length < 128 and end <= size:
                fields[name] = data[at + 1 : end]
                at = end
            else:
                fields[name], at = _read_binary(data, at)
        elif sub is not None and wire == STRUCT:
            fields[name], at = _read_struct(sub, data, at, depth + 1)
        elif wire == LIST:
            fields[name], at = _read_list(field, data, at, depth)
        else:
            fields[name], at = _read_scalar(wire, data, at)
    if plan.is_union and len(fields) != 1:  # one unknown member counts as one
        raise FormatError(f"union {plan.cls.__name__} has {len(fields)} members")
    for name in plan.required if required is None else required:
        if name not in fields:
            raise FormatError(f"{plan.cls.__name__}: required field {name} is missing")
    return value, at


def _keep_unknown(
    fields: dict[str, Any], field_id: int, wire: int, data: bytes, at: int, depth: int
) -> int:
    end = skip_field(wire, data, at, depth + 1)
    if end > len(data):
        raise IndexError
    if not 0 < field_id <= MAX_FIELD_ID:
        raise FormatError(f"field id {field_id} is out of range")
    fields.setdefault("_unknown", []).append((field_id, wire, data[at:end]))
    return end


def _read_varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise FormatError("a varint is longer than 10 bytes")


def read_int(data: bytes | bytearray, at: int, bits: int) -> tuple[int, int]:
    """Read a zigzag varint of at most `bits` bits; return it and the position after it."""
    byte = data[at]  # repeats `_read_varint` to save its call: this runs for offsets and sizes
    value = byte & 127
    shift = 0
    while byte > 127:
        at += 1
        shift += 7
        if shift > 63:
            raise FormatError("a varint is longer than 10 bytes")
        byte = data[at]
        value |= (byte & 127) << shift
    at += 1
    if value >> bits:
        raise FormatError(f"an integer does not fit {bits} bits")
    return (value >> 1) ^ -(value & 1), at


def _read_binary(data: bytes, at: int) -> tuple[bytes, int]:
    length = data[at]
    if length < 128:
        at += 1
    else:
        length, at = _read_varint(data, at)
    end = at + length
    if end > len(data):
        raise LimitError(f"a binary declares {length} bytes where {len(data) - at} exist")
    return data[at:end], end


def _read_scalar(wire: int, data: bytes, at: int) -> tuple[Any, int]:
    if wire in (TRUE, FALSE):
        return wire == TRUE, at
    if wire == BYTE:
        return (data[at] ^ 128) - 128, at + 1
    if wire == DOUBLE:
        if at + 8 > len(data):
            raise IndexError
        return _double.unpack_from(data, at)[0], at + 8
    raise FormatError(f"wire type {wire} is not allowed here")


def _read_list_head(data: bytes | bytearray, at: int) -> tuple[int, int, int]:
    head = data[at]
    at += 1
    count = head >> 4
    if count == 15:
        count, at = _read_varint(data, at)
    # Each element takes at least one byte, so no count can demand more memory than bytes exist.
    if count > min(len(data) - at, MAX_LIST):
        raise LimitError(
            f"a list declares {count} elements where {len(data) - at} bytes exist and at most "
            f"{MAX_LIST} elements are read"
        )
    return head & 15, count, at


def _read_list(field: _Field, data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    element, count, at = _read_list_head(data, at)
    if count == 0:
        return [], at
    if count > MAX_STRUCTS and element == STRUCT and field.name != "page_locations":
        raise LimitError(
            f"field {field.name} lists {count} structs; at most {MAX_STRUCTS} are read"
        )
    bools = element in (TRUE, FALSE) and field.element == TRUE
    if element != field.element and not bools:
        raise FormatError(f"field {field.name} lists wire type {element}, not {field.element}")
    values: list[Any] = []
    append = values.append
    if field.plan is not None:
        plan = field.plan
        for _ in range(count):
            value, at = _read_struct(plan, data, at, depth + 1)
            append(value)
    elif bools:
        flags = data[at : at + count]
        if len(flags) < count or not set(flags) <= {0, 1, 2}:
            raise FormatError(f"field {field.name} holds a byte that is not a boolean")
        return [flag == 1 for flag in flags], at + count
    elif element in _BITS:
        bits = _BITS[element]
        for _ in range(count):
            value, at = read_int(data, at, bits)
            append(value)
    elif element == BINARY:
        for _ in range(count):
            value, at = _read_binary(data, at)
            append(value)
    else:
        for _ in range(count):
            value, at = _read_scalar(element, data, at)
            append(value)
    return values, at


# --- skipping fields that the IDL doesn't know ---------------------------------------------


def _skip_struct(data: bytes | bytearray, at: int, depth: int) -> int:
    """Return the position after the struct at `at`; the end is checked as in `skip_field`."""
    if depth > MAX_NESTING:
        raise LimitError(f"nested deeper than {MAX_NESTING} levels")
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return at
        if head < 16:  # the field id follows as a separate varint
            _, at = _read_varint(data, at)
        wire = head & 15
        if I16 <= wire <= I64:
            if data[at] < 128:
                at += 1
            else:
                _, at = _read_varint(data, at)
        elif wire == BINARY:
            length = data[at]
            if length < 128:
                at += 1 + length
            else:
                length, at = _read_varint(data, at)
                at += length
        elif wire == STRUCT:
            at = _skip_struct(data, at, depth + 1)
        elif wire not in (TRUE, FALSE):
            at = skip_field(wire, data, at, depth + 1)


def skip_field(wire: int, data: bytes | bytearray, at: int, depth: int) -> int:
    """Return the position after a value of wire type `wire`, nested `depth` deep, at `at`.

    The position may lie past the end: the caller must check it. Or IndexError is raised there.
    """
    if depth > MAX_NESTING:
        raise LimitError(f"nested deeper than {MAX_NESTING} levels")
    if wire in (TRUE, FALSE):
        return at
    if wire == BYTE:
        return at + 1
    if wire in _BITS:
        return _read_varint(data, at)[1]
    if wire == DOUBLE:
        return at + 8
    if wire == UUID:
        return at + 16
    if wire == BINARY:
        length, at = _read_varint(data, at)
        return at + length
    if wire == STRUCT:
        return _skip_struct(data, at, depth)
    if wire in (LIST, SET):
        element, count, at = _read_list_head(data, at)
        return _skip_elements((element,), count, data, at, depth)
    if wire == MAP:
        count, at = _read_varint(data, at)
        if count > len(data) - at:
            raise LimitError(f"a map declares {count} entries where {len(data) - at} bytes exist")
        if count == 0:
            return at
        kinds = data[at]
        return _skip_elements((kinds >> 4, kinds & 15), count, data, at + 1, depth)
    raise FormatError(f"wire type {wire} does not exist")


def _skip_elements(
    kinds: tuple[int, ...], count: int, data: bytes | bytearray, at: int, depth: int
) -> int:
    for _ in range(count):
        for kind in kinds:
            # In a container a boolean is a byte, not a wire type.
            at = at + 1 if kind in (TRUE, FALSE) else skip_field(kind, data, at, depth + 1)
        if at > len(data):
            raise IndexError
    return at


# --- writing -------------------------------------------------------------------------------


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


def encode(value: ThriftStruct) -> bytes:
    """Encode a struct in the compact protocol, with fields in ascending order of their ids."""
    out = bytearray()
    _write_struct(out, value)
    return bytes(out)


def _write_struct(out: bytearray, value: ThriftStruct) -> None:
    cls: Any = type(value)
    plan: _Plan = _build_plan(cls)
    fields = value.__dict__
    if "_unknown" in fields:
        _write_with_unknown(out, plan, fields)
        return
    last = 0
    for field in plan.in_order:
        field_id, wire, name, _, _ = field
        item = fields.get(name)
        if item is None:
            continue
        delta = field_id - last
        if wire in _BITS and delta < 16:  # the common case, inlined to save a call
            item = item << 1 if item >= 0 else ~(item << 1)
            out.append(delta << 4 | wire)
            if item < 128:
                out.append(item)
            else:
                _write_unsigned(out, item, _BITS[wire])
        else:
            _write_field(out, field, item, last)
        last = field_id
    out.append(0)


def _write_with_unknown(out: bytearray, plan: _Plan, fields: dict[str, Any]) -> None:
    entries: list[tuple[int, Any]] = [
        (field.id, field) for field in plan.in_order if fields.get(field.name) is not None
    ]
    known = {field_id for field_id, _ in entries}  # a field set since decoding takes precedence
    entries += [(entry[0], entry) for entry in fields["_unknown"] if entry[0] not in known]
    entries.sort(key=lambda entry: entry[0])
    last = 0
    for field_id, entry in entries:
        if isinstance(entry, _Field):
            _write_field(out, entry, fields[entry.name], last)
        else:
            _write_head(out, field_id, entry[1], last)
            out += entry[2]
        last = field_id
    out.append(0)


def _write_head(out: bytearray, field_id: int, wire: int, last: int) -> None:
    delta = field_id - last
    if 0 < delta < 16:
        out.append(delta << 4 | wire)
    else:
        out.append(wire)
        out += varint(zigzag(field_id))


def _write_field(out: bytearray, field: _Field, item: Any, last: int) -> None:
    wire = field.wire
    if wire == TRUE and not item:
        wire = FALSE
    _write_head(out, field.id, wire, last)
    if wire == STRUCT:
        _write_struct(out, item)
    elif wire == LIST:
        _write_list(out, field, item)
    else:
        _write_scalar(out, wire, item)


def _write_scalar(out: bytearray, wire: int, item: Any) -> None:
    if wire in _BITS:
        item = item << 1 if item >= 0 else ~(item << 1)
        _write_unsigned(out, item, _BITS[wire])
    elif wire == BINARY:
        _write_unsigned(out, len(item), 32)
        out += item
    elif wire == BYTE:
        out.append(item & 255)
    elif wire == DOUBLE:
        out += _double.pack(item)


def _write_unsigned(out: bytearray, value: int, bits: int) -> None:
    if value >> bits:
        raise FormatError(f"an integer does not fit {bits} bits")
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _write_list(out: bytearray, field: _Field, items: list[Any]) -> None:
    count = len(items)
    if count < 15:
        out.append(count << 4 | field.element)
    else:
        out.append(0xF0 | field.element)
        _write_unsigned(out, count, 32)
    if field.element == STRUCT:
        for item in items:
            _write_struct(out, item)
    elif field.element == TRUE:
        out += bytes(1 if item else 2 for item in items)
    else:
        for item in items:
            _write_scalar(out, field.element, item)
