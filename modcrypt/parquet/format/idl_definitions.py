"""The structs and enums of `thrift/parquet.thrift`, as thriftpy2 reads them; only it is used here.

`idl_table.json` holds what thriftpy2 read, because importing it and parsing takes longer than all
other work on a small file. The table stands only for the text from which it was made.
"""

from __future__ import annotations

import io
import json
import pkgutil
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias
from zlib import crc32

from modcrypt.parquet.format.compact import (
    BINARY,
    BYTE,
    DOUBLE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
)

FieldDefinition: TypeAlias = Sequence[Any]
"""Id, wire type, name, whether it is required, and of a struct or a list of structs the name of the
struct (or ""), and the wire type of a list's elements (or 0)."""

Structs: TypeAlias = dict[str, tuple[bool, Sequence[FieldDefinition]]]
"""A flag for unions, and the fields in ascending order of their ids, by the struct's name."""

Enums: TypeAlias = dict[str, dict[str, str]]
"""Names of values, by the enum's name and by the value's digits."""

# thriftpy2's TType numbers (its IDL's types) -> wire types.
_WIRE = {2: TRUE, 3: BYTE, 4: DOUBLE, 6: I16, 8: I32, 10: I64, 11: BINARY, 12: STRUCT}
_WIRE |= {13: MAP, 14: SET, 15: LIST, 18: BINARY}


class IdlStruct:
    """A struct of the IDL, of which its own class is derived; two are equal if their fields are.

    Compiled classes cannot have derived ones.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = object.__hash__


@cache
def load_definitions() -> tuple[Structs, Enums]:
    """Return the definitions of the IDL; thriftpy2 parses it if the table is of another text."""
    text = pkgutil.get_data("modcrypt", "thrift/parquet.thrift") or b""  # perhaps in a zip
    table = json.loads(pkgutil.get_data(__package__, "idl_table.json") or b"")
    if crc32(text) == table["crc"]:
        return table["structs"], table["enums"]
    return parse_definitions(text)


def parse_definitions(text: bytes) -> tuple[Structs, Enums]:
    """Return the definitions of an IDL."""
    import thriftpy2  # and with it urllib and http

    name = f"modcrypt_parquet_{crc32(text)}_thrift"  # thriftpy2 keeps what it read by a name
    module = thriftpy2.load_fp(io.StringIO(text.decode()), name)
    meta = module.__thrift_meta__
    structs: Structs = {
        cls.__name__: (
            cls in meta["unions"],
            tuple(map(_describe, sorted(cls.thrift_spec.items()))),
        )
        for cls in (*meta["structs"], *meta["unions"])
    }
    return structs, {
        enum.__name__: {str(value): name for value, name in enum._VALUES_TO_NAMES.items()}
        for enum in meta["enums"]
    }


def _describe(item: tuple[int, tuple[Any, ...]]) -> FieldDefinition:
    """Describe a field as thriftpy2's specification of a struct does."""
    field_id, (ttype, name, *rest, required) = item
    sub: Any = rest[0] if rest else None
    element = 0
    if ttype == 15:
        element, sub = (_WIRE[sub[0]], sub[1]) if isinstance(sub, tuple) else (_WIRE[sub], None)
    nested = sub.__name__ if STRUCT in (_WIRE[ttype], element) else ""
    return field_id, _WIRE[ttype], name, required, nested, element
