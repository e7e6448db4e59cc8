"""The client of PyArrow: keys that are given, which are uniform only, and its CryptoFactory."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
from pyarrow.fs import LocalFileSystem

from tools.conformance.clients.arrow_options import encoder_options
from tools.conformance.clients.arrow_rows import tagged_rows
from tools.conformance.clients.client_loop import Json, UnsupportedError, abilities, serve, unhex
from tools.conformance.clients.local_kms import LocalKms, connect

READ = [
    "ctr", "encrypted-footer", "plaintext-footer", "aad-prefix", "aes-192", "aes-256", "v2",
    "page-checksums", "unchecked-footer", "metadata", "external-keys",
]  # fmt: skip
KMS_ONLY = ["column-keys"]  # for pkmt1; keys that are given are uniform
WRITE = [
    "ctr", "encrypted-footer", "plaintext-footer", "aad-prefix", "aes-192", "aes-256", "v2",
    "page-indexes", "bloom-filters", "key-metadata", "rows-per-page", "external-keys",
    "column-keys", "plaintext-columns",
]  # fmt: skip


class Kms(pe.KmsClient):  # type: ignore[misc]  # pyarrow ships no types
    """A key service that connects to the address that it is given."""

    masters: ClassVar[Json] = {}

    def __init__(self, configuration: Any) -> None:
        super().__init__()
        connect(configuration.kms_instance_url)
        self._kms = LocalKms(self.masters)

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        """Wrap a key."""
        return self._kms.wrap(key_bytes, master_key_identifier).encode()

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        """Return the key."""
        return self._kms.unwrap(wrapped_key, master_key_identifier)


def factory(request: Json) -> Any:
    Kms.masters = request["master_keys"]
    return pe.CryptoFactory(Kms)


def read(request: Json) -> Json:
    path = request["path"]
    if request["format"] == "pkmt1":
        place = (path, LocalFileSystem()) if request["external"] else ()
        decryption = factory(request).file_decryption_properties(
            pe.KmsConnectionConfig(), pe.DecryptionConfiguration(), *place
        )
    else:
        if request["column_keys"]:
            raise UnsupportedError("keys that are given are uniform")
        options = {"aad_prefix": unhex(request["aad_prefix"])}
        decryption = pe.create_decryption_properties(
            footer_key=unhex(request["footer_key"]) or b"",
            check_footer_integrity=request["check_footer_integrity"],
            **{name: value for name, value in options.items() if value is not None},
        )
        if request["operation"] == "metadata":
            return read_metadata(path, decryption)
    table = pq.read_table(
        path, decryption_properties=decryption, page_checksum_verification=True, partitioning=None
    )
    return {"outcome": "rows", **tagged_rows(table)}


def read_metadata(path: str, decryption: Any) -> Json:
    """Return the columns whose metadata PyArrow shows."""
    metadata = pq.read_metadata(path, decryption_properties=decryption)
    shown = set()
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            shown.add(chunk.path_in_schema)
    return {"outcome": "metadata", "columns": sorted(shown)}


def write(request: Json) -> Json:
    table = pq.read_table(request["input"])
    make = encryption_by_kms if request["format"] == "pkmt1" else encryption_by_keys
    pq.write_table(
        table, request["path"], encryption_properties=make(request, table), store_schema=False,
        **encoder_options(request["options"], table),
    )  # fmt: skip
    return {"outcome": "written"}


def encryption_by_keys(request: Json, _: pa.Table) -> Any:
    options = request["options"]
    if request["column_keys"] or options["plaintext_columns"]:
        raise UnsupportedError("keys that are given are uniform")
    more = {"aad_prefix": unhex(options["aad_prefix"])}
    return pe.create_encryption_properties(
        footer_key=bytes.fromhex(request["footer_key"]),
        store_aad_prefix=options["store_aad_prefix"],
        encryption_algorithm=options["algorithm"],
        plaintext_footer=options["plaintext_footer"],
        **{name: value for name, value in more.items() if value is not None},
    )


def encryption_by_kms(request: Json, table: pa.Table) -> Any:
    options = request["options"]
    columns = defaultdict(list)
    for path, master in options["column_masters"].items():
        columns[master].append(path)
    configuration = pe.EncryptionConfiguration(
        footer_key=options["footer_master"],
        **({"column_keys": dict(columns)} if columns else {"uniform_encryption": True}),
        double_wrapping=options["double_wrapping"],
        internal_key_material=options["internal_storage"],
    )
    place = () if options["internal_storage"] else (request["path"], LocalFileSystem())
    Path(request["path"]).parent.mkdir(exist_ok=True)
    made = factory(request)
    return made.file_encryption_properties(pe.KmsConnectionConfig(), configuration, *place)


if __name__ == "__main__":
    formats = ["parquet", "pkmt1"]
    declared = {"read": abilities(formats, READ + KMS_ONLY), "write": abilities(formats, WRITE)}
    serve({"name": "PyArrow", "version": pa.__version__, **declared}, read, write)
