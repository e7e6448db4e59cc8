"""Jobs that Spark tasks run on their files, on an executor; every file yields rows of the report.

Spark pickles a job to the executors, so it holds only references to keys. Keys are opened once per
task and the key service once per process; data keys are generated, wrapped and used here. A file
that fails becomes a row; if keys can't be retrieved here, every file becomes such a row.
"""

from __future__ import annotations

import json
import os
import posixpath
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from modcrypt.io.places import Place
from modcrypt.jobs.engine import map_files
from modcrypt.jobs.failures import describe, describe_inspection, describe_verification
from modcrypt.jobs.key_rotation import What, rotate_keys
from modcrypt.jobs.key_scan import scan_keys
from modcrypt.jobs.listing import File, MakeFilesystem, place_at
from modcrypt.kms.settings import Settings
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.verify.dataset_verification import verify_place
from modcrypt.parquet.verify.file_verification import CheckedFile, verify_source
from modcrypt.parquet.verify.inspection import Inspection, inspect_parquet

Row = dict[str, Any]

ON_DISK, IN_STORE = 2, 4
"""Number of files that a task processes concurrently, on disk and in a store: one file waits for IO
while another is processed."""

_TEXT, _LONG, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_INT = pa.int32()
_TEXTS = pa.list_(_TEXT)


def restrict_to_folders(name: str, folders: Iterable[str], filesystem: Any) -> str | Place:
    """Return a file to write to, so that no symbolic link below the given folders is followed.

    Args:
        name: Name of the file.
        folders: Names of folders or files that the caller gave.
        filesystem: The pyarrow or fsspec filesystem of the file.
    """
    place = place_at(name, filesystem)
    roots = [folder for folder in folders if place.path.startswith(posixpath.join(folder, ""))]
    if place.filesystem is not None or not roots:
        return name
    return Place(None, place.path, max(roots, key=len))


class Job(ABC):
    """A job on files, which yields rows of a report.

    Attributes:
        schema: Schema of the rows of the report; other values of a row are left out.
        filesystem: Function that makes the filesystem of the files; None if names are enough.
    """

    schema: pa.Schema
    filesystem: MakeFilesystem | None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the report for rows of (task, name, size)."""
        worker = f"{socket.gethostname()}/{os.getpid()}"
        for batch in batches:
            names, sizes = batch.column("name").to_pylist(), batch.column("size").to_pylist()
            files = [File(os.fsdecode(n), size) for n, size in zip(names, sizes, strict=True)]
            rows = [{**row, "worker": worker} for row in self._make_rows(files)]
            try:
                yield pa.RecordBatch.from_pylist(rows, self.schema)
            except UnicodeEncodeError:  # a name is not UTF-8
                yield pa.RecordBatch.from_pylist([_as_text(row) for row in rows], self.schema)

    def _make_rows(self, files: Sequence[File]) -> list[Row]:
        try:
            filesystem = None if self.filesystem is None else self.filesystem()
            return list(self.rows(files, filesystem))
        except Exception as error:  # keys or stores are not available on this executor
            return [self.make_failed_row(file, error) for file in files]

    def process_each(
        self, files: Sequence[File], work: Callable[[File], Row], filesystem: Any
    ) -> list[Row]:
        """Return the row of `work`, or of its error, for each file, processed concurrently."""

        def process(file: File) -> Row:
            started = time.perf_counter()
            try:
                row = work(file)
            except Exception as error:  # the job continues with the other files
                row = self.make_failed_row(file, error)
            return {"bytes_in": file.size, "seconds": time.perf_counter() - started, **row}

        where = place_at(files[0].name, filesystem)
        threads = ON_DISK if where.filesystem is None else IN_STORE
        return list(map_files(process, files, threads=threads))

    def make_row(self, file: File, details: Row, **values: Any) -> Row:
        """Return the row of an examined file.

        Args:
            file: The file.
            details: What `--json` prints of the file; values of the same names are in the row.
            values: Further values of the row.
        """
        same = {name: details[name] for name in self.schema.names if name in details}
        rows, text = details["num_rows"], json.dumps(details)
        return {**same, "path": file.name, "rows": rows, "message": "", "details": text, **values}

    @abstractmethod
    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Process the files; return errors of a file as rows."""

    def make_failed_row(self, file: File, error: Exception) -> Row:
        """Return the row of a file that failed."""
        failure = describe(error)
        return {
            "path": file.name, "result": failure.word, "failed": True, "message": failure.message,
            "code": failure.code, "kind": "error", "word": failure.word,
            "details": json.dumps({"name": file.name, **failure.fields()}),
        }  # fmt: skip


def _as_text(value: Any) -> Any:
    """Return a row or value in which names that are not UTF-8 are escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {name: _as_text(item) for name, item in value.items()}
    return type(value)(map(_as_text, value)) if isinstance(value, list | tuple) else value


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
class VerificationJob(Job):
    """A job that verifies files as far as the keys allow, also without keys."""

    settings: Settings | None
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", _TEXT), ("result", _TEXT), ("failed", _FLAG), ("complete", _FLAG),
            ("encrypted", _FLAG), ("rows", _LONG), ("modules", _LONG),
            ("authenticated_bytes", _LONG), ("bytes_in", _LONG), ("file_unique", _TEXT),
            ("findings", _FINDINGS), ("not_authenticated", _NOT_AUTHENTICATED),
            ("aad_prefix_hex", _TEXT), ("seconds", _REAL), ("message", _TEXT), ("code", _INT),
            ("details", _TEXT), ("worker", _TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Return a row for each verified file."""
        properties = None if self.settings is None else self.settings.decryption()

        def verify(file: File) -> Row:
            place = place_at(file.name, filesystem)
            return self._describe(
                file,
                verify_place(place, lambda source: verify_source(source, properties, threads=1)),
            )

        return self.process_each(files, verify, filesystem)

    def _describe(self, file: File, checked: CheckedFile) -> Row:
        result, aad = checked.verification, checked.aad
        fault = next((found for found in result.findings if found.severity == "fault"), None)
        findings = [
            {**asdict(finding), "module": None if finding.module is None else str(finding.module)}
            for finding in result.findings
        ]
        return self.make_row(
            file,
            describe_verification(result),
            result=fault.word if fault else "authentic" if result.complete else "partial",
            failed=fault is not None,
            file_unique=aad.unique.hex() if aad.unique else None,
            aad_prefix_hex=aad.prefix.hex() if aad.prefix else None,
            findings=findings,
            message=fault.message if fault else "",
        )


# --- inspection ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class InspectionJob(Job):
    """A job that inspects files with or without keys; it opens no pages."""

    settings: Settings | None
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
            ("hidden", _TEXTS), ("quirks", _TEXTS), ("kms_unavailable", _FLAG),
            ("bytes_in", _LONG), ("message", _TEXT), ("code", _INT), ("details", _TEXT),
            ("worker", _TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Return a row for each inspected file."""
        properties = None if self.settings is None else self.settings.decryption()

        def inspect(file: File) -> Row:
            result = inspect_parquet(file.name, properties, filesystem=filesystem)
            return self._describe(file, result)

        return self.process_each(files, inspect, filesystem)

    def _describe(self, file: File, result: Inspection) -> Row:
        """Return the inspection as a row, with its columns summarised."""
        columns = result.columns
        counts: dict[str, Any] = {"columns": None}  # the columns are hidden
        if columns is not None:
            plain = [column.path for column in columns if column.key is None]
            counts = {
                "columns": len(columns),
                "encrypted_columns": len(columns) - len(plain),
                "opened_columns": sum(column.has_key is True for column in columns),
                "plaintext_columns": plain,
            }
        return self.make_row(
            file, describe_inspection(result), result="inspected", failed=False,
            footer_key=str(result.footer_key), **counts,
        )  # fmt: skip


# --- keys ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RotationJob(Job):
    """A job that rotates the keys of files, by the library's `rotate_keys`.

    Attributes:
        settings: Settings with a key service.
        what: Level to rotate, as in `rotate_keys`.
        new_master_keys: Mapping of master key ids to the ids that replace them.
        dry_run: Whether to write nothing and only report what would be done.
        filesystem: Function that makes the filesystem of the files.
        folders: Folders or files that the caller named.
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
        """Yield a row for each rotated file; files of a task share responses of the key service."""
        results = rotate_keys(
            [restrict_to_folders(file.name, self.folders, filesystem) for file in files],
            self.settings.tools(),
            what=self.what,
            new_master_keys=self.new_master_keys,
            filesystem=filesystem,
            decryption=_explicit_decryption(self.settings),
            dry_run=self.dry_run,
        )
        names = _map_names(files, filesystem)
        for result in results:
            yield {**asdict(result), "path": names[result.path], "failed": result.failed}


@dataclass(frozen=True, kw_only=True)
class ScanJob(Job):
    """A job that lists the keys that files need, with a row for each key."""

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
        """Yield a row for each key of the files."""
        tools = None if self.settings is None else self.settings.tools()
        decryption = None if self.settings is None else _explicit_decryption(self.settings)
        names = _map_names(files, filesystem)
        keys = scan_keys(
            [file.name for file in files], tools, filesystem=filesystem, decryption=decryption
        )
        for key in keys:
            fields = key.fields()
            path = names[fields.pop("file")]
            yield {**fields, "path": path, "failed": key.kind == "error"}


def _explicit_decryption(settings: Settings) -> FileDecryptionProperties | None:
    """Return the decryption properties of the settings; None if they set no requirements."""
    is_set = settings.policy is not None or settings.aad_prefix is not None
    is_set = is_set or settings.algorithms is not None or bool(settings.master_key_ids)
    return settings.decryption() if is_set else None


def _map_names(files: Sequence[File], filesystem: Any) -> dict[str, str]:
    """Return the names of files by their paths within their file system."""
    return {place_at(file.name, filesystem).path: file.name for file in files}
