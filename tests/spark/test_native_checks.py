"""Refusals of Spark's own Parquet under a policy: attacks, and files of another policy.

The files come from modcrypt's own writer under other policies, or are altered by hand.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.kms.keyring.keyring import Keyring
from modcrypt.parquet.format.idl import decode
from modcrypt.pkmt1.material import KeyMaterial, external_name
from tests.support import forging
from tests.support.java.jvm import why_unavailable
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.spark.native import rows_of, table, uri_of

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

from modcrypt.spark.jvm.native_parquet import native, native_options

Read = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def policy(ring: Keyring) -> mc.Policy:
    return mc.Policy(
        footer_key="kf",
        column_keys={"kc1": ["address"], "kc2": ["name"]},
        plaintext_columns=["score"],
        kms=uri_of(ring),
    )


@pytest.fixture
def read(spark: Any) -> Read:
    """Return a function that reads a file or folder with options of `native_options`."""
    session = spark.newSession()
    native(session, kms="file:/no.keyring")  # brings the jar; the options name the real service

    def read(path: Path, policy: Any = None, **options: Any) -> list[dict[str, Any]]:
        reader = session.read.options(**native_options(policy, **options))
        return rows_of(reader.parquet(str(path)))

    return read


def write(policy: mc.Policy, ring: Keyring, path: Path, root: Path | None = None) -> Path:
    path.parent.mkdir(exist_ok=True)
    mc.write_table(table(), path, mc.KeyTools(ring).encryption(policy, root=root))
    return path


def refused(read: Read, message: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(Exception, match=message):
        read(*arguments, **options)


CASES = pairwise(
    footer=("encrypted", "plaintext"),
    material=("internal", "external"),
    wrapping=("double", "single"),
    algorithm=("AES_GCM_V1", "AES_GCM_CTR_V1"),
    prefix=(None, "lake", "lake/{name}", "lake/{path}"),
    stored=(True, False),
    bits=(128, 256),
)


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_a_file_of_the_policy_is_read(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path, case: Case
) -> None:
    policy = replace(
        policy,
        plaintext_footer=case["footer"] == "plaintext",
        internal_key_material=case["material"] == "internal",
        double_wrapping=case["wrapping"] == "double",
        encryption_algorithm=case["algorithm"],
        aad_prefix=case["prefix"],
        store_aad_prefix=case["stored"],
        data_key_length_bits=case["bits"],
        kek_length_bits=case["bits"],
    )
    root = tmp_path / "lake"
    (root / "a=1").mkdir(parents=True)
    file = write(policy, ring, root / "a=1" / "t.parquet", root)
    assert read(file, policy, root=root) == table().to_pylist()


def test_a_file_that_many_recipients_open_too_is_read(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path
) -> None:
    """Their wraps are a member of the key material, which is then longer than 64 KiB."""
    crowd = [mc.Identity.generate().recipient for _ in range(60)]
    file = tmp_path / "t.parquet"
    mc.write_table(table(), file, mc.KeyTools(ring).encryption(policy, recipients=crowd))
    assert read(file, policy) == table().to_pylist()


def test_a_policy_can_be_named_by_its_file(read: Read, ring: Keyring, tmp_path: Path) -> None:
    path = tmp_path / "lake.toml"
    path.write_text(
        'kms = "file:lake.keyring?passphrase=file:lake.pass"\nfooter_key = "kf"\n'
        'aad_prefix = "$ä/{name}"\n[column_keys]\nkc2 = ["name", "a,b:c;${user.home}"]\n'
    )
    policy = mc.Policy.load(path)
    file = tmp_path / "t.parquet"
    odd = table().rename_columns(["a,b:c;${user.home}", *table().column_names[1:]])
    mc.write_table(odd, file, mc.KeyTools(ring).encryption(policy))
    with pytest.raises(Exception, match="cannot be resolved"):  # `id` has another name: it opened
        read(file, path)


@pytest.mark.parametrize("by_policy", [True, False])
def test_a_plaintext_file_is_refused(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path, by_policy: bool
) -> None:
    pq.write_table(table(), tmp_path / "t.parquet")
    options = {"policy": policy if by_policy else None, "kms": uri_of(ring)}
    refused(read, "plaintext file", tmp_path / "t.parquet", **options)
    lenient = read(tmp_path / "t.parquet", require_encrypted=False, **options)
    assert lenient == table().to_pylist()
    bound = replace(policy, aad_prefix="lake")
    refused(read, "plaintext file", tmp_path / "t.parquet", bound, require_encrypted=False)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "plaintext column": (
        {"column_keys": {"kc1": ["address"]}, "plaintext_columns": ["score", "name"]},
        "column name is in plaintext, but the policy requires encryption",
    ),
    "plaintext column under the footer key": (
        {"plaintext_columns": ["score", "id"]},
        "column id is in plaintext, but the policy requires encryption",
    ),
    "column under the footer key": (
        {"column_keys": {"kc1": ["address"]}},
        "column name is encrypted with the footer key, but the policy requires a key of its own",
    ),
    "leaf under the footer key": (
        {"column_keys": {"kc1": ["address.zip"], "kc2": ["name"]}},
        "column address.city is encrypted with the footer key",
    ),
    "columns exchange master keys": (
        {"column_keys": {"kc2": ["address"], "kc1": ["name"]}},
        "wrapped under master key kc1, not under kc2; the policy assigns that master key to ano",
    ),
    "column under the master key of footers": (
        {"column_keys": {"kc1": ["address"], "kf": ["name"]}},
        "column name: .* wrapped under master key kf, not under kc2",
    ),
    "own key of a column without a name": (
        {"column_keys": {"kc1": ["address", "id"], "kc2": ["name"]}},
        "column id: .* wrapped under master key kc1, not under kf",
    ),
    "footer under another master key": (
        {"footer_key": "foreign"},
        "footer key: .* wrapped under master key foreign, not under kf; pass master_key_ids",
    ),
    "algorithm": (
        {"encryption_algorithm": "AES_GCM_CTR_V1"},
        "encrypted under AES_GCM_CTR_V1, but only AES_GCM_V1 is accepted by the policy",
    ),
}


@pytest.mark.parametrize("footer", ["encrypted", "plaintext"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_policy_is_refused(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path, name: str, footer: str
) -> None:
    ring.create_key("foreign")
    changes, message = OTHERS[name]
    policy = replace(policy, plaintext_footer=footer == "plaintext")
    other = replace(policy, **changes)
    refused(read, message, write(other, ring, tmp_path / "t.parquet"), policy)
    assert read(tmp_path / "t.parquet", other) == table().to_pylist()


def test_further_master_keys_are_accepted_if_they_are_declared(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path
) -> None:
    ring.create_key("old")
    former = replace(policy, footer_key="old")
    file = write(former, ring, tmp_path / "t.parquet")
    assert read(file, policy, master_key_ids=["old"]) == table().to_pylist()
    refused(read, "not under kf", file, policy, master_key_ids=["kc1"])  # counts for its columns
    refused(read, "not under kc1", file, None, kms=f"{uri_of(ring)}#kc1")
    refused(read, "not under kf, old", file, None, kms=uri_of(ring), master_key_ids=["kf", "old"])
    every = ["old", "kc1", "kc2"]
    assert read(file, None, kms=uri_of(ring), master_key_ids=every) == table().to_pylist()
    assert read(file, None, kms=uri_of(ring)) == table().to_pylist()


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("footer", ["encrypted", "plaintext"])
def test_an_aad_prefix_binds_a_file_to_its_place(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path, footer: str, stored: bool
) -> None:
    bound = replace(policy, plaintext_footer=footer == "plaintext", store_aad_prefix=stored)
    by_name = replace(bound, aad_prefix="lake/{name}")
    by_path = replace(bound, aad_prefix="lake/{path}")
    wrong = r"(?i)aad prefix"
    root = tmp_path / "lake"
    for number, bound in enumerate((by_name, by_path)):
        file = write(bound, ring, root / "a.parquet", root)
        moved = root / f"b{number}.parquet"
        shutil.copy(file, moved)
        assert read(file, bound, root=root) == table().to_pylist()
        refused(read, wrong, moved, bound, root=root)
        refused(read, wrong, file, replace(bound, aad_prefix="sea/{name}"), root=root)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(file, elsewhere / "a.parquet")
    refused(read, "is not inside root", elsewhere / "a.parquet", by_path, root=root)
    refused(read, "pass root=", file, by_path)
    unbound = write(policy, ring, tmp_path / "unbound.parquet")
    refused(read, wrong, unbound, by_name)


def test_the_algorithm_without_a_policy_is_the_one_that_authenticates(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path
) -> None:
    counter = replace(policy, encryption_algorithm="AES_GCM_CTR_V1")
    file = write(counter, ring, tmp_path / "t.parquet")
    refused(read, "only AES_GCM_V1 is accepted; pass a policy", file, kms=uri_of(ring))
    assert read(file, counter) == table().to_pylist()


def test_planted_key_material_is_refused(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path
) -> None:
    """An attacker who may write beside the file may not choose its master keys or data keys."""
    policy = replace(policy, internal_key_material=False)
    ring.create_key("foreign")
    file = write(policy, ring, tmp_path / "t.parquet")
    material = tmp_path / external_name(file.name)
    own = material.read_text()
    # With its quotes, a name is not found in a wrapped key's base64.
    no_column = own.replace(r"\"kc2\"", r"\"foreign\"")
    material.write_text(no_column.replace(r"\"kf\"", r"\"foreign\""))
    refused(read, "master key foreign, not under kf", file, policy)
    material.write_text(no_column)
    refused(read, "master key foreign, not under kc2", file, policy)
    write(policy, ring, tmp_path / "other.parquet")
    shutil.copy(tmp_path / external_name("other.parquet"), material)
    refused(read, "is another file's", file, policy)
    for text in ("[]", "{", '{"footerKey": {}}', '{"footerKey": "{}"}', "{}"):
        material.write_text(text)
        refused(read, "key material|contains no key", file, policy)
    material.unlink()
    refused(read, "must be moved and copied with it", file, policy)
    material.write_text(own)
    assert read(file, policy) == table().to_pylist()


def test_a_master_key_that_is_disabled_opens_no_column_and_the_others_are_still_read(
    spark: Any, ring: Keyring, policy: mc.Policy, tmp_path: Path
) -> None:
    session = spark.newSession()
    native(session, policy=replace(policy, double_wrapping=False))
    file = write(replace(policy, double_wrapping=False), ring, tmp_path / "t.parquet")
    frame = session.read.parquet(str(file))
    ring.disable_key("kc2")
    assert frame.agg({"id": "sum"}).collect()[0][0] == sum(range(300))
    with pytest.raises(Exception, match="master key kc2 is disabled in its keyring"):
        frame.select("name").collect()


def test_a_kek_is_cached_for_the_lifetime_of_the_policy(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path
) -> None:
    brief = replace(policy, cache_lifetime_seconds=0)
    file = write(policy, ring, tmp_path / "t.parquet")
    assert read(file, policy) == read(file, brief) == table().to_pylist()
    ring.disable_key("kc2")
    assert read(file, policy) == table().to_pylist()
    refused(read, "master key kc2 is disabled", file, brief)


READERS: dict[str, dict[str, str]] = {
    "rows": {"spark.sql.parquet.enableVectorizedReader": "false"},
    "merged schemas": {"spark.sql.parquet.mergeSchema": "true"},
    "DataSource V2": {
        "spark.sql.sources.useV1SourceList": "",
        "spark.sql.parquet.aggregatePushdown": "true",
    },
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_of_spark_checks_files(
    spark: Any, ring: Keyring, policy: mc.Policy, tmp_path: Path, name: str
) -> None:
    session = spark.newSession()
    bound = replace(policy, aad_prefix="lake/{path}", store_aad_prefix=False)
    native(session, policy=bound, root=tmp_path / "lake")
    for setting, value in READERS[name].items():
        session.conf.set(setting, value)
    rows = session.range(20).selectExpr(
        "id", "concat('name-', id) as name", "id * 1.5D as score", "struct(id as zip) as address"
    )
    rows.repartition(2).write.parquet(str(tmp_path / "lake"))
    assert mc.read_table(tmp_path / "lake", mc.KeyTools(ring).decryption(bound)).num_rows == 20
    lake = session.read.parquet(str(tmp_path / "lake"))
    assert lake.where("name = 'name-3'").count() == 1
    assert lake.agg({"id": "max"}).collect()[0][0] == 19
    first, second = (tmp_path / "lake").glob("part-*.parquet")
    shutil.copy(first, second)
    shutil.copy(first.with_name(f".{first.name}.crc"), second.with_name(f".{second.name}.crc"))
    for frame in (lake.select("id"), lake.groupBy().count(), lake.agg({"id": "max"})):
        with pytest.raises(Exception, match="another AAD prefix"):
            frame.collect()


# --- forgeries by holders of the footer key ------------------------------------------------------


def data_keys(ring: Keyring, file: Path) -> tuple[bytes, Any]:
    """Return a file's footer key, as its holder has it."""
    data = file.read_bytes()
    crypto, _ = decode("FileCryptoMetaData", forging.split_tail(data)[1])
    members = json.loads(crypto.key_metadata)
    return ring.unwrap(members["wrappedDEK"], members["masterKeyID"]), data


def rename(metadata: Any) -> None:
    chunk = metadata.row_groups[0].columns[1]
    chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.path_in_schema = [b"score"]


def drop_crypto(metadata: Any) -> None:
    metadata.row_groups[0].columns[0].crypto_metadata = None


def use_footer_metadata(metadata: Any) -> None:
    column = metadata.row_groups[0].columns[1].crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY
    # With quotes: wrapped keys are in base64, which may contain the same three letters.
    column.key_metadata = column.key_metadata.replace(b'"kc2"', b'"kc1"')


def point_elsewhere(metadata: Any) -> None:
    for chunk in metadata.row_groups[0].columns:
        chunk.file_path = b"other.parquet"


def nest(metadata: Any) -> None:
    metadata.schema[0].num_children = 10_000


FORGERIES: dict[str, tuple[Callable[[Any], None], str]] = {
    "another column's name": (rename, "a chunk of column name names another column"),
    "an encrypted column without a key": (drop_crypto, "column id is in plaintext, but the policy"),
    "another column's master key": (use_footer_metadata, "master key kc1, not under kc2"),
    "chunks of another file": (point_elsewhere, "a chunk of column id is in another file"),
    "a schema that is cut off": (nest, "its schema is cut off"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_footer_is_refused(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path, name: str
) -> None:
    change, message = FORGERIES[name]
    policy = replace(policy, double_wrapping=False)
    file = write(policy, ring, tmp_path / "t.parquet")
    key, data = data_keys(ring, file)
    file.write_bytes(forging.change_footer(data, key, change))
    refused(read, message, file, policy)


def test_a_column_may_not_have_the_footer_key_as_its_own(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path
) -> None:
    key = bytes(range(16))

    def material(master: str, *, footer: bool = False) -> bytes:
        wrapped = ring.wrap(key, master)
        made = KeyMaterial(is_footer_key=footer, master_key_id=master, wrapped_dek=wrapped)
        return made.encode().encode()

    own = {"name": "kc2", "address": "kc1"}
    for metadata in ({name: material(master) for name, master in own.items()},
                     dict.fromkeys(own, material("kf", footer=True))):  # fmt: skip
        properties = mc.FileEncryptionProperties(
            footer_key=key,
            footer_key_metadata=next(iter(metadata.values()))
            if len(set(metadata.values())) == 1
            else material("kf", footer=True),
            column_keys=dict.fromkeys(own, key),
            column_key_metadata=metadata,
            plaintext_columns=["score"],
        )
        file = tmp_path / "t.parquet"
        mc.write_table(table(), file, properties)
        refused(read, "is the footer key, but the policy requires a key of its own", file, policy)


def test_the_border_of_prefix_and_unique_part_may_not_move(
    read: Read, ring: Keyring, policy: mc.Policy, tmp_path: Path
) -> None:
    policy = replace(policy, aad_prefix="lake/a")
    file = write(policy, ring, tmp_path / "t.parquet")

    def move(crypto: Any) -> None:
        algorithm = crypto.encryption_algorithm.AES_GCM_V1
        algorithm.aad_prefix, rest = algorithm.aad_prefix[:-2], algorithm.aad_prefix[-2:]
        algorithm.aad_file_unique = rest + algorithm.aad_file_unique

    file.write_bytes(forging.edit_crypto(file.read_bytes(), move))
    refused(read, "its aad_file_unique has 10 bytes instead of 8", file,
            replace(policy, aad_prefix="lake"))  # fmt: skip
