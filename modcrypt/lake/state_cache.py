"""A cache of the states of files, and of when `verify` found them correct.

It is a database in the user's cache folder that only the user may read. It holds paths, ids of
master keys and results, no secrets. Without it, everything is examined again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from modcrypt.io.places import Place
from modcrypt.kms.private_files import check_owner, check_private
from modcrypt.lake.declarations.declaration import LakeDeclaration
from modcrypt.lake.file_states import FileState, KeyUse
from modcrypt.pkmt1.external import store_of

_VERSION = 4

_STORED = (
    "state", "reason", "message", "size", "rows", "columns", "encrypted_columns", "previous_prefix",
)  # fmt: skip

_TABLES = """
CREATE TABLE IF NOT EXISTS states (
    dataset TEXT, path BLOB, stamp TEXT, digest TEXT, state TEXT, PRIMARY KEY (dataset, path));
CREATE TABLE IF NOT EXISTS verified (
    dataset TEXT, path BLOB, stamp TEXT, digest TEXT, time REAL, PRIMARY KEY (dataset, path));
CREATE TABLE IF NOT EXISTS reports (number INTEGER PRIMARY KEY, counts TEXT);
"""


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
        self._digest, self._database = f"{_VERSION} {lake.kms} {lake.digest}", database

    def load_states(self, dataset: str) -> dict[str, tuple[str, FileState]]:
        """Return the cached states of a dataset's files by path, with the files' stamps."""
        rows = self._select("SELECT path, stamp, state FROM states", dataset)
        states = {}
        for name, stamp, text in rows:
            path = os.fsdecode(name)
            with suppress(ValueError, TypeError, KeyError):  # of an altered cache
                states[path] = stamp, _decode_state(path, text)
        return states

    def load_encrypted(self, dataset: str) -> frozenset[str]:
        """Return the paths of files that were encrypted when last examined, by any declaration."""
        if self._database is None:
            return frozenset()
        query = "SELECT path FROM states WHERE dataset = ? AND state NOT LIKE '%\"plaintext\"%'"
        with suppress(sqlite3.Error):
            rows = self._database.execute(query, (dataset,))
            return frozenset(os.fsdecode(row[0]) for row in rows)
        return frozenset()

    def load_verified(self, dataset: str) -> dict[str, tuple[str, float]]:
        """Return stamps and times at which files were found correct, by path."""
        rows = self._select("SELECT path, stamp, time FROM verified", dataset)
        return {os.fsdecode(path): (stamp, moment) for path, stamp, moment in rows}

    def save_states(self, dataset: str, states: Iterable[tuple[str, FileState]]) -> None:
        """Store states with the stamps of their files."""
        rows = (
            (dataset, os.fsencode(s.path), stamp, self._digest, _encode_state(s))
            for stamp, s in states
        )
        self._write("INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, ?)", rows)

    def save_verified(self, dataset: str, files: Iterable[tuple[str, str]]) -> None:
        """Store that files, given by path and stamp, were found correct now."""
        now = time.time()
        rows = ((dataset, os.fsencode(path), stamp, self._digest, now) for path, stamp in files)
        self._write("INSERT OR REPLACE INTO verified VALUES (?, ?, ?, ?, ?)", rows)

    def forget_verified(self, dataset: str, paths: Iterable[str]) -> None:
        """Remove files that were found to have faults."""
        rows = ((dataset, os.fsencode(path)) for path in paths)
        self._write("DELETE FROM verified WHERE dataset = ? AND path = ?", rows)

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

    def _select(self, query: str, dataset: str) -> list[Any]:
        if self._database is None:
            return []
        where = f"{query} WHERE dataset = ? AND digest = ?"
        with suppress(sqlite3.Error):
            return self._database.execute(where, (dataset, self._digest)).fetchall()
        return []

    def _write(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error), self._database:
                self._database.executemany(statement, rows)


@contextmanager
def open_cache(lake: LakeDeclaration) -> Iterator[StateCache]:
    """Yield the cache of a lake, which is empty if the database cannot be used."""
    database = _open_database(lake)
    if database is None:
        yield StateCache(lake, None)
        return
    with closing(database):
        yield StateCache(lake, database)


def _open_database(lake: LakeDeclaration) -> sqlite3.Connection | None:
    name = hashlib.sha256(os.path.realpath(lake.path).encode()).hexdigest()[:16]
    path = cache_folder() / f"lake-{name}.sqlite"
    with suppress(Exception):  # a cache that cannot be used is no reason to fail
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with closing(os.fdopen(descriptor, "rb")) as file:
            status = os.fstat(file.fileno())
            check_owner(status, str(path))
            check_private(status, str(path))
        database = sqlite3.connect(path)
        database.executescript(_TABLES)
        return database
    return None


def stamp_of(place: Place) -> str:
    """Return text that changes with a file or its external key material; empty if unknown."""
    stamp = place.stamp()
    beside = store_of(place).stamp() if place.filesystem is None else None
    return "" if stamp is None else f"{stamp} {beside}"


def _encode_state(state: FileState) -> str:
    # Written out because `asdict` takes longer than to examine a small file.
    values = {name: getattr(state, name) for name in _STORED}
    keys = [[getattr(key, name) for name in KeyUse.__slots__] for key in state.keys]
    return json.dumps({**values, "keys": keys})


def _decode_state(path: str, text: str) -> FileState:
    values = json.loads(text)
    keys = tuple(
        KeyUse(**dict(zip(KeyUse.__slots__, key, strict=True))) for key in values.pop("keys")
    )
    return FileState(path=path, keys=keys, **values)
