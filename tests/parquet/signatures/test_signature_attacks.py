"""What holders of all keys of a file can do, and readers who require a signature notice.

The attackers here have the footer key and all column keys, as every reader has: they open, alter
and seal again whatever they like. They lack the signing key.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from struct import Struct
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import modcrypt as mc
from modcrypt.aad import module_aad
from modcrypt.module_ids import ModuleType
from modcrypt.parquet.format.idl import encode, extension, set_extension
from modcrypt.parquet.format.modules import Part
from modcrypt.parquet.signatures.leaf_list import ENTRY_SIZE, commit_to_key, encode_list, key_place
from modcrypt.parquet.signatures.signature_block import SignedContext, encode_signed
from tests.support.cases import each_case
from tests.support.forging import (
    FOOTER_SUFFIX,
    change_footer,
    join_tail,
    open_file,
    plain_file,
    seal,
    sign,
    split_tail,
)
from tests.support.keys import FOOTER_KEY
from tests.support.module_spans import list_modules
from tests.support.signing import (
    MODES,
    PEOPLE,
    signed_decryption,
    signed_encryption,
    signed_file,
    writer_key,
)
from tools.gcm_collision import forge

TRAILER = Struct("<IHBB16s16s")
Alter = Callable[[bytes], bytes]


def assert_refused(data: bytes, match: str, reader: Any = None) -> None:
    """Raise AssertionError unless each way of reading, and verification, refuse a file."""
    reader = reader or signed_decryption()
    with pytest.raises(mc.errors.WriterSignatureError, match=match):
        mc.read_table(data, reader)
    with pytest.raises(mc.errors.WriterSignatureError, match=match):
        mc.decrypt_parquet(data, io.BytesIO(), reader)
    with (
        pytest.raises(mc.errors.WriterSignatureError, match=match),
        mc.open_parquet(data, reader) as view,
    ):
        view.read()
    faults = [f for f in mc.verify_parquet(data, reader).findings if f.word == "writer-signature"]
    assert faults
    with pytest.raises(mc.errors.WriterSignatureError):
        raise faults[0].error()


def change_extension(data: bytes, change: Alter) -> bytes:
    """Change the extension of the footer, and seal or sign the footer again."""

    def alter(metadata: Any) -> None:
        set_extension(metadata, change(extension(metadata) or b"") or None)

    return change_footer(data, FOOTER_KEY, alter)


def change_trailer(**changes: Any) -> Alter:
    """Return a function that replaces members of the signature's trailer."""
    names = ("list", "size", "version", "scheme", "key_id", "identifier")

    def change(content: bytes) -> bytes:
        members = dict(zip(names, TRAILER.unpack(content[-TRAILER.size :]), strict=True))
        return content[: -TRAILER.size] + TRAILER.pack(*{**members, **changes}.values())

    return change


# --- without a signature -------------------------------------------------------------------------


@each_case("mode", MODES)
def test_the_signature_is_removed(mode: dict[str, Any]) -> None:
    bare = change_extension(signed_file(**mode), lambda content: b"")
    assert mc.read_table(bare, signed_decryption(signed_by=())).equals(PEOPLE)
    assert_refused(bare, "no writer has signed it, or the signature was removed")


@each_case("mode", MODES)
def test_a_file_was_never_signed(mode: dict[str, Any]) -> None:
    out = io.BytesIO()
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, **mode)
    mc.write_table(PEOPLE, out, properties)
    assert_refused(out.getvalue(), "no writer has signed it", signed_decryption(column_keys={}))


def test_a_plaintext_file_takes_its_place() -> None:
    reader = signed_decryption(require_encrypted=False, column_keys={})
    with pytest.raises(mc.errors.WriterSignatureError, match="plaintext file"):
        mc.read_table(plain_file(PEOPLE), reader)
    assert not mc.verify_parquet(plain_file(PEOPLE), reader).ok


@each_case("mode", MODES)
def test_another_key_signs(mode: dict[str, Any]) -> None:
    data = signed_file(key=writer_key(number=1), **mode)
    assert_refused(data, f"signed by another key, {writer_key(number=1).verifier.hex_id}")


def test_another_key_signs_under_the_id_of_the_writer() -> None:
    wanted = bytes.fromhex(writer_key().verifier.hex_id)
    data = change_extension(signed_file(key=writer_key(number=1)), change_trailer(key_id=wanted))
    assert_refused(data, "does not match")


# --- an altered signature ------------------------------------------------------------------------


@each_case("changes", [
    {"scheme": 2}, {"scheme": 0}, {"scheme": 255},
], ids=str)  # fmt: skip
def test_the_signature_claims_another_scheme(changes: dict[str, Any]) -> None:
    assert_refused(change_extension(signed_file(), change_trailer(**changes)), "does not match")


@each_case("changes", [
    {"version": 0}, {"version": 2}, {"list": 0xFFFFFFFF}, {"size": 0xFFFF}, {"size": 8193},
    {"list": 1}, {"list": 0xFFFFFFD7},
], ids=str)  # fmt: skip
def test_hostile_sizes_are_no_signature(changes: dict[str, Any]) -> None:
    data = change_extension(signed_file(), change_trailer(**changes))
    assert_refused(data, "no writer has signed it")


@each_case("name", ["first entry", "last entry", "entry of zeros", "all entries"])
def test_the_list_is_altered(name: str) -> None:
    def change(content: bytes) -> bytes:
        size, *rest = TRAILER.unpack(content[-TRAILER.size :])
        end = len(content) - TRAILER.size - rest[0]
        entries, signature = content[end - size : end], content[end : -TRAILER.size]
        entries = {
            "first entry": entries[ENTRY_SIZE:],
            "last entry": entries[:-ENTRY_SIZE],
            "entry of zeros": entries + bytes(ENTRY_SIZE),
            "all entries": b"",
        }[name]
        kept = content[: end - size] + entries + signature
        return kept + TRAILER.pack(len(entries), *rest)

    assert_refused(change_extension(signed_file(), change), "does not match")


@each_case("mode", MODES)
def test_every_byte_of_the_block_counts(mode: dict[str, Any]) -> None:
    data = signed_file(PEOPLE.slice(0, 3), **mode)
    size = len(extension(open_file(data, FOOTER_KEY).metadata) or b"")
    for at in range(0, size, 7):

        def flip(content: bytes, at: int = at) -> bytes:
            return content[:at] + bytes((content[at] ^ 1,)) + content[at + 1 :]

        with pytest.raises(mc.errors.WriterSignatureError):
            mc.read_table(change_extension(data, flip), signed_decryption())


def test_a_field_follows_the_signature() -> None:
    """The extension is the last field of the footer, with nothing behind it."""
    data = signed_file(plaintext_footer=True)
    body, tail, magic = split_tail(data)
    file = open_file(data, FOOTER_KEY)
    footer = encode(file.metadata)
    longer = footer[:-1] + b"\x08\xfc\xff\x03\x01x" + b"\0"
    altered = longer + sign(FOOTER_KEY, longer, file.file_aad + FOOTER_SUFFIX)
    assert len(tail) < len(altered)
    with pytest.raises(mc.ModcryptError):
        mc.read_table(join_tail(body, altered, magic), signed_decryption())


# --- an altered footer ---------------------------------------------------------------------------


def _drop_row_group(metadata: Any) -> None:
    dropped = metadata.row_groups.pop()
    metadata.num_rows -= dropped.num_rows


def _repeat_row_group(metadata: Any) -> None:
    metadata.row_groups.append(metadata.row_groups[-1])
    metadata.num_rows += metadata.row_groups[-1].num_rows


def _rename_column(metadata: Any) -> None:
    metadata.schema[1].name = b"di"


def _alter_creator(metadata: Any) -> None:
    metadata.created_by = b"somebody else"


@each_case("mode", MODES)
@each_case("change", [_drop_row_group, _repeat_row_group, _rename_column, _alter_creator])
def test_the_footer_is_altered(mode: dict[str, Any], change: Any) -> None:
    data = change_footer(signed_file(**mode), FOOTER_KEY, change)
    with pytest.raises(mc.errors.WriterSignatureError, match="does not match"):
        mc.read_table(data, signed_decryption())
    words = {finding.word for finding in mc.verify_parquet(data, signed_decryption()).findings}
    assert "writer-signature" in words


@each_case("mode", MODES)
def test_the_footer_is_that_of_another_signed_file(mode: dict[str, Any]) -> None:
    """The files have the same writer and keys, and their parts the same places and sizes."""
    other = pa.table({**PEOPLE.to_pydict(), "city": [f"town {n % 9}" for n in range(900)]})
    data, replayed = signed_file(**mode), signed_file(other, **mode)
    body, tail, magic = split_tail(data)
    swapped = join_tail(body, split_tail(replayed)[1], magic)
    with pytest.raises(mc.ModcryptError):
        mc.read_table(swapped, signed_decryption())
    with pytest.raises(mc.errors.WriterSignatureError, match="not those that the writer signed"):
        mc.read_table(swapped, signed_decryption(), columns=["city"])
    assert tail


# --- altered parts -------------------------------------------------------------------------------


def _replace_text(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new, 1)


@each_case("mode", MODES)
def test_a_plaintext_column_is_altered(mode: dict[str, Any]) -> None:
    data = _replace_text(signed_file(**mode), b"city 5", b"town 5")
    tolerant = signed_decryption(signed_by=())
    assert "town 5" in mc.read_table(data, tolerant).column("city").to_pylist()
    assert_refused(data, "pages of row group 0, column 2: its bytes are not those")
    assert mc.read_table(data, signed_decryption(), columns=["id", "name"]).num_rows == 900


def _flip_module(data: bytes, kind: ModuleType, at: int) -> bytes:
    span = next(
        span for span in list_modules(data, signed_decryption(signed_by=()))
        if span.module.type is kind
    )  # fmt: skip
    where = span.end + at
    return data[:where] + bytes((data[where] ^ 1,)) + data[where + 1 :]


@each_case("footer", [False, True])
def test_a_page_under_ctr_is_altered(footer: bool) -> None:
    data = signed_file(plaintext_footer=footer, encryption_algorithm="AES_GCM_CTR_V1")
    altered = _flip_module(data, ModuleType.DATA_PAGE, -1)
    assert mc.verify_parquet(altered, signed_decryption(signed_by=())).ok
    assert_refused(altered, "its bytes are not those that the writer signed")


@each_case("kind", [ModuleType.COLUMN_INDEX, ModuleType.OFFSET_INDEX])
def test_an_index_is_altered(kind: ModuleType) -> None:
    altered = _flip_module(signed_file(), kind, -1)
    with pytest.raises(mc.errors.WriterSignatureError, match="its bytes are not those"):
        mc.read_table(altered, signed_decryption(), filters=[("id", "=", 20)])
    faults = mc.verify_parquet(altered, signed_decryption()).findings
    assert "writer-signature" in {fault.word for fault in faults}


def _make_notes(key: mc.SigningKey | None) -> bytes:
    out = io.BytesIO()
    notes = pa.table({"note": [b"padding " * 50 + b"to the supplier."] * 3})
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, signing_key=key)
    mc.write_table(notes, out, encryption, compression="none", use_dictionary=False)
    return out.getvalue()


def test_a_page_is_replaced_and_keeps_its_tag() -> None:
    """GCM with a known key resists no collisions, so signed tags would not detect this."""
    data = _make_notes(writer_key())
    spans = list_modules(data, mc.FileDecryptionProperties(footer_key=FOOTER_KEY))
    (page,) = (span for span in spans if span.module.type is ModuleType.DATA_PAGE)
    where = module_aad(open_file(data, FOOTER_KEY).file_aad, page.module)
    nonce, tag = data[page.start + 4 : page.start + 16], data[page.end - 16 : page.end]
    plain = bytearray(AESGCM(FOOTER_KEY).decrypt(nonce, data[page.start + 16 : page.end], where))
    plain[-16:] = b"to somebody else"
    forged = forge(FOOTER_KEY, nonce, where, tag, bytes(plain), free=5)
    altered = data[: page.start + 16] + forged + data[page.end - 16 :]
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    assert mc.verify_parquet(altered, reader).ok
    found = mc.read_table(altered, reader).column("note").to_pylist()
    assert found[-1].endswith(b"to somebody else")
    assert_refused(altered, "its bytes are not those", signed_decryption(column_keys={}))


def test_a_chunk_of_another_signed_file_takes_the_place_of_one() -> None:
    """An attacker with the keys seals the modules again, under the AAD of this file."""
    data, other = signed_file(), signed_file(PEOPLE.set_column(0, "id", [list(range(1000, 1900))]))
    reader = signed_decryption(signed_by=())
    target, source = list_modules(data, reader), list_modules(other, reader)
    aads = [open_file(file, FOOTER_KEY).file_aad for file in (data, other)]
    altered = bytearray(data)
    for new, old in zip(target, source, strict=True):
        if new.module.column != 0 or new.end - new.start != old.end - old.start:
            continue
        module = other[old.start : old.end]
        opened = AESGCM(FOOTER_KEY).decrypt(
            module[4:16], module[16:], module_aad(aads[1], old.module)
        )
        body = module[4:16] + AESGCM(FOOTER_KEY).encrypt(
            module[4:16], opened, module_aad(aads[0], new.module)
        )
        altered[new.start : new.end] = module[:4] + body
    moved = mc.read_table(bytes(altered), reader, columns=["id"]).column("id").to_pylist()
    assert 1000 in moved
    assert_refused(bytes(altered), "column 0: its bytes are not those")


def test_bytes_between_the_parts_are_not_covered() -> None:
    """A row group that no part covers cannot hide in a gap of a signed file."""
    data = signed_file()
    checked = mc.verify_parquet(data, signed_decryption(), regions=True)
    assert checked.ok
    assert not [region for region in checked.regions if region.kind == "gap"]


# --- other keys ----------------------------------------------------------------------------------


def test_the_signer_commits_to_the_keys() -> None:
    """A ciphertext can open under two keys: a signature says under which it was made."""
    metadata = open_file(signed_file(), FOOTER_KEY)
    entries = encode_list({key_place(None): commit_to_key(mc.Key(bytes(range(16))), b"")})
    key = writer_key()
    context = SignedContext(metadata.file_aad, "AES_GCM_V1", False)
    set_extension(metadata.metadata, None)
    footer = encode_signed(metadata.metadata, entries, key, context)
    sealed = seal(FOOTER_KEY, footer, metadata.file_aad + FOOTER_SUFFIX)
    data = join_tail(metadata.body, metadata.crypto + sealed, metadata.magic)
    assert_refused(data, "the key of the footer is not the one with which it was signed")


@each_case("part", [Part.PAGES, Part.COLUMN_INDEX, Part.OFFSET_INDEX])
def test_a_part_has_no_hash(part: Part) -> None:
    """A writer that is not modcrypt may leave a part out of the list that it signs."""
    file = open_file(signed_file(), FOOTER_KEY)
    content = extension(file.metadata) or b""
    size, signature, *_ = TRAILER.unpack(content[-TRAILER.size :])
    start = len(content) - TRAILER.size - signature - size
    rows = [content[at : at + ENTRY_SIZE] for at in range(start, start + size, ENTRY_SIZE)]
    kept = [row for row in rows if row[8] != part]
    assert len(kept) < len(rows)
    set_extension(file.metadata, content[:start] or None)
    context = SignedContext(file.file_aad, "AES_GCM_V1", False)
    footer = encode_signed(file.metadata, b"".join(kept), writer_key(), context)
    sealed = seal(FOOTER_KEY, footer, file.file_aad + FOOTER_SUFFIX)
    data = join_tail(file.body, file.crypto + sealed, file.magic)
    faults = mc.verify_parquet(data, signed_decryption()).findings
    assert {fault.word for fault in faults} == {"writer-signature"}
    assert all("the signature of the file does not cover it" in f.message for f in faults)
    if part == Part.PAGES:
        assert_refused(data, "the signature of the file does not cover it")


# --- a file that changes -------------------------------------------------------------------------


class _Changing(io.BytesIO):
    """A file whose plaintext column is altered after it was read for the first time."""

    altered = False

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        at = self.getvalue().find(b"city 5")
        if b"city 5" in data and at >= self.tell() - len(data):
            self.altered = True
            with self.getbuffer() as content:
                content[at : at + 6] = b"town 5"
        return data


def test_bytes_are_used_as_they_were_hashed() -> None:
    source = _Changing(signed_file())
    with mc.ParquetFile(source, signed_decryption()) as file:
        tables = [file.read(columns=["city"], row_groups=[0]) for _ in range(2)]
    assert source.altered
    assert [table.num_rows for table in tables] == [300, 300]
    assert "town 5" not in {*tables[0]["city"].to_pylist(), *tables[1]["city"].to_pylist()}


def test_all_keys_of_a_writer_are_tried() -> None:
    reader = signed_decryption(writer_key("mldsa65").verifier, writer_key().verifier)
    assert mc.read_table(signed_file(), reader).num_rows == 900
    assert mc.read_table(signed_file(key=writer_key("mldsa65")), reader).num_rows == 900


def test_only_the_key_of_a_writer_signs() -> None:
    assert signed_encryption().signing_key is writer_key()
