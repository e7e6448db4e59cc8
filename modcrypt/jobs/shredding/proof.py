"""Proof of shredding: try which keys still open and which do not: `prove_shredded`.

A key is gone if the file no longer contains it, and refused if the key service does not unwrap it.
An unavailable key service proves nothing, and neither does a file that can't be inspected. The
proof also searches for copies and leftovers around the files; `LIMITS` lists what it can't know.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias

from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.io.stores import locate
from modcrypt.jobs.engine import Job, run_job
from modcrypt.jobs.failures import describe_failure
from modcrypt.jobs.key_scan import resolve_decryption
from modcrypt.jobs.shredding.choice import Criteria, criteria_of
from modcrypt.jobs.shredding.removal import REMAINS
from modcrypt.jobs.shredding.trial import TEMPORARY, KeyProof, Trial, identify
from modcrypt.keys import hide_keys
from modcrypt.kms.key_tools import KeyTools
from modcrypt.parquet.crypto.properties import AnyDecryption
from modcrypt.parquet.datasets.discovery import is_dataset, list_files, list_sizes
from modcrypt.report.fact_sheet import FactSheet
from modcrypt.report.json_fields import JsonFields
from modcrypt.runtime.former_names import accept_former_names

LIMITS = (
    REMAINS,
    "Anyone who has read the data before, or had a data key, may have kept a copy. Processes that "
    "unwrapped a key keep it in memory; KeyTools keep it for their cache_lifetime_seconds.",
    "modcrypt examined only the named files and folders, at the time of the proof: not exports, "
    "caches, logs or other places to which data or wrapped keys were copied.",
    "A file without key metadata may have been written with keys that are stored elsewhere: "
    "modcrypt can't distinguish this.",
    "AGS1 streams are as readable as their key metadata, wherever that is stored.",
    "A file whose footer key is gone can't be authenticated: the proof relies on its unencrypted "
    "metadata. Unencrypted columns under an encrypted footer that no longer opens can't be "
    "detected, though their bytes exist.",
)
"""The limits of every proof."""

REFUSALS = (
    "Refused means that this key service refused this caller: another service may have the master "
    "key, another caller may be allowed, a disabled master key can be enabled, and a destroyed one "
    "may be in the service's backups; some services keep it for days."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenFile(JsonFields):
    """The findings about one file.

    Attributes:
        path: Path of the file.
        size: Size in bytes; None if the file could not be opened.
        sha256: SHA-256 of the examined file, in hex; None if it could not be opened.
        keys: Findings about the selected keys.
        leftover: Whether the caller did not name the file, and it was found near the named files.
        message: Reason why the file could not be inspected; empty if it could.
    """

    path: str
    size: int | None = None
    sha256: str | None = None
    keys: tuple[KeyProof, ...] = ()
    leftover: bool = False
    message: str = ""

    @classmethod
    def of_failure(cls, place: Place, error: Exception, *, leftover: bool = False) -> Self:
        """Return the result of a file that could not be examined; re-raise internal errors."""
        message = ": ".join(describe_failure(error))
        return cls(path=place.listed_name, message=message, leftover=leftover)


FileKey: TypeAlias = "tuple[ProvenFile, KeyProof]"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Proof(FactSheet):
    """A proof of shredding: what is no longer readable, what still is, and what is unknown.

    Attributes:
        time: Time of the examination, ISO 8601 in UTC.
        version: Version of modcrypt.
        criteria: Selection of keys.
        key_service: Name of the key service, as its client represents itself; None without one.
        files: Named files, then leftovers with findings.
        unmet: Names of columns that none of the files has, as far as their footers open.
        others: Paths of hidden files that are neither Parquet nor key material, and of AGS1
            streams.
        limits: Texts about what the proof can't know.
    """

    time: str
    version: str
    criteria: Criteria
    key_service: str | None
    files: tuple[ProvenFile, ...]
    unmet: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    limits: tuple[str, ...] = LIMITS

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for people: counts of files and keys."""
        return [
            ("Time", self.time),
            ("Files", f"{len(self.files):,}"),
            ("Keys no longer readable", f"{len(self.no_longer_readable):,}"),
            ("Still readable", f"{len(self.still_readable):,}"),
            ("Unknown", f"{len(self.unknown):,}"),
            ("Files not inspected", f"{len(self.unseen):,}"),
        ]

    def _select(self, *states: str) -> list[FileKey]:
        return [(file, key) for file in self.files for key in file.keys if key.state in states]

    @property
    def no_longer_readable(self) -> list[FileKey]:
        """Keys that are gone or refused, each with its file."""
        return self._select("gone", "refused")

    @property
    def refused(self) -> list[FileKey]:
        """Keys that the key service refuses; a service that never had them refuses them, too."""
        return self._select("refused")

    @property
    def still_readable(self) -> list[FileKey]:
        """Keys that open, and columns in plaintext, each with its file."""
        return self._select("readable")

    @property
    def unknown(self) -> list[FileKey]:
        """Keys whose state is not proven, each with its file."""
        return self._select("unknown")

    @property
    def unseen(self) -> list[ProvenFile]:
        """Files that could not be inspected."""
        return [file for file in self.files if file.message]

    @property
    def ok(self) -> bool:
        """True if all selected keys are proven unreadable; False if no key was found at all."""
        open_ends = self.still_readable or self.unknown or self.unseen or self.unmet
        return bool(self.no_longer_readable) and not open_ends

    def summary(self) -> dict[str, Any]:
        """Return everything but the files as JSON values."""
        return {
            "proof": "shredded",
            "ok": self.ok,
            "time": self.time,
            "version": self.version,
            "criteria": self.criteria.fields(),
            "key_service": self.key_service,
            "files": sum(not file.leftover for file in self.files),
            "leftovers": sum(file.leftover for file in self.files),
            "no_longer_readable": len(self.no_longer_readable),
            "refused": len(self.refused),
            "still_readable": len(self.still_readable),
            "unknown": len(self.unknown),
            "unseen": len(self.unseen),
            "unmet": list(self.unmet),
            "others": list(self.others),
            "limits": list(self.limits),
        }

    def fields(self) -> dict[str, Any]:
        """Return the proof as JSON values: the summary, with all files as `files`."""
        return {**self.summary(), "files": [file.fields() for file in self.files]}


@hide_keys
@accept_former_names(where="source", threads="jobs")
def prove_shredded(
    source: Any,
    tools: KeyTools | None = None,
    *,
    columns: Iterable[str] = (),
    master_keys: Iterable[str] = (),
    everything: bool = False,
    filesystem: Any = None,
    decryption: AnyDecryption | None = None,
    jobs: int | None = None,
    progress: Callable[[ProvenFile, int], object] | None = None,
) -> Proof:
    """Return a proof of what can still be read of the data that was to be shredded.

    modcrypt tries the remaining keys. It reads every file once to its end, for its hash, and writes
    nothing.

    Args:
        source: Path or URL of a file or a folder, or a list of files. In folders hidden files are
            examined, too; beside a single file, its copies and key material.
        tools: Key tools of the key service that is asked to unwrap the remaining keys; without
            them, the state of remaining keys stays unknown.
        columns: Dotted names of columns, as in `shred_keys`.
        master_keys: Ids of master keys, as in `shred_keys`.
        everything: Whether all keys are selected, as in `shred_keys`.
        filesystem: The pyarrow or fsspec filesystem of `source`.
        decryption: Decryption properties for files that do not store their AAD prefix; by default
            `tools.decryption()`.
        jobs: Number of files processed concurrently, 4 by default.
        progress: Function called in the calling thread with each file's result and the number of
            files.

    Raises:
        FileNotFoundError: `source` does not exist.
        ValueError, TypeError: An argument has a wrong value or type.
        OSError: A folder can't be listed.
    """
    wanted = criteria_of(columns, master_keys, everything)
    examination = Examination(start_trial(tools, wanted, decryption))
    named = list_files(source, filesystem)
    surroundings = list_surroundings(source, filesystem)
    job = Job(partial(examine_file, examination.trial), ProvenFile.of_failure)
    files = list(run_job(job, named, jobs=jobs, progress=progress))
    return examination.conclude(named, files, surroundings)


def start_trial(
    tools: KeyTools | None, wanted: Criteria, decryption: AnyDecryption | None
) -> Trial:
    """Return a trial for a proof; no key is tried without tools."""
    if tools is not None:
        tools.wrapper.forget()  # cached keys would hide that the service now refuses them
    return Trial(tools, wanted, resolve_decryption(tools, decryption))


class Surroundings(NamedTuple):
    """All files in the named folders, also hidden ones, and those beside single files; sorted."""

    within: list[Place]
    beside: list[Place]


def list_surroundings(where: Any, filesystem: Any) -> Surroundings:
    """List the files in and around what the caller names; raises as `prove_shredded`."""
    within: dict[str, Place] = {}
    beside: dict[str, Place] = {}
    for path_or_url in where if isinstance(where, list | tuple) else [where]:
        place = Place(*locate(path_or_url, filesystem))
        is_folder = is_dataset(path_or_url, filesystem)
        folder = place.path if is_folder else posixpath.dirname(place.resolve().path) or "."
        store = place.filesystem
        for path in list_sizes(store, folder, hidden=True, deep=is_folder, may_be_absent=True):
            file = Place(store, path)
            (within if is_folder else beside).setdefault(file.resolve().path, file)
    lists = [sorted(files.values(), key=lambda file: file.path) for files in (within, beside)]
    near = [file for file in lists[1] if file.resolve().path not in within]
    return Surroundings(lists[0], near)


class Examination:
    """The examination of files and their surroundings for a proof."""

    def __init__(self, trial: Trial) -> None:
        self._time = datetime.now(UTC).isoformat()
        self.trial = trial
        self._others: list[str] = []

    def conclude(
        self, named: Sequence[Place], files: Sequence[ProvenFile], surroundings: Surroundings
    ) -> Proof:
        """Examine the surroundings of the files, and return the proof."""
        files = (*files, *self._examine_surroundings(named, surroundings))
        tools = self.trial.tools
        refused = any(key.state == "refused" for file in files for key in file.keys)
        return Proof(
            time=self._time,
            version=importlib.metadata.version("modcrypt"),
            criteria=self.trial.wanted,
            key_service=None if tools is None else repr(tools.client),
            files=files,
            unmet=self.trial.unmet,
            others=tuple(sorted([*self._others, *self.trial.traces.streams])),
            limits=(*LIMITS, REFUSALS) if refused else LIMITS,
        )

    def _examine_surroundings(
        self, named: Sequence[Place], surroundings: Surroundings
    ) -> Iterator[ProvenFile]:
        """Yield the files around the named files that contain selected keys or an error."""
        known = {identify(place) for place in named}
        near = {place.path for place in surroundings.beside}
        rest = [place for places in surroundings for place in places]
        rest = [place for place in rest if identify(place) not in known]
        # Key material comes last, because files that refer to it show which file it belongs to.
        for place in sorted(rest, key=_may_be_store):
            if (file := self._examine_leftover(place, place.path in near)) is not None:
                yield file

    def _examine_leftover(self, place: Place, near: bool) -> ProvenFile | None:
        try:
            with open_source_at(place) as source:
                keys = self.trial.try_leftover(place, source, near)
                if keys is None:  # neither Parquet nor key material
                    if near and not self.trial.is_about(place):
                        return None
                    if not _mentions_keys(source):
                        self._others += [] if near else [place.listed_name]
                        return None
                    keys = [KeyProof(key="key material", state="unknown", why=_UNFINISHED)]
                return _make_proven_file(place, source, keys, leftover=True) if keys else None
        except Exception as error:
            failure = ProvenFile.of_failure(place, error, leftover=True)
            return None if near and not self.trial.is_about(place) else failure


def examine_file(trial: Trial, place: Place) -> ProvenFile:
    """Examine one of the named files."""
    with open_source_at(place) as source:
        keys = trial.try_file(place, source)
        return _make_proven_file(place, source, keys, leftover=False)


_UNFINISHED = (
    "key material in a truncated file, or a file of another kind; remove it if nobody writes to it"
)


def _make_proven_file(
    place: Place, source: Source, keys: list[KeyProof], *, leftover: bool
) -> ProvenFile:
    sha256 = hashlib.sha256()
    for part in _read_parts(source):
        sha256.update(part)
    place.check_unchanged(source.stamp)
    return ProvenFile(
        path=place.listed_name, size=source.size, sha256=sha256.hexdigest(), keys=tuple(keys),
        leftover=leftover,
    )  # fmt: skip


def _may_be_store(place: Place) -> bool:
    return "_KEY_MATERIAL_FOR_" in place.name or place.name.startswith(TEMPORARY)


def _mentions_keys(source: Source) -> bool:
    """Return whether a file contains complete or partial key material anywhere."""
    end = b""
    for part in _read_parts(source):
        text = end + bytes(part)
        if any(marker in text for marker in _MARKERS):
            return True
        end = text[-_LONGEST:]
    return False


_MARKERS = (b"PKMT1", b"wrappedDEK", b"wrappedKEK")
_LONGEST = max(map(len, _MARKERS)) - 1
_READ = 8 << 20  # bytes per read


def _read_parts(source: Source) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(_READ, source.size)))
    for start in range(0, source.size, _READ):
        part = buffer[: source.size - start]
        source.read_into(start, part)
        yield part
