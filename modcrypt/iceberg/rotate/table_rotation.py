"""Rotate a table's master key (MEK), its KEKs, or the data keys (DEKs) of its files.

    rotate_table(table, "mek", new_master_key_id="keyB")   wrap the KEKs again
    rotate_table(table, "kek")                             make new KEKs, encrypt keys under them
    rotate_table(table, "dek")                             rewrite data files under new keys

Each rotation is one commit to the table, repeated if another writer was faster, or has no effect.
`rotate_table` takes these steps; all of them keep every version of the table readable:

    1. read the current version, and plan: a dry run ends here
    2. refuse if a snapshot's key is lost: an older metadata.json may still have it, under a KEK
       that the rotation would replace
    3. make new keys and write new files, which no version names yet. After a crash the table is
       as before, with orphan files, and unused KEKs in its key store.
    4. commit the version that names all of them. If another writer was faster, 3 is repeated on
       its version, with all that is already made and still fits.
    5. settle, after a REST catalog has merged the commit with others: bring all KEKs under one
       master key. After a crash before it, readers may refuse KEKs until "mek" is rotated again.
    6. finish: what belongs to the new version and is not part of it. "mek" moves the KEKs that
       other writers have put into the key store for the version before.
    7. report what was done, and what still holds old keys

Anyone who has an older metadata.json can still use the old keys, until `expire_history`: so nothing
here deletes a file, or a KEK of a key store, that a version names.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Protocol

from modcrypt.errors import IntegrityError, KeyNotFoundError, ModcryptError, list_names
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.rotate.dek_rotation import DekRotation
from modcrypt.iceberg.rotate.file_rekeying import Run, run_in_threads
from modcrypt.iceberg.rotate.kek_rotation import KekRotation
from modcrypt.iceberg.rotate.manifests.manifest_rewrapping import Rewrapping
from modcrypt.iceberg.rotate.manifests.wrapped_in_manifests import lost_keys
from modcrypt.iceberg.rotate.mek_rotation import MekRotation
from modcrypt.iceberg.rotate.rotation_report import (
    CountingClient,
    Rotated,
    TableRotation,
    count_kms_calls,
    older_versions,
    target_of,
    with_resolver,
)
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import ATTEMPTS, commit
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.kms.proof import Prove, WrapProof
from modcrypt.runtime.former_names import accept_former_names


class Rotation(Protocol):
    """The steps that differ between the rotations of a MEK, of KEKs and of DEKs.

    `plan` comes first, once. `next_version` is called for each attempt to commit, and keeps what it
    has made for the next one; it writes nothing that a committed version names. `finish` comes
    last, if there was anything to do, also if only the key store changes.
    """

    has_work: bool  # whether there is anything to rotate; known after `plan`
    in_table: bool  # whether the table changes, and not only its key store; known after `plan`

    @property
    def replaced(self) -> set[str] | frozenset[str]:
        """Ids of the KEKs that the rotation has replaced, and the table no longer has."""

    def plan(self, table: IcebergTable, target: str, client: CountingClient) -> TableRotation:
        """Return the report of a dry run; `target` is the new master key."""

    def next_version(self, table: IcebergTable) -> TableMetadata:
        """Make new keys and files; return the metadata of the version after `table`."""

    def finish(self, table: IcebergTable) -> TableRotation:
        """Do what comes after the commit of `table`; return what was done."""


@accept_former_names(reseal="rewrap")
def rotate_table(
    table: IcebergTable,
    what: Rotated,
    *,
    new_master_key_id: str | None = None,
    dry_run: bool = False,
    encrypt_plaintext: bool = False,
    run: Run | None = None,
    rewrap: Run | None = None,
    prove: Prove = "first",
) -> TableRotation:
    """Rotate keys of a table.

    Older metadata.json files keep the old wrapped keys, and a key store keeps the KEKs that they
    need: anyone who has such a file and the old keys can read the files that it leads to, until
    `expire_history` has removed both.

    Args:
        table: Any version of the table; the keys of the current version are rotated.
        what: Kind of keys. `"mek"` wraps all KEKs again with another master key, or with the
            newest version of the same one; only metadata.json or the key store changes. `"kek"`
            replaces all KEKs by new ones and encrypts key metadata under them; with single
            wrapping, the master key wraps it again. Manifests are rewritten only if they contain
            encrypted key metadata; in a REST catalog, which does not change snapshots, as new
            snapshots of all branches and tags, while older ones keep theirs. `"dek"` rewrites the
            files of all branches and tags under fresh keys as new snapshots; the table's current
            policy decides how these are protected. A branch that is ahead of main stays ahead of
            it. Older snapshots keep their files.
        new_master_key_id: Id of the new master key; by default the table's own, whose newest
            version is then used.
        dry_run: Whether to change nothing, call the key service only as far as reading requires,
            and return what would be done.
        encrypt_plaintext: For "dek", whether to also encrypt files of the current snapshot that are
            in plaintext, as Spark's `add_files` registers them. Nothing authenticates their
            contents: check where they come from. They stay in plaintext in older snapshots until
            `expire_history`, and in their folder if it is another one.
        run: For "dek", function that rewrites data files elsewhere; by default threads of this
            process do.
        rewrap: For "kek", function that rewrites manifests elsewhere; unused if they become new
            snapshots.
        prove: Which new wraps the key service must unwrap again before the table or the key store
            changes: the `"first"` under each master key, or `"all"`.

    Raises:
        ValueError: `what` is unknown; the table has single wrapping ("mek"); another master key is
            given ("dek"); `encrypt_plaintext` is given without "dek"; or the master key is not
            among those that the reader expects.
        PlaintextError: For "dek", a file is in plaintext, and is not to be encrypted.
        KeyNotFoundError: For "mek" and "kek", a snapshot's key is lost; see `repair_table`.
        CommitConflictError: Another writer committed first at every attempt.
        KeyRetrievalError: The key service does not unwrap or wrap a key; the table is unchanged.
        ModcryptError, OSError: A file is not authentic, or cannot be read or written.
    """
    if (run is not None and what != "dek") or (rewrap is not None and what != "kek"):
        raise ValueError(
            f'run is only for "dek", and rewrap only for "kek"; remove the one not for {what!r}'
        )
    if encrypt_plaintext and what != "dek":
        raise ValueError('encrypt_plaintext is only for "dek"; remove it')
    if what == "dek" and new_master_key_id is not None:
        raise ValueError(
            'rotating "dek" keeps the master key; remove new_master_key_id, or rotate "kek" '
            'or "mek"'
        )
    started = time.monotonic()
    current, client = count_kms_calls(table, proof := WrapProof(prove))
    seen, result = table.metadata, table
    with NewFiles(current.walk.locations) as files:
        rotation: Rotation
        if what == "dek":
            rotation = DekRotation(
                seen, files, run or run_in_threads, encrypt_plaintext=encrypt_plaintext
            )
        elif what == "mek":
            rotation = MekRotation(new_master_key_id)
        elif what == "kek":
            rotation = KekRotation(seen, new_master_key_id, Rewrapping(files, rewrap))
        else:
            raise ValueError(f'what must be "mek", "kek" or "dek", not {what!r}')
        target = target_of(current, new_master_key_id)
        done = rotation.plan(current, target, client)
        if not dry_run and rotation.has_work:
            _check_none_lost(current, what)
            if rotation.in_table:
                former = current.metadata.master_key_id or ""
                current = commit(current, rotation.next_version, files=files)
                if current.versions.merges:
                    current = _settle(current, rotation, target, former)
            done, target = rotation.finish(current), current.metadata.master_key_id or ""
            done = replace(
                done, committed=rotation.in_table, kms_calls=client.calls, proved=proof.proved
            )
            result = with_resolver(current, table.resolver)
    lost: tuple[str, ...] = ()
    with contextlib.suppress(ModcryptError, OSError):  # the key store failed after the rotation
        lost = lost_keys(result)
    return replace(
        done, table=result, dry_run=dry_run, master_key_id=target, lost=lost,
        older_versions=older_versions(current), seconds=time.monotonic() - started,
    )  # fmt: skip


def _check_none_lost(table: IcebergTable, what: Rotated) -> None:
    """Raise KeyNotFoundError if KEKs are rotated and a snapshot's key is lost."""
    # Older metadata.json files may still have the key, under a KEK that the rotation would replace.
    if what != "dek" and (lost := lost_keys(table)):
        raise KeyNotFoundError(
            f"{table.metadata.name}: snapshots need keys that are neither in the table nor in its "
            f"key store ({list_names(lost)}): restore them with repair_table (modcrypt iceberg "
            "admin repair), or have it drop these snapshots"
        )


#
# The protocol compares branches, but no keys and no master key. So the server accepts two rotations
# of one version, which leave KEKs under two master keys, and an append that brings back a KEK which
# a rotation has just replaced. Readers refuse a KEK under another master key than the table's.


def _settle(committed: IcebergTable, rotation: Rotation, target: str, former: str) -> IcebergTable:
    """Bring the keys of a table under one master key, and drop KEKs that a rotation has replaced.

    Nothing signs the id of the master key that another writer has put there. So the table goes to
    `target`, the master key of the rotation, unless the caller expects the other one.

    Args:
        target, former: Ids of the master keys of the rotation, and of the table before.

    Raises:
        IntegrityError: Another rotation was undone, because its master key is not expected.
        ModcryptError, OSError: The table cannot be read or changed; the rotation was committed.
    """
    undone: str | None = None
    expected = committed.expected.master_key_ids or ()
    table = with_resolver(committed, _accept(committed.resolver, {target, former}))
    for _ in range(ATTEMPTS):
        current = table.versions.read(table.metadata)
        if current.metadata.uuid != table.metadata.uuid:
            break  # it was dropped, and another table has its name now
        table = table.with_metadata(current.metadata, current.place)
        found = current.metadata.master_key_id
        goal = found if found is not None and found in expected else target
        if _is_settled(table.metadata, goal, rotation):
            break
        undone = found if found != goal else undone
        table = commit(table, _finishing(rotation, goal).next_version)
    if undone is not None:
        raise IntegrityError(
            f"{table.metadata.name}: another rotation moved the table to the master key {undone!r} "
            f"at the same time. It is under {target!r} now: if the other one is right, rotate "
            "to it again"
        )
    same = table.metadata.master_key_id == committed.metadata.master_key_id
    return with_resolver(table, committed.resolver) if same else committed


def _accept(resolver: KeyResolver, master_key_ids: set[str]) -> KeyResolver:
    """Return a resolver that accepts these master keys, unless the caller expects certain ones."""
    accepted = resolver.master_key_ids
    return KeyResolver(
        resolver.masters.client, resolver.store, audit=resolver.masters.audit,
        master_key_ids=master_key_ids if accepted is None else accepted,
        subjects=resolver.subjects, check_new=resolver.check_new,
    )  # fmt: skip


def _is_settled(metadata: TableMetadata, goal: str, rotation: Rotation) -> bool:
    """Return whether nothing is left to do, or others have moved all keys since."""
    keks = set(metadata.kek_ids())
    masters = {
        key.encrypted_by for id_, key in metadata.keys.items() if id_ in keks or key.is_single
    }
    if not masters <= {metadata.master_key_id}:
        return False
    return metadata.master_key_id != goal or keks.isdisjoint(rotation.replaced)


def _finishing(rotation: Rotation, goal: str) -> Rotation:
    """Return a rotation that leaves all keys under the master key `goal`."""
    # A rotation of KEKs is repeated, to drop the old ones that are there again. It makes new ones:
    # a commit that is under way may drop any KEK that the table has.
    if isinstance(rotation, KekRotation):
        rotation.new_id, rotation.target = goal, ""
        return rotation
    return MekRotation(goal)
