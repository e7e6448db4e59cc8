"""The footer of a plaintext file that contains some or all columns of an encrypted file."""

from __future__ import annotations

from collections.abc import Sequence

from modcrypt.parquet.convert.null_chunks import put_nulls
from modcrypt.parquet.crypto.column_projection import drop_columns
from modcrypt.parquet.crypto.file_plan import ReadPlan
from modcrypt.parquet.crypto.footer import take_mark
from modcrypt.parquet.format.chunk_notes import drop_hidden
from modcrypt.parquet.format.idl import ThriftStruct, copy, new, set_extension, without_unknown
from modcrypt.parquet.format.structs import ColumnChunk


def copy_row_groups(plan: ReadPlan, *, share_chunks: bool = False) -> list[ThriftStruct]:
    """Return copies of the wanted row groups, their chunks and metadata, for a plaintext footer.

    All chunks that are left out are one chunk without metadata. `share_chunks` uses the plan's own
    chunks, for a plan that is used only once.
    """
    left_out = new("ColumnChunk", file_offset=0)
    out = []
    for r in plan.row_groups:
        row_group = copy(plan.footer.metadata.row_groups[r])
        row_group.columns = [left_out] * len(plan.leaves)
        out.append(row_group)
    rows = dict(zip(plan.row_groups, out, strict=True))
    for (r, c), chunk in plan.chunks.items():
        rows[r].columns[c] = chunk
        if not share_chunks:
            rows[r].columns[c] = opened = copy(chunk)
            opened.meta_data = copy(chunk.meta_data)
    return out


def plain_metadata(
    plan: ReadPlan, row_groups: list[ThriftStruct] | None, nulls_at: int, *,
    remove_added: bool = True, keep_unknown_fields: bool = False, restore: bool = False,
) -> tuple[ThriftStruct, bytes]:  # fmt: skip
    """Return the footer of a plaintext file with these row groups, and the pages of null columns.

    Args:
        row_groups: Row groups of the new footer, which are changed; None to copy the wanted ones.
        nulls_at: Offset at which the pages of null columns will be written.
        remove_added: Remove the fields that encryption added.
        keep_unknown_fields: Keep fields that the IDL does not know, even if keys are missing, and
            the file's extension, although it may repeat offsets that are wrong for the new file.
        restore: Restore statistics that encryption hid from readers.
    """
    metadata = copy(plan.footer.metadata)
    take_mark(metadata)
    drop_hidden(metadata)
    absent = plan.footer.absent if remove_added else frozenset()
    if not keep_unknown_fields:
        set_extension(metadata, None)
    metadata.row_groups = row_groups = row_groups or copy_row_groups(plan)
    if len(row_groups) != len(plan.footer.metadata.row_groups):
        metadata.num_rows = sum(row_group.num_rows for row_group in row_groups)
    metadata.encryption_algorithm = metadata.footer_signing_key_metadata = None
    pages = put_nulls(metadata, plan.nulls, nulls_at)
    shown = set(plan.footer_leaves)
    if len(shown) < len(plan.leaves):
        metadata = drop_columns(metadata, [c in shown for c in range(len(plan.leaves))])
    of_group = absent & {"ordinal", "file_offset", "total_compressed_size"}
    of_chunk = absent & {"bloom_filter_length", "encoding_stats"}
    for row_group in metadata.row_groups:
        for name in of_group:
            setattr(row_group, name, None)
        columns: Sequence[ColumnChunk] = row_group.columns
        for chunk in columns:
            chunk.crypto_metadata = chunk.encrypted_column_metadata = None
            if chunk.meta_data.key_value_metadata is not None:
                drop_hidden(chunk.meta_data, restore=restore)
            for name in of_chunk:
                setattr(chunk.meta_data, name, None)
    if plan.missing and not keep_unknown_fields:
        metadata = without_unknown(metadata)
    return metadata, pages
