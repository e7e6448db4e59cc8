"""The files and columns that are erased: a statement names them, and their keys are gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from modcrypt.errors import KeyNotFoundError
from modcrypt.io.places import Place
from modcrypt.lake.erasure.erasures import GONE, NOT_ERASED, Erasures
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.lake.files.file_states import EXPOSED, FileState
from modcrypt.lake.files.lake_files import LakeFile
from modcrypt.lake.key_ages import KeyAges
from modcrypt.report.text import format_count
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.runtime.log import LOGGER

OnErased: TypeAlias = Literal["skip", "raise"]
"""Treatment of erased files and columns: leave them out with a warning, or raise."""

_OPEN = (*EXPOSED, "declared", "plaintext", "other-policy", "old-keys")
"""States of files whose keys were retrieved, unless an error is their reason."""


def judge_state(state: FileState, erasures: Erasures) -> FileState:
    """Return the state of a file with what is declared of its erasure.

    A file whose key service is unavailable or refuses stays unreadable: its keys may return.
    """
    if (erasure := erasures.find(state.path)) is None:
        return state
    if state.state == "unreadable" and state.reason in GONE:
        return replace(state, state="erased", message=f"erased {erasure}")
    if state.state not in _OPEN or (state.state == "other-policy" and state.reason):
        return state
    message = f"it is declared as erased ({erasure}), but opens"
    return replace(state, state="not-erased", reason=NOT_ERASED, message=message)


@dataclass(frozen=True)
class ErasedFiles:
    """The erased files and columns of a dataset, which its readers leave out."""

    policies: DatasetPolicies
    on_erased: OnErased = "skip"
    _warned: list[str] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.on_erased not in ("skip", "raise"):
            raise ValueError('on_erased must be "skip" or "raise"')

    @cached_property
    def _examination(self) -> FooterExamination:
        return FooterExamination(self.policies, KeyAges(self.policies.client))

    def _examine(self, place: Place) -> FileState:
        policies = self.policies
        file = LakeFile(policies.path_of(policies.find_listed(place) or place), 0, "")
        return judge_state(self._examination.run(file), policies.dataset.erasures)

    def find_erased(self, places: Iterable[Place]) -> set[str]:
        """Return the paths of those files that are erased; log a warning with their number.

        Only files that a statement names are opened. Raise KeyNotFoundError if a file is erased,
        and `on_erased` is "raise".
        """
        erasures = self.policies.dataset.erasures
        if not erasures.statements:
            return set()
        if found := {place.path for place in places if self.is_erased(place)}:
            count = format_count(len(found), "file")
            LOGGER.warning("%s: %s left out as erased", self.policies.dataset.name, count)
        return found

    def is_erased(self, place: Place) -> bool:
        """Return whether a file is erased; raise as `find_erased`."""
        listed = self.policies.find_listed(place)
        erasures = self.policies.dataset.erasures
        if listed is None or not erasures.find(self.policies.path_of(listed)):
            return False
        state = self._examine(place)
        if state.state == "erased" and self.on_erased == "raise":
            raise KeyNotFoundError(
                f'{place.full_name}: {state.message}; pass on_erased="skip" to leave it out'
            )
        return state.state == "erased"

    def must_open(self, place: Place, column: str) -> bool:
        """Return whether a column without its key is an error, because its erasure is declared."""
        path, erasures = self.policies.path_of(place), self.policies.dataset.erasures
        if self.on_erased != "raise" or not erasures.statements:
            return False
        return bool(erasures.find(path) or erasures.find_columns(path, [column]))

    def has_erased_columns(self, place: Place) -> bool:
        """Return whether columns of a file are erased, and may be left out; log a warning."""
        # Then the keys of all other columns can be retrieved, so that nothing else is missing.
        policies = self.policies
        path, erasures = policies.path_of(place), policies.dataset.erasures
        if self.on_erased == "raise" or not erasures.names(path) or erasures.find(path):
            return False
        state = self._examine(place)
        if state.state not in _OPEN or state.reason:
            return False
        if not self._warned:
            self._warned.append(path)
            LOGGER.warning("%s: erased columns are read as nulls", policies.dataset.name)
        return True
