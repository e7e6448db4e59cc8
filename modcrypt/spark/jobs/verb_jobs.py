"""The job of Spark that does what a verb declares."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from modcrypt.io.places import Place
from modcrypt.jobs.listing import File, MakeFilesystem, list_tables
from modcrypt.jobs.verbs.verb import Row, Verb
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.driver import (
    TablePlan,
    check_reachable,
    check_settings,
    folders_of,
    settings_under,
)
from modcrypt.spark.jobs.file_work import IN_STORE, TableJob
from modcrypt.spark.report_schemas import report_schema


@dataclass(frozen=True, kw_only=True)
class VerbJob(TableJob):
    """A verb with its arguments, for any files; picklable, so without keys."""

    verb: Verb
    settings: Settings | None = None
    filesystem: MakeFilesystem | None = None
    folders: tuple[str, ...] = ()  # folders or files that the caller named
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows of the report."""
        return report_schema(self.verb)

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Return the rows of the files, which share the keys of the task."""
        verb = self.verb
        job = verb.open(self.settings, filesystem, **self.arguments)
        if verb.writes:
            files = [_restrict_to_folders(file, self.folders) for file in files]
        rows = self.process_each(
            files, lambda file: verb.rows(file, job.process(file)),
            threads=IN_STORE if verb.waits else None,
        )  # fmt: skip
        if verb.end is not None:
            verb.end(self.settings, **self.arguments)
        return rows

    def make_failed_row(self, file: File, error: Exception) -> Row:
        """Return the row of a file that failed."""
        return self.verb.fail(self.verb, file, error, **self.arguments)


def plan_verb(
    verb: Verb, where: Any, settings: Settings | None, *,
    filesystem: MakeFilesystem | None = None, **arguments: Any,
) -> TablePlan:  # fmt: skip
    """Plan a verb on files, and check what needs no executor.

    `where` is the path or URL of a folder or file, or a list of them; one folder is the root of
    paths in AAD prefixes. Raise as `encrypt_table`.
    """
    prepared = verb.prepare(**arguments)
    if verb.needs_keys:
        check_settings(settings)
    folders = folders_of(where, filesystem)
    files = list_tables(folders)
    settings = settings_under(settings, folders)
    if settings is not None:
        if verb.check is not None:
            verb.check(settings, files, **prepared)
        check_reachable(settings, files)
    names = tuple(folder.name for folder in folders)
    job = VerbJob(
        verb=verb, settings=settings, filesystem=filesystem, folders=names, arguments=prepared
    )
    return job, files


def _restrict_to_folders(file: File, folders: Iterable[str]) -> File:
    """Return a file to write to, so that no symbolic link below the given folders is followed."""
    place = file.place
    roots = [folder for folder in folders if place.path.startswith(posixpath.join(folder, ""))]
    if place.filesystem is not None or not roots:
        return file
    return replace(file, place=Place(None, place.path, max(roots, key=len)))
