"""Readers who require a dataset's seal refuse what is missing, foreign, moved or older."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
import modcrypt.parquet as pq
from modcrypt.errors import IntegrityError, WriterSignatureError
from modcrypt.io.places import Place
from modcrypt.kms.signing import required_seal
from modcrypt.kms.signing.ledger import SEAL_NAME
from modcrypt.kms.signing.required_seal import load_seal
from tests.support.cases import each_case
from tests.support.cli.answers import check_refusal, run_ok
from tests.support.cli.program import invoke
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.signing import PEOPLE, signed_decryption, signed_encryption, writer_key

BY = (writer_key().verifier,)
SEALED: dict[str, Any] = {"seal": mc.kms.RequiredSeal(BY)}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A sealed dataset of signed files in partitions; a former version of one is beside it."""
    lake = tmp_path / "lake"
    for day in ("1", "2"):
        (lake / f"day={day}").mkdir(parents=True)
        for part in ("a", "b"):
            path = lake / f"day={day}/{part}.parquet"
            mc.write_table(
                PEOPLE, path, signed_encryption(), compression="none", use_dictionary=False
            )
    shutil.copy(lake / "day=1/a.parquet", tmp_path / "former.parquet")
    mc.write_table(PEOPLE.slice(5), lake / "day=1/a.parquet", signed_encryption())
    mc.jobs.seal_dataset(lake, writer_key())
    return lake


def ways(lake: Path, **seal: Any) -> dict[str, Callable[[], Any]]:
    """Return functions that read or verify the dataset, and raise if it is not as sealed."""
    required = signed_decryption(seal=mc.kms.RequiredSeal(BY, **seal))

    def verify() -> None:
        result = mc.verify_dataset(lake, required)
        faults = [*result.findings, *(f for file in result.files for f in file.findings)]
        if not result.ok:
            raise IntegrityError("; ".join(fault.message for fault in faults))

    return {
        "read_table": lambda: mc.read_table(lake, required),
        "views": lambda: pq.ParquetDataset(
            lake, schema=PEOPLE.schema, decryption_properties=required
        ).read(),
        "iter_batches": lambda: list(mc.iter_batches(lake, required)),
        "verify": verify,
    }


def test_a_sealed_dataset_is_read(lake: Path) -> None:
    for read in ways(lake).values():
        read()
    required = signed_decryption(**SEALED)
    assert mc.read_table(lake, required).num_rows == 4 * PEOPLE.num_rows - 5
    one = signed_decryption(seal=mc.kms.RequiredSeal(BY, root=lake))
    assert mc.read_table(lake / "day=1", one).num_rows == 2 * PEOPLE.num_rows - 5
    assert mc.read_table(lake / "day=2/a.parquet", one).num_rows == PEOPLE.num_rows
    assert mc.read_table([str(lake / "day=2/a.parquet")], one).num_rows == PEOPLE.num_rows


ATTACKS: dict[str, Callable[[Path], object]] = {
    "missing": lambda lake: (lake / "day=2/b.parquet").unlink(),
    "foreign": lambda lake: shutil.copy(lake / "day=1/a.parquet", lake / "day=1/c.parquet"),
    "linked": lambda lake: (lake / "day=2/c.parquet").symlink_to("../day=1/a.parquet"),
    "moved": lambda lake: shutil.copy(lake / "day=1/a.parquet", lake / "day=2/a.parquet"),
    "older": lambda lake: shutil.copy(lake.parent / "former.parquet", lake / "day=1/a.parquet"),
    "the seal removed": lambda lake: (lake / SEAL_NAME).unlink(),
    "another seal": lambda lake: mc.jobs.seal_dataset(
        lake, writer_key(number=1), signed_by=BY
    ),
}  # fmt: skip


@each_case("attack", ATTACKS)
def test_every_way_of_reading_refuses(attack: str, lake: Path) -> None:
    ATTACKS[attack](lake)
    for read in ways(lake).values():
        with pytest.raises(IntegrityError):
            read()
    plain = mc.read_table(lake, signed_decryption())  # signatures alone do not show it
    assert plain.num_rows >= 3 * PEOPLE.num_rows - 5


def remove_files(lake: Path) -> None:
    for path in lake.glob("*/*.parquet"):
        path.unlink()


def remove_everything(lake: Path) -> None:
    remove_files(lake)
    (lake / SEAL_NAME).unlink()


def remove_folders(lake: Path) -> None:
    for day in lake.glob("day=*"):
        shutil.rmtree(day)


def put_folder_in_place_of_the_seal(lake: Path) -> None:
    (lake / SEAL_NAME).unlink()
    (lake / SEAL_NAME).mkdir()


def put_pipe_in_place_of_the_seal(lake: Path) -> None:
    (lake / SEAL_NAME).unlink()
    os.mkfifo(lake / SEAL_NAME)


def put_loop_in_place_of_the_seal(lake: Path) -> None:
    (lake / SEAL_NAME).unlink()
    (lake / SEAL_NAME).symlink_to(SEAL_NAME)


def put_socket_in_place_of_the_seal(lake: Path) -> None:
    (lake / SEAL_NAME).unlink()
    os.mknod(lake / SEAL_NAME, stat.S_IFSOCK | 0o600)


EMPTIED: dict[str, tuple[Callable[[Path], None], str]] = {
    "all files": (remove_files, "day=1/a.parquet"),
    "all folders": (remove_folders, "day=1/a.parquet"),
    "all files and the seal": (remove_everything, "is not sealed"),
    "a folder as the seal": (put_folder_in_place_of_the_seal, "is not a file"),
    "a pipe as the seal": (put_pipe_in_place_of_the_seal, "is not a file"),
    "a loop as the seal": (put_loop_in_place_of_the_seal, "is not a file"),
    "a socket as the seal": (put_socket_in_place_of_the_seal, "is not a file"),
}


@each_case("attack", EMPTIED)
def test_a_folder_without_its_files_or_its_seal_is_a_finding(attack: str, lake: Path) -> None:
    change, found = EMPTIED[attack]
    change(lake)
    for read in ways(lake).values():
        with pytest.raises(IntegrityError, match=found):
            read()
    how = options_in(lake.parent)
    check_refusal(invoke(lake.parent, "head", *how, "lake"), "integrity", 1)
    for more in ((), ("--json",)):
        result = invoke(lake.parent, "verify", *how, *more, "lake")
        assert (result.exit_code, found in result.stdout) == (1, True)
        compared = invoke(lake.parent, "seals", "verify", *how[4:6], *more, "lake")
        assert (compared.exit_code, found in compared.output) == (1, True)


def test_a_sealed_folder_that_is_gone_is_a_finding(lake: Path) -> None:
    how = options_in(lake.parent)
    shutil.rmtree(lake / "day=2")
    for paths in (("lake/day=1", "lake/day=2"), ("lake/day=2",), ("lake/day=2/b.parquet",)):
        result = invoke(lake.parent, "verify", *how, "--root", "lake", *paths)
        assert (result.exit_code, "day=2/b.parquet" in result.stdout) == (1, True)
        assert ("2 files" in result.stdout) == (len(paths) == 2)  # the others are verified
    check_refusal(invoke(lake.parent, "verify", *how, "--root", "lake", "lake/day=3"), "file", 2)
    shutil.rmtree(lake)
    result = invoke(lake.parent, "verify", *how, "lake")
    assert (result.exit_code, "is not sealed" in result.stdout) == (1, True)
    with pytest.raises(FileNotFoundError):  # the path may be that of a file
        mc.read_table(lake, signed_decryption(**SEALED))


def test_a_folder_without_files_is_a_mistake_if_its_seal_names_none(lake: Path) -> None:
    remove_files(lake)
    mc.jobs.seal_dataset(lake, writer_key(), accept=["day=1", "day=2"])
    for name in ("read_table", "iter_batches", "verify"):
        with pytest.raises(ValueError, match="no files"):
            ways(lake)[name]()
    how = options_in(lake.parent)
    check_refusal(invoke(lake.parent, "verify", *how, "lake"), "usage", 2)
    assert mc.jobs.verify_seal(lake, BY).ok


@each_case(
    "link, target", [("day=0", "day=1"), ("day=2/again", ".."), ("up", "../.."), ("z", "day=2")]
)
def test_links_to_folders_of_the_dataset_add_no_rows_and_are_findings(
    link: str, target: str, lake: Path
) -> None:
    required = signed_decryption(**SEALED)
    before = mc.read_table(lake, required)
    (lake / link).symlink_to(target)
    assert mc.read_table(lake, required).equals(before)  # partitions included
    assert mc.read_table(lake, signed_decryption()).equals(before)
    for properties in (required, signed_decryption()):
        result = mc.verify_dataset(lake, properties)
        assert [finding.word for finding in result.findings] == ["integrity"]
        assert link in result.findings[0].message
    reported = invoke(lake.parent, "verify", *options_in(lake.parent), "lake")
    assert (reported.exit_code, link in reported.stdout) == (1, True)


def test_links_to_files_are_findings_of_the_command_line(lake: Path) -> None:
    (lake / "day=2/c.parquet").symlink_to("../day=1/a.parquet")
    keys = options_in(lake.parent)[:4]
    reported = invoke(lake.parent, "verify", *keys, "lake")
    assert (reported.exit_code, "are copies of one file" in reported.stdout) == (1, True)


def test_an_older_seal_is_refused(lake: Path) -> None:
    shutil.copytree(lake, lake.parent / "old")
    mc.write_table(PEOPLE, lake / "day=1/c.parquet", signed_encryption())
    assert mc.jobs.update_seal(lake, writer_key(), added=["day=1/c.parquet"]).sequence == 2
    for read in ways(lake, at_least=2).values():
        read()
    for read in ways(lake.parent / "old", at_least=2).values():
        with pytest.raises(IntegrityError, match=r"old/_modcrypt_seal\.json: the seal has number"):
            read()


def test_a_file_that_is_exchanged_after_the_listing_is_refused(lake: Path) -> None:
    batches = mc.iter_batches(lake, signed_decryption(**SEALED))
    next(batches)
    shutil.copy(lake / "day=1/a.parquet", lake / "day=2/b.parquet")
    with pytest.raises(WriterSignatureError, match="not the file that was sealed"):
        list(batches)


def test_a_file_that_was_no_parquet_file_does_not_become_one(lake: Path) -> None:
    fresh = lake.parent / "fresh"
    shutil.copytree(lake, fresh, ignore=shutil.ignore_patterns(SEAL_NAME))
    (fresh / "day=2/notes").write_text("not Parquet")
    mc.jobs.seal_dataset(fresh, writer_key())
    shutil.copy(fresh / "day=1/a.parquet", fresh / "day=2/notes")
    for read in ways(fresh).values():
        with pytest.raises(IntegrityError, match="not the file that was sealed"):
            read()


def test_a_page_that_others_have_forged_is_refused(lake: Path) -> None:
    """The seal names the footer, the footer's signature names the pages."""
    path = lake / "day=2/a.parquet"
    data = bytearray(path.read_bytes())
    data[data.index(b"city 3") + 5] = ord("4")  # a plaintext column
    path.write_bytes(data)
    for read in ways(lake).values():
        with pytest.raises(IntegrityError):
            read()


def test_a_dataset_in_the_place_of_another_of_its_writer_has_another_prefix(tmp_path: Path) -> None:
    """So has its seal another id; both are known only to readers who expect them."""
    ids = dict[str, str | None]()
    for name in ("people", "guests"):
        (tmp_path / name).mkdir()
        encryption = signed_encryption(aad_prefix=name.encode())
        mc.write_table(PEOPLE, tmp_path / name / "a.parquet", encryption)
        ids[name] = mc.jobs.seal_dataset(tmp_path / name, writer_key()).dataset
    shutil.rmtree(tmp_path / "people")
    (tmp_path / "guests").rename(tmp_path / "people")
    assert mc.read_table(tmp_path / "people", signed_decryption(**SEALED)).equals(PEOPLE)
    expected = signed_decryption(seal=mc.kms.RequiredSeal(BY, dataset=ids["people"]))
    with pytest.raises(IntegrityError, match="that of another dataset"):
        mc.read_table(tmp_path / "people", expected)
    required = signed_decryption(**SEALED, aad_prefix=b"people")
    with pytest.raises(mc.errors.AadPrefixError):
        mc.read_table(tmp_path / "people", required)
    assert not mc.verify_dataset(tmp_path / "people", required, shared_aad_prefix=True).ok


def test_a_seal_needs_signatures_and_a_folder(lake: Path) -> None:
    with pytest.raises(ValueError, match="a seal needs signed_by"):
        mc.FileDecryptionProperties(footer_key=FOOTER_KEY, **SEALED)
    with pytest.raises(ValueError, match="a seal needs signed_by"):
        mc.Settings(footer_key="env:K", seal_at_least=1).decryption()
    required = signed_decryption(**SEALED)
    with pytest.raises(ValueError, match="pass root="):
        mc.read_table(lake / "day=1/a.parquet", required)
    with pytest.raises(ValueError, match="pass root="):
        mc.read_table((lake / "day=1/a.parquet").read_bytes(), required)
    with pytest.raises(ValueError, match="seal_at_least needs signed_by"):
        mc.Policy(footer_key="k", seal_at_least=1)


def test_policies_and_settings_require_it(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOOTER", FOOTER_KEY.hex())
    monkeypatch.setenv("NAME", COLUMN_KEY.hex())
    settings = mc.Settings(
        footer_key="env:FOOTER", column_keys={"name": "env:NAME"}, signed_by=BY, seal_at_least=1
    )
    assert mc.read_table(lake, settings).num_rows == 4 * PEOPLE.num_rows - 5
    (lake / "day=2/b.parquet").unlink()
    with pytest.raises(IntegrityError, match=r"day=2/b\.parquet: in the seal"):
        mc.read_table(lake, settings)


def test_a_policy_of_a_key_service_requires_it(tmp_path: Path) -> None:
    ring = mc.Keyring.create(tmp_path / "ring", plaintext=True)
    ring.create_key("footer")
    policy = mc.Policy(
        footer_key="footer", kms=f"file:{tmp_path / 'ring'}", signed_by=[str(BY[0])],
        seal_at_least=1, aad_prefix="people/{path}",
    )  # fmt: skip
    tools = mc.KeyTools.from_policy(policy)
    mc.write_dataset(
        pa.table({"id": [1]}), tmp_path / "lake", tools.encryption(policy, signing_key=writer_key())
    )
    with pytest.raises(IntegrityError, match="not sealed"):
        mc.read_table(tmp_path / "lake", tools.decryption(policy))
    mc.jobs.seal_dataset(tmp_path / "lake", writer_key())
    for reading in (tools.decryption(policy), mc.Settings(policy=policy)):
        assert mc.read_table(tmp_path / "lake", reading).num_rows == 1


def options_in(folder: Path) -> tuple[str, ...]:
    """Write keys into a folder, and return the options that use them and require a seal."""
    (folder / "footer.key").write_bytes(FOOTER_KEY)
    (folder / "name.key").write_bytes(COLUMN_KEY)
    for name in ("footer.key", "name.key"):
        (folder / name).chmod(0o600)
    (folder / "writer.pub").write_text(f"{BY[0]}\n")
    keys = ("--key", "file:footer.key", "--column-key", "name=file:name.key")
    return (*keys, "--signed-by", "writer.pub", "--seal-at-least", "1")


def test_the_command_line_requires_it(lake: Path) -> None:
    folder = lake.parent
    how = options_in(folder)
    run_ok(folder, "head", *how, "lake")
    run_ok(folder, "verify", *how, "lake")
    run_ok(folder, "decrypt", *how, "--root", "lake", "lake/day=1/a.parquet", "out.parquet")
    shutil.copy(folder / "former.parquet", lake / "day=1/a.parquet")
    assert "not the file that was sealed" in check_refusal(
        invoke(folder, "head", *how, "lake"), "writer-signature", 1
    )
    (lake / "day=2/a.parquet").unlink()
    result = invoke(folder, "verify", *how, "lake")
    assert result.exit_code == 1
    assert "seal are missing: day=2/a.parquet" in result.stdout
    assert "not the file that was sealed" in result.stdout


def test_a_new_seal_is_seen_by_readers_who_know_the_old_one(lake: Path) -> None:
    required = signed_decryption(seal=mc.kms.RequiredSeal(BY, root=lake))
    seal, new = lake / SEAL_NAME, lake / "day=3.parquet"
    before = seal.read_bytes()
    assert mc.read_table(lake / "day=2/a.parquet", required).num_rows == PEOPLE.num_rows
    mc.write_table(PEOPLE, new, signed_encryption())
    with pytest.raises(WriterSignatureError, match="does not name it"):
        mc.read_table(new, required)
    mc.jobs.update_seal(lake, writer_key(), added=["day=3.parquet"])
    assert mc.read_table(new, required).num_rows == PEOPLE.num_rows
    seal.write_bytes(before)
    with pytest.raises(IntegrityError, match="number 1, but 2 was seen"):
        mc.read_table(lake / "day=2/a.parquet", required)


def test_a_seal_is_read_once_for_many_files(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []

    def count_and_load(folder: Place, required: mc.kms.RequiredSeal) -> Any:
        read.append(folder)
        return load_seal(folder, required)

    monkeypatch.setattr(required_seal, "load_seal", count_and_load)
    run_ok(lake.parent, "verify", *options_in(lake.parent), "lake")
    assert len(read) == 1
