"""The masks that a file notes, and those that a change in place must leave."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from modcrypt.errors import FormatError
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.mask_note import MaskNote, hash_key_check, read_note
from modcrypt.parquet.format.schema import covering_name, leaves_of
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.parquet.rewrite.file_rewrite import find_masked


@dataclass(frozen=True, slots=True)
class ExpectedMasks:
    """The expected masks of a file that is masked in place, without a source to compare with."""

    change: Change

    def find_open_difference(self, file: OpenFile) -> str | None:
        """Return what is still to be masked in an open file; None if nothing is.

        Raise ValueError if the change names columns that the file does not have.
        """
        change, leaves = self.change, file.leaves
        remaining = [".".join(leaf) for leaf in leaves if covering_name(leaf, change.drop)]
        if remaining:
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
    """Return the masks that a file notes, limited to `expected`, if its statistics agree.

    Other tools copy key-value metadata to files with other values; the note alone would make such
    files look masked.
    """
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
