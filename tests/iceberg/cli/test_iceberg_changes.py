"""`modcrypt iceberg create`, `append`, `encrypt`, `rotate`, `prune`, `expire`, `verify`, `tree`."""

from __future__ import annotations

import datetime
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import modcrypt
from modcrypt.iceberg.commands.iceberg_group import iceberg
from tests.support.cases import each_case
from tests.support.cli.tree import commands_of
from tests.support.iceberg.cli_runs import Run, error_line, lines, run
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.sample_kms import MASTERS, SampleKms
from tests.support.signing import save_writer
from tests.support.sleeps import note_sleeps

__all__ = ["run"]  # a fixture

DAY = datetime.date(2026, 11, 21)
ORDERS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "country": ["NO", "SE", "NO"],
        "price": [1.5, None, 2.5],
        "sold": [DAY, DAY, DAY + datetime.timedelta(1)],
    }
)
ROWS = [{**row, "sold": str(row["sold"])} for row in ORDERS.to_pylist()]
SAMPLE = ("--kms", "sample:")
KEY_A = (*SAMPLE, "--master-key", "keyA")


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    pq.write_table(ORDERS, tmp_path / "orders.parquet")
    return tmp_path / "orders.parquet"


def documents(folder: Path) -> list[dict[str, Any]]:
    """Return the versions of a table in a folder, the oldest first."""
    paths = sorted((folder / "metadata").glob("v*.json"), key=lambda path: int(path.name[1:-14]))
    return [json.loads(path.read_text()) for path in paths]


def everything(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def check_encrypted(folder: Path) -> None:
    """Check that no data file, manifest or manifest list of a table is in plaintext.

    Magic bytes count where they belong: four bytes may be anywhere in a ciphertext.
    """
    sealed = {".parquet": b"PARE", ".avro": b"AGS1"}
    files = {name: data for name, data in everything(folder).items() if Path(name).suffix in sealed}
    assert {Path(name).suffix for name in files} == sealed.keys()
    for name, data in files.items():
        assert data[:4] == sealed[Path(name).suffix], name
    stored = b"".join(everything(folder).values())
    assert b"parquet-cpp-arrow" not in stored
    assert b"avro.schema" not in stored


def rows(run: Run, *arguments: object) -> list[dict[str, Any]]:
    return sorted(lines(run("scan", *SAMPLE, "--json", *arguments)), key=lambda row: row["id"])


# --- create and append ---------------------------------------------------------------------------


def test_a_table_is_created_and_filled_and_nothing_of_it_is_in_plaintext(
    run: Run, orders: Path, tmp_path: Path
) -> None:
    made = lines(run("create", *KEY_A, "--like", orders, "lake/orders", "--json"))[0]
    assert made["master_key_id"] == "keyA"
    assert (made["snapshot_id"], made["last_sequence_number"]) == (None, 0)
    (document,) = documents(tmp_path / "lake/orders")
    assert document["properties"] == {
        "encryption.key-id": "keyA",
        "encryption.data-key-length": "16",
    }
    assert rows(run, "lake/orders") == []
    assert run("files", *SAMPLE, "lake/orders").stdout.startswith("kind  location  ")
    done = lines(run("append", *SAMPLE, "lake/orders", orders, orders, "--json"))[0]
    assert (done["added_records"], done["total_records"]) == (6, 6)
    assert rows(run, "lake/orders") == sorted(2 * ROWS, key=lambda row: row["id"])
    said = run("append", *SAMPLE, "lake/orders", orders).stdout
    assert re.fullmatch(r"appended: 3 rows in 1 file, snapshot \d+; \S+v3.metadata.json\n", said)
    assert len(rows(run, "lake/orders", "--snapshot", done["snapshot_id"])) == 6
    check_encrypted(tmp_path / "lake/orders")


def test_the_options_of_a_new_table_are_in_its_metadata(
    run: Run, orders: Path, tmp_path: Path
) -> None:
    parts = ("price", "day(sold)", "bucket(4, id)", "truncate(1,country)")
    run(
        "create", *KEY_A, "--like", orders, *(f"--partition-by={part}" for part in parts),
        "--key-length", 32, "--kek-per", "files", "--files-per-kek", 7, "--kek-lifetime", 30,
        "--property", "write.parquet.compression-codec=snappy", "lake/orders",
    )  # fmt: skip
    (document,) = documents(tmp_path / "lake/orders")
    ids = {field["name"]: field["id"] for field in document["schemas"][0]["fields"]}
    (spec,) = document["partition-specs"]
    assert [(f["name"], f["transform"], f["source-id"]) for f in spec["fields"]] == [
        ("price", "identity", ids["price"]),
        ("sold_day", "day", ids["sold"]),
        ("id_bucket", "bucket[4]", ids["id"]),
        ("country_trunc", "truncate[1]", ids["country"]),
    ]
    properties = document["properties"]
    assert properties["encryption.data-key-length"] == "32"
    assert properties["write.parquet.compression-codec"] == "snappy"
    assert properties["modcrypt.encryption.kek-per"] == "files"
    assert properties["modcrypt.encryption.files"] == "7"
    assert properties["modcrypt.encryption.kek-lifetime-days"] == "30"
    run("append", *SAMPLE, "lake/orders", orders)
    assert rows(run, "lake/orders") == ROWS
    assert rows(run, "lake/orders", "--where", "country = 'SE'") == ROWS[1:2]


@pytest.mark.parametrize("name", ["keks.json", "keks.db"])
def test_keks_are_kept_in_a_store_that_is_made_with_the_table(
    run: Run, orders: Path, tmp_path: Path, name: str
) -> None:
    store = ("--key-store", name)
    run("create", *KEY_A, *store, "--like", orders, "lake/orders")
    run("append", *SAMPLE, *store, "lake/orders", orders)
    assert rows(run, *store, "lake/orders") == ROWS
    kinds = {key["kind"]: key["store"] for key in lines(run("keys", *SAMPLE, *store, "--json",
                                                            "lake/orders"))}  # fmt: skip
    assert kinds == {"KEK": "key store", "manifest list": "table"}
    lost = run("scan", *SAMPLE, "lake/orders", code=3)
    assert lost.stderr.startswith("modcrypt: error: no-key: ")
    error_line(run("scan", *SAMPLE, "--key-store", "none.json", "lake/orders", code=2))


@each_case(
    ("arguments", "part"),
    [
        (("--partition-by", "nothing"), "nothing is neither a column"),
        (("--partition-by", "bucket(id)"), "bucket(id) is neither a column"),
        (("--partition-by", "day(4, sold)"), "is neither a column"),
        (("--partition-by", "week(sold)"), "week(sold) is neither a column"),
        (("--folder", "x"), "--catalog"),
        (("--files-per-kek", "3"), "--kek-per files"),
        (("--property", "x"), "NAME=VALUE"),
        (("--property", "encryption.key-id=keyB"), "encryption.key-id"),
        (("--wrapping", "single", "--kek-per", "day"), "single"),
        (("--catalog", "sqlite:///c.db", "--catalog-name", "x", "--folder", "f"), "NAMESPACE"),
    ],
)
def test_a_table_that_can_not_be_made_leaves_nothing(
    run: Run, orders: Path, tmp_path: Path, arguments: tuple[str, ...], part: str
) -> None:
    assert part in error_line(run("create", *KEY_A, "--like", orders, *arguments, "orders", code=2))
    assert not (tmp_path / "orders").exists()
    assert not (tmp_path / "f").exists()


def test_a_table_that_is_there_is_not_created_again(run: Run, orders: Path) -> None:
    run("create", *KEY_A, "--like", orders, "lake/orders")
    assert "already has a table" in error_line(
        run("create", *KEY_A, "--like", orders, "lake/orders", code=2)
    )


def test_rows_that_do_not_fit_are_not_appended(run: Run, orders: Path, tmp_path: Path) -> None:
    run("create", *KEY_A, "--like", orders, "lake/orders")
    before = everything(tmp_path / "lake")
    pq.write_table(pa.table({"id": ["text"], "else": [1]}), tmp_path / "other.parquet")
    error_line(run("append", *SAMPLE, "lake/orders", "other.parquet", code=2))
    line = error_line(run("append", *SAMPLE, "lake/orders", "no.parquet", code=2))
    assert "no.parquet: No such file" in line
    (tmp_path / "text").write_text("no Parquet")
    error_line(run("append", *SAMPLE, "lake/orders", "text", code=1))
    error_line(run("append", *SAMPLE, "lake/orders", orders, "other.parquet", code=1))
    error_line(run("create", *KEY_A, "--like", "text", "lake/text", code=1))
    assert everything(tmp_path / "lake") == before


def test_the_uri_of_a_key_service_may_name_the_master_key(
    run: Run, orders: Path, tmp_path: Path
) -> None:
    modcrypt.Keyring.create(tmp_path / "lake.keyring", plaintext=True).create_key("lake")
    run("create", "--kms", "file:lake.keyring#lake", "--like", orders, "lake/orders")
    (document,) = documents(tmp_path / "lake/orders")
    assert document["properties"]["encryption.key-id"] == "lake"
    none = run("create", "--kms", "file:lake.keyring", "--like", orders, "lake/none", code=2)
    assert "--master-key" in error_line(none)


# --- catalogs ------------------------------------------------------------------------------------


def test_a_table_in_a_catalog(run: Run, orders: Path, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    catalog = ("--catalog", "sqlite:///lake/catalog.db")
    run("create", *KEY_A, *catalog, "--folder", "lake/sales", "--like", orders, "shop.sales")
    run("append", *SAMPLE, *catalog, "shop.sales", orders)
    run("rotate", "mek", *SAMPLE, *catalog, "--new-master-key", "keyB", "shop.sales")
    assert rows(run, *catalog, "shop.sales") == ROWS
    assert rows(run, *catalog, "--master-key", "keyB", "shop.sales") == ROWS
    path = max((tmp_path / "lake/sales/metadata").glob("*.metadata.json"))
    assert path.name.startswith("00002-")
    assert rows(run, path) == ROWS
    assert "--catalog" in error_line(run("append", *SAMPLE, path, orders, code=1))
    assert "shop.none" in error_line(run("scan", *SAMPLE, *catalog, "shop.none", code=2))
    other = (*catalog, "--catalog-name", "other")
    error_line(run("scan", *SAMPLE, *other, "shop.sales", code=2))


def test_a_catalog_of_pyicebergs_configuration_is_found_by_its_name(
    run: Run, orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.utils.config import Config

    (tmp_path / "lake").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", f"sqlite:///{tmp_path}/lake/catalog.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    catalog = ("--catalog", "prod")
    run("create", *KEY_A, *catalog, "--folder", "lake/sales", "--like", orders, "shop.sales")
    run("append", *SAMPLE, *catalog, "shop.sales", orders)
    assert rows(run, *catalog, "shop.sales") == ROWS


@pytest.mark.parametrize(
    "uri", ["mysql://me:Zx9kQ2vLw8@host/db", "postgresql://me:Zx9kQ2vLw8@127.0.0.1:1/db", None]
)
def test_a_catalog_that_can_not_be_opened_does_not_show_its_password(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str | None
) -> None:
    from pyiceberg.utils.config import Config

    (tmp_path / "text.db").write_text("no database, but a long enough text to be looked at" * 9)
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", uri or "sqlite:///text.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    line = error_line(run("scan", *SAMPLE, "--catalog", "prod", "shop.orders", code=2))
    assert "--catalog: prod cannot be opened" in line
    assert "Zx9kQ2vLw8" not in line


# --- encrypt -------------------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Make a table in plaintext by pyiceberg, of two snapshots; return its metadata.json."""
    (tmp_path / "old").mkdir()
    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/old/catalog.db")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", ORDERS.schema, f"file://{tmp_path}/old/orders")
    for part in (ORDERS.slice(0, 2), ORDERS.slice(2)):
        table.append(part)
    return Path(table.metadata_location.removeprefix("file://"))


@pytest.mark.parametrize("by_catalog", [False, True])
def test_a_table_of_pyiceberg_is_encrypted(
    run: Run, plain: Path, tmp_path: Path, java: Judge, by_catalog: bool
) -> None:
    before = everything(tmp_path / "old")
    source = (
        ("--source-catalog=sqlite:///old/catalog.db", "shop.orders") if by_catalog else (plain,)
    )
    done = run("encrypt", *KEY_A, *source, "lake/orders", "--json")
    assert lines(done)[0]["total_records"] == 3
    assert rows(run, "lake/orders") == ROWS
    assert [row["id"] for row in java.read(newest(tmp_path / "lake/orders"))] == [1, 2, 3]
    assert everything(tmp_path / "old") == before
    check_encrypted(tmp_path / "lake/orders")
    if by_catalog:
        wrong = ("--source-catalog=sqlite:///old/catalog.db", "shop.none", "lake/none")
        assert "shop.none" in error_line(run("encrypt", *KEY_A, *wrong, code=2))


def test_the_history_is_taken_where_it_is_asked_for(run: Run, plain: Path) -> None:
    run("encrypt", *KEY_A, plain, "lake/now")
    run("encrypt", *KEY_A, "--history", plain, "lake/all")
    assert len(lines(run("snapshots", *SAMPLE, "--json", "lake/now"))) == 1
    first, second = lines(run("snapshots", *SAMPLE, "--json", "lake/all"))
    assert rows(run, "lake/all", "--snapshot", first["snapshot_id"]) == ROWS[:2]
    assert rows(run, "lake/all", "--snapshot", second["snapshot_id"]) == ROWS
    assert "encrypted" in error_line(run("encrypt", *KEY_A, "lake/all", "lake/again", code=2))


# --- from one master key to another, judged by Java ----------------------------------------------


def test_java_reads_the_table_after_each_command(
    run: Run, orders: Path, tmp_path: Path, java: Judge
) -> None:
    table = tmp_path / "lake/orders"
    run("create", *KEY_A, "--like", orders, "lake/orders")
    run("append", *SAMPLE, "lake/orders", orders)
    expected = java.read(newest(table))
    assert [row["id"] for row in expected] == [1, 2, 3]
    for step in (
        ("rotate", "mek", *SAMPLE, "--new-master-key", "keyB"),
        ("rotate", "kek", *SAMPLE),
        ("rotate", "dek", *SAMPLE),
        ("admin", "prune", *SAMPLE),
        ("expire", *SAMPLE, "--yes"),
    ):
        before = everything(table)
        if "expire" not in step:
            run(*step, "--dry-run", "lake/orders")
            assert everything(table) == before
        run(*step, "lake/orders")
        assert java.read(newest(table)) == expected
    assert {key["encrypted_by"] for key in lines(run("keys", *SAMPLE, "--json", "lake/orders"))
            if key["kind"] == "KEK"} == {"keyB"}  # fmt: skip


def newest(table: Path) -> Path:
    return max((table / "metadata").glob("v*.json"), key=lambda path: int(path.name[1:-14]))


# --- rotate, prune and expire --------------------------------------------------------------------


@pytest.fixture
def lake(run: Run, orders: Path, tmp_path: Path) -> Path:
    """Make a table of two snapshots, of one data file each."""
    run("create", *KEY_A, "--like", orders, "lake/orders")
    run("append", *SAMPLE, "lake/orders", orders)
    run("append", *SAMPLE, "lake/orders", orders)
    return tmp_path / "lake/orders"


def test_rotations_say_what_they_do(run: Run, lake: Path) -> None:
    said = run("rotate", "mek", *SAMPLE, "--dry-run", lake).stdout
    assert said.startswith("would be done: 1 KEK wrapped again; ")
    done = lines(run("rotate", "mek", *SAMPLE, "--new-master-key", "keyB", lake, "--json"))[0]
    assert (done["keks"], done["kms_calls"], done["master_key_id"]) == (1, 3, "keyB")
    result = run("rotate", "kek", *SAMPLE, lake)
    assert result.stdout.startswith(
        "1 KEK dropped, 1 KEK made, 2 keys of manifest lists encrypted again; "
    )
    assert f"the table is at {lake}/metadata/v5.metadata.json, under the master key keyB" in (
        result.stdout
    )
    assert "older metadata.json files" in result.stderr
    assert "expire_history" not in result.stderr
    said = run("rotate", "dek", *SAMPLE, lake).stdout
    assert said.startswith("2 data files rewritten, ")
    assert rows(run, lake) == sorted(2 * ROWS, key=lambda row: row["id"])


def test_a_rotation_that_others_win_is_4(
    run: Run, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_answer(*arguments: object) -> None:
        raise modcrypt.errors.CommitConflictError("another writer has committed")

    monkeypatch.setattr("modcrypt.iceberg.format.table_versions.FolderVersions.commit", lose_answer)
    before = everything(lake)
    failed = run("rotate", "kek", *SAMPLE, lake, "--json", code=4)
    assert lines(failed)[0]["error"] == "conflict"
    assert everything(lake) == before


def test_what_the_dry_run_of_expire_lists_is_what_goes(run: Run, lake: Path) -> None:
    run("rotate", "dek", *SAMPLE, lake)
    before = everything(lake)
    listed = lines(run("expire", *SAMPLE, "--dry-run", lake, "--json"))[0]
    shown = run("expire", *SAMPLE, "--dry-run", lake).stdout
    assert everything(lake) == before
    names = ("metadata_files", "manifest_lists", "manifests", "data_files", "delete_files")
    goes = {path for name in names for path in listed[name]}
    assert all(path in shown for path in goes)
    assert all(str(snapshot["snapshot-id"]) in shown for snapshot in listed["snapshots"])
    done = lines(run("expire", *SAMPLE, "--yes", lake, "--json"))[0]
    assert {name: done[name] for name in names} == {name: listed[name] for name in names}
    gone = {str(lake / name) for name in before.keys() - everything(lake).keys()}
    assert gone == goes
    assert rows(run, lake) == sorted(2 * ROWS, key=lambda row: row["id"])
    assert len(lines(run("snapshots", *SAMPLE, lake, "--json"))) == 1


def test_a_snapshot_that_is_named_is_kept(run: Run, lake: Path) -> None:
    first = lines(run("snapshots", *SAMPLE, lake, "--json"))[0]["snapshot_id"]
    run("append", *SAMPLE, lake, "orders.parquet")
    said = run("expire", *SAMPLE, "--yes", "--keep", first, lake).stdout
    assert f"keeps snapshot {first} (named)" in said
    assert re.search(r"drops snapshot \d+ of \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \(append\)", said)
    assert len(rows(run, lake, "--snapshot", first)) == 3
    assert len(rows(run, lake)) == 9


def test_expiry_by_age_and_number(run: Run, lake: Path) -> None:
    run("append", *SAMPLE, lake, "orders.parquet")
    said = run("expire", *SAMPLE, "--dry-run", "--older-than", "7d", lake).stdout
    assert said.count("history of branch main") == 2
    said = run(
        "expire", *SAMPLE, "--dry-run", "--older-than", "0.0d", "--keep-last", 2, lake
    ).stdout
    assert said.count("keeps snapshot") == 2
    run("expire", *SAMPLE, "--yes", "--older-than", "0h", "--keep-last", "1", lake)
    assert len(lines(run("snapshots", *SAMPLE, lake, "--json"))) == 1
    for age in ("7", "-1d", "7 d", "d", "7w", "1e9d", "\u0667d", "9999999999d"):
        said = run("expire", *SAMPLE, "--yes", "--older-than", age, lake, code=2).stderr
        assert "is not an age such as 7d" in said


def test_purge_deletes_what_its_dry_run_lists(run: Run, lake: Path) -> None:
    before = everything(lake)
    shown = run("purge", *SAMPLE, "--dry-run", lake).stdout
    (listed,) = lines(run("purge", *SAMPLE, "--dry-run", "--json", lake))
    assert everything(lake) == before
    assert len(listed["data_files"]) == 2
    assert all(path in shown for path in (*listed["data_files"], *listed["metadata_files"]))
    error_line(run("purge", *SAMPLE, lake, code=2))
    done = run("purge", *SAMPLE, "--yes", lake)
    assert f"purging {lake}/metadata/v3.metadata.json" in done.stderr
    assert "the master key keyA stays in the key service" in done.stdout
    assert everything(lake) == {}


def test_prune_drops_what_no_snapshot_needs(run: Run, lake: Path) -> None:
    path = newest(lake)
    document = json.loads(path.read_text())
    kept = document["encryption-keys"]
    unused = {**kept[-1], "key-id": "unused\x1b[2J\nkey"}
    path.write_text(json.dumps({**document, "encryption-keys": [*kept, unused]}))
    said = run("admin", "prune", *SAMPLE, "--dry-run", lake).stdout.splitlines()
    assert said[0] == "key of a manifest list unused\\x1b[2J\\nkey"
    assert said[1].startswith("0 KEKs and 1 key of a manifest list would be dropped, ")
    assert "\x1b" not in run("keys", *SAMPLE, lake).stdout
    assert lines(run("admin", "prune", *SAMPLE, lake, "--json"))[0]["entries"] == [unused["key-id"]]
    assert json.loads(newest(lake).read_text())["encryption-keys"] == kept


# --- verify and tree -----------------------------------------------------------------------------


def test_verify_says_that_all_is_authentic(run: Run, lake: Path, tmp_path: Path) -> None:
    shown = run("verify", *SAMPLE, lake, "--strict", "--html", "page.html")
    assert re.search(r"Everything authenticated +yes", shown.stdout)
    assert "Not authenticated" not in shown.stdout
    assert "Limits of the format:" in shown.stdout
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<script") == 1  # its own
    found = lines(run("verify", *SAMPLE, lake, "--json"))[0]
    assert (found["ok"], found["complete"], found["orphans"]) == (True, True, [])
    assert sorted(file["kind"] for file in found["files"]) == sorted(
        ["manifest list", "manifest", "data"] * 2
    )
    assert "exists" in error_line(run("verify", *SAMPLE, lake, "--html", "page.html", code=2))
    last = lines(run("verify", *SAMPLE, lake, "--snapshot", "main", "--json"))[0]
    assert (len(last["snapshots"]), last["orphans"]) == (1, None)


def test_verify_reports_each_fault_and_what_nothing_reaches(run: Run, lake: Path) -> None:
    first, second = sorted(lake.glob("data/*.parquet"))
    data = bytearray(first.read_bytes())
    data[60] ^= 1
    first.write_bytes(data)
    second.write_bytes(second.read_bytes()[:-1])
    (lake / "data" / "stray.parquet").write_bytes(b"PAR1 nobody's")
    shown = run("verify", *SAMPLE, lake, code=1).stdout
    for part in (f"fault     tag         {first}", f"fault     truncation  {second}"):
        assert part in shown
    assert "stray.parquet" in shown
    found = lines(run("verify", *SAMPLE, lake, "--json", code=1))[0]
    faults = {finding["location"]: finding["word"] for finding in found["findings"]
              if finding["severity"] == "fault"}  # fmt: skip
    assert faults == {str(first): "tag", str(second): "truncation", None: "plaintext"}
    assert [Path(orphan["path"]).name for orphan in found["orphans"]] == ["stray.parquet"]


def test_without_the_key_nothing_can_be_verified(
    run: Run, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MASTERS, "keyA", bytes(16))
    run("verify", *SAMPLE, lake, code=3)
    assert run("tree", *SAMPLE, lake, code=1).stdout


def test_a_table_whose_key_service_is_unavailable_is_4(
    run: Run, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_away_key(*_: object, **__: object) -> bytes:
        raise ConnectionError

    monkeypatch.setattr(SampleKms, "unwrap", read_away_key)
    note_sleeps(monkeypatch)
    for command in ("verify", "scan", "tree"):
        run(command, *SAMPLE, lake, code=4)


def test_the_tree_leads_from_the_master_key_to_each_file(
    run: Run, lake: Path, tmp_path: Path
) -> None:
    text = run("tree", *SAMPLE, lake, "--html", "tree.html").stdout
    (kek,) = (key["key_id"] for key in lines(run("keys", *SAMPLE, lake, "--json"))
              if key["kind"] == "KEK")  # fmt: skip
    for path in (*lake.glob("data/*"), *lake.glob("metadata/*.avro")):
        assert path.name in text
    assert text.index("MEK keyA") < text.index(f"KEK {kek}") < text.index(".parquet")
    assert kek in (tmp_path / "tree.html").read_text()
    for key in ("keyA", kek):
        under = lines(run("tree", *SAMPLE, lake, "--protected-by", key, "--json"))
        assert len(under) == len([*lake.glob("data/*"), *lake.glob("metadata/*.avro")])
    assert run("tree", *SAMPLE, lake, "--protected-by", "keyB").stdout == (
        "0 files under this key\n"
    )
    assert lines(run("tree", *SAMPLE, lake, "--json"))[0]["master_key_id"] == "keyA"


@each_case(
    "arguments",
    [
        ("verify", "--force"),
        ("tree", "--version", "1"),
        ("tree", "--protected-by", "x", "--html", "x"),
        ("expire",),
        ("expire", "--dry-run", "--yes"),
        ("expire", "--yes", "--keep", "5"),
        ("rotate", "dek", "--new-master-key", "keyB"),
        ("rotate", "mek", "--spark", "local[2]"),
        ("rotate", "kek", "--encrypt-plaintext"),
        ("rotate", "all"),
    ],
)
def test_arguments_that_do_not_fit_change_nothing(
    run: Run, lake: Path, arguments: tuple[str, ...]
) -> None:
    before = everything(lake)
    error_line(run(*arguments, *SAMPLE, lake, code=2))
    assert everything(lake) == before


# --- the examples of the help texts --------------------------------------------------------------


def test_the_examples_of_the_help_texts_run(
    run: Run, plain: Path, orders: Path, tmp_path: Path
) -> None:
    """Typed as they stand, in a folder with what they name."""
    ring = modcrypt.Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    for name in ("lake", "vault"):
        ring.create_key(name)
    policy = 'kms = "file:lake.keyring"\nfooter_key = "vault"\n'  # after `rotate mek`
    (tmp_path / "people.toml").write_text(policy)
    for name in ("monday", "tuesday"):
        pq.write_table(ORDERS, tmp_path / f"{name}.parquet")
    save_writer(tmp_path)
    plain.rename(plain.with_name("v1.metadata.json"))  # as of a table in a folder
    for older in plain.parent.glob("0*.metadata.json"):
        older.unlink()
    kept, last = ("iceberg create", "iceberg append"), ("iceberg", "iceberg purge")
    examples = {name: examples_of(command) for name, command in commands_of(iceberg, "iceberg")}
    assert all(examples.values())
    del examples["iceberg shred"]  # of a declared table: shred-tenant.md runs it
    for name in (*kept, *(name for name in examples if name not in (*kept, *last)), *last):
        for example in examples[name]:
            words = [str(named_snapshot(run)) if re.fullmatch(r"\d{19}", part) else part
                     for part in example]  # fmt: skip
            assert words[:2] == ["modcrypt", "iceberg"]
            assert run(*words[2:]).exit_code == 0


def named_snapshot(run: Run) -> int:
    found = lines(run("snapshots", "--kms", "file:lake.keyring", "--json", "lake/orders"))
    return int(found[0]["snapshot_id"])


def examples_of(command: click.Command) -> list[list[str]]:
    """Return the examples of a command or group as words."""
    text = command.epilog or ""
    return [
        shlex.split(line)
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip().startswith("modcrypt ")
    ]
