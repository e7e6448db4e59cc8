"""An encrypted file that readers take for a plaintext one, opened piece by piece."""

from __future__ import annotations

import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import modcrypt as mc
from modcrypt.parquet.arrow.padded_pages import pad_struct
from modcrypt.parquet.format.idl import encode, new
from tests.support.cases import each_case
from tests.support.forging import SMALL_FILTER
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.module_spans import list_modules
from tests.support.tables import small_table, write_plain
from tests.support.thrift_judge import judge_decodes
from tests.support.watched_source import Watched

KEYS = mc.FileDecryptionProperties(
    footer_key=FOOTER_KEY,
    column_keys={"name": COLUMN_KEY, "address": COLUMN_KEY},
    accept_algorithms=["AES_GCM_V1", "AES_GCM_CTR_V1"],
)


def encrypt(tmp_path: Path, options: dict[str, Any] | None = None, **how: Any) -> Path:
    """Encrypt a table of several row groups and pages."""
    wanted = {"row_group_size": 400, "data_page_size": 256, "write_batch_size": 32}
    plain = write_plain(tmp_path / "plain.parquet", small_table(1000), **(wanted | (options or {})))
    mc.encrypt_parquet(
        plain,
        tmp_path / "sealed.parquet",
        mc.FileEncryptionProperties(
            footer_key=FOOTER_KEY,
            column_keys={"name": COLUMN_KEY, "address": COLUMN_KEY},
            plaintext_columns=["flag"],
            **how,
        ),
    )
    return tmp_path / "sealed.parquet"


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gcm": ({}, {}),
    "plaintext footer": ({}, {"plaintext_footer": True}),
    "ctr": ({}, {"encryption_algorithm": "AES_GCM_CTR_V1"}),
    "v2": ({"data_page_version": "2.0"}, {}),
    "v2, levels in clear": (
        {"data_page_version": "2.0"},
        {"data_page_v2_levels": "plaintext"},
    ),
    "page index": ({"write_page_index": True}, {}),
    "bloom filters": ({"bloom_filter_options": {"id": SMALL_FILTER, "name": SMALL_FILTER}}, {}),
    "checksums": ({"write_page_checksum": True}, {}),
    "checksums under ctr": (
        {"write_page_checksum": True},
        {"encryption_algorithm": "AES_GCM_CTR_V1"},
    ),
    "uncompressed, no dictionary": ({"compression": "none", "use_dictionary": False}, {}),
}


@each_case("way", WAYS.values(), ids=WAYS)
def test_pyarrow_polars_and_duckdb_read_through_it(
    way: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    sealed = encrypt(tmp_path, way[0], **way[1])
    table = pq.read_table(tmp_path / "plain.parquet")
    with mc.open_parquet(sealed, KEYS) as view:
        read = pq.ParquetFile(view, page_checksum_verification=True).read()
        assert read.equals(table)
        wanted = ds.field("id") == 333
        assert pq.read_table(view, filters=wanted).equals(table.filter(wanted))
        view.seek(0)
        file: Any = view  # both take file objects, whatever their stubs say
        assert pl.read_parquet(file).equals(pl.read_parquet(tmp_path / "plain.parquet"))
        view.seek(0)
        found = duckdb.read_parquet(file)
        assert found.aggregate("sum(id), count(name)").fetchall() == [
            (sum(range(1000)), table["name"].drop_null().length())
        ]


@each_case("way", WAYS.values(), ids=WAYS)
def test_parquet_java_takes_it_for_a_plaintext_file_with_indexes_and_filters(
    way: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path, java: Any
) -> None:
    sealed = encrypt(tmp_path, way[0], **way[1])
    with mc.open_parquet(sealed, KEYS) as view:
        (tmp_path / "view.parquet").write_bytes(view.readall())
    plain, seen = tmp_path / "plain.parquet", tmp_path / "view.parquet"
    options = {"plaintext_ok": True, "verify_crc": True}
    assert java.read_text(seen, **options) == java.read_text(plain, **options)
    assert java.column_indexes(seen, plaintext_ok=True) == java.column_indexes(
        plain, plaintext_ok=True
    )


def test_what_decrypt_parquet_gives_has_the_same_rows(tmp_path: Path) -> None:
    sealed = encrypt(tmp_path)
    plain = io.BytesIO()
    mc.decrypt_parquet(sealed, plain, KEYS)
    with mc.open_parquet(sealed, KEYS) as view:
        assert pq.read_table(view).equals(pq.read_table(pa.BufferReader(plain.getvalue())))


def test_only_the_footer_and_the_pages_asked_for_are_read(tmp_path: Path) -> None:
    columns = {f"c{n}": pa.array(range(n, n + 200_000)) for n in range(4)}
    plain = write_plain(tmp_path / "p", pa.table(columns), use_dictionary=False, compression="none")
    sealed = io.BytesIO()
    mc.encrypt_parquet(plain, sealed, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    source = Watched(sealed.getvalue())
    with mc.open_parquet(source, KEYS) as view:
        footer = sum(source.taken)
        assert footer <= (64 << 10) + len(b"PARE")
        assert pq.read_table(view, columns=["c2"])["c2"].equals(pa.chunked_array([columns["c2"]]))
        chunk = pq.ParquetFile(plain).metadata.row_group(0).column(2).total_compressed_size
        assert sum(source.taken) <= 1.05 * (chunk + footer)


@given(
    cuts=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 9_000)), max_size=12),
    way=st.sampled_from(sorted(WAYS)),
)
def test_any_sequence_of_reads_gives_slices_of_the_same_file(
    cuts: list[tuple[int, int]], way: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sealed = SEALED.get(way)
    if sealed is None:
        options, how = WAYS[way]
        folder = tmp_path_factory.mktemp("view")
        sealed = SEALED[way] = encrypt(folder, options, **how).read_bytes()
    with mc.open_parquet(sealed, KEYS) as view:
        pieces = [view.read_at(offset, length) for offset, length in cuts]
        whole = view.readall()
        assert len(whole) == view.size == view.seek(0, io.SEEK_END)
    assert pieces == [whole[offset : offset + length] for offset, length in cuts]


SEALED: dict[str, bytes] = {}


def test_threads_share_it(tmp_path: Path) -> None:
    with mc.open_parquet(encrypt(tmp_path), KEYS) as view, ThreadPoolExecutor(8) as pool:
        whole = view.read_at(0, view.size)
        places = [(n * 977 % len(whole), 1500) for n in range(400)]
        pieces = list(pool.map(lambda place: view.read_at(*place), places))
    assert pieces == [whole[start : start + length] for start, length in places]


def test_altered_pages_fail_when_they_are_read_and_not_before(tmp_path: Path) -> None:
    sealed = bytearray(encrypt(tmp_path).read_bytes())
    spans = list_modules(sealed, KEYS)
    (span,) = [
        span for span in spans if str(span.module) == "data page, row group 1, column score, page 2"
    ]
    sealed[span.end - 1] ^= 1
    table = pq.read_table(tmp_path / "plain.parquet")
    with mc.open_parquet(sealed, KEYS) as view:

        def read(column: str) -> pa.Table:
            # Without pre_buffer, which reads across small gaps between columns.
            return pq.read_table(view, columns=[column], pre_buffer=False)

        assert read("id").equals(table.select(["id"]))
        with pytest.raises(mc.errors.TagMismatchError) as caught:
            read("score")
        assert caught.value.module == span.module
        assert read("name").equals(table.select(["name"]))


def test_columns_without_a_key_are_refused_or_left_out(tmp_path: Path) -> None:
    sealed = encrypt(tmp_path)
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
    with pytest.raises(mc.errors.KeyNotFoundError, match="address"):
        mc.open_parquet(sealed, keys)
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="drop")
    with mc.open_parquet(sealed, keys) as view:
        table = pq.read_table(tmp_path / "plain.parquet").drop_columns(["name", "address"])
        assert pq.read_table(view).equals(table)


def test_a_plaintext_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(mc.errors.PlaintextError):
        mc.open_parquet(write_plain(tmp_path / "plain.parquet"), KEYS)


def test_a_closed_view_says_so_and_closes_once(tmp_path: Path) -> None:
    view = mc.open_parquet(encrypt(tmp_path), KEYS)
    assert (view.readable(), view.seekable(), view.writable()) == (True, True, False)
    view.close()
    view.close()
    for call in (lambda: view.read_at(0, 1), view.tell, lambda: view.seek(0), lambda: view.read(1)):
        with pytest.raises(ValueError, match="closed"):
            call()


@each_case("missing", [0, 2, 3, 129, 130, 131, 16_385, 16_386, 16_387, 20_969, 1 << 21, 3 << 20])
def test_a_filled_struct_is_as_long_as_asked_and_reads_the_same(missing: int) -> None:
    """Thriftpy2's own reader skips the filling."""
    struct = encode(new("SortingColumn", column_idx=7, descending=True, nulls_first=False))
    filled = pad_struct(struct, len(struct) + missing)
    assert len(filled) == len(struct) + missing
    expected = judge_decodes("SortingColumn", struct)[0]
    assert judge_decodes("SortingColumn", filled) == (expected, len(filled))


def test_what_cannot_be_filled_is_refused() -> None:
    struct = encode(new("SortingColumn", column_idx=7, descending=True, nulls_first=False))
    with pytest.raises(mc.errors.FormatError, match="bytes, which no field can fill"):
        pad_struct(struct, len(struct) + 1)


FORK = """
import os, sys, warnings
import modcrypt as mc
warnings.simplefilter("ignore")  # newer Pythons warn of forks
keys = mc.FileDecryptionProperties(footer_key=bytes.fromhex(sys.argv[2]))
view, file = mc.open_parquet(sys.argv[1], keys), mc.ParquetFile(sys.argv[1], keys)
whole, table = view.readall(), file.read()
child = os.fork()
if child == 0:
    same = view.read_at(0, view.size) == whole and file.read().num_rows == table.num_rows
    os._exit(0 if same else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_view_and_a_file_go_on_in_a_forked_process(tmp_path: Path) -> None:
    """Threads stay with the parent: a pool that waits for them would wait for ever."""
    columns = {f"c{n}": pa.array(range(n, n + 400_000)) for n in range(4)}
    options: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
    sealing = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    mc.write_table(pa.table(columns), tmp_path / "sealed", sealing, **options)
    command = [sys.executable, "-c", FORK, str(tmp_path / "sealed"), FOOTER_KEY.hex()]
    subprocess.run(command, check=True, timeout=60)
