"""Iceberg tables as datasets: status, apply, verify, report and impact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import modcrypt as mc
from modcrypt import iceberg
from modcrypt.lake.lake import Lake
from modcrypt.lake.status import DatasetStatus
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.forging import flip
from tests.support.iceberg.sales import DECLARATION, declare, make_sales
from tests.support.lake_folder import trust_lake

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})


def make_table(folder: Path, **options: Any) -> iceberg.IcebergTable:
    return make_sales(folder, ROWS, ("sales", "old", "other"), **options)[1]


def status_of(config: Path) -> DatasetStatus:
    (status,) = Lake.open(config).status()
    return status


def test_a_table_is_a_dataset(tmp_path: Path) -> None:
    make_table(tmp_path)
    lake = Lake.open(declare(tmp_path))
    (status,) = lake.status()
    assert (status.counts, status.is_declared) == ({"declared": 7}, True)
    assert status.files[0].path == "metadata.json"
    assert sum(file.rows or 0 for file in status.files) == 6
    assert {key.master_key_id for file in status.files for key in file.keys} == {"sales"}
    (applied,) = lake.apply()
    assert (applied.code, applied.summary()) == (
        0,
        "sales: nothing to do (7 of 7 files as declared)",
    )
    (verified,) = lake.verify()
    assert (verified.code, verified.faults) == (0, [])
    assert verified.summary().startswith("sales: 7 of 7 files as declared; ")
    sales = lake.table("sales")
    assert sales.read().num_rows == 6
    assert sum(batch.num_rows for batch in sales.scan()) == 6
    report = lake.report()
    assert report.keys[0]["files"] == {"sales": 6}
    assert report.datasets[0]["rows"] == 6
    assert "sales" in report.to_html()


def test_a_version_of_a_table_is_verified_until_the_next(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    config = declare(tmp_path)
    assert status_of(config).unverified == len(status_of(config).files)
    assert Lake.open(config).verify()[0].code == 0
    assert status_of(config).unverified == 0
    assert "not verified" not in status_of(config).summary()
    table.append(ROWS)
    assert status_of(config).unverified == len(status_of(config).files)
    assert Lake.open(config).verify()[0].code == status_of(config).unverified == 0
    path = next((tmp_path / "sales" / "data").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-9] + bytes(9))
    assert Lake.open(config).verify()[0].code == 1
    assert status_of(config).unverified > 0


def test_what_is_done_to_a_table_is_evidence(tmp_path: Path) -> None:
    make_table(tmp_path)
    lake = Lake.open(declare(tmp_path, "[evidence]\n"))
    lake.apply()
    lake.verify()
    begun, applied, verified = lake.read_evidence().events
    assert (begun.phase, applied.event, verified.event) == ("begun", "apply", "verify")
    assert applied.results[0].counts == {"current": 7}
    assert (verified.results[0].code, verified.results[0].counts) == (0, {"correct": 7})


def test_a_declaration_restricts_what_is_read(tmp_path: Path) -> None:
    make_table(tmp_path)
    masks = [{"field-id": 2, "action": "replace-with-null"}]
    rows = {"type": "gt", "term": "id", "value": 1}
    restrictions = {"required-row-filter": rows, "required-column-projections": masks}
    (tmp_path / "readers.json").write_text(json.dumps(restrictions))
    config = declare(tmp_path, 'read_restrictions = "readers.json"\n')
    sales = Lake.open(config).table("sales")
    assert sales.read().sort_by("id").to_pydict() == {"id": [2, 2, 3, 3], "name": [None] * 4}
    assert sum(batch.num_rows for batch in sales.scan(filters="name = 'b'")) == 0
    assert Lake.open(config).verify()[0].code == 0


def test_a_table_of_a_catalog_is_a_dataset(tmp_path: Path) -> None:
    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    catalog.create_namespace("shop")
    make_table(tmp_path, destination=tmp_path / "shop", catalog=catalog, identifier="shop.sales")
    text = DECLARATION.replace(
        'location = "sales"', 'catalog = "sqlite:///catalog.db"\ntable = "shop.sales"'
    )
    config = declare(tmp_path, text=text)
    assert status_of(config).counts == {"declared": 7}
    assert Lake.open(config).verify()[0].code == 0


NAMESPACE = DECLARATION.replace(
    'location = "sales"', 'catalog = "sqlite:///catalog.db"\nnamespace = "shop"'
)


@pytest.fixture
def shop(tmp_path: Path) -> SqlCatalog:
    """Make a keyring, and a catalog with two tables in a namespace and one outside of it."""
    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    for namespace in ("shop", "shop.returns", "shopping"):
        catalog.create_namespace(namespace)
    options: dict[str, Any] = {"destination": None, "catalog": catalog}
    make_table(tmp_path, **options, identifier="shop.sales")
    for identifier in ("shop.returns.sales", "shopping.other"):
        add_table(tmp_path, catalog, identifier)
    return catalog


def add_table(folder: Path, catalog: SqlCatalog, identifier: Any) -> iceberg.IcebergTable:
    return iceberg.create_table(
        None, ROWS.schema, f"file:{folder}/lake.keyring", master_key_id="sales", catalog=catalog,
        identifier=identifier,
    )  # fmt: skip


def test_an_inner_namespace_that_cannot_be_listed_hides_no_table(
    tmp_path: Path, shop: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqlCatalog.list_tables

    def fail(self: SqlCatalog, namespace: Any) -> Any:
        if namespace == ("shop", "returns"):
            raise ConnectionError("https://user:password@host/")
        return real(self, namespace)

    monkeypatch.setattr(SqlCatalog, "list_tables", fail)
    failed, sales = Lake.open(declare(tmp_path, text=NAMESPACE)).status()
    assert (failed.dataset.name, sales.dataset.name) == ("sales", "sales/shop.sales")
    assert sales.is_declared
    assert failed.code != 0
    message = "the catalog's tables in shop.returns cannot be listed: ConnectionError"
    assert message in repr(failed)


def test_the_tables_of_a_namespace_are_a_dataset(tmp_path: Path, shop: SqlCatalog) -> None:
    config = declare(tmp_path, text=NAMESPACE)
    lake = Lake.open(config)
    names = ["sales/shop.sales", "sales/shop.returns.sales"]
    assert [status.dataset.name for status in lake.status()] == names
    assert all(status.is_declared for status in lake.status())
    assert lake.table(names[0]).read().num_rows == 6
    assert [found.code for found in lake.verify("sales")] == [0, 0]
    assert [status.dataset.name for status in lake.status(names[1])] == names[1:]
    assert [row["dataset"] for row in lake.report().datasets] == names
    add_table(tmp_path, shop, "shop.new")
    assert next(iter(lake.status())).dataset.name == "sales/shop.new"
    done = Lake.open(declare(tmp_path, 'kek_per = "day"\n', NAMESPACE)).apply()
    assert [[file.result for file in each.files] for each in done] == [["rekeyed"]] * 3
    assert all(status.is_declared for status in Lake.open(config).status())


def test_the_command_line_names_a_table_of_a_namespace(
    tmp_path: Path, shop: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    declare(tmp_path, text=NAMESPACE)
    trust_lake(tmp_path)
    for verb in ("status", "apply", "verify"):
        answer = run(tmp_path, verb, "sales/shop.sales")
        assert (answer.returncode, answer.stdout.count("sales/shop.")) == (0, 1)
    (tmp_path / "sales").mkdir()
    assert "declares no dataset" in run(tmp_path, "verify", "sales/other.sales").stderr
    shutil.copy(next(tmp_path.glob("shop/**/*.parquet")), tmp_path / "sales/a.parquet")
    assert "a.parquet" in run(tmp_path, "verify", "./sales/a.parquet").stdout


def test_errors_of_one_table_hide_no_others(tmp_path: Path, shop: SqlCatalog) -> None:
    broken = Path(add_table(tmp_path, shop, "shop.broken").place.path)
    shop.create_table("shop.plain", ROWS.schema)
    broken.unlink()
    lake = Lake.open(declare(tmp_path, text=NAMESPACE))
    found = {status.dataset.name: status for status in lake.status()}
    assert found["sales/shop.broken"].error
    assert found["sales/shop.plain"].counts == {"plaintext": 1}
    assert found["sales/shop.sales"].is_declared
    codes = {result.dataset: result.code for result in lake.verify()}
    assert {name: bool(code) for name, code in codes.items()} == {
        "sales/shop.broken": True, "sales/shop.plain": True, "sales/shop.sales": False,
        "sales/shop.returns.sales": False,
    }  # fmt: skip
    applied = {each.plan.dataset: each for each in lake.apply()}
    assert applied["sales/shop.plain"].files[0].result == "refused"
    assert not applied["sales/shop.sales"].code


def test_a_namespace_may_be_the_whole_catalog(tmp_path: Path, shop: SqlCatalog) -> None:
    text = NAMESPACE.replace('namespace = "shop"', 'namespace = "*"')
    found = Lake.open(declare(tmp_path, text=text)).status()
    assert {status.dataset.name.partition("/")[2] for status in found} == {
        "shop.sales", "shop.returns.sales", "shopping.other"
    }  # fmt: skip


def test_a_namespace_that_has_no_tables_is_an_error(tmp_path: Path, shop: SqlCatalog) -> None:
    shop.create_namespace("empty")
    for namespace, message in (
        ("empty", "has no tables"),
        ("none", "the catalog has no namespace none"),
    ):
        text = NAMESPACE.replace('namespace = "shop"', f'namespace = "{namespace}"')
        lake = Lake.open(declare(tmp_path, text=text))
        (status,) = lake.status()
        assert message in status.error
        assert status.code
        assert lake.verify()[0].code == lake.apply()[0].code == status.code
    lake = Lake.open(declare(tmp_path, text=NAMESPACE))
    with pytest.raises(ValueError, match="sales is a namespace; name one of its tables"):
        lake.table("sales").open()
    for name in ("sales/shopping.other", "sales/", "other/shop.sales"):
        with pytest.raises(ValueError, match="declares no dataset"):
            lake.status(name)


def test_backticks_quote_a_name_that_has_dots(tmp_path: Path, shop: SqlCatalog) -> None:
    dotted = add_table(tmp_path, shop, ("shop", "returns.sales"))
    lake = Lake.open(declare(tmp_path, text=NAMESPACE))
    assert {status.dataset.name for status in lake.status()} == {
        "sales/shop.sales", "sales/shop.returns.sales", "sales/shop.`returns.sales`",
    }  # fmt: skip
    assert not any(result.code for result in lake.verify())
    assert lake.table("sales/shop.`returns.sales`").open().metadata.uuid == dotted.metadata.uuid
    text = NAMESPACE.replace('namespace = "shop"', 'table = "shop.`returns.sales`"')
    found = Lake.open(declare(tmp_path, text=text)).table("sales").open()
    assert found.metadata.uuid == dotted.metadata.uuid


@each_case(
    "name", ["shop.`returns.sales", "shop.`returns`sales", "shop..sales", "shop.``", "shop."]
)
def test_a_table_that_no_catalog_can_name(name: str, tmp_path: Path, shop: SqlCatalog) -> None:
    text = NAMESPACE.replace('namespace = "shop"', f'table = "{name}"')
    (status,) = Lake.open(declare(tmp_path, text=text)).status()
    assert "is not an identifier of a catalog" in status.error


@each_case(
    "wrapping, what",
    [("double", "KEKs of the table move"), ("single", "data keys are wrapped again")],
)
def test_a_table_moves_from_a_previous_master_key(wrapping: Any, what: str, tmp_path: Path) -> None:
    policy = iceberg.KeyPolicy(
        wrapping=wrapping, kek_per="files" if wrapping == "single" else "table"
    )
    make_table(tmp_path, master_key_id="old", policy=policy)
    config = declare(tmp_path)
    status = status_of(config)
    assert (status.counts, status.files[0].reason) == ({"other-keys": 1}, "integrity")
    (refused,) = Lake.open(config).apply()
    assert (refused.code, refused.changed) == (1, 0)
    assert Lake.open(config).verify()[0].code == 1
    config = declare(tmp_path, '[dataset.sales.previous]\nmaster_keys = { old = "sales" }\n')
    assert status_of(config).files[0].message == "under the previous master key old"
    assert Lake.open(config).verify()[0].code == 0
    (done,) = Lake.open(config).apply()
    assert (done.code, [file.result for file in done.files]) == (0, ["rotated"])
    assert status_of(declare(tmp_path)).is_declared
    assert Lake.open(config).apply()[0].plan.files == []
    assert (
        iceberg.open_table(tmp_path / "sales", f"file:{tmp_path}/lake.keyring").scan().num_rows == 6
    )


def test_rules_for_rotation_and_the_policy_are_established(tmp_path: Path) -> None:
    make_table(tmp_path)
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("sales")
    rules = '[dataset.sales.rotation]\nrewrap_after = "0d"\n'
    config = declare(tmp_path, rules)
    assert status_of(config).files[0].message == "under version 1 of sales; the newest is 2"
    assert Lake.open(config).apply()[0].changed == 1
    assert status_of(config).is_declared

    config = declare(tmp_path, f'kek_per = "day"\n{rules}max_kek_age = "0d"\n')
    status = status_of(config)
    assert (status.files[0].state, status.files[0].message.split(";")[0]) == (
        "other-policy", "kek_per is table, not day",
    )  # fmt: skip
    assert Lake.open(config).verify()[0].code == 1
    before = {kek["id"] for kek in keks(tmp_path)}
    assert Lake.open(config).apply()[0].changed == 1
    assert before.isdisjoint(kek["id"] for kek in keks(tmp_path))
    assert Lake.open(declare(tmp_path, 'kek_per = "day"\n')).verify()[0].code == 0


def keks(folder: Path) -> list[dict[str, Any]]:
    from dataclasses import asdict

    table = iceberg.open_table(folder / "sales", f"file:{folder}/lake.keyring")
    return [asdict(kek) for kek in iceberg.key_tree(table).keks]


def test_faults_and_refused_keys_have_their_exit_codes(tmp_path: Path) -> None:
    make_table(tmp_path)
    config = declare(tmp_path)
    keyring = mc.Keyring(tmp_path / "lake.keyring")
    keyring.disable_key("sales")
    status = status_of(config)
    assert (status.counts["unreadable"], set(status.reasons)) == (2, {"disabled"})
    assert Lake.open(config).verify()[0].code == 3
    keyring.enable_key("sales")
    data = next((tmp_path / "sales").rglob("data/**/*.parquet"))
    flip(data, 60)
    verified = Lake.open(config).verify()[0]
    assert verified.code == 1
    assert [file.path for file in verified.files if not file.ok] == [
        str(data.relative_to(tmp_path / "sales"))
    ]


def test_a_plaintext_table_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    catalog = SqlCatalog(
        "default", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}"
    )
    catalog.create_namespace("shop")
    mc.Keyring.create(tmp_path / "lake.keyring", plaintext=True).create_key("sales")
    config = declare(tmp_path)
    assert (status_of(config).code, Lake.open(config).verify()[0].code) == (2, 2)
    plain = catalog.create_table("shop.sales", ROWS.schema, location=f"file://{tmp_path}/sales")
    plain.append(ROWS)
    place = 'catalog = "sqlite:///c.db"\ntable = "shop.sales"'
    config = declare(tmp_path, text=DECLARATION.replace('location = "sales"', place))
    assert status_of(config).counts == {"plaintext": 1}
    (done,) = Lake.open(config).apply()
    assert (done.changed, [file.result for file in done.files]) == (0, ["refused"])
    assert "modcrypt iceberg encrypt" in done.files[0].message
    assert Lake.open(config).verify()[0].code == 1


def test_the_impact_of_a_key_names_snapshots(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    lake = Lake.open(declare(tmp_path))
    (found,) = lake.impact("sales")
    ids = [snapshot.id for snapshot in reversed(table.metadata.snapshots)]
    assert (found.files, found.rows, list(found.snapshots)) == (6, 6, ids)
    assert f"  2 snapshots: {ids[0]}, {ids[1]}" in found.describe()
    assert "6 files can no longer be opened by any key" in found.describe()[-1]
    (kek,) = keks(tmp_path)
    assert lake.impact(kek["id"])[0].files == 6
    assert lake.impact("other")[0].files == 0
    with pytest.raises(ValueError, match="a file of the Iceberg table sales"):
        lake.why(next((tmp_path / "sales").rglob("*.parquet")))


@each_case(
    "old, new, mistake",
    [
        ('master_key = "sales"', "", "line 3: master_key is missing"),
        ('location = "sales"', "", "line 3: location is missing; or set catalog and table"),
        ('location = "sales"', 'table = "a.b"', "needs catalog, and either table or namespace"),
        (
            'location = "sales"',
            'catalog = "a"\ntable = "b.c"\nnamespace = "b"',
            "needs catalog, and either table or namespace",
        ),
        (
            'location = "sales"',
            'catalog = "a"\nnamespace = "b"\ntable_uuid = "x"',
            "tables of a namespace differ in table_uuid",
        ),
        ('"sales"\nmaster', '"sales"\nread_restrictions = "none"\nmaster', "none: No such file"),
        (
            '"sales"\nmaster',
            '"sales"\nread_restrictions = "modcrypt.toml"\nmaster',
            "modcrypt.toml is not a file with one JSON object",
        ),
        ('"sales"\nmaster', '"sales"\ncatalog = "sqlite:///c"\nmaster', "remove one"),
        ('kind = "iceberg"', 'kind = "icebergs"', "kind must be files or iceberg"),
        (
            'kind = "iceberg"',
            'kind = "iceberg"\nkek_per = "tables"',
            "kek_per must be table, partition, day or files",
        ),
        (
            'kind = "iceberg"',
            'kind = "iceberg"\nkek_lifetime_days = 36501',
            "kek_lifetime_days must be a whole number, 1 to 36500",
        ),
        ('kind = "iceberg"', 'kind = "iceberg"\nmaster_keys = "a"', "did you mean master_key?"),
        (
            'location = "sales"',
            'table = "a.b"\ncatalog = "postgresql://user:secret@host/db"',
            "put a URI with a password into pyiceberg's configuration",
        ),
    ],
)
def test_mistakes_are_reported(old: str, new: str, mistake: str, tmp_path: Path) -> None:
    config = declare(tmp_path, text=DECLARATION.replace(old, new))
    with pytest.raises(ValueError, match=r"modcrypt\.toml") as caught:
        Lake.open(config)
    assert mistake in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_declared_seal_is_required(tmp_path: Path) -> None:
    """Nothing else shows an older metadata.json, or one with other names of columns."""
    table = make_table(tmp_path)
    writer = mc.SigningKey.generate()
    (tmp_path / "writer.pub").write_text(f"{writer.verifier}\n")
    config = declare(tmp_path, 'signed_by = ["writer.pub"]\nseal_at_least = 1\n')
    sales = Lake.open(config).table("sales")
    with pytest.raises(mc.errors.IntegrityError, match="the table is not sealed"):
        sales.read()
    iceberg.seal_table(table, writer)
    assert sales.read().num_rows == 6
    (verified,) = Lake.open(config).verify()
    assert verified.code == 0
    Lake(declaration=Lake.open(config).declaration).apply()  # keys may still be rotated
    table.append(ROWS)
    for read in (sales.read, lambda: list(sales.scan()), lambda: sales.write(ROWS)):
        with pytest.raises(mc.errors.IntegrityError, match="not the version that was sealed"):
            read()
    (verified,) = Lake.open(config).verify()
    assert "not the version that was sealed" in str(verified.files[0].findings)


def test_a_lake_with_a_signing_key_seals_what_it_commits(tmp_path: Path) -> None:
    table, writer = make_table(tmp_path), mc.SigningKey.generate()
    (tmp_path / "writer.pub").write_text(f"{writer.verifier}\n")
    more = 'signed_by = ["writer.pub"]\nseal_at_least = 1\nkek_per = "partition"\n'
    config = declare(tmp_path, more)
    (refused,) = Lake.open(config, signing_key=writer).apply()
    assert "the table is not sealed" in refused.files[0].message
    iceberg.seal_table(table, writer)
    lake = Lake.open(config, signing_key=writer)
    (done,) = lake.apply()
    assert done.changed == 1
    lake.table("sales").write(ROWS)
    assert lake.table("sales").read().num_rows == 6 + ROWS.num_rows
    assert Lake.open(config).verify()[0].code == 0
    with pytest.raises(ValueError, match="not that of a writer"):
        Lake.open(config, signing_key=mc.SigningKey.generate()).table("sales").read()


@each_case("text", [
    "seal_at_least = 1", 'signed_by = "x"', 'signed_by = ["none.pub"]',
    'signed_by = ["writer.pub"]\nseal_at_least = 0',
])  # fmt: skip
def test_mistakes_about_seals_are_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "writer.pub").write_text(f"{mc.SigningKey.generate().verifier}\n")
    with pytest.raises(ValueError, match=r"signed_by|seal_at_least|none\.pub"):
        Lake.open(declare(tmp_path, text))


def test_commands_for_tables_take_what_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_table(tmp_path, destination=tmp_path / "tables/s")
    text = DECLARATION.replace('"sales"\nmaster', '"tables/s"\nmaster')
    declare(tmp_path, text=text)
    trust_lake(tmp_path)
    for verb in (("scan",), ("verify",), ("keys",), ("snapshots",), ("rotate", "mek"), ("tree",)):
        for table in ("sales", "tables/s", "modcrypt.toml#sales"):
            answer = run(tmp_path, "iceberg", *verb, table)
            assert answer.returncode == 0, (verb, table, answer.stderr)
    assert "sales: 7 of 7" in run(tmp_path, "verify", "sales").stdout
    contradictions: list[tuple[str, ...]] = [
        ("scan", "--kms", "file:other"), ("scan", "--master-key", "other"),
        ("scan", "--catalog", "x"), ("create", "--like", "x.parquet", "--master-key", "x"),
    ]  # fmt: skip
    for words in contradictions:
        answer = run(tmp_path, "iceberg", *words, "sales")
        assert f"{words[-2]} contradicts the declaration" in answer.stderr
        assert answer.returncode == 2
    for name in ("sales", "tables/s"):
        advices: tuple[tuple[tuple[str, ...], str], ...] = (
            (("head", name), "use modcrypt iceberg scan sales"),
            (("keys", "rotate", name), "use modcrypt iceberg rotate mek sales"),
            (("mask", "--null", "x", name, "out"), "see modcrypt iceberg"),
        )
        leaks = run(tmp_path, "leaks", "tables/s")
        assert (leaks.returncode, leaks.stderr) == (0, "")
        for arguments, advice in advices:
            assert advice in run(tmp_path, *arguments).stderr
    assert "sales: 7 of 7" in run(tmp_path, "verify", "./tables/s").stdout
    (tmp_path / "modcrypt.toml").write_text(text + "\n# changed")
    assert "since it was trusted" in run(tmp_path, "iceberg", "scan", "sales").stderr


def test_a_new_table_has_the_declared_key_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    policy = 'kek_per = "files"\nfiles = 7\nkek_lifetime_days = 30'
    make_table(tmp_path, destination=tmp_path / "other")  # and the keyring
    declare(tmp_path, policy)
    trust_lake(tmp_path)
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    like = ("iceberg", "create", "sales", "--like", "rows.parquet")
    refused = run(tmp_path, *like, "--kek-per", "day")
    assert "--kek-per contradicts the declaration" in refused.stderr
    created = run(tmp_path, *like, "--kek-lifetime", "30")
    assert created.returncode == 0, created.stderr
    table = iceberg.open_table(tmp_path / "sales", f"file:{tmp_path}/lake.keyring")
    wanted = iceberg.KeyPolicy(kek_per="files", files=7, kek_lifetime_days=30)
    assert iceberg.KeyPolicy.of(table.metadata) == wanted


def test_plaintext_in_a_tables_folder_is_in_its_status(tmp_path: Path) -> None:
    make_table(tmp_path)
    config = declare(tmp_path)
    assert Lake.open(config).status()[0].is_declared
    pq.write_table(ROWS, tmp_path / "sales/data/plain.parquet")
    status = status_of(config)
    assert (status.counts["plaintext"], status.is_declared) == (1, False)
    (applied,) = Lake.open(config).apply()
    (refused,) = applied.files
    assert (refused.path, refused.result) == ("data/plain.parquet", "refused")
    assert "remove-orphans" in refused.message
    assert applied.code != 0
