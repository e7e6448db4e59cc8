"""The leaves of Arrow fields and arrays, which are nested in structs; what else is nested is one.

A path has the names of a leaf and of the structs around it, outermost first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import pyarrow as pa

from modcrypt.parquet.arrow.field_metadata import walk_field

Path: TypeAlias = tuple[str, ...]


def iter_leaves(field: pa.Field, above: Path = ()) -> Iterator[tuple[Path, pa.DataType]]:
    """Yield the paths and types of the leaves of a field, which is inside the structs `above`."""
    path = (*above, field.name)
    if not (pa.types.is_struct(field.type) and field.type.num_fields):
        yield path, field.type
        return
    for part in field.type:
        yield from iter_leaves(part, path)


def stored_paths(field: pa.Field) -> dict[Path, list[Path]]:
    """Return the paths of a field's leaves, each with those of its leaves in Parquet."""
    every = [path for path, _ in walk_field(field)]
    found: dict[Path, list[Path]] = {path: [] for path, _ in iter_leaves(field)}
    for path, following in zip(every, [*every[1:], ()], strict=True):
        if following[: len(path)] != path:  # it has none inside it
            above = (path[:n] for n in range(1, len(path) + 1))
            found[next(each for each in above if each in found)].append(path)
    return found


def cover_leaves(
    leaves: Mapping[Path, list[Path]], chosen: set[Path], what: str
) -> frozenset[Path]:
    """Return the leaves of `stored_paths` whose own are chosen by `what`.

    Raise ValueError if only some of a leaf are.
    """
    covered = {leaf for leaf, paths in leaves.items() if not chosen.isdisjoint(paths)}
    for leaf in covered:
        if left := set(leaves[leaf]) - chosen:
            raise ValueError(
                f"{what} names a part of column {'.'.join(leaf)}, without "
                f"{'.'.join(min(left))}: lists and maps are encrypted as a whole; name the column"
            )
    return frozenset(covered)


def map_leaf_fields(
    field: pa.Field, of_leaf: Callable[[Path, pa.Field], pa.Field], above: Path = ()
) -> pa.Field:
    """Return a field, inside the structs `above`, with the leaves that a function returns."""
    path = (*above, field.name)
    if not pa.types.is_struct(field.type):
        return of_leaf(path, field)
    return field.with_type(pa.struct([map_leaf_fields(p, of_leaf, path) for p in field.type]))


def map_leaves(
    values: pa.Array, field: pa.Field, functions: Mapping[Path, Callable[[pa.Array], pa.Array]],
    above: Path = (),
) -> pa.Array:  # fmt: skip
    """Return an array with the leaves that functions return, given those at their paths.

    `field` is that of the result, inside the structs `above`. Leaves inside of null structs are
    null.
    """
    path = (*above, field.name)
    if (convert := functions.get(path)) is not None:
        return convert(values)
    if not pa.types.is_struct(values.type):
        return values
    parts = [
        map_leaves(part, own, functions, path)
        for part, own in zip(values.flatten(), field.type, strict=True)
    ]
    return pa.StructArray.from_arrays(parts, fields=list(field.type), mask=values.is_null())
