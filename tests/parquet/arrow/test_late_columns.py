"""Filters decrypt their own columns first, and of others only what holds rows that match."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import modcrypt as mc
from modcrypt.errors import IntegrityError
from modcrypt.parquet.arrow import chunk_loading, padded_pages
from modcrypt.parquet.arrow.scanning import lot_loading
from modcrypt.parquet.crypto.encrypted_pages import EncryptedPage, open_body
from modcrypt.runtime.code_form import code_form
from tests.support import forging
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.randomness import dice, examples

KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, require_encrypted=False)
WRITERS = [
    mc.FileEncryptionProperties(footer_key=FOOTER_KEY),
    mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True),
    mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["id", "text", "deep"]),
]
ROWS = 300


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decrypt the filter's columns first, however small the others are."""
    monkeypatch.setattr(lot_loading, "_WORTH_MATCHING", 0)
    monkeypatch.setattr(lot_loading, "_SHARE", 0)
    monkeypatch.setattr(lot_loading, "_WORTH_LOCATING", 1)


def make_table(rng: random.Random) -> pa.Table:
    """Return columns of many kinds, with nulls, in any order of the ids."""
    ids = rng.sample(range(ROWS), ROWS)
    gaps = [rng.random() < 0.2 for _ in ids]

    def some(make: Any) -> list[Any]:
        return [None if gap else make(n) for gap, n in zip(gaps, ids, strict=True)]

    columns: dict[str, pa.Array] = {
        "id": pa.array(ids, pa.int64()),
        "few": pa.array(some(lambda n: n % 7), pa.int32()),
        "text": pa.array(some(lambda n: f"text {n}" * 5)),
        "kind": pa.array(some(lambda n: f"kind {n % 5}")).dictionary_encode(),
        "view": pa.array(some(lambda n: f"a long text {n}"), pa.string_view()),
        "half": pa.array(some(lambda n: n / 2), pa.float64()),
        "group": pa.array(some(lambda n: {"x": n, "y": str(n)})),
        "one": pa.array(some(lambda n: {"x": None if n % 4 else n})),
        "items": pa.array(some(lambda n: list(range(n % 4)))),
        "deep": pa.array(some(lambda n: [{"z": [str(n)] * (n % 3)}])),
        "pairs": pa.array(some(lambda n: [(str(n), n)]), pa.map_(pa.string(), pa.int64())),
    }
    return pa.table(columns)


def make_filter(rng: random.Random) -> pc.Expression:
    number = rng.randrange(ROWS)
    conditions: list[pc.Expression] = [
        pc.field("id") == number,
        pc.field("id").isin(rng.sample(range(ROWS), 5)),
        pc.field("id") < number,
        pc.field("few") == number % 7,
        pc.field("few").is_null(),
        pc.field("kind") == f"kind {number % 5}",
        pc.field("half") > number / 2,
        pc.field("group", "x") == number,
        pc.field("one", "x").is_valid(),
        pc.field("text") == f"text {number}" * 5,
        pc.field("id") == -1,
    ]
    first, second = rng.sample(conditions, 2)
    return rng.choice((first, first, first & second, first | second, ~first))


def make_plain_file(rng: random.Random, table: pa.Table) -> bytes:
    return forging.plain_file(
        table,
        row_group_size=rng.choice((90, ROWS)),
        write_page_index=rng.random() < 0.7,
        max_rows_per_page=rng.choice((7, 40)),
        write_batch_size=1,
        use_dictionary=rng.random() < 0.5,
        compression=rng.choice(("none", "zstd")),
        data_page_version=rng.choice(("1.0", "2.0")),
        write_page_checksum=rng.random() < 0.3,
    )


@pytest.mark.seeded
@pytest.mark.parametrize("seed", range(examples(60)))
def test_the_rows_are_those_that_pyarrow_filters(
    seed: int, late: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = dice(f"late columns {seed}")
    monkeypatch.setattr(lot_loading, "_MOST_RANGES", rng.choice((3, 1024)))
    check_filters(rng)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", range(examples(20)))
def test_small_row_groups_are_filtered_as_by_pyarrow(seed: int) -> None:
    check_filters(dice(f"small row groups {seed}"))


def check_filters(rng: random.Random) -> None:
    table = make_table(rng)
    plain = make_plain_file(rng, table)
    data = forging.encrypt_bytes(plain, rng.choice(WRITERS))
    options: dict[str, Any] = {} if rng.random() < 0.7 else {"read_dictionary": ["text"]}
    names = rng.choice((None, rng.sample(table.column_names, 4), []))
    everything = mc.read_table(data, KEYS, **options)
    for _ in range(3):
        condition = make_filter(rng)
        wanted = filter_rows(everything, condition)
        wanted = wanted if names is None else wanted.select(names)
        found = mc.read_table(data, KEYS, columns=names, filters=condition, **options)
        assert found.num_rows == wanted.num_rows
        assert found.to_pylist() == wanted.to_pylist(), str(condition)
        batches = list(mc.iter_batches(data, KEYS, filters=condition, batch_size=50, **options))
        assert sum(batch.num_rows for batch in batches) == wanted.num_rows


class CountedFile(io.BytesIO):
    """A file that counts the bytes that are read from it."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the column of each page body that is decrypted."""
    if code_form() == "compiled":
        pytest.skip("compiled functions call each other without a look at the module")
    columns: list[int] = []

    def count(encrypted: EncryptedPage, into: memoryview) -> int:
        columns.append(encrypted.page.cipher.column)
        return open_body(encrypted, into)

    monkeypatch.setattr(padded_pages, "open_body", count)
    return columns


WIDE = 5000  # size in bytes of a long value: too long for statistics in page headers


def make_large_file(
    *, plaintext_footer: bool = False, plaintext_columns: Sequence[str] = (), **options: Any
) -> bytes:
    """Return 100 pages of long values that do not compress, with ids in no order."""
    rng = dice("long values")
    ids = rng.sample(range(1000), 1000)
    table = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "long": [rng.randbytes(WIDE) for _ in ids],
            "group": [{"x": n, "y": n} for n in ids],
        }
    )
    plain = forging.plain_file(
        table, max_rows_per_page=10, write_batch_size=10, use_dictionary=False, **options
    )
    writer = WRITERS[plaintext_footer]
    return forging.encrypt_bytes(plain, replace(writer, plaintext_columns=plaintext_columns))


@pytest.mark.parametrize("index", [True, False])
def test_one_row_takes_one_page_of_the_columns_beside_the_filter(
    index: bool, bodies: list[int]
) -> None:
    """Offset indexes, or else page headers, say which."""
    data = make_large_file(write_page_index=index)
    for number, found in ((77, 1), (-1, 0)):
        bodies.clear()
        file = CountedFile(data)
        condition = pc.field("id") == number
        table = mc.read_table(file, KEYS, columns=["id", "long"], filters=condition)
        assert table.num_rows == found
        assert bodies.count(1) == found
        assert file.count < len(data) / 10


def test_a_filter_that_most_rows_match_reads_pages_once_beside_its_own(bodies: list[int]) -> None:
    data = make_large_file(write_page_index=True)
    assert mc.read_table(data, KEYS, filters=pc.field("id") >= 3).num_rows == 997
    assert [bodies.count(column) for column in range(4)] == [200, 100, 100, 100]


def test_a_filter_that_is_null_for_all_rows_matches_none(late: None) -> None:
    data = make_large_file(write_page_index=False)
    condition = pc.field("id") + pa.scalar(None, pa.int64()) > 1
    assert mc.read_table(data, KEYS, filters=condition).num_rows == 0


@pytest.mark.parametrize("plaintext", [True, False])
def test_a_chunk_with_too_many_pages_to_locate_is_read_as_a_whole(
    plaintext: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_loading, "_MAX_LOCATED_PAGES", 99)
    data = make_large_file(write_page_index=False, plaintext_columns=["long"] * plaintext)
    assert mc.read_table(data, KEYS, filters=pc.field("id") == 500).num_rows == 1


def test_small_columns_beside_the_filter_are_read_with_it(bodies: list[int]) -> None:
    data = make_large_file(write_page_index=True)
    found = mc.read_table(data, KEYS, columns=["id", "group"], filters=pc.field("id") == 500)
    assert found.num_rows == 1
    assert [bodies.count(column) for column in range(4)] == [100, 0, 100, 100]


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_what_is_read_must_authenticate(index: bool, plaintext_footer: bool) -> None:
    """The filter's pages, the page of the row, and without an index all page headers before it."""
    data = make_large_file(write_page_index=index, plaintext_footer=plaintext_footer)
    with mc.ParquetFile(data, KEYS) as file:
        number = file.read(["id"])["id"][995].as_py()
        row_group = file.metadata.row_group(0)
        ends = [row_group.column(c).data_page_offset + row_group.column(c).total_compressed_size
                for c in range(2)]  # fmt: skip
        long = row_group.column(1).data_page_offset
    damaged = {ends[0] - 1: True, ends[1] - 1: True, long + 20: not index, long + 999: False}
    for position, matters in damaged.items():
        altered = bytearray(data)
        altered[position] ^= 1
        read = partial(mc.read_table, bytes(altered), KEYS, columns=["id", "long"])
        if matters:
            with pytest.raises(IntegrityError):
                read(filters=pc.field("id") == number)
        else:
            assert read(filters=pc.field("id") == number).num_rows == 1
        with pytest.raises(IntegrityError):
            read()


def test_a_dataset_reads_pages_of_its_files(tmp_path: Path, bodies: list[int]) -> None:
    data = make_large_file(write_page_index=True)
    for name in ("year=1", "year=2", "year=3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.parquet").write_bytes(data)
    condition = (pc.field("id") == 500) & (pc.field("year") > 1)
    found = mc.read_table(tmp_path, KEYS, filters=condition, columns=["year", "long"])
    assert found["year"].to_pylist() == [2, 3]
    assert bodies.count(1) == 2
    for batch in mc.iter_batches(tmp_path, KEYS, filters=condition):
        assert batch["id"].to_pylist() == [500]
    assert bodies.count(1) == 4


@pytest.mark.parametrize("mode", ["null", "drop"])
def test_missing_keys_are_filled_or_dropped_as_without_a_filter(mode: Any, late: None) -> None:
    rng = dice("missing keys")
    table = make_table(rng)
    names = ["text", "group.y", "deep", "half"]
    writer = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys=dict.fromkeys(names, COLUMN_KEY)
    )
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key=mode)
    for _ in range(4):
        data = forging.encrypt_bytes(make_plain_file(rng, table), writer)
        everything = mc.read_table(data, reader)
        for condition in (pc.field("id") == 77, pc.field("few") == 3, pc.field("id") == -1):
            wanted = filter_rows(everything, condition)
            found = mc.read_table(data, reader, filters=condition)
            assert found.to_pylist() == wanted.to_pylist()
            assert found.schema.equals(wanted.schema)


def filter_rows(table: pa.Table, condition: pc.Expression) -> pa.Table:
    """Filter by row numbers: PyArrow filters no views."""
    plain = table.drop_columns("view")
    numbered = plain.append_column("row", pa.array(range(len(table)))).filter(condition)
    rows = numbered["row"].to_pylist()
    return pa.Table.from_batches(
        [batch for row in rows for batch in table.slice(row, 1).to_batches()], table.schema
    )
