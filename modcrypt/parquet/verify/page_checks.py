"""Check the pages of a chunk from the first to the last, continuing after faults.

Verification checks headers and bodies, inspection only headers. Pages go through `walk_pages` and
`open_body` of `encrypted_pages`, as in every reader, so that verifying and reading agree. Bodies
are decrypted into one buffer, which is reused and never returned.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING

from modcrypt.aad import MAX_ORDINAL
from modcrypt.aead import GCM_OVERHEAD
from modcrypt.errors import FormatError, IntegrityError, ModcryptError, TagMismatchError
from modcrypt.io.buffers import Scratch
from modcrypt.module_ids import GCM_CTR_V1, ModuleId, ModuleType
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    check_label,
    check_levels,
    has_clear_levels,
    label_hint,
    length_error,
    measure_levels,
    open_body,
)
from modcrypt.parquet.crypto.page_facts import PageFacts
from modcrypt.parquet.crypto.plaintext_pages import walk_plaintext
from modcrypt.parquet.format.byte_map import State
from modcrypt.parquet.format.modules import Span, unexpected_page_error
from modcrypt.parquet.format.page_header import DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, PageHeader
from modcrypt.parquet.verify.chunk_report import ChunkReport
from modcrypt.parquet.verify.page_quirks import CLEAR_LEVELS, NO_TAGS
from modcrypt.parquet.verify.page_recovery import Frames, ResumingWalk

if TYPE_CHECKING:
    from mypy_extensions import i64

_length = Struct("<I").unpack_from


def check_pages(
    span: Span, report: ChunkReport, frames: Frames, scratch: Scratch | None = None,
    starts: Sequence[int] = (), *, keep_headers: bool,
) -> PageFacts:  # fmt: skip
    """Check all pages of a chunk, and return the facts in their headers.

    `scratch` holds decrypted bodies; None checks only headers. `starts` has the positions of data
    pages in the offset index, empty if there is none. `keep_headers` adds the headers to the facts.
    """
    report.facts.keep_headers, bodies = keep_headers, scratch is not None
    if not report.chunk.encrypted:
        _check_plaintext_pages(span, report, frames, starts, bodies=bodies)
    elif report.cipher is None:
        _follow_length_fields(span, report, frames)
    else:
        walk = ResumingWalk(span, report, report.cipher, frames, starts, bodies=bodies)
        _EncryptedPages(report, report.cipher, scratch).check(walk)
    return report.facts


class _EncryptedPages:
    """Checks of the pages of one encrypted chunk, with its key."""

    def __init__(self, report: ChunkReport, cipher: ChunkCipher, scratch: Scratch | None) -> None:
        self._report, self._scratch = report, scratch
        self._modules: i64 = 0  # opened, and their bytes
        self._authentic: i64 = 0
        self._has_tags = cipher.file.algorithm != GCM_CTR_V1

    def check(self, walk: ResumingWalk) -> None:
        """Check all pages."""
        try:
            self._check_each(walk)
        finally:
            self._report.modules += self._modules
            self._report.authenticated += self._authentic

    def _check_each(self, walk: ResumingWalk) -> None:
        report = self._report
        while (encrypted := walk.next_page()) is not None:
            page, position = encrypted.page, encrypted.position
            end = position + encrypted.total
            border = end - len(encrypted.body)
            self._modules += 1
            self._authentic += border - position
            if report.regions is not None:
                report.add_module_region(position, border, page.header_id(), "authentic")
            if self._scratch is None:
                self._note_unopened_body(encrypted, border)
            else:
                self._check_body(encrypted, border)
            if page.is_dictionary:
                report.facts.dictionaries.append(encrypted.header.raw)
            else:
                report.add_data_page(position, border, end, page.ordinal, encrypted.header)

    def _note_unopened_body(self, encrypted: EncryptedPage, start: int) -> None:
        """Report the region of a body that stays closed, and whether it has plaintext levels."""
        if has_clear_levels(encrypted):
            self._note_levels()
        state: State = "unchecked" if self._has_tags else "unauthenticated"
        module, end = encrypted.page.id(), start + len(encrypted.body)
        self._report.add_module_region(start, end, module, state)

    def _check_body(self, encrypted: EncryptedPage, start: int) -> None:
        """Open a body, and report its regions, unencrypted levels and a wrong CRC."""
        report, body, crc, clear = self._report, encrypted.body, encrypted.header.crc, 0
        try:
            if self._has_tags:
                assert self._scratch is not None
                clear = open_body(encrypted, self._scratch.reserve(len(body) - GCM_OVERHEAD))
                self._modules += 1
                self._authentic += len(body) - clear
            else:
                clear = self._check_ctr_body(encrypted, start)
        except ModcryptError as error:
            self._report_bad_body(encrypted, start, error)
            return
        if clear:
            self._note_levels()
        if crc is not None and zlib.crc32(body) != crc:
            report.add_wrong_crc(encrypted.page.id(), start, start + len(body), clear)
        if report.regions is not None:
            module, border = encrypted.page.id(), start + clear
            report.add_module_region(start, border, module, "unauthenticated")
            state: State = "authentic" if self._has_tags else "unauthenticated"
            report.add_module_region(border, start + len(body), module, state)

    def _note_levels(self) -> None:
        self._report.add_note("levels", self._report.chunk.path, CLEAR_LEVELS)

    def _report_bad_body(self, encrypted: EncryptedPage, start: int, error: ModcryptError) -> None:
        page, body, hint = encrypted.page, encrypted.body, ""
        report, end, module = self._report, start + len(body), page.id()
        if isinstance(error, TagMismatchError):  # another cause may be found, so the hint is apart
            hint, error = label_hint(encrypted), TagMismatchError(module, page.cipher.tag_hint)
        report.add_unopened(error, module, start, end, body, hint)
        if type(error) is IntegrityError:  # the values opened, their levels are wrong
            self._note_levels()

    def _check_ctr_body(self, encrypted: EncryptedPage, start: int) -> int:
        """Check a body without a tag, and return the size of the plaintext levels before it."""
        body, module = encrypted.body, encrypted.page.id()
        report, end = self._report, start + len(body)
        report.add_note("pages", None, NO_TAGS)
        whole = _length(body)[0] == len(body) - 4
        clear = 0 if whole else measure_levels(encrypted)
        try:
            if not whole and not clear:
                raise length_error(encrypted)
            check_levels(encrypted, clear)
        except IntegrityError as error:
            report.add_error(error, start, end, module)
        try:
            check_label(encrypted, clear)
        except IntegrityError as error:
            report.add_error(error, start, end, module)
        return clear


def _follow_length_fields(span: Span, report: ChunkReport, frames: Frames) -> None:
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


def _check_plaintext_pages(
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
