"""Keep wrapped KEKs outside of a table's metadata, in a JSON file or in SQLite.

Both can be changed without a commit to the table, and may serve several tables. Master keys wrap
the KEKs, so that a store alone decrypts nothing. But losing the store means losing the table, and
dropping a KEK from the store and all its copies destroys all that the KEK encrypts.

    {"modcrypt-key-store": 1, "keys": [{"key-id": ..., "encrypted-key-metadata": base64,
                                        "encrypted-by-id": ..., "properties": {...}}, ...]}

The members of a key are those of `encryption-keys` in a metadata.json. In SQLite each key has its
own row, which suits thousands of KEKs that processes of several machines add to.
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
from modcrypt.pkmt1.strict_json import decode_base64, require_members, strict_json

MAX_FILE = keyring_file.MAX_FILE
"""Maximum size in bytes of a JSON file: 64 MiB, some 200,000 KEKs."""

MAX_KEKS = 1_000_000
"""Maximum number of KEKs in a store."""

BUSY_SECONDS = 60.0  # time in seconds that SQLite waits for other writers
_VERSION = 1
_MEMBERS = ("key-id", "encrypted-key-metadata", "encrypted-by-id", "properties")

_APPLICATION = 0x6D6F6463  # "modc": identifies the database, also to `file`
_SCHEMA = (
    "CREATE TABLE kek (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, "
    "document TEXT NOT NULL)"
)


class _KeyStore:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"


class FileKeyStore(_KeyStore):
    """KEKs in a JSON file of mode 0600, which is always replaced as a whole.

    Writers in all processes of a machine wait for each other; readers do not wait. After a crash
    the file is in its old or its new state. The store can be pickled, because it holds only a path.

    Args:
        path: Path of the file, which `create` creates.
    """

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> FileKeyStore:
        """Create an empty store.

        Raises:
            FileExistsError: The path exists already.
            OSError: The file system reports an error.
        """
        keyring_file.create(os.fspath(path), _encode_keys({}))
        return cls(path)

    def keys(self) -> Mapping[str, IcebergKey]:
        """Return all KEKs by id.

        Raises:
            KeyMaterialError, LimitError: The file is not a key store, or exceeds the size limit.
            OSError: The file does not exist or cannot be read.
        """
        return self._read(self.path)

    def replace(self, keys: Iterable[IcebergKey], drop: Iterable[str] = ()) -> None:
        """Add KEKs, replace those with the same ids, and drop others.

        Raises:
            KeyMaterialError, LimitError: The store is invalid, or would become so; it is unchanged.
            ValueError: One of the keys is a master key itself.
            OSError: The file system reports an error; the file is unchanged.
        """
        new = _by_id(keys)
        path = os.path.realpath(self.path)  # keep a symbolic link
        with keyring_file.lock_file(path) as old:
            keks = {**self._read(path), **new}
            for id_ in drop:
                keks.pop(id_, None)
            data = _encode_keys(keks)
            if len(data) > MAX_FILE or len(keks) > MAX_KEKS:
                raise LimitError(
                    f"{self.path}: more KEKs than a key store in a file may have; use SQLite"
                )
            keyring_file.replace(path, data, old, private=True)

    def _read(self, path: str) -> dict[str, IcebergKey]:
        with _name_file(self.path):
            document = strict_json(keyring_file.read(path)[0], surrogates=True)
            members = require_members(document, "modcrypt-key-store", "keys")
            if members["modcrypt-key-store"] != _VERSION or not isinstance(members["keys"], list):
                raise KeyMaterialError("unknown version of a key store")
            return _by_id(map(_decode_key, members["keys"]))


class SqliteKeyStore(_KeyStore):
    """KEKs in a SQLite database of mode 0600.

    Writers wait for each other, for a minute at most; a crash keeps what was committed. The store
    can be pickled, because it holds only a path. Do not use it on file systems without locks, such
    as some network file systems.

    Args:
        path: Path of the database, which `create` creates.
    """

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> SqliteKeyStore:
        """Create an empty store. Raises the errors of `FileKeyStore.create`."""
        with contextlib.closing(sqlite3.connect(":memory:")) as empty:
            empty.execute(f"PRAGMA application_id = {_APPLICATION}")
            empty.execute(f"PRAGMA user_version = {_VERSION}")
            empty.execute(_SCHEMA)
            data = empty.serialize()
        keyring_file.create(os.fspath(path), data)
        return cls(path)

    def keys(self) -> Mapping[str, IcebergKey]:
        """Return all KEKs by id.

        Raises:
            FormatError, KeyMaterialError: The file is not a key store, or is damaged.
            OSError: The file does not exist or cannot be read, or others write for too long.
        """
        with self._transaction("BEGIN") as database:
            return self._read(database)

    def replace(self, keys: Iterable[IcebergKey], drop: Iterable[str] = ()) -> None:
        """Add KEKs, replace those with the same ids, and drop others.

        Raises:
            FormatError, KeyMaterialError: The store is invalid, as for `keys`.
            LimitError: The store would have more than a million KEKs; it is unchanged.
            ValueError: One of the keys is a master key itself.
            OSError: The store cannot be accessed, as for `keys`; it is unchanged.
        """
        rows = [(id_, _encode_key(key)) for id_, key in _by_id(keys).items()]
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
        keks: dict[str, IcebergKey] = {}
        with _name_file(self.path):
            for id_, text in database.execute("SELECT id, document FROM kek ORDER BY position"):
                document = strict_json(text, surrogates=True) if isinstance(text, str) else None
                key = _decode_key(document)
                if key.id != id_:
                    raise KeyMaterialError("a KEK is stored under the id of another one")
                keks[key.id] = key
        return keks

    def _check_count(self, database: sqlite3.Connection) -> None:
        (count,) = database.execute("SELECT count(*) FROM kek").fetchone()
        if count > MAX_KEKS:
            raise LimitError(f"{self.path}: a key store has at most {MAX_KEKS} KEKs")

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """Yield a new connection: connections are not shared with threads or forked processes."""
        with _sqlite_errors(self.path), contextlib.closing(self._connect()) as database:
            try:
                # Do not run code that the file contains; commits must survive a loss of power.
                database.execute("PRAGMA trusted_schema = OFF")
                database.execute("PRAGMA synchronous = EXTRA")
                database.execute(begin)
            except UnicodeDecodeError:  # SQLite's message quotes the schema, which may be no text
                raise FormatError(f"{self.path}: not a key store, or a damaged one") from None
            try:
                self._check_schema(database)
                yield database
                database.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # closing rolls back as well
                    database.execute("ROLLBACK")
                raise

    def _connect(self) -> sqlite3.Connection:
        # mode=rw: a mistyped path must not create a database, but a reader may have to recover
        # after a crash.
        uri = f"{Path(self.path).absolute().as_uri()}?mode=rw"
        os.stat(self.path)  # SQLite does not report why it cannot open a file
        return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)

    def _check_schema(self, database: sqlite3.Connection) -> None:
        """Raise if the schema is not that of `create`: triggers and views could do anything."""
        pragmas = ("application_id", "user_version")
        versions = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
        statements = {sql for (sql,) in database.execute("SELECT sql FROM sqlite_schema")}
        if versions != [_APPLICATION, _VERSION] or statements != {_SCHEMA, None}:
            raise FormatError(f"{self.path}: not a key store, or a key store of an unknown version")


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
    """Translate SQLite's errors without repeating their texts, which may hold values."""
    try:
        yield
        return
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        name = getattr(error, "sqlite_errorname", type(error).__name__)
    if code in _ERRNO:
        number = _ERRNO[code]
        raise OSError(number, f"{os.strerror(number)} ({name})", path)
    raise FormatError(f"{path}: not a key store, or a damaged one ({name})")


def _by_id(keys: Iterable[IcebergKey]) -> dict[str, IcebergKey]:
    keks: dict[str, IcebergKey] = {}
    for key in keys:
        if key.id in keks:
            raise KeyMaterialError(f"KEK {key.id!r} occurs twice")
        keks[key.id] = key
    return keks


def _encode_key(key: IcebergKey) -> str:
    # In ASCII: an unpaired surrogate, which a table's metadata may have, survives the round trip.
    document = {"properties": {}, **key.entry().document()}
    return json.dumps(document, separators=(",", ":"))


def _encode_keys(keys: Mapping[str, IcebergKey]) -> bytes:
    texts = ",\n".join(map(_encode_key, keys.values()))
    return f'{{"modcrypt-key-store":{_VERSION},"keys":[\n{texts}\n]}}\n'.encode()


def _decode_key(document: Any) -> IcebergKey:
    members = require_members(document, *_MEMBERS)
    id_, by, properties = members["key-id"], members["encrypted-by-id"], members["properties"]
    wrapped = decode_base64(members["encrypted-key-metadata"], "a wrapped KEK")
    texts = isinstance(properties, dict) and all(isinstance(v, str) for v in properties.values())
    if not (isinstance(id_, str) and isinstance(by, str) and id_ and by and texts):
        raise KeyMaterialError(
            "a KEK needs an id, the id of a master key, and properties that are texts"
        )
    if len(wrapped) > MAX_KEY_ENTRY:
        raise KeyMaterialError(f"a wrapped KEK exceeds {MAX_KEY_ENTRY} bytes")
    return IcebergKey.of(EncryptedKey(id_, wrapped, by, properties))


@contextlib.contextmanager
def _name_file(path: str) -> Iterator[None]:
    try:
        yield
    except KeyMaterialError as error:
        error.args = (f"{path}: not a key store, or a damaged one: {error}",)
        raise
