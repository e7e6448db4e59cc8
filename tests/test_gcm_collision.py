"""A tag does not bind a module's content against those who have the key."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import modcrypt as mc
from modcrypt.aad import module_aad
from modcrypt.module_ids import ModuleType
from tests.support.cases import each_case
from tests.support.forging import open_file
from tests.support.keys import FOOTER_KEY
from tests.support.module_spans import list_modules
from tools.gcm_collision import forge


@each_case("size", [16, 24, 32])
@each_case("free", [0, 2, 3])
def test_another_plaintext_has_the_same_tag(size: int, free: int) -> None:
    key, nonce, aad = bytes(range(1, size + 1)), bytes(range(12)), b"any AAD of 21 bytes.."
    plain = bytes(range(70))
    tag = AESGCM(key).encrypt(nonce, b"what was signed", aad)[-16:]
    opened = AESGCM(key).decrypt(nonce, forge(key, nonce, aad, tag, plain, free) + tag, aad)
    kept = [n for n in range(70) if n // 16 != free]
    assert [opened[n] for n in kept] == [plain[n] for n in kept]


def test_the_free_block_must_be_whole() -> None:
    with pytest.raises(ValueError, match="whole block"):
        forge(bytes(16), bytes(12), b"", bytes(16), bytes(20), 1)


def test_a_reader_replaces_a_page_and_keeps_its_tag() -> None:
    """Why signatures must hash the bytes of modules, and not their tags."""
    out = io.BytesIO()
    notes = pa.table({"note": [b"padding " * 50 + b"to the supplier."] * 3})
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    mc.write_table(notes, out, encryption, compression="none", use_dictionary=False)
    data = out.getvalue()
    properties = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    spans = list_modules(data, properties)
    (page,) = (span for span in spans if span.module.type is ModuleType.DATA_PAGE)
    aad = open_file(data, FOOTER_KEY).file_aad
    where = module_aad(aad, page.module)
    nonce, tag = data[page.start + 4 : page.start + 16], data[page.end - 16 : page.end]
    plain = bytearray(AESGCM(FOOTER_KEY).decrypt(nonce, data[page.start + 16 : page.end], where))
    plain[-16:] = b"to somebody else"
    forged = forge(FOOTER_KEY, nonce, where, tag, bytes(plain), free=5)
    altered = data[: page.start + 16] + forged + data[page.end - 16 :]
    assert len(altered) == len(data)
    assert altered != data
    opened = AESGCM(FOOTER_KEY).decrypt(nonce, altered[page.start + 16 : page.end], where)
    assert opened[-16:] == plain[-16:]
    assert mc.verify_parquet(altered, properties).ok
    forged_notes = mc.read_table(altered, properties).column("note").to_pylist()
    assert forged_notes[-1].endswith(b"to somebody else")
