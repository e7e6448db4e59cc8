"""The leaves of a Parquet schema, and the names of columns and groups that cover them; no IO."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, Final, NamedTuple

from modcrypt.errors import MAX_NAME, MAX_NAMES, FormatError, LimitError, printable
from modcrypt.parquet.format.idl import copy
from modcrypt.parquet.format.structs import SchemaElement
from modcrypt.runtime.collector import paused_collector

MAX_SCHEMA_DEPTH = 200
"""Deepest nesting of groups read from a file; the paths grow with it."""


def leaf_paths(schema: list[SchemaElement]) -> list[tuple[str, ...]]:
    """Return the path of every leaf, in column order; raise FormatError like `leaf_elements`."""
    with paused_collector():  # it would traverse the thousands of leaves of a wide file
        return [leaf.path for leaf in leaf_elements(schema)]


def leaf_fields(schema: list[SchemaElement]) -> list[str]:
    """Return the top-level field of every leaf: the first names of `leaf_paths`, but faster."""
    fields: list[str] = []
    field = ""
    for parent, element in zip(find_parents(schema)[1:], schema[1:], strict=True):
        if not parent:
            field = element.name.decode()
        if element.type is not None:
            fields.append(field)
    return fields


def childless_fields(schema: list[SchemaElement]) -> list[str]:
    """Return the names of top-level groups without leaves, which few files have."""
    if all(element.num_children or element.type is not None for element in schema[1:]):
        return []
    there = set(leaf_fields(schema))
    elements = zip(find_parents(schema)[1:], schema[1:], strict=True)
    names = [element.name.decode() for parent, element in elements if not parent]
    return [name for name in names if name not in there]


def count_leaves(schema: list[SchemaElement]) -> int:
    """Count leaves without listing them; raise FormatError like `leaf_elements`."""
    find_parents(schema)
    return sum(1 for element in schema[1:] if element.type is not None)


def find_parents(schema: list[SchemaElement]) -> list[int]:
    """Return the index of the group around each element; 0 for the root."""
    if not schema:
        raise FormatError("the schema is empty")
    parents: list[int] = []
    depths: list[int] = []
    missing = [0]  # the parent of each element that is still to come, the next one's last
    for index in range(len(schema)):
        if not missing:
            raise FormatError("the schema has elements that belong to no group")
        parent, element = missing.pop(), schema[index]
        parents.append(parent)
        depths.append(depths[parent] + 1 if index else 0)
        if index:
            _check_element(element, index, depths[index])
        count = element.num_children
        if not count:
            continue
        if count < 0:
            raise FormatError("a schema element declares a negative number of children")
        if index and element.type is not None:  # some writers give leaves a num_children of 0
            raise FormatError(f"schema element {index} has both a type and children")
        if count >= len(schema) - index - len(missing):
            raise FormatError("the schema declares more children than it has elements")
        missing += [index] * count
    return parents


def _check_element(element: SchemaElement, index: int, depth: int) -> None:
    try:
        element.name.decode()
    except UnicodeDecodeError:
        raise FormatError(f"schema element {index}: the name is not UTF-8") from None
    if depth > MAX_SCHEMA_DEPTH and element.type is None:
        raise LimitError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels")


_REQUIRED, _OPTIONAL, _REPEATED = range(3)  # FieldRepetitionType of the IDL


def is_required(element: SchemaElement) -> bool:
    """Return whether an element has exactly one value for each of its parent's."""
    # An element without `repetition_type`, as of hyparquet-writer, is required: Arrow C++ and
    # DuckDB read it so, and the other readers refuse it.
    return element.repetition_type in (None, _REQUIRED)


def is_repeated(element: SchemaElement) -> bool:
    """Return whether an element has any number of values for each of its parent's."""
    return bool(element.repetition_type == _REPEATED)


def make_optional(schema: list[SchemaElement], index: int) -> None:
    """Replace an element of the schema by an optional one if it is required."""
    if is_required(schema[index]):
        schema[index] = copy(schema[index])
        schema[index].repetition_type = _OPTIONAL


class Leaf(NamedTuple):
    """A leaf column of a schema."""

    path: tuple[str, ...]
    names: list[bytes]  # the path as ColumnMetaData states it
    elements: tuple[int, ...]  # indexes of the schema elements on it, its own last
    max_definition: int
    max_repetition: int
    in_map: int | None  # index of the schema element of the outermost map around it

    @property
    def element(self) -> int:
        """Index of the leaf's schema element."""
        return self.elements[-1]

    @property
    def field(self) -> int:
        """Index of the schema element of the leaf's top-level field."""
        return self.elements[0]


_ROOT: Final = Leaf((), [], (), 0, 0, None)

_new_tuple: Any = tuple.__new__  # calling a named tuple's class takes twice as long


def leaf_elements(schema: list[SchemaElement]) -> list[Leaf]:
    """Return every leaf with its levels, in column order.

    Raises:
        FormatError: Child counts do not add up, or a name is not UTF-8.
        LimitError: The schema is nested deeper than `MAX_SCHEMA_DEPTH`.
    """
    leaves: list[Leaf] = []
    groups: dict[int, Leaf] = {0: _ROOT}  # what their leaves inherit
    parents = find_parents(schema)
    parent, group = 0, _ROOT
    for index in range(1, len(schema)):
        element = schema[index]
        raw: bytes = element.name
        if parents[index] != parent:
            parent = parents[index]
            group = groups[parent]
        # Sums, because unpacking into new tuples takes twice as long when compiled.
        path, names, elements = group[0] + (raw.decode(),), group[1] + [raw], group[2] + (index,)
        definition, repetition, in_map = group[3], group[4], group[5]
        if not is_required(element):
            definition += 1
        if is_repeated(element):
            repetition += 1
        is_group = element.type is None
        if is_group and in_map is None and is_map(element):
            in_map = index
        leaf = _new_tuple(Leaf, (path, names, elements, definition, repetition, in_map))
        if is_group:
            groups[index] = leaf
        else:
            leaves.append(leaf)
    return leaves


def covering_name(path: tuple[str, ...], names: Container[str]) -> str | None:
    """Return the longest of `names` that is the dotted path of the leaf or a group around it."""
    for length in range(len(path), 0, -1):
        name = ".".join(path[:length])
        if name in names:
            return name
    return None


def leaves_of(leaves: list[tuple[str, ...]], names: Iterable[str]) -> list[int]:
    """Return the indexes of the leaves that are named or belong to a named group.

    Raises:
        ValueError: `names` is a single string, or some names match no leaf: the message lists
            all of these, sorted.
    """
    if isinstance(names, str):
        raise ValueError("columns takes several names, not one string")
    wanted = set(names)
    out, matched = [], set()
    for index, path in enumerate(leaves):
        fitting = {".".join(path[:n]) for n in range(1, len(path) + 1)} & wanted
        if fitting:
            out.append(index)
            matched |= fitting
    if unknown := sorted(wanted - matched, key=str):
        known = ", ".join(printable(".".join(path), MAX_NAME) for path in leaves[:MAX_NAMES])
        raise ValueError(
            f"the file does not have these columns: {', '.join(map(str, unknown))}; it has "
            f"{known}{', ...' * (len(leaves) > MAX_NAMES)}"
        )
    return out


def ambiguous_names(leaves: list[tuple[str, ...]], names: Iterable[str]) -> list[str]:
    """Return those names that match several columns or groups, as names may contain dots."""
    meant: dict[str, set[tuple[str, ...]]] = {name: set() for name in names}
    for path in leaves:
        for length in range(1, len(path) + 1):
            if (name := ".".join(path[:length])) in meant:
                meant[name].add(path[:length])
    return sorted(name for name, paths in meant.items() if len(paths) > 1)


def keep_leaves(schema: list[SchemaElement], keep: list[bool]) -> list[SchemaElement]:
    """Return the schema without some leaves, and without the groups that this empties.

    A group that had no children before stays, and the root always stays.

    Raises:
        FormatError: Child counts do not add up.
        ValueError: There is not one flag for each leaf.
    """
    parents = find_parents(schema)
    children = [0] * len(schema)  # number of those that stay
    kept: list[int] = []
    leaves = [i for i, element in enumerate(schema) if i and element.type is not None]
    flags = dict(zip(leaves, keep, strict=True))
    for index in range(len(schema) - 1, 0, -1):
        flag = flags.get(index)
        if flag is None:  # a group
            flag = children[index] > 0 or not schema[index].num_children
        if flag:
            children[parents[index]] += 1
            kept.append(index)
    kept.append(0)
    kept.reverse()
    out = [schema[index] for index in kept]
    for place in range(len(kept) - 1, -1, -1):  # groups inside maps before the maps
        index = kept[place]
        if not index or schema[index].type is None:  # a root with a type is a group, too
            out[place] = copy(schema[index])
            out[place].num_children = children[index]
            _check_map(out, place, schema[index + 1 : index + 2])
    return out


_MAP, _MAP_KEY_VALUE = 1, 2  # ConvertedType of the IDL


def is_map(element: SchemaElement) -> bool:
    """Return whether a group is a map."""
    logical = element.logicalType is not None and element.logicalType.MAP is not None
    return logical or element.converted_type in (_MAP, _MAP_KEY_VALUE)


def _check_map(schema: list[SchemaElement], place: int, before: list[SchemaElement]) -> None:
    """Turn a map that lost its keys or values into a plain group: readers refuse half a map.

    `place` is the index of the group in the new schema, and `before` its first child before the
    change, empty if it had none.
    """
    group = schema[place]
    if not is_map(group):
        return
    pairs = schema[place + 1] if place + 1 < len(schema) else None
    if pairs is None or not before or pairs.num_children == before[0].num_children:
        return
    schema[place + 1] = copy(pairs)
    for element in (group, schema[place + 1]):
        element.logicalType = element.converted_type = None
