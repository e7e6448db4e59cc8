"""Verify an encrypted Parquet file with only `cryptography`, independently of modcrypt.

This was written from the text of Parquet Modular Encryption (PME), and shares no code with the
package: it has its own Thrift reader, AADs, ciphers and walk. It opens every module that the keys
open: footer or footer signature, column metadata, page headers, pages, dictionaries, indexes, Bloom
filters.

    python tools/verify_pme.py FILE --keys keys.json [--ctr] [--partial]

keys.json: {"footer_key": HEX, "column_keys": {"dotted.leaf.path": HEX}, "aad_prefix": HEX}.
It ignores unencrypted parts, and does not decompress pages.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

(
    FOOTER, COLUMN_METADATA, DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_HEADER, DICTIONARY_PAGE_HEADER,
    COLUMN_INDEX, OFFSET_INDEX, BLOOM_FILTER_HEADER, BLOOM_FILTER_BITSET,
) = range(10)  # fmt: skip
ALGORITHMS = {1: "AES_GCM_V1", 2: "AES_GCM_CTR_V1"}
FILE_UNIQUE_SIZE = 8  # bytes that every compliant writer makes


Address: TypeAlias = tuple[int, int | None, int | None, int | None]
"""Module type, row group, column, page."""
Part: TypeAlias = "tuple[int, int, Callable[[int, int, _Chunk], None], _Chunk]"
"""Start and end in the file, the walk over it, and the chunk that it belongs to."""


class Module(NamedTuple):
    """One module that opened. The offset is None for modules inside an encrypted footer."""

    type: int
    row_group: int | None
    column: int | None
    page: int | None
    offset: int | None
    size: int
    nonce: bytes = b""


class VerifyError(Exception):
    """The file does not verify; has an error code, and the module's address if known."""

    def __init__(self, word: str, message: str, address: Address | None = None) -> None:
        self.word, self.address = word, address
        super().__init__(f"{word}: {message}" + ("" if address is None else f", module {address}"))


# --- compact Thrift: structs become dicts of field id to value ------------------------------------


class Binary(bytes):
    """A binary field that knows its position."""

    at: int


class _Thrift:
    """A reader of compact Thrift from `data[at:]`."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise VerifyError("format", "a varint is too long")

    def integer(self) -> int:
        raw = self.varint()
        return (raw >> 1) ^ -(raw & 1)

    def binary(self) -> Binary:
        size = self.varint()
        if self.at + size > len(self.data):
            raise VerifyError("limit", f"a binary of {size} bytes passes the end")
        value = Binary(self.data[self.at : self.at + size])
        value.at = self.at
        self.at += size
        return value

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > 64:
            raise VerifyError("limit", "nested too deep")
        fields: dict[int, Any] = {}
        last = 0
        while head := self.byte():
            last = last + (head >> 4) if head >> 4 else self.integer()
            kind = head & 15
            fields[last] = kind == 1 if kind in (1, 2) else self.value(kind, depth)
        return fields

    def value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2, 3):  # a bool in a list takes a byte
            return self.byte()
        if kind in (4, 5, 6):
            return self.integer()
        if kind == 7:
            self.at += 8
            return struct.unpack_from("<d", self.data, self.at - 8)[0]
        if kind == 8:
            return self.binary()
        if kind in (9, 10):
            head = self.byte()
            count = head >> 4 if head >> 4 < 15 else self.varint()
            return [self.value(head & 15, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.struct(depth + 1)
        raise VerifyError("format", f"Thrift type {kind} has no place in a footer")  # nor do maps


def read_struct(data: bytes, at: int = 0) -> tuple[dict[int, Any], int]:
    """Read the struct at `data[at:]`; return it and the position after it."""
    reader = _Thrift(data, at)
    return reader.struct(), reader.at


# --- modules: AAD (PME 4.4.2) and framing (PME 5.1) -----------------------------------------------


def module_aad(file_aad: bytes, kind: int, *ordinals: int | None) -> bytes:
    """Return prefix and file-unique, then the type's byte and the ordinals that it has."""
    given = [ordinal for ordinal in ordinals if ordinal is not None]
    if any(not 0 <= ordinal < 1 << 15 for ordinal in given):
        raise VerifyError("limit", f"ordinals {given} do not all fit an int16")
    return file_aad + struct.pack(f"<B{len(given)}h", kind, *given)


def open_module(key: bytes, aad: bytes, module: bytes, *, ctr: bool = False) -> bytes:
    """Open `length | nonce | ciphertext | tag`, without tag under CTR; the framing must fit."""
    if len(module) < (16 if ctr else 32) or u32(module, 0) != len(module) - 4:
        raise VerifyError("truncation", f"the length field does not fit {len(module)} bytes")
    nonce, sealed = module[4:16], module[16:]
    if ctr:  # PME 4.2.2: the IV is the nonce and 31 bits of 0, then a 1
        return Cipher(AES(key), CTR(nonce + b"\0\0\0\1")).decryptor().update(sealed)
    try:
        return AESGCM(key).decrypt(nonce, sealed, aad)
    except InvalidTag:
        raise VerifyError("tag", "wrong key, wrong AAD or altered bytes") from None


def u32(data: bytes, at: int) -> int:
    """Return the value of a length field."""
    value: int = struct.unpack_from("<I", data, at)[0]
    return value


# --- the file -------------------------------------------------------------------------------------


class _Chunk(NamedTuple):
    """An encrypted column chunk; the walk adds offsets and sizes to `pages`."""

    row_group: int
    column: int
    key: bytes
    md: dict[int, Any]
    pages: list[tuple[int, int]]

    def address(self, kind: int, page: int | None = None) -> Address:
        return kind, self.row_group, self.column, page


class _Verification:
    def __init__(self, data: bytes, footer_key: bytes | None, aad_prefix: bytes | None) -> None:
        self.data, self.footer_key, self.prefix = data, footer_key, aad_prefix
        self.file_aad, self.ctr = b"", False
        self.found: list[Module] = []

    def footer(self, algorithms: tuple[str, ...], partial: bool) -> tuple[dict[int, Any], int]:
        """Open the footer, or check its signature (PME 5.4, 5.5); return it and its start."""
        data = self.data
        magic, end = data[-4:], len(data) - 8
        if end < 4 or magic not in (b"PAR1", b"PARE") or data[:4] != magic:
            raise VerifyError("format", "the magics are not those of a Parquet file")
        start = end - u32(data, end)
        if start < 4:
            raise VerifyError("limit", "the footer's length passes the file")
        fields, at = read_struct(data[:end], start)
        if magic == b"PARE":
            self.algorithm(fields[1], algorithms)
            if self.footer_key is None:
                raise VerifyError("no-key", "the footer is encrypted")
            address = (FOOTER, None, None, None)
            opened, _ = read_struct(self.open(self.footer_key, address, at, end - at))
            self.note_writer(opened)
            return opened, start
        if 8 not in fields:
            raise VerifyError("plaintext", "the file is not encrypted, or its signature is gone")
        if at != end - 28:
            raise VerifyError("format", "a signature of 28 bytes must follow the footer")
        self.algorithm(fields[8], algorithms)
        if self.footer_key is not None:
            aad, nonce = module_aad(self.file_aad, FOOTER), data[end - 28 : end - 16]
            again = AESGCM(self.footer_key).encrypt(nonce, data[start : end - 28], aad)
            if again[-16:] != data[end - 16 : end]:
                raise VerifyError("signature", "the footer's signature does not fit")
            self.found.append(Module(FOOTER, None, None, None, start, end - start, nonce))
        elif not partial:
            raise VerifyError("no-key", "the footer is signed")
        self.note_writer(fields)
        return fields, start

    def note_writer(self, footer: dict[int, Any]) -> None:
        """Note whether data pages V2 are compressed although headers deny it (ARROW-10353)."""
        name = bytes(footer.get(6, b"")).split()
        self.old_arrow = name[:1] == [b"parquet-cpp"] and name[2:3] < [b"2"]

    def algorithm(self, union: dict[int, Any], accepted: tuple[str, ...]) -> None:
        """Take algorithm and file AAD from EncryptionAlgorithm (PME 5.2)."""
        (number, fields), *more = union.items()
        if more or ALGORITHMS.get(number) not in accepted or 2 not in fields:
            raise VerifyError("unsupported", f"algorithm {number}, or no aad_file_unique")
        stored, unique, supply = fields.get(1, b""), fields[2], fields.get(3, False)
        if self.prefix is None:
            wrong = supply and not stored
        else:  # the border between prefix and file-unique is not authenticated
            unlike = stored != self.prefix if stored else bool(self.prefix) != supply
            wrong = unlike or len(unique) != FILE_UNIQUE_SIZE
        if wrong:
            raise VerifyError("aad-prefix", "missing, unused, another one, or its border moved")
        self.ctr, self.file_aad = number == 2, bytes(stored or self.prefix or b"") + unique

    def column_metadata(self, r: int, c: int, path: str, chunk: dict[int, Any], key: bytes) -> Any:
        """Return a chunk's ColumnMetaData, decrypted if it is encrypted."""
        md, sealed = chunk.get(3), chunk.get(9)
        if sealed is not None:
            in_file = self.data[sealed.at : sealed.at + len(sealed)] == sealed
            at = sealed.at if in_file else None
            address = (COLUMN_METADATA, r, c, None)
            md, _ = read_struct(self.open(key, address, at, len(sealed), sealed))
        if md is None or join_path(md[3]) != path:
            raise VerifyError("format", f"row group {r}: no column metadata for {path}")
        return md

    def open(
        self, key: bytes, address: Address, at: int | None, size: int,
        module: bytes | None = None, *, ctr: bool = False,
    ) -> bytes:  # fmt: skip
        """Open one module at its place, or the given bytes, and record it."""
        if module is None:
            assert at is not None
            module = self.data[at : at + size]
        try:
            opened = open_module(key, module_aad(self.file_aad, *address), module, ctr=ctr)
        except VerifyError as error:
            raise VerifyError(error.word, "it does not open", address) from error
        self.found.append(Module(*address, at, size, module[4:16]))
        return opened

    def parts(self, chunk: _Chunk, fields: dict[int, Any]) -> Iterator[Part]:
        """Yield start, end and walk of the parts of a chunk: pages, indexes, Bloom filter."""
        md = chunk.md
        dictionary, data = md.get(11, 0), md[9]
        start = dictionary if dictionary and not 0 < data <= dictionary else data
        if md[7]:
            yield start, start + md[7], self.pages, chunk
        if 6 in fields:
            yield fields[6], fields[6] + fields[7], self.column_index, chunk
        if 4 in fields:
            yield fields[4], fields[4] + fields[5], self.offset_index, chunk
        if 14 in md:
            size = md.get(15)
            if size is None:  # writers before parquet-format 2.10
                size = 4 + u32(self.data, md[14])
                size += 4 + u32(self.data, md[14] + size)
            yield md[14], md[14] + size, self.bloom_filter, chunk

    def pages(self, at: int, end: int, chunk: _Chunk) -> None:
        """Walk a chunk: a header module and a page module for each page."""
        dictionary = bool(chunk.md.get(11))
        while at < end:
            page = None if dictionary else len(chunk.pages)
            head = chunk.address(DICTIONARY_PAGE_HEADER if dictionary else DATA_PAGE_HEADER, page)
            body = chunk.address(DICTIONARY_PAGE if dictionary else DATA_PAGE, page)
            size = 4 + u32(self.data, at)
            if at + size > end:
                raise VerifyError("truncation", "the module passes its chunk", head)
            header, _ = read_struct(self.open(chunk.key, head, at, size))
            if header[1] not in ((2,) if dictionary else (0, 3)):
                raise VerifyError("unsupported", f"a page of type {header[1]}", head)
            stored, start = header[3], at + size
            if not (16 if self.ctr else 32) <= stored <= end - start:
                raise VerifyError("format", f"a page of {stored} bytes does not fit", body)
            self.page(chunk, body, start, header)
            if not dictionary:
                chunk.pages.append((at, size + stored))
            at, dictionary = start + stored, False

    def page(self, chunk: _Chunk, address: Address, at: int, header: dict[int, Any]) -> None:
        """Open a page. Data pages V2 are encrypted whole or, by parquet-java, without levels."""
        size, v2 = header[3], header.get(8, {})
        levels = v2[5] + v2[6] if header[1] == 3 else 0
        clear = 0
        try:
            plain = len(self.open(chunk.key, address, at, size, ctr=self.ctr))
        except VerifyError:
            if not 0 < levels <= size:
                raise
            try:
                opened = self.open(chunk.key, address, at + levels, size - levels, ctr=self.ctr)
            except VerifyError as error:
                raise VerifyError("tag", "it opens in neither V2 layout", address) from error
            plain, clear = levels + len(opened), levels
        denied = v2.get(7) is False and not self.old_arrow
        if plain != header[2] and (chunk.md[4] == 0 or denied):
            raise VerifyError("format", f"{plain} bytes, not {header[2]}", address)
        if self.ctr and self.has_tag(chunk.key, address, self.data[at + clear : at + size]):
            raise VerifyError("integrity", "a GCM module in a file that declares CTR", address)
        if 4 in header and zlib.crc32(self.data[at : at + size]) != header[4] & 0xFFFFFFFF:
            raise VerifyError("checksum", "the CRC does not fit the stored bytes", address)

    def has_tag(self, key: bytes, address: Address, module: bytes) -> bool:
        """Return whether a module opens under GCM, whatever the file declares."""
        try:
            open_module(key, module_aad(self.file_aad, *address), module)
        except VerifyError:
            return False
        return True

    def column_index(self, at: int, end: int, chunk: _Chunk) -> None:
        self.open(chunk.key, chunk.address(COLUMN_INDEX), at, end - at)

    def offset_index(self, at: int, end: int, chunk: _Chunk) -> None:
        """Open an offset index, which must match the positions of the pages."""
        address = chunk.address(OFFSET_INDEX)
        index, _ = read_struct(self.open(chunk.key, address, at, end - at))
        if [(page[1], page[2]) for page in index[1]] != chunk.pages:
            raise VerifyError("format", "other page locations than the pages", address)

    def bloom_filter(self, at: int, end: int, chunk: _Chunk) -> None:
        """Open a Bloom filter's header and bitset, which follow each other."""
        head, bitset = chunk.address(BLOOM_FILTER_HEADER), chunk.address(BLOOM_FILTER_BITSET)
        size = 4 + u32(self.data, at)
        if at + size > end:
            raise VerifyError("truncation", "the module passes its Bloom filter", head)
        header, _ = read_struct(self.open(chunk.key, head, at, size))
        if len(self.open(chunk.key, bitset, at + size, end - at - size)) != header[1]:
            raise VerifyError("format", "another size than the header says", bitset)


def encrypted_chunks(
    row_groups: list[dict[int, Any]], leaves: list[str], column_keys: Mapping[str, bytes]
) -> Iterator[tuple[int, int, str, dict[int, Any]]]:
    """Yield row group, column, path and fields of every encrypted chunk."""
    for r, row_group in enumerate(row_groups):
        if row_group.get(7, r) != r or len(row_group[1]) != len(leaves):
            raise VerifyError("format", f"row group {r}: wrong ordinal or number of columns")
        for c, (path, chunk) in enumerate(zip(leaves, row_group[1], strict=True)):
            crypto = chunk.get(8)
            if crypto is None:
                if path in column_keys:
                    raise VerifyError("plaintext", f"{path} has a key but is not encrypted")
                continue
            if 2 in crypto and join_path(crypto[2][1]) != path:
                raise VerifyError("format", f"{path}: crypto metadata of another column")
            if not crypto.keys() & {1, 2}:
                raise VerifyError("format", f"{path}: an unknown kind of key")
            yield r, c, path, chunk


def join_path(names: list[bytes]) -> str:
    """Return a column's path in one string."""
    return ".".join(name.decode() for name in names)


def leaf_paths(schema: list[dict[int, Any]]) -> list[str]:
    """Return the dotted paths of the leaves of a flattened schema, root first."""
    leaves, elements = [], iter(schema)

    def walk(count: int, path: list[str]) -> None:
        for _ in range(count):
            element = next(elements, None)
            if element is None:
                raise VerifyError("format", "the schema ends early")
            here = [*path, element[4].decode()]
            if 1 in element:
                leaves.append(".".join(here))
            else:
                walk(element.get(5, 0), here)

    walk(next(elements, {}).get(5, 0), [])
    return leaves


def verify(
    data: bytes, footer_key: bytes | None, column_keys: Mapping[str, bytes],
    aad_prefix: bytes | None = None, *, accept_algorithms: tuple[str, ...] = ("AES_GCM_V1",),
    partial: bool = False,
) -> list[Module]:  # fmt: skip
    """Open every encrypted module: footer, column metadata, then all others in file order.

    `partial` skips modules without a key. Raises VerifyError at the first module that fails.
    """
    try:
        return _verify(data, footer_key, column_keys, aad_prefix, accept_algorithms, partial)
    except (LookupError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise VerifyError("format", f"no Parquet structure: {error!r}") from error


def _verify(
    data: bytes, footer_key: bytes | None, column_keys: Mapping[str, bytes],
    aad_prefix: bytes | None, algorithms: tuple[str, ...], partial: bool,
) -> list[Module]:  # fmt: skip
    file = _Verification(data, footer_key, aad_prefix)
    footer, body_end = file.footer(algorithms, partial)
    leaves = leaf_paths(footer[2])
    chunks = [
        (r, c, path, chunk, column_keys.get(path) if 2 in chunk[8] else footer_key)
        for r, c, path, chunk in encrypted_chunks(footer[4], leaves, column_keys)
    ]
    if lost := {path for _, _, path, _, key in chunks if key is None and not partial}:
        raise VerifyError("no-key", f"no key for {', '.join(sorted(lost))}")
    parts: list[Part] = []
    for r, c, path, chunk, key in chunks:
        if key is not None:
            md = file.column_metadata(r, c, path, chunk, key)
            parts += file.parts(_Chunk(r, c, key, md, []), chunk)
    parts.sort(key=lambda part: part[:2])
    reached = 4
    for start, end, _, _ in parts:
        if not reached <= start <= end <= body_end:
            raise VerifyError("format", f"bytes {start} to {end} overlap or are out of place")
        reached = end
    for start, end, walk, of_chunk in parts:
        walk(start, end, of_chunk)
    return file.found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--keys", type=Path, required=True, help="JSON, see the head of this file")
    parser.add_argument("--ctr", action="store_true", help="accept AES_GCM_CTR_V1")
    parser.add_argument("--partial", action="store_true", help="leave out what has no key")
    options = parser.parse_args()
    keys = json.loads(options.keys.read_text())
    prefix = keys.get("aad_prefix")
    try:
        modules = verify(
            options.file.read_bytes(),
            bytes.fromhex(keys["footer_key"]) if "footer_key" in keys else None,
            {path: bytes.fromhex(key) for path, key in keys.get("column_keys", {}).items()},
            None if prefix is None else bytes.fromhex(prefix),
            accept_algorithms=tuple(ALGORITHMS.values())[: 1 + options.ctr],
            partial=options.partial,
        )
    except VerifyError as error:
        print(error, file=sys.stderr)
        return 1
    for module in modules:
        print(*("-" if value is None else value for value in module[:6]), sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
