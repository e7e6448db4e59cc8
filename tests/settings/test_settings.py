"""The table of settings: kinds of values, what derives from it, and no surface that lacks one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest

from modcrypt.cli.app import program
from modcrypt.cli.shared_options import parameters_of
from modcrypt.kms.policy import Policy
from modcrypt.kms.settings import Settings
from modcrypt.lake.declarations.member_table import DATASET_MEMBERS
from modcrypt.settings.kinds import COUNT, FLAG, NAME, NAMES, URI, Kind, one_of, table_of
from modcrypt.settings.setting import NO_OPTION, NOT_ON_SPARK, Setting, list_faults, settings_of
from modcrypt.settings.table import KeyReferences, PolicySettings, TablePolicySettings
from modcrypt.spark.key_options import KEY_OPTIONS
from modcrypt.spark.procedures import write_java_source
from tests.support.cases import each_case
from tests.support.paths import ROOT
from tools.settings_tables import SCHEMA, make_schema

# --- kinds ---------------------------------------------------------------------------------------

TABLE = table_of(NAMES, "a table of names")
FLAG_OR_NAMES = Kind("true, false, or names", {"anyOf": [FLAG.schema, NAMES.schema]})

VALUES: dict[str, tuple[Kind, list[Any], list[Any]]] = {
    "name": (NAME, ["a"], ["", 5, None, b"a", ["a"]]),
    "flag": (FLAG, [True, False], [1, 0, "true", None]),
    "count": (COUNT, [1, 10**30], [0, -1, 1.0, True, "1"]),
    "names": (NAMES, [[], ["a"], ("a", "b")], ["a", [""], [1], {"a": 1}]),
    "choice": (one_of(128, 192), [128], [128.0, "128", True, 129]),
    "uri": (URI, ["file:a", "aws-kms://x"], ["file", "", "1:a", "file:a\nb", "file:a\n"]),
    "table": (TABLE, [{}, {"k": ["a"]}], [{"k": "a"}, {5: ["a"]}, [], "k"]),
    "either": (FLAG_OR_NAMES, [True, ["a"]], ["a", 1]),
}


@each_case("what", VALUES)
def test_a_kind_accepts_its_values_only(what: str) -> None:
    kind, right, wrong = VALUES[what]
    assert [value for value in right if not kind.accepts(value)] == []
    assert [value for value in wrong if kind.accepts(value)] == []


@each_case(
    "kind, text, value",
    [
        (NAME, " a", " a"),
        (FLAG, "True ", True),
        (COUNT, " 12 ", 12),
        (NAMES, "a, b,,", ["a", "b"]),
        (NAMES, '["a,b", " c"]', ["a,b", " c"]),
        (TABLE, '{"k": ["a"]}', {"k": ["a"]}),
        (one_of("error", "null"), "Error", "error"),
        (one_of(128, 192), "192", 192),
        (FLAG_OR_NAMES, "false", False),
        (FLAG_OR_NAMES, "a,b", ["a", "b"]),
    ],
)
def test_text_stands_for_a_value(kind: Kind, text: str, value: Any) -> None:
    assert kind.parse(text) == value


@each_case(
    "kind, text",
    [
        (FLAG, "yes"), (COUNT, "0"), (COUNT, "1.5"), (COUNT, "٣"), (COUNT, "9" * 5000),
        (NAMES, '["a"'), (NAMES, "[1]"), (TABLE, '{"k": 1}'), (TABLE, '{"k": [], "k": []}'),
        (TABLE, "[" * 100_000), (one_of("a", "b"), "c"),
    ],
)  # fmt: skip
def test_other_text_is_refused_and_not_repeated(kind: Kind, text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|is not valid JSON") as caught:
        kind.parse(text)
    assert text not in str(caught.value).replace(kind.words, "")


def test_faults_name_the_member_and_what_it_needs() -> None:
    settings = [
        Setting(COUNT, name="least", needs=("signed_by",)),
        Setting(NAMES, name="signed_by", default=()),
        Setting(TABLE, name="keys", default={}),
    ]
    assert list_faults(settings, {"least": 0, "keys": {"k": "a", "l": ["a"]}}) == {
        "least": ["least must be a whole number, at least 1", "least needs signed_by"],
        "keys": ["keys of k must be a list of names"],
    }
    assert list_faults(settings, {"least": None, "signed_by": ()}) == {}


# --- what derives from the table -----------------------------------------------------------------


def test_the_schema_is_what_the_table_gives() -> None:
    assert SCHEMA.read_text() == make_schema(), "run python -m tools.settings_tables"


@each_case("cls", [PolicySettings, KeyReferences, TablePolicySettings])
def test_each_setting_has_a_text(cls: type) -> None:
    for name, setting in settings_of(cls).items():
        assert setting.help[0].isupper(), name
        assert setting.help.endswith("."), name


def test_no_surface_lacks_a_setting_without_a_reason() -> None:
    assert settings_of(PolicySettings).keys() - DATASET_MEMBERS.keys() == {"kms"}  # of the lake
    on_spark = {setting.name for setting in KEY_OPTIONS.values()}
    lacking = [each for each in settings_of(KeyReferences).values() if each.name not in on_spark]
    assert all(each.absent[NOT_ON_SPARK] for each in lacking)
    source = write_java_source()
    assert [name for name in KEY_OPTIONS if f'"{name}"' not in source] == []


def test_the_page_about_spark_names_each_option_about_keys() -> None:
    page = (ROOT / "docs/reference/spark.md").read_text()
    uses = {"reading and writing": "both", "reading": "read", "writing": "write"}
    for title, use in uses.items():
        (names,) = re.findall(rf"^\| {title} \| (.*) \|$", page, re.MULTILINE)
        options = [f"`{name}`" for name, setting in KEY_OPTIONS.items() if setting.use == use]
        assert names.split(", ") == options


def test_each_setting_has_an_option_or_a_reason() -> None:
    spelt = {name for option in options_of(program) for name in option.opts}
    for cls in (PolicySettings, KeyReferences, TablePolicySettings):
        for setting in settings_of(cls).values():
            assert setting.spelt_as_option in spelt or setting.absent.get(NO_OPTION), setting.name


def options_of(command: click.Command) -> Iterator[click.Parameter]:
    """Yield the options of a command, and of those in a group."""
    yield from parameters_of(command)
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        yield from options_of(each)


@each_case("cls", [Policy, Settings])
def test_the_help_of_a_class_explains_its_arguments(cls: type) -> None:
    base = PolicySettings if cls is Policy else KeyReferences
    _, arguments, after = (cls.__doc__ or "").partition("\nArgs:\n")
    assert arguments
    assert "\nRaises:\n" in after
    assert all(f"    {name}: " in after for name in settings_of(base))


def test_every_setting_is_an_argument() -> None:
    """So that a class that declares a setting anew keeps it."""
    for cls, base in ((Policy, PolicySettings), (Settings, KeyReferences)):
        assert settings_of(base).keys() <= {field.name for field in dataclasses.fields(cls)}
