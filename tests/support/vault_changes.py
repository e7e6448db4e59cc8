"""Changes and checks of vaults in the working directory, for tests."""

from __future__ import annotations

import sqlite3
from typing import Any

from modcrypt.errors import KeyNotFoundError
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects.vault import SubjectErasedError, SubjectVault, open_vault
from tests.support.sample_vault import fingerprints

ALICE, BOB, CAROL = b"alice", b"4711", b"\xff\x00"


def keys_of(vault: SubjectVault, *subjects: bytes, create: bool = False) -> list[Any]:
    """Return something of each subject's key, None if it is erased, or "unknown"."""
    references = vault.references(subjects)
    try:
        return fingerprints(vault, references, create=create)
    except SubjectErasedError:
        raise
    except KeyNotFoundError:
        return ["unknown"] if len(subjects) == 1 else [keys_of(vault, s)[0] for s in subjects]


def change(*statements: str) -> None:
    """Change the database as who may write to it can."""
    connection = sqlite3.connect("subjects.db")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def reopen(tools: KeyTools) -> SubjectVault:
    return open_vault("subjects.db", tools)
