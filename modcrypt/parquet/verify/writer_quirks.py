"""Identify the writer of a file, and describe quirks of writers in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from modcrypt.errors import list_names
from modcrypt.module_ids import GCM_CTR_V1
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.index_checks import WHO_MISLEADS
from modcrypt.parquet.crypto.properties import FILE_UNIQUE_SIZE
from modcrypt.parquet.format.chunk_notes import find_hidden_index
from modcrypt.parquet.format.framing import SIGNATURE_SIZE
from modcrypt.parquet.format.modules import names_dictionary
from modcrypt.parquet.verify.encrypted_quirks import OF_PROBE, find_walk_quirks
from modcrypt.parquet.verify.footer_view import FooterView
from modcrypt.parquet.verify.page_quirks import describe_page_quirks
from modcrypt.parquet.verify.region_walk import RegionWalk
from modcrypt.parquet.writers.detection import Depth, find_plan_quirks
from modcrypt.parquet.writers.quirk import FoundQuirk
from modcrypt.report.text import format_count

# Prefixes of `created_by`; a longer prefix precedes a shorter one that also matches.
_WRITERS = {
    "github.com/parquet-go/parquet-go": "parquet-go/parquet-go",
    "github.com/segmentio/parquet-go": "segmentio/parquet-go",
    "parquet-go version": "Arrow Go",
    "parquet-cpp": "Arrow C++",
    "parquet-mr": "parquet-java",
    "parquet.js": "parquetjs",
    "parquet-rs": "arrow-rs",
    "Polars": "Polars",
    "DuckDB": "DuckDB",
    "fastparquet": "fastparquet",
    "impala": "Impala",
    "parquet-dotnet": "parquet-dotnet",
    "Parquet.Net": "parquet-dotnet",
}

_MAX_FAULTS = 10


def identify_writer(view: FooterView, created_by: str | None) -> str | None:
    """Return the writer's name by `created_by` or by unique quirks; None if unknown."""
    if created_by is not None:
        known = (name for start, name in _WRITERS.items() if created_by.startswith(start))
        return next(known, None)
    if (parameters := view.footer.algorithm) is None:
        return None
    if parameters.aad_file_unique is None:
        return "DuckDB"
    if parameters.supply_aad_prefix is None:
        return "arrow-rs, Polars or parquet-go/parquet-go"
    return None


def describe_quirks(walk: RegionWalk, writer: str | None) -> Iterator[str]:
    """Yield sentences about what is unusual in a file, and which writers produce it."""
    view = walk.view
    yield from _describe_writer(view, writer)
    yield from _describe_footer_quirks(view)
    yield from _describe_row_group_quirks(view)
    yield from _describe_column_quirks(view, walk.plan.listed)
    yield from _describe_index_quirks(walk)
    known = find_walk_quirks(walk)
    probe = None if any(each.quirk in OF_PROBE for each in known) else walk.probe
    yield from describe_page_quirks(probe, view.footer.algorithm_name)
    yield from walk.header_quirks
    yield from map(str, (*known, *_find_known(walk)))
    faults = walk.faults
    yield from (f"Inconsistent: {fault}" for fault in faults[:_MAX_FAULTS])
    if len(faults) > _MAX_FAULTS:
        yield f"{format_count(len(faults) - _MAX_FAULTS, 'more problem')}."


def _find_known(walk: RegionWalk) -> tuple[FoundQuirk, ...]:
    """Return the writers' bugs, without reading more of a remote file than was read before."""
    plan, footer = walk.plan, walk.view.footer
    if walk.view.unbound:
        return ()
    remote = plan.source.least_read and not walk.pages
    depth: Depth = "footer" if remote else "pages" if walk.pages else "indexes"
    return find_plan_quirks(plan.source, footer, plan.listed, depth)


def _describe_writer(view: FooterView, writer: str | None) -> Iterator[str]:
    if writer is not None and view.footer.metadata is not None and view.footer.metadata.created_by:
        yield (
            f"Written by {writer} according to created_by"
            + (" (perhaps only the original plaintext file was)." if view.footer.encrypted else ".")
        )
    elif writer is not None:
        lacking = view.footer.algorithm is None or view.footer.algorithm.aad_file_unique is None
        yield f"Probably written by {writer}: " + (
            "other writers give files an aad_file_unique."
            if lacking
            else "other writers always state whether an AAD prefix must be supplied."
        )


def _describe_footer_quirks(view: FooterView) -> Iterator[str]:
    if not view.footer.encrypted:
        return
    parameters = view.footer.algorithm
    if view.fields.algorithm is None:
        yield (
            "The footer of an encrypted file is unsigned: its encryption algorithm was removed, "
            "perhaps to make readers trust an altered footer."
        )
    elif parameters is None:
        yield "The file names no encryption algorithm that modcrypt knows."
    elif (unique := parameters.aad_file_unique) is not None and len(unique) != FILE_UNIQUE_SIZE:
        yield (
            f"aad_file_unique has {format_count(len(unique), 'byte')}, but "
            f"every compliant writer uses {FILE_UNIQUE_SIZE}: bytes may have been moved between "
            "it and the AAD prefix, which makes a file pass for another one."
        )
    if view.has_parquet_go_signature:
        yield (
            "The footer's signature is parquet-go/parquet-go's own, a tag over no bytes with the "
            "footer as additional data: it matches the key, but no other reader verifies it."
        )
    if view.footer.algorithm_name == GCM_CTR_V1:
        yield "AES_GCM_CTR_V1 does not authenticate the bodies of pages."
    rest = len(view.footer.tail.data) - view.fields.end
    signed = view.footer.plaintext_footer and view.fields.algorithm is not None
    if signed and rest != SIGNATURE_SIZE:
        yield (
            f"After the plaintext footer, {rest} bytes follow where its signature has "
            f"{SIGNATURE_SIZE} bytes."
        )


def _describe_row_group_quirks(view: FooterView) -> Iterator[str]:
    """Yield sentences about row group ordinals, which plaintext files do not need."""
    if view.footer.metadata is None or not view.footer.encrypted:
        return
    ordinals = [row_group.ordinal for row_group in view.footer.metadata.row_groups]
    if missing := [r for r, ordinal in enumerate(ordinals) if ordinal is None]:
        yield (
            f"{len(missing)} of {format_count(len(ordinals), 'row group')} have no ordinal: "
            "parquet-java finds no modules there."
        )
    if "encoding_stats" in view.footer.absent:
        yield (
            "Encryption added encoding statistics for parquet-java to chunks whose encodings "
            "name a dictionary that does not exist, as Impala's do; decryption removes them."
        )


def _describe_column_quirks(view: FooterView, chunks: Sequence[Chunk]) -> Iterator[str]:
    own = [seen for seen in chunks if seen.has_own_key]
    crypto = {seen.path: seen.stored.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY for seen in own}
    if any(column_key.key_metadata == b"" for column_key in crypto.values()):
        yield (
            "Column keys have empty key metadata, as Arrow C++ and Arrow Go write it if "
            "there is none."
        )
    bare = dict.fromkeys(
        seen.path
        for seen in own
        if not view.footer.plaintext_footer and seen.stored.encrypted_column_metadata is None
    )
    if bare:
        yield (
            "Column metadata is not encrypted with the column's own key, a habit of "
            "parquet-go/parquet-go: anyone who holds the footer key can read and forge statistics. "
            f"Columns: {list_names(bare)}."
        )
    misled = dict.fromkeys(
        seen.path
        for seen in chunks
        if seen.encrypted
        and seen.metadata is not None
        and (seen.key_works or seen.stored.encrypted_column_metadata is None)
        and names_dictionary(seen.metadata)
        not in (None, bool(seen.metadata.dictionary_page_offset))
    )
    if misled:
        yield (
            "Encodings name a dictionary without a dictionary page, or the other way round, and "
            "encoding statistics are missing, as in Impala's files: parquet-java opens the first "
            f"page as one of the wrong kind, and fails. Columns: {list_names(misled)}."
        )
    refused = dict.fromkeys(
        seen.path for seen in chunks if seen.key is not None and seen.key_works is False
    )
    if refused:
        yield (
            "Column metadata does not open with the given key: wrong key, wrong AAD prefix or "
            f"altered bytes. Columns: {list_names(refused)}."
        )


def _describe_index_quirks(walk: RegionWalk) -> Iterator[str]:
    if (kept := walk.plan.kept) is not None:
        yield (
            f"Decryption restores every byte of the plaintext file: {kept.end - kept.start:,} "
            "bytes keep what its writer left between its parts, or spelt in another way."
        )
    if walk.misleading:
        yield (
            f"Column indexes flag pages as all null against their own counts, {WHO_MISLEADS}. "
            f"Columns: {list_names(walk.misleading)}."
        )
    hidden = dict.fromkeys(
        chunk.path
        for chunk in walk.plan.listed
        if chunk.metadata is not None
        and chunk.stored.column_index_offset is None
        and find_hidden_index(chunk.metadata) is not None
    )
    if hidden:
        yield (
            "Encryption hid column indexes from readers, because they contradict themselves; "
            f"decryption restores them. Columns: {list_names(hidden)}."
        )
