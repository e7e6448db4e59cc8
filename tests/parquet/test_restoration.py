"""Decryption restores every byte of a file, whatever its writer left between its parts."""

from __future__ import annotations

import io
import itertools
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.errors import FormatError, IntegrityError, LimitError, UnsupportedFormatError
from modcrypt.keys import Key
from modcrypt.parquet.convert import restoration
from modcrypt.parquet.convert.restoration import Kept
from modcrypt.parquet.format import kept_place
from modcrypt.parquet.format.compact import BINARY, I16, I32, LIST, STRUCT, UNKNOWN
from modcrypt.parquet.format.idl import decode, encode, new, set_fields
from modcrypt.parquet.format.page_header_scan import scan
from tests.support.cases import each_case, one_in
from tests.support.in_memory import run
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY

TABLE = pa.table({"id": pa.array(range(300), pa.int64()), "name": [str(i % 7) for i in range(300)]})
UNIFORM = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
TWO_KEYS: dict[str, Any] = {"footer_key": FOOTER_KEY, "column_keys": {"name": COLUMN_KEY}}
SPELLINGS = ("gap", "end", "thrift", "offset", "index", "sizes", "header", "crc", "chunk")


def write(**options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(TABLE, out, row_group_size=100, **options)
    return out.getvalue()


def rebuild(body: bytes, change: Callable[[Any], None] = lambda _: None, end: bytes = b"") -> bytes:
    """Return a file with a changed footer, and perhaps with bytes before it."""
    size = int.from_bytes(body[-8:-4], "little")
    footer = decode("FileMetaData", body[-8 - size : -8])[0]
    change(footer)
    data = encode(footer)
    return body[: -8 - size] + end + data + len(data).to_bytes(4, "little") + b"PAR1"


def lengthen(data: bytes, at: int) -> bytes:
    """Return bytes whose varint of one byte at a position takes two, as Thrift readers allow."""
    assert data[at] < 128
    return data[:at] + bytes((data[at] | 128, 0)) + data[at + 1 :]


def move(footer: Any, behind: int, distance: int) -> None:
    """Move the places of all that lies behind an offset."""

    def moved(offset: int | None) -> int | None:
        return offset if not offset or offset < behind else offset + distance

    for row_group in footer.row_groups:
        row_group.file_offset = moved(row_group.file_offset)
        for chunk in row_group.columns:
            md = chunk.meta_data
            for struct, names in (
                (chunk, ("file_offset", "offset_index_offset", "column_index_offset")),
                (md, ("data_page_offset", "dictionary_page_offset", "bloom_filter_offset")),
            ):
                for name in names:
                    setattr(struct, name, moved(getattr(struct, name)))


def spelt(how: str) -> bytes:
    """Return a file with bytes that no field names, or that is spelt as modcrypt would not."""
    file = write(
        write_page_checksum=how == "crc", use_dictionary=how != "header",
        write_page_index=how in ("index", "sizes"),
    )  # fmt: skip
    footer = decode("FileMetaData", file[-8 - int.from_bytes(file[-8:-4], "little") : -8])[0]
    chunk = footer.row_groups[2].columns[0]
    first = chunk.meta_data.dictionary_page_offset or chunk.meta_data.data_page_offset
    if how == "gap":
        gap = b"a copy of the column's metadata"
        return rebuild(file[:first] + gap + file[first:], lambda f: move(f, first, len(gap)))
    if how == "end":
        return rebuild(file, end=b"padding" * 9)
    if how == "thrift":
        size = int.from_bytes(file[-8:-4], "little") + 1
        data = lengthen(file[-8 - size + 1 : -8], 1)  # the format's version
        return file[: -8 - size + 1] + data + size.to_bytes(4, "little") + b"PAR1"
    if how == "offset":
        return rebuild(file, lambda f: setattr(f.row_groups[0].columns[0], "file_offset", 12))
    if how == "chunk":
        return rebuild(file, lambda f: forget_header(f, file))
    if how == "sizes":  # without the page headers, as xitongsys/parquet-go writes them
        at, end = chunk.offset_index_offset, chunk.offset_index_offset + chunk.offset_index_length
        index = decode("OffsetIndex", file[at:])[0]
        index.page_locations[0].compressed_page_size -= 20
        assert len(encode(index)) == end - at
        return file[:at] + encode(index) + file[end:]
    if how == "index":
        at = chunk.offset_index_offset
        index = decode("OffsetIndex", file[at:])[0]
        assert len(index.page_locations) == 1
        last = at + chunk.offset_index_length - 3  # the first row of the only page, which is 0
        assert file[last : last + 3] == b"\x00\x00\x00"
        return rebuild(lengthen(file, last), lambda f: grow_index(f, at))
    header = scan(file, first, len(file))
    last = first - 1 + (header.crc_end if how == "crc" else header.size_end)
    return rebuild(lengthen(file, last), lambda f: grow_page(f, first))


def forget_header(footer: Any, file: bytes) -> None:
    """Leave the header of a dictionary page out of its chunk's size (PARQUET-816)."""
    footer.created_by = b"parquet-mr version 1.2.5-cdh4.5.0 (build )"
    for row_group in footer.row_groups:
        for chunk in row_group.columns:
            md = chunk.meta_data
            size = len(scan(file, md.dictionary_page_offset, len(file)).raw)
            md.total_compressed_size -= size
            md.total_uncompressed_size -= size
            row_group.total_compressed_size -= size
            row_group.total_byte_size -= size


def grow_index(footer: Any, at: int) -> None:
    move(footer, at + 1, 1)
    for row_group in footer.row_groups:
        for chunk in row_group.columns:
            chunk.offset_index_length += chunk.offset_index_offset == at


def grow_page(footer: Any, first: int) -> None:
    move(footer, first + 1, 1)
    for row_group in footer.row_groups:
        for chunk in row_group.columns:
            md = chunk.meta_data
            chunk.offset_index_offset = chunk.offset_index_length = None
            grown = first in (md.dictionary_page_offset, md.data_page_offset)
            md.total_compressed_size += grown
            md.total_uncompressed_size += grown
            row_group.total_compressed_size += grown
            row_group.total_byte_size += grown


MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "uniform": ({"footer_key": FOOTER_KEY}, {"footer_key": FOOTER_KEY}),
    "two keys": (TWO_KEYS, TWO_KEYS),
    "plaintext footer": ({**TWO_KEYS, "plaintext_footer": True}, TWO_KEYS),
    "plaintext column": (
        {"footer_key": FOOTER_KEY, "plaintext_columns": ["name"]}, {"footer_key": FOOTER_KEY},
    ),
    "signed only": (
        {"footer_key": FOOTER_KEY, "plaintext_footer": True, "plaintext_columns": ["id", "name"]},
        {"footer_key": FOOTER_KEY},
    ),
    "CTR": (
        {"footer_key": FOOTER_KEY, "encryption_algorithm": "AES_GCM_CTR_V1"},
        {"footer_key": FOOTER_KEY, "accept_algorithms": ["AES_GCM_V1", "AES_GCM_CTR_V1"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", SPELLINGS)
@pytest.mark.parametrize("mode", MODES)
def test_every_byte_comes_back(how: str, mode: str) -> None:
    plain = spelt(how)
    assert pq.read_table(io.BytesIO(plain)).equals(TABLE)
    encryption, decryption = MODES[mode]
    writer = mc.FileEncryptionProperties(**encryption)
    reader = mc.FileDecryptionProperties(**decryption)
    file = run(mc.encrypt_parquet, plain, writer)
    assert run(mc.decrypt_parquet, file, reader) == plain
    rekeyed = run(mc.rekey_parquet, file, reader, writer)
    assert run(mc.decrypt_parquet, rekeyed, reader) == plain
    for copy in (file, rekeyed):
        assert mc.verify_parquet(copy, reader).ok
        assert mc.read_table(copy, reader).equals(TABLE)
    if mode == "signed only" and how in ("sizes", "header", "crc"):
        return  # its pages are copied
    without = run(mc.encrypt_parquet, plain, writer, exact=False)
    assert len(without) < len(file)
    rows = run(mc.decrypt_parquet, without, reader)
    assert rows != plain
    assert rows == run(mc.decrypt_parquet, file, reader, exact=False)


STRUCTS: dict[str, Callable[[Any], Any]] = {
    "FileMetaData": lambda footer: footer,
    "RowGroup": lambda footer: footer.row_groups[1],
    "ColumnChunk": lambda footer: footer.row_groups[1].columns[0],
    "ColumnMetaData": lambda footer: footer.row_groups[1].columns[0].meta_data,
}
ODD_FIELDS = {I16: b"\x05", I32: b"\x05", BINARY: b"\x01x", LIST: b"\x15\x02", STRUCT: b"\0"}


@each_case(("mode", "struct"), itertools.product(MODES, STRUCTS), quick=one_in(3))
def test_no_field_that_encryption_sets_replaces_one_of_the_source(struct: str, mode: str) -> None:
    """Each field in turn has another type, or one that belongs to encrypted files."""
    writer = mc.FileEncryptionProperties(**MODES[mode][0])
    reader = mc.FileDecryptionProperties(**MODES[mode][1])
    source, encrypted = write(use_dictionary=False), 0
    for field_id, (wire, value) in itertools.product(range(1, 18), ODD_FIELDS.items()):

        def put(footer: Any, odd: tuple[int, int, bytes] = (field_id, wire, value)) -> None:
            holder = STRUCTS[struct](footer)
            for name in set_fields(holder):
                if encode(new(struct, **{name: getattr(holder, name)}))[0] >> 4 == odd[0]:
                    setattr(holder, name, None)
            setattr(holder, UNKNOWN, [odd])

        plain = rebuild(source, put)
        try:
            file = run(mc.encrypt_parquet, plain, writer)
        except mc.ModcryptError:
            continue  # the field is one that readers need
        assert run(mc.decrypt_parquet, file, reader) == plain, (field_id, wire)
        encrypted += 1
    assert encrypted > 20


def write_polars(path: Path) -> None:
    import polars as pl

    pl.from_arrow(TABLE).write_parquet(path, row_group_size=100)  # type: ignore[union-attr]


def write_fastparquet(path: Path) -> None:
    fastparquet = pytest.importorskip("fastparquet")
    fastparquet.write(str(path), TABLE.to_pandas(), row_group_offsets=100)


def write_duckdb(path: Path) -> None:
    import duckdb

    duckdb.sql(f"COPY (SELECT range AS id FROM range(5000)) TO '{path}' (FORMAT parquet)")


@pytest.mark.parametrize("write", [write_polars, write_fastparquet, write_duckdb])
def test_files_of_other_writers_come_back(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "plain.parquet")
    plain = (tmp_path / "plain.parquet").read_bytes()
    file = run(mc.encrypt_parquet, plain, UNIFORM)
    assert run(mc.decrypt_parquet, file, READER) == plain


def test_inspection_shows_what_is_kept_and_its_cost() -> None:
    found = mc.inspect_parquet(run(mc.encrypt_parquet, spelt("gap"), UNIFORM), READER)
    kept = [region for region in found.regions if region.kind == "restoration"]
    assert "gap" not in {region.kind for region in found.regions}
    assert any(f"{kept[0].size:,} bytes keep" in quirk for quirk in found.quirks)


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_other_readers_ignore_what_is_kept(tmp_path: Path, plaintext_footer: bool) -> None:
    import polars as pl
    from pyarrow.parquet.encryption import create_decryption_properties

    writer = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=plaintext_footer)
    file = tmp_path / "kept.parquet"
    file.write_bytes(run(mc.encrypt_parquet, spelt("gap"), writer))
    key = create_decryption_properties(footer_key=FOOTER_KEY)
    assert pq.read_table(file, decryption_properties=key).equals(TABLE)
    keys = pl.ParquetDecryptionProperties(footer_key=FOOTER_KEY)
    assert pl.read_parquet(file, decryption=keys).to_arrow().equals(pl.DataFrame(TABLE).to_arrow())


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"write_page_checksum": True}])
def test_a_file_that_comes_back_anyway_keeps_nothing(options: dict[str, Any]) -> None:
    file = run(mc.encrypt_parquet, write(**options), UNIFORM)
    assert "restoration" not in {r.kind for r in mc.inspect_parquet(file, READER).regions}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk", [None, 0, 1])
def test_notes_of_the_plaintext_file_are_not_taken_for_those_of_encryption(
    mode: str, chunk: int | None
) -> None:
    def forge(footer: Any) -> None:
        md = footer if chunk is None else footer.row_groups[chunk].columns[chunk].meta_data
        md.key_value_metadata = [new("KeyValue", key=b"modcrypt.added", value=b"restore1:4:4:00")]

    plain = rebuild(write(), forge)
    encryption, decryption = MODES[mode]
    file = run(mc.encrypt_parquet, plain, mc.FileEncryptionProperties(**encryption))
    reader = mc.FileDecryptionProperties(**decryption)
    assert run(mc.decrypt_parquet, file, reader) == plain
    assert mc.verify_parquet(file, reader).ok


# --- who may see what is kept --------------------------------------------------------------------


def test_it_takes_all_keys_to_see_what_is_kept() -> None:
    """The bytes may hold statistics of any column."""
    plain, writer = spelt("gap"), mc.FileEncryptionProperties(**TWO_KEYS)
    file = run(mc.encrypt_parquet, plain, writer)
    some = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="drop")
    rows = run(mc.decrypt_parquet, file, some)
    assert pq.read_table(io.BytesIO(rows)).equals(TABLE.select(["id"]))
    assert b"a copy of" not in rows
    place = only_place(file, mc.FileDecryptionProperties(**TWO_KEYS))
    module, aad = file[place.start : place.end], file_aad(file)
    footer_key, column_key = Key(FOOTER_KEY), Key(COLUMN_KEY)
    for keys in ([footer_key], [column_key], [column_key, footer_key]):
        with pytest.raises(IntegrityError, match="does not authenticate"):
            restoration.decrypt_kept(module, keys, aad)
    kept = restoration.decrypt_kept(module, [footer_key, column_key], aad)
    assert [part.before for part in kept.parts.values()] == [b"a copy of the column's metadata"]


def opened(file: bytes, reader: Any) -> Any:
    from modcrypt.io.sources import open_source
    from modcrypt.parquet.crypto.file_plan import OpenFile

    with open_source(file) as source:
        open_file = OpenFile(source, reader)
        open_file.select()
        return open_file


def only_place(file: bytes, reader: Any) -> kept_place.KeptPlace:
    footer = opened(file, reader).footer
    place = kept_place.find_place(footer.absent, footer.body_end)
    assert place is not None
    return place


def file_aad(file: bytes) -> bytes:
    cipher = opened(file, mc.FileDecryptionProperties(**TWO_KEYS)).footer.cipher
    return bytes(cipher.file_aad)


@pytest.mark.parametrize("change", [{"null": ["name"]}, {"drop": ["name"]}])
def test_masked_copies_keep_nothing(change: dict[str, Any]) -> None:
    file = run(mc.encrypt_parquet, spelt("gap"), UNIFORM)
    masked = run(mc.mask_parquet, file, READER, **change)
    assert "restoration" not in {r.kind for r in mc.inspect_parquet(masked, READER).regions}
    assert b"a copy of" not in run(mc.decrypt_parquet, masked, READER)
    other = mc.FileEncryptionProperties(footer_key=OTHER_KEY)
    shared = run(mc.share_parquet, file, READER, other, ["id"])
    reader = mc.FileDecryptionProperties(footer_key=OTHER_KEY)
    assert "restoration" not in {r.kind for r in mc.inspect_parquet(shared, reader).regions}


# --- altered and strange modules -----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["uniform", "plaintext footer", "signed only"])
def test_an_altered_module_is_found(mode: str) -> None:
    encryption, decryption = MODES[mode]
    reader = mc.FileDecryptionProperties(**decryption)
    file = run(mc.encrypt_parquet, spelt("gap"), mc.FileEncryptionProperties(**encryption))
    place = only_place(file, reader)
    for at in (place.start, place.start + 20, place.end - 1):
        altered = bytearray(file)
        altered[at] ^= 1
        with pytest.raises(IntegrityError, match=r"were altered.*exact=False"):
            run(mc.decrypt_parquet, bytes(altered), reader)
        assert not mc.verify_parquet(bytes(altered), reader).ok
        rows = run(mc.decrypt_parquet, bytes(altered), reader, exact=False)
        assert pq.read_table(io.BytesIO(rows)).equals(TABLE)


def test_a_newer_way_to_restore_is_refused_with_the_way_to_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = kept_place.name_place
    monkeypatch.setattr(
        kept_place, "name_place", lambda *given: name(*given).replace("restore1", "restore2")
    )
    file = run(mc.encrypt_parquet, spelt("gap"), UNIFORM)
    with pytest.raises(UnsupportedFormatError, match=r"newer modcrypt.*exact=False"):
        run(mc.decrypt_parquet, file, READER)
    rows = run(mc.decrypt_parquet, file, READER, exact=False)
    assert pq.read_table(io.BytesIO(rows)).equals(TABLE)
    assert mc.verify_parquet(file, READER).ok


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("restore1", FormatError),
        ("restore1:4:9", FormatError),
        ("restore1:4:-9:00", FormatError),
        ("restore1:1:9:00", FormatError),
        ("restore1:90:20:00", FormatError),
        (f"restore1:4:{kept_place.MAX_KEPT + 1}:00", LimitError),
        (f"restore1:{'9' * 400}:9:00", FormatError),
        ("restore9:4:9:00", UnsupportedFormatError),
    ],
)
def test_strange_places_are_refused(name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        kept_place.find_place(["ordinal", name], 100)


HEAD: dict[str, Any] = {"parts": [[0, 0, 0, 1, None, []]], "end": 0, "footer": None, "size": 9}


CHANGES: list[dict[str, Any]] = [
    {"end": -1}, {"end": 2}, {"footer": "1"}, {"size": None}, {"parts": 1}, {"parts": [[0, 0]]},
    {"parts": [[0, 0, 0, 0, None, []]]}, {"parts": [[0, 0, 0, True, None, []]]},
    {"parts": [[0, 0, 0, 0, None, [[1]]]]},
]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        b"{}\n", b"[]\n", b"null\n", b"\xff\n", b"[" * 5000,
        *(json.dumps({**HEAD, **change}).encode() + b"\nx" for change in CHANGES),
    ],
)  # fmt: skip
def test_malformed_modules_are_refused(content: bytes) -> None:
    with pytest.raises(FormatError, match="malformed"):
        Kept.decode(zlib.compress(content))
    with pytest.raises(FormatError, match="damaged"):
        Kept.decode(b"!" + content)
    with pytest.raises(FormatError, match="cut off"):
        Kept.decode(zlib.compress(content)[:-1])


def test_a_module_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoration, "MAX_KEPT", 1000)
    with pytest.raises(LimitError, match="more than 1000 bytes"):
        Kept.decode(zlib.compress(bytes(1001)))
    file = run(mc.encrypt_parquet, rebuild(write(), end=bytes(600)), UNIFORM)
    rows = run(mc.decrypt_parquet, file, READER)  # a warning says what is lost
    assert pq.read_table(io.BytesIO(rows)).equals(TABLE)


def test_what_does_not_fit_the_file_is_refused() -> None:
    """Only a holder of all keys can make such a module."""
    plain = spelt("gap")
    kept = Kept(end=b"x", size=len(plain))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restoration, "find_kept", lambda *_, **__: kept)
        file = run(mc.encrypt_parquet, plain, UNIFORM)
    with pytest.raises(FormatError, match=r"bytes were restored of.*exact=False"):
        run(mc.decrypt_parquet, file, READER)


def test_what_is_kept_is_read_as_it_was_written() -> None:
    kept = Kept({(1, 2, 0): restoration.KeptPart(b"a", None, {3: b"b"})}, b"c", b"d", 12)
    assert Kept.decode(kept.encode()) == kept
    aad, keys = b"aad", [Key(bytes(range(16))), Key(bytes(range(1, 17)))]
    assert restoration.decrypt_kept(restoration.encrypt_kept(kept, keys, aad), keys, aad) == kept
