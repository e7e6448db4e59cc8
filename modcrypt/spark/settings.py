"""Settings of Spark jobs: references to keys, which are resolved where the files are opened.

Spark pickles what it sends to executors, logs its configuration and shows options. Settings
therefore hold the URI of a key service, a policy, or the names of files and environment variables
that contain keys; never a key, a token or a passphrase. Each worker process opens a key service
once.
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

__all__ = ["Settings", "check_reference", "read_key"]

MAX_KEY_FILE = 4096
"""Maximum size of a key file, in bytes."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """References to keys and the requirements of reading; picklable and without secrets.

    Args:
        kms: URI of a key service, as for `open_kms`; name the passphrase of a keyring by
            `?passphrase=env:NAME` or `?passphrase=file:PATH`. None for the key service of the
            policy.
        policy: Policy that determines how files are encrypted, and the AAD prefix and algorithm for
            reading.
        footer_key: Instead of a key service, `file:PATH` or `env:NAME` of the footer key as hex or
            base64, on every executor. Use absolute paths, as executors run in other folders.
        column_keys: Mapping of column names to such references, with `footer_key`.
        plaintext_columns: Columns to leave unencrypted, with `footer_key`.
        aad_prefix: AAD prefix of every file, with `{path}` for its path in the table or `{name}`
            for its name; None for the policy's. With keys by reference neither is supported.
        root: Folder of the dataset that `{path}` is relative to. None for the folder that is read
            or converted.
        shared_aad_prefix: Whether several files may have the same AAD prefix.
        algorithms: Accepted algorithms, as in `FileDecryptionProperties`.
        on_missing_key: Treatment of columns without a key, as in `FileDecryptionProperties`.
        require_encrypted: Columns that must be encrypted, as in `FileDecryptionProperties`.
        master_key_ids: Ids of master keys that may protect the files that are read, besides those
            that the policy or the URI of `kms` names, for example during a rotation.

    Raises:
        ValueError: No keys are given, both kinds of keys are given, or a reference is invalid.
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
                "(footer_key, column_keys); pass exactly one of the two"
            )
        for reference in (self.footer_key, *self.column_keys.values()):
            if reference is not None:
                check_reference(reference)
        if self.plaintext_columns and not explicit:
            raise ValueError(
                "plaintext_columns needs footer_key; with a key service, name them in the policy"
            )
        if self.master_key_ids and explicit:
            raise ValueError("master_key_ids needs a key service; pass kms or a policy")
        if explicit and any(part in (self.aad_prefix or "") for part in (NAME, PATH)):
            raise ValueError(
                f"{NAME} and {PATH} in an AAD prefix need a policy; remove them or pass a policy"
            )

    def under(self, root: str) -> Settings:
        """Return the settings for the dataset at `root`, unless they name another root."""
        return self if self.root is not None else replace(self, root=root)

    @property
    def prefix(self) -> PathPrefix | None:
        """The AAD prefix of files, with placeholders for their paths; None for no prefix."""
        text = self.aad_prefix
        if text is None and self.policy is not None:
            text = self.policy.aad_prefix
        return None if text is None else PathPrefix(text.encode(), self.root)

    def check_distinct(self, paths: Iterable[str]) -> None:
        """Raise ValueError if two files have the same AAD prefix, unless that is allowed."""
        if not self.shared_aad_prefix:
            check_distinct(self.prefix, paths)

    def decryption(self) -> FileDecryptionProperties:
        """Return the properties that decrypt files; resolves keys in the calling process.

        Raises:
            KeyRetrievalError: A key is missing, or the key service is unavailable or refuses.
        """
        arguments: dict[str, Any] = {
            "on_missing_key": self.on_missing_key,
            "require_encrypted": self.require_encrypted,
        }
        if self.aad_prefix is not None:
            arguments["aad_prefix"] = self.prefix
        if self.footer_key is None and not self.column_keys:
            if self.policy is None or self.algorithms != ALGORITHMS[:1]:
                arguments["algorithms"] = self.algorithms
            ids = self.master_key_ids or None
            return self.tools().decryption(
                self.policy, root=self.root, master_key_ids=ids, **arguments
            )
        footer_key = None if self.footer_key is None else read_key(self.footer_key)
        keys = {name: read_key(reference) for name, reference in self.column_keys.items()}
        return FileDecryptionProperties(
            footer_key=footer_key, column_keys=keys, algorithms=self.algorithms, **arguments
        )

    def encryption(self) -> Encryption:
        """Return the properties that encrypt files; resolves keys in the calling process.

        Raises:
            ValueError: The settings have a key service but no policy.
            KeyRetrievalError: As in `decryption`.
        """
        if self.footer_key is not None:
            prefix = None if self.aad_prefix is None else self.aad_prefix.encode()
            return FileEncryptionProperties(
                footer_key=read_key(self.footer_key),
                column_keys={name: read_key(ref) for name, ref in self.column_keys.items()},
                plaintext_columns=self.plaintext_columns,
                aad_prefix=prefix,
            )
        if self.policy is None:
            raise ValueError("encryption needs a policy or a footer_key; pass one")
        policy = self.policy
        if self.aad_prefix is not None:
            policy = replace(policy, aad_prefix=self.aad_prefix)
        return self.tools().encryption(policy, root=self.root)

    def check_writing(self) -> None:
        """Raise ValueError if these settings can't encrypt files; needs no key."""
        if self.footer_key is None and self.policy is None:
            raise ValueError("encryption needs a policy or a footer_key; pass one")

    def tools(self) -> KeyTools:
        """Return the tools of the key service, opened once per process; raises as `KeyTools`."""
        policy = self.policy
        uri = self.kms or (policy.kms if policy is not None else None)
        if uri is None:
            raise ValueError("no key service is named; pass kms, or a policy that names one")
        cache_key = (
            os.getpid(),
            uri,
            "" if policy is None else policy.kms_aad or "",
            600.0 if policy is None else policy.cache_lifetime_seconds,
            frozenset[str]() if policy is None else policy.master_key_ids,
        )
        with _tools_lock:
            if cache_key not in _tools_by_process:
                _tools_by_process[cache_key] = (
                    KeyTools(uri) if policy is None else KeyTools.from_policy(policy, kms=uri)
                )
            return _tools_by_process[cache_key]


# The process id is part of the key, as clients must not be used after a fork.
_tools_by_process: dict[tuple[int, str, str, float, frozenset[str]], KeyTools] = {}
_tools_lock = fork_safe(threading.Lock())


@hide_frames
def read_key(reference: str) -> Key:
    """Read the key at `file:PATH` or `env:NAME`, as hex or base64.

    Raises:
        KeyNotFoundError: The file or variable does not exist or is empty.
        KeyMaterialError: The file or variable contains no key.
    """
    kind, _, where = reference.partition(":")
    if kind == "env":
        text = os.environb.get(os.fsencode(where), b"")
    else:
        try:
            text = read_secret(where, MAX_KEY_FILE + 1, "key file")
        except OSError as error:
            raise KeyNotFoundError(f"key file {where}: {error.strerror}") from None
    if not text:
        raise KeyNotFoundError(
            f"{reference}: no key found; the file or variable is missing or empty"
        )
    key = key_from_hex(text.strip()) or key_from_base64(text.strip())
    if key is None:
        raise KeyMaterialError(
            f"{reference} is not a key; expected 16, 24 or 32 bytes as hex or base64"
        )
    return key


def check_reference(reference: str) -> None:
    """Check that a reference names a key, and is not the key itself.

    Raises:
        ValueError: The reference is not `file:PATH` or `env:NAME`; the message does not repeat it.
    """
    kind, _, where = reference.partition(":")
    if kind not in ("file", "env") or not where:
        raise ValueError(
            "name a key as file:PATH or env:NAME, never the key itself (not repeated here)"
        )
