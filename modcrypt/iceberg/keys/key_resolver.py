"""`KeyResolver`: finds the Iceberg encryption key (IEK) that seals key metadata, and keeps it.

Wrapped KEKs are kept in the table's metadata, as Java has them, or in a `KeyStore` of the caller's,
which can be changed without a commit to the table. Key metadata is found in two places:

    encryption-keys   of a manifest list; `encrypted-by-id` names the IEK
    a manifest        of a data or delete file: as it is, in the clear within the sealed manifest;
                      or 0x81 (double wrapping) or 0x82 (single), length of the IEK's id (2,
                      big-endian), id, sealed

The latter is this package's own, for KEKs by partition or by number of files: Java can't read it.

Nothing vouches for `encryption-keys`. Whoever can write metadata.json and use *some* master key
could put a KEK of their own there, and have a table of their making read; so a master key that the
table isn't under, or the caller doesn't expect, is not asked.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn, Protocol

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.fork_safety import fork_safe
from modcrypt.iceberg.format.table_metadata import EncryptedKey, TableMetadata
from modcrypt.iceberg.keys.wrapping_keys import TABLE, IcebergKey, MasterKeys, OpenKey, new_key_id
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.kms.audit import Audit
from modcrypt.kms.client import KmsClient
from modcrypt.tracebacks import hide_frames

__all__ = [
    "WRAPPING",
    "KeyResolver",
    "KeyStore",
    "is_sealed_metadata",
    "open_from_manifest",
    "seal_for_manifest",
    "sealed_by",
]

WRAPPING = "modcrypt.wrapping"
"""Property of an entry of `encryption-keys` that a master key wraps by itself: `single`."""

CACHE_SECONDS = 3600.0
"""How long an unwrapped KEK is used: as in Iceberg's Java, so that taking access away tells."""

REFUSAL_SECONDS = 30.0
"""For how long what was refused isn't asked for again: thousands of files may need the same KEK."""

UNAVAILABLE_SECONDS = 1.0
"""The same where the key service was unavailable: for the threads that waited for the same KEK."""

_DOUBLE, _SINGLE = 0x81, 0x82


class KeyStore(Protocol):
    """Where wrapped KEKs are kept outside of the table's metadata. It may serve several tables."""

    def keys(self) -> Mapping[str, IcebergKey]:
        """Give all of them by id, as they are now."""

    def replace(self, keys: Iterable[IcebergKey], drop: Iterable[str] = ()) -> None:
        """Add KEKs, or put them in the place of those with their ids, and drop others.

        All of it or nothing, for whoever reads at the same time; what others put there at the same
        time stays.
        """


class KeyResolver:
    """Opens and seals the key metadata of a table's files. Any number of threads may use it.

    Args:
        kms: client of the key service.
        store: where KEKs are kept besides the table's metadata.
        master_key_ids: those that KEKs may be under. By default, for those in a table's metadata,
            the table's `encryption.key-id` alone.
        audit: called with each use of the key service.
    """

    def __init__(
        self,
        kms: KmsClient,
        store: KeyStore | None = None,
        *,
        master_key_ids: Collection[str] | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.masters = MasterKeys(kms, audit)
        self.store = store
        # A set: of a text, given by mistake, every part would be expected.
        self.master_key_ids = None if master_key_ids is None else frozenset(master_key_ids)
        self._stored: Mapping[str, IcebergKey] = {}
        self._open: dict[tuple[str, bytes | None], tuple[OpenKey, float]] = {}
        self._turns: dict[object, threading.Lock] = {}
        self._refused: dict[object, tuple[type[KeyRetrievalError], str, float]] = {}

    def __repr__(self) -> str:
        return f"KeyResolver({type(self.masters.client).__name__})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a KeyResolver can't be pickled: make one in each process")

    # --- finding --------------------------------------------------------------------------------

    def keks(self, metadata: TableMetadata) -> dict[str, IcebergKey]:
        """Give the KEKs of a table by id: those of its metadata, then its own of the store.

        Raises:
            KeyMaterialError: a KEK of the table is none.
            ModcryptError, OSError: from the store.
        """
        found = {id_: IcebergKey.of(metadata.keys[id_]) for id_ in metadata.kek_ids()}
        stored = {id_: one for id_, one in self._read_store().items() if _is_of(one, metadata)}
        return {**found, **{id_: one for id_, one in stored.items() if id_ not in found}}

    def find(self, key_id: str, metadata: TableMetadata) -> IcebergKey:
        """Give a KEK by its id.

        Raises:
            KeyNotFoundError: it is neither in the table's metadata nor in the store.
            KeyMaterialError: it is no KEK, or under a master key that it must not be under.
        """
        entry = metadata.keys.get(key_id)
        if entry is not None:
            self._check_master(entry, metadata)
            return IcebergKey.of(entry)
        found = self._stored.get(key_id)
        if found is None:
            with self._keeping_refusals(key_id):
                found = self._read_store().get(key_id) or self._lost(key_id)
        if not _is_of(found, metadata):
            self._lost(key_id)
        self._check_expected(found)
        return found

    def _read_store(self) -> Mapping[str, IcebergKey]:
        if self.store is not None:
            self._stored = self.store.keys()
        return self._stored

    def _lost(self, key_id: str) -> NoReturn:
        none = ", and no key_store was given"
        where = "the table's metadata" + (none if self.store is None else " nor in the key store")
        raise KeyNotFoundError(f"key {key_id!r} of the table is not in {where}")

    def _check_master(self, entry: EncryptedKey, metadata: TableMetadata) -> None:
        """Hold what an entry of `encryption-keys` is wrapped by against what it may be."""
        allowed = self.master_key_ids
        if allowed is None and metadata.master_key_id is not None:
            allowed = frozenset((metadata.master_key_id,))
        if allowed is not None and entry.encrypted_by not in allowed:
            raise _unexpected(entry.id, entry.encrypted_by)

    def _check_expected(self, key: IcebergKey) -> None:
        """Hold the master key of an IEK that the store or a manifest names against those expected.

        By default it may be any: a store moves to another before the table does.
        """
        if self.master_key_ids is not None and key.master_key_id not in self.master_key_ids:
            raise _unexpected(key.id, key.master_key_id)

    # --- opening --------------------------------------------------------------------------------

    def opened(self, key: IcebergKey) -> OpenKey:
        """Give an IEK, unwrapped; the key service is asked once for each, in an hour.

        Raises:
            KeyRetrievalError: it refuses.
        """
        place = (key.id, key.wrapped)
        found = self._known(place)
        if found is not None:
            return found
        # Of the threads that want one key one asks, and nobody waits for another's key.
        with self._turns.setdefault(place, fork_safe(threading.Lock())):
            try:
                with self._keeping_refusals(place):
                    return self._known(place) or self.made(self._unwrapped(key))
            finally:
                self._turns.pop(place, None)

    def made(self, opened: OpenKey) -> OpenKey:
        """Keep an IEK that was made here."""
        place = (opened.key.id, opened.key.wrapped)
        self._open[place] = opened, time.monotonic() + CACHE_SECONDS
        return opened

    def _known(self, place: tuple[str, bytes | None]) -> OpenKey | None:
        found, until = self._open.get(place, (None, 0.0))
        return found if time.monotonic() < until else None

    @contextlib.contextmanager
    def _keeping_refusals(self, what: object) -> Iterator[None]:
        """Raise what was raised a moment ago, and keep what is raised now."""
        kind, message, until = self._refused.get(what, (KeyRetrievalError, "", 0.0))
        if time.monotonic() < until:
            raise kind(message)
        try:
            yield
        except (KeyAccessDeniedError, KeyNotFoundError, KmsUnavailableError) as error:
            passing = isinstance(error, KmsUnavailableError)
            until = time.monotonic() + (UNAVAILABLE_SECONDS if passing else REFUSAL_SECONDS)
            self._refused[what] = type(error), str(error), until
            raise

    def _unwrapped(self, key: IcebergKey) -> OpenKey:
        try:
            return self.masters.opened(key)
        except KeyRetrievalError:
            # Somebody may have moved it to another master key since the store was read.
            fresh = self._read_store().get(key.id, key)
            if fresh.wrapped == key.wrapped or fresh.properties != key.properties:
                raise
        self._check_expected(fresh)
        return self.masters.opened(fresh)

    # --- manifest lists -------------------------------------------------------------------------

    def open_entry(self, entry: EncryptedKey, metadata: TableMetadata) -> StandardKeyMetadata:
        """Open the key metadata of a manifest list.

        Raises:
            KeyRetrievalError: its key can't be had, or does not open it.
        """
        if entry.properties.get(WRAPPING) == "single":
            self._check_master(entry, metadata)
            key = IcebergKey.single(entry.encrypted_by)
        else:
            key = self.find(entry.encrypted_by, metadata)
        return self.opened(key).open(entry.encrypted)

    def seal_entry(self, metadata: StandardKeyMetadata, opened: OpenKey) -> EncryptedKey:
        """Seal the key metadata of a new manifest list, as a fresh entry of `encryption-keys`."""
        return self.entry(new_key_id(), metadata, opened)

    def entry(self, id_: str, metadata: StandardKeyMetadata, opened: OpenKey) -> EncryptedKey:
        """Seal the key metadata of a manifest list under an id that it may have had before.

        Raises:
            KeyRetrievalError, KeyExhaustedError: as `OpenKey.seal_many`.
        """
        properties = {} if opened.key.is_double else {WRAPPING: "single"}
        return EncryptedKey(id_, opened.seal(metadata), opened.key.id, properties)

    # --- in manifests ---------------------------------------------------------------------------

    @hide_frames
    def open_metadata(self, data: bytes, metadata: TableMetadata) -> StandardKeyMetadata:
        """Open the key metadata of a data or delete file, as its manifest has it.

        Raises:
            FormatError, KeyRetrievalError: it is malformed; its key can't be had.
        """
        if not is_sealed_metadata(data):
            return StandardKeyMetadata.decode(data)
        key_id, single, sealed = _parsed(data)
        key = IcebergKey.single(key_id) if single else self.find(key_id, metadata)
        self._check_expected(key)
        return self.opened(key).open(sealed, in_manifest=True)

    def seal_metadata(self, metadata: StandardKeyMetadata, opened: OpenKey) -> bytes:
        """Seal the key metadata of a data or delete file; as `seal_for_manifest`."""
        return seal_for_manifest([metadata], opened)[0]


def seal_for_manifest(metadata: Sequence[StandardKeyMetadata], opened: OpenKey) -> list[bytes]:
    """Seal the key metadata of data or delete files under an IEK, for their manifest.

    Raises:
        KeyRetrievalError, KeyExhaustedError: as `OpenKey.seal_many`.
        ValueError: the IEK's id is longer than 65535 bytes.
    """
    name = opened.key.id.encode()
    if len(name) > 0xFFFF:
        raise ValueError("the id of a key has 65535 bytes at most")
    kind = _DOUBLE if opened.key.is_double else _SINGLE
    head = bytes((kind,)) + len(name).to_bytes(2, "big") + name
    return [head + one for one in opened.seal_many(metadata, in_manifest=True)]


def open_from_manifest(data: bytes, opened: OpenKey) -> StandardKeyMetadata:
    """Open what `seal_for_manifest` gave, by the same IEK and without a table.

    Raises:
        KeyMaterialError: it was sealed under another one, or altered.
        KeyRetrievalError: as `OpenKey.open`.
    """
    key_id, single, sealed = _parsed(data) if is_sealed_metadata(data) else ("", False, b"")
    if (key_id, single) != (opened.key.id, not opened.key.is_double):
        raise KeyMaterialError(f"the key metadata of a file is not sealed by {opened.key.id!r}")
    return opened.open(sealed, in_manifest=True)


def is_sealed_metadata(data: bytes) -> bool:
    """Tell key metadata that is sealed under an IEK from that in the clear, which begins with 1."""
    return data[:1] in (bytes((_DOUBLE,)), bytes((_SINGLE,)))


def sealed_by(data: bytes) -> tuple[str, bool]:
    """Give the id of the IEK that seals key metadata, and whether it is a master key itself.

    Raises:
        KeyMaterialError: it names none.
    """
    key_id, single, _ = _parsed(data)
    return key_id, single


def _parsed(data: bytes) -> tuple[str, bool, bytes]:
    size = int.from_bytes(data[1:3], "big")
    name = data[3 : 3 + size]
    with contextlib.suppress(UnicodeDecodeError):
        if 0 < size == len(name):
            return name.decode(), data[0] == _SINGLE, data[3 + size :]
    raise KeyMaterialError("sealed key metadata of a file: it names no key")


def _is_of(key: IcebergKey, metadata: TableMetadata) -> bool:
    """Tell whether a KEK of a store that serves several tables is for this one."""
    return key.properties.get(TABLE, metadata.uuid) == metadata.uuid


def _unexpected(key_id: str, master_key_id: str) -> KeyMaterialError:
    return KeyMaterialError(
        f"key {key_id!r} of the table is under the master key {master_key_id!r}, which the table "
        "is not under, or which is none of those expected"
    )
