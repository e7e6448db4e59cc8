"""Walk over the pages of a chunk, and go on after pages whose headers do not open.

Where the next page begins follows from the offset index, from the length fields before modules, or
from searching for the next header that opens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice

from modcrypt.aad import MAX_ORDINAL
from modcrypt.errors import FormatError, ModcryptError, TagMismatchError, TruncationError
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    Page,
    open_header,
    opens_as_gcm,
    walk_pages,
)
from modcrypt.parquet.crypto.properties import GCM_CTR_V1
from modcrypt.parquet.format.modules import Span
from modcrypt.parquet.format.page_header import ALWAYS, page_compression
from modcrypt.parquet.verify.chunk_report import ChunkReport
from modcrypt.parquet.verify.page_frames import Framed, Frames

MAX_TRIES = 4096
"""Maximum number of positions tried in a search for the next page header that opens."""

MAX_SEARCHES = 8
"""Maximum number of searches in one chunk."""


class ResumingWalk:
    """A walk over the pages of one encrypted chunk that goes on after unreadable ones.

    `starts` has the positions of data pages in the offset index, empty if there is none. `bodies`
    checks the bodies of unreadable pages.
    """

    def __init__(
        self, report: ChunkReport, cipher: ChunkCipher, frames: Frames, starts: Sequence[int], *,
        bodies: bool,
    ) -> None:  # fmt: skip
        self._report, self._cipher, self._frames = report, cipher, frames
        self._starts, self._bodies, self._searches = starts, bodies, 0

    def list_pages(self, span: Span) -> Iterator[EncryptedPage]:
        """Yield the pages whose headers open; report the others."""
        report, md, start, end = self._report, self._report.chunk.metadata, span.start, span.end
        window = self._frames.window
        compression = page_compression(md.codec, report.chunk.created_by)
        page, encrypted = Page(self._cipher, bool(md.dictionary_page_offset), 0), None
        while True:
            pages = walk_pages(window, start, end, page, compression=compression)
            try:
                for encrypted in pages:
                    yield encrypted
                return
            except ModcryptError as error:
                report.facts.complete = False
                if encrypted is not None:
                    report.key_works = True
                    start, page = encrypted.position + encrypted.total, encrypted.page.next()
                place = self._resume(start, end, page, error)
            if place is None:
                return
            (start, page), encrypted = place, None

    def _resume(
        self, position: int, end: int, page: Page, error: ModcryptError
    ) -> tuple[int, Page] | None:
        """Report a page that cannot be read; return the place of the next page, None if unknown."""
        report, frames, module = self._report, self._frames, page.header_id()
        framed, border = frames.find(position, end), frames.find_border(position, end)
        cause = None
        if isinstance(error, TagMismatchError):
            border = end if border is None else border
            cause = report.diagnose(error, module, memoryview(frames.read(position, border)))
        place = self._find_next_page(position, end, framed, page, cause and cause.page)
        after = end if place is None else place[0]
        border = after if border is None else min(border, after)
        report.add_module_region(position, border, module, "fault")
        report.add_error(error, position, border, module, "" if cause is None else cause.hint)
        if framed is not None and framed.next == after:
            self._check_body(page, framed)
        else:
            report.add_module_region(border, after, page.id(), "unchecked")
        if place is None and border < end:
            message = (
                f"{report.chunk.where}: cannot find the page after byte {position}, so "
                f"{end - border} bytes of the chunk were not checked"
            )
            report.add_fault("truncation", message, border, end)
        return place

    def _check_body(self, page: Page, framed: Framed) -> None:
        report, module, cipher = self._report, page.id(), page.cipher
        start, end, no_tag = framed.body, framed.next, cipher.file.algorithm == GCM_CTR_V1
        if not self._bodies or no_tag or page.ordinal > MAX_ORDINAL:
            report.add_module_region(start, end, module, "unchecked")
            return
        _, aad = cipher.page_aads(page.is_dictionary, page.ordinal)
        stored = memoryview(self._frames.read(start, end))
        if opens_as_gcm(cipher, stored, aad):
            report.count_opened(module, start, end)
        else:
            error = TagMismatchError(module, cipher.tag_hint)
            report.add_unopened(error, module, start, end, stored)

    def _find_next_page(
        self, position: int, end: int, framed: Framed | None, page: Page, actual: int | None
    ) -> tuple[int, Page] | None:
        """Return the place of the next page, or the chunk's end; None if unknown.

        The page at `position` does not open. `framed` has the places of its modules by their length
        fields, if plausible. `page` is expected there; if another page really is, `actual` is its
        ordinal.
        """
        following = page.next()
        number = bisect_right(self._starts, position)
        start = self._starts[number] if number < len(self._starts) else end
        if self._starts and start <= end and number >= following.ordinal:
            return start, Page(page.cipher, False, number)
        pages = [following]
        if actual is not None:
            pages.append(Page(page.cipher, False, actual + 1))
        if framed is not None:
            if framed.next == end:
                return end, following
            for candidate in pages:
                if self._opens_at(framed.next, end, candidate):
                    return framed.next, candidate
        for candidate in pages if self._report.key_works else ():
            found = self._search_header(position + 1, end, candidate)
            if found is not None:
                return found, candidate
        return None if framed is None else (framed.next, following)

    def _opens_at(self, position: int, end: int, page: Page) -> bool:
        if page.ordinal > MAX_ORDINAL:
            return False
        try:
            open_header(self._frames.window, position, end, page, ALWAYS)
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
        tries = islice(self._frames.find_possible_headers(position, end), MAX_TRIES)
        return next((at for at in tries if self._opens_at(at, end, page)), None)
