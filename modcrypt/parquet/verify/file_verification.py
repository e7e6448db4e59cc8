"""Verify an encrypted file: the tag of every module, and that the modules are consistent.

Only metadata is decoded, and nothing is written. Verification continues after a fault and reports
all of them. It also reports what no tag authenticates, so that an empty report means something.

    end of the file -> footer -> keys and column metadata -> chunks, some on each thread

Chunks are independent. Each thread has its own window on the source, its own ciphers, and one
buffer into which page bodies are decrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from modcrypt.errors import ModcryptError
from modcrypt.io.buffers import WORTH_A_THREAD
from modcrypt.io.sources import Source, SourceLike, open_source
from modcrypt.io.threads import Lender, check_threads, in_threads, usable_cores
from modcrypt.keys import hide_keys
from modcrypt.module_ids import ALGORITHMS
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.footer import FOOTER, Footer
from modcrypt.parquet.crypto.footer_opening import bind_and_report, open_footer
from modcrypt.parquet.crypto.properties import (
    AnyDecryption,
    BoundRetriever,
    FileDecryptionProperties,
    as_decryption,
    bind_to_file,
)
from modcrypt.parquet.format.byte_map import Region, fill_gaps
from modcrypt.parquet.format.findings import MAX_FINDINGS, Finding
from modcrypt.parquet.format.framing import Tail, read_tail
from modcrypt.parquet.format.report import Report
from modcrypt.parquet.verify.chunk_checks import ChunkChecker, merge_reports, split_batches
from modcrypt.parquet.verify.chunk_plan import ChunkPlan
from modcrypt.parquet.verify.verification_results import Verification
from modcrypt.parquet.writers.quirk import FoundQuirk
from modcrypt.runtime.collector import paused_collector
from modcrypt.runtime.former_names import accept_former_names

_NOTHING_REQUIRED = FileDecryptionProperties(accept_algorithms=ALGORITHMS, require_encrypted=False)

_COVERED_BY_SIGNATURE = ("pages", "levels")
"""Parts without tags of their own, which the signature of the file's writer authenticates."""

BATCH = 2 << 20  # size in bytes of the batches of chunks that threads process

LARGE_MODULE = 32 << 10
"""Mean module size in bytes above which a second thread pays off: smaller modules take more time in
Python than in AES, and Python runs on one thread at a time."""


@hide_keys
@accept_former_names(properties="decryption")
def verify_parquet(
    source: SourceLike,
    decryption: AnyDecryption | None = None,
    *,
    filesystem: Any = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    expected_rows: int | None = None,
    regions: bool = False,
) -> Verification:
    """Verify a Parquet file as far as the keys allow, and report all faults.

    The checks cover the tag of every module, the footer's signature, the AAD prefix, the ordinals
    of row groups, sizes, offsets and overlaps, and CRCs. Indexes, bloom filters, statistics and
    counts are compared with the pages. No value is decoded.

    Args:
        source: Path, fsspec URL, bytes or seekable binary file object.
        decryption: Keys and requirements of the caller; None for neither. Without a key, modules
            are checked as far as possible. `on_missing_key` and `check_footer_integrity` have no
            effect here.
        filesystem: PyArrow or fsspec file system in which `source` is a path.
        threads: Maximum number of threads; None chooses by the file's size and the processors.
        progress: Function called from time to time, in the calling thread, with the number of bytes
            checked so far.
        expected_rows: Number of rows that the file must have, known from a trusted place: anyone
            who holds the footer key can drop row groups undetected.
        regions: Whether to map each byte of the file, which drawing the file needs.

    Returns:
        The findings, even if `source` is not a Parquet file at all.

    Raises:
        ValueError: `threads` is below 1, `expected_rows` is negative, or the AAD prefix depends on
            the file's name and the file has none.
        TypeError: An argument has the wrong type.
        OSError: The file system failed.
    """
    check_threads(threads)
    check_expected(expected_rows)
    if decryption is not None:
        decryption = as_decryption(decryption)
    with open_source(source, filesystem=filesystem) as opened:
        checked = verify_source(
            opened, decryption, threads=threads, progress=progress, regions=regions,
            expected_rows=expected_rows,
        )  # fmt: skip
    return checked.verification


def check_expected(rows: int | None) -> None:
    """Raise ValueError if a number of rows is negative."""
    if rows is not None and rows < 0:
        raise ValueError("expected_rows must not be negative")


@dataclass(frozen=True, slots=True)
class FileAad:
    """The parts of a file's AAD, which identify the file in a set, and what tells copies apart."""

    prefix: bytes | None  # AAD prefix that the file stores or the caller requires; never empty
    unique: bytes | None  # aad_file_unique
    size: int | None = None  # of the file in bytes
    rows: int | None = None  # number of rows, if the footer is authenticated


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """The verification of a file, and what identifies the file in a set."""

    verification: Verification
    aad: FileAad


@paused_collector()  # until the plan is freed
def verify_source(
    source: Source, properties: FileDecryptionProperties | None, **options: Any
) -> CheckedFile:
    """Verify an open source."""
    return verify_with_plan(source, properties, **options)[0]


@paused_collector()
def verify_with_plan(
    source: Source, properties: FileDecryptionProperties | None, *, threads: int | None = None,
    progress: Callable[[int], None] | None = None, expected_rows: int | None = None,
    regions: bool = False,
) -> tuple[CheckedFile, ChunkPlan]:  # fmt: skip
    """Verify an open source; also return its chunks and their keys."""
    report = Report(MAX_FINDINGS, regions=regions)
    given = bind_and_report(properties or _NOTHING_REQUIRED, source, report)
    footer = _open_footer(source, given, report)
    plan = ChunkPlan(source, given, footer, report, names_keys=regions)
    if expected_rows is not None:
        _check_expected_rows(footer, expected_rows, report)
    if footer.encrypted and footer.is_verified and not given.signed_by:
        retriever = given.key_retriever
        if isinstance(retriever, BoundRetriever) and retriever.anyone_can_wrap:
            report.add_note("writer", None, PUBLIC_KEYS)
    key_works = False
    if footer.metadata is not None:
        plan.find_chunks()
        key_works = _check_chunks(plan, threads, progress)
    if progress is not None:
        progress(source.size)
    verification = _build_result(plan, footer_key_works=key_works)
    return CheckedFile(verification, _file_aad(footer, given, source)), plan


def identify_source(source: Source, properties: FileDecryptionProperties | None) -> FileAad:
    """Return the identity of a file in a set; this needs no key and verifies nothing."""
    prefix = None if properties is None else properties.aad_prefix
    given = bind_to_file(replace(_NOTHING_REQUIRED, aad_prefix=prefix), source)
    return _file_aad(_open_footer(source, given, Report(MAX_FINDINGS)), given, source)


def _file_aad(footer: Footer, given: FileDecryptionProperties, source: Source) -> FileAad:
    given_prefix = given.aad_prefix if isinstance(given.aad_prefix, bytes) else None
    prefix = footer.stored_prefix or given_prefix
    rows = footer.metadata.num_rows if footer.is_verified and footer.metadata is not None else None
    return FileAad(prefix or None, footer.file_unique or None, source.size, rows)


def _open_footer(source: Source, properties: FileDecryptionProperties, report: Report) -> Footer:
    """Open the footer as far as possible, and report what is wrong with it."""
    try:
        tail = read_tail(source)
    except ModcryptError as error:
        report.add_error(error, 0, source.size)
        report.add_note("file", None, "it could not be read as a Parquet file")
        return Footer(Tail(b"", 0, b""), encrypted=False)
    return open_footer(tail, properties, source.name, report)


PUBLIC_KEYS = (
    "its keys are encrypted to public keys, so everyone who has these can make such a file; "
    "require the signature of its writer by signed_by"
)
"""Why a file that opens with an identity may be forged."""


def _check_expected_rows(footer: Footer, expected: int, report: Report) -> None:
    if footer.metadata is None:
        report.add_note("rows", None, "the number of rows is not known")
    elif footer.metadata.num_rows != expected:
        message = (
            f"the file has {footer.metadata.num_rows} rows, but {expected} are expected: row "
            "groups were dropped or added, or it is another file"
        )
        report.add_fault("truncation", message, *footer.inside)


def _check_chunks(
    plan: ChunkPlan, threads: int | None, progress: Callable[[int], None] | None
) -> bool:
    """Check the chunks in file order; return whether the footer key opened any module."""
    batches = split_batches(plan.chunks, BATCH)
    if threads is None:
        threads = usable_cores() if plan.source.size > WORTH_A_THREAD else 1
    done, key_works = 0, False
    for batch, reports in _check_batches(plan, batches, threads):
        key_works = merge_reports(plan.report, batch, reports) or key_works
        if progress is not None:
            done += sum(chunk.size for chunk in batch)
            progress(done)
    return key_works


def _check_batches(
    plan: ChunkPlan, batches: list[list[Chunk]], threads: int
) -> Iterator[tuple[list[Chunk], list[Report]]]:
    """Check the first batch in this thread, and the others too unless more threads pay off."""
    checkers = Lender(partial(ChunkChecker, plan))

    def check(batch: list[Chunk]) -> list[Report]:
        with checkers.lend() as checker:
            return checker.check(batch)

    large = threads > 1
    for number, batch in enumerate(batches):
        if number and large:
            rest = batches[number:]
            yield from zip(rest, in_threads(check, rest, threads, "modcrypt-verify"), strict=True)
            return
        reports = check(batch)
        if large:
            modules = sum(report.modules for report in reports)
            large = sum(chunk.size for chunk in batch) >= modules * LARGE_MODULE
        yield batch, reports


def _build_result(plan: ChunkPlan, *, footer_key_works: bool) -> Verification:
    footer, report, source = plan.footer, plan.report, plan.source
    findings = list(report.finish("the file"))
    if footer.signature_fault is not None:
        findings.insert(0, _explain_signature_fault(footer, footer_key_works=footer_key_works))
    return Verification(
        name=source.name,
        size=source.size,
        encrypted=footer.encrypted,
        footer_mode=footer.mode,
        algorithm=footer.algorithm_name,
        num_rows=None if footer.metadata is None else footer.metadata.num_rows,
        row_groups=0 if footer.metadata is None else len(footer.metadata.row_groups),
        columns=tuple(plan.paths),
        modules=report.modules,
        authenticated_bytes=report.authenticated,
        findings=tuple(findings),
        not_authenticated=tuple(
            note
            for note in report.notes.values()
            if footer.signed is None or note.what not in _COVERED_BY_SIGNATURE
        ),
        signed_by=footer.signed_by,
        regions=_complete_regions(plan),
        quirks=_find_quirks(plan) if findings or not footer.encrypted else (),
    )


def _find_quirks(plan: ChunkPlan) -> tuple[FoundQuirk, ...]:
    from modcrypt.parquet.writers.detection import find_plan_quirks  # which few files need

    return find_plan_quirks(plan.source, plan.footer, plan.listed, "pages")


def _complete_regions(plan: ChunkPlan) -> tuple[Region, ...]:
    """Return the regions and the gaps between them; hidden modules may lie in gaps."""
    report, footer = plan.report, plan.footer
    if report.regions is None:
        return ()
    hidden = footer.encrypted and not plan.all_known
    return tuple(
        replace(region, kind="modules", state="locked", key="hidden")
        if hidden and region.kind == "gap" and region.end <= footer.body_end
        else region
        for region in fill_gaps(report.regions, plan.source.size)
    )


def _explain_signature_fault(footer: Footer, *, footer_key_works: bool) -> Finding:
    """Return a finding that explains the mismatching signature by whether modules open."""
    error = footer.signature_fault
    assert error is not None
    message = str(error)
    if footer_key_works:
        message += ". Modules open with the same key and AAD prefix, so the footer was altered"
    start, end = footer.inside
    return Finding(word=error.word, message=message, start=start, end=end, module=FOOTER)
