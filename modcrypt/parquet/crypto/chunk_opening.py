"""Opening of column chunks: key, column metadata and what they must agree with.

Each check exists once and reports to a `Report`, as in `footer_opening`: reading is strict,
verification and inspection collect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from modcrypt.aad import MAX_ORDINAL
from modcrypt.errors import FormatError, ModcryptError, UnsupportedFormatError
from modcrypt.keys import Key
from modcrypt.module_ids import ModuleId, ModuleType
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.column_kinds import COLUMN_KEY, FOOTER_KEY, PLAINTEXT, chunk_kind
from modcrypt.parquet.crypto.footer import Footer, find_key_fault, take_mark
from modcrypt.parquet.crypto.key_lookup import ColumnKeys, KeyAnswer
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.idl import STATISTICS, ThriftStruct, copy, decode
from modcrypt.parquet.format.modules import Part, Span, check_column_metadata, check_file_path
from modcrypt.parquet.format.report import Report
from modcrypt.parquet.format.schema import Leaf
from modcrypt.parquet.format.structs import ColumnChunk, ColumnCryptoMetaData

if TYPE_CHECKING:
    from mypy_extensions import i64

_NO_PARTS: Final[frozenset[Part]] = frozenset()


class Chunk:
    """A column chunk, its key, and the places of its parts.

    Attributes:
        row_group: Position of its row group in the file.
        ordinal: Ordinal of the row group in the AADs, which differs in altered files.
        stored: ColumnChunk of the footer.
        kind: How the chunk is encrypted.
        key_name: Name of the key for people.
        key_works: Whether the key is right; None if that is unknown.
        metadata: ColumnMetaData, decrypted if there is a key.
        struct: ColumnChunk with that metadata.
        size: Total size of its parts in bytes.
        overlapping: Parts that begin inside other parts.
    """

    __slots__ = (
        "cipher", "column", "created_by", "key", "key_name", "key_works", "kind", "leaf",
        "metadata", "ordinal", "overlapping", "path", "row_group", "rows", "schema", "size",
        "spans", "stored", "struct",
    )  # fmt: skip

    def __init__(
        self, row_group: int, column: int, leaf: Leaf, path: str, rows: int, stored: ColumnChunk,
        ordinal: int, schema: Sequence[ThriftStruct], created_by: bytes | None,
    ) -> None:  # fmt: skip
        self.row_group, self.column, self.ordinal = row_group, column, ordinal
        self.leaf, self.path, self.rows = leaf, path, rows
        self.stored, self.schema, self.kind = stored, schema, chunk_kind(stored)
        self.created_by = created_by
        self.key: Key | None = None
        self.key_name: str | None = None
        self.key_works: bool | None = None
        self.cipher: ChunkCipher | None = None
        self.metadata: ThriftStruct = stored.meta_data
        self.struct: ThriftStruct = None
        self.spans: Sequence[Span] = ()
        self.size: i64 = 0
        self.overlapping: frozenset[Part] = _NO_PARTS

    @property
    def encrypted(self) -> bool:
        """True if the chunk is encrypted."""
        return self.kind != PLAINTEXT

    @property
    def element(self) -> ThriftStruct:
        """SchemaElement of the column."""
        return self.schema[self.leaf.element]

    @property
    def has_own_key(self) -> bool:
        """True if the chunk is encrypted with a key of its column (PME 5.2)."""
        return self.kind == COLUMN_KEY

    def id(self, kind: ModuleType, page: int | None = None) -> ModuleId:
        """Return the address of one of the chunk's modules."""
        return ModuleId(kind, self.ordinal, self.column, page, self.path)

    @property
    def where(self) -> str:
        """Address of the chunk, for messages."""
        return f"row group {self.row_group}, column {self.path}"


def _place_bloom_filter(metadata: ThriftStruct, legacy: ThriftStruct) -> None:
    # arrow-go encrypts the metadata before it places bloom filters, and so states their places
    # only in the copy for legacy readers, which the footer's signature covers.
    if metadata.bloom_filter_offset is None and metadata.bloom_filter_length is None:
        metadata.bloom_filter_offset = legacy.bloom_filter_offset
        metadata.bloom_filter_length = legacy.bloom_filter_length


_COLUMN_METADATA: Final = ModuleType.COLUMN_METADATA  # looking it up takes longer than the AAD

Place: TypeAlias = "tuple[int, int]"  # a row group and a column


class ChunkOpening:
    """The opening of a file's column chunks, after that of its footer.

    `properties` are bound to the file. `hint` is a possible cause, for errors of wrong page tags.

    Each chunk goes through these steps: find its key, compare the key with the commitment that the
    writer signed, decrypt the metadata, check that it belongs to the column. Only then may the
    places of its pages be used.
    """

    def __init__(
        self, footer: Footer, properties: FileDecryptionProperties, leaves: Sequence[Leaf],
        report: Report, hint: str = "",
    ) -> None:  # fmt: skip
        self._footer, self._leaves, self._report, self._hint = footer, leaves, report, hint
        self._names: list[str | None] = [None] * len(leaves)
        self._row_groups: Sequence[ThriftStruct] = footer.metadata.row_groups
        self._schema: Sequence[ThriftStruct] = footer.metadata.schema
        self._created_by: bytes | None = footer.metadata.created_by
        self._opened: dict[int, list[Chunk | None]] = {}  # by row group and column
        self._inside = footer.inside
        self.keys = ColumnKeys(properties, leaves, report, self._inside)
        self._key_names: dict[object, str] = {}  # names of column keys, for people
        self._committed: dict[int, Key] = {}  # keys that were compared with the signed commitments
        # Under a plaintext footer, the first encrypted chunk lists the fields that were added.
        first = self._row_groups[0].columns if footer.plaintext_footer and self._row_groups else ()
        encrypted = (c for c, s in enumerate(first) if s.encrypted_column_metadata is not None)
        self._noted = next(encrypted, None)

    def chunk(self, row_group: int, column: int) -> Chunk:
        """Return a chunk that is not open yet; report it if it lies in another file."""
        group = self._row_groups[row_group]
        stored, declared, ordinal = group.columns[column], group.ordinal, row_group
        if declared is not None and 0 <= declared <= MAX_ORDINAL:
            ordinal = declared  # the writer most likely encrypted with it
        try:
            check_file_path(stored, row_group, column)
        except UnsupportedFormatError as error:
            self._report.add_error(error, *self._inside)
        leaf, name = self._leaves[column], self._names[column]
        if name is None:
            name = self._names[column] = ".".join(leaf.path)
        return Chunk(
            row_group, column, leaf, name, group.num_rows, stored, ordinal, self._schema,
            self._created_by,
        )  # fmt: skip

    def open_chunks(
        self, row_groups: Iterable[int], columns: Iterable[int],
        keys: Sequence[Mapping[int, Key | None] | None],
    ) -> tuple[dict[Place, ThriftStruct], dict[Place, ChunkCipher]]:  # fmt: skip
        """Open chunks, each only once, and return their structs and their ciphers.

        `keys` are those of each column by row group; None for other columns than encrypted ones.
        Raise the errors of `open`.
        """
        structs: dict[Place, ThriftStruct] = {}
        ciphers: dict[Place, ChunkCipher] = {}
        for r in row_groups:
            opened = self._opened.get(r)
            if opened is None:
                opened = self._opened[r] = [None] * len(self._leaves)
            for c in columns:
                chunk = opened[c]
                if chunk is None:
                    chunk = self.chunk(r, c)
                    of_column = keys[c]
                    if of_column is not None:
                        chunk.key = of_column[r]
                    self.open(chunk)
                    opened[c] = chunk
                place = r, c
                structs[place] = chunk.struct
                if chunk.cipher is not None:
                    ciphers[place] = chunk.cipher
        return structs, ciphers

    def find_key(self, row_group: int, column: int) -> KeyAnswer:
        """Return the key of an encrypted chunk, or why there is none."""
        stored: ColumnChunk = self._row_groups[row_group].columns[column]
        kind = chunk_kind(stored)
        if kind == COLUMN_KEY:
            crypto: ColumnCryptoMetaData = stored.crypto_metadata
            return self.keys.find(column, crypto.ENCRYPTION_WITH_COLUMN_KEY)
        if kind == FOOTER_KEY:
            return self._footer.answer
        return KeyAnswer(None, "the kind of its key is unknown")

    def name_key(self, chunk: Chunk) -> None:
        """Name a chunk's key by its master key's id, or by the first column that uses it."""
        if not chunk.has_own_key:
            chunk.key_name = self._footer.key_name if chunk.kind == FOOTER_KEY else chunk.kind
            return
        metadata = chunk.stored.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.key_metadata
        known = metadata or self.keys.get_given(chunk.column) or chunk.path
        if known not in self._key_names:
            from modcrypt.pkmt1.key_info import key_name

            self._key_names[known] = key_name(metadata, f"column key of {chunk.path}")
        chunk.key_name = self._key_names[known]

    def open(
        self, chunk: Chunk, refuse: Callable[[Chunk, ModcryptError], None] | None = None
    ) -> None:
        """Decrypt a chunk's ColumnMetaData with its key, if there is one, and check it.

        A chunk with a key gets a cipher. `refuse` reports metadata that does not open, instead of
        the report.

        Raises:
            TagMismatchError, TruncationError: The report is strict, and the metadata does not
                authenticate.
            FormatError: The report is strict, and the metadata is invalid, belongs to another
                column, or is not encrypted as the format demands.
        """
        stored, report, inside = chunk.stored, self._report, self._inside
        if chunk.key is not None:
            chunk.cipher = ChunkCipher(
                self._footer.cipher, chunk.key, chunk.ordinal, chunk.column, chunk.path, self._hint
            )
            if self._footer.signed is not None and chunk.has_own_key:
                self._check_commitment(chunk, chunk.key)
        if stored.encrypted_column_metadata is None:
            if chunk.cipher is not None and chunk.kind == FOOTER_KEY and self._footer.is_verified:
                chunk.key_works = True  # the key opened the footer, which contains the metadata
            if chunk.kind == COLUMN_KEY:  # anyone with the footer key could forge it (PME 5.3)
                what = f"{chunk.where}: encrypted with its own key, but its column metadata is not"
                report.add_error(FormatError(what), *inside)
        elif chunk.cipher is not None:
            try:
                # A strict reader decodes statistics when they are used, as those in a footer: to
                # refuse damaged ones, which encryption has taken over unread, would lose the file.
                data = chunk.cipher.decrypt(_COLUMN_METADATA, stored.encrypted_column_metadata)
                lazy = STATISTICS if report.strict else 0
                chunk.metadata = decode("ColumnMetaData", data, lazy=lazy)[0]
            except ModcryptError as error:
                chunk.key_works = False
                if refuse is None:
                    report.add_error(error, *inside)
                else:
                    refuse(chunk, error)
            else:
                chunk.key_works = True
                if chunk.column == self._noted and chunk.row_group == 0:
                    self._footer.added = take_mark(chunk.metadata)
                if stored.meta_data is not None and self._footer.is_verified:
                    _place_bloom_filter(chunk.metadata, stored.meta_data)
        if chunk.metadata is None and chunk.encrypted and not report.strict:
            return  # it is encrypted, and did not open
        chunk.struct = stored
        if chunk.metadata is not stored.meta_data:
            struct: ColumnChunk = copy(stored)
            struct.meta_data = chunk.metadata
            chunk.struct = struct
        try:
            check_column_metadata(chunk.metadata, chunk.leaf, chunk.row_group, chunk.rows)
        except FormatError as error:
            report.add_error(error, *inside)
        if chunk.cipher is not None and chunk.metadata is not None:
            chunk.cipher.level_facts = chunk.leaf, chunk.metadata

    def _check_commitment(self, chunk: Chunk, key: Key) -> None:
        """Report a column key that is not the one with which the writer signed the file."""
        if self._committed.get(chunk.column) == key:
            return
        error = find_key_fault(self._footer, chunk.column, key)
        if error is not None:
            self._report.add_error(error, *self._inside)
        self._committed[chunk.column] = key
