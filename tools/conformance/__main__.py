"""Run clients against the corpus: `python tools/conformance [CLIENT ...]`.

Without names, all clients run that this machine can build. Exit status 1 means that something
failed that is no expected failure, that an expected failure no longer happens, or that nothing was
written because another implementation fails a security case.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for a run as a script

from tools.conformance import corpus, disclosure, report
from tools.conformance.expected_failures import ExpectationError
from tools.conformance.registry import ROOT, Entry, known_clients
from tools.conformance.run import ClientRun, all_read_cases, read_matrix, run_client

ID_HINT = "ids look like read/parquet/types and write/ags1/ags1-mib"


def main() -> int:
    options = parse_arguments()
    if options.show:
        return show(options.show, Path("conformance-case"), options.private)
    if fault := find_fault(options):
        raise SystemExit(fault)
    entries = [find_entrypoint(options)] if options.entrypoint else find_known(options)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # clients may crash
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        work = Path(folder)
        runs = run_clients(entries, work, options)
        matrix = read_matrix(runs, work, options) if len(runs) > 1 or options.matrix else {}
    report.print_summary(runs)
    if options.private:
        report.write_results(options.private, runs, matrix)
    elif refuse_to_write(runs):
        return 1
    elif options.results:
        published = [report.publish(run) for run in runs]
        report.print_left_out(runs, published)
        report.write_results(options.results, published, report.publish_matrix(matrix))
    if options.junit:
        report.write_junit(options.junit, runs)
    absent = options.entrypoint and runs[0].skipped is not None
    return int(bool(absent) or any(failed(run) for run in runs))


def refuse_to_write(runs: list[ClientRun]) -> bool:
    """Return whether a run found what must be reported in private, and print a warning then."""
    found = {run.entry.name: cases for run in runs if (cases := disclosure.find_secrets(run))}
    for name, cases in found.items():
        print(
            f"warning: {name} fails {len(cases)} security cases; nothing is written. Report them "
            "to its maintainers in private (SECURITY.md), and pass --private FOLDER to write "
            "results outside of the repository.",
            file=sys.stderr,
        )
    return bool(found)


def find_entrypoint(options: argparse.Namespace) -> Entry:
    """Return the client of --entrypoint, about which clients.toml says nothing."""
    command = tuple(shlex.split(options.entrypoint))
    return Entry(options.name, command, xfails=options.xfails, folder=Path.cwd())


def find_known(options: argparse.Namespace) -> list[Entry]:
    """Return the clients of clients.toml that are named, or all."""
    known = known_clients()
    if unknown := [name for name in options.clients if name not in known]:
        raise SystemExit(f"no client named {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in options.clients or known]


def find_fault(options: argparse.Namespace) -> str | None:
    """Return what is wrong with options that would make a run test nothing, or something else."""
    if options.entrypoint is not None and not shlex.split(options.entrypoint):
        return "--entrypoint is empty; pass the command that starts the client"
    if options.entrypoint and options.clients:
        return f"--entrypoint is the only client; remove {' '.join(options.clients)}"
    if options.xfails and not options.entrypoint:
        return "--xfails belongs to --entrypoint; the other clients have lists of their own"
    if options.xfails and not options.xfails.exists():
        return f"{options.xfails} does not exist"
    if options.entrypoint and options.name == disclosure.OURS:
        return f"--name {options.name} is that of this repository's client; pass another name"
    if options.private and options.results:
        return "--private writes the results, too; remove --results"
    if options.private and options.private.resolve().is_relative_to(ROOT):
        return f"{options.private} is in this repository; pass a folder outside of it"
    known = all_read_cases(options.private)
    if len({case.id for case in known}) < len(known):
        return f"{options.private} has a case of the same id as another one; rename it"
    cases = (*known, *corpus.write_cases())
    if not any(fnmatchcase(case.id, options.only) for case in cases):
        return f"no case matches {options.only}; {ID_HINT}"
    return None


def run_clients(entries: list[Entry], work: Path, options: argparse.Namespace) -> list[ClientRun]:
    """Run clients, some of them at the same time."""
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            return list(pool.map(lambda entry: run_client(entry, work, options), entries))
    except ExpectationError as error:
        raise SystemExit(str(error)) from None


def show(name: str, folder: Path, private: Path | None) -> int:
    """Write the files of a case into a folder and print its request, to be piped to a client."""
    for case in (*all_read_cases(private), *corpus.write_cases()):
        if case.id == name:
            folder.mkdir(exist_ok=True)
            make = read_shown if case.direction == "read" else corpus.write_request
            print(json.dumps(make(case, folder.resolve())))
            return 0
    raise SystemExit(f"no case {name}; {ID_HINT}")


def read_shown(case: corpus.Case, folder: Path) -> dict[str, Any]:
    """Return the request of a read case; nobody listens to hostile addresses."""
    return corpus.read_request(case, folder, 0)


def failed(run: ClientRun) -> bool:
    return bool(run.unexpected() or run.unused)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="names in clients.toml")
    parser.add_argument("--entrypoint", metavar="COMMAND", help="a client that is not in the list")
    parser.add_argument("--name", default="client", help="its name in results")
    parser.add_argument("--xfails", type=Path, help="its expected failures")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="write JSON files and badges"
    )
    parser.add_argument(
        "--private", type=Path, metavar="FOLDER", help="run also the cases of a folder outside of "
        "the repository, and write all results there"
    )  # fmt: skip
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
