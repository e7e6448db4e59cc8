"""A column chunk's bloom filter: header and bitset, a module each, one directly after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from modcrypt.aad import ModuleType
from modcrypt.errors import FormatError, TruncationError
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.modules import Span

__all__ = ["BloomFilter", "bloom_hash", "may_hold", "open_bloom_filter", "seal_bloom_filter"]


class BloomFilter(NamedTuple):
    """An opened bloom filter, and where in its span the header's module ends."""

    header: bytes
    bitset: bytes
    border: int


def seal_bloom_filter(cipher: ChunkCipher, span: Span, data: bytes) -> bytes:
    """Seal the plain bloom filter that `span` holds (PME 4.4.2, types 8 and 9).

    Raises:
        FormatError: its header does not fit its bitset.
    """
    header, size = decode("BloomFilterHeader", data)
    _check_size(span, header.numBytes, len(data) - size)
    return cipher.seal(ModuleType.BLOOM_FILTER_HEADER, data[:size]) + cipher.seal(
        ModuleType.BLOOM_FILTER_BITSET, data[size:]
    )


def open_bloom_filter(cipher: ChunkCipher, span: Span, data: bytes) -> BloomFilter:
    """Open the two modules that `span` holds.

    Raises:
        TruncationError: their lengths do not add up to the span's.
        TagMismatchError: one does not authenticate.
        FormatError: the header does not fit the bitset.
    """
    border = 4 + int.from_bytes(data[:4], "little")
    if border > len(data):
        raise TruncationError(f"{span}: its header module declares {border} bytes")
    header = cipher.open(ModuleType.BLOOM_FILTER_HEADER, data[:border])
    bitset = cipher.open(ModuleType.BLOOM_FILTER_BITSET, data[border:])
    decoded, size = decode("BloomFilterHeader", header)  # parquet-java pads it
    _check_size(span, decoded.numBytes, len(bitset))
    return BloomFilter(header[:size], bitset, border)


def _check_size(span: Span, declared: int, found: int) -> None:
    if declared != found:
        raise FormatError(f"{span}: its header declares {declared} bytes, {found} are there")


# --- asking it -----------------------------------------------------------------------------------

_BLOCK = 32
# A bit in each of a block's eight words (BloomFilter.md, "Split block Bloom filters").
_SALTS = (
    0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
)  # fmt: skip


def bloom_hash(value: bytes) -> int:
    """Hash the plain encoding of a value, a byte array without its length: XXH64, seed 0."""
    import xxhash  # only filters that ask for equality need it

    return xxhash.xxh64_intdigest(value)


def may_hold(header: ThriftStruct, bitset: bytes, hashes: Iterable[int]) -> bool:
    """Say whether one of the values with these hashes may be there; so too of an unknown filter.

    Raises:
        FormatError: the bitset is no whole number of blocks.
    """
    known = header.algorithm.BLOCK, header.hash.XXHASH, header.compression.UNCOMPRESSED
    if None in known:
        return True
    if not bitset or len(bitset) % _BLOCK:
        raise FormatError(f"a bitset of {len(bitset)} bytes is no whole number of 32-byte blocks")
    return any(_is_set(bitset, value) for value in hashes)


def _is_set(bitset: bytes, value: int) -> bool:
    start = (value >> 32) * (len(bitset) // _BLOCK) >> 32
    block = int.from_bytes(bitset[start * _BLOCK : (start + 1) * _BLOCK], "little")
    key = value & 0xFFFFFFFF
    return all(
        block >> (32 * word + ((key * salt & 0xFFFFFFFF) >> 27)) & 1
        for word, salt in enumerate(_SALTS)
    )
