"""A failed Iceberg job carries no data key and no KEK in the frames of its error, nor logs one.

Each job runs again and again; each time another call of the file system, the key service or the
audit hook fails, until a run meets no failure any more.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from modcrypt import KeyTools
from modcrypt.ags1 import StandardKeyMetadata
from modcrypt.errors import KmsUnavailableError, ModcryptError
from modcrypt.iceberg import (
    FileKeyStore,
    IcebergTable,
    KeyPolicy,
    SqliteKeyStore,
    encrypt_table,
    expire_history,
    open_table,
    prune_keys,
    rotate_table,
    set_policy,
)
from modcrypt.keys import Secret
from modcrypt.kms import AuditEvent
from tests.support.failing_steps import Steps, check_failing_runs, record_keys
from tests.support.frame_watch import find_secrets
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])
ROWS = pa.table({"id": [1, 2], "part": ["a", "b"]}, SCHEMA)
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))


class FailingKms(SampleKms):
    """A key service that counts its calls as steps."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        self.steps.take(KmsUnavailableError("away"))
        return super().wrap(key, master_key_id, aad=aad)

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        self.steps.take(KmsUnavailableError("away"))
        return super().unwrap(wrapped, master_key_id, aad=aad)


@dataclass
class Lake:
    """A folder with a table, its key store and a table in plaintext."""

    folder: Path
    policy: KeyPolicy
    steps: Steps = field(default_factory=Steps)

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.policy.store == "key-store":
            kind = SqliteKeyStore if self.policy.kek_per == "files" else FileKeyStore
            path = self.folder / "keys"
            options["key_store"] = kind(path) if path.exists() else kind.create(path)
        return options

    def tools(self) -> KeyTools:
        def audit(event: AuditEvent) -> None:
            self.steps.take(OSError(errno.ENOSPC, "the audit file is full"))

        return KeyTools(FailingKms(self.steps), audit=audit)

    def create(self, name: str = "table") -> IcebergTable:
        return make_table(
            self.folder / name, SCHEMA, self.tools(), partition_spec=BY_PART, policy=self.policy,
            **self.options(),
        )  # fmt: skip

    def table(self) -> IcebergTable:
        return open_table(self.folder / "table", self.tools(), **self.options())

    def plain(self) -> str:
        """Return the metadata location of a table in plaintext."""
        (found,) = self.folder.glob("plain/metadata/00001-*.json")
        return str(found)

    def make_plain(self) -> None:
        catalog = SqlCatalog("c", uri=f"sqlite:///{self.folder}/c.db")
        catalog.create_namespace("n")
        location = f"file://{self.folder}/plain"
        catalog.create_table("n.plain", SCHEMA, location).append(ROWS)
        catalog.close()


JOBS: dict[str, Callable[[Lake], object]] = {
    "create": lambda lake: lake.create("other"),
    "append": lambda lake: lake.table().append(ROWS),
    "encrypt": lambda lake: encrypt_table(
        lake.plain(), lake.folder / "other", lake.tools(), master_key_id="keyA",
        policy=lake.policy, **lake.options(),
    ),
    "mek": lambda lake: rotate_table(lake.table(), "mek", new_master_key_id="keyB"),
    "kek": lambda lake: rotate_table(lake.table(), "kek"),
    "dek": lambda lake: rotate_table(lake.table(), "dek"),
    "policy": lambda lake: set_policy(lake.table(), KeyPolicy(kek_per="day")),
    "prune": lambda lake: prune_keys(lake.table()),
    "expire": lambda lake: expire_history(lake.table()),
}  # fmt: skip
POLICIES = {
    "table": KeyPolicy(),
    "partition": KeyPolicy(kek_per="partition", store="key-store"),
    "files": KeyPolicy(kek_per="files", files=1, store="key-store"),
    "single": KeyPolicy(kek_per="files", wrapping="single"),
}


STRIDES = {
    "create": 3, "append": 13, "encrypt": 11, "mek": 3, "kek": 11, "dek": 31, "policy": 3,
    "prune": 1, "expire": 13,
}  # fmt: skip
"""Of so many steps of a job one fails: each policy begins at another."""


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(name, policy, marks=pytest.mark.slow if (job + number) % 3 else ())
        for job, name in enumerate(JOBS)
        for number, policy in enumerate(POLICIES)
    ],
)
def test_no_failed_job_carries_or_logs_a_key(
    name: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    if (name, policy) == ("mek", "single"):
        pytest.skip("no KEK is wrapped")
    keys = record_keys(monkeypatch)
    lake = Lake(tmp_path / "lake", POLICIES[policy])
    lake.folder.mkdir()
    if name == "encrypt":
        lake.make_plain()
    lake.create().append(ROWS).append(ROWS[:1])
    lake.steps.watch(monkeypatch)
    numbers = itertools.count(list(POLICIES).index(policy), STRIDES[name])
    check_failing_runs(lambda: JOBS[name](lake), lake.steps, lake.folder, keys, caplog, numbers)


DAMAGED: dict[str, Callable[[IcebergTable], object]] = {
    "dek": lambda table: rotate_table(table, "dek"),
    "dry run": lambda table: rotate_table(table, "dek", dry_run=True),
    "kek": lambda table: rotate_table(table, "kek"),
    "prune": prune_keys,
    "scan": lambda table: table.scan().to_arrow(),
    "files": lambda table: table.files(),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_key_metadata_beside_that_in_the_clear_gives_away_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage_each_file(
        metadata: list[StandardKeyMetadata], of_files: object
    ) -> list[Secret[bytes]]:
        first, *others = metadata
        return [Secret(first.encode()), *(Secret(b"\x81\xff\xff") for _ in others)]

    monkeypatch.setattr("modcrypt.iceberg.write.append.encrypt_key_metadata", damage_each_file)
    keys = record_keys(monkeypatch)
    lake = Lake(tmp_path, POLICIES["files"])
    lake.create().append(ROWS)
    with pytest.raises(ModcryptError) as caught:
        DAMAGED[name](lake.table())
    assert find_secrets(caught.value, *keys) == []
