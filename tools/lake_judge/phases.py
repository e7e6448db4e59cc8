"""The phases of a run: turns, races, faults of the key service, and kills."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from modcrypt.errors import ModcryptError
from tests.support.paths import ROOT
from tools.lake_judge.catalogs import MakeSubject
from tools.lake_judge.faulty_kms import FAULTS, FaultyKms
from tools.lake_judge.model import Change
from tools.lake_judge.operations import BY_NAME, MODCRYPT, Operation
from tools.lake_judge.report import Finding, Report
from tools.lake_judge.trial import DONE, OPEN, Trial, WrongError

BLOCK = 20
"""Steps on one table, after which a new one follows: a finding can be repeated from its start."""

MAX_FINDINGS = 20
TRIES = 6
"""Attempts for each step that must count: kills may miss, and a finding ends its block."""

VERIFY_EVERY = 5
FIRST_GUESS = 12
"""Steps that an operation of unknown length is taken to have."""

KILL_SECONDS = 600
"""Time that a process gets, also on a busy machine."""


def run_phases(
    make: MakeSubject, report: Report, wanted: Mapping[str, int], only: str | None = None,
    operations: Sequence[Operation] = tuple(MODCRYPT),
) -> Report:  # fmt: skip
    """Run all phases; with `only`, one block of one phase, as `races:3`."""
    started = time.monotonic()
    for phase, number in wanted.items():
        for block in range(-(-number * TRIES // BLOCK)):
            if only in (None, f"{phase}:{block}") and report.done[phase] < number:
                _run_block(phase, block, number, make, report, operations)
                done = f"{phase} block {block}: {report.done[phase]} of {number}"
                print(f"{done}, {len(report.findings)} findings", file=sys.stderr, flush=True)
            if len(report.findings) >= MAX_FINDINGS:
                break
    report.seconds = time.monotonic() - started
    return report


def _run_block(
    phase: str, block: int, number: int, make: MakeSubject, report: Report,
    operations: Sequence[Operation],
) -> None:  # fmt: skip
    dice = random.Random(f"{report.seed} {phase} {block}")
    trial = Trial(subject=make(), dice=dice, report=report, modcrypt=operations)
    step = -1
    try:
        trial.do(*trial.choose([BY_NAME["modcrypt append"]]))
        for step in range(BLOCK):
            if report.done[phase] < number:
                PHASES[phase](trial, step)
        trial.verify()
    except Exception as error:
        repeat = f"python tools/lake_judge --catalog {report.catalog} --seed {report.seed}"
        report.findings.append(
            Finding(
                where=f"{phase} block {block} step {step}, after {'; '.join(trial.steps[-4:])}",
                wrong=_describe(error),
                wrong_rows=error.rows if isinstance(error, WrongError) else 0,
                repeat=f"{repeat} --only {phase}:{block}",
            )
        )
        print(f"WRONG {report.findings[-1]}", file=sys.stderr, flush=True)


def _describe(error: Exception) -> str:
    if isinstance(error, WrongError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " > ".join(f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in frames)
    return f"{type(error).__name__}: {str(error)[-1500:]} at {places}"


# --- turns ---------------------------------------------------------------------------------------


def take_turn(trial: Trial, step: int) -> None:
    """Let one of the engines change the table."""
    stock = trial.subject.operations
    engine = stock if stock and trial.dice.random() < 0.5 else trial.modcrypt
    operation, change = trial.choose(engine)
    if operation.may_fail:
        _expect_results(trial, [(change, trial.attempt(operation, change))])
    else:
        trial.do(operation, change)
    if step % VERIFY_EVERY == 0:
        trial.verify()
    trial.report.done["turns"] += 1


# --- races ---------------------------------------------------------------------------------------


class Interrupted:
    """The versions of a table, with something that happens before one of its calls."""

    def __init__(self, versions: Any, call: str, act: Callable[[], object]) -> None:
        self._versions, self._call, self._act = versions, call, [act]

    def __getattr__(self, name: str) -> Any:
        if name == self._call and self._act:
            self._act.pop()()
        return getattr(self._versions, name)


def race(trial: Trial, step: int) -> None:
    """Let a writer commit in the middle of modcrypt's change, or at about the same time."""
    rivals = [*trial.subject.operations, *trial.modcrypt]
    ours = trial.choose(trial.modcrypt, racing=True)
    theirs = trial.choose(rivals, racing=True)
    if trial.dice.random() < 0.6:
        _commit_in_the_middle(trial, ours, theirs)
    else:
        _commit_together(trial, ours, theirs)
    trial.verify()
    trial.report.done["races"] += 1


def _commit_in_the_middle(
    trial: Trial, ours: tuple[Operation, Change], theirs: tuple[Operation, Change]
) -> None:
    outcomes: list[str] = []
    table = trial.subject.load()
    call = trial.dice.choice(["commit", "commit", "read", "check_writable"])
    rival = trial.subject.load()
    act = Interrupted(table.versions, call, lambda: outcomes.append(trial.attempt(*theirs, rival)))
    outcome = trial.attempt(*ours, replace(table, versions=act))
    if not outcomes:  # nothing to commit
        outcomes.append(trial.attempt(*theirs, trial.subject.load()))
        _expect_results(trial, [(ours[1], outcome), (theirs[1], outcomes[0])])
    else:
        _expect_results(trial, [(theirs[1], outcomes[0]), (ours[1], outcome)], ordered=True)


def _commit_together(
    trial: Trial, ours: tuple[Operation, Change], theirs: tuple[Operation, Change]
) -> None:
    outcomes: dict[int, str | BaseException] = {}
    tables = [trial.subject.load(), trial.subject.load()]

    def attempt(number: int, operation: Operation, change: Change) -> None:
        try:
            outcomes[number] = trial.attempt(operation, change, tables[number])
        except BaseException as error:
            outcomes[number] = error

    other = threading.Thread(target=attempt, args=(1, *theirs))
    other.start()
    attempt(0, *ours)
    other.join()
    results: list[tuple[Change, str]] = []
    for number, (_, change) in enumerate((ours, theirs)):
        outcome = outcomes[number]
        if isinstance(outcome, BaseException):
            raise outcome
        results.append((change, outcome))
    _expect_results(trial, results)


def _expect_results(
    trial: Trial, results: Sequence[tuple[Change, str]], *, ordered: bool = False
) -> None:
    certain = [change for change, outcome in results if outcome == DONE]
    possible = [change for change, outcome in results if outcome == OPEN]
    if ordered and not possible:
        state = trial.state
        for change in certain:
            state = state.after(change)
        trial.expect([state])
    else:
        trial.expect_outcome(certain, possible)


# --- faults of the key service -------------------------------------------------------------------


def meet_fault(trial: Trial, step: int) -> None:
    """Let modcrypt change the table while the key service misbehaves."""
    operation, change = trial.choose(trial.modcrypt)
    fault, at = trial.dice.choice(sorted(FAULTS)), trial.dice.choice([1, 1, 1, 2, 3, 4])
    trial.steps.append(f"key service {fault} at call {at}")
    kms = FaultyKms(fault, at)
    outcome = trial.attempt(operation, change, trial.subject.load(kms), (ModcryptError,))
    _expect_results(trial, [(change, outcome)])
    trial.verify()
    trial.report.done["faults"] += kms.met


# --- kills ---------------------------------------------------------------------------------------

_lengths: dict[str, int] = {}


def kill(trial: Trial, step: int) -> None:
    """Kill a process in the middle of its change, and go on from what it leaves."""
    operation, change = trial.choose(trial.modcrypt)
    at = trial.dice.randint(1, _lengths.get(operation.name, FIRST_GUESS))
    trial.steps.append(f"{operation.name}, killed after step {at}")
    lines = run_worker(
        trial.subject.named, operation, change, at, trial.dice.choice([0, 0.002, 0.01])
    )
    trial.report.done["tries"] += 1
    finished = [line.split()[1] for line in lines if line.startswith("done")]
    if finished:
        _lengths[operation.name] = max(1, int(finished[0]))
    hit = not finished and "working" in lines
    before = trial.state
    following = trial.choose([BY_NAME["modcrypt append"]])
    _expect_results(trial, [(change, DONE if finished else OPEN)])
    trial.verify()
    # A server may complete the commit only now.
    trial.steps.append("next append")
    following[0].run(trial.subject.load(), following[1])
    late = [] if finished else [before.after(change)]
    trial.expect([state.after(following[1]) for state in (trial.state, *late)])
    trial.verify()
    trial.report.done["kills"] += hit


def run_worker(
    named: Any, operation: Operation, change: Change, at: int, delay: float
) -> list[str]:
    """Run an operation in a process that is killed after some of its steps; return its lines."""
    told = {
        "uri": named.uri, "name": named.name, "operation": operation.name,
        "change": asdict(change), "at": at, "delay": delay,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tools.lake_judge.worker", json.dumps(told)],
        cwd=ROOT, capture_output=True, text=True, timeout=KILL_SECONDS,
        check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    if done.returncode not in (0, -9):
        raise WrongError(f"{operation.name} fails: {done.stderr[-1500:]}")
    return lines


PHASES: Mapping[str, Callable[[Trial, int], None]] = {
    "turns": take_turn,
    "races": race,
    "faults": meet_fault,
    "kills": kill,
}
