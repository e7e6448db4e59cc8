"""Describe what a file beside encrypted ones shows of columns, and which columns are secret."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote, unquote_plus

from modcrypt.parquet.format.schema import covering_name

REMEDIES = {
    "parquet-summary": "remove it: readers do without; encrypt --drop-summaries does so",
    "plaintext-parquet": "encrypt it with the other files, or remove it",
    "footer-statistics": "re-key the file with modcrypt rekey, which drops statistics; copy files "
    "of Hudi to files with encrypted footers",
    "delta-log": "write the data to a new Delta table without statistics of these columns, or as "
    "an Iceberg table, and remove this one",
    "hudi-timeline": "copy the data to an encrypted folder or Iceberg table, and remove this table",
    "iceberg-manifest": "encrypt the table with modcrypt iceberg encrypt, then expire its old "
    "snapshots",
    "iceberg-metadata": "set write.summary.partition-limit to 0, and expire the snapshots",
    "puffin": "drop the statistics of these columns in the engine that made them, and remove the "
    "file",
    "partition-path": "partition by a column that is not secret, or by a keyed hash (modcrypt mask "
    "--hash)",
    "event-log": "move the log away; modcrypt doctor --event-log searches it for keys",
    "stale-checksum": "remove it: it is of the file as it was before, and Hadoop's readers refuse "
    "the file",
    "plaintext-data": "encrypt it with modcrypt ags1 encrypt, or remove it",
    "leftover": "remove it",
    "unread": "look at it yourself; modcrypt could not",
}
"""The remedy for a leak, by its kind."""

SUMMARIES = frozenset({"_metadata", "_common_metadata"})
"""Names of the files in which Parquet writers repeat the footers and the schema of a folder."""


Columns: TypeAlias = frozenset[tuple[str, ...]]  # paths of columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The contents of one file that readers without a key see."""

    kind: str
    path: str  # path in which values of directory names are replaced by *
    what: str
    columns: Columns = frozenset()  # columns with values in it
    anything: bool = False  # whether it may have values of further columns
    schema: bool = False  # whether it has the names of all columns
    # Whether the names may be values: only those of columns that are known to be secret count.
    named: bool = False
    folders: bool = False  # whether the columns are those of partitions, by names of folders
    unknown: bool = False  # whether it counts if no secret column is known by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The kind of a file, and what readers without a key see of it."""

    encrypted: Columns = frozenset()
    plain: Columns = frozenset()
    hidden: bool = False  # whether its footer, or the whole file, is encrypted
    exposures: tuple[Exposure, ...] = ()

    @property
    def is_encrypted(self) -> bool:
        """True if any part of the file is encrypted."""
        return self.hidden or bool(self.encrypted)


def expose(
    kind: str, path: str, what: str, columns: Iterable[tuple[str, ...]] = (), **more: bool
) -> Contents:
    """Return the contents of a file that shows one thing; `more` are attributes of `Exposure`."""
    shown = Exposure(kind=kind, path=path, what=what, columns=frozenset(columns), **more)
    return Contents(exposures=(shown,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrecy:
    """The secret columns, by a policy or by what the files themselves encrypt."""

    named: frozenset[str] = frozenset()  # names of secret columns or groups
    plain: frozenset[str] = frozenset()
    # Whether a column without a name in either is in plaintext, too, as by a pattern.
    is_plain: Callable[[tuple[str, ...]], bool] = lambda _path: False
    others: bool = False  # whether columns of neither are secret
    schema: bool = False  # whether the names of columns are secret
    # Whether `others` covers partitions, too; files lack these columns.
    partitions: bool = False

    @classmethod
    def of_encryption(cls, encryption: Any) -> Secrecy:
        """Return the columns that new files keep secret."""
        checked = encryption if hasattr(encryption, "plaintext_footer") else encryption.for_check()
        return cls(
            named=frozenset(encryption.column_keys),
            plain=frozenset(encryption.plaintext_columns),
            others=True,
            schema=not checked.plaintext_footer,
        )

    @classmethod
    def of_policy(cls, policy: Any) -> Secrecy:
        """Return the columns that a policy keeps secret."""
        return cls(
            named=frozenset(policy.key_of_column),
            plain=frozenset(policy.plaintext_columns),
            others=True,
            schema=not policy.plaintext_footer,
        )

    def is_secret(self, path: tuple[str, ...], *, named: bool = False) -> bool:
        """Return whether a column, or any leaf below it, is secret; `named` ignores the others."""
        if _covers(path, self.named):
            return True
        is_plain = covering_name(path, self.plain) is not None or self.is_plain(path)
        if is_plain and not named:
            return False
        # Engines differ in the case of names.
        if _covers(tuple(part.lower() for part in path), _lower(self.named)):
            return True
        return self.others and not named

    def is_secret_partition(self, path: tuple[str, ...]) -> bool:
        """Return whether a column is secret whose values are in names of folders."""
        if self.is_secret(path, named=True):
            return True
        lower = path[0].lower()
        is_plain = any(name.lower() == lower for name in self.plain) or self.is_plain(path)
        return self.partitions and not is_plain

    def find_columns(self, exposure: Exposure) -> tuple[str, ...] | None:
        """Return the secret columns that a file shows; None if it shows nothing secret."""
        secret = [
            ".".join(path)
            for path in exposure.columns
            if (
                self.is_secret_partition(path)
                if exposure.folders
                else self.is_secret(path, named=exposure.named)
            )
        ]
        anything = exposure.anything and bool(self.named or self.others)
        anything |= exposure.unknown and self.others and not self.named
        if secret or anything or (exposure.schema and self.schema):
            return tuple(sorted(secret))
        return None


@dataclass(kw_only=True)
class ObservedColumns:
    """The columns that the encrypted files of a folder encrypt, as far as it shows without keys."""

    encrypted: set[tuple[str, ...]] = field(default_factory=set)
    plain: set[tuple[str, ...]] = field(default_factory=set)
    hidden: bool = False  # whether any footer is encrypted

    def add(self, contents: Contents) -> None:
        """Add a file."""
        self.hidden |= contents.hidden
        if contents.is_encrypted:
            self.encrypted |= contents.encrypted
            self.plain |= contents.plain

    def secrecy(self, named: Iterable[str] = ()) -> Secrecy:
        """Return the columns that the files encrypt or that the caller names."""
        return Secrecy(
            named=frozenset(".".join(path) for path in self.encrypted) | frozenset(named),
            plain=frozenset(".".join(path) for path in self.plain - self.encrypted),
            others=self.hidden,
            schema=self.hidden,
        )


def columns_of_folders(path: str) -> Columns:
    """Return the columns whose values are in the names of folders, in Hive's form `NAME=VALUE`.

    Engines escape names as parts of URLs; Iceberg writes "+" for a space.
    """
    names = {name for part in path.split("/") for name, is_, _ in [part.partition("=")] if is_}
    return frozenset(
        (column,) for name in names if name for column in (unquote(name), unquote_plus(name))
    )


def _covers(path: tuple[str, ...], names: frozenset[str]) -> bool:
    """Return whether names are those of a column, of a group around it, or of a leaf below it."""
    return covering_name(path, names) is not None or ".".join(path) in _find_groups(names)


@lru_cache(maxsize=8)
def _lower(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


@lru_cache(maxsize=8)
def _find_groups(names: frozenset[str]) -> frozenset[str]:
    """Return the names of all groups around the columns with these names."""
    parts = [name.split(".") for name in names]
    return frozenset(".".join(part[:end]) for part in parts for end in range(1, len(part)))
