"""The lock file of development: what it pins, and what the audit makes of it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.support.cases import each_case
from tests.support.paths import ROOT
from tools import audit

LOCK = (ROOT / "requirements-dev.lock").read_text()
DOCS_LOCK = (ROOT / "requirements-docs.lock").read_text()
ENTRY = re.compile(
    r"(?P<name>[a-z0-9._-]+)==[^ ]+( ; .+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
)


@each_case("lock", [LOCK, DOCS_LOCK])
def test_every_package_is_pinned_with_hashes_and_no_address(lock: str) -> None:
    entries = re.sub(r"(?m)^#.*\n", "", lock)
    assert ENTRY.sub("", entries) == ""
    assert "://" not in lock


def test_both_locks_pin_the_same_versions() -> None:
    pin = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
    for_docs = {match[1]: match[2] for match in pin.finditer(DOCS_LOCK)}
    for match in pin.finditer(LOCK):
        assert for_docs.get(match[1], match[2]) == match[2]


def test_what_pyproject_asks_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups, extras = project["dependency-groups"], project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *extras["cli"], *extras["fsspec"]]
    docs = groups.pop("docs")
    wanted += [entry for group in groups.values() for entry in group if isinstance(entry, str)]
    assert _names(wanted) <= {match["name"] for match in ENTRY.finditer(LOCK)}
    assert _names(docs) <= {match["name"] for match in ENTRY.finditer(DOCS_LOCK)}


def _names(entries: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", entry)[0].strip().lower() for entry in entries}


SOUND = {"name": "a", "version": "1", "vulns": []}
BROKEN = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (json.dumps({"dependencies": [SOUND]}), 0, "audit: looked up 1 of 1 packages\n"),
        (
            json.dumps({"dependencies": [SOUND, BROKEN, SKIPPED]}),
            1,
            "b 2: CVE-1; fixed in 3\naudit: looked up 2 of 3 packages\n",
        ),
        (json.dumps({"dependencies": [SKIPPED]}), 0, "audit: skipped"),
        ("could not connect", 0, "audit: skipped"),
    ],
)
def test_the_audit_fails_for_vulnerabilities_and_not_for_being_offline(
    answer: str,
    code: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    program.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert audit.main("a.lock") == code
    assert capsys.readouterr().out.startswith(text)
