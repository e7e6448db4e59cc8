"""The client of modcrypt: reading decrypts the whole file first, which opens every module."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pyarrow.parquet as pq

import modcrypt as mc
from modcrypt.keys import key_bytes
from tools.conformance.clients.arrow_options import encoder_options
from tools.conformance.clients.arrow_rows import tagged_rows
from tools.conformance.clients.client_loop import Json, abilities, serve, unhex, unhex_values
from tools.conformance.clients.local_kms import LocalKms
from tools.conformance.clients.modcrypt_seals import SEALS, read_seal

FORMATS = ["parquet", "pkmt1", "ags1", "key-metadata"]
BOTH = [
    "ctr", "encrypted-footer", "plaintext-footer", "column-keys", "aad-prefix", "aes-192",
    "aes-256", "external-keys", "v2", "page-indexes", "bloom-filters",
]  # fmt: skip
READ = [
    *BOTH, "v2-levels-clear", "page-checksums", "algorithm-choice", "drop-columns", "metadata",
    "unchecked-footer", "unverified-length", "block-length", "mldsa65", *SEALS,
]  # fmt: skip
WRITE = [
    *BOTH, "plaintext-columns", "footer-key-columns", "nested-column-keys", "key-metadata",
    "rows-per-page",
]  # fmt: skip


def decryption(request: Json, **options: Any) -> mc.FileDecryptionProperties:
    return mc.FileDecryptionProperties(
        footer_key=unhex(request["footer_key"]), aad_prefix=unhex(request["aad_prefix"]),
        column_keys=unhex_values(request["column_keys"]), accept_algorithms=request["algorithms"],
        **options,
    )  # fmt: skip


def read_parquet(request: Json) -> Json:
    options = {name: request[name] for name in ("on_missing_key", "check_footer_integrity")}
    properties = decryption(request, **options)
    if request["operation"] == "metadata":
        shown = mc.ParquetFile(request["path"], properties).metadata
        groups = [shown.row_group(n) for n in range(shown.num_row_groups)]
        chunks = [group.column(n) for group in groups for n in range(shown.num_columns)]
        return {"outcome": "metadata", "columns": [chunk.path_in_schema for chunk in chunks]}
    return read_rows(request["path"], properties)


def read_signed(request: Json) -> Json:
    verifier = mc.kms.VerifyingKey.parse(request["verifier"])
    return read_rows(request["path"], decryption(request, signed_by=[verifier]))


def read_rows(path: str, properties: Any) -> Json:
    mc.decrypt_parquet(path, io.BytesIO(), properties)
    table = mc.read_table(path, properties, page_checksum_verification=True)
    return {"outcome": "rows", **tagged_rows(table)}


def read_pkmt1(request: Json) -> Json:
    return read_rows(request["path"], mc.KeyTools(LocalKms(request["master_keys"])).decryption())


def read_ags1(request: Json) -> Json:
    out = io.BytesIO()
    length = mc.ags1.UNVERIFIED if request["length"] is None else request["length"]
    try:
        key = mc.Key(bytes.fromhex(request["key"]))
    except ValueError as error:  # a size that AES does not have
        return {"outcome": "error", "message": str(error)}
    prefix = unhex(request["aad_prefix"])
    mc.decrypt_ags1(request["path"], out, key, aad_prefix=prefix, length=length)
    data = out.getvalue()
    return {"outcome": "bytes", "length": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def read_key_metadata(request: Json) -> Json:
    found = mc.ags1.StandardKeyMetadata.decode(bytes.fromhex(request["bytes"]))
    prefix = None if found.aad_prefix is None else found.aad_prefix.hex()
    key = key_bytes(found.key).hex()
    return {"outcome": "key", "key": key, "aad_prefix": prefix, "file_length": found.file_length}


READERS = {
    "parquet": read_parquet,
    "pkmt1": read_pkmt1,
    "signatures": read_signed,
    "seals": read_seal,
    "ags1": read_ags1,
    "key-metadata": read_key_metadata,
}


def write(request: Json) -> Json:
    if request["format"] == "key-metadata":
        made = mc.ags1.StandardKeyMetadata(
            key=bytes.fromhex(request["key"]), aad_prefix=unhex(request["aad_prefix"]),
            file_length=request["file_length"],
        )  # fmt: skip
        return {"outcome": "encoded", "bytes": made.encode().hex()}
    if request["format"] == "ags1":
        key, prefix = bytes.fromhex(request["key"]), unhex(request["aad_prefix"])
        mc.encrypt_ags1(request["input"], request["path"], key, aad_prefix=prefix)
    else:
        make = encryption_by_kms if request["format"] == "pkmt1" else encryption_by_keys
        table = pq.read_table(request["input"])
        options = encoder_options(request["options"], table)
        mc.write_table(table, request["path"], make(request), **options)
    return {"outcome": "written"}


def encryption_by_keys(request: Json) -> Any:
    options = request["options"]
    return mc.FileEncryptionProperties(
        footer_key=bytes.fromhex(request["footer_key"]),
        column_keys=unhex_values(request["column_keys"]),
        encryption_algorithm=options["algorithm"],
        plaintext_footer=options["plaintext_footer"],
        aad_prefix=unhex(options["aad_prefix"]),
        store_aad_prefix=options["store_aad_prefix"],
        plaintext_columns=options["plaintext_columns"],
        footer_key_metadata=unhex(options["footer_key_metadata"]),
        column_key_metadata=unhex_values(options["column_key_metadata"]),
    )


def encryption_by_kms(request: Json) -> Any:
    options = request["options"]
    policy = mc.Policy(
        footer_key=options["footer_master"],
        column_keys={key: [path] for path, key in options["column_masters"].items()},
        plaintext_columns=options["plaintext_columns"],
        double_wrapping=options["double_wrapping"],
        internal_key_material=options["internal_storage"],
    )
    return mc.KeyTools(LocalKms(request["master_keys"])).encryption(policy)


if __name__ == "__main__":
    declared = {
        "read": abilities([*FORMATS, "signatures", "seals"], READ),
        "write": abilities(FORMATS, WRITE),
    }
    about = {"name": "modcrypt", "version": mc.__version__, **declared}
    serve(about, lambda r: READERS[r["format"]](r), write, mc.ModcryptError)
