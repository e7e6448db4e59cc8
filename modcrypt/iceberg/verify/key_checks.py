"""Check the keys of a table: wrapping, use, age and reuse.

The key service unwraps every KEK; its refusal is reported, but is not a fault of the table. Keys
are compared by a keyed hash, and no key is kept.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from modcrypt.errors import (
    FormatError,
    KeyMaterialError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
    list_names,
)
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import DAY_MS, KeyPolicy
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.keys.master_keys import format_wrapped_key
from modcrypt.iceberg.keys.wrapping_keys import TABLE, IcebergKey, OpenKey
from modcrypt.iceberg.read.inventory import Failure, Inventory
from modcrypt.iceberg.verify.table_findings import is_refusal
from modcrypt.iceberg.verify.table_report import TableReport
from modcrypt.io.threads import in_threads
from modcrypt.jobs.key_scan import parse_wrapped_version
from modcrypt.keys import invocations
from modcrypt.kms.calls import is_current
from modcrypt.parquet.format.findings import FILE


@dataclass
class KeyChecks:
    """The keys of a table, and what was found out about them.

    `check_keks` comes first: it finds the KEKs, and notes those that failed for the readers of
    files. `count_uses` needs the inventory; `report_unused` and `describe_keks` need its counts.
    """

    metadata: TableMetadata
    resolver: KeyResolver
    report: TableReport
    keks: dict[str, IcebergKey] = field(default_factory=dict)
    # Errors of unavailable KEKs by id; they are already reported.
    failed: dict[str, Failure] = field(default_factory=dict)
    # Whether the key service unwrapped the KEK, by id.
    opened: dict[str, bool] = field(default_factory=dict)
    # Ids of KEKs by their keyed hashes.
    marks: dict[int, str] = field(default_factory=dict, repr=False)
    now_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    # Number of manifest lists whose key metadata a KEK or master key encrypts, by key id.
    lists: Counter[str] = field(default_factory=Counter)
    # Number of data and delete files whose key metadata it encrypts, by key id.
    files: Counter[str] = field(default_factory=Counter)
    unused: tuple[str, ...] = ()  # ids of `encryption-keys` that nothing uses

    def check_keks(self, jobs: int) -> None:
        """Find the KEKs of the table, unwrap them, and check their master keys and ages."""
        for key_id in self.metadata.kek_ids():
            try:
                self.keks[key_id] = IcebergKey.of(self.metadata.keys[key_id])
                self.resolver.find(key_id, self.metadata)
            except KeyMaterialError as error:
                self.failed[key_id] = error
                self.report.note(error.word, str(error))
        for key in self._stored_keks():
            if key.properties.get(TABLE) == self.metadata.uuid:
                self.keks.setdefault(key.id, key)
        self._unwrap(jobs)
        self._check_ages()

    def _stored_keks(self) -> Iterable[IcebergKey]:
        """Return the KEKs of the key store, which may serve several tables."""
        try:
            return [] if self.resolver.store is None else self.resolver.store.keys().values()
        except (ModcryptError, OSError) as error:
            word = FILE if isinstance(error, OSError) else error.word
            self.report.note(word, f"it cannot be read: {error}", "the key store", warning=True)
        return []

    def _unwrap(self, jobs: int) -> None:
        """Unwrap KEKs again: KEKs in the resolver's cache may be an hour old."""
        gone: dict[str, KmsUnavailableError] = {}
        wanted = [kek for kek in self.keks.values() if kek.id not in self.failed]
        with contextlib.suppress(KmsUnavailableError):  # reported for each KEK
            self.resolver.masters.fetch_keks(wanted)
        for key, result in in_threads(partial(self._unwrap_kek, gone), wanted, jobs):
            self.opened[key.id] = isinstance(result, int)
            if isinstance(result, int):
                self.marks[result] = key.id
                continue
            self.failed[key.id] = result
            message = f"KEK {key.id} of the table: {result}"
            self.report.note(result.word, message, warning=is_refusal(result))

    def _unwrap_kek(
        self, gone: dict[str, KmsUnavailableError], key: IcebergKey
    ) -> tuple[IcebergKey, int | KeyRetrievalError]:
        """Return the keyed hash of a KEK, or the error; store the KEK in the resolver."""
        assert key.wrapped is not None
        if key.master_key_id in gone:  # do not wait for an unavailable service again
            return key, gone[key.master_key_id]
        masters = self.resolver.masters
        try:
            kek = masters.unwrap(key.wrapped, key.master_key_id, key.id)
        except KmsUnavailableError as error:
            gone[key.master_key_id] = error
            return key, error
        except KeyRetrievalError as error:
            return key, error
        self.resolver.cache_key(OpenKey(key, masters, kek))
        return key, hash(kek)

    def _check_ages(self) -> None:
        report, metadata = self.report, self.metadata
        try:
            lifetime = KeyPolicy.of(metadata).kek_lifetime_days
        except FormatError as error:
            report.note(error.word, str(error))
            lifetime = KeyPolicy().kek_lifetime_days
        for key in self.keks.values():
            if (age := self._age_days(key)) >= lifetime:
                report.note(
                    "key",
                    f"KEK {key.id} is {age} days old, but the policy allows {lifetime}: the next "
                    "commit makes a new KEK; existing keys stay under this one until you rotate "
                    '"kek"',
                    warning=True,
                )
            elif age < -1:  # more than clocks may differ
                report.note("key", f"KEK {key.id} is dated {-age} days in the future", warning=True)
            in_table = key.id in metadata.keys and key.id not in self.failed
            if in_table and key.master_key_id != metadata.master_key_id:
                report.note(
                    "key",
                    f"KEK {key.id} is under the master key {key.master_key_id!r}, but the table is "
                    f"under {metadata.master_key_id!r}: Iceberg's Java uses that one for every KEK",
                )

    def _age_days(self, key: IcebergKey) -> int:
        return (self.now_ms - key.timestamp_ms) // DAY_MS

    def describe_keks(self) -> Iterator[tuple[IcebergKey, dict[str, Any]]]:
        """Yield the KEKs with their attributes of `TableKek`."""
        current = self._newest_versions()
        for key in self.keks.values():
            attributes = {
                "id": key.id,
                "master_key_id": key.master_key_id,
                "created_ms": key.timestamp_ms,
                "age_days": self._age_days(key),
                "store": "table" if key.id in self.metadata.keys else "key store",
                "scope": key.scope,
                "current": current[key.id],
                "files": self.files[key.id],
            }
            yield key, attributes

    def _newest_versions(self) -> dict[str, bool | None]:
        """Return, by KEK id, whether the newest version of the master key wraps the KEK."""
        # None means unknown. The key service is called once for each version of a master key.
        client = self.resolver.masters.client
        answers: dict[tuple[str, str], bool | None] = {}
        newest: dict[str, bool | None] = {}
        for key in self.keks.values():
            assert key.wrapped is not None
            text = format_wrapped_key(key.wrapped)
            place = (key.master_key_id, master_key_version(key.wrapped) or text)
            if place not in answers:
                try:
                    answers[place] = is_current(client, text, key.master_key_id)
                except KeyRetrievalError:  # reported where the KEK is unwrapped
                    answers[place] = None
            newest[key.id] = answers[place]
        return newest

    def count_uses(self, inventory: Inventory, *, whole: bool) -> None:
        """Count the uses of keys; if the inventory is not `whole`, KEKs may have unknown uses."""
        keys, snapshots = self.metadata.keys, self.metadata.snapshots
        named = {snapshot.key_id for snapshot in snapshots if snapshot.key_id is not None}
        self.lists = Counter(keys[id_].encrypted_by for id_ in named if id_ in keys)
        used = (reached.encrypted_by for reached in inventory.files)
        self.files = Counter(key[0] for key in used if key is not None)
        keks = set(self.metadata.kek_ids())
        unused = [id_ for id_ in keys if id_ not in named and id_ not in keks]
        if whole:
            unused += [id_ for id_ in keys if id_ in keks and not self.lists[id_] + self.files[id_]]
        self.unused = tuple(unused)

    def report_unused(self, *, whole: bool) -> None:
        """Report unused `encryption-keys`; a removed `key-id` can also make a key look unused."""
        if self.unused:
            advice = "; prune_keys drops them" if whole else ""
            count, names = f"{len(self.unused):,}", list_names(self.unused)
            message = f"no snapshot uses {count} of encryption-keys{advice}: {names}"
            self.report.note("key", message, warning=True)

    def report_worn(self) -> None:
        """Report KEKs that have encrypted so many keys that a random nonce may soon repeat."""
        for key_id in self.keks:
            count = self.lists[key_id] + self.files[key_id]
            if count >= invocations.WARN_WRAPS:
                message = (
                    f"KEK {key_id} has encrypted {count:,} keys or more; AES-GCM with random "
                    f'nonces allows {invocations.INVOCATION_LIMIT:,}: rotate "kek"'
                )
                self.report.note("key-uses", message, warning=True)

    def compare_marks(self, inventory: Inventory) -> None:
        """Report files that share a key or AAD prefix, and files whose key is a KEK."""
        by_key: defaultdict[int, list[tuple[str, bytes]]] = defaultdict(list)
        by_prefix: defaultdict[bytes, list[tuple[str, int]]] = defaultdict(list)
        marks = ((file.location, file.mark) for file in inventory.every if file.mark is not None)
        for location, (key, prefix) in marks:
            by_key[key].append((location, prefix))
            if prefix:
                by_prefix[prefix].append((location, key))
            if key in self.marks:
                self.report.note("integrity", f"its key is the KEK {self.marks[key]}", location)
        for files in by_key.values():
            if len(files) > 1:
                _report_reuse(files, self.report)
        for same in by_prefix.values():
            if len({key for _, key in same}) > 1:
                names = list_names(location for location, _ in same)
                message = f"{len(same)} files have the same AAD prefix: {names}"
                self.report.note("aad-prefix", message, warning=True)


def master_key_version(wrapped: bytes) -> str | None:
    """Return the version of the master key that wrapped a key, if the wrapped key names it."""
    return parse_wrapped_version(format_wrapped_key(wrapped))


def _report_reuse(files: list[tuple[str, bytes]], report: TableReport) -> None:
    """Report files that share a key; if they share an AAD prefix too, they can be swapped."""
    exchangeable = len({prefix for _, prefix in files}) < len(files)
    names = list_names(location for location, _ in files)
    why = (
        ", some also the same AAD prefix: blocks of one file can replace those of another"
        if exchangeable
        else "; each file should have its own"
    )
    message = f"{len(files)} files have the same key{why}: {names}"
    report.note("integrity", message, warning=not exchangeable)
