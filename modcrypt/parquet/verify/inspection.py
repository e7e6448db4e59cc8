"""`inspect_parquet`: everything that a file tells, without keys, with some or with all of them.

Looking is not trusting: nothing but footers, column metadata and page headers is opened, what the
keys do not fit is shown as far as it can be seen without them, and it is said what was
authenticated. Keys, wrapped keys and key metadata of a kind that may hold keys are never told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from modcrypt.errors import FormatError
from modcrypt.io.storage import Source, SourceLike, open_source
from modcrypt.parquet.crypto.key_info import KeyInfo, key_info
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, check_decryption
from modcrypt.parquet.format.byte_map import Region
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.schema import Leaf
from modcrypt.parquet.format.type_names import codec_name, logical_name, physical_name
from modcrypt.parquet.verify.footer_view import ChunkView, FooterView, view_chunks, view_footer
from modcrypt.parquet.verify.leaks import VISIBLE, tell_hidden, tell_leaks, text_of, visible_parts
from modcrypt.parquet.verify.region_walk import RegionWalk, walk_regions
from modcrypt.parquet.verify.writer_quirks import tell_quirks, writer_of

__all__ = ["ColumnInspection", "Inspection", "KeyInfo", "inspect_parquet"]

_AGS1_MAGIC = b"AGS1"
_MAX_REASONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnInspection:
    """What is known of one column, over all row groups.

    Attributes:
        path: dotted name.
        physical_type, logical_type: as the specification spells them.
        key: "footer key" or "column key"; None for plaintext; "hidden" where there are no row
            groups to tell.
        key_info: what the file says of that key.
        has_key: whether a key that was given fits; None for plaintext, and where nothing tells.
        codec: compression; several where row groups differ. None, as the numbers below, where it
            is hidden.
        compressed_size: bytes as they are stored, encryption and page headers included.
        uncompressed_size: bytes before compression, with page headers.
        values: nulls among them.
        visible: what a reader without keys sees of it, such as "name", "sizes" or "statistics".
    """

    path: str
    physical_type: str
    logical_type: str | None
    key: Literal["footer key", "column key", "hidden"] | None
    key_info: KeyInfo
    has_key: bool | None
    codec: str | None
    compressed_size: int | None
    uncompressed_size: int | None
    values: int | None
    visible: tuple[str, ...]

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a Parquet file tells.

    Attributes:
        name: of the file.
        size: in bytes.
        encrypted: whether anything in it is.
        footer_mode: "encrypted", or "plaintext", as in a file that is plaintext throughout.
        algorithm: its name; None where the file names none that modcrypt knows.
        aad_prefix: the one that the file stores, or that was given and fits.
        stores_aad_prefix, needs_aad_prefix: whether it is stored, or to be given.
        aad_file_unique_size: bytes; None where there is none.
        footer_key: what the file says of the footer key.
        footer_authenticated: whether the footer's tag, or its signature, was verified.
        created_by: as the writer called itself; None where it is hidden or missing.
        writer: what is known of the writer, in a word; None if nothing tells.
        num_rows, row_groups: None where they are hidden.
        columns: None where they are hidden.
        key_value_metadata: names of the entries, whose values are not told.
        regions: what all bytes are, from first to last: their sizes add up to the file's.
        leaks: What a reader without keys sees, in sentences; and fields that modcrypt does not know
            where a reader with the footer key alone sees them.
        hidden: what the keys at hand leave closed, in sentences.
        quirks: of the writer, layouts that break the specification, and what does not fit.
        kms_unavailable: Whether a key is hidden because the key service was unavailable.
    """

    name: str
    size: int
    encrypted: bool
    footer_mode: Literal["encrypted", "plaintext"]
    algorithm: str | None
    aad_prefix: bytes | None
    stores_aad_prefix: bool
    needs_aad_prefix: bool
    aad_file_unique_size: int | None
    footer_key: KeyInfo
    footer_authenticated: bool
    created_by: str | None
    writer: str | None
    num_rows: int | None
    row_groups: int | None
    columns: tuple[ColumnInspection, ...] | None
    key_value_metadata: tuple[str, ...]
    regions: tuple[Region, ...]
    leaks: tuple[str, ...]
    hidden: tuple[str, ...]
    quirks: tuple[str, ...]
    kms_unavailable: bool = False

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes; an AAD prefix as text, with escapes where it is none."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        prefix, columns = self.aad_prefix, self.columns
        found["aad_prefix"] = None if prefix is None else text_of(prefix)
        found["footer_key"] = self.footer_key.fields()
        found["columns"] = None if columns is None else [one.fields() for one in columns]
        found["regions"] = [region.fields() for region in self.regions]
        return found

    def to_html(self) -> str:
        """Draw the file as one self-contained HTML page."""
        from modcrypt.parquet.verify.file_drawing import draw

        return draw(
            title=self.name.rpartition("/")[2] or self.name,
            facts=self.facts(),
            columns=[column.path for column in self.columns or ()],
            row_groups=self.row_groups or 0,
            size=self.size,
            regions=self.regions,
            notes=[
                *(("Visible without keys", sentence) for sentence in self.leaks),
                *(("Hidden here", sentence) for sentence in self.hidden),
                *(("Peculiar", sentence) for sentence in self.quirks),
            ],
        )

    def facts(self) -> list[tuple[str, str]]:
        """Give what is told first: a name and words, for people."""
        if not self.encrypted:
            return [("Encryption", "none"), *self._counts()]
        prefix = "none" if self.aad_prefix is None else text_of(self.aad_prefix)
        if self.stores_aad_prefix:
            prefix += " (stored)"
        elif self.needs_aad_prefix:
            prefix = "to be given" if self.aad_prefix is None else f"{prefix} (given)"
        return [
            (
                "Footer",
                f"{self.footer_mode}, {'' if self.footer_authenticated else 'not '}verified",
            ),
            ("Algorithm", self.algorithm or "unknown"),
            ("Footer key", str(self.footer_key)),
            ("AAD prefix", prefix),
            *self._counts(),
        ]

    def _counts(self) -> list[tuple[str, str]]:
        counts = [
            ("Writer", self.created_by or self.writer or "unknown"),
            ("Rows", "hidden" if self.num_rows is None else f"{self.num_rows:,}"),
            ("Row groups", "hidden" if self.row_groups is None else f"{self.row_groups:,}"),
        ]
        if self.columns is None:
            return [*counts, ("Columns", "hidden")]
        opened = sum(column.has_key is True for column in self.columns)
        sealed = sum(column.key is not None for column in self.columns)
        told = f"{len(self.columns):,}, {sealed:,} encrypted, {opened:,} with a key here"
        return [*counts, ("Columns", told if self.encrypted else f"{len(self.columns):,}")]


def inspect_parquet(
    source: SourceLike,
    properties: FileDecryptionProperties | None = None,
    *,
    filesystem: Any = None,
    pages: bool = False,
) -> Inspection:
    """Say everything about a Parquet file that can be seen with these keys, or with none.

    Keys that do not fit are no error: the file is shown as it is without them, and it is said so.
    Nothing but footer, column metadata and page headers is opened, so no algorithm need be
    accepted. Only what `properties` asks of the AAD prefix counts.

    Args:
        source: path, fsspec URL, bytes or seekable binary file object: encrypted or not.
        properties: all or some of the file's keys.
        filesystem: of pyarrow or fsspec, in which a path is.
        pages: tell pages and page headers apart in `regions`, too: the whole file is read.

    Raises:
        FormatError: the bytes are no Parquet file, or a footer makes no sense.
        LimitError: a declared length or count passes a limit.
        ValueError: the AAD prefix depends on the file's name, and the file has none.
        TypeError: an argument is of another kind.
        OSError: from the file system.
    """
    if properties is not None:
        check_decryption(properties)
    with open_source(source, filesystem=filesystem) as opened:
        if opened.size >= 4 and opened.read_at(0, 4) == _AGS1_MAGIC:
            raise FormatError(
                f"{opened.name} is an AGS1 stream, no Parquet file: inspect_ags1 looks into it"
            )
        view = view_footer(opened, properties)
        leaves, chunks, view = view_chunks(view)
        walk = walk_regions(opened, view, chunks, pages=pages)
        return _inspection(opened, view, leaves, chunks, walk)


def _inspection(
    source: Source, view: FooterView, leaves: list[Leaf], chunks: list[ChunkView],
    walk: RegionWalk,
) -> Inspection:  # fmt: skip
    metadata, parameters = view.metadata, view.parameters
    created_by = None if metadata is None or not metadata.created_by else metadata.created_by
    created = None if created_by is None else text_of(created_by)
    writer = writer_of(view, created)
    footer_key = key_info(view.key_metadata) if view.encrypted else KeyInfo(kind="none")
    columns = _columns(view, leaves, chunks, walk, footer_key)
    keys = [footer_key, *(column.key_info for column in columns if _shows_key(view, column))]
    visible = {column.path: column.visible for column in columns}
    more = len(view.reasons) - _MAX_REASONS
    why = [*view.reasons[:_MAX_REASONS], *([f"{more} more"] if more > 0 else [])]
    leaks = tell_leaks(view, chunks, visible, walk, keys)
    return Inspection(
        name=source.name,
        size=source.size,
        encrypted=view.encrypted,
        footer_mode="encrypted" if view.sealed else "plaintext",
        algorithm=view.algorithm,
        aad_prefix=_prefix(view),
        stores_aad_prefix=view.stored_prefix is not None,
        needs_aad_prefix=_needs_prefix(view),
        aad_file_unique_size=(
            None
            if parameters is None or parameters.aad_file_unique is None
            else len(parameters.aad_file_unique)
        ),
        footer_key=footer_key,
        footer_authenticated=view.authenticated,
        created_by=created,
        writer=writer,
        num_rows=None if metadata is None else metadata.num_rows,
        row_groups=None if metadata is None else len(metadata.row_groups),
        columns=None if metadata is None else tuple(columns),
        key_value_metadata=_entry_names(metadata),
        regions=tuple(walk.regions),
        leaks=tuple(leaks),
        hidden=tuple(tell_hidden(view, chunks, walk, why)),
        quirks=tuple(tell_quirks(view, chunks, walk, writer)),
        kms_unavailable=view.unavailable,
    )


def _prefix(view: FooterView) -> bytes | None:
    """Give the stored AAD prefix, or the one that was given where the footer is bound to it."""
    if view.stored_prefix is not None or not view.authenticated or view.properties is None:
        return view.stored_prefix
    given = view.properties.aad_prefix
    return given if isinstance(given, bytes) and _needs_prefix(view) else None


def _needs_prefix(view: FooterView) -> bool:
    parameters = view.parameters
    return parameters is not None and bool(parameters.supply_aad_prefix) and not view.stored_prefix


def _entry_names(metadata: ThriftStruct | None) -> tuple[str, ...]:
    entries = () if metadata is None else metadata.key_value_metadata or ()
    return tuple(text_of(entry.key) for entry in entries)


def _shows_key(view: FooterView, column: ColumnInspection) -> bool:
    """Tell whether a column's key metadata stands in clear."""
    return not view.sealed and column.key == "column key"


# --- columns -------------------------------------------------------------------------------------


def _columns(
    view: FooterView, leaves: list[Leaf], chunks: list[ChunkView], walk: RegionWalk,
    footer_key: KeyInfo,
) -> list[ColumnInspection]:  # fmt: skip
    by_column: list[list[ChunkView]] = [[] for _ in leaves]
    for seen in chunks:
        by_column[seen.column].append(seen)
    infos: dict[bytes | None, KeyInfo] = {}
    columns = []
    for leaf, own in zip(leaves, by_column, strict=True):
        element = view.metadata.schema[leaf.element]  # type: ignore[union-attr]  # has leaves
        info = _column_key_info(own, view.encrypted, footer_key, infos)
        columns.append(_column(view, leaf, element, own, walk, info))
    return columns


def _column_key_info(
    own: list[ChunkView], encrypted: bool, footer_key: KeyInfo, infos: dict[bytes | None, KeyInfo]
) -> KeyInfo:
    if not own:
        return KeyInfo(kind="hidden" if encrypted else "none")
    if own[0].own is None:
        return KeyInfo(kind="none")
    if not own[0].own:
        return footer_key
    metadata = own[0].chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.key_metadata
    if metadata not in infos:
        infos[metadata] = key_info(metadata)
    return infos[metadata]


def _column(
    view: FooterView, leaf: Leaf, element: ThriftStruct, own: list[ChunkView],
    walk: RegionWalk, info: KeyInfo,
) -> ColumnInspection:  # fmt: skip
    metadata = [seen.md for seen in own]
    known = None if None in metadata else metadata
    visible: set[str] = set().union(*(visible_parts(view, seen, walk) for seen in own))
    if not view.sealed:
        visible |= {"name", "type"}
    return ColumnInspection(
        path=".".join(leaf.path),
        physical_type=physical_name(element),
        logical_type=logical_name(element),
        key=_key_kind(view, own),
        key_info=info,
        has_key=_has_key(own),
        codec=_codecs(known),
        compressed_size=_total(known, "total_compressed_size"),
        uncompressed_size=_total(known, "total_uncompressed_size"),
        values=_total(known, "num_values"),
        visible=tuple(word for word in VISIBLE if word in visible),
    )


def _key_kind(
    view: FooterView, own: list[ChunkView]
) -> Literal["footer key", "column key", "hidden"] | None:
    if not own:
        return "hidden" if view.encrypted else None
    if own[0].own is None:
        return None
    return "column key" if own[0].own else "footer key"


def _has_key(own: list[ChunkView]) -> bool | None:
    """Tell whether a column's key fits in all row groups."""
    found = {seen.opened for seen in own}
    return found.pop() if len(found) == 1 else False if False in found else None


def _codecs(metadata: Sequence[ThriftStruct] | None) -> str | None:
    return None if not metadata else ", ".join(dict.fromkeys(codec_name(m.codec) for m in metadata))


def _total(metadata: Sequence[ThriftStruct] | None, name: str) -> int | None:
    return None if metadata is None else sum(getattr(md, name) for md in metadata)
