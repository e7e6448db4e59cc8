"""Delete files of tables; state the rules by their names, and what lifts each.

No other module of `modcrypt.iceberg` deletes anything from a table's storage. `deletion_rule`
applies the rules to the files of a table; a job may also remove files that it has just written.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.io.places import Place
from modcrypt.io.publication import CHECKSUM_MAGIC
from modcrypt.io.sources import open_source_at
from modcrypt.io.threads import in_threads
from modcrypt.kms.signing.ledger import is_of_seal

JOBS = 4  # number of files read or deleted concurrently

METADATA = re.compile(r".*\.metadata\.json(\.gz)?", re.DOTALL)
"""Pattern of names of metadata.json files, compressed or not."""

HINT = "version-hint.text"

_MARKER = ".purge"  # end of the name of a purge's marker, after the name of a metadata.json


class Rule(StrEnum):
    """The names of the rules that keep files."""

    GC = "gc.enabled"
    NEEDED = "needed"
    NEEDED_KEYS = "needed-keys"
    OUTSIDE = "outside"
    OTHER_TABLE = "other-table"
    UNVOUCHED = "unvouched"
    UNREADABLE = "unreadable"
    PROTECTED = "protected"
    LINKED = "linked"
    FOREIGN = "foreign"
    AGE = "age"
    PURGE = "purge"
    NEWEST = "newest-stays"


REMEDIES: Mapping[Rule, str] = {
    Rule.GC: "set the table property gc.enabled to true if no other table needs these files",
    Rule.NEEDED: "expire the snapshots that need it, or drop their branches and tags",
    Rule.NEEDED_KEYS: "run repair_table, which restores lost keys from older metadata.json files",
    Rule.OUTSIDE: "map the folder with location_map, or remove the file yourself",
    Rule.OTHER_TABLE: "delete it through the other table, or remove that table's metadata.json",
    Rule.UNVOUCHED: "remove it yourself if no running or later commit needs it",
    Rule.UNREADABLE: "open the table with the key that decrypts it",
    Rule.PROTECTED: "remove it yourself if you no longer need it",
    Rule.LINKED: "map the folder to which the link leads with location_map",
    Rule.FOREIGN: "pass foreign=True if the table's writers left it behind",
    Rule.AGE: "wait, or choose a lower age",
    Rule.PURGE: "resume the purge, or load the table from the catalog that has it",
    Rule.NEWEST: "name the newest snapshot to keep in keep",
}
"""The remedy for each rule."""


def check_gc(metadata: TableMetadata) -> None:
    """Raise ValueError if other tables may need the files of a table, as Java decides it."""
    if metadata.properties.get("gc.enabled", "true").lower() != "true":
        raise ValueError(
            f"{metadata.name}: the table property gc.enabled is not true: other tables may need "
            f"this table's files, so nothing was deleted (rule {Rule.GC}: {REMEDIES[Rule.GC]})"
        )


def marker_name(metadata_json: str) -> str:
    """Return the name of the marker that a purge leaves beside a metadata.json before the drop."""
    return f"{metadata_json}{_MARKER}"


def is_marker(path: str) -> bool:
    """Return whether a path is that of the marker of a purge.

    A marker beside a version that a catalog names is stale: the purge was interrupted before the
    drop, and the table is whole. Without a catalog that has the table, it leads to what is left.
    """
    name = posixpath.basename(path)
    return name.endswith(_MARKER) and METADATA.fullmatch(name.removesuffix(_MARKER)) is not None


def is_protected(path: str) -> bool:
    """Return whether a path is that of a metadata.json, a version hint, or a seal of any number."""
    name = posixpath.basename(path)
    return METADATA.fullmatch(name) is not None or name == HINT or is_of_seal(path)


def remove_new(place: Place) -> None:
    """Remove a file that this process has just written, and that no version of a table names.

    Raise OSError if the file system refuses.
    """
    place.remove()


def remove_files(files: Iterable[tuple[str, Place]]) -> list[str]:
    """Delete files that the deletion rule allows; return the locations of remaining files.

    Hadoop's checksum of a local file goes with it, but no other file of such a name.
    """

    def remove(file: tuple[str, Place]) -> str | None:
        location, place = file
        try:
            place.remove()
            checksum = place.beside(f".{place.name}.crc")
            if place.filesystem is None and _is_checksum(checksum):
                checksum.remove()
        except OSError:
            return location
        return None

    return [location for location in in_threads(remove, files, JOBS) if location is not None]


def _is_checksum(place: Place) -> bool:
    """Return whether a file is one of Hadoop's checksum files; False if it cannot be read."""
    try:
        with open_source_at(place) as source:
            return source.read_at(0, min(len(CHECKSUM_MAGIC), source.size)) == CHECKSUM_MAGIC
    except OSError:
        return False
