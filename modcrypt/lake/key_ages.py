"""The ages of master keys and their versions, as the key service reports them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import KeyRetrievalError
from modcrypt.keys import invocations
from modcrypt.kms.client import KmsClient, MasterKey, capabilities_of
from modcrypt.lake.declarations.declaration import AnyDataset, Rotation
from modcrypt.lake.declarations.partitions import matches_any, names_in
from modcrypt.lake.files.file_states import KeyUse, KnownWraps
from modcrypt.runtime.fork_safety import cached_property


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True)
class KeyAges:
    """The master keys of a key service, listed once."""

    # Client of the key service. Some services cannot list their keys; their ages are then unknown.
    client: KmsClient
    now: Callable[[], datetime.datetime] = _utc_now  # function that returns the current time

    @cached_property
    def masters(self) -> Mapping[str, MasterKey]:
        """The master keys by id; empty if the service cannot list them."""
        list_keys: Any = getattr(self.client, "list_keys", None)
        if list_keys is None:
            return {}
        try:
            return {master.id: master for master in list_keys()}
        except (KeyRetrievalError, OSError):  # without permission to list, ages are unknown
            return {}

    def age_of(self, master_key_id: str) -> float | None:
        """Return the age of the newest version of a master key in seconds; None if unknown."""
        master = self.masters.get(master_key_id)
        if master is None or master.created is None:
            return None
        try:
            created = datetime.datetime.fromisoformat(master.created)
        except ValueError:
            return None
        if created.tzinfo is None:
            created = created.replace(tzinfo=datetime.UTC)
        return (self.now() - created).total_seconds()

    def is_destroyed(self, key: KeyUse) -> bool:
        """Return whether the master key of a key, or its version, is listed as destroyed."""
        if (master := self.masters.get(key.master_key_id or "")) is None:
            return False
        return master.destroyed or key.version in [str(n) for n in master.destroyed_versions]

    def find_old(self, keys: Collection[KeyUse], rotation: Rotation) -> str:
        """Return the key that stays too long under an older version; empty if none does."""
        if rotation.rewrap_after is None:
            return ""
        for key in keys:
            master = self.masters.get(key.master_key_id or "")
            if master is None or master.version is None or key.version is None:
                continue
            age = self.age_of(master.id)
            if key.version != str(master.version) and (age is None or age >= rotation.rewrap_after):
                return f"under version {key.version} of {master.id}; the newest is {master.version}"
        return ""

    def find_due(self, declared: AnyDataset, used: Iterable[str] = ()) -> list[str]:
        """Return the declared master keys whose newest version is older than the rules allow.

        Args:
            used: Ids that its files name. Anyone can write them, so only those count that the
                declaration gives to a partition.
        """
        limit, templates = declared.rotation.max_version_age, declared.key_templates
        if limit is None:
            return []
        ids = {key for key in templates if not names_in(key)}
        ids |= {key for key in used if matches_any(templates, key)}
        return sorted(key for key in ids if (age := self.age_of(key)) is not None and age > limit)

    def find_worn(
        self, wraps: Sequence[KnownWraps], is_meant: Callable[[str], object]
    ) -> tuple[KnownWraps, ...]:
        """Return the keys that near the limit of wraps, of those that may still be used.

        Former versions of a master key wrap nothing any more, and services that derive a key for
        each wrap have no such limit.

        Args:
            is_meant: Function that returns whether a dataset is under a master key, given its id.
        """
        return tuple(
            each for each in wraps
            if each.count >= invocations.WARN_WRAPS and is_meant(each.master_key_id)
            and (each.kek_id is not None or self._may_wrap(each))
        )  # fmt: skip

    def _may_wrap(self, wraps: KnownWraps) -> bool:
        if not capabilities_of(self.client).random_nonces:
            return False
        master = self.masters.get(wraps.master_key_id)
        if master is None or master.version is None or wraps.version is None:
            return True
        return wraps.version == str(master.version)


def add_versions(client: KmsClient, master_key_ids: Collection[str]) -> None:
    """Add a version to each of some master keys; raise ValueError if the service cannot do it."""
    rotate_key: Any = getattr(client, "rotate_key", None)
    if rotate_key is None:
        raise ValueError(
            "this key service adds no versions through modcrypt; rotate "
            f"{', '.join(master_key_ids)} with its own tools"
        )
    for master_key_id in master_key_ids:
        rotate_key(master_key_id)
