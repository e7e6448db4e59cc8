"""Judge what a compromised key opens in a file: by the keys that wrap its data keys, and a record.

Nothing in a file says when its data keys were made. What the record does not know is unknown, and
unknown is not safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from modcrypt.lake.compromise.leak_record import LeakRecord, split_prints
from modcrypt.lake.declarations.declaration import AnyDataset
from modcrypt.lake.files.file_states import EXPOSED, FileState, KeyUse, State
from modcrypt.lake.files.key_choice import FormerRecipient, KeyChoice, find_replacements
from modcrypt.lake.spool import Memo

FindWraps = Callable[[Callable[[KeyUse], bool]], Collection[bytes]]
"""Function that returns the data keys of files that keys have wrapped before, as far as is known:
for each file, the fingerprints of all."""

_OPENED = frozenset({"declared", "plaintext", "old-keys", "other-policy", *EXPOSED})
"""States of files whose keys could be used; others keep their state, whose remedy comes first."""

_WHY = {
    "compromised": "its keys are wrapped under the compromised {key}",
    "rewrapped": "rewrapped, data keys unchanged since the leak of {key}",
    "unknown-age": "whether its data keys are older than the leak of {key} is unknown",
}
_WHY_FORMER = {
    "compromised": "the former {key} opens it",
    "rewrapped": "its data keys are those that the former {key} could open",
    "unknown-age": "whether the former {key} could open its data keys is unknown",
}


@dataclass(frozen=True)
class LeakJudge:
    """The judge of the files of one dataset."""

    dataset: AnyDataset
    choices: Sequence[KeyChoice]
    record: LeakRecord
    # Function that finds the data keys that some keys have wrapped before.
    find_wraps: FindWraps = lambda is_meant: ()
    _wraps: Memo[Collection[bytes]] = field(default_factory=Memo, init=False, repr=False)

    def judge(self, state: FileState, modified: float | None = None) -> FileState:
        """Return the state of a file with what compromised keys open.

        `modified` is when the file changed, in seconds since 1970; None if it is unknown.
        """
        found = [(self.find_exposure(choice, state, modified), choice) for choice in self.choices]
        for exposure in EXPOSED:
            keys = [choice for each, choice in found if each == exposure]
            former = [key for key in keys if isinstance(key, FormerRecipient)]
            named = ", ".join(map(str, keys))
            if len(former) < len(keys):
                return _expose(state, exposure, _WHY[exposure].format(key=named))
            if keys:
                return _expose(state, "former-recipient", _WHY_FORMER[exposure].format(key=named))
        return state

    def find_exposure(
        self, choice: KeyChoice, state: FileState, modified: float | None = None
    ) -> State | None:
        """Return the state in which a key leaves a file; None if it opens nothing in it."""
        if any(map(choice.matches, state.keys)):
            return "compromised"
        name = self.dataset.name
        for exposed in self.record.prints_of(name, choice):
            if any(each in exposed for each in split_prints(state.data_keys)):
                return "rewrapped"
        if state.data_keys in self._wraps.get(choice, lambda: self.find_wraps(choice.matches)):
            return "rewrapped"  # whatever its time, and whatever replaced the key since
        replacements = find_replacements(self.dataset, choice.key)
        if not any(choice.may_precede(use, replacements) for use in state.keys):
            return None
        started = self.record.start_of(name, choice)
        is_newer = started is not None and _is_since(modified, started)
        if is_newer and not self.record.is_unread(name, choice, state.path):
            return None
        return "unknown-age"

    def list_exposed(self, states: Iterable[FileState]) -> Iterator[tuple[KeyChoice, FileState]]:
        """Yield the files that compromised keys may open, with each of these keys.

        Files whose keys cannot be used are among them, without data keys.
        """
        for state in states:
            closed = not state.data_keys and state.state != "plaintext"
            for choice in self.choices if closed or state.state in EXPOSED else ():
                if (closed and not state.keys) or self.find_exposure(choice, state, 0.0):
                    yield choice, state


def _is_since(modified: float | None, started: float) -> bool:
    """Return whether a file changed after an inventory began; object stores cut off fractions."""
    if modified is None:
        return True
    return modified >= (math.floor(started) if modified.is_integer() else started)


def _expose(state: FileState, exposure: State, why: str) -> FileState:
    if state.state not in _OPENED or state.reason:
        return replace(state, message=f"{state.message}; {why}".removeprefix("; "))
    more = f"; {state.message}" if state.message else ""
    return replace(state, state=exposure, message=f"{why}{more}")
