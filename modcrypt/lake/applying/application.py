"""Carry out a plan with the jobs for conversion and key rotation.

Each file appears complete or not at all, and each job looks at a file before it changes it. An
interrupted run therefore leaves finished files and untouched ones, and the next plan has the rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from modcrypt.errors import list_names
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.io.threads import in_threads, usable_cores
from modcrypt.jobs.conversion import Conversion
from modcrypt.jobs.engine import THREADS
from modcrypt.jobs.failures import common_code, describe, exit_code
from modcrypt.jobs.key_rotation import rotate_keys
from modcrypt.jobs.listing import File, Folder
from modcrypt.kms.proof import WrapProof
from modcrypt.lake.applying.plan import SCHEMA, LakePlan, PlannedChange
from modcrypt.lake.evidence.events import DatasetResult
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.files.file_policies import DatasetPolicies, read_columns, read_plain_columns
from modcrypt.lake.files.lake_files import LakeFile
from modcrypt.lake.key_ages import KeyAges
from modcrypt.lake.spool import Spool, take_batches
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.report.fact_sheet import DatasetSummary
from modcrypt.report.text import format_count
from modcrypt.runtime.fork_safety import cached_property

BATCH = 10_000  # number of files whose keys are rotated together, with one request for each KEK
_KEY_CODES = (3, 4)  # exit codes of keys that were refused or could not be requested

_DONE = {"encrypt": "encrypted", "rekey": "rekeyed", "renew": "renewed"}
"""The result of a file that was converted, by the action."""

_RESULTS = (
    "encrypted", "rekeyed", "rotated", "renewed", "removed", "current", "failed", "refused",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedFile:
    """The result for one file.

    Attributes:
        path: Path inside the dataset.
        result: "encrypted", "rekeyed", "rotated"; "renewed", under new data keys; "removed", an
            erased file was deleted; "current", nothing was left to do; "refused"; or an error code.
        message: Message of the error, or why the file was refused or removed.
        code: Exit code for the failure; 0 without one.
    """

    path: str
    result: str
    message: str = ""
    code: int = 0

    @classmethod
    def of_failure(cls, path: str, error: Exception) -> Self:
        """Return the result of a file that failed."""
        failure = describe(error)
        return cls(path=path, result=failure.word, message=failure.message, code=failure.code)


@dataclass(frozen=True, kw_only=True, repr=False)
class LakeApplication(DatasetSummary):
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
        return ApplicationTotals(self.files)

    @property
    def changed(self) -> int:
        """Number of files that were changed."""
        results = self.totals.results
        return sum(results[result] for result in ("encrypted", "rekeyed", "rotated", "renewed"))

    @property
    def code(self) -> int:
        """The exit code: 0 if all is now as declared, or will be, and nothing leaks beside it."""
        return common_code(self.totals.codes | {self.plan.refusal_code} - {0})

    @property
    def outcome(self) -> DatasetResult:
        """The result for the record of evidence."""
        results = self.totals.results
        counts = {result: results[result] for result in _RESULTS} | {
            "current": self.plan.current + results["current"], "failed": self.totals.failed,
            "erased": self.plan.erased, "leaks": len(self.plan.leaks),
        }  # fmt: skip
        return DatasetResult.of(
            self.plan.dataset, self.code, self.plan.total, counts,
            {word: count for word, count in results.items() if word not in counts},
        )  # fmt: skip

    def summary(self) -> str:
        """Return the result as one line for people."""
        if self.dry_run or self.plan.error or not (self.files or self.new_versions):
            return self.plan.summary()
        results, failed = self.totals.results, self.totals.failed
        counts = {result: results[result] for result in _RESULTS} | {"failed": failed}
        parts = [f"{counts[result]:,} {result}" for result in _RESULTS if counts[result]]
        if self.new_versions:
            parts.append(f"new versions of {', '.join(self.new_versions)}")
        total = format_count(self.plan.total, "file")
        current = f"{self.plan.current:,} of {total} were as declared"
        if self.plan.leaks:
            parts.append(f"{format_count(len(self.plan.leaks), 'leak')} beside the files")
        return f"{self.plan.dataset}: {', '.join(parts)} ({current})"

    def fields(self) -> Iterator[dict[str, Any]]:
        """Yield the result as lines of JSON: one for each file, then the totals."""
        if self.dry_run:
            yield from self.plan.fields()
            return
        start = {"schema": SCHEMA, "dataset": self.plan.dataset, "dry_run": False}
        for file in self.files:
            yield {
                **start, "kind": "file", "file": file.path, "result": file.result,
                "message": file.message,
            }  # fmt: skip
        yield {
            **start, "kind": "dataset", "current": self.plan.current,
            "erased": self.plan.erased,
            "results": dict(self.totals.results), "new_versions": list(self.new_versions),
            "error": self.plan.error, "leaks": [leak.fields() for leak in self.plan.leaks],
        }  # fmt: skip


class ApplicationTotals:
    """Counts of results, made in one pass over the files."""

    def __init__(self, files: Iterable[AppliedFile]) -> None:
        self.results: Counter[str] = Counter()
        self.failed = 0
        self.codes: set[int] = set()
        for file in files:
            self.results[file.result] += 1
            if file.code:
                self.codes.add(file.code)
                self.failed += file.result != "refused"


def carry_out_plan(
    plan: LakePlan, policies: DatasetPolicies, *, jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Spool[AppliedFile]:  # fmt: skip
    """Carry out a plan; return the result of each of its files, in order.

    `progress` is called with the number of planned files after each.
    """
    note = _note_nothing if progress is None else partial(progress, plan.changes)
    run = PlanRun(policies, jobs, note)
    batches = take_batches(plan.files, BATCH)
    return Spool(done for batch in batches for done in run.apply_batch(batch))


def _note_nothing() -> None:
    pass


@dataclass(frozen=True)
class PlanRun:
    """The work on the files of a plan."""

    policies: DatasetPolicies
    jobs: int | None = None
    note_progress: Callable[[], object] = _note_nothing  # function called after each file
    # Proofs of the new wraps; files share KEKs, which are proved once.
    proof: WrapProof = field(default_factory=WrapProof)

    def apply_batch(self, planned: Sequence[PlannedChange]) -> Iterator[AppliedFile]:
        """Yield the result of each file, in order; rotated files share requests for keys."""
        work = [file for file in planned if file.action in ("encrypt", "rekey", "renew")]
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
        convert = partial(_convert_file, self)
        for done in in_threads(convert, planned, self.jobs or usable_cores(), "modcrypt-apply"):
            self.note_progress()
            results.append(done)
        return results

    @cached_property
    def examination(self) -> FooterExamination:
        """The examination of files that change, which lists master keys once, if at all."""
        return FooterExamination(self.policies, KeyAges(self.policies.client))

    def _rotate(self, planned: Sequence[PlannedChange]) -> Iterator[AppliedFile]:
        """Rewrap keys under the newest versions, and move them from previous master keys."""
        groups: defaultdict[Any, list[Place]] = defaultdict(list)
        for file in planned:
            if file.action == "rotate":
                path = file.state.path
                groups[self.policies.group_of(path)].append(self.policies.place_of(path))
        for places in groups.values():
            yield from self._rotate_group(places)

    def _rotate_group(self, places: Sequence[Place]) -> Iterator[AppliedFile]:
        """Rotate files that the same properties open."""
        policies = self.policies
        policies.check_signing_key()
        paths = {place.listed_name: policies.path_of(place) for place in places}
        for done in rotate_keys(
            places, policies.tools, new_master_keys=policies.dataset.previous.master_keys,
            decryption=policies.opening(places[0]), jobs=self.jobs or THREADS,
            progress=lambda file, total: self.note_progress(), signing_key=policies.signing_key,
        ):  # fmt: skip
            code = exit_code([done.result]) if done.failed else 0
            path = paths[done.path]
            yield AppliedFile(path=path, result=done.result, message=done.message, code=code)


def _convert_file(run: PlanRun, planned: PlannedChange) -> AppliedFile:
    """Encrypt or re-key a file; if that fails, look whether another run has done it meanwhile."""
    result = _try_conversion(run, planned)
    renews = planned.action == "renew"  # which no look at the file can find done
    if result.code and result.code not in _KEY_CODES and not planned.waits and not renews:
        state = run.examination.run(LakeFile(planned.state.path, planned.state.size, ""))
        if state.state == "declared":
            return AppliedFile(path=result.path, result="current")
    return result


def _try_conversion(run: PlanRun, planned: PlannedChange) -> AppliedFile:
    path, policies = planned.state.path, run.policies
    try:
        source = policies.source if planned.waits else None
        folder = policies.root if source is None else source
        place = policies.place_of(path) if source is None else source.place.below(path)
        conversion = _make_conversion(run, planned, place, source)
        name = folder.file(path) if policies.is_folder else folder.name
        done = conversion.run(File(name, planned.state.size, place))
    except Exception as error:  # the run continues with the other files
        return AppliedFile.of_failure(path, error)
    result = done.result if done.code or done.result == "current" else _DONE[planned.action]
    message = done.message
    if conversion.change.null and not done.code:
        names = list_names(conversion.change.null)
        message = f"what was left of erased columns is removed: {names}; {message}".rstrip("; ")
    return AppliedFile(path=path, result=result, message=message, code=done.code)


def _make_conversion(
    run: PlanRun, planned: PlannedChange, place: Place, source: Folder | None
) -> Conversion:
    """Return the conversion of a file."""
    # Erased columns become columns of nulls whose keys are thrown away. Their pages cannot be
    # encrypted again, and if they stayed, so would the access of those who kept their data keys.
    path, policies, erased = planned.state.path, run.policies, tuple[str, ...]()
    with open_source_at(place, stamped=False) as opened:
        if planned.action == "encrypt":
            decryption, columns = None, read_plain_columns(opened)
        else:
            file, decryption, _ = run.examination.open_footer(place, opened)
            columns = read_columns(file.footer, file.leaves)
            erased = tuple(run.examination.find_erased(place, path, file))
    encryption = policies.writing(policies.policy(path, columns))
    return Conversion(
        verb="encrypt" if decryption is None else "mask" if erased else "rekey",
        source=source or policies.root,
        destination=None if source is None else policies.root,
        decryption=decryption,
        encryption=replace(encryption, erased=erased),
        change=Change(null=erased),
        renew=planned.action == "renew" or bool(erased),
        proof=run.proof,
    )


def refuse_file(planned: PlannedChange) -> AppliedFile:
    """Return the result of a file that the plan refuses."""
    path, code = planned.state.path, exit_code([planned.word])
    return AppliedFile(path=path, result="refused", message=planned.why, code=code)
