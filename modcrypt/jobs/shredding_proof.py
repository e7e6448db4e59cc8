"""What can no longer be read, and what still can, by trying: `prove_shredded`.

A key is gone where a file says nothing of it any more, and refused where the key service does not
unwrap it. A key service that is unavailable proves nothing, and neither does a file that can't be
looked into. Copies and leftovers around the files are looked for, too: `LIMITS` says what nobody
can know.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from modcrypt.io.storage import Place, Source
from modcrypt.jobs.file_runs import each_file, told
from modcrypt.jobs.shredding import REMAINS, is_ags1, reading
from modcrypt.jobs.shredding_choice import Criteria, criteria_of
from modcrypt.jobs.shredding_trial import TEMPORARY, KeyProof, Trial, identity
from modcrypt.jobs.unlisted_files import files_around
from modcrypt.kms.key_tools import KeyTools
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.datasets.discovery import list_files

__all__ = ["KeyProof", "Proof", "ProvenFile", "prove_shredded"]

LIMITS = (
    REMAINS,
    "Who has read the data before, or had a data key, may have kept it. Processes that had "
    "unwrapped a key keep it in memory; KeyTools for their cache_lifetime_seconds.",
    "Only the named files and folders were looked at, as they were then: not exports, caches, logs "
    "or other places to which data or wrapped keys were copied.",
    "A file without key metadata may have been written with keys that somebody keeps elsewhere: "
    "that looks the same.",
    "AGS1 streams are as readable as their key metadata, wherever that is kept.",
    "A file whose footer key is gone can't be authenticated: what it says of itself is taken as it "
    "stands. Columns in plaintext under a sealed footer that opens no more can't be seen, though "
    "their bytes are there.",
)
"""What no proof can know."""

REFUSALS = (
    "Refused is what this key service refused to the caller who asked: another service may have "
    "the master key, another caller may be allowed, a disabled one can be enabled, and a destroyed "
    "one may be in the service's backups; some services keep it for days."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenFile:
    """What is known of one file.

    Attributes:
        path: of the file.
        size: in bytes; None where it could not be opened.
        sha256: of the file as it was looked at, in hex; None likewise.
        keys: that are meant, and what is known of them.
        leftover: whether it is none of the files that were named, but lies around them.
        message: why it could not be looked into; empty if it could.
    """

    path: str
    size: int | None = None
    sha256: str | None = None
    keys: tuple[KeyProof, ...] = ()
    leftover: bool = False
    message: str = ""

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return {**asdict(self), "keys": [key.fields() for key in self.keys]}


Found: TypeAlias = "tuple[ProvenFile, KeyProof]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What can no longer be read, what still can, and what could not be told.

    Attributes:
        time: when the files were looked at, ISO 8601 in UTC.
        version: of modcrypt.
        criteria: which keys are meant.
        key_service: that was asked, as its client calls itself; None for none.
        files: those that were named, then leftovers in which something was found.
        unmet: names of columns that none of the files has, as far as their footers open.
        others: hidden files that are neither Parquet nor key material, and AGS1 streams.
        limits: what the proof can't know, in words.
    """

    time: str
    version: str
    criteria: Criteria
    key_service: str | None
    files: tuple[ProvenFile, ...]
    unmet: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    limits: tuple[str, ...] = LIMITS

    def _with(self, *states: str) -> list[Found]:
        return [(file, key) for file in self.files for key in file.keys if key.state in states]

    @property
    def no_longer_readable(self) -> list[Found]:
        """Keys that are gone or refused, each with its file."""
        return self._with("gone", "refused")

    @property
    def refused(self) -> list[Found]:
        """Of these, keys that the key service refuses: one that never had them does so, too."""
        return self._with("refused")

    @property
    def still_readable(self) -> list[Found]:
        """Keys that open, and columns in plaintext, each with its file."""
        return self._with("readable")

    @property
    def unknown(self) -> list[Found]:
        """Keys of which nothing is proven, each with its file."""
        return self._with("unknown")

    @property
    def unseen(self) -> list[ProvenFile]:
        """Files that could not be looked into."""
        return [file for file in self.files if file.message]

    @property
    def ok(self) -> bool:
        """Whether what is meant is proven to be unreadable, with no open end; never of nothing."""
        open_ends = self.still_readable or self.unknown or self.unseen or self.unmet
        return bool(self.no_longer_readable) and not open_ends

    def summary(self) -> dict[str, Any]:
        """Give all but the files as what JSON takes."""
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
        """Give it as what JSON takes: the summary, in which `files` are all of them."""
        return {**self.summary(), "files": [file.fields() for file in self.files]}


def prove_shredded(
    where: Any,
    tools: KeyTools | None = None,
    *,
    columns: Iterable[str] = (),
    master_keys: Iterable[str] = (),
    everything: bool = False,
    filesystem: Any = None,
    decryption: FileDecryptionProperties | None = None,
    threads: int | None = None,
    progress: Callable[[ProvenFile, int], object] | None = None,
) -> Proof:
    """Look at files, by trying, for what can still be read of what was to be shredded.

    Every file is read to its end once, for its hash. Nothing is written.

    Args:
        where: path or URL of a file or a folder, or a list of files. In folders hidden files are
            looked at, too; beside a single file, its copies and key material.
        tools: of the key service that is asked to unwrap what is left; without them, key material
            that is left proves nothing.
        columns, master_keys, everything: as of `shred_keys`.
        filesystem: of pyarrow or fsspec, in which `where` is.
        decryption: for files whose AAD prefix is not stored; by default `tools.decryption()`.
        threads: files at once, 4 by default.
        progress: called, in the calling thread, with each file's result and the number of files.

    Raises:
        FileNotFoundError: `where` is not there.
        ValueError, TypeError: arguments of a wrong kind.
        OSError: a folder can't be listed.
    """
    wanted = criteria_of(columns, master_keys, everything)
    decryption = reading(tools, decryption)
    time = datetime.now(UTC).isoformat()
    named = list_files(where, filesystem)
    within, beside = files_around(where, filesystem)
    if tools is not None:
        tools.wrapper.forget()  # what was unwrapped before may unwrap no more
    looking = _Looking(Trial(tools, wanted, decryption))
    files = each_file(
        named, looking.file, name="modcrypt-proof", threads=threads, progress=progress
    )
    files += looking.around(named, within, beside)
    refused = any(key.state == "refused" for file in files for key in file.keys)
    return Proof(
        time=time,
        version=importlib.metadata.version("modcrypt"),
        criteria=wanted,
        key_service=None if tools is None else repr(tools.client),
        files=tuple(files),
        unmet=looking.trial.unmet,
        others=tuple(sorted(looking.others)),
        limits=(*LIMITS, REFUSALS) if refused else LIMITS,
    )


class _Looking:
    """One call of `prove_shredded`."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.others: list[str] = []

    def file(self, place: Place) -> ProvenFile:
        """Look at one of the files that were named; what goes wrong is a result."""
        try:
            with place.open() as source:
                keys = self.trial.of_file(place, source)
                self.others += [place.path] if is_ags1(source) else []
                return _looked_at(place, source, keys, leftover=False)
        except Exception as error:
            return ProvenFile(path=place.path, message=": ".join(told(error)))

    def around(
        self, named: list[Place], within: list[Place], beside: list[Place]
    ) -> Iterator[ProvenFile]:
        """Look at what lies around them; give that in which something was found.

        Args:
            named: the files that were looked at.
            within, beside: as of `files_around`.
        """
        known = {identity(place) for place in named}
        near = {place.path for place in beside}
        rest = [place for place in (*within, *beside) if identity(place) not in known]
        # Key material last: whose it is, the files that refer to it tell.
        for place in sorted(rest, key=_may_be_store):
            file = self._leftover(place, place.path in near)
            if file is not None:
                yield file

    def _leftover(self, place: Place, near: bool) -> ProvenFile | None:
        try:
            with place.open() as source:
                keys = self.trial.of_leftover(place, source, near)
                if keys is None:  # neither Parquet nor key material
                    if near and not self.trial.is_about(place):
                        return None
                    if not _mentions_keys(source):
                        self.others += [] if near else [place.path]
                        return None
                    keys = [KeyProof(key="key material", state="unknown", why=_UNFINISHED)]
                return _looked_at(place, source, keys, leftover=True) if keys else None
        except Exception as error:
            message = ": ".join(told(error))
            if near and not self.trial.is_about(place):
                return None
            return ProvenFile(path=place.path, leftover=True, message=message)


_UNFINISHED = (
    "key material in a file that is cut short, or of another kind: remove it, if nobody writes it"
)


def _looked_at(place: Place, source: Source, keys: list[KeyProof], *, leftover: bool) -> ProvenFile:
    sha256 = hashlib.sha256()
    for part in _parts(source):
        sha256.update(part)
    place.check_still(source)
    return ProvenFile(
        path=place.path, size=source.size, sha256=sha256.hexdigest(), keys=tuple(keys),
        leftover=leftover,
    )  # fmt: skip


def _may_be_store(place: Place) -> bool:
    return "_KEY_MATERIAL_FOR_" in place.name or place.name.startswith(TEMPORARY)


def _mentions_keys(source: Source) -> bool:
    """Tell whether there is key material anywhere in a file, whole or not."""
    end = b""
    for part in _parts(source):
        text = end + bytes(part)
        if any(word in text for word in _WORDS):
            return True
        end = text[-_LONGEST:]
    return False


_WORDS = (b"PKMT1", b"wrappedDEK", b"wrappedKEK")
_LONGEST = max(map(len, _WORDS)) - 1
_READ = 8 << 20  # bytes at once


def _parts(source: Source) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(_READ, source.size)))
    for start in range(0, source.size, _READ):
        part = buffer[: source.size - start]
        source.read_into(start, part)
        yield part
