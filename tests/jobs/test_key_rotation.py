"""Keys wrapped anew: the same rows and pages, new key metadata, and who opens what afterwards."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import modcrypt as mc
from modcrypt.io.sources import open_source_at
from modcrypt.jobs import key_rotation
from tests.support.algorithms import CTR, GCM
from tests.support.cases import each_case, one_in
from tests.support.folder_contents import bytes_of
from tests.support.jobs.lake import (
    BESIDE,
    COLUMNS,
    OTHER,
    STORAGE,
    TABLE,
    WITHIN,
    WRAPPING,
    material_file,
    read,
    results,
    write_lake,
)
from tests.support.jobs.look import Look
from tests.support.jobs.spoiled_files import SEEDS, apply_edits, edits, seeds, spoil, uses_key_tools
from tests.support.kms.memory_kms import MASTERS, MemoryKms
from tests.support.kms.rotating_kms import BasicKms, RewrappingKms, RotatingKms, crypto_factory
from tests.support.pairwise import case_name, pairwise
from tests.support.randomness import examples
from tests.support.shared_vectors import entry_params, shared_vectors
from tests.support.sleeps import note_sleeps
from tools.verify_pme import verify

__all__ = ["seeds"]  # a fixture


@pytest.fixture
def kms() -> RotatingKms:
    return RotatingKms(kf=1, k1=1, k2=1)


# --- an independent look at key metadata and footers ---------------------------------------------


def check_only_keys_changed(old: Look, new: Look, prefix: bytes = b"") -> None:
    """Hold a rotated file against what it was, by bytes and by footers without key metadata."""
    assert new.body == old.body
    assert (new.crypto, new.footer) == (old.crypto, old.footer)
    assert (new.footer_key, new.keys) == (old.footer_key, old.keys)
    if new.module != old.module:
        assert new.nonce != old.nonce
    algorithm = GCM if 1 in (new.crypto.get(1) or new.footer[8]) else CTR
    assert verify(
        new.file, new.footer_key, new.keys, prefix or None, accept_algorithms=(algorithm,)
    )


# --- what rotation changes, and what it leaves ---------------------------------------------------

CASES = pairwise(
    what=("mek", "kek"),
    double_wrapping=(True, False),
    internal_key_material=(True, False),
    plaintext_footer=(True, False),
    column_keys=({}, COLUMNS),
    encryption_algorithm=(GCM, CTR),
    prefix=("none", "stored", "supplied", "named", "named and supplied"),
)
PREFIXES: dict[str, dict[str, Any]] = {
    "none": {},
    "stored": {"aad_prefix": "lake/people"},
    "supplied": {"aad_prefix": "lake/people", "store_aad_prefix": False},
    "named": {"aad_prefix": "lake/{name}"},
    "named and supplied": {"aad_prefix": "lake/{name}", "store_aad_prefix": False},
}


def rich_source(folder: Path) -> Path:
    """Write several row groups and pages, indexes and Bloom filters."""
    path = folder / "plain.parquet"
    pq.write_table(
        TABLE,
        path,
        row_group_size=25,
        max_rows_per_page=10,
        write_page_index=True,
        write_page_checksum=True,
        bloom_filter_options={"id": {"ndv": 50, "fpp": 0.1}, "name": {"ndv": 50, "fpp": 0.1}},
    )
    return path


@each_case("case", CASES, ids=case_name)
def test_only_key_metadata_changes(case: dict[str, Any], tmp_path: Path, kms: RotatingKms) -> None:
    case = dict(case)
    what, kind = case.pop("what"), case.pop("prefix")
    policy = mc.Policy(footer_key="kf", **case, **PREFIXES[kind])
    lake, tools = tmp_path / "lake", mc.KeyTools(kms)
    lake.mkdir()
    path, source = lake / "a.parquet", rich_source(tmp_path)
    mc.encrypt_parquet(source, path, tools.encryption(policy))
    prefix = b"" if policy.aad_prefix is None else policy.aad_prefix.encode()
    prefix = prefix.replace(b"{name}", b"a.parquet")
    old = Look(path, kms).open(prefix)
    kms.rotate()

    done = mc.jobs.rotate_keys(lake, tools, what=what, decryption=tools.decryption(policy))

    assert [(file.path, file.result) for file in done] == [(str(path), "rotated")]
    assert done[0].keys == len({old.footer_key, *old.keys.values()})
    new = Look(path, kms).open(prefix)
    check_only_keys_changed(old, new, prefix)
    assert (new.file == old.file) == (not policy.internal_key_material)
    for before, after in zip(old.materials, new.materials, strict=True):
        changing = {"wrappedKEK"} if policy.double_wrapping else {"wrappedDEK"}
        if what == "kek" and policy.double_wrapping:
            changing = {"wrappedKEK", "wrappedDEK", "keyEncryptionKeyID"}
        assert {name for name in before if before[name] != after[name]} == changing
        assert before.keys() == after.keys()
        wrapped = after["wrappedKEK" if policy.double_wrapping else "wrappedDEK"]
        assert wrapped.startswith("vault:v2:")
    assert read(path, kms, policy).equals(TABLE)
    if "supplied" not in kind:  # PyArrow has no way to give a prefix
        opened = crypto_factory(kms).file_decryption_properties(
            pe.KmsConnectionConfig(), parquet_file_path=str(path)
        )
        assert pq.read_table(path, decryption_properties=opened).equals(TABLE)
    assert sorted(os.listdir(lake)) == sorted(
        [path.name] if policy.internal_key_material else [path.name, material_file(path).name]
    )


@STORAGE
@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
def test_once_old_versions_are_disabled_only_what_was_rotated_opens(
    what: Any, policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    paths = write_lake(tmp_path / "lake", kms, policy)
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    kms.rotate()
    mc.jobs.rotate_keys(tmp_path / "lake", mc.KeyTools(kms), what=what)
    kms.disable_old()

    for path in paths:
        assert read(path, kms).equals(TABLE)
        with pytest.raises(mc.errors.KeyDisabledError):
            read(tmp_path / "copy" / path.name, kms)


@STORAGE
def test_fresh_data_keys_leave_no_old_one_in_use(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    (path,) = write_lake(tmp_path, kms, policy, 1)
    old = Look(path, kms).open()
    assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms), what="dek")) == ["rotated"]
    new = Look(path, kms).open()
    assert {new.footer_key, *new.keys.values()}.isdisjoint({old.footer_key, *old.keys.values()})
    assert verify(new.file, new.footer_key, new.keys)
    assert read(path, kms).equals(TABLE)


@each_case("policy", [WITHIN, BESIDE, replace(WITHIN, double_wrapping=False)])
def test_ids_of_master_keys_may_look_like_references(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    """PyArrow takes any id; only a policy may name keys by reference."""
    (path,) = write_lake(tmp_path, kms, policy, 1)
    kms.newest |= {"file:kf": 1, "env:K1": 1}
    for renamed in ({"kf": "file:kf", "k1": "env:K1"}, {}):
        (file,) = mc.jobs.rotate_keys(
            path, mc.KeyTools(kms), what="dek", new_master_keys=renamed, double_wrapping=None
        )
        assert (file.result, file.message) == ("rotated", "")
    kms.denied |= {"kf", "k1"}
    assert read(path, kms).equals(TABLE)


def test_a_kek_and_its_data_keys_stay_together_over_many_rotations(
    tmp_path: Path, kms: RotatingKms
) -> None:
    for policy in (WITHIN, BESIDE):
        (path,) = write_lake(tmp_path, kms, policy, 1)
        old = Look(path, kms).open()
        for what in (*WRAPPING, *WRAPPING):
            kms.rotate()
            assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms), what=what)) == ["rotated"]
            kms.disable_old()
        check_only_keys_changed(old, Look(path, kms).open())
        kms.disabled.clear()


def test_files_keep_their_permissions(tmp_path: Path, kms: RotatingKms) -> None:
    for policy in (WITHIN, BESIDE):
        (path,) = write_lake(tmp_path, kms, policy, 1)
        for file in tmp_path.iterdir():
            file.chmod(0o640)
        kms.rotate()
        assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms))) == ["rotated"]
        assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o640}


# --- files of other implementations --------------------------------------------------------------


def moved_service(masters: Mapping[str, bytes]) -> tuple[MemoryKms, dict[str, str]]:
    """Return a service with old and new master keys, and the mapping between them."""
    moved = {name: f"new-{name}" for name in masters}
    return MemoryKms({**masters, **{new: os.urandom(16) for new in moved.values()}}), moved


@each_case("what", ["mek", "kek", "dek"])
@each_case(("folder", "entry"), entry_params("entries", uses_key_tools))
def test_files_of_the_key_tools_move_to_other_master_keys(
    what: Any, folder: str, entry: dict[str, Any], tmp_path: Path
) -> None:
    """Of parquet-java, Spark and PyArrow: internal and external, single and double wrapping."""
    root = shared_vectors() / folder
    source, path = root / entry["file"], tmp_path / "a.parquet"
    shutil.copy(source, path)
    if material_file(source).exists():
        shutil.copy(material_file(source), material_file(path))
    masters = {name: bytes.fromhex(key) for name, key in entry["kms"]["master_keys"].items()}
    kms, moved = moved_service(masters)
    reading: dict[str, Any] = {"accept_algorithms": [entry["enc"]["algorithm"]]}
    tools, old = mc.KeyTools(kms), Look(path, kms).open()

    done = mc.jobs.rotate_keys(
        tmp_path, tools, what=what, new_master_keys=moved, decryption=tools.decryption(**reading)
    )

    assert results(done) == ["rotated"]
    new = Look(path, kms).open()
    if what != "dek":
        check_only_keys_changed(old, new)
    assert {material["masterKeyID"] for material in new.materials} <= set(moved.values())
    for key in masters:
        del kms.masters[key]
    rows = mc.read_table(path, mc.KeyTools(kms).decryption(**reading))
    assert rows.equals(pq.read_table(root / entry["twin"]))


def test_the_published_file_with_external_key_material_rotates(tmp_path: Path) -> None:
    name = "external_key_material_java.parquet.encrypted"
    source, path = shared_vectors() / "parquet-testing" / name, tmp_path / name
    shutil.copy(source, path)
    shutil.copy(material_file(source), material_file(path))
    kms, moved = moved_service(MASTERS)
    rows = mc.read_table(path, mc.KeyTools(kms).decryption())
    assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms), new_master_keys=moved)) == [
        "rotated"
    ]
    for key in MASTERS:
        del kms.masters[key]
    assert mc.read_table(path, mc.KeyTools(kms).decryption()).equals(rows)
    opened = crypto_factory(kms).file_decryption_properties(
        pe.KmsConnectionConfig(), parquet_file_path=str(path)
    )
    assert pq.read_table(path, decryption_properties=opened).equals(rows)


@each_case("internal", [True, False], ids=["internal", "external"])
@each_case("double", [True, False], ids=["double", "single"])
@each_case("plaintext_footer", [True, False], ids=["plaintext", "encrypted"])
def test_files_of_pyarrow_rotate_and_pyarrow_reads_and_rotates_them(
    internal: bool, double: bool, plaintext_footer: bool, tmp_path: Path, kms: RotatingKms
) -> None:
    path, config = tmp_path / "a.parquet", pe.KmsConnectionConfig()
    settings = pe.EncryptionConfiguration(
        footer_key="kf", column_keys={"k1": ["id", "score"]}, double_wrapping=double,
        plaintext_footer=plaintext_footer, internal_key_material=internal,
    )  # fmt: skip
    sealing = crypto_factory(kms).file_encryption_properties(
        config, settings, parquet_file_path=str(path)
    )
    with pq.ParquetWriter(path, TABLE.schema, encryption_properties=sealing) as writer:
        writer.write_table(TABLE, row_group_size=25)
    old = Look(path, kms).open()

    for what in WRAPPING:
        kms.rotate()
        assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms), what=what)) == ["rotated"]
        kms.disable_old()
        check_only_keys_changed(old, Look(path, kms).open())
        opened = crypto_factory(kms).file_decryption_properties(config, parquet_file_path=str(path))
        assert pq.read_table(path, decryption_properties=opened).equals(TABLE)
    if not internal:
        kms.rotate()
        crypto_factory(kms).rotate_master_keys(config, str(path), double_wrapping=double)
        kms.disable_old()
        assert read(path, kms).equals(TABLE)
        kms.rotate()
        assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms))) == ["rotated"]
        kms.disable_old()
        assert read(path, kms).equals(TABLE)


WRAPPED_ANEW = pairwise(
    what=("mek", "kek", "dek"),
    double_wrapping=(True, False),
    internal_key_material=(True, False),
    plaintext_footer=(True, False),
    column_keys=({}, COLUMNS),
    data_key_length_bits=(128, 256),
    writer=("modcrypt", "pyarrow"),
)


@each_case("case", WRAPPED_ANEW, ids=case_name)
def test_wrapping_changes_from_single_to_double_and_back(
    case: dict[str, Any], tmp_path: Path, kms: RotatingKms
) -> None:
    case = dict(case)
    what, double, writer = case.pop("what"), case["double_wrapping"], case.pop("writer")
    path, config = tmp_path / "a.parquet", pe.KmsConnectionConfig()
    if writer == "pyarrow" and case["column_keys"]:
        config_of_file = pe.EncryptionConfiguration(footer_key="kf", **case)
        sealing = crypto_factory(kms).file_encryption_properties(
            config, config_of_file, parquet_file_path=str(path)
        )
        pq.write_table(TABLE, path, encryption_properties=sealing)
    else:
        mc.write_table(TABLE, path, mc.KeyTools(kms).encryption(mc.Policy(footer_key="kf", **case)))
    for wanted in (not double, double):
        old = Look(path, kms).open()
        before = bytes_of(tmp_path)
        how: dict[str, Any] = {"what": what, "double_wrapping": wanted}
        (expected,) = mc.jobs.rotate_keys(path, mc.KeyTools(kms), dry_run=True, **how)
        assert bytes_of(tmp_path) == before
        (done,) = mc.jobs.rotate_keys(path, mc.KeyTools(kms), **how)
        assert (done.result, expected.result) == ("rotated", "rotated")
        assert what == "dek" or done.keys == expected.keys
        new = Look(path, kms).open()
        assert {material["doubleWrapping"] for material in new.materials} == {wanted}
        if what != "dek":
            check_only_keys_changed(old, new)
            assert (new.file == old.file) == (not case["internal_key_material"])
        assert read(path, kms).equals(TABLE)
        opened = crypto_factory(kms).file_decryption_properties(config, parquet_file_path=str(path))
        assert pq.read_table(path, decryption_properties=opened).equals(TABLE)
    if what == "mek":
        assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms), **how)) == ["current"]


def test_a_change_of_wrapping_also_moves_to_other_master_keys(
    tmp_path: Path, kms: RotatingKms
) -> None:
    path = tmp_path / "a.parquet"
    write = mc.Policy(footer_key="k1", internal_key_material=False, double_wrapping=False)
    mc.write_table(TABLE, path, mc.KeyTools(kms).encryption(write))
    new = {"k1": "kf"}
    mc.jobs.rotate_keys(path, mc.KeyTools(kms), new_master_keys=new, double_wrapping=True)
    (material,) = Look(path, kms).open().materials
    assert (material["masterKeyID"], material["doubleWrapping"]) == ("kf", True)
    assert read(path, kms, mc.Policy(footer_key="kf")).equals(TABLE)


# --- what the key service is asked for -----------------------------------------------------------

MANY = 20


@STORAGE
def test_a_kek_of_many_files_is_wrapped_anew_once(policy: mc.Policy, tmp_path: Path) -> None:
    for service, expected in (
        (BasicKms(kf=1, k1=1, k2=1), {"unwrap": 3 + 3, "wrap": 3}),  # and 3 proofs
        (RewrappingKms(kf=1, k1=1, k2=1), {"is_current": 3, "rewrap": 3, "unwrap": 3}),
    ):
        paths = write_lake(tmp_path, service, policy, MANY)
        service.rotate()
        service.calls.clear()
        assert results(mc.jobs.rotate_keys(tmp_path, mc.KeyTools(service))) == ["rotated"] * MANY
        if policy.internal_key_material:  # encrypted footers are opened, to look into them
            expected = expected | {"unwrap": expected.get("unwrap", 0) + 1}
        asked = {operation for operation, _ in service.calls}
        assert {operation: service.count(operation) for operation in asked} == expected
        service.disable_old()
        assert read(paths[-1], service).equals(TABLE)


@STORAGE
def test_fresh_keks_cost_a_call_for_each_and_one_for_each_old_one(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    write_lake(tmp_path, kms, policy, MANY)
    kms.calls.clear()
    done = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), what="kek")
    assert results(done) == ["rotated"] * MANY
    assert sorted(kms.calls) == sorted(
        (op, k)
        for op in ("wrap", "unwrap", "unwrap")
        for k in kms.newest  # the last: proof
    )


@STORAGE
def test_what_is_current_is_left_alone(policy: mc.Policy, tmp_path: Path, kms: RotatingKms) -> None:
    write_lake(tmp_path, kms, policy)
    kms.rotate("k1")
    assert {file.keys for file in mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))} == {2}  # of k1
    before = bytes_of(tmp_path)
    kms.calls.clear()
    assert results(mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))) == ["current"] * 3
    assert bytes_of(tmp_path) == before
    opened = [("unwrap", "kf")] if policy.internal_key_material else []  # the encrypted footers
    assert [call for call in kms.calls if call[0] != "is_current"] == opened
    assert kms.count("is_current") == 3


def test_a_service_that_does_not_know_what_is_current_wraps_everything(tmp_path: Path) -> None:
    kms = BasicKms(kf=1)
    write_lake(tmp_path, kms, mc.Policy(footer_key="kf"))
    for _ in range(2):
        assert results(mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))) == ["rotated"] * 3


def test_what_is_refused_is_asked_for_once(tmp_path: Path, kms: RotatingKms) -> None:
    write_lake(tmp_path, kms, BESIDE, 20)
    kms.rotate()
    kms.denied.add("k1")
    kms.calls.clear()
    assert results(mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))) == ["denied"] * 20
    assert kms.calls.count(("unwrap", "k1")) == 1


# --- other master keys ---------------------------------------------------------------------------


@STORAGE
@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
def test_files_move_to_other_master_keys(what: Any, policy: mc.Policy, tmp_path: Path) -> None:
    kms = RotatingKms(kf=1, k1=1, k2=1, moved=1)
    paths = write_lake(tmp_path, kms, policy)
    moving = {"k1": "moved", "nobody's": "elsewhere"}
    done = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), what=what, new_master_keys=moving)
    assert results(done) == ["rotated"] * 3
    found = {row.column: row.master_key_id for row in mc.jobs.scan_keys(paths[0], mc.KeyTools(kms))}
    assert found == {
        None: "kf", "id": "moved", "name": "k2", "address.zip": "moved", "address.city": "moved",
    }  # fmt: skip
    del kms.newest["k1"]
    assert read(paths[0], kms).equals(TABLE)
    if what == "mek":
        again = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), new_master_keys=moving)
        assert results(again) == ["current"] * 3


@STORAGE
def test_a_master_key_that_is_not_there_moves_nothing(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    write_lake(tmp_path, kms, policy)
    before = bytes_of(tmp_path)
    done = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), new_master_keys={"k1": "absent"})
    assert results(done) == ["no-key"] * 3
    assert all(file.failed and "absent" in file.message for file in done)
    assert bytes_of(tmp_path) == before


@pytest.mark.parametrize("wrong", ["", "a\nb", "x" * 1025, 5, None])
def test_an_id_that_no_file_could_hold_is_refused_before_anything_is_done(
    wrong: Any, tmp_path: Path
) -> None:
    kms = RotatingKms(kf=1, **{str(wrong): 1})
    write_lake(tmp_path, kms, mc.Policy(footer_key="kf"))
    before = bytes_of(tmp_path)
    kms.calls.clear()
    with pytest.raises((ValueError, TypeError)):
        mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), new_master_keys={"kf": wrong})
    assert not kms.calls
    assert bytes_of(tmp_path) == before


# --- what goes wrong in one file -----------------------------------------------------------------


FAILING = [
    (WITHIN, "plaintext", "plaintext"),
    (WITHIN, "no parquet", "format"),
    (WITHIN, "empty", "format"),
    (WITHIN, "cut", "format"),
    (WITHIN, "opaque", "key-material"),
    (WITHIN, "no key metadata", "key-material"),
    (WITHIN, "denied", "denied"),
    (WITHIN, "removed", "no-key"),
    (WITHIN, "signature", "signature"),
    (BESIDE, "denied", "denied"),
    (BESIDE, "removed", "no-key"),
    (BESIDE, "material", "key-material"),
    (BESIDE, "garbage", "key-material"),
    (BESIDE, "foreign", "key-material"),
    (BESIDE, "huge", "key-material"),
]


@each_case(
    ("what", "policy", "kind", "word"),
    [(what, *failing) for what in ("mek", "kek", "dek") for failing in FAILING],
    ids=lambda value: value if isinstance(value, str) else None,
    quick=one_in(2),
)
def test_a_file_that_fails_is_as_it_was_and_the_others_go_on(
    what: Any, policy: mc.Policy, kind: str, word: str, tmp_path: Path
) -> None:
    lake, kms = tmp_path / "lake", RotatingKms(kf=1, k1=1, k2=1, secret=1)
    paths = write_lake(lake, kms, policy)
    path = spoil(kind, lake, kms, policy)
    kms.rotate()
    before = bytes_of(lake)
    seen: list[tuple[mc.jobs.RotatedFile, int]] = []

    done = mc.jobs.rotate_keys(
        lake, mc.KeyTools(kms), what=what, progress=lambda *about: seen.append(about)
    )

    assert [Path(file.path).name for file in done] == sorted(file.name for file in [*paths, path])
    assert seen == [(file, 4) for file in done]
    assert results(done) == ["rotated", "rotated", word, "rotated"]
    failed = done[2]
    assert failed.failed == (word != "plaintext")
    assert bool(failed.message) == failed.failed
    assert failed.keys == 0
    after = bytes_of(lake)
    assert after.keys() == before.keys()
    mine = {str(path), str(material_file(path))}
    assert {n: v for n, v in after.items() if n in mine} == {
        n: v for n, v in before.items() if n in mine
    }
    kms.disable_old("kf", "k1", "k2")
    assert all(read(file, kms).equals(TABLE) for file in paths)


@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
def test_external_key_material_of_another_file_fails(
    what: Any, tmp_path: Path, kms: RotatingKms
) -> None:
    """The keys that the footer names must be there."""
    (path,) = write_lake(tmp_path, kms, BESIDE, 1)
    store = json.loads(material_file(path).read_bytes())
    del store[next(name for name in store if name.startswith("columnKey"))]
    material_file(path).write_text(json.dumps(store))
    kms.rotate()
    before = bytes_of(tmp_path)
    (file,) = mc.jobs.rotate_keys(path, mc.KeyTools(kms), what=what)
    if what == "dek":
        assert (file.result, bytes_of(tmp_path)) == ("no-key", before)
    else:  # without a key, an encrypted footer does not list the missing keys
        assert file.result in ("rotated", "key-material")


def test_a_service_that_is_down_fails_every_file_and_changes_none(
    tmp_path: Path, kms: RotatingKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_sleeps(monkeypatch)
    write_lake(tmp_path, kms, BESIDE)
    before = bytes_of(tmp_path)

    def down(*_: Any, **__: Any) -> str:
        raise ConnectionError("token s3cr3t refused")

    monkeypatch.setattr(kms, "unwrap", down)
    kms.rotate()
    done = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))
    assert results(done) == ["unavailable"] * 3
    assert "s3cr3t" not in repr(done)
    assert bytes_of(tmp_path) == before


def test_a_file_that_goes_away_or_cannot_be_read_is_a_result(
    tmp_path: Path, kms: RotatingKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_lake(tmp_path, kms, WITHIN)
    kms.rotate()
    real = os.open

    def refusing(path: Any, *arguments: Any, **options: Any) -> int:
        if os.fspath(path) == str(paths[1]):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    done = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))
    assert results(done) == ["rotated", "file", "rotated"]
    assert str(paths[1]) in done[1].message


@pytest.mark.parametrize(
    ("error", "policy"), [(KeyboardInterrupt, BESIDE), (ZeroDivisionError, WITHIN)]
)
def test_progress_that_raises_stops_the_run_and_leaves_every_file_readable(
    error: type[BaseException], policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    paths = write_lake(tmp_path / "lake", kms, policy, 12)
    kms.rotate()
    calls: list[str] = []

    def stop(file: mc.jobs.RotatedFile, total: int) -> None:
        calls.append(file.path)
        assert (threading.current_thread(), total) == (threading.main_thread(), 12)
        if len(calls) == 2:
            raise error

    record = tmp_path / "record.jsonl"
    with pytest.raises(error):
        mc.jobs.rotate_keys(
            tmp_path / "lake", mc.KeyTools(kms), jobs=2, progress=stop, record=record
        )
    assert len(calls) == 2
    assert not [t for t in threading.enumerate() if t.name.startswith("modcrypt-rotation")]
    assert all(read(path, kms).equals(TABLE) for path in paths)
    assert all("modcrypt" not in file.name for file in (tmp_path / "lake").iterdir())
    done = mc.jobs.rotate_keys(tmp_path / "lake", mc.KeyTools(kms), record=record)
    assert results(done)[:2] == ["current"] * 2
    assert set(results(done)) <= {"current", "rotated"}
    kms.disable_old()
    assert all(read(path, kms).equals(TABLE) for path in paths)


def test_what_was_not_begun_when_a_run_is_stopped_is_left(tmp_path: Path) -> None:
    class Slow(RotatingKms):
        def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
            threading.Event().wait(0.01)
            return super().unwrap(wrapped, master_key_id, aad=aad)

    kms = Slow(kf=1)
    single = mc.Policy(footer_key="kf", double_wrapping=False, internal_key_material=False)
    paths = write_lake(tmp_path, kms, single, 100)
    before = bytes_of(tmp_path)
    kms.rotate()

    def stop(_file: mc.jobs.RotatedFile, _total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), jobs=2, progress=stop)
    last = str(material_file(paths[-1]))
    assert bytes_of(tmp_path)[last] == before[last]


# --- a run without hands -------------------------------------------------------------------------


@STORAGE
@each_case(
    ("what", "plaintext_footer", "double", "stale"),
    itertools.product(["mek", "kek", "dek"], *[[True, False]] * 3),
    quick=one_in(3),
)
def test_a_dry_run_touches_nothing_and_says_what_a_run_does(
    what: Any, plaintext_footer: bool, double: bool, stale: bool, policy: mc.Policy,
    tmp_path: Path, kms: RotatingKms,
) -> None:  # fmt: skip
    policy = mc.Policy(
        footer_key="kf", column_keys=COLUMNS, double_wrapping=double,
        plaintext_footer=plaintext_footer, internal_key_material=policy.internal_key_material,
    )  # fmt: skip
    write_lake(tmp_path, kms, policy)
    if stale:
        kms.rotate()
    before = bytes_of(tmp_path)
    kms.calls.clear()

    said = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), what=what, dry_run=True)

    assert bytes_of(tmp_path) == before
    hidden = policy.internal_key_material and not plaintext_footer and what != "dek"
    asked = [call for call in kms.calls if call[0] != "is_current"]
    assert set(asked) <= ({("unwrap", "kf")} if hidden else set())
    if double:  # one question for each KEK
        assert kms.count("is_current") <= 3
    done = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), what=what)
    if what == "dek":  # how many columns an encrypted footer names, nobody can know without its key
        assert results(said) == results(done)
    else:
        assert said == [replace(file, proved=0) for file in done]


def test_a_dry_run_reads_a_record_and_writes_none(tmp_path: Path, kms: RotatingKms) -> None:
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    write_lake(lake, kms, BESIDE)
    mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record, dry_run=True)
    assert not record.exists()
    mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)
    before = bytes_of(tmp_path)
    done = mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record, dry_run=True)
    assert results(done) == ["current"] * 3
    assert bytes_of(tmp_path) == before


# --- a run that is taken up ----------------------------------------------------------------------


@STORAGE
def test_recorded_files_are_current_until_they_change(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    paths = write_lake(lake, kms, policy)
    kms.rotate()
    assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["rotated"] * 3
    before = bytes_of(lake)
    kms.calls.clear()
    assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["current"] * 3
    assert {call[0] for call in kms.calls} == {"is_current"}
    assert bytes_of(lake) == before

    mc.write_table(OTHER, paths[1], mc.KeyTools(kms).encryption(policy), overwrite=True)
    done = mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)
    assert results(done) == ["current"] * 3


def test_changed_key_material_alone_is_a_change(tmp_path: Path, kms: RotatingKms) -> None:
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    (path,) = write_lake(lake, kms, BESIDE, 1)
    backup = Path(shutil.copy(material_file(path), tmp_path / "backup"))
    kms.rotate()
    mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)
    # Another file: where clocks are coarse, the same one could be of the same time and size.
    backup.replace(material_file(path))
    assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["rotated"]


def test_a_record_counts_for_the_same_rotation_only(tmp_path: Path) -> None:
    kms = RotatingKms(kf=1, moved=1)
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    write_lake(lake, kms, mc.Policy(footer_key="kf"))

    def run(**options: Any) -> set[str]:
        return set(results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record, **options)))

    assert run() == {"current"}
    assert run() == {"current"}
    assert run(what="kek") == {"rotated"}
    assert run(what="kek") == {"rotated"}  # that run has ended: another one begins
    assert run(new_master_keys={"kf": "moved"}) == {"rotated"}
    assert run(new_master_keys={"kf": "moved"}) == {"current"}
    assert run(what="kek", new_master_keys={"kf": "moved"}) == {"rotated"}
    for double in (False, True):
        assert run(double_wrapping=double) == {"rotated"}
        assert run(double_wrapping=double) == {"current"}


def test_a_record_of_old_says_nothing_of_a_newer_version(tmp_path: Path, kms: RotatingKms) -> None:
    """Or what it skips would be lost with the version before."""
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    write_lake(lake, kms, WITHIN)
    for _ in range(3):
        kms.rotate()
        assert (
            results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["rotated"] * 3
        )
    kms.disable_old()
    assert mc.read_table(lake, mc.KeyTools(kms).decryption()).num_rows == 3 * TABLE.num_rows


def test_a_run_that_is_taken_up_does_what_is_under_an_older_version_again(
    tmp_path: Path, kms: RotatingKms
) -> None:
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    write_lake(lake, kms, BESIDE)
    kms.rotate()
    mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)
    lines = record.read_bytes().splitlines()
    record.write_bytes(b"\n".join(line for line in lines if b'"end"' not in line))  # as if killed
    assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["current"] * 3
    record.write_bytes(b"\n".join(line for line in lines if b'"end"' not in line))
    kms.rotate()
    assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["rotated"] * 3


def test_a_failed_file_is_not_recorded(tmp_path: Path, kms: RotatingKms) -> None:
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    write_lake(lake, kms, BESIDE)
    kms.rotate()
    kms.denied.add("k1")
    assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["denied"] * 3
    kms.denied.clear()
    assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["rotated"] * 3


GARBAGE = [
    b"\xff\xfe\x00\n", b"{", b"[1, 2]\n", b"null\n", b"5", b'"x"\n', b"[" * 100_000 + b"\n",
    b'{"what": "mek"}\n', b'{"what": "mek", "new_master_keys": {}, "path": [], "stamps": 1}\n',
    b'{"what": "mek", "new_master_keys": {}, "path": {}, "stamps": 1}\n', b"9" * 5000 + b"\n",
]  # fmt: skip


@each_case("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_a_record_is_passed_over(
    garbage: bytes, tmp_path: Path, kms: RotatingKms
) -> None:
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    write_lake(lake, kms, WITHIN)
    mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)
    lines = record.read_bytes()
    record.write_bytes(garbage + b"\n" + lines + garbage)
    assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["current"] * 3


def test_a_record_may_be_cut_anywhere(
    tmp_path: Path, kms: RotatingKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    write_lake(lake, kms, BESIDE, 1)
    mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)
    line = record.read_bytes()
    whole = line.index(b"}\n") + 1  # of the file; the run's end follows
    opened: list[Any] = []

    def open_source(place: Any) -> Any:
        opened.append(place)
        return open_source_at(place)

    monkeypatch.setattr(key_rotation, "open_source_at", open_source)
    for cut in sorted({*range(0, len(line), 7), *range(whole - 2, whole + 3), len(line) - 1}):
        record.write_bytes(line[:cut])
        opened.clear()
        assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["current"]
        assert bool(opened) == (cut < whole)
        opened.clear()
        # What was cut off does not spoil the line after it.
        assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["current"]
        assert not opened


@pytest.mark.parametrize("relative", [True, False])
def test_a_record_may_lie_in_the_folder_that_is_rotated(
    relative: bool, tmp_path: Path, kms: RotatingKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lake(tmp_path, kms, WITHIN)
    folder = Path("." if relative else tmp_path)
    for _ in range(2):
        done = mc.jobs.rotate_keys(folder, mc.KeyTools(kms), record=folder / "run.jsonl")
        assert results(done) == ["current"] * 3


def test_runs_that_share_a_record_append_to_it(tmp_path: Path, kms: RotatingKms) -> None:
    record = tmp_path / "record.jsonl"
    lakes = [tmp_path / f"lake{n}" for n in range(4)]
    for lake in lakes:
        write_lake(lake, kms, BESIDE, 10)
    kms.rotate()

    def run(lake: Path) -> None:
        mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record, jobs=2)

    threads = [threading.Thread(target=run, args=(lake,)) for lake in lakes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(line) for line in record.read_bytes().splitlines() if line]
    assert sum("end" in line for line in lines) == len(lakes)
    assert sorted(line["path"] for line in lines if "path" in line) == sorted(
        str(path) for lake in lakes for path in lake.glob("*.parquet")
    )
    done = mc.jobs.rotate_keys([*lakes], mc.KeyTools(kms), record=record)
    assert results(done) == ["current"] * 40


# --- where files are -----------------------------------------------------------------------------


def test_a_list_of_files_and_folders_is_taken_in_the_order_of_paths(
    tmp_path: Path, kms: RotatingKms
) -> None:
    a, b = write_lake(tmp_path / "a", kms, WITHIN, 2), write_lake(tmp_path / "b", kms, BESIDE, 2)
    kms.rotate()
    done = mc.jobs.rotate_keys([tmp_path / "b", a[1], a[1], str(b[0])], mc.KeyTools(kms))
    assert [file.path for file in done] == [str(a[1]), str(b[0]), str(b[1])]
    assert results(done) == ["rotated"] * 3
    assert mc.jobs.rotate_keys([], mc.KeyTools(kms)) == []


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path, kms: RotatingKms) -> None:
    for folder in ("_delta_log", ".snapshots", "day=1"):
        write_lake(tmp_path / folder, kms, WITHIN, 1)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part.crc").write_bytes(b"x")
    kms.rotate()
    done = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))
    assert [(Path(f.path).parent.name, f.result) for f in done] == [("day=1", "rotated")]


@STORAGE
def test_awkward_names_and_deep_folders(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    folder = tmp_path.joinpath(*["d"] * 150)
    folder.mkdir(parents=True)
    names = ["new\nline.parquet", "ü \u202e*?[a].parquet", "%20.parquet", "#?x=1.parquet", "'\"\\"]
    for name in names:
        mc.write_table(TABLE, folder / name, mc.KeyTools(kms).encryption(policy))
    kms.rotate()
    done = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), record=tmp_path / ".record")
    assert sorted(file.path for file in done) == sorted(str(folder / name) for name in names)
    assert set(results(done)) == {"rotated"}
    kms.disable_old()
    assert all(read(folder / name, kms).equals(TABLE) for name in names)
    again = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), record=tmp_path / ".record")
    assert set(results(again)) == {"current"}


def test_a_name_too_long_for_key_material_beside_it(tmp_path: Path, kms: RotatingKms) -> None:
    path = tmp_path / ("n" * 240)
    mc.write_table(TABLE, path, mc.KeyTools(kms).encryption(WITHIN))
    kms.rotate()
    record = tmp_path / ".record"
    assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms), record=record)) == ["rotated"]
    assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms), record=record)) == ["current"]


def test_a_name_that_is_no_text_stops_nobody(tmp_path: Path, kms: RotatingKms) -> None:
    (path,) = write_lake(tmp_path, kms, WITHIN, 1)
    try:
        path.with_name(os.fsdecode(b"\xff.parquet")).write_bytes(path.read_bytes())
    except OSError:
        pytest.skip("this file system takes no such names")
    kms.rotate()
    done = {file.path: file.result for file in mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))}
    assert done[str(path)] == "rotated"


@STORAGE
def test_links_lead_to_each_file_once(policy: mc.Policy, tmp_path: Path, kms: RotatingKms) -> None:
    paths = write_lake(tmp_path / "lake", kms, policy, 2)
    (tmp_path / "lake" / "again").symlink_to(tmp_path / "lake")  # a folder within itself
    (tmp_path / "lake" / "nowhere.parquet").symlink_to("gone.parquet")
    kms.rotate()
    done = mc.jobs.rotate_keys(tmp_path / "lake", mc.KeyTools(kms))
    rotated = [file.path for file in done if file.result == "rotated"]
    assert sorted({os.path.realpath(path) for path in rotated}) == [str(path) for path in paths]
    assert len(rotated) == len(paths)
    kms.disable_old()
    assert all(read(path, kms).equals(TABLE) for path in paths)


@STORAGE
def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    (path,) = write_lake(tmp_path, kms, policy, 1)
    where = material_file(path) if not policy.internal_key_material else path
    where.unlink()
    os.mkfifo(where)
    done: list[mc.jobs.RotatedFile] = []
    thread = threading.Thread(
        target=lambda: done.extend(mc.jobs.rotate_keys([path], mc.KeyTools(kms))), daemon=True
    )
    thread.start()
    thread.join(20)
    if thread.is_alive():
        os.close(os.open(where, os.O_WRONLY))  # let it go
        thread.join()
        pytest.fail("waited for somebody to write into the pipe")
    assert results(done) == ["file"]


FILESYSTEMS = ["fsspec", "pyarrow", "url", "subtree"]


@STORAGE
@each_case(("what", "kind"), zip(["mek", "kek", "dek", "mek"], FILESYSTEMS, strict=True))
def test_files_in_other_file_systems_rotate(
    what: Any, kind: str, policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    base = f"/{tmp_path.name}"
    memory = fsspec.filesystem("memory")
    memory.mkdir(base)
    filesystem: Any = {
        "fsspec": memory, "pyarrow": pafs.PyFileSystem(pafs.FSSpecHandler(memory)),
        "url": None, "subtree": pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()),
    }[kind]  # fmt: skip
    root = {"url": f"memory:/{base}", "subtree": ""}.get(kind, base)
    names = [f"{root}/{n}.parquet".lstrip("/" if kind == "subtree" else "") for n in range(2)]
    tools = mc.KeyTools(kms)
    for name in names:
        mc.write_table(TABLE, name, tools.encryption(policy), filesystem=filesystem)
    kms.rotate()
    options: Any = {} if filesystem is None else {"filesystem": filesystem}
    done = mc.jobs.rotate_keys(root, tools, what=what, **options)
    assert results(done) == ["rotated"] * 2
    kms.disable_old()
    for name in names:
        rows = mc.read_table(name, mc.KeyTools(kms).decryption(), **options)
        assert rows.equals(TABLE)
    memory.rm(base, recursive=True)


# --- key material that others made ---------------------------------------------------------------


def with_material(path: Path, kms: BasicKms, *, members: str) -> None:
    """Write a file whose internal key material, in single wrapping, has further members."""
    key = os.urandom(16)
    material = {
        "keyMaterialType": "PKMT1", "internalStorage": True, "isFooterKey": True,
        "kmsInstanceID": "i", "kmsInstanceURL": "https://example.com", "masterKeyID": "kf",
        "wrappedDEK": kms.wrap(key, "kf"), "doubleWrapping": False,
    }  # fmt: skip
    text = json.dumps(material)[:-1] + members + "}"
    properties = mc.FileEncryptionProperties(footer_key=key, footer_key_metadata=text.encode())
    mc.write_table(TABLE, path, properties, overwrite=True)


UNUSUAL = {
    "letters": ', "x": "' + "é" * 25_000 + '"',
    "infinite": ', "x": 1e400',
    "exact": ', "x": 1.10, "y": 12345678901234567890123, "z": "\\ud800", "null": null',
    "deep": ', "x": {"masterKeyID": ["y"]}',
    "long": ', "x": "' + "y" * 64_000 + '"',
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_key_material_with_unusual_members_is_never_made_unreadable(
    name: str, tmp_path: Path
) -> None:
    path, kms = tmp_path / "a.parquet", RotatingKms(kf=1)
    with_material(path, kms, members=UNUSUAL[name])
    before = path.read_bytes()
    try:
        readable = read(path, kms).equals(TABLE)
    except mc.errors.KeyMaterialError:
        readable = False
    kms.rotate()
    (file,) = mc.jobs.rotate_keys(path, mc.KeyTools(kms))
    if file.result == "rotated":
        assert read(path, kms).equals(TABLE)
    else:
        assert (file.result, path.read_bytes()) == ("key-material", before)
    assert readable or file.failed


@each_case("what", ["mek", "kek", "dek"])
@each_case("name", UNUSUAL)
def test_external_key_material_with_unusual_members_is_a_result(
    what: Any, name: str, tmp_path: Path, kms: RotatingKms
) -> None:
    paths = write_lake(tmp_path, kms, BESIDE)
    beside = material_file(paths[1])
    store = json.loads(beside.read_bytes())
    odd = {reference: text[:-1] + UNUSUAL[name] + "}" for reference, text in store.items()}
    beside.write_text(json.dumps(odd))
    kms.rotate()
    done = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), what=what)
    assert results(done)[::2] == ["rotated"] * 2
    if done[1].result == "rotated":
        assert read(paths[1], kms).equals(TABLE)
    else:
        assert (done[1].result, json.loads(beside.read_bytes())) == ("key-material", odd)


def test_members_that_nobody_knows_and_addresses_are_kept(tmp_path: Path) -> None:
    path, kms = tmp_path / "a.parquet", RotatingKms(kf=1)
    with_material(path, kms, members=', "owner": "\\u00e4"')
    kms.rotate()
    assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms))) == ["rotated"]
    material = Look(path, kms).open().materials[0]
    assert material["owner"] == "ä"
    assert material["kmsInstanceURL"] == "https://example.com"


def test_an_answer_too_long_for_a_file_changes_nothing(tmp_path: Path) -> None:
    class Wordy(RotatingKms):
        def _wrap_key(self, key: bytes, master_key_id: str, aad: bytes) -> str:
            text = super()._wrap_key(key, master_key_id, aad)
            return text if self.newest["kf"] == 1 else text + "=" * 20_000

    kms = Wordy(kf=1)
    for internal in (True, False):
        policy = mc.Policy(footer_key="kf", internal_key_material=internal)
        write_lake(tmp_path, kms, policy)
        before = bytes_of(tmp_path)
        kms.rotate()
        assert results(mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))) == ["key-material"] * 3
        assert bytes_of(tmp_path) == before
        kms.newest["kf"] = 1


# --- hostile files -------------------------------------------------------------------------------

KNOWN_RESULTS = {
    "rotated", "current", "plaintext", "format", "unsupported", "limit", "tag", "signature",
    "aad-prefix", "truncation", "no-key", "denied", "key-material", "key", "file", "checksum",
}  # fmt: skip


@SEEDS
@each_case("what", ["mek", "kek", "dek"])
@settings(max_examples=examples(60))
@given(changes=edits(), aim=st.booleans())
def test_any_altered_file_or_key_material_is_a_result(
    what: Any, seed: str, changes: list[tuple[int, int, bytes]], aim: bool,
    seeds: dict[str, tuple[bytes, bytes | None]], tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("altered")
    path, kms = folder / "a.parquet", RotatingKms(kf=1, k1=1)
    data, beside = seeds[seed]
    if beside is not None:
        material_file(path).write_bytes(apply_edits(beside, changes) if aim else beside)
    path.write_bytes(data if aim and beside is not None else apply_edits(data, changes))
    before = {file: file.read_bytes() for file in folder.iterdir()}
    kms.rotate()
    (file,) = mc.jobs.rotate_keys(path, mc.KeyTools(kms), what=what, decryption=None)
    assert file.result in KNOWN_RESULTS
    # Key material may have been written, with the new keys besides the old, and put back.
    after = {file: file.read_bytes() for file in folder.iterdir()}
    assert (after == before) == (file.result != "rotated")
    assert after.keys() == before.keys()


@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
@settings(max_examples=examples(60))
@given(data=st.binary(max_size=300), magic=st.sampled_from([b"PAR1", b"PARE", b""]))
def test_any_bytes_are_a_result(
    what: Any, data: bytes, magic: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("bytes") / "a.parquet"
    tail = len(data).to_bytes(4, "little") if magic else b""
    path.write_bytes(magic + data + tail + magic)
    (file,) = mc.jobs.rotate_keys(path, mc.KeyTools(RotatingKms(kf=1)), what=what)
    assert file.result in KNOWN_RESULTS - {"rotated", "current"}


# --- a caller's mistakes -------------------------------------------------------------------------


@each_case(
    ("options", "error"),
    [
        ({"what": "pek"}, ValueError),
        ({"what": None}, ValueError),
        ({"tools": None}, TypeError),
        ({"new_master_keys": "kf"}, (TypeError, ValueError)),
        ({"source": 5}, TypeError),
        ({"source": [b"x"]}, TypeError),
        ({"source": "absent"}, FileNotFoundError),
        ({"record": "absent/record"}, FileNotFoundError),
        ({"jobs": -1}, ValueError),
        ({"double_wrapping": "yes"}, TypeError),
    ],
)
def test_a_mistake_is_reported_before_anything_is_done(
    options: dict[str, Any], error: Any, tmp_path: Path, kms: RotatingKms,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_lake(tmp_path / "lake", kms, WITHIN)
    kms.rotate()
    before = bytes_of(tmp_path)
    kms.calls.clear()
    arguments = {"source": "lake", "tools": mc.KeyTools(kms), **options}
    with pytest.raises(error):
        mc.jobs.rotate_keys(arguments.pop("source"), arguments.pop("tools"), **arguments)
    assert (kms.calls, bytes_of(tmp_path)) == ([], before)
