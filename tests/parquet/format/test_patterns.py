"""The patterns for usual structs end where skipping them field by field ends."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modcrypt.errors import FormatError
from modcrypt.parquet.format import compact
from modcrypt.parquet.format.idl import decode, encode, new
from modcrypt.parquet.format.patterns import append_chunk_ends, usual_struct


def column_chunks() -> list[bytes]:
    """Return the column chunks of a file with statistics, size statistics and a nested column."""
    table = pa.table({"n": [1, None, 3], "s": ["a", "b", None], "l": [[1.5], [], [2.5, None]]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_index=True)
    data = sink.getvalue().to_pybytes()
    size = int.from_bytes(data[-8:-4], "little")
    metadata, _ = decode("FileMetaData", data[-8 - size :])
    return [encode(chunk) for chunk in metadata.row_groups[0].columns]


CHUNKS = column_chunks()


@pytest.mark.parametrize("chunk", CHUNKS)
def test_column_chunks_match(chunk: bytes) -> None:
    found = usual_struct().match(b"?" + chunk + b"rest", 1)
    assert found is not None
    assert found.end() == 1 + len(chunk) == compact.skip_struct(b"?" + chunk + b"rest", 1, 0)


@given(st.data())
def test_whatever_matches_ends_at_the_same_place(data: st.DataObject) -> None:
    altered = bytearray(data.draw(st.sampled_from(CHUNKS)) + bytes(8))
    for _ in range(data.draw(st.integers(1, 4))):
        altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    if (found := usual_struct().match(altered)) is not None:
        assert found.end() == compact.skip_struct(bytes(altered), 0, 0)


def keyed_chunk(key_metadata: int, column_metadata: int, *path: bytes) -> bytes:
    """Return a ColumnChunk with a column key, given the lengths of its binaries."""
    own = new(
        "EncryptionWithColumnKey", path_in_schema=list(path), key_metadata=bytes(key_metadata)
    )
    return encode(
        new(
            "ColumnChunk", file_offset=0, column_index_offset=1 << 40, column_index_length=300,
            crypto_metadata=new("ColumnCryptoMetaData", ENCRYPTION_WITH_COLUMN_KEY=own),
            encrypted_column_metadata=bytes(column_metadata),
        )
    )  # fmt: skip


KEYED = [
    keyed_chunk(key_metadata, column_metadata, b"a", b"b" * 40)
    for key_metadata in (0, 127, 128, 16_383)
    for column_metadata in (32, 127, 128, 16_383)
]


def test_chunks_with_a_column_key_match() -> None:
    starts = [1]
    append_chunk_ends(b"?" + b"".join(KEYED), starts, len(KEYED))
    assert starts == [1 + sum(map(len, KEYED[:n])) for n in range(len(KEYED) + 1)]


@pytest.mark.parametrize("sizes", [(16_384, 32), (32, 16_384), (1 << 21, 1 << 21)])
def test_longer_binaries_do_not_match(sizes: tuple[int, int]) -> None:
    starts = [0]
    append_chunk_ends(keyed_chunk(*sizes, b"a"), starts, 1)
    assert starts == [0]


@given(st.data())
def test_whatever_matches_as_a_chunk_with_a_column_key_is_one(data: st.DataObject) -> None:
    altered = bytearray(data.draw(st.sampled_from(KEYED[:8])) + bytes(300))
    for _ in range(data.draw(st.integers(1, 4))):
        altered[data.draw(st.integers(0, min(len(altered), 90) - 1))] = data.draw(
            st.integers(0, 255)
        )
    starts = [0]
    with contextlib.suppress(IndexError):  # the bytes end inside the chunk
        append_chunk_ends(bytes(altered), starts, 1)
    if len(starts) > 1:
        assert starts[1] == compact.skip_struct(bytes(altered), 0, 0)


def row_groups(*chunks: bytes) -> bytes:
    """Return a footer with one row group of these chunks."""
    footer = encode(new("FileMetaData", version=1, schema=[], num_rows=0, row_groups=[]))
    count = len(chunks)
    row_group = b"\x19\xfc" + bytes((count & 127 | 128, count >> 7)) + b"".join(chunks)
    row_group += b"\x16\x00\x16\x00\x00"
    assert footer.endswith(b"\x19\x0c\x00")
    return footer[:-3] + b"\x19\x1c" + row_group + b"\x00"


@pytest.mark.parametrize("unusual", [1, 3, 40])
def test_large_footers_give_the_same_places(monkeypatch: pytest.MonkeyPatch, unusual: int) -> None:
    long = decode("ColumnChunk", CHUNKS[0])[0]
    long.meta_data.statistics.max_value = bytes(300)
    for usual in (CHUNKS, KEYED):
        chunks = [encode(long) if n < unusual else usual[n % len(usual)] for n in range(200)]
        monkeypatch.setattr(compact, "_LARGE", 0)
        metadata, _ = decode("FileMetaData", row_groups(*chunks), lazy=2)
        assert [encode(chunk) for chunk in metadata.row_groups[0].columns] == chunks


@given(st.sets(st.integers(0, 199)))
def test_a_footer_of_which_some_chunks_were_used_is_written_as_read(used: set[int]) -> None:
    footer = row_groups(*(CHUNKS * 70)[:200])
    metadata, _ = decode("FileMetaData", footer, lazy=2)
    for n in used:
        assert metadata.row_groups[0].columns[n].file_offset is not None
    assert encode(metadata) == footer


def test_a_large_footer_that_ends_early_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "_LARGE", 0)
    for whole in (row_groups(*CHUNKS * 40), row_groups(*KEYED[:2] * 70)):
        for size in range(len(whole) - 300, len(whole)):
            with pytest.raises(FormatError, match=r"bytes end inside|where .* exist"):
                decode("FileMetaData", whole[:size], lazy=2)
