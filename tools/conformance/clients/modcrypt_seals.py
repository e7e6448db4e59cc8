"""Verification of seals for the client of modcrypt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import modcrypt as mc
from modcrypt.iceberg.format.table_versions import read_metadata
from modcrypt.iceberg.read.table_seals import check_table_seal
from modcrypt.io.places import Place
from modcrypt.kms.signing.signing_keys import check_verifying_keys
from tools.conformance.clients.client_loop import Json

SEALS = ("table-seals", "seal-ledgers")
"""Features of readers of seals."""


def read_seal(request: Json) -> Json:
    """Return how a folder, or the metadata of a table, differs from its seal."""
    writers = parse_keys(request["signed_by"])
    find = find_in_folder if request["metadata"] is None else find_in_table
    return {"outcome": "findings", "findings": find(request, writers)}


def parse_keys(lines: Sequence[str]) -> list[mc.kms.VerifyingKey]:
    return [mc.kms.VerifyingKey.parse(line) for line in lines]


def find_in_folder(request: Json, writers: Sequence[mc.kms.VerifyingKey]) -> list[Json]:
    demands: Any = {name: request[name] for name in ("at_least", "needed", "dataset")}
    demands["witness_store"] = f"{request['path']}/_modcrypt_seals"
    witnesses = parse_keys(request["witnessed_by"])
    report = mc.jobs.verify_seal(request["path"], writers, witnessed_by=witnesses, **demands)
    return [{"path": finding.path, "problem": finding.problem} for finding in report.findings]


def find_in_table(request: Json, writers: Sequence[mc.kms.VerifyingKey]) -> list[Json]:
    """Return no findings; metadata that differs from its seal is an error.

    This calls an internal function, since the public ones open a whole table.
    """
    place = Place(None, str(Path(request["path"], request["metadata"])))
    known, table = check_verifying_keys(writers), read_metadata(place)
    check_table_seal(place, table, known, request["at_least"], request["needed"])
    return []
