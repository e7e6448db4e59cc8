"""What a writer remembers of its ledgers, so that older statements are not continued.

    {"format":"modcrypt-seal-memory","version":1,
     "datasets":{ID:{"sequence":7,"hash":HEX,"places":["/lake",...]}}}

The file of a signing key, `writer.key`, has `writer.key.seals` beside it. Keys of a key service,
and keys in folders where nothing can be written, have a file in `$XDG_STATE_HOME/modcrypt/seals`,
`~/.local/state` by default. Keys that no file or service keeps remember as long as they live.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from modcrypt.errors import KeyMaterialError
from modcrypt.io.places import Place
from modcrypt.io.private_files import check_trusted, replace_private, state_folder
from modcrypt.kms.signing.sealed_statements import Statement, is_hash, is_number
from modcrypt.kms.signing.signing_keys import SigningKey
from modcrypt.pkmt1.strict_json import require_members, strict_json

FORMAT = "modcrypt-seal-memory"

MAX_MEMORY = 16 << 20
"""Size limit of the file in bytes: enough for some ten thousand datasets."""
MAX_PLACES = 16
"""Largest number of places that are remembered of a dataset: copies have its id as well."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """The newest statement about a dataset that a writer has signed.

    Attributes:
        sequence: Number of the statement.
        hash: Hash of the statement, in hex.
        places: Paths and URLs of the dataset, the last one last.
    """

    sequence: int
    hash: str
    places: tuple[str, ...]


@dataclass
class SealMemory:
    """The newest statements that a signing key remembers, by the ids of their datasets."""

    datasets: dict[str, Remembered]

    def about(self, dataset: str | None, place: str) -> list[tuple[str, Remembered]]:
        """Return ids and newest statements of the datasets with this id, and at this place."""
        return [
            (id_, known)
            for id_, known in self.datasets.items()
            if id_ == dataset or place in known.places
        ]

    def merge(self, others: Mapping[str, Remembered]) -> None:
        """Take over statements that are newer."""
        for id_, other in others.items():
            if id_ not in self.datasets or self.datasets[id_].sequence < other.sequence:
                self.datasets[id_] = other

    def note(self, statement: Statement, place: str) -> None:
        """Remember a statement that was published at a place."""
        assert statement.dataset is not None
        for id_, other in self.datasets.items():  # another dataset may have been at this place
            places = tuple(name for name in other.places if name != place)
            self.datasets[id_] = replace(other, places=places)
        old = self.datasets.get(statement.dataset)
        places = (*(() if old is None else old.places), place)[-MAX_PLACES:]
        newest = Remembered(statement.sequence, statement.hash, places)
        if old is not None and old.sequence > newest.sequence:  # another process was faster
            newest = replace(old, places=places)
        self.datasets[statement.dataset] = newest


def recall(key: SigningKey) -> SealMemory:
    """Return what a key remembers, of all places where it may have been written.

    Raises:
        KeyMaterialError: A file is malformed.
        KeyRetrievalError: Others may write to a file.
        OSError: A file cannot be read.
    """
    memory = SealMemory(dict(key.remembered))
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

    Raises:
        OSError: It can be written nowhere; the statement stays published.
    """
    noted = SealMemory(key.remembered)
    noted.note(statement, place)
    paths, errors = _list_paths(key), list[OSError]()
    for path in paths:
        try:
            _update(path, statement, place)
        except OSError as error:
            errors.append(error)
        else:
            return
    if paths:
        raise OSError(
            errors[0].errno,
            f"seal number {statement.sequence} was written, but {_UNREMEMBERED}",
            str(paths[0]),
        )


def _list_paths(key: SigningKey) -> list[Path]:
    """Return the files of a key's memory; the first that can be written is used."""
    if key.kept_at is None:
        return []
    common = state_folder() / "seals" / f"{key.verifier.hex_id}.json"
    return [Path(f"{key.kept_at}.seals"), common] if key.kept_at else [common]


def _update(path: Path, statement: Statement, place: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # its lock needs it
    with Place(None, str(path)).lock():
        memory = SealMemory(_read(path))
        memory.note(statement, place)
        _write(path, memory)


def _read(path: Path) -> dict[str, Remembered]:
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
        return {id_: _parse(value) for id_, value in document["datasets"].items()}
    except (KeyMaterialError, AttributeError) as error:
        raise KeyMaterialError(
            f"{path}: not a memory of seals ({error}); restore it from a copy, or remove it and "
            "check each seal with `seals verify --at-least` before the next one"
        ) from None


def _parse(value: object) -> Remembered:
    members = require_members(value, "sequence", "hash", "places")
    if not is_number(members["sequence"]) or not is_hash(members["hash"]):
        raise KeyMaterialError("a dataset has no valid number or hash")
    return Remembered(members["sequence"], members["hash"], tuple(map(str, members["places"])))


def _write(path: Path, memory: SealMemory) -> None:
    document = {
        "format": FORMAT,
        "version": 1,
        "datasets": {id_: asdict(known) for id_, known in memory.datasets.items()},
    }
    replace_private(path, json.dumps(document).encode())
