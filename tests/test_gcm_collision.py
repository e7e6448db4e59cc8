"""A tag does not bind a module's content against those who have the key."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.support.cases import each_case
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
