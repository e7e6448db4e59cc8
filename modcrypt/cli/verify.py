"""`modcrypt verify`: check whether Parquet files are authentic."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import cloup

from modcrypt.cli.batch import files_options, record_option
from modcrypt.cli.examine import HtmlPage, html_options, properties_of_options
from modcrypt.cli.lake.lake_verification import (
    LAKE_PARAMETERS,
    is_of_lake,
    lake_verify_options,
    verify_lake,
)
from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.options.option_digest import digest_of
from modcrypt.cli.options.parquet_options import (
    accept_option,
    decryption_options,
    decryption_settings,
    template_options,
)
from modcrypt.cli.output.failures import use_option_names
from modcrypt.cli.output.progress import progress_bar
from modcrypt.cli.shared import (
    format_counts,
    format_table,
    lines_option,
    optional_paths_argument,
    print_json,
    print_line,
    shared_prefix_option,
    strict_option,
    threads_option,
)
from modcrypt.cli.spark import (
    SHOWN,
    is_any_typed,
    iterate_rows,
    print_report,
    refuse_local_options,
    spark_option,
    start_spark,
    take_details,
)
from modcrypt.errors import KmsUnavailableError, printable
from modcrypt.jobs.failures import describe_result
from modcrypt.report.text import format_count, format_size

if TYPE_CHECKING:  # not to be loaded for the help
    from pyspark.sql import DataFrame

    from modcrypt.jobs.listing import File
    from modcrypt.parquet.crypto.properties import FileDecryptionProperties
    from modcrypt.parquet.format.findings import Finding, Unauthenticated
    from modcrypt.parquet.verify.verification_results import DatasetVerification, Verification

# click keeps the lines of a paragraph after \b as they are.
_VERIFY_EXAMPLE = """\b
Examples: one file with its keys; a folder that must be fully authentic
  modcrypt verify --key-file footer.key --column-key price=file:price.key \\
      orders.enc.parquet
  modcrypt verify --kms file:lake.keyring --strict lake

\b
a lake against modcrypt.toml, for a CI system
  modcrypt verify --junit result.xml

\b
Exit codes: 0 no fault; 1 a fault, or with --strict something not authenticated;
3 nothing could be checked without a key, or a key of --policy is refused or missing;
4 the key service is unavailable"""


@cloup.command(epilog=_VERIFY_EXAMPLE)
@optional_paths_argument
@lake_verify_options
@decryption_options
@shared_prefix_option
@accept_option
@template_options
@click.option(
    "--expected-rows",
    metavar="N",
    type=click.IntRange(min=0),
    help="Total number of rows, to detect row groups dropped by a holder of the footer key.",
)
@strict_option
@files_options
@record_option
@threads_option("Number of threads for a single file. Default: by file size and processors.")
@spark_option
@html_options
@lines_option
def verify(
    *,
    paths: tuple[str, ...],
    aad_prefix_template: str | None,
    expected_parts: int | None,
    expected_rows: int | None,
    shared_aad_prefix: bool,
    strict: bool,
    glob: str | None,
    jobs: int | None,
    record: str | None,
    threads: int | None,
    html: str | None,
    force: bool,
    spark_master: str | None,
    as_json: bool,
    **reading: Any,
) -> int:
    """Verify that Parquet files are authentic and consistent, or a lake against its declaration.

    PATH is a file or a folder; or a dataset that modcrypt.toml declares. Without PATH, all its
    datasets are verified. verify checks every tag of every module, and that the contents fit
    together, but decodes no data. It continues after a fault and reports all of them. Without some
    or all keys, it checks what it can see, and reports what it could not authenticate. With
    --record, an interrupted run resumes with the files not yet found correct; a completed run
    starts again from the beginning.
    """
    lake = {name: reading.pop(name) for name in LAKE_PARAMETERS}
    if is_of_lake(paths, lake, has_keys=is_any_typed(reading)):
        refuse(_NOT_OF_LAKES, "a lake is verified as its declaration says; remove it")
        return verify_lake(paths, {**reading, **lake}, jobs=jobs, as_json=as_json)
    if spark_master is not None:
        options = {**reading, "shared_aad_prefix": shared_aad_prefix}
        return _verify_on_spark(spark_master, paths, options, strict=strict, as_json=as_json)
    if record is not None:
        refuse(_SET_PARAMETERS, "--record skips files, but this option needs all of them")
    from modcrypt.jobs.listing import find_named_files

    files, root = find_named_files(paths, glob)
    page = None if html is None else HtmlPage(html, force, files)
    properties = properties_of_options(reading, root)
    if record is not None:
        return _verify_with_record(
            files, properties, strict, jobs, as_json, record, shared_aad_prefix=shared_aad_prefix
        )
    if len(files) == 1 and aad_prefix_template is None and expected_parts is None:
        return _verify_one(files[0], properties, expected_rows, threads, strict, page, as_json)
    return _verify_all(
        files, properties, strict, jobs, as_json,
        aad_prefix_template=aad_prefix_template, expected_parts=expected_parts,
        expected_rows=expected_rows, shared_aad_prefix=shared_aad_prefix,
    )  # fmt: skip


_NOT_OF_LAKES = {
    "key_file", "key_env", "key_fd", "column_key_refs", "aad_prefix", "aad_prefix_hex",
    "aad_prefix_file", "root", "kms", "policy_file", "master_keys", "shared_aad_prefix", "accept",
    "aad_prefix_template", "expected_parts", "expected_rows", "strict", "glob", "record", "threads",
    "html", "spark_master",
}  # fmt: skip
_SET_PARAMETERS = {"aad_prefix_template", "expected_parts", "expected_rows", "html"}


def _verify_with_record(
    files: Sequence[File], properties: FileDecryptionProperties | None, strict: bool,
    jobs: int | None, as_json: bool, path: str, **of_set: Any,
) -> int:  # fmt: skip
    """Verify the files that an interrupted run of this command has not found correct."""
    from modcrypt.jobs.run_record import Record

    run = {"command": "verify", "options": digest_of(click.get_current_context().params)}
    places = {file.place.path: file.place for file in files}
    if len(places) < len(files):
        raise click.UsageError("--record needs files of a single store; verify one store at a time")
    with Record(path, run, lambda entry: "ended" not in entry, write=True, alone=True) as record:
        verified = {path for path, place in places.items() if record.find(place) is not None}
        if verified:
            click.echo(
                f"modcrypt: {format_count(len(verified), 'file')} already found correct; only "
                "compared with the others",
                err=True,
            )

        def note(name: str, verification: Verification) -> None:
            if verification.modules and _exit_code(verification, [verification], strict) == 0:
                record.add_file(places[name], result="ok")

        code = _verify_all(
            files, properties, strict, jobs, as_json, each=note, verified=verified, **of_set
        )
        record.end()
    return code


def _verify_one(
    file: File, properties: FileDecryptionProperties | None, expected_rows: int | None,
    threads: int | None, strict: bool, page: HtmlPage | None, as_json: bool,
) -> int:  # fmt: skip
    from modcrypt.io.sources import open_source_at
    from modcrypt.parquet.verify.file_verification import verify_source

    started = time.perf_counter()
    with (
        progress_bar("Verifying", file.size) as progress,
        open_source_at(file.place, file.name) as source,
    ):
        verification = verify_source(
            source,
            properties,
            threads=threads,
            progress=progress,
            expected_rows=expected_rows,
            regions=page is not None,
        ).verification
    if page is not None:
        page.write(verification)
    return _print_result(verification, [verification], strict, as_json, started)


def _verify_all(
    files: Sequence[File], properties: FileDecryptionProperties | None, strict: bool,
    jobs: int | None, as_json: bool, **of_set: Any,
) -> int:  # fmt: skip
    from modcrypt.jobs.dataset_verification import verify_dataset

    started = time.perf_counter()
    with progress_bar("Verifying", sum(file.size for file in files)) as progress:
        verification = verify_dataset(
            [file.place for file in files], properties, jobs=jobs, progress=progress, **of_set
        )
    return _print_result(verification, verification.files, strict, as_json, started)


def _print_result(
    result: Verification | DatasetVerification, files: Sequence[Verification], strict: bool,
    as_json: bool, started: float,
) -> int:  # fmt: skip
    """Print the findings about one file, or about several and their set; return the exit code."""
    several = not any(file is result for file in files)
    seconds = round(time.perf_counter() - started, 6)
    code = _exit_code(result, files, strict)
    if as_json:
        for file in files:
            more = {} if several else {"seconds": seconds}
            print_json("verify.file", {**_verification_fields(file), **more})
        if several:
            _print_totals(
                files=len(files), ok=result.ok, complete=result.complete, num_rows=result.num_rows,
                findings=result.findings, notes=result.not_authenticated, seconds=seconds,
            )  # fmt: skip
        return code
    named = [(file.name if several else None, file) for file in files]
    findings = [(name, found) for name, file in named for found in file.findings]
    notes = [(name, note) for name, file in named for note in file.not_authenticated]
    if several:
        findings += [(None, found) for found in result.findings]
        notes += [(None, note) for note in result.not_authenticated]
    if findings:
        print_line(_format_findings(findings))
    _print_unauthenticated(notes)
    what = f"{len(files)} files" if several else printable(files[0].name)
    print_line(f"{what}: {_verdict(files, [found for _, found in findings], result.complete)}")
    return code


def _print_totals(
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


def _exit_code(
    verification: Verification | DatasetVerification, files: Sequence[Verification], strict: bool
) -> int:
    encrypted = [file for file in files if file.encrypted]
    return _verification_code(
        ok=verification.ok,
        missing={note.word for file in files for note in file.not_authenticated} - {None},
        unchecked=bool(encrypted) and not any(file.modules for file in encrypted),
        incomplete=strict and not verification.complete,
    )


def _verification_code(
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
    by_policy = click.get_current_context().params["policy_file"] is not None
    return 3 if unchecked or (missing and by_policy) else int(incomplete)


def _verification_fields(verification: Verification) -> dict[str, Any]:
    fields = describe_result(verification)
    return {**fields, "findings": [_finding_fields(finding) for finding in verification.findings]}


def _finding_fields(finding: Finding) -> dict[str, Any]:
    return {**finding.fields(), "message": use_option_names(finding.message)}


def _format_findings(findings: Sequence[tuple[str | None, Finding]]) -> str:
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


# --- on Spark -----------------------------------------------------------------------------------


def _verify_on_spark(
    master: str, paths: Sequence[str], options: dict[str, Any], *, strict: bool, as_json: bool
) -> int:
    """Run `verify` on files, and compare them with each other; return the exit code."""
    refuse_local_options()
    refuse(
        {"aad_prefix_template", "expected_parts", "expected_rows", "html"},
        "not supported with --spark",
    )
    settings = decryption_settings(options) if is_any_typed(options) else None
    started = time.perf_counter()
    with start_spark(master, "verify") as spark:
        from modcrypt.spark.jobs.table_jobs import verify_table

        verified = verify_table(spark, list(paths), settings)
        counts = _count_results(verified)
        findings = _compare_files(verified)
        missing = _missing_key_codes(verified)
        fault = any(finding.severity == "fault" for finding in findings)
        totals = {
            "files": counts["files"],
            "ok": not (counts["failed"] or fault),
            "complete": counts["files"] == counts["authentic"] and not fault,
            "num_rows": counts["rows"],
        }
        if as_json:
            _print_rows_as_json(verified, totals, findings, started)
        else:
            print_report(verified, take_details, as_json, schema="verify.file")
            if findings:
                print_line(_format_findings([(None, finding) for finding in findings]))
    if not as_json:
        names = ("authentic", "partial", "failed")
        texts = format_counts({name: counts[name] for name in names})
        print_line(f"{counts['files']} files: {texts}; {counts['modules']:,} modules")
    return _verification_code(
        ok=totals["ok"],
        missing=missing,
        unchecked=bool(counts["encrypted"]) and not counts["modules_of_encrypted"],
        incomplete=strict and not totals["complete"],
    )


def _print_rows_as_json(
    verified: DataFrame, totals: dict[str, Any], findings: Sequence[Finding], started: float
) -> None:
    """Print the lines that `verify` prints without Spark."""
    for row in iterate_rows(verified.orderBy("path")):
        fields = take_details(row)
        if totals["files"] == 1:
            fields["seconds"] = round(time.perf_counter() - started, 6)
        print_json("verify.file", fields)
    if totals["files"] > 1:
        seconds = round(time.perf_counter() - started, 6)
        _print_totals(findings=findings, seconds=seconds, **totals)


def _compare_files(verified: DataFrame) -> list[Finding]:
    """Return what `verify_dataset` finds by comparing files with each other."""
    from modcrypt.jobs.dataset_verification import find_copies, find_shared_prefixes

    def group_by(column: str) -> dict[bytes, list[str]]:
        named = verified.where(f"{column} is not null").selectExpr(f"{column} as value", "path")
        groups = named.groupBy("value").agg({"path": "collect_list"})
        several = groups.where("size(`collect_list(path)`) > 1").limit(SHOWN).collect()
        return {bytes.fromhex(row["value"]): sorted(row[1]) for row in several}

    return [
        *find_shared_prefixes(group_by("aad_prefix_hex")),
        *find_copies(group_by("file_unique")),
    ]


def _missing_key_codes(verified: DataFrame) -> set[str]:
    """Return the error codes of keys that could not be retrieved."""
    words = verified.selectExpr("explode(not_authenticated.word) as word").distinct().collect()
    return {row["word"] for row in words} - {None}


def _count_results(verified: DataFrame) -> dict[str, Any]:
    """Return the numbers of files by result, and of their rows and modules."""
    (row,) = verified.selectExpr(
        "count(*) as files",
        "count_if(failed) as failed",
        "count_if(not failed and complete) as authentic",
        "count_if(not failed and not complete) as partial",
        "count_if(encrypted) as encrypted",
        "coalesce(sum(modules), 0) as modules",
        "coalesce(sum(if(encrypted, modules, 0)), 0) as modules_of_encrypted",
        "if(count(rows) = count(*), sum(rows), null) as rows",
    ).collect()
    return dict(row.asDict())
