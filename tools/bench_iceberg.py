"""Compare scans of encrypted Iceberg tables with pyiceberg, and key rotations with reading JSON."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import StaticTable

from modcrypt.iceberg import IcebergTable, open_table, rotate_table
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.keys.metadata import StandardKeyMetadata
from tests.support.iceberg.builder import Builder, arrow, field, struct
from tests.support.iceberg.sample_kms import SampleKms
from tools.bench_kms import MASTER_KEYS, Counted, folder, keyring
from tools.figures import Bench, Row, below, figure, within

SNAPSHOTS = 10_000
KEKS = 1000
ENTRIES = 180_000
"""Keys of manifest lists: most of snapshots that are no more, as Java leaves them (40 MB)."""

TABLE_UUID = "3b1c5a2e-7d5c-4f7e-9a55-0d9a4c9e6b10"


def rotation(bench: Bench) -> Iterator[Row]:
    """Rotate the master key, and then the KEKs, of a table with a long history."""
    with folder(bench.work) as where:
        client = keyring(where)
        table = _table(where / "table", client)
        path = Path(table.place.path)
        size = path.stat().st_size / 1e6
        bare = figure([_bare(path, where / "bare.json")])
        for what in ("mek", "kek"):
            client.calls.clear()
            started = time.perf_counter()
            done = rotate_table(table, what, new_master_key_id=MASTER_KEYS[1])
            taken = figure([time.perf_counter() - started])
            calls = sum(client.calls.values()) / done.keks
            name = f"{SNAPSHOTS:,} snapshots, {size:.0f} MB of keys: rotate {what}; the JSON"
            yield below(name, taken, bare, 60)
            none = figure([0], "calls")
            yield below(
                "  calls of the key service for each KEK", figure([calls], "calls"), none, 2
            )
            table = done.table


def _table(where: Path, client: Counted) -> IcebergTable:
    """Make a table without files: a rotation only reads its metadata.json."""
    metadata = where / "metadata" / "v1.metadata.json"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(json.dumps(_document(where, client)))
    return open_table(where, client)


def _document(where: Path, client: Any) -> dict[str, Any]:
    resolver = KeyResolver(client)
    keks = resolver.masters.new_keks(MASTER_KEYS[0], 16, [""] * KEKS)
    keys = [
        resolver.encrypt_entry(StandardKeyMetadata.generate().with_length(5000), keks[n % KEKS])
        for n in range(ENTRIES)
    ]
    return {
        "format-version": 3,
        "table-uuid": TABLE_UUID,
        "location": str(where),
        "last-sequence-number": SNAPSHOTS,
        "last-updated-ms": 1,
        "current-schema-id": 0,
        "properties": {"encryption.key-id": MASTER_KEYS[0]},
        "current-snapshot-id": SNAPSHOTS,
        "encryption-keys": [
            *(kek.key.entry().document() for kek in keks), *(key.document() for key in keys)
        ],
        "snapshots": [
            {
                "snapshot-id": n + 1,
                "sequence-number": n + 1,
                "timestamp-ms": n,
                "summary": {"operation": "append"},
                "manifest-list": f"{where}/metadata/snap-{n}.avro",
                "schema-id": 0,
                "key-id": keys[n].id,
            }
            for n in range(SNAPSHOTS)
        ],
    }  # fmt: skip


def _bare(path: Path, copy: Path) -> float:
    """Read the JSON and write it as safely as a rotation does."""
    started = time.perf_counter()
    data = json.dumps(json.loads(path.read_bytes()), separators=(",", ":")).encode()
    with copy.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    return time.perf_counter() - started


# --- scans ------------------------------------------------------------------------------------

COLUMNS = 16
_KINDS = (
    ("long", pa.int64()),
    ("long", pa.int64()),
    ("double", pa.float64()),
    ("string", pa.string()),
)


def scanning(bench: Bench) -> Iterator[Row]:
    """Scan tables of large and of small files."""
    rows = max(1000, int(130_000 * bench.scale))  # 13 MB a file
    large = _twins(bench.work / "large", 20, rows)
    small = _twins(bench.work / "small", max(50, int(1000 * bench.scale)), 100)
    for name, tables in (("20 large files", large), ("1,000 files of 18 KB", small)):
        for what, columns, filters in (
            ("scan", None, None),
            ("scan of 2 columns", ("c0", "c3"), None),
            ("scan with a filter", None, "c0 < 10"),
        ):
            t = bench.time({
                "modcrypt": partial(_ours, tables[0], columns, filters),
                "pyiceberg": partial(_theirs, tables[1], columns, filters),
            })  # fmt: skip
            title = f"{name}: {what}; peer pyiceberg, in plaintext"
            yield within(title, t["modcrypt"], t["pyiceberg"], 1.2)


def _ours(metadata: Path, columns: tuple[str, ...] | None, filters: str | None) -> pa.Table:
    return open_table(metadata, SampleKms()).scan(columns=columns, filters=filters).to_arrow()


def _theirs(metadata: Path, columns: tuple[str, ...] | None, filters: str | None) -> pa.Table:
    table = StaticTable.from_metadata(str(metadata))
    chosen: Any = AlwaysTrue() if filters is None else filters
    return table.scan(row_filter=chosen, selected_fields=columns or ("*",)).to_arrow()


def _twins(folder: Path, files: int, rows: int) -> tuple[Path, Path]:
    """Make a table twice: encrypted, and in plaintext in a version that pyiceberg can plan."""
    made = []
    for name, version in (("encrypted", 3), ("plain", 2)):
        place = folder / name
        schema = struct(*(field(n + 1, f"c{n}", _KINDS[n % 4][0]) for n in range(COLUMNS)))
        builder = Builder(
            place, schema, encrypted=version == 3, version=version, location=str(place)
        )
        data = [builder.parquet(f"{n}.parquet", _rows(n, rows)) for n in range(files)]
        builder.snapshot([builder.manifest(data)])
        made.append(builder.write())
    return made[0], made[1]


def _rows(seed: int, count: int) -> pa.Table:
    chance = random.Random(seed)
    few = [chance.randrange(1000) for _ in range(count)]
    many = [chance.randrange(1 << 40) for _ in range(count)]
    ratios = [chance.random() for _ in range(count)]
    texts = [f"value-{number % 100_000}" for number in many]
    columns = [
        pa.array(values, kind[1])
        for values, kind in zip((few, many, ratios, texts), _KINDS, strict=True)
    ]
    schema = arrow([(n + 1, f"c{n}", _KINDS[n % 4][1]) for n in range(COLUMNS)])
    return pa.table([columns[n % 4] for n in range(COLUMNS)], schema=schema)
