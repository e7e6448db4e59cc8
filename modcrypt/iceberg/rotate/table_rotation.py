"""A table's keys rotated: the master key (MEK), the KEKs, or the data keys (DEKs) of its files.

    rotate_table(table, "mek", new_master_key_id="keyB")   KEKs wrapped anew
    rotate_table(table, "kek")                             new KEKs; all under them sealed anew
    rotate_table(table, "dek")                             data files under new keys

Each is one commit to the table, made again if somebody else was faster, or nothing at all.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from modcrypt.errors import ModcryptError
from modcrypt.iceberg.rotate.dek_rotation import Run, rotate_deks
from modcrypt.iceberg.rotate.kek_rotation import rotate_kek
from modcrypt.iceberg.rotate.manifest_rewrapping import Reseal
from modcrypt.iceberg.rotate.mek_rotation import rotate_mek
from modcrypt.iceberg.rotate.rotation_report import Rotated, TableRotation
from modcrypt.iceberg.rotate.wrapped_in_manifests import lost_keys
from modcrypt.iceberg.tables.table import IcebergTable

__all__ = ["TableRotation", "rotate_table"]


def rotate_table(
    table: IcebergTable,
    what: Rotated,
    *,
    new_master_key_id: str | None = None,
    dry_run: bool = False,
    run: Run | None = None,
    reseal: Reseal | None = None,
) -> TableRotation:
    """Rotate keys of a table.

    Older metadata.json files keep the keys as they were, and a key store the KEKs that these need:
    whoever has one of them, and the old keys, reads what it leads to, until `expire_history` has
    removed both.

    Args:
        table: the current version is rotated, also if `table` is an older one.
        what: `"mek"`: all KEKs are wrapped anew, by another master key or the newest version of
            the same one; nothing but metadata.json changes, or the key store. `"kek"`: new KEKs
            take the places of all the old ones, and key metadata is sealed anew under them; in
            single wrapping, it is wrapped anew by the master key. Manifests are written anew only
            where they hold key metadata that is sealed. `"dek"`: the files of the current
            snapshot are written anew under fresh keys, which are kept as the table's policy says
            by now, as a new snapshot; older snapshots, branches and tags keep their files.
        new_master_key_id: the master key that the table is to be under; by default, the one that
            it is under, whose newest version then counts.
        dry_run: change nothing, call the key service for nothing that opening doesn't need, and
            say what would be done.
        run: of "dek": rewrites data files elsewhere, by `rekey_file`; by default threads do here.
        reseal: of "kek": the same for manifests, by `reseal_item`.

    Raises:
        ValueError: `what` is none of these; "mek" of single wrapping; "dek" with another master
            key; or a master key that the reader's expectation excludes.
        CommitConflictError: somebody else was faster again and again.
        KeyRetrievalError: the key service does not unwrap or wrap a key; the table is as it was.
        ModcryptError, OSError: a file is not what was written, or can't be.
    """
    if (run is not None and what != "dek") or (reseal is not None and what != "kek"):
        raise ValueError(
            f'of work elsewhere, run is for "dek" and reseal for "kek": not for {what!r}'
        )
    started = time.monotonic()
    if what == "dek":
        if new_master_key_id is not None:
            raise ValueError(
                'new data keys are under the KEKs that there are: rotate "kek" or "mek"'
            )
        done = rotate_deks(table, dry_run, run)
    elif what == "mek":
        done = rotate_mek(table, new_master_key_id, dry_run)
    elif what == "kek":
        done = rotate_kek(table, new_master_key_id, dry_run, reseal)
    else:
        raise ValueError(f'what is to be rotated is "mek", "kek" or "dek", not {what!r}')
    lost: tuple[str, ...] = ()
    with contextlib.suppress(ModcryptError, OSError):  # of a key store, when all is done
        lost = lost_keys(done.table)
    return replace(done, lost=lost, seconds=time.monotonic() - started)
