"""Which keys a Spark job works with: references alone, resolved where the files are opened.

Spark pickles what goes to executors, logs configuration and shows options. So settings hold the
URI of a key service, the path of a policy or the names of files and variables with keys; never a
key, a token or a passphrase. Each worker process opens a key service once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.fork_safety import fork_safe
from modcrypt.key_text import key_from_base64, key_from_hex
from modcrypt.keys import Key
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.policy import Policy
from modcrypt.kms.private_files import read_secret
from modcrypt.parquet.crypto.path_prefix import NAME, PATH, PathPrefix, check_distinct
from modcrypt.parquet.crypto.properties import (
    ALGORITHMS,
    Encryption,
    FileDecryptionProperties,
    FileEncryptionProperties,
)
from modcrypt.tracebacks import hide_frames

__all__ = ["Settings", "check_reference", "key_at"]

MAX_KEY_FILE = 4096
"""Largest file with a key, in bytes."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Keys by reference, and what is insisted on; pickles, and holds no secret.

    Args:
        kms: URI of a key service, as of `open_kms`; the passphrase of a keyring by
            `?passphrase=env:NAME` or `?passphrase=file:PATH`. None for the policy's.
        policy: how files are encrypted, and by which AAD prefix and algorithm they are read.
        footer_key, column_keys: instead of a key service, `file:PATH` or `env:NAME` of keys as
            hex or base64, on every executor. Paths are absolute there, as executors have folders
            of their own.
        plaintext_columns: with these, columns to leave unencrypted.
        aad_prefix: of every file, with `{path}` for its path in the table or `{name}` for its
            name; None for the policy's. With keys by reference it has neither.
        root: The dataset's folder, which `{path}` is relative to. None for the folder that is read
            or converted.
        shared_aad_prefix: Allow several files with the same AAD prefix.
        algorithms, on_missing_key, require_encrypted: as of `FileDecryptionProperties`.
        master_key_ids: Ids of master keys that may protect what is read, besides those that the
            policy or the URI of `kms` names, as during a rotation.

    Raises:
        ValueError: no keys, both kinds of them, or a reference that is none.
    """

    kms: str | None = None
    policy: Policy | None = None
    footer_key: str | None = None
    column_keys: Mapping[str, str] = field(default_factory=dict)
    plaintext_columns: tuple[str, ...] = ()
    aad_prefix: str | None = None
    root: str | None = None
    shared_aad_prefix: bool = False
    algorithms: tuple[str, ...] = ALGORITHMS[:1]
    on_missing_key: Literal["error", "drop", "null"] = "error"
    require_encrypted: bool | tuple[str, ...] = True
    master_key_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        by_service = self.kms is not None or (self.policy is not None and bool(self.policy.kms))
        explicit = self.footer_key is not None or bool(self.column_keys)
        if by_service == explicit:
            raise ValueError(
                "keys come from a key service (kms, or a policy that names one) or from references "
                "(footer_key, column_keys): give one of them"
            )
        for reference in (self.footer_key, *self.column_keys.values()):
            if reference is not None:
                check_reference(reference)
        if self.plaintext_columns and not explicit:
            raise ValueError("plaintext columns are the policy's to name")
        if self.master_key_ids and explicit:
            raise ValueError("master_key_ids are those of a key service: give kms or a policy")
        if explicit and any(one in (self.aad_prefix or "") for one in (NAME, PATH)):
            raise ValueError(
                f"{NAME} and {PATH} in an AAD prefix need a policy, which names each file's own"
            )

    def under(self, root: str) -> Settings:
        """Return the settings for the dataset at `root`, unless they name another root."""
        return self if self.root is not None else replace(self, root=root)

    @property
    def prefix(self) -> PathPrefix | None:
        """The AAD prefix of files, their paths left open; None for no prefix."""
        text = self.aad_prefix
        if text is None and self.policy is not None:
            text = self.policy.aad_prefix
        return None if text is None else PathPrefix(text.encode(), self.root)

    def check_distinct(self, paths: Iterable[str]) -> None:
        """Raise ValueError if two files have the same AAD prefix, unless that is allowed."""
        if not self.shared_aad_prefix:
            check_distinct(self.prefix, paths)

    def decryption(self) -> FileDecryptionProperties:
        """Give the properties that open files, in the process that calls.

        Raises:
            KeyRetrievalError: a key or the key service is not there, or refuses.
        """
        said: dict[str, Any] = {
            "on_missing_key": self.on_missing_key,
            "require_encrypted": self.require_encrypted,
        }
        if self.aad_prefix is not None:
            said["aad_prefix"] = self.prefix
        if self.footer_key is None and not self.column_keys:
            if self.policy is None or self.algorithms != ALGORITHMS[:1]:
                said["algorithms"] = self.algorithms
            ids = self.master_key_ids or None
            return self.tools().decryption(self.policy, root=self.root, master_key_ids=ids, **said)
        footer_key = None if self.footer_key is None else key_at(self.footer_key)
        keys = {name: key_at(reference) for name, reference in self.column_keys.items()}
        return FileDecryptionProperties(
            footer_key=footer_key, column_keys=keys, algorithms=self.algorithms, **said
        )

    def encryption(self) -> Encryption:
        """Give what encrypts files, in the process that calls.

        Raises:
            ValueError: there is a key service, and no policy that says what to do with it.
            KeyRetrievalError: as `decryption`.
        """
        if self.footer_key is not None:
            prefix = None if self.aad_prefix is None else self.aad_prefix.encode()
            return FileEncryptionProperties(
                footer_key=key_at(self.footer_key),
                column_keys={name: key_at(at) for name, at in self.column_keys.items()},
                plaintext_columns=self.plaintext_columns,
                aad_prefix=prefix,
            )
        if self.policy is None:
            raise ValueError("files are encrypted by a policy, or with a footer_key: give one")
        policy = self.policy
        if self.aad_prefix is not None:
            policy = replace(policy, aad_prefix=self.aad_prefix)
        return self.tools().encryption(policy, root=self.root)

    def check_writing(self) -> None:
        """Check, without a key, that files can be encrypted by these settings; as `encryption`."""
        if self.footer_key is None and self.policy is None:
            raise ValueError("files are encrypted by a policy, or with a footer_key: give one")

    def tools(self) -> KeyTools:
        """Give the key service's tools, opened once in a process; raises as `KeyTools`."""
        policy = self.policy
        uri = self.kms or (policy.kms if policy is not None else None)
        if uri is None:
            raise ValueError("there is no key service: give kms, or a policy that names one")
        question = (
            os.getpid(),
            uri,
            "" if policy is None else policy.kms_aad or "",
            600.0 if policy is None else policy.cache_lifetime_seconds,
            frozenset[str]() if policy is None else policy.master_key_ids,
        )
        with _opening:
            if question not in _opened:
                _opened[question] = (
                    KeyTools(uri) if policy is None else KeyTools.from_policy(policy, kms=uri)
                )
            return _opened[question]


# By process: clients don't fork.
_opened: dict[tuple[int, str, str, float, frozenset[str]], KeyTools] = {}
_opening = fork_safe(threading.Lock())


@hide_frames
def key_at(reference: str) -> Key:
    """Read the key at `file:PATH` or `env:NAME`: hex or base64.

    Raises:
        KeyNotFoundError: nothing is there.
        KeyMaterialError: no key is there.
    """
    kind, _, where = reference.partition(":")
    if kind == "env":
        text = os.environb.get(os.fsencode(where), b"")
    else:
        try:
            text = read_secret(where, MAX_KEY_FILE + 1, "key file")
        except OSError as error:
            raise KeyNotFoundError(f"the key file {where}: {error.strerror}") from None
    if not text:
        raise KeyNotFoundError(f"{reference}: there is no key")
    key = key_from_hex(text.strip()) or key_from_base64(text.strip())
    if key is None:
        raise KeyMaterialError(f"{reference} holds no key: hex or base64 of 16, 24 or 32 bytes")
    return key


def check_reference(reference: str) -> None:
    """Check that a key is named, and not given.

    Raises:
        ValueError: it is no `file:PATH` or `env:NAME`; the text is not repeated.
    """
    kind, _, where = reference.partition(":")
    if kind not in ("file", "env") or not where:
        raise ValueError(
            "a key is given as file:PATH or env:NAME, never as itself (it is not repeated here)"
        )
