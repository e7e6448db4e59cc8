"""Run the read cases against a client."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.conformance import corpus, verdicts
from tools.conformance.client import Abilities, Client
from tools.conformance.contacts import Listener
from tools.conformance.corpus import Case, UnavailableError
from tools.conformance.process import ClientGoneError, ClientTimeoutError
from tools.conformance.verdicts import CRASH, NOT_DECLARED, PASS, TIMEOUT, Verdict

Json = dict[str, Any]


def run_reads(
    client: Client, abilities: Abilities, cases: Iterable[Case], folder: Path, listener: Listener
) -> dict[str, tuple[Case, Verdict]]:
    """Return the verdict of each case by its id; cases follow their controls."""
    found: dict[str, tuple[Case, Verdict]] = {}
    for case in cases:
        verdict = undeclared(case, abilities) or _without_control(case, found)
        if verdict is None:
            control = found[case.control][0].raw if case.control in found else None
            verdict = _run(client, case, folder, listener, control)
        found[case.id] = (case, verdict)
    return found


def undeclared(case: Case, abilities: Abilities) -> Verdict | None:
    """Return the verdict of a case that a client does not declare, else None."""
    if case.format not in abilities.formats[case.direction]:
        return Verdict(NOT_DECLARED, f"format {case.format}")
    if missing := case.features - abilities.features[case.direction]:
        return Verdict(NOT_DECLARED, ", ".join(sorted(missing)))
    return None


def _without_control(case: Case, found: dict[str, tuple[Case, Verdict]]) -> Verdict | None:
    """Return the verdict of a case whose valid form is not read: a refusal proves nothing."""
    if case.control is None or case.control not in found:
        return None
    control = found[case.control][1]
    if control.kind in (PASS, NOT_DECLARED):
        # An undeclared control may only lack what is about the control itself.
        return None if control.kind == PASS else Verdict(NOT_DECLARED, f"control: {control.detail}")
    return Verdict(NOT_DECLARED, f"the valid case {case.control} is not read")


def _run(
    client: Client, case: Case, folder: Path, listener: Listener, control: Json | None
) -> Verdict:
    folder.mkdir(parents=True, exist_ok=True)
    # Clients may do with a folder what they like, so that each case has its own.
    with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
        try:
            request = corpus.read_request(case, Path(place), listener.port)
        except UnavailableError as error:
            return Verdict(NOT_DECLARED, str(error))
        listener.take_count()
        answer = ask(client, request)
    if isinstance(answer, Verdict):
        return answer
    return verdicts.judge_read(case, answer, bool(listener.take_count()), control)


def ask(client: Client, request: Json) -> Json | Verdict:
    """Return the answer to a request, or the verdict on a client that gave none."""
    try:
        return client.ask(request)
    except ClientTimeoutError as error:
        return Verdict(TIMEOUT, str(error))
    except ClientGoneError as error:
        return Verdict(CRASH, str(error))
