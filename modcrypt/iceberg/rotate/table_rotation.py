"""Rotate a table's master key (MEK), its KEKs, or the data keys (DEKs) of its files.

    rotate_table(table, "mek", new_master_key_id="keyB")   wrap the KEKs again
    rotate_table(table, "kek")                             make new KEKs, encrypt keys under them
    rotate_table(table, "dek")                             rewrite data files under new keys

Each rotation is one commit to the table, repeated if another writer was faster, or has no effect.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from modcrypt.errors import KeyNotFoundError, ModcryptError, list_names
from modcrypt.iceberg.rotate.dek_rotation import DekRotation
from modcrypt.iceberg.rotate.file_rekeying import Run, run_in_threads
from modcrypt.iceberg.rotate.kek_rotation import KekRotation
from modcrypt.iceberg.rotate.mek_rotation import MekRotation
from modcrypt.iceberg.rotate.merged_rotations import settle_keys
from modcrypt.iceberg.rotate.rotation_report import (
    Rotated,
    TableRotation,
    count_kms_calls,
    older_versions,
    target_of,
    with_resolver,
)
from modcrypt.iceberg.rotate.wrapped_in_manifests import lost_keys
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import commit
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.kms.proof import Prove, WrapProof


def rotate_table(
    table: IcebergTable,
    what: Rotated,
    *,
    new_master_key_id: str | None = None,
    dry_run: bool = False,
    encrypt_plaintext: bool = False,
    run: Run | None = None,
    reseal: Run | None = None,
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
        reseal: For "kek", function that rewrites manifests elsewhere; unused if they become new
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
    if (run is not None and what != "dek") or (reseal is not None and what != "kek"):
        raise ValueError(
            f'run is only for "dek", and reseal only for "kek"; remove the one not for {what!r}'
        )
    if encrypt_plaintext and what != "dek":
        raise ValueError('encrypt_plaintext is only for "dek"; remove it')
    if what == "dek" and new_master_key_id is not None:
        raise ValueError(
            'rotating "dek" keeps the master key; remove new_master_key_id, or rotate "kek" '
            'or "mek"'
        )
    started = time.monotonic()
    counted, client = count_kms_calls(table, proof := WrapProof(prove))
    with NewFiles(counted.walk.locations) as files:
        rotation: DekRotation | KekRotation | MekRotation
        if what == "dek":
            rotation = DekRotation(
                table.metadata, files, run or run_in_threads, encrypt_plaintext=encrypt_plaintext
            )
        elif what == "mek":
            rotation = MekRotation(counted.resolver, new_master_key_id)
        elif what == "kek":
            rotation = KekRotation(
                table.metadata, counted.resolver, new_master_key_id, files, reseal
            )
        else:
            raise ValueError(f'what must be "mek", "kek" or "dek", not {what!r}')
        target = target_of(counted, new_master_key_id)
        former = counted.metadata.master_key_id or ""
        done, result = rotation.plan(counted, target, client), table
        if not dry_run and rotation.has_work:
            _check_none_lost(counted, what)
            if rotation.in_table:
                counted = commit(counted, rotation.next_version, files=files)
                if counted.versions.merges:
                    counted = settle_keys(counted, rotation, target, former)
            done, target = rotation.finish(counted), counted.metadata.master_key_id or ""
            done = replace(
                done, committed=rotation.in_table, kms_calls=client.calls, proved=proof.proved
            )
            result = with_resolver(counted, table.resolver)
    lost: tuple[str, ...] = ()
    with contextlib.suppress(ModcryptError, OSError):  # the key store failed after the rotation
        lost = lost_keys(result)
    return replace(
        done, table=result, dry_run=dry_run, master_key_id=target, lost=lost,
        older_versions=older_versions(counted), seconds=time.monotonic() - started,
    )  # fmt: skip


def _check_none_lost(table: IcebergTable, what: Rotated) -> None:
    """Raise KeyNotFoundError if KEKs are rotated and a snapshot's key is lost.

    Older metadata.json files may still have the key, under a KEK that the rotation would replace.
    """
    if what != "dek" and (lost := lost_keys(table)):
        raise KeyNotFoundError(
            f"{table.metadata.name}: snapshots need keys that are neither in the table nor in its "
            f"key store ({list_names(lost)}): restore them with repair_table (modcrypt iceberg "
            "repair), or have it drop these snapshots"
        )
