"""The database of a subject vault, SQLite or PostgreSQL: one row for each subject.

    vault           id and format
    subject_key     reference of a subject, generation, AGS1 stream of its data key
    erased_subject  reference of an erased subject, id of the request, time, and proof, an HMAC

No row is trusted: streams and proofs are authenticated with their place, and the key file decides
which generations there are, and counts erasures. That a key was removed is only noticed if values
are read. SQL is what both databases understand, with `?` for parameters.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from operator import lt
from typing import Any

from modcrypt.errors import FormatError
from modcrypt.runtime.fork_safety import fork_safe

FORMAT, LOCK_SECONDS = 1, 60  # to wait for other processes that write
BATCH = 10_000  # largest number of parameters of a statement; SQLite permits 32,766
MAX_VALUE = 1 << 20
"""Length limit of a value or statement in SQLite, in bytes: a hostile file may have large ones."""

_TABLES = (
    "vault (id {bytes} NOT NULL, format INTEGER NOT NULL)",
    "subject_key (reference {bytes} PRIMARY KEY, generation INTEGER NOT NULL, "
    "stream {bytes} NOT NULL){end}",
    "erased_subject (reference {bytes} PRIMARY KEY, request TEXT NOT NULL, "
    "time TEXT NOT NULL, proof TEXT NOT NULL){end}",
)
_BEGIN_SERVER = (
    # Each statement sees what others committed: a snapshot from before the lock would miss it.
    "BEGIN ISOLATION LEVEL READ COMMITTED",
    "SELECT pg_advisory_xact_lock(7166240)",
)


def is_server(address: str) -> bool:
    """Return whether an address is the URI of a PostgreSQL database."""
    return address.startswith(("postgresql://", "postgres://"))


class Database:
    """The connection of a process to the database of a vault; threads take turns.

    The address is a path, or the URI of a server, which must not contain a password.
    """

    def __init__(self, address: str) -> None:
        self._server = is_server(address)
        self._address = address if self._server else os.path.abspath(address)
        self._name = "the PostgreSQL vault" if self._server else self._address
        self.lock = fork_safe(threading.RLock())
        self._connections: dict[tuple[int, ...], Any] = {}  # one, by its process and its file
        self._changes = False  # in a transaction
        self.query("SELECT 1")

    def close(self) -> None:
        """Close the connection; another call opens it again."""
        for (process, *_), connection in self._connections.items():
            if process == os.getpid():
                connection.close()
        self._connections = {}

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may end
            self.close()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows.

        Raise FormatError if the database is damaged or no vault, OSError if it cannot be used.
        """
        with self._cursor() as cursor:
            cursor.execute(self._adapt(sql), parameters)
            return [] if cursor.description is None else cursor.fetchall()

    def query_each(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each row of parameters; raise as `query`."""
        with self._cursor() as cursor:
            cursor.executemany(self._adapt(sql), rows)

    def select(self, sql: str, references: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement for references; in their order, each page is read once.

        If most rows between them are wanted, reading all takes half the time of looking each up.
        """
        ordered, is_dense = sorted(references), True
        for at in range(0, len(ordered), BATCH):
            part = ordered[at : at + BATCH]
            most, wanted = 2 * len(part), set(part)
            if is_dense:
                between = f"{sql} WHERE reference BETWEEN ? AND ? LIMIT {most + 1}"
                rows = self.query(between, (part[0], part[-1]))
                is_dense = len(rows) <= most
            if not is_dense:
                rows = self.query(f"{sql} WHERE reference IN ({','.join('?' * len(part))})", part)
            yield from [row for row in rows if row[0] in wanted]

    def page(self, sql: str, after: bytes) -> list[tuple[Any, ...]]:
        """Return the next rows of a statement, in the order of their references.

        Raise FormatError if they have another order, as in a forged file: reading page by page
        would never end.
        """
        page = f"{sql} WHERE reference > ? ORDER BY reference LIMIT {BATCH}"
        rows = self.query(page, (after,))
        references = [after, *(row[0] for row in rows)]
        is_sorted = {*map(type, references)} == {bytes} and all(map(lt, references, references[1:]))
        if not is_sorted:
            raise FormatError(f"{self._name} was altered: its rows have no order; restore a backup")
        return rows

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block that others see as a whole or not at all; one process writes at a time."""
        with self.lock:
            try:
                for statement in _BEGIN_SERVER if self._server else ("BEGIN IMMEDIATE",):
                    self.query(statement)
                self._changes = True
                yield
                self.query("COMMIT")
            except BaseException:
                with suppress(OSError, FormatError):
                    self.query("ROLLBACK")
                raise
            finally:
                self._changes = False

    def _adapt(self, sql: str) -> str:
        return sql.replace("?", "%s") if self._server else sql

    def connect(self) -> Any:
        """Return the connection, another one if the file was replaced, as by a backup."""
        with self._cursor() as cursor:
            return cursor.connection

    def version(self) -> int:
        """Return a number that changes when others write to the file, or copy another over it."""
        return 0 if self._server else int(self.query("PRAGMA data_version")[0][0])

    def _connect(self) -> Any:
        """Return the connection of this process: a forked child must not use its parent's."""
        owner: tuple[int, ...] = (os.getpid(),)
        if not self._server and os.path.exists(self._address):
            found = os.stat(self._address)
            owner = *owner, found.st_dev, found.st_ino
        if owner not in self._connections:
            if self._changes:
                raise FormatError(f"{self._address} was replaced meanwhile; try again")
            self.close()
            connect = _connect_server if self._server else _open_file
            self._connections = {owner: connect(self._address)}
        return self._connections[owner]

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """Lend a cursor, and convert errors of the database, whose texts may repeat values."""
        try:
            with self.lock:
                yield self._connect().cursor()
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("sqlite3", "psycopg"):
                raise
            failure = _convert(error, self._name)
            if self._server and isinstance(failure, OSError):
                self.close()  # the next call connects again
            raise failure from None


@contextmanager
def create_database(address: str, vault: bytes) -> Iterator[None]:
    """Create the database of a vault, if the block succeeds; raise FileExistsError if it exists."""
    is_file = not is_server(address)
    if is_file:
        os.close(os.open(address, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    kind, end = ("BLOB", " WITHOUT ROWID") if is_file else ("BYTEA", "")
    try:
        with closing(Database(address)) as database, database.transaction():
            for table in _TABLES:
                database.query(f"CREATE TABLE {table.format(bytes=kind, end=end)}")
            database.query("INSERT INTO vault VALUES (?, ?)", (vault, FORMAT))
            yield
    except BaseException:
        if is_file:
            os.unlink(address)  # it is empty, and would be in the way of another attempt
        raise


def _convert(error: Exception, where: str) -> Exception:
    code = getattr(error, "sqlite_errorname", None) or getattr(error, "sqlstate", None)
    named = f"{type(error).__name__}{f' {code}' if code else ''}"
    if code == "42P07":  # a table exists
        return FileExistsError(17, "the database has a vault already", where)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "OperationalError" in kinds and code != "SQLITE_ERROR":
        what = f"the database cannot be used ({named}): check that it runs, and your access to it"
        return OSError(5, what, where)
    return FormatError(f"{where} is no subject vault, or is damaged ({named})")


def _open_file(path: str) -> sqlite3.Connection:
    if not os.path.exists(path):
        raise FileNotFoundError(2, "there is no subject vault; run modcrypt subjects create", path)
    connection = sqlite3.connect(
        path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        connection.text_factory = lambda data: data.decode(errors="replace")
        connection.execute("PRAGMA secure_delete = ON")  # removed keys are overwritten
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        # Anyone may have made the file: a view may have rows without end, and a trigger may put
        # back what was removed.
        select = "SELECT 1 FROM sqlite_master WHERE coalesce(rootpage, 0) = 0 LIMIT 1"
        if connection.execute(select).fetchall():
            raise FormatError(
                f"{path} is not a subject vault, or was altered: it has views, triggers or virtual "
                "tables; restore a backup"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_server(uri: str) -> Any:
    parts = urllib.parse.urlsplit(uri)
    parameters = urllib.parse.parse_qs(parts.query).keys()
    if parts.password is not None or parameters & {"password", "sslpassword"}:
        raise ValueError(
            "the address of a vault must not contain a password, which other users can see; use "
            "PGPASSWORD, or a file ~/.pgpass"
        )
    import psycopg

    connection = psycopg.connect(uri, autocommit=True, connect_timeout=LOCK_SECONDS)
    connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
    return connection
