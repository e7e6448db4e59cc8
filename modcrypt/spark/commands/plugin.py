"""Add the commands for Spark clusters to the program, which finds this module by an entry point."""

from __future__ import annotations

from modcrypt.cli.program import OTHERS, Program
from modcrypt.spark.commands.spark_files import spark


def add_commands(program: Program) -> None:
    """Add `modcrypt spark`."""
    program.add_to_section(OTHERS, spark)
