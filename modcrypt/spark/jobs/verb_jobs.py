"""Plans of verbs on Spark, after the checks that need no executor."""

from __future__ import annotations

from typing import Any

from modcrypt.jobs.listing import MakeFilesystem, list_tables
from modcrypt.jobs.verbs.verb import Verb
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.driver import (
    TablePlan,
    check_reachable,
    check_settings,
    folders_of,
    settings_under,
)
from modcrypt.spark.jobs.file_work import VerbJob


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
