"""The help of the whole program as the package has it: no command is imported to print it."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from shutil import get_terminal_size

SCREEN = os.path.join(os.path.dirname(__file__), "first_screen.txt")
"""Lines of the help, each after the least and the most columns of a terminal that show it.

`python -m tools.first_screen` writes it; a test compares it with the help that commands make.
"""

LEAST, MOST = 50, 101
"""Columns of terminals for which the file has lines; wider ones are shown what the widest is."""

_PLUGINS = ("iceberg", "lake", "spark")


def read_first_screen(columns: int | None = None) -> str:
    """Return the help that fits the terminal; "" if this installation may print another."""
    columns = min(columns or get_terminal_size().columns, MOST)
    if columns < LEAST or not _is_whole():
        return ""
    with open(SCREEN, encoding="ascii") as file:
        return "".join(line[8:] for line in file if int(line[:3]) <= columns <= int(line[4:7]))


def list_commands() -> list[tuple[str, str]]:
    """Return names of commands and what each does; [] if this installation may have others."""
    return re.findall(r"^  (\w+) {2,}(.+)$", read_first_screen(MOST), re.MULTILINE)


def _is_whole() -> bool:
    """Return whether click is there, and the plug-ins and the distribution that announces them."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    if not all(os.path.isdir(os.path.join(package, name)) for name in _PLUGINS):
        return False
    names = (name for folder in sys.path for name in _list_names(folder))
    return find_spec("click") is not None and any(n.startswith("modcrypt-") for n in names)


def _list_names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # no folder, or one of someone else
        return []
