"""Report what a rotation of a table's keys has done, or would do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from modcrypt.errors import PlaintextError
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.keys.key_policies import master_key_of
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import latest
from modcrypt.kms.client import KmsClient, capabilities_of
from modcrypt.kms.proof import WrapProof
from modcrypt.report.json_fields import JsonFields
from modcrypt.report.text import format_count
from modcrypt.runtime.fork_safety import fork_safe

LISTED = 5  # maximum number of ids of lost keys in the advice

Rotated: TypeAlias = Literal["mek", "kek", "dek"]


@dataclass(frozen=True, kw_only=True)
class TableRotation(JsonFields):
    """The result of `rotate_table`: what was done, or in a dry run would be done.

    Attributes:
        what: Kind of keys rotated: "mek", "kek" or "dek".
        table: The table at its new version; unchanged in a dry run or without changes.
        dry_run: Whether it was a dry run, which changes nothing.
        committed: Whether the table has a new version.
        proved: Number of new wraps that the key service unwrapped again, and that opened what they
            should, by the id of the master key.
        master_key_id: Id of the master key that the table is under now.
        keks: Number of KEKs wrapped again ("mek") or replaced ("kek").
        new_keks: Number of KEKs made.
        entries: Number of manifest lists whose key metadata was encrypted again without rewriting
            the list.
        manifest_lists, manifests, data_files, delete_files: Numbers of rewritten files.
        kms_calls: Number of calls of the key service; in a dry run, the expected number without
            retries (for "dek", without the new KEKs that the table's policy requires).
        seconds: Duration in seconds.
        left: For "mek", ids of KEKs that are unchanged in the key store, because the store or the
            key service failed after the commit, or refuses KEKs of older versions. For "kek", ids
            of missing KEKs, for example of a shredded partition: keys encrypted under them are
            unchanged.
        lost: Ids of keys that snapshots need and that neither the table nor its key store has:
            these snapshots cannot be read, and their keys were not rotated.
        older_versions: Locations of older metadata.json files that the table's log names. They
            contain the old wrapped keys, or need KEKs that stay in the key store for them: anyone
            who has them and the old keys can read the files that they lead to.
        older_snapshots: Ids of snapshots that keep their files under the old data keys ("dek"), or
            in a REST catalog the wrapped keys in their manifests ("kek").
        behind_refs: Branches that were behind main, and can no longer be fast-forwarded to it, as
            they have new snapshots of their own.
    """

    what: Rotated
    table: IcebergTable = field(repr=False)
    dry_run: bool = False
    committed: bool = False
    proved: Mapping[str, int] = field(default_factory=dict)
    master_key_id: str = ""
    keks: int = 0
    new_keks: int = 0
    entries: int = 0
    manifest_lists: int = 0
    manifests: int = 0
    data_files: int = 0
    delete_files: int = 0
    kms_calls: int = 0
    seconds: float = 0.0
    left: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    older_versions: tuple[str, ...] = ()
    older_snapshots: tuple[int, ...] = ()
    behind_refs: tuple[str, ...] = ()

    _first, _without = ("advice",), ("table",)

    @property
    def advice(self) -> str | None:
        """Remaining steps until the old keys are useless; None if there are none."""
        steps = []
        if self.left and self.what == "kek":
            steps.append(
                f"{len(self.left)} KEKs are neither in the table nor in the key store, so files "
                "whose keys they encrypt cannot be read; if you restore a KEK, rotate again"
            )
        elif self.left:
            steps.append(
                f"{len(self.left)} KEKs in the key store are unchanged: rotate again, "
                "or drop those of older versions with expire_history"
            )
        if self.lost:
            ids, lost = ", ".join(self.lost[:LISTED]), format_count(len(self.lost), "key")
            steps.append(
                f"{lost} that snapshots need cannot be found ({ids}), so these snapshots cannot be "
                "read: verify_table names them; drop them with expire_history, or restore the keys "
                "from an older metadata.json and rotate again"
            )
        if self.older_snapshots:
            what = "their files under the old data" if self.what == "dek" else "the old wrapped"
            steps.append(
                f"{format_count(len(self.older_snapshots), 'older snapshot')} with {what} keys: "
                "expire_history drops them"
            )
        if staged := self._count_staged():
            steps.append(
                f"{format_count(staged, 'staged snapshot')} (wap.id) among them can be published, "
                "with these keys, only if it appends rows: publish it before it expires, or write "
                "the rows again"
            )
        if self.behind_refs:
            steps.append(
                f"branches that were behind main ({', '.join(self.behind_refs)}) cannot be "
                "fast-forwarded to it any more: replace them where you need that"
            )
        if self.older_versions:
            steps.append(
                f"{len(self.older_versions)} older metadata.json files of the table contain the "
                "old keys: expire_history drops them, and the history that they lead to"
            )
        return "; ".join(steps) or None

    def _count_staged(self) -> int:
        """Return the number of older snapshots, with old keys, that can be published."""
        if self.what == "kek" and not self.manifests:  # the branches stay as they are
            return 0
        by_id = {snapshot.id: snapshot for snapshot in self.table.metadata.snapshots}
        older = (by_id[id_] for id_ in self.older_snapshots if id_ in by_id)
        published = {_summary(old).get("published-wap-id") for old in by_id.values()}
        waiting = (_summary(old).get("wap.id") for old in older)
        return sum(id_ is not None and id_ not in published for id_ in waiting)


def _summary(snapshot: Snapshot) -> Mapping[str, Any]:
    summary = snapshot.document.get("summary")
    return summary if isinstance(summary, dict) else {}


def logged_versions(metadata: TableMetadata) -> tuple[str, ...]:
    """Return the locations of the older versions that a table's log names."""
    return tuple(metadata.texts_of("metadata-log", "metadata-file"))


def older_versions(table: IcebergTable) -> tuple[str, ...]:
    """Return logged locations that still exist or are outside of the table's folders."""
    return tuple(
        version for version in logged_versions(table.metadata) if not _is_gone(table, version)
    )


def _is_gone(table: IcebergTable, location: str) -> bool:
    with contextlib.suppress(Exception):  # a store's own, or another folder
        return not table.walk.place(location).exists()
    return False


_CALLS = ("wrap", "unwrap", "rewrap", "wrap_many", "unwrap_many", "rewrap_many")


class CountingClient:
    """A client of a key service that counts its calls, including repeated ones."""

    def __init__(self, client: KmsClient) -> None:
        self._client, self._lock = client, fork_safe(threading.Lock())
        self.paced_client = getattr(client, "paced_client", client)
        self.calls = 0

    def __repr__(self) -> str:
        return f"CountingClient({type(self._client).__name__})"

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name not in _CALLS:
            return method

        def count_and_call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self.calls += 1
            return method(*arguments, **options)

        return count_and_call


def count_kms_calls(
    table: IcebergTable, proof: WrapProof | None = None
) -> tuple[IcebergTable, CountingClient]:
    """Return the current version of a table with a client that counts calls of the key service.

    Its resolver has no unwrapped keys yet, and proves its wraps as `proof` requires.
    """
    table = latest(table)
    resolver = table.resolver
    client: Any = CountingClient(resolver.masters.client)
    fresh = KeyResolver(
        client,
        resolver.store,
        master_key_ids=resolver.master_key_ids,
        audit=resolver.masters.audit,
        proof=proof,
        check_new=resolver.check_new,
    )
    return with_resolver(table, fresh), client


def with_resolver(table: IcebergTable, resolver: KeyResolver) -> IcebergTable:
    """Return a table with another key resolver."""
    return replace(table, walk=replace(table.walk, resolver=resolver))


def move_calls(client: KmsClient, old_id: str, new_id: str) -> int:
    """Return the number of calls to wrap a key again, by another or the same master key."""
    return 1 if old_id == new_id and capabilities_of(client).rewrap else 2


def target_of(table: IcebergTable, new_id: str | None) -> str:
    """Return the id of the master key that a table will be under."""
    if table.metadata.master_key_id is None:
        raise PlaintextError(f"{table.metadata.name}: the table has no keys to rotate")
    key_id = new_id or master_key_of(table)
    allowed = table.expected.master_key_ids
    if allowed is not None and key_id not in allowed:
        raise ValueError(
            f"master key {key_id!r} is not among the master_key_ids with which the table was "
            "opened; add it to master_key_ids, or rotate to one of them"
        )
    return key_id
