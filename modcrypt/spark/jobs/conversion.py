"""Conversion of files on an executor: encrypt, decrypt, re-key, mask or share.

Files whose destination is already up to date are skipped. modcrypt checks each file before the
work, and again if the work fails, as another attempt at the same task may have finished it.
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
from modcrypt.io.places import Place
from modcrypt.parquet.convert.decryptor import decrypt_parquet
from modcrypt.parquet.convert.encryptor import encrypt_parquet
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.datasets.discovery import Folder as WrittenFolder
from modcrypt.parquet.rewrite.file_rewrite import Change, Rewritten
from modcrypt.parquet.rewrite.rekey import mask_parquet, rekey_parquet, share_parquet
from modcrypt.spark.jobs.file_work import (
    File,
    Job,
    Row,
    describe_error,
    place_at,
    restrict_to_folders,
)
from modcrypt.spark.jobs.idempotence import (
    ExpectedMasks,
    NewKeys,
    find_open_difference,
    find_plaintext_difference,
    is_newer,
    plan_change,
    read_decrypted_shape,
    read_plain_shape,
)
from modcrypt.spark.jobs.task_files import MakeFilesystem
from modcrypt.spark.settings import Settings, check_reference, read_key

__all__ = ["Changes", "Conversion", "Converter"]

_TEXT, _LONG, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Changes of columns, as in `mask_parquet` or `share_parquet`; picklable.

    Attributes:
        only: Columns to share; None for all.
        null: Columns to replace by nulls.
        hashed: Columns to replace by hashes.
        drop: Columns to remove.
        hash_key: Reference to the hash key, `file:PATH` or `env:NAME`, as in `Settings`.

    Raises:
        ValueError: The reference is invalid, or is missing for hashed columns.
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
            raise ValueError("hashed columns need a hash_key; pass file:PATH or env:NAME")

    def change(self) -> Change:
        """Return the change with its hash key, read in this process; raises as `read_key`."""
        return Change(
            only=self.only,
            null=self.null,
            hashed=self.hashed,
            drop=self.drop,
            hash_key=None if self.hash_key is None else read_key(self.hash_key),
        )

    def list_unexpected_losses(self, done: Rewritten) -> Iterable[str]:
        """Yield the columns that were dropped or set to null only because their key is missing."""
        expected = {*self.null, *self.drop}
        for name in done.dropped + done.nulls:
            wanted = self.only is None or _is_in(name, self.only)
            if wanted and not _is_in(name, expected):
                yield name


def _is_in(name: str, groups: Iterable[str]) -> bool:
    return any(name == group or name.startswith(f"{group}.") for group in groups)


@dataclass(frozen=True, kw_only=True)
class Conversion(Job):
    """A job that converts files.

    Attributes:
        verb: Kind of conversion.
        source: Folder of the source files.
        destination: Folder of the converted files; None to replace the source files.
        decryption: Settings to decrypt the source files, if the verb needs them.
        encryption: Settings to encrypt the new files, if the verb needs them; to mask, None keeps
            the files' own keys.
        changes: Changes of columns, to mask or to share.
        overwrite: Whether to replace existing destinations that differ.
        dry_run: Whether to write nothing and only report what would be done.
        filesystem: Function that makes the filesystem of both folders.
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
        return self.process_each(files, work.convert_file, work.place)

    def target(self, name: str) -> str:
        """Return the name of the destination of a file."""
        if self.destination is None:
            return name
        return posixpath.join(self.destination, name[len(self.source) :].lstrip("/"))

    def make_failed_row(self, file: File, code: str, message: str) -> Row:
        """Return the row of a file that failed."""
        destination = File(self.target(file.name), 0).display_name
        more = {"destination": destination, "bytes_in": file.size}
        return {**super().make_failed_row(file, code, message), **more}


DONE = {
    "encrypt": "encrypted", "decrypt": "decrypted", "rekey": "rekeyed", "mask": "masked",
    "share": "shared",
}  # fmt: skip


class Converter:
    """A `Conversion` in one process, with its keys and the folders that it has made.

    Raises:
        KeyRetrievalError: Keys can't be retrieved in this process.
    """

    def __init__(self, job: Conversion, filesystem: Any) -> None:
        self._job, self._filesystem = job, filesystem
        self._in_place = job.destination is None
        self._new = None if job.encryption is None else NewKeys.from_settings(job.encryption)
        self._old = None if job.decryption is None else job.decryption.decryption()
        self._change = None if job.changes is None else job.changes.change()
        where = job.source if job.destination is None else job.destination
        self._folder = WrittenFolder(where, filesystem)
        self._made_folders: set[str] = set()
        self.place = self._place_of(where)

    def convert_file(self, file: File) -> Row:
        """Convert a file; return errors as results."""
        started = time.perf_counter()
        row = self._job.make_failed_row(file, "", "")
        try:
            row["result"], row["message"] = self._convert_if_needed(file.name)
            row["failed"] = False
            if row["result"] != "planned":
                row["bytes_out"] = _local_size(self._place_of(self._job.target(file.name)))
        except Exception as error:  # the job continues with the other files
            row["result"], row["message"] = describe_error(error)
        row["seconds"] = time.perf_counter() - started
        return row

    def _convert_if_needed(self, name: str) -> tuple[str, str]:
        target = self._job.target(name)
        source, destination = self._place_of(name), self._place_of(target)
        why = ""
        if exists := self._in_place or destination.stamp() is not None:
            difference = self.find_difference(source, destination)
            if difference is None:
                return "current", ""
            why = difference
            if not (self._job.overwrite or self._in_place):
                raise FileExistsError(
                    errno.EEXIST,
                    f"destination exists and differs ({why}); pass overwrite=True (--force) to "
                    "replace it",
                    target,
                )
        if self._job.dry_run:
            return "planned", why
        self._make_folder(target)
        try:
            message = self._convert(name, target, overwrite=exists)
        except (ModcryptError, OSError, ValueError) as error:
            if not self._is_already_made(error, source, destination):
                raise
            return "current", ""
        return DONE[self._job.verb], message

    def _is_already_made(self, error: Exception, source: Place, destination: Place) -> bool:
        """Return whether another attempt at the same task has already made the destination.

        In place, the file may then no longer open with the old keys, or be masked already.
        """
        number = error.errno if isinstance(error, OSError) else None
        if not (self._in_place or number in (errno.EEXIST, errno.ESTALE)):
            return False
        try:
            return self.find_difference(source, destination) is None
        except (ModcryptError, OSError, ValueError):
            return False

    def _convert(self, name: str, destination: str, *, overwrite: bool) -> str:
        """Convert one file as the verb says; return a message for the report."""
        target = restrict_to_folders(
            destination, [self._job.destination or self._job.source], self._filesystem
        )
        more = {"filesystem": self._filesystem, "overwrite": overwrite, "threads": 1}
        missing: Iterable[str] = ()
        match self._job.verb:
            case "encrypt":
                encrypt_parquet(name, target, self._keys.encryption, **more)
            case "decrypt":
                missing = decrypt_parquet(name, target, self._decryption, **more)
            case "rekey":
                done = rekey_parquet(name, target, self._decryption, self._keys.encryption, **more)
                missing = done.dropped + done.nulls
            case "mask" | "share":
                missing = self._apply_changes(name, target, more)
        names = ", ".join(missing)
        return f"without a key: {names}" if names else ""

    def _apply_changes(self, name: str, target: str | Place, more: dict[str, Any]) -> Iterable[str]:
        """Mask or share a file; return the columns without a key."""
        change, changes = self._change, self._job.changes
        assert change is not None
        assert changes is not None
        if change.only is not None:
            done = share_parquet(
                name, target, self._decryption, self._keys.encryption, change.only, **more
            )
        else:
            encryption = None if self._new is None else self._new.encryption
            done = mask_parquet(
                name, target, self._decryption, encryption, null=change.null, hashed=change.hashed,
                drop=change.drop, hash_key=change.hash_key, **more,
            )  # fmt: skip
        return changes.list_unexpected_losses(done)

    @property
    def _keys(self) -> NewKeys:
        assert self._new is not None  # the verb needs them
        return self._new

    @property
    def _decryption(self) -> FileDecryptionProperties:
        assert self._old is not None  # the verb needs them
        return self._old

    # --- checks whether the work is done ---------------------------------------------------------

    def find_difference(self, source: Place, destination: Place) -> str | None:
        """Return how an existing destination differs from the job's result; None if it does not.

        Raises:
            ModcryptError, ValueError, OSError: The source can't be opened or changed this way.
        """
        if self._in_place:
            return self._find_difference_in_place(source)
        _check_apart(source, destination)
        if not is_newer(destination, source):
            return "it is older than its source"
        if self._change is not None:
            shape, keys = plan_change(
                source, destination, self._decryption, self._change, self._new
            )
            return keys.find_difference(destination, shape)
        shape = (
            read_plain_shape(source)
            if self._old is None
            else read_decrypted_shape(source, self._old)
        )
        if self._new is None:
            return find_plaintext_difference(destination, shape)
        return self._new.find_difference(destination, shape)

    def _find_difference_in_place(self, place: Place) -> str | None:
        masked = None if self._change is None else ExpectedMasks(self._change)
        if self._new is not None:
            return self._new.find_difference(place, masked)
        if masked is not None:
            return find_open_difference(place, self._decryption, masked)
        return find_plaintext_difference(place, None)

    def compute_leaves(self, source: Place) -> list[tuple[str, ...]] | None:
        """Return the columns that remain after a change; None for a file that is already changed.

        Raises:
            ModcryptError, ValueError, OSError: The file can't be opened or changed this way.
        """
        assert self._change is not None
        if self._in_place and self.find_difference(source, source) is None:
            return None
        destination = source if self._in_place else None
        return plan_change(source, destination, self._decryption, self._change, self._new)[0].leaves

    def _place_of(self, name: str) -> Place:
        return place_at(name, self._filesystem)

    def _make_folder(self, target: str) -> None:
        """Create the folder of a destination, once."""
        job = self._job
        if job.destination is None:
            return
        inside = target[len(job.destination) :].lstrip("/")
        folder = posixpath.dirname(inside)
        if folder not in self._made_folders:
            self._folder.place(inside)
            self._made_folders.add(folder)


def _check_apart(source: Place, destination: Place) -> None:
    """Check that a destination is not the same file as its source.

    Raises:
        OSError: A link makes them the same file.
    """
    if source.resolve() == destination.resolve():
        raise OSError(
            errno.EINVAL,
            "destination is a link to the source; choose another destination",
            destination.path,
        )


def _local_size(place: Place) -> int | None:
    """Return the size of a local file; None in a store, to avoid a request per file."""
    return os.stat(place.path).st_size if place.filesystem is None else None
