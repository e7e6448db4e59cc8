"""Compare a folder, or an Iceberg table, with its seal with only `cryptography`, without modcrypt.

This was written from docs/reference/seals.md, and shares no code with the package.

    python tools/verify_seal.py FOLDER VERIFIER-LINE...
    python tools/verify_seal.py TABLE/metadata/v3.metadata.json VERIFIER-LINE...
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey

SEAL, ARCHIVE = "_modcrypt_seal.json", "_modcrypt_seals"
FOLDER, TABLE, WITNESS = "modcrypt-seal", "modcrypt-table-seal", "modcrypt-seal-witness"
FIRST = {"format", "version", "signer", "sequence", "previous"}
SECOND = {"format", "version", "dataset", "sequence", "previous", "time", "expires", "writers",
          "content"}  # fmt: skip
OF_TABLE = {"table_uuid", "location", "metadata", "last_sequence_number", "current_snapshot_id",
            "sha256"}  # fmt: skip
OWN = {
    (FOLDER, 1): {"files"}, (FOLDER, 2): {"since"}, (TABLE, 1): OF_TABLE, (TABLE, 2): OF_TABLE,
    (WITNESS, 2): {"seal"},
}  # fmt: skip
MAX_START, MAX_SIGNATURES = 1310722, 262144


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
    """Parse JSON; raise ValueError if a member is repeated, or a number is none."""

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a member is repeated")
        return dict(pairs)

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is not JSON")

    return json.loads(line, object_pairs_hook=build, parse_constant=refuse)


def parse_signed(line: bytes) -> Any:
    """Parse what a writer has signed; raise SealError if it is not JSON."""
    try:
        return parse(line)
    except (ValueError, RecursionError) as error:
        raise SealError("format", str(error)) from None


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def has_signed(line: str, signature: bytes, message: bytes) -> bool:
    try:
        load_verifier(line).verify(signature, message)
    except InvalidSignature:
        return False
    return True


@dataclass(frozen=True)
class Reader:
    """What a reader demands of a seal."""

    lines: Iterable[str]
    needed: int = 1
    at_least: int = 1
    dataset: str | None = None
    witnesses: Iterable[str] = ()

    def keys(self) -> dict[str, str]:
        """Return the lines of the trusted keys, by their ids."""
        return {id_of(line): line for line in self.lines}


@dataclass(frozen=True)
class Seal:
    """A seal whose signatures were verified."""

    hash: str
    members: dict[str, Any]
    content: bytes = b""
    files: dict[str, list[Any]] = field(default_factory=dict)


def id_of(line: str) -> str:
    return line.rpartition(":")[2]


# --- signatures -----------------------------------------------------------------------------------


def split_second(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return the three lines of a seal of version 2; None if it is of version 1."""
    head, _, rest = data[:MAX_START].partition(b"\n")
    line, ended, _ = rest.partition(b"\n")
    if not ended or b'"signatures"' not in line:
        return None
    return head, line, data[len(head) + len(line) + 2 :].removesuffix(b"\n")


def decode_signature(text: Any) -> bytes:
    """Decode canonical base64; raise ValueError or TypeError for anything else."""
    signature = base64.b64decode(text, validate=True)
    if not signature or base64.b64encode(signature).decode() != text:
        raise ValueError("base64 of another form")
    return signature


def read_signatures(value: Any) -> dict[str, bytes]:
    if not isinstance(value, dict) or not 1 <= len(value) <= 64:
        raise ValueError("no object of 1 to 64 signatures")
    return {id_: decode_signature(text) for id_, text in value.items()}


def read_change(value: Any) -> list[Any]:
    """Return the elements of a change of writers, with its signatures as bytes."""
    dataset, sequence, lines, needed, signatures = value
    if (type(value), type(dataset), type(lines)) != (list, str, list):
        raise ValueError("a change with elements of other types")
    if type(sequence) is not int or type(needed) is not int or not 1 <= needed <= len(lines) <= 64:
        raise ValueError("a change with other numbers")
    for line in lines:
        load_verifier(line)
    if len({id_of(line) for line in lines}) < len(lines):
        raise ValueError("a key twice")
    return [dataset, sequence, lines, needed, read_signatures(signatures)]


def read_second_line(line: bytes) -> tuple[list[Any], dict[str, bytes]]:
    """Return the changes of writers and the signatures of version 2."""
    try:
        members = parse(line) if len(line) <= MAX_SIGNATURES else {}
        if set(members) != {"writers", "signatures"} or not isinstance(members["writers"], list):
            raise ValueError("other members")
        for change in members["writers"]:
            read_change(change)
        if len(members["writers"]) > 64:
            raise ValueError("too many changes")
        return members["writers"], read_signatures(members["signatures"])
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise SealError("integrity", "no signature, or a malformed one") from None


def count_signers(keys: Mapping[str, str], signatures: Mapping[str, bytes], message: bytes) -> int:
    return sum(
        id_ in keys and has_signed(keys[id_], signature, message)
        for id_, signature in signatures.items()
    )


def follow(keys: dict[str, str], needed: int, changes: Iterable[Any]) -> tuple[dict[str, str], int]:
    """Return the keys that may sign after changes, and how many of them must."""
    for change in changes:
        signed, signatures = change[:4], read_change(change)[4]
        message = b"modcrypt-writers\0\x01" + hashlib.sha256(compact(signed)).digest()
        if count_signers(keys, signatures, message) >= needed:
            keys, needed = {id_of(line): line for line in change[2]}, change[3]
    return keys, needed


# --- statements -----------------------------------------------------------------------------------


def open_seal(data: bytes, reader: Reader, form: str) -> Seal:
    """Return a seal of this format that enough of the reader's keys verify."""
    require(len(data) <= 2**30, "integrity", "too large")
    parts = split_second(data)
    return open_first(data, reader, form) if parts is None else open_second(parts, reader, form)


def open_second(parts: tuple[bytes, bytes, bytes], reader: Reader, form: str) -> Seal:
    head, line, content = parts
    changes, signatures = read_second_line(line)
    keys, needed = follow(reader.keys(), reader.needed, changes)
    message = b"modcrypt-seal\0\x02" + hashlib.sha256(head).digest()
    found = count_signers(keys, signatures, message)
    require(found >= needed, "integrity", f"the signature does not match: {found} of {needed}")
    members = parse_signed(head)
    check_statement(members, form, 2)
    check_second(members)
    of_changes = sha256(compact(changes)) if changes else None
    require(members["writers"] == of_changes, "integrity", "other changes of writers")
    others = [change for change in changes if change[0] != members["dataset"]]
    require(not others, "integrity", "changes of the writers of another dataset")
    if members["content"] is None:
        return Seal(sha256(head), members)
    require(sha256(content) == members["content"], "integrity", "other content")
    return Seal(sha256(head), members, content)


def open_first(data: bytes, reader: Reader, form: str) -> Seal:
    head, _, line = data.removesuffix(b"\n").rpartition(b"\n")
    signature = read_first_signature(line)
    message = b"modcrypt-seal\0\x01" + hashlib.sha256(head).digest()
    signers = {line for line in reader.lines if has_signed(line, signature, message)}
    require(signers, "integrity", "the signature does not match")
    require(reader.needed == 1, "integrity", "one signature is too few")
    require(b"\n" not in head, "format", "a statement of several lines")
    members = parse_signed(head)
    check_statement(members, form, 1)
    require(members["signer"] in [*signers], "integrity", "the signer is another one")
    return Seal(sha256(data), members)


def read_first_signature(line: bytes) -> bytes:
    """Return the signature in the second line of version 1."""
    try:
        members = parse(line) if len(line) <= 8192 else {}
        if set(members) != {"signature"}:
            raise ValueError("other members")
        return decode_signature(members["signature"])
    except (ValueError, TypeError, RecursionError):
        raise SealError("integrity", "no signature, or a malformed one") from None


def check_statement(members: Any, form: str, version: int) -> None:
    """Raise SealError if a statement is not of this format and version."""
    common = FIRST if version == 1 else SECOND
    require(isinstance(members, dict), "format", "no object")
    require(set(members) == common | OWN.get((form, version), set()), "format", "other members")
    found = members["format"], members["version"]
    require(found == (form, version), "format", "another format")
    require(type(members["version"]) is int, "format", "the version is no number")
    sequence, previous = members["sequence"], members["previous"]
    require(is_number(sequence) and sequence > 0, "format", "no number from 1 on")
    require(previous is None or is_hash(previous), "format", "no hash of the previous seal")


def check_second(members: dict[str, Any]) -> None:
    id_, expires, content = members["dataset"], members["expires"], members["content"]
    require(isinstance(id_, str) and re.fullmatch("[0-9A-Za-z-]{1,64}", id_), "format", "no id")
    require(is_number(members["time"]), "format", "no time")
    require(expires is None or is_number(expires), "format", "no time at which it expires")
    require(content is None or is_hash(content), "format", "no hash of the content")


def check_newest(seal: Seal, reader: Reader, archive: Mapping[str, bytes]) -> None:
    """Raise SealError if a seal is older, expired, of another dataset or without a witness."""
    expires, id_ = seal.members.get("expires"), seal.members.get("dataset")
    require(seal.members["sequence"] >= reader.at_least, "integrity", "an older seal")
    require(expires is None or time.time() < expires, "integrity", "the seal has expired")
    require(reader.dataset in (None, id_), "integrity", "the seal of another dataset")
    for line in reader.witnesses:
        data = archive.get(f"witness-{id_}-{id_of(line)}.json")
        require(data is not None, "integrity", "no statement of a witness")
        seen = open_seal(data or b"", Reader([line], dataset=id_), WITNESS)
        check_newest(seen, Reader([line], dataset=id_), {})
        same = (seen.members["sequence"], seen.members["seal"])
        require(same == (seal.members["sequence"], seal.hash), "integrity", "witness of another")


# --- datasets -------------------------------------------------------------------------------------


def read_files(entries: Any, *, complete: bool) -> dict[str, list[Any] | None]:
    """Return the entries of files by their paths; None for files that were removed."""
    files: dict[str, list[Any] | None] = {}
    last = ""
    require(isinstance(entries, list), "format", "files are no array")
    for entry in entries:
        require(isinstance(entry, list) and len(entry) in (1, 4), "format", "an entry is none")
        path = entry[0]
        require(isinstance(path, str) and len(path) <= 4096, "format", "a path is none")
        require(path > last and not {"", ".", ".."} & {*path.split("/")}, "format", "a path")
        require(len(entry) == 4 or not complete, "format", "a removed file among all files")
        if len(entry) == 4:
            check_entry(*entry[1:])
        files[path], last = entry[1:] or None, path
    return files


def check_entry(size: Any, digest: Any, end: Any) -> None:
    require(is_number(size) and is_hash(digest), "format", "size or hash")
    require(end is None or is_hash(end), "format", "hash of the end")


def read_older(data: bytes | None, expected: str) -> Any:
    """Return the entries of an older seal, which must have a hash."""
    require(data is not None, "integrity", "an older seal is missing")
    assert data is not None
    parts = split_second(data)
    found = sha256(data) if parts is None else sha256(parts[0])
    require(found == expected, "integrity", "an older seal is another one")
    if parts is None:
        members = parse_signed(data.partition(b"\n")[0])
        return members.get("files") if isinstance(members, dict) else None
    head, _, content = parts
    members = parse_signed(head)
    require(isinstance(members, dict), "format", "an older seal is no object")
    require(members.get("content") is not None, "format", "an older seal without content")
    require(sha256(content) == members["content"], "integrity", "an older seal: other content")
    return parse_signed(content)


def check_since(members: dict[str, Any]) -> list[Any]:
    since: list[Any] = members["since"]
    require(isinstance(since, list) and len(since) <= 64, "format", "older seals are no array")
    for entry in since:
        require(isinstance(entry, list) and len(entry) == 2, "format", "an older seal is none")
        require(is_number(entry[0]) and is_hash(entry[1]), "format", "number or hash")
    last = [members["sequence"] - 1, members["previous"]]
    require(not since or since[-1] == last, "format", "the last one is not the seal before")
    return since


def add_up(seal: Seal, archive: Mapping[str, bytes]) -> dict[str, list[Any]]:
    """Return the files that a seal of a dataset states, by their paths."""
    if seal.members["version"] == 1:
        listed = [seal.members["files"]]
    else:
        since = check_since(seal.members)
        older = [read_older(archive.get(f"{number:010d}.json"), hash_) for number, hash_ in since]
        listed = [*older, parse_signed(seal.content)]
    files: dict[str, Any] = {}
    for place, entries in enumerate(listed):
        files.update(read_files(entries, complete=place == 0))
    return {path: entry for path, entry in files.items() if entry is not None}


def open_dataset(data: bytes, reader: Reader, archive: Mapping[str, bytes]) -> dict[str, list[Any]]:
    """Return the files that the newest seal of a dataset states."""
    seal = open_seal(data, reader, FOLDER)
    files = add_up(seal, archive)
    check_newest(seal, reader, archive)
    return files


def compare(sealed: Mapping[str, Sequence[Any]], files: Mapping[str, bytes]) -> list[list[str]]:
    """Return the paths that are missing, foreign or changed, each with what it is."""
    stated = {path: (size, digest) for path, (size, digest, _) in sealed.items()}
    found = {
        path: (len(data), sha256(data))
        for path, data in files.items()
        if not any(part[0] in "._" for part in path.split("/"))
    }
    return [
        [path, "missing" if path not in found else "changed" if path in stated else "foreign"]
        for path in sorted(stated.keys() | found.keys())
        if stated.get(path) != found.get(path)
    ]


# --- tables ---------------------------------------------------------------------------------------


def check_table(members: dict[str, Any]) -> None:
    texts = [members[name] for name in ("table_uuid", "location", "metadata")]
    require(all(isinstance(text, str) for text in texts), "format", "a text is none")
    current = members["current_snapshot_id"]
    numbers = [members["last_sequence_number"], 0 if current is None else current]
    require(all(type(number) is int for number in numbers), "format", "a number is none")
    require(is_hash(members["sha256"]), "format", "a hash is none")
    same = members.get("dataset", members["table_uuid"]) == members["table_uuid"]
    require(same, "format", "the id is not the UUID of the table")


def is_sealed(data: bytes, reader: Reader, metadata: bytes) -> bool:
    """Return whether metadata of a table is that of its seal."""
    document, seal = json.loads(metadata), open_seal(data, reader, TABLE)
    check_newest(seal, reader, {})
    same = seal.members.get("dataset", document["table-uuid"]) == document["table-uuid"]
    require(same, "integrity", "the seal of another table")
    check_table(seal.members)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    same = sha256(text.encode()) == seal.members["sha256"]
    return same and bool(document["table-uuid"] == seal.members["table_uuid"])


def is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def is_hash(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value, re.ASCII) is not None


# --- files and cases ------------------------------------------------------------------------------


def verify_table(folder: Path, name: str, *lines: str, **demands: Any) -> bool:
    """Return whether a metadata.json is the one that was sealed."""
    seal = (folder / SEAL).read_bytes()
    return is_sealed(seal, Reader(lines, **demands), (folder / name).read_bytes())


def verify(folder: Path, *lines: str, store: Path | None = None, **demands: Any) -> list[str]:
    """Return the paths that are missing, foreign or changed; `store` has witnesses' statements."""
    kept = [*(folder / ARCHIVE).glob("0*.json"), *(store.glob("witness-*.json") if store else ())]
    archive = {path.name: path.read_bytes() for path in kept}
    sealed = open_dataset((folder / SEAL).read_bytes(), Reader(lines, **demands), archive)
    found = {}
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return [path for path, _ in compare(sealed, found)]


def find_disagreement(case: dict[str, Any]) -> str | None:
    """Return how this verifier differs from a case of spec-vectors/seals; None if it agrees."""
    try:
        found = judge(case)
    except SealError as error:
        found = error.word
    expected = case["expect"]
    if found == "ok" and "previous_seal" in case:
        before = case["previous_seal"].encode()
        parts = split_second(before)
        hash_ = sha256(before if parts is None else parts[0])
        follows = json.loads(case["seal"].partition("\n")[0])["previous"] == hash_
        expected, found = f"{expected}, {case['follows']}", f"{found}, {follows}"
    return None if found == expected else f"{case['id']}: expected {expected}, found {found}"


def judge(case: dict[str, Any]) -> str:
    """Return the verdict about a case: ok, integrity, or findings that it does not state."""
    reader = Reader(
        case["signed_by"], case["needed"], case["at_least"], case["dataset"], case["witnessed_by"]
    )
    if "metadata" in case:
        sealed = is_sealed(case["seal"].encode(), reader, case["metadata"].encode())
        return "ok" if sealed else "integrity"
    archive = {name: text.encode() for name, text in case["archive"].items()}
    files = {path: bytes.fromhex(text) for path, text in case["files"].items()}
    findings = compare(open_dataset(case["seal"].encode(), reader, archive), files)
    return "ok" if findings == case["findings"] else str(findings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sealed", type=Path, help="folder, or a table's metadata.json")
    parser.add_argument("lines", nargs="+", help="lines of the verifying keys of writers")
    parser.add_argument("--needed", type=int, default=1, help="number of signatures")
    parser.add_argument("--at-least", type=int, default=1, help="number seen last")
    parser.add_argument("--dataset", help="id of the dataset")
    parser.add_argument("--witness", action="append", default=[], help="line of a witness's key")
    parser.add_argument("--witness-store", type=Path, help="folder of the witnesses' statements")
    args = parser.parse_args()
    how = {"needed": args.needed, "at_least": args.at_least, "dataset": args.dataset,
           "witnesses": args.witness}  # fmt: skip
    path, lines = args.sealed, args.lines
    if path.name.endswith(".metadata.json"):
        same = verify_table(path.parent, path.name, *lines, **how)
        different = [] if same else [path.name]
    else:
        different = verify(path, *lines, store=args.witness_store, **how)
    print("\n".join(different) or "as sealed")
    return bool(different)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SealError as error:
        sys.exit(f"{error.word}: {error}")
