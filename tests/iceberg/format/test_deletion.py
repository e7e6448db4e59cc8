"""One module deletes from the storage of tables, and states the rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from modcrypt.iceberg.format.deletion import REMEDIES, Rule
from tests.support.paths import ROOT

DELETING = {"remove_new", "remove_files"}
"""Functions of `format/deletion.py` that delete."""

DELETERS = {
    "format/table_versions.py": {"_check_still_last", "write_hint"},  # own, or a link
    "rotate/expiry.py": {"delete"},
    "rotate/orphan_removal.py": {"remove_orphan_files"},
    "rotate/purge.py": {"_remove_last", "_drop", "_drop_entry"},  # the latter its own marker
    "tables/catalog_versions.py": {"first", "_remove"},  # own, of a commit that failed
    "write/removed_versions.py": {"remove_unlogged_versions"},
    "write/new_files.py": {"_remove"},  # own, of a job that failed
}
"""All functions that delete files of tables, by module."""

ASKED = {
    "rotate/expiry.py": {"check_gc", "DeletionRule"},
    "rotate/deletion_rule.py": {"check_gc"},
    "rotate/orphan_removal.py": {"DeletionRule"},
    "rotate/purge.py": {"Expiry"},
    "write/removed_versions.py": {"vouched_versions"},
    "write/new_files.py": {"is_protected"},
}
"""The rules that each deleter of files from before its run asks."""

FORBIDDEN = {
    "unlink", "rmtree", "rmdir", "removedirs", "delete_file", "delete_dir", "rm", "rm_file",
    "delete_dir_contents",
}  # fmt: skip
"""Functions of libraries that delete; `remove` is looked at separately: lists have it too."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    folder = ROOT / "modcrypt" / "iceberg"
    for path in sorted(folder.rglob("*.py")):
        yield str(path.relative_to(folder)), ast.parse(path.read_text())


def called(tree: ast.AST) -> set[str]:
    """Return the names of the functions and methods that code calls."""
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        f.attr if isinstance(f, ast.Attribute) else f.id
        for f in functions
        if isinstance(f, ast.Attribute | ast.Name)
    }


def test_no_other_module_deletes() -> None:
    found = {}
    for name, tree in modules():
        calls = called(tree)
        if name != "format/deletion.py":
            assert calls.isdisjoint(FORBIDDEN), name
            if name != "tables/rest_requests.py":  # a hook of a list
                assert "remove" not in calls, name
        if calls & DELETING:
            found[name] = {
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef) and called(node) & DELETING
            }
    assert found == DELETERS


def test_each_deleter_asks_the_rules() -> None:
    for name, tree in modules():
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert ASKED.get(name, set()) <= used, name


def test_the_lake_and_spark_delete_no_file_of_a_table() -> None:
    for package in ("lake", "spark"):
        for path in Path(ROOT / "modcrypt" / package).rglob("*.py"):
            assert "iceberg.format.deletion" not in path.read_text(), path


def test_each_rule_says_what_lifts_it() -> None:
    assert set(REMEDIES) == set(Rule)
