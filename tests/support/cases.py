"""Run the quick cases of one check in one item of pytest: each is a subtest that names itself."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

Test = Callable[..., None]
Ids = Iterable[object] | Callable[[Any], object] | None
Axis = list[tuple[str, dict[str, Any]]]


Choice = Callable[[list[Any]], list[Any]]


def each_case(
    names: str | Sequence[str], values: Iterable[Any], ids: Ids = None, quick: Choice | None = None
) -> Callable[[Test], Test]:
    """Return a decorator that runs a test once per case, as subtests of one item.

    It takes what `pytest.mark.parametrize` takes; stacked, it gives the product. Each case has its
    own `tmp_path`, `monkeypatch` and fixtures of function scope. Leave cases of more than a second
    to `parametrize`, so that two processes can share them.

    Args:
        names: Names of the test's arguments, separated by commas or in a sequence.
        values: Value of the argument for each case, or tuples for several arguments.
        ids: Names of the cases, or a function that names a value.
        quick: Function that chooses some of the values; the others run in an item of their own,
            which is slow. Of stacked decorators, the first may have it.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    values = list(values)
    axis = list(_cases(arguments, values, ids))
    assert axis, "a check of no cases checks nothing"
    few = None
    if quick is not None:
        chosen = quick(values)
        few = {label for value, (label, _) in zip(values, axis, strict=True) if value in chosen}
        few = None if few == {label for label, _ in axis} else few  # as without a folder of files

    def decorate(test: Test) -> Test:
        looped = vars(test).get("each_case", (test, []))
        return _loop(test, looped[0], [axis, *looped[1]], few)

    return decorate


def each_value(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return few of the cases, in which every value of every axis appears."""
    chosen, seen = [], set[tuple[str, str]]()
    for case in cases:
        values = {(axis, str(value)) for axis, value in case.items()}
        if not values <= seen:
            chosen.append(case)
            seen |= values
    return chosen


def one_in(number: int) -> Choice:
    """Return a function that chooses the first value, and one in so many after it."""
    return lambda values: values[::number]


def _cases(
    arguments: Sequence[str], values: list[Any], ids: Ids
) -> Iterator[tuple[str, dict[str, Any]]]:
    given = [None] * len(values) if ids is None or callable(ids) else list(ids)
    for number, (value, label) in enumerate(zip(values, given, strict=True)):
        if isinstance(value, type(pytest.param())):
            assert not value.marks, "cases of one item cannot have marks of their own"
            parts, label = value.values, value.id or label
        else:
            parts = (value,) if len(arguments) == 1 else value
        case = dict(zip(arguments, parts, strict=True))
        labels = [_label(name, part, number, ids) for name, part in case.items()]
        yield str(label or "-".join(labels)), case


def _label(name: str, value: object, number: int, ids: Ids) -> str:
    label = ids(value) if callable(ids) else None
    if label is None and isinstance(value, str | bytes | int | float | None):
        label = value if isinstance(value, str) else repr(value)
    text = str(label or getattr(value, "__name__", f"{name}{number}"))
    return text.encode("ascii", "backslashreplace").decode()[:80]  # as pytest-xdist can send it


SPEEDS = pytest.mark.parametrize("speed", ["quick", pytest.param("slow", marks=pytest.mark.slow)])


def _loop(decorated: Test, test: Test, axes: list[Axis], few: set[str] | None) -> Test:
    """Return a test that runs another for all combinations of cases.

    Cases of the first axis whose labels are not among the few have a slow item.
    """
    looped = {name for axis in axes for _, case in axis for name in case}
    fixtures = [name for name in inspect.signature(test).parameters if name not in looped]

    def loop(
        request: pytest.FixtureRequest, subtests: pytest.Subtests, speed: str = "", **_: Any
    ) -> None:
        first = [case for case in axes[0] if few is None or (case[0] in few) == (speed == "quick")]
        combinations, skipped = list(itertools.product(first, *axes[1:])), []
        own = _finish_own_fixtures(request)
        for number, combination in enumerate(combinations):
            label = "-".join(label for label, _ in combination)
            values = {name: value for _, case in combination for name, value in case.items()}
            with subtests.test(label), contextlib.ExitStack() as stack:
                case = _Fixtures(request, own, number, stack)
                made = {name: case.get(name) for name in request.fixturenames}
                try:
                    test(**values, **{name: made[name] for name in fixtures})
                except pytest.skip.Exception as skip:
                    skipped.append(skip)
                    raise
        if len(skipped) == len(combinations):
            raise skipped[0]

    functools.update_wrapper(loop, decorated, updated=())
    vars(loop).update(each_case=(test, axes), pytestmark=vars(decorated).get("pytestmark", []))
    kind = inspect.Parameter.KEYWORD_ONLY
    names = dict.fromkeys(["request", "subtests", *fixtures, *([] if few is None else ["speed"])])
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    vars(loop)["__signature__"] = signature
    return loop if few is None else SPEEDS(loop)


def _finish_own_fixtures(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Tear down the item's fixtures that each case has of its own; return their definitions."""
    definitions = {
        name: found[-1] for name, found in request.node._fixtureinfo.name2fixturedefs.items()
    }
    own = {
        name: definition for name, definition in definitions.items() if _is_own(name, definition)
    }
    for definition in own.values():
        definition.finish(request)
    return own


def _is_own(name: str, definition: Any) -> bool:
    ours = not definition.func.__module__.startswith("_pytest.")
    return definition.scope == "function" and (ours or name == "monkeypatch")


class _Fixtures:
    """Fixtures of one case: some are made for it, others are the item's."""

    def __init__(
        self,
        request: pytest.FixtureRequest,
        own: dict[str, Any],
        number: int,
        stack: contextlib.ExitStack,
    ) -> None:
        self._request, self._own, self._number, self._stack = request, own, number, stack
        self._made: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """Return the value of a fixture."""
        if name not in self._made:
            self._made[name] = self._call(name) if name in self._own else self._share(name)
        return self._made[name]

    def _share(self, name: str) -> Any:
        value: Any = self._request if name == "request" else self._request.getfixturevalue(name)
        if name == "tmp_path":
            value = value / str(self._number)
            value.mkdir()
        elif name in ("capsys", "capfd"):
            value.readouterr()
        elif name in ("caplog", "recwarn"):
            value.clear()
        return value

    def _call(self, name: str) -> Any:
        definition = self._own[name]
        given = {argument: self.get(argument) for argument in definition.argnames}
        if definition.params is not None:
            given["request"] = SimpleNamespace(param=self._request.node.callspec.params[name])
        made = definition.func(**given)
        if not inspect.isgeneratorfunction(definition.func):
            return made
        self._stack.callback(next, made, None)  # goes on after its yield, whatever the test did
        return next(made)
