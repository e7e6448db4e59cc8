"""Verify an encrypted file: every tag of every module, and that what they hold belongs together.

Nothing is decoded but metadata, nothing is written, and a fault ends nothing: what comes after it
is looked at as well. What no tag stands for is told, so that silence means something.

    end of the file -> footer -> keys and column metadata -> chunks, some on each thread

Chunks are independent; each thread has a window on the source, ciphers, and one buffer that bodies
are opened into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any

from modcrypt.errors import ModcryptError
from modcrypt.io.buffers import WORTH_A_THREAD, check_threads, usable_cores
from modcrypt.io.storage import Source, SourceLike, open_source
from modcrypt.parquet.crypto.ciphers import FOOTER_KEY, FileCipher
from modcrypt.parquet.crypto.footer import FOOTER
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, bound, check_decryption
from modcrypt.parquet.format.byte_map import Region, complete
from modcrypt.parquet.verify.chunk_checks import ChunkChecker
from modcrypt.parquet.verify.chunk_plan import ChunkPlan
from modcrypt.parquet.verify.chunk_report import Chunk
from modcrypt.parquet.verify.findings import (
    MAX_FINDINGS,
    Finding,
    Report,
    Unauthenticated,
    Verification,
)
from modcrypt.parquet.verify.footer_checks import CheckedFooter, check_footer

__all__ = [
    "CheckedFile",
    "Finding",
    "Unauthenticated",
    "Verification",
    "check_expected",
    "verify_parquet",
    "verify_source",
]

BATCH = 2 << 20
"""Bytes of chunks that a thread takes at a time."""

QUEUE = 64
"""Batches that are handed out ahead of the one whose result is awaited."""

LARGE_MODULE = 32 << 10
"""Mean size of modules in bytes from which on a second thread pays: smaller ones take longer in
Python than in AES, and Python runs on one thread at a time."""


def verify_parquet(
    source: SourceLike,
    properties: FileDecryptionProperties | None = None,
    *,
    filesystem: Any = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    expected_rows: int | None = None,
    regions: bool = False,
) -> Verification:
    """Check a Parquet file as far as the keys allow, without decoding a value, fault after fault.

    Checked are every tag of every module, the footer's signature, the AAD prefix, the ordinals of
    row groups, sizes, offsets and overlaps, CRCs, and indexes, bloom filters, statistics and
    counts against the pages.

    Args:
        source: path, fsspec URL, bytes or seekable binary file object.
        properties: keys, and what the caller insists on; None for no keys and nothing insisted on.
            Without a key, modules are checked as far as they can be seen. `on_missing_key` and
            `check_footer_integrity` change nothing here.
        filesystem: of pyarrow or fsspec, in which `source` is a path.
        threads: at most so many; None chooses by the file and the processors.
        progress: called now and then, in the calling thread, with the bytes checked so far.
        expected_rows: how many rows the file must have, known from elsewhere: who holds the footer
            key can leave row groups out.
        regions: whether to say for each byte of the file what it is, as drawing the file needs.

    Returns:
        What was found; also of a file that is no Parquet file at all.

    Raises:
        ValueError: `threads` is below 1, `expected_rows` is negative, or the AAD prefix depends on
            the name of a file that has none.
        TypeError: an argument is of another kind.
        OSError: from the file system.
    """
    check_threads(threads)
    check_expected(expected_rows)
    if properties is not None:
        check_decryption(properties)
    with open_source(source, filesystem=filesystem) as opened:
        checked = verify_source(
            opened, properties, threads=threads, progress=progress, regions=regions,
            expected_rows=expected_rows,
        )  # fmt: skip
    return checked.verification


def check_expected(rows: int | None) -> None:
    """Raise a ValueError for a number of rows that no file has."""
    if rows is not None and rows < 0:
        raise ValueError("expected_rows is not negative")


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A verification, and what tells the file from others."""

    verification: Verification
    prefix: bytes | None  # that it stores, or that is demanded
    unique: bytes | None


def verify_source(
    source: Source,
    properties: FileDecryptionProperties | None,
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    expected_rows: int | None = None,
    regions: bool = False,
) -> CheckedFile:
    """Do what `verify_parquet` does, with a source that is open."""
    report = Report(MAX_FINDINGS, regions=regions)
    given = _bound(properties or FileDecryptionProperties(), source, report)
    footer = check_footer(source, given, report, with_keys=properties is not None)
    plan = ChunkPlan(source, given, footer, report, insist=properties is not None)
    if expected_rows is not None:
        _check_rows(footer, expected_rows, report)
    works = False
    if footer.metadata is not None:
        _check_own_rows(footer, report)
        plan.make()
        works = _check_chunks(plan, threads, progress)
    if progress is not None:
        progress(source.size)
    prefix = footer.prefix or (given.aad_prefix if isinstance(given.aad_prefix, bytes) else None)
    return CheckedFile(_result(plan, footer_key_works=works), prefix, footer.unique)


def _bound(
    properties: FileDecryptionProperties, source: Source, report: Report
) -> FileDecryptionProperties:
    """Give the properties as they are for the file; without its retriever if that fails."""
    # A retriever that knows its file is to say why it has no key for a column.
    strict = replace(properties, on_missing_key="error")
    try:
        return bound(strict, source)
    except ModcryptError as error:  # what the keys lie in beside the file can't be read
        report.error(error)
        return bound(replace(strict, key_retriever=None), source)


def _check_rows(footer: CheckedFooter, expected: int, report: Report) -> None:
    if footer.metadata is None:
        report.note("rows", None, "the number of rows is not known")
    elif footer.metadata.num_rows != expected:
        message = (
            f"the file has {footer.metadata.num_rows} rows, {expected} are expected: row groups "
            "were left out or added, or it is another file"
        )
        report.fault("truncation", message, *footer.inside)


def _check_own_rows(footer: CheckedFooter, report: Report) -> None:
    declared = footer.metadata.num_rows
    counted = sum(row_group.num_rows for row_group in footer.metadata.row_groups)
    if declared != counted:
        message = f"the footer declares {declared} rows, its row groups {counted}"
        report.fault("format", message, *footer.inside)


# --- chunks --------------------------------------------------------------------------------------


def _check_chunks(
    plan: ChunkPlan, threads: int | None, progress: Callable[[int], None] | None
) -> bool:
    """Check the chunks in the order of the file; say whether the footer key opened any module."""
    batches = list(_batches(plan.chunks))
    if threads is None:
        threads = usable_cores() if plan.source.size > WORTH_A_THREAD else 1
    done, works = 0, False
    for batch, reports in _run(plan, batches, threads):
        for chunk, report in zip(batch, reports, strict=True):
            works = works or (chunk.kind == FOOTER_KEY and report.modules > 0)
            plan.report.merge(report, chunk.where)
            done += chunk.size
        if progress is not None:
            progress(done)
    return works


def _batches(chunks: list[Chunk]) -> Iterator[list[Chunk]]:
    """Give chunks in the order of the file, about `BATCH` bytes of them at a time."""
    batch: list[Chunk] = []
    size = 0
    for chunk in sorted(chunks, key=lambda one: one.spans[0].start if one.spans else 0):
        batch.append(chunk)
        size += chunk.size
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _run(
    plan: ChunkPlan, batches: list[list[Chunk]], threads: int
) -> Iterator[tuple[list[Chunk], list[Report]]]:
    """Check the first batch here; and the others too, unless threads pay."""
    checkers = _Checkers(plan)
    large = threads > 1
    for number, batch in enumerate(batches):
        if number and large:
            yield from _run_threads(checkers, batches[number:], threads)
            return
        reports = checkers.check(batch)
        modules = sum(report.modules for report in reports)
        large = large and sum(chunk.size for chunk in batch) >= modules * LARGE_MODULE
        yield batch, reports


def _run_threads(
    checkers: _Checkers, batches: list[list[Chunk]], threads: int
) -> Iterator[tuple[list[Chunk], list[Report]]]:
    pool = ThreadPoolExecutor(threads, "modcrypt-verify")
    coming = iter(batches)
    waiting: list[tuple[list[Chunk], Future[list[Report]]]] = []
    try:
        while True:
            handed = islice(coming, QUEUE - len(waiting))
            waiting += [(batch, pool.submit(checkers.check, batch)) for batch in handed]
            if not waiting:
                return
            batch, future = waiting.pop(0)
            yield batch, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


class _Checkers:
    """As many checkers as there are threads at work."""

    def __init__(self, plan: ChunkPlan) -> None:
        self._plan = plan
        self._idle: SimpleQueue[ChunkChecker] = SimpleQueue()

    def check(self, batch: list[Chunk]) -> list[Report]:
        """Check some chunks in this thread."""
        with self._one() as checker:
            return [checker.check(chunk) for chunk in batch]

    @contextmanager
    def _one(self) -> Iterator[ChunkChecker]:
        try:
            checker = self._idle.get_nowait()
        except Empty:
            checker = self._new()
        try:
            yield checker
        finally:
            self._idle.put(checker)

    def _new(self) -> ChunkChecker:
        plan, footer = self._plan, self._plan.footer
        cipher = detective = None
        if footer.cipher is not None:
            cipher = FileCipher(footer.cipher.file_aad, footer.cipher.algorithm)  # of this thread
            detective = plan.detective(cipher)
        regions = plan.report.regions is not None
        return ChunkChecker(plan.source, cipher, detective, footer.algorithm, regions=regions)


# --- the result ----------------------------------------------------------------------------------


def _result(plan: ChunkPlan, *, footer_key_works: bool) -> Verification:
    footer, report, source = plan.footer, plan.report, plan.source
    findings = list(report.closed("the file"))
    if footer.signature_fault is not None:
        findings.insert(0, _signature_finding(footer, footer_key_works=footer_key_works))
    return Verification(
        name=source.name,
        size=source.size,
        encrypted=footer.encrypted,
        footer_mode=footer.mode,
        algorithm=footer.algorithm,
        num_rows=None if footer.metadata is None else footer.metadata.num_rows,
        row_groups=0 if footer.metadata is None else len(footer.metadata.row_groups),
        columns=tuple(plan.paths),
        modules=report.modules,
        authenticated_bytes=report.authenticated,
        findings=tuple(findings),
        not_authenticated=tuple(report.notes.values()),
        regions=_regions(plan),
    )


def _regions(plan: ChunkPlan) -> tuple[Region, ...]:
    """Give the regions, and those between them: where not all is known, modules may lie there."""
    report, footer = plan.report, plan.footer
    if report.regions is None:
        return ()
    hidden = footer.encrypted and not plan.all_known
    return tuple(
        replace(one, kind="modules", state="locked", key="hidden")
        if hidden and one.kind == "gap" and one.end <= footer.body_end
        else one
        for one in complete(report.regions, plan.source.size)
    )


def _signature_finding(footer: CheckedFooter, *, footer_key_works: bool) -> Finding:
    """Say what a signature that doesn't match means, by what became of the modules."""
    error = footer.signature_fault
    assert error is not None
    message = str(error)
    if footer_key_works:
        message += (
            ". Modules open with the same key and AAD prefix: it is the footer that was altered"
        )
    start, end = footer.inside
    return Finding(word=error.word, message=message, start=start, end=end, module=FOOTER)
