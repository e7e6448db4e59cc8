"""`modcrypt verify`: check whether Parquet files are authentic."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import cloup

from modcrypt.cli.batch import files_options, record_option
from modcrypt.cli.engines import load_spark, spark_option
from modcrypt.cli.examine import html_options, prepare_page, properties_of_options
from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.options.parquet_options import (
    accept_option,
    decryption_options,
    template_options,
)
from modcrypt.cli.output.progress import progress_bar
from modcrypt.cli.shared import (
    combine_options,
    lines_option,
    paths_argument,
    shared_prefix_option,
    strict_option,
    threads_option,
)
from modcrypt.cli.verification.leak_findings import find_leaks_below
from modcrypt.cli.verification.resumption import resume_verification
from modcrypt.cli.verification.verification_text import print_result

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.jobs.listing import File
    from modcrypt.parquet.crypto.properties import FileDecryptionProperties
    from modcrypt.parquet.format.findings import Finding

# click keeps the lines of a paragraph after \b as they are.
EXAMPLE = """\b
Examples: one file with its keys; a folder that must be fully authentic
  modcrypt verify --key-file footer.key --column-key price=file:price.key \\
      orders.enc.parquet
  modcrypt verify --kms file:lake.keyring --strict lake

"""
EXIT_CODES = """\b
Exit codes: 0 no fault; 1 a fault, or with --strict something not authenticated;
3 nothing could be checked without a key, or a key of --policy is refused or missing;
4 the key service is unavailable"""

CHECKS = """\
verify checks every tag of every module, and that the contents fit together, but decodes no data. It
continues after a fault and reports all of them. Without some or all keys, it checks what it can
see, and reports what it could not authenticate. With --strict, values beside the files are faults,
too, as modcrypt leaks finds them. With --record, an interrupted run resumes with the files not yet
found correct; a completed run starts again from the beginning."""
"""The end of the help, also of a plug-in's command that replaces `verify`."""

_HELP = f"""\
Verify that Parquet files are authentic and consistent.

PATH is a file or a folder. {CHECKS}"""

options_of_files = combine_options(
    decryption_options,
    shared_prefix_option,
    accept_option,
    template_options,
    click.option(
        "--expected-rows",
        metavar="N",
        type=click.IntRange(min=0),
        help="Total number of rows, to detect row groups dropped by a holder of the footer key.",
    ),
    strict_option,
    files_options,
    record_option,
    threads_option("Number of threads for a single file. Default: by file size and processors."),
    spark_option,
    html_options,
    lines_option,
)
"""The options of `verify` for files."""


@cloup.command(help=_HELP, epilog=EXAMPLE + EXIT_CODES)
@paths_argument
@options_of_files
def verify(*, paths: tuple[str, ...], **options: Any) -> int:
    """Verify files."""
    return verify_files(paths=paths, **options)


def verify_files(
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
    """Verify files; `reading` are the options that open them. Return the exit code."""
    if spark_master is not None:
        options = {**reading, "shared_aad_prefix": shared_aad_prefix}
        code: int = load_spark().verify_files(
            spark_master, paths, options, strict=strict, as_json=as_json
        )
        return code
    if record is not None:
        refuse(_SET_PARAMETERS, "--record skips files, but this option needs all of them")
    from modcrypt.jobs.dataset_verification import verify_dataset
    from modcrypt.parquet.verify.verification_results import DatasetVerification

    started = time.perf_counter()
    files, properties, missing = _find_files(paths, glob, reading)
    if strict:
        missing += find_leaks_below(paths, reading)
    if not files:
        verification = DatasetVerification(files=(), findings=tuple(missing))
        return print_result(verification, 0, strict, as_json, started)
    write_page = prepare_page(html, force, files)
    with (
        resume_verification(record, files, strict) as earlier,
        progress_bar("Verifying", sum(file.size for file in files)) as progress,
    ):
        verification = verify_dataset(
            [file.place for file in files], properties, jobs=jobs, threads=threads,
            aad_prefix_template=aad_prefix_template, expected_parts=expected_parts,
            expected_rows=expected_rows, shared_aad_prefix=shared_aad_prefix,
            regions=html is not None, progress=progress, **earlier,
        )  # fmt: skip
    verification = replace(verification, findings=(*verification.findings, *missing))
    if html is not None:
        write_page(verification.files[0])
    return print_result(verification, len(files), strict, as_json, started)


def _find_files(
    paths: Sequence[str], glob: str | None, reading: dict[str, Any]
) -> tuple[list[File], FileDecryptionProperties | None, list[Finding]]:
    """Return files with the properties to read them, and findings about the folders of the files.

    Raise as `find_named_files`; but a path without files is a finding if a seal names some.
    """
    from modcrypt.io.places import Place
    from modcrypt.io.stores import locate
    from modcrypt.jobs.listing import find_named_files
    from modcrypt.jobs.set_findings import find_links, find_missing_below
    from modcrypt.parquet.crypto.properties import required_seal
    from modcrypt.parquet.datasets.discovery import split_hidden

    def compare(properties: FileDecryptionProperties | None) -> tuple[list[Finding], list[str]]:
        if glob is not None or properties is None:
            return [], list(paths)
        return find_missing_below(required_seal(properties), paths)

    links = list[Place]()
    try:
        files, root = find_named_files(paths, glob, links)
    except (FileNotFoundError, ValueError):
        properties = properties_of_options(reading, None)
        missing, left = compare(properties)
        if not missing:
            raise
        return find_named_files(left, None).files if left else [], properties, missing
    if root is not None:  # the place of the notes that hide files from readers
        folder = Place(*locate(root, None)).path
        files = [replace(file, place=replace(file.place, root=folder)) for file in files]
    properties = properties_of_options(reading, root)
    missing = compare(properties)[0]
    if missing and not split_hidden([file.place for file in files])[0]:
        files = []
    return files, properties, [*missing, *find_links([link.path for link in links])]


_SET_PARAMETERS = {"aad_prefix_template", "expected_parts", "expected_rows", "html"}
