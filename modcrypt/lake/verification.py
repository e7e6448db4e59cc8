"""Verify the files of a dataset against the declaration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from modcrypt.errors import AadPrefixError, KmsUnavailableError, ModcryptError, list_names
from modcrypt.io.places import Place
from modcrypt.jobs.dataset_verification import verify_dataset
from modcrypt.jobs.failures import describe_result
from modcrypt.jobs.listing import File
from modcrypt.kms.policy import Policy
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.file_policies import DatasetPolicies
from modcrypt.lake.file_states import FileState
from modcrypt.lake.lake_files import LakeFiles
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.byte_map import Severity
from modcrypt.parquet.format.findings import Finding, Unauthenticated, fold
from modcrypt.parquet.verify.verification_results import Verification
from modcrypt.report.text import format_count, format_size

SCHEMA = "modcrypt.lake.verify/1"
"""The name and version of the lines of JSON."""

POLICY = "policy"
"""The error code of a file that is authentic, but not encrypted as declared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedFile:
    """The verification of a file against the declaration.

    Attributes:
        path: Path inside the dataset.
        verification: What `verify_dataset` found.
        findings: Its faults and warnings, and differences from the declaration.
        missing: Parts that were not opened for want of a key, with the reason.
    """

    path: str
    verification: Verification
    findings: tuple[Finding, ...]
    missing: tuple[Unauthenticated, ...]

    @property
    def ok(self) -> bool:
        """Whether the file has no fault, and every part that needs a key was opened."""
        return not self.missing and not self.faults

    @property
    def faults(self) -> list[Finding]:
        """The faults."""
        return [finding for finding in self.findings if finding.severity == "fault"]

    def fields(self) -> dict[str, Any]:
        """Return the attributes as values for JSON."""
        fields = describe_result(self.verification)
        del fields["ok"], fields["complete"], fields["name"]
        findings = [finding.fields() for finding in self.findings]
        return {"file": self.path, "ok": self.ok, **fields, "findings": findings}


@dataclass(frozen=True, kw_only=True)
class LakeVerification:
    """The verification of a dataset against its declaration.

    Attributes:
        dataset: Name of the dataset.
        location: Path or URL of the dataset.
        files: Results of the files, in the order of their paths.
        findings: Findings about the dataset.
        strays: Paths of visible files that `include` does not match.
        skipped: Number of files that were not verified because they have not changed.
        error: Why its files cannot be listed; empty if they can.
        error_code: Exit code for the error.
    """

    dataset: str
    location: str
    files: Sequence[VerifiedFile] = ()
    findings: Sequence[Finding] = ()
    strays: Sequence[str] = ()
    skipped: int = 0
    error: str = ""
    error_code: int = 0

    @property
    def code(self) -> int:
        """The exit code.

        0: everything is as declared; 1: a fault; 3: a key was refused or is missing; 4: whatever is
        missing is due to an unavailable key service.
        """
        if self.error:
            return self.error_code
        if self.faults:
            return 1
        missing = {part.word for file in self.files for part in file.missing}
        if not missing:
            return 0
        return 4 if missing == {KmsUnavailableError.word} else 3

    @property
    def faults(self) -> list[Finding]:
        """The faults of the dataset and its files."""
        of_files = [fault for file in self.files for fault in file.faults]
        return [finding for finding in self.findings if finding.severity == "fault"] + of_files

    @property
    def limits(self) -> list[str]:
        """Limits of the format, once each with the number of files."""
        notes = (
            (file.path, note)
            for file in self.files
            for note in (() if file.faults else file.verification.not_authenticated)
            if note.word is None
        )
        return [f"{note.what} ({format_count(note.files, 'file')})" for note in fold(notes)]

    def describe_missing(self) -> list[str]:
        """Return what was not opened, once for each reason, with its number of files."""
        notes = ((file.path, note) for file in self.files for note in file.missing)
        return [
            f"Not opened: {note.what} ({format_count(note.files, 'file')}): {note.why}"
            for note in fold(notes)
        ]

    def summary(self) -> str:
        """Return the result as one line for people."""
        if self.error:
            return f"{self.dataset}: {self.error}"
        correct = sum(file.ok for file in self.files)
        modules = sum(file.verification.modules for file in self.files)
        size = sum(file.verification.authenticated_bytes for file in self.files)
        text = f"{correct:,} of {format_count(len(self.files), 'file')} as declared"
        if self.skipped:
            text += f", {self.skipped:,} unchanged and skipped"
        if self.faults:
            text += f"; {format_count(len(self.faults), 'fault')}"
        closed = sum(bool(file.missing) for file in self.files)
        text += f"; {format_count(closed, 'file')} not opened completely" if closed else ""
        return f"{self.dataset}: {text}; {modules:,} modules authenticated, {format_size(size)}"

    def fields(self) -> list[dict[str, Any]]:
        """Return the result as lines of JSON: one for each file, then the totals."""
        start = {"schema": SCHEMA, "dataset": self.dataset}
        lines: list[dict[str, Any]] = [
            {**start, "kind": "file", **file.fields()} for file in self.files
        ]
        totals = {
            **start, "kind": "dataset", "location": self.location, "files": len(self.files),
            "ok": self.code == 0, "code": self.code, "skipped": self.skipped,
            "findings": [finding.fields() for finding in self.findings],
            "strays": list(self.strays), "limits": self.limits, "error": self.error,
        }  # fmt: skip
        return [*lines, totals]


def verify_files(
    files: LakeFiles,
    examination: FooterExamination,
    *,
    unchanged: Sequence[File] = (),
    jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> LakeVerification:
    """Verify the files of a dataset against its declaration.

    Args:
        files: Files of the dataset.
        examination: Examination that compares footers with the declaration.
        unchanged: Files that an earlier run verified; they are only compared with the others.
        jobs: Number of files verified concurrently; None for the default.
        progress: Function called with the number of bytes checked so far.
    """
    policies = examination.policies
    if not files.files:  # all of them still wait in the source folder
        name, location = policies.dataset.name, policies.dataset.location
        return LakeVerification(dataset=name, location=location)
    skip = {file.place.path for file in unchanged}
    skipped = len(skip)
    states = {
        file.place.path: examination.run(file)
        for file in files.files
        if file.place.path not in skip
    }
    unavailable = {
        path: state for path, state in states.items() if state.reason == KmsUnavailableError.word
    }
    skip |= unavailable.keys()  # asking for their keys would take as long for each
    choice = _PropertiesOfFiles(policies)
    result = verify_dataset(
        [file.place for file in files.files], choice, shared_aad_prefix=True, jobs=jobs,
        progress=progress, verified=skip,
    )  # fmt: skip
    checked = [
        _judge(states[verification.name], verification, choice.faults.get(verification.name))
        for verification in result.files
    ]
    checked += [_report_unavailable(path, state) for path, state in unavailable.items()]
    checked.sort(key=lambda file: file.path)
    return LakeVerification(
        dataset=policies.dataset.name,
        location=policies.dataset.location,
        files=checked,
        findings=[*_fold_prefixes(result.findings, policies), *_report_strays(files, policies)],
        strays=files.strays,
        skipped=skipped,
    )


class _PropertiesOfFiles:
    """The properties that open each file as declared, by its path in the file system.

    Attributes:
        faults: Errors of files whose properties cannot be made.
    """

    def __init__(self, policies: DatasetPolicies) -> None:
        self._policies = policies
        self.faults: dict[str, Exception] = {}

    def __call__(self, path: str) -> FileDecryptionProperties:
        place = self._policies.place_at(path)
        try:
            return self._policies.reading(place)
        except (ModcryptError, ValueError, OSError) as error:
            self.faults[path] = error
        return self._make_fallback(place)

    def _make_fallback(self, place: Place) -> FileDecryptionProperties:
        """Return properties that find out as much as possible; whatever they open is declared."""
        try:
            return self._policies.opening(place)
        except ValueError:  # the partition values name no master key
            policy = Policy(footer_key="none")
            return self._policies.tools.decryption(policy, master_key_ids=())


def _report_unavailable(path: str, state: FileState) -> VerifiedFile:
    """Return the result of a file whose keys were not requested during an outage."""
    note = Unauthenticated(what="file", path=None, why=state.message, word=state.reason)
    verification = Verification(
        name=path, size=state.size, encrypted=True, findings=(), not_authenticated=(note,)
    )
    return VerifiedFile(path=state.path, verification=verification, findings=(), missing=(note,))


def _judge(state: FileState, verification: Verification, error: Exception | None) -> VerifiedFile:
    """Return the result of a file: what was verified, and how it differs from the declaration."""
    findings = list(verification.findings)
    missing = tuple(note for note in verification.not_authenticated if note.word is not None)
    if message := _describe_difference(state, findings, error, missing):
        findings.insert(0, Finding(word=POLICY, message=message))
    return VerifiedFile(
        path=state.path, verification=verification, findings=tuple(findings), missing=missing
    )


def _describe_difference(
    state: FileState,
    findings: Sequence[Finding],
    error: Exception | None,
    missing: Sequence[Unauthenticated],
) -> str:
    """Return how a file differs from the declaration; empty if not, or if a fault says so."""
    if isinstance(error, ValueError) and not isinstance(error, ModcryptError):
        return str(error)  # its partitions or columns do not fit the declaration
    if any(finding.severity == "fault" for finding in findings):
        return ""
    if state.state in ("declared", "old-keys") or (state.state == "unreadable" and missing):
        return ""  # or the reason is among the parts that were not opened
    return state.message or state.state


def _fold_prefixes(findings: Sequence[Finding], policies: DatasetPolicies) -> list[Finding]:
    """Return the findings of a dataset with one line about all repeated AAD prefixes.

    Under `{path}` no two files can share a prefix unless one replaces the other.
    """
    word = AadPrefixError.word
    repeated = [finding for finding in findings if finding.word == word]
    others = [finding for finding in findings if finding.word != word]
    if not repeated:
        return others
    severity: Severity = "fault" if policies.dataset.binds_paths else "warning"
    message = (
        repeated[0].message
        if len(repeated) == 1
        else f"{len(repeated):,} AAD prefixes are shared by several files, so that one can be put "
        "in the place of another; use {path} in aad_prefix"
    )
    return [*others, replace(repeated[0], message=message, severity=severity)]


def _report_strays(files: LakeFiles, policies: DatasetPolicies) -> list[Finding]:
    if not files.strays:
        return []
    names = list_names(files.strays)
    message = (
        f"{format_count(len(files.strays), 'file')} in the folder belong to no dataset: {names}"
    )
    severity: Severity = "fault" if policies.dataset.strict else "warning"
    return [Finding(word="stray", message=message, severity=severity)]
