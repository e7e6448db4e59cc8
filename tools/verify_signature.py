"""Verify the signature of a file's writer with only `cryptography`, independently of modcrypt.

This was written from docs/explanation/signatures.md, and shares no code with the package.
`verify_pme` opens the footer and the column metadata; the bytes of all parts are hashed here.

    python tools/verify_signature.py FILE VERIFIER-LINE --keys keys.json [--ctr]

keys.json is that of verify_pme.py.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script

from tools import verify_pme
from tools.verify_pme import VerifyError
from tools.verify_seal import load_verifier

IDENTIFIER = bytes.fromhex("c4d2f6a190be4b378e5c6d6f64637279")
SCHEMES = {"ed25519": 1, "mldsa65": 2}
NONE = 0xFFFFFFFF
COMMITMENT = 4


def fail(message: str) -> VerifyError:
    """Return the error of a file that the writer did not sign."""
    return VerifyError("writer-signature", message)


def verify(
    data: bytes, line: str, footer_key: bytes, column_keys: Mapping[str, bytes],
    aad_prefix: bytes | None = None, *, accept_algorithms: tuple[str, ...] = ("AES_GCM_V1",),
) -> int:  # fmt: skip
    """Return the number of parts that the writer of a line signed: all parts of the file.

    Raises VerifyError for any other file.
    """
    file = verify_pme._Verification(data, footer_key, aad_prefix)
    footer, start = file.footer(accept_algorithms, partial=False)
    struct_bytes = footer_bytes(file, footer_key)
    entries = check_signature(file, struct_bytes, footer, line)
    hashes = dict(read_entries(entries))
    check_commitments(file, footer, hashes, footer_key, column_keys)
    return check_parts(file, footer, start, hashes, footer_key, column_keys)


def footer_bytes(file: Any, footer_key: bytes) -> bytes:
    """Return the encoded footer, decrypted if necessary."""
    data, end = file.data, len(file.data) - 8
    start = end - verify_pme.u32(data, end)
    _, at = verify_pme.read_struct(data[:end], start)
    if data[-4:] == b"PAR1":
        return bytes(data[start:at])
    aad = verify_pme.module_aad(file.file_aad, verify_pme.FOOTER)
    return verify_pme.open_module(footer_key, aad, data[at:end])


def check_signature(file: Any, footer: bytes, fields: dict[int, Any], line: str) -> bytes:
    """Return the signed list of a footer whose signature the writer of the line made."""
    content = fields.get(32767, b"")
    if len(content) < 40 or not content.endswith(IDENTIFIER):
        raise fail("the file is not signed")
    size, length, version, scheme, key_id = struct.unpack("<IHBB16s", content[-40:-16])
    rest = len(content) - 40 - length - size
    head = b"\x08\xfe\xff\x03" + varint(len(content))
    before = len(footer) - 1 - len(content) - len(head)
    name, known = line.split(":")[1], bytes.fromhex(line.split(":")[3])
    if version != 1 or rest < 0 or size % 41 or footer[before:] != head + content + b"\0":
        raise fail("the signature is malformed, or not at the end of the footer")
    if scheme != SCHEMES[name] or key_id != known:
        raise fail("another key signed the file")
    entries, signature = content[rest : rest + size], content[rest + size : -40]
    modes = bytes((file.data[-4:] == b"PAR1", file.ctr))
    aad = struct.pack("<I", len(file.file_aad)) + file.file_aad
    parts = (footer[:before], content[:rest], entries)
    hashes = b"".join(hashlib.sha256(part).digest() for part in parts)
    message = b"modcrypt-signature\0\x01" + bytes((scheme,)) + key_id + modes + aad + hashes
    try:
        load_verifier(line).verify(signature, message)
    except InvalidSignature:
        raise fail("the signature does not match") from None
    return bytes(entries)


def varint(value: int) -> bytes:
    """Return an unsigned number as Thrift's compact protocol spells it."""
    out = b""
    while value > 127:
        out, value = out + bytes((value & 127 | 128,)), value >> 7
    return out + bytes((value,))


def read_entries(entries: bytes) -> Iterator[tuple[tuple[int, int, int], bytes]]:
    """Yield places and hashes of a list, which must be in order."""
    last = (-1, -1, -1)
    for *place, digest in struct.iter_unpack("<IIB32s", entries):
        here = (place[0], place[1], place[2])
        if here <= last:
            raise fail("the list is out of order")
        last = here
        yield here, digest


def check_commitments(
    file: Any, footer: dict[int, Any], hashes: Mapping[tuple[int, int, int], bytes],
    footer_key: bytes, column_keys: Mapping[str, bytes],
) -> None:  # fmt: skip
    """Raise unless the signer committed to these keys, and to no others."""
    wanted = {(NONE, NONE, COMMITMENT): footer_key}
    leaves = verify_pme.leaf_paths(footer[2])
    for row_group in footer[4]:
        for c, chunk in enumerate(row_group[1]):
            if 2 in chunk.get(8, {}):
                wanted[NONE, c, COMMITMENT] = column_keys[leaves[c]]
    if {place for place in hashes if place[2] == COMMITMENT} != wanted.keys():
        raise fail("there are commitments to other keys")
    for place, key in wanted.items():
        label = b"modcrypt-signature commitment\0\x01"
        derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=label).derive(key)
        if hmac.digest(derived, file.file_aad, "sha256") != hashes[place]:
            raise fail("a key is not the one with which the file was signed")


def check_parts(
    file: Any, footer: dict[int, Any], end: int,
    hashes: Mapping[tuple[int, int, int], bytes], footer_key: bytes,
    column_keys: Mapping[str, bytes],
) -> int:  # fmt: skip
    """Return the number of parts, which must be those of the list and fill the file."""
    leaves, found = verify_pme.leaf_paths(footer[2]), []
    for r, row_group in enumerate(footer[4]):
        for c, chunk in enumerate(row_group[1]):
            key = column_keys[leaves[c]] if 2 in chunk.get(8, {}) else footer_key
            md = file.column_metadata(r, c, leaves[c], chunk, key)
            placed = verify_pme._Chunk(r, c, key, md, [])
            walks = {file.pages: 0, file.column_index: 1, file.offset_index: 2}
            for start, stop, walk, _ in file.parts(placed, chunk):
                found.append((start, stop, (r, c, walks.get(walk, 3))))
    reached = 4
    for start, stop, place in sorted(found):
        if start != reached:
            raise fail(f"nothing covers the bytes {reached} to {start}")
        prefix = b"modcrypt-signature leaf\0\x01" + struct.pack("<IIB", *place)
        if hashlib.sha256(prefix + file.data[start:stop]).digest() != hashes.get(place):
            raise fail(f"the bytes of {place} are not those that were signed")
        reached = stop
    if reached != end:
        raise fail(f"nothing covers the bytes {reached} to {end}")
    if {place for place in hashes if place[2] != COMMITMENT} != {place for *_, place in found}:
        raise fail("the list has parts that the file lacks")
    return len(found)


def main() -> int:
    """Verify the file of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("line")
    parser.add_argument("--keys", type=Path, required=True)
    parser.add_argument("--ctr", action="store_true", help="also accept AES_GCM_CTR_V1")
    given = parser.parse_args()
    keys = json.loads(given.keys.read_text())
    columns = {name: bytes.fromhex(key) for name, key in keys.get("column_keys", {}).items()}
    prefix = bytes.fromhex(keys["aad_prefix"]) if "aad_prefix" in keys else None
    algorithms = tuple(verify_pme.ALGORITHMS.values()) if given.ctr else ("AES_GCM_V1",)
    try:
        count = verify(
            given.file.read_bytes(), given.line, bytes.fromhex(keys["footer_key"]), columns, prefix,
            accept_algorithms=algorithms,
        )  # fmt: skip
    except VerifyError as error:
        print(error)
        return 1
    print(f"{given.file}: the writer signed all {count} parts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
