"""Rotation and scans of keys as jobs of Spark."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from modcrypt.io.places import Place
from modcrypt.jobs.key_rotation import What, rotate_keys
from modcrypt.jobs.key_scan import scan_keys
from modcrypt.jobs.listing import File, MakeFilesystem
from modcrypt.kms.settings import Settings
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.spark.jobs.file_work import FLAG, LONG, TEXT, Job, Row


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
            ("path", TEXT), ("result", TEXT), ("failed", FLAG), ("keys", LONG),
            ("message", TEXT), ("worker", TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Yield a row for each rotated file; files of a task share responses of the key service."""
        results = rotate_keys(
            [restrict_to_folders(file, self.folders) for file in files],
            self.settings.tools(),
            what=self.what,
            new_master_keys=self.new_master_keys,
            filesystem=filesystem,
            decryption=explicit_decryption(self.settings),
            dry_run=self.dry_run,
        )
        names = map_names(files)
        for result in results:
            yield {**asdict(result), "path": names[result.path], "failed": result.failed}


@dataclass(frozen=True, kw_only=True)
class ScanJob(Job):
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
        tools = None if self.settings is None else self.settings.tools()
        decryption = None if self.settings is None else explicit_decryption(self.settings)
        names = map_names(files)
        keys = scan_keys(
            [file.name for file in files], tools, filesystem=filesystem, decryption=decryption
        )
        for key in keys:
            fields = key.fields()
            path = names[fields.pop("file")]
            yield {**fields, "path": path, "failed": key.kind == "error"}


def explicit_decryption(settings: Settings) -> FileDecryptionProperties | None:
    """Return the decryption properties of the settings; None if they set no requirements."""
    is_set = settings.policy is not None or settings.aad_prefix is not None
    is_set = is_set or settings.algorithms is not None or bool(settings.master_key_ids)
    return settings.decryption() if is_set else None


def map_names(files: Sequence[File]) -> dict[str, str]:
    """Return the names of files by their paths within their file system."""
    return {file.place.path: file.name for file in files}


def restrict_to_folders(file: File, folders: Iterable[str]) -> str | Place:
    """Return a file to write to, so that no symbolic link below the given folders is followed."""
    place = file.place
    roots = [folder for folder in folders if place.path.startswith(posixpath.join(folder, ""))]
    if place.filesystem is not None or not roots:
        return file.name
    return Place(None, place.path, max(roots, key=len))
