"""Verbs that take the keys and requirements of a dataset from the declaration of its lake."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.cli.program import check_failure, run
from tests.support.lake_folder import (
    DECLARATION,
    leave_environment,
    make_lake,
    order_table,
    trust_lake,
    write_day,
)

FIRST = "orders/day=2026-11-01/part-0.parquet"


# --- names, paths and references -----------------------------------------------------------------


READING = (
    ("head",), ("cat",), ("schema",), ("inspect",), ("keys", "scan"), ("keys", "rotate"),
    ("recipients", "list"), ("shred", "--column", "mail"), ("leaks",), ("verify",),
)  # fmt: skip


@each_case("verb", READING)
def test_a_verb_needs_no_keys_for_a_dataset(lake: Path, verb: tuple[str, ...]) -> None:
    for path in ("modcrypt.toml#orders", FIRST if verb != ("leaks",) else "orders"):
        answer = run(lake, *verb, path)
        assert (answer.returncode, answer.stderr.count("error")) == (0, 0), answer.stderr
    answer = run(lake, *verb, "ordrs")
    assert "declares no dataset ordrs; did you mean orders?" in check_failure(answer, 2, "usage")


def test_head_takes_the_name_of_a_dataset(lake: Path) -> None:
    (lake / "orders").rename(lake / "files")
    text = DECLARATION.replace('"orders"', '"files"')
    (lake / "modcrypt.toml").write_text(text)
    trust_lake(lake)
    lines = run(lake, "head", "orders", "--json").stdout.splitlines()
    assert [json.loads(line)["mail"] for line in lines[:2]] == ["0@example.com", "1@example.com"]


def test_a_policy_may_name_a_dataset(lake: Path) -> None:
    reference = f"{lake}/modcrypt.toml#orders"
    assert run(lake, "head", "--policy", reference, FIRST).returncode == 0
    wrong = run(lake, "head", "--policy", "modcrypt.toml#order", FIRST)
    assert "did you mean orders?" in check_failure(wrong, 2, "usage")
    pq.write_table(order_table(), lake / "x.parquet")
    message = check_failure(run(lake, "head", "--policy", reference, "x.parquet"), 2, "usage")
    assert "not in the dataset orders" in message


def test_doctor_examines_the_files_of_a_dataset_with_its_keys(lake: Path) -> None:
    found = json.loads(run(lake, "doctor", "orders", "--json").stdout)
    assert {check["check"] for check in found["checks"]} == {"writer"}
    assert all("no known bug" in check["message"] for check in found["checks"])
    assert found["ok"] > 0


def test_a_path_that_is_also_another_dataset_is_refused(lake: Path) -> None:
    (lake / "orders").rename(lake / "files")
    (lake / "modcrypt.toml").write_text(DECLARATION.replace('"orders"', '"files"'))
    trust_lake(lake)
    pq.write_table(order_table(), lake / "orders")
    message = check_failure(run(lake, "head", "orders"), 2, "usage")
    assert "write ./orders or " in message
    assert "modcrypt.toml#orders" in message
    assert run(lake, "head", "--allow-plaintext", "./orders").returncode == 0
    assert run(lake, "head", "modcrypt.toml#orders").returncode == 0


@pytest.fixture
def elsewhere(lake: Path) -> Path:
    """A lake whose dataset is not in a folder of its name."""
    (lake / "orders").rename(lake / "files")
    (lake / "modcrypt.toml").write_text(DECLARATION.replace('"orders"', '"files"'))
    trust_lake(lake)
    pq.write_table(order_table(), lake / "plain.parquet")
    return lake


INSIDE = (*READING[:-2], ("verify",), ("why",), ("mask", "--null", "id", "--in-place"))


@each_case("verb", INSIDE)
def test_a_path_inside_a_dataset_may_begin_with_its_name(
    elsewhere: Path, verb: tuple[str, ...]
) -> None:
    for path in (FIRST, f"modcrypt.toml#{FIRST}"):
        answer = run(elsewhere, *verb, path)
        assert (answer.returncode, answer.stderr.count("error")) == (0, 0), answer.stderr
    answer = run(elsewhere, *verb, FIRST.replace("orders", "ordrs"))
    assert "declares no dataset ordrs; did you mean orders?" in check_failure(answer, 2, "usage")


def test_new_files_inside_a_dataset_may_begin_with_its_name(elsewhere: Path) -> None:
    for number, start in enumerate(("orders", "modcrypt.toml#orders")):
        new = f"day=2026-11-01/new-{number}.parquet"
        assert run(elsewhere, "encrypt", "plain.parquet", f"{start}/{new}").returncode == 0
        assert (elsewhere / "files" / new).exists()
    assert run(elsewhere, "verify").returncode == 0
    assert not (elsewhere / "orders").exists()
    for path in ("orders/../plain.parquet", "orders/day=2026-12-24"):
        check_failure(run(elsewhere, "head", path), 2, "file")


def test_a_path_that_begins_like_another_dataset_is_refused(elsewhere: Path) -> None:
    (elsewhere / FIRST).parent.mkdir(parents=True)
    shutil.copy(elsewhere / "plain.parquet", elsewhere / FIRST)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*.parquet")}
    new = "orders/day=2026-11-01/new.parquet"
    for verb in (("head", FIRST), ("encrypt", "plain.parquet", new), ("verify", FIRST)):
        message = check_failure(run(elsewhere, *verb), 2, "usage")
        assert f"{verb[-1]} is a path, and orders a dataset of " in message
        assert f"write ./{verb[-1]} or " in message
    assert {path: path.read_bytes() for path in elsewhere.rglob("*.parquet")} == before
    assert run(elsewhere, "head", "--allow-plaintext", f"./{FIRST}").returncode == 0
    (elsewhere / "modcrypt.toml").write_text("# changed\n" + DECLARATION)
    assert run(elsewhere, "head", "--allow-plaintext", FIRST).returncode == 0


def test_files_in_no_dataset_are_as_without_a_lake(lake: Path) -> None:
    (lake / "footer.key").write_bytes(bytes(range(16)))
    (lake / "footer.key").chmod(0o600)
    pq.write_table(order_table(), lake / "plain.parquet")
    options = ("--key", "file:footer.key")
    assert run(lake, "encrypt", *options, "plain.parquet", "e.parquet").returncode == 0
    assert run(lake, "head", *options, "e.parquet").returncode == 0
    check_failure(run(lake, "head", "e.parquet"), 3, "no-key")


# --- options that contradict the declaration -----------------------------------------------------


CONTRADICTIONS = (
    ("--kms", "file:other.keyring"), ("--kms", "file:lake.keyring#other"),
    ("--kms", "file:lake.keyring#pii"),
    ("--key", "file:footer.key"), ("--policy", "policy.toml"),
    ("--column-key", "mail=file:x.key"), ("--aad-prefix", "orders"), ("--root", "."),
    ("--accept-algorithm", "AES_GCM_CTR_V1"),
)  # fmt: skip


@each_case("options", CONTRADICTIONS)
def test_an_option_that_contradicts_is_refused(lake: Path, options: tuple[str, str]) -> None:
    for verb in ("head", "decrypt", "verify"):
        more = ("out",) if verb == "decrypt" else ()
        message = check_failure(run(lake, verb, *options, "orders", *more), 2, "usage")
        assert message.startswith(f"{options[0]} contradicts the declaration: "), message
        assert "modcrypt.toml declares orders" in message
    assert not (lake / "out").exists()


def test_an_option_that_repeats_the_declaration_is_accepted(lake: Path) -> None:
    options = ("--kms", "file:./lake.keyring", "--root", "orders", "--master-key", "old")
    assert run(lake, "head", *options, FIRST).returncode == 0
    for option in ("--kms=file:other.keyring", "--key=file:footer.key"):
        answer = run(lake, "head", option, FIRST, env={"MODCRYPT_CONFIG": "none"})
        assert "contradicts" not in answer.stderr


# --- writing -------------------------------------------------------------------------------------


def test_encrypt_makes_a_file_as_declared(lake: Path) -> None:
    pq.write_table(order_table(), lake / "plain.parquet")
    new, other = "orders/day=2026-11-01/new.parquet", "orders/day=2026-11-01/x.parquet"
    assert run(lake, "encrypt", "plain.parquet", new).returncode == 0
    assert run(lake, "status").stdout.startswith("orders: 5 files: 5 as declared")
    for options in (("--key", "file:x"), ("--plaintext-column", "id"), ("--to", "x.pub")):
        answer = run(lake, "encrypt", *options, "plain.parquet", other)
        assert "declares orders" in check_failure(answer, 2, "usage")
    write_day(lake, "2026-11-03", 1)
    assert run(lake, "encrypt", "--in-place", "orders/day=2026-11-03").returncode == 0
    assert run(lake, "status").stdout.startswith("orders: 6 files: 6 as declared")


def test_decrypt_writes_no_plaintext_into_a_dataset(lake: Path) -> None:
    for paths in ((FIRST, "orders/x.parquet"), ("--in-place", FIRST)):
        message = check_failure(run(lake, "decrypt", *paths), 2, "usage")
        assert "declares orders encrypted" in message
    assert run(lake, "decrypt", "orders", "out").returncode == 0
    assert pq.read_table(lake / "out/day=2026-11-01/part-0.parquet").num_rows == 2


def test_rewritten_files_stay_as_declared(lake: Path) -> None:
    assert run(lake, "rekey", "--in-place", FIRST).returncode == 0
    assert run(lake, "mask", "--null", "id", "--in-place", FIRST).returncode == 0
    copy = "orders/day=2026-11-02/copy.parquet"
    assert run(lake, "mask", "--null", "mail", FIRST, copy).returncode == 0
    assert run(lake, "verify").returncode == 0
    assert run(lake, "share", "--column", "id", FIRST, "s.parquet").returncode == 2
    mc.Identity.generate().save(lake / "partner.key")
    (lake / "partner.pub").write_text(f"{mc.Identity.load(lake / 'partner.key').recipient}\n")
    answer = run(lake, "recipients", "add", "--to", "partner.pub", FIRST)
    assert "and run modcrypt apply" in check_failure(answer, 2, "usage")
    for target in ("orders", "modcrypt.toml#orders"):
        assert run(lake, "rekey", "--to", target, "--in-place", FIRST).returncode == 0
    both = run(lake, "rekey", "--to", "partner.pub", "--in-place", FIRST)
    assert "declares orders and how its files are encrypted" in check_failure(both, 2, "usage")
    outside = run(lake, "share", "--column", "id", "--to", "orders", FIRST, "s.parquet")
    assert "is not in the dataset orders" in check_failure(outside, 2, "usage")
    assert not (lake / "s.parquet").exists()


@each_case("change", (("--null", "mail"), ("--hash", "mail"), ("--drop", "home_ssn")))
def test_masked_files_stay_as_declared(lake: Path, change: tuple[str, str]) -> None:
    (lake / "hash.key").write_bytes(bytes(range(32)))
    (lake / "hash.key").chmod(0o600)
    key = ("--hash-key", "file:hash.key") if change[0] == "--hash" else ()
    copy = "orders/day=2026-11-02/copy.parquet"
    for paths in (("--in-place", FIRST), (FIRST.replace("part-0", "part-1"), copy)):
        answer = run(lake, "mask", *change, *key, *paths)
        assert answer.returncode == 0, answer.stderr
    answer = run(lake, "verify")
    assert answer.returncode == 0, answer.stdout
    assert run(lake, "status").stdout.startswith("orders: 5 files: 5 as declared")


# --- keys of partitions --------------------------------------------------------------------------


@pytest.fixture
def tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake in which each tenant's files have master keys of their own."""
    leave_environment(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    keyring = mc.Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    for tenant in "ab":
        keyring.create_key(f"tenant-{tenant}")
        (tmp_path / "orders" / f"tenant={tenant}").mkdir(parents=True)
        pq.write_table(order_table(), tmp_path / "orders" / f"tenant={tenant}" / "0.parquet")
    (tmp_path / "modcrypt.toml").write_text(
        'kms = "file:lake.keyring"\n[dataset.orders]\nlocation = "orders"\n'
        'partitions = ["tenant"]\nfooter_key = "tenant-{partition.tenant}"\n'
        'aad_prefix = "orders/{path}"\n'
    )
    trust_lake(tmp_path)
    assert run(tmp_path, "apply").returncode == 0
    return tmp_path


@each_case("what", ("mek", "kek", "dek"))
def test_keys_of_partitions_are_rotated_as_declared(tenants: Path, what: str) -> None:
    moved = tenants / "orders" / "tenant=b" / "moved.parquet"
    shutil.copy(tenants / "orders" / "tenant=a" / "0.parquet", moved)
    before = moved.read_bytes()
    answer = run(tenants, "keys", "rotate", "--what", what, "--key", "tenant-a", "orders")
    assert "3 files: " in answer.stdout
    assert "1 failed" in answer.stdout
    assert moved.read_bytes() == before
    moved.unlink()
    assert run(tenants, "verify").returncode == 0
    (of_a, of_b) = run(tenants, "keys", "scan", "--json", "orders").stdout.splitlines()
    assert [json.loads(line)["version"] for line in (of_a, of_b)] == ["2", "1"]
    impact = run(tenants, "keys", "impact", "tenant-a", "--version", "2").stdout
    assert impact.startswith("orders: 1 file, 2 rows")


NOT_AS_DECLARED = (
    ("--key", "tenants"), ("--new-master-key", "tenant-a=tenant-b"),
    ("--new-master-key", "old=other"), ("--single-wrapping",), ("--kms", "file:lake.keyring#other"),
)  # fmt: skip


@each_case("options", NOT_AS_DECLARED)
def test_a_rotation_that_contradicts_the_declaration_is_refused(
    tenants: Path, options: tuple[str, ...]
) -> None:
    ring = (tenants / "lake.keyring").read_bytes()
    message = check_failure(run(tenants, "keys", "rotate", *options, "orders"), 2, "usage")
    assert "contradicts the declaration" in message
    assert "declares orders with " in message
    assert (tenants / "lake.keyring").read_bytes() == ring


# --- trust ---------------------------------------------------------------------------------------


def test_a_declaration_that_nobody_trusts_opens_nothing(lake: Path) -> None:
    (lake / "modcrypt.toml").write_text(DECLARATION + "# changed\n")
    for path in ("modcrypt.toml#orders", "orders"):
        trusted = path != "orders"
        answer = run(lake, "head", path)
        assert (answer.returncode == 0) == trusted, answer.stderr
    assert "is ignored, because it is not trusted" in " ".join(answer.stderr.split())
    answer = run(lake, "head", "--kms", "file:lake.keyring", "--root", "orders", FIRST)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_a_missing_name_needs_trust(lake: Path) -> None:
    (lake / "orders").rename(lake / "files")
    (lake / "modcrypt.toml").write_text(DECLARATION.replace('"orders"', '"files"'))
    message = check_failure(run(lake, "head", "orders"), 2, "usage")
    assert "has changed since it was trusted" in message


# --- the environment -----------------------------------------------------------------------------


def test_the_environment_names_a_key_service_for_all_verbs(tmp_path: Path) -> None:
    keyring = mc.Keyring.create(tmp_path / "k.keyring", plaintext=True)
    keyring.create_key("footer")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "p.parquet")
    environment = {"MODCRYPT_KMS": "file:k.keyring#footer", "MODCRYPT_CONFIG": "none"}
    for verb in (
        ("encrypt", "p.parquet", "e.parquet"), ("head", "e.parquet"), ("verify", "e.parquet"),
        ("keys", "list"), ("keys", "scan", "e.parquet"), ("decrypt", "e.parquet", "d.parquet"),
        ("keys", "rotate", "e.parquet"), ("shred", "--all", "e.parquet"),
    ):  # fmt: skip
        answer = run(tmp_path, *verb, env=environment)
        assert answer.returncode == 0, (verb, answer.stderr)
    assert "authentic" in run(tmp_path, "verify", "e.parquet", env=environment).stdout
    (tmp_path / "pass").write_text("not needed\n")
    (tmp_path / "pass").chmod(0o600)
    answer = run(tmp_path, "keys", "list", "--passphrase", "file:pass", env=environment)
    assert "a passphrase needs a keyring" not in answer.stderr
    address = {"VAULT_ADDR": "http://127.0.0.1:9", "MODCRYPT_KMS_PATIENCE": "0"}
    assert run(tmp_path, "head", "e.parquet", env=address).returncode in (3, 4)
    assert "hcvault" not in run(tmp_path, "inspect", "e.parquet", env=address).stderr


# --- verify --------------------------------------------------------------------------------------


def test_reports_for_ci_systems_are_the_same_for_files(lake: Path) -> None:
    pq.write_table(order_table(), lake / "plain.parquet")
    outputs = ("--junit", "out.xml", "--sarif", "out.sarif")
    answer = run(lake, "verify", FIRST, "plain.parquet", *outputs)
    assert answer.returncode == 0
    text = (lake / "out.xml").read_text()
    assert 'testsuite name="orders"' in text
    assert 'testsuite name="files"' in text
    assert "since last and --resume need a dataset" in check_failure(
        run(lake, "verify", "plain.parquet", "--since", "last"), 2, "usage"
    )
    late = run(lake, "verify", "plain.parquet", "--since", "2999-01-01")
    assert "1 file unchanged and skipped" in late.stderr


def test_a_part_of_a_dataset_is_verified_as_declared(lake: Path) -> None:
    pq.write_table(order_table(), lake / FIRST)
    for path in (FIRST, f"./{FIRST}", "orders/day=2026-11-01", "orders"):
        answer = run(lake, "verify", "--json", path)
        assert answer.returncode == 1
        *files, totals = map(json.loads, answer.stdout.splitlines())
        assert {line["schema"] for line in files} == {"modcrypt.verify.file/1"}
        assert [line["ok"] for line in files].count(False) == 1
        assert (totals["schema"], totals["ok"]) == ("modcrypt.verify.totals/1", False)
    assert run(lake, "verify", "orders/day=2026-11-02").returncode == 0


SIGN = ("--sign", "file:writer.key")


@pytest.fixture
def sealed(lake: Path) -> Path:
    """A lake whose dataset has signed files, a recipient, and a seal."""
    assert run(lake, "keys", "generate", "--kind", "signing", "writer.key").returncode == 0
    assert run(lake, "keys", "generate", "--kind", "recipient", "me.key").returncode == 0
    shutil.rmtree(lake / "orders")
    write_day(lake, "2026-11-01", 4)
    more = (
        'include = "*.parquet"\nsigned_by = ["writer.pub"]\nseal_at_least = 1\n'
        'recipients = ["me.pub"]\n'
    )
    (lake / "modcrypt.toml").write_text(DECLARATION.replace('include = "*.parquet"\n', more))
    trust_lake(lake)
    for verb in (("apply", "--accept-replaced", "--yes"), ("seals", "create", "orders")):
        answer = run(lake, *verb, *SIGN)
        assert answer.returncode == 0, (answer.stdout, answer.stderr)
    pq.write_table(order_table(), lake / "plain.parquet")
    return lake


def read_file(lake: Path) -> bytes:
    """Return the bytes of the first file."""
    return (lake / FIRST).read_bytes()


def test_new_files_of_a_sealed_dataset_are_sealed(sealed: Path) -> None:
    new = "orders/day=2026-11-01/new.parquet"
    unsigned = run(sealed, "encrypt", "plain.parquet", new)
    assert "requires signatures" in check_failure(unsigned, 2, "usage")
    assert run(sealed, "encrypt", *SIGN, "plain.parquet", new).returncode == 0
    assert run(sealed, "verify").returncode == 0
    assert "seal 2: 5 files" in run(sealed, "seals", "verify", "orders").stdout
    assert run(sealed, "head", "orders").returncode == 0


def test_changed_files_of_a_sealed_dataset_are_sealed(sealed: Path) -> None:
    me = mc.Identity.load(sealed / "me.key").recipient.id.hex()
    changes: tuple[tuple[str, ...], ...] = (
        ("mask", "--null", "id", "--in-place"),
        ("recipients", "remove", "--recipient", me), ("keys", "rotate", "--what", "dek"),
        ("recipients", "add", "--to", "me.pub"), ("shred", "--column", "mail", "--yes"),
    )  # fmt: skip
    declaration = sealed / "modcrypt.toml"
    for number, verb in enumerate(changes, 2):
        if verb[0] == "recipients":
            line = 'recipients = ["me.pub"]\n'
            text = declaration.read_text().replace(line, "")
            if verb[1] == "add":
                text = text.replace("[dataset.orders]\n", f"[dataset.orders]\n{line}")
            declaration.write_text(text)
            trust_lake(sealed)
        before, ring = read_file(sealed), (sealed / "lake.keyring").read_bytes()
        version = ("--key", "footer") if verb[0] == "keys" else ()
        unsigned = run(sealed, *verb, *version, FIRST)
        assert "requires signatures" in check_failure(unsigned, 2, "usage"), verb
        assert read_file(sealed) == before
        assert (sealed / "lake.keyring").read_bytes() == ring
        answer = run(sealed, *verb, *SIGN, FIRST)
        assert answer.returncode == 0, (verb, answer.stdout, answer.stderr)
        assert read_file(sealed) != before
        assert f"seal {number}: 4 files" in run(sealed, "seals", "verify", "orders").stdout
        columns = ("--columns", "id") if verb[0] == "shred" else ()
        assert run(sealed, "head", *columns, FIRST).returncode == 0


def test_nothing_is_made_of_a_forged_file_of_a_sealed_dataset(sealed: Path) -> None:
    (sealed / FIRST).write_bytes((sealed / FIRST.replace("part-0", "part-1")).read_bytes())
    before = read_file(sealed)
    answer = run(sealed, "shred", "--all", "--yes", *SIGN, FIRST)
    assert answer.returncode == 1, answer.stdout
    assert "not the file that was sealed" in answer.stdout
    assert read_file(sealed) == before


# --- Iceberg tables ------------------------------------------------------------------------------

TABLES = """
[dataset.people]
kind = "iceberg"
catalog = "sqlite:///catalog.db"
table = "s.people"
master_key = "footer"

[dataset.events]
kind = "iceberg"
location = "s3://lake/events/"
master_key = "footer"
"""

OF_TABLES = (
    ("iceberg keys peopl", "declares no dataset peopl; did you mean people?"),
    ("iceberg scan orders", "orders is a dataset of Parquet files"),
    ("iceberg scan --master-key other people", "declares people with footer; remove the option"),
    ("iceberg scan --kms file:other s3a://lake/events", "declares events with file:"),
    ("iceberg scan --catalog sqlite:///x s3://lake/events/", "declares events at s3://lake/events"),
    ("keys rotate people", "modcrypt keys rotate cannot use; use modcrypt iceberg rotate mek"),
    ("seals create --sign file:x people", "use modcrypt iceberg seal people"),
    ("head people/data", "use modcrypt iceberg scan people"),
    ("verify people/data", "declares no dataset people/data"),
)  # fmt: skip


@each_case("command", OF_TABLES)
def test_a_table_in_the_wrong_place_is_a_usage_error(lake: Path, command: tuple[str, str]) -> None:
    (lake / "modcrypt.toml").write_text(DECLARATION + TABLES)
    trust_lake(lake)
    message = check_failure(run(lake, *command[0].split()), 2, "usage")
    assert command[1] in " ".join(message.split())


# --- folders of stores ---------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lake whose dataset is in a bucket of a server on the loopback interface."""
    from tests.support.object_store import object_store  # moto takes a while to load

    leave_environment(monkeypatch)
    for name in ("CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    for name in [name for name in os.environ if name.upper().endswith("_PROXY")]:
        monkeypatch.delenv(name)
    make_lake(tmp_path, days=0)
    place = 'location = "s3://lake/raw/orders"'
    declaration = DECLARATION.replace('location = "orders"', place)
    (tmp_path / "modcrypt.toml").write_text(declaration)
    trust_lake(tmp_path)
    pq.write_table(order_table(), tmp_path / "plain.parquet")
    with object_store() as store:
        alone = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull}
        for name, value in {**store.environment, **alone}.items():
            monkeypatch.setenv(name, value)
        store.judge().create_bucket(Bucket="lake")
        yield tmp_path


def test_folders_of_stores_belong_to_datasets(stored: Path) -> None:
    first = "/day=2026-11-01/part-0.parquet"
    assert run(stored, "encrypt", "plain.parquet", f"s3a://lake/raw/orders{first}").returncode == 0
    verbs = (*READING[:3], *READING[4:7], ("why",), ("verify",))
    places = ("s3://lake/raw/orders", "s3a://lake/raw/orders", "orders")
    for number, place in enumerate(places):
        for verb in verbs[number :: len(places)]:
            answer = run(stored, *verb, f"{place}{first}")
            assert answer.returncode == 0, (verb, place, answer.stderr)
        assert run(stored, "head", "--root", "s3a://lake/raw/orders/", f"{place}/").returncode == 0
    inside = ("s3a://lake/raw/orders/x.parquet",)
    refused = run(stored, "decrypt", f"s3://lake/raw/orders{first}", *inside)
    assert "declares orders encrypted" in check_failure(refused, 2, "usage")
    assert run(stored, "verify", "--json").stdout.count("modcrypt.verify.file/1") == 1
    assert run(stored, "mask", "--null", "mail", "--in-place", f"orders{first}").returncode == 0
    assert run(stored, "verify").returncode == 0
