"""The tool that counts the mutants which tests kill: `make mutants`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools.mutants import GROUPS, Result, find_modules, find_redundant
from tools.mutations import Module


def test_all_modules_and_tests_exist() -> None:
    for group, tests in GROUPS.items():
        assert [name for name in find_modules(group) if not is_file(f"modcrypt/{name}.py")] == []
        assert [name for name in tests.split() if not (ROOT / "tests" / name).exists()] == []


def is_file(path: str) -> bool:
    return (ROOT / path).is_file()


def test_packages_stand_for_their_modules() -> None:
    assert {"ags1/reader", "ags1/writer"} <= set(find_modules("aad ags1"))
    assert "ags1/__init__" not in find_modules("aad ags1")


def test_mutations_are_chosen_by_hashes_and_change_live_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "limited.py"
    path.write_text("def fits(n):\n    return n < 10\n")
    monkeypatch.syspath_prepend(tmp_path)
    limited = importlib.import_module("limited")
    monkeypatch.delitem(sys.modules, "limited")
    monkeypatch.setitem(sys.modules, "limited", limited)
    module = Module("limited", str(path), [limited.fits])
    mutations = module.sample(9, "1")
    changes = [mutation.change for mutation in mutations]
    assert sorted(changes) == ["10 -> 11", "10 -> 9", "n < 10 -> n <= 10"]
    assert [mutation.change for mutation in module.sample(2, "1")] == changes[:2]
    reached: list[int] = []
    module.watch(dict(enumerate(mutations)), reached.append)
    assert (limited.fits(9), limited.fits(10), set(reached)) == (True, False, {0, 1, 2})
    module.apply(mutations[changes.index("n < 10 -> n <= 10")])
    assert (limited.fits(9), limited.fits(10), limited.fits(11)) == (True, True, False)


def result(*killers: str) -> Result:
    return Result("aad", 1, "x -> y", bool(killers), frozenset("abc"), frozenset(killers))


def test_redundant_tests_kill_only_what_others_kill() -> None:
    results = [result("a", "b"), result("b", "c"), result("c", "b"), result()]
    assert find_redundant(results) == {"a": 4, "c": 4}
    assert find_redundant([*results, result("a")]) == {"c": 5}
