"""The forms of `decryption=` and `encryption=`: one rule for every function that takes them.

| form                            | to decrypt                  | to encrypt                    |
|---------------------------------|-----------------------------|-------------------------------|
| `Key`, its bytes or hex text    | the footer key              | the only key                  |
| reference to a key, `file:PATH` | the footer key              | the only key                  |
| to a master key, `file:RING#ID` | its key service             | the only master key           |
| `Identity`, or several          | opens what it may           | no: pass its recipient        |
| `Recipient`, or several         | no: pass an identity        | each opens the whole file     |
| `Policy`, or its path           | its key service and demands | its key service and columns   |
| `Settings`, a dataset of a lake | as they say                 | as they say                   |
| properties                      | as they are                 | as they are                   |

`modcrypt.keys.wrap_key` has made keys of bytes and text before, and `as_decryption` properties of
keys, so nothing here is a raw key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from modcrypt.keys.arguments import KeyReference
from modcrypt.kms.key_references import check_reference, names_master_key
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

_COMMON = (
    "a Key, its bytes or hex text, a reference such as file:footer.key, a Policy or its path, "
    "Settings, a dataset of a lake"
)


@dataclass(frozen=True)
class _Direction:
    """The differences of decrypting from encrypting, or the other way round."""

    name: Literal["decryption", "encryption"]  # name of the argument
    # Class of the properties that a key becomes.
    properties: type[FileDecryptionProperties] | type[FileEncryptionProperties]
    # Class of the objects that stand for keys, alone or several.
    kind: type[Identity] | type[Recipient]
    open: Callable[[Any], Any]  # function that makes properties of such objects
    takes: str  # these objects and properties, in messages
    hint: str  # advice for objects of the other direction


_DECRYPTION = _Direction(
    "decryption", FileDecryptionProperties, Identity,
    lambda found: FileDecryptionProperties(key_retriever=IdentityRetriever(found)),
    "an Identity or FileDecryptionProperties",
    "a Recipient only encrypts: pass its Identity, as from Identity.load",
)  # fmt: skip
_ENCRYPTION = _Direction(
    "encryption", FileEncryptionProperties, Recipient,
    lambda found: RecipientEncryption(recipients=found),
    "a Recipient or several, or FileEncryptionProperties",
    "an Identity only decrypts: pass its recipient, identity.recipient",
)  # fmt: skip


def make_decryption(given: object) -> FileDecryptionProperties:
    """Return the properties that decrypt files, resolving keys.

    Raises:
        TypeError: The form is unknown, or only encrypts.
        ValueError, OSError: A policy or reference is invalid or cannot be read, or names no key
            service.
        KeyRetrievalError: As `Settings.decryption`.
    """
    found: FileDecryptionProperties = _make_properties(given, _DECRYPTION, _ENCRYPTION)
    return found


def make_encryption(given: object) -> Encryption:
    """Return the properties that encrypt files, resolving keys.

    Raise TypeError if the form is unknown, or only decrypts; and ValueError, OSError or
    KeyRetrievalError as `make_decryption`.
    """
    found: Encryption = _make_properties(given, _ENCRYPTION, _DECRYPTION)
    return found


def _make_properties(given: object, way: _Direction, other: _Direction) -> Any:
    """Return the properties of one direction; raise TypeError with a hint for the other one."""
    given = open_policy(given)
    if way is _ENCRYPTION and isinstance(given, Settings) and given.has_service:
        given = _name_master_key(given)
    if isinstance(given, KeySettings):
        return getattr(given, way.name)()
    if found := _list_objects(given, way.kind):
        return way.open(found)
    hint = ""
    if _list_objects(given, other.kind):
        hint = f"; {way.hint}"
    elif isinstance(given, other.properties):
        hint = f"; pass {way.properties.__name__} with its keys"
    elif hasattr(given, way.name):
        hint = f"; pass KeyTools.{way.name}(policy)"
    raise TypeError(f"{way.name} must be {_COMMON}, {way.takes}, not {_name_type(given)}{hint}")


def _name_master_key(settings: Settings) -> Settings:
    """Return settings without a policy with one for the master key that the URI names, if any."""
    if settings.policy is not None or settings.recipients:
        return settings
    key_id = getattr(settings.client, "default_key", None)
    return settings.evolve(policy=Policy(footer_key=key_id)) if key_id else settings


def open_policy(given: Any) -> Any:
    """Return `Settings` for a policy, its path, or a reference, and any other form as it is.

    Raise ValueError if the file is not a valid policy, or names no key service, or a reference is
    invalid; and OSError if it cannot be read.
    """
    if isinstance(given, KeyReference):
        return _open_reference(given.text)
    if isinstance(given, os.PathLike):
        given = _load_policy(Path(given))
    return Settings(policy=given) if isinstance(given, Policy) else given


def _open_reference(text: str) -> Settings:
    """Return settings for a key, or for the key service that a URI names."""
    if names_master_key(text):
        return Settings(kms=text)
    check_reference(text)
    return Settings(footer_key=text)


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
