"""The values of Arrow arrays as bytes, and back.

The bytes of a number are its Arrow form in little-endian, of a boolean one byte, of a text its
UTF-8. Nested values have none.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from modcrypt.errors import FormatError

_MAX_BYTES = 2**31 - 1
"""Most bytes that an array with offsets of 32 bits can hold."""


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
    """Return the binary type of the bytes of values; None for types whose values have none."""
    stored = storage_type(kind)
    is_number = pt.is_primitive(stored) or pt.is_decimal(stored)
    return binary_type(stored) or (pa.binary() if is_number else None)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of values without extensions and dictionaries."""
    if isinstance(kind, pa.BaseExtensionType):
        return storage_type(kind.storage_type)
    return storage_type(kind.value_type) if pt.is_dictionary(kind) else kind


def unwrap_values(values: pa.Array) -> pa.Array:
    """Return values without extensions and dictionaries."""
    if isinstance(values.type, pa.BaseExtensionType):
        return unwrap_values(values.storage)
    return unwrap_values(values.dictionary_decode()) if pt.is_dictionary(values.type) else values


def to_bytes(values: pa.Array) -> pa.Array:
    """Return the bytes of values as an array of `bytes_type`."""
    values = unwrap_values(values)
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
    """
    stored = storage_type(kind)
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

    Raises:
        ValueError: The values are too long for the type.
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
