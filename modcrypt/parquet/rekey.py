"""Encrypted files made anew from encrypted files: under other keys, without columns, masked.

One pass: every module is opened and sealed again as it stands, pages never decoded; only masked
columns are. What a page's plaintext is stays in one buffer between the two.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from modcrypt.aad import ModuleType
from modcrypt.aead import GCM_OVERHEAD
from modcrypt.buffers import Output, Window, check_threads, open_output
from modcrypt.errors import KeyNotFoundError
from modcrypt.keys import Key, KeyLike, as_key
from modcrypt.kms.material import KeyReference, decode_metadata
from modcrypt.parquet.bloom import open_bloom_filter
from modcrypt.parquet.ciphers import ChunkCipher
from modcrypt.parquet.decryptor import open_pages
from modcrypt.parquet.encryptor import (
    Encryption,
    PageRules,
    PlainFeed,
    assign,
    clear_levels,
    seal_body,
)
from modcrypt.parquet.encryptor import Plan as EncryptionPlan
from modcrypt.parquet.footer_keys import check_border
from modcrypt.parquet.idl import ThriftStruct, copy, struct_end
from modcrypt.parquet.modules import Part, Span, file_spans
from modcrypt.parquet.page_header import DATA_PAGE_V2, UNCOMPRESSED, splice
from modcrypt.parquet.pages import Page, check_crc, open_body, open_header
from modcrypt.parquet.plain_footer import plain_metadata, selected_row_groups
from modcrypt.parquet.plan import OpenFile
from modcrypt.parquet.projection import drop_foreign_pairs, make_strings
from modcrypt.parquet.properties import Encryption as EncryptionLike
from modcrypt.parquet.properties import (
    FileDecryptionProperties,
    FileEncryptionProperties,
    check_decryption,
    check_encryption,
)
from modcrypt.parquet.relocation import ChunkMove
from modcrypt.parquet.schema import Leaf, leaf_elements, leaves_of
from modcrypt.storage import (
    Destination,
    MemorySource,
    Place,
    Source,
    SourceLike,
    open_source,
    place_of,
)

if TYPE_CHECKING:  # PyArrow is loaded for masks alone
    from modcrypt.parquet.masking import Mask

__all__ = ["Rewritten", "mask_parquet", "rekey_in_place", "rekey_parquet", "share_parquet"]


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
    """

    resealed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    plaintext: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)


def rekey_parquet(
    source: SourceLike,
    destination: Destination,
    decryption: FileDecryptionProperties,
    encryption: EncryptionLike,
    *,
    keep_unchanged: bool = False,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Rewritten:
    """Write an encrypted file anew: other keys, algorithm, footer mode, AAD prefix, key metadata.

    Every module is opened, so authenticated, and sealed again; no page is decoded. Columns without
    a key are an error, left out or null, as `decryption.on_missing_key` says.

    Args:
        source: path, fsspec URL, bytes or seekable binary file object.
        destination: as of `encrypt_parquet`; may be the source's own path.
        decryption: opens the file. A plaintext footer's signature is verified in any case.
        encryption: of the new file.
        keep_unchanged: copy the pages of columns whose key stays, unopened, where algorithm and
            AAD prefix stay too. The new file then has the `aad_file_unique` of the old one, so who
            can alter files can put modules that the same keys seal from one into the other.
        filesystem: of pyarrow or fsspec, in which both are paths.
        overwrite: replace an existing destination; otherwise it is a FileExistsError.
        threads, progress: as of `encrypt_parquet`.

    Raises:
        ModcryptError: as `decrypt_parquet` and `encrypt_parquet`.
        ValueError, TypeError, OSError: as `encrypt_parquet`.
    """
    return _rewrite(
        source, destination, decryption, encryption, _Change(keep_unchanged=keep_unchanged),
        filesystem, overwrite, threads, progress,
    )  # fmt: skip


def mask_parquet(
    source: SourceLike,
    destination: Destination,
    decryption: FileDecryptionProperties,
    encryption: EncryptionLike | None = None,
    *,
    null: Sequence[str] = (),
    hashed: Sequence[str] = (),
    drop: Sequence[str] = (),
    hash_key: KeyLike | None = None,
    keep_unchanged: bool = False,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Rewritten:
    """Write a file anew with some columns set to null, hashed or left out, and the rest as it is.

    Statistics, indexes and bloom filters of masked columns go too. No key is needed for columns
    that are left out, or that are null with all of their top-level field.

    Args:
        source, destination: as of `rekey_parquet`.
        decryption: opens the file; with `require_encrypted=False` also a plaintext one, so that
            it is masked and encrypted in one pass.
        encryption: of the new file; None leaves keys, key metadata, modes and AAD prefix as they
            are.
        null: columns, or groups, whose values become null.
        hashed: columns, or groups, whose values become text: HMAC-SHA-256 under `hash_key`, in
            hex, of the value as text (of binary values their bytes). Equal values have equal
            hashes, in all files with the same key, and nulls stay null.
        drop: columns, or groups, that are left out.
        hash_key: 16, 24 or 32 bytes. Who has it can try values out.
        keep_unchanged, filesystem, overwrite, threads, progress: as of `rekey_parquet`.

    Raises:
        ValueError: columns that the file doesn't have, or named twice, or no key for hashes; all
            columns dropped.
        UnsupportedFormatError: a column to be masked is of a kind that PyArrow can't decode so.
        ModcryptError, TypeError, OSError: as `rekey_parquet`.
    """
    if hashed and hash_key is None:
        raise ValueError("hashed columns need a hash_key")
    if not (null or hashed or drop):
        raise ValueError("name columns in null, hashed or drop")
    key = None if hash_key is None else as_key(hash_key)
    change = _Change(
        null=null, hashed=hashed, drop=drop, hash_key=key, keep_unchanged=keep_unchanged
    )
    return _rewrite(
        source, destination, decryption, encryption, change, filesystem, overwrite, threads,
        progress,
    )  # fmt: skip


def share_parquet(
    source: SourceLike,
    destination: Destination,
    decryption: FileDecryptionProperties,
    encryption: EncryptionLike,
    columns: Sequence[str],
    *,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Rewritten:
    """Write a copy for somebody else: some columns under keys of their own, and nothing else.

    Other columns are not in the copy, nor in its schema; nor are key-value pairs of the footer,
    but for the Arrow schema, pandas' and GeoParquet's of the columns there. Keys of other columns
    are not needed. The copy has a fresh `aad_file_unique`, so it says nothing of its origin.

    Args:
        source, destination, decryption, encryption: as of `rekey_parquet`. Names in `encryption`
            are those of columns that are there.
        columns: names of columns, or groups.
        filesystem, overwrite, threads, progress: as of `rekey_parquet`.

    Raises:
        ValueError: no columns, or columns that the file doesn't have.
        ModcryptError, TypeError, OSError: as `rekey_parquet`.
    """
    if not columns:
        raise ValueError("name the columns that are to be shared")
    return _rewrite(
        source, destination, decryption, encryption, _Change(only=columns), filesystem, overwrite,
        threads, progress,
    )  # fmt: skip


def rekey_in_place(
    source: Source,
    place: Place,
    decryption: FileDecryptionProperties,
    encryption: EncryptionLike,
) -> None:
    """Write an encrypted file anew where it is; data pages V2 keep their layout.

    Raises:
        OSError: from the file system, or the file there is no longer the source.
        ModcryptError, ValueError: as `rekey_parquet`.
    """
    # Whatever the caller puts up with when reading: here it would stay so for good.
    file = OpenFile(source, replace(_strict(decryption), on_missing_key="error"))
    change = _Change(keep_levels=True)
    rewriting = _Rewriting(file, _Choice(file, change), encryption, change, place)
    with (
        rewriting.plan.properties.companion() as sealed,
        place.create(check=lambda: place.check_still(source)) as sink,
    ):
        out = Output(sink, background=False)
        rewriting.write(out)
        out.close(complete=True)
        if sealed is not None:
            sealed()


@dataclass(frozen=True, kw_only=True)
class _Change:
    """What else becomes of a file, but for its keys."""

    only: Sequence[str] | None = None
    null: Sequence[str] = ()
    hashed: Sequence[str] = ()
    drop: Sequence[str] = ()
    hash_key: Key | None = None
    keep_unchanged: bool = False
    keep_levels: bool = False


def _strict(properties: FileDecryptionProperties) -> FileDecryptionProperties:
    """Insist on a verified footer: an altered one must not be sealed or signed anew."""
    check_decryption(properties)
    return replace(properties, check_footer_integrity=True)


def _rewrite(
    source: SourceLike,
    destination: Destination,
    decryption: FileDecryptionProperties,
    encryption: EncryptionLike | None,
    change: _Change,
    filesystem: Any,
    overwrite: bool,
    threads: int | None,
    progress: Callable[[int], None] | None,
) -> Rewritten:
    check_threads(threads)
    strict = _strict(decryption)
    if encryption is not None:
        check_encryption(encryption)
    with open_source(source, filesystem=filesystem) as opened:
        place = place_of(destination, filesystem)
        file = OpenFile(opened, strict)
        choice = _Choice(file, change)
        if encryption is None:
            encryption = _as_it_was(file, choice.plan.shown, place)
            change = replace(change, keep_levels=True)
        rewriting = _Rewriting(file, choice, encryption, change, place, overwrite=overwrite)
        with (
            rewriting.plan.properties.companion() as sealed,
            open_output(
                destination, opened, overwrite=overwrite, threads=threads, filesystem=filesystem
            ) as out,
        ):
            out.progress = progress
            rewriting.write(out)
            if sealed is not None:
                sealed()
    return rewriting.result


def _as_it_was(
    file: OpenFile, shown: Sequence[int], place: Place | None
) -> FileEncryptionProperties:
    """Give the properties that a file was written with, for the columns that are shown."""
    footer = file.footer
    if not footer.encrypted:
        raise ValueError("the file is in plaintext: give encryption")
    if footer.footer_key is None:
        raise KeyNotFoundError("the footer must be sealed or signed anew, and there is no key")
    check_border(footer, file.properties)
    _check_reference(footer.key_metadata, file.source, place)
    columns = file.own_keys(shown)
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


# --- the work ------------------------------------------------------------------------------------


class _Rewriting:
    """One file on its way from encrypted to encrypted."""

    def __init__(
        self,
        file: OpenFile,
        choice: _Choice,
        encryption: EncryptionLike,
        change: _Change,
        place: Place | None,
        *,
        overwrite: bool = True,
    ) -> None:
        self.old = choice.plan
        row_groups = selected_row_groups(self.old)
        metadata, nulls = plain_metadata(self.old, row_groups, file.source.size)
        if change.only is not None:
            drop_foreign_pairs(metadata)
        shown = self.old.shown  # new column ordinals to old ones
        self.new_ordinal = {old: new for new, old in enumerate(shown)}
        masks = {self.new_ordinal[c]: mask for c, mask in choice.masks.items()}
        end = file.source.size + len(nulls)
        spans = file_spans(metadata, end, _Appended(file.source, nulls))
        _prepare(metadata, masks)
        spans = [span for span in spans if span.column not in masks or span.part is Part.PAGES]
        properties, columns = assign(metadata, encryption, place=place, overwrite=overwrite)
        leaves = leaf_elements(metadata.schema)
        self.plan = EncryptionPlan(
            metadata, [leaf.path for leaf in leaves], columns, spans, properties
        )
        self._file, self._nulls = file, nulls
        self._masks = {c: _Masking(file, shown[c], mask, leaves[c]) for c, mask in masks.items()}
        self._keep_levels = change.keep_levels
        self._kept = self._kept_columns(choice) if change.keep_unchanged else set[int]()
        self.result = self._told(choice)

    def write(self, out: Output) -> None:
        """Append the new file."""
        unique = self._file.footer.file_unique if self._kept else None
        encryption = Encryption(out, self.plan.properties, unique)
        ciphers = {(r, self.new_ordinal[c]): cipher for (r, c), cipher in self.old.ciphers.items()}
        feed = _Feed(
            self._file.source, self.plan.metadata, ciphers, self._masks, self._kept, self._nulls,
            keep_levels=self._keep_levels,
        )  # fmt: skip
        encryption.add(feed, self.plan)
        encryption.close(self.plan.metadata)

    def _kept_columns(self, choice: _Choice) -> set[int]:
        """Name the columns, by new ordinals, that stay under the same key, AAD and mode."""
        footer, properties = self._file.footer, self.plan.properties
        same = (
            footer.encrypted
            and footer.cipher.algorithm == properties.encryption_algorithm
            and footer.aad_prefix == properties.aad_prefix
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

    def _told(self, choice: _Choice) -> Rewritten:
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
        return Rewritten(**{what: tuple(names) for what, names in found.items()})


class _Choice:
    """Which columns are opened, masked, null or left out.

    Attributes:
        plan: of what is there: opened columns, and null ones.
        masks: old ordinals of columns that are decoded, to what becomes of their values.
        nulls: old ordinals of all that are null by the caller's wish.
    """

    def __init__(self, file: OpenFile, change: _Change) -> None:
        leaves = file.leaves
        everything = range(len(leaves))
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
        self.plan = replace(plan, nulls=sorted({*plan.nulls, *whole}))
        self.masks = self._masks(hashed, set(null) - whole, change.hash_key)

    def _whole_fields(self, leaves: list[tuple[str, ...]], shown: set[int]) -> set[int]:
        """Give those nulls with which all that is shown of their top-level field is null."""
        others = {leaves[c][0] for c in shown - self.nulls}
        return {c for c in self.nulls if leaves[c][0] not in others}

    @staticmethod
    def _masks(hashed: Iterable[int], null: Iterable[int], key: Key | None) -> dict[int, Mask]:
        if not (hashed or null):
            return {}
        from modcrypt.parquet.masking import NULLS, hashes

        found = dict.fromkeys(null, NULLS)
        return found if key is None else found | dict.fromkeys(hashed, hashes(key))


def _check_once(leaves: list[tuple[str, ...]], *lists: list[int]) -> None:
    named = [c for columns in lists for c in columns]
    if twice := sorted({".".join(leaves[c]) for c in named if named.count(c) > 1}):
        raise ValueError(f"columns with more than one fate: {', '.join(twice)}")


def _prepare(metadata: ThriftStruct, masks: Mapping[int, Mask]) -> None:
    """Change schema and chunks for columns that are masked, as far as is known beforehand."""
    make_strings(metadata, [c for c, mask in masks.items() if not mask.gives_nulls])
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


_OPTIONAL, _REQUIRED = 1, 0  # FieldRepetitionType


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


class _Appended(Source):
    """A source, and more bytes after its end."""

    def __init__(self, source: Source, more: bytes) -> None:
        self.name, self.size = source.name, source.size + len(more)
        self.least_read = source.least_read
        self._source, self._more = source, MemorySource(more)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`, on one side of the border."""
        border = self._source.size
        if offset < border:
            self._source.read_into(offset, view)
        else:
            self._more.read_into(offset - border, view)


@dataclass
class _Masking:
    """How one column is masked, and of which row groups it was."""

    file: OpenFile
    old_column: int
    mask: Mask
    leaf: Leaf


@dataclass
class _Feed:
    """Gives the parts of an encrypted file to what seals them again.

    Ordinals are those of the new file.
    """

    source: Source
    metadata: ThriftStruct
    ciphers: Mapping[tuple[int, int], ChunkCipher]  # of the old file
    masks: Mapping[int, _Masking]
    kept: set[int]
    nulls: bytes  # pages after the end of the source
    keep_levels: bool
    plain: PlainFeed = field(init=False)
    window: Window = field(init=False)

    def __post_init__(self) -> None:
        self.plain = PlainFeed(_Appended(self.source, self.nulls) if self.nulls else self.source)
        self.window = Window(self.source)
        self.scratch = memoryview(bytearray())

    def write_pages(
        self, span: Span, cipher: ChunkCipher | None, out: Output, move: ChunkMove, rules: PageRules
    ) -> None:
        """Copy, open, seal, open and seal, or mask the pages of a chunk."""
        old = self.ciphers.get((span.row_group, span.column))
        md = self.metadata.row_groups[span.row_group].columns[span.column].meta_data
        if span.column in self.masks:
            self._write_masked(span, cipher, out, move, rules)
        elif span.column in self.kept:
            move.copied = True
            out.copy_from(self.source, span.start, span.end)
        elif old is None:
            self.plain.write_pages(span, cipher, out, move, rules)
        elif cipher is None:
            open_pages(self.window, span, old, out, move, md, None)
        else:
            self._reseal_pages(span, old, cipher, out, move, md, rules)

    def read(self, span: Span) -> bytes:
        """Open an index or a bloom filter."""
        cipher = self.ciphers.get((span.row_group, span.column))
        data = self.plain.read(span)
        if cipher is None:
            return data
        if span.part is Part.BLOOM_FILTER:
            opened = open_bloom_filter(cipher, span, data)
            return opened.header + opened.bitset
        plain = cipher.open(ModuleType[span.part.name], data)
        return plain[: struct_end(plain)]  # without parquet-java's padding

    def _write_masked(
        self, span: Span, cipher: ChunkCipher | None, out: Output, move: ChunkMove, rules: PageRules
    ) -> None:
        from modcrypt.parquet.masking import mask_chunk

        how = self.masks[span.column]
        masked = mask_chunk(how.file, span.row_group, how.old_column, how.mask, how.leaf)
        row_group = self.metadata.row_groups[span.row_group]
        chunk = row_group.columns[span.column]
        if masked is None:
            return
        new = masked.metadata
        row_group.total_byte_size += new.total_uncompressed_size
        row_group.total_byte_size -= chunk.meta_data.total_uncompressed_size
        chunk.meta_data = new
        move.old_start, move.keep_pages = masked.span.start, False
        inner = replace(masked.span, row_group=span.row_group, column=span.column)
        rules = rules._replace(uncompressed=new.codec == UNCOMPRESSED)
        PlainFeed(masked.source).write_pages(inner, cipher, out, move, rules)

    def _reseal_pages(
        self, span: Span, old: ChunkCipher, new: ChunkCipher, out: Output, move: ChunkMove,
        md: ThriftStruct, rules: PageRules,
    ) -> None:  # fmt: skip
        """Open the pages of one chunk and seal them again: header module, page module, for each."""
        is_dictionary = move.has_dictionary = bool(md.dictionary_page_offset)
        seal_header, seal_page = new.header.seal_into, new.page.seal_into
        old_overhead, old_slack = old.page.overhead, old.page.slack
        overhead, slack = new.page.overhead, new.page.slack
        uncompressed, levels_plain = rules
        window, scratch, keep = self.window, self.scratch, move.keep_pages
        position, end = span.start, span.end
        ordinal, grown = 0, 0
        while position < end:
            sealed = open_header(
                window, position, end, Page(old, is_dictionary, ordinal), uncompressed
            )
            _, plain, header, body, _, old_total = sealed
            size = len(body) - old_overhead
            if len(scratch) < size + old_slack:
                scratch = self.scratch = memoryview(bytearray(size + (size >> 3) + old_slack))
            if header[6] is not None:
                check_crc(sealed)
            clear = open_body(sealed, scratch[: size + old_slack])
            if is_dictionary:
                header_aad, page_aad = new.dictionary_header, new.dictionary
            else:
                suffix = ordinal.to_bytes(2, "little")
                header_aad, page_aad = new.data_header + suffix, new.data + suffix
                if not ordinal:
                    move.first_data_page = position, out.position
                ordinal += 1
            if levels_plain and header[1] == DATA_PAGE_V2:
                clear = clear_levels(plain, size)
            elif not self.keep_levels:
                clear = 0
            if clear or header[6] is not None:
                module = seal_body(new, scratch[:size], clear, page_aad)
                new_header = splice(plain, 0, header, len(module), zlib.crc32(module))
            else:
                module, new_header = None, splice(plain, 0, header, size + overhead)
            header_size = len(new_header)
            total = GCM_OVERHEAD + header_size + overhead + size
            if out.at + total + slack > len(out.view):
                out.reserve(total + slack)
            at, view = out.at, out.view
            after_header = seal_header(view, at, new_header, header_size, header_aad)
            if module is None:
                out.at = seal_page(view, after_header, scratch[:size], size, page_aad)
            else:
                view[after_header : at + total] = module
                out.at = at + total
            if keep and not is_dictionary:
                move.pages.append((position, out.position - total, total))
            grown += GCM_OVERHEAD + header_size - (old_total - len(body))
            is_dictionary = False
            position += old_total
        move.header_growth = grown
