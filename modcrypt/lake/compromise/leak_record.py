"""The record of a leak, beside the declaration: the data keys that a compromised key may open.

`apply` writes it before it answers a leak. Rewrapping keeps data keys, so a file whose data keys
are in the record is exposed whatever master key wraps them now. Data keys that are not in a
complete inventory were made after it. The record has fingerprints, no keys.

    {"kind": "file", "dataset": "d", "key": "pii@1", "file": "x.parquet", "data_keys": "0f..."}
    {"kind": "unread", "dataset": "d", "key": "pii@1", "file": "closed.parquet"}
    {"kind": "inventory", "dataset": "d", "key": "pii@1", "time": 1764430000.0, "files": 1}
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modcrypt.errors import FormatError
from modcrypt.io.places import Place
from modcrypt.keys.key import FINGERPRINT_LENGTH
from modcrypt.lake.files.file_states import FileState
from modcrypt.lake.files.key_choice import KeyChoice
from modcrypt.lake.record_file import append_lines, read_lines

MAX_RECORD = 1 << 30
"""Size limit of a record in bytes, far above that of ten million files."""

_SCHEMA = "modcrypt.lake.leak/1"


@dataclass(frozen=True)
class LeakRecord:
    """The data keys of a lake that are exposed, as far as is known since a leak."""

    path: Path
    # Fingerprints of the data keys that a compromised key may open, by the name of the dataset and
    # the key.
    exposed: dict[tuple[str, str], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    # Paths of the files that had these data keys, by the same.
    files: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    # Paths of files whose data keys could not be read yet, by the same.
    unread: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    # When the first complete inventory began, in seconds since 1970, by the same.
    started: dict[tuple[str, str], float] = field(default_factory=dict)

    def prints_of(self, dataset: str, choice: KeyChoice) -> Sequence[set[bytes]]:
        """Return sets of the fingerprints of data keys that a compromised key may open."""
        return [self.exposed[at] for at in _places(dataset, choice) if at in self.exposed]

    def list_files(self, dataset: str, choices: Iterable[KeyChoice]) -> set[str]:
        """Return the paths of files that had data keys which compromised keys may open."""
        places = {at for choice in choices for at in _places(dataset, choice)}
        return set[str]().union(*(self.files[at] for at in places if at in self.files))

    def is_unread(self, dataset: str, choice: KeyChoice, path: str) -> bool:
        """Return whether a file was never read since a key was called compromised."""
        return any(path in self.unread.get(at, ()) for at in _places(dataset, choice))

    def start_of(self, dataset: str, choice: KeyChoice) -> float | None:
        """Return when the inventory of a dataset for a key began; None if there is none."""
        starts = [self.started[at] for at in _places(dataset, choice) if at in self.started]
        return min(starts, default=None)

    def add_inventory(
        self, dataset: str, choices: Sequence[KeyChoice], started: float,
        files: Iterable[tuple[KeyChoice, FileState]],
    ) -> int | None:  # fmt: skip
        """Record the files whose data keys compromised keys may open, and that these are all.

        Args:
            started: When the inventory began, in seconds since 1970.
            files: The files, each with the key that may open it.

        Returns:
            The number of files by key; None if the record had all of it.

        Raises:
            OSError: The record cannot be written.
        """
        counts = dict.fromkeys(map(str, choices), 0)
        lines = []
        for choice, state in files:
            counts[str(choice)] += 1
            prints, where = set(split_prints(state.data_keys)), (dataset, str(choice))
            if not prints and state.path not in self.unread[where]:
                lines.append(_describe("unread", *where, file=state.path))
            elif not prints <= self.exposed[where] or (prints and state.path in self.unread[where]):
                about = {"file": state.path, "data_keys": state.data_keys.hex()}
                lines.append(_describe("file", *where, **about))
        for key, count in counts.items():
            if (dataset, key) not in self.started or any(line["key"] == key for line in lines):
                lines.append(_describe("inventory", dataset, key, time=started, files=count))
        if lines:
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            append_lines(self.path, text.encode(), MAX_RECORD)
            for line in lines:
                self._take(line)
        return sum(counts.values()) if lines else None

    def _take(self, line: dict[str, Any]) -> None:
        """Take a line over; raise LookupError, TypeError or ValueError if it is none."""
        where = str(line["dataset"]), str(line["key"])
        if line["kind"] == "inventory":
            self.started.setdefault(where, float(line["time"]))
        elif line["kind"] == "unread":
            self.unread[where].add(str(line["file"]))
        else:
            prints = bytes.fromhex(line["data_keys"])
            if line["kind"] != "file" or len(prints) % FINGERPRINT_LENGTH:
                raise ValueError(line["kind"])
            self.exposed[where].update(split_prints(prints))
            self.files[where].add(str(line["file"]))
            self.unread[where].discard(str(line["file"]))


@dataclass(frozen=True)
class LeakRecordFile:
    """The record beside a declaration, given by its path; it is read again if it changed."""

    declaration: str
    _known: dict[Any, LeakRecord] = field(default_factory=dict, init=False, repr=False)

    def read(self) -> LeakRecord:
        """Return the record as it is now; raise as `read_record`."""
        stamp = Place(None, str(record_path(self.declaration))).stamp()
        if stamp is None or stamp not in self._known:
            self._known.clear()
            self._known[stamp] = read_record(self.declaration)
        return self._known[stamp]


def _places(dataset: str, choice: KeyChoice) -> list[tuple[str, str]]:
    """Return where a record has a key: by its version, or as a whole."""
    return list(dict.fromkeys([(dataset, str(choice)), (dataset, choice.key)]))


def _describe(kind: str, dataset: str, key: str, **more: Any) -> dict[str, Any]:
    return {"schema": _SCHEMA, "kind": kind, "dataset": dataset, "key": key, **more}


def record_path(declaration: str) -> Path:
    """Return the path of the record beside a declaration."""
    return Path(declaration).with_suffix(".leaks.jsonl")


def read_record(declaration: str) -> LeakRecord:
    """Return the record beside a declaration; it is empty if there is none.

    Raises:
        FormatError: A line is not one of a record.
        ValueError: It is longer than `MAX_RECORD`.
        KeyRetrievalError: Another user may change the record.
        OSError: It cannot be read.
    """
    record = LeakRecord(record_path(declaration))
    for number, text in enumerate(read_lines(record.path, MAX_RECORD), 1):
        try:
            record._take(json.loads(text))
        except (LookupError, TypeError, ValueError, RecursionError):
            raise FormatError(
                f"{record.path}: line {number} is not a line of a record of leaks; restore the "
                "file, or remove it, and apply takes the inventory again"
            ) from None
    return record


def fingerprint_location(location: str) -> bytes:
    """Return a fingerprint for the data key of a file of a table, which no other file replaces."""
    name = location.encode("utf-8", "surrogateescape")
    return hashlib.blake2b(name, digest_size=FINGERPRINT_LENGTH).digest()


def split_prints(prints: bytes) -> Iterator[bytes]:
    """Yield the fingerprint of each key."""
    for start in range(0, len(prints), FINGERPRINT_LENGTH):
        yield prints[start : start + FINGERPRINT_LENGTH]
