"""Keys removed for good: who can't read what any more, and who reads the rest as before."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

import modcrypt as mc
from modcrypt.jobs.shredding.file_shredding import ShreddedFile
from modcrypt.jobs.shredding.proof import Proof, prove_shredded
from modcrypt.jobs.shredding.removal import shred_keys
from tests.support.algorithms import CTR, GCM
from tests.support.cases import each_case
from tests.support.folder_contents import bytes_of
from tests.support.jobs.lake import (
    BESIDE,
    OTHER,
    STORAGE,
    TABLE,
    WITHIN,
    material_file,
    read,
    results,
    write_lake,
)
from tests.support.jobs.look import Look, chunks, split
from tests.support.jobs.shredded_files import MASTERS, check_column_is_gone, read_by_pyarrow
from tests.support.jobs.spoiled_files import apply_edits, edits
from tests.support.kms.rotating_kms import BasicKms, RotatingKms, crypto_factory
from tests.support.pairwise import case_name, pairwise
from tests.support.parquet_parser import thrift_struct
from tests.support.randomness import examples
from tests.support.sleeps import note_sleeps
from tools.verify_pme import verify


@pytest.fixture
def kms() -> RotatingKms:
    return RotatingKms(**MASTERS)


def shred(where: Any, kms: BasicKms | None = None, **options: Any) -> list[ShreddedFile]:
    return shred_keys(where, None if kms is None else mc.KeyTools(kms), **options)


def prove(where: Any, kms: Any = None, **options: Any) -> Proof:
    return prove_shredded(where, None if kms is None else mc.KeyTools(kms), **options)


def states(proof: Proof) -> dict[str, set[str]]:
    """Return the states of keys by file name."""
    found: dict[str, set[str]] = {}
    for file in proof.files:
        found.setdefault(Path(file.path).name, set()).update(key.state for key in file.keys)
    return found


def check_nothing_is_read(path: Path, kms: BasicKms) -> None:
    with pytest.raises((OSError, ValueError, KeyError)):  # of Arrow's: no key material
        read_by_pyarrow(path, kms, ["id"])
    for how in ("error", "drop", "null"):
        with pytest.raises(mc.ModcryptError):
            mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key=how))


def wrapped_keys(look: Look) -> dict[str, str]:
    """Return wrapped keys by column name; the footer key's name is empty."""
    found = {
        name: look.material(metadata)["wrappedDEK"] for name, metadata in look.metadata.items()
    }
    return {**found, "": look.material(look.footer_metadata)["wrappedDEK"]}


def open_footer(data: bytes, footer_key: bytes) -> tuple[Any, bytes]:
    """Decode what follows the pages without the package; return it, and a footer decrypted."""
    _, tail = split(data)
    first, end = thrift_struct(tail)
    if not data.endswith(b"PARE"):
        return first, b""
    (algorithm,) = first[1].values()
    aad = algorithm.get(1, b"") + algorithm[2] + b"\0"
    return first, AESGCM(footer_key).decrypt(tail[end + 4 : end + 16], tail[end + 16 :], aad)


def footer_of(data: bytes, footer_key: bytes) -> Any:
    first, opened = open_footer(data, footer_key)
    return thrift_struct(opened)[0] if opened else first


def text_of(path: Path, footer_key: bytes) -> str:
    """Return all text about keys in a file and beside it, its footer decrypted."""
    data = path.read_bytes()
    beside = [file.read_bytes() for file in path.parent.iterdir() if "KEY_MATERIAL" in file.name]
    return b"".join([data, open_footer(data, footer_key)[1], *beside]).decode("latin-1")


# --- columns -------------------------------------------------------------------------------------

CASES = pairwise(
    writer=("modcrypt", "pyarrow"),
    internal=(True, False),
    double=(True, False),
    plaintext_footer=(True, False),
    algorithm=(GCM, CTR),
)


def write_case(path: Path, kms: BasicKms, case: dict[str, Any]) -> None:
    """Write a file in which every second column has a key of its own."""
    if case["writer"] == "modcrypt":
        policy = mc.Policy(
            footer_key="kf", column_keys={"k1": ["id", "score"], "k2": ["name"]},
            double_wrapping=case["double"], internal_key_material=case["internal"],
            plaintext_footer=case["plaintext_footer"], encryption_algorithm=case["algorithm"],
        )  # fmt: skip
        mc.write_table(TABLE, path, mc.KeyTools(kms).encryption(policy), row_group_size=25)
        return
    configuration = pe.EncryptionConfiguration(
        footer_key="kf", column_keys={"k1": ["id", "score"], "k2": ["name"]},
        double_wrapping=case["double"], internal_key_material=case["internal"],
        plaintext_footer=case["plaintext_footer"], encryption_algorithm=case["algorithm"],
    )  # fmt: skip
    properties = crypto_factory(kms).file_encryption_properties(
        pe.KmsConnectionConfig(), configuration, parquet_file_path=str(path)
    )
    with pq.ParquetWriter(path, TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE, row_group_size=25)


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_a_columns_key_is_gone_and_the_rest_is_as_it_was(
    case: dict[str, Any], tmp_path: Path, kms: RotatingKms
) -> None:
    path = tmp_path / "a.parquet"
    write_case(path, kms, case)
    accepting: dict[str, Any] = {"accept_algorithms": [case["algorithm"]]}
    old = Look(path, kms).open()
    wrapped = wrapped_keys(old)
    assert wrapped["name"] in text_of(path, old.footer_key)

    (file,) = shred(path, kms, columns=["name"])

    assert (file.result, file.keys, file.columns) == ("shredded", 1, ("name",))
    assert not file.whole
    text = text_of(path, old.footer_key)
    assert [name for name, key in wrapped.items() if key not in text] == ["name"]
    data = path.read_bytes()
    assert split(data)[0] == split(old.file)[0]
    assert (data == old.file) == (not case["internal"])
    # Nothing but the key is missing: with it, every module of the file opens.
    assert verify(data, old.footer_key, old.keys, accept_algorithms=(case["algorithm"],))
    names = {name: own.get(2) for own, name in chunks(footer_of(data, old.footer_key))}
    assert names.keys() == old.metadata.keys()
    if case["internal"]:
        assert {name: metadata for name, metadata in names.items() if name != "name"} == {
            name: metadata for name, metadata in old.metadata.items() if name != "name"
        }
    rows = mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key="drop", **accepting))
    assert rows.equals(TABLE.select([n for n in TABLE.column_names if n != "name"]))
    if case["algorithm"] == GCM:
        check_column_is_gone(path, kms)
    assert sorted(os.listdir(tmp_path)) == sorted(
        [path.name] if case["internal"] else [path.name, material_file(path).name]
    )
    proof = prove(path, kms, columns=["name"])
    assert proof.ok
    assert states(proof) == {"a.parquet": {"gone"}}
    assert not prove(path, kms, columns=["id"]).ok
    assert results(shred(path, kms, columns=["name"])) == ["current"]


@STORAGE
def test_a_groups_name_covers_its_leaves(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    (path,) = write_lake(tmp_path, kms, policy, 1)
    (file,) = shred(path, kms, columns=["address"])
    assert (file.result, file.columns) == ("shredded", ("address.zip", "address.city"))
    rows = mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key="drop"))
    assert rows.equals(TABLE.drop_columns(["address"]))


@STORAGE
@each_case("plaintext_footer", [True, False], ids=["plaintext", "encrypted"])
@each_case(
    ("columns", "word", "names"),
    [
        (["score"], "key-material", "footer key: score"),
        (["name", "score"], "key-material", "footer key: score"),
        (["address.zip"], "key-material", "address.city"),
        (["flag"], "key-material", "not encrypted, so without a key to shred: flag"),
    ],
)
def test_what_cannot_be_shredded_alone_is_named_and_nothing_is_changed(
    columns: list[str], word: str, names: str, plaintext_footer: bool, policy: mc.Policy,
    tmp_path: Path, kms: RotatingKms,
) -> None:  # fmt: skip
    policy = mc.Policy(
        footer_key="kf", column_keys={"k1": ["id", "address"], "k2": ["name"]},
        plaintext_columns=["flag"], plaintext_footer=plaintext_footer,
        internal_key_material=policy.internal_key_material,
    )  # fmt: skip
    write_lake(tmp_path, kms, policy, 1)
    before = bytes_of(tmp_path)
    (file,) = shred(tmp_path, kms, columns=columns)
    assert (file.result, file.failed, file.keys) == (word, True, 0)
    assert names in file.message
    assert bytes_of(tmp_path) == before
    proof = prove(tmp_path, kms, columns=columns)
    assert not proof.ok
    assert states(proof) == {"part-0000.parquet": {"readable"}}


def test_a_column_that_no_file_has_is_no_proof(tmp_path: Path, kms: RotatingKms) -> None:
    write_lake(tmp_path, kms, WITHIN, 2)
    files = shred(tmp_path, kms, columns=["nmae"])
    assert [(file.result, file.columns) for file in files] == [("current", ())] * 2
    assert all("no column nmae" in file.message for file in files)
    proof = prove(tmp_path, kms, columns=["nmae"])
    assert (proof.ok, proof.unmet) == (False, ("nmae",))


def test_a_name_that_means_several_columns_is_refused(tmp_path: Path, kms: RotatingKms) -> None:
    table = pa.table({"a": [{"b": 1}], "a.b": [2], "c": [3]})
    path = tmp_path / "a.parquet"
    policy = mc.Policy(footer_key="kf", column_keys={"k1": ["c"]})
    mc.write_table(table, path, mc.KeyTools(kms).encryption(policy))
    (file,) = shred(path, kms, columns=["a.b"])
    assert file.result == "usage"
    assert "match several columns" in file.message


def test_a_column_needs_the_footer_key_and_without_it_nothing_changes(
    tmp_path: Path, kms: RotatingKms
) -> None:
    for plaintext_footer in (True, False):
        for internal in (True, False):
            policy = mc.Policy(
                footer_key="kf", column_keys={"k2": ["name"]}, plaintext_footer=plaintext_footer,
                internal_key_material=internal,
            )  # fmt: skip
            (path,) = write_lake(tmp_path / f"{plaintext_footer} {internal}", kms, policy, 1)
            before = bytes_of(path.parent)
            kms.denied.add("kf")
            assert results(shred(path, kms, columns=["name"])) == ["denied"]
            kms.denied.clear()
            if not plaintext_footer or internal:
                assert results(shred(path, columns=["name"])) == ["no-key"]
                assert bytes_of(path.parent) == before
            else:  # all there is to know is in the clear
                assert results(shred(path, columns=["name"])) == ["shredded"]
                check_column_is_gone(path, kms)


def test_a_file_whose_footer_key_is_disabled_counts_as_failed(tmp_path: Path) -> None:
    """Nobody can know whether it has the column; "disabled" is a success of a master key alone."""
    keyring = mc.Keyring.create(tmp_path / "keys", passphrase="p")
    for name in ("lake", "pii"):
        keyring.create_key(name)
    tools = mc.KeyTools(keyring)
    policy = mc.Policy(footer_key="lake", column_keys={"pii": ["ssn"]})
    mc.write_table(
        pa.table({"ssn": ["1"], "z": [1]}), tmp_path / "x.parquet", tools.encryption(policy)
    )
    keyring.disable_key("lake")
    (file,) = mc.jobs.shred_keys(tmp_path / "x.parquet", mc.KeyTools(keyring), columns=["ssn"])
    assert (file.result, file.failed, file.keys) == ("disabled", True, 0)


def test_known_footer_keys_do_as_well_as_a_key_service(tmp_path: Path, kms: RotatingKms) -> None:
    (path,) = write_lake(tmp_path, kms, WITHIN, 1)
    properties = mc.FileDecryptionProperties(footer_key=Look(path, kms).footer_key)
    assert results(shred(path, columns=["name"], decryption=properties)) == ["shredded"]
    check_column_is_gone(path, kms)


def test_a_prefix_that_is_not_stored_is_given(tmp_path: Path, kms: RotatingKms) -> None:
    policy = mc.Policy(
        footer_key="kf", column_keys={"k2": ["name"]}, aad_prefix="lake/{name}",
        store_aad_prefix=False,
    )  # fmt: skip
    (path,) = write_lake(tmp_path, kms, policy, 1)
    tools = mc.KeyTools(kms)
    assert results(shred_keys(path, tools, columns=["name"])) == ["aad-prefix"]
    done = shred_keys(path, tools, columns=["name"], decryption=tools.decryption(policy))
    assert results(done) == ["shredded"]
    rows = mc.read_table(path, tools.decryption(policy, on_missing_key="drop"))
    assert rows.equals(TABLE.drop_columns(["name"]))
    assert prove_shredded(path, tools, columns=["name"], decryption=tools.decryption(policy)).ok
    assert not prove_shredded(path, tools, columns=["name"]).ok  # it could not look into it


# --- whole files ---------------------------------------------------------------------------------

MODES = pytest.mark.parametrize("plaintext_footer", [True, False], ids=["plaintext", "encrypted"])


@MODES
@each_case("internal", [True, False], ids=["internal", "external"])
@each_case("with_tools", [True, False], ids=["tools", "no tools"])
def test_everything_goes_with_and_without_a_key(
    with_tools: bool, internal: bool, plaintext_footer: bool, tmp_path: Path, kms: RotatingKms
) -> None:
    policy = mc.Policy(
        footer_key="kf", column_keys={"k1": ["id"], "k2": ["name"]},
        plaintext_footer=plaintext_footer, internal_key_material=internal,
    )  # fmt: skip
    lake = tmp_path / "lake"
    paths = write_lake(lake, kms, policy, 2)
    old = [Look(path, kms).open() for path in paths]

    done = shred(lake, kms if with_tools else None, everything=True)

    assert results(done) == ["shredded"] * 2
    assert [file.whole for file in done] == [not plaintext_footer] * 2
    for path, before in zip(paths, old, strict=True):
        check_nothing_is_read(path, kms)
        assert split(path.read_bytes())[0] == split(before.file)[0]
        left = [key for key in wrapped_keys(before).values() if key in path.read_text("latin-1")]
        assert not left
        if plaintext_footer or with_tools:
            text = text_of(path, before.footer_key)
            assert not [key for key in wrapped_keys(before).values() if key in text]
    assert sorted(os.listdir(lake)) == [path.name for path in paths]
    proof = prove(lake, everything=True)  # nothing is left to ask a key service for
    assert proof.ok
    assert set().union(*states(proof).values()) == {"gone"}
    assert results(shred(lake, kms, everything=True)) == ["current"] * 2


@STORAGE
def test_columns_in_plaintext_are_no_success_and_no_proof(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    for plaintext_footer in (True, False):
        policy = mc.Policy(
            footer_key="kf", plaintext_columns=["flag"], plaintext_footer=plaintext_footer,
            internal_key_material=policy.internal_key_material,
        )  # fmt: skip
        (path,) = write_lake(tmp_path, kms, policy, 1)
        (file,) = shred(path, kms, everything=True)
        assert (file.result, file.failed) == ("plaintext", True)
        assert file.keys == 1
        assert file.message.startswith("columns not encrypted: flag")
        check_nothing_is_read(path, kms)
        if plaintext_footer:
            assert pq.read_table(path, columns=["flag"]).equals(TABLE.select(["flag"]))
            proof = prove(path, kms, everything=True)
            ((_, still),) = proof.still_readable
            assert (still.columns, proof.ok) == (("flag",), False)


@pytest.mark.parametrize(
    ("criteria", "result", "failed"),
    [
        ({"everything": True}, "plaintext", True),
        ({"columns": ["name"]}, "plaintext", True),
        ({"columns": ["absent"]}, "current", False),
        ({"master_keys": ["k1"]}, "current", False),
    ],
)
def test_plaintext_files(
    criteria: dict[str, Any], result: str, failed: bool, tmp_path: Path, kms: RotatingKms
) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    before = bytes_of(tmp_path)
    (file,) = shred(tmp_path, kms, **criteria)
    assert (file.result, file.failed) == (result, failed)
    assert bytes_of(tmp_path) == before
    proof = prove(tmp_path, kms, **criteria)
    assert not proof.ok
    assert bool(proof.still_readable) == failed


# --- tenants -------------------------------------------------------------------------------------

TENANTS = {"kf": 1, "t6": 1, "t7": 1}


def tenants(lake: Path, kms: BasicKms, **options: Any) -> dict[str, list[Path]]:
    """Write two files of each of two tenants, whole or by columns under their keys."""
    tools, found = mc.KeyTools(kms), dict[str, list[Path]]()
    lake.mkdir(parents=True, exist_ok=True)
    for tenant in ("t6", "t7"):
        whole = mc.Policy(footer_key=tenant, column_keys={tenant: ["id"]}, **options)
        part = mc.Policy(footer_key="kf", column_keys={tenant: ["name", "id"]}, **options)
        for name, policy in (("whole", whole), ("part", part)):
            path = lake / f"{tenant}-{name}.parquet"
            mc.write_table(TABLE, path, tools.encryption(policy))
            found.setdefault(tenant, []).append(path)
    return found


@MODES
@each_case("internal", [True, False], ids=["internal", "external"])
@each_case("double", [True, False], ids=["double", "single"])
def test_a_tenants_keys_go_and_the_others_files_are_not_touched(
    double: bool, internal: bool, plaintext_footer: bool, tmp_path: Path
) -> None:
    kms, lake = RotatingKms(**TENANTS), tmp_path / "lake"
    found = tenants(
        lake, kms, internal_key_material=internal, plaintext_footer=plaintext_footer,
        double_wrapping=double,
    )  # fmt: skip
    before = bytes_of(lake)
    seen: list[tuple[ShreddedFile, int]] = []

    done = shred(lake, kms, master_keys=["t7"], progress=lambda *reported: seen.append(reported))

    assert {Path(file.path).name: file.result for file in done} == {
        "t6-part.parquet": "current", "t6-whole.parquet": "current",
        "t7-part.parquet": "shredded", "t7-whole.parquet": "shredded",
    }  # fmt: skip
    assert seen == [(file, 4) for file in done]
    after = bytes_of(lake)
    assert {n: v for n, v in after.items() if "t6" in n} == {
        n: v for n, v in before.items() if "t6" in n
    }
    whole, part = found["t7"]
    check_nothing_is_read(whole, kms)
    rest = mc.read_table(part, mc.KeyTools(kms).decryption(on_missing_key="drop"))
    assert rest.equals(TABLE.drop_columns(["name", "id"]))
    for path in found["t6"]:
        assert read(path, kms).equals(TABLE)
    assert prove(lake, kms, master_keys=["t7"]).ok
    left = prove(lake, kms, master_keys=["t6"])
    assert not left.ok
    assert {Path(file.path).name for file, _ in left.still_readable} == {
        "t6-part.parquet", "t6-whole.parquet"
    }  # fmt: skip
    assert results(shred(lake, kms, master_keys=["t7"])) == ["current"] * 4


def test_a_tenants_whole_files_need_no_key_and_its_columns_a_look_into_the_footer(
    tmp_path: Path,
) -> None:
    kms = RotatingKms(**TENANTS)
    tenants(tmp_path, kms)
    done = shred(tmp_path, master_keys=["t7"])
    assert {Path(file.path).name: file.result for file in done} == {
        "t6-part.parquet": "no-key", "t6-whole.parquet": "no-key", "t7-part.parquet": "no-key",
        "t7-whole.parquet": "shredded",
    }  # fmt: skip
    check_nothing_is_read(tmp_path / "t7-whole.parquet", kms)
    # Whose key opens no more can be shredded all the same.
    del kms.newest["t6"]
    done = shred(tmp_path, kms, master_keys=["t6"])
    assert {Path(file.path).name: file.result for file in done} == {
        "t6-part.parquet": "shredded", "t6-whole.parquet": "shredded", "t7-part.parquet": "current",
        "t7-whole.parquet": "current",
    }  # fmt: skip


def test_with_the_footer_key_goes_the_whole_file_and_the_result_says_so(tmp_path: Path) -> None:
    kms = RotatingKms(kf=1, t7=1)
    policy = mc.Policy(footer_key="t7", column_keys={"kf": ["id"]})
    (path,) = write_lake(tmp_path, kms, policy, 1)
    (file,) = shred(path, kms, master_keys=["t7"])
    assert (file.result, file.whole) == ("shredded", True)
    assert "the whole file" in file.message


def test_wrapped_keys_of_encrypted_footers_go_too_where_they_open(tmp_path: Path) -> None:
    """Or whoever has kept the footer key would find the others."""
    kms = RotatingKms(t7=1)
    policy = mc.Policy(footer_key="t7", column_keys={"t7": ["id"]})
    (path,) = write_lake(tmp_path, kms, policy, 1)
    old = Look(path, kms).open()
    (file,) = shred(path, kms, master_keys=["t7"])
    assert file.keys == 2
    assert wrapped_keys(old)["id"] not in text_of(path, old.footer_key)


# --- keys that are kept elsewhere ----------------------------------------------------------------


@pytest.mark.parametrize("metadata", [b"key 17", None])
def test_explicit_keys_are_kept_elsewhere(
    metadata: bytes | None, tmp_path: Path, kms: RotatingKms
) -> None:
    path = tmp_path / "a.parquet"
    more: dict[str, Any] = {} if metadata is None else {"footer_key_metadata": metadata}
    properties = mc.FileEncryptionProperties(footer_key=b"0123456789012345", **more)
    mc.write_table(TABLE, path, properties)
    before = bytes_of(tmp_path)
    for criteria in ({"everything": True}, {"master_keys": ["kf"]}):
        (file,) = shred(path, kms, **criteria)
        reported = metadata is not None or "everything" in criteria
        assert file.result == ("elsewhere" if reported else "current")
        assert "elsewhere" in file.message or not reported
        proof = prove(path, kms, **criteria)
        assert not proof.ok  # nobody has shredded it
        assert any("keys that are stored elsewhere" in limit for limit in proof.limits)
    assert bytes_of(tmp_path) == before


def test_the_encrypted_key_metadata_of_a_stream_is_overwritten(tmp_path: Path) -> None:
    kms = RotatingKms(t6=1, t7=1)
    tools = mc.KeyTools(kms)
    paths = {}
    for tenant in ("t6", "t7"):
        stream = tmp_path / f"{tenant}.ags1"
        metadata = mc.ags1.StandardKeyMetadata(key=os.urandom(16), aad_prefix=b"")
        with mc.ags1.Ags1Writer(stream, metadata.key) as writer:
            writer.write(b"rows")
        paths[tenant] = tmp_path / f"{tenant}.key"
        paths[tenant].write_bytes(tools.encrypt_key_metadata(metadata, tenant))
    old = paths["t7"].read_bytes()
    done = shred(tmp_path, kms, master_keys=["t7"])
    assert {Path(file.path).name: file.result for file in done} == {
        "t6.ags1": "current", "t6.key": "current", "t7.ags1": "current", "t7.key": "shredded",
    }  # fmt: skip
    tools.decrypt_key_metadata(paths["t6"].read_bytes())
    with pytest.raises(mc.errors.KeyMaterialError):
        tools.decrypt_key_metadata(paths["t7"].read_bytes())
    for member in ("wrappedKEK", "wrappedKeyMetadata"):
        assert json.loads(old)[member] not in paths["t7"].read_text()
    proof = prove(tmp_path, kms, master_keys=["t7"])
    assert proof.ok
    assert states(proof)["t7.key"] == {"gone"}
    assert sorted(map(os.path.basename, proof.others)) == ["t6.ags1", "t7.ags1"]
    assert states(prove(tmp_path, kms, master_keys=["t6"]))["t6.key"] == {"readable"}
    assert not prove(tmp_path, kms, everything=True).ok
    assert results(shred(paths["t7"], master_keys=["t7"])) == ["current"]


# --- master keys ---------------------------------------------------------------------------------


def keyring(tmp_path: Path, *names: str) -> mc.Keyring:
    ring = mc.Keyring.create(tmp_path / "ring", plaintext=True)
    for name in names:
        ring.create_key(name)
    return ring


def test_a_keyrings_key_is_destroyed_after_the_files(tmp_path: Path) -> None:
    ring, lake = keyring(tmp_path, "kf", "t6", "t7"), tmp_path / "lake"
    found = tenants(lake, ring)  # type: ignore[arg-type]  # it is a key service
    shutil.copytree(lake, tmp_path / "backup")
    value = json.loads((tmp_path / "ring").read_bytes())
    secret = value["keys"]["t7"]["versions"][0]["value"]

    *files, ended = shred_keys(
        lake, mc.KeyTools(ring), master_keys=["t7"], destroy_master_keys=True
    )

    assert "failed" not in results(files)
    assert (ended.result, ended.master_key_id, ended.failed) == ("destroyed", "t7", False)
    assert secret not in (tmp_path / "ring").read_text()
    again = mc.Keyring(tmp_path / "ring")
    # What shredding did not reach is lost with the master key.
    for path in found["t7"]:
        with pytest.raises(mc.errors.KeyDisabledError):
            mc.read_table(tmp_path / "backup" / path.name, mc.KeyTools(again).decryption())
    for path in found["t6"]:
        assert mc.read_table(path, mc.KeyTools(again).decryption()).equals(TABLE)
    proof = prove(tmp_path / "backup", again, master_keys=["t7"])
    assert proof.ok
    assert {key.state for _, key in proof.no_longer_readable} == {"refused"}
    assert any("backups" in limit and "Refused" in limit for limit in proof.limits)


def test_a_master_key_stays_where_a_file_has_failed(tmp_path: Path) -> None:
    ring, lake = keyring(tmp_path, "kf", "t6", "t7"), tmp_path / "lake"
    tenants(lake, ring)  # type: ignore[arg-type]  # it is a key service
    (lake / "t8.parquet").write_bytes(b"PAR1 nothing PAR1")
    done = shred_keys(lake, mc.KeyTools(ring), master_keys=["t7"], destroy_master_keys=True)
    assert done[-1].result == "kept"
    assert done[-1].failed
    assert {key.id: key.enabled for key in ring.list_keys()}["t7"]


def test_what_a_key_service_cannot_do_is_said(tmp_path: Path) -> None:
    class Disabling(RotatingKms):
        def disable_key(self, master_key_id: str, version: int | None = None) -> mc.kms.MasterKey:
            if master_key_id in self.denied:
                raise mc.errors.KeyAccessDeniedError(f"{master_key_id} is refused")
            del self.newest[master_key_id]
            return mc.kms.MasterKey(id=master_key_id, enabled=False)

    def end(kms: BasicKms, **options: Any) -> ShreddedFile:
        return shred([], kms, master_keys=["t7"], destroy_master_keys=True, **options)[0]

    assert end(RotatingKms(t7=1)).result == "kept"
    kms = Disabling(t7=1)
    assert end(kms, dry_run=True).result == "disabled"
    kms.denied.add("t7")
    assert end(kms).result == "denied"
    kms.denied.clear()
    assert (end(kms).result, kms.newest) == ("disabled", {})
    with pytest.raises(ValueError, match="destroy_master_keys needs"):
        shred(tmp_path, kms, everything=True, destroy_master_keys=True)


# --- what a key service's answers prove ----------------------------------------------------------


@STORAGE
def test_refusals_prove_and_an_unavailable_service_does_not(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_sleeps(monkeypatch)
    write_lake(tmp_path, kms, policy, 2)
    proof = prove(tmp_path, kms, columns=["name"])
    assert not proof.ok
    assert {key.state for _, key in proof.still_readable} == {"readable"}
    assert {key.master_key_id for _, key in proof.still_readable} == {"k2"}

    def proof_with(error: Exception) -> Proof:
        def unwrap(self: Any, wrapped: str, master: str, *, aad: bytes = b"") -> bytes:
            if master == "k2":
                raise error
            return RotatingKms.unwrap(self, wrapped, master, aad=aad)

        failing = type("Failing", (RotatingKms,), {"unwrap": unwrap})
        return prove(tmp_path, failing(**MASTERS), columns=["name"])

    for refusal in (KeyError("s3cr3t"), mc.errors.KeyDisabledError("off")):
        proof = proof_with(refusal)
        assert proof.ok
        assert states(proof) == {"part-0000.parquet": {"refused"}, "part-0001.parquet": {"refused"}}
        assert "s3cr3t" not in json.dumps(proof.fields())
    for nothing in (
        PermissionError("s3cr3t"), ConnectionError("s3cr3t"), TimeoutError(),
        mc.errors.KmsUnavailableError("down"), mc.errors.KeyMaterialError("altered, or other AAD"),
        RuntimeError("s3cr3t"),
    ):  # fmt: skip
        proof = proof_with(nothing)
        assert not proof.ok
        assert not proof.no_longer_readable
        assert states(proof) == {"part-0000.parquet": {"unknown"}, "part-0001.parquet": {"unknown"}}
        assert "s3cr3t" not in json.dumps(proof.fields())
    assert not prove(tmp_path, columns=["name"]).ok


def test_what_was_unwrapped_before_is_asked_for_again(tmp_path: Path, kms: RotatingKms) -> None:
    (path,) = write_lake(tmp_path, kms, WITHIN, 1)
    tools = mc.KeyTools(kms)
    mc.read_table(path, tools.decryption())
    kms.disable_all("k2")
    assert prove_shredded(path, tools, columns=["name"]).ok


def test_another_master_key_of_the_same_name_proves_nothing(
    tmp_path: Path, kms: RotatingKms
) -> None:
    class Another(RotatingKms):
        def _master(self, master_key_id: str, version: int) -> bytes:
            if master_key_id != "k2":
                return super()._master(master_key_id, version)
            return hashlib.sha256(b"made anew").digest()

    (path,) = write_lake(tmp_path, kms, WITHIN, 1)
    proof = prove(path, Another(**MASTERS), columns=["name"])
    assert (proof.ok, states(proof)) == (False, {"part-0000.parquet": {"unknown"}})


def test_a_encrypted_footer_whose_master_key_is_gone_hides_its_columns_for_good(
    tmp_path: Path, kms: RotatingKms
) -> None:
    write_lake(tmp_path, kms, WITHIN, 1)
    kms.disable_all("kf")
    proof = prove(tmp_path, kms, columns=["name"])
    assert proof.ok
    ((_, key),) = proof.no_longer_readable
    assert key.why.startswith("in the encrypted footer, whose key is lost")


def test_keys_beside_an_encrypted_footer_that_opens_no_more_are_no_proof(
    tmp_path: Path, kms: RotatingKms
) -> None:
    """Pages open without the footer, for who counts them."""
    write_lake(tmp_path, kms, BESIDE, 1)
    kms.disable_all("kf")
    proof = prove(tmp_path, kms, columns=["name"])
    assert (proof.ok, states(proof)) == (False, {"part-0000.parquet": {"unknown"}})
    kms.disable_all("k1", "k2")
    assert prove(tmp_path, kms, columns=["name"]).ok
    assert prove(tmp_path, kms, everything=True).ok
    kms.disabled.pop("k1")
    assert not prove(tmp_path, kms, everything=True).ok


# --- a real key service --------------------------------------------------------------------------


@STORAGE
def test_on_openbao_a_tenants_key_is_destroyed_and_what_it_answers_then_is_proof(
    policy: mc.Policy, tmp_path: Path, bao: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount, lake = bao.mount(), tmp_path / "lake"

    def service(token: str = bao.root_token) -> Any:
        return mc.kms.open_kms(bao.uri(mount), token=token)

    admin = service()
    for name in TENANTS:
        admin.create_key(name)
    found = tenants(lake, admin, internal_key_material=policy.internal_key_material)
    shutil.copytree(lake, tmp_path / "backup")
    criteria: dict[str, Any] = {"master_keys": ["t7"]}
    assert not prove(lake, service(), **criteria).ok

    rules = {f"{mount}/decrypt/kf": ["update"], f"{mount}/keys/*": ["read"]}
    kept_out = prove(tmp_path / "backup", service(bao.token(rules)), **criteria)
    # Who is kept out can't know whether others are.
    assert not kept_out.ok
    assert not kept_out.no_longer_readable
    assert "denied" in {key.why.split(":")[0] for _, key in kept_out.unknown}

    *files, ended = shred_keys(lake, mc.KeyTools(admin), destroy_master_keys=True, **criteria)

    assert not [file for file in files if file.failed]
    assert ended.result == "destroyed"
    names = bao.judge().secrets.transit.list_keys(mount_point=mount)["data"]["keys"]
    assert sorted(names) == ["kf", "t6"]
    for path in found["t6"]:
        assert mc.read_table(path, mc.KeyTools(service()).decryption()).equals(TABLE)
    assert prove(lake, service(), **criteria).ok
    proof = prove(tmp_path / "backup", service(), **criteria)
    assert proof.ok
    assert {key.why.split(":")[0] for _, key in proof.no_longer_readable} == {"no-key"}
    again = shred_keys([], mc.KeyTools(service()), destroy_master_keys=True, **criteria)
    assert results(again) == ["current"]
    admin.create_key("t7")  # another one of the same name
    proof = prove(tmp_path / "backup", service(), **criteria)
    assert not proof.ok
    assert not proof.still_readable
    note_sleeps(monkeypatch)
    bao.seal()
    try:
        proof = prove(tmp_path / "backup", admin, **criteria)
    finally:
        bao.unseal()
    assert not proof.ok
    assert not proof.no_longer_readable
    assert any("unavailable" in key.why for _, key in proof.unknown)


# --- leftovers -----------------------------------------------------------------------------------


@each_case(
    ("leftover", "policy"),
    [
        (".a.parquet.backup", WITHIN),
        ("_old/part-0000.parquet", WITHIN),
        (".snapshots/1/part-0000.parquet", WITHIN),
        (".modcrypt-0123456789abcdef.tmp", WITHIN),
        ("_KEY_MATERIAL_FOR_part-0000.parquet.json.bak", BESIDE),
        ("_TMP_KEY_MATERIAL_FOR_other.parquet.json", BESIDE),
        (".modcrypt-0123456789abcdef.tmp", BESIDE),
        ("_old/_KEY_MATERIAL_FOR_part-0000.parquet.json", BESIDE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@each_case("criteria", [{"columns": ["name"]}, {"master_keys": ["k2"]}])
def test_leftovers_in_the_folder_are_found(
    criteria: dict[str, Any], leftover: str, policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    (path,) = write_lake(tmp_path, kms, policy, 1)
    copy = tmp_path / leftover
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path if policy is WITHIN else material_file(path), copy)
    assert results(shred(tmp_path, kms, **criteria)) == ["shredded"]
    proof = prove(tmp_path, kms, **criteria)
    assert not proof.ok
    found = {file.path: file.leftover for file, _ in proof.still_readable}
    assert found == {str(copy): True}
    copy.unlink()
    assert prove(tmp_path, kms, **criteria).ok


@pytest.mark.parametrize(
    ("leftover", "policy"),
    [
        ("part-0000.parquet.bak", WITHIN),
        ("copy of the same", WITHIN),
        ("_KEY_MATERIAL_FOR_part-0000.parquet.json~", BESIDE),
    ],
    ids=["copy", "other name", "material"],
)
def test_copies_beside_a_single_file_are_found_and_other_files_are_left_out(
    leftover: str, policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    path, other = write_lake(tmp_path, kms, policy, 2)
    shutil.copy(path if policy is WITHIN else material_file(path), tmp_path / leftover)
    for criteria in ({"columns": ["name"]}, {"master_keys": ["k2"]}):
        assert results(shred(path, kms, **criteria))[0] in ("shredded", "current")
        proof = prove(path, kms, **criteria)
        assert not proof.ok
        assert {file.path for file, _ in proof.still_readable} == {str(tmp_path / leftover)}
    (tmp_path / leftover).unlink()
    shutil.copy(other, tmp_path / f"other {path.name}")
    if policy is BESIDE:
        shutil.copy(material_file(other), material_file(tmp_path / f"other {path.name}"))
    assert prove(path, kms, columns=["name"]).ok
    assert prove(path, kms, master_keys=["k2"]).ok
    assert read(other, kms).equals(TABLE)


def test_material_that_is_cut_is_an_open_end_and_other_hidden_files_are_named(
    tmp_path: Path, kms: RotatingKms
) -> None:
    (path,) = write_lake(tmp_path, kms, BESIDE, 1)
    text = material_file(path).read_bytes()
    shred(tmp_path, kms, everything=True)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part.crc").write_bytes(b"crc!")
    proof = prove(tmp_path, kms, everything=True)
    assert proof.ok
    assert sorted(map(os.path.basename, proof.others)) == [".part.crc", "_SUCCESS"]
    (tmp_path / ".modcrypt-00.tmp").write_bytes(b" " * (8 << 20) + text[: len(text) // 2])
    proof = prove(tmp_path, kms, everything=True)
    assert (proof.ok, len(proof.unknown)) == (False, 1)


@pytest.mark.parametrize("junk", [b"a,b\n1,2\n", b"PAR1" + bytes(50) + b"PAR1"])
def test_a_file_that_cannot_be_looked_into_is_no_proof(
    junk: bytes, tmp_path: Path, kms: RotatingKms
) -> None:
    write_lake(tmp_path, kms, WITHIN, 1)
    shred(tmp_path, kms, everything=True)
    assert prove(tmp_path, kms, everything=True).ok
    (tmp_path / "b.parquet").write_bytes(junk)
    proof = prove(tmp_path, kms, everything=True)
    assert not proof.ok
    ((unseen),) = proof.unseen
    assert Path(unseen.path).name == "b.parquet"


def test_an_unreadable_hidden_file_is_no_proof(
    tmp_path: Path, kms: RotatingKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lake(tmp_path, kms, WITHIN, 1)
    shred(tmp_path, kms, everything=True)
    (tmp_path / ".hidden").write_bytes(b"x" * 100)
    real = os.open

    def refusing(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(".hidden"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    assert not prove(tmp_path, kms, everything=True).ok


def test_keys_of_other_versions_are_removed_with_a_tenant_and_named_with_a_column(
    tmp_path: Path, kms: RotatingKms
) -> None:
    """As a writer that was killed leaves them."""
    (path,) = write_lake(tmp_path, kms, BESIDE, 1)
    store = json.loads(material_file(path).read_bytes())
    write = "0123456789abcdef"
    staged = {f"{name}-{write}": text for name, text in store.items()}
    material_file(path).write_text(json.dumps(store | staged))
    assert results(shred(path, kms, columns=["name"])) == ["key-material"]  # it is the same key
    other = RotatingKms(**MASTERS)
    (elsewhere,) = write_lake(tmp_path / "b", other, BESIDE, 1)
    theirs = json.loads(material_file(elsewhere).read_bytes())
    staged = {f"{name}-{write}": text for name, text in theirs.items()}
    material_file(path).write_text(json.dumps(store | staged))
    assert results(shred(path, kms, columns=["name"])) == ["shredded"]
    proof = prove(path, kms, columns=["name"])
    assert [key.state for _, key in proof.unknown] == ["unknown"]
    assert results(shred(path, kms, master_keys=["k2"])) == ["shredded"]
    assert prove(path, kms, columns=["name"]).ok


def test_what_a_crash_of_a_writer_has_left_is_settled(tmp_path: Path, kms: RotatingKms) -> None:
    """Between the publication of a new version and of its keys' own names."""
    (path,) = write_lake(tmp_path, kms, BESIDE, 1)
    old = json.loads(material_file(path).read_bytes())
    mc.write_table(TABLE, path, mc.KeyTools(kms).encryption(BESIDE), overwrite=True)
    new = json.loads(material_file(path).read_bytes())
    (write,) = {json.loads(text)["modcryptWrite"] for text in new.values()}
    staged = {f"{name}-{write}": text for name, text in new.items()}
    material_file(path).write_text(json.dumps(old | staged))
    assert read(path, kms).equals(TABLE)
    assert results(shred(path, kms, columns=["name"])) == ["shredded"]
    left = json.loads(material_file(path).read_bytes())
    assert set(left.values()) < set(new.values())
    assert len(left) == len(new) - 1
    rows = mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key="drop"))
    assert rows.equals(TABLE.drop_columns(["name"]))
    assert prove(path, kms, columns=["name"]).ok


def test_temporary_key_material_of_other_implementations_goes_too(
    tmp_path: Path, kms: RotatingKms
) -> None:
    (path,) = write_lake(tmp_path, kms, BESIDE, 1)
    temporary = tmp_path / f"_TMP{material_file(path).name}"
    shutil.copy(material_file(path), temporary)
    assert results(shred(path, kms, columns=["name"])) == ["shredded"]
    assert temporary.read_bytes() == material_file(path).read_bytes()
    assert prove(path, kms, columns=["name"]).ok
    assert results(shred(path, everything=True)) == ["shredded"]
    assert os.listdir(tmp_path) == [path.name]


def test_key_material_of_an_older_version_of_a_file_goes_too(
    tmp_path: Path, kms: RotatingKms
) -> None:
    (path,) = write_lake(tmp_path, kms, BESIDE, 1)
    mc.write_table(TABLE, path, mc.KeyTools(kms).encryption(WITHIN), overwrite=True)
    assert material_file(path).exists()
    assert not prove(path, kms, master_keys=["k2"]).ok
    assert results(shred(path, kms, master_keys=["k2"])) == ["shredded"]
    assert prove(path, kms, master_keys=["k2"]).ok
    assert '\\"k2\\"' not in material_file(path).read_text()  # base64 may have k2 in it


# --- the proof itself ----------------------------------------------------------------------------


def test_a_proof_says_what_it_looked_at(tmp_path: Path, kms: RotatingKms) -> None:
    paths = write_lake(tmp_path, kms, WITHIN, 3)
    shred(tmp_path, kms, columns=["name"])
    before = bytes_of(tmp_path)
    proof = prove(tmp_path, kms, columns=["name"], jobs=2)
    assert bytes_of(tmp_path) == before
    assert [(file.path, file.size, file.sha256) for file in proof.files] == [
        (str(p), p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest()) for p in paths
    ]
    fields = json.loads(json.dumps(proof.fields()))
    assert fields["ok"] is True
    assert fields["version"] == mc.__version__
    assert fields["time"].endswith("+00:00")
    assert fields["criteria"] == {"columns": ["name"], "master_keys": [], "everything": False}
    assert (fields["no_longer_readable"], fields["still_readable"]) == (3, 0)
    assert fields["files"][0]["keys"][0]["state"] == "gone"
    assert proof.limits


def test_a_proof_of_nothing_is_none(tmp_path: Path, kms: RotatingKms) -> None:
    write_lake(tmp_path, kms, WITHIN, 1)
    assert not prove([], kms, everything=True).ok
    assert not prove(tmp_path, kms, master_keys=["tenent-7"]).ok


def test_neither_results_nor_proofs_hold_a_wrapped_key(tmp_path: Path, kms: RotatingKms) -> None:
    for policy in (WITHIN, BESIDE):
        (path,) = write_lake(tmp_path, kms, policy, 1)
        wrapped = wrapped_keys(Look(path, kms).open()).values()
        before = prove(path, kms, everything=True)
        done = shred(path, kms, everything=True)
        after = prove(path, kms, everything=True)
        text = "".join([repr(done), repr(before), repr(after), json.dumps(before.fields())])
        assert not [key for key in wrapped if key in text]


def test_what_is_shredded_is_recorded(tmp_path: Path, kms: RotatingKms) -> None:
    for policy, name in ((WITHIN, "name"), (BESIDE, "columnKey")):
        events: list[mc.kms.AuditEvent] = []
        tools = mc.KeyTools(kms, audit=events.append)
        (path,) = write_lake(tmp_path, kms, policy, 1)
        shred_keys(path, tools, columns=["name"], dry_run=True)
        assert not [event for event in events if event.operation == "shred"]
        shred_keys(path, tools, columns=["name"])
        (event,) = [event for event in events if event.operation == "shred"]
        assert (event.by, event.master_key_id, event.result) == ("file", "k2", "ok")
        assert event.file == str(path)
        assert [column.startswith(name) for column in event.columns] == [True]


# --- runs ----------------------------------------------------------------------------------------


@STORAGE
@pytest.mark.parametrize(
    "criteria", [{"columns": ["name"]}, {"master_keys": ["k2"]}, {"everything": True}]
)
def test_a_dry_run_touches_nothing_and_says_what_a_run_does(
    criteria: dict[str, Any], policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    write_lake(tmp_path / "lake", kms, policy)
    before, record = bytes_of(tmp_path), tmp_path / "record"
    said = shred(tmp_path / "lake", kms, dry_run=True, record=record, **criteria)
    assert bytes_of(tmp_path) == before
    assert said == shred(tmp_path / "lake", kms, record=record, **criteria)
    assert results(said) == ["shredded"] * 3


@STORAGE
def test_recorded_files_are_current_until_they_change(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    paths = write_lake(lake, kms, policy)
    shutil.copytree(lake, tmp_path / "backup")
    how: dict[str, Any] = {"columns": ["name"], "record": record}
    assert results(shred(lake, kms, **how)) == ["shredded"] * 3
    kms.calls.clear()
    done = shred(lake, kms, **how)
    assert [(file.result, file.columns) for file in done] == [("current", ("name",))] * 3
    assert not kms.calls
    assert results(shred(lake, kms, columns=["id"], record=record)) == ["shredded"] * 3
    for name in (paths[1].name, material_file(paths[1]).name):
        if (tmp_path / "backup" / name).exists():
            shutil.copy(tmp_path / "backup" / name, lake)
    assert results(shred(lake, kms, **how))[1] == "shredded"
    check_column_is_gone(paths[1], kms)


@each_case(
    ("criteria", "error"),
    [
        ({}, ValueError),
        ({"columns": "name"}, ValueError),
        ({"master_keys": "k2"}, ValueError),
        ({"columns": ["name"], "everything": True}, ValueError),
        ({"columns": ["name"], "master_keys": ["k2"]}, ValueError),
        ({"columns": [5]}, TypeError),
        ({"columns": [""]}, ValueError),
        ({"master_keys": [""]}, ValueError),
        ({"everything": 1}, TypeError),
    ],
)
def test_what_is_meant_must_be_said(
    criteria: dict[str, Any], error: type[Exception], tmp_path: Path, kms: RotatingKms
) -> None:
    write_lake(tmp_path, kms, WITHIN, 1)
    before = bytes_of(tmp_path)
    kms.calls.clear()
    for call in (shred, prove):
        with pytest.raises(error):
            call(tmp_path, kms, **criteria)
    assert not kms.calls
    assert bytes_of(tmp_path) == before


# --- who else is there ---------------------------------------------------------------------------


class Meanwhile(RotatingKms):
    """Does something while it is asked for the footer key."""

    def __init__(self, **newest: int) -> None:
        super().__init__(**newest)
        self.action: Any = None

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        action, self.action = self.action, None
        if action is not None:
            action()
        return super().unwrap(wrapped, master_key_id, aad=aad)


@STORAGE
def test_a_file_that_is_replaced_meanwhile_is_left_alone(policy: mc.Policy, tmp_path: Path) -> None:
    kms = Meanwhile(**MASTERS)
    (path,) = write_lake(tmp_path, kms, policy, 1)

    def replace() -> None:
        encryption = mc.KeyTools(RotatingKms(**MASTERS)).encryption(policy)
        mc.write_table(OTHER, path, encryption, overwrite=True)

    kms.action = replace
    (file,) = shred(path, kms, columns=["name"])
    assert file.failed
    assert read(path, kms).equals(OTHER)
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]
    assert results(shred(path, kms, columns=["name"])) == ["shredded"]


def test_a_file_that_changes_while_a_proof_looks_is_no_proof(tmp_path: Path) -> None:
    kms = Meanwhile(**MASTERS)
    (path,) = write_lake(tmp_path, kms, WITHIN, 1)
    shred(path, kms, columns=["name"])
    data = path.read_bytes()

    def touch() -> None:
        path.write_bytes(data)
        os.utime(path, ns=(1, 1))

    kms.action = touch
    proof = prove(path, kms, columns=["name"])
    assert not proof.ok
    assert "file changed while it was being processed" in proof.unseen[0].message
    assert prove(path, kms, columns=["name"]).ok


# --- where files are -----------------------------------------------------------------------------


def test_hard_links_keep_their_keys_and_the_result_says_so(
    tmp_path: Path, kms: RotatingKms
) -> None:
    (path,) = write_lake(tmp_path, kms, WITHIN, 1)
    other = tmp_path / "other.parquet"
    other.hardlink_to(path)
    (file,) = shred(path, kms, columns=["name"])
    assert "hard links" in file.message
    assert read(other, kms).equals(TABLE)
    assert not prove(path, kms, columns=["name"]).ok  # the other is a copy beside it
    assert results(shred(other, kms, columns=["name"])) == ["shredded"]
    assert prove(path, kms, columns=["name"]).ok


@contextlib.contextmanager
def in_memory(kind: str, name: str) -> Iterator[tuple[Any, str, str]]:
    """Return a file system, a folder in it, and the prefix of its paths."""
    base, memory = f"/{name}", fsspec.filesystem("memory")
    memory.mkdir(base)
    filesystem = {
        "fsspec": memory, "pyarrow": pafs.PyFileSystem(pafs.FSSpecHandler(memory)), "url": None,
    }[kind]  # fmt: skip
    yield filesystem, f"memory:/{base}" if kind == "url" else base, base
    memory.rm(base, recursive=True)


@STORAGE
@each_case(
    ("criteria", "kind"),
    [
        ({"columns": ["name"]}, "fsspec"),
        ({"master_keys": ["k2"]}, "pyarrow"),
        ({"everything": True}, "url"),
    ],
)
def test_files_in_other_file_systems(
    criteria: dict[str, Any], kind: str, policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    with in_memory(kind, tmp_path.name) as (filesystem, root, base):
        options: Any = {} if filesystem is None else {"filesystem": filesystem}
        tools = mc.KeyTools(kms)
        for n in range(2):
            name = f"{root}/{n}.parquet"
            mc.write_table(TABLE, name, tools.encryption(policy), filesystem=filesystem)
        assert results(shred(root, kms, **criteria, **options)) == ["shredded"] * 2
        proof = prove(root, kms, **criteria, **options)
        assert (proof.ok, len(proof.files)) == (True, 2)
        assert prove(f"{root}/0.parquet", kms, **criteria, **options).ok
        lenient = mc.KeyTools(kms).decryption(on_missing_key="drop")
        memory = fsspec.filesystem("memory")
        if "everything" in criteria:
            assert [Path(name).name for name in memory.ls(base, detail=False)] == [
                "0.parquet", "1.parquet"
            ]  # fmt: skip
            with pytest.raises(mc.ModcryptError):
                mc.read_table(f"{root}/0.parquet", lenient, **options)
        else:
            rows = mc.read_table(f"{root}/0.parquet", lenient, **options)
            assert rows.equals(TABLE.drop_columns(["name"]))
        with memory.open(f"{base}/_old", "wb") as file:  # a copy of what there was
            mc.write_table(TABLE, file, mc.KeyTools(kms).encryption(WITHIN))
        assert not prove(root, kms, **criteria, **options).ok


# --- hostile files -------------------------------------------------------------------------------

KNOWN = {
    "shredded", "current", "elsewhere", "plaintext", "format", "unsupported", "limit", "tag",
    "signature", "aad-prefix", "truncation", "no-key", "denied", "key-material", "key", "file",
}  # fmt: skip


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, bytes | None]]:
    """Return files of every kind with their external key material."""
    folder, found = tmp_path_factory.mktemp("seeds"), []
    for internal in (True, False):
        for plaintext_footer in (True, False):
            policy = mc.Policy(
                footer_key="kf", column_keys={"k1": ["id"]}, internal_key_material=internal,
                plaintext_footer=plaintext_footer,
            )  # fmt: skip
            path = folder / f"{internal} {plaintext_footer}"
            mc.write_table(TABLE, path, mc.KeyTools(RotatingKms(**MASTERS)).encryption(policy))
            beside = material_file(path)
            found.append((path.read_bytes(), None if internal else beside.read_bytes()))
    return found


@settings(max_examples=examples(60))
@given(
    kind=st.integers(0, 3),
    changes=edits(),
    beside=edits(2000),
    criteria=st.sampled_from([{"columns": ["id"]}, {"master_keys": ["k1"]}, {"everything": True}]),
)
def test_any_altered_file_is_a_result_and_what_is_proven_does_not_open(
    kind: int, changes: list[Any], beside: list[Any], criteria: dict[str, Any],
    seeds: list[tuple[bytes, bytes | None]], tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    file, store = seeds[kind]
    path, kms = tmp_path_factory.mktemp("altered") / "a.parquet", RotatingKms(**MASTERS)
    path.write_bytes(apply_edits(file, changes))
    if store is not None:
        material_file(path).write_bytes(apply_edits(store, beside))
    (done,) = shred(path, kms, **criteria)
    assert done.result in KNOWN
    proof = prove(path, kms, **criteria)
    if proof.ok:
        try:
            rows = mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key="drop"))
        except (mc.ModcryptError, ValueError):
            return
        assert "id" not in rows.column_names or criteria == {"master_keys": ["k1"]}
