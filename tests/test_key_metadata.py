"""Iceberg's standard key metadata, with fastavro as the judge of its bytes."""

from __future__ import annotations

import dataclasses
import io
import traceback
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from modcrypt import Key, ModcryptError
from modcrypt.ags1 import StandardKeyMetadata
from modcrypt.errors import FormatError
from tests.support.cases import each_case
from tests.support.leaks import FOOTER, leaks

# Iceberg's StandardKeyMetadata, version 1.
SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "StandardKeyMetadata",
        "fields": [
            {"name": "encryption_key", "type": "bytes"},
            {"name": "aad_prefix", "type": ["null", "bytes"]},
            {"name": "file_length", "type": ["null", "long"]},
        ],
    }
)

KEYS = st.sampled_from([16, 24, 32]).flatmap(lambda n: st.binary(min_size=n, max_size=n))
PREFIXES = st.none() | st.binary(max_size=200)
LENGTHS = st.none() | st.integers(-(2**63), 2**63 - 1)


def avro(key: bytes, prefix: bytes | None, length: int | None) -> bytes:
    out = io.BytesIO()
    row = {"encryption_key": key, "aad_prefix": prefix, "file_length": length}
    fastavro.schemaless_writer(out, SCHEMA, row)
    return b"\x01" + out.getvalue()


@given(KEYS, PREFIXES, LENGTHS)
@example(bytes(16), None, None)
@example(bytes(16), b"", 0)
@example(bytes(32), bytes(64), 2**63 - 1)
@example(bytes(32), bytes(8192), -(2**63))
def test_encode_and_decode_agree_with_avro(
    key: bytes, prefix: bytes | None, length: int | None
) -> None:
    metadata = StandardKeyMetadata(key=key, aad_prefix=prefix, file_length=length)
    encoded = avro(key, prefix, length)
    assert metadata.encode() == encoded
    for given_as in (encoded, bytearray(encoded), memoryview(encoded)):
        decoded = StandardKeyMetadata.decode(given_as)
        assert decoded == metadata
        assert (decoded.aad_prefix, decoded.file_length) == (prefix, length)
        assert decoded.key == Key(key)


def test_the_bytes_of_a_key_alone() -> None:
    key = bytes(range(16))
    assert StandardKeyMetadata(key=key).encode() == b"\x01\x20" + key + b"\x00\x00"
    assert StandardKeyMetadata(key=key, aad_prefix=b"ab", file_length=36).encode() == (
        b"\x01\x20" + key + b"\x02\x04ab\x02\x48"
    )


def check_decoding(data: bytes) -> StandardKeyMetadata | None:
    """Decode; whatever decodes must be spelt as Avro spells it."""
    try:
        metadata = StandardKeyMetadata.decode(data)
    except FormatError:
        return None
    assert metadata.encode() == data
    stream = io.BytesIO(data[1:])
    row: Any = fastavro.schemaless_reader(stream, SCHEMA, None)
    assert stream.read() == b""
    assert Key(row["encryption_key"]) == metadata.key
    assert (row["aad_prefix"], row["file_length"]) == (metadata.aad_prefix, metadata.file_length)
    return metadata


@given(st.binary(max_size=100))
@example(b"")
@example(b"\x01")
@example(b"\x01\x20")
@example(b"\x01\x01")
@example(b"\x01" + b"\xff" * 9 + b"\x01")
@example(b"\x01" + b"\xff" * 30)
def test_any_bytes_decode_to_what_encodes_to_them_or_are_refused(data: bytes) -> None:
    check_decoding(data)


@given(KEYS, PREFIXES, LENGTHS, st.data())
def test_so_do_bytes_with_a_fault(
    key: bytes, prefix: bytes | None, length: int | None, data: st.DataObject
) -> None:
    encoded = avro(key, prefix, length)
    at = data.draw(st.integers(0, len(encoded) - 1))
    new = data.draw(st.binary(max_size=3))
    check_decoding(encoded[:at] + new + encoded[at + data.draw(st.integers(0, 3)) :])


def test_every_flipped_bit_decodes_to_something_else_or_is_refused() -> None:
    encoded = avro(FOOTER, b"prefix of sixteen", 12345)
    whole = StandardKeyMetadata.decode(encoded)
    for at in range(len(encoded)):
        for bit in range(8):
            flipped = encoded[:at] + bytes((encoded[at] ^ 1 << bit,)) + encoded[at + 1 :]
            assert check_decoding(flipped) != whole


KEY_ONLY = b"\x01\x20" + FOOTER
FAULTS = {
    "nothing": b"",
    "version 0": b"\x00\x20" + FOOTER + b"\x00\x00",
    "version 2": b"\x02\x20" + FOOTER + b"\x00\x00",
    "key of 15 bytes": b"\x01\x1e" + FOOTER[:15] + b"\x00\x00",
    "key of 17 bytes": b"\x01\x22" + FOOTER + b"x\x00\x00",
    "empty key": b"\x01\x00\x00\x00",
    "negative key length": b"\x01\x1f" + FOOTER + b"\x00\x00",
    "key length beyond the end": b"\x01\x30" + FOOTER + b"\x00\x00",
    "key length of exabytes": b"\x01" + b"\xfe" + b"\xff" * 8 + b"\x01" + FOOTER,
    "prefix beyond the end": KEY_ONLY + b"\x02\x08abc",
    "negative prefix length": KEY_ONLY + b"\x02\x07abcd\x00",
    "third branch": KEY_ONLY + b"\x04\x00",
    "negative branch": KEY_ONLY + b"\x01\x00",
    "no file length": KEY_ONLY + b"\x00",
    "file length cut": KEY_ONLY + b"\x00\x02\xc8",
    "file length too long": KEY_ONLY + b"\x00\x02" + b"\xff" * 10 + b"\x01",
    "file length beyond 64 bits": KEY_ONLY + b"\x00\x02" + b"\xff" * 9 + b"\x02",
    "zero spelt long": KEY_ONLY + b"\x80\x00\x00",
    "key length spelt long": b"\x01\xa0\x00" + FOOTER + b"\x00\x00",
    "bytes left over": KEY_ONLY + b"\x00\x00\x00",
}


@each_case("fault", FAULTS)
def test_what_avro_would_not_write_is_refused_and_nothing_of_it_is_shown(fault: str) -> None:
    with pytest.raises(FormatError, match="standard key metadata") as caught:
        StandardKeyMetadata.decode(FAULTS[fault])
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.args)
    assert leaks(shown) == []


@each_case("size", range(40))
def test_every_truncation_is_refused(size: int) -> None:
    encoded = avro(FOOTER, b"prefix of sixteen", 1 << 40)
    assert check_decoding(encoded) is not None
    assert size < len(encoded)
    with pytest.raises(FormatError):
        StandardKeyMetadata.decode(encoded[:size])


@pytest.mark.parametrize("size", [16, 24, 32])
def test_generated_ones_are_fresh(size: int) -> None:
    many = [StandardKeyMetadata.generate(size) for _ in range(100)]
    assert {len(metadata.key) for metadata in many} == {size}
    assert {len(metadata.aad_prefix or b"") for metadata in many} == {16}
    assert {metadata.file_length for metadata in many} == {None}
    assert len({metadata.key for metadata in many}) == 100
    assert len({metadata.aad_prefix for metadata in many}) == 100
    assert len(StandardKeyMetadata.generate().key) == 16


def test_a_length_is_added_to_a_copy() -> None:
    metadata = StandardKeyMetadata.generate()
    longer = metadata.with_length(36)
    assert metadata.file_length is None
    assert longer == StandardKeyMetadata(
        key=metadata.key, aad_prefix=metadata.aad_prefix, file_length=36
    )
    assert longer != metadata
    assert len({metadata, longer, longer.with_length(36)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        metadata.file_length = 36  # type: ignore[misc]  # the mistake


@pytest.mark.parametrize("length", [np.int64(36), np.uint8(36), 36])
def test_a_length_of_numpy_is_one(length: Any) -> None:
    metadata = StandardKeyMetadata(key=FOOTER, file_length=length)
    assert type(metadata.file_length) is int
    assert metadata.encode() == avro(FOOTER, None, 36)


@each_case(
    "changes",
    [
        {"key": bytes(15)},
        {"key": "0123456789012345"},
        {"key": None},
        {"aad_prefix": "text"},
        {"aad_prefix": 16},
        {"file_length": 2**63},
        {"file_length": -(2**63) - 1},
        {"file_length": "36"},
        {"file_length": 36.0},
        {"file_length": True},
    ],
    ids=repr,
)
def test_a_callers_mistake_is_an_error(changes: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        StandardKeyMetadata(**({"key": FOOTER} | changes))
    assert not isinstance(caught.value, ModcryptError)


@pytest.mark.parametrize("wrong", ["text", 5, None])
def test_only_bytes_are_decoded(wrong: Any) -> None:
    with pytest.raises((TypeError, FormatError)):
        StandardKeyMetadata.decode(wrong)
