"""Iceberg tables that a declaration names, as arguments of commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from modcrypt.cli.datasets.declared import (
    NAME,
    Declared,
    find_lake,
    refuse_ambiguity,
    split_reference,
    usage_error,
)
from modcrypt.cli.datasets.requirements import is_same_service, refuse_contradiction
from modcrypt.io.addresses import is_url

_TABLE = "modcrypt.table"


def take_table(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the Iceberg table of an argument: its place or identifier, if it is declared by name.

    It is the callback of arguments. What is declared becomes the default of the options. Raise
    click.UsageError if an option contradicts the declaration, or it may not decide.
    """
    found = None if value is None else _find_table(value)
    if found is None:
        return value
    try:
        declared = found.lake.table_options(found.name)
    except (ValueError, OSError) as error:
        raise usage_error(error) from None
    if declared is None:
        raise click.UsageError(f"{found.name} is a dataset of Parquet files, not an Iceberg table")
    for option, wanted in declared.items():
        given, is_open = context.params.get(option), wanted is None and "catalog" not in option
        if given not in (None, ()) and not is_open and not _agrees(option, given, wanted):
            words = ", ".join(wanted) if isinstance(wanted, tuple) else wanted
            refuse_contradiction(found, option, f"with {words}" if wanted else f"at {value}")
    context.meta[_TABLE] = {**declared, "dataset": found}
    context.default_map = {**(context.default_map or {}), **declared}
    return str(declared["where"])


def _find_table(text: str) -> Declared | None:
    """Return the dataset that an argument for a table names, or whose folder it is."""
    file, name = split_reference(text) or (None, text)
    if (lake := find_lake(file)) is None:
        return None
    if file is None and (is_url(text) or os.path.lexists(text)):
        found = lake.table_at(text) if lake.refusal is None else None
        if found is None and lake.has(text):
            refuse_ambiguity(lake, text, text)
            found = text
        return None if found is None else Declared(lake, found)
    if file is not None or lake.has(name):
        return Declared(lake, name)
    is_named = NAME.fullmatch(name) and not click.get_current_context().params.get("catalog")
    if is_named and lake.refusal is not None and not lake.is_valid:  # it may declare the table
        raise usage_error(lake.refusal)
    if is_named and (advice := lake.suggest(name)):
        raise click.UsageError(
            f"there is no folder {name}, and {lake.path} declares no dataset {name}{advice}"
        )
    return None


def declared_table() -> Mapping[str, Any]:
    """Return the values that `take_table` found for the table of the running command."""
    members: Mapping[str, Any] = click.get_current_context().meta.get(_TABLE, {})
    return members


def _agrees(parameter: str, given: Any, declared: Any) -> bool:
    """Return whether the value of an option is the declared one; a list may be a part of it."""
    if parameter == "kms":
        return is_same_service(given, declared)
    return set(given) <= set(declared) if isinstance(given, tuple) else given == declared
