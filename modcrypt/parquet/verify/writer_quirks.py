"""Who wrote a file, and which layouts in it are a writer's own: said by name, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from modcrypt.parquet.crypto.footer import take_mark
from modcrypt.parquet.crypto.properties import FILE_UNIQUE_SIZE, GCM_CTR_V1, GCM_V1
from modcrypt.parquet.format.framing import SIGNATURE_SIZE
from modcrypt.parquet.format.idl import copy
from modcrypt.parquet.format.modules import names_dictionary
from modcrypt.parquet.verify.footer_view import ChunkView, FooterView
from modcrypt.parquet.verify.region_walk import RegionWalk

__all__ = ["counted", "listed", "tell_quirks", "writer_of"]

# Beginnings of `created_by`; the longer one of two that fit comes first.
_WRITERS = {
    "github.com/parquet-go/parquet-go": "parquet-go/parquet-go",
    "github.com/segmentio/parquet-go": "segmentio/parquet-go",
    "parquet-go version": "Arrow Go",
    "parquet-cpp": "Arrow C++",
    "parquet-mr": "parquet-java",
    "parquet-rs": "arrow-rs",
    "Polars": "Polars",
    "DuckDB": "DuckDB",
    "fastparquet": "fastparquet",
    "impala": "Impala",
    "parquet-dotnet": "parquet-dotnet",
    "Parquet.Net": "parquet-dotnet",
}

_NAMES_SHOWN = 10


def listed(names: Iterable[str]) -> str:
    """List names, the first ones of many."""
    found = list(names)
    more = len(found) - _NAMES_SHOWN
    return ", ".join(found[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, what: str) -> str:
    """Give a number of things, one or several."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def writer_of(view: FooterView, created_by: str | None) -> str | None:
    """Name the writer by `created_by`, or by what no other writer does; None if nothing tells."""
    if created_by is not None:
        known = (name for start, name in _WRITERS.items() if created_by.startswith(start))
        return next(known, None)
    parameters = view.parameters
    if parameters is None:
        return None
    if parameters.aad_file_unique is None:
        return "DuckDB"
    if parameters.supply_aad_prefix is None:
        return "arrow-rs, Polars or parquet-go/parquet-go"
    return None


def tell_quirks(
    view: FooterView, chunks: Sequence[ChunkView], walk: RegionWalk, writer: str | None
) -> Iterator[str]:
    """Say what is unusual about a file, and who writes such files."""
    yield from _writer(view, writer)
    yield from _of_footer(view)
    yield from _of_row_groups(view)
    yield from _of_columns(view, chunks)
    yield from _of_pages(view, walk)
    faults = walk.faults
    yield from (f"Does not fit: {fault}" for fault in faults[:_NAMES_SHOWN])
    if len(faults) > _NAMES_SHOWN:
        yield f"{counted(len(faults) - _NAMES_SHOWN, 'more place')} that do not fit."


def _writer(view: FooterView, writer: str | None) -> Iterator[str]:
    if writer is not None and view.metadata is not None and view.metadata.created_by:
        yield (
            f"Written by {writer}, as created_by says"
            + (" (or the plaintext file was, that it was made from)." if view.encrypted else ".")
        )
    elif writer is not None:
        lacking = view.parameters is None or view.parameters.aad_file_unique is None
        yield f"Probably written by {writer}: " + (
            "other writers give files an aad_file_unique."
            if lacking
            else "other writers always say whether an AAD prefix is to be supplied."
        )
    if view.padding:
        yield (
            f"{counted(view.padding, 'zero byte')} after the footer inside its module: "
            "parquet-java pads the Thrift modules that it seals."
        )


def _of_footer(view: FooterView) -> Iterator[str]:
    if not view.encrypted:
        return
    parameters = view.parameters
    if view.union is None:
        yield (
            "The footer of an encrypted file is unsigned: its encryption algorithm was removed, "
            "perhaps to make readers trust an altered footer."
        )
    elif parameters is None:
        yield "The file names no encryption algorithm that modcrypt knows."
    elif parameters.aad_file_unique is None:
        yield (
            "There is no aad_file_unique: DuckDB seals without any AAD, so nothing binds a module "
            "to its place. It is no Parquet Modular Encryption, and modcrypt does not read it."
        )
    elif len(parameters.aad_file_unique) != FILE_UNIQUE_SIZE:
        yield (
            f"aad_file_unique has {counted(len(parameters.aad_file_unique), 'byte')}, and every "
            f"compliant writer makes {FILE_UNIQUE_SIZE}: bytes may have been moved between it and "
            "the AAD prefix, which makes a file pass for another."
        )
    if view.signed_otherwise:
        yield (
            "The footer's signature is parquet-go/parquet-go's own, a tag over no bytes with the "
            "footer as additional data: it fits the key, but no other reader verifies it."
        )
    if view.algorithm == GCM_CTR_V1:
        yield "AES_GCM_CTR_V1 does not authenticate the bodies of pages."
    rest = len(view.tail.data) - view.struct_end
    if not view.sealed and view.union is not None and rest != SIGNATURE_SIZE:
        yield (
            f"After the plaintext footer, {rest} bytes stand where its signature has "
            f"{SIGNATURE_SIZE}."
        )


def _of_row_groups(view: FooterView) -> Iterator[str]:
    """Hold row group ordinals against positions; plaintext files need none."""
    if view.metadata is None or not view.encrypted:
        return
    ordinals = [row_group.ordinal for row_group in view.metadata.row_groups]
    missing = [r for r, ordinal in enumerate(ordinals) if ordinal is None]
    moved = [r for r, ordinal in enumerate(ordinals) if ordinal not in (None, r)]
    if missing:
        yield (
            f"{len(missing)} of {counted(len(ordinals), 'row group')} without ordinal: "
            "parquet-java finds no module there."
        )
    if moved:
        yield (
            f"Row groups were reordered, or some removed: {listed(map(str, moved))} say that they "
            "have another ordinal. parquet-java goes by it, Arrow C++ by the position."
        )
    added = take_mark(copy(view.metadata))
    if "encoding_stats" in added:
        yield (
            "Encryption added encoding statistics, for parquet-java, to chunks whose encodings "
            "name a dictionary that they don't have, as Impala's do; decryption removes them."
        )
    if view.metadata.num_rows != sum(one.num_rows for one in view.metadata.row_groups):
        yield "The footer declares another number of rows than its row groups together."


def _of_columns(view: FooterView, chunks: Sequence[ChunkView]) -> Iterator[str]:
    own = [seen for seen in chunks if seen.own]
    named = {seen.path: _own_metadata(seen) for seen in own}
    if any(metadata == b"" for metadata in named.values()):
        yield (
            "Column keys have key metadata of no bytes, as Arrow C++ and Arrow Go write it where "
            "there is none."
        )
    bare = dict.fromkeys(
        seen.path for seen in own if view.sealed and seen.chunk.encrypted_column_metadata is None
    )
    if bare:
        yield (
            "Column metadata is not sealed with the column's own key, as parquet-go/parquet-go "
            "leaves it: who has the footer key sees statistics, and can forge them. "
            f"Columns: {listed(bare)}."
        )
    misled = dict.fromkeys(
        seen.path
        for seen in chunks
        if seen.own is not None
        and seen.md is not None
        and (seen.opened or seen.chunk.encrypted_column_metadata is None)
        and names_dictionary(seen.md) not in (None, bool(seen.md.dictionary_page_offset))
    )
    if misled:
        yield (
            "Encodings name a dictionary where no dictionary page is, or the other way round, and "
            "encoding statistics are missing, as in Impala's files: parquet-java opens the first "
            f"page as one of the wrong kind, and fails. Columns: {listed(misled)}."
        )
    kinds: dict[str, bool | None] = {}
    mixed = {
        seen.path: None for seen in chunks if kinds.setdefault(seen.path, seen.own) != seen.own
    }
    if mixed:
        yield (
            "Columns that are encrypted in another way in some row groups, which no writer does: "
            f"{listed(mixed)}."
        )
    misfits = dict.fromkeys(seen.path for seen in chunks if seen.refused)
    if misfits:
        yield (
            "Column metadata does not open with the key given: another key, another AAD prefix or "
            f"altered bytes. Columns: {listed(misfits)}."
        )


def _own_metadata(seen: ChunkView) -> bytes | None:
    metadata: bytes | None = seen.chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.key_metadata
    return metadata


def _of_pages(view: FooterView, walk: RegionWalk) -> Iterator[str]:
    probe = walk.probe
    if walk.clear_levels:
        yield (
            "Data pages V2 have their levels in clear, in parquet-java's layout, which Arrow C++ "
            f"and arrow-rs do not read. Seen in: {listed(walk.clear_levels)}."
        )
    elif probe is not None and probe.clear_levels is False:
        yield (
            "Data pages V2 are sealed whole, levels included, as Arrow C++ and arrow-rs have them; "
            "parquet-java does not read such pages."
        )
    if probe is None:
        return
    if probe.numbering == "parquet-go":
        yield (
            "Module types are numbered as in parquet-go/parquet-go, unlike in the specification: "
            "no other reader opens the pages, modcrypt neither."
        )
    if view.algorithm == GCM_V1 and probe.refused:
        sure = probe.bodies == GCM_CTR_V1
        yield (
            "The footer says AES_GCM_V1, but the body of a page whose header opens "
            + ("has the size that AES_GCM_CTR_V1 gives it: " if sure else "does not authenticate: ")
            + "some versions of Arrow C++ wrote that label over pages under AES_GCM_CTR_V1"
            + ("." if sure else "; else it was altered.")
        )
    elif view.algorithm == GCM_CTR_V1 and probe.bodies == GCM_V1:
        yield (
            "The file says AES_GCM_CTR_V1, but the body of a page authenticates as AES_GCM_V1: the "
            "label was forged, so that readers skip the tags."
        )
