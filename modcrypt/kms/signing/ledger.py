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
from modcrypt.io.sinks import copy_range
from modcrypt.io.sources import Source, open_source_at
from modcrypt.kms.signing.sealed_statements import (
    MAX_SEAL,
    SealFormat,
    Statement,
    hash_statement,
    read_content,
    read_statement,
)
from modcrypt.kms.signing.trusted_writers import Trust
from modcrypt.pkmt1.strict_json import strict_json

SEAL_NAME = "_modcrypt_seal.json"
"""Name of the newest statement; readers of datasets and tables skip names that begin with "_"."""
ARCHIVE = "_modcrypt_seals"
"""Name of the folder of older statements and of witnesses."""

_ARCHIVED = re.compile(r"([0-9]{10}|proposed|witness-[0-9A-Za-z-]+)\.json")

MAX_STEPS = 100_000
"""Largest number of statements that are followed back, each a file."""

_NO_FILE = (errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP)
"""Errors of opening a folder, a pipe, a socket, and links in a circle."""

_PREVIOUS = re.compile(rb'"previous":"([0-9a-f]{64})"')


def is_of_seal(path: str) -> bool:
    """Return whether a path is that of a seal, an older one or a statement of a witness."""
    folder, name = posixpath.split(path)
    if name == SEAL_NAME:
        return True
    return posixpath.basename(folder) == ARCHIVE and _ARCHIVED.fullmatch(name) is not None


@dataclass(frozen=True)
class Ledger:
    """The statements about one dataset or table.

    Attributes:
        folder: Folder of the newest statement.
        form: Kind of seal.
        what: Word for messages: `"dataset"` or `"table"`.
    """

    folder: Place
    form: SealFormat
    what: str = "dataset"

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

        Raises:
            IntegrityError: Something else than a file stands in its place.
            OSError: The file system reports an error.
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
        """Return the newest statement with its content; None if it does not exist.

        Raises:
            IntegrityError: Too few trusted keys signed it, or it was altered.
            FormatError: It is signed, but malformed.
            OSError: The file system reports an error.
        """
        with self.open() as source:
            if source is None:
                return None
            statement = read_statement(source, trust, self.form)
            if statement.content is None:
                return statement, None
            how = statement.start, statement.content, statement.sequence
            return statement, read_content(source, *how)

    def read_head(self, trust: Trust) -> Statement | None:
        """Return the newest statement, whose content is not read; raise as `read`."""
        with self.open() as source:
            return None if source is None else read_statement(source, trust, self.form)

    def read_archived(self, sequence: int, expected: str) -> tuple[dict[str, Any], bytes]:
        """Return the members and the content of an older statement, by its hash.

        Its signatures are not verified: a statement that was verified has its hash.

        Raises:
            IntegrityError: It is missing, or another one.
            FormatError: It is the one that was signed, but malformed.
        """
        with self.open_archived(sequence, expected) as source:
            hash_, head, start = hash_statement(source)
            data = source.read_at(0, source.size) if head is None else head
            changed = hash_ != expected or hashlib.sha256(data).hexdigest() != expected
            if changed:
                raise IntegrityError(f"seal number {sequence} changed while it was being read")
            members = _parse_head(data.partition(b"\n")[0], sequence)
            content = None if head is None else members.get("content")
            if content is None:
                return members, b""
            return members, read_content(source, start, content, sequence)

    @contextlib.contextmanager
    def open_archived(self, sequence: int, expected: str) -> Iterator[Source]:
        """Open an older statement; raise as `read_archived`."""
        place = self.archived(sequence)
        with contextlib.ExitStack() as stack:
            try:
                source = stack.enter_context(open_source_at(place))
            except (FileNotFoundError, NotADirectoryError):
                raise IntegrityError(
                    f"{place.path} is missing: newer seals refer to it, so restore it from a copy"
                ) from None
            if source.size > MAX_SEAL or hash_statement(source)[0] != expected:
                raise IntegrityError(f"{place.path} is not seal number {sequence}")
            yield source

    def find_ancestor(self, statement: Statement, sequence: int) -> str:
        """Return the hash of an older statement that a verified one follows.

        Raises:
            IntegrityError: A statement between them is missing, or another one.
        """
        number, hash_, previous = statement.sequence, statement.hash, statement.previous
        for _ in range(MAX_STEPS):
            if number <= sequence or previous is None:
                return hash_
            number, hash_ = number - 1, previous
            if number > sequence:
                previous = self.read_archived(number, hash_)[0].get("previous")
        raise IntegrityError(f"more than {MAX_STEPS} seals lie between two numbers")

    def publish(self, former: Statement | None, data: bytes) -> None:
        """Write a new statement in place of the newest one, which goes into the archive.

        Raises:
            CommitConflictError: The newest statement is not `former`; nothing changed.
            ValueError: The new statement is too large.
        """
        if len(data) > MAX_SEAL:
            raise ValueError(f"a seal has at most {MAX_SEAL} bytes; seal folders below this one")
        with self.place.lock():
            with self.open() as source:
                found = None if source is None else hash_statement(source)[0]
                if found != (None if former is None else former.hash):
                    raise CommitConflictError(
                        "another writer has made a seal meanwhile; check what it seals, and seal "
                        "again"
                    )
                if source is not None and former is not None:
                    self._archive(source, former.sequence)
            with open_sink_at(self.place) as sink:
                sink.append(data)

    def _archive(self, source: Source, sequence: int) -> None:
        place = self.archived(sequence)
        place.make_folder()
        with open_sink_at(place) as sink:
            copy_range(source, sink, 0, source.size)

    @contextlib.contextmanager
    def name_errors(self) -> Iterator[None]:
        """Add the path of the newest statement to errors about it."""
        try:
            yield
        except ModcryptError as error:
            error.args = (f"{self.place.path}: {error}",)
            raise


def _parse_head(head: bytes, sequence: int) -> dict[str, Any]:
    with contextlib.suppress(KeyMaterialError):
        members = strict_json(head)
        if isinstance(members, dict):
            return members
    raise FormatError(f"seal number {sequence} is malformed: its first line is no object of JSON")
