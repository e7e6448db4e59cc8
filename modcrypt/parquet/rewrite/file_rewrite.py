"""Rewrite one encrypted file: choose its columns, keys and masks, and write the new file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from modcrypt.errors import KeyNotFoundError, UnsupportedFormatError
from modcrypt.io.buffers import Output
from modcrypt.io.places import Place
from modcrypt.io.sources import ExtendedSource, Source
from modcrypt.keys import Key
from modcrypt.parquet.convert.decryptor import keep_footer
from modcrypt.parquet.convert.encrypted_feed import EncryptedFeed, MaskChunk
from modcrypt.parquet.convert.encryption_plan import EncryptionPlan, assign_file_keys
from modcrypt.parquet.convert.encryptor import Encryption
from modcrypt.parquet.convert.plaintext_footer import plain_metadata
from modcrypt.parquet.convert.restoration import read_kept
from modcrypt.parquet.crypto.column_projection import drop_foreign_pairs, mask_columns
from modcrypt.parquet.crypto.crypto_fields import check_border
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.crypto.properties import FILE_UNIQUE_SIZE, FileEncryptionProperties
from modcrypt.parquet.crypto.properties import Encryption as EncryptionLike
from modcrypt.parquet.format.idl import ThriftStruct, without_unknown
from modcrypt.parquet.format.kept_place import is_place
from modcrypt.parquet.format.mask_note import MaskNote, hash_key_check, put_note, read_note
from modcrypt.parquet.format.modules import Part, Span, chunk_spans, drop_part
from modcrypt.parquet.format.schema import (
    Leaf,
    ambiguous_names,
    is_repeated,
    leaf_elements,
    leaves_of,
    make_optional,
)
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.pkmt1.material import KeyReference, decode_metadata

if TYPE_CHECKING:  # PyArrow is loaded for masks alone
    from modcrypt.parquet.rewrite.masking import Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The result of rewriting a file: its columns by what was done to them, as dotted names.

    Attributes:
        resealed: Columns that were re-encrypted, or encrypted for the first time.
        kept: Columns whose pages are the same bytes as before, and were not decrypted.
        plaintext: Columns that are plaintext in the new file.
        nulls: Columns that are set to null.
        hashed: Columns whose values are hashed.
        masked: Columns whose values are masked by read restrictions.
        dropped: Columns that the new file does not have.
        under_footer_key: Columns of the new file that had a key of their own and now have none:
            anyone who has the new footer key can read them.
        lost_signatures: Ids of the keys that signed the old file, if nobody signed the new one.
    """

    resealed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    plaintext: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    under_footer_key: tuple[str, ...] = ()
    lost_signatures: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return the result as values for JSON."""
        return asdict(self)


class Choice:
    """The columns that are decrypted, masked, null or omitted.

    Ordinals are those of the old file. `plan` has the columns of the new one, decrypted or null;
    `masks` those that are decoded; `nulls` all that the caller sets to null. Without a `note`, the
    new file keeps the old one's. Raise ValueError if the file lacks a column, or one is named twice
    or already hashed.
    """

    def __init__(self, file: OpenFile, change: Change) -> None:
        leaves = file.leaves
        everything = range(len(leaves))
        # An ambiguous name could share or drop more than intended.
        names = {*(change.only or ()), *change.drop, *change.null, *change.hashed}
        if unclear := ambiguous_names(leaves, names):
            raise ValueError(
                f"ambiguous names, because names of columns contain dots: {', '.join(unclear)}"
            )
        shown = set(everything if change.only is None else leaves_of(leaves, change.only))
        drop, null = leaves_of(leaves, change.drop), leaves_of(leaves, change.null)
        hashed = leaves_of(leaves, change.hashed)
        shown -= set(drop)
        actions = find_masked(file.metadata, change.actions)
        self.actions = {c: action for c, action in actions.items() if c in shown - set(null)}
        null += [c for c, action in self.actions.items() if action == NULL_ACTION]
        for c in null:
            self.actions.pop(c, None)
        named = Counter([*drop, *null, *hashed, *self.actions])
        if twice := sorted(".".join(leaves[c]) for c, count in named.items() if count > 1):
            raise ValueError(
                f"columns are named more than once in drop, null and hashed: {', '.join(twice)}"
            )
        if leaves and not shown:
            raise ValueError("all columns are dropped; keep at least one")
        self.nulls = set(null)
        # Null columns whose top-level field is entirely null: no key is needed for them.
        others = {leaves[c][0] for c in shown - self.nulls}
        whole = {c for c in self.nulls if leaves[c][0] not in others}
        plan = file.select(shown - whole)
        opened = (cipher and cipher.key for cipher in plan.ciphers.values())
        given = file.properties.footer_key, *file.properties.column_keys.values()
        _check_hash_key(change.hash_key, file.footer.footer_key, *opened, *given)
        self.plan = plan.replace(nulls=sorted({*plan.nulls, *whole}))
        there = {c for c, keep in enumerate(plan.keep) if keep}  # only columns with a key
        self.masks = self._make_masks(there, hashed, change.hash_key)
        masks = bool(null or change.hashed or change.drop or self.actions)
        self.note = self._make_note(file, change.hash_key) if masks else None

    def _make_masks(
        self, there: set[int], hashed: Iterable[int], key: Key | None
    ) -> dict[int, Mask]:
        if not there.intersection([*hashed, *self.nulls, *self.actions]):
            return {}
        from modcrypt.parquet.rewrite.masking import NULLS, make_action_mask, make_hash_mask

        masks = dict.fromkeys(there & self.nulls, NULLS)
        if key is not None:
            masks |= dict.fromkeys(there.intersection(hashed), make_hash_mask(key))
        actions = {c: action for c, action in self.actions.items() if c in there}
        return masks | {c: make_action_mask(action) for c, action in actions.items()}

    def _make_note(self, file: OpenFile, key: Key | None) -> MaskNote:
        check = "" if key is None else hash_key_check(key)
        others = self.nulls | self.actions.keys()
        hashed = frozenset((file.leaves[c], check) for c in self.masks.keys() - others)
        masked = frozenset((file.leaves[c], action) for c, action in self.actions.items())
        before = read_note(file.metadata)
        if twice := sorted(".".join(path) for path, _ in hashed & before.hashed):
            raise ValueError(
                "the file's note says that columns are already hashed with this key; remove them "
                f"from hashed: {', '.join(twice)}"
            )
        if twice := sorted(".".join(path) for path, _ in masked if path in dict(before.masked)):
            raise ValueError(
                "the file's note says that read restrictions have masked columns already: "
                f"{', '.join(twice)}"
            )
        nulls = frozenset(file.leaves[c] for c in self.nulls)
        after = before.merge(MaskNote(nulls, hashed, masked))
        return after.restrict_to({file.leaves[c] for c in self.plan.footer_leaves})


NULL_ACTION = "replace-with-null"


def find_masked(metadata: ThriftStruct, actions: Mapping[int, str]) -> dict[int, str]:
    """Return the actions on the columns of a file, by ordinals.

    Raise UnsupportedFormatError if a field is not a single column, or may be one without an id.
    """
    if not actions:
        return {}
    ids = [element.field_id for element in metadata.schema[1:]]
    leaves = leaf_elements(metadata.schema)
    nameless = None in {metadata.schema[leaf.field].field_id for leaf in leaves}
    if nameless and not actions.keys() <= set(ids):
        raise UnsupportedFormatError(
            "read restrictions name columns by field ids, which the file does not have: a masked "
            "column may be among its columns without field ids"
        )
    if any(ids.count(id_) > 1 for id_ in actions):
        raise UnsupportedFormatError("two fields of the file have the same field id")
    of_leaves = {
        metadata.schema[leaf.element].field_id: c
        for c, leaf in enumerate(leaves)
        if len(leaf.path) == 1 and not leaf.max_repetition
    }
    wanted = actions.keys() & set(ids)
    if others := sorted(wanted - of_leaves.keys()):
        raise UnsupportedFormatError(
            "read restrictions mask fields in structs, lists or maps, or all of these, which is "
            f"not supported: {others}"
        )
    return {of_leaves[id_]: actions[id_] for id_ in wanted}


def _check_hash_key(hash_key: Key | None, *keys: object) -> None:
    """Raise ValueError if the key of hashes is a key of the old or new file."""
    # Otherwise, people who may read a file could test guesses of values, and an encryption key
    # would also make hashes.
    if hash_key is not None and hash_key in keys:
        raise ValueError(
            "hash_key is also a key of the file; use one that serves hashes alone, for example "
            "Key.generate(32)"
        )


class Rewriting:
    """The rewriting of one encrypted file, planned before a byte is written.

    The order of the plan matters. Spans are listed first, by the offsets of the old file; only then
    are the chunks of masked columns changed. Keys come after the new schema is known, because a key
    service is asked only for columns that exist. Which columns keep their pages follows from both.
    """

    def __init__(
        self, file: OpenFile, choice: Choice, encryption: EncryptionLike, change: Change,
        place: Place | None, *, overwrite: bool = True,
    ) -> None:  # fmt: skip
        self.old = choice.plan
        metadata, nulls = plain_metadata(
            self.old, None, file.source.size, remove_added=False, keep_unknown_fields=True,
            restore=True,
        )  # fmt: skip
        if change.only is not None:
            drop_foreign_pairs(metadata)
        left_out = change.only is not None or not all(self.old.keep)
        partial = left_out or bool(choice.masks)
        if partial and not change.keep_unknown_fields:
            metadata = without_unknown(metadata)
        shown = self.old.footer_leaves  # new column ordinals to old ones
        self.new_ordinal = {old: new for new, old in enumerate(shown)}
        masks = {self.new_ordinal[c]: mask for c, mask in choice.masks.items()}
        spans = self._list_spans(metadata, ExtendedSource(file.source, nulls))
        _prepare_metadata(
            metadata, masks, {self.new_ordinal[c] for c in choice.nulls if c in shown}
        )
        if choice.note is not None:
            put_note(metadata, choice.note)
        spans = [span for span in spans if span.column not in masks or span.part is Part.PAGES]
        leaves = leaf_elements(metadata.schema)
        paths = [leaf.path for leaf in leaves]
        properties, columns = assign_file_keys(
            metadata, paths, encryption, place=place, overwrite=overwrite
        )
        self.plan = EncryptionPlan(metadata, paths, columns, spans, properties, partial=partial)
        _check_hash_key(change.hash_key, properties.footer_key, *properties.column_keys.values())
        self._file, self._nulls = file, nulls
        self._masks = {
            c: _bind_mask(file, shown[c], mask, leaves[c], metadata.schema)
            for c, mask in masks.items()
        }
        self._keep_levels, self._keep_unknown = change.keep_levels, change.keep_unknown_fields
        self._kept = self._find_kept_columns() if change.keep_unchanged else set[int]()
        self.result = self._describe_result(choice)

    def write(self, out: Output) -> None:
        """Append the new file to the output."""
        unique = self._file.footer.file_unique if self._kept else None
        encryption = Encryption(
            out, self.plan.properties, unique, keep_unknown_fields=self._keep_unknown
        )
        ciphers = {(r, self.new_ordinal[c]): cipher for (r, c), cipher in self.old.ciphers.items()}
        feed = EncryptedFeed(
            self._file.source, self.plan.metadata, ciphers, self._masks, self._kept, self._nulls,
            keep_levels=self._keep_levels, confirm=self._confirm_filter,
        )  # fmt: skip
        addition = encryption.add(feed, self.plan)
        if self._file.footer.encrypted:
            # Keep the absent fields that the old file's note names: they were added to that file.
            added = {name for name in self._file.footer.absent if not is_place(name)}
            encryption.absent = encryption.absent & {"ordinal"} | added
            kept = None if self.plan.partial else read_kept(self._file, self.old)
            if not self.plan.partial and self._loses_fields() and not (kept and kept.footer):
                kept = keep_footer(self._file, self.old, kept)
            # The bytes that are kept fill gaps between parts, so they need all parts.
            if kept is not None and addition.parts.are_whole:
                encryption.keep(kept, self.plan.columns)
        encryption.close(self.plan.metadata)

    def _loses_fields(self) -> bool:
        """Return whether the new footer lacks fields of the old one, which others might read."""
        keeps = self._keep_unknown or self.plan.properties.has_one_key
        return not keeps and without_unknown(self.plan.metadata) is not self.plan.metadata

    def _confirm_filter(self, row_group: int, column: int, data: bytes) -> bool:
        from modcrypt.parquet.rewrite.clear_filters import holds_all_values

        old = self.old.footer_leaves[column]
        return holds_all_values(self._file, self.old.row_groups[row_group], old, data)

    def _list_spans(self, metadata: ThriftStruct, source: Source) -> list[Span]:
        """Return the new file's spans in the old file; those of null columns are after its end."""
        new = self.new_ordinal
        spans = [span._replace(column=new[span.column]) for span in self.old.spans]
        nulls = {
            (r, new[c]): row_group.columns[new[c]]
            for r, row_group in enumerate(metadata.row_groups)
            for c in self.old.nulls
        }
        return spans + chunk_spans(nulls, source.size, source)

    def _find_kept_columns(self) -> set[int]:
        """Return the new ordinals of the columns whose key, AAD and mode do not change."""
        footer, properties = self._file.footer, self.plan.properties
        same = (
            footer.encrypted
            and footer.cipher.algorithm == properties.encryption_algorithm
            and footer.aad_prefix == properties.aad_prefix
            # With another size, its border may have been moved.
            and len(footer.file_unique) == FILE_UNIQUE_SIZE
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

    def _describe_result(self, choice: Choice) -> Rewritten:
        columns: dict[str, list[str]] = {}
        for c, path in enumerate(self._file.leaves):
            if (new := self.new_ordinal.get(c)) is None:
                what = "dropped"
            elif c in self.old.nulls or c in choice.nulls:
                what = "nulls"
            elif c in choice.actions:
                what = "masked"
            elif new in self._masks:
                what = "hashed"
            elif self.plan.columns[new] is None:
                what = "plaintext"
            else:
                what = "kept" if new in self._kept else "resealed"
            columns.setdefault(what, []).append(".".join(path))
        columns["under_footer_key"] = [
            ".".join(self._file.leaves[c])
            for c, new in self.new_ordinal.items()
            if self._file.has_own_key(c)
            and (rule := self.plan.columns[new]) is not None
            and not rule.own
        ]
        signature = self._file.footer.signature
        if signature is not None and self.plan.properties.signing_key is None:
            columns["lost_signatures"] = [signature.key_id.hex()]
        return Rewritten(**{what: tuple(names) for what, names in columns.items()})


def _bind_mask(
    file: OpenFile, column: int, mask: Mask, leaf: Leaf, schema: list[ThriftStruct]
) -> MaskChunk:
    from modcrypt.parquet.rewrite.masking import mask_chunk

    if mask.gives_nulls and is_repeated(schema[leaf.element]):
        mask = mask._replace(empties_lists=True)  # A repeated leaf cannot hold nulls.
    return partial(mask_chunk, file, column, mask, leaf)


def _prepare_metadata(metadata: ThriftStruct, masks: Mapping[int, Mask], nulls: set[int]) -> None:
    """Change the schema and chunks of masked columns, as far as the result is known beforehand."""
    metadata.schema = list(metadata.schema)  # The old file's schema is still needed.
    if masks or nulls:
        texts = [c for c, mask in masks.items() if not (mask.gives_nulls or mask.keeps_type)]
        mask_columns(metadata, texts, {*nulls, *masks} - set(texts))
    leaves = leaf_elements(metadata.schema)
    for c, mask in masks.items():
        if mask.gives_nulls:
            _make_optional(metadata, leaves[c])
    for row_group in metadata.row_groups:
        sorting = [s.column_idx in masks for s in row_group.sorting_columns or ()]
        if True in sorting:  # Rows stay sorted by the columns before it.
            remaining = row_group.sorting_columns[: sorting.index(True)]
            row_group.sorting_columns = remaining or None
        for c in masks:
            chunk = row_group.columns[c]
            for part in (Part.COLUMN_INDEX, Part.OFFSET_INDEX, Part.BLOOM_FILTER):
                drop_part(chunk, part)
            md = chunk.meta_data
            md.type = metadata.schema[leaves[c].element].type
            md.statistics = md.size_statistics = md.geospatial_statistics = None
            md.key_value_metadata = None


def _make_optional(metadata: ThriftStruct, leaf: Leaf) -> None:
    """Make a leaf optional; raise ValueError if it is the key of a map."""
    if leaf.in_map is not None:
        at = leaf.elements.index(leaf.in_map)
        pairs, part = leaf.elements[at + 1 : at + 3]
        if part == pairs + 1:  # The key is the first child of the pair.
            raise ValueError(f"{'.'.join(leaf.path)}: the keys of a map cannot be null")
    make_optional(metadata.schema, leaf.element)


def restore_properties(
    file: OpenFile, plan: ReadPlan, place: Place | None
) -> FileEncryptionProperties:
    """Return the properties with which a file was written, for the columns of a plan.

    Columns that are entirely null come under the footer key, because their own key may be missing.
    """
    shown = plan.footer_leaves
    footer = file.footer
    if not footer.encrypted:
        raise ValueError("the file is plaintext; pass encryption")
    if footer.footer_key is None:
        raise KeyNotFoundError(
            "the footer must be encrypted or signed again, but its key is missing"
        )
    check_border(footer.file_unique, file.properties)
    _check_reference(footer.key_metadata, file.source, place)
    columns = file.own_keys(c for c in shown if plan.keep[c])
    metadata = {name: own.metadata for name, own in columns.items()}
    return FileEncryptionProperties(
        footer_key=footer.footer_key, column_keys={name: own.key for name, own in columns.items()},
        plaintext_columns=file.plaintext_columns(shown), footer_key_metadata=footer.key_metadata,
        column_key_metadata={name: data for name, data in metadata.items() if data is not None},
        aad_prefix=footer.aad_prefix, store_aad_prefix=bool(footer.algorithm.aad_prefix),
        plaintext_footer=footer.plaintext_footer, encryption_algorithm=footer.cipher.algorithm,
    )  # fmt: skip


def _check_reference(metadata: bytes | None, source: Source, place: Place | None) -> None:
    """Raise ValueError if key metadata refers to key material stored beside the old file."""
    try:
        external = isinstance(decode_metadata(metadata or b""), KeyReference)
    except ValueError:  # This is another kind of key metadata.
        return
    if external and (
        place is None or source.place is None or place.resolve() != source.place.resolve()
    ):
        raise ValueError(
            "the key material of the file is stored beside it, under its name; pass encryption for "
            "the new file"
        )
