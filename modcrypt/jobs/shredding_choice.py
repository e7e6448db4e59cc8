"""Which of a file's keys are meant by those of columns, those under master keys, or all of them.

Pure choices: what a file needs is told by its footer and its external key material, and nothing is
written here. Shredding removes what is chosen, and its proof looks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.parquet.crypto.ciphers import check_names
from modcrypt.parquet.crypto.footer_keys import ColumnUse, KeyUses
from modcrypt.parquet.format.schema import leaves_of
from modcrypt.pkmt1.external import settled
from modcrypt.pkmt1.material import (
    KeyMaterial,
    KeyReference,
    check_id,
    decode_material,
    decode_metadata,
    write_of,
)

__all__ = ["Chosen", "Criteria", "choose", "criteria_of", "left_of", "material_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """Which keys are meant: those of columns, those under master keys, or all."""

    columns: tuple[str, ...] = ()
    master_keys: tuple[str, ...] = ()
    everything: bool = False

    def covers(self, material: KeyMaterial) -> bool:
        """Tell whether a key is meant by its material; that of columns is known by their names."""
        return self.everything or material.master_key_id in self.master_keys

    def columns_of(self, seen: KeyUses) -> list[ColumnUse]:
        """Give the columns of a file that are named.

        Raises:
            ValueError: one of the names means several.
        """
        columns = seen.columns or ()
        leaves = [column.path for column in columns]
        names = set(self.columns) - set(self.absent_from(seen))
        check_names(leaves, names)
        return [columns[c] for c in leaves_of(leaves, names)]

    def absent_from(self, seen: KeyUses) -> list[str]:
        """Give the names that no column or group of a file has."""
        paths = [column.path for column in seen.columns or ()]
        there = {".".join(path[:n]) for path in paths for n in range(1, len(path) + 1)}
        return [name for name in self.columns if name not in there]

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return {
            "columns": list(self.columns),
            "master_keys": list(self.master_keys),
            "everything": self.everything,
        }


def criteria_of(columns: Iterable[str], master_keys: Iterable[str], everything: bool) -> Criteria:
    """Take in what a caller says.

    Raises:
        ValueError, TypeError: it is not exactly one of the three.
    """
    for what, names in (("columns", columns), ("master_keys", master_keys)):
        if isinstance(names, str | bytes):
            raise ValueError(f"{what} takes several names, not one string")
    said = Criteria(
        columns=tuple(dict.fromkeys(columns)),
        master_keys=tuple(dict.fromkeys(master_keys)),
        everything=everything,
    )
    if not all(isinstance(name, str) for name in said.columns):
        raise TypeError("columns are given by their names")
    if "" in said.columns:
        raise ValueError("the name of a column is empty")
    for one in said.master_keys:
        check_id(one)
    if not isinstance(everything, bool):
        raise TypeError("everything is True or False")
    if sum(map(bool, (said.columns, said.master_keys, everything))) != 1:
        raise ValueError(
            "say which keys are meant by one of columns, master_keys and everything=True"
        )
    return said


def material_of(metadata: bytes | None) -> KeyMaterial | KeyReference | None:
    """Give a key's material, or the reference to it; None for no PKMT1."""
    if metadata:
        with suppress(KeyMaterialError):
            return decode_metadata(metadata)
    return None


# --- one file's keys -----------------------------------------------------------------------------


@dataclass(slots=True)
class Chosen:
    """What is meant of a file.

    Attributes:
        within: key metadata that is key material, and what it says.
        owners: the same key metadata to the columns that have it.
        references: of columns, to external key material; by master keys that tells by itself.
        columns: dotted names of the columns that are meant, as far as they can be told.
        elsewhere: keys whose key metadata is none of PKMT1.
        bare: columns in plaintext, where everything is meant.
        notes: what else there is to be said.
    """

    within: dict[bytes, KeyMaterial] = field(default_factory=dict)
    owners: dict[bytes, set[str]] = field(default_factory=dict)
    references: list[KeyReference] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, metadata: bytes, material: KeyMaterial, column: str | None) -> None:
        """Add internal key material of a column, or of the footer."""
        self.within[metadata] = material
        self.owners.setdefault(metadata, set()).update(() if column is None else (column,))


def choose(wanted: Criteria, seen: KeyUses) -> Chosen:
    """Say what is meant of a file.

    Raises:
        KeyNotFoundError: a sealed footer hides it.
        KeyMaterialError: it is not only that of the columns that are meant.
        ValueError: one of the columns' names means several.
    """
    chosen = Chosen()
    if wanted.columns:
        _choose_columns(wanted, seen, chosen)
    else:
        _choose_keys(wanted, seen, chosen)
    return chosen


def _choose_keys(wanted: Criteria, seen: KeyUses, chosen: Chosen) -> None:
    footer = material_of(seen.footer)
    if isinstance(footer, KeyMaterial) and not wanted.covers(footer) and seen.columns is None:
        raise KeyNotFoundError(
            "the sealed footer may hold keys that are meant: a key service that opens it is needed"
        )
    _choose_key(wanted, None, seen.footer, chosen)
    for column in seen.columns or ():
        for metadata in column.metadata:
            _choose_key(wanted, column.name, metadata, chosen)
        if wanted.everything and "plaintext" in column.under:
            chosen.bare.append(column.name)
    named = {column for owners in chosen.owners.values() for column in owners}
    chosen.columns = [column.name for column in seen.columns or () if column.name in named]


def _choose_key(
    wanted: Criteria, column: str | None, metadata: bytes | None, chosen: Chosen
) -> None:
    if not metadata:
        return
    material = material_of(metadata)
    if material is None:
        chosen.elsewhere.append("footer key" if column is None else f"column {column}")
    elif isinstance(material, KeyMaterial) and wanted.covers(material):
        chosen.add(metadata, material, column)


def _choose_columns(wanted: Criteria, seen: KeyUses, chosen: Chosen) -> None:
    if seen.columns is None:
        if seen.footer:
            raise KeyNotFoundError(
                "a sealed footer says which key is a column's: a key service that opens it is "
                "needed, or the whole file is to be shredded"
            )
        return
    meant = wanted.columns_of(seen)
    chosen.columns += [column.name for column in meant]
    if absent := wanted.absent_from(seen):
        chosen.notes.append(f"it has no column {', '.join(absent)}")
    _check_keys_of_their_own(meant, seen)
    for column in meant:
        for metadata in column.metadata:
            material = material_of(metadata)
            if isinstance(material, KeyReference):
                chosen.references.append(material)
            elif material is None:
                chosen.elsewhere.append(f"column {column.name}")
            else:
                chosen.add(metadata, material, column.name)


def _check_keys_of_their_own(meant: list[ColumnUse], seen: KeyUses) -> None:
    """Check that columns can be shredded without others.

    Raises:
        KeyMaterialError: they can't: the message names them.
    """
    if plain := [one.name for one in meant if "plaintext" in one.under]:
        raise KeyMaterialError(
            f"in plaintext, so without a key to be shredded: {', '.join(plain)}; mask or drop them"
        )
    if under := [one.name for one in meant if "footer key" in one.under]:
        raise KeyMaterialError(
            f"sealed under the footer key: {', '.join(under)}; they can't be shredded alone. Shred "
            "the whole file, or re-key it with column keys first"
        )
    taken = set[bytes]().union(*(one.metadata for one in meant))
    wrapped = {_wrapped(one) for one in taken} - {None}
    names = ", ".join(one.name for one in meant)
    for other in seen.columns or ():
        shared = any(one in taken or _wrapped(one) in wrapped for one in other.metadata)
        if shared and other not in meant:
            raise KeyMaterialError(
                f"{names}: the key is that of column {other.name}, too; name all that it seals, or "
                "the group they are in"
            )
    if seen.footer and (seen.footer in taken or _wrapped(seen.footer) in wrapped):
        raise KeyMaterialError(
            f"{names}: the key is the footer key, too; shred the whole file, or re-key it with "
            "column keys first"
        )


def _wrapped(metadata: bytes) -> str | None:
    material = material_of(metadata)
    return material.wrapped_dek if isinstance(material, KeyMaterial) else None


# --- external key material -----------------------------------------------------------------------


def left_of(store: dict[str, str], wanted: Criteria, chosen: Chosen) -> dict[str, str]:
    """Give what stays of external key material.

    Raises:
        KeyMaterialError: it is damaged; or a key is meant that is another column's, too.
    """
    if wanted.everything:
        return {}
    if wanted.columns:
        return _without(store, chosen.references)
    return {n: text for n, text in store.items() if not wanted.covers(decode_material(text))}


def _without(store: dict[str, str], references: list[KeyReference]) -> dict[str, str]:
    left = store
    for write in {reference.write for reference in references}:
        left = settled(left, write)
    names = {reference.name for reference in references if _is_its_own(left, reference)}
    if not names:
        return store
    taken = {decode_material(left[name]).wrapped_dek for name in names}
    kept = {name: text for name, text in left.items() if name not in names}
    for name, text in kept.items():
        if decode_material(text).wrapped_dek in taken:
            raise KeyMaterialError(f"the key is that of {name!r}, too: name all that it seals")
    return kept


def _is_its_own(store: dict[str, str], reference: KeyReference) -> bool:
    """Tell a file's own key from that of another file, or of another version of it."""
    text = store.get(reference.name)
    if text is None:
        return False
    return write_of(decode_material(text).others) in (None, reference.write)
