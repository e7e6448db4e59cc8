"""The names that Parquet's specification uses for types and codecs."""

from __future__ import annotations

from modcrypt.parquet.format.idl import ThriftStruct, set_fields

_PHYSICAL = (
    "BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY",
)  # fmt: skip
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_CONVERTED = (
    "UTF8", "MAP", "MAP_KEY_VALUE", "LIST", "ENUM", "DECIMAL", "DATE", "TIME_MILLIS",
    "TIME_MICROS", "TIMESTAMP_MILLIS", "TIMESTAMP_MICROS", "UINT_8", "UINT_16", "UINT_32",
    "UINT_64", "INT_8", "INT_16", "INT_32", "INT_64", "JSON", "BSON", "INTERVAL",
)  # fmt: skip
_FIXED = 7


def physical_name(element: ThriftStruct) -> str:
    """Return the name of a leaf's physical type, with the width of a FIXED_LEN_BYTE_ARRAY."""
    name = _name_number(_PHYSICAL, element.type)
    return f"{name}({element.type_length})" if element.type == _FIXED else name


def logical_name(element: ThriftStruct) -> str | None:
    """Return a leaf's logical type as the specification writes it: `DECIMAL(12,2)`, `INT(8,true)`.

    Return an older writer's converted type if there is no logical type, and None without either.
    """
    union = element.logicalType
    if union is not None:
        fields = set_fields(union)
        return _format_logical_type(*next(iter(fields.items()))) if fields else "unknown"
    if element.converted_type is None:
        return None
    name = _name_number(_CONVERTED, element.converted_type)
    return f"{name}({element.precision},{element.scale})" if name == "DECIMAL" else name


def codec_name(codec: int) -> str:
    """Return the name of a compression codec."""
    return _name_number(_CODECS, codec)


def _format_logical_type(name: str, struct: ThriftStruct) -> str:
    if name == "DECIMAL":
        return f"DECIMAL({struct.precision},{struct.scale})"
    if name == "INTEGER":
        return f"INT({struct.bitWidth},{_format_flag(struct.isSigned)})"
    if name in ("TIME", "TIMESTAMP"):
        unit = next(iter(set_fields(struct.unit)), "unknown")
        return f"{name}({_format_flag(struct.isAdjustedToUTC)},{unit})"
    return name


def _format_flag(value: bool) -> str:
    return "true" if value else "false"


def _name_number(names: tuple[str, ...], number: int | None) -> str:
    if number is None or not 0 <= number < len(names):
        return f"unknown({number})"
    return names[number]
