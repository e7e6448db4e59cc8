"""Keys on a PKCS#11 token (HSM, smart card, SoftHSM), by the extra `pkcs11`.

    pkcs11:token=lake;object=NAME?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=env:PIN

The URI is RFC 7512's. `token`, `manufacturer`, `model`, `serial` and `slot-id` choose the token,
`object` the default master key, `id` one of several keys of that label. The module is
`module-path`, or the environment's MODCRYPT_PKCS11_MODULE; the PIN stands in `pin-source`
(file:PATH or env:NAME), or in MODCRYPT_PKCS11_PIN. A URI never holds it.

A master key is an AES key that the token keeps to itself; its id is its label (CKA_LABEL). Keys are
wrapped by the token's AES-GCM, in the form of parquet-java's local wrapping:

    {"masterKeyVersion":"NO_VERSION","encryptedKey":base64( nonce (12) | ciphertext | tag (16) )}
    AAD: the master key id in UTF-8; with AAD of the caller's: master key id | 00 | AAD

PKCS#11 logs in an application, not a session: where this process is logged in to the token
already, no PIN is asked for; and who logs out hides the keys from all others in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from modcrypt.aead import TAG_SIZE
from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.fork_safety import fork_safe
from modcrypt.keys import Secret
from modcrypt.kms.client import Capabilities, MasterKey
from modcrypt.kms.local_wrap import local_aad, parse_wrapped, wrapped_text
from modcrypt.kms.private_files import read_secret
from modcrypt.kms.uris import missing_extra
from modcrypt.tracebacks import hide_frames

try:
    import pkcs11
    from pkcs11 import exceptions as token_errors
except ModuleNotFoundError as error:
    raise missing_extra("PKCS#11", "pkcs11") from error

__all__ = ["Pkcs11Kms", "Pkcs11Uri", "open_pkcs11", "parse_pkcs11_uri"]

NONCE_SIZE = 12

MAX_PIN = 255
"""Longest PIN that is taken from a file, in bytes."""

_PATH_NAMES = {"token", "manufacturer", "model", "serial", "slot-id", "object", "id", "type"}
_TRAITS = {"token": "label", "manufacturer": "manufacturer_id", "model": "model"}
_QUERY_NAMES = {"module-path", "pin-source"}

_DENIED = (
    token_errors.PinIncorrect,
    token_errors.PinInvalid,
    token_errors.PinLenRange,
    token_errors.PinExpired,
    token_errors.PinLocked,
    token_errors.UserPinNotInitialized,
    token_errors.AnotherUserAlreadyLoggedIn,
    token_errors.UserTooManyTypes,
    token_errors.FunctionRejected,
)
_UNAVAILABLE = (
    token_errors.DeviceError,
    token_errors.DeviceMemory,
    token_errors.DeviceRemoved,
    token_errors.FunctionFailed,
    token_errors.GeneralError,
    token_errors.HostMemory,
    token_errors.SessionClosed,
    token_errors.SessionCount,
    token_errors.SessionHandleInvalid,
    token_errors.SlotIDInvalid,
    token_errors.TokenNotPresent,
    token_errors.TokenNotRecognised,
    token_errors.UserNotLoggedIn,
)
_DOES_NOT_DECRYPT = (token_errors.EncryptedDataInvalid, token_errors.EncryptedDataLenRange)
# Tokens say these of a wrong tag as well as of their own failures: SoftHSM the first.
_AMBIGUOUS = (token_errors.GeneralError, token_errors.FunctionFailed)


# --- the URI -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pkcs11Uri:
    """What a PKCS#11 URI says; None for what it doesn't.

    Attributes:
        token: how the token must describe itself: label, manufacturer_id, model, serial, slot_id.
        object: label of the default master key.
        id: CKA_ID that it must have.
        module: path of the PKCS#11 module.
        pin_source: where the PIN is.
    """

    token: Mapping[str, str | bytes | int]
    object: str | None
    id: bytes | None
    module: str | None
    pin_source: str | None


def parse_pkcs11_uri(uri: str) -> Pkcs11Uri:
    """Read a PKCS#11 URI (RFC 7512): attributes stand between `;`, the query's between `&`.

    Raises:
        ValueError: malformed, or attributes that aren't known; RFC 7512 has more, but one that is
            passed over would let in other tokens than the URI means.
    """
    scheme, _, rest = uri.partition(":")
    if scheme != "pkcs11":
        raise ValueError("a PKCS#11 URI starts with pkcs11:")
    path, _, query = rest.partition("?")
    values = _attributes(path, ";", _PATH_NAMES)
    asked = _attributes(query, "&", _QUERY_NAMES)
    text = {name: _text(name, value) for name, value in values.items() if name != "id"}
    if text.get("type", "secret-key") != "secret-key":
        raise ValueError("PKCS#11 URI: master keys are of type=secret-key")
    if "id" in values and "object" not in values:
        raise ValueError("PKCS#11 URI: keys go by label; an id needs an object beside it")
    return Pkcs11Uri(
        token=_token_traits(text),
        object=text.get("object"),
        id=values.get("id"),
        module=_text("module-path", asked["module-path"]) if "module-path" in asked else None,
        pin_source=_text("pin-source", asked["pin-source"]) if "pin-source" in asked else None,
    )


def _token_traits(text: Mapping[str, str]) -> dict[str, str | bytes | int]:
    traits: dict[str, str | bytes | int] = {}
    for name, trait in (
        ("token", "label"),
        ("manufacturer", "manufacturer_id"),
        ("model", "model"),
    ):
        if name in text:
            traits[trait] = text[name]
    if "serial" in text:
        traits["serial"] = text["serial"].encode()
    if "slot-id" in text:
        if not re.fullmatch(r"[0-9]{1,20}", text["slot-id"]):
            raise ValueError("PKCS#11 URI: slot-id is a decimal number")
        traits["slot_id"] = int(text["slot-id"])
    return traits


def _attributes(part: str, separator: str, allowed: set[str]) -> dict[str, bytes]:
    """Split one half of the URI into names and decoded values; no message repeats a value."""
    found: dict[str, bytes] = {}
    for attribute in part.split(separator) if part else []:
        name, equals, value = attribute.partition("=")
        if name == "pin-value":
            raise ValueError(
                "PKCS#11 URI: no PIN in a URI, which lands in logs, process lists and histories: "
                "drop pin-value, and name pin-source=file:PATH or env:NAME"
            )
        if name == "module-name":
            raise ValueError(
                "PKCS#11 URI: a module-name is whatever the loader finds first by that name: give "
                "module-path=/absolute/path"
            )
        if name not in allowed or not equals:
            raise ValueError(
                f"PKCS#11 URI: between {separator!r} stand NAME=VALUE with a NAME of "
                f"{', '.join(sorted(allowed))}; number {len(found) + 1} is none"
            )
        if name in found:
            raise ValueError(f"PKCS#11 URI: {name} is there twice")
        if re.search(r"%(?![0-9A-Fa-f]{2})", value):
            raise ValueError(f"PKCS#11 URI: {name} has a % without two hex digits after it")
        found[name] = urllib.parse.unquote_to_bytes(value)
    return found


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"PKCS#11 URI: {name} is no UTF-8") from None


# --- opening -------------------------------------------------------------------------------------


@hide_frames
def open_pkcs11(uri: str, *, pin: str | Callable[[], str] | None = None) -> Pkcs11Kms:
    """Give the client of a PKCS#11 token, logged in.

    Args:
        uri: as at the head of this room.
        pin: the PIN, or what gives it; asked for at each login: now, and after the token was away.

    Raises:
        ValueError: a URI that is none, or no module, or no PIN.
        KeyNotFoundError: no such token.
        KeyAccessDeniedError: the token refuses the PIN.
        KeyRetrievalError: several such tokens, or a module that can't be loaded.
        KmsUnavailableError: the token fails.
        OSError: the PIN's file can't be read.
    """
    where = parse_pkcs11_uri(uri)
    module = where.module or os.environ.get("MODCRYPT_PKCS11_MODULE", "")
    if not os.path.isabs(module):
        raise ValueError(
            "a PKCS#11 module is named by its absolute path, in the URI's module-path or in "
            "MODCRYPT_PKCS11_MODULE"
        )
    return Pkcs11Kms(where, module, _pin_giver(pin, where.pin_source))


def _pin_giver(pin: str | Callable[[], str] | None, source: str | None) -> Callable[[], str]:
    """Say where the PIN comes from; what is there is read at each login."""
    if callable(pin):
        return pin
    if pin is not None:
        return Secret(pin)
    kind, _, name = (source or "env:MODCRYPT_PKCS11_PIN").partition(":")
    if kind == "file" and name:
        return lambda: _pin_in_file(name)
    if kind == "env" and name:
        return lambda: os.environ.get(name, "")
    raise ValueError("PKCS#11 URI: pin-source is file:PATH or env:NAME")


def _pin_in_file(path: str) -> str:
    pin = read_secret(path, MAX_PIN + 3, "PIN file").rstrip(b"\r\n")
    if len(pin) > MAX_PIN:
        raise ValueError(f"the PIN's file {path} holds more than {MAX_PIN} bytes")
    try:
        return pin.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the PIN's file {path} holds no UTF-8") from None


def _checked_pin(pin: object) -> str:
    if not isinstance(pin, str):
        raise TypeError(f"a PIN is a str, not {type(pin).__name__}")
    if not pin:
        raise ValueError(
            "a PKCS#11 token needs a PIN: pin=, the URI's pin-source, or MODCRYPT_PKCS11_PIN"
        )
    if not pin.isprintable():  # nor half a character, of which the error would repeat it all
        raise ValueError("the PIN for a PKCS#11 token holds characters that no one can type")
    return pin


_started: dict[str, int] = {}  # modules, and the processes that they were started in
_lock = fork_safe(threading.Lock())
"""One lock for all clients: python-pkcs11 starts modules for one thread at a time (C_Initialize
without arguments), and releases the interpreter's lock while it calls them."""


def _library(module: str) -> Any:
    """Load a module; after a fork, start it anew in the child, as PKCS#11 asks for."""
    try:
        library = pkcs11.lib(module)
        if _started.setdefault(module, os.getpid()) != os.getpid():
            with contextlib.suppress(token_errors.PKCS11Error):
                library.finalize()  # some have noticed the fork, and refuse
            library.initialize()
            _started[module] = os.getpid()
    except token_errors.PKCS11Error as error:
        raise KeyRetrievalError(f"PKCS#11 module {module} can't be loaded") from error
    return library


def _token(module: str, traits: Mapping[str, str | bytes | int]) -> Any:
    found = [
        token
        for token in _library(module).get_tokens(token_flags=pkcs11.TokenFlag.TOKEN_INITIALIZED)
        if all(
            getattr(token.slot if trait == "slot_id" else token, trait) == value
            for trait, value in traits.items()
        )
    ]
    if not found:
        raise KeyNotFoundError(f"PKCS#11 module {module} has no token that the URI describes")
    if len(found) > 1:
        labels = ", ".join(
            sorted(f"{token.label} ({token.serial.decode(errors='replace')})" for token in found)
        )
        raise KeyRetrievalError(
            f"the PKCS#11 URI describes several tokens: {labels}; add token= or serial="
        )
    return found[0]


# --- the client ----------------------------------------------------------------------------------


class Pkcs11Kms:
    """A PKCS#11 token as a key service, and the keeper of its master keys.

    Keys on a token have no versions: to rotate, make a key with another label, and have files
    wrapped under that.
    """

    capabilities = Capabilities(aad=True)

    def __init__(self, where: Pkcs11Uri, module: str, pin: Callable[[], str]) -> None:
        self._where = where
        self._module = module
        self._pin = pin
        self._refused = False
        self._process = os.getpid()
        self._seen = False
        self._session: Any = None
        self.default_key = where.object
        with self._at_token("the PKCS#11 token"):
            pass

    def __repr__(self) -> str:
        return f"Pkcs11Kms({self._module})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key service's client can't be pickled: pass its URI instead")

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key; see `KmsClient.wrap`."""
        with self._at_token(f"master key {master_key_id}") as session:
            master = self._found(session, master_key_id)
            _check_enabled(master, pkcs11.Attribute.ENCRYPT)
            sealed = _seal(master, key, local_aad(master_key_id, aad))
        return wrapped_text(None, sealed)

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key; see `KmsClient.unwrap`."""
        version, sealed = parse_wrapped(wrapped)
        if version is not None:
            raise KeyMaterialError("keys on a PKCS#11 token have no versions, this wrapped key has")
        with self._at_token(f"master key {master_key_id}") as session:
            master = self._found(session, master_key_id)
            _check_enabled(master, pkcs11.Attribute.DECRYPT)
            try:
                return _open(master, sealed, local_aad(master_key_id, aad))
            except _DOES_NOT_DECRYPT as error:
                raise _no_fit(master_key_id) from error
            except _AMBIGUOUS as error:
                if master[pkcs11.Attribute.ENCRYPT]:
                    _seal(master, bytes(16), b"")  # fails, too, if it is the token that fails
                raise _no_fit(master_key_id) from error

    def create_key(self, master_key_id: str) -> MasterKey:
        """Make an AES key of 256 bits that the token never gives out.

        Raises:
            ValueError: there is a key with this label, or the label is empty.
        """
        with self._at_token(f"master key {master_key_id}", writing=True) as session:
            if not master_key_id or _keys(session, master_key_id):
                raise ValueError(f"the token has a master key {master_key_id!r}, or can't have it")
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
        """Give all AES keys of the token that have a label, by label."""
        with self._at_token("the PKCS#11 token") as session:
            found = [_described(key) for key in _keys(session, None) if key.label]
        return sorted(found, key=lambda key: key.id)

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Refuse: keys on a token have no versions.

        Raises:
            KeyRetrievalError: always; it says what to do instead.
        """
        raise KeyRetrievalError(
            f"master key {master_key_id}: keys on a PKCS#11 token have no versions; make one with "
            "another label, and have the files wrapped under that"
        )

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Take the key's leave to encrypt and decrypt (CKA_ENCRYPT, CKA_DECRYPT).

        Who may log in can give it back; `destroy_key` is for good.

        Raises:
            KeyRetrievalError: a version is named, or the token lets nothing of a key be changed.
        """
        if version is not None:
            raise KeyRetrievalError(
                f"master key {master_key_id}: keys on a PKCS#11 token have no versions; disable "
                "the whole key"
            )
        with self._at_token(f"master key {master_key_id}", writing=True) as session:
            key = self._found(session, master_key_id)
            try:
                key[pkcs11.Attribute.DECRYPT] = False
                key[pkcs11.Attribute.ENCRYPT] = False
            except token_errors.PKCS11Error as error:
                raise KeyRetrievalError(
                    f"master key {master_key_id}: the token can't disable it; destroy_key would "
                    "take it away for good"
                ) from error
        return MasterKey(id=master_key_id, enabled=False)

    def destroy_key(self, master_key_id: str) -> None:
        """Destroy a key, and with it all that is wrapped under it."""
        with self._at_token(f"master key {master_key_id}", writing=True) as session:
            self._found(session, master_key_id).destroy()

    def _found(self, session: Any, label: str) -> Any:
        keys = _keys(session, label, self._where.id if label == self._where.object else None)
        if not keys:
            raise KeyNotFoundError(f"the token has no AES key with the label {label}")
        if len(keys) > 1:
            raise KeyRetrievalError(
                f"the token has {len(keys)} AES keys with the label {label}, and no one says which "
                "is meant; give all but one another label"
            )
        return keys[0]

    @contextlib.contextmanager
    def _at_token(self, what: str, writing: bool = False) -> Iterator[Any]:
        """Give a session, to one thread at a time; turn the token's errors into ours."""
        if os.getpid() != self._process:
            raise KeyRetrievalError(
                "this PKCS#11 client was opened before a fork, over which no session lasts; open "
                "it again in this process"
            )
        with _lock:
            try:
                if self._session is None:
                    self._session = self._login()
                if writing:
                    with self._session.token.open(rw=True) as session:  # logged in like the other
                        yield session
                else:
                    yield self._session
            except ModcryptError:
                raise
            except token_errors.PKCS11Error as error:
                raise self._failure(error, what) from error

    @hide_frames
    def _login(self) -> Any:
        if self._refused:  # one more wrong PIN, for every key of every file, would lock the token
            raise KeyAccessDeniedError("the token has refused the PIN; open it anew with another")
        try:
            token = _token(self._module, self._where.token)
        except KeyNotFoundError as error:
            if self._seen:
                raise KmsUnavailableError("the PKCS#11 token is away") from error
            raise
        self._seen = True
        pin = _checked_pin(self._pin())
        try:
            return token.open(user_pin=pin)
        except token_errors.UserAlreadyLoggedIn:
            return token.open()
        except _DENIED:
            self._refused = True
            raise

    def _failure(self, error: token_errors.PKCS11Error, what: str) -> KeyRetrievalError:
        said = f"{what}: the token says {type(error).__name__}"
        if isinstance(error, _DENIED):
            return KeyAccessDeniedError(said)
        if isinstance(error, token_errors.TokenWriteProtected | token_errors.SessionReadOnly):
            return KeyAccessDeniedError(said)
        self._session = None  # the next attempt logs in anew
        if isinstance(error, _UNAVAILABLE):
            return KmsUnavailableError(said)
        return KeyRetrievalError(f"{said} {error}".rstrip())


# --- keys and their use --------------------------------------------------------------------------


def _keys(session: Any, label: str | None, id_: bytes | None = None) -> list[Any]:
    template: dict[Any, Any] = {
        pkcs11.Attribute.CLASS: pkcs11.ObjectClass.SECRET_KEY,
        pkcs11.Attribute.KEY_TYPE: pkcs11.KeyType.AES,
        pkcs11.Attribute.TOKEN: True,
    }
    if label == "":
        return []  # would be all keys without one
    if label is not None:
        template[pkcs11.Attribute.LABEL] = label
    if id_ is not None:
        template[pkcs11.Attribute.ID] = id_
    return list(session.get_objects(template))


def _described(key: Any) -> MasterKey:
    able = key[pkcs11.Attribute.ENCRYPT] and key[pkcs11.Attribute.DECRYPT]
    return MasterKey(id=key.label, enabled=bool(able))


def _check_enabled(key: Any, leave: Any) -> None:
    if not key[leave]:
        raise KeyDisabledError(f"master key {key.label} is disabled: it has no CKA_{leave.name}")


def _seal(master: Any, key: bytes, aad: bytes) -> bytes:
    # The nonce is drawn here (NIST SP 800-38D 8.2.2); a token that insists on its own writes it
    # over this one, so it is taken from the parameters afterwards.
    parameters = pkcs11.GCMParams(os.urandom(NONCE_SIZE), aad, TAG_SIZE * 8)
    sealed = master.encrypt(key, mechanism=pkcs11.Mechanism.AES_GCM, mechanism_param=parameters)
    return bytes(parameters.nonce) + bytes(sealed)


def _open(master: Any, sealed: bytes, aad: bytes) -> bytes:
    parameters = pkcs11.GCMParams(sealed[:NONCE_SIZE], aad, TAG_SIZE * 8)
    opened = master.decrypt(
        sealed[NONCE_SIZE:], mechanism=pkcs11.Mechanism.AES_GCM, mechanism_param=parameters
    )
    return bytes(opened)


def _no_fit(master_key_id: str) -> KeyMaterialError:
    return KeyMaterialError(
        f"the key does not unwrap under master key {master_key_id}: altered bytes, another master "
        "key or other AAD"
    )
