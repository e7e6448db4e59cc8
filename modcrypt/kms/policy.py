"""Encryption policies: one TOML file of keys and columns for the API, command line and Spark.

    kms = "hcvault://vault.example.com/transit"
    footer_key = "lake-footer"                  # master keys, by their ids in the key service
    plaintext_columns = ["country"]
    aad_prefix = "people/{path}"                # {path}: the file's path inside the dataset

    [column_keys]
    lake-pii = ["ssn", "address"]               # a group's name covers all its leaves

A policy holds no key and no password.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from modcrypt.errors import MAX_NAME, list_names, printable
from modcrypt.io.places import Root
from modcrypt.kms.strict_toml import strict_toml
from modcrypt.parquet.crypto.path_prefix import NAME, PATH, PathPrefix
from modcrypt.parquet.crypto.properties import GCM_V1, list_mode_faults
from modcrypt.pkmt1.material import check_id
from modcrypt.report.short_repr import ShortRepr

_VERIFIER = "modcrypt-verifier:"  # the beginning of the line of a verifying key

KEY_BITS = (128, 192, 256)

MAX_POLICY = 1 << 20
"""Size limit of a policy file, in bytes: enough for 32,767 column names of 30 letters."""

S = TypeVar("S")

MAX_CACHE_LIFETIME = 7 * 24 * 3600
"""Upper limit of `cache_lifetime_seconds`, so that a revocation reaches running processes."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Policy(ShortRepr):
    """A policy for encrypting files with keys from a key service.

    Args:
        footer_key: Id of the master key that wraps footer keys.
        column_keys: Map of master key id to the columns, or groups, whose keys it wraps. Columns
            that the policy does not name are encrypted with the footer key.
        plaintext_columns: Names of columns or groups to leave unencrypted.
        kms: URI of the key service, for `KeyTools.from_policy`.
        kms_aad: Text to which the key service binds every wrapped key, if it supports AAD.
            Unwrapping requires the same text.
        encryption_algorithm, plaintext_footer, store_aad_prefix, data_page_v2_levels: Arguments of
            `FileEncryptionProperties`.
        aad_prefix: AAD prefix of each file. `{path}` in it stands for the file's path inside the
            dataset and binds the file to that path; `{name}` stands for the last part of the path,
            so that files of equal names in two folders can be swapped.
        double_wrapping: Whether to wrap data keys under key encryption keys (KEKs) instead of under
            the master keys themselves, which saves calls to the key service.
        internal_key_material: Whether to store wrapped keys in the file instead of in a file beside
            it, where they can be rotated without a change of the data file.
        data_key_length_bits, kek_length_bits: Key lengths in bits: 128, 192 or 256.
        cache_lifetime_seconds: Seconds to use a KEK for writing, and to cache one for reading; at
            most a week.
        signed_by: Verifying keys of writers, as lines or paths of `.pub` files: readers refuse
            files that none of them has signed. Without any, signatures are not checked.
        seal_at_least: Number that the dataset's seal must have at least, signed by one of these
            writers: readers refuse files that are not as sealed. None requires no seal.

    Raises:
        ValueError: The policy is invalid; the message lists all faults.
    """

    footer_key: str
    column_keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    plaintext_columns: Sequence[str] = ()
    kms: str | None = None
    kms_aad: str | None = None
    encryption_algorithm: str = GCM_V1
    plaintext_footer: bool = False
    aad_prefix: str | None = None
    store_aad_prefix: bool = True
    data_page_v2_levels: str = "encrypted"
    double_wrapping: bool = True
    internal_key_material: bool = True
    data_key_length_bits: int = 128
    kek_length_bits: int = 128
    cache_lifetime_seconds: float = 600.0
    signed_by: Sequence[str] = ()
    seal_at_least: int | None = None

    def __post_init__(self) -> None:
        if faults := _list_faults(vars(self)):
            raise ValueError(f"invalid policy: {'; '.join(faults)}")
        keys = {key: tuple(columns) for key, columns in self.column_keys.items()}
        object.__setattr__(self, "column_keys", MappingProxyType(keys))  # the dataclass is frozen
        object.__setattr__(self, "plaintext_columns", tuple(self.plaintext_columns))
        object.__setattr__(self, "signed_by", tuple(self.signed_by))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_policy, ({**vars(self), "column_keys": dict(self.column_keys)},)

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
        return policy._resolve_paths(Path(path).parent)

    @classmethod
    def loads(cls, text: str) -> Self:
        """Parse a policy from TOML text; raise as `load`."""
        members = strict_toml(text)
        known = {member.name: member.default for member in fields(cls)}
        faults = []
        if members.keys() & known:  # otherwise it is another kind of file, perhaps full of secrets
            unknown = [printable(name, MAX_NAME) for name in sorted(members.keys() - known)]
            faults = [f"unknown member {list_names(unknown)}"] if unknown else []
        if "footer_key" not in members:
            faults.append("footer_key is missing; set it to the id of a master key")
        values = {"footer_key": "?", "column_keys": {}, **members}
        faults += _list_faults({name: values.get(name, default) for name, default in known.items()})
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
    def master_key_ids(self) -> frozenset[str]:
        """The ids of all master keys that the policy names."""
        return frozenset((self.footer_key, *self.column_keys))

    def _resolve_paths(self, folder: Path) -> Self:
        """Return the policy with paths of keys and passphrases relative to the policy's folder."""
        kms = resolve_service(self.kms or "", folder)
        signed_by = tuple(resolve_writer(key, folder) for key in self.signed_by)
        if kms == (self.kms or "") and signed_by == self.signed_by:
            return self
        return replace(self, kms=kms or None, signed_by=signed_by)


def resolve_service(kms: str, folder: Path) -> str:
    """Return a key service's URI whose paths are relative to a folder."""
    above = urllib.parse.quote(os.fspath(folder.absolute()))
    kms = re.sub(r"^(file|recipients):(?=[^/~?#])", rf"\1:{above}/", kms)
    if kms.startswith("recipients:"):
        kms = re.sub(r"(?<=[?&]identity=)(?=[^/~&#])", f"{above}/", kms)
    return re.sub(r"(?<=passphrase=file:)(?=[^/~&#])", f"{above}/", kms)


def resolve_writer(key: Any, folder: Path) -> Any:
    """Return the path of a writer's verifying key inside a folder; its line as it is."""
    if not isinstance(key, str) or not key or key.startswith(_VERIFIER):
        return key
    return os.fspath(folder.absolute() / os.path.expanduser(key))


def _rebuild_policy(values: dict[str, Any]) -> Policy:
    return Policy(**values)


# --- faults --------------------------------------------------------------------------------------

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a string"),
    "str | None": ((str, type(None)), "a string"),
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a number"),
    "int | None": ((int, type(None)), "a number"),
    "float": ((int, float), "a number"),
    "Sequence[str]": ((list, tuple), "a list of names"),
    "Mapping[str, Sequence[str]]": ((Mapping,), "a table of master keys and their columns"),
}
"""The types of values, and their names in messages, by the annotation of a field."""


def _list_faults(values: Mapping[str, Any]) -> list[str]:
    """Return all faults; a value of the wrong type is not examined further."""
    kinds = {member.name: _KINDS[str(member.type)] for member in fields(Policy)}
    valid = {name: value for name, value in values.items() if _fits(value, kinds[name][0])}
    faults = [f"{name} must be {what}" for name, (_, what) in kinds.items() if name not in valid]
    faults += _list_name_faults(valid.get("column_keys", {}), valid.get("plaintext_columns", ()))
    ids = [valid.get("footer_key", "?"), *valid.get("column_keys", {})]
    try:
        for master_key_id in ids:
            check_id(master_key_id)
    except ValueError:
        faults.append("a master key id is empty, too long or contains control characters")
    faults += list_mode_faults(
        valid.get("encryption_algorithm", GCM_V1), valid.get("data_page_v2_levels", "encrypted")
    )
    if not all(isinstance(key, str) and key for key in valid.get("signed_by", ())):
        faults.append("signed_by must be a list of verifying keys, as lines or paths")
    if (least := valid.get("seal_at_least")) is not None and (
        least < 1 or not valid.get("signed_by")
    ):
        faults.append("seal_at_least must be 1 or more, and needs signed_by")
    for name in ("data_key_length_bits", "kek_length_bits"):
        if valid.get(name, 128) not in KEY_BITS:
            faults.append(f"{name} must be 128, 192 or 256")
    faults += list_lifetime_faults(valid.get("cache_lifetime_seconds", 0))
    kms = valid.get("kms")
    if kms is not None and not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", kms):
        faults.append("kms must be a URI, such as file:lake.keyring or hcvault://host/transit")
    return faults + _list_prefix_faults(valid.get("aad_prefix"))


def list_lifetime_faults(seconds: float) -> list[str]:
    """Return why a lifetime of cached keys is invalid, if it is."""
    if 0 <= seconds <= MAX_CACHE_LIFETIME:
        return []
    return [f"cache_lifetime_seconds must be 0 to {MAX_CACHE_LIFETIME}"]


def find_service(kms: S | None, policy: Policy | None) -> S | str:
    """Return a key service, or the one that a policy names; raise ValueError if there is none."""
    service = kms or (None if policy is None else policy.kms)
    if service is None:
        raise ValueError("no key service is named; pass kms, or a policy that names one")
    return service


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _list_name_faults(
    column_keys: Mapping[Any, Any], plaintext_columns: Sequence[Any]
) -> list[str]:
    faults = []
    lists = {f"column_keys of {key}": columns for key, columns in column_keys.items()}
    lists["plaintext_columns"] = plaintext_columns
    named: list[str] = []
    for what, names in lists.items():
        if isinstance(names, list | tuple) and all(isinstance(n, str) and n for n in names):
            named += names
        else:
            faults.append(f"{what} must be a list of names")
    if empty := sorted(str(key) for key, columns in column_keys.items() if columns in ([], ())):
        faults.append(f"master keys without columns: {list_names(empty)}")
    counts = Counter(named)
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
