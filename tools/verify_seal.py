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
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey

SEAL = "_modcrypt_seal.json"
FOLDER, TABLE = "modcrypt-seal", "modcrypt-table-seal"
COMMON = {"format", "version", "signer", "sequence", "previous"}
OWN = {
    FOLDER: {"files"},
    TABLE: {"table_uuid", "location", "metadata", "last_sequence_number", "current_snapshot_id",
            "sha256"},
}  # fmt: skip


class SealError(Exception):
    """The seal is refused: `integrity` if it is not authentic, `format` if it is malformed."""

    def __init__(self, word: str, message: str) -> None:
        super().__init__(message)
        self.word = word


def require(holds: object, word: str, message: str) -> None:
    if not holds:
        raise SealError(word, message)


def load_verifier(line: str) -> Ed25519PublicKey | MLDSA65PublicKey:
    """Return the key of a verifier's line, whose checksum must match."""
    prefix, scheme, text, checksum = line.split(":")
    key = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    content = b"modcrypt-verifier-id\0" + scheme.encode() + b"\0" + key
    if prefix != "modcrypt-verifier" or hashlib.sha256(content).hexdigest()[:32] != checksum:
        raise ValueError("no verifier's line, or its checksum does not match")
    if scheme == "ed25519":
        return Ed25519PublicKey.from_public_bytes(key)
    return MLDSA65PublicKey.from_public_bytes(key)


def parse(line: bytes) -> Any:
    """Parse JSON; raise ValueError if a member is repeated."""

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a member is repeated")
        return dict(pairs)

    return json.loads(line, object_pairs_hook=build)


def read_signature(line: bytes) -> bytes:
    """Return the signature in the second line of a seal."""
    try:
        members = parse(line) if len(line) <= 8192 else {}
        text = members["signature"]
        signature = base64.b64decode(text, validate=True)
        require(len(members) == 1 and base64.b64encode(signature).decode() == text, "", "")
        return signature
    except (ValueError, KeyError, TypeError, SealError):
        raise SealError("integrity", "no signature, or a malformed one") from None


def has_signed(line: str, signature: bytes, message: bytes) -> bool:
    try:
        load_verifier(line).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def open_seal(data: bytes, lines: Iterable[str], form: str, at_least: int = 1) -> dict[str, Any]:
    """Return the statement of a seal of this format that one of the verifiers' lines verifies."""
    statement, _, rest = data.partition(b"\n")
    signature = read_signature(rest)
    message = b"modcrypt-seal\0\x01" + hashlib.sha256(statement).digest()
    signers = {line for line in lines if has_signed(line, signature, message)}
    require(signers, "integrity", "the signature does not match")
    try:
        seal: dict[str, Any] = parse(statement)
        check_statement(seal, form)
        load_verifier(seal["signer"])
    except (ValueError, TypeError, AttributeError) as error:
        raise SealError("format", str(error)) from None
    require(seal["signer"] in signers, "integrity", "the signer is another one")
    require(seal["sequence"] >= at_least, "integrity", "an older seal than the last one")
    return seal


def check_statement(seal: dict[str, Any], form: str) -> None:
    """Raise SealError if a statement is not of this format."""
    require(set(seal) == COMMON | OWN[form], "format", "other members")
    require((seal["format"], seal["version"]) == (form, 1), "format", "another format")
    require(type(seal["version"]) is int, "format", "the version is no number")
    require(is_number(seal["sequence"]) and seal["sequence"] > 0, "format", "no number from 1 on")
    previous = seal["previous"]
    require(previous is None or is_hash(previous), "format", "no hash of the previous seal")
    (check_files if form == FOLDER else check_table)(seal)


def check_files(seal: dict[str, Any]) -> None:
    last = ""
    require(isinstance(seal["files"], list), "format", "files are no array")
    for entry in seal["files"]:
        require(isinstance(entry, list) and len(entry) == 4, "format", "an entry is none")
        path, size, digest, end = entry
        parts = path.split("/")
        require(path > last and not {"", ".", ".."} & {*parts}, "format", "a path")
        require(is_number(size) and is_hash(digest), "format", "size or hash")
        require(end is None or is_hash(end), "format", "hash of the end")
        last = path


def check_table(seal: dict[str, Any]) -> None:
    texts = [seal[name] for name in ("table_uuid", "location", "metadata")]
    require(all(isinstance(text, str) for text in texts), "format", "a text is none")
    numbers = [seal["last_sequence_number"], seal["current_snapshot_id"] or 0]
    require(all(type(number) is int for number in numbers), "format", "a number is none")
    require(is_hash(seal["sha256"]), "format", "a hash is none")


def is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def is_hash(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value, re.ASCII) is not None


def compare(seal: dict[str, Any], files: Mapping[str, bytes]) -> list[list[str]]:
    """Return the paths that are missing, foreign or changed, each with what it is."""
    sealed = {path: (size, digest) for path, size, digest, _ in seal["files"]}
    found = {
        path: (len(data), hashlib.sha256(data).hexdigest())
        for path, data in files.items()
        if not any(part[0] in "._" for part in path.split("/"))
    }
    return [
        [path, "missing" if path not in found else "changed" if path in sealed else "foreign"]
        for path in sorted(sealed.keys() | found.keys())
        if sealed.get(path) != found.get(path)
    ]


def is_sealed(seal: dict[str, Any], metadata: bytes) -> bool:
    """Return whether metadata of a table is that of its seal."""
    document = json.loads(metadata)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    same = hashlib.sha256(text.encode()).hexdigest() == seal["sha256"]
    return same and bool(document["table-uuid"] == seal["table_uuid"])


def verify_table(folder: Path, name: str, line: str) -> bool:
    """Return whether a metadata.json is the one that was sealed."""
    seal = open_seal((folder / SEAL).read_bytes(), [line], TABLE)
    return is_sealed(seal, (folder / name).read_bytes())


def verify(folder: Path, line: str) -> list[str]:
    """Return the paths that are missing, foreign or changed."""
    seal = open_seal((folder / SEAL).read_bytes(), [line], FOLDER)
    found = {}
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return [path for path, _ in compare(seal, found)]


def find_disagreement(case: dict[str, Any]) -> str | None:
    """Return how this verifier differs from a case of spec-vectors/seals; None if it agrees."""
    try:
        found = judge(case)
    except SealError as error:
        found = error.word
    expected = case["expect"]
    if found == "ok" and "previous_seal" in case:
        before = hashlib.sha256(case["previous_seal"].encode()).hexdigest()
        follows = json.loads(case["seal"].partition("\n")[0])["previous"] == before
        expected, found = f"{expected}, {case['follows']}", f"{found}, {follows}"
    return None if found == expected else f"{case['id']}: expected {expected}, found {found}"


def judge(case: dict[str, Any]) -> str:
    """Return the verdict about a case: ok, integrity, or findings that it does not state."""
    metadata = case.get("metadata")
    form = FOLDER if metadata is None else TABLE
    seal = open_seal(case["seal"].encode(), case["signed_by"], form, case["at_least"])
    if metadata is not None:
        return "ok" if is_sealed(seal, metadata.encode()) else "integrity"
    files = {path: bytes.fromhex(text) for path, text in case["files"].items()}
    findings = compare(seal, files)
    return "ok" if findings == case["findings"] else str(findings)


if __name__ == "__main__":
    sealed = Path(sys.argv[1])
    if sealed.name.endswith(".metadata.json"):
        different = [] if verify_table(sealed.parent, sealed.name, sys.argv[2]) else [sealed.name]
    else:
        different = verify(sealed, sys.argv[2])
    print("\n".join(different) or "as sealed")
    sys.exit(bool(different))
