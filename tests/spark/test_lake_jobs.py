"""A lake on Spark: `apply` by executors, and reading by the declaration."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt import iceberg
from modcrypt.spark.jobs.driver import run_tasks
from modcrypt.spark.jobs.lake_jobs import apply
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.iceberg.sales import DECLARATION as SALES
from tests.support.iceberg.sales import declare, make_sales
from tests.support.lake_folder import (
    DECLARATION,
    leave_environment,
    make_lake,
    order_table,
    trust_lake,
)
from tests.support.stories import SPARK, STORIES, run_story_on_s3

FIRST = "orders/day=2026-11-01/part-0.parquet"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a lake of plaintext files, with a cache of its own; the environment names it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MODCRYPT_CONFIG", str(tmp_path / "modcrypt.toml"))
    return make_lake(tmp_path)


def options(config: Path, **more: str) -> dict[str, str]:
    return {"lake": str(config), "dataset": "orders", **more}


@each_case("spread", [False, True])
def test_executors_establish_the_declared_state(spark: Any, config: Path, spread: bool) -> None:
    lake = mc.Lake.open(config)
    size = 1 if spread else 500
    (planned,) = apply(spark, lake, dry_run=True)
    assert planned.summary().startswith("orders: 4 to encrypt; ")
    (done,) = apply(spark, lake, files_per_task=size)
    assert (done.code, done.summary()) == (0, "orders: 4 encrypted (0 of 4 files were as declared)")
    assert [file.path for file in done.files] == [file.state.path for file in planned.plan.files]
    (again,) = apply(spark, lake)
    assert again.summary() == "orders: nothing to do (4 of 4 files as declared)"
    assert lake.verify()[0].code == 0


def test_executors_rekey_rotate_and_refuse(spark: Any, config: Path) -> None:
    folder = config.parent
    mc.Lake.open(config).apply()
    keyring = mc.Keyring(folder / "lake.keyring")
    for name in ("new", "other"):
        keyring.create_key(name)
    tools = mc.KeyTools(keyring)
    policy = mc.Policy(footer_key="other", aad_prefix="orders/{path}")
    encryption = tools.encryption(policy, root=str(folder / "orders"))
    forged = folder / "orders/day=2026-11-02/forged.parquet"
    mc.write_table(order_table(), forged, encryption)
    policy = mc.Policy(
        footer_key="footer", column_keys={"new": ["home_ssn", "mail"]}, aad_prefix="orders/{path}"
    )
    encryption = tools.encryption(policy, root=str(folder / "orders"))
    mc.write_table(order_table(), folder / FIRST, encryption, overwrite=True)
    text = DECLARATION.replace("\npii = [", "\nnew = [")
    config.write_text(text + '\n[dataset.orders.previous]\nmaster_keys = { pii = "new" }\n')
    before = forged.read_bytes()
    (done,) = apply(spark, mc.Lake.open(config))
    assert [(os.path.basename(file.path), file.result) for file in done.files] == [
        ("part-0.parquet", "rekeyed"), ("part-1.parquet", "rotated"),
        ("forged.parquet", "refused"), ("part-0.parquet", "rotated"), ("part-1.parquet", "rotated"),
    ]  # fmt: skip
    assert (done.code, forged.read_bytes()) == (3, before)
    config.write_text(text)
    forged.unlink()
    assert mc.Lake.open(config).status()[0].is_declared


def require_seal(config: Path) -> mc.SigningKey:
    """Declare that a writer signs the files and their seal; return the key of the writer."""
    key = mc.SigningKey.generate()
    key.save(config.parent / "writer.key")
    text = f'signed_by = ["{key.verifier}"]\nseal_at_least = 1'
    config.write_text(DECLARATION.replace('include = "*.parquet"\n', f"{text}\n"))
    return key


def test_executors_answer_a_leak(spark: Any, config: Path) -> None:
    mc.Lake.open(config).apply()
    keyring = mc.Keyring(config.parent / "lake.keyring")
    keyring.create_key("new")
    replaced = DECLARATION.replace("\npii = [", "\nnew = [")
    replaced += '\n[dataset.orders.previous]\nmaster_keys = { pii = "new" }\n'
    config.write_text(replaced)
    assert mc.Lake.open(config).apply()[0].totals.results == {"rotated": 4}
    config.write_text(f'compromised = ["pii"]\n{replaced}')
    assert mc.Lake.open(config).status()[0].counts == {"rewrapped": 4}
    (done,) = apply(spark, mc.Lake.open(config))
    assert (done.code, done.totals.results) == (0, {"renewed": 4})
    lake = mc.Lake.open(config)
    assert lake.status()[0].counts == {"declared": 4}
    assert lake.verify()[0].code == 0
    assert lake.impact("pii")[0].rewrapped == 0


def test_executors_make_new_data_keys_for_tables(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keyring, _ = make_sales(tmp_path, pa.table({"id": [1, 2]}))
    old = {path.name for path in (tmp_path / "sales/data").rglob("*.parquet")}
    keyring.rotate_key("sales")
    config = declare(tmp_path, text=f'compromised = ["sales@1"]\n{SALES}')
    sent: list[str] = []

    def note(spark: Any, columns: Any, *more: Any) -> Any:
        sent.extend(Path(location).name for location in columns["location"].to_pylist())
        return run_tasks(spark, columns, *more)

    monkeypatch.setattr("modcrypt.spark.jobs.iceberg_jobs.run_tasks", note)
    (done,) = apply(spark, mc.Lake.open(config))
    assert done.totals.results["renewed"] >= 5, [file.message for file in done.files]
    assert set(sent) == old  # the executors wrote each data file anew
    lake = mc.Lake.open(config)
    assert lake.table("sales").read().num_rows == 4
    opened = iceberg.open_table(tmp_path / "sales", f"file:{tmp_path}/lake.keyring")
    current = opened.snapshot()
    assert current is not None
    iceberg.expire_history(opened, keep=[current.id])
    assert lake.impact("sales@1")[0].files == 0
    assert lake.verify()[0].code == 0


@pytest.mark.slow
def test_executors_sign_with_a_key_by_reference(config: Path) -> None:
    folder = config.parent
    key = require_seal(config)
    refused = run(folder, "apply", "--spark", "local[1]", "--accept-replaced", "--yes")
    assert refused.returncode != 0
    assert "signed_by" in refused.stdout + refused.stderr
    how = ("--spark", "local[1]", "--accept-replaced", "--yes", "--sign", "file:writer.key")
    done = run(folder, "apply", *how)
    assert (done.returncode, "4 encrypted" in done.stdout) == (0, True), done.stdout + done.stderr
    mc.jobs.seal_dataset(folder / "orders", key)
    rows = mc.Lake.open(config).dataset("orders").read()
    assert rows.num_rows > 0
    pq.write_table(order_table(), folder / "orders/day=2026-11-02/plain.parquet")
    done = run(folder, "apply", *how)
    assert "1 encrypted" in done.stdout, done.stdout + done.stderr
    assert mc.jobs.verify_seal(folder / "orders", [key.verifier], at_least=2).ok


@pytest.mark.slow
def test_the_command_runs_on_spark(config: Path) -> None:
    folder = config.parent
    answer = run(folder, "apply", "--spark", "local[2]")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "orders: 4 encrypted (0 of 4 files were as declared)"
    assert run(folder, "apply", "--spark", "local[2]", "--jobs", "2").returncode == 2


def break_lake(folder: Path) -> None:
    """Make a lake with a plaintext file, a moved one, an altered one, and a disabled column key."""
    mc.Lake.open(folder / "modcrypt.toml").apply()
    moved = folder / "orders/day=2026-11-02/part-9.parquet"
    shutil.copy(folder / FIRST, moved)
    pq.write_table(order_table(), folder / "orders/day=2026-11-02/plain.parquet")
    altered = folder / "orders/day=2026-11-02/part-0.parquet"
    data = bytearray(altered.read_bytes())
    data[60] ^= 1
    altered.write_bytes(data)
    mc.Keyring(folder / "lake.keyring").disable_key("pii")


@each_case("broken", [False, True])
def test_executors_find_what_one_machine_does(spark: Any, config: Path, broken: bool) -> None:
    from modcrypt.spark import verify

    if broken:
        break_lake(config.parent)
    else:
        mc.Lake.open(config).apply()
    (here,) = mc.Lake.open(config).verify()
    (done,) = verify(spark, mc.Lake.open(config), files_per_task=1)
    assert list(done.file_fields()) == list(here.file_fields())
    assert done.fields() == here.fields()
    assert (done.code, done.summary()) == (here.code, here.summary())
    assert done.code == int(broken)
    (again,) = verify(spark, mc.Lake.open(config), since="last")
    assert again.skipped == sum(file.ok for file in here.files)


def test_a_disabled_key_has_the_same_exit_code_on_spark(spark: Any, config: Path) -> None:
    from modcrypt.spark import verify

    mc.Lake.open(config).apply()
    mc.Keyring(config.parent / "lake.keyring").disable_key("pii")
    (done,) = verify(spark, mc.Lake.open(config))
    assert done.code == mc.Lake.open(config).verify()[0].code == 3


def test_the_driver_loads_nothing_but_results() -> None:
    import pickle

    from modcrypt.spark.jobs.lake_jobs import _load_result

    with pytest.raises(pickle.UnpicklingError, match="not part of a result"):
        _load_result(pickle.dumps((os.system, None)))


def objects(lines: str) -> list[dict[str, Any]]:
    """Return what a command printed as lines of JSON, without how long it took."""
    return [{**json.loads(line), "seconds": None} for line in lines.splitlines()]


@pytest.mark.slow
@each_case("parts", ((FIRST,), ("orders/day=2026-11-02", FIRST), ("orders",)))
def test_parts_of_a_dataset_are_verified_on_spark_as_here(
    config: Path, parts: tuple[str, ...]
) -> None:
    folder = config.parent
    break_lake(folder)
    here = run(folder, "verify", "--json", *parts)
    there = run(folder, "verify", "--json", "--spark", "local[2]", *parts)
    assert objects(there.stdout) == objects(here.stdout)
    assert there.returncode == here.returncode
    assert here.returncode == (3 if parts == (FIRST,) else 1)


@pytest.mark.slow
def test_what_shredding_on_spark_changes_is_sealed(config: Path) -> None:
    folder = config.parent
    key = require_seal(config)
    sign = ("--sign", "file:writer.key")
    assert run(folder, "apply", "--accept-replaced", "--yes", *sign).returncode == 0
    assert run(folder, "seals", "create", "orders", *sign).returncode == 0
    shred = ("shred", "--column", "mail", "--yes", "--spark", "local[2]", "orders")
    assert "requires signatures" in run(folder, *shred).stderr
    answer = run(folder, *shred, *sign)
    assert answer.returncode == 0, answer.stderr
    sealed = mc.jobs.verify_seal(folder / "orders", [key.verifier], at_least=2)
    assert (sealed.findings, sealed.files) == ((), 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
def test_a_story_of_the_docs_runs_on_spark_and_s3(
    spark: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_environment(monkeypatch)
    run_story_on_s3(name, tmp_path, SPARK)


@pytest.mark.slow
def test_verify_runs_on_spark(config: Path) -> None:
    folder = config.parent
    mc.Lake.open(config).apply()
    options = "verify", "--spark", "local[2]", "--json", "--junit", str(folder / "result.xml")
    answer = run(folder, *options)
    assert answer.returncode == 0, answer.stderr
    here = run(folder, "verify", "--json")
    assert objects(answer.stdout) == objects(here.stdout)
    assert "<testsuite" in (folder / "result.xml").read_text()
    assert run(folder, "verify", "--spark", "local[2]", "--jobs", "2").returncode == 2


def test_a_lake_in_the_options_of_a_table_must_be_trusted(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who made the table chose its options; `provider` is what Spark adds to them."""
    from modcrypt.spark.source.options import read_options

    monkeypatch.setenv("XDG_STATE_HOME", str(config.parent / "state"))
    of_table = {"provider": "modcrypt", **{f"option.{k}": v for k, v in options(config).items()}}
    with pytest.raises(ValueError, match="was not named, only found"):
        read_options({**options(config), **of_table})
    assert read_options(options(config))
    trust_lake(config.parent)
    assert read_options({**options(config), **of_table})


def test_a_dataset_is_read_by_its_declaration(spark: Any, config: Path) -> None:
    folder = config.parent
    mc.Lake.open(config).apply()
    (folder / "orders" / "notes.txt").write_text("no Parquet")
    read = spark.read.format("modcrypt").options(**options(config))
    frame = read.load()
    assert frame.count() == 8
    assert set(frame.columns) == {"id", "country", "home_ssn", "mail", "day"}
    one = read.load(str(folder / "orders/day=2026-11-01"))
    assert sorted(row["id"] for row in one.collect()) == [0, 1, 2, 3]
    assert read.option("rowCounts", "true").load().count() == 4


@each_case(
    "policy, word",
    [
        ({"footer_key": "other"}, "wrapped under master key 'other'"),
        ({"column_keys": {"other": ["home_ssn", "mail"]}}, "wrapped under master key 'other'"),
        ({"column_keys": {}}, "requires a key of its own"),
        ({"aad_prefix": "orders/elsewhere"}, "AAD prefix"),
        ({"encryption_algorithm": "AES_GCM_CTR_V1"}, "AES_GCM_CTR_V1"),
        (None, "is a plaintext file where an encrypted one is expected"),
    ],
)
def test_what_is_not_as_declared_is_not_read(
    spark: Any, policy: Any, word: str, config: Path
) -> None:
    folder = config.parent
    mc.Lake.open(config).apply()
    keyring = mc.Keyring(folder / "lake.keyring")
    keyring.create_key("other")
    declared = {
        "footer_key": "footer", "column_keys": {"pii": ["home_ssn", "mail"]},
        "plaintext_columns": ["country"], "aad_prefix": "orders/{path}",
    }  # fmt: skip
    path = folder / "orders/day=2026-11-02/part-1.parquet"
    if policy is None:
        pq.write_table(order_table(), path)
    else:
        made = mc.Policy(**{**declared, **policy})
        encryption = mc.KeyTools(keyring).encryption(made, root=str(folder / "orders"))
        mc.write_table(order_table(), path, encryption, overwrite=True)
    frame = spark.read.format("modcrypt").options(**options(config)).load()
    with pytest.raises(Exception, match=word):
        frame.collect()


def test_tenants_have_keys_of_their_own_on_spark(spark: Any, config: Path) -> None:
    folder = config.parent
    shutil.rmtree(folder / "orders")
    config.write_text(
        'kms = "file:lake.keyring"\n\n[dataset.orders]\nlocation = "orders"\n'
        'partitions = ["tenant"]\nfooter_key = "tenant-{partition.tenant}"\n'
        'aad_prefix = "{partition.tenant}/{path}"\n'
    )
    keyring = mc.Keyring(folder / "lake.keyring")
    for tenant in ("acme", "globex"):
        keyring.create_key(f"tenant-{tenant}")
        (folder / f"orders/tenant={tenant}").mkdir(parents=True)
        pq.write_table(order_table(), folder / f"orders/tenant={tenant}/a.parquet")
    (done,) = apply(spark, mc.Lake.open(config))
    assert done.changed == 2
    read = spark.read.format("modcrypt").options(**options(config))
    assert read.load().count() == 4
    shutil.copy(folder / "orders/tenant=acme/a.parquet", folder / "orders/tenant=globex/a.parquet")
    with pytest.raises(Exception, match="another AAD prefix"):
        read.load().collect()


@each_case(
    "more, message",
    [
        ({"kms": "file:x"}, "the declaration of the lake decides about kms; remove it"),
        ({"aadPrefix": "x"}, "decides about aadPrefix"),
        ({"dataset": "order"}, "did you mean orders"),
        ({"dataset": ""}, "pass both"),
        ({"path": "/elsewhere"}, "No such file|no files|does not exist|is not in the dataset"),
    ],
)
def test_options_beside_a_lake(
    spark: Any, more: dict[str, str], message: str, config: Path
) -> None:
    with pytest.raises(Exception, match=message):
        spark.read.format("modcrypt").options(**options(config, **more)).load()


def test_refused_columns_are_null_only_on_request(spark: Any, config: Path) -> None:
    mc.Lake.open(config).apply()
    mc.Keyring(config.parent / "lake.keyring").disable_key("pii")
    read = spark.read.format("modcrypt").options(**options(config))
    with pytest.raises(Exception, match="disabled"):
        read.load().collect()
    frame = read.option("onMissingKey", "null").load()
    table = pa.Table.from_batches(frame.toArrow().to_batches())
    assert (table.num_rows, table["home_ssn"].null_count) == (8, 8)


def test_what_is_erased_is_left_out(spark: Any, config: Path) -> None:
    text = DECLARATION.replace('"footer"', '"day-{partition.day}"')
    config.write_text(text.replace('plaintext_columns = ["country"]\n', ""))
    keyring = mc.Keyring(config.parent / "lake.keyring")
    for day in ("2026-11-01", "2026-11-02"):
        keyring.create_key(f"day-{day}")
    mc.Lake.open(config).apply()
    shred = ("--kms", "file:lake.keyring", "--yes")
    for what in (("orders/day=2026-11-01", "--all"), ("orders", "--column", "home_ssn")):
        shredded = run(config.parent, "shred", *what, *shred)
        assert shredded.returncode == 0, shredded.stdout
    frame = spark.read.format("modcrypt").options(**options(config)).load()
    rows = frame.collect()
    assert [row.home_ssn for row in rows] == [None] * 4
    assert {str(row.day) for row in rows} == {"2026-11-02"}
    with pytest.raises(Exception, match="on_erased"):
        spark.read.format("modcrypt").options(**options(config, onErased="raise")).load().count()
    (verified,) = mc.spark.verify(spark, mc.Lake.open(config))
    assert (verified.code, verified.totals.erased, verified.totals.correct) == (0, 2, 2)
    (done,) = apply(spark, mc.Lake.open(config), remove_erased=True)
    assert (done.code, dict(done.totals.results)) == (0, {"removed": 2})
