"""Alterations of files by the attackers of the tamper matrix.

Some have no key, some the footer key, a column's key, or key material to write to. What they seal
or sign goes straight to `cryptography` (`tests.support.forging`).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

from modcrypt.kms.signing.ledger import SEAL_NAME
from modcrypt.parquet import ModuleType
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode, encode, new, set_extension
from tests.support import forging
from tests.support.forging import plain_file
from tests.support.keys import FOOTER_KEY
from tests.support.tamper.files import (
    ADDRESS,
    CITY,
    DATA,
    MATERIAL,
    PLAIN,
    Base,
    Files,
    encode_json,
    people,
)

Forge: TypeAlias = Callable[[Base], Files]

# --- bytes ---------------------------------------------------------------------------------------


def put(data: bytes, at: int, new_bytes: bytes) -> bytes:
    return data[:at] + new_bytes + data[at + len(new_bytes) :]


def xor_at(data: bytes, at: int, mask: bytes) -> bytes:
    return put(data, at, bytes(a ^ b for a, b in zip(data[at:], mask, strict=False)))


def with_data(change: Callable[[Base], bytes]) -> Forge:
    """Alter only the file, not the files beside it."""
    return lambda base: {**base.files, DATA: change(base)}


def flip(
    kind: ModuleType, at: int, column: str = "bonus", *, mask: bytes = b"\x01", page: int = 0
) -> Forge:
    """Flip bits of a module, counted from its start or its end."""

    def change(base: Base) -> bytes:
        span = base.module(kind, column, page=page)
        return xor_at(base.data, (span.start if at >= 0 else span.end) + at, mask)

    return with_data(change)


def flip_file(at: int, mask: bytes = b"\x01") -> Forge:
    """Flip bits, counted from the file's start or end."""
    return with_data(lambda base: xor_at(base.data, at % len(base.data), mask))


def flip_all(*kinds: ModuleType, column: str) -> Forge:
    """Flip a bit in several modules of a chunk."""

    def change(base: Base) -> bytes:
        data = base.data
        for kind in kinds:
            data = xor_at(data, base.module(kind, column).start + 20, b"\x01")
        return data

    return with_data(change)


def footer_field(name: str) -> Forge:
    """Flip a bit of a value in FileCryptoMetaData, which no key guards."""

    def change(base: Base) -> bytes:
        body, tail, _ = forging.split_tail(base.data)
        crypto, _ = decode("FileCryptoMetaData", tail)
        values = {
            "unique": crypto.encryption_algorithm.AES_GCM_V1.aad_file_unique,
            "key metadata": crypto.key_metadata,
        }
        at = base.data.index(values[name], len(body))
        return xor_at(base.data, at + len(values[name]) - 3, b"\x01")

    return with_data(change)


Place: TypeAlias = "tuple[str, int, int]"
"""Column, row group, page."""


def page_of(base: Base, place: Place) -> slice:
    """Return the range of a page with its header."""
    column, row_group, page = place
    address = {"row_group": row_group, "page": page}
    header = base.module(ModuleType.DATA_PAGE_HEADER, column, **address)
    body = base.module(ModuleType.DATA_PAGE, column, **address)
    return slice(header.start, body.end)


def exchange(data: bytes, first: slice, second: slice, source: bytes | None = None) -> bytes:
    """Exchange two ranges, or put the second one of `source` in the place of the first."""
    assert first.stop - first.start == second.stop - second.start
    if source is not None:
        return put(data, first.start, source[second])
    return put(put(data, first.start, data[second]), second.start, data[first])


def swap_pages(first: Place, second: Place) -> Forge:
    return with_data(lambda base: exchange(base.data, page_of(base, first), page_of(base, second)))


def repeat_page(base: Base) -> bytes:
    first, second = (page_of(base, ("bonus", 0, page)) for page in (0, 1))
    return exchange(base.data, second, first, base.data)


def page_of_another_file(base: Base) -> bytes:
    place = page_of(base, ("bonus", 0, 0))
    return exchange(base.data, place, place, base.other)


def swap_modules(
    kind: ModuleType, first: tuple[str, int, int], second: tuple[str, int, int]
) -> Forge:
    """Exchange single modules: headers without their pages, indexes."""

    def change(base: Base) -> bytes:
        spans = [base.module(kind, c, row_group=r, page=p) for c, r, p in (first, second)]
        former, latter = (slice(span.start, span.end) for span in spans)
        return exchange(base.data, former, latter)

    return with_data(change)


def chunk_of_another_file(base: Base) -> bytes:
    first, last = (page_of(base, ("bonus", 0, page)) for page in (0, 1))
    place = slice(first.start, last.stop)
    return exchange(base.data, place, place, base.other)


# --- footers and tails ---------------------------------------------------------------------------


def other_footer(base: Base) -> bytes:
    """Put the footer of an earlier version under the pages of this one."""
    body, _, _ = forging.split_tail(base.data)
    old_body, tail, magic = forging.split_tail(base.other)
    assert len(body) == len(old_body)
    return forging.join_tail(body, tail, magic)


def other_keys_crypto(base: Base) -> bytes:
    """Take the unauthenticated head of another file's footer: its file-unique and key metadata."""
    body, tail, magic = forging.split_tail(base.data)
    _, end = decode("FileCryptoMetaData", tail)
    _, other_tail, _ = forging.split_tail(base.other)
    _, other_end = decode("FileCryptoMetaData", other_tail)
    return forging.join_tail(body, other_tail[:other_end] + tail[end:], magic)


def cut_page(base: Base) -> bytes:
    """Take the last page of a chunk out; all that follows moves up."""
    place = page_of(base, ("bonus", 1, 1))
    return base.data[: place.start] + base.data[place.stop :]


def cut_row_group(base: Base) -> bytes:
    """Take the pages of the last row group out, and leave the footer."""
    spans = [
        span
        for span in base.modules
        if span.module.row_group == 1 and span.module.type in range(2, 6)
    ]
    start, end = min(s.start for s in spans), max(s.end for s in spans)
    return base.data[:start] + base.data[end:]


def edit_signed_footer(change: forging.Change) -> Forge:
    """Alter a plaintext footer, and leave its signature."""

    def edit(base: Base) -> bytes:
        body, tail, magic = forging.split_tail(base.data)
        metadata, _ = decode("FileMetaData", tail)
        change(metadata)
        return forging.join_tail(body, encode(metadata) + tail[-28:], magic)

    return with_data(edit)


def holder(change: forging.Change) -> Forge:
    """Alter a footer, and seal or sign it again with the footer key."""
    return with_data(lambda base: forging.change_footer(base.data, FOOTER_KEY, change))


def crypto(change: forging.Change, *, other: bool = False) -> Forge:
    """Alter FileCryptoMetaData, of this file or of the other one in its place."""
    return with_data(
        lambda base: forging.edit_crypto(base.other if other else base.data, change)
    )  # fmt: skip


def find_chunk(metadata: ThriftStruct, column: str, row_group: int = 0) -> ThriftStruct:
    names = [element.name.decode() for element in metadata.schema[1:]]
    chunk: ThriftStruct = metadata.row_groups[row_group].columns[names.index(column)]
    return chunk


def other_rows(metadata: ThriftStruct) -> None:
    metadata.num_rows -= 10
    metadata.row_groups[1].num_rows = 0


def drop_last(metadata: ThriftStruct) -> None:
    metadata.num_rows -= metadata.row_groups.pop().num_rows


def drop_first(metadata: ThriftStruct) -> None:
    metadata.num_rows -= metadata.row_groups.pop(0).num_rows


def drop_first_and_renumber(metadata: ThriftStruct) -> None:
    drop_first(metadata)
    metadata.row_groups[0].ordinal = 0


def reorder(metadata: ThriftStruct) -> None:
    metadata.row_groups.reverse()


def reorder_and_renumber(metadata: ThriftStruct) -> None:
    reorder(metadata)
    for position, row_group in enumerate(metadata.row_groups):
        row_group.ordinal = position


def false_city_statistics(metadata: ThriftStruct) -> None:
    """Say that no city of the first row group is among those asked for."""
    statistics = find_chunk(metadata, "city").meta_data.statistics
    statistics.min_value = statistics.max_value = b"zzzz"
    statistics.is_min_value_exact = statistics.is_max_value_exact = None


def false_id_statistics(metadata: ThriftStruct) -> None:
    statistics = find_chunk(metadata, "id").meta_data.statistics
    statistics.min_value = statistics.max_value = (900).to_bytes(8, "little")
    statistics.min = statistics.max = None


def false_legacy_copy(metadata: ThriftStruct) -> None:
    """Lead the readable copy of a column's metadata to the pages of another column."""
    for r in range(len(metadata.row_groups)):
        forged = find_chunk(metadata, "salary", r).meta_data
        true = find_chunk(metadata, "bonus", r).meta_data
        forged.data_page_offset = true.data_page_offset
        forged.total_compressed_size = true.total_compressed_size


def flip_column_metadata(metadata: ThriftStruct) -> None:
    chunk = find_chunk(metadata, "salary")
    chunk.encrypted_column_metadata = xor_at(chunk.encrypted_column_metadata, 30, b"\x01")


def swap_column_metadata(metadata: ThriftStruct) -> None:
    one, two = (find_chunk(metadata, "salary", r) for r in (0, 1))
    one.encrypted_column_metadata, two.encrypted_column_metadata = (
        two.encrypted_column_metadata, one.encrypted_column_metadata,
    )  # fmt: skip


def rename_columns(metadata: ThriftStruct) -> None:
    """Let two columns of one type exchange their names, whose pages stay where they are."""
    by_name = {element.name: element for element in metadata.schema[1:]}
    one, two = by_name[b"id"], by_name[b"bonus"]
    one.name, two.name = two.name, one.name
    for row_group in metadata.row_groups:
        for chunk in row_group.columns:
            path = chunk.meta_data.path_in_schema if chunk.meta_data else None
            if path in ([b"id"], [b"bonus"]):
                chunk.meta_data.path_in_schema = [b"bonus" if path == [b"id"] else b"id"]


def cut_last_pages(base: Base) -> bytes:
    """Take the last page from every column but those with keys of their own, and five rows."""

    def change(metadata: ThriftStruct) -> None:
        for name in ("id", "bonus", "city"):
            chunk = find_chunk(metadata, name, 1)
            md = chunk.meta_data
            md.total_compressed_size = _second_page(base, metadata, name) - md.data_page_offset
            md.num_values -= 5
            chunk.column_index_offset = chunk.column_index_length = None
            chunk.offset_index_offset = chunk.offset_index_length = None
        metadata.row_groups[1].num_rows -= 5
        metadata.num_rows -= 5

    return forging.change_footer(base.data, FOOTER_KEY, change)


def _second_page(base: Base, metadata: ThriftStruct, name: str) -> int:
    """Return where the second page of a chunk in the second row group starts."""
    if name != "city":
        return base.module(ModuleType.DATA_PAGE_HEADER, name, row_group=1, page=1).start
    chunk = find_chunk(metadata, name, 1)
    index, _ = decode("OffsetIndex", base.data, chunk.offset_index_offset)
    offset: int = index.page_locations[1].offset
    return offset


# --- signatures and labels -----------------------------------------------------------------------


def edit_city(data: bytes) -> bytes:
    """Alter a value of the plaintext column that occurs only once in the file."""
    assert data.count(CITY.encode()) == 1
    return data.replace(CITY.encode(), b"Atlantis!")


def strip_signature(base: Base) -> bytes:
    """Make a signed footer an unsigned one, and alter the plaintext column."""
    body, tail, magic = forging.split_tail(base.data)
    metadata, _ = decode("FileMetaData", tail)
    metadata.encryption_algorithm = metadata.footer_signing_key_metadata = None
    return forging.join_tail(edit_city(body), encode(metadata), magic)


def plaintext_instead(base: Base) -> bytes:
    """Put a plaintext file of other rows in the place of the file."""
    return plain_file(people(1), **PLAIN)


def relabel(change_pages: Callable[[Base], bytes]) -> Forge:
    """Rename AES_GCM_V1 to AES_GCM_CTR_V1."""

    def rename(metadata: ThriftStruct) -> None:
        gcm = metadata.encryption_algorithm.AES_GCM_V1
        label = new(
            "AesGcmCtrV1",
            aad_file_unique=gcm.aad_file_unique,
            supply_aad_prefix=gcm.supply_aad_prefix,
        )
        metadata.encryption_algorithm = new("EncryptionAlgorithm", AES_GCM_CTR_V1=label)

    def change(base: Base) -> bytes:
        data = change_pages(base)
        if data[-4:] == b"PARE":
            return forging.edit_crypto(data, rename)
        return edit_signed_footer(rename)(base)[DATA]

    return with_data(change)


def leave_unchanged(base: Base) -> bytes:
    return base.data


def forge_pages(base: Base) -> bytes:
    """Turn GCM pages into CTR ones that open, but for 16 bytes, to what they held, bits flipped.

    GCM encrypts from counter 2 on, PME's CTR from 1: sixteen bytes put before the ciphertext
    move it to its keystream, and dropping the tag makes room for them.
    """
    data = base.data
    for span in base.modules:
        if span.module.type is ModuleType.DATA_PAGE:
            body = bytes(byte ^ 0x40 for byte in data[span.start + 16 : span.end - 16])
            data = put(data, span.start + 16, bytes(16) + body)
    return data


# --- AAD prefixes --------------------------------------------------------------------------------


def _gcm(metadata: ThriftStruct) -> ThriftStruct:
    struct: ThriftStruct = metadata.encryption_algorithm.AES_GCM_V1
    return struct


def rename_prefix(name: bytes) -> forging.Change:
    def change(metadata: ThriftStruct) -> None:
        _gcm(metadata).aad_prefix = name

    return change


def remove_prefix(metadata: ThriftStruct) -> None:
    _gcm(metadata).aad_prefix = None


def deny_prefix(metadata: ThriftStruct) -> None:
    _gcm(metadata).supply_aad_prefix = False


def move_border(metadata: ThriftStruct) -> None:
    """Let the last byte of `part.10` be the first of the file-unique: no AAD changes by that."""
    gcm = _gcm(metadata)
    gcm.aad_prefix, gcm.aad_file_unique = b"part.1", b"0" + gcm.aad_file_unique


def lend_byte(metadata: ThriftStruct) -> None:
    """Do the same where the prefix isn't stored."""
    gcm = _gcm(metadata)
    gcm.aad_file_unique = b"0" + gcm.aad_file_unique


# --- parts without a tag -------------------------------------------------------------------------


def rewrite_crc(base: Base) -> bytes:
    """Alter a plaintext page, and its checksum in the header before it."""
    data = edit_city(base.data)
    index = find_chunk(forging.open_file(base.data, FOOTER_KEY).metadata, "city")
    locations = decode("OffsetIndex", data, index.offset_index_offset)[0].page_locations
    start = locations[1].offset
    header, end = decode("PageHeader", data, start)
    old = encode(header)
    assert old == data[start:end]
    checksum = zlib.crc32(data[end : end + header.compressed_page_size])
    header.crc = checksum - (1 << 32) if checksum >> 31 else checksum
    spelt_again = encode(header)
    if len(spelt_again) != len(old):
        raise AssertionError("a CRC of another length: choose another value for the city")
    return put(data, start, spelt_again)


def city_index(base: Base) -> bytes:
    """Let the column index of the plaintext column say that no page has the city."""
    chunk = find_chunk(forging.open_file(base.data, FOOTER_KEY).metadata, "city")
    start = chunk.column_index_offset
    old = base.data[start : start + chunk.column_index_length]
    return put(base.data, start, old.replace(b"city-", b"zity-"))


def exchange_locations(raw: bytes) -> bytes:
    index, _ = decode("OffsetIndex", raw)
    one, two = index.page_locations
    one.offset, two.offset = two.offset, one.offset
    return encode(index)


def later_rows(raw: bytes) -> bytes:
    index, _ = decode("OffsetIndex", raw)
    index.page_locations[1].first_row_index += 1
    return encode(index)


def city_offsets(change: Callable[[bytes], bytes]) -> Forge:
    """Alter the offset index of the plaintext column."""

    def edit(base: Base) -> bytes:
        chunk = find_chunk(forging.open_file(base.data, FOOTER_KEY).metadata, "city")
        start, size = chunk.offset_index_offset, chunk.offset_index_length
        return _same_size(base.data, start, start + size, change(base.data[start : start + size]))

    return with_data(edit)


def _same_size(data: bytes, start: int, end: int, new_bytes: bytes) -> bytes:
    assert len(new_bytes) == end - start
    return put(data, start, new_bytes)


def city_bloom(base: Base) -> bytes:
    """Empty the plaintext column's Bloom filter."""
    md = find_chunk(forging.open_file(base.data, FOOTER_KEY).metadata, "city").meta_data
    header, end = decode("BloomFilterHeader", base.data, md.bloom_filter_offset)
    return put(base.data, end, bytes(header.numBytes))


def clear_level(mask: int) -> Forge:
    """Alter definition levels that stand in clear before the sealed values: which are null."""

    def change(base: Base) -> bytes:
        span = base.module(ModuleType.DATA_PAGE, "name")
        stored = base.data[span.start : span.end]
        clear = next(
            n for n in range(1, len(stored)) if _is_length(stored, n)
        )  # fmt: skip
        runs = stored[:clear]
        assert runs[0] & 1  # bit-packed: one bit for each value, 1 for there
        return xor_at(base.data, span.start + 1, bytes((mask,)))

    return with_data(change)


def _is_length(stored: bytes, at: int) -> bool:
    return int.from_bytes(stored[at : at + 4], "little") == len(stored) - at - 4


#: The polynomial of CRC-32 as bytes: whatever it is added to keeps its CRC.
CRC_NEUTRAL = (1 | 0xEDB88320 << 1).to_bytes(5, "little")


# --- what holders of keys do ---------------------------------------------------------------------


def reseal_index(kind: ModuleType, column: str, change: Callable[[bytes], bytes]) -> Forge:
    """Alter an index, and seal it again with the footer key."""

    def edit(base: Base) -> bytes:
        span = base.module(kind, column)
        address = span.module
        assert address.row_group is not None
        assert address.column is not None
        aad = forging.open_file(base.data, FOOTER_KEY).file_aad
        aad += forging.module_suffix(kind, address.row_group, address.column)
        plain = forging.open_module(FOOTER_KEY, base.data[span.start : span.end], aad)
        module = forging.seal(FOOTER_KEY, change(plain), aad)
        return _same_size(base.data, span.start, span.end, module)

    return with_data(edit)


def false_bounds(raw: bytes) -> bytes:
    """Say that the ids of each page are others than those asked for."""
    index, _ = decode("ColumnIndex", raw)
    index.min_values = index.max_values = [(900).to_bytes(8, "little")] * len(index.min_values)
    return encode(index)


def replace_column(key: bytes | None) -> Forge:
    """Put a column of other values in the place of `salary`: in plaintext, or under a key."""

    def change(base: Base) -> bytes:
        twin = plain_file(people(1), **(PLAIN | {"write_page_index": False}))
        file = forging.open_file(base.data, FOOTER_KEY)
        twins = forging.read_plain_footer(twin)
        for r in range(len(file.metadata.row_groups)):
            chunk = find_chunk(file.metadata, "salary", r)
            md = copy(find_chunk(twins, "salary", r).meta_data)
            start, end = md.data_page_offset, md.data_page_offset + md.total_compressed_size
            pages = _chunk_under(key, twin[start:end], file.file_aad, r)
            md.data_page_offset, md.total_compressed_size = len(file.body), len(pages)
            file.body += pages
            _become_plain(chunk, md)
            if key is not None:
                label = new("EncryptionWithFooterKey")
                chunk.crypto_metadata = new(
                    "ColumnCryptoMetaData", ENCRYPTION_WITH_FOOTER_KEY=label
                )
        return file.seal_footer(FOOTER_KEY)

    return with_data(change)


def _become_plain(chunk: ThriftStruct, md: ThriftStruct) -> None:
    chunk.meta_data = md
    chunk.crypto_metadata = chunk.encrypted_column_metadata = None
    chunk.column_index_offset = chunk.column_index_length = None
    chunk.offset_index_offset = chunk.offset_index_length = None


def _chunk_under(key: bytes | None, plain: bytes, file_aad: bytes, row_group: int) -> bytes:
    """Seal the one page of a chunk of `salary`."""
    if key is None:
        return plain
    header, end = decode("PageHeader", plain)
    header.compressed_page_size += 32
    column = people().column_names.index("salary")
    suffixes = (forging.module_suffix(kind, row_group, column, 0) for kind in (4, 2))
    head_aad, body_aad = (file_aad + suffix for suffix in suffixes)
    return forging.seal(key, encode(header), head_aad) + forging.seal(key, plain[end:], body_aad)


# --- key material --------------------------------------------------------------------------------


def edit_material(change: Callable[[dict[str, dict[str, Any]], Base], None]) -> Forge:
    """Alter the key material beside the file."""

    def edit(base: Base) -> Files:
        store = {name: json.loads(text) for name, text in json.loads(base.files[MATERIAL]).items()}
        change(store, base)
        raw = encode_json({name: encode_json(each).decode() for name, each in store.items()})
        return {**base.files, MATERIAL: raw}

    return edit


def swap_columns(store: dict[str, dict[str, Any]], _: Base) -> None:
    store["columnKey0"], store["columnKey1"] = store["columnKey1"], store["columnKey0"]


def footer_for_column(store: dict[str, dict[str, Any]], _: Base) -> None:
    store["columnKey0"] = {**store["footerKey"], "isFooterKey": False}


def another_master(store: dict[str, dict[str, Any]], _: Base) -> None:
    store["columnKey0"]["masterKeyID"] = "kc2"


def flip_wrapped_key(store: dict[str, dict[str, Any]], _: Base) -> None:
    wrapped = store["columnKey0"]["wrappedDEK"]
    store["columnKey0"]["wrappedDEK"] = wrapped[:30] + ("B" if wrapped[30] == "A" else "A") + (
        wrapped[31:]
    )  # fmt: skip


def unknown_master(store: dict[str, dict[str, Any]], _: Base) -> None:
    store["columnKey0"]["masterKeyID"] = "nobody's"


def address_beside(store: dict[str, dict[str, Any]], _: Base) -> None:
    store["footerKey"]["kmsInstanceURL"] = ADDRESS


def footer_material(change: Callable[[dict[str, Any]], None]) -> Forge:
    """Alter the footer key's material in the file, which is not authenticated."""

    def edit(metadata: ThriftStruct) -> None:
        found = json.loads(metadata.key_metadata)
        change(found)
        metadata.key_metadata = encode_json(found)

    return crypto(edit)


def address_inside(found: dict[str, Any]) -> None:
    found["kmsInstanceURL"] = ADDRESS


def columns_material(metadata: ThriftStruct) -> None:
    """Exchange the key metadata of two columns."""
    for r in range(len(metadata.row_groups)):
        one, two = (
            find_chunk(metadata, name, r).crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY
            for name in ("salary", "name")
        )
        one.key_metadata, two.key_metadata = two.key_metadata, one.key_metadata


def another_files_material(base: Base) -> Files:
    return {**base.files, MATERIAL: base.others[MATERIAL]}


# --- datasets ------------------------------------------------------------------------------------


def without_writer(metadata: ThriftStruct) -> None:
    """Remove the signature of the file's writer, and what else the extension has."""
    set_extension(metadata, None)


def without_part(base: Base) -> Files:
    return {name: data for name, data in base.files.items() if name != "part-1.parquet"}


def part_twice(base: Base) -> Files:
    return {**base.files, "part-1.parquet": base.files["part-0.parquet"]}


def add_part(base: Base) -> Files:
    return {**base.files, "part-3.parquet": base.others["part-0.parquet"]}


def older_dataset(base: Base) -> Files:
    return base.others


def without_seal(base: Base) -> Files:
    return {name: data for name, data in base.files.items() if name != SEAL_NAME}


def older_seal(base: Base) -> Files:
    return {**base.files, SEAL_NAME: base.others[SEAL_NAME]}


def without_entry(base: Base) -> Files:
    """Drop the last file and its entry in the seal, hashed again; the signature stays."""
    head, line, content = base.files[SEAL_NAME].splitlines()
    *left, (dropped, *_) = json.loads(content)
    files = {name: data for name, data in base.files.items() if name != dropped}
    content = json.dumps(left, separators=(",", ":")).encode()
    document = {**json.loads(head), "content": hashlib.sha256(content).hexdigest()}
    head = json.dumps(document, separators=(",", ":")).encode()
    return {**files, SEAL_NAME: b"\n".join([head, line, content, b""])}


def no_parts(base: Base) -> Files:
    return {SEAL_NAME: base.files[SEAL_NAME]}


def older_part(base: Base) -> Files:
    return {**base.files, "part-1.parquet": base.others["part-1.parquet"]}
