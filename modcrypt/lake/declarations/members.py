"""Read the members of a dataset in a declaration, and note each mistake."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from modcrypt.errors import MAX_NAME, printable
from modcrypt.lake.declarations.declaration_faults import FaultList, MemberPath
from modcrypt.lake.declarations.inclusions import Inclusions
from modcrypt.lake.erasure.erasures import Erasure, list_erasure_faults, make_erasure
from modcrypt.settings.setting import Setting, list_faults

_FREE_ROTATION = ("rewrap_after", "max_kek_age")
"""Members about rotation that need no trust: with others, `apply` changes master keys."""

_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Members:
    """The members of one dataset; mistakes in them are added to the list of all.

    Args:
        faults: Mistakes found so far.
        path: Names that lead to the dataset in the declaration.
        inclusions: Takes what the declaration commands and includes, and resolves paths.
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

    def take(
        self, known: Mapping[str, Setting], *path: str, others: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the members of a table that are as they must be; note faults of the rest.

        Args:
            known: Settings of the members.
            path: Names that lead to the table in the dataset; none for the dataset itself.
            others: Names of members that the table may have, but that are not taken.
        """
        given = self.given
        for name in path:
            given = given.get(name, {})
            if not isinstance(given, Mapping):  # noted where the table is taken
                return {}
        self.faults.check_names((*self.path, *path), given, [*known, *others])
        faults = list_faults(known.values(), given)
        for name, messages in faults.items():
            for message in messages:
                self.fault((*path, name), message)
        return {name: given[name] for name in given.keys() & known.keys() - faults.keys()}

    def note_commands(self, given: Mapping[str, Any], known: Mapping[str, Setting]) -> None:
        """Note the members that only a trusted declaration may have."""
        free = [name for name, setting in known.items() if setting.free]
        self.inclusions.note_all(self.path, given, but=free)

    def rotation(self, known: Mapping[str, Setting]) -> dict[str, float]:
        """Return the durations in the table `rotation`, such as "90d", in seconds."""
        given = self.take(known, "rotation")
        self.inclusions.note_all((*self.path, "rotation"), given, but=_FREE_ROTATION)
        return {name: float(int(text[:-1]) * _SECONDS[text[-1]]) for name, text in given.items()}

    def erased(
        self, given: Mapping[str, Any], partitions: Sequence[str] | None
    ) -> tuple[Erasure, ...]:
        """Return the statements about erased files, as far as they have no mistake.

        `partitions` is as in `list_erasure_faults`.
        """
        stated = given.get("erased", ())
        faults = [fault for each in stated for fault in list_erasure_faults(each, partitions)]
        for fault in faults:
            self.fault("erased", fault)
        return () if faults else tuple(map(make_erasure, stated))

    def writers(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the lines of the writers' keys, which files may contain."""
        with self.noting_errors("signed_by"):
            return self.inclusions.writers((*self.path, "signed_by"), names)
        return ()
