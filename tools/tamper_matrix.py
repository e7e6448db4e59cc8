"""Run the tamper matrix and write its table into docs/reference/tamper-matrix.md.

    python tools/tamper_matrix.py            run all, write the table
    python tools/tamper_matrix.py --why      also print what each reader reported
    python tools/tamper_matrix.py --check    run all, write nothing; fails if the table differs

Needs the packages of the dependency group `test`, and a Java.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# After the path: a script's own folder alone is on it.
from tests.support.java.parquet_java import ParquetJava
from tests.support.tamper.matrix import (
    DOCUMENT,
    Cell,
    all_readers,
    document_with,
    published_table,
    run,
    table_text,
)
from tests.support.tamper.readers import close


def run_all(*, why: bool) -> str:
    """Run the matrix and return the table."""
    matrix: dict[str, dict[str, Cell]] = {}
    with ParquetJava() as java, tempfile.TemporaryDirectory() as folder:
        readers = all_readers(java)
        try:
            for name, reader in readers.items():
                start = time.perf_counter()
                matrix[name] = run(reader, Path(folder) / f"{len(matrix)}")
                print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
                if why:
                    _print_outcomes(name, matrix[name])
        finally:
            close(readers.values())
    return table_text(matrix, [reader.version for reader in readers.values()])


def _print_outcomes(name: str, outcomes: dict[str, Cell]) -> None:
    for attack, cell in outcomes.items():
        print(f"{name} | {attack} | {cell} | {' '.join(cell.detail.split())[:300]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--why", action="store_true", help="print what each reader reported")
    parser.add_argument("--check", action="store_true", help="write nothing, and compare")
    arguments = parser.parse_args()
    table = run_all(why=arguments.why)
    if not arguments.check:
        DOCUMENT.write_text(document_with(table))
    elif table != published_table():
        sys.exit(f"{DOCUMENT.name} differs from this run: run again without --check to write it")


if __name__ == "__main__":
    main()
