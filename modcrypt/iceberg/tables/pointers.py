"""The pointer of a catalog to the current metadata.json of a table: what a catalog must offer.

To support another catalog, write a class with the methods of `Pointer` in a file of its own, as
`sql_pointer` has the smallest one, and name it in `catalog_versions.pointer_of`. Everything else
(the order of a commit, what may be removed after a failure, who was faster) is in
`CatalogVersions`, which every pointer shares.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from modcrypt.errors import IntegrityError
from modcrypt.iceberg.format.java_metadata import hash_as_java
from modcrypt.iceberg.format.table_metadata import MAX_METADATA, TableMetadata
from modcrypt.iceberg.format.table_versions import read_metadata
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at

Identifier = str | tuple[str, ...]


class Pointer(Protocol):
    """A catalog's pointer to the current metadata.json of one table."""

    @property
    def is_remote(self) -> bool:
        """True if a server may still carry out a request that has failed here."""

    def find(self) -> Pointed | None:
        """Return the entry of the table in the catalog; None if the table does not exist.

        Raise OSError if the catalog failed, as all methods do.
        """

    def check_writable(self) -> None:
        """Raise UnsupportedFormatError if the catalog cannot commit safely."""

    def swap(self, old: str, new: str, metadata: TableMetadata) -> bool:
        """Replace the location `old` by `new`, the one of `metadata`.

        Return False if the catalog has another location than `old`, and nothing was changed.

        Raises:
            CommitConflictError: Another writer holds the table; nothing was changed.
            OSError: The outcome is unknown.
        """

    def drop(self, old: str) -> bool:
        """Remove the table from the catalog, but none of its files.

        Return False if the catalog has another location than `old`, or no such table. A REST
        catalog compares no location, and Glue only before it drops. Raise the errors of `swap`.
        """

    def register(self, location: str, metadata: TableMetadata) -> None:
        """Add a table with its first metadata.json; raise FileExistsError if the name is taken."""

    def default_location(self) -> str:
        """Return the folder for a new table; raise ValueError if the catalog has none."""


class Pointed(NamedTuple):
    """The entry of a table in a catalog."""

    location: str
    digest: str | None = None  # hash of the metadata, as Java makes it; None without one
    master_key_id: str | None = None  # id of the table's master key; None if it is not stored

    def check(self, place: Place) -> None:
        """Raise IntegrityError if the metadata.json at a place does not have the hash.

        Without a hash, as in entries of Java 1.10, it must have the master key. The bytes are
        hashed first: Java and modcrypt write the form that is hashed.
        """
        if self.digest is None:
            self._check_master_key(place)
            return
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile; its reader finds another
            with open_source_at(place) as source:  # a longer file is refused by its reader
                data = source.read_at(0, min(source.size, MAX_METADATA))
            if self._is(base64.b64encode(hashlib.sha256(data).digest()).decode()):
                return
            if not self._is(hash_as_java(read_metadata(place))):
                raise IntegrityError(
                    f"{place.address}: the catalog has another hash of the table's metadata: the "
                    "file was altered; restore it, or register an older one that is intact"
                )

    def _check_master_key(self, place: Place) -> None:
        if self.master_key_id is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if (found := read_metadata(place).master_key_id) != self.master_key_id:
                raise IntegrityError(
                    f"{place.address}: the catalog has the master key {self.master_key_id!r} for "
                    f"this table, and the file {found!r}: it was altered; restore it, or register "
                    "an older one that is intact"
                )

    def _is(self, digest: str) -> bool:
        return hmac.compare_digest(digest, self.digest or "")


def is_iceberg(parameters: Mapping[str, str] | None) -> bool:
    """Return whether the parameters of a table in a metastore are those of an Iceberg table."""
    return ((parameters or {}).get("table_type") or "").upper() == "ICEBERG"
