"""Check the pages of a chunk that are not decrypted: plaintext ones, and those without a key."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence

from modcrypt.aad import MAX_ORDINAL
from modcrypt.errors import FormatError
from modcrypt.module_ids import ModuleId, ModuleType
from modcrypt.parquet.crypto.plaintext_pages import walk_plaintext
from modcrypt.parquet.format.modules import Span, unexpected_page_error
from modcrypt.parquet.format.page_header import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    PageHeader,
)
from modcrypt.parquet.verify.chunk_report import ChunkReport
from modcrypt.parquet.verify.page_frames import Frames


def follow_length_fields(span: Span, report: ChunkReport, frames: Frames) -> None:
    """Follow the length fields of modules that cannot be opened."""
    report.facts.complete = False
    chunk, state = report.chunk, report.unopened_state
    position, end, ordinal = span.start, span.end, 0
    is_dictionary = bool(chunk.metadata.dictionary_page_offset)
    while position < end:
        framed = frames.find(position, end, with_levels=True)
        if framed is None or ordinal > MAX_ORDINAL:
            message = (
                f"{chunk.where}: from byte {position} on, the length fields of the modules do not "
                "lead from one to the next: bytes were altered or removed"
            )
            report.add_module_region(position, end, "pages", state)
            report.add_fault("truncation", message, position, end)
            return
        report.facts.has_unframed_bytes |= framed.body > framed.border
        number = None if is_dictionary else ordinal
        report.add_page_regions(position, framed.border, framed.next, number, state)
        ordinal += not is_dictionary
        is_dictionary, position = False, framed.next


def check_plaintext_pages(
    span: Span, report: ChunkReport, frames: Frames, starts: Sequence[int],
    *, bodies: bool,
) -> None:  # fmt: skip
    """Check the page headers of a plaintext chunk, and with `bodies` the bodies that have a CRC.

    `starts` has the positions of data pages in the offset index, empty if there is none.
    """
    position, end, path = span.start, span.end, report.chunk.path
    pages = walk_plaintext(frames.window, span, path, bodies=False)
    while position < end:
        try:
            page = next(pages)
        except FormatError as error:
            report.facts.complete = False
            number = bisect_right(starts, position)
            after = min(starts[number], end) if number < len(starts) else end
            report.add_fault("format", str(error), position, after)
            report.add_module_region(position, after, "pages", "plaintext")
            pages = walk_plaintext(frames.window, span._replace(start=after), path, bodies=False)
        else:
            position, header = page.position, page.header
            body = position + page.stored
            after = body + header.compressed_size
            is_dictionary = header.type == DICTIONARY_PAGE and position == span.start
            known = _check_header(position, header, after, report, is_dictionary)
            crc = header.crc if bodies else None
            if known and crc is not None and _compute_crc(frames, body, after) != crc:
                report.add_wrong_crc(known, body, after)
        position = after


def _check_header(
    start: int, header: PageHeader, end: int, report: ChunkReport, is_dictionary: bool
) -> ModuleId | None:
    """Check the header of the page in [start, end); return its address, None for a wrong kind."""
    border, facts = start + len(header.raw), report.facts
    number = len(facts.pages)
    report.add_page_regions(start, border, end, None if is_dictionary else number, "plaintext")
    if is_dictionary:
        facts.dictionaries.append(header.raw)
        return report.chunk.id(ModuleType.DICTIONARY_PAGE)
    module = report.chunk.id(ModuleType.DATA_PAGE, number)
    if header.type not in (DATA_PAGE, DATA_PAGE_V2):
        facts.complete = False
        error = unexpected_page_error(str(module), header.type)
        report.add_error(error, start, border, module)
        return None
    report.add_data_page(start, border, end, number, header)
    return module


def _compute_crc(frames: Frames, start: int, end: int) -> int:
    crc = 0
    while start < end:
        part = frames.read(start, min(end, start + (1 << 20)))
        crc = zlib.crc32(part, crc)
        start += len(part)
    return crc
