"""Errors whose tracebacks contain no secrets.

A traceback contains the frames in which an error arose, and their local variables. Tools that
collect errors store these. So functions that use raw keys and passphrases raise errors without
their frames; the functions that call them only have `Key` objects.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

from modcrypt.errors import ModcryptError

P = ParamSpec("P")
R = TypeVar("R")


def hide_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap `function` so that its errors contain no frame of it or of the functions that it calls.

    Messages and causes of errors remain; suppressed contexts are removed.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        outer = sys.exception()  # handled by the caller: its frames are the caller's
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            del args, kwargs
            _drop_frames(error, outer)
            raise

    return call


def hide_init_frames(cls: type[R]) -> type[R]:
    """Wrap the constructor of a class, whose arguments may be secrets, with `hide_frames`."""
    setattr(cls, "__init__", hide_frames(cls.__init__))  # noqa: B010  # mypy refuses an assignment
    return cls


def shorten_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method that Spark calls, so that errors that are no bugs have no frames below it.

    Spark's messages contain the whole traceback, and what is wrong stands below it. An iterator
    that the method returns is wrapped as well.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = method(*args, **kwargs)
        except _NO_BUGS as error:
            raise _drop_known(error) from None
        return cast("R", _shorten_errors_of(result)) if isinstance(result, Iterator) else result

    return call


_NO_BUGS = (ModcryptError, OSError, ImportError, ValueError)


def _shorten_errors_of(results: Iterator[R]) -> Iterator[R]:
    try:
        yield from results
    except _NO_BUGS as error:
        raise _drop_known(error) from None


def _drop_known(error: BaseException) -> BaseException:
    """Return an error without its frames; a subclass of ValueError is a bug, and keeps them."""
    is_bug = isinstance(error, ValueError) and type(error) is not ValueError
    return error if is_bug else error.with_traceback(None)


def format_origin(error: BaseException) -> str:
    """Return ` in MODULE, line N`, where an error arose; empty if it has no traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" in {trace.tb_frame.f_globals.get('__name__', '?')}, line {trace.tb_lineno}"


def convert_argument(
    name: str, convert: Callable[[Any], object], wrapped: tuple[type, ...]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that converts an argument, so that no frame contains the original.

    An argument of None or of a `wrapped` type is not converted; else `convert` wraps the raw
    secret.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        at = list(signature.parameters).index(name)

        def is_wrapped(args: tuple[Any, ...], given: dict[str, Any]) -> bool:
            return isinstance(args[at] if at < len(args) else given.get(name), wrapped)

        @hide_frames
        def bind(args: tuple[Any, ...], given: dict[str, Any]) -> inspect.BoundArguments:
            bound = signature.bind(*args, **given)
            if bound.arguments.get(name) is not None:
                bound.arguments[name] = convert(bound.arguments[name])
            return bound

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if is_wrapped(args, kwargs):  # binding takes as long as opening a small file
                return function(*args, **kwargs)
            try:
                bound = bind(args, kwargs)
            finally:
                del args, kwargs
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate


def _drop_frames(error: BaseException, outer: BaseException | None) -> None:
    waiting: list[BaseException | None] = [error]
    seen: list[BaseException | None] = [None, outer]
    while waiting:
        current = waiting.pop()
        if current is None or any(current is known for known in seen):
            continue
        seen.append(current)
        current.__traceback__ = None
        if current.__suppress_context__ and current.__context__ is not outer:
            current.__context__ = None  # errors of `json` and of codecs contain the text itself
        waiting += [current.__cause__, current.__context__]
        waiting += getattr(current, "exceptions", ())  # of an exception group
