"""Calls and output of the commands that change a master key."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.shared import print_json, print_line
from modcrypt.errors import printable

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.client import MasterKey


def admin_method(client: Any, method: str) -> Any:
    """Return the method of a client that manages master keys."""
    bound_method = getattr(client, method, None)
    if bound_method is None:
        verb = method.partition("_")[0]
        raise click.UsageError(
            f"modcrypt cannot {verb} keys of this key service; use the service's own tools"
        )
    return bound_method


def print_master(done: str, master: MasterKey, as_json: bool, version: int | None = None) -> None:
    """Print what was done to a master key."""
    if as_json:
        print_json("keys.master", asdict(master))
        return
    versions = {
        "disabled": f", versions up to {version}",
        "enabled": f", version {version}",
        "destroyed": f", version {version}",
    }
    if version is not None:
        suffix = versions[done]
    else:
        suffix = "" if done in versions or master.version is None else f", version {master.version}"
    print_line(printable(f"{done} {master.id}{suffix}"))
