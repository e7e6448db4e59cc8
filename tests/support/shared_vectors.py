"""Files that other implementations wrote, and what their manifests say of them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.keys import COLUMN_KEY, OTHER_KEY


def shared_vectors() -> Path:
    """Return the folder of files that other implementations wrote, or skip the test."""
    folder = os.environ.get("MODCRYPT_SHARED_VECTORS")
    if not folder:
        pytest.skip("MODCRYPT_SHARED_VECTORS names no folder of other implementations' files")
    return Path(folder)


FOLDERS = ("parquet-java", "pyarrow")


def entry_params(section: str, wanted: Callable[[dict[str, Any]], bool] = bool) -> list[Any]:
    """Return a parameter for every wanted entry, or one that skips without manifests."""
    root = os.environ.get("MODCRYPT_SHARED_VECTORS")
    if not root:
        return [pytest.param("", {}, id="no folder")]
    return [
        pytest.param(folder, entry, id=f"{folder}/{entry['file']}-{entry.get('tamper')}")
        for folder in FOLDERS
        for entry in manifest(Path(root) / folder).get(section, [])
        if wanted(entry)
    ]


def manifest(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return content


def metadata_bytes(value: dict[str, str] | None) -> bytes | None:
    if value is None:
        return None
    return value["utf8"].encode() if "utf8" in value else bytes.fromhex(value["hex"])


def keys_of(enc: dict[str, Any]) -> dict[str, Any]:
    """Return explicit keys, by what a manifest says about a file."""
    return {
        "footer_key": bytes.fromhex(enc["footer_key"]),
        "column_keys": {
            path: bytes.fromhex(column["key"])
            for path, column in (enc["columns"] or {}).items()
            if column["key"] is not None
        },
    }


def reader_of(enc: dict[str, Any]) -> dict[str, Any]:
    prefix = enc["aad_prefix"]
    supplied = {"aad_prefix": prefix.encode()} if prefix and not enc["aad_prefix_stored"] else {}
    return {"accept_algorithms": [enc["algorithm"]], **supplied}


def table(source: Path | bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(source) if isinstance(source, bytes) else source)


def tampered_reader(entry: dict[str, Any]) -> dict[str, Any]:
    enc = entry.get("enc_used_by_reader", entry["enc"])
    reader = keys_of(enc) | reader_of(enc)
    if entry.get("aad_given", "auto") not in (None, "auto"):
        reader["aad_prefix"] = entry["aad_given"].encode()
    return reader


#: What of the taxonomy fits which tampering; bytes that are cut or stretched may break the format
#: before they fail to authenticate.
EXPECTED: dict[str, tuple[type[mc.ModcryptError], ...]] = {
    "downgrade": (mc.errors.PlaintextError,),
    "footer": (mc.errors.FooterSignatureError,),
    "crypto": (mc.errors.TagMismatchError,),
    "truncate": (mc.errors.FormatError,),
    "reader:swapped_column_keys": (mc.errors.TagMismatchError,),
    "reader:empty_prefix": (mc.errors.AadPrefixError,),
    "swap": (mc.errors.TagMismatchError,),
    "dup": (mc.errors.TagMismatchError, mc.errors.FormatError),
    "page_from_other_file": (mc.errors.TagMismatchError,),
    "flip_DataPage_verifycrc": (mc.errors.ChecksumError,),
}


def expected_error(tamper: str) -> tuple[type[mc.ModcryptError], ...]:
    if tamper.startswith("flip") and tamper not in EXPECTED:
        return (
            (mc.errors.TruncationError,) if "_length" in tamper else (mc.errors.TagMismatchError,)
        )
    return next(errors for start, errors in EXPECTED.items() if tamper.startswith(start))


PUBLISHED_COLUMN_KEYS = {"double_field": COLUMN_KEY, "float_field": OTHER_KEY}


def read_published(name: str) -> bytes:
    return (shared_vectors() / "parquet-testing" / f"{name}.parquet.encrypted").read_bytes()
