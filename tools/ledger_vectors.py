"""Build the cases of spec-vectors/seals about version 2: seals that follow each other.

`tools/seal_vectors.py` includes them. Statements have a fixed time and id, and Ed25519 signs the
same bytes in the same way, so that every build makes the same cases.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import modcrypt as mc
from tools.seal_vectors import (
    COLLEAGUE,
    FILES,
    FIRST,
    FORMAT,
    METADATA,
    STRANGER,
    TABLE_FORMAT,
    WRITER,
    Change,
    Json,
    describe_file,
    encode,
    finish,
    fixed_key,
    make_case,
    make_table_case,
    sha256,
    sign,
    statement,
    table_statement,
)

DATASET, OTHER_DATASET = "4f1d6c2a9b8e47d0a1b2c3d4e5f60718", "00000000000000000000000000000000"
TIME, FAR = 1764362628, 253402300799
"""Seconds at which the vectors were signed, and of the last second of the year 9999."""

SUCCESSOR, WITNESS = fixed_key("successor"), fixed_key("witness")
CONTENT = [describe_file(path, data) for path, data in sorted(FILES.items())]
NEW, REPLACED, GONE = "day=2/a.parquet", "day=1/b.parquet", "day=0/a.parquet"
OLD_FILES = {path: data for path, data in FILES.items() if path != NEW} | {
    REPLACED: b"older", GONE: b"gone",
}  # fmt: skip
BEFORE = [describe_file(path, data) for path, data in sorted(OLD_FILES.items())]


def hash_of(seal: bytes) -> str:
    return sha256(seal.partition(b"\n")[0])


def make_head(more: Mapping[str, Any], own: Mapping[str, Any]) -> Json:
    """Return a statement, the first one by default."""
    common: Json = {
        "format": FORMAT, "version": 2, "dataset": DATASET, "sequence": 1, "previous": None,
        "time": TIME, "expires": None, "writers": None, "content": None,
    }  # fmt: skip
    return {**common, **own, **more}


def assemble(
    document: Json | bytes, content: bytes | None, by: Sequence[mc.SigningKey] = (WRITER,),
    changes: Sequence[Any] = (), version: int = 2,
) -> bytes:  # fmt: skip
    """Return a seal with a statement as it is, signed by these keys."""
    head = document if isinstance(document, bytes) else encode(document)
    message = b"modcrypt-seal\x00" + bytes((version,)) + hashlib.sha256(head).digest()
    second = encode({"writers": [*changes], "signatures": sign_all(message, by)})
    return b"\n".join([head, second, *([] if content is None else [content]), b""])


def sign_all(message: bytes, keys: Iterable[mc.SigningKey]) -> Json:
    return {key.verifier.hex_id: base64.b64encode(key.sign(message)).decode() for key in keys}


def seal(
    entries: Any = CONTENT, by: Sequence[mc.SigningKey] = (WRITER,), changes: Sequence[Any] = (),
    **more: Any,
) -> bytes:  # fmt: skip
    """Return a seal of a dataset that states these entries."""
    content = entries if isinstance(entries, bytes) else encode(entries)
    own: Json = {"content": sha256(content), "writers": hash_changes(changes), "since": []}
    return assemble(make_head(more, own), content, by, changes)


def table_seal(
    by: Sequence[mc.SigningKey] = (WRITER,), changes: Sequence[Any] = (), **more: Any
) -> bytes:
    """Return a seal of `METADATA`."""
    former = table_statement(WRITER)
    names = [name for name in former if name not in FIRST_MEMBERS]
    own: Json = {"format": TABLE_FORMAT, "dataset": METADATA["table-uuid"],
           "writers": hash_changes(changes), **{name: former[name] for name in names}}  # fmt: skip
    return assemble(make_head(more, own), None, by, changes)


FIRST_MEMBERS = ("format", "version", "signer", "sequence", "previous")


def hash_changes(changes: Sequence[Any]) -> str | None:
    return sha256(encode([*changes])) if changes else None


def change_writers(
    signed_by: Sequence[mc.SigningKey], keys: Sequence[mc.SigningKey], needed: int = 1,
    sequence: int = 2, dataset: str = DATASET,
) -> list[Any]:  # fmt: skip
    """Return a change of writers."""
    change = [dataset, sequence, [str(key.verifier) for key in keys], needed]
    message = b"modcrypt-writers\x00\x01" + hashlib.sha256(encode(change)).digest()
    return [*change, sign_all(message, signed_by)]


def after(former: bytes, sequence: int = 2, since: Sequence[Any] = ()) -> Json:
    """Return the members of a seal that states changes since a seal of version 2."""
    listed = [*since, [sequence - 1, hash_of(former)]]
    return {"sequence": sequence, "previous": hash_of(former), "since": listed}


def archive(*seals: bytes) -> dict[str, str]:
    return {f"{number:010d}.json": data.decode() for number, data in enumerate(seals, 1)}


# Three seals: the first lists files, the second removes one and adds one, the third replaces one.
ONE = seal(BEFORE)
REMOVED_AND_ADDED = [[GONE], describe_file(NEW, FILES[NEW])]
TWO = seal(REMOVED_AND_ADDED, **after(ONE))
REPLACEMENT = [describe_file(REPLACED, FILES[REPLACED])]
THREE = seal(REPLACEMENT, **after(TWO, 3, [[1, hash_of(ONE)]]))
OLDER = archive(ONE, TWO)

COMPLETE = seal()
ROTATION = change_writers([WRITER], [SUCCESSOR])
ROTATED = seal(by=[SUCCESSOR], changes=[ROTATION])
QUORUM = change_writers([WRITER], [WRITER, COLLEAGUE, SUCCESSOR], needed=2)
V1 = sign(encode(statement(WRITER, files=BEFORE)))
AFTER_V1: Json = {"sequence": 2, "previous": sha256(V1), "since": [[1, sha256(V1)]]}
ALL_CHANGES = [[GONE], REPLACEMENT[0], describe_file(NEW, FILES[NEW])]


def valid_cases() -> Iterable[Json]:
    """Yield seals that readers accept."""
    three = [WRITER, COLLEAGUE, STRANGER]
    again = change_writers([SUCCESSOR], [COLLEAGUE], sequence=3)
    for name, comment, made, more in (
        ("ledger", "all files in the content", COMPLETE, {"by": [WRITER, COLLEAGUE]}),
        ("ledger-changes", "changes since a seal that lists all files, and changes of these",
         THREE, {"archive": OLDER, "at_least": 3, "previous_seal": TWO.decode(), "follows": True}),
        ("ledger-after-version-1", "changes since a seal of version 1",
         seal(ALL_CHANGES, **AFTER_V1),
         {"archive": archive(V1), "previous_seal": V1.decode(), "follows": True}),
        ("ledger-all-after-version-1", "all files again, after a seal of version 1",
         seal(sequence=2, previous=sha256(V1)), {"archive": archive(V1)}),
        ("ledger-other-history", "a seal that does not follow the one before",
         seal(sequence=2, previous=hash_of(TWO)),
         {"previous_seal": ONE.decode(), "follows": False}),
        ("ledger-removed-twice", "a removed file that was not there",
         seal([*ALL_CHANGES[1:], ["z"]], **after(seal([]), 2)), {"archive": archive(seal([])),
         "findings": [[path, "foreign"] for path in ("day=1/a.parquet", "notes é.txt")]}),
        ("ledger-2-of-3", "two of three keys signed", seal(by=[WRITER, STRANGER]),
         {"by": three, "needed": 2}),
        ("ledger-and-a-stranger", "another key signed, too", seal(by=[STRANGER, WRITER]), {}),
        ("ledger-rotated", "a writer handed over to another one", ROTATED, {}),
        ("ledger-rotated-known", "the reader trusts the new writer already", ROTATED,
         {"by": [SUCCESSOR]}),
        ("ledger-rotated-twice", "two changes of writers",
         seal(by=[COLLEAGUE], changes=[ROTATION, again]), {}),
        ("ledger-quorum", "a change demands two of three keys",
         seal(by=[SUCCESSOR, COLLEAGUE], changes=[QUORUM]), {}),
        ("ledger-quorum-lowered", "two writers allow that one signs",
         seal(by=[SUCCESSOR], changes=[change_writers([WRITER, COLLEAGUE], [SUCCESSOR])]),
         {"by": three, "needed": 2}),
        ("ledger-expires-later", "not yet expired", seal(expires=FAR), {}),
        ("ledger-of-the-dataset", "the id that the reader expects", COMPLETE,
         {"dataset": DATASET}),
        ("ledger-without-last-line-feed", "no line feed at the end", COMPLETE[:-1], {}),
        ("ledger-witnessed", "a witness has countersigned it", COMPLETE,
         {"archive": witness(COMPLETE), "witnessed_by": [str(WITNESS.verifier)]}),
        ("ledger-file-changed", "a file is not the one that the changes state", THREE,
         {"archive": OLDER, "files": {**FILES, REPLACED: OLD_FILES[REPLACED]},
          "findings": [[REPLACED, "changed"]]}),
        ("ledger-files-before", "the files before the changes", THREE,
         {"archive": OLDER, "files": OLD_FILES, "findings": [
             [GONE, "foreign"], [REPLACED, "changed"], [NEW, "missing"]]}),
    ):  # fmt: skip
        yield make_case(name, comment, made, **more)


def witness(
    of: bytes, key: mc.SigningKey = WITNESS, by: mc.SigningKey = WITNESS, **more: Any
) -> dict[str, str]:
    """Return what a witness states about a seal, by the name of its file."""
    own = {"format": "modcrypt-seal-witness", "seal": hash_of(of)}
    made = assemble(make_head(more, own), None, [by])
    return {f"witness-{DATASET}-{key.verifier.hex_id}.json": made.decode()}


def swap_lines(one: bytes, other: bytes, number: int) -> bytes:
    """Return a seal with a line of another one."""
    lines = one.split(b"\n")
    lines[number] = other.split(b"\n")[number]
    return b"\n".join(lines)


def with_second(line: str | bytes) -> bytes:
    """Return `COMPLETE` with another second line."""
    text = line if isinstance(line, bytes) else line.encode()
    return swap_lines(COMPLETE, b"\n" + text + b"\n", 1)


def altered_cases() -> Iterable[Json]:
    """Yield seals that were altered, or that other keys signed."""
    text = COMPLETE.split(b"\n")[1].decode()
    id_, other_id = WRITER.verifier.hex_id, COLLEAGUE.verifier.hex_id
    signature = sign_all(b"", [WRITER])[id_]
    many = encode({"writers": [], "signatures": {f"{n:032x}": signature for n in range(65)}})
    document = make_head({}, {"content": sha256(encode(CONTENT)), "since": []})
    for name, comment, made in (
        ("statement-altered", "the number is raised",
         COMPLETE.replace(b'"sequence":1', b'"sequence":9', 1)),
        ("statement-white-space", "a blank in the statement", COMPLETE.replace(b",", b", ", 1)),
        ("content-altered", "a file has another size in the content",
         swap_lines(COMPLETE, seal([[*CONTENT[0][:1], 1, *CONTENT[0][2:]], *CONTENT[1:]]), 2)),
        ("content-shortened", "an entry is taken out of the content",
         swap_lines(COMPLETE, seal(CONTENT[1:]), 2)),
        ("content-removed", "no third line", b"\n".join(COMPLETE.split(b"\n")[:2]) + b"\n"),
        ("content-and-more", "a fourth line", COMPLETE + b"[]\n"),
        ("signature-of-version-1", "the signature is for version 1",
         assemble(document, encode(CONTENT), version=1)),
        ("signature-of-another-seal", "the signatures of another seal",
         swap_lines(COMPLETE, seal(sequence=5), 1)),
        ("signature-under-another-id", "a signature under the id of another key",
         with_second(text.replace(id_, other_id))),
        ("signed-by-a-stranger", "another writer signed", seal(by=[STRANGER])),
        ("no-signatures", "no signatures", with_second('{"writers":[],"signatures":{}}')),
        ("65-signatures", "more than 64 signatures", with_second(many)),
        ("signatures-as-array", "signatures in an array",
         with_second('{"writers":[],"signatures":[]}')),
        ("signatures-and-more", "a further member", with_second(text.replace("}}", '},"more":1}'))),
        ("signatures-without-padding", "base64 without padding",
         with_second(text.replace("=", ""))),
        ("signatures-twice", "a member twice",
         with_second(text.replace('{"writers":[]', '{"writers":[],"writers":[]'))),
        ("signatures-in-last-line", "the seal ends after its second line, without line feed",
         COMPLETE.rpartition(b"\n[")[0]),
    ):  # fmt: skip
        yield make_case(f"ledger-{name}", comment, made, by=[WRITER, COLLEAGUE], expect="integrity")


def older_seal_cases() -> Iterable[Json]:
    """Yield seals whose older ones were altered, and such that a reader must not accept now."""
    one, two = OLDER
    first = archive(V1)
    altered = ONE.replace(b'"time":1764362628', b'"time":1764362629', 1).decode()
    for name, comment, found in (
        ("missing", "an older seal is missing", {one: OLDER[one]}),
        ("all-missing", "all older seals are missing", {}),
        ("statement-altered", "the statement of an older seal is altered", {**OLDER, one: altered}),
        ("content-altered", "the content of an older seal is altered",
         {**OLDER, one: swap_lines(ONE, COMPLETE, 2).decode()}),
        ("content-removed", "an older seal has lost its content",
         {**OLDER, one: ONE.rpartition(b"[[")[0].decode()}),
        ("exchanged", "two older seals in each other's places", {one: OLDER[two], two: OLDER[one]}),
        ("another", "another seal of the writer", {**OLDER, one: COMPLETE.decode()}),
    ):  # fmt: skip
        yield make_case(f"ledger-older-{name}", comment, THREE, archive=found, expect="integrity")
    two_after_one = seal(ALL_CHANGES, **AFTER_V1)
    yield make_case(
        "ledger-older-version-1-altered", "the older seal of version 1 is altered", two_after_one,
        archive={one: first[one].replace('"sequence":1', '"sequence": 1')}, expect="integrity",
    )  # fmt: skip
    for name, comment, made, more in (
        ("rolled-back", "an older seal than the one seen last", TWO,
         {"archive": archive(ONE), "at_least": 3}),
        ("expired", "an expired seal", seal(expires=TIME + 1), {}),
        ("of-another-dataset", "another dataset of the same writer", COMPLETE,
         {"dataset": OTHER_DATASET}),
        ("version-1-with-id", "version 1 for a reader who expects an id", FIRST,
         {"dataset": DATASET}),
        ("version-1-for-two", "version 1 for a reader who demands two signatures", FIRST,
         {"by": [WRITER, COLLEAGUE], "needed": 2}),
        ("1-of-2", "one of two signatures", COMPLETE, {"by": [WRITER, COLLEAGUE], "needed": 2}),
    ):  # fmt: skip
        yield make_case(f"ledger-{name}", comment, made, expect="integrity", **more)


def writer_cases() -> Iterable[Json]:
    """Yield seals with changes of writers that are altered, or signed by keys that may not."""
    to_stranger = change_writers([STRANGER], [STRANGER])
    of_another = change_writers([WRITER], [SUCCESSOR], dataset=OTHER_DATASET)
    for name, comment, made, more in (
        ("revoked", "signed by a key that may not sign any more",
         seal(by=[WRITER], changes=[ROTATION]), {}),
        ("revoked-and-new", "one signature of a revoked key, of two that are needed",
         seal(by=[WRITER, COLLEAGUE],
              changes=[change_writers([WRITER], [COLLEAGUE, SUCCESSOR], needed=2)]), {}),
        ("changes-dropped", "the change of writers is dropped",
         with_changes(ROTATED, []), {}),
        ("changes-dropped-known", "the change is dropped, for a reader who trusts the new key",
         with_changes(ROTATED, []), {"by": [SUCCESSOR]}),
        ("changes-altered", "a change names another key",
         with_changes(ROTATED, [[*ROTATION[:2], [str(STRANGER.verifier)], *ROTATION[3:]]]),
         {"by": [WRITER, SUCCESSOR]}),
        ("changes-added", "a change is added",
         with_changes(COMPLETE, [to_stranger]), {}),
        ("changes-signed-again", "a change with another signature",
         with_changes(ROTATED, [[*ROTATION[:4], to_stranger[4]]]), {"by": [SUCCESSOR]}),
        ("change-of-a-stranger", "a stranger hands over to itself",
         seal(by=[STRANGER], changes=[to_stranger]), {}),
        ("change-of-another-dataset", "a change of another dataset's writers",
         seal(by=[SUCCESSOR], changes=[of_another]), {}),
        ("change-by-1-of-2", "one of two writers signs a change",
         seal(by=[SUCCESSOR], changes=[ROTATION]), {"by": [WRITER, COLLEAGUE], "needed": 2}),
        ("quorum-missed", "one of two signatures that a change demands",
         seal(by=[WRITER], changes=[QUORUM]), {}),
        ("changes-exchanged", "two changes in another order", seal(
            by=[COLLEAGUE],
            changes=[change_writers([SUCCESSOR], [COLLEAGUE], sequence=3), ROTATION]), {}),
        ("65-changes", "more than 64 changes",
         seal(changes=[change_writers([WRITER], [WRITER])] * 65), {}),
    ):  # fmt: skip
        yield make_case(f"ledger-{name}", comment, made, expect="integrity", **more)
    for name, comment, change in malformed_changes():
        made = seal(by=[SUCCESSOR], changes=[change])
        yield make_case(f"ledger-change-{name}", comment, made, by=[WRITER, SUCCESSOR],
                        expect="integrity")  # fmt: skip


def with_changes(made: bytes, changes: Sequence[Any]) -> bytes:
    """Return a seal with other changes of writers in its second line."""
    return swap_lines(made, assemble(made.split(b"\n")[0], None, [SUCCESSOR, WRITER], changes), 1)


def malformed_changes() -> Iterable[tuple[str, str, Any]]:
    """Yield changes of writers that are none."""
    dataset, number, lines, needed, signatures = ROTATION
    yield "of-four", "a change of four elements", ROTATION[:4]
    yield "as-object", "a change that is an object", {"dataset": dataset}
    yield "needs-0", "a change that needs no signature", [dataset, number, lines, 0, signatures]
    yield "needs-2-of-1", "a change that needs too many", [dataset, number, lines, 2, signatures]
    yield "without-keys", "a change without keys", [dataset, number, [], needed, signatures]
    yield "key-twice", "a change with a key twice", [dataset, number, lines * 2, 1, signatures]
    wrong = [lines[0][:-1] + "x"]
    yield "checksum", "a key with another checksum", [dataset, number, wrong, needed, signatures]
    yield "number-true", "a number that is none", [dataset, True, lines, needed, signatures]
    yield "unsigned", "a change without signatures", [dataset, number, lines, needed, {}]


def set_to(**members: Any) -> Change:
    return lambda document: document.update(members)


MALFORMED: dict[str, tuple[str, Change]] = {
    "version-3": ("another version", set_to(version=3)),
    "version-1-in-form-2": ("version 1 in three lines", set_to(version=1)),
    "version-true": ("a version that is no number", set_to(version=True)),
    "another-format": ("another format", set_to(format="modcrypt-table-seal")),
    "a-member-more": ("a further member", set_to(more=1)),
    "no-since": ("no older seals", lambda d: d.pop("since")),
    "no-time": ("no time", lambda d: d.pop("time")),
    "id-null": ("no id", set_to(dataset=None)),
    "id-empty": ("an empty id", set_to(dataset="")),
    "id-of-65": ("an id of 65 characters", set_to(dataset="a" * 65)),
    "id-with-path": ("an id with another character", set_to(dataset="../a")),
    "number-0": ("the number 0", set_to(sequence=0)),
    "number-too-large": ("the number 2^63", set_to(sequence=2**63)),
    "number-with-point": ("the number 1.0", set_to(sequence=1.0)),
    "previous-short": ("a hash of 63 digits", set_to(previous="0" * 63)),
    "time-null": ("no time", set_to(time=None)),
    "time-negative": ("a time before 1970", set_to(time=-1)),
    "time-with-point": ("a time with a fraction", set_to(time=TIME + 0.5)),
    "expires-text": ("a date as text", set_to(expires="9999-12-31")),
    "expires-too-large": ("an expiry of 2^63", set_to(expires=2**63)),
    "content-null": ("no content", set_to(content=None)),
    "content-in-capitals": ("a hash in capitals", set_to(content="A" * 64)),
    "since-null": ("older seals are null", set_to(since=None)),
    "since-object": ("older seals in an object", set_to(since={})),
    "since-without-previous": ("an older seal, but none before",
                               set_to(since=[[0, "0" * 64]])),
}  # fmt: skip
"""Mistakes in a statement that its writer has signed."""

CONTENTS: dict[str, tuple[str, Any]] = {
    "empty": ("an empty content", b""),
    "not-json": ("a content that is not JSON", b"[["),
    "object": ("a content that is an object", {}),
    "removes": ("a removed file in a list of all files", [["a"], *CONTENT]),
    "path-twice": ("a path twice", [*CONTENT, CONTENT[-1]]),
    "not-in-order": ("paths in another order", CONTENT[::-1]),
    "path-outside": ("a path that leads out", [["../a", *CONTENT[0][1:]]]),
    "path-absolute": ("an absolute path", [["/a", *CONTENT[0][1:]]]),
    "path-empty": ("an empty path", [["", *CONTENT[0][1:]]]),
    "path-number": ("a path that is a number", [[1, *CONTENT[0][1:]]]),
    "path-of-4097": ("a path of 4,097 characters", [["a" * 4097, *CONTENT[0][1:]]]),
    "size-negative": ("a negative size", [["a", -1, *CONTENT[0][2:]]]),
    "hash-in-capitals": ("a hash in capitals", [["a", 1, "A" * 64, None]]),
    "end-short": ("a short hash of the end", [["a", 1, "0" * 64, "00"]]),
    "entry-of-two": ("an entry of two members", [["a", 1]]),
    "entry-empty": ("an empty entry", [[]]),
    "entry-text": ("an entry that is a text", ["a"]),
}
"""Mistakes in the content of a seal."""


def malformed_cases() -> Iterable[Json]:
    """Yield seals that are signed, but malformed."""
    content = encode(CONTENT)
    for name, (comment, change) in MALFORMED.items():
        document = make_head({}, {"content": sha256(content), "since": []})
        change(document)
        yield make_case(f"ledger-{name}", comment, assemble(document, content), expect="format")
    for name, (comment, entries) in CONTENTS.items():
        yield make_case(f"ledger-content-{name}", comment, seal(entries), expect="format")
    head = COMPLETE.partition(b"\n")[0]
    for name, comment, line in (
        ("member-twice", "a member twice", head.replace(b"{", b'{"version":2,', 1)),
        ("head-array", "a statement that is an array", b"[]"),
        ("head-not-json", "a statement that is not JSON", b"{"),
    ):
        made = assemble(line, content)
        yield make_case(f"ledger-{name}", comment, made, expect="format")
    yield from since_cases()


def since_cases() -> Iterable[Json]:
    """Yield seals whose `since`, or an older seal, is malformed."""
    hash_ = hash_of(ONE)
    before: Json = {"sequence": 2, "previous": hash_}
    for name, comment, since in (
        ("other-hash", "the last older seal is not the one before", [[1, "0" * 64]]),
        ("other-number", "the last older seal has another number", [[3, hash_]]),
        ("beyond", "the seal before is not the last one", [[1, hash_], [3, "0" * 64]]),
        ("hash-short", "a short hash of an older seal", [[0, "0" * 63], [1, hash_]]),
        ("number-text", "a number as text", [["0", hash_], [1, hash_]]),
        ("entry-of-three", "an older seal with three members", [[1, hash_, None]]),
        ("of-65", "more than 64 older seals", [[1, hash_]] * 65),
    ):
        made = seal(REMOVED_AND_ADDED, **before, since=since)
        yield make_case(f"ledger-since-{name}", comment, made, archive=archive(ONE),
                        expect="format")  # fmt: skip
    for name, comment, older in (
        ("removes", "the oldest seal removes a file", seal([["a"]])),
        ("object", "an older seal whose content is an object", seal({})),
        ("not-json", "an older seal whose content is not JSON", seal(b"[")),
        ("without-content", "an older seal without content",
         assemble(make_head({}, {"since": []}), None)),
        ("of-a-table", "an older seal that is that of a table", table_seal()),
        ("head-array", "an older seal whose statement is an array", assemble(b"[]", b"[]")),
        ("head-not-json", "an older seal whose statement is not JSON", assemble(b"{", b"[]")),
        ("head-empty", "an older seal with an empty statement", assemble(b"{}", b"[]")),
    ):  # fmt: skip
        made = seal(ALL_CHANGES, **after(older))
        yield make_case(f"ledger-oldest-{name}", comment, made, archive=archive(older),
                        expect="format")  # fmt: skip
    for name, text in (("array", "[]\n"), ("not-json", "{\n"), ("empty", "")):
        hash_ = sha256(text.encode())
        made = seal(ALL_CHANGES, sequence=2, previous=hash_, since=[[1, hash_]])
        yield make_case(f"ledger-oldest-first-{name}", "an older seal that is of no version", made,
                        archive={"0000000001.json": text}, expect="format")  # fmt: skip


def witness_cases() -> Iterable[Json]:
    """Yield seals that a required witness has not countersigned."""
    line = str(WITNESS.verifier)
    followed = seal(sequence=2, previous=hash_of(COMPLETE))
    for name, comment, made, found in (
        ("missing", "no statement of the witness", COMPLETE, {}),
        ("of-another", "a witness saw another seal with this number", COMPLETE, witness(ONE)),
        ("not-yet", "the witness saw an older seal", followed, witness(COMPLETE)),
        ("rolled-back", "the witness saw a newer seal", COMPLETE, witness(followed, sequence=2)),
        ("forged", "another key signed for the witness", COMPLETE, witness(COMPLETE, by=WRITER)),
        ("other-dataset", "the witness states another dataset", COMPLETE,
         witness(COMPLETE, dataset=OTHER_DATASET)),
        ("expired", "an expired statement of the witness", COMPLETE,
         witness(COMPLETE, expires=TIME + 1)),
        ("version-1", "seals of version 1 have no witnesses", FIRST, witness(FIRST)),
    ):  # fmt: skip
        yield make_case(f"ledger-witness-{name}", comment, made, archive=found, witnessed_by=[line],
                        expect="integrity")  # fmt: skip
    as_seal = {name: COMPLETE.decode() for name in witness(COMPLETE)}
    yield make_case("ledger-witness-a-seal", "a seal in the place of a witness's statement",
                    COMPLETE, archive=as_seal, witnessed_by=[str(WITNESS.verifier)],
                    expect="integrity")  # fmt: skip


def table_cases() -> Iterable[Json]:
    """Yield seals of tables."""
    uuid = METADATA["table-uuid"]
    rotation = change_writers([WRITER], [SUCCESSOR], dataset=uuid)
    older = {**METADATA, "current-snapshot-id": -1, "snapshots": [], "refs": {}}
    other_uuid = OTHER_DATASET[:8] + uuid[8:]
    for name, comment, made, more in (
        ("table", "the metadata is as sealed", table_seal(), {}),
        ("table-2-of-3", "two of three keys signed", table_seal([WRITER, STRANGER]),
         {"by": [WRITER, COLLEAGUE, STRANGER], "needed": 2}),
        ("table-rotated", "a writer handed over to another one",
         table_seal([SUCCESSOR], [rotation]), {}),
        ("table-expires-later", "not yet expired", table_seal(expires=FAR), {}),
        ("table-and-more", "a further line after the signatures", table_seal() + b"more\n", {}),
        ("table-older-metadata", "an older state", table_seal(),
         {"metadata": encode(older).decode(), "expect": "integrity"}),
        ("table-number", "an older seal than the one seen last", table_seal(),
         {"at_least": 2, "expect": "integrity"}),
        ("table-expired", "an expired seal", table_seal(expires=TIME + 1),
         {"expect": "integrity"}),
        ("table-revoked", "signed by a key that may not sign any more",
         table_seal([WRITER], [rotation]), {"expect": "integrity"}),
        ("table-1-of-2", "one of two signatures", table_seal(),
         {"by": [WRITER, COLLEAGUE], "needed": 2, "expect": "integrity"}),
        ("table-other-id", "the id of another table", table_seal(dataset=other_uuid),
         {"expect": "integrity"}),
        ("table-other-uuid", "the id of the table, but another UUID",
         table_seal(table_uuid=other_uuid), {"expect": "format"}),
        ("table-since", "a further member", table_seal(since=[]), {"expect": "format"}),
        ("table-hash-short", "a short hash", table_seal(sha256="00"), {"expect": "format"}),
        ("table-number-true", "a number that is none", table_seal(last_sequence_number=True),
         {"expect": "format"}),
        ("table-of-folder", "the seal of a folder beside a table", COMPLETE,
         {"expect": "format"}),
    ):  # fmt: skip
        yield make_table_case(f"ledger-{name}", comment, made, **more)
    yield make_case("ledger-folder-of-table", "the seal of a table in a folder", table_seal(),
                    expect="format")  # fmt: skip


PARTS: tuple[Callable[[], Iterable[Json]], ...] = (
    valid_cases, altered_cases, older_seal_cases, writer_cases, malformed_cases, witness_cases,
    table_cases,
)  # fmt: skip


def cases() -> list[Json]:
    """Return all cases of version 2."""
    return finish(case for part in PARTS for case in part())
