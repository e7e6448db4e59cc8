"""PyArrow: `read_table(decryption_properties=)`, and `CryptoFactory` for column keys."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import steps


class Kms(pe.KmsClient):
    """A stand-in for a key service, which refuses one master key."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._refused = config.custom_kms_conf.get("refused")

    def wrap_key(self, key: bytes, master_key: str) -> bytes:
        """Return the key in base64."""
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: str, master_key: str) -> bytes:
        """Return the key, or refuse the master key."""
        if master_key == self._refused:
            raise PermissionError("this master key is not for you")
        return base64.b64decode(wrapped)


def scan(path: str, columns: list[str] | None) -> Any:
    """Read a file or folder without a key."""
    return pq.read_table(path, columns=columns)


def read(path: str, columns: list[str] | None = None, **keys: Any) -> Any:
    """Read a file or folder with explicit keys."""
    keys = {name: value for name, value in keys.items() if value is not None}
    properties = pe.create_decryption_properties(**keys)
    return pq.read_table(path, columns=columns, decryption_properties=properties)


def unwrap(
    path: str, columns: list[str] | None = None, refused: str = "", filesystem: Any = None
) -> Any:
    """Read a file by key material."""
    connection = pe.KmsConnectionConfig(custom_kms_conf={"refused": refused})
    factory = pe.CryptoFactory(Kms)  # a factory keeps the first client for ten minutes
    properties = factory.file_decryption_properties(
        connection, pe.DecryptionConfiguration(), path, filesystem
    )
    return pq.ParquetFile(path, decryption_properties=properties).read(columns)


def open_dataset(path: str) -> Any:
    """Read a folder by key material."""
    keys = ds.ParquetDecryptionConfig(
        pe.CryptoFactory(Kms), pe.KmsConnectionConfig(), pe.DecryptionConfiguration()
    )
    scan = ds.ParquetFragmentScanOptions(decryption_config=keys)
    form = ds.ParquetFileFormat(default_fragment_scan_options=scan)
    return ds.dataset(path, format=form).to_table()


def count(path: str) -> Any:
    """Count rows without a key."""
    return ds.dataset(path).count_rows()


refused = partial(unwrap, "master-keys.parquet", refused="score key")
steps.run(
    steps.keyless_steps(scan, count)
    | steps.keyed_steps(read)
    | {
        "all-keys: master keys": partial(unwrap, "master-keys.parquet"),
        "missing-key: other columns": partial(refused, ["id", "name"]),
        "missing-key: all columns": refused,
        "plaintext-footer: footer key, other columns": partial(
            read, "plaintext-footer.parquet", ["city", "id"], footer_key=steps.FOOTER_KEY
        ),
        "plaintext-footer: footer key, all columns": partial(
            read, "plaintext-footer.parquet", footer_key=steps.FOOTER_KEY
        ),
        "key-material: one file, by path and file system": partial(
            unwrap, "key-material/part-0.parquet", filesystem=pyarrow.fs.LocalFileSystem()
        ),
        "key-material: one file, by path alone": partial(unwrap, "key-material/part-0.parquet"),
        "key-material: folder": partial(open_dataset, "key-material"),
        "mixed-folder: footer key, plaintext files allowed": partial(
            read, "mixed/", footer_key=steps.FOOTER_KEY, allow_plaintext_files=True
        ),
    }
)
