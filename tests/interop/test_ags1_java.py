"""Iceberg's own Java reads the AGS1 streams that we write, and we read those that it writes."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt import ags1
from tests.support.cases import each_case
from tests.support.java.iceberg_java import IcebergJava, JavaError, KeyMetadata
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.shared_vectors import shared_vectors

MIB = 1 << 20
FRAME = MIB + 28
KEYS = {size: bytes(range(1, 1 + size)) for size in (16, 24, 32)}
KEY = KEYS[16]
PREFIX = bytes(range(0x80, 0x90))
PREFIXES = {"none": None, "prefix": PREFIX}
SIZES = (0, 1, 16, MIB - 1, MIB, MIB + 1, 5 << 19)
TAG_FAILURE = "GCM tag check failed"


@cache
def plaintext(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@cache
def seal(size: int, prefix: bytes | None = PREFIX) -> bytes:
    return ags1.encrypt(plaintext(size), KEY, aad_prefix=prefix)


# --- the judge itself ----------------------------------------------------------------------------


def test_java_treats_the_shared_vectors_as_when_they_were_made(iceberg: IcebergJava) -> None:
    folder = shared_vectors() / "ags1"
    manifest = json.loads((folder / "manifest.json").read_text())
    for case in manifest["valid"]:
        data, key = (folder / case["file"]).read_bytes(), bytes.fromhex(case["key"])
        plain = iceberg.decrypt(data, key, from_hex(case["aad_prefix"]))
        assert hashlib.sha256(plain).hexdigest() == case["plain_sha256"], case["file"]
    for case in manifest["tampered"]:
        for length, expected in (
            (case["trusted_length"], case["java_trusted_length"]),
            (None, case["java_fs_length"]),
        ):
            assert outcome(iceberg, folder, case, length) == essence(expected), case["name"]


def from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def essence(recorded: dict[str, Any]) -> tuple[object, ...]:
    if recorded["ok"]:
        return recorded["getLength"], recorded["plain_length"], recorded["sha256"]
    return recorded["getLength"], recorded["bytes_before_error"], recorded["error"]


def outcome(
    iceberg: IcebergJava, folder: Path, case: dict[str, Any], length: int | None
) -> tuple[object, ...]:
    data, key = (folder / case["file"]).read_bytes(), bytes.fromhex(case["key"])
    file = iceberg.open(data, key, from_hex(case["aad_prefix"]), length)
    try:
        plain = file.read()
    except JavaError as error:
        return file.size(), error.released, str(error)
    return file.size(), len(plain), hashlib.sha256(plain).hexdigest()


# --- we write, Java reads ------------------------------------------------------------------------


def write_whole(plain: bytes, key: bytes, prefix: bytes | None, _: Path) -> bytes:
    return ags1.encrypt(plain, key, aad_prefix=prefix)


def write_in_pieces(plain: bytes, key: bytes, prefix: bytes | None, _: Path) -> bytes:
    sink = io.BytesIO()
    with mc.ags1.Ags1Writer(sink, key, aad_prefix=prefix) as writer:
        for start in range(0, len(plain), 300_007):
            writer.write(plain[start : start + 300_007])
            writer.flush()
    return sink.getvalue()


def write_file(plain: bytes, key: bytes, prefix: bytes | None, folder: Path) -> bytes:
    path = folder / "sealed.ags1"
    length = mc.encrypt_ags1(plain, path, key, aad_prefix=prefix)
    assert path.stat().st_size == length
    return path.read_bytes()


WRITERS = {"whole": write_whole, "pieces": write_in_pieces, "file": write_file}


@each_case(
    "case",
    pairwise(size=SIZES, key_size=(16, 24, 32), prefix=list(PREFIXES), by=list(WRITERS)),
    ids=case_name,
)
def test_java_reads_what_we_write(iceberg: IcebergJava, tmp_path: Path, case: Case) -> None:
    plain, key, prefix = plaintext(case["size"]), KEYS[case["key_size"]], PREFIXES[case["prefix"]]
    stream = WRITERS[case["by"]](plain, key, prefix, tmp_path)

    file = iceberg.open(stream, key, prefix)
    assert file.read() == plain
    assert file.size() == len(plain)


def test_java_seeks_in_what_we_write(iceberg: IcebergJava) -> None:
    plain = plaintext(5 << 19)
    ranges = random_ranges(len(plain))
    found = iceberg.open(seal(len(plain)), KEY, PREFIX).read_ranges(ranges)
    assert found == [plain[offset : offset + size] for offset, size in ranges]


def random_ranges(end: int) -> list[tuple[int, int]]:
    """Ranges anywhere, and some around the borders of blocks."""
    dice = random.Random(7)
    anywhere = [(dice.randrange(end), dice.choice((1, 100, 70_000))) for _ in range(40)]
    borders = [(MIB - 1, 1), (MIB - 1, 2), (MIB, 1), (10, 2 * MIB), (end - 1, 5), (end, 5), (0, 4)]
    return anywhere + borders


@pytest.mark.parametrize("block_length", [1, 1000, MIB // 2, MIB + 1])
def test_java_refuses_other_block_lengths_which_we_read(
    iceberg: IcebergJava, block_length: int
) -> None:
    plain = plaintext(5000)
    stream = ags1.encrypt(plain, KEY, aad_prefix=PREFIX, block_length=block_length)
    with pytest.raises(JavaError, match=f"block size {block_length} != {MIB}"):
        iceberg.decrypt(stream, KEY, PREFIX)
    assert ags1.decrypt(stream, KEY, aad_prefix=PREFIX, length=len(stream)) == plain


# --- Java refuses what is not what we wrote ------------------------------------------------------


def flip_at(at: int) -> Callable[[bytes], bytes]:
    def flip(stream: bytes) -> bytes:
        changed = bytearray(stream)
        changed[at] ^= 1
        return bytes(changed)

    return flip


def swap_blocks(stream: bytes) -> bytes:
    first, second = stream[8 : 8 + FRAME], stream[8 + FRAME : 8 + 2 * FRAME]
    return stream[:8] + second + first + stream[8 + 2 * FRAME :]


def drop_first_block(stream: bytes) -> bytes:
    return stream[:8] + stream[8 + FRAME :]


def first_block_of_another_file(stream: bytes) -> bytes:
    return stream[:8] + seal(MIB, b"another file")[8 : 8 + FRAME] + stream[8 + FRAME :]


@each_case(
    ("alter", "released", "message"),
    [
        (flip_at(3), 0, "magic does not match"),
        (flip_at(5), 0, "block size"),
        (flip_at(8), 0, TAG_FAILURE),  # nonce
        (flip_at(20 + 1000), 0, TAG_FAILURE),  # ciphertext
        (flip_at(8 + FRAME - 1), 0, TAG_FAILURE),  # tag
        (flip_at(-1), 2 * MIB, TAG_FAILURE),
        (swap_blocks, 0, TAG_FAILURE),
        (drop_first_block, 0, TAG_FAILURE),
        (first_block_of_another_file, 0, TAG_FAILURE),
        (lambda stream: stream[:-1], 2 * MIB, TAG_FAILURE),
    ],
    ids=["magic", "block length", "nonce", "ciphertext", "tag", "last tag", "swapped", "dropped",
         "spliced", "cut"],
)  # fmt: skip
def test_java_refuses_our_stream_once_altered(
    iceberg: IcebergJava, alter: Callable[[bytes], bytes], released: int, message: str
) -> None:
    stream = seal(2 * MIB + 17)
    with pytest.raises(JavaError, match=message) as refused:
        iceberg.decrypt(alter(stream), KEY, PREFIX)
    assert refused.value.released == released


@each_case("size", [0, 17])
@each_case(
    ("key", "prefix"),
    [(bytes(16), PREFIX), (KEYS[32], PREFIX), (KEY, PREFIX[:-1]), (KEY, None)],
    ids=["key", "longer key", "shorter prefix", "no prefix"],
)
def test_java_refuses_our_stream_with_a_wrong_key_or_prefix(
    iceberg: IcebergJava, size: int, key: bytes, prefix: bytes | None
) -> None:
    with pytest.raises(JavaError, match=TAG_FAILURE):
        iceberg.decrypt(seal(size), key, prefix)


@each_case("size", [0, 1, MIB, MIB + 1, 2 * MIB, 5 << 19])
@each_case("end", ["abandon", "exception", "forgotten"])
def test_java_does_not_read_what_an_abandoned_writer_leaves(
    iceberg: IcebergJava, size: int, end: str
) -> None:
    sink = io.BytesIO()
    leave_unfinished(sink, plaintext(size), end)
    assert len(sink.getvalue()) > size - MIB  # all but the last block may be there
    with pytest.raises(JavaError):  # although the length is that of what there is
        iceberg.decrypt(sink.getvalue(), KEY, PREFIX)


def leave_unfinished(sink: io.BytesIO, plain: bytes, end: str) -> None:
    writer = mc.ags1.Ags1Writer(sink, KEY, aad_prefix=PREFIX)
    writer.write(plain)
    if end == "abandon":
        writer.abandon()
    elif end == "exception":
        with pytest.raises(ZeroDivisionError), writer:
            raise ZeroDivisionError


# --- Java writes, we read ------------------------------------------------------------------------


def read_whole(stream: bytes, key: bytes, prefix: bytes | None) -> bytes:
    return ags1.decrypt(stream, key, aad_prefix=prefix, length=len(stream))


def read_in_pieces(stream: bytes, key: bytes, prefix: bytes | None) -> bytes:
    with mc.ags1.Ags1Reader(stream, key, aad_prefix=prefix, length=len(stream)) as reader:
        pieces = iter(lambda: reader.read(300_007), b"")
        return b"".join(pieces)


def read_file(stream: bytes, key: bytes, prefix: bytes | None) -> bytes:
    out = io.BytesIO()
    mc.decrypt_ags1(stream, out, key, aad_prefix=prefix, length=len(stream))
    return out.getvalue()


READERS = {"whole": read_whole, "pieces": read_in_pieces, "file": read_file}


@each_case(
    "case",
    pairwise(size=SIZES, key_size=(16, 24, 32), prefix=list(PREFIXES), by=list(READERS)),
    ids=case_name,
)
def test_we_read_what_java_writes(iceberg: IcebergJava, case: Case) -> None:
    plain, key, prefix = plaintext(case["size"]), KEYS[case["key_size"]], PREFIXES[case["prefix"]]
    stream = iceberg.encrypt(plain, key, prefix)
    assert READERS[case["by"]](stream, key, prefix) == plain


def test_we_seek_in_what_java_writes(iceberg: IcebergJava) -> None:
    plain = plaintext(5 << 19)
    stream = iceberg.encrypt(plain, KEY, PREFIX)
    ranges = random_ranges(len(plain))
    with mc.ags1.Ags1Reader(stream, KEY, aad_prefix=PREFIX, length=len(stream)) as reader:
        found = [reader.read_at(offset, size) for offset, size in ranges]
    assert found == [plain[offset : offset + size] for offset, size in ranges]


# --- key metadata --------------------------------------------------------------------------------


@each_case("key_size", [16, 24, 32])
@each_case("prefix", [None, b"", PREFIX, bytes(100)])
@each_case("length", [None, 0, 36, 64, 5_000_000_000, 2**63 - 1])
def test_key_metadata_are_the_same_bytes_both_ways(
    iceberg: IcebergJava, key_size: int, prefix: bytes | None, length: int | None
) -> None:
    key = KEYS[key_size]
    ours = mc.ags1.StandardKeyMetadata(key=key, aad_prefix=prefix, file_length=length)
    theirs = KeyMetadata(key, prefix, length)

    encoded = iceberg.encode_key_metadata(theirs)
    assert ours.encode() == encoded
    assert iceberg.decode_key_metadata(ours.encode()) == theirs
    assert mc.ags1.StandardKeyMetadata.decode(encoded) == ours


@pytest.mark.parametrize("version", [0, 2])
def test_both_refuse_other_versions_and_cut_key_metadata(
    iceberg: IcebergJava, version: int
) -> None:
    encoded = mc.ags1.StandardKeyMetadata(key=KEY, aad_prefix=PREFIX, file_length=36).encode()
    for data in (bytes((version,)) + encoded[1:], encoded[:-1], encoded[:1]):
        with pytest.raises(JavaError, match=r"version|EOFException"):
            iceberg.decode_key_metadata(data)
        with pytest.raises(mc.errors.FormatError):
            mc.ags1.StandardKeyMetadata.decode(data)


@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_a_table_in_java_reads_our_file_by_our_key_metadata(
    iceberg: IcebergJava, key_size: int
) -> None:
    sink, plain = io.BytesIO(), plaintext(MIB + 1)
    with mc.ags1.Ags1Writer(sink, mc.ags1.StandardKeyMetadata.generate(key_size)) as writer:
        writer.write(plain)
    assert iceberg.open_for_table(sink.getvalue(), writer.key_metadata.encode()).read() == plain

    without = mc.ags1.StandardKeyMetadata.generate(key_size)
    with pytest.raises(JavaError, match="File length is null"):
        iceberg.open_for_table(ags1.encrypt(plain, without), without.encode()).read()


@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_we_read_the_file_of_a_table_in_java_by_its_key_metadata(
    iceberg: IcebergJava, key_size: int
) -> None:
    plain = plaintext(MIB + 1)
    stream, encoded = iceberg.encrypt_for_table(plain, key_size)
    metadata = mc.ags1.StandardKeyMetadata.decode(encoded)
    assert metadata.file_length == len(stream)
    assert len(metadata.aad_prefix or b"") == 16
    assert ags1.decrypt(stream, metadata) == plain


# --- Avro ----------------------------------------------------------------------------------------


def test_iceberg_reads_rows_of_an_avro_file_that_we_encrypted(iceberg: IcebergJava) -> None:
    rows = [(n, f"{n:x}" * 150_000) for n in range(12)]
    plain = iceberg.write_avro(rows)
    metadata = mc.ags1.StandardKeyMetadata.generate()
    stream = ags1.encrypt(plain, metadata)
    file = iceberg.open_for_table(stream, metadata.with_length(len(stream)).encode())

    # A split has the rows whose Avro blocks begin in it, by offsets in the plaintext.
    splits = [(start, MIB // 2) for start in range(0, file.size(), MIB // 2)]
    parts = [file.avro_rows(*split) for split in splits]
    assert len(parts) == 4
    assert all(parts)
    assert [row for part in parts for row in part] == rows
