"""Requests to AWS KMS in one region: connections, and errors that repeat nothing of a request."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms.pacing import is_cut_short, parse_retry_after
from modcrypt.kms.references import is_loopback
from modcrypt.runtime.extras import missing_extra

try:
    import boto3
    import botocore.auth
    import botocore.endpoint
    import botocore.parsers
    from botocore import exceptions as aws_errors
    from botocore.config import Config
except ModuleNotFoundError as error:
    raise missing_extra("AWS KMS", "aws") from error

# Only `client.py` retries. The pool keeps one connection open for each of up to 32 threads.
_CONFIG = Config(
    connect_timeout=10,
    read_timeout=10,
    retries={"total_max_attempts": 1, "mode": "standard"},
    max_pool_connections=32,
)

_NOT_FOUND = {"NotFoundException", "NotFound", "InvalidArnException", "InvalidAliasNameException"}
_DISABLED = {"DisabledException", "KMSInvalidStateException"}
_MATERIAL = {"InvalidCiphertextException", "IncorrectKeyException"}
_DENIED = {
    "AccessDenied",
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NotAuthorized",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_UNAVAILABLE = {
    "DependencyTimeoutException",
    "KMSInternalException",
    "KeyUnavailableException",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
}
_THROTTLED = {  # as botocore's retries, with all codes that begin with Throttl
    "LimitExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "TooManyRequestsException",
}
_CODE = re.compile(r"[A-Za-z]{1,60}", re.ASCII)

_NO_CREDENTIALS = (
    aws_errors.NoCredentialsError,
    aws_errors.PartialCredentialsError,
    aws_errors.CredentialRetrievalError,
    aws_errors.RefreshWithMFAUnsupportedError,
    aws_errors.SSOError,
    aws_errors.TokenRetrievalError,
    aws_errors.NoAuthTokenError,
)


class IncorrectKeyError(KeyMaterialError):
    """Another key of KMS than the named one wrapped a ciphertext."""


_NO_ANSWER = (aws_errors.HTTPClientError, aws_errors.ConnectionError)

T = TypeVar("T")


class KmsRegion:
    """AWS KMS in one region; `connect` returns a client of boto3 for this process."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._client, self._pid = connect(), os.getpid()
        self.name: str = self._client.meta.region_name
        endpoint = urlsplit(self._client.meta.endpoint_url)
        if endpoint.scheme != "https" and not is_loopback(endpoint.hostname or ""):
            raise ValueError(
                "aws-kms: the endpoint has no TLS, which would expose keys; set "
                "AWS_ENDPOINT_URL_KMS to an https: address"
            )

    def request(
        self, operation: str, members: dict[str, Any], key_id: str, *, kind: str = "master key"
    ) -> dict[str, Any]:
        """Send one request for a key, which messages call `kind`, and return the answer."""
        return self.call(lambda kms: getattr(kms, operation)(**members), key_id, kind=kind)

    def call(self, ask: Callable[[Any], T], key_id: str, *, kind: str = "master key") -> T:
        """Call KMS once; do not chain errors, because they may contain the request."""
        if self._pid != os.getpid():  # a forked process must not share its parent's connections
            self._client, self._pid = self._connect(), os.getpid()
        failed: KeyRetrievalError
        try:
            with _suppress_logging():
                return ask(self._client)
        except aws_errors.ClientError as error:
            failed = _convert_error(error, f"{kind} {key_id}: AWS KMS in {self.name}")
        except aws_errors.SSLError as error:
            failed = self._convert_tls_error(error)
        except _NO_CREDENTIALS as error:
            failed = _make_login_error(error)
        except _NO_ANSWER as error:
            failed = KmsUnavailableError(
                f"AWS KMS in {self.name} is unavailable: {type(error).__name__}"
            )
        except aws_errors.BotoCoreError as error:
            failed = KeyRetrievalError(
                f"the request to AWS KMS in {self.name} failed with {type(error).__name__}"
            )
        except OSError as error:  # a token or program of the credentials, read at the first request
            failed = _make_login_error(error)
        except (AttributeError, TypeError, ValueError, RecursionError):  # from botocore's parser
            failed = make_answer_error("JSON")
        raise failed

    def _convert_tls_error(self, error: Exception) -> KeyRetrievalError:
        if is_cut_short(error):
            return KmsUnavailableError(f"AWS KMS in {self.name} ended the TLS handshake")
        return KeyRetrievalError(
            f"the TLS handshake with AWS KMS in {self.name} failed; if its certificate is not "
            "trusted here, set AWS_CA_BUNDLE to the file of its authority"
        )


def _convert_error(error: Any, what: str) -> KeyRetrievalError:
    """Convert an answer to an error, which repeats only KMS's error code."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    code = code if _CODE.fullmatch(code) else "an unknown error"
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    answer = f"{what} answered {code}"
    if code in _NOT_FOUND:
        return KeyNotFoundError(f"{answer}: the key does not exist")
    if code in _DISABLED:
        return KeyDisabledError(f"{answer}: the key is disabled, or scheduled for deletion")
    if code in _DENIED:
        return KeyAccessDeniedError(
            f"{answer}: the credentials or the key's policy do not permit the request"
        )
    if code in _MATERIAL:
        kind = IncorrectKeyError if code == "IncorrectKeyException" else KeyMaterialError
        return kind(
            f"{answer}: the wrapped key does not unwrap: altered bytes, another master key or "
            "other AAD"
        )
    throttled = code in _THROTTLED or code.startswith("Throttl") or status == 429
    if throttled or code in _UNAVAILABLE or status >= 500:
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return KmsUnavailableError(
            answer, throttled=throttled, retry_after=parse_retry_after(headers)
        )
    return KeyRetrievalError(answer)


def _make_login_error(error: Exception) -> KeyAccessDeniedError:
    return KeyAccessDeniedError(
        f"no credentials for AWS ({type(error).__name__}): set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or use a role"
    )


def connect_to_region(region: str | None) -> Any:
    """Return a client of boto3.

    Raise ValueError if no region is named, an invalid one, or boto3 refuses its settings, and
    KeyAccessDeniedError if a place that these name has no credentials.
    """
    failed: Exception
    try:
        return boto3.session.Session().client("kms", region_name=region, config=_CONFIG)
    except aws_errors.InvalidRegionError:  # it might be a host, which would get credentials
        failed = ValueError("aws-kms: the region is not the name of one, as eu-central-1")
    except aws_errors.NoRegionError:
        failed = ValueError(
            "aws-kms: no region; add ?region=REGION to the URI or set AWS_DEFAULT_REGION"
        )
    except _NO_CREDENTIALS as error:
        failed = _make_login_error(error)
    except (aws_errors.BotoCoreError, OSError, ValueError) as error:  # their texts may have secrets
        failed = ValueError(
            f"aws-kms: boto3 cannot use its settings ({type(error).__name__}); check AWS_PROFILE, "
            "AWS_CONFIG_FILE with its credential_process, and AWS_ENDPOINT_URL_KMS"
        )
    raise failed


def require_member(answer: dict[str, Any], name: str, kind: type) -> Any:
    """Return a member of an answer; raise KeyRetrievalError if it is missing or not a `kind`."""
    value = answer.get(name)
    if not isinstance(value, kind):
        raise make_answer_error(name)
    return value


def make_answer_error(name: str) -> KeyRetrievalError:
    """Return the error for an answer without a valid member."""
    return KeyRetrievalError(
        f"the answer is not from AWS KMS: {name} is missing or malformed; check the endpoint "
        "(AWS_ENDPOINT_URL_KMS) and proxies"
    )


# botocore logs requests and answers at level DEBUG, with keys and session tokens. It logs nothing
# during calls by this module; calls by others are logged as usual.
_asking = threading.local()


def _may_be_logged(_record: object) -> bool:
    return not getattr(_asking, "now", False)


for _logger in (botocore.endpoint.logger, botocore.parsers.LOG, botocore.auth.logger):
    _logger.addFilter(_may_be_logged)


@contextmanager
def _suppress_logging() -> Iterator[None]:
    _asking.now = True
    try:
        yield
    finally:
        _asking.now = False
