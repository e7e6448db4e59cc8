"""Partition values in the names of keys: none can escape its pattern."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modcrypt.lake.declarations.partitions import fill, is_ambiguous, names_in, read_values
from tests.support.cases import each_case

ONE, TWO = "tenant-{partition.tenant}", "{partition.a}-x-{partition.b}"


def test_values_come_from_the_folders_of_a_path() -> None:
    values = read_values("tenant=ac%6De/day=2026-11-26/part-0.parquet")
    assert values == {"tenant": "acme", "day": "2026-11-26"}
    assert fill(ONE, values) == "tenant-acme"
    assert read_values("tenant=x.parquet") == {}  # a file, not a folder


@each_case(
    "value",
    [
        "", ".", "..", "a..b", "-a", "a-", "a/b", "../a", "a b", "a\n", "é", "{path}", "a{",
        "a" * 65,
        "__HIVE_DEFAULT_PARTITION__", "a%2Fb", "a?b", "a#b", "a:b",
    ],
)  # fmt: skip
def test_a_value_cannot_escape_its_pattern(value: str) -> None:
    with pytest.raises(ValueError, match=r"partition value|is in no folder"):
        fill(ONE, {"tenant": value})


def test_a_percent_escape_does_not_hide_a_separator() -> None:
    with pytest.raises(ValueError, match="cannot be part of a key's name"):
        fill(ONE, read_values("tenant=acme%2F..%2Fevil/x"))


def test_two_values_cannot_be_cut_in_another_place() -> None:
    assert fill(TWO, {"a": "1", "b": "2"}) == "1-x-2"
    for values in ({"a": "1-x-2", "b": "3"}, {"a": "1", "b": "2-3"}):
        with pytest.raises(ValueError, match="which separates values"):
            fill(TWO, values)


def test_a_missing_or_repeated_partition_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="the file is in no folder tenant=VALUE"):
        fill(ONE, {})
    with pytest.raises(ValueError, match="contains the partition tenant twice"):
        read_values("tenant=a/tenant=b/x")


def test_two_partitions_need_text_between_them() -> None:
    assert is_ambiguous("{partition.a}{partition.b}")
    assert not is_ambiguous(TWO)
    assert not is_ambiguous(ONE)
    assert names_in(TWO) == ["a", "b"]


@given(st.text(), st.text())
def test_different_values_never_give_the_same_key(first: str, second: str) -> None:
    found = []
    for value in (first, second):
        try:
            found.append(fill(ONE, {"tenant": value}))
        except ValueError:
            return
    assert (found[0] == found[1]) == (first == second)
    assert all(re.fullmatch(r"tenant-[A-Za-z0-9._-]+", name) for name in found)
