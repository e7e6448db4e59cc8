"""Establish the declared state of an Iceberg table: its policy, master key and KEKs.

A table is changed by commits: readers see the version before or after each. Nothing is decrypted,
and no snapshot is dropped. A plaintext table is not changed: encrypting makes another table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modcrypt.iceberg.lake.declared_table import DeclaredTable
from modcrypt.iceberg.lake.table_status import METADATA, TableChange, is_renewable, plan_changes
from modcrypt.jobs.failures import describe, exit_code
from modcrypt.lake.applying.application import AppliedFile
from modcrypt.lake.applying.plan import LakePlan, PlannedChange
from modcrypt.lake.key_ages import KeyAges
from modcrypt.lake.spool import Spool
from modcrypt.lake.status import DatasetStatus
from modcrypt.lake.table_kind import RotateTable

if TYPE_CHECKING:
    from modcrypt.iceberg.tables.table import IcebergTable

_PLAINTEXT = "encrypt it into a new table, as with modcrypt iceberg encrypt"


def plan_table(status: DatasetStatus) -> LakePlan:
    """Return the plan for a table with a status."""
    planned = Spool(_plan_entry(file) for file in status.files if not file.is_declared)
    erased = status.totals.states["erased"]
    return LakePlan(
        dataset=status.dataset.name, files=planned, new_versions=status.due_keys,
        current=len(status.files) - len(planned) - erased, erased=erased, error=status.error,
        code=status.code,
    )  # fmt: skip


def _plan_entry(state: Any) -> PlannedChange:
    is_table = state.path == METADATA
    if is_table and state.state in ("old-keys", "other-policy"):
        action: Any = "rotate" if state.state == "old-keys" else "rekey"
        return PlannedChange(state=state, action=action, why=state.message)
    if is_renewable(state):
        return PlannedChange(state=state, action="renew", why=state.message)
    why = state.message or "the file is not encrypted"
    if state.state == "plaintext" and not state.reason:
        why, state = f"{why}; {_PLAINTEXT}", replace(state, reason="plaintext")
    return PlannedChange(state=state, action="refuse", why=why)


def change_table(
    plan: LakePlan, declared: DeclaredTable, ages: KeyAges, rotate: RotateTable | None = None
) -> Spool[AppliedFile]:
    """Carry out the plan for a table; return the result of each of its files.

    `rotate` rotates keys elsewhere, such as on Spark; None to do it here.
    """
    results: Spool[AppliedFile] = Spool()
    for planned in plan.files:
        path = planned.state.path
        if planned.action == "refuse":
            code = exit_code([planned.word])
            results.append(AppliedFile(path=path, result="refused", message=planned.why, code=code))
        elif path == METADATA:
            results.append(_change(planned, declared, ages, rotate))
        else:  # it shares the fate of the table, whose new snapshots have a file in its place
            results.append(replace(results[0], path=path))
    return results


def _change(
    planned: PlannedChange, declared: DeclaredTable, ages: KeyAges, rotate: RotateTable | None
) -> AppliedFile:
    from modcrypt.iceberg import key_tree, rotate_table

    path, steps = planned.state.path, []
    try:
        table = declared.open(sealed=False)
        changes = plan_changes(declared, table, key_tree(table), ages)
        if planned.action == "renew":  # new KEKs first: the old ones open what they encrypt
            policy = [change for change in changes if change.step == "policy"]
            changes = [*policy, *(TableChange(step, planned.why) for step in ("kek", "dek"))]
        for change in changes:
            table = _take_step(declared, table, change, rotate or rotate_table)
            steps.append(change.why)
    except Exception as error:  # the run continues with the other datasets
        failure = describe(error)
        return AppliedFile(
            path=path, result=failure.word, message=failure.message, code=failure.code
        )
    done = {"rekey": "rekeyed", "renew": "renewed"}.get(planned.action, "rotated")
    return AppliedFile(path=path, result=done if steps else "current", message="; ".join(steps))


def _take_step(
    declared: DeclaredTable, table: IcebergTable, change: TableChange, rotate: RotateTable
) -> IcebergTable:
    from modcrypt.iceberg import KeyPolicy, set_policy

    if change.step == "policy":
        return set_policy(table, replace(KeyPolicy.of(table.metadata), **declared.dataset.policy))
    master = None if change.step == "dek" else declared.dataset.master_key
    if change.step == "dek":
        table = declared.leave_out(table).table
    changed: IcebergTable = rotate(table, change.step, new_master_key_id=master).table
    return changed
