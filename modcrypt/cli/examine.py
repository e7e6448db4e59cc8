"""`modcrypt inspect` and `verify`: what Parquet files reveal, and whether they are authentic."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from modcrypt.cli.batch import (
    File,
    Files,
    digest_of,
    files_options,
    record_option,
    size_of,
)
from modcrypt.cli.options.kms_options import audit_option, reading_service_options, refuse
from modcrypt.cli.options.parquet_options import (
    accept_option,
    decryption_properties,
    parquet_key_options,
)
from modcrypt.cli.output.failures import (
    Failure,
    common_code,
    explain,
    module_fields,
    printable,
    use_option_names,
)
from modcrypt.cli.output.progress import files_bar, progress_bar
from modcrypt.cli.shared import (
    combine_options,
    format_table,
    lines_option,
    prefix_options,
    print_facts,
    print_line,
    root_option,
    shared_prefix_option,
    threads_option,
)
from modcrypt.cli.spark import inspect_on_spark, spark_option, verify_on_spark
from modcrypt.errors import KmsUnavailableError
from modcrypt.report.text import format_count, format_size

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.parquet.crypto.properties import FileDecryptionProperties
    from modcrypt.parquet.format.findings import (
        Finding,
        Unauthenticated,
    )
    from modcrypt.parquet.verify.inspection import ColumnInspection, Inspection
    from modcrypt.parquet.verify.verification_results import DatasetVerification, Verification

__all__ = ["inspect", "verify"]

# --- options that they share ---------------------------------------------------------------------

_html_options = combine_options(
    click.option(
        "--html",
        metavar="OUT",
        help="Write a drawing of a single file as a self-contained HTML page to OUT.",
    ),
    click.option("--force", is_flag=True, help="Replace OUT if it exists."),
)


def _properties_of_options(
    reading: dict[str, Any], paths: Sequence[str], files: Sequence[File]
) -> FileDecryptionProperties | None:
    """Return the properties that the options set; None if no option is typed."""
    context = click.get_current_context()
    typed = any(
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in reading
    )
    if not typed:
        return None
    properties = decryption_properties(**reading)
    if len(paths) == 1 and files[0].inside:
        from modcrypt.parquet.crypto.properties import set_prefix_root

        properties = set_prefix_root(properties, paths[0])
    return properties


def _find_files(paths: Iterable[str], glob: str | None) -> list[File]:
    """Return the files at the paths, including those in folders, each once.

    Raises:
        FileNotFoundError: A path does not exist.
        click.UsageError: A folder has no matching files.
    """
    by_name: dict[str, File] = {}
    for path in paths:
        if path == "-":
            raise click.UsageError("pipes are not supported: Parquet needs random access")
        for file in Files.find(path, glob).members:
            by_name.setdefault(file.place.full_name, file)
    return list(by_name.values())


class _Page:
    """The HTML page that --html requests."""

    def __init__(self, out: str | None, force: bool, files: Sequence[File]) -> None:
        from modcrypt.io.places import place_of

        self.out, self._force = out, force
        if out is None:
            return
        if len(files) != 1:
            raise click.UsageError(f"--html draws a single file, but PATH names {len(files)}")
        place = place_of(out)
        assert place is not None  # it is a path
        if place.resolve() == files[0].place.resolve():
            raise click.UsageError(f"{out} is the file to draw; pass another OUT to --html")
        if not force:
            place.check_absent()

    def write(self, html: Callable[[], str]) -> None:
        from modcrypt.io.destinations import open_sink

        if self.out is not None:
            with open_sink(self.out, overwrite=self._force) as sink:
                sink.append(html().encode("utf-8", "replace"))


# click keeps the lines of a paragraph after \b as they are.
_INSPECT_EXAMPLE = """\b
Examples: what anyone can see; all modules, with the keys; a drawing
  modcrypt inspect orders.enc.parquet
  modcrypt inspect --key-file footer.key --column-key price=file:price.key --modules \\
      orders.enc.parquet
  modcrypt inspect --kms file:lake.keyring --html orders.html orders.kms.parquet"""

_VERIFY_EXAMPLE = """\b
Examples: one file with its keys; a folder that must be fully authentic
  modcrypt verify --key-file footer.key --column-key price=file:price.key \\
      orders.enc.parquet
  modcrypt verify --kms file:lake.keyring --strict lake

\b
Exit codes: 0 no fault; 1 a fault, or with --strict something not authenticated;
3 nothing could be checked without a key, or a key of --policy is refused or missing;
4 the key service is unavailable"""


# --- inspect -------------------------------------------------------------------------------------


@click.command(epilog=_INSPECT_EXAMPLE)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--modules", "pages", is_flag=True, help="Show the position of every module, including pages."
)
@parquet_key_options
@prefix_options
@root_option
@reading_service_options
@audit_option
@files_options
@spark_option
@_html_options
@lines_option
def inspect(
    *,
    paths: tuple[str, ...],
    pages: bool,
    glob: str | None,
    jobs: int | None,
    html: str | None,
    force: bool,
    spark_master: str | None,
    as_json: bool,
    **reading: Any,
) -> int:
    """Show how Parquet files are encrypted, and what they reveal.

    PATH is a file or a folder. No key is needed; with keys, inspect shows more, and which keys
    fit. It does not open pages; use verify to check them. The exit code is 1 if one of several
    files could not be inspected, and 4 if the key service is unavailable.
    """
    if spark_master is not None:
        return inspect_on_spark(spark_master, paths, reading, as_json=as_json)
    from modcrypt.parquet.verify.inspection import inspect_parquet

    files = _find_files(paths, glob)
    page = _Page(html, force, files)
    properties = _properties_of_options(reading, paths, files)
    look = partial(inspect_parquet, properties=properties, pages=pages)
    if len(files) == 1:
        single = look(files[0].name)
        page.write(single.to_html)
        _print_inspection(single, pages, as_json)
        return 4 * single.kms_unavailable
    codes = set[int]()
    for number, (file, inspection) in enumerate(_inspect_each(files, look, jobs)):
        if isinstance(inspection, Failure):
            codes.add(inspection.code)
            _print_failure(file, inspection, as_json)
            continue
        if number and not as_json:
            print_line("")
        _print_inspection(inspection, pages, as_json)
        codes |= {4} if inspection.kms_unavailable else set()
    return common_code(codes)


def _inspect_each(
    files: Sequence[File], look: Callable[[str], Inspection], jobs: int | None
) -> Iterator[tuple[File, Inspection | Failure]]:
    from modcrypt.io.threads import usable_cores

    def inspect_file(file: File) -> Inspection | Failure:
        try:
            return look(file.name)
        except Exception as error:  # inspect the other files nevertheless
            return explain(error, ())

    with ExitStack() as stack:
        bar = stack.enter_context(files_bar("Inspecting"))
        pool = stack.enter_context(ThreadPoolExecutor(jobs or usable_cores(), "modcrypt-files"))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for number, inspection in enumerate(pool.map(inspect_file, files)):
            bar(number + 1, len(files))
            yield files[number], inspection


def _print_failure(file: File, failure: Failure, as_json: bool) -> None:
    if as_json:
        print_line(json.dumps({"name": file.name, **failure.fields()}))
        return
    message = failure.message.removeprefix(f"{file.name}: ")
    click.echo(f"modcrypt: {printable(file.name)}: {failure.word}: {message}", err=True)


def _print_inspection(inspection: Inspection, pages: bool, as_json: bool) -> None:
    if as_json:
        fields = inspection.fields()
        if not pages:
            del fields["regions"]
        print_line(json.dumps(fields))
        return
    print_line(f"{printable(inspection.name)}: {inspection.size:,} bytes")
    print_facts(inspection.facts())
    if inspection.columns:
        print_line("")
        print_line(_format_columns(inspection))
    for heading, sentences in (
        ("Visible without keys:", inspection.leaks if inspection.encrypted else ()),
        ("Hidden here:", inspection.hidden),
        ("Peculiar:", inspection.quirks),
    ):
        _print_list(heading, sentences)
    if pages:
        print_line("")
        print_line(_format_modules(inspection))


def _print_list(heading: str, sentences: Sequence[str]) -> None:
    if sentences:
        print_line(f"\n{heading}")
        print_line(
            "\n".join(f"  {printable(use_option_names(sentence))}" for sentence in sentences)
        )


def _format_columns(inspection: Inspection) -> str:
    fits = {True: "yes", False: "no", None: None}
    rows = [
        (
            column.path,
            column.physical_type if column.logical_type is None else column.logical_type,
            column.key or "plaintext",
            None if column.key is None or column.key_info.kind == "none" else str(column.key_info),
            fits[column.has_key],
            column.codec,
            column.compressed_size,
            column.uncompressed_size,
            column.values,
            _format_visible(column) if inspection.encrypted else None,
        )
        for column in inspection.columns or ()
    ]
    titles = (
        "column", "type", "encryption", "key metadata", "key given", "codec", "stored", "unpacked",
        "values", "visible",
    )  # fmt: skip
    shown = [
        n for n, title in enumerate(titles) if n < 3 or any(row[n] is not None for row in rows)
    ]
    left = [at for at, n in enumerate(shown) if titles[n] not in ("stored", "unpacked", "values")]
    return format_table(
        [titles[n] for n in shown], [[row[n] for n in shown] for row in rows], left=left
    )


def _format_visible(column: ColumnInspection) -> str | None:
    if "pages" in column.visible:
        return "everything"
    return ", ".join(column.visible) or None


def _format_modules(inspection: Inspection) -> str:
    rows = [
        (
            region.kind,
            region.row_group,
            region.path,
            region.page,
            region.start,
            region.size,
            region.key,
            region.state,
        )
        for region in inspection.regions
    ]
    titles = ("module", "row group", "column", "page", "offset", "size", "key", "state")
    return format_table(titles, rows, left=(0, 2, 6, 7))


# --- verify --------------------------------------------------------------------------------------


@click.command(epilog=_VERIFY_EXAMPLE)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@parquet_key_options
@prefix_options
@shared_prefix_option
@root_option
@accept_option
@reading_service_options
@click.option(
    "--aad-prefix-template",
    metavar="TEXT",
    help="With several files: AAD prefix of each file, in which {i} is its number.",
)
@click.option(
    "--expected-parts",
    metavar="N",
    type=click.IntRange(min=1),
    help="With --aad-prefix-template: number of files, to detect removed ones.",
)
@click.option(
    "--expected-rows",
    metavar="N",
    type=click.IntRange(min=0),
    help="Total number of rows, to detect row groups dropped by a holder of the footer key.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 also if something was not authenticated.")
@audit_option
@files_options
@record_option
@threads_option("Number of threads for a single file. Default: by file size and processors.")
@spark_option
@_html_options
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
    """Verify that Parquet files are authentic and consistent.

    PATH is a file or a folder. verify checks every tag of every module, and that the contents fit
    together, but decodes no data. It continues after a fault and reports all of them. Without some
    or all keys, it checks what it can see, and reports what it could not authenticate. With
    --record, an interrupted run resumes with the files not yet found correct; a completed run
    starts again from the beginning.
    """
    if spark_master is not None:
        options = {**reading, "shared_aad_prefix": shared_aad_prefix}
        return verify_on_spark(spark_master, paths, options, strict=strict, as_json=as_json)
    _check_set_options(aad_prefix_template, expected_parts)
    if record is not None:
        refuse(_SET_PARAMETERS, "--record skips files, but this option needs all of them")
    files = _find_files(paths, glob)
    page = _Page(html, force, files)
    properties = _properties_of_options(reading, paths, files)
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


_SET_PARAMETERS = {"aad_prefix_template", "expected_parts", "expected_rows", "html"}


def _verify_with_record(
    files: Sequence[File], properties: FileDecryptionProperties | None, strict: bool,
    jobs: int | None, as_json: bool, path: str, **of_set: Any,
) -> int:  # fmt: skip
    """Verify the files that an interrupted run of this command has not found correct."""
    from modcrypt.jobs.run_record import RunRecord, stamps_of

    run = {"command": "verify", "options": digest_of(click.get_current_context().params)}
    places = {file.place.path: file.place for file in files}
    if len(places) < len(files):
        raise click.UsageError("--record needs files of a single store; verify one store at a time")
    with RunRecord(path, run, lambda entry: "ended" not in entry, write=True, alone=True) as record:
        verified = {
            file.place.path
            for file in files
            if record.find_done(file.place.full_name, stamps_of(file.place)) is not None
        }
        if verified:
            click.echo(
                f"modcrypt: {format_count(len(verified), 'file')} found correct before: only "
                "compared with the others",
                err=True,
            )

        def note(name: str, verification: Verification) -> None:
            if verification.modules and _exit_code(verification, [verification], strict) == 0:
                record.note(places[name].full_name, stamps_of(places[name]), result="ok")

        code = _verify_all(
            files, properties, strict, jobs, as_json, each=note, verified=verified, **of_set
        )
        record.end()
    return code


def _check_set_options(template: str | None, parts: int | None) -> None:
    if parts is not None and template is None:
        raise click.UsageError("--expected-parts needs --aad-prefix-template")
    if template is not None:
        refuse(
            {"aad_prefix", "aad_prefix_hex", "aad_prefix_file"},
            "--aad-prefix-template sets the AAD prefix of each file",
        )
        if "{i}" not in template:
            raise click.UsageError("--aad-prefix-template needs {i} in place of the number")


def _verify_one(
    file: File, properties: FileDecryptionProperties | None, expected_rows: int | None,
    threads: int | None, strict: bool, page: _Page, as_json: bool,
) -> int:  # fmt: skip
    from modcrypt.parquet.verify.file_verification import verify_parquet

    started = time.perf_counter()
    with progress_bar("Verifying", size_of(file.place)) as progress:
        verification = verify_parquet(
            file.name,
            properties,
            threads=threads,
            progress=progress,
            expected_rows=expected_rows,
            regions=page.out is not None,
        )
    page.write(verification.to_html)
    code = _exit_code(verification, [verification], strict)
    if as_json:
        seconds = round(time.perf_counter() - started, 6)
        print_line(json.dumps({**_verification_fields(verification), "seconds": seconds}))
        return code
    if verification.findings:
        print_line(_format_findings([(None, finding) for finding in verification.findings]))
    _print_unauthenticated((None, note) for note in verification.not_authenticated)
    print_line(
        f"{printable(verification.name)}: "
        f"{_verdict([verification], verification.findings, verification.complete)}"
    )
    return code


def _verify_all(
    files: Sequence[File], properties: FileDecryptionProperties | None, strict: bool,
    jobs: int | None, as_json: bool, **of_set: Any,
) -> int:  # fmt: skip
    from modcrypt.parquet.verify.dataset_verification import verify_dataset

    started = time.perf_counter()
    sizes = [size_of(file.place) for file in files]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    with progress_bar("Verifying", total) as progress:
        verification = verify_dataset(
            [file.name for file in files], properties, jobs=jobs, progress=progress, **of_set
        )
    code = _exit_code(verification, verification.files, strict)
    seconds = round(time.perf_counter() - started, 6)
    if as_json:
        _print_set_as_json(verification, seconds)
        return code
    findings: list[tuple[str | None, Finding]] = [
        (file.name, finding) for file in verification.files for finding in file.findings
    ]
    findings += [(None, finding) for finding in verification.findings]
    if findings:
        print_line(_format_findings(findings))
    _print_unauthenticated(
        [
            *((file.name, note) for file in verification.files for note in file.not_authenticated),
            *((None, note) for note in verification.not_authenticated),
        ]
    )
    everything = [finding for _, finding in findings]
    print_line(
        f"{len(verification.files)} files: "
        f"{_verdict(verification.files, everything, verification.complete)}"
    )
    return code


def _print_set_as_json(verification: DatasetVerification, seconds: float) -> None:
    for file in verification.files:
        print_line(json.dumps(_verification_fields(file)))
    totals = {
        "files": len(verification.files),
        "ok": verification.ok,
        "complete": verification.complete,
        "num_rows": verification.num_rows,
        "findings": [_finding_fields(finding) for finding in verification.findings],
        "not_authenticated": [note.fields() for note in verification.not_authenticated],
        "seconds": seconds,
    }
    print_line(json.dumps(totals))


# --- what it found -------------------------------------------------------------------------------


def _exit_code(
    verification: Verification | DatasetVerification, files: Sequence[Verification], strict: bool
) -> int:
    """Return the exit code: a fault takes precedence over a key that cannot be retrieved."""
    if not verification.ok:
        return 1
    words = {note.word for file in files for note in file.not_authenticated} - {None}
    if KmsUnavailableError.word in words:
        return 4
    encrypted = [file for file in files if file.encrypted]
    unchecked = bool(encrypted) and not any(file.modules for file in encrypted)
    if unchecked or (words and click.get_current_context().params["policy_file"] is not None):
        return 3
    return int(strict and not verification.complete)


def _verification_fields(verification: Verification) -> dict[str, Any]:
    fields = verification.fields()
    del fields["regions"]
    return {**fields, "findings": [_finding_fields(finding) for finding in verification.findings]}


def _finding_fields(finding: Finding) -> dict[str, Any]:
    module = None if finding.module is None else module_fields(finding.module)
    return {**finding.fields(), "message": use_option_names(finding.message), "module": module}


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

    Args:
        named_notes: Notes with the names of their files; None for a note about a set of files.
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
