"""Establish and verify the declared state of a lake with Spark's executors: `apply` and `verify`.

    driver      compares the files with the declaration, as `Lake.apply` does, and plans
    executors   look at their files again, and encrypt, re-key or rotate them
    driver      collects the results of a batch of files, and goes on with the next

    driver      lists the files and, with `since` or `resume`, leaves out those that did not change
    executors   verify their files as the declaration says
    driver      compares the files with each other, and caches which are correct

Spark gets paths and references to keys; results hold no keys. A file is the old or the new one at
any time, so a job that was stopped is taken up by calling it again.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from modcrypt.jobs.engine import Job
from modcrypt.jobs.listing import File
from modcrypt.jobs.verbs.verb import Row, Verb
from modcrypt.kms.settings import Settings
from modcrypt.lake.applying.application import AppliedFile, LakeApplication, PlanRun, refuse_file
from modcrypt.lake.applying.plan import Action, LakePlan, PlannedChange, plan_file
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.files.file_states import FileState
from modcrypt.lake.files.lake_files import LakeFile
from modcrypt.lake.key_ages import KeyAges
from modcrypt.lake.lake import Lake
from modcrypt.lake.lake_reference import LakeReference
from modcrypt.lake.spool import Spool, take_batches
from modcrypt.lake.verification.dataset_check import Since
from modcrypt.lake.verification.file_check import CheckedFile, FileCheck, report_failure
from modcrypt.lake.verification.results import LakeVerification, VerifiedFile
from modcrypt.module_ids import ModuleId, ModuleType
from modcrypt.parquet.format.findings import Finding, Unauthenticated
from modcrypt.parquet.verify.file_verification import FileAad
from modcrypt.parquet.verify.verification_results import Verification
from modcrypt.spark.jobs.driver import BYTES_PER_TASK, FILES_PER_TASK, name_columns, run_tasks
from modcrypt.spark.jobs.file_work import RecordedJob, VerbJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from modcrypt.iceberg.rotate.rotation_report import TableRotation
    from modcrypt.iceberg.tables.table import IcebergTable

BATCH = 100_000  # number of files of a Spark job; the driver holds their names


def apply(
    spark: SparkSession,
    lake: Lake,
    dataset: str | None = None,
    *,
    dry_run: bool = False,
    accept_replaced: bool = False,
    remove_erased: bool = False,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> list[LakeApplication]:
    """Establish the declared state like `Lake.apply`, with files changed by Spark's executors.

    Executors also rewrite the data files of Iceberg tables to answer a leak, and manifests with
    encrypted key metadata; the driver commits.

    Args:
        spark: Spark session, also of Spark Connect; its executors must have modcrypt installed, and
            what the declaration and its references to keys name.
        lake: The lake. The driver reads the footers of files that changed.
        dataset: Name of a dataset; None for all.
        dry_run: Whether to plan only.
        accept_replaced, remove_erased: As for `Lake.apply`; the driver deletes erased files.
        files_per_task: Maximum number of files of a task.
        bytes_per_task: Maximum number of bytes of a task.

    Raises:
        ValueError: The dataset is not declared.
        KeyRetrievalError: The key service cannot be opened, or refuses a new version.
    """

    def carry_out(plan: LakePlan) -> Spool[AppliedFile]:
        reference = lake.reference(plan.dataset)
        results: Spool[AppliedFile] = Spool()
        for batch in take_batches(plan.files, BATCH):
            results.extend(_apply_batch(spark, reference, batch, files_per_task, bytes_per_task))
        return results

    return lake.apply(
        dataset, dry_run=dry_run, accept_replaced=accept_replaced, remove_erased=remove_erased,
        carry_out=carry_out, rotate=partial(_rotate_table, spark, lake),
    )  # fmt: skip


def _rotate_table(
    spark: SparkSession, lake: Lake, table: IcebergTable, what: Literal["mek", "kek", "dek"],
    *, new_master_key_id: str | None = None,
) -> TableRotation:  # fmt: skip
    """Rotate the keys of a table like `rotate_table`, with files rewritten by executors."""
    from modcrypt.iceberg import rotate_table
    from modcrypt.spark.jobs.iceberg_jobs import rotate_table_deks, rotate_table_keks

    audit = None if lake.audit is None else os.path.abspath(lake.audit)
    settings = Settings(kms=lake.declaration.kms, passphrase=lake.passphrase, audit=audit)
    if what == "dek":
        return rotate_table_deks(spark, table, settings)
    if what == "kek":
        return rotate_table_keks(spark, table, settings, new_master_key_id=new_master_key_id)
    return rotate_table(table, what, new_master_key_id=new_master_key_id)


def _apply_batch(
    spark: SparkSession, reference: LakeReference, planned: Sequence[PlannedChange],
    files_per_task: int, bytes_per_task: int,
) -> Iterator[AppliedFile]:  # fmt: skip
    done: dict[tuple[str, bool], AppliedFile] = {}
    groups = {(file.action, file.waits) for file in planned if file.action != "refuse"}
    for action, waits in sorted(groups):
        files = [file for file in planned if (file.action, file.waits) == (action, waits)]
        arguments = {"action": action, "waits": waits}
        job = RecordedJob.of(VerbJob(verb=APPLY, settings=reference, arguments=arguments))
        columns = name_columns((file.state.path, file.state.size) for file in files)
        frame = run_tasks(spark, columns, job.run, job.schema, files_per_task, bytes_per_task)
        frame = job.take_over(frame.localCheckpoint()) if job.folders else frame
        for row in frame.toLocalIterator():
            result = AppliedFile(
                path=os.fsdecode(bytes(row["name"])), result=row["result"],
                message=row["message"], code=row["code"],
            )  # fmt: skip
            done[result.path, waits] = result
    for file in planned:
        path = file.state.path
        yield refuse_file(file) if file.action == "refuse" else done[path, file.waits]


def _open_application(
    reference: LakeReference, _filesystem: Any, *, action: Action, waits: bool
) -> Job[Sequence[File], Iterable[Row]]:
    """Return the job that changes files, if they still need what was planned for them."""
    policies = reference.policies
    examination = FooterExamination(policies, KeyAges(policies.client))

    def change(files: Sequence[File]) -> Iterable[Row]:
        planned = [_plan_again(file, examination, action, waits) for file in files]
        return map(_make_applied_row, PlanRun(policies).apply_batch(planned))

    return Job(change)


def _plan_again(
    file: File, examination: FooterExamination, action: Action, waits: bool
) -> PlannedChange:
    """Look at a file again; refuse it if it needs another action than the planned one."""
    if waits:
        state = FileState(path=file.name, state="plaintext", size=file.size)
        return PlannedChange(state=state, action="encrypt", why="", waits=True)
    state = examination.run(LakeFile(file.name, file.size, ""))
    now = plan_file(state)
    is_open = now.action in ("none", "rotate", "rekey")
    if action == "renew" and is_open:  # the driver knows what leaked
        return PlannedChange(state=state, action="renew", why="")
    if now.action in (action, "refuse") or state.state == "declared":
        return now
    why = f"the file changed while apply ran: it is now {state.state}"
    return PlannedChange(state=state, action="refuse", why=why)


def _make_applied_row(file: AppliedFile) -> Row:
    return {**asdict(file), "name": os.fsencode(file.path)}


def _fail_application(_verb: Verb, file: File, error: Exception, **_arguments: Any) -> Row:
    return _make_applied_row(AppliedFile.of_failure(file.name, error))


APPLY = Verb(
    name="lake.apply", result=AppliedFile, columns="name result message code", together=True,
    open=_open_application, fail=_fail_application, types={"name": bytes},
)  # fmt: skip
"""The verb `apply` on files of one dataset; its arguments are what the driver planned."""


def verify(
    spark: SparkSession,
    lake: Lake,
    dataset: str | None = None,
    *,
    since: Since | None = None,
    resume: bool = False,
    parts: Sequence[str] = (),
    evidence: bool = True,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> list[LakeVerification]:
    """Verify files against the declaration like `Lake.verify`, with Spark's executors.

    Iceberg tables are verified by the driver.

    Args:
        spark, files_per_task, bytes_per_task: As in `apply`.
        lake: The lake.
        dataset: Name of a dataset; None for all.
        since, resume: As in `Lake.verify`, by the driver's cache.
        parts, evidence: As in `Lake.verify`.

    Raises:
        ValueError: The dataset is not declared.
        KeyRetrievalError: The key service cannot be opened.
    """

    def check(name: str, files: Sequence[LakeFile]) -> Iterator[CheckedFile]:
        job = VerbJob(verb=VERIFY, settings=lake.reference(name))
        columns = name_columns((file.path, file.size) for file in files)
        frame = run_tasks(spark, columns, job.run, job.schema, files_per_task, bytes_per_task)
        done = {
            os.fsdecode(bytes(row["name"])): bytes(row["result"]) for row in frame.toLocalIterator()
        }
        return (_load_result(done.pop(file.path)) for file in files)

    return lake.verify(
        dataset, since=since, resume=resume, check=check, parts=parts, evidence=evidence
    )


def _open_verification(
    reference: LakeReference, _filesystem: Any
) -> Job[Sequence[File], Iterable[Row]]:
    """Return the job that verifies files like `Lake.verify`."""
    check = FileCheck(reference.policies)

    def verify(files: Sequence[File]) -> Iterable[Row]:
        checked = check.verify([LakeFile(file.name, file.size, "") for file in files])
        return map(_make_row, files, checked)

    return Job(verify)


def _make_row(file: File, result: CheckedFile) -> Row:
    return {"name": os.fsencode(file.name), "result": pickle.dumps(tuple(result))}


def _fail_verification(_verb: Verb, file: File, error: Exception) -> Row:
    return _make_row(file, report_failure(LakeFile(file.name, file.size, ""), error))


VERIFY = Verb(
    name="lake.verify", result=VerifiedFile, columns="name result", together=True,
    open=_open_verification, fail=_fail_verification, types={"name": bytes, "result": bytes},
)  # fmt: skip
"""The verb `verify` on files of one dataset."""


_RESULTS = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        FileAad, Finding, ModuleId, ModuleType, Unauthenticated, Verification, VerifiedFile,
    )
}  # fmt: skip


class _ResultUnpickler(pickle.Unpickler):
    """An unpickler of results alone, so that what executors return runs no code here."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _RESULTS:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a result")
        return _RESULTS[module, name]


def _load_result(data: bytes) -> CheckedFile:
    aad, result = _ResultUnpickler(io.BytesIO(data)).load()
    return CheckedFile(aad, result)
