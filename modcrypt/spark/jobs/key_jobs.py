"""Rotation, shredding and scans of keys as jobs of Spark."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from modcrypt.io.places import Place
from modcrypt.jobs.key_rotation import RotatedFile
from modcrypt.jobs.key_scan import scan_keys
from modcrypt.jobs.listing import File, MakeFilesystem
from modcrypt.jobs.shredding.removal import ShreddedFile
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.file_work import FLAG, TEXT, Row, TableJob


@dataclass(frozen=True, kw_only=True)
class KeyJob(TableJob):
    """A job that changes the keys of files, by a function of the library."""

    # Function that changes the keys, `rotate_keys` or `shred_keys`.
    change: Callable[..., Iterable[RotatedFile | ShreddedFile]]
    how: Mapping[str, Any]  # further arguments of the function
    # Schema of the rows: the attributes of the function's results, `failed` and `worker`.
    schema: pa.Schema
    settings: Settings | None
    filesystem: MakeFilesystem | None = None
    folders: tuple[str, ...] = ()  # folders or files that the caller named
    signs: bool = False  # whether the function takes a `signing_key`

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Yield a row for each file; files of a task share responses of the key service."""
        settings = self.settings
        signing = {"signing_key": settings.writer_key} if settings and self.signs else {}
        results = self.change(
            [_restrict_to_folders(file, self.folders) for file in files],
            None if settings is None else settings.tools(),
            filesystem=filesystem,
            decryption=None if settings is None else settings.requirements(),
            **self.how,
            **signing,
        )
        names = map_names(files)
        for result in results:
            yield {**asdict(result), "path": names[result.path], "failed": result.failed}

    def make_failed_row(self, file: File, error: Exception) -> Row:
        """Return the row of a file that failed."""
        nothing = {"keys": 0, "columns": [], "whole": False, "lost_signature": False}
        return {**super().make_failed_row(file, error), **nothing}


@dataclass(frozen=True, kw_only=True)
class ScanJob(TableJob):
    """A job that lists the keys that files need, with a row for each key."""

    settings: Settings | None
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", TEXT), ("kind", TEXT), ("column", TEXT), ("master_key_id", TEXT),
            ("version", TEXT), ("kek_id", TEXT), ("storage", TEXT), ("failed", FLAG),
            ("message", TEXT), ("word", TEXT), ("worker", TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Yield a row for each key of the files."""
        settings, names = self.settings, map_names(files)
        keys = scan_keys(
            [file.name for file in files],
            None if settings is None else settings.tools(),
            filesystem=filesystem,
            decryption=None if settings is None else settings.requirements(),
        )
        for key in keys:
            fields = key.fields()
            path = names[fields.pop("file")]
            yield {**fields, "path": path, "failed": key.kind == "error"}


def map_names(files: Sequence[File]) -> dict[str, str]:
    """Return the names of files by their paths within their file system."""
    return {file.place.path: file.name for file in files}


def _restrict_to_folders(file: File, folders: Iterable[str]) -> str | Place:
    """Return a file to write to, so that no symbolic link below the given folders is followed."""
    place = file.place
    roots = [folder for folder in folders if place.path.startswith(posixpath.join(folder, ""))]
    if place.filesystem is not None or not roots:
        return file.name
    return Place(None, place.path, max(roots, key=len))
