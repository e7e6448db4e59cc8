"""Opening an encrypted file: footer, keys and column metadata, checked before the first page.

The footer is opened once. Keys are looked up and column metadata is decrypted only for the wanted
columns and row groups, and only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from modcrypt.errors import KeyNotFoundError, list_names
from modcrypt.io.sources import Source
from modcrypt.keys import Key
from modcrypt.parquet.crypto.chunk_opening import ChunkOpening
from modcrypt.parquet.crypto.ciphers import ChunkCipher, ColumnKey
from modcrypt.parquet.crypto.column_kinds import (
    COLUMN_KEY,
    FOOTER_KEY,
    PLAINTEXT,
    find_kinds,
    given_key_faults,
    requirement_faults,
)
from modcrypt.parquet.crypto.footer import Footer
from modcrypt.parquet.crypto.footer_opening import open_footer
from modcrypt.parquet.crypto.properties import (
    AnyDecryption,
    BoundRetriever,
    as_decryption,
    bind_to_file,
)
from modcrypt.parquet.format.framing import FileIdentity, read_tail
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import Span, check_shape, chunk_spans, ordinal_faults
from modcrypt.parquet.format.report import Report
from modcrypt.parquet.format.schema import (
    Leaf,
    count_leaves,
    covering_name,
    leaf_elements,
    leaves_of,
)
from modcrypt.runtime.collector import paused_collector

if TYPE_CHECKING:
    from modcrypt.parquet.signatures.signed_source import SignedSource


class ReadPlan:
    """The wanted columns and row groups of a file: their ciphers, metadata and positions.

    Attributes:
        keep: By leaf: whether it is wanted, and its key is available or not needed.
        missing: Leaves that are wanted, but whose key is missing.
        nulls: Those missing leaves that are to be filled with nulls.
        chunks: ColumnChunks with decrypted metadata, by row group and leaf.
        ciphers: The ciphers of the encrypted ones.
    """

    __slots__ = (
        "chunks", "ciphers", "footer", "keep", "leaves", "missing", "nulls", "row_groups", "spans",
    )  # fmt: skip

    def __init__(
        self, footer: Footer, leaves: list[tuple[str, ...]], keep: list[bool], missing: list[int],
        nulls: list[int], row_groups: list[int], chunks: dict[tuple[int, int], ThriftStruct],
        ciphers: dict[tuple[int, int], ChunkCipher], spans: list[Span],
    ) -> None:  # fmt: skip
        self.footer, self.leaves, self.keep = footer, leaves, keep
        self.missing, self.nulls, self.row_groups = missing, nulls, row_groups
        self.chunks, self.ciphers, self.spans = chunks, ciphers, spans

    def replace(self, *, footer: Footer | None = None, nulls: list[int] | None = None) -> ReadPlan:
        """Return the plan with another footer, or with other leaves that are filled with nulls."""
        return ReadPlan(
            footer or self.footer, self.leaves, self.keep, self.missing,
            self.nulls if nulls is None else nulls, self.row_groups, self.chunks, self.ciphers,
            self.spans,
        )  # fmt: skip

    @property
    def footer_leaves(self) -> list[int]:
        """Indexes of the plaintext footer's leaves: kept leaves and leaves filled with nulls."""
        return [c for c, kept in enumerate(self.keep) if kept or c in self.nulls]

    @property
    def missing_names(self) -> tuple[str, ...]:
        """Dotted names of the columns whose key is missing."""
        return tuple(".".join(self.leaves[c]) for c in self.missing)


class OpenFile:
    """An encrypted file with an open footer, which remembers keys and column metadata once found.

    `expected` is the version that the file must be, None for any. `whole` promises that all chunks
    will be used, as by a rewrite.

    Raises:
        OSError: The file is another version.
        ModcryptError: The footer cannot be opened, or breaks a requirement of the caller: a column
            is not encrypted as the properties or a policy require.
        ValueError: The file does not have a column that must be encrypted.
    """

    def __init__(
        self, source: Source, properties: AnyDecryption, expected: FileIdentity | None = None, *,
        whole: bool = False,
    ) -> None:  # fmt: skip
        with paused_collector():
            self._open(source, properties, expected, whole)

    def _open(
        self, source: Source, properties: AnyDecryption, expected: FileIdentity | None, whole: bool
    ) -> None:
        properties = as_decryption(properties)
        properties = bind_to_file(properties, source)
        self.source, self.properties = source, properties
        self.raw = source  # for places alone: what is used of a signed file is read as `source`
        self._signed_source: SignedSource | None = None
        tail = read_tail(source)
        if expected is not None:
            expected.check(tail, source)
        self._report = Report(strict=True)
        self.footer = open_footer(tail, properties, source.name, self._report, whole=whole)
        self.metadata = self.footer.metadata
        self.leaf_count = count_leaves(self.metadata.schema)
        check_shape(self.metadata, self.leaf_count, plain=not self.footer.encrypted)
        for error in ordinal_faults(self.metadata):
            raise error
        if self.footer.signed is not None:
            from modcrypt.parquet.signatures.signed_source import SignedSource

            self.source = self._signed_source = SignedSource(source, self.footer.signed)
        # What is made when it is needed: a file may have thousands of leaves.
        self._elements: list[Leaf] | None = None
        self._leaves: list[tuple[str, ...]] | None = None
        self._opening: ChunkOpening | None = None
        self._kinds: dict[int, set[str]] = {}  # of columns, once all their chunks were checked
        names, retriever = properties.require_encrypted, properties.key_retriever
        if isinstance(names, bool) and not isinstance(retriever, BoundRetriever):
            return
        if not isinstance(names, bool):
            leaves_of(self.leaves, names)  # a name that matches nothing would require nothing
        kinds = self.find_kinds(range(self.leaf_count))
        for fault in requirement_faults(properties, self.leaves, kinds):
            raise fault

    @property
    def elements(self) -> list[Leaf]:
        """The leaves of the schema."""
        if self._elements is None:
            with paused_collector():
                self._elements = leaf_elements(self.metadata.schema)
        return self._elements

    @property
    def leaves(self) -> list[tuple[str, ...]]:
        """Their paths."""
        if self._leaves is None:
            self._leaves = [leaf.path for leaf in self.elements]
        return self._leaves

    @property
    def _chunks(self) -> ChunkOpening:
        if self._opening is None:
            hint = _MISLABELLED if self.footer.plaintext_footer else ""
            report, properties = self._report, self.properties
            self._opening = ChunkOpening(self.footer, properties, self.elements, report, hint)
        return self._opening

    @paused_collector()
    def select(
        self, columns: Iterable[int] | None = None, row_groups: Sequence[int] | None = None, *,
        partial_groups: bool = False, opened: Sequence[int] | None = None,
    ) -> ReadPlan:  # fmt: skip
        """Find the keys of some columns in some row groups, and decrypt their column metadata.

        None selects all leaves or row groups; row groups keep the order in which they are given.
        `partial_groups` leaves out missing columns that cannot be filled with nulls because other
        columns of their group are present; else they are an error. `opened` are the row groups
        whose metadata is decrypted: by default all, but none has to be for the keys and the schema.

        Raises:
            KeyNotFoundError: Keys are missing, and `on_missing_key` does not allow it.
            PlaintextError: The caller gave a key for a column that is not encrypted.
            ModcryptError: The metadata does not authenticate, or breaks the format.
        """
        wanted = list(range(len(self.leaves))) if columns is None else sorted(set(columns))
        ordinals = list(range(len(self.metadata.row_groups)) if row_groups is None else row_groups)
        self._check_given_keys(wanted, ordinals)
        keys: list[dict[int, Key | None] | None] = [None] * len(self.leaves)
        missing: list[int] = []
        footer_key = self.footer.answer.key
        of_footer: dict[int, Key | None] = dict.fromkeys(ordinals, footer_key)
        for c, kinds in self.find_kinds(wanted, ordinals).items():
            if COLUMN_KEY in kinds:
                keys[c] = found = {r: self._chunks.find_key(r, c).key for r in ordinals}
                # Comparing keys would take longer.
                is_missing = any(key is None for key in found.values())
            elif FOOTER_KEY in kinds:
                keys[c], is_missing = of_footer, footer_key is None
            else:
                continue
            if is_missing:
                missing.append(c)
        retriever = self.properties.key_retriever
        if missing and isinstance(retriever, BoundRetriever):
            retriever.check_missing(".".join(self.leaves[c]) for c in missing)
        if partial_groups:
            missing = self._add_whole_maps(missing, wanted)
        nulls = self._choose_nulls(missing, wanted, partial_groups)
        kept = set(wanted).difference(missing)
        keep = [c in kept for c in range(len(self.leaves))]
        chunks, ciphers = self._chunks.open_chunks(
            ordinals if opened is None else opened, kept, keys
        )
        encrypted = self.footer.encrypted
        spans = chunk_spans(chunks, self.footer.body_end, self.raw, encrypted=encrypted)
        if self._signed_source is not None:
            self._signed_source.add(spans)
        return ReadPlan(
            self.footer, self.leaves, keep, missing, nulls, ordinals, chunks, ciphers, spans
        )

    def has_own_key(self, column: int) -> bool:
        """Return whether a column has its own key."""
        return COLUMN_KEY in self.find_kinds([column])[column]

    def own_keys(self, columns: Iterable[int]) -> dict[str, ColumnKey]:
        """Return the available keys of those columns that have their own key, by dotted name."""
        keys = {}
        for c, kinds in self.find_kinds(columns).items():
            if COLUMN_KEY not in kinds:
                continue
            crypto = self.metadata.row_groups[0].columns[c].crypto_metadata
            if (key := self._chunks.find_key(0, c).key) is not None:
                metadata = crypto.ENCRYPTION_WITH_COLUMN_KEY.key_metadata
                keys[".".join(self.leaves[c])] = ColumnKey(key, True, metadata)
        return keys

    def plaintext_columns(self, columns: Iterable[int]) -> list[str]:
        """Return the dotted names of those columns that are plaintext."""
        found = self.find_kinds(columns)
        return [".".join(self.leaves[c]) for c, kinds in found.items() if PLAINTEXT in kinds]

    def _check_given_keys(self, wanted: list[int], ordinals: Sequence[int]) -> None:
        """Raise PlaintextError if all leaves that a given key covers are plaintext."""
        if not (keys := self.properties.column_keys):
            return
        names = {covering_name(self.leaves[c], keys) for c in wanted} - {None}
        covered = [c for c, leaf in enumerate(self.leaves) if covering_name(leaf, keys) in names]
        kinds = self.find_kinds(covered, ordinals)
        for error in given_key_faults(self.properties, self.leaves, kinds):
            raise error

    def _choose_nulls(
        self, missing: list[int], wanted: list[int], partial_groups: bool
    ) -> list[int]:
        """Return the missing columns that are to be filled with nulls.

        Raise KeyNotFoundError if `on_missing_key` makes missing keys an error, if all wanted
        columns would be dropped, or if a missing column is part of a group with present ones.
        """
        what = self.properties.on_missing_key
        if missing and what == "error":
            raise self._missing_key_error(
                missing,
                "give it in column_keys, or pass "
                'on_missing_key="drop" to leave such columns out or "null" to read nulls',
            )
        if what == "drop":
            if missing and len(missing) == len(wanted):
                first = ".".join(self.leaves[missing[0]])
                raise KeyNotFoundError("no key for any of the columns", first)
            return []
        gone = set(missing)
        present = {self.leaves[c][0] for c in wanted if c not in gone}
        partial = [c for c in missing if self.leaves[c][0] in present]
        if partial and not partial_groups:
            raise self._missing_key_error(
                partial,
                "it belongs to a group whose other columns are readable, so a file cannot hold "
                'nulls for it alone; pass on_missing_key="drop" to leave it out, or use '
                "read_table, which fills it with nulls",
            )
        return [c for c in missing if c not in partial]

    def _add_whole_maps(self, missing: list[int], wanted: list[int]) -> list[int]:
        """Treat a whole map as missing if a part of it is: half a map has no type."""
        if not missing or self.properties.on_missing_key != "null":
            return missing
        gone, maps = set(missing), {self.elements[c].in_map for c in missing} - {None}
        return [c for c in wanted if c in gone or self.elements[c].in_map in maps]

    def _missing_key_error(self, missing: list[int], advice: str) -> KeyNotFoundError:
        names = [".".join(self.leaves[c]) for c in missing]
        return KeyNotFoundError(f"no key for column {list_names(names)}; {advice}", names[0])

    def find_kinds(
        self, columns: Iterable[int], row_groups: Sequence[int] | None = None
    ) -> dict[int, set[str]]:
        """Return how columns are encrypted; they have no kind without row groups.

        Chunks of a column that were all checked agree, and are not checked again.
        """
        count = len(self.metadata.row_groups)
        groups = range(count) if row_groups is None else row_groups
        known = self._kinds if groups else {}
        columns = list(columns)
        unknown = [c for c in columns if c not in known]
        if not unknown:
            return {c: known[c] for c in columns}
        found = find_kinds(self.metadata, self.leaves, unknown, groups, self._report)
        if groups and set(groups).issuperset(range(count)):
            self._kinds.update(found)
        return {c: found[c] if c in found else known[c] for c in columns}


_MISLABELLED = (
    "Some versions of Arrow C++ wrote AES_GCM_V1 into plaintext footers of files whose pages are "
    "AES_GCM_CTR_V1"
)
