"""The examples of the README run as written; the documentation names what exists."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.runtime.lazy_names import public_names
from tests.support.paths import ROOT
from tools.docs.error_table import draw_errors

README = ROOT / "README.md"
POLICIES = ROOT / "docs/how-to/key-services.md"
MEMBERS = ROOT / "docs/reference/configuration.md"


def _blocks(language: str, *pages: Path) -> list[str]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [block for page in pages for block in pattern.findall(page.read_text())]


def test_python_examples_run_and_the_second_ends_in_the_error_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = _blocks("python", README)
    names: dict[str, Any] = {}
    exec(first, names)
    with pytest.raises(mc.errors.TagMismatchError) as caught:
        exec(second, names)
    (shown,) = _blocks("text", README)
    assert shown.replace("\n", " ").strip() == f"modcrypt.errors.TagMismatchError: {caught.value}"


def test_the_policy_that_is_shown_is_one() -> None:
    (shown,) = _blocks("toml", POLICIES)
    policy = mc.Policy.loads(shown)
    assert policy.column_keys == {"lake-pii": ("ssn", "address")}
    members = MEMBERS.read_text()
    assert [name for name in mc.Policy.__dataclass_fields__ if f"`{name}`" not in members] == []


def test_no_document_or_help_text_teaches_to_export_a_secret() -> None:
    patterns = ("*.md", "docs/**/*.md", "modcrypt/**/*.py", "tools/*.py")
    for path in (path for pattern in patterns for path in ROOT.glob(pattern)):
        assert not re.search(r"\bexport \w*(PASS|KEY|TOKEN|SECRET)", path.read_text()), path


def test_every_public_error_stands_in_the_table_of_the_website_with_its_word() -> None:
    rows = dict(re.findall(r"^\| `(\w+Error)` \| ([\w-]*) *\|", draw_errors(), re.MULTILINE))
    errors = {
        name: getattr(mc.errors, name).word for name in mc.errors.__all__ if name != "ModcryptError"
    }
    assert rows == errors


def test_every_public_function_and_option_is_named() -> None:
    text = "".join(page.read_text() for page in (README, *ROOT.glob("docs/**/*.md")))
    packages = ("modcrypt", "modcrypt.ags1", "modcrypt.jobs", "modcrypt.kms", "modcrypt.report")
    functions = [name for each in packages for name in public_names(each) if name.islower()]
    assert {name for name in functions if name not in text} == set()
    for properties in (mc.FileEncryptionProperties, mc.FileDecryptionProperties):
        shown = inspect.getdoc(properties) or ""  # the reference shows it
        assert {f"    {name}: " in shown for name in properties.__dataclass_fields__} == {True}


def test_every_link_between_documents_leads_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
