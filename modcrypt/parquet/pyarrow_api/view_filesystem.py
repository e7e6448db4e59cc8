"""A read-only file system of PyArrow that shows encrypted Parquet files as plaintext ones."""

from __future__ import annotations

import errno
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

from modcrypt.io.places import Place
from modcrypt.parquet.arrow.view import open_parquet
from modcrypt.parquet.crypto.properties import as_decryption, required_seal, set_prefix_root
from modcrypt.parquet.datasets.dataset_reader import Decryption
from modcrypt.parquet.datasets.discovery import as_arrow
from modcrypt.pkmt1.material import STORE_NAME


def make_view_filesystem(folder: Place, decryption: Decryption) -> pafs.PyFileSystem:
    """Return the file system of a folder whose files PyArrow reads as plaintext."""
    return pafs.PyFileSystem(_ViewHandler(folder, decryption))


class _ViewHandler(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow ships no types
    """Names and folders are those of the target file system; files are opened as views."""

    def __init__(self, folder: Place, decryption: Decryption) -> None:
        self._folder, self._decryption = folder, decryption
        self._target = as_arrow(folder.filesystem)

    def get_type_name(self) -> str:
        return "modcrypt"

    def normalize_path(self, path: str) -> str:
        return str(self._target.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [_drop_size(info) for info in self._target.get_file_info(paths)]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """List a folder without key material, which PyArrow would read as data.

        Raise IntegrityError if files are missing that a required seal names.
        """
        infos = self._target.get_file_info(selector)
        if selector.recursive:
            self._check_complete(selector.base_dir, infos)
        return [_drop_size(info) for info in infos if not STORE_NAME.fullmatch(info.base_name)]

    def _check_complete(self, base: str, infos: list[pafs.FileInfo]) -> None:
        folder = Place(self._folder.filesystem, base)
        places = [Place(folder.filesystem, info.path) for info in infos if info.is_file]
        given = self._decryption
        if callable(given):
            if not places:
                return
            given = given(places[0].path)
        seal = required_seal(set_prefix_root(as_decryption(given), self._folder))
        if seal is not None:
            seal.check_complete(folder, [str(place.inside(folder)) for place in places])

    def open_input_file(self, path: str) -> pa.PythonFile:
        given = self._decryption
        properties = as_decryption(given(path) if callable(given) else given)
        properties = set_prefix_root(properties, self._folder)
        view = open_parquet(path, properties, filesystem=self._folder.filesystem)
        return pa.PythonFile(view, mode="r")

    open_input_stream = open_input_file

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError(
            errno.EROFS,
            "Read-only: a ParquetDataset shows files as plaintext; use write_to_dataset, or the "
            "fsspec file system modcrypt",
        )

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


def _drop_size(info: pafs.FileInfo) -> pafs.FileInfo:
    """Return the description without the size, as that of the plaintext differs."""
    return pafs.FileInfo(info.path, info.type, mtime_ns=info.mtime_ns)
