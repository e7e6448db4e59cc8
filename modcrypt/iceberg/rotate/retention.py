"""Decide which snapshots, branches and tags an expiry keeps, with the meaning of Iceberg's Java.

    branch                 its last `min-snapshots-to-keep` snapshots and those younger than
                           `max-snapshot-age-ms`: its own settings, else the caller's, else the
                           table properties `history.expire.*`
    tag                    its snapshot
    branch or tag          dropped once its snapshot is older than `max-ref-age-ms`; never main
    snapshot of no branch  kept while it is young

Java uses 5 days where nothing states an age. Without `older_than` and `keep_last`, modcrypt keeps
only the heads of branches, unless the branch or the table states more. A staged snapshot, which
`wap.id` marks and nobody has published, is kept at any age: Java drops it with its rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.write.snapshot_writing import MAIN, ancestors

STAGED, PUBLISHED = "wap.id", "published-wap-id"
"""Members of a snapshot's summary that mark staged snapshots, and those that publish them."""

_MAX_AGE_MS = 5 * 24 * 60 * 60 * 1000  # java's default of `history.expire.max-snapshot-age-ms`
_AGE = "history.expire.max-snapshot-age-ms"
_COUNT = "history.expire.min-snapshots-to-keep"
_REF_AGE = "history.expire.max-ref-age-ms"


@dataclass(frozen=True)
class Kept:
    """The snapshots and refs that an expiry keeps."""

    snapshots: Mapping[int, str]  # reasons by the ids of snapshots
    refs: frozenset[str]  # names of the branches and tags


@dataclass(frozen=True, kw_only=True)
class Retention:
    """The history that the caller of an expiry keeps; see `expire_history`."""

    keep: tuple[int, ...] = ()
    older_than: timedelta | datetime | None = None
    keep_last: int | None = None
    force: bool = False
    now_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    def __post_init__(self) -> None:
        if self.keep_last is not None and self.keep_last < 1:
            raise ValueError("keep_last must be at least 1: a branch keeps its newest snapshot")
        older = self.older_than
        if isinstance(older, timedelta) and older < timedelta(0):
            raise ValueError("older_than must not be negative")
        if isinstance(older, datetime) and older.tzinfo is None:
            raise ValueError("older_than has no time zone; pass for example tzinfo=UTC")

    def kept(self, metadata: TableMetadata) -> Kept:
        """Return the snapshots and refs of a table that stay.

        Raise ValueError if a snapshot that the caller names does not exist; and FormatError if a
        setting of the table or of a branch or tag is not a whole number.
        """
        there = {snapshot.id: snapshot for snapshot in metadata.snapshots}
        if missing := sorted(set(self.keep) - there.keys()):
            raise ValueError(f"keep: snapshot {missing[0]} does not exist")
        refs = _refs(metadata)
        staying = {} if self.force else self._staying_refs(metadata, refs, there)
        reasons = dict[int, str]()
        if metadata.current is not None:
            staying[MAIN] = refs[MAIN]
            reasons[metadata.current.id] = "current"
        for name, ref in staying.items():
            reasons.setdefault(ref["snapshot-id"], f"{ref.get('type')} {name}")
        for name, ref in staying.items():
            if _is_branch(name, ref):
                for id_ in self._of_branch(metadata, name, ref, there):
                    reasons.setdefault(id_, f"history of branch {name}")
        if not self.force:
            for id_, reason in self._unreferenced(metadata, staying, there).items():
                reasons.setdefault(id_, reason)
        kept = {**dict.fromkeys(self.keep, "named"), **reasons}
        stay = refs if self.force else staying
        names = (name for name, ref in stay.items() if ref["snapshot-id"] in kept)
        return Kept(kept, frozenset(names))

    def _staying_refs(
        self, metadata: TableMetadata, refs: Mapping[str, Mapping[str, Any]],
        there: Mapping[int, Snapshot],
    ) -> dict[str, Mapping[str, Any]]:  # fmt: skip
        """Return the branches and tags whose snapshots exist and are not too old."""
        longest = _setting(metadata, _REF_AGE)
        staying = dict[str, Mapping[str, Any]]()
        for name, ref in refs.items():
            own = _own_setting(metadata, name, ref, "max-ref-age-ms", longest)
            snapshot = there.get(ref["snapshot-id"])
            if snapshot is not None and (own is None or self.now_ms - snapshot.timestamp_ms <= own):
                staying[name] = ref
        return staying

    def _of_branch(
        self, metadata: TableMetadata, name: str, ref: Mapping[str, Any],
        there: Mapping[int, Snapshot],
    ) -> Iterator[int]:  # fmt: skip
        """Yield the ids of the newest snapshots of a branch, as many as it keeps."""
        age = _own_setting(metadata, name, ref, "max-snapshot-age-ms", None)
        since = self._since(metadata) if age is None else self.now_ms - age
        least = self.keep_last or _setting(metadata, _COUNT) or 1
        count = _own_setting(metadata, name, ref, "min-snapshots-to-keep", least) or 1
        for number, snapshot in enumerate(ancestors(ref["snapshot-id"], there)):
            if number >= count and snapshot.timestamp_ms < since:
                return
            yield snapshot.id

    def _unreferenced(
        self, metadata: TableMetadata, staying: Mapping[str, Mapping[str, Any]],
        there: Mapping[int, Snapshot],
    ) -> dict[int, str]:  # fmt: skip
        """Return the kept snapshots of no branch: the young ones, and those that are staged."""
        reached = {ref["snapshot-id"] for ref in staying.values()} & there.keys()
        for name, ref in staying.items():
            if _is_branch(name, ref):  # the parents of a tag are of no branch
                reached |= {snapshot.id for snapshot in ancestors(ref["snapshot-id"], there)}
        published = {_mark(there[id_], name) for id_ in reached for name in (STAGED, PUBLISHED)}
        since, kept = self._since(metadata), dict[int, str]()
        for snapshot in metadata.snapshots:
            wap_id = _mark(snapshot, STAGED)
            if snapshot.id in reached:
                continue
            if wap_id is not None and wap_id not in published:
                kept[snapshot.id] = f"staged, {STAGED} {wap_id}"
            elif snapshot.timestamp_ms >= since:
                kept[snapshot.id] = "young"
        return kept

    def _since(self, metadata: TableMetadata) -> float:
        """Return the time in ms from which on snapshots are young, if their branch states none."""
        if isinstance(self.older_than, datetime):
            return self.older_than.timestamp() * 1000
        if self.older_than is not None:
            return self.now_ms - self.older_than / timedelta(milliseconds=1)
        if (age := _setting(metadata, _AGE)) is None and self.keep_last is None:
            return math.inf
        return self.now_ms - (_MAX_AGE_MS if age is None else age)


def is_staged(snapshot: Snapshot) -> bool:
    """Return whether a snapshot was staged, whether or not it was published since."""
    return _mark(snapshot, STAGED) is not None


def _mark(snapshot: Snapshot, name: str) -> str | None:
    """Return a text of a snapshot's summary, which may hold anything."""
    text = (snapshot.document.get("summary") or {}).get(name)
    return text if isinstance(text, str) and text else None


def _refs(metadata: TableMetadata) -> dict[str, Mapping[str, Any]]:
    """Return the branches and tags; main names the current snapshot, which Java requires."""
    refs: dict[str, Mapping[str, Any]] = {
        name: ref for name, ref in metadata.refs.items() if type(ref.get("snapshot-id")) is int
    }
    if metadata.current is not None:
        own = refs.get(MAIN, {})
        refs[MAIN] = {**own, "snapshot-id": metadata.current.id, "type": "branch"}
    return refs


def _is_branch(name: str, ref: Mapping[str, Any]) -> bool:
    return name == MAIN or ref.get("type") == "branch"


def _setting(metadata: TableMetadata, name: str) -> int | None:
    return metadata.number(name, 0) if name in metadata.properties else None


def _own_setting(
    metadata: TableMetadata, name: str, ref: Mapping[str, Any], setting: str, otherwise: int | None
) -> int | None:
    """Return a setting of a branch or tag, which Java requires to be positive."""
    if (value := ref.get(setting)) is None:
        return otherwise
    if type(value) is not int or value < 1:
        raise FormatError(f"{metadata.name}: {setting} of {name!r} is not a positive whole number")
    return value
