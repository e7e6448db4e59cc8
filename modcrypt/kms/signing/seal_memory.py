"""The memory of a writer of its ledgers, so that older statements are not continued.

    {"format":"modcrypt-seal-memory","version":1,
     "datasets":{ID:{"/lake":{"sequence":7,"hash":HEX,"writers":[],"valid_for":null}}}}

The file of a signing key, `writer.key`, has `writer.key.seals` beside it. Keys of a key service,
and keys in folders where nothing can be written, have a file in `$XDG_STATE_HOME/modcrypt/seals`,
`~/.local/state` by default; other keys write there, too, in case their file is copied. Keys that no
file or service keeps remember as long as they live. Copies of a dataset have its id, so that what
is remembered is by id and place.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from modcrypt.errors import KeyMaterialError
from modcrypt.io.places import Place
from modcrypt.io.private_files import check_trusted, replace_private, state_folder
from modcrypt.kms.signing.ledger import Seen
from modcrypt.kms.signing.sealed_statements import Statement, is_hash, is_number
from modcrypt.kms.signing.signing_keys import SigningKey
from modcrypt.kms.signing.trusted_writers import parse_changes
from modcrypt.pkmt1.strict_json import require_members, strict_json

FORMAT = "modcrypt-seal-memory"

MAX_MEMORY = 16 << 20
"""Size limit of the file in bytes: enough for some ten thousand datasets."""
MAX_PLACES = 16
"""Largest number of places that are remembered of a dataset, the last ones."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """The newest statement about a dataset at a place that a key has signed."""

    sequence: int  # number of the statement
    hash: str  # hash of the statement, in hex
    writers: list[Any]  # changes of the writers, as JSON values
    valid_for: int | None  # seconds for which statements are valid; None without limit

    @property
    def seen(self) -> Seen:
        """The statement, to be compared with others."""
        return Seen(self.sequence, self.hash, parse_changes(self.writers))

    @classmethod
    def of(cls, statement: Statement) -> Remembered:
        """Return the memory of a statement."""
        writers = [change.encode() for change in statement.writers]
        return cls(statement.sequence, statement.hash, writers, statement.valid_for)


@dataclass
class SealMemory:
    """The newest statements that a signing key remembers, by ids of datasets and places."""

    datasets: dict[str, dict[str, Remembered]]

    def about(self, dataset: str | None, place: str) -> list[tuple[str, Remembered]]:
        """Return ids and newest statements of what was at a place.

        If nothing was, and the dataset with this id is known, it is a copy, which must not be older
        than what was signed elsewhere.
        """
        here = [(id_, places[place]) for id_, places in self.datasets.items() if place in places]
        elsewhere = self.datasets.get(dataset or "", {}).values()
        if here or not elsewhere:
            return here
        return [(dataset or "", max(elsewhere, key=lambda last: last.sequence))]

    def merge(self, others: Mapping[str, Mapping[str, Remembered]]) -> None:
        """Take over statements that are newer."""
        for id_, places in others.items():
            for place, last in places.items():
                self._take(id_, place, last)

    def note(self, statement: Statement, place: str) -> None:
        """Remember a statement that was published at a place."""
        assert statement.dataset is not None
        for places in self.datasets.values():  # another dataset may have been at this place
            if places is not self.datasets.get(statement.dataset):
                places.pop(place, None)
        self._take(statement.dataset, place, Remembered.of(statement))

    def _take(self, dataset: str, place: str, last: Remembered) -> None:
        places = self.datasets.setdefault(dataset, {})
        old = places.pop(place, last)
        places[place] = old if old.sequence > last.sequence else last
        while len(places) > MAX_PLACES:
            del places[next(iter(places))]


def recall(key: SigningKey) -> SealMemory:
    """Return the memory of a key, from all places where it may have been written.

    Raise KeyMaterialError if a file is malformed, KeyRetrievalError if others may write to it.
    """
    memory = SealMemory({})
    memory.merge(key.remembered)
    for path in _list_paths(key):
        memory.merge(_read(path))
    return memory


def check_memory(key: SigningKey) -> None:
    """Raise OSError if what a key remembers can certainly be written nowhere."""
    paths = _list_paths(key)
    if paths and not any(map(_may_be_written, paths)):
        raise OSError(errno.EACCES, f"no seal can be made: {_UNREMEMBERED}", str(paths[0]))


def _may_be_written(path: Path) -> bool:
    folder = next(parent for parent in path.parents if parent.exists())
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


_UNREMEMBERED = "its number cannot be remembered; set XDG_STATE_HOME to a folder that keeps it"


def remember(key: SigningKey, statement: Statement, place: str) -> None:
    """Remember a statement that a key has signed and that was published at a place.

    Raise OSError if it can be written nowhere; the statement stays published.
    """
    SealMemory(key.remembered).note(statement, place)
    paths, errors = _list_paths(key), list[OSError]()
    for path in paths:
        try:
            _update(path, key, statement, place)
        except OSError as error:
            errors.append(error)
    if paths and len(errors) == len(paths):
        raise OSError(
            errors[0].errno,
            f"seal number {statement.sequence} was written, but {_UNREMEMBERED}",
            str(paths[0]),
        )


def _list_paths(key: SigningKey) -> list[Path]:
    if key.kept_at is None:
        return []
    common = state_folder() / "seals" / f"{key.verifier.hex_id}.json"
    return [Path(f"{key.kept_at}.seals"), common] if key.kept_at else [common]


def _update(path: Path, key: SigningKey, statement: Statement, place: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # its lock needs it
    with Place(None, str(path)).lock():
        memory = SealMemory(_read(path))
        memory.merge(key.remembered)
        memory.note(statement, place)
        datasets = {
            id_: {place: asdict(last) for place, last in places.items()}
            for id_, places in memory.datasets.items()
        }
        document = {"format": FORMAT, "version": 1, "datasets": datasets}
        replace_private(path, json.dumps(document).encode())


def _read(path: Path) -> dict[str, dict[str, Remembered]]:
    try:
        with path.open("rb") as file:
            check_trusted(os.fstat(file.fileno()), f"the memory of seals, {path},")
            data = file.read(MAX_MEMORY + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        document = require_members(strict_json(data), "format", "version", "datasets")
        if document["format"] != FORMAT or document["version"] != 1 or len(data) > MAX_MEMORY:
            raise KeyMaterialError("other format or version, or too large")
        return {
            id_: {place: _parse(last) for place, last in places.items()}
            for id_, places in document["datasets"].items()
        }
    except (KeyMaterialError, AttributeError) as error:
        raise KeyMaterialError(
            f"{path}: not a memory of seals ({error}); restore it from a copy, or remove it and "
            "check each seal with `seals verify --at-least` before the next one"
        ) from None


def _parse(value: object) -> Remembered:
    members = require_members(value, "sequence", "hash", "writers", "valid_for")
    valid_for = members["valid_for"]
    if not is_number(members["sequence"]) or not is_hash(members["hash"]):
        raise KeyMaterialError("a dataset has no valid number or hash")
    if not (valid_for is None or is_number(valid_for)):
        raise KeyMaterialError("a dataset is valid for no number of seconds")
    parse_changes(members["writers"])
    return Remembered(**members)
