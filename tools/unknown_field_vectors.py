"""Build and check the vectors of Thrift fields that no IDL has: a case for each struct.

A case states which files and copies may contain the fields of that struct, as text in some module.
The file has them in every struct (tools/unknown_fields.py).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import modcrypt as mc
from tools import verify_pme
from tools.unknown_fields import marker

FOOTER_KEY, COLUMN_KEY, HASH_KEY, COLUMN = "footer-128", "column-a-128", "other-128", "name"
SPEC = "parquet-format, Binary Protocol Extensions"
PLAIN = "parquet/plain/unknown-fields.parquet"
Json = dict[str, Any]

# By hand: structs that stand in the footer alone, and those that stand in modules of a column.
OF_FOOTER = {
    "FileMetaData": "the file's metadata, where a FlatBuffer footer would stand",
    "SchemaElement": "an element of the schema",
    "StringType": "a logical type",
    "TimestampType": "a logical type",
    "MilliSeconds": "a unit of time inside a logical type",
    "TypeDefinedOrder": "a column order",
    "KeyValue": "a key-value pair of the file",
    "RowGroup": "a row group",
    "SortingColumn": "a sort column of a row group",
    "ColumnChunk": "a column chunk",
}
OF_COLUMN = {
    "ColumnMetaData": "column metadata",
    "Statistics": "statistics of a chunk or a page",
    "SizeStatistics": "size statistics",
    "PageEncodingStats": "encoding statistics",
    "PageHeader": "a page header",
    "DataPageHeader": "the header of a data page",
    "DictionaryPageHeader": "the header of a dictionary page",
    "ColumnIndex": "a column index",
    "OffsetIndex": "an offset index",
    "PageLocation": "a page location of an offset index",
    "BloomFilterHeader": "the header of a bloom filter",
    "SplitBlockAlgorithm": "the algorithm of a bloom filter",
    "XxHash": "the hash of a bloom filter",
    "Uncompressed": "the compression of a bloom filter",
}
FILES = {
    "one-key": "encrypted footer, all columns under the footer key",
    "column-key": "encrypted footer, `name` under a key of its own",
    "plaintext-footer": "plaintext footer, all columns under the footer key",
    "plaintext-columns": "encrypted footer, no column encrypted",
}
COPIES = {
    "share": "the columns `id` and `when` of one-key, shared",
    "drop": "one-key without `name`",
    "null": "one-key with `name` set to null",
    "hash": "one-key with `name` hashed",
    "missing-key": "column-key decrypted without the key of `name`",
}


def cases() -> list[Json]:
    everything = OF_FOOTER | OF_COLUMN
    return [
        {
            "id": struct,
            "comment": f"unknown fields in {comment}",
            "spec": SPEC,
            "expect": "ok",
            "file": PLAIN.removeprefix("parquet/"),
            "marker": marker(struct).hex(),
            "kept": _base_names(struct),
        }
        for struct, comment in everything.items()
    ]


def _base_names(struct: str) -> list[str]:
    if struct in OF_FOOTER:
        return ["one-key"]
    return ["one-key", "column-key", "plaintext-footer"]


def write_input() -> bytes:
    """Make the plaintext file; its bytes depend on PyArrow's version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tools.unknown_fields import with_unknown_fields

    table = pa.table(
        {
            "id": pa.array(range(8), pa.int64()),
            "name": ["Ann", "Bob"] * 4,
            "when": pa.array([1, None] * 4, pa.timestamp("ms")),
        }
    )
    out = io.BytesIO()
    pq.write_table(
        table, out, row_group_size=4, write_page_index=True, compression="none",
        bloom_filter_options={"id": {"ndv": 8}, "name": {"ndv": 2}},
        sorting_columns=[pq.SortingColumn(0)],
    )  # fmt: skip
    marked, structs = with_unknown_fields(out.getvalue())
    assert structs == {*OF_FOOTER, *OF_COLUMN}
    return marked


def make_files(plain: bytes, keys: dict[str, bytes]) -> dict[str, bytes]:
    """Make all files and copies with modcrypt, each as seen with all keys."""
    footer_key, column_key = keys[FOOTER_KEY], keys[COLUMN_KEY]
    everything = mc.FileDecryptionProperties(
        footer_key=footer_key, column_keys={COLUMN: column_key}
    )
    reader = mc.FileDecryptionProperties(footer_key=footer_key)
    dropping = mc.FileDecryptionProperties(footer_key=footer_key, on_missing_key="drop")
    uniform = mc.FileEncryptionProperties(footer_key=footer_key)
    options: dict[str, Json] = {
        "one-key": {},
        "column-key": {"column_keys": {COLUMN: column_key}},
        "plaintext-footer": {"plaintext_footer": True},
        "plaintext-columns": {"plaintext_columns": ["id", "name", "when"]},
    }
    files = {
        name: _run(
            mc.encrypt_parquet, plain,
            mc.FileEncryptionProperties(footer_key=footer_key, **options[name]),
        )
        for name in FILES
    }  # fmt: skip
    file, mask = files["one-key"], mc.mask_parquet
    files |= {
        "share": _run(mc.share_parquet, file, reader, uniform, ["id", "when"]),
        "drop": _run(mask, file, reader, drop=[COLUMN]),
        "null": _run(mask, file, reader, null=[COLUMN]),
        "hash": _run(mask, file, reader, hashed=[COLUMN], hash_key=keys[HASH_KEY]),
    }
    seen = {
        name: plaintext_with_modules(data, footer_key, column_key if name == "column-key" else None)
        + _run(
            mc.decrypt_parquet, data, everything if name == "column-key" else reader, exact=False
        )
        for name, data in files.items()
    }
    missing = _run(mc.decrypt_parquet, files["column-key"], dropping)
    return seen | {"missing-key": missing}


def _run(function: Callable[..., Any], file: bytes, *arguments: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    function(file, out, *arguments, **options)
    return out.getvalue()


def plaintext_with_modules(data: bytes, footer_key: bytes, column_key: bytes | None) -> bytes:
    """Return a file's bytes and its modules' plaintext, as the independent verifier opens them."""
    columns = {} if column_key is None else {COLUMN: column_key}
    tail = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    top = verify_pme.read_struct(data, tail)[0]
    union = top[1] if data[-4:] == b"PARE" else top[8]
    unique = union[1][2]
    out = bytearray(data)
    for module in verify_pme.verify(data, footer_key, columns):
        if module.offset is None or (data[-4:] == b"PAR1" and module.type == 0):
            continue
        own = column_key is not None and module.column == 1
        aad = verify_pme.module_aad(unique, *module[:4])
        sealed = data[module.offset : module.offset + module.size]
        key = column_key if own and column_key is not None else footer_key
        out += verify_pme.open_module(key, aad, sealed)
    return bytes(out)


@cache
def _make_files_cached(plain: bytes, keys: tuple[tuple[str, bytes], ...]) -> dict[str, bytes]:
    return make_files(plain, dict(keys))


def problem(case: Json, plain: bytes, keys: dict[str, bytes]) -> str | None:
    """Return how modcrypt differs from a case."""
    text = bytes.fromhex(case["marker"])
    files = _make_files_cached(plain, tuple(sorted(keys.items())))
    kept = [name for name, data in files.items() if text in data]
    return None if kept == case["kept"] else f"{case['id']}: {kept} keep it, not {case['kept']}"
