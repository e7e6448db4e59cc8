"""A column chunk under verification, and the report about its modules."""

from __future__ import annotations

from dataclasses import dataclass, field

from modcrypt.aad import ModuleId, ModuleType
from modcrypt.aead import GCM_OVERHEAD
from modcrypt.errors import ModcryptError, TagMismatchError
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.format.byte_map import State
from modcrypt.parquet.format.findings import MAX_CHUNK_FINDINGS, Report
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import Part, Span
from modcrypt.parquet.format.schema import Leaf
from modcrypt.parquet.verify.diagnosis import Detective

__all__ = ["Chunk", "ChunkReport"]


@dataclass(slots=True)
class Chunk:
    """A chunk to check, its key, and the places of its parts."""

    row_group: int  # position in the file, which may differ from `ordinal`
    column: int
    leaf: Leaf
    element: ThriftStruct  # SchemaElement of the column
    path: str
    rows: int
    chunk: ThriftStruct  # ColumnChunk; `meta_data` is decrypted if there is a key
    ordinal: int  # row group ordinal in the AADs
    encrypted: bool = False
    key: Key | None = None
    kind: str | None = None  # kind of key: footer key or column key
    key_name: str | None = None  # name of the key for people
    key_works: bool = False  # whether the key opened the column metadata
    spans: list[Span] = field(default_factory=list)
    overlapping: set[Part] = field(default_factory=set)  # parts that begin inside other parts

    def id(self, kind: ModuleType, page: int | None = None) -> ModuleId:
        """Return the address of one of the chunk's modules."""
        return ModuleId(kind, self.ordinal, self.column, page, self.path)

    @property
    def where(self) -> str:
        """Address of the chunk, for messages."""
        return f"row group {self.row_group}, column {self.path}"

    @property
    def metadata(self) -> ThriftStruct:
        """ColumnMetaData of the chunk."""
        return self.chunk.meta_data

    @property
    def size(self) -> int:
        """Total size of the chunk's parts in bytes."""
        return sum(span.end - span.start for span in self.spans)


class ChunkReport(Report):
    """A report about one chunk."""

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
        # Diagnose once per chunk: other modules most likely have the same fault.
        self._detective = detective if cipher is not None else None

    def add_module_region(
        self, start: int, end: int, kind: ModuleType | str, state: State, page: int | None = None
    ) -> None:
        """Add a region of the chunk's bytes to the byte map."""
        if self.regions is None:
            return
        chunk = self.chunk
        name = kind if not isinstance(kind, ModuleType) else kind.name.lower().replace("_", " ")
        place = chunk.row_group, chunk.column, page, chunk.path
        key = chunk.key_name if chunk.encrypted else None
        self.add_region(start, end, name, state, place=place, key=key)

    def count_opened(self, module: ModuleId, start: int, end: int) -> None:
        """Count a module that authenticated, and add its region."""
        self.key_works = True
        self.count_verified(end - start)
        self.add_module_region(start, end, module.type, "authentic", module.page)

    def add_truncated(self, module: ModuleId, start: int, end: int) -> None:
        """Add a fault about a length field that does not fit."""
        message = f"{module}: the length field does not match the module's {end - start} bytes"
        self.add_fault("truncation", message, start, end, module)

    def add_unopened(
        self, error: ModcryptError, module: ModuleId, start: int, end: int, stored: memoryview
    ) -> int | None:
        """Add a fault about a module that does not open.

        Args:
            stored: Encrypted module as it is stored.

        Returns:
            The ordinal of the page that the module really is, if the diagnosis finds it.
        """
        self.add_module_region(start, end, module.type, "fault", module.page)
        cause = None
        if isinstance(error, TagMismatchError) and self._detective is not None:
            assert self.cipher is not None
            if len(stored) >= GCM_OVERHEAD:
                cause = self._detective.explain(self.cipher, module, stored)
            self._detective = None
        self.add_error(error, start, end, module, "" if cause is None else cause.hint)
        return None if cause is None else cause.page
