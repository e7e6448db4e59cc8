"""Thrift's compact protocol: reading, skipping and writing structs by plans of their fields.

The plans come from `idl`; this module knows no struct by name. It runs per struct of a footer and
per page header, so mypyc compiles it from this source (`make native`): hence `i64`, whose numbers
wrap at 64 bits when compiled, and native classes. Lengths and counts are checked against the bytes
that exist before they are added to a position, so that nothing wraps.

Fields that are `lazy` are only located; `Located` and `StructList` decode them when they are used.
This module has more than 400 lines because reading, skipping and writing share one protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from struct import Struct
from sys import intern
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from modcrypt.errors import FormatError, LimitError
from modcrypt.parquet.format.patterns import append_chunk_ends, append_usual_ends

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_NESTING: Final = 64
"""Deepest nesting of structs and containers read from a file; Parquet's own IDL needs 10."""

MAX_LIST = 1_000_000
"""Most elements read from one list in a file; Arrow C++ has the same limit by default."""

MAX_STRUCTS = 100_000
"""Most structs in one list, except page locations: ordinals allow 32,768 columns or row groups, and
a hostile footer of dense structs would take a hundred times its size in memory."""

MAX_FIELD_ID: Final = 32_767
"""Field ids are int16, and readers skip negative ones, too (Thrift compact protocol, "Struct
encoding"); the last one is reserved for extensions ("Binary Protocol Extensions")."""

# Wire types.
TRUE: Final = 1
FALSE: Final = 2
BYTE: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
SET: Final = 10
MAP: Final = 11
STRUCT: Final = 12
UUID: Final = 13

_LARGE: Final = 1 << 20  # size in bytes from which a footer is worth the compilation of patterns

_MISSES: Final = 16
"""Number of unusual structs in a list after which the interpreter tries another pattern."""

KEPT: Final = 3
"""Laziness of a field that is decoded at once, but whose bytes can be written as they were read."""

SHARED: Final = 4
"""Laziness of lists that many structs repeat: equal ones are one tuple, whose bytes are kept."""

_RECENT: Final = 4  # number of shared lists that a field remembers
_SHORT: Final = 64  # longest shared list in bytes

UNKNOWN: Final = "_unknown"
"""Attribute of structs: fields that the IDL does not know, as ids, wire types and raw bytes."""

_double = Struct("<d")

Parts: TypeAlias = "list[Any]"
"""Bytes-like parts of an encoded struct: joining many short ones takes less time than appending
each to a bytearray. The first is a bytearray, unless there are few."""

_MOST_PARTS: Final = 4096
"""Number of parts that are joined: each takes at least 8 bytes of memory, for perhaps one byte."""


class Field:
    """The codec's description of one field."""

    __slots__ = ("as_read", "element", "id", "lazy", "name", "plan", "recent", "slot", "wire")

    def __init__(
        self, field_id: i64, wire: i64, name: str, plan: StructPlan | None, element: i64, lazy: i64
    ) -> None:
        self.id: i64 = field_id
        self.wire: i64 = wire
        self.name: str = name
        # The attribute that stores the value: a lazy struct's property decodes it.
        # It is interned, or each access would look the text up.
        self.slot: str = intern("_" + name if lazy and wire == STRUCT else name)
        self.as_read: str = "_" + name if lazy == KEPT else ""  # the attribute for its place
        # For a struct, or for the elements of a list of structs.
        self.plan: StructPlan | None = plan
        self.element: i64 = element  # wire type of a list's elements
        self.lazy: i64 = lazy  # laziness from which on it is only located; 0 for never
        self.recent: tuple[tuple[bytes, Any], ...] = ()  # the last shared lists and their bytes


class OwnStruct:
    """A struct of a class of `structs`, whose fields have the ids from 1 on without a gap.

    Compiled, listing them takes a tenth of the time of asking for each by its name.
    """

    _unknown: Any = None

    def _list_fields(self) -> list[Any]:
        """Return the stored values of the fields, in the order of their ids."""
        raise NotImplementedError

    def _with_fields(self, values: list[Any]) -> OwnStruct:
        """Return another struct of the class, with the stored values `_list_fields` gives."""
        raise NotImplementedError


class StructPlan:
    """The codec's description of one struct class."""

    __slots__ = ("by_id", "cls", "create", "in_order", "is_union", "nested", "required", "shared")

    def __init__(self, cls: type, fields: list[Field], required: i64, is_union: bool) -> None:
        self.cls: Any = cls
        self.create: Any = cls.__new__  # thriftpy2's `__init__` takes longer
        self.in_order: list[Field] = fields
        self.by_id: list[Field | None] = [None] * (1 + max((int(f.id) for f in fields), default=0))
        assert len(self.by_id) < 63  # an i64 has a bit for each
        for field in fields:
            self.by_id[field.id] = field
        self.nested: list[Field] = [field for field in fields if field.plan is not None]
        self.required: i64 = required  # a bit for each field, by its id
        self.is_union: bool = is_union
        self.shared: Any = None  # a union whose first member is an empty struct


# --- reading -------------------------------------------------------------------------------------


def read_struct(
    plan: StructPlan, data: bytes, at: i64, depth: i64, lazy: i64, complete: bool = True
) -> tuple[Any, i64]:
    """Read the struct at `data[at:]`; return it and the position after its STOP.

    Args:
        depth: Number of structs and containers around it.
        lazy: Laziness: fields whose `lazy` is not 0 and not above it are only located, and equal
            unions without a value, such as the kind of key of each column chunk, are one object.
        complete: Whether required fields must be there.

    Raises:
        IndexError: The bytes end inside the struct.
        FormatError: The bytes are not that struct.
        LimitError: The struct is nested deeper than `MAX_NESTING`, or a list is too long.
    """
    if depth > MAX_NESTING:
        raise LimitError(f"nested deeper than {MAX_NESTING} levels")
    value: Any = plan.create(plan.cls)
    by_id = plan.by_id
    known: i64 = len(by_id)
    size: i64 = len(data)
    field_id: i64 = 0
    found: i64 = 0  # a bit for each field
    unknown: list[tuple[int, int, bytes]] | None = None
    while True:
        head: i64 = data[at]
        at += 1
        if head == 0:
            break
        wire: i64 = head & 15
        if head > 15:
            field_id += head >> 4
        else:
            field_id, at = read_int(data, at, 16)
        field = by_id[field_id] if 0 < field_id < known else None
        # Thrift's readers also skip a field whose type differs: a snapshot of parquet-mr 1.12
        # wrote a list under the id that now belongs to bloom_filter_length.
        if field is None or (wire != field.wire and not (wire == FALSE and field.wire == TRUE)):
            end = _check_unknown(field_id, wire, data, at, depth)
            unknown = unknown or []
            unknown.append((field_id, wire, data[at:end]))
            at = end
            continue
        if found >> field_id & 1:
            raise FormatError(f"field {field.name} comes twice")
        found |= 1 << field_id
        slot = field.slot
        if I16 <= wire <= I64:
            byte: i64 = data[at]
            if byte < 128:  # most values take one byte
                setattr(value, slot, (byte >> 1) ^ -(byte & 1))
                at += 1
            else:
                number, at = read_int(data, at, 16 << (wire - I16))
                setattr(value, slot, number)
        elif wire == BINARY:
            length: i64 = data[at]
            at += 1
            if length > 127:
                length, at = _read_length(data, at - 1)
            if length > size - at:
                raise LimitError(f"a binary declares {length} bytes where {size - at} exist")
            setattr(value, slot, data[at : at + length])
            at += length
        elif wire == STRUCT and field.plan is not None:
            shared: Any = field.plan.shared if lazy > 0 else None
            if 0 < field.lazy <= lazy:
                end = skip_struct(data, at, depth + 1)
                setattr(value, slot, _locate(field, data, at, end))
                at = end
            elif shared is not None and data[at] == 0x1C and data[at + 1] | data[at + 2] == 0:
                setattr(value, slot, shared)
                at += 3
            else:
                struct, at = read_struct(field.plan, data, at, depth + 1, lazy)
                setattr(value, slot, struct)
        elif wire == LIST:
            start = at
            if field.lazy == SHARED and lazy > 0:
                items, at = _read_shared_list(field, data, at, depth)
            else:
                items, at = _read_list(field, data, at, depth, lazy)
            setattr(value, slot, items)
            if field.lazy == KEPT and lazy > 0:
                setattr(value, field.as_read, _locate(field, data, start, at))
        else:
            scalar, at = _read_scalar(wire, data, at)
            setattr(value, slot, scalar)
    if at > size:
        raise IndexError
    if unknown is not None:
        setattr(value, UNKNOWN, unknown)
    if plan.is_union:
        _check_union(plan, found, unknown)
    if complete and found & plan.required != plan.required:
        name = next(f.name for f in plan.in_order if (plan.required & ~found) >> f.id & 1)
        raise FormatError(f"{plan.cls.__name__}: required field {name} is missing")
    return value, at


def _check_union(
    plan: StructPlan, found: i64, unknown: list[tuple[int, int, bytes]] | None
) -> None:
    """Raise FormatError unless a union has one member, of which the ids are given as bits."""
    bits: int = found
    members = bits.bit_count() + (1 if unknown else 0)  # one unknown member counts as one
    if members != 1:
        raise FormatError(f"union {plan.cls.__name__} has {members} members")


def _check_unknown(field_id: i64, wire: i64, data: bytes, at: i64, depth: i64) -> i64:
    end = skip_field(wire, data, at, depth + 1)
    if end > len(data):
        raise IndexError
    if field_id > MAX_FIELD_ID:  # by the short form; the long form holds 16 bits
        raise FormatError(f"field id {field_id} is out of range")
    return end


def read_int(data: bytes, at: i64, bits: i64) -> tuple[i64, i64]:
    """Read a zigzag varint of at most `bits` bits; return it and the position after it."""
    byte: i64 = data[at]
    at += 1
    value = byte & 127
    shift: i64 = 0
    while byte > 127:
        byte = data[at]
        at += 1
        shift += 7
        if shift > 63:
            raise FormatError("a varint is longer than 10 bytes")
        if shift == 63 and 1 < byte < 128:
            raise FormatError(f"an integer does not fit {bits} bits")
        value |= (byte & 127) << shift
    # Compiled, the 64th bit makes the value negative.
    if bits < 64 and (value < 0 or value >> bits != 0):
        raise FormatError(f"an integer does not fit {bits} bits")
    return ((value >> 1) & 0x7FFF_FFFF_FFFF_FFFF) ^ -(value & 1), at


INTERPRETED: Final = isinstance(read_int, FunctionType)
"""True if this module runs in the interpreter."""

_STEP: Final = 1 if INTERPRETED else 16
"""Number of structs in a list of which one position is stored; the others are found from there."""


def _read_length(data: bytes, at: i64) -> tuple[i64, i64]:
    """Read a length or count, which is an i32; return it and the position after it."""
    byte: i64 = data[at]
    at += 1
    value = byte & 127
    shift: i64 = 0
    while byte > 127:
        byte = data[at]
        at += 1
        shift += 7
        if shift > 28:
            raise LimitError("a length or count takes more than 5 bytes")
        value |= (byte & 127) << shift
    return value, at


def read_binary(data: bytes, at: i64) -> tuple[bytes, i64]:
    """Read a binary; return it and the position after it.

    Raise LimitError if it declares more bytes than exist.
    """
    length, at = _read_length(data, at)
    if length > len(data) - at:
        raise LimitError(f"a binary declares {length} bytes where {len(data) - at} exist")
    end = at + length
    return data[at:end], end


def _read_scalar(wire: i64, data: bytes, at: i64) -> tuple[Any, i64]:
    if wire in (TRUE, FALSE):
        return wire == TRUE, at
    if wire == BYTE:
        byte: i64 = data[at]
        return (byte ^ 128) - 128, at + 1
    if wire == DOUBLE:
        if at + 8 > len(data):
            raise IndexError
        return _double.unpack_from(data, at)[0], at + 8
    raise FormatError(f"wire type {wire} is not allowed here")


def _read_list_head(data: bytes, at: i64) -> tuple[i64, i64, i64]:
    head: i64 = data[at]
    at += 1
    count = head >> 4
    if count == 15:
        count, at = _read_length(data, at)
    # Each element takes at least one byte, so no count can demand more memory than bytes exist.
    if count > len(data) - at or count > MAX_LIST:
        raise LimitError(
            f"a list declares {count} elements where {len(data) - at} bytes exist and at most "
            f"{MAX_LIST} elements are read"
        )
    return head & 15, count, at


def _read_list(field: Field, data: bytes, at: i64, depth: i64, lazy: i64) -> tuple[Any, i64]:
    element, count, at = _read_list_head(data, at)
    if count == 0:
        return [], at
    if element == STRUCT and count > MAX_STRUCTS and field.name != "page_locations":
        raise LimitError(
            f"field {field.name} lists {count} structs; at most {MAX_STRUCTS} are read"
        )
    bools = (element in (TRUE, FALSE)) and field.element == TRUE
    if element != field.element and not bools:
        raise FormatError(f"field {field.name} lists wire type {element}, not {field.element}")
    if bools:
        flags = data[at : at + count]
        if len(flags) < count or not set(flags) <= {0, 1, 2}:
            raise FormatError(f"field {field.name} holds a byte that is not a boolean")
        return [flag == 1 for flag in flags], at + count
    plan = field.plan
    if plan is not None and 0 < field.lazy <= lazy:
        return _locate_structs(plan, data, at, count, depth)
    values: list[Any] = []
    if plan is not None:
        for _ in range(count):
            value, at = read_struct(plan, data, at, depth + 1, lazy)
            values.append(value)
    elif I16 <= element <= I64:
        bits = 16 << (element - I16)
        for _ in range(count):
            number, at = read_int(data, at, bits)
            values.append(number)
    elif element == BINARY:
        for _ in range(count):
            binary, at = read_binary(data, at)
            values.append(binary)
    else:
        for _ in range(count):
            scalar, at = _read_scalar(element, data, at)
            values.append(scalar)
    return values, at


def _read_shared_list(field: Field, data: bytes, at: i64, depth: i64) -> tuple[Any, i64]:
    for raw, known in field.recent:
        if data.startswith(raw, at):  # no list begins with the bytes of another one
            return known, at + len(raw)
    values, end = _read_list(field, data, at, depth, 0)
    value = tuple(values)
    raw = data[at:end]
    written: Parts = []
    if end - at <= _SHORT:
        _write_list(written, field, value)
    if b"".join(written) == raw:  # another encoding of the list is not passed on
        field.recent = ((raw, value), *field.recent[: _RECENT - 1])
    return value, end


# --- lazy fields ---------------------------------------------------------------------------------


def _locate_structs(
    plan: StructPlan, data: bytes, at: i64, count: i64, depth: i64
) -> tuple[StructList, i64]:
    starts: list[int] = []
    if INTERPRETED:
        starts, at = _find_starts(data, at, count, depth)
    else:
        for number in range(count):
            if number % _STEP == 0:
                starts.append(at)
            at = skip_struct(data, at, depth + 1)
    if at > len(data):
        raise IndexError
    return StructList(plan, data, starts, count, at), at


def _find_starts(data: bytes, at: i64, count: i64, depth: i64) -> tuple[list[int], i64]:
    """Return the start of each struct and the end of the last, by patterns where that is faster."""
    patterns = [append_usual_ends, append_chunk_ends]
    if len(data) < _LARGE:
        patterns.clear()
    misses: i64 = 0
    starts: list[int] = [at]
    while len(starts) <= count:
        if patterns:
            patterns[0](data, starts, count)
            if len(starts) > count:
                break
        starts.append(skip_struct(data, starts[-1], depth + 1))
        misses += 1
        if misses % _MISSES == 0:
            del patterns[:1]
    end = starts.pop()
    return starts, end


class StructList:
    """A list of structs of which each is decoded when it is first used.

    `starts` has the position of every `_STEP`th struct, and `end` is that after the last one.
    """

    __slots__ = ("_count", "_data", "_decoded", "_end", "_next", "_plan", "_starts")

    def __init__(
        self, plan: StructPlan, data: bytes, starts: list[int], count: i64, end: i64
    ) -> None:
        self._plan: StructPlan = plan
        self._data: bytes = data
        self._starts: list[int] = starts
        self._count: i64 = count
        self._end: i64 = end
        self._next: tuple[int, int] = (count, end)  # a struct and its position, usually wanted next
        self._decoded: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        """Return a struct, which stays decoded; raise FormatError if its bytes are invalid."""
        value = self._decoded.get(index)
        if value is None:
            if not 0 <= index < self._count:
                raise IndexError(index)
            value, end = read_located(self._plan, self._data, self._find(index), 2)
            self._next = (index + 1, end)
            self._decoded[index] = value
        return value

    def __iter__(self) -> Iterator[Any]:
        for index in range(self._count):
            yield self[index]

    def _find(self, index: i64) -> i64:
        known, at = self._next
        if known == index:
            return at
        start: i64 = self._starts[index // _STEP]
        for _ in range(index % _STEP):
            start = skip_struct(self._data, start, 1)
        return start

    def write(self, out: Parts) -> None:
        """Append the structs: those that were decoded encoded again, the others as read."""
        if not self._count:
            return
        done: i64 = self._starts[0]
        for index in sorted(self._decoded):
            start = self._find(index)
            out.append(self._data[done:start])
            write_struct(out, self._plan, self._decoded[index])
            if len(out) > _MOST_PARTS:
                _join(out)
            done = skip_struct(self._data, start, 1)
        out.append(self._data[done : self._end])


class Located:
    """A field that was only located: it is decoded when it is used, or written as it was read."""

    __slots__ = ("_at", "_data", "_end", "_plan")

    def __init__(self, plan: StructPlan | None, data: bytes, at: i64, end: i64) -> None:
        self._plan: StructPlan | None = plan
        self._data: bytes = data
        self._at: i64 = at
        self._end: i64 = end

    def read(self) -> Any:
        """Return the struct; raise FormatError if its bytes are invalid."""
        assert self._plan is not None
        return read_located(self._plan, self._data, self._at, 1)[0]

    def raw(self) -> bytes:
        """Return the bytes of the field's value."""
        return self._data[self._at : self._end]


def _locate(field: Field, data: bytes, at: i64, end: i64) -> Located:
    if end > len(data):
        raise IndexError
    return Located(field.plan, data, at, end)


def read_located(plan: StructPlan, data: bytes, at: i64, lazy: i64) -> tuple[Any, i64]:
    """Read a struct that was located before, with its own lazy fields still located only.

    Return it and the position after its STOP. Raise FormatError if the bytes are not that struct.
    """
    try:
        return read_struct(plan, data, at, 0, lazy)
    except FormatError as error:
        raise type(error)(f"{plan.cls.__name__}: {error}") from None


# --- skipping ------------------------------------------------------------------------------------


def skip_struct(data: bytes, at: i64, depth: i64) -> i64:
    """Return the position after the struct at `at`; the end is checked as in `skip_field`."""
    if depth > MAX_NESTING:
        raise LimitError(f"nested deeper than {MAX_NESTING} levels")
    size: i64 = len(data)
    while True:
        head: i64 = data[at]
        at += 1
        if head == 0:
            return at
        if head < 16:  # the field id follows as a separate varint
            at = _skip_varint(data, at)
        wire = head & 15
        if I16 <= wire <= I64:
            byte: i64 = data[at]
            at += 1
            if byte > 127:
                at = _skip_varint(data, at - 1)
        elif wire == BINARY:
            length: i64 = data[at]
            at += 1
            if length > 127:
                length, at = _read_length(data, at - 1)
            if length > size - at:
                raise IndexError
            at += length
        elif wire == STRUCT:
            at = skip_struct(data, at, depth + 1)
        elif wire == LIST:
            at = _skip_list(data, at, depth + 1)
        elif wire not in (TRUE, FALSE):
            at = skip_field(wire, data, at, depth + 1)


def last_field_id(data: bytes) -> i64:
    """Return the id of the last field of a struct, which is complete, as read."""
    at: i64 = 0
    field_id: i64 = 0
    while True:
        head: i64 = data[at]
        at += 1
        if head == 0:
            return field_id
        if head > 15:
            field_id += head >> 4
        else:
            field_id, at = read_int(data, at, 16)
        at = skip_field(head & 15, data, at, 1)


def skip_field(wire: i64, data: bytes, at: i64, depth: i64) -> i64:
    """Return the position after a value of wire type `wire`, nested `depth` deep, at `at`.

    The position may lie up to 16 bytes past the end: the caller must check it. Or IndexError is
    raised there.
    """
    if depth > MAX_NESTING:
        raise LimitError(f"nested deeper than {MAX_NESTING} levels")
    if wire in (TRUE, FALSE):
        return at
    if wire == BYTE:
        return at + 1
    if I16 <= wire <= I64:
        return _skip_varint(data, at)
    if wire == DOUBLE:
        return at + 8
    if wire == UUID:
        return at + 16
    if wire == BINARY:
        length, at = _read_length(data, at)
        if length > len(data) - at:
            raise IndexError
        return at + length
    if wire == STRUCT:
        return skip_struct(data, at, depth)
    if wire in (LIST, SET):
        return _skip_list(data, at, depth)
    if wire == MAP:
        count, at = _read_length(data, at)
        if count > len(data) - at:
            raise LimitError(f"a map declares {count} entries where {len(data) - at} bytes exist")
        if count == 0:
            return at
        kinds: i64 = data[at]
        return _skip_elements(kinds >> 4, kinds & 15, count, data, at + 1, depth)
    raise FormatError(f"wire type {wire} does not exist")


def _skip_list(data: bytes, at: i64, depth: i64) -> i64:
    if depth > MAX_NESTING:
        raise LimitError(f"nested deeper than {MAX_NESTING} levels")
    element, count, at = _read_list_head(data, at)
    if element == BINARY:
        for _ in range(count):
            length, at = _read_length(data, at)
            if length > len(data) - at:
                raise IndexError
            at += length
        return at
    if not I16 <= element <= I64:
        return _skip_elements(element, -1, count, data, at, depth)
    for _ in range(count):
        byte: i64 = data[at]
        at += 1
        if byte > 127:
            at = _skip_varint(data, at - 1)
    return at


def _skip_elements(first: i64, second: i64, count: i64, data: bytes, at: i64, depth: i64) -> i64:
    """Skip the elements of a list, or the pairs of a map if there is a `second` kind."""
    for _ in range(count):
        at = _skip_element(first, data, at, depth)
        if second >= 0:
            at = _skip_element(second, data, at, depth)
        if at > len(data):
            raise IndexError
    return at


def _skip_element(kind: i64, data: bytes, at: i64, depth: i64) -> i64:
    if kind == STRUCT:
        return skip_struct(data, at, depth + 1)
    # In a container a boolean is a byte, not a wire type.
    return at + 1 if kind in (TRUE, FALSE) else skip_field(kind, data, at, depth + 1)


def _skip_varint(data: bytes, at: i64) -> i64:
    first = at
    while data[at] > 127:
        at += 1
        if at - first > 9:
            raise FormatError("a varint is longer than 10 bytes")
    return at + 1


# --- writing -------------------------------------------------------------------------------------


_BYTES: Final = [bytes((byte,)) for byte in range(256)]


def write_struct(out: Parts, plan: StructPlan, value: Any) -> None:
    """Append a struct, with fields in the order of `_rank`; located fields stay as read.

    Raise FormatError if an integer does not fit its type.
    """
    values: list[Any]
    if isinstance(value, OwnStruct):
        unknown: Any = value._unknown
        values = value._list_fields()
    else:
        unknown = getattr(value, UNKNOWN)
        values = [getattr(value, field.slot) for field in plan.in_order]
    if unknown:
        _write_with_unknown(out, plan, value)
        return
    last: i64 = 0
    for number, field in enumerate(plan.in_order):  # compiled, `zip` would take much longer
        item = values[number]
        if item is None:
            continue
        wire = field.wire
        delta = field.id - last
        if I16 <= wire <= I64 and delta < 16:  # the common case, inlined to save calls
            out.append(_BYTES[delta << 4 | wire])
            _write_int(out, item, 16 << (wire - I16))
        else:
            _write_field(out, field, item, last)
        last = field.id
    out.append(_BYTES[0])


def _write_with_unknown(out: Parts, plan: StructPlan, value: Any) -> None:
    entries: list[tuple[int, Any]] = [
        (field.id, field) for field in plan.in_order if getattr(value, field.slot) is not None
    ]
    known = {field_id for field_id, _ in entries}  # a field set since decoding takes precedence
    entries += [(entry[0], entry) for entry in getattr(value, UNKNOWN) if entry[0] not in known]
    if min(entries, key=itemgetter(0))[0] > 0:
        entries.sort(key=itemgetter(0))
    else:
        entries.sort(key=_rank)
    last: i64 = 0
    for field_id, entry in entries:
        if isinstance(entry, Field):
            _write_field(out, entry, getattr(value, entry.slot), last)
        else:
            _write_head(out, field_id, entry[1], last)
            out.append(entry[2])
        last = field_id
        if len(out) > _MOST_PARTS:
            _join(out)
    out.append(_BYTES[0])


def _join(out: Parts) -> None:
    out[0] += b"".join(out[1:])
    del out[1:]


def _rank(entry: tuple[int, Any]) -> int:
    """Return a number for the place of a field: ascending ids, with the extension last."""
    # Negative ids precede the extension, because that is where Databricks' Photon writes one.
    return entry[0] if entry[0] > 0 else MAX_FIELD_ID - 1


def _write_head(out: Parts, field_id: i64, wire: i64, last: i64) -> None:
    delta = field_id - last
    if 0 < delta < 16:
        out.append(_BYTES[delta << 4 | wire])
    else:
        out.append(_BYTES[wire])
        _write_int(out, field_id, 16)


def _write_field(out: Parts, field: Field, item: Any, last: i64) -> None:
    wire = field.wire
    if wire == TRUE and not item:
        wire = FALSE
    _write_head(out, field.id, wire, last)
    if isinstance(item, Located):
        out.append(item.raw())
    elif wire == STRUCT and field.plan is not None:
        write_struct(out, field.plan, item)
    elif wire == LIST:
        _write_list(out, field, item)
    else:
        _write_scalar(out, wire, item)


def _write_scalar(out: Parts, wire: i64, item: Any) -> None:
    if I16 <= wire <= I64:
        _write_int(out, item, 16 << (wire - I16))
    elif wire == BINARY:
        _write_unsigned(out, len(item))
        out.append(item)
    elif wire == BYTE:
        out.append(_BYTES[item & 255])
    elif wire == DOUBLE:
        out.append(_double.pack(item))


def _write_int(out: Parts, item: int, bits: i64) -> None:
    if 0 <= item < 64:
        out.append(_BYTES[item << 1])
        return
    sign: int = bits - 1  # no i64, which `item` may exceed
    if item >> sign not in (0, -1):
        raise FormatError(f"an integer does not fit {bits} bits")
    value: i64 = item
    value = (value << 1) ^ (value >> 63)
    while not 0 <= value < 128:  # compiled, a number of 64 bits is negative
        out.append(_BYTES[value & 127 | 128])
        value = (value >> 7) & 0x01FF_FFFF_FFFF_FFFF
    out.append(_BYTES[value])


def _write_unsigned(out: Parts, value: i64) -> None:
    while value > 127:
        out.append(_BYTES[value & 127 | 128])
        value >>= 7
    out.append(_BYTES[value])


def _write_list(out: Parts, field: Field, items: Any) -> None:
    for raw, known in field.recent:
        if items is known:
            out.append(raw)
            return
    count: i64 = len(items)
    if count < 15:
        out.append(_BYTES[count << 4 | field.element])
    else:
        out.append(_BYTES[0xF0 | field.element])
        _write_unsigned(out, count)
    if isinstance(items, StructList):
        items.write(out)
    elif field.plan is not None and field.element == STRUCT:
        for item in items:
            write_struct(out, field.plan, item)
            if len(out) > _MOST_PARTS:
                _join(out)
    elif field.element == TRUE:
        out.append(bytes([1 if item else 2 for item in items]))
    elif field.element == BINARY:
        for item in items:
            _write_unsigned(out, len(item))
            out.append(item)
            if len(out) > _MOST_PARTS:
                _join(out)
    else:
        for item in items:
            _write_scalar(out, field.element, item)
            if len(out) > _MOST_PARTS:
                _join(out)
