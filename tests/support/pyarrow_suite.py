"""A pytest plugin that runs PyArrow's own Parquet tests through `modcrypt.parquet`, encrypted.

`import pyarrow.parquet as pq` then gives a module with the names of `modcrypt.parquet` alone, whose
readers and writers have a fixed key unless the test passes properties itself.

The variable `MODCRYPT_OUTCOMES` names the file of the results: for each test, its outcome and how
often it wrote or read through modcrypt. `MODCRYPT_LEFT_OUT` lists tests to leave out, as JSON.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import modcrypt.parquet
from modcrypt.runtime.lazy_names import public_names

os.environ["MODCRYPT_SUITE_KEY"] = bytes(range(16)).hex()
SETTINGS = modcrypt.Settings(
    footer_key="env:MODCRYPT_SUITE_KEY",
    require_encrypted=False,  # some tests read plaintext files that come with PyArrow
)
WRITERS = {"write_table", "write_to_dataset", "write_metadata", "ParquetWriter"}

calls: Counter[str] = Counter()
outcomes: dict[str, dict[str, Any]] = {}


def make_substitute() -> ModuleType:
    """Return a module with the names of `modcrypt.parquet`, and with no others."""
    substitute = ModuleType("pyarrow.parquet")
    for name in public_names("modcrypt.parquet"):
        value = getattr(modcrypt.parquet, name)
        if not hasattr(pyarrow.parquet, name):
            continue  # a result of modcrypt's functions
        own = value.__module__.startswith("modcrypt.parquet.pyarrow_api")
        setattr(substitute, name, _with_key(value, name in WRITERS) if own else value)
    return substitute


def _with_key(function: Any, writes: bool) -> Any:
    """Return a function, or a class, that is called with the fixed key."""
    argument = "encryption_properties" if writes else "decryption_properties"

    def call(*positional: Any, **named: Any) -> Any:
        calls["calls"] += 1
        if named.get(argument) is None:
            named[argument] = SETTINGS
        return function(*positional, **named)

    if not inspect.isclass(function):
        return wraps(function)(call)
    return _Constructor(function.__name__, (function,), {"call": staticmethod(call)})


class _Constructor(type):
    """The type of a class whose calls go elsewhere, and of which those results are instances."""

    def __call__(cls, *positional: Any, **named: Any) -> Any:
        call: Callable[..., Any] = cls.call  # type: ignore[attr-defined]
        return call(*positional, **named)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


def pytest_configure() -> None:
    """Put the substitute in the place of PyArrow's module; modcrypt has imported the original."""
    substitute = make_substitute()
    sys.modules["pyarrow.parquet"] = substitute
    pyarrow.parquet = substitute


def _name(item: pytest.Item) -> str:
    assert isinstance(item, pytest.Function)
    return f"{item.module.__name__.rpartition('.')[2]}::{item.name}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that are not applicable."""
    left_out = set(json.loads(os.environ["MODCRYPT_LEFT_OUT"]))
    items[:] = [item for item in items if _name(item) not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Note the outcome of a test, and whether it came to modcrypt."""
    report = yield
    if call.when == "setup":
        calls.clear()
    if report.when == "call" or report.outcome != "passed":
        outcomes[_name(item)] = {
            "outcome": report.outcome,
            "calls": calls["calls"],
            "error": "" if call.excinfo is None else call.excinfo.exconly()[:300],
        }
    return report


def pytest_sessionfinish() -> None:
    """Write the outcomes."""
    Path(os.environ["MODCRYPT_OUTCOMES"]).write_text(json.dumps(outcomes))
