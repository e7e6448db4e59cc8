"""Key metadata in footers: what is listed without keys, and what a new footer changes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

import modcrypt as mc
from modcrypt.io.sources import MemorySource
from modcrypt.jobs.key_rewrapping import What
from modcrypt.parquet.crypto.footer_keys import FooterKey, list_key_metadata, new_tail
from tests.support.cases import each_case
from tests.support.in_memory import encrypt
from tests.support.jobs.look import chunks, split
from tests.support.jobs.spoiled_files import apply_edits, edits
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.kms.rotating_kms import RotatingKms
from tests.support.parquet_parser import thrift_struct
from tests.support.randomness import examples
from tests.support.shared_vectors import shared_vectors
from tests.support.tables import small_table
from tools.verify_pme import verify

TABLE = small_table(60)
FOOTER_NAME, ID_NAME, ZIP_NAME = b"the footer's", b"the id's", b"\x00\xff the zip's"
KEYS = {"id": COLUMN_KEY, "address.zip": OTHER_KEY}
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)

MODES = pytest.mark.parametrize("plaintext_footer", [True, False], ids=["plaintext", "encrypted"])


def plain_file(**options: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(TABLE, out, row_group_size=20, write_page_index=True, **options)
    return out.getvalue()


def file_of(*, plaintext_footer: bool, **properties: object) -> bytes:
    """Encrypt three row groups, two columns with keys of their own."""
    return encrypt(
        plain_file(),
        **{
            "footer_key": FOOTER_KEY,
            "footer_key_metadata": FOOTER_NAME,
            "column_keys": KEYS,
            "column_key_metadata": {"id": ID_NAME, "address.zip": ZIP_NAME},
            "aad_prefix": b"prefix",
            "plaintext_footer": plaintext_footer,
            **properties,
        },
    )


def renew_metadata(
    file: bytes,
    change: Callable[[bytes, str | None], bytes],
    properties: mc.FileDecryptionProperties = READER,
) -> bytes:
    found = new_tail(MemorySource(file), properties, change)
    assert found is not None
    return file[: found.start] + found.data


def rows_of(file: bytes) -> pa.Table:
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=KEYS)
    return mc.read_table(file, keys)


# --- listing -------------------------------------------------------------------------------------

LISTED = [
    FooterKey(None, FOOTER_NAME),
    FooterKey("id", ID_NAME),
    FooterKey("address.zip", ZIP_NAME),
]


def test_a_plaintext_footer_reports_every_key_once_without_one() -> None:
    source = MemorySource(file_of(plaintext_footer=True))
    assert list_key_metadata(source) == (LISTED, False)


def test_a_sealed_footer_reports_its_own_key_and_that_others_may_be_hidden() -> None:
    source = MemorySource(file_of(plaintext_footer=False))
    assert list_key_metadata(source) == (LISTED[:1], True)
    assert list_key_metadata(source, READER) == (LISTED, False)


@MODES
def test_keys_without_key_metadata_are_listed_too(plaintext_footer: bool) -> None:
    file = file_of(
        plaintext_footer=plaintext_footer, footer_key_metadata=None,
        column_key_metadata={"id": ID_NAME},
    )  # fmt: skip
    expected = [FooterKey(None, None), FooterKey("id", ID_NAME), FooterKey("address.zip", None)]
    assert list_key_metadata(MemorySource(file), READER) == (expected, False)


def test_a_plaintext_file_is_distinguished() -> None:
    with pytest.raises(mc.errors.PlaintextError):
        list_key_metadata(MemorySource(plain_file()))


def test_an_altered_signature_is_noticed_where_there_is_a_key() -> None:
    data = bytearray(file_of(plaintext_footer=True))
    data[-20] ^= 1
    assert list_key_metadata(MemorySource(data)) == (LISTED, False)
    with pytest.raises(mc.errors.FooterSignatureError):
        list_key_metadata(MemorySource(data), READER)


# --- replacing -----------------------------------------------------------------------------------


@MODES
def test_where_nothing_changes_there_is_no_new_tail(plaintext_footer: bool) -> None:
    asked: list[tuple[str | None, bytes]] = []

    def same(metadata: bytes, column: str | None) -> bytes:
        asked.append((column, metadata))
        return metadata

    source = MemorySource(file_of(plaintext_footer=plaintext_footer))
    assert new_tail(source, READER, same) is None
    listed = [(key.column, key.metadata) for key in LISTED]
    assert sorted(asked, key=str) == sorted(listed, key=str)  # once, for three row groups


@MODES
@each_case("which", ["footer", "columns", "all"])
@each_case("length", [0, 1, 300, 60_000])
def test_only_key_metadata_changes(plaintext_footer: bool, which: str, length: int) -> None:
    def change(metadata: bytes, column: str | None) -> bytes:
        if which == ("columns" if column is None else "footer"):
            return metadata
        return b"new " + metadata + bytes(length)

    file = file_of(plaintext_footer=plaintext_footer)
    new = renew_metadata(file, change)

    assert split(new)[0] == split(file)[0]
    old_keys, new_keys = (list_key_metadata(MemorySource(data), READER)[0] for data in (file, new))
    for old_key, new_key in zip(old_keys, new_keys, strict=True):
        assert new_key.metadata == change(old_key.metadata or b"", old_key.column)
    assert verify(new, FOOTER_KEY, KEYS, b"prefix")
    assert rows_of(new).equals(TABLE)
    assert bare_footer(new) == bare_footer(file)


def bare_footer(file: bytes) -> tuple[object, object]:
    """Decode a footer without the package, and leave key metadata out."""
    _, tail = split(file)
    first, end = thrift_struct(tail)
    first.pop(2 if file.endswith(b"PARE") else 9)
    footer = first
    if file.endswith(b"PARE"):
        (algorithm,) = first[1].values()
        aad = algorithm[1] + algorithm[2] + b"\0"
        module = tail[end:]
        plain = AESGCM(FOOTER_KEY).decrypt(module[4:16], module[16:], aad)
        footer, _ = thrift_struct(plain)
    for own, _ in chunks(footer):
        own.pop(2)
    return first, footer


def test_a_sealed_footer_is_kept_where_only_the_footer_keys_metadata_changes() -> None:
    file = file_of(plaintext_footer=False)
    new = renew_metadata(file, lambda old, column: old if column else b"other")
    old_module, new_module = (
        split(data)[1][thrift_struct(split(data)[1])[1] :] for data in (file, new)
    )
    assert new_module == old_module


@MODES
def test_whatever_is_sealed_or_signed_anew_has_a_fresh_nonce(plaintext_footer: bool) -> None:
    file, nonces = file_of(plaintext_footer=plaintext_footer), set()
    for n in range(50):
        file = renew_metadata(file, lambda _, __, n=n: b"%d" % n)  # type: ignore[misc]  # mypy sees no default
        _, tail = split(file)
        module = tail[thrift_struct(tail)[1] :]
        nonces.add(module[:12] if plaintext_footer else module[4:16])
    assert len(nonces) == 50
    assert verify(file, FOOTER_KEY, KEYS, b"prefix")


def test_a_column_may_have_other_key_metadata_in_each_row_group() -> None:
    body, tail = split(file_of(plaintext_footer=True))
    footer = tail[: thrift_struct(tail)[1]].replace(ID_NAME, b"The id's", 1)
    asked: set[tuple[str | None, bytes]] = set()

    def reversing(metadata: bytes, column: str | None) -> bytes:
        asked.add((column, metadata))
        return metadata[::-1]

    new = renew_metadata(body + sign(footer), reversing)
    assert {("id", b"The id's"), ("id", ID_NAME)} <= asked
    named = [own[2] for own, name in chunks(thrift_struct(split(new)[1])[0]) if name == "id"]
    assert named == [b"The id's"[::-1], ID_NAME[::-1], ID_NAME[::-1]]


def test_empty_key_metadata_of_arrow_is_left_alone() -> None:
    folder = shared_vectors() / "pyarrow"
    file = (folder / "enc" / "cpp_crc_gcm.parquet").read_bytes()
    entries = json.loads((folder / "manifest.json").read_text())["entries"]
    (entry,) = (entry for entry in entries if entry["file"] == "enc/cpp_crc_gcm.parquet")
    reader = mc.FileDecryptionProperties(footer_key=bytes.fromhex(entry["enc"]["footer_key"]))
    listed, _ = list_key_metadata(MemorySource(file), reader)
    assert b"" in [key.metadata for key in listed]
    asked: list[bytes] = []

    def note(metadata: bytes, _column: str | None) -> bytes:
        asked.append(metadata)
        return metadata

    assert new_tail(MemorySource(file), reader, note) is None
    assert set(asked) == {key.metadata for key in listed if key.metadata}


def sign(footer: bytes) -> bytes:
    """Return the end of a file with a plaintext footer, signed without the package."""
    algorithm = thrift_struct(footer)[0][8][1]
    aad = algorithm[1] + algorithm[2] + b"\0"
    nonce = b"0123456789ab"
    tag = AESGCM(FOOTER_KEY).encrypt(nonce, footer, aad)[-16:]
    size = len(footer) + 28
    return footer + nonce + tag + size.to_bytes(4, "little") + b"PAR1"


UNKNOWN = b"\x08\xe8\x07" + b"\x09newer one"
"""A field 500 of a writer of some later year: binary, its id spelt out."""


def test_fields_of_newer_writers_stay() -> None:
    file = file_of(plaintext_footer=True)
    body, tail = split(file)
    footer = tail[: thrift_struct(tail)[1]]
    newer = body + sign(footer[:-1] + UNKNOWN + b"\0")
    new = renew_metadata(newer, lambda old, _: old + b"!")
    assert thrift_struct(split(new)[1])[0][500] == b"newer one"
    assert bare_footer(new) == bare_footer(newer)
    assert rows_of(new).equals(TABLE)


# --- what is not signed anew ---------------------------------------------------------------------


def alter_footer(file: bytes) -> bytes:
    """Alter a plaintext footer as an attacker does who has no key."""
    at = file.rindex(b"parquet-cpp")
    return file[:at] + b"parquet-CPP" + file[at + 11 :]


@pytest.mark.parametrize("require_encrypted", [True, False])
def test_an_altered_footer_is_never_signed_anew(require_encrypted: bool) -> None:
    properties = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, check_footer_integrity=False, require_encrypted=require_encrypted
    )
    source = MemorySource(alter_footer(file_of(plaintext_footer=True)))
    with pytest.raises(mc.errors.FooterSignatureError):
        new_tail(source, properties, lambda old, _: old + b"!")


def test_rotation_never_signs_an_altered_footer(tmp_path: Path) -> None:
    path, kms = tmp_path / "a.parquet", RotatingKms(kf=1)
    tools = mc.KeyTools(kms)
    mc.write_table(TABLE, path, tools.encryption(mc.Policy(footer_key="kf", plaintext_footer=True)))
    forged = alter_footer(path.read_bytes())
    path.write_bytes(forged)
    kms.rotate()
    careless = tools.decryption(check_footer_integrity=False)
    for what in get_args(What):
        (file,) = mc.jobs.rotate_keys(path, tools, what=what, decryption=careless)
        assert (file.result, path.read_bytes()) == ("signature", forged)


@MODES
def test_without_the_footer_key_there_is_no_new_tail(plaintext_footer: bool) -> None:
    source = MemorySource(file_of(plaintext_footer=plaintext_footer))
    for strict in (True, False):
        properties = mc.FileDecryptionProperties(
            key_retriever=lambda _metadata: None, check_footer_integrity=strict
        )
        with pytest.raises(mc.errors.KeyNotFoundError):
            new_tail(source, properties, lambda old, _: old + b"!")


@MODES
def test_another_footer_key_or_prefix_makes_no_new_tail(plaintext_footer: bool) -> None:
    source = MemorySource(file_of(plaintext_footer=plaintext_footer))
    for wrong in (
        mc.FileDecryptionProperties(footer_key=OTHER_KEY),
        mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"another"),
    ):
        with pytest.raises(mc.errors.IntegrityError):
            new_tail(source, wrong, lambda old, _: old + b"!")


@MODES
def test_what_change_raises_comes_through(plaintext_footer: bool) -> None:
    def refuse(_metadata: bytes, _column: str | None) -> bytes:
        raise mc.errors.KeyAccessDeniedError("no")

    with pytest.raises(mc.errors.KeyAccessDeniedError):
        new_tail(MemorySource(file_of(plaintext_footer=plaintext_footer)), READER, refuse)


# --- any bytes -----------------------------------------------------------------------------------

SEEDS = {mode: file_of(plaintext_footer=mode) for mode in (True, False)}


@MODES
@settings(max_examples=examples(300))
@given(changes=edits(4000))
def test_any_altered_file_is_listed_or_an_error_of_modcrypt(
    plaintext_footer: bool, changes: list[tuple[int, int, bytes]]
) -> None:
    source = MemorySource(apply_edits(SEEDS[plaintext_footer], changes))
    for properties in (None, READER):
        try:
            keys, _ = list_key_metadata(source, properties)
        except mc.ModcryptError:
            continue
        assert keys[0].column is None
        assert all(isinstance(key.metadata, bytes | None) for key in keys)


@settings(max_examples=examples(300))
@given(data=st.binary(max_size=200), magic=st.sampled_from([b"PAR1", b"PARE"]))
def test_any_bytes_are_an_error_of_modcrypt(data: bytes, magic: bytes) -> None:
    file = magic + data + len(data).to_bytes(4, "little") + magic
    for properties in (None, READER):
        with pytest.raises(mc.ModcryptError):  # no footer is that short and has keys
            list_key_metadata(MemorySource(file), properties)
