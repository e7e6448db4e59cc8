"""Listing of the recipients of files, without any key: `list_recipients`.

The result repeats what the files state; it is not authenticated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.jobs.engine import FileResult, Job, run_job
from modcrypt.jobs.failures import describe_failure
from modcrypt.parquet.crypto.footer_keys import list_key_metadata
from modcrypt.parquet.datasets.discovery import list_files
from modcrypt.pkmt1.key_info import key_info
from modcrypt.pkmt1.recipient_metadata import decode_recipients
from modcrypt.runtime.former_names import accept_former_names


@dataclass(frozen=True, slots=True)
class ListedRecipient:
    """One recipient of a file.

    Attributes:
        id: Id of the recipient, in hex.
        kind: Kind of its public key.
    """

    id: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRecipients(FileResult):
    """The recipients of one file.

    Attributes:
        path: Path of the file.
        result: `"listed"`, or an error code.
        message: Message of the error.
        recipients: Recipients that the file lists.
        master_key_id: Id of the master key that wraps the footer key, too; None if none does.
    """

    recipients: tuple[ListedRecipient, ...] = field(default=())
    master_key_id: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the file could not be read."""
        return self.result != "listed"


@accept_former_names(where="source")
def list_recipients(source: Any, *, filesystem: Any = None) -> Iterator[ListedRecipients]:
    """Yield the recipients of a file, or of all files of folders.

    Args:
        source: Path or URL of a file or a folder, or a list of them.
        filesystem: The pyarrow or fsspec filesystem of `source`.

    Raises:
        FileNotFoundError: `source` does not exist.
    """
    return run_job(Job(_list_file, _describe_failure), list_files(source, filesystem))


def _list_file(place: Place) -> ListedRecipients:
    with open_source_at(place) as source:
        metadata = list_key_metadata(source)[0][0].metadata or b""
    material = decode_recipients(metadata)
    wraps = () if material is None else material.recipients or ()
    return ListedRecipients(
        path=place.path,
        result="listed",
        recipients=tuple(ListedRecipient(wrap.id.hex(), wrap.kind) for wrap in wraps),
        master_key_id=key_info(metadata).master_key_id,
    )


def _describe_failure(place: Place, error: Exception) -> ListedRecipients:
    word, message = describe_failure(error)
    return ListedRecipients(path=place.path, result=word, message=message)
