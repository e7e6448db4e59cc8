"""The choice of a master key, a version of it, or a KEK, such as `pii`, `pii@1` or a KEK's hex."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from modcrypt.lake.declarations.declaration import AnyDataset
from modcrypt.lake.files.file_states import KeyUse

_VERSIONED = re.compile(r"(.+)@([1-9][0-9]{0,8}|[0-9a-f]{32})", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChoice:
    """The keys whose impact is asked for, or that are compromised.

    Attributes:
        key: Id of a master key, or of a KEK in hex.
        version: Version of the master key; None for all.
    """

    key: str
    version: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the choice of `ID` or `ID@VERSION`."""
        match = _VERSIONED.fullmatch(text)
        return cls(key=text) if match is None else cls(key=match[1], version=match[2])

    def __str__(self) -> str:
        """Return the text that `parse` takes."""
        return self.key if self.version is None else f"{self.key}@{self.version}"

    def matches(self, use: KeyUse) -> bool:
        """Return whether a key of a file is wrapped under the chosen key."""
        if use.kek_id is not None and use.kek_id in (self.key, self.key.lower()):
            return True
        return use.master_key_id == self.key and self.version in (None, use.version)

    def may_precede(self, use: KeyUse, replacements: Collection[str]) -> bool:
        """Return whether a key of a file may have been wrapped under the chosen key before.

        Rewrapping leads to a newer version, or to a master key that replaces the chosen one.
        """
        if use.master_key_id != self.key:
            return use.master_key_id in replacements
        if self.version is None or use.version == self.version:
            return False
        known = use.version is not None and use.version.isdigit() and self.version.isdigit()
        return not known or int(use.version or 0) > int(self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerRecipient(KeyChoice):
    """A recipient whose access has ended: the key is `recipient:ID`."""

    def may_precede(self, use: KeyUse, replacements: Collection[str]) -> bool:
        """Return True: the data keys of any file may have been encrypted to the recipient."""
        return True


def find_replacements(dataset: AnyDataset, key: str) -> frozenset[str]:
    """Return the master keys that replace a former one, or did so before they were replaced."""
    replaced = dataset.previous.master_keys
    if key not in replaced:
        return frozenset()
    newest = replaced[key]
    return frozenset({newest, *(old for old, new in replaced.items() if new == newest)} - {key})
