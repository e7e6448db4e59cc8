"""Whatever is done to a table, `verify_table` reports; what it can't see, it says.

The tables are the one that Iceberg's Java wrote, and such as the builder makes, which knows nothing
of modcrypt's writers. What Java lists of its table is in `t16.java-read.txt`.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modcrypt.errors import IntegrityError, PlaintextError
from modcrypt.iceberg import (
    FileKeyStore,
    IcebergTable,
    KeyPolicy,
    TableVerification,
    append,
    open_table,
    verify_table,
)
from modcrypt.iceberg.keys.key_policies import DAY_MS
from modcrypt.iceberg.verify.table_findings import TableFinding
from modcrypt.report import render_html
from tests.support.cases import each_case
from tests.support.iceberg import builder
from tests.support.iceberg.altered_documents import GONE, Change, alter
from tests.support.iceberg.builder import Builder, id_field
from tests.support.iceberg.by_hand import open_ags1, unwrap_entry
from tests.support.iceberg.java_vector import LOCATION
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import MASTERS, SampleKms
from tests.support.iceberg.shared_table import both
from tests.support.paths import ROOT
from tests.support.shared_vectors import shared_vectors

FILES = {
    "metadata/snap-1001.avro", "metadata/snap-1002.avro", "metadata/snap-1003.avro",
    "metadata/m1.avro", "metadata/m2.avro", "metadata/dm3.avro",
    "data/p1.parquet", "data/a1.avro", "data/p2.parquet", "data/a2.avro", "data/dv1.puffin",
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("young_tables")


def verify_folder(folder: Path, kms: SampleKms | None = None, **how: Any) -> TableVerification:
    opening = {name: how.pop(name) for name in ("require_encrypted", "at_least") if name in how}
    found = open_table(folder, kms or SampleKms(), location_map=both(folder), **opening)
    return verify_table(found, **how)


def faults(found: TableVerification) -> list[TableFinding]:
    return [finding for finding in found.findings if finding.severity == "fault"]


def faulty_files(found: TableVerification) -> set[str]:
    """Return the names of the files that have a fault."""
    locations = [finding.location for finding in faults(found) if finding.location]
    return {"/".join(location.split("/")[-2:]) for location in locations}


def words(found: TableVerification) -> set[str]:
    return {finding.word for finding in found.findings}


def document(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metadata" / "v1.metadata.json").read_bytes())  # type: ignore[no-any-return]


def put(folder: Path, changed: dict[str, Any], name: str = "v1") -> None:
    (folder / "metadata" / f"{name}.metadata.json").write_text(json.dumps(changed))


# --- a table that is whole -----------------------------------------------------------------------


def test_the_table_that_java_wrote_is_whole(t16: Path, kms: SampleKms) -> None:
    found = verify_folder(t16, kms)
    assert found.findings == ()
    assert found.ok
    assert found.complete
    assert [part.what for part in found.not_authenticated] == ["table metadata"]
    assert kms.calls == [("unwrap", "keyA")]


def test_its_files_are_those_that_java_lists_each_once(t16: Path) -> None:
    reported = (shared_vectors() / "iceberg-table" / "t16.java-read.txt").read_text()
    manifests = dict(re.findall(r"manifest (\S+) len (\d+)", reported))
    data = dict(re.findall(r"(?:data|delete) (\S+) \w+ size (\d+)", reported))
    files = verify_folder(t16).files
    by_location = {file.location: file.size for file in files}
    assert len(files) == len(by_location) == 11
    assert {k: v for k, v in by_location.items() if "/snap-" not in k} == {
        name: int(size) for name, size in (manifests | data).items()
    }
    assert all(file.ok and file.encrypted and file.tags > 0 for file in files)


def test_a_snapshot_alone_leaves_out_what_it_does_not_reach(t16: Path) -> None:
    found = verify_folder(t16, snapshots=[1001])
    assert {file.location.rpartition("/")[2] for file in found.files} == {
        "snap-1001.avro", "m1.avro", "p1.parquet", "a1.avro"
    }  # fmt: skip
    assert found.orphans is None
    assert found.ok
    assert not found.complete
    assert verify_folder(t16, snapshots=["main"]).snapshots == (1003,)
    with pytest.raises(ValueError, match="snapshot 7 does not exist"):
        verify_folder(t16, snapshots=[7])


def test_progress_ends_with_the_bytes_of_all_files(t16: Path) -> None:
    seen: list[int] = []
    found = verify_folder(t16, progress=seen.append, jobs=1)
    assert seen == sorted(seen)
    assert seen[-1] == found.bytes == sum((t16 / name).stat().st_size for name in FILES)


# --- files that were altered ---------------------------------------------------------------------


@each_case("name", sorted(FILES))
def test_a_bit_flipped_anywhere_is_found_in_that_file(t16: Path, name: str) -> None:
    path = t16 / name
    whole = path.read_bytes()
    # Magic, block length, nonce, ciphertext and tag; of Parquet pages, footer, length and magic.
    for place in (0, 5, 9, 30, len(whole) // 2, len(whole) - 20, len(whole) - 6, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        found = verify_folder(t16)
        assert faulty_files(found) == {name}, place
        assert not found.ok
        assert not found.complete


@each_case("name", sorted(FILES))
def test_a_file_cut_short_too_long_empty_or_gone_is_found(t16: Path, name: str) -> None:
    path = t16 / name
    whole = path.read_bytes()
    for changed in (whole[:-1], whole[:-28], whole[:8], b"", whole + b"\0", whole + whole):
        path.write_bytes(changed)
        found = verify_folder(t16)
        assert faulty_files(found) == {name}
        assert words(found) <= {"truncation", "format"}
    path.unlink()
    found = verify_folder(t16)
    assert faulty_files(found) == {name}
    assert words(found) == {"file"}
    assert not found.complete


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("data/p1.parquet", "data/p2.parquet"),
        ("data/a1.avro", "data/a2.avro"),
        ("metadata/m1.avro", "metadata/m2.avro"),
        ("metadata/snap-1001.avro", "metadata/snap-1002.avro"),
    ],
)
def test_files_in_each_others_places_are_found(t16: Path, one: str, other: str) -> None:
    first, second = (t16 / one).read_bytes(), (t16 / other).read_bytes()
    (t16 / one).write_bytes(second)
    (t16 / other).write_bytes(first)
    assert faulty_files(verify_folder(t16)) >= {one, other}
    # One of the same length is found by its tags.
    size = len(first)
    (t16 / one).write_bytes((second + bytes(size))[: size - 1] + second[-1:])
    assert faulty_files(verify_folder(t16)) >= {one}


def test_plaintext_in_the_place_of_an_encrypted_file_is_found(t16: Path) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"id": range(50)}), out, compression="none")
    size = (t16 / "data/p1.parquet").stat().st_size
    plain = out.getvalue()
    (t16 / "data/p1.parquet").write_bytes(plain[: size - 8] + bytes(max(0, size - len(plain))))
    assert faulty_files(verify_folder(t16)) == {"data/p1.parquet"}
    manifest = avro_with([{"a": 1}])
    (t16 / "metadata/m1.avro").write_bytes((manifest + bytes(8000))[:8000])
    assert "metadata/m1.avro" in faulty_files(verify_folder(t16))


def avro_with(rows: list[dict[str, Any]]) -> bytes:
    fields = [{"name": "a", "type": "long"}]
    return builder.avro_file({"type": "record", "name": "r", "fields": fields}, rows)


# --- metadata.json that was altered --------------------------------------------------------------


drop_key = alter({"snapshots/1/key-id": GONE})
rows_of_avro = alter({"a/record_count": lambda count: count - 1})


def exchange_keys(d: dict[str, Any]) -> None:
    first, second = d["snapshots"][0], d["snapshots"][1]
    first["key-id"], second["key-id"] = second["key-id"], first["key-id"]


def alter_entry(d: dict[str, Any]) -> None:
    sealed = bytearray(base64.b64decode(d["encryption-keys"][2]["encrypted-key-metadata"]))
    sealed[20] ^= 1
    d["encryption-keys"][2]["encrypted-key-metadata"] = base64.b64encode(sealed).decode()


def use_older_list(d: dict[str, Any]) -> None:
    older, newer = d["snapshots"][1], d["snapshots"][2]
    newer["manifest-list"], newer["key-id"] = older["manifest-list"], older["key-id"]


def rename_snapshot(d: dict[str, Any]) -> None:
    d["snapshots"][2]["snapshot-id"] = d["current-snapshot-id"] = 1004
    d["refs"]["main"]["snapshot-id"] = 1004


def exchange_columns(d: dict[str, Any]) -> None:
    first, _, third = d["schemas"][0]["fields"]
    first["name"], third["name"] = third["name"], first["name"]


def exchange_ids(d: dict[str, Any]) -> None:
    first, second, _ = d["schemas"][0]["fields"]
    first["id"], second["id"] = second["id"], first["id"]


PARTITIONED = {"source-id": 1, "field-id": 1000, "name": "p", "transform": "bucket[4]"}
NESTED: Any = "long"
for _ in range(400):
    NESTED = {"type": "list", "element-id": 9, "element": NESTED, "element-required": False}


@each_case(
    ("change", "word"),
    [
        (exchange_columns, "integrity"),
        (alter({"schemas/0/fields/0/type": "timestamp"}), "integrity"),
        (exchange_ids, "integrity"),
        (alter({"partition-specs/0/fields": [PARTITIONED]}), "integrity"),
        (alter({"schemas/0/fields/0/type": NESTED}), "integrity"),
        (drop_key, "plaintext"),
        (alter({"encryption-keys/2": GONE}), "no-key"),
        (alter({"encryption-keys/0": GONE}), "no-key"),
        (exchange_keys, "truncation"),
        (alter_entry, "key-material"),
        (alter({"encryption-keys/0/properties/KEY_TIMESTAMP": "1795237555591"}), "key-material"),
        (alter({"encryption-keys/0/properties": GONE}), "key-material"),
        (alter({"encryption-keys/0/encrypted-by-id": "keyB"}), "key-material"),
        (use_older_list, "integrity"),
        (rename_snapshot, "integrity"),
        (alter({"snapshots/0/sequence-number": 2}), "integrity"),
        (alter({"snapshots/2/manifest-list": "file:///etc/passwd"}), "format"),
        (alter({"snapshots/2/manifest-list": "/warehouse/t16/../secret"}), "format"),
        (alter({"current-snapshot-id": 7}), "format"),
        (alter({"refs/old": {"snapshot-id": 999, "type": "tag"}}), "format"),
        (alter({"last-sequence-number": 2}), "integrity"),
    ],
)
def test_altered_table_metadata_is_found(t16: Path, change: Change, word: str) -> None:
    changed = document(t16)
    change(changed)
    put(t16, changed)
    found = verify_folder(t16)
    assert word in {finding.word for finding in faults(found)}
    assert not found.ok


def test_what_may_differ_in_a_schema_is_no_fault(t16: Path) -> None:
    changed = document(t16)
    changed["schemas"][0]["fields"][0]["doc"] = "the number"
    changed["schemas"][0]["identifier-field-ids"] = []
    newer = json.loads(json.dumps(changed["schemas"][0]))
    newer["schema-id"] = changed["current-schema-id"] = 1
    newer["fields"][0]["name"] = "number"
    changed["schemas"].append(newer)
    put(t16, changed)
    assert verify_folder(t16).findings == ()


@pytest.mark.parametrize(
    "member",
    [
        "refs",
        "schemas",
        "partition-specs",
        "statistics",
        "partition-statistics",
        "metadata-log",
        "snapshot-log",
    ],
)
def test_members_that_hold_anything_else_end_nothing(t16: Path, member: str) -> None:
    whole = document(t16)
    odd: Any
    for odd in (None, 5, "x", [5, None, {"snapshot-id": []}], {"a": 5, "b": {}}, [[]]):
        put(t16, {**whole, member: odd})
        found = verify_folder(t16)
        assert {finding.word for finding in found.findings} <= {"format"}
        assert found.tags == 35


def test_two_snapshots_of_one_id_are_found(t16: Path) -> None:
    changed = document(t16)
    changed["snapshots"].append(changed["snapshots"][0])
    put(t16, changed)
    assert any(
        "2 snapshots have the id 1001" in finding.message for finding in faults(verify_folder(t16))
    )


def test_an_altered_wrapped_kek_is_never_complete(t16: Path) -> None:
    """To a key service this looks like a refusal; what lies beneath is reported as not seen."""
    changed = document(t16)
    sealed = bytearray(base64.b64decode(changed["encryption-keys"][0]["encrypted-key-metadata"]))
    sealed[15] ^= 1
    changed["encryption-keys"][0]["encrypted-key-metadata"] = base64.b64encode(sealed).decode()
    put(t16, changed)
    found = verify_folder(t16)
    assert words(found) == {"denied"}
    assert not found.complete


def test_one_snapshot_that_fails_hides_no_other(t16: Path) -> None:
    changed = document(t16)
    drop_key(changed)
    put(t16, changed)
    (t16 / "data/a2.avro").write_bytes(b"AGS1")
    assert faulty_files(verify_folder(t16)) == {"metadata/snap-1002.avro", "data/a2.avro"}


def test_a_table_put_back_to_an_older_state_is_seen_by_who_remembers_alone(t16: Path) -> None:
    """The folder does not show it: what `verify_table` can't see, it says, and names the remedy."""
    older = document(t16)
    older["snapshots"] = older["snapshots"][:2]
    older["encryption-keys"] = older["encryption-keys"][:3]
    older["current-snapshot-id"] = older["refs"]["main"]["snapshot-id"] = 1002
    older["last-sequence-number"] = 2
    put(t16, older)
    for name in ("metadata/snap-1003.avro", "metadata/dm3.avro", "data/dv1.puffin"):
        (t16 / name).unlink()
    found = verify_folder(t16)
    assert found.complete
    (note,) = found.not_authenticated
    assert "at_least" in note.why
    with pytest.raises(IntegrityError, match="older state"):
        verify_folder(t16, at_least=3)


def test_an_older_state_whose_newer_files_are_left_is_warned_of(t16: Path) -> None:
    newer = document(t16)
    newer["last-sequence-number"] = 4
    put(t16, newer, "v2")
    opened = open_table(t16 / "metadata" / "v1.metadata.json", SampleKms(), location_map=both(t16))
    found = verify_table(opened)
    assert found.ok
    assert any("newer state" in finding.message for finding in found.findings)


# --- plaintext -----------------------------------------------------------------------------------


def test_a_table_made_plaintext_as_a_whole_is_not_opened(t16: Path) -> None:
    changed = document(t16)
    del changed["properties"]["encryption.key-id"], changed["encryption-keys"]
    for snapshot in changed["snapshots"]:
        del snapshot["key-id"]
    put(t16, changed)
    with pytest.raises(PlaintextError):
        verify_folder(t16)
    assert "no-key" in words(verify_folder(t16, require_encrypted=False))


def test_a_manifest_list_put_there_in_plaintext_is_a_fault_or_a_warning(t16: Path) -> None:
    changed = document(t16)
    path = t16 / "metadata/snap-1003.avro"
    path.write_bytes(open_ags1(path.read_bytes(), unwrap_entry(changed, key_of(changed, 1003))))
    drop_key_of(changed, 1003)
    put(t16, changed)
    assert faulty_files(verify_folder(t16)) == {"metadata/snap-1003.avro"}
    accepted = verify_folder(t16, require_encrypted=False)
    assert accepted.ok
    assert not accepted.complete
    warned = [finding for finding in accepted.findings if finding.word == "plaintext"]
    assert [finding.location for finding in warned] == ["/warehouse/t16/metadata/snap-1003.avro"]


def key_of(changed: dict[str, Any], snapshot: int) -> str:
    (found,) = (
        entry["key-id"] for entry in changed["snapshots"] if entry["snapshot-id"] == snapshot
    )
    return str(found)


def drop_key_of(changed: dict[str, Any], snapshot: int) -> None:
    for entry in changed["snapshots"]:
        if entry["snapshot-id"] == snapshot:
            del entry["key-id"]


def test_a_plaintext_table_is_looked_at_as_far_as_that_goes(tmp_path: Path) -> None:
    made = build_table(tmp_path, encrypted=False)
    found = verify_built(made, require_encrypted=False)
    assert found.findings == ()
    assert found.tags == 0
    assert not found.complete
    (tmp_path / "data" / "p.parquet").write_bytes(b"PAR1")
    assert not verify_built(made, require_encrypted=False).ok


# --- what writers do wrong -----------------------------------------------------------------------

SCHEMA = builder.struct(builder.field(1, "id", "long"))
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "id", "type": "long", "field-id": 1}],
}
ROWS = pa.table({"id": range(40)}, schema=pa.schema([id_field(1, "id", pa.int64())]))


def build_table(
    folder: Path, change: Any = None, *, rows: int = 10, codec: str = "null", **how: Any
) -> Builder:
    """Make a table of a Parquet file, an Avro file, and two deletion vectors in one file.

    Args:
        folder: of the table.
        change: gets the files by name, before they are put into manifests.
        rows: of the Avro file, about nine bytes each.
        codec: of the Avro file.
    """
    made = Builder(folder, SCHEMA, **how)
    numbers = [{"id": n << 40} for n in range(rows)]
    files = {
        "p": made.parquet("p.parquet", ROWS),
        "a": made.avro("a.avro", AVRO, numbers, codec=codec),
    }
    targets = [files[name]["file_path"] for name in "pa"]
    vectors = made.vectors("dv.puffin", {targets[0]: [1, 2, 3], targets[1]: [7]})
    files |= {"v": vectors[0], "w": vectors[1]}
    if change is not None:
        change(files)
    data, deletes = [files["p"], files["a"]], [files["v"], files["w"]]
    manifests = [
        made.manifest(data, added_rows_count=sum(file["record_count"] for file in data)),
        made.manifest(deletes, content=1, added_rows_count=4),
    ]
    made.snapshot(manifests)
    made.write()
    return made


def verify_built(made: Builder, **how: Any) -> TableVerification:
    opened = open_table(
        made.folder, SampleKms(), location_map={made.location: str(made.folder)}, **how
    )
    return verify_table(opened)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """A table with an Avro file of several blocks."""
    return build_table(tmp_path_factory.mktemp("blocks"), rows=250_000)


def test_a_table_of_the_builder_is_whole_but_for_what_its_lists_do_not_say(blocks: Builder) -> None:
    found = verify_built(blocks)
    assert found.findings == ()
    assert {part.what for part in found.not_authenticated} == {"table metadata", "snapshot"}
    (avro,) = (file for file in found.files if file.location.endswith("/a.avro"))
    size = (blocks.folder / "data" / "a.avro").stat().st_size
    assert avro.tags == -(-(size - 8) // ((1 << 20) + 28)) == 3


@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard", "snappy"])
def test_avro_files_are_whole_in_the_codecs_that_scans_read(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build_table(tmp_path / "whole", codec=codec)
    short = build_table(tmp_path / "short", rows_of_avro, codec=codec)
    for library in ("cramjam", "zstandard", "backports"):  # as where fastavro has no codecs
        monkeypatch.setitem(sys.modules, library, None)
    assert verify_built(made).findings == ()
    assert [finding.word for finding in faults(verify_built(short))] == ["truncation"]


def test_a_codec_that_scans_refuse_is_a_finding(tmp_path: Path) -> None:
    found = faults(verify_built(build_table(tmp_path, codec="bzip2")))
    assert [finding.word for finding in found] == ["unsupported"]


def test_a_stream_cut_at_a_border_of_blocks_or_with_blocks_moved_is_found(blocks: Builder) -> None:
    path = blocks.folder / "data" / "a.avro"
    whole, frame = path.read_bytes(), (1 << 20) + 28
    head, first, second, last = (
        whole[:8], whole[8 : 8 + frame], whole[8 + frame : 8 + 2 * frame], whole[8 + 2 * frame :]
    )  # fmt: skip
    cases = {
        "last block gone": head + first + second,
        "first block gone": head + second + last,
        "blocks exchanged": head + second + first + last,
        "block there twice": head + first + first + last,
        "cut in a nonce": whole[: 8 + frame + 5],
    }
    try:
        for name, changed in cases.items():
            path.write_bytes(changed)
            assert faulty_files(verify_built(blocks)) == {"data/a.avro"}, name
        damaged = bytearray(whole)
        damaged[100] ^= 1
        damaged[-1] ^= 1
        path.write_bytes(damaged)
        reported = " ".join(finding.message for finding in faults(verify_built(blocks)))
        assert "block 0" in reported  # a fault ends nothing: the last block is reported as well
        assert "block 2" in reported
    finally:
        path.write_bytes(whole)


def positions_of_vector(files: dict[str, Any]) -> None:
    files["v"]["record_count"] = 2
    files["w"]["record_count"] = 2


def list_twice(files: dict[str, Any]) -> None:
    files["a"] = {**files["p"], "key_metadata": builder.key_metadata(bytes(16), bytes(16), None)}


def two_sizes(files: dict[str, Any]) -> None:
    files["a"] = {**files["p"], "file_size_in_bytes": 99, "record_count": 3}


@each_case(
    ("change", "name", "word"),
    [
        (alter({"p/record_count": 41}), "p.parquet", "truncation"),
        (rows_of_avro, "a.avro", "truncation"),
        (alter({"p/file_size_in_bytes": lambda size: size + 1}), "p.parquet", "truncation"),
        (alter({"a/file_size_in_bytes": lambda size: size - 28}), "a.avro", "truncation"),
        (positions_of_vector, "dv.puffin", "format"),
        (alter({"v/content_offset": lambda offset: offset + 1}), "dv.puffin", "format"),
        (alter({"v/content_offset": 1 << 40}), "dv.puffin", "format"),
        (alter({"v/content_size_in_bytes": None}), "dv.puffin", "format"),
        (alter({"p/key_metadata": None}), "p.parquet", "plaintext"),
        (
            alter({"p/key_metadata": builder.key_metadata(os.urandom(16), os.urandom(16), None)}),
            "p.parquet",
            "tag",
        ),
        (alter({"p/key_metadata": b"\x02" + bytes(20)}), "p.parquet", "key-material"),
        (alter({"p/key_metadata": b"\x81\x00\x04lost" + bytes(80)}), "p.parquet", "no-key"),
        (alter({"p/file_path": "s3://elsewhere/p.parquet"}), "p.parquet", "format"),
        (list_twice, "p.parquet", "key-material"),
        (two_sizes, "p.parquet", "truncation"),
        (two_sizes, "p.parquet", "format"),
    ],
)
def test_entries_that_do_not_fit_their_files_are_found(
    tmp_path: Path, change: Any, name: str, word: str
) -> None:
    found = verify_built(build_table(tmp_path, change))
    reported = {
        (finding.location or "").rpartition("/")[2]
        for finding in faults(found)
        if finding.word == word
    }
    assert reported == {name}


def test_files_that_were_deleted_are_not_missed_and_are_counted(tmp_path: Path) -> None:
    made = Builder(tmp_path, SCHEMA)
    file, gone = made.parquet("p.parquet", ROWS), made.parquet("gone.parquet", ROWS)
    (tmp_path / "data" / "gone.parquet").unlink()
    rows = made.manifest(
        [file, {"status": 2, "data_file": gone}],
        added_files_count=1,
        added_rows_count=40,
        deleted_files_count=1,
        deleted_rows_count=40,
    )
    made.snapshot([rows])
    made.write()
    found = verify_built(made)
    assert found.findings == ()
    data = [listed.location for listed in found.files if listed.kind == "data"]
    assert [location.rpartition("/")[2] for location in data] == ["p.parquet"]


@pytest.mark.parametrize("name", ["p", "a"])
def test_an_encrypted_file_whose_key_was_left_out_is_no_plaintext_file(
    tmp_path: Path, name: str
) -> None:
    change = alter({f"{name}/key_metadata": None})
    found = verify_built(build_table(tmp_path, change), require_encrypted=False)
    assert [finding.word for finding in faults(found)] == ["no-key"]


def test_files_in_orc_are_warned_of(tmp_path: Path) -> None:
    found = verify_built(build_table(tmp_path, alter({"a/file_format": "ORC"})))
    assert [(finding.word, finding.severity) for finding in found.findings] == [
        ("unsupported", "warning")
    ]


def test_counts_of_a_manifest_that_its_list_gives_wrong_are_found(tmp_path: Path) -> None:
    made = Builder(tmp_path, SCHEMA)
    file = made.parquet("p.parquet", ROWS)
    right = made.manifest([file], added_rows_count=40)
    made.snapshot([{**right, "deleted_files_count": 1, "added_rows_count": 39}])
    made.write()
    reported = [finding.message for finding in faults(verify_built(made))]
    assert reported == [
        "it has 40 added rows, but the manifest list says 39",
        "it has 0 deleted files, but the manifest list says 1",
    ]


def test_lists_that_give_one_manifest_two_keys_are_found(tmp_path: Path) -> None:
    made = Builder(tmp_path, SCHEMA)
    row = made.manifest([made.parquet("p.parquet", ROWS)], added_rows_count=40)
    made.snapshot([row])
    made.snapshot([{**row, "key_metadata": builder.key_metadata(bytes(16), bytes(16), None)}])
    made.write()
    (reported,) = faults(verify_built(made))
    assert "different lengths or keys" in reported.message


class SameKeys(Builder):
    """Has one key or one AAD prefix for all that is sealed by AGS1."""

    key: bytes | None = None
    prefix: bytes | None = None

    def put(self, name: str, data: bytes) -> dict[str, Any]:
        key, prefix = self.key or os.urandom(16), self.prefix or os.urandom(16)
        stored = builder.ags1(data, key, prefix)
        (self.folder / name).write_bytes(stored)
        metadata = builder.key_metadata(key, prefix, len(stored))
        return {"path": f"{self.location}/{name}", "length": len(stored), "key": metadata}


def with_keys(folder: Path, key: bytes | None, prefix: bytes | None) -> TableVerification:
    made = SameKeys(folder, SCHEMA)
    made.key, made.prefix = key, prefix
    file = made.avro("a.avro", AVRO, [{"id": 1}])
    made.snapshot([made.manifest([file], added_rows_count=1)])
    made.write()
    return verify_built(made)


def test_keys_and_prefixes_that_files_share_are_found(tmp_path: Path) -> None:
    both_same = with_keys(tmp_path / "b", bytes(range(16)), bytes(16))
    (reported,) = both_same.findings
    assert (reported.word, reported.severity) == ("integrity", "fault")
    assert "3 files have the same key" in reported.message
    (reported,) = with_keys(tmp_path / "k", bytes(range(16)), None).findings
    assert (reported.word, reported.severity) == ("integrity", "warning")
    (reported,) = with_keys(tmp_path / "p", None, bytes(16)).findings
    assert (reported.word, reported.severity) == ("aad-prefix", "warning")


def test_a_kek_that_is_a_files_key_too_is_found(tmp_path: Path) -> None:
    made = SameKeys(tmp_path, SCHEMA)
    made.key = made.kek
    made.snapshot([made.manifest([made.avro("a.avro", AVRO, [{"id": 1}])], added_rows_count=1)])
    made.write()
    reported = [finding.message for finding in faults(verify_built(made))]
    assert reported.count("its key is the KEK kek") == 3


# --- keys ----------------------------------------------------------------------------------------


def add_kek(folder: Path, *, age_days: int = 0, master: str = "keyA", name: str = "old") -> None:
    changed = document(folder)
    now = max(int(snapshot["timestamp-ms"]) for snapshot in changed["snapshots"])
    wrapped = builder.seal(MASTERS[master], os.urandom(16), None)
    changed["encryption-keys"].append(
        {
            "key-id": name,
            "encrypted-key-metadata": base64.b64encode(wrapped).decode(),
            "encrypted-by-id": master,
            "properties": {"KEY_TIMESTAMP": str(now - age_days * DAY_MS)},
        }
    )
    put(folder, changed)


def test_old_and_unused_keys_are_warned_of(t16: Path) -> None:
    add_kek(t16, age_days=800)
    found = verify_folder(t16)
    assert found.ok
    assert found.unused_keys == ("old",)
    age, unused = (finding.message for finding in found.findings)
    assert "is 800 days old" in age
    assert "730" in age
    assert "prune_keys drops them: old" in unused


def test_entries_of_snapshots_that_are_gone_are_unused(t16: Path) -> None:
    changed = document(t16)
    gone = changed["snapshots"].pop(0)
    put(t16, changed)
    found = verify_folder(t16)
    assert found.unused_keys == (gone["key-id"],)
    assert [orphan.path for orphan in found.orphans or ()] == [
        str(t16 / "metadata" / "snap-1001.avro")
    ]


def test_a_kek_of_the_future_is_warned_of(t16: Path) -> None:
    add_kek(t16, age_days=-400)
    assert any("days in the future" in finding.message for finding in verify_folder(t16).findings)


def test_a_kek_under_another_master_key_is_a_fault_as_java_fails(t16: Path) -> None:
    add_kek(t16, master="keyB", name="foreign")
    assert any(
        "foreign" in finding.message and "keyB" in finding.message
        for finding in faults(verify_folder(t16))
    )


def test_so_it_is_where_the_reader_expects_both_master_keys(t16: Path) -> None:
    add_kek(t16, master="keyB", name="foreign")
    opened = open_table(t16, SampleKms(), location_map=both(t16))
    opened.walk.resolver.master_key_ids = frozenset(("keyA", "keyB"))
    (reported,) = faults(verify_table(opened))
    assert "Iceberg's Java" in reported.message


class Refusing(SampleKms):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        self.calls.append(("unwrap", master_key_id))
        raise self._error


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (PermissionError(), "denied"),
        (ConnectionError(), "unavailable"),
        (LookupError(), "no-key"),
        (RuntimeError("secret"), "key"),
    ],
)
def test_a_refusal_of_the_key_service_is_no_fault_of_the_table(
    t16: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, word: str
) -> None:
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", "0")
    kms = Refusing(error)
    found = verify_folder(t16, kms)
    assert [(finding.word, finding.severity) for finding in found.findings] == [(word, "warning")]
    assert found.ok
    assert not found.complete
    assert found.orphans is None
    assert len(kms.calls) == 1  # not for every snapshot again
    assert "secret" not in json.dumps(found.fields())


def test_of_a_service_that_is_away_not_every_kek_is_asked_for(
    t16: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", "0")
    for number in range(3):
        add_kek(t16, name=f"kek-{number}")
    kms = Refusing(TimeoutError())
    found = verify_folder(t16, kms, jobs=1)
    assert len([finding for finding in found.findings if finding.word == "unavailable"]) == 4
    assert len(kms.calls) == 1  # for the first


def test_a_service_that_goes_away_is_not_asked_for_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", "0")
    policy = KeyPolicy(wrapping="single")
    schema = pa.schema([("id", pa.int64())])
    made = make_table(str(tmp_path), schema, properties=policy.properties())
    for start in range(4):
        made = append(made, pa.table({"id": [start]}))
    kms = Refusing(ConnectionError())
    found = verify_table(open_table(tmp_path, kms), jobs=1)
    assert [(finding.word, finding.severity) for finding in found.findings] == [
        ("unavailable", "warning")
    ]
    assert len(kms.calls) == 1  # for the first of four manifest lists
    assert len([part for part in found.not_authenticated if part.what == "file"]) == 4
    assert not found.complete


# --- what else is in the folder ------------------------------------------------------------------


def test_orphans_and_leftovers_are_reported_with_their_ages(t16: Path) -> None:
    stray, left = t16 / "data" / "stray.avro", t16 / "data" / f".modcrypt-{'0a' * 8}.tmp"
    shutil.copy(t16 / "data" / "a1.avro", stray)
    left.write_bytes(b"half")
    pq.write_table(pa.table({"ssn": ["1"]}), t16 / "leak.parquet")
    os.utime(stray, (1_700_000_000, 1_700_000_000))
    for beside in ("data/.a1.avro.crc", "metadata/version-hint.text"):
        (t16 / beside).write_bytes(b"crc")
    (t16 / "data" / ".gone.avro.crc").write_bytes(b"crc")
    found = verify_folder(t16)
    assert not found.ok
    reported = {Path(orphan.path).name: orphan for orphan in found.orphans or ()}
    assert set(reported) == {"stray.avro", left.name, "leak.parquet", ".gone.avro.crc"}
    assert reported["stray.avro"].state == "encrypted"
    assert (reported["stray.avro"].age_days or 0) > 300
    assert reported[left.name].temporary
    assert reported["leak.parquet"].state == "plaintext"
    (leak,) = (finding for finding in found.findings if finding.word == "plaintext")
    assert (leak.severity, "leak.parquet" in leak.message) == ("fault", True)
    words = [finding.word for finding in found.findings]
    assert (words.count("orphan"), words.count("unreached")) == (2, 1)


def test_orphans_are_not_guessed_where_a_manifest_could_not_be_read(t16: Path) -> None:
    (t16 / "metadata" / "m2.avro").write_bytes(b"AGS1")
    found = verify_folder(t16)
    assert found.orphans is None
    assert "orphans" in {part.what for part in found.not_authenticated}


def test_files_reached_by_links_are_no_orphans(t16: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(t16)
    found = open_table(link, SampleKms(), location_map=both(link))
    assert verify_table(found).orphans == ()


def test_older_metadata_that_keeps_old_keys_is_warned_of(t16: Path) -> None:
    """A rotation of the master key leaves the same KEK under the old key."""
    rotated = document(t16)
    entry = rotated["encryption-keys"][0]
    old = base64.b64decode(entry["encrypted-key-metadata"])
    kek = SampleKms().unwrap(base64.b64encode(old).decode(), "keyA")
    wrapped = builder.seal(MASTERS["keyB"], kek, None)
    entry["encrypted-key-metadata"] = base64.b64encode(wrapped).decode()
    entry["encrypted-by-id"] = rotated["properties"]["encryption.key-id"] = "keyB"
    rotated["metadata-log"] = [
        {"timestamp-ms": 1, "metadata-file": "wh:/t16/metadata/v0.metadata.json"},
        {"timestamp-ms": 2, "metadata-file": "wh:/t16/metadata/v1.metadata.json"},
    ]
    put(t16, rotated, "v2")
    found = verify_folder(t16)
    assert found.complete
    kept, missing = sorted(found.findings, key=lambda finding: finding.word, reverse=True)
    assert "v1.metadata.json" in kept.message
    assert "expire_history" in kept.message
    assert "v0.metadata.json" in missing.message
    (t16 / "metadata" / "v1.metadata.json").write_text("{}")
    assert "format" in words(verify_folder(t16))


def test_statistics_are_reported_as_plaintext_and_are_no_orphans(t16: Path) -> None:
    changed = document(t16)
    (t16 / "metadata" / "stats.puffin").write_bytes(b"PFA1")
    changed["statistics"] = [{"statistics-path": "wh:/t16/metadata/stats.puffin"}]
    put(t16, changed)
    found = verify_folder(t16)
    assert found.orphans == ()
    assert found.complete
    assert "statistics" in {part.what for part in found.not_authenticated}


def test_files_kept_elsewhere_are_verified_and_orphans_there_are_not_looked_for(
    tmp_path: Path,
) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    made = Builder(inside, SCHEMA)
    file = made.parquet("p.parquet", ROWS)
    outside.mkdir()
    shutil.move(inside / "data" / "p.parquet", outside / "p.parquet")
    shutil.copy(outside / "p.parquet", outside / "stray.parquet")
    file["file_path"] = "s3://lake/p.parquet"
    made.snapshot([made.manifest([file], added_rows_count=40)])
    made.write()
    folders = {made.location: str(inside), "s3://lake": str(outside)}
    found = verify_table(open_table(inside, SampleKms(), location_map=folders))
    assert found.findings == ()
    assert found.orphans == ()
    assert "orphans" in {part.what for part in found.not_authenticated}


# --- a table of Java's in many shapes ------------------------------------------------------------


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A copy of the table that Iceberg's Java wrote, see `java_vector`."""
    source = ROOT / "spec-vectors" / "by-writer" / "iceberg-java" / "people"
    return Path(shutil.copytree(source, tmp_path / "people"))


def verify_people(folder: Path) -> TableVerification:
    return verify_table(open_table(folder, SampleKms(), location_map={LOCATION: str(folder)}))


def test_javas_deletes_partitions_and_changed_schemas_are_whole(people: Path) -> None:
    """Snapshots reach every file on disk but metadata.json; Java leaves unused keys."""
    found = verify_people(people)
    stored = {str(path.relative_to(people)) for path in people.rglob("*.*") if path.is_file()}
    reached = {file.location.removeprefix(LOCATION + "/") for file in found.files}
    assert {path for path in stored if not path.endswith(".json")} == reached
    assert found.ok
    assert found.complete
    assert found.orphans == ()
    assert found.unused_keys
    assert sorted(kek.age_days >= 730 for kek in found.keks) == [False, True]


def test_a_bit_flipped_in_any_of_its_files_is_found(people: Path) -> None:
    for path in sorted(people.rglob("*.*")):
        if not path.is_file() or path.suffix == ".json":
            continue
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[len(whole) // 3] ^= 1
        path.write_bytes(damaged)
        reported = {finding.location for finding in faults(verify_people(people))}
        path.write_bytes(whole)
        assert reported == {f"{LOCATION}/{path.relative_to(people)}"}


# --- tables that modcrypt writes -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "keks"),
    [
        (KeyPolicy(), 1),
        (KeyPolicy(kek_per="files", files=1), 4),
        (KeyPolicy(kek_per="files", files=1, store="key-store"), 4),
        (KeyPolicy(wrapping="single"), 0),
        (KeyPolicy(wrapping="single", kek_per="files"), 0),
    ],
)
def test_tables_under_each_policy_are_whole_and_their_damage_is_found(
    tmp_path: Path, policy: KeyPolicy, keks: int
) -> None:
    kms, store = SampleKms(), FileKeyStore.create(tmp_path / "keks.json")
    made = make_table(
        str(tmp_path / "t"), pa.schema([("id", pa.int64())]), kms, properties=policy.properties()
    )
    made = open_table(tmp_path / "t", kms, key_store=store)
    for start in (0, 10, 20):
        made = append(made, pa.table({"id": range(start, start + 10)}))
    opened = open_table(tmp_path / "t", kms, key_store=store)
    kms.calls.clear()
    found = verify_table(opened)
    assert found.findings == ()
    assert found.complete
    assert [kek.opened for kek in found.keks] == [True] * keks
    assert {kek.store for kek in found.keks} <= {policy.store.replace("-", " ")}
    if keks:
        assert kms.calls == [("unwrap", "keyA")] * keks
    data = next(file for file in found.files if file.kind == "data")
    path = Path(opened.walk.place(data.location).path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    assert {finding.location for finding in faults(verify_table(opened))} == {data.location}
    (tmp_path / "keks.json").unlink()
    lost = verify_table(open_table(tmp_path / "t", kms, key_store=store))
    assert any(finding.location == "the key store" for finding in lost.findings)
    if policy.store == "key-store":
        assert not lost.complete


# --- what comes out ------------------------------------------------------------------------------


def secrets_of(folder: Path) -> list[bytes]:
    """Return every plain key of the table, by Java's own listing, and the KEK."""
    reported = (shared_vectors() / "iceberg-table" / "t16.java-read.txt").read_text()
    keys = [bytes.fromhex(metadata)[2:18] for metadata in re.findall(r"0120[0-9a-f]{32}", reported)]
    entry = document(folder)["encryption-keys"][0]["encrypted-key-metadata"]
    return [*keys, SampleKms().unwrap(entry, "keyA"), *MASTERS.values()]


def test_no_key_comes_out(t16: Path, table: IcebergTable) -> None:
    (t16 / "data" / "p1.parquet").write_bytes(b"PAR1")
    found = verify_table(table)
    out = json.dumps(found.fields()) + render_html(found) + repr(found)
    kept = pickle.dumps(found)
    keys = secrets_of(t16)
    assert len(keys) > 12
    for key in keys:
        assert key not in kept
        for spelt in (key.hex(), base64.b64encode(key).decode(), repr(key)[2:-1]):
            assert spelt not in out


def test_hostile_names_are_only_ever_text_on_the_page(t16: Path) -> None:
    evil = ("</script><script>alert(1)</script><img src=x>", "a\x00\x1b[31m\u202ecba", "\ud800")
    found = verify_folder(t16)
    findings = tuple(
        TableFinding(word=text, message=text, severity="fault", location=text) for text in evil
    )
    files = tuple(replace(file, location=evil[0], kind=evil[1]) for file in found.files)
    keks = tuple(replace(kek, id=evil[0], scope=evil[1]) for kek in found.keks)
    page = render_html(
        replace(found, location=evil[1], uuid=evil[0], findings=findings, files=files, keks=keks)
    )
    page.encode()
    assert not [c for c in set(page) if not c.isprintable() and c != "\n"]
    assert "<img" not in page
    assert page.count("<script") == 1  # its own
    assert "default-src 'none'" in page


def test_a_table_in_a_store_is_verified_and_its_orphans_are_found(t16: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(t16), "/warehouse/t16", recursive=True)
    store.pipe("/warehouse/t16/data/stray.avro", b"AGS1....")
    try:
        opened = open_table(
            "/warehouse/t16",
            SampleKms(),
            location_map={"/warehouse/t16": "/warehouse/t16", "wh:/t16": "/warehouse/t16"},
            filesystem=store,
        )
        found = verify_table(opened)
        assert found.complete
        assert [(orphan.path, orphan.state) for orphan in found.orphans or ()] == [
            ("/warehouse/t16/data/stray.avro", "encrypted")
        ]
    finally:
        store.rm("/warehouse", recursive=True)


def test_the_first_fault_is_raised_as_reading_would(t16: Path) -> None:
    verify_folder(t16).raise_for_faults()
    (t16 / "data" / "a1.avro").unlink()
    with pytest.raises(OSError, match="could not be read"):
        verify_folder(t16).raise_for_faults()


@pytest.mark.parametrize("damaged", [False, True])
def test_the_page_says_that_everything_is_authenticated_or_what_is_not(
    t16: Path, damaged: bool
) -> None:
    """What Iceberg never authenticates is reported once, folded."""
    if damaged:
        (t16 / "data/p1.parquet").unlink()
    found = verify_folder(t16)
    page = render_html(found)
    assert found.complete is not damaged
    assert ("Everything authenticated</span>" in page) is not damaged
    assert ("<h2>Not authenticated</h2>" in page) is damaged
    assert page.count("Not authenticated") == damaged
    folded = page.index("<details><summary>Limits of the format</summary>")
    assert page.index("metadata.json is not signed") > folded
    assert {*found.gaps, *found.limits} == {*found.not_authenticated}
