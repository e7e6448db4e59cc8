"""Run the code blocks of a page of the documentation, in their order and in one folder.

A block with a title is a file of that name. Blocks of Python share their names. In a console block,
lines after "$ " are commands of a shell, and other lines are what the command prints.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.program import Answer, run
from tests.support.paths import ROOT

_BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```',
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    text: str


def blocks_of(page: str) -> list[Block]:
    """Return the code blocks of a page, named by its path below docs/."""
    text = (ROOT / "docs" / page).read_text()
    return [Block(m["language"], m["title"], m["text"]) for m in _BLOCK.finditer(text)]


def run_guide(
    page: str,
    folder: Path,
    *,
    replace: Mapping[str, str] | None = None,
    names: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run the blocks of a page; return the names that its Python defines.

    Args:
        page: Path below docs/.
        folder: Working directory, which holds the titled files.
        replace: Texts of the page that stand for something of the test, such as hosts.
        names: Names that the page's Python finds already defined.
    """
    names = {} if names is None else names
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / ".state"))  # of `modcrypt trust`
        _run_blocks(page, folder, replace or {}, names)
    return names


def _run_blocks(page: str, folder: Path, replace: Mapping[str, str], names: dict[str, Any]) -> None:
    for block in blocks_of(page):
        text = block.text
        for old, new in replace.items():
            text = text.replace(old, new)
        if block.title is not None:
            _write(folder / block.title, text)
        elif block.language == "python":
            with contextlib.chdir(folder):
                exec(compile(text, f"<{page}>", "exec"), names)
        elif block.language == "console":
            _run_console(text, folder)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o700)


def _run_console(text: str, folder: Path) -> None:
    for command, output in commands_of(text):
        answer = _run_in_process(_plain_words(command), folder) or _run(command, folder)
        assert answer.returncode == 0, f"{command}\n{answer.stdout}{answer.stderr}"
        if output:
            assert answer.stdout == output, command


def _plain_words(command: str) -> list[str]:
    """Return the words of a command; none if it needs a shell."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""  # else # in a word begins a comment
    words = list(lexer)
    needs_shell = any(re.fullmatch(r"[();<>|&]+", word) for word in words)
    return [] if needs_shell or re.search("[$`]", command) else words


def _run_in_process(words: list[str], folder: Path) -> Answer | None:
    """Run modcrypt or a script in this process, as it is quicker; None if it is neither."""
    match words:
        case ["!", "modcrypt", *arguments]:
            answer = run(folder, *arguments)
            return Answer(words, int(answer.returncode == 0), answer.stdout, answer.stderr)
        case ["modcrypt", *arguments]:
            return run(folder, *arguments)
        case ["python", script]:
            with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as out:
                runpy.run_path(script, run_name="__main__")
            return Answer(words, 0, out.getvalue(), "")
    return None


def _run(command: str, folder: Path) -> Answer:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euc", command],
        cwd=folder, env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command with the output that the page shows."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        end = next(n for n, line in enumerate(lines) if not line.endswith("\\\n")) + 1
        yield "".join(lines[:end]), "".join(lines[end:])
