"""`modcrypt verify --spark`: the same checks on the executors of Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modcrypt.cli.engines import (
    SHOWN,
    iterate_rows,
    print_failures,
    refuse_local_options,
    start_spark,
    take_details,
)
from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.options.parquet_options import settings_of_options
from modcrypt.cli.shared import format_counts, print_line
from modcrypt.cli.verify import print_findings, print_lines, print_result, verification_code
from modcrypt.jobs.leaks.scan import find_leak_faults
from modcrypt.jobs.listing import list_dataset
from modcrypt.jobs.set_findings import Shape, find_copies, find_links, find_shared_prefixes
from modcrypt.parquet.format.findings import Finding
from modcrypt.parquet.verify.verification_results import DatasetVerification
from modcrypt.report.text import format_count
from modcrypt.spark.jobs.table_jobs import verify_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def verify_on_spark(
    master: str, paths: Sequence[str], options: dict[str, Any], *, strict: bool, as_json: bool
) -> int:
    """Run `verify` on files, and compare them with each other; return the exit code."""
    refuse_local_options()
    refuse(
        {"aad_prefix_template", "expected_parts", "expected_rows", "html"},
        "not supported with --spark",
    )
    settings = settings_of_options(options)
    started = time.perf_counter()
    listed = list_dataset(paths, None if settings is None else settings.required_seal)
    links = [place.path for place in (*listed.links, *listed.linked_files)]
    leaks = find_leak_faults(paths if strict else (), settings)
    of_folders = [*listed.missing, *find_links(links), *leaks]
    if not listed.folders:
        nothing = DatasetVerification(files=(), findings=tuple(of_folders))
        return print_result(nothing, 0, False, as_json, started)
    with start_spark(master, "verify") as spark:
        verified = verify_table(spark, [folder.name for folder in listed.folders], settings)
        counts = _count_results(verified)
        findings = [*_compare_files(verified), *of_folders]
        words = verified.selectExpr("explode(not_authenticated.word) as word").distinct().collect()
        fault = any(finding.severity == "fault" for finding in findings)
        totals = {
            "files": counts["files"],
            "ok": not (counts["failed"] or fault),
            "complete": counts["files"] == counts["authentic"] and not fault,
            "num_rows": counts["rows"],
        }
        if as_json:
            details = map(take_details, iterate_rows(verified.orderBy("path")))
            several = totals["files"] != 1 or bool(findings)
            print_lines(details, findings, several=several, started=started, **totals)
        else:
            print_failures(verified)
            if findings:
                print_findings((None, finding) for finding in findings)
    if not as_json:
        names = ("authentic", "partial", "failed")
        texts = format_counts({name: counts[name] for name in names})
        print_line(
            f"{format_count(counts['files'], 'file')}: {texts}; "
            f"{format_count(counts['modules'], 'page or part')}"
        )
    return verification_code(
        ok=totals["ok"],
        missing={row["word"] for row in words} - {None},
        unchecked=bool(counts["encrypted"]) and not counts["modules_of_encrypted"],
        incomplete=strict and not totals["complete"],
    )


def _compare_files(verified: DataFrame) -> list[Finding]:
    """Compare files with each other, and return the findings of `verify_dataset`."""

    def group_by(column: str) -> dict[bytes, list[tuple[str, Shape]]]:
        # A footer that was not authenticated may state any number of rows.
        file = "struct(path, bytes_in, if(complete, rows, null)) as file"
        named = verified.where(f"{column} is not null").selectExpr(f"{column} as value", file)
        groups = named.groupBy("value").agg({"file": "collect_list"})
        several = groups.where("size(`collect_list(file)`) > 1").limit(SHOWN).collect()
        return {
            bytes.fromhex(row["value"]): sorted((path, (size, rows)) for path, size, rows in row[1])
            for row in several
        }

    prefixes = {
        prefix: [path for path, _ in files] for prefix, files in group_by("aad_prefix_hex").items()
    }
    return [*find_shared_prefixes(prefixes), *find_copies(group_by("file_unique"))]


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
