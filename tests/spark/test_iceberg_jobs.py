"""Files of a table re-keyed by Spark's executors, and no key in what Spark keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.serializers import CloudPickleSerializer

import modcrypt as mc
from modcrypt.cli.app import program
from modcrypt.iceberg import IcebergTable, KeyPolicy, create_table, open_table, verify_table
from modcrypt.iceberg.keys.master_keys import MasterKeys
from modcrypt.iceberg.keys.wrapping_keys import OpenKey
from modcrypt.iceberg.rotate.file_rekeying import FreshDataKeys, RekeyItem
from modcrypt.keys import key_bytes
from modcrypt.spark import Settings, rotate_table_deks, rotate_table_keks
from modcrypt.spark.jobs.file_work import VerbJob
from modcrypt.spark.jobs.iceberg_jobs import plan_rewriting
from tests.support.secret_watch import spellings
from tests.support.signing import save_writer
from tests.support.tables import read_with_pyarrow

pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)

PASSPHRASE = b"Zx9!kQ2vLw8@mN4p"
MASTER = b"spark master key of 32 bytes, 3!"
PARTS = [pa.table({"id": range(n, n + 50), "text": [f"row {n}"] * 50}) for n in range(0, 200, 50)]


@pytest.fixture
def kms(tmp_path: Path) -> str:
    """A keyring whose passphrase is in a file, by its URI."""
    ring = mc.Keyring.create(tmp_path / "lake.keyring", passphrase=PASSPHRASE)
    ring.create_key("lake", value=MASTER)
    (tmp_path / "passphrase").write_bytes(PASSPHRASE)
    (tmp_path / "passphrase").chmod(0o600)
    return f"file:{tmp_path}/lake.keyring?passphrase=file:{tmp_path}/passphrase"


@pytest.fixture
def table(kms: str, tmp_path: Path) -> IcebergTable:
    """A table of four data files, each a snapshot."""
    made = create_table(tmp_path / "lake" / "orders", PARTS[0].schema, kms, master_key_id="lake")
    for part in PARTS:
        made = made.append(part)
    return made


def deks(table: IcebergTable) -> dict[str, bytes]:
    """Return the keys of the current snapshot's data files by location."""
    found: dict[str, bytes] = {}
    snapshot = table.snapshot()
    assert snapshot is not None
    for manifest in table.walk.manifests(snapshot):
        for entry in table.walk.entries(manifest):
            if entry.is_live and (keys := table.walk.file_keys(entry)) is not None:
                found[entry.location] = key_bytes(keys.key)
    return found


def prefixes(table: IcebergTable) -> dict[str, bytes | None]:
    snapshot = table.snapshot()
    assert snapshot is not None
    return {
        entry.location: keys.aad_prefix
        for manifest in table.walk.manifests(snapshot)
        for entry in table.walk.entries(manifest)
        if entry.is_live and (keys := table.walk.file_keys(entry)) is not None
    }


def everything_in(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def rows(table: IcebergTable) -> pa.Table:
    return table.scan().sort_by("id")


@pytest.fixture
def job_keys(monkeypatch: pytest.MonkeyPatch) -> list[OpenKey]:
    """Note the KEKs that are made in this process, the job's among them."""
    made: list[OpenKey] = []
    make: Callable[..., list[OpenKey]] = MasterKeys.new_keks

    def note(*arguments: Any, **options: Any) -> list[OpenKey]:
        made.extend(found := make(*arguments, **options))
        return found

    monkeypatch.setattr(MasterKeys, "new_keks", note)
    return made


def test_executors_write_the_files_anew_and_spark_sees_no_key(
    spark: Any, spark_folder: Path, table: IcebergTable, kms: str, job_keys: list[OpenKey],
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    old = deks(table)
    done = rotate_table_deks(spark, table, Settings(kms=kms))
    new = deks(done.table)
    assert (done.data_files, done.committed) == (4, True)
    assert set(old.values()).isdisjoint(new.values())
    assert set(old).isdisjoint(new)
    assert len(set(new.values())) == len(new) == 4
    assert rows(done.table) == pa.concat_tables(PARTS)
    assert rows(open_table(table.place.path, kms)) == pa.concat_tables(PARTS)  # the old version
    for location, key in new.items():  # judged by PyArrow
        read = read_with_pyarrow(Path(location), key, prefixes(done.table)[location])
        assert read.num_rows == 50
    assert job_keys
    keks = [key_bytes(key._kek) for key in job_keys if key._kek is not None]
    secrets = [MASTER, PASSPHRASE, *old.values(), *new.values(), *keks]
    out = capfd.readouterr()
    log = everything_in(spark_folder / "events")
    assert b"mapInArrow" in log or b"MapInArrow" in log  # it was on, and it was Spark's work
    seen = log + everything_in(spark_folder) + f"{out}{done}{done.fields()}".encode()
    shown = [secret for secret in secrets for spelling in spellings(secret) if spelling in seen]
    assert not shown


def test_what_is_sent_to_executors_holds_no_key(
    table: IcebergTable, kms: str, tmp_path: Path
) -> None:
    work, batch, job = prepare(table, kms)
    list(work.run([batch]))  # which opens the key service, and the job's key
    serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]  # pyspark types few
    assert job._kek is not None
    secrets = [MASTER, PASSPHRASE, key_bytes(job._kek), *deks(table).values()]
    for value in (work, batch):
        sent = serializer.dumps(value) + repr(value).encode()
        assert not [secret for secret in secrets for each in spellings(secret) if each in sent]


def prepare(table: IcebergTable, kms: str) -> tuple[VerbJob, pa.RecordBatch, OpenKey]:
    """Return what a driver sends: the work, and a row for each data file."""
    from modcrypt.iceberg.keys.key_resolver import encrypt_for_manifest

    (job,) = table.walk.resolver.masters.new_keks("lake", 16, [""])
    snapshot = table.snapshot()
    assert snapshot is not None
    entries = [
        entry
        for manifest in table.walk.manifests(snapshot)
        for entry in table.walk.entries(manifest)
    ]
    items = []
    for entry in entries:
        keys = table.walk.file_keys(entry)
        assert keys is not None
        (sealed,) = encrypt_for_manifest([keys], job)
        items.append(RekeyItem(entry.location, entry.file_format, entry.size, sealed))
    rewrite = FreshDataKeys(name="job", key_length=16)
    work, columns = plan_rewriting(Settings(kms=kms), table, job.key, rewrite, items)
    return work, pa.record_batch(dict(columns)), job


def test_a_task_that_runs_twice_writes_files_of_its_own_each_time(
    table: IcebergTable, kms: str
) -> None:
    work, batch, _ = prepare(table, kms)
    runs = [next(work.run([batch[:1]])).to_pylist()[0] for _ in range(2)]
    assert [row["word"] for row in runs] == [None, None]
    assert len({row["location"] for row in runs}) == 2
    assert all(Path(row["location"]).stat().st_size == row["size"] for row in runs)


def test_a_file_that_fails_ends_the_rotation_and_leaves_the_table_as_it_was(
    spark: Any, table: IcebergTable, kms: str, tmp_path: Path
) -> None:
    damaged = Path(sorted(deks(table))[1])
    data = bytearray(damaged.read_bytes())
    data[60] ^= 1
    damaged.write_bytes(data)
    before = {path: path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file()}
    with pytest.raises(mc.errors.IntegrityError, match=re.escape(damaged.name)):
        rotate_table_deks(spark, table, Settings(kms=kms))
    after = {path: path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file()}
    assert after == before


def test_executors_that_may_not_use_the_key_service_end_it_too(
    spark: Any, table: IcebergTable, kms: str, tmp_path: Path
) -> None:
    (tmp_path / "other").write_bytes(b"another passphrase")
    (tmp_path / "other").chmod(0o600)
    refused = Settings(kms=kms.replace("/passphrase", "/other"))
    with pytest.raises(mc.errors.KeyAccessDeniedError):
        rotate_table_deks(spark, table, refused)
    assert rows(table.refreshed()) == pa.concat_tables(PARTS)
    assert table.refreshed().place == table.place


def test_keys_that_are_no_references_are_refused(table: IcebergTable) -> None:
    with pytest.raises(TypeError, match="Settings"):
        rotate_table_deks(None, table, {"kms": "file:x"})  # type: ignore[arg-type]


def test_a_dry_run_needs_no_spark(table: IcebergTable, kms: str) -> None:
    done = rotate_table_deks(None, table, Settings(kms=kms), dry_run=True)  # type: ignore[arg-type]
    assert (done.data_files, done.committed) == (4, False)


@pytest.mark.parametrize(("what", "done"), [("dek", "4 data files"), ("kek", "1 KEK made")])
def test_the_command_line_has_spark_do_it(
    spark: Any, table: IcebergTable, kms: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    what: str, done: str,
) -> None:  # fmt: skip
    asked: list[str] = []

    @contextmanager
    def session(master: str, name: str, settings: dict[str, str]) -> Iterator[Any]:
        asked.append(master)
        yield spark

    monkeypatch.setattr("modcrypt.spark.engine.spark_session", session)
    monkeypatch.chdir(tmp_path)
    ring = ["--kms", "file:lake.keyring", "--passphrase", "file:passphrase"]
    writer = save_writer(tmp_path)
    sign = ["--sign", "file:writer.key"]
    arguments = ["iceberg", "rotate", what, "--spark", "here", *ring, *sign, "lake/orders"]
    result = CliRunner().invoke(program, arguments)
    assert result.exit_code == 0, result.output
    assert asked == ["here"]
    assert done in result.stdout
    current = open_table(tmp_path / "lake/orders", kms, signed_by=[writer.verifier])
    assert set(deks(current)).isdisjoint(deks(table)) == (what == "dek")
    assert rows(current) == pa.concat_tables(PARTS)
    ring = ["--kms", "file:lake.keyring", "--passphrase", "fd:0"]
    refused = CliRunner().invoke(program, ["iceberg", "rotate", "dek", "--spark", "x", *ring, "t"])
    assert refused.exit_code == 2
    assert "executors cannot read a file descriptor" in refused.output
    assert CliRunner().invoke(program, ["iceberg", "rotate", "mek", *arguments[3:]]).exit_code == 2


# --- manifests -----------------------------------------------------------------------------------

POLICIES = [KeyPolicy(wrapping="single", kek_per="files"), KeyPolicy(kek_per="files", files=1)]


def create_keyed_table(folder: Path, kms: str, policy: KeyPolicy) -> IcebergTable:
    """Create a table of three manifests that contain encrypted keys."""
    made = create_table(folder, PARTS[0].schema, kms, master_key_id="lake", policy=policy)
    for part in PARTS[:3]:
        made = made.append(part)
    return made


def encrypting_keys(table: IcebergTable) -> set[str]:
    return {file["sealed_by"] for file in table.files().to_pylist() if file["kind"] == "data"}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.wrapping)
def test_executors_write_manifests_anew_and_spark_sees_no_key(
    spark: Any, spark_folder: Path, kms: str, tmp_path: Path, job_keys: list[OpenKey],
    capfd: pytest.CaptureFixture[str], policy: KeyPolicy,
) -> None:  # fmt: skip
    table = create_keyed_table(tmp_path / "t", kms, policy)
    mc.kms.open_kms(kms).create_key("vault")  # type: ignore[attr-defined]  # a keyring's
    old, before, there = deks(table), encrypting_keys(table), set((tmp_path / "t").rglob("*.avro"))
    done = rotate_table_keks(spark, table, Settings(kms=kms), new_master_key_id="vault")
    assert (done.manifests, done.manifest_lists, done.committed) == (3, 3, True)
    assert deks(done.table) == old
    assert before.isdisjoint(encrypting_keys(done.table))
    if policy.wrapping == "single":
        assert encrypting_keys(done.table) == {"vault"}
    assert len(set((tmp_path / "t").rglob("*.avro")) - there) == 6  # and none of the old is gone
    assert {path.name for path in (tmp_path / "t/data").iterdir()} == {
        Path(path).name for path in old
    }
    current = open_table(tmp_path / "t", kms, master_key_ids=["vault"])
    assert rows(current) == pa.concat_tables(PARTS[:3])
    assert verify_table(current).ok
    keks = [key_bytes(key._kek) for key in job_keys if key._kek is not None]
    out = capfd.readouterr()
    seen = everything_in(spark_folder) + f"{out}{done}{done.fields()}".encode()
    secrets = [MASTER, PASSPHRASE, *old.values(), *keks]
    assert not [secret for secret in secrets for spelling in spellings(secret) if spelling in seen]


def test_a_manifest_that_fails_leaves_the_table_as_it_was(
    spark: Any, kms: str, tmp_path: Path
) -> None:
    table = create_keyed_table(tmp_path / "t", kms, POLICIES[0])

    def before() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()}

    there = before()
    (tmp_path / "other").write_bytes(b"another passphrase")
    (tmp_path / "other").chmod(0o600)
    refused = Settings(kms=kms.replace("/passphrase", "/other"))
    with pytest.raises(mc.errors.KeyAccessDeniedError):
        rotate_table_keks(spark, table, refused)
    assert before() == there


def test_a_dry_run_of_keks_needs_no_spark(kms: str, tmp_path: Path) -> None:
    table = create_keyed_table(tmp_path / "t", kms, POLICIES[0])
    done = rotate_table_keks(None, table, Settings(kms=kms), dry_run=True)  # type: ignore[arg-type]
    assert (done.manifests, done.committed) == (3, False)
