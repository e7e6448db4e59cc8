"""Files that become others, on an executor: one that is as it should be already is left.

Each file is looked at before the work, and once more where the work fails: another attempt at the
same task may have done it meanwhile.
"""

from __future__ import annotations

import errno
import os
import posixpath
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from modcrypt.errors import ModcryptError
from modcrypt.io.storage import Place
from modcrypt.parquet.convert.decryptor import decrypt_parquet
from modcrypt.parquet.convert.encryptor import encrypt_parquet
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.datasets.discovery import Folder as WrittenFolder
from modcrypt.parquet.rewrite.file_rewrite import Change, Rewritten
from modcrypt.parquet.rewrite.rekey import mask_parquet, rekey_parquet, share_parquet
from modcrypt.spark.jobs.file_work import File, Job, Row, below, failure, place_at
from modcrypt.spark.jobs.idempotence import (
    Masked,
    NewKeys,
    decrypted_shape,
    is_newer,
    plain_shape,
    remade,
    why_not_opened,
    why_not_plain,
)
from modcrypt.spark.jobs.task_files import MakeFilesystem
from modcrypt.spark.settings import Settings, check_reference, key_at

__all__ = ["Changes", "Conversion", "Converter"]

_TEXT, _LONG, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What becomes of columns, as of `mask_parquet` or `share_parquet`; pickles.

    Attributes:
        only: columns to share; None for all.
        null, hashed, drop: columns to mask.
        hash_key: `file:PATH` or `env:NAME`, as of `Settings`.

    Raises:
        ValueError: no reference, or none for hashed columns.
    """

    only: tuple[str, ...] | None = None
    null: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    hash_key: str | None = None

    def __post_init__(self) -> None:
        if self.hash_key is not None:
            check_reference(self.hash_key)
        elif self.hashed:
            raise ValueError("hashed columns need a hash_key")

    def change(self) -> Change:
        """Give it with the hash key, read in the process that calls; raises as `key_at`."""
        return Change(
            only=self.only,
            null=self.null,
            hashed=self.hashed,
            drop=self.drop,
            hash_key=None if self.hash_key is None else key_at(self.hash_key),
        )

    def unmeant(self, done: Rewritten) -> Iterable[str]:
        """Name the columns that are not there, or null, though nobody said so: without a key."""
        meant = {*self.null, *self.drop}
        for name in done.dropped + done.nulls:
            wanted = self.only is None or _is_in(name, self.only)
            if wanted and not _is_in(name, meant):
                yield name


def _is_in(name: str, groups: Iterable[str]) -> bool:
    return any(name == group or name.startswith(f"{group}.") for group in groups)


@dataclass(frozen=True, kw_only=True)
class Conversion(Job):
    """Makes files of files.

    Attributes:
        verb: what is done.
        source: the folder that the files are in.
        destination: the folder that they are written to; None for their own places.
        decryption, encryption: as the verb needs them; to mask, None keeps the files' own keys.
        changes: to mask or to share.
    """

    verb: Literal["encrypt", "decrypt", "rekey", "mask", "share"]
    source: str
    destination: str | None
    decryption: Settings | None = None
    encryption: Settings | None = None
    changes: Changes | None = None
    overwrite: bool = False
    dry_run: bool = False
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", _TEXT), ("destination", _TEXT), ("result", _TEXT), ("failed", _FLAG),
            ("bytes_in", _LONG), ("bytes_out", _LONG), ("seconds", _REAL), ("message", _TEXT),
            ("worker", _TEXT),
        ]
    )  # fmt: skip

    def __post_init__(self) -> None:
        where = self.source if self.destination is None else self.destination
        if self.decryption is not None:
            object.__setattr__(self, "decryption", self.decryption.under(self.source))
        if self.encryption is not None:
            object.__setattr__(self, "encryption", self.encryption.under(where))

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Convert the files."""
        work = Converter(self, filesystem)
        return self.each(files, work.row, work.place)

    def target(self, name: str) -> str:
        """Give the name of what a file becomes."""
        if self.destination is None:
            return name
        return posixpath.join(self.destination, name[len(self.source) :].lstrip("/"))

    def failed(self, file: File, word: str, message: str) -> Row:
        """Give the row of a file that failed."""
        destination = File(self.target(file.name), 0).shown
        more = {"destination": destination, "bytes_in": file.size}
        return {**super().failed(file, word, message), **more}


DONE = {
    "encrypt": "encrypted", "decrypt": "decrypted", "rekey": "rekeyed", "mask": "masked",
    "share": "shared",
}  # fmt: skip


class Converter:
    """A `Conversion` in one process: its keys, and the folders that it has made there.

    Raises:
        KeyRetrievalError: keys can't be had here.
    """

    def __init__(self, job: Conversion, filesystem: Any) -> None:
        self._job, self._filesystem = job, filesystem
        self._in_place = job.destination is None
        self._new = None if job.encryption is None else NewKeys.of(job.encryption)
        self._old = None if job.decryption is None else job.decryption.decryption()
        self._change = None if job.changes is None else job.changes.change()
        where = job.source if job.destination is None else job.destination
        self._folder = WrittenFolder(where, filesystem)
        self._made: set[str] = set()
        self.place = self._place(where)

    def row(self, file: File) -> Row:
        """Convert a file; what goes wrong is a result."""
        started = time.perf_counter()
        row = self._job.failed(file, "", "")
        try:
            row["result"], row["message"] = self._converted(file.name)
            row["failed"] = False
            if row["result"] != "planned":
                row["bytes_out"] = _size(self._place(self._job.target(file.name)))
        except Exception as error:  # the others go on
            row["result"], row["message"] = failure(error)
        row["seconds"] = time.perf_counter() - started
        return row

    def _converted(self, name: str) -> tuple[str, str]:
        target = self._job.target(name)
        source, destination = self._place(name), self._place(target)
        why = ""
        if there := self._in_place or destination.stamp() is not None:
            found = self.why_not(source, destination)
            if found is None:
                return "current", ""
            why = found
            if not (self._job.overwrite or self._in_place):
                raise FileExistsError(
                    errno.EEXIST,
                    f"the destination is not what would be made, and is kept: {why}",
                    target,
                )
        if self._job.dry_run:
            return "planned", why
        self._make_folder(target)
        try:
            message = self._convert(name, target, overwrite=there)
        except (ModcryptError, OSError, ValueError) as error:
            if not self._is_made_meanwhile(error, source, destination):
                raise
            return "current", ""
        return DONE[self._job.verb], message

    def _is_made_meanwhile(self, error: Exception, source: Place, destination: Place) -> bool:
        """Tell whether another attempt at the same task was faster: what it made is as good.

        In place, it may have left what the old keys don't open, or what is masked already.
        """
        number = error.errno if isinstance(error, OSError) else None
        if not (self._in_place or number in (errno.EEXIST, errno.ESTALE)):
            return False
        try:
            return self.why_not(source, destination) is None
        except (ModcryptError, OSError, ValueError):
            return False

    def _convert(self, name: str, destination: str, *, overwrite: bool) -> str:
        """Do what the verb says; give what there is to tell of it."""
        target = below(destination, [self._job.destination or self._job.source], self._filesystem)
        more = {"filesystem": self._filesystem, "overwrite": overwrite, "threads": 1}
        missing: Iterable[str] = ()
        match self._job.verb:
            case "encrypt":
                encrypt_parquet(name, target, self._keys.encryption, **more)
            case "decrypt":
                missing = decrypt_parquet(name, target, self._opening, **more)
            case "rekey":
                done = rekey_parquet(name, target, self._opening, self._keys.encryption, **more)
                missing = done.dropped + done.nulls
            case "mask" | "share":
                missing = self._changed(name, target, more)
        names = ", ".join(missing)
        return f"without a key: {names}" if names else ""

    def _changed(self, name: str, target: str | Place, more: dict[str, Any]) -> Iterable[str]:
        """Mask or share; name the columns without a key."""
        change, changes = self._change, self._job.changes
        assert change is not None
        assert changes is not None
        if change.only is not None:
            done = share_parquet(
                name, target, self._opening, self._keys.encryption, change.only, **more
            )
        else:
            encryption = None if self._new is None else self._new.encryption
            done = mask_parquet(
                name, target, self._opening, encryption, null=change.null, hashed=change.hashed,
                drop=change.drop, hash_key=change.hash_key, **more,
            )  # fmt: skip
        return changes.unmeant(done)

    @property
    def _keys(self) -> NewKeys:
        assert self._new is not None  # the verb needs them
        return self._new

    @property
    def _opening(self) -> FileDecryptionProperties:
        assert self._old is not None  # the verb needs them
        return self._old

    # --- the look --------------------------------------------------------------------------------

    def why_not(self, source: Place, destination: Place) -> str | None:
        """Say why a destination, which is there, is not what would be made; None where it is.

        Raises:
            ModcryptError, ValueError, OSError: the source can't be opened, or not be changed so.
        """
        if self._in_place:
            return self._why_not_in_place(source)
        _check_apart(source, destination)
        if not is_newer(destination, source):
            return "it is older than its source"
        if self._change is not None:
            shape, keys = remade(source, destination, self._opening, self._change, self._new)
            return keys.why_not(destination, shape)
        shape = plain_shape(source) if self._old is None else decrypted_shape(source, self._old)
        if self._new is None:
            return why_not_plain(destination, shape)
        return self._new.why_not(destination, shape)

    def _why_not_in_place(self, place: Place) -> str | None:
        masked = None if self._change is None else Masked(self._change)
        if self._new is not None:
            return self._new.why_not(place, masked)
        if masked is not None:
            return why_not_opened(place, self._opening, masked)
        return why_not_plain(place, None)

    def leaves(self, source: Place) -> list[tuple[str, ...]] | None:
        """Give the columns that a change will leave of a file; None for one that is done already.

        Raises:
            ModcryptError, ValueError, OSError: it can't be opened, or not be changed so.
        """
        assert self._change is not None
        if self._in_place and self.why_not(source, source) is None:
            return None
        destination = source if self._in_place else None
        return remade(source, destination, self._opening, self._change, self._new)[0].leaves

    def _place(self, name: str) -> Place:
        return place_at(name, self._filesystem)

    def _make_folder(self, target: str) -> None:
        """Make the folder of a destination, once."""
        job = self._job
        if job.destination is None:
            return
        inside = target[len(job.destination) :].lstrip("/")
        folder = posixpath.dirname(inside)
        if folder not in self._made:
            self._folder.place(inside)
            self._made.add(folder)


def _check_apart(source: Place, destination: Place) -> None:
    """Refuse a destination that a link makes one with its source.

    Raises:
        OSError: they are one.
    """
    if source.real() == destination.real():
        raise OSError(errno.EINVAL, "the destination is the source, by a link", destination.path)


def _size(place: Place) -> int | None:
    """Give a local file's size; a store is not asked for each."""
    return os.stat(place.path).st_size if place.filesystem is None else None
