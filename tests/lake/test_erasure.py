"""Erasure is a state: what is declared or recorded as erased, and whose keys are gone."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.lake.declarations.declaration_file import read_content
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.cli.program import Answer, run
from tests.support.lake_folder import DECLARATION, make_lake, order_table
from tests.support.signing import writer_key

PER_DAY = DECLARATION.replace('"footer"', '"day-{partition.day}"').replace(
    'plaintext_columns = ["country"]\n', ""
)
FIRST, SECOND = "day=2026-11-01", "day=2026-11-02"
RECORD = "modcrypt.erased.jsonl"


def make_encrypted_lake(folder: Path, declaration: str = PER_DAY) -> Path:
    """Make an encrypted lake in which each of two days has a master key."""
    config = make_lake(folder, declaration=declaration)
    keyring = mc.Keyring(folder / "lake.keyring")
    for day in (FIRST, SECOND):
        keyring.create_key(f"day-{day[4:]}")
    for application in Lake.open(config).apply():
        assert not application.code
    return config


def modcrypt(folder: Path, *arguments: str) -> Answer:
    return run(folder, *arguments, env={"MODCRYPT_CONFIG": str(folder / "modcrypt.toml")})


def shred_day(folder: Path, *more: str) -> Answer:
    return modcrypt(
        folder, "shred", f"orders/{FIRST}", "--kms", "file:lake.keyring", "--yes", *more
    )


def erase_day(folder: Path) -> None:
    more = ("--master-key", "day-2026-11-01", "--destroy-master-key", "--request", "GDPR-17")
    assert shred_day(folder, *more).returncode == 0


def test_a_shredded_partition_is_erased_for_every_verb(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_encrypted_lake(tmp_path)
    erase_day(tmp_path)
    (line,) = (tmp_path / RECORD).read_text().splitlines()
    recorded = json.loads(line)
    assert (recorded["dataset"], recorded["files"]) == ("orders", [FIRST])
    assert recorded["request"] == "GDPR-17"
    for verb in ("status", "verify", "apply"):
        answer = modcrypt(tmp_path, verb)
        assert (answer.returncode, answer.stderr) == (0, "")
        assert "2 erased" in answer.stdout
    lake = Lake.open(config)
    (status,), (verified,) = lake.status(), lake.verify()
    assert status.is_declared
    assert status.counts == {"declared": 2, "erased": 2}
    assert (verified.code, verified.totals.erased, verified.totals.correct) == (0, 2, 2)
    assert lake.report().findings == []
    with caplog.at_level(logging.WARNING, "modcrypt"):
        assert lake.dataset("orders").read().num_rows == 4
    assert caplog.messages == ["orders: 2 files left out as erased"]
    head = modcrypt(tmp_path, "head", "orders", "--json")
    assert len(head.stdout.splitlines()) == 4
    assert "2 files left out as erased" in head.stderr


def test_readers_may_refuse_what_is_erased(tmp_path: Path) -> None:
    config = make_encrypted_lake(tmp_path)
    erase_day(tmp_path)
    dataset = Lake.open(config).dataset("orders")
    with pytest.raises(mc.errors.KeyNotFoundError, match=r"GDPR-17; pass on_erased=\"skip\""):
        dataset.read(on_erased="raise")
    with pytest.raises(ValueError, match='on_erased must be "skip" or "raise"'):
        dataset.read(on_erased="rise")  # type: ignore[arg-type]
    with pytest.raises(mc.errors.KeyNotFoundError, match="erased"):
        list(dataset.scan(on_erased="raise"))
    answer = modcrypt(tmp_path, "cat", "orders", "--on-erased", "raise")
    assert answer.returncode == 3
    assert "--on-erased skip" in answer.stderr


def test_an_erased_file_that_opens_again_is_a_fault(tmp_path: Path) -> None:
    """As a backup does that comes back."""
    config = make_encrypted_lake(tmp_path)
    folder = tmp_path / "orders" / FIRST
    shutil.copytree(folder, tmp_path / "backup")
    assert shred_day(tmp_path, "--all").returncode == 0
    assert modcrypt(tmp_path, "verify").returncode == 0
    shutil.copy(tmp_path / "backup/part-0.parquet", folder)
    (status,), (verified,) = Lake.open(config).status(), Lake.open(config).verify()
    assert status.counts == {"declared": 2, "erased": 1, "not-erased": 1}
    assert not status.is_declared
    assert verified.code == 1
    assert [fault.word for fault in verified.faults] == ["not-erased"]
    answer = modcrypt(tmp_path, "apply")
    assert answer.returncode == 1
    assert "declared as erased" in answer.stdout


def test_a_refused_key_may_return_so_its_files_are_not_erased(tmp_path: Path) -> None:
    config = make_encrypted_lake(tmp_path)
    statement = f'\n[[dataset.orders.erased]]\npartition.day = "{FIRST[4:]}"\nwhen = "2026-11-29"\n'
    config.write_text(config.read_text() + statement)
    keyring = mc.Keyring(tmp_path / "lake.keyring")
    keyring.disable_key("day-2026-11-01")
    (status,), (verified,) = Lake.open(config).status(), Lake.open(config).verify()
    assert (status.counts["unreadable"], verified.code) == (2, 3)
    keyring.destroy_key("day-2026-11-01")
    (status,), (verified,) = Lake.open(config).status(), Lake.open(config).verify()
    assert (status.counts["erased"], verified.code) == (2, 0)


@each_case(
    ("footer", "pii", "state", "code"),
    [
        ("destroy", "destroy", "erased", 0),
        ("destroy", "", "not-erased", 1),
        ("destroy", "disable", "unreadable", 3),
        ("disable", "destroy", "unreadable", 3),
        ("", "destroy", "not-erased", 1),
        ("", "disable", "unreadable", 3),
    ],
)
def test_a_file_is_erased_only_if_all_keys_are_gone(
    tmp_path: Path, footer: str, pii: str, state: str, code: int
) -> None:
    """A plaintext footer states the keys of columns, which may open without it."""
    declaration = PER_DAY.replace("partitions", "plaintext_footer = true\npartitions").replace(
        "pii =", '"pii-{partition.day}" ='
    )
    config = make_lake(tmp_path, declaration=declaration)
    keyring = mc.Keyring(tmp_path / "lake.keyring")
    for day in (FIRST, SECOND):
        keyring.create_key(f"pii-{day[4:]}")
        keyring.create_key(f"day-{day[4:]}")
    Lake.open(config).apply()
    statement = f'\n[[dataset.orders.erased]]\nfiles = ["{FIRST}"]\nwhen = "2026-11-29"\n'
    config.write_text(declaration + statement)
    for key, end in (("day", footer), ("pii", pii)):
        if end:
            getattr(keyring, f"{end}_key")(f"{key}-2026-11-01")
    assert Lake.open(config).status()[0].counts == {"declared": 2, state: 2}
    assert Lake.open(config).verify()[0].code == code


def test_columns_in_plaintext_are_never_erased(tmp_path: Path) -> None:
    declaration = PER_DAY.replace(
        "partitions", 'plaintext_columns = ["country"]\nplaintext_footer = true\npartitions'
    )
    config = make_encrypted_lake(tmp_path, declaration)
    assert shred_day(tmp_path, "--all").returncode != 0
    (status,) = Lake.open(config).status()
    assert status.counts == {"declared": 2, "not-erased": 2}
    assert "columns open: country" in status.files[0].message


def test_a_file_without_rows_has_no_column_to_erase(tmp_path: Path) -> None:
    config = make_encrypted_lake(tmp_path)
    path = tmp_path / "orders" / FIRST / "part-9.parquet"
    pq.ParquetWriter(path, order_table().schema).close()
    lake = Lake.open(config)
    lake.apply()
    lake.shred("orders", columns=["mail"])
    assert Lake.open(config).status()[0].counts == {"declared": 5}


def test_what_nobody_declared_is_not_erased(tmp_path: Path) -> None:
    config = make_encrypted_lake(tmp_path)
    mc.Keyring(tmp_path / "lake.keyring").destroy_key("day-2026-11-01")
    assert Lake.open(config).verify()[0].code == 3
    with pytest.raises(mc.errors.KeyDisabledError):
        Lake.open(config).dataset("orders").read()


def test_a_dry_run_records_nothing(tmp_path: Path) -> None:
    make_encrypted_lake(tmp_path)
    assert modcrypt(tmp_path, "shred", "orders", "--all").returncode == 0
    dry_run = ("shred", f"orders/{FIRST}", "--kms", "file:lake.keyring", "--all", "--dry-run")
    assert modcrypt(tmp_path, *dry_run).returncode == 0
    assert not (tmp_path / RECORD).exists()


def test_what_is_recorded_is_not_recorded_again(tmp_path: Path) -> None:
    make_encrypted_lake(tmp_path)
    for _ in range(2):
        assert shred_day(tmp_path, "--all").returncode == 0
    assert len((tmp_path / RECORD).read_text().splitlines()) == 1


def test_the_record_stays_readable(tmp_path: Path) -> None:
    """Also if an editor removed its last line feed, and if it is as long as it may be."""
    config = make_encrypted_lake(tmp_path)
    record = tmp_path / RECORD
    line = '{"dataset": "old", "schema": "modcrypt.lake.erasure/1"}'
    record.write_text(line)
    Lake.open(config).shred("orders", [FIRST], everything=True)
    assert Lake.open(config).status()[0].counts == {"declared": 2, "erased": 2}
    record.write_text(f"{line}\n" * 10_000)
    with pytest.raises(mc.errors.KeyMaterialError, match="more than 10,000 lines"):
        Lake.open(config).shred("orders", [SECOND], everything=True)
    assert Lake.open(config).status()[0].counts == {"declared": 2, "unreadable": 2}


def test_a_request_needs_a_declared_dataset(tmp_path: Path) -> None:
    make_encrypted_lake(tmp_path)
    shutil.copytree(tmp_path / "orders", tmp_path / "others")
    answer = modcrypt(tmp_path, "shred", "others", "--all", "--yes", "--request", "1")
    assert (answer.returncode, "no declared dataset has others" in answer.stderr) == (2, True)


def test_python_shreds_and_records(tmp_path: Path) -> None:
    config = make_encrypted_lake(tmp_path)
    lake = Lake.open(config)
    with pytest.raises(ValueError, match="exactly one of columns"):
        lake.shred("orders", [FIRST])
    for parts, message in (
        (["../orders"], "../orders is not a path inside the dataset"),
        ([str(tmp_path)], "not a path inside"),
        (FIRST, "parts must be a list of paths"),
    ):
        with pytest.raises(ValueError, match=message):
            lake.shred("orders", parts, everything=True)
    with pytest.raises(FileNotFoundError):
        lake.shred("orders", ["day=2026-12-01"], everything=True)
    assert not (tmp_path / RECORD).exists()
    master = "day-2026-11-01"
    done = lake.shred("orders", master_keys=[master], destroy_master_keys=True, request="R1")
    assert [file.result for file in done] == ["shredded"] * 2 + ["current"] * 2 + ["destroyed"]
    assert Lake.open(config).shred("orders", columns=["mail"])[-1].columns == ("mail",)
    (status,) = Lake.open(config).status()
    assert status.counts == {"declared": 2, "erased": 2}
    assert len((tmp_path / RECORD).read_text().splitlines()) == 2


# --- columns -------------------------------------------------------------------------------------


def test_an_erased_column_is_null_for_readers_and_no_finding(tmp_path: Path) -> None:
    config = make_encrypted_lake(tmp_path)
    shutil.copytree(tmp_path / "orders", tmp_path / "backup")
    shred = ("shred", "orders", "--kms", "file:lake.keyring", "--column", "home_ssn", "--yes")
    assert modcrypt(tmp_path, *shred).returncode == 0
    (status,), (verified,) = Lake.open(config).status(), Lake.open(config).verify()
    assert (status.is_declared, verified.code) == (True, 0)
    table = Lake.open(config).dataset("orders").read()
    assert table["home_ssn"].null_count == table.num_rows == 8
    assert table["mail"].null_count == 0
    with pytest.raises(mc.errors.KeyNotFoundError, match="no key for column home_ssn"):
        Lake.open(config).dataset("orders").read(on_erased="raise")
    lenient: Any
    for lenient in ("null", "drop"):
        with pytest.raises(
            mc.errors.KeyNotFoundError, match="column home_ssn is erased; pass on_e"
        ):
            Lake.open(config).dataset("orders").read(on_erased="raise", on_missing_key=lenient)
    others = Lake.open(config).dataset("orders")
    table = others.read(on_erased="raise", on_missing_key="null", columns=["id", "mail"])
    assert table.num_rows == 8
    shutil.copy(tmp_path / "backup" / FIRST / "part-0.parquet", tmp_path / "orders" / FIRST)
    (status,), (verified,) = Lake.open(config).status(), Lake.open(config).verify()
    assert status.counts == {"declared": 3, "not-erased": 1}
    assert [fault.word for fault in verified.faults] == ["not-erased"]


def test_another_column_without_a_key_is_still_an_error(tmp_path: Path) -> None:
    config = make_encrypted_lake(tmp_path)
    shred = ("shred", "orders", "--kms", "file:lake.keyring", "--yes")
    assert modcrypt(tmp_path, *shred, "--column", "home_ssn").returncode == 0
    (tmp_path / RECORD).rename(tmp_path / "kept")
    assert modcrypt(tmp_path, *shred, "--column", "mail").returncode == 0
    (tmp_path / "kept").rename(tmp_path / RECORD)
    assert Lake.open(config).verify()[0].code == 3
    with pytest.raises(mc.errors.KeyNotFoundError, match="mail"):
        Lake.open(config).dataset("orders").read()


# --- statements ----------------------------------------------------------------------------------

FAULTS = {
    "files = []": "names a partition, files or columns",
    'partition.month = "1"': "unknown partition month",
    'files = ["."]': ". is not a path inside the dataset",
    'files = ["../other"]': "../other is not a path inside the dataset",
    'files = ["a"]\nwhen = "soon"': "when must be a date or a time",
    'files = ["a"]\nwho = "me"': "unknown member who",
    'files = "a"': "files must be a list of names",
    f'files = ["a"]\nrequest = "{"x" * 201}"': "request is longer than 200",
}


@each_case(("members", "message"), list(FAULTS.items()))
def test_mistakes_in_a_statement_are_named(tmp_path: Path, members: str, message: str) -> None:
    config = tmp_path / "modcrypt.toml"
    when = "" if "when" in members else 'when = "2026-11-29"\n'
    config.write_text(f"{DECLARATION}\n[[dataset.orders.erased]]\n{when}{members}\n")
    content = read_content(config)
    assert content.declaration is None
    assert any(message in str(fault) for fault in content.faults), content.faults


def test_a_statement_without_a_time_is_a_mistake(tmp_path: Path) -> None:
    config = tmp_path / "modcrypt.toml"
    config.write_text(f'{DECLARATION}\n[[dataset.orders.erased]]\nfiles = ["a"]\n')
    (fault,) = read_content(config).faults
    assert "when is missing" in str(fault)


@each_case(
    ("line", "message"),
    [
        ("{", "line 1: not valid JSON"),
        ("[]", "line 1: is not an erasure"),
        ('{"schema": "modcrypt.lake.erasure/2"}', "line 1: is not an erasure"),
        ('{"schema": "modcrypt.lake.erasure/1"}', "line 1: names no dataset"),
        ('{"schema": "modcrypt.lake.erasure/1", "dataset": "orders", "files": [1]}', "files must"),
    ],
)
def test_a_damaged_record_is_an_error(tmp_path: Path, line: str, message: str) -> None:
    config = make_lake(tmp_path)
    (tmp_path / RECORD).write_text(f"{line}\n")
    with pytest.raises(ValueError, match=message):
        Lake.open(config)


def test_a_record_that_others_can_change_is_an_error(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    (tmp_path / RECORD).write_text("")
    (tmp_path / RECORD).chmod(0o666)
    with pytest.raises(ValueError, match="writable by others"):
        Lake.open(config)


def test_where_writers_sign_the_record_is_signed(tmp_path: Path) -> None:
    """Otherwise who can write the record, but has no signing key, could hide files."""
    declaration = PER_DAY.replace('include = "*.parquet"', 'signed_by = ["writer.pub"]')
    (tmp_path / "writer.pub").write_text(f"{writer_key().verifier}\n")
    config = make_lake(tmp_path, declaration=declaration)
    for day in (FIRST, SECOND):
        mc.Keyring(tmp_path / "lake.keyring").create_key(f"day-{day[4:]}")
    Lake.open(config, signing_key=writer_key()).apply(accept_replaced=True)
    refused = shred_day(tmp_path, "--all")
    assert (refused.returncode, "requires signatures" in refused.stderr) == (2, True)
    writer_key().save(tmp_path / "writer.key", passphrase="secret")
    (tmp_path / "word").write_text("secret")
    (tmp_path / "word").chmod(0o600)
    sign = ("--sign", "file:writer.key", "--sign-passphrase", "file:word")
    assert shred_day(tmp_path, "--all", *sign).returncode == 0
    assert Lake.open(config).status()[0].counts == {"declared": 2, "erased": 2}
    record = tmp_path / RECORD
    line = record.read_text()
    for other, message in (
        (line.replace(FIRST, SECOND), "no writer that orders names"),
        (json.dumps(json.loads(line) | {"signature": "A"}), "not valid base64"),
        (json.dumps({k: v for k, v in json.loads(line).items() if k != "signature"}), "not signed"),
    ):
        record.write_text(f"{other.strip()}\n")
        with pytest.raises(ValueError, match=message):
            Lake.open(config)


# --- removal -------------------------------------------------------------------------------------


def test_erased_files_are_removed_on_request(tmp_path: Path) -> None:
    config = make_encrypted_lake(tmp_path)
    erase_day(tmp_path)
    answer = modcrypt(tmp_path, "apply", "--remove-erased")
    assert (answer.returncode, "pass --yes" in answer.stderr) == (2, True)
    (planned,) = Lake.open(config).apply(remove_erased=True, dry_run=True)
    assert (planned.code, len(planned.plan.removals)) == (0, 2)
    assert len(list((tmp_path / "orders" / FIRST).iterdir())) == 2
    answer = modcrypt(tmp_path, "apply", "--remove-erased", "--yes", "--json")
    *files, total = map(json.loads, answer.stdout.splitlines())
    assert (answer.returncode, total["results"]) == (0, {"removed": 2})
    assert all("SHA-256" in file["message"] and "GDPR-17" in file["message"] for file in files)
    assert not list((tmp_path / "orders" / FIRST).iterdir())
    assert Lake.open(config).status()[0].counts == {"declared": 2}
    assert modcrypt(tmp_path, "verify").returncode == 0


def test_nothing_is_removed_while_a_copy_opens(tmp_path: Path) -> None:
    config = make_encrypted_lake(tmp_path)
    folder = tmp_path / "orders" / FIRST
    shutil.copy(folder / "part-0.parquet", folder / ".part-0.parquet.bak")
    assert shred_day(tmp_path, "--all").returncode == 0
    (folder / ".part-0.parquet.bak").exists()
    (done,) = Lake.open(config).apply(remove_erased=True)
    before = {file.name for file in folder.iterdir()}
    assert {"part-0.parquet", "part-1.parquet"} <= before
    assert (done.code, {file.result for file in done.files}) == (1, {"refused"})
    assert ".part-0.parquet.bak" in done.files[0].message


# --- other verbs ---------------------------------------------------------------------------------


def test_conversions_leave_erased_files_out(tmp_path: Path) -> None:
    make_encrypted_lake(tmp_path)
    erase_day(tmp_path)
    (tmp_path / "to.toml").write_text('kms = "file:lake.keyring"\nfooter_key = "footer"\n')
    verbs = {
        "decrypt": ("orders", "plain"),
        "rekey": ("--to", "to.toml", "orders", "rekeyed"),
        "mask": ("--null", "mail", "--to", "to.toml", "orders", "masked"),
    }
    for verb, arguments in verbs.items():
        answer = modcrypt(tmp_path, verb, *arguments)
        assert (answer.returncode, "2 erased and left out" in answer.stdout) == (0, True), answer
        assert len(list((tmp_path / arguments[-1]).rglob("*.parquet"))) == 2
        if verb == "mask":  # which takes no --on-erased
            continue
        answer = modcrypt(tmp_path, verb, *arguments, "--force", "--on-erased", "raise")
        assert (answer.returncode, "GDPR-17" in answer.stdout) == (3, True), answer
    totals = json.loads(
        modcrypt(tmp_path, "decrypt", "orders", "plain2", "--json").stdout.splitlines()[-1]
    )
    assert (totals["decrypted"], totals["erased"]) == (2, 2), totals


def test_a_single_erased_file_is_an_error(tmp_path: Path) -> None:
    make_encrypted_lake(tmp_path)
    erase_day(tmp_path)
    answer = modcrypt(tmp_path, "decrypt", f"orders/{FIRST}/part-0.parquet", "plain.parquet")
    assert answer.returncode == 3
    assert not (tmp_path / "plain.parquet").exists()


def test_a_dataset_of_which_all_was_removed_is_as_declared(tmp_path: Path) -> None:
    config = make_encrypted_lake(tmp_path)
    shutil.copytree(tmp_path / "orders", tmp_path / "backup")
    Lake.open(config).shred("orders", everything=True)
    assert modcrypt(tmp_path, "apply", "--remove-erased", "--yes").returncode == 0
    for verb in ("status", "verify", "apply", "report"):
        more = ("--exit-code",) if verb == "status" else ()
        answer = modcrypt(tmp_path, verb, *more, *(("--json",) if verb == "report" else ()))
        assert answer.returncode == 0, answer
    assert "all were erased" in modcrypt(tmp_path, "verify").stdout
    shutil.copy(tmp_path / "backup" / SECOND / "part-0.parquet", tmp_path / "orders" / SECOND)
    assert modcrypt(tmp_path, "verify").returncode == 1


@each_case("rest", ["", "1"])
def test_a_lost_dataset_is_a_fault_although_some_was_erased(tmp_path: Path, rest: str) -> None:
    """A statement about a part of it does not say where the rest is."""
    config = make_encrypted_lake(tmp_path)
    erase_day(tmp_path)
    if rest:
        assert modcrypt(tmp_path, "apply", "--remove-erased", "--yes").returncode == 0
    shutil.rmtree(tmp_path / "orders" / FIRST)
    shutil.rmtree(tmp_path / "orders" / SECOND)
    assert Lake.open(config).verify()[0].code == 2


def test_an_inner_datasets_erasure_hides_nothing_in_the_outer_one(tmp_path: Path) -> None:
    """Two datasets that claim a file are a fault, and the outer one declares no erasure."""
    inner = PER_DAY[PER_DAY.index("[dataset.orders]") :].replace("dataset.orders", "dataset.first")
    inner = inner.replace('"orders"', f'"orders/{FIRST}"').replace(
        "orders/{path}", f"orders/{FIRST}/{{path}}"
    )
    inner = inner.replace("day-{partition.day}", f"day-{FIRST[4:]}")
    config = make_encrypted_lake(tmp_path, f"{PER_DAY}\n{inner}")
    assert [status.is_declared for status in Lake.open(config).status()] == [True, True]
    erase_day(tmp_path)
    assert json.loads((tmp_path / RECORD).read_text())["dataset"] == "first"
    outer, first = Lake.open(config).status()
    assert (outer.counts, first.counts) == ({"declared": 2, "unreadable": 2}, {"erased": 2})
    with pytest.raises(mc.errors.KeyRetrievalError):
        Lake.open(config).dataset("orders").read()
    for verified in Lake.open(config).verify():
        assert "overlap" in {fault.word for fault in verified.faults}
        assert verified.code == 1


# --- attacks -------------------------------------------------------------------------------------


def test_a_file_that_is_moved_into_an_erased_partition_is_not_hidden(tmp_path: Path) -> None:
    config = make_encrypted_lake(tmp_path)
    erase_day(tmp_path)
    orders = tmp_path / "orders"
    (orders / SECOND / "part-0.parquet").rename(orders / FIRST / "part-7.parquet")
    status = Lake.open(config).status()[0]
    assert status.counts == {"declared": 1, "misplaced": 1, "erased": 2}
    with pytest.raises(mc.errors.ModcryptError):
        Lake.open(config).dataset("orders").read()
    assert Lake.open(config).verify()[0].code != 0


def test_a_renamed_partition_is_not_erased(tmp_path: Path) -> None:
    """Nothing says that its files are those of the erased one."""
    config = make_encrypted_lake(tmp_path)
    erase_day(tmp_path)
    (tmp_path / "orders" / FIRST).rename(tmp_path / "orders" / "day=2026-11-09")
    assert Lake.open(config).status()[0].counts == {"declared": 2, "misplaced": 2}
    with pytest.raises(mc.errors.ModcryptError):
        Lake.open(config).dataset("orders").read()


@each_case(
    ("folder", "value", "named"),
    [
        ("day=a%20b", "a b", True),
        ("day=a b", "a b", True),
        ("day=a+b", "a b", False),
        ("day=a%2Fb", "a/b", True),
        ("day=__HIVE_DEFAULT_PARTITION__", "null", False),
        ("day=__HIVE_DEFAULT_PARTITION__", "__HIVE_DEFAULT_PARTITION__", True),
        ("day=x/other=1", "x", True),
        ("other=x", "x", False),
        ("x", "x", False),
    ],
)
def test_values_of_partitions_are_those_of_hive(
    tmp_path: Path, folder: str, value: str, named: bool
) -> None:
    declaration = DECLARATION.replace('plaintext_columns = ["country"]\n', "")
    statement = f'\n[[dataset.orders.erased]]\npartition.day = "{value}"\nwhen = "2026-11-29"\n'
    config = make_lake(tmp_path, declaration=declaration, days=1, files=1)
    (tmp_path / "orders" / FIRST).rename(tmp_path / "orders" / "here")
    (tmp_path / "orders" / folder).parent.mkdir(exist_ok=True)
    (tmp_path / "orders" / "here").rename(tmp_path / "orders" / folder)
    Lake.open(config).apply()
    config.write_text(declaration + statement)
    assert Lake.open(config).status()[0].counts == {"not-erased" if named else "declared": 1}
    for key in ("footer", "pii"):
        mc.Keyring(tmp_path / "lake.keyring").destroy_key(key)
    assert Lake.open(config).status()[0].counts == {"erased" if named else "unreadable": 1}


def test_a_statement_about_an_empty_value_names_no_other_file(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    config.write_text(
        f'{DECLARATION}\n[[dataset.orders.erased]]\npartition.day = ""\nwhen = "2026-11-29"\n'
    )
    with pytest.raises(ValueError, match="must be a string that is not empty"):
        Lake.open(config)
