"""Verify files of which something is declared as erased: nothing of it may open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from modcrypt.lake.erased_files import judge_state
from modcrypt.lake.erasure.erasures import NOT_ERASED
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.lake.files.file_states import FileState
from modcrypt.lake.files.lake_files import LakeFile
from modcrypt.lake.key_ages import KeyAges
from modcrypt.lake.verification.file_check import CheckedFile, CheckFiles, report_closed
from modcrypt.lake.verification.results import POLICY
from modcrypt.parquet.format.findings import Finding, Unauthenticated


def check_erased(policies: DatasetPolicies, check: CheckFiles) -> CheckFiles:
    """Return a function that verifies files by another, except erased ones.

    The footers of files that a statement names are examined first, as `status` does.
    """
    erasures = policies.dataset.erasures
    if not erasures.statements:
        return check
    examination = FooterExamination(policies, KeyAges(policies.client))

    def run(files: Sequence[LakeFile]) -> Iterator[CheckedFile]:
        states = {
            file.path: judge_state(examination.run(file), erasures)
            for file in files if erasures.names(file.path)
        }  # fmt: skip
        erased = {path for path, state in states.items() if state.state == "erased"}
        rest = [file for file in files if file.path not in erased]
        checked = iter(check(rest) if rest else ())
        for file in files:
            state = states.get(file.path)
            if file.path in erased:
                note = Unauthenticated(what="file", path=None, why=states[file.path].message)
                yield report_closed(file, note, erased=True)
            else:
                found = next(checked)
                yield found if state is None else _judge(found, state, policies)

    return run


def _judge(checked: CheckedFile, state: FileState, policies: DatasetPolicies) -> CheckedFile:
    """Return the verification of a file of which at most columns are erased."""
    result = checked.result
    if state.state == "not-erased":
        fault = Finding(word=NOT_ERASED, message=state.message)
        return checked._replace(result=replace(result, findings=(fault, *result.findings)))
    if state.state == "unreadable":
        return checked
    columns = [note.path for note in result.missing if note.path is not None]
    gone = policies.dataset.erasures.find_columns(state.path, columns)
    missing = tuple(note for note in result.missing if note.path not in gone)
    findings = result.findings
    if gone and state.state == "other-policy":  # was not compared, because columns are missing
        findings = (Finding(word=POLICY, message=state.message), *findings)
    return checked._replace(result=replace(result, missing=missing, findings=findings))
