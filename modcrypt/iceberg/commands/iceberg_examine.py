"""`modcrypt iceberg verify` and `tree`: verification of a table, and the tree of its keys."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modcrypt.cli.examine import html_options, prepare_page
from modcrypt.cli.output.failures import use_option_names
from modcrypt.cli.output.progress import progress_bar
from modcrypt.cli.shared import (
    exclude_each_other,
    format_table,
    needs_one_of,
    print_facts,
    print_json,
    print_line,
    print_list,
    strict_option,
)
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import KmsUnavailableError, printable
from modcrypt.iceberg.commands.iceberg_options import (
    open_selected_table,
    parse_snapshot,
    table_argument,
    table_options,
)
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.iceberg.verify.key_trees import ProtectedFile
    from modcrypt.iceberg.verify.table_results import TableVerification

_VERIFY_EXAMPLE = """\b
Examples: all snapshots; only the branch main; a page for an auditor
  modcrypt iceberg verify --kms file:lake.keyring lake/orders
  modcrypt iceberg verify --kms file:lake.keyring --snapshot main lake/orders
  modcrypt iceberg verify --kms file:lake.keyring --strict --html orders.html lake/orders

\b
Exit codes: 0 no fault; 1 a fault, or with --strict something not authenticated;
3 nothing could be checked without a key; 4 the key service is unavailable"""

_TREE_EXAMPLE = """\b
Examples: all keys and what they open; files under one key
  modcrypt iceberg tree --kms file:lake.keyring lake/orders
  modcrypt iceberg tree --kms file:lake.keyring --protected-by lake lake/orders"""


@verb(epilog=_VERIFY_EXAMPLE)
@table_argument
@option(
    "--snapshot ID|NAME...",
    "snapshots",
    help="Verify only this snapshot, given by id, branch or tag, and do not look for orphan "
    "files. Repeatable.",
)
@strict_option
@html_options
@table_options
def verify(
    *, where: str, snapshots: tuple[str, ...], strict: bool, jobs: int | None, html: str | None,
    force: bool, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Verify that all files of the table are authentic.

    verify checks every tag of every file that the table's snapshots reach, and that all of them
    fit together, but decodes no data. It continues after a fault and reports all of them, and
    orphan files, unused keys and expired KEKs. Plaintext in the table's folder is a fault. A key
    that the key service refuses says nothing about the table and is a warning.
    """
    from modcrypt.iceberg import verify_table

    write_page = prepare_page(html, force)
    wanted = [snapshot for snapshot in map(parse_snapshot, snapshots) if snapshot is not None]
    target = open_selected_table(where, options)
    started = time.perf_counter()
    with progress_bar("Verifying", None) as progress:
        verification = verify_table(target, snapshots=wanted or None, jobs=jobs, progress=progress)
    if as_json:
        seconds = round(time.perf_counter() - started, 6)
        print_json("iceberg.verify", {**verification.fields(), "seconds": seconds})
    else:
        _print_verification(verification)
    return write_page(verification, _exit_code(verification, strict))


def _exit_code(verification: TableVerification, strict: bool) -> int:
    words = {finding.word for finding in verification.findings}
    if not verification.ok:
        return 1
    if KmsUnavailableError.word in words:
        return 4
    if verification.snapshots and verification.master_key_id and not verification.tags:
        return 3
    return int(strict and not verification.complete)


def _print_verification(verification: TableVerification) -> None:
    print_line(printable(verification.name))
    print_facts(verification.facts())
    if verification.findings:
        rows = [
            (finding.severity, finding.word, finding.location, use_option_names(finding.message))
            for finding in verification.findings
        ]
        titles = ("severity", "error", "file", "message")
        print_line(f"\n{format_table(titles, rows, left=range(4))}")
    parts = {"Not authenticated:": verification.gaps, "Limits of the format:": verification.limits}
    for heading, notes in parts.items():
        lines = (f"{note.what} {note.path or ''}".rstrip() + f": {note.why}" for note in notes)
        print_list(heading, list(lines))
    print_list("Unused keys:", verification.unused_keys)
    print_list("Orphan files:", [orphan.path for orphan in verification.orphans or ()])


@verb(epilog=_TREE_EXAMPLE)
@needs_one_of("version", "protected_by")
@exclude_each_other("html", "protected_by")
@table_argument
@option(
    "--protected-by KEY",
    help="List the files that this KEK or master key still protects, instead of the tree.",
)
@option(
    "--version N", help="With --protected-by: only what this version of the master key protects."
)
@html_options
@table_options
def tree(
    *, where: str, protected_by: str | None, version: str | None, jobs: int | None,
    html: str | None, force: bool, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Draw the table's keys and the files that they open.

    Data files are not opened. The exit code is 1 if a manifest could not be read, because the tree
    may then be incomplete, and 4 if the key service is unavailable.
    """
    from modcrypt.iceberg import key_tree

    write_page = prepare_page(html, force)
    target = open_selected_table(where, options)
    with progress_bar("Reading manifests", None) as progress:
        keys = key_tree(target, jobs=jobs, progress=progress)
    if protected_by is not None:
        _print_protected(keys.protected_by(protected_by, version), as_json)
    elif as_json:
        print_json("iceberg.tree", keys.fields())
    else:
        print_line("\n".join(map(printable, keys.to_text().split("\n"))))
    return write_page(keys, 4 if keys.kms_unavailable else int(not keys.whole))


def _print_protected(files: Sequence[ProtectedFile], as_json: bool) -> None:
    if as_json:
        for file in files:
            print_json("iceberg.protected", file.fields())
        return
    rows = []
    for file in files:
        only, certain = "yes" if file.only else "no", "yes" if file.certain else "perhaps"
        rows.append((file.kind, file.location, file.size, only, certain))
    if rows:
        titles = ("kind", "location", "bytes", "lost without it", "under it")
        print_line(format_table(titles, rows, left=(0, 1, 3, 4)))
    print_line(f"{format_count(len(files), 'file')} under this key")
