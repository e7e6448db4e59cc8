"""Encrypt and decrypt the values of an Arrow array, each under the key of its subject.

    cell    nonce (12) | ciphertext | tag (16)      AES-256-GCM
    AAD     label | dataset | column path | subject's reference, each with its length before it

Plaintexts are the values' bytes, see `modcrypt.parquet.arrow.value_bytes`; nulls stay nulls. The
loops over values are in `modcrypt.aead`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import pack
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from modcrypt.aead import BLOCK_OVERHEAD, ValueCipher, decrypt_values, encrypt_values
from modcrypt.errors import FormatError, TagError, TagMismatchError, UnsupportedFormatError
from modcrypt.module_ids import CellId
from modcrypt.parquet.arrow import value_bytes as vb
from modcrypt.subjects.key_file import REFERENCE_SIZE
from modcrypt.subjects.vault import MAX_SUBJECT, SubjectVault

_Convert: TypeAlias = Callable[..., list[bytes]]

_LABEL = b"modcrypt subject cell 1"


@dataclass(frozen=True, slots=True)
class Owners:
    """The subjects of the rows of a batch."""

    ciphers: list[ValueCipher | None]  # of distinct subjects; None for erased ones
    references: list[bytes]
    rows: pa.Array  # number of the subject of each row, null where the key column is


def find_owners(vault: SubjectVault, keys: pa.Array, *, create: bool) -> Owners:
    """Return the subjects of rows with these values of the key column.

    Args:
        vault: Vault with the keys.
        keys: Values of the key column.
        create: Whether unknown subjects get a key; otherwise they are an error.

    Raises:
        KeyNotFoundError: The vault does not know a subject, and `create` is False.
        UnsupportedFormatError: The key column is neither of whole numbers, text nor binary.
        ValueError: A subject is empty or too long; when reading, FormatError.
    """
    plain = vb.unwrap_values(keys)
    plain = plain if _is_whole(plain.type) else canonical_subjects(plain)
    encoded = plain.dictionary_encode()
    subjects = canonical_subjects(encoded.dictionary).to_pylist()
    if not all(0 < len(subject) <= MAX_SUBJECT for subject in subjects):
        raise (ValueError if create else FormatError)(
            f"subject_key: a subject has 1 to {MAX_SUBJECT} bytes; a row without one has null there"
        )
    found = vault.find(subjects, create=create)
    return Owners([f[1] for f in found], [f[0] for f in found], encoded.indices)


def canonical_subjects(keys: pa.Array) -> pa.Array:
    """Return the canonical text of subjects: digits of whole numbers, UTF-8, or the bytes.

    Raises:
        UnsupportedFormatError: The type is another one.
    """
    keys = vb.unwrap_values(keys)
    _check_key_type(keys.type)
    keys = keys.cast(pa.string()) if _is_whole(keys.type) else keys
    return keys.cast(vb.binary_type(keys.type))


def _is_whole(kind: pa.DataType) -> bool:
    """Return whether values of a type are whole numbers: some warehouses have only decimals."""
    return bool(pt.is_integer(kind) or (pt.is_decimal(kind) and kind.scale == 0))


def _check_key_type(kind: pa.DataType) -> None:
    if vb.binary_type(kind) is None and not _is_whole(kind):
        raise UnsupportedFormatError(
            f"subject_key: a column of {kind} names no subjects; use whole numbers, text or binary"
        )


def parse_subject(subject: bytes, kind: pa.DataType) -> Any:
    """Return the value of a key column of a type with a canonical text; None if there is none.

    Raises:
        UnsupportedFormatError: The type is another one than of `canonical_subjects`.
    """
    kind = vb.storage_type(kind)
    _check_key_type(kind)
    if not (vb.is_text(kind) or _is_whole(kind)):
        return subject
    try:
        value = subject.decode()
        number = int(value) if _is_whole(kind) else value
        return pa.scalar(number, kind) if str(number) == value else None
    except (ValueError, OverflowError):  # also Arrow's own errors
        return None


# --- cells ---------------------------------------------------------------------------------------


def cell_type(kind: pa.DataType, column: str) -> pa.DataType:
    """Return the type of the cells for a type of values.

    Raises:
        UnsupportedFormatError: Values of the type cannot be encrypted one by one.
    """
    if (found := vb.bytes_type(kind)) is None:
        raise UnsupportedFormatError(
            f"subject_columns: column {column} is of {kind}, which cannot be encrypted value by "
            "value; use numbers, text, binary, times, or structs, lists and maps of them"
        )
    return found


def _encode_texts(*texts: bytes) -> bytes:
    return b"".join(pack("<I", len(text)) + text for text in texts)


@dataclass(frozen=True, slots=True)
class CellColumn:
    """A column of values of one type, whose cells are bound to a dataset and a column path."""

    dataset: str
    path: tuple[str, ...]  # names of the column and of what contains it, outermost first
    kind: pa.DataType  # type of the values

    @property
    def name(self) -> str:
        """The dotted name of the column."""
        return ".".join(self.path)

    def encrypt(self, values: pa.Array, owners: Owners) -> pa.Array:
        """Return the cells of values.

        Raises:
            ValueError: A value has no subject.
        """
        plain = vb.to_bytes(values)
        rows = _select_rows(plain, owners)
        if rows.null_count > plain.null_count:
            raise ValueError(
                f"column {self.name} has values in rows without a subject; fill in subject_key, or "
                "set these values to null"
            )
        return self._convert(encrypt_values, plain, rows, owners, BLOCK_OVERHEAD)

    def decrypt(self, cells: pa.Array, owners: Owners) -> pa.Array:
        """Return the values of cells; those of erased subjects are null.

        Raises:
            TagMismatchError: A cell does not open under its subject's key in this place.
            FormatError: A cell has no subject, or a value is not of the column's type.
        """
        cells = vb.to_bytes(cells)
        rows = _select_rows(cells, owners)
        if rows.null_count > cells.null_count:
            raise FormatError(f"column {self.name} has cells in rows without a subject")
        if None in owners.ciphers:
            known = [None if c is None else n for n, c in enumerate(owners.ciphers)]
            rows = pa.array(known, rows.type).take(rows)
        try:
            plain = self._convert(decrypt_values, cells, rows, owners, -BLOCK_OVERHEAD)
        except TagError:
            raise TagMismatchError(
                CellId(self.name),
                "The cell was altered, or belongs to another row, column, dataset or vault",
            ) from None
        return vb.from_bytes(plain, self.kind, self.name)

    def _convert(
        self, convert: _Convert, values: pa.Array, rows: pa.Array, owners: Owners, growth: int
    ) -> pa.Array:
        """Return what a function of `modcrypt.aead` makes of values, null where the row is.

        Values are sorted by subject meanwhile: to change the key takes longer than to use it.
        """
        order = pc.sort_indices(rows)[: len(rows) - rows.null_count]  # nulls are last
        ordered, runs = values.take(order), pc.run_end_encode(rows.take(order))
        data, ends = vb.split_bytes(ordered)
        subjects, stops = runs.values.to_pylist(), runs.run_ends.to_pylist()
        ciphers, aads = [owners.ciphers[n] for n in subjects], self._aads(owners, subjects)
        lengths = pc.add(pc.binary_length(ordered), growth)
        parts = convert(ciphers, aads, stops, data, ends)
        made = vb.join_bytes(parts, lengths, values.type)
        places = pc.inverse_permutation(order.cast(pa.int64()), max_index=len(values) - 1)
        return made.take(places)

    def _aads(self, owners: Owners, subjects: list[int]) -> list[bytes]:
        path = _encode_texts(*(name.encode() for name in self.path))
        head = _LABEL + _encode_texts(self.dataset.encode(), path) + pack("<I", REFERENCE_SIZE)
        return [head + owners.references[n] for n in subjects]


def _select_rows(values: pa.Array, owners: Owners) -> pa.Array:
    """Return the numbers of the subjects of values, null where the value is."""
    if not values.null_count:
        return owners.rows
    return pc.if_else(values.is_valid(), owners.rows, pa.scalar(None, owners.rows.type))
