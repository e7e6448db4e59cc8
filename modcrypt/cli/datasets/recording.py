"""Record what commands do to declared datasets, beside their declaration."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import click

from modcrypt.cli.datasets.arguments import dataset_of
from modcrypt.cli.datasets.declared import Lake, find_lake
from modcrypt.errors import printable


@contextmanager
def record_erasures(
    paths: Sequence[str], selection: Mapping[str, Any], request: str | None, *,
    plan: Callable[[], Sequence[Any]], read_signing_key: Callable[[], Any],
) -> Iterator[Callable[[int, Mapping[str, int]], None]]:  # fmt: skip
    """Record the erasure of the paths that lie in declared datasets, before it begins.

    `plan` returns what a dry run says about the files, and `read_signing_key` the signing key. The
    block passes the exit code and the numbers of files by result to the function that it gets.
    Raise click.UsageError if a path lies in a table, or `--request` is given, and it lies in no
    dataset; and ValueError, KeyRetrievalError or OSError as `FoundLake.record_erasure`.
    """
    for path in paths:
        if dataset_of(path) is None:
            _refuse_table(path)
            if request is not None:
                raise click.UsageError(f"--request: no declared dataset has {printable(path)}")
    lakes = _group_paths(paths)
    shredding = {
        "columns": selection["columns"], "everything": selection["everything"],
        "request": request or "", "plan": plan,
    }  # fmt: skip
    signing_key = read_signing_key() if lakes else None
    recordings = (
        lake.record_erasure(parts, signing_key=signing_key, **shredding) for lake, parts in lakes
    )
    with _enter_all(recordings) as end:
        yield end


@contextmanager
def record_event(
    event: str, paths: Sequence[str], read_signing_key: Callable[[], Any]
) -> Iterator[Callable[[int, Mapping[str, int]], None]]:
    """Record what the block does to the datasets in which paths lie, as `record_erasures`."""
    lakes = _group_paths(paths)
    signing_key = read_signing_key() if lakes else None
    recordings = (lake.record_event(event, list(parts), signing_key) for lake, parts in lakes)
    with _enter_all(recordings) as end:
        yield end


def _group_paths(paths: Sequence[str]) -> Collection[tuple[Lake, dict[str, list[str]]]]:
    """Return the lakes in whose datasets paths lie, and the paths inside each dataset."""
    lakes: dict[str, tuple[Lake, dict[str, list[str]]]] = {}
    for path in paths:
        if (declared := dataset_of(path)) is not None:
            place = os.path.realpath(declared.lake.path)
            parts = lakes.setdefault(place, (declared.lake, {}))[1]
            inside = declared.lake.inside(declared.name, path)
            parts.setdefault(declared.name, []).append(inside)
    return lakes.values()


@contextmanager
def _enter_all(
    recordings: Iterable[AbstractContextManager[Callable[[int, Mapping[str, int]], None]]],
) -> Iterator[Callable[[int, Mapping[str, int]], None]]:
    with ExitStack() as stack:
        ends = [stack.enter_context(recording) for recording in recordings]

        def end(code: int, counts: Mapping[str, int]) -> None:
            for each in ends:
                each(code, counts)

        yield end


def _refuse_table(path: str) -> None:
    """Raise a usage error for a path in an Iceberg table, whose files contain no wrapped keys."""
    if (lake := find_lake()) is None or lake.refusal is not None:
        return
    if (table := lake.table_at(path, is_part=True)) is not None:
        raise click.UsageError(lake.advise(table, "modcrypt shred"))
