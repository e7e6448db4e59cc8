"""Indexes and bloom filters of column chunks.

A bloom filter is a header module directly followed by a bitset module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from modcrypt.aead import GCM_OVERHEAD
from modcrypt.errors import FormatError, TruncationError
from modcrypt.module_ids import ModuleType
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.format.idl import ThriftStruct, decode, struct_end
from modcrypt.parquet.format.modules import STRUCTS, Part, Span

if TYPE_CHECKING:
    from modcrypt.parquet.format.byte_map import Severity


class BloomFilter(NamedTuple):
    """A decrypted bloom filter."""

    header: bytes
    bitset: bytes


def encrypt_bloom_filter(cipher: ChunkCipher | None, span: Span, data: bytes) -> bytes:
    """Encrypt the plaintext bloom filter that `span` holds (PME 4.4.2, types 8 and 9).

    Without a cipher, only check it. Raise FormatError if the header's size does not match the
    bitset.
    """
    header, size = decode("BloomFilterHeader", data)
    _check_size(span, header.numBytes, len(data) - size)
    if cipher is None:
        return data
    encrypted = cipher.encrypt(ModuleType.BLOOM_FILTER_HEADER, data[:size])
    return encrypted + cipher.encrypt(ModuleType.BLOOM_FILTER_BITSET, data[size:])


def part_modules(span: Span, data: bytes) -> list[tuple[ModuleType, int, int]]:
    """Return the modules of an index or a bloom filter, and their places in the file.

    `data` is the part's beginning, at least 4 bytes. Raise TruncationError if the length of a bloom
    filter's header leaves no bytes for a bitset.
    """
    if span.part is not Part.BLOOM_FILTER:
        return [(ModuleType[span.part.name], span.start, span.end)]
    size = 4 + int.from_bytes(data[:4], "little")
    border = span.start + size
    if not span.start + GCM_OVERHEAD <= border <= span.end - GCM_OVERHEAD:
        raise TruncationError(f"{span}: its header module declares {size} bytes")
    header, bitset = ModuleType.BLOOM_FILTER_HEADER, ModuleType.BLOOM_FILTER_BITSET
    return [(header, span.start, border), (bitset, border, span.end)]


def is_in_clear(span: Span, data: bytes) -> bool:
    """Return whether a part of an encrypted column is in plaintext: its writer left it so."""
    # arrow-rs does not encrypt bloom filters (seen up to 60.1). Since anyone can alter such a part,
    # or put it in the place of an encrypted one, it decides nothing.
    border = 4 + int.from_bytes(data[:4], "little")
    if span.part is Part.BLOOM_FILTER and border < len(data) - 4:
        border += 4 + int.from_bytes(data[border : border + 4], "little")
    if border == len(data):
        return False
    try:
        struct, size = decode(STRUCTS[span.part], data)
    except FormatError:
        return False
    return size + (struct.numBytes if span.part is Part.BLOOM_FILTER else 0) == len(data)


def open_part(cipher: ChunkCipher, span: Span, data: bytes) -> BloomFilter:
    """Decrypt an index or a bloom filter; an index has an empty bitset.

    parquet-java's padding after the struct is left out.

    Raises:
        TruncationError: The modules' lengths do not add up to the span's.
        TagMismatchError: A module does not authenticate.
        FormatError: A bloom filter's header and bitset differ in size.
    """
    header, *rest = (
        cipher.decrypt(kind, data[start - span.start : end - span.start])
        for kind, start, end in part_modules(span, data)
    )
    size, bitset = struct_end(header), b"".join(rest)
    if span.part is Part.BLOOM_FILTER:
        _check_size(span, decode("BloomFilterHeader", header)[0].numBytes, len(bitset))
    return BloomFilter(header[:size], bitset)


def _check_size(span: Span, declared: int, actual: int) -> None:
    if declared != actual:
        raise FormatError(f"{span}: its header declares {declared} bytes, but {actual} exist")


BLOCK = 32  # size of a block in bytes

# A bit in each of a block's eight words (BloomFilter.md, "Split block Bloom filters").
_SALTS = (
    0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
)  # fmt: skip


def bloom_hash(value: bytes) -> int:
    """Hash a value's plain encoding (a byte array without its length) with XXH64, seed 0."""
    import xxhash  # imported here because only equality filters need it

    return xxhash.xxh64_intdigest(value)


def is_known_kind(header: ThriftStruct) -> bool:
    """Return whether a filter has the one algorithm, hash and compression that are specified."""
    known = header.algorithm.BLOCK, header.hash.XXHASH, header.compression.UNCOMPRESSED
    return None not in known


def may_hold(header: ThriftStruct, bitset: bytes, hashes: Iterable[int]) -> bool:
    """Return whether the filter may hold one of these hashes; True for a filter of unknown kind.

    Raise FormatError if the bitset is not a whole number of blocks.
    """
    if not is_known_kind(header):
        return True
    if not bitset or len(bitset) % BLOCK:
        raise FormatError(
            f"a bitset of {len(bitset)} bytes is not a whole number of 32-byte blocks"
        )
    return any(_has_hash(bitset, value) for value in hashes)


def _has_hash(bitset: bytes, value: int) -> bool:
    start = (value >> 32) * (len(bitset) // BLOCK) >> 32
    block = int.from_bytes(bitset[start * BLOCK : (start + 1) * BLOCK], "little")
    key = value & 0xFFFFFFFF
    return all(
        block >> (32 * word + ((key * salt & 0xFFFFFFFF) >> 27)) & 1
        for word, salt in enumerate(_SALTS)
    )


_INT32, _INT64, _BYTE_ARRAY = 1, 2, 6  # Type of the IDL


def missing_in_bloom(
    header: ThriftStruct, bitset: bytes, md: ThriftStruct, element: ThriftStruct
) -> bool:
    """Return whether a bloom filter lacks a value that the chunk's statistics contain."""
    statistics = md.statistics
    if statistics is None or header.algorithm.BLOCK is None or len(bitset) % BLOCK:
        return False
    bounds = (
        (statistics.min_value, statistics.is_min_value_exact),
        (statistics.max_value, statistics.is_max_value_exact),
    )
    for value, is_exact in bounds:
        exact = element.type in (_INT32, _INT64) or (element.type == _BYTE_ARRAY and is_exact)
        if value is not None and exact and not may_hold(header, bitset, [bloom_hash(value)]):
            return True
    return False


def bloom_faults(header: ThriftStruct, bitset: int | None) -> Iterator[tuple[str, str, Severity]]:
    """Yield the faults of a bloom filter: error code, message and severity.

    `bitset` is the bitset's size in bytes; None if it is unknown.
    """
    if bitset is not None and header.numBytes != bitset:
        message = f"its bloom filter declares {header.numBytes} bytes, but {bitset} exist"
        yield "format", message, "fault"
    if not is_known_kind(header):
        yield "unsupported", "modcrypt does not know the kind of its bloom filter", "warning"
    elif header.numBytes <= 0 or header.numBytes % BLOCK:
        message = f"its bloom filter has {header.numBytes} bytes: not a whole number of blocks"
        yield "format", message, "fault"
