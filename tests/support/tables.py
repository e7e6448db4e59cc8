"""Keys, tables and small helpers that several test files share."""

from __future__ import annotations

import datetime
import decimal
import hmac
import io
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

FOOTER_KEY = b"0123456789012345"
COLUMN_KEY = b"1234567890123450"
OTHER_KEY = b"1234567890123451"


def mask_hash(key: bytes, value: bytes, label: bytes = b"modcrypt mask hash v1") -> str:
    """Compute a hash of masks by `hmac` alone: HKDF-SHA-256 (RFC 5869), then HMAC-SHA-256."""
    extracted = hmac.digest(bytes(32), key, "sha256")
    derived = hmac.digest(extracted, label + b"\x01", "sha256")
    return hmac.digest(derived, value, "sha256").hex()


def shared_vectors() -> Path:
    """Give the folder of files that other implementations wrote, or skip the test."""
    folder = os.environ.get("MODCRYPT_SHARED_VECTORS")
    if not folder:
        pytest.skip("MODCRYPT_SHARED_VECTORS names no folder of other implementations' files")
    return Path(folder)


class Watched(io.BytesIO):
    """A source that notes which of its bytes were read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.taken = bytearray(len(data))

    def read(self, size: int | None = -1) -> bytes:
        start = self.tell()
        data = super().read(size)
        self.taken[start : start + len(data)] = b"\1" * len(data)
        return data


def small_table(rows: int = 50) -> pa.Table:
    """Give flat, nested and null values of the common types."""
    numbers = range(rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([None if n % 7 == 0 else f"name-{n % 11}" for n in numbers]),
            "price": pa.array([decimal.Decimal(n) / 4 for n in numbers], pa.decimal128(12, 2)),
            "score": pa.array([n * 1.5 for n in numbers], pa.float64()),
            "day": pa.array([datetime.date(2026, 1, 1 + n % 28) for n in numbers]),
            "flag": pa.array([n % 3 == 0 for n in numbers]),
            "address": pa.array(
                [{"zip": f"{n:05}", "city": None if n % 5 == 0 else "Ulm"} for n in numbers]
            ),
            "tags": pa.array([["a", "b"][: n % 3] for n in numbers], pa.list_(pa.string())),
        }
    )


def write_plain(path: Path, table: pa.Table | None = None, **options: Any) -> Path:
    """Write a plaintext Parquet file with PyArrow."""
    pq.write_table(small_table() if table is None else table, path, **options)
    return path


def read_with_pyarrow(path: Path, footer_key: bytes, aad_prefix: bytes | None = None) -> pa.Table:
    """Read a uniformly encrypted file with PyArrow's explicit keys."""
    properties = pe.create_decryption_properties(
        footer_key=footer_key, **({} if aad_prefix is None else {"aad_prefix": aad_prefix})
    )
    return pq.read_table(path, decryption_properties=properties)
