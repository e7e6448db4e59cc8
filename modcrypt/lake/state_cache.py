"""A cache of the states of files, and of when `verify` found them correct.

It is a database in the user's cache folder that only the user may read, in a folder to which only
the user may write; otherwise it is not used. It holds paths, ids of master keys and results, no
secrets. Without it, everything is examined again.

A result counts for a file only if the stamp is still that of the file. For local files this
contains the time of the last change of the inode, which nobody can set. Anyone who can write as the
user can alter the cache, but also the program; `verify` without `--since` and `--resume` does not
use it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from modcrypt.io.private_files import check_owner, check_private
from modcrypt.keys import invocations
from modcrypt.lake.declarations.declaration import LakeDeclaration
from modcrypt.lake.files.file_states import FileState, KeyUse, KnownWraps
from modcrypt.lake.files.lake_files import LakeFile
from modcrypt.lake.spool import Memo

_VERSION = 8

_MAX_VALUES = 1000  # maximum number of values in a query

_STATE = (
    "state", "reason", "message", "size", "rows", "columns", "encrypted_columns", "data_keys",
)  # fmt: skip

_list_values = attrgetter(*_STATE)

_TABLES = f"""
CREATE TABLE IF NOT EXISTS files (
    dataset TEXT, path BLOB, digest INTEGER, stamp TEXT, keys INTEGER, {", ".join(_STATE)},
    PRIMARY KEY (dataset, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keys (id INTEGER PRIMARY KEY, uses TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS wraps (
    data_keys BLOB, keys INTEGER, PRIMARY KEY (keys, data_keys)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS correct_files (
    dataset TEXT, path BLOB, digest INTEGER, stamp TEXT, time REAL, prefix BLOB, file_unique BLOB,
    rows INTEGER, PRIMARY KEY (dataset, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS verifications (
    dataset TEXT, digest INTEGER, started REAL, PRIMARY KEY (dataset, digest));
CREATE TABLE IF NOT EXISTS reports (number INTEGER PRIMARY KEY, counts TEXT);
"""

_MOST_WRAPS = """
SELECT (SELECT count(*) FROM wraps), (SELECT max(json_array_length(uses)) FROM keys)"""

_COUNT_WRAPS = """
WITH seen AS (
    SELECT json_extract(value, '$[1]') AS master, json_extract(value, '$[2]') AS version,
        json_extract(value, '$[3]') AS kek, sum(files) AS count
    FROM (SELECT keys, count(*) AS files FROM wraps GROUP BY keys) AS of_keys
    JOIN keys ON keys.id = of_keys.keys, json_each(keys.uses)
    WHERE json_extract(value, '$[1]') IS NOT NULL GROUP BY 1, 2, 3)
SELECT master, version, NULL, sum(iif(kek IS NULL, count, 1)) AS total FROM seen
GROUP BY 1, 2 HAVING total >= ?
UNION ALL SELECT master, version, kek, count FROM seen WHERE kek IS NOT NULL AND count >= ?"""


@dataclass(frozen=True, slots=True)
class CorrectFile:
    """A file that `verify` found correct."""

    time: float  # time of the verification, in seconds since 1970
    # AAD prefix and `aad_file_unique`, which identify it among others.
    prefix: bytes | None
    unique: bytes | None
    rows: int | None  # number of rows; None if it is unknown


def cache_folder() -> Path:
    """Return the user's cache folder for modcrypt."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "modcrypt"


class StateCache:
    """The cache of one lake.

    Args:
        lake: Declaration of the lake; results of other declarations do not count.
        database: Connection to the database; None for no cache.
    """

    def __init__(self, lake: LakeDeclaration, database: sqlite3.Connection | None) -> None:
        text = f"{_VERSION} {lake.kms} {lake.digest}"
        digest = hashlib.sha256(text.encode()).digest()
        self._digest = int.from_bytes(digest[:8], "big", signed=True)
        self._database = database
        self._keys: Memo[tuple[KeyUse, ...]] = Memo()  # by their id in the database
        self._key_ids: Memo[int] = Memo()

    def load_states(self, dataset: str, files: Sequence[LakeFile]) -> dict[str, FileState]:
        """Return the cached states of files by path, of those that have not changed since."""
        states = {}
        columns = f"keys, {', '.join(_STATE)}"
        for path, (keys, *values) in self._select_unchanged("files", columns, dataset, files):
            with suppress(ValueError, TypeError, KeyError):  # of an altered cache
                fields = dict(zip(_STATE, values, strict=True))
                states[path] = FileState(path=path, keys=self._load_keys(keys), **fields)
        return states

    def find_encrypted(self, dataset: str, paths: Sequence[str]) -> set[str]:
        """Return the files that were encrypted when last examined, by any declaration."""
        query = "SELECT path FROM files WHERE state != 'plaintext' AND dataset = ? AND path"
        names = list(map(os.fsencode, paths))
        return {os.fsdecode(row[0]) for row in self._select(query, [dataset], names)}

    def save_states(self, dataset: str, states: Sequence[tuple[str, FileState]]) -> None:
        """Store states with the stamps of their files."""
        rows = [
            (
                dataset, os.fsencode(s.path), self._digest, stamp, self._save_keys(s.keys),
                *_list_values(s),
            )
            for stamp, s in states
        ]  # fmt: skip
        wraps = [(s.data_keys, self._save_keys(s.keys)) for _, s in states if s.data_keys]
        self._write("INSERT OR IGNORE INTO wraps (data_keys, keys) VALUES (?, ?)", wraps)
        places = ", ".join("?" * (len(_STATE) + 5))
        self._write(f"INSERT OR REPLACE INTO files VALUES ({places})", rows)  # noqa: S608

    def note_encrypted(self, dataset: str, paths: Iterable[str]) -> None:
        """Note files that are encrypted now: without a stamp, they are examined next time."""
        self.save_states(dataset, [("", FileState(path=path, state="declared")) for path in paths])

    def find_wraps(self, is_meant: Callable[[KeyUse], bool]) -> frozenset[bytes]:
        """Return fingerprints of the data keys of files that were seen under some keys before."""
        numbers = []
        with suppress(ValueError, TypeError):  # of an altered cache
            for number, text in self._select("SELECT id, uses FROM keys WHERE 1", [], [1]):
                if any(is_meant(KeyUse(*use)) for use in json.loads(text)):
                    numbers.append(number)
        return frozenset(row[0] for row in self._select(
            "SELECT data_keys FROM wraps WHERE keys", [], numbers
        ))  # fmt: skip

    def count_wraps(self) -> list[KnownWraps]:
        """Return the keys under which so many keys were seen that a warning is due.

        A KEK is one wrap of its master key.
        """
        least = invocations.WARN_WRAPS
        if self._database is None:
            return []
        with suppress(sqlite3.Error, TypeError):
            rows, most = self._database.execute(_MOST_WRAPS).fetchone()
            if rows * (most or 0) >= least:  # else it is no use to look which key
                found = self._database.execute(_COUNT_WRAPS, [least, least]).fetchall()
                return [KnownWraps(*row) for row in found]
        return []

    def _load_keys(self, number: int) -> tuple[KeyUse, ...]:
        """Return keys that many files have in common."""

        def load() -> tuple[KeyUse, ...]:
            ((text,),) = self._select("SELECT uses FROM keys WHERE id", [], [number])
            return tuple(KeyUse(*use) for use in json.loads(text))

        return self._keys.get(number, load)

    def _save_keys(self, keys: tuple[KeyUse, ...]) -> int:
        def save() -> int:
            text = json.dumps(keys)
            self._write("INSERT OR IGNORE INTO keys (uses) VALUES (?)", [(text,)])
            found = self._select("SELECT id FROM keys WHERE uses", [], [text])
            return found[0][0] if found else 0

        return self._key_ids.get(keys, save)

    def load_correct(self, dataset: str, files: Sequence[LakeFile]) -> dict[str, CorrectFile]:
        """Return the files, by path, that were found correct as they are now."""
        columns = "time, prefix, file_unique, rows"
        rows = self._select_unchanged("correct_files", columns, dataset, files)
        return {path: CorrectFile(*values) for path, values in rows}

    def save_correct(self, dataset: str, files: Iterable[tuple[LakeFile, CorrectFile]]) -> None:
        """Store that files were found correct."""
        rows = (
            (dataset, os.fsencode(file.path), self._digest, file.stamp, *astuple(known))
            for file, known in files
        )
        self._write("INSERT OR REPLACE INTO correct_files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def save_version(self, table: str, version: str, *, is_correct: bool) -> None:
        """Store whether a version of a table was found correct."""
        self.forget_correct(table, [""])
        known = CorrectFile(time=time.time(), prefix=None, unique=None, rows=None)
        files = [LakeFile(path="", size=0, stamp=version)] if is_correct else []
        self.save_correct(table, [(file, known) for file in files])

    def is_correct_version(self, table: str, version: str) -> bool:
        """Return whether a version of a table was found correct."""
        return bool(self.load_correct(table, [LakeFile(path="", size=0, stamp=version)]))

    def forget_correct(self, dataset: str, paths: Iterable[str]) -> None:
        """Remove files that were found to have faults."""
        rows = ((dataset, os.fsencode(path)) for path in paths)
        self._write("DELETE FROM correct_files WHERE dataset = ? AND path = ?", rows)

    def begin_verification(self, dataset: str, *, resume: bool) -> float:
        """Return the start of the verification of a dataset: now, or that of an unfinished one."""
        query = "SELECT started FROM verifications WHERE digest = ? AND dataset"
        found = self._select(query, [self._digest], [dataset]) if resume else []
        started: float = found[0][0] if found else time.time()
        row = dataset, self._digest, started
        self._write("INSERT OR REPLACE INTO verifications VALUES (?, ?, ?)", [row])
        return started

    def end_verification(self, dataset: str) -> None:
        """Note that the verification of a dataset is complete."""
        row = dataset, self._digest
        self._write("DELETE FROM verifications WHERE dataset = ? AND digest = ?", [row])

    def load_report(self) -> dict[str, dict[str, int]] | None:
        """Return the numbers of files in the last report; None if there was none."""
        if self._database is not None:
            with suppress(sqlite3.Error, ValueError, TypeError):
                row = self._database.execute("SELECT counts FROM reports").fetchone()
                return None if row is None else dict(json.loads(row[0]))
        return None

    def save_report(self, counts: dict[str, dict[str, int]]) -> None:
        """Store the numbers of files in a report, to compare the next one with."""
        self._write("INSERT OR REPLACE INTO reports VALUES (1, ?)", [(json.dumps(counts),)])

    def _select_unchanged(
        self, table: str, columns: str, dataset: str, files: Sequence[LakeFile]
    ) -> Iterator[tuple[str, list[Any]]]:
        """Yield the paths and values of files that this declaration knows with their stamps."""
        stamps = {os.fsencode(file.path): file.stamp for file in files if file.stamp}
        query = f"SELECT path, stamp, {columns} FROM {table}"  # noqa: S608
        query += " WHERE dataset = ? AND digest = ? AND path"
        for path, stamp, *values in self._select(query, [dataset, self._digest], list(stamps)):
            if stamp == stamps[path]:
                yield os.fsdecode(path), values

    def _select(self, query: str, values: list[Any], choices: Sequence[Any]) -> list[Any]:
        """Return the rows with one of several values in the last column of a condition."""
        if self._database is None:
            return []
        rows: list[Any] = []
        with suppress(sqlite3.Error):
            for start in range(0, len(choices), _MAX_VALUES):
                part = choices[start : start + _MAX_VALUES]
                where = f"{query} IN ({', '.join('?' * len(part))})"
                rows += self._database.execute(where, [*values, *part]).fetchall()
        return rows

    def _write(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error), self._database:
                self._database.executemany(statement, rows)


@contextmanager
def open_cache(lake: LakeDeclaration) -> Iterator[StateCache]:
    """Yield the cache of a lake, which is empty if the database cannot be used."""
    if (database := _open_database(lake)) is None:
        yield StateCache(lake, None)
        return
    with closing(database):
        yield StateCache(lake, database)


def _open_database(lake: LakeDeclaration) -> sqlite3.Connection | None:
    name = hashlib.sha256(os.path.realpath(lake.path).encode()).hexdigest()[:16]
    path = cache_folder() / f"lake-{name}.sqlite"
    with suppress(Exception):  # a cache that cannot be used is no reason to fail
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.stat(path.parent)
        check_owner(folder, str(path.parent))
        if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None  # others could put a journal beside the database
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with closing(os.fdopen(descriptor, "rb")) as file:
            status = os.fstat(file.fileno())
            check_owner(status, str(path))
            check_private(status, str(path))
        database = sqlite3.connect(path)
        database.executescript(_TABLES)
        with suppress(sqlite3.OperationalError):  # of a former version
            database.execute("ALTER TABLE files ADD COLUMN data_keys")
        return database
    return None
