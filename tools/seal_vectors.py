"""Build spec-vectors/seals: seals of folders and tables, and what their attackers made of them.

Those of version 1 are here, and those of version 2 in `tools/ledger_vectors.py`.

    python -m tools.seal_vectors

This writes the seal under ML-DSA-65, whose signatures are random, and the verifying keys, once.
`tools/vectors.py build` writes cases.json: Ed25519 signs the same bytes in the same way.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import modcrypt as mc
from modcrypt.keys import Secret
from modcrypt.kms.signing.schemes import ED25519, find_scheme
from tools.case_terms import seal_terms
from tools.vector_patches import FOLDER

Json: TypeAlias = "dict[str, Any]"
Change: TypeAlias = Callable[[Json], object]
SEALS = FOLDER / "seals"
FORMAT, TABLE_FORMAT = "modcrypt-seal", "modcrypt-table-seal"


def fixed_key(name: str) -> mc.SigningKey:
    """Return an Ed25519 key of the vectors; it is no secret."""
    secret = hashlib.sha256(f"modcrypt seal vectors, {name}".encode()).digest()
    public = find_scheme(ED25519).encode_public(secret)
    return mc.SigningKey(mc.kms.VerifyingKey(ED25519, public), Secret(secret))


WRITER, COLLEAGUE, STRANGER = (fixed_key(name) for name in ("writer", "colleague", "stranger"))


def parquet(footer: bytes) -> bytes:
    """Return a file that ends like Parquet, so that its seal states the hash of a footer."""
    return b"PAR1" + b"pages" + footer + struct.pack("<I", len(footer)) + b"PAR1"


FILES = {
    "day=1/a.parquet": parquet(b"one footer"),
    "day=1/b.parquet": parquet(b"another footer"),
    "day=2/a.parquet": parquet(b"a third footer"),
    "notes é.txt": b"no Parquet",
}
METADATA: Json = {
    "format-version": 3, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
    "location": "lake/orders", "last-sequence-number": 1, "last-updated-ms": 1700000000000,
    "last-column-id": 1, "current-schema-id": 0, "schemas": [{
        "type": "struct", "schema-id": 0,
        "fields": [{"id": 1, "name": "größe", "required": False, "type": "long"}]}],
    "default-spec-id": 0, "partition-specs": [{"spec-id": 0, "fields": []}],
    "last-partition-id": 999, "default-sort-order-id": 0,
    "sort-orders": [{"order-id": 0, "fields": []}], "properties": {"encryption.key-id": "k"},
    "next-row-id": 3, "current-snapshot-id": 7, "snapshots": [{
        "snapshot-id": 7, "sequence-number": 1, "timestamp-ms": 1700000000000,
        "manifest-list": "lake/orders/metadata/list.avro", "schema-id": 0,
        "summary": {"operation": "append"}, "first-row-id": 0, "added-rows": 3}],
    "refs": {"main": {"snapshot-id": 7, "type": "branch"}}, "snapshot-log": [],
    "metadata-log": [],
}  # fmt: skip


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def describe_file(path: str, data: bytes) -> list[Any]:
    end = None
    if data[:4] == data[-4:] == b"PAR1":
        end = sha256(data[-8 - int.from_bytes(data[-8:-4], "little") :])
    return [path, len(data), sha256(data), end]


def statement(key: mc.SigningKey, **more: Any) -> Json:
    """Return the statement of a seal of `FILES`, the first one."""
    files = [describe_file(path, data) for path, data in sorted(FILES.items())]
    common = {"version": 1, "signer": str(key.verifier), "sequence": 1, "previous": None}
    return {"format": FORMAT, **common, "files": files, **more}


def table_statement(key: mc.SigningKey, **more: Any) -> Json:
    """Return the statement of a seal of `METADATA`, the first one."""
    text = json.dumps(METADATA, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {
        "format": TABLE_FORMAT, "version": 1, "signer": str(key.verifier), "sequence": 1,
        "previous": None, "table_uuid": METADATA["table-uuid"], "location": METADATA["location"],
        "metadata": "v2.metadata.json", "last_sequence_number": 1, "current_snapshot_id": 7,
        "sha256": sha256(text.encode()), **more,
    }  # fmt: skip


def encode(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def sign(line: bytes, key: mc.SigningKey = WRITER) -> bytes:
    """Return a seal: a line and its signature."""
    signature = key.sign(b"modcrypt-seal\x00\x01" + hashlib.sha256(line).digest())
    rest = json.dumps({"signature": base64.b64encode(signature).decode()})
    return line + b"\n" + rest.encode() + b"\n"


FIRST = sign(encode(statement(WRITER)))
SECOND = sign(encode(statement(WRITER, sequence=2, previous=sha256(FIRST))))
TABLE = sign(encode(table_statement(WRITER)))


def make_case(id_: str, comment: str, seal: bytes, **more: Any) -> Json:
    """Return a case; by default, the folder has all files and the reader trusts the writer."""
    files = more.pop("files", FILES)
    made = {
        "id": id_,
        "comment": comment,
        "spec": "seals.md",
        "seal": seal.decode(),
        "signed_by": [str(key.verifier) for key in more.pop("by", [WRITER])],
        "needed": 1,
        "at_least": 1,
        "dataset": None,
        "witnessed_by": [],
        "archive": {},
        "files": {path: data.hex() for path, data in files.items()},
        "expect": "ok",
        "findings": [],
    }
    return made | more


def make_table_case(id_: str, comment: str, seal: bytes, **more: Any) -> Json:
    """Return a case of a table; by default, its metadata is what was sealed."""
    made = make_case(id_, comment, seal, files={}, **{"metadata": json.dumps(METADATA), **more})
    del made["archive"], made["files"], made["findings"]
    return made


def edited(change: Change, key: mc.SigningKey = WRITER) -> bytes:
    """Return a seal whose statement its writer has signed as it is, although it is malformed."""
    document = statement(WRITER)
    change(document)
    return sign(encode(document), key)


def forged(change: Change) -> bytes:
    """Return a seal whose statement was changed without the signing key."""
    document = statement(WRITER)
    change(document)
    return encode(document) + b"\n" + FIRST.partition(b"\n")[2]


def signed_by_text(text: str) -> bytes:
    """Return a seal with another second line."""
    return FIRST.partition(b"\n")[0] + b"\n" + text.encode()


def folder_cases() -> Iterable[Json]:
    """Yield seals that are valid, with folders that are as sealed, or not."""
    swapped = {**FILES, "day=1/a.parquet": FILES["day=1/b.parquet"],
               "day=1/b.parquet": FILES["day=1/a.parquet"]}  # fmt: skip
    renamed = {path.replace("day=2", "day=3"): data for path, data in FILES.items()}
    without = {path: data for path, data in FILES.items() if path != "day=1/b.parquet"}
    grown = {**FILES, "day=1/a.parquet": FILES["day=1/a.parquet"] + b"\0"}
    for name, comment, files, findings in (
        ("as-sealed", "the folder is as sealed", FILES, []),
        ("hidden-files", "names with . or _ in front are not sealed",
         {**FILES, "_notes": b"x", "day=1/.x": b"", "_x/a.parquet": b""}, []),
        ("file-missing", "a file is missing", without, [["day=1/b.parquet", "missing"]]),
        ("all-files-missing", "no file is left", {}, [[path, "missing"] for path in sorted(FILES)]),
        ("file-foreign", "a file that nobody sealed", {**FILES, "day=1/c.parquet": b"PAR1"},
         [["day=1/c.parquet", "foreign"]]),
        ("file-copied", "a sealed file in another place, too",
         {**FILES, "c.parquet": FILES["day=1/a.parquet"]}, [["c.parquet", "foreign"]]),
        ("files-swapped", "two files in each other's places", swapped,
         [["day=1/a.parquet", "changed"], ["day=1/b.parquet", "changed"]]),
        ("file-grown", "a file has one byte more", grown, [["day=1/a.parquet", "changed"]]),
        ("partition-renamed", "a folder has another name", renamed,
         [["day=2/a.parquet", "missing"], ["day=3/a.parquet", "foreign"]]),
    ):  # fmt: skip
        yield make_case(name, comment, FIRST, files=files, findings=findings)
    yield make_case("second", "the seal after another one", SECOND, at_least=2,
                    previous_seal=FIRST.decode(), follows=True)  # fmt: skip
    other = sign(encode(statement(WRITER, sequence=2, previous=sha256(SECOND))))
    yield make_case("chain-broken", "a seal that does not follow the one before", other,
                    previous_seal=FIRST.decode(), follows=False)  # fmt: skip
    yield make_case("several-writers", "the seal of one of two writers", FIRST,
                    by=[COLLEAGUE, WRITER])  # fmt: skip
    mldsa65 = (SEALS / "mldsa65.json").read_bytes()
    verifier = [(SEALS / "mldsa65.pub").read_text().strip()]
    yield make_case("mldsa65", "signed with ML-DSA-65", mldsa65, signed_by=verifier)
    yield make_case("mldsa65-to-ed25519", "signed with ML-DSA-65, the reader trusts Ed25519",
                    mldsa65, expect="integrity")  # fmt: skip
    yield make_case("ed25519-to-mldsa65", "signed with Ed25519, the reader trusts ML-DSA-65",
                    FIRST, signed_by=verifier, expect="integrity")  # fmt: skip


def refused_cases() -> Iterable[Json]:
    """Yield seals that are refused because of their signature or number."""
    text = FIRST.partition(b"\n")[2].decode()
    other = sign(encode(statement(WRITER, sequence=5))).partition(b"\n")[2].decode()
    for name, comment, seal in (
        ("files-dropped", "an entry is taken out", forged(lambda d: d["files"].pop())),
        ("size-altered", "a file has another size", forged(lambda d: size_of(d, 1))),
        ("number-raised", "the number is raised", forged(lambda d: d.update(sequence=9))),
        ("signer-altered", "another signer is named",
         forged(lambda d: d.update(signer=str(STRANGER.verifier)))),
        ("white-space", "a blank in the statement", FIRST.replace(b",", b", ", 1)),
        ("signed-by-stranger", "another writer signed",
         sign(encode(statement(STRANGER)), STRANGER)),
        ("signer-is-another", "the signer is another one than the one that signed",
         edited(lambda d: d.update(signer=str(COLLEAGUE.verifier)))),
        ("signer-checksum", "a verifier with another checksum",
         edited(lambda d: d.update(signer=d["signer"][:-1] + "x"))),
        ("signer-array", "a signer that is an array", edited(lambda d: d.update(signer=[]))),
        ("signature-of-another", "the signature of another statement", signed_by_text(other)),
        ("signature-in-capitals", "a name in capitals", signed_by_text(text.upper())),
        ("signature-and-more", "a further member",
         signed_by_text(text.replace("}", ',"more":1}'))),
        ("signature-without-padding", "base64 without padding",
         signed_by_text(text.replace("=", ""))),
        ("signature-too-long", "a second line of more than 8,192 bytes",
         signed_by_text(text.rstrip() + " " * 8192)),
        ("third-line", "a third line", FIRST + b"{}\n"),
        ("one-line", "the seal ends after its first line", FIRST.partition(b"\n")[0]),
        ("truncated", "the seal ends in its first line", FIRST[:99]),
        ("empty", "the seal is empty", b""),
    ):  # fmt: skip
        by = [WRITER, COLLEAGUE]
        yield make_case(name, comment, seal, by=by, expect="integrity")
    yield make_case("wrong-key", "the reader trusts another writer", FIRST, by=[STRANGER],
                    expect="integrity")  # fmt: skip
    yield make_case("rolled-back", "an older seal than the one seen last", FIRST, at_least=2,
                    expect="integrity")  # fmt: skip


def size_of(document: Json, more: int) -> None:
    document["files"][0][1] += more


MALFORMED: dict[str, tuple[str, Change]] = {
    "version-2": ("another version", lambda d: d.update(version=2)),
    "version-true": ("a version that is no number", lambda d: d.update(version=True)),
    "another-format": ("another format", lambda d: d.update(format="modcrypt-seals")),
    "a-member-more": ("a further member", lambda d: d.update(more=1)),
    "no-files": ("no files", lambda d: d.pop("files")),
    "files-as-object": ("files in an object", lambda d: d.update(files={})),
    "number-0": ("the number 0", lambda d: d.update(sequence=0)),
    "number-too-large": ("the number 2^63", lambda d: d.update(sequence=2**63)),
    "number-with-point": ("the number 1.0", lambda d: d.update(sequence=1.0)),
    "previous-short": ("a hash of 63 digits", lambda d: d.update(previous="0" * 63)),
    "path-twice": ("a path twice", lambda d: d["files"].append(d["files"][-1])),
    "paths-not-in-order": ("paths in another order", lambda d: d["files"].reverse()),
    "path-outside": ("a path that leads out", lambda d: d["files"][0].__setitem__(0, "../a")),
    "path-absolute": ("an absolute path", lambda d: d["files"][0].__setitem__(0, "/a")),
    "path-empty": ("an empty path", lambda d: d["files"][0].__setitem__(0, "")),
    "size-negative": ("a negative size", lambda d: d["files"][0].__setitem__(1, -1)),
    "hash-in-capitals": ("a hash in capitals", lambda d: d["files"][0].__setitem__(2, "A" * 64)),
    "end-short": ("a short hash of the end", lambda d: d["files"][0].__setitem__(3, "00")),
    "entry-of-five": ("an entry of five members", lambda d: d["files"][0].append(None)),
}  # fmt: skip
"""Mistakes in seals whose signature is right, which readers refuse as malformed."""


def table_cases() -> Iterable[Json]:
    """Yield seals of tables."""
    yield make_table_case("table", "the metadata is as sealed", TABLE)
    spaced = json.dumps(METADATA, indent=2, sort_keys=True, ensure_ascii=False)
    yield make_table_case("table-respelled", "other white space, order and escapes", TABLE,
                          metadata=spaced)  # fmt: skip
    for name, comment, change in (
        ("table-column-renamed", "a column has another name",
         {"schemas": [{**METADATA["schemas"][0], "fields": []}]}),
        ("table-rolled-back", "an older state", {"current-snapshot-id": -1, "snapshots": [],
                                                 "refs": {}}),
        ("table-of-another", "the metadata of another table",
         {"table-uuid": "00000000-03fe-4693-9a96-a0705ddf69c1"}),
    ):  # fmt: skip
        altered = json.dumps({**METADATA, **change})
        yield make_table_case(name, comment, TABLE, metadata=altered, expect="integrity")
    yield make_table_case("table-number", "an older seal than the one seen last", TABLE, at_least=2,
                          expect="integrity")  # fmt: skip
    yield make_table_case("table-wrong-key", "the reader trusts another writer", TABLE,
                          by=[STRANGER], expect="integrity")  # fmt: skip
    hashed = table_statement(WRITER)["sha256"]
    for name, comment, more in (
        ("table-uuid-number", "a UUID that is a number", {"table_uuid": 1}),
        ("table-number-true", "a number that is none", {"last_sequence_number": True}),
        ("table-hash-short", "a short hash", {"sha256": hashed[:-1]}),
        ("table-files", "a further member", {"files": []}),
    ):
        yield make_table_case(name, comment, sign(encode(table_statement(WRITER, **more))),
                              expect="format")  # fmt: skip
    yield make_table_case("seal-of-folder-for-table", "the seal of a folder beside a table", FIRST,
                          expect="format")  # fmt: skip
    yield make_case("seal-of-table-for-folder", "the seal of a table in a folder", TABLE,
                    expect="format")  # fmt: skip


def cases() -> list[Json]:
    """Return the cases of version 1."""
    malformed = [
        make_case(name, comment, edited(change), expect="format")
        for name, (comment, change) in MALFORMED.items()
    ]
    repeated = FIRST.partition(b"\n")[0].replace(b'{"format"', b'{"version":1,"format"', 1)
    malformed.append(make_case("member-twice", "a member twice", sign(repeated), expect="format"))
    spaced = FIRST.partition(b"\n")[0].replace(b",", b",\n", 1)
    malformed.append(make_case("statement-in-two-lines", "a line feed in the statement",
                               sign(spaced), expect="format"))  # fmt: skip
    return finish([*folder_cases(), *refused_cases(), *malformed, *table_cases()])


def finish(made: Iterable[Json]) -> list[Json]:
    """Return cases with what follows from their members."""
    return [{**case, "control": control_of(case), **seal_terms(case)} for case in made]


def control_of(case: Json) -> str | None:
    """Return the valid case that is read as a case with a fault."""
    if case["expect"] == "ok" and not case.get("findings"):
        return None
    control = "table" if "metadata" in case else "as-sealed"
    if not case["id"].startswith("ledger-"):
        return control
    return "ledger-table" if "metadata" in case else "ledger"


def build() -> None:
    """Write the seal under ML-DSA-65 and its verifying key."""
    SEALS.mkdir(exist_ok=True)
    key = mc.SigningKey.generate("mldsa65")
    (SEALS / "mldsa65.pub").write_text(f"{key.verifier}\n")
    (SEALS / "mldsa65.json").write_bytes(sign(encode(statement(key)), key))


if __name__ == "__main__":
    build()
