"""Confirmation of what loses data or trusts what nothing authenticates."""

from __future__ import annotations

import sys

import click

from modcrypt.cli.output.terminal import is_terminal


def confirm(consequence: str, yes: bool) -> None:
    """Return if `yes` was given or the user agrees on the terminal.

    Args:
        consequence: What the running command does, as "deletes the table".
        yes: Value of `--yes`.

    Raises:
        click.UsageError: The user does not agree, or there is no terminal.
    """
    if yes:
        return
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise click.UsageError(f"this {consequence}; pass --yes to confirm it")
    click.echo(f"modcrypt: this {consequence}. Continue? [y/N]: ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.UsageError("not confirmed; nothing was changed")
