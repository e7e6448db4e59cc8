"""Wrapping and unwrapping data keys, by a key service or under KEKs that the service wraps.

Single wrapping: the service wraps every data key (DEK). Double wrapping: the service wraps a key
encryption key (KEK), and modcrypt wraps data keys under the KEK, so that a thousand files cost one
call to the service.

    DEK under KEK: base64( nonce (12) | ciphertext | tag (16) ), AAD the KEK's 16 id bytes

KEKs are cached for a limited time: KEKs for writing by master key, KEKs for reading by their
wrapped form. The service receives one request per KEK, however many threads need it.
"""

from __future__ import annotations

import base64
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from os import urandom
from typing import Any, NoReturn

from modcrypt.aead import BLOCK_OVERHEAD, GcmCipher
from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    ModcryptError,
    TagError,
)
from modcrypt.keys import Key, KeyLike, as_key, key_bytes
from modcrypt.keys.encoding import KEY_LENGTHS
from modcrypt.kms import calls as kms
from modcrypt.kms.audit import Audit, record_use
from modcrypt.kms.client import KmsClient, capabilities_of
from modcrypt.kms.key_cache import KeyCache
from modcrypt.kms.proof import WrapProof, require_same
from modcrypt.pkmt1.material import KEK_ID_SIZE, KeyMaterial
from modcrypt.pkmt1.strict_json import encode_base64
from modcrypt.runtime.tracebacks import hide_frames

MAX_DAMAGED = 3
"""Number of keys of one file that may fail to unwrap before modcrypt stops trying."""

MAX_REFUSED = 3
"""Number of keys of one file that modcrypt requests under a master key that refuses them all."""

MAX_REFUSING = 16
"""Number of master keys of one file that may be refused before modcrypt requests no others."""


@dataclass(frozen=True, slots=True)
class Kek:
    """A key encryption key, and the values that files store for it."""

    master_key_id: str
    id: bytes
    wrapped: str
    cipher: GcmCipher
    length: int
    heads: dict[tuple[bool, bool], str] = field(default_factory=dict, compare=False)
    # Proof of a KEK for writing outside of runs.
    proof: WrapProof | None = field(default=None, compare=False, repr=False)

    @hide_frames
    def wrap(self, dek: Key) -> str:
        """Wrap a data key."""
        return encode_base64(self.cipher.encrypt_block(key_bytes(dek), self.id))

    def material(self, wrapped: str, *, is_footer_key: bool, internal: bool) -> KeyMaterial:
        """Return the key material of a data key that `wrap` wrapped."""
        return KeyMaterial(
            is_footer_key=is_footer_key, master_key_id=self.master_key_id, wrapped_dek=wrapped,
            kek_id=self.id, wrapped_kek=self.wrapped, internal=internal,
        )  # fmt: skip

    def wrap_to_json(self, dek: Key, *, is_footer_key: bool, internal: bool) -> str:
        """Wrap a data key and return its material as JSON; the common part is cached."""
        if (head := self.heads.get((is_footer_key, internal))) is None:
            head = self.material("", is_footer_key=is_footer_key, internal=internal).head()
            self.heads[is_footer_key, internal] = head
        return f'{head}"{self.wrap(dek)}"}}'  # base64 needs no escapes

    def with_key(self, key: Key) -> Kek:
        """Return the KEK with the key that the key service unwrapped."""
        return Kek(self.master_key_id, self.id, self.wrapped, GcmCipher(key), len(key))

    def unwrap(self, wrapped: str) -> Key:
        """Unwrap a data key; raise KeyMaterialError if it does not unwrap."""
        try:
            block = base64.b64decode(wrapped, validate=True)
        except ValueError:
            block = b""
        if len(block) - BLOCK_OVERHEAD not in KEY_LENGTHS:
            raise KeyMaterialError("the wrapped data key is not the base64 text of a wrapped key")
        try:
            return Key(self.cipher.decrypt_block(block, self.id))
        except TagError:
            raise KeyMaterialError(
                f"the data key does not unwrap under its KEK (master key {self.master_key_id}): "
                "altered bytes, or the KEK of another file"
            ) from None


def require_opens(material: KeyMaterial, key: Key) -> None:
    """Raise KeyMaterialError unless a KEK decrypts what it encrypts in double wrapping."""
    assert material.kek_id is not None
    try:
        GcmCipher(key).decrypt_block(base64.b64decode(material.wrapped_dek), material.kek_id)
    except (TagError, ValueError):  # ValueError: altered text that is not base64
        raise KeyMaterialError(
            f"what the key service unwraps under master key {material.master_key_id} does not open "
            "the keys under it; nothing was replaced"
        ) from None


class Refusals:
    """A count of the refused keys of one file, which limits requests to the key service.

    Anyone can write a file, or alter the key material beside it, to name thousands of keys. With
    `prove`, every key that is not damaged is requested, to prove that all of them are refused.
    """

    def __init__(self, *, prove: bool = False) -> None:
        self._prove = prove
        self._damaged = 0
        self._refused: dict[str, list[tuple[type[ModcryptError], str]]] = {}  # by master key id
        self._granted: set[str] = set()

    @contextmanager
    def count_refusals(self, master_key_id: str) -> Iterator[None]:
        """Count the outcome of the request for one key in the body of the `with` statement.

        Raise KeyMaterialError if too many keys of the file did not unwrap, KeyRetrievalError if too
        many master keys refused; or the earlier answer of this one.
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
                f"key not tried, because {MAX_DAMAGED} other keys of this file do not unwrap: its "
                "key material is damaged or forged"
            )
        if self._prove or master_key_id in self._granted:
            return
        refused = self._refused.get(master_key_id, [])
        if len(refused) >= MAX_REFUSED:
            kind, message = refused[-1]
            raise kind(message)
        if not refused and len(self._refused) >= MAX_REFUSING:
            raise KeyRetrievalError(
                f"key not requested, because {MAX_REFUSING} other master keys of this file were "
                "refused: read fewer columns at a time"
            )


class KeyWrapper:
    """A tool that wraps and unwraps data keys with one key service, from any thread.

    The service binds every wrapped key to `aad`, if it supports AAD.

    A new wrap is proved before anything old is replaced, and returned only then: by the `proof` of
    the run, if there is one, else by a proof of its own if the caller replaces something. A KEK for
    writing has one for its first such use outside of runs. A proof asks the service, never a cache.
    """

    def __init__(
        self, client: KmsClient, *, cache_lifetime: float, aad: bytes = b"",
        audit: Audit | None = None, clock: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self.client, self.aad, self.audit = client, aad, audit
        self.proof: WrapProof | None = None
        self._writing = KeyCache[Kek](cache_lifetime, clock)  # by master key id and length
        self._reading = KeyCache[Kek](cache_lifetime, clock)  # by what names the KEK in a file
        _wrappers.add(self)

    def __repr__(self) -> str:
        return f"KeyWrapper({self.client!r})"

    def __reduce__(self) -> NoReturn:
        # Properties that KeyTools create contain it, so the message names what their user knows.
        raise TypeError("KeyTools can't be pickled; create them in each process, or pass Settings")

    def with_proof(self, proof: WrapProof) -> KeyWrapper:
        """Return a wrapper for one run, with the same caches, whose wraps are proved."""
        other = KeyWrapper(self.client, cache_lifetime=0, aad=self.aad, audit=self.audit)
        other.proof, other._writing, other._reading = proof, self._writing, self._reading
        return other

    def prove_master(self, master_key_id: str) -> None:
        """Prove a new wrap under a master key; raise as `WrapProof.check`."""
        self.with_proof(WrapProof()).wrap([Key.generate()], master_key_id)

    def wrap(self, deks: Sequence[Key], master_key_id: str, *, replaces: bool = True) -> list[str]:
        """Wrap data keys with the service (single wrapping), and prove the new wraps.

        `replaces` says whether something old is replaced; otherwise only a run proves. Raise as
        `KmsClient.wrap` and `WrapProof.check`.
        """
        wrapped: list[str] = self._call("wrap", kms.wrap_many, deks, master_key_id, count=len(deks))
        proof = self.proof or (WrapProof() if replaces else None)
        if proof is not None:
            proof.check_keys(
                master_key_id, deks, wrapped, lambda new: self._unwrap_many(new, master_key_id),
                together=kms.can_unwrap_many(self.client), replaces=replaces,
            )  # fmt: skip
        return wrapped

    def get_writing_kek(
        self, master_key_id: str, length: int = 16, *, replaces: bool = True
    ) -> Kek:
        """Return the KEK of `length` bytes that currently wraps data keys; create it if needed.

        A run proves it, and else the first file that it `replaces`; raise as `wrap`.
        """
        place = master_key_id, length
        kek = self._writing.get(place, lambda: self._new_kek(*place))
        proof = self.proof or (kek.proof if replaces else None)
        try:
            if proof is not None:
                opens = partial(self._require_open, kek)
                proof.check(master_key_id, kek.wrapped, opens, replaces=replaces)
        except KeyRetrievalError:
            if self.proof is None:  # the caller may ask again, once the service answers rightly
                self._writing.drop(place)
            raise
        return kek

    @hide_frames
    def _require_open(self, kek: Kek) -> None:
        """Raise unless what the service unwraps opens a key under the KEK; no cache is asked."""
        key, sample = self._unwrap_key(kek.wrapped, kek.master_key_id, kek.id), Key.generate()
        require_same(sample, kek.with_key(key).unwrap(kek.wrap(sample)))

    def forget(self) -> None:
        """Drop all cached KEKs, so the service decides again after a rotation or revocation."""
        self._writing.clear()
        self._reading.clear()

    def _new_kek(self, master_key_id: str, length: int) -> Kek:
        key, kek_id = Key.generate(length), urandom(KEK_ID_SIZE)
        wrapped = self._call("wrap", kms.wrap, key, master_key_id, kek_id=kek_id)
        cipher, proof = GcmCipher(key), WrapProof()
        return Kek(master_key_id, kek_id, wrapped, cipher, length, proof=proof)

    def unwrap(self, material: KeyMaterial) -> Key:
        """Unwrap the data key of key material; raise KeyMaterialError if it does not unwrap."""
        if material.double_wrapping:
            return self.get_reading_kek(material).unwrap(material.wrapped_dek)
        return self._unwrap_key(material.wrapped_dek, material.master_key_id)

    def get_reading_kek(self, material: KeyMaterial) -> Kek:
        """Return the KEK of key material in double wrapping; raise as `unwrap`."""
        kek_id, wrapped = material.kek_id, material.wrapped_kek
        assert kek_id is not None
        assert wrapped is not None
        place = material.master_key_id, kek_id, wrapped

        def request() -> Kek:
            key = self._unwrap_key(wrapped, material.master_key_id, kek_id)
            return Kek(*place, GcmCipher(key), len(key))

        return self._reading.get(place, request)

    @hide_frames
    def rewrap(self, wrapped: str, old_id: str, new_id: str, opens: Callable[[Key], object]) -> str:
        """Wrap a key under its master key's newest version, or another; raise as `unwrap`.

        `opens` raises KeyMaterialError if a key opens nothing. It checks each key that leaves the
        service, and the new wraps that the proof of the run requires.
        """
        if new_id == old_id and capabilities_of(self.client).rewrap:
            answer: str = self._call("rewrap", kms.rewrap, wrapped, old_id)
            if self.proof is not None:
                self.proof.check(old_id, answer, lambda: opens(self._unwrap_key(answer, old_id)))
            return answer
        key = self._unwrap_key(wrapped, old_id)
        opens(key)
        (answer,) = self.wrap([key], new_id)
        return answer

    def _unwrap_key(self, wrapped: str, master_key_id: str, kek_id: bytes | None = None) -> Key:
        # No local variable holds the raw key.
        return as_key(self._call("unwrap", kms.unwrap, wrapped, master_key_id, kek_id=kek_id))

    @hide_frames
    def _unwrap_many(
        self, wrapped: Sequence[str], master_key_id: str
    ) -> Sequence[KeyLike | KeyRetrievalError]:
        if len(wrapped) == 1:
            return [self._unwrap_key(wrapped[0], master_key_id)]
        found: list[KeyLike | KeyRetrievalError] = self._call(
            "unwrap", kms.unwrap_many, wrapped, master_key_id, count=len(wrapped)
        )
        return found

    def _call(
        self, operation: Any, ask: Callable[..., Any], keys: Any, master_key_id: str, *,
        kek_id: bytes | None = None, count: int = 1,
    ) -> Any:  # fmt: skip
        """Call the service, and record the call whether it succeeds or not."""
        ids = (None if kek_id is None else kek_id.hex(),)
        with record_use(self.audit, operation, master_key_id, kek_ids=ids, count=count):
            return ask(self.client, keys, master_key_id, self.aad)


_wrappers: weakref.WeakSet[KeyWrapper] = weakref.WeakSet()


def _drop_writing_keks() -> None:
    """Drop the KEKs for writing: parent and child would each count only their own uses."""
    for wrapper in list(_wrappers):
        wrapper._writing.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_drop_writing_keks)
