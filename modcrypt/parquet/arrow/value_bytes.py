"""The values of Arrow arrays as bytes, and back.

The bytes of a number are its Arrow form in little-endian, of a boolean one byte, of a text its
UTF-8. Those of a list are its elements, of a struct its fields and of a map a list of structs of
key and value: for each of them four bytes, little-endian, with the length of its bytes, and these;
2**32 - 1 stands for null, without bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from modcrypt.errors import FormatError, LimitError

_MAX_BYTES = 2**31 - 1  # most bytes that an array with offsets of 32 bits can hold

MAX_NULLS = 1 << 30
"""Size limit in bytes of nulls among values of a fixed width, which the type alone states."""

_NULL, _LENGTH = 2**32 - 1, 4  # length of a null in nested values; size of a length

_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list)


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are text."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def binary_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the binary type of the bytes of text or binary; None for other types."""
    if pt.is_large_string(kind) or pt.is_large_binary(kind):
        return pa.large_binary()
    is_bytes = pt.is_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind)
    return pa.binary() if is_bytes or is_text(kind) else None


def bytes_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the binary type of the bytes of values; None for types whose values have none.

    Nested values have bytes if all in them do, and nothing in them is a dictionary. Lists of a
    fixed size of 0 have none: PyArrow divides by it.
    """
    stored = storage_type(kind)
    if pt.is_fixed_size_list(stored) and not stored.list_size:
        return None
    if parts := _parts_of(stored):
        known = [bytes_type(part.type) and not pt.is_dictionary(part.type) for part in parts]
        return pa.large_binary() if all(known) else None
    is_number = pt.is_primitive(stored) or pt.is_decimal(stored)
    return binary_type(stored) or (pa.binary() if is_number else None)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of values without extensions and dictionaries."""
    if isinstance(kind, pa.BaseExtensionType):
        return storage_type(kind.storage_type)
    return storage_type(kind.value_type) if pt.is_dictionary(kind) else kind


def readable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that values are read as: the indices of dictionaries get 32 bits.

    Smaller ones suffice for the values of a chunk that was written, but not for those of a file.
    """
    if not pt.is_dictionary(kind):
        return kind
    return pa.dictionary(pa.int32(), kind.value_type, kind.ordered)


def unwrap_values(values: pa.Array) -> pa.Array:
    """Return values without extensions and dictionaries."""
    if isinstance(values.type, pa.BaseExtensionType):
        return unwrap_values(values.storage)
    return unwrap_values(values.dictionary_decode()) if pt.is_dictionary(values.type) else values


def to_bytes(values: pa.Array) -> pa.Array:
    """Return the bytes of values as an array of `bytes_type`."""
    values = unwrap_values(values)
    if parts := _parts_of(values.type):
        return _join_parts(values, parts)
    if (kind := binary_type(values.type)) is not None:
        return values.cast(kind)
    if pt.is_boolean(values.type):
        values = values.cast(pa.uint8())
    width = pa.binary(values.type.bit_width // 8)
    buffers, offset = values.buffers(), values.offset
    return pa.Array.from_buffers(width, len(values), buffers, offset=offset).cast(pa.binary())


def from_bytes(plain: pa.Array, kind: pa.DataType, column: str) -> pa.Array:
    """Return the values of a type that have these bytes, the reverse of `to_bytes`.

    Raises:
        FormatError: No value of the type has them; the message names the column.
        LimitError: Nulls of this type would exceed `MAX_NULLS`.
    """
    stored = storage_type(kind)
    if max(1, plain.null_count) * _fixed_width(stored) > MAX_NULLS:
        raise LimitError(f"column {column}: nulls of {kind} exceed {MAX_NULLS} bytes at once")
    if _parts_of(stored):
        return _wrap_values(_split_parts(plain, stored, column), kind)
    if binary_type(stored) is not None and not pt.is_fixed_size_binary(stored):
        try:
            return _wrap_values(plain.cast(stored), kind)
        except pa.ArrowInvalid:
            raise FormatError(f"column {column}: a value is not UTF-8") from None
    base = pa.uint8() if pt.is_boolean(stored) else stored
    width = base.bit_width // 8
    if set(pc.unique(pc.binary_length(plain.drop_null())).to_pylist()) - {width}:
        raise FormatError(f"column {column}: a value does not have the {width} bytes of {kind}")
    data = plain.fill_null(bytes(width)).buffers()[2] or pa.py_buffer(b"")
    made = pa.Array.from_buffers(base, len(plain), [_bitmap(plain), data])
    return _wrap_values(made.cast(stored), kind)


def _wrap_values(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _wrap_values(values, kind.storage_type))
    if pt.is_dictionary(kind):
        return _wrap_values(values, kind.value_type).dictionary_encode().cast(kind)
    return values


def split_bytes(dense: pa.Array) -> tuple[bytes, list[int]]:
    """Return the bytes of a binary array without nulls, and where each value ends in them."""
    if not len(dense):
        return b"", []
    _, offsets, data = dense.buffers()
    view = memoryview(offsets).cast("B")
    every = view.cast("q") if pt.is_large_binary(dense.type) else view.cast("i")
    ends = every[dense.offset : dense.offset + len(dense) + 1]
    first, numbers = ends[0], ends[1:].tolist()
    content = b"" if data is None else bytes(memoryview(data)[first : ends[-1]])
    return content, [end - first for end in numbers] if first else numbers


def join_bytes(values: Sequence[bytes], lengths: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a binary array of values of these lengths; several parts may be one value.

    Raise ValueError if the values are too long for the type.
    """
    data, is_large = b"".join(values), pt.is_large_binary(kind)
    if not is_large and len(data) > _MAX_BYTES:
        raise ValueError("values of more than 2 GiB in one batch; write smaller batches")
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    offsets = offsets.cast(pa.int64() if is_large else pa.int32())
    return pa.Array.from_buffers(
        kind, len(lengths), [None, offsets.buffers()[1], pa.py_buffer(data)]
    )


def _bitmap(values: pa.Array) -> pa.Buffer | None:
    """Return the validity bitmap of an array, without an offset; None if nothing is null."""
    return pa.concat_arrays([values.is_valid()]).buffers()[1] if values.null_count else None


def _parts_of(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields that nested values consist of; a map is a list of structs."""
    if pt.is_map(kind):
        pair = pa.struct([kind.key_field, kind.item_field])
        return [pa.field("key_value", pair, nullable=False)]
    if pt.is_struct(kind):
        return list(kind)
    return [kind.value_field] if any(test(kind) for test in _LISTS) else []


def _fixed_width(kind: pa.DataType) -> int:
    """Return the size in bytes that a null takes, about."""
    kind = storage_type(kind)
    if pt.is_struct(kind):
        return sum(_fixed_width(part.type) for part in kind)
    if pt.is_fixed_size_list(kind):
        return int(kind.list_size) * _fixed_width(kind.value_type)
    return kind.byte_width if pt.is_fixed_size_binary(kind) else 8


def _join_parts(values: pa.Array, parts: Sequence[pa.Field]) -> pa.Array:
    """Return the bytes of nested values."""
    nothing = pa.scalar(b"", pa.large_binary())
    if pt.is_struct(values.type):
        joined = pc.binary_join_element_wise(*map(_frame, values.flatten()), nothing)
        return pc.if_else(values.is_valid(), joined, pa.scalar(None, joined.type))
    lists = _unwrap_maps(values, parts[0]) if pt.is_map(values.type) else values
    starts, framed = _starts_of(pc.list_value_length(lists)), _frame(lists.flatten())
    framed = pa.LargeListArray.from_arrays(starts, framed, mask=lists.is_null())
    return pc.binary_join(framed, nothing)


def _unwrap_maps(values: pa.Array, pair: pa.Field) -> pa.Array:
    """Return maps as lists of their pairs."""
    pairs = pa.StructArray.from_arrays([values.keys, values.items], fields=list(pair.type))
    buffers, offset = values.buffers()[:2], values.offset
    kind = pa.list_(pair)
    return pa.Array.from_buffers(kind, len(values), buffers, offset=offset, children=[pairs])


def _starts_of(counts: pa.Array) -> pa.Array:
    ends = pc.cumulative_sum(counts.fill_null(0).cast(pa.int64()))
    return pa.concat_arrays([pa.array([0], pa.int64()), ends])


def _frame(values: pa.Array) -> pa.Array:
    """Return the bytes of values, each with its length before it."""
    data = to_bytes(values).cast(pa.large_binary())
    lengths = to_bytes(pc.binary_length(data).fill_null(_NULL).cast(pa.uint32()))
    parts = lengths.cast(data.type), data.fill_null(b"")
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", data.type))


def _split_parts(plain: pa.Array, kind: pa.DataType, column: str) -> pa.Array:
    """Return the nested values that have these bytes."""
    absent = [None if part.nullable else _zero(part.type) for part in _parts_of(kind)]
    absent = absent if pt.is_struct(kind) else absent * getattr(kind, "list_size", 0)
    try:
        frames, counts = _split_frames(plain.to_pylist(), absent)
        if not _has_fixed_count(kind) or set(counts) <= {len(absent)}:
            if pt.is_struct(kind):
                return _make_structs(plain, frames, kind, column)
            return _make_lists(plain, frames, counts, kind, column)
    except (struct.error, pa.ArrowInvalid):
        pass
    raise FormatError(f"column {column}: a value does not have the bytes of {kind}")


def _has_fixed_count(kind: pa.DataType) -> bool:
    return bool(pt.is_struct(kind) or pt.is_fixed_size_list(kind))


def _zero(kind: pa.DataType) -> bytes:
    """Return the bytes of zero or nothing: Arrow wants some in required fields of a null."""
    kind = storage_type(kind)
    if _has_fixed_count(kind):
        zeros = [_zero(part.type) for part in _parts_of(kind)] * getattr(kind, "list_size", 1)
        return b"".join(struct.pack("<I", len(zero)) + zero for zero in zeros)
    is_short = _parts_of(kind) or (binary_type(kind) and not pt.is_fixed_size_binary(kind))
    return b"" if is_short else bytes(max(1, kind.bit_width // 8))


def _split_frames(
    values: Sequence[bytes | None], absent: Sequence[bytes | None]
) -> tuple[list[bytes | None], list[int]]:
    """Return the parts of nested values, `absent` for a null, and their numbers."""
    parts: list[bytes | None] = []
    counts = []
    for value in values:
        start, at = len(parts), 0
        if value is None:
            parts += absent
        while value is not None and at < len(value):
            (size,) = struct.unpack_from("<I", value, at)
            at += _LENGTH
            part = None if size == _NULL else value[at : at + size]
            if part is not None and len(part) != size:
                raise struct.error
            parts.append(part)
            at += 0 if part is None else size
        counts.append(len(parts) - start)
    return parts, counts


def _make_structs(
    plain: pa.Array, frames: list[bytes | None], kind: pa.DataType, column: str
) -> pa.Array:
    parts = list(kind)
    children = [
        from_bytes(pa.array(frames[n :: len(parts)], pa.large_binary()), part.type, column)
        for n, part in enumerate(parts)
    ]
    return pa.StructArray.from_arrays(children, fields=parts, mask=plain.is_null())


def _make_lists(
    plain: pa.Array, frames: list[bytes | None], counts: list[int], kind: pa.DataType, column: str
) -> pa.Array:
    (part,), mask = _parts_of(kind), plain.is_null()
    items = from_bytes(pa.array(frames, pa.large_binary()), part.type, column)
    if pt.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=mask)
    starts = _starts_of(pa.array(counts, pa.int64()))
    if pt.is_large_list(kind):
        return pa.LargeListArray.from_arrays(starts, items, type=kind, mask=mask)
    starts = starts.cast(pa.int32())
    if pt.is_list(kind):
        return pa.ListArray.from_arrays(starts, items, type=kind, mask=mask)
    keys, values = items.flatten()
    if keys.null_count:
        raise struct.error
    return pa.MapArray.from_arrays(starts, keys, values, type=kind, mask=mask)
