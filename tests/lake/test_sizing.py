"""The page about sizes contains what the script computes."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT
from tools.lake_sizing import print_model


def test_the_page_sums_up_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    print_model(20)
    model = capsys.readouterr().out
    text = (ROOT / "docs/explanation/lake-sizing.md").read_text()
    hours = re.findall(r"^(.+), by \w+: ([\d.]+) h, bound by (\w+)$", model, re.MULTILINE)
    rows = re.findall(r"^\| (.+) \| ([\d.]+) \| ([A-Za-z]+) \|$", text, re.MULTILINE)
    stated = [(name.replace("`", ""), *cells) for name, *cells in rows]
    assert stated == [row for row in hours if "listing" not in row[0]]
    for hours_of_service, service in re.findall(r"calls, ([\d.]+) h at (AWS KMS|[\w ]+),", model):
        assert f"{hours_of_service} h at {service}" in " ".join(text.split())
    assert "@" not in text
