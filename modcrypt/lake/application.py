"""Carry out a plan with the jobs for conversion and key rotation.

Each file appears complete or not at all, and each job looks at a file before it changes it. An
interrupted run therefore leaves finished files and untouched ones, and the next plan has the rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.io.threads import in_threads, usable_cores
from modcrypt.jobs.conversion import Conversion, ConvertedFile
from modcrypt.jobs.engine import THREADS
from modcrypt.jobs.failures import common_code, describe, exit_code
from modcrypt.jobs.key_rotation import RotatedFile, rotate_keys
from modcrypt.jobs.listing import File
from modcrypt.lake.file_policies import DatasetPolicies, read_plain_columns
from modcrypt.lake.lake_files import LakeFiles
from modcrypt.lake.plan import SCHEMA, LakePlan, PlannedChange
from modcrypt.report.text import format_count

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


@dataclass(frozen=True, kw_only=True)
class LakeApplication:
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

    @property
    def changed(self) -> int:
        """Number of files that were changed."""
        return sum(file.result in ("encrypted", "rekeyed", "rotated") for file in self.files)

    @property
    def code(self) -> int:
        """The exit code: 0 if every file is now as declared, or will be after a dry run."""
        codes = {file.code for file in self.files} | {self.plan.refusal_code}
        return common_code(codes - {0})

    def summary(self) -> str:
        """Return the result as one line for people."""
        if self.dry_run or self.plan.error or not (self.files or self.new_versions):
            return self.plan.summary()
        counts = Counter(
            "failed" if file.code and file.result != "refused" else file.result
            for file in self.files
        )
        parts = [f"{counts[result]:,} {result}" for result in _RESULTS if counts[result]]
        if self.new_versions:
            parts.append(f"new versions of {', '.join(self.new_versions)}")
        total = format_count(self.plan.current + len(self.files), "file")
        current = f"{self.plan.current:,} of {total} were as declared"
        return f"{self.plan.dataset}: {', '.join(parts)} ({current})"

    def fields(self) -> list[dict[str, Any]]:
        """Return the result as lines of JSON: one for each file, then the totals."""
        if self.dry_run:
            return self.plan.fields()
        start = {"schema": SCHEMA, "dataset": self.plan.dataset}
        lines: list[dict[str, Any]] = [
            {
                **start, "kind": "file", "file": file.path, "result": file.result,
                "message": file.message,
            }
            for file in self.files
        ]  # fmt: skip
        results = Counter(file.result for file in self.files)
        totals = {
            **start, "kind": "dataset", "current": self.plan.current, "results": dict(results),
            "new_versions": list(self.new_versions), "error": self.plan.error,
        }  # fmt: skip
        return [*lines, totals]


def carry_out(
    plan: LakePlan,
    files: LakeFiles,
    policies: DatasetPolicies,
    *,
    jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[AppliedFile]:
    """Carry out a plan; return the result of each of its files, in order.

    Args:
        plan: The plan.
        files: Files of the dataset and of its source.
        policies: Policies of the files.
        jobs: Number of files processed concurrently; None for the default.
        progress: Function called with the number of planned files after each.
    """
    by_path = {policies.path_of(file.place): file for file in files.files}
    run = _Run(policies, by_path, files.waiting, jobs, progress, len(plan.work))
    work = [file for file in plan.work if file.action in ("encrypt", "rekey")]
    converted = zip(work, run.convert(work), strict=True)
    done = {(file.state.path, file.waits): result for file, result in converted}
    done.update(((file.path, False), file) for file in run.rotate(plan.work))
    for file in plan.refused:
        done[file.state.path, False] = AppliedFile(
            path=file.state.path, result="refused", message=file.why, code=exit_code([file.word])
        )
    return [done[file.state.path, file.waits] for file in plan.files]


@dataclass(frozen=True)
class _Run:
    """The work on the files of one plan."""

    policies: DatasetPolicies
    files: Mapping[str, File]
    waiting: Mapping[str, File]
    jobs: int | None
    progress: Callable[[int], object] | None
    total: int

    def convert(self, planned: Sequence[PlannedChange]) -> Iterator[AppliedFile]:
        """Encrypt plaintext files in place, and re-key files under other policies."""
        threads = self.jobs or usable_cores()
        for done in in_threads(self._convert_file, planned, threads, "modcrypt-apply"):
            self._note_progress()
            yield done

    def _convert_file(self, planned: PlannedChange) -> AppliedFile:
        path = planned.state.path
        try:
            file = (self.waiting if planned.waits else self.files)[path]
            done = self._make_conversion(planned, file.place).run(file)
        except Exception as error:  # the run continues with the other files
            failure = describe(error)
            return AppliedFile(
                path=path, result=failure.word, message=failure.message, code=failure.code
            )
        return _take_result(path, done)

    def _make_conversion(self, planned: PlannedChange, place: Place) -> Conversion:
        policies, path = self.policies, planned.state.path
        source = policies.source if planned.waits else None
        with open_source_at(place) as opened:
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
            encryption=policies.encryption(policy),
        )

    def rotate(self, planned: Sequence[PlannedChange]) -> Iterator[AppliedFile]:
        """Rewrap keys under the newest versions, and move them from previous master keys."""
        groups: defaultdict[Any, list[Place]] = defaultdict(list)
        for file in planned:
            if file.action == "rotate":
                place = self.files[file.state.path].place
                groups[self.policies.group_of(file.state.path)].append(place)
        for places in groups.values():
            yield from self._rotate_group(places)

    def _rotate_group(self, places: list[Place]) -> Iterator[AppliedFile]:
        """Rotate files that the same properties open."""
        policies = self.policies
        for done in rotate_keys(
            places, policies.tools, new_master_keys=policies.dataset.previous.master_keys,
            decryption=policies.opening(places[0]), threads=self.jobs or THREADS,
            progress=lambda file, total: self._note_progress(),
        ):  # fmt: skip
            yield _take_rotation(policies.path_of(Place(places[0].filesystem, done.path)), done)

    def _note_progress(self) -> None:
        if self.progress is not None:
            self.progress(self.total)


def _take_result(path: str, done: ConvertedFile) -> AppliedFile:
    return AppliedFile(path=path, result=done.result, message=done.message, code=done.code)


def _take_rotation(path: str, done: RotatedFile) -> AppliedFile:
    code = exit_code([done.result]) if done.failed else 0
    return AppliedFile(path=path, result=done.result, message=done.message, code=code)
