"""`Subjects`: the columns of a dataset whose values are under the keys of their subjects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from modcrypt.errors import PlaintextError
from modcrypt.io.store_errors import name_path_in_errors
from modcrypt.kms.key_tools import KeyTools
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.parquet.arrow.scanning.scan_session import Session
from modcrypt.parquet.arrow.struct_leaves import stored_paths
from modcrypt.parquet.crypto.properties import AnyDecryption
from modcrypt.parquet.datasets.discovery import list_files
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.schema import leaf_paths
from modcrypt.subjects.columns import (
    CellField,
    CellWriter,
    choose_fields,
    parse_cell_fields,
    select_leaves,
)
from modcrypt.subjects.reading import CellReader, key_error
from modcrypt.subjects.values import parse_subject
from modcrypt.subjects.vault import SubjectVault, open_vault


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """The columns of a dataset whose values are under the keys of their subjects.

    To read, the vault suffices: files state their key column and dataset.

    Args:
        vault: `SubjectVault` with the keys, or a function that returns it, which is called before
            the first value.
        key: Name of the column with the subjects: integers, text or binary.
        columns: Names of the columns or groups whose values are encrypted one by one; `address.*`
            is the same as `address`. Numbers, text, binary, times, structs, lists and maps of them;
            a list or map is one value.
        dataset: Name of the dataset that values are bound to: in another one, they do not open.
        on_erased: `"null"` reads the values of erased subjects as nulls, `"raise"` fails.
        restored: Fields with cells, by name, that `restore` sets.
        decrypted, erased: Numbers of values that were decrypted, and that were read as nulls, by
            column; reads add to them.

    Raises:
        TypeError: `vault` is neither a vault nor a function.
        ValueError: Columns are given without `key`, or the reverse; or `on_erased` is unknown.
    """

    vault: SubjectVault | Callable[[], SubjectVault] = field(repr=False)
    key: str | None = None
    columns: Sequence[str] = ()
    dataset: str = ""
    on_erased: Literal["null", "raise"] = "null"
    restored: Mapping[str, CellField] = field(default_factory=dict, repr=False)
    decrypted: Counter[str] = field(default_factory=Counter, compare=False, repr=False)
    erased: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.vault, SubjectVault) or callable(self.vault)):
            raise TypeError("vault must be a SubjectVault, such as open_vault returns")
        if isinstance(self.columns, str):
            raise ValueError("columns must be a list of names, not one string")
        if (self.key is None) != (not self.columns):
            raise ValueError("pass both key and columns to write, or neither to read")
        if self.on_erased not in ("null", "raise"):
            raise ValueError('on_erased must be "null" or "raise"')

    def open_vault(self) -> SubjectVault:
        """Return the vault."""
        vault = self.vault
        return vault() if callable(vault) else vault

    def reader(self, session: Session) -> CellReader:
        """Return the reader of an open file's cells."""
        counts = self.decrypted, self.erased
        return CellReader(session, self.open_vault, self.on_erased, *counts, self.restored)

    def restore(self, schema: pa.Schema) -> Subjects:
        """Return subjects that read their columns in files that lack the metadata of cells, too.

        `schema` has the types of the values. Without such columns, nothing is restored.
        """
        try:
            writer = self.writer(schema)
        except ValueError:
            return self
        return self if writer is None else replace(self, restored=writer.fields)

    def writer(self, schema: pa.Schema) -> CellWriter | None:
        """Return the writer of rows' cells; None without columns. Raise as `choose_fields`."""
        if self.key is None:
            return None
        fields = choose_fields(schema, self.dataset, self.key, self.columns)
        return CellWriter(fields, self.open_vault, schema)

    def check_cells(self, metadata: ThriftStruct) -> None:
        """Raise PlaintextError unless the columns are cells in the file of a footer."""
        known = parse_cell_fields(metadata).values() if self.columns else ()
        inner = {path: paths for each in known for path, paths in stored_paths(each.field).items()}
        mine = [cells for cells in known if (cells.key, cells.dataset) == (self.key, self.dataset)]
        cells = {leaf for field in mine for path in field.paths for leaf in inner[path]}
        stored = map(tuple, leaf_paths(metadata.schema))
        leaves = [leaf for path in stored for leaf in inner.get(path, [path])]
        chosen = select_leaves(leaves, self.columns)
        if missing := sorted(".".join(path) for path in chosen - cells):
            raise PlaintextError(
                f"column {missing[0]} is in subject_columns, but its values in this file are not "
                "encrypted under the keys of their subjects, and pages are encrypted without "
                "decoding a value; read the file as Arrow data, and write it with write_table, "
                "write_dataset or ParquetWriter"
            )


def make_subjects(address: str, tools: KeyTools, **members: Any) -> Subjects:
    """Return subjects whose vault is opened on first use, once for each set of master keys.

    `members` are further arguments of `Subjects`.
    """

    def open_once() -> SubjectVault:
        name = address, tools.keys_of_whole_files().of_whole_files
        if name not in tools.vaults:
            tools.vaults[name] = open_vault(address, tools)
        vault: SubjectVault = tools.vaults[name]
        return vault

    return Subjects(vault=open_once, **members)


def find_rows(
    paths: Sequence[str], decryption: AnyDecryption, known: Subjects, subject: bytes
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the address of each file with the rows of a subject, for each of its key columns.

    Args:
        paths: Paths of files and folders.
        decryption: Keys of the files.
        known: Vault, and the numbers of values that are decrypted and erased.
        subject: Canonical text of the subject.

    Raises:
        KeyNotFoundError: The vault knows neither the subject nor its erasure.
        ModcryptError, ValueError, OSError: As `read_table`.
    """
    for place in list_files([*paths], None):
        with (
            name_path_in_errors(place.address),
            ParquetFile(
                place.path, decryption, filesystem=place.filesystem, subjects=known
            ) as file,
        ):
            fields = parse_cell_fields(file.open_file.metadata).values()
            columns = {cells.key: cells.field.name for cells in fields}
            for key, column in columns.items():
                if (number := file.schema_arrow.get_field_index(key)) < 0:
                    raise key_error(key, column)
                value = parse_subject(subject, file.schema_arrow.field(number).type)
                if value is not None:
                    yield place.address, file.read(filters=[(key, "=", value)])
