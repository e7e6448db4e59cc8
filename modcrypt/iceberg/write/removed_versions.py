"""Delete metadata.json files that a commit has dropped from the log, if the table asks for that.

As in Iceberg's Java, with `write.metadata.delete-after-commit.enabled`, files go that are no more
among the last `write.metadata.previous-versions-max` ones; `gc.enabled` is not asked, because no
other table needs them. A REST catalog's server does it itself. Three rules are modcrypt's own: only
vouched-for versions go, none that has a key which the new version lacks and needs, and none whose
log is the only one that names a version that stays.
"""

from __future__ import annotations

import contextlib
from itertools import islice

from modcrypt.errors import ModcryptError
from modcrypt.iceberg.format.deletion import HINT, remove_files
from modcrypt.iceberg.format.table_metadata import SCOPE, TableMetadata
from modcrypt.iceberg.format.table_versions import version_number, write_hint
from modcrypt.iceberg.keys.key_policies import KEKS_SINCE, SINGLES
from modcrypt.iceberg.read.table_version import TableVersion, vouched_versions
from modcrypt.io.sources import open_source_at

ENABLED = "write.metadata.delete-after-commit.enabled"

MOST = 100
"""Maximum number of versions that a commit reads; if more would go, `expire_history` has to."""

_HINT_SIZE = 100
"""Maximum bytes read of a version hint: a number of at most 18 digits and white space."""


def remove_unlogged_versions(before: TableVersion, after: TableVersion) -> None:
    """Delete the versions that `before` logs and `after`, which follows it, does not.

    Failures are ignored: the commit has been made, and a later one or `expire_history` tries again.
    """
    enabled = after.metadata.properties.get(ENABLED, "false").lower() == "true"
    dropped = before.metadata.log - after.metadata.log
    if not enabled or after.versions.merges or not dropped:
        return
    with contextlib.suppress(ModcryptError, OSError):
        found = list(islice(vouched_versions(after, start=dropped), 1, MOST + 2))
        if len(found) > MOST or not update_hint(after):
            return
        for place, metadata in reversed(found):  # the newest last: it names the one before
            if _has_needed_keys(metadata, after) or remove_files([(place.path, place)]):
                return


def _has_needed_keys(old: TableMetadata, table: TableVersion) -> bool:
    """Return whether an older version has keys that the current one lacks and may need."""
    new = table.metadata
    missing = old.keys.keys() - new.keys.keys()
    named = {snapshot.key_id for snapshot in new.snapshots}
    named |= {entry.encrypted_by for id_, entry in new.keys.items() if id_ in named}
    if missing & named:
        return True
    if missing.isdisjoint(old.kek_ids()):
        return False
    recorded = any(KEKS_SINCE in m.properties or SINGLES in m.properties for m in (old, new))
    return recorded or any(SCOPE in old.keys[id_].properties for id_ in old.kek_ids())


def update_hint(table: TableVersion) -> bool:
    """Update `version-hint.text` if it names a version to delete; return False on failure.

    Iceberg's Java starts its search for the current version at the hinted one, and finds no table
    if that is missing. A commit whose hint could not be written was harmless until now.
    """
    number = version_number(table.place.name)
    hint = table.place.beside(HINT)
    try:
        with open_source_at(hint) as source:
            hinted = source.read_at(0, min(source.size, _HINT_SIZE)).strip()
        if number is None or not hinted.isdigit() or int(hinted) >= number:
            return True
        write_hint(hint, number)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
