"""Choose the keys that encrypt new files: a table's `KeyPolicy`, and the KEKs that it needs.

    kek_per       manifest list (encryption-keys)     data and delete files (in their manifests)
    table         one KEK for the table               in plaintext in the encrypted manifest
    day           a KEK for each day (UTC)            the same
    partition     one KEK for the table               a KEK for each partition
    files         one KEK for the table               a KEK for each N files of a commit

Iceberg's Java reads the first two. It must not append to the others if their KEKs are in the table:
it uses any KEK for its manifest lists, and a snapshot must not vanish with a partition's KEK. If
the KEKs are in a key store, it cannot append. In single wrapping a master key replaces every KEK.
A commit uses the newest KEK under the table's current master key that has not reached its lifetime;
if none exists, it creates one.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Protocol, Self

from modcrypt.errors import (
    FormatError,
    IntegrityError,
    KeyMaterialError,
    PlaintextError,
    UnsupportedFormatError,
)
from modcrypt.iceberg.format.table_metadata import POLICY, EncryptedKey, TableMetadata
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.keys.wrapping_keys import TABLE, IcebergKey, OpenKey
from modcrypt.settings.setting import explain_arguments, settings_of
from modcrypt.settings.table import TablePolicySettings, list_table_policy_faults

DAY_MS = 24 * 60 * 60 * 1000

FILES_SCOPE = "files"  # scope of a KEK for a number of files; only one commit uses such a KEK

KEKS_SINCE = "modcrypt.keks-since"
"""Table property: KEKs in a key store made before this time (ms since 1970) encrypt nothing new.

A rotation sets it: the old KEKs stay in the store for older versions of the table. So does a change
of policy away from the store, or back to it: the KEKs in the store may be about to be dropped.
"""

SINGLES = "modcrypt.single-wrapped"
"""Table property: under an earlier policy the master key itself wrapped keys of data files.

Manifests with such keys outlive the snapshots whose entries of `encryption-keys` show this.
"""

_COUNT = re.compile(r"[1-9][0-9]{0,8}")


@explain_arguments
@dataclass(frozen=True, kw_only=True)
class KeyPolicy(TablePolicySettings):
    """The way in which keys of a table's new files are kept. Existing files do not change.

    The table at the top of this module says what each group of files means.

    Raises:
        ValueError: A value is invalid, or the values contradict each other.
    """

    def __post_init__(self) -> None:
        for faults in list_table_policy_faults(vars(self)).values():
            raise ValueError(faults[0])

    @classmethod
    def of(cls, metadata: TableMetadata) -> Self:
        """Return the policy of a table; by default that of Iceberg's Java.

        Raises:
            FormatError: The table's properties are not a valid policy.
            UnsupportedFormatError: A property of the policy is unknown.
        """
        settings = settings_of(TablePolicySettings)
        names = {_property_name(name): name for name in settings}
        properties = {k: v for k, v in metadata.properties.items() if k.startswith(POLICY)}
        if unknown := sorted(properties.keys() - names.keys()):
            raise UnsupportedFormatError(
                f"{metadata.name}: {unknown[0]!r} is not a known property of a policy"
            )
        values: dict[str, str | int] = {}
        for name, text in properties.items():
            is_count = isinstance(settings[names[name]].default, int)
            values[names[name]] = int(text) if is_count and _COUNT.fullmatch(text) else text
        try:
            return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks them
        except ValueError as error:
            raise FormatError(f"{metadata.name}: {POLICY}*: {error}") from None

    @property
    def wraps_files_singly(self) -> bool:
        """True if the master key itself wraps the keys of data and delete files."""
        return self.wrapping == "single" and self.kek_per == "files"

    def properties(self) -> dict[str, str]:
        """Return the table properties that represent the policy."""
        return {
            _property_name(field.name): str(getattr(self, field.name)) for field in fields(self)
        }

    def list_scope(self, now_ms: int) -> str:
        """Return the scope of the KEK that encrypts a manifest list's key metadata."""
        if self.kek_per != "day":
            return ""
        return f"day={datetime.fromtimestamp(now_ms // 1000, UTC):%Y-%m-%d}"


def _property_name(name: str) -> str:
    return POLICY + name.replace("_", "-")


def partition_scope(path: str) -> str:
    """Return the scope of the KEK for a partition, which is named as in the paths of its files.

    The scope is stored in plaintext with the KEK, as it is in these paths.
    """
    return f"partition={path}"


@dataclass(frozen=True, eq=False)
class WritingKeys:
    """The keys of one commit."""

    # Key that encrypts the key metadata of the manifest list (`KeyResolver.seal_entry`).
    of_list: OpenKey
    # For each new data or delete file the key that encrypts its key metadata in a manifest
    # (`encrypt_for_manifest`); None if it stays in plaintext there.
    of_files: tuple[OpenKey | None, ...]
    # New KEKs to add to the table's `encryption-keys`. New KEKs for a key store are already in the
    # store.
    entries: tuple[EncryptedKey, ...]


def writing_policy(metadata: TableMetadata, seen: TableMetadata) -> KeyPolicy:
    """Return the policy for the new files of a commit.

    Nothing signs `metadata`, the version that the commit follows; the caller has seen `seen`.
    """
    policy = KeyPolicy.of(metadata)
    if policy != KeyPolicy.of(seen) or metadata.key_length != seen.key_length:
        raise IntegrityError(
            f"{metadata.name}: the table properties that decide how new files are encrypted have "
            "changed since the table was opened. If that was intended, open it again; otherwise "
            "metadata.json was altered"
        )
    return policy


class KeyedTable(Protocol):
    """One version of a table, as seen by the functions that choose its keys."""

    @property
    def metadata(self) -> TableMetadata:
        """The content of its metadata.json."""

    @property
    def resolver(self) -> KeyResolver:
        """The resolver that opens its keys."""


def writing_keys(
    table: KeyedTable, policy: KeyPolicy, partitions: Sequence[str], *, now_ms: int | None = None
) -> WritingKeys:
    """Return the keys of one commit, with as few calls of the key service as it allows.

    `partitions` has the partition of each new data or delete file, as in the paths of the files;
    empty for tables without partitions.

    Raises:
        PlaintextError: The table has no master key.
        KeyRetrievalError: The key service refuses.
        ValueError: The policy keeps KEKs in a key store, but the table was opened without one; or
            the resolver refuses a key for new files.
    """
    now = _now(now_ms)
    of_list, of_files = policy.list_scope(now), list[str]()
    if policy.kek_per == "partition":
        of_files = [partition_scope(partition) for partition in partitions]
    by_scope, entries = _find_keys(table, policy, [of_list, *of_files], now)
    keys: list[OpenKey | None] = [None] * len(partitions)
    if policy.kek_per == "partition":
        keys = [by_scope[scope] for scope in of_files]
    elif policy.wraps_files_singly:
        keys = [by_scope[of_list]] * len(partitions)
    elif policy.kek_per == "files":
        made, added = _make_keks(table, policy, [FILES_SCOPE] * -(-len(keys) // policy.files), now)
        keys = [made[number // policy.files] for number in range(len(keys))]
        entries += added
    for used in {by_scope[of_list], *filter(None, keys)}:
        table.resolver.check_new(used.key)
    return WritingKeys(by_scope[of_list], tuple(keys), tuple(entries))


def _now(now_ms: int | None) -> int:
    return int(time.time() * 1000) if now_ms is None else now_ms


def _find_keys(
    table: KeyedTable, policy: KeyPolicy, scopes: Sequence[str], now: int
) -> tuple[dict[str, OpenKey], list[EncryptedKey]]:
    """Return a key for each scope, and new entries; missing KEKs are created together."""
    resolver, master = table.resolver, master_key_of(table)
    wanted = list(dict.fromkeys(scopes))
    if policy.wrapping == "single":
        single = resolver.open_key(IcebergKey.single(master))
        return dict.fromkeys(wanted, single), []
    usable = _find_usable_keks(table, policy, now)
    keys = {scope: resolver.open_key(usable[scope]) for scope in wanted if scope in usable}
    missing = [scope for scope in wanted if scope not in usable]
    made, entries = _make_keks(table, policy, missing, now)
    return {**keys, **dict(zip(missing, made, strict=True))}, entries


def _find_usable_keks(table: KeyedTable, policy: KeyPolicy, now: int) -> dict[str, IcebergKey]:
    """Return the newest usable KEK of each scope."""
    # Java uses any KEK. A key store also has KEKs that a rotation has replaced.
    metadata, usable = table.metadata, dict[str, IcebergKey]()
    since = 0
    if policy.store == "key-store":
        if table.resolver.store is None:
            why = "the table's policy keeps KEKs in a key store: open the table with key_store"
            raise ValueError(why)
        since = _keks_since(metadata)
    for key in table.resolver.keks(metadata).values():
        store = "table" if key.id in metadata.keys else "key-store"
        age = now - key.timestamp_ms
        # A time in the future, beyond differences of clocks, would never expire.
        young = -DAY_MS <= age < policy.kek_lifetime_days * DAY_MS and key.timestamp_ms >= since
        if young and store == policy.store and key.master_key_id == metadata.master_key_id:
            with contextlib.suppress(ValueError):  # a new one takes the place of a refused one
                table.resolver.check_new(key)
                newest = usable.setdefault(key.scope, key)
                usable[key.scope] = max(newest, key, key=lambda kek: kek.timestamp_ms)
    return usable


def _keks_since(metadata: TableMetadata) -> int:
    text = metadata.properties.get(KEKS_SINCE, "0")
    if not re.fullmatch(r"[0-9]{1,18}", text):  # ignoring it would use old KEKs again
        raise FormatError(f"{metadata.name}: {KEKS_SINCE} is not a time in ms since 1970")
    return int(text)


def next_kek_time(stored: Iterable[IcebergKey]) -> int:
    """Return a time in ms since 1970: now, or later if a KEK in a store is newer.

    Clocks differ, and the newest of several KEKs in a key store is used.
    """
    now = _now(None)
    times = (kek.timestamp_ms for kek in stored)
    return max([now, *(time_ms + 1 for time_ms in times if time_ms <= now + DAY_MS)])


def retired_kek_ids(stored: Iterable[IcebergKey], metadata: TableMetadata) -> set[str]:
    """Return the ids of KEKs in a key store that no commit after a version would use.

    These are KEKs that a rotation has replaced, KEKs for which a newer one with the same scope
    exists, and KEKs for some files of one commit, because each attempt creates its own. All KEKs
    are retired if the table's policy now keeps KEKs elsewhere. `stored` must be all KEKs of the
    table in the store.
    """
    keys, since, newest = list(stored), _keks_since(metadata), dict[str, int]()
    if keys and KeyPolicy.of(metadata).store != "key-store":
        return {key.id for key in keys}
    for key in keys:
        known = key.timestamp_ms <= _now(None) + DAY_MS
        if known and key.master_key_id == metadata.master_key_id:  # otherwise no commit uses it
            newest[key.scope] = max(key.timestamp_ms, newest.get(key.scope, 0))
    return {
        key.id
        for key in keys
        if key.scope == FILES_SCOPE or key.timestamp_ms < max(since, newest.get(key.scope, 0))
    }


def _make_keks(
    table: KeyedTable, policy: KeyPolicy, scopes: Sequence[str], now: int
) -> tuple[list[OpenKey], list[EncryptedKey]]:
    """Create KEKs; return them, and entries for those that the table's metadata keeps."""
    if not scopes:
        return [], []
    metadata, master = table.metadata, master_key_of(table)
    in_store, since = policy.store == "key-store", _keks_since(metadata)
    if in_store and now < since <= now + DAY_MS:  # the clock of the rotation was ahead
        now = since
    keks = make_keks(table.resolver, metadata, master, scopes, in_store=in_store, now_ms=now)
    return keks, [] if in_store else [kek.key.entry() for kek in keks]


def make_keks(
    resolver: KeyResolver, metadata: TableMetadata, master_key_id: str, scopes: Sequence[str], *,
    in_store: bool, now_ms: int,
) -> list[OpenKey]:  # fmt: skip
    """Create KEKs for a table; those for the key store are stored before they encrypt anything."""
    keks = resolver.masters.new_keks(
        master_key_id, metadata.key_length, scopes,
        table=metadata.uuid if in_store else None, now_ms=now_ms,
    )  # fmt: skip
    if in_store and keks and resolver.store is not None:  # a commit may only name stored KEKs
        resolver.store.replace([kek.key for kek in keks])
    return [resolver.cache_key(kek) for kek in keks]


def require_encrypted(metadata: TableMetadata) -> str:
    """Return the id of a table's master key; raise PlaintextError if there is none."""
    if metadata.master_key_id:
        return metadata.master_key_id
    raise PlaintextError(
        f"{metadata.name}: the table is not encrypted (it has no encryption.key-id); encrypt_table "
        "makes an encrypted copy"
    )


def master_key_of(table: KeyedTable) -> str:
    """Return the id of the master key for new keys.

    Nothing signs the metadata.json that names it, so the table's KEKs must agree: all KEKs in the
    metadata, and at least one of those in a key store, which a rotation moves first. Raise
    PlaintextError if the table is not encrypted, and KeyMaterialError if its KEKs are under other
    master keys.
    """
    metadata, resolver = table.metadata, table.resolver
    master = require_encrypted(metadata)
    for id_ in metadata.kek_ids():
        resolver.find(id_, metadata)
    stored = {
        kek.master_key_id
        for id_, kek in resolver.keks(metadata).items()
        if id_ not in metadata.keys and TABLE in kek.properties
    }
    if stored and master not in stored and resolver.master_key_ids is None:
        raise KeyMaterialError(
            f"{metadata.name}: the table is under the master key {master!r}, but its KEKs in the "
            f"key store are under {', '.join(map(repr, sorted(stored)))}. If a rotation was "
            "interrupted, finish it with new_master_key_id; if this master key is the right one, "
            f"open the table with master_key_ids=[{master!r}]"
        )
    return master
