"""Rotation, shredding and scans of keys as jobs of Spark."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from modcrypt.io.places import Place
from modcrypt.jobs import key_rotation
from modcrypt.jobs.key_rewrapping import What
from modcrypt.jobs.key_rotation import RotatedFile, check_rotation
from modcrypt.jobs.key_scan import scan_keys
from modcrypt.jobs.listing import File, MakeFilesystem
from modcrypt.jobs.shredding.removal import ShreddedFile
from modcrypt.kms.proof import Prove, check_prove
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.driver import TablePlan, check_settings, folders_of, plan_job
from modcrypt.spark.jobs.file_work import FLAG, LONG, TEXT, Row, TableJob

ROTATED = pa.schema(
    [
        ("path", TEXT), ("result", TEXT), ("failed", FLAG), ("keys", LONG), ("message", TEXT),
        ("lost_signature", FLAG), ("proved", LONG), ("worker", TEXT),
    ]
)  # fmt: skip
"""The schema of a rotation's rows."""


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

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Yield a row for each file; files of a task share responses of the key service."""
        settings = self.settings
        results = self.change(
            [_restrict_to_folders(file, self.folders) for file in files],
            None if settings is None else settings.tools(),
            filesystem=filesystem,
            decryption=None if settings is None else settings.requirements(),
            signing_key=None if settings is None else settings.writer_key,
            **self.how,
        )
        names = map_names(files)
        for result in results:
            yield {**asdict(result), "path": names[result.path], "failed": result.failed}

    def make_failed_row(self, file: File, error: Exception) -> Row:
        """Return the row of a file that failed."""
        nothing = {"keys": 0, "columns": [], "whole": False, "lost_signature": False}
        return {**super().make_failed_row(file, error), **nothing}


def plan_rotation(
    where: Any,
    settings: Settings,
    *,
    what: What = "mek",
    new_master_keys: Mapping[str, str] | None = None,
    double_wrapping: bool | None = None,
    dry_run: bool = False,
    prove: Prove = "first",
    filesystem: MakeFilesystem | None = None,
) -> TablePlan:
    """Plan a rotation, and prove a wrap under each new master key; as `rotate_keys`."""
    renamed = check_rotation(what, new_master_keys, double_wrapping)
    check_prove(prove)

    def check(settings: Settings, _files: Sequence[File]) -> None:
        tools, _ = settings.tools(), settings.writer_key
        for new_id in set() if dry_run else set(renamed.values()):
            tools.wrapper.prove_master(new_id)

    check_settings(settings)
    folders = tuple(folder.name for folder in folders_of(where, filesystem))
    return plan_job(
        KeyJob, where, settings, check=check, filesystem=filesystem,
        change=key_rotation.rotate_keys, schema=ROTATED, folders=folders,
        how={
            "what": what, "new_master_keys": renamed, "double_wrapping": double_wrapping,
            "dry_run": dry_run, "prove": prove,
        },
    )  # fmt: skip


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
