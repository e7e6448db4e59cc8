"""Rotation of data keys: encrypt a file again with fresh data keys under the same master keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.io.places import Place
from modcrypt.io.sources import Source
from modcrypt.kms.expected_keys import ExpectedKeys
from modcrypt.kms.file_keys import KmsKeyRetriever
from modcrypt.kms.keyed_encryption import KeyedEncryption
from modcrypt.kms.policy import FilePolicy, Policy
from modcrypt.kms.signing.signing_keys import SigningKey
from modcrypt.kms.wrapping import KeyWrapper
from modcrypt.parquet.crypto.crypto_fields import check_border
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer_keys import FooterKey, list_footer_keys, refuse_lost_signature
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.rewrite.rekey import rekey_in_place
from modcrypt.pkmt1.external import find_material, read_store
from modcrypt.pkmt1.material import RECIPIENTS, KeyMaterial, decode_metadata


def replace_data_keys(
    place: Place, source: Source, wrapper: KeyWrapper, decryption: FileDecryptionProperties,
    expected: ExpectedKeys, new_master_keys: Mapping[str, str], double_wrapping: bool | None = None,
    signing_key: SigningKey | None = None,
) -> tuple[int, bool]:  # fmt: skip
    """Encrypt a file in place with fresh data keys.

    Return their number, and whether the file lost the signature of its writer. A `signing_key`
    must have signed the file, and signs it again. A `double_wrapping` of None keeps that of the
    footer key.

    Raise ModcryptError or OSError if the file can't be decrypted or written; it was left as it was.
    """
    # Never encrypt a forgery again: check the footer even if the caller waived that.
    if signing_key is not None:
        decryption = replace(decryption, signed_by=(signing_key.verifier,))
    strict = replace(decryption, check_footer_integrity=True, require_encrypted=True)
    file = OpenFile(source, strict)
    if file.footer.footer_key is None:
        raise KeyNotFoundError("no footer key is given")
    check_border(file.footer.file_unique, file.properties)
    materials = {
        key.column: _load_material(place, key, expected)
        for key in list_footer_keys(file.footer.metadata, file.footer.key_metadata)
    }
    footer = materials[None]
    kek = wrapper.get_reading_kek(footer) if footer.double_wrapping else None
    policy = _derive_policy(file, materials, new_master_keys, None if kek is None else kek.length)
    if double_wrapping is not None:
        policy = replace(policy, double_wrapping=double_wrapping)
    retriever = KmsKeyRetriever(wrapper, expected)
    prefix = file.footer.aad_prefix
    encryption = KeyedEncryption(retriever, policy, prefix, signing_key=signing_key)
    lost = file.footer.signature is not None and signing_key is None
    refuse_lost_signature(decryption, place.address, lost=lost)
    rekey_in_place(source, place, decryption, encryption)
    return 1 + len(policy.key_of_column), lost


def _load_material(place: Place, key: FooterKey, expected: ExpectedKeys) -> KeyMaterial:
    """Return the material of a key; raise if its master key is not expected."""
    if not key.metadata:
        raise KeyMaterialError(f"{place.address}: column {key.column} has no key metadata")
    material = decode_metadata(key.metadata)
    if not isinstance(material, KeyMaterial):
        material = find_material(read_store(place), material)
    expected.check_any(material, place.address)
    if RECIPIENTS in material.others:  # their public keys are not in the file
        raise KeyMaterialError(
            f"{place.address} has recipients, who could not open it afterwards; use rekey with its "
            "policy and the recipients, or remove them first"
        )
    return material


def _derive_policy(
    file: OpenFile, materials: Mapping[str | None, KeyMaterial], new_master_keys: Mapping[str, str],
    kek_length: int | None,
) -> Policy:  # fmt: skip
    """Return a policy that describes the file's encryption, from its authenticated footer."""
    opened, footer = file.footer, materials[None]
    assert opened.footer_key is not None
    masters = {
        column: new_master_keys.get(material.master_key_id, material.master_key_id)
        for column, material in materials.items()
    }
    columns: dict[str, list[str]] = {}
    for column, master in masters.items():
        if column is not None:
            columns.setdefault(master, []).append(column)
    return FilePolicy(
        footer_key=masters[None], column_keys=columns,
        plaintext_columns=file.plaintext_columns(range(len(file.leaves))),
        encryption_algorithm=opened.cipher.algorithm, plaintext_footer=opened.plaintext_footer,
        store_aad_prefix=opened.stored_prefix is not None, double_wrapping=footer.double_wrapping,
        internal_key_material=footer.internal, data_key_length_bits=8 * len(opened.footer_key),
        kek_length_bits=8 * (kek_length or len(opened.footer_key)),
    )  # fmt: skip
