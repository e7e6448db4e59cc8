"""Bloom filters: their two modules, lengths and lookups."""

from __future__ import annotations

import pytest
import xxhash

from modcrypt.errors import FormatError, IntegrityError, TruncationError
from modcrypt.keys import Key
from modcrypt.module_ids import ModuleType
from modcrypt.parquet.crypto.bloom_filters import (
    BloomFilter,
    bloom_hash,
    encrypt_bloom_filter,
    may_hold,
    open_part,
)
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher
from modcrypt.parquet.format.idl import encode
from modcrypt.parquet.format.modules import Part, Span
from tests.support.forging import bloom_header

SPAN = Span(4, 200, Part.BLOOM_FILTER, 0, 0)


HEADER, BITSET = encode(bloom_header(32)), bytes(range(32))


@pytest.fixture
def cipher() -> ChunkCipher:
    return ChunkCipher(FileCipher(b"file AAD", "AES_GCM_V1"), Key(b"k" * 16), 0, 0, "a")


def seal_filter(cipher: ChunkCipher, head: bytes, bitset: bytes) -> bytes:
    """Return two modules, without regard to whether they fit together."""
    return cipher.encrypt(ModuleType.BLOOM_FILTER_HEADER, head) + cipher.encrypt(
        ModuleType.BLOOM_FILTER_BITSET, bitset
    )


def open_filter(cipher: ChunkCipher, data: bytes) -> BloomFilter:
    return open_part(cipher, SPAN._replace(end=SPAN.start + len(data)), data)


def test_a_bloom_filter_comes_back(cipher: ChunkCipher) -> None:
    data = encrypt_bloom_filter(cipher, SPAN, HEADER + BITSET)
    assert open_filter(cipher, data) == BloomFilter(HEADER, BITSET)


def test_padding_of_a_header_is_dropped(cipher: ChunkCipher) -> None:
    data = seal_filter(cipher, HEADER + bytes(100), BITSET)
    assert open_filter(cipher, data) == BloomFilter(HEADER, BITSET)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_the_header_declares_the_length_of_the_bitset(cipher: ChunkCipher, size: int) -> None:
    message = f"its header declares 32 bytes, but {size} exist"
    with pytest.raises(FormatError, match=message):
        encrypt_bloom_filter(cipher, SPAN, HEADER + bytes(size))
    with pytest.raises(FormatError, match=message):
        open_filter(cipher, seal_filter(cipher, HEADER, bytes(size)))


def test_the_modules_fill_the_span(cipher: ChunkCipher) -> None:
    data = encrypt_bloom_filter(cipher, SPAN, HEADER + BITSET)
    for wrong in (data[:-1], data + b"\0"):
        with pytest.raises(IntegrityError):
            open_filter(cipher, wrong)


def test_the_header_module_ends_within_the_span(cipher: ChunkCipher) -> None:
    data = encrypt_bloom_filter(cipher, SPAN, HEADER + BITSET)
    for declared in (len(data) - 4, len(data) - 3):
        with pytest.raises(TruncationError, match="declares"):
            open_filter(cipher, declared.to_bytes(4, "little") + data[4:])


def test_values_are_hashed_with_xxh64() -> None:
    assert bloom_hash(b"") == 0xEF46DB3751D8E999  # XXH64 of nothing, seed 0
    assert bloom_hash(b"value") == xxhash.xxh64(b"value", seed=0).intdigest()


def insert_hash(value: int, blocks: int) -> bytes:
    """Insert a hash as BloomFilter.md writes it, block by block and word by word."""
    salts = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D,
             0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)  # fmt: skip
    words = [0] * (8 * blocks)
    block = ((value >> 32) * blocks) >> 32
    for number, salt in enumerate(salts):
        words[8 * block + number] |= 1 << (((value & 0xFFFFFFFF) * salt) % 2**32 >> 27)
    return b"".join(word.to_bytes(4, "little") for word in words)


@pytest.mark.parametrize("blocks", [1, 2, 3, 8])
def test_a_hash_is_found_if_all_its_eight_bits_are_set(blocks: int) -> None:
    for number in range(20):
        value = bloom_hash(number.to_bytes(8, "little"))
        bitset = insert_hash(value, blocks)
        assert may_hold(bloom_header(len(bitset)), bitset, [value])
        for at, byte in enumerate(bitset):
            if byte:  # one bit of eight is missing
                without = bitset[:at] + b"\0" + bitset[at + 1 :]
                assert not may_hold(bloom_header(len(bitset)), without, [value])


def test_any_of_several_hashes_may_be_held() -> None:
    held, absent = bloom_hash(b"held"), bloom_hash(b"absent")
    bitset = insert_hash(held, 1)
    assert may_hold(bloom_header(32), bitset, [absent, held])
    assert not may_hold(bloom_header(32), bitset, [absent])
    assert not may_hold(bloom_header(32), bitset, [])


@pytest.mark.parametrize("size", [0, 1, 31, 33, 63])
def test_a_bitset_is_a_whole_number_of_blocks(size: int) -> None:
    with pytest.raises(FormatError, match=f"a bitset of {size} bytes"):
        may_hold(bloom_header(size), bytes(size), [1])
