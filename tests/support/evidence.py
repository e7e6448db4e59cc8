"""Lakes whose declaration asks for evidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from modcrypt.lake.lake import Lake
from tests.support.lake_folder import DECLARATION, make_lake
from tests.support.signing import writer_key

SIGNED = 'sign = "file:operator.key"\nsigned_by = ["operator.pub"]\n'
RECORD = "modcrypt.evidence.jsonl"


def with_evidence(members: str = "", declaration: str = DECLARATION) -> str:
    """Return a declaration with a table [evidence]."""
    return declaration.replace("[dataset.orders]", f"[evidence]\n{members}\n[dataset.orders]", 1)


def make_recorded_lake(folder: Path, members: str = SIGNED, declaration: str = DECLARATION) -> Path:
    """Make a lake of plaintext files that records evidence; return its declaration."""
    writer_key().save(folder / "operator.key")
    (folder / "operator.pub").write_text(f"{writer_key().verifier}\n")
    return make_lake(folder, declaration=with_evidence(members, declaration))


def make_record(folder: Path, members: str = SIGNED) -> Path:
    """Make a lake with some recorded events; return the path of the record."""
    config = make_recorded_lake(folder, members)
    Lake.open(config).apply()
    Lake.open(config).verify()
    Lake.open(config).shred("orders", ["day=2026-11-01"], everything=True, request="R-1")
    Lake.open(config).verify()
    return folder / RECORD


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a record."""
    return [json.loads(line) for line in path.read_text().splitlines()]
