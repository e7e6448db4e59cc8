"""Google Cloud KMS, by the extra `gcp`; tested against a stub only: no emulator of it is known.

    gcp-kms://projects/P/locations/L/keyRings/R                     keys of this ring
    gcp-kms://projects/P/locations/L/keyRings/R/cryptoKeys/NAME     ... and NAME by default

A master key is asked for by its full resource name, or by its short name within the URI's key
ring. Names of other rings are refused before any call: a file may name any, and an answer from a
ring that its writer controls would be no key of ours. The service's address and the credentials
are those of Google's own client, which finds them in its usual places.

Keys go out and come back with CRC-32C checksums, as Google asks for: what was damaged on the way
is asked for again.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import re
from typing import Any, NoReturn

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms.client import MAX_WRAPPED, Capabilities
from modcrypt.kms.uris import missing_extra, parse_kms_uri
from modcrypt.tracebacks import hide_frames

try:
    from google.api_core import exceptions as google_errors
    from google.auth import exceptions as auth_errors
    from google.cloud import kms_v1
except ModuleNotFoundError as error:
    raise missing_extra("Google Cloud KMS", "gcp") from error

__all__ = ["GcpKms", "crc32c", "open_gcp"]

MAX_AAD = 64 << 10
"""Longest AAD that the service takes, in bytes."""

TIMEOUT = 20.0
"""Seconds for one call."""

_RING = re.compile(r"projects/[\w.:-]{1,100}/locations/[\w-]{1,63}/keyRings/[\w-]{1,63}", re.ASCII)
_NAME = re.compile(r"[\w-]{1,63}", re.ASCII)

_UNAVAILABLE = (
    google_errors.ServerError,  # internal, unavailable, out of time
    google_errors.TooManyRequests,
    google_errors.Aborted,
    google_errors.RetryError,
    auth_errors.TransportError,
)
_DENIED = (
    google_errors.Forbidden,
    google_errors.Unauthorized,
    auth_errors.GoogleAuthError,  # after its TransportError, which is one
)


def open_gcp(uri: str, *, client: kms_v1.KeyManagementServiceClient | None = None) -> GcpKms:
    """Give the client of a key ring of Google Cloud KMS.

    Args:
        uri: as at the head of this room.
        client: Google's own client; by default one with Google's default credentials.

    Raises:
        ValueError: the URI names no key ring.
        KeyAccessDeniedError: there are no default credentials.
    """
    parts = parse_kms_uri(uri)
    ring, _, name = parts.location.removeprefix("//").partition("/cryptoKeys/")
    named = _NAME.fullmatch(name) or "/cryptoKeys/" not in uri
    if not _RING.fullmatch(ring) or not named or parts.fragment:
        raise ValueError(
            "a key ring is named by gcp-kms://projects/P/locations/L/keyRings/R, a key in it by "
            "/cryptoKeys/NAME after that"
        )
    _keep_keys_out_of_logs()
    if client is None:
        try:
            client = kms_v1.KeyManagementServiceClient()
        except auth_errors.GoogleAuthError as error:
            raise KeyAccessDeniedError(
                "Google Cloud KMS: no default credentials; set them up with gcloud auth "
                "application-default login, or by GOOGLE_APPLICATION_CREDENTIALS"
            ) from error
    return GcpKms(client, ring, name or None)


class GcpKms:
    """Google Cloud KMS as a key service; keys are wrapped by Encrypt, unwrapped by Decrypt."""

    capabilities = Capabilities(aad=True)

    def __init__(
        self, client: kms_v1.KeyManagementServiceClient, ring: str, name: str | None
    ) -> None:
        self._client = client
        self._ring = ring
        self.default_key = None if name is None else f"{ring}/cryptoKeys/{name}"

    def __repr__(self) -> str:
        return f"GcpKms({self._ring})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key service's client can't be pickled: pass its URI instead")

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key under the primary version; see `KmsClient.wrap`.

        Raises:
            ValueError: the AAD is longer than `MAX_AAD`.
        """
        request = kms_v1.EncryptRequest(
            name=self._resource(master_key_id),
            plaintext=key,
            plaintext_crc32c=crc32c(key),
            **_checked_aad(aad),
        )
        try:
            answer = self._client.encrypt(request=request, retry=None, timeout=TIMEOUT)
        except google_errors.InvalidArgument:  # not chained: its text may repeat arguments
            raise KeyRetrievalError(
                f"master key {master_key_id}: Google Cloud KMS can't wrap by it: is its purpose "
                "ENCRYPT_DECRYPT?"
            ) from None
        except (google_errors.GoogleAPIError, auth_errors.GoogleAuthError) as error:
            raise _failure(error, master_key_id) from error
        arrived = answer.verified_plaintext_crc32c and (
            answer.verified_additional_authenticated_data_crc32c or not aad
        )
        if not arrived or answer.ciphertext_crc32c != crc32c(answer.ciphertext):
            raise _damaged(master_key_id)
        return base64.b64encode(answer.ciphertext).decode()

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key; see `KmsClient.unwrap`.

        Raises:
            ValueError: the AAD is longer than `MAX_AAD`.
        """
        ciphertext = _ciphertext(wrapped, master_key_id)
        request = kms_v1.DecryptRequest(
            name=self._resource(master_key_id),
            ciphertext=ciphertext,
            ciphertext_crc32c=crc32c(ciphertext),
            **_checked_aad(aad),
        )
        try:
            answer = self._client.decrypt(request=request, retry=None, timeout=TIMEOUT)
        except google_errors.InvalidArgument as error:
            raise KeyMaterialError(
                f"the key does not unwrap under master key {master_key_id}: altered bytes, "
                "another master key or other AAD"
            ) from error
        except (google_errors.GoogleAPIError, auth_errors.GoogleAuthError) as error:
            raise _failure(error, master_key_id) from error
        if answer.plaintext_crc32c != crc32c(answer.plaintext):
            raise _damaged(master_key_id)
        return bytes(answer.plaintext)

    def _resource(self, master_key_id: str) -> str:
        name = master_key_id.removeprefix(f"{self._ring}/cryptoKeys/")
        if not _NAME.fullmatch(name):
            raise KeyNotFoundError(
                f"master key {master_key_id} is none of key ring {self._ring}, the only one that "
                "is asked; open the ring that it is in"
            )
        return f"{self._ring}/cryptoKeys/{name}"


def _checked_aad(aad: bytes) -> dict[str, Any]:
    if len(aad) > MAX_AAD:
        raise ValueError(f"Google Cloud KMS takes AAD of {MAX_AAD} bytes at most, not {len(aad)}")
    if not aad:
        return {}
    return {
        "additional_authenticated_data": aad,
        "additional_authenticated_data_crc32c": crc32c(aad),
    }


def _ciphertext(wrapped: str, master_key_id: str) -> bytes:
    with contextlib.suppress(ValueError):
        if 0 < len(wrapped) <= MAX_WRAPPED:
            return base64.b64decode(wrapped, validate=True)
    raise KeyMaterialError(f"what master key {master_key_id} is to unwrap is no base64 of a key")


def _damaged(master_key_id: str) -> KmsUnavailableError:
    return KmsUnavailableError(
        f"master key {master_key_id}: a checksum of Google Cloud KMS does not match; something "
        "was damaged on the way"
    )


def _failure(error: Exception, master_key_id: str) -> KeyRetrievalError:
    what = f"master key {master_key_id}: Google Cloud KMS answers {type(error).__name__}"
    if isinstance(error, google_errors.NotFound):
        return KeyNotFoundError(f"Google Cloud KMS has no master key {master_key_id}")
    if isinstance(error, google_errors.FailedPrecondition):
        return KeyDisabledError(
            f"{what}: the key, or the version of it that is needed, is disabled or destroyed"
        )
    if isinstance(error, _UNAVAILABLE):
        return KmsUnavailableError(what)
    if isinstance(error, _DENIED):
        return KeyAccessDeniedError(f"{what}: the credentials may not use it")
    return KeyRetrievalError(what)


# --- what Google's client logs -------------------------------------------------------------------

_LOGGERS = tuple(
    f"google.cloud.kms_v1.services.key_management_service.transports.{name}"
    for name in ("grpc", "rest")
)


def _keep_keys_out_of_logs() -> None:
    """Stop Google's client from logging requests and answers, and so keys, at DEBUG."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_holds_no_key)  # once only, however often it is added


def _holds_no_key(record: logging.LogRecord) -> bool:
    return not str(getattr(record, "rpcName", "")).endswith(("Encrypt", "Decrypt"))


# --- CRC-32C -------------------------------------------------------------------------------------


def _crc_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (value & 1) * 0x82F63B78 for value in table]
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Give the CRC-32C (Castagnoli; RFC 3720, B.4): keys are short, so a table of bytes will do."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
