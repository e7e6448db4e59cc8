"""Verify the files of a folder one by one, and as a set: none missing, foreign or duplicated.

The set is verified by the AAD prefix, with which the writer named each file, and by
`aad_file_unique`, which no two files should share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from modcrypt.errors import KeyMaterialError, KeyRetrievalError, ModcryptError
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.io.threads import check_threads, in_threads, usable_cores
from modcrypt.jobs.engine import Job, Meter, Progress, run_job
from modcrypt.jobs.listing import DatasetFiles, list_dataset
from modcrypt.jobs.set_findings import FileSet, find_copies, find_links, find_shared_prefixes
from modcrypt.keys import hide_keys
from modcrypt.parquet.crypto.crypto_fields import stored_prefix
from modcrypt.parquet.crypto.properties import (
    AnyDecryption,
    FileDecryptionProperties,
    as_decryption,
    required_seal,
)
from modcrypt.parquet.datasets.aad_prefixes import (
    PrefixTemplate,
    check_expected_parts,
    check_no_prefix,
    foreign_file_error,
    identify_part,
)
from modcrypt.parquet.format.findings import FILE, Finding, Unauthenticated
from modcrypt.parquet.format.framing import read_tail
from modcrypt.parquet.verify.file_verification import (
    CheckedFile,
    FileAad,
    check_expected,
    identify_source,
    verify_source,
)
from modcrypt.parquet.verify.verification_results import DatasetVerification, Verification
from modcrypt.runtime.former_names import accept_former_names

Decryption: TypeAlias = AnyDecryption | Callable[[str], AnyDecryption]
"""Properties for all files, or a function that returns the properties for a path."""

MAX_FILES = 8
"""Default maximum number of files verified concurrently."""


@hide_keys
@accept_former_names(where="source", properties="decryption")
def verify_dataset(
    source: Any,
    decryption: Decryption | None = None,
    *,
    filesystem: Any = None,
    aad_prefix_template: str | None = None,
    expected_parts: int | None = None,
    expected_rows: int | None = None,
    shared_aad_prefix: bool = False,
    jobs: int | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    each: Callable[[str, Verification], object] | None = None,
    regions: bool = False,
    verified: Collection[str] = (),
) -> DatasetVerification:
    """Verify each Parquet file of a folder with `verify_parquet`, and that the set is complete.

    Args:
        source: Path or URL of a folder or file, or a list of them. Names that begin
            with a dot or an underscore are skipped, and so are files of a write in progress: a note
            hides them from readers of the folder. Or what `list_dataset` returned.
        decryption: Keys and requirements of the caller, or a function that returns them for a
            path; None for no keys.
        filesystem: PyArrow or fsspec file system that contains the paths.
        aad_prefix_template: Template of the AAD prefixes: each file must have a prefix of its own,
            which is the template with a number in place of `{i}`, stored in the file or not.
        expected_parts: Number of files: the set must have the parts 0 to `expected_parts` - 1 of
            the template.
        expected_rows: Number of rows of all files together, known from a trusted place.
        shared_aad_prefix: Whether several files may have the same AAD prefix if `decryption`
            require one. It is then a warning, as it is if no prefix is required.
        jobs: Number of files verified concurrently; None chooses.
        threads: Number of threads for a single file; None chooses.
        progress: Function called from time to time, in the calling thread, with the number of bytes
            checked so far.
        each: Function called, in the calling thread, with the path and result of each finished
            file.
        regions: Whether to map each byte of the files, as in `verify_parquet`.
        verified: Paths of files that an earlier run verified. They are only compared with the
            others, by their AAD prefixes and `aad_file_unique`, and have no result.

    Returns:
        The findings in each file and in the set.

    Raises:
        ValueError: A folder has no files, and no required seal names any; or arguments contradict
            each other.
        TypeError: An argument has the wrong type.
        FormatError: A note about a write is damaged.
        OSError: A file or folder that `source` names does not exist, or the file system failed. An
            existing file that cannot be read is a finding instead.
    """
    if decryption is not None and not callable(decryption):
        decryption = as_decryption(decryption)
        check_no_prefix(aad_prefix_template, decryption)
    check_expected_parts(aad_prefix_template, expected_parts)
    check_threads(jobs, "jobs")
    check_threads(threads)
    check_expected(expected_rows)
    seal = None if decryption is None or callable(decryption) else required_seal(decryption)
    listed = source
    if not isinstance(source, DatasetFiles):
        listed = list_dataset(source, seal, filesystem=filesystem)
    places = [file.place for file in listed.files]
    findings = [*listed.missing, *find_links([link.path for link in listed.links])]
    if not places:
        return DatasetVerification(files=(), findings=tuple(findings))
    template = None if aad_prefix_template is None else PrefixTemplate(aad_prefix_template)
    is_alone = len(places) == 1
    run = FilesVerification(
        places=places, properties=decryption, template=template, expected=expected_parts,
        expected_rows=expected_rows if is_alone else None, regions=regions,
        threads=threads if is_alone else 1,
    )  # fmt: skip
    earlier = run.set_aside(verified)
    files = run.finish(jobs, progress, each)
    file_set = FileSet(run.places, files, run.parts, earlier)
    if template is None:
        fault = run.demands_prefix and not shared_aad_prefix
        file_set.findings += find_shared_prefixes(file_set.group_by_prefix(), fault=fault)
    else:
        file_set.compare_parts(template, expected_parts)
        file_set.report_unidentified(run.unidentified)
    file_set.findings += find_copies(file_set.group_by_unique())
    file_set.check_row_count(None if is_alone else expected_rows)
    file_set.findings += findings
    file_set.note_hidden_files(listed.hidden)
    return DatasetVerification(
        files=tuple(file.verification for file in files),
        findings=tuple(file_set.findings),
        not_authenticated=tuple(file_set.notes),
    )


@dataclass(kw_only=True)
class FilesVerification:
    """A verification of files, which it takes by their number in `places`."""

    places: Sequence[Place]
    properties: Decryption | None  # keys and requirements, as in `verify_dataset`
    template: PrefixTemplate | None = None
    expected: int | None = None
    expected_rows: int | None = None  # of each file
    regions: bool = False
    threads: int | None = 1  # of each file
    # Function called with the bytes checked of a file, in the thread that checks it.
    progress: Progress | None = None
    parts: dict[int, int] = field(default_factory=dict)  # part number by file
    unidentified: dict[int, str] = field(default_factory=dict)  # why the part is unknown, by file
    demands_prefix: bool = False  # whether the properties of any file do

    def finish(
        self,
        jobs: int | None,
        progress: Callable[[int], None] | None,
        each: Callable[[str, Verification], object] | None,
    ) -> list[CheckedFile]:
        """Verify all files."""
        meter = Meter(lambda done, _files: None if progress is None else progress(done))
        self.progress = meter.progress
        jobs = min(usable_cores(), MAX_FILES) if jobs is None else jobs
        paths = iter([place.path for place in self.places])

        def report(checked: CheckedFile, _count: int) -> None:
            if each is not None:
                each(next(paths), checked.verification)

        numbers = range(len(self.places))
        return list(run_job(Job(self.process), numbers, jobs=jobs, meter=meter, progress=report))

    def set_aside(self, verified: Collection[str]) -> list[tuple[Place, FileAad]]:
        """Remove the files that an earlier run verified, and return what identifies them."""

        def identify_file(place: Place) -> FileAad | None:
            try:
                with open_source_at(place) as source:
                    return identify_source(source, self._choose_properties(place))
            except OSError:  # verifying the file reports it
                return None

        known = [place for place in self.places if place.path in verified]
        aads = zip(known, in_threads(identify_file, known, MAX_FILES), strict=True)
        found = [(place, aad) for place, aad in aads if aad is not None]
        paths = {place.path for place, _ in found}
        self.places = [place for place in self.places if place.path not in paths]
        return found

    def process(self, number: int) -> CheckedFile:
        """Verify a file; a file that cannot be read has a finding."""
        place = self.places[number]
        properties = self._choose_properties(place)
        try:
            with open_source_at(place, place.listed_name) as source:
                if self.template is not None:
                    properties = self._require_prefix_of_part(
                        number, source, properties, self.template
                    )
                return verify_source(
                    source, properties, threads=self.threads, progress=self.progress,
                    expected_rows=self.expected_rows, regions=self.regions,
                )  # fmt: skip
        except OSError as error:  # the verification of the others continues
            return _make_unreadable_result(place, error)

    def _choose_properties(self, place: Place) -> FileDecryptionProperties | None:
        given = self.properties(place.path) if callable(self.properties) else self.properties
        if given is None:
            return None
        properties = as_decryption(given)
        check_no_prefix(self.template, properties)
        if properties.aad_prefix or properties.aad_prefix_verifier:
            self.demands_prefix = True
        return properties

    def _require_prefix_of_part(
        self, number: int, source: Source, properties: FileDecryptionProperties | None,
        template: PrefixTemplate,
    ) -> FileDecryptionProperties | None:  # fmt: skip
        """Find out which part a file is, and return properties that require its prefix."""
        known = properties or FileDecryptionProperties()
        known = replace(known, check_footer_integrity=True, on_missing_key="drop")
        try:
            files, expected = len(self.places), self.expected
            part, _ = identify_part(source, known, template, number, files, expected)
        except ModcryptError as error:
            is_key_missing = isinstance(error, KeyRetrievalError)
            if is_key_missing and not isinstance(error, KeyMaterialError):
                self._trust_stored_prefix(number, source, template)  # verifying reports the error
            else:
                self.unidentified[number] = f"{type(error).__name__}: {error}"
            return properties
        self.parts[number] = part
        return replace(known, aad_prefix=template.prefix(part))

    def _trust_stored_prefix(self, number: int, source: Source, template: PrefixTemplate) -> None:
        """Trust the prefix that a file stores: there is no key to check it with."""
        try:
            stored = stored_prefix(read_tail(source), source.name)
        except ModcryptError as error:
            self.unidentified[number] = str(error)
            return
        part = None if stored is None else template.part(stored)
        if part is not None:
            self.parts[number] = part
        elif stored is not None:
            self.unidentified[number] = str(foreign_file_error(source.name, stored))
        else:
            self.unidentified[number] = ""  # the file may be any part


def _make_unreadable_result(place: Place, error: OSError) -> CheckedFile:
    reason = error.strerror or type(error).__name__
    name = place.listed_name
    verification = Verification(
        name=name,
        findings=(Finding(word=FILE, message=f"{name} could not be read: {reason}"),),
        not_authenticated=(Unauthenticated(what="file", path=None, why="it could not be read"),),
    )
    return CheckedFile(verification, FileAad(None, None))
