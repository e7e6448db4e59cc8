"""Represent one version of a table: its metadata and files, and which versions may be around it.

Later versions must follow it; for older ones it vouches by the logs in their metadata.
"""

from __future__ import annotations

import errno
import heapq
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from modcrypt.errors import (
    FormatError,
    IntegrityError,
    KmsUnavailableError,
    ModcryptError,
    PlaintextError,
)
from modcrypt.iceberg.format.deletion import METADATA
from modcrypt.iceberg.format.locations import plain_location
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata, history_lists
from modcrypt.iceberg.format.table_versions import Versions, file_names, is_later, read_metadata
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.read.inventory import Failure
from modcrypt.iceberg.read.table_seals import check_table_seal, hash_metadata
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.io.places import Place
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.kms.signing.trusted_writers import make_trust
from modcrypt.report.suggestions import suggest

MAX_OWN_COMMITS = 1000
"""Largest number of own commits that can be sealed at once; each takes some hundred bytes."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A reader's own expectation of a table, because nobody signs its metadata.json."""

    require_encrypted: bool = True
    table_uuid: str | None = None
    at_least: int | None = None
    master_key_ids: Collection[str] | None = None
    read_restrictions: Mapping[str, Any] | None = None
    signed_by: Mapping[str, VerifyingKey] = field(default_factory=dict)
    seal_at_least: int = 1
    seal_needed: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.master_key_ids, str):  # each letter would count as an id
            raise ValueError("master_key_ids must be a collection of ids, not a string")
        if self.signed_by or self.seal_needed != 1:
            make_trust(self.signed_by.values(), self.seal_needed)  # raises for too few keys

    def check(self, metadata: TableMetadata) -> None:
        """Compare a table's metadata with the expectation. Raises the errors of `open_table`."""
        name = metadata.name
        if self.require_encrypted and not metadata.master_key_id:
            raise PlaintextError(
                f"{name}: the table has no encryption.key-id: it is not encrypted, or the "
                "property was removed"
            )
        if self.table_uuid is not None and metadata.uuid != self.table_uuid:
            raise IntegrityError(f"{name}: this is table {metadata.uuid}, not {self.table_uuid}")
        if self.at_least is not None and (current := _state(metadata)) < self.at_least:
            raise IntegrityError(
                f"{name}: the table's current snapshot has the sequence number {current}, and it "
                f"must be at least {self.at_least}: this is an older state of the table"
            )
        allowed = None if self.master_key_ids is None else set(self.master_key_ids)
        if allowed is not None and metadata.master_key_id not in allowed:
            raise IntegrityError(
                f"{name}: the table is under the master key {metadata.master_key_id!r}, which is "
                "none of those expected; pass master_key_ids to accept it"
            )

    def check_seal(self, place: Place, metadata: TableMetadata) -> None:
        """Check the seal of a table if it must be signed, with the errors of `check_table_seal`."""
        if self.signed_by:
            check_table_seal(place, metadata, self.signed_by, self.seal_at_least, self.seal_needed)


def _state(metadata: TableMetadata) -> int:
    """Return the sequence number of the current snapshot, which must not decrease."""
    # `last-sequence-number` alone proves nothing: a forged metadata.json could keep it and name an
    # older snapshot, or none.
    current = metadata.current
    return 0 if current is None else min(current.sequence_number, metadata.last_sequence_number)


def _check_follows(new: TableMetadata, old: TableMetadata, expected: Expectation) -> None:
    """Raise IntegrityError if a version that others committed has another master key, or is older.

    `old` is the version that this process has seen. Nothing signs metadata.json: anyone who can
    write it could choose the master key for new files, or restore an older state.
    """
    if new.master_key_id != old.master_key_id and expected.master_key_ids is None:
        raise IntegrityError(
            f"{new.name}: the table was under the master key {old.master_key_id!r}, and is now "
            f"under {new.master_key_id!r}. If that key was rotated, open the table again with "
            f"master_key_ids=[{new.master_key_id!r}]; otherwise metadata.json was altered"
        )
    if (
        _state(new) < _state(old)
        or new.last_sequence_number < old.last_sequence_number
        or (new.current is None and old.current is not None)
    ):
        raise IntegrityError(
            f"{new.name}: the table is at sequence number {_state(new)}, and was at {_state(old)}: "
            "this is an older state of it. If it was rolled back on purpose, open the table again"
        )


@dataclass(frozen=True)
class TableVersion:
    """One version of a table, and the way to the next; `IcebergTable` explains the attributes.

    A version that others have committed is accepted in this order: it is of the same table, it
    meets the reader's expectation, its seal is valid, it is no older state and under the same
    master key, and a file that was read before has not changed. Nothing of it is used earlier.
    """

    metadata: TableMetadata
    place: Place
    walk: Walk = field(repr=False)
    versions: Versions = field(repr=False)
    expected: Expectation = field(repr=False)
    restrictions: Mapping[str, Any] | None = field(default=None, repr=False)
    signing_key: SigningKey | Sequence[SigningKey] | None = field(default=None, repr=False)
    # Hashes of the versions before, each of which this process has committed the next one to.
    own_commits: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def resolver(self) -> KeyResolver:
        """The resolver that opens this table's keys."""
        return self.walk.resolver

    @property
    def read_restrictions(self) -> list[Mapping[str, Any]]:
        """Restrictions of the catalog and of the reader; empty if all rows may be read."""
        restrictions = (self.restrictions, self.expected.read_restrictions)
        return [document for document in restrictions if document is not None]

    def refreshed(self) -> Self:
        """Return the current version of the table, which others may have committed since.

        Raises:
            IntegrityError: The version is older than this one, under another master key, or this
                one altered; open the table again if that is intended.
            ModcryptError, OSError: The version cannot be opened, as for `open_table`.
        """
        current = self.versions.read(self.metadata)
        version = self._check_version(current.place, current.metadata)
        return replace(version, restrictions=current.restrictions)

    def at(self, place: Place) -> Self:
        """Return the version of the table at a metadata.json. Raises the errors of `open_table`."""
        return self._check_version(place, read_metadata(place))

    def _check_version(self, place: Place, metadata: TableMetadata) -> Self:
        if metadata.uuid != self.metadata.uuid:
            raise IntegrityError(f"{place.address}: this is the metadata of another table")
        self.expected.check(metadata)
        if metadata.document != self.metadata.document:  # else it is checked, or its own commit
            self.expected.check_seal(place, metadata)
        _check_follows(metadata, self.metadata, self.expected)
        if place == self.place and metadata.document != self.metadata.document:
            raise IntegrityError(
                f"{place.address}: metadata.json was altered after the table was opened; commits "
                "write new ones. If it was restored on purpose, open the table again"
            )
        return self.with_metadata(metadata, place)

    def with_metadata(self, metadata: TableMetadata, place: Place | None = None) -> Self:
        """Return the version with other metadata, and another place if it is stored already."""
        place, walk = place or self.place, self.walk.through(metadata)
        own = self.own_commits if metadata.document == self.metadata.document else ()
        return replace(self, metadata=metadata, place=place, walk=walk, own_commits=own)

    def next_commits(self) -> tuple[str, ...]:
        """Return `own_commits` of a version that this process has committed after this one."""
        return (*self.own_commits, hash_metadata(self.metadata))[-MAX_OWN_COMMITS:]

    def snapshot(self, which: int | str | None = None) -> Snapshot | None:
        """Return a snapshot by id, branch or tag, or the current one; None without a current one.

        Raises:
            ValueError: No such snapshot exists.
            IntegrityError: The branch `main` names another snapshot than the current one.
        """
        if which is None:
            return self.metadata.current
        wanted: int = self._ref(which)["snapshot-id"] if isinstance(which, str) else which
        if which == "main" and wanted != self.metadata.document.get("current-snapshot-id"):
            raise IntegrityError(  # `at_least` was checked for the current snapshot
                f"{self.metadata.name}: the branch main has another snapshot than the current one: "
                "the file was altered; restore an older metadata.json"
            )
        try:
            return self.metadata.snapshot(wanted)
        except FormatError:
            raise ValueError(f"snapshot {wanted} does not exist") from None

    def _ref(self, name: str) -> dict[str, Any]:
        ref = self.metadata.refs.get(name, {})
        if type(ref.get("snapshot-id")) is not int:
            hint = suggest(name, self.metadata.refs)
            raise ValueError(f"branch or tag {name!r} does not exist{hint}")
        return ref


_LASTING = frozenset({
    errno.EACCES, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR,
    errno.ENXIO, errno.EPERM,
})  # fmt: skip
"""Permanent file system errors, which a location in a forged file can also cause."""


def check_lasting(error: Failure | None) -> None:
    """Raise a temporary error: files that cannot be read now would otherwise never be deleted."""
    passing = isinstance(error, OSError) and error.errno not in _LASTING
    if error is not None and (passing or isinstance(error, KmsUnavailableError)):
        raise error


def vouched_versions(
    table: TableVersion,
    read: Callable[[Place], TableMetadata] | None = None,
    start: Collection[tuple[int, str]] | None = None,
) -> Iterator[tuple[Place, TableMetadata]]:
    """Yield the version of a table and the older ones that logs vouch for, the newest first.

    `read` returns an older version; by default it reads the file. `start` has log entries of a
    vouched-for version to begin with; then the versions that the table's own log names are left
    out.

    A log contains names and times, which do not authenticate the content of these files. So files
    that only an older version names are deleted only in the table's own folder.
    """
    yield table.place, table.metadata
    read = read or partial(read_metadata, lists=history_lists())
    own, there = table.place.name, set(metadata_files(table))
    times: dict[str, int | None] = {own: None}  # of files already read: a log may repeat names
    seen = set(table.metadata.log)
    waiting = _older_versions(seen if start is None else set(start) - seen, there, own)
    seen |= set(start or ())
    heapq.heapify(waiting)
    while waiting:
        before, name = heapq.heappop(waiting)
        if times.get(name, -before) != -before:
            continue
        metadata = _read_version(table, name, read)
        when = None if metadata is None else metadata.document.get("last-updated-ms")
        times[name] = when if type(when) is int else None
        if metadata is not None and times[name] == -before:
            times[name] = None
            yield table.place.beside(name), metadata
            fresh = metadata.log - seen
            seen |= fresh
            for version in _older_versions(fresh, there, own):
                heapq.heappush(waiting, version)


def _older_versions(
    log: Iterable[tuple[int, str]], there: set[str], own: str
) -> list[tuple[int, str]]:
    """Return the logged versions that exist and may be older, as items of a heap."""
    return [(-ms, name) for ms, name in log if name in there and not is_later(name, own)]


def metadata_files(table: TableVersion) -> list[str]:
    """List the names of all metadata.json files in the folder of the table's own."""
    folder = Place(table.place.filesystem, posixpath.dirname(table.place.path))
    return sorted(name for name in file_names(folder) if METADATA.fullmatch(name))


def _read_version(
    table: TableVersion, name: str, read: Callable[[Place], TableMetadata]
) -> TableMetadata | None:
    """Read an older version; return None if it is missing, or of another table or location."""
    # A table keeps its location. A metadata.json with another one may present copies of another
    # table's files, which decrypt under the same master key, as this table's newest state.
    try:
        metadata = read(table.place.beside(name))
    except FileNotFoundError:
        return None
    except (ModcryptError, OSError) as error:
        check_lasting(error)
        return None
    return metadata if _identity(metadata) == _identity(table.metadata) else None


def _identity(metadata: TableMetadata) -> tuple[str, str]:
    return metadata.uuid, plain_location(metadata.location)
