"""The cases of spec-vectors/ as requests to clients.

A private folder has further cases in documents of the same names. What these lack, such as the base
file of a patch or a key, is that of spec-vectors.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "spec-vectors"
PORT = b"http://127.0.0.1:00000/"
"""The address in hostile key material; the runner puts its listener's port in."""

Json = dict[str, Any]


class UnavailableError(Exception):
    """The file of a case can't be made here."""


@dataclass(frozen=True)
class Case:
    """A case, and the member of its document that it was made from."""

    direction: str  # "read" or "write"
    format: str
    name: str
    raw: Json
    folder: Path = FOLDER

    @property
    def id(self) -> str:
        """Return direction, format and name in one text."""
        return f"{self.direction}/{self.format}/{self.name}"

    @property
    def severity(self) -> str:
        """Return `security` or `feature`."""
        return str(self.raw["severity"])

    @property
    def features(self) -> frozenset[str]:
        """Return the features that a client must declare."""
        return frozenset(self.raw["features"])

    @property
    def control(self) -> str | None:
        """Return the id of the valid case that is read in the same way."""
        name = self.raw.get("control")
        return None if name is None else f"{self.direction}/{self.format}/{name}"


@cache
def _load(folder: Path, path: str) -> Json:
    """Return a document; that of a private folder is empty if it does not exist."""
    file = folder / path
    found: Json = {} if folder != FOLDER and not file.exists() else json.loads(file.read_text())
    return found


def _keys(folder: Path, path: str = "keys.json") -> Json:
    """Return keys in hex by name."""
    return _load(FOLDER, path) | _load(folder, path)


def _streams(folder: Path) -> Json:
    bases = (_load(place, "ags1/cases.json").get("bases", {}) for place in (FOLDER, folder))
    return {name: base for found in bases for name, base in found.items()}


def read_cases(folder: Path = FOLDER) -> Iterator[Case]:
    """Yield the cases for readers; each control comes before the cases that need it."""
    documents = {
        "parquet": "parquet/cases.json",
        "pkmt1": "pkmt1/cases.json",
        "signatures": "signatures/cases.json",
        "seals": "seals/cases.json",
        "ags1": "ags1/cases.json",
        "key-metadata": "ags1/key_metadata.json",
    }
    for form, path in documents.items():
        listed = _load(folder, path).get("cases", ())
        found = [Case("read", form, raw["id"], raw, folder) for raw in listed]
        yield from sorted(found, key=lambda case: case.control is not None)


def write_cases() -> Iterator[Case]:
    """Yield the scenarios for writers."""
    for raw in _load(FOLDER, "write.json")["cases"]:
        yield Case("write", raw["format"], raw["id"], raw)
    for raw in _load(FOLDER, "ags1/key_metadata.json")["cases"]:
        if raw["expect"] == "ok":
            yield Case("write", "key-metadata", raw["id"], raw)


# --- requests to readers --------------------------------------------------------------------------


def read_request(case: Case, folder: Path, port: int) -> Json:
    """Write the file of a case into a folder and return the request.

    Raises:
        UnavailableError: The file is not stored, and making it needs the package `cryptography`.
    """
    request: Json = {"type": "read", "id": case.id, "format": case.format}
    if case.format == "key-metadata":
        return request | {"bytes": case.raw["hex"]}
    if case.format == "seals":
        return request | _seal_members(case, folder)
    path = folder / ("data" + (".ags1" if case.format == "ags1" else ".parquet"))
    path.write_bytes(case_bytes(case).replace(PORT, _with_port(port)))
    request["path"] = str(path)
    make = {"parquet": _parquet_members, "pkmt1": _pkmt1_members,
            "signatures": _signature_members, "ags1": _ags1_members}  # fmt: skip
    if case.format == "pkmt1":
        _put_material_beside(case, path, port)
    return request | make[case.format](case)


def case_bytes(case: Case) -> bytes:
    """Return the file of a read case."""
    raw = case.raw
    if case.format == "ags1":
        base = _streams(case.folder)[raw["base"]]
        data = _make_stream(base) if base["file"] is None else _read(case, f"ags1/{base['file']}")
    else:
        data = _read(case, f"{case.format}/{raw['file']}")
    return apply_patches(data, raw.get("patches", []))


def apply_patches(data: bytes, patches: list[Json]) -> bytes:
    """Change a file as spec-vectors/README.md says."""
    for patch in patches:
        if "swap" in patch:
            (a, b), size = patch["swap"], patch["size"]
            first, second = data[a : a + size], data[b : b + size]
            data = data[:a] + second + data[a + size : b] + first + data[b + size :]
        else:
            at, more = patch["at"], bytes.fromhex(patch["insert"])
            data = data[:at] + more + data[at + patch["remove"] :]
    return data


def _read(case: Case, path: str) -> bytes:
    own = case.folder / path
    return (own if own.exists() else FOLDER / path).read_bytes()


def _with_port(port: int) -> bytes:
    return PORT.replace(b"00000", b"%05d" % port)


def _put_material_beside(case: Case, path: Path, port: int) -> None:
    beside = path.with_name(f"_KEY_MATERIAL_FOR_{path.name}.json")
    beside.unlink(missing_ok=True)
    if case.raw["external"] is not None:
        material = _read(case, f"pkmt1/{case.raw['external']}")
        beside.write_bytes(material.replace(PORT, _with_port(port)))


def hex_keys(case: Case) -> Json:
    """Return the keys that a case names."""
    footer, known = case.raw["keys"]["footer"], _keys(case.folder)
    return {
        "footer_key": None if footer is None else known[footer],
        "column_keys": {path: known[name] for path, name in case.raw["keys"]["columns"].items()},
    }


def _parquet_members(case: Case) -> Json:
    defaults = {
        "aad_prefix": None,
        "algorithms": ["AES_GCM_V1"],
        "on_missing_key": "error",
        "check_footer_integrity": True,
    }
    operation = case.raw.get("operation", "rows")
    return {"operation": operation, **hex_keys(case), **defaults, **case.raw["properties"]}


def _master_keys(case: Case) -> Json:
    known = _keys(case.folder)
    return {name: known[key] for name, key in case.raw["master_keys"].items()}


def _pkmt1_members(case: Case) -> Json:
    return {"master_keys": _master_keys(case), "external": "external-keys" in case.raw["features"]}


def _signature_members(case: Case) -> Json:
    raw = case.raw
    return hex_keys(case) | {
        "aad_prefix": raw["aad_prefix"],
        "algorithms": [raw["algorithm"]],
        "verifier": _read(case, f"signatures/{raw['verifier']}").decode().strip(),
    }


def _seal_members(case: Case, folder: Path) -> Json:
    """Write the sealed folder of a case, and return what its request says."""
    raw, table, folder = case.raw, "v2.metadata.json", folder / "sealed"
    shutil.rmtree(folder, ignore_errors=True)  # any file of another case would be foreign
    files = {path: bytes.fromhex(content) for path, content in raw.get("files", {}).items()}
    files["_modcrypt_seal.json"] = raw["seal"].encode()
    for name, text in raw.get("archive", {}).items():
        files[f"_modcrypt_seals/{name}"] = text.encode()
    if "metadata" in raw:
        files[table] = raw["metadata"].encode()
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return {
        "path": str(folder), "metadata": table if "metadata" in raw else None,
        **{name: raw[name] for name in (
            "signed_by", "needed", "at_least", "dataset", "witnessed_by",
        )},
    }  # fmt: skip


def _ags1_members(case: Case) -> Json:
    key = _keys(case.folder, "ags1/keys.json")[case.raw["key"]]
    return {"key": key, "aad_prefix": case.raw["aad_prefix"], "length": case.raw["length"]}


def stream(name: str) -> bytes:
    """Make an AGS1 stream that is too large to be stored."""
    return _make_stream(_streams(FOLDER)[name])


def _make_stream(base: Json) -> bytes:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UnavailableError("the stream is not stored; making it needs cryptography") from None
    cipher = AESGCM(bytes.fromhex(_keys(FOLDER, "ags1/keys.json")[base["key"]]))
    prefix, size = bytes.fromhex(base["aad_prefix"] or ""), int(base["block_length"])
    plaintext, nonces = expand(base["plaintext"]), expand(base["nonces"])
    data: bytes = b"AGS1" + size.to_bytes(4, "little")
    for index in range(max(1, -(-len(plaintext) // size))):
        nonce = nonces[12 * index : 12 * index + 12]
        block = plaintext[index * size : (index + 1) * size]
        data += nonce + cipher.encrypt(nonce, block, prefix + index.to_bytes(4, "little"))
    return data


def expand(seed: Json) -> bytes:
    """Return the first `length` bytes of SHAKE128 over a text."""
    return hashlib.shake_128(seed["shake_128"].encode()).digest(seed["length"])


# --- requests to writers --------------------------------------------------------------------------

_PARQUET_OPTIONS: Json = {
    "algorithm": "AES_GCM_V1",
    "plaintext_footer": False,
    "aad_prefix": None,
    "store_aad_prefix": True,
    "plaintext_columns": [],
    "footer_key_metadata": None,
    "column_key_metadata": {},
    "data_page_version": 1,
    "max_rows_per_page": None,
    "write_page_index": False,
    "bloom_filter_columns": [],
    "row_group_size": None,
}


def write_request(case: Case, folder: Path) -> Json:
    """Return the request of a scenario, with its input file; the output belongs into the folder."""
    raw = case.raw
    request: Json = {"type": "write", "id": case.id, "format": case.format}
    if case.format == "key-metadata":
        return request | {name: raw[name] for name in ("key", "aad_prefix", "file_length")}
    request["path"] = str(folder / ("out" + (".ags1" if case.format == "ags1" else ".parquet")))
    if case.format == "ags1":
        (folder / "plaintext").write_bytes(expand(raw["plaintext"]))
        key = _keys(FOLDER, "ags1/keys.json")[raw["key"]]
        more = {"input": str(folder / "plaintext"), "key": key, "aad_prefix": raw["aad_prefix"]}
        return request | more
    request["input"] = str(FOLDER / raw["input"])
    if case.format == "pkmt1":
        return request | {"master_keys": _master_keys(case), "options": raw["options"]}
    return request | hex_keys(case) | {"options": _PARQUET_OPTIONS | raw["options"]}
