"""Which master key opens what, found without any key: every row, and nothing but rows."""

from __future__ import annotations

import base64
import json
import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.jobs.lake import BESIDE, COLUMNS, TABLE, WITHIN, material_file, write_lake
from tests.support.jobs.look import Look
from tests.support.jobs.spoiled_files import SEEDS, apply_edits, edits, seeds, spoil, uses_key_tools
from tests.support.kms.memory_kms import MemoryKms
from tests.support.kms.rotating_kms import RotatingKms
from tests.support.pairwise import case_name, pairwise
from tests.support.randomness import examples
from tests.support.shared_vectors import entry_params, shared_vectors

__all__ = ["seeds"]  # a fixture

LEAVES = {"id": "k1", "address.zip": "k1", "address.city": "k1", "name": "k2"}


@pytest.fixture
def kms() -> RotatingKms:
    return RotatingKms(kf=1, k1=2, k2=37)


def summaries(rows: Iterable[mc.jobs.ScannedKey]) -> set[tuple[str, str | None, str | None]]:
    return {(row.kind, row.column, row.master_key_id) for row in rows}


CASES = pairwise(
    internal_key_material=(True, False),
    plaintext_footer=(True, False),
    double_wrapping=(True, False),
    column_keys=(COLUMNS, {}),
)


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_rows_are_what_the_key_material_says(
    case: dict[str, Any], tmp_path: Path, kms: RotatingKms
) -> None:
    policy = mc.Policy(footer_key="kf", **case)
    (path,) = write_lake(tmp_path, kms, policy, 1)
    leaves = LEAVES if policy.column_keys else {}
    kms.calls.clear()

    rows = list(mc.jobs.scan_keys(tmp_path))

    assert kms.calls == []  # there is no client at all
    footer, *columns = rows
    assert {row.file for row in rows} == {str(path)}
    assert (footer.kind, footer.column, footer.master_key_id) == ("footer", None, "kf")
    if policy.plaintext_footer:
        assert summaries(columns) == {("column", name, key) for name, key in leaves.items()}
    elif policy.internal_key_material:
        assert summaries(columns) == {("hidden", None, None)}
        assert columns[0].message
    else:  # the footer hides the columns, but their key material lies beside it
        keys = set(leaves.values())
        assert summaries(columns) == {("column", None, key) for key in keys}
    look = Look(path, kms).open()
    keks = {kek_id_of(material) for material in look.materials if policy.double_wrapping}
    known = [row for row in rows if row.kind != "hidden"]
    assert {row.kek_id for row in known} <= (keks if policy.double_wrapping else {None})
    assert {row.version for row in known} <= {"1", "2", "37"}
    assert {row.version for row in known if row.master_key_id == "k2"} <= {"37"}
    storage = "internal" if policy.internal_key_material else "external"
    assert {row.storage for row in known} == {storage}

    opened = list(mc.jobs.scan_keys(tmp_path, mc.KeyTools(kms)))
    assert summaries(opened) == {("footer", None, "kf")} | {
        ("column", name, key) for name, key in leaves.items()
    }
    assert {call for call in kms.calls if call[0] != "unwrap"} == set()
    assert {row.storage for row in opened} == {storage}


def kek_id_of(material: dict[str, Any]) -> str:
    return base64.b64decode(material["keyEncryptionKeyID"]).hex()


def test_only_footer_keys_are_asked_for(tmp_path: Path, kms: RotatingKms) -> None:
    for policy in (WITHIN, BESIDE):
        write_lake(tmp_path, kms, policy, 5)
        kms.calls.clear()
        assert len(list(mc.jobs.scan_keys(tmp_path, mc.KeyTools(kms)))) >= 20
        assert kms.calls == [("unwrap", "kf")]


def test_every_file_of_folders_is_reported_by_its_path(tmp_path: Path, kms: RotatingKms) -> None:
    for folder in ("a", "b", "_hidden", ".hidden"):
        write_lake(tmp_path / folder, kms, WITHIN, 2)
    names = [f"{folder}/part-000{n}.parquet" for folder in "ab" for n in range(2)]
    files = [row.file for row in mc.jobs.scan_keys(tmp_path) if row.kind == "footer"]
    assert files == [str(tmp_path / name) for name in names]
    some = [tmp_path / "b", tmp_path / names[0]]
    assert len([row for row in mc.jobs.scan_keys(some) if row.kind == "footer"]) == 3


def test_a_prefix_that_is_not_stored_is_supplied_by_the_policy(
    tmp_path: Path, kms: RotatingKms
) -> None:
    policy = mc.Policy(
        footer_key="kf", column_keys=COLUMNS, aad_prefix="lake/{name}", store_aad_prefix=False
    )
    write_lake(tmp_path, kms, policy, 2)
    tools = mc.KeyTools(kms)
    rows = list(mc.jobs.scan_keys(tmp_path, tools, decryption=tools.decryption(policy)))
    assert {row.column for row in rows} == {None, *LEAVES}
    assert {row.kind for row in mc.jobs.scan_keys(tmp_path)} == {"footer", "hidden"}


def test_explicit_keys_open_footers_as_well(tmp_path: Path, kms: RotatingKms) -> None:
    (path,) = write_lake(tmp_path, kms, WITHIN, 1)
    properties = mc.FileDecryptionProperties(footer_key=Look(path, kms).footer_key)
    rows = list(mc.jobs.scan_keys(path, decryption=properties))
    assert {row.column for row in rows} == {None, *LEAVES}


def test_rows_are_json(tmp_path: Path, kms: RotatingKms) -> None:
    write_lake(tmp_path, kms, WITHIN, 1)
    for row in mc.jobs.scan_keys(tmp_path, mc.KeyTools(kms)):
        assert mc.jobs.ScannedKey(**json.loads(json.dumps(row.fields()))) == row


# --- versions ------------------------------------------------------------------------------------


def test_the_version_of_a_local_keyring_is_reported(tmp_path: Path) -> None:
    keyring = mc.Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    keyring.create_key("kf")
    keyring.rotate_key("kf")
    keyring.rotate_key("kf")
    for double in (True, False):
        policy = mc.Policy(footer_key="kf", double_wrapping=double)
        mc.write_table(
            TABLE, tmp_path / "a.parquet", mc.KeyTools(keyring).encryption(policy), overwrite=True
        )
        (row, _) = mc.jobs.scan_keys(tmp_path / "a.parquet")
        assert (row.master_key_id, row.version) == ("kf", "3")


@each_case(
    ("wrapped", "version"),
    [
        ('{"masterKeyVersion":"NO_VERSION","encryptedKey":"eA=="}', "NO_VERSION"),
        ('{"masterKeyVersion":"12","encryptedKey":"eA=="}', "12"),
        ("vault:v3:eA==", "3"),
        ("vault:v1234567890:eA==", None),
        ("vault:3:eA==", None),
        ("eA==", None),
        ('{"masterKeyVersion":"\x1b[31m","encryptedKey":"eA=="}', None),
        ('{"masterKeyVersion":"1\n2","encryptedKey":"eA=="}', None),
        ('{"masterKeyVersion":"\u202e12","encryptedKey":"eA=="}', None),
        ('{"masterKeyVersion":"' + "1" * 5000 + '"}', None),
        ("vault:v\u0663:eA==", None),
        ("vault:v3", None),
    ],
)
def test_versions_are_reported_where_they_are_plain_text(
    wrapped: str, version: str | None, tmp_path: Path
) -> None:
    (row,) = scan(tmp_path, wrappedDEK=wrapped)
    assert row.version == version


def scan(folder: Path, **members: Any) -> list[mc.jobs.ScannedKey]:
    """Scan a file with the given internal key material; return the footer key's rows."""
    material = {
        "keyMaterialType": "PKMT1", "internalStorage": True, "isFooterKey": True,
        "kmsInstanceID": "DEFAULT", "kmsInstanceURL": "http://169.254.169.254/",
        "masterKeyID": "kf", "wrappedDEK": "eA==", "doubleWrapping": False, **members,
    }  # fmt: skip
    properties = mc.FileEncryptionProperties(
        footer_key=b"0123456789012345", footer_key_metadata=json.dumps(material).encode()
    )
    mc.write_table(TABLE, folder / "a.parquet", properties, overwrite=True)
    return [row for row in mc.jobs.scan_keys(folder / "a.parquet") if row.kind != "hidden"]


@pytest.mark.parametrize("bad", ["\x1b]0;x\x07", "a\nb", "\u202egnp.exe", "", "x" * 1025, 7, None])
def test_an_id_that_cannot_be_printed_is_none(bad: object, tmp_path: Path) -> None:
    (row,) = scan(tmp_path, masterKeyID=bad)
    assert (row.master_key_id, row.storage) == (None, "opaque")


# --- files of other implementations --------------------------------------------------------------


@each_case(("folder", "entry"), entry_params("entries", uses_key_tools))
def test_files_of_the_key_tools_are_reported(
    folder: str, entry: dict[str, Any], tmp_path: Path
) -> None:
    path = shared_vectors() / folder / entry["file"]
    masters = {name: bytes.fromhex(key) for name, key in entry["kms"]["master_keys"].items()}
    look = Look(path, MemoryKms(masters)).open()
    tools = mc.KeyTools(MemoryKms(masters))
    decryption = tools.decryption(accept_algorithms=[entry["enc"]["algorithm"]])
    expected: set[tuple[str, str | None, str | None]] = {("footer", None, "kf")}
    expected |= {
        ("column", name, look.material(metadata)["masterKeyID"])
        for name, metadata in look.metadata.items()
    }
    assert summaries(mc.jobs.scan_keys(path, tools, decryption=decryption)) == expected
    keys = {row.master_key_id for row in mc.jobs.scan_keys(path) if row.kind != "hidden"}
    assert keys <= {key for _, _, key in expected}


# --- what can't be looked into -------------------------------------------------------------------


@each_case(
    ("policy", "kind", "row"),
    [
        (WITHIN, "plaintext", ("error", None, "none")),
        (WITHIN, "no parquet", ("error", None, "none")),
        (WITHIN, "empty", ("error", None, "none")),
        (WITHIN, "cut", ("error", None, "none")),
        (WITHIN, "opaque", ("footer", None, "opaque")),
        (WITHIN, "no key metadata", ("footer", None, "none")),
        (WITHIN, "removed", ("footer", "secret", "internal")),
        (BESIDE, "removed", ("footer", "secret", "external")),
        (BESIDE, "material", ("error", None, "none")),
        (BESIDE, "garbage", ("error", None, "none")),
        (BESIDE, "foreign", ("error", None, "none")),
        (BESIDE, "huge", ("error", None, "none")),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_file_that_cannot_be_looked_into_is_a_row_and_the_others_go_on(
    policy: mc.Policy, kind: str, row: tuple[str, str | None, str], tmp_path: Path
) -> None:
    kms = RotatingKms(kf=1, k1=1, k2=1, secret=1)
    write_lake(tmp_path, kms, policy)
    path = spoil(kind, tmp_path, kms, policy)
    rows = list(mc.jobs.scan_keys(tmp_path))
    mine = [row for row in rows if row.file == str(path)]
    assert (mine[0].kind, mine[0].master_key_id, mine[0].storage) == row
    assert bool(mine[0].message) == (row[0] == "error")
    assert sum(row.kind == "footer" and row.master_key_id == "kf" for row in rows) == 3


def test_with_tools_a_refused_footer_key_is_a_row_too(tmp_path: Path, kms: RotatingKms) -> None:
    write_lake(tmp_path, kms, WITHIN, 2)
    kms.denied.add("kf")
    rows = list(mc.jobs.scan_keys(tmp_path, mc.KeyTools(kms)))
    assert [row.kind for row in rows] == ["error"] * 2
    assert all(row.message for row in rows)


def test_what_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(mc.jobs.scan_keys(tmp_path / "absent"))
    assert list(mc.jobs.scan_keys(tmp_path)) == []


def test_awkward_names_links_and_folders_within_themselves(
    tmp_path: Path, kms: RotatingKms
) -> None:
    folder = tmp_path.joinpath(*["d"] * 100)
    folder.mkdir(parents=True)
    (first,) = write_lake(tmp_path / "first", kms, WITHIN, 1)
    shutil.copy(first, folder / "new\nline.parquet")
    (tmp_path / "round").symlink_to(tmp_path)
    (folder / "dangling.parquet").symlink_to("nothing")
    elsewhere = tmp_path / "_elsewhere" / "day=2"
    elsewhere.mkdir(parents=True)
    shutil.copy(first, elsewhere / "b.parquet")
    (tmp_path / "day=2").symlink_to(elsewhere)  # a partition on another disk
    found = [Path(row.file).name for row in mc.jobs.scan_keys(tmp_path) if row.kind == "footer"]
    assert sorted(found) == ["b.parquet", "new\nline.parquet", "part-0000.parquet"]


def test_a_folder_that_cannot_be_listed_is_not_passed_over(
    tmp_path: Path, kms: RotatingKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write_lake(tmp_path / name, kms, WITHIN, 1)
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if os.fspath(path).endswith("/b"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError):
        list(mc.jobs.scan_keys(tmp_path))


def test_a_pipe_in_the_place_of_key_material_holds_nobody_up(
    tmp_path: Path, kms: RotatingKms
) -> None:
    (path,) = write_lake(tmp_path, kms, BESIDE, 1)
    beside = material_file(path)
    beside.unlink()
    os.mkfifo(beside)
    rows: list[mc.jobs.ScannedKey] = []
    thread = threading.Thread(target=lambda: rows.extend(mc.jobs.scan_keys(path)), daemon=True)
    thread.start()
    thread.join(20)
    if thread.is_alive():
        os.close(os.open(beside, os.O_WRONLY))  # let it go
        thread.join()
        pytest.fail("waited for somebody to write into the pipe")
    assert [row.kind for row in rows] == ["error"]


def test_files_in_other_file_systems_are_scanned(tmp_path: Path, kms: RotatingKms) -> None:
    memory, base = fsspec.filesystem("memory"), f"/{tmp_path.name}"
    memory.mkdir(base)
    for policy in (WITHIN, BESIDE):
        encryption = mc.KeyTools(kms).encryption(policy)
        name = f"{base}/{policy.internal_key_material}.parquet"
        mc.write_table(TABLE, name, encryption, filesystem=memory)
    kinds = [(row.kind, row.storage) for row in mc.jobs.scan_keys(base, filesystem=memory)]
    assert kinds.count(("footer", "internal")) == kinds.count(("footer", "external")) == 1
    again = list(mc.jobs.scan_keys(f"memory:/{base}", mc.KeyTools(kms)))
    assert {row.column for row in again} == {None, *LEAVES}
    memory.rm(base, recursive=True)


# --- hostile files -------------------------------------------------------------------------------


def check_rows(rows: list[mc.jobs.ScannedKey], path: Path) -> None:
    assert rows
    for row in rows:
        assert row.file == str(path)
        assert row.kind in {"footer", "column", "hidden", "error"}
        assert row.storage in {"internal", "external", "opaque", "none"}
        for text in (row.master_key_id, row.version, row.kek_id):
            assert text is None or (text and text.isprintable())
        assert row.kind != "error" or row.message
        json.dumps(row.fields())


@SEEDS
@settings(max_examples=examples(100))
@given(changes=edits(), aim=st.booleans(), keys=st.booleans())
def test_any_altered_file_or_key_material_gives_rows(
    seed: str, changes: list[tuple[int, int, bytes]], aim: bool, keys: bool,
    seeds: dict[str, tuple[bytes, bytes | None]], tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("altered") / "a.parquet"
    data, beside = seeds[seed]
    if beside is not None:
        material_file(path).write_bytes(apply_edits(beside, changes) if aim else beside)
    path.write_bytes(data if aim and beside is not None else apply_edits(data, changes))
    tools = mc.KeyTools(RotatingKms(kf=1, k1=1)) if keys else None
    check_rows(list(mc.jobs.scan_keys(path, tools)), path)


@settings(max_examples=examples(100))
@given(
    wrapped=st.text(max_size=60)
    | st.from_regex(r'\{"masterKeyVersion":"[^"]{1,70}"', fullmatch=True),
    name=st.text(max_size=20),
)
def test_any_text_in_key_material_gives_printable_rows(
    wrapped: str, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    check_rows(scan(folder, wrappedDEK=wrapped, masterKeyID=name), folder / "a.parquet")


@settings(max_examples=examples(100))
@given(data=st.binary(max_size=300), magic=st.sampled_from([b"PAR1", b"PARE", b""]))
def test_any_bytes_give_an_error_row(
    data: bytes, magic: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("bytes") / "a.parquet"
    path.write_bytes(magic + data + (len(data).to_bytes(4, "little") if magic else b"") + magic)
    rows = list(mc.jobs.scan_keys(path))
    check_rows(rows, path)


def test_a_plaintext_file_says_that_it_is_one(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    (row,) = mc.jobs.scan_keys(tmp_path)
    assert row.kind == "error"
    assert "plaintext" in row.message
