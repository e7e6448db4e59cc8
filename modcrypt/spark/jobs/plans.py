"""Plans of verifications and rotations, with the checks that need no executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from modcrypt.jobs import key_rotation
from modcrypt.jobs.key_rewrapping import What
from modcrypt.jobs.key_rotation import check_rotation
from modcrypt.jobs.listing import File, MakeFilesystem
from modcrypt.kms.proof import Prove, check_prove
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.driver import TablePlan, check_settings, folders_of, plan_job
from modcrypt.spark.jobs.examination import VerificationJob
from modcrypt.spark.jobs.file_work import FLAG, LONG, TEXT
from modcrypt.spark.jobs.key_jobs import KeyJob

ROTATED = pa.schema(
    [
        ("path", TEXT), ("result", TEXT), ("failed", FLAG), ("keys", LONG), ("message", TEXT),
        ("lost_signature", FLAG), ("proved", LONG), ("worker", TEXT),
    ]
)  # fmt: skip
"""The schema of a rotation's rows."""


def plan_verification(
    where: Any, decryption: Settings | None, *, filesystem: MakeFilesystem | None = None
) -> TablePlan:
    """Plan a verification; arguments and errors as in `verify_table`."""

    def check(settings: Settings, files: Sequence[File]) -> None:
        settings.check_distinct(file.name for file in files)

    return plan_job(VerificationJob, where, decryption, check=check, filesystem=filesystem)


def plan_rotation(
    where: Any,
    settings: Settings,
    *,
    what: What = "mek",
    new_master_keys: Mapping[str, str] | None = None,
    double_wrapping: bool | None = None,
    dry_run: bool = False,
    prove: Prove = "first",
    filesystem: MakeFilesystem | None = None,
) -> TablePlan:
    """Plan a rotation, and prove a wrap under each new master key; as `rotate_keys`."""
    renamed = check_rotation(what, new_master_keys, double_wrapping)
    check_prove(prove)

    def check(settings: Settings, _files: Sequence[File]) -> None:
        tools, _ = settings.tools(), settings.writer_key
        for new_id in set() if dry_run else set(renamed.values()):
            tools.wrapper.prove_master(new_id)

    check_settings(settings)
    folders = tuple(folder.name for folder in folders_of(where, filesystem))
    return plan_job(
        KeyJob, where, settings, check=check, filesystem=filesystem,
        change=key_rotation.rotate_keys, schema=ROTATED, folders=folders, signs=True,
        how={
            "what": what, "new_master_keys": renamed, "double_wrapping": double_wrapping,
            "dry_run": dry_run, "prove": prove,
        },
    )  # fmt: skip
