"""Run the write scenarios: the verifier judges each file, then every reader reads it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.conformance import corpus, verdicts
from tools.conformance.client import Abilities, Client
from tools.conformance.corpus import Case
from tools.conformance.reading import ask, undeclared
from tools.conformance.verdicts import (
    FAIL_CLOSED,
    FAIL_OPEN,
    NOT_DECLARED,
    NOT_JUDGED,
    PASS,
    Verdict,
)

Json = dict[str, Any]
WRITER_ONLY = frozenset(
    {"plaintext-columns", "footer-key-columns", "nested-column-keys", "key-metadata",
     "rows-per-page", "page-indexes", "bloom-filters"}
)  # fmt: skip
"""Features of scenarios that ask nothing of a reader."""


@dataclass(frozen=True)
class Written:
    """A file that a client wrote, and what it was asked for."""

    case: Case
    request: Json
    path: Path


def run_writes(
    client: Client, abilities: Abilities, cases: Iterable[Case], folder: Path
) -> tuple[dict[str, tuple[Case, Verdict]], list[Written]]:
    """Return the verdict of each scenario by its id, and the files; they lie in `folder`."""
    found: dict[str, tuple[Case, Verdict]] = {}
    files: list[Written] = []
    for case in cases:
        verdict = undeclared(case, abilities) or _unjudged(case)
        if verdict is None:
            verdict, written = _run(client, case, folder / case.id.replace("/", "-"))
            files += [written] if written else []
        found[case.id] = (case, verdict)
    return found, files


def _run(client: Client, case: Case, folder: Path) -> tuple[Verdict, Written | None]:
    folder.mkdir(parents=True)
    request = corpus.write_request(case, folder)
    answer = ask(client, request)
    if isinstance(answer, Verdict):
        return answer, None
    outcome, message = answer["outcome"], answer.get("message", "")
    if outcome == "unsupported":
        return Verdict(NOT_DECLARED, message), None
    if outcome == "error":
        return Verdict(PASS if case.raw.get("outcome") == "either" else FAIL_CLOSED, message), None
    if case.format == "key-metadata":
        same = answer.get("bytes") == case.raw["hex"]
        return Verdict(PASS if same else FAIL_CLOSED, "" if same else "other bytes"), None
    path = Path(request["path"])
    if path.is_symlink() or not path.is_file():
        return Verdict(FAIL_CLOSED, f"{path.name} is not a file"), None
    return _judge(request, path), Written(case, request, path)


def _unjudged(case: Case) -> Verdict | None:
    """Return the verdict of a scenario that nobody here can judge, else None."""
    fault = None if case.format == "key-metadata" else judge_fault()
    return None if fault is None else Verdict(NOT_DECLARED, NOT_JUDGED + fault)


@cache
def judge_fault() -> str | None:
    """Return why the independent verifiers cannot be imported, None if they can."""
    if importlib.util.find_spec("cryptography") is None:
        return "judging files needs the package cryptography"
    # A damaged build fails with more than ImportError, and Rust's panics are no Exception.
    try:
        importlib.import_module("tools.conformance.judge")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return f"the verifier cannot be imported: {type(error).__name__}: {error}"
    return None


def _judge(request: Json, path: Path) -> Verdict:
    from tools.conformance.judge import judge_file  # needs a package that the runner does not

    faults = judge_file(request, path)
    if not faults:
        return Verdict(PASS)
    exposed = any(fault.kind == FAIL_OPEN for fault in faults)
    texts = dict.fromkeys(fault.text for fault in faults)
    return Verdict(FAIL_OPEN if exposed else FAIL_CLOSED, "; ".join(texts))


# --- the matrix -----------------------------------------------------------------------------------


def read_back(
    client: Client, abilities: Abilities, files: Iterable[Written], folder: Path
) -> dict[str, Verdict]:
    """Return how a client reads the files of a writer, by scenario."""
    return {
        written.case.id: _read_one(client, abilities, written, folder)
        for written in files
        if written.case.raw.get("outcome") == "written"
    }


def _read_one(client: Client, abilities: Abilities, written: Written, folder: Path) -> Verdict:
    raw = written.case.raw
    asked = Case("read", written.case.format, written.case.name, {
        "features": sorted(written.case.features - WRITER_ONLY), "severity": "feature",
        "outcome": "accept", "rows": raw.get("rows"), "plaintext": _digest(raw),
    })  # fmt: skip
    if verdict := undeclared(asked, abilities):
        return verdict
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
        answer = ask(client, _request(asked.id, written, Path(place)))
    if isinstance(answer, Verdict):
        return answer
    return verdicts.judge_read(asked, answer, contacted=False, control=None)


def _digest(raw: Json) -> Json | None:
    if "plaintext" not in raw:
        return None
    content = corpus.expand(raw["plaintext"])
    return {"length": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _request(name: str, written: Written, folder: Path) -> Json:
    """Return the request to read a file back, from a copy of its own."""
    request = written.request
    for beside in filter(Path.is_file, written.path.parent.iterdir()):
        shutil.copyfile(beside, folder / beside.name)
    path = str(folder / written.path.name)
    common: Json = {"type": "read", "id": name, "format": written.case.format, "path": path}
    if written.case.format == "ags1":
        length = written.path.stat().st_size
        return common | {"key": request["key"], "aad_prefix": request["aad_prefix"],
                         "length": length}  # fmt: skip
    options: Mapping[str, Any] = request["options"]
    if written.case.format == "pkmt1":
        external = not options["internal_storage"]
        return common | {"master_keys": request["master_keys"], "external": external}
    return common | {
        "operation": "rows",
        "footer_key": request["footer_key"],
        "column_keys": request["column_keys"],
        "aad_prefix": options["aad_prefix"],
        "algorithms": [options["algorithm"]],
        "on_missing_key": "error",
        "check_footer_integrity": True,
    }
