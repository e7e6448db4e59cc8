"""Read an Arrow expression: its tree, its fields, and how it treats nulls and NaN.

PyArrow does not expose the contents of an Expression, but pickles it as an Arrow IPC file: literals
and options are columns of the only batch, and the metadata of the schema, a list of pairs, encodes
the tree (Arrow C++, `compute::Serialize`):

    call: and_kleene
        call: equal     field_ref: a                                     literal: 0   end: equal
        call: less      nested_field_ref: 2  field_ref: b  field_ref: c  literal: 1   end: less
    end: and_kleene

An expression that cannot be read this way is None. Pruning then assumes that every row may match.
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
    "find_null_and_nan_fields",
    "find_referenced_fields",
    "iter_fields",
    "read_expression",
    "read_value_set",
]

AND = frozenset({"and_kleene", "and"})
OR = frozenset({"or_kleene", "or"})
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
# These return null for null and NaN for NaN, and the sign of zero does not affect a comparison.
_ARITHMETIC = frozenset({"add", "subtract", "multiply", "negate"})
_ARITHMETIC |= {f"{name}_checked" for name in _ARITHMETIC}

_MAX_DEPTH = 200
"""Deepest tree that is read; walks recurse. `a or b or c ...` counts as one level."""


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


def find_referenced_fields(expression: pc.Expression) -> frozenset[tuple[str, ...]] | None:
    """Return the paths of the fields that an expression reads; None if they cannot be known."""
    tree = read_expression(expression)
    return None if tree is None else frozenset(iter_fields(tree))


def iter_fields(node: Node) -> Iterator[tuple[str, ...]]:
    """Yield the path of each field below a node, as often as it occurs."""
    if isinstance(node, Field):
        yield node.path
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from iter_fields(argument)


# --- the tree ------------------------------------------------------------------------------------


def read_expression(expression: pc.Expression) -> Node | None:
    """Return an expression's tree; None if it cannot be read, as with fields named by position.

    Raises:
        TypeError: The argument is not an expression.
    """
    if not isinstance(expression, pc.Expression):
        raise TypeError(
            f"a filter must be a pyarrow.compute.Expression, not {type(expression).__name__}"
        )
    try:
        _, (buffer,) = expression.__reduce__()
        batch = pa.ipc.open_file(buffer).get_batch(0)
        return _read_tree(_read_metadata_pairs(batch.schema), batch)
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError):
        return None  # Another version of PyArrow may encode it differently.


def _read_tree(pairs: list[tuple[bytes, bytes]], batch: pa.RecordBatch) -> Node:
    root: list[tuple[Node, int]] = []  # nodes and their depths
    calls: list[tuple[bytes, list[tuple[Node, int]], list[Any]]] = []  # those without an end yet
    left = iter(pairs)
    for key, value in left:
        done: tuple[Node, int] | None = None
        if key == b"field_ref":
            done = Field((value.decode(),)), 0
        elif key == b"nested_field_ref":
            done = _read_nested_field([next(left, (b"", b"")) for _ in range(int(value))]), 0
        elif key == b"literal":
            done = Literal(batch.column(int(value))[0]), 0
        elif key == b"call":
            calls.append((value, [], []))
        elif key == b"options":
            calls[-1][2].append(batch.column(int(value))[0])
        elif key == b"end":
            done = _close_call(*calls.pop())
        else:
            raise ValueError("the expression has an unknown key")
        if done is not None:
            (calls[-1][1] if calls else root).append(done)
    ((node, _),) = root
    return node


def _read_nested_field(pairs: list[tuple[bytes, bytes]]) -> Field:
    if {key for key, _ in pairs} != {b"field_ref"}:
        raise ValueError("the path of a nested field has parts other than names")
    return Field(tuple(value.decode() for _, value in pairs))


def _close_call(
    name: bytes, arguments: list[tuple[Node, int]], options: list[Any]
) -> tuple[Node, int]:
    """Build a call from its arguments; merge a chain of ands, or of ors, into one call."""
    nodes, depths = [node for node, _ in arguments], [depth + 1 for _, depth in arguments]
    call = Call(name.decode(), nodes, options[0] if options else None)
    if call.name in AND | OR and isinstance(nodes[0], Call) and nodes[0].name == call.name:
        nodes[0].arguments.extend(nodes[1:])
        call, depths[0] = nodes[0], depths[0] - 1
    depth = max(depths, default=0)
    if depth > _MAX_DEPTH:
        raise ValueError("the expression is nested too deeply")
    return call, depth


def _read_metadata_pairs(schema: pa.Schema) -> list[tuple[bytes, bytes]]:
    """Return a schema's metadata in order, with repeated keys, which a dict would lose.

    The metadata is read from the Arrow C data interface: struct ArrowSchema begins with three
    pointers, and the third points to int32 count, then for each pair int32 length, key, int32
    length, value.
    """
    capsule = schema.__arrow_c_schema__()  # It owns the memory that is read here.
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    _, _, at = (ctypes.c_void_p * 3).from_address(address(capsule, b"arrow_schema"))
    if at is None:
        return []

    def read_number() -> int:
        nonlocal at
        at += 4
        return int.from_bytes(ctypes.string_at(at - 4, 4), sys.byteorder)

    def read_text() -> bytes:
        nonlocal at
        size = read_number()
        at += size
        return ctypes.string_at(at - size, size)

    return [(read_text(), read_text()) for _ in range(read_number())]


# --- nulls and NaN -------------------------------------------------------------------------------


def find_null_and_nan_fields(
    tree: Node,
) -> tuple[frozenset[tuple[str, ...]], frozenset[tuple[str, ...]]]:
    """Return the fields whose nulls, and those whose NaN, can decide which rows match.

    For any other field: if a row with a null (or NaN) there matches, it also matches with any
    number in its place. So bounds, which do not cover nulls and NaN, suffice to judge that field.
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
            nulls.update(iter_fields(node))
        if not _ignores_nans(node, negated):
            nans.update(iter_fields(node))

    walk(tree, False)
    return frozenset(nulls), frozenset(nans)


def _ignores_nulls(call: Call, negated: bool) -> bool:
    if call.name in _COMPARISONS:  # Null, also when negated.
        return all(_propagates(argument, _ARITHMETIC | {"cast"}) for argument in call.arguments)
    if negated or not _has_only_a_field(call):
        return False
    if call.name == "is_in":
        values = read_value_set(call)
        return values is not None and values.null_count == 0
    return call.name == "is_valid"


def _ignores_nans(call: Call, negated: bool) -> bool:
    if call.name in _COMPARISONS - {"not_equal"}:  # False, but true when negated.
        return not negated and all(_propagates(a, _ARITHMETIC) for a in call.arguments)
    if not _has_only_a_field(call):
        return False
    if call.name == "is_in":
        return not negated and not _holds_nan_or_zero(read_value_set(call))
    if call.name == "is_null":
        return call.options is not None and call.options["nan_is_null"].as_py() is False
    return call.name == "is_valid"


def _has_only_a_field(call: Call) -> bool:
    return len(call.arguments) == 1 and isinstance(call.arguments[0], Field)


def _propagates(node: Node, functions: frozenset[str]) -> bool:
    """Return whether the value is null (NaN) as soon as one field in it is."""
    if not isinstance(node, Call):
        return True
    return node.name in functions and all(_propagates(a, functions) for a in node.arguments)


def read_value_set(call: Call) -> pa.Array | None:
    """Return the values that `is_in` looks for."""
    if call.options is None or "value_set" not in call.options:
        return None
    return call.options["value_set"].values


def _holds_nan_or_zero(values: pa.Array | None) -> bool:
    """Return whether a value is NaN or zero.

    Bounds do not cover NaN; and `is_in` distinguishes the two zeros, which bounds do not.
    """
    if values is None:
        return True
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        return True
    if pa.types.is_floating(values.type) or pa.types.is_integer(values.type):
        return bool(pc.any(pc.equal(values, pa.scalar(0, values.type))).as_py())
    return True
