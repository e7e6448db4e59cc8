"""Compare a folder, or an Iceberg table, with its seal with only `cryptography`, without modcrypt.

This was written from docs/reference/seals.md, and shares no code with the package.

    python tools/verify_seal.py FOLDER VERIFIER-LINE
    python tools/verify_seal.py TABLE/metadata/v3.metadata.json VERIFIER-LINE
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey


def load_verifier(line: str) -> Ed25519PublicKey | MLDSA65PublicKey:
    """Return the key of a verifier's line, whose checksum must match."""
    prefix, scheme, text, checksum = line.split(":")
    key = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    content = b"modcrypt-verifier-id\0" + scheme.encode() + b"\0" + key
    if prefix != "modcrypt-verifier" or hashlib.sha256(content).hexdigest()[:32] != checksum:
        raise SystemExit("no verifier's line, or its checksum does not match")
    if scheme == "ed25519":
        return Ed25519PublicKey.from_public_bytes(key)
    return MLDSA65PublicKey.from_public_bytes(key)


def read_statement(folder: Path, line: str, form: str) -> dict[str, Any]:
    """Return the statement of the seal in a folder, after the check of its signature."""
    statement, rest = (folder / "_modcrypt_seal.json").read_bytes().split(b"\n", 1)
    signature = base64.b64decode(json.loads(rest)["signature"], validate=True)
    try:
        message = b"modcrypt-seal\0\x01" + hashlib.sha256(statement).digest()
        load_verifier(line).verify(signature, message)
    except InvalidSignature:
        raise SystemExit("the signature does not match") from None
    seal: dict[str, Any] = json.loads(statement)
    if (seal["format"], seal["version"], seal["signer"]) != (form, 1, line):
        raise SystemExit("another format, version or signer")
    return seal


def verify_table(folder: Path, name: str, line: str) -> bool:
    """Return whether a metadata.json is the one that was sealed."""
    seal = read_statement(folder, line, "modcrypt-table-seal")
    document = json.loads((folder / name).read_bytes())
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    same = hashlib.sha256(text.encode()).hexdigest() == seal["sha256"]
    return same and bool(document["table-uuid"] == seal["table_uuid"])


def verify(folder: Path, line: str) -> list[str]:
    """Return the paths that are missing, foreign or changed."""
    seal = read_statement(folder, line, "modcrypt-seal")
    sealed = {path: (size, digest) for path, size, digest, _ in seal["files"]}
    found = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] not in "._"]
        for name in names:
            if name[0] not in "._":
                path = Path(parent, name)
                data = path.read_bytes()
                found[str(path.relative_to(folder))] = len(data), hashlib.sha256(data).hexdigest()
    paths = sealed.keys() | found.keys()
    return sorted(path for path in paths if sealed.get(path) != found.get(path))


if __name__ == "__main__":
    sealed = Path(sys.argv[1])
    if sealed.name.endswith(".metadata.json"):
        different = [] if verify_table(sealed.parent, sealed.name, sys.argv[2]) else [sealed.name]
    else:
        different = verify(sealed, sys.argv[2])
    print("\n".join(different) or "as sealed")
    sys.exit(bool(different))
