"""Conversion of the files of a folder as a job of Spark, with references to keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from modcrypt.jobs.conversion import Conversion, Verb
from modcrypt.jobs.listing import File, Folder, MakeFilesystem
from modcrypt.kms.key_references import absolute_reference, check_reference, read_key
from modcrypt.kms.settings import Settings
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.spark.jobs.file_work import Job, Row

_TEXT, _LONG = pa.string(), pa.int64()


@dataclass(frozen=True, kw_only=True)
class TableConversion(Job):
    """A job that converts the files of a folder; picklable, so without keys.

    Attributes:
        verb: Kind of conversion.
        source: Folder of the source files.
        destination: Folder of the converted files; None to replace the source files.
        decryption: Settings to decrypt the source files, if the verb needs them.
        encryption: Settings to encrypt the new files, if the verb needs them; to mask, None keeps
            the files' own keys.
        change: Changes of columns, without the hash key.
        hash_key: Reference to the hash key, `file:PATH` or `env:NAME`, as in `Settings`.
        overwrite: Whether to replace existing destinations that differ.
        dry_run: Whether to write nothing and only report what would be done.
        filesystem: Function that makes the filesystem of both folders.

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
    change: Change = field(default_factory=Change)
    hash_key: str | None = None
    overwrite: bool = False
    dry_run: bool = False
    filesystem: MakeFilesystem | None = None

    schema = pa.schema(
        [
            ("path", _TEXT), ("destination", _TEXT), ("result", _TEXT), ("failed", pa.bool_()),
            ("bytes_in", _LONG), ("bytes_out", _LONG), ("seconds", pa.float64()),
            ("message", _TEXT), ("code", pa.int32()),
            ("module", pa.struct([
                ("type", _TEXT), ("row_group", _LONG), ("column", _LONG), ("path", _TEXT),
                ("page", _LONG),
            ])),
            ("columns", pa.map_(_TEXT, pa.list_(_TEXT))), ("worker", _TEXT),
        ]
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.hash_key is not None:
            check_reference(self.hash_key)
            object.__setattr__(self, "hash_key", absolute_reference(self.hash_key))
        elif self.change.hashed:
            raise ValueError("hashed columns need a hash_key; pass file:PATH or env:NAME")
        where = self.source if self.destination is None else self.destination
        if self.decryption is not None:
            self._check_in_place(self.decryption)
            object.__setattr__(self, "decryption", self.decryption.under(self.source))
        if self.encryption is not None:
            self.encryption.check_writing()
            object.__setattr__(self, "encryption", self.encryption.under(where))

    def _check_in_place(self, decryption: Settings) -> None:
        if self.destination is None and decryption.on_missing_key != "error":
            raise ValueError(
                'in place, columns without a key would be lost for good; use on_missing_key="error"'
                " or name a destination"
            )

    def open(self, filesystem: Any) -> Conversion:
        """Return the conversion with its keys, read in this process.

        Raises:
            KeyRetrievalError: Keys can't be retrieved in this process.
        """
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
        )

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Convert the files."""
        conversion = self.open(filesystem)
        return self.process_each(files, lambda file: conversion.run(file).row(), filesystem)

    def make_failed_row(self, file: File, error: Exception) -> Row:
        """Return the row of a file that failed."""
        source = Folder(self.source)
        target = None if self.destination is None else Folder(self.destination)
        conversion = Conversion(verb=self.verb, source=source, destination=target)
        return conversion.make_failure(file, error).row()
