"""Run clients against the corpus: `python tools/conformance [CLIENT ...]`.

Without names, all clients run that this machine can build. Exit status 1 means that something
failed that is no expected failure, or that an expected failure no longer happens.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for a run as a script

from tools.conformance import corpus, report
from tools.conformance.registry import Entry, known_clients
from tools.conformance.run import ClientRun, read_matrix, run_client


def main() -> int:
    options = parse_arguments()
    if options.show:
        return show(options.show, Path("conformance-case"))
    known = known_clients()
    if unknown := [name for name in options.clients if name not in known]:
        raise SystemExit(f"no client named {', '.join(unknown)}; there are {', '.join(known)}")
    entries = [known[name] for name in options.clients or known]
    if options.entrypoint:
        entries = [Entry(options.name, tuple(shlex.split(options.entrypoint)), folder=Path.cwd())]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # clients may crash
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        work = Path(folder)
        with ThreadPoolExecutor(options.jobs) as pool:
            runs = list(pool.map(lambda entry: run_client(entry, work, options), entries))
        matrix = read_matrix(runs, work, options) if len(runs) > 1 or options.matrix else {}
    report.print_summary(runs)
    if options.results:
        report.write_results(options.results, runs, matrix)
    if options.junit:
        report.write_junit(options.junit, runs)
    absent = options.entrypoint and runs[0].skipped is not None
    return int(bool(absent) or any(failed(run) for run in runs))


def show(name: str, folder: Path) -> int:
    """Write the files of a case into a folder and print its request, to be piped to a client."""
    for case in (*corpus.read_cases(), *corpus.write_cases()):
        if case.id == name:
            folder.mkdir(exist_ok=True)
            make = read_shown if case.direction == "read" else corpus.write_request
            print(json.dumps(make(case, folder.resolve())))
            return 0
    raise SystemExit(f"no case {name}")


def read_shown(case: corpus.Case, folder: Path) -> dict[str, Any]:
    """Return the request of a read case; nobody listens to hostile addresses."""
    return corpus.read_request(case, folder, 0)


def failed(run: ClientRun) -> bool:
    return bool(run.unexpected() or run.unused)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="names in clients.toml")
    parser.add_argument("--entrypoint", metavar="COMMAND", help="a client that is not in the list")
    parser.add_argument("--name", default="client", help="its name in results and FILE.xfails")
    parser.add_argument("--xfails", type=Path, help="its expected failures")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="write JSON files and badges"
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write a JUnit report")
    parser.add_argument("--only", default="*", metavar="GLOB", help="run only matching cases")
    parser.add_argument("--timeout", type=float, default=20, metavar="SECONDS", help="for one case")
    parser.add_argument("--jobs", type=int, default=2, help="clients that run at the same time")
    parser.add_argument(
        "--show", metavar="CASE", help="write a case into ./conformance-case and print its request"
    )
    parser.add_argument("--matrix", action="store_true", help="read back also with a single client")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
