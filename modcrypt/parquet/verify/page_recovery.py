"""Find the pages of a chunk although some, or all, of their headers do not open.

    [length | header] [length | body] [length | header] ...
    [length | header] [unencrypted levels] [length | values] ...  data pages V2 of parquet-java

Where the next page begins follows from the offset index; from the length fields of the modules,
which are all that is readable of a page that does not open or has no key (`Frames`); or from a
search for the next header that opens (`ResumingWalk`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from modcrypt.aad import MAX_ORDINAL
from modcrypt.aead import CTR_OVERHEAD, GCM_OVERHEAD
from modcrypt.errors import FormatError, ModcryptError, TagMismatchError, TruncationError
from modcrypt.io.buffers import Window
from modcrypt.module_ids import GCM_CTR_V1, GCM_V1
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import EncryptedPage, Page, open_header, opens_as_gcm
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, Span
from modcrypt.parquet.format.page_header import ALWAYS, page_compression
from modcrypt.parquet.format.structs import ColumnMetaData
from modcrypt.parquet.verify.chunk_report import ChunkReport

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_LEVELS = 64 << 10
"""Maximum number of unencrypted level bytes searched for the module that follows them."""

MAX_SEARCH = 4 << 20
"""Maximum number of bytes searched for a possible next page header."""

MAX_TRIES = 4096
"""Maximum number of positions tried in a search for the next page header that opens."""

MAX_SEARCHES = 8
"""Maximum number of searches in one chunk."""

_BLOCK = 4 << 10  # number of bytes read at once: few, because most lengths are far from each other

_length = Struct("<I").unpack_from
_PERHAPS_LENGTH = re.compile(rb"(?=(?:[\x1c-\xff].|.[^\x00])\x00\x00)", re.DOTALL)


class Framed(NamedTuple):
    """The places of a page's two modules according to their length fields."""

    border: int  # end of the header's module
    body: int  # start of the body's module, after unencrypted levels, if any
    next: int


class Frames:
    """A reader of length fields; `algorithm` is that of the file, None if it names none."""

    def __init__(self, window: Window, algorithm: str | None) -> None:
        self.window, self._block = window, max(_BLOCK, window.least_read)
        self._least = GCM_OVERHEAD if algorithm == GCM_V1 else CTR_OVERHEAD

    def find(self, position: int, end: int, *, with_levels: bool = False) -> Framed | None:
        """Return the modules of the page at `position`, in a chunk that ends at `end`.

        `with_levels` looks for the body after unencrypted levels, too.
        """
        border = self.find_border(position, end)
        if border is None or border > end - 4:
            return None
        after = self.find_end(border, end)
        if after is not None and (after == end or self._looks_like_header(after, end)):
            return Framed(border, border, after)
        # If a module could start at the border, unencrypted levels would lie within it.
        last = min(border + MAX_LEVELS, end - 4, end if after is None else after - 1)
        for body in range(border + 1, last + 1) if with_levels else ():
            next_ = self.find_end(body, end)
            ends = next_ == end or (next_ is not None and self._looks_like_header(next_, end))
            if next_ is not None and ends and not self._ends_header(border, body):
                return Framed(border, body, next_)
        return None if after is None else Framed(border, border, after)

    def find_end(self, start: int, end: int) -> int | None:
        """Return where the module at `start` ends, if its length field is plausible."""
        if start + self._least > end:
            return None
        after = start + 4 + self.read_length(start, end)
        return after if start + self._least <= after <= end else None

    def _ends_header(self, start: int, body: int) -> bool:
        """Return whether a header's module ends at `body`, so that no levels precede it."""
        data = self.read(start, body)
        size = len(data)
        return any(at + 4 + _length(data, at)[0] == size for at in range(size - GCM_OVERHEAD))

    def find_border(self, position: int, end: int) -> int | None:
        """Return where the header's module ends, if its length field is plausible."""
        if end - position < GCM_OVERHEAD:
            return None
        border = position + 4 + self.read_length(position, end)
        return border if position + GCM_OVERHEAD < border <= end else None

    def find_possible_headers(self, position: int, end: int) -> Iterator[int]:
        """Yield positions of length fields below 64 KiB that may start a page header's module."""
        stop = min(end, position + MAX_SEARCH)
        while position < stop:
            data = self.read(position, min(stop, position + (1 << 16)))
            for match in _PERHAPS_LENGTH.finditer(data):
                if self._looks_like_header(position + match.start(), end):
                    yield position + match.start()
            if position + len(data) == stop:
                return
            position += len(data) - 3

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the source."""
        self.window.fill(start, end, end)
        base = self.window.base
        return bytes(self.window.view[start - base : end - base])

    def _looks_like_header(self, position: int, end: int) -> bool:
        if not position < end - GCM_OVERHEAD:
            return False
        size = self.read_length(position, end)
        return GCM_OVERHEAD - 4 < size < min(end - position, MAX_PAGE_HEADER)

    def read_length(self, position: int, end: int) -> int:
        """Return the length at a position, at least four bytes before `end`."""
        self.window.fill(position, position + 4, min(end, position + self._block))
        value: int = _length(self.window.buffer, position - self.window.base)[0]
        return value


class ResumingWalk:
    """A walk over the pages of one encrypted chunk that goes on after unreadable ones.

    `starts` has the positions of data pages in the offset index, empty if there is none. `bodies`
    checks the bodies of unreadable pages. A method takes less time than a generator: most chunks
    have one or two pages.
    """

    def __init__(
        self, span: Span, report: ChunkReport, cipher: ChunkCipher, frames: Frames,
        starts: Sequence[int], *, bodies: bool,
    ) -> None:  # fmt: skip
        self._report, self._frames = report, frames
        self._starts, self._bodies, self._searches = starts, bodies, 0
        md: ColumnMetaData = report.chunk.metadata
        self._compression: i64 = page_compression(md.codec, report.chunk.created_by)
        # The place of the next page, the end of the chunk, and whether the page before opened.
        self._position: i64 = span.start
        self._page = Page(cipher, bool(md.dictionary_page_offset), 0)
        self._end: i64 = span.end
        self._opened = False

    def next_page(self) -> EncryptedPage | None:
        """Return the next page whose header opens, and report others; None at the end."""
        window, end = self._frames.window, self._end
        while self._position < end:
            position, page = self._position, self._page
            try:
                encrypted = open_header(window, position, end, page, self._compression)
            except ModcryptError as error:
                self._report.facts.complete = False
                if self._opened:
                    self._report.key_works = True
                place = self._resume(position, end, page, error)
                if place is None:
                    break
                self._position, self._page = place
                self._opened = False
            else:
                self._position = position + encrypted.total
                if self._position < end:
                    self._page = page.next()
                self._opened = True
                return encrypted
        return None

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
