"""Write the files that peers are run on: `python -m tools.peers.samples FOLDER`.

Keys are ASCII digits, so that a probe in any language can name them; `keys.json` lists them.
Probes in `tools/peers/probes` say which case reads which file.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import modcrypt as mc
import modcrypt.iceberg

FOOTER_KEY = b"0123456789012345"
COLUMN_KEYS = {"name": b"1234567890123450", "score": b"1234567890123451"}
AAD_PREFIX = b"tester"
SIGNED: dict[str, Any] = {
    "column_keys": COLUMN_KEYS,
    "plaintext_columns": ["city"],
    "plaintext_footer": True,
}

ROWS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "city": [("Ulm", "Bonn", "Kiel")[row % 3] for row in range(100)],
        "name": [f"name {row}" for row in range(100)],
        "score": [row / 4 for row in range(100)],
    }
)
GROUPS = 32768


class Base64Kms:
    """A stand-in for a key service, which returns what it was given in base64."""

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Return the key in base64."""
        return base64.b64encode(key).decode()

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Return the key."""
        return base64.b64decode(wrapped)


def write_samples(folder: Path) -> None:
    """Write the files of all cases.

    Args:
        folder: An empty folder.
    """
    _write(folder, "uniform.parquet")
    _write(folder, "columns.parquet", column_keys=COLUMN_KEYS)
    _write(folder, "plaintext-footer.parquet", **SIGNED)
    _write(folder, "aad-stored.parquet", aad_prefix=AAD_PREFIX)
    _write(folder, "aad-supplied.parquet", aad_prefix=AAD_PREFIX, store_aad_prefix=False)
    _write(folder, "ctr.parquet", encryption_algorithm="AES_GCM_CTR_V1")
    _write(folder, "data-page-v2.parquet", options={"data_page_version": "2.0"})
    _write(folder / "mixed", "b.parquet")
    pq.write_table(ROWS, folder / "mixed" / "a.parquet")
    _write(folder, "indexes.parquet", options={"write_page_index": True}, **SIGNED)
    _write_restored(folder / "restored.parquet")
    _write_key_material(folder / "key-material")
    _write_master_keys(folder / "master-keys.parquet")
    table = mc.iceberg.create_table(
        folder / "iceberg", ROWS.schema, Base64Kms(), master_key_id="lake"
    )
    table.append(ROWS)
    many = pa.table({"id": pa.array(range(GROUPS), pa.int64())})
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    mc.write_table(many, folder / "row-groups-32768.parquet", encryption, row_group_size=1)
    keys = {"footer": FOOTER_KEY, "aad_prefix": AAD_PREFIX} | COLUMN_KEYS
    (folder / "keys.json").write_text(json.dumps({k: v.decode() for k, v in keys.items()}))


def _write(folder: Path, name: str, options: dict[str, Any] | None = None, **how: Any) -> None:
    folder.mkdir(exist_ok=True)
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, **how)
    mc.write_table(ROWS, folder / name, encryption, **options or {})


def _write_restored(path: Path) -> None:
    """Write a file with one more module before the footer, by which every byte is restored."""
    plain = io.BytesIO()
    pq.write_table(ROWS, plain)
    content = plain.getvalue()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    source = content[:footer] + b"bytes that no field names" + content[footer:]
    mc.encrypt_parquet(source, path, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))


def _write_key_material(folder: Path) -> None:
    """Write two files whose wrapped keys lie beside them, as key tools of PyArrow find them."""
    folder.mkdir()
    tools = mc.KeyTools(Base64Kms(), master_key_ids=["lake"])
    policy = mc.Policy(footer_key="lake", internal_key_material=False, double_wrapping=False)
    for name in ("part-0.parquet", "part-1.parquet"):
        mc.write_table(ROWS, folder / name, tools.encryption(policy))


def _write_master_keys(path: Path) -> None:
    """Write a file with a master key for each of two columns."""
    names = {f"{column} key": [column] for column in COLUMN_KEYS}
    tools = mc.KeyTools(Base64Kms(), master_key_ids=["lake", *names])
    policy = mc.Policy(footer_key="lake", column_keys=names)
    mc.write_table(ROWS, path, tools.encryption(policy))


if __name__ == "__main__":
    write_samples(Path(sys.argv[1]))
