"""Files for recipients: written and read in every way, altered, swapped and cut."""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from modcrypt import KeyTools, ModcryptError, Policy
from modcrypt.aead import GcmCipher
from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.kms.recipients.identity_retriever import IdentityRetriever, open_also
from modcrypt.kms.recipients.kinds import ROLE_EXPLICIT_KEYS, encrypt_to, find_kind, make_info
from modcrypt.pkmt1.recipient_metadata import (
    RecipientMaterial,
    RecipientWrap,
    decode_recipients,
    replace_recipients,
)
from tests.support import forging
from tests.support.cases import each_case
from tests.support.frame_watch import find_secrets
from tests.support.kms.memory_kms import MemoryKms, PyArrowKms
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.recipients import (
    KINDS,
    TABLE,
    explicit_key,
    identity,
    open_with,
    read_with,
    write_for,
)
from tests.support.tables import read_with_pyarrow

ME, OTHER = identity(), identity("other", "mlkem768-x25519")
POLICY = Policy(footer_key="kf", column_keys={"kc1": ["name"]}, plaintext_columns=["day"])


# --- reading and writing --------------------------------------------------------------------------


@each_case(
    "case",
    pairwise(
        kind=KINDS,
        plaintext_footer=(False, True),
        algorithm=("AES_GCM_V1", "AES_GCM_CTR_V1"),
        prefix=((None, True), (b"lake", True), (b"lake", False)),
        plaintext=((), ("day",)),
    ),
    ids=case_name,
)
def test_files_open_with_an_identity_and_with_explicit_keys(case: Case) -> None:
    kind, (prefix, stored) = case["kind"], case["prefix"]
    me = identity(kind, kind)
    data = write_for(
        OTHER, me,
        plaintext_columns=case["plaintext"],
        aad_prefix=prefix,
        options={
            "plaintext_footer": case["plaintext_footer"],
            "encryption_algorithm": case["algorithm"],
            "store_aad_prefix": stored,
        },
    )  # fmt: skip
    reading = {"aad_prefix": prefix, "accept_algorithms": (case["algorithm"],)}
    assert read_with(data, me, **reading) == TABLE
    assert read_with(data, OTHER, **reading) == TABLE
    key = explicit_key(data, me, **reading)
    properties = mc.FileDecryptionProperties(footer_key=key, **reading)
    assert mc.read_table(io.BytesIO(data), properties) == TABLE
    given = None if stored else prefix
    assert read_with_pyarrow(io.BytesIO(data), key, given) == TABLE  # type: ignore[arg-type]


def test_every_file_has_keys_of_its_own() -> None:
    files = [write_for(ME), write_for(ME)]
    first, second = (decode_recipients(metadata_of(data)) for data in files)
    assert first is not None
    assert second is not None
    assert first.kek_id != second.kek_id
    assert explicit_key(files[0], ME) != explicit_key(files[1], ME)


def test_paths_in_aad_prefixes_bind_files_to_their_places(tmp_path: Path) -> None:
    settings = mc.Settings(recipients=(ME.recipient,), aad_prefix="lake/{path}")
    mc.write_dataset(TABLE, tmp_path / "lake", settings)
    ME.save(tmp_path / "me.key")
    reading = mc.Settings(identities=(f"file:{tmp_path}/me.key",), aad_prefix="lake/{path}")
    assert mc.read_table(tmp_path / "lake", reading).num_rows == TABLE.num_rows
    (file,) = (tmp_path / "lake").glob("*.parquet")
    file.rename(file.with_name("other.parquet"))
    with pytest.raises(mc.errors.AadPrefixError):
        mc.read_table(tmp_path / "lake", reading)


def test_masks_keep_or_name_recipients() -> None:
    data, out = write_for(ME), io.BytesIO()
    with pytest.raises(ValueError, match="recipients of the new file"):
        mc.mask_parquet(data, out, open_with(ME), drop=["name"])
    encryption = mc.kms.RecipientEncryption(recipients=[OTHER.recipient])
    mc.mask_parquet(data, out, open_with(ME), encryption, drop=["name"])
    assert read_with(out.getvalue(), OTHER) == TABLE.drop_columns(["name"])
    with pytest.raises(KeyNotFoundError):
        read_with(out.getvalue(), ME)


# --- refusals ------------------------------------------------------------------------------------


def metadata_of(data: bytes) -> bytes:
    found: list[bytes] = []
    forging.edit_crypto(data, lambda crypto: found.append(crypto.key_metadata))
    return found[0]


def with_metadata(data: bytes, metadata: bytes) -> bytes:
    return forging.edit_crypto(data, lambda crypto: setattr(crypto, "key_metadata", metadata))


def with_material(data: bytes, change: Callable[[RecipientMaterial], RecipientMaterial]) -> bytes:
    material = decode_recipients(metadata_of(data))
    assert material is not None
    return with_metadata(data, change(material).encode().encode())


def wraps_of(material: RecipientMaterial) -> tuple[RecipientWrap, ...]:
    assert material.recipients is not None
    return material.recipients


def test_another_identity_is_distinguished() -> None:
    with pytest.raises(KeyNotFoundError, match=OTHER.recipient.hex_id) as caught:
        read_with(write_for(ME), OTHER)
    assert caught.value.column is None
    with pytest.raises(KeyNotFoundError, match="not encrypted to recipients"):
        read_with(explicit_file(), ME)


def explicit_file() -> bytes:
    out = io.BytesIO()
    properties = mc.FileEncryptionProperties(
        footer_key=b"0123456789012345", footer_key_metadata=b"kf"
    )
    mc.write_table(TABLE, out, properties)
    return out.getvalue()


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def flip(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


@each_case("kind", KINDS)
def test_every_altered_byte_of_a_wrap_is_noticed(kind: str) -> None:
    me = identity(kind, kind)
    data = write_for(me)
    material = decode_recipients(metadata_of(data))
    assert material is not None
    wrapped = wraps_of(material)[0].decode_kek()
    for at in range(0, len(wrapped), max(1, len(wrapped) // 80)):
        altered = with_material(
            data,
            lambda m, at=at: replace(  # type: ignore[misc]
                m, recipients=(replace(wraps_of(m)[0], wrapped=to_base64(flip(wrapped, at))),)
            ),
        )
        with pytest.raises(KeyMaterialError, match="does not decrypt"):
            read_with(altered, me)


@each_case("size", [1, 16, 48, 79, 81])
def test_wraps_of_another_length_are_refused(size: int) -> None:
    data = with_material(
        write_for(ME),
        lambda m: replace(m, recipients=(replace(wraps_of(m)[0], wrapped=to_base64(bytes(size))),)),
    )
    with pytest.raises(KeyMaterialError, match="does not decrypt"):
        read_with(data, ME)


def test_wraps_of_another_file_are_refused() -> None:
    data, other = write_for(ME), write_for(ME)
    with pytest.raises(KeyMaterialError, match="from another file"):
        read_with(with_metadata(data, metadata_of(other)), ME)
    material = decode_recipients(metadata_of(other))
    assert material is not None
    swapped = with_material(data, lambda m: replace(m, recipients=material.recipients))
    with pytest.raises(KeyMaterialError, match="from another file"):
        read_with(swapped, ME)


def test_an_altered_kek_id_or_data_key_is_noticed() -> None:
    data = write_for(ME)
    for change in (
        lambda m: replace(m, kek_id=bytes(16)),
        lambda m: replace(m, wrapped_dek=base64.b64encode(bytes(60)).decode()),
        lambda m: replace(m, wrapped_dek="!"),
    ):
        with pytest.raises(KeyMaterialError, match="data key"):
            read_with(with_material(data, change), ME)


def test_a_forged_kek_opens_no_data_key() -> None:
    """Anyone can encrypt another KEK to a recipient, but the file's keys do not open with it."""
    data = write_for(ME)
    aad = forging.open_file(data, explicit_key(data, ME)).file_aad
    kind, forged = find_kind("x25519"), bytes(range(32))

    def wrap(value: bytes, role: str) -> bytes:
        info = make_info(role, aad)
        wrapped = encrypt_to(kind, ME.recipient.public_key, value, info)
        return with_material(
            data,
            lambda m: replace(m, recipients=(replace(wraps_of(m)[0], wrapped=to_base64(wrapped)),)),
        )

    with pytest.raises(KeyMaterialError, match="does not unwrap"):
        read_with(wrap(forged, "file KEK"), ME)
    with pytest.raises(KeyMaterialError, match="does not decrypt"):
        read_with(wrap(forged, ROLE_EXPLICIT_KEYS), ME)
    with pytest.raises(KeyMaterialError, match="does not have 32 bytes"):
        read_with(wrap(forged[:16], "file KEK"), ME)


def test_a_wrap_of_an_unknown_kind_is_skipped() -> None:
    stranger = RecipientWrap("p521", bytes(16), "eA==")
    data = with_material(write_for(ME), lambda m: replace(m, recipients=(stranger, *wraps_of(m))))
    assert read_with(data, ME) == TABLE
    relabelled = with_material(
        write_for(ME), lambda m: replace(m, recipients=(replace(wraps_of(m)[0], kind="p521"),))
    )
    with pytest.raises(KeyNotFoundError):
        read_with(relabelled, ME)


def test_cut_files_and_metadata_are_errors_of_modcrypt() -> None:
    data = write_for(ME)
    metadata = metadata_of(data)
    for size in range(0, len(metadata), 7):
        with pytest.raises(ModcryptError):
            read_with(with_metadata(data, metadata[:size]), ME)
    for size in range(0, len(data), 101):
        with pytest.raises(ModcryptError):
            read_with(data[:size], ME)


def test_errors_carry_no_secret() -> None:
    data = write_for(ME)
    secrets = (ME._secret(), explicit_key(data, ME))
    altered = with_material(data, lambda m: replace(m, wrapped_dek="AAAA"))
    for file in (altered, with_metadata(data, metadata_of(write_for(ME)))):
        with pytest.raises(KeyMaterialError) as caught:
            read_with(file, ME)
        assert not find_secrets(caught.value, *secrets)
    me = IdentityRetriever((ME,))
    assert not any(secret.hex() in repr(me) for secret in secrets)
    with pytest.raises(TypeError):
        pickle.dumps(me)


def test_thousands_of_recipients_open_one_file() -> None:
    # The same public key would be one recipient, so keys are made, which takes 0.1 ms each.
    crowd = [mc.Identity.generate("x25519") for _ in range(2000)]
    data = write_for(*crowd, table=pa.table({"a": [1]}))
    for someone in (crowd[0], crowd[999], crowd[-1]):
        assert read_with(data, someone).num_rows == 1
    with pytest.raises(KeyNotFoundError, match="none of the file's 2000 recipients"):
        read_with(data, ME)


def test_verification_reports_what_reading_refuses() -> None:
    data, other = write_for(ME), write_for(ME)
    assert mc.verify_parquet(data, open_with(ME)).ok
    report = mc.verify_parquet(with_metadata(data, metadata_of(other)), open_with(ME))
    assert not report.ok
    inspection = mc.inspect_parquet(data)
    assert inspection.footer_key.recipients == (ME.recipient.hex_id,)


# --- beside a key service -------------------------------------------------------------------------


def write_both(kms: MemoryKms, policy: Policy = POLICY) -> bytes:
    out = io.BytesIO()
    encryption = KeyTools(kms).encryption(policy, recipients=[ME.recipient, OTHER.recipient])
    mc.write_table(TABLE, out, encryption)
    return out.getvalue()


@each_case(
    "policy",
    [POLICY, replace(POLICY, double_wrapping=False), replace(POLICY, plaintext_footer=True)],
    ids=["double", "single", "plaintext footer"],
)
def test_either_opens_a_file(policy: Policy) -> None:
    kms = MemoryKms()
    data = write_both(kms, policy)
    assert mc.read_table(io.BytesIO(data), KeyTools(kms).decryption(policy)) == TABLE
    kms.calls.clear()
    assert read_with(data, ME) == read_with(data, OTHER) == TABLE
    assert not kms.calls
    tools = KeyTools(kms).decryption(policy)
    assert mc.read_table(io.BytesIO(data), open_also(tools, (ME,))) == TABLE
    assert not kms.calls
    stranger = open_also(tools, (mc.Identity.generate("x25519"),))
    assert mc.read_table(io.BytesIO(data), stranger) == TABLE
    assert kms.calls


def test_the_key_service_opens_a_file_whose_list_of_recipients_is_gone() -> None:
    kms = MemoryKms()
    data = write_both(kms)
    stripped = with_metadata(data, replace_recipients(metadata_of(data), None))
    tools = KeyTools(kms).decryption(POLICY)
    assert mc.read_table(io.BytesIO(stripped), open_also(tools, (ME,))) == TABLE
    with pytest.raises(KeyNotFoundError):
        read_with(stripped, ME)


def test_a_policy_still_requires_keys_of_columns() -> None:
    kms = MemoryKms()
    data = write_for(ME)  # name is under the footer key
    tools = KeyTools(kms).decryption(POLICY)
    with pytest.raises(mc.errors.PlaintextError, match="a key of its own"):
        mc.read_table(io.BytesIO(data), open_also(tools, (ME,)))


def test_pyarrow_opens_a_file_with_the_key_service(tmp_path: Path) -> None:
    path = tmp_path / "both.parquet"
    path.write_bytes(write_both(MemoryKms()))
    factory = pe.CryptoFactory(lambda _: PyArrowKms(MemoryKms()))
    properties = factory.file_decryption_properties(
        pe.KmsConnectionConfig(), pe.DecryptionConfiguration(), str(path), pafs.LocalFileSystem()
    )
    assert pq.read_table(path, decryption_properties=properties) == TABLE


def test_external_key_material_has_no_place_for_recipients() -> None:
    policy = replace(POLICY, internal_key_material=False)
    with pytest.raises(ValueError, match="internal_key_material"):
        KeyTools(MemoryKms()).encryption(policy, recipients=[ME.recipient])


def test_a_column_key_of_another_file_is_refused() -> None:
    kms, key = MemoryKms(), {}
    first, second = write_both(kms), write_both(kms)
    for data in (first, second):
        key[data] = explicit_key(data, ME)

    def column_metadata(file: Any) -> Any:
        (chunk,) = (
            c for c in file.row_groups[0].columns
            if c.crypto_metadata and c.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY
        )  # fmt: skip
        return chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY

    foreign = column_metadata(forging.open_file(second, key[second]).metadata).key_metadata
    swapped = forging.change_footer(
        first, key[first], lambda m: setattr(column_metadata(m), "key_metadata", foreign)
    )
    with pytest.raises(KeyMaterialError, match="KEK of another file"):
        read_with(swapped, ME)


def test_a_column_under_the_footer_key_is_refused() -> None:
    """A holder of the footer key could forge a column whose own key is the footer key."""
    kms = MemoryKms()
    data = write_both(kms)
    footer = decode_recipients(metadata_of(data))
    assert footer is not None
    forged = json.dumps(
        json.loads(RecipientMaterial(footer.kek_id, footer.wrapped_dek).encode())
    ).encode()

    def replace_keys(metadata: Any) -> None:
        for chunk in metadata.row_groups[0].columns:
            own = chunk.crypto_metadata and chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY
            if own:
                own.key_metadata = forged

    altered = forging.change_footer(data, explicit_key(data, ME), replace_keys)
    with pytest.raises(KeyMaterialError, match="own key is the footer key"):
        read_with(altered, ME)


def test_settings_name_identities_and_recipients(tmp_path: Path) -> None:
    ME.save(tmp_path / "me.key")
    settings = mc.Settings(
        recipients=(ME.recipient,), identities=(f"file:{tmp_path}/me.key",),
        plaintext_columns=("day",),
    )  # fmt: skip
    sent = pickle.loads(pickle.dumps(settings))
    assert sent == settings
    assert ME._secret().hex() not in repr(sent)
    mc.write_table(TABLE, tmp_path / "file.parquet", sent)
    assert mc.read_table(tmp_path / "file.parquet", sent) == TABLE
    with pytest.raises(ValueError, match="fresh keys"):
        mc.Settings(recipients=(ME.recipient,), footer_key="env:KEY")
    with pytest.raises(ValueError, match="file:PATH"):
        mc.Settings(identities=("me.key",))
    with pytest.raises(ValueError, match="needs identities"):
        mc.Settings(kms="file:x", identity_passphrase="env:X")
    with pytest.raises(ValueError, match="other processes cannot ask"):
        pickle.dumps(mc.Settings(identities=("file:x",), identity_passphrase="prompt"))


def test_the_key_of_a_cipher_is_the_file_s_kek() -> None:
    """The KEK wraps data keys as in PKMT1: AES-GCM with the KEK's id as AAD."""
    data = write_for(ME)
    aad = forging.open_file(data, explicit_key(data, ME)).file_aad
    material = decode_recipients(metadata_of(data))
    assert material is not None
    kek = ME.decrypt(wraps_of(material)[0].decode_kek(), make_info("file KEK", aad))
    block = base64.b64decode(material.wrapped_dek)
    assert GcmCipher(mc.Key(kek)).decrypt_block(block, material.kek_id) == explicit_key(data, ME)
