"""`modcrypt keys scan`: list the master key that protects each file and column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

import modcrypt
from modcrypt.cli.engines import (
    iterate_rows,
    load_spark,
    print_failures,
    refuse_local_options,
    start_spark,
)
from modcrypt.cli.options.kms_options import (
    audit_option,
    names_service,
    reading_service_options,
    refuse,
    service_settings,
)
from modcrypt.cli.output.failures import use_option_names
from modcrypt.cli.shared import format_table, paths_argument, print_json, print_line, root_option
from modcrypt.cli.shared_options import verb
from modcrypt.errors import printable
from modcrypt.jobs.failures import exit_code

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.jobs.key_scan import ScannedKey

_SCAN_EXAMPLE = """\b
Examples: without any key; also columns in files with encrypted footers
  modcrypt keys scan lake
  modcrypt keys scan --kms file:lake.keyring lake"""


@verb(epilog=_SCAN_EXAMPLE)
@paths_argument
@reading_service_options
@root_option
@audit_option
def scan(
    *, paths: tuple[str, ...], spark_master: str | None, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """List the master key that protects each file and column.

    PATH is a file or a folder. No key is needed, but to list the columns of a file with an
    encrypted footer, name the key service that opens it. Only those columns are authenticated.
    If files could not be scanned, the exit code is that of the failure, or 1 if failures have
    different codes.
    """
    if spark_master is not None:
        return _scan_on_spark(spark_master, paths, options, as_json=as_json)
    settings = service_settings(options, needed=names_service())
    tools = decryption = None
    if settings is not None:
        tools, decryption = settings.tools(), settings.requirements()
    else:
        refuse({"audit", "master_keys"}, "this needs --kms or --policy")
    scan_results = modcrypt.jobs.scan_keys(list(paths), tools, decryption=decryption)
    if as_json:
        return _print_lines(scan_results)
    scanned = list(scan_results)
    rows = [_scan_row(key) for key in scanned if not key.failed]
    titles = ("file", "column", "master key", "version", "KEK", "storage")
    print_line(format_table(titles, rows, left=(0, 1, 2, 4, 5)))
    if settings is None and any(key.kind == "hidden" for key in scanned):
        print_line("(encrypted): pass --kms to list the keys of columns, if there are any")
    failures = [key for key in scanned if key.failed]
    for failure in failures:
        where = "" if failure.message.startswith(failure.file) else f"{failure.file}: "
        click.echo(f"modcrypt: {printable(where + use_option_names(failure.message))}", err=True)
    return exit_code(failure.word for failure in failures)


def _print_lines(keys: Iterable[ScannedKey]) -> int:
    """Print keys as lines of JSON; return the exit code."""
    error_codes = set()
    for key in keys:
        print_json("keys.scan", {**key.fields(), "message": use_option_names(key.message)})
        error_codes |= {key.word} if key.failed else set()
    return exit_code(error_codes)


def _scan_row(key: ScannedKey) -> tuple[str | None, ...]:
    from modcrypt.jobs.key_scan import DESTROYED

    kinds = {"footer": "(footer)", "hidden": "(encrypted)"}
    kek = None if key.kek_id is None else key.kek_id[:8]
    column = kinds.get(key.kind, key.column)
    master = f"{key.master_key_id} (destroyed)" if key.message == DESTROYED else key.master_key_id
    return key.file, column, master, key.version, kek, key.storage


def _scan_on_spark(
    master: str, paths: Sequence[str], options: dict[str, Any], *, as_json: bool
) -> int:
    """Run `keys scan`, printing numbers of files for people; return the exit code."""
    from modcrypt.jobs.key_scan import ScannedKey

    settings = service_settings(options)
    refuse_local_options()
    with start_spark(master, "keys scan") as spark:
        scanned = load_spark().scan_keys(spark, list(paths), settings)
        if as_json:
            rows = iterate_rows(scanned.drop("failed", "worker"))
            return _print_lines(ScannedKey(file=row.pop("path"), **row) for row in rows)
        counted = scanned.groupBy("kind", "column", "master_key_id", "version", "storage").count()
        _print_keys(list(iterate_rows(counted.orderBy("kind", "column", "master_key_id"))))
        return print_failures(scanned, "word")


def _print_keys(rows: Sequence[dict[str, Any]]) -> None:
    kinds = {"footer": "(footer)", "hidden": "(encrypted)", "key metadata": "(key metadata)"}
    names = ("master_key_id", "version", "storage", "count")
    cells = [
        (kinds.get(row["kind"], row["column"]), *(row[name] for name in names))
        for row in rows
        if row["kind"] != "error"
    ]
    titles = ("column", "master key", "version", "storage", "files")
    print_line(format_table(titles, cells, left=(0, 1, 3)))
