"""What a terminal shows: wrapped tables, words that stay whole, styles, and suggestions."""

from __future__ import annotations

import io
import itertools
import os
import re
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.cells import cell_len

from modcrypt.cli.output.terminal import RED, paint, wrap_words
from modcrypt.cli.output.text_table import wrap_cells
from tests.support.cases import each_case
from tests.support.cli.program import (
    KEY,
    PROGRAM,
    check_failure,
    environment,
    private,
    run,
    run_on_terminal,
)
from tests.support.keys import FOOTER_KEY

LONG = "".join(f"{n:04}_" for n in range(40))  # 200 characters


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def squeeze(text: str) -> str:
    return "".join(sorted("".join(text.split())))


@each_case(
    ("titles", "rows"),
    [
        (["column", "type", "key"], [[LONG, "int64", "footer key"], ["a", "string", "plaintext"]]),
        (["file", "message"], [[f"lake/{LONG}/a.parquet", "several words " * 30]]),
        (["n", "wide"], [["1", "漢字" * 60]]),
        ([f"title {n}" for n in range(8)], [["some words to wrap"] * 8]),
    ],
)
def test_tables_fit_80_columns_and_lose_nothing(titles: list[str], rows: list[list[str]]) -> None:
    text = wrap_cells(titles, rows, width=80)
    assert max(map(cell_len, text.splitlines())) <= 80
    assert squeeze(text) == squeeze("".join(titles) + "".join(itertools.chain(*rows)))


def test_a_table_that_fits_is_not_wrapped_and_numbers_never_are() -> None:
    assert wrap_cells(["a", "b"], [["x", "10"]], right={1}, width=80) == "a   b\nx  10"
    text = wrap_cells(["name", "size"], [[LONG, "123456789"]], right={1}, width=40)
    assert text.splitlines()[1].endswith("  123456789")


def test_words_stay_whole_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = "modcrypt: error: usage: --column-key takes a name and a reference"
    assert wrap_words(text, io.StringIO()) == text
    lines = wrap_words(text, Terminal()).splitlines()
    assert len(lines) == 2
    assert " ".join(line.strip() for line in lines) == text


@each_case(
    ("variables", "painted"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_only_terminals_show_styles(
    variables: dict[str, str], painted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert paint("text", RED, io.StringIO()) == "text"
    assert paint("text", RED, Terminal()) == ("\x1b[31mtext\x1b[0m" if painted else "text")


def test_the_program_wraps_a_table_on_a_terminal(tmp_path: Path) -> None:
    pq.write_table(pa.table({LONG: [1], "b": [2]}), tmp_path / "plain.parquet")
    command = [str(PROGRAM), "inspect", "plain.parquet"]
    answer, shown = run_on_terminal(tmp_path, command, "stdout", env=environment(COLUMNS="80"))
    assert answer.returncode == 0
    text = re.sub(r"\x1b\[\d+m", "", shown)
    assert "\x1b[1m" in shown
    _, _, table = text.partition("\n\n")
    assert max(map(len, table.splitlines())) <= 80


# --- suggestions ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    private(tmp_path / "footer.key", FOOTER_KEY)
    pq.write_table(pa.table({"name": ["Ada"], "zip": [1]}), tmp_path / "plain.parquet")
    return tmp_path


def test_a_misspelt_column_is_suggested(folder: Path) -> None:
    answer = run(folder, "encrypt", *KEY, "--plaintext-column", "nmae", "plain.parquet", "out")
    assert check_failure(answer, 2, "usage").endswith("it has name, zip; did you mean name?")
    answer = run(folder, "encrypt", *KEY, "--plaintext-column", "other", "plain.parquet", "out")
    assert "did you mean" not in check_failure(answer, 2, "usage")


def test_a_misspelt_master_key_is_suggested(folder: Path) -> None:
    kms = ("--kms", "file:ring")
    assert run(folder, "keys", "create", *kms, "--plaintext", "footer").returncode == 0
    answer = run(folder, "keys", "disable", *kms, "foter")
    assert check_failure(answer, 3, "no-key").endswith("no master key foter; did you mean footer?")
    answer = run(folder, "keys", "disable", *kms, "pii")
    assert check_failure(answer, 3, "no-key").endswith("modcrypt keys create adds one")


def test_a_misspelt_option_and_command_are_suggested(folder: Path) -> None:
    assert "--key" in check_failure(run(folder, "encrypt", "--kye", "x", "a"), 2, "usage")
    assert "encrypt" in check_failure(run(folder, "encrpt"), 2, "usage")


# --- a closed standard output ---------------------------------------------------------------------


@each_case("words", ["--version", "verify --help", "inspect a.parquet"])
def test_output_that_is_lost_is_no_success(words: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    read, gone = os.pipe()
    os.close(read)
    for redirection, code in ((">&-", 2), (f">&{gone}", 128 + signal.SIGPIPE), (">/dev/full", 74)):
        answer = subprocess.run(
            ["bash", "-c", f"{PROGRAM} {words} {redirection}"], cwd=tmp_path, pass_fds=[gone],
            env=environment(), stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
        assert (answer.returncode, answer.stderr.count(b"\n")) == (code, int(code != 141))
    os.close(gone)
