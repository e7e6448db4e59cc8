"""The policy of each file of a dataset: partition values and columns make it concrete."""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from modcrypt.errors import PlaintextError
from modcrypt.io.places import Place
from modcrypt.io.sources import Source
from modcrypt.jobs.declared_changes import hand_over
from modcrypt.jobs.idempotence.key_comparison import KeyFacts, NewKeys
from modcrypt.jobs.listing import Folder
from modcrypt.kms.audit import audit_to_json_lines
from modcrypt.kms.client import KmsClient
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.keyed_encryption import KeyedEncryption
from modcrypt.kms.policy import Policy
from modcrypt.kms.signing.required_seal import RequiredSeal
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey, read_verifying_keys
from modcrypt.lake.declarations.columns import FileColumns, names_by_key
from modcrypt.lake.declarations.columns import Path as ColumnPath
from modcrypt.lake.declarations.declaration import DatasetDeclaration
from modcrypt.lake.declarations.partitions import fill, read_values
from modcrypt.lake.files.key_choice import KeyTrial, check_writing
from modcrypt.lake.spool import Memo
from modcrypt.module_ids import GCM_V1
from modcrypt.parquet.arrow.field_metadata import get_arrow_schema, parse_field_metadata
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer import Footer
from modcrypt.parquet.crypto.footer_keys import list_key_metadata
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.parquet.crypto.path_prefix import PATH
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.datasets.discovery import as_arrow
from modcrypt.parquet.format.schema import leaf_paths
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.runtime.fork_safety import cached_property, fork_safe


class Comparison(NamedTuple):
    """The difference between a file and its policy."""

    difference: str  # the difference in words; empty if there is none
    under_previous: bool = False  # whether previous master keys are the only difference


@dataclass(frozen=True)
class DatasetPolicies:
    """The policies of the files of a dataset."""

    dataset: DatasetDeclaration
    client: KmsClient
    audit: str | None = None  # path of a file to which uses of keys are appended; None for none
    signing_key: SigningKey | None = None
    _policies: Memo[Policy] = field(default_factory=Memo, init=False, repr=False)
    _openings: Memo[FileDecryptionProperties] = field(default_factory=Memo, init=False, repr=False)
    # What is made of a policy, by its id; the policy beside it keeps the id from being used again.
    _readings: Memo[tuple[Policy, FileDecryptionProperties]] = field(
        default_factory=Memo, init=False, repr=False
    )
    _new_keys: Memo[tuple[Policy, NewKeys]] = field(default_factory=Memo, init=False, repr=False)
    _safe_keys: set[str] = field(default_factory=set, init=False, repr=False)
    # By former AADs for the key service, each with a cache of KEKs.
    _former_tools: Memo[KeyTools] = field(default_factory=Memo, init=False, repr=False)
    _lock: Any = field(default_factory=lambda: fork_safe(threading.Lock()), init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", self._make_tools(self.kms_aad))
        root = Folder.at(self.dataset.location)
        root = replace(root, _located=root.place)
        object.__setattr__(self, "root", root)

    tools: KeyTools = field(init=False, repr=False)
    root: Folder = field(init=False, repr=False)

    @property
    def kms_aad(self) -> str:
        """The declared AAD for the key service; empty for none."""
        return str(self.dataset.members.get("kms_aad", ""))

    def _make_tools(self, kms_aad: str) -> KeyTools:
        return KeyTools(
            self.client,
            kms_aad=kms_aad,
            cache_lifetime_seconds=self.dataset.members.get("cache_lifetime_seconds", 600.0),
            audit=None if self.audit is None else audit_to_json_lines(self.audit),
            master_key_ids=(),
        )

    @cached_property
    def is_folder(self) -> bool:
        """True unless the dataset is a single file; a folder may have yet to be made."""
        place = self.root.place
        if place.filesystem is None:
            return not os.path.isfile(place.path)
        return not as_arrow(place.filesystem).get_file_info(place.path).is_file

    @cached_property
    def _path_root(self) -> Place:
        """The folder to which `{path}` is relative; that around a dataset of a single file."""
        place, dataset = self.root.place, self.dataset
        templates = [dataset.aad_prefix, *dataset.previous.aad_prefixes]
        if self.is_folder or not any(PATH in (template or "") for template in templates):
            return place
        return Place(place.filesystem, posixpath.dirname(place.path))

    @property
    def source(self) -> Folder | None:
        """The folder whose plaintext files are encrypted into the dataset; None for none."""
        source = self.dataset.source
        return None if source is None else Folder.at(source)

    def path_of(self, place: Place) -> str:
        """Return the path of a file inside the dataset; its name if it is the dataset."""
        base = self.root.place.path.rstrip("/")
        if place.path.startswith(f"{base}/"):  # as listed
            return place.path[len(base) + 1 :]
        return place.inside(self.root.place) or place.name

    def place_of(self, path: str) -> Place:
        """Return the place of a file by its path inside the dataset, or its name if it is that.

        Writing follows no symbolic link below the dataset's folder.
        """
        return self.root.place.below(path) if self.is_folder else self.root.place

    def find_listed(self, place: Place) -> Place | None:
        """Return the place of a file of the dataset as it is listed; None for another file."""
        root = self.root.place
        if (inside := place.inside(root)) is not None:
            return root.below(inside)
        return root if place.resolve() == root.resolve() else None

    def policy(self, path: str, columns: FileColumns | None) -> Policy:
        """Return the policy of a file, given its path inside the dataset and its columns.

        Without columns, the policy has only the rules that name columns. Raise ValueError if a
        partition value is missing or may not be used, or rules contradict each other.
        """
        values = self._values_of(path)
        key = tuple(values.items()), columns if self.dataset.needs_columns else None
        with self._lock:
            return self._policies.get(key, lambda: self._make_policy(values, columns))

    def group_of(self, path: str) -> Any:
        """Return the partition values that files share if `opening` treats them alike."""
        return tuple(self._values_of(path).items())

    def _values_of(self, path: str) -> dict[str, str]:
        if not self.dataset.used_partitions:
            return {}
        known = read_values(path)
        return {name: known[name] for name in self.dataset.used_partitions if name in known}

    def _make_policy(self, values: Mapping[str, str], columns: FileColumns | None) -> Policy:
        names = names_by_key(self.dataset.rules, columns)
        plaintext = names.pop(None, [])
        members: dict[str, Any] = {
            name: fill(value, values) if name in ("footer_key", "aad_prefix") else value
            for name, value in self.dataset.members.items()
        }
        keys: dict[str, list[str]] = {}
        for key, columns_of_key in names.items():
            keys.setdefault(fill(str(key), values), []).extend(columns_of_key)
        return Policy(**members, column_keys=keys, plaintext_columns=plaintext)

    def key_ids(self, path: str) -> frozenset[str]:
        """Return the ids of the master keys that may protect a file, without previous ones."""
        values = self._values_of(path)
        return frozenset(fill(template, values) for template in self.dataset.key_templates)

    def new_keys(self, policy: Policy) -> NewKeys:
        """Return the keys that a file under a policy must have, to compare files with."""
        return self._new_keys.get(id(policy), lambda: (policy, NewKeys(self.encryption(policy))))[1]

    def encryption(self, policy: Policy) -> KeyedEncryption:
        """Return the properties that encrypt files by a policy."""
        return self.tools.encryption(
            policy, root=self._path_root, recipients=self.dataset.recipients,
            signing_key=self.signing_key,
        )  # fmt: skip

    def writing(self, policy: Policy) -> KeyedEncryption:
        """Return `encryption(policy)`, for files that readers of the dataset must accept.

        Raise ValueError as `check_signing_key`, or a key for new files is compromised.
        """
        self.check_signing_key()
        keys = {policy.footer_key, *policy.column_keys} - self._safe_keys
        check_writing(self.dataset, keys, self._find_newest_version)
        self._safe_keys.update(keys)
        return self.encryption(policy)

    def _find_newest_version(self, key: str) -> str | None:
        return KeyTrial(self.client).wrap_with(key, self.kms_aad)

    def check_signing_key(self) -> None:
        """Raise ValueError if readers require a signature, and there is no key that makes it."""
        own = None if self.signing_key is None else self.signing_key.verifier
        if self.writers and own not in self.writers:
            raise ValueError(
                "the declaration requires signatures (signed_by); pass the signing key of one of "
                "these writers"
            )

    @cached_property
    def writers(self) -> tuple[VerifyingKey, ...]:
        """The keys of the writers, one of whom must have signed each file; empty for anyone."""
        return read_verifying_keys(self.dataset.members.get("signed_by", ()))

    @cached_property
    def required_seal(self) -> RequiredSeal | None:
        """The seal that the declaration requires; None if it requires none."""
        least = self.dataset.members.get("seal_at_least")
        return None if least is None else RequiredSeal(self.writers, least, self.root.place)

    def hand_over(self, *, accept_new: bool = False) -> AbstractContextManager[None]:
        """Sign what is changed while the block runs, in the next seal of the dataset.

        It has no effect on datasets that require no seal, or have none yet. `accept_new` is for
        files that the seal does not name. Raise as `hand_over`, and, if a seal is required, as
        `check_signing_key`.
        """
        if self.required_seal is not None:
            self.check_signing_key()
        how = {"accept_new": accept_new}
        return hand_over(self.root.place, self.signing_key, self.required_seal, **how)

    def reading(
        self, path: str, columns: FileColumns | None, further: Collection[str] | None = None
    ) -> FileDecryptionProperties:
        """Return the properties that open a file exactly as declared, given its columns.

        Args:
            columns: Columns of the file; None if no rule depends on them, or to open the footer.
            further: Ids of further master keys to accept; by default the previous ones.

        Raises:
            ValueError: As `policy`.
        """
        policy = self.policy(path, columns)
        ids = frozenset(self.dataset.previous.master_keys if further is None else further)

        def make() -> tuple[Policy, FileDecryptionProperties]:
            return policy, self.tools.decryption(
                policy, root=self._path_root, master_key_ids=ids, seal=self.required_seal
            )

        return self._readings.get((id(policy), ids), make)[1]

    def open_columns(
        self, source: Source, decryption: FileDecryptionProperties,
        change: Change | None = None,
    ) -> FileColumns:  # fmt: skip
        """Return the columns of an encrypted file, after a change; only its footer is opened."""
        file = OpenFile(source, decryption)
        if change is None:
            return read_columns(file.footer, file.leaves)
        kept = list(filter(change.keeps, file.leaves))
        return read_columns(file.footer, kept, change.bare_fields(file.leaves))

    def opening(
        self, place: Place, aad_prefix: str | None = None, master_key_ids: Collection[str] = (),
        kms_aad: str | None = None,
    ) -> FileDecryptionProperties:  # fmt: skip
        """Return properties that open a file under any declared or previous master key.

        A declared writer must have signed it.

        Args:
            aad_prefix: Template of the AAD prefix, empty for files without one; None for the
                declared one.
            kms_aad: AAD for the key service; None for the declared one.
        """
        path = self.path_of(place)
        key = self.group_of(path), aad_prefix, frozenset(master_key_ids), kms_aad
        return self._openings.get(
            key, lambda: self._make_opening(path, aad_prefix, master_key_ids, kms_aad)
        )

    def _make_opening(
        self, path: str, aad_prefix: str | None, master_key_ids: Collection[str],
        kms_aad: str | None,
    ) -> FileDecryptionProperties:  # fmt: skip
        template = self.dataset.aad_prefix if aad_prefix is None else aad_prefix
        filled = fill(template, self._values_of(path)) if template else None
        prefix = Policy(footer_key="none", aad_prefix=filled).path_prefix(self._path_root)
        tools = self.tools
        if kms_aad is not None:
            tools = self._former_tools.get(kms_aad, partial(self._make_tools, kms_aad))
        return tools.decryption(
            aad_prefix=b"" if template == "" else prefix,  # empty: refuses any that is stored
            accept_algorithms=self.algorithms,
            master_key_ids={
                *self.key_ids(path),
                *self.dataset.previous.master_keys,
                *master_key_ids,
            },
            signed_by=self.writers,
        )

    def compare(
        self, path: str, columns: FileColumns, footer: Footer, prefix: bytes | None,
        facts: KeyFacts,
    ) -> Comparison:  # fmt: skip
        """Compare a file with the declaration, which gives it an AAD prefix.

        Raise ValueError as `policy`.
        """
        keys, previous = self.new_keys(self.policy(path, columns)), self.dataset.previous
        why = keys.compare_facts(footer, prefix, facts)
        if why is None or not previous.master_keys:
            return Comparison(why or "")
        moved = facts.replace_master_keys(previous.master_keys)
        return Comparison(why, keys.compare_facts(footer, prefix, moved) is None)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The declared algorithm, and previous ones."""
        declared = self.dataset.members.get("encryption_algorithm", GCM_V1)
        return (declared, *self.dataset.previous.algorithms)


def read_columns(
    footer: Footer, leaves: list[ColumnPath] | None = None, bare: tuple[ColumnPath, ...] = ()
) -> FileColumns:
    """Return the columns of a file with an open footer; `bare` are fields without metadata.

    Files with the same columns share the result.
    """
    found = tuple(leaf_paths(footer.metadata.schema) if leaves is None else leaves)
    return _make_columns(found, get_arrow_schema(footer.metadata), bare)


@lru_cache(maxsize=256)
def _make_columns(
    leaves: tuple[ColumnPath, ...], arrow_schema: bytes | None, bare: tuple[ColumnPath, ...]
) -> FileColumns:
    metadata = parse_field_metadata(arrow_schema).items()
    return FileColumns(leaves, {path: about for path, about in metadata if path not in bare})


def is_encrypted(source: Source) -> bool:
    """Return whether a file is encrypted, at least by its own account."""
    try:
        list_key_metadata(source)
    except PlaintextError:
        return False
    return True


def read_plain_columns(source: Source) -> FileColumns:
    """Return the columns of a plaintext file; raise ModcryptError as `read_plain`."""
    return read_columns(read_plain(source))
