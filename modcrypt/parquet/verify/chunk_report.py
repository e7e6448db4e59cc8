"""A report about the modules of one column chunk."""

from __future__ import annotations

from modcrypt.aead import GCM_OVERHEAD
from modcrypt.errors import FormatError, ModcryptError, TagMismatchError
from modcrypt.module_ids import ModuleId, ModuleType, in_words
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.page_facts import PageFacts, read_counts
from modcrypt.parquet.format.byte_map import Region, State
from modcrypt.parquet.format.findings import MAX_CHUNK_FINDINGS
from modcrypt.parquet.format.page_header import PageHeader
from modcrypt.parquet.format.report import Report
from modcrypt.parquet.verify.diagnosis import Cause, Detective

_DATA = ModuleType.DATA_PAGE_HEADER, ModuleType.DATA_PAGE
_DICTIONARY = ModuleType.DICTIONARY_PAGE_HEADER, ModuleType.DICTIONARY_PAGE
_NAMES = {kind: in_words(kind) for kind in ModuleType}


class ChunkReport(Report):
    """A report about one chunk."""

    def __init__(
        self, chunk: Chunk, cipher: ChunkCipher | None, detective: Detective | None, *,
        regions: bool,
    ) -> None:  # fmt: skip
        super().__init__(MAX_CHUNK_FINDINGS, regions=regions)
        self.chunk, self.cipher, self.facts = chunk, cipher, PageFacts()
        self.key_works = bool(chunk.key_works)
        # Diagnose once per chunk: other modules most likely have the same fault.
        self._detective = detective if cipher is not None else None

    @property
    def unopened_state(self) -> State:
        """State of the chunk's parts that are not opened."""
        if not self.chunk.encrypted:
            return "plaintext"
        return "unchecked" if self.chunk.cipher is not None or self.chunk.key_works else "locked"

    def add_module_region(self, start: int, end: int, module: ModuleId | str, state: State) -> None:
        """Add a region of the chunk's bytes, which are a module or of another kind."""
        if self.regions is None or end <= start:
            return
        chunk = self.chunk
        self.regions.append(
            Region(
                start=start,
                end=end,
                kind=module if isinstance(module, str) else _NAMES[module.type],
                state=state,
                row_group=chunk.row_group,
                column=chunk.column,
                page=None if isinstance(module, str) else module.page,
                path=chunk.path,
                key=None if state == "plaintext" else chunk.key_name,
            )
        )

    def add_page_regions(
        self, start: int, border: int, end: int, page: int | None, state: State
    ) -> None:
        """Add the regions of a page's header and body; `page` is None for a dictionary."""
        kinds = _DICTIONARY if page is None else _DATA
        self.add_module_region(start, border, self.chunk.id(kinds[0], page), state)
        self.add_module_region(border, end, self.chunk.id(kinds[1], page), state)

    def add_data_page(
        self, start: int, border: int, end: int, page: int, header: PageHeader
    ) -> None:
        """Add the facts in the header of the data page in [start, end), or a fault."""
        facts = self.facts
        try:
            values, nulls, rows = read_counts(header)
            facts.pages.append((start, end - start, values, nulls, rows))
        except FormatError as error:
            facts.complete = False
            module = self.chunk.id(ModuleType.DATA_PAGE_HEADER, page)
            self.add_fault(error.word, f"{module}: {error}", start, border, module)
        if facts.keep_headers:
            facts.headers.append(header.raw)

    def add_wrong_crc(self, module: ModuleId, start: int, end: int, clear: int = 0) -> None:
        """Add a fault about a CRC; `clear` is the size of the body's unencrypted levels."""
        which = "stored bytes, which include unencrypted levels" if clear else "stored bytes"
        message = f"{module}: the CRC in the header does not match the {which}"
        self.add_fault("checksum", message, start, end, module)

    def count_opened(self, module: ModuleId, start: int, end: int) -> None:
        """Count a module that authenticated, and add its region."""
        self.key_works = True
        self.count_verified(end - start)
        self.add_module_region(start, end, module, "authentic")

    def add_unopened(
        self, error: ModcryptError, module: ModuleId, start: int, end: int, stored: memoryview,
        hint: str = "",
    ) -> None:  # fmt: skip
        """Add a fault about a module that does not open; `stored` is that encrypted module.

        `hint` is a guess at the reason, reported if the reason is not found.
        """
        self.add_module_region(start, end, module, "fault")
        cause = self.diagnose(error, module, stored)
        self.add_error(error, start, end, module, hint if cause is None else cause.hint)

    def diagnose(self, error: ModcryptError, module: ModuleId, stored: memoryview) -> Cause | None:
        """Return why a module does not open; None if that is unknown, or a chunk's second one."""
        if not isinstance(error, TagMismatchError) or self._detective is None:
            return None
        assert self.cipher is not None
        detective, self._detective = self._detective, None
        if len(stored) < GCM_OVERHEAD:
            return None
        return detective.explain(self.cipher, module, stored)
