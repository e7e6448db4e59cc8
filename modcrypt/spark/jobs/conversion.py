"""Conversion of the files of a folder as a job of Spark, with references to keys."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from modcrypt.errors import IntegrityError, KeyRetrievalError, KmsUnavailableError, ModcryptError
from modcrypt.jobs.conversion import Conversion, Verb
from modcrypt.jobs.leaks.sidecars import check_sidecars
from modcrypt.jobs.listing import File, Folder, MakeFilesystem, check_apart, list_tables
from modcrypt.kms.key_references import absolute_reference, check_reference, read_key
from modcrypt.kms.proof import Prove, WrapProof, check_prove
from modcrypt.kms.settings import Settings
from modcrypt.parquet.crypto.properties import is_keyed
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.spark.jobs.driver import PROBED_FILES, TablePlan, check_settings
from modcrypt.spark.jobs.file_work import FLAG, INT, LONG, REAL, TEXT, TEXTS, Row, TableJob


@dataclass(frozen=True, kw_only=True)
class TableConversion(TableJob):
    """A job that converts the files of a folder; picklable, so without keys.

    Raises:
        ValueError: The reference is invalid, or is missing for hashed columns; settings can't
            encrypt files; or columns without a key would be lost in place.
        TypeError: Keys are not given as `Settings`.
    """

    verb: Verb
    source: str
    destination: str | None
    decryption: Settings | None = None
    encryption: Settings | None = None
    change: Change = field(default_factory=Change)  # changes of columns, without the hash key
    # Reference to the hash key, `file:PATH` or `env:NAME`, as in `Settings`.
    hash_key: str | None = None
    overwrite: bool = False
    dry_run: bool = False
    prove: Prove = "first"  # which new wraps are proved, in each task
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", TEXT), ("destination", TEXT), ("result", TEXT), ("failed", FLAG),
            ("bytes_in", LONG), ("bytes_out", LONG), ("seconds", REAL),
            ("message", TEXT), ("code", INT),
            ("module", pa.struct([
                ("type", TEXT), ("row_group", LONG), ("column", LONG), ("path", TEXT),
                ("page", LONG),
            ])),
            ("columns", pa.map_(TEXT, TEXTS)), ("proved", LONG), ("worker", TEXT),
        ]
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.hash_key is not None:
            check_reference(self.hash_key)
            object.__setattr__(self, "hash_key", absolute_reference(self.hash_key))
        elif self.change.hashed:
            raise ValueError("hashed columns need a hash_key; pass file:PATH or env:NAME")
        check_prove(self.prove)
        where = self.source if self.destination is None else self.destination
        if self.decryption is not None:
            if self.destination is None and self.decryption.on_missing_key != "error":
                raise ValueError(
                    "in place, columns without a key would be lost for good; use "
                    'on_missing_key="error" or name a destination'
                )
            object.__setattr__(self, "decryption", self.decryption.under(self.source))
        if self.encryption is not None:
            self.encryption.check_writing()
            object.__setattr__(self, "encryption", self.encryption.under(where))

    def open(self, filesystem: Any) -> Conversion:
        """Return the conversion with its keys, read in this process."""
        change = vars(self.change)
        if self.hash_key is not None:
            change = {**change, "hash_key": read_key(self.hash_key, "hash key")}
        return Conversion(
            verb=self.verb,
            source=Folder(self.source, filesystem),
            destination=None if self.destination is None else Folder(self.destination, filesystem),
            decryption=None if self.decryption is None else self.decryption.decryption(),
            encryption=None if self.encryption is None else self.encryption.encryption(),
            change=Change(**change),
            overwrite=self.overwrite,
            dry_run=self.dry_run,
            proof=WrapProof(self.prove),
        )

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Convert the files."""
        conversion = self.open(filesystem)
        return self.process_each(files, lambda file: conversion.process(file).row())

    def make_failed_row(self, file: File, error: Exception) -> Row:
        """Return the row of a file that failed."""
        source = Folder(self.source)
        target = None if self.destination is None else Folder(self.destination)
        conversion = Conversion(verb=self.verb, source=source, destination=target)
        return conversion.fail(file, error).row()


def plan_conversion(
    source: Any, destination: Any, *, drop_summaries: bool = False, allow_leaks: bool = False,
    **how: Any,
) -> TablePlan:  # fmt: skip
    """Plan the conversion of the files of a folder, and check what needs no executor.

    `destination` is None to replace the source files; `how` has further attributes of the
    `TableConversion`. Raise as `encrypt_table`.
    """
    for name in ("decryption", "encryption"):
        if how.get(name) is not None:
            check_settings(how[name])
    make = how.get("filesystem")
    folder = Folder.at(source, make)
    if not folder.is_folder:
        exists = folder.place.stamp() is not None
        kind = NotADirectoryError if exists else FileNotFoundError
        number = errno.ENOTDIR if exists else errno.ENOENT
        raise kind(number, os.strerror(number), folder.name)
    target = None if destination is None else Folder.at(destination, make)
    if target is not None:
        check_apart(folder, target)
    job = TableConversion(
        source=folder.name, destination=None if target is None else target.name, **how
    )
    # A copy omits files that a write note hides from readers, as it would have no such note.
    files = list_tables([folder], as_read=target is not None)
    check_first_files(job, files)
    if job.encryption is not None and job.verb == "encrypt" and not allow_leaks:
        check_sidecars(
            folder.place, None if target is None else target.place,
            job.encryption.encryption(), drop_summaries=drop_summaries,
        )  # fmt: skip
    return job, files


def check_first_files(job: TableConversion, files: Sequence[File]) -> None:
    """Plan the work on the first files, so that wrong settings fail before anything is done.

    Errors of single files are left to the tasks, which report them as rows.

    Raises:
        ValueError: A file lacks named columns, or two files would have the same AAD prefix.
        KeyRetrievalError: Keys can't be retrieved or wrapped.
        IntegrityError: The settings open none of the first files.
    """
    conversion = job.open(None if job.filesystem is None else job.filesystem())
    if job.encryption is not None:
        job.encryption.check_distinct(conversion.target(file.name) for file in files)
    errors: list[ModcryptError] = []
    first = files[:PROBED_FILES]
    for file in first:
        try:
            conversion.check(file)
            break
        except KmsUnavailableError:
            raise
        except (KeyRetrievalError, IntegrityError) as error:
            errors.append(error)
        except (ModcryptError, OSError):
            pass
    # In place, the first files may be converted already and no longer open with the old keys.
    if len(errors) == len(first) and job.destination is not None:
        raise errors[0]
    new = conversion.encryption
    if is_keyed(new) and not job.dry_run:  # have the key service wrap keys once
        target = Folder(conversion.target(files[0].name), conversion.source.filesystem)
        new.for_file(target.place)
