"""Data keys wrapped and unwrapped, by the key service itself or under KEKs that it wraps.

Single wrapping: the service wraps every data key (DEK). Double wrapping: it wraps a key encryption
key (KEK), and that wraps data keys here; so a thousand files cost the service one call.

    DEK under KEK: base64( nonce (12) | ciphertext | tag (16) ), AAD the KEK's 16 id bytes

KEKs are kept for a while: those that wrap by master key, those that unwrap by what they were
unwrapped from. Each is asked for once, however many threads want it.
"""

from __future__ import annotations

import base64
import binascii
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import urandom
from typing import Any, TypeAlias

from modcrypt.aead import BLOCK_OVERHEAD, GcmCipher, TagError
from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.fork_safety import fork_safe
from modcrypt.keys import KEY_LENGTHS, Key, as_key, key_bytes
from modcrypt.kms import client as kms
from modcrypt.kms.audit import Audit, recorded
from modcrypt.kms.client import KmsClient
from modcrypt.pkmt1.material import KEK_ID_SIZE, KeyMaterial
from modcrypt.tracebacks import hide_frames

__all__ = ["Kek", "KeyWrapper", "Refusals"]

_Place: TypeAlias = "tuple[str, bytes, str]"  # master key id, KEK id, wrapped KEK

MAX_CACHED = 100_000
"""Most KEKs that are kept for unwrapping; then all are forgotten."""

REFUSAL_LIFETIME = 30.0
"""Seconds for which a refused KEK isn't asked for again: a dataset may have it in every file."""

UNAVAILABLE_LIFETIME = 1.0
"""The same where the service was unavailable: for the threads that waited for the same KEK."""


MAX_DAMAGED = 3
"""Keys of one file that may fail to unwrap before no more are tried."""

MAX_REFUSED = 3
"""Keys of one file that are asked for under a master key that refuses each of them."""

MAX_REFUSING = 16
"""Master keys of one file that may refuse before no others are asked."""


@dataclass(frozen=True, slots=True)
class Kek:
    """A key encryption key, and what files store of it."""

    master_key_id: str
    id: bytes
    wrapped: str
    cipher: GcmCipher
    length: int
    expires: float
    heads: dict[tuple[bool, bool], str] = field(default_factory=dict, compare=False)

    @hide_frames
    def wrap(self, dek: Key) -> str:
        """Wrap a data key."""
        return base64.b64encode(self.cipher.seal_block(key_bytes(dek), self.id)).decode()

    def material(self, wrapped: str, *, is_footer_key: bool, internal: bool) -> KeyMaterial:
        """Give the key material of a data key that `wrap` wrapped."""
        return KeyMaterial(
            is_footer_key=is_footer_key,
            master_key_id=self.master_key_id,
            wrapped_dek=wrapped,
            kek_id=self.id,
            wrapped_kek=self.wrapped,
            internal=internal,
        )

    def encoded(self, dek: Key, *, is_footer_key: bool, internal: bool) -> str:
        """Wrap a data key and give its material as JSON; what is common to all of them is kept."""
        head = self.heads.get((is_footer_key, internal))
        if head is None:
            head = self.material("", is_footer_key=is_footer_key, internal=internal).head()
            self.heads[is_footer_key, internal] = head
        return f'{head}"{self.wrap(dek)}"}}'  # base64 needs no escapes

    def unwrap(self, wrapped: str) -> Key:
        """Unwrap a data key.

        Raises:
            KeyMaterialError: it does not unwrap.
        """
        try:
            block = base64.b64decode(wrapped, validate=True)
        except (binascii.Error, ValueError):
            block = b""
        if len(block) - BLOCK_OVERHEAD not in KEY_LENGTHS:
            raise KeyMaterialError("the wrapped data key is not the base64 of one")
        try:
            return Key(self.cipher.open_block(block, self.id))
        except TagError:
            raise KeyMaterialError(
                f"the data key does not unwrap under its KEK (master key {self.master_key_id}): "
                "altered bytes, or the KEK of another file"
            ) from None


class Refusals:
    """The refused keys of one file: after a few the key service is not asked for the others.

    Anyone can write a file, or alter the key material beside it, to name thousands of keys.

    Args:
        prove: Whether each key is asked for that does not turn out to be damaged, however many
            are refused: to prove that all are.
    """

    def __init__(self, *, prove: bool = False) -> None:
        self._prove = prove
        self._damaged = 0
        self._refused: dict[str, list[tuple[type[ModcryptError], str]]] = {}  # by master key id
        self._granted: set[str] = set()

    @contextmanager
    def counted(self, master_key_id: str) -> Iterator[None]:
        """Count what becomes of asking for one key.

        Raises:
            KeyMaterialError: too many keys of the file did not unwrap.
            KeyRetrievalError: too many master keys refused; or what this one answered before.
        """
        self._raise_if_enough(master_key_id)
        try:
            yield
        except KeyMaterialError:
            self._damaged += 1
            raise
        except (KeyAccessDeniedError, KeyNotFoundError) as error:
            self._refused.setdefault(master_key_id, []).append((type(error), str(error)))
            raise
        self._granted.add(master_key_id)

    def _raise_if_enough(self, master_key_id: str) -> None:
        if self._damaged >= MAX_DAMAGED:
            raise KeyMaterialError(
                f"not tried, as {MAX_DAMAGED} other keys of this file do not unwrap: its key "
                "material is damaged or forged"
            )
        if self._prove or master_key_id in self._granted:
            return
        refused = self._refused.get(master_key_id, [])
        if len(refused) >= MAX_REFUSED:
            kind, message = refused[-1]
            raise kind(message)
        if not refused and len(self._refused) >= MAX_REFUSING:
            raise KeyRetrievalError(
                f"not asked for, as {MAX_REFUSING} other master keys of this file were refused: "
                "read fewer columns at a time"
            )


class KeyWrapper:
    """Wraps and unwraps data keys with one key service, from any thread.

    Args:
        client: of the key service.
        cache_lifetime: seconds that a KEK is kept for.
        aad: what the service binds every wrapped key to, where it can.
        audit: called with every use of a key.
        clock: for tests.
    """

    def __init__(
        self,
        client: KmsClient,
        *,
        cache_lifetime: float,
        aad: bytes = b"",
        audit: Audit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client, self.aad, self.audit = client, aad, audit
        self._lifetime, self._clock = cache_lifetime, clock
        self._writing: dict[tuple[str, int], Kek] = {}  # by master key id and length
        self._reading: dict[_Place, Kek] = {}
        self._refused: dict[object, tuple[type[ModcryptError], str, float]] = {}
        self._locks: dict[object, threading.Lock] = {}
        self._guard = fork_safe(threading.Lock())
        _wrappers.add(self)

    def __repr__(self) -> str:
        return f"KeyWrapper({self.client!r})"

    # --- writing ---------------------------------------------------------------------------------

    def wrap(self, deks: Sequence[Key], master_key_id: str) -> list[str]:
        """Have data keys wrapped by the service: single wrapping; raises as `KmsClient.wrap`."""
        wrapped: list[str] = self._call(
            "wrap", master_key_id, kms.wrap_many, deks, master_key_id, count=len(deks)
        )
        return wrapped

    def writing_kek(self, master_key_id: str, length: int = 16) -> Kek:
        """Give the KEK that wraps data keys at present, made when there is none.

        Args:
            master_key_id: under which it is wrapped.
            length: in bytes.

        Raises:
            KeyRetrievalError: as `KmsClient.wrap`.
        """
        place = master_key_id, length
        kek = self._writing.get(place)
        if kek is None or kek.expires <= self._clock():
            with self._lock(place):
                kek = self._writing.get(place)  # another thread may have made it
                if kek is None or kek.expires <= self._clock():
                    self._raise_if_refused(place)
                    with self._keeping_refusals(place):
                        kek = self._writing[place] = self._new_kek(master_key_id, length)
        return kek

    def forget(self) -> None:
        """Forget all KEKs, so that the service is asked again: after a rotation or revocation."""
        self._writing.clear()
        self._reading.clear()
        self._refused.clear()

    def _new_kek(self, master_key_id: str, length: int) -> Kek:
        key, kek_id = Key.generate(length), urandom(KEK_ID_SIZE)
        wrapped = self._call("wrap", master_key_id, kms.wrap, key, master_key_id, kek_id=kek_id)
        return Kek(master_key_id, kek_id, wrapped, GcmCipher(key), length, self._expiry())

    # --- reading ---------------------------------------------------------------------------------

    def unwrap(self, material: KeyMaterial) -> Key:
        """Unwrap the data key of key material.

        Raises:
            KeyMaterialError: it does not unwrap.
            KeyRetrievalError: as `KmsClient.unwrap`.
        """
        if material.double_wrapping:
            return self.reading_kek(material).unwrap(material.wrapped_dek)
        return self._unwrapped(material.wrapped_dek, material.master_key_id)

    def reading_kek(self, material: KeyMaterial) -> Kek:
        """Give the KEK of key material in double wrapping; raises as `unwrap`."""
        kek_id, wrapped = material.kek_id, material.wrapped_kek
        assert kek_id is not None
        assert wrapped is not None
        place = material.master_key_id, kek_id, wrapped
        kek = self._known(place)
        if kek is None:
            try:
                with self._lock(place):
                    kek = self._known(place) or self._ask_for_kek(place)
            finally:
                with self._guard:
                    self._locks.pop(place, None)
        return kek

    def _known(self, place: _Place) -> Kek | None:
        kek = self._reading.get(place)
        if kek is not None and kek.expires > self._clock():
            return kek
        self._raise_if_refused(place)
        return None

    def _raise_if_refused(self, place: object) -> None:
        kind, message, until = self._refused.get(place, (None, "", 0.0))
        if kind is not None and until > self._clock():
            raise kind(message)

    @contextmanager
    def _keeping_refusals(self, place: object) -> Iterator[None]:
        """Keep what the service answers where it refuses, so as not to ask again at once."""
        try:
            yield
        except (KeyAccessDeniedError, KeyNotFoundError, KmsUnavailableError) as error:
            passing = isinstance(error, KmsUnavailableError)
            until = self._clock() + (UNAVAILABLE_LIFETIME if passing else REFUSAL_LIFETIME)
            self._refused[place] = type(error), str(error), until
            raise

    def _ask_for_kek(self, place: _Place) -> Kek:
        master_key_id, kek_id, wrapped = place
        if len(self._reading) + len(self._refused) >= MAX_CACHED:
            self._reading.clear()
            self._refused.clear()
        with self._keeping_refusals(place):
            key = self._unwrapped(wrapped, master_key_id, kek_id)
        kek = Kek(master_key_id, kek_id, wrapped, GcmCipher(key), len(key), self._expiry())
        self._reading[place] = kek
        return kek

    # --- the service -----------------------------------------------------------------------------

    def rewrap(self, wrapped: str, master_key_id: str) -> str:
        """Have a key wrapped under its master key's newest version; raises as `unwrap`."""
        answer: str = self._call("rewrap", master_key_id, kms.rewrap, wrapped, master_key_id)
        return answer

    def move(self, wrapped: str, old_id: str, new_id: str) -> str:
        """Have a key wrapped under another master key; raises as `unwrap`."""
        key = self._unwrapped(wrapped, old_id)
        answer: str = self._call("wrap", new_id, kms.wrap, key, new_id)
        return answer

    def _unwrapped(self, wrapped: str, master_key_id: str, kek_id: bytes | None = None) -> Key:
        # No local variable holds the raw key.
        return as_key(
            self._call("unwrap", master_key_id, kms.unwrap, wrapped, master_key_id, kek_id=kek_id)
        )

    def _call(
        self, operation: Any, master_key_id: str, ask: Callable[..., Any], *arguments: Any,
        kek_id: bytes | None = None, count: int = 1,
    ) -> Any:  # fmt: skip
        """Ask the service, and record that, whatever comes of it."""
        ids = (None if kek_id is None else kek_id.hex(),)
        with recorded(self.audit, operation, master_key_id, kek_ids=ids, count=count):
            return ask(self.client, *arguments, self.aad)

    def _expiry(self) -> float:
        return self._clock() + self._lifetime

    def _lock(self, place: object) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(place, fork_safe(threading.Lock()))


_wrappers: weakref.WeakSet[KeyWrapper] = weakref.WeakSet()


def _drop_writing_keks() -> None:
    """Drop the KEKs that wrap: the parent counts their uses, too."""
    for wrapper in list(_wrappers):
        wrapper._writing.clear()


os.register_at_fork(after_in_child=_drop_writing_keks)
