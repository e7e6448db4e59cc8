"""What a task of Spark does with its files, on an executor; each gives rows of the report.

A job is pickled to the executors, so it holds references to keys alone. Keys are opened once for a
task, the key service once in a process; data keys are made, wrapped and used here. A file that
fails is a row, and so is each of them where the keys can't be had here.
"""

from __future__ import annotations

import os
import posixpath
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from modcrypt.io.storage import Place, place_of
from modcrypt.jobs.file_runs import told
from modcrypt.jobs.key_rotation import What, rotate_keys
from modcrypt.jobs.key_scan import scan_keys
from modcrypt.parquet.crypto.properties import ALGORITHMS, FileDecryptionProperties
from modcrypt.parquet.verify.file_verification import verify_source
from modcrypt.parquet.verify.findings import Verification
from modcrypt.parquet.verify.inspection import Inspection, inspect_parquet
from modcrypt.spark.jobs.task_files import MakeFilesystem
from modcrypt.spark.settings import Settings

__all__ = [
    "File",
    "Inspecting",
    "Job",
    "Rotation",
    "Scan",
    "Verifying",
    "below",
    "failure",
    "place_at",
]

Row = dict[str, Any]

ON_DISK, IN_STORE = 2, 4
"""Files at once in a task: one waits for the disk, or for a store's requests, while another is
worked on."""

_TEXT, _LONG, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_TEXTS = pa.list_(_TEXT)


@dataclass(frozen=True, slots=True)
class File:
    """A file that a task is given."""

    name: str
    size: int

    @property
    def shown(self) -> str:
        """The name as text, whatever bytes it is of."""
        return str(_as_text(self.name))


def place_at(name: str, filesystem: Any) -> Place:
    """Say where the file of a name lies."""
    place = place_of(name, filesystem)
    assert place is not None  # names are no file objects
    return place


def below(name: str, folders: Iterable[str], filesystem: Any) -> str | Place:
    """Return a file as what writes takes it: no link below a local folder of these is followed.

    Args:
        name: Name of the file.
        folders: Names that the caller gave, of folders or of files.
        filesystem: File system of PyArrow or fsspec that they are in.
    """
    place = place_at(name, filesystem)
    roots = [one for one in folders if place.path.startswith(posixpath.join(one, ""))]
    if place.filesystem is not None or not roots:
        return name
    return Place(None, place.path, max(roots, key=len))


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
            files = [File(os.fsdecode(n), size) for n, size in zip(names, sizes, strict=True)]
            rows = [{**row, "worker": worker} for row in self._rows(files)]
            try:
                yield pa.RecordBatch.from_pylist(rows, self.schema)
            except UnicodeEncodeError:  # a message repeats a name that is no text
                yield pa.RecordBatch.from_pylist([_as_text(row) for row in rows], self.schema)

    def _rows(self, files: Sequence[File]) -> list[Row]:
        try:
            filesystem = None if self.filesystem is None else self.filesystem()
            return list(self.rows(files, filesystem))
        except Exception as error:  # keys or stores that can't be had here
            word, message = failure(error)
            return [self.failed(file, word, message) for file in files]

    def each(self, files: Sequence[File], work: Callable[[File], Row], where: Place) -> list[Row]:
        """Give what `work` makes of each file, some at once; `where` they lie."""
        threads = ON_DISK if where.filesystem is None else IN_STORE
        with ThreadPoolExecutor(threads, "modcrypt-spark") as pool:
            return list(pool.map(work, files))

    @abstractmethod
    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Do the work; raise nothing that is the fault of a file."""

    def failed(self, file: File, word: str, message: str) -> Row:
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


# --- verification --------------------------------------------------------------------------------

_FINDINGS = pa.list_(
    pa.struct(
        [
            ("word", _TEXT), ("severity", _TEXT), ("message", _TEXT), ("module", _TEXT),
            ("start", _LONG), ("end", _LONG),
        ]
    )
)  # fmt: skip
_NOT_AUTHENTICATED = pa.list_(
    pa.struct(
        [("what", _TEXT), ("path", _TEXT), ("why", _TEXT), ("word", _TEXT), ("by_design", _FLAG)]
    )
)


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

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Verify the files."""
        properties = None if self.decryption is None else self.decryption.decryption()

        def verified(file: File) -> Row:
            started = time.perf_counter()
            try:
                with place_at(file.name, filesystem).open() as source:
                    checked = verify_source(source, properties, threads=1)
                row = self._row(file, checked.verification, checked.unique)
            except Exception as error:  # the others go on
                row = self.failed(file, *failure(error))
            return {**row, "bytes_in": file.size, "seconds": time.perf_counter() - started}

        return self.each(files, verified, place_at(files[0].name, filesystem))

    def _row(self, file: File, found: Verification, unique: bytes | None) -> Row:
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


# --- inspection ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Inspecting(Job):
    """Says what files tell, with keys or without; pages are not opened."""

    decryption: Settings | None
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", _TEXT), ("result", _TEXT), ("failed", _FLAG), ("encrypted", _FLAG),
            ("footer_mode", _TEXT), ("footer_authenticated", _FLAG), ("algorithm", _TEXT),
            ("footer_key", _TEXT), ("aad_prefix", _TEXT), ("stores_aad_prefix", _FLAG),
            ("needs_aad_prefix", _FLAG), ("aad_file_unique_size", _LONG), ("created_by", _TEXT),
            ("writer", _TEXT), ("rows", _LONG), ("row_groups", _LONG), ("columns", _LONG),
            ("encrypted_columns", _LONG), ("opened_columns", _LONG),
            ("plaintext_columns", _TEXTS), ("key_value_metadata", _TEXTS), ("leaks", _TEXTS),
            ("hidden", _TEXTS), ("quirks", _TEXTS), ("bytes_in", _LONG), ("message", _TEXT),
            ("worker", _TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Look into the files."""
        properties = None if self.decryption is None else self.decryption.decryption()

        def inspected(file: File) -> Row:
            try:
                found = inspect_parquet(file.name, properties, filesystem=filesystem)
                row = self._row(file, found)
            except Exception as error:  # the others go on
                row = self.failed(file, *failure(error))
            return {**row, "bytes_in": file.size}

        return self.each(files, inspected, place_at(files[0].name, filesystem))

    def _row(self, file: File, found: Inspection) -> Row:
        """Give what is told of the file, and of its columns no more than fits a cell."""
        columns = found.columns or ()
        counts = None if found.columns is None else len(columns)
        plain = [column.path for column in columns if column.key is None]
        fields = found.fields()
        told = {name: fields[name] for name in self.schema.names if name in fields}
        return {
            **told,
            "path": file.shown,
            "result": "inspected",
            "failed": False,
            "footer_key": str(found.footer_key),
            "rows": found.num_rows,
            "columns": counts,
            "encrypted_columns": None if counts is None else counts - len(plain),
            "opened_columns": None if counts is None else sum(c.has_key is True for c in columns),
            "plaintext_columns": None if counts is None else plain,
            "message": "",
        }


# --- keys ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rotation(Job):
    """A rotation of the keys of a task's files, by the library's `rotate_keys`.

    Attributes:
        folders: that the caller named, or files.
    """

    settings: Settings
    what: What
    new_master_keys: dict[str, str]
    dry_run: bool = False
    filesystem: MakeFilesystem | None = None
    folders: tuple[str, ...] = ()

    schema = pa.schema(
        [
            ("path", _TEXT), ("result", _TEXT), ("failed", _FLAG), ("keys", _LONG),
            ("message", _TEXT), ("worker", _TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Rotate the files; those of a task share what the key service answers."""
        done = rotate_keys(
            [below(file.name, self.folders, filesystem) for file in files],
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
            ("message", _TEXT), ("word", _TEXT), ("worker", _TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
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

    def failed(self, file: File, word: str, message: str) -> Row:
        """Give the row of a file that failed."""
        return {
            "path": file.shown, "kind": "error", "failed": True, "message": message, "word": word,
        }  # fmt: skip


def _decryption(settings: Settings) -> FileDecryptionProperties | None:
    """Give what the settings insist on; None where they leave that to what is done."""
    says = settings.policy is not None or settings.aad_prefix is not None
    says = says or settings.algorithms != ALGORITHMS[:1] or bool(settings.master_key_ids)
    return settings.decryption() if says else None


def _by_path(files: Sequence[File], filesystem: Any) -> dict[str, str]:
    """Give the names of files, as they are shown, by their paths within their file system."""
    return {place_at(file.name, filesystem).path: file.shown for file in files}
