"""The names that Parquet's specification uses for types."""

from __future__ import annotations

from modcrypt.parquet.format.idl import ThriftStruct, enum_name, set_fields

_FIXED = "FIXED_LEN_BYTE_ARRAY"


def physical_name(element: ThriftStruct) -> str:
    """Return the name of a leaf's physical type, with the width of a FIXED_LEN_BYTE_ARRAY."""
    name = enum_name("Type", element.type)
    return f"{name}({element.type_length})" if name == _FIXED else name


def logical_name(element: ThriftStruct) -> str | None:
    """Return a leaf's logical type as the specification writes it: `DECIMAL(12,2)`, `INT(8,true)`.

    Return an older writer's converted type if there is no logical type, and None without either.
    """
    if (union := element.logicalType) is not None:
        fields = set_fields(union)
        return _format_logical_type(*next(iter(fields.items()))) if fields else "unknown"
    if element.converted_type is None:
        return None
    name = enum_name("ConvertedType", element.converted_type)
    return f"{name}({element.precision},{element.scale})" if name == "DECIMAL" else name


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
