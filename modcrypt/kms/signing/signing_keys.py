"""Keys that sign, lines of text with the keys that verify, and references to both.

    modcrypt-verifier:ed25519:BASE64URL-OF-THE-KEY:32-HEX-DIGITS-OF-ITS-ID

A signing key is in a file, `file:PATH`, or in a key service, whose URI names the key:
`hcvault://HOST/MOUNT/keys/NAME`, `aws-kms://ARN` or `pkcs11:token=TOKEN;object=NAME`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from modcrypt.errors import KeyMaterialError, KeyRetrievalError
from modcrypt.keys import Secret, Unpicklable
from modcrypt.kms.calls import find_signer
from modcrypt.kms.key_references import absolute_reference, check_reference
from modcrypt.kms.keyring.keyring_passphrase import Passphrase, check_passphrase_reference
from modcrypt.kms.recipients.private_key_file import (
    PrivateKeyFormat,
    PrivateText,
    load_private_key,
    load_with_reference,
    save_private_key,
)
from modcrypt.kms.recipients.public_lines import PublicKey
from modcrypt.kms.references import open_kms
from modcrypt.kms.signing.schemes import ED25519, find_scheme
from modcrypt.parquet.signatures.signers import MAX_VERIFYING_KEYS
from modcrypt.runtime.tracebacks import hide_frames

PREFIX = "modcrypt-verifier"
SIGNING_FILE = PrivateKeyFormat("modcrypt-signing-key", "verifier", "signing key")

SERVICES = ("hcvault", "vault", "aws-kms", "pkcs11")  # schemes of the key services that sign


@dataclass(frozen=True, slots=True, repr=False)
class VerifyingKey(PublicKey):
    """The public key of a writer; it is no secret.

    Args:
        scheme: `"ed25519"` or `"mldsa65"`.
        public_key: The encoded public key.

    Raises:
        ValueError: The scheme is unknown, or the key has another length.
    """

    scheme: str
    public_key: bytes

    _prefix = PREFIX
    _word = "verifying key"

    def __post_init__(self) -> None:
        size = find_scheme(self.scheme).public_size
        if not isinstance(self.public_key, bytes) or len(self.public_key) != size:
            raise ValueError(f"a public key of {self.scheme} has {size} bytes")

    def _parts(self) -> tuple[str, bytes]:
        return self.scheme, self.public_key

    def verify(self, signature: bytes, message: bytes) -> bool:
        """Return whether the key made a signature of a message."""
        return find_scheme(self.scheme).verify(self.public_key, signature, message)


class SigningKey(Unpicklable):
    """A private key that signs; it never shows itself, and can't be pickled.

    Create one with `generate`, `load` or `open`.

    Attributes:
        verifier: The key that verifies.
        kept_at: Path of the file that keeps the key; "" for a key service, a variable or a
            descriptor, None if nothing does.
        remembered: Newest statements that this object has signed, by the ids of their datasets.
    """

    __slots__ = ("_secret", "_sign", "kept_at", "remembered", "verifier")
    _advice = "pass its path or URI instead"

    def __init__(
        self,
        verifier: VerifyingKey,
        secret: Secret[bytes] | None,
        sign: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Keep a private key, or the function of a key service that signs with it."""
        self.verifier, self._secret, self._sign = verifier, secret, sign
        self.kept_at: str | None = None if sign is None else ""
        self.remembered: dict[str, Any] = {}

    @classmethod
    @hide_frames
    def generate(cls, scheme: str = ED25519) -> Self:
        """Return a new key of a scheme: `"ed25519"`, or `"mldsa65"` against quantum computers."""
        found = find_scheme(scheme)
        secret = found.generate_secret()
        return cls(VerifyingKey(scheme, found.encode_public(secret)), Secret(secret))

    @classmethod
    @hide_frames
    def load(cls, path: str | os.PathLike[str], passphrase: Passphrase | None = None) -> Self:
        """Read a file of a signing key; arguments and errors are those of `Identity.load`."""
        line, secret = load_private_key(path, SIGNING_FILE, passphrase)
        verifier = VerifyingKey.parse(line)
        scheme = find_scheme(verifier.scheme)
        if (
            len(secret()) != scheme.secret_size
            or scheme.encode_public(secret()) != verifier.public_key
        ):
            raise KeyMaterialError("the private key does not belong to the verifier in the file")
        key = cls(verifier, secret)
        if isinstance(path, PrivateText):
            key.kept_at = ""
        else:
            key.kept_at = os.path.abspath(os.path.expanduser(os.fspath(path)))
        return key

    @classmethod
    @hide_frames
    def open(cls, uri: str, **options: Any) -> Self:
        """Return a key that signs inside its key service, which reports the verifying key now.

        Args:
            uri: URI of a key of Vault or OpenBao, AWS KMS or a PKCS#11 token, as for `open_kms`.
            options: Arguments of `open_kms`.

        Raises:
            ValueError: The URI is invalid or names no key, or the service does not sign.
            KeyRetrievalError: The key does not exist or is of another kind, or the service refuses
                or is unavailable. So does `sign`.
        """
        client: Any = open_kms(uri, **options)
        if not (key_id := getattr(client, "default_key", None)):
            raise ValueError("the URI of a signing key must name the key, not only its service")
        signer = find_signer(client, key_id)
        try:
            verifier = VerifyingKey(signer.scheme, signer.public_key)
        except ValueError as error:
            raise KeyRetrievalError(f"signing key {key_id}: {error}") from None
        return cls(verifier, None, partial(_sign_in_service, signer.sign, verifier, key_id))

    @hide_frames
    def save(self, path: str | os.PathLike[str], passphrase: Passphrase | None = None) -> None:
        """Write a new file of mode 0600; arguments and errors are those of `Identity.save`."""
        if self._secret is None:
            raise ValueError("this signing key stays in its key service; it can't be saved")
        save_private_key(path, SIGNING_FILE, str(self.verifier), self._secret(), passphrase)
        self.kept_at = os.path.abspath(os.fspath(path))

    @hide_frames
    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""
        if self._sign is not None:
            return self._sign(message)
        assert self._secret is not None
        return find_scheme(self.verifier.scheme).sign(self._secret(), message)

    def __repr__(self) -> str:
        return f"SigningKey({self.verifier.scheme}, id {self.verifier.hex_id}, REDACTED)"


def _sign_in_service(
    sign: Callable[[bytes], bytes], verifier: VerifyingKey, key_id: str, message: bytes
) -> bytes:
    """Return the signature of a service; files must not get one that nobody can verify."""
    signature = sign(message)
    if not isinstance(signature, bytes) or not verifier.verify(signature, message):
        raise KeyRetrievalError(
            f"signing key {key_id}: the key service returned a signature that does not verify "
            "under the public key that it reported"
        )
    return signature


def check_verifying_keys(keys: Iterable[VerifyingKey]) -> dict[str, VerifyingKey]:
    """Return the keys whose signatures a reader accepts, by their ids."""
    given = (keys,) if isinstance(keys, VerifyingKey) else tuple(keys)
    for key in given:
        if not isinstance(key, VerifyingKey):
            raise TypeError(f"signed_by takes VerifyingKey objects, not {type(key).__name__}")
    if not 0 < len(given) <= MAX_VERIFYING_KEYS:
        raise ValueError(f"signed_by takes 1 to {MAX_VERIFYING_KEYS} keys, not {len(given)}")
    return {key.hex_id: key for key in given}


def names_service(reference: str) -> bool:
    """Return whether a reference is the URI of a key in a key service."""
    return reference.partition(":")[0].lower() in SERVICES


@hide_frames
def check_signing_reference(key: str | None, passphrase: str | None) -> None:
    """Raise ValueError if a reference is malformed; it may be a secret, so messages omit it."""
    if key is not None:
        check_reference(key, "signing key", services=SERVICES)
    if passphrase is None:
        return
    if key is None or names_service(key):
        raise ValueError("signing_passphrase needs signing_key, a file")
    check_passphrase_reference(passphrase)


def absolute_signing_reference(key: str) -> str:
    """Return a reference that has the same meaning in processes that run in other folders."""
    return key if names_service(key) else absolute_reference(key)


@hide_frames
def load_signing_key(key: str, passphrase: str | None) -> SigningKey:
    """Return the key that a reference names; raise as `SigningKey.load` and `SigningKey.open`."""
    if names_service(key):
        return SigningKey.open(key)
    hint = "name its place by signing_passphrase="
    return load_with_reference(SigningKey.load, key, passphrase, hint)


@hide_frames
def read_verifying_keys(texts: Iterable[str]) -> tuple[VerifyingKey, ...]:
    """Return the verifying keys of lines, or of files; raise as `read_lines`."""
    return tuple(
        VerifyingKey.parse(text) if text.startswith(f"{PREFIX}:") else VerifyingKey.load(text)
        for text in texts
    )
