"""A file's schema for people and for JSON, and which key each of its columns is under."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modcrypt.cli.output.failures import printable
from modcrypt.errors import KeyMaterialError
from modcrypt.parquet.crypto.ciphers import COLUMN_KEY, FOOTER_KEY, PLAINTEXT
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.schema import leaf_elements
from modcrypt.parquet.format.type_names import logical_name, physical_name
from modcrypt.pkmt1.material import KeyMaterial, decode_metadata

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnKind", "arrow_rows", "columns_of", "fields_of", "parquet_text"]


@dataclass(frozen=True)
class ColumnKind:
    """A leaf column: its Parquet type, and the key that it is under.

    Attributes:
        path: dotted.
        field: the top-level field that it is a part of.
        kind: its Parquet type, in words.
        key: `"footer key"`, `"column key"`, `"plaintext"`; None where there are no row groups.
        master_key: id of the master key that its key is wrapped under, where key metadata tells.
    """

    path: str
    field: str
    kind: str
    key: str | None
    master_key: str | None

    @property
    def under(self) -> str | None:
        """The key, in words."""
        return self.key if self.master_key is None else f"{self.key} under {self.master_key}"

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return {
            "column": self.path,
            "type": self.kind,
            "key": self.key,
            "master_key": self.master_key,
        }


def columns_of(file: OpenFile) -> list[ColumnKind]:
    """Describe every leaf column."""
    schema, row_groups = file.metadata.schema, file.metadata.row_groups
    leaves = leaf_elements(schema)
    chunks = row_groups[0].columns if row_groups else [None] * len(leaves)
    return [
        ColumnKind(".".join(leaf.path), leaf.path[0], _kind(schema[leaf.element]), *_key(chunk))
        for leaf, chunk in zip(leaves, chunks, strict=True)
    ]


def _key(chunk: ThriftStruct | None) -> tuple[str | None, str | None]:
    if chunk is None:
        return None, None
    crypto = chunk.crypto_metadata
    if crypto is None:
        return PLAINTEXT, None
    own = crypto.ENCRYPTION_WITH_COLUMN_KEY
    return (FOOTER_KEY, None) if own is None else (COLUMN_KEY, _master(own))


def _master(own: ThriftStruct) -> str | None:
    try:
        found = decode_metadata(own.key_metadata or b"")
    except KeyMaterialError:
        return None  # key metadata of another kind
    return found.master_key_id if isinstance(found, KeyMaterial) else None


def _kind(element: ThriftStruct) -> str:
    return physical_name(element).lower() + _logical(element)


# --- as Arrow has it -----------------------------------------------------------------------------


def fields_of(schema: pa.Schema, partitions: pa.Schema) -> list[dict[str, Any]]:
    """Give the fields of an Arrow schema, and those that folders spell, as what JSON takes."""
    return [
        {"name": one.name, "type": str(one.type), "nullable": one.nullable, "partition": spelt}
        for fields, spelt in ((schema, False), (partitions, True))
        for one in fields
    ]


def arrow_rows(
    fields: Sequence[dict[str, Any]], columns: Sequence[ColumnKind]
) -> Iterator[tuple[str | None, ...]]:
    """Give the lines of a table: the fields, and the keys of the columns that each consists of."""
    for one in fields:
        inside = [column for column in columns if column.field == one["name"]]
        keys = {column.under for column in inside}
        under = inside[0].under if len(keys) == 1 else None
        if one["partition"]:
            under = "(folder)"
        yield one["name"], one["type"], "yes" if one["nullable"] else "no", under
        for column in inside if len(keys) > 1 else ():
            yield f"  {column.path}", column.kind, None, column.under


# --- as Parquet has it ---------------------------------------------------------------------------

_REPETITIONS = {0: "required", 1: "optional", 2: "repeated"}


def parquet_text(schema: list[ThriftStruct], columns: Sequence[ColumnKind]) -> str:
    """Spell a Parquet schema, each column with its key in a comment.

    Args:
        schema: its elements, as `leaf_elements` has checked them.
        columns: its leaves.
    """
    leaves = dict(zip((leaf.element for leaf in leaf_elements(schema)), columns, strict=True))
    lines = [f"message {_name(schema[0])} {{"]
    left = [schema[0].num_children or 0]  # children still to come of each open group
    for number, element in enumerate(schema[1:], 1):
        left[-1] -= 1
        indent = "  " * len(left)
        what = f"{indent}{_REPETITIONS.get(element.repetition_type, 'unknown')} "
        column = leaves.get(number)
        if column is not None:
            under = "" if column.under is None else f"  # {printable(column.under)}"
            lines.append(f"{what}{_typed(element, column)};{under}")
        else:
            lines.append(f"{what}group {_name(element)}{_logical(element)} {{")
            left.append(element.num_children or 0)
        while len(left) > 1 and not left[-1]:
            left.pop()
            lines.append("  " * len(left) + "}")
    return "\n".join([*lines, "}"])


def _typed(element: ThriftStruct, column: ColumnKind) -> str:
    physical, space, logical = column.kind.partition(" ")
    return f"{physical} {_name(element)}{space}{logical}"


def _name(element: ThriftStruct) -> str:
    return printable(element.name.decode(errors="replace"))


def _logical(element: ThriftStruct) -> str:
    logical = logical_name(element)
    return "" if logical is None else f" ({logical})"
