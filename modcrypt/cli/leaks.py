"""`modcrypt leaks`: find values of encrypted columns beside the encrypted files."""

from __future__ import annotations

import modcrypt
from modcrypt.cli.options.kms_options import policy_option
from modcrypt.cli.output.progress import files_bar
from modcrypt.cli.shared import format_table, paths_argument, print_json, print_line
from modcrypt.cli.shared_options import verb
from modcrypt.errors import list_names, printable
from modcrypt.report.text import format_count

_LEAKS_EXAMPLE = """\b
Examples: the columns that the folder's files encrypt; those of a policy
  modcrypt leaks lake
  modcrypt leaks --policy lake.toml lake

\b
Exit codes: 0 nothing found; 1 values of secret columns found;
2 nothing tells which columns are secret"""


@verb(epilog=_LEAKS_EXAMPLE)
@paths_argument
@policy_option
def leaks(*, paths: tuple[str, ...], policy_file: str | None, as_json: bool) -> int:
    """Find values of encrypted columns in plaintext beside the files.

    PATH is a folder. All its files are examined, hidden ones too: summaries of Parquet footers,
    logs of Delta, Hudi and Iceberg, statistics, plaintext copies, leftovers of programs, and names
    of partitions. No key is needed, and no value is shown.
    """
    policy = None if policy_file is None else modcrypt.Policy.load(policy_file)
    found = 0
    for path in paths:
        with files_bar("Examining") as progress:
            report = modcrypt.jobs.find_leaks(path, policy, progress=progress)
        found += len(report.leaks)
        for leak in report.leaks:
            if as_json:
                print_json("leaks.leak", leak.fields())
        if as_json:
            totals = {"files": report.files, "encrypted": report.encrypted}
            print_json("leaks.totals", {"path": path, "leaks": len(report.leaks), **totals})
            continue
        if report.leaks:
            rows = [
                (leak.path, leak.kind, list_names(leak.columns), leak.files, leak.what, leak.remedy)
                for leak in report.leaks
            ]
            titles = ("path", "kind", "columns", "files", "what", "what to do")
            print_line(format_table(titles, rows, left=(0, 1, 2, 4, 5)))
        counts = f"{format_count(report.files, 'file')}, {report.encrypted:,} encrypted"
        leaks = format_count(len(report.leaks), "leak") if report.leaks else "no leak found"
        print_line(printable(f"{path}: {counts}: {leaks}"))
    return int(found > 0)
