"""A catalog's entry for a table: the location of its current metadata.json, and checks of it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
from collections.abc import Mapping
from typing import NamedTuple

from modcrypt.errors import IntegrityError
from modcrypt.iceberg.format.java_metadata import hash_as_java
from modcrypt.iceberg.format.table_metadata import MAX_METADATA
from modcrypt.iceberg.format.table_versions import read_metadata
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at


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
                    f"{place.path}: the catalog has another hash of the table's metadata: the "
                    "file was altered; restore it, or register an older one that is intact"
                )

    def _check_master_key(self, place: Place) -> None:
        if self.master_key_id is None:
            return
        with contextlib.suppress(FileNotFoundError):
            found = read_metadata(place).master_key_id
            if found != self.master_key_id:
                raise IntegrityError(
                    f"{place.path}: the catalog has the master key {self.master_key_id!r} for this "
                    f"table, and the file {found!r}: it was altered; restore it, or register an "
                    "older one that is intact"
                )

    def _is(self, digest: str) -> bool:
        return hmac.compare_digest(digest, self.digest or "")


def is_iceberg(parameters: Mapping[str, str] | None) -> bool:
    """Return whether the parameters of a table in a metastore are those of an Iceberg table."""
    return ((parameters or {}).get("table_type") or "").upper() == "ICEBERG"
