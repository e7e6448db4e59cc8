"""Jobs on tables as SQL procedures: the reports of the functions in Python, and run once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.kms.keyring.keyring import Keyring
from tests.support.java.jvm import why_unavailable
from tests.support.spark.native import uri_of
from tests.support.tables import small_table, write_plain

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

from modcrypt import spark as jobs
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.sql_plans import plan_procedure
from modcrypt.spark.jvm.sql_catalog import register_sql

NAMES = ("country=DE/part-0.parquet", "country=NO/part-0.parquet", "part-1.parquet")


@pytest.fixture
def policies(ring: Keyring, tmp_path: Path) -> tuple[Path, Path]:
    """Write two policies: with the column keys kc1 and kc2."""
    paths = (tmp_path / "kc1.policy", tmp_path / "kc2.policy")
    for path in paths:
        path.write_text(
            f'kms = "{uri_of(ring)}"\nfooter_key = "kf"\naad_prefix = "t/{{path}}"\n'
            f'column_keys = {{ {path.stem} = ["name"] }}\n'
        )
    return paths


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    folder = tmp_path / "plain"
    for number, name in enumerate(NAMES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_plain(folder / name, small_table(10 + number))
    return folder


@pytest.fixture
def session(spark: Any, policies: tuple[Path, Path]) -> Any:
    session = spark.newSession()
    register_sql(session, policy=policies[0])
    return session


def report_of(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a report, without what differs from run to run."""
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    for row in rows:
        for name in ("seconds", "worker"):
            row.pop(name, None)
    return sorted(rows, key=lambda row: str(row["path"]))


def test_the_procedures_report_what_the_functions_report(
    session: Any, policies: tuple[Path, Path], plain: Path, tmp_path: Path
) -> None:
    """They write the same files, skip those that are done, and have the same columns."""
    first, second = (Settings(policy=mc.Policy.load(path)) for path in policies)
    out, new = tmp_path / "out", tmp_path / "new"

    def call(text: str) -> Any:
        return session.sql(f"CALL modcrypt.{text}")

    encrypted = call(f"encrypt('{plain}', '{out}')")
    assert [row["result"] for row in report_of(encrypted)] == ["encrypted"] * len(NAMES)
    found = mc.read_table(out / NAMES[2], first.under(str(out)))
    assert found.num_rows == 12
    pairs = [
        (call(f"encrypt('{plain}', '{out}')"), jobs.encrypt_table(session, plain, out, first)),
        (call(f"verify('{out}')"), jobs.verify_table(session, out, first)),
        (call(f"inspect('{out}')"), jobs.inspect_table(session, out, first)),
        (
            call(f"rekey('{out}', '{new}', newPolicy => '{policies[1]}', dryRun => 'true')"),
            jobs.rekey_table(session, out, new, first, second, dry_run=True),
        ),
        (call(f"rotate('{out}', dryRun => true)"),
         jobs.rotate_keys(session, out, first, dry_run=True)),
    ]  # fmt: skip
    for from_sql, from_python in pairs:
        assert from_sql.schema == from_python.schema
        assert report_of(from_sql) == report_of(from_python)
    assert not new.exists()
    rekeyed = call(f"rekey('{out}', '{new}', newPolicy => '{policies[1]}')")
    assert {row.result for row in rekeyed.collect()} == {"rekeyed"}
    verified = call(f"verify('{new}', policy => '{policies[1]}')")
    assert {row.result for row in verified.collect()} == {"authentic"}
    unkeyed = session.newSession()
    register_sql(unkeyed)
    partial = unkeyed.sql(f"CALL modcrypt.verify('{new}')")
    assert {row.result for row in partial.collect()} == {"partial"}


def test_keys_are_rotated_and_renamed(
    session: Any, ring: Keyring, plain: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    session.sql(f"CALL modcrypt.encrypt('{plain}', '{out}')")
    ring.rotate_key("kc1")

    def rotate(more: str = "") -> set[str]:
        return {row.result for row in session.sql(f"CALL modcrypt.rotate('{out}'{more})").collect()}

    assert (rotate(), rotate(), rotate(", what => 'dek'")) == (
        {"rotated"},
        {"current"},
        {"rotated"},
    )
    assert rotate(""", newMasterKeys => '{"kc1": "kc2"}'""") == {"rotated"}
    settings = Settings(kms=uri_of(ring))
    assert {row.master_key_id for row in jobs.scan_keys(session, out, settings).collect()} == {
        "kf",
        "kc2",
    }


def test_a_call_runs_once_and_completely(session: Any, plain: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call = f"CALL modcrypt.encrypt('{plain}', '{out}')"
    session.sql(f"EXPLAIN {call}").collect()
    assert not out.exists()
    report = session.sql(call)
    assert len(list(out.rglob("*.parquet"))) == len(NAMES)
    assert report.limit(1).collect()[0].result == "encrypted"
    assert {row.result for row in report.collect()} == {"encrypted"}  # not run again


def test_values_beside_the_files_are_refused_or_allowed(
    session: Any, plain: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (out / "_delta_log").mkdir(parents=True)
    (out / "_delta_log/0.json").write_text('{"add": {"partitionValues": {"name": "Ann"}}}')
    call = f"CALL modcrypt.encrypt('{plain}', '{out}'"
    with pytest.raises(Exception, match="_delta_log"):
        session.sql(f"{call})").collect()
    report = session.sql(f"{call}, allowLeaks => 'true')").collect()
    assert {row.result for row in report} == {"encrypted"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("", "REQUIRED_PARAMETER_NOT_FOUND"),
        ("'{out}', secret => 'x'", "secret"),
        ("'{out}', what => 'all'", "what must be"),
        ("'{out}', newMasterKeys => '[1]'", "newMasterKeys must be a JSON object of ids"),
        ("'{out}', newMasterKeys => '{{'", "newMasterKeys must be a JSON object of ids"),
        ("'{out}', dryRun => 'yes'", "dryRun must be true or false"),
        ("'{out}', kms => 'file:x?passphrase=hunter2'", "contains a password"),
        ("'{out}/none'", "No such file"),
    ],
)
def test_wrong_calls_are_refused(
    session: Any, tmp_path: Path, parameters: str, message: str
) -> None:
    (tmp_path / "out").mkdir(exist_ok=True)
    with pytest.raises(Exception, match=message) as caught:
        session.sql(f"CALL modcrypt.rotate({parameters.format(out=tmp_path / 'out')})")
    assert "hunter2" not in str(caught.value)


def test_the_catalog_lists_its_procedures(session: Any) -> None:
    found = session.sql("SHOW PROCEDURES IN modcrypt").collect()
    names = ["encrypt", "inspect", "rekey", "rotate", "verify"]
    assert [row.procedure_name for row in found] == names
    with pytest.raises(Exception, match="nothing"):
        session.sql("CALL modcrypt.nothing('x')")


def test_encryption_needs_keys(tmp_path: Path) -> None:
    for procedure, what in (("encrypt", "keys are missing"), ("rekey", "new keys are missing")):
        parameters = {"source": str(tmp_path), "destination": str(tmp_path / "out")}
        keys = {} if procedure == "encrypt" else {"kms": "file:lake.keyring"}
        with pytest.raises(ValueError, match=what):
            plan_procedure(procedure, parameters | keys)


def test_passwords_in_urls_are_refused() -> None:
    for name in ("source", "destination", "path"):
        with pytest.raises(ValueError, match=f"^{name} contains a password") as caught:
            plan_procedure("encrypt", {name: "s3://user:hunter2@lake/x"})
        assert "hunter2" not in str(caught.value)


def test_only_sessions_are_registered() -> None:
    with pytest.raises(TypeError, match="Spark session, not str"):
        register_sql("spark")
