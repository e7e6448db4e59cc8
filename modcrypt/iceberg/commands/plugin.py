"""Add the commands for Iceberg tables to the program, which finds this module by an entry point."""

from __future__ import annotations

from modcrypt.cli.program import OTHERS, Program
from modcrypt.iceberg.commands.iceberg_group import iceberg


def add_commands(program: Program) -> None:
    """Add `modcrypt iceberg`."""
    program.add_to_section(OTHERS, iceberg)
