"""Schemas of the reports of verbs, from the types of the attributes of their results."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NewType

import pyarrow as pa

from modcrypt.jobs.verbs.verb import Verb

Code = NewType("Code", int)  # the exit code for a file

_SAME: Mapping[str, Any] = {
    "path": str, "result": str, "failed": bool, "message": str, "code": Code, "seconds": float,
    "details": str, "bytes_in": int, "worker": str,
}  # fmt: skip
"""Types of the columns that mean the same in all reports."""

_TYPES = {
    str: pa.string(), bytes: pa.binary(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(),
    Code: pa.int32(),
}  # fmt: skip


def report_schema(verb: Verb) -> pa.Schema:
    """Return the schema of the report of a verb, which Spark and SQL show."""
    known = {**attribute_types(verb.result), **_SAME, **verb.types}
    return pa.schema([(name, arrow_type(known[name])) for name in verb.columns.split()])


def arrow_type(kind: Any) -> pa.DataType:
    """Return the type of values in Arrow; a mapping has the types of a struct's members.

    A list has the type of its items.
    """
    if isinstance(kind, Mapping):
        return pa.struct([(name, arrow_type(each)) for name, each in kind.items()])
    if isinstance(kind, list):
        return pa.list_(arrow_type(kind[0]))
    arguments = [each for each in typing.get_args(kind) if each not in (types.NoneType, ...)]
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return arrow_type(arguments[0])
    if origin is typing.Literal:
        return pa.string()
    if origin in (list, tuple, Sequence):
        return pa.list_(arrow_type(arguments[0]))
    if origin is Mapping:
        return pa.map_(*map(arrow_type, arguments))
    return _TYPES[kind]


def attribute_types(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the attributes and properties of a class.

    Names that only type checkers import stand for any type.
    """
    properties = {
        name: member.fget for name in dir(kind)
        if isinstance(member := getattr(kind, name), property)
    }  # fmt: skip
    unknown: dict[str, Any] = {}
    while True:
        try:
            found = typing.get_type_hints(kind, localns=unknown)
            for name, function in properties.items():
                found[name] = typing.get_type_hints(function, localns=unknown).get("return")
            return found
        except NameError as error:
            unknown[str(error.name)] = Any
