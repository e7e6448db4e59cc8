"""Alterations of a file by an attacker, with or without the footer key.

Sealing and signing here go straight to `cryptography`: a fault in modcrypt's own `aead` or
`aad` must not hide itself. Footers are changed as structs of the IDL and spelt again.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from modcrypt import (
    FileDecryptionProperties,
    FileEncryptionProperties,
    decrypt_parquet,
    encrypt_parquet,
)
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, new

Change = Callable[[ThriftStruct], object]

FOOTER_SUFFIX = b"\x00"

SMALL_FILTER = {"ndv": 1000}
"""A bloom filter for few values: by default, PyArrow fills a MiB per chunk and folds it to that."""


def bloom_header(size: int) -> ThriftStruct:
    """Return the header of a bloom filter of this many bytes."""
    return new(
        "BloomFilterHeader",
        numBytes=size,
        algorithm=new("BloomFilterAlgorithm", BLOCK=new("SplitBlockAlgorithm")),
        hash=new("BloomFilterHash", XXHASH=new("XxHash")),
        compression=new("BloomFilterCompression", UNCOMPRESSED=new("Uncompressed")),
    )


def plain_file(table: pa.Table, **options: Any) -> bytes:
    """Write a plaintext file with PyArrow."""
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def encrypt_bytes(source: bytes, properties: FileEncryptionProperties, **options: Any) -> bytes:
    out = io.BytesIO()
    encrypt_parquet(source, out, properties, **options)
    return out.getvalue()


def decrypt_bytes(source: bytes, properties: FileDecryptionProperties, **options: Any) -> bytes:
    out = io.BytesIO()
    decrypt_parquet(source, out, properties, **options)
    return out.getvalue()


def seal(key: bytes, plaintext: bytes, aad: bytes) -> bytes:
    """Return a GCM module, framing included (PME 5.1)."""
    nonce = os.urandom(12)
    body = nonce + AESGCM(key).encrypt(nonce, plaintext, aad)
    return len(body).to_bytes(4, "little") + body


def open_module(key: bytes, module: bytes, aad: bytes) -> bytes:
    return AESGCM(key).decrypt(module[4:16], module[16:], aad)


def sign(key: bytes, footer: bytes, aad: bytes) -> bytes:
    """Return nonce and tag of a plaintext footer (PME 5.5)."""
    sealed = seal(key, footer, aad)
    return sealed[4:16] + sealed[-16:]


def module_suffix(kind: int, row_group: int, column: int, page: int | None = None) -> bytes:
    """Return the AAD suffix of a module in a column chunk (PME 4.4.2)."""
    ordinals = (row_group, column) if page is None else (row_group, column, page)
    return bytes((kind,)) + b"".join(o.to_bytes(2, "little") for o in ordinals)


def split_tail(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the body with its magic, what stands before the closing length, and the magic."""
    size = int.from_bytes(data[-8:-4], "little")
    return data[: -8 - size], data[-8 - size : -8], data[-4:]


def join_tail(body: bytes, tail: bytes, magic: bytes) -> bytes:
    return body + tail + len(tail).to_bytes(4, "little") + magic


def read_plain_footer(data: bytes) -> ThriftStruct:
    return decode("FileMetaData", split_tail(data)[1])[0]


def without_repetition_types(data: bytes, root: int | None = None) -> bytes:
    """Remove the repetition type of required elements of a plaintext file; set the root's."""

    def change(metadata: ThriftStruct) -> None:
        metadata.schema[0].repetition_type = root
        for element in metadata.schema[1:]:
            element.repetition_type = element.repetition_type or None

    return edit_plain(data, change)


def edit_plain(data: bytes, change: Change) -> bytes:
    """Change the footer of a plaintext file."""
    body, tail, magic = split_tail(data)
    metadata, _ = decode("FileMetaData", tail)
    change(metadata)
    return join_tail(body, encode(metadata), magic)


def edit_page_headers(data: bytes, change: Change) -> bytes:
    """Change the page headers of a plaintext file, which loses its indexes and bloom filters."""
    out = bytearray(data[:4])

    def copy_chunks(metadata: ThriftStruct) -> None:
        for row_group in metadata.row_groups:
            for chunk in row_group.columns:
                _copy_pages(data, chunk.meta_data, out, change)
                chunk.column_index_offset = chunk.column_index_length = None
                chunk.offset_index_offset = chunk.offset_index_length = None
            sizes = [chunk.meta_data.total_compressed_size for chunk in row_group.columns]
            row_group.total_compressed_size = sum(sizes)
            row_group.file_offset = None

    _, tail, magic = split_tail(edit_plain(data, copy_chunks))
    return join_tail(bytes(out), tail, magic)


def _copy_pages(data: bytes, md: ThriftStruct, out: bytearray, change: Change) -> None:
    at = md.dictionary_page_offset or md.data_page_offset
    end, start, first, grown = at + md.total_compressed_size, len(out), None, 0
    while at < end:
        header, body = decode("PageHeader", data, at)
        after = body + header.compressed_page_size
        if header.dictionary_page_header is None and first is None:
            first = len(out)
        change(header)
        raw = encode(header)
        out += raw + data[body:after]
        grown, at = grown + len(raw) - (body - at), after
    md.dictionary_page_offset = start if md.dictionary_page_offset else None
    md.data_page_offset = first
    md.bloom_filter_offset = md.bloom_filter_length = None
    md.total_compressed_size += grown
    md.total_uncompressed_size += grown


@dataclass
class Opened:
    """An encrypted file as its footer-key holder sees it."""

    body: bytes
    crypto: bytes  # FileCryptoMetaData as it is spelt; empty in plaintext footer mode
    metadata: ThriftStruct
    file_aad: bytes
    magic: bytes

    def seal_footer(self, key: bytes) -> bytes:
        """Seal or sign the footer again."""
        footer, aad = encode(self.metadata), self.file_aad + FOOTER_SUFFIX
        if self.magic == b"PARE":
            return join_tail(self.body, self.crypto + seal(key, footer, aad), self.magic)
        return join_tail(self.body, footer + sign(key, footer, aad), self.magic)


def open_file(data: bytes, key: bytes, aad_prefix: bytes = b"") -> Opened:
    body, tail, magic = split_tail(data)
    if magic == b"PAR1":
        metadata, _ = decode("FileMetaData", tail)
        file_aad = _file_aad(metadata.encryption_algorithm, aad_prefix)
        return Opened(body, b"", metadata, file_aad, magic)
    crypto, end = decode("FileCryptoMetaData", tail)
    file_aad = _file_aad(crypto.encryption_algorithm, aad_prefix)
    metadata, _ = decode("FileMetaData", open_module(key, tail[end:], file_aad + FOOTER_SUFFIX))
    return Opened(body, tail[:end], metadata, file_aad, magic)


def _file_aad(union: ThriftStruct, supplied: bytes) -> bytes:
    algorithm = union.AES_GCM_V1 or union.AES_GCM_CTR_V1
    prefix: bytes = algorithm.aad_prefix or supplied
    unique: bytes = algorithm.aad_file_unique
    return prefix + unique


def change_footer(data: bytes, key: bytes, change: Change) -> bytes:
    """Change the footer of an encrypted file as a holder of the footer key can."""
    file = open_file(data, key)
    change(file.metadata)
    return file.seal_footer(key)


def edit_crypto(data: bytes, change: Change) -> bytes:
    """Change FileCryptoMetaData, for which no key is needed: nothing authenticates it."""
    body, tail, magic = split_tail(data)
    crypto, end = decode("FileCryptoMetaData", tail)
    change(crypto)
    return join_tail(body, encode(crypto) + tail[end:], magic)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
