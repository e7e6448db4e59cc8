"""Write the first screen of help as the package has it, for all widths of terminals.

`python -m tools.first_screen` writes `modcrypt/cli/help/first_screen.txt`; a test compares it.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from modcrypt.cli.app import program
from modcrypt.cli.help.first_screen import LEAST, MOST, SCREEN
from modcrypt.cli.help.help_screens import format_screen


def make_file() -> str:
    """Return the lines of all widths in their order, each after the first and last that has it."""
    widths: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for columns in range(LEAST, MOST + 1):
        for number, paragraph in enumerate(format_help(columns).split("\n\n")):
            for place, line in enumerate([*paragraph.split("\n"), ""]):
                widths[number, place, line].append(columns)
    ranges = sorted((*key[:2], found[0], found[-1], key[2]) for key, found in widths.items())
    lines = [f"{least:3} {most:3} {line}\n" for _, _, least, most, line in ranges]
    return "".join(lines[:-1])  # no empty line follows the last paragraph


def format_help(columns: int) -> str:
    """Return the help of the program as it prints it at a terminal."""
    program.complete()
    context = program.context_class(program, info_name="modcrypt", **program.context_settings)
    context.formatter_settings["width"] = columns - 1
    return format_screen(context)


if __name__ == "__main__":
    Path(SCREEN).write_text(make_file(), encoding="ascii")
