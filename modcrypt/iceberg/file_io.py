"""A FileIO for pyiceberg that shows data files as plaintext Parquet.

pyiceberg's scan opens a file by its location. Here each location that may be opened was planned
before, with its key metadata: nothing else is.

    Parquet (PME)   shown as it is in plaintext, opened page by page as it is read
    Avro (AGS1)     which pyiceberg doesn't scan: decoded by fastavro, and shown as Parquet
    deletes         position deletes and deletion vectors of one data file: shown as the Parquet
                    file of positions that pyiceberg takes
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from pyiceberg.io import FileIO, InputFile, InputStream

__all__ = ["Opener", "PlannedIO"]

Opener = Callable[[], Any]
"""Opens a planned file: gives a seekable binary file object."""


class PlannedIO(FileIO):
    """Opens what was planned, and nothing else."""

    def __init__(self, openers: Mapping[str, Opener]) -> None:
        super().__init__()
        self._openers = openers

    def new_input(self, location: str) -> InputFile:
        """Give a planned file."""
        return _Planned(location, self._openers[location])

    def new_output(self, location: str) -> NoReturn:
        """Write nothing."""
        raise io.UnsupportedOperation(f"{location}: a scan writes nothing")

    def delete(self, location: Any) -> NoReturn:
        """Delete nothing."""
        raise io.UnsupportedOperation(f"{location}: a scan deletes nothing")


class _Planned(InputFile):
    def __init__(self, location: str, opener: Opener) -> None:
        super().__init__(location)
        self._open = opener

    def __len__(self) -> int:
        with self.open() as file:
            return file.seek(0, io.SEEK_END)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return self._open()  # type: ignore[no-any-return]  # a file object
