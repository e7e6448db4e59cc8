"""`modcrypt doctor`: what it finds on this machine, in files made bad, and in Spark's own logs."""

from __future__ import annotations

import base64
import functools
import gzip
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import modcrypt
from modcrypt.doctor import checkup, event_log, machine_checks
from modcrypt.doctor.event_log import search_event_log
from tests.support.cases import each_case
from tests.support.cli.forked import as_process
from tests.support.cli.program import KEY, environment, examples_of, invoke, private, run_program
from tests.support.forging import flip
from tests.support.java.jvm import why_unavailable
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.sleeps import note_sleeps
from tests.support.tables import write_plain

RING = ("--kms", "file:lake.keyring")
LEAKED = bytes(range(0x51, 0x61))
PHRASE = "a-phrase-that-nobody-redacts"
OF_THE_MACHINE = [
    "python", "packages", "thrift IDL", "page and footer code", "OpenSSL", "AES", "randomness",
    "umask", "core dumps", "swap", "environment",
]  # fmt: skip

Checks = list[dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private folder with a keyring in the clear, a policy, keys and files under both."""
    tmp_path.chmod(0o700)
    ring = modcrypt.Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    ring.create_key("footer", value=FOOTER_KEY)
    ring.create_key("pii", value=COLUMN_KEY)
    private(tmp_path / "footer.key", OTHER_KEY)
    policy = 'kms = "file:lake.keyring"\nfooter_key = "footer"\ncolumn_keys.pii = ["name"]\n'
    private(tmp_path / "lake.toml", policy.encode())
    write_plain(tmp_path / "plain.parquet")
    how = modcrypt.KeyTools(ring).encryption(modcrypt.Policy.loads(policy))
    modcrypt.encrypt_parquet(tmp_path / "plain.parquet", tmp_path / "kms.parquet", how)
    own = modcrypt.FileEncryptionProperties(footer_key=OTHER_KEY)
    modcrypt.encrypt_parquet(tmp_path / "plain.parquet", tmp_path / "own.parquet", own)
    return tmp_path


_version = functools.cache(importlib.metadata.version)


@pytest.fixture(autouse=True)
def quick_machine_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read each package's version once, and measure AES for a moment: most tests look elsewhere."""
    monkeypatch.setattr(importlib.metadata, "version", _version)
    monkeypatch.setattr(machine_checks, "_MEASURED", 0.001)


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the variables of whoever runs the tests."""
    for name in list(os.environ):
        if checkup._SECRET_VARIABLE.search(name):
            monkeypatch.delenv(name)


def checks(folder: Path, *arguments: str, code: int = 0) -> Checks:
    """Run doctor; return its checks, except those of the machine."""
    result = invoke(folder, "doctor", "--json", *arguments)
    assert (result.exit_code, result.stderr) == (code, "")
    reported = json.loads(result.stdout)
    found: Checks = reported["checks"]
    for state in ("ok", "hint", "warn", "fail"):
        assert reported[state] == sum(check["state"] == state for check in found)
    assert [check["check"] for check in found[: len(OF_THE_MACHINE)]] == OF_THE_MACHINE
    return found[len(OF_THE_MACHINE) :]


def states_of(found: Checks) -> list[tuple[str, str]]:
    return [(check["check"], check["state"]) for check in found]


# --- the machine ---------------------------------------------------------------------------------


def test_a_machine_that_runs_the_tests_is_fit(tmp_path: Path) -> None:
    answer = run_program(tmp_path, "doctor", "--json", fork=False)
    found = {check["check"]: check for check in json.loads(answer.stdout)["checks"]}
    assert (answer.returncode, answer.stderr, list(found)) == (0, "", OF_THE_MACHINE)
    assert ".".join(map(str, sys.version_info[:3])) in found["python"]["message"]
    for package in ("cryptography", "pyarrow", "thriftpy2"):
        named = f"{package} {importlib.metadata.version(package)}"
        assert found["packages"]["message"].split(", ").count(named) == 1
    assert "OpenSSL" in found["OpenSSL"]["message"]
    assert "GB/s" in found["AES"]["message"]


def test_people_read_the_same_in_lines(tmp_path: Path) -> None:
    result = invoke(tmp_path, "doctor")
    *lines, last = result.stdout.splitlines()
    heads = [line for line in lines if not line.startswith("      ")]
    states = [line.split()[0] for line in heads]
    assert [line[6:].partition(":")[0] for line in heads] == OF_THE_MACHINE
    counts = {state: states.count(state) for state in ("ok", "hint", "warn", "fail")}
    assert last == ", ".join(f"{number} {state}" for state, number in counts.items())


def test_old_and_missing_packages_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "thriftpy2":
            raise importlib.metadata.PackageNotFoundError
        return "49.10.1" if name == "cryptography" else installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = json.loads(invoke(tmp_path, "doctor", "--json").stdout)["checks"][1]
    assert found["state"] == "fail"
    assert "cryptography 49.10.1 is older than 50" in found["message"]
    assert "thriftpy2 is missing" in found["message"]
    assert invoke(tmp_path, "doctor").exit_code == 1


def test_slow_aes_is_a_warning_which_strict_takes_for_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "SLOW_AES", 1e6)
    assert invoke(tmp_path, "doctor").exit_code == 0
    answer = invoke(tmp_path, "doctor", "--strict")
    assert answer.exit_code == 1
    assert "warn  AES" in answer.stdout


@pytest.mark.parametrize(("mask", "state"), [(0o077, "ok"), (0o022, "hint"), (0, "warn")])
def test_a_umask_that_lets_others_in_is_reported(mask: int, state: str) -> None:
    before = os.umask(mask)
    try:
        found = next(finding for finding in machine_checks.machine() if finding.check == "umask")
        assert os.umask(mask) == mask  # it is as it was
    finally:
        os.umask(before)
    assert found.state == state
    assert f"{mask:03o}" in found.message


def test_core_dumps_are_a_hint(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard == 0:
        pytest.skip("core dumps are off for good here")
    script = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_CORE, (4096, {hard}))\n"
        "from modcrypt.cli import run; run()"
    )
    process = as_process([sys.executable, "-c", script, "doctor"], environment())
    answer = subprocess.run(**process, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "hint  core dumps: on: a crash" in answer.stdout


def test_variables_with_secrets_are_reported_by_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "never-to-be-shown"
    for name in ("MODCRYPT_PASSPHRASE", "AWS_SECRET_ACCESS_KEY", "VAULT_TOKEN", "MY_KEY"):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KEYBOARD", value)
    monkeypatch.setenv("TOKEN_FILE", "/run/token")
    text = invoke(tmp_path, "doctor", "--json").stdout
    found = json.loads(text)["checks"][10]
    assert found["state"] == "warn"
    assert found["message"].partition(": ")[2].split(", ") == [
        "AWS_SECRET_ACCESS_KEY", "MODCRYPT_PASSPHRASE", "MY_KEY", "VAULT_TOKEN",
    ]  # fmt: skip
    assert value not in text


# --- files with secrets --------------------------------------------------------------------------


def test_a_private_keyring_and_its_master_keys_are_fine(folder: Path) -> None:
    found = checks(folder, "--policy", "lake.toml")
    assert states_of(found) == [
        ("policy", "ok"), ("keyring", "ok"), ("keyring", "warn"),
        ("master key footer", "ok"), ("master key pii", "ok"),
    ]  # fmt: skip
    assert "not encrypted" in found[2]["message"]
    assert "random bytes" in found[3]["message"]


def test_a_encrypted_keyring_is_distinguished_from_one_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    modcrypt.Keyring.create(tmp_path / "lake.keyring", passphrase=PHRASE).create_key("footer")
    found = checks(tmp_path, *RING, "--offline")
    assert states_of(found) == [("keyring", "ok"), ("keyring", "ok"), ("key service", "hint")]
    assert "encrypted with a passphrase" in found[1]["message"]
    private(tmp_path / "phrase", PHRASE.encode())
    options = ("--passphrase", "file:phrase")
    assert states_of(checks(tmp_path, *RING, *options))[2:] == [
        ("passphrase file", "ok"), ("master key footer", "ok"),
    ]  # fmt: skip
    (tmp_path / "phrase").chmod(0o640)
    result = invoke(tmp_path, "doctor", *RING, *options)
    assert "fail  passphrase file: phrase: other users can access it (mode 0640)" in result.stdout
    by_uri = ("--kms", "file:lake.keyring?passphrase=file:phrase")
    assert ("passphrase file", "fail") in states_of(checks(tmp_path, *by_uri, "--offline", code=1))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_keyring_that_others_may_use_fails(folder: Path, mode: int) -> None:
    (folder / "lake.keyring").chmod(mode)
    found = checks(folder, *RING, "--offline", code=1)
    assert states_of(found)[0] == ("keyring", "fail")
    assert f"{mode:04o}" in found[0]["message"]


@pytest.mark.parametrize(("mode", "state"), [(0o777, "fail"), (0o770, "fail"), (0o1777, "ok")])
def test_a_keyring_in_a_folder_that_others_write_into_fails(
    folder: Path, mode: int, state: str
) -> None:
    folder.chmod(mode)
    found = checks(folder, *RING, "--offline", code=int(state == "fail"))
    assert states_of(found)[0] == ("keyring", state)


def test_a_malformed_or_missing_keyring_fails(folder: Path) -> None:
    private(folder / "lake.keyring", b"{}")
    assert states_of(checks(folder, *RING, "--offline", code=1))[:2] == [
        ("keyring", "ok"), ("keyring", "fail"),
    ]  # fmt: skip
    assert ("key service", "fail") in states_of(checks(folder, *RING, code=1))
    (folder / "lake.keyring").unlink()
    assert states_of(checks(folder, *RING, code=1)) == [
        ("keyring", "fail"),
        ("key service", "fail"),
    ]


def test_files_with_secrets_are_named(folder: Path) -> None:
    (folder / "open.key").write_bytes(OTHER_KEY)
    (folder / "open.key").chmod(0o644)
    files = ("--file", "footer.key", "--file", "open.key", "--file", "absent")
    assert states_of(checks(folder, *files, code=1)) == [
        ("file", "ok"), ("file", "fail"), ("file", "fail"),
    ]  # fmt: skip


# --- policy and key service ----------------------------------------------------------------------


def test_a_wrong_policy_is_reported_with_all_its_faults(folder: Path) -> None:
    (folder / "lake.toml").write_text("footer_kee = 1\ndouble_wrapping = 3\n")
    (found,) = checks(folder, "--policy", "lake.toml", code=1)
    assert (found["check"], found["state"]) == ("policy", "fail")
    assert "footer_kee" in found["message"]
    assert "double_wrapping" in found["message"]
    more = checks(folder, "--policy", "lake.toml", *RING, code=1)  # the rest is looked at
    assert ("master key footer", "ok") in states_of(more)


def test_a_policy_that_others_may_alter_is_a_warning(folder: Path) -> None:
    (folder / "lake.toml").chmod(0o666)
    assert states_of(checks(folder, "--policy", "lake.toml"))[0] == ("policy", "warn")


def test_a_policy_without_a_key_service_is_fine(folder: Path) -> None:
    (folder / "lake.toml").write_text('footer_key = "footer"\n')
    assert states_of(checks(folder, "--policy", "lake.toml")) == [("policy", "ok")]


def test_master_keys_that_are_missing_or_disabled_fail(folder: Path) -> None:
    ring = modcrypt.Keyring(folder / "lake.keyring")
    ring.disable_key("footer")
    ring.destroy_key("pii")
    found = checks(folder, "--policy", "lake.toml", code=1)
    states = dict(states_of(found))
    assert (states["master key footer"], states["master key pii"]) == ("fail", "fail")
    assert "disabled" in next(check for check in found if "footer" in check["check"])["message"]
    named = ("--kms", "file:lake.keyring#nothing")
    assert ("master key nothing", "fail") in states_of(checks(folder, *named, code=1))


def test_a_service_that_only_wraps_or_only_unwraps_is_a_warning(folder: Path) -> None:
    ring = modcrypt.Keyring(folder / "lake.keyring")

    class Writer:
        def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
            return ring.wrap(key, master_key_id, aad=aad)

        def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
            raise PermissionError("no")

    class Reader(Writer):
        def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
            raise PermissionError("no")

    class Liar(Writer):
        def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
            return bytes(16)

    states = [checkup.master_key(kind(), "footer").state for kind in (Writer, Reader, Liar)]
    assert states == ["warn", "warn", "fail"]
    assert checkup.master_key(ring, "footer", b"bound").state == "ok"


def test_a_key_service_that_is_not_there_fails(
    folder: Path, nobody: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hvac")
    note_sleeps(monkeypatch)  # between the attempts
    monkeypatch.setenv("VAULT_TOKEN", "t0ken-of-the-test")
    vault = ("--kms", f"hcvault://127.0.0.1:{nobody}/transit/keys/footer?tls=off")
    result = invoke(folder, "doctor", *vault)
    assert result.exit_code == 1
    assert "fail  master key footer: " in result.stdout
    assert "t0ken" not in result.output
    assert invoke(folder, "doctor", "--offline", *vault).exit_code == 0


def test_a_encrypted_keyring_without_its_passphrase_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    modcrypt.Keyring.create(tmp_path / "lake.keyring", passphrase=PHRASE)
    nobody = subprocess.DEVNULL
    answer = run_program(tmp_path, "doctor", *RING, stdin=nobody, start_new_session=True)
    assert (answer.returncode, answer.stderr) == (1, "")
    assert "fail  key service: the passphrase of file:lake.keyring is needed" in answer.stdout


def test_a_secret_in_a_uri_is_not_repeated(folder: Path) -> None:
    uri = "pkcs11:token=lake?pin-value=31415926"
    for more in ((), ("--json",)):
        result = invoke(folder, "doctor", "--kms", uri, *more)
        assert result.exit_code == 1
        assert "31415926" not in result.output


# --- Parquet files -------------------------------------------------------------------------------


def test_a_parquet_files_master_keys_are_named_and_its_footer_opened(folder: Path) -> None:
    (found,) = checks(folder, "--file", "kms.parquet")
    assert "with master keys footer; its footer is encrypted" in found["message"]
    found = checks(folder, "--policy", "lake.toml", "--file", "kms.parquet")[-1]
    assert "with master keys footer, pii; its footer was decrypted" in found["message"]
    found = checks(folder, *KEY, "--file", "own.parquet")[-1]
    assert "its footer was decrypted and authenticated" in found["message"]


def test_parquet_files_that_are_plain_damaged_or_under_another_key_fail(folder: Path) -> None:
    assert states_of(checks(folder, "--file", "plain.parquet", code=1)) == [("file", "fail")]
    private(folder / "footer.key", FOOTER_KEY)
    assert states_of(checks(folder, *KEY, "--file", "own.parquet", code=1)) == [("file", "fail")]
    flip(folder / "kms.parquet", (folder / "kms.parquet").stat().st_size - 30)
    found = checks(folder, *RING, "--file", "kms.parquet", code=1)[-1]
    assert found["state"] == "fail"


# --- what is a leak ------------------------------------------------------------------------------

HEX, BASE64 = LEAKED.hex(), base64.b64encode(LEAKED).decode()
LONG = base64.b64encode(bytes(range(100, 132))).decode()


def log_of(folder: Path, *events: Any, name: str = "app-1") -> Path:
    """Write a log by hand: a dict is the properties of an environment, text is a plan."""
    lines = []
    for event in events:
        if isinstance(event, str):
            event = {"Event": "SparkListenerSQLExecutionStart", "physicalPlanDescription": event}
        else:
            event = {"Event": "SparkListenerEnvironmentUpdate", "Spark Properties": event}
        lines.append(json.dumps(event, separators=(",", ":")))
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


@each_case(
    ("name", "value"),
    [
        ("spark.hadoop.parquet.encryption.key.list", "k1:whatever"),
        ("parquet.encryption.key.list", f"footer:{BASE64} , pii:{BASE64}"),
        ("spark.hadoop.parquet.encryption.key.access.token", "hunter-of-tokens"),
        ("spark.modcrypt.passphrase", PHRASE),
        ("spark.executorEnv.MODCRYPT_KEY", HEX),
        ("spark.executorEnv.MODCRYPT_KEY", HEX.upper()),
        ("spark.lake.footerKey", LONG),
        ("spark.lake.footer-key", LONG.rstrip("=").replace("+", "-").replace("/", "_")),
        ("spark.hadoop.fs.azure.account.key.lake", base64.b64encode(bytes(range(32))).decode()),
        ("javax.net.ssl.keyStorePassword", "changeit"),
    ],
)
def test_a_property_with_a_secret_is_a_failure(folder: Path, name: str, value: str) -> None:
    log_of(folder, {"spark.app.name": "x"}, {name: value})
    result = invoke(folder, "doctor", "--spark-event-log", "app-1", "--json")
    found = json.loads(result.stdout)["checks"][-1]
    assert (result.exit_code, found["state"]) == (1, "fail")
    where = found["where"]
    assert (where["file"], where["line"], where["name"]) == ("app-1", 2, name)
    assert f"app-1, line 2, {name}: " in found["message"]
    for piece in value.replace(" , ", ":").split(":"):
        assert piece in ("k1", "footer", "pii") or piece not in result.output


@each_case(
    "text",
    [
        f"CREATE TABLE t USING parquet OPTIONS (footerkey '{HEX}', path '/x')",
        f'OPTIONS ("encryption.key" = "{BASE64}")',
        f"Arguments: file:/out, false, Parquet, [footerkey={BASE64}, path=/out]",
        f"SetCommand (spark.modcrypt.passphrase,Some({PHRASE}))",
        f"spark-submit --conf spark.modcrypt.passphrase={PHRASE} job.py",
        f"-Dmaster.key={LONG}",
        "token hvs.CAESIAbcdefghijklmnopqrstuvwxyz012345",
        "-----BEGIN RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_in_running_text_is_a_failure(folder: Path, text: str) -> None:
    log_of(folder, text)
    answer = invoke(folder, "doctor", "--spark-event-log", "app-1")
    assert answer.exit_code == 1
    assert "fail  event log: app-1, line 1" in answer.stdout
    for secret in (HEX, BASE64, PHRASE, LONG, "CAESIA"):
        assert secret not in answer.output


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({"spark.hadoop.parquet.encryption.footer.key": HEX}, "an id may look so"),
        ("Filter (token = 'abc')", "a condition on a column"),
        ("AKIAIOSFODNN7EXAMPLE", "an id, but a secret goes with it"),
    ],
)
def test_what_may_be_a_secret_is_a_warning(folder: Path, event: Any, why: str) -> None:
    log_of(folder, event)
    assert states_of(checks(folder, "--spark-event-log", "app-1")) == [("event log", "warn")], why


@each_case(
    "event",
    [
        {"spark.hadoop.parquet.encryption.key.list": "*********(redacted)"},
        {"spark.hadoop.parquet.encryption.footer.key": "kf"},
        {"spark.hadoop.parquet.encryption.column.keys": "k1:ssn,name;k2:address"},
        {"spark.modcrypt.passphrase": "env:MODCRYPT_PASSPHRASE"},
        {"spark.modcrypt.passphrase": ""},
        {"spark.ssl.keyPasswordFile": "x"},
        {"spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.Simple"},
        {"spark.redaction.regex": "(?i)secret|password|token|key[.]list"},
        {"spark.hadoop.parquet.encryption.kms.client.class": "com.example.lake.KmsClient"},
        {"spark.lake.key": "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1"},
        {"spark.lake.data.key.length.bits": "128"},
        {"spark.sql.shuffle.partitions": HEX},
        "Project [key#12, token#13 AS secret#14] SELECT key FROM keys WHERE token IS NOT NULL",
        "SELECT parquetEncryptionKeyListedByName FROM key",
    ],
)
def test_what_is_no_secret_is_not_reported(folder: Path, event: Any) -> None:
    log_of(folder, event)
    assert states_of(checks(folder, "--spark-event-log", "app-1")) == [("event log", "ok")]


@pytest.mark.parametrize("key", [FOOTER_KEY, COLUMN_KEY, OTHER_KEY])
def test_keys_that_are_in_use_are_found_under_any_name(folder: Path, key: bytes) -> None:
    """Two are in the keyring, the third in the file of --key."""
    spellings = (
        key.hex(), key.hex().upper(), base64.b64encode(key).decode(),
        base64.urlsafe_b64encode(key).decode().rstrip("="),
    )  # fmt: skip
    for number, text in enumerate(spellings):
        log_of(folder, {"spark.innocent": f"a{{{text}}}b"}, name=f"app-{number}")
        options = ("--spark-event-log", f"app-{number}")
        assert states_of(checks(folder, *options)) == [("event log", "ok")]
        found = checks(folder, *RING, *KEY, *options, code=1)[-1]
        assert (found["where"]["name"], found["where"]["line"]) == ("spark.innocent", 1)
        assert text not in json.dumps(found)


def test_a_key_in_the_place_of_a_name_is_not_repeated(folder: Path) -> None:
    log_of(folder, {f"spark.key.{BASE64}": "x", f"passphrase.{HEX}": PHRASE})
    result = invoke(folder, "doctor", "--spark-event-log", "app-1")
    assert result.exit_code == 1
    assert "(not repeated)" in result.stdout
    assert HEX not in result.output


def test_a_hostile_name_cannot_forge_lines_or_colours(folder: Path) -> None:
    log_of(folder, {"a\nok    all: fine\x1b[2J.passphrase": PHRASE})
    result = invoke(folder, "doctor", "--spark-event-log", "app-1")
    assert "\x1b" not in result.stdout
    assert r"a\nok    all: fine\x1b[2J.passphrase" in result.stdout


def test_a_secret_that_comes_again_is_one_finding_with_its_lines(folder: Path) -> None:
    log_of(folder, {"a": "b"}, *[{"spark.modcrypt.passphrase": PHRASE}] * 5)
    (found,) = checks(folder, "--spark-event-log", "app-1", code=1)
    assert (found["where"]["line"], found["where"]["lines"]) == (2, 5)


# --- the files of logs ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4"])
def test_compressed_logs_are_read_to_where_they_break_off(folder: Path, codec: str) -> None:
    noise = {"spark.noise": base64.b64encode(os.urandom(3000)).decode()}
    path = log_of(folder, {"spark.modcrypt.passphrase": PHRASE}, *[noise] * 3)
    with pa.CompressedOutputStream(str(folder / "whole"), codec) as out:
        out.write(path.read_bytes())
    assert states_of(checks(folder, "--spark-event-log", "whole", code=1)) == [
        ("event log", "fail")
    ]
    rest = [os.urandom(200_000).hex() for _ in range(3)]
    long = log_of(folder, {"spark.modcrypt.passphrase": PHRASE}, *({"n": value} for value in rest))
    with pa.CompressedOutputStream(str(folder / "whole"), codec) as out:
        out.write(long.read_bytes())
    data = (folder / "whole").read_bytes()
    (folder / "cut").write_bytes(data[: len(data) * 2 // 3])
    found = checks(folder, "--spark-event-log", "cut", code=1)
    assert states_of(found) == [("event log", "fail"), ("event log", "warn")]
    assert "only the first 2 events were read" in found[1]["message"]


def test_a_folder_is_searched_with_what_is_below_it(folder: Path) -> None:
    below = folder / "logs" / "eventlog_v2_app-2"
    below.mkdir(parents=True)
    log_of(folder / "logs", {"spark.a": "b"}, name="app-1")
    log_of(below, {"spark.modcrypt.passphrase": PHRASE}, name="events_1_app-2")
    (below / "appstatus_app-2").touch()
    found = checks(folder, "--spark-event-log", "logs", code=1)
    assert states_of(found) == [("event log", "ok"), ("event log", "fail")]
    assert found[1]["where"]["file"] == "logs/eventlog_v2_app-2/events_1_app-2"


def test_what_is_no_log_is_reported(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "lzf").write_bytes(b"ZV\x01rest")
    for path, state in (("lake.toml", "warn"), ("empty", "warn"), ("lzf", "warn"), ("no", "fail")):
        found = checks(folder, "--spark-event-log", path, code=int(state == "fail"))
        assert states_of(found) == [("event log", state)]


def test_an_endless_line_is_not_read_into_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MAX_LINE", 1 << 20)
    (folder / "bomb").write_bytes(gzip.compress(bytes(64 << 20)))
    (found,) = checks(folder, "--spark-event-log", "bomb")
    assert "1048576 bytes" in found["message"]


def test_lines_that_are_cut_or_no_json_are_searched_as_text(folder: Path) -> None:
    path = log_of(folder, {"spark.a": "b"}, {"spark.modcrypt.passphrase": PHRASE})
    path.write_bytes(path.read_bytes().rstrip(b"}\n"))
    (found,) = checks(folder, "--spark-event-log", "app-1", code=1)
    assert (found["where"]["name"], found["where"]["line"]) == ("spark.modcrypt.passphrase", 2)


@given(
    st.one_of(
        st.binary(max_size=300),
        st.recursive(
            st.text(max_size=20)
            | st.sampled_from(["key=", "passphrase '", HEX, BASE64, "[[", "=("]),
            lambda inside: (
                st.lists(inside, max_size=4)
                | st.dictionaries(
                    st.sampled_from(["a", "key", "token", "Event"]), inside, max_size=3
                )
            ),
        ).map(lambda value: b'{"Event":' + json.dumps(value).encode() + b"}\n"),
        st.binary(max_size=100).map(lambda data: b"LZ4Block" + data),
        st.binary(max_size=100).map(lambda data: b"\x82SNAPPY\0" + data),
        st.binary(max_size=100).map(lambda data: b"\x28\xb5\x2f\xfd" + data),
        st.binary(max_size=100).map(lambda data: b"\x1f\x8b" + data),
    )
)
def test_any_bytes_are_searched_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(data)
    for log in search_event_log(str(path), [modcrypt.Key(LEAKED)]):
        shown = repr(log)
        assert HEX not in shown
        assert BASE64 not in shown


# --- logs that Spark wrote -----------------------------------------------------------------------

# One JVM for all of them; each session has a log of its own.
SPARK = """
import os, sys
from pyspark.sql import SparkSession
folder, key, phrase = sys.stdin.read().split()
for codec in ("clean", "none", "zstd", "lz4", "snappy", "lzf"):  # a JVM keeps its first
    os.mkdir(f"{folder}/{codec}")
    settings = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.sql.warehouse.dir": folder,
        "spark.local.dir": folder, "spark.log.level": "OFF", "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/{codec}",
        "spark.eventLog.rolling.enabled": str(codec == "zstd").lower(),
        "spark.eventLog.compress": str(codec not in ("clean", "none")).lower(),
        "spark.eventLog.compression.codec": "zstd" if codec in ("clean", "none") else codec,
    }
    if codec != "clean":
        settings["spark.hadoop.parquet.encryption.key.list"] = "footer:" + key
    builder = SparkSession.builder.master("local[1]").appName("leaks").config(map=settings)
    session = builder.getOrCreate()
    frame = session.range(3).selectExpr("id as key").write.mode("overwrite")
    if codec != "clean":
        session.sql(f"SET spark.modcrypt.passphrase={phrase}").collect()
        frame = frame.option("footerkey", key)
    if codec in ("clean", "none"):
        frame.parquet(folder + "/out.parquet")
    session.stop()
"""


@pytest.fixture(scope="module")
def spark_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one folder of logs per codec, and one for a clean session."""
    if reason := why_unavailable():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("spark")
    subprocess.run(
        [sys.executable, "-c", SPARK],
        input=f"{folder}\n{BASE64}\n{PHRASE}\n", text=True, check=True, capture_output=True,
        env={**environment(), "PYTHONWARNINGS": "ignore"}, timeout=300,
    )  # fmt: skip
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_what_leaks_into_a_log_of_spark_is_found(spark_logs: Path, codec: str) -> None:
    result = invoke(spark_logs, "doctor", "--spark-event-log", codec, "--json")
    found = [check["where"] for check in json.loads(result.stdout)["checks"] if check["where"]]
    assert result.exit_code == 1
    assert {leak["name"] for leak in found} >= {
        "spark.hadoop.parquet.encryption.key.list",
        "parquet.encryption.key.list",
        "spark.modcrypt.passphrase",
    }
    assert ("footerkey" in {leak["name"] for leak in found}) == (codec == "none")  # it wrote a file
    for secret in (BASE64, HEX, PHRASE):
        assert secret not in result.output
    if codec == "none":
        (log,) = (spark_logs / codec).glob("local-*")
        lines = log.read_text().splitlines()
        for leak in found:
            assert BASE64 in lines[leak["line"] - 1] or PHRASE in lines[leak["line"] - 1]


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["lz4", "snappy", "lzf"])
def test_a_codec_of_javas_own_is_reported_with_what_to_do(spark_logs: Path, codec: str) -> None:
    result = invoke(spark_logs, "doctor", "--spark-event-log", codec, "--json")
    (found,) = json.loads(result.stdout)["checks"][len(OF_THE_MACHINE) :]
    assert (found["check"], found["state"]) == ("event log", "warn")
    assert f"cannot decompress Spark's {codec}" in found["message"]
    assert "spark.eventLog.compression.codec=zstd" in found["message"]


@pytest.mark.slow
def test_nothing_is_found_in_a_log_of_spark_without_leaks(spark_logs: Path) -> None:
    result = invoke(spark_logs, "doctor", "--spark-event-log", "clean", "--json")
    (found,) = json.loads(result.stdout)["checks"][len(OF_THE_MACHINE) :]
    assert (found["check"], found["state"]) == ("event log", "ok")
    assert "nothing found" in found["message"]


# --- help ----------------------------------------------------------------------------------------


def test_the_examples_of_the_help_text_run(folder: Path) -> None:
    """Typed as they stand, in a folder with the files they name."""
    (folder / "kms.parquet").rename(folder / "orders.kms.parquet")
    (folder / "plain.parquet").rename(folder / "orders.parquet")
    (folder / "spark-events").mkdir()
    log_of(folder / "spark-events", {"spark.a": "b"})
    examples = examples_of(folder, "doctor")
    assert len(examples) == 4
    for example in examples:
        result = invoke(folder, *example)
        assert (result.exit_code, result.stderr) == (0, "")
