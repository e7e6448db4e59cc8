"""Values of encrypted columns beside the files: every kind is found, and no value is repeated."""

from __future__ import annotations

import doctest
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.jobs.leaks import scan
from modcrypt.jobs.leaks.exposure import REMEDIES

TABLE = pa.table({"id": [1, 2], "ssn": ["111-SECRET", "222-SECRET"]})
POLICY = mc.Policy(
    footer_key="footer", column_keys={"pii": ["ssn"]}, plaintext_columns=["id"],
    plaintext_footer=True,
)  # fmt: skip
HIDDEN = mc.Policy(footer_key="footer", column_keys={"pii": ["ssn"]})


def encryption(*, plaintext_footer: bool = True) -> mc.FileEncryptionProperties:
    return mc.FileEncryptionProperties(
        footer_key=mc.Key.generate(), column_keys={"ssn": mc.Key.generate()},
        plaintext_columns=["id"], plaintext_footer=plaintext_footer,
    )  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    mc.write_table(TABLE, folder / "part.parquet", encryption())
    return folder


def kinds(where: object, *more: Any, **how: Any) -> dict[str, tuple[str, ...]]:
    report = mc.jobs.find_leaks(where, *more, **how)
    assert "SECRET" not in repr(report.fields())
    return {leak.kind: leak.columns for leak in report.leaks}


def write(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def write_parquet(path: Path, table: pa.Table = TABLE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def write_orc(path: Path) -> None:
    orc.write_table(TABLE, path)


def write_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, TABLE.schema) as stream:
        stream.write_table(TABLE)


def write_summary(path: Path) -> None:
    collected: list[pq.FileMetaData] = []
    other = path.parent / "plain.parquet"
    pq.write_table(TABLE, other, metadata_collector=collected)
    other.unlink()
    collected[0].set_file_path("plain.parquet")
    pq.write_metadata(TABLE.schema, path, metadata_collector=collected)


ADD = {"add": {"stats": json.dumps({"minValues": {"ssn": "111-SECRET"}}), "partitionValues": {}}}


def avro(*fields: str, rows: bytes = b"") -> bytes:
    """Return an Avro file with a record of texts, whose header has a second member."""
    members = [{"name": name, "type": "string"} for name in fields]
    schema = json.dumps({"type": "record", "name": "SECRET", "fields": members}).encode()
    pairs = ((b"note", b'{"name":"SECRET"}'), (b"avro.schema", schema))
    header = b"".join(encode_long(len(text)) + text for pair in pairs for text in pair)
    return b"Obj\x01" + encode_long(len(pairs)) + header + b"\0" + bytes(16) + rows


def encode_long(number: int) -> bytes:
    number *= 2
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


PUFFIN_FOOTER = json.dumps({"blobs": [{"type": "apache-datasketches-theta-v1"}]}).encode()


def puffin(footer: bytes) -> bytes:
    return b"PFA1xxxxPFA1" + footer + struct.pack("<II", len(footer), 0) + b"PFA1"


def metadata(summary: dict[str, str]) -> str:
    return json.dumps({"snapshots": [{"summary": summary}]})


def gzip(text: str) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(text.encode()) + packer.flush()


PARTITIONS = metadata({"partitions.ssn=111-SECRET": "added-files=1"})
CASES: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "summary": ("_metadata", "parquet-summary", write_summary),
    "copy": (".old/part.parquet", "plaintext-parquet", write_parquet),
    "renamed copy": ("notes.txt", "plaintext-parquet", write_parquet),
    "temporary": ("_temporary/0/x", "plaintext-parquet", write_parquet),
    "cut off": ("x.parquet", "plaintext-parquet", lambda p: write(p, b"PAR1" + bytes(90))),
    "cut off, encrypted": ("x.parquet", "unread", lambda p: write(p, b"PARE" + bytes(90))),
    "orc": ("x.orc", "plaintext-data", write_orc),
    "csv": ("x.csv", "plaintext-data", lambda p: write(p, "ssn,id\n111-SECRET,1\n")),
    "csv without names": ("x.csv", "plaintext-data", lambda p: write(p, "111-SECRET,1\n")),
    "packed csv": ("x.csv.gz", "plaintext-data", lambda p: write(p, b"\x1f\x8b")),
    "packed by its magic": ("dump", "plaintext-data", lambda p: write(p, gzip("ssn"))),
    "numbered csv": ("x.csv.1", "plaintext-data", lambda p: write(p, "ssn\n111-SECRET\n")),
    "text": ("x.txt", "plaintext-data", lambda p: write(p, "ssn\n111-SECRET\n")),
    "text without names": ("x.dat", "plaintext-data", lambda p: write(p, "1,SECRET\n2,SECRET\n")),
    "json by its form": ("x.txt", "plaintext-data", lambda p: write(p, '{"ssn": "111-SECRET"}')),
    "Hadoop's text": ("part-00000", "plaintext-data", lambda p: write(p, "111-SECRET\n")),
    "json with escapes": (
        "x.json", "plaintext-data", lambda p: write(p, '{"s\\u0073n": "111-SECRET"}')
    ),
    "json in UTF-16": (
        "x.json", "plaintext-data", lambda p: write(p, '{"ssn": "SECRET"}'.encode("utf-16"))
    ),
    "json": ("x.json", "plaintext-data", lambda p: write(p, '[{"ssn": "111-SECRET"}]')),
    "delta": ("_delta_log/00.json", "delta-log", lambda p: write(p, json.dumps(ADD))),
    "delta predicate": (
        "_delta_log/00.json", "delta-log",
        lambda p: write(p, json.dumps({"commitInfo": {"predicate": "ssn = '111-SECRET'"}})),
    ),
    "delta checkpoint": (
        "_delta_log/00.checkpoint.parquet", "delta-log",
        lambda p: write_parquet(p, pa.table({"add": [{"stats": "111-SECRET"}]})),
    ),
    "delta damaged": ("_delta_log/00.json", "delta-log", lambda p: write(p, '{"a":')),
    "delta deep": ("_delta_log/00.json", "delta-log", lambda p: write(p, "[" * 200_000)),
    "hudi": (".hoodie/metadata/x.hfile", "hudi-timeline", lambda p: write(p, "111-SECRET")),
    "manifest": ("metadata/m0.avro", "iceberg-manifest", lambda p: write(p, avro("data_file"))),
    "iceberg": ("metadata/v1.metadata.json", "iceberg-metadata", lambda p: write(p, PARTITIONS)),
    "packed iceberg": (
        "metadata/1.gz.metadata.json", "iceberg-metadata", lambda p: write(p, gzip(PARTITIONS))
    ),
    "puffin": ("metadata/s.stats", "puffin", lambda p: write(p, puffin(PUFFIN_FOOTER))),
    "puffin, cut off": ("metadata/s.stats", "puffin", lambda p: write(p, b"PFA1x")),
    "event log": ("app", "event-log", lambda p: write(p, '{"Event":"SparkListenerLogStart"}')),
    "event log, packed": ("local-1700.zstd", "event-log", lambda p: write(p, b"x")),
    "swap": (".part.parquet.swp", "leftover", lambda p: write(p, b"b0VIM 9")),
    "backup": ("people~", "leftover", lambda p: write(p, "111-SECRET")),
    "checksum": (".part.parquet.crc", "stale-checksum", lambda p: write(p, b"crc\0" + bytes(8))),
    "escaped partition": ("%73sn=111-SECRET/x", "partition-path", lambda p: write(p, b"")),
    "partition": ("ssn=111-SECRET/x", "partition-path", lambda p: write(p, b"")),
    "empty partition": ("ssn=111-SECRET", "partition-path", lambda p: p.mkdir()),
    "sink log": (
        "_spark_metadata/0", "partition-path",
        lambda p: write(p, 'v1\n{"path":"file:/lake/ssn=111-SECRET/x.parquet"}\n'),
    ),
    "delta merge": (
        "_delta_log/00.json", "delta-log",
        lambda p: write(p, json.dumps({"notMatchedBySourcePredicates": "ssn = '111-SECRET'"})),
    ),
    "copy with names in another case": (
        "x.parquet", "plaintext-parquet",
        lambda p: write_parquet(p, TABLE.rename_columns(["id", "SSN"])),
    ),
    "arrow stream": ("x.arrows", "plaintext-data", write_stream),
    "gedit": (".goutputstream-ABC123", "leftover", lambda p: write(p, "111-SECRET")),
    "deleted on NFS": (".nfs00000000abcdef0000000001", "leftover", lambda p: write(p, "SECRET")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("policy", [None, POLICY, HIDDEN], ids=["files", "policy", "hidden"])
def test_each_kind_is_found(lake: Path, case: str, policy: mc.Policy | None) -> None:
    name, kind, make = CASES[case]
    (lake / name).parent.mkdir(parents=True, exist_ok=True)
    make(lake / name)
    found = kinds(lake, policy)
    assert kind in found
    assert kind in REMEDIES
    assert {name.lower() for name in found[kind]} <= {"ssn", "id"}


HARMLESS: dict[str, tuple[str, bytes]] = {
    "empty": ("_SUCCESS", b""),
    "json of other columns": ("x.json", b'{"id": 1}'),
    "prose": ("README.txt", b"Hello,\nthe files are encrypted, all of them.\n"),
    "notes": (".part.parquet.crc", b"notes of another program"),
    "deletion vector": ("x.puffin", puffin(b'{"blobs": [{"type": "deletion-vector-v1"}]}')),
    "delta without values": ("_delta_log/0.json", b'{"commitInfo": {"operation": "WRITE"}}'),
    "delta of other columns": (
        "_delta_log/0.json", json.dumps({"add": {"partitionValues": {"id": "1"}}}).encode()
    ),
    "delta, all rows deleted": ("_delta_log/0.json", b'{"predicate": "[\\"true\\"]"}'),
    "hudi's settings": (".hoodie/hoodie.properties", b"hoodie.table.name=x"),
    "other partition": ("id=1/x", b""),
    "key material": ("_KEY_MATERIAL_FOR_x.parquet.json", b'{"ssn": ""}'),
    "iceberg": ("metadata/v1.metadata.json", metadata({"added-files": "1"}).encode()),
}  # fmt: skip


@pytest.mark.parametrize("case", HARMLESS)
@pytest.mark.parametrize("policy", [None, POLICY], ids=["files", "policy"])
def test_other_files_are_not_reported(lake: Path, case: str, policy: mc.Policy | None) -> None:
    name, data = HARMLESS[case]
    write(lake / name, data)
    assert mc.jobs.find_leaks(lake, policy).ok


def test_the_schema_counts_where_footers_are_encrypted(lake: Path) -> None:
    pq.write_metadata(TABLE.schema, lake / "_common_metadata")
    assert not kinds(lake)
    mc.write_table(TABLE, lake / "hidden.parquet", encryption(plaintext_footer=False))
    assert kinds(lake) == {"parquet-summary": ()}


def test_a_plaintext_file_that_belongs_to_the_dataset_is_found(lake: Path) -> None:
    write_parquet(lake / "x.parquet")
    assert kinds(lake) == {"plaintext-parquet": ("ssn",)}


def test_a_checksum_that_fits_is_no_leak(lake: Path) -> None:
    data = (lake / "part.parquet").read_bytes()
    sums = [zlib.crc32(data[at : at + 512]) for at in range(0, len(data), 512)]
    fitting = b"crc\0" + struct.pack(">I", 512) + b"".join(struct.pack(">I", one) for one in sums)
    write(lake / ".part.parquet.crc", fitting)
    assert mc.jobs.find_leaks(lake).ok
    write(lake / ".part.parquet.crc", fitting[:-1] + b"\0\1")
    assert kinds(lake) == {"stale-checksum": ()}


def test_names_of_avro_come_from_fields_of_the_schema_only(lake: Path) -> None:
    write(lake / "x.avro", avro("ssn", rows=b'{"name": "VALUE-SECRET"}'))
    policy = mc.Policy(footer_key="footer", plaintext_columns=["id"], plaintext_footer=True)
    assert kinds(lake, policy) == {"plaintext-data": ("ssn",)}


@pytest.mark.parametrize(
    "data",
    [
        b"Obj\x01",
        b"Obj\x01" + b"\xff" * 20,
        b"Obj\x01\x02\xfe\xff\xff\xff\x0f",
        b"Obj\x01\x01\x01" * 100,
        avro("ssn").replace(b'"string"', b"[" * 8),
        avro(*["f" * 100] * 20_000),
    ],
)
def test_malformed_avro_is_a_leak_without_names(lake: Path, data: bytes) -> None:
    write(lake / "x.avro", data)
    assert kinds(lake) == {"plaintext-data": ()}


def test_a_policy_covers_partitions_except_those_in_plaintext(tmp_path: Path) -> None:
    for folder in ("ssn=1", "a%3Ab=1", "ID=1"):
        write(tmp_path / folder / "x", b"")
    policy = mc.Policy(footer_key="footer", plaintext_columns=["id"])
    leaks = {leak.path: leak.columns for leak in mc.jobs.find_leaks(tmp_path, policy).leaks}
    expected = {"ssn=*": ("ssn",), "a%3Ab=*": ("a:b",)}
    assert leaks == {str(tmp_path / path): columns for path, columns in expected.items()}
    settings = mc.Settings(policy=policy, kms="env:X")
    assert not scan.find_leak_faults([str(tmp_path)], settings)


@pytest.mark.parametrize("inside", ["_delta_log", "_delta_log/00.json", ".hoodie"])
def test_a_part_of_a_table_log_is_recognised(
    lake: Path, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(lake / "_delta_log/00.json", json.dumps(ADD))
    write(lake / ".hoodie/1.commit", "111-SECRET")
    (found,) = kinds(lake / inside, POLICY)
    assert found == ("hudi-timeline" if inside == ".hoodie" else "delta-log")
    monkeypatch.chdir(lake / "_delta_log")
    assert kinds("00.json", POLICY) == {"delta-log": ("ssn",)}


def test_many_files_of_a_log_are_one_leak(lake: Path) -> None:
    for number in range(20):
        write(lake / f"_delta_log/{number:020}.json", json.dumps(ADD))
        write(lake / f"year={number}/ssn={number}-SECRET/x", b"")
    leaks = {leak.path: leak.files for leak in mc.jobs.find_leaks(lake).leaks}
    assert leaks == {str(lake / "_delta_log"): 20, str(lake / "year=*/ssn=*"): 20}


def test_links_out_of_the_folder_are_not_followed_but_reported(lake: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "elsewhere/x.parquet")
    (lake / "linked").symlink_to(tmp_path / "elsewhere")
    (lake / "around").symlink_to(lake)
    (lake / "nowhere").symlink_to(tmp_path / "nothing")
    (leak,) = mc.jobs.find_leaks(lake).leaks
    assert (leak.kind, leak.path) == ("unread", str(lake / "linked"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_do_not_block(lake: Path) -> None:
    os.mkfifo(lake / "x.csv")
    assert mc.jobs.find_leaks(lake).ok


def test_what_is_too_large_is_reported_unread(lake: Path) -> None:
    write(lake / "_delta_log/0.json", b"")
    os.truncate(lake / "_delta_log/0.json", 1 << 30)
    assert kinds(lake) == {"delta-log": ()}


def test_packed_metadata_cannot_fill_the_memory(lake: Path) -> None:
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(100)) + packer.flush()
    write(lake / "metadata/1.gz.metadata.json", bomb)
    assert kinds(lake) == {"unread": ()}


def test_a_folder_of_too_many_files_is_refused(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_FILES", 1)
    write(lake / "x", b"")
    with pytest.raises(mc.errors.LimitError, match="more than 1 files"):
        mc.jobs.find_leaks(lake)


def test_nothing_is_secret_without_encrypted_files_or_a_policy(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="pass a policy"):
        mc.jobs.find_leaks(tmp_path)
    assert kinds(tmp_path, mc.Settings(policy=POLICY, kms="env:X")) == {
        "plaintext-parquet": ("ssn",)
    }


def test_empty_folders_are_not_files(tmp_path: Path) -> None:
    (tmp_path / "lake/a/b").mkdir(parents=True)
    assert mc.jobs.find_leaks(tmp_path / "lake", POLICY).files == 0
    assert mc.jobs.find_leaks(tmp_path / "lake/a/b", POLICY).files == 0


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mc.jobs.find_leaks(tmp_path / "nothing", POLICY)


def test_folders_in_stores_are_searched(lake: Path) -> None:
    write(lake / "_delta_log/0.json", json.dumps(ADD))
    memory = fsspec.filesystem("memory")
    memory.put(str(lake), "/leaks-lake", recursive=True)
    try:
        assert kinds("memory://leaks-lake") == {"delta-log": ("ssn",)}
        arrow = pafs.PyFileSystem(pafs.FSSpecHandler(memory))
        assert kinds("/leaks-lake", filesystem=arrow) == {"delta-log": ("ssn",)}
        with pytest.raises(FileNotFoundError):
            mc.jobs.find_leaks("memory://nothing-there", POLICY)
    finally:
        memory.rm("/leaks-lake", recursive=True)


def test_groups_and_leaves_cover_each_other(tmp_path: Path) -> None:
    policy = mc.Policy(footer_key="f", column_keys={"pii": ["address"]}, plaintext_footer=True)
    stats = {"minValues": {"address": {"zip": "1"}, "plain": 1}}
    write(tmp_path / "_delta_log/0.json", json.dumps({"add": {"stats": json.dumps(stats)}}))
    assert kinds(tmp_path, policy)["delta-log"] == ("address.zip", "plain")
    leaf = mc.Policy(
        footer_key="f", column_keys={"pii": ["address.zip"]}, plaintext_columns=["plain"],
        plaintext_footer=True,
    )  # fmt: skip
    assert kinds(tmp_path, leaf)["delta-log"] == ("address.zip",)


def test_the_example_of_the_docstring_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (test,) = doctest.DocTestFinder(recurse=False).find(mc.jobs.find_leaks, "find_leaks", globs={})
    assert doctest.DocTestRunner().run(test).failed == 0
