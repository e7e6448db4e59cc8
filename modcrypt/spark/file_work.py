"""What a task of Spark does with its files, on an executor; each gives rows of the report.

A job is pickled to the executors, so it holds references to keys alone. Keys are opened once for a
task, the key service once in a process; data keys are made, wrapped and used here. A file that
fails is a row, and so is each of them where the keys can't be had here.
"""

from __future__ import annotations

import errno
import os
import posixpath
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa

from modcrypt.kms.file_runs import told
from modcrypt.kms.rotation import What, rotate_keys
from modcrypt.kms.scan import scan_keys
from modcrypt.parquet.decryptor import decrypt_parquet
from modcrypt.parquet.discovery import Folder as WrittenFolder
from modcrypt.parquet.encryptor import encrypt_parquet
from modcrypt.parquet.findings import Verification
from modcrypt.parquet.properties import ALGORITHMS, FileDecryptionProperties
from modcrypt.parquet.rekey import rekey_parquet
from modcrypt.parquet.verification import verify_source
from modcrypt.spark.already import (
    NewKeys,
    decrypted_shape,
    is_newer,
    plain_shape,
    why_not_plain,
)
from modcrypt.spark.bins import MakeFilesystem
from modcrypt.spark.settings import Settings
from modcrypt.storage import Place, place_of

__all__ = ["Conversion", "Job", "Rotation", "Scan", "Verifying"]

Row = dict[str, Any]

ON_DISK, IN_STORE = 2, 4
"""Files at once in a task: one waits for the disk, or for a store's requests, while another is
worked on."""

_TEXT, _LONG, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()


@dataclass(frozen=True, slots=True)
class _File:
    """A file that a task is given."""

    name: str
    size: int

    @property
    def shown(self) -> str:
        """The name as text, whatever bytes it is of."""
        return str(_as_text(self.name))


class Job(ABC):
    """What is done with each file.

    Attributes:
        schema: of the rows of the report, in this order.
    """

    schema: pa.Schema
    filesystem: MakeFilesystem | None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the rows of the report for rows of (task, name, size)."""
        worker = f"{socket.gethostname()}/{os.getpid()}"
        for batch in batches:
            names, sizes = batch.column("name").to_pylist(), batch.column("size").to_pylist()
            files = [_File(os.fsdecode(n), size) for n, size in zip(names, sizes, strict=True)]
            rows = [{**row, "worker": worker} for row in self._rows(files)]
            try:
                yield pa.RecordBatch.from_pylist(rows, self.schema)
            except UnicodeEncodeError:  # a message repeats a name that is no text
                yield pa.RecordBatch.from_pylist([_as_text(row) for row in rows], self.schema)

    def _rows(self, files: Sequence[_File]) -> list[Row]:
        try:
            filesystem = None if self.filesystem is None else self.filesystem()
            return list(self.rows(files, filesystem))
        except Exception as error:  # keys or stores that can't be had here
            word, message = failure(error)
            return [self.failed(file, word, message) for file in files]

    def each(self, files: Sequence[_File], work: Callable[[_File], Row], where: Place) -> list[Row]:
        """Give what `work` makes of each file, some at once; `where` they lie."""
        threads = ON_DISK if where.filesystem is None else IN_STORE
        with ThreadPoolExecutor(threads, "modcrypt-spark") as pool:
            return list(pool.map(work, files))

    @abstractmethod
    def rows(self, files: Sequence[_File], filesystem: Any) -> Iterable[Row]:
        """Do the work; raise nothing that is the fault of a file."""

    def failed(self, file: _File, word: str, message: str) -> Row:
        """Give the row of a file that failed."""
        return {"path": file.shown, "result": word, "failed": True, "message": message}


def _as_text(value: Any) -> Any:
    """Make names that are no UTF-8 text of it, wherever they stand in a row."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {name: _as_text(one) for name, one in value.items()}
    return [_as_text(one) for one in value] if isinstance(value, list) else value


def failure(error: Exception) -> tuple[str, str]:
    """Give the word and the message of what went wrong; of a bug no more than its kind.

    The text of an exception that is not this package's own may hold values of the file.
    """
    if isinstance(error, ImportError):  # of a key service's or file system's package
        return "usage", str(error)
    try:
        return told(error)
    except Exception:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        line = "" if trace is None else f" in {trace.tb_frame.f_globals.get('__name__')}"
        line += "" if trace is None else f", line {trace.tb_lineno}"
        return "internal", f"unexpected {type(error).__name__}{line}: this is a bug in modcrypt"


# --- files that become others --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Conversion(Job):
    """Encrypts, decrypts or rekeys files; one that is as it should be already is left.

    Attributes:
        verb: which of them.
        source: the folder that the files are in.
        destination: the folder that they are written to; None for their own places.
        decryption, encryption: as the verb needs them.
    """

    verb: Literal["encrypt", "decrypt", "rekey"]
    source: str
    destination: str | None
    decryption: Settings | None = None
    encryption: Settings | None = None
    overwrite: bool = False
    dry_run: bool = False
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", _TEXT), ("destination", _TEXT), ("result", _TEXT), ("failed", _FLAG),
            ("bytes_in", _LONG), ("bytes_out", _LONG), ("seconds", _REAL), ("message", _TEXT),
            ("worker", _TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[_File], filesystem: Any) -> Iterable[Row]:
        """Convert the files."""
        work = _Converter(self, filesystem)
        return self.each(files, work.row, work.place)

    def target(self, name: str) -> str:
        """Give the name of what a file becomes."""
        if self.destination is None:
            return name
        return posixpath.join(self.destination, name[len(self.source) :].lstrip("/"))

    def failed(self, file: _File, word: str, message: str) -> Row:
        """Give the row of a file that failed."""
        destination = _File(self.target(file.name), 0).shown
        more = {"destination": destination, "bytes_in": file.size}
        return {**super().failed(file, word, message), **more}


DONE = {"encrypt": "encrypted", "decrypt": "decrypted", "rekey": "rekeyed"}


class _Converter:
    """One task of a `Conversion`: its keys, and the folders that it has made."""

    def __init__(self, job: Conversion, filesystem: Any) -> None:
        self._job, self._filesystem = job, filesystem
        self._in_place = job.destination is None
        self._new = None if job.encryption is None else NewKeys(job.encryption)
        self._old = None if job.decryption is None else job.decryption.decryption()
        where = job.source if job.destination is None else job.destination
        self._folder = WrittenFolder(where, filesystem)
        self._made: set[str] = set()
        self.place = self._place(where)

    def row(self, file: _File) -> Row:
        """Convert a file; what goes wrong is a result."""
        started = time.perf_counter()
        row = self._job.failed(file, "", "")
        try:
            row["result"], row["message"] = self._converted(file.name)
            row["failed"] = False
            if row["result"] != "planned":
                row["bytes_out"] = _size(self._place(self._job.target(file.name)))
        except Exception as error:  # the others go on
            row["result"], row["message"] = failure(error)
        row["seconds"] = time.perf_counter() - started
        return row

    def _converted(self, name: str) -> tuple[str, str]:
        target = self._job.target(name)
        source, destination = self._place(name), self._place(target)
        why = ""
        if there := self._in_place or destination.stamp() is not None:
            found = self._why_not(source, destination)
            if found is None:
                return "current", ""
            why = found
            if not (self._job.overwrite or self._in_place):
                raise FileExistsError(
                    errno.EEXIST,
                    f"the destination is not what would be made, and is kept: {why}",
                    target,
                )
        if self._job.dry_run:
            return "planned", why
        self._make_folder(target)
        try:
            message = self._convert(name, target, overwrite=there)
        except OSError as error:
            # Another attempt at the same task may have been faster: what it made is as good.
            raced = error.errno in (errno.EEXIST, errno.ESTALE)
            if not raced or self._why_not(source, destination) is not None:
                raise
            return "current", ""
        return DONE[self._job.verb], message

    def _convert(self, name: str, target: str, *, overwrite: bool) -> str:
        """Do what the verb says; give what there is to tell of it."""
        more: dict[str, Any] = {"filesystem": self._filesystem, "overwrite": overwrite}
        if self._new is None:
            assert self._old is not None  # there are keys for one or the other
            missing = decrypt_parquet(name, target, self._old, threads=1, **more)
        elif self._old is None:
            encrypt_parquet(name, target, self._new.encryption, threads=1, **more)
            missing = ()
        else:
            done = rekey_parquet(name, target, self._old, self._new.encryption, threads=1, **more)
            missing = done.dropped + done.nulls
        return f"without a key: {', '.join(missing)}" if missing else ""

    def _why_not(self, source: Place, destination: Place) -> str | None:
        """Say why a destination, which is there, is not what would be made; None where it is."""
        if self._in_place:
            return why_not_plain(source, None) if self._new is None else self._new.why_not(source)
        _check_apart(source, destination)
        if not is_newer(destination, source):
            return "it is older than its source"
        shape = plain_shape(source) if self._old is None else decrypted_shape(source, self._old)
        if self._new is None:
            return why_not_plain(destination, shape)
        return self._new.why_not(destination, shape)

    def _place(self, name: str) -> Place:
        return _place(name, self._filesystem)

    def _make_folder(self, target: str) -> None:
        """Make the folder of a destination, once."""
        job = self._job
        if job.destination is None:
            return
        inside = target[len(job.destination) :].lstrip("/")
        folder = posixpath.dirname(inside)
        if folder not in self._made:
            self._folder.place(inside)
            self._made.add(folder)


def _check_apart(source: Place, destination: Place) -> None:
    """Refuse a destination that a link makes one with its source.

    Raises:
        OSError: they are one.
    """
    if source.real() == destination.real():
        raise OSError(errno.EINVAL, "the destination is the source, by a link", destination.path)


def _place(name: str, filesystem: Any) -> Place:
    place = place_of(name, filesystem)
    assert place is not None  # names are no file objects
    return place


def _size(place: Place) -> int | None:
    """Give a local file's size; a store is not asked for each."""
    return os.stat(place.path).st_size if place.filesystem is None else None


# --- verification --------------------------------------------------------------------------------

_FINDINGS = pa.list_(
    pa.struct(
        [
            ("word", _TEXT), ("severity", _TEXT), ("message", _TEXT), ("module", _TEXT),
            ("start", _LONG), ("end", _LONG),
        ]
    )
)  # fmt: skip
_NOT_AUTHENTICATED = pa.list_(pa.struct([("what", _TEXT), ("path", _TEXT), ("why", _TEXT)]))


@dataclass(frozen=True, kw_only=True)
class Verifying(Job):
    """Verifies files, as far as the keys allow; without any, as far as can be seen."""

    decryption: Settings | None
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", _TEXT), ("result", _TEXT), ("failed", _FLAG), ("complete", _FLAG),
            ("encrypted", _FLAG), ("rows", _LONG), ("modules", _LONG),
            ("authenticated_bytes", _LONG), ("bytes_in", _LONG), ("file_unique", _TEXT),
            ("findings", _FINDINGS), ("not_authenticated", _NOT_AUTHENTICATED),
            ("seconds", _REAL), ("message", _TEXT), ("worker", _TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[_File], filesystem: Any) -> Iterable[Row]:
        """Verify the files."""
        properties = None if self.decryption is None else self.decryption.decryption()

        def verified(file: _File) -> Row:
            started = time.perf_counter()
            try:
                with _place(file.name, filesystem).open() as source:
                    checked = verify_source(source, properties, threads=1)
                row = self._row(file, checked.verification, checked.unique)
            except Exception as error:  # the others go on
                row = self.failed(file, *failure(error))
            return {**row, "bytes_in": file.size, "seconds": time.perf_counter() - started}

        return self.each(files, verified, _place(files[0].name, filesystem))

    def _row(self, file: _File, found: Verification, unique: bytes | None) -> Row:
        faults = [one for one in found.findings if one.severity == "fault"]
        findings = [
            {**asdict(one), "module": None if one.module is None else str(one.module)}
            for one in found.findings
        ]
        return {
            "path": file.shown,
            "result": faults[0].word if faults else "authentic" if found.complete else "partial",
            "failed": bool(faults),
            "complete": found.complete,
            "encrypted": found.encrypted,
            "rows": found.num_rows,
            "modules": found.modules,
            "authenticated_bytes": found.authenticated_bytes,
            "file_unique": unique.hex() if unique else None,
            "findings": findings,
            "not_authenticated": [one.fields() for one in found.not_authenticated],
            "message": faults[0].message if faults else "",
        }


# --- keys ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rotation(Job):
    """Wraps the keys of files anew; what the library's `rotate_keys` does, for a task's files."""

    settings: Settings
    what: What
    new_master_keys: dict[str, str]
    dry_run: bool = False
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", _TEXT), ("result", _TEXT), ("failed", _FLAG), ("keys", _LONG),
            ("message", _TEXT), ("worker", _TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[_File], filesystem: Any) -> Iterable[Row]:
        """Rotate the files; those of a task share what the key service answers."""
        done = rotate_keys(
            [file.name for file in files],
            self.settings.tools(),
            what=self.what,
            new_master_keys=self.new_master_keys,
            filesystem=filesystem,
            decryption=_decryption(self.settings),
            dry_run=self.dry_run,
        )
        names = _by_path(files, filesystem)
        for one in done:
            yield {
                "path": names[one.path], "result": one.result, "failed": one.failed,
                "keys": one.keys, "message": one.message,
            }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scan(Job):
    """Lists the keys that files need: a row for each key."""

    settings: Settings | None
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", _TEXT), ("kind", _TEXT), ("column", _TEXT), ("master_key_id", _TEXT),
            ("version", _TEXT), ("kek_id", _TEXT), ("storage", _TEXT), ("failed", _FLAG),
            ("message", _TEXT), ("worker", _TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[_File], filesystem: Any) -> Iterable[Row]:
        """Look into the files."""
        tools = None if self.settings is None else self.settings.tools()
        decryption = None if self.settings is None else _decryption(self.settings)
        names = _by_path(files, filesystem)
        found = scan_keys(
            [file.name for file in files], tools, filesystem=filesystem, decryption=decryption
        )
        for one in found:
            fields = one.fields()
            path = names[fields.pop("file")]
            yield {**fields, "path": path, "failed": one.kind == "error"}

    def failed(self, file: _File, word: str, message: str) -> Row:
        """Give the row of a file that failed."""
        return {"path": file.shown, "kind": "error", "failed": True, "message": message}


def _decryption(settings: Settings) -> FileDecryptionProperties | None:
    """Give what the settings insist on; None where they leave that to what is done."""
    says = settings.policy is not None or settings.aad_prefix is not None
    says = says or settings.algorithms != ALGORITHMS[:1]
    return settings.decryption() if says else None


def _by_path(files: Sequence[_File], filesystem: Any) -> dict[str, str]:
    """Give the names of files, as they are shown, by their paths within their file system."""
    return {_place(file.name, filesystem).path: file.shown for file in files}
