"""Cells: values of Arrow arrays, each encrypted under the key of its subject, and their columns.

    cell    nonce (12) | ciphertext | tag (16)      AES-256-GCM
    AAD     label | dataset | column path | subject's reference, each with its length before it

Plaintexts are the values' bytes, see `modcrypt.parquet.arrow.value_bytes`; nulls stay nulls. The
loops over values are in `modcrypt.aead`. A field of the top level that has cells has in its
metadata, under `modcrypt.subjects`, a JSON object of `version`, 1; `vault`, the id of the vault of
the keys, which the earliest lack; `dataset`, the name that its cells are bound to; `key`, the name
of the column with the subjects; `columns`, the paths of its leaves that are cells; and `field`, the
field as it was, as an Arrow schema in IPC form, in base64.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import pack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from modcrypt.aead import BLOCK_OVERHEAD, ValueCipher, decrypt_values, encrypt_values
from modcrypt.errors import (
    FormatError,
    KeyNotFoundError,
    TagError,
    TagMismatchError,
    UnsupportedFormatError,
    list_names,
)
from modcrypt.module_ids import CellId
from modcrypt.parquet.arrow import struct_leaves as sl
from modcrypt.parquet.arrow import value_bytes as vb
from modcrypt.parquet.arrow.field_metadata import get_arrow_schema, parse_field_metadata
from modcrypt.parquet.crypto.properties import CELLS
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.schema import leaves_of
from modcrypt.subjects.key_file import REFERENCE_SIZE
from modcrypt.subjects.vault import MAX_SUBJECT, SubjectVault, are_subjects

VERSION = 1


@dataclass(frozen=True, slots=True)
class Owners:
    """The subjects of the rows of a batch."""

    ciphers: list[ValueCipher | None]  # of distinct subjects; None for erased ones
    references: list[bytes]
    rows: pa.Array  # number of the subject of each row, null where the key column is


def find_owners(vault: SubjectVault, keys: pa.Array, *, create: bool) -> Owners:
    """Return the subjects of rows with these values of the key column.

    `create` gives unknown subjects a key; otherwise raise KeyNotFoundError. Raise as
    `canonical_subjects`, and ValueError, or FormatError when reading, for an empty or too long one.
    """
    plain = vb.unwrap_values(keys)
    if not _is_whole(plain.type):
        plain = canonical_subjects(plain)
    elif pt.is_decimal(plain.type) and plain.type.bit_width < 128:  # PyArrow finds no distinct ones
        plain = plain.cast(pa.decimal128(plain.type.precision))
    encoded = plain.dictionary_encode()
    subjects = canonical_subjects(encoded.dictionary).to_pylist()
    if not are_subjects(subjects):
        raise (ValueError if create else FormatError)(
            f"subject_key: a subject has 1 to {MAX_SUBJECT} bytes; a row without one has null there"
        )
    found = vault.find(subjects, create=create)
    return Owners([f[1] for f in found], [f[0] for f in found], encoded.indices)


def canonical_subjects(keys: pa.Array) -> pa.Array:
    """Return the canonical text of subjects: digits of whole numbers, UTF-8, or the bytes.

    Raise UnsupportedFormatError if the type is another one.
    """
    keys = vb.unwrap_values(keys)
    keys = keys.cast(pa.string()) if _is_whole(keys.type) else keys
    return keys.cast(vb.binary_type(keys.type))


def _is_whole(kind: pa.DataType) -> bool:
    """Return whether subjects are whole numbers: some warehouses have only decimals."""
    # Otherwise they are text or binary; raise UnsupportedFormatError for other types.
    if pt.is_integer(kind) or (pt.is_decimal(kind) and kind.scale == 0):
        return True
    if vb.binary_type(kind) is None:
        raise UnsupportedFormatError(
            f"subject_key: a column of {kind} names no subjects; use whole numbers, text or binary"
        )
    return False


def parse_subject(subject: bytes, kind: pa.DataType) -> Any:
    """Return the value of a key column of a type with a canonical text; None if there is none.

    Raise UnsupportedFormatError as `canonical_subjects`.
    """
    kind = vb.storage_type(kind)
    if not (is_whole := _is_whole(kind)) and not vb.is_text(kind):
        return subject
    try:
        value = subject.decode()
        number = int(value) if is_whole else value
        return pa.scalar(number, kind) if str(number) == value else None
    except (ValueError, OverflowError):  # also Arrow's own errors
        return None


def cell_type(kind: pa.DataType, column: str) -> pa.DataType:
    """Return the type of the cells for a type of values; raise UnsupportedFormatError if none."""
    if (found := vb.bytes_type(kind)) is None:
        raise UnsupportedFormatError(
            f"subject_columns: column {column} is of {kind}, which cannot be encrypted value by "
            "value; use numbers, text, binary, times, or structs, lists and maps of them"
        )
    return found


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
        """Return the cells of values; raise ValueError if one has no subject."""
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

        Raise TagMismatchError if a cell does not open under its subject's key in this place, and
        FormatError if it has no subject, or its value is not of the column's type.
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
        self, convert: Callable[..., list[bytes]], values: pa.Array, rows: pa.Array,
        owners: Owners, growth: int,
    ) -> pa.Array:  # fmt: skip
        """Return what a function of `modcrypt.aead` makes of values, null where the row is."""
        # Values are sorted by subject meanwhile: to change the key takes longer than to use it.
        order = pc.sort_indices(rows)[: len(rows) - rows.null_count]  # nulls are last
        ordered, runs = values.take(order), pc.run_end_encode(rows.take(order))
        data, ends = vb.split_bytes(ordered)
        subjects, stops = runs.values.to_pylist(), runs.run_ends.to_pylist()
        ciphers, aads = [owners.ciphers[n] for n in subjects], self._aads(owners, subjects)
        parts = convert(ciphers, aads, stops, data, ends)
        lengths = pc.add(pc.binary_length(ordered), growth)
        made = vb.join_bytes(parts, lengths, values.type)
        places = pc.inverse_permutation(order.cast(pa.int64()), max_index=len(values) - 1)
        return made.take(places)

    def _aads(self, owners: Owners, subjects: list[int]) -> list[bytes]:
        path = _encode_texts([name.encode() for name in self.path])
        texts = _encode_texts([self.dataset.encode(), path])
        head = b"modcrypt subject cell 1" + texts + pack("<I", REFERENCE_SIZE)
        return [head + owners.references[n] for n in subjects]


def _encode_texts(texts: list[bytes]) -> bytes:
    return b"".join(pack("<I", len(text)) + text for text in texts)


def _select_rows(values: pa.Array, owners: Owners) -> pa.Array:
    """Return the numbers of the subjects of values, null where the value is."""
    if not values.null_count:
        return owners.rows
    return pc.if_else(values.is_valid(), owners.rows, pa.scalar(None, owners.rows.type))


@dataclass(frozen=True, slots=True)
class CellField:
    """A field of the top level with cells."""

    dataset: str  # name of the dataset that the cells are bound to
    key: str  # name of the column with the subjects
    paths: frozenset[sl.Path]  # paths of the leaves that are cells
    field: pa.Field  # the field as it was before its values became cells
    vault: str = ""  # id of the vault with the keys; empty if it is not known

    def stored_field(self, field: pa.Field) -> pa.Field:
        """Return the field of the cells of this field, as it is in some schema."""

        def make_leaf(path: sl.Path, leaf: pa.Field) -> pa.Field:
            is_cell = path in self.paths
            return leaf.with_type(cell_type(leaf.type, ".".join(path))) if is_cell else leaf

        stored = sl.map_leaf_fields(field, make_leaf)
        note = {
            "version": VERSION, "vault": self.vault, "dataset": self.dataset, "key": self.key,
            "columns": sorted(map(list, self.paths)),
            "field": base64.b64encode(pa.schema([self.field]).serialize()).decode(),
        }  # fmt: skip
        return stored.with_metadata({**(stored.metadata or {}), CELLS: json.dumps(note).encode()})

    def plain_field(self, field: pa.Field) -> pa.Field:
        """Return a field of a file with the types of values; raise FormatError if it has none."""
        kinds = self.leaf_types()

        def make_leaf(path: sl.Path, leaf: pa.Field) -> pa.Field:
            if path not in self.paths:
                return leaf
            cells, column = vb.storage_type(leaf.type), ".".join(path)
            if vb.binary_type(cells) is None or vb.is_text(cells):
                raise FormatError(
                    f"column {column} is of {cells}, but its metadata says that it has cells"
                )
            cell_type(kinds[path], column)
            return leaf.with_type(kinds[path]).with_nullable(True)  # for erased subjects

        metadata = {k: v for k, v in (field.metadata or {}).items() if k != CELLS}
        return sl.map_leaf_fields(field, make_leaf).with_metadata(metadata or None)

    def leaf_types(self) -> dict[sl.Path, pa.DataType]:
        """Return the types that the values of the cells are read as, by the leaves' paths."""
        leaves = sl.iter_leaves(self.field)
        return {path: vb.readable_type(kind) for path, kind in leaves if path in self.paths}


def parse_cell_fields(metadata: ThriftStruct) -> dict[str, CellField]:
    """Return the fields with cells in the file of a footer, by name.

    Raise UnsupportedFormatError for metadata of another version, FormatError if it is damaged.
    """
    noted = parse_field_metadata(get_arrow_schema(metadata))
    notes = {path: values.get(CELLS.decode()) for path, values in noted.items()}
    found = {path[0]: _parse_note(path[0], n) for path, n in notes.items() if n and len(path) == 1}
    for name, cells in found.items():
        if cells.key in found:
            raise FormatError(f"column {name}: the subjects of its cells would be cells, too")
    return found


def _parse_note(name: str, text: str) -> CellField:
    try:
        note = json.loads(text)
        version = note["version"]
        if version == VERSION:
            stored = base64.b64decode(note["field"], validate=True)
            (original,) = pa.ipc.read_schema(pa.py_buffer(stored))
            paths = frozenset(tuple(map(str, path)) for path in note["columns"])
            names, vault = (str(note["dataset"]), str(note["key"])), str(note.get("vault", ""))
            "".join(names).encode()  # raises if they are not text
            if paths <= dict(sl.iter_leaves(original)).keys():
                return CellField(*names, paths, original, vault)
            raise ValueError
    except (ValueError, KeyError, TypeError, OSError, RecursionError, pa.ArrowException):
        raise FormatError(f"column {name}: the metadata of its cells is damaged") from None
    raise UnsupportedFormatError(
        f"column {name} has cells of version {str(version)[:20]}, and this modcrypt reads "
        f"version {VERSION}; use a newer one"
    )


def choose_fields(
    schema: pa.Schema, dataset: str, key: str, columns: Sequence[str]
) -> dict[str, CellField]:
    """Return the fields whose values are to become cells, by name; the arguments of `Subjects`.

    Raise ValueError if the schema lacks a column or repeats a name, or if the key is among the
    columns, and UnsupportedFormatError as `cell_type`.
    """
    if repeated := sorted(name for name, n in Counter(schema.names).items() if n > 1):
        names = list_names(repeated)
        raise ValueError(
            f"subject_columns: several columns have the same name: {names}; rename them"
        )
    if schema.get_field_index(key) < 0:
        raise ValueError(
            f"subject_key: there is no column {key} in the file; add it, and do not partition by it"
        )
    leaves = {field.name: sl.stored_paths(field) for field in schema}
    every = [path for own in leaves.values() for paths in own.values() for path in paths]
    try:
        chosen = select_leaves(every, columns)
    except ValueError as error:
        raise ValueError(f"subject_columns: {error}; do not partition by them") from None
    if any(path[0] == key for path in chosen):
        raise ValueError(f"subject_columns names the key column {key}; remove it")
    cells = {name: sl.cover_leaves(own, chosen, "subject_columns") for name, own in leaves.items()}
    if nested := sorted(f.name for f in schema if cells[f.name] and CELLS in (f.metadata or {})):
        raise ValueError(
            f"column {nested[0]} has values that are encrypted under the keys of their subjects "
            "already; read it with their vault, or remove it from subject_columns"
        )
    return {f.name: CellField(dataset, key, own, f) for f in schema if (own := cells[f.name])}


def select_leaves(leaves: list[sl.Path], columns: Sequence[str]) -> set[sl.Path]:
    """Return the leaves that names of columns or groups cover; raise ValueError as `leaves_of`."""
    return {leaves[n] for n in leaves_of(leaves, [name.removesuffix(".*") for name in columns])}


def replace_fields(
    schema: pa.Schema, fields: Mapping[str, CellField], make: Callable[..., pa.Field]
) -> pa.Schema:
    """Return a schema with what a method of `CellField` makes of the fields with cells."""
    made = [make(fields[each.name], each) if each.name in fields else each for each in schema]
    return pa.schema(made, schema.metadata)


def convert_batch(
    batch: pa.RecordBatch, fields: Mapping[str, CellField], vault: SubjectVault,
    convert: Callable[..., pa.Array], schema: pa.Schema, *, create: bool = False,
) -> pa.RecordBatch:  # fmt: skip
    """Return a batch, with its key columns, whose leaves `convert` encrypts or decrypts.

    `create` is as for `find_owners`; `schema` is that of the result.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    there = {name: fields[name] for name in columns if name in fields}
    keys = dict.fromkeys(cells.key for cells in there.values())
    for name, cells in there.items():  # before a subject is unknown, or erased, in this vault alone
        if cells.vault not in ("", vault.id):
            raise KeyNotFoundError(
                f"column {name} is under keys of the subject vault {cells.vault}, and this is "
                f"{vault.id}; open that one",
                name,
            )
    owners = {key: find_owners(vault, columns[key], create=create) for key in keys}
    for name, cells in there.items():
        leaves = {
            path: partial(convert, CellColumn(cells.dataset, path, kind), owners=owners[cells.key])
            for path, kind in cells.leaf_types().items()
        }
        columns[name] = sl.map_leaves(columns[name], schema.field(name), leaves)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
