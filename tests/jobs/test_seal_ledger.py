"""Ledgers: a new seal is the old one and the changes that its writer declares."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem

import modcrypt as mc
from modcrypt.errors import (
    CommitConflictError,
    FormatError,
    IntegrityError,
    KeyMaterialError,
    KeyRetrievalError,
)
from modcrypt.filesystem import ModcryptFileSystem
from modcrypt.io.places import Place
from modcrypt.jobs import dataset_seals
from modcrypt.kms.signing import seal_format
from modcrypt.kms.signing.ledger import ARCHIVE, SEAL_NAME
from modcrypt.kms.signing.seal_writing import SealWriter
from modcrypt.kms.signing.sealed_statements import Draft, encode_statement
from modcrypt.kms.signing.trusted_writers import WriterChange, parse_changes
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY
from tests.support.resident_memory import forget_peak, resident_memory

OTHER = mc.SigningKey.generate()
KEYS = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
TABLE = pa.table({"n": [1, 2]})


def write(folder: Path, name: str, table: pa.Table = TABLE) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    mc.write_table(table, path, KEYS)
    return path


@pytest.fixture
def writer() -> mc.SigningKey:
    """A key that remembers nothing yet."""
    return mc.SigningKey.generate()


@pytest.fixture
def lake(tmp_path: Path, writer: mc.SigningKey) -> Path:
    """A sealed dataset of three files."""
    folder = tmp_path / "lake"
    for name in ("a", "b", "day=1/c"):
        write(folder, f"{name}.parquet")
    mc.jobs.seal_dataset(folder, writer)
    return folder


def check(lake: Path, writer: mc.SigningKey, **how: Any) -> list[tuple[str, str]]:
    findings = mc.jobs.verify_seal(lake, [writer.verifier], **how).findings
    return [(finding.path, finding.problem) for finding in findings]


def seal_of(lake: Path) -> bytes:
    return (lake / SEAL_NAME).read_bytes()


# --- comparing first ------------------------------------------------------------------------------


def plant(lake: Path) -> None:
    write(lake, "planted.parquet")


def forge(lake: Path) -> None:
    write(lake, "a.parquet", pa.table({"n": [666]}))


def lose(lake: Path) -> None:
    (lake / "b.parquet").unlink()


DIFFERENCES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "planted": (plant, "planted.parquet", "foreign"),
    "forged": (forge, "a.parquet", "changed"),
    "missing": (lose, "b.parquet", "missing"),
    "moved": (
        lambda lake: (lake / "b.parquet").rename(lake / "z.parquet"), "z.parquet", "foreign",
    ),
    "older": (
        lambda lake: shutil.copy(lake / "a.parquet", lake / "day=1/c.parquet"),
        "day=1/c.parquet", "changed",
    ),
}  # fmt: skip


@each_case("name", DIFFERENCES)
def test_what_differs_is_not_signed(lake: Path, writer: mc.SigningKey, name: str) -> None:
    attack, path, problem = DIFFERENCES[name]
    attack(lake)
    before = seal_of(lake)
    with pytest.raises(IntegrityError, match=rf"{path} \({problem}\).*--accept"):
        mc.jobs.seal_dataset(lake, writer)
    with pytest.raises(IntegrityError):
        mc.jobs.seal_dataset(lake, writer, accept=["elsewhere.parquet", f"{path}x"])
    assert seal_of(lake) == before
    assert not (lake / ARCHIVE).exists()


@pytest.mark.parametrize("spelling", ["path", "whole", "folder"])
def test_what_is_accepted_is_signed(
    lake: Path, writer: mc.SigningKey, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lake.parent)
    write(lake, "day=2/x.parquet")
    names = {
        "path": "day=2/x.parquet", "whole": str(lake / "day=2/x.parquet"), "folder": "lake/day=2/",
    }  # fmt: skip
    sealed = mc.jobs.seal_dataset(lake, writer, accept=[names[spelling]])
    assert (sealed.sequence, sealed.files) == (2, 4)
    assert check(lake, writer, at_least=2) == []


def test_an_attack_is_not_hidden_among_what_is_added(lake: Path, writer: mc.SigningKey) -> None:
    forge(lake)
    plant(lake)
    lose(lake)
    write(lake, "d.parquet")
    update = mc.jobs.update_seal(lake, writer, added=["d.parquet"])
    assert (update.sequence, update.added, update.removed) == (2, ("d.parquet",), ())
    found = [("a.parquet", "changed"), ("b.parquet", "missing"), ("planted.parquet", "foreign")]
    assert check(lake, writer) == found


def test_files_are_added_replaced_and_removed(lake: Path, writer: mc.SigningKey) -> None:
    forge(lake)
    lose(lake)
    write(lake, "day=2/x.parquet")
    write(lake, "day=2/y.parquet")
    update = mc.jobs.update_seal(
        lake, writer, added=["a.parquet", str(lake / "day=2")], removed=["b.parquet"]
    )
    assert update.added == ("a.parquet", "day=2/x.parquet", "day=2/y.parquet")
    assert update.removed == ("b.parquet",)
    assert check(lake, writer, at_least=2, dataset=update.dataset) == []


def test_only_files_of_the_dataset_are_added_and_removed(lake: Path, writer: mc.SigningKey) -> None:
    (lake / "_hidden").write_bytes(b"x")
    for name in ("_hidden", "day=1/.c", SEAL_NAME):
        with pytest.raises(ValueError, match="begin with"):
            mc.jobs.update_seal(lake, writer, added=[name])
    with pytest.raises(ValueError, match=r"the seal has no x\.parquet"):
        mc.jobs.update_seal(lake, writer, removed=["x.parquet"])
    with pytest.raises(FileNotFoundError):
        mc.jobs.update_seal(lake, writer, added=["x.parquet"])
    with pytest.raises((OSError, ValueError)):
        mc.jobs.update_seal(lake, writer, added=["../outside.parquet"])
    assert json.loads(seal_of(lake).splitlines()[0])["sequence"] == 1


def test_a_folder_without_a_seal_gets_none_by_an_update(
    tmp_path: Path, writer: mc.SigningKey
) -> None:
    write(tmp_path, "a.parquet")
    with pytest.raises(IntegrityError, match="seals create"):
        mc.jobs.update_seal(tmp_path, writer, added=["a.parquet"])


def test_many_updates_add_up_and_are_listed_anew(
    lake: Path, writer: mc.SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seal_format, "MAX_SINCE", 3)
    lengths = []
    for number in range(9):
        write(lake, f"{number}.parquet")
        removed = [f"{number - 2}.parquet"] if number > 1 else []
        for name in removed:
            (lake / name).unlink()
        mc.jobs.update_seal(lake, writer, added=[f"{number}.parquet"], removed=removed)
        assert check(lake, writer, at_least=number + 2) == []
        lengths.append(len(json.loads(seal_of(lake).splitlines()[0])["since"]))
    assert lengths == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert len(list((lake / ARCHIVE).iterdir())) == 9


def test_an_update_reads_and_writes_little(
    lake: Path, writer: mc.SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens the newest seal, and neither other files nor the list of all files."""
    opened: list[str] = []
    real = dataset_seals.hash_file

    def hash_and_note(place: Place) -> Any:
        opened.append(place.name)
        return real(place)

    monkeypatch.setattr(dataset_seals, "hash_file", hash_and_note)
    monkeypatch.setattr(seal_format, "parse_content", lambda content: 1 / 0)
    write(lake, "d.parquet")
    mc.jobs.update_seal(lake, writer, added=["d.parquet"])
    assert opened == ["d.parquet"]


# --- what a writer remembers ----------------------------------------------------------------------


def remove_seal(lake: Path) -> None:
    (lake / SEAL_NAME).unlink()


def remove_all(lake: Path) -> None:
    remove_seal(lake)
    shutil.rmtree(lake / ARCHIVE)


def roll_back(lake: Path) -> None:
    shutil.copy(lake / ARCHIVE / "0000000001.json", lake / SEAL_NAME)


def put_other_dataset(lake: Path) -> None:
    """The seal of another dataset of the same writer, with a higher number."""
    shutil.copy(lake.parent / "other" / SEAL_NAME, lake / SEAL_NAME)


LOST = {
    "removed": remove_seal,
    "removed with its archive": remove_all,
    "rolled back": roll_back,
    "of another dataset": put_other_dataset,
}


@pytest.fixture
def attacked(lake: Path, writer: mc.SigningKey) -> Path:
    """A dataset whose newest seal has number 2, and another one with 4 beside it."""
    write(lake, "d.parquet")
    mc.jobs.update_seal(lake, writer, added=["d.parquet"])
    other = lake.parent / "other"
    write(other, "a.parquet")
    for _ in range(4):
        mc.jobs.seal_dataset(other, writer)
    return lake


@each_case("attack", LOST)
def test_a_writer_does_not_go_on_after_a_lost_seal(
    attacked: Path, writer: mc.SigningKey, attack: str
) -> None:
    LOST[attack](attacked)
    write(attacked, "e.parquet")
    message = "number 2 was signed before"
    with pytest.raises(IntegrityError, match=message):
        mc.jobs.seal_dataset(attacked, writer, accept=["e.parquet"])
    with pytest.raises(IntegrityError, match=message):
        mc.jobs.update_seal(attacked, writer, added=["e.parquet"])
    with pytest.raises(IntegrityError, match=message), mc.jobs.sealing(attacked, writer):
        write(attacked, "f.parquet")
    assert not (attacked / "f.parquet").exists()


@each_case("attack", LOST)
def test_a_writer_who_accepts_it_never_begins_at_1(
    attacked: Path, writer: mc.SigningKey, attack: str
) -> None:
    dataset = mc.jobs.verify_seal(attacked, [writer.verifier]).dataset
    LOST[attack](attacked)
    names = [path.name for path in attacked.iterdir()]
    sealed = mc.jobs.seal_dataset(attacked, writer, accept=[SEAL_NAME, *names])
    assert (sealed.sequence, sealed.dataset) == (3, dataset)
    assert check(attacked, writer, at_least=3, dataset=dataset) == []
    write(attacked, "e.parquet")
    assert mc.jobs.update_seal(attacked, writer, added=["e.parquet"]).sequence == 4


def test_a_writer_sees_a_history_that_another_one_forged(
    attacked: Path, writer: mc.SigningKey
) -> None:
    """Another writer, whom the first one accepts, continued an older seal."""
    roll_back(attacked)
    for name in ("x.parquet", "y.parquet"):
        write(attacked, name)
        mc.jobs.update_seal(attacked, OTHER, added=[name], signed_by=[writer.verifier])
    with pytest.raises(IntegrityError, match="does not follow seal number 2"):
        mc.jobs.update_seal(attacked, writer, added=["x.parquet"], signed_by=[OTHER.verifier])


def test_a_number_that_the_caller_remembers(lake: Path, writer: mc.SigningKey) -> None:
    with pytest.raises(IntegrityError, match="number 5 was signed before"):
        mc.jobs.seal_dataset(lake, writer, at_least=5)


def test_a_key_in_a_file_remembers_beside_it(lake: Path, tmp_path: Path) -> None:
    key = tmp_path / "writer.key"
    mc.SigningKey.generate().save(key)
    folder = tmp_path / "second"
    write(folder, "a.parquet")
    for _ in range(2):
        mc.jobs.seal_dataset(folder, mc.SigningKey.load(key))
    memory = tmp_path / "writer.key.seals"
    assert memory.stat().st_mode & 0o777 == 0o600
    ((place, known),) = next(iter(json.loads(memory.read_text())["datasets"].values())).items()
    assert (known["sequence"], place) == (2, str(folder))
    (folder / SEAL_NAME).unlink()
    with pytest.raises(IntegrityError, match="number 2 was signed before"):
        mc.jobs.seal_dataset(folder, mc.SigningKey.load(key))
    memory.write_text("{}")
    with pytest.raises(KeyMaterialError, match=r"writer\.key\.seals"):
        mc.jobs.seal_dataset(folder, mc.SigningKey.load(key))
    memory.chmod(0o666)
    with pytest.raises(KeyRetrievalError, match="writable by others"):
        mc.jobs.seal_dataset(folder, mc.SigningKey.load(key))


def test_a_key_where_nothing_can_be_written_remembers_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    key = mc.SigningKey.generate()
    key.kept_at = str(tmp_path / "missing\0folder" / "writer.key")
    key.kept_at = "/proc/writer.key"  # where nobody can create files
    folder = tmp_path / "lake"
    write(folder, "a.parquet")
    mc.jobs.seal_dataset(folder, key)
    (memory,) = (tmp_path / "state/modcrypt/seals").iterdir()
    assert memory.name == f"{key.verifier.hex_id}.json"
    monkeypatch.setenv("XDG_STATE_HOME", "/proc")
    with pytest.raises(OSError, match="cannot be remembered; set XDG_STATE_HOME"):
        mc.jobs.seal_dataset(folder, key)


def test_a_copied_dataset_goes_on(lake: Path, writer: mc.SigningKey) -> None:
    shutil.copytree(lake, lake.parent / "copy")
    assert mc.jobs.seal_dataset(lake.parent / "copy", writer).sequence == 2
    assert check(lake.parent / "copy", writer) == []


def test_another_dataset_is_distinguished_from_the_expected_one(
    attacked: Path, writer: mc.SigningKey
) -> None:
    dataset = mc.jobs.verify_seal(attacked, [writer.verifier]).dataset
    shutil.rmtree(attacked)
    shutil.copytree(attacked.parent / "other", attacked)
    assert check(attacked, writer) == []
    with pytest.raises(IntegrityError, match="seal number 4 is that of another dataset"):
        mc.jobs.verify_seal(attacked, [writer.verifier], dataset=dataset)
    keys = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, signed_by=[writer.verifier],
        seal=mc.kms.RequiredSeal((writer.verifier,), dataset=dataset),
    )  # fmt: skip
    with pytest.raises(IntegrityError, match="another dataset"):
        mc.read_table(str(attacked), keys)


# --- writing --------------------------------------------------------------------------------------


def test_what_a_process_writes_is_sealed(tmp_path: Path, writer: mc.SigningKey) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    table = pa.table({"n": [1, 2, 3], "p": ["x", "y", "x"]})
    with mc.jobs.sealing(lake, writer) as done:
        mc.write_dataset(table, lake, KEYS, partitioning=["p"])
    assert done.update is not None
    assert (done.update.sequence, len(done.update.added)) == (1, 2)
    plant(lake)
    with mc.jobs.sealing(lake, writer) as done:
        path = write(lake, "new.parquet")
        mc.rekey_parquet(
            path,
            path,
            mc.FileDecryptionProperties(footer_key=FOOTER_KEY),
            mc.FileEncryptionProperties(footer_key=os.urandom(16)),
            overwrite=True,
        )
        write(lake, "gone.parquet")
        Place(None, str(lake / "gone.parquet")).remove()
        write(tmp_path, "elsewhere.parquet")
    assert done.update is not None
    assert (done.update.added, done.update.removed) == (("new.parquet",), ("gone.parquet",))
    assert check(lake, writer) == [("planted.parquet", "foreign")]


def test_what_is_replaced_after_it_was_written_is_not_sealed(
    lake: Path, writer: mc.SigningKey
) -> None:
    with mc.jobs.sealing(lake, writer):
        write(lake, "d.parquet")
        write(lake.parent, "forged.parquet").replace(lake / "d.parquet")
    assert check(lake, writer) == [("d.parquet", "changed")]


def test_footers_of_all_sizes_are_those_that_readers_compare(
    lake: Path, writer: mc.SigningKey
) -> None:
    wide = pa.table({f"column {number:05}": [number] for number in range(3000)})
    files = {"wide": wide, "empty": TABLE.slice(0, 0), "small": TABLE}
    with mc.jobs.sealing(lake, writer):
        for name, table in files.items():
            write(lake, f"{name}.parquet", table)
        mc.write_table(TABLE, lake / "big.parquet", KEYS, row_group_size=1, compression=None)
    (_, *entries) = seal_of(lake).splitlines()
    for path, size, sha256, footer in json.loads(entries[-1]):
        data = (lake / path).read_bytes()
        length = int.from_bytes(data[-8:-4], "little") + 8
        hashes = [hashlib.sha256(part).hexdigest() for part in (data, data[-length:])]
        assert [size, sha256, footer] == [len(data), *hashes]


def test_a_block_that_fails_seals_what_was_published(lake: Path, writer: mc.SigningKey) -> None:
    with contextlib.suppress(ZeroDivisionError), mc.jobs.sealing(lake, writer):
        write(lake, "d.parquet")
        raise ZeroDivisionError
    assert check(lake, writer, at_least=2) == []


def test_a_block_that_replaces_all_removes_the_others_only_if_it_succeeds(
    lake: Path, writer: mc.SigningKey
) -> None:
    with contextlib.suppress(ZeroDivisionError), mc.jobs.sealing(lake, writer, replace_all=True):
        write(lake, "d.parquet")
        raise ZeroDivisionError
    assert check(lake, writer, at_least=2) == []
    for name in ("a.parquet", "b.parquet", "day=1/c.parquet", "d.parquet"):
        (lake / name).rename(lake / f"_{Path(name).name}")  # hidden while it is overwritten
    with mc.jobs.sealing(lake, writer, replace_all=True):
        write(lake, "e.parquet")
    (lake / "_a.parquet").rename(lake / "a.parquet")
    assert check(lake, writer, at_least=3) == [("a.parquet", "foreign")]


def test_a_block_without_changes_makes_no_seal(lake: Path, writer: mc.SigningKey) -> None:
    before = seal_of(lake)
    with mc.jobs.sealing(lake, writer) as done:
        pass
    assert (done.update, seal_of(lake)) == (None, before)


def test_a_folder_with_files_but_no_seal_is_not_sealed_in_passing(
    tmp_path: Path, writer: mc.SigningKey
) -> None:
    plant(tmp_path)
    with pytest.raises(IntegrityError, match="seals create"), mc.jobs.sealing(tmp_path, writer):
        write(tmp_path, "a.parquet")
    assert not (tmp_path / "a.parquet").exists()


def test_two_writers_at_once_lose_nothing(lake: Path, writer: mc.SigningKey) -> None:
    def work(name: str) -> None:
        for number in range(5):
            with mc.jobs.sealing(lake / ".", key_of[name], signed_by=known):
                write(lake, f"{name}-{number}.parquet")

    key_of = {"one": writer, "two": OTHER}
    known = [key.verifier for key in key_of.values()]
    threads = [threading.Thread(target=work, args=(name,)) for name in key_of]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mc.jobs.verify_seal(lake, known).findings == ()


def test_a_writer_who_is_too_slow_changes_nothing(
    lake: Path, writer: mc.SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = dataset_seals.hash_file

    def hash_while_another_seals(place: Place) -> Any:
        monkeypatch.setattr(dataset_seals, "hash_file", real)
        mc.jobs.seal_dataset(lake, writer, accept=["d.parquet"])
        return real(place)

    write(lake, "d.parquet")
    monkeypatch.setattr(dataset_seals, "hash_file", hash_while_another_seals)
    with pytest.raises(CommitConflictError):
        mc.jobs.update_seal(lake, writer, added=["d.parquet"])
    assert check(lake, writer) == []


# --- the archive ----------------------------------------------------------------------------------


def altered_archive(path: Path) -> None:
    """Name another size: the list stays well formed."""
    head, line, content = path.read_bytes().split(b"\n", 2)
    size = json.loads(content)[0][1]
    content = content.replace(f",{size},".encode(), f",{size + 1},".encode(), 1)
    path.write_bytes(b"\n".join([head, line, content]))


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


ARCHIVES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "altered": altered_archive,
    "altered head": lambda path: path.write_bytes(
        path.read_bytes().replace(b"version", b"Version")
    ),
    "a folder": replace_by_folder,
    "empty": lambda path: path.write_bytes(b""),
}


@each_case("name", ARCHIVES)
def test_an_older_statement_must_be_the_one_that_was_signed(
    attacked: Path, writer: mc.SigningKey, name: str
) -> None:
    ARCHIVES[name](attacked / ARCHIVE / "0000000001.json")
    with pytest.raises((IntegrityError, FormatError, OSError)):
        mc.jobs.verify_seal(attacked, [writer.verifier])


# --- who signs ------------------------------------------------------------------------------------


def test_keys_are_replaced_and_readers_follow(lake: Path, writer: mc.SigningKey) -> None:
    new = mc.SigningKey.generate("mldsa65")
    mc.jobs.change_seal_writers(lake, [writer, new], [new.verifier])
    assert check(lake, writer) == check(lake, new) == []
    write(lake, "d.parquet")
    with pytest.raises(ValueError, match="has not been allowed to sign since seal number 2"):
        mc.jobs.update_seal(lake, writer, added=["d.parquet"])
    mc.jobs.update_seal(lake, new, added=["d.parquet"])
    assert check(lake, writer) == check(lake, new) == []
    with pytest.raises(IntegrityError, match="not signed by"):
        mc.jobs.verify_seal(lake, [OTHER.verifier])


def sign_head(lake: Path, key: mc.SigningKey, **members: Any) -> None:
    """Replace the newest seal by one with other members, signed by a key."""
    head, rest, *content = seal_of(lake).split(b"\n")
    document = json.loads(head)
    document |= members
    new = json.dumps(document, separators=(",", ":")).encode()
    message = b"modcrypt-seal\0\x02" + hashlib.sha256(new).digest()
    signatures = json.loads(rest)
    signatures["signatures"] = {key.verifier.hex_id: base64.b64encode(key.sign(message)).decode()}
    lines = [new, json.dumps(signatures, separators=(",", ":")).encode(), *content]
    (lake / SEAL_NAME).write_bytes(b"\n".join(lines))


def test_a_revoked_key_is_refused_with_number_and_reason(lake: Path, writer: mc.SigningKey) -> None:
    mc.jobs.change_seal_writers(lake, [writer, OTHER], [OTHER.verifier])
    sign_head(lake, writer, sequence=9)
    message = r"has not been allowed to sign since seal number 2 \(it claims the number 9\)"
    with pytest.raises(IntegrityError, match=message):
        mc.jobs.verify_seal(lake, [writer.verifier])
    before = seal_of(lake)
    write(lake, "d.parquet")
    with pytest.raises(IntegrityError, match=r"not been allowed to sign|not signed"):
        mc.jobs.update_seal(lake, OTHER, added=["d.parquet"], signed_by=[writer.verifier])
    assert seal_of(lake) == before


def test_so_many_writers_must_sign(lake: Path, writer: mc.SigningKey) -> None:
    third = mc.SigningKey.generate()
    keys = [writer, OTHER, third]
    known = [key.verifier for key in keys]
    mc.jobs.change_seal_writers(lake, [writer, OTHER], known, needed=2)
    write(lake, "d.parquet")
    with pytest.raises(ValueError, match="2 of the keys"):
        mc.jobs.update_seal(lake, writer, added=["d.parquet"], signed_by=known)
    mc.jobs.update_seal(lake, [third, writer], added=["d.parquet"], signed_by=known)
    for trusted in ([writer.verifier], known):
        assert mc.jobs.verify_seal(lake, trusted).ok
    assert mc.jobs.verify_seal(lake, known, needed=2).ok
    with pytest.raises(ValueError, match="3 signatures are needed"):
        mc.jobs.verify_seal(lake, known[:2], needed=3)
    with pytest.raises(ValueError, match="2 of the keys"):
        mc.jobs.change_seal_writers(lake, writer, [writer.verifier], signed_by=known)
    sign_head(lake, third)
    with pytest.raises(IntegrityError, match="needs 2 signatures"):
        mc.jobs.verify_seal(lake, [writer.verifier])


def test_a_stranger_changes_no_writers(lake: Path, writer: mc.SigningKey) -> None:
    stranger = mc.SigningKey.generate()
    with pytest.raises(IntegrityError, match="not signed by"):
        mc.jobs.change_seal_writers(lake, stranger, [stranger.verifier])
    with pytest.raises(ValueError, match="of the keys"):
        mc.jobs.change_seal_writers(
            lake, stranger, [stranger.verifier], signed_by=[writer.verifier]
        )
    with pytest.raises(ValueError, match="signatures are needed"):
        mc.jobs.change_seal_writers(lake, writer, [writer.verifier], needed=2)


# --- time -----------------------------------------------------------------------------------------


def test_a_seal_expires(lake: Path, writer: mc.SigningKey, monkeypatch: pytest.MonkeyPatch) -> None:
    mc.jobs.seal_dataset(lake, writer, valid_for=100)
    write(lake, "d.parquet")
    mc.jobs.update_seal(lake, writer, added=["d.parquet"])  # which is valid as long
    assert check(lake, writer) == []
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 101)
    with pytest.raises(IntegrityError, match=r"seal number 3 expired at .* UTC"):
        mc.jobs.verify_seal(lake, [writer.verifier])
    mc.jobs.seal_dataset(lake, writer, valid_for=0)
    monkeypatch.setattr(time, "time", lambda: now + 1e9)
    assert check(lake, writer) == []


# --- witnesses ------------------------------------------------------------------------------------


def test_a_witness_notices_what_writer_and_store_roll_back(
    lake: Path, writer: mc.SigningKey, tmp_path: Path
) -> None:
    witness, store = mc.SigningKey.generate(), tmp_path / "store"
    required: dict[str, Any] = {"witnessed_by": [witness.verifier], "witness_store": store}
    by = [writer.verifier]
    with pytest.raises(IntegrityError, match="has not countersigned"):
        mc.jobs.verify_seal(lake, by, **required)
    assert mc.jobs.witness_seal(lake, witness, by, store) == 1
    assert check(lake, writer, **required) == []
    old = tmp_path / "old"
    shutil.copytree(lake, old)
    write(lake, "d.parquet")
    mc.jobs.update_seal(lake, writer, added=["d.parquet"])
    with pytest.raises(IntegrityError, match="not yet 2"):
        mc.jobs.verify_seal(lake, by, **required)
    assert [mc.jobs.witness_seal(lake, witness, by, store) for _ in range(2)] == [2, 2]
    shutil.rmtree(lake)
    old.rename(lake)
    with pytest.raises(IntegrityError, match="rolled back"):
        mc.jobs.verify_seal(lake, by, **required)
    with pytest.raises(IntegrityError, match="number 2 was signed before"):
        mc.jobs.witness_seal(lake, witness, by, store)
    writer.remembered.clear()  # a writer who does it on purpose
    write(lake, "e.parquet")
    mc.jobs.update_seal(lake, writer, added=["e.parquet"])
    with pytest.raises(IntegrityError, match="countersigned another seal with number 2"):
        mc.jobs.verify_seal(lake, by, **required)
    with pytest.raises(IntegrityError, match="does not follow seal number 2"):
        mc.jobs.witness_seal(lake, witness, by, store)
    with pytest.raises(ValueError, match="witness_store"):
        mc.jobs.verify_seal(lake, by, witnessed_by=[witness.verifier])


def test_readers_require_witnesses(lake: Path, writer: mc.SigningKey, tmp_path: Path) -> None:
    witness = mc.SigningKey.generate()
    with mc.jobs.sealing(lake, writer):
        signed = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, signing_key=writer)
        for name in ("a", "b", "day=1/c"):
            mc.write_table(TABLE, lake / f"{name}.parquet", signed)
    seal = mc.kms.RequiredSeal(
        (writer.verifier,), witnessed_by=(witness.verifier,), witness_store=str(tmp_path / "store")
    )
    keys = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, signed_by=[writer.verifier], seal=seal
    )
    with pytest.raises(IntegrityError, match="has not countersigned"):
        mc.read_table(str(lake), keys)
    mc.jobs.witness_seal(lake, witness, [writer.verifier], tmp_path / "store")
    assert mc.read_table(str(lake), keys).num_rows == 6


# --- the log --------------------------------------------------------------------------------------


def test_the_log_states_who_changed_what(lake: Path, writer: mc.SigningKey) -> None:
    forge(lake)
    write(lake, "d.parquet")
    mc.jobs.update_seal(lake, writer, added=["a.parquet", "d.parquet"])
    lose(lake)
    known = [writer.verifier, OTHER.verifier]
    mc.jobs.update_seal(lake, OTHER, removed=["b.parquet"], signed_by=known)
    mc.jobs.change_seal_writers(lake, OTHER, [OTHER.verifier], signed_by=known)
    mc.jobs.seal_dataset(lake, OTHER)
    log = mc.jobs.seal_log(lake, known)
    assert log.complete
    assert [(e.sequence, e.added, e.replaced, e.removed) for e in log.entries] == [
        (1, ("a.parquet", "b.parquet", "day=1/c.parquet"), (), ()),
        (2, ("d.parquet",), ("a.parquet",), ()),
        (3, (), (), ("b.parquet",)),
        (4, (), (), ()),
        (5, (), (), ()),
    ]
    one, two = writer.verifier.hex_id, OTHER.verifier.hex_id
    assert [entry.signers for entry in log.entries] == [(one,), (one,), (two,), (two,), (two,)]
    assert [entry.writers for entry in log.entries] == [None, None, None, (two,), None]
    (lake / ARCHIVE / "0000000002.json").unlink()
    log = mc.jobs.seal_log(lake, known)
    assert (log.complete, [entry.sequence for entry in log.entries]) == (False, [3, 4, 5])


# --- version 1 ------------------------------------------------------------------------------------


def put_first_version(lake: Path, writer: mc.SigningKey) -> None:
    """Write the seal that modcrypt 0.1 wrote of a folder."""
    files = json.loads(seal_of(lake).splitlines()[2])
    statement = json.dumps({
        "format": "modcrypt-seal", "version": 1, "signer": str(writer.verifier), "sequence": 7,
        "previous": "0" * 64, "files": files,
    }).encode()  # fmt: skip
    signature = writer.sign(b"modcrypt-seal\0\x01" + hashlib.sha256(statement).digest())
    line = json.dumps({"signature": base64.b64encode(signature).decode()}).encode()
    (lake / SEAL_NAME).write_bytes(statement + b"\n" + line + b"\n")


@pytest.mark.parametrize("how", ["all", "changes"])
def test_a_seal_of_version_1_is_followed(lake: Path, writer: mc.SigningKey, how: str) -> None:
    put_first_version(lake, writer)
    writer.remembered.clear()
    assert check(lake, writer, at_least=7) == []
    write(lake, "d.parquet")
    if how == "all":
        mc.jobs.seal_dataset(lake, writer, accept=["d.parquet"])
    else:
        mc.jobs.update_seal(lake, writer, added=["d.parquet"])
    assert check(lake, writer, at_least=8) == []
    assert [entry.sequence for entry in mc.jobs.seal_log(lake, [writer.verifier]).entries] == [7, 8]
    put_first_version(lake, writer)
    with pytest.raises(IntegrityError, match="number 8 was signed before"):
        mc.jobs.seal_dataset(lake, writer)


# --- proposals ------------------------------------------------------------------------------------


def test_writers_on_several_machines_sign_one_after_the_other(
    lake: Path, writer: mc.SigningKey
) -> None:
    third = mc.SigningKey.generate()
    known = [key.verifier for key in (writer, OTHER, third)]
    mc.jobs.change_seal_writers(lake, [writer, OTHER, third], known, needed=3)
    write(lake, "d.parquet")
    before = seal_of(lake)
    mc.jobs.update_seal(lake, writer, added=["d.parquet"], signed_by=known, propose=True)
    seen, newest = mc.jobs.cosign_seal(lake, OTHER, proposal=None, signed_by=known)
    assert (seen.added, newest) == (("d.parquet",), False)
    assert not mc.jobs.cosign_seal(lake, OTHER, proposal=seen.name, signed_by=known)[1]
    assert seal_of(lake) == before
    with pytest.raises(IntegrityError, match="another one"):
        mc.jobs.cosign_seal(lake, third, proposal="3:" + "0" * 64, signed_by=known)
    assert mc.jobs.cosign_seal(lake, third, proposal=seen.name, signed_by=known)[1]
    assert mc.jobs.verify_seal(lake, known, at_least=3, needed=3).ok
    with pytest.raises(IntegrityError, match="no seal is proposed"):
        mc.jobs.cosign_seal(lake, third, proposal=None, signed_by=known)


def test_a_proposal_must_be_a_writers_and_follow_the_newest_seal(
    lake: Path, writer: mc.SigningKey
) -> None:
    known = [writer.verifier, OTHER.verifier]
    mc.jobs.change_seal_writers(lake, [writer, OTHER], known, needed=2)
    write(lake, "d.parquet")
    mc.jobs.update_seal(lake, writer, added=["d.parquet"], signed_by=known, propose=True)
    path = lake / ARCHIVE / "proposed.json"
    good = path.read_bytes()
    for bad in (good.replace(b"d.parquet", b"e.parquet"), good[:-9], b"", b"{}\n{}\n"):
        path.write_bytes(bad)
        with pytest.raises((IntegrityError, FormatError)):
            mc.jobs.cosign_seal(lake, OTHER, proposal=None, signed_by=known)
    path.write_bytes(good)
    mc.jobs.update_seal(lake, [writer, OTHER], added=["d.parquet"])
    path.write_bytes(good)
    with pytest.raises(CommitConflictError, match="propose it again"):
        mc.jobs.cosign_seal(lake, OTHER, proposal=None, signed_by=known)


def test_every_verb_hands_over(tmp_path: Path, writer: mc.SigningKey) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    keyring = mc.Keyring.create(tmp_path / "k.ring", plaintext=True)
    keyring.create_key("footer")
    keyring.create_key("pii")
    tools = mc.KeyTools(keyring)
    policy = mc.Policy(footer_key="footer", column_keys={"pii": ["n"]})
    one, two = (mc.Identity.generate("x25519") for _ in range(2))
    reader = mc.FileDecryptionProperties(key_retriever=one)
    files = [str(lake / name) for name in ("a.parquet", "b.parquet")]

    def encrypt() -> None:
        mc.write_table(TABLE, files[0], tools.encryption(policy))
        mc.write_table(TABLE, files[1], mc.kms.RecipientEncryption(recipients=[one.recipient]))

    verbs: list[Callable[[], object]] = [
        encrypt,
        lambda: (keyring.rotate_key("footer"), list(mc.jobs.rotate_keys([files[0]], tools))),
        lambda: mc.jobs.add_recipients([files[1]], [two.recipient], reader),
        lambda: mc.mask_parquet(
            files[0], lake / "c.parquet", tools.decryption(), null=["n"],
            encryption=tools.encryption(policy),
        ),
        lambda: mc.jobs.shred_keys([files[0]], tools, columns=["n"]),
        lambda: mc.decrypt_parquet(files[1], lake / "d.parquet", reader),
    ]  # fmt: skip
    for number, verb in enumerate(verbs, 1):
        with mc.jobs.sealing(lake, writer):
            verb()
        assert check(lake, writer, at_least=number) == []


# --- attacks on who signs -------------------------------------------------------------------------


def sign_next(lake: Path, keys: list[mc.SigningKey], changes: tuple[WriterChange, ...]) -> None:
    """Write a next seal that repeats only these changes of the writers."""
    head = json.loads(seal_of(lake).splitlines()[0])
    number, before = head["sequence"], hashlib.sha256(seal_of(lake).splitlines()[0]).hexdigest()
    archived = lake / ARCHIVE / f"{number:010}.json"
    archived.parent.mkdir(exist_ok=True)
    archived.write_bytes(seal_of(lake))
    draft = Draft(head["dataset"], {"since": [*head["since"], [number, before]]}, b"[]")
    data = encode_statement(keys, seal_format.DATASET, draft, (number, before), changes)
    (lake / SEAL_NAME).write_bytes(data)


def changes_of(lake: Path) -> tuple[WriterChange, ...]:
    return parse_changes(json.loads(seal_of(lake).splitlines()[1])["writers"])


def test_a_revoked_writer_cannot_leave_out_its_revocation(
    lake: Path, writer: mc.SigningKey
) -> None:
    known = [writer.verifier, OTHER.verifier]
    mc.jobs.change_seal_writers(lake, [writer, OTHER], known)
    mc.jobs.change_seal_writers(lake, writer, [writer.verifier])
    seen = mc.jobs.verify_seal(lake, [writer.verifier]).name
    sign_next(lake, [OTHER], changes_of(lake)[:1])
    message = "leaves out or alters changes of the writers"
    with pytest.raises(IntegrityError, match=message):
        mc.jobs.verify_seal(lake, [writer.verifier], after=seen)
    with pytest.raises(IntegrityError, match=message):
        mc.jobs.update_seal(lake, writer, added=["a.parquet"])
    witness = mc.SigningKey.generate()
    assert (
        mc.jobs.verify_seal(lake, [writer.verifier]).sequence == 4
    )  # nothing that it knows differs
    roll_back_to(lake, 3)
    mc.jobs.witness_seal(lake, witness, [writer.verifier], lake.parent / "audit")
    sign_next(lake, [OTHER], changes_of(lake)[:1])
    with pytest.raises(IntegrityError, match=message):
        mc.jobs.witness_seal(lake, witness, [writer.verifier], lake.parent / "audit")


def roll_back_to(lake: Path, number: int) -> None:
    shutil.copy(lake / ARCHIVE / f"{number:010}.json", lake / SEAL_NAME)


def test_one_of_two_writers_cannot_drop_the_other(lake: Path, writer: mc.SigningKey) -> None:
    known = [writer.verifier, OTHER.verifier]
    mc.jobs.change_seal_writers(lake, [writer, OTHER], known, needed=2)
    seen = mc.jobs.verify_seal(lake, known).name
    sign_next(lake, [OTHER], ())
    demands: list[dict[str, Any]] = [{"after": seen}, {"needed": 2}]
    for how in demands:
        with pytest.raises(IntegrityError):
            mc.jobs.verify_seal(lake, known, **how)
    with pytest.raises(IntegrityError, match="leaves out"):
        mc.jobs.update_seal(lake, writer, added=["a.parquet"], signed_by=known)


def test_a_writer_who_accepts_a_lost_seal_may_still_only_sign_with_others(
    lake: Path, writer: mc.SigningKey
) -> None:
    known = [writer.verifier, OTHER.verifier]
    mc.jobs.seal_dataset(lake, writer, valid_for=1000)
    mc.jobs.change_seal_writers(lake, [writer, OTHER], known, needed=2)
    remove_seal(lake)
    with pytest.raises(ValueError, match="2 of the keys"):
        mc.jobs.seal_dataset(lake, writer, signed_by=known, accept=[SEAL_NAME])
    assert mc.jobs.seal_dataset(lake, [writer, OTHER], accept=[SEAL_NAME]).sequence == 4
    head = json.loads(seal_of(lake).splitlines()[0])
    assert head["expires"] - head["time"] == 1000
    assert len(changes_of(lake)) == 1


def test_readers_who_remember_a_seal_notice_another_history(
    lake: Path, writer: mc.SigningKey
) -> None:
    """Another writer continued an older state that the store had put back."""
    known = [writer.verifier, OTHER.verifier]
    mc.jobs.update_seal(lake, OTHER, added=["a.parquet"], signed_by=known)
    seen = mc.jobs.verify_seal(lake, known).name
    roll_back_to(lake, 1)
    for _ in range(2):
        mc.jobs.update_seal(lake, writer, added=["b.parquet"], signed_by=known)
    assert mc.jobs.verify_seal(lake, known, at_least=2).ok  # a number alone does not show it
    with pytest.raises(IntegrityError, match="does not follow seal number 2"):
        mc.jobs.verify_seal(lake, known, after=seen)
    for text in ("2", "0:" + "0" * 64, "2:xyz"):
        with pytest.raises(ValueError, match="NUMBER:HASH"):
            mc.jobs.verify_seal(lake, known, after=text)


def test_a_head_that_is_exchanged_is_not_compared_with(
    lake: Path, writer: mc.SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(lake, "d.parquet")
    mc.jobs.update_seal(lake, writer, added=["d.parquet"])
    begin = SealWriter.begin

    def begin_before_the_exchange(self: SealWriter, *arguments: Any, **how: Any) -> Any:
        former = begin(self, *arguments, **how)
        roll_back_to(lake, 1)
        return former

    (lake / "d.parquet").unlink()
    monkeypatch.setattr(SealWriter, "begin", begin_before_the_exchange)
    with pytest.raises(CommitConflictError):
        mc.jobs.seal_dataset(lake, writer)


@pytest.mark.parametrize("part", ["since", "writers", "dataset"])
def test_a_proposal_states_only_changes_of_files(
    lake: Path, writer: mc.SigningKey, part: str
) -> None:
    known = [writer.verifier, OTHER.verifier]
    mc.jobs.change_seal_writers(lake, [writer, OTHER], known, needed=2)
    write(lake, "d.parquet")
    mc.jobs.update_seal(lake, [writer, OTHER], added=["d.parquet"])
    head = json.loads(seal_of(lake).splitlines()[0])
    before = hashlib.sha256(seal_of(lake).splitlines()[0]).hexdigest()
    since, changes, dataset = [*head["since"], [3, before]], changes_of(lake), head["dataset"]
    since = [since[0], since[2]] if part == "since" else since
    dataset = "other" if part == "dataset" else dataset
    draft = Draft(dataset, {"since": since}, b"[]")
    changes = () if part == "writers" else changes
    data = encode_statement([writer], seal_format.DATASET, draft, (3, before), changes)
    (lake / ARCHIVE / "proposed.json").write_bytes(data)
    with pytest.raises(IntegrityError, match=r"more than files|not those that were signed"):
        mc.jobs.cosign_seal(lake, OTHER, proposal=None, signed_by=known)


# --- attacks on what is written -------------------------------------------------------------------


@pytest.mark.parametrize("attack", ["changed", "foreign"])
def test_nothing_is_made_of_a_forged_file(lake: Path, writer: mc.SigningKey, attack: str) -> None:
    name = {"changed": "a.parquet", "foreign": "planted.parquet"}[attack]
    write(lake, name, pa.table({"n": [666]}))
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    new = mc.FileEncryptionProperties(footer_key=os.urandom(16))
    message = {"changed": "not the file that was sealed", "foreign": "does not name it"}[attack]
    for target in (name, "copy.parquet"):
        with pytest.raises(IntegrityError, match=message), mc.jobs.sealing(lake, writer):
            mc.rekey_parquet(lake / name, lake / target, reader, new, overwrite=True)
    assert check(lake, writer) == [(name, attack)]
    with mc.jobs.sealing(lake, writer, accept_new=True):
        mc.rekey_parquet(lake / "b.parquet", lake / "b.parquet", reader, new, overwrite=True)
        mc.rekey_parquet(
            lake / "b.parquet",
            lake / "e.parquet",
            mc.FileDecryptionProperties(footer_key=new.footer_key),
            new,
        )
    assert check(lake, writer, at_least=2) == [(name, attack)]


def test_a_folder_by_another_name_is_the_same(
    attacked: Path, writer: mc.SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = attacked.parent / "link"
    link.symlink_to(attacked)
    remove_all(attacked)
    monkeypatch.chdir(attacked.parent)
    for name in (link, "lake", "./lake/", f"file://{attacked}", link / ".." / "lake"):
        with pytest.raises(IntegrityError, match="number 2 was signed before"):
            mc.jobs.seal_dataset(name, writer)


def test_a_block_keeps_its_folder(
    lake: Path, writer: mc.SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(lake, tmp_path / "elsewhere" / "lake")
    monkeypatch.chdir(tmp_path)
    with mc.jobs.sealing("lake", writer):
        monkeypatch.chdir(tmp_path / "elsewhere")
        write(Path("lake"), "x.parquet")
        write(lake, "d.parquet")
    assert check(lake, writer, at_least=2) == []


def test_a_fork_of_a_block_signs_nothing(lake: Path, writer: mc.SigningKey) -> None:
    with mc.jobs.sealing(lake, writer):
        write(lake, "d.parquet")
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                raise SystemExit
            os._exit(0)
        os.waitpid(child, 0)
    assert json.loads(seal_of(lake).splitlines()[0])["sequence"] == 2


def test_two_blocks_that_write_one_file_conflict(lake: Path, writer: mc.SigningKey) -> None:
    known = [writer.verifier, OTHER.verifier]

    def write_after_another() -> None:
        with mc.jobs.sealing(lake, writer, signed_by=known):
            write(lake, "a.parquet", pa.table({"n": [1]}))
            mc.jobs.update_seal(lake, OTHER, added=["a.parquet"], signed_by=known)
            write(lake, "a.parquet", pa.table({"n": [2]}))

    with pytest.raises(CommitConflictError, match=r"sealed a\.parquet meanwhile"):
        write_after_another()
    (found,) = mc.jobs.verify_seal(lake, known).findings
    assert (found.path, found.problem) == ("a.parquet", "changed")


def test_moves_and_removals_of_the_file_system_are_recorded(
    lake: Path, writer: mc.SigningKey
) -> None:
    fs = ModcryptFileSystem(
        fs=LocalFileSystem(), encryption=KEYS,
        decryption=mc.FileDecryptionProperties(footer_key=FOOTER_KEY),
    )  # fmt: skip
    with mc.jobs.sealing(lake, writer):
        fs.rm(str(lake / "a.parquet"))
        write(lake, "new.parquet")
        fs.mv(str(lake / "new.parquet"), str(lake / "moved.parquet"))
        write(lake, "day=2/x.parquet")
        fs.mv(str(lake / "day=2"), str(lake / "day=3"), recursive=True)
        fs.rm(str(lake / "day=1"), recursive=True)
    assert check(lake, writer, at_least=2) == []
    files = {entry[0] for entry in json.loads(seal_of(lake).splitlines()[2])}
    assert files == {"a.parquet", "day=1/c.parquet", "day=2/x.parquet", "day=3/x.parquet",
                     "moved.parquet", "new.parquet"}  # fmt: skip


# --- resources ------------------------------------------------------------------------------------


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate((1 << 30) - 1)


def make_sparse_behind(path: Path) -> None:
    """Put zeros behind what was signed."""
    with path.open("r+b") as file:
        file.truncate(1 << 30)


@pytest.mark.parametrize("plant", [make_sparse, make_sparse_behind])
def test_what_nobody_signed_is_not_read_into_memory(
    lake: Path, writer: mc.SigningKey, plant: Callable[[Path], None]
) -> None:
    plant(lake / SEAL_NAME)
    before = forget_peak()
    with pytest.raises(IntegrityError):
        mc.jobs.verify_seal(lake, [writer.verifier])
    assert resident_memory("VmHWM") - before < 64 << 20
