"""Import a package's public names on first use, so that importing the package stays fast.

The stub `__init__.pyi` of a package is the only list of its public names and of the modules that
define them. Type checkers and editors read it, and so does `attach` when a name is first needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_modules: dict[str, dict[str, str]] = {}


def attach(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose stub lists its public names."""
    namespace = vars(sys.modules[package])

    def __getattr__(name: str) -> object:  # noqa: N807
        if name == "__all__":
            return public_names(package)
        module = _read_stub(package).get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # Store the value: otherwise a submodule of the same name would hide it on the next access.
        value = namespace[name] = getattr(import_module(module), name)
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*namespace, *public_names(package)})

    return __getattr__, __dir__


def load(module: str, name: str) -> Any:
    """Return what a module defines that lies above the caller's layer, as only a value needs it."""
    return getattr(import_module(module), name)


def public_names(package: str) -> list[str]:
    """Return the names that a package's stub lists, which are its `__all__`.

    Those of a plug-in that is not there are left out.
    """
    return sorted(name for name, module in _read_stub(package).items() if _is_there(module))


def _is_there(module: str) -> bool:
    """Return whether the package below modcrypt that defines a module is there."""
    from importlib.util import find_spec

    package = ".".join(module.split(".")[:2])
    others = not package.startswith("modcrypt.")  # not to be imported by this
    return others or package in sys.modules or find_spec(package) is not None


def _read_stub(package: str) -> dict[str, str]:
    """Return each public name of a package with the module that defines it."""
    if package not in _modules:
        import ast
        import pkgutil

        stub = pkgutil.get_data(package, "__init__.pyi") or b""
        _modules[package] = {
            alias.name: node.module or ""
            for node in ast.parse(stub).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
    return _modules[package]
