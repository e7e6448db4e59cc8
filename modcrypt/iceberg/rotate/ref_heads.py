"""The snapshots that branches and tags of a table name, and how they descend from each other.

    main      S ── A ── N_main               N_main has the rows of A under new keys
                    │      └── N_b           a branch that is ahead of main stays ahead of it
    branch b        └── B

Iceberg fast-forwards `main` to a branch if the head of `main` is an ancestor of the branch's. So
what takes the place of B follows what takes the place of A.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.write.snapshot_writing import MAIN


@dataclass(frozen=True, kw_only=True)
class Head:
    """A snapshot that branches or tags name."""

    snapshot: Snapshot
    refs: tuple[str, ...]
    # Id of the nearest other head that it descends from, where that is the one of main or descends
    # from it in turn; None otherwise.
    base: int | None = None
    # Operations of the snapshots after `base`.
    operations: frozenset[str | None] = frozenset()

    @property
    def is_main(self) -> bool:
        """True if the branch main names the snapshot."""
        return MAIN in self.refs


def list_heads(metadata: TableMetadata) -> list[Head]:
    """Return the heads of a table: those beside main, that of main, and those ahead of it.

    So the snapshot that takes the place of main's head is newer than all that it does not lead to.
    """
    by_id = {snapshot.id: snapshot for snapshot in metadata.snapshots}
    refs: dict[int, list[str]] = {}
    current = metadata.current
    if current is not None:
        refs[current.id] = [MAIN]
    for name, ref in metadata.refs.items():
        if name != MAIN and ref.get("snapshot-id") in by_id:
            refs.setdefault(ref["snapshot-id"], []).append(name)
    others = (by_id[id_] for id_ in refs if current is None or id_ != current.id)
    ordered = sorted(others, key=lambda other: (other.sequence_number, other.timestamp_ms))
    heads = [] if current is None else [Head(snapshot=current, refs=tuple(refs[current.id]))]
    ahead = {head.snapshot.id for head in heads}
    for snapshot in ordered:
        base, operations = _find_base(snapshot, ahead, by_id)
        if base is not None:
            ahead.add(snapshot.id)
        names = tuple(refs[snapshot.id])
        heads.append(Head(snapshot=snapshot, refs=names, base=base, operations=operations))
    return sorted(heads, key=lambda head: 2 if head.base is not None else int(head.is_main))


def list_behind(metadata: TableMetadata) -> tuple[str, ...]:
    """Return the branches whose heads are older snapshots of main, which could follow it."""
    current = metadata.current
    if current is None:
        return ()
    by_id = {snapshot.id: snapshot for snapshot in metadata.snapshots}
    older = {snapshot.id for snapshot in _ancestors(current, by_id)} - {current.id}
    return tuple(
        name for name, ref in metadata.refs.items()
        if ref.get("type") == "branch" and ref.get("snapshot-id") in older
    )  # fmt: skip


def _find_base(
    snapshot: Snapshot, ahead: set[int], by_id: Mapping[int, Snapshot]
) -> tuple[int | None, frozenset[str | None]]:
    operations = set[str | None]()
    for ancestor in _ancestors(snapshot, by_id):
        if ancestor.id in ahead:
            return ancestor.id, frozenset(operations)
        operations.add(ancestor.operation)
    return None, frozenset()


def _ancestors(snapshot: Snapshot, by_id: Mapping[int, Snapshot]) -> Iterator[Snapshot]:
    """Yield a snapshot and those before it; a forged history may be a circle."""
    seen, next_one = set[int](), snapshot
    while next_one.id not in seen:
        yield next_one
        seen.add(next_one.id)
        parent = by_id.get(next_one.parent or 0)
        if parent is None:
            return
        next_one = parent
