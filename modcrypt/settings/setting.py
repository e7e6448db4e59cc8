"""A setting, and what follows from the declarations of several: their faults and their texts."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields
from inspect import cleandoc
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from modcrypt.settings.kinds import Kind

T = TypeVar("T")

_ARGUMENTS = "Args:\n"

NOT_ON_SPARK = "spark"
NO_OPTION = "command line"


class Setting(NamedTuple):
    """The declaration of a setting."""

    kind: Kind  # kind of its values
    name: str = ""  # name of the Python argument and of the member in TOML
    text: str = ""  # its meaning; the first sentence is its help
    default: Any = None  # value if it is not given
    required: bool = False  # true if there is no default
    option: str = ""  # spelling on the command line, if it is not the name with hyphens
    # Group of options that has it on the command line; empty if a command declares its option
    # itself, because it takes another form there.
    group: str = ""
    rare: bool = False  # true if only `--help-all` shows its option
    off: str = ""  # help of the option that turns it off, if the option does that
    spark: str = ""  # spelling among Spark's options, if it is not the name in camel case
    use: str = "both"  # what it is for: `read`, `write` or `both`
    needs: tuple[str, ...] = ()  # settings without which it makes no sense
    # True if a declaration that is found, not named, may set it without being trusted.
    free: bool = False
    # Surfaces (`NOT_ON_SPARK`, `NO_OPTION`) that lack it, each with the reason.
    absent: Mapping[str, str] = MappingProxyType({})

    @property
    def help(self) -> str:
        """The help of its option: the first sentence of its text, or what the option turns off."""
        sentence = self.off or re.split(r"(?<=\.) ", self.text, maxsplit=1)[0].replace("`", "")
        start = "Whether to "
        if sentence.startswith(start):
            sentence = sentence[len(start) :].capitalize()
        return sentence

    @property
    def spelt_on_spark(self) -> str:
        """Its name among the options of Spark's data source."""
        first, *rest = self.name.split("_")
        return self.spark or first + "".join(word.title() for word in rest)

    @property
    def spelt_as_option(self) -> str:
        """Its name on the command line."""
        return self.option or f"--{self.name.replace('_', '-')}"

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the member."""
        default = {} if self.required or self.default in (None, ()) else {"default": self.default}
        return {**self.kind.schema, "description": self.text, **default}


def declare(kind: Kind, **options: Any) -> Any:
    """Return a dataclass's field that is a setting; `options` as for `Setting` and `field`."""
    names = options.keys() & {"default", "default_factory", "repr"}
    own = {name: options.pop(name) for name in names}
    return field(**own, metadata={"setting": Setting(kind, **options)})


def explain_arguments(cls: type[T]) -> type[T]:
    """Decorate a class whose arguments are settings of a base: add their texts to its docstring."""
    if cls.__doc__:  # there is none under `python -OO`
        text, raises, rest = cleandoc(cls.__doc__).partition("Raises:\n")
        cls.__doc__ = f"{text}{_ARGUMENTS}{_find_arguments(cls)}\n\n{raises}{rest}"
    return cls


def _find_arguments(cls: type) -> str:
    """Return the section about arguments in the docstring of a class, or of a base."""
    docstrings = (cleandoc(base.__doc__ or "") for base in cls.__mro__)
    found = next((text for text in docstrings if _ARGUMENTS in text), "")
    return found.partition(_ARGUMENTS)[2].partition("\n\n")[0]


@functools.cache
def settings_of(cls: type) -> Mapping[str, Setting]:
    """Return the settings that a dataclass declares, by name, with texts from its docstring."""
    entries = re.split(r"\n {4}(?! )", f"\n{_find_arguments(cls)}")[1:]
    texts = {name: " ".join(text.split()) for name, _, text in (e.partition(": ") for e in entries)}
    found = {}
    for member in fields(cls):
        if (setting := member.metadata.get("setting")) is not None:
            factory: Callable[[], Any] | Any = member.default_factory
            default = member.default if factory is MISSING else factory()
            found[member.name] = setting._replace(
                name=member.name, text=texts.get(member.name, ""),
                default=None if default is MISSING else default, required=default is MISSING,
            )  # fmt: skip
    return MappingProxyType(found)


def list_faults(settings: Iterable[Setting], values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the faults of values that settings do not allow, by name.

    Args:
        values: Values by name; one that is the default counts as not given.
    """
    given = [s for s in settings if s.name in values and values[s.name] is not s.default]
    faults = {s.name: s.kind.list_faults(s.name, values[s.name]) for s in given}
    for setting in given:
        if missing := [need for need in setting.needs if not values.get(need)]:
            faults[setting.name].append(f"{setting.name} needs {' and '.join(missing)}")
    return {name: found for name, found in faults.items() if found}
