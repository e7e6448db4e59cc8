"""A table that Iceberg's Java wrote, and the key service that it was written with."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from modcrypt.iceberg import IcebergTable, open_table
from modcrypt.iceberg.format.table_metadata import TableMetadata
from tests.support.iceberg.java_judge import Judge, why_unavailable
from tests.support.tables import shared_vectors

MASTERS = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}


class SampleKms:
    """The key service of Iceberg's own tests: nonce | AES-GCM(master key) | tag, in base64."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        self.calls.append(("wrap", master_key_id))
        nonce = os.urandom(12)
        sealed = AESGCM(MASTERS[master_key_id]).encrypt(nonce, key, None)
        return base64.b64encode(nonce + sealed).decode()

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        self.calls.append(("unwrap", master_key_id))
        block = base64.b64decode(wrapped)
        try:
            return AESGCM(MASTERS[master_key_id]).decrypt(block[:12], block[12:], None)
        except InvalidTag:
            raise PermissionError("not wrapped by this master key") from None


@pytest.fixture
def kms() -> SampleKms:
    return SampleKms()


@pytest.fixture
def t16(tmp_path: Path) -> Path:
    """A copy of the shared table, which tests may change."""
    folder = tmp_path / "t16"
    shutil.copytree(shared_vectors() / "iceberg-table" / "t16", folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def both(folder: Path) -> dict[str, str]:
    """Map the two beginnings of locations that the shared table has."""
    return {"/warehouse/t16": str(folder), "wh:/t16": str(folder)}


@pytest.fixture
def table(t16: Path, kms: SampleKms) -> IcebergTable:
    return open_table(t16, kms, location_map=both(t16))


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Run Iceberg's own Java, with the master keys of `SampleKms`."""
    if reason := why_unavailable():
        pytest.skip(reason)
    with Judge(MASTERS, tmp_path_factory.mktemp("java") / "java.log") as running:
        yield running


def committing_first(table: IcebergTable, act: Callable[[], object], times: int) -> IcebergTable:
    """Return a table that somebody else commits to just before each of its first commits."""
    real, left = table.versions, [times]

    class Slow:
        def current(self) -> Any:
            return real.current()

        def commit(self, base: Any, metadata: TableMetadata) -> Any:
            if left[0]:
                left[0] -= 1
                act()
            return real.commit(base, metadata)

    return replace(table, versions=Slow())
