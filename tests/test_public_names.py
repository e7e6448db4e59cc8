"""The public names: few at the top, and each with an example that a test runs."""

from __future__ import annotations

import ast
import doctest
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from modcrypt import errors
from modcrypt.runtime.lazy_names import public_names
from tests.support.cases import each_case
from tests.support.guide import blocks_of, run_guide
from tests.support.paths import ROOT

PACKAGES = [
    "modcrypt",
    *(
        f"modcrypt.{name}"
        for name in [
            "ags1",
            "iceberg",
            "jobs",
            "kms",
            "lake",
            "parquet",
            "report",
            "spark",
            "subjects",
        ]
    ),
]
ON_SPARK = {"spark", "spark-queries"}  # tests/spark runs these
REFERENCE = {path.stem for path in (ROOT / "docs/reference/api").glob("*.md")} - ON_SPARK


def test_the_top_of_the_package_has_at_most_thirty_names() -> None:
    assert len(public_names("modcrypt")) <= 30
    shown = {name for name in dir(import_module("modcrypt")) if not name.startswith("__")}
    assert shown == {*public_names("modcrypt")}


@each_case("page", sorted(REFERENCE))
def test_the_examples_of_the_reference_run(page: str, tmp_path: Path) -> None:
    run_guide(f"reference/api/{page}.md", tmp_path)


def test_every_public_name_has_an_example() -> None:
    names = _names_in_examples()
    for package in PACKAGES:
        without = {
            name
            for name in public_names(package)
            if name not in names
            and ">>>" not in (getattr(import_module(package), name).__doc__ or "")
            and not hasattr(pyarrow.parquet, name)  # PyArrow documents its own
        }
        assert not without, f"{package}: add a short example to docs/reference/api"
    assert {*errors.__all__} - names == set()


def _names_in_examples() -> set[str]:
    """Return the names in the blocks of Python that tests of the documentation run."""
    pages = [
        page
        for pattern in ("*.md", "how-to/*.md", "reference/api/*.md")
        for page in (ROOT / "docs").glob(pattern)
    ]
    blocks = [
        block.text
        for page in pages
        for block in blocks_of(str(page.relative_to(ROOT / "docs")))
        if block.language == "python"
    ]
    nodes = [node for text in blocks for node in ast.walk(ast.parse(text))]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


def test_read_parquet_is_as_in_its_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function: Any = import_module("modcrypt").read_parquet
    (test,) = doctest.DocTestFinder(recurse=False).find(function, "read_parquet", globs={})
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_read_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    read_parquet: Any = import_module("modcrypt").read_parquet
    with pytest.raises(ModuleNotFoundError, match=r"pip install pandas; .* polars\.from_arrow"):
        read_parquet(tmp_path / "absent.parquet", bytes(range(16)))
