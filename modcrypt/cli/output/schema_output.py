"""A file's schema as text and JSON, with the key that protects each column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modcrypt.errors import printable
from modcrypt.parquet.crypto.column_kinds import COLUMN_KEY, FOOTER_KEY, PLAINTEXT
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.schema import leaf_elements
from modcrypt.parquet.format.type_names import logical_name, physical_name
from modcrypt.pkmt1.material import KeyMaterial, try_decode_metadata

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ColumnKind:
    """A leaf column with its Parquet type and the key that protects it."""

    path: str  # dotted path
    field: str  # top-level field that contains the column
    kind: str  # Parquet type as text
    key: str | None  # `"footer key"`, `"column key"` or `"plaintext"`; None without row groups
    # Id of the master key that wraps the key; None if key metadata does not name it.
    master_key: str | None

    @property
    def under(self) -> str | None:
        """The key and its master key as text."""
        return self.key if self.master_key is None else f"{self.key} under {self.master_key}"

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "column": self.path,
            "type": self.kind,
            "key": self.key,
            "master_key": self.master_key,
        }


def columns_of(file: OpenFile) -> list[ColumnKind]:
    """Return a description of every leaf column."""
    schema, row_groups = file.metadata.schema, file.metadata.row_groups
    leaves = leaf_elements(schema)
    chunks = row_groups[0].columns if row_groups else [None] * len(leaves)
    return [
        ColumnKind(
            ".".join(leaf.path),
            leaf.path[0],
            physical_name(schema[leaf.element]).lower() + _logical_suffix(schema[leaf.element]),
            *_key_of_chunk(chunk),
        )
        for leaf, chunk in zip(leaves, chunks, strict=True)
    ]


def _key_of_chunk(chunk: ThriftStruct | None) -> tuple[str | None, str | None]:
    if chunk is None:
        return None, None
    if (crypto := chunk.crypto_metadata) is None:
        return PLAINTEXT, None
    if (own := crypto.ENCRYPTION_WITH_COLUMN_KEY) is None:
        return FOOTER_KEY, None
    material = try_decode_metadata(own.key_metadata)
    return COLUMN_KEY, material.master_key_id if isinstance(material, KeyMaterial) else None


def fields_of(schema: pa.Schema, partitions: pa.Schema) -> list[dict[str, Any]]:
    """Return the fields of an Arrow schema, and those in folder names, as values for JSON."""
    return [
        {
            "name": field.name,
            "type": str(field.type),
            "nullable": field.nullable,
            "partition": in_folder_name,
        }
        for fields, in_folder_name in ((schema, False), (partitions, True))
        for field in fields
    ]


def arrow_rows(
    fields: Sequence[dict[str, Any]], columns: Sequence[ColumnKind]
) -> Iterator[tuple[str | None, ...]]:
    """Yield table rows: each field, and its columns if they have different keys."""
    for field in fields:
        inside = [column for column in columns if column.field == field["name"]]
        keys = {column.under for column in inside}
        under = inside[0].under if len(keys) == 1 else None
        if field["partition"]:
            under = "(folder)"
        yield field["name"], field["type"], "yes" if field["nullable"] else "no", under
        for column in inside if len(keys) > 1 else ():
            yield f"  {column.path}", column.kind, None, column.under


_REPETITIONS = {0: "required", 1: "optional", 2: "repeated"}


def parquet_text(schema: list[ThriftStruct], columns: Sequence[ColumnKind]) -> str:
    """Return a schema, checked by `leaf_elements`, as text with each column's key in a comment."""
    leaves = dict(zip((leaf.element for leaf in leaf_elements(schema)), columns, strict=True))
    lines = [f"message {_element_name(schema[0])} {{"]
    left = [schema[0].num_children or 0]  # children still to come of each open group
    for number, element in enumerate(schema[1:], 1):
        left[-1] -= 1
        indent = "  " * len(left)
        what = f"{indent}{_REPETITIONS.get(element.repetition_type or 0, 'unknown')} "
        if (column := leaves.get(number)) is not None:
            under = "" if column.under is None else f"  # {printable(column.under)}"
            physical, space, logical = column.kind.partition(" ")
            lines.append(f"{what}{physical} {_element_name(element)}{space}{logical};{under}")
        else:
            lines.append(f"{what}group {_element_name(element)}{_logical_suffix(element)} {{")
            left.append(element.num_children or 0)
        while len(left) > 1 and not left[-1]:
            left.pop()
            lines.append("  " * len(left) + "}")
    return "\n".join([*lines, "}"])


def _element_name(element: ThriftStruct) -> str:
    return printable(element.name.decode(errors="replace"))


def _logical_suffix(element: ThriftStruct) -> str:
    logical = logical_name(element)
    return "" if logical is None else f" ({logical})"
