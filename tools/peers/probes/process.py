"""Programs in other languages, which probes build in a temporary folder and ask to read files.

A program reads lines from standard input, with six fields separated by tabs: the path, columns,
footer key, AAD prefix behind `=` (empty for none), column keys as `name=key`, and how to read
("count" returns the number of rows). Keys and the prefix are in hex. It answers each line with `ok`
or the kind of an error, a tab, and the text.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import steps

FOLDER = Path(__file__).resolve().parent


@contextmanager
def start(sources: str, build: Sequence[Sequence[str]], command: Sequence[str]) -> Iterator[Any]:
    """Build and start a program, and yield a function that reads a file.

    Args:
        sources: Name of the folder that holds the program.
        build: Commands that build it.
        command: Command that starts it; {build} stands for the folder in which it was built.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(FOLDER / sources, folder, dirs_exist_ok=True)
        for line in build:
            subprocess.run(line, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        words = [word.replace("{build}", folder) for word in command]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            yield partial(_ask, process.stdin, process.stdout)
            process.stdin.close()


def _ask(
    stdin: IO[str],
    stdout: IO[str],
    path: str,
    columns: Sequence[str] | None = None,
    *,
    footer_key: bytes = b"",
    aad_prefix: bytes | None = None,
    column_keys: Mapping[str, bytes] | None = None,
    how: str = "",
) -> str:
    prefix = "" if aad_prefix is None else f"={aad_prefix.hex()}"
    keys = ",".join(f"{name}={key.hex()}" for name, key in (column_keys or {}).items())
    fields = (path, ",".join(columns or ()), footer_key.hex(), prefix, keys, how)
    stdin.write("\t".join(fields) + "\n")
    stdin.flush()
    kind, _, text = stdout.readline().rstrip("\n").partition("\t")
    if kind != "ok":
        raise type(kind or "Ended", (Exception,), {})(text)
    return text


def file_steps(read: Any) -> dict[str, steps.Step]:
    """Return the steps for a program that reads single files with and without keys.

    Args:
        read: Function that `start` yields.
    """
    found = keyless_file_steps(read) | steps.keyed_steps(read)
    del found["mixed-folder: footer key"]  # these programs are given one file at a time
    read_with = partial(read, footer_key=steps.FOOTER_KEY)
    one_key = partial(read_with, "columns.parquet", column_keys=steps.ONE_COLUMN_KEY)
    all_keys = {"column_keys": steps.COLUMN_KEYS}
    return found | {
        "all-keys: column keys": partial(read_with, "columns.parquet", **all_keys),
        "missing-key: other columns": partial(one_key, ["id", "name"]),
        "missing-key: all columns": one_key,
        "plaintext-footer: all keys": partial(read_with, "plaintext-footer.parquet", **all_keys),
        "mixed-folder: plaintext file, footer key": partial(read_with, "mixed/a.parquet"),
    }


def keyless_file_steps(read: Any) -> dict[str, steps.Step]:
    """Return the steps that need no key, for a program that reads single files.

    Args:
        read: Function that `start` yields.
    """
    found = steps.keyless_steps(read, partial(read, how="count"))
    del found["key-material: folder, no key"], found["mixed-folder: no key"]
    return found
