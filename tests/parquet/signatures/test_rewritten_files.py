"""What rewriting does to the signature of a file: it is remade, kept, or dropped and reported."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.io.sources import MemorySource
from modcrypt.parquet.crypto.footer_keys import new_tail
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY
from tests.support.signing import (
    MODES,
    PEOPLE,
    signed_decryption,
    signed_encryption,
    signed_file,
    writer_key,
)

WRITER = writer_key().verifier.hex_id


def rewrite(verb: str, data: bytes, encryption: mc.FileEncryptionProperties) -> Any:
    """Rewrite a file; return the new bytes and the result."""
    out = io.BytesIO()
    if verb == "share":
        done = mc.share_parquet(data, out, signed_decryption(), encryption, ["id", "name", "city"])
    elif verb == "mask":
        done = mc.mask_parquet(data, out, signed_decryption(), encryption, null=["id"])
    else:
        keep = verb == "rekey unchanged"
        done = mc.rekey_parquet(data, out, signed_decryption(), encryption, keep_unchanged=keep)
    return out.getvalue(), done


@each_case("verb", ["rekey", "rekey unchanged", "share", "mask"])
@each_case("mode", MODES)
def test_a_rewritten_file_is_signed_again(verb: str, mode: dict[str, Any]) -> None:
    new, done = rewrite(verb, signed_file(**mode), signed_encryption(**mode))
    assert done.lost_signatures == ()
    assert mc.verify_parquet(new, signed_decryption()).ok
    assert mc.read_table(new, signed_decryption(), columns=["name"]).num_rows == 900


@each_case("verb", ["rekey", "rekey unchanged", "share", "mask"])
def test_a_rewritten_file_without_a_signing_key_has_no_signature(verb: str) -> None:
    unsigned = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    new, done = rewrite(verb, signed_file(), unsigned)
    assert done.lost_signatures == (WRITER,)
    assert mc.read_table(new, signed_decryption(signed_by=(), column_keys={})).num_rows == 900
    with pytest.raises(mc.errors.WriterSignatureError, match="no writer has signed it"):
        mc.read_table(new, signed_decryption())


def test_masking_with_the_keys_of_the_file_drops_the_signature() -> None:
    out = io.BytesIO()
    done = mc.mask_parquet(signed_file(), out, signed_decryption(), null=["id"])
    assert done.lost_signatures == (WRITER,)


def test_a_file_that_another_writer_signed_is_not_rewritten() -> None:
    with pytest.raises(mc.errors.WriterSignatureError, match="signed by another key"):
        rewrite("rekey", signed_file(key=writer_key(number=1)), signed_encryption())


def test_an_unsigned_file_loses_nothing() -> None:
    out, plain = io.BytesIO(), io.BytesIO()
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    mc.write_table(PEOPLE, plain, encryption)
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    assert mc.rekey_parquet(plain.getvalue(), out, reader, encryption).lost_signatures == ()


# --- key metadata --------------------------------------------------------------------------------


def named_file(column: bool, plaintext_footer: bool) -> bytes:
    """Return a signed file whose keys have names."""
    columns = {"name": FOOTER_KEY[::-1]} if column else {}
    out = io.BytesIO()
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys=columns, footer_key_metadata=b"old footer",
        column_key_metadata=dict.fromkeys(columns, b"old column"), signing_key=writer_key(),
        plaintext_footer=plaintext_footer,
    )  # fmt: skip
    mc.write_table(PEOPLE, out, encryption)
    return out.getvalue()


def rename_keys(data: bytes, key: mc.SigningKey | None) -> tuple[bytes, bool]:
    """Return a file with other key metadata, and whether it lost its signature."""
    reader = signed_decryption(signed_by=(), column_keys={"name": FOOTER_KEY[::-1]})
    tail = new_tail(MemorySource(data), reader, lambda old, _: old.replace(b"old", b"new"), key)
    assert tail is not None
    return data[: tail.start] + tail.data, tail.lost_signature


@each_case("column", [False, True])
@each_case("footer", [False, True])
@each_case("again", [False, True])
def test_new_key_metadata_keeps_the_signature_where_it_can(
    column: bool, footer: bool, again: bool
) -> None:
    new, lost = rename_keys(named_file(column, footer), writer_key() if again else None)
    assert lost == ((column or footer) and not again)
    keys = {"name": FOOTER_KEY[::-1]} if column else {}
    assert mc.verify_parquet(new, signed_decryption(signed_by=(), column_keys=keys)).ok
    checked = mc.verify_parquet(new, signed_decryption(column_keys=keys))
    assert checked.ok != lost


def test_only_what_the_same_key_signed_is_signed_again() -> None:
    with pytest.raises(mc.errors.WriterSignatureError, match="signed by another key"):
        rename_keys(named_file(True, False), writer_key(number=1))


def test_a_dataset_and_a_writer_in_steps_sign(tmp_path: Path) -> None:
    mc.write_dataset(PEOPLE, tmp_path / "people", signed_encryption(), max_rows_per_file=300)
    assert mc.read_table(tmp_path / "people", signed_decryption()).equals(PEOPLE)
    with mc.ParquetWriter(tmp_path / "f", PEOPLE.schema, signed_encryption()) as writer:
        writer.write_batch(PEOPLE.to_batches()[0])
    assert mc.read_table(tmp_path / "f", signed_decryption()).equals(PEOPLE)
