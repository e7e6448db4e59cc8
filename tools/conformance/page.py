"""Make the results page from a folder of results: `page.py FOLDER PAGE`."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for a run as a script

from jinja2 import ChoiceLoader, Environment, FileSystemLoader
from markupsafe import Markup

from modcrypt.report import html
from tools.conformance import corpus, trace
from tools.conformance.corpus import Case, UnavailableError
from tools.conformance.disclosure import OURS, is_hostile
from tools.conformance.page_groups import AREAS, group_cases, is_valid
from tools.conformance.registry import known_clients
from tools.conformance.verdicts import EXPECTED, FAIL_CLOSED, FAILURES, PASS

Json = dict[str, Any]
FOLDER = Path(__file__).with_name("page")
SHOWN_BYTES = 48


def make_page(folder: Path) -> str:
    """Return the page about the results in a folder."""
    runs = [found for name in known_clients() if (found := _read(folder / f"{name}.json"))]
    clients = read_runs(folder)
    matrix = _read(folder / "matrix.json") or {}
    areas = group_rows(clients)
    return _environment().get_template("conformance.html").render(
        title="Conformance of Parquet encryption",
        cases=len(trace.all_cases()),
        clients=[summarize(run) for run in clients],
        skipped=[(run["client"], run["skipped"]) for run in runs if "skipped" in run],
        areas=only_rows(areas, valid=True),
        attacks=only_rows(areas, valid=False),
        matrix=matrix_rows(folder, clients),
        specs=[_specification(spec) for spec in ("pme", "ags1")],
        data=_data([row for _, rows in areas for row in rows], clients, matrix),
    )  # fmt: skip


def read_runs(folder: Path) -> list[Json]:
    """Return the results of the clients that ran, in the order of clients.toml.

    Those of other implementations are of valid files.
    """
    hostile = {case.id for case in trace.all_cases() if is_hostile(case)}
    found = [_read(folder / f"{name}.json") for name in known_clients()]
    runs = [run for run in found if run is not None and "cases" in run]
    for run in runs:
        if run["client"] != OURS:
            run["cases"] = {n: found for n, found in run["cases"].items() if n not in hostile}
    return runs


def group_rows(clients: list[Json]) -> list[tuple[str, list[Group]]]:
    """Return the rows of the table by feature, by area."""
    groups = group_cases(trace.all_cases())
    rows = [Group(number, *key, ids, clients) for number, (key, ids) in enumerate(groups.items())]
    return [(area, [row for row in rows if row.area == area]) for area in AREAS]


def only_rows(
    areas: list[tuple[str, list[Group]]], *, valid: bool
) -> list[tuple[str, list[Group]]]:
    """Return the rows of valid files, or of hostile ones, and the areas that have any."""
    kept = [(area, [row for row in rows if row.valid == valid]) for area, rows in areas]
    return [(area, rows) for area, rows in kept if rows]


def matrix_rows(folder: Path, clients: list[Json]) -> list[Json]:
    """Return the rows of the table of writers by readers."""
    matrix = _read(folder / "matrix.json") or {}
    return [_matrix_row(run, clients, matrix) for run in clients if run["client"] in matrix]


def _read(path: Path) -> Json | None:
    return json.loads(path.read_text()) if path.exists() else None


# --- tallies --------------------------------------------------------------------------------------


class Tally:
    """The verdicts of one cell."""

    def __init__(self, listed: list[Json], known: int) -> None:
        kinds = Counter(verdict.get("failure") or verdict["verdict"] for verdict in listed)
        self.ran, self.passed = len(listed), kinds[PASS]
        bad, mild = self.ran - self.passed, kinds[FAIL_CLOSED]
        self.state = "open" if bad > mild else "mild" if bad else "good" if self.ran else "none"
        self.text = f"{self.passed}/{self.ran}" if self.ran else "none"
        self.words = f"{self.passed} of {self.ran} passed, {known - self.ran} not declared"


class Group:
    """A row of the table by feature."""

    def __init__(
        self, number: int, area: str, title: str, cases: list[str], clients: list[Json]
    ) -> None:
        self.number, self.area, self.title, self.cases = number, area, title, cases
        self.valid = is_valid(area, title)
        self.tallies = [
            Tally([run["cases"][name] for name in cases if name in run["cases"]], len(cases))
            for run in clients
        ]


def summarize(run: Json) -> Json:
    """Return a client's line in the summary."""
    counts = Counter(found.get("failure") or found["verdict"] for found in run["cases"].values())
    return {
        "title": run["name"],
        "version": run["version"],
        "passed": counts[PASS],
        "ran": counts.total(),
        "failed": [(kind, counts[kind]) for kind in FAILURES if counts[kind]],
    }


def _matrix_row(run: Json, clients: list[Json], matrix: Json) -> Json:
    readers = matrix[run["client"]]
    files = max(map(len, readers.values()), default=0)
    tallies = [Tally([*readers.get(client["client"], {}).values()], files) for client in clients]
    return {"name": run["client"], "title": run["name"], "tallies": tallies}


def _specification(spec: str) -> Json:
    title, url = trace.specification(spec)
    sentences = [
        {"id": sentence.id, "section": sentence.section, "quote": sentence.quote,
         "checks": sentence.checks, "reason": sentence.reason, "coverage": sentence.coverage,
         "count": len(sentence.cases())}
        for sentence in trace.sentences() if sentence.spec == spec
    ]  # fmt: skip
    return {"title": title, "url": url, "sentences": sentences}


# --- what the script shows ------------------------------------------------------------------------


def _data(rows: list[Group], clients: list[Json], matrix: Json) -> Json:
    numbers = {sentence.id: number for number, sentence in enumerate(trace.sentences())}
    names = [run["client"] for run in clients]
    return {
        "clients": [run["name"] for run in clients],
        "titles": {run["client"]: run["name"] for run in clients},
        "groups": [{"title": row.title, "cases": row.cases} for row in rows],
        "sentences": [{"id": s.id, "quote": s.quote} for s in trace.sentences()],
        "cases": {case.id: _describe(case, numbers) for case in trace.all_cases()},
        "verdicts": [{name: _verdict(found) for name, found in run["cases"].items()}
                     for run in clients],
        "matrix": {
            writer: [{name: _verdict(found) for name, found in readers.get(reader, {}).items()}
                     for reader in names]
            for writer, readers in matrix.items()
        },
    }  # fmt: skip


def _verdict(found: Json) -> list[Any]:
    kind = found["failure"] if found["verdict"] == EXPECTED else found["verdict"]
    return [kind, found.get("detail", "")[:240], found.get("reason", "")]


def _describe(case: Case, numbers: dict[str, int]) -> Json:
    raw = case.raw
    demands = {"accept": "must be accepted", "refuse": "must be refused",
               "either": "may be refused, or accepted as the case states",
               "written": "must be written"}[raw["outcome"]]  # fmt: skip
    return {
        "comment": raw["comment"],
        "demands": f"{demands} ({', '.join(filter(None, (raw.get('spec'), case.severity)))})",
        "sentences": [numbers[sentence.id] for sentence in trace.sentences_of(case)],
        "bytes": _bytes(case),
    }


def _bytes(case: Case) -> str:
    """Return what is special about the bytes of a case: of a seal its text, else hex."""
    raw = case.raw
    if "seal" in raw:
        return str(raw["seal"])
    if "hex" in raw:
        return str(raw["hex"])
    if case.direction == "write":
        return ""
    patches = raw.get("patches", [])
    if not patches:
        return f"{raw.get('file') or raw['base']}, unmodified"
    return "\n".join(_patch_text(_base_bytes(case), patch) for patch in patches)


@cache
def _stream(name: str) -> bytes:
    try:
        return corpus.stream(name)
    except UnavailableError:
        return b""


def _base_bytes(case: Case) -> bytes:
    if case.format == "ags1":
        path = corpus.FOLDER / "ags1" / "base" / f"{case.raw['base']}.ags1"
        return path.read_bytes() if path.exists() else _stream(case.raw["base"])
    return Path(corpus.FOLDER, case.format, case.raw["file"]).read_bytes()


def _patch_text(data: bytes, patch: Json) -> str:
    if "swap" in patch:
        a, b = patch["swap"]
        return f"{patch['size']} bytes at {a} and {b} exchanged"
    at, removed = patch["at"], data[patch["at"] : patch["at"] + patch["remove"]]
    return f"at {at}: {_hex(removed)} → {_hex(bytes.fromhex(patch['insert']))}"


def _hex(data: bytes) -> str:
    more = f" … {len(data)} bytes" if len(data) > SHOWN_BYTES else ""
    return (data[:SHOWN_BYTES].hex(" ") or "nothing") + more


# --- templates ------------------------------------------------------------------------------------


def _environment() -> Environment:
    """Return the reports' environment with the templates of this page."""
    report = html.page_environment()
    assert report.loader is not None
    made = report.overlay(loader=ChoiceLoader([FileSystemLoader(FOLDER), report.loader]))
    made.filters = report.filters | {
        "asset": lambda name: Markup(_asset(name)),  # a file of this folder
        "asset_hash": lambda name: html.hash_for_policy(_asset(name)),
    }
    return made


def _asset(name: str) -> str:
    own = FOLDER / name
    return own.read_text() if own.is_file() else html.read_template(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="results of the runner")
    parser.add_argument("page", type=Path, help="HTML file to write")
    options = parser.parse_args()
    options.page.write_text(make_page(options.folder), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
