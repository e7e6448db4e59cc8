"""Record what `shred` erases in declared datasets, beside their declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from modcrypt.cli.datasets.arguments import dataset_of
from modcrypt.cli.datasets.declared import Declared
from modcrypt.errors import printable


def record_erasures(
    paths: Sequence[str], selection: Mapping[str, Any], request: str | None, *,
    plan: Callable[[], Sequence[Any]], read_signing_key: Callable[[], Any],
) -> None:  # fmt: skip
    """Record the erasure of the paths that lie in declared datasets, before it begins.

    `plan` returns what a dry run says about the files, and `read_signing_key` the signing key.

    Raises:
        click.UsageError: `--request` is given, and a path lies in no dataset.
        ValueError, KeyRetrievalError, OSError: As `record_shredding`.
    """
    datasets: dict[tuple[str, str], tuple[Declared, list[str]]] = {}
    for path in paths:
        declared = dataset_of(path)
        if declared is None:
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
