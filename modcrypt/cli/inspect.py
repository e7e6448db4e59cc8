"""`modcrypt inspect`: show what Parquet files reveal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.batch import files_options
from modcrypt.cli.engines import (
    SHOWN,
    iterate_rows,
    load_spark,
    print_failures,
    refuse_local_options,
    start_spark,
    take_details,
)
from modcrypt.cli.examine import html_options, prepare_page
from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.options.parquet_options import decryption_options, settings_of_options
from modcrypt.cli.output.failures import explain
from modcrypt.cli.output.progress import files_bar
from modcrypt.cli.shared import (
    format_table,
    paths_argument,
    print_facts,
    print_json,
    print_line,
    print_list,
)
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import printable
from modcrypt.jobs.failures import Failure, common_code, describe_result

if TYPE_CHECKING:  # not to be loaded for the help
    from pyspark.sql import DataFrame

    from modcrypt.parquet.verify.inspection import ColumnInspection, Inspection

_INSPECT_EXAMPLE = """\b
Examples: what anyone can see; all modules, with the keys; a drawing
  modcrypt inspect orders.enc.parquet
  modcrypt inspect --key file:footer.key --column-key price=file:price.key --modules \\
      orders.enc.parquet
  modcrypt inspect --kms file:lake.keyring --html orders.html orders.kms.parquet"""


@verb(epilog=_INSPECT_EXAMPLE)
@paths_argument
@option("--modules", "pages", help="Show the position of every part, including pages.")
@decryption_options
@files_options
@html_options
def inspect(
    *, paths: tuple[str, ...], pages: bool, glob: str | None, jobs: int | None, html: str | None,
    force: bool, spark_master: str | None, as_json: bool, **reading: Any,
) -> int:  # fmt: skip
    """Show how Parquet files are encrypted, and what they reveal.

    PATH is a file or a folder. No key is needed; with keys, inspect shows more, and which keys
    fit. It does not open pages; use verify to check them. The exit code is 1 if one of several
    files could not be inspected, and 4 if the key service is unavailable.
    """
    if spark_master is not None:
        return _inspect_on_spark(spark_master, paths, reading, as_json=as_json)
    from modcrypt.io.threads import usable_cores
    from modcrypt.jobs.engine import raise_error
    from modcrypt.jobs.listing import find_named_files, folders_of
    from modcrypt.jobs.verbs.examination import INSPECT
    from modcrypt.jobs.verbs.verb import run_verb

    files = find_named_files(folders_of(paths, absolute=False), glob)
    write_page = prepare_page(html, force, files)
    look = partial(
        run_verb, INSPECT, files, settings_of_options(reading, paths), pages=pages,
        jobs=jobs or usable_cores(),
    )  # fmt: skip
    if len(files) == 1:
        single: Inspection = next(look(fail=raise_error))
        _print_inspection(single, pages, as_json)
        return write_page(single, 4 * single.kms_unavailable)
    codes = set[int]()
    with files_bar("Inspecting") as bar:
        inspected = look(fail=lambda _file, error: explain(error, ()))
        for number, (file, inspection) in enumerate(zip(files, inspected, strict=True)):
            bar(len(files))
            if isinstance(inspection, Failure):
                codes.add(inspection.code)
                if as_json:
                    print_json("failure", {"name": file.name, **inspection.fields()})
                    continue
                message = inspection.message.removeprefix(f"{file.name}: ")
                line = f"modcrypt: {printable(file.name)}: {inspection.word}: {message}"
                click.echo(line, err=True)
                continue
            if number and not as_json:
                print_line("")
            _print_inspection(inspection, pages, as_json)
            codes |= {4} if inspection.kms_unavailable else set()
    return common_code(codes)


def _print_inspection(inspection: Inspection, pages: bool, as_json: bool) -> None:
    if as_json:
        print_json("inspect", inspection.fields() if pages else describe_result(inspection))
        return
    print_line(f"{printable(inspection.name)}: {inspection.size:,} bytes")
    print_facts(inspection.facts())
    if inspection.columns:
        print_line("")
        print_line(_format_columns(inspection))
    for heading, sentences in (
        ("Visible without keys:", inspection.leaks if inspection.encrypted else ()),
        ("Hidden here:", inspection.hidden),
        ("Quirks:", inspection.quirks),
    ):
        print_list(heading, sentences)
    if pages:
        print_line("")
        names = ("kind", "row_group", "path", "page", "start", "size", "key", "state")
        titles = ("module", "row group", "column", "page", "offset", "size", "key", "state")
        rows = map(attrgetter(*names), inspection.regions)
        print_line(format_table(titles, rows, left=(0, 2, 6, 7)))


def _format_columns(inspection: Inspection) -> str:
    fits = {True: "yes", False: "no", None: None}

    def visible(column: ColumnInspection) -> str | None:
        return "everything" if "pages" in column.visible else ", ".join(column.visible) or None

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
            visible(column) if inspection.encrypted else None,
        )
        for column in inspection.columns or ()
    ]
    titles = (
        "column", "type", "encryption", "key metadata", "key given", "codec", "stored",
        "uncompressed", "values", "visible",
    )  # fmt: skip
    shown = [
        n for n, title in enumerate(titles) if n < 3 or any(row[n] is not None for row in rows)
    ]
    left = [
        at for at, n in enumerate(shown) if titles[n] not in ("stored", "uncompressed", "values")
    ]
    return format_table(
        [titles[n] for n in shown], [[row[n] for n in shown] for row in rows], left=left
    )


def _inspect_on_spark(
    master: str, paths: Sequence[str], options: dict[str, Any], *, as_json: bool
) -> int:
    """Run `inspect` on files, printing numbers of files for people; return the exit code."""
    refuse_local_options()
    refuse({"html", "force", "pages"}, "not supported with --spark")
    settings = settings_of_options(options)
    with start_spark(master, "inspect") as spark:
        inspected = load_spark().inspect_table(spark, list(paths), settings)
        if as_json:
            for fields in map(take_details, iterate_rows(inspected.orderBy("path"))):
                print_json("failure" if "error" in fields else "inspect", fields)
        else:
            _print_kinds(inspected.where("not failed"))
            print_failures(inspected.orderBy("path"))
        codes = inspected.selectExpr("if(kms_unavailable, 4, code) as code").distinct().collect()
    return common_code({row["code"] for row in codes} - {None})


_KIND = ("encrypted", "footer_mode", "algorithm", "footer_key", "writer")


def _print_kinds(inspected: DataFrame) -> None:
    """Print the number of files of each kind, and what anyone can see of them."""
    counted = inspected.groupBy(*_KIND).agg({"*": "count", "rows": "sum", "bytes_in": "sum"})
    rows = counted.orderBy(*_KIND).limit(SHOWN).collect()
    cells = [
        (
            row["footer_mode"] if row["encrypted"] else "not encrypted",
            *(row[name] for name in ("algorithm", "footer_key", "writer")),
            *(row[name] for name in ("count(1)", "sum(rows)", "sum(bytes_in)")),
        )
        for row in rows
    ]
    titles = ("footer", "algorithm", "footer key", "writer", "files", "rows", "bytes")
    print_line(format_table(titles, cells, left=range(4)))
