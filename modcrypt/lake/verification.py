"""Verify the files of a dataset against the declaration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from modcrypt.errors import (
    MAX_NAMES,
    AadPrefixError,
    IntegrityError,
    KmsUnavailableError,
    ModcryptError,
    list_names,
)
from modcrypt.fork_safety import cached_property
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.io.threads import usable_cores
from modcrypt.jobs.dataset_verification import MAX_FILES
from modcrypt.jobs.engine import Job, Meter, run_job
from modcrypt.jobs.failures import describe_result
from modcrypt.jobs.idempotence.key_facts import KeyFacts, gather_key_facts
from modcrypt.kms.policy import Policy
from modcrypt.lake.declarations.columns import FileColumns
from modcrypt.lake.file_policies import DatasetPolicies, is_encrypted, read_columns
from modcrypt.lake.file_set import MAX_GROUPS, FileSet
from modcrypt.lake.lake_files import LakeFile, LakeFiles
from modcrypt.lake.spool import Spool, take_batches
from modcrypt.lake.state_cache import CorrectFile, StateCache
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.ciphers import ColumnKey
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.byte_map import Severity
from modcrypt.parquet.format.findings import FILE, Finding, Unauthenticated
from modcrypt.parquet.verify.chunk_plan import ChunkPlan
from modcrypt.parquet.verify.file_verification import (
    CheckedFile,
    FileAad,
    identify_source,
    verify_with_plan,
)
from modcrypt.parquet.verify.verification_results import Verification
from modcrypt.report.text import format_count, format_size

BATCH = 500
"""Number of files after which results are cached: an interrupted run loses those of a batch."""

MAX_NOTES = 1000
"""Maximum number of kinds of notes, and of columns in each, that are counted apart."""

IsUnchanged: TypeAlias = Callable[[LakeFile, CorrectFile | None], bool]
"""Function that returns whether a file need not be verified: with what is known of it if it was
found correct as it is now, otherwise None."""

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


@dataclass(slots=True)
class VerificationTotals:
    """Counts of verified files."""

    files: int = 0
    correct: int = 0
    closed: int = 0
    faults: int = 0
    modules: int = 0
    bytes: int = 0
    missing: set[str] = field(default_factory=set)  # error codes
    limits: dict[tuple[str, str], NoteCount] = field(default_factory=dict)
    not_opened: dict[tuple[str, str], NoteCount] = field(default_factory=dict)

    def add(self, file: VerifiedFile) -> None:
        """Count a file."""
        verification = file.verification
        self.files += 1
        self.correct += file.ok
        self.closed += bool(file.missing)
        self.faults += len(file.faults)
        self.modules += verification.modules
        self.bytes += verification.authenticated_bytes
        self.missing |= {str(note.word) for note in file.missing}
        _count_notes(self.not_opened, file.missing)
        if not file.faults:
            notes = [note for note in verification.not_authenticated if note.word is None]
            _count_notes(self.limits, notes)


@dataclass(slots=True)
class NoteCount:
    """A part that was not authenticated: its columns, and the number of files."""

    columns: dict[str, None] = field(default_factory=dict)
    files: int = 0


def _count_notes(
    counts: dict[tuple[str, str], NoteCount], notes: Sequence[Unauthenticated]
) -> None:
    seen = set()
    for note in notes:
        key = note.what, note.why
        if key not in counts and len(counts) >= MAX_NOTES:
            key = "other parts", "for other reasons"
        count = counts.setdefault(key, NoteCount())
        if note.path is not None and len(count.columns) < MAX_NOTES:
            count.columns[note.path] = None
        count.files += key not in seen
        seen.add(key)


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

    @cached_property
    def totals(self) -> VerificationTotals:
        """Counts of the files."""
        totals = VerificationTotals()
        for file in self.files:
            totals.add(file)
        return totals

    @property
    def code(self) -> int:
        """The exit code.

        0: everything is as declared; 1: a fault; 3: a key was refused or is missing; 4: whatever is
        missing is due to an unavailable key service.
        """
        if self.error:
            return self.error_code
        if self.fault_count:
            return 1
        missing = self.totals.missing
        if not missing:
            return 0
        return 4 if missing == {KmsUnavailableError.word} else 3

    @property
    def fault_count(self) -> int:
        """Number of faults of the dataset and its files."""
        return len(self._own_faults) + self.totals.faults

    @property
    def faults(self) -> list[Finding]:
        """The faults of the dataset and its files."""
        return self._own_faults + [fault for file in self.files for fault in file.faults]

    @property
    def _own_faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "fault"]

    @property
    def limits(self) -> list[str]:
        """Limits of the format, once each with the number of files."""
        return [text for text, _ in _describe_notes(self.totals.limits)]

    def describe_missing(self) -> list[str]:
        """Return what was not opened, once for each reason, with its number of files."""
        notes = _describe_notes(self.totals.not_opened)
        return [f"Not opened: {text}: {why}" for text, why in notes]

    def summary(self) -> str:
        """Return the result as one line for people."""
        if self.error:
            return f"{self.dataset}: {self.error}"
        totals = self.totals
        text = f"{totals.correct:,} of {format_count(totals.files, 'file')} as declared"
        if self.skipped:
            text += f", {self.skipped:,} unchanged and skipped"
        if self.fault_count:
            text += f"; {format_count(self.fault_count, 'fault')}"
        if totals.closed:
            text += f"; {format_count(totals.closed, 'file')} not opened completely"
        size = format_size(totals.bytes)
        return f"{self.dataset}: {text}; {totals.modules:,} modules authenticated, {size}"

    def fields(self) -> Iterator[dict[str, Any]]:
        """Yield the result as lines of JSON: one for each file, then the totals."""
        start = {"schema": SCHEMA, "dataset": self.dataset}
        for file in self.files:
            yield {**start, "kind": "file", **file.fields()}
        yield {
            **start, "kind": "dataset", "location": self.location, "files": len(self.files),
            "ok": self.code == 0, "code": self.code, "skipped": self.skipped,
            "findings": [finding.fields() for finding in self.findings],
            "strays": list(self.strays), "limits": self.limits, "error": self.error,
        }  # fmt: skip


def _describe_notes(counts: Mapping[tuple[str, str], NoteCount]) -> Iterator[tuple[str, str]]:
    """Yield parts with their numbers of files, and the reason."""
    for (what, why), count in counts.items():
        name = f"{what} {list_names(count.columns)}".rstrip()
        yield f"{name} ({format_count(count.files, 'file')})", why


def verify_files(
    files: LakeFiles,
    policies: DatasetPolicies,
    cache: StateCache,
    *,
    is_unchanged: IsUnchanged,
    jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> LakeVerification:
    """Verify the files of a dataset against its declaration, and cache which are correct.

    Args:
        files: Files of the dataset.
        policies: Policies of the files.
        cache: Cache of the files that were found correct.
        is_unchanged: Function that returns whether a file need not be verified; it is only
            compared with the others.
        jobs: Number of files verified concurrently; None for the default.
        progress: Function called with the number of bytes checked so far.

    Raises:
        OSError, ValueError: The files cannot be listed.
    """
    name = policies.dataset.name
    results: Spool[VerifiedFile] = Spool()
    skipped = 0
    with closing(FileSet()) as file_set:
        run = _Run(policies, jobs or min(usable_cores(), MAX_FILES), progress)
        for batch in take_batches(files, BATCH):
            correct = cache.load_correct(name, [file.path for file in batch])
            fresh = []
            for file in batch:
                known = correct.get(file.path)
                if known is not None and not (file.stamp and known.stamp == file.stamp):
                    known = None
                if is_unchanged(file, known):
                    file_set.add(file.path, _identify_file(policies, file, known))
                    skipped += 1
                else:
                    fresh.append(file)
            checked = run.verify_batch(fresh)
            for _, aad, result in checked:
                file_set.add(result.path, aad)
            _note_results(cache, name, checked)
            results.extend(result for _, _, result in checked)
        findings = [*_compare_files(file_set, policies), *_report_strays(files.strays, policies)]
    return LakeVerification(
        dataset=name, location=policies.dataset.location, files=results, findings=findings,
        strays=files.strays, skipped=skipped,
    )  # fmt: skip


def _identify_file(policies: DatasetPolicies, file: LakeFile, known: CorrectFile | None) -> FileAad:
    """Return what identifies a file that is not verified, without a key."""
    if known is not None:
        return FileAad(known.prefix, known.unique)
    try:
        with open_source_at(policies.place_of(file.path)) as source:
            return identify_source(source, None)
    except OSError:
        return _NO_AAD


def _note_results(
    cache: StateCache, name: str, checked: Sequence[tuple[LakeFile, FileAad, VerifiedFile]]
) -> None:
    now = time.time()
    correct = (
        (file.path, CorrectFile(file.stamp, now, aad.prefix, aad.unique))
        for file, aad, result in checked
        if result.ok and file.stamp
    )
    cache.save_correct(name, correct)
    cache.forget_correct(name, [file.path for file, _, result in checked if not result.ok])


class _Run:
    """The verification of files, each with one opening of its footer."""

    def __init__(
        self, policies: DatasetPolicies, jobs: int, progress: Callable[[int], None] | None
    ) -> None:
        self._policies, self._jobs = policies, jobs
        self._progress, self._done = progress, 0  # bytes of earlier batches
        self._meter = Meter(self._show)
        self._outages: list[str] = []  # messages of the unavailable key service
        self._columns: FileColumns | None = None  # of the last file

    def verify_batch(
        self, files: Sequence[LakeFile]
    ) -> list[tuple[LakeFile, FileAad, VerifiedFile]]:
        """Return the result of each file, with what identifies the file in a set."""
        threads = 1 if len(files) > 1 else None
        verify = partial(self._verify, threads=threads)
        job: Job[LakeFile, tuple[FileAad, VerifiedFile]] = Job(verify)
        self._meter = Meter(self._show)
        done = list(run_job(job, files, threads=self._jobs, meter=self._meter))
        self._done += sum(file.size for file in files)
        return [(file, *result) for file, result in zip(files, done, strict=True)]

    def _show(self, done: int, files: int) -> None:
        if self._progress is not None:
            self._progress(self._done + done)

    def _verify(self, file: LakeFile, threads: int | None) -> tuple[FileAad, VerifiedFile]:
        place = self._policies.place_of(file.path)
        try:
            with open_source_at(place, stamped=False) as source:
                if self._outages and is_encrypted(source):
                    return _NO_AAD, self._report_outage(file)
                return self._verify_source(file, source, threads)
        except OSError as error:  # the verification of the others continues
            return _NO_AAD, _report_unreadable(file, error)

    def _verify_source(
        self, file: LakeFile, source: Source, threads: int | None
    ) -> tuple[FileAad, VerifiedFile]:
        """Verify a file with the columns of the last one, and again if its columns differ."""
        guess = self._columns
        checked, plan, mistake = self._check(file, source, guess, threads)
        actual = self._read_columns(plan)
        if actual is not None and actual is not guess and self._policies.dataset.needs_columns:
            self._columns = actual
            checked, plan, mistake = self._check(file, source, actual, threads)
        verification = checked.verification
        missing = tuple(note for note in verification.not_authenticated if note.word is not None)
        self._outages += [note.why for note in missing if note.word == KmsUnavailableError.word]
        findings = list(verification.findings)
        if mistake or not (missing or any(f.severity == "fault" for f in findings)):
            mistake = mistake or self._compare(file, source, plan)
        if mistake:
            findings.insert(0, Finding(word=POLICY, message=mistake))
        return checked.aad, VerifiedFile(
            path=file.path, verification=verification, findings=tuple(findings), missing=missing
        )

    def _check(
        self, file: LakeFile, source: Source, columns: FileColumns | None, threads: int | None
    ) -> tuple[CheckedFile, ChunkPlan, str]:
        """Verify a file under the policy for some columns; also return a mistake in the policy."""
        mistake = ""
        try:
            properties = self._policies.reading_with(file.path, columns)
        except ValueError as error:
            mistake, properties = str(error), self._make_fallback(source)
        result = verify_with_plan(
            source, properties, threads=threads, progress=self._meter.progress
        )
        return *result, mistake

    def _make_fallback(self, source: Source) -> FileDecryptionProperties:
        """Return properties that find out as much as possible; whatever they open is declared."""
        assert source.place is not None
        try:
            return self._policies.opening(source.place)
        except ValueError:  # the partition values name no master key
            policy = Policy(footer_key="none")
            return self._policies.tools.decryption(policy, master_key_ids=())

    def _read_columns(self, plan: ChunkPlan) -> FileColumns | None:
        if plan.footer.metadata is None or not plan.leaves:
            return None
        try:
            return read_columns(plan.footer, [leaf.path for leaf in plan.leaves])
        except ModcryptError:  # the Arrow schema is damaged
            return None

    def _compare(self, file: LakeFile, source: Source, plan: ChunkPlan) -> str:
        """Return how an authentic file differs from the declaration; empty if it does not."""
        assert source.place is not None
        columns = self._read_columns(plan)
        if columns is None:
            return "its columns cannot be read"
        prefix = plan.properties.aad_prefix
        assert not callable(prefix)  # it is bound to the file
        try:
            facts = _gather_facts(source.place, plan)
            found = self._policies.compare(file.path, columns, plan.footer, prefix, facts)
        except (ModcryptError, ValueError) as error:
            return str(error)
        return "" if found.under_previous else found.difference

    def _report_outage(self, file: LakeFile) -> VerifiedFile:
        """Return the result of a file whose keys were not requested during an outage."""
        note = Unauthenticated(
            what="file", path=None, why=self._outages[0], word=KmsUnavailableError.word
        )
        return _report_closed(file, (), note, missing=(note,))


def _gather_facts(place: Place, plan: ChunkPlan) -> KeyFacts:
    """Return the facts about the keys of a verified file."""
    first = [chunk for chunk in plan.listed if chunk.row_group == 0]
    plain = [chunk.path for chunk in first if not chunk.encrypted]
    own = {
        chunk.path: ColumnKey(chunk.key, True, _key_metadata_of(chunk))
        for chunk in first
        if chunk.has_own_key and chunk.key is not None
    }
    return gather_key_facts(place, plan.footer, [leaf.path for leaf in plan.leaves], plain, own)


def _key_metadata_of(chunk: Chunk) -> bytes | None:
    metadata: bytes | None = chunk.stored.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.key_metadata
    return metadata


_NO_AAD = FileAad(None, None)


def _report_unreadable(file: LakeFile, error: OSError) -> VerifiedFile:
    reason = error.strerror or type(error).__name__
    finding = Finding(word=FILE, message=f"{file.path} could not be read: {reason}")
    note = Unauthenticated(what="file", path=None, why="it could not be read")
    return _report_closed(file, (finding,), note)


def _report_closed(
    file: LakeFile, findings: tuple[Finding, ...], note: Unauthenticated,
    missing: tuple[Unauthenticated, ...] = (),
) -> VerifiedFile:  # fmt: skip
    """Return the result of a file that was not opened."""
    verification = Verification(
        name=file.path, size=file.size, encrypted=not findings, findings=findings,
        not_authenticated=(note,),
    )  # fmt: skip
    return VerifiedFile(
        path=file.path, verification=verification, findings=findings, missing=missing
    )


def _compare_files(file_set: FileSet, policies: DatasetPolicies) -> Iterator[Finding]:
    """Yield findings about prefixes and copies.

    All repeated AAD prefixes are one line. Under `{path}` no two files can share a prefix unless
    one replaces the other.
    """
    shared = list(file_set.find_shared("prefix"))
    severity: Severity = "fault" if policies.dataset.binds_paths else "warning"
    if len(shared) == 1:
        (only,) = shared
        message = (
            f"{only.count:,} files have the same AAD prefix {only.value!r}, so that one can be put "
            f"in the place of another: {only.list_paths()}"
        )
        yield Finding(word=AadPrefixError.word, message=message, severity=severity)
    elif shared:
        number = f"{len(shared):,}" + " or more" * (len(shared) == MAX_GROUPS)
        message = (
            f"{number} AAD prefixes are shared by several files, so that one can be put in the "
            "place of another; use {path} in aad_prefix"
        )
        yield Finding(word=AadPrefixError.word, message=message, severity=severity)
    for copies in file_set.find_shared("unique"):
        message = (
            f"{copies.count:,} files have the same aad_file_unique, which is random: they are "
            f"copies of one file, or versions of it: {copies.list_paths()}"
        )
        yield Finding(word=IntegrityError.word, message=message)


def _report_strays(strays: Sequence[str], policies: DatasetPolicies) -> list[Finding]:
    if not strays:
        return []
    first = list_names(strays[:MAX_NAMES])
    more = f" and {len(strays) - MAX_NAMES:,} more" * (len(strays) > MAX_NAMES)
    message = f"{format_count(len(strays), 'file')} in the folder belong to no dataset: {first}"
    severity: Severity = "fault" if policies.dataset.strict else "warning"
    return [Finding(word="stray", message=message + more, severity=severity)]
