"""The choice of a master key, a version of it, or a KEK (`pii`, `pii@1` or hex), and its checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from modcrypt.errors import KeyNotFoundError
from modcrypt.jobs.key_scan import parse_wrapped_version
from modcrypt.keys import Key
from modcrypt.kms.calls import wrap
from modcrypt.kms.client import KmsClient, MasterKey
from modcrypt.lake.declarations.declaration import AnyDataset
from modcrypt.lake.declarations.partitions import matches_any
from modcrypt.lake.files.file_states import KeyUse
from modcrypt.report.suggestions import suggest

_VERSIONED = re.compile(r"(.+)@([1-9][0-9]{0,8}|[0-9a-f]{32})", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChoice:
    """The keys whose impact is asked for, or that are compromised."""

    key: str  # id of a master key, or of a KEK in hex
    version: str | None = None  # version of the master key; None for all

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


def check_known(
    choices: Iterable[KeyChoice], masters: Mapping[str, MasterKey], others: Collection[str],
    list_uses: Callable[[], Iterable[KeyUse]],
) -> None:  # fmt: skip
    """Check that keys exist, so that a misspelt one is not taken for one that opens nothing.

    Args:
        masters: Master keys that the key service lists, by id; empty if it lists none.
        others: Further ids that are known, such as those of keys that were destroyed.
        list_uses: Function that returns the keys of all files; it is called if the others do not
            know a key.

    Raises:
        ValueError: Neither the key service nor any file knows a key.
    """
    unknown = [choice for choice in choices if not _is_known(choice, masters, others)]
    if not unknown:
        return
    uses = set(list_uses())
    for choice in unknown:
        if any(map(choice.matches, uses)):
            continue
        if (master := masters.get(choice.key)) is not None:
            raise ValueError(
                f"no file uses version {choice.version} of {choice.key}, whose newest version is "
                f"{master.version}"
            )
        found = {use.master_key_id for use in uses if use.master_key_id}
        hint = suggest(choice.key, sorted({*masters, *others, *found}))
        raise ValueError(f"neither the key service nor any file knows a key {choice.key}{hint}")


def _is_known(choice: KeyChoice, masters: Mapping[str, MasterKey], others: Collection[str]) -> bool:
    master, version = masters.get(choice.key), choice.version
    if master is None:
        return choice.key in others
    if master.version is None or version is None or not version.isdigit():
        return True
    return int(version) <= master.version


def check_writing(
    dataset: AnyDataset, templates: Collection[str], find_newest: Callable[[str], str | None]
) -> None:
    """Check that no compromised key would protect new files of a dataset.

    `templates` are ids, or their templates, of master keys for new files. `find_newest` returns the
    version with which a master key wraps; None if it is unknown. Raise ValueError if a key is
    compromised, and has no newer version that is not.
    """
    choices = tuple(map(KeyChoice.parse, dataset.compromised))
    for choice in choices:
        if not matches_any(templates, choice.key):
            continue
        versions = {each.version for each in choices if each.key == choice.key}
        newest = None if None in versions else find_newest(choice.key)
        if newest is None or newest in versions:
            raise ValueError(
                f"{dataset.name}: new files would be under the compromised {choice}: "
                + _advise(choice, newest)
            )


def _advise(choice: KeyChoice, newest: str | None) -> str:
    other = "name a new master key in place of it, and map it to that one in previous.master_keys"
    if choice.version is None:
        return other
    if newest is None:
        return f"the key service does not tell its newest version; {other}"
    return f"add a version (modcrypt keys rotate --key {choice.key}), or {other}"


class KeyTrial:
    """Wraps on trial: the first with a master key shows whether it exists and may be used."""

    def __init__(self, client: KmsClient) -> None:
        self._client = client
        self._versions: dict[tuple[str, str], str | None] = {}

    def wrap_with(self, key: str, aad: str = "", known: Iterable[str] = ()) -> str | None:
        """Wrap a key that is thrown away; return the version that wraps, None if unknown.

        `known` are ids that a misspelt one is compared with. Raise KeyRetrievalError if the key
        service has no such master key, refuses, or is unavailable.
        """
        if (key, aad) not in self._versions:
            try:
                wrapped = wrap(self._client, Key.generate(), key, aad.encode())
            except KeyNotFoundError as error:
                hint = suggest(key, known)  # a keyring gives its own
                raise KeyNotFoundError(f"{str(error).removesuffix(hint)}{hint}") from None
            self._versions[key, aad] = parse_wrapped_version(wrapped)
        return self._versions[key, aad]
