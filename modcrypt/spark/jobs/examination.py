"""Verification and inspection of files as jobs of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from modcrypt.jobs.dataset_verification import FilesVerification
from modcrypt.jobs.failures import describe_result
from modcrypt.jobs.listing import File, MakeFilesystem
from modcrypt.kms.settings import Settings
from modcrypt.parquet.verify.file_verification import CheckedFile
from modcrypt.parquet.verify.inspection import Inspection, inspect_parquet
from modcrypt.spark.jobs.driver import TablePlan, plan_job
from modcrypt.spark.jobs.file_work import FLAG, INT, LONG, REAL, TEXT, TEXTS, Row, TableJob

_FINDINGS = pa.list_(
    pa.struct(
        [
            ("word", TEXT), ("severity", TEXT), ("message", TEXT), ("module", TEXT),
            ("start", LONG), ("end", LONG),
        ]
    )
)  # fmt: skip
_NOT_AUTHENTICATED = pa.list_(
    pa.struct([("what", TEXT), ("path", TEXT), ("why", TEXT), ("word", TEXT), ("by_design", FLAG)])
)


@dataclass(frozen=True, kw_only=True)
class VerificationJob(TableJob):
    """A job that verifies files as far as the keys allow, also without keys."""

    settings: Settings | None
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", TEXT), ("result", TEXT), ("failed", FLAG), ("complete", FLAG),
            ("encrypted", FLAG), ("rows", LONG), ("modules", LONG),
            ("authenticated_bytes", LONG), ("bytes_in", LONG), ("file_unique", TEXT),
            ("findings", _FINDINGS), ("not_authenticated", _NOT_AUTHENTICATED),
            ("aad_prefix_hex", TEXT), ("seconds", REAL), ("message", TEXT), ("code", INT),
            ("details", TEXT), ("worker", TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Return a row for each verified file."""
        properties = None if self.settings is None else self.settings.decryption()
        run = FilesVerification(places=[file.place for file in files], properties=properties)
        numbers = {file.name: number for number, file in enumerate(files)}
        return self.process_each(
            files, lambda file: self._describe(file, run.process(numbers[file.name]))
        )

    def _describe(self, file: File, checked: CheckedFile) -> Row:
        result, aad = checked.verification, checked.aad
        fault = next((found for found in result.findings if found.severity == "fault"), None)
        findings = [
            {**asdict(finding), "module": None if finding.module is None else str(finding.module)}
            for finding in result.findings
        ]
        return self.make_row(
            file,
            describe_result(result),
            result=fault.word if fault else "authentic" if result.complete else "partial",
            failed=fault is not None,
            file_unique=aad.unique.hex() if aad.unique else None,
            aad_prefix_hex=aad.prefix.hex() if aad.prefix else None,
            findings=findings,
            message=fault.message if fault else "",
        )


def plan_verification(
    where: Any, decryption: Settings | None, *, filesystem: MakeFilesystem | None = None
) -> TablePlan:
    """Plan a verification; arguments and errors as in `verify_table`."""

    def check(settings: Settings, files: Sequence[File]) -> None:
        settings.check_distinct(file.name for file in files)

    return plan_job(VerificationJob, where, decryption, check=check, filesystem=filesystem)


# --- inspection ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class InspectionJob(TableJob):
    """A job that inspects files with or without keys; it opens no pages."""

    settings: Settings | None
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", TEXT), ("result", TEXT), ("failed", FLAG), ("encrypted", FLAG),
            ("footer_mode", TEXT), ("footer_authenticated", FLAG), ("algorithm", TEXT),
            ("footer_key", TEXT), ("aad_prefix", TEXT), ("stores_aad_prefix", FLAG),
            ("needs_aad_prefix", FLAG), ("aad_file_unique_size", LONG), ("created_by", TEXT),
            ("writer", TEXT), ("rows", LONG), ("row_groups", LONG), ("columns", LONG),
            ("encrypted_columns", LONG), ("opened_columns", LONG),
            ("plaintext_columns", TEXTS), ("key_value_metadata", TEXTS), ("leaks", TEXTS),
            ("hidden", TEXTS), ("quirks", TEXTS), ("kms_unavailable", FLAG),
            ("bytes_in", LONG), ("message", TEXT), ("code", INT), ("details", TEXT),
            ("worker", TEXT),
        ]
    )  # fmt: skip

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Return a row for each inspected file."""
        properties = None if self.settings is None else self.settings.decryption()
        return self.process_each(
            files,
            lambda file: self._describe(
                file, inspect_parquet(file.name, properties, filesystem=filesystem)
            ),
        )

    def _describe(self, file: File, result: Inspection) -> Row:
        """Return the inspection as a row, with its columns summarised."""
        columns = result.columns
        counts: dict[str, Any] = {"columns": None}  # the columns are hidden
        if columns is not None:
            plain = [column.path for column in columns if column.key is None]
            counts = {
                "columns": len(columns),
                "encrypted_columns": len(columns) - len(plain),
                "opened_columns": sum(column.has_key is True for column in columns),
                "plaintext_columns": plain,
            }
        return self.make_row(
            file, describe_result(result), result="inspected", failed=False,
            footer_key=str(result.footer_key), **counts,
        )  # fmt: skip
