"""The forms of `decryption=` and `encryption=`: one rule for every function that takes them.

| form                            | to decrypt                  | to encrypt                    |
|---------------------------------|-----------------------------|-------------------------------|
| `Key`, its bytes or hex text    | the footer key              | the only key                  |
| `Identity`, or several          | opens what it may           | no: pass its recipient        |
| `Recipient`, or several         | no: pass an identity        | each opens the whole file     |
| `Policy`, or its path           | its key service and demands | its key service and columns   |
| `Settings`, a dataset of a lake | as they say                 | as they say                   |
| properties                      | as they are                 | as they are                   |

`modcrypt.keys.wrap_key` has made keys of bytes and text before, so nothing here is a raw key.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

from modcrypt.keys import Key
from modcrypt.kms.policy import Policy
from modcrypt.kms.recipients.identity import Identity
from modcrypt.kms.recipients.identity_retriever import IdentityRetriever
from modcrypt.kms.recipients.recipient import Recipient
from modcrypt.kms.recipients.recipient_encryption import RecipientEncryption
from modcrypt.kms.settings import Settings
from modcrypt.parquet.crypto.properties import (
    Encryption,
    FileDecryptionProperties,
    FileEncryptionProperties,
    KeySettings,
)

T = TypeVar("T")

_COMMON = "a Key, its bytes or hex text, a Policy or its path, Settings, a dataset of a lake"


def make_decryption(given: object) -> FileDecryptionProperties:
    """Return the properties that decrypt files, resolving keys.

    Raises:
        TypeError: The form is unknown, or only encrypts.
        ValueError, OSError: A policy is invalid or cannot be read, or names no key service.
        KeyRetrievalError: As `Settings.decryption`.
    """
    given = open_policy(given)
    if isinstance(given, KeySettings):
        return given.decryption()
    if isinstance(given, Key):
        return FileDecryptionProperties(footer_key=given)
    if identities := _list_objects(given, Identity):
        return FileDecryptionProperties(key_retriever=IdentityRetriever(identities))
    hint = ""
    if _list_objects(given, Recipient):
        hint = "; a Recipient only encrypts: pass its Identity, as from Identity.load"
    elif isinstance(given, FileEncryptionProperties):
        hint = "; pass FileDecryptionProperties with its keys"
    elif hasattr(given, "decryption"):
        hint = "; pass KeyTools.decryption(policy)"
    raise TypeError(
        f"decryption must be {_COMMON}, an Identity or FileDecryptionProperties, not "
        f"{_name_type(given)}{hint}"
    )


def make_encryption(given: object) -> Encryption:
    """Return the properties that encrypt files, resolving keys.

    Raises:
        TypeError: The form is unknown, or only decrypts.
        ValueError, OSError, KeyRetrievalError: As `make_decryption`.
    """
    given = open_policy(given)
    if isinstance(given, KeySettings):
        return given.encryption()
    if isinstance(given, Key):
        return FileEncryptionProperties(footer_key=given)
    if recipients := _list_objects(given, Recipient):
        return RecipientEncryption(recipients=recipients)
    hint = ""
    if _list_objects(given, Identity):
        hint = "; an Identity only decrypts: pass its recipient, identity.recipient"
    elif isinstance(given, FileDecryptionProperties):
        hint = "; pass FileEncryptionProperties with its keys"
    elif hasattr(given, "encryption"):
        hint = "; pass KeyTools.encryption(policy)"
    raise TypeError(
        f"encryption must be {_COMMON}, a Recipient or several, or FileEncryptionProperties, not "
        f"{_name_type(given)}{hint}"
    )


def open_policy(given: Any) -> Any:
    """Return `Settings` for a policy or its path, and any other form as it is.

    Raises:
        ValueError: The file is not a valid policy, or names no key service.
        OSError: It cannot be read.
    """
    if isinstance(given, os.PathLike):
        given = _load_policy(Path(given))
    return Settings(policy=given) if isinstance(given, Policy) else given


def _load_policy(path: Path) -> Policy:
    try:
        return Policy.load(path)
    except ValueError as error:
        hint = "a key is read by Key.from_file, an identity by Identity.load"
        if path.name == "modcrypt.toml":
            hint = "it declares a lake: pass Lake.open(path).dataset(name)"
        elif path.suffix == ".toml":
            raise
        raise ValueError(f"{error}; {hint}") from None


def _list_objects(given: object, kind: type[T]) -> tuple[T, ...]:
    """Return the objects of a kind that were passed, alone or in a list; none if any is another."""
    objects = tuple(given) if isinstance(given, list | tuple) else (given,)
    return objects if all(isinstance(each, kind) for each in objects) else ()


def _name_type(given: object) -> str:
    kind = type(given)
    known = kind.__module__.partition(".")[0] in ("builtins", "modcrypt")
    return kind.__name__ if known else f"{kind.__module__}.{kind.__name__}"
