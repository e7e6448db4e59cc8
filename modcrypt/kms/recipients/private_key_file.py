"""The format of files of private keys: identities, and signing keys.

    {"format": "modcrypt-identity", "version": 1, "recipient": "modcrypt-recipient:...",
     "protection": "scrypt", "scrypt": {...}, "sealed": "..."}

The passphrase encrypts the private key as `passphrase_encryption` describes. Without one,
`"protection"` is `"none"` and `"key"`, the private key in base64, takes the place of the last two
members. The format names the member with the public key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    TagError,
)
from modcrypt.io.private_files import check_owner, check_private
from modcrypt.keys import Secret
from modcrypt.keys.lookalikes import is_public_key, show_name
from modcrypt.keys.sources import read_key_file
from modcrypt.kms.key_references import PROMPT, read_descriptor
from modcrypt.kms.keyring.keyring_file import create
from modcrypt.kms.keyring.keyring_passphrase import (
    Passphrase,
    ask_passphrase,
    encode_passphrase,
    make_asker,
    make_reference_asker,
)
from modcrypt.kms.keyring.passphrase_encryption import (
    EncryptedPart,
    PassphraseKey,
    encode_encrypted,
    encode_plaintext,
    split_document,
)
from modcrypt.pkmt1.strict_json import decode_base64, encode_base64, strict_json
from modcrypt.runtime.tracebacks import hide_frames

P = TypeVar("P")

VERSION = 1

MAX_PRIVATE_FILE = 16 << 10
"""Size limit of a file of a private key in bytes: a hybrid identity has 2.2 KB."""

SCRYPT_COST = 2**17  # cost of scrypt for new files, as for new keyrings: 128 MiB and half a second


@dataclass(frozen=True, slots=True)
class PrivateKeyFormat:
    """A kind of file."""

    name: str  # value of `format`
    public: str  # name of the member with the public key
    what: str  # word for messages


@dataclass(frozen=True, slots=True)
class PrivateText(os.PathLike[str]):
    """The content of a private key's file that a variable or descriptor holds, and its name."""

    reference: str
    data: Secret[bytes]

    def __fspath__(self) -> str:
        return self.reference


@hide_frames
def save_private_key(
    path: str | os.PathLike[str], kind: PrivateKeyFormat, public: str, key: bytes,
    passphrase: Passphrase | None,
) -> None:  # fmt: skip
    """Write a new file of mode 0600, encrypted if there is a passphrase."""
    ask = make_asker(passphrase)
    header = {"format": kind.name, "version": VERSION, kind.public: public}
    if ask is None:
        data = encode_plaintext(header, "key", encode_base64(key))
    else:
        passphrase_key = PassphraseKey.new(encode_passphrase(ask()), SCRYPT_COST)
        data = encode_encrypted(header, key, passphrase_key)
    create(os.fspath(path), data)


@hide_frames
def load_private_key(
    path: str | os.PathLike[str], kind: PrivateKeyFormat, passphrase: Passphrase | None
) -> tuple[str, Secret[bytes]]:
    """Return the line of the public key and the private key in a file; raise as `Identity.load`."""
    where, ask = os.path.expanduser(path), make_asker(passphrase)
    name, status = f"{kind.what} {show_name(where)}", None
    if isinstance(path, PrivateText):
        data = path.data()
    else:
        data, status = read_key_file(where, f"the {name}", MAX_PRIVATE_FILE)
    try:
        if status is not None:
            _check_private_file(data, status, kind.what)
        public, key = decode_private_key(data, kind)
        if isinstance(key, EncryptedPart):
            if ask is None:
                raise KeyAccessDeniedError("it is encrypted; pass its passphrase")
            return public, _decrypt(key, ask())
        if ask is not None:
            raise KeyRetrievalError(
                "a passphrase was passed, but the file is in plaintext and may have replaced an "
                "encrypted one; if it has not, pass no passphrase"
            )
        return public, Secret(key)
    except KeyRetrievalError as error:
        error.args = (f"{name}: {error}",)
        raise


def load_with_reference(
    load: Callable[[str | PrivateText, Passphrase | None], P], key: str, reference: str | None,
    hint: str,
) -> P:  # fmt: skip
    """Return the key that `load` reads from a reference, with the passphrase of another one.

    `hint` says how to name a reference, for a prompt without a terminal.
    """
    path = _read_text(key)
    if reference is None:
        return load(path, None)
    if reference != PROMPT:
        return load(path, make_reference_asker(reference))
    with suppress(KeyAccessDeniedError):  # a plaintext file needs no question
        return load(path, None)
    return load(path, partial(ask_passphrase, show_name(os.fspath(path)), hint=hint))


@hide_frames
def _read_text(reference: str) -> str | PrivateText:
    """Return the path in `file:PATH`; read `env:NAME` and `fd:N` now, once."""
    kind, _, where = reference.partition(":")
    if kind == "file":
        return where
    if kind == "fd":
        return PrivateText(reference, Secret(read_descriptor(int(where), "key", MAX_PRIVATE_FILE)))
    if not (data := os.environb.get(os.fsencode(where))):
        raise KeyNotFoundError(f"the environment variable {show_name(where)} is not set")
    return PrivateText(reference, Secret(data))


@hide_frames
def decode_private_key(data: bytes, kind: PrivateKeyFormat) -> tuple[str, EncryptedPart | bytes]:
    """Return the line of the public key, and the private key, which a passphrase may encrypt."""
    document = strict_json(data) if len(data) <= MAX_PRIVATE_FILE else None
    if not isinstance(document, dict) or document.get("format") != kind.name:
        raise KeyMaterialError(f"it is no {kind.what}: the format is not {kind.name}")
    if document.get("version") != VERSION or document["version"] is True:
        raise KeyMaterialError(f"the version of its format is not {VERSION}")
    names = "format", "version", kind.public
    key = split_document(document, "key", names, "the private key")
    public = document[kind.public]
    if not isinstance(public, str):
        raise KeyMaterialError("the public key is not a string")
    return public, key if isinstance(key, EncryptedPart) else decode_base64(key, "the private key")


@hide_frames
def _decrypt(key: EncryptedPart, passphrase: str | bytes) -> Secret[bytes]:
    try:
        return Secret(key.decrypt(key.scrypt.derive(encode_passphrase(passphrase))))
    except TagError:
        raise KeyAccessDeniedError("wrong passphrase, or the file was altered") from None
    except ValueError as error:
        raise KeyAccessDeniedError(str(error)) from None


@hide_frames
def _check_private_file(data: bytes, status: os.stat_result, what: str) -> None:
    """Raise unless only its owner can read a file, and it may contain a private key."""
    check_owner(status, "the file")
    if is_public_key(data):
        raise KeyMaterialError("it is a public key; name the file of the private key")
    check_private(status, "it contains a private key")
    if not data.lstrip().startswith(b"{"):
        kind = "signing" if "signing" in what else "recipient"
        raise KeyMaterialError(
            f"the file contains no {what}; modcrypt keys generate --kind {kind} makes one"
        )
