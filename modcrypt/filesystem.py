"""An fsspec file system that reads and writes encrypted Parquet files as plaintext ones.

It wraps another file system, which contains the files, and is found by its protocol:

    fsspec.filesystem("modcrypt", decryption=…)            # local files
    fsspec.filesystem("modcrypt", decryption=…, fs=s3)     # files of another file system
    pandas.read_parquet("modcrypt::s3://bucket/people.parquet",
                        storage_options={"decryption": …, "s3": {"anon": True}})
    frame.to_parquet("modcrypt::s3://bucket/people.parquet",
                     storage_options={"modcrypt": {"encryption": …}})

    modcrypt::s3://bucket/key     file of any fsspec file system, whose options go under its name
    modcrypt::file:///abs/path    local file
    modcrypt:///abs/path          short form; or a path in the wrapped file system, as DuckDB
                                  writes it after `register_filesystem`
    modcrypt::/abs/path           the same for fsspec and Dask; pandas treats it as a file name,
                                  like everything without "://"

Files and folders have the same names as in the wrapped file system, which lists them. Only opening
a file, or asking for its size, reads its footer. Files that are not encrypted Parquet files, such
as `_SUCCESS`, are listed, but opening them is an error. Files that modcrypt and other writers keep
beside encrypted ones (key material, seals, notes) are not listed, but exist when asked for by name.

Summaries (`_metadata`, as Dask writes them) do not exist: their statistics would be outside of the
files that are encrypted and signed, and readers let them decide which rows exist. Writing one only
removes an old one, and readers use the footers of the files.

A file that is written is held in memory, encrypted when it is closed, and appears complete or not
at all. With `encryption`, files can also be moved, copied and removed, and their external key
material goes with them. If a file's keys or AAD prefix depend on its path, it is encrypted anew
where it goes, which needs `decryption`; else its bytes stay as they are. Files are not appended to.

A file system with explicit keys can't be pickled: have Dask use threads, or pass an importable
function that retrieves the keys where it runs. Put a cache behind this file system
(`modcrypt::simplecache::s3://…`): in front of it, the cache would store plaintext on disk.
"""

from __future__ import annotations

import errno
import io
import posixpath
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from modcrypt.io.destinations import Destination, open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.recorded_writes import list_recorded, note_moved, note_removed
from modcrypt.io.sinks import copy_range
from modcrypt.io.sources import open_source_at
from modcrypt.io.stacked_filesystem import StackedFileSystem
from modcrypt.io.stores import locate
from modcrypt.io.uploads import move_stored
from modcrypt.keys import Key, wrap_key
from modcrypt.kms.external_keys import carry_keys, remove_keys
from modcrypt.kms.key_forms import open_policy
from modcrypt.kms.recipients.explicit_keys import explicit_keys_name
from modcrypt.kms.signing.ledger import ARCHIVE, SEAL_NAME
from modcrypt.parquet.arrow.view import PlaintextView, open_parquet
from modcrypt.parquet.convert.encryptor import encrypt_parquet
from modcrypt.parquet.crypto.path_prefix import PathPrefix
from modcrypt.parquet.crypto.properties import (
    AnyDecryption,
    AnyEncryption,
    FileDecryptionProperties,
    KeySettings,
    as_decryption,
    as_encryption,
    required_seal,
)
from modcrypt.parquet.datasets.discovery import list_steadily, read_hidden
from modcrypt.parquet.datasets.write_notes import NOTES
from modcrypt.parquet.rewrite.rekey import rekey_parquet
from modcrypt.parquet.signatures.signers import DatasetSeal
from modcrypt.pkmt1.material import STORE_NAME

if TYPE_CHECKING:
    from modcrypt.parquet.datasets.dataset_reader import Decryption
    from modcrypt.parquet.datasets.dataset_writer import EncryptionOf


class ModcryptFileSystem(StackedFileSystem):
    """The encrypted Parquet files of another file system, read and written as plaintext files.

    PyArrow, pandas, Dask and fastparquet raise modcrypt's errors unchanged. DuckDB raises an error
    of its own with their text, and Polars a PanicException (except with `scan_pyarrow_dataset`).

    Args:
        decryption: Keys, and the caller's requirements, as for `open_parquet`; or a function that
            returns them for a path in the wrapped file system, so that each file can have its own
            keys or AAD prefix. Unless `on_missing_key` is "null" or "drop", opening a file raises
            an error if any of its columns lacks a key, whichever columns are read.
        encryption: Keys, footer mode, algorithm and AAD prefix of the files that are written, as
            for `encrypt_parquet`; or a function that returns them for a path.
        behind: The wrapped file system, as `fs` or as `target_protocol` and `target_options`; by
            default, the local one. Also fsspec's own options.

    Raises:
        TypeError: `decryption` and `encryption` are missing, or have the wrong type.
    """

    protocol = "modcrypt"

    def __init__(
        self,
        decryption: Decryption | None = None,
        encryption: EncryptionOf | None = None,
        **behind: Any,
    ) -> None:
        encryption, decryption = _check_form(encryption), _check_form(decryption)
        if not (encryption is None or callable(encryption) or isinstance(encryption, KeySettings)):
            encryption = as_encryption(encryption)  # Settings are resolved for each file
        self._has_keys_of_each_path = callable(encryption) or callable(decryption)
        if decryption is None and encryption is not None:
            decryption = _raise_missing_decryption
        if decryption is None:
            raise TypeError(
                "modcrypt needs keys: pass decryption=, such as a Key or Settings(…), with URLs "
                'storage_options={"decryption": …}; or pass a function that returns them for a path'
            )
        if not (callable(decryption) or isinstance(decryption, KeySettings)):
            decryption = as_decryption(decryption)
        super().__init__(**behind)
        self._decryption, self._encryption = decryption, encryption

    # --- listings ------------------------------------------------------------------------------

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        """List a folder as `find` lists its files; sizes are None."""
        folder = self._target_path(path)
        found = self._list([folder], partial(super().ls, path, detail=detail, **kwargs))
        return _without_companions(found, len(folder))

    def find(self, path: str, *args: Any, detail: bool = False, **kwargs: Any) -> Any:
        """List the files below a folder without their companions; sizes are None.

        Files of an incomplete write, and those that a write replaced, are left out. Raise
        IntegrityError if files are missing below it that a required seal names, unless a maximal
        depth limits the search.
        """
        folder = self._target_path(path)
        list_files = partial(super().find, path, *args, detail=True, **kwargs)
        found = self._list([folder], list_files)
        notes = f"/{NOTES}/"
        if datasets := {name.partition(notes)[0] for name in found if notes in name} - {folder}:
            found = self._list([folder, *datasets], list_files)
        if (args[0] if args else kwargs.get("maxdepth")) is None:
            # PyArrow reads no others, such as links.
            files = [name for name, entry in found.items() if entry.get("type") == "file"]
            self._check_complete(folder, files)
        return _without_companions(found if detail else list(found), len(folder))

    def _list(self, folders: Sequence[str], list_entries: Callable[[], Any]) -> Any:
        """Return what a function lists, without files that notes of the folders hide."""

        def read() -> set[str]:
            return {
                posixpath.join(folder, name)
                for folder in folders for name in read_hidden(self._place(folder))
            }  # fmt: skip

        found, hidden = list_steadily(read, list_entries)
        return _select(found, lambda path: path not in hidden)

    def _check_complete(self, folder: str, files: Sequence[str]) -> None:
        given = self._decryption  # a function is only asked for the files that are opened
        if callable(given):
            return
        # Settings tell without a call to the key service.
        seal: DatasetSeal | None = (
            required_seal(given)
            if isinstance(given, FileDecryptionProperties)
            else getattr(given, "required_seal", None)
        )
        if seal is not None and not self.fs.isfile(folder):
            place = self._place(folder)
            seal.check_complete(place, [str(self._place(name).inside(place)) for name in files])

    def glob(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """List the files that match a pattern; sizes are None.

        Companions match only patterns that begin with an underscore or a dot, as they do.
        """
        match = partial(super().glob, path, *args, **kwargs)
        found = self._list(sorted(set(map(posixpath.dirname, match()))), match)
        pattern = self._target_path(path)
        if posixpath.basename(pattern).startswith(("_", ".")):
            return found
        return _without_companions(found, len(re.split(r"[^/]*[*?[{]", pattern)[0]))

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Return whether a file or folder exists, readable or not."""
        return not _is_summary(self._target_path(path)) and super().exists(path, **kwargs)

    def isfile(self, path: str) -> bool:
        """Return whether a file exists, readable or not."""
        return not _is_summary(self._target_path(path)) and super().isfile(path)

    # --- files ---------------------------------------------------------------------------------

    def _open(
        self, path: str, mode: str = "rb", *, autocommit: bool = True, **_: Any
    ) -> PlaintextView | io.BytesIO:
        """Open a file for `open` of fsspec; ignore options of caches and blocks."""
        if mode != "rb":
            return self._open_output(path, mode, autocommit)
        if _is_summary(path):
            raise FileNotFoundError(
                errno.ENOENT,
                "modcrypt reads no _metadata summaries, because only a file's own footer is "
                "authenticated together with its rows; name the data files",
                path,
            )
        return open_parquet(path, self._decryption_of(path), filesystem=self.fs)

    def _decryption_of(self, path: str) -> AnyDecryption:
        given = self._decryption
        return given(path) if callable(given) else given

    def _encryption_of(self, path: str) -> AnyEncryption:
        given = self._encryption
        assert given is not None  # `_check_writing` comes first
        return given(path) if callable(given) else given

    def _open_output(self, path: str, mode: str, autocommit: bool) -> io.BytesIO:
        self._check_writing()
        if mode not in ("wb", "xb"):
            raise ValueError(
                f"encrypted Parquet files are read ('rb') or written ('wb', 'xb'), not {mode!r}"
            )
        if not autocommit:
            raise ValueError("a file appears when it is closed, not with a transaction")
        if _is_summary(path):
            _remove_if_present(self._place(path))  # it would be out of date
            return io.BytesIO()
        return EncryptedOutput(self._place(path), self._encryption_of(path), overwrite=mode == "wb")

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files and their key material; with `recursive`, folders and all that is in them.

        Symbolic links are removed, not followed.

        Raises:
            ValueError: The file system has no `encryption`, or a folder is named without
                `recursive`.
            OSError: The file does not exist, or the wrapped file system refuses.
        """
        self._check_writing()
        for item in path if isinstance(path, list) else [path]:
            for found in self._match(self._target_path(item)):
                if self.isdir(found):
                    gone = self.fs.find(found, maxdepth=maxdepth) if list_recorded() else []
                    self.fs.rm(found, recursive=recursive, maxdepth=maxdepth)
                    for name in gone:
                        note_removed(self._place(name))
                else:
                    self.rm_file(found)

    def _match(self, path: str) -> list[str]:
        """Return the path, or the paths that match it as a pattern if no file has this name."""
        return (not self.exists(path) and self.glob(path)) or [path]

    def rm_file(self, path: str) -> None:
        """Remove a file and its key material; raise as `rm`."""
        self._check_writing()
        path = self._target_path(path)
        self.fs.rm_file(path)
        note_removed(self._place(path))
        remove_keys(self._place(path))
        _remove_if_present(_explicit_keys_of(self._place(path)))

    _rm = rm_file

    def mv(self, path1: str, path2: str, *_: Any, **__: Any) -> None:
        """Move a file and its key material, or a folder; a file of the new name is replaced.

        Raises:
            ValueError: The file system has no `encryption`; or the AAD prefix contains the path,
                and the new path is outside the root of the prefix.
            TypeError: A file has to be encrypted anew, and the file system has no `decryption`.
            ModcryptError: A file has to be encrypted anew, and cannot be decrypted.
            OSError: The file does not exist, or the wrapped file system refuses.
        """
        self._check_writing()
        old, new = self._target_path(path1), self._target_path(path2)
        if self.isdir(new) and old != new:
            new = posixpath.join(new, posixpath.basename(old))
        if old == new:
            return
        if self.isdir(old):
            self._move_folder(old, new)
        else:
            self._move_file(old, new)

    mv_file = mv

    def _move_folder(self, old: str, new: str) -> None:
        if new.startswith(f"{old}/"):
            raise ValueError(f"{new}: a folder cannot be moved into itself")
        moves = {path: new + path[len(old) :] for path in self.fs.find(old)}
        if not any(self._is_bound(*move) for move in moves.items()):
            self.fs.mv(old, new, recursive=True)
            for move in moves.items():
                note_moved(*map(self._place, move))
            return
        for path in moves:
            Place(self._place(old).filesystem, path, old).check_writable()
        for path, target in moves.items():
            if not STORE_NAME.fullmatch(posixpath.basename(path)):  # goes with its file
                self.fs.makedirs(posixpath.dirname(target), exist_ok=True)
                self._move_file(path, target)
        if not self.fs.find(old):
            self.fs.rm(old, recursive=True)

    def _move_file(self, old: str, new: str) -> None:
        if self._is_bound(old, new):
            self._encrypt_anew(old, new)
            self.rm_file(old)
            return
        with _carry_companions(self._place(old), self._place(new), move=True):
            move_stored(self.fs, True, old, new)
        note_moved(self._place(old), self._place(new))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file and its key material, for `copy` of fsspec; raise as `mv`."""
        self._check_writing()
        old, new = self._target_path(path1), self._target_path(path2)
        if self.isdir(old):
            self.fs.makedirs(new, exist_ok=True)
        elif self._is_bound(old, new):
            self._encrypt_anew(old, new)
        else:
            with _carry_companions(self._place(old), self._place(new), move=False):
                if self._place(new).filesystem is None:  # where fsspec's copy may stay incomplete
                    _copy_file(self._place(old), self._place(new))
                else:
                    self.fs.cp_file(old, new)

    def _encrypt_anew(self, old: str, new: str) -> None:
        rekey_parquet(
            old, new, self._decryption_of(old), self._encryption_of(new), filesystem=self.fs
        )

    def _is_bound(self, old: str, new: str) -> bool:
        """Return whether a file's keys or AAD prefix may differ between two paths."""
        if posixpath.basename(old).startswith(("_", ".")):  # not a file of a dataset
            return False
        if self._has_keys_of_each_path:
            return True
        prefix = getattr(as_encryption(self._encryption_of(old)), "aad_prefix", None)
        if not isinstance(prefix, PathPrefix):
            return False
        return prefix.of(self._place(old)) != prefix.of(self._place(new))

    def _place(self, path: str) -> Place:
        return Place(*locate(path, self.fs))

    def _check_writing(self) -> None:
        if self._encryption is None:
            raise ValueError(
                "this modcrypt file system is read-only: it has no encryption=, so it writes, "
                "moves, copies and removes nothing; pass encryption=, or use write_table"
            )


class EncryptedOutput(io.BytesIO):
    """A file in memory that is encrypted and published when it is closed.

    Plaintext is held in memory until then, because a Parquet file is read from its end. No file
    appears if the `with` block fails, if `close` is called while an exception that was raised since
    the opening propagates, or if the object is never closed.
    """

    def __init__(
        self, destination: Destination, encryption: AnyEncryption, *, overwrite: bool = True
    ) -> None:
        super().__init__()
        self._destination, self._encryption = destination, encryption
        self._overwrite = overwrite
        # Writers close their file in a `finally` clause; the caller may be handling another error.
        self._error_before = sys.exc_info()[1]

    def close(self) -> None:
        """Encrypt and publish the file; raise as `encrypt_parquet`, and leave none. Idempotent."""
        if self.closed:
            return
        try:
            if sys.exc_info()[1] is self._error_before:
                data = self.getvalue()  # makes no copy, and does not keep the file from closing
                encrypt_parquet(
                    data, self._destination, self._encryption, overwrite=self._overwrite
                )
        finally:
            super().close()

    def discard(self) -> None:
        """Close the file without publishing it. Idempotent."""
        super().close()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        self.discard()  # The finalizer of `io` would call `close`.


@contextmanager
def _carry_companions(old: Place, new: Place, *, move: bool) -> Iterator[None]:
    """Keep a file's companions beside its new place while the block moves or copies it there."""
    explicit = _explicit_keys_of(old)
    explicit.check_writable()  # a link that others made may lead to any file
    with carry_keys(old, new, move=move):
        yield
    if not explicit.exists():
        _remove_if_present(_explicit_keys_of(new))  # of the file that was replaced
        return
    _copy_file(explicit, _explicit_keys_of(new))
    if move:
        explicit.remove()


def _explicit_keys_of(place: Place) -> Place:
    found = place.beside(explicit_keys_name(place.name))
    return replace(found, root=posixpath.dirname(place.path))  # follow no link that others made


def _remove_if_present(place: Place) -> None:
    if place.exists():
        place.remove()


def _copy_file(old: Place, new: Place) -> None:
    with open_source_at(old) as source, open_sink_at(new) as sink:
        copy_range(source, sink, 0, source.size)


_SUMMARY = "_metadata"


def _is_summary(path: str) -> bool:
    return posixpath.basename(path) == _SUMMARY


def _without_companions(found: Any, start: int) -> Any:
    """Return a listing without companions, whose names count from a position in their paths."""

    def is_companion(name: str) -> bool:
        own = name in (SEAL_NAME, ARCHIVE, NOTES, _SUMMARY) or name.startswith(".modcrypt-")
        explicit = name.startswith("_EXPLICIT_KEYS_FOR_")
        return own or explicit or STORE_NAME.fullmatch(name) is not None

    return _select(found, lambda path: not any(map(is_companion, path[start:].split("/"))))


def _select(found: Any, is_shown: Callable[[str], bool]) -> Any:
    """Return the entries of a listing of fsspec whose paths a function accepts."""
    if isinstance(found, dict):
        return {path: entry for path, entry in found.items() if is_shown(path)}
    return [each for each in found if is_shown(each["name"] if isinstance(each, dict) else each)]


def _check_form(given: Any) -> Any:
    """Return `Settings` for a policy, and any other form as it is; refuse raw keys.

    Raise ValueError for a raw key, as fsspec keeps and shows the options of file systems.
    """
    wrapped = wrap_key(given)
    if isinstance(wrapped, Key) and wrapped is not given:
        raise ValueError("fsspec shows the options of file systems; pass Key.from_hex or Key")
    return open_policy(wrapped)


def _raise_missing_decryption(path: str) -> NoReturn:
    raise TypeError(
        f"{path}: reading needs keys, and so does moving a file whose keys or AAD prefix depend on "
        "its path; pass decryption= as well as encryption="
    )
