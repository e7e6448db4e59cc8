"""Encryption policies: one TOML file of keys and columns for the API, command line and Spark.

    kms = "hcvault://vault.example.com/transit"
    footer_key = "lake-footer"                  # master keys, by their ids in the key service
    plaintext_columns = ["country"]
    aad_prefix = "people/{path}"                # {path}: the file's path inside the dataset

    [column_keys]
    lake-pii = ["ssn", "address"]               # a group's name covers all its leaves

Instead of master keys, a policy may name keys by reference, without `kms`:

    footer_key = "file:footer.key"              # or env:NAME or fd:N; beside the policy's file

    [column_keys]
    "file:pii.key" = ["ssn", "address"]

A policy holds no key and no password.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from modcrypt.errors import MAX_NAME, list_names, printable
from modcrypt.io.places import Root
from modcrypt.kms.key_references import KEY_KINDS, is_reference
from modcrypt.parquet.crypto.path_prefix import NAME, PATH, PathPrefix
from modcrypt.parquet.crypto.properties import KeySource
from modcrypt.pkmt1.material import check_id
from modcrypt.report.short_repr import ShortRepr
from modcrypt.settings.setting import explain_arguments, list_faults, settings_of
from modcrypt.settings.strict_toml import strict_toml
from modcrypt.settings.table import PolicySettings

_VERIFIER = "modcrypt-verifier:"  # the beginning of the line of a verifying key

MAX_POLICY = 1 << 20
"""Size limit of a policy file, in bytes: enough for 32,767 column names of 30 letters."""

S = TypeVar("S")


@explain_arguments
@dataclass(frozen=True, kw_only=True, repr=False)
class Policy(PolicySettings, KeySource, ShortRepr):
    """A policy for encrypting files with keys from a key service.

    Its arguments are the members of a policy's file, from the table of settings.

    Raises:
        ValueError: The policy is invalid; the message lists all faults.
    """

    _may_name_keys = True  # whether ids in the form of references are references

    def __post_init__(self) -> None:
        if faults := _list_faults(vars(self), references=self._may_name_keys):
            raise ValueError(f"invalid policy: {'; '.join(faults)}")
        keys = {key: tuple(columns) for key, columns in self.column_keys.items()}
        object.__setattr__(self, "column_keys", MappingProxyType(keys))  # the dataclass is frozen
        object.__setattr__(self, "plaintext_columns", tuple(self.plaintext_columns))
        object.__setattr__(self, "signed_by", tuple(self.signed_by))
        object.__setattr__(self, "subject_columns", tuple(self.subject_columns))

    def __reduce__(self) -> tuple[Any, ...]:
        values = {**vars(self), "column_keys": dict(self.column_keys)}
        return _rebuild_policy, (type(self), values)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy from a TOML file.

        Raises:
            ValueError: The file is not a valid policy; the message lists all faults, including
                unknown members.
            OSError: The file cannot be read.
        """
        with open(path, "rb") as file:
            data = file.read(MAX_POLICY + 1)
        if len(data) > MAX_POLICY:
            raise ValueError(f"{os.fspath(path)}: the policy is longer than {MAX_POLICY} bytes")
        try:
            policy = cls.loads(data.decode())
        except UnicodeDecodeError:  # the original message repeats a byte
            raise ValueError(f"{os.fspath(path)}: the policy is not UTF-8") from None
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None
        return policy.resolve_paths(Path(path).parent)

    @classmethod
    def loads(cls, text: str) -> Self:
        """Parse a policy from TOML text; raise as `load`."""
        members, known = strict_toml(text), settings_of(PolicySettings)
        faults = []
        if members.keys() & known:  # otherwise it is another kind of file, perhaps full of secrets
            unknown = [printable(name, MAX_NAME) for name in sorted(members.keys() - known)]
            faults = [f"unknown member {list_names(unknown)}"] if unknown else []
        if "footer_key" not in members:
            faults.append("footer_key is missing; set it to the id of a master key")
        faults += _list_faults(members)
        if faults:
            raise ValueError(f"invalid policy: {'; '.join(faults)}")
        return cls(**members)

    def prefix_of(self, path: str) -> bytes | None:
        """Return the AAD prefix of the file at a path inside the dataset; None without a prefix."""
        prefix = self.path_prefix()
        return None if prefix is None else prefix(path)

    def path_prefix(self, root: Root | None = None) -> PathPrefix | None:
        """Return the template of AAD prefixes in the dataset at `root`; None without a prefix."""
        if self.aad_prefix is None:
            return None
        return PathPrefix(self.aad_prefix.encode("utf-8", "surrogateescape"), root)

    @property
    def key_of_column(self) -> dict[str, str]:
        """Map of column or group to the id of its master key."""
        return {name: key for key, columns in self.column_keys.items() for name in columns}

    @property
    def names_keys(self) -> bool:
        """True if the policy names keys by reference, not master keys of a key service."""
        return self._may_name_keys and is_reference(self.footer_key, *KEY_KINDS)

    @property
    def master_key_ids(self) -> frozenset[str]:
        """The ids of all master keys that the policy names."""
        return frozenset((self.footer_key, *self.column_keys))

    def resolve_paths(self, folder: Path) -> Self:
        """Return the policy with absolute paths, of which relative ones are inside a folder."""
        kms = resolve_service(self.kms or "", folder)
        signed_by = tuple(resolve_writer(key, folder) for key in self.signed_by)
        keys: dict[str, Any] = {}
        if self.names_keys:
            keys["footer_key"] = resolve_reference(self.footer_key, folder)
            columns = self.column_keys.items()
            keys["column_keys"] = {resolve_reference(key, folder): to for key, to in columns}
        subjects = resolve_vault(self.subjects, folder)
        if not keys and (kms, signed_by, subjects) == (
            self.kms or "", self.signed_by, self.subjects
        ):  # fmt: skip
            return self
        return replace(self, kms=kms or None, signed_by=signed_by, subjects=subjects, **keys)


def resolve_service(kms: str, folder: Path) -> str:
    """Return a key service's URI whose paths are relative to a folder."""
    above = urllib.parse.quote(os.fspath(folder.absolute()))
    kms = re.sub(r"(?i)^(file|recipients):(?=[^/~?#])", rf"\1:{above}/", kms)
    if kms.lower().startswith("recipients:"):
        kms = re.sub(r"(?<=[?&]identity=)(?=[^/~&#])", f"{above}/", kms)
    relative = r"([?&](?:passphrase|pin-source|token)=file:)(?=[^/~&#])"
    return re.sub(relative, rf"\1{above}/", kms)


def resolve_reference(reference: str, folder: Path) -> str:
    """Return a reference whose path is relative to a folder."""
    kind, _, path = reference.partition(":")
    if kind != "file":
        return reference
    return f"file:{os.fspath(folder.absolute() / os.path.expanduser(path))}"


def resolve_vault(address: str | None, folder: Path) -> str | None:
    """Return the address of a vault, whose path is relative to a folder."""
    if address is None or "://" in address:
        return address
    return os.fspath(folder.absolute() / os.path.expanduser(address))


def resolve_writer(key: Any, folder: Path) -> Any:
    """Return the path of a writer's verifying key inside a folder; its line as it is."""
    if not isinstance(key, str) or not key or key.startswith(_VERIFIER):
        return key
    return os.fspath(folder.absolute() / os.path.expanduser(key))


def _rebuild_policy(kind: type[Policy], values: dict[str, Any]) -> Policy:
    return kind(**values)


class FilePolicy(Policy):
    """A policy that a file was written by: its ids name master keys, whatever their form."""

    _may_name_keys = False


def _list_faults(values: Mapping[str, Any], *, references: bool = True) -> list[str]:
    """Return all faults; a value of the wrong kind is not examined further."""
    wrong = list_faults(settings_of(PolicySettings).values(), values)
    valid = {name: value for name, value in values.items() if name not in wrong}
    faults = [fault for found in wrong.values() for fault in found]
    faults += _list_name_faults(valid.get("column_keys", {}), valid.get("plaintext_columns", ()))
    try:
        for master_key_id in (valid.get("footer_key", "?"), *valid.get("column_keys", {})):
            check_id(master_key_id)
    except ValueError:
        faults.append("a master key id is empty, too long or contains control characters")
    faults += _list_reference_faults(valid) if references else []
    return faults + _list_prefix_faults(valid.get("aad_prefix"))


def _list_reference_faults(values: Mapping[str, Any]) -> list[str]:
    """Return why references to keys cannot stand where they do."""
    ids = [values.get("footer_key", "?"), *values.get("column_keys", {})]
    references = [key for key in ids if isinstance(key, str) and is_reference(key, *KEY_KINDS)]
    if not references or "?" in ids:
        return []
    faults = []
    if len(references) < len(ids):
        faults.append(
            "footer_key and column_keys must be references to keys throughout, or ids of master "
            "keys throughout"
        )
    needless = [name for name in ("kms", "kms_aad", "subjects") if values.get(name)]
    needless += [name for name in _OF_SERVICES if not values.get(name, True)]
    if needless:
        faults.append(f"keys by reference need no key service: remove {list_names(needless)}")
    return faults


_OF_SERVICES = ("double_wrapping", "internal_key_material")


def list_lifetime_faults(seconds: float) -> list[str]:
    """Return why a lifetime of cached keys is invalid, if it is."""
    name = "cache_lifetime_seconds"
    return settings_of(PolicySettings)[name].kind.list_faults(name, seconds)


def find_service(kms: S | None, policy: Policy | None) -> S | str:
    """Return a key service, or the one that a policy names; raise ValueError if there is none."""
    service = kms or (None if policy is None else policy.kms)
    if service is None:
        raise ValueError("no key service is named; pass kms, or a policy that names one")
    return service


def service_of_environment() -> str | None:
    """Return the URI of the key service that MODCRYPT_KMS or VAULT_ADDR names; None for none."""
    if kms := os.environ.get("MODCRYPT_KMS"):
        return kms
    if address := os.environ.get("VAULT_ADDR"):
        parts = urllib.parse.urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
        return f"hcvault://{host}/transit{'?tls=off' * (parts.scheme == 'http')}"
    return None


def _list_name_faults(
    column_keys: Mapping[str, Sequence[str]], plaintext_columns: Sequence[str]
) -> list[str]:
    faults = []
    if empty := sorted(key for key, columns in column_keys.items() if not columns):
        faults.append(f"master keys without columns: {list_names(empty)}")
    counts = Counter([*plaintext_columns, *chain.from_iterable(column_keys.values())])
    if twice := sorted(name for name, count in counts.items() if count > 1):
        faults.append(f"columns named twice: {list_names(twice)}")
    return faults


def _list_prefix_faults(prefix: str | None) -> list[str]:
    if prefix is None:
        return []
    rest = prefix.replace(NAME, "").replace(PATH, "")
    if not prefix:
        return ["aad_prefix is empty; remove it to use no prefix"]
    if "{i}" in rest:
        return [
            'aad_prefix does not support "{i}"; to number the files of a dataset, use '
            "aad_prefix_template of write_dataset and read_table"
        ]
    if "{" in rest or "}" in rest:
        return ['aad_prefix supports only the placeholders "{path}" and "{name}"']
    return []
