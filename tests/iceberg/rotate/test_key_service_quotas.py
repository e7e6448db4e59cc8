"""Rotations and scans of tables whose key service limits the rate of calls."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt.iceberg as mi
from modcrypt.errors import KmsUnavailableError
from modcrypt.kms import pacing
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.kms.key_servers import Bao

ROWS = pa.table({"id": [1, 2]})
SINGLE = mi.KeyPolicy(wrapping="single", kek_per="files")
FILES = 12


def make_table(folder: Path, client: Any, policy: mi.KeyPolicy = SINGLE) -> Any:
    table = mi.create_table(str(folder), ROWS.schema, client, master_key_id="lake", policy=policy)
    for _ in range(FILES):
        table = table.append(ROWS)
    return table


class Vault:
    """A transit engine of OpenBao with two keys, whose rate a test can limit."""

    def __init__(self, server: Bao) -> None:
        self.server, self.mount = server, server.mount()
        for name in ("lake", "sea"):
            server.judge().secrets.transit.create_key(name, mount_point=self.mount)

    def open(self) -> Any:
        from modcrypt.kms.services.vault import open_vault

        return open_vault(self.server.uri(self.mount), token=self.server.root_token)

    def limit(self, rate: int) -> None:
        path = f"/v1/sys/quotas/rate-limit/{self.mount}"
        body = {"rate": rate, "interval": "1s", "path": self.mount}
        self.server.judge().adapter.post(path, json=body)


@pytest.fixture
def vault(bao: Bao, monkeypatch: pytest.MonkeyPatch) -> Vault:
    pytest.importorskip("hvac")
    monkeypatch.delenv("MODCRYPT_KMS_PATIENCE")
    return Vault(bao)


def test_a_table_is_scanned_verified_and_rotated_under_a_quota_of_vault(
    tmp_path: Path, vault: Vault
) -> None:
    make_table(tmp_path, vault.open())
    vault.limit(3)
    with vault.server.record_requests() as requests:
        assert mi.open_table(tmp_path, vault.open()).scan().num_rows == 2 * FILES
    assert len([request for request in requests if "decrypt" in request["path"]]) <= 3
    rotated = mi.rotate_table(mi.open_table(tmp_path, vault.open()), "kek")
    assert rotated.committed
    # One by one, these are 72: each of 24 keys is unwrapped, wrapped and proved.
    assert rotated.kms_calls <= 2 * FILES, "keys must be moved together"
    table = mi.open_table(tmp_path, vault.open())
    assert table.scan().num_rows == 2 * FILES
    assert mi.verify_table(table).ok


@pytest.mark.parametrize("target", ["lake", "sea"])
def test_many_keks_are_moved_by_few_requests(tmp_path: Path, vault: Vault, target: str) -> None:
    table = make_table(tmp_path, vault.open(), mi.KeyPolicy(kek_per="files", files=1))
    before = len(table.metadata.kek_ids())
    assert before >= FILES
    both: Any = {"master_key_ids": ["lake", "sea"]}
    table = mi.open_table(tmp_path, vault.open(), **both)
    rotated = mi.rotate_table(table, "mek", new_master_key_id=target)
    assert rotated.committed
    assert rotated.kms_calls <= 4
    assert mi.open_table(tmp_path, vault.open(), **both).scan().num_rows == 2 * FILES


class Throttling(SampleKms):
    """A key service without batches that refuses two of three calls."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()
        self.granted = 0

    def _pass(self) -> None:
        if next(self.numbers) % 3:
            raise KmsUnavailableError("busy", throttled=True)
        self.granted += 1

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        self._pass()
        return super().wrap(key, master_key_id, aad=aad)

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        self._pass()
        return super().unwrap(wrapped, master_key_id, aad=aad)


def test_a_rotation_that_is_throttled_all_the_time_does_each_call_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "pause", lambda _: None)
    table = mi.create_table(
        str(tmp_path), ROWS.schema, SampleKms(), master_key_id="keyA", policy=SINGLE
    )
    for _ in range(FILES):
        table = table.append(ROWS)
    clear, busy = SampleKms(), Throttling()
    planned = mi.rotate_table(mi.open_table(tmp_path, clear), "kek", dry_run=True)
    assert mi.rotate_table(mi.open_table(tmp_path, busy), "kek").committed
    assert busy.granted <= planned.kms_calls + 2 * FILES  # the plan opens the manifest lists
    assert mi.open_table(tmp_path, SampleKms()).scan().num_rows == 2 * FILES
