"""The status of datasets: the state of each file, by footers and a cache.

The cache spares footers, not key services: one file of each KEK is examined again, because its
master key may have been disabled, enabled or rotated since.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from modcrypt.errors import PlaintextError
from modcrypt.io.threads import in_threads
from modcrypt.jobs.engine import THREADS
from modcrypt.jobs.listing import File
from modcrypt.lake.declarations.declaration import DatasetDeclaration
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.file_states import STATES, FileState
from modcrypt.lake.lake_files import LakeFiles
from modcrypt.lake.state_cache import StateCache, stamp_of
from modcrypt.report.text import format_count

SCHEMA = "modcrypt.lake.status/1"
"""The name and version of the lines of JSON."""

_CACHED = frozenset({"declared", "plaintext", "other-policy", "old-keys"})
"""States that hold until the file changes, as long as its keys can be used."""

_REPLACED: dict[str, Any] = {
    "reason": PlaintextError.word,
    "message": "it was encrypted when it was last examined, and is now plaintext",
}

Group: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
    """The status of a dataset.

    Attributes:
        dataset: Declaration of the dataset.
        files: State of each file, in the order of their paths.
        strays: Paths of visible files in its folder that `include` does not match.
        waiting: Plaintext files in the source folder that `apply` will encrypt.
        due_keys: Master keys that need a new version by the rules for rotation.
        error: Why its files cannot be listed; empty if they can.
        code: Exit code for the error.
    """

    dataset: DatasetDeclaration
    files: Sequence[FileState] = ()
    strays: Sequence[str] = ()
    waiting: Sequence[FileState] = ()
    due_keys: Sequence[str] = ()
    error: str = ""
    code: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Number of files in each state."""
        counts = Counter(file.state for file in self.files)
        return {state: counts[state] for state in STATES if counts[state]}

    @property
    def reasons(self) -> dict[str, int]:
        """Number of unreadable files by reason."""
        return dict(Counter(file.reason for file in self.files if file.state == "unreadable"))

    @property
    def unverified(self) -> int:
        """Number of encrypted files that `verify` has not found correct since they changed."""
        return sum(file.state != "plaintext" and not file.verified for file in self.files)

    @property
    def is_declared(self) -> bool:
        """Whether every file is as declared, and no master key needs a new version."""
        return not (self.error or self.due_keys or self.waiting) and not any(
            file.state != "declared" for file in self.files
        )

    def fields(self) -> dict[str, Any]:
        """Return the counts as values for JSON."""
        return {
            "schema": SCHEMA, "kind": "dataset", "dataset": self.dataset.name,
            "location": self.dataset.location, "files": len(self.files), "states": self.counts,
            "unreadable": self.reasons, "not_verified": self.unverified,
            "bytes": sum(file.size for file in self.files), "strays": list(self.strays),
            "waiting": [file.path for file in self.waiting],
            "due_keys": list(self.due_keys), "error": self.error,
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
        for count, what in (
            (len(self.waiting), "waiting in the source"),
            (self.unverified, "not verified since"),
            (len(self.strays), "stray"),
        ):
            text += f"; {count:,} {what}" if count else ""
        if self.due_keys:
            text += f"; master keys due for a new version: {', '.join(self.due_keys)}"
        return f"{self.dataset.name}: {text}"


def find_status(
    files: LakeFiles,
    examination: FooterExamination,
    cache: StateCache,
    *,
    jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> DatasetStatus:
    """Return the status of a dataset whose files are listed.

    Args:
        files: Files of the dataset.
        examination: Examination that opens footers.
        cache: Cache of earlier states.
        jobs: Number of files examined concurrently; None for the default.
        progress: Function called with the number of all files after each.
    """
    dataset = examination.policies.dataset
    is_local = examination.policies.root.place.filesystem is None
    jobs = jobs or (1 if is_local else THREADS)  # threads only help while a store is waited for
    run = _StatusRun(examination, cache, jobs, progress, len(files.files))
    states = run.examine_all(files.files)
    verified = cache.load_verified(dataset.name)
    found = [
        replace(state, verified=True)
        if (stamp := run.stamps[state.path]) and verified.get(state.path, ("", 0))[0] == stamp
        else state
        for state in states
    ]
    ids = {key.master_key_id for state in states for key in state.keys if key.master_key_id}
    due = examination.ages.find_due(ids, dataset.rotation)
    waiting = [
        FileState(path=path, state="plaintext", size=file.size)
        for path, file in sorted(files.waiting.items())
    ]
    return DatasetStatus(
        dataset=dataset, files=found, strays=files.strays, waiting=waiting, due_keys=due
    )


class _StatusRun:
    """The examination of the files that the cache does not know."""

    def __init__(
        self, examination: FooterExamination, cache: StateCache, jobs: int,
        progress: Callable[[int], object] | None, total: int,
    ) -> None:  # fmt: skip
        self._examination, self._cache, self._jobs = examination, cache, jobs
        self._progress, self._total = progress, total
        self._name = examination.policies.dataset.name
        self.stamps: dict[str, str] = {}

    def examine_all(self, files: Sequence[File]) -> list[FileState]:
        """Return the state of each file, in order."""
        known = self._cache.load_states(self._name)
        paths = [self._examination.policies.path_of(file.place) for file in files]
        self.stamps = {path: stamp_of(file.place) for path, file in zip(paths, files, strict=True)}
        found: dict[str, FileState] = {}
        groups: defaultdict[Group, list[tuple[File, FileState]]] = defaultdict(list)
        fresh: list[File] = []
        for path, file in zip(paths, files, strict=True):
            stamp, state = known.get(path, ("", None))
            if state is not None and stamp and stamp == self.stamps[path]:
                groups[_group_of(state)].append((file, state))
            else:
                fresh.append(file)
        for group, members in groups.items():
            fresh += self._recheck(group, members, found)
        found.update((state.path, state) for state in self._examine(fresh))
        return [found[path] for path in paths]

    def _recheck(
        self, group: Group, members: list[tuple[File, FileState]], found: dict[str, FileState]
    ) -> list[File]:
        """Examine one file of a group; accept the others if its state is still the same."""
        (first, before), *rest = members
        if group:
            (now,) = self._examine([first])
            found[now.path] = now
            if replace(now, verified=False) != before:
                return [file for file, _ in rest]
        else:
            found[before.path] = before
        found.update((state.path, state) for _, state in rest)
        for _ in rest:
            self._note_progress()
        return []

    def _examine(self, files: Sequence[File]) -> list[FileState]:
        states = []
        encrypted = self._cache.load_encrypted(self._name) if files else frozenset()
        run = self._examination.run
        found = (
            in_threads(run, files, self._jobs, "modcrypt-status")
            if self._jobs > 1
            else map(run, files)
        )
        for state in found:
            replaced = state.state == "plaintext" and state.path in encrypted
            states.append(replace(state, **_REPLACED) if replaced else state)
            self._note_progress()
        kept = [
            (self.stamps[state.path], state) for state in states
            if state.state in _CACHED and not state.reason
        ]  # fmt: skip
        self._cache.save_states(self._name, kept)
        return states

    def _note_progress(self) -> None:
        if self._progress is not None:
            self._progress(self._total)


def _group_of(state: FileState) -> Group:
    """Return the keys that a file's state depends on; empty for a plaintext file."""
    keys = ((key.column, key.master_key_id, key.version, key.kek_id) for key in state.keys)
    return (state.state, *keys) if state.keys else ()
