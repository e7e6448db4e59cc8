"""Carry out a plan with the jobs for conversion and key rotation.

Each file appears complete or not at all, and each job looks at a file before it changes it. An
interrupted run therefore leaves finished files and untouched ones, and the next plan has the rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.io.threads import in_threads, usable_cores
from modcrypt.jobs.conversion import Conversion
from modcrypt.jobs.engine import THREADS
from modcrypt.jobs.failures import common_code, describe, exit_code
from modcrypt.jobs.key_rotation import RotatedFile, rotate_keys
from modcrypt.jobs.listing import File, Folder
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.file_columns import read_plain_columns
from modcrypt.lake.file_policies import DatasetPolicies
from modcrypt.lake.key_ages import KeyAges
from modcrypt.lake.lake_files import LakeFile
from modcrypt.lake.plan import SCHEMA, LakePlan, PlannedChange
from modcrypt.lake.spool import Spool, take_batches
from modcrypt.report.fact_sheet import FactSheet
from modcrypt.report.text import format_count
from modcrypt.runtime.fork_safety import cached_property

BATCH = 10_000
"""Number of files whose keys are rotated together, with one request for each KEK."""

_KEY_CODES = (3, 4)
"""Exit codes of keys that were refused or could not be requested."""

_RESULTS = ("encrypted", "rekeyed", "rotated", "current", "failed", "refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedFile:
    """The result for one file.

    Attributes:
        path: Path inside the dataset.
        result: "encrypted", "rekeyed", "rotated"; "current", nothing was left to do; "refused"; or
            an error code.
        message: Message of the error, or why the file was refused.
        code: Exit code for the failure; 0 without one.
    """

    path: str
    result: str
    message: str = ""
    code: int = 0


@dataclass(frozen=True, kw_only=True, repr=False)
class LakeApplication(FactSheet):
    """The result of `apply` for one dataset.

    Attributes:
        plan: What was planned.
        files: Result of each planned file.
        new_versions: Master keys to which a version was added.
        dry_run: Whether nothing was changed.
    """

    plan: LakePlan
    files: Sequence[AppliedFile] = ()
    new_versions: Sequence[str] = ()
    dry_run: bool = False

    @cached_property
    def totals(self) -> ApplicationTotals:
        """Counts of the results."""
        totals = ApplicationTotals()
        for file in self.files:
            totals.add(file)
        return totals

    @property
    def changed(self) -> int:
        """Number of files that were changed."""
        results = self.totals.results
        return results["encrypted"] + results["rekeyed"] + results["rotated"]

    @property
    def code(self) -> int:
        """The exit code: 0 if all is now as declared, or will be, and nothing leaks beside it."""
        return common_code(self.totals.codes | {self.plan.refusal_code} - {0})

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for people: the dataset, and the summary."""
        return [
            ("Dataset", self.plan.dataset),
            ("Result", self.summary().removeprefix(f"{self.plan.dataset}: ")),
        ]

    def summary(self) -> str:
        """Return the result as one line for people."""
        if self.dry_run or self.plan.error or not (self.files or self.new_versions):
            return self.plan.summary()
        results, failed = self.totals.results, self.totals.failed
        counts = {result: results[result] for result in _RESULTS} | {"failed": failed}
        parts = [f"{counts[result]:,} {result}" for result in _RESULTS if counts[result]]
        if self.new_versions:
            parts.append(f"new versions of {', '.join(self.new_versions)}")
        total = format_count(self.plan.current + len(self.files), "file")
        current = f"{self.plan.current:,} of {total} were as declared"
        if self.plan.leaks:
            parts.append(f"{format_count(len(self.plan.leaks), 'leak')} beside the files")
        return f"{self.plan.dataset}: {', '.join(parts)} ({current})"

    def fields(self) -> Iterator[dict[str, Any]]:
        """Yield the result as lines of JSON: one for each file, then the totals."""
        if self.dry_run:
            yield from self.plan.fields()
            return
        start = {"schema": SCHEMA, "dataset": self.plan.dataset}
        for file in self.files:
            yield {
                **start, "kind": "file", "file": file.path, "result": file.result,
                "message": file.message,
            }  # fmt: skip
        yield {
            **start, "kind": "dataset", "current": self.plan.current,
            "results": dict(self.totals.results), "new_versions": list(self.new_versions),
            "error": self.plan.error, "leaks": [leak.fields() for leak in self.plan.leaks],
        }  # fmt: skip


@dataclass(slots=True)
class ApplicationTotals:
    """Counts of results."""

    results: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    codes: set[int] = field(default_factory=set)

    def add(self, file: AppliedFile) -> None:
        """Count a file."""
        self.results[file.result] += 1
        if file.code:
            self.codes.add(file.code)
            self.failed += file.result != "refused"


def carry_out_plan(
    plan: LakePlan,
    policies: DatasetPolicies,
    *,
    jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Spool[AppliedFile]:
    """Carry out a plan; return the result of each of its files, in order.

    Args:
        plan: The plan.
        policies: Policies of the files.
        jobs: Number of files processed concurrently; None for the default.
        progress: Function called with the number of planned files after each.
    """
    results: Spool[AppliedFile] = Spool()
    for batch in take_batches(plan.files, BATCH):
        total = plan.changes
        results.extend(apply_batch(policies, batch, jobs=jobs, progress=progress, total=total))
    return results


def apply_batch(
    policies: DatasetPolicies, planned: Sequence[PlannedChange], *, jobs: int | None = None,
    progress: Callable[[int], object] | None = None, total: int = 0,
) -> Iterator[AppliedFile]:  # fmt: skip
    """Carry out planned changes; yield the result of each file, in order.

    Args:
        policies: Policies of the files.
        planned: Changes; files whose keys are rotated share requests to the key service.
        jobs: Number of files processed concurrently; None for the default.
        progress: Function called with `total` after each file.
        total: Number of all planned files.
    """
    yield from _Run(policies, jobs, progress, total).apply_batch(planned)


@dataclass(frozen=True)
class _Run:
    """The work on the files of one plan."""

    policies: DatasetPolicies
    jobs: int | None
    progress: Callable[[int], object] | None
    total: int

    def apply_batch(self, planned: Sequence[PlannedChange]) -> Iterator[AppliedFile]:
        """Yield the result of each file, in order."""
        work = [file for file in planned if file.action in ("encrypt", "rekey")]
        converted = iter(self._convert(work))
        rotated = {file.path: file for file in self._rotate(planned)}
        for file in planned:
            if file.action == "refuse":
                yield refuse_file(file)
            elif file.action == "none":
                yield AppliedFile(path=file.state.path, result="current")
            elif file.action == "rotate":
                yield rotated[file.state.path]
            else:
                yield next(converted)

    def _convert(self, planned: Sequence[PlannedChange]) -> list[AppliedFile]:
        """Encrypt plaintext files in place, and re-key files under other policies."""
        results = []
        threads = self.jobs or usable_cores()
        for done in in_threads(self._convert_file, planned, threads, "modcrypt-apply"):
            self._note_progress()
            results.append(done)
        return results

    def _convert_file(self, planned: PlannedChange) -> AppliedFile:
        return convert_file(self.policies, planned)

    def _rotate(self, planned: Sequence[PlannedChange]) -> Iterator[AppliedFile]:
        """Rewrap keys under the newest versions, and move them from previous master keys."""
        groups: defaultdict[Any, list[PlannedChange]] = defaultdict(list)
        for file in planned:
            if file.action == "rotate":
                groups[self.policies.group_of(file.state.path)].append(file)
        for files in groups.values():
            yield from self._rotate_group(files)

    def _rotate_group(self, planned: Sequence[PlannedChange]) -> Iterator[AppliedFile]:
        """Rotate files that the same properties open."""
        policies = self.policies
        policies.check_signing_key()
        places = [policies.place_of(file.state.path) for file in planned]
        for done in rotate_keys(
            places, policies.tools, new_master_keys=policies.dataset.previous.master_keys,
            decryption=policies.opening(places[0]), jobs=self.jobs or THREADS,
            progress=lambda file, total: self._note_progress(), signing_key=policies.signing_key,
        ):  # fmt: skip
            yield _take_rotation(policies.path_of(Place(places[0].filesystem, done.path)), done)

    def _note_progress(self) -> None:
        if self.progress is not None:
            self.progress(self.total)


def convert_file(policies: DatasetPolicies, planned: PlannedChange) -> AppliedFile:
    """Encrypt a plaintext file, or re-key one under another policy; return the result."""
    result = _try_conversion(policies, planned)
    if result.code and _is_done_meanwhile(policies, planned, result):
        return AppliedFile(path=result.path, result="current")
    return result


def _try_conversion(policies: DatasetPolicies, planned: PlannedChange) -> AppliedFile:
    path = planned.state.path
    try:
        source = policies.source if planned.waits else None
        folder = policies.root if source is None else source
        place = policies.place_of(path) if source is None else source.place.below(path)
        conversion = _make_conversion(policies, planned, place, source)
        name = folder.file(path) if policies.is_folder else folder.name
        done = conversion.run(File(name, planned.state.size, place))
    except Exception as error:  # the run continues with the other files
        failure = describe(error)
        return AppliedFile(
            path=path, result=failure.word, message=failure.message, code=failure.code
        )
    return AppliedFile(path=path, result=done.result, message=done.message, code=done.code)


def _is_done_meanwhile(
    policies: DatasetPolicies, planned: PlannedChange, result: AppliedFile
) -> bool:
    """Return whether a file is as declared by now, because another run has changed it."""
    if planned.waits or result.code in _KEY_CODES:
        return False
    examination = FooterExamination(policies, KeyAges(policies.client))
    file = LakeFile(planned.state.path, planned.state.size, "")
    return examination.run(file).state == "declared"


def _make_conversion(
    policies: DatasetPolicies, planned: PlannedChange, place: Place, source: Folder | None
) -> Conversion:
    path = planned.state.path
    with open_source_at(place, stamped=False) as opened:
        if planned.action == "encrypt":
            decryption, columns = None, read_plain_columns(opened)
        else:
            decryption = policies.opening(place, planned.state.previous_prefix)
            columns = policies.open_columns(opened, decryption)
    policy = policies.policy(path, columns)
    return Conversion(
        verb="encrypt" if decryption is None else "rekey",
        source=source or policies.root,
        destination=None if source is None else policies.root,
        decryption=decryption,
        encryption=policies.writing(policy),
    )


def refuse_file(planned: PlannedChange) -> AppliedFile:
    """Return the result of a file that the plan refuses."""
    path, code = planned.state.path, exit_code([planned.word])
    return AppliedFile(path=path, result="refused", message=planned.why, code=code)


def _take_rotation(path: str, done: RotatedFile) -> AppliedFile:
    code = exit_code([done.result]) if done.failed else 0
    return AppliedFile(path=path, result=done.result, message=done.message, code=code)
