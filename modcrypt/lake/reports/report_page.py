"""The page of a report about a lake: open tasks, pictures, a time line and the record behind them.

A line of the record of evidence proves what the page states, wherever one does.
"""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modcrypt.lake.evidence.events import DatasetResult, EvidenceEvent
from modcrypt.lake.files.file_states import DECLARED, EXPOSED, STATES
from modcrypt.lake.files.key_choice import KeyChoice
from modcrypt.lake.reports.report_pictures import draw_keys, draw_runs
from modcrypt.report.html import render
from modcrypt.report.text import format_count

if TYPE_CHECKING:
    from modcrypt.lake.reports.lake_report import LakeReport

_EVENTS = {
    "apply": "Declaration applied",
    "verify": "Lake verified",
    "shred": "Data erased",
    "rotate": "Master keys rotated",
    "leak": "Leaked keys examined",
}

_BAD = ("failed", "refused", "faults", "closed", "exposed", "strays", "leaks")
"""Results that call for action."""

_NOUNS = {"faults": "fault", "strays": "undeclared file", "leaks": "leak"}

_APPLY, _VERIFY, _LEAKS = "modcrypt apply", "modcrypt verify", "modcrypt leaks"

_OF_DATASETS = frozenset({_APPLY, _VERIFY, _LEAKS})  # the commands that take the name of a dataset
_TASKS = {"plaintext": "Plaintext files", "unreadable": "Unreadable files"}

_REMEDIES = {
    **dict.fromkeys(EXPOSED, _APPLY),
    "plaintext": _APPLY,
    "other-policy": _APPLY,
    "old-keys": _APPLY,
    "other-keys": "modcrypt why FILE",
    "misplaced": "modcrypt why FILE",
    "unreadable": "modcrypt why FILE",
    "not-erased": "modcrypt shred PATH",
}
"""The command that helps, or explains, by the state of a file."""


def draw_report(report: LakeReport, links: Mapping[tuple[str, str], str]) -> str:
    """Return the page of a report.

    Args:
        links: Addresses of the pages of files, by dataset and path.

    Raises:
        ModuleNotFoundError: The extra `modcrypt[html]` is not installed.
    """
    events = () if report.evidence is None else report.evidence.events
    proofs = Proofs(events)
    return render(
        "lake.html", title="Lake report", report=report, names=STATES, links=links,
        tasks=list(list_tasks(report)), matrix=draw_keys(report),
        plot=draw_runs(report, events), entries=list_entries(report), proofs=proofs, bad=_BAD,
        describe_count=describe_count, verified=proofs.list_verified(),
        erasures=[
            {"dataset": row["dataset"], **erasure}
            for row in report.datasets for erasure in row["erasures"]
        ],
        leaks=[
            {"dataset": row["dataset"], **leak} for row in report.datasets for leak in row["leaks"]
        ],
    )  # fmt: skip


def describe_count(name: str, number: int) -> str:
    """Return a number of files, or of what was found, by its name in the record."""
    if name in _NOUNS:
        return format_count(number, _NOUNS[name])
    return f"{number:,} {'not opened' if name == 'closed' else name}"


def list_tasks(report: LakeReport) -> Iterator[dict[str, Any]]:
    """Yield what is to be done: dataset, text, number of files and a command that helps."""
    for row in report.datasets:
        name = row["dataset"]
        for text, files, command in _list_tasks(row):
            of_dataset = f" {shlex.quote(name)}" if command in _OF_DATASETS else ""
            yield {"dataset": name, "text": text, "files": files, "command": command + of_dataset}


def _list_tasks(row: Mapping[str, Any]) -> Iterator[tuple[str, int | None, str]]:
    if row["error"]:
        yield row["error"], None, "modcrypt doctor"
    for state, count in row["states"].items():
        if state not in DECLARED:
            yield _TASKS.get(state, f"Files {STATES[state]}"), count, _REMEDIES.get(state, "")
    if row["waiting"]:
        yield "Files waiting in the source", row["waiting"], _APPLY
    if row["due_keys"]:
        yield f"Master keys due for a new version: {', '.join(row['due_keys'])}", None, _APPLY
    for fault in row["seal_faults"]:
        yield fault, None, _VERIFY
    if row["leaks"]:
        yield "Values of encrypted columns beside the files", len(row["leaks"]), _LEAKS
    if row["strays"] and row["strict"]:
        yield "Files that include does not match", row["strays"], "modcrypt status --json"
    if row["not_verified"]:
        yield "Files not verified since they changed", row["not_verified"], _VERIFY


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of the time line: an event, from its beginning to its end."""

    event: EvidenceEvent  # the event at its end, or at its beginning if it has not ended
    title: str  # name of the event
    outcome: str  # its result in words
    severity: str = ""  # "fault", "warning", or empty if all is well


def list_entries(report: LakeReport) -> list[Entry]:
    """Return the entries of the time line, newest first."""
    if report.evidence is None:
        return []
    open_lines = set(report.evidence.interrupted)
    return [
        _make_entry(event) for event in reversed(report.evidence.events)
        if event.phase != "begun" or event.number in open_lines
    ]  # fmt: skip


def _make_entry(event: EvidenceEvent) -> Entry:
    title = _EVENTS.get(event.event, event.event)
    title += f" (limited: {event.scope})" if event.scope else ""
    if event.phase == "begun":
        return Entry(event=event, title=title, outcome="no end recorded", severity="warning")
    if event.phase == "failed":
        return Entry(event=event, title=title, outcome="failed", severity="fault")
    if any(result.code or result.findings for result in event.results):
        outcome = "not complete" if event.event == "shred" else "not as declared"
        return Entry(event=event, title=title, outcome=outcome, severity="fault")
    if any(result.counts.get("exposed") for result in event.results):
        return Entry(event=event, title=title, outcome="files exposed", severity="warning")
    return Entry(event=event, title=title, outcome="complete")


class Proofs:
    """The lines of the record that prove what a report states; 0 stands for none.

    A verification of parts of a dataset proves nothing about all of it.
    """

    def __init__(self, events: Sequence[EvidenceEvent]) -> None:
        self.listed = frozenset(event.number for event in events)
        self._ended = [
            event for event in events if event.phase == "done" and "parts" not in event.scope
        ]
        self._begun = {event.number: event.time for event in events if event.phase == "begun"}

    def list_verified(self) -> list[tuple[EvidenceEvent, DatasetResult]]:
        """Return the last verification of each dataset."""
        return list({
            result.dataset: (event, result)
            for event in self._ended if event.event == "verify" for result in event.results
        }.values())  # fmt: skip

    def verified(self, dataset: str) -> int:
        """Return the line of the last verification of a dataset."""
        return self._find("verify", lambda event: _concerns(event, dataset))

    def erased(self, dataset: str, when: str, request: str) -> int:
        """Return the line of an erasure: that of its request, or of the same time."""

        def is_meant(event: EvidenceEvent) -> bool:
            began = self._begun.get(event.begun or 0, event.time)
            return _concerns(event, dataset) and event.request == request and (
                bool(request) or is_between(began, when, event.time)
            )  # fmt: skip

        return self._find("shred", is_meant)

    def rotated(self, master_key_id: str) -> int:
        """Return the line of the last rotation of a master key."""
        return self._find("rotate", lambda event: _names(event, master_key_id))

    def leaked(self, master_key_id: str) -> int:
        """Return the line of the last examination of what a compromised master key opens."""
        return self._find("leak", lambda event: _names(event, master_key_id))

    def _find(self, name: str, is_meant: Callable[[EvidenceEvent], bool]) -> int:
        found = (e.number for e in reversed(self._ended) if e.event == name and is_meant(e))
        return next(found, 0)


def _concerns(event: EvidenceEvent, dataset: str) -> bool:
    return any(result.dataset == dataset for result in event.results)


def _names(event: EvidenceEvent, master_key_id: str) -> bool:
    return any(KeyChoice.parse(key).key == master_key_id for key in event.keys)


def is_between(first: str, time: str, last: str) -> bool:
    """Return whether a time in ISO 8601 lies between two others; False if one is malformed."""
    try:
        begin, middle, end = map(datetime.datetime.fromisoformat, (first, time, last))
        return begin.replace(microsecond=0) <= middle <= end
    except (ValueError, TypeError):  # TypeError: only one has a time zone
        return False
