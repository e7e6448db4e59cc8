"""A column chunk's bloom filter: header and bitset, a module each, one directly after the other."""

from __future__ import annotations

from typing import NamedTuple

from modcrypt.aad import ModuleType
from modcrypt.errors import FormatError, TruncationError
from modcrypt.parquet.ciphers import ChunkCipher
from modcrypt.parquet.idl import decode
from modcrypt.parquet.modules import Span

__all__ = ["BloomFilter", "open_bloom_filter", "seal_bloom_filter"]


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
