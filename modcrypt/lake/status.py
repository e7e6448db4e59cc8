"""The status of datasets: the state of each file, by footers and a cache.

The cache spares footers, not key services: one file of each KEK is examined again, because its
master key may have been disabled, enabled or rotated since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from modcrypt.errors import MAX_NAMES, PlaintextError
from modcrypt.io.threads import in_threads
from modcrypt.jobs.engine import THREADS
from modcrypt.jobs.leaks.scan import ValueLeak
from modcrypt.jobs.set_findings import compare_with_seal
from modcrypt.lake.compromise.leak_judgement import LeakJudge
from modcrypt.lake.compromise.leak_reach import LeakReach, ReachSearch, list_material
from modcrypt.lake.dataset_leaks import find_dataset_leaks
from modcrypt.lake.declarations.declaration import AnyDataset
from modcrypt.lake.erased_files import judge_state
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.lake.files.file_states import EXPOSED, STATES, FileState, KeyUse, KnownWraps
from modcrypt.lake.files.lake_files import LakeFile, LakeFiles
from modcrypt.lake.spool import Memo, Spool, take_batches
from modcrypt.lake.state_cache import StateCache
from modcrypt.parquet.format.findings import FILE
from modcrypt.report.fact_sheet import DatasetSummary
from modcrypt.report.text import format_count
from modcrypt.runtime.fork_safety import cached_property

SCHEMA = "modcrypt.lake.status/1"  # the name and version of the lines of JSON

_CACHED = frozenset({"declared", "plaintext", "other-policy", "old-keys"})
"""States that hold until the file changes, as long as its keys can be used."""

_REPLACED: dict[str, Any] = {
    "reason": PlaintextError.word,
    "message": "it was encrypted when it was last examined, and is now plaintext",
}

_CHANGED: dict[str, Any] = {
    "reason": FILE,
    "message": "it has changed in the source since it was encrypted; remove the encrypted file, "
    "and apply encrypts it again",
}

BATCH = 1000  # number of files that are looked up, examined and cached together


@dataclass(frozen=True, kw_only=True, repr=False)
class DatasetStatus(DatasetSummary):
    """The status of a dataset.

    Attributes:
        dataset: Declaration of the dataset.
        files: State of each file, in the order of their paths.
        strays: Paths of visible files in its folder that `include` does not match.
        waiting: Plaintext files in the source folder that `apply` will encrypt, or refuse for their
            reason.
        due_keys: Master keys that need a new version by the rules for rotation.
        worn_keys: Keys whose known number of wraps nears the limit.
        seal_faults: Faults of the seal that the declaration requires, and files that it misses.
        leaks: Values of encrypted columns beside the files, as `find_leaks` finds them.
        error: Why its files cannot be listed; empty if they can.
        code: Exit code for the error.
        find_impact: Function from a `KeyChoice` to the `DatasetImpact` of a table; None for files.
        snapshots: Ids of the snapshots of a table, by the path of their manifest list.
        absent: Paths of files that are not there, while their key material is.
        reach: What else keeps data keys that compromised keys open.
    """

    dataset: AnyDataset
    files: Sequence[FileState] = ()
    strays: Sequence[str] = ()
    waiting: Sequence[FileState] = ()
    due_keys: Sequence[str] = ()
    worn_keys: Sequence[KnownWraps] = ()
    seal_faults: Sequence[str] = ()
    leaks: Sequence[ValueLeak] = ()
    error: str = ""
    code: int = 0
    find_impact: Callable[..., Any] | None = None
    snapshots: Mapping[str, Sequence[int]] = field(default_factory=dict)
    absent: Sequence[str] = ()
    reach: LeakReach = field(default_factory=LeakReach)

    _label = "Status"

    @cached_property
    def totals(self) -> StateTotals:
        """Counts of the files by state."""
        return StateTotals(self.files)

    @property
    def counts(self) -> dict[str, int]:
        """Number of files in each state."""
        counts = self.totals.states
        return {state: counts[state] for state in STATES if counts[state]}

    @property
    def reasons(self) -> dict[str, int]:
        """Number of unreadable files by reason."""
        return dict(self.totals.reasons)

    @property
    def unverified(self) -> int:
        """Number of encrypted files that `verify` has not found correct since they changed."""
        return self.totals.unverified

    @property
    def is_declared(self) -> bool:
        """True if every file is as declared, no key is due, and nothing is or leaks beside them."""
        beside = self.leaks or self.seal_faults or (self.dataset.strict and self.strays)
        worn = [each for each in self.worn_keys if each.kek_id is None]
        complete = not (self.error or self.due_keys or worn or self.waiting or beside)
        states = self.totals.states
        return complete and states["declared"] + states["erased"] == len(self.files)

    def fields(self) -> dict[str, Any]:
        """Return the counts as values for JSON."""
        return {
            "schema": SCHEMA, "kind": "dataset", "dataset": self.dataset.name,
            "location": self.dataset.location, "files": len(self.files), "states": self.counts,
            "unreadable": self.reasons, "not_verified": self.unverified,
            "bytes": self.totals.bytes, "strays": list(self.strays),
            "waiting": [file.path for file in self.waiting],
            "due_keys": list(self.due_keys), "error": self.error,
            "worn_keys": [{"key": each.name, "wraps": each.count} for each in self.worn_keys],
            "leaks": [leak.fields() for leak in self.leaks], "reach": self.reach.fields(),
            "seal_faults": list(self.seal_faults),
        }  # fmt: skip

    def file_fields(self) -> Iterable[dict[str, Any]]:
        """Yield each file as values for JSON."""
        for file in self.files:
            start = {"schema": SCHEMA, "kind": "file", "dataset": self.dataset.name}
            yield {**start, **file.fields()}

    def summary(self) -> str:
        """Return the counts as one line for people."""
        if self.error:
            return f"{self.dataset.name}: {self.error}"
        parts = [f"{count:,} {STATES[state]}" for state, count in self.counts.items()]  # type: ignore[index]
        if self.reasons:
            parts[-1] += f" ({', '.join(f'{n:,} {reason}' for reason, n in self.reasons.items())})"
        text = format_count(len(self.files), "file")
        text += f": {', '.join(parts)}" if parts else ""
        refused = sum(1 for file in self.waiting if file.reason)
        of_them = f", of which apply refuses {refused:,}" if refused else ""
        for count, what in (
            (len(self.waiting), f"waiting in the source{of_them}"),
            (self.unverified, "not verified since last change"),
        ):
            text += f"; {count:,} {what}" if count else ""
        if self.strays:
            text += f"; {format_count(len(self.strays), 'undeclared file')}"
        if self.leaks:
            text += f"; {format_count(len(self.leaks), 'leak')} beside the files"
        text += "".join(f"; {fault}" for fault in self.seal_faults)
        text += "".join(f"; {line}" for line in self.reach.describe())
        if self.due_keys:
            text += f"; master keys due for a new version: {', '.join(self.due_keys)}"
        text += "".join(f"; {each.describe()}" for each in self.worn_keys)
        return f"{self.dataset.name}: {text}"


class StateTotals:
    """Counts of files, made in one pass: by state, of unreadable ones by reason, and unverified."""

    def __init__(self, files: Iterable[FileState]) -> None:
        self.states: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.unverified = self.bytes = 0
        for file in files:
            self.states[file.state] += 1
            self.bytes += file.size
            if file.state == "unreadable":
                self.reasons[file.reason] += 1
            if not file.verified and file.state not in ("plaintext", "erased"):
                self.unverified += 1


def find_status(
    files: LakeFiles, examination: FooterExamination, cache: StateCache, *,
    judge: LeakJudge | None = None, jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> DatasetStatus:  # fmt: skip
    """Return the status of a dataset; files are listed, examined and cached in batches.

    Args:
        judge: Judge of what compromised keys open; None if there are none.
        progress: Function called after each file with the number of files listed so far.

    Raises:
        OSError, ValueError: The files cannot be listed.
    """
    dataset = examination.policies.dataset
    is_local = examination.policies.root.place.filesystem is None
    jobs = jobs or (1 if is_local else THREADS)  # threads only help while a store is waited for
    run = _StatusRun(examination, cache, jobs, progress, judge)
    states: Spool[FileState] = Spool()
    for batch in take_batches(files, BATCH):
        states.extend(run.examine_batch(batch))
    waiting: Spool[FileState] = Spool()
    for listed in take_batches(files.list_waiting(), BATCH):
        waiting.extend(run.examine_waiting(listed))
    return DatasetStatus(
        dataset=dataset, files=states, strays=files.strays, waiting=waiting,
        absent=files.absent, reach=run.find_reach(files.absent),
        due_keys=examination.ages.find_due(dataset, run.master_key_ids),
        worn_keys=examination.ages.find_worn(
            cache.count_wraps(), run.master_key_ids.__contains__
        ),
        leaks=find_dataset_leaks(examination.policies, files.is_claimed),
        seal_faults=_find_seal_faults(
            examination.policies, chain((file.path for file in states), files.strays, files.claimed)
        ),
    )  # fmt: skip


def _find_seal_faults(policies: DatasetPolicies, paths: Iterable[str]) -> list[str]:
    """Return the faults of a required seal, without hashing files, as `verify` does."""
    if policies.required_seal is None:
        return []
    root = policies.root.place
    found = compare_with_seal(policies.required_seal, root, set(paths), MAX_NAMES)
    return [finding.message for finding in found]


class _StatusRun:
    """The examination of the files that the cache does not know, batch by batch."""

    def __init__(
        self, examination: FooterExamination, cache: StateCache, jobs: int,
        progress: Callable[[int], object] | None, judge: LeakJudge | None,
    ) -> None:  # fmt: skip
        self._examination, self._cache, self._jobs, self._judge = examination, cache, jobs, judge
        self._progress, self._listed = progress, 0
        self._name = examination.policies.dataset.name
        self._erasures = examination.policies.dataset.erasures
        self._rechecked: Memo[bool] = Memo()  # whether the state is still the cached one
        self.master_key_ids: set[str] = set()  # ids of all master keys found so far
        self._noted: tuple[KeyUse, ...] = ()
        self._reach = None if judge is None else ReachSearch(judge)

    def examine_batch(self, files: Sequence[LakeFile]) -> Iterator[FileState]:
        """Yield the state of each file, in order."""
        self._listed += len(files)
        known = self._cache.load_states(self._name, files)
        correct = self._cache.load_correct(self._name, files)
        found: dict[str, FileState] = {}
        fresh: list[LakeFile] = []
        for file in files:
            state = known.get(file.path)
            if state is not None and self._is_still_true(file, state):
                found[file.path] = state
                self._note_progress()
            else:
                fresh.append(file)
        found.update((state.path, state) for state in self._examine(fresh))
        for file in files:
            state = found[file.path]
            if self._judge is not None and self._reach is not None:
                state = self._judge.judge(state, file.modified)
                self._reach.add(state, is_exposed=state.state in EXPOSED)
            state = replace(state, verified=True) if file.path in correct else state
            yield judge_state(state, self._erasures)

    def examine_waiting(self, listed: Sequence[tuple[LakeFile, bool]]) -> Iterator[FileState]:
        """Yield the state of each file in the source, with whether it has changed, in order."""
        name = f"{self._name}/source"  # no dataset's
        stamps = {file.path: file.stamp for file, _ in listed}
        known = self._cache.load_states(name, [file for file, _ in listed])
        fresh = [file for file, _ in listed if file.path not in known]
        found = list(self._map(self._examination.run_waiting, fresh))
        kept = [(stamps[state.path], state) for state in found if not state.reason]
        self._cache.save_states(name, kept)
        known |= {state.path: state for state in found}
        for file, changed in listed:
            state = known[file.path]
            yield replace(state, **_CHANGED) if changed and not state.reason else state

    def _map(
        self, run: Callable[[LakeFile], FileState], files: Sequence[LakeFile]
    ) -> Iterable[FileState]:
        if self._jobs == 1:
            return map(run, files)
        return in_threads(run, files, self._jobs, "modcrypt-status")

    def find_reach(self, absent: Iterable[str]) -> LeakReach:
        """Return what else compromised keys open, given files of which key material is left."""
        if self._reach is None:
            return LeakReach()
        return self._reach.finish(list_material(self._examination.policies, absent))

    def _is_still_true(self, file: LakeFile, state: FileState) -> bool:
        """Return whether a cached state holds, by examining one file of those with its keys."""
        if not state.keys:
            return True
        self._note_keys(state)
        return self._rechecked.get(
            (state.state, state.keys), lambda: self._examination.run(file) == state
        )

    def _examine(self, files: Sequence[LakeFile]) -> list[FileState]:
        stamps = {file.path: file.stamp for file in files}
        encrypted = self._cache.find_encrypted(self._name, list(stamps))
        states = []
        for state in self._map(self._examination.run, files):
            replaced = state.state == "plaintext" and state.path in encrypted
            states.append(replace(state, **_REPLACED) if replaced else state)
            self._note_keys(state)
            self._note_progress()
        kept = [
            (stamps[state.path], state) for state in states
            if state.state in _CACHED and not state.reason
        ]  # fmt: skip
        self._cache.save_states(self._name, kept)
        return states

    def _note_keys(self, state: FileState) -> None:
        if state.keys is self._noted:  # most files share them
            return
        self._noted = state.keys
        self.master_key_ids.update(key.master_key_id for key in state.keys if key.master_key_id)

    def _note_progress(self) -> None:
        if self._progress is not None:
            self._progress(self._listed)
