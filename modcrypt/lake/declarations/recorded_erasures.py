"""Add what the record of erasures says to the declaration beside it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from modcrypt.errors import KeyRetrievalError
from modcrypt.kms.signing.signing_keys import read_verifying_keys
from modcrypt.lake.declarations.declaration import LakeDeclaration
from modcrypt.lake.erasure.erasure_record import read_record, record_path


def add_recorded_erasures(declaration: LakeDeclaration) -> LakeDeclaration:
    """Return a declaration with the erasures that the record beside it states.

    Raises:
        ValueError: As `read_record`, or another user may change the record.
        OSError: The record cannot be read.
    """
    datasets, tables = declaration.datasets, declaration.tables
    signed = {name: dataset.members.get("signed_by") for name, dataset in datasets.items()}
    signed |= {name: table.signed_by for name, table in tables.items()}
    writers = {name: read_verifying_keys(lines) for name, lines in signed.items() if lines}
    partitions: dict[str, Any] = dict.fromkeys(tables)
    partitions |= {name: dataset.partitions for name, dataset in datasets.items()}
    try:
        found = read_record(record_path(declaration.path), partitions, writers)
    except KeyRetrievalError as error:
        raise ValueError(str(error)) from None
    recorded: dict[str, Any] = {
        name: replace(dataset, erased=(*dataset.erased, *erased))
        for name, dataset in declaration.all.items()
        if (erased := [each.erasure for each in found if each.dataset == name])
    }
    # States of files with erased columns are cached, so other columns make other states.
    columns = [each for each in found if each.erasure.columns]
    digest = hashlib.sha256(f"{declaration.digest}{columns}".encode()).hexdigest()[:16]
    return replace(
        declaration, datasets={name: recorded.get(name, each) for name, each in datasets.items()},
        tables={name: recorded.get(name, each) for name, each in tables.items()},
        digest=digest if columns else declaration.digest,
    )  # fmt: skip
