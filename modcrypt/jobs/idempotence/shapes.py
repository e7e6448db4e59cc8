"""The rows, columns, statistics and masks of a file, compared with those that it must have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from modcrypt.errors import FormatError, ModcryptError
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.mask_note import MaskNote, hash_key_check, read_note
from modcrypt.parquet.format.schema import covering_name, leaf_paths, leaves_of
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.parquet.rewrite.file_rewrite import find_masked


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between an existing file and the expected result."""

    why: str  # the difference, as a clause about "it"
    of_encryption: bool = False  # whether the file is encrypted, but not as expected


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a file, by which a destination is matched with its source."""

    rows: int
    leaves: list[tuple[str, ...]]
    # Marks of the chunks of each column; only for columns that are compared.
    marks: dict[tuple[str, ...], list[Mark]]
    masked: MaskNote | None = None  # masks of the columns; None if masks are not compared

    def find_difference(self, other: Shape) -> str | None:
        """Return how another file's shape differs from this one; None if it does not."""
        if other.rows != self.rows:
            return f"it has {other.rows} rows, but its source has {self.rows}"
        if other.leaves != self.leaves:
            return "it has other columns than its source"
        names = [".".join(path) for path, marks in self.marks.items() if other.marks[path] != marks]
        return f"it has other values than its source in {', '.join(names)}" if names else None

    def find_open_difference(self, file: OpenFile) -> str | None:
        """Return how the shape and masks of an open file differ; None if they do not."""
        everything = range(len(file.leaves))
        actual = Shape(
            file.metadata.num_rows, file.leaves, marks_of(file, file.select(), everything)
        )
        if why := self.find_difference(actual):
            return why
        if self.masked is None:
            return None
        masks = masks_of(file)
        names = dict.fromkeys(masks.lacks(self.masked) + self.masked.lacks(masks))
        return f"it has other masks, or none, in {', '.join(names)}" if names else None


def read_plain_shape(place: Place) -> Shape:
    """Return the shape of a plaintext file."""
    with open_source_at(place) as source:
        metadata = read_plain(source).metadata
    leaves = leaf_paths(metadata.schema)
    marks = {
        path: [_mark(group.columns[c].meta_data) for group in metadata.row_groups]
        for c, path in enumerate(leaves)
    }
    return Shape(metadata.num_rows, leaves, marks)


def read_decrypted_shape(place: Place, decryption: FileDecryptionProperties) -> Shape:
    """Return the shape of a file after decryption, without columns that are left out."""
    with open_source_at(place) as source:
        file = OpenFile(source, decryption)
        plan = file.select()
        shown = plan.footer_leaves
    leaves = [file.leaves[c] for c in shown]
    return Shape(file.metadata.num_rows, leaves, marks_of(file, plan, shown))


Mark: TypeAlias = "tuple[object, ...]"
"""The number of values of a chunk and its statistics, which encryption does not change."""


def marks_of(
    file: OpenFile, plan: ReadPlan, columns: Iterable[int]
) -> dict[tuple[str, ...], list[Mark]]:
    """Return the marks of columns of an open file, as far as they have a key."""
    return {
        file.leaves[c]: [_mark(plan.chunks[r, c].meta_data) for r in plan.row_groups]
        for c in columns
        if plan.keep[c]
    }


def _mark(md: ThriftStruct) -> Mark:
    if (statistics := md.statistics) is None:
        return (md.num_values,)
    return md.num_values, statistics.null_count, statistics.min_value, statistics.max_value


def find_plaintext_difference(place: Place, shape: Shape | None) -> Difference | None:
    """Return why a file is not plaintext of this shape; None if it is."""
    try:
        actual = read_plain_shape(place)
    except ModcryptError as error:
        return Difference(f"it is not a plaintext Parquet file: {error}")
    why = None if shape is None else shape.find_difference(actual)
    return None if why is None else Difference(why)


@dataclass(frozen=True, slots=True)
class ExpectedMasks:
    """The expected masks of a file that is masked in place, without a source to compare with."""

    change: Change

    def find_open_difference(self, file: OpenFile) -> str | None:
        """Return a clause about columns to mask in an open file; None if all are masked.

        Raise ValueError if the change names columns that the file does not have.
        """
        change, leaves = self.change, file.leaves
        if remaining := [".".join(leaf) for leaf in leaves if covering_name(leaf, change.drop)]:
            return f"it still has {', '.join(remaining)}"
        check = "" if change.hash_key is None else hash_key_check(change.hash_key)
        expected = MaskNote(
            frozenset(leaves[c] for c in leaves_of(leaves, change.null)),
            frozenset((leaves[c], check) for c in leaves_of(leaves, change.hashed)),
            # No statistics show whether these values are masked, so that the note decides nothing.
            frozenset(
                (leaves[c], action)
                for c, action in find_masked(file.metadata, change.actions).items()
            ),
        )
        names = masks_of(file, expected).lacks(expected)
        return f"columns not masked, or masked differently: {', '.join(names)}" if names else None


def masks_of(file: OpenFile, expected: MaskNote | None = None) -> MaskNote:
    """Return the masks that a file notes, limited to `expected`, if its statistics agree."""
    # Other tools copy key-value metadata to files with other values; the note alone would make such
    # files look masked.
    try:
        note = read_note(file.metadata)
    except FormatError:
        return MaskNote()
    if expected is not None:
        note = MaskNote(note.nulls & expected.nulls, note.hashed & expected.hashed)
    ordinal = {path: c for c, path in enumerate(file.leaves)}
    note = note.restrict_to(ordinal)
    named = {*note.nulls, *(path for path, _ in note.hashed)}
    plan = file.select(ordinal[path] for path in named)

    def agree(path: tuple[str, ...], fits: Callable[[ThriftStruct], bool]) -> bool:
        return all(fits(plan.chunks[r, ordinal[path]].meta_data) for r in plan.row_groups)

    return MaskNote(
        frozenset(path for path in note.nulls if agree(path, _is_null)),
        frozenset(entry for entry in note.hashed if agree(entry[0], _is_hashed)),
    )


_HASH = re.compile(rb"[0-9a-f]{64}")


def _is_null(md: ThriftStruct) -> bool:
    """Return whether a chunk has only nulls, according to its statistics."""
    statistics = md.statistics
    return md.num_values == 0 or (statistics is not None and statistics.null_count == md.num_values)


def _is_hashed(md: ThriftStruct) -> bool:
    """Return whether a chunk may have only hashes and nulls, according to its statistics."""
    if _is_null(md):
        return True
    statistics = md.statistics
    bounds = () if statistics is None else (statistics.min_value, statistics.max_value)
    return bool(bounds) and all(_HASH.fullmatch(bound or b"") for bound in bounds)
