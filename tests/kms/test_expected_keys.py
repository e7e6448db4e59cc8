"""Master keys that a reader expects: forged files under any other one are refused, unasked.

The attacker may write the storage and wrap under master key "own", which the reader may unwrap by,
or has read files under it. Some attackers also have the file's footer key.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt import KeyTools, Policy
from modcrypt.errors import KeyMaterialError, PlaintextError
from modcrypt.io.sources import open_source
from modcrypt.jobs.dataset_verification import verify_dataset
from modcrypt.kms.settings import Settings
from modcrypt.kms.wrapped_key_metadata import encode_wrapped_metadata, parse_wrapped_metadata
from modcrypt.parquet.crypto.footer_keys import list_key_metadata
from modcrypt.parquet.verify.file_verification import verify_parquet
from modcrypt.parquet.verify.inspection import inspect_parquet
from modcrypt.pkmt1.material import decode_metadata
from modcrypt.spark.source.options import read_options
from tests.support.cases import each_case
from tests.support.kms.memory_kms import MASTERS, MemoryKms

OWN = "own"
KEYS = {**MASTERS, OWN: b"the attacker's.."}
TABLE = pa.table(
    {
        "iban": ["NO01", "NO02"],
        "salary": [100, 200],
        "address": [{"zip": "1", "city": "Oslo"}, {"zip": "2", "city": "Ulm"}],
        "day": [1, 2],
    }
)
FORGED = TABLE.set_column(1, "salary", pa.array([999, 999]))
POLICY = Policy(
    footer_key="kf",
    column_keys={"kc1": ["salary"], "kc2": ["address"]},
    plaintext_columns=["day"],
    aad_prefix="payroll/{name}",
)
#: What an attacker writes who has nothing but a master key.
THEIRS = replace(POLICY, footer_key=OWN, column_keys={OWN: ["salary", "address"]})


def service() -> MemoryKms:
    return MemoryKms(KEYS)


def requested_keys(kms: MemoryKms) -> set[str]:
    """Return the master keys requested from the service."""
    return {call.master_key_id for call in kms.calls}


def write(path: Path, policy: Policy, table: pa.Table = FORGED) -> Path:
    mc.write_table(table, path, KeyTools(service()).encryption(policy))
    return path


def with_keys(path: Path, policy: Policy, **changes: Any) -> Path:
    """Write a file by a policy whose keys and key metadata the attacker chooses.

    Args:
        path: Of the file.
        policy: Whose AAD prefix and footer mode the file has.
        changes: Arguments of `FileEncryptionProperties`.
    """
    made = KeyTools(service()).encryption(policy).for_check()
    properties = replace(made, aad_prefix=policy.prefix_of(path.name), **changes)
    mc.write_table(FORGED, path, properties)
    return path


# --- a whole file under another master key --------------------------------------------------------


def _decrypt(path: Path, keys: mc.FileDecryptionProperties) -> None:
    mc.decrypt_parquet(path, io.BytesIO(), keys)


def _view(path: Path, keys: mc.FileDecryptionProperties) -> None:
    with mc.open_parquet(path, keys) as view:
        pq.read_table(view)


def _batches(path: Path, keys: mc.FileDecryptionProperties) -> None:
    list(mc.iter_batches(path, keys))


def _parquet_file(path: Path, keys: mc.FileDecryptionProperties) -> None:
    with mc.ParquetFile(path, keys) as file:
        file.read()


def _folder(path: Path, keys: mc.FileDecryptionProperties) -> None:
    mc.read_table(path.parent, keys)


def _rekey(path: Path, keys: mc.FileDecryptionProperties) -> None:
    new = mc.FileEncryptionProperties(footer_key=b"0123456789012345")
    mc.rekey_parquet(path, io.BytesIO(), keys, new)


def _mask(path: Path, keys: mc.FileDecryptionProperties) -> None:
    mc.mask_parquet(path, io.BytesIO(), keys, null=["iban"])


def _share(path: Path, keys: mc.FileDecryptionProperties) -> None:
    new = mc.FileEncryptionProperties(footer_key=b"0123456789012345")
    mc.share_parquet(path, io.BytesIO(), keys, new, ["salary"])


READERS: list[Callable[[Path, mc.FileDecryptionProperties], None]] = [
    mc.read_table, _batches, _parquet_file, _decrypt, _view, _folder, _rekey, _mask,
    _share,
]  # fmt: skip
WAYS = [
    pytest.param({"double_wrapping": double, "internal_key_material": internal,
                  "plaintext_footer": plain}, id=f"{double}-{internal}-{plain}")
    for double in (True, False) for internal in (True, False) for plain in (True, False)
]  # fmt: skip


@each_case("read", READERS, ids=lambda read: read.__name__)
@each_case("lenient", ["error", "drop"])
def test_every_reader_refuses_a_file_under_another_master_key(
    lenient: str, read: Callable[..., Any], tmp_path: Path
) -> None:
    honest, forged = tmp_path / "honest", tmp_path / "forged"
    honest.mkdir()
    forged.mkdir()
    kms = service()
    keys = KeyTools(kms).decryption(POLICY, on_missing_key=lenient)
    read(write(honest / "a.parquet", POLICY), keys)
    kms.calls.clear()
    path = write(forged / "a.parquet", THEIRS)
    with pytest.raises(KeyMaterialError, match=r"footer key.*a.parquet.*'own', not under 'kf'"):
        read(path, keys)
    assert not kms.calls


@each_case("how", WAYS)
def test_a_file_under_another_master_key_is_a_fault_however_its_keys_are_wrapped(
    how: dict[str, Any], tmp_path: Path
) -> None:
    honest = write(tmp_path / "honest.parquet", replace(POLICY, **how), TABLE)
    kms = service()
    tools = KeyTools(kms)
    assert verify_parquet(honest, tools.decryption(POLICY)).ok
    assert mc.read_table(honest, tools.decryption(POLICY)).equals(TABLE)
    path = write(tmp_path / "a.parquet", replace(THEIRS, **how))
    kms.calls.clear()
    with pytest.raises(KeyMaterialError, match="master key 'own'"):
        mc.read_table(path, tools.decryption(POLICY))
    found = verify_parquet(path, tools.decryption(POLICY))
    assert not found.ok
    assert found.modules == 0
    assert {finding.word for finding in found.findings} == {"key-material"}
    assert not verify_dataset([path, honest], tools.decryption(POLICY)).ok
    seen = inspect_parquet(path, tools.decryption(POLICY))
    assert not seen.footer_authenticated
    assert any("'own'" in reason for reason in seen.hidden)
    assert OWN not in requested_keys(kms)


@each_case("what", ["mek", "kek", "dek"])
@each_case("how", WAYS)
def test_a_rotation_leaves_files_under_other_master_keys(
    how: dict[str, Any], what: Any, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.parquet", replace(THEIRS, **how))
    before = path.read_bytes()
    kms = service()
    tools = KeyTools(kms)
    for dry_run in (True, False):
        (file,) = mc.jobs.rotate_keys(
            path, tools, what=what, dry_run=dry_run, decryption=tools.decryption(POLICY)
        )
        if not (what == "dek" and dry_run):  # which looks at nothing but the kind of file
            assert file.result == "key-material"
    assert not kms.calls
    assert path.read_bytes() == before


@pytest.mark.parametrize("plaintext", [["day"], ["day", "salary"]])
def test_a_rotation_does_not_call_a_file_plaintext_that_the_policy_refuses(
    plaintext: list[str], tmp_path: Path
) -> None:
    forged = replace(POLICY, column_keys={"kc2": ["address"]}, plaintext_columns=plaintext)
    write(tmp_path / "a.parquet", forged)
    pq.write_table(TABLE, tmp_path / "b.parquet")
    tools = KeyTools(service())
    refused, skipped = mc.jobs.rotate_keys(
        tmp_path, tools, what="dek", decryption=tools.decryption(POLICY)
    )
    assert (refused.failed, refused.result) == (True, "plaintext")
    assert "column salary is" in refused.message
    assert (skipped.failed, skipped.result, skipped.message) == (False, "plaintext", "")


def test_a_rotation_expects_the_master_keys_that_it_replaces_and_their_successors(
    tmp_path: Path,
) -> None:
    old = replace(POLICY, footer_key="old", column_keys={"old": ["salary"], "kc2": ["address"]})
    kms = MemoryKms({**KEYS, "old": b"rotated long ago"})
    tools = KeyTools(kms)
    path = tmp_path / "a.parquet"
    mc.write_table(TABLE, path, tools.encryption(old))
    keys = tools.decryption(replace(POLICY, column_keys={"kc2": ["address"]}))
    for _ in range(2):  # the second time they are under the new one
        (file,) = mc.jobs.rotate_keys(path, tools, new_master_keys={"old": "kf"}, decryption=keys)
        assert file.result == "rotated"
    assert mc.read_table(path, keys).equals(TABLE)


def test_a_scan_lists_what_a_file_under_another_master_key_shows(tmp_path: Path) -> None:
    """Before a master key is disabled, its files must be found."""
    kms = service()
    tools = KeyTools(kms)
    kinds = {False: {"error", "footer", "hidden"}, True: {"error", "footer", "column"}}
    for plain, expected in kinds.items():
        path = write(tmp_path / f"{plain}", replace(THEIRS, plaintext_footer=plain))
        kms.calls.clear()
        found = list(mc.jobs.scan_keys(path, tools, decryption=tools.decryption(POLICY)))
        assert {finding.kind for finding in found} == expected
        assert {finding.master_key_id for finding in found} == {None, OWN}
        assert [finding.word for finding in found if finding.kind == "error"] == ["key-material"]
    assert not kms.calls


def test_key_metadata_of_a_stream_is_under_the_master_key_for_footers(tmp_path: Path) -> None:
    kms = service()
    tools = KeyTools(kms)
    metadata = mc.ags1.StandardKeyMetadata(key=b"0123456789012345")
    sealed = {key_id: tools.encrypt_key_metadata(metadata, key_id) for key_id in ("kf", "kc1", OWN)}
    kms.calls.clear()
    by_policy = KeyTools.from_policy(POLICY, kms=kms)
    ways: list[Callable[[bytes], mc.ags1.StandardKeyMetadata]] = [
        by_policy.decrypt_key_metadata,
        partial(KeyTools(kms).decrypt_key_metadata, policy=POLICY),
        KeyTools(kms, master_key_ids=["kf"]).decrypt_key_metadata,
    ]
    for opened in ways:
        assert opened(sealed["kf"]) == metadata
        for other in ("kc1", OWN):
            with pytest.raises(KeyMaterialError, match=f"master key '{other}', not under 'kf'"):
                opened(sealed[other])
    assert requested_keys(kms) == {"kf"}
    # That of another master key under the expected one's name does not open, whatever is cached.
    relabelled = encode_wrapped_metadata(
        replace(parse_wrapped_metadata(sealed[OWN]), master_key_id="kf")
    )
    KeyTools(kms).decrypt_key_metadata(sealed[OWN])
    with pytest.raises(KeyMaterialError):
        by_policy.decrypt_key_metadata(relabelled)


# --- parts of a file ------------------------------------------------------------------------------


def keys_of(path: Path) -> dict[str | None, tuple[mc.Key, bytes]]:
    """Return the data keys of a file and their key metadata, by column."""
    tools = KeyTools(service())
    with open_source(path) as source:
        listed = list_key_metadata(source, tools.decryption())[0]
    found = {}
    for key in listed:
        assert key.metadata is not None
        material: Any = decode_metadata(key.metadata)
        found[key.column] = tools.wrapper.unwrap(material), key.metadata
    return found


def _column_under_another_master_key() -> Policy:
    return replace(POLICY, column_keys={OWN: ["salary"], "kc2": ["address"]})


def _column_under_another_columns() -> Policy:
    return replace(POLICY, column_keys={"kc2": ["salary", "address"]})


def _column_under_the_footers() -> Policy:
    return replace(POLICY, column_keys={"kf": ["salary"], "kc2": ["address"]})


def _part_of_a_group() -> Policy:
    return replace(
        POLICY, column_keys={"kc1": ["salary"], "kc2": ["address.zip"], OWN: ["address.city"]}
    )


def _plaintext_column_under_another_master_key() -> Policy:
    return replace(POLICY, column_keys={**POLICY.column_keys, OWN: ["day"]}, plaintext_columns=[])


def _column_of_the_footer_key_under_another_master_key() -> Policy:
    return replace(POLICY, column_keys={**POLICY.column_keys, OWN: ["iban"]})


@each_case("plaintext_footer", [False, True])
@each_case("lenient", ["error", "drop", "null"])
@each_case(
    ("make", "column"),
    [
        (_column_under_another_master_key, "salary"),
        (_column_under_another_columns, "salary"),
        (_column_under_the_footers, "salary"),
        (_part_of_a_group, "address.city"),
        (_plaintext_column_under_another_master_key, "day"),
        (_column_of_the_footer_key_under_another_master_key, "iban"),
    ],
)
def test_a_column_is_under_the_master_key_that_the_policy_gives_it(
    make: Callable[[], Policy], column: str, lenient: Any, plaintext_footer: bool, tmp_path: Path
) -> None:
    path = write(tmp_path / "a", replace(make(), plaintext_footer=plaintext_footer))
    kms = service()
    keys = KeyTools(kms).decryption(POLICY, on_missing_key=lenient)
    with pytest.raises(KeyMaterialError, match=f"column {column}: .* is wrapped under master key"):
        mc.read_table(path, keys)
    found = verify_parquet(path, keys)
    assert [finding.word for finding in found.findings] == ["key-material"]
    assert OWN not in requested_keys(kms)


@each_case("plaintext_footer", [False, True])
@each_case(
    ("bare", "plaintext", "message"),
    [
        (["salary"], ["day", "salary"], "column salary is in plaintext"),
        (["salary"], ["day"], "column salary is encrypted with the footer key"),
        (["address"], ["day", "address"], "column address.zip is in plaintext"),
        ([], ["day", "iban"], "column iban is in plaintext"),
    ],
)
def test_a_column_is_encrypted_as_the_policy_has_it(
    bare: list[str], plaintext: list[str], message: str, plaintext_footer: bool, tmp_path: Path
) -> None:
    """The attacker has the footer key, and seals columns of their own in the place of others."""
    columns = {
        master: names for master, names in POLICY.column_keys.items() if names[0] not in bare
    }
    forged = replace(POLICY, column_keys=columns, plaintext_columns=plaintext)
    path = write(tmp_path / "a", replace(forged, plaintext_footer=plaintext_footer))
    keys = KeyTools(service()).decryption(POLICY)
    for read in (mc.read_table, _decrypt, _view, _rekey):
        with pytest.raises(PlaintextError, match=message):
            read(path, keys)
    found = verify_parquet(path, keys)
    assert {finding.word for finding in found.findings} == {"plaintext"}
    assert message in found.findings[0].message


def test_plaintext_that_the_caller_takes_is_no_column_under_the_footer_key(tmp_path: Path) -> None:
    columns = {"kc2": ["address"]}
    bare = replace(POLICY, column_keys=columns, plaintext_columns=["day", "salary"])
    keys = KeyTools(service()).decryption(POLICY, require_encrypted=False)
    path = write(tmp_path / "a", bare)
    assert mc.read_table(path, keys).equals(FORGED)
    assert verify_parquet(path, keys).ok
    path = write(tmp_path / "b", replace(POLICY, column_keys=columns))
    with pytest.raises(PlaintextError, match="salary is encrypted with the footer key"):
        mc.read_table(path, keys)
    assert not verify_parquet(path, keys).ok


def test_encrypting_what_the_policy_leaves_in_plaintext_is_no_fault(tmp_path: Path) -> None:
    """Under the footer's master key, by which the whole file is authenticated anyway."""
    for number, policy in enumerate(
        (
            replace(POLICY, plaintext_columns=[]),
            replace(
                POLICY,
                plaintext_columns=[],
                column_keys={**POLICY.column_keys, "kf": ["day", "iban"]},
            ),
        )
    ):
        path = write(tmp_path / f"{number}", policy, TABLE)
        keys = KeyTools(service()).decryption(POLICY)
        assert mc.read_table(path, keys).equals(TABLE)
        assert verify_parquet(path, keys).ok


def test_the_footer_key_is_no_columns_own(tmp_path: Path) -> None:
    """Even where footer and column are under one master key, and the metadata is genuine."""
    policy = Policy(footer_key="kf", column_keys={"kf": ["salary"]})
    honest = keys_of(write(tmp_path / "honest", policy, TABLE))
    footer, metadata = honest[None]
    keys: dict[str, Any] = {
        "footer_key": footer,
        "footer_key_metadata": metadata,
        "column_keys": {"salary": footer},
        "column_key_metadata": {"salary": metadata},
    }
    path = with_keys(tmp_path / "a", policy, **keys)
    reading = KeyTools(service()).decryption(policy)
    with pytest.raises(KeyMaterialError, match=r"column salary: .* key is the footer key"):
        mc.read_table(path, reading)
    assert not verify_parquet(path, reading).ok


def test_material_of_one_column_is_not_taken_for_another(tmp_path: Path) -> None:
    """Genuine key metadata, which the reader has asked for already, of the same file."""
    honest = keys_of(write(tmp_path / "honest", POLICY, TABLE))
    key, metadata = honest["address.zip"]
    keys: dict[str, Any] = {
        "footer_key": honest[None][0],
        "footer_key_metadata": honest[None][1],
        "column_keys": {"address": key, "salary": key},
        "column_key_metadata": {"address": metadata, "salary": metadata},
    }
    path = with_keys(tmp_path / "a", POLICY, **keys)
    reading = KeyTools(service()).decryption(POLICY)
    with pytest.raises(KeyMaterialError, match=r"column salary: .*'kc2', not under 'kc1'"):
        mc.read_table(path, reading)
    seen = mc.read_table(path, reading, columns=["address"])
    assert seen.column_names == ["address"]
    assert not verify_parquet(path, reading).ok
    found = inspect_parquet(path, reading)
    assert {column.path: column.has_key for column in found.columns or ()}["salary"] is False


def test_a_kek_vouches_for_no_other_master_key(tmp_path: Path) -> None:
    """Material that says the expected master key, with a KEK that another one has wrapped."""
    path = write(tmp_path / "a.parquet", replace(THEIRS, internal_key_material=False))
    tools = KeyTools(service())
    mc.read_table(path, tools.decryption())  # every KEK is cached
    beside = tmp_path / "_KEY_MATERIAL_FOR_a.parquet.json"
    names = {"footerKey": "kf", "columnKey0": "kc1", "columnKey1": "kc2", "columnKey2": "kc2"}
    store = {
        name: text.replace(f'"{OWN}"', json.dumps(names[name]))
        for name, text in json.loads(beside.read_text()).items()
    }
    beside.write_text(json.dumps(store))
    with pytest.raises(KeyMaterialError, match="footer key"):
        mc.read_table(path, tools.decryption(POLICY))
    assert not verify_parquet(path, tools.decryption(POLICY)).ok


def test_material_beside_the_file_that_names_other_master_keys_costs_no_call(
    tmp_path: Path,
) -> None:
    policy = Policy(
        footer_key="kf",
        column_keys={"kc1": [f"c{n}" for n in range(50)]},
        internal_key_material=False,
    )
    path = tmp_path / "a.parquet"
    table = pa.table({f"c{n}": [n] for n in range(50)})
    mc.write_table(table, path, KeyTools(service()).encryption(policy))
    beside = tmp_path / "_KEY_MATERIAL_FOR_a.parquet.json"
    quoted = '\\"kc1\\"'  # as nothing in base64 is
    beside.write_text(beside.read_text().replace(quoted, '\\"any-other\\"'))
    kms = service()
    keys = KeyTools(kms).decryption(policy)
    assert len(verify_parquet(path, keys).findings) == 50
    assert requested_keys(kms) == {"kf"}
    assert len(kms.calls) == 1


# --- what is expected -----------------------------------------------------------------------------


def test_declared_master_keys_count_beside_the_policys(tmp_path: Path) -> None:
    """During a rotation; an id that the policy names keeps to the columns it is named for."""
    kms = service()
    path = write(tmp_path / "a", THEIRS)
    swapped = write(tmp_path / "b", replace(POLICY, column_keys={"kc2": ["salary", "address"]}))
    for keys in (
        KeyTools(kms).decryption(POLICY, master_key_ids=[OWN, "kc2"]),
        KeyTools(kms, master_key_ids=[OWN, "kc2"]).decryption(POLICY),
        KeyTools.from_policy(POLICY, kms=kms, master_key_ids=[OWN, "kc2"]).decryption(POLICY),
        KeyTools(kms, master_key_ids=[OWN]).decryption(POLICY, master_key_ids=["kc2"]),
    ):
        assert mc.read_table(path, keys).equals(FORGED)
        # Advice to declare kc2 would be useless: the policy names it.
        with pytest.raises(KeyMaterialError, match=r"column salary: .*the policy assigns that"):
            mc.read_table(swapped, keys)


@pytest.mark.parametrize("ids", [["kf"], ["kf", "kc1"], []])
def test_without_a_policy_the_ids_say_it(ids: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "a", POLICY, TABLE)
    kms = service()
    for keys in (
        KeyTools(kms, master_key_ids=ids).decryption(),
        KeyTools(kms).decryption(master_key_ids=ids),
    ):
        with pytest.raises(KeyMaterialError, match="pass master_key_ids"):
            mc.read_table(path, keys)
    assert requested_keys(kms) <= set(ids)
    every = KeyTools(kms, master_key_ids=["kf", "kc1", "kc2"]).decryption()
    assert mc.read_table(path, every).equals(TABLE)
    assert mc.read_table(path, KeyTools(kms).decryption()).equals(TABLE)


def test_tools_of_a_policy_expect_its_master_keys(tmp_path: Path) -> None:
    keys = KeyTools.from_policy(POLICY, kms=service()).decryption()
    assert mc.read_table(write(tmp_path / "a", POLICY, TABLE), keys).equals(TABLE)
    with pytest.raises(KeyMaterialError, match="'own', not under 'kc1', 'kc2', 'kf'"):
        mc.read_table(write(tmp_path / "b", THEIRS), keys)


@pytest.fixture
def keyring(tmp_path: Path) -> str:
    path = tmp_path / "keyring"
    ring = mc.Keyring.create(path, plaintext=True)
    for name in ("kf", "kc1", "kc2", OWN):
        ring.create_key(name)
    return f"file:{path}"


def test_a_uri_that_names_a_master_key_expects_it(keyring: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    mc.write_table(TABLE, path, KeyTools(keyring).encryption(Policy(footer_key="kf")))
    assert mc.read_table(path, KeyTools(f"{keyring}#kf").decryption()).equals(TABLE)
    also = KeyTools(f"{keyring}#kc1", master_key_ids=["kf"])
    assert mc.read_table(path, also.decryption()).equals(TABLE)
    with pytest.raises(KeyMaterialError, match="'kf', not under 'kc1'"):
        mc.read_table(path, KeyTools(f"{keyring}#kc1").decryption())
    # The policy says more than the URI.
    policy = Policy(footer_key="kf", kms=f"{keyring}#kc1")
    assert mc.read_table(path, KeyTools.from_policy(policy).decryption(policy)).equals(TABLE)


def test_a_key_retriever_of_the_callers_does_not_replace_the_rule() -> None:
    with pytest.raises(TypeError, match="key_retriever"):
        KeyTools(service()).decryption(POLICY, key_retriever=lambda metadata: None)


def test_one_string_is_no_set_of_ids() -> None:
    for mistake in (
        lambda: KeyTools(service(), master_key_ids="kf"),
        lambda: KeyTools(service()).decryption(POLICY, master_key_ids="kf"),
    ):
        with pytest.raises(ValueError, match="not one string"):
            mistake()


@pytest.mark.parametrize("ids", [b"kf", [b"kf"], [None], ["kf", 1]])
def test_ids_are_strings(ids: Any) -> None:
    """Bytes and numbers would match no key material, and refuse every file."""
    with pytest.raises(TypeError, match="as strings"):
        KeyTools(service(), master_key_ids=ids)


def test_sparks_settings_expect_what_the_policy_names(keyring: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    mc.write_table(TABLE, path, KeyTools(keyring).encryption(THEIRS))
    policy = replace(POLICY, kms=keyring)
    with pytest.raises(KeyMaterialError, match="'own', not under 'kf'"):
        mc.read_table(path, Settings(policy=policy).decryption())
    keys = Settings(policy=policy, master_key_ids=(OWN,)).decryption()
    assert mc.read_table(path, keys).equals(TABLE)
    settings, _ = read_options({"path": str(path), "kms": keyring, "masterKeyIds": f"{OWN}, kf"})
    assert settings.master_key_ids == (OWN, "kf")
    with pytest.raises(ValueError, match="key service"):
        Settings(footer_key="env:KEY", master_key_ids=("kf",))


def test_a_footer_key_that_is_given_leaves_the_columns_to_the_policy(tmp_path: Path) -> None:
    path = write(tmp_path / "a", _column_under_another_master_key())
    given = keys_of(path)[None][0]
    keys = KeyTools(service()).decryption(POLICY, footer_key=given)
    with pytest.raises(KeyMaterialError, match="column salary"):
        mc.read_table(path, keys)
