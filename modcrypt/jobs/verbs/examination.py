"""The verbs `verify` and `inspect`, file by file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from modcrypt.jobs.engine import Job
from modcrypt.jobs.failures import describe_result
from modcrypt.jobs.listing import File
from modcrypt.jobs.verbs.verb import Row, Verb
from modcrypt.parquet.verify.inspection import Inspection, inspect_parquet
from modcrypt.parquet.verify.verification_results import Verification

if TYPE_CHECKING:  # key services, which not every file needs, and what only `verify` needs
    from modcrypt.kms.settings import Settings
    from modcrypt.parquet.verify.file_verification import CheckedFile

_FINDING = {
    "word": str, "severity": str, "message": str, "module": str, "start": int, "end": int,
}  # fmt: skip
_UNAUTHENTICATED = {"what": str, "path": str, "why": str, "word": str, "by_design": bool}


def _make_row(verb: Verb, file: File, seen: Verification | Inspection, **values: Any) -> Row:
    """Return the row of an examined file, with what `--json` prints of it as its details."""
    details = describe_result(seen)
    same = {name: details[name] for name in verb.columns.split() if name in details}
    return {
        **same, "path": file.name, "rows": seen.num_rows, "message": "",
        "details": json.dumps(details), **values,
    }  # fmt: skip


def _open_verification(settings: Settings | None, _filesystem: Any) -> Job[File, CheckedFile]:
    from modcrypt.jobs.dataset_verification import FilesVerification  # and with it PyArrow

    properties = None if settings is None else settings.decryption()
    return Job(
        lambda file: FilesVerification(places=[file.place], properties=properties).process(0)
    )


def _check_distinct(settings: Settings, files: Sequence[File]) -> None:
    settings.check_distinct(file.name for file in files)


def _describe_verification(file: File, checked: CheckedFile) -> list[Row]:
    result, aad = checked.verification, checked.aad
    fault = next((found for found in result.findings if found.severity == "fault"), None)
    findings = [
        {**asdict(finding), "module": None if finding.module is None else str(finding.module)}
        for finding in result.findings
    ]
    row = _make_row(
        VERIFY, file, result,
        result=fault.word if fault else "authentic" if result.complete else "partial",
        failed=fault is not None, message=fault.message if fault else "",
        file_unique=aad.unique.hex() if aad.unique else None,
        aad_prefix_hex=aad.prefix.hex() if aad.prefix else None, findings=findings,
    )  # fmt: skip
    return [row]


VERIFY = Verb(
    name="verify",
    result=Verification,
    columns="path result failed complete encrypted rows modules authenticated_bytes bytes_in "
    "file_unique findings not_authenticated aad_prefix_hex seconds message code details worker",
    open=_open_verification,
    check=_check_distinct,
    describe=_describe_verification,
    types={
        "rows": int, "file_unique": str, "aad_prefix_hex": str, "findings": [_FINDING],
        "not_authenticated": [_UNAUTHENTICATED],
    },
    parameters={},
)  # fmt: skip
"""The verb `verify`."""


def _open_inspection(
    settings: Settings | None, filesystem: Any, *, pages: bool
) -> Job[File, Inspection]:
    properties = None if settings is None else settings.decryption()
    return Job(
        lambda file: inspect_parquet(file.name, properties, filesystem=filesystem, pages=pages)
    )


def _prepare_inspection(*, pages: bool = False) -> Mapping[str, Any]:
    return {"pages": pages}


def _describe_inspection(file: File, result: Inspection) -> list[Row]:
    """Return the row of an inspected file, with its columns summarised."""
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
    same = {"result": "inspected", "failed": False, "footer_key": str(result.footer_key)}
    return [_make_row(INSPECT, file, result, **same, **counts)]


INSPECT = Verb(
    name="inspect",
    result=Inspection,
    columns="path result failed encrypted footer_mode footer_authenticated algorithm footer_key "
    "aad_prefix stores_aad_prefix needs_aad_prefix aad_file_unique_size created_by writer rows "
    "row_groups columns encrypted_columns opened_columns plaintext_columns key_value_metadata "
    "leaks hidden quirks kms_unavailable bytes_in message code details worker",
    open=_open_inspection,
    prepare=_prepare_inspection,
    describe=_describe_inspection,
    types={
        "footer_key": str, "aad_prefix": str, "rows": int, "columns": int,
        "encrypted_columns": int, "opened_columns": int, "plaintext_columns": list[str],
    },
    parameters={},
)  # fmt: skip
"""The verb `inspect`."""
