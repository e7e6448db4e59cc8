"""Statistics, page indexes and bloom filters of plaintext columns, forged: no row is hidden."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import ThriftStruct
from tests.support import forging
from tests.support.forging import SMALL_FILTER
from tests.support.keys import FOOTER_KEY
from tests.support.randomness import dice

OPENING = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
ROWS = 2000
TABLE = pa.table({"secret": [f"s{n}" for n in range(ROWS)], "public": range(ROWS)})
FILTERS = (pc.field("public") == 700, pc.field("public") > 1950, pc.field("secret") == "s1200")


def encrypt_file(*, plaintext_footer: bool) -> bytes:
    out = io.BytesIO()
    options: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
    mc.write_table(
        TABLE,
        out,
        mc.FileEncryptionProperties(
            footer_key=FOOTER_KEY, plaintext_columns=["public"], plaintext_footer=plaintext_footer
        ),
        row_group_size=500,
        data_page_size=512,
        write_page_index=True,
        bloom_filter_options={"public": SMALL_FILTER},
        **options,
    )
    return out.getvalue()


def places(chunk: ThriftStruct) -> dict[str, tuple[int, int]]:
    md = chunk.meta_data
    return {
        "column index": (chunk.column_index_offset, chunk.column_index_length),
        "offset index": (chunk.offset_index_offset, chunk.offset_index_length),
        "bloom filter": (md.bloom_filter_offset, md.bloom_filter_length),
    }


def forgeries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Alter one part of the plaintext column at a time; an empty bloom filter among that."""
    for number, group in enumerate(forging.open_file(data, FOOTER_KEY).metadata.row_groups):
        for part, (start, length) in places(group.columns[1]).items():
            if part == "bloom filter":
                yield part, data[: start + 20] + bytes(length - 20) + data[start + length :]
            for seed in range(4):
                rng, forged = dice(seed * 10 + number), bytearray(data)
                for _ in range((1, 4, 30, 30)[seed]):
                    at = start + rng.randrange(length)
                    forged[at] = rng.choice((0, 127, 255, rng.randrange(256)))
                yield part, bytes(forged)


@pytest.mark.seeded
@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_forged_indexes_of_a_plaintext_column_hide_no_row(plaintext_footer: bool) -> None:
    data = encrypt_file(plaintext_footer=plaintext_footer)
    wanted = [mc.read_table(data, OPENING, filters=condition) for condition in FILTERS]
    assert [table.num_rows for table in wanted] == [1, 49, 1]
    tried = set()
    for part, forged in forgeries(data):
        for condition, rows in zip(FILTERS, wanted, strict=True):
            try:
                found = mc.read_table(forged, OPENING, filters=condition)
            except mc.ModcryptError:
                continue
            assert found.equals(rows), part
            tried.add(part)
    assert tried == {"column index", "offset index", "bloom filter"}
