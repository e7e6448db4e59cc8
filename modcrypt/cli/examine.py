"""`modcrypt inspect` and `verify`: what files tell, and whether they are what was written."""

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
    size_in_words,
    size_of,
)
from modcrypt.cli.options.kms_options import audit_option, reading_service_options, refuse
from modcrypt.cli.options.parquet_options import (
    accept_option,
    decryption_properties,
    parquet_key_options,
)
from modcrypt.cli.output.failures import Failure, explain, in_options, module_fields, printable
from modcrypt.cli.output.progress import files_bar, progress_bar
from modcrypt.cli.shared import (
    prefix_options,
    print_facts,
    print_line,
    root_option,
    shared_prefix_option,
    table,
    threads_option,
    together,
)
from modcrypt.cli.spark import inspect_on_spark, spark_option, verify_on_spark
from modcrypt.errors import KmsUnavailableError

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.parquet.crypto.properties import FileDecryptionProperties
    from modcrypt.parquet.verify.findings import (
        DatasetVerification,
        Finding,
        Unauthenticated,
        Verification,
    )
    from modcrypt.parquet.verify.inspection import ColumnInspection, Inspection

__all__ = ["inspect", "verify"]

# --- options that they share ---------------------------------------------------------------------

_html_options = together(
    click.option(
        "--html",
        metavar="OUT",
        help="Draw the file: write a page that needs nothing else, to OUT. Of one file.",
    ),
    click.option("--force", is_flag=True, help="Replace OUT if it exists."),
)
_lines_option = click.option(
    "--json", "as_json", is_flag=True, help="Print lines of JSON on stdout, failures included."
)


def _properties(
    reading: dict[str, Any], paths: Sequence[str], files: Sequence[File]
) -> FileDecryptionProperties | None:
    """Give what the options say of keys and the like; None where they say nothing."""
    context = click.get_current_context()
    said = any(
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in reading
    )
    if not said:
        return None
    found = decryption_properties(**reading)
    if len(paths) == 1 and files[0].inside:
        from modcrypt.parquet.crypto.properties import rooted

        found = rooted(found, paths[0])
    return found


def _files(paths: Iterable[str], glob: str | None) -> list[File]:
    """Find files; those of a folder, and each once.

    Raises:
        FileNotFoundError: a path is not there.
        click.UsageError: a folder has no such files.
    """
    found: dict[str, File] = {}
    for path in paths:
        if path == "-":
            raise click.UsageError("pipes don't do: Parquet is read from its end")
        for file in Files.at(path, glob).found:
            found.setdefault(file.place.full_name, file)
    return list(found.values())


class _Page:
    """The page that --html asks for."""

    def __init__(self, out: str | None, force: bool, files: Sequence[File]) -> None:
        from modcrypt.io.storage import place_of

        self.out, self._force = out, force
        if out is None:
            return
        if len(files) != 1:
            raise click.UsageError(f"--html draws one file, and these are {len(files)}")
        place = place_of(out)
        assert place is not None  # it is a path
        if place.real() == files[0].place.real():
            raise click.UsageError(f"{out} is the file that is to be drawn")
        if not force:
            place.check_absent()

    def write(self, html: Callable[[], str]) -> None:
        from modcrypt.io.storage import open_sink

        if self.out is not None:
            with open_sink(self.out, overwrite=self._force) as sink:
                sink.append(html().encode("utf-8", "replace"))


# click keeps the lines of a paragraph after \b as they are.
_INSPECT_EXAMPLE = """\b
Examples: what everybody sees; all modules, with the keys; a drawing
  modcrypt inspect orders.enc.parquet
  modcrypt inspect --key-file footer.key --column-key price=file:price.key --modules \\
      orders.enc.parquet
  modcrypt inspect --kms file:lake.keyring --html orders.html orders.kms.parquet"""

_VERIFY_EXAMPLE = """\b
Examples: one file with its keys; a folder, all of which must be authentic
  modcrypt verify --key-file footer.key --column-key price=file:price.key \\
      orders.enc.parquet
  modcrypt verify --kms file:lake.keyring --strict lake

\b
Exit codes: 0 nothing is wrong; 1 something is, or with --strict something was not
authenticated; 3 nothing could be checked for want of a key, or --policy names a key
that is refused or not there; 4 the key service is unavailable"""


# --- inspect -------------------------------------------------------------------------------------


@click.command(epilog=_INSPECT_EXAMPLE)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--modules", "pages", is_flag=True, help="Show where every module lies, pages among them."
)
@parquet_key_options
@prefix_options
@root_option
@reading_service_options
@audit_option
@files_options
@spark_option
@_html_options
@_lines_option
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
    """Show what Parquet files tell: how they are encrypted, and what is open to everybody.

    PATH is a file or a folder. No key is needed; with keys more is shown, and which of them fit.
    Pages are not opened, so nothing is said of them: verify does that. The exit code is 1 where one
    of several files could not be looked into, and 4 where the key service is unavailable.
    """
    if spark_master is not None:
        return inspect_on_spark(spark_master, paths, reading, as_json=as_json)
    from modcrypt.parquet.verify.inspection import inspect_parquet

    files = _files(paths, glob)
    page = _Page(html, force, files)
    properties = _properties(reading, paths, files)
    look = partial(inspect_parquet, properties=properties, pages=pages)
    if len(files) == 1:
        found = look(files[0].name)
        page.write(found.to_html)
        _print_inspection(found, pages, as_json)
        return 4 * found.kms_unavailable
    failed = unavailable = False
    for number, (file, one) in enumerate(_each(files, look, jobs)):
        if isinstance(one, Failure):
            failed = True
            _print_failure(file, one, as_json)
            continue
        if number and not as_json:
            print_line("")
        _print_inspection(one, pages, as_json)
        unavailable |= one.kms_unavailable
    return 1 if failed else 4 * unavailable


def _each(
    files: Sequence[File], look: Callable[[str], Inspection], jobs: int | None
) -> Iterator[tuple[File, Inspection | Failure]]:
    from modcrypt.io.buffers import usable_cores

    def one(file: File) -> Inspection | Failure:
        try:
            return look(file.name)
        except Exception as error:  # the others are looked at all the same
            return explain(error, ())

    with ExitStack() as stack:
        bar = stack.enter_context(files_bar("Inspecting"))
        pool = stack.enter_context(ThreadPoolExecutor(jobs or usable_cores(), "modcrypt-files"))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for number, found in enumerate(pool.map(one, files)):
            bar(number + 1, len(files))
            yield files[number], found


def _print_failure(file: File, failure: Failure, as_json: bool) -> None:
    if as_json:
        print_line(json.dumps({"name": file.name, **failure.fields()}))
        return
    message = failure.message.removeprefix(f"{file.name}: ")
    click.echo(f"modcrypt: {printable(file.name)}: {failure.word}: {message}", err=True)


def _print_inspection(found: Inspection, pages: bool, as_json: bool) -> None:
    if as_json:
        fields = found.fields()
        if not pages:
            del fields["regions"]
        print_line(json.dumps(fields))
        return
    print_line(f"{printable(found.name)}: {found.size:,} bytes")
    print_facts(found.facts())
    if found.columns:
        print_line("")
        print_line(_columns(found))
    for heading, sentences in (
        ("Visible without keys:", found.leaks if found.encrypted else ()),
        ("Hidden here:", found.hidden),
        ("Peculiar:", found.quirks),
    ):
        _print_list(heading, sentences)
    if pages:
        print_line("")
        print_line(_modules(found))


def _print_list(heading: str, sentences: Sequence[str]) -> None:
    if sentences:
        print_line(f"\n{heading}")
        print_line("\n".join(f"  {printable(in_options(one))}" for one in sentences))


def _columns(found: Inspection) -> str:
    fits = {True: "yes", False: "no", None: None}
    rows = [
        (
            one.path,
            one.physical_type if one.logical_type is None else one.logical_type,
            one.key or "plaintext",
            None if one.key is None or one.key_info.kind == "none" else str(one.key_info),
            fits[one.has_key],
            one.codec,
            one.compressed_size,
            one.uncompressed_size,
            one.values,
            _visible(one) if found.encrypted else None,
        )
        for one in found.columns or ()
    ]
    titles = (
        "column", "type", "encryption", "key metadata", "key given", "codec", "stored", "unpacked",
        "values", "visible",
    )  # fmt: skip
    kept = [n for n, title in enumerate(titles) if n < 3 or any(row[n] is not None for row in rows)]
    left = [at for at, n in enumerate(kept) if titles[n] not in ("stored", "unpacked", "values")]
    return table([titles[n] for n in kept], [[row[n] for n in kept] for row in rows], left=left)


def _visible(column: ColumnInspection) -> str | None:
    if "pages" in column.visible:
        return "everything"
    return ", ".join(column.visible) or None


def _modules(found: Inspection) -> str:
    rows = [
        (one.kind, one.row_group, one.path, one.page, one.start, one.size, one.key, one.state)
        for one in found.regions
    ]
    titles = ("module", "row group", "column", "page", "offset", "size", "key", "state")
    return table(titles, rows, left=(0, 2, 6, 7))


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
    help="Of several files: the AAD prefix of each, in which {i} is its number.",
)
@click.option(
    "--expected-parts",
    metavar="N",
    type=click.IntRange(min=1),
    help="Of several files: how many there are, so that none can be taken away.",
)
@click.option(
    "--expected-rows",
    metavar="N",
    type=click.IntRange(min=0),
    help="How many rows there are in all: who has the footer key could leave some out.",
)
@click.option(
    "--strict", is_flag=True, help="What is not authenticated is as bad as what is wrong."
)
@audit_option
@files_options
@record_option
@threads_option("Of one file. Default: by size and processors.")
@spark_option
@_html_options
@_lines_option
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
    """Check every tag of every module of Parquet files, and that what they hold fits together.

    PATH is a file or a folder. Nothing is decoded, and a fault ends nothing: all are told. Without
    keys, or with some, the rest is checked as far as it can be seen; what was not authenticated is
    said. With --record, a run that was interrupted goes on with the files that it has not found
    right; a run that came to its end is begun anew.
    """
    if spark_master is not None:
        options = {**reading, "shared_aad_prefix": shared_aad_prefix}
        return verify_on_spark(spark_master, paths, options, strict=strict, as_json=as_json)
    _check_set_options(aad_prefix_template, expected_parts)
    if record is not None:
        refuse(_OF_A_WHOLE_SET, "--record passes over files, and that needs all of them")
    files = _files(paths, glob)
    page = _Page(html, force, files)
    properties = _properties(reading, paths, files)
    if record is not None:
        return _verify_recorded(
            files, properties, strict, jobs, as_json, record, shared_aad_prefix=shared_aad_prefix
        )
    if len(files) == 1 and aad_prefix_template is None and expected_parts is None:
        return _verify_one(files[0], properties, expected_rows, threads, strict, page, as_json)
    return _verify_all(
        files, properties, strict, jobs, as_json,
        aad_prefix_template=aad_prefix_template, expected_parts=expected_parts,
        expected_rows=expected_rows, shared_aad_prefix=shared_aad_prefix,
    )  # fmt: skip


_OF_A_WHOLE_SET = {"aad_prefix_template", "expected_parts", "expected_rows", "html"}


def _verify_recorded(
    files: Sequence[File], properties: FileDecryptionProperties | None, strict: bool,
    jobs: int | None, as_json: bool, path: str, **of_set: Any,
) -> int:  # fmt: skip
    """Verify files that a run like this, which was interrupted, has not found right."""
    from modcrypt.jobs.run_record import RunRecord, stamps_of

    run = {"command": "verify", "options": digest_of(click.get_current_context().params)}
    places = {file.place.path: file.place for file in files}
    with RunRecord(path, run, lambda told: "ended" not in told, write=True, alone=True) as record:
        left = [
            file
            for file in files
            if record.told(file.place.full_name, stamps_of(file.place)) is None
        ]
        if passed := len(files) - len(left):
            click.echo(
                f"modcrypt: {passed} files were found right before; the others are not compared "
                "with them",
                err=True,
            )

        def note(name: str, found: Verification) -> None:
            if found.modules and _code(found, [found], strict) == 0:
                record.note(places[name].full_name, stamps_of(places[name]), result="ok")

        code = 0
        if left:
            code = _verify_all(left, properties, strict, jobs, as_json, each=note, **of_set)
        record.end()
    return code


def _check_set_options(template: str | None, parts: int | None) -> None:
    if parts is not None and template is None:
        raise click.UsageError("--expected-parts are counted by --aad-prefix-template")
    if template is not None:
        refuse(
            {"aad_prefix", "aad_prefix_hex", "aad_prefix_file"},
            "--aad-prefix-template says the AAD prefix of each file",
        )
        if "{i}" not in template:
            raise click.UsageError("--aad-prefix-template has {i} in the place of the number")


def _verify_one(
    file: File, properties: FileDecryptionProperties | None, expected_rows: int | None,
    threads: int | None, strict: bool, page: _Page, as_json: bool,
) -> int:  # fmt: skip
    from modcrypt.parquet.verify.file_verification import verify_parquet

    started = time.perf_counter()
    with progress_bar("Verifying", size_of(file.place)) as progress:
        found = verify_parquet(
            file.name,
            properties,
            threads=threads,
            progress=progress,
            expected_rows=expected_rows,
            regions=page.out is not None,
        )
    page.write(found.to_html)
    code = _code(found, [found], strict)
    if as_json:
        seconds = round(time.perf_counter() - started, 6)
        print_line(json.dumps({**_fields(found), "seconds": seconds}))
        return code
    if found.findings:
        print_line(_findings([(None, one) for one in found.findings]))
    _print_unauthenticated((None, one) for one in found.not_authenticated)
    print_line(f"{printable(found.name)}: {_verdict([found], found.findings, found.complete)}")
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
        found = verify_dataset(
            [file.name for file in files], properties, jobs=jobs, progress=progress, **of_set
        )
    code = _code(found, found.files, strict)
    seconds = round(time.perf_counter() - started, 6)
    if as_json:
        _print_set_as_json(found, seconds)
        return code
    findings: list[tuple[str | None, Finding]] = [
        (file.name, one) for file in found.files for one in file.findings
    ]
    findings += [(None, one) for one in found.findings]
    if findings:
        print_line(_findings(findings))
    _print_unauthenticated(
        [
            *((file.name, one) for file in found.files for one in file.not_authenticated),
            *((None, one) for one in found.not_authenticated),
        ]
    )
    everything = [one for _, one in findings]
    print_line(f"{len(found.files)} files: {_verdict(found.files, everything, found.complete)}")
    return code


def _print_set_as_json(found: DatasetVerification, seconds: float) -> None:
    for file in found.files:
        print_line(json.dumps(_fields(file)))
    totals = {
        "files": len(found.files),
        "ok": found.ok,
        "complete": found.complete,
        "num_rows": found.num_rows,
        "findings": [_finding_fields(one) for one in found.findings],
        "not_authenticated": [one.fields() for one in found.not_authenticated],
        "seconds": seconds,
    }
    print_line(json.dumps(totals))


# --- what it found -------------------------------------------------------------------------------


def _code(
    found: Verification | DatasetVerification, files: Sequence[Verification], strict: bool
) -> int:
    """Return the exit code: a fault counts more than a key that could not be had."""
    if not found.ok:
        return 1
    words = {note.word for file in files for note in file.not_authenticated} - {None}
    if KmsUnavailableError.word in words:
        return 4
    sealed = [file for file in files if file.encrypted]
    unchecked = bool(sealed) and not any(file.modules for file in sealed)
    if unchecked or (words and click.get_current_context().params["policy_file"] is not None):
        return 3
    return int(strict and not found.complete)


def _fields(found: Verification) -> dict[str, Any]:
    fields = found.fields()
    del fields["regions"]
    return {**fields, "findings": [_finding_fields(one) for one in found.findings]}


def _finding_fields(one: Finding) -> dict[str, Any]:
    module = None if one.module is None else module_fields(one.module)
    return {**one.fields(), "message": in_options(one.message), "module": module}


def _findings(found: Sequence[tuple[str | None, Finding]]) -> str:
    """Make the table of findings, with the names of files where there are several."""
    rows = [
        (
            name,
            one.severity,
            one.word,
            None if one.module is None else str(one.module),
            None if one.start is None else f"{one.start}-{one.end}",
            _meaning(one),
        )
        for name, one in found
    ]
    titles = ("file", "severity", "error", "module", "bytes", "meaning")
    first = 0 if any(name is not None for name, _ in found) else 1
    return table(titles[first:], [row[first:] for row in rows], left=range(6))


def _meaning(one: Finding) -> str:
    """Give the message without the module that it begins with, which has its own column."""
    return _in_options(one.message).removeprefix(f"{one.module}: ")


def _in_options(message: str) -> str:
    """Say it with the names of the options of `verify`, too."""
    return in_options(message).replace("expected_parts says", "--expected-parts says")


def _print_unauthenticated(found: Iterable[tuple[str | None, Unauthenticated]]) -> None:
    """Print what was not authenticated; what is open by design in one line, without reasons.

    Args:
        found: Notes, and the names of their files; None for a note about a set of files.
    """
    from modcrypt.parquet.verify.findings import fold

    notes = list(found)
    lines = [
        f"  {one.what}{_of_files(one.files)}: {_in_options(one.why)}"
        for one in fold(pair for pair in notes if not pair[1].by_design)
    ]
    if lines:
        print_line("\n".join(["Not authenticated:", *map(printable, lines)]))
    if open_parts := fold(pair for pair in notes if pair[1].by_design):
        names = (f"{one.what}{_of_files(one.files)}" for one in open_parts)
        print_line(printable(f"Open by design: {'; '.join(names)}"))


def _of_files(count: int) -> str:
    return f" ({count} file{'s' * (count != 1)})" if count else ""


def _verdict(files: Sequence[Verification], findings: Sequence[Finding], complete: bool) -> str:
    faults = sum(one.severity == "fault" for one in findings)
    modules, size = sum(f.modules for f in files), sum(f.authenticated_bytes for f in files)
    checked = f"{modules:,} modules authenticated, {size_in_words(size)}"
    if faults:
        return f"{faults} fault{'s' * (faults != 1)}; {checked}"
    if complete:
        return f"authentic; {checked}"
    if not any(file.encrypted for file in files):
        return "not encrypted, so nothing is authenticated; no fault was seen"
    if not modules:
        away = any(one.word == KmsUnavailableError.word for one in findings)
        why = "because the key service is unavailable" if away else "for want of a key"
        return f"nothing could be checked {why}; no fault was seen"
    return f"no fault, but not all is authenticated; {checked}"
