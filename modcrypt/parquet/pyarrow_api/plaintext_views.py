"""A file system of PyArrow that shows the files of a dataset as plaintext."""

from __future__ import annotations

import errno
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

from modcrypt.io.places import Place
from modcrypt.parquet.arrow.view import open_parquet
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, for_dataset, required_seal
from modcrypt.parquet.datasets.dataset_reader import Decryption
from modcrypt.parquet.datasets.discovery import as_arrow, list_steadily, path_inside, read_hidden
from modcrypt.parquet.datasets.write_notes import NOTES
from modcrypt.pkmt1.material import STORE_NAME


class ViewHandler(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow ships no types
    """Names and folders are those of the target file system; files are opened as views."""

    def __init__(self, folder: Place, decryption: Decryption) -> None:
        self._folder, self._decryption = folder, decryption
        self._target = as_arrow(folder.filesystem)

    def get_type_name(self) -> str:  # noqa: D102
        return "modcrypt"

    def normalize_path(self, path: str) -> str:  # noqa: D102
        return str(self._target.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:  # noqa: D102
        return [_drop_size(info) for info in self._target.get_file_info(paths)]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """List a folder without key material, notes of writes, and files that these hide.

        Raise IntegrityError if files are missing that a required seal names.
        """
        folder = Place(self._folder.filesystem, selector.base_dir)
        list_infos = partial(self._target.get_file_info, selector)
        listed, hidden = list_steadily(partial(read_hidden, folder), list_infos)
        infos = [info for info in listed if path_inside(info.path, folder.path) not in hidden]
        if selector.recursive:
            self._check_complete(folder, infos)
        return [
            _drop_size(info)
            for info in infos
            if not (STORE_NAME.fullmatch(info.base_name) or NOTES in info.path.split("/"))
        ]

    def _check_complete(self, folder: Place, infos: list[pafs.FileInfo]) -> None:
        places = [Place(folder.filesystem, info.path) for info in infos if info.is_file]
        if callable(self._decryption) and not places:
            return
        seal = required_seal(self._find_properties(places[0].path if places else folder.path))
        if seal is not None:
            seal.check_complete(folder, [str(place.inside(folder)) for place in places])

    def _find_properties(self, path: str) -> FileDecryptionProperties:
        given = self._decryption
        return for_dataset(given(path) if callable(given) else given, self._folder)

    def open_input_file(self, path: str) -> pa.PythonFile:  # noqa: D102
        properties = self._find_properties(path)
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
