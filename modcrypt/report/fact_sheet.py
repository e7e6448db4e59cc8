"""Short representations of results: a line for a terminal, and a table for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from modcrypt.errors import printable

MAX_TEXT = 200
"""Length limit of a name or value in a representation, in characters; longer ones are cut."""


class FactSheet:
    """A result whose facts represent it; its full contents are its attributes."""

    __slots__ = ()

    def facts(self) -> Sequence[tuple[str, str]]:
        """Return labels and values for people."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = ", ".join(f"{label.lower()}: {_shorten(value)}" for label, value in self.facts())
        name = getattr(self, "name", "")
        return f"<{type(self).__name__}{_shorten(f' {name}' if name else '')}: {facts}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks, without anything that loads or runs."""
        import html

        rows = "".join(
            f"<tr><th>{html.escape(label)}</th><td>{html.escape(_shorten(value))}</td></tr>"
            for label, value in self.facts()
        )
        title = html.escape(_shorten(f"{type(self).__name__} {getattr(self, 'name', '')}".strip()))
        return f"<table><caption>{title}</caption>{rows}</table>"


class DatasetSummary(FactSheet):
    """A result about one dataset, whose summary is one line that begins with its name."""

    _label = "Result"

    def summary(self) -> str:
        """Return the result as one line for people."""
        raise NotImplementedError

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for people: the dataset, and the summary."""
        name, _, text = self.summary().partition(": ")
        return [("Dataset", name), (self._label, text)]


def _shorten(text: str) -> str:
    return printable(text, MAX_TEXT)
