"""What is known of an encrypted file, and checked, before its first page.

The footer is opened once. Keys are looked for, and column metadata opened, only for the columns
and row groups that are wanted, and once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from modcrypt.errors import FormatError, KeyNotFoundError, PlaintextError
from modcrypt.io.storage import Source
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import (
    COLUMN_KEY,
    FOOTER_KEY,
    PLAINTEXT,
    ChunkCipher,
    ColumnKey,
    Question,
    check_kind,
    find_key,
    question_of,
)
from modcrypt.parquet.crypto.file_identity import FileIdentity
from modcrypt.parquet.crypto.footer import EncryptedFooter, open_column_metadata, read_encrypted
from modcrypt.parquet.crypto.properties import (
    BoundRetriever,
    FileDecryptionProperties,
    bound,
    check_decryption,
)
from modcrypt.parquet.format.idl import ThriftStruct, copy
from modcrypt.parquet.format.levels import Levels
from modcrypt.parquet.format.modules import Span, check_column_metadata, check_shape, chunk_spans
from modcrypt.parquet.format.schema import covering_name, leaf_elements, leaves_of

__all__ = ["OpenFile", "Plan", "plan_decryption"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The wanted columns and row groups of a file: their ciphers, metadata and places."""

    footer: EncryptedFooter
    leaves: list[tuple[str, ...]]
    keep: list[bool]  # by leaf: wanted, and there is a key or none is needed
    missing: list[int]  # leaves that are wanted, but have no key
    nulls: list[int]  # those of them that are to be there, filled with nulls
    row_groups: list[int]
    chunks: dict[tuple[int, int], ThriftStruct]  # ColumnChunks, their metadata opened
    ciphers: dict[tuple[int, int], ChunkCipher]  # of the encrypted ones
    spans: list[Span]

    @property
    def shown(self) -> list[int]:
        """Leaves of the plaintext footer: those kept, and those filled with nulls."""
        return [c for c, kept in enumerate(self.keep) if kept or c in self.nulls]

    @property
    def missing_names(self) -> tuple[str, ...]:
        """Dotted names of the columns without a key."""
        return tuple(".".join(self.leaves[c]) for c in self.missing)


def plan_decryption(source: Source, properties: FileDecryptionProperties) -> Plan:
    """Open the footer, find all keys, open the column metadata; raises as `decrypt_parquet`."""
    return OpenFile(source, properties).select()


class OpenFile:
    """An encrypted file whose footer is open, and what was found out about it so far.

    Args:
        source: The file.
        properties: Keys, and what the caller insists on.
        expected: The version of the file that it must be; None for any.

    Raises:
        OSError: It is another version.
        ModcryptError: As `decrypt_parquet`, for the footer.
    """

    def __init__(
        self,
        source: Source,
        properties: FileDecryptionProperties,
        expected: FileIdentity | None = None,
    ) -> None:
        check_decryption(properties)
        properties = bound(properties, source)
        self.source, self.properties = source, properties
        self.footer = read_encrypted(source, properties, expected)
        self.metadata = self.footer.metadata
        self._elements = leaf_elements(self.metadata.schema)
        self.leaves = [leaf.path for leaf in self._elements]
        check_shape(self.metadata, len(self.leaves), plain=not self.footer.encrypted)
        _check_ordinals(self.metadata)
        self._keys: dict[Question, Key | None] = {}
        self._opened: dict[tuple[int, int], tuple[ThriftStruct, ChunkCipher | None]] = {}
        self._check_required()

    def select(
        self,
        columns: Iterable[int] | None = None,
        row_groups: Sequence[int] | None = None,
        *,
        partial_groups: bool = False,
    ) -> Plan:
        """Find the keys of some columns in some row groups, and open their column metadata.

        Args:
            columns: indexes of leaves; None for all.
            row_groups: ordinals, in the order wanted; None for all.
            partial_groups: where missing columns are to be filled with nulls, leave those out
                that are part of a group with others that are there; else they are an error.

        Raises:
            KeyNotFoundError: keys are missing, and the properties don't say what to do then.
            PlaintextError: a key was given for a column that is not encrypted.
            ModcryptError: as `decrypt_parquet`.
        """
        wanted = list(range(len(self.leaves))) if columns is None else sorted(set(columns))
        ordinals = list(range(len(self.metadata.row_groups)) if row_groups is None else row_groups)
        self._check_given(wanted, ordinals)
        kinds = {c: self._kind(c, ordinals) for c in wanted}
        found: dict[tuple[int, int], Key] = {}
        missing: list[int] = []
        for c, kind in kinds.items():
            for r in ordinals if kind in (FOOTER_KEY, COLUMN_KEY) else ():
                key = self._key(r, c)
                if key is not None:
                    found[r, c] = key
                elif c not in missing[-1:]:
                    missing.append(c)
        if partial_groups:
            missing = self._with_whole_maps(missing, wanted)
        nulls = self._nulls(missing, wanted, partial_groups)
        kept = set(wanted).difference(missing)
        keep = [c in kept for c in range(len(self.leaves))]
        opened = {(r, c): self._open(r, c, found.get((r, c))) for r, c in product(ordinals, kept)}
        chunks = {place: chunk for place, (chunk, _) in opened.items()}
        ciphers = {place: cipher for place, (_, cipher) in opened.items() if cipher is not None}
        spans = chunk_spans(chunks, self.footer.body_end, self.source)
        return Plan(
            self.footer, self.leaves, keep, missing, nulls, ordinals, chunks, ciphers, spans
        )

    def has_own_key(self, column: int) -> bool:
        """Tell whether a column is under a key of its own."""
        return self._kind(column, self._all_row_groups) == COLUMN_KEY

    def own_keys(self, columns: Iterable[int]) -> dict[str, ColumnKey]:
        """Give the keys of those of some columns that have keys of their own, and are there."""
        found = {}
        for c in columns:
            if not self.has_own_key(c):
                continue
            crypto = self.metadata.row_groups[0].columns[c].crypto_metadata
            if (key := self._key(0, c)) is not None:
                metadata = crypto.ENCRYPTION_WITH_COLUMN_KEY.key_metadata
                found[".".join(self.leaves[c])] = ColumnKey(key, True, metadata)
        return found

    def plaintext_columns(self, columns: Iterable[int]) -> list[str]:
        """Name those of some columns that are in plaintext."""
        kinds = ((c, self._kind(c, self._all_row_groups)) for c in columns)
        return [".".join(self.leaves[c]) for c, kind in kinds if kind == PLAINTEXT]

    @property
    def _all_row_groups(self) -> range:
        return range(len(self.metadata.row_groups))

    # --- what the caller insists on --------------------------------------------------------------

    def _check_required(self) -> None:
        """Refuse columns that are not encrypted as the caller, or the caller's policy, insists.

        Raises:
            PlaintextError: a column is not as it must be.
            ValueError: the file doesn't have one of those named.
        """
        names = self.properties.require_encrypted
        if not isinstance(names, bool):
            leaves_of(self.leaves, names)  # a name that fits nothing would insist on nothing
        elif not isinstance(self.properties.key_retriever, BoundRetriever):
            return
        for c, leaf in enumerate(self.leaves):
            kind = self._kind(c, self._all_row_groups)
            if kind is not None:
                check_kind(self.properties, leaf, kind)

    def _check_given(self, wanted: list[int], ordinals: Sequence[int]) -> None:
        """Refuse plaintext where a key says that an encrypted column is expected.

        A group's key may cover plaintext leaves, as long as something in the group is encrypted.
        """
        if self.properties.require_encrypted is False:
            return
        keys = self.properties.column_keys
        covering = {c: covering_name(leaf, keys) for c, leaf in enumerate(self.leaves)}
        names = {covering[c] for c in wanted} - {None}
        kinds: dict[str | None, set[str | None]] = {name: set() for name in names}
        for c, name in covering.items():
            if name in kinds:
                kinds[name].add(self._kind(c, ordinals))
        if bare := sorted(str(name) for name, found in kinds.items() if found == {PLAINTEXT}):
            raise PlaintextError(
                f"a key is given for {', '.join(bare)}, but the file has it in plaintext; if that "
                "is meant to be so, leave the key out"
            )

    def _nulls(self, missing: list[int], wanted: list[int], partial_groups: bool) -> list[int]:
        """Say which of the missing columns are to be there, filled with nulls.

        Raises:
            KeyNotFoundError: they are an error, or all there is, or part of a group.
        """
        what = self.properties.on_missing_key
        if missing and what == "error":
            raise self._no_key(
                missing,
                "give it in column_keys, or leave such columns out with "
                'on_missing_key="drop", or fill them with "null"',
            )
        if what == "drop":
            if missing and len(missing) == len(wanted):
                raise KeyNotFoundError(
                    "no key for any of the columns", ".".join(self.leaves[missing[0]])
                )
            return []
        gone = set(missing)
        there = {self.leaves[c][0] for c in wanted if c not in gone}
        partial = [c for c in missing if self.leaves[c][0] in there]
        if partial and not partial_groups:
            raise self._no_key(
                partial,
                "it is a part of a group with others, and can't be null alone in a file: "
                'on_missing_key="drop" leaves it out, and read_table fills it',
            )
        return [c for c in missing if c not in partial]

    def _with_whole_maps(self, missing: list[int], wanted: list[int]) -> list[int]:
        """Count all of a map as missing where a part of it is: half a map has no type."""
        if not missing or self.properties.on_missing_key != "null":
            return missing
        gone, maps = set(missing), {self._elements[c].in_map for c in missing} - {None}
        return [c for c in wanted if c in gone or self._elements[c].in_map in maps]

    def _no_key(self, missing: list[int], advice: str) -> KeyNotFoundError:
        names = [".".join(self.leaves[c]) for c in missing]
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        return KeyNotFoundError(
            f"no key for column {', '.join(names[:20])}{more}; {advice}", names[0]
        )

    # --- chunks ----------------------------------------------------------------------------------

    def _kind(self, column: int, ordinals: Iterable[int]) -> str | None:
        """Say how a column is encrypted; None where there are no row groups."""
        found = None
        path = ".".join(self.leaves[column])
        for r in ordinals:
            crypto = self.metadata.row_groups[r].columns[column].crypto_metadata
            if crypto is None:
                kind = PLAINTEXT
            elif crypto.ENCRYPTION_WITH_COLUMN_KEY is not None:
                kind = COLUMN_KEY
            elif crypto.ENCRYPTION_WITH_FOOTER_KEY is not None:
                kind = FOOTER_KEY
            else:
                raise FormatError(f"column {path}: its crypto metadata names no known kind of key")
            if found not in (None, kind):
                raise FormatError(
                    f"column {path}: {found} in one row group and {kind} in row group {r}: no "
                    "writer does so"
                )
            found = kind
        return found

    def _key(self, row_group: int, column: int) -> Key | None:
        """Give the key of an encrypted chunk, asking the retriever once per key metadata."""
        crypto = self.metadata.row_groups[row_group].columns[column].crypto_metadata
        own = crypto.ENCRYPTION_WITH_COLUMN_KEY
        if own is None:
            return self.footer.footer_key
        leaf = self.leaves[column]
        path = ".".join(leaf)
        if own.path_in_schema != [name.encode() for name in leaf]:
            raise FormatError(f"column {path}: its crypto metadata names another column")
        keys = self.properties.column_keys
        name = covering_name(leaf, keys)
        given = None if name is None else keys[name]
        assert given is None or isinstance(given, Key)
        question = question_of(self.properties, given, own.key_metadata, path)
        if question not in self._keys:
            self._keys[question] = find_key(
                self.properties, given, own.key_metadata, f"column {path}", path
            )
        return self._keys[question]

    def _open(
        self, row_group: int, column: int, key: Key | None
    ) -> tuple[ThriftStruct, ChunkCipher | None]:
        """Give a chunk with its ColumnMetaData in place, opened where it is sealed."""
        opened = self._opened.get((row_group, column))
        if opened is not None:
            return opened
        chunk = copy(self.metadata.row_groups[row_group].columns[column])
        cipher = None
        if key is not None:
            path = ".".join(self.leaves[column])
            cipher = ChunkCipher(self.footer.cipher, key, row_group, column, path, self._hint())
            if chunk.encrypted_column_metadata is not None:
                chunk.meta_data = open_column_metadata(chunk, cipher)
            elif chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY is not None:
                # PME 5.3. Else a holder of the footer key alone could put forged metadata there.
                raise FormatError(
                    f"row group {row_group}, column {path}: encrypted with a key of its own, but "
                    "its column metadata is not"
                )
        rows, leaf = self.metadata.row_groups[row_group].num_rows, self._elements[column]
        check_column_metadata(chunk.meta_data, leaf, row_group, rows)
        if cipher is not None:
            statistics = chunk.meta_data.statistics
            counted = statistics is not None and statistics.null_count is not None
            cipher.levels = Levels(leaf.max_definition, leaf.max_repetition, counted)
        self._opened[row_group, column] = chunk, cipher
        return chunk, cipher

    def _hint(self) -> str:
        if not self.footer.plaintext_footer:
            return ""
        return (
            "Some versions of Arrow C++ wrote AES_GCM_V1 into plaintext footers of files whose "
            "pages are AES_GCM_CTR_V1"
        )


def _check_ordinals(metadata: ThriftStruct) -> None:
    """Hold RowGroup.ordinal against the position.

    parquet-java goes by the one, Arrow C++ by the other: only a file in which both agree means
    the same to all readers.
    """
    for r, row_group in enumerate(metadata.row_groups):
        if row_group.ordinal is not None and row_group.ordinal != r:
            raise FormatError(
                f"row group {r} says it has ordinal {row_group.ordinal}: row groups were reordered"
            )
