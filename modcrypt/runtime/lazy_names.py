"""Import a package's public names on first use, so that importing the package stays fast.

The stub `__init__.pyi` of a package is the only list of its public names and of the modules that
define them. Type checkers and editors read it, and so does `attach` when a name is first needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

TYPE_CHECKING = False  # typing would be most of the time that importing modcrypt takes
if TYPE_CHECKING:
    from typing import Any

_NONE: Mapping[str, str] = {}
_modules: dict[str, dict[str, str]] = {}


def attach(
    package: str, moved: Mapping[str, str] = _NONE, renamed: Mapping[str, str] = _NONE
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose stub lists its public names.

    Args:
        moved: The packages of names that were in this one; they work with a DeprecationWarning.
        renamed: Present names by former ones, which work in the same way.
    """
    namespace = vars(sys.modules[package])

    def __getattr__(name: str) -> object:  # noqa: N807
        if name == "__all__":
            return public_names(package)
        if name in renamed or (name in moved and _is_there(moved[name])):
            from modcrypt.runtime.former_names import warn

            present = f"{moved.get(name, package)}.{renamed.get(name, name)}"
            warn(f"{package}.{name}", present)
            return getattr(import_module(moved.get(name, package)), renamed.get(name, name))
        module = _read_stub(package).get(name)
        if module is None or not _is_there(module):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from modcrypt.runtime.collector import paused_collector

        try:
            with paused_collector():  # modules stay, and collections took a third of the time
                loaded = import_module(module)
        except ModuleNotFoundError as error:
            from modcrypt.runtime.extras import name_extra

            raise name_extra(error) from None
        if module == f"{package}.{name}":
            return loaded
        # Store the value: otherwise a submodule of the same name would hide it on the next access.
        value = namespace[name] = getattr(loaded, name)
        return value

    def __dir__() -> list[str]:  # noqa: N807
        hidden = {name for name in namespace if name.startswith("__")}
        return sorted({*hidden, *public_names(package)})

    return __getattr__, __dir__


def load(module: str, name: str) -> Any:
    """Return a name of a module above the caller's layer, which only a value needs."""
    return getattr(import_module(module), name)


def public_names(package: str) -> list[str]:
    """Return the names that a package's stub lists, which are its `__all__`.

    Packages of the package are left out, and names of a plug-in that is not there.
    """
    listed = _read_stub(package).items()
    return sorted(
        name for name, module in listed if module != f"{package}.{name}" and _is_there(module)
    )


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
            # A package of the package is the module that it is.
            alias.name: f"{package}.{alias.name}" if node.module == package else str(node.module)
            for node in ast.parse(stub).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
    return _modules[package]
