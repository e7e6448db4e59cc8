"""Settings: references to keys, which are resolved in the process that uses them.

Settings hold the URI of a key service, a policy, or the names of files, environment variables and
file descriptors that contain keys; never a key, a token or a passphrase. They can therefore be
sent to other processes, for example by Spark, Dask or `multiprocessing`, and be logged and shown.
The command line and Spark's options become Settings.
"""

from __future__ import annotations

import os
import threading
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from modcrypt.errors import KeyAccessDeniedError
from modcrypt.keys import Key
from modcrypt.kms.audit import audit_to_json_lines
from modcrypt.kms.client import KmsClient
from modcrypt.kms.key_references import PROMPT, absolute_reference, check_reference, read_key
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.keyring.keyring_passphrase import (
    Ask,
    check_passphrase_reference,
    make_reference_asker,
)
from modcrypt.kms.keyring.keyring_uri import keyring_path, passphrase_of_uri
from modcrypt.kms.policy import Policy, find_service, resolve_service
from modcrypt.kms.recipients.identity import Identity, check_references, load_identities
from modcrypt.kms.recipients.identity_retriever import IdentityRetriever, open_also
from modcrypt.kms.recipients.recipient import Recipient, check_recipients
from modcrypt.kms.recipients.recipient_encryption import RecipientEncryption
from modcrypt.kms.references import open_kms, parse_kms_uri, present_uri
from modcrypt.kms.signing.required_seal import RequiredSeal
from modcrypt.kms.signing.signing_keys import (
    SigningKey,
    VerifyingKey,
    absolute_signing_reference,
    check_signing_reference,
    load_signing_key,
    names_service,
    read_verifying_keys,
)
from modcrypt.parquet.crypto.path_prefix import NAME, PATH, PathPrefix, check_distinct
from modcrypt.parquet.crypto.properties import (
    Encryption,
    FileDecryptionProperties,
    FileEncryptionProperties,
    KeySettings,
    SubjectKeys,
    check_name_list,
)
from modcrypt.report.short_repr import ShortRepr
from modcrypt.runtime.fork_safety import cached_property, fork_safe
from modcrypt.runtime.former_names import accept_former_attributes
from modcrypt.runtime.tracebacks import hide_init_frames
from modcrypt.settings.setting import explain_arguments
from modcrypt.settings.table import KeyReferences

T = TypeVar("T")

ENCRYPTION_OPTIONS = frozenset(
    {
        "plaintext_footer", "encryption_algorithm", "store_aad_prefix", "data_page_v2_levels",
        "footer_key_metadata", "column_key_metadata",
    }
)  # fmt: skip
"""The arguments of `FileEncryptionProperties` that Settings accept as `encryption_options`."""


@hide_init_frames
@accept_former_attributes(algorithms="accept_algorithms")
@explain_arguments
@dataclass(frozen=True, kw_only=True, repr=False)
class Settings(KeyReferences, KeySettings, ShortRepr):
    """References to keys and the requirements of reading; picklable and without secrets.

    modcrypt accepts Settings wherever it accepts `FileEncryptionProperties` or
    `FileDecryptionProperties`. Keys are read, and a key service is opened, on first use in each
    process.

    Raises:
        ValueError: Both kinds of keys are given, or a reference is invalid.
    """

    # Of classes that the table of settings cannot import:
    policy: Policy | None = None
    recipients: tuple[Recipient, ...] = ()
    signed_by: tuple[VerifyingKey, ...] = ()
    _opened: dict[tuple[int, str], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        names = check_name_list(self.plaintext_columns, "plaintext_columns")
        object.__setattr__(self, "plaintext_columns", names)
        if isinstance(self.policy, str | os.PathLike):
            object.__setattr__(self, "policy", Policy.load(self.policy))
        if self.has_service and self.has_keys:
            raise ValueError(
                "keys come from a key service (kms, or a policy that names one) or from references "
                "(footer_key, column_keys); pass exactly one of the two"
            )
        if self.policy is not None and self.policy.names_keys:
            self.__dict__.update(self._keys_of_policy(self.policy))
        elif self.policy is not None:
            find_service(self.kms, self.policy)
        for reference in (self.footer_key, *self.column_keys.values()):
            if reference is not None:
                check_reference(reference)
        if self.passphrase is not None:
            check_passphrase_reference(self.passphrase)
        if self.passphrase is not None and not self.has_service:
            raise ValueError("a passphrase needs a keyring; pass kms or a policy that names one")
        check_references(self.identities, self.identity_passphrase)
        check_signing_reference(self.signing_key, self.signing_passphrase)
        if self.recipients:
            object.__setattr__(self, "recipients", check_recipients(self.recipients))
        if self.recipients and self.has_keys:
            raise ValueError("recipients get fresh keys; remove footer_key and column_keys")
        makes_keys = self.footer_key is not None or (self.recipients and not self.has_service)
        if (self.plaintext_columns or self.encryption_options) and not makes_keys:
            raise ValueError(
                "plaintext_columns and encryption_options need footer_key; with a key service, "
                "set them in the policy"
            )
        if unknown := sorted(self.encryption_options.keys() - ENCRYPTION_OPTIONS):
            raise ValueError(f"unknown encryption_options: {', '.join(unknown)}")
        if (self.master_key_ids or self.audit or self.subjects) and not self.has_service:
            raise ValueError(
                "master_key_ids, audit and subjects need a key service; pass kms or a policy"
            )
        text = self.aad_prefix if isinstance(self.aad_prefix, str) else ""
        if self.has_keys and (NAME in text or PATH in text):
            raise ValueError(
                f"{NAME} and {PATH} in an AAD prefix need a policy; remove them or pass a policy"
            )

    def _keys_of_policy(self, policy: Policy) -> dict[str, Any]:
        """Return the fields that take the place of a policy which names keys by reference."""
        if self.kms is not None or self.has_keys:
            raise ValueError("the policy names keys by reference; pass no kms and no other keys")
        prefix, least = self.aad_prefix, self.seal_at_least
        return {
            "policy": None,
            "footer_key": policy.footer_key,
            "column_keys": policy.key_of_column,
            "plaintext_columns": policy.plaintext_columns,
            "encryption_options": {
                name: getattr(policy, name)
                for name in ENCRYPTION_OPTIONS & {member.name for member in fields(policy)}
            },
            "aad_prefix": policy.aad_prefix if prefix is None else prefix,
            "accept_algorithms": self.accept_algorithms or (policy.encryption_algorithm,),
            "signed_by": self.signed_by or read_verifying_keys(policy.signed_by),
            "seal_at_least": policy.seal_at_least if least is None else least,
        }

    @property
    def has_service(self) -> bool:
        """True if keys come from a key service."""
        return self.kms is not None or (self.policy is not None and self.policy.kms is not None)

    @property
    def has_keys(self) -> bool:
        """True if keys come from references."""
        return self.footer_key is not None or bool(self.column_keys)

    # --- copies ---

    def evolve(self, **changes: Any) -> Self:
        """Return a copy with other values, which shares keys and the key service's client."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        if "policy" in changes:  # the tools belong to a policy
            opened = {key: value for key, value in self._opened.items() if key[1] == "client"}
            copy.__dict__["_opened"] = opened
        return copy

    def under(self, root: str) -> Settings:
        """Return the settings for the dataset at `root`, unless they name another root."""
        return self if self.root is not None else self.evolve(root=root)

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the fields with absolute paths, as other processes may run in other folders.

        Raise ValueError if a reference has no meaning in other processes.
        """
        values = {member.name: getattr(self, member.name) for member in fields(self) if member.init}
        if PROMPT in (self.passphrase, self.identity_passphrase, self.signing_passphrase):
            raise ValueError(
                "other processes cannot ask for a passphrase; pass passphrase=env:NAME or file:PATH"
            )
        for name in ("footer_key", "passphrase", "identity_passphrase", "signing_passphrase"):
            if values[name] is not None:
                values[name] = absolute_reference(values[name])
        if self.signing_key is not None:
            values["signing_key"] = absolute_signing_reference(self.signing_key)
        for name in ("root", "audit", "subjects"):
            if values[name] is not None and "://" not in values[name]:
                values[name] = os.path.abspath(values[name])
        keys = {name: absolute_reference(ref) for name, ref in self.column_keys.items()}
        policy = None if self.policy is None else self.policy.resolve_paths(Path.cwd())
        if policy is not None and policy.signed_by:  # the files of public keys may be only here
            lines = tuple(map(str, read_verifying_keys(policy.signed_by)))
            policy = replace(policy, signed_by=lines)
        values |= {
            "policy": policy,
            "column_keys": keys,
            "encryption_options": dict(self.encryption_options),
            "kms": None if self.kms is None else _absolute_uri(self.kms),
            "identities": tuple(map(absolute_reference, self.identities)),
        }
        return _receive, (type(self), values)

    # --- AAD prefixes ---

    @property
    def prefix(self) -> PathPrefix | bytes | None:
        """The AAD prefix of files, a template only with a key service; None for no prefix."""
        if (prefix := self.aad_prefix) is None and self.policy is not None:
            prefix = self.policy.aad_prefix
        if prefix is None:
            return None
        data = _encode_prefix(prefix)
        templates = self.has_service or self.recipients or self.identities
        return PathPrefix(data, self.root) if templates else data

    def check_distinct(self, paths: Iterable[str]) -> None:
        """Raise ValueError if two files have the same AAD prefix, unless that is allowed."""
        if not self.shared_aad_prefix:
            check_distinct(self.prefix, paths)

    # --- keys ---

    def _demands(self) -> dict[str, Any]:
        """Return the arguments of `FileDecryptionProperties` that are about no key."""
        arguments: dict[str, Any] = {
            "on_missing_key": self.on_missing_key,
            "require_encrypted": self.require_encrypted,
            "check_footer_integrity": self.check_footer_integrity,
        }
        if self.accept_algorithms is not None:
            arguments["accept_algorithms"] = self.accept_algorithms
        if self.aad_prefix is not None:
            arguments["aad_prefix"] = self.prefix
        if self.signed_by:
            arguments["signed_by"] = self.signed_by
        if (seal := self.required_seal) is not None:
            arguments["seal"] = seal
        if (subjects := self.subject_keys) is not None:
            arguments["subjects"] = subjects
        return arguments

    @property
    def subject_keys(self) -> SubjectKeys | None:
        """The keys of subjects; None if no vault is named. Raise as `tools`."""
        if self.subjects is None and (self.policy is None or self.policy.subjects is None):
            return None
        on_erased = "raise" if self.on_erased == "raise" else "null"
        return self.tools().subjects_of(self.policy, self.subjects, on_erased=on_erased)

    def decryption(self) -> FileDecryptionProperties:
        """Return the properties that decrypt files; resolves keys in the calling process.

        Raises:
            KeyRetrievalError: A key is missing, or the key service is unavailable or refuses.
        """
        arguments = self._demands()
        if self.has_service:
            ids = self.master_key_ids or None
            arguments |= {"master_key_ids": ids, "root": self.root}
            return open_also(self.tools().decryption(self.policy, **arguments), self.identity_keys)
        footer_key, column_keys = self.keys
        if self.identities:
            arguments["key_retriever"] = IdentityRetriever(self.identity_keys)
        return FileDecryptionProperties(footer_key=footer_key, column_keys=column_keys, **arguments)

    def leave_out_erased(self, dataset: Any) -> Any:
        """Return a discovered dataset without erased files, which only a declaration knows."""
        return dataset

    @property
    def required_seal(self) -> RequiredSeal | None:
        """The seal that files must have; None if none is required.

        Raises:
            ValueError: No writers are named.
        """
        policy = self.policy
        if (least := self.seal_at_least) is None and policy is not None:
            least = policy.seal_at_least  # with the writers that are named here, if any
        if least is None:
            return None
        writers = self.signed_by or read_verifying_keys(() if policy is None else policy.signed_by)
        if not writers:
            raise ValueError("a seal needs signed_by, the keys of its writers")
        return RequiredSeal(writers, least, self.root)

    def decryption_of(self, path: str) -> FileDecryptionProperties:
        """Return the properties that decrypt the file at a path: `decryption()` for every file."""
        return self.decryption()

    def requirements(self) -> FileDecryptionProperties | None:
        """Return `decryption()` if the settings require anything of files besides their keys.

        Otherwise, what opens no page uses the properties of `tools()`, which accept any algorithm.
        """
        demands = self.policy, self.aad_prefix, self.accept_algorithms, self.signed_by or None
        if all(demand is None for demand in demands):
            return None
        return self.decryption()

    def encryption(self) -> Encryption:
        """Return the properties that encrypt files; resolves keys in the calling process.

        Raises:
            ValueError: The settings have neither a footer key nor a policy.
            KeyRetrievalError: As in `decryption`.
        """
        footer_key, column_keys = self.keys
        if footer_key is not None:
            return FileEncryptionProperties(
                footer_key=footer_key,
                column_keys=column_keys,
                plaintext_columns=self.plaintext_columns,
                aad_prefix=None if self.aad_prefix is None else _encode_prefix(self.aad_prefix),
                signing_key=self.writer_key,
                **self.encryption_options,
            )
        self.check_writing()
        if (policy := self.policy) is None:
            return RecipientEncryption(
                recipients=self.recipients,
                plaintext_columns=self.plaintext_columns,
                aad_prefix=self.prefix,
                options={**self.encryption_options, "signing_key": self.writer_key},
            )
        if self.aad_prefix is not None:
            policy = replace(policy, aad_prefix=_decode_prefix(self.aad_prefix))
        made = self.tools().encryption(
            policy, root=self.root, recipients=self.recipients, signing_key=self.writer_key
        )
        return made if self.subjects is None else replace(made, subjects=self.subject_keys)

    def hand_over(self) -> AbstractContextManager[None]:
        """Sign what is changed while the block runs, if that is declared; here, it is not."""
        return nullcontext()

    def check_writing(self) -> None:
        """Raise ValueError if these settings can't encrypt files; needs no key."""
        to_recipients = self.recipients and not self.has_service
        if self.footer_key is None and self.policy is None and not to_recipients:
            raise ValueError("encryption needs a policy, recipients or a footer_key; pass one")

    @cached_property
    def keys(self) -> tuple[Key | None, dict[str, Key]]:
        """The footer key and the keys of columns that references name, read once.

        Raises:
            KeyRetrievalError: A key is missing or invalid.
        """
        footer = None if self.footer_key is None else read_key(self.footer_key, "footer key")
        columns = self.column_keys.items()
        return footer, {name: read_key(ref, f"key of column {name}") for name, ref in columns}

    @cached_property
    def identity_keys(self) -> tuple[Identity, ...]:
        """The identities, read once.

        Raises:
            KeyRetrievalError: As `Identity.load`.
        """
        return load_identities(self.identities, self.identity_passphrase)

    @property
    def writer_key(self) -> SigningKey | None:
        """The key that signs new files, read or opened once; None if none is named.

        Raises:
            KeyRetrievalError: As `SigningKey.load` and `SigningKey.open`.
        """
        if self.signing_key is None:
            return None
        if names_service(self.signing_key):  # clients do not survive a fork
            load = partial(load_signing_key, self.signing_key, self.signing_passphrase)
            return self._open_once(f"signing key {self.signing_key}", load)
        return self._writer_key_of_file

    @cached_property
    def _writer_key_of_file(self) -> SigningKey:
        assert self.signing_key is not None
        return load_signing_key(self.signing_key, self.signing_passphrase)

    @property
    def uri(self) -> str:
        """The URI of the key service.

        Raises:
            ValueError: Neither `kms` nor the policy names a key service.
        """
        return present_uri(find_service(self.kms, self.policy))

    @property
    def client(self) -> KmsClient:
        """The client of the key service, opened once in each process.

        Raises:
            ValueError: No key service is named, or its URI is invalid.
            KeyRetrievalError: As `open_kms`.
        """
        return self._open_once("client", self._open_client)

    @cached_property
    def asker(self) -> Ask | None:
        """The function that reads the passphrase of a keyring; None if no place is named."""
        if (reference := passphrase_of_uri(self.uri)) is not None:
            return make_reference_asker(reference, shown=True)
        return None if self.passphrase is None else make_reference_asker(self.passphrase, self.uri)

    def _open_client(self) -> KmsClient:
        if self.passphrase is None:
            return open_kms(self.uri)
        if not self.uri.startswith("file:"):
            raise ValueError("a passphrase needs a keyring; pass kms=, a URI file:PATH")
        if self.passphrase == PROMPT:
            with suppress(KeyAccessDeniedError):
                return open_kms(self.uri)
        return open_kms(self.uri, passphrase=self.asker)

    def tools(self) -> KeyTools:
        """Return the tools of the key service, opened once in each process; raises as `client`."""
        return self._open_once("tools", self._open_tools)

    def _open_tools(self) -> KeyTools:
        audit = None if self.audit is None else audit_to_json_lines(self.audit)
        ids = self.master_key_ids or None
        if self.policy is None:
            return KeyTools(self.client, audit=audit, master_key_ids=ids)
        return KeyTools.from_policy(self.policy, kms=self.client, audit=audit, master_key_ids=ids)

    def _open_once(self, what: str, opener: Callable[[], T]) -> T:
        """Call `opener` once per process and return its result; clients do not survive a fork."""
        key = os.getpid(), what
        with _opening:
            if key not in self._opened:
                self._opened[key] = opener()
            return cast(T, self._opened[key])


_opening = fork_safe(threading.RLock())


def _receive(kind: type[Settings], values: dict[str, Any]) -> Settings:
    """Return the settings that another process sent, as the same object each time."""
    # A process therefore opens a key service once for all tasks.
    settings = kind(**values)
    for known in _received:
        if known == settings:
            return known
    _received.append(settings)
    return settings


_received: deque[Settings] = deque(maxlen=64)


def _absolute_uri(uri: str) -> str:
    uri = present_uri(uri)
    if not uri.startswith("file:"):
        return resolve_service(uri, Path.cwd())
    parsed = parse_kms_uri(uri, frozenset({"passphrase"}))
    if (passphrase := parsed.query.get("passphrase")) is not None:
        passphrase = f"?passphrase={urllib.parse.quote(absolute_reference(passphrase), safe=':/')}"
    path = urllib.parse.quote(os.fsencode(os.path.abspath(keyring_path(uri))))
    key = f"#{urllib.parse.quote(parsed.fragment)}" if parsed.fragment else ""
    return f"file:{path}{passphrase or ''}{key}"


def _encode_prefix(prefix: str | bytes) -> bytes:
    return prefix if isinstance(prefix, bytes) else os.fsencode(prefix)


def _decode_prefix(prefix: str | bytes) -> str:
    """Return an AAD prefix as text, which policies need; raise ValueError if it is not UTF-8."""
    try:
        return prefix if isinstance(prefix, str) else prefix.decode()
    except UnicodeDecodeError:
        raise ValueError("with a key service the AAD prefix must be UTF-8 text") from None
