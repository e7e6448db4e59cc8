"""Results of verification as JUnit XML and SARIF 2.1.0, which CI systems read."""

from __future__ import annotations

import json
import os
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from typing import Any

from modcrypt import __version__
from modcrypt.errors import printable
from modcrypt.lake.verification.results import LakeVerification, VerifiedFile
from modcrypt.parquet.format.findings import Finding

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def make_junit(results: Sequence[LakeVerification]) -> bytes:
    """Return a suite for each dataset, with a case for each file and one for the dataset.

    Faults are failures; parts that were not opened are errors.
    """
    root = ET.Element("testsuites", name="modcrypt verify")
    for result in results:
        suite = ET.SubElement(root, "testsuite", name=result.dataset)
        for file in result.files:
            case = ET.SubElement(
                suite, "testcase", classname=result.dataset, name=_clean(file.path)
            )
            _add_outcome(case, file.faults, file)
        case = ET.SubElement(suite, "testcase", classname=result.dataset, name="the dataset")
        _add_outcome(case, [f for f in result.findings if f.severity == "fault"], None)
        if result.error:
            ET.SubElement(case, "error", message=_clean(result.error))
        for what in ("failure", "error"):
            suite.set(f"{what}s", str(len(suite.findall(f".//{what}"))))
        suite.set("tests", str(len(suite.findall("testcase"))))
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _add_outcome(case: ET.Element, faults: Sequence[Finding], file: VerifiedFile | None) -> None:
    if faults:
        text = "\n".join(f"{fault.word}: {_clean(fault.message)}" for fault in faults)
        failure = ET.SubElement(case, "failure", type=faults[0].word, message=text.split("\n")[0])
        failure.text = text
    elif file is not None and file.missing:
        text = "\n".join(f"{part.what} {part.path or ''}: {part.why}" for part in file.missing)
        error = ET.SubElement(
            case, "error", type=str(file.missing[0].word), message=_clean(text.split("\n")[0])
        )
        error.text = _clean(text)


def _clean(text: str) -> str:
    """Return text without characters that XML cannot contain."""
    return "\n".join(map(printable, text.split("\n")))


def make_sarif(results: Sequence[LakeVerification]) -> bytes:
    """Return a SARIF log of one run, with a result for each finding and each part not opened."""
    found = [entry for result in results for entry in _list_results(result)]
    rules = sorted({entry["ruleId"] for entry in found})
    driver = {
        "name": "modcrypt", "version": __version__, "rules": [{"id": rule} for rule in rules],
    }  # fmt: skip
    run = {"tool": {"driver": driver}, "results": found, "columnKind": "unicodeCodePoints"}
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1).encode()


def _list_results(result: LakeVerification) -> Iterator[dict[str, Any]]:
    for finding in result.findings:
        yield _make_result(finding.word, finding.severity, finding.message, result.location)
    if result.error:
        yield _make_result("file", "fault", result.error, result.location)
    for file in result.files:
        where = result.name_of(file)
        for finding in file.findings:
            region = (finding.start, finding.end)
            yield _make_result(finding.word, finding.severity, finding.message, where, region)
        for part in file.missing:
            message = f"{part.what} {part.path or ''} was not opened: {part.why}"
            yield _make_result(str(part.word), "fault", message, where)


def _make_result(
    word: str, severity: str, message: str, where: str,
    region: tuple[int | None, int | None] = (None, None),
) -> dict[str, Any]:  # fmt: skip
    uri = where if "://" in where else f"file://{urllib.parse.quote(os.path.abspath(where))}"
    location: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    start, end = region
    if start is not None and end is not None:
        location["region"] = {"byteOffset": start, "byteLength": end - start}
    return {
        "ruleId": word,
        "level": "error" if severity == "fault" else "warning",
        "message": {"text": message},
        "locations": [{"physicalLocation": location}],
    }
