"""PyArrow's key tools, by the key service that modcrypt uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

from tests.support.java.key_tools_java import MemoryKms

MASTERS = {
    "kf": b"footer master 16",
    "kc1": b"column master 1!",
    "kc2": b"column master 2, of 32 bytes !!!",
}
LOCAL = pafs.LocalFileSystem()


#: Columns under each master key: as PyArrow wants them named, and as we may name them.
THEIRS = {"kc1": ["id", "address.zip", "tags.list.element"], "kc2": ["name", "score"]}
OURS = {"kc1": ["id", "address", "tags"], "kc2": ["name", "score"]}


class ArrowKms(pe.KmsClient):  # type: ignore[misc]  # pyarrow ships no types
    """The key service as PyArrow asks it."""

    def __init__(self, kms: MemoryKms) -> None:
        super().__init__()
        self._kms = kms

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return self._kms.wrap(key_bytes, master_key_identifier).encode()

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        return self._kms.unwrap(wrapped_key, master_key_identifier)


def factory(kms: MemoryKms) -> pe.CryptoFactory:
    return pe.CryptoFactory(lambda configuration: ArrowKms(kms))


def pyarrow_configuration(case: Mapping[str, Any]) -> pe.EncryptionConfiguration:
    uniform = case["layout"] == "uniform"
    return pe.EncryptionConfiguration(
        footer_key="kf",
        **({"uniform_encryption": True} if uniform else {"column_keys": THEIRS}),
        encryption_algorithm=case["algorithm"],
        plaintext_footer=case["footer"] == "plaintext",
        double_wrapping=case["wrapping"] == "double",
        internal_key_material=case["material"] == "internal",
        data_key_length_bits=case["bits"],
    )


def pyarrow_writes(
    path: Path, table: pa.Table, kms: MemoryKms, case: Mapping[str, Any], **options: Any
) -> None:
    properties = factory(kms).file_encryption_properties(
        pe.KmsConnectionConfig(), pyarrow_configuration(case), path, LOCAL
    )
    pq.write_table(table, path, encryption_properties=properties, **options)


def pyarrow_reads(path: Path, kms: MemoryKms) -> pa.Table:
    properties = factory(kms).file_decryption_properties(
        pe.KmsConnectionConfig(), pe.DecryptionConfiguration(), path, LOCAL
    )
    with pq.ParquetFile(
        path, decryption_properties=properties, page_checksum_verification=True
    ) as file:
        return file.read()
