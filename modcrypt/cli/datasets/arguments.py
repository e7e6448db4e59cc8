"""Paths among the arguments of a command, and the dataset that they belong to.

A PATH is a path, the name of a declared dataset, a path inside one after its name, or FILE#NAME.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import click

from modcrypt.cli.datasets.declared import (
    KEYS,
    NAME,
    Declared,
    Lake,
    find_lake,
    find_named,
    find_typed,
    refuse_ambiguity,
    split_reference,
    usage_error,
)
from modcrypt.errors import printable
from modcrypt.io.addresses import is_url

_ARGUMENTS = "modcrypt.arguments"
_NAMED, _WARNED = "modcrypt.named", "modcrypt.warned"


class _Arguments(NamedTuple):
    """The sources and the destination that the arguments of a command name."""

    sources: Sequence[str] = ()
    destination: str | None = None


def take_paths(
    context: click.Context, parameter: click.Parameter, value: Any, *, tables: bool = False
) -> Any:
    """Return the paths of an argument, with the places of datasets for their names.

    It is the callback of arguments; `_Arguments` are remembered for `declared_settings`. With
    `tables`, names of Iceberg tables are left as they are; otherwise they are usage errors.
    """
    paths = (value,) if isinstance(value, str) else tuple(value or ())
    check_paths(paths)
    has_destination = (parameter.metavar or "").endswith("[DESTINATION]")
    ends = has_destination and len(paths) > 1 and not context.params.get("in_place")
    find = partial(_find_place, context=context, tables=tables)
    sources = [find(path) for path in paths[: len(paths) - ends]]
    last = [find(path, may_be_new=True) for path in paths[len(paths) - ends :]]
    before = context.meta.get(_ARGUMENTS, _Arguments()).sources  # of another argument or option
    context.meta[_ARGUMENTS] = _Arguments([*before, *sources], last[0] if last else None)
    if isinstance(value, str):
        return sources[0]
    return (*sources, *last)


def check_paths(paths: Collection[str]) -> None:
    """Raise a usage error if an argument is "-", or empty, as that of an unset variable."""
    if "" in paths:
        raise click.UsageError("a path is empty; name a file or folder, such as . for this one")
    if "-" in paths:
        raise click.UsageError(
            "pipes are not supported: Parquet needs random access; use modcrypt ags1 for any "
            "file or pipe"
        )


def _find_place(
    text: str, context: click.Context, *, tables: bool, may_be_new: bool = False
) -> str:
    """Return the path that an argument names: itself, or a place in the dataset of its first part.

    An existing path wins over a dataset of its name only inside it.
    """
    if is_url(text):
        return text
    exists = os.path.lexists(text)
    if not exists and (reference := split_reference(text)):
        lake = find_lake(reference[0])
        return text if lake is None else _locate(lake, reference[1], context, tables, reference[0])
    first, slash, _ = text.partition("/")
    lake = find_lake() if NAME.fullmatch(first) else None
    if lake is None or (exists and slash and lake.refusal is not None):
        return text
    name = lake.split(text)[0]
    if not lake.has(name):
        if not (exists or may_be_new or os.path.lexists(first)):
            _refuse_misspelt(lake, text, first)
        return text
    if not (exists or (may_be_new and slash and os.path.lexists(first))):
        return _locate(lake, text, context, tables)
    refuse_ambiguity(lake, name, text)
    return text


def _refuse_misspelt(lake: Lake, text: str, name: str) -> None:
    """Raise a usage error if nothing has a name, except for a path that resembles no dataset."""
    advice = lake.suggest(name)
    if name != text and (lake.has(name) or not advice):
        return
    if lake.refusal is not None:
        raise usage_error(lake.refusal)
    raise click.UsageError(
        f"there is no file {text}, and {lake.path} declares no dataset {name}{advice}"
    )


def _locate(
    lake: Lake, text: str, context: click.Context, tables: bool, file: str | None = None
) -> str:
    """Return the place of a dataset or inside it, and remember its name; a table may have none."""
    name, inside = lake.split(text)
    try:
        if (place := lake.locate(name)) is None and inside and tables:
            lake.locate(text)  # no dataset is in a table
    except (ValueError, OSError) as error:
        raise usage_error(error) from None
    if place is None and not tables:
        raise click.UsageError(lake.advise(name, context.command_path))
    if place is not None and "/" in text:
        place = f"{place.rstrip('/')}/{inside}"
    place = place or name
    context.meta.setdefault(_NAMED, {})[place] = Declared(lake, name, file)
    return place


def names_paths() -> bool:
    """Return whether an argument of the running command names paths."""
    arguments: _Arguments = click.get_current_context().meta.get(_ARGUMENTS, _Arguments())
    return bool(arguments.sources)


def find_declared(
    policy_file: str | None, *, writes: bool = False, tables: bool = False
) -> Declared | None:
    """Return the dataset whose files the running command reads, or writes; None for other files.

    It is the one that `policy_file` names, or the one that the arguments lie in. With `tables`, the
    folder of an Iceberg table has files as any other. Raise click.UsageError if the arguments
    belong to several datasets, or are an Iceberg table.
    """
    if (named := find_named(policy_file)) is not None:
        return named
    arguments: _Arguments = click.get_current_context().meta.get(_ARGUMENTS, _Arguments())
    is_apart = writes and arguments.destination is not None
    paths = [str(arguments.destination)] if is_apart else arguments.sources
    found = [dataset_of(path) for path in paths]
    names = dict.fromkeys("no dataset" if each is None else each.name for each in found)
    if len({None if each is None else each.key for each in found}) > 1:
        raise click.UsageError(
            f"the paths belong to several datasets ({', '.join(names)}), which have keys of their "
            "own; run the command once for each"
        )
    if not any(found):
        _warn_if_ignored(paths)
        if not tables:
            _refuse_tables(paths)
    return next(iter(found), None)


def dataset_of(path: str, *, tables: bool = False) -> Declared | None:
    """Return the dataset that a path of the running command lies in, or whose name it stood for.

    With `tables`, also a table in whose folder it is. Raise click.UsageError if several datasets
    share the folder.
    """
    named: Mapping[str, Declared] = click.get_current_context().meta.get(_NAMED, {})
    if path in named:
        return named[path]
    lake = find_lake()
    try:
        if lake is None or lake.refusal is not None:
            return None
        name = lake.dataset_at(path) or (lake.table_at(path, is_part=True) if tables else None)
    except ValueError as error:
        raise usage_error(error) from None
    return None if name is None else Declared(lake, name)


def use_paths(paths: Sequence[str]) -> None:
    """Let the running command be about some of its paths only."""
    click.get_current_context().meta[_ARGUMENTS] = _Arguments(paths)


def _refuse_tables(paths: Sequence[str]) -> None:
    """Raise a usage error for the folder of a declared table, if no option names keys for it."""
    lake = find_lake() if paths else None
    if lake is None or lake.refusal is not None or find_typed(KEYS):
        return
    for name in filter(None, map(lake.table_at, paths)):
        raise click.UsageError(lake.advise(name, click.get_current_context().command_path))


def _warn_if_ignored(paths: Sequence[str]) -> None:
    """Print, once, that a declaration decides about nothing, if no option names keys instead."""
    meta, lake = click.get_current_context().meta, find_lake() if paths else None
    if lake is None or lake.refusal is None or find_typed(KEYS | {"to"}) or meta.get(_WARNED):
        return
    if not any(map(lake.may_have, paths)):
        return
    meta[_WARNED] = True
    why = "is not trusted; modcrypt trust shows what it commands"
    if not lake.is_valid:
        why = "cannot be read, or has mistakes; modcrypt status shows them"
    click.echo(f"modcrypt: warning: {printable(lake.path)} is ignored, because it {why}", err=True)
