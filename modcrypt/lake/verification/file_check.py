"""Verify a file against the policy that the declaration gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from modcrypt.errors import KeyRetrievalError, KmsUnavailableError, ModcryptError
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.io.threads import usable_cores
from modcrypt.jobs.dataset_verification import MAX_FILES
from modcrypt.jobs.engine import Job, Meter, run_job
from modcrypt.jobs.idempotence.key_comparison import KeyFacts, gather_key_facts
from modcrypt.kms.policy import Policy
from modcrypt.lake.declarations.columns import FileColumns
from modcrypt.lake.files.file_policies import DatasetPolicies, is_encrypted, read_columns
from modcrypt.lake.files.lake_files import LakeFile
from modcrypt.lake.verification.results import POLICY, VerifiedFile
from modcrypt.parquet.crypto.ciphers import ColumnKey
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.findings import FILE, Finding, Unauthenticated
from modcrypt.parquet.verify.chunk_plan import ChunkPlan
from modcrypt.parquet.verify.file_verification import FileAad, verify_with_plan
from modcrypt.parquet.verify.verification_results import Verification


class CheckedFile(NamedTuple):
    """A verified file, and what identifies it in a set."""

    aad: FileAad
    result: VerifiedFile


CheckFiles: TypeAlias = Callable[[Sequence[LakeFile]], Iterable[CheckedFile]]
"""Function that verifies files and yields the result of each, in their order."""


class FileCheck:
    """The verification of the files of a dataset, each with one opening of its footer.

    Args:
        progress: Function called with the number of bytes checked so far.
    """

    def __init__(
        self, policies: DatasetPolicies, jobs: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        self._policies, self._jobs = policies, jobs or min(usable_cores(), MAX_FILES)
        self._progress, self._done = progress, 0  # bytes of earlier batches
        self._meter = Meter(self._show)
        self._outages: list[str] = []  # messages of the unavailable key service
        self._columns: FileColumns | None = None  # of the last file

    def verify(self, files: Sequence[LakeFile]) -> list[CheckedFile]:
        """Return the result of each file."""
        check = partial(self._verify, threads=1 if len(files) > 1 else None)
        job: Job[LakeFile, CheckedFile] = Job(check)
        self._meter = Meter(self._show)
        done = list(run_job(job, files, jobs=self._jobs, meter=self._meter))
        self._done += sum(file.size for file in files)
        return done

    def _show(self, done: int, files: int) -> None:
        if self._progress is not None:
            self._progress(self._done + done)

    def _verify(self, file: LakeFile, threads: int | None) -> CheckedFile:
        place = self._policies.place_of(file.path)
        try:
            with open_source_at(place, stamped=False) as source:
                if self._outages and is_encrypted(source):  # its keys are not requested
                    return _report_refused(file, self._outages[0], KmsUnavailableError.word)
                return self._verify_source(file, source, threads)
        except OSError as error:  # the verification of the others continues
            return report_failure(file, error)

    def _verify_source(self, file: LakeFile, source: Source, threads: int | None) -> CheckedFile:
        """Verify a file with the columns of the last one, and again if its columns differ."""
        guess = self._columns
        verification, aad, plan, mistake = self._check(file, source, guess, threads)
        actual = self._read_columns(plan)
        if actual is not None and actual is not guess and self._policies.dataset.needs_columns:
            self._columns = actual
            verification, aad, plan, mistake = self._check(file, source, actual, threads)
        missing = tuple(note for note in verification.not_authenticated if note.word is not None)
        self._outages += [note.why for note in missing if note.word == KmsUnavailableError.word]
        findings = list(verification.findings)
        if mistake or not (missing or any(f.severity == "fault" for f in findings)):
            mistake = mistake or self._compare(file, source, plan)
        if mistake:
            findings.insert(0, Finding(word=POLICY, message=mistake))
        result = VerifiedFile(
            path=file.path, verification=verification, findings=tuple(findings), missing=missing
        )
        return CheckedFile(aad, result)

    def _check(
        self, file: LakeFile, source: Source, columns: FileColumns | None, threads: int | None
    ) -> tuple[Verification, FileAad, ChunkPlan, str]:
        """Verify a file under the policy for some columns; also return a mistake in the policy."""
        mistake = ""
        try:
            properties = self._policies.reading(file.path, columns)
        except ValueError as error:
            mistake, properties = str(error), self._make_fallback(source)
        checked, plan = verify_with_plan(
            source, properties, threads=threads, progress=self._meter.progress
        )
        return checked.verification, checked.aad, plan, mistake

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
        """Return the difference of an authentic file from the declaration; empty for none."""
        assert source.place is not None
        if (columns := self._read_columns(plan)) is None:
            return "its columns cannot be read"
        prefix = plan.properties.aad_prefix
        assert not callable(prefix)  # it is bound to the file
        try:
            facts = _gather_facts(source.place, plan)
            found = self._policies.compare(file.path, columns, plan.footer, prefix, facts)
        except (ModcryptError, ValueError) as error:
            return str(error)
        return "" if found.under_previous else found.difference


def _gather_facts(place: Place, plan: ChunkPlan) -> KeyFacts:
    first = [chunk for chunk in plan.listed if chunk.row_group == 0]
    plain = [chunk.path for chunk in first if not chunk.encrypted]
    own = {
        chunk.path: ColumnKey(
            chunk.key, True, chunk.stored.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.key_metadata
        )
        for chunk in first
        if chunk.has_own_key and chunk.key is not None
    }
    return gather_key_facts(place, plan.footer, [leaf.path for leaf in plan.leaves], plain, own)


NO_AAD = FileAad(None, None)


def report_failure(file: LakeFile, error: Exception) -> CheckedFile:
    """Return the result of a file whose verification could not begin, as without a key service.

    Other errors than those of keys and files are raised again.
    """
    if isinstance(error, KeyRetrievalError):
        return _report_refused(file, str(error), error.word)
    if not isinstance(error, OSError):
        raise error
    reason = error.strerror or type(error).__name__
    finding = Finding(word=FILE, message=f"{file.path} could not be read: {reason}")
    note = Unauthenticated(what="file", path=None, why="it could not be read")
    return report_closed(file, note, findings=(finding,))


def _report_refused(file: LakeFile, why: str, word: str) -> CheckedFile:
    note = Unauthenticated(what="file", path=None, why=why, word=word)
    return report_closed(file, note, missing=(note,))


def report_closed(
    file: LakeFile, note: Unauthenticated, *, findings: tuple[Finding, ...] = (),
    missing: tuple[Unauthenticated, ...] = (), erased: bool = False,
) -> CheckedFile:  # fmt: skip
    """Return the result of a file that was not opened, with the note that says why."""
    verification = Verification(
        name=file.path, size=file.size, encrypted=not findings, findings=findings,
        not_authenticated=(note,),
    )  # fmt: skip
    result = VerifiedFile(
        path=file.path, verification=verification, findings=findings, missing=missing,
        erased=erased,
    )  # fmt: skip
    return CheckedFile(NO_AAD, result)
