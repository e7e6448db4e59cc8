"""The keys of a table: what wraps and seals what, what nothing uses, what is old, what is reused.

Every KEK is unwrapped by the key service, whose refusal says nothing of the table and is told as
what it is. Keys are compared by a keyed hash; none is kept.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from modcrypt.errors import (
    FormatError,
    KeyMaterialError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import KeyPolicy
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.keys.wrapping_keys import TABLE, IcebergKey, OpenKey, wrapped_text
from modcrypt.iceberg.read.inventory import Failure, Inventory, Mark, in_threads, sealing_key
from modcrypt.iceberg.verify.table_findings import CheckedKek, TableReport, is_refusal
from modcrypt.jobs.key_scan import wrapped_version
from modcrypt.kms.client import is_current
from modcrypt.parquet.verify.findings import FILE

__all__ = [
    "KeyChecks",
    "KeyUses",
    "check_keks",
    "checked_keks",
    "compare_marks",
    "listed",
    "master_key_version",
    "newest_version",
    "tell_unused",
    "uses_of",
]

DAY_MS = 24 * 60 * 60 * 1000

LISTED = 20
"""Ids or names told in one message."""


@dataclass
class KeyChecks:
    """What is known of a table's KEKs.

    Attributes:
        keks: by id.
        failed: why a KEK is not to be had, by its id; told already.
        opened: whether the key service unwrapped it, by its id.
        marks: keyed hashes of KEKs, to their ids.
        now_ms: when they were looked at.
    """

    keks: dict[str, IcebergKey] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    opened: dict[str, bool] = field(default_factory=dict)
    marks: dict[int, str] = field(default_factory=dict, repr=False)
    now_ms: int = field(default_factory=lambda: int(time.time() * 1000))


def check_keks(
    metadata: TableMetadata, resolver: KeyResolver, report: TableReport, jobs: int
) -> KeyChecks:
    """Find the KEKs of a table, have them unwrapped, and look at their master keys and ages."""
    checks = KeyChecks()
    for key_id in metadata.kek_ids():
        try:
            checks.keks[key_id] = IcebergKey.of(metadata.keys[key_id])
            resolver.find(key_id, metadata)
        except KeyMaterialError as error:
            checks.failed[key_id] = error
            report.tell(error.word, str(error))
    for key in _stored(metadata, resolver, report):
        checks.keks.setdefault(key.id, key)
    _unwrap(checks, resolver, report, jobs)
    _check_ages(checks, metadata, report)
    return checks


def _stored(
    metadata: TableMetadata, resolver: KeyResolver, report: TableReport
) -> Iterable[IcebergKey]:
    """Give the KEKs of the key store that say that they are of this table."""
    if resolver.store is None:
        return []
    try:
        stored = resolver.store.keys()
    except (ModcryptError, OSError) as error:
        word = FILE if isinstance(error, OSError) else error.word
        report.tell(word, f"it can't be read: {error}", "the key store", warning=True)
        return []
    return [one for one in stored.values() if one.properties.get(TABLE) == metadata.uuid]


def _unwrap(checks: KeyChecks, resolver: KeyResolver, report: TableReport, jobs: int) -> None:
    """Have KEKs unwrapped, in any case: what the resolver keeps may be an hour old."""
    gone: dict[str, KmsUnavailableError] = {}
    wanted = [one for one in checks.keks.values() if one.id not in checks.failed]
    for key, found in in_threads(partial(_unwrapped, resolver, gone), wanted, jobs):
        if isinstance(found, int):
            checks.opened[key.id] = True
            checks.marks[found] = key.id
            continue
        checks.opened[key.id] = False
        checks.failed[key.id] = found
        message = f"KEK {key.id} of the table: {found}"
        report.tell(found.word, message, warning=is_refusal(found))


def _unwrapped(
    resolver: KeyResolver, gone: dict[str, KmsUnavailableError], key: IcebergKey
) -> tuple[IcebergKey, int | KeyRetrievalError]:
    """Give the keyed hash of a KEK, and leave it with the resolver."""
    assert key.wrapped is not None
    if key.master_key_id in gone:  # nobody waits for a service ten thousand times
        return key, gone[key.master_key_id]
    try:
        kek = resolver.masters.unwrap(key.wrapped, key.master_key_id, key.id)
    except KmsUnavailableError as error:
        gone[key.master_key_id] = error
        return key, error
    except KeyRetrievalError as error:
        return key, error
    resolver.made(OpenKey(key, resolver.masters, kek))
    return key, hash(kek)


def _check_ages(checks: KeyChecks, metadata: TableMetadata, report: TableReport) -> None:
    try:
        lifetime = KeyPolicy.of(metadata).kek_lifetime_days
    except FormatError as error:
        report.tell(error.word, str(error))
        lifetime = KeyPolicy().kek_lifetime_days
    for key in checks.keks.values():
        age = _age_days(key, checks.now_ms)
        if age >= lifetime:
            report.tell(
                "key",
                f"KEK {key.id} is {age} days old, and was to be used for {lifetime}: the next "
                "commit makes another, and what this one seals stays under it until it is rotated",
                warning=True,
            )
        elif age < -1:  # beyond what clocks differ by
            report.tell("key", f"KEK {key.id} says that it was made in {-age} days", warning=True)
        in_table = key.id in metadata.keys and key.id not in checks.failed
        if in_table and key.master_key_id != metadata.master_key_id:
            report.tell(
                "key",
                f"KEK {key.id} is under the master key {key.master_key_id!r}, the table under "
                f"{metadata.master_key_id!r}: Iceberg's Java unwraps every KEK with the latter",
            )


def _age_days(key: IcebergKey, now_ms: int) -> int:
    return (now_ms - key.timestamp_ms) // DAY_MS


# --- versions of master keys ---------------------------------------------------------------------


def master_key_version(wrapped: bytes) -> str | None:
    """Give the version of the master key that wrapped a key, where the wrapped key tells it."""
    return wrapped_version(wrapped_text(wrapped))


def newest_version(resolver: KeyResolver, keys: Iterable[IcebergKey]) -> dict[str, bool | None]:
    """Tell by the ids of KEKs whether the newest version of the master key wraps them.

    None is unknown. The key service is asked once for each version that keys tell.
    """
    answers: dict[tuple[str, str], bool | None] = {}
    found: dict[str, bool | None] = {}
    for key in keys:
        assert key.wrapped is not None
        text = wrapped_text(key.wrapped)
        place = (key.master_key_id, master_key_version(key.wrapped) or text)
        if place not in answers:
            try:
                answers[place] = is_current(resolver.masters.client, text, key.master_key_id)
            except KeyRetrievalError:  # told where the KEK is unwrapped
                answers[place] = None
        found[key.id] = answers[place]
    return found


# --- uses ----------------------------------------------------------------------------------------


@dataclass
class KeyUses:
    """How often each key is used.

    Attributes:
        lists, files: by the id of a KEK or master key: of how many manifest lists, and of how many
            data and delete files, it seals the key metadata.
        unused: ids of `encryption-keys` that nothing uses.
    """

    lists: Counter[str]
    files: Counter[str]
    unused: tuple[str, ...]


def uses_of(metadata: TableMetadata, inventory: Inventory, *, whole: bool) -> KeyUses:
    """Count what keys are used for.

    Args:
        metadata: of the table.
        inventory: what was reached.
        whole: whether that is all that the table has; else a KEK may have uses that aren't known.
    """
    named = {one.key_id for one in metadata.snapshots if one.key_id is not None}
    lists = Counter(metadata.keys[one].encrypted_by for one in named if one in metadata.keys)
    files = Counter[str]()
    for reached in inventory.files:
        with_key = sealing_key(reached.entry.key_metadata)
        if with_key is not None:
            files[with_key[0]] += 1
    keks = set(metadata.kek_ids())
    unused = [id_ for id_ in metadata.keys if id_ not in named and id_ not in keks]
    if whole:
        unused += [id_ for id_ in metadata.keys if id_ in keks and not lists[id_] + files[id_]]
    return KeyUses(lists, files, tuple(unused))


def checked_keks(
    checks: KeyChecks, uses: KeyUses, metadata: TableMetadata, resolver: KeyResolver
) -> tuple[CheckedKek, ...]:
    """Give the KEKs as they are told."""
    current = newest_version(resolver, checks.keks.values())
    return tuple(
        CheckedKek(
            id=key.id,
            master_key_id=key.master_key_id,
            created_ms=key.timestamp_ms,
            age_days=_age_days(key, checks.now_ms),
            store="table" if key.id in metadata.keys else "key store",
            scope=key.scope,
            current=current[key.id],
            manifest_lists=uses.lists[key.id],
            files=uses.files[key.id],
            opened=checks.opened.get(key.id),
        )
        for key in checks.keks.values()
    )


def tell_unused(uses: KeyUses, report: TableReport, *, whole: bool) -> None:
    """Say which of `encryption-keys` nothing uses; or seems to, where a `key-id` was taken away."""
    if uses.unused:
        advice = ", and can be pruned" if whole else ""
        report.tell(
            "key",
            f"{len(uses.unused):,} of encryption-keys are used by no snapshot{advice}: "
            + listed(uses.unused),
            warning=True,
        )


# --- reuse ---------------------------------------------------------------------------------------


def compare_marks(
    marks: Iterable[tuple[str, Mark]], checks: KeyChecks, report: TableReport
) -> None:
    """Say which files have the same key or AAD prefix, and whose key is a KEK.

    Args:
        marks: locations of files, and what tells their keys.
        checks: knows the KEKs.
        report: takes the findings.
    """
    by_key: defaultdict[int, list[tuple[str, bytes]]] = defaultdict(list)
    by_prefix: defaultdict[bytes, list[tuple[str, int]]] = defaultdict(list)
    for location, (key, prefix) in marks:
        by_key[key].append((location, prefix))
        if prefix:
            by_prefix[prefix].append((location, key))
        if key in checks.marks:
            report.tell("integrity", f"its key is the KEK {checks.marks[key]}", location)
    for found in by_key.values():
        if len(found) > 1:
            _tell_reuse(found, report)
    for same in by_prefix.values():
        if len({key for _, key in same}) > 1:
            names = listed(location for location, _ in same)
            report.tell(
                "aad-prefix", f"{len(same)} files have the same AAD prefix: {names}", warning=True
            )


def _tell_reuse(found: list[tuple[str, bytes]], report: TableReport) -> None:
    """Tell of files with one key; with one prefix too, each can be put in the other's place."""
    exchangeable = len({prefix for _, prefix in found}) < len(found)
    names = listed(location for location, _ in found)
    why = (
        ", some with the same AAD prefix: blocks of one are taken for those of another"
        if exchangeable
        else ", which each file is to have for itself"
    )
    report.tell(
        "integrity", f"{len(found)} files have the same key{why}: {names}", warning=not exchangeable
    )


def listed(names: Iterable[str]) -> str:
    """Give names for a message; not all of many."""
    known = list(names)
    more = f" and {len(known) - LISTED:,} more" if len(known) > LISTED else ""
    return ", ".join(known[:LISTED]) + more
