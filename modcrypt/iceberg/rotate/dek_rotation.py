"""Rewrite the files of a table's branches and tags under new data keys (DEKs), as new snapshots.

    data, equality deletes      decrypted and encrypted again page by page, or block by block
    position deletes, vectors   the same, with the new locations of data files
    manifests                   one new manifest for each old one, with the sequence numbers and
                                row ids of the old one: see `rotated_snapshots`

Rows and deleted rows do not change. Erased files stay as they are, in new manifests. Files that
several branches and tags share are rewritten once.
Older snapshots keep their files under the old keys until `expire_history` drops them. The table's
current policy decides which keys protect the new keys.

`DekRotation.next_version` writes in this order, since each step needs the locations or keys that
the one before has made; after a crash at any of them, the files are orphans:

    1. data files and equality deletes, once for all attempts, by any process
    2. position deletes, once for all attempts: they name the new data files
    3. the new keys, encrypted under KEKs that fit the version that the attempt follows
    4. for each head, its manifests, manifest list and snapshot: again for each attempt

Key metadata is passed to and from the processes that rewrite files. It is encrypted under a KEK
that is used only for this job, so every process that can use the table's master key can take part.
"""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain

from modcrypt.errors import PlaintextError
from modcrypt.iceberg.format.manifest_rows.file_entries import DATA, POSITION_DELETES, FileEntry
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import KeyPolicy, writing_keys, writing_policy
from modcrypt.iceberg.keys.wrapping_keys import OpenKey
from modcrypt.iceberg.read.data_files import open_parquet_file
from modcrypt.iceberg.rotate.file_rekeying import FreshDataKeys, Run, rewrite_files
from modcrypt.iceberg.rotate.manifests.plaintext_manifests import check_registered, read_registered
from modcrypt.iceberg.rotate.manifests.wrapped_in_manifests import encrypting_keys
from modcrypt.iceberg.rotate.rotated_snapshots import (
    Manifests,
    NewFile,
    RotatedSnapshots,
    file_id,
    list_behind,
    list_heads,
    tag_names,
    with_live_files,
)
from modcrypt.iceberg.rotate.rotation_report import CountingClient, TableRotation, target_of
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.tables.table_copying import Contents
from modcrypt.iceberg.write.append import encrypt_key_metadata
from modcrypt.iceberg.write.manifest_writing import PartitionPaths, partition_values
from modcrypt.iceberg.write.moved_deletes import MovedFile, encrypt_file, write_moved
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.io.threads import in_threads
from modcrypt.jobs.engine import THREADS
from modcrypt.runtime.fork_safety import cached_property


class _Files(Contents):
    """The files of the heads of a version's branches and tags."""

    @classmethod
    def encrypted(cls, table: IcebergTable, *, plaintext: bool = False) -> _Files:
        """Read the files of all heads; raise PlaintextError for one in plaintext.

        With `plaintext`, such files are accepted.
        """
        heads = [head.snapshot for head in list_heads(table.metadata)]
        files = cls.of(table, snapshots=heads, read=read_registered)
        check_registered(table.walk, files.manifests.values(), files.entries)
        for entry in () if plaintext else files.live_entries:
            if entry.key_metadata is None:
                raise PlaintextError(
                    f"{entry.location}: the file is in plaintext and has no key to rotate; check "
                    "where it comes from, and pass encrypt_plaintext=True to encrypt it"
                )
        return files

    def with_live(self, snapshot_id: int) -> Manifests:
        """Return the manifests of a head with live entries, which are rewritten."""
        pairs = [(each, self.entries[each.location]) for each in self.manifests[snapshot_id]]
        return with_live_files(pairs)

    @property
    def rewritten(self) -> list[Manifests]:
        """The manifests with live entries of each head that has some."""
        return [found for id_ in self.manifests if (found := self.with_live(id_))]

    @cached_property
    def live_entries(self) -> list[FileEntry]:
        """The live entries, each once; of a Puffin file one for each vector; no erased ones."""
        entries = chain.from_iterable(self.entries.values())
        key = self.walk.locations.key
        by_id = {
            (key(entry.location), entry.file.get("content_offset")): entry
            for entry in entries
            if entry.is_live and not self.walk.is_left_out(entry)
        }
        return list(by_id.values())

    def partition_paths(self, metadata: TableMetadata) -> list[str]:
        """Return the partition of each live entry, in order, as the paths of files contain it."""
        live = self.live_entries
        paths = {id_: PartitionPaths(metadata, id_) for id_ in {entry.spec_id for entry in live}}
        return [paths[entry.spec_id].path(partition_values(metadata, entry)) for entry in live]

    def kms_calls(self, table: IcebergTable) -> int:
        """Return the number of KMS calls to rewrite the files, without new KEKs of the policy."""
        by = encrypting_keys(self.live.values())
        opened = sum(single for _, single in by) + len({id_ for id_, single in by if not single})
        policy = KeyPolicy.of(table.metadata)
        wraps = 1
        if policy.wrapping != "double":
            wraps += 1 + (len(self.live_entries) if policy.kek_per == "files" else 0)
        return wraps + opened + table.resolver.masters.proof.expected_calls(wraps)

    def report(self, table: IcebergTable, *, replaced: bool) -> TableRotation:
        """Return the files to rotate, and those that stay under the old keys.

        Heads that will be `replaced` count as older snapshots.
        """
        data = sum(entry.content == DATA for entry in self.live.values())
        heads = {head.snapshot.id for head in list_heads(table.metadata)}
        older = [old.id for old in table.metadata.snapshots if old.id not in heads]
        if replaced:
            older += [id_ for id_ in self.manifests if self.with_live(id_)]
        manifests = {manifest.location for found in self.rewritten for manifest, _ in found}
        return TableRotation(
            what="dek", table=table, data_files=data, delete_files=len(self.live) - data,
            manifests=len(manifests), manifest_lists=len(self.rewritten),
            older_snapshots=tuple(sorted(older)), behind_refs=list_behind(self.walk.metadata),
        )  # fmt: skip


@dataclass
class DekRotation:
    """The making of the next version; a retry reuses the files that are already rewritten."""

    seen: TableMetadata = field(repr=False)
    new_files: NewFiles
    run: Run
    encrypt_plaintext: bool = False  # whether to encrypt files that are in plaintext
    # Files of the version on which the latest attempt is based.
    files: _Files = field(init=False, repr=False)
    job: OpenKey | None = field(default=None, init=False, repr=False)
    # Rewritten files, by the paths of the old files.
    moved: dict[str, MovedFile] = field(default_factory=dict, repr=False)
    # See `Rotation`.
    has_work: bool = True
    in_table: bool = True
    replaced: frozenset[str] = frozenset()

    def plan(self, table: IcebergTable, target: str, client: CountingClient) -> TableRotation:
        """Return the report of a dry run; a table without files has nothing to rotate."""
        del target  # it is the table's own
        writing_policy(table.metadata, self.seen)
        self.files = _Files.encrypted(table, plaintext=self.encrypt_plaintext)
        self.has_work = bool(self.files.live)
        calls = client.calls + (self.files.kms_calls(table) if self.has_work else 0)
        return replace(self.files.report(table, replaced=self.has_work), kms_calls=calls)

    def finish(self, table: IcebergTable) -> TableRotation:
        """Return the report of the rotation."""
        return self.files.report(table, replaced=False)

    def next_version(self, table: IcebergTable) -> TableMetadata:
        """Write missing files and return the metadata of the next version."""
        if table.place != self.files.place:
            self.files = _Files.encrypted(table, plaintext=self.encrypt_plaintext)
        self._rekey_files(table)
        self._encrypt_files(table)
        self._move_deletes(table)
        metadata, entries = table.metadata, self.files.live_entries
        policy = writing_policy(metadata, self.seen)
        keys = writing_keys(table, policy, self.files.partition_paths(metadata))
        moved = [self.moved[table.walk.locations.key(entry.location)] for entry in entries]
        encrypted = encrypt_key_metadata([file.keys for file in moved], keys.of_files)
        new = RotatedSnapshots(
            table,
            {
                file_id(table, entry): NewFile(file.members, key_metadata)
                for entry, file, key_metadata in zip(entries, moved, encrypted, strict=True)
            },
            self._make_rename(table), keys, self.new_files, tag_names(metadata),
        )  # fmt: skip
        for head in list_heads(metadata):
            new.add(head, self.files.with_live(head.snapshot.id))
        self.new_files.used = [self.moved[path].location for path in self.files.live]
        return new.table.metadata

    def _rekey_files(self, table: IcebergTable) -> None:
        """Rewrite data files and equality delete files."""
        resolver, length = table.resolver, table.metadata.key_length
        if self.job is None:
            self.job = resolver.cache_key(resolver.masters.new_kek(target_of(table, None), length))
        left = {
            path: entry
            for path, entry in self.files.live.items()
            if entry.content != POSITION_DELETES
            and entry.key_metadata is not None
            and path not in self.moved
        }
        for entry in self.files.live.values():
            self.new_files.note_folder(posixpath.dirname(entry.location))
        files = [
            (entry.location, entry.file_format, entry.size, keys)
            for entry in left.values()
            if (keys := table.walk.file_keys(entry)) is not None
        ]
        rewrite = FreshDataKeys(name=self.new_files.name, key_length=length)
        done = rewrite_files(self.run, table, self.job, rewrite, files)
        for path, (location, keys) in zip(left, done, strict=True):
            self.moved[path] = MovedFile(location, keys)

    def _encrypt_files(self, table: IcebergTable) -> None:
        """Encrypt data files and equality delete files that are in plaintext."""
        plain = {
            path: entry
            for path, entry in self.files.live.items()
            if entry.key_metadata is None
            and entry.content != POSITION_DELETES
            and path not in self.moved
        }
        done = in_threads(lambda entry: self._encrypt_file(table, entry), plain.values(), THREADS)
        self.moved.update(zip(plain, done, strict=True))

    def _encrypt_file(self, table: IcebergTable, entry: FileEntry) -> MovedFile:
        folder, own = posixpath.dirname(entry.location), table.metadata.location
        if not folder.startswith(f"{own}/"):  # another folder, whose files were registered
            folder = f"{own}/data"
        location = f"{folder}/{uuid.uuid4()}{posixpath.splitext(entry.location)[1]}"
        length = table.metadata.key_length
        return encrypt_file(self.new_files, table.walk, entry, location, str, length)

    def _move_deletes(self, table: IcebergTable) -> None:
        """Rewrite position delete files with the new locations of data files."""
        for path, entry in self.files.live.items():
            if entry.content == POSITION_DELETES and path not in self.moved:
                self.moved[path] = self._move_delete_file(table, entry)

    def _move_delete_file(self, table: IcebergTable, entry: FileEntry) -> MovedFile:
        walk, length = table.walk, table.metadata.key_length
        folder, _, base = entry.location.rpartition("/")
        location = f"{folder}/{uuid.uuid4()}{posixpath.splitext(base)[1]}"
        if entry.key_metadata is None:
            data = walk.read(entry.location, None, entry.size)
        elif entry.file_format == "PARQUET":
            with open_parquet_file(walk, entry) as file:
                data = file.read()
        else:
            data = walk.read(entry.location, walk.file_keys(entry), entry.size)
        return write_moved(self.new_files, location, entry, data, self._make_rename(table), length)

    def _make_rename(self, table: IcebergTable) -> Callable[[str], str]:
        def rename(location: str) -> str:
            with contextlib.suppress(ValueError):  # it is outside of the table
                moved = self.moved.get(table.walk.locations.key(location))
                return location if moved is None else moved.location
            return location

        return rename
