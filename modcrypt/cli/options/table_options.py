"""Options of commands that derive from the table of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from modcrypt.settings.setting import Setting

F = TypeVar("F", bound=Callable[..., Any])


def table_option(setting: Setting, *, shows_default: bool = True) -> Callable[[F], F]:
    """Return the option of a setting; its parameter has the setting's name and value.

    Args:
        setting: Setting whose kind, spelling, default and help the option gets.
        shows_default: Whether the setting's default applies; otherwise None stands for no choice.
    """
    schema = setting.kind.schema
    text = setting.off or setting.help
    options: dict[str, Any] = {"default": setting.default if shows_default else None}
    if setting.kind.choices:
        options |= {"type": click.Choice(setting.kind.choices), "show_default": shows_default}
    elif schema["type"] == "boolean":
        options = {"is_flag": True, "callback": _negate if setting.off else None}
    elif schema["type"] == "array":
        options = {"multiple": True, "metavar": "NAME"}
        text = f"{text} Repeatable."
    elif schema["type"] == "integer":
        limits = schema.get("minimum"), schema.get("maximum")
        options |= {"type": click.IntRange(*limits), "metavar": "N", "show_default": shows_default}
    else:
        options |= {"metavar": "TEXT"}
    return click.option(setting.spelt_as_option, setting.name, help=text, **options)


def _negate(_context: click.Context, _option: click.Parameter, given: bool) -> bool:
    """Return the value of a setting that the option turns off."""
    return not given
