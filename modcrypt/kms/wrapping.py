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
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import urandom
from typing import Any, TypeAlias

from modcrypt.aead import BLOCK_OVERHEAD, GcmCipher, TagError
from modcrypt.errors import KeyAccessDeniedError, KeyMaterialError, ModcryptError
from modcrypt.keys import KEY_LENGTHS, Key, key_bytes
from modcrypt.kms import client as kms
from modcrypt.kms.audit import Audit, AuditEvent
from modcrypt.kms.client import KmsClient
from modcrypt.kms.material import KEK_ID_SIZE, KeyMaterial

__all__ = ["Kek", "KeyWrapper", "WrappedKey"]

_Place: TypeAlias = "tuple[str, bytes, str]"  # master key id, KEK id, wrapped KEK

MAX_CACHED = 100_000
"""Most KEKs that are kept for unwrapping; then all are forgotten."""

REFUSAL_LIFETIME = 30.0
"""Seconds for which a refused KEK isn't asked for again: a dataset may have it in every file."""


@dataclass(frozen=True, slots=True)
class Kek:
    """A key encryption key, and what files store of it."""

    master_key_id: str
    id: bytes
    wrapped: str
    cipher: GcmCipher
    expires: float

    def wrap(self, dek: Key) -> str:
        """Wrap a data key."""
        return base64.b64encode(self.cipher.seal_block(key_bytes(dek), self.id)).decode()

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


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """What key material says of a data key: the KEK is None in single wrapping."""

    dek: str
    kek: Kek | None

    def material(self, master_key_id: str, *, is_footer_key: bool, internal: bool) -> KeyMaterial:
        """Give the key material of it."""
        return KeyMaterial(
            is_footer_key=is_footer_key,
            master_key_id=master_key_id,
            wrapped_dek=self.dek,
            kek_id=None if self.kek is None else self.kek.id,
            wrapped_kek=None if self.kek is None else self.kek.wrapped,
            internal=internal,
        )


class KeyWrapper:
    """Wraps and unwraps data keys with one key service, from any thread.

    Args:
        client: of the key service.
        cache_lifetime: seconds that a KEK is kept for.
        aad: what the service binds every wrapped key to, where it can.
        kek_length: of fresh KEKs, in bytes.
        audit: called with every use of a key.
        clock: for tests.
    """

    def __init__(
        self,
        client: KmsClient,
        *,
        cache_lifetime: float,
        aad: bytes = b"",
        kek_length: int = 16,
        audit: Audit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client, self.aad, self.audit = client, aad, audit
        self._lifetime, self._kek_length, self._clock = cache_lifetime, kek_length, clock
        self._writing: dict[str, Kek] = {}
        self._reading: dict[_Place, Kek] = {}
        self._refused: dict[_Place, tuple[KeyAccessDeniedError, float]] = {}
        self._locks: dict[object, threading.Lock] = {}
        self._guard = threading.Lock()

    def __repr__(self) -> str:
        return f"KeyWrapper({self.client!r})"

    # --- writing ---------------------------------------------------------------------------------

    def wrap(
        self, deks: Sequence[Key], master_key_id: str, *, double_wrapping: bool
    ) -> list[WrappedKey]:
        """Wrap data keys under a master key; raises as `KmsClient.wrap`."""
        if double_wrapping:
            kek = self.writing_kek(master_key_id)
            return [WrappedKey(kek.wrap(dek), kek) for dek in deks]
        raw = [key_bytes(dek) for dek in deks]
        wrapped = self._call(
            "wrap", master_key_id, kms.wrap_many, raw, master_key_id, count=len(deks)
        )
        return [WrappedKey(one, None) for one in wrapped]

    def writing_kek(self, master_key_id: str) -> Kek:
        """Give the KEK that wraps data keys at present, made when there is none."""
        kek = self._writing.get(master_key_id)
        if kek is None or kek.expires <= self._clock():
            with self._lock(master_key_id):
                kek = self._writing.get(master_key_id)  # another thread may have made it
                if kek is None or kek.expires <= self._clock():
                    kek = self._writing[master_key_id] = self._new_kek(master_key_id)
        return kek

    def forget(self) -> None:
        """Forget all KEKs, so that the service is asked again: after a rotation or revocation."""
        self._writing.clear()
        self._reading.clear()
        self._refused.clear()

    def _new_kek(self, master_key_id: str) -> Kek:
        key, kek_id = Key.generate(self._kek_length), urandom(KEK_ID_SIZE)
        wrapped = self._call(
            "wrap", master_key_id, kms.wrap, key_bytes(key), master_key_id, kek_id=kek_id
        )
        return Kek(master_key_id, kek_id, wrapped, GcmCipher(key), self._expiry())

    # --- reading ---------------------------------------------------------------------------------

    def unwrap(self, material: KeyMaterial) -> Key:
        """Unwrap the data key of key material.

        Raises:
            KeyMaterialError: it does not unwrap.
            KeyRetrievalError: as `KmsClient.unwrap`.
        """
        if material.double_wrapping:
            return self.reading_kek(material).unwrap(material.wrapped_dek)
        raw = self._call(
            "unwrap", material.master_key_id, kms.unwrap, material.wrapped_dek,
            material.master_key_id,
        )  # fmt: skip
        return Key(raw)

    def reading_kek(self, material: KeyMaterial) -> Kek:
        """Give the KEK of key material in double wrapping; raises as `unwrap`."""
        kek_id, wrapped = material.kek_id, material.wrapped_kek
        assert kek_id is not None
        assert wrapped is not None
        place = material.master_key_id, kek_id, wrapped
        kek = self._known(place)
        if kek is None:
            with self._lock(place):
                kek = self._known(place) or self._ask_for_kek(place)
            with self._guard:
                self._locks.pop(place, None)
        return kek

    def _known(self, place: _Place) -> Kek | None:
        kek = self._reading.get(place)
        if kek is not None and kek.expires > self._clock():
            return kek
        refusal, until = self._refused.get(place, (None, 0.0))
        if refusal is not None and until > self._clock():
            raise type(refusal)(str(refusal))
        return None

    def _ask_for_kek(self, place: _Place) -> Kek:
        master_key_id, kek_id, wrapped = place
        if len(self._reading) + len(self._refused) >= MAX_CACHED:
            self._reading.clear()
            self._refused.clear()
        try:
            raw = self._call(
                "unwrap", master_key_id, kms.unwrap, wrapped, master_key_id, kek_id=kek_id
            )
        except KeyAccessDeniedError as refusal:
            self._refused[place] = refusal, self._clock() + REFUSAL_LIFETIME
            raise
        kek = Kek(master_key_id, kek_id, wrapped, GcmCipher(Key(raw)), self._expiry())
        self._reading[place] = kek
        return kek

    # --- the service -----------------------------------------------------------------------------

    def rewrap(self, wrapped: str, master_key_id: str) -> str:
        """Have a key wrapped under its master key's newest version; raises as `unwrap`."""
        answer: str = self._call("rewrap", master_key_id, kms.rewrap, wrapped, master_key_id)
        return answer

    def move(self, wrapped: str, old_id: str, new_id: str) -> str:
        """Have a key wrapped under another master key; raises as `unwrap`."""
        raw = self._call("unwrap", old_id, kms.unwrap, wrapped, old_id)
        answer: str = self._call("wrap", new_id, kms.wrap, raw, new_id)
        return answer

    def _call(
        self, operation: Any, master_key_id: str, ask: Callable[..., Any], *arguments: Any,
        kek_id: bytes | None = None, count: int = 1,
    ) -> Any:  # fmt: skip
        """Ask the service, and record that, whatever comes of it."""
        result = "error"
        try:
            answer = ask(self.client, *arguments, self.aad)
            result = "ok"
            return answer
        except ModcryptError as error:
            result = error.word
            raise
        finally:
            if self.audit is not None:
                self.audit(
                    AuditEvent(
                        operation=operation,
                        by="kms",
                        master_key_id=master_key_id,
                        kek_id=None if kek_id is None else kek_id.hex(),
                        result=result,
                        count=count,
                    )
                )

    def _expiry(self) -> float:
        return self._clock() + self._lifetime

    def _lock(self, place: object) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(place, threading.Lock())
