"""Ledgers: the statements of a dataset or table, the newest one beside its files.

    lake/_modcrypt_seal.json                 the newest statement
    lake/_modcrypt_seals/0000000006.json     older ones

A new statement follows the newest one, which its writer has verified. The newest one is copied to
the archive first, so that a writer that is killed leaves it as it was.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import (
    CommitConflictError,
    FormatError,
    IntegrityError,
    KeyMaterialError,
    ModcryptError,
)
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.kms.signing.sealed_statements import (
    MAX_SEAL,
    SealFormat,
    Statement,
    hash_statement,
    is_hash,
    read_content,
    read_statement,
)
from modcrypt.kms.signing.trusted_writers import Trust, WriterChange, check_change
from modcrypt.pkmt1.strict_json import strict_json

SEAL_NAME = "_modcrypt_seal.json"
"""Name of the newest statement; readers of datasets and tables skip names that begin with "_"."""
ARCHIVE = "_modcrypt_seals"  # name of the folder of older statements and of witnesses
_ARCHIVED = re.compile(r"([0-9]{10}|proposed|witness-[0-9A-Za-z-]+)\.json")

MAX_STEPS = 100_000
"""Largest number of statements that are followed back, each a file."""

_NO_FILE = (errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP)
"""Errors of opening a folder, a pipe, a socket, and links in a circle."""


def is_of_seal(path: str) -> bool:
    """Return whether a path is that of a seal, an older one or a statement of a witness."""
    folder, name = posixpath.split(path)
    if name == SEAL_NAME:
        return True
    return posixpath.basename(folder) == ARCHIVE and _ARCHIVED.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Seen:
    """A statement that was seen before."""

    sequence: int  # number of the statement
    hash: str  # hash of the statement, in hex
    # Changes of the writers that it has; None if they are not known
    writers: tuple[WriterChange, ...] | None = None
    # Seconds for which it is valid; None without limit, or if that is not known
    valid_for: int | None = None

    @classmethod
    def parse(cls, text: str) -> Seen:
        """Parse `NUMBER:HASH`, as results show a seal; raise ValueError for other text."""
        number, _, hash_ = text.partition(":")
        if not re.fullmatch(r"[1-9][0-9]{0,17}", number, re.ASCII) or not is_hash(hash_):
            raise ValueError("a seal is named by NUMBER:HASH, as `seals verify` prints it")
        return cls(int(number), hash_)

    @classmethod
    def of(cls, statement: Statement) -> Seen:
        """Return a statement as one that was seen."""
        return cls(statement.sequence, statement.hash, statement.writers, statement.valid_for)


def read_pinned(source: Source, sequence: int, expected: str) -> tuple[dict[str, Any], bytes]:
    """Return the members and the content of a statement; raise IntegrityError for another hash."""
    _, head, start = hash_statement(source)
    data = source.read_at(0, source.size) if head is None else head
    if hashlib.sha256(data).hexdigest() != expected:
        raise IntegrityError(f"it is not seal number {sequence}, as it was signed")
    members = _parse_head(data.partition(b"\n")[0], sequence)
    content = None if head is None else members.get("content")
    return members, b"" if content is None else read_content(source, start, content, sequence)


@dataclass(frozen=True)
class Ledger:
    """The statements about one dataset or table."""

    folder: Place  # folder of the newest statement
    form: SealFormat  # kind of seal
    what: str = "dataset"  # word for messages: `"dataset"` or `"table"`

    @property
    def place(self) -> Place:
        """The place of the newest statement."""
        return self.folder.below(SEAL_NAME)

    def archived(self, sequence: int) -> Place:
        """Return the place of an older statement."""
        return self.folder.below(f"{ARCHIVE}/{sequence:010d}.json")

    @contextlib.contextmanager
    def open(self) -> Iterator[Source | None]:
        """Open the newest statement; None if it does not exist. Errors name its path.

        Raise IntegrityError if something else than a file stands in its place.
        """
        with self.name_errors(), contextlib.ExitStack() as stack:
            try:
                source = stack.enter_context(open_source_at(self.place))
            except (FileNotFoundError, NotADirectoryError):
                source = None
            except OSError as error:
                if error.errno not in _NO_FILE:
                    raise
                raise IntegrityError("it is not a file, so the seal is missing") from None
            yield source

    def read(self, trust: Trust) -> tuple[Statement, bytes | None] | None:
        """Return the newest statement with its content, None if it does not exist.

        Raise as `read_statement`.
        """
        with self.open() as source:
            if source is None:
                return None
            statement = read_statement(source, trust, self.form)
            return statement, statement.read_content(source)

    def read_head(self, trust: Trust) -> Statement | None:
        """Return the newest statement, whose content is not read; raise as `read`."""
        with self.open() as source:
            return None if source is None else read_statement(source, trust, self.form)

    def read_archived(self, sequence: int, expected: str) -> tuple[dict[str, Any], bytes]:
        """Return the members and the content of an older statement, by its hash.

        Its signatures are not verified: a statement that was verified has its hash. Raise
        IntegrityError if it is missing, or another one.
        """
        with self.open_archived(sequence, expected) as source:
            return read_pinned(source, sequence, expected)

    def read_seen(self, seen: Seen) -> tuple[dict[str, Any], bytes]:
        """Return the members and the content of a statement that was the newest one.

        Raise IntegrityError if it is missing now, or was altered.
        """
        with self.open() as source:
            if source is not None and source.size <= MAX_SEAL:
                with contextlib.suppress(IntegrityError):
                    return read_pinned(source, seen.sequence, seen.hash)
        return self.read_archived(seen.sequence, seen.hash)

    @contextlib.contextmanager
    def open_archived(self, sequence: int, expected: str) -> Iterator[Source]:
        """Open an older statement; raise as `read_archived`."""
        place = self.archived(sequence)
        with contextlib.ExitStack() as stack:
            try:
                source = stack.enter_context(open_source_at(place))
            except OSError as error:
                missing = isinstance(error, FileNotFoundError | NotADirectoryError)
                if not missing and error.errno not in _NO_FILE:
                    raise
                raise IntegrityError(
                    f"{place.address} is missing: newer seals refer to it, so restore it"
                ) from None
            if source.size > MAX_SEAL or hash_statement(source)[0] != expected:
                raise IntegrityError(f"{place.address} is not seal number {sequence}")
            yield source

    def check_follows(self, statement: Statement, trust: Trust, seen: Seen) -> None:
        """Raise IntegrityError unless a verified statement is one that was seen, or follows it.

        Each statement between must be signed by those who could sign after the one before it:
        otherwise a writer who may no longer sign could leave out the change that says so.
        """
        newer, at = statement, f"seal number {seen.sequence}"
        for _ in range(MAX_STEPS):
            if newer.sequence <= seen.sequence or newer.previous is None:
                break
            if newer.sequence == seen.sequence + 1 and seen.writers is not None:
                if newer.previous != seen.hash:
                    break
                check_change(seen.writers, newer.writers, newer.sequence, trust)
                return
            older = self._read_older(newer, trust)
            check_change(older.writers, newer.writers, newer.sequence, trust)
            newer = older
        if (newer.sequence, newer.hash) != (seen.sequence, seen.hash):
            raise IntegrityError(
                f"{self.place.address}: seal number {statement.sequence} does not follow {at} as "
                "it was seen before"
            )

    def _read_older(self, newer: Statement, trust: Trust) -> Statement:
        assert newer.previous is not None
        with self.open_archived(newer.sequence - 1, newer.previous) as source:
            older = read_statement(source, trust, self.form)
        if (older.hash, older.sequence) != (newer.previous, newer.sequence - 1):
            raise IntegrityError(
                f"{self.archived(newer.sequence - 1).path} is not what seal number "
                f"{newer.sequence} follows"
            )
        return older

    def publish(self, former: Statement | None, data: bytes) -> None:
        """Write a new statement in place of the newest one, which goes into the archive.

        Raises:
            CommitConflictError: The newest statement is not `former`; nothing changed. In a store,
                which has no locks, it may be noticed afterwards.
            ValueError: The new statement is too large.
        """
        if len(data) > MAX_SEAL:
            raise ValueError(f"a seal has at most {MAX_SEAL} bytes; seal folders below this one")
        with self.place.lock():
            with self.open() as source:
                if source is not None and source.size > MAX_SEAL:
                    raise IntegrityError(f"a seal has at most {MAX_SEAL} bytes")
                found = None if source is None else hash_statement(source)[0]
                if found != (None if former is None else former.hash):
                    raise self._conflict_error()
                if source is not None and former is not None:
                    self._archive(source, former)
            with open_sink_at(self.place) as sink:
                sink.append(data)
        if self.folder.filesystem is not None:
            with open_source_at(self.place) as source:
                if source.read_at(0, source.size) != data:
                    raise self._conflict_error()

    def _conflict_error(self) -> CommitConflictError:
        return CommitConflictError(
            "another writer has made a seal meanwhile; check what it seals, and seal again"
        )

    def _archive(self, source: Source, former: Statement) -> None:
        """Copy a statement: what was signed, and nothing that others put behind it."""
        parts = [source.read_at(0, source.size if former.dataset is None else former.start)]
        if (content := former.read_content(source)) is not None:
            parts += [content, b"\n"]
        place = self.archived(former.sequence)
        place.make_folder()
        with open_sink_at(place) as sink:
            for part in parts:
                sink.append(part)

    @contextlib.contextmanager
    def name_errors(self) -> Iterator[None]:
        """Add the path of the newest statement to errors about it."""
        try:
            yield
        except ModcryptError as error:
            error.args = (f"{self.place.address}: {error}",)
            raise


def _parse_head(head: bytes, sequence: int) -> dict[str, Any]:
    with contextlib.suppress(KeyMaterialError):
        members = strict_json(head)
        if isinstance(members, dict):
            return members
    raise FormatError(f"seal number {sequence} is malformed: its first line is not a JSON object")
