"""`--spark MASTER`: the commands on folders, done by Spark, against the library and PyArrow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import modcrypt as mc
from modcrypt.cli.app import program
from tests.support.cli.program import to_key
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.mask_hash import mask_hash
from tests.support.signing import PEOPLE, save_writer, signed_encryption, writer_key
from tests.support.tables import read_with_pyarrow, small_table
from tests.support.tables import write_plain as write
from tools.writer_vectors import FILES

pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)

Run: TypeAlias = Callable[..., Result]

NAMES = ("day=1/part 0.parquet", "day=1/part-1.parquet", "day=2/part-0.parquet")

HASH_KEY = b"a key for hashes"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    for number, name in enumerate(NAMES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, small_table(10 + number))
    return folder


@pytest.fixture
def run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the program in this process, on the session of the tests."""
    asked: list[str] = []

    @contextmanager
    def session(master: str, name: str, settings: dict[str, str]) -> Iterator[Any]:
        asked.append(master)
        yield spark

    monkeypatch.setattr("modcrypt.spark.engine.spark_session", session)
    monkeypatch.chdir(tmp_path)

    def runs(*arguments: object, code: int = 0, on_spark: bool = True) -> Result:
        asked.clear()
        result = CliRunner().invoke(
            program, [str(argument) for argument in (*arguments, "--spark", "here")]
        )
        assert result.exit_code == code, result.output
        assert asked == ["here"] * on_spark
        return result

    return runs


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    """Write keys to files; return the options that name them, relative to the folder."""
    given = {"f.key": FOOTER_KEY, "c.key": COLUMN_KEY, "o.key": OTHER_KEY, "h.key": HASH_KEY}
    for name, key in given.items():
        (tmp_path / name).write_text(key.hex())
        (tmp_path / name).chmod(0o600)
    return ["--key", "file:f.key", "--column-key", "name=file:c.key"]


@pytest.fixture
def ring(tmp_path: Path) -> mc.Keyring:
    """Create a keyring under a passphrase, `lake.keyring` in the test's folder."""
    (tmp_path / "pass").write_text("of many words\n")
    (tmp_path / "pass").chmod(0o600)
    ring = mc.Keyring.create(tmp_path / "lake.keyring", passphrase="of many words")
    for name in ("kf", "kc"):
        ring.create_key(name)
    return ring


KMS = ("--kms", "file:lake.keyring#kf", "--passphrase", "file:pass")


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_encrypt_and_decrypt_folders_with_keys_in_files(
    run: Run, lake: Path, tmp_path: Path, keys: list[str]
) -> None:
    result = run("encrypt", *keys, "--plaintext-column", "id", "lake", "out")
    assert result.stdout.startswith("3 files: 3 encrypted; ")
    assert files_in(tmp_path / "out") == list(NAMES)
    properties = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY}, require_encrypted=("name",)
    )
    for name in NAMES:
        found = mc.read_table(tmp_path / "out" / name, properties)
        assert found.equals(pq.ParquetFile(lake / name).read())

    assert run("decrypt", *keys, "out", "back").stdout.startswith("3 files: 3 decrypted; ")
    for name in NAMES:
        assert (tmp_path / "back" / name).read_bytes() == (lake / name).read_bytes()
    assert run("decrypt", *keys, "out", "back").stdout == "3 files: 3 current\n"


def test_every_option_of_encryption_reaches_the_executors(
    run: Run, lake: Path, tmp_path: Path, keys: list[str]
) -> None:
    """A local run of the same command finds the work of Spark done."""
    command = [
        "encrypt", *keys, "--plaintext-footer", "--aad-prefix", "hex:ff00", "--shared-aad-prefix",
        "--footer-key-metadata", "f", "--column-key-metadata", "name=n", "lake", "out",
    ]  # fmt: skip
    run(*command)
    result = CliRunner().invoke(program, command)
    assert result.stdout == "3 files: 3 current\n", result.output
    properties = mc.FileDecryptionProperties(
        key_retriever={b"f": FOOTER_KEY, b"n": COLUMN_KEY}.get, aad_prefix=b"\xff\x00"
    )
    found = mc.read_table(tmp_path / "out" / NAMES[0], properties)
    assert found.equals(pq.ParquetFile(lake / NAMES[0]).read())


def test_rows_counts_and_exit_codes_are_those_of_a_local_run(
    run: Run, lake: Path, tmp_path: Path, keys: list[str]
) -> None:
    """Each command runs twice here and twice on Spark: a second run finds the work done."""
    for where in ("here", "spark"):
        shutil.copytree(lake, tmp_path / where / "plain")
        (tmp_path / where / "old").mkdir()
        (tmp_path / where / "old" / "a.parquet").write_bytes(FILES["short-chunks"]())
    shutil.rmtree(lake)
    other, masks = to_key(tmp_path, "o.key"), ("--hash", "name", "--hash-key", "file:h.key")
    commands: list[tuple[int, tuple[object, ...]]] = [
        (0, ("encrypt", *keys, "plain", "out")),
        (2, ("encrypt", "--key", "file:o.key", "plain", "out")),  # encrypted in another way
        (2, ("encrypt", "--key", "file:o.key", "--in-place", "out")),
        (0, ("rekey", *keys, *other, "out", "moved")),
        (0, ("rekey", *keys, *other, "--keep-unchanged", "out", "kept")),
        (0, ("encrypt", *keys[:2], "--repair", "old", "mended")),
        (0, ("decrypt", *keys[:2], "--no-exact", "mended", "canonical")),
        (0, ("mask", *keys, *masks, "--drop", "id", "out", "masked")),
        (0, ("mask", *keys, *masks, "--in-place", "out")),
        (0, ("share", *keys, *other, "--column", "id", "out", "shared")),
        (0, ("decrypt", *keys[:2], "--on-missing-key", "drop", "out", "back")),
        (2, ("decrypt", "--key", "file:o.key", "moved", "plain")),
        (0, ("decrypt", "--key", "file:o.key", "--in-place", "moved")),
        (0, ("encrypt", "--key", "file:o.key", "--in-place", "back")),
        (0, ("rekey", "--key", "file:o.key", *to_key(tmp_path, "h.key"), "--in-place", "shared")),
    ]
    for code, command in commands:
        named = [str(part) for part in command]
        for number in range(2):
            found = []
            for where, on in (("here", ()), ("spark", ("--spark", "here"))):
                paths = {
                    "plain", "old", "out", "moved", "kept", "mended", "canonical", "masked",
                    "shared", "back",
                }  # fmt: skip
                reported = [f"{where}/{part}" if part in paths else part for part in named]
                result = CliRunner().invoke(program, [*reported, *on, "--json"])
                assert result.exit_code == code, result.output
                found.append(_without_places(lines(result), where, str(tmp_path)))
            assert found[0] == found[1], command
            results = {row["result"] for row in found[0][:-1]}
            failed = {"different", "file"} if code else {"current"}
            assert results <= failed or number == 0, command


def test_several_paths_and_scans_are_examined_as_by_a_local_run(
    run: Run, lake: Path, tmp_path: Path, keys: list[str]
) -> None:
    run("encrypt", *keys, "lake", "out")
    out = tmp_path / "out"
    (out / "none.parquet").write_bytes(b"no Parquet file")
    two = out / NAMES[0], out / NAMES[2]
    commands: list[tuple[object, ...]] = [
        ("verify", *keys[:2], "--strict", *two), ("verify", *keys, "--strict", *two),
        ("verify", lake, out), ("inspect", lake, out), ("keys", "scan", out),
    ]  # fmt: skip
    for command in commands:
        found = []
        for on in ((), ("--spark", "here")):
            result = CliRunner().invoke(program, [*map(str, command), *on, "--json"])
            rows = lines(result)
            for row in rows:
                row.pop("seconds", None)
            found.append((result.exit_code, sorted(rows, key=json.dumps)))
        assert found[0] == found[1], command


def test_shredding_and_its_proof_are_those_of_a_local_run(run: Run, tmp_path: Path) -> None:
    ring = mc.Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    for name in ("kf", "k7"):
        ring.create_key(name)
    lake = tmp_path / "here" / "lake"
    lake.mkdir(parents=True)
    for number, internal in enumerate((True, False, False)):
        policy = mc.Policy(
            footer_key="kf", column_keys={"k7": ["name"]}, internal_key_material=internal
        )
        path = lake / f"part-{number}.parquet"
        mc.write_table(small_table(9), path, mc.KeyTools(ring).encryption(policy))
    shutil.copy(lake / "part-0.parquet", lake / ".copy")
    shutil.copy(lake / "_KEY_MATERIAL_FOR_part-1.parquet.json", lake / "_kept.json")
    (lake / "none.parquet").write_bytes(b"no Parquet file")
    shutil.copytree(lake, tmp_path / "spark" / "lake")

    def shred(*options: str) -> int:
        """Return the exit code, the same on Spark; as are the rows and the proof."""
        found = []
        for where, on in (("here", ()), ("spark", ("--spark", "here"))):
            folder = str(tmp_path / where / "lake")
            command = ["shred", "--kms", "file:lake.keyring", *options, *on, "--json", folder]
            result = CliRunner().invoke(program, command)
            rows = [json.loads(line.replace(folder, "")) for line in result.stdout.splitlines()]
            for row in rows:
                for varying in ("seconds", "time", "sha256"):
                    row.pop(varying, None)
            found.append((result.exit_code, sorted(rows, key=json.dumps)))
        assert found[0] == found[1]
        return found[0][0]

    tenant = ("--master-key", "kf", "--destroy-master-key")
    assert shred("--column", "name", "--prove") == 1  # all is readable
    assert shred("--column", "name", "--prove", "--yes") == 1  # copies of keys were found
    assert shred(*tenant) == 1  # the master key is kept, as a file has failed
    for where in ("here", "spark"):
        for name in ("none.parquet", ".copy", "_kept.json"):
            (tmp_path / where / "lake" / name).unlink()
    assert shred(*tenant) == 0
    assert shred("--all", "--prove", "--yes") == 0
    assert shred("--all", "--yes") == 0  # again


def _without_places(rows: list[dict[str, Any]], where: str, folder: str) -> list[dict[str, Any]]:
    """Return rows in order, without durations and without what distinguishes two runs."""
    text = json.dumps(rows).replace(f"{folder}/", "").replace(f"{where}/", "")
    reported: list[dict[str, Any]] = json.loads(text)
    for row in reported:
        row.pop("seconds")
        row.pop("source_bytes")
        row.pop("destination_bytes", None)
    return sorted(reported[:-1], key=lambda row: str(row["source"])) + reported[-1:]


def test_rekey_takes_the_options_of_both_keys(
    run: Run, lake: Path, tmp_path: Path, keys: list[str]
) -> None:
    run("encrypt", *keys, "lake", "out")
    result = run("rekey", *keys, *to_key(tmp_path, "o.key"), "--in-place", "out", "--json")
    *rows, totals = lines(result)
    assert sorted(row["source"] for row in rows) == [str(tmp_path / "out" / n) for n in NAMES]
    assert {row["result"] for row in rows} == {"rekeyed"}
    assert (totals["files"], totals["rekeyed"], totals["failed"]) == (3, 3, 0)
    for name in NAMES:
        found = read_with_pyarrow(tmp_path / "out" / name, OTHER_KEY)
        assert found.equals(pq.ParquetFile(lake / name).read())


def test_mask_share_and_inspect_take_folders(
    run: Run, lake: Path, tmp_path: Path, keys: list[str]
) -> None:
    run("encrypt", *keys, "lake", "sealed")
    masks = ("--hash", "name", "--hash-key", "file:h.key", "--drop", "address")
    result = run("mask", *keys, *masks, *to_key(tmp_path, "o.key"), "sealed", "masked", "--json")
    assert {row["result"] for row in lines(result)[:-1]} == {"masked"}
    again = ("mask", *keys, *masks, "--in-place", "sealed")
    assert run(*again).stdout.startswith("3 files: 3 masked; ")
    assert run(*again).stdout == "3 files: 3 current\n"
    both = (*keys, "--column", "id", *to_key(tmp_path, "o.key"))
    assert run("share", *both, "sealed", "partner").stdout.startswith("3 files: 3 shared; ")
    for number, name in enumerate(NAMES):
        before = small_table(10 + number)
        ours = read_with_pyarrow(tmp_path / "masked" / name, OTHER_KEY)
        assert ours.column_names == [name for name in before.column_names if name != "address"]
        expected = [
            None if value is None else mask_hash(HASH_KEY, value.encode())
            for value in before["name"].to_pylist()
        ]
        assert ours["name"].to_pylist() == expected
        theirs = read_with_pyarrow(tmp_path / "partner" / name, OTHER_KEY)
        assert theirs.equals(before.select(["id"]))

    reported = run("inspect", "sealed").stdout.splitlines()
    assert reported[1].split()[:2] == ["encrypted", "AES_GCM_V1"]
    (tmp_path / "sealed" / NAMES[0]).write_bytes(b"no Parquet file")
    found = lines(run("inspect", *keys, "sealed", "--json", code=1))
    by_name = {row["name"]: row for row in found}
    assert by_name[str(tmp_path / "sealed" / NAMES[0])]["error"] == "format"
    last = by_name[str(tmp_path / "sealed" / NAMES[2])]
    assert last["num_rows"] == 12
    assert [column["has_key"] for column in last["columns"]] == [True] * 7


def test_a_keyring_of_options_or_of_a_policy_is_rotated_scanned_and_verified(
    run: Run, lake: Path, tmp_path: Path, ring: mc.Keyring
) -> None:
    policy = 'kms = "file:lake.keyring?passphrase=file:pass"\nfooter_key = "kf"\n'
    (tmp_path / "lake.toml").write_text(policy + '[column_keys]\nkc = ["name"]\n')
    run("encrypt", *KMS, "--column-master-key", "name=kc", "lake", "out")
    assert run("encrypt", "--policy", "lake.toml", "lake", "out").stdout == "3 files: 3 current\n"

    reported = run("keys", "scan", "--policy", "lake.toml", "out").stdout
    assert [line.split() for line in reported.splitlines()[1:]] == [
        ["name", "kc", "1", "internal", "3"],
        ["(footer)", "kf", "1", "internal", "3"],
    ]
    assert "'kc', not under 'kf'" in run("keys", "rotate", *KMS, "out", code=3).stdout
    both = (*KMS, "--master-key", "kc")  # the URI says that all is under kf
    result = run("keys", "rotate", *both, "--key", "kf", "out")
    assert result.stdout.endswith("3 files: 3 rotated; 3 keys\n")
    assert run("keys", "rotate", *both, "out").stdout == "3 files: 3 current; 0 keys\n"
    found = lines(run("keys", "scan", *both, "out", "--json"))
    assert {(row["master_key_id"], row["version"]) for row in found} == {("kf", "2"), ("kc", "1")}
    assert len(found) == 6

    result = run("verify", *both, "--strict", "out")
    assert result.stdout.startswith("3 files: 3 authentic; ")
    *rows, totals = lines(run("verify", *both, "out", "--json"))
    assert {row["name"]: row["modules"] for row in rows} == {
        str(tmp_path / "out" / name): mc.verify_parquet(
            tmp_path / "out" / name, mc.KeyTools(ring).decryption()
        ).modules
        for name in NAMES
    }
    assert (totals["ok"], totals["complete"], totals["num_rows"]) == (True, True, 33)


@pytest.mark.parametrize("state", ["whole", "copied", "damaged", "no keys", "one file"])
def test_verify_and_inspect_print_the_json_of_a_local_run(
    run: Run, lake: Path, tmp_path: Path, keys: list[str], state: str
) -> None:
    run("encrypt", *keys, "--aad-prefix", "same", "--shared-aad-prefix", "lake", "out")
    out = tmp_path / "out"
    if state == "copied":
        shutil.copy(out / NAMES[0], out / "copy.parquet")
    elif state == "damaged":
        (out / NAMES[0]).write_bytes(b"no Parquet file")
        data = bytearray((out / NAMES[1]).read_bytes())
        data[100] ^= 1
        (out / NAMES[1]).write_bytes(data)
    elif state == "one file":
        out = out / NAMES[2]
    given = [] if state == "no keys" else keys
    for command in (["verify"], ["verify", "--strict"], ["inspect"]):
        arguments = [*command, *given, str(out), "--json"]
        local = CliRunner().invoke(program, arguments)
        there = run(*arguments, code=local.exit_code)
        rows, expected = lines(there), lines(local)
        for fields in (*rows, *expected):
            fields.pop("seconds", None)
        assert rows == expected


def test_verify_reports_faults_copies_and_what_no_key_opened(
    run: Run, lake: Path, tmp_path: Path, keys: list[str]
) -> None:
    run("encrypt", *keys, "lake", "out")
    assert run("verify", "out", code=3).stdout == "3 files: 3 partial; 0 pages and parts\n"
    shutil.copy(tmp_path / "out" / NAMES[0], tmp_path / "out" / "copy.parquet")
    reported = run("verify", *keys, "out", code=1).stdout
    assert "2 files have the same aad_file_unique" in reported
    (tmp_path / "out" / "copy.parquet").write_bytes(b"no Parquet file")
    reported = run("verify", *keys, "out", code=1).stdout
    assert "copy.parquet" in reported
    assert "3 authentic, 1 failed" in reported


def test_verify_reports_a_missing_file_that_the_seal_names(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "signed"
    out.mkdir()
    for name in ("a.parquet", "b.parquet"):
        mc.write_table(PEOPLE, out / name, signed_encryption())
    mc.jobs.seal_dataset(out, writer_key())
    (tmp_path / "writer.pub").write_text(f"{writer_key().verifier}\n")
    for name, key in (("footer.key", FOOTER_KEY), ("name.key", COLUMN_KEY)):
        (tmp_path / name).write_bytes(key)
        (tmp_path / name).chmod(0o600)
    keys = ("--key", "file:footer.key", "--column-key", "name=file:name.key")
    how = (*keys, "--signed-by", "writer.pub", "--seal-at-least", "1")
    run("verify", *how, "signed")
    (out / "b.parquet").unlink()
    missing = "files of the dataset's seal are missing: "
    assert f"{missing}b.parquet" in run("verify", *how, "signed", code=1).stdout
    (out / "a.parquet").unlink()
    reported = run("verify", *how, "signed", code=1, on_spark=False).stdout
    assert f"{missing}a.parquet, b.parquet" in reported


def test_verify_reports_links_to_what_a_folder_has(
    run: Run, lake: Path, tmp_path: Path, keys: list[str]
) -> None:
    run("encrypt", *keys, "lake", "out")
    run("verify", *keys, "out")
    for link, target in (("out/day=9", "day=1"), ("out/day=2/copy.parquet", "part-0.parquet")):
        (tmp_path / link).symlink_to(target)
        reported = run("verify", *keys, "out", code=1).stdout
        assert ("read rows twice" in reported, link.split("/")[-1] in reported) == (True, True)
        (tmp_path / link).unlink()


def test_executors_sign_files_and_sign_them_again(run: Run, lake: Path, tmp_path: Path) -> None:
    ring = mc.Keyring.create(tmp_path / "ring", plaintext=True)
    for name in ("kf", "kg"):
        ring.create_key(name)
    save_writer(tmp_path)
    (tmp_path / "word").write_text("correct horse battery staple")
    (tmp_path / "word").chmod(0o600)
    mc.SigningKey.generate().save(tmp_path / "other.key", (tmp_path / "word").read_text())
    kms, sign = ("--kms", "file:ring"), ("--sign", "file:writer.key")
    require = (*kms, "--signed-by", "writer.pub", "out")
    (tmp_path / "kg.toml").write_text('kms = "file:ring"\nfooter_key = "kg"\n')
    rekey = ("rekey", *kms, "--to", "kg.toml", *sign, "out")
    run("encrypt", *kms, "--master-key", "kf", *sign, "lake", "out")
    run("verify", *require)
    for command in (
        ("keys", "rotate", *kms, "--what", "dek", *sign, "out"),
        ("keys", "rotate", *kms, "--what", "kek", *sign, "out"),
        (*rekey, "--in-place"),
    ):
        assert "signature" not in run(*command).stderr
        run("verify", *require)
    rotate = ("keys", "rotate", *kms, "--what", "dek")
    other = ("--sign", "file:other.key", "--sign-passphrase", "file:word", "out")
    assert "3 files: 3 failed" in run(*rotate, *other, code=1).stdout
    run("verify", *require)  # what another writer has signed is left as it was
    assert "pass its passphrase" in run(*rotate, *other[:2], "out", code=3).stderr
    assert "signature of 3 files was dropped" in run(*rotate, "out").stderr
    run("verify", *require, code=1)


def test_failures_are_a_table_and_an_exit_code(
    run: Run, lake: Path, tmp_path: Path, keys: list[str]
) -> None:
    (lake / NAMES[1]).write_bytes(b"this is no Parquet file")
    reported = run("encrypt", *keys, "lake", "out", code=1).stdout
    assert NAMES[1] in reported
    assert "\n3 files: 2 encrypted, 1 failed; " in reported
    shutil.rmtree(tmp_path / "out")
    shutil.copytree(lake, tmp_path / "out")
    (lake / NAMES[1]).unlink()
    reported = run("encrypt", *keys, "lake", "out", code=2).stdout  # destinations that are there
    assert "not encrypted" in reported
    said = run("encrypt", *keys, "--force", "lake", "out").stdout
    assert said.startswith("2 files: 2 encrypted; ")


def test_a_dry_run_writes_nothing(run: Run, lake: Path, tmp_path: Path, keys: list[str]) -> None:
    *would, summary = run("encrypt", *keys, "--dry-run", "lake", "out").stdout.splitlines()
    assert [line.split()[:2] for line in would] == [["would", "encrypt"]] * 3
    assert summary.startswith("3 files: 3 to encrypt; ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["encrypt", "--key", "fd:0", "lake", "out"], "--key: Spark's executors cannot read"),
        (
            ["encrypt", "--key", "file:f.key", "--record", "r", "lake", "out"],
            "--record: not supported with",
        ),
        (["encrypt", "--key", "file:f.key", "lake"], "--in-place"),
        (["encrypt", "--key", "file:f.key", "--in-place", "lake", "out"], "takes one SOURCE"),
        (["encrypt", "--key", "file:f.key", "--column-key", "a=fd:7", "lake", "out"], "descriptor"),
        (
            ["decrypt", "--key", "file:f.key", "--audit", "a", "lake", "out"],
            "--audit: not supported with",
        ),
        (["decrypt", "--key", "file:f.key", "--no-check-footer", "lake", "out"], "check-footer"),
        (["rekey", "--key", "file:f.key", "--new-key-fd", "0", "lake", "out"], "descriptor"),
        (["rekey", "--key", "file:f.key", "lake", "out"], "by --to"),
        (["keys", "rotate", "lake"], "a key service is needed"),
        (["shred", "--all", "--record", "r", "lake"], "--record: not supported with"),
        (
            ["verify", "--key", "file:f.key", "--html", "x.html", "lake"],
            "--html: not supported with",
        ),
        (["inspect", "--modules", "lake"], "--modules: not supported with"),
        (["share", "--key", "file:f.key", "--column", "id", "lake", "out"], "by --to"),
        (["mask", "--key", "file:f.key", "lake", "out"], "--null, --hash or --drop"),
        (["mask", "--key", "file:f.key", "--hash", "id", "lake", "out"], "--hash needs a key"),
        (
            ["mask", "--key", "file:f.key", "--hash", "id", "--hash-key", "fd:0", "lake", "out"],
            "--hash-key: Spark's executors cannot read",
        ),
        (
            ["mask", "--key", "file:f.key", "--null", "id", "--hash-key", "env:K", "lake", "out"],
            "--hash-key: name the columns to hash by --hash",
        ),
    ],
)
def test_what_spark_can_not_do_is_refused_before_it_is_started(
    run: Run, lake: Path, keys: list[str], arguments: list[str], words: str
) -> None:
    result = run(*arguments, code=2, on_spark=False)
    assert words in result.stderr
    assert FOOTER_KEY.hex() not in result.output


def test_a_passphrase_that_executors_do_not_have_fails(
    run: Run, lake: Path, tmp_path: Path, ring: mc.Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    kms = ["--kms", "file:lake.keyring#kf"]
    assert run("keys", "scan", *kms, "lake", code=3).stdout == ""
    monkeypatch.setenv("MODCRYPT_PASSPHRASE", "of many words")  # on the driver alone
    reported = run("keys", "rotate", *kms, "lake", code=3).stdout
    assert "3 failed" in reported
    assert "of many words" not in reported


@pytest.mark.slow
def test_the_program_starts_spark_itself_and_stops_it(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "f.key").write_text(FOOTER_KEY.hex())
    command = ["encrypt", "--key", "file:f.key", "--spark", "local[2]", "lake", "out"]
    done = subprocess.run(
        [sys.executable, "-m", "modcrypt", *command],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(mc.__file__).parents[1])},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout.partition(";")[0]) == (0, "3 files: 3 encrypted"), (
        done.stderr
    )
    for name in NAMES:
        found = read_with_pyarrow(tmp_path / "out" / name, FOOTER_KEY)
        assert found.equals(pq.ParquetFile(lake / name).read())
