"""Signed files and the keys of their writers."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from modcrypt import FileDecryptionProperties, FileEncryptionProperties, SigningKey, write_table
from modcrypt.kms import VerifyingKey
from tests.support.keys import COLUMN_KEY, FOOTER_KEY

PEOPLE = pa.table(
    {
        "id": list(range(900)),
        "name": [f"name {n % 70}" for n in range(900)],
        "city": [f"city {n % 9}" for n in range(900)],
    }
)
MODES = [
    {"plaintext_footer": plain, "encryption_algorithm": algorithm}
    for plain in (False, True)
    for algorithm in ("AES_GCM_V1", "AES_GCM_CTR_V1")
]


@cache
def writer_key(scheme: str = "ed25519", number: int = 0) -> SigningKey:
    """Return the key of a writer; each number is another writer."""
    return SigningKey.generate(scheme)


def save_writer(folder: Path) -> SigningKey:
    """Write the key of a writer to writer.key, and its verifying key to writer.pub."""
    writer_key().save(folder / "writer.key")
    (folder / "writer.pub").write_text(f"{writer_key().verifier}\n")
    return writer_key()


def signed_encryption(key: SigningKey | None = None, **options: Any) -> FileEncryptionProperties:
    """Return properties with a column key, a plaintext column and a signing key."""
    return FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY}, plaintext_columns=["city"],
        signing_key=key or writer_key(), **options,
    )  # fmt: skip


def signed_file(table: pa.Table = PEOPLE, key: SigningKey | None = None, **options: Any) -> bytes:
    """Return a signed file with page indexes and bare values, in row groups of 300 rows."""
    out = io.BytesIO()
    write_table(
        table, out, signed_encryption(key, **options), row_group_size=300, write_page_index=True,
        compression="none", use_dictionary=False,
    )  # fmt: skip
    return out.getvalue()


def signed_decryption(*keys: VerifyingKey, **options: Any) -> FileDecryptionProperties:
    """Return properties that require a signature of one of the keys, by default the writer's."""
    defaults = {
        "column_keys": {"name": COLUMN_KEY},
        "accept_algorithms": ("AES_GCM_V1", "AES_GCM_CTR_V1"),
        "signed_by": keys or (writer_key().verifier,),
    }
    return FileDecryptionProperties(footer_key=FOOTER_KEY, **{**defaults, **options})
