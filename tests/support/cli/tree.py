"""The commands of the program, by their full names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click


def commands_of(group: Any, name: str = "modcrypt") -> Iterator[tuple[str, Any]]:
    """Yield each command and group with its full name."""
    yield name, group
    for part, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{name} {part}")
        else:
            yield f"{name} {part}", command
