"""Verification of seals for the client of modcrypt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import modcrypt as mc
from modcrypt.iceberg.format.table_versions import read_metadata
from modcrypt.iceberg.read.table_seals import check_table_seal
from modcrypt.io.places import Place
from modcrypt.kms.signing.signing_keys import check_verifying_keys
from tools.conformance.clients.client_loop import Json


def read_seal(request: Json) -> Json:
    """Return how a folder, or the metadata of a table, differs from its seal."""
    writers = [mc.VerifyingKey.parse(line) for line in request["signed_by"]]
    find = find_in_folder if request["metadata"] is None else find_in_table
    return {"outcome": "findings", "findings": find(request, writers)}


def find_in_folder(request: Json, writers: Sequence[mc.VerifyingKey]) -> list[Json]:
    report = mc.verify_seal(request["path"], writers, at_least=request["at_least"])
    return [{"path": finding.path, "problem": finding.problem} for finding in report.findings]


def find_in_table(request: Json, writers: Sequence[mc.VerifyingKey]) -> list[Json]:
    """Return no findings; metadata that differs from its seal is an error.

    This calls an internal function, since the public ones open a whole table.
    """
    place = Place(None, str(Path(request["path"], request["metadata"])))
    known = check_verifying_keys(writers)
    check_table_seal(place, read_metadata(place), known, request["at_least"])
    return []
