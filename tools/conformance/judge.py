"""Judge what a client wrote: the independent verifiers, and what the formats say about writers.

Needs the package `cryptography`.
"""

from __future__ import annotations

import base64
import json
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tools import verify_ags1, verify_pme
from tools.conformance.verdicts import FAIL_CLOSED, FAIL_OPEN
from tools.verify_pme import Module

Json = dict[str, Any]
AGS1_BLOCK = 1 << 20
STATISTICS = {
    8: "key-value metadata",
    12: "statistics",
    16: "size statistics",
    17: "geo statistics",
}
"""Fields of ColumnMetaData that tell of values, which plaintext footers must not have."""
NEEDLES = (b"\x03Ulm", b"\x03\0\0\0Ulm", *((10**12 + n).to_bytes(8, "little") for n in range(8)))
"""Values of the input tables as plaintext has them: strings after their length, and numbers."""
BLOOM_HEADER = bytes.fromhex("1c1c00001c1c00001c1c000000")
"""The end of a Bloom filter header in plaintext: algorithm, hash, compression, STOP."""

_UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RecursionError, TypeError,
    ValueError, struct.error, InvalidTag,
)  # fmt: skip
"""Errors of verifiers, which parse without checks of their own, for bytes that are no such file."""


class Fault(NamedTuple):
    """A fault of a written file: FAIL_OPEN for exposed data, FAIL_CLOSED for unreadable files."""

    kind: str
    text: str


class _Keys(NamedTuple):
    footer: bytes
    columns: dict[str, bytes]


def judge_file(request: Json, path: Path) -> list[Fault]:
    """Return all faults of the file that a write request led to."""
    try:
        if request["format"] == "ags1":
            return list(_judge_ags1(request, path.read_bytes()))
        options = request["options"]
        if request["format"] == "parquet":
            given = {name: bytes.fromhex(key) for name, key in request["column_keys"].items()}
            keys = _Keys(bytes.fromhex(request["footer_key"]), given)
        else:
            keys = _unwrapped_keys(request, path)
        return list(_judge_parquet(options, keys, path.read_bytes()))
    except (verify_pme.VerifyError, verify_ags1.VerifyError) as error:
        exposed = error.word == "plaintext"
        faults = [Fault(FAIL_OPEN if exposed else FAIL_CLOSED, f"the verifier says {error}")]
        return [*_clear_bloom_filters(path.read_bytes()), *faults]
    except _UNREADABLE as error:
        return [Fault(FAIL_CLOSED, f"{type(error).__name__}: {error}")]


# --- Parquet --------------------------------------------------------------------------------------


def _judge_parquet(options: Json, keys: _Keys, data: bytes) -> Iterator[Fault]:
    signed = options.get("plaintext_footer", False)
    if data[-4:] == b"PAR1" and not signed and 8 not in _tail_struct(data):
        yield Fault(FAIL_OPEN, "the file is not encrypted")
        return
    if (data[-4:] == b"PAR1") != signed:
        yield Fault(FAIL_OPEN if not signed else FAIL_CLOSED, "the footer has the other mode")
    prefix = bytes.fromhex(options.get("aad_prefix") or "")
    modules = verify_pme.verify(
        data, keys.footer, keys.columns, prefix or None,
        accept_algorithms=(options.get("algorithm", "AES_GCM_V1"),),
    )  # fmt: skip
    yield from _repeated_nonces(modules)
    yield from _exposed_values(_clear_bytes(data, modules), options)
    if not options.get("plaintext_columns"):
        yield from _clear_bloom_filters(data)
    yield from _algorithm_faults(_algorithm(data), prefix, options)
    footer = _footer(data, keys.footer, prefix)
    yield from _column_faults(footer, options, keys, encrypted=data[-4:] == b"PARE")
    if not options.get("plaintext_columns"):
        yield from _gaps(data, modules)
    yield from _missing_parts(modules, options)


def _tail_struct(data: bytes) -> dict[int, Any]:
    return verify_pme.read_struct(data, _tail_start(data))[0]


def _tail_start(data: bytes) -> int:
    return len(data) - 8 - verify_pme.u32(data, len(data) - 8)


def _algorithm(data: bytes) -> dict[int, Any]:
    """Return the fields of the algorithm: prefix, file-unique, whether a prefix is to be given."""
    union = _tail_struct(data)[8 if data[-4:] == b"PAR1" else 1]
    fields: dict[int, Any] = next(iter(union.values()))
    return fields


def _footer(data: bytes, key: bytes, prefix: bytes = b"") -> dict[int, Any]:
    """Return the footer's struct, which the verifier has opened before."""
    start = _tail_start(data)
    fields, at = verify_pme.read_struct(data, start)
    if data[-4:] == b"PAR1":
        return fields
    algorithm = _algorithm(data)
    file_aad = bytes(algorithm.get(1, prefix)) + bytes(algorithm[2])
    module_aad = verify_pme.module_aad(file_aad, verify_pme.FOOTER)
    plain = verify_pme.open_module(key, module_aad, data[at : len(data) - 8])
    return verify_pme.read_struct(plain)[0]


def _repeated_nonces(modules: list[Module]) -> Iterator[Fault]:
    """Yield a fault if a nonce repeats, be it under different keys: 12 random bytes do not."""
    counts = Counter(module.nonce for module in modules)
    repeated = sum(count > 1 for count in counts.values())
    if repeated:
        yield Fault(FAIL_OPEN, f"{repeated} nonces occur more than once")


def _clear_bytes(data: bytes, modules: list[Module]) -> bytes:
    """Return what lies outside of modules: in a long ciphertext, a short value occurs by chance."""
    kept, reached = [], 0
    for module in sorted(modules, key=lambda module: module.offset or 0):
        if module.offset is not None:
            kept.append(data[reached : module.offset])
            reached = max(reached, module.offset + module.size)
    return b"".join([*kept, data[reached:]])


def _exposed_values(clear: bytes, options: Json) -> Iterator[Fault]:
    if not options.get("plaintext_columns") and any(needle in clear for needle in NEEDLES):
        yield Fault(FAIL_OPEN, "values of the table stand in the file in plaintext")


def _clear_bloom_filters(data: bytes) -> Iterator[Fault]:
    if BLOOM_HEADER in data:
        yield Fault(FAIL_OPEN, "a Bloom filter stands in the file in plaintext")


def _algorithm_faults(fields: dict[int, Any], prefix: bytes, options: Json) -> Iterator[Fault]:
    stored = bytes(fields.get(1, b""))
    if len(fields.get(2, b"")) != verify_pme.FILE_UNIQUE_SIZE:
        yield Fault(FAIL_CLOSED, "aad_file_unique does not have 8 bytes")
    if options.get("store_aad_prefix", True) and stored != prefix:
        yield Fault(FAIL_CLOSED, "the AAD prefix is not stored")
    if not options.get("store_aad_prefix", True) and stored:
        yield Fault(FAIL_OPEN, "the AAD prefix is stored in spite of the option")


def _column_faults(
    footer: dict[int, Any], options: Json, keys: _Keys, *, encrypted: bool
) -> Iterator[Fault]:
    leaves = verify_pme.leaf_paths(footer[2])
    plain = options.get("plaintext_columns", [])
    texts = options.get("column_key_metadata", {})
    for row_group in footer[4]:
        for path, chunk in zip(leaves, row_group[1], strict=True):
            crypto, metadata = chunk.get(8), chunk.get(3)
            if crypto is None:
                if path.partition(".")[0] not in plain and path not in plain:
                    yield Fault(FAIL_OPEN, f"{path} is not encrypted")
                continue
            own = 2 in crypto
            if own != (path in keys.columns):
                yield Fault(FAIL_CLOSED, f"{path} is under another kind of key")
            if path in texts and bytes(crypto.get(2, {}).get(2, b"")).hex() != texts[path]:
                yield Fault(FAIL_CLOSED, f"{path} has other key metadata than was given")
            if metadata is not None and encrypted and own:
                yield Fault(FAIL_OPEN, f"{path} has its metadata under the footer key, too")
            if metadata is not None and not encrypted:
                shown = [name for field, name in STATISTICS.items() if field in metadata]
                if shown:
                    yield Fault(FAIL_OPEN, f"{path} shows {', '.join(shown)}")


def _gaps(data: bytes, modules: list[Module]) -> Iterator[Fault]:
    """Yield the bytes of a uniformly encrypted file that no module has."""
    outside = {verify_pme.COLUMN_METADATA, verify_pme.FOOTER}
    reached = 4
    for module in sorted(modules, key=lambda module: module.offset or 0):
        if module.type in outside or module.offset is None:
            continue
        if module.offset > reached:
            yield Fault(FAIL_OPEN, f"bytes {reached} to {module.offset} belong to no module")
        reached = max(reached, module.offset + module.size)
    if reached < _tail_start(data):
        yield Fault(FAIL_OPEN, f"bytes {reached} to {_tail_start(data)} belong to no module")


def _missing_parts(modules: list[Module], options: Json) -> Iterator[Fault]:
    found = {module.type for module in modules}
    if options.get("write_page_index") and verify_pme.OFFSET_INDEX not in found:
        yield Fault(FAIL_CLOSED, "there is no offset index")
    if options.get("bloom_filter_columns") and verify_pme.BLOOM_FILTER_BITSET not in found:
        yield Fault(FAIL_CLOSED, "there is no Bloom filter")


# --- key material ---------------------------------------------------------------------------------


def _unwrapped_keys(request: Json, path: Path) -> _Keys:
    """Return the keys of a file, from its material and the master keys."""
    data, options = path.read_bytes(), request["options"]
    masters = {name: bytes.fromhex(key) for name, key in request["master_keys"].items()}
    beside = path.with_name(f"_KEY_MATERIAL_FOR_{path.name}.json")
    external = None if options["internal_storage"] else json.loads(beside.read_text())
    if options["internal_storage"] and beside.exists():
        raise ValueError("key material lies beside the file in spite of the option")

    def unwrap(metadata: bytes, master: str) -> bytes:
        material = json.loads(metadata)
        if external is not None:
            material = json.loads(external[material["keyReference"]])
        if material["masterKeyID"] != master or material["keyMaterialType"] != "PKMT1":
            raise ValueError("another master key, or another type of material")
        if material["doubleWrapping"] != options["double_wrapping"]:
            raise ValueError("double wrapping is not what was asked for")
        if not material["doubleWrapping"]:
            return _open(masters[master], material["wrappedDEK"], master.encode())
        kek = _open(masters[master], material["wrappedKEK"], master.encode())
        kek_id = base64.b64decode(material["keyEncryptionKeyID"], validate=True)
        return _open(kek, material["wrappedDEK"], kek_id)

    fields = _tail_struct(data)
    footer = unwrap(bytes(fields[2 if data[-4:] == b"PARE" else 9]), options["footer_master"])
    columns = {}
    structure = _footer(data, footer)
    leaves = verify_pme.leaf_paths(structure[2])
    for leaf, chunk in zip(leaves, structure[4][0][1], strict=True):
        if leaf in options["column_masters"]:
            metadata = bytes(chunk[8][2][2])
            columns[leaf] = unwrap(metadata, options["column_masters"][leaf])
    return _Keys(footer, columns)


def _open(key: bytes, wrapped: str, aad: bytes) -> bytes:
    raw = base64.b64decode(wrapped, validate=True)
    return AESGCM(key).decrypt(raw[:12], raw[12:], aad)


# --- AGS1 -----------------------------------------------------------------------------------------


def _judge_ags1(request: Json, data: bytes) -> Iterator[Fault]:
    prefix = bytes.fromhex(request["aad_prefix"] or "")
    plain = verify_ags1.verify(data, bytes.fromhex(request["key"]), prefix, len(data))
    if plain != Path(request["input"]).read_bytes():
        yield Fault(FAIL_CLOSED, "it opens to another plaintext")
    size = int.from_bytes(data[4:8], "little")
    if size != AGS1_BLOCK:
        yield Fault(FAIL_CLOSED, f"blocks of {size} bytes; Iceberg's Java reads 1 MiB only")
    nonces = [data[at : at + 12] for at in range(8, len(data), size + 28)]
    if len({*nonces}) < len(nonces):
        yield Fault(FAIL_OPEN, "nonces occur more than once")
