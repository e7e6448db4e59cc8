"""`modcrypt report --check`: whether the record of evidence is as it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modcrypt.cli.options.signing_options import read_signers
from modcrypt.cli.shared import print_json, print_line, print_long_table
from modcrypt.errors import list_names, printable
from modcrypt.lake.commands.lake_options import read_declaration
from modcrypt.report.json_fields import json_fields
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.lake.evidence.events import EvidenceCheck


def check_record(options: dict[str, Any], at_least: str | None, as_json: bool) -> int:
    """Check the record beside the declaration that the options name; return the exit code.

    Raises:
        FileNotFoundError: There is no record.
        ValueError, OSError: As `open_lake` and `Lake.read_evidence`.
    """
    from modcrypt.lake.evidence.evidence_check import check_declared

    declaration = read_declaration(options, records=False)
    result = check_declared(declaration, read_signers(options), at_least=at_least)
    if not (result.lines or at_least):
        raise FileNotFoundError(
            f"{result.path} has no line: nothing was recorded, or it was removed; evidence is "
            "recorded if the declaration has a table [evidence]"
        )
    if as_json:
        print_json("report.check", json_fields(result, "ok", without=("events", "more_events")))
    else:
        _print_check(result)
    return 0 if result.ok else 1


def _print_check(result: EvidenceCheck) -> None:
    rows = [(each.line, each.word, printable(each.message)) for each in result.findings]
    print_long_table(("line", "fault", "message"), rows)
    if result.more_findings:
        print_line(f"and {format_count(result.more_findings, 'more fault')}")
    for number in result.interrupted:
        print_line(f"line {number}: began, and no line says that it ended")
    by = f" by {list_names(result.signers)}" if result.signers else ""
    lines = format_count(result.lines, "line")
    faults = format_count(len(result.findings) + result.more_findings, "fault")
    signed = f"{result.signed:,} with a valid signature{by}"
    print_line(printable(f"{result.path}: {lines}, {signed}; {faults}"))
    if result.head:
        print_line(f"head {result.head}")
    print_line(
        "A record whose last lines were cut off has no fault: keep the head in another place, and "
        "pass it by --at-least."
    )
