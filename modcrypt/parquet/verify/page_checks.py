"""Check the pages of a chunk from the first to the last, continuing after faults.

Verification checks headers and bodies, inspection only headers. Intact pages go through
`encrypted_pages.walk_pages` and `open_body`, as in every reader, so that verifying and reading
agree. Only a page that does not open is examined more closely: what it is,
and where the next page begins. That follows from the offset index, from the length fields before
modules,

    [length | encrypted header] [length | encrypted body] [length | ...

or from searching for the next header that opens. Bodies are decrypted into one buffer, which is
reused and never returned.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from struct import Struct

from modcrypt.aad import MAX_ORDINAL, ModuleId, ModuleType
from modcrypt.aead import GCM_OVERHEAD, TagError
from modcrypt.errors import (
    FormatError,
    IntegrityError,
    ModcryptError,
    TagMismatchError,
    TruncationError,
)
from modcrypt.io.buffers import Scratch
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    Page,
    check_levels,
    has_clear_levels,
    length_error,
    measure_levels,
    open_body,
    open_header,
    walk_pages,
)
from modcrypt.parquet.crypto.index_checks import PageFacts
from modcrypt.parquet.crypto.plaintext_pages import walk_plaintext
from modcrypt.parquet.crypto.properties import GCM_CTR_V1
from modcrypt.parquet.format.byte_map import State
from modcrypt.parquet.format.compact import read_int
from modcrypt.parquet.format.idl import decode
from modcrypt.parquet.format.modules import Span, unexpected_page_error
from modcrypt.parquet.format.page_header import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    UNCOMPRESSED,
    PageHeader,
    scan,
)
from modcrypt.parquet.verify.chunk_report import ChunkReport
from modcrypt.parquet.verify.diagnosis import looks_like_ctr, opens_as_gcm
from modcrypt.parquet.verify.page_frames import Framed, Frames

MAX_TRIES = 4096
"""Maximum number of positions tried in a search for the next page header that opens."""

MAX_SEARCHES = 8
"""Maximum number of searches in one chunk."""

_length = Struct("<I").unpack_from


class PageWalk:
    """A walk over the pages of one chunk.

    Args:
        report: Report about the chunk.
        frames: Reader of length fields, and of the file.
        scratch: Buffer for decrypted bodies; None to check only headers.
        starts: Positions of data pages in the offset index; empty if there is none.
        keep_headers: Whether the facts include the headers of pages.
    """

    def __init__(
        self,
        report: ChunkReport,
        frames: Frames,
        scratch: Scratch | None = None,
        starts: Sequence[int] = (),
        *,
        keep_headers: bool,
    ) -> None:
        self._report, self._frames, self._scratch = report, frames, scratch
        self._window = frames.window
        self._starts, self._keep = starts, keep_headers
        self._searches = 0
        self._facts = PageFacts()

    @property
    def _chunk(self) -> Chunk:
        return self._report.chunk

    def walk(self, span: Span) -> PageFacts:
        """Check all pages, and return the facts in their headers."""
        if not self._chunk.encrypted:
            self._walk_plaintext(span)
        elif self._report.cipher is None:
            self._walk_locked(span)
        else:
            self._walk_encrypted(span, self._report.cipher)
        return self._facts

    # --- encrypted pages -------------------------------------------------------------------------

    def _walk_encrypted(self, span: Span, cipher: ChunkCipher) -> None:
        window, report, facts = self._window, self._report, self._facts
        md, scratch = self._chunk.metadata, self._scratch
        is_dictionary, uncompressed = bool(md.dictionary_page_offset), md.codec == UNCOMPRESSED
        has_tags = cipher.file.algorithm != GCM_CTR_V1
        with_regions = report.regions is not None and scratch is not None
        position, end, modules, opened = span.start, span.end, 0, 0
        page = Page(cipher, is_dictionary, 0)
        pages = walk_pages(window, position, end, page, uncompressed=uncompressed)
        while position < end:
            try:
                position, sealed = next(pages)
            except ModcryptError as error:
                facts.complete = False
                report.key_works = report.key_works or modules > 0
                next_page = self._resume_after_fault(position, end, page, error)
                if next_page is None:
                    break
                position, page = next_page[0], Page(cipher, False, next_page[1])
                pages = walk_pages(window, position, end, page, uncompressed=uncompressed)
                continue
            page, plain, header, body, _, total = sealed
            size = len(body)
            modules += 1
            opened += total - size
            if scratch is None:
                self._note_unopened_body(sealed, position)
            elif has_tags:
                try:
                    clear = open_body(sealed, scratch.reserve(size - GCM_OVERHEAD))
                except ModcryptError as error:
                    self._report_bad_body(sealed, position + total - size, error)
                else:
                    modules += 1
                    opened += size - clear
                    if clear or with_regions or header[6] is not None:
                        self._check_body(sealed, position + total - size, clear, "authentic")
            else:
                try:
                    self._check_ctr_body(sealed, position + total - size)
                except FormatError as error:
                    self._report_bad_body(sealed, position + total - size, error)
            if with_regions:
                module = page.header_id()
                border = position + total - size
                report.add_module_region(position, border, module.type, "authentic", module.page)
            if page.is_dictionary:
                facts.dictionaries.append(plain)
            else:
                border = position + total - size
                self._add_data_page(position, border, position + total, page.ordinal, plain, header)
            page = Page(cipher, False, page.ordinal + (not page.is_dictionary))
            position += total
        report.modules += modules
        report.authenticated += opened

    def _add_data_page(
        self, start: int, border: int, end: int, ordinal: int, plain: bytes, header: PageHeader
    ) -> None:
        """Keep the facts in the header of a data page."""
        facts = self._facts
        try:
            facts.pages.append((start, end - start, *_read_counts(plain, header)))
        except FormatError as error:
            facts.complete = False
            module = self._chunk.id(ModuleType.DATA_PAGE_HEADER, ordinal)
            self._report.add_fault(error.word, f"{module}: {error}", start, border, module)
        if self._keep:
            facts.headers.append(bytes(plain))

    def _note_unopened_body(self, sealed: EncryptedPage, start: int) -> None:
        """Report the regions of a page whose body stays closed, and whether it has plain levels."""
        (cipher, is_dictionary, ordinal), end = sealed.page, start + sealed.total
        if has_clear_levels(sealed):
            self._note_levels()
        state: State = "unchecked"
        if cipher.file.algorithm == GCM_CTR_V1:
            state = "unauthenticated"
        border, number = end - len(sealed.body), None if is_dictionary else ordinal
        self._report.add_page_regions(start, border, end, number, "authentic", state)

    def _check_body(self, sealed: EncryptedPage, start: int, clear: int, state: State) -> None:
        """Report regions, unencrypted levels and a wrong CRC of a body."""
        body, header, report = sealed[3], sealed[2], self._report
        module, end = sealed.page.id(), start + len(body)
        if clear:
            self._note_levels()
        if header.crc is not None and zlib.crc32(body) != header.crc:
            self._report_wrong_crc(module, start, end, clear)
        border = start + clear
        report.add_module_region(start, border, module.type, "unauthenticated", module.page)
        report.add_module_region(border, end, module.type, state, module.page)

    def _note_levels(self) -> None:
        self._report.add_note(
            "levels",
            self._chunk.path,
            "its data pages V2 have parquet-java's layout: repetition and definition levels are "
            "not encrypted, and no tag authenticates them; only rows and nulls are counted",
        )

    def _report_bad_body(self, sealed: EncryptedPage, start: int, error: ModcryptError) -> None:
        page, _, header, body, _, _ = sealed
        end, module, codec = start + len(body), page.id(), self._chunk.metadata.codec
        if isinstance(error, TagMismatchError) and looks_like_ctr(
            page.cipher.key, header, body, codec
        ):
            hint = (
                "It looks like a page of AES_GCM_CTR_V1: some versions of Arrow C++ wrote "
                "AES_GCM_V1 into the footers of such files"
            )
            self._report.add_module_region(start, end, module.type, "fault", module.page)
            self._report.add_error(error, start, end, module, hint)
        else:
            self._report.add_unopened(error, module, start, end, body)
        if type(error) is IntegrityError:  # the values opened, their levels are wrong
            self._note_levels()

    def _check_ctr_body(self, sealed: EncryptedPage, start: int) -> None:
        """Check lengths, CRC and levels of a body without a tag."""
        page, _, _, body, aad, _ = sealed
        report, end, module = self._report, start + len(body), page.id()
        report.add_note(
            "pages",
            None,
            "AES_GCM_CTR_V1 leaves page bodies without a tag: altered bodies decrypt to other "
            "values undetected",
        )
        whole = _length(body)[0] == len(body) - 4
        clear = 0 if whole else measure_levels(sealed)
        if not whole and not clear:
            report.add_error(length_error(sealed), start, end, module)
        self._check_body(sealed, start, clear, "unauthenticated")
        try:
            check_levels(sealed, clear)
        except IntegrityError as error:
            report.add_error(error, start, end, module)
        if not page.ordinal and opens_as_gcm(page.cipher, body, aad):
            message = (
                f"{module}: it has a tag, and the tag matches: the file was written with "
                "AES_GCM_V1, and its label was changed to AES_GCM_CTR_V1 to turn authentication "
                "off"
            )
            report.add_fault("integrity", message, start, end, module)

    def _report_wrong_crc(self, module: ModuleId, start: int, end: int, clear: int = 0) -> None:
        which = "stored bytes, which include unencrypted levels" if clear else "stored bytes"
        message = f"{module}: the CRC in the header does not match the {which}"
        self._report.add_fault("checksum", message, start, end, module)

    # --- after a fault ---------------------------------------------------------------------------

    def _resume_after_fault(
        self, position: int, end: int, page: Page, error: ModcryptError
    ) -> tuple[int, int] | None:
        """Report a page that cannot be read; return the position and ordinal of the next page."""
        report, module = self._report, page.header_id()
        framed, border = self._frames.find(position, end), self._frames.find_border(position, end)
        actual = None
        if isinstance(error, TagMismatchError):
            border = end if border is None else border
            stored = memoryview(self._frames.read(position, border))
            actual = report.add_unopened(error, module, position, border, stored)
        place = self._find_next_page(position, end, framed, page, actual)
        after = end if place is None else place[0]
        if not isinstance(error, TagMismatchError):
            border = after if border is None else min(border, after)
            report.add_module_region(position, border, module.type, "fault", module.page)
            report.add_error(error, position, border, module)
        assert border is not None
        if framed is not None and framed.next == after:
            self._check_body_without_header(page, framed)
        else:
            report.add_module_region(border, after, page.id().type, "unchecked", module.page)
        if place is None and border < end:
            message = (
                f"{self._chunk.where}: cannot find the page after byte {position}, so "
                f"{end - border} bytes of the chunk were not checked"
            )
            report.add_fault("truncation", message, border, end)
        return place

    def _check_body_without_header(self, page: Page, framed: Framed) -> None:
        """Check the body of a page whose header cannot be read."""
        start, end, module, cipher = framed.body, framed.next, page.id(), page.cipher
        no_tag = cipher.file.algorithm == GCM_CTR_V1
        if self._scratch is None or no_tag or page.ordinal > MAX_ORDINAL:
            self._report.add_module_region(start, end, module.type, "unchecked", module.page)
            return
        _, aad = cipher.page_aads(page.is_dictionary, page.ordinal)
        stored = memoryview(self._frames.read(start, end))
        try:
            cipher.header.open(stored, aad)
        except TagError:
            error = TagMismatchError(module, cipher.tag_hint)
            self._report.add_unopened(error, module, start, end, stored)
        else:
            self._report.count_opened(module, start, end)

    def _find_next_page(
        self, position: int, end: int, framed: Framed | None, page: Page, actual: int | None
    ) -> tuple[int, int] | None:
        """Return the position and ordinal of the next page, or the chunk's end; None if unknown.

        Args:
            position: Position of a page that does not open.
            end: End of the chunk.
            framed: Places of the page's modules by their length fields, if plausible.
            page: Page expected at `position`.
            actual: Ordinal of the page that is really there, if it is another page.
        """
        following = page.ordinal + (not page.is_dictionary)
        number = bisect_right(self._starts, position)
        start = self._starts[number] if number < len(self._starts) else end
        if self._starts and start <= end and number >= following:
            return start, number
        ordinals = [following] if actual is None else [following, actual + 1]
        if framed is not None:
            if framed.next == end:
                return end, following
            for ordinal in ordinals:
                if self._opens_at(framed.next, end, Page(page.cipher, False, ordinal)):
                    return framed.next, ordinal
        for ordinal in ordinals if self._report.key_works else ():
            header = self._search_header(position + 1, end, Page(page.cipher, False, ordinal))
            if header is not None:
                return header, ordinal
        return None if framed is None else (framed.next, following)

    def _opens_at(self, position: int, end: int, page: Page) -> bool:
        """Return whether the header of this page is at `position`."""
        if page.ordinal > MAX_ORDINAL:
            return False
        try:
            open_header(self._window, position, end, page, uncompressed=False)
        except (TagMismatchError, TruncationError):
            return False
        except FormatError:
            pass  # the header opened, but is invalid otherwise
        return True

    def _search_header(self, position: int, end: int, page: Page) -> int | None:
        """Return the position of a page's header, found by trying; None if it is not found."""
        if self._searches >= MAX_SEARCHES:
            return None
        self._searches += 1
        for at in islice(self._frames.find_possible_headers(position, end), MAX_TRIES):
            if self._opens_at(at, end, page):
                return at
        return None

    # --- pages that are not opened ---------------------------------------------------------------

    def _walk_locked(self, span: Span) -> None:
        """Follow the length fields of modules that cannot be opened."""
        self._facts.complete = False
        report, state, md = self._report, self._report.unopened_state, self._chunk.metadata
        position, end, ordinal = span.start, span.end, 0
        is_dictionary = bool(md.dictionary_page_offset)
        while position < end:
            framed = self._frames.find(position, end, with_levels=True)
            if framed is None or ordinal > MAX_ORDINAL:
                message = (
                    f"{self._chunk.where}: from byte {position} on, the length fields of the "
                    "modules do not lead from one to the next: bytes were altered or removed"
                )
                report.add_module_region(position, end, "pages", state)
                report.add_fault("truncation", message, position, end)
                return
            self._facts.has_unframed_bytes |= framed.body > framed.border
            number = None if is_dictionary else ordinal
            report.add_page_regions(position, framed.border, framed.next, number, state, state)
            ordinal += not is_dictionary
            is_dictionary, position = False, framed.next

    def _walk_plaintext(self, span: Span) -> None:
        """Read the page headers of a plaintext chunk, and the bodies that have a CRC."""
        position, end = span.start, span.end
        pages = walk_plaintext(self._window, span, self._chunk.path, bodies=False)
        while position < end:
            try:
                position, buffer, at, header, _, size, _ = next(pages)
            except FormatError as error:
                self._facts.complete = False
                number = bisect_right(self._starts, position)
                after = min(self._starts[number], end) if number < len(self._starts) else end
                self._report.add_fault("format", str(error), position, after)
                self._report.add_module_region(position, after, "pages", "plaintext")
                rest = replace(span, start=after)
                pages = walk_plaintext(self._window, rest, self._chunk.path, bodies=False)
            else:
                after = position + size + header.compressed_size
                plain = bytes(buffer[at : header.end])
                self._check_plaintext_page(position, plain, after, first=position == span.start)
            position = after

    def _check_plaintext_page(self, position: int, plain: bytes, end: int, *, first: bool) -> None:
        """Check the page in [position, end), given its header."""
        header, report, facts = scan(plain, 0, len(plain)), self._report, self._facts
        kind, body = header.type, position + len(plain)
        is_dictionary = kind == DICTIONARY_PAGE and first
        if is_dictionary:
            module = self._chunk.id(ModuleType.DICTIONARY_PAGE)
            facts.dictionaries.append(plain)
        else:
            module = self._chunk.id(ModuleType.DATA_PAGE, len(facts.pages))
        report.add_page_regions(position, body, end, module.page, "plaintext", "plaintext")
        if not is_dictionary:
            if kind not in (DATA_PAGE, DATA_PAGE_V2):
                facts.complete = False
                report.add_error(unexpected_page_error(str(module), kind), position, body, module)
                return
            self._add_data_page(position, body, end, len(facts.pages), plain, header)
        has_crc = header.crc is not None and self._scratch is not None
        if has_crc and self._compute_crc(body, end) != header.crc:
            self._report_wrong_crc(module, body, end)

    def _compute_crc(self, start: int, end: int) -> int:
        crc = 0
        while start < end:
            part = self._frames.read(start, min(end, start + (1 << 20)))
            crc = zlib.crc32(part, crc)
            start += len(part)
        return crc


_DETAILS = {DATA_PAGE: 5, DATA_PAGE_V2: 8}  # field ids of the data page structs in PageHeader


def _read_counts(plain: bytes | bytearray, header: PageHeader) -> tuple[int, int, int]:
    """Return the numbers of values, nulls and rows of a data page; -1 if a V1 header lacks one.

    The numbers come first in a struct that follows the sizes or the CRC, which allows a fast path.

    Raises:
        FormatError: The header has no such struct.
    """
    kind = header[1]
    at, last = (header[5], 3) if header[6] is None else (header[8], 4)
    if plain[at] == (_DETAILS[kind] - last) << 4 | 12 and plain[at + 1] == 0x15:
        byte, more = plain[at + 2], plain[at + 3]
        if kind == DATA_PAGE and more < 128 and not byte & 1:  # most numbers take one or two bytes
            return byte >> 1 if byte < 128 else (byte & 127 | more << 7) >> 1, -1, -1
        data = bytes(plain)
        values, at = read_int(data, at + 2, 32)
        if kind == DATA_PAGE:
            return values, -1, -1
        if data[at] == 0x15:
            nulls, at = read_int(data, at + 1, 32)
            if data[at] == 0x15:
                return values, nulls, read_int(data, at + 1, 32)[0]
    decoded = decode("PageHeader", bytes(plain))[0]
    v1, v2 = decoded.data_page_header, decoded.data_page_header_v2
    if kind == DATA_PAGE and v1 is not None:
        return v1.num_values, -1, -1
    if kind == DATA_PAGE_V2 and v2 is not None:
        return v2.num_values, v2.num_nulls, v2.num_rows
    raise FormatError("page header: the struct for its page type is missing")
