"""Verbs: what is done to each file of a run, declared once.

From a `Verb` derive its run in threads (`run_verb`), the columns of its report
(`modcrypt.spark.report_schemas`), its job and SQL procedure on Spark (`modcrypt.spark.jobs`), and
the members of its JSON (`tools.json_schemas`). Spark sends verbs and arguments to other processes:
they have functions of modules, and references to keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from modcrypt.jobs.engine import Job, run_job
from modcrypt.jobs.failures import describe
from modcrypt.jobs.listing import File

if TYPE_CHECKING:  # key services, which not every file needs
    from modcrypt.kms.settings import Settings

Row: TypeAlias = dict[str, Any]
"""A row of a report; values of other columns than those of the report are left out."""


def make_failed_row(verb: Verb, file: File, error: Exception, **_arguments: Any) -> Row:
    """Return the row of a file that failed, with what `--json` prints of it as its details."""
    failure = describe(error)
    word, message = failure.word, failure.message
    if verb.describe is None:  # the row has the attributes of a result
        known = {"path": file.name, "result": word, "message": message}
        known |= {"file": file.name, "kind": "error", "word": word}
        names = known.keys() & {each.name for each in fields(verb.result)}
        return verb.rows(file, verb.result(**{name: known[name] for name in names}))[0]
    details = json.dumps({"name": file.name, **failure.fields()})
    return {
        "path": file.name, "result": word, "failed": True, "message": message,
        "code": failure.code, "details": details,
    }  # fmt: skip


def take_no_arguments() -> Mapping[str, Any]:
    """Return the arguments of a verb that has none."""
    return {}


class Verb(NamedTuple):
    """The work on each file of a run, and its report."""

    name: str  # of the SQL procedure, and of its objects of JSON
    result: type[Any]  # class of the result of a file
    # Names of the columns of the report, in their order; their values are attributes of results.
    columns: str
    # Function that opens the keys for any number of files: it takes `Settings` or None, the
    # filesystem of the files or None, and the arguments. The job returns a result, or a list.
    open: Callable[..., Job[Any, Any]]
    # Function that checks and completes arguments; it raises as the function of the library.
    prepare: Callable[..., Mapping[str, Any]] = take_no_arguments
    # Function that checks the settings, the listed files and the arguments, before the work.
    check: Callable[..., object] | None = None
    # Function that is called after the files of a process, with the settings and the arguments.
    end: Callable[..., object] | None = None
    # Function that returns the rows of a file's result, if these are not its attributes.
    describe: Callable[[File, Any], list[Row]] | None = None
    fail: Callable[..., Row] = make_failed_row  # takes the verb, a file, its error and arguments
    types: Mapping[str, Any] = {}  # types of columns that are no attribute
    needs_keys: bool = False  # whether the settings may not be None
    writes: bool = False  # whether no symbolic link below the named folders is followed
    waits: bool = False  # whether requests to a key service take most of the time
    together: bool = False  # whether the job takes all files of a task, and returns their rows
    # Arguments that the SQL procedure takes, and their types; None without a procedure.
    parameters: Mapping[str, type] | None = None

    def rows(self, file: File, result: Any) -> list[Row]:
        """Return the rows of the report for the result of a file."""
        if self.describe is not None:
            return self.describe(file, result)
        results = result if isinstance(result, list) else [result]
        names = self.columns.split()
        return [
            {name: getattr(each, name) for name in names if hasattr(each, name)}
            | {"path": file.name}
            for each in results
        ]


def run_verb(
    verb: Verb, files: Sequence[File], settings: Settings | None, *, jobs: int | None = None,
    fail: Callable[[File, Exception], Any] | None = None, **arguments: Any,
) -> Generator[Any]:  # fmt: skip
    """Yield the result of each file, in order; threads process the files.

    Args:
        settings: References to keys; None without keys.
        fail: Function that returns what stands for the result of a file that failed; by default,
            the row of a report.
    """
    prepared = verb.prepare(**arguments)
    job = verb.open(settings, None, **prepared)
    fail = fail or partial(verb.fail, verb, **prepared)
    yield from run_job(Job(job.process, fail), files, jobs=jobs)
    if verb.end is not None:
        verb.end(settings, **prepared)
