"""Make spec-vectors/by-writer/iceberg-java: encrypted tables of Iceberg's Java, in many shapes.

    python -m tests.support.iceberg.java_vector FOLDER

Keys and ids are fresh each time, so that the bytes differ; the rows do not.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.java_tables import partition_spec, schema
from tests.support.iceberg.sample_kms import MASTERS

LOCATION = "wh://java/people"
REFS = ("main", "first", "audit")
STOCK = "wh://java/stock"

SCHEMA = schema(("id", "int"), ("name", "string"), ("score", "float"), ("born", "date"))
SPEC = partition_spec((1, "bucket[2]", "id_bucket"))
ENCRYPTED = {
    "format-version": "3",
    "encryption.key-id": "keyA",
    "encryption.data-key-length": "32",
    "commit.manifest.min-count-to-merge": "2",  # so that the vector is small
}
YEARS_MS = 800 * 24 * 60 * 60 * 1000


def rows(name: str, *ids: int) -> list[dict[str, Any]]:
    """Return rows; the column of names is called `name`."""
    return [
        {"id": n, name: None if n % 7 == 0 else f"name-{n}", "score": n / 4,
         "born": f"20{n % 30:02}-02-28"}
        for n in ids
    ]  # fmt: skip


def make(java: Judge, folder: Path) -> Path:
    """Write the table; return the path of its metadata.json."""
    reported: dict[str, Any] = {"location_map": {LOCATION: folder}, "key_id": "keyA"}
    metadata = java.create(
        folder, SCHEMA, spec=SPEC, location=LOCATION,
        properties={"format-version": "2", "encryption.key-id": None}, **reported,
    )  # fmt: skip
    # A table of version 2 that only its catalog knows to be encrypted has position delete files.
    metadata = java.commit(
        metadata,
        {"do": "append", "rows": rows("name", *range(8))},
        {"do": "tag", "name": "first"},
        shift_ms=-YEARS_MS,
        **reported,
    )
    return java.commit(
        metadata,
        {"do": "append", "rows": rows("name", *range(8, 14)), "format": "avro"},
        {"do": "delete", "column": "id", "values": [3, 10]},
        {"do": "delete", "column": "id", "values": [4], "format": "avro"},
        {"do": "set", "properties": ENCRYPTED},
        {
            "do": "schema", "rename": [["name", "title"]], "first": ["name"],
            "promote": [["id", "long"], ["score", "double"]], "add": [["town", "string"]],
        },
        {"do": "spec", "remove": ["id_bucket"], "add": [["town", "identity"]]},
        {"do": "append", "rows": [{**row, "town": "Ulm"} for row in rows("title", 2**40, 15)]},
        {"do": "delete", "column": "id", "values": [5, 8, 15]},
        {"do": "branch", "name": "audit"},
        {"do": "append", "branch": "audit", "rows": rows("title", 20)},
        {"do": "delete", "column": "id", "values": [6]},
        {"do": "expire"},
        **reported,
    )  # fmt: skip


STOCK_SCHEMA = schema(("item", "int"), ("colour", "string"), ("weight", "double"))


def stock(*items: int) -> list[dict[str, Any]]:
    """Return rows of the table with equality deletes."""
    colours = (None, "red", "blue")
    weights = (0.0, -0.0, "NaN", None, 2.5)
    return [{"item": n, "colour": colours[n % 3], "weight": weights[n % 5]} for n in items]


def make_stock(java: Judge, folder: Path) -> Path:
    """Write the table with equality deletes; return the path of its metadata.json."""
    reported: dict[str, Any] = {"location_map": {STOCK: folder}}
    metadata = java.create(folder, STOCK_SCHEMA, location=STOCK, properties=ENCRYPTED, **reported)

    def delete(by: str, *values: Any, **more: Any) -> dict[str, Any]:
        return {"by": [by], "rows": [{by: value} for value in values], **more}

    in_red: dict[str, Any] = {"in": {"item": 0, "colour": "red"}}
    return java.commit(
        metadata,
        {"do": "append", "rows": stock(*range(10))},
        {"do": "delete-equal", "files": [delete("item", 1, 2, 3)], "rows": stock(3)},
        {"do": "spec", "add": [["colour", "identity"]]},
        {"do": "schema", "promote": [["item", "long"]]},
        {"do": "append", "rows": stock(*range(10, 20), 2**40), "format": "avro"},
        {"do": "delete-equal", "files": [
            delete("item", 4, 10, 2**40, spec=0, format="avro"),
            delete("weight", "NaN", -0.0, **in_red),
        ]},
        {"do": "delete", "column": "item", "values": [0, 14]},
        {"do": "schema", "rename": [["colour", "paint"]], "drop": ["weight"]},
        {
            "do": "delete-equal", "files": [
                {"by": ["paint", "item"], "spec": 0, "rows": [
                    {"paint": None, "item": 9}, {"paint": "blue", "item": 6},
                    {"paint": "blue", "item": 5},
                ]},
                {"by": ["weight"], "spec": 0, "schema": 1, "rows": [{"weight": None}]},
            ],
        },
        {"do": "append", "rows": [{"item": 1, "paint": "red"}, {"item": 20}]},
        {"do": "expire"},
        **reported,
    )  # fmt: skip


def reachable(java: Judge, metadata: Path, location: str, folder: Path) -> set[Path]:
    """Return the files that the table's snapshots need, and its metadata.json."""
    found = {metadata}
    for snapshot in java.snapshots(metadata)["snapshots"]:
        reported = java.files(metadata, {location: folder}, snapshot["id"])
        locations = {file["path"] for file in reported["manifests"] + reported["files"]}
        locations.add(reported["manifest_list"])
        found |= {folder / path.removeprefix(f"{location}/") for path in locations}
    return found


def main(out: Path) -> None:
    """Write the tables, and the rows as Java reads them, to a folder that is not there yet."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        Judge(MASTERS, Path(temporary, "java.log")) as java,
    ):
        write(java, out, Path(temporary, "people"), make, LOCATION, REFS, "rows.json")
        write(java, out, Path(temporary, "stock"), make_stock, STOCK, ["main"], "stock.json")


def write(
    java: Judge,
    out: Path,
    folder: Path,
    make: Callable[[Judge, Path], Path],
    location: str,
    refs: Sequence[str],
    rows: str,
) -> None:
    """Make a table in a folder, and keep what it needs, and its rows."""
    metadata = make(java, folder)
    found = {ref: java.read(metadata, {location: folder}, ref=ref) for ref in refs}
    for path in sorted(reachable(java, metadata, location, folder)):
        target = out / folder.name / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (out / rows).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
