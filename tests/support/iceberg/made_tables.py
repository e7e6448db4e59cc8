"""Tables under the master key `keyA` of the sample key service, most with a column of ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from modcrypt.iceberg import IcebergTable, create_table
from tests.support.iceberg.sample_kms import SampleKms

SCHEMA = pa.schema([("id", pa.int64())])


def make_table(
    place: Path | str | None, schema: pa.Schema = SCHEMA, kms: Any = None, **options: Any
) -> IcebergTable:
    """Make an encrypted table in a folder, or in a catalog that the options name."""
    return create_table(place, schema, kms or SampleKms(), **{"master_key_id": "keyA", **options})
