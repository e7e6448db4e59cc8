"""Former names of arguments and attributes, which work until 1.1 with a DeprecationWarning."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def accept_former_names(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that accepts arguments under their former names, too.

    Args:
        names: Present names by former ones, such as `where="source"`.

    Example:
        >>> @accept_former_names(where="source")
        ... def size_of(source):
        ...     return len(source)
        >>> size_of(where="lake")
        4
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            for former in options.keys() & names.keys():
                warn(f"the argument {former}", names[former])
                if names[former] in options:
                    raise TypeError(f"pass {names[former]}, not {former} as well")
                options[names[former]] = options.pop(former)
            return function(*args, **options)

        return call

    return decorate


def warn(what: str, name: str) -> None:
    """Warn the first caller outside of modcrypt that something has another name now."""
    level, frame = 1, sys._getframe()
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith("modcrypt."):
        level, frame = level + 1, frame.f_back
    message = f"{what} is now called {name}; the former name works until modcrypt 1.1"
    warnings.warn(message, DeprecationWarning, stacklevel=level)


def accept_former_attributes(**names: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator of a class that has attributes and methods under their former names, too.

    The constructor accepts former names of its arguments. Decorators that hide its frames come
    above this one, whose frame has the arguments.
    """

    def decorate(cls: type[T]) -> type[T]:
        if signature(cls.__init__).parameters.keys() & {*names.values()}:
            initialise = accept_former_names(**names)(cls.__init__)
            setattr(cls, "__init__", initialise)  # noqa: B010  # mypy refuses the assignment
        for former, name in names.items():
            setattr(cls, former, property(functools.partial(_read, former=former, name=name)))
        return cls

    return decorate


def _read(instance: object, *, former: str, name: str) -> Any:
    warn(f"the attribute {former}", name)
    return getattr(instance, name)
