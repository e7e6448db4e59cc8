"""Check that hostile recipients, identities and key metadata raise ModcryptError, nothing else.

    python tools/fuzz.py --only recipients

Each round changes one of the vectors of spec-vectors/recipients with seeded random edits, and
parses or opens it. Whatever opens must give the keys of the unchanged vector.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache

import modcrypt as mc
from modcrypt.keys import Key, Secret, key_bytes
from modcrypt.kms.recipients.identity import IDENTITY_FILE
from modcrypt.kms.recipients.identity_retriever import IdentityKeys
from modcrypt.kms.recipients.private_key_file import decode_private_key
from modcrypt.kms.recipients.public_lines import parse_lines
from tools.fuzz_targets import Target
from tools.recipient_vectors import RECIPIENTS, TABLE

Check = Callable[[bytes], object]


@cache
def identity(name: str) -> mc.Identity:
    """Return an identity of the vectors, whatever the mode of its file."""
    public, key = decode_private_key((RECIPIENTS / name).read_bytes(), IDENTITY_FILE)
    assert isinstance(key, bytes)
    return mc.Identity(mc.Recipient.parse(public), Secret(key))


def check_lines(data: bytes) -> object:
    return [str(recipient) for recipient in parse_lines(data, mc.Recipient.parse, "recipients")]


def check_identity(data: bytes) -> object:
    public, _ = decode_private_key(data, IDENTITY_FILE)
    # Not the scrypt of every round, which takes 20 ms or more.
    return mc.Recipient.parse(public).hex_id


def check_metadata(name: str, aad: bytes, wanted: str) -> Check:
    def check(data: bytes) -> object:
        keys = IdentityKeys((identity(name),), None, lenient=False)
        keys.accept_file(data, aad)
        key = keys.retrieve(data, None)
        assert isinstance(key, Key)
        assert key_bytes(key).hex() == wanted, "another key"
        return len(key)

    return check


def check_file(name: str) -> Check:
    def check(data: bytes) -> object:
        decryption = mc.FileDecryptionProperties(key_retriever=identity(name))
        assert mc.read_table(io.BytesIO(data), decryption) == TABLE, "other rows"
        return list(mc.inspect_parquet(data).footer_key.recipients)

    return check


def targets() -> list[Target]:
    """Return what is changed: every valid vector."""
    found = [Target(p.read_bytes(), check_identity) for p in sorted(RECIPIENTS.glob("*.key"))]
    lines = json.loads((RECIPIENTS / "lines.json").read_text())["cases"]
    text = "".join(f"{case['line']}\n" for case in lines if case["expect"] == "ok")
    found.append(Target(f"# partners\n{text}".encode(), check_lines))
    for case in json.loads((RECIPIENTS / "key_metadata.json").read_text())["cases"]:
        if case["expect"] == "ok":
            aad = bytes.fromhex(case["file_aad"])
            check = check_metadata(case["identity"], aad, case["footer_key"])
            found += [Target(case["footer"].encode(), check)] * 4
    for name in ("encrypted-footer", "plaintext-footer", "beside-a-key-service"):
        data = (RECIPIENTS / f"{name}.parquet").read_bytes()
        found.append(Target(data, check_file("x25519.key")))
    return found
