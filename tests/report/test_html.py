"""The environment of the templates: text from a file is only ever text, whatever they do."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.report import html
from modcrypt.report.text import format_short_count
from tests.support.browser import EVIL
from tests.support.cases import each_case


def render(template: str, **values: Any) -> str:
    return html.page_environment().from_string(template).render(values)


@pytest.mark.parametrize("evil", EVIL)
@each_case(
    "template",
    [
        "<p>{{ x }}",
        '<p title="{{ x }}">',
        "{% from 'macros.html' import text %}<p>{{ text(x, 400) }}",
        "{% from 'macros.html' import badge %}{{ badge(x, x) }}",
        "{% from 'macros.html' import fact_list %}{{ fact_list([(x, x)]) }}",
        "{% from 'macros.html' import notes %}{{ notes([([x], (x,))]) }}",
        "{% from 'macros.html' import table %}"
        "{% call(y) table(x, [x], [x]) %}<td>{{ y }}{% endcall %}",
        "{% from 'macros.html' import table %}"
        "{% call(y) table(x, [x], [{'g': x}], note=x, group='g') %}<td>{{ y.g }}{% endcall %}",
        "{% from 'macros.html' import digest, moment %}{{ digest(x) }}{{ moment(x) }}",
        "{% from 'macros.html' import path %}<td>{{ path(x) }}",
        "{{ [x, x]|join(x) }}{{ x ~ x }}{{ '%s'|format(x) }}{{ x|string }}",
    ],
)
def test_no_expression_of_a_template_can_forget_to_escape(evil: str, template: str) -> None:
    page = render(template, x=evil)
    page.encode()
    assert not [c for c in set(page) if not c.isprintable() and c != "\n"]
    assert "<script" not in page
    assert "<img" not in page
    assert "<!--" not in page
    assert "' onfocus" not in page
    assert "n" * 500 not in page


@pytest.mark.parametrize("evil", EVIL)
def test_json_cannot_end_its_script_element(evil: str) -> None:
    page = render("{{ data|tojson }}", data={evil[:40]: [evil]})
    assert not set("<>&'") & set(page)
    assert json.loads(page) == {evil[:40]: [evil]}


def test_a_template_that_lacks_a_value_fails() -> None:
    with pytest.raises(Exception, match="'nothing' is undefined"):
        render("{{ nothing }}")


def test_a_text_that_is_cut_states_its_length() -> None:
    assert render("{{ x }}", x="a" * 5_000).endswith("a (5,000 characters)")
    assert render("{{ x }}", x="a" * 240) == "a" * 240


def test_a_path_breaks_after_slashes() -> None:
    page = render("{% from 'macros.html' import path %}{{ path(x) }}", x="a/<b>/c")
    assert page == "<bdi>a/<wbr>&lt;b&gt;/<wbr>c</bdi>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-11-29T23:30:59.123+02:00", "2026-11-29 21:30 UTC"),
        ("2026-11-29", "2026-11-29"),  # of no time zone, which nobody can know
        ("yesterday", "yesterday"),
        ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00+14:00"),
    ],
)
def test_a_time_is_shown_in_utc(text: str, shown: str) -> None:
    assert html.format_time(text) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (9_999, "9,999"), (10_000, "10 k"), (1_999_999, "1 M"), (10**12, "1,000 G")],
)
def test_a_count_is_short(number: int, shown: str) -> None:
    assert format_short_count(number) == shown


def test_headings_with_the_same_sentences_share_an_entry() -> None:
    notes = [("a", "1"), ("a", "2"), ("b", "1"), ("c", "1"), ("c", "2"), ("c", "1")]
    assert html.group_notes(notes) == [(["a", "c"], ("1", "2")), (["b"], ("1",))]


def test_without_jinja_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    html.page_environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "modcrypt\[html\]"'):
        html.render("base.html", title="a")


def test_a_result_without_a_page_is_refused() -> None:
    nothing: Any = mc.parquet.DatasetVerification(files=(), findings=())
    with pytest.raises(TypeError, match="no page exists for DatasetVerification; pass an Insp"):
        mc.report.render_html(nothing)
