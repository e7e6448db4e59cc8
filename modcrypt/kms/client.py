"""The protocol of key services, which wrap and unwrap keys under their master keys.

A new key service is one class in `modcrypt.kms.services` with two methods, `wrap` and `unwrap`, and
one function that opens it for a URI, which `modcrypt.kms.references` or an entry point names. The
smallest one is `modcrypt.kms.services.environment`. A service may offer more, as `KmsClient` lists;
for the others, `modcrypt.kms.calls` builds the rest from these two methods. It also retries, checks
answers and converts errors, so a client sends each request once and raises what it finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The abilities of a key service beyond wrapping one key.

    Attributes:
        aad: Whether the service binds a wrapped key to additional authenticated data.
        rewrap: Whether the service rewraps a key under the newest version of its master key
            without releasing the key.
        batch: Largest number of keys that one call of `wrap_many` takes, and of `unwrap_many` and
            `rewrap_many`, if the client has them; 1 without `wrap_many`.
        public_keys: Whether wrapping needs public keys alone, so that a wrapped key proves nothing
            about who wrapped it.
        random_nonces: Whether one version of a master key wraps all keys by AES-GCM with random
            nonces, so that 2**32 wraps are its limit.
    """

    aad: bool = False
    rewrap: bool = False
    batch: int = 1
    public_keys: bool = False
    random_nonces: bool = False


class KmsClient(Protocol):
    """A key service (KMS) as modcrypt uses it, from any thread.

    modcrypt treats other errors than those below as failures of the client, with these exceptions:
    LookupError means that the master key does not exist; PermissionError, ConnectionError and
    TimeoutError have their usual meaning.

    A client may also have: `capabilities`, and the methods that they promise: `rewrap(wrapped,
    master_key_id, *, aad) -> str` and `wrap_many(keys, master_key_id, *, aad) -> list[str]`;
    `unwrap_many(wrapped, master_key_id, *, aad) -> list[bytes | KeyRetrievalError]` and
    `rewrap_many`, alike with text, which return the error of a key in its place;
    `is_current(wrapped, master_key_id) -> bool`, if the service knows whether a key is wrapped
    under the newest version of its master key; `default_key`, the id of the master key in the
    client's URI; the methods of `KeyAdmin`; and `find_signer(key_id) -> ServiceSigner`, if keys of
    the service can sign.
    """

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key of 16, 24 or 32 bytes, and return text that files store unchanged.

        Raises:
            KeyNotFoundError: The master key does not exist.
            KeyAccessDeniedError: The service refuses; `KeyDisabledError` if the key is disabled.
            KmsUnavailableError: The service is unreachable, or asks the caller to wait; then
                `throttled` is True, and `retry_after` has the seconds if it says so.
        """

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Return the key that `wrap` wrapped, under the newest or an older version.

        Raises:
            KeyMaterialError: The key does not unwrap: altered bytes, another master key or AAD.
            KeyRetrievalError: As `wrap`.
        """


@dataclass(frozen=True, kw_only=True)
class MasterKey:
    """The public facts about a master key, without its value.

    Attributes:
        id: Id of the master key in requests.
        version: Newest version, which wraps; None if the service does not report it.
        enabled: Whether the master key wraps and unwraps.
        created: Creation time of the newest version, ISO 8601 in UTC; None if the service does not
            report it.
        disabled_versions: Older versions that no longer unwrap, including destroyed ones.
        destroyed: Whether the master key is destroyed or scheduled for destruction, so that nothing
            it wrapped can be read again.
        destroyed_versions: Older versions that are destroyed.
    """

    id: str
    version: int | None = None
    enabled: bool = True
    created: str | None = None
    disabled_versions: tuple[int, ...] = ()
    destroyed: bool = False
    destroyed_versions: tuple[int, ...] = ()


class KeyAdmin(Protocol):
    """A key service whose master keys can be managed through its client."""

    def create_key(self, master_key_id: str) -> MasterKey:
        """Create a master key of 256 bits; raise ValueError if it exists."""

    def list_keys(self) -> list[MasterKey]:
        """Return all master keys, sorted by id."""

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Add a version, which wraps from now on; older versions still unwrap."""

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Disable a master key, or the unwrapping by all versions up to `version`.

        If the service can undo this, `enable_key(master_key_id, version=None)` does.
        """


@dataclass(frozen=True, kw_only=True)
class ServiceSigner:
    """A key that signs inside its key service."""

    scheme: str  # name of the signature scheme, as in `modcrypt.kms.signing.schemes`
    public_key: bytes  # the encoded public key
    # Function that returns the signature of a message; it raises as `KmsClient.wrap`.
    sign: Callable[[bytes], bytes]


class UnpicklableClient:
    """A base class that keeps clients, which hold credentials or keys, in their process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} can't be pickled or copied; pass its URI instead")


def capabilities_of(client: KmsClient) -> Capabilities:
    """Return the capabilities that a client declares; none if it declares nothing."""
    found = getattr(client, "capabilities", None)
    return found if isinstance(found, Capabilities) else Capabilities()
