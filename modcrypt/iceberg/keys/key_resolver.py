"""Resolve and cache the Iceberg encryption keys (IEKs) that encrypt key metadata.

Wrapped KEKs are kept in the table's metadata, as by Java, or in a `KeyStore` of the caller, which
can be changed without a commit to the table. Key metadata is stored in two places:

    encryption-keys   of a manifest list; `encrypted-by-id` names the IEK
    a manifest        of a data or delete file: in plaintext within the encrypted manifest; or
                      0x81 (double wrapping) or 0x82 (single), length of the IEK's id (2,
                      big-endian), id, encrypted key metadata

The last form is specific to modcrypt, for KEKs by partition or by number of files; Java cannot read
it.

Nothing vouches for `encryption-keys`. An attacker who can write metadata.json and use *some* master
key could insert a KEK of their own, so that readers accept a table that the attacker made.
Therefore the resolver never uses a master key that the table is not under, or that the caller does
not expect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NoReturn, Protocol

from modcrypt.errors import KeyMaterialError, KeyNotFoundError, KeyRetrievalError, ModcryptError
from modcrypt.iceberg.format.table_metadata import WRAPPING, EncryptedKey, TableMetadata
from modcrypt.iceberg.keys.master_keys import MasterKeys
from modcrypt.iceberg.keys.wrapping_keys import TABLE, IcebergKey, OpenKey, new_key_id, wrapped_part
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.kms.audit import Audit
from modcrypt.kms.client import KmsClient
from modcrypt.kms.key_cache import KeyCache
from modcrypt.kms.proof import WrapProof
from modcrypt.parquet.crypto.properties import SubjectKeys
from modcrypt.runtime.tracebacks import hide_frames

CACHE_SECONDS = 3600.0
"""Time for which an unwrapped KEK is used, as in Iceberg's Java, so that revoking access works."""

_DOUBLE, _SINGLE = 0x81, 0x82


class KeyStore(Protocol):
    """A store of wrapped KEKs outside of the table's metadata. It may serve several tables."""

    def keys(self) -> Mapping[str, IcebergKey]:
        """Return all current KEKs by id."""

    def replace(self, keys: Iterable[IcebergKey], drop: Iterable[str] = ()) -> None:
        """Add KEKs, replace those with the same ids, and drop others.

        The change is atomic for simultaneous readers, and keeps simultaneous changes of others.
        """


class KeyResolver:
    """A resolver that opens and encrypts the key metadata of a table's files. It is thread-safe.

    A KEK is looked up in the table's metadata, then in the store. Its master key is checked before
    the key service is called for it, and again after another process has re-wrapped it. It may be
    one of `master_key_ids`; by default KEKs in a table's metadata may only be under its
    `encryption.key-id`. `subjects` has the keys of cells in data files; None reads and writes none.
    `check_new` raises ValueError if an IEK must not protect new files.
    """

    def __init__(
        self, kms: KmsClient, store: KeyStore | None = None, *,
        master_key_ids: Collection[str] | None = None, audit: Audit | None = None,
        proof: WrapProof | None = None, subjects: SubjectKeys | None = None,
        check_new: Callable[[IcebergKey], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.masters = MasterKeys(kms, audit, proof)
        self.subjects, self.check_new = subjects, check_new
        self.store = store
        # A set: in a string, passed by mistake, `in` would match every substring.
        self.master_key_ids = None if master_key_ids is None else frozenset(master_key_ids)
        self._stored: Mapping[str, IcebergKey] = {}
        self._open = KeyCache[OpenKey](CACHE_SECONDS)

    def __repr__(self) -> str:
        return f"KeyResolver({type(self.masters.client).__name__})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a KeyResolver can't be pickled: create one in each process")

    def keks(self, metadata: TableMetadata) -> dict[str, IcebergKey]:
        """Return the KEKs of a table by id: those in its metadata, then its own in the store.

        Raise KeyMaterialError if one is malformed.
        """
        keks = {id_: IcebergKey.of(metadata.keys[id_]) for id_ in metadata.kek_ids()}
        stored = {id_: kek for id_, kek in self._read_store().items() if _is_of(kek, metadata)}
        return {**keks, **{id_: kek for id_, kek in stored.items() if id_ not in keks}}

    def find(self, key_id: str, metadata: TableMetadata) -> IcebergKey:
        """Return the KEK with the given id.

        Raise KeyNotFoundError if neither the table's metadata nor the store has the KEK; and
        KeyMaterialError if the entry is not a KEK, or is under a master key that is not allowed.
        """
        if (entry := metadata.keys.get(key_id)) is not None:
            self._check_master(entry, metadata)
            return IcebergKey.of(entry)
        if (kek := self._stored.get(key_id)) is None:
            with self._open.remember_refusal(key_id):
                kek = self._read_store().get(key_id) or self._fail_not_found(key_id)
        if not _is_of(kek, metadata):
            self._fail_not_found(key_id)
        self._check_expected(kek)
        return kek

    def _read_store(self) -> Mapping[str, IcebergKey]:
        if self.store is not None:
            self._stored = self.store.keys()
        return self._stored

    def _fail_not_found(self, key_id: str) -> NoReturn:
        hint = ", and no key_store was given"
        where = "the table's metadata" + (hint if self.store is None else " nor in the key store")
        raise KeyNotFoundError(f"key {key_id!r} of the table is not in {where}")

    def _check_master(self, entry: EncryptedKey, metadata: TableMetadata) -> None:
        """Raise if an entry of `encryption-keys` is under a master key that is not allowed."""
        allowed = self.master_key_ids
        if allowed is None and metadata.master_key_id is not None:
            allowed = frozenset((metadata.master_key_id,))
        if allowed is not None and entry.encrypted_by not in allowed:
            raise _unexpected_master_key(entry.id, entry.encrypted_by)

    def _check_expected(self, key: IcebergKey) -> None:
        """Raise if the IEK that the store or a manifest names is under an unexpected master key."""
        # By default any is allowed: a store moves to another master key before the table does.
        if self.master_key_ids is not None and key.master_key_id not in self.master_key_ids:
            raise _unexpected_master_key(key.id, key.master_key_id)

    def open_key(self, key: IcebergKey) -> OpenKey:
        """Return an IEK, unwrapped; ask the key service once per hour for each IEK."""
        return self._open.get((key.id, key.wrapped), lambda: self._unwrap(key))

    def cache_key(self, open_key: OpenKey) -> OpenKey:
        """Cache an IEK that this process created."""
        return self._open.put((open_key.key.id, open_key.key.wrapped), open_key)

    def fetch_keys(self, keys: Iterable[IcebergKey]) -> None:
        """Have KEKs that are not open unwrapped together; `open_key` takes them. See `fetch`."""
        self.masters.fetch_keks(key for key in keys if not self._open.has((key.id, key.wrapped)))

    def _unwrap(self, key: IcebergKey) -> OpenKey:
        try:
            return self.masters.open_key(key)
        except KeyRetrievalError:
            # Another process may have re-wrapped it since the store was read.
            fresh = self._read_store().get(key.id, key)
            if fresh.wrapped == key.wrapped or fresh.properties != key.properties:
                raise
        self._check_expected(fresh)
        return self.masters.open_key(fresh)

    def decrypt_entry(self, entry: EncryptedKey, metadata: TableMetadata) -> StandardKeyMetadata:
        """Decrypt a manifest list's key metadata; raise KeyRetrievalError if impossible."""
        if entry.is_single:
            self._check_master(entry, metadata)
            key = IcebergKey.single(entry.encrypted_by)
        else:
            key = self.find(entry.encrypted_by, metadata)
        return self.open_key(key).decrypt(entry.encrypted)

    def fetch_entries(self, entries: Iterable[EncryptedKey], metadata: TableMetadata) -> None:
        """Have the keys of manifest lists unwrapped together; `open_entry` takes them."""
        singles: dict[str, list[bytes]] = {}
        keks: dict[str, IcebergKey] = {}
        for entry in entries:
            with contextlib.suppress(ModcryptError, OSError):  # `open_entry` raises it
                if entry.is_single:
                    self._check_master(entry, metadata)
                    wrapped = wrapped_part(entry.encrypted)
                    singles.setdefault(entry.encrypted_by, []).append(wrapped)
                elif entry.encrypted_by not in keks:
                    keks[entry.encrypted_by] = self.find(entry.encrypted_by, metadata)
        self._fetch(singles, keks.values())

    def _fetch(self, singles: Mapping[str, list[bytes]], keks: Iterable[IcebergKey]) -> None:
        for master_key_id, wrapped in singles.items():
            self.masters.fetch(wrapped, master_key_id)
        self.fetch_keys(keks)

    def encrypt_entry(self, metadata: StandardKeyMetadata, opened: OpenKey) -> EncryptedKey:
        """Encrypt the key metadata of a new manifest list as a new entry of `encryption-keys`."""
        properties = {} if opened.key.is_double else {WRAPPING: "single"}
        return EncryptedKey(new_key_id(), opened.encrypt(metadata), opened.key.id, properties)

    @hide_frames
    def open_metadata(self, data: bytes, metadata: TableMetadata) -> StandardKeyMetadata:
        """Decrypt the key metadata of a data or delete file in the form of its manifest.

        Raises:
            FormatError, KeyRetrievalError: The key metadata is malformed, or its key unavailable.
        """
        if not is_encrypted_metadata(data):
            return StandardKeyMetadata.decode(data)
        key_id, single, encrypted = _split_encrypted(data)
        key = IcebergKey.single(key_id) if single else self.find(key_id, metadata)
        self._check_expected(key)
        return self.open_key(key).decrypt(encrypted, in_manifest=True)

    def fetch_metadata(self, data: Iterable[bytes], metadata: TableMetadata) -> None:
        """Have the keys of files unwrapped together; `open_metadata` takes them."""
        singles: dict[str, list[bytes]] = {}
        keks: dict[str, IcebergKey] = {}
        for item in filter(is_encrypted_metadata, data):
            with contextlib.suppress(ModcryptError, OSError):  # `open_metadata` raises it
                key_id, single, encrypted = _split_encrypted(item)
                if single:
                    self._check_expected(IcebergKey.single(key_id))
                    singles.setdefault(key_id, []).append(wrapped_part(encrypted))
                elif key_id not in keks:
                    keks[key_id] = self.find(key_id, metadata)
                    self._check_expected(keks[key_id])
        self._fetch(singles, keks.values())


def encrypt_for_manifest(metadata: Sequence[StandardKeyMetadata], opened: OpenKey) -> list[bytes]:
    """Encrypt the key metadata of data or delete files with an IEK, for their manifest.

    Raise ValueError if the IEK's id is longer than 65535 bytes; else as `OpenKey.encrypt_many`.
    """
    name = opened.key.id.encode()
    if len(name) > 0xFFFF:
        raise ValueError("the id of a key exceeds 65535 bytes")
    kind = _DOUBLE if opened.key.is_double else _SINGLE
    head = bytes((kind,)) + len(name).to_bytes(2, "big") + name
    return [head + block for block in opened.encrypt_many(metadata, in_manifest=True)]


def fetch_from_manifest(data: Iterable[bytes], opened: OpenKey) -> None:
    """Have data keys that a master key wraps unwrapped together, for `open_from_manifest`."""
    if not opened.key.is_double:
        wrapped = (wrapped_part(_split_encrypted(item)[2]) for item in data)
        opened.masters.fetch(wrapped, opened.key.master_key_id)


def open_from_manifest(data: bytes, opened: OpenKey) -> StandardKeyMetadata:
    """Decrypt the result of `encrypt_for_manifest` with the same IEK, without a table."""
    key_id, single, encrypted = "", False, b""
    if is_encrypted_metadata(data):
        key_id, single, encrypted = _split_encrypted(data)
    if (key_id, single) != (opened.key.id, not opened.key.is_double):
        message = f"the key metadata of a file is not encrypted with key {opened.key.id!r}"
        raise KeyMaterialError(message)
    return opened.decrypt(encrypted, in_manifest=True)


ENCRYPTED = (bytes((_DOUBLE,)), bytes((_SINGLE,)))
"""Beginnings of key metadata that an IEK encrypts."""


def is_encrypted_metadata(data: bytes) -> bool:
    """Return whether an IEK encrypts the key metadata; in plaintext it begins with 1."""
    return data.startswith(ENCRYPTED)


def encrypting_key(data: bytes | None) -> tuple[str, bool] | None:
    """Return the id of the IEK that encrypts key metadata, and whether it is a master key itself.

    None if a file has no key metadata, or in plaintext. Raise KeyMaterialError if the data names no
    key.
    """
    if data is None or not is_encrypted_metadata(data):
        return None
    key_id, single, _ = _split_encrypted(data)
    return key_id, single


def wrapped_by_master(data: bytes) -> tuple[str, bytes] | None:
    """Return the id of the master key that wraps the data key of key metadata, and that key.

    None if key metadata is in plaintext or encrypted with a KEK. For errors see `encrypting_key`.
    """
    if data[:1] != bytes((_SINGLE,)):
        return None
    key_id, _, encrypted = _split_encrypted(data)
    return key_id, wrapped_part(encrypted)


def _split_encrypted(data: bytes) -> tuple[str, bool, bytes]:
    size = int.from_bytes(data[1:3], "big")
    name = data[3 : 3 + size]
    with contextlib.suppress(UnicodeDecodeError):
        if 0 < size == len(name):
            return name.decode(), data[0] == _SINGLE, data[3 + size :]
    raise KeyMaterialError("the encrypted key metadata of a file names no key")


def _is_of(key: IcebergKey, metadata: TableMetadata) -> bool:
    """Return whether a KEK in a store that serves several tables is for this table."""
    return key.properties.get(TABLE, metadata.uuid) == metadata.uuid


def _unexpected_master_key(key_id: str, master_key_id: str) -> KeyMaterialError:
    return KeyMaterialError(
        f"key {key_id!r} of the table is under the master key {master_key_id!r}, which is not the "
        "table's master key, or none of those expected"
    )
