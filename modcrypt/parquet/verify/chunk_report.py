"""A column chunk that is verified: what is known of it, and how its modules are told of."""

from __future__ import annotations

from dataclasses import dataclass, field

from modcrypt.aad import ModuleId, ModuleType
from modcrypt.aead import GCM_OVERHEAD
from modcrypt.errors import ModcryptError, TagMismatchError
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.format.byte_map import State
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import Part, Span
from modcrypt.parquet.format.schema import Leaf
from modcrypt.parquet.verify.diagnosis import Detective
from modcrypt.parquet.verify.findings import MAX_CHUNK_FINDINGS, Report

__all__ = ["Chunk", "ChunkReport"]


@dataclass(slots=True)
class Chunk:
    """What is to be checked of a chunk, and with which key."""

    row_group: int  # its place in the file
    column: int
    leaf: Leaf
    element: ThriftStruct  # of the schema
    path: str
    rows: int
    chunk: ThriftStruct  # ColumnChunk, its `meta_data` opened where that can be
    ordinal: int  # of its row group, as it is in the AADs
    encrypted: bool = False
    key: Key | None = None
    kind: str | None = None  # of its key: the footer's, or its own
    key_name: str | None = None  # for people
    key_works: bool = False  # its column metadata opened
    spans: list[Span] = field(default_factory=list)
    overlapping: set[Part] = field(default_factory=set)  # its parts that begin inside others

    def id(self, kind: ModuleType, page: int | None = None) -> ModuleId:
        """Give the address of one of its modules."""
        return ModuleId(kind, self.ordinal, self.column, page, self.path)

    @property
    def where(self) -> str:
        """Its address, for messages."""
        return f"row group {self.row_group}, column {self.path}"

    @property
    def metadata(self) -> ThriftStruct:
        """Its ColumnMetaData."""
        return self.chunk.meta_data

    @property
    def size(self) -> int:
        """Bytes of all its parts."""
        return sum(span.end - span.start for span in self.spans)


class ChunkReport(Report):
    """What was found in one chunk."""

    def __init__(
        self,
        chunk: Chunk,
        cipher: ChunkCipher | None,
        detective: Detective | None,
        *,
        regions: bool,
    ) -> None:
        super().__init__(MAX_CHUNK_FINDINGS, regions=regions)
        self.chunk, self.cipher = chunk, cipher
        self.key_works = chunk.key_works
        # Once for each chunk: what is wrong with one module is with others.
        self._detective = detective if cipher is not None else None

    def module_region(
        self, start: int, end: int, kind: ModuleType | str, state: State, page: int | None = None
    ) -> None:
        """Say what some bytes of the chunk are."""
        if self.regions is None:
            return
        chunk = self.chunk
        name = kind if not isinstance(kind, ModuleType) else kind.name.lower().replace("_", " ")
        place = chunk.row_group, chunk.column, page, chunk.path
        key = chunk.key_name if chunk.encrypted else None
        self.region(start, end, name, state, place=place, key=key)

    def opened(self, module: ModuleId, start: int, end: int) -> None:
        """Count a module that opened."""
        self.key_works = True
        self.verified(end - start)
        self.module_region(start, end, module.type, "authentic", module.page)

    def truncated(self, module: ModuleId, start: int, end: int) -> None:
        """Tell of a length field that is not true."""
        message = f"{module}: its length field does not agree with the {end - start} bytes it has"
        self.fault("truncation", message, start, end, module)

    def unopened(
        self, error: ModcryptError, module: ModuleId, start: int, end: int, sealed: memoryview
    ) -> int | None:
        """Tell of a module that does not open; give the page that it is, if that is found out.

        Args:
            sealed: the module, as it is stored.
        """
        self.module_region(start, end, module.type, "fault", module.page)
        cause = None
        if isinstance(error, TagMismatchError) and self._detective is not None:
            assert self.cipher is not None
            if len(sealed) >= GCM_OVERHEAD:
                cause = self._detective.explain(self.cipher, module, sealed)
            self._detective = None
        self.error(error, start, end, module, "" if cause is None else cause.hint)
        return None if cause is None else cause.page
