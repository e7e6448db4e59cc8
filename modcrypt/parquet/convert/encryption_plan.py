"""Plan the encryption of a plaintext file: check its footer, and assign its keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from modcrypt.aad import MAX_ORDINAL
from modcrypt.io.places import Place
from modcrypt.io.sources import Source
from modcrypt.parquet.convert.plain_feed import SourceParts
from modcrypt.parquet.crypto.ciphers import ColumnKey, assign_keys, check_names
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.parquet.crypto.properties import Encryption, FileEncryptionProperties
from modcrypt.parquet.format.chunk_notes import drop_hidden
from modcrypt.parquet.format.idl import ThriftStruct, has_foreign_types, is_usual
from modcrypt.parquet.format.modules import (
    Span,
    check_column_metadata,
    check_file_path,
    check_shape,
    file_spans,
    too_many_pages_error,
)
from modcrypt.parquet.format.page_header import DATA_PAGE, DATA_PAGE_V2
from modcrypt.parquet.format.schema import leaf_elements
from modcrypt.parquet.format.structs import ColumnChunk, ColumnMetaData
from modcrypt.parquet.writers.versions import is_older

if TYPE_CHECKING:  # few files are repaired
    from modcrypt.parquet.writers.quirk import FoundQuirk


class EncryptionPlan(SourceParts):
    """A plan for encrypting a source, checked before a byte is written.

    The source's footer begins at `body_end`; `is_canonical` says that the source's bytes are those
    that modcrypt would write.
    """

    def __init__(
        self, metadata: ThriftStruct, leaves: list[tuple[str, ...]],
        columns: list[ColumnKey | None], spans: list[Span], properties: FileEncryptionProperties,
        *, partial: bool = False, body_end: int = 0, is_canonical: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(metadata, leaves, columns, spans, partial=partial)
        self.properties, self.body_end, self.is_canonical = properties, body_end, is_canonical


def plan_encryption(
    source: Source, encryption: Encryption, first: int = 0, *, place: Place | None = None,
    overwrite: bool = True, exact: bool = False, keep_unknown_fields: bool = True,
) -> EncryptionPlan:  # fmt: skip
    """Read and check a plaintext footer whose first row group gets the ordinal `first`.

    If `encryption` makes keys for the file at `place`, it makes them after the names of columns are
    checked. `exact` also finds out whether the footer would be written as it is. The errors are
    those of `encrypt_parquet`.
    """
    footer = read_plain(source)
    metadata = footer.metadata
    elements = leaf_elements(metadata.schema)
    check_shape(metadata, len(elements), plain=True)
    # What decryption would miss: fields of encrypted files, notes that it would take for those of
    # encryption, and fields of a foreign type, whose place a field of the IDL may take.
    foreign = _clear(metadata, _OF_FOOTER) | drop_hidden(metadata) | has_foreign_types(metadata)
    for r, row_group in enumerate(metadata.row_groups, first):
        foreign |= has_foreign_types(row_group)
        columns: Sequence[ColumnChunk] = row_group.columns
        for c, chunk in enumerate(columns):
            check_file_path(chunk, r, c)
            check_column_metadata(chunk.meta_data, elements[c], r, row_group.num_rows)
            foreign |= _clear(chunk, _OF_CHUNK) or has_foreign_types(chunk)
            foreign |= has_foreign_types(chunk.meta_data)
            if chunk.meta_data.key_value_metadata is not None:
                foreign |= drop_hidden(chunk.meta_data)
    if is_older(metadata.created_by or b"", b"parquet-mr", (1, 2, 9)):
        from modcrypt.parquet.writers.repair import count_forgotten_headers

        count_forgotten_headers(source, footer)
    leaves = [leaf.path for leaf in elements]
    properties, keys = assign_file_keys(
        metadata, leaves, encryption, first, place=place, overwrite=overwrite
    )
    is_canonical = False
    if exact and not foreign:
        known_only = not (keep_unknown_fields or properties.has_one_key)
        is_canonical = is_usual(metadata, footer.tail.data, known_only=known_only)
    spans, lost = file_spans(metadata, footer.body_end, source)
    return EncryptionPlan(
        metadata, leaves, keys, spans, properties,
        body_end=footer.body_end, is_canonical=is_canonical and not lost,
    )  # fmt: skip


def repair_plan(source: Source, plan: EncryptionPlan) -> tuple[FoundQuirk, ...]:
    """Repair a plan's metadata and spans in place; return the repairs."""
    # What decryption would write is then no longer the source.
    from modcrypt.parquet.writers.repair import repair_metadata

    repaired = repair_metadata(source, plan.metadata)
    if repaired:
        plan.spans, _ = file_spans(plan.metadata, plan.body_end, source)
        plan.is_canonical = False
    return repaired


_OF_FOOTER: Final = ("encryption_algorithm", "footer_signing_key_metadata")
_OF_CHUNK: Final = ("crypto_metadata", "encrypted_column_metadata")
"""The fields that only encrypted files have (PME 5); some plaintext file may have them."""


def _clear(struct: ColumnChunk | ThriftStruct, names: tuple[str, ...]) -> bool:
    found = False
    for name in names:
        if getattr(struct, name) is not None:
            setattr(struct, name, None)
            found = True
    return found


def assign_file_keys(
    metadata: ThriftStruct, leaves: list[tuple[str, ...]], encryption: Encryption, first: int = 0,
    *, place: Place | None = None, overwrite: bool = True,
) -> tuple[FileEncryptionProperties, list[ColumnKey | None]]:  # fmt: skip
    """Return the properties of a new file, and the key of each leaf (None for plaintext)."""
    properties = encryption
    if not isinstance(properties, FileEncryptionProperties):
        check_names(leaves, {*properties.column_keys, *properties.plaintext_columns})
        properties = properties.for_file(place, overwrite=overwrite)
    if properties.subjects is not None:
        properties.subjects.check_cells(metadata)
    columns = assign_keys(leaves, properties, checked=properties is not encryption)
    last = None  # statistics that were checked: many chunks share theirs
    for r, row_group in enumerate(metadata.row_groups, first):
        chunks: Sequence[ColumnChunk] = row_group.columns
        for c, chunk in enumerate(chunks):
            md: ColumnMetaData = chunk.meta_data
            if md.encoding_stats is last or columns[c] is None:
                continue
            last = md.encoding_stats
            counts = [s.count for s in last or () if s.page_type in (DATA_PAGE, DATA_PAGE_V2)]
            if sum(counts) > MAX_ORDINAL + 1:
                raise too_many_pages_error(
                    f"row group {r}, column {c} with {sum(counts)} data pages"
                )
    return properties, columns
