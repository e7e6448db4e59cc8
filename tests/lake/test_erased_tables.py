"""Erased partitions of Iceberg tables, and erased tables: their KEKs are gone, in all versions."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import modcrypt as mc
from modcrypt import iceberg
from modcrypt.lake.declarations.declaration_file import read_content
from modcrypt.lake.lake import Lake
from modcrypt.lake.status import DatasetStatus
from tests.support.cases import each_case
from tests.support.iceberg.erasable_table import (
    BY_PART,
    POLICY,
    ROWS,
    make_table,
    modcrypt,
    open_lake,
    open_table,
    shred,
)
from tests.support.iceberg.sales import DECLARATION
from tests.support.signing import writer_key

X_IS_ERASED = '\n[[dataset.sales.erased]]\npartition.part = "x"\nwhen = "2026-11-29"\n'
WHOLE = X_IS_ERASED.replace('partition.part = "x"', "whole = true")
RECORD = "modcrypt.erased.jsonl"


def declare(folder: Path, more: str) -> None:
    config = folder / "modcrypt.toml"
    config.write_text(config.read_text() + more)


def status_of(folder: Path) -> DatasetStatus:
    (status,) = open_lake(folder).status()
    return status


@each_case("store", [False, True])
def test_a_shredded_partition_is_erased_for_every_verb(
    tmp_path: Path, store: bool, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_table(tmp_path, store=store)
    planned = open_lake(tmp_path).shred_partition("sales", {"part": "x"}, dry_run=True)
    assert (planned.files, len(planned.keks), planned.dry_run) == (2, 1, True)
    assert not (tmp_path / RECORD).exists()
    assert shred(tmp_path, "--request", "GDPR-17").returncode == 0
    recorded = json.loads((tmp_path / RECORD).read_text())
    assert (recorded["partition"], recorded["request"]) == ({"part": "x"}, "GDPR-17")
    for verb in ("status", "verify", "apply"):
        answer = modcrypt(tmp_path, verb)
        assert (answer.returncode, answer.stderr) == (0, ""), answer
        assert "2 erased" in answer.stdout
    status = status_of(tmp_path)
    assert (status.is_declared, status.counts) == (True, {"declared": 7, "erased": 2})
    assert open_lake(tmp_path).report().findings == []
    sales = open_lake(tmp_path).table("sales")
    with caplog.at_level(logging.WARNING, "modcrypt"):
        assert sales.read()["id"].to_pylist() == [3, 3]
        assert sum(batch.num_rows for batch in sales.scan()) == 2
    assert caplog.messages == ["sales: 2 files left out as erased"] * 2
    assert sales.read(snapshot=table.metadata.snapshots[0].id)["id"].to_pylist() == [3]
    answer = modcrypt(tmp_path, "iceberg", "scan", "sales", "--json", "--format", "jsonl")
    assert [json.loads(line)["id"] for line in answer.stdout.splitlines()] == [3, 3]
    assert "2 files left out as erased" in answer.stderr
    assert shred(tmp_path).returncode == 0
    assert len((tmp_path / RECORD).read_text().splitlines()) == 1


def test_readers_may_refuse_what_is_erased(tmp_path: Path) -> None:
    make_table(tmp_path)
    open_lake(tmp_path).shred_partition("sales", {"part": "x"}, request="R1")
    sales = open_lake(tmp_path).table("sales")
    with pytest.raises(mc.errors.KeyNotFoundError, match="request R1; pass on_erased="):
        sales.read(on_erased="raise")
    with pytest.raises(ValueError, match='must be "skip" or "raise"'):
        sales.read(on_erased="rise")
    answer = modcrypt(tmp_path, "iceberg", "scan", "sales", "--on-erased", "raise")
    assert (answer.returncode, "--on-erased skip" in answer.stderr) == (3, True)


def test_a_statement_alone_hides_nothing(tmp_path: Path) -> None:
    make_table(tmp_path)
    declare(tmp_path, X_IS_ERASED)
    (verified,) = open_lake(tmp_path).verify()
    assert verified.code == 1
    assert [fault.word for fault in verified.faults] == ["not-erased"] * 2
    assert status_of(tmp_path).counts == {"declared": 7, "not-erased": 2}
    assert open_lake(tmp_path).table("sales").read().num_rows == 6
    (applied,) = open_lake(tmp_path).apply()
    assert (applied.code, {file.result for file in applied.files}) == (1, {"refused"})


def test_a_key_that_may_return_is_not_gone(tmp_path: Path) -> None:
    """As one that is disabled, or a KEK in a store that is not declared or cannot be read."""
    make_table(tmp_path, store=True)
    declare(tmp_path, X_IS_ERASED)
    config, keyring = tmp_path / "modcrypt.toml", mc.Keyring(tmp_path / "lake.keyring")
    keyring.disable_key("sales")
    assert "erased" not in status_of(tmp_path).counts
    assert open_lake(tmp_path).verify()[0].code == 3
    keyring.enable_key("sales")
    config.write_text(config.read_text().replace('key_store = "keks"\n', ""))
    assert "erased" not in status_of(tmp_path).counts
    assert open_lake(tmp_path).verify()[0].code != 0
    with pytest.raises(mc.errors.KeyRetrievalError):
        open_lake(tmp_path).table("sales").read()


def test_an_older_version_that_has_the_kek_is_a_fault(tmp_path: Path) -> None:
    """As one that comes back from a backup."""
    table = make_table(tmp_path)
    shutil.copy(table.place.path, tmp_path / "backup.json")
    assert shred(tmp_path).returncode == 0
    shutil.copy(tmp_path / "backup.json", table.place.path)
    status = status_of(tmp_path)
    assert status.counts == {"declared": 7, "not-erased": 2}
    assert any("an older metadata.json has its KEK" in file.message for file in status.files)
    assert open_lake(tmp_path).verify()[0].code == 1
    with pytest.raises(mc.errors.KeyNotFoundError):
        open_lake(tmp_path).table("sales").read()
    assert shred(tmp_path).returncode == 1  # no log names the file, so it is not deleted
    Path(table.place.path).unlink()
    assert open_lake(tmp_path).verify()[0].code == 0


def test_a_kek_that_returns_is_a_fault(tmp_path: Path) -> None:
    make_table(tmp_path, store=True)
    shutil.copy(tmp_path / "keks", tmp_path / "backup")
    assert shred(tmp_path).returncode == 0
    (tmp_path / "backup").rename(tmp_path / "keks")
    assert status_of(tmp_path).counts == {"declared": 7, "not-erased": 2}
    assert open_lake(tmp_path).verify()[0].code == 1
    assert shred(tmp_path).returncode == 0
    assert open_lake(tmp_path).verify()[0].code == 0


@each_case("policy", [{"kek_per": "table"}, {"kek_per": "files"}, {"wrapping": "single"}])
def test_a_partition_without_keys_of_its_own_cannot_be_shredded(
    tmp_path: Path, policy: dict[str, Any]
) -> None:
    make_table(tmp_path, **{"kek_per": "files", **policy})
    answer = shred(tmp_path)
    assert answer.returncode == 2
    assert "does not depend on the partition part=x" in answer.stderr
    assert "iceberg admin policy --kek-per partition" in answer.stderr
    assert not (tmp_path / RECORD).exists()


def test_files_of_older_snapshots_count_too(tmp_path: Path) -> None:
    """Their keys are as the policy of their time put them, until the history is expired."""
    table = make_table(tmp_path, kek_per="table")
    table = iceberg.set_policy(table, iceberg.KeyPolicy(**POLICY))
    table = iceberg.rotate_table(table, "dek").table
    assert "does not depend" in shred(tmp_path).stderr
    iceberg.expire_history(table)
    assert shred(tmp_path).returncode == 0
    status = status_of(tmp_path)
    assert (status.counts["erased"], open_lake(tmp_path).verify()[0].code) == (2, 0)


def test_rotated_keks_are_removed_with_their_copies(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table = iceberg.rotate_table(table, "kek").table
    table.append(ROWS)
    answer = shred(tmp_path, "--json")
    assert (answer.returncode, len(json.loads(answer.stdout)["keks"])) == (0, 2)
    status = status_of(tmp_path)
    assert status.is_declared, [file.message for file in status.files]
    assert status.counts["erased"] == 3
    assert open_lake(tmp_path).verify()[0].code == 0


def test_the_history_of_a_table_with_an_erased_partition_is_expired(tmp_path: Path) -> None:
    make_table(tmp_path)
    assert shred(tmp_path).returncode == 0
    answer = modcrypt(tmp_path, "iceberg", "expire", "sales", "--yes")
    assert answer.returncode == 0, answer.stderr
    assert status_of(tmp_path).is_declared
    open_table(tmp_path).delete("part = 'x'")
    answer = modcrypt(tmp_path, "iceberg", "expire", "sales", "--yes")
    assert answer.returncode == 0, answer.stderr
    assert not list((tmp_path / "sales/data/part=x").glob("*.parquet"))
    assert modcrypt(tmp_path, "verify").returncode == 0


@each_case("value", ["a b", "a+b", "ä/ö=%", "x"])
def test_values_of_partitions_are_compared_as_they_are(tmp_path: Path, value: str) -> None:
    rows = pa.table({"part": [value, "other"], "id": pa.array([1, 2], pa.int64())})
    make_table(tmp_path, rows=rows)
    done = open_lake(tmp_path).shred_partition("sales", {"part": value})
    assert (done.files, len(done.keks)) == (2, 1)
    assert status_of(tmp_path).counts == {"declared": 7, "erased": 2}
    assert open_lake(tmp_path).table("sales").read()["part"].to_pylist() == ["other"] * 2


def test_null_and_its_name_share_a_kek(tmp_path: Path) -> None:
    rows = pa.table({"part": [None, "null", "y"], "id": pa.array([1, 2, 3], pa.int64())})
    make_table(tmp_path, rows=rows)
    with pytest.raises(ValueError, match="part=null stands for two partitions"):
        open_lake(tmp_path).shred_partition("sales", {"part": "null"})
    assert status_of(tmp_path).is_declared


def test_a_null_partition(tmp_path: Path) -> None:
    rows = pa.table({"part": [None, "y"], "id": pa.array([1, 3], pa.int64())})
    make_table(tmp_path, rows=rows)
    open_lake(tmp_path).shred_partition("sales", {"part": "null"})
    assert status_of(tmp_path).counts == {"declared": 7, "erased": 2}


def test_what_cannot_be_shredded_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    lake = open_lake(tmp_path)
    for partition, message in (
        ({"part": "z"}, "the table has no partition part=z"),
        ({"day": "x"}, "the table has no partition day=x"),
        ({}, "destroy its master key"),
    ):
        with pytest.raises(ValueError, match=message):
            lake.shred_partition("sales", partition)
    for path in ("sales", "sales/data/part=x"):
        answer = modcrypt(tmp_path, "shred", path, "--all", "--yes")
        assert (answer.returncode, "use modcrypt iceberg shred sales" in answer.stderr) == (2, True)
    answer = modcrypt(tmp_path, "iceberg", "shred", "sales", "--partition", "part=x")
    assert (answer.returncode, "pass --yes" in answer.stderr) == (2, True)
    for given in ("part", "=x"):
        answer = modcrypt(tmp_path, "iceberg", "shred", "sales", "--partition", given, "--yes")
        assert (answer.returncode, "takes NAME=VALUE" in answer.stderr) == (2, True)
    assert not (tmp_path / RECORD).exists()
    assert open_table(tmp_path).place == table.place


@each_case("old", [False, True])
def test_a_whole_table_is_erased_with_its_master_key(tmp_path: Path, old: bool) -> None:
    table = make_table(tmp_path)
    if old:  # the KEKs stay under another master key in older versions
        table = iceberg.rotate_table(table, "mek", new_master_key_id="other").table
        config = tmp_path / "modcrypt.toml"
        config.write_text(
            config.read_text()
            .replace('"sales"\n', '"other"\n')
            .replace('location = "other"', 'location = "sales"')
        )
    declare(tmp_path, WHOLE)
    assert set(status_of(tmp_path).counts) == {"declared", "not-erased"}
    mc.Keyring(tmp_path / "lake.keyring").destroy_key("other" if old else "sales")
    status, (verified,) = status_of(tmp_path), open_lake(tmp_path).verify()
    if old:
        assert "erased" not in status.counts
        assert verified.code != 0
        return
    assert (status.is_declared, status.counts) == (True, {"declared": 1, "erased": 2})
    assert (verified.code, verified.totals.erased) == (0, 3)
    with pytest.raises(mc.errors.KeyRetrievalError):
        open_lake(tmp_path).table("sales").read()


FAULTS = {
    'columns = ["a"]': "unknown member columns",
    "emptied = true": "unknown member emptied",
    "": "names a partition or files, or has whole = true alone",
    'whole = true\npartition.part = "x"': "whole = true alone",
    'partition.part = "x"\ntable = "t"': "table is for a namespace",
}


@each_case(("members", "message"), list(FAULTS.items()))
def test_mistakes_in_a_statement_are_named(tmp_path: Path, members: str, message: str) -> None:
    statement = f'\n[[dataset.sales.erased]]\nwhen = "2026-11-29"\n{members}\n'
    (tmp_path / "modcrypt.toml").write_text(DECLARATION + statement)
    content = read_content(tmp_path / "modcrypt.toml")
    assert any(message in str(fault) for fault in content.faults), content.faults


def test_where_writers_seal_the_record_is_signed(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    (tmp_path / "writer.pub").write_text(f"{writer_key().verifier}\n")
    declare(tmp_path, 'signed_by = ["writer.pub"]\n')
    iceberg.seal_table(table, writer_key())
    with pytest.raises(ValueError, match="requires signatures"):
        open_lake(tmp_path).shred_partition("sales", {"part": "x"})
    assert not (tmp_path / RECORD).exists()
    lake = Lake.open(tmp_path / "modcrypt.toml", signing_key=writer_key())
    lake.shred_partition("sales", {"part": "x"})
    assert open_lake(tmp_path).verify()[0].code == 0
    assert open_lake(tmp_path).table("sales").read().num_rows == 2
    record = tmp_path / RECORD
    record.write_text(record.read_text().replace('"x"', '"y"'))
    with pytest.raises(ValueError, match="no writer that sales names"):
        open_lake(tmp_path)


# --- attacks -------------------------------------------------------------------------------------


def test_a_forged_uuid_shreds_no_other_table(tmp_path: Path) -> None:
    """A key store serves several tables, and nothing signs the UUID in metadata.json."""
    table = make_table(tmp_path, store=True, kek_per="files")
    store = table.resolver.store
    assert store is not None
    other = iceberg.create_table(
        tmp_path / "other", ROWS.schema, f"file:{tmp_path}/lake.keyring", master_key_id="sales",
        partition_spec=BY_PART, policy=iceberg.KeyPolicy(**POLICY, store="key-store"),
        key_store=iceberg.FileKeyStore(tmp_path / "keks"),
    ).append(ROWS)  # fmt: skip
    before = set(store.keys())
    place = Path(table.place.path)
    place.write_text(place.read_text().replace(table.metadata.uuid, other.metadata.uuid))
    with pytest.raises((mc.errors.ModcryptError, ValueError)):
        open_lake(tmp_path).shred_partition("sales", {"part": "x"})
    assert set(store.keys()) == before
    assert other.scan().num_rows == 3


def test_a_kek_whose_master_key_is_disabled_may_return(tmp_path: Path) -> None:
    """Its files are unreadable, which is neither erased nor a fault."""
    table = make_table(tmp_path)
    old = Path(table.place.path)
    backup = old.read_text()
    assert shred(tmp_path).returncode == 0
    declare(tmp_path, 'previous.master_keys = { other = "sales" }\n')
    document = json.loads(backup)
    for entry in document["encryption-keys"]:
        if "modcrypt.scope" in entry.get("properties", {}):
            entry["encrypted-by-id"] = "other"
    old.write_text(json.dumps(document))
    assert status_of(tmp_path).counts == {"declared": 7, "unreadable": 2}
    assert open_lake(tmp_path).verify()[0].code == 1  # a KEK of the table is missing
    with pytest.raises(mc.errors.KeyNotFoundError):
        open_lake(tmp_path).table("sales").read()


def test_an_older_version_that_cannot_be_read_may_have_the_kek(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    assert shred(tmp_path).returncode == 0
    Path(table.place.path).write_text("{")
    assert "erased" not in status_of(tmp_path).counts
    with pytest.raises(mc.errors.KeyNotFoundError):
        open_lake(tmp_path).table("sales").read()


def test_a_partition_that_is_not_named_is_not_hidden(tmp_path: Path) -> None:
    """Whoever drops another partition's KEKs makes it unreadable, and not erased."""
    table = make_table(tmp_path, store=True)
    assert shred(tmp_path).returncode == 0
    store = table.resolver.store
    assert store is not None
    store.replace([], [kek.id for kek in store.keys().values() if "part=y" in kek.scope])
    assert status_of(tmp_path).counts == {"declared": 5, "erased": 2, "unreadable": 2}
    assert open_lake(tmp_path).verify()[0].code == 1
    with pytest.raises(mc.errors.KeyNotFoundError):
        open_lake(tmp_path).table("sales").read()


def test_orphan_files_beside_an_erased_partition_are_removed(tmp_path: Path) -> None:
    make_table(tmp_path)
    assert shred(tmp_path).returncode == 0
    (tmp_path / "sales/data/part=x/left.parquet").write_bytes(b"PARE" + bytes(40) + b"PARE")
    command = ("iceberg", "admin", "remove-orphans", "sales", "--older-than", "0d", "--yes")
    answer = modcrypt(tmp_path, *command)
    assert answer.returncode == 0, answer.stderr
    assert status_of(tmp_path).counts == {"declared": 7, "erased": 2}


def test_a_table_of_a_namespace(tmp_path: Path) -> None:
    """A statement about one table is about no other one."""
    keyring = mc.Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    keyring.create_key("sales")
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = SqlCatalog("lake", uri=uri, warehouse=str(tmp_path))
    catalog.create_tables()
    catalog.create_namespace("shop")
    for name in ("shop.one", "shop.two"):
        iceberg.create_table(
            None, ROWS.schema, f"file:{tmp_path}/lake.keyring", master_key_id="sales",
            partition_spec=BY_PART, policy=iceberg.KeyPolicy(**POLICY), catalog=catalog,
            identifier=name,
        ).append(ROWS)  # fmt: skip
    (tmp_path / "modcrypt.toml").write_text(
        'kms = "file:lake.keyring"\n\n[dataset.shop]\nkind = "iceberg"\nmaster_key = "sales"\n'
        'catalog = "sqlite:///catalog.db"\ncatalog_name = "lake"\nnamespace = "shop"\n'
    )
    done = open_lake(tmp_path).shred_partition("shop/shop.one", {"part": "x"})
    assert (done.files, done.left) == (1, ())
    recorded = json.loads((tmp_path / RECORD).read_text())
    assert (recorded["dataset"], recorded["table"]) == ("shop", "shop.one")
    one, two = open_lake(tmp_path).status()
    assert (one.counts.get("erased"), two.counts.get("erased")) == (1, None)
    assert [verified.code for verified in open_lake(tmp_path).verify()] == [0, 0]
    command = ("iceberg", "shred", "shop/shop.two", "--partition", "part=y", "--yes")
    answer = modcrypt(tmp_path, *command)
    assert answer.returncode == 0, answer.stderr
    assert [status.counts["erased"] for status in open_lake(tmp_path).status()] == [1, 1]


def entries_of_x(table: iceberg.IcebergTable) -> set[tuple[str, int | None, int | None]]:
    """Return the location and numbers of each live entry of the erased partition."""
    snapshot = table.metadata.current
    assert snapshot is not None
    return {
        (entry.location, entry.sequence_number, entry.file_sequence_number)
        for manifest in table.walk.manifests(snapshot)
        for entry in table.walk.entries(manifest)
        if entry.is_live and "part=x" in entry.location
    }


def add_refs(folder: Path) -> None:
    """Add a tag of the first snapshot, and a branch that is ahead of main."""
    path = Path(open_table(folder).place.path)
    document = json.loads(path.read_text())
    first, last = (snapshot["snapshot-id"] for snapshot in document["snapshots"])
    document["refs"]["old"] = {"snapshot-id": first, "type": "tag"}
    document["refs"]["ahead"] = {"snapshot-id": last, "type": "branch"}
    path.write_text(json.dumps(document))
    open_table(folder).append(ROWS, branch="ahead")


def test_data_keys_are_rotated_around_an_erased_partition(tmp_path: Path) -> None:
    """Also those of a branch ahead of main, and of a tag that shares its files."""
    make_table(tmp_path)
    add_refs(tmp_path)
    assert shred(tmp_path).returncode == 0
    before = entries_of_x(open_table(tmp_path))
    assert len(before) == 2
    answer = modcrypt(tmp_path, "iceberg", "rotate", "dek", "sales", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["data_files"] == 3
    table = open_table(tmp_path)
    assert entries_of_x(table) == before
    id_ = table.metadata.document["current-snapshot-id"]
    (made,) = (each for each in table.metadata.document["snapshots"] if each["snapshot-id"] == id_)
    counts = ("added-data-files", "deleted-data-files", "total-data-files")
    assert [made["summary"].get(name) for name in counts] == ["2", "2", "4"]
    sales = open_lake(tmp_path).table("sales")
    for snapshot, rows in ((None, [3, 3]), ("ahead", [3, 3, 3]), ("old", [3])):
        assert sales.read(snapshot=snapshot)["id"].to_pylist() == rows
    assert (status_of(tmp_path).is_declared, open_lake(tmp_path).verify()[0].code) == (True, 0)
    answer = modcrypt(tmp_path, "iceberg", "expire", "sales", "--yes")
    assert answer.returncode == 0, answer.stderr
    assert sales.read()["id"].to_pylist() == [3, 3]
    table.delete("part = 'x'")
    assert entries_of_x(open_table(tmp_path)) == set()
    assert open_lake(tmp_path).verify()[0].code == 0


def test_a_leak_is_answered_around_an_erased_partition(tmp_path: Path) -> None:
    make_table(tmp_path)
    assert shred(tmp_path).returncode == 0
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("sales")
    config = tmp_path / "modcrypt.toml"
    config.write_text('compromised = ["sales@1"]\n' + config.read_text())
    assert "7 under a compromised key, 2 erased" in status_of(tmp_path).summary()
    modcrypt(tmp_path, "apply")
    assert modcrypt(tmp_path, "iceberg", "expire", "sales", "--yes").returncode == 0
    status = status_of(tmp_path)
    assert status.is_declared, status.summary()
    assert status.counts["erased"] == 2
    assert open_lake(tmp_path).verify()[0].code == 0
