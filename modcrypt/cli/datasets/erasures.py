"""Record what `shred` erases in declared datasets, beside their declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from modcrypt.cli.datasets.arguments import dataset_of
from modcrypt.cli.datasets.declared import Declared, find_lake
from modcrypt.errors import printable


def record_erasures(
    paths: Sequence[str], selection: Mapping[str, Any], request: str | None, *,
    plan: Callable[[], Sequence[Any]], read_signing_key: Callable[[], Any],
) -> None:  # fmt: skip
    """Record the erasure of the paths that lie in declared datasets, before it begins.

    `plan` returns what a dry run says about the files, and `read_signing_key` the signing key.

    Raises:
        click.UsageError: A path lies in a table, or `--request` is given, and it lies in no
            dataset.
        ValueError, KeyRetrievalError, OSError: As `record_shredding`.
    """
    datasets: dict[tuple[str, str], tuple[Declared, list[str]]] = {}
    for path in paths:
        declared = dataset_of(path)
        if declared is None:
            _refuse_table(path)
            if request is not None:
                raise click.UsageError(f"--request: no declared dataset has {printable(path)}")
            continue
        inside = declared.lake.inside(declared.name, path)
        datasets.setdefault(declared.key, (declared, []))[1].append(inside)
    signing_key = read_signing_key() if datasets else None
    for declared, parts in datasets.values():
        declared.lake.record_erasure(
            declared.name, parts=parts, columns=selection["columns"],
            everything=selection["everything"], request=request or "", plan=plan,
            signing_key=signing_key,
        )  # fmt: skip


def _refuse_table(path: str) -> None:
    """Raise a usage error for a path in an Iceberg table, whose files contain no wrapped keys."""
    lake = find_lake()
    if lake is None or lake.refusal is not None:
        return
    if (table := lake.table_at(path, is_part=True)) is not None:
        raise click.UsageError(lake.advise(table, "modcrypt shred"))
