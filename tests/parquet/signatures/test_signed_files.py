"""Signed files are read by everyone, and checked by those who require a signature."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from modcrypt.io.sources import FileSource
from tests.support.cases import each_case
from tests.support.forging import decrypt_bytes, plain_file
from tests.support.keys import FOOTER_KEY
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.signing import (
    MODES,
    PEOPLE,
    signed_decryption,
    signed_encryption,
    signed_file,
    writer_key,
)
from tests.support.watched_source import Watched


@each_case("case", pairwise(
    scheme=("ed25519", "mldsa65"), mode=MODES, prefix=(None, b"people"), required=(True, False),
), ids=case_name)  # fmt: skip
def test_every_way_of_reading_returns_what_was_written(case: Case) -> None:
    key = writer_key(case["scheme"])
    data = signed_file(key=key, aad_prefix=case["prefix"], **case["mode"])
    required = (key.verifier,) if case["required"] else ()
    reader = signed_decryption(signed_by=required)
    assert mc.read_table(data, reader).equals(PEOPLE)
    found = mc.read_table(data, reader, columns=["city"], filters=[("id", "=", 500)])
    assert found.to_pylist() == [{"city": "city 5"}]
    with mc.open_parquet(data, reader) as view:
        assert pq.read_table(view).equals(PEOPLE)
    assert pq.read_table(io.BytesIO(decrypt_bytes(data, reader))).equals(PEOPLE)
    checked = mc.verify_parquet(data, reader)
    assert checked.ok
    assert checked.signed_by == (key.verifier.hex_id if required else None)


@each_case("mode", MODES)
@each_case("threads", [1, 2])
def test_a_file_that_is_encrypted_is_signed(
    tmp_path: Path, mode: dict[str, Any], threads: int
) -> None:
    plain = plain_file(PEOPLE, row_group_size=200, write_page_index=True)
    path = tmp_path / "signed.parquet"
    mc.encrypt_parquet(plain, path, signed_encryption(**mode), threads=threads)
    assert mc.read_table(path, signed_decryption()).equals(PEOPLE)
    assert mc.verify_parquet(path, signed_decryption()).signed_by == writer_key().verifier.hex_id
    assert decrypt_bytes(path.read_bytes(), signed_decryption()) == plain


def test_a_second_thread_hashes_a_large_file(tmp_path: Path) -> None:
    """Parts go through many buffers, whose borders are not those of parts."""
    table = pa.table({"text": [f"{n:0400}" for n in range(40_000)], "n": list(range(40_000))})
    plain = plain_file(table, compression="none", use_dictionary=False, row_group_size=9_000)
    path = tmp_path / "signed.parquet"
    key = writer_key()
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, signing_key=key)
    mc.encrypt_parquet(plain, path, encryption, threads=2)
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, signed_by=[key.verifier])
    assert mc.verify_parquet(path, reader).ok
    assert decrypt_bytes(path.read_bytes(), reader) == plain


@each_case("mode", MODES)
def test_pyarrow_reads_it(mode: dict[str, Any]) -> None:
    """It reads columns under the footer key by that key, and the plaintext column without it."""
    keys = pe.create_decryption_properties(footer_key=FOOTER_KEY)
    out = io.BytesIO()
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, plaintext_columns=["city"], signing_key=writer_key(), **mode
    )
    mc.write_table(PEOPLE, out, encryption)
    assert pq.read_table(out, decryption_properties=keys).equals(PEOPLE)


def test_a_file_without_rows_is_signed() -> None:
    data = signed_file(PEOPLE.slice(0, 0))
    assert mc.read_table(data, signed_decryption()).num_rows == 0
    assert mc.verify_parquet(data, signed_decryption()).ok


def test_the_extension_of_the_source_comes_back() -> None:
    """A footer may have another extension, and a note of what encryption added."""
    plain = plain_file(PEOPLE)
    plain = plain[:-9] + b"\x08\xfe\xff\x03\x05other\x00" + plain[-8:]
    size = int.from_bytes(plain[-8:-4], "little") + 10
    plain = plain[:-8] + size.to_bytes(4, "little") + b"PAR1"
    signed, opened = io.BytesIO(), io.BytesIO()
    mc.encrypt_parquet(plain, signed, signed_encryption(), keep_unknown_fields=True)
    mc.decrypt_parquet(signed, opened, signed_decryption(), keep_unknown_fields=True)
    assert opened.getvalue() == plain


def test_a_reader_of_one_column_hashes_only_its_chunks() -> None:
    text = [f"{n:0500}" for n in range(900)]
    table = pa.table({"name": text, "id": text, "city": text})
    data = signed_file(table)
    source = Watched(data)
    mc.read_table(source, signed_decryption(), columns=["city"])
    assert len(data) / 3 < sum(source.taken) < len(data) / 2


def test_the_result_of_a_verification_has_no_gaps_without_tags() -> None:
    data = signed_file(encryption_algorithm="AES_GCM_CTR_V1")
    unsigned = mc.verify_parquet(data, signed_decryption(signed_by=()))
    whole = mc.verify_parquet(data, signed_decryption())
    assert not unsigned.complete
    assert whole.complete
    assert "Signed by" in dict(whole.facts())


def test_a_file_is_signed_by_one_of_several_writers() -> None:
    others = [writer_key(number=n).verifier for n in (1, 2)]
    reader = signed_decryption(*others, writer_key().verifier)
    assert mc.read_table(signed_file(), reader).num_rows == 900


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="signing_key must be a SigningKey, not bytes"):
        signed_encryption(b"key")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="signed_by takes VerifyingKey objects, not str"):
        signed_decryption(signed_by="key")
    with pytest.raises(ValueError, match="at most 64 keys, not 65"):
        signed_decryption(signed_by=[writer_key().verifier] * 65)


def test_no_key_is_shown() -> None:
    shown = repr(signed_encryption())
    assert "REDACTED" in shown


def test_a_verification_reads_each_byte_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "signed.parquet", [0]
    mc.write_table(pa.concat_tables([PEOPLE] * 100), path, signed_encryption(), compression="none")
    read_into = FileSource.read_into

    def count(self: FileSource, offset: int, view: memoryview) -> None:
        read[0] += len(view)
        read_into(self, offset, view)

    monkeypatch.setattr(FileSource, "read_into", count)
    assert mc.verify_parquet(path, signed_decryption(), threads=1).ok
    assert read[0] < 1.3 * path.stat().st_size  # the footer, and indexes, are read again
