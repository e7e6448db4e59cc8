"""The record of a rotation: which files are done, so that an interrupted run is taken up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from modcrypt.errors import ModcryptError
from modcrypt.kms.external import store_of
from modcrypt.storage import Place

__all__ = ["Record", "read_record", "unfinished"]


def unfinished(
    record: str | os.PathLike[str], what: str, new_master_keys: Mapping[str, str]
) -> bool:
    """Tell whether a record has a run that did not come to its end.

    Raises:
        OSError: the record can't be read.
    """
    done = read_record(record, what, new_master_keys)
    return any("ended" not in told for told in done.values())


def read_record(
    path: str | os.PathLike[str], what: str, new_master_keys: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Read what runs like this have done: path to the line about it, `ended` if its run has."""
    done: dict[str, dict[str, Any]] = {}
    run = {"what": what, "new_master_keys": dict(new_master_keys)}
    with suppress(FileNotFoundError), open(path, "rb") as lines:
        for line in lines:
            # A line that a crash has cut, or something else altogether.
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                told = json.loads(line)
                if {name: told[name] for name in run} != run:
                    continue
                if told.get("end") is True:
                    done = {name: {**one, "ended": True} for name, one in done.items()}
                else:
                    done[told["path"]] = told
    return done


class Record:
    """Which files of a run are done: a line of JSON for each, and one at its end.

    Args:
        path: of the record.
        what, new_master_keys: of the run; others in the record are none of its.
        is_done: tells whether what a line says of a file is all that is to be done with it.
        write: whether lines are added.

    Raises:
        OSError: the record can't be read or written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        what: str,
        new_master_keys: Mapping[str, str],
        is_done: Callable[[dict[str, Any]], bool],
        *,
        write: bool,
    ) -> None:
        self._is_done = is_done
        self._run = {"what": what, "new_master_keys": dict(new_master_keys)}
        self._done = read_record(path, what, new_master_keys)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0) if write else None

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def has(self, place: Place) -> bool:
        """Tell whether a file is done, and is as it was left, under what is still newest."""
        told = self._done.get(place.full_name)
        stamps = _stamps(place)
        if told is None or told.get("stamps") != stamps or stamps[0] is None:
            return False
        try:
            return self._is_done(told)
        except (ModcryptError, KeyError, TypeError, ValueError):
            return False

    def add(self, place: Place, result: str, keys: int, under: set[tuple[str, str]]) -> None:
        """Note that a file is done, and what its keys are under by now."""
        told = {"path": place.full_name, "result": result, "keys": keys}
        self._write({**told, "stamps": _stamps(place), "under": sorted(under)})

    def end(self) -> None:
        """Note that the run has come to its end: the next one begins anew."""
        self._write({"end": True})

    def _write(self, told: dict[str, Any]) -> None:
        if self._file is not None:
            line = json.dumps({**told, **self._run}).encode()
            self._file.write(b"\n" + line + b"\n")  # whatever a crash has cut is a line of its own


def _stamps(place: Place) -> list[list[int | str] | None]:
    """Tell a file and its external key material apart from later versions."""
    stamps = [place.stamp(), store_of(place).stamp()]
    return [None if stamp is None else list(stamp) for stamp in stamps]
