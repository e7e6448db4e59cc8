"""`mask_table`, `share_table` and `inspect_table`; PyArrow and `hmac` judge what comes out.

What a task does with a file is tried in this process, too: Spark calls `VerbJob.run`.
"""

from __future__ import annotations

import os
import pickle
import shutil
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from modcrypt.kms.settings import Settings
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.spark import inspect_table, mask_table, share_table
from modcrypt.spark.jobs.conversion import make_conversion_job
from modcrypt.spark.jobs.file_work import VerbJob
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.mask_hash import mask_hash
from tests.support.spark.lake import Lake
from tests.support.tables import read_with_pyarrow, small_table

pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)

HASH_KEY = b"a hash key of 32 bytes, for HMAC"
NAMES = ("day=1/part-0.parquet", "day=1/part-1.parquet", "part-2.parquet")
SEALING = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write a table of three files under FOOTER_KEY."""
    folder = tmp_path / "table"
    for number, name in enumerate(NAMES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        mc.write_table(small_table(10 + number), folder / name, SEALING)
    return folder


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Settings]:
    """Return settings that refer to keys in files: `old` and `new`."""
    return {
        name: Settings(footer_key=key_file(tmp_path / name, key))
        for name, key in (("old", FOOTER_KEY), ("new", OTHER_KEY))
    }


@pytest.fixture
def hash_key(tmp_path: Path) -> str:
    return key_file(tmp_path / "hash", HASH_KEY)


def key_file(path: Path, key: bytes) -> str:
    path.write_text(key.hex())
    return f"file:{path}"


def hash_values(values: Sequence[str | None]) -> list[str | None]:
    return [None if value is None else mask_hash(HASH_KEY, value.encode()) for value in values]


def count_results(report: Any) -> dict[str, int]:
    return dict(Counter(row["result"] for row in report.collect()))


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    found = {str(p): p.stat() for p in folder.rglob("*") if p.is_file()}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def pairs_of(path: Path) -> dict[bytes, bytes]:
    """Return the metadata pairs of a footer under FOOTER_KEY as PyArrow reads them."""
    opened = pe.create_decryption_properties(footer_key=FOOTER_KEY)
    found: dict[bytes, bytes] = pq.read_metadata(path, decryption_properties=opened).metadata
    return found


def run_here(job: VerbJob, *names: str) -> list[str]:
    """Run a job in this process as a task runs it; return the results."""
    paths = [os.path.join(job.arguments["conversion"].source, name) for name in names or NAMES]
    batch = pa.record_batch({"name": [os.fsencode(p) for p in paths], "size": [1] * len(paths)})
    (rows,) = pickle.loads(pickle.dumps(job)).run([batch])
    reported: list[str] = rows.column("result").to_pylist()
    return reported


# --- masks ---------------------------------------------------------------------------------------


def test_pyarrow_reads_masked_files_and_a_second_run_leaves_them(
    spark: Any, table: Path, tmp_path: Path, keys: dict[str, Settings], hash_key: str
) -> None:
    masks: dict[str, Any] = {"null": ["price"], "hashed": ["name"], "drop": ["address"]}
    out = tmp_path / "out"

    def mask(**more: Any) -> dict[str, int]:
        every = {"hash_key": hash_key, **masks, **more}
        return count_results(mask_table(spark, table, out, keys["old"], keys["new"], **every))

    assert mask(dry_run=True) == {"planned": 3}
    assert not out.exists()
    assert mask() == {"masked": 3}
    for number, name in enumerate(NAMES):
        before = small_table(10 + number)
        found = read_with_pyarrow(out / name, OTHER_KEY)
        assert found["name"].to_pylist() == hash_values(before["name"].to_pylist())
        assert found["price"].null_count == found.num_rows
        assert "address" not in found.column_names
        assert found.select(["id", "score"]).equals(before.select(["id", "score"]))
    left = stamps(out)
    assert mask() == mask(overwrite=True) == {"current": 3}
    assert stamps(out) == left
    assert mask(null=["price", "score"]) == {"file": 3}  # they are something else, and kept
    assert mask(null=["price", "score"], overwrite=True) == {"masked": 3}
    assert mask(overwrite=True) == {"masked": 3}, "whose scores are null is not what is wanted now"


def test_a_table_is_masked_in_place_once(
    spark: Any, lake: Lake, tmp_path: Path, hash_key: str
) -> None:
    policy = mc.Policy.load(lake.policy)
    settings, folder = Settings(policy=policy), tmp_path / "table"
    folder.mkdir()
    tools = mc.KeyTools.from_policy(policy)
    for number in range(3):
        mc.write_table(small_table(9), folder / f"{number}.parquet", tools.encryption(policy))
    masks: dict[str, Any] = {"hashed": ["name"], "drop": ["address"], "hash_key": hash_key}
    first = folder / "0.parquet"
    mc.mask_parquet(
        first, first, tools.decryption(policy), hashed=["name"], drop=["address"],
        hash_key=HASH_KEY,
    )  # fmt: skip
    report = mask_table(spark, folder, None, settings, **masks)
    assert count_results(report) == {"current": 1, "masked": 2}
    left = stamps(folder)
    assert count_results(mask_table(spark, folder, None, settings, **masks)) == {"current": 3}
    assert stamps(folder) == left
    with pytest.raises(ValueError, match=r"from hashed: name"):
        mask_table(spark, folder, None, settings, hashed=["name", "day"], hash_key=hash_key)
    again = mask_table(spark, folder, None, settings, hashed=["day"], hash_key=hash_key)
    assert count_results(again) == {"masked": 3}
    assert count_results(mask_table(spark, folder, None, settings, **masks)) == {"current": 3}
    for path in folder.iterdir():
        found = mc.read_table(path, mc.KeyTools.from_policy(policy).decryption(policy))
        assert found["name"].to_pylist() == hash_values(small_table(9)["name"].to_pylist())


def test_with_its_own_keys_a_copy_is_current_only_under_those(
    table: Path, tmp_path: Path, keys: dict[str, Settings], hash_key: str
) -> None:
    out = tmp_path / "out"
    job = make_conversion_job(
        "mask", source=str(table), destination=str(out), decryption=keys["old"],
        change=Change(null=("id",), hashed=("tags",)), hash_key=hash_key,
    )  # fmt: skip
    assert run_here(job) == ["masked"] * 3
    assert run_here(job) == ["current"] * 3
    other = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    for name, sealing in (
        (NAMES[0], mc.FileEncryptionProperties(footer_key=OTHER_KEY)),
        (NAMES[1], mc.FileEncryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"another")),
    ):
        mc.rekey_parquet(out / name, out / name, other, sealing)
    assert run_here(job) == ["different", "different", "current"]
    again = replace(job.arguments["conversion"], overwrite=True)
    assert run_here(replace(job, arguments={"conversion": again})) == [
        "masked", "masked", "current",
    ]  # fmt: skip


def test_no_key_is_needed_for_what_goes_whole_in_place_either(
    tmp_path: Path, keys: dict[str, Settings]
) -> None:
    folder = tmp_path / "table"
    folder.mkdir()
    columns = dict.fromkeys(("name", "address"), COLUMN_KEY)
    sealing = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys=columns)
    mc.write_table(small_table(9), folder / "a.parquet", sealing)
    job = make_conversion_job(
        "mask", source=str(folder), destination=None, decryption=keys["old"],
        change=Change(null=("address",), drop=("name",)),
    )  # fmt: skip
    assert run_here(job, "a.parquet") == ["masked"]
    assert run_here(job, "a.parquet") == ["current"]
    assert read_with_pyarrow(folder / "a.parquet", FOOTER_KEY)["address"].null_count == 9


def test_values_of_every_kind_are_seen_to_be_masked(
    tmp_path: Path, keys: dict[str, Settings], hash_key: str
) -> None:
    """By statistics: those of lists, of empty ones and of moments as INT96 among them."""
    values = {
        "text": pa.array(["a", None, "b"]), "none": pa.array([None] * 3, pa.string()),
        "list": pa.array([[1], [], None]), "empty": pa.array([[], None, []], pa.list_(pa.int8())),
        "map": pa.array([[("k", None)], [], None], pa.map_(pa.string(), pa.int64())),
        "group": pa.array([{"x": 1}, None, {"x": None}]),
        "moment": pa.array([1, None, 2], pa.timestamp("ns")),
    }  # fmt: skip
    folder = tmp_path / "table"
    folder.mkdir()
    both = pa.table({"keep": range(3), **values, **{f"{n}0": v for n, v in values.items()}})
    for name, rows in (("a.parquet", both), ("b.parquet", both.slice(0, 0))):
        options: dict[str, Any] = {"use_deprecated_int96_timestamps": True}
        mc.write_table(rows, folder / name, SEALING, **options)
    nulls = [f"{name}0" for name in values if name not in ("map", "list")]
    parts = ("list0.list.element", "map0.key_value.value")
    job = make_conversion_job(
        "mask", source=str(folder), destination=None, decryption=keys["old"],
        change=Change(null=(*nulls, *parts), hashed=tuple(values)), hash_key=hash_key,
    )  # fmt: skip
    assert run_here(job, "a.parquet", "b.parquet") == ["masked"] * 2
    assert run_here(job, "a.parquet", "b.parquet") == ["current"] * 2


@pytest.mark.parametrize("what", ["null", "hashed"])
def test_a_note_that_came_with_other_values_is_not_believed(
    what: str, table: Path, keys: dict[str, Settings], hash_key: str
) -> None:
    """PyArrow and others may copy the pairs of a file that they read to one that they write."""
    name = ("name",)
    change = Change(null=name) if what == "null" else Change(hashed=name)
    job = make_conversion_job(
        "mask",
        source=str(table),
        destination=None,
        decryption=keys["old"],
        change=change,
        hash_key=hash_key,
    )
    assert run_here(job) == ["masked"] * 3
    masked = read_with_pyarrow(table / NAMES[0], FOOTER_KEY)
    names = pa.array(["in plaintext"] * masked.num_rows)
    exposed = masked.set_column(masked.column_names.index("name"), "name", names)
    pairs = {b"modcrypt.masked": pairs_of(table / NAMES[0])[b"modcrypt.masked"]}
    mc.write_table(exposed.replace_schema_metadata(pairs), table / NAMES[0], SEALING)
    assert b"modcrypt.masked" in pairs_of(table / NAMES[0])
    assert run_here(job)[0] == {"null": "masked", "hashed": "usage"}[what]


@pytest.mark.parametrize("rekeyed", [False, True])
def test_an_attempt_that_comes_second_finds_the_work_done(
    table: Path, keys: dict[str, Settings], hash_key: str, rekeyed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Between its look and its work the other one has masked the file, and rekeyed it."""

    mask_parquet = mc.mask_parquet

    def twice(*arguments: Any, **options: Any) -> Any:
        mask_parquet(*arguments, **options)
        return mask_parquet(*arguments, **options)

    monkeypatch.setattr("modcrypt.parquet.rewrite.rekey.mask_parquet", twice)
    job = make_conversion_job(
        "mask", source=str(table), destination=None, decryption=keys["old"],
        encryption=keys["new"] if rekeyed else None,
        change=Change(hashed=("name",), drop=("id",)), hash_key=hash_key,
    )  # fmt: skip
    assert run_here(job) == ["current"] * 3
    found = read_with_pyarrow(table / NAMES[0], OTHER_KEY if rekeyed else FOOTER_KEY)
    assert found["name"].to_pylist() == hash_values(small_table(10)["name"].to_pylist())


def test_what_is_wrong_is_reported_before_spark_is_asked(
    table: Path, tmp_path: Path, keys: dict[str, Settings], hash_key: str
) -> None:
    out, old, new = tmp_path / "out", keys["old"], keys["new"]
    spark: Any = None
    masks: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, ValueError, "name columns"),
        ({"null": ["nmae"]}, ValueError, "does not have these columns: nmae"),
        ({"null": "name"}, ValueError, "not a string"),
        ({"null": ["id"], "drop": ["id"]}, ValueError, "more than once in drop, null and hashed"),
        ({"hashed": ["name"]}, ValueError, "hash_key"),
        ({"hashed": ["name"], "hash_key": HASH_KEY.hex()}, ValueError, "never the key itself"),
        ({"hashed": ["name"], "hash_key": "env:NO_SUCH"}, mc.errors.KeyNotFoundError, "NO_SUCH"),
    ]
    for destination in (out, None):
        for encryption in (None, new):
            for options, kind, words in masks:
                with pytest.raises(kind, match=words) as caught:
                    mask_table(spark, table, destination, old, encryption, **options)
                assert HASH_KEY.hex() not in str(caught.value)
    with pytest.raises(mc.ModcryptError):
        mask_table(spark, table, out, new, null=["id"])
    with pytest.raises(ValueError, match="lost for good"):
        mask_table(spark, table, None, replace(old, on_missing_key="drop"), null=["id"])
    columns = Settings(footer_key=new.footer_key, column_keys={"name": hash_key})
    with pytest.raises(ValueError, match="not have these columns: name"):
        mask_table(spark, table, out, old, columns, drop=["name"])
    shares: list[tuple[Any, str]] = [
        ([], "no columns to share"),
        ("id", "not a string"),
        (["nmae"], "does not have these columns: nmae"),
    ]
    for names, words in shares:
        with pytest.raises(ValueError, match=words):
            share_table(spark, table, out, old, new, names)
    with pytest.raises(ValueError, match="destination"):
        share_table(spark, table, None, old, new, ["id"])  # type: ignore[arg-type]  # the test
    assert not out.exists()


# --- shares --------------------------------------------------------------------------------------


def test_a_partner_reads_what_was_shared_and_finds_no_more(
    spark: Any, table: Path, tmp_path: Path, keys: dict[str, Settings]
) -> None:
    out = tmp_path / "partner"
    columns = ["id", "address.zip"]
    for path in table.rglob("*.parquet"):
        secret = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": OTHER_KEY})
        mc.rekey_parquet(path, path, READER, secret)  # whose key is not needed
    for word in ("shared", "current"):
        report = share_table(spark, table, out, keys["old"], keys["new"], columns)
        assert count_results(report) == {word: 3}
        assert {row["message"] for row in report.collect()} == {""}
    for number, name in enumerate(NAMES):
        found = read_with_pyarrow(out / name, OTHER_KEY)
        assert found.column_names == ["id", "address"]
        assert found["id"].equals(small_table(10 + number)["id"])
    shutil.copy(out / NAMES[1], out / NAMES[0])  # of another number of rows
    found = share_table(spark, table, out, keys["old"], keys["new"], columns, overwrite=True)
    assert count_results(found) == {"shared": 1, "current": 2}


# --- inspection ----------------------------------------------------------------------------------


def test_inspect_table_reports_what_inspect_parquet_reports(
    spark: Any, table: Path, keys: dict[str, Settings]
) -> None:
    (table / "broken.parquet").write_bytes(b"no Parquet file")
    signed = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, plaintext_footer=True, plaintext_columns=["id"], aad_prefix=b"p\xff"
    )
    mc.write_table(small_table(9), table / NAMES[2], signed)
    for settings, properties in ((None, None), (keys["old"], READER)):
        report = inspect_table(spark, table, settings)
        rows = {row["path"]: row for row in report.collect()}
        assert len(rows) == 4
        broken = rows.pop(str(table / "broken.parquet"))
        assert (broken["result"], broken["failed"]) == ("format", True)
        for path, row in rows.items():
            here = mc.inspect_parquet(path, properties).fields()
            assert (row["result"], row["failed"], row["message"]) == ("inspected", False, "")
            for name in (
                "encrypted", "footer_mode", "footer_authenticated", "algorithm", "aad_prefix",
                "stores_aad_prefix", "needs_aad_prefix", "created_by", "writer", "row_groups",
            ):  # fmt: skip
                assert row[name] == here[name], name
            for name in ("leaks", "hidden", "quirks", "key_value_metadata"):
                assert list(row[name]) == here[name]
            assert (row["rows"], row["bytes_in"]) == (here["num_rows"], here["size"])
            assert row["columns"] == (None if here["columns"] is None else 9)
        last = rows[str(table / NAMES[2])]
        assert (last["plaintext_columns"], last["encrypted_columns"]) == (["id"], 8)
        assert last["opened_columns"] == (8 if settings else 0)


def test_the_hash_key_is_in_no_log(
    spark: Any, spark_folder: Path, table: Path, tmp_path: Path, keys: dict[str, Settings],
    hash_key: str,
) -> None:  # fmt: skip
    (table / NAMES[0]).write_bytes(b"no Parquet")
    report = mask_table(
        spark, table, tmp_path / "out", keys["old"], hashed=["name"], hash_key=hash_key
    )
    text = str(report.collect()) + "".join(
        path.read_text() for path in (spark_folder / "events").rglob("*") if path.is_file()
    )
    assert str(table) in text
    for key in (HASH_KEY, FOOTER_KEY):
        for secret in (key.decode(), key.hex(), b64encode(key).decode()):
            assert secret not in text
    assert HASH_KEY.hex() not in str(pairs_of(tmp_path / "out" / NAMES[1]))
