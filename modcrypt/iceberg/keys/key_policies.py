"""Which keys new files are sealed under: a table's `KeyPolicy`, and the KEKs that it asks for.

    kek_per       manifest list (encryption-keys)     data and delete files (in their manifests)
    table         one KEK for the table               in the clear within the sealed manifest
    day           a KEK for each day (UTC)            the same
    partition     one KEK for the table               a KEK for each partition
    files         one KEK for the table               a KEK for each N files of a commit

Iceberg's Java reads the first two. It must not append to the others with their KEKs in the table:
it takes any KEK for its manifest lists, and a snapshot must not go when a partition's KEK does.
With KEKs in a key store it can't. In single wrapping a master key takes the place of every KEK.
A KEK is used until it has reached its lifetime: the newest that hasn't, of those under the table's
current master key; otherwise one is made.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, Self

from modcrypt.errors import (
    FormatError,
    IntegrityError,
    KeyMaterialError,
    PlaintextError,
    UnsupportedFormatError,
)
from modcrypt.iceberg.format.table_metadata import KEY_ID, EncryptedKey, TableMetadata
from modcrypt.iceberg.keys.wrapping_keys import TABLE, IcebergKey, OpenKey

if TYPE_CHECKING:
    from modcrypt.iceberg.keys.key_resolver import KeyStore
    from modcrypt.iceberg.tables.table import IcebergTable

__all__ = [
    "KEKS_SINCE",
    "SINGLES",
    "KeyPolicy",
    "WritingKeys",
    "later_than",
    "master_key_of",
    "partition_scope",
    "retired",
    "writing_key",
    "writing_keys",
    "writing_policy",
]

PREFIX = "modcrypt.encryption."
"""What the names of a policy's table properties begin with."""

DAY_MS = 24 * 60 * 60 * 1000

MAX_DAYS = 36500
"""Days of the longest lifetime of a KEK."""

FILES_SCOPE = "files"
"""Scope of a KEK for a number of files: it is used in one commit alone."""

KEKS_SINCE = "modcrypt.keks-since"
"""Table property: KEKs of a key store that were made before, in ms since 1970, seal nothing new.

A rotation says so: the old ones stay there for older versions of the table. So does a change of
policy away from the store, or back to it: what lies there may be about to be dropped.
"""

SINGLES = "modcrypt.single-wrapped"
"""Table property: by a policy of before the master key itself has wrapped keys of data files.

Manifests in which they are outlive the snapshots whose entries of `encryption-keys` tell of that.
"""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "kek_per": ("table", "partition", "day", "files"),
    "wrapping": ("double", "single"),
    "store": ("table", "key-store"),
}
_COUNT = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True, kw_only=True)
class KeyPolicy:
    """How the keys of a table's new files are kept. What there is already stays as it is.

    Attributes:
        kek_per: for what there is a KEK of its own, as at the head of this room.
        files: how many files share a KEK, where there is one for a number of files.
        wrapping: `double`: key metadata is sealed under KEKs, which the master key wraps; or
            `single`: the master key wraps each data key itself, at one call of the key service
            for each. Then `kek_per` is `table`, for manifest lists alone, or `files`, for the data
            and delete files, too.
        kek_lifetime_days: how old a KEK gets before another takes its place; as in Java 730.
        store: where KEKs are kept: in the `table`'s metadata, or in the `key-store` that the table
            was opened with.

    Raises:
        ValueError: one of them is none of these, or they don't go together.
    """

    kek_per: Literal["table", "partition", "day", "files"] = "table"
    files: int = 1000
    wrapping: Literal["double", "single"] = "double"
    kek_lifetime_days: int = 730
    store: Literal["table", "key-store"] = "table"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}")
        if type(self.files) is not int or not 0 < self.files < 10**9:
            raise ValueError("files is a number of files, 1 or more")
        if type(self.kek_lifetime_days) is not int or not 0 < self.kek_lifetime_days <= MAX_DAYS:
            raise ValueError(f"kek_lifetime_days is 1 to {MAX_DAYS}")
        if self.wrapping == "single" and self.kek_per not in ("table", "files"):
            raise ValueError("in single wrapping there are no KEKs: kek_per is table or files")
        if self.wrapping == "single" and self.store != "table":
            raise ValueError("in single wrapping there are no KEKs to be kept in a key store")

    @classmethod
    def of(cls, metadata: TableMetadata) -> Self:
        """Read the policy of a table; of one that says nothing, that of Iceberg's Java.

        Raises:
            FormatError: its properties are those of no policy.
            UnsupportedFormatError: one of them is not known.
        """
        names = {_property(one.name): one.name for one in fields(cls)}
        said = {k: v for k, v in metadata.properties.items() if k.startswith(PREFIX)}
        if unknown := sorted(said.keys() - names.keys()):
            raise UnsupportedFormatError(f"{metadata.name}: {unknown[0]!r} is not known")
        found: dict[str, str | int] = {}
        for name, text in said.items():
            counts = names[name] not in _CHOICES
            found[names[name]] = int(text) if counts and _COUNT.fullmatch(text) else text
        try:
            return cls(**found)  # type: ignore[arg-type]  # checked there
        except ValueError as error:
            raise FormatError(f"{metadata.name}: {PREFIX}*: {error}") from None

    @property
    def wraps_files_singly(self) -> bool:
        """Whether the master key itself wraps the keys of data and delete files."""
        return self.wrapping == "single" and self.kek_per == "files"

    def properties(self) -> dict[str, str]:
        """Give the table properties that tell all of the policy."""
        return {_property(one.name): str(getattr(self, one.name)) for one in fields(self)}

    def list_scope(self, now_ms: int) -> str:
        """Give the scope of the KEK that seals the key metadata of a manifest list."""
        if self.kek_per != "day":
            return ""
        return f"day={datetime.fromtimestamp(now_ms // 1000, UTC):%Y-%m-%d}"


def _property(name: str) -> str:
    return PREFIX + name.replace("_", "-")


def partition_scope(path: str) -> str:
    """Give the scope of the KEK for a partition, which is named as in the paths of its files.

    It stands in the clear where the KEK is kept, as it does in these paths.
    """
    return f"partition={path}"


@dataclass(frozen=True, eq=False)
class WritingKeys:
    """The keys of one commit.

    Attributes:
        of_list: seals the key metadata of its manifest list, by `KeyResolver.seal_entry`.
        of_files: for each new data or delete file what seals its key metadata in a manifest, by
            `seal_for_manifest`; None where that stays in the clear there.
        entries: KEKs that were made, to be added to the table's `encryption-keys`. Those that go
            to a key store are there already.
    """

    of_list: OpenKey
    of_files: tuple[OpenKey | None, ...]
    entries: tuple[EncryptedKey, ...]


def writing_policy(metadata: TableMetadata, seen: TableMetadata) -> KeyPolicy:
    """Return the policy for the new files of a commit.

    Args:
        metadata: The version that the commit follows. Nothing signs it.
        seen: The version that the caller has.

    Raises:
        IntegrityError: the policy, or the length of keys, has changed in between.
        FormatError, UnsupportedFormatError: as `KeyPolicy.of`.
    """
    policy = KeyPolicy.of(metadata)
    if policy != KeyPolicy.of(seen) or metadata.key_length != seen.key_length:
        raise IntegrityError(
            f"{metadata.name}: the table properties that decide how new files are encrypted have "
            "changed since the table was opened. If that was intended, open it again; otherwise "
            "metadata.json was altered"
        )
    return policy


def writing_key(
    table: IcebergTable, policy: KeyPolicy, scope: str = "", *, now_ms: int | None = None
) -> tuple[OpenKey, list[EncryptedKey]]:
    """Give the key that seals key metadata of a scope at present.

    Args:
        table: the version that the change is made of.
        policy: of the table.
        scope: for which files; empty for the whole table.
        now_ms: the time, in ms since 1970; by default that of the clock.

    Returns:
        The key, and what is to be added to the table's `encryption-keys` if it was made.

    Raises:
        PlaintextError: the table is not under a master key.
        KeyRetrievalError: the key service refuses.
        ValueError: the policy keeps KEKs in a key store, and the table was opened without one.
        ModcryptError, OSError: from the key store.
    """
    found, entries = _keys(table, policy, [scope], _now(now_ms))
    return found[scope], entries


def writing_keys(
    table: IcebergTable, policy: KeyPolicy, partitions: Sequence[str], *, now_ms: int | None = None
) -> WritingKeys:
    """Give the keys of one commit, in as few calls of the key service as it allows.

    Args:
        table, policy, now_ms: as of `writing_key`.
        partitions: for each new data or delete file its partition, as in the paths of its files;
            empty in a table without partitions.

    Raises:
        PlaintextError, KeyRetrievalError, ValueError, ModcryptError, OSError: as `writing_key`.
    """
    now = _now(now_ms)
    of_list = policy.list_scope(now)
    if policy.kek_per == "partition":
        of_files = [partition_scope(one) for one in partitions]
        found, entries = _keys(table, policy, [of_list, *of_files], now)
        return WritingKeys(found[of_list], tuple(found[one] for one in of_files), tuple(entries))
    found, entries = _keys(table, policy, [of_list], now)
    keys: list[OpenKey | None] = [None] * len(partitions)
    if policy.wraps_files_singly:
        keys = [found[of_list]] * len(partitions)
    elif policy.kek_per == "files":
        made, added = _made(table, policy, [FILES_SCOPE] * -(-len(keys) // policy.files), now)
        keys = [made[number // policy.files] for number in range(len(keys))]
        entries += added
    return WritingKeys(found[of_list], tuple(keys), tuple(entries))


def _now(now_ms: int | None) -> int:
    return int(time.time() * 1000) if now_ms is None else now_ms


def _keys(
    table: IcebergTable, policy: KeyPolicy, scopes: Sequence[str], now: int
) -> tuple[dict[str, OpenKey], list[EncryptedKey]]:
    """Give a key for each scope, and new entries; those that are missing are made together."""
    resolver, master = table.walk.resolver, master_key_of(table)
    wanted = list(dict.fromkeys(scopes))
    if policy.wrapping == "single":
        single = resolver.opened(IcebergKey.single(master))
        return dict.fromkeys(wanted, single), []
    there = _usable(table, policy, now)
    found = {scope: resolver.opened(there[scope]) for scope in wanted if scope in there}
    missing = [scope for scope in wanted if scope not in there]
    made, entries = _made(table, policy, missing, now)
    return {**found, **dict(zip(missing, made, strict=True))}, entries


def _usable(table: IcebergTable, policy: KeyPolicy, now: int) -> dict[str, IcebergKey]:
    """Find by scope the newest KEK, if that is to be used on.

    Java takes any. In a key store those that a rotation has replaced are there, too.
    """
    metadata, usable = table.metadata, dict[str, IcebergKey]()
    since = 0
    if policy.store == "key-store":
        _store(table)
        since = _since(metadata)
    for key in table.walk.resolver.keks(metadata).values():
        kept = "table" if key.id in metadata.keys else "key-store"
        age = now - key.timestamp_ms
        # One of the future, beyond what clocks differ by, would never grow old.
        young = -DAY_MS <= age < policy.kek_lifetime_days * DAY_MS and key.timestamp_ms >= since
        if young and kept == policy.store and key.master_key_id == metadata.master_key_id:
            newest = usable.setdefault(key.scope, key)
            usable[key.scope] = max(newest, key, key=lambda one: one.timestamp_ms)
    return usable


def _since(metadata: TableMetadata) -> int:
    said = metadata.properties.get(KEKS_SINCE, "0")
    if not re.fullmatch(r"[0-9]{1,18}", said):  # without it, old KEKs would be used again
        raise FormatError(f"{metadata.name}: {KEKS_SINCE} is no time in ms since 1970")
    return int(said)


def later_than(stored: Iterable[IcebergKey]) -> int:
    """Give a time, in ms since 1970: now, and later than that of any KEK of a store that is in use.

    Clocks differ: of several in a key store the newest is used.
    """
    now = _now(None)
    times = (one.timestamp_ms for one in stored)
    return max([now, *(one + 1 for one in times if one <= now + DAY_MS)])


def retired(stored: Iterable[IcebergKey], metadata: TableMetadata) -> set[str]:
    """Give the ids of KEKs of a key store that no commit on top of a version would seal under.

    Those that a rotation has replaced, those of which there is a newer one for the same files, and
    those for some files of one commit: each attempt at one makes its own. All of them, if the
    table's policy is to keep KEKs elsewhere by now.

    Args:
        stored: all that the store has of the table.
        metadata: of the version.
    """
    keys, since, newest = list(stored), _since(metadata), dict[str, int]()
    if keys and KeyPolicy.of(metadata).store != "key-store":
        return {key.id for key in keys}
    for key in keys:
        known = key.timestamp_ms <= _now(None) + DAY_MS
        if known and key.master_key_id == metadata.master_key_id:  # or nobody takes it
            newest[key.scope] = max(key.timestamp_ms, newest.get(key.scope, 0))
    return {
        key.id
        for key in keys
        if key.scope == FILES_SCOPE or key.timestamp_ms < max(since, newest.get(key.scope, 0))
    }


def _made(
    table: IcebergTable, policy: KeyPolicy, scopes: Sequence[str], now: int
) -> tuple[list[OpenKey], list[EncryptedKey]]:
    """Make KEKs, and give those that go to the table's metadata as entries of it."""
    if not scopes:
        return [], []
    metadata, resolver = table.metadata, table.walk.resolver
    in_store, since = policy.store == "key-store", _since(metadata)
    if in_store and now < since <= now + DAY_MS:  # whoever has rotated has a faster clock
        now = since
    made = resolver.masters.new_keks(
        master_key_of(table),
        metadata.key_length,
        scopes,
        table=metadata.uuid if in_store else None,
        now_ms=now,
    )
    if in_store:  # before anything is sealed under them: what the commit names must be there
        _store(table).replace([one.key for one in made])
    for one in made:
        resolver.made(one)
    return made, [] if in_store else [one.key.entry() for one in made]


def _store(table: IcebergTable) -> KeyStore:
    store = table.walk.resolver.store
    if store is None:
        raise ValueError(
            "the table's policy keeps KEKs in a key store: open the table with key_store"
        )
    return store


def master_key_of(table: IcebergTable) -> str:
    """Return the id of the master key for new keys.

    Nothing signs the metadata.json that names it, so the KEKs that the table has must agree: all of
    those in its metadata; of those in a key store, which a rotation moves first, at least one.

    Raises:
        PlaintextError: the table is not encrypted.
        KeyMaterialError: its KEKs are under other master keys.
        ModcryptError, OSError: from the key store.
    """
    metadata, resolver = table.metadata, table.walk.resolver
    master = metadata.master_key_id
    if not master:
        raise PlaintextError(f"{metadata.name}: the table has no {KEY_ID}: it is not encrypted")
    for id_ in metadata.kek_ids():
        resolver.find(id_, metadata)
    stored = {
        one.master_key_id
        for id_, one in resolver.keks(metadata).items()
        if id_ not in metadata.keys and TABLE in one.properties
    }
    if stored and master not in stored and resolver.master_key_ids is None:
        raise KeyMaterialError(
            f"{metadata.name}: the table is under the master key {master!r}, but its KEKs in the "
            f"key store are under {', '.join(map(repr, sorted(stored)))}. If a rotation was "
            "interrupted, finish it by new_master_key_id; if this master key is the right one, "
            f"open the table with master_key_ids=[{master!r}]"
        )
    return master
