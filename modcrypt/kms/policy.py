"""Which keys protect which columns, and how: one TOML file for the API, the command line and Spark.

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
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from modcrypt.errors import MAX_NAME, printable
from modcrypt.io.storage import Root
from modcrypt.kms.strict_toml import strict_toml
from modcrypt.parquet.crypto.path_prefix import NAME, PATH, PathPrefix
from modcrypt.parquet.crypto.properties import ALGORITHMS, GCM_V1
from modcrypt.pkmt1.material import check_id

__all__ = ["MAX_CACHE_LIFETIME", "Policy"]

KEY_BITS = (128, 192, 256)

MAX_POLICY = 1 << 20
"""Largest policy file, in bytes: the names of 32,767 columns, of 30 letters each."""

MAX_CACHE_LIFETIME = 7 * 24 * 3600
"""Longest `cache_lifetime_seconds`: a revocation must reach running processes some day."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How files are to be encrypted with keys from a key service.

    Args:
        footer_key: id of the master key under which footer keys are wrapped.
        column_keys: id of a master key to the columns, or groups, whose keys it wraps; columns
            that are named nowhere are sealed with the footer key.
        plaintext_columns: names of columns or groups to leave unencrypted, said aloud.
        kms: URI of the key service, for `KeyTools.from_policy`.
        kms_aad: text to which the key service binds every wrapped key, where it can; the same is
            needed to unwrap.
        encryption_algorithm, plaintext_footer, store_aad_prefix, data_page_v2_levels: as of
            `FileEncryptionProperties`.
        aad_prefix: AAD prefix of each file. `{path}` in it is the file's path inside the dataset,
            to which it binds the file; `{name}` is the last part of that path, so files of equal
            names in two folders can be swapped.
        double_wrapping: wrap data keys under key encryption keys (KEKs), which spares the key
            service; else under the master keys themselves.
        internal_key_material: keep wrapped keys in the file; else in a file beside it, where they
            can be rotated without touching the data file.
        data_key_length_bits, kek_length_bits: 128, 192 or 256.
        cache_lifetime_seconds: how long a KEK is used, and kept when read: up to a week.

    Raises:
        ValueError: all that is wrong.
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

    def __post_init__(self) -> None:
        if faults := _faults({one.name: getattr(self, one.name) for one in fields(self)}):
            raise ValueError(f"the policy is wrong: {'; '.join(faults)}")
        keys = {key: tuple(columns) for key, columns in self.column_keys.items()}
        object.__setattr__(self, "column_keys", MappingProxyType(keys))  # frozen for everyone else
        object.__setattr__(self, "plaintext_columns", tuple(self.plaintext_columns))

    def __reduce__(self) -> tuple[Any, ...]:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return _rebuilt, ({**values, "column_keys": dict(self.column_keys)},)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy from a TOML file.

        Raises:
            ValueError: all that is wrong in it, members that no policy has among that.
            OSError: it can't be read.
        """
        with open(path, "rb") as file:
            data = file.read(MAX_POLICY + 1)
        if len(data) > MAX_POLICY:
            raise ValueError(f"{os.fspath(path)}: more than {MAX_POLICY} bytes, no policy")
        try:
            policy = cls.loads(data.decode())
        except UnicodeDecodeError:  # its message repeats a byte
            raise ValueError(f"{os.fspath(path)}: the policy is not UTF-8") from None
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None
        return policy._beside(Path(path).parent)

    @classmethod
    def loads(cls, text: str) -> Self:
        """Take a policy out of TOML text; raises as `load`."""
        members = strict_toml(text)
        known = {one.name: one.default for one in fields(cls)}
        faults = []
        if members.keys() & known:  # a file of another kind may be full of secrets
            unknown = sorted(members.keys() - known)
            faults = [f"a policy has no {printable(name, MAX_NAME)}" for name in unknown]
        if "footer_key" not in members:
            faults.append("footer_key is missing: the id of a master key")
        values = {"footer_key": "?", "column_keys": {}, **members}
        faults += _faults({name: values.get(name, default) for name, default in known.items()})
        if faults:
            raise ValueError(f"the policy is wrong: {'; '.join(faults)}")
        return cls(**members)

    def prefix_of(self, path: str) -> bytes | None:
        """Return the AAD prefix of the file with a path inside the dataset; None for none."""
        prefix = self.path_prefix()
        return None if prefix is None else prefix(path)

    def path_prefix(self, root: Root | None = None) -> PathPrefix | None:
        """Return the template of AAD prefixes in the dataset at `root`; None for none."""
        if self.aad_prefix is None:
            return None
        return PathPrefix(self.aad_prefix.encode("utf-8", "surrogateescape"), root)

    @property
    def key_of_column(self) -> dict[str, str]:
        """Give column or group to the id of its master key."""
        return {name: key for key, columns in self.column_keys.items() for name in columns}

    @property
    def master_key_ids(self) -> frozenset[str]:
        """The ids of all master keys that the policy names."""
        return frozenset((self.footer_key, *self.column_keys))

    def _beside(self, folder: Path) -> Self:
        """Take paths of a keyring and its passphrase as relative to the policy's folder."""
        above = urllib.parse.quote(os.fspath(folder.absolute()))
        kms = re.sub(r"^file:(?=[^/~?#])", f"file:{above}/", self.kms or "")
        kms = re.sub(r"(?<=passphrase=file:)(?=[^/~&#])", f"{above}/", kms)
        if kms == (self.kms or ""):
            return self
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return type(self)(**{**values, "kms": kms})


def _rebuilt(values: dict[str, Any]) -> Policy:
    return Policy(**values)


# --- what can be wrong ---------------------------------------------------------------------------

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "footer_key": ((str,), "a string"),
    "column_keys": ((Mapping,), "a table of master keys and their columns"),
    "plaintext_columns": ((list, tuple), "a list of names"),
    "kms": ((str, type(None)), "a string"),
    "kms_aad": ((str, type(None)), "a string"),
    "encryption_algorithm": ((str,), "a string"),
    "plaintext_footer": ((bool,), "true or false"),
    "aad_prefix": ((str, type(None)), "a string"),
    "store_aad_prefix": ((bool,), "true or false"),
    "data_page_v2_levels": ((str,), "a string"),
    "double_wrapping": ((bool,), "true or false"),
    "internal_key_material": ((bool,), "true or false"),
    "data_key_length_bits": ((int,), "a number"),
    "kek_length_bits": ((int,), "a number"),
    "cache_lifetime_seconds": ((int, float), "a number"),
}


def _faults(values: Mapping[str, Any]) -> list[str]:
    """List all that is wrong; what has a wrong type is not looked at any further."""
    right = {name: value for name, value in values.items() if _fits(value, _KINDS[name][0])}
    faults = [f"{name} is {what}" for name, (_, what) in _KINDS.items() if name not in right]
    faults += _name_faults(right.get("column_keys", {}), right.get("plaintext_columns", ()))
    ids = [right.get("footer_key", "?"), *right.get("column_keys", {})]
    if not all(map(_is_id, ids)):
        faults.append("the id of a master key is empty, overlong or has control characters")
    if right.get("encryption_algorithm", GCM_V1) not in ALGORITHMS:
        faults.append(f"encryption_algorithm is one of {', '.join(ALGORITHMS)}")
    if right.get("data_page_v2_levels", "encrypted") not in ("encrypted", "plaintext"):
        faults.append('data_page_v2_levels is "encrypted" or "plaintext"')
    for name in ("data_key_length_bits", "kek_length_bits"):
        if right.get(name, 128) not in KEY_BITS:
            faults.append(f"{name} is 128, 192 or 256")
    if not 0 <= right.get("cache_lifetime_seconds", 0) <= MAX_CACHE_LIFETIME:
        faults.append(f"cache_lifetime_seconds is 0 to {MAX_CACHE_LIFETIME}")
    kms = right.get("kms")
    if kms is not None and not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", kms):
        faults.append("kms is no URI, such as file:lake.keyring or hcvault://host/transit")
    return faults + _prefix_faults(right.get("aad_prefix"))


def _is_id(value: object) -> bool:
    try:
        check_id(value)
    except ValueError:
        return False
    return True


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _name_faults(column_keys: Mapping[Any, Any], plaintext_columns: Sequence[Any]) -> list[str]:
    faults = []
    lists = {f"column_keys of {key}": columns for key, columns in column_keys.items()}
    lists["plaintext_columns"] = plaintext_columns
    named: list[str] = []
    for what, names in lists.items():
        if isinstance(names, list | tuple) and all(isinstance(n, str) and n for n in names):
            named += names
        else:
            faults.append(f"{what} is a list of names")
    if empty := sorted(str(key) for key, columns in column_keys.items() if columns in ([], ())):
        faults.append(f"master keys without columns: {', '.join(empty)}")
    counts = Counter(named)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        faults.append(f"columns that are named twice: {', '.join(twice)}")
    return faults


def _prefix_faults(prefix: str | None) -> list[str]:
    if prefix is None:
        return []
    rest = prefix.replace(NAME, "").replace(PATH, "")
    if not prefix:
        return ["aad_prefix has at least one letter; leave it out for no prefix"]
    if "{i}" in rest:
        return [
            'aad_prefix takes no "{i}": number the files of a dataset by aad_prefix_template of '
            "write_dataset and read_table"
        ]
    if "{" in rest or "}" in rest:
        return ['aad_prefix has no placeholders but "{path}" and "{name}"']
    return []
