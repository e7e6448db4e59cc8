"""Keys in moto's AWS KMS of the specs that sign files, which moto 5 does not have.

Requests, answers and errors are moto's; only the arithmetic is added here.
"""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support.kms.key_servers import MotoKms

ALGORITHMS = {"ECC_NIST_EDWARDS25519": "ED25519_SHA_512", "ML_DSA_65": "ML_DSA_SHAKE_256"}
LIMIT = 4096


def add_signing_key(moto: MotoKms, spec: str = "ECC_NIST_EDWARDS25519") -> str:
    """Create a key that signs, with one of the two specs, and return its ARN."""
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.kms.models import Key, kms_backends

    class SigningKey(Key):
        signing_algorithms = [ALGORITHMS[spec]]  # noqa: RUF012 (moto's property)

    judge = moto.judge()
    made = judge.create_key(KeyUsage="SIGN_VERIFY", KeySpec="ECC_NIST_P256")["KeyMetadata"]
    key: Any = kms_backends[DEFAULT_ACCOUNT_ID][judge.meta.region_name].keys[made["KeyId"]]
    key.__class__, key.key_spec = SigningKey, spec
    key.private_key = _PrivateKey(spec)
    return str(made["Arn"])


class _PrivateKey:
    """A private key as moto calls it."""

    def __init__(self, spec: str) -> None:
        kinds: dict[str, Any] = {
            "ECC_NIST_EDWARDS25519": Ed25519PrivateKey, "ML_DSA_65": MLDSA65PrivateKey
        }  # fmt: skip
        self._key = kinds[spec].generate()

    def sign(self, message: bytes, algorithm: str) -> bytes:
        assert len(message) <= LIMIT
        signature: bytes = self._key.sign(message)
        return signature

    def public_key(self) -> bytes:
        der: bytes = self._key.public_key().public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )
        return der
