"""The vectors of signatures, by modcrypt and by the independent verifier."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.paths import ROOT
from tests.support.signing import MODES, PEOPLE, signed_encryption, signed_file, writer_key
from tools import verify_signature
from tools.verify_pme import VerifyError

FOLDER = ROOT / "spec-vectors/signatures"
CASES: list[dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())["cases"]
KEYS = {"name": COLUMN_KEY}


def read_case(case: dict[str, Any]) -> tuple[bytes, str, bytes | None]:
    """Return the file, the verifier's line and the AAD prefix of a case."""
    prefix = None if case["aad_prefix"] is None else bytes.fromhex(case["aad_prefix"])
    line = (FOLDER / case["verifier"]).read_text().strip()
    return (FOLDER / case["file"]).read_bytes(), line, prefix


def reading(case: dict[str, Any], **changes: Any) -> mc.FileDecryptionProperties:
    _, line, prefix = read_case(case)
    required = {"signed_by": [mc.kms.VerifyingKey.parse(line)], **changes}
    return mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys=KEYS, aad_prefix=prefix,
        accept_algorithms=[case["algorithm"]], **required,
    )  # fmt: skip


@each_case("case", CASES, ids=[case["id"] for case in CASES])
def test_modcrypt_agrees(case: dict[str, Any]) -> None:
    data, _, _ = read_case(case)
    words = {fault.word for fault in mc.verify_parquet(data, reading(case)).findings}
    if case["expect"] == "ok":
        assert not words
        assert mc.read_table(data, reading(case)).num_rows == 4
        return
    assert case["expect"] in words
    for read in (mc.read_table, lambda source, how: mc.decrypt_parquet(source, io.BytesIO(), how)):
        with pytest.raises(mc.ModcryptError) as caught:
            read(data, reading(case))
        assert caught.value.word == case["expect"]


@each_case("case", CASES, ids=[case["id"] for case in CASES])
def test_the_independent_verifier_agrees(case: dict[str, Any]) -> None:
    data, line, prefix = read_case(case)
    arguments = (data, line, FOOTER_KEY, KEYS, prefix)
    if case["expect"] == "ok":
        assert verify_signature.verify(*arguments, accept_algorithms=(case["algorithm"],)) > 0
        return
    with pytest.raises(VerifyError) as caught:
        verify_signature.verify(*arguments, accept_algorithms=(case["algorithm"],))
    assert caught.value.word == case["expect"]


@each_case("case", CASES, ids=[case["id"] for case in CASES])
def test_other_readers_notice_no_attack(case: dict[str, Any]) -> None:
    """So the vectors are attacks that only signatures stop."""
    data, _, _ = read_case(case)
    if case["id"] == "footer-of-another":
        pytest.skip("its pages have another AAD")
    assert mc.read_table(data, reading(case, signed_by=())).num_rows in (2, 4)


@each_case("mode", MODES)
@each_case("scheme", ["ed25519", "mldsa65"])
def test_the_independent_verifier_reads_new_files(mode: dict[str, Any], scheme: str) -> None:
    algorithm = (mode["encryption_algorithm"],)
    key = writer_key(scheme)
    for data in (signed_file(key=key, **mode), encrypt_plain(key, mode)):
        verify_signature.verify(
            data, str(key.verifier), FOOTER_KEY, KEYS, accept_algorithms=algorithm
        )
        with pytest.raises(VerifyError):
            verify_signature.verify(
                data,
                str(writer_key(number=1).verifier),
                FOOTER_KEY,
                KEYS,
                accept_algorithms=algorithm,
            )


def encrypt_plain(key: mc.SigningKey, mode: dict[str, Any]) -> bytes:
    """Return a file with Bloom filters, as `encrypt_parquet` makes it of PyArrow's."""
    import pyarrow.parquet as pq

    plain, out = io.BytesIO(), io.BytesIO()
    pq.write_table(
        PEOPLE, plain, row_group_size=400, write_page_index=True,
        bloom_filter_options={"name": {"ndv": 100}},
    )  # fmt: skip
    mc.encrypt_parquet(plain.getvalue(), out, signed_encryption(key, **mode))
    return out.getvalue()
