"""A table's master keys: have the key service wrap and unwrap data keys and KEKs as bytes.

Tables store wrapped keys as bytes, as Iceberg's Java does; `KmsClient` has text. Keys are wrapped
without AAD, because Iceberg's `KeyManagementClient` has none.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
)
from modcrypt.iceberg.format.table_metadata import SCOPE
from modcrypt.iceberg.keys.wrapping_keys import (
    KEY_TIMESTAMP,
    TABLE,
    IcebergKey,
    OpenKey,
    new_key_id,
)
from modcrypt.keys import Key, KeyLike, as_key
from modcrypt.kms.audit import Audit, record_use
from modcrypt.kms.calls import can_unwrap_many, rewrap, rewrap_many, unwrap, unwrap_many, wrap_many
from modcrypt.kms.client import KmsClient, capabilities_of
from modcrypt.kms.proof import WrapProof, require_same
from modcrypt.pkmt1.strict_json import decode_base64, encode_base64
from modcrypt.runtime.tracebacks import hide_frames

AHEAD_SECONDS = 600.0
"""Seconds after which a key of `MasterKeys.fetch` that was not taken is requested again."""

_REFUSALS = (KeyAccessDeniedError, KeyNotFoundError, KeyMaterialError)

_AZURE = re.compile(
    r'\{"masterKeyVersion":"[0-9a-f]{32}","encryptedKey":"([A-Za-z0-9+/]{1,20000}={0,2})"\}'
)


class _Ahead:
    """Answers of the key service to many questions at once, until they are taken or expire."""

    def __init__(self) -> None:
        # By operation, master key and the key or wrapped key; with the time of expiry.
        self._answers: dict[tuple[str, str, Key | bytes], tuple[Any, float]] = {}

    def put(self, operation: str, master_key_id: str, answers: Mapping[Any, object]) -> None:
        """Keep the answers to an operation by what was asked, and drop expired ones."""
        now = time.monotonic()
        for place, (_, until) in list(self._answers.items()):
            if until <= now:
                self._answers.pop(place, None)
        for asked, answer in answers.items():
            self._answers[operation, master_key_id, asked] = answer, now + AHEAD_SECONDS

    def find(self, operation: str, master_key_id: str, asked: Key | bytes) -> Any:
        """Return an answer that has not expired; None without one."""
        answer, until = self._answers.get((operation, master_key_id, asked), (None, 0.0))
        return answer if time.monotonic() < until else None

    def take(self, operation: str, master_key_id: str, asked: Key | bytes) -> Any:
        """Return an answer as `find`, and drop it."""
        answer = self.find(operation, master_key_id, asked)
        self._answers.pop((operation, master_key_id, asked), None)
        return answer


class MasterKeys:
    """The key service of a table, which wraps keys with its master keys.

    Each call for many keys is made ahead by `fetch` or `fetch_moves`. `unwrap`, `wrap` and `move`
    take these answers, and ask the service for keys without one. The proof of a new wrap asks the
    service itself, because an answer that was fetched before proves nothing about the wrap.
    """

    def __init__(
        self, client: KmsClient, audit: Audit | None = None, proof: WrapProof | None = None
    ) -> None:
        self.client, self.audit = client, audit
        # A commit replaces the snapshot that readers get: even an append proves its new KEKs.
        self.proof = proof or WrapProof()
        self._ahead = _Ahead()

    def __repr__(self) -> str:
        return f"MasterKeys({type(self.client).__name__})"

    def wrap(self, key: Key, master_key_id: str, kek_id: str | None = None) -> bytes:
        """Wrap a key. Raises the errors of `wrap_many`."""
        return self.wrap_many([key], master_key_id, [kek_id])[0]

    def wrap_many(
        self, keys: Sequence[Key], master_key_id: str, kek_ids: Sequence[str | None] = (), *,
        replaces: bool = True,
    ) -> list[bytes]:  # fmt: skip
        """Wrap data keys or KEKs with as few calls as the key service allows.

        The audit records `kek_ids`, the ids of the KEKs. `replaces` says whether something old is
        replaced, as for `WrapProof.check`. Raise KeyRetrievalError if the key service refuses, as
        for `KmsClient.wrap`, or a new wrap does not open; or a table cannot store its answer.
        """
        ready = [self._ahead.take("wrap", master_key_id, key) for key in keys]
        if None not in ready:
            return ready
        with self._record("wrap", master_key_id, keys, kek_ids):
            wrapped = [wrapped_bytes(t) for t in wrap_many(self.client, keys, master_key_id)]
        ids = dict(zip(wrapped, kek_ids, strict=False))
        self.proof.check_keys(
            master_key_id, keys, wrapped,
            lambda new: self._request_many(new, master_key_id, kek_ids and [ids[n] for n in new]),
            together=can_unwrap_many(self.client), replaces=replaces,
        )  # fmt: skip
        return wrapped

    def unwrap(self, wrapped: bytes, master_key_id: str, kek_id: str | None = None) -> Key:
        """Have a data key unwrapped, or a KEK; raises as `KmsClient.unwrap`."""
        key: Key | None = self._ahead.take("unwrap", master_key_id, wrapped)
        return key or self._request(wrapped, master_key_id, kek_id)

    def _request(self, wrapped: bytes, master_key_id: str, kek_id: str | None = None) -> Key:
        """Have the key service unwrap a key, whatever `fetch` has got before."""
        with self._record("unwrap", master_key_id, [wrapped], [kek_id]):
            return as_key(unwrap(self.client, format_wrapped_key(wrapped), master_key_id))

    def _request_many(
        self, wrapped: Sequence[bytes], master_key_id: str, kek_ids: Sequence[str | None]
    ) -> Sequence[KeyLike | KeyRetrievalError]:
        """Have keys unwrapped; only the error of a single one is raised and not returned."""
        if len(wrapped) == 1:
            return [self._request(wrapped[0], master_key_id, *kek_ids)]
        with self._record("unwrap", master_key_id, wrapped, kek_ids):
            texts = [format_wrapped_key(data) for data in wrapped]
            return unwrap_many(self.client, texts, master_key_id)

    def _record(
        self, operation: Literal["wrap", "unwrap", "rewrap"], master_key_id: str,
        keys: Sequence[object], kek_ids: Sequence[str | None],
    ) -> AbstractContextManager[None]:  # fmt: skip
        """Record a call for many keys: an event for each KEK, or one for all data keys."""
        ids, count = (kek_ids, 1) if kek_ids else ((None,), len(keys))
        return record_use(self.audit, operation, master_key_id, kek_ids=ids, count=count)

    def fetch(
        self, wrapped: Iterable[bytes], master_key_id: str, kek_ids: Sequence[str | None] = ()
    ) -> None:
        """Have many keys unwrapped, if the service has a call for that; `unwrap` then takes them.

        What the service refuses, `unwrap` requests again to raise the error of that key. Raise
        KmsUnavailableError if the service is unavailable.
        """
        ids = dict(itertools.zip_longest(wrapped, kek_ids))
        if len(ids) < 2 or not can_unwrap_many(self.client):
            return
        of_keks = list(ids.values()) if kek_ids else ()
        with contextlib.suppress(*_REFUSALS):
            keys = self._request_many(list(ids), master_key_id, of_keks)
            pairs = zip(ids, keys, strict=True)
            found = {data: as_key(key) for data, key in pairs if isinstance(key, bytes)}
            self._ahead.put("unwrap", master_key_id, found)

    def fetch_keks(self, keks: Iterable[IcebergKey]) -> None:
        """Have KEKs unwrapped together, those of each master key by one `fetch`."""
        by_master: dict[str, dict[bytes, str]] = {}
        for kek in keks:
            if kek.wrapped is not None:
                by_master.setdefault(kek.master_key_id, {})[kek.wrapped] = kek.id
        for master_key_id, group in by_master.items():
            self.fetch(group, master_key_id, list(group.values()))

    def fetch_moves(
        self, wrapped: Iterable[bytes], old_id: str, new_id: str, kek_ids: Sequence[str | None] = ()
    ) -> None:
        """Have many keys moved, if the service has calls for that; `move` then takes them.

        So do `unwrap` and `wrap` of these keys. As `fetch`, leave out what the service refuses.
        """
        data = list(dict.fromkeys(wrapped))
        if len(data) < 2 or not can_unwrap_many(self.client):
            return
        if old_id == new_id and capabilities_of(self.client).rewrap and kek_ids:
            self._fetch_rewraps(data, old_id, kek_ids)
            return
        self.fetch(data, old_id, kek_ids)
        found = [(n, self._ahead.find("unwrap", old_id, item)) for n, item in enumerate(data)]
        there = [(n, key) for n, key in found if key is not None]
        keys, ids = [key for _, key in there], [kek_ids[n] for n, _ in there] if kek_ids else []
        wraps = self.wrap_many(keys, new_id, ids)
        self._ahead.put("wrap", new_id, dict(zip(keys, wraps, strict=True)))

    def _fetch_rewraps(
        self, wrapped: Sequence[bytes], master_key_id: str, kek_ids: Sequence[str | None]
    ) -> None:
        with contextlib.suppress(*_REFUSALS):
            with self._record("rewrap", master_key_id, wrapped, kek_ids):
                old = [format_wrapped_key(data) for data in wrapped]
                texts = rewrap_many(self.client, old, master_key_id)
            pairs = zip(wrapped, texts, strict=True)
            new = {data: wrapped_bytes(text) for data, text in pairs if isinstance(text, str)}
            for data in new.values():  # a proof asks the service
                self._ahead.take("unwrap", master_key_id, data)
            self.fetch(new.values(), master_key_id)
            self._ahead.put("rewrap", master_key_id, new)

    @hide_frames
    def move(
        self, wrapped: bytes, old_id: str, new_id: str, kek_id: str | None = None,
        opens: Callable[[Key], object] | None = None,
    ) -> bytes:  # fmt: skip
        """Wrap a KEK again with the newest version of its master key, or with another one.

        `opens` raises KeyMaterialError if a key opens nothing; by default, if it is not what the
        service unwraps another time. It checks a KEK that leaves the service, and the new wraps
        that the proof of the run requires.
        """
        if opens is None:
            opens = lambda key: require_same(self._request(wrapped, old_id, kek_id), key)  # noqa: E731
        if old_id != new_id or not capabilities_of(self.client).rewrap:
            key = self.unwrap(wrapped, old_id, kek_id)
            opens(key)
            return self.wrap(key, new_id, kek_id)
        new: bytes | None = self._ahead.take("rewrap", old_id, wrapped)
        ahead, ask = new is not None, self._request if new is None else self.unwrap
        if new is None:
            with self._record("rewrap", old_id, [wrapped], [kek_id]):
                new = wrapped_bytes(rewrap(self.client, format_wrapped_key(wrapped), old_id))
        self.proof.check(old_id, new, lambda: opens(ask(new, old_id, kek_id)), each=ahead)
        return new

    def try_master_key(self, master_key_id: str, length: int) -> None:
        """Have a key wrapped on trial, before a table names its master key.

        Who creates tables may be allowed to encrypt only. Raises the errors of `wrap_many`.
        """
        trial = MasterKeys(self.client, self.audit)
        trial.wrap_many([Key.generate(length)], master_key_id, replaces=False)

    def new_kek(self, master_key_id: str, length: int, scope: str = "", **more: Any) -> OpenKey:
        """Create a KEK. Arguments and errors are those of `new_keks`."""
        return self.new_keks(master_key_id, length, [scope], **more)[0]

    def new_keks(
        self, master_key_id: str, length: int, scopes: Sequence[str], *, table: str | None = None,
        now_ms: int | None = None,
    ) -> list[OpenKey]:  # fmt: skip
        """Create a KEK of `length` bytes for each scope, wrapped by a master key.

        A scope is the files that a KEK is for; an empty one stands for the whole table. `table` is
        the `table-uuid`, only for KEKs that go to a key store. `now_ms`, the time of creation in ms
        since 1970, is the current time by default. Raise ValueError if AES has no keys of this
        length.
        """
        keys = [Key.generate(length) for _ in scopes]
        now = int(time.time() * 1000) if now_ms is None else now_ms
        own = {} if table is None else {TABLE: table}
        ids = [new_key_id() for _ in scopes]
        wraps, keks = self.wrap_many(keys, master_key_id, ids), []
        for id_, key, wrapped, scope in zip(ids, keys, wraps, scopes, strict=True):
            properties = {KEY_TIMESTAMP: str(now), **({SCOPE: scope} if scope else {}), **own}
            keks.append(OpenKey(IcebergKey(id_, master_key_id, wrapped, properties), self, key))
        return keks

    def open_key(self, key: IcebergKey) -> OpenKey:
        """Unwrap a KEK; a master key itself is only used later, when it wraps or unwraps."""
        if key.wrapped is None:
            return OpenKey(key, self)
        try:
            return OpenKey(key, self, self.unwrap(key.wrapped, key.master_key_id, key.id))
        except KeyRetrievalError as error:
            error.args = (f"key {key.id!r} of the table: {error}",)
            raise


def wrapped_bytes(text: str) -> bytes:
    """Return a wrapped key in the form that tables store.

    Base64 text, which the clients of AWS and Google return, becomes its bytes, as Iceberg's own
    clients store them; of Azure's JSON, the same is stored, without the key's version. Other text
    (`vault:v1:...`, a keyring's JSON) is stored as ASCII. Raise KeyMaterialError if
    `format_wrapped_key` would not give text that the service unwraps.
    """
    if azure := _AZURE.fullmatch(text):
        text = azure[1]
    with contextlib.suppress(KeyMaterialError):
        decoded = decode_base64(text, "a wrapped key")
        if format_wrapped_key(decoded) == text:
            return decoded
    if text.isascii() and text.isprintable():
        return text.encode()
    raise KeyMaterialError(
        "the wrapped key from the key service is neither base64 nor printable ASCII"
    )


def format_wrapped_key(wrapped: bytes) -> str:
    """Undo `wrapped_bytes`: a service's bytes are never all printable, but for 1 in 10**18."""
    if wrapped.isascii() and (text := wrapped.decode()).isprintable():
        return text
    return encode_base64(wrapped)
