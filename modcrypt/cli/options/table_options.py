"""Options of commands that derive from the table of settings.

A setting of a group has an option in every command with that group; nothing else names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from modcrypt.cli.shared import combine_options
from modcrypt.cli.shared_options import F, option
from modcrypt.settings.setting import Setting, settings_of


def table_options(
    cls: type, group: str, *, has_defaults: bool = True, shared: bool = False, **metavars: str
) -> Callable[[F], F]:
    """Return the options of a group of settings.

    Args:
        has_defaults: Whether the defaults of settings apply; otherwise None stands for no choice.
        metavars: Metavariables by setting, where `TEXT`, `NAME` or `N` says too little.
    """
    found = settings_in(cls, group).values()
    options = [_make_option(each, has_defaults, shared, metavars.get(each.name)) for each in found]
    return combine_options(*options)


def settings_in(cls: type, group: str) -> Mapping[str, Setting]:
    """Return the settings of a group, by the parameters of their options."""
    settings = settings_of(cls).values()
    return {_parameter(each): each for each in settings if each.group == group}


def table_values(cls: type, options: Mapping[str, Any], *groups: str) -> dict[str, Any]:
    """Return the values of settings, by name, for the options of some groups that a command has."""
    found = [item for group in groups for item in settings_in(cls, group).items()]
    return {
        setting.name: not options[parameter] if setting.off else options[parameter]
        for parameter, setting in found
        if parameter in options
    }


def _parameter(setting: Setting) -> str:
    if setting.kind.schema.get("type") == "array":
        return setting.name
    return setting.spelt_as_option.lstrip("-").replace("-", "_")


def _make_option(
    setting: Setting, has_defaults: bool, shared: bool, metavar: str | None
) -> Callable[[F], F]:
    schema, text, name = setting.kind.schema, setting.help, setting.spelt_as_option
    attributes: dict[str, Any] = {"shared": shared, "rare": setting.rare}
    is_value = schema.get("type") not in ("boolean", "array")
    if has_defaults and setting.default is not None and is_value:
        attributes |= {"default": setting.default, "show_default": True}
    if setting.kind.choices:
        attributes["type"] = click.Choice(setting.kind.choices)
    elif schema["type"] == "array":
        metavar, text = "NAME...", f"{text} Repeatable."
    elif schema["type"] == "integer":
        attributes["type"] = click.IntRange(schema.get("minimum"), schema.get("maximum"))
        metavar = metavar or "N"
    elif is_value:
        metavar = metavar or "TEXT"
    spelt = name if metavar is None else f"{name} {metavar}"
    return option(spelt, _parameter(setting), help=text, **attributes)
