"""Verify an Iceberg table against its declaration: all of its files, keys and snapshots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from modcrypt.errors import (
    IntegrityError,
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.iceberg.lake.declared_table import DeclaredTable
from modcrypt.iceberg.lake.table_status import METADATA, find_erased_states, name_version
from modcrypt.iceberg.verify.table_findings import UNREACHED
from modcrypt.lake.erasure.erasures import NOT_ERASED
from modcrypt.lake.files.file_states import FileState
from modcrypt.lake.spool import Spool
from modcrypt.lake.verification.results import POLICY, LakeVerification, VerifiedFile
from modcrypt.parquet.format.findings import Finding, Unauthenticated
from modcrypt.parquet.verify.verification_results import Verification

if TYPE_CHECKING:
    from modcrypt.iceberg.verify.table_findings import CheckedTableFile
    from modcrypt.iceberg.verify.table_results import TableVerification

_CLOSED = frozenset(
    error.word for error in (
        KeyAccessDeniedError, KeyDisabledError, KeyNotFoundError, KmsUnavailableError,
    )
)  # fmt: skip
"""Error codes of keys that were refused: parts that were not opened, not faults."""


def verify_declared_table(
    declared: DeclaredTable, *, jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> LakeVerification:  # fmt: skip
    """Verify a table against its declaration.

    Raise OSError or ValueError if the table does not exist or cannot be listed.
    """
    from modcrypt.iceberg import verify_table

    try:
        table = declared.open()
    except ModcryptError as error:
        return _report_closed(declared, error)
    result = verify_table(table, jobs=jobs, progress=progress)
    findings = [finding for finding in result.findings if finding.location is None]
    own: list[Finding] = [finding for finding in findings if not _is_refusal(finding)]
    if declared.dataset.strict:  # files that no snapshot names any more are a fault, too
        own = [
            replace(finding, severity="fault") if finding.word == UNREACHED else finding
            for finding in own
        ]
    if why := declared.compare_policy(table):
        own.insert(0, Finding(word=POLICY, message=f"the table's policy: {why}"))
    files = _list_files(result, filter(_is_refusal, findings))
    return LakeVerification(
        dataset=declared.dataset.name, location=declared.location,
        files=_judge_erased(files, find_erased_states(declared, table)), findings=own,
        strays=Spool(file.path for file in result.orphans or ()), version=name_version(table),
    )  # fmt: skip


def _is_refusal(finding: Finding) -> bool:
    return finding.severity == "warning" and finding.word in _CLOSED


def _report_closed(declared: DeclaredTable, error: ModcryptError) -> LakeVerification:
    """Return the result of a table that cannot be opened at all."""
    finding = Finding(word=error.word, message=str(error))
    findings: tuple[Finding, ...] = (finding,)
    missing: tuple[Unauthenticated, ...] = ()
    if isinstance(error, KeyRetrievalError) and not isinstance(error, IntegrityError):
        note = Unauthenticated(what="table", path=None, why=str(error), word=error.word)
        findings, missing = (), (note,)
    verification = Verification(name=METADATA, findings=findings, not_authenticated=missing)
    file = VerifiedFile(
        path=METADATA, verification=verification, findings=findings, missing=missing
    )
    return LakeVerification(dataset=declared.dataset.name, location=declared.location, files=[file])


def _list_files(result: TableVerification, refusals: Iterable[Finding]) -> Spool[VerifiedFile]:
    """Return the files of a table, first its metadata.json with what concerns the whole table."""
    findings: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in result.findings:
        if finding.location is not None:
            findings[finding.location].append(finding)
    missing = tuple(_note_refusal(finding) for finding in refusals)
    if not missing and result.ok:  # another error of a key, which says less
        missing = tuple(replace(gap, word=KeyRetrievalError.word) for gap in result.gaps)
    whole = Verification(
        name=METADATA, findings=(), not_authenticated=(*result.not_authenticated, *missing)
    )
    files = Spool([VerifiedFile(path=METADATA, verification=whole, findings=(), missing=missing)])
    base = f"{result.location.rstrip('/')}/"
    files.extend(_describe(file, findings[file.location], base) for file in result.files)
    return files


def _judge_erased(
    files: Spool[VerifiedFile], states: Mapping[str, FileState]
) -> Spool[VerifiedFile]:
    """Return files with what is declared of their erasure; keys of an erased table are not missed.

    The table as a whole is the first of them.
    """
    if not states:
        return files
    is_whole = all(
        file.path in states and states[file.path].state == "erased"
        for file in files if file.path != METADATA
    )  # fmt: skip
    return Spool(
        replace(file, missing=(), erased=True) if is_whole and file.path == METADATA
        else _judge_file(file, states.get(file.path))
        for file in files
    )  # fmt: skip


def _judge_file(file: VerifiedFile, state: FileState | None) -> VerifiedFile:
    if state is None:
        return file
    if state.state == "not-erased":
        fault = Finding(word=NOT_ERASED, message=state.message)
        return replace(file, findings=(fault, *file.findings))
    note = Unauthenticated(what="file", path=None, why=state.message)
    checked = replace(file.verification, findings=(), not_authenticated=(note,))
    return replace(file, verification=checked, findings=(), missing=(), erased=True)


def _note_refusal(finding: Finding) -> Unauthenticated:
    return Unauthenticated(what="keys", path=None, why=finding.message, word=finding.word)


def _describe(file: CheckedTableFile, findings: list[Finding], base: str) -> VerifiedFile:
    path = file.location.removeprefix(base)
    missing = tuple(map(_note_refusal, filter(_is_refusal, findings)))
    own = tuple(finding for finding in findings if not _is_refusal(finding))
    verification = Verification(
        name=path, size=file.size or 0, encrypted=file.encrypted, num_rows=file.records,
        modules=file.tags, authenticated_bytes=(file.size or 0) if file.tags and file.ok else 0,
        findings=own, not_authenticated=missing,
    )  # fmt: skip
    return VerifiedFile(path=path, verification=verification, findings=own, missing=missing)
