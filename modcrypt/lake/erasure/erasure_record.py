"""The record of erasures beside a declaration: `modcrypt.erased.jsonl`.

`modcrypt shred` writes a line before it removes the first key, so that an erasure that was
interrupted shows: the files that still open are faults. The record is as trusted as the
declaration: it lies beside it, and no other user may be able to change it. In a dataset with
`signed_by`, each line must also be signed by one of its writers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modcrypt.errors import MAX_NAME, printable
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.lake.erasure.erasures import MAX_ERASURES, Erasure, list_erasure_faults, make_erasure
from modcrypt.lake.record_file import (
    append_lines,
    encode_line,
    find_signer,
    mode_beside,
    read_lines,
)
from modcrypt.pkmt1.strict_json import strict_json

SCHEMA = "modcrypt.lake.erasure/1"
"""The name and version of a line of the record; signatures begin with it."""

MAX_RECORD = 64 << 20
"""Size limit of a record in bytes: the paths of about a million files."""


@dataclass(frozen=True, slots=True)
class RecordedErasure:
    """A line of the record."""

    dataset: str
    erasure: Erasure
    signer: str | None = None  # id of the key that signed the line; None if it is not signed


def record_path(declaration: str | os.PathLike[str]) -> Path:
    """Return the path of the record beside a declaration."""
    return Path(declaration).with_suffix(".erased.jsonl")


def read_record(
    path: Path, partitions: Mapping[str, Collection[str] | None],
    writers: Mapping[str, Collection[VerifyingKey]],
) -> list[RecordedErasure]:  # fmt: skip
    """Return the lines of a record about declared datasets; none if there is no record.

    Args:
        partitions: Names of the partitions of each declared dataset; None for a table.
        writers: Keys of each dataset with `signed_by`, one of which must have signed its lines.

    Raises:
        ValueError: A line is malformed, or not signed although it must be.
        KeyRetrievalError: Another user may change the record.
        OSError: It cannot be read.
    """
    lines = read_lines(path, MAX_RECORD)
    if len(lines) > MAX_ERASURES:
        raise ValueError(f"{path} has more than {MAX_ERASURES:,} lines")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            recorded = _parse_line(line, partitions, writers)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        found += [] if recorded is None else [recorded]
    return found


def _parse_line(
    line: bytes, partitions: Mapping[str, Collection[str] | None],
    writers: Mapping[str, Collection[VerifyingKey]],
) -> RecordedErasure | None:  # fmt: skip
    """Return the content of a line; None if the declaration has no such dataset any more."""
    given = strict_json(line, surrogates=True)
    if not isinstance(given, dict) or given.get("schema") != SCHEMA:
        raise ValueError(f"is not an erasure of the form {SCHEMA}")
    dataset = given.get("dataset")
    if not isinstance(dataset, str):
        raise ValueError("names no dataset")
    if dataset not in partitions:
        return None
    signer = None
    if dataset in writers:
        signer = _check_signature(given, writers[dataset])
    others = ("schema", "dataset", "signature")
    members = {name: value for name, value in given.items() if name not in others}
    if faults := list_erasure_faults(members, partitions[dataset]):
        raise ValueError("; ".join(faults))
    return RecordedErasure(dataset, make_erasure(members), signer)


def _check_signature(given: Mapping[str, Any], writers: Collection[VerifyingKey]) -> str:
    """Return the id of the writer that signed a line; raise ValueError if none did."""
    dataset = printable(given["dataset"], MAX_NAME)
    if not isinstance(given.get("signature"), str):
        raise ValueError(f"is not signed, but {dataset} has signed_by; erase with --sign")
    if (writer := find_signer(given, writers)) is None:
        raise ValueError(f"no writer that {dataset} names in signed_by signed it as it is")
    return writer.hex_id


def append_erasure(
    declaration: str, dataset: str, erasure: Erasure, signing_key: SigningKey | None = None
) -> None:
    """Add a line to the record of a declaration, which appears as a whole or not at all.

    Who may read the declaration may read the record.

    Raises:
        KeyMaterialError: The record would be too long.
        KeyRetrievalError: Another user may change the record, or the signing key is refused.
        OSError: The record cannot be written.
    """
    given = {"schema": SCHEMA, "dataset": dataset, **erasure.fields()}
    append_lines(
        record_path(declaration), encode_line(given, signing_key), MAX_RECORD, most=MAX_ERASURES,
        mode=mode_beside(declaration),
    )  # fmt: skip
