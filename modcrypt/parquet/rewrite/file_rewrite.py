"""One file on its way from encrypted to encrypted: which columns, under which keys, how masked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from modcrypt.errors import KeyNotFoundError
from modcrypt.io.buffers import Output
from modcrypt.io.storage import Place, Source
from modcrypt.keys import Key
from modcrypt.parquet.convert.encryptor import Encryption, assign
from modcrypt.parquet.convert.encryptor import Plan as EncryptionPlan
from modcrypt.parquet.crypto.column_projection import drop_foreign_pairs, mask_columns
from modcrypt.parquet.crypto.file_plan import OpenFile, Plan
from modcrypt.parquet.crypto.footer_keys import check_border
from modcrypt.parquet.crypto.plaintext_footer import plain_metadata, selected_row_groups
from modcrypt.parquet.crypto.properties import FILE_UNIQUE_SIZE, FileEncryptionProperties
from modcrypt.parquet.crypto.properties import Encryption as EncryptionLike
from modcrypt.parquet.format.idl import ThriftStruct, copy, without_unknown
from modcrypt.parquet.format.mask_note import MaskNote, hash_key_check, put_note, read_note
from modcrypt.parquet.format.modules import Part, Span, chunk_spans
from modcrypt.parquet.format.schema import Leaf, leaf_elements, leaves_of
from modcrypt.parquet.rewrite.reencryption import Appended, MaskChunk, SealedFeed
from modcrypt.pkmt1.material import KeyReference, decode_metadata

if TYPE_CHECKING:  # PyArrow is loaded for masks alone
    from modcrypt.parquet.rewrite.masking import Mask

__all__ = ["Change", "Choice", "Rewriting", "Rewritten", "as_it_was"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """What became of a file's columns, by their dotted names.

    Attributes:
        resealed: opened and sealed again, or sealed for the first time.
        kept: their pages are the same bytes as before, and were not opened.
        plaintext: in plaintext in the new file.
        nulls: set to null.
        hashed: their values are hashed.
        dropped: not there any more.
        under_footer_key: of those there, what had a key of its own and has none any more: who has
            the new footer key reads it.
    """

    resealed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    plaintext: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    under_footer_key: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What else becomes of a file, but for its keys."""

    only: Sequence[str] | None = None
    null: Sequence[str] = ()
    hashed: Sequence[str] = ()
    drop: Sequence[str] = ()
    hash_key: Key | None = None
    keep_unchanged: bool = False
    keep_levels: bool = False
    keep_unknown_fields: bool = False


class Choice:
    """Which columns are opened, masked, null or left out.

    Attributes:
        plan: of what is there: opened columns, and null ones.
        masks: old ordinals of columns that are decoded, to what becomes of their values.
        nulls: old ordinals of all that are null by the caller's wish.
        note: what the new file is to say of its masked columns; None for what the old one says.

    Raises:
        ValueError: columns that the file doesn't have, that are meant twice, or hashed already.
        ModcryptError: as `OpenFile.select`.
    """

    def __init__(self, file: OpenFile, change: Change) -> None:
        leaves = file.leaves
        everything = range(len(leaves))
        _check_clear(leaves, {*(change.only or ()), *change.drop, *change.null, *change.hashed})
        shown = set(everything if change.only is None else leaves_of(leaves, change.only))
        drop, null = leaves_of(leaves, change.drop), leaves_of(leaves, change.null)
        hashed = leaves_of(leaves, change.hashed)
        _check_once(leaves, drop, null, hashed)
        shown -= set(drop)
        if not shown:
            raise ValueError("all columns are dropped")
        self.nulls = set(null)
        whole = self._whole_fields(leaves, shown)
        plan = file.select(shown - whole)
        opened = (cipher and cipher.key for cipher in plan.ciphers.values())
        given = file.properties.footer_key, *file.properties.column_keys.values()
        _check_hash_key(change.hash_key, file.footer.footer_key, *opened, *given)
        self.plan = replace(plan, nulls=sorted({*plan.nulls, *whole}))
        there = {c for c, kept in enumerate(plan.keep) if kept}  # not those without a key
        self.masks = self._masks(there.intersection(hashed), there & self.nulls, change.hash_key)
        masks = bool(change.null or change.hashed or change.drop)
        self.note = self._noted(file, change.hash_key) if masks else None

    def _whole_fields(self, leaves: list[tuple[str, ...]], shown: set[int]) -> set[int]:
        """Give those nulls with which all that is shown of their top-level field is null."""
        others = {leaves[c][0] for c in shown - self.nulls}
        return {c for c in self.nulls if leaves[c][0] not in others}

    @staticmethod
    def _masks(hashed: Iterable[int], null: Iterable[int], key: Key | None) -> dict[int, Mask]:
        if not (hashed or null):
            return {}
        from modcrypt.parquet.rewrite.masking import NULLS, hashes

        found = dict.fromkeys(null, NULLS)
        return found if key is None else found | dict.fromkeys(hashed, hashes(key))

    def _noted(self, file: OpenFile, key: Key | None) -> MaskNote:
        check = "" if key is None else hash_key_check(key)
        hashed = frozenset((file.leaves[c], check) for c in self.masks.keys() - self.nulls)
        before = read_note(file.metadata)
        if twice := sorted(".".join(path) for path, _ in hashed & before.hashed):
            raise ValueError(
                "hashed with this key already, as the file says of itself, so hashes would be "
                f"hashed again: {', '.join(twice)}"
            )
        after = before.merged(MaskNote(frozenset(file.leaves[c] for c in self.nulls), hashed))
        return after.of({file.leaves[c] for c in self.plan.shown})


def _check_hash_key(hash_key: Key | None, *keys: object) -> None:
    """Raise ValueError if the key of hashes is one of a file's, old or new.

    Those who may read a file could try values out, and hashes would be made of what encrypts.
    """
    if hash_key is not None and hash_key in keys:
        raise ValueError(
            "hash_key is also a key of the file; use one that serves hashes alone, for example "
            "Key.generate(32)"
        )


def _check_clear(leaves: list[tuple[str, ...]], names: set[str]) -> None:
    """Refuse names by which more would be shared, or lost, than was meant."""
    meant: dict[str, set[tuple[str, ...]]] = {name: set() for name in names}
    for path in leaves:
        for length in range(1, len(path) + 1):
            if (name := ".".join(path[:length])) in meant:
                meant[name].add(path[:length])
    if unclear := sorted(name for name, found in meant.items() if len(found) > 1):
        raise ValueError(
            f"names that mean several columns, because some have dots: {', '.join(unclear)}"
        )


def _check_once(leaves: list[tuple[str, ...]], *lists: list[int]) -> None:
    named = Counter(c for columns in lists for c in columns)
    if twice := sorted(".".join(leaves[c]) for c, count in named.items() if count > 1):
        raise ValueError(f"columns with more than one fate: {', '.join(twice)}")


class Rewriting:
    """One file on its way from encrypted to encrypted."""

    def __init__(
        self,
        file: OpenFile,
        choice: Choice,
        encryption: EncryptionLike,
        change: Change,
        place: Place | None,
        *,
        overwrite: bool = True,
    ) -> None:
        self.old = choice.plan
        row_groups = selected_row_groups(self.old)
        metadata, nulls = plain_metadata(
            self.old, row_groups, file.source.size, remove_added=False, keep_unknown_fields=True
        )
        if change.only is not None:
            drop_foreign_pairs(metadata)
        left_out = change.only is not None or not all(self.old.keep)
        partial = left_out or bool(choice.masks)
        if partial and not change.keep_unknown_fields:
            metadata = without_unknown(metadata)
        shown = self.old.shown  # new column ordinals to old ones
        self.new_ordinal = {old: new for new, old in enumerate(shown)}
        masks = {self.new_ordinal[c]: mask for c, mask in choice.masks.items()}
        spans = self._spans(metadata, Appended(file.source, nulls))
        _prepare(metadata, masks, {self.new_ordinal[c] for c in choice.nulls if c in shown})
        if choice.note is not None:
            put_note(metadata, choice.note)
        spans = [span for span in spans if span.column not in masks or span.part is Part.PAGES]
        properties, columns = assign(metadata, encryption, place=place, overwrite=overwrite)
        leaves = leaf_elements(metadata.schema)
        self.plan = EncryptionPlan(
            metadata, [leaf.path for leaf in leaves], columns, spans, properties, partial
        )
        _check_hash_key(change.hash_key, properties.footer_key, *properties.column_keys.values())
        self._file, self._nulls = file, nulls
        self._masks = {
            c: _masking(file, shown[c], mask, leaves[c], metadata.schema)
            for c, mask in masks.items()
        }
        self._keep_levels, self._keep_unknown = change.keep_levels, change.keep_unknown_fields
        self._kept = self._kept_columns(choice) if change.keep_unchanged else set[int]()
        self.result = self._told(choice)

    def write(self, out: Output) -> None:
        """Append the new file."""
        unique = self._file.footer.file_unique if self._kept else None
        encryption = Encryption(
            out, self.plan.properties, unique, keep_unknown_fields=self._keep_unknown
        )
        ciphers = {(r, self.new_ordinal[c]): cipher for (r, c), cipher in self.old.ciphers.items()}
        feed = SealedFeed(
            self._file.source, self.plan.metadata, ciphers, self._masks, self._kept, self._nulls,
            keep_levels=self._keep_levels,
        )  # fmt: skip
        encryption.add(feed, self.plan)
        if self._file.footer.encrypted:
            # What the old file's note names was added to it; other writers left out nothing more.
            encryption.absent = encryption.absent & {"ordinal"} | self._file.footer.absent
        encryption.close(self.plan.metadata)

    def _spans(self, metadata: ThriftStruct, source: Source) -> list[Span]:
        """List the new file's spans in the old file, and those of null columns behind its end."""
        new = self.new_ordinal
        spans = [replace(span, column=new[span.column]) for span in self.old.spans]
        nulls = {
            (r, new[c]): row_group.columns[new[c]]
            for r, row_group in enumerate(metadata.row_groups)
            for c in self.old.nulls
        }
        return spans + chunk_spans(nulls, source.size, source)

    def _kept_columns(self, choice: Choice) -> set[int]:
        """Name the columns, by new ordinals, that stay under the same key, AAD and mode."""
        footer, properties = self._file.footer, self.plan.properties
        same = (
            footer.encrypted
            and footer.cipher.algorithm == properties.encryption_algorithm
            and footer.aad_prefix == properties.aad_prefix
            and len(footer.file_unique) == FILE_UNIQUE_SIZE  # else its border may have been moved
        )
        if not same:
            return set()
        kept = set()
        for old, new in self.new_ordinal.items():
            rule = self.plan.columns[new]
            ciphers = [self.old.ciphers.get((r, old)) for r in self.old.row_groups]
            keys = {None if cipher is None else cipher.key for cipher in ciphers}
            if old == new and rule is not None and keys == {rule.key} and new not in self._masks:
                kept.add(new)
        return kept

    def _told(self, choice: Choice) -> Rewritten:
        found: dict[str, list[str]] = {}
        for c, path in enumerate(self._file.leaves):
            new = self.new_ordinal.get(c)
            if new is None:
                what = "dropped"
            elif c in self.old.nulls or c in choice.nulls:
                what = "nulls"
            elif new in self._masks:
                what = "hashed"
            elif self.plan.columns[new] is None:
                what = "plaintext"
            else:
                what = "kept" if new in self._kept else "resealed"
            found.setdefault(what, []).append(".".join(path))
        found["under_footer_key"] = [
            ".".join(self._file.leaves[c])
            for c, new in self.new_ordinal.items()
            if self._file.has_own_key(c) and self._is_under_footer_key(new)
        ]
        return Rewritten(**{what: tuple(names) for what, names in found.items()})

    def _is_under_footer_key(self, column: int) -> bool:
        rule = self.plan.columns[column]
        return rule is not None and not rule.own


def _masking(
    file: OpenFile, column: int, mask: Mask, leaf: Leaf, schema: list[ThriftStruct]
) -> MaskChunk:
    from modcrypt.parquet.rewrite.masking import mask_chunk

    if mask.gives_nulls and schema[leaf.element].repetition_type == _REPEATED:
        mask = mask._replace(empties_lists=True)  # what is itself repeated holds no nulls
    return partial(mask_chunk, file, column, mask, leaf)


def _prepare(metadata: ThriftStruct, masks: Mapping[int, Mask], nulls: set[int]) -> None:
    """Change schema and chunks for columns that are masked, as far as is known beforehand."""
    metadata.schema = list(metadata.schema)  # the old file's is still needed
    if masks or nulls:
        mask_columns(metadata, [c for c, mask in masks.items() if not mask.gives_nulls], nulls)
    leaves = leaf_elements(metadata.schema)
    for c, mask in masks.items():
        if mask.gives_nulls:
            _make_optional(metadata, leaves[c])
    for row_group in metadata.row_groups:
        sorting = [s.column_idx in masks for s in row_group.sorting_columns or ()]
        if True in sorting:  # rows stay sorted by what comes before it
            kept = row_group.sorting_columns[: sorting.index(True)]
            row_group.sorting_columns = kept or None
        for c in masks:
            chunk = row_group.columns[c]
            chunk.column_index_offset = chunk.column_index_length = None
            chunk.offset_index_offset = chunk.offset_index_length = None
            md = chunk.meta_data
            md.type = metadata.schema[leaves[c].element].type
            md.bloom_filter_offset = md.bloom_filter_length = md.statistics = None
            md.size_statistics = md.geospatial_statistics = md.key_value_metadata = None


_REQUIRED, _OPTIONAL, _REPEATED = range(3)  # FieldRepetitionType


def _make_optional(metadata: ThriftStruct, leaf: Leaf) -> None:
    """Let a leaf be null.

    Raises:
        ValueError: it is the key of a map.
    """
    if leaf.in_map is not None:
        at = leaf.elements.index(leaf.in_map)
        pairs, part = leaf.elements[at + 1 : at + 3]
        if part == pairs + 1:  # the first of the pairs' children
            raise ValueError(f"{'.'.join(leaf.path)}: the keys of a map can't be null")
    if metadata.schema[leaf.element].repetition_type != _REQUIRED:
        return
    element = metadata.schema[leaf.element] = copy(metadata.schema[leaf.element])
    element.repetition_type = _OPTIONAL


def as_it_was(file: OpenFile, plan: Plan, place: Place | None) -> FileEncryptionProperties:
    """Give the properties that a file was written with, for the columns of a plan.

    Columns that are all null come under the footer key: their own need not be there.
    """
    shown = plan.shown
    footer = file.footer
    if not footer.encrypted:
        raise ValueError("the file is in plaintext: give encryption")
    if footer.footer_key is None:
        raise KeyNotFoundError("the footer must be sealed or signed anew, and there is no key")
    check_border(footer, file.properties)
    _check_reference(footer.key_metadata, file.source, place)
    columns = file.own_keys(c for c in shown if plan.keep[c])
    metadata = {name: own.metadata for name, own in columns.items()}
    return FileEncryptionProperties(
        footer_key=footer.footer_key,
        column_keys={name: own.key for name, own in columns.items()},
        plaintext_columns=file.plaintext_columns(shown),
        footer_key_metadata=footer.key_metadata,
        column_key_metadata={name: data for name, data in metadata.items() if data is not None},
        aad_prefix=footer.aad_prefix,
        store_aad_prefix=bool(footer.algorithm.aad_prefix),
        plaintext_footer=footer.plaintext_footer,
        encryption_algorithm=footer.cipher.algorithm,
    )


def _check_reference(metadata: bytes | None, source: Source, place: Place | None) -> None:
    """Refuse to copy references to what lies beside the old file, by its name."""
    try:
        external = isinstance(decode_metadata(metadata or b""), KeyReference)
    except ValueError:  # of another kind
        return
    if external and (place is None or source.place is None or place.real() != source.place.real()):
        raise ValueError(
            "the keys of the file are kept beside it, under its name: give encryption for the new "
            "one"
        )
