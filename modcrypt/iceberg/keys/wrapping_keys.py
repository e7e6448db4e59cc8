"""Iceberg encryption keys (IEK): what the key metadata of a table's files is sealed under.

The one notion has two kinds (design thread "Iceberg Table Encryption", 2021):

    double wrapping   a KEK, made here and wrapped by a master key (MEK) of the key service:
                      nonce (12) | AES-GCM(KEK, key metadata) | tag (16)
    single wrapping   a master key itself, which wraps each data key (DEK):
                      length of the wrapped DEK (2, big-endian) | wrapped DEK |
                      nonce (12) | AES-GCM(DEK, 0, or 1 and file length (8); AAD prefix) | tag (16)

What is sealed is bound, by AAD, to its key and to the place that it is kept in:

    encryption-keys, double      KEY_TIMESTAMP of the KEK, in ASCII: as Iceberg's Java has it
    encryption-keys, single      "modcrypt iceberg manifest list", id of the master key
    a manifest, double           "modcrypt iceberg file", id of the KEK, KEY_TIMESTAMP, scope
    a manifest, single           "modcrypt iceberg file", id of the master key

where each text but the first row's follows its length (4, big-endian). The first row is all that
Java writes and reads; the others are this package's own. In single wrapping the DEK itself vouches
for the length, or a file could be cut short unnoticed.
"""

from __future__ import annotations

import base64
import contextlib
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Self

from modcrypt.aead import GcmCipher, TagError
from modcrypt.errors import KeyMaterialError, KeyRetrievalError
from modcrypt.fork_safety import cached_property
from modcrypt.iceberg.format.table_metadata import SCOPE, EncryptedKey
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.keys import Key, as_key
from modcrypt.kms.audit import Audit, recorded
from modcrypt.kms.client import KmsClient, rewrap, unwrap, wrap_many
from modcrypt.pkmt1.strict_json import from_base64
from modcrypt.tracebacks import hide_frames

__all__ = [
    "KEY_TIMESTAMP",
    "TABLE",
    "IcebergKey",
    "MasterKeys",
    "OpenKey",
    "new_key_id",
    "wrapped_bytes",
    "wrapped_part",
    "wrapped_text",
]

KEY_TIMESTAMP = "KEY_TIMESTAMP"
"""Property of a KEK: when it was made, in ms since 1970, as text; what it seals is bound to it."""

TABLE = "modcrypt.table"
"""Property of a KEK in a key store: the `table-uuid` of the table that it is for."""

_KEY_ID_SIZE = 16
_OF_LIST, _OF_FILE = "modcrypt iceberg manifest list", "modcrypt iceberg file"
_TIMESTAMP = re.compile(r"[0-9]{1,18}")  # Java's long, and no digits but ASCII's
_LEAST_SEALED = 12 + 1 + 16


def new_key_id() -> str:
    """Give a fresh random id, in the form of Iceberg's Java: base64 of 16 bytes."""
    return base64.b64encode(secrets.token_bytes(_KEY_ID_SIZE)).decode()


@dataclass(frozen=True, slots=True)
class IcebergKey:
    """An Iceberg encryption key (IEK): how to have the key that seals; no key itself.

    Attributes:
        id: by which sealed key metadata names it. In single wrapping, the master key's.
        master_key_id: of the master key in the key service.
        wrapped: the KEK, wrapped by the master key; None in single wrapping.
        properties: of a KEK, its KEY_TIMESTAMP and, if it isn't for the whole table, its scope.

    Raises:
        KeyMaterialError: a KEK without KEY_TIMESTAMP, or an id that is no text of Unicode.
    """

    id: str
    master_key_id: str
    wrapped: bytes | None = field(default=None, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _utf8(self.id)
        _utf8(self.scope)
        if self.is_double and not _TIMESTAMP.fullmatch(self.properties.get(KEY_TIMESTAMP, "")):
            raise KeyMaterialError(
                f"key {self.id!r} of the table: no KEK: it has no {KEY_TIMESTAMP} in milliseconds"
            )

    @classmethod
    def single(cls, master_key_id: str) -> Self:
        """Give the IEK that is a master key itself."""
        return cls(master_key_id, master_key_id)

    @classmethod
    def of(cls, entry: EncryptedKey) -> Self:
        """Give the KEK that an entry of `encryption-keys` is.

        Raises:
            KeyMaterialError: it is none.
        """
        return cls(entry.id, entry.encrypted_by, entry.encrypted, entry.properties)

    @property
    def is_double(self) -> bool:
        """Whether it is a KEK."""
        return self.wrapped is not None

    @property
    def timestamp_ms(self) -> int:
        """When a KEK was made."""
        return int(self.properties[KEY_TIMESTAMP])

    @property
    def scope(self) -> str:
        """Which files a KEK is for; empty for the whole table."""
        return self.properties.get(SCOPE, "")

    def entry(self) -> EncryptedKey:
        """Give a KEK as an entry of `encryption-keys`."""
        if self.wrapped is None:
            raise ValueError("a master key that wraps by itself is no entry of the table's keys")
        return EncryptedKey(self.id, self.wrapped, self.master_key_id, self.properties)


class MasterKeys:
    """The key service, as tables use it: what it wraps is bytes in Iceberg, text in `KmsClient`.

    Keys are wrapped without AAD: Iceberg's `KeyManagementClient` has none.

    Args:
        client: of the key service.
        audit: called with each use of it.
    """

    def __init__(self, client: KmsClient, audit: Audit | None = None) -> None:
        self.client, self.audit = client, audit

    def __repr__(self) -> str:
        return f"MasterKeys({type(self.client).__name__})"

    def wrap(self, key: Key, master_key_id: str, kek_id: str | None = None) -> bytes:
        """Have a key wrapped; raises as `wrap_many`."""
        return self.wrap_many([key], master_key_id, [kek_id])[0]

    def wrap_many(
        self, keys: Sequence[Key], master_key_id: str, kek_ids: Sequence[str | None] = ()
    ) -> list[bytes]:
        """Have keys wrapped, in as few calls as the service allows.

        Args:
            keys: data keys; or KEKs.
            master_key_id: of what wraps them.
            kek_ids: of the KEKs, for the audit.

        Raises:
            KeyRetrievalError: as `KmsClient.wrap`; or its answer can't be kept in a table.
        """
        if not keys:
            return []
        ids, count = (kek_ids, 1) if kek_ids else ((None,), len(keys))
        with recorded(self.audit, "wrap", master_key_id, kek_ids=ids, count=count):
            wrapped = wrap_many(self.client, keys, master_key_id)
        return [wrapped_bytes(one) for one in wrapped]

    def unwrap(self, wrapped: bytes, master_key_id: str, kek_id: str | None = None) -> Key:
        """Have a data key unwrapped, or a KEK; raises as `KmsClient.unwrap`."""
        with recorded(self.audit, "unwrap", master_key_id, kek_ids=[kek_id]):
            return as_key(unwrap(self.client, wrapped_text(wrapped), master_key_id))

    def move(self, wrapped: bytes, old_id: str, new_id: str, kek_id: str | None = None) -> bytes:
        """Have a key wrapped anew, under the newest version of a master key or under another."""
        if old_id != new_id:
            return self.wrap(self.unwrap(wrapped, old_id, kek_id), new_id, kek_id)
        with recorded(self.audit, "rewrap", old_id, kek_ids=[kek_id]):
            return wrapped_bytes(rewrap(self.client, wrapped_text(wrapped), old_id))

    def new_kek(
        self,
        master_key_id: str,
        length: int,
        scope: str = "",
        *,
        table: str | None = None,
        now_ms: int | None = None,
    ) -> OpenKey:
        """Make a KEK; arguments and errors as of `new_keks`."""
        return self.new_keks(master_key_id, length, [scope], table=table, now_ms=now_ms)[0]

    def new_keks(
        self,
        master_key_id: str,
        length: int,
        scopes: Sequence[str],
        *,
        table: str | None = None,
        now_ms: int | None = None,
    ) -> list[OpenKey]:
        """Make KEKs, wrapped by a master key.

        Args:
            master_key_id: of that.
            length: bytes of each KEK.
            scopes: which files each is for; empty for the whole table.
            table: `table-uuid` of the table; only of KEKs that go to a key store.
            now_ms: when they are made; by default now.

        Raises:
            KeyRetrievalError: as `wrap_many`.
            ValueError: a length that no AES key has.
        """
        keys = [Key.generate(length) for _ in scopes]
        now = int(time.time() * 1000) if now_ms is None else now_ms
        own = {} if table is None else {TABLE: table}
        ids = [new_key_id() for _ in scopes]
        made = []
        for id_, key, wrapped, scope in zip(
            ids, keys, self.wrap_many(keys, master_key_id, ids), scopes, strict=True
        ):
            properties = {KEY_TIMESTAMP: str(now), **({SCOPE: scope} if scope else {}), **own}
            kek = IcebergKey(id_, master_key_id, wrapped, properties)
            made.append(OpenKey(kek, self, key))
        return made

    def opened(self, key: IcebergKey) -> OpenKey:
        """Have a KEK unwrapped; a master key is asked when it is used.

        Raises:
            KeyRetrievalError: the key service does not unwrap it.
        """
        if key.wrapped is None:
            return OpenKey(key, self)
        try:
            return OpenKey(key, self, self.unwrap(key.wrapped, key.master_key_id, key.id))
        except KeyRetrievalError as error:
            error.args = (f"key {key.id!r} of the table: {error}",)
            raise


@dataclass(frozen=True, eq=False)
class OpenKey:
    """An IEK that is ready to seal and open the key metadata of files; from any thread.

    Can't be pickled or copied: send its `key` instead, and have that opened there.
    """

    key: IcebergKey
    masters: MasterKeys = field(repr=False)
    _kek: Key | None = field(default=None, repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an OpenKey can't be pickled or copied: send its key, and open that there")

    @cached_property
    def _cipher(self) -> GcmCipher:
        assert self._kek is not None
        return GcmCipher(self._kek)

    def seal(self, metadata: StandardKeyMetadata, *, in_manifest: bool = False) -> bytes:
        """Seal the key metadata of a file; as `seal_many`."""
        return self.seal_many([metadata], in_manifest=in_manifest)[0]

    @hide_frames
    def seal_many(
        self, metadata: Sequence[StandardKeyMetadata], *, in_manifest: bool = False
    ) -> list[bytes]:
        """Seal the key metadata of files, one by one.

        Args:
            metadata: of the files.
            in_manifest: whether it is to be kept in a manifest; else among `encryption-keys`.

        Raises:
            KeyRetrievalError: in single wrapping: the key service does not wrap their keys.
            KeyExhaustedError: the KEK has sealed 2**32 times in this process.
        """
        aad = self._aad(in_manifest)
        if self.key.is_double:
            return [self._cipher.seal_block(one.encode(), aad) for one in metadata]
        wrapped = self.masters.wrap_many([one.key for one in metadata], self.key.master_key_id)
        return [
            len(dek).to_bytes(2, "big") + dek + GcmCipher(one.key).seal_block(_told(one), aad)
            for dek, one in zip(wrapped, metadata, strict=True)
        ]

    @hide_frames
    def open(self, sealed: bytes, *, in_manifest: bool = False) -> StandardKeyMetadata:
        """Open the key metadata of a file.

        Raises:
            KeyMaterialError: altered, or of another key, or kept in another place.
            KeyRetrievalError: the key service does not unwrap it.
        """
        aad = self._aad(in_manifest)
        if self.key.is_double:
            with _as_material(self.key.id):
                return StandardKeyMetadata.decode(self._cipher.open_block(sealed, aad))
        wrapped = wrapped_part(sealed)
        dek = self.masters.unwrap(wrapped, self.key.master_key_id)
        with _as_material(self.key.id):
            return _retold(dek, GcmCipher(dek).open_block(sealed[2 + len(wrapped) :], aad))

    def _aad(self, in_manifest: bool) -> bytes:
        """Give what sealed key metadata is bound to, as at the head of this room."""
        key = self.key
        if not key.is_double:
            return _bound(_OF_FILE if in_manifest else _OF_LIST, key.id)
        timestamp = key.properties[KEY_TIMESTAMP]
        if in_manifest:
            return _bound(_OF_FILE, key.id, timestamp, key.scope)
        return timestamp.encode()


def wrapped_part(sealed: bytes) -> bytes:
    """Give the wrapped DEK of key metadata in single wrapping.

    Raises:
        KeyMaterialError: it is cut short.
    """
    size = int.from_bytes(sealed[:2], "big")
    if not size or len(sealed) < 2 + size + _LEAST_SEALED:
        raise KeyMaterialError("key metadata under a master key: cut short")
    return sealed[2 : 2 + size]


# --- what the key service gives ------------------------------------------------------------------


def wrapped_bytes(text: str) -> bytes:
    """Give a wrapped key as tables keep it.

    Of base64, which the clients of AWS and Google give, the bytes, as Iceberg's own clients store
    them; other text (`vault:v1:...`, a keyring's JSON) as it is, in ASCII.

    Raises:
        KeyMaterialError: `wrapped_text` would not give the same text again.
    """
    with contextlib.suppress(KeyMaterialError):
        decoded = from_base64(text, "a wrapped key")
        if wrapped_text(decoded) == text:
            return decoded
    if text.isascii() and text.isprintable():
        return text.encode()
    raise KeyMaterialError(
        "the key service gave a wrapped key that is neither base64 nor printable ASCII"
    )


def wrapped_text(wrapped: bytes) -> str:
    """Undo `wrapped_bytes`: a service's bytes are never all printable, but for 1 in 10**18."""
    if wrapped.isascii() and (text := wrapped.decode()).isprintable():
        return text
    return base64.b64encode(wrapped).decode()


# --- small helpers -------------------------------------------------------------------------------


def _told(metadata: StandardKeyMetadata) -> bytes:
    """Spell what key metadata says beside the key."""
    length = metadata.file_length
    spelt = b"\0" if length is None else b"\1" + length.to_bytes(8, "big", signed=True)
    return spelt + (metadata.aad_prefix or b"")


def _retold(dek: Key, told: bytes) -> StandardKeyMetadata:
    """Undo `_told`; a ValueError for what it doesn't spell."""
    size = {0: 0, 1: 8}.get(told[0]) if told else None
    if size is None or len(told) < 1 + size:
        raise ValueError
    return StandardKeyMetadata(
        key=dek,
        aad_prefix=told[1 + size :] or None,
        file_length=int.from_bytes(told[1:9], "big", signed=True) if size else None,
    )


def _bound(*texts: str) -> bytes:
    spelt = [_utf8(text) for text in texts]
    return b"".join(len(one).to_bytes(4, "big") + one for one in spelt)


def _utf8(text: str) -> bytes:
    with contextlib.suppress(UnicodeEncodeError):
        return text.encode()
    raise KeyMaterialError("the id or scope of a key has half a surrogate pair: no Unicode")


@contextlib.contextmanager
def _as_material(key_id: str) -> Iterator[None]:
    try:
        yield
    except (TagError, ValueError):
        raise KeyMaterialError(
            f"the key metadata of a file does not open under key {key_id!r} of the table: altered "
            "bytes, or sealed under another key or for another place"
        ) from None
