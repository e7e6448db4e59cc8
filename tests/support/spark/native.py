"""A keyring and files for the tests of Spark's own Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from modcrypt.kms.keyring.keyring import Keyring
from tests.support.spark.lake import PASSPHRASE as LAKE_PASSPHRASE

PASSPHRASE = LAKE_PASSPHRASE.decode()
IDS = ("kf", "kc1", "kc2")


def make_ring(folder: Path) -> Keyring:
    """Create an encrypted keyring; `uri_of` returns its URI."""
    ring = Keyring.create(folder / "lake.keyring", passphrase=PASSPHRASE)
    (folder / "lake.pass").write_text(f"{PASSPHRASE}\n")
    for name in IDS:
        ring.create_key(name)
    return ring


def uri_of(ring: Keyring) -> str:
    return f"file:{ring.path}?passphrase=file:{Path(ring.path).with_suffix('.pass')}"


def table(rows: int = 300) -> pa.Table:
    numbers = range(rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([None if n % 7 == 0 else f"name-{n % 11}" for n in numbers]),
            "score": pa.array([n * 1.5 for n in numbers]),
            "address": [{"zip": f"{n:05}", "city": None if n % 5 == 0 else "Ulm"} for n in numbers],
            "tags": [[f"t{n % 3}"] * (n % 4) for n in numbers],
        }
    )


def rows_of(frame: Any) -> list[dict[str, Any]]:
    ordered = frame.select(table(0).column_names).orderBy("id")
    return [row.asDict(recursive=True) for row in ordered.collect()]
