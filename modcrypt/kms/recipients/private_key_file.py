"""The format of files of private keys: identities, and signing keys.

    {"format": "modcrypt-identity", "version": 1, "recipient": "modcrypt-recipient:...",
     "protection": "scrypt", "scrypt": {"n": 131072, "r": 8, "p": 1, "salt": "..."},
     "sealed": base64( nonce (12) | ciphertext | tag (16) )}

As in an encrypted keyring, AES-256-GCM encrypts the private key under the key that scrypt (RFC
7914) derives from the passphrase; the AAD is the other members as compact JSON with sorted names.
Without a passphrase, `"protection"` is `"none"` and `"key"`, the private key in base64, takes the
place of the last two members. The format names the member with the public key.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    TagError,
)
from modcrypt.io.private_files import check_owner, check_private
from modcrypt.keys import Secret
from modcrypt.keys.lookalikes import show_name
from modcrypt.kms.keyring.keyring_document import Scrypt, Seal
from modcrypt.kms.keyring.keyring_file import create
from modcrypt.kms.keyring.keyring_passphrase import (
    PROMPT,
    Passphrase,
    ask_passphrase,
    encode_passphrase,
    make_asker,
    make_reference_asker,
)
from modcrypt.pkmt1.strict_json import decode_base64, require_members, strict_json
from modcrypt.runtime.tracebacks import hide_frames

P = TypeVar("P")

VERSION = 1

MAX_PRIVATE_FILE = 16 << 10
"""Size limit of a file of a private key in bytes: a hybrid identity has 2.2 KB."""

SCRYPT_COST = 2**17
"""Cost of scrypt for new files, as for new keyrings: 128 MiB and half a second."""

_CONTENT = {"none": ("key",), "scrypt": ("scrypt", "sealed")}


@dataclass(frozen=True, slots=True)
class PrivateKeyFormat:
    """A kind of file.

    Attributes:
        name: Value of `format`.
        public: Name of the member with the public key.
        what: Word for messages.
    """

    name: str
    public: str
    what: str


@dataclass(frozen=True, slots=True)
class PrivateKeyDocument:
    """The content of a file that is readable without a passphrase.

    Attributes:
        public: Line of the public key.
        header: Members that are authenticated with the encrypted key.
        scrypt: Parameters of the passphrase's derivation; None without a passphrase.
        key: Encrypted private key, or the private key itself.
    """

    public: str
    header: dict[str, Any]
    scrypt: Scrypt | None
    key: bytes = field(repr=False)

    @hide_frames
    def decrypt(self, passphrase: bytes) -> Secret[bytes]:
        """Decrypt the private key.

        Raises:
            KeyAccessDeniedError: The passphrase is wrong, or the file was altered.
        """
        assert self.scrypt is not None
        try:
            plain = self.scrypt.cipher(passphrase).open_block(self.key, _encode_aad(self.header))
        except TagError:
            raise KeyAccessDeniedError("wrong passphrase, or the file was altered") from None
        return Secret(bytes(plain))


@hide_frames
def save_private_key(
    path: str | os.PathLike[str], kind: PrivateKeyFormat, public: str, key: bytes,
    passphrase: Passphrase | None,
) -> None:  # fmt: skip
    """Write a new file of mode 0600, encrypted if there is a passphrase.

    Raises:
        FileExistsError: The file exists.
    """
    ask = make_asker(passphrase)
    encoded = None if ask is None else encode_passphrase(ask())
    create(os.fspath(path), _encode(kind, public, key, encoded))


@hide_frames
def load_private_key(
    path: str | os.PathLike[str], kind: PrivateKeyFormat, passphrase: Passphrase | None
) -> tuple[str, Secret[bytes]]:
    """Return the line of the public key and the private key in a file; raise as `Identity.load`."""
    where, ask = os.path.expanduser(path), make_asker(passphrase)
    try:
        document = decode_private_key(_read_private(where, kind.what), kind)
        if document.scrypt is None and ask is not None:
            raise KeyRetrievalError(
                "a passphrase was passed, but the file is in plaintext and may have replaced an "
                "encrypted one; if it has not, pass no passphrase"
            )
        if document.scrypt is None:
            return document.public, Secret(document.key)
        if ask is None:
            raise KeyAccessDeniedError("it is encrypted; pass its passphrase")
        return document.public, document.decrypt(_encode_answer(ask()))
    except KeyRetrievalError as error:
        if not isinstance(error, KeyNotFoundError):
            error.args = (f"{kind.what} {show_name(where)}: {error}",)
        raise


def load_with_reference(
    load: Callable[[str, Passphrase | None], P], path: str, reference: str | None, hint: str
) -> P:
    """Return what `load` reads from a file, with the passphrase that a reference names.

    `hint` says how to name a reference, for a prompt without a terminal.
    """
    if reference is None:
        return load(path, None)
    if reference != PROMPT:
        return load(path, make_reference_asker(reference))
    with suppress(KeyAccessDeniedError):  # a plaintext file needs no question
        return load(path, None)
    return load(path, partial(ask_passphrase, show_name(path), hint=hint))


@hide_frames
def decode_private_key(data: bytes, kind: PrivateKeyFormat) -> PrivateKeyDocument:
    """Parse a file; raise KeyMaterialError if it is malformed."""
    document = strict_json(data) if len(data) <= MAX_PRIVATE_FILE else None
    if not isinstance(document, dict) or document.get("format") != kind.name:
        raise KeyMaterialError(f"it is no {kind.what}: the format is not {kind.name}")
    if document.get("version") != VERSION or document["version"] is True:
        raise KeyMaterialError(f"the version of its format is not {VERSION}")
    content = _CONTENT.get(str(document.get("protection")))
    if content is None:
        raise KeyMaterialError("unknown value of protection")
    require_members(document, "format", "version", kind.public, "protection", *content)
    public = document[kind.public]
    if not isinstance(public, str):
        raise KeyMaterialError("the public key is not a string")
    key = decode_base64(document.pop(content[-1]), "the private key")
    scrypt = Scrypt.parse(document["scrypt"]) if "scrypt" in document else None
    return PrivateKeyDocument(public, document, scrypt, key)


@hide_frames
def _encode(kind: PrivateKeyFormat, public: str, key: bytes, passphrase: bytes | None) -> bytes:
    header: dict[str, Any] = {
        "format": kind.name, "version": VERSION, kind.public: public,
        "protection": "none" if passphrase is None else "scrypt",
    }  # fmt: skip
    if passphrase is None:
        return _format({**header, "key": base64.b64encode(key).decode()})
    seal = Seal.new(passphrase, SCRYPT_COST)
    header["scrypt"] = seal.scrypt.encode()
    sealed = seal.cipher.seal_block(key, _encode_aad(header))
    return _format({**header, "sealed": base64.b64encode(sealed).decode()})


@hide_frames
def _encode_answer(passphrase: str | bytes) -> bytes:
    try:
        return encode_passphrase(passphrase)
    except ValueError as error:
        raise KeyAccessDeniedError(str(error)) from None


@hide_frames
def _read_private(path: str, what: str) -> bytes:
    """Return the content of a file that only its owner may be able to read."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_PRIVATE_FILE + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise KeyNotFoundError(f"the {what} {show_name(path)} does not exist") from None
    except PermissionError:
        raise KeyAccessDeniedError("it may not be read") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a file name"
        raise KeyMaterialError(reason) from None
    check_owner(status, "the file")
    check_private(status, "it contains a private key")
    return data


def _format(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode() + b"\n"


def _encode_aad(header: dict[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
