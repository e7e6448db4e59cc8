"""The help of the whole program as the package has it: no command is imported to print it."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from importlib.util import find_spec
from shutil import get_terminal_size

SCREEN = os.path.join(os.path.dirname(__file__), "first_screen.txt")
"""Lines of the help, each after the least and the most columns of a terminal that show it.

`python -m tools.first_screen` writes it; a test compares it with the help that commands make.
"""

LEAST, MOST = 50, 101
"""Columns of terminals for which the file has lines; wider ones are shown what the widest is."""

_PLUGINS = ("iceberg", "lake", "spark", "subjects")

_MAX_ENTRY_POINTS = 1 << 20  # bytes of a distribution's entry points that are searched


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
    """Return whether click and modcrypt's own plug-ins are there, and no other one."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    if not all(os.path.isdir(os.path.join(package, name)) for name in _PLUGINS):
        return False
    announcing = [name for folder in sys.path for name in _list_announcing(folder)]
    own = bool(announcing) and all(name.startswith("modcrypt-") for name in announcing)
    return own and find_spec("click") is not None


def _list_announcing(folder: str) -> list[str]:
    """Return the metadata folders of the distributions in a folder that announce commands."""
    # `importlib.metadata` finds the same; importing it takes longer than all of this.
    found = []
    with suppress(OSError):  # no folder, or one of someone else
        for name in os.listdir(folder):
            if name.endswith((".dist-info", ".egg-info")):
                with suppress(OSError), open(f"{folder}/{name}/entry_points.txt", "rb") as file:
                    found += [name] * (b"[modcrypt.commands]" in file.read(_MAX_ENTRY_POINTS))
    return found
