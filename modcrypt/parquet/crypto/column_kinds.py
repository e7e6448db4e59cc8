"""The ways in which columns are encrypted, and what the caller requires of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from modcrypt.errors import FormatError, PlaintextError
from modcrypt.parquet.crypto.properties import BoundRetriever, FileDecryptionProperties
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.report import Report
from modcrypt.parquet.format.schema import covering_name
from modcrypt.parquet.format.structs import ColumnChunk, ColumnCryptoMetaData

PLAINTEXT, FOOTER_KEY, COLUMN_KEY = "plaintext", "footer key", "column key"
"""The ways in which a column can be encrypted."""

_UNKNOWN = "unknown key"


def chunk_kind(chunk: ColumnChunk) -> str:
    """Return how a chunk is encrypted."""
    crypto: ColumnCryptoMetaData | None = chunk.crypto_metadata
    if crypto is None:
        return PLAINTEXT
    if crypto.ENCRYPTION_WITH_COLUMN_KEY is not None:
        return COLUMN_KEY
    return _UNKNOWN if crypto.ENCRYPTION_WITH_FOOTER_KEY is None else FOOTER_KEY


def has_encrypted_chunks(metadata: ThriftStruct) -> bool:
    """Return whether any chunk of a file has crypto metadata, so that the file is encrypted."""
    for row_group in metadata.row_groups:
        for chunk in row_group.columns:
            if chunk.crypto_metadata is not None:
                return True
    return False


def find_kinds(
    metadata: ThriftStruct, leaves: Sequence[tuple[str, ...]], columns: Iterable[int],
    row_groups: Iterable[int], report: Report,
) -> dict[int, set[str]]:  # fmt: skip
    """Return how columns are encrypted, and report contradictions.

    Without row groups, columns have no kind. The report is about kinds that no writer produces.

    Raises:
        FormatError: The report is strict. Row groups disagree, or the crypto metadata names no
            known kind of key.
    """
    # By column and kind: the first row group that has it.
    first: dict[int, dict[str, int]] = {c: {} for c in columns}
    for r in row_groups:
        chunks: Sequence[ColumnChunk] = metadata.row_groups[r].columns
        for c, kinds in first.items():
            if c < len(chunks):
                kinds.setdefault(chunk_kind(chunks[c]), r)
    for c, kinds in first.items():
        if _UNKNOWN in kinds:
            why = "its crypto metadata names no known kind of key"
        elif len(kinds) > 1:
            (kind, _), (other, r), *_ = kinds.items()
            why = f"{kind} in one row group and {other} in row group {r}: no writer does so"
        else:
            continue
        report.add_error(FormatError(f"column {'.'.join(leaves[c])}: {why}"))
    return {c: set(kinds) for c, kinds in first.items()}


def given_key_faults(
    properties: FileDecryptionProperties,
    leaves: Sequence[tuple[str, ...]],
    kinds: Mapping[int, set[str]],
) -> Iterator[PlaintextError]:
    """Yield an error for each given key that covers only plaintext columns.

    A group's key may cover plaintext leaves as long as one leaf of the group is encrypted.
    """
    if properties.require_encrypted is False:
        return
    covered: dict[str, set[str]] = {}
    for c, found in kinds.items():
        name = covering_name(leaves[c], properties.column_keys)
        if name is not None:
            covered.setdefault(name, set()).update(found)
    for name in sorted(name for name, found in covered.items() if found == {PLAINTEXT}):
        yield PlaintextError(
            f"a key is given for {name}, but the file has it in plaintext; if that is intended, "
            "omit the key"
        )


def requirement_faults(
    properties: FileDecryptionProperties,
    leaves: Sequence[tuple[str, ...]],
    kinds: Mapping[int, set[str]],
) -> Iterator[PlaintextError]:
    """Yield an error for each column that is not encrypted as the caller or a policy requires."""
    for c, found in kinds.items():
        for kind in sorted(found):
            yield from _kind_faults(properties, leaves[c], kind)


def _kind_faults(
    properties: FileDecryptionProperties, leaf: tuple[str, ...], kind: str
) -> Iterator[PlaintextError]:
    """Yield an error if a column is not encrypted as the caller's names or policy require."""
    names, path = properties.require_encrypted, ".".join(leaf)
    if not isinstance(names, bool) and covering_name(leaf, names) is not None:
        if kind == PLAINTEXT:
            yield PlaintextError(f"column {path} is plaintext, but must be encrypted")
            return
        # Anyone who holds only the footer key could replace it with a forged column.
        if kind == FOOTER_KEY and covering_name(leaf, properties.column_keys):
            yield PlaintextError(
                f"column {path} is encrypted with the footer key, but must have its own key"
            )
            return
    accepted = kind == PLAINTEXT and names is False
    if isinstance(properties.key_retriever, BoundRetriever) and not accepted:
        fault = None
        try:
            properties.key_retriever.keys.check_kind(leaf, kind)
        except PlaintextError as error:
            fault = error
        if fault is not None:
            yield fault


def declares_plaintext(properties: FileDecryptionProperties, leaf: tuple[str, ...]) -> bool:
    """Return whether the caller's policy leaves a column in plaintext."""
    retriever = properties.key_retriever
    return isinstance(retriever, BoundRetriever) and retriever.keys.declares_plaintext(leaf)
