"""A table's files opened by `cryptography`, fastavro and PyArrow, not by the package under test."""

from __future__ import annotations

import base64
import io
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.support.iceberg.sample_kms import MASTERS

BLOCK = 1 << 20


class PlainKey(NamedTuple):
    """Standard key metadata: version 1, and an Avro datum."""

    key: bytes
    aad_prefix: bytes
    length: int | None


def _long(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at


def parse_key_metadata(data: bytes) -> PlainKey:
    assert data[0] == 1
    size, at = _long(data, 1)
    key, at = data[at : at + size], at + size
    branch, at = _long(data, at)
    prefix = b""
    if branch:
        size, at = _long(data, at)
        prefix, at = data[at : at + size], at + size
    branch, at = _long(data, at)
    length = None
    if branch:
        length, at = _long(data, at)
    assert at == len(data)
    return PlainKey(key, prefix, length)


def open_ags1(data: bytes, key_metadata: bytes) -> bytes:
    keys = parse_key_metadata(key_metadata)
    assert keys.length == len(data)
    assert data[:4] == b"AGS1"
    assert struct.unpack("<i", data[4:8])[0] == BLOCK
    out, at, index = [], 8, 0
    while at < len(data):
        block = data[at : at + BLOCK + 28]
        aad = keys.aad_prefix + struct.pack("<i", index)
        out.append(AESGCM(keys.key).decrypt(block[:12], block[12:], aad))
        at, index = at + len(block), index + 1
    return b"".join(out)


def document(folder: Path) -> dict[str, Any]:
    """Return the metadata.json with the highest number."""
    versions = (folder / "metadata").glob("v*.metadata.json")
    newest = max(versions, key=lambda path: int(path.name[1:].partition(".")[0]))
    return json.loads(newest.read_bytes())  # type: ignore[no-any-return]


def unwrap_entry(metadata: dict[str, Any], key_id: str) -> bytes:
    """Return the key metadata of a manifest list: master key, KEK, entry, as Java does it."""
    keys = {key["key-id"]: key for key in metadata["encryption-keys"]}
    entry = keys[key_id]
    kek_entry = keys[entry["encrypted-by-id"]]
    assert kek_entry["encrypted-by-id"] == metadata["properties"]["encryption.key-id"]
    wrapped = base64.b64decode(kek_entry["encrypted-key-metadata"])
    master = MASTERS[kek_entry["encrypted-by-id"]]
    kek = AESGCM(master).decrypt(wrapped[:12], wrapped[12:], None)
    sealed = base64.b64decode(entry["encrypted-key-metadata"])
    stamp = kek_entry["properties"]["KEY_TIMESTAMP"].encode()
    return AESGCM(kek).decrypt(sealed[:12], sealed[12:], stamp)


class Opened(NamedTuple):
    """A table's current snapshot, opened link by link."""

    metadata: dict[str, Any]
    list_header: dict[str, str]
    manifests: list[dict[str, Any]]
    manifest_bytes: list[bytes]
    entries: list[list[dict[str, Any]]]

    @property
    def files(self) -> list[dict[str, Any]]:
        return [entry["data_file"] for entries in self.entries for entry in entries]


def avro(data: bytes) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the header and the rows of an Avro file."""
    reader = fastavro.reader(io.BytesIO(data))
    return dict(reader.metadata), list(reader)  # type: ignore[arg-type]  # they are records


def open_table(folder: Path, metadata: dict[str, Any] | None = None) -> Opened:
    """Open the current snapshot of a table whose location is its folder."""
    metadata = metadata or document(folder)
    (current,) = (
        snapshot for snapshot in metadata["snapshots"]
        if snapshot["snapshot-id"] == metadata["current-snapshot-id"]
    )  # fmt: skip
    key = unwrap_entry(metadata, current["key-id"])
    header, manifests = avro(open_ags1(Path(current["manifest-list"]).read_bytes(), key))
    plain = [
        open_ags1(Path(manifest["manifest_path"]).read_bytes(), manifest["key_metadata"])
        for manifest in manifests
    ]
    return Opened(metadata, header, manifests, plain, [avro(text)[1] for text in plain])


def pyarrow_rows(file: dict[str, Any]) -> pa.Table:
    """Read a data file by PyArrow, with its key, AAD prefix and length from the manifest."""
    keys = parse_key_metadata(file["key_metadata"])
    assert keys.length == file["file_size_in_bytes"] == Path(file["file_path"]).stat().st_size
    properties = pe.create_decryption_properties(
        footer_key=keys.key, aad_prefix=keys.aad_prefix, check_footer_integrity=True
    )
    return pq.ParquetFile(file["file_path"], decryption_properties=properties).read()


def manifest_lists(folder: Path) -> dict[int, bytes]:
    """Open every snapshot's manifest list by hand."""
    metadata = document(folder)
    return {
        snapshot["snapshot-id"]: open_ags1(
            (folder / "metadata" / snapshot["manifest-list"].rpartition("/")[2]).read_bytes(),
            unwrap_entry(metadata, snapshot["key-id"]),
        )
        for snapshot in metadata["snapshots"]
    }


def keks(metadata: dict[str, Any]) -> dict[str, dict[str, Any]]:
    keys = metadata["encryption-keys"]
    return {key["key-id"]: key for key in keys if "KEY_TIMESTAMP" in key.get("properties", {})}
