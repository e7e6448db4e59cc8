"""Google Cloud KMS, with the extra `gcp`; tested only against a stub, for lack of an emulator.

    gcp-kms://projects/P/locations/L/keyRings/R                     keys of this ring
    gcp-kms://projects/P/locations/L/keyRings/R/cryptoKeys/NAME     ... with the default key NAME

The id of a master key is its full resource name, or its short name within the key ring of the URI.
modcrypt refuses names of other rings before any call: a file may name any ring, and its writer may
control that ring. Google's client determines the address of the service and finds the credentials
in their usual places.

Keys travel with CRC-32C checksums, as Google recommends. modcrypt repeats a request after damage in
transit.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import re
from functools import partial
from typing import Any

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms.client import Capabilities, UnpicklableClient
from modcrypt.kms.pacing import is_untrusted, make_trust_error
from modcrypt.kms.references import parse_kms_uri
from modcrypt.pkmt1.material import MAX_WRAPPED
from modcrypt.runtime.extras import missing_extra
from modcrypt.runtime.tracebacks import hide_frames

try:
    from google.api_core import exceptions as google_errors
    from google.auth import exceptions as auth_errors
    from google.cloud import kms_v1
except ModuleNotFoundError as error:
    raise missing_extra("Google Cloud KMS", "gcp") from error

MAX_AAD = 64 << 10
"""Length limit of AAD, set by the service, in bytes."""

MAX_ANSWER = 4 << 20
"""Size limit of an answer in bytes; Google's client sets none."""

TIMEOUT = 20.0  # time limit of one call in seconds

_Transport: Any = kms_v1.KeyManagementServiceClient.get_transport_class("grpc")

_RING = re.compile(r"projects/[\w.:-]{1,100}/locations/[\w-]{1,63}/keyRings/[\w-]{1,63}", re.ASCII)
_NAME = re.compile(r"[\w-]{1,63}", re.ASCII)

_UNAVAILABLE = (
    google_errors.ServerError,  # internal, unavailable, deadline exceeded
    google_errors.TooManyRequests,
    google_errors.Aborted,
    google_errors.RetryError,
    auth_errors.TransportError,
)
_DENIED = (
    google_errors.Forbidden,
    google_errors.Unauthorized,
    auth_errors.GoogleAuthError,  # checked after its subclass TransportError
)


def open_gcp(uri: str, *, client: kms_v1.KeyManagementServiceClient | None = None) -> GcpKms:
    """Return the client of a key ring of Google Cloud KMS.

    `client` is Google's; by default, one with Google's default credentials. Raise ValueError if the
    URI names no key ring, and KeyAccessDeniedError if no default credentials exist.
    """
    parts = parse_kms_uri(uri)
    ring, _, name = parts.location.removeprefix("//").partition("/cryptoKeys/")
    named = _NAME.fullmatch(name) or "/cryptoKeys/" not in uri
    if not _RING.fullmatch(ring) or not named or parts.fragment:
        raise ValueError(
            "the URI of a key ring is gcp-kms://projects/P/locations/L/keyRings/R, that of a key "
            "in it ends in /cryptoKeys/NAME"
        )
    for logger in _LOGGERS:
        logging.getLogger(logger).addFilter(_holds_no_key)  # adding it again has no effect
    if client is None:
        try:
            transport = partial(_Transport, channel=_create_channel)
            client = kms_v1.KeyManagementServiceClient(transport=transport)
        except auth_errors.GoogleAuthError as error:
            raise KeyAccessDeniedError(
                "Google Cloud KMS: no default credentials; run gcloud auth application-default "
                "login, or set GOOGLE_APPLICATION_CREDENTIALS"
            ) from error
    return GcpKms(client, ring, name or None)


def _create_channel(host: str, **options: Any) -> Any:
    """Return a channel like that of Google's client, but with a size limit for answers."""
    limit = ("grpc.max_receive_message_length", MAX_ANSWER)
    return _Transport.create_channel(host, **{**options, "options": [limit]})


class GcpKms(UnpicklableClient):
    """Google Cloud KMS as a key service; Encrypt wraps keys, Decrypt unwraps them."""

    capabilities = Capabilities(aad=True)

    def __init__(
        self, client: kms_v1.KeyManagementServiceClient, ring: str, name: str | None
    ) -> None:
        self._client = client
        self._ring = ring
        self.default_key = None if name is None else f"{ring}/cryptoKeys/{name}"

    def __repr__(self) -> str:
        return f"GcpKms({self._ring})"

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key under the primary version; raise ValueError for AAD longer than `MAX_AAD`."""
        request = kms_v1.EncryptRequest(
            name=self._format_resource(master_key_id),
            plaintext=key,
            plaintext_crc32c=crc32c(key),
            **_format_aad(aad),
        )
        try:
            answer = self._client.encrypt(request=request, retry=None, timeout=TIMEOUT)
        except google_errors.InvalidArgument:  # not chained, because its text may repeat arguments
            raise KeyRetrievalError(
                f"master key {master_key_id}: Google Cloud KMS cannot wrap with it; check that its "
                "purpose is ENCRYPT_DECRYPT"
            ) from None
        except (google_errors.GoogleAPIError, auth_errors.GoogleAuthError) as error:
            raise _convert_error(error, master_key_id) from None  # it may contain a token request
        arrived = answer.verified_plaintext_crc32c and (
            answer.verified_additional_authenticated_data_crc32c or not aad
        )
        if not arrived or answer.ciphertext_crc32c != crc32c(answer.ciphertext):
            raise _make_checksum_error(master_key_id)
        return base64.b64encode(answer.ciphertext).decode()

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key; raise ValueError for AAD longer than `MAX_AAD`."""
        ciphertext = _decode_wrapped(wrapped, master_key_id)
        request = kms_v1.DecryptRequest(
            name=self._format_resource(master_key_id),
            ciphertext=ciphertext,
            ciphertext_crc32c=crc32c(ciphertext),
            **_format_aad(aad),
        )
        try:
            answer = self._client.decrypt(request=request, retry=None, timeout=TIMEOUT)
        except google_errors.InvalidArgument as error:
            raise KeyMaterialError(
                f"the key does not unwrap under master key {master_key_id}: altered bytes, "
                "another master key or other AAD"
            ) from error
        except (google_errors.GoogleAPIError, auth_errors.GoogleAuthError) as error:
            raise _convert_error(error, master_key_id) from None  # it may contain a token request
        if answer.plaintext_crc32c != crc32c(answer.plaintext):
            raise _make_checksum_error(master_key_id)
        return bytes(answer.plaintext)

    def _format_resource(self, master_key_id: str) -> str:
        name = master_key_id.removeprefix(f"{self._ring}/cryptoKeys/")
        if not _NAME.fullmatch(name):
            raise KeyNotFoundError(
                f"master key {master_key_id} is not in key ring {self._ring}, the only one that "
                "this client uses; open the URI of its own ring"
            )
        return f"{self._ring}/cryptoKeys/{name}"


def _format_aad(aad: bytes) -> dict[str, Any]:
    if len(aad) > MAX_AAD:
        raise ValueError(f"Google Cloud KMS supports AAD of up to {MAX_AAD} bytes, not {len(aad)}")
    if not aad:
        return {}
    return {
        "additional_authenticated_data": aad,
        "additional_authenticated_data_crc32c": crc32c(aad),
    }


def _decode_wrapped(wrapped: str, master_key_id: str) -> bytes:
    with contextlib.suppress(ValueError):
        if 0 < len(wrapped) <= MAX_WRAPPED:
            return base64.b64decode(wrapped, validate=True)
    raise KeyMaterialError(f"the wrapped key for master key {master_key_id} is not base64")


def _make_checksum_error(master_key_id: str) -> KmsUnavailableError:
    return KmsUnavailableError(
        f"master key {master_key_id}: a checksum of Google Cloud KMS does not match; data was "
        "damaged in transit"
    )


def _convert_error(error: Exception, master_key_id: str) -> KeyRetrievalError:
    what = f"master key {master_key_id}: Google Cloud KMS answered {type(error).__name__}"
    if isinstance(error, google_errors.NotFound):
        return KeyNotFoundError(f"Google Cloud KMS has no master key {master_key_id}")
    if isinstance(error, google_errors.FailedPrecondition):
        return KeyDisabledError(f"{what}: the key, or the version needed, is disabled or destroyed")
    if is_untrusted(error):
        return make_trust_error(what, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
    if isinstance(error, _UNAVAILABLE):
        throttled = isinstance(error, google_errors.TooManyRequests)  # and ResourceExhausted
        return KmsUnavailableError(what, throttled=throttled, retry_after=_find_delay(error))
    if isinstance(error, _DENIED):
        return KeyAccessDeniedError(f"{what}: the credentials do not permit the use of the key")
    return KeyRetrievalError(what)


def _find_delay(error: Exception) -> float | None:
    """Return the seconds of an answer's google.rpc.RetryInfo; None without a valid one."""
    for detail in getattr(error, "details", None) or ():
        delay = getattr(detail, "retry_delay", None)
        with contextlib.suppress(AttributeError, TypeError, OverflowError):
            return max(0.0, float(delay.seconds) + float(delay.nanos) / 1e9)  # type: ignore[union-attr]
    return None


_LOGGERS = tuple(
    f"google.cloud.kms_v1.services.key_management_service.transports.{name}"
    for name in ("grpc", "rest")
)


def _holds_no_key(record: logging.LogRecord) -> bool:
    return not str(getattr(record, "rpcName", "")).endswith(("Encrypt", "Decrypt"))


_TABLE = list(range(256))
for _ in range(8):
    _TABLE = [value >> 1 ^ (value & 1) * 0x82F63B78 for value in _TABLE]


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli; RFC 3720, B.4); keys are short, so a byte table suffices."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
