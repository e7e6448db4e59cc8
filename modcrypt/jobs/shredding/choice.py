"""Selection of the keys of a file to shred: those of columns, those under master keys, or all.

This module does no IO: it selects keys by the contents of the footer and the external key material.
Shredding removes the selected keys, and its proof searches for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.parquet.crypto.ciphers import check_names
from modcrypt.parquet.crypto.footer_keys import ColumnUse, KeyUses
from modcrypt.parquet.format.schema import leaves_of
from modcrypt.pkmt1.external import settle_keys
from modcrypt.pkmt1.material import (
    KeyMaterial,
    KeyReference,
    check_id,
    decode_material,
    try_decode_metadata,
    write_of,
)
from modcrypt.report.json_fields import JsonFields


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria(JsonFields):
    """A selection of keys: those of columns, those under master keys, or all."""

    columns: tuple[str, ...] = ()
    master_keys: tuple[str, ...] = ()
    everything: bool = False

    def covers(self, material: KeyMaterial) -> bool:
        """Return whether a key is selected by its material; columns are selected by name."""
        return self.everything or material.master_key_id in self.master_keys

    def columns_of(self, seen: KeyUses) -> list[ColumnUse]:
        """Return the selected columns of a file; raise ValueError if a name is ambiguous."""
        columns = seen.columns or ()
        leaves = [column.path for column in columns]
        names = set(self.columns) - set(self.absent_from(seen))
        check_names(leaves, names)
        return [columns[c] for c in leaves_of(leaves, names)]

    def absent_from(self, seen: KeyUses) -> list[str]:
        """Return the selected names that no column or group of a file has."""
        paths = [column.path for column in seen.columns or ()]
        there = {".".join(path[:n]) for path in paths for n in range(1, len(path) + 1)}
        return [name for name in self.columns if name not in there]


def criteria_of(columns: Iterable[str], master_keys: Iterable[str], everything: bool) -> Criteria:
    """Return the selection of a caller; raise ValueError unless it is exactly one of the three."""
    for what, names in (("columns", columns), ("master_keys", master_keys)):
        if isinstance(names, str | bytes):
            raise ValueError(f"{what} must be a list of names, not a string")
    criteria = Criteria(
        columns=tuple(dict.fromkeys(columns)),
        master_keys=tuple(dict.fromkeys(master_keys)),
        everything=everything,
    )
    if not all(isinstance(name, str) for name in criteria.columns):
        raise TypeError("columns must be strings, the names of columns")
    if "" in criteria.columns:
        raise ValueError("a column name is empty")
    for master_key_id in criteria.master_keys:
        check_id(master_key_id)
    if not isinstance(everything, bool):
        raise TypeError("everything must be True or False")
    if sum(map(bool, (criteria.columns, criteria.master_keys, everything))) != 1:
        raise ValueError("select keys by exactly one of columns, master_keys and everything=True")
    return criteria


@dataclass(slots=True)
class Chosen:
    """The selected keys of one file."""

    # Mapping of key metadata with internal key material to the decoded material.
    within: dict[bytes, KeyMaterial] = field(default_factory=dict)
    # Mapping of the same key metadata to the columns that use it.
    owners: dict[bytes, set[str]] = field(default_factory=dict)
    # References of selected columns to external key material; unused for master keys, as external
    # key material states its master keys itself.
    references: list[KeyReference] = field(default_factory=list)
    # Dotted names of the selected columns, as far as they are known.
    columns: list[str] = field(default_factory=list)
    # Names of keys whose key metadata is not PKMT1.
    elsewhere: list[str] = field(default_factory=list)
    # Names of columns in plaintext, if all keys are selected.
    bare: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, metadata: bytes, material: KeyMaterial, column: str | None) -> None:
        """Add internal key material of a column, or of the footer."""
        self.within[metadata] = material
        self.owners.setdefault(metadata, set()).update(() if column is None else (column,))


def choose(wanted: Criteria, seen: KeyUses) -> Chosen:
    """Return the selected keys of a file.

    Raises:
        KeyNotFoundError: An encrypted footer hides the keys.
        KeyMaterialError: A selected column shares its key with another column or the footer.
        ValueError: A column name is ambiguous.
    """
    chosen = Chosen()
    if wanted.columns:
        _choose_columns(wanted, seen, chosen)
    else:
        _choose_keys(wanted, seen, chosen)
    return chosen


def _choose_keys(wanted: Criteria, seen: KeyUses, chosen: Chosen) -> None:
    footer = try_decode_metadata(seen.footer)
    if isinstance(footer, KeyMaterial) and not wanted.covers(footer) and seen.columns is None:
        raise KeyNotFoundError(
            "the encrypted footer may contain selected keys; name a key service that decrypts it"
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
    if (material := try_decode_metadata(metadata)) is None:
        chosen.elsewhere.append("footer key" if column is None else f"column {column}")
    elif isinstance(material, KeyMaterial) and wanted.covers(material):
        chosen.add(metadata, material, column)


def _choose_columns(wanted: Criteria, seen: KeyUses, chosen: Chosen) -> None:
    if seen.columns is None:
        if seen.footer:
            raise KeyNotFoundError(
                "the encrypted footer hides which key belongs to a column; name a key service that "
                "decrypts it, or shred the whole file"
            )
        return
    meant = wanted.columns_of(seen)
    chosen.columns += [column.name for column in meant]
    if absent := wanted.absent_from(seen):
        chosen.notes.append(f"the file has no column {', '.join(absent)}")
    _check_keys_not_shared(meant, seen)
    for column in meant:
        for metadata in column.metadata:
            material = try_decode_metadata(metadata)
            if isinstance(material, KeyReference):
                chosen.references.append(material)
            elif material is None:
                chosen.elsewhere.append(f"column {column.name}")
            else:
                chosen.add(metadata, material, column.name)


def _check_keys_not_shared(meant: list[ColumnUse], seen: KeyUses) -> None:
    """Raise KeyMaterialError, naming the columns, if they can't be shredded without others."""
    if plain := [column.name for column in meant if "plaintext" in column.under]:
        raise KeyMaterialError(
            f"columns not encrypted, so without a key to shred: {', '.join(plain)}; mask or drop "
            "them"
        )
    if under := [column.name for column in meant if "footer key" in column.under]:
        raise KeyMaterialError(
            f"columns encrypted with the footer key: {', '.join(under)}; they can't be shredded "
            "alone. Shred the whole file, or re-key it with column keys first"
        )
    selected = set[bytes]().union(*(column.metadata for column in meant))
    wrapped_deks = {_wrapped_dek_of(metadata) for metadata in selected} - {None}
    names = ", ".join(column.name for column in meant)
    for other in seen.columns or ():
        shared = any(
            metadata in selected or _wrapped_dek_of(metadata) in wrapped_deks
            for metadata in other.metadata
        )
        if shared and other not in meant:
            raise KeyMaterialError(
                f"{names}: the key also encrypts column {other.name}; name all columns under this "
                "key, or their group"
            )
    if seen.footer and (seen.footer in selected or _wrapped_dek_of(seen.footer) in wrapped_deks):
        raise KeyMaterialError(
            f"{names}: the key is also the footer key; shred the whole file, or re-key it with "
            "column keys first"
        )


def _wrapped_dek_of(metadata: bytes) -> str | None:
    material = try_decode_metadata(metadata)
    return material.wrapped_dek if isinstance(material, KeyMaterial) else None


def remove_chosen_entries(
    store: dict[str, str], wanted: Criteria, chosen: Chosen
) -> dict[str, str]:
    """Return the entries of external key material that remain after shredding.

    Raise KeyMaterialError if the key material is damaged, or a selected key also encrypts another
    column.
    """
    if wanted.everything:
        return {}
    if wanted.columns:
        return _remove_references(store, chosen.references)
    return {n: text for n, text in store.items() if not wanted.covers(decode_material(text))}


def _remove_references(store: dict[str, str], references: list[KeyReference]) -> dict[str, str]:
    left = store
    for write in {reference.write for reference in references}:
        left = settle_keys(left, write)
    names = {reference.name for reference in references if _belongs_to_file(left, reference)}
    if not names:
        return store
    selected = {decode_material(left[name]).wrapped_dek for name in names}
    rest = {name: text for name, text in left.items() if name not in names}
    for name, text in rest.items():
        if decode_material(text).wrapped_dek in selected:
            raise KeyMaterialError(f"the key also belongs to {name!r}; name all columns under it")
    return rest


def _belongs_to_file(store: dict[str, str], reference: KeyReference) -> bool:
    """Return whether a key belongs to this file, not to another file or version of the file."""
    if (text := store.get(reference.name)) is None:
        return False
    return write_of(decode_material(text).others) in (None, reference.write)
