"""A key service in memory that tests can watch, and that can refuse, fail and take its time.

It wraps as parquet-java's and PyArrow's sample services do: base64 of nonce (12), ciphertext and
tag (16) under AES-GCM, whose AAD is the master key's id. It stands on `cryptography` alone, so what
it opens was not made by modcrypt's own primitives.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet.encryption as pe
from cryptography.exceptions import InvalidTag

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KmsUnavailableError,
)
from modcrypt.kms import Capabilities
from tests.support.pkmt1 import open_base64, seal_base64

MASTERS = {
    "kf": b"0123456789012345",
    "kc1": b"1234567890123450",
    "kc2": b"1234567890123451",
}
"""Master keys by the names that published files use."""


@dataclass(frozen=True)
class Call:
    """One request that the service got."""

    operation: str
    master_key_id: str
    aad: bytes
    keys: int = 1


class MemoryKms:
    """Master keys in memory. `calls` has all requests; `denied` and `disabled` may be changed.

    Args:
        masters: keys by id.
        aad: take additional authenticated data.
        batch: most keys of one `wrap_many`; below 2 there is no such method.
        rewrap: offer `rewrap`.
        delay: seconds that each request takes.
    """

    def __init__(
        self,
        masters: Mapping[str, bytes] = MASTERS,
        *,
        aad: bool = False,
        batch: int = 1,
        rewrap: bool = False,
        delay: float = 0.0,
    ) -> None:
        self.masters = dict(masters)
        self.capabilities = Capabilities(aad=aad, rewrap=rewrap, batch=batch)
        self.calls: list[Call] = []
        self.denied: set[str] = set()
        self.disabled: set[str] = set()
        self.failures: list[BaseException] = []
        """Raised by the next requests, one each."""
        self.broken: dict[str, Exception] = {}
        """Raised by every request for a master key."""
        self.unavailable = False
        self.delay = delay
        self.learned: set[bytes] = set()
        """All keys that were wrapped or unwrapped."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "MemoryKms()"

    def count(self, operation: str | None = None, master_key_id: str | None = None) -> int:
        """Count the requests so far."""
        return sum(
            operation in (None, call.operation) and master_key_id in (None, call.master_key_id)
            for call in self.calls
        )

    def wrap(self, key: bytes, master_key_id: str, **aad: bytes) -> str:
        master = self._master("wrap", master_key_id, aad)
        self.learned.add(bytes(key))
        return seal_base64(master, key, self._aad(master_key_id, aad))

    def unwrap(self, wrapped: str, master_key_id: str, **aad: bytes) -> bytes:
        master = self._master("unwrap", master_key_id, aad)
        try:
            key = open_base64(master, wrapped, self._aad(master_key_id, aad))
        except (ValueError, InvalidTag):
            raise KeyMaterialError(f"{master_key_id}: this does not unwrap") from None
        self.learned.add(key)
        return key

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Expose optional methods only where the capabilities promise them."""
        able = self.__dict__.get("capabilities", Capabilities())
        if name == "wrap_many" and able.batch > 1:
            return self._wrap_many
        if name == "rewrap" and able.rewrap:
            return self._rewrap
        raise AttributeError(name)

    def _wrap_many(self, keys: list[bytes], master_key_id: str, **aad: bytes) -> list[str]:
        assert 0 < len(keys) <= self.capabilities.batch
        master = self._master("wrap_many", master_key_id, aad, len(keys))
        self.learned |= {bytes(key) for key in keys}
        return [seal_base64(master, key, self._aad(master_key_id, aad)) for key in keys]

    def _rewrap(self, wrapped: str, master_key_id: str, **aad: bytes) -> str:
        master = self._master("rewrap", master_key_id, aad)
        bound = self._aad(master_key_id, aad)
        return seal_base64(master, open_base64(master, wrapped, bound), bound)

    def _aad(self, master_key_id: str, aad: Mapping[str, bytes]) -> bytes:
        return master_key_id.encode() + (b"\0" + aad["aad"] if aad else b"")

    def _master(
        self, operation: str, master_key_id: str, aad: Mapping[str, bytes], keys: int = 1
    ) -> bytes:
        with self._lock:
            self.calls.append(Call(operation, master_key_id, aad.get("aad", b""), keys))
            failure = self.failures.pop(0) if self.failures else None
        # A service without AAD support must not receive the argument, not even as None.
        assert set(aad) <= ({"aad"} if self.capabilities.aad else set()), "AAD that nobody can take"
        if self.delay:
            time.sleep(self.delay)
        if failure is not None:
            raise failure
        if self.unavailable:
            raise KmsUnavailableError("the service is down")
        if master_key_id in self.broken:
            raise self.broken[master_key_id]
        if master_key_id in self.disabled:
            raise KeyDisabledError(f"{master_key_id} is disabled")
        if master_key_id in self.denied:
            raise KeyAccessDeniedError(f"{master_key_id} is refused")
        if master_key_id not in self.masters:
            raise KeyNotFoundError(f"there is no {master_key_id}")
        return self.masters[master_key_id]


class PyArrowKms(pe.KmsClient):  # type: ignore[misc]  # PyArrow ships no types
    """The same service without AAD, as PyArrow asks for it; it unwraps LocalWrap's JSON, too."""

    def __init__(self, config: Any = None, masters: Mapping[str, bytes] = MASTERS) -> None:
        super().__init__()
        self._masters = masters

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        return seal_base64(
            self._masters[master_key_identifier], key_bytes, master_key_identifier.encode()
        )

    def unwrap_key(self, wrapped_key: str | bytes, master_key_identifier: str) -> bytes:
        text = wrapped_key.decode() if isinstance(wrapped_key, bytes) else wrapped_key
        if text.startswith("{"):
            members = json.loads(text)
            assert members.keys() == {"masterKeyVersion", "encryptedKey"}
            text = members["encryptedKey"]
        return open_base64(
            self._masters[master_key_identifier], text, master_key_identifier.encode()
        )
