"""Paths among the arguments of a command, and the dataset that they belong to.

A PATH that exists is a path; else it may be the name of a declared dataset, or FILE#NAME.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from modcrypt.cli.datasets.declared import (
    KEYS,
    NAME,
    Declared,
    find_lake,
    find_named,
    find_typed,
    split_reference,
    usage_error,
)
from modcrypt.errors import printable
from modcrypt.io.addresses import is_url

_ARGUMENTS = "modcrypt.arguments"
_NAMED, _WARNED = "modcrypt.named", "modcrypt.warned"


@dataclass(frozen=True)
class _Arguments:
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
    refuse_pipes(paths)
    has_destination = (parameter.metavar or "").endswith("[DESTINATION]")
    ends = has_destination and len(paths) > 1 and not context.params.get("in_place")
    find = partial(_find_place, context=context, tables=tables)
    sources = [find(path) for path in paths[: len(paths) - ends]]
    last = [find(path, may_be_new=True) for path in paths[len(paths) - ends :]]
    context.meta[_ARGUMENTS] = _Arguments(sources, last[0] if last else None)
    if isinstance(value, str):
        return sources[0]
    return (*sources, *last)


def refuse_pipes(paths: Collection[str]) -> None:
    """Raise a usage error if an argument is "-"."""
    if "-" in paths:
        raise click.UsageError(
            "pipes are not supported: Parquet needs random access; use modcrypt ags1 for any "
            "file or pipe"
        )


def _find_place(
    text: str, context: click.Context, *, tables: bool, may_be_new: bool = False
) -> str:
    """Return the path that an argument names: itself, or that of the dataset with this name."""
    if is_url(text):
        return text
    exists = os.path.lexists(text)
    if not exists and (reference := split_reference(text)):
        lake = find_lake(reference[0])
        return text if lake is None else _locate(Declared(lake, *reference[::-1]), context, tables)
    if not NAME.fullmatch(text):
        return text
    lake = find_lake()
    if lake is None or not lake.has(text):
        outer, _, inner = text.partition("/")
        if exists or may_be_new or lake is None or (inner and not lake.has(outer)):
            return text
        if lake.refusal is not None:
            raise usage_error(lake.refusal)
        raise click.UsageError(
            f"there is no file {text}, and {lake.path} declares no dataset {text}"
            f"{lake.suggest(text)}"
        )
    if exists:
        if lake.is_place_of(text, text):
            return text
        raise click.UsageError(
            f"{text} is a path, and a dataset of {lake.path} at another place; write ./{text} or "
            f"{lake.path}#{text}"
        )
    return _locate(Declared(lake, text), context, tables)


def _locate(declared: Declared, context: click.Context, tables: bool) -> str:
    """Return the place of a dataset, and remember its name; a table, if allowed, has only that."""
    try:
        place = declared.lake.locate(declared.name)
    except (ValueError, OSError) as error:
        raise usage_error(error) from None
    if place is None and not tables:
        raise click.UsageError(declared.lake.advise(declared.name, context.info_name or ""))
    place = place or declared.name
    context.meta.setdefault(_NAMED, {})[place] = declared
    return place


def names_paths() -> bool:
    """Return whether an argument of the running command names paths."""
    arguments: _Arguments = click.get_current_context().meta.get(_ARGUMENTS, _Arguments())
    return bool(arguments.sources)


def find_declared(policy_file: str | None, *, writes: bool = False) -> Declared | None:
    """Return the dataset whose files the running command reads, or writes; None for other files.

    It is the one that `policy_file` names, or the one that the arguments lie in.

    Raises:
        click.UsageError: The arguments belong to several datasets.
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
    return next(iter(found), None)


def dataset_of(path: str, *, tables: bool = False) -> Declared | None:
    """Return the dataset that a path of the running command lies in, or whose name it stood for.

    With `tables`, also a table whose folder it is.

    Raises:
        click.UsageError: Several datasets share the folder.
    """
    named: Mapping[str, Declared] = click.get_current_context().meta.get(_NAMED, {})
    if path in named:
        return named[path]
    lake = find_lake()
    try:
        if lake is None or lake.refusal is not None:
            return None
        name = lake.dataset_at(path) or (lake.table_at(path) if tables else None)
    except ValueError as error:
        raise usage_error(error) from None
    return None if name is None else Declared(lake, name)


def use_paths(paths: Sequence[str]) -> None:
    """Let the running command be about some of its paths only."""
    click.get_current_context().meta[_ARGUMENTS] = _Arguments(paths)


def _warn_if_ignored(paths: Sequence[str]) -> None:
    """Print, once, that a declaration decides about nothing, if no option names keys instead."""
    meta, lake = click.get_current_context().meta, find_lake() if paths else None
    if lake is None or lake.refusal is None or find_typed(KEYS | {"to"}) or meta.get(_WARNED):
        return
    meta[_WARNED] = True
    if not any(map(lake.may_have, paths)):
        return
    why = "is not trusted; modcrypt trust shows what it commands"
    if not lake.is_valid:
        why = "cannot be read, or has mistakes; modcrypt status shows them"
    click.echo(f"modcrypt: warning: {printable(lake.path)} is ignored, because it {why}", err=True)


def destination_dataset() -> Declared | None:
    """Return the dataset that the DESTINATION of the running command lies in."""
    arguments: _Arguments = click.get_current_context().meta.get(_ARGUMENTS, _Arguments())
    return None if arguments.destination is None else find_declared(None, writes=True)
