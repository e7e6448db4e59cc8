"""Add the commands for lakes to the program, which finds this module by an entry point."""

from __future__ import annotations

from modcrypt.cli.keys.keys_group import keys
from modcrypt.cli.program import LAKE, Program
from modcrypt.lake.commands.lake_commands import apply, status
from modcrypt.lake.commands.lake_questions import impact, report, why
from modcrypt.lake.commands.lake_trust import trust
from modcrypt.lake.commands.lake_verification import verify


def add_commands(program: Program) -> None:
    """Add the commands of lakes, and let `verify` verify them."""
    program.add_to_section(LAKE, status, apply, report, why, trust)
    program.replace_command(verify)
    keys.add_command(impact)
