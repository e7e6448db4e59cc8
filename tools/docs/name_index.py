"""The public names by the module to import them from, for `docs/reference/api/names.md`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby

from tools.docs.links import ROOT


def draw_names() -> str:
    """Return a list for each module, with the first sentence about each name."""
    pages = {
        name: page.name
        for page in (ROOT / "docs/reference/api").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    }
    return "\n".join(_list_modules(pages))


def _list_modules(pages: dict[str, str]) -> Iterator[str]:
    split = sorted(name.rpartition(".")[::2] for name in pages)
    for module, names in groupby(split, key=lambda pair: pair[0]):
        yield f"## `{module}`\n"
        for _, name in names:
            path = f"{module}.{name}"
            yield f"- [`{name}`]({pages[path]}#{path}){_describe(module, name)}"
        yield ""


def _describe(module: str, name: str) -> str:
    """Return the first sentences about a name; those about constants are on their pages."""
    value = getattr(import_module(module), name)
    if not (inspect.isroutine(value) or inspect.isclass(value)):
        return ""
    return ": " + " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
