"""Jobs on tables, against what the library makes of the same files, and what PyArrow reads."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import modcrypt as mc
from modcrypt.jobs.listing import File, Folder, list_tables, place_at
from modcrypt.jobs.verbs.conversion_verbs import ConversionReferences
from modcrypt.jobs.verbs.key_verbs import ROTATE
from modcrypt.kms.settings import Settings
from modcrypt.parquet.datasets.write_notes import NOTES
from modcrypt.spark.jobs.conversion import check_first_files, make_conversion_job
from modcrypt.spark.jobs.driver import MAX_TASKS, assign_tasks
from modcrypt.spark.jobs.file_work import VerbJob
from modcrypt.spark.jobs.shredding import prove_shredded, shred_keys
from modcrypt.spark.jobs.table_jobs import (
    decrypt_table,
    encrypt_table,
    rekey_table,
    rotate_keys,
    scan_keys,
    verify_table,
)
from tests.support.guide import run_guide
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.spark.processes import Elsewhere
from tests.support.tables import read_with_pyarrow, small_table, write_plain

pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)

PASSPHRASE = "not in any log"
NAMES = (
    "country=NO/part-0.parquet",
    "country=NO/part-1.parquet",
    "country=DE/a name % # é.parquet",
    "part-9.parquet",
)
POLICY = mc.Policy(footer_key="kf", column_keys={"kc": ["name", "address"]}, aad_prefix="t/{name}")


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Create a keyring under a passphrase; return its URI, which names the passphrase file."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "passphrase").write_text(PASSPHRASE)
    ring = mc.Keyring.create(folder / "lake.keyring", passphrase=PASSPHRASE)
    for name in ("kf", "kc", "other"):
        ring.create_key(name)
    return f"file:{folder}/lake.keyring?passphrase=file:{folder}/passphrase"


@pytest.fixture
def settings(keyring: str) -> Settings:
    """Return the settings of most tests."""
    return Settings(kms=keyring, policy=POLICY)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Write a small table of plaintext files, with hidden ones that are none of it."""
    folder = tmp_path / "plain"
    for number, name in enumerate(NAMES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_plain(folder / name, small_table(20 + number))
    (folder / "_SUCCESS").write_bytes(b"")
    (folder / "country=NO" / ".part-0.parquet.crc").write_bytes(b"crc!")
    return folder


def results(report: Any) -> dict[str, str]:
    return {os.path.basename(row["path"]): row["result"] for row in report.toLocalIterator()}


def count_results(report: Any) -> dict[str, int]:
    return dict(Counter(row["result"] for row in report.collect()))


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    found = {name: (folder / name).stat() for name in files_in(folder)}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def key_file(path: Path, key: bytes) -> str:
    path.write_text(key.hex())
    return f"file:{path}"


# --- what comes out ------------------------------------------------------------------------------


def test_pyarrow_reads_every_file_that_encrypt_table_wrote(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    settings = Settings(footer_key=key_file(tmp_path / "key", FOOTER_KEY))
    report = encrypt_table(spark, lake, tmp_path / "out", settings)
    assert count_results(report) == {"encrypted": len(NAMES)}
    assert files_in(tmp_path / "out") == sorted(NAMES)
    for name in NAMES:
        found = read_with_pyarrow(tmp_path / "out" / name, FOOTER_KEY)
        assert found.equals(pq.ParquetFile(lake / name).read())


def test_the_report_has_a_row_for_each_file_with_its_sizes(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    report = encrypt_table(spark, lake, tmp_path / "out", settings)
    rows = {row["path"]: row for row in report.collect()}
    assert sorted(rows) == sorted(str(lake / name) for name in NAMES)
    for name in NAMES:
        row = rows[str(lake / name)]
        assert row["destination"] == str(tmp_path / "out" / name)
        assert (row["result"], row["failed"], row["message"]) == ("encrypted", False, "")
        assert row["bytes_in"] == (lake / name).stat().st_size
        assert row["bytes_out"] == (tmp_path / "out" / name).stat().st_size
        assert row["seconds"] > 0


def test_files_are_encrypted_as_the_library_does_it_here(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    encrypt_table(spark, lake, tmp_path / "out", settings)
    tools = settings.tools()
    (tmp_path / "here").mkdir()
    for name in NAMES:
        here, there = tmp_path / "here" / os.path.basename(name), tmp_path / "out" / name
        mc.encrypt_parquet(lake / name, here, tools.encryption(POLICY))
        assert there.stat().st_size == here.stat().st_size
        decryption = tools.decryption(POLICY)
        reported = [mc.verify_parquet(path, decryption) for path in (here, there)]
        assert reported[0].modules == reported[1].modules
        assert reported[0].complete
        assert reported[1].complete
        keys = [
            [(use.column, use.master_key_id, use.storage) for use in mc.jobs.scan_keys(path, tools)]
            for path in (here, there)
        ]
        assert keys[0] == keys[1]


def test_decrypt_table_gives_the_files_back_byte_for_byte(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    encrypt_table(spark, lake, tmp_path / "out", settings)
    report = decrypt_table(spark, tmp_path / "out", tmp_path / "back", settings)
    assert count_results(report) == {"decrypted": len(NAMES)}
    for name in NAMES:
        assert (tmp_path / "back" / name).read_bytes() == (lake / name).read_bytes()


def test_decrypt_table_reports_which_columns_have_no_key(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path, keyring: str
) -> None:
    key = key_file(tmp_path / "key", FOOTER_KEY)
    column = {"name": key_file(tmp_path / "column", COLUMN_KEY)}
    encrypt_table(spark, lake, tmp_path / "out", Settings(footer_key=key, column_keys=column))
    some = Settings(footer_key=key, on_missing_key="drop")
    report = decrypt_table(spark, tmp_path / "out", tmp_path / "back", some)
    assert {row["message"] for row in report.collect()} == {
        "columns left out because their key is missing: name"
    }
    assert "name" not in pq.read_schema(tmp_path / "back" / NAMES[0]).names
    # What lacks a column is not what those who have its key would get.
    every = Settings(footer_key=key, column_keys=column)
    again = decrypt_table(spark, tmp_path / "out", tmp_path / "back", every)
    assert count_results(again) == {"file": len(NAMES)}
    with pytest.raises(ValueError, match="lost for good"):
        decrypt_table(spark, tmp_path / "out", None, some)


def test_rekey_table_moves_a_table_to_other_keys(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    new = Settings(footer_key=key_file(tmp_path / "key", OTHER_KEY))
    encrypt_table(spark, lake, tmp_path / "out", settings)
    report = rekey_table(spark, tmp_path / "out", tmp_path / "new", settings, new)
    assert count_results(report) == {"rekeyed": len(NAMES)}
    for name in NAMES:
        found = read_with_pyarrow(tmp_path / "new" / name, OTHER_KEY)
        assert found.equals(pq.ParquetFile(lake / name).read())


@pytest.mark.parametrize("material", [True, False], ids=["internal", "external"])
def test_a_table_is_encrypted_rekeyed_and_decrypted_in_place(
    spark: Any, lake: Path, keyring: str, tmp_path: Path, material: bool
) -> None:
    first = Settings(kms=keyring, policy=replace(POLICY, internal_key_material=material))
    second = Settings(kms=keyring, policy=replace(first.policy, footer_key="other"))  # type: ignore[type-var]  # there is one
    before = {name: (lake / name).read_bytes() for name in NAMES}
    assert count_results(encrypt_table(spark, lake, None, first)) == {"encrypted": len(NAMES)}
    assert count_results(encrypt_table(spark, lake, None, first)) == {"current": len(NAMES)}
    assert count_results(rekey_table(spark, lake, None, first, second)) == {"rekeyed": len(NAMES)}
    assert count_results(rekey_table(spark, lake, None, first, second)) == {"current": len(NAMES)}
    keys = scan_keys(spark, lake).where("kind = 'footer'").collect()
    assert {(row["master_key_id"], row["storage"]) for row in keys} == {
        ("other", "internal" if material else "external")
    }
    assert count_results(decrypt_table(spark, lake, None, second)) == {"decrypted": len(NAMES)}
    assert {name: (lake / name).read_bytes() for name in NAMES} == before
    assert count_results(decrypt_table(spark, lake, None, second)) == {"current": len(NAMES)}


# --- looking first -------------------------------------------------------------------------------


def test_a_second_run_does_nothing(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    new = Settings(footer_key=key_file(tmp_path / "key", OTHER_KEY))
    out, moved, back = (tmp_path / name for name in ("out", "new", "back"))

    def run(overwrite: bool) -> list[dict[str, int]]:
        return [
            count_results(encrypt_table(spark, lake, out, settings, overwrite=overwrite)),
            count_results(rekey_table(spark, out, moved, settings, new, overwrite=overwrite)),
            count_results(decrypt_table(spark, moved, back, new, overwrite=overwrite)),
        ]

    assert run(False) == [{word: len(NAMES)} for word in ("encrypted", "rekeyed", "decrypted")]
    left = [stamps(folder) for folder in (out, moved, back)]
    for overwrite in (False, True):
        assert run(overwrite) == [{"current": len(NAMES)}] * 3
        assert [stamps(folder) for folder in (out, moved, back)] == left


def test_the_report_is_read_twice_and_the_work_is_done_once(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    report = encrypt_table(spark, lake, tmp_path / "out", settings)
    left = stamps(tmp_path / "out")
    assert len(left) == len(NAMES)  # before anybody has read the report
    shutil.rmtree(lake)
    for _ in range(2):
        assert count_results(report) == {"encrypted": len(NAMES)}
        assert report.where("bytes_in > 0").count() == len(NAMES)
    assert stamps(tmp_path / "out") == left


def test_what_an_interrupted_run_left_is_done_and_the_rest_is_kept(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    encrypt_table(spark, lake, out, settings)
    (out / NAMES[1]).unlink()
    left = stamps(out)
    found = results(encrypt_table(spark, lake, out, settings))
    assert found == {
        os.path.basename(name): "encrypted" if name == NAMES[1] else "current" for name in NAMES
    }
    assert {name: stamp for name, stamp in stamps(out).items() if name in left} == left


def test_a_destination_that_is_something_else_is_only_replaced_on_request(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    encrypt_table(spark, lake, out, settings)
    write_plain(lake / NAMES[0], small_table(77))  # a newer source
    write_plain(lake / NAMES[1], small_table(78))  # another one, that says it is older
    os.utime(lake / NAMES[1], (1, 1))
    shutil.copy(lake / NAMES[2], out / NAMES[2])  # in plaintext
    left = stamps(out)

    report = encrypt_table(spark, lake, out, settings)
    reported = {os.path.basename(row["path"]): row for row in report.collect()}
    assert stamps(out) == left
    for name, why in zip(NAMES, ("older", "78", "not encrypted"), strict=False):
        row = reported[os.path.basename(name)]
        assert (row["result"], row["failed"]) == ("file", True)
        assert why in row["message"]
    assert reported["part-9.parquet"]["result"] == "current"

    found = count_results(encrypt_table(spark, lake, out, settings, overwrite=True))
    assert found == {"encrypted": 3, "current": 1}
    tools = settings.tools()
    assert mc.read_table(out / NAMES[0], tools.decryption(POLICY)).num_rows == 77


def policies() -> Iterator[Any]:
    """Yield policies that write other files than `POLICY` does."""
    yield "footer", replace(POLICY, footer_key="other")
    yield "column", replace(POLICY, column_keys={"other": ["name", "address"]})
    yield "fewer columns", replace(POLICY, column_keys={"kc": ["name"]})
    yield "plaintext column", replace(POLICY, plaintext_columns=("id",))
    yield "plaintext footer", replace(POLICY, plaintext_footer=True)
    yield "algorithm", replace(POLICY, encryption_algorithm="AES_GCM_CTR_V1")
    yield "prefix", replace(POLICY, aad_prefix="u/{name}")
    yield "no prefix", replace(POLICY, aad_prefix=None)
    yield "prefix not stored", replace(POLICY, store_aad_prefix=False)
    yield "single wrapping", replace(POLICY, double_wrapping=False)
    yield "external", replace(POLICY, internal_key_material=False)


def test_a_file_of_another_policy_is_never_taken_for_done(lake: Path, keyring: str) -> None:
    from modcrypt.io.places import Place
    from modcrypt.jobs.idempotence.key_comparison import NewKeys

    name = lake / NAMES[0]
    made = Settings(kms=keyring, policy=POLICY)
    mc.encrypt_parquet(name, name, made.encryption())
    assert NewKeys(made.encryption()).find_difference(Place(None, str(name))) is None
    for what, policy in policies():
        assert NewKeys(Settings(kms=keyring, policy=policy).encryption()).find_difference(
            Place(None, str(name))
        ), what


def test_explicit_keys_that_differ_are_never_taken_for_done(lake: Path, tmp_path: Path) -> None:
    from modcrypt.io.places import Place
    from modcrypt.jobs.idempotence.key_comparison import NewKeys

    ours, other = (
        key_file(tmp_path / text, key) for text, key in (("1", COLUMN_KEY), ("2", OTHER_KEY))
    )
    name = lake / NAMES[0]
    made = Settings(footer_key=ours, column_keys={"name": ours})
    mc.encrypt_parquet(name, name, made.encryption())
    assert NewKeys(made.encryption()).find_difference(Place(None, str(name))) is None
    for columns in ({}, {"name": other}, {"id": ours}, {"name": ours, "id": ours}):
        wanted = Settings(footer_key=ours, column_keys=columns)
        assert NewKeys(wanted.encryption()).find_difference(Place(None, str(name))), columns
    assert NewKeys(replace(made, footer_key=other).encryption()).find_difference(
        Place(None, str(name))
    )


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert count_results(encrypt_table(spark, lake, out, settings, dry_run=True)) == {
        "planned": len(NAMES)
    }
    assert not out.exists()
    encrypt_table(spark, lake, out, settings)
    left = stamps(out)
    (lake / "new.parquet").write_bytes((lake / NAMES[0]).read_bytes())
    found = count_results(encrypt_table(spark, lake, out, settings, dry_run=True))
    assert found == {"current": len(NAMES), "planned": 1}
    assert stamps(out) == left


# --- what fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [NAMES[0], NAMES[3]], ids=["listed early", "listed late"])
def test_a_file_that_fails_is_a_row_and_the_others_are_done(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path, broken: str
) -> None:
    (lake / broken).write_bytes(b"this is no Parquet file")
    report = encrypt_table(spark, lake, tmp_path / "out", settings)
    failed = report.where("failed").collect()
    assert [(row["path"], row["result"]) for row in failed] == [(str(lake / broken), "format")]
    assert failed[0]["message"]
    assert count_results(report) == {"encrypted": len(NAMES) - 1, "format": 1}
    assert files_in(tmp_path / "out") == sorted(set(NAMES) - {broken})


def test_keys_that_are_only_on_the_driver_are_rows_that_say_so(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_THE_DRIVER", FOOTER_KEY.hex())  # Spark's workers were there before
    settings = Settings(footer_key="env:KEY_OF_THE_DRIVER")
    report = encrypt_table(spark, lake, tmp_path / "out", settings)
    assert count_results(report) == {"no-key": len(NAMES)}
    assert all("KEY_OF_THE_DRIVER" in row["message"] for row in report.collect())
    assert not (tmp_path / "out").exists()


def test_a_wrong_policy_fails_before_anything_is_done(
    spark: Any, lake: Path, keyring: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def encrypt(policy: mc.Policy, kms: str = keyring) -> None:
        encrypt_table(spark, lake, out, Settings(kms=kms, policy=policy))

    with pytest.raises(ValueError, match="the file does not have these columns: nmae"):
        encrypt(replace(POLICY, column_keys={"kc": ["nmae"]}))
    with pytest.raises(mc.errors.KeyNotFoundError, match="gone"):
        encrypt(replace(POLICY, footer_key="gone"))
    (tmp_path / "token").write_text("of-no-use")
    with pytest.raises(mc.errors.KmsUnavailableError):
        encrypt(POLICY, "hcvault://127.0.0.1:9/transit?token=file:" + str(tmp_path / "token"))
    (tmp_path / "wrong").write_text("another passphrase")
    with pytest.raises(mc.errors.KeyAccessDeniedError):
        encrypt(POLICY, keyring.partition("?")[0] + f"?passphrase=file:{tmp_path / 'wrong'}")
    with pytest.raises(ValueError, match="needs a policy"):
        encrypt_table(spark, lake, out, Settings(kms=keyring))
    assert not out.exists()


def test_wrong_old_keys_fail_before_anything_is_done(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    encrypt_table(spark, lake, tmp_path / "out", settings)
    wrong = Settings(footer_key=key_file(tmp_path / "key", OTHER_KEY))
    with pytest.raises(mc.ModcryptError):
        decrypt_table(spark, tmp_path / "out", tmp_path / "back", wrong)
    with pytest.raises(mc.ModcryptError):
        rekey_table(spark, tmp_path / "out", tmp_path / "back", wrong, settings)
    assert not (tmp_path / "back").exists()


def test_folders_that_do_not_go_together_fail_before_anything_is_done(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(lake)
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        (lake, lake, ValueError, "same folder"),
        (lake, tmp_path / "link", ValueError, "same folder"),
        (lake, lake / "below", ValueError, "within the source"),
        (tmp_path / "empty", tmp_path / "out", ValueError, "no files"),
        (tmp_path / "none", tmp_path / "out", FileNotFoundError, "none"),
        (lake / NAMES[3], tmp_path / "out", NotADirectoryError, "part-9"),
        (lake, lake / NAMES[3], NotADirectoryError, "part-9"),
        (7, tmp_path / "out", TypeError, "path or URL"),
    ]
    for source, destination, kind, words in cases:
        with pytest.raises(kind, match=words):
            encrypt_table(spark, source, destination, settings)
    with pytest.raises(TypeError, match="Settings"):
        encrypt_table(spark, lake, tmp_path / "out", POLICY)  # type: ignore[arg-type]  # the test
    with pytest.raises(ValueError, match="at least 1"):
        encrypt_table(spark, lake, tmp_path / "out", settings, files_per_task=0)
    assert not (tmp_path / "out").exists()


def test_no_link_below_a_folder_is_written_through(
    lake: Path, settings: Settings, tmp_path: Path
) -> None:
    """In tasks, which are given names of files; without a session."""
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    shutil.move(lake / NAMES[0], outside / "part-0.parquet")
    for folder in (lake / "linked", out / "country=NO"):
        folder.symlink_to(outside)
    linked, plain, other = (
        File(str(lake / name), 1, place_at(str(lake / name)))
        for name in ("linked/part-0.parquet", NAMES[3], NAMES[1])
    )
    files = [linked, plain]
    before = (outside / "part-0.parquet").read_bytes()
    in_place, copied = (
        make_conversion_job("encrypt", source=str(lake), destination=to, encryption=settings)
        for to in (None, str(out))
    )
    rotation = VerbJob(
        verb=ROTATE, settings=settings, folders=(str(lake),), arguments=ROTATE.prepare()
    )
    rows = [*in_place.rows(files, None), *rotation.rows(files, None)]
    rows += copied.rows([other], None)
    assert [row["result"] for row in rows] == ["file", "encrypted", "file", "current", "file"]
    assert [row["message"].count("symbolic link below") for row in rows] == [1, 0, 1, 0, 1]
    assert [path.name for path in outside.iterdir()] == ["part-0.parquet"]
    assert (outside / "part-0.parquet").read_bytes() == before


def test_a_destination_that_is_a_link_to_its_source_is_left(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "part-9.parquet").symlink_to(lake / "part-9.parquet")
    before = (lake / "part-9.parquet").read_bytes()
    found = results(encrypt_table(spark, lake, out, settings, overwrite=True))
    assert found.pop("part-9.parquet") == "file"
    assert set(found.values()) == {"encrypted"}
    assert (lake / "part-9.parquet").read_bytes() == before


def test_a_cancelled_job_leaves_every_file_old_or_new_and_is_taken_up(
    spark: Any, lake: Path, keyring: str, tmp_path: Path
) -> None:
    table, count = tmp_path / "table", 600
    table.mkdir()
    policy = replace(POLICY, aad_prefix=None)
    old, new = (
        Settings(kms=keyring, policy=replace(policy, footer_key=k)) for k in ("kf", "other")
    )
    mc.encrypt_parquet(lake / NAMES[0], tmp_path / "one.parquet", old.encryption())
    for number in range(count):
        shutil.copy(tmp_path / "one.parquet", table / f"{number:03}.parquet")
    before = (tmp_path / "one.parquet").read_bytes()
    raised: list[BaseException] = []

    def rekey() -> None:
        try:
            rekey_table(spark, table, None, old, new, files_per_task=20)
        except BaseException as error:
            raised.append(error)

    first = table / "000.parquet"
    thread = threading.Thread(target=rekey)
    thread.start()
    deadline = time.monotonic() + 120
    while thread.is_alive() and time.monotonic() < deadline and first.read_bytes() == before:
        time.sleep(0.01)
    spark.sparkContext.cancelAllJobs()
    thread.join(120)
    assert raised, "the job had ended before it was cancelled"

    done = 0
    for path in table.glob("*.parquet"):
        if path.read_bytes() != before:
            done += 1
            footer = next(key for key in mc.jobs.scan_keys(path) if key.kind == "footer")
            assert footer.master_key_id == "other"
            assert mc.read_table(path, new.decryption()).equals(pq.read_table(lake / NAMES[0]))
    assert 0 < done < count
    for _ in range(10):  # tasks that were cancelled may go on for a while
        found = count_results(rekey_table(spark, table, None, old, new))
        assert sum(found.values()) == count
        if not found.get("rekeyed"):
            break
    assert found == {"current": count}


# --- verification --------------------------------------------------------------------------------


def test_verify_table_finds_what_verify_parquet_finds(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    encrypt_table(spark, lake, out, settings)
    data = bytearray((out / NAMES[1]).read_bytes())
    data[60] ^= 1
    (out / NAMES[1]).write_bytes(data)
    rows = {row["path"]: row for row in verify_table(spark, out, settings).collect()}
    assert len(rows) == len(NAMES)
    for name in NAMES:
        row, here = rows[str(out / name)], mc.verify_parquet(out / name, settings.decryption())
        assert row["failed"] == (name == NAMES[1]) == (not here.ok)
        assert row["result"] == ("authentic" if here.ok else here.findings[0].word)
        found = (row["rows"], row["modules"], row["authenticated_bytes"], row["bytes_in"])
        assert found == (here.num_rows, here.modules, here.authenticated_bytes, here.size)
        assert [
            (finding["word"], finding["message"], finding["start"]) for finding in row["findings"]
        ] == [(finding.word, finding.message, finding.start) for finding in here.findings]
        assert [item["what"] for item in row["not_authenticated"]] == [
            item.what for item in here.not_authenticated
        ]


def test_verify_table_without_keys_says_that_not_all_is_authenticated(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    encrypt_table(spark, lake, tmp_path / "out", settings)
    rows = verify_table(spark, tmp_path / "out").collect()
    assert {(row["result"], row["encrypted"], row["modules"]) for row in rows} == {
        ("partial", True, 0)
    }


def test_copies_of_a_file_show_in_the_report(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    encrypt_table(spark, lake, out, settings)
    shutil.copy(out / "part-9.parquet", out / "part-10.parquet")
    report = verify_table(spark, out)
    twice = report.groupBy("file_unique").count().where("count > 1").collect()
    assert len(twice) == 1
    unique = twice[0]["file_unique"]
    names = [row["path"] for row in report.where(report.file_unique == unique).collect()]
    assert {os.path.basename(name) for name in names} == {"part-9.parquet", "part-10.parquet"}


# --- keys ----------------------------------------------------------------------------------------


@pytest.fixture
def own_keyring(tmp_path: Path) -> mc.Keyring:
    """Create a keyring that a test may change."""
    ring = mc.Keyring.create(tmp_path / "own.keyring", plaintext=True)
    for name in ("kf", "kc", "other"):
        ring.create_key(name)
    return ring


@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
def test_rotate_keys_brings_a_table_under_the_newest_master_keys(
    spark: Any, lake: Path, tmp_path: Path, own_keyring: mc.Keyring, what: Any
) -> None:
    out = tmp_path / "out"
    settings = Settings(kms=f"file:{tmp_path}/own.keyring", policy=POLICY)
    encrypt_table(spark, lake, out, settings)
    own_keyring.rotate_key("kf")
    own_keyring.rotate_key("kc")
    dry = rotate_keys(spark, out, settings, what=what, dry_run=True)
    assert count_results(dry) == {"rotated": len(NAMES)}
    assert {key.version for key in mc.jobs.scan_keys(out, settings.tools())} == {"1"}

    report = rotate_keys(spark, out, settings, what=what)
    assert count_results(report) == {"rotated": len(NAMES)}
    assert sorted(row["path"] for row in report.collect()) == sorted(str(out / n) for n in NAMES)
    assert {key.version for key in mc.jobs.scan_keys(out, mc.KeyTools(own_keyring))} == {"2"}
    if what == "mek":
        left = stamps(out)
        assert count_results(rotate_keys(spark, out, settings)) == {"current": len(NAMES)}
        assert stamps(out) == left
    for name in NAMES:
        found = mc.read_table(out / name, mc.KeyTools(own_keyring).decryption(POLICY))
        assert found.equals(pq.ParquetFile(lake / name).read())


def test_rotate_keys_checks_new_master_keys_before_anything_is_done(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    encrypt_table(spark, lake, out, settings)
    left = stamps(out)
    with pytest.raises(mc.errors.KeyNotFoundError, match="gone"):
        rotate_keys(spark, out, settings, new_master_keys={"kf": "gone"})
    with pytest.raises(ValueError, match="mek"):
        rotate_keys(spark, out, settings, what="all")  # type: ignore[arg-type]  # the test
    assert stamps(out) == left
    moved = rotate_keys(spark, out, settings, new_master_keys={"kf": "other"})
    assert count_results(moved) == {"rotated": len(NAMES)}
    found = mc.jobs.scan_keys(out, settings.tools())
    assert {key.master_key_id for key in found if key.kind == "footer"} == {"other"}


@pytest.mark.parametrize("opens", [True, False], ids=["with keys", "without keys"])
def test_scan_keys_reports_what_the_library_reports_here(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path, opens: bool
) -> None:
    out = tmp_path / "out"
    encrypt_table(spark, lake, out, settings)
    (out / "broken.parquet").write_bytes(b"no Parquet")
    names = ("kind", "column", "master_key_id", "version", "kek_id", "storage", "message")
    here = [
        (key.file, *(getattr(key, name) for name in names))
        for key in mc.jobs.scan_keys(out, settings.tools() if opens else None)
    ]
    report = scan_keys(spark, out, settings if opens else None)
    there = [(row["path"], *(row[name] for name in names)) for row in report.collect()]
    assert sorted(map(str, there)) == sorted(map(str, here))
    assert report.where("failed").count() == 1


def test_a_worker_opens_the_key_service_once(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    report = encrypt_table(spark, lake, tmp_path / "out", settings, files_per_task=1)
    workers = {row["worker"] for row in report.collect()}
    # Who opens it anew has KEKs of its own.
    found = mc.jobs.scan_keys(tmp_path / "out", settings.tools())
    assert len({key.kek_id for key in found if key.kind == "footer"}) <= len(workers) <= 2
    assert not any(worker.endswith(f"/{os.getpid()}") for worker in workers)


def test_neither_the_event_log_nor_a_report_holds_a_secret(
    spark: Any, spark_folder: Path, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    (lake / NAMES[0]).write_bytes(b"no Parquet")
    explicit = Settings(footer_key=key_file(tmp_path / "key", FOOTER_KEY))
    reports = [
        encrypt_table(spark, lake, tmp_path / "out", settings),
        encrypt_table(spark, lake, tmp_path / "explicit", explicit),
        verify_table(spark, tmp_path / "out", settings),
        decrypt_table(spark, tmp_path / "explicit", tmp_path / "back", explicit),
    ]
    proof = prove_shredded(spark, tmp_path / "out", settings, everything=True)
    reports.append(shred_keys(spark, tmp_path / "out", settings, everything=True))
    text = "".join(str(report.collect()) for report in reports) + str(proof)
    text += "".join(
        path.read_text() for path in (spark_folder / "events").rglob("*") if path.is_file()
    )
    assert "localCheckpoint" in text
    assert str(lake) in text
    keys = [FOOTER_KEY.decode(), FOOTER_KEY.hex(), b64encode(FOOTER_KEY).decode()]
    for secret in (PASSPHRASE, *keys):
        assert secret not in text


# --- stores, and other Sparks --------------------------------------------------------------------


def test_tables_lie_in_object_stores(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    from tests.support.object_store import object_store

    with object_store() as store:
        made = store.arrow()
        (options,) = made.__reduce__()[1]

        def filesystem() -> Any:
            from pyarrow import fs

            return fs.S3FileSystem(**dict(options))

        store.judge().create_bucket(Bucket="lake")
        for name in NAMES:
            with made.open_output_stream(f"lake/plain/{name}") as file:
                file.write((lake / name).read_bytes())
        for word in ("encrypted", "current"):
            report = encrypt_table(spark, "lake/plain", "lake/out", settings, filesystem=filesystem)
            assert count_results(report) == {word: len(NAMES)}
        verified = verify_table(spark, "lake/out", settings, filesystem=filesystem)
        assert count_results(verified) == {"authentic": len(NAMES)}
        for name in NAMES:
            found = mc.read_table(f"lake/out/{name}", settings.decryption(), filesystem=made)
            assert found.equals(pq.ParquetFile(lake / name).read())
        again = rotate_keys(spark, "lake/out", settings, what="kek", filesystem=filesystem)
        assert count_results(again) == {"rotated": len(NAMES)}


def test_converted_files_are_bound_to_their_paths(lake: Path, keyring: str, tmp_path: Path) -> None:
    by_path = Settings(kms=keyring, policy=replace(POLICY, aad_prefix="t/{path}"))
    out = str(tmp_path / "out")
    job = make_conversion_job("encrypt", source=str(lake), destination=out, encryption=by_path)
    files = list_tables([Folder.at(lake)])
    batch = pa.record_batch(
        {
            "name": [os.fsencode(file.name) for file in files],
            "size": [file.size for file in files],
        }
    )
    for word in ("encrypted", "current"):
        (rows,) = pickle.loads(pickle.dumps(job)).run([batch])
        assert rows.column("result").to_pylist() == [word] * len(NAMES)
    for name in NAMES:
        assert mc.inspect_parquet(f"{out}/{name}").aad_prefix == f"t/{name}".encode()
    back = ConversionReferences(verb="decrypt", source=out, destination=None, decryption=by_path)
    assert mc.verify_dataset(out, back.decryption.decryption()).ok  # type: ignore[union-attr]
    first, second = (Path(out) / name for name in NAMES[:2])
    second.write_bytes(first.read_bytes())
    assert not mc.verify_dataset(out, by_path.decryption()).ok


def test_a_job_gives_no_two_files_one_prefix(lake: Path, keyring: str) -> None:
    files = list_tables([Folder.at(lake)])
    for prefix, is_shared in (("t", True), ("t/{name}", False), ("t/{path}", False)):
        policy = replace(POLICY, aad_prefix=prefix)
        job = ConversionReferences(
            verb="encrypt", source=str(lake), destination="/out", dry_run=True,
            encryption=Settings(kms=keyring, policy=policy),
        )  # fmt: skip
        if is_shared:
            with pytest.raises(ValueError, match="would have the same AAD prefix"):
                check_first_files(job, files)
            job = replace(job, encryption=replace(job.encryption, shared_aad_prefix=True))  # type: ignore[type-var]
        check_first_files(job, files)


@pytest.mark.parametrize("store", ["local", "memory"])
def test_copies_lack_the_files_of_a_write_that_is_not_complete(lake: Path, store: str) -> None:
    """Readers of the source pass over them, and the copy has no note that hides them."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    (lake / NOTES).mkdir()
    note = {"host": "h", "time": 0, "hidden": [NAMES[0]]}
    (lake / NOTES / "job.json").write_text(json.dumps(note))
    source = str(lake)
    if store == "memory":
        source = "memory://spark-notes/lake"
        memory.put(str(lake), "/spark-notes/lake", recursive=True)
    for destination, expected in ((None, NAMES), ("/out", NAMES[1:])):
        files = list_tables([Folder.at(source)], as_read=destination is not None)
        assert [file.name for file in files] == sorted(f"{source}/{name}" for name in expected)
    if store == "memory":
        memory.rm("/spark-notes", recursive=True)


def test_tables_are_named_by_url(lake: Path, settings: Settings, tmp_path: Path) -> None:
    """In this process: nobody else has this store's memory."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(lake), "/spark-jobs/plain", recursive=True)
    try:
        files = list_tables([Folder.at("memory://spark-jobs/plain/", None)])
        assert [(file.name, file.size) for file in files] == [
            (name, memory.size(name))
            for name in sorted(f"memory://spark-jobs/plain/{name}" for name in NAMES)
        ]
        batch = pa.record_batch(
            {
                "task": pa.array([0] * len(NAMES), pa.int32()),
                "name": [os.fsencode(file.name) for file in files],
                "size": [file.size for file in files],
            }
        )
        source, destination = "memory://spark-jobs/plain", "memory://spark-jobs/out"
        job = make_conversion_job(
            "encrypt", source=source, destination=destination, encryption=settings
        )
        for word in ("encrypted", "current"):
            (rows,) = pickle.loads(pickle.dumps(job)).run([batch])
            assert rows.column("result").to_pylist() == [word] * len(NAMES)
        for name in NAMES:
            found = mc.read_table(f"{destination}/{name}", settings.decryption())
            assert found.equals(pq.ParquetFile(lake / name).read())
        with pytest.raises(FileNotFoundError):
            list_tables([Folder.at("memory://spark-jobs/none", None)])
    finally:
        memory.rm("/spark-jobs", recursive=True)


def test_names_of_files_need_be_no_text(lake: Path, settings: Settings, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(lake) + b"/\xff\n.parquet")
    broken = os.fsdecode(os.fsencode(lake) + b"/\xfe.parquet")
    shutil.copy(lake / NAMES[0], odd)
    Path(broken).write_bytes(b"no Parquet file")
    batch = pa.record_batch(
        {"name": [os.fsencode(odd), os.fsencode(broken)], "size": [Path(odd).stat().st_size, 4]}
    )
    out = str(tmp_path / "out")
    job = make_conversion_job("encrypt", source=str(lake), destination=out, encryption=settings)
    (rows,) = job.run([batch])
    assert rows.column("result").to_pylist() == ["encrypted", "format"]
    assert rows.column("path")[1].as_py().endswith("\\udcfe.parquet")
    target = os.fsdecode(os.fsencode(out) + b"/\xff\n.parquet")
    mc.decrypt_parquet(target, tmp_path / "back.parquet", settings.decryption())
    assert (tmp_path / "back.parquet").read_bytes() == (lake / NAMES[0]).read_bytes()


_OTHER_SPARK = """
import json, sys
import modcrypt as mc
from modcrypt.spark import encrypt_table, decrypt_table, verify_table
from modcrypt.kms.settings import Settings

lake, out, back, kms = sys.argv[1:]
policy = mc.Policy(footer_key="kf", column_keys={"kc": ["name", "address"]})
settings = Settings(kms=kms, policy=policy)
told = {}
for run in ("first", "second"):
    for report in (
        encrypt_table(spark, lake, out, settings, files_per_task=1),
        decrypt_table(spark, out, back, settings),
        verify_table(spark, out, settings),
    ):
        rows = report.groupBy("result").count().collect()
        told.setdefault(run, []).append({row["result"]: row["count"] for row in rows})
        assert report.select("worker").count() == sum(told[run][-1].values())
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cluster", "connect"])
def test_jobs_run_on_other_kinds_of_spark(
    request: pytest.FixtureRequest, lake: Path, tmp_path: Path, keyring: str, how: str
) -> None:
    elsewhere: Elsewhere = request.getfixturevalue(how)
    reported = elsewhere.run(_OTHER_SPARK, lake, tmp_path / "out", tmp_path / "back", keyring)
    count = len(NAMES)
    assert json.loads(reported) == {
        "first": [{"encrypted": count}, {"decrypted": count}, {"authentic": count}],
        "second": [{"current": count}, {"current": count}, {"authentic": count}],
    }
    for name in NAMES:
        assert (tmp_path / "back" / name).read_bytes() == (lake / name).read_bytes()


# --- bins ----------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 1 << 30), min_size=1, max_size=300),
    st.integers(1, 50),
    st.integers(1, 1 << 30),
    st.integers(1, 8),
)
def test_no_task_has_too_much_and_the_largest_begin_first(
    sizes: list[int], files: int, size: int, slots: int
) -> None:
    numbers = assign_tasks(sizes, files=files, size=size, slots=slots)
    assert sorted(set(numbers)) == list(range(max(numbers) + 1))
    tasks: list[list[int]] = [[] for _ in range(max(numbers) + 1)]
    for number, length in zip(numbers, sizes, strict=True):
        tasks[number].append(length)
    assert all(len(task) <= files and (sum(task) <= size or len(task) == 1) for task in tasks)
    weights = [sum(task) for task in tasks]
    assert weights == sorted(weights, reverse=True)


def test_files_are_shared_out_by_number_and_size() -> None:
    def tasks(sizes: list[int], slots: int = 2) -> int:
        return max(assign_tasks(sizes, files=500, size=256 << 20, slots=slots)) + 1

    assert tasks([8 << 10] * 20_000) == 40
    assert tasks([10 << 20] * 200) == 8
    assert tasks([1 << 30] * 5) == 5
    assert tasks([100] * 10) == 1
    assert tasks([64 << 20] * 16) == 8  # rather than 4, where 2 run at once


def test_there_are_no_more_tasks_than_a_driver_can_hold() -> None:
    def tasks(sizes: list[int], files: int, size: int) -> int:
        return max(assign_tasks(sizes, files=files, size=size, slots=8)) + 1

    assert tasks([1 << 30] * MAX_TASKS, 500, 256 << 20) == MAX_TASKS
    for sizes in ([1 << 30] * (2 * MAX_TASKS), [1 << 20, 1 << 30] * MAX_TASKS):
        for files in (1, 500):
            assert MAX_TASKS // 4 <= tasks(sizes, files, 256 << 20) <= MAX_TASKS


# --- values beside the files ---------------------------------------------------------------------


def write_summary(folder: Path) -> Path:
    collected: list[pq.FileMetaData] = []
    pq.write_table(small_table(), folder / "part-9.parquet", metadata_collector=collected)
    collected[0].set_file_path("part-9.parquet")
    path = folder / "_metadata"
    pq.write_metadata(small_table().schema, path, metadata_collector=collected)
    return path


def test_a_folder_with_values_beside_its_files_is_refused(
    spark: Any, lake: Path, settings: Settings, tmp_path: Path
) -> None:
    summary = write_summary(lake)
    before = stamps(lake)
    with pytest.raises(ValueError, match="_metadata"):
        encrypt_table(spark, lake, None, settings)
    assert stamps(lake) == before
    assert count_results(encrypt_table(spark, lake, tmp_path / "out", settings)) == {"encrypted": 4}
    assert summary.exists()


def test_summaries_are_removed_once_all_files_are_encrypted(
    spark: Any, lake: Path, settings: Settings
) -> None:
    summary = write_summary(lake)
    (lake / "broken.parquet").write_bytes(b"PAR1")
    report = encrypt_table(spark, lake, None, settings, drop_summaries=True)
    assert count_results(report) == {"encrypted": 4, "format": 1}
    assert summary.exists()
    (lake / "broken.parquet").unlink()
    report = encrypt_table(spark, lake, None, settings, drop_summaries=True)
    assert count_results(report) == {"current": 4}
    assert not summary.exists()


def test_leaks_are_left_on_request(spark: Any, lake: Path, settings: Settings) -> None:
    summary = write_summary(lake)
    report = encrypt_table(spark, lake, None, settings, allow_leaks=True)
    assert count_results(report) == {"encrypted": 4}
    assert summary.exists()


@pytest.mark.parametrize("page", ["spark", "spark-queries"])
def test_the_examples_of_the_reference_run(spark: Any, page: str, tmp_path: Path) -> None:
    run_guide(f"reference/api/{page}.md", tmp_path)
