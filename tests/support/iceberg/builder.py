"""Makes Iceberg tables, encrypted or not, without modcrypt's writers of them.

Avro by fastavro, AGS1 and the keys by `cryptography`, from Iceberg's spec and its Java. Parquet
data alone is sealed by `encrypt_parquet`, which is judged elsewhere: no other writer in Python
leaves the AAD prefix out of the file.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyroaring import BitMap64

from modcrypt import FileEncryptionProperties, encrypt_parquet
from tests.support.iceberg.sample_kms import MASTERS

BLOCK = 1 << 20
LOCATION = "wh://bucket/orders"
KEK_TIMESTAMP = "1795237555590"


def field(id_: int, name: str, type_: Any, **more: Any) -> dict[str, Any]:
    """A field of an Iceberg schema."""
    return {"id": id_, "name": name, "required": False, "type": type_, **more}


def struct(*fields: dict[str, Any], schema_id: int = 0) -> dict[str, Any]:
    """An Iceberg schema, or the type of a struct."""
    return {"type": "struct", "schema-id": schema_id, "fields": list(fields)}


def arrow(fields: Sequence[tuple[int, str, pa.DataType]]) -> pa.Schema:
    """An Arrow schema with field ids; types of structs and lists bring theirs."""
    return pa.schema([id_field(*column) for column in fields])


def id_field(id_: int, name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, metadata={b"PARQUET:field_id": str(id_)})


def varint(value: int) -> bytes:
    rest, out = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(out) + bytes((rest,))


def key_metadata(key: bytes, prefix: bytes, length: int | None) -> bytes:
    """Iceberg's standard key metadata."""
    ends = varint(0) if length is None else varint(1) + varint(length)
    return b"\x01" + varint(len(key)) + key + varint(1) + varint(len(prefix)) + prefix + ends


def ags1(data: bytes, key: bytes, prefix: bytes) -> bytes:
    """An AGS1 stream."""
    out = bytearray(b"AGS1" + BLOCK.to_bytes(4, "little"))
    for number in range(max(1, -(-len(data) // BLOCK))):
        nonce = os.urandom(12)
        block = data[number * BLOCK : (number + 1) * BLOCK]
        out += nonce + AESGCM(key).encrypt(nonce, block, prefix + number.to_bytes(4, "little"))
    return bytes(out)


def seal(key: bytes, data: bytes, aad: bytes | None) -> bytes:
    nonce = os.urandom(12)
    return nonce + AESGCM(key).encrypt(nonce, data, aad)


def optional(type_: Any) -> Any:
    return {"type": ["null", type_], "default": None}


def pairs(key_id: int, value_id: int, value: str) -> Any:
    fields = [
        {"name": "key", "type": "int", "field-id": key_id},
        {"name": "value", "type": value, "field-id": value_id},
    ]
    record = {"type": "record", "name": f"k{key_id}_v{value_id}", "fields": fields}
    return optional({"type": "array", "logicalType": "map", "items": record})


def entry_schema(partition: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The Avro schema of a manifest; `partition`: Avro fields with ids."""
    spec = [{**part, **optional(part["type"])} for part in partition]
    file = [
        (134, "content", {"type": "int"}),
        (100, "file_path", {"type": "string"}),
        (101, "file_format", {"type": "string"}),
        (102, "partition", {"type": {"type": "record", "name": "r102", "fields": spec}}),
        (103, "record_count", {"type": "long"}),
        (104, "file_size_in_bytes", {"type": "long"}),
        (109, "value_counts", pairs(119, 120, "long")),
        (110, "null_value_counts", pairs(121, 122, "long")),
        (137, "nan_value_counts", pairs(138, 139, "long")),
        (125, "lower_bounds", pairs(126, 127, "bytes")),
        (128, "upper_bounds", pairs(129, 130, "bytes")),
        (131, "key_metadata", optional("bytes")),
        (135, "equality_ids", optional({"type": "array", "items": "int", "element-id": 136})),
        (143, "referenced_data_file", optional("string")),
        (144, "content_offset", optional("long")),
        (145, "content_size_in_bytes", optional("long")),
    ]
    entry = [
        (0, "status", {"type": "int"}),
        (1, "snapshot_id", optional("long")),
        (3, "sequence_number", optional("long")),
        (4, "file_sequence_number", optional("long")),
        (2, "data_file", {"type": {"type": "record", "name": "r2", "fields": avro_fields(file)}}),
    ]
    return {"type": "record", "name": "manifest_entry", "fields": avro_fields(entry)}


def list_schema() -> dict[str, Any]:
    """The Avro schema of a manifest list."""
    summary = [
        (509, "contains_null", {"type": "boolean"}),
        (518, "contains_nan", optional("boolean")),
        (510, "lower_bound", optional("bytes")),
        (511, "upper_bound", optional("bytes")),
    ]
    record = {"type": "record", "name": "r508", "fields": avro_fields(summary)}
    fields = [
        (500, "manifest_path", {"type": "string"}),
        (501, "manifest_length", {"type": "long"}),
        (502, "partition_spec_id", {"type": "int"}),
        (517, "content", {"type": "int"}),
        (515, "sequence_number", {"type": "long"}),
        (516, "min_sequence_number", {"type": "long"}),
        (503, "added_snapshot_id", {"type": "long"}),
        (504, "added_files_count", {"type": "int"}),
        (505, "existing_files_count", {"type": "int"}),
        (506, "deleted_files_count", {"type": "int"}),
        (512, "added_rows_count", {"type": "long"}),
        (513, "existing_rows_count", {"type": "long"}),
        (514, "deleted_rows_count", {"type": "long"}),
        (507, "partitions", optional({"type": "array", "items": record, "element-id": 508})),
        (519, "key_metadata", optional("bytes")),
    ]
    return {"type": "record", "name": "manifest_file", "fields": avro_fields(fields)}


def avro_fields(fields: Sequence[tuple[int, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [{"name": name, **more, "field-id": id_} for id_, name, more in fields]


def avro_file(
    schema: Any, rows: Sequence[Any], metadata: Any = None, codec: str = "deflate"
) -> bytes:
    out = io.BytesIO()
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    if codec != "zstandard":
        fastavro.writer(out, parsed, rows, codec=codec, metadata=metadata or {})
        return out.getvalue()
    # fastavro needs more packages for this codec, except for a file without rows.
    fastavro.writer(out, parsed, (), codec=codec, metadata=metadata or {})
    sync, plain = out.getvalue()[-16:], io.BytesIO()
    for row in rows:
        fastavro.schemaless_writer(plain, parsed, row)
    block = pa.compress(plain.getvalue(), "zstd", asbytes=True)
    for number in (len(rows), len(block)):
        fastavro.schemaless_writer(out, "long", number)
    out.write(block + sync)
    return out.getvalue()


class Builder:
    """A table in the making; its members may be changed before `write`.

    Args:
        folder: of the table.
        schema: as metadata.json has it.
        partition: Avro fields of the partition, with ids; `spec` is the spec of them.
        encrypted: whether its files are.
        version: of the format.
        location: by which its files name each other.
    """

    def __init__(
        self,
        folder: Path,
        schema: dict[str, Any],
        *,
        spec: Sequence[dict[str, Any]] = (),
        partition: Sequence[dict[str, Any]] = (),
        encrypted: bool = True,
        version: int = 3,
        location: str = LOCATION,
    ) -> None:
        self.folder, self.encrypted, self.location = folder, encrypted, location
        self.partitions: dict[int, Sequence[dict[str, Any]]] = {0: partition}
        for name in ("data", "metadata"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.kek = os.urandom(16)
        self.count = 0
        self.document: dict[str, Any] = {
            "format-version": version,
            "table-uuid": "8b19a876-2225-48ad-a5f4-1c191de63807",
            "location": location,
            "last-sequence-number": 0,
            "last-updated-ms": 1795237555773,
            "last-column-id": 100,
            "current-schema-id": schema["schema-id"],
            "schemas": [copy.deepcopy(schema)],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": list(spec)}],
            "last-partition-id": 1010,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {"encryption.key-id": "keyA"} if encrypted else {},
            "snapshots": [],
            "refs": {},
        }
        if version == 3:
            self.document["next-row-id"] = 0
        if encrypted:
            self.document["encryption-keys"] = [
                {
                    "key-id": "kek",
                    "encrypted-key-metadata": text(seal(MASTERS["keyA"], self.kek, None)),
                    "encrypted-by-id": "keyA",
                    "properties": {"KEY_TIMESTAMP": KEK_TIMESTAMP},
                }
            ]

    # --- files ----------------------------------------------------------------------------------

    def put(self, name: str, data: bytes) -> dict[str, Any]:
        """Write a file by AGS1; return its location, length and key metadata."""
        metadata = None
        if self.encrypted:
            key, prefix = os.urandom(16), os.urandom(16)
            data = ags1(data, key, prefix)
            metadata = key_metadata(key, prefix, len(data))
        (self.folder / name).write_bytes(data)
        return {"path": f"{self.location}/{name}", "length": len(data), "key": metadata}

    def parquet(
        self, name: str, rows: pa.Table, *, row_group: int | None = None, int96: bool = False,
        **file: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Write a Parquet file; return its `data_file`."""
        plain = io.BytesIO()
        pq.write_table(
            rows, plain, row_group_size=row_group, store_schema=False,
            use_deprecated_int96_timestamps=int96,
        )  # fmt: skip
        metadata, data = None, plain.getvalue()
        if self.encrypted:
            key, prefix = os.urandom(16), os.urandom(16)
            out = io.BytesIO()
            how = FileEncryptionProperties(
                footer_key=key, aad_prefix=prefix, store_aad_prefix=False
            )
            encrypt_parquet(plain.getvalue(), out, how)
            metadata, data = key_metadata(key, prefix, None), out.getvalue()
        (self.folder / "data" / name).write_bytes(data)
        path = f"{self.location}/data/{name}"
        found = {"path": path, "length": len(data), "key": metadata}
        return self.file(found, rows.num_rows, "PARQUET", **file)

    def avro(
        self, name: str, schema: Any, rows: Sequence[Any], codec: str = "deflate", **file: Any
    ) -> dict[str, Any]:
        """Write an Avro file; return its `data_file`."""
        found = self.put(f"data/{name}", avro_file(schema, rows, codec=codec))
        return self.file(found, len(rows), "AVRO", **file)

    def vectors(self, name: str, deleted: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
        """Write a Puffin file of deletion vectors by location; return their `data_file`s."""
        data, places = bytearray(b"PFA1"), []
        for target, positions in deleted.items():
            bitmap = b"\xd1\xd3\x39\x64" + BitMap64(positions).serialize()
            blob = len(bitmap).to_bytes(4, "big") + bitmap + zlib.crc32(bitmap).to_bytes(4, "big")
            places.append((target, len(positions), len(data), len(blob)))
            data += blob
        footer = json.dumps({"blobs": []}).encode()
        size = len(footer).to_bytes(4, "little")
        found = self.put(f"data/{name}", bytes(data) + b"PFA1" + footer + size + bytes(4) + b"PFA1")
        return [
            self.file(
                found,
                count,
                "PUFFIN",
                content=1,
                referenced_data_file=target,
                content_offset=start,
                content_size_in_bytes=size,
            )
            for target, count, start, size in places
        ]

    def file(self, found: Any, count: int, form: str, **more: Any) -> dict[str, Any]:
        return {
            "content": 0,
            "file_path": found["path"],
            "file_format": form,
            "partition": {},
            "record_count": count,
            "file_size_in_bytes": found["length"],
            "key_metadata": found["key"],
            **more,
        }

    def manifest(
        self, files: Sequence[dict[str, Any]], *, content: int = 0, spec_id: int = 0, **row: Any
    ) -> dict[str, Any]:
        """Write a manifest of added files, or of whole entries; return its row for a list."""
        entries = [
            file if "data_file" in file else {"status": 1, "data_file": file} for file in files
        ]
        self.count += 1
        metadata = {
            "schema": json.dumps(self.document["schemas"][0]),
            "partition-spec": json.dumps(self.spec(spec_id)),
            "partition-spec-id": str(spec_id),
            "format-version": str(self.document["format-version"]),
            "content": "deletes" if content else "data",
        }
        data = avro_file(entry_schema(self.partitions[spec_id]), entries, metadata)
        found = self.put(f"metadata/m{self.count}.avro", data)
        return {
            "manifest_path": found["path"],
            "manifest_length": found["length"],
            "partition_spec_id": spec_id,
            "content": content,
            "added_files_count": len(files),
            "existing_files_count": 0,
            "deleted_files_count": 0,
            "added_rows_count": 0,
            "existing_rows_count": 0,
            "deleted_rows_count": 0,
            "key_metadata": found["key"],
            **row,
        }

    def spec(self, spec_id: int) -> list[dict[str, Any]]:
        """The fields of a partition spec."""
        specs = self.document.get("partition-specs", [])
        return next((spec["fields"] for spec in specs if spec["spec-id"] == spec_id), [])

    def snapshot(self, manifests: Sequence[dict[str, Any]], **more: Any) -> int:
        """Write a manifest list, and make its snapshot the current one."""
        number: int = self.document["last-sequence-number"] + 1
        self.document["last-sequence-number"] = number
        id_ = 1000 + number
        for manifest in manifests:  # those of an earlier snapshot have theirs
            manifest.setdefault("sequence_number", number)
            manifest.setdefault("min_sequence_number", number)
            manifest.setdefault("added_snapshot_id", id_)
        found = self.put(f"metadata/snap-{id_}.avro", avro_file(list_schema(), manifests))
        if self.encrypted:
            entry = seal(self.kek, found["key"], KEK_TIMESTAMP.encode())
            self.document["encryption-keys"].append(
                {
                    "key-id": f"list-{id_}",
                    "encrypted-key-metadata": text(entry),
                    "encrypted-by-id": "kek",
                }
            )
            more = {"key-id": f"list-{id_}", **more}
        self.document["snapshots"].append(
            {
                "snapshot-id": id_,
                "sequence-number": number,
                "timestamp-ms": 1795237555773 + number,
                "manifest-list": found["path"],
                "schema-id": self.document["current-schema-id"],
                "summary": {"operation": "append"},
                **more,
            }
        )
        self.document["current-snapshot-id"] = id_
        self.document["refs"]["main"] = {"snapshot-id": id_, "type": "branch"}
        return id_

    def write(self) -> Path:
        """Write the metadata.json."""
        path = self.folder / "metadata" / "v1.metadata.json"
        path.write_text(json.dumps(self.document))
        return path


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()
