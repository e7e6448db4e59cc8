"""Run the attacks of the tamper matrix that are no cases of the conformance suite.

    python tools/tamper_matrix.py            run all, write attacks.json and the document
    python tools/tamper_matrix.py --why      also print what each reader reported
    python tools/tamper_matrix.py --check    run all, write nothing; fails if attacks.json differs

Needs the packages of the dependency group `test`, and a Java.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# After the path: a script's own folder alone is on it.
from tests.support.java.parquet_java import ParquetJava
from tests.support.tamper.matrix import (
    RESULTS,
    Cell,
    all_readers,
    describe_attacks,
    run,
    unmeasured,
)
from tests.support.tamper.readers import close
from tools.conformance import tamper_table


def run_all(*, why: bool) -> dict[str, Any]:
    """Run the attacks and return what attacks.json has."""
    found: dict[str, Any] = {}
    with ParquetJava() as java, tempfile.TemporaryDirectory() as folder:
        readers = all_readers(java)
        try:
            for name, reader in readers.items():
                start = time.perf_counter()
                cells = run(reader, Path(folder) / f"{len(found)}", unmeasured(reader))
                outcomes = {title: str(cell) for title, cell in cells.items()}
                found[name] = {"version": reader.version, "outcomes": outcomes}
                print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
                if why:
                    _print_outcomes(name, cells)
        finally:
            close(readers.values())
    return {"attacks": describe_attacks(), "readers": found}


def _print_outcomes(name: str, outcomes: dict[str, Cell]) -> None:
    for attack, cell in outcomes.items():
        print(f"{name} | {attack} | {cell} | {' '.join(cell.detail.split())[:300]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--why", action="store_true", help="print what each reader reported")
    parser.add_argument("--check", action="store_true", help="write nothing, and compare")
    arguments = parser.parse_args()
    text = json.dumps(run_all(why=arguments.why), indent=1, ensure_ascii=False) + "\n"
    path = RESULTS / tamper_table.ATTACKS
    if not arguments.check:
        path.write_text(text)
        tamper_table.write_document(RESULTS)
    elif text != path.read_text():
        sys.exit(f"{path.name} differs from this run: run again without --check to write it")


if __name__ == "__main__":
    main()
