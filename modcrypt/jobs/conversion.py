"""Conversion of files: encrypt, decrypt, re-key, mask or share, here or on an executor of Spark.

modcrypt does not touch a destination that is already up to date; the result is `current`. It
inspects the destination before the work, and again if the work fails, because another attempt may
have finished it meanwhile.
"""

from __future__ import annotations

import errno
import os
import posixpath
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from modcrypt.errors import ModcryptError, printable
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.jobs.engine import Job, Progress
from modcrypt.jobs.failures import describe, module_fields
from modcrypt.jobs.leaks.checksums import remove_stale_checksum
from modcrypt.jobs.listing import File, Folder
from modcrypt.kms.keyed_encryption import KeyedEncryption
from modcrypt.kms.proof import WrapProof
from modcrypt.parquet.crypto.properties import (
    Encryption,
    FileDecryptionProperties,
    FileEncryptionProperties,
    is_keyed,
)
from modcrypt.parquet.rewrite.changes import Change

if TYPE_CHECKING:  # each command loads what it needs
    from modcrypt.jobs.idempotence.shapes import Difference
    from modcrypt.jobs.run_record import Record

ConversionVerb: TypeAlias = Literal["encrypt", "decrypt", "rekey", "mask", "share"]

DONE = {
    "encrypt": "encrypted", "decrypt": "decrypted", "rekey": "rekeyed", "mask": "masked",
    "share": "shared",
}  # fmt: skip
"""The result of a file that a verb has converted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedFile:
    """The result of a conversion for one file."""

    path: str
    destination: str  # name of the destination; the source's in place
    # The verb's entry in `DONE`; `"current"`, the destination is up to date; `"planned"` in a dry
    # run; `"erased"`, the file was left out, because its keys are gone by declaration;
    # `"different"`, the destination is encrypted, but not as these keys and options say; or an
    # error code.
    result: str
    message: str = ""  # message of the error, or columns that are missing without their key
    code: int = 0  # exit code for the failure; 0 without one
    module: Mapping[str, Any] | None = None  # module that a failure concerns, as fields for JSON
    bytes_in: int | None = None
    # Size of the destination; None in a store, and if it was not written.
    bytes_out: int | None = None
    seconds: float = 0.0
    # Columns by what was done to them, as in `Rewritten`; for `decrypt`, `dropped` and `nulls`
    # without their key.
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    proved: int = 0  # number of new wraps that the key service unwrapped again for the file

    @property
    def failed(self) -> bool:
        """True if the file was not converted, and is not up to date."""
        return self.code != 0

    def fields(self) -> dict[str, Any]:
        """Return the result as values for JSON."""
        return {
            "source": self.path,
            "destination": self.destination,
            "result": self.result,
            "message": self.message,
            "module": self.module,
            "source_bytes": self.bytes_in,
            "destination_bytes": self.bytes_out,
            "seconds": round(self.seconds, 6),
            "proved": self.proved,
            **self.columns,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ConvertedFile:
        """Return the result in a row of a report."""
        return cls(**{name: row[name] for name in cls.__slots__})


class DifferentError(FileExistsError):
    """The destination is encrypted, but not as the keys and options of the job specify."""

    word = "different"


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A conversion of files in one process, with its keys.

    A file is converted in this order, so that the process can be killed at any step:

    1. The record, or a look at the destination, may show that it is up to date.
    2. In place, a file with hashes must not be one that an interrupted run has replaced: hashes
       must not be hashed again.
    3. In place, the record notes that the file is about to be replaced, on disk.
    4. The result is published as a whole.
    5. If that fails, the destination is looked at again: another attempt at the task may have made
       it.
    6. The record notes the file as finished, last.
    """

    verb: ConversionVerb
    source: Folder  # folder of the source files, or a single file
    # Folder of the converted files, or a file; None to replace the source files.
    destination: Folder | None
    decryption: FileDecryptionProperties | None = None
    # Properties of the new files, if the verb needs them; to mask, None keeps the files' own keys.
    encryption: Encryption | None = None
    change: Change = field(default_factory=Change)
    overwrite: bool = False
    dry_run: bool = False
    # Whether to replace a file in place that is as the keys say, because its data keys leaked.
    renew: bool = False
    threads: int | None = 1  # number of threads for each file, as `encrypt_parquet` takes it
    record: Record | None = None  # record that caches which files are up to date
    # Function called with the bytes done of a file, in the thread that converts it.
    progress: Progress | None = None
    # Proofs of the new wraps; the files of a run share them.
    proof: WrapProof = field(default_factory=WrapProof)
    _made_folders: set[str] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        in_place = self.destination is None
        if isinstance(self.encryption, KeyedEncryption) and (in_place or self.overwrite):
            proved = self.encryption.with_proof(self.proof, replaces=in_place)
            object.__setattr__(self, "encryption", proved)

    def run(self, file: File) -> ConvertedFile:
        """Return the result of a file, also of one that failed, with the duration of the work."""
        started = time.perf_counter()
        done = Job(self.process, self.fail).run(file)
        return replace(done, seconds=time.perf_counter() - started)

    def fail(self, file: File, error: Exception) -> ConvertedFile:
        """Return the result of a file that failed."""
        failure = describe(error)
        module = None if failure.module is None else module_fields(failure.module)
        return self._make_result(
            file, failure.word, message=failure.message, code=failure.code, module=module
        )

    def process(self, file: File) -> ConvertedFile:
        """Convert a file, unless its destination is up to date.

        Raises:
            DifferentError: The destination is encrypted in another way, and is not to be replaced.
            FileExistsError: The destination is another file, and is not to be replaced.
            UnsupportedFormatError: The names of its folders may state values that are masked.
        """
        self.change.check_path(self.source.inside(file.name))
        source, target = file.place, self._target_place(file.name)
        if (of_file := getattr(self.encryption, "of_file", None)) is not None:
            encryption = of_file(source, target, self.decryption, self.change)
            return replace(self, encryption=encryption).process(file)
        if self._is_erased(file):
            return self._make_result(file, "erased")
        in_place = self.destination is None
        exists = in_place or target.stamp() is not None
        if (self.record is not None and self.record.find(target, source) is not None) or (
            exists and not self._must_redo(file) and self._is_current(source, target)
        ):
            if self.progress is not None:
                self.progress(file.size)
            # Publishing a file removes its old checksum, but this one is not published again.
            if not self.dry_run:
                remove_stale_checksum(target)
            return self._make_result(file, "current")
        if self.record is not None and self.change.hashed and in_place:
            self.record.check_unprocessed(target)
        if self.dry_run:
            return self._make_result(file, "planned", self._work(file.name, source))
        self._make_folder(file.name)
        if self.record is not None and in_place:
            self.record.begin(target)
        before = self.proof.proved_here
        try:
            columns = self._work(file.name, source, overwrite=exists)
        except (ModcryptError, OSError, ValueError) as error:
            if not self._is_already_made(error, source, target):
                raise
            return self._make_result(file, "current")
        if self.record is not None:
            self.record.add_file(target, source)
        done = self._make_result(file, DONE[self.verb], columns)
        return replace(done, proved=self.proof.proved_here - before)

    def _is_erased(self, file: File) -> bool:
        """Return whether to leave out a file of a folder; a single file is opened, and fails."""
        is_erased = getattr(getattr(self.decryption, "key_retriever", None), "is_erased", None)
        return is_erased is not None and file.name != self.source.name and is_erased(file.place)

    def _must_redo(self, file: File) -> bool:
        """Return whether to replace an existing destination, even if it looks up to date."""
        # An inspection cannot detect all options, and for a single file, `overwrite` always
        # replaces it.
        if not self.overwrite or self.destination is None:
            return self.renew
        change, new = self.change, self.encryption
        if not change.is_visible or file.name == self.source.name:
            return True
        if new is None:
            return False
        properties = new.for_check() if not isinstance(new, FileEncryptionProperties) else new
        return properties.data_page_v2_levels != "encrypted"

    def _make_result(
        self, file: File, result: str, columns: Mapping[str, Sequence[str]] | None = None,
        **failure: Any,
    ) -> ConvertedFile:  # fmt: skip
        columns = columns or {}
        size = None
        if not failure and result not in ("planned", "erased"):
            size = _local_size(self._target_place(file.name))
        message = failure.pop("message", "") or self._describe_losses(columns)
        return ConvertedFile(
            path=file.name, destination=self.target(file.name), result=result, message=message,
            bytes_in=file.size, bytes_out=size, columns=columns, **failure,
        )  # fmt: skip

    def _describe_losses(self, columns: Mapping[str, Sequence[str]]) -> str:
        """Return a sentence about columns that are missing or exposed without a request for it."""
        expected = (*self.change.null, *self.change.drop)
        sentences = []
        for what, action in (("dropped", "left out"), ("nulls", "filled with nulls")):
            names = [
                name for name in columns.get(what, ())
                if not _is_in(name, expected)
                and (self.change.only is None or _is_in(name, self.change.only))
            ]  # fmt: skip
            if names:
                listed = printable(", ".join(names))
                sentences.append(f"columns {action} because their key is missing: {listed}")
        if self.verb == "rekey" and columns.get("under_footer_key"):
            listed = printable(", ".join(columns["under_footer_key"]))
            sentences.append(f"columns that no longer have a key of their own: {listed}")
        if columns.get("repaired"):
            names = [sentence.partition(":")[0] for sentence in columns["repaired"]]
            sentences.append(f"repaired: {', '.join(names)}")
        if columns.get("lost_signatures"):
            listed = ", ".join(columns["lost_signatures"])
            sentences.append(f"the signature of {listed} was dropped; pass a signing key to sign")
        return "; ".join(sentences)

    def target(self, name: str) -> str:
        """Return the name of the destination of a file."""
        if self.destination is None:
            return name
        return self.destination.file(self.source.inside(name))

    def _target_place(self, name: str) -> Place:
        """Return the destination; writing follows no symbolic link below its folder."""
        if self.destination is None:
            return self.source.place_of(name)
        return self.destination.place_of(self.destination.file(self.source.inside(name)))

    def _make_folder(self, name: str) -> None:
        """Create the folder of a destination, once."""
        inside = self.source.inside(name)
        if self.destination is None or not inside:
            return
        from modcrypt.parquet.datasets.discovery import DatasetFolder

        folder = posixpath.dirname(inside)
        if folder not in self._made_folders:
            DatasetFolder(self.destination.name, self.destination.filesystem).place(inside)
            self._made_folders.add(folder)

    def check(self, file: File) -> None:
        """Check that a file can be converted, if it is not yet; open it with the same keys.

        Raise ModcryptError, ValueError or OSError if the file can't be converted.
        """
        self.change.check_path(self.source.inside(file.name))
        place = file.place
        if self.destination is not None or self.find_difference(place, place) is not None:
            self._work(file.name, place, dry_run=True)

    def _work(
        self, name: str, source: Place, *, overwrite: bool = False, dry_run: bool | None = None
    ) -> Mapping[str, Sequence[str]]:
        """Convert one file as the verb says, or plan it; return what was done to its columns."""
        dry_run = self.dry_run if dry_run is None else dry_run
        target = self._target_place(name)
        change, more = self.change, self._arguments(overwrite)
        # modcrypt follows no link below a folder, but a single named file may be a link.
        destination: Any = self.target(name) if target.root is None else target
        if self.verb in ("encrypt", "decrypt"):
            if dry_run:
                return self._plan(source)
            more["exact"] = change.exact
            if self.verb == "encrypt":
                from modcrypt.parquet.convert.encryptor import encrypt_parquet

                repaired = encrypt_parquet(
                    name, destination, self._encryption, repair=change.repair, **more
                )
                return {"repaired": [str(found) for found in repaired]} if repaired else {}
            from modcrypt.parquet.convert.decryptor import decrypt_parquet

            return self._losses_of(decrypt_parquet(name, destination, self._decryption, **more))
        from modcrypt.parquet.rewrite.rekey import mask_parquet, rekey_parquet, share_parquet

        more["dry_run"] = dry_run
        if self.verb == "rekey":
            more["keep_unchanged"] = change.keep_unchanged
            done = rekey_parquet(name, destination, self._decryption, self._encryption, **more)
            return done.fields()
        more["read_restrictions"] = change.read_restrictions
        if self.verb == "share":
            done = share_parquet(
                name, destination, self._decryption, self._encryption, change.only or (), **more
            )
        else:
            done = mask_parquet(
                name, destination, self._decryption, self.encryption, null=change.null,
                hashed=change.hashed, drop=change.drop, hash_key=change.hash_key, **more,
            )  # fmt: skip
        return done.fields()

    def _arguments(self, overwrite: bool) -> dict[str, Any]:
        return {
            "filesystem": self.source.filesystem,
            "overwrite": overwrite,
            "threads": self.threads,
            "progress": self.progress,
            "keep_unknown_fields": self.change.keep_unknown_fields,
        }

    def _plan(self, source: Place) -> Mapping[str, Sequence[str]]:
        """Check by its footer that a file can be encrypted or decrypted; make no key."""
        with open_source_at(source) as opened:
            if self.verb == "decrypt":
                from modcrypt.parquet.crypto.file_plan import OpenFile

                return self._losses_of(OpenFile(opened, self._decryption).select().missing_names)
            from modcrypt.parquet.convert.encryption_plan import plan_encryption

            new = self._encryption
            plan_encryption(opened, new.for_check() if is_keyed(new) else new)
        return {}

    def _losses_of(self, missing: Sequence[str]) -> Mapping[str, Sequence[str]]:
        nulls = self._decryption.on_missing_key == "null"
        return {"dropped": () if nulls else missing, "nulls": missing if nulls else ()}

    @property
    def _encryption(self) -> Encryption:
        assert self.encryption is not None  # the verb needs it
        return self.encryption

    @property
    def _decryption(self) -> FileDecryptionProperties:
        assert self.decryption is not None  # the verb needs it
        return self.decryption

    def _is_current(self, source: Place, target: Place) -> bool:
        """Return whether an existing destination is up to date; False if it is to be replaced."""
        if (difference := self.find_difference(source, target)) is None:
            if self.record is not None and not self.dry_run:
                self.record.add_file(target, source)
            return True
        in_place = self.destination is None
        if in_place and self.verb == "encrypt" and difference.of_encryption:
            raise DifferentError(
                errno.EEXIST,
                f"the file is encrypted, but not as the keys and options say ({difference.why}); "
                "re-encrypt it with rekey instead of overwrite=True",
                target.address,
            )
        if not (in_place or self.overwrite):
            kind, how = FileExistsError, "exists and differs"
            if difference.of_encryption:
                kind, how = DifferentError, "is encrypted, but not as the keys and options say"
            raise kind(
                errno.EEXIST,
                f"destination {how} ({difference.why}); pass overwrite=True (or --force) to "
                "replace it",
                target.address,
            )
        return False

    def _is_already_made(self, error: Exception, source: Place, target: Place) -> bool:
        """Return whether another attempt at the same task has already made the destination."""
        # In place, the file may then no longer open with the old keys, or be masked already.
        if self.renew:  # a look does not tell old data keys from new ones
            return False
        number = error.errno if isinstance(error, OSError) else None
        if not (self.destination is None or number in (errno.EEXIST, errno.ESTALE)):
            return False
        try:
            return self.find_difference(source, target) is None
        except (ModcryptError, OSError, ValueError):
            return False

    def find_difference(self, source: Place, target: Place) -> Difference | None:
        """Return how an existing destination differs from the job's result; None if it does not."""
        from modcrypt.jobs.idempotence.destination_check import find_difference

        return find_difference(
            source, target, encryption=self.encryption, decryption=self.decryption,
            change=self.change if self.verb in ("mask", "share") else None,
            in_place=self.destination is None,
        )  # fmt: skip


def _is_in(name: str, groups: Iterable[str]) -> bool:
    return any(name == group or name.startswith(f"{group}.") for group in groups)


def _local_size(place: Place) -> int | None:
    """Return the size of a local file; None in a store, to avoid a request per file."""
    if place.filesystem is not None:
        return None
    try:
        return os.stat(place.path).st_size
    except OSError:
        return None
