"""The rows, columns and statistics of a file, compared with those of its source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from modcrypt.errors import ModcryptError
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.jobs.idempotence.masks import masks_of
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.mask_note import MaskNote
from modcrypt.parquet.format.schema import leaf_paths


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
    statistics = md.statistics
    if statistics is None:
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
