"""Files whose label and pages disagree about GCM and CTR: errors say so, whatever fails first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import ThriftStruct, new
from tests.support import forging
from tests.support.cases import each_case
from tests.support.in_memory import run
from tests.support.keys import FOOTER_KEY, OTHER_KEY
from tests.support.pairwise import case_name, pairwise

GCM, CTR = "AES_GCM_V1", "AES_GCM_CTR_V1"
STRUCTS = {GCM: "AesGcmV1", CTR: "AesGcmCtrV1"}
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, accept_algorithms=(GCM, CTR))
OTHER = mc.FileEncryptionProperties(footer_key=OTHER_KEY)
TABLES = {
    "large": pa.table({"a": [n // 100 for n in range(900)], "l": [[n, 7] for n in range(900)]}),
    "small": pa.table({"a": [1]}),
    "empty texts": pa.table({"a": ["", None, ""]}),
}


def read_view(data: bytes) -> pa.Table:
    with mc.open_parquet(data, READER) as view:
        return pq.read_table(view, use_threads=False)


VERBS: dict[str, Callable[[bytes], object]] = {
    "read": lambda data: mc.read_table(data, READER),
    "batches": lambda data: list(mc.iter_batches(data, READER)),
    "view": read_view,
    "decrypt": lambda data: run(mc.decrypt_parquet, data, READER),
    "rekey": lambda data: run(mc.rekey_parquet, data, READER, OTHER),
    "mask": lambda data: run(mc.mask_parquet, data, READER, hashed=["a"], hash_key=b"k" * 32),
}


def relabel(data: bytes, name: str) -> bytes:
    """Change the algorithm that a file names; sign a plaintext footer again."""

    def change(crypto: ThriftStruct) -> None:
        union = crypto.encryption_algorithm
        old = union.AES_GCM_V1 or union.AES_GCM_CTR_V1
        struct = new(STRUCTS[name], aad_file_unique=old.aad_file_unique, supply_aad_prefix=False)
        crypto.encryption_algorithm = new("EncryptionAlgorithm", **{name: struct})

    if data[-4:] == b"PARE":
        return forging.edit_crypto(data, change)
    return forging.change_footer(data, FOOTER_KEY, change)


CASES = pairwise(
    written=(GCM, CTR), footer=("encrypted", "plaintext"), version=("1.0", "2.0"),
    codec=("none", "snappy", "gzip", "zstd", "lz4", "brotli"), dictionary=(True, False),
    levels=("encrypted", "plaintext"), table=tuple(TABLES), checksum=(True, False),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_every_verb_says_that_the_label_is_wrong(case: dict[str, Any]) -> None:
    plain = forging.plain_file(
        TABLES[case["table"]], compression=case["codec"], use_dictionary=case["dictionary"],
        data_page_version=case["version"], write_page_checksum=case["checksum"],
    )  # fmt: skip
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, encryption_algorithm=case["written"],
        plaintext_footer=case["footer"] == "plaintext", data_page_v2_levels=case["levels"],
    )  # fmt: skip
    data = run(mc.encrypt_parquet, plain, encryption)
    assert mc.read_table(data, READER).equals(TABLES[case["table"]])
    wrong = relabel(data, CTR if case["written"] == GCM else GCM)
    for name, verb in VERBS.items():
        with pytest.raises(mc.ModcryptError, match="CTR"):
            pytest.fail(f"{name} gave {verb(wrong)!r}")
    verified = mc.verify_parquet(wrong, READER)
    assert not verified.ok
    assert any("CTR" in found.message for found in verified.findings)


@each_case("codec", ["none", "snappy", "zstd"])
def test_an_altered_page_of_a_file_with_the_right_label_is_only_altered(codec: str) -> None:
    plain = forging.plain_file(TABLES["large"], compression=codec, use_dictionary=False)
    data = bytearray(
        run(mc.encrypt_parquet, plain, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    )
    verified = mc.verify_parquet(bytes(data), READER, regions=True)
    body = next(region for region in verified.regions if region.kind == "data page")
    data[body.end - 20] ^= 1
    with pytest.raises(mc.errors.TagMismatchError) as caught:
        mc.read_table(bytes(data), READER)
    assert "CTR" not in str(caught.value)
