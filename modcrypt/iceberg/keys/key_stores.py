"""Where wrapped KEKs are kept outside of a table's metadata: in a JSON file, or in SQLite.

Both can be changed without a commit to the table, and may serve several tables. What they keep is
wrapped by master keys, so that having a store alone opens nothing; but who loses it loses the
table, and a KEK that is dropped there, and in every copy, is gone with all that it seals.

    {"modcrypt-key-store": 1, "keys": [{"key-id": ..., "encrypted-key-metadata": base64,
                                        "encrypted-by-id": ..., "properties": {...}}, ...]}

The members of a key are those of `encryption-keys` in a metadata.json; in SQLite each stands in a
row of its own, which suits thousands of KEKs that several machines' processes add to.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from modcrypt.errors import FormatError, KeyMaterialError, LimitError
from modcrypt.iceberg.format.table_metadata import MAX_KEY_ENTRY, EncryptedKey
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
from modcrypt.kms.keyring import keyring_file
from modcrypt.pkmt1.strict_json import exact_members, from_base64, strict_json

__all__ = ["FileKeyStore", "SqliteKeyStore"]

MAX_FILE = keyring_file.MAX_FILE
"""Bytes of the largest JSON file: 64 MiB, some 200,000 KEKs."""

MAX_KEKS = 1_000_000
"""Most KEKs of a store."""

BUSY_SECONDS = 60.0
"""How long SQLite waits for other writers."""

_VERSION = 1
_MEMBERS = ("key-id", "encrypted-key-metadata", "encrypted-by-id", "properties")

_APPLICATION = 0x6D6F6463  # "modc", by which `file` and we tell what a database is
_SCHEMA = (
    "CREATE TABLE kek (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, "
    "document TEXT NOT NULL)"
)


class FileKeyStore:
    """KEKs in a JSON file of mode 0600, which is only ever replaced as a whole.

    Writers of all processes of a machine wait for each other; readers don't have to. A crash
    leaves the file as it was, or as it was to be. Can be pickled, being a path.

    Args:
        path: of the file, which `create` makes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def __repr__(self) -> str:
        return f"FileKeyStore({self.path!r})"

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> FileKeyStore:
        """Make an empty store.

        Raises:
            FileExistsError: there is something.
            OSError: from the file system.
        """
        keyring_file.create(os.fspath(path), _encoded({}))
        return cls(path)

    def keys(self) -> Mapping[str, IcebergKey]:
        """Give all KEKs by id.

        Raises:
            KeyMaterialError, LimitError: the file is no key store, or a larger one than any.
            OSError: it is not there, or can't be read.
        """
        return self._read(self.path)

    def replace(self, keys: Iterable[IcebergKey], drop: Iterable[str] = ()) -> None:
        """Add KEKs, or put them in the place of those with their ids, and drop others.

        Raises:
            KeyMaterialError, LimitError: as `keys`, or it would become such; it is as it was.
            ValueError: one of the keys is a master key itself.
            OSError: from the file system; the file is as it was.
        """
        new = _by_id(keys)
        path = os.path.realpath(self.path)  # a symbolic link stays one
        with keyring_file.locked(path) as old:
            kept = {**self._read(path), **new}
            for id_ in drop:
                kept.pop(id_, None)
            data = _encoded(kept)
            if len(data) > MAX_FILE or len(kept) > MAX_KEKS:
                raise LimitError(f"{self.path}: more KEKs than a key store in a file has")
            keyring_file.replace(path, data, old, private=True)

    def _read(self, path: str) -> dict[str, IcebergKey]:
        with _naming(self.path):
            members = exact_members(
                strict_json(keyring_file.read(path)[0]), "modcrypt-key-store", "keys"
            )
            if members["modcrypt-key-store"] != _VERSION or not isinstance(members["keys"], list):
                raise KeyMaterialError("a version of key stores that is not known")
            return _by_id(map(_decoded, members["keys"]))


class SqliteKeyStore:
    """KEKs in a SQLite database of mode 0600.

    Writers wait for each other, for a minute at most; a crash leaves what was committed. Can be
    pickled, being a path. Not for file systems without locks, such as some network ones.

    Args:
        path: of the database, which `create` makes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def __repr__(self) -> str:
        return f"SqliteKeyStore({self.path!r})"

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> SqliteKeyStore:
        """Make an empty store; raises as `FileKeyStore.create`."""
        with contextlib.closing(sqlite3.connect(":memory:")) as empty:
            empty.execute(f"PRAGMA application_id = {_APPLICATION}")
            empty.execute(f"PRAGMA user_version = {_VERSION}")
            empty.execute(_SCHEMA)
            data = empty.serialize()
        keyring_file.create(os.fspath(path), data)
        return cls(path)

    def keys(self) -> Mapping[str, IcebergKey]:
        """Give all KEKs by id.

        Raises:
            FormatError, KeyMaterialError: the file is no key store, or damaged.
            OSError: it is not there, can't be read, or others write for too long.
        """
        with self._transaction("BEGIN") as database:
            return self._read(database)

    def replace(self, keys: Iterable[IcebergKey], drop: Iterable[str] = ()) -> None:
        """Add KEKs, or put them in the place of those with their ids, and drop others.

        Raises:
            FormatError, KeyMaterialError: as `keys`.
            LimitError: it would have more than a million; it is as it was.
            ValueError: one of the keys is a master key itself.
            OSError: as `keys`; the store is as it was.
        """
        rows = [(id_, _text(key)) for id_, key in _by_id(keys).items()]
        with self._transaction("BEGIN IMMEDIATE") as database:
            database.executemany(
                "INSERT INTO kek (id, document) VALUES (?, ?) "
                "ON CONFLICT (id) DO UPDATE SET document = excluded.document",
                rows,
            )
            database.executemany("DELETE FROM kek WHERE id = ?", ((id_,) for id_ in drop))
            self._check_count(database)

    def _read(self, database: sqlite3.Connection) -> dict[str, IcebergKey]:
        self._check_count(database)
        found: dict[str, IcebergKey] = {}
        with _naming(self.path):
            for id_, text in database.execute("SELECT id, document FROM kek ORDER BY position"):
                key = _decoded(strict_json(text) if isinstance(text, str) else None)
                if key.id != id_:
                    raise KeyMaterialError("a KEK stands under another one's id")
                found[key.id] = key
        return found

    def _check_count(self, database: sqlite3.Connection) -> None:
        (count,) = database.execute("SELECT count(*) FROM kek").fetchone()
        if count > MAX_KEKS:
            raise LimitError(f"{self.path}: more than {MAX_KEKS} KEKs")

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """Give a connection of its own: none is shared by threads, or with a forked process."""
        with _sqlite_errors(self.path), contextlib.closing(self._connected()) as database:
            database.execute(begin)
            try:
                self._check_schema(database)
                yield database
                database.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # closing rolls it back as well
                    database.execute("ROLLBACK")
                raise

    def _connected(self) -> sqlite3.Connection:
        # mode=rw: a path that is mistyped makes no new database; a reader may have to finish what
        # a crash has left.
        uri = f"{Path(self.path).absolute().as_uri()}?mode=rw"
        os.stat(self.path)  # SQLite doesn't tell why it can't open a file
        database = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        # What a file brings along isn't run; what is committed outlives a loss of power.
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA synchronous = EXTRA")
        return database

    def _check_schema(self, database: sqlite3.Connection) -> None:
        """Take nothing but what `create` makes: triggers and views could do anything."""
        told = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in _TOLD]
        there = {sql for (sql,) in database.execute("SELECT sql FROM sqlite_schema")}
        if told != [_APPLICATION, _VERSION] or there != {_SCHEMA, None}:
            raise FormatError(f"{self.path}: no key store, or of a version that is not known")


_TOLD = ("application_id", "user_version")


_ERRNO = {
    sqlite3.SQLITE_BUSY: errno.ETIMEDOUT,
    sqlite3.SQLITE_LOCKED: errno.ETIMEDOUT,
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_READONLY: errno.EACCES,
}


@contextlib.contextmanager
def _sqlite_errors(path: str) -> Iterator[None]:
    """Turn SQLite's errors into ours; of its own words, which may hold values, none is repeated."""
    try:
        yield
        return
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        name = getattr(error, "sqlite_errorname", type(error).__name__)
    if code in _ERRNO:
        number = _ERRNO[code]
        raise OSError(number, f"{os.strerror(number)} ({name})", path)
    raise FormatError(f"{path}: no key store, or a damaged one ({name})")


# --- what both keep of a KEK ---------------------------------------------------------------------


def _by_id(keys: Iterable[IcebergKey]) -> dict[str, IcebergKey]:
    found: dict[str, IcebergKey] = {}
    for key in keys:
        if key.id in found:
            raise KeyMaterialError(f"KEK {key.id!r} is there twice")
        found[key.id] = key
    return found


def _text(key: IcebergKey) -> str:
    # In ASCII: half a surrogate pair, which a table's metadata may have, goes there and back.
    document = {"properties": {}, **key.entry().document()}
    return json.dumps(document, separators=(",", ":"))


def _encoded(keys: Mapping[str, IcebergKey]) -> bytes:
    texts = ",\n".join(map(_text, keys.values()))
    return f'{{"modcrypt-key-store":{_VERSION},"keys":[\n{texts}\n]}}\n'.encode()


def _decoded(document: Any) -> IcebergKey:
    """Read a KEK; raises KeyMaterialError."""
    members = exact_members(document, *_MEMBERS)
    id_, by, properties = members["key-id"], members["encrypted-by-id"], members["properties"]
    wrapped = from_base64(members["encrypted-key-metadata"], "a wrapped KEK")
    texts = isinstance(properties, dict) and all(isinstance(v, str) for v in properties.values())
    if not (isinstance(id_, str) and isinstance(by, str) and id_ and by and texts):
        raise KeyMaterialError("a KEK has an id and that of a master key, and texts as properties")
    if len(wrapped) > MAX_KEY_ENTRY:
        raise KeyMaterialError(f"a wrapped KEK of more than {MAX_KEY_ENTRY} bytes")
    return IcebergKey.of(EncryptedKey(id_, wrapped, by, properties))


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say of which file an error is."""
    try:
        yield
    except KeyMaterialError as error:
        error.args = (f"{path}: no key store, or a damaged one: {error}",)
        raise
