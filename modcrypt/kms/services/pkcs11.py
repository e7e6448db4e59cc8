"""Keys on a PKCS#11 token (HSM, smart card, SoftHSM), with the extra `pkcs11`.

    pkcs11:token=lake;object=NAME?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=env:PIN

The URI follows RFC 7512. `token`, `manufacturer`, `model`, `serial` and `slot-id` select the token,
`object` names the default master key, and `id` selects one of several keys with that label. The
PKCS#11 module is `module-path`, or the environment variable MODCRYPT_PKCS11_MODULE. A module is
code that runs in this process, so that `module-path` must be a path that only root can write, or
the path in that variable. `pin-source` names the place of the PIN (file:PATH or env:NAME), by
default env:MODCRYPT_PKCS11_PIN. A URI never contains the PIN.

A master key is an AES key that never leaves the token; its id is its label (CKA_LABEL). The token's
AES-GCM wraps keys, in the format of parquet-java's local wrapping:

    {"masterKeyVersion":"NO_VERSION","encryptedKey":base64( nonce (12) | ciphertext | tag (16) )}
    AAD: the master key id in UTF-8; with AAD of the caller: master key id | 00 | AAD

A signing key is a pair of Edwards keys (CKK_EC_EDWARDS, edwards25519) with one label, which is its
id; the private key never leaves the token.

PKCS#11 logs in the whole application, not a session. If this process is already logged in to the
token, no PIN is needed; if any part of the process logs out, no part can use the keys any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from modcrypt.aead import TAG_SIZE
from modcrypt.errors import KeyDisabledError, KeyMaterialError, KeyNotFoundError, KeyRetrievalError
from modcrypt.kms.client import Capabilities, MasterKey, ServiceSigner, UnpicklableClient
from modcrypt.kms.local_wrap import format_wrapped_key, local_aad, parse_wrapped
from modcrypt.kms.services.pkcs11_token import TokenSessions, make_pin_source, pkcs11, token_errors
from modcrypt.kms.services.pkcs11_uri import Pkcs11Uri, parse_pkcs11_uri
from modcrypt.runtime.tracebacks import hide_frames

NONCE_SIZE = 12

_DOES_NOT_DECRYPT = (token_errors.EncryptedDataInvalid, token_errors.EncryptedDataLenRange)
# Tokens report these for a wrong tag as well as for failures of their own; SoftHSM the first.
_AMBIGUOUS = (token_errors.GeneralError, token_errors.FunctionFailed)


@hide_frames
def open_pkcs11(uri: str, *, pin: str | Callable[[], str] | None = None) -> Pkcs11Kms:
    """Return the client of a PKCS#11 token, logged in.

    `pin` may be a function, which is called at each login: now, and after the token was removed.

    Raises:
        ValueError: The URI is not valid, the module or the PIN is missing, or others than root can
            write the module that the URI names.
        KeyNotFoundError: The token does not exist.
        KeyAccessDeniedError: The token refuses the PIN.
        KeyRetrievalError: Several tokens match, or the module cannot be loaded.
        KmsUnavailableError: The token fails.
        OSError: The file with the PIN cannot be read.
    """
    where = parse_pkcs11_uri(uri)
    module = where.module or os.environ.get("MODCRYPT_PKCS11_MODULE", "")
    if not os.path.isabs(module):
        raise ValueError(
            "the PKCS#11 module is missing or is not an absolute path: set module-path in the "
            "URI, or MODCRYPT_PKCS11_MODULE"
        )
    return Pkcs11Kms(where, module, make_pin_source(pin, where.pin_source))


class Pkcs11Kms(UnpicklableClient):
    """A PKCS#11 token as a key service, with administration of its master keys.

    Keys on a token have no versions. To rotate a key, create one with another label, and rewrap the
    files under it.
    """

    capabilities = Capabilities(aad=True, random_nonces=True)

    def __init__(self, where: Pkcs11Uri, module: str, pin: Callable[[], str]) -> None:
        self._where = where
        self._sessions = TokenSessions(module, where.token, pin)
        self.default_key = where.object
        with self._sessions.open("the PKCS#11 token"):
            pass

    def __repr__(self) -> str:
        return f"Pkcs11Kms({self._sessions.module})"

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key; see `KmsClient.wrap`."""
        with self._sessions.open(f"master key {master_key_id}") as session:
            master = self._find_key(session, master_key_id)
            _check_enabled(master, pkcs11.Attribute.ENCRYPT)
            encrypted = _encrypt(master, key, local_aad(master_key_id, aad))
        if len(encrypted) != NONCE_SIZE + len(key) + TAG_SIZE:
            raise KeyRetrievalError(
                f"master key {master_key_id}: the token's AES-GCM returned {len(encrypted)} bytes "
                f"for a key of {len(key)}; expected a nonce of {NONCE_SIZE} bytes and a tag of "
                f"{TAG_SIZE}"
            )
        return format_wrapped_key(None, encrypted)

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key; see `KmsClient.unwrap`."""
        version, encrypted = parse_wrapped(wrapped)
        if version is not None:
            raise KeyMaterialError(
                "the wrapped key names a version, but keys on a PKCS#11 token have none"
            )
        with self._sessions.open(f"master key {master_key_id}") as session:
            master = self._find_key(session, master_key_id)
            _check_enabled(master, pkcs11.Attribute.DECRYPT)
            try:
                return _decrypt(master, encrypted, local_aad(master_key_id, aad))
            except _DOES_NOT_DECRYPT as error:
                raise _make_mismatch_error(master_key_id) from error
            except _AMBIGUOUS as error:
                if master[pkcs11.Attribute.ENCRYPT]:
                    _encrypt(master, bytes(16), b"")  # fails as well if the token itself fails
                raise _make_mismatch_error(master_key_id) from error

    def find_signer(self, key_id: str) -> ServiceSigner:
        """Return a key that signs with EdDSA; see `client.find_signer`."""
        with self._sessions.open(f"signing key {key_id}") as session:
            key = self._find_signing_half(session, key_id, pkcs11.ObjectClass.PUBLIC_KEY)
            public = _decode_point(bytes(key[pkcs11.Attribute.EC_POINT]), key_id)
            self._find_signing_half(session, key_id, pkcs11.ObjectClass.PRIVATE_KEY)
        return ServiceSigner(scheme="ed25519", public_key=public, sign=partial(self._sign, key_id))

    @hide_frames
    def _sign(self, key_id: str, message: bytes) -> bytes:
        with self._sessions.open(f"signing key {key_id}") as session:
            key = self._find_signing_half(session, key_id, pkcs11.ObjectClass.PRIVATE_KEY)
            _check_enabled(key, pkcs11.Attribute.SIGN, "signing key")
            return bytes(key.sign(message, mechanism=pkcs11.Mechanism.EDDSA))

    def create_key(self, master_key_id: str) -> MasterKey:
        """Create an AES key of 256 bits that never leaves the token.

        Raise ValueError if a key with this label exists, or the label is empty.
        """
        with self._sessions.open(f"master key {master_key_id}", writing=True) as session:
            if not master_key_id or _list_keys(session, master_key_id):
                raise ValueError(
                    f"the token already has a master key {master_key_id!r}, or the label is empty"
                )
            session.generate_key(
                pkcs11.KeyType.AES,
                256,
                label=master_key_id,
                store=True,
                capabilities=pkcs11.MechanismFlag.ENCRYPT | pkcs11.MechanismFlag.DECRYPT,
                template={
                    pkcs11.Attribute.PRIVATE: True,
                    pkcs11.Attribute.SENSITIVE: True,
                    pkcs11.Attribute.EXTRACTABLE: False,
                },
            )
        return MasterKey(id=master_key_id)

    def list_keys(self) -> list[MasterKey]:
        """Return all labelled AES keys of the token, sorted by label."""
        with self._sessions.open("the PKCS#11 token") as session:
            keys = [
                MasterKey(
                    id=key.label,
                    enabled=bool(key[pkcs11.Attribute.ENCRYPT] and key[pkcs11.Attribute.DECRYPT]),
                )
                for key in _list_keys(session, None)
                if key.label
            ]
        return sorted(keys, key=lambda key: key.id)

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Raise KeyRetrievalError, because keys on a token have no versions."""
        raise KeyRetrievalError(
            f"master key {master_key_id}: keys on a PKCS#11 token have no versions; create a key "
            "with another label, and rewrap the files under it"
        )

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Remove the key's permission to encrypt and decrypt (CKA_ENCRYPT, CKA_DECRYPT).

        Anyone who may log in can restore it; `destroy_key` is permanent. Raise KeyRetrievalError
        for a version, or if the token does not allow changes of a key.
        """
        if version is not None:
            raise KeyRetrievalError(
                f"master key {master_key_id}: keys on a PKCS#11 token have no versions; disable "
                "the whole key"
            )
        with self._sessions.open(f"master key {master_key_id}", writing=True) as session:
            key = self._find_key(session, master_key_id)
            try:
                key[pkcs11.Attribute.DECRYPT] = False
                key[pkcs11.Attribute.ENCRYPT] = False
            except token_errors.PKCS11Error as error:
                raise KeyRetrievalError(
                    f"master key {master_key_id}: the token cannot disable it; destroy_key removes "
                    "it permanently"
                ) from error
        return MasterKey(id=master_key_id, enabled=False)

    def destroy_key(self, master_key_id: str) -> None:
        """Destroy a key, and so all that is wrapped under it."""
        with self._sessions.open(f"master key {master_key_id}", writing=True) as session:
            self._find_key(session, master_key_id).destroy()

    def _find_key(self, session: Any, label: str) -> Any:
        return _require_one(_list_keys(session, label, self._id_of(label)), "AES", label)

    def _find_signing_half(self, session: Any, label: str, half: Any) -> Any:
        template = {
            pkcs11.Attribute.CLASS: half,
            pkcs11.Attribute.KEY_TYPE: pkcs11.KeyType.EC_EDWARDS,
            pkcs11.Attribute.TOKEN: True,
        }
        kind = "private Edwards" if half == pkcs11.ObjectClass.PRIVATE_KEY else "public Edwards"
        return _require_one(
            _find_objects(session, template, label, self._id_of(label)), kind, label
        )

    def _id_of(self, label: str) -> bytes | None:
        return self._where.id if label == self._where.object else None


def _list_keys(session: Any, label: str | None, id_: bytes | None = None) -> list[Any]:
    template: dict[Any, Any] = {
        pkcs11.Attribute.CLASS: pkcs11.ObjectClass.SECRET_KEY,
        pkcs11.Attribute.KEY_TYPE: pkcs11.KeyType.AES,
        pkcs11.Attribute.TOKEN: True,
    }
    return _find_objects(session, template, label, id_)


def _find_objects(
    session: Any, template: dict[Any, Any], label: str | None, id_: bytes | None
) -> list[Any]:
    if label == "":
        return []  # an empty label would match all keys without a label
    if label is not None:
        template = {**template, pkcs11.Attribute.LABEL: label}
    if id_ is not None:
        template = {**template, pkcs11.Attribute.ID: id_}
    return list(session.get_objects(template))


def _require_one(keys: list[Any], kind: str, label: str) -> Any:
    if not keys:
        raise KeyNotFoundError(f"the token has no {kind} key with the label {label}")
    if len(keys) > 1:
        raise KeyRetrievalError(
            f"the token has {len(keys)} {kind} keys with the label {label}; add id= to the URI, "
            "or change the labels of all but one"
        )
    return keys[0]


def _decode_point(point: bytes, label: str) -> bytes:
    """Return the 32 bytes of a public key, which tokens store with or without a DER header."""
    raw = point.removeprefix(b"\x04\x20") if len(point) == 34 else point
    if len(raw) != 32:
        raise KeyRetrievalError(
            f"signing key {label} is not on the curve edwards25519, or its CKA_EC_POINT has an "
            "unknown form"
        )
    return raw


def _check_enabled(key: Any, permission: Any, kind: str = "master key") -> None:
    if not key[permission]:
        raise KeyDisabledError(f"{kind} {key.label} is disabled: it lacks CKA_{permission.name}")


def _encrypt(master: Any, key: bytes, aad: bytes) -> bytes:
    # modcrypt generates the nonce (NIST SP 800-38D 8.2.2). A token may insist on its own and
    # overwrite this one, so the nonce is read from the parameters afterwards.
    parameters = pkcs11.GCMParams(os.urandom(NONCE_SIZE), aad, TAG_SIZE * 8)
    encrypted = master.encrypt(key, mechanism=pkcs11.Mechanism.AES_GCM, mechanism_param=parameters)
    return bytes(parameters.nonce) + bytes(encrypted)


def _decrypt(master: Any, encrypted: bytes, aad: bytes) -> bytes:
    parameters = pkcs11.GCMParams(encrypted[:NONCE_SIZE], aad, TAG_SIZE * 8)
    key = master.decrypt(
        encrypted[NONCE_SIZE:], mechanism=pkcs11.Mechanism.AES_GCM, mechanism_param=parameters
    )
    return bytes(key)


def _make_mismatch_error(master_key_id: str) -> KeyMaterialError:
    return KeyMaterialError(
        f"the key does not unwrap under master key {master_key_id}: altered bytes, another master "
        "key or other AAD"
    )
