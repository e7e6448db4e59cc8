"""A failed Parquet or AGS1 job carries no key in the frames of its error, nor logs one.

As `tests/iceberg/test_error_frames.py`: each time another step of a job fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.errors import KmsUnavailableError
from tests.support.failing_steps import Steps, check_failing_runs, record_keys

ROWS = pa.table({"a": [1, 2], "b": ["x", "y"]})
POLICIES: dict[str, mc.Policy] = {
    "double": mc.Policy(footer_key="kf", column_keys={"kc": ["a"]}),
    "single": mc.Policy(footer_key="kf", column_keys={"kc": ["a"]}, double_wrapping=False),
    "external": mc.Policy(footer_key="kf", column_keys={"kc": ["a"]}, internal_key_material=False),
}
TO = mc.Policy(footer_key="kg")


class FailingKms:
    """A key service whose calls are steps, and which masks keys rather than wraps them."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        self.steps.take(KmsUnavailableError("away"))
        return bytes(byte ^ 0x5A for byte in key).hex()

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        self.steps.take(KmsUnavailableError("away"))
        return bytes(byte ^ 0x5A for byte in bytes.fromhex(wrapped))


class Lake:
    """A folder with a plaintext file, an encrypted one and an AGS1 stream."""

    def __init__(self, folder: Path, policy: mc.Policy) -> None:
        self.folder, self.policy, self.steps = folder, policy, Steps()

    def at(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def tools(self) -> mc.KeyTools:
        def audit(event: mc.kms.AuditEvent) -> None:
            self.steps.take(OSError(28, "the audit file is full"))

        return mc.KeyTools(FailingKms(self.steps), audit=audit)

    def fill(self) -> None:
        self.folder.mkdir()
        mc.write_table(ROWS, self.at("sealed"), self.tools.encryption(self.policy))
        mc.decrypt_parquet(self.at("sealed"), self.at("plain"), self.tools.decryption())

    def change(self, function: Callable[..., object], *more: Any, **options: Any) -> object:
        tools = self.tools
        return function(
            self.at("sealed"), self.at("new"), tools.decryption(), tools.encryption(TO), *more,
            **options,
        )  # fmt: skip


def write_ags1(lake: Lake) -> None:
    with mc.ags1.Ags1Writer(
        lake.at("new"), mc.ags1.StandardKeyMetadata.generate(), block_length=64
    ) as file:
        for _ in range(9):
            file.write(bytes(100))


JOBS: dict[str, Callable[[Lake], object]] = {
    "write": lambda lake: mc.write_table(ROWS, lake.at("new"), lake.tools.encryption(lake.policy)),
    "dataset": lambda lake: mc.write_dataset(
        ROWS, lake.at("folder"), lake.tools.encryption(lake.policy), partitioning=["b"]
    ),
    "encrypt": lambda lake: mc.encrypt_parquet(
        lake.at("plain"), lake.at("new"), lake.tools.encryption(lake.policy)
    ),
    "decrypt": lambda lake: mc.decrypt_parquet(
        lake.at("sealed"), lake.at("new"), lake.tools.decryption()
    ),
    "read": lambda lake: mc.read_table(lake.at("sealed"), lake.tools.decryption()),
    "rekey": lambda lake: lake.change(mc.rekey_parquet),
    "mask": lambda lake: lake.change(mc.mask_parquet, hashed=["b"], hash_key=mc.Key.generate()),
    "share": lambda lake: lake.change(mc.share_parquet, ["a"]),
    "mek": lambda lake: rotate(lake, new_master_keys={"kf": "kg"}),
    "kek": lambda lake: rotate(lake, what="kek"),
    "dek": lambda lake: rotate(lake, what="dek"),
}
AGS1_JOBS: dict[str, Callable[[Lake], object]] = {  # which have no policy
    "ags1": write_ags1,
    "ags1 file": lambda lake: mc.encrypt_ags1(lake.at("plain"), lake.at("new"), mc.Key.generate()),
}


def rotate(lake: Lake, **options: Any) -> None:
    """Rotate keys and raise what is reported of a file: its error is kept as text."""
    for file in mc.jobs.rotate_keys(lake.at("sealed"), lake.tools, **options):
        if file.result != "rotated":
            raise ValueError(repr(file))


@pytest.mark.parametrize(
    ("name", "policy", "stride"),
    # Each step fails with one policy; those that are slow fail all steps with each.
    [
        pytest.param(name, policy, stride, marks=marks)
        for stride, marks in ((len(POLICIES), ()), (1, pytest.mark.slow))
        for name in JOBS
        for policy in POLICIES
    ]
    + [(name, "double", 1) for name in AGS1_JOBS],
)
def test_no_failed_job_carries_or_logs_a_key(
    name: str, policy: str, stride: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    keys = record_keys(monkeypatch)
    lake = Lake(tmp_path / "lake", POLICIES[policy])
    lake.fill()
    lake.steps.watch(monkeypatch)
    check_failing_runs(
        partial((JOBS | AGS1_JOBS)[name], lake),
        lake.steps,
        lake.folder,
        keys,
        caplog,
        itertools.count([*POLICIES].index(policy) % stride, stride),
    )
