"""What files of a set have in common, although it should identify each: prefixes and copies.

The set may have any number of files: the comparison is made in a temporary database on disk.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from modcrypt.errors import MAX_NAMES
from modcrypt.parquet.verify.file_verification import FileAad

MAX_GROUPS = 1000
"""Maximum number of groups of files that are reported; further ones are counted."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Files that share a part of their AAD.

    Attributes:
        value: What they share; its beginning if it is long.
        count: Number of the files.
        paths: First paths.
        alike: Whether two of the files have the same size and number of rows.
        rows_differ: Whether all have different numbers of rows.
    """

    value: bytes
    count: int
    paths: tuple[str, ...]
    alike: bool
    rows_differ: bool

    def list_paths(self) -> str:
        """Return the paths for a message."""
        more = f" and {self.count - len(self.paths):,} more" * (self.count > len(self.paths))
        return ", ".join(self.paths) + more


class FileSet:
    """The files of a set, by the parts of their AAD."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("")  # a temporary file without a name
        columns = "kind TEXT, digest BLOB, value BLOB, path BLOB, size INTEGER, rows INTEGER"
        self._database.execute(f"CREATE TABLE aads ({columns})")

    def add(self, path: str, aad: FileAad) -> None:
        """Add a file."""
        rows = [
            (
                kind,
                hashlib.sha256(value).digest()[:16],
                value[:200],
                path.encode("utf-8", "replace"),
                aad.size,
                aad.rows,
            )
            for kind, value in (("prefix", aad.prefix), ("unique", aad.unique))
            if value
        ]
        self._database.executemany("INSERT INTO aads VALUES (?, ?, ?, ?, ?, ?)", rows)

    def find_shared(self, kind: str) -> Iterator[Sharing]:
        """Yield the values that several files share: of `"prefix"` or `"unique"`."""
        self._database.execute("CREATE INDEX IF NOT EXISTS by_digest ON aads (kind, digest)")
        groups = self._database.execute(
            "SELECT digest, count(*), count(DISTINCT ifnull(size, '') || ' ' || ifnull(rows, '')), "
            "count(DISTINCT rows) FROM aads WHERE kind = ? GROUP BY digest "
            "HAVING count(*) > 1 ORDER BY min(rowid) LIMIT ?",
            [kind, MAX_GROUPS],
        ).fetchall()
        for digest, count, shapes, row_counts in groups:
            rows = self._database.execute(
                "SELECT value, path FROM aads WHERE kind = ? AND digest = ? ORDER BY rowid LIMIT ?",
                [kind, digest, MAX_NAMES],
            ).fetchall()
            paths = tuple(path.decode("utf-8", "replace") for _, path in rows)
            yield Sharing(rows[0][0], count, paths, shapes < count, row_counts == count)

    def close(self) -> None:
        """Remove the database."""
        self._database.close()
