"""Writers whom a declaration names must have signed the files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.io.sources import open_source_at
from modcrypt.kms.signing.ledger import SEAL_NAME
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.lake_folder import DECLARATION, make_lake
from tests.support.signing import writer_key


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the declaration of a lake of plaintext files, whose writer must sign."""
    config = make_lake(tmp_path, days=1)
    (tmp_path / "writer.pub").write_text(f"{writer_key().verifier}\n")
    declare(config, 'signed_by = ["writer.pub"]')
    return config


def declare(config: Path, text: str) -> None:
    config.write_text(DECLARATION.replace('include = "*.parquet"\n', f"{text}\n"))


def read(config: Path) -> pa.Table:
    return Lake.open(config).dataset("orders").read()


def test_apply_signs_and_readers_require_it(config: Path) -> None:
    (refused,) = Lake.open(config).apply()
    assert {file.result for file in refused.files} & {"failed", "refused", "usage", "error"} or (
        refused.code
    )
    Lake.open(config, signing_key=writer_key()).apply(accept_replaced=True)
    assert read(config).num_rows > 0
    declare(config, f'signed_by = ["{writer_key(number=1).verifier}"]')
    with pytest.raises(mc.errors.WriterSignatureError, match="signed by another key"):
        read(config)


def test_plaintext_of_anyone_is_not_signed(config: Path) -> None:
    """Without any key, anyone who may write to the folder could have rows signed."""
    lake = Lake.open(config, signing_key=writer_key())
    (refused,) = lake.apply()
    assert refused.code == 1
    assert {file.result for file in refused.files} == {"refused"}
    lake.apply(accept_replaced=True)
    before = read(config)
    path = min((config.parent / "orders").rglob("*.parquet"))
    pq.write_table(before.slice(0, 1), path)
    pq.write_table(before.slice(0, 1), path.with_name("planted.parquet"))
    (refused,) = lake.apply()
    assert [file.result for file in refused.files] == ["refused"] * 2
    replaced, planted = (file.message for file in refused.files)
    assert "was encrypted when it was last examined" in replaced
    assert "nobody knows who wrote it" in planted
    assert pq.read_table(path, partitioning=None).num_rows == 1


def test_a_forged_file_is_not_signed_again(config: Path) -> None:
    """Another reader replaces a file; verification reports it, and apply keeps out of the way."""
    Lake.open(config, signing_key=writer_key()).apply(accept_replaced=True)
    dataset = Lake.open(config).dataset("orders")
    forgers = dataset.policies
    path = min((config.parent / "orders").rglob("*.parquet"))
    place = forgers.place_of(str(path.relative_to(config.parent / "orders")))
    table = mc.read_table(path, dataset.decryption(), partitioning=None)
    with open_source_at(place) as source:
        columns = forgers.open_columns(source, forgers.opening(place))
    policy = forgers.policy(forgers.path_of(place), columns)
    mc.write_table(table, path, forgers.encryption(policy))
    with pytest.raises(mc.errors.WriterSignatureError, match="no writer has signed it"):
        read(config)
    (verified,) = Lake.open(config).verify()
    words = {found.word for file in verified.files for found in file.verification.findings}
    assert "writer-signature" in words
    Lake.open(config, signing_key=writer_key()).apply(accept_replaced=True)
    with pytest.raises(mc.errors.WriterSignatureError, match="no writer has signed it"):
        read(config)


def test_files_that_no_writer_signed_are_not_as_declared(config: Path) -> None:
    """Readers refuse them, so status and apply must not call them declared."""
    writers = config.read_text()
    declare(config, "")
    Lake.open(config).apply()
    assert Lake.open(config).status()[0].counts == {"declared": 2}
    config.write_text(writers)
    (status,) = Lake.open(config).status()
    assert {(file.state, file.reason) for file in status.files} == {
        ("unreadable", "writer-signature")
    }
    (refused,) = Lake.open(config, signing_key=writer_key()).apply(accept_replaced=True)
    assert refused.code == 1
    assert {file.result for file in refused.files} == {"refused"}


def test_a_dataset_is_written_with_a_key(config: Path) -> None:
    lake = Lake.open(config, signing_key=writer_key())
    lake.apply(accept_replaced=True)
    rows = read(config)
    lake.dataset("orders").write(rows)
    assert read(config).num_rows == 2 * rows.num_rows
    with pytest.raises(ValueError, match="requires signatures"):
        Lake.open(config).dataset("orders").write(rows)


@each_case("given, part", [
    ('"writer.pub"', "must be a list"), ("[1]", "must be a list"), ('["none.pub"]', "No such file"),
    ('["modcrypt-verifier:ed25519:AAAA:0"]', "not a verifying key"),
])  # fmt: skip
def test_mistakes_are_reported(given: str, part: str, tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    declare(config, f"signed_by = {given}")
    with pytest.raises(ValueError, match=part):
        Lake.open(config)


def test_the_files_of_the_source_are_plaintext(config: Path) -> None:
    assert pq.read_table(min((config.parent / "orders").rglob("*.parquet"))).num_rows > 0


def test_a_declared_seal_is_required(config: Path) -> None:
    """Signatures alone do not show that a file is missing, or an older one."""
    Lake.open(config, signing_key=writer_key()).apply(accept_replaced=True)
    declare(config, 'signed_by = ["writer.pub"]\nseal_at_least = 1')
    with pytest.raises(mc.errors.IntegrityError, match="the dataset is not sealed"):
        read(config)
    folder = config.parent / "orders"
    path = min(folder.rglob("*.parquet"))
    assert [s.step for s in Lake.open(config).why(path) if not s.ok] == ["seal"]
    assert not Lake.open(config).status()[0].is_declared
    mc.jobs.seal_dataset(folder, writer_key())
    rows = read(config).num_rows
    assert all(result.code == 0 for result in Lake.open(config).verify())
    assert all(step.ok for step in Lake.open(config).why(path))
    assert Lake.open(config).status()[0].is_declared
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(mc.errors.IntegrityError, match="in the seal of the dataset, but missing"):
        read(config)
    (result,), (status,) = Lake.open(config).verify(), Lake.open(config).status()
    assert "files of the dataset's seal are missing" in str(result.findings)
    assert "files of the dataset's seal are missing" in status.summary()
    assert not status.is_declared
    path.write_bytes(content)
    assert read(config).num_rows == rows
    saved = shutil.copytree(folder, config.parent / "saved")
    for remains in (True, False):
        shutil.rmtree(folder)
        if remains:
            folder.mkdir()
            shutil.copy(saved / SEAL_NAME, folder)
        (result,) = Lake.open(config).verify()
        assert (result.code, result.error, len(result.findings)) == (1, "", 1)
        with pytest.raises(mc.errors.IntegrityError if remains else FileNotFoundError):
            read(config)
    saved.rename(folder)
    declare(config, 'signed_by = ["writer.pub"]\nseal_at_least = 2')
    with pytest.raises(mc.errors.IntegrityError, match="but 2 was seen before"):
        read(config)


def test_apply_and_writes_hand_over_to_the_seal(config: Path) -> None:
    """Only what they wrote: other differences stay differences."""
    writer = mc.SigningKey.generate()
    (config.parent / "writer.pub").write_text(f"{writer.verifier}\n")
    declare(config, 'signed_by = ["writer.pub"]\nseal_at_least = 1')
    lake = Lake.open(config, signing_key=writer)
    lake.apply(accept_replaced=True)  # there is no seal yet
    folder = config.parent / "orders"
    mc.jobs.seal_dataset(folder, writer)
    rows = read(config)
    pq.write_table(rows.drop(["day"]), min(folder.rglob("*.parquet")).with_name("new.parquet"))
    lake.apply(accept_replaced=True)
    lake.dataset("orders").write(rows.slice(0, 2))
    assert mc.jobs.verify_seal(folder, [writer.verifier], at_least=3).ok
    shutil.copy(min(folder.rglob("*.parquet")), folder / "planted.parquet")
    pq.write_table(rows.drop(["day"]), min(folder.rglob("*.parquet")).with_name("last.parquet"))
    lake.apply(accept_replaced=True)
    (found,) = mc.jobs.verify_seal(folder, [writer.verifier], at_least=4).findings
    assert (found.path, found.problem) == ("planted.parquet", "foreign")
    (folder / SEAL_NAME).unlink()
    with pytest.raises(mc.errors.IntegrityError, match="number 4 was signed before"):
        lake.dataset("orders").write(rows.slice(0, 2))


@each_case("link", ["z=1", "copy.parquet"])
def test_a_link_to_what_the_dataset_has_is_a_finding(link: str, config: Path) -> None:
    Lake.open(config, signing_key=writer_key()).apply(accept_replaced=True)
    folder, rows = config.parent / "orders", read(config)
    target = min(folder.rglob("*.parquet"))
    (folder / link).symlink_to(target if link.endswith("t") else target.parent)
    (result,) = Lake.open(config).verify()
    assert (result.code, [finding.word for finding in result.findings]) == (1, ["integrity"])
    assert link in result.findings[0].message
    assert read(config).num_rows == rows.num_rows


def test_a_seal_needs_writers(config: Path) -> None:
    declare(config, "seal_at_least = 1")
    with pytest.raises(ValueError, match="needs signed_by"):
        Lake.open(config)
