"""What an Arrow expression says: its tree, the fields it reads, and what it makes of nulls and NaN.

PyArrow lets nobody look into an Expression, but it pickles one as an Arrow IPC file: literals and
options are columns of the only batch, and the schema's metadata, a list of pairs, spells the tree
(Arrow C++, `compute::Serialize`):

    call: and_kleene
        call: equal     field_ref: a                                     literal: 0   end: equal
        call: less      nested_field_ref: 2  field_ref: b  field_ref: c  literal: 1   end: less
    end: and_kleene

What can't be read this way is None: who prunes by it then takes it that every row may match.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "AND",
    "OR",
    "Call",
    "Field",
    "Literal",
    "Node",
    "fields_of",
    "read_expression",
    "referenced_fields",
    "value_set",
    "what_matters",
]

AND = frozenset({"and_kleene", "and"})
OR = frozenset({"or_kleene", "or"})
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
# Null for null and NaN for NaN, and the sign of a zero makes no difference to a comparison after.
_ARITHMETIC = frozenset({"add", "subtract", "multiply", "negate"})
_ARITHMETIC |= {f"{name}_checked" for name in _ARITHMETIC}

_MAX_DEPTH = 200
"""Deepest tree read, `a or b or c ...` counted as one level: the walks over it recurse."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the table, or one inside a struct."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    scalar: Any


@dataclass(frozen=True, slots=True)
class Call:
    """A function of Arrow's compute registry and its arguments."""

    name: str
    arguments: list[Node]
    options: Any = None  # a struct scalar


Node: TypeAlias = Field | Literal | Call


def referenced_fields(expression: pc.Expression) -> frozenset[tuple[str, ...]] | None:
    """Give the paths of the fields that an expression reads; None where that can't be known."""
    tree = read_expression(expression)
    return None if tree is None else frozenset(fields_of(tree))


def fields_of(node: Node) -> Iterator[tuple[str, ...]]:
    """Give the path of each field below a node, as often as it is there."""
    if isinstance(node, Field):
        yield node.path
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from fields_of(argument)


# --- the tree ------------------------------------------------------------------------------------


def read_expression(expression: pc.Expression) -> Node | None:
    """Give an expression's tree; None where it can't be told, as of fields named by position.

    Raises:
        TypeError: it is no expression.
    """
    if not isinstance(expression, pc.Expression):
        raise TypeError(
            f"a filter is a pyarrow.compute.Expression, not {type(expression).__name__}"
        )
    try:
        _, (buffer,) = expression.__reduce__()
        batch = pa.ipc.open_file(buffer).get_batch(0)
        return _tree(_pairs(batch.schema), batch)
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError):
        return None  # another PyArrow may spell it otherwise


def _tree(pairs: list[tuple[bytes, bytes]], batch: pa.RecordBatch) -> Node:
    root: list[tuple[Node, int]] = []  # nodes and their depths
    calls: list[tuple[bytes, list[tuple[Node, int]], list[Any]]] = []  # that have no end yet
    left = iter(pairs)
    for key, value in left:
        done: tuple[Node, int] | None = None
        if key == b"field_ref":
            done = Field((value.decode(),)), 0
        elif key == b"nested_field_ref":
            done = _nested([next(left, (b"", b"")) for _ in range(int(value))]), 0
        elif key == b"literal":
            done = Literal(batch.column(int(value))[0]), 0
        elif key == b"call":
            calls.append((value, [], []))
        elif key == b"options":
            calls[-1][2].append(batch.column(int(value))[0])
        elif key == b"end":
            done = _close(*calls.pop())
        else:
            raise ValueError("an unknown key")
        if done is not None:
            (calls[-1][1] if calls else root).append(done)
    ((node, _),) = root
    return node


def _nested(pairs: list[tuple[bytes, bytes]]) -> Field:
    if {key for key, _ in pairs} != {b"field_ref"}:
        raise ValueError("a path of other than names")
    return Field(tuple(value.decode() for _, value in pairs))


def _close(name: bytes, found: list[tuple[Node, int]], options: list[Any]) -> tuple[Node, int]:
    """Make a call of its arguments; a chain of ands, or of ors, becomes one of them."""
    nodes, depths = [node for node, _ in found], [depth + 1 for _, depth in found]
    call = Call(name.decode(), nodes, options[0] if options else None)
    if call.name in AND | OR and isinstance(nodes[0], Call) and nodes[0].name == call.name:
        nodes[0].arguments.extend(nodes[1:])
        call, depths[0] = nodes[0], depths[0] - 1
    depth = max(depths, default=0)
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    return call, depth


def _pairs(schema: pa.Schema) -> list[tuple[bytes, bytes]]:
    """Give a schema's metadata in order, with the keys that repeat: a dict would lose them.

    The Arrow C data interface has it: struct ArrowSchema begins with three pointers, and the third
    is to int32 count, then for each pair int32 length, key, int32 length, value.
    """
    capsule = schema.__arrow_c_schema__()  # owns what is read here
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    _, _, at = (ctypes.c_void_p * 3).from_address(address(capsule, b"arrow_schema"))
    if at is None:
        return []

    def number() -> int:
        nonlocal at
        at += 4
        return int.from_bytes(ctypes.string_at(at - 4, 4), sys.byteorder)

    def text() -> bytes:
        nonlocal at
        size = number()
        at += size
        return ctypes.string_at(at - size, size)

    return [(text(), text()) for _ in range(number())]


# --- nulls and NaN -------------------------------------------------------------------------------


def what_matters(tree: Node) -> tuple[frozenset[tuple[str, ...]], frozenset[tuple[str, ...]]]:
    """Name the fields whose nulls, and those whose NaN, have a say in which rows match.

    For any other field holds: where a row with a null (or NaN) there matches, it still does with
    every number in its place. So bounds, which say nothing of nulls and NaN, can judge it alone.
    """
    nulls: set[tuple[str, ...]] = set()
    nans: set[tuple[str, ...]] = set()

    def walk(node: Node, negated: bool) -> None:
        if not isinstance(node, Call):
            return
        if node.name in AND | OR or node.name == "invert":
            for argument in node.arguments:
                walk(argument, negated ^ (node.name == "invert"))
            return
        if not _ignores_nulls(node, negated):
            nulls.update(fields_of(node))
        if not _ignores_nans(node, negated):
            nans.update(fields_of(node))

    walk(tree, False)
    return frozenset(nulls), frozenset(nans)


def _ignores_nulls(call: Call, negated: bool) -> bool:
    if call.name in _COMPARISONS:  # null, and null yet when negated
        return all(_passes_on(argument, _ARITHMETIC | {"cast"}) for argument in call.arguments)
    if negated or not _asks_a_field(call):
        return False
    if call.name == "is_in":
        values = value_set(call)
        return values is not None and values.null_count == 0
    return call.name == "is_valid"


def _ignores_nans(call: Call, negated: bool) -> bool:
    if call.name in _COMPARISONS - {"not_equal"}:  # false, but true when negated
        return not negated and all(_passes_on(a, _ARITHMETIC) for a in call.arguments)
    if not _asks_a_field(call):
        return False
    if call.name == "is_in":
        return not negated and not _holds_nan_or_zero(value_set(call))
    if call.name == "is_null":
        return call.options is not None and call.options["nan_is_null"].as_py() is False
    return call.name == "is_valid"


def _asks_a_field(call: Call) -> bool:
    return len(call.arguments) == 1 and isinstance(call.arguments[0], Field)


def _passes_on(node: Node, functions: frozenset[str]) -> bool:
    """Say whether the value is null (NaN) as soon as one field in it is."""
    if not isinstance(node, Call):
        return True
    return node.name in functions and all(_passes_on(a, functions) for a in node.arguments)


def value_set(call: Call) -> pa.Array | None:
    """Give the values that `is_in` looks for."""
    if call.options is None or "value_set" not in call.options:
        return None
    return call.options["value_set"].values


def _holds_nan_or_zero(values: pa.Array | None) -> bool:
    """NaN is in no bounds; and `is_in` tells the zeros apart, which bounds don't."""
    if values is None:
        return True
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        return True
    if pa.types.is_floating(values.type) or pa.types.is_integer(values.type):
        return bool(pc.any(pc.equal(values, pa.scalar(0, values.type))).as_py())
    return True
