"""The lock files: what they pin, what the audit makes of them, and that releases use them."""

from __future__ import annotations

import json
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.cases import each_case
from tests.support.paths import ROOT
from tools import audit

LOCK = (ROOT / "requirements-dev.lock").read_text()
DOCS_LOCK = (ROOT / "requirements-docs.lock").read_text()
RELEASE_LOCK = (ROOT / "requirements-release.lock").read_text()
ENTRY = re.compile(
    r"(?P<name>[a-z0-9._-]+)==[^ ]+( ; .+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
)


@each_case("lock", [LOCK, DOCS_LOCK, RELEASE_LOCK])
def test_every_package_is_pinned_with_hashes_and_no_address(lock: str) -> None:
    entries = re.sub(r"(?m)^#.*\n", "", lock)
    assert ENTRY.sub("", entries) == ""
    assert "://" not in lock


def test_all_locks_pin_the_same_versions() -> None:
    pin = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
    for other in (DOCS_LOCK, RELEASE_LOCK):
        pinned = {match[1]: match[2] for match in pin.finditer(other)}
        for match in pin.finditer(LOCK):
            assert pinned.get(match[1], match[2]) == match[2]


def test_what_pyproject_asks_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups, extras = project["dependency-groups"], project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *extras["cli"], *extras["fsspec"]]
    docs, release = groups.pop("docs"), groups.pop("release")
    wanted += [entry for group in groups.values() for entry in group if isinstance(entry, str)]
    assert _names(wanted) <= {match["name"] for match in ENTRY.finditer(LOCK)}
    assert _names(docs) <= {match["name"] for match in ENTRY.finditer(DOCS_LOCK)}
    release = [entry for entry in (*release, *groups["build"]) if isinstance(entry, str)]
    assert _names(release) <= {match["name"] for match in ENTRY.finditer(RELEASE_LOCK)}


def test_releases_have_compiled_wheels_for_all_systems() -> None:
    """`cibuildwheel` builds what its settings do not skip, for the machine that runs it."""
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    (runners,) = re.findall(r"runner: \[(.*)\]", workflow)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    platforms = {
        "ubuntu-latest": ("manylinux_x86_64", "musllinux_x86_64"),
        "ubuntu-24.04-arm": ("manylinux_aarch64", "musllinux_aarch64"),
        "macos-latest": ("macosx_arm64",),
        "windows-latest": ("win_amd64",),
    }
    assert set(runners.split(", ")) == set(platforms)
    for python in ("cp311", "cp312", "cp313"):
        for name in (f"{python}-{name}" for names in platforms.values() for name in names):
            assert any(fnmatch(name, pattern) for pattern in settings["build"].split()), name
            assert not any(fnmatch(name, pattern) for pattern in settings["skip"].split()), name
    flags = "-fvisibility=hidden"
    assert settings["environment"] == {"HATCH_BUILD_HOOKS_ENABLE": "1", "CFLAGS": flags}
    assert f"NATIVE_CFLAGS := {flags}" in (ROOT / "Makefile").read_text()
    assert settings["test-command"].endswith("tools/smoke.py --compiled")


def test_workflows_run_only_pinned_actions_and_every_part_of_ci() -> None:
    texts = {path.name: path.read_text() for path in ROOT.glob(".github/workflows/*.yml")}
    used = re.findall(r"uses: *(\S+)", "".join(texts.values()))
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in used), used
    (default,) = re.findall(r"\|\| parts=\((.*)\)", (ROOT / ".ci/run").read_text())
    (matrix,) = re.findall(r"part: \[(.*)\]", texts["pull-request.yml"])
    assert matrix.replace(",", "").split() == default.split()


def test_releases_run_only_what_is_pinned() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    used = re.findall(r"uses: *(\S+)", text + (ROOT / "tools/conformance/action.yml").read_text())
    assert used
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in used), used
    assert "pipx" not in text
    assert (
        len(re.findall("-m build", text)) == len(re.findall("-m build --no-isolation", text)) == 2
    )
    installs = re.findall(r"pip\" install .*|pip install .*", text)
    for line in installs:  # of the wheel itself, or by hash
        assert "dist/modcrypt" in line or "--require-hashes" in line
    wheels = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert "--no-isolation" in wheels["build-frontend"]
    assert "--require-hashes" in wheels["before-build"]


def _names(entries: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", entry)[0].strip().lower() for entry in entries}


SOUND = {"name": "a", "version": "1", "vulns": []}
BROKEN = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (json.dumps({"dependencies": [SOUND]}), 0, "audit: a.lock: looked up 1 of 1 packages\n"),
        (
            json.dumps({"dependencies": [SOUND, BROKEN, SKIPPED]}),
            1,
            "b 2: CVE-1; fixed in 3\naudit: a.lock: looked up 2 of 3 packages\n",
        ),
        (json.dumps({"dependencies": [SKIPPED]}), 75, "audit: a.lock: NOT AUDITED"),
        ("could not connect", 75, "audit: a.lock: NOT AUDITED"),
    ],
)
def test_the_audit_fails_for_vulnerabilities_and_differently_without_data(
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
    assert audit.main(["a.lock"]) == code
    assert capsys.readouterr().out.startswith(text)


def test_a_vulnerability_counts_more_than_missing_data(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {"a": 0, "b": 1, "c": 75}
    monkeypatch.setattr(audit, "audit", codes.__getitem__)
    assert [audit.main(locks) for locks in ("a", "ab", "ac", "abc")] == [0, 1, 75, 1]
