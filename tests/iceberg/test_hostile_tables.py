"""Tables that somebody has tampered with: an error of modcrypt's own, or the right rows."""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import itertools
import json
import random
import re
import shutil
import struct as packing
import subprocess
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modcrypt import FileEncryptionProperties, ModcryptError, encrypt_parquet
from modcrypt.errors import (
    FormatError,
    IntegrityError,
    KeyRetrievalError,
    LimitError,
    PlaintextError,
    TagMismatchError,
    TruncationError,
    UnsupportedFormatError,
)
from modcrypt.iceberg import create_table, expire_history, open_table, prune_keys, rotate_table
from modcrypt.iceberg.format.avro_files import read_avro
from modcrypt.iceberg.format.manifests import ManifestFile, read_manifest, read_manifest_list
from modcrypt.iceberg.read import pyarrow_decryption as native_parquet
from modcrypt.iceberg.read import schema_projection as projection
from modcrypt.iceberg.rotate.rotation_report import Rotated
from modcrypt.iceberg.write.moved_deletes import move_deletes
from modcrypt.io.sources import MemorySource
from modcrypt.keys.metadata import StandardKeyMetadata
from tests.support.cases import each_case, one_in
from tests.support.frame_watch import find_secrets
from tests.support.iceberg.builder import (
    Builder,
    arrow,
    avro_file,
    entry_schema,
    field,
    id_field,
    list_schema,
    optional,
    struct,
)
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.randomness import dice

SCHEMA = struct(field(1, "id", "long"), field(2, "name", "string"))
ARROW = arrow([(1, "id", pa.int64()), (2, "name", pa.string())])
AVRO = {
    "type": "record", "name": "t", "fields": [
        {"name": "id", **optional("long"), "field-id": 1},
        {"name": "name", **optional("string"), "field-id": 2}]}  # fmt: skip
DELETES = arrow([(2147483546, "file_path", pa.string()), (2147483545, "pos", pa.int64())])
SECRET = "topsecret"


def rows(start: int, count: int = 20) -> pa.Table:
    ids = list(range(start, start + count))
    return pa.table([ids, [f"{SECRET}-{id_}" for id_ in ids]], schema=ARROW)


def build_table(folder: Path) -> Builder:
    builder = Builder(folder, SCHEMA)
    files = [
        builder.parquet("a.parquet", rows(0), row_group=8),
        builder.parquet("b.parquet", rows(20)),
        builder.avro("c.avro", AVRO, rows(40).to_pylist()),
    ]
    paths = [file["file_path"] for file in files]
    positions = pa.table([[paths[1]], [3]], schema=DELETES)
    deletes = [
        builder.parquet("d.parquet", positions, content=1),
        *builder.vectors("e.puffin", {paths[0]: [2, 3], paths[2]: [1]}),
    ]
    manifests = [builder.manifest(files[:2]), builder.manifest(files[2:])]
    builder.snapshot([*manifests, builder.manifest(deletes, content=1)])
    builder.write()
    return builder


EXPECTED = [n for n in range(60) if n not in (2, 3, 23, 41)]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return build_table(tmp_path_factory.mktemp("table"))


@pytest.fixture
def folder(original: Builder, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original.folder, tmp_path / "t"))


def scan_quietly(folder: Path, **options: Any) -> list[int]:
    """Scan a table, and list it; a ModcryptError shows nothing that is secret."""
    try:
        return _scan_and_list(folder, **options)
    except ModcryptError as error:
        _check_silent(error)
        raise


def _scan_and_list(folder: Path, **options: Any) -> list[int]:
    table = open_table(folder, SampleKms(), **options)
    table.snapshots(), table.keys(), table.files()
    found = table.scan()  # without columns, if its schema was made so
    values = found.column("id").to_pylist() if "id" in found.column_names else []
    return sorted(
        value for value in values if value is not None
    )  # null, if its field id was changed


def _check_silent(error: ModcryptError) -> None:
    text = "".join(traceback.format_exception(error))
    assert SECRET not in str(error)
    assert SECRET not in repr(error.__cause__)
    assert not re.search(r"(\\x[0-9a-f]{2}){8}", text), "bytes in a message"


def files_of(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.suffix in (".parquet", ".avro", ".puffin")
    )


def test_the_table_reads_as_it_was_made(folder: Path) -> None:
    assert scan_quietly(folder) == EXPECTED
    assert len(files_of(folder)) == 9


# --- each file -----------------------------------------------------------------------------------


def _flip(at: float) -> Callable[[bytes], bytes]:
    def flip_byte(data: bytes) -> bytes:
        place = min(len(data) - 1, int(len(data) * at))
        return data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :]

    return flip_byte


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut by a byte": lambda data: data[:-1],
    "cut in half": lambda data: data[: len(data) // 2],
    "longer by a byte": lambda data: data + b"\0",
    "longer by itself": lambda data: data + data,
    "zeros": lambda data: bytes(len(data)),
    **{f"flipped at {at}": _flip(at) for at in (0, 0.002, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1)},
}


@each_case(
    ("native", "damage"),
    itertools.product([True, False], DAMAGES),
    quick=lambda cases: [*cases[: len(DAMAGES) : 2], *cases[len(DAMAGES) + 1 :: 2]],
)
def test_each_file_damaged(
    folder: Path, damage: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(native_parquet, "_decryption_properties", lambda keys: None)
    for path in files_of(folder):
        before = path.read_bytes()
        after = DAMAGES[damage](before)
        path.write_bytes(after)
        if before[:4] == b"AGS1" and after[:4] + after[8:] == before[:4] + before[8:]:
            # The length of a block says nothing of a stream that has but one.
            assert scan_quietly(folder) == EXPECTED
        else:
            with pytest.raises(ModcryptError):
                scan_quietly(folder)
        path.write_bytes(before)
    assert scan_quietly(folder) == EXPECTED


@pytest.mark.parametrize("native", [True, False])
def test_every_byte_of_a_parquet_file_counts(
    folder: Path, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(native_parquet, "_decryption_properties", lambda keys: None)
    path = folder / "data" / "b.parquet"
    before = path.read_bytes()
    for place in range(0, len(before), 43):
        path.write_bytes(before[:place] + bytes((before[place] ^ 0x20,)) + before[place + 1 :])
        with pytest.raises((IntegrityError, FormatError)):
            scan_quietly(folder)


def test_each_file_in_the_place_of_another(folder: Path) -> None:
    files = files_of(folder)
    for path in files:
        before = path.read_bytes()
        for other in files:
            if other != path:
                path.write_bytes(other.read_bytes())
                with pytest.raises(ModcryptError):
                    scan_quietly(folder)
        path.write_bytes(before)


def test_a_file_of_an_older_state_of_the_table(folder: Path, tmp_path: Path) -> None:
    """The same rows at the same names, but written at another time, under other keys."""
    twin = build_table(tmp_path / "twin").folder
    for path in files_of(folder):
        before = path.read_bytes()
        path.write_bytes((twin / path.relative_to(folder)).read_bytes())
        with pytest.raises(ModcryptError):
            scan_quietly(folder)
        path.write_bytes(before)


def test_each_file_in_plaintext(folder: Path, tmp_path: Path) -> None:
    builder = Builder(tmp_path / "plain", SCHEMA, encrypted=False)
    plain = {
        ".parquet": builder.parquet("x.parquet", rows(0)),
        ".avro": builder.manifest([]),
        ".puffin": builder.vectors("x.puffin", {"x": [1]})[0],
    }
    for path in files_of(folder):
        before = path.read_bytes()
        named = plain[path.suffix].get("file_path") or plain[path.suffix]["manifest_path"]
        path.write_bytes((builder.folder / named.removeprefix(builder.location + "/")).read_bytes())
        with pytest.raises((PlaintextError, TruncationError)):
            scan_quietly(folder)
        path.write_bytes(before)


def test_a_missing_file_is_the_file_systems_error(folder: Path) -> None:
    for path in files_of(folder):
        before = path.read_bytes()
        path.unlink()
        with pytest.raises(FileNotFoundError):
            scan_quietly(folder)
        path.write_bytes(before)


@pytest.mark.parametrize("native", [True, False])
def test_a_forged_algorithm_turns_no_authentication_off(
    folder: Path, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the algorithm is in nobody's AAD; AES_GCM_CTR_V1 would open pages unchecked."""
    if not native:
        monkeypatch.setattr(native_parquet, "_decryption_properties", lambda keys: None)
    path = folder / "data" / "b.parquet"
    data = bytearray(path.read_bytes())
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert data[start] == 0x1C  # FileCryptoMetaData 1: struct
    assert data[start + 1] == 0x1C  # EncryptionAlgorithm 1: AES_GCM_V1
    data[start + 1] = 0x2C  # 2: AES_GCM_CTR_V1
    path.write_bytes(data)
    with pytest.raises((UnsupportedFormatError, IntegrityError)):
        scan_quietly(folder)


def test_pyarrow_is_not_given_a_file_with_another_algorithm(original: Builder) -> None:
    """Nor one whose AAD prefix is stored: only what Iceberg writes."""
    key, prefix = bytes(range(1, 17)), bytes(range(16))
    plain = io.BytesIO()
    pq.write_table(rows(0), plain)
    taken = {}
    for algorithm, stored in itertools.product(("AES_GCM_V1", "AES_GCM_CTR_V1"), (True, False)):
        out = io.BytesIO()
        how = FileEncryptionProperties(
            footer_key=key,
            aad_prefix=prefix,
            store_aad_prefix=stored,
            encryption_algorithm=algorithm,
        )
        encrypt_parquet(plain.getvalue(), out, how)
        keys = StandardKeyMetadata(key=key, aad_prefix=prefix)
        found = native_parquet.open_natively(MemorySource(out.getvalue()), keys)
        taken[algorithm, stored] = found is not None
    assert not any(taken[case] for case in taken if case != ("AES_GCM_V1", False))


def test_a_storage_that_reports_another_end_at_the_second_look(original: Builder) -> None:
    class Changing(MemorySource):
        def __init__(self, data: bytes) -> None:
            super().__init__(data)
            self.seen = 0

        def read_into(self, offset: int, view: memoryview) -> None:
            super().read_into(offset, view)
            self.seen += 1
            if self.seen > 2 and offset + len(view) == self.size:
                view[-1] ^= 0xFF

    data = (original.folder / "data" / "b.parquet").read_bytes()
    checked = Changing(data)
    checked.whole = None
    file = native_parquet.StoredFile(checked, data[-100:])
    assert file.read() == data
    assert [file.read_at(n, 50) for n in range(len(data))] == [
        data[n : n + 50] for n in range(len(data))
    ]


# --- what only somebody with the keys can write --------------------------------------------------


def _manifest_with(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> Builder:
    builder = Builder(tmp_path, SCHEMA)
    file = builder.parquet("a.parquet", rows(0))
    change(file)
    builder.snapshot([builder.manifest([file])])
    builder.write()
    return builder


@each_case(
    "location",
    [
        "/etc/passwd", "../../etc/passwd", "wh://bucket/orders/../x", "wh://bucket/orders/",
        "wh://bucket/orders", "wh://bucket/orders/data/../../../etc/passwd", "s3://other/x",
        "wh://bucket/orders2/x", "file:///etc/passwd", "", "wh://bucket/orders//etc/passwd",
        "wh://bucket/orders/./data/a.parquet", "wh://bucket/orders/data/a\x00.parquet",
        "WH://bucket/orders/data/a.parquet", "http://169.254.169.254/latest",
    ],
)  # fmt: skip
def test_locations_that_lead_elsewhere(tmp_path: Path, location: str) -> None:
    builder = _manifest_with(lambda file: file.update(file_path=location), tmp_path)
    with pytest.raises(FormatError):
        scan_quietly(builder.folder)
    builder.snapshot([{**builder.manifest([]), "manifest_path": location}])
    builder.write()
    with pytest.raises(FormatError):
        scan_quietly(builder.folder)
    builder.document["snapshots"][-1]["manifest-list"] = location or "x"
    builder.write()
    with pytest.raises(FormatError):
        scan_quietly(builder.folder)


ENTRIES: list[dict[str, Any]] = [
    {"content": 1}, {"content": 2}, {"content": 7}, {"content": -1},
    {"file_format": "ORC"}, {"file_format": "EXE"}, {"file_format": "PUFFIN"},
    {"file_format": "AVRO"}, {"record_count": -1}, {"file_size_in_bytes": -1},
    {"file_size_in_bytes": 1 << 62}, {"file_size_in_bytes": 0}, {"key_metadata": None},
    {"key_metadata": b""}, {"key_metadata": b"\x01"}, {"key_metadata": b"\x02" + bytes(20)},
    {"key_metadata": bytes(100)}, {"key_metadata": b"\x81\x03abc" + bytes(40)},
    {"key_metadata": b"\x82\xff"}, {"key_metadata": b"\x81"},
    {"lower_bounds": [{"key": 1, "value": b"x"}], "upper_bounds": [{"key": 1, "value": b"y"}]},
]  # fmt: skip


@each_case("change", ENTRIES, ids=str)
def test_entries_that_are_none(tmp_path: Path, change: dict[str, Any]) -> None:
    builder = _manifest_with(lambda file: file.update(change), tmp_path)
    with pytest.raises(ModcryptError):
        open_table(builder.folder, SampleKms()).scan(filters="id > 3").to_arrow()


DAMAGED: dict[str, dict[str, Any]] = {
    "rows": {}, "negative count": {"record_count": -1}, "another format": {"file_format": "EXE"},
    "another length": {"file_size_in_bytes": 77}, "another folder": {"file_path": "/etc/passwd"},
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_no_error_of_a_table_carries_a_key(tmp_path: Path, name: str) -> None:
    builder = Builder(tmp_path, SCHEMA)
    files = [builder.parquet("a.parquet", rows(0)), builder.parquet("b.parquet", rows(20))]
    files[1].update(DAMAGED[name])
    manifest = builder.manifest(files)
    builder.snapshot([manifest])
    builder.write()
    (tmp_path / "data" / "b.parquet").write_bytes(bytes(1000))
    secrets = [file["key_metadata"][2:18] for file in (*files, manifest)]
    for call in (
        lambda: open_table(tmp_path, SampleKms()).scan().to_arrow(),
        lambda: open_table(tmp_path, SampleKms()).scan(filters="id > 30").to_arrow(),
        lambda: rotate_table(open_table(tmp_path, SampleKms()), "dek"),
    ):
        with pytest.raises(ModcryptError) as caught:
            call()
        for secret in secrets:
            assert find_secrets(caught.value, secret) == []


VECTORS: list[dict[str, Any]] = [
    {"content_offset": None}, {"content_offset": -1}, {"content_offset": 1 << 62},
    {"content_offset": 5}, {"content_size_in_bytes": 0}, {"content_size_in_bytes": 1 << 62},
    {"content_size_in_bytes": -5}, {"content_size_in_bytes": None}, {"record_count": 5},
    {"record_count": 1 << 62}, {"referenced_data_file": None},
    {"referenced_data_file": "/etc/passwd"}, {"key_metadata": None}, {"content": 0},
]  # fmt: skip


@each_case("change", VECTORS, ids=str)
def test_deletion_vectors_that_are_none(tmp_path: Path, change: dict[str, Any]) -> None:
    builder = Builder(tmp_path, SCHEMA)
    file = builder.parquet("a.parquet", rows(0))
    vector = builder.vectors("dv.puffin", {file["file_path"]: [1, 2]})[0]
    deletes = builder.manifest([{**vector, **change}], content=1)
    builder.snapshot([builder.manifest([file]), deletes])
    builder.write()
    with pytest.raises(ModcryptError):
        scan_quietly(builder.folder)


def test_a_vector_of_more_rows_than_there_are(tmp_path: Path) -> None:
    """A few bytes of a bitmap may stand for any number of positions."""
    builder = Builder(tmp_path, SCHEMA)
    file = builder.parquet("a.parquet", rows(0))
    deletes = builder.vectors("dv.puffin", {file["file_path"]: range(1000)})
    builder.snapshot([builder.manifest([file]), builder.manifest(deletes, content=1)])
    builder.write()
    with pytest.raises(FormatError, match="more rows"):
        scan_quietly(builder.folder)


def test_a_vector_with_fewer_rows_than_its_manifest_claims(tmp_path: Path) -> None:
    """The manifest may claim that the data file has as many."""
    builder = Builder(tmp_path, SCHEMA)
    file = {**builder.parquet("a.parquet", rows(0)), "record_count": 1 << 40}
    vector = builder.vectors("dv.puffin", {file["file_path"]: [1]})[0]
    deletes = builder.manifest([{**vector, "record_count": 1 << 40}], content=1)
    builder.snapshot([builder.manifest([file]), deletes])
    builder.write()
    with pytest.raises(FormatError, match="the deletion vector has 1 positions"):
        scan_quietly(builder.folder)


def test_two_vectors_of_one_file(tmp_path: Path) -> None:
    builder = Builder(tmp_path, SCHEMA)
    file = builder.parquet("a.parquet", rows(0))
    vectors = [builder.vectors(f"{n}.puffin", {file["file_path"]: [n]})[0] for n in range(2)]
    builder.snapshot([builder.manifest([file]), builder.manifest(vectors, content=1)])
    builder.write()
    with pytest.raises(FormatError, match="two deletion vectors"):
        scan_quietly(builder.folder)


@pytest.mark.seeded
def test_vectors_of_damaged_bitmaps(tmp_path: Path) -> None:
    """With a fitting checksum: pyroaring has to do with them."""
    from pyroaring import BitMap64

    from modcrypt.iceberg.read.position_deletes import read_vector

    chance = dice(8)
    good = BitMap64([*range(100), *range(1 << 33, (1 << 33) + 70_000), 1 << 40]).serialize()
    entry = type("Entry", (), {"location": "x", "record_count": 70_101})()
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.choice((1, 2, 8))):
            data[chance.randrange(chance.choice((60, len(data))))] = chance.randrange(256)
        bitmap = b"\xd1\xd3\x39\x64" + bytes(data[: chance.choice((len(data), 300))])
        blob = len(bitmap).to_bytes(4, "big") + bitmap + zlib.crc32(bitmap).to_bytes(4, "big")
        try:
            found = list(read_vector(blob, entry))
        except FormatError:
            continue
        assert len(found) == 70_101


def test_a_bitmap_of_more_positions_than_it_says() -> None:
    """Its size is compared before it is decoded."""
    from modcrypt.iceberg.read.position_deletes import read_vector

    said, there = 4097, b"\xff" * 8192
    container = packing.pack("<IIHHI", 12346, 1, 0, said - 1, 16) + there
    bitmap = b"\xd1\xd3\x39\x64" + packing.pack("<QI", 1, 0) + container
    blob = len(bitmap).to_bytes(4, "big") + bitmap + zlib.crc32(bitmap).to_bytes(4, "big")
    entry: Any = type("Entry", (), {"location": "x", "record_count": said})()
    with pytest.raises(FormatError, match="not a bitmap"):
        read_vector(blob, entry)


def puffin(footer: str) -> bytes:
    size = len(footer).to_bytes(4, "little")
    return b"PFA1PFA1" + footer.encode() + size + bytes(4) + b"PFA1"


def position_deletes(paths: list[Any], positions: list[Any]) -> bytes:
    out = io.BytesIO()
    kinds = pa.schema([("file_path", pa.string()), ("pos", pa.int64())])
    pq.write_table(pa.table([paths, positions], schema=kinds), out)
    return out.getvalue()


POSITIONS = {
    "type": "record", "name": "r",
    "fields": [{"name": name, "type": ["null", kind], "field-id": number}
               for number, (name, kind) in enumerate((("file_path", "string"), ("pos", "long")))],
}  # fmt: skip


@each_case(
    ("data", "file_format"),
    [
        (puffin('{"blobs":[{"properties":[1]}]}'), "PUFFIN"),
        (puffin('{"blobs":5}'), "PUFFIN"),
        (puffin("[" * 100_000), "PUFFIN"),
        (position_deletes([None], [1]), "PARQUET"),
        (position_deletes(["a"], [None]), "PARQUET"),
        (b"PAR1", "PARQUET"),
        (avro_file(POSITIONS, [{"file_path": None, "pos": 1}]), "AVRO"),
        (avro_file(POSITIONS, [{"file_path": "a", "pos": n} for n in (1, None)]), "AVRO"),
    ],
)
def test_delete_files_that_can_not_be_moved(data: bytes, file_format: str) -> None:
    with pytest.raises(FormatError, match=r"^d\.x: "):
        move_deletes(data, file_format, lambda path: path.upper(), "d.x")


# --- Avro ----------------------------------------------------------------------------------------


def zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def container(schema: Any, count: int, data: bytes, codec: bytes = b"null") -> bytes:
    text = json.dumps(schema).encode() if not isinstance(schema, bytes) else schema
    pairs = {b"avro.schema": text, b"avro.codec": codec}
    head = b"".join(zigzag(len(k)) + k + zigzag(len(v)) + v for k, v in pairs.items())
    block = zigzag(count) + zigzag(len(data)) + data
    return b"Obj\x01" + zigzag(len(pairs)) + head + b"\0" + b"s" * 16 + block + b"s" * 16


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [
        {"name": f"f{n}", "type": kind, "field-id": n}
        for n, kind in enumerate(fields)]}  # fmt: skip


DEEP: Any = "long"
for _ in range(100):
    DEEP = {"type": "array", "items": DEEP}

BOMBS: dict[str, tuple[bytes, type[ModcryptError]]] = {
    "rows of no bytes": (container(record("null"), 1 << 60, b""), LimitError),
    "more rows than bytes": (container(record("long"), 1 << 60, b"\x02"), LimitError),
    "a negative count": (container(record("long"), -5, b"\x02"), LimitError),
    "items of no bytes": (
        container(record({"type": "array", "items": "null"}), 1, zigzag(1 << 60) + b"\0"),
        LimitError,
    ),
    "many items": (
        container(record({"type": "array", "items": "long"}), 1, zigzag(1 << 60) + b"\2\0"),
        FormatError,
    ),
    "a type in itself": (
        container(record(["null", "r"]), 1, b"\x02" * 1_000_000 + b"\0"),
        FormatError,
    ),
    "a deep type": (container(record(DEEP), 1, b"\2" * 100), LimitError),
    "a deep schema": (container(b'{"type":' * 100_000, 1, b"\2"), FormatError),
    "a long text": (container(record("bytes"), 1, zigzag(1 << 60) + b"x"), FormatError),
    "a negative length": (container(record("bytes"), 1, zigzag(-4) + b"xxxx"), FormatError),
    "a branch that is not there": (container(record(["null", "long"]), 1, b"\x0a"), FormatError),
    "a fixed of negative size": (
        container(record({"type": "fixed", "name": "x", "size": -1}), 1, b"x"),
        FormatError,
    ),
    "a codec": (container(record("long"), 1, b"\2", b"lzma"), UnsupportedFormatError),
    "no zlib": (container(record("long"), 1, b"\2", b"deflate"), FormatError),
    "no zstandard": (container(record("long"), 1, b"\2", b"zstandard"), FormatError),
    "no snappy": (container(record("long"), 1, b"\2", b"snappy"), FormatError),
    "snappy that claims": (
        container(record("long"), 1, b"\xff\xff\xff\xff\x0f12345", b"snappy"),
        LimitError,
    ),
    "no schema": (container(b"", 1, b"\2"), FormatError),
    "no record": (container(b'"long"', 1, b"\2"), FormatError),
    "an unknown type": (container(record("what"), 1, b"\2"), FormatError),
    "text that is no UTF-8": (container(record("string"), 1, b"\2\xff"), FormatError),
}


@each_case("bomb", list(BOMBS))
def test_avro_that_would_take_all_there_is(bomb: str) -> None:
    data, error = BOMBS[bomb]
    with pytest.raises(error):
        read_avro(data, "x.avro")


@pytest.mark.parametrize("codec", ["deflate", "zstandard"])
def test_manifests_that_a_few_bytes_stand_for(codec: str) -> None:
    plain = bytes(5 << 20)
    deflater = zlib.compressobj(wbits=-15)
    small = {
        "deflate": deflater.compress(plain) + deflater.flush(),
        "zstandard": pa.compress(plain, "zstd", asbytes=True),
    }[codec]
    rows, entries = (
        container(schema, len(plain), small, codec.encode())
        for schema in (list_schema(), entry_schema([]))
    )
    assert max(len(rows), len(entries)) < 10_000
    with pytest.raises(LimitError):
        read_manifest_list(rows, "x.avro")
    with pytest.raises(LimitError):
        read_manifest(entries, ManifestFile("x.avro", len(entries), 0, 0, 1, 1, None, {}), "x.avro")


@pytest.mark.parametrize("codec", ["zstandard", "snappy", "deflate", "null"])
def test_codecs_of_iceberg(codec: str) -> None:
    import zlib

    plain = b"".join(zigzag(n) for n in range(1000))
    pack: dict[str, Callable[[], bytes]] = {
        "null": lambda: plain,
        "deflate": lambda: zlib.compress(plain)[2:-4],
        "zstandard": lambda: pa.compress(plain, "zstd", asbytes=True),
        "snappy": lambda: (
            pa.compress(plain, "snappy", asbytes=True) + zlib.crc32(plain).to_bytes(4, "big")
        ),
    }
    data = container(record("long"), 1000, pack[codec](), codec.encode())
    assert [row["f0"] for row in read_avro(data, "x").records] == list(range(1000))
    if codec in ("null", "deflate"):  # for the others fastavro needs more packages
        assert list(fastavro.reader(io.BytesIO(data))) == read_avro(data, "x").records


def damage_bytes(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        out[chance.randrange(len(out))] = chance.randrange(256)
    return bytes(out[: chance.choice((len(out), len(out), chance.randrange(len(out))))])


@pytest.mark.seeded
def test_damaged_manifests_with_the_right_keys(tmp_path: Path) -> None:
    chance = dice(5)
    builder = Builder(tmp_path, SCHEMA)
    file = builder.parquet("a.parquet", rows(0))
    row = builder.manifest([file], sequence_number=1, min_sequence_number=1, added_snapshot_id=1)
    inner = avro_file(entry_schema(()), [{"status": 1, "data_file": file}], codec="null")
    outer = avro_file(list_schema(), [row], codec="null")
    for number in range(250):
        if number % 2:
            found = builder.put("metadata/m.avro", damage_bytes(inner, chance))
            bad = {
                **row,
                "manifest_path": found["path"],
                "manifest_length": found["length"],
                "key_metadata": found["key"],
            }
            builder.document["snapshots"], builder.document["last-sequence-number"] = [], 0
            del builder.document["encryption-keys"][1:]
            builder.snapshot([bad])
        else:
            put = builder.put
            builder.document["snapshots"], builder.document["last-sequence-number"] = [], 0
            del builder.document["encryption-keys"][1:]
            bytes_now = damage_bytes(outer, chance)
            builder.put = lambda name, data, put=put, now=bytes_now: put(name, now)  # type: ignore
            builder.snapshot([row])
            builder.put = put  # type: ignore[method-assign]
        builder.write()
        with contextlib.suppress(ModcryptError, FileNotFoundError):
            assert set(scan_quietly(builder.folder)) <= set(range(20))


@pytest.mark.seeded
def test_damaged_avro_data_with_the_right_keys(tmp_path: Path) -> None:
    chance = dice(6)
    builder = Builder(tmp_path, SCHEMA)
    good = avro_file(AVRO, rows(0).to_pylist(), codec="null")
    put = builder.put
    for _ in range(150):
        now = damage_bytes(good, chance)
        builder.put = lambda name, data, now=now: put(name, now)  # type: ignore
        file = builder.avro("a.avro", AVRO, [])
        builder.put = put  # type: ignore[method-assign]
        builder.document["snapshots"], builder.document["last-sequence-number"] = [], 0
        del builder.document["encryption-keys"][1:]
        builder.snapshot([builder.manifest([file])])
        builder.write()
        with contextlib.suppress(ModcryptError):
            scan_quietly(builder.folder)


# --- metadata.json -------------------------------------------------------------------------------


def _edits(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value of a document."""
    if path:
        yield path
    items = document.items() if isinstance(document, dict) else enumerate(document)
    if isinstance(document, dict | list):
        for key, value in items:
            if isinstance(value, dict | list):
                yield from _edits(value, (*path, key))
            else:
                yield (*path, key)


BAD = [None, -1, 1 << 70, "x", [None], {"x": 1}]


@each_case("every", [5, 1], quick=one_in(2))
def test_values_of_other_types_anywhere_in_metadata_json(folder: Path, every: int) -> None:
    path = folder / "metadata" / "v1.metadata.json"
    good = json.loads(path.read_text())
    outcomes = set()
    for way, bad in [*itertools.product(_edits(good), BAD)][::every]:
        document = copy.deepcopy(good)
        at = document
        for step in way[:-1]:
            at = at[step]
        at[way[-1]] = bad
        path.write_text(json.dumps(document))
        try:
            found = scan_quietly(folder)
        except ModcryptError as error:
            outcomes.add(type(error))
        except Exception as error:
            pytest.fail(f"{way} = {bad!r}: {type(error).__name__}: {error}")
        else:
            assert found in (EXPECTED, []), (way, bad)  # no current snapshot, or no column
    assert FormatError in outcomes


def test_members_left_out_of_metadata_json(folder: Path) -> None:
    path = folder / "metadata" / "v1.metadata.json"
    good = json.loads(path.read_text())
    for way in list(_edits(good)):
        document = copy.deepcopy(good)
        at = document
        for step in way[:-1]:
            at = at[step]
        del at[way[-1]]
        path.write_text(json.dumps(document))
        with contextlib.suppress(ModcryptError):
            assert scan_quietly(folder) in (EXPECTED, []), way


def test_two_snapshots_of_one_id_are_refused_or_the_first_is_taken(folder: Path) -> None:
    path = folder / "metadata" / "v1.metadata.json"
    document = json.loads(path.read_text())
    document["snapshots"].append({**document["snapshots"][0], "key-id": "other"})
    path.write_text(json.dumps(document))
    with contextlib.suppress(FormatError):
        assert scan_quietly(folder) == EXPECTED


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\x1f\x8b", b"\xff" * 9, b"{}"])
def test_files_that_are_no_metadata_json(folder: Path, data: bytes) -> None:
    (folder / "metadata" / "v1.metadata.json").write_bytes(data)
    with pytest.raises(FormatError):
        scan_quietly(folder)


def test_metadata_that_a_few_bytes_stand_for(folder: Path) -> None:
    """Twenty bytes for one of gzip, and fifty of Python's for one of those."""
    path = folder / "metadata" / "v1.metadata.json"
    whole = path.read_bytes()
    path.write_bytes(gzip.compress(whole))
    assert scan_quietly(folder) == EXPECTED
    path.write_bytes(gzip.compress(whole[:-1] + b',"x":[' + b"[]," * (8 << 20) + b"[]]}"))
    with pytest.raises(LimitError, match="gzip"):
        scan_quietly(folder)


@each_case(
    ("member", "bad"),
    [
        ("refs", {"b": 5}), ("refs", {"b": {"snapshot-id": {}}}), ("refs", [1]),
        ("snapshot-log", ["x"]), ("snapshot-log", [{"snapshot-id": {}, "timestamp-ms": 1}]),
        ("metadata-log", 5), ("metadata-log", [{"metadata-file": "x"}]), ("statistics", 0.5),
        ("partition-statistics", [5]), ("last-updated-ms", "now"), ("next-row-id", [1]),
        ("partition-specs", [5]), ("schemas", ["x"]), ("current-schema-id", 1 << 70),
        ("current-schema-id", None),
    ],
)  # fmt: skip
def test_members_by_which_a_table_is_changed(tmp_path: Path, member: str, bad: Any) -> None:
    rows = pa.table({"id": [1]})
    create_table(tmp_path, rows.schema, SampleKms(), master_key_id="keyA").append(rows)
    path = tmp_path / "metadata" / "v2.metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {member: bad}))
    changes: list[Callable[[Any], Any]] = [
        expire_history, prune_keys, lambda table: table.append(rows),
        *(partial(rotate_table, what=what) for what in get_args(Rotated)),
    ]  # fmt: skip
    for change in changes:
        table = open_table(tmp_path, SampleKms())
        with pytest.raises(FormatError):
            change(table)
    assert not (tmp_path / "metadata" / "v3.metadata.json").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("write.metadata.previous-versions-max", "9" * 5000),
        ("write.metadata.previous-versions-max", "many"),
        ("encryption.data-key-length", "9" * 5000),
    ],
)
def test_table_properties_that_are_no_numbers(folder: Path, name: str, text: str) -> None:
    path = folder / "metadata" / "v1.metadata.json"
    document = json.loads(path.read_text())
    document["properties"][name] = text
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match=re.escape(name)):
        rotate_table(open_table(folder, SampleKms()), "kek")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compression-codec", "odd"), ("compression-codec", "lzo"), ("compression-codec", ""),
        ("compression-level", "much"), ("compression-level", "9" * 20),
        ("page-size-bytes", "9" * 20), ("dict-size-bytes", "9" * 20),
        ("page-row-limit", "0"), ("page-row-limit", "-1"), ("page-row-limit", "9" * 20),
        ("row-group-limit", "0"), ("row-group-limit", "-1"), ("row-group-limit", "many"),
        ("write.metadata.metrics.default", "odd"), ("write.metadata.metrics.column.id", "odd"),
        ("write.target-file-size-bytes", "many"),
    ],
)  # fmt: skip
def test_properties_by_which_no_file_can_be_written(tmp_path: Path, name: str, text: str) -> None:
    """Properties of a table are refused before anything is written."""
    rows = pa.table({"id": [1]})
    create_table(tmp_path, rows.schema, SampleKms(), master_key_id="keyA").append(rows)
    path = tmp_path / "metadata" / "v2.metadata.json"
    document = json.loads(path.read_text())
    name = name if name.startswith("write.") else f"write.parquet.{name}"
    document["properties"][name] = text
    path.write_text(json.dumps(document))
    files = sorted(tmp_path.rglob("*"))
    with pytest.raises(FormatError, match=r": write\.[a-z.-]+"):
        open_table(tmp_path, SampleKms()).append(rows)
    assert sorted(tmp_path.rglob("*")) == files


@pytest.mark.parametrize("transform", ["bucket[0]", "truncate[0]", "bucket[9999999999]", "odd"])
def test_partition_transforms_that_are_none(tmp_path: Path, transform: str) -> None:
    """Such transforms are refused before pyiceberg sees them."""
    rows = pa.table({"id": [1]})
    create_table(tmp_path, rows.schema, SampleKms(), master_key_id="keyA")
    path = tmp_path / "metadata" / "v1.metadata.json"
    document = json.loads(path.read_text())
    field = {"source-id": 1, "field-id": 1000, "name": "p", "transform": transform}
    document["partition-specs"][0]["fields"] = [field]
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError):
        open_table(tmp_path, SampleKms()).append(rows)


# --- keys ----------------------------------------------------------------------------------------


def test_no_key_is_in_any_object_or_error_of_a_scan(
    original: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg's objects, which others may log, are made without keys."""
    from pyiceberg.manifest import DataFile, ManifestFile

    seen: list[str] = []
    for kind in (DataFile, ManifestFile):
        make = kind.from_args

        def manifest_bytes(*args: Any, make: Any = make, **more: Any) -> Any:
            seen.append(repr(more))
            return make(*args, **more)

        monkeypatch.setattr(kind, "from_args", manifest_bytes)
    table = open_table(original.folder, SampleKms())
    table.scan(filters="id > 3").to_arrow()
    snapshot = table.snapshot()
    assert snapshot is not None
    manifests = table.walk.manifests(snapshot)
    entries = [entry for manifest in manifests for entry in table.walk.entries(manifest)]
    reported = " ".join([*seen, repr(table), repr(manifests), repr(entries), repr(table.walk)])
    assert "key_metadata" not in reported
    for metadata in (
        *(manifest.key_metadata for manifest in manifests),
        *(e.key_metadata for e in entries),
    ):
        assert metadata is not None
        key = metadata[2:18]
        assert repr(key)[2:-1] not in reported
        assert key.hex() not in reported


@pytest.mark.parametrize("unwrapped", [b"", bytes(15), bytes(range(16)), bytes(range(32))])
def test_a_key_service_that_gives_another_key(original: Builder, unwrapped: bytes) -> None:
    class Wrong(SampleKms):
        def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
            return unwrapped

    with pytest.raises(KeyRetrievalError):
        open_table(original.folder, Wrong()).scan().to_arrow()


def test_altered_wrapped_keys(folder: Path) -> None:
    path = folder / "metadata" / "v1.metadata.json"
    good = path.read_text()
    for number in (0, 1):
        document = json.loads(good)
        entry = document["encryption-keys"][number]
        text = entry["encrypted-key-metadata"]
        entry["encrypted-key-metadata"] = text[:20] + ("A" if text[20] != "A" else "B") + text[21:]
        path.write_text(json.dumps(document))
        with pytest.raises((KeyRetrievalError, TagMismatchError)):
            scan_quietly(folder)
    document = json.loads(good)
    document["encryption-keys"][0]["properties"]["KEY_TIMESTAMP"] = "1795237555591"
    path.write_text(json.dumps(document))
    with pytest.raises(KeyRetrievalError):
        scan_quietly(folder)


# --- columns that files lack ---------------------------------------------------------------------


def with_column(folder: Path, number: int, **column: Any) -> None:
    """Add a column to a table by a schema of its own, as an evolution of the table would."""
    path = folder / "metadata" / "v1.metadata.json"
    document = json.loads(path.read_text())
    fields = [*document["schemas"][0]["fields"], {**field(900 + number, "x", "int"), **column}]
    document["schemas"].append({**struct(*fields), "schema-id": number})
    path.write_text(json.dumps(document | {"current-schema-id": number}))


PEAK = """
import os, sys
from modcrypt.iceberg import open_table
from modcrypt.errors import LimitError
from tests.support.iceberg.sample_kms import SampleKms

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line)

def read(folder, filters):
    try:
        rows = open_table(folder, SampleKms()).scan(filters=filters)
        assert rows.num_rows == 20000 or filters
        return rows.column("x").null_count == 0
    except LimitError:
        return None

open_table(sys.argv[1], SampleKms()).scan(columns=["id"], filters="id > 3")
for folder in sys.argv[1:]:
    child = os.fork()
    if not child:
        open_table(folder, SampleKms()).scan(columns=["id"], filters="id > 3")
        before = peak()
        told = [read(folder, filters) for filters in (None, "id >= 3", "x is null")]
        print((peak() - before) >> 10, None in told, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


WIDE: list[tuple[dict[str, Any], bool]] = [
    ({"type": "fixed[250000]"}, False),
    ({"type": "fixed[270000]"}, True),
    ({"type": "string", "initial-default": "x" * 250_000}, False),
    ({"type": "string", "initial-default": "x" * 1_000_000}, True),
    ({"type": {"type": "struct", "fields": [field(990, "y", "fixed[3000000000]")]}}, True),
]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak here")
def test_a_wide_column_that_files_lack_takes_no_memory_by_the_row(tmp_path: Path) -> None:
    """75 bytes of metadata.json, which nothing signs, took gigabytes."""
    rows = pa.table([range(20_000)], schema=arrow([(1, "id", pa.int64())]))
    folders = [tmp_path / str(number) for number in range(len(WIDE))]
    for folder, (column, _) in zip(folders, WIDE, strict=True):
        builder = Builder(folder, struct(field(1, "id", "long")))
        builder.snapshot([builder.manifest([builder.parquet("a.parquet", rows)])])
        builder.write()
        with_column(folder, 1, **column)
    command = [sys.executable, "-c", PEAK, *map(str, folders)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for line, (column, refused) in zip(done.stdout.splitlines(), WIDE, strict=True):
        mebibytes, limited = line.split()
        assert limited == str(refused), str(column)[:80]
        assert int(mebibytes) < 256, str(column)[:80]


def test_rows_that_come_in_parts_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "MAX_FILLED", 2000)
    inner = struct(field(3, "a", "long"))
    builder = Builder(tmp_path, struct(field(1, "id", "long"), field(2, "s", inner)))
    shape, manifests = pa.struct([id_field(3, "a", pa.int64())]), []
    for name, first in (("a", 0), ("b", 500)):
        ids = range(first, first + 500)
        given = [None if n % 7 == 0 else {"a": n} for n in ids]
        rows = pa.table([ids, given], schema=arrow([(1, "id", pa.int64()), (2, "s", shape)]))
        manifests.append(builder.manifest([builder.parquet(f"{name}.parquet", rows)]))
    builder.snapshot(manifests)
    builder.write()
    reported: dict[str, Any] = {"type": "double", "initial-default": -0.0}
    with_column(tmp_path, 1, **reported)
    path = tmp_path / "metadata" / "v1.metadata.json"
    document = json.loads(path.read_text())
    document["schemas"][1]["fields"].append(field(950, "y", "double", **{"initial-default": 0.0}))
    document["schemas"][1]["fields"].append(field(951, "z", "uuid"))
    path.write_text(json.dumps(document))
    table = open_table(tmp_path, SampleKms())
    found = table.scan(filters="id >= 510 and x = 0 and z is null")
    assert found.num_rows == 490
    assert found["id"].to_pylist() == list(range(510, 1000))
    assert [repr(value) for value in found["x"].unique().to_pylist()] == ["-0.0"]
    assert [repr(value) for value in found["y"].unique().to_pylist()] == ["0.0"]
    assert found["z"].null_count == 490
    assert found["s"].to_pylist() == [None if n % 7 == 0 else {"a": n} for n in range(510, 1000)]
    assert table.scan(columns=["x"]).num_rows == 1000


def test_a_wide_column_within_a_list_that_files_lack_is_refused(tmp_path: Path) -> None:
    def items(*fields: dict[str, Any]) -> dict[str, Any]:
        element = {"type": "struct", "fields": [field(4, "a", "long"), *fields]}
        return {"type": "list", "element-id": 3, "element-required": False, "element": element}

    builder = Builder(tmp_path, struct(field(1, "id", "long"), field(2, "l", items())))
    item = pa.list_(id_field(3, "element", pa.struct([id_field(4, "a", pa.int64())])))
    rows = pa.table(
        [range(100), [[{"a": n}] * 100 for n in range(100)]],
        schema=arrow([(1, "id", pa.int64()), (2, "l", item)]),
    )
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", rows)])])
    builder.document["schemas"][0] |= {"schema-id": 5}
    builder.document["current-schema-id"] = 5
    for width, refused in ((1000, False), (10_000, True)):
        shape = items(field(9, "w", f"fixed[{width}]"))
        builder.document["schemas"] = [struct(field(1, "id", "long"), field(2, "l", shape))]
        builder.document["schemas"][0]["schema-id"] = 5
        builder.write()
        scan = open_table(tmp_path, SampleKms()).scan
        if refused:
            with pytest.raises(LimitError, match="pass columns without"):
                scan().to_arrow()
        else:
            assert scan()["l"][7].as_py() == [{"a": 7, "w": None}] * 100
        assert scan(columns=["id"]).num_rows == 100


# --- which file is damaged -----------------------------------------------------------------------


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@each_case("damage", [flip_byte, cut_in_half])
@each_case(
    "name",
    [
        "data/dv.puffin",
        "data/pos.parquet",
        "data/eq2.parquet",
        "data/a.parquet",
        "metadata/m1.avro",
    ],
)
def test_the_file_that_is_damaged_is_the_one_that_the_error_names(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    builder = Builder(tmp_path, struct(field(1, "id", "long")))
    shape = arrow([(1, "id", pa.int64())])
    files = {
        name: builder.parquet(f"{name}.parquet", pa.table([range(9)], schema=shape))
        for name in "abc"
    }
    manifests = [builder.manifest(list(files.values()))]
    builder.snapshot(manifests)
    deletes = builder.vectors("dv.puffin", {files["a"]["file_path"]: [1]})
    positions = pa.table({"file_path": [files["b"]["file_path"]], "pos": [1]})
    deletes.append(builder.parquet("pos.parquet", positions, content=1))
    deletes += [
        builder.parquet(
            f"eq{n}.parquet", pa.table([[n]], schema=shape), content=2, equality_ids=[1]
        ) for n in (1, 2)
    ]  # fmt: skip
    builder.snapshot([*manifests, builder.manifest(deletes, content=1)])
    builder.write()
    damage(tmp_path / name)
    with pytest.raises((TagMismatchError, TruncationError, FormatError)) as raised:
        open_table(tmp_path, SampleKms()).scan().to_arrow()
    reported = str(raised.value)
    assert name in reported
    assert set(re.findall(r"[\w-]+\.(?:parquet|puffin|avro)", reported)) == {Path(name).name}
