"""Check the pages of a chunk from the first to the last, continuing after faults.

Verification checks headers and bodies, inspection only headers. Pages go through `walk_pages` and
`open_body` of `encrypted_pages`, as in every reader, so that verifying and reading agree. Bodies
are decrypted into one buffer, which is reused and never returned.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from struct import Struct

from modcrypt.aead import GCM_OVERHEAD
from modcrypt.errors import IntegrityError, ModcryptError, TagMismatchError
from modcrypt.io.buffers import Scratch
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
from modcrypt.parquet.crypto.properties import GCM_CTR_V1
from modcrypt.parquet.format.byte_map import State
from modcrypt.parquet.format.modules import Span
from modcrypt.parquet.verify.chunk_report import ChunkReport
from modcrypt.parquet.verify.page_frames import Frames
from modcrypt.parquet.verify.page_quirks import (
    CLEAR_LEVELS,
    NO_TAGS,
)
from modcrypt.parquet.verify.page_recovery import ResumingWalk
from modcrypt.parquet.verify.unencrypted_pages import check_plaintext_pages, follow_length_fields

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
        check_plaintext_pages(span, report, frames, starts, bodies=bodies)
    elif report.cipher is None:
        follow_length_fields(span, report, frames)
    else:
        walk = ResumingWalk(report, report.cipher, frames, starts, bodies=bodies)
        _EncryptedPages(report, report.cipher, scratch).check(walk.list_pages(span))
    return report.facts


class _EncryptedPages:
    """Checks of the pages of one encrypted chunk, with its key."""

    def __init__(self, report: ChunkReport, cipher: ChunkCipher, scratch: Scratch | None) -> None:
        self._report, self._scratch = report, scratch
        self._has_tags = cipher.file.algorithm != GCM_CTR_V1

    def check(self, pages: Iterator[EncryptedPage]) -> None:
        """Check all pages."""
        report = self._report
        check_body = self._note_unopened_body if self._scratch is None else self._check_body
        for sealed in pages:
            page, position = sealed.page, sealed.position
            end = position + sealed.total
            border = end - len(sealed.body)
            report.count_verified(border - position)
            if report.regions is not None:
                report.add_module_region(position, border, page.header_id(), "authentic")
            check_body(sealed, border)
            if page.is_dictionary:
                report.facts.dictionaries.append(sealed.header.raw)
            else:
                report.add_data_page(position, border, end, page.ordinal, sealed.header)

    # --- bodies ----------------------------------------------------------------------------------

    def _note_unopened_body(self, sealed: EncryptedPage, start: int) -> None:
        """Report the region of a body that stays closed, and whether it has plaintext levels."""
        if has_clear_levels(sealed):
            self._note_levels()
        state: State = "unchecked" if self._has_tags else "unauthenticated"
        self._report.add_module_region(start, start + len(sealed.body), sealed.page.id(), state)

    def _check_body(self, sealed: EncryptedPage, start: int) -> None:
        """Open a body, and report its regions, unencrypted levels and a wrong CRC."""
        report, body, crc, clear = self._report, sealed.body, sealed.header.crc, 0
        try:
            if self._has_tags:
                assert self._scratch is not None
                clear = open_body(sealed, self._scratch.reserve(len(body) - GCM_OVERHEAD))
                report.count_verified(len(body) - clear)
            else:
                clear = self._check_ctr_body(sealed, start)
        except ModcryptError as error:
            self._report_bad_body(sealed, start, error)
            return
        if clear:
            self._note_levels()
        if crc is not None and zlib.crc32(body) != crc:
            report.add_wrong_crc(sealed.page.id(), start, start + len(body), clear)
        if report.regions is not None:
            module, border = sealed.page.id(), start + clear
            report.add_module_region(start, border, module, "unauthenticated")
            state: State = "authentic" if self._has_tags else "unauthenticated"
            report.add_module_region(border, start + len(body), module, state)

    def _note_levels(self) -> None:
        self._report.add_note("levels", self._report.chunk.path, CLEAR_LEVELS)

    def _report_bad_body(self, sealed: EncryptedPage, start: int, error: ModcryptError) -> None:
        page, body, hint = sealed.page, sealed.body, ""
        report, end, module = self._report, start + len(body), page.id()
        if isinstance(error, TagMismatchError):  # another cause may be found, so the hint is apart
            hint, error = label_hint(sealed), TagMismatchError(module, page.cipher.tag_hint)
        report.add_unopened(error, module, start, end, body, hint)
        if type(error) is IntegrityError:  # the values opened, their levels are wrong
            self._note_levels()

    def _check_ctr_body(self, sealed: EncryptedPage, start: int) -> int:
        """Check a body without a tag, and return the size of the plaintext levels before it."""
        body, module = sealed.body, sealed.page.id()
        report, end = self._report, start + len(body)
        report.add_note("pages", None, NO_TAGS)
        whole = _length(body)[0] == len(body) - 4
        clear = 0 if whole else measure_levels(sealed)
        try:
            if not whole and not clear:
                raise length_error(sealed)
            check_levels(sealed, clear)
        except IntegrityError as error:
            report.add_error(error, start, end, module)
        try:
            check_label(sealed, clear)
        except IntegrityError as error:
            report.add_error(error, start, end, module)
        return clear
