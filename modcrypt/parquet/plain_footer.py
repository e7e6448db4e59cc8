"""The footer of a plaintext file that is made from an encrypted one, whole or in part."""

from __future__ import annotations

from modcrypt.parquet.footer import take_mark
from modcrypt.parquet.idl import ThriftStruct, copy
from modcrypt.parquet.nulls import put_nulls
from modcrypt.parquet.plan import Plan
from modcrypt.parquet.projection import drop_columns

__all__ = ["plain_metadata", "selected_row_groups"]


def selected_row_groups(plan: Plan) -> list[ThriftStruct]:
    """Copy the wanted row groups, their chunks and metadata: what a plaintext footer changes."""
    out = []
    for r in plan.row_groups:
        row_group = copy(plan.footer.metadata.row_groups[r])
        row_group.columns = [
            _copied(chunk, plan.chunks.get((r, c))) for c, chunk in enumerate(row_group.columns)
        ]
        out.append(row_group)
    return out


def _copied(chunk: ThriftStruct, opened: ThriftStruct | None) -> ThriftStruct:
    new = copy(opened or chunk)
    # A chunk that is left out may have the metadata of legacy readers.
    new.meta_data = None if opened is None else copy(opened.meta_data)
    return new


def plain_metadata(
    plan: Plan, row_groups: list[ThriftStruct], nulls_at: int
) -> tuple[ThriftStruct, bytes]:
    """Give the footer of a plaintext file with these row groups, which are changed.

    Args:
        nulls_at: where the pages of null columns will stand.

    Returns:
        The FileMetaData, and the pages of null columns.
    """
    metadata = copy(plan.footer.metadata)
    absent = take_mark(metadata)
    metadata.row_groups = row_groups
    if len(row_groups) != len(plan.footer.metadata.row_groups):
        metadata.num_rows = sum(row_group.num_rows for row_group in row_groups)
    metadata.encryption_algorithm = metadata.footer_signing_key_metadata = None
    pages = put_nulls(metadata, plan.nulls, nulls_at)
    shown = set(plan.shown)
    if len(shown) < len(plan.leaves):
        metadata = drop_columns(metadata, [c in shown for c in range(len(plan.leaves))])
    for row_group in metadata.row_groups:
        for name in absent & {"ordinal", "file_offset", "total_compressed_size"}:
            setattr(row_group, name, None)
        for chunk in row_group.columns:
            chunk.crypto_metadata = chunk.encrypted_column_metadata = None
            if "bloom_filter_length" in absent:
                chunk.meta_data.bloom_filter_length = None
    return metadata, pages
