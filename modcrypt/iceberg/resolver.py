"""`KeyResolver`: finds the Iceberg encryption key (IEK) that seals key metadata, and keeps it.

Wrapped KEKs are kept in the table's metadata, as Java has them, or in a `KeyStore` of the caller's,
which can be changed without a commit to the table. Key metadata is found in two places:

    encryption-keys   of a manifest list; `encrypted-by-id` names the IEK
    a manifest        of a data or delete file: as it is, in the clear within the sealed manifest;
                      or 0x81 (double wrapping) or 0x82 (single), length of the IEK's id, id, sealed

The latter is this package's own, for KEKs by partition or by number of files: Java can't read it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from typing import Protocol

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.iceberg.table_metadata import EncryptedKey, TableMetadata
from modcrypt.iceberg.wrapping_keys import IcebergKey, MasterKeys, OpenKey, new_key_id
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.kms.client import KmsClient

__all__ = ["WRAPPING", "KeyResolver", "KeyStore", "is_sealed_metadata", "sealed_by"]

WRAPPING = "modcrypt.wrapping"
"""Property of an entry of `encryption-keys` that a master key wraps by itself: `single`."""

_DOUBLE, _SINGLE = 0x81, 0x82


class KeyStore(Protocol):
    """Where wrapped KEKs are kept outside of the table's metadata."""

    def keys(self) -> Mapping[str, IcebergKey]:
        """Give all of them by id."""

    def replace(self, keys: Iterable[IcebergKey], drop: Iterable[str] = ()) -> None:
        """Add KEKs, or put them in the place of those with their ids, and drop others.

        All of it or nothing, for whoever reads at the same time.
        """


class KeyResolver:
    """Opens and seals the key metadata of a table's files. Any number of threads may use it.

    Args:
        kms: client of the key service.
        store: where KEKs are kept besides the table's metadata.
    """

    def __init__(self, kms: KmsClient, store: KeyStore | None = None) -> None:
        self.masters = MasterKeys(kms)
        self.store = store
        self._open: dict[tuple[str, bytes | None], OpenKey] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"KeyResolver({type(self.masters.client).__name__})"

    def keks(self, metadata: TableMetadata) -> dict[str, IcebergKey]:
        """Give the KEKs of a table by id: those of its metadata and those of the store."""
        found = {id_: IcebergKey.of(metadata.keys[id_]) for id_ in metadata.kek_ids()}
        return found if self.store is None else {**found, **self.store.keys()}

    def find(self, key_id: str, metadata: TableMetadata) -> IcebergKey:
        """Give a KEK by its id.

        Raises:
            KeyNotFoundError: it is neither in the table's metadata nor in the store.
            KeyMaterialError: it is no KEK.
        """
        entry = metadata.keys.get(key_id)
        found = None if entry is None else IcebergKey.of(entry)
        if found is None and self.store is not None:
            found = self.store.keys().get(key_id)
        if found is None:
            where = "the table's metadata" + ("" if self.store is None else " nor in the key store")
            raise KeyNotFoundError(f"key {key_id} of the table is not in {where}")
        return found

    def opened(self, key: IcebergKey) -> OpenKey:
        """Give an IEK, unwrapped; the key service is asked once for each.

        Raises:
            KeyRetrievalError: it refuses.
        """
        place = (key.id, key.wrapped)
        with self._lock:  # so that of two threads one asks
            if place not in self._open:
                self._open[place] = self.masters.opened(key)
            return self._open[place]

    def made(self, opened: OpenKey) -> OpenKey:
        """Keep an IEK that was made here."""
        with self._lock:
            self._open[opened.key.id, opened.key.wrapped] = opened
        return opened

    # --- manifest lists -------------------------------------------------------------------------

    def open_entry(self, entry: EncryptedKey, metadata: TableMetadata) -> StandardKeyMetadata:
        """Open the key metadata of a manifest list.

        Raises:
            KeyRetrievalError: its key can't be had, or does not open it.
        """
        if entry.properties.get(WRAPPING) == "single":
            key = IcebergKey.single(entry.encrypted_by)
        else:
            key = self.find(entry.encrypted_by, metadata)
        return self.opened(key).open(entry.encrypted)

    def seal_entry(self, metadata: StandardKeyMetadata, opened: OpenKey) -> EncryptedKey:
        """Seal the key metadata of a new manifest list, as a fresh entry of `encryption-keys`."""
        return self.entry(new_key_id(), metadata, opened)

    def entry(self, id_: str, metadata: StandardKeyMetadata, opened: OpenKey) -> EncryptedKey:
        """Seal the key metadata of a manifest list under an id that it may have had before."""
        properties = {} if opened.key.is_double else {WRAPPING: "single"}
        return EncryptedKey(id_, opened.seal(metadata), opened.key.id, properties)

    # --- in manifests ---------------------------------------------------------------------------

    def open_metadata(self, data: bytes, metadata: TableMetadata) -> StandardKeyMetadata:
        """Open the key metadata of a data or delete file, as its manifest has it.

        Raises:
            FormatError, KeyRetrievalError: it is malformed; its key can't be had.
        """
        if not is_sealed_metadata(data):
            return StandardKeyMetadata.decode(data)
        key_id, single, sealed = _parsed(data)
        key = IcebergKey.single(key_id) if single else self.find(key_id, metadata)
        return self.opened(key).open(sealed)

    def seal_metadata(self, metadata: StandardKeyMetadata, opened: OpenKey) -> bytes:
        """Seal the key metadata of a data or delete file under an IEK, for its manifest."""
        name = opened.key.id.encode()
        if not 0 < len(name) < 256:
            raise ValueError("the id of a key has 1 to 255 bytes")
        kind = _DOUBLE if opened.key.is_double else _SINGLE
        return bytes((kind, len(name))) + name + opened.seal(metadata)


def is_sealed_metadata(data: bytes) -> bool:
    """Tell key metadata that is sealed under an IEK from that in the clear, which begins with 1."""
    return data[:1] in (bytes((_DOUBLE,)), bytes((_SINGLE,)))


def sealed_by(data: bytes) -> tuple[str, bool]:
    """Give the id of the IEK that seals key metadata, and whether it is a master key itself."""
    key_id, single, _ = _parsed(data)
    return key_id, single


def _parsed(data: bytes) -> tuple[str, bool, bytes]:
    size = data[1] if len(data) > 1 else 0
    name = data[2 : 2 + size]
    with contextlib.suppress(UnicodeDecodeError):
        if 0 < size == len(name):
            return name.decode(), data[0] == _SINGLE, data[2 + size :]
    raise KeyMaterialError("sealed key metadata of a file: it names no key")
