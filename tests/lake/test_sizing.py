"""The page about sizes contains what the script computes."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT
from tools.lake_sizing import print_model


def test_the_page_has_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    print_model(20)
    text = (ROOT / "docs/explanation/lake-sizing.md").read_text()
    (model,) = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert model == capsys.readouterr().out
    assert "@" not in text
