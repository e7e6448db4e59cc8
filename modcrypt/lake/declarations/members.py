"""Read the members of a dataset in a declaration, and note each mistake."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from modcrypt.errors import MAX_NAME, printable
from modcrypt.lake.declarations.declaration_faults import FaultList
from modcrypt.lake.declarations.inclusions import Inclusions
from modcrypt.lake.declarations.toml_lines import MemberPath

_FREE_ROTATION = ("rewrap_after", "max_kek_age")
"""Members about rotation that need no trust: with others, `apply` changes master keys."""

_DURATION = re.compile(r"([0-9]{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Members:
    """The members of one dataset; mistakes in them are added to the list of all.

    Args:
        faults: Mistakes found so far.
        path: Names that lead to the dataset in the declaration.
        inclusions: Takes what the declaration commands and includes, and resolves paths.
        given: Members of the dataset.
    """

    def __init__(
        self, faults: FaultList, path: MemberPath, inclusions: Inclusions, given: Mapping[str, Any]
    ) -> None:
        self.faults, self.path, self.inclusions, self.given = faults, path, inclusions, given
        self._before = faults.total

    @property
    def has_faults(self) -> bool:
        """True if a mistake was noted in the dataset."""
        return self.faults.total > self._before

    def fault(self, member: str | MemberPath, message: str, text: str = "") -> None:
        """Note a mistake in a member, given by its name or by the names that lead to it."""
        path = (member,) if isinstance(member, str) else member
        self.faults.add((*self.path, *path), message, text)

    @contextmanager
    def noting_errors(self, member: str, name: str | None = None) -> Iterator[None]:
        """Note an error about an included file of a name, and go on after the block."""
        try:
            yield
        except OSError as error:
            shown = printable(str(error.filename) if name is None else name, MAX_NAME)
            self.fault(member, f"{shown}: {error.strerror}")
        except ValueError as error:
            self.fault(member, str(error))

    def table(self, name: str, known: Collection[str] | None = None) -> Mapping[str, Any]:
        """Return a member that is a table, of any or of some known members; empty for another."""
        given = self.given.get(name, {})
        if not isinstance(given, Mapping):
            self.fault(name, f"{name} must be a table")
            return {}
        if known is not None:
            self.faults.check_names((*self.path, name), given, known)
        return given

    def rotation(self, known: Sequence[str]) -> dict[str, float]:
        """Return the durations in the table `rotation`, such as "90d", in seconds."""
        given, seconds = self.table("rotation", known), {}
        self.inclusions.note_all((*self.path, "rotation"), given, but=_FREE_ROTATION)
        for name in known:
            match = _DURATION.fullmatch(str(given.get(name, "")))
            if match is not None:
                seconds[name] = float(int(match[1]) * _SECONDS[match[2]])
            elif name in given:
                message = f"{name} must be a number of minutes, hours, days or weeks, such as 90d"
                self.fault(("rotation", name), message)
        return seconds

    def writers(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the lines of the writers' keys, which files may contain."""
        with self.noting_errors("signed_by"):
            return self.inclusions.writers((*self.path, "signed_by"), names)
        return ()
