"""A folder with a keyring, a declaration and a plaintext dataset of Hive partitions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.lake.declarations.declaration_file import read_content
from modcrypt.lake.declarations.trust import write_record

DECLARATION = """\
kms = "file:lake.keyring"

[dataset.orders]
location = "orders"
include = "*.parquet"
partitions = ["day"]
footer_key = "footer"
plaintext_columns = ["country"]
aad_prefix = "orders/{path}"

[dataset.orders.column_keys]
pii = ["*_ssn", { pii = true }]
"""


def leave_environment(patch: pytest.MonkeyPatch) -> None:
    """Remove the variables that name a declaration or a key service, or trust one."""
    for name in (
        "MODCRYPT_CONFIG", "MODCRYPT_KMS", "MODCRYPT_PASSPHRASE", "MODCRYPT_TRUST", "VAULT_ADDR",
    ):  # fmt: skip
        patch.delenv(name, raising=False)


def trust_lake(folder: Path) -> Path:
    """Trust the declaration in a folder, as `modcrypt trust` does; needs an own XDG_STATE_HOME."""
    path = folder / "modcrypt.toml"
    write_record(path, read_content(path, is_found=True).digest)
    return path


def order_table(rows: int = 2, start: int = 0) -> pa.Table:
    """Return orders: a column that a pattern selects, and one whose field is marked as PII."""
    numbers = range(start, start + rows)
    mail = pa.field("mail", pa.string(), metadata={"pii": "true"})
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "country": [("NO", "SE")[n % 2] for n in numbers],
            "home_ssn": [f"{n:03}-45" for n in numbers],
            "mail": [f"{n}@example.com" for n in numbers],
        },
        schema=pa.schema(
            [("id", pa.int64()), ("country", pa.string()), ("home_ssn", pa.string()), mail]
        ),
    )


def write_day(folder: Path, day: str, files: int) -> None:
    """Write plaintext files of one day into the dataset `orders`."""
    partition = folder / "orders" / f"day={day}"
    partition.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        pq.write_table(order_table(2, 2 * number), partition / f"part-{number}.parquet")


def make_lake(
    folder: Path, *, days: int = 2, files: int = 2, declaration: str = DECLARATION
) -> Path:
    """Make a lake of plaintext files; return its declaration."""
    keyring = mc.Keyring.create(folder / "lake.keyring", plaintext=True)
    for name in ("footer", "pii"):
        keyring.create_key(name)
    for day in range(1, days + 1):
        write_day(folder, f"2026-11-{day:02}", files)
    (folder / "modcrypt.toml").write_text(declaration)
    return folder / "modcrypt.toml"
