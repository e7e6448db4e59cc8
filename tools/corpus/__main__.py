"""Take every file of a folder through encryption and back, and compare with PyArrow.

    python -m tools.corpus FOLDER [--json RESULTS] [--html PAGE] [--memory MIB] [--seconds N]

Each file is tried in a process of its own with limits on memory and time, so that a file that
crashes or hangs a library is a result like any other. The exit code is 1 if a file that can be
encrypted fails a check. Files that are refused are listed with the reason, and with what PyArrow
says about them.
"""

from __future__ import annotations

import argparse
import html
import io
import json
import multiprocessing
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for a run as a script

from modcrypt.errors import ModcryptError
from tools.corpus.checks import CHECKS, Subject

SUFFIXES = {".parquet", ".parq", ".pq"}


def main() -> int:
    """Try the files, print a summary, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--html", type=Path, help="write a page of results there")
    parser.add_argument("--memory", type=int, default=4096, help="MiB for each file")
    parser.add_argument("--seconds", type=int, default=120, help="seconds for each file")
    given = parser.parse_args()
    results = []
    warm_up()
    for path in find_files(given.folder):
        found = try_file(path, given.memory << 20, given.seconds)
        results.append({"file": path.relative_to(given.folder).as_posix(), **found})
        if found["result"] not in ("ok", "refused"):
            print(": ".join(_describe(results[-1])))
    counts = Counter(result["result"] for result in results)
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no files")
    if given.json:
        given.json.write_text(json.dumps({"counts": counts, "files": results}, indent=1))
    if given.html:
        given.html.write_text(make_page(results, counts))
    return 1 if set(counts) - {"ok", "refused"} else 0


def warm_up() -> None:
    """Try a small file, so that no child has to import what all of them use."""
    out = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2]}), out)
    examine(out.getvalue())


def find_files(folder: Path) -> Iterator[Path]:
    """Yield the Parquet files of a folder and the folders in it, by name."""
    yield from (path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES)


def try_file(path: Path, memory: int, seconds: int) -> dict[str, Any]:
    """Return what became of a file, which a child process tries."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_try, args=(path, memory, sender))
    child.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            child.kill()
            return {"result": "timeout", "why": f"more than {seconds} s", "checks": {}}
        result: dict[str, Any] = receiver.recv()
    except EOFError:
        child.join()
        return {"result": "crashed", "why": f"exit code {child.exitcode}", "checks": {}}
    finally:
        child.join()
    return result


def _try(path: Path, memory: int, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    sender.send(examine(path.read_bytes()))
    sender.close()


def examine(plain: bytes) -> dict[str, Any]:
    """Return the result of all checks of a file."""
    try:
        subject = Subject(plain)
    except ModcryptError as error:
        return {"result": "refused", "why": f"{error.word}: {error}"[:300], "checks": {}}
    except Exception as error:  # a defect, and a result
        return {"result": "failed", "why": f"{type(error).__name__}: {error}"[:300], "checks": {}}
    checks = {}
    for name, check in CHECKS.items():
        try:
            checks[name] = check(subject)
        except Exception as error:  # a defect, and a result
            checks[name] = f"{type(error).__name__}: {error}"[:300]
    wrong = {name: why for name, why in checks.items() if why}
    return {
        "result": "failed" if wrong else "ok", "size": len(plain),
        "encrypted_size": len(subject.file), "pyarrow": subject.unreadable, "checks": wrong,
    }  # fmt: skip


def make_page(results: list[dict[str, Any]], counts: Counter[str]) -> str:
    """Return a page: the counts, and a row for each file with something to say."""
    rows = [
        "<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in _describe(result))
        for result in results
        if result["result"] != "ok"
    ]
    summary = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Corpus</title>'
        "<style>body{font-family:sans-serif}td,th{text-align:left;padding:.2em .8em;"
        "overflow-wrap:anywhere}</style>"
        f"<h1>Parquet files, encrypted and back</h1><p>{html.escape(summary)}</p>"
        "<table><tr><th>File<th>Result<th>Why" + "".join(rows) + "</table></html>\n"
    )


def _describe(result: dict[str, Any]) -> tuple[str, str, str]:
    why = result.get("why") or "; ".join(f"{n}: {text}" for n, text in result["checks"].items())
    return result["file"], result["result"], why


if __name__ == "__main__":
    sys.exit(main())
