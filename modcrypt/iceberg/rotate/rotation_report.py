"""What a rotation of a table's keys has done, or would do."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from modcrypt.errors import FormatError, PlaintextError
from modcrypt.fork_safety import fork_safe
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import master_key_of
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.kms.client import KmsClient, capabilities_of
from modcrypt.report.page import counted

__all__ = [
    "Counted",
    "Rotated",
    "TableRotation",
    "counting",
    "latest",
    "logged_versions",
    "move_calls",
    "older_versions",
    "target_of",
    "with_resolver",
]

LISTED = 5
"""Ids of lost keys in the advice."""

Rotated: TypeAlias = Literal["mek", "kek", "dek"]


@dataclass(frozen=True, kw_only=True)
class TableRotation:
    """What `rotate_table` has done; in a dry run, what it would do.

    Attributes:
        what: was rotated.
        table: at its new version; in a dry run, and where nothing was to be done, as it was.
        dry_run: whether nothing was changed.
        committed: whether the table has a new version.
        master_key_id: of the master key that the table is under by now.
        keks: KEKs that were wrapped anew ("mek"), or are no more ("kek").
        new_keks: that were made.
        entries: manifest lists whose key metadata was sealed anew, without a change of the file.
        manifest_lists, manifests, data_files, delete_files: that were written anew.
        kms_calls: of the key service; in a dry run, as many as it takes if none has to be repeated
            (of "dek", but for KEKs that the table's policy wants new).
        seconds: that it took.
        left: ids of KEKs that are in the key store as they were ("mek"): the store or key service
            failed when the table was rotated already, or refuses those of older versions. Or that
            are nowhere ("kek"), as of a partition that was shredded: what they seal stays so.
        lost: Ids of keys that snapshots need, and that neither the table nor its key store has:
            these snapshots can't be read, and their keys were not rotated.
        older_versions: locations of older metadata.json files that the table's log names.
            They hold keys as they were, or need KEKs that stay in the key store for them: who has
            them and the old keys reads what they lead to.
        older_snapshots: ids of those that keep their files, under the old data keys ("dek").
        older_refs: branches and tags that name one of them.
    """

    what: Rotated
    table: IcebergTable = field(repr=False)
    dry_run: bool = False
    committed: bool = False
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
    older_refs: tuple[str, ...] = ()

    @property
    def advice(self) -> str | None:
        """What is left to do before the old keys are of no use; None if nothing is."""
        found = []
        if self.left and self.what == "kek":
            found.append(
                f"{len(self.left)} KEKs are neither in the table nor in the key store: the files "
                "whose keys they seal can't be read; should one come back, rotate again"
            )
        elif self.left:
            found.append(
                f"{len(self.left)} KEKs are in the key store as they were before: rotate again, "
                "or have expire_history drop those of older versions"
            )
        if self.lost:
            ids = ", ".join(self.lost[:LISTED])
            found.append(
                f"{counted(len(self.lost), 'key')} that snapshots need can't be found ({ids}), so "
                "that these can't be read: verify_table names them; have expire_history drop them, "
                "or restore the keys from an older metadata.json and rotate again"
            )
        if self.older_snapshots:
            found.append(
                f"{len(self.older_snapshots)} older snapshots keep their files under the old data "
                "keys: expire_history drops them"
            )
        if self.older_refs:
            found.append(
                f"but not those of branches and tags ({', '.join(self.older_refs)}), unless by "
                "force=True, which drops these, too"
            )
        if self.older_versions:
            found.append(
                f"{len(self.older_versions)} older metadata.json files of the table hold keys as "
                "they were before: expire_history drops them, and the history that they lead to"
            )
        return "; ".join(found) or None

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes, without the table."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "table"}
        lists = {name: list(one) for name, one in told.items() if isinstance(one, tuple)}
        return {**told, **lists, "advice": self.advice}


def logged_versions(metadata: TableMetadata) -> tuple[str, ...]:
    """Give the locations of the older versions that a table's log names."""
    return tuple(metadata.named("metadata-log", "metadata-file"))


def older_versions(table: IcebergTable) -> tuple[str, ...]:
    """Give the locations of those that are still there, or are outside of the table's folders."""
    return tuple(one for one in logged_versions(table.metadata) if not _is_gone(table, one))


def _is_gone(table: IcebergTable, location: str) -> bool:
    with contextlib.suppress(FormatError):
        return table.walk.place(location).stamp() is None
    return False


def latest(table: IcebergTable) -> IcebergTable:
    """Give the current version of a table, which is not read again if that is the one."""
    current = table.versions.current()
    found = table if current == table.place else table.refreshed()
    found.metadata.check_members()
    return found


# --- calls of the key service --------------------------------------------------------------------

_CALLS = ("wrap", "unwrap", "rewrap", "wrap_many")


class Counted:
    """A client of a key service that counts its calls, those that are repeated, too."""

    def __init__(self, client: KmsClient) -> None:
        self._client, self._lock = client, fork_safe(threading.Lock())
        self.calls = 0

    def __repr__(self) -> str:
        return f"Counted({type(self._client).__name__})"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in _CALLS:
            return found

        def counted(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self.calls += 1
            return found(*arguments, **options)

        return counted


def counting(table: IcebergTable) -> tuple[IcebergTable, Counted]:
    """Give the current version of a table, whose calls of the key service are counted.

    No key of it is open yet.
    """
    table = latest(table)
    resolver = table.walk.resolver
    client: Any = Counted(resolver.masters.client)
    fresh = KeyResolver(
        client,
        resolver.store,
        master_key_ids=resolver.master_key_ids,
        audit=resolver.masters.audit,
    )
    return with_resolver(table, fresh), client


def with_resolver(table: IcebergTable, resolver: KeyResolver) -> IcebergTable:
    """Give a table that opens its keys by another resolver."""
    return replace(table, walk=replace(table.walk, resolver=resolver))


def move_calls(client: KmsClient, old_id: str, new_id: str) -> int:
    """Give the calls that it takes to have a key wrapped by another master key, or anew."""
    return 1 if old_id == new_id and capabilities_of(client).rewrap else 2


def target_of(table: IcebergTable, new_id: str | None) -> str:
    """Give the id of the master key that a table is to be under.

    Raises:
        PlaintextError: the table is under none.
        ValueError: whoever opened the table expects others.
        ModcryptError, OSError: without `new_id`, as `master_key_of`.
    """
    if table.metadata.master_key_id is None:
        raise PlaintextError(f"{table.metadata.name}: the table has no keys to rotate")
    found = new_id or master_key_of(table)
    allowed = table.expected.master_key_ids
    if allowed is not None and found not in allowed:
        raise ValueError(
            f"the table was opened with master_key_ids that {found!r} is none of: nobody who "
            "expects these could open it any more"
        )
    return found
