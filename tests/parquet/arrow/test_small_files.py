"""A small file costs few objects of PyArrow and few calls of the system, which are counted."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt import aead
from modcrypt.io.threads import ThreadPool
from modcrypt.parquet.arrow import filters, writer
from modcrypt.parquet.arrow.scanning.file_scan import Scan
from modcrypt.parquet.arrow.scanning.scan_session import Session
from modcrypt.parquet.crypto import file_plan
from modcrypt.parquet.crypto.column_kinds import find_kinds
from modcrypt.parquet.crypto.file_plan import ReadPlan
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.runtime.code_form import code_form
from tests.support.cases import each_case

KEY = bytes(range(16))
READER = FileDecryptionProperties(footer_key=KEY)
TABLE = pa.table({f"c{n}": list(range(100)) for n in range(5)})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the numbers of calls that a test causes, by their names."""
    counted: Counter[str] = Counter()
    for owner, names in (
        (os, ("open", "pread", "preadv", "write", "fsync", "replace")),
        (FileDecryptionProperties, ("__post_init__",)),
        (pq, ("ParquetFile", "ParquetWriter")),
        (writer, ("_encode",)),
    ):
        for name in names:
            count_calls(monkeypatch, owner, name, counted)
    return counted


def count_calls(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, counted: Counter[str]
) -> None:
    wrapped = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        counted[name] += 1
        return wrapped(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


def test_a_small_table_is_encoded_and_written_once(tmp_path: Path, calls: Counter[str]) -> None:
    mc.write_table(TABLE, tmp_path / "file", KEY)
    # A file is opened that has no name yet, and the folder.
    assert calls == {
        "open": 2, "write": 1, "fsync": 2, "replace": 1,
        "ParquetWriter": 1, "_encode": 1,
    }  # fmt: skip


READ = {"open": 1, "pread": 1}
"""Calls that read the end of a file, with its footer."""

INSPECTED = READ | {"preadv": 1, "__post_init__": 1}

WRITTEN = {"open": 3, "pread": 1, "preadv": 1, "write": 1, "fsync": 2, "replace": 1}


@each_case(
    ("work", "expected"),
    [
        (lambda plain, _: mc.encrypt_parquet(plain, f"{plain}.new", KEY), WRITTEN),
        (lambda _, sealed: mc.decrypt_parquet(sealed, f"{sealed}.new", READER), WRITTEN),
        (lambda _, sealed: mc.verify_parquet(sealed, READER), READ | {"preadv": 1}),
        (lambda _, sealed: mc.inspect_parquet(sealed, READER), INSPECTED),
    ],
)
def test_a_small_file_is_opened_once_and_read_by_few_calls(
    work: Callable[[Path, Path], Any], expected: dict[str, int], tmp_path: Path,
    calls: Counter[str],
) -> None:  # fmt: skip
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    pq.write_table(TABLE, plain)
    mc.write_table(TABLE, sealed, KEY)
    _ = mc.verify_parquet  # its module makes properties
    calls.clear()
    work(plain, sealed)
    assert calls == expected


def test_a_small_file_is_read_by_two_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Counter[str]
) -> None:
    for owner, name in ((os, "stat"), (os.path, "isdir"), (pa, "concat_tables")):
        count_calls(monkeypatch, owner, name, calls)
    table = TABLE.rename_columns([f"of_this_test_{n}" for n in range(5)])
    mc.write_table(table, tmp_path / "file", KEY)
    for schemas in (1, 0):  # PyArrow's schema of a footer is kept
        calls.clear()
        assert mc.read_table(tmp_path / "file", READER) == table
        # One read has the footer, and one all chunks.
        assert calls == {
            "open": 1, "pread": 1, "preadv": 1, "ParquetFile": 1 + schemas,
        }  # fmt: skip


@pytest.mark.parametrize("condition", [None, pc.field("c1") < 3, pc.field("c1") >= 0])
def test_row_groups_of_few_rows_need_no_scanner(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: Counter[str],
    condition: pc.Expression | None,
) -> None:
    mc.write_table(TABLE, tmp_path / "file", KEY, row_group_size=2)
    calls.clear()
    if code_form() != "compiled":  # The methods of compiled classes cannot be replaced.
        count_calls(monkeypatch, Scan, "_make_scanner", calls)
    count_calls(monkeypatch, aead, "AESGCM", calls)
    table = mc.read_table(tmp_path / "file", KEY, filters=condition)
    assert table == (TABLE if condition is None else TABLE.filter(condition))
    # One read has the chunks of all row groups, and the footer's cipher opens them.
    assert [calls[name] for name in ("_make_scanner", "preadv", "AESGCM")] == [0, 1, 1]


def test_a_filter_opens_its_own_chunks_and_those_of_row_groups_that_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    select = Session.select

    def note(*args: Any) -> ReadPlan:
        plan = select(*args)
        opened.append(len(plan.chunks))
        return plan

    monkeypatch.setattr(Session, "select", note)
    mc.write_table(TABLE, tmp_path / "file", KEY, row_group_size=2)
    assert mc.read_table(tmp_path / "file", KEY, filters=pc.field("c1") == 7).num_rows == 1
    assert opened == [0, 50, 5]  # for the keys, for the statistics of 50 row groups, for one


@each_case("condition", [None, pc.field("c1") == 7])
def test_each_chunk_is_judged_once_and_no_reader_is_made_for_a_row_group(
    condition: pc.Expression | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    calls: Counter[str],
) -> None:  # fmt: skip
    if code_form() == "compiled":
        pytest.skip("compiled functions call each other without a look at the module")
    judged: Counter[int] = Counter()

    def note(*args: Any) -> dict[int, set[str]]:
        judged.update(c for c in args[2] for _ in args[3])
        return find_kinds(*args)

    monkeypatch.setattr(file_plan, "find_kinds", note)
    count_calls(monkeypatch, ThreadPool, "run_all", calls)
    texts = [os.urandom(1 << 10) for _ in range(240)]
    table = pa.table({"c1": range(240)} | {f"c{n}": texts for n in range(2, 8)})
    mc.write_table(table, tmp_path / "file", KEY, row_group_size=2)
    assert (tmp_path / "file").stat().st_size > 1 << 20
    mc.read_table(tmp_path / "file", KEY)  # keeps PyArrow's schema
    calls.clear()
    judged.clear()
    mc.read_table(tmp_path / "file", KEY, filters=condition)
    assert judged == dict.fromkeys(range(7), 120)
    # The chunks are one file for PyArrow, and too small for threads.
    assert [calls[name] for name in ("ParquetFile", "run_all")] == [1, 0]


@each_case("condition", [None, pc.field("c1") == 7])
def test_a_read_leaves_no_garbage(condition: pc.Expression | None, tmp_path: Path) -> None:
    mc.write_table(TABLE, tmp_path / "file", KEY, row_group_size=2)
    mc.read_table(tmp_path / "file", KEY, filters=condition)
    gc.collect()
    gc.disable()
    try:
        mc.read_table(tmp_path / "file", KEY, filters=condition)
        # Cycles would keep what thousands of chunks need until a full collection.
        assert gc.collect() < 100
    finally:
        gc.enable()


def test_flat_types_are_not_searched_for_views(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count_calls(monkeypatch, filters, "_replace_views_of_type", calls)
    kinds = [pa.int32(), pa.string(), pa.decimal128(9, 2), pa.timestamp("us", "UTC"), pa.binary(4)]
    flat = pa.schema([(f"c{n}", kind) for n, kind in enumerate(kinds)])
    assert filters.replace_views(flat) is flat
    assert not calls
    views = flat.append(pa.field("view", pa.list_(pa.string_view())))
    assert filters.replace_views(views).types[-1] == pa.list_(pa.string())
