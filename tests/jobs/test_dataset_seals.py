"""Seals: what a writer signed about a dataset, and what is found to differ."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import CommitConflictError, FormatError, IntegrityError
from modcrypt.jobs import dataset_seals
from modcrypt.kms.signing.ledger import SEAL_NAME
from tests.support.cases import each_case
from tests.support.tables import write_plain
from tools import verify_seal

WRITER, OTHER = mc.SigningKey.generate(), mc.SigningKey.generate("mldsa65")
BY = [WRITER.verifier]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sealed dataset of two partitions."""
    folder = tmp_path / "lake"
    for day in ("1", "2"):
        (folder / f"day={day}").mkdir(parents=True)
        for part in ("a", "b"):
            codec = {"a": "gzip", "b": "zstd"}[part]
            write_plain(folder / f"day={day}" / f"{part}.parquet", compression=codec)
    mc.jobs.seal_dataset(folder, WRITER)
    return folder


def findings(folder: Path, **more: Any) -> list[tuple[str, str]]:
    result = mc.jobs.verify_seal(folder, BY, **more)
    assert result.ok == (not result.findings)
    return [(finding.path, finding.problem) for finding in result.findings]


def test_a_sealed_dataset_is_what_was_sealed(folder: Path) -> None:
    result = mc.jobs.verify_seal(folder, [OTHER.verifier, *BY])
    assert (result.ok, result.sequence, result.files) == (True, 1, 4)
    assert result.signer == WRITER.verifier.hex_id
    assert result.fields().keys() == {"sequence", "signer", "dataset", "files", "findings", "name"}
    seen: list[tuple[int, int]] = []
    mc.jobs.verify_seal(folder, BY, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def altered(folder: Path) -> None:
    path = folder / "day=1/a.parquet"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def hide(folder: Path, path: str) -> None:
    """Put a note about a write into the folder, because of which readers ignore a file."""
    note = json.dumps({"host": "elsewhere", "time": 0, "hidden": [path]})
    (folder / "_modcrypt_writes").mkdir()
    (folder / "_modcrypt_writes/write.json").write_text(note)


def link_twice(folder: Path) -> None:
    shutil.copytree(folder / "day=1", folder.parent / "outside")
    for name in ("day=3", "day=4"):
        (folder / name).symlink_to(folder.parent / "outside")


def replace_by_link(folder: Path) -> None:
    (folder / "day=2").rename(folder / "_day")
    (folder / "day=2").symlink_to("day=1")


ATTACKS: dict[str, tuple[Callable[[Path], object], list[tuple[str, str]]]] = {
    "a byte": (altered, [("day=1/a.parquet", "changed")]),
    "a file removed": (
        lambda f: (f / "day=1/a.parquet").unlink(), [("day=1/a.parquet", "missing")],
    ),
    "a file added": (
        lambda f: shutil.copy(f / "day=1/a.parquet", f / "c.parquet"), [("c.parquet", "foreign")],
    ),
    "a link added": (  # readers read its target twice
        lambda f: (f / "day=2/c.parquet").symlink_to("../day=1/a.parquet"),
        [("day=2/c.parquet", "foreign")],
    ),
    "a link to a folder": (  # whose rows get another partition, or are read twice
        lambda f: (f / "day=0").symlink_to("day=1"), [("day=0", "foreign")],
    ),
    "a link to a later folder": (
        lambda f: (f / "day=1/sub").symlink_to("../day=2"), [("day=1/sub", "foreign")],
    ),
    "a loop": (lambda f: (f / "day=2/again").symlink_to(f), [("day=2/again", "foreign")]),
    "a link around the folder": (
        lambda f: (f / "up").symlink_to(f.parent), [("up", "foreign")],
    ),
    "links to a folder outside": (
        link_twice,
        [
            ("day=3/a.parquet", "foreign"), ("day=3/b.parquet", "foreign"), ("day=4", "foreign"),
        ],
    ),
    "a folder replaced by a link": (
        replace_by_link,
        [
            ("day=2", "foreign"), ("day=2/a.parquet", "missing"), ("day=2/b.parquet", "missing"),
        ],
    ),
    "a link that leads nowhere": (lambda f: (f / "c.parquet").symlink_to("none"), []),
    "a link to itself": (lambda f: (f / "c").symlink_to("c"), []),
    "a file hidden": (lambda f: hide(f, "day=1/a.parquet"), [("day=1/a.parquet", "hidden")]),
    "files swapped": (
        lambda f: (
            (f / "day=1/a.parquet").rename(f / "x"),
            (f / "day=1/b.parquet").rename(f / "day=1/a.parquet"),
            (f / "x").rename(f / "day=1/b.parquet"),
        ),
        [("day=1/a.parquet", "changed"), ("day=1/b.parquet", "changed")],
    ),
    "a partition renamed": (
        lambda f: (f / "day=2").rename(f / "day=3"),
        [
            ("day=2/a.parquet", "missing"), ("day=2/b.parquet", "missing"),
            ("day=3/a.parquet", "foreign"), ("day=3/b.parquet", "foreign"),
        ],
    ),
}  # fmt: skip


@each_case("attack", ATTACKS)
def test_attacks_are_found(attack: str, folder: Path) -> None:
    change, expected = ATTACKS[attack]
    change(folder)
    assert findings(folder) == expected


def test_links_and_hidden_files_are_sealed_as_they_are_read(folder: Path) -> None:
    (folder / "day=2/c.parquet").symlink_to("../day=1/a.parquet")
    hide(folder, "day=1/b.parquet")
    with pytest.raises(IntegrityError, match=r"b\.parquet \(hidden\), day=2/c\.parquet \(foreign"):
        mc.jobs.seal_dataset(folder, WRITER)
    accept = ["day=1/b.parquet", "day=2/c.parquet"]
    assert mc.jobs.seal_dataset(folder, WRITER, accept=accept).files == 4
    assert findings(folder) == [("day=1/b.parquet", "foreign")]


def test_a_folder_outside_is_sealed_as_it_is_read(folder: Path) -> None:
    """A partition on another disk; the folder itself may be a link, too."""
    shutil.move(folder / "day=2", folder.parent / "disk")
    (folder / "day=2").symlink_to(folder.parent / "disk")
    assert findings(folder) == []
    (folder.parent / "link").symlink_to(folder)
    assert findings(folder.parent / "link") == []


def test_a_folder_whose_rows_are_read_twice_is_not_sealed(folder: Path) -> None:
    (folder / "day=9").symlink_to("day=1")
    before = (folder / SEAL_NAME).read_bytes()
    with pytest.raises(ValueError, match=r"day=9 leads to a folder of the dataset"):
        mc.jobs.seal_dataset(folder, WRITER)
    assert (folder / SEAL_NAME).read_bytes() == before


def test_an_unverified_line_is_not_parsed_if_it_is_long(folder: Path) -> None:
    path = folder / SEAL_NAME
    head, line, content = path.read_bytes().split(b"\n", 2)
    for long in (
        json.dumps({"signature": "A" * 8192}).encode(),  # version 1
        line + b" " * (256 << 10) + b"\n" + content,
    ):
        path.write_bytes(head + b"\n" + long)
        with pytest.raises(IntegrityError, match="no signature, or one that is malformed or too"):
            findings(folder)


def test_a_reader_cannot_forge_what_is_sealed(tmp_path: Path) -> None:
    """The attack that only signatures stop: whoever has the key writes another file."""
    folder, key = tmp_path / "lake", b"0123456789012345"
    folder.mkdir()
    encryption = mc.FileEncryptionProperties(footer_key=key)
    mc.encrypt_parquet(write_plain(tmp_path / "plain"), folder / "a.parquet", encryption)
    mc.jobs.seal_dataset(folder, WRITER)
    mc.encrypt_parquet(tmp_path / "plain", folder / "a.parquet", encryption)
    assert mc.verify_parquet(
        folder / "a.parquet", mc.FileDecryptionProperties(footer_key=key)
    ).ok  # fmt: skip
    assert findings(folder) == [("a.parquet", "changed")]


def test_a_new_seal_follows_the_old_one(folder: Path) -> None:
    first = (folder / SEAL_NAME).read_bytes()
    shutil.copytree(folder, folder.parent / "old")
    (folder / "day=1/a.parquet").unlink()
    assert mc.jobs.update_seal(folder, WRITER, removed=["day=1/a.parquet"]).sequence == 2
    assert findings(folder, at_least=2) == []
    with pytest.raises(IntegrityError, match="rolled back"):
        mc.jobs.verify_seal(folder.parent / "old", BY, at_least=2)
    assert mc.jobs.verify_seal(folder.parent / "old", BY).ok  # without a number, nobody can know
    statement = json.loads((folder / SEAL_NAME).read_bytes().partition(b"\n")[0])
    assert statement["previous"] == hashlib.sha256(first.partition(b"\n")[0]).hexdigest()
    assert (folder / "_modcrypt_seals/0000000001.json").read_bytes() == first


def test_other_writers_must_be_named(folder: Path) -> None:
    before = (folder / SEAL_NAME).read_bytes()
    with pytest.raises(IntegrityError, match="not signed by"):
        mc.jobs.seal_dataset(folder, OTHER)
    assert (folder / SEAL_NAME).read_bytes() == before
    assert mc.jobs.seal_dataset(folder, OTHER, signed_by=BY).sequence == 2
    with pytest.raises(IntegrityError, match="not signed by"):
        mc.jobs.verify_seal(folder, BY)
    assert mc.jobs.verify_seal(folder, [OTHER.verifier]).ok


def test_two_writers_conflict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hash_files = dataset_seals._hash_files

    def seal_meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()
        mc.jobs.seal_dataset(folder, WRITER)
        return hash_files(*arguments)

    monkeypatch.setattr(dataset_seals, "_hash_files", seal_meanwhile)
    with pytest.raises(CommitConflictError, match="another writer"):
        mc.jobs.seal_dataset(folder, WRITER)
    assert mc.jobs.verify_seal(folder, BY).sequence == 2


def test_seals_are_for_folders(folder: Path) -> None:
    with pytest.raises((ValueError, OSError)):
        mc.jobs.seal_dataset(folder / "day=1/a.parquet", WRITER)
    with pytest.raises(FileNotFoundError):
        mc.jobs.seal_dataset(folder / "none", WRITER)
    with pytest.raises(IntegrityError, match="not sealed"):
        mc.jobs.verify_seal(folder / "day=1", BY)


# --- altered seals: spec-vectors/seals has more of them -------------------------------------------


def edit(
    folder: Path, change: Callable[[dict[str, Any], list[Any]], object], *, sign: bool
) -> None:
    """Change the statement or content of a seal; sign it again as its writer would not."""
    path = folder / SEAL_NAME
    head, line, content = path.read_bytes().split(b"\n", 2)
    document, files = json.loads(head), json.loads(content)
    hashed = document["content"]
    change(document, files)
    content = json.dumps(files, separators=(",", ":")).encode()
    if sign and document["content"] == hashed:
        document["content"] = hashlib.sha256(content).hexdigest()
    head = json.dumps(document, separators=(",", ":")).encode()
    if sign:
        message = b"modcrypt-seal\x00\x02" + hashlib.sha256(head).digest()
        signature = base64.b64encode(WRITER.sign(message)).decode()
        signatures = {WRITER.verifier.hex_id: signature}
        line = json.dumps({"writers": [], "signatures": signatures}).encode()
    path.write_bytes(head + b"\n" + line + b"\n" + content + b"\n")


CHANGES: dict[str, Callable[[dict[str, Any], list[Any]], object]] = {
    "version": lambda d, f: d.update(version=3),
    "format": lambda d, f: d.update(format="x"),
    "a member": lambda d, f: d.update(more=1),
    "no content": lambda d, f: d.update(content=None),
    "no since": lambda d, f: d.pop("since"),
    "sequence 0": lambda d, f: d.update(sequence=0),
    "sequence true": lambda d, f: d.update(sequence=True),
    "previous": lambda d, f: d.update(previous="x"),
    "a path twice": lambda d, f: f.append(f[-1]),
    "paths not in order": lambda d, f: f.reverse(),
    "a path that leads out": lambda d, f: f[0].__setitem__(0, "../a"),
    "an absolute path": lambda d, f: f[0].__setitem__(0, "/a"),
    "a size that is negative": lambda d, f: f[0].__setitem__(1, -1),
    "a hash in capitals": lambda d, f: f[0].__setitem__(2, "A" * 64),
    "an entry more": lambda d, f: f[0].append(1),
    "since as an object": lambda d, f: d.update(since={}),
}


@each_case("change", CHANGES)
def test_changed_statements_are_refused(change: str, folder: Path) -> None:
    pristine = (folder / SEAL_NAME).read_bytes()
    edit(folder, CHANGES[change], sign=False)
    with pytest.raises(IntegrityError):
        mc.jobs.verify_seal(folder, BY)
    (folder / SEAL_NAME).write_bytes(pristine)
    edit(folder, CHANGES[change], sign=True)
    with pytest.raises(FormatError):
        mc.jobs.verify_seal(folder, BY)


def test_the_named_signer_of_version_1_is_the_one_that_signed(folder: Path) -> None:
    _, _, content = (folder / SEAL_NAME).read_bytes().split(b"\n", 2)
    for named in (WRITER, OTHER):
        document = {
            "format": "modcrypt-seal", "version": 1, "signer": str(named.verifier), "sequence": 1,
            "previous": None, "files": json.loads(content),
        }  # fmt: skip
        head = json.dumps(document).encode()
        made = WRITER.sign(b"modcrypt-seal\x00\x01" + hashlib.sha256(head).digest())
        line = json.dumps({"signature": base64.b64encode(made).decode()}).encode()
        (folder / SEAL_NAME).write_bytes(head + b"\n" + line + b"\n")
        if named is WRITER:
            assert mc.jobs.verify_seal(folder, [*BY, OTHER.verifier]).ok
    with pytest.raises(IntegrityError, match="another signer"):
        mc.jobs.verify_seal(folder, [*BY, OTHER.verifier])


def test_cut_seals_are_refused(folder: Path) -> None:
    data = (folder / SEAL_NAME).read_bytes()
    for size in range(0, len(data) - 1, 13):
        (folder / SEAL_NAME).write_bytes(data[:size])
        with pytest.raises(IntegrityError):
            mc.jobs.verify_seal(folder, BY)


def test_the_independent_verifier_agrees(folder: Path) -> None:
    for key in (WRITER, OTHER):
        mc.jobs.seal_dataset(folder, key, signed_by=[*BY, OTHER.verifier])
        assert verify_seal.verify(folder, str(key.verifier)) == []
    altered(folder)
    assert verify_seal.verify(folder, str(OTHER.verifier)) == ["day=1/a.parquet"]
    with pytest.raises(verify_seal.SealError, match="signature"):
        verify_seal.verify(folder, str(WRITER.verifier))
