"""`modcrypt verify`: check whether Parquet files are authentic."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.batch import digest_of, files_options
from modcrypt.cli.engines import load_spark
from modcrypt.cli.examine import html_options, prepare_page
from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.options.parquet_options import (
    decryption_options,
    settings_of_options,
    template_options,
)
from modcrypt.cli.output.failures import use_option_names
from modcrypt.cli.output.progress import progress_bar
from modcrypt.cli.shared import (
    accept_option,
    combine_options,
    paths_argument,
    print_json,
    print_line,
    print_list,
    print_long_table,
    record_option,
    shared_prefix_option,
    strict_option,
    threads_option,
)
from modcrypt.cli.shared_options import json_option, rare_option, spark_option, verb
from modcrypt.errors import KmsUnavailableError, printable
from modcrypt.jobs.failures import describe_result
from modcrypt.report.text import format_count, format_size

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.jobs.listing import File
    from modcrypt.parquet.format.findings import Finding, Unauthenticated
    from modcrypt.parquet.verify.verification_results import DatasetVerification, Verification


EXAMPLE = """\b
Examples: one file with its keys; a folder that must be fully authentic
  modcrypt verify --key file:footer.key --column-key price=file:price.key \\
      orders.enc.parquet
  modcrypt verify --kms file:lake.keyring --strict lake

"""
EXIT_CODES = """\b
Exit codes: 0 no fault; 1 a fault, or with --strict something not authenticated;
3 nothing could be checked without a key, or a key of --policy is refused or missing;
4 the key service is unavailable"""


CHECKS = """\
verify checks the tag of every page and part, and that the contents fit together, but decodes no
data. It continues after a fault and reports all of them. Without some or all keys, it checks what
it can see, and reports what it could not authenticate. With --strict, values beside the files are
faults, too, as modcrypt leaks finds them. With --record, an interrupted run resumes."""
"""The end of the help, also of a plug-in's command that replaces `verify`."""

_HELP = f"""\
Verify that Parquet files are authentic and consistent.

PATH is a file or a folder. {CHECKS}"""

options_of_files = combine_options(
    decryption_options,
    shared_prefix_option,
    accept_option,
    template_options,
    rare_option(
        "--expected-rows N",
        type=click.IntRange(min=0),
        help="Total number of rows, to detect row groups dropped by a holder of the footer key.",
    ),
    strict_option,
    files_options,
    record_option,
    threads_option,
    spark_option,
    html_options,
    json_option,
)
"""The options of `verify` for files."""


@verb(help=_HELP, epilog=EXAMPLE + EXIT_CODES)
@paths_argument
@options_of_files
def verify(*, paths: tuple[str, ...], **options: Any) -> int:
    """Verify files."""
    return verify_files(paths=paths, **options)


def verify_files(
    *, paths: tuple[str, ...], aad_prefix_template: str | None, expected_parts: int | None,
    expected_rows: int | None, shared_aad_prefix: bool, strict: bool, glob: str | None,
    jobs: int | None, record: str | None, threads: int | None, html: str | None, force: bool,
    spark_master: str | None, as_json: bool, changed_since: float | None = None,
    report: Callable[[DatasetVerification], object] | None = None, **reading: Any,
) -> int:  # fmt: skip
    """Verify files; return the exit code.

    Those before `changed_since`, in seconds since 1970, are skipped; `report` is called with the
    result. `reading` are the options that open files.
    """
    if spark_master is not None:
        options = {**reading, "shared_aad_prefix": shared_aad_prefix}
        code: int = load_spark().verify_files(
            spark_master, paths, options, strict=strict, as_json=as_json
        )
        return code
    if record is not None:
        refuse(_SET_PARAMETERS, "--record skips files, but this option needs all of them")
    from modcrypt.jobs.dataset_verification import verify_dataset
    from modcrypt.jobs.leaks.scan import find_leak_faults
    from modcrypt.jobs.listing import list_dataset
    from modcrypt.parquet.crypto.properties import required_seal

    started = time.perf_counter()
    settings = settings_of_options(reading, paths)
    properties = None if settings is None else settings.decryption()
    # A seal names files that --glob skips.
    seal = None if properties is None or glob is not None else required_seal(properties)
    listed = list_dataset(paths, seal, glob=glob)
    files = listed.files
    if changed_since is not None:
        times = [file.place.modified() for file in files]
        dated = zip(files, times, strict=True)
        files = [file for file, at in dated if at is None or at >= changed_since]
        if skipped := len(listed.files) - len(files):
            click.echo(f"modcrypt: {format_count(skipped, 'file')} unchanged and skipped", err=True)
    leaks = find_leak_faults(paths if strict else (), settings)
    write_page = prepare_page(html, force, files)
    with (
        resume_verification(record, files, strict) as earlier,
        progress_bar("Verifying", sum(file.size for file in files)) as progress,
    ):
        verification = verify_dataset(
            replace(listed, files=files), properties, jobs=jobs, threads=threads,
            aad_prefix_template=aad_prefix_template, expected_parts=expected_parts,
            expected_rows=expected_rows, shared_aad_prefix=shared_aad_prefix,
            regions=html is not None, progress=progress, **earlier,
        )  # fmt: skip
    verification = replace(verification, findings=(*verification.findings, *leaks))
    if report is not None:
        report(verification)
    code = print_result(verification, len(files), strict, as_json, started)
    return write_page(verification.files[0], code) if verification.files else code


_SET_PARAMETERS = {"aad_prefix_template", "expected_parts", "expected_rows", "html"}


@contextmanager
def resume_verification(
    record_path: str | None, files: Sequence[File], strict: bool
) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `verify_dataset` that skip and record correct files; {} if no record.

    At the end without an exception, the record is closed: the next run starts again.
    """
    if record_path is None:
        yield {}
        return
    from modcrypt.jobs.run_record import Record

    run = {"command": "verify", "options": digest_of(click.get_current_context().params)}
    places = {file.place.path: file.place for file in files}
    if len(places) < len(files):
        raise click.UsageError("--record needs files of a single store; verify one store at a time")
    with Record(
        record_path, run, lambda entry: "ended" not in entry, write=True, alone=True
    ) as record:
        verified = {path for path, place in places.items() if record.find(place) is not None}
        if verified:
            click.echo(
                f"modcrypt: {format_count(len(verified), 'file')} already found correct; only "
                "compared with the others",
                err=True,
            )

        def note(path: str, verification: Verification) -> None:
            if verification.modules and exit_code(verification, [verification], strict) == 0:
                record.add_file(places[path], result="ok")

        yield {"each": note, "verified": verified}
        record.end()


def print_result(
    result: DatasetVerification, count: int, strict: bool, as_json: bool, started: float
) -> int:
    """Print the findings about one file, or about several and their set; return the exit code.

    `count` is the number of files that the user named; a resumed run has no result for those that
    the earlier run found correct.
    """
    files = result.files
    several = {count, len(files)} != {1} or bool(result.findings or result.not_authenticated)
    code = exit_code(result, files, strict)
    if as_json:
        described = (
            {**describe_result(file), "findings": list(map(_finding_fields, file.findings))}
            for file in files
        )
        print_lines(
            described, result.findings, result.not_authenticated, several=several, started=started,
            files=len(files), ok=result.ok, complete=result.complete, num_rows=result.num_rows,
        )  # fmt: skip
        return code
    named: list[tuple[str | None, Verification | DatasetVerification]]
    named = [*((file.name if several else None, file) for file in files), (None, result)]
    findings = [(name, found) for name, part in named for found in part.findings]
    notes = [(name, note) for name, part in named for note in part.not_authenticated]
    if findings:
        print_findings(findings)
    for file in files:
        heading = f"Bugs of the writer of {file.name}:" if several else "Bugs of the writer:"
        print_list(printable(heading), [str(quirk) for quirk in file.quirks])
    _print_unauthenticated(notes)
    what = format_count(len(files), "file") if several else printable(files[0].name)
    print_line(f"{what}: {_verdict(files, [found for _, found in findings], result.complete)}")
    return code


def print_lines(
    described: Iterable[Mapping[str, Any]], findings: Iterable[Finding],
    notes: Iterable[Unauthenticated] = (), *, several: bool, started: float, **totals: Any,
) -> None:  # fmt: skip
    """Print lines of JSON for files and, if there are several, for the set, with these totals."""
    for fields in described:
        if "error" in fields:  # of a file that could not be processed on Spark
            print_json("failure", fields)
        else:
            print_json("verify.file", fields if several else {**fields, **_duration(started)})
    if several:
        of_set = {
            "findings": [_finding_fields(finding) for finding in findings],
            "not_authenticated": [note.fields() for note in notes],
        }
        print_json("verify.totals", {**totals, **of_set, **_duration(started)})


def _duration(started: float) -> dict[str, float]:
    return {"seconds": round(time.perf_counter() - started, 6)}


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


def _finding_fields(finding: Finding) -> dict[str, Any]:
    return {**finding.fields(), "message": use_option_names(finding.message)}


def print_findings(
    findings: Iterable[tuple[str | None, Finding]], adapt: Callable[[str], str] = use_option_names,
    *, named: bool | None = None,
) -> None:  # fmt: skip
    """Print the table of findings.

    Args:
        findings: Name of the file of each, None for one about the set.
        adapt: Function that returns a message in the words of the command line.
        named: Whether to print names; by default, if there is one.
    """
    if named is None:
        findings = list(findings)
        named = any(name is not None for name, _ in findings)
    rows = (
        (
            name,
            finding.severity,
            finding.word,
            None if finding.module is None else str(finding.module),
            None if finding.start is None else f"{finding.start}-{finding.end}",
            # without its leading module, which has a column of its own
            adapt(finding.message).removeprefix(f"{finding.module}: "),
        )
        for name, finding in findings
    )
    first = 0 if named else 1
    titles = ("file", "severity", "error", "module", "bytes", "meaning")
    print_long_table(titles[first:], (row[first:] for row in rows))


def _print_unauthenticated(named_notes: Iterable[tuple[str | None, Unauthenticated]]) -> None:
    """Print what was not authenticated."""
    # Parts that the format does not authenticate share a line, without reasons. The name of the
    # file is None for a note about a set of files.
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
        print_line(printable(f"Not authenticated by the format: {'; '.join(names)}"))


def _format_file_count(count: int) -> str:
    return f" ({format_count(count, 'file')})" if count else ""


def _verdict(files: Sequence[Verification], findings: Sequence[Finding], complete: bool) -> str:
    faults = sum(finding.severity == "fault" for finding in findings)
    modules, size = sum(f.modules for f in files), sum(f.authenticated_bytes for f in files)
    checked = f"{format_count(modules, 'page or part')} authenticated, {format_size(size)}"
    if files and all(file.signed_by for file in files):
        checked += f"; signed by {', '.join(sorted({str(file.signed_by) for file in files}))}"
    if faults:
        return f"{format_count(faults, 'fault')}; {checked}"
    if complete:
        return f"authentic; {checked}"
    if not any(file.encrypted for file in files):
        return "not encrypted, so nothing is authenticated; no fault found"
    if not modules:
        away = any(finding.word == KmsUnavailableError.word for finding in findings)
        why = "because the key service is unavailable" if away else "without a key"
        return f"nothing could be checked {why}; no fault found"
    return f"no fault found, but not everything is authenticated; {checked}"
