"""What a verification found, as text and as JSON, and its exit code."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.output.failures import use_option_names
from modcrypt.cli.shared import format_table, print_json, print_line
from modcrypt.errors import KmsUnavailableError, printable
from modcrypt.jobs.failures import describe_result
from modcrypt.report.text import format_count, format_size

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.parquet.format.findings import Finding, Unauthenticated
    from modcrypt.parquet.verify.verification_results import DatasetVerification, Verification


def print_result(
    result: DatasetVerification, count: int, strict: bool, as_json: bool, started: float
) -> int:
    """Print the findings about one file, or about several and their set; return the exit code.

    `count` is the number of files that the user named; a resumed run has no result for those that
    the earlier run found correct.
    """
    files = result.files
    several = {count, len(files)} != {1} or bool(result.findings or result.not_authenticated)
    seconds = round(time.perf_counter() - started, 6)
    code = exit_code(result, files, strict)
    if as_json:
        for file in files:
            more = {} if several else {"seconds": seconds}
            print_json("verify.file", {**_verification_fields(file), **more})
        if several:
            print_totals(
                files=len(files), ok=result.ok, complete=result.complete, num_rows=result.num_rows,
                findings=result.findings, notes=result.not_authenticated, seconds=seconds,
            )  # fmt: skip
        return code
    named: list[tuple[str | None, Verification | DatasetVerification]]
    named = [*((file.name if several else None, file) for file in files), (None, result)]
    findings = [(name, found) for name, part in named for found in part.findings]
    notes = [(name, note) for name, part in named for note in part.not_authenticated]
    if findings:
        print_line(format_findings(findings))
    _print_unauthenticated(notes)
    what = format_count(len(files), "file") if several else printable(files[0].name)
    print_line(f"{what}: {_verdict(files, [found for _, found in findings], result.complete)}")
    return code


def print_totals(
    *, findings: Sequence[Finding], notes: Sequence[Unauthenticated] = (), seconds: float,
    **totals: Any,
) -> None:  # fmt: skip
    """Print the last line of JSON, about the set of files."""
    of_set = {
        "findings": [_finding_fields(finding) for finding in findings],
        "not_authenticated": [note.fields() for note in notes],
    }
    print_json("verify.totals", {**totals, **of_set, "seconds": seconds})


# --- what it found -------------------------------------------------------------------------------


def exit_code(
    verification: Verification | DatasetVerification, files: Sequence[Verification], strict: bool
) -> int:
    """Return the exit code for one file, or for several and their set."""
    encrypted = [file for file in files if file.encrypted]
    return verification_code(
        ok=verification.ok,
        missing={note.word for file in files for note in file.not_authenticated} - {None},
        unchecked=bool(encrypted) and not any(file.modules for file in encrypted),
        incomplete=strict and not verification.complete,
    )


def verification_code(
    *, ok: bool, missing: Collection[str | None], unchecked: bool, incomplete: bool
) -> int:
    """Return the exit code of a verification: a fault takes precedence over a missing key.

    `missing` has the error codes of keys that could not be retrieved; `unchecked` means that files
    are encrypted and nothing could be checked, `incomplete` that something that must be
    authenticated is not.
    """
    if not ok:
        return 1
    if KmsUnavailableError.word in missing:
        return 4
    options = click.get_current_context().params
    # Others can make a key seem missing, so that a demand on the file is not checked.
    demands = options["policy_file"] is not None or options["signed_by"]
    return 3 if unchecked or (missing and demands) else int(incomplete)


def _verification_fields(verification: Verification) -> dict[str, Any]:
    fields = describe_result(verification)
    return {**fields, "findings": [_finding_fields(finding) for finding in verification.findings]}


def _finding_fields(finding: Finding) -> dict[str, Any]:
    return {**finding.fields(), "message": use_option_names(finding.message)}


def format_findings(findings: Sequence[tuple[str | None, Finding]]) -> str:
    """Return the table of findings, with file names if there are several files."""
    rows = [
        (
            name,
            finding.severity,
            finding.word,
            None if finding.module is None else str(finding.module),
            None if finding.start is None else f"{finding.start}-{finding.end}",
            _finding_text(finding),
        )
        for name, finding in findings
    ]
    titles = ("file", "severity", "error", "module", "bytes", "meaning")
    first = 0 if any(name is not None for name, _ in findings) else 1
    return format_table(titles[first:], [row[first:] for row in rows], left=range(6))


def _finding_text(finding: Finding) -> str:
    """Return the message without its leading module, which has a column of its own."""
    return use_option_names(finding.message).removeprefix(f"{finding.module}: ")


def _print_unauthenticated(named_notes: Iterable[tuple[str | None, Unauthenticated]]) -> None:
    """Print what was not authenticated; parts open by design share a line, without reasons.

    The name of the file is None for a note about a set of files.
    """
    from modcrypt.parquet.format.findings import fold

    notes = list(named_notes)
    lines = [
        f"  {note.what}{_format_file_count(note.files)}: {use_option_names(note.why)}"
        for note in fold(pair for pair in notes if not pair[1].by_design)
    ]
    if lines:
        print_line("\n".join(["Not authenticated:", *map(printable, lines)]))
    if open_parts := fold(pair for pair in notes if pair[1].by_design):
        names = (f"{note.what}{_format_file_count(note.files)}" for note in open_parts)
        print_line(printable(f"Open by design: {'; '.join(names)}"))


def _format_file_count(count: int) -> str:
    return f" ({count} file{'s' * (count != 1)})" if count else ""


def _verdict(files: Sequence[Verification], findings: Sequence[Finding], complete: bool) -> str:
    faults = sum(finding.severity == "fault" for finding in findings)
    modules, size = sum(f.modules for f in files), sum(f.authenticated_bytes for f in files)
    checked = f"{modules:,} modules authenticated, {format_size(size)}"
    if files and all(file.signed_by for file in files):
        checked += f"; signed by {', '.join(sorted({str(file.signed_by) for file in files}))}"
    if faults:
        return f"{faults} fault{'s' * (faults != 1)}; {checked}"
    if complete:
        return f"authentic; {checked}"
    if not any(file.encrypted for file in files):
        return "not encrypted, so nothing is authenticated; no fault found"
    if not modules:
        away = any(finding.word == KmsUnavailableError.word for finding in findings)
        why = "because the key service is unavailable" if away else "without a key"
        return f"nothing could be checked {why}; no fault found"
    return f"no fault found, but not everything is authenticated; {checked}"
