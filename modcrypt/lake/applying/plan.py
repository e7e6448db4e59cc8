"""The plan that establishes the declared state: what to do to each file, and what not to touch.

A plan never decrypts, deletes, or changes what it cannot vouch for: files under master keys that
the declaration does not name, and files with the AAD prefix of another place, may be forged or
moved. Re-keying them would make them look authentic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from modcrypt.errors import PlaintextError
from modcrypt.jobs.failures import exit_code
from modcrypt.jobs.leaks.scan import ValueLeak
from modcrypt.lake.declarations.declaration import DatasetDeclaration
from modcrypt.lake.files.file_states import EXPOSED, FileState
from modcrypt.lake.spool import Spool
from modcrypt.lake.status import DatasetStatus
from modcrypt.report.fact_sheet import DatasetSummary
from modcrypt.report.text import format_count, format_size
from modcrypt.runtime.fork_safety import cached_property

Action: TypeAlias = Literal["encrypt", "rekey", "rotate", "renew", "refuse", "none"]

SCHEMA = "modcrypt.lake.apply/1"  # the name and version of the lines of JSON

_NAMES: dict[Action, str] = {
    "encrypt": "to encrypt", "rekey": "to re-key", "rotate": "to rotate",
    "renew": "to encrypt under new data keys", "refuse": "refused",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """A file that is not as declared, and what to do.

    Attributes:
        state: State of the file.
        action: What to do; "refuse" leaves the file as it is, and "none" has nothing to do.
        why: Reason in words.
        waits: Whether the file is in the source folder, and is encrypted into the dataset.
    """

    state: FileState
    action: Action
    why: str
    waits: bool = False

    @property
    def word(self) -> str:
        """The error code of a refused file."""
        reason = self.state.reason or "key-material"
        return "disabled" if reason == "destroyed" else reason


@dataclass(frozen=True, kw_only=True, repr=False)
class LakePlan(DatasetSummary):
    """The plan for one dataset.

    Attributes:
        dataset: Name of the dataset.
        files: Files that are not as declared.
        new_versions: Master keys that get a new version first.
        current: Number of files that are as declared.
        erased: Number of erased files that stay.
        removals: Erased files to delete.
        leaks: Values beside the files that no action removes; they are left to the user.
        error: Why its files cannot be listed; empty if they can.
        code: Exit code for the error.
    """

    dataset: str
    files: Sequence[PlannedChange]
    new_versions: Sequence[str]
    current: int
    erased: int = 0
    removals: Sequence[FileState] = ()
    leaks: Sequence[ValueLeak] = ()
    error: str = ""
    code: int = 0

    _label = "Plan"

    @cached_property
    def totals(self) -> PlanTotals:
        """Counts of the files."""
        return PlanTotals(self.files)

    @property
    def changes(self) -> int:
        """Number of files to change."""
        return len(self.files) - self.totals.actions["refuse"]

    @property
    def total(self) -> int:
        """Number of files."""
        return self.current + self.erased + len(self.removals) + len(self.files)

    @property
    def refusal_code(self) -> int:
        """The exit code for refused files and for leaks; 0 without any."""
        return self.code or exit_code(self.totals.refusals) or int(bool(self.leaks))

    def summary(self) -> str:
        """Return the plan as one line for people."""
        if self.error:
            return f"{self.dataset}: {self.error}"
        counts, size = self.totals.actions, self.totals.bytes
        parts = [f"{counts[action]:,} {name}" for action, name in _NAMES.items() if counts[action]]
        parts += [f"{len(self.removals):,} erased to remove"] if self.removals else []
        if self.new_versions:
            parts.append(f"new versions of {', '.join(self.new_versions)}")
        text = ", ".join(parts) or "nothing to do"
        of_size = f"; {format_size(size)}" if size else ""
        total = format_count(self.total, "file")
        text += f", {self.erased:,} erased" if self.erased else ""
        text += f"; {format_count(len(self.leaks), 'leak')} beside the files" if self.leaks else ""
        return f"{self.dataset}: {text}{of_size} ({self.current:,} of {total} as declared)"

    def fields(self) -> Iterator[dict[str, Any]]:
        """Yield the plan as lines of JSON: one for each file, then the totals."""
        start = {"schema": SCHEMA, "dataset": self.dataset, "dry_run": True}
        for file in self.files:
            yield {
                **start, "kind": "planned-file", "file": file.state.path, "action": file.action,
                "state": file.state.state, "message": file.why,
            }  # fmt: skip
        for state in self.removals:
            yield {
                **start, "kind": "planned-file", "file": state.path, "action": "remove",
                "state": state.state, "message": state.message,
            }  # fmt: skip
        yield {
            **start, "kind": "plan", "current": self.current, "erased": self.erased,
            **{action: self.totals.actions[action] for action in _NAMES},
            "remove": len(self.removals),
            "new_versions": list(self.new_versions), "error": self.error,
            "leaks": [leak.fields() for leak in self.leaks],
        }  # fmt: skip


class PlanTotals:
    """Counts of planned changes, made in one pass over the files."""

    def __init__(self, files: Iterable[PlannedChange]) -> None:
        self.actions: Counter[str] = Counter()
        self.bytes = 0
        self.refusals: set[str] = set()  # error codes
        for file in files:
            self.actions[file.action] += 1
            if file.action == "refuse":
                self.refusals.add(file.word)
            else:
                self.bytes += file.state.size


def make_plan(
    status: DatasetStatus, *, accept_replaced: bool = False, remove_erased: bool = False
) -> LakePlan:
    """Return the plan for a dataset with a status.

    `accept_replaced` encrypts plaintext files that replaced encrypted ones, and those in the folder
    of a dataset that declares `signed_by`: anyone may have put them there. `remove_erased` deletes
    erased files.
    """
    declared = status.dataset
    is_signed = isinstance(declared, DatasetDeclaration) and bool(declared.members.get("signed_by"))
    planned: Spool[PlannedChange] = Spool(
        plan_file(_doubt(file) if is_signed else file, accept_replaced)
        for file in status.files
        if not file.is_declared
    )
    erased = status.totals.states["erased"]
    current = len(status.files) - len(planned) - erased
    gone = (file for file in status.files if remove_erased and file.state == "erased")
    removals: Spool[FileState] = Spool(gone if erased else ())
    planned.extend(map(_plan_waiting, status.waiting))
    return LakePlan(
        dataset=status.dataset.name, files=planned, new_versions=status.due_keys, current=current,
        erased=erased - len(removals), removals=removals, leaks=status.leaks, error=status.error,
        code=status.code,
    )  # fmt: skip


def _plan_waiting(state: FileState) -> PlannedChange:
    why = state.message or "the file waits in the source"
    action: Action = "refuse" if state.reason else "encrypt"
    return PlannedChange(state=state, action=action, why=why, waits=True)


def _doubt(state: FileState) -> FileState:
    """Return the state of a plaintext file with the reason not to sign it."""
    if state.state != "plaintext" or state.reason:
        return state
    return replace(
        state, reason=PlaintextError.word, message="it is plaintext, so nobody knows who wrote it: "
        "--accept-replaced encrypts and signs it; new files belong into the dataset's source",
    )  # fmt: skip


def plan_file(state: FileState, accept_replaced: bool = False) -> PlannedChange:
    """Return the plan for a file that is not as declared.

    `accept_replaced` encrypts a plaintext file that replaced an encrypted one.
    """
    if state.state == "declared":
        return PlannedChange(state=state, action="none", why="")
    if state.state == "plaintext" and (accept_replaced or not state.reason):
        return PlannedChange(state=state, action="encrypt", why="the file is not encrypted")
    if state.state in EXPOSED and not state.reason:
        return PlannedChange(state=state, action="renew", why=state.message)
    if state.state == "old-keys":
        return PlannedChange(state=state, action="rotate", why=state.message)
    if state.state == "other-policy" and not state.reason:
        return PlannedChange(state=state, action="rekey", why=state.message)
    return PlannedChange(state=state, action="refuse", why=state.message)
