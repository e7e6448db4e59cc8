"""Check the keys of a table: wrapping, use, age and reuse.

The key service unwraps every KEK; its refusal is reported, but is not a fault of the table. Keys
are compared by a keyed hash, and no key is kept.
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
    list_names,
)
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import KeyPolicy
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.keys.wrapping_keys import TABLE, IcebergKey, OpenKey, format_wrapped_key
from modcrypt.iceberg.read.inventory import Failure, Inventory
from modcrypt.iceberg.verify.table_findings import CheckedKek, TableReport, is_refusal
from modcrypt.io.threads import in_threads
from modcrypt.jobs.key_scan import parse_wrapped_version
from modcrypt.kms.client import is_current
from modcrypt.parquet.format.findings import FILE

DAY_MS = 24 * 60 * 60 * 1000


@dataclass
class KeyChecks:
    """The results of checking a table's KEKs.

    Attributes:
        keks: KEKs by id.
        failed: Errors of unavailable KEKs by id; they are already reported.
        opened: Whether the key service unwrapped the KEK, by id.
        marks: Ids of KEKs by their keyed hashes.
        now_ms: Time of the check in milliseconds.
    """

    keks: dict[str, IcebergKey] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    opened: dict[str, bool] = field(default_factory=dict)
    marks: dict[int, str] = field(default_factory=dict, repr=False)
    now_ms: int = field(default_factory=lambda: int(time.time() * 1000))


def check_keks(
    metadata: TableMetadata, resolver: KeyResolver, report: TableReport, jobs: int
) -> KeyChecks:
    """Find the KEKs of a table, unwrap them, and check their master keys and ages."""
    checks = KeyChecks()
    for key_id in metadata.kek_ids():
        try:
            checks.keks[key_id] = IcebergKey.of(metadata.keys[key_id])
            resolver.find(key_id, metadata)
        except KeyMaterialError as error:
            checks.failed[key_id] = error
            report.tell(error.word, str(error))
    for key in _stored_keks(metadata, resolver, report):
        checks.keks.setdefault(key.id, key)
    _unwrap(checks, resolver, report, jobs)
    _check_ages(checks, metadata, report)
    return checks


def _stored_keks(
    metadata: TableMetadata, resolver: KeyResolver, report: TableReport
) -> Iterable[IcebergKey]:
    """Return the KEKs of the key store that name this table."""
    if resolver.store is None:
        return []
    try:
        stored = resolver.store.keys()
    except (ModcryptError, OSError) as error:
        word = FILE if isinstance(error, OSError) else error.word
        report.tell(word, f"it cannot be read: {error}", "the key store", warning=True)
        return []
    return [
        stored_file
        for stored_file in stored.values()
        if stored_file.properties.get(TABLE) == metadata.uuid
    ]


def _unwrap(checks: KeyChecks, resolver: KeyResolver, report: TableReport, jobs: int) -> None:
    """Unwrap KEKs again: KEKs in the resolver's cache may be an hour old."""
    gone: dict[str, KmsUnavailableError] = {}
    wanted = [kek for kek in checks.keks.values() if kek.id not in checks.failed]
    for key, result in in_threads(partial(_unwrap_kek, resolver, gone), wanted, jobs):
        if isinstance(result, int):
            checks.opened[key.id] = True
            checks.marks[result] = key.id
            continue
        checks.opened[key.id] = False
        checks.failed[key.id] = result
        message = f"KEK {key.id} of the table: {result}"
        report.tell(result.word, message, warning=is_refusal(result))


def _unwrap_kek(
    resolver: KeyResolver, gone: dict[str, KmsUnavailableError], key: IcebergKey
) -> tuple[IcebergKey, int | KeyRetrievalError]:
    """Return the keyed hash of a KEK, or the error; store the KEK in the resolver."""
    assert key.wrapped is not None
    if key.master_key_id in gone:  # do not wait for an unavailable service again
        return key, gone[key.master_key_id]
    try:
        kek = resolver.masters.unwrap(key.wrapped, key.master_key_id, key.id)
    except KmsUnavailableError as error:
        gone[key.master_key_id] = error
        return key, error
    except KeyRetrievalError as error:
        return key, error
    resolver.cache_key(OpenKey(key, resolver.masters, kek))
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
                f"KEK {key.id} is {age} days old, but the policy allows {lifetime}: the next "
                'commit makes a new KEK; existing keys stay under this one until you rotate "kek"',
                warning=True,
            )
        elif age < -1:  # more than clocks may differ
            report.tell("key", f"KEK {key.id} is dated {-age} days in the future", warning=True)
        in_table = key.id in metadata.keys and key.id not in checks.failed
        if in_table and key.master_key_id != metadata.master_key_id:
            report.tell(
                "key",
                f"KEK {key.id} is under the master key {key.master_key_id!r}, but the table "
                f"is under {metadata.master_key_id!r}: Iceberg's Java uses that one for every KEK",
            )


def _age_days(key: IcebergKey, now_ms: int) -> int:
    return (now_ms - key.timestamp_ms) // DAY_MS


# --- versions of master keys ---------------------------------------------------------------------


def master_key_version(wrapped: bytes) -> str | None:
    """Return the version of the master key that wrapped a key, if the wrapped key names it."""
    return parse_wrapped_version(format_wrapped_key(wrapped))


def _newest_versions(resolver: KeyResolver, keys: Iterable[IcebergKey]) -> dict[str, bool | None]:
    """Return, by KEK id, whether the newest version of the master key wraps the KEK.

    None means unknown. The key service is called once for each version of a master key.
    """
    answers: dict[tuple[str, str], bool | None] = {}
    newest: dict[str, bool | None] = {}
    for key in keys:
        assert key.wrapped is not None
        text = format_wrapped_key(key.wrapped)
        place = (key.master_key_id, master_key_version(key.wrapped) or text)
        if place not in answers:
            try:
                answers[place] = is_current(resolver.masters.client, text, key.master_key_id)
            except KeyRetrievalError:  # reported where the KEK is unwrapped
                answers[place] = None
        newest[key.id] = answers[place]
    return newest


# --- uses ----------------------------------------------------------------------------------------


@dataclass
class KeyUses:
    """The uses of each key.

    Attributes:
        lists: Number of manifest lists whose key metadata a KEK or master key encrypts, by key id.
        files: Number of data and delete files whose key metadata it encrypts, by key id.
        unused: Ids of `encryption-keys` that nothing uses.
    """

    lists: Counter[str]
    files: Counter[str]
    unused: tuple[str, ...]


def count_key_uses(metadata: TableMetadata, inventory: Inventory, *, whole: bool) -> KeyUses:
    """Count the uses of keys.

    Args:
        metadata: Metadata of the table.
        inventory: Files that were reached.
        whole: Whether the inventory is complete; otherwise KEKs may have unknown uses.
    """
    named = {snapshot.key_id for snapshot in metadata.snapshots if snapshot.key_id is not None}
    lists = Counter(metadata.keys[id_].encrypted_by for id_ in named if id_ in metadata.keys)
    sealing = (reached.sealed_by for reached in inventory.files)
    files = Counter(by[0] for by in sealing if by is not None)
    keks = set(metadata.kek_ids())
    unused = [id_ for id_ in metadata.keys if id_ not in named and id_ not in keks]
    if whole:
        unused += [id_ for id_ in metadata.keys if id_ in keks and not lists[id_] + files[id_]]
    return KeyUses(lists, files, tuple(unused))


def describe_keks(
    checks: KeyChecks, uses: KeyUses, metadata: TableMetadata, resolver: KeyResolver
) -> tuple[CheckedKek, ...]:
    """Return the KEKs for `TableVerification.keks`."""
    current = _newest_versions(resolver, checks.keks.values())
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


def report_unused_keys(uses: KeyUses, report: TableReport, *, whole: bool) -> None:
    """Report unused `encryption-keys`; a removed `key-id` can also make a key look unused."""
    if uses.unused:
        advice = "; prune_keys drops them" if whole else ""
        report.tell(
            "key",
            f"no snapshot uses {len(uses.unused):,} of encryption-keys{advice}: "
            + list_names(uses.unused),
            warning=True,
        )


# --- reuse ---------------------------------------------------------------------------------------


def compare_marks(inventory: Inventory, checks: KeyChecks, report: TableReport) -> None:
    """Report files that share a key or AAD prefix, and files whose key is a KEK."""
    by_key: defaultdict[int, list[tuple[str, bytes]]] = defaultdict(list)
    by_prefix: defaultdict[bytes, list[tuple[str, int]]] = defaultdict(list)
    marks = ((file.location, file.mark) for file in inventory.every if file.mark is not None)
    for location, (key, prefix) in marks:
        by_key[key].append((location, prefix))
        if prefix:
            by_prefix[prefix].append((location, key))
        if key in checks.marks:
            report.tell("integrity", f"its key is the KEK {checks.marks[key]}", location)
    for files in by_key.values():
        if len(files) > 1:
            _report_reuse(files, report)
    for same in by_prefix.values():
        if len({key for _, key in same}) > 1:
            names = list_names(location for location, _ in same)
            report.tell(
                "aad-prefix", f"{len(same)} files have the same AAD prefix: {names}", warning=True
            )


def _report_reuse(files: list[tuple[str, bytes]], report: TableReport) -> None:
    """Report files that share a key; if they share an AAD prefix too, they can be swapped."""
    exchangeable = len({prefix for _, prefix in files}) < len(files)
    names = list_names(location for location, _ in files)
    why = (
        ", some also the same AAD prefix: blocks of one file can replace those of another"
        if exchangeable
        else "; each file should have its own"
    )
    report.tell(
        "integrity", f"{len(files)} files have the same key{why}: {names}", warning=not exchangeable
    )
