"""Inspect a file: everything that it reveals without keys, with some keys or with all of them.

Inspection does not verify a file. It opens only footers, column metadata and page headers, shows
parts with wrong keys as far as they are visible without keys, and states what was authenticated.
Keys, wrapped keys, and key metadata that may hold keys are never shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from modcrypt.io.sources import SourceLike, open_source
from modcrypt.keys import hide_keys
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.properties import AnyDecryption, as_decryption
from modcrypt.parquet.format.byte_map import Region
from modcrypt.parquet.format.idl import ThriftStruct, enum_name
from modcrypt.parquet.format.type_names import logical_name, physical_name
from modcrypt.parquet.verify.footer_view import FooterView, view_chunks, view_footer
from modcrypt.parquet.verify.leaks import (
    VISIBLE,
    decode_text,
    describe_hidden,
    describe_leaks,
    list_visible_parts,
)
from modcrypt.parquet.verify.region_walk import RegionWalk
from modcrypt.parquet.verify.writer_quirks import describe_quirks, identify_writer
from modcrypt.pkmt1.key_info import KeyInfo, key_info
from modcrypt.report.fact_sheet import FactSheet
from modcrypt.report.json_fields import JsonFields
from modcrypt.runtime.collector import paused_collector
from modcrypt.runtime.former_names import accept_former_names

_KeyKind: TypeAlias = Literal["footer key", "column key", "hidden"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnInspection(JsonFields):
    """One column over all row groups, as far as the keys reveal it.

    Attributes:
        path: Dotted name.
        physical_type: Physical type as spelt in the specification.
        logical_type: Logical type as spelt in the specification; None if there is none.
        key: "footer key" or "column key"; None for plaintext; "hidden" if there are no row groups
            from which to know.
        key_info: What the file states about that key.
        has_key: Whether a given key is right; None for plaintext, and if it is unknown.
        codec: Compression codecs, several if row groups differ. None if hidden, like the numbers
            below.
        compressed_size: Stored size in bytes, including encryption and page headers.
        uncompressed_size: Size in bytes before compression, including page headers.
        values: Number of values, including nulls.
        visible: Parts that a reader without keys sees, such as "name", "sizes" or "statistics".
    """

    path: str
    physical_type: str
    logical_type: str | None
    key: _KeyKind | None
    key_info: KeyInfo
    has_key: bool | None
    codec: str | None
    compressed_size: int | None
    uncompressed_size: int | None
    values: int | None
    visible: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Inspection(FactSheet, JsonFields):
    """A Parquet file as far as the keys reveal it.

    Attributes:
        name: Name of the file.
        size: Size of the file in bytes.
        encrypted: Whether any part of the file is encrypted.
        footer_mode: "encrypted" or "plaintext"; plaintext files also have a plaintext footer.
        algorithm: Name of the algorithm; None if the file names none that modcrypt knows.
        aad_prefix: AAD prefix that the file stores, or a given one that is right; None otherwise.
        stores_aad_prefix: Whether the file stores its AAD prefix.
        needs_aad_prefix: Whether the reader must pass the AAD prefix.
        aad_file_unique_size: Size of `aad_file_unique` in bytes; None if there is none.
        footer_key: What the file states about the footer key.
        footer_authenticated: Whether the footer's tag or signature was verified.
        created_by: Name that the writer gave itself; None if it is hidden or missing.
        writer: Short name of the writer; None if it is unknown.
        num_rows: Number of rows; None if it is hidden.
        row_groups: Number of row groups; None if it is hidden.
        columns: Columns of the file; None if they are hidden.
        key_value_metadata: Names of the key-value entries, without their values.
        regions: Map of all bytes from first to last; the sizes add up to the file's size.
        leaks: Sentences about what a reader without keys sees, and about unknown fields that a
            reader with the footer key alone sees.
        hidden: Sentences about what the keys at hand do not open.
        quirks: Sentences about the writer, deviations from the specification, and inconsistencies.
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

    def to_html(self) -> str:
        """Return the page that draws the file; see `modcrypt.report.render_html`."""
        from modcrypt.parquet.verify.file_drawing import draw
        from modcrypt.report.html import format_name

        notes = [
            *(("Visible without keys", sentence) for sentence in self.leaks),
            *(("Hidden here", sentence) for sentence in self.hidden),
            *(("Quirk", sentence) for sentence in self.quirks),
        ]
        return draw(
            title=format_name(self.name), facts=self.facts(),
            columns=[column.path for column in self.columns or ()],
            row_groups=self.row_groups or 0, size=self.size, regions=self.regions, findings=(),
            notes=notes,
        )  # fmt: skip

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for people: the most important properties of the file."""
        if not self.encrypted:
            return [("Encryption", "none"), *self._count_facts()]
        prefix = "none" if self.aad_prefix is None else decode_text(self.aad_prefix)
        if self.stores_aad_prefix:
            prefix += " (stored)"
        elif self.needs_aad_prefix:
            prefix = "required" if self.aad_prefix is None else f"{prefix} (given)"
        verified = "verified" if self.footer_authenticated else "not verified"
        return [
            ("Footer", f"{self.footer_mode}, {verified}"),
            ("Algorithm", self.algorithm or "unknown"),
            ("Footer key", str(self.footer_key)),
            ("AAD prefix", prefix),
            *self._count_facts(),
        ]

    def _count_facts(self) -> list[tuple[str, str]]:
        counts = [
            ("Writer", self.created_by or self.writer or "unknown"),
            ("Rows", "hidden" if self.num_rows is None else f"{self.num_rows:,}"),
            ("Row groups", "hidden" if self.row_groups is None else f"{self.row_groups:,}"),
        ]
        if self.columns is None:
            return [*counts, ("Columns", "hidden")]
        opened = sum(column.has_key is True for column in self.columns)
        encrypted = sum(column.key is not None for column in self.columns)
        summary = f"{len(self.columns):,}, {encrypted:,} encrypted, {opened:,} with a key"
        return [*counts, ("Columns", summary if self.encrypted else f"{len(self.columns):,}")]


@hide_keys
@accept_former_names(properties="decryption")
@paused_collector()
def inspect_parquet(
    source: SourceLike,
    decryption: AnyDecryption | None = None,
    *,
    filesystem: Any = None,
    pages: bool = False,
) -> Inspection:
    """Return everything about a Parquet file that these keys, or none, reveal.

    Wrong keys are not an error: the result shows the file as it is without them, and states that.
    Only the footer, column metadata and page headers are opened, so every algorithm is accepted. Of
    the requirements in `decryption`, only those about the AAD prefix apply.

    Args:
        source: Path, fsspec URL, bytes or seekable binary file object; encrypted or not.
        decryption: All or some of the file's keys; None for no keys.
        filesystem: PyArrow or fsspec file system in which `source` is a path.
        pages: Whether to distinguish pages and page headers in `regions`, which reads the whole
            file.

    Returns:
        The contents, leaks and quirks of the file.

    Raises:
        FormatError: The bytes are not a Parquet file, or the footer is invalid.
        LimitError: A declared length or count exceeds a limit.
        ValueError: The AAD prefix depends on the file's name, and the file has none.
        TypeError: An argument has the wrong type.
        OSError: The file system failed.
    """
    if decryption is not None:
        decryption = as_decryption(decryption)
    with open_source(source, filesystem=filesystem) as opened:
        view = view_footer(opened, decryption)
        walk = RegionWalk(view, view_chunks(view, opened), pages)
        walk.run()
        return _build_inspection(walk)


def _build_inspection(walk: RegionWalk) -> Inspection:
    view, footer, metadata = walk.view, walk.view.footer, walk.view.footer.metadata
    created = None
    if metadata is not None and metadata.created_by:
        created = decode_text(metadata.created_by)
    writer = identify_writer(view, created)
    footer_key = key_info(footer.key_metadata) if footer.encrypted else KeyInfo(kind="none")
    columns = tuple(_inspect_columns(walk, footer_key))
    keys = [footer_key]
    if footer.plaintext_footer:  # the key metadata of columns is readable without keys
        keys += [column.key_info for column in columns if column.key == "column key"]
    visible = {column.path: column.visible for column in columns}
    unique = None if footer.algorithm is None else footer.algorithm.aad_file_unique
    entries = () if metadata is None else metadata.key_value_metadata or ()
    return Inspection(
        name=walk.plan.source.name, size=walk.plan.source.size, encrypted=footer.encrypted,
        footer_mode="plaintext" if footer.plaintext_footer else "encrypted",
        algorithm=footer.algorithm_name, aad_prefix=_find_prefix(view),
        stores_aad_prefix=footer.stored_prefix is not None, needs_aad_prefix=_needs_prefix(view),
        aad_file_unique_size=None if unique is None else len(unique), footer_key=footer_key,
        footer_authenticated=view.authenticated, created_by=created, writer=writer,
        num_rows=None if metadata is None else metadata.num_rows,
        row_groups=None if metadata is None else len(metadata.row_groups),
        columns=None if metadata is None else columns,
        key_value_metadata=tuple(decode_text(entry.key) for entry in entries),
        regions=tuple(walk.regions), leaks=tuple(describe_leaks(walk, visible, keys)),
        hidden=tuple(describe_hidden(walk)), quirks=tuple(describe_quirks(walk, writer)),
        kms_unavailable=view.unavailable,
    )  # fmt: skip


def _find_prefix(view: FooterView) -> bytes | None:
    """Return the stored AAD prefix, or the given one if the footer is bound to it."""
    if view.footer.stored_prefix is not None or not view.authenticated:
        return view.footer.stored_prefix
    given = view.properties.aad_prefix
    return given if isinstance(given, bytes) and _needs_prefix(view) else None


def _needs_prefix(view: FooterView) -> bool:
    algorithm, stored = view.footer.algorithm, view.footer.stored_prefix
    return algorithm is not None and bool(algorithm.supply_aad_prefix) and not stored


def _inspect_columns(walk: RegionWalk, footer_key: KeyInfo) -> Iterator[ColumnInspection]:
    plan, is_plain = walk.plan, walk.view.footer.plaintext_footer
    by_column: list[list[Chunk]] = [[] for _ in plan.leaves]
    for chunk in plan.listed:
        by_column[chunk.column].append(chunk)
    for leaf, own in zip(plan.leaves, by_column, strict=True):
        element = plan.footer.metadata.schema[leaf.element]
        metadata = [chunk.metadata for chunk in own]
        known = None if None in metadata else metadata
        visible = set[str]().union(*(list_visible_parts(walk, chunk) for chunk in own))
        visible |= {"name", "type"} if is_plain else set()
        kind, info = _find_key(own, plan.footer.encrypted, footer_key)
        codecs = dict.fromkeys(enum_name("CompressionCodec", md.codec) for md in known or ())
        yield ColumnInspection(
            path=".".join(leaf.path),
            physical_type=physical_name(element),
            logical_type=logical_name(element),
            key=kind,
            key_info=info,
            has_key=_has_key(own),
            codec=", ".join(codecs) or None,
            compressed_size=_sum_field(known, "total_compressed_size"),
            uncompressed_size=_sum_field(known, "total_uncompressed_size"),
            values=_sum_field(known, "num_values"),
            visible=tuple(term for term in VISIBLE if term in visible),
        )


def _find_key(
    own: list[Chunk], encrypted: bool, footer_key: KeyInfo
) -> tuple[_KeyKind | None, KeyInfo]:
    """Return the kind of a column's key, given its chunks, and what the file states about it."""
    if not own and encrypted:
        return "hidden", KeyInfo(kind="hidden")
    if not own or not own[0].encrypted:
        return None, KeyInfo(kind="none")
    if not own[0].has_own_key:
        return "footer key", footer_key
    crypto = own[0].stored.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY
    return "column key", key_info(crypto.key_metadata)


def _has_key(own: list[Chunk]) -> bool | None:
    """Return whether a column's key is right in all row groups; None if it is unknown."""
    states = {chunk.key_works for chunk in own}
    return states.pop() if len(states) == 1 else False if False in states else None


def _sum_field(metadata: Sequence[ThriftStruct] | None, name: str) -> int | None:
    return None if metadata is None else sum(getattr(md, name) for md in metadata)
