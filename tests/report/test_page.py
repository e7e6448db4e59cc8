"""The frame and the pieces that pages about files and tables share."""

from __future__ import annotations

from modcrypt.report.page import render_facts, render_page, render_text


def test_text_that_is_cut_states_its_length() -> None:
    assert "(5,000 characters)</bdi>" in render_text("a" * 5000)
    assert "characters" not in render_text("a" * 240)
    assert "(5,000 characters)" in render_facts([("Table", "a" * 5000)], 400)


def test_a_page_allows_a_script_only_if_it_has_one() -> None:
    assert "script" not in render_page("A table", "", "")
    page = render_page("A file", "", "", script="let a = 1;")
    assert "script-src 'sha256-" in page
    assert page.count("<script>let a = 1;</script>") == 1
