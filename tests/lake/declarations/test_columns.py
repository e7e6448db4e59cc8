"""Rules that select columns: names before patterns and field metadata, and no column twice."""

from __future__ import annotations

import pytest

from modcrypt.lake.declarations.columns import (
    ColumnRule,
    FileColumns,
    Rules,
    make_rule,
    names_by_key,
)

LEAVES = (
    ("id",), ("home_ssn",), ("address", "zip"), ("address", "geo", "lat"),
    ("old_ssn", "list", "element"), ("mail",),
)  # fmt: skip
COLUMNS = FileColumns(LEAVES, {("mail",): {"pii": "true", "level": "3"}, ("address",): {"x": "y"}})


def test_patterns_match_columns_and_groups() -> None:
    names = names_by_key({"k": (ColumnRule("*_ssn"), ColumnRule("address.*"))}, COLUMNS)
    assert names == {"k": ["home_ssn", "address.zip", "address.geo.lat", "old_ssn.list.element"]}


def test_a_pattern_is_no_regular_expression() -> None:
    columns = FileColumns((("a.b",), ("axb",), ("a1",)), {})
    assert names_by_key({"k": (ColumnRule("a.?"),)}, columns) == {"k": ["a.b"]}
    assert names_by_key({"k": (ColumnRule("a?"),)}, columns) == {"k": ["a1"]}


def test_field_metadata_selects_fields_and_what_is_inside_them() -> None:
    assert names_by_key({"k": (make_rule({"pii": True, "level": 3}),)}, COLUMNS) == {"k": ["mail"]}
    assert names_by_key({"k": (make_rule({"pii": False}),)}, COLUMNS) == {}
    assert names_by_key({"k": (make_rule({"x": "y"}),)}, COLUMNS) == {
        "k": ["address.zip", "address.geo.lat"]
    }


def test_a_name_takes_precedence() -> None:
    rules: Rules = {
        "k": (ColumnRule("*_ssn"),),
        "own": (ColumnRule("home_ssn"), ColumnRule("address")),
    }
    names = names_by_key(rules, COLUMNS)
    assert names == {"own": ["home_ssn", "address"], "k": ["old_ssn.list.element"]}


def test_without_columns_only_names_count() -> None:
    rules: Rules = {"k": (ColumnRule("*_ssn"), ColumnRule("id")), None: (ColumnRule("mail"),)}
    assert names_by_key(rules, None) == {"k": ["id"], None: ["mail"]}


def test_two_rules_for_a_column_are_a_mistake() -> None:
    rules: Rules = {"k": (ColumnRule("*_ssn"),), None: (ColumnRule("home_*"),)}
    with pytest.raises(ValueError, match=r"several rules assign column home_ssn: \*_ssn \(k\)"):
        names_by_key(rules, COLUMNS)
