"""The record of a run over files: which of them are done, so that an interrupted run is taken up.

One file has the records of any number of runs; a run is told apart by what its lines say of it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeAlias

from modcrypt.errors import ModcryptError
from modcrypt.io.storage import Place
from modcrypt.pkmt1.external import store_of

__all__ = ["Record", "RunRecord", "Stamps", "read_record", "stamps_of", "unfinished"]

Stamps: TypeAlias = Sequence[Sequence[int | str] | None]
"""What tells files apart from later versions of them, None for one that isn't there."""


def unfinished(
    record: str | os.PathLike[str], what: str, new_master_keys: Mapping[str, str]
) -> bool:
    """Tell whether a record has a rotation that did not come to its end.

    Raises:
        OSError: the record can't be read.
    """
    done = read_record(record, _rotation(what, new_master_keys))
    return any("ended" not in told for told in done.values())


def read_record(path: str | os.PathLike[str], run: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Read what runs like this have done: path to the line about it, `ended` if its run has."""
    done: dict[str, dict[str, Any]] = {}
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


class RunRecord:
    """Which files of a run are done: a line of JSON for each, and one at its end.

    Args:
        path: of the record.
        run: what tells the run apart from others in the record, as JSON has it.
        is_done: tells whether what a line says of a file is all that is to be done with it.
        write: whether lines are added.
        alone: refuse a record that another run writes to. Needs `write`.
        kin: what runs have in common that `last_of_kin` tells of.

    Raises:
        BlockingIOError: another run writes to it.
        ValueError: something else is there.
        OSError: the record can't be read or written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run: Mapping[str, Any],
        is_done: Callable[[dict[str, Any]], bool],
        *,
        write: bool,
        alone: bool = False,
        kin: Mapping[str, Any] | None = None,
    ) -> None:
        self._run, self._is_done = dict(run), is_done
        _check_record(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0) if write else None
        try:
            if self._file is not None and alone:
                _lock(self._file.fileno(), os.fspath(path))
            self._done = read_record(path, self._run)
            self._of_kin = {} if kin is None else read_record(path, kin)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the record; others may write to it then."""
        if self._file is not None:
            self._file.close()

    def told(self, name: str, stamps: Stamps) -> dict[str, Any] | None:
        """Give the line about a file that is done, and is as it was left; else None."""
        told = self._done.get(name)
        if told is None or told.get("stamps") != stamps:
            return None
        try:
            return told if self._is_done(told) else None
        except (ModcryptError, KeyError, TypeError, ValueError):
            return None

    def last(self, name: str) -> dict[str, Any] | None:
        """Give the last line about a file, whatever has become of it since."""
        return self._done.get(name)

    def last_of_kin(self, name: str) -> dict[str, Any] | None:
        """Give the last line about a file of this run or any of its kin."""
        return self._of_kin.get(name)

    def note(self, name: str, stamps: Stamps | None, *, durable: bool = False, **told: Any) -> None:
        """Note what became of a file, and how it is left; None: it is not done yet.

        Args:
            durable: the line must be there before what follows, whatever happens.

        Raises:
            OSError: not all of the line could be written.
        """
        self._write({"path": name, **told, "stamps": stamps})
        if durable and self._file is not None:
            os.fdatasync(self._file.fileno())

    def end(self) -> None:
        """Note that the run has come to its end: the next one begins anew."""
        self._write({"end": True})

    def _write(self, told: dict[str, Any]) -> None:
        if self._file is not None:
            line = json.dumps({**told, **self._run}).encode()
            data = b"\n" + line + b"\n"  # whatever a crash has cut is a line of its own
            while data:  # a full disk takes a part, and fails on the rest
                data = data[self._file.write(data) :]


def _check_record(path: str | os.PathLike[str]) -> None:
    """Refuse to add lines to a Parquet file or an AGS1 stream: it may be one of the files."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        if file.read(4) in (b"PAR1", b"PARE", b"AGS1"):
            raise ValueError(f"{os.fspath(path)} is there, and is no record of a run")


def _lock(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(
            errno.EWOULDBLOCK, "another run writes to this record", path
        ) from None
    except OSError:  # of a file system without locks
        pass


class Record(RunRecord):
    """The record of a rotation.

    Args:
        path, is_done, write: as of `RunRecord`.
        what, new_master_keys: of the run; others in the record are none of its.

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
        super().__init__(path, _rotation(what, new_master_keys), is_done, write=write)

    def has(self, place: Place) -> bool:
        """Tell whether a file is done, and is as it was left, under what is still newest."""
        stamps = stamps_of(place)
        return stamps[0] is not None and self.told(place.full_name, stamps) is not None

    def add(self, place: Place, result: str, keys: int, under: set[tuple[str, str]]) -> None:
        """Note that a file is done, and what its keys are under by now."""
        stamps = stamps_of(place)
        self.note(place.full_name, stamps, result=result, keys=keys, under=sorted(under))


def _rotation(what: str, new_master_keys: Mapping[str, str]) -> dict[str, Any]:
    return {"what": what, "new_master_keys": dict(new_master_keys)}


def stamps_of(place: Place) -> list[list[int | str] | None]:
    """Tell a file and its external key material apart from later versions."""
    stamps = [place.stamp(), store_of(place).stamp()]
    return [None if stamp is None else list(stamp) for stamp in stamps]
