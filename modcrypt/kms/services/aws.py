"""AWS KMS, by the extra `aws`.

    aws-kms://arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab
    aws-kms://alias/footer?region=eu-central-1   the key of an alias by default
    aws-kms://?region=eu-central-1               keys named elsewhere; by default AWS_REGION

A master key is asked for by its ARN, its id or its alias, as KMS has it; a plain name NAME stands
for `alias/NAME`. Credentials are found as boto3 finds them. What is stored is base64 of KMS's
CiphertextBlob. AAD becomes the encryption context, which CloudTrail shows in the clear:

    {"modcrypt:aad": base64(AAD)}

Requests go to the region of the URI (or the environment), whatever a file says. An ARN of another
region is refused, and where the URI names an ARN, one of another account, too. A blob is unwrapped
under the master key that the caller's material names, not under that which the blob names.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms.client import Capabilities, MasterKey
from modcrypt.kms.uris import missing_extra, parse_kms_uri
from modcrypt.tracebacks import hide_frames

try:
    import boto3
    import botocore.auth
    import botocore.endpoint
    import botocore.parsers
    from botocore import exceptions as aws_errors
    from botocore.config import Config
except ModuleNotFoundError as error:
    raise missing_extra("AWS KMS", "aws") from error

__all__ = ["AwsKms", "open_aws"]

MAX_BLOB = 6144
"""Longest CiphertextBlob, in bytes (KMS API Reference, Decrypt)."""

MAX_LISTED = 1000
"""Most keys that `list_keys` looks at: one request is made for each."""

DELETION_DAYS = 7
"""How long KMS keeps a destroyed key before it is gone, in days; KMS's least."""

CONTEXT = "modcrypt:aad"
"""Under which name AAD stands in the encryption context."""

# `client.py` alone retries. One connection for each of so many threads is kept open.
_CONFIG = Config(
    connect_timeout=10,
    read_timeout=10,
    retries={"total_max_attempts": 1, "mode": "standard"},
    max_pool_connections=32,
)

_ARN = re.compile(
    r"arn:aws[a-z-]{0,20}:kms:(?P<region>[a-z0-9-]{1,40}):(?P<account>[0-9]{12}):"
    r"(?:key/[A-Za-z0-9-]{1,64}|alias/[A-Za-z0-9/_-]{1,250})",
    re.ASCII,
)
_KEY_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}", re.ASCII)
_ALIAS = re.compile(r"alias/[A-Za-z0-9/_-]{1,250}", re.ASCII)

_NOT_FOUND = {"NotFoundException", "NotFound", "InvalidArnException", "InvalidAliasNameException"}
_DELETED = {"PendingDeletion", "PendingReplicaDeletion"}
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
    "RequestLimitExceeded",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
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
_NO_ANSWER = (aws_errors.HTTPClientError, aws_errors.ConnectionError)

T = TypeVar("T")


def open_aws(uri: str, *, client: Any = None) -> AwsKms:
    """Give the client of AWS KMS in one region. Nothing is sent yet.

    Args:
        uri: as at the head of this room.
        client: boto3's own client of KMS, for other credentials or another endpoint.

    Raises:
        ValueError: the URI has another form, or no region is told, or the client's is another one,
            or it would send keys in the clear.
    """
    parts = parse_kms_uri(uri, frozenset({"region"}))
    key = parts.location.removeprefix("//") or None
    arn = _ARN.fullmatch(key or "")
    named = key is None or arn or _KEY_ID.fullmatch(key) or _ALIAS.fullmatch(key)
    if parts.fragment or not named or not parts.location.startswith("//"):
        raise ValueError(
            "a key of AWS KMS is named by aws-kms://arn:aws:kms:REGION:ACCOUNT:key/ID or "
            "aws-kms://alias/NAME; keys named elsewhere by aws-kms://?region=REGION"
        )
    region = parts.query.get("region") or (arn["region"] if arn else None)
    if arn and region != arn["region"]:
        raise ValueError("aws-kms: the URI names two regions, one in the ARN and another in region")
    if client is None:
        return AwsKms(lambda: _connect(region), key, arn and arn["account"])
    if region is not None and client.meta.region_name != region:
        raise ValueError(f"the URI names region {region}, the client {client.meta.region_name}")
    return AwsKms(lambda: client, key, arn and arn["account"])


class AwsKms:
    """AWS KMS in one region as a key service."""

    capabilities = Capabilities(aad=True, rewrap=True)

    def __init__(self, connect: Callable[[], Any], key: str | None, account: str | None) -> None:
        self.default_key = key
        self._account = account
        self._connect = connect
        self._client, self._pid = connect(), os.getpid()
        self.region: str = self._client.meta.region_name
        _refuse_clear_text(self._client.meta.endpoint_url)

    def __repr__(self) -> str:
        return f"AwsKms({self.region})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key service's client can't be pickled: pass its URI instead")

    # --- what `KmsClient` asks for ---------------------------------------------------------------

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key under KMS's newest key material; see `KmsClient.wrap`."""
        name = self._target(master_key_id)
        answer = self._asked(
            lambda kms: kms.encrypt(KeyId=name, Plaintext=key, EncryptionContext=_context(aad)),
            master_key_id,
        )
        return _wrapped(answer)

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key under the master key, in any of its versions; see `KmsClient.unwrap`."""
        name, blob, context = self._target(master_key_id), _blob(wrapped), _context(aad)
        answer = self._asked(
            lambda kms: kms.decrypt(KeyId=name, CiphertextBlob=blob, EncryptionContext=context),
            master_key_id,
        )
        plain: bytes = answer.get("Plaintext", b"")  # `kms.client` refuses what is no key
        return plain

    @hide_frames
    def rewrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key anew inside KMS, under its newest key material; see `KmsClient.rewrap`."""
        name, blob, context = self._target(master_key_id), _blob(wrapped), _context(aad)
        answer = self._asked(
            lambda kms: kms.re_encrypt(
                CiphertextBlob=blob,
                SourceKeyId=name,
                SourceEncryptionContext=context,
                DestinationKeyId=name,
                DestinationEncryptionContext=context,
            ),
            master_key_id,
        )
        return _wrapped(answer)

    # --- what `KeyAdmin` asks for ----------------------------------------------------------------

    def create_key(self, master_key_id: str) -> MasterKey:
        """Make a master key (SYMMETRIC_DEFAULT, AES-256), and an alias for it.

        Args:
            master_key_id: the alias, as `alias/NAME` or NAME.

        Raises:
            ValueError: it is there, or is no alias: KMS itself chooses ids and ARNs.
            KeyRetrievalError: as `KmsClient.wrap`.
        """
        alias = _alias(master_key_id)
        if not _ALIAS.fullmatch(alias) or alias.startswith("alias/aws/"):
            raise ValueError("a new key in AWS KMS gets an alias: letters, digits, / _ and -")
        try:
            self._metadata(alias)
        except KeyNotFoundError:
            made = self._asked(lambda kms: kms.create_key()["KeyMetadata"], alias)
            self._call_it(made["KeyId"], alias)
            return MasterKey(id=alias, created=made["CreationDate"].isoformat(timespec="seconds"))
        raise ValueError(f"AWS KMS has a key of {alias} in {self.region} already")

    def list_keys(self) -> list[MasterKey]:
        """Give the customer's symmetric keys, by alias; those that have none by id.

        Raises:
            KeyRetrievalError: as `KmsClient.wrap`; or there are more than 1,000 keys.
        """
        aliases: dict[str, list[str]] = {}
        for alias in self._all("list_aliases", "Aliases"):
            if "TargetKeyId" in alias:
                aliases.setdefault(alias["TargetKeyId"], []).append(alias["AliasName"])
        found = []
        for entry in self._all("list_keys", "Keys"):
            key_id = entry["KeyId"]
            key = self._metadata(key_id)
            if key["KeyManager"] == "CUSTOMER" and key["KeySpec"] == "SYMMETRIC_DEFAULT":
                enabled, destroyed = key["KeyState"] == "Enabled", key["KeyState"] in _DELETED
                names = aliases.get(key_id, [key_id])
                found += [
                    MasterKey(id=name, enabled=enabled, destroyed=destroyed) for name in names
                ]
        return sorted(found, key=lambda key: key.id)

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Have KMS make new key material, which wraps from now on (RotateKeyOnDemand)."""
        key_id = self._metadata(master_key_id)["KeyId"]
        self._asked(lambda kms: kms.rotate_key_on_demand(KeyId=key_id), master_key_id)
        return MasterKey(id=master_key_id)

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Stop a master key from wrapping and unwrapping, until it is enabled in AWS.

        Raises:
            KeyRetrievalError: a version is given: KMS stops none alone.
        """
        if version is not None:
            raise KeyRetrievalError(
                f"master key {master_key_id}: AWS KMS stops no version of a key alone; rewrap all "
                "that it wrapped under another master key, and disable this one"
            )
        key_id = self._metadata(master_key_id)["KeyId"]
        self._asked(lambda kms: kms.disable_key(KeyId=key_id), master_key_id)
        return MasterKey(id=master_key_id, enabled=False)

    def destroy_key(self, master_key_id: str) -> None:
        """Destroy a master key in 7 days: nothing that it wrapped will ever be read again.

        It is disabled at once; until then AWS can cancel it (CancelKeyDeletion).
        """
        self._schedule_deletion(self._metadata(master_key_id)["KeyId"], master_key_id)

    def _schedule_deletion(self, key_id: str, master_key_id: str) -> None:
        self._asked(
            lambda kms: kms.schedule_key_deletion(KeyId=key_id, PendingWindowInDays=DELETION_DAYS),
            master_key_id,
        )

    def _call_it(self, key_id: str, alias: str) -> None:
        """Give a new key its alias; without one it would cost money and serve nobody."""
        try:
            self._asked(lambda kms: kms.create_alias(AliasName=alias, TargetKeyId=key_id), alias)
        except KeyRetrievalError:
            self._schedule_deletion(key_id, alias)
            raise

    def _metadata(self, master_key_id: str) -> dict[str, Any]:
        """Describe a key; what manages keys takes their id, and no alias."""
        name = self._target(master_key_id)
        found: dict[str, Any] = self._asked(
            lambda kms: kms.describe_key(KeyId=name)["KeyMetadata"], master_key_id
        )
        return found

    def _all(self, operation: str, member: str) -> list[dict[str, Any]]:
        def pages(kms: Any) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            for page in kms.get_paginator(operation).paginate():
                found += page[member]
                if len(found) > MAX_LISTED:
                    break
            return found

        entries = self._asked(pages, operation)
        if len(entries) > MAX_LISTED:
            raise KeyRetrievalError(
                f"AWS KMS has more than {MAX_LISTED} keys or aliases in {self.region}: list them "
                f"with AWS's own tools"
            )
        return entries

    # --- asking KMS ------------------------------------------------------------------------------

    def _target(self, master_key_id: str) -> str:
        """Give what KMS is asked for, which no file can lead elsewhere.

        Raises:
            KeyNotFoundError: no name, or an ARN of another region or account.
        """
        arn = _ARN.fullmatch(master_key_id)
        if arn is None:
            name = _alias(master_key_id)
            if _KEY_ID.fullmatch(name) or _ALIAS.fullmatch(name):
                return name
            raise KeyNotFoundError(
                f"master key {master_key_id[:80]!r} is no ARN, id, alias or name of AWS KMS"
            )
        if arn["region"] != self.region:
            raise KeyNotFoundError(
                f"master key {master_key_id} is of another region than this client, which asks "
                f"in {self.region}: open aws-kms://?region={arn['region']} for it"
            )
        if self._account not in (None, arn["account"]):
            raise KeyNotFoundError(
                f"master key {master_key_id} is of another account than the URI's key: open "
                f"aws-kms://?region={arn['region']} to use keys of several accounts"
            )
        return master_key_id

    def _asked(self, ask: Callable[[Any], T], master_key_id: str) -> T:
        """Ask KMS once; what goes wrong is not chained: it may hold the request."""
        if self._pid != os.getpid():  # a forked process doesn't share its parent's connections
            self._client, self._pid = self._connect(), os.getpid()
        failed: KeyRetrievalError
        try:
            with _unlogged():
                return ask(self._client)
        except aws_errors.ClientError as error:
            failed = _refusal(error, f"master key {master_key_id}: AWS KMS in {self.region}")
        except aws_errors.SSLError:
            failed = KeyRetrievalError("AWS KMS has no certificate that is trusted here")
        except _NO_CREDENTIALS as error:
            failed = KeyAccessDeniedError(
                f"there are no credentials for AWS ({type(error).__name__}): set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give a role"
            )
        except _NO_ANSWER as error:
            failed = KmsUnavailableError(
                f"AWS KMS in {self.region} is unavailable: {type(error).__name__}"
            )
        except aws_errors.BotoCoreError as error:
            failed = KeyRetrievalError(f"asking AWS KMS failed with {type(error).__name__}")
        raise failed


def _refusal(error: Any, what: str) -> KeyRetrievalError:
    """Turn an answer into an error; of KMS's own words the code alone is repeated."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    code = code if _CODE.fullmatch(code) else "an unknown error"
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    answer = f"{what} answers {code}"
    if code in _NOT_FOUND:
        return KeyNotFoundError(f"{answer}: there is no such key")
    if code in _DISABLED:
        return KeyDisabledError(f"{answer}: the key is disabled, or waits for its deletion")
    if code in _DENIED:
        return KeyAccessDeniedError(f"{answer}: the credentials or the key's policy don't allow it")
    if code in _MATERIAL:
        return KeyMaterialError(
            f"{answer}: it does not unwrap the key: altered bytes, another master key or other AAD"
        )
    if code in _UNAVAILABLE or code.startswith("Throttl") or status == 429 or status >= 500:
        return KmsUnavailableError(answer)
    return KeyRetrievalError(answer)


# --- small helpers -------------------------------------------------------------------------------


def _connect(region: str | None) -> Any:
    try:
        return boto3.session.Session().client("kms", region_name=region, config=_CONFIG)
    except aws_errors.NoRegionError:
        pass
    raise ValueError("aws-kms: name the region, by aws-kms://?region=REGION or AWS_REGION")


def _refuse_clear_text(endpoint: str) -> None:
    """Refuse an endpoint (AWS_ENDPOINT_URL_KMS) to which keys would go unencrypted."""
    where = urlsplit(endpoint)
    host = where.hostname or ""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if where.scheme != "https" and not loopback:
        raise ValueError("aws-kms: the endpoint has no TLS: keys would travel in the clear")


def _alias(name: str) -> str:
    """Give the alias that a plain name stands for; anything else as it is."""
    plain = not name.startswith(("alias/", "arn:")) and not _KEY_ID.fullmatch(name)
    return f"alias/{name}" if plain else name


def _context(aad: bytes) -> dict[str, str]:
    return {CONTEXT: base64.b64encode(aad).decode("ascii")} if aad else {}


def _wrapped(answer: dict[str, Any]) -> str:
    blob = answer.get("CiphertextBlob")
    if not isinstance(blob, bytes) or not 0 < len(blob) <= MAX_BLOB:
        raise KeyRetrievalError(
            f"AWS KMS returned no wrapped key: expected a CiphertextBlob of 1 to {MAX_BLOB} bytes"
        )
    return base64.b64encode(blob).decode("ascii")


def _blob(wrapped: str) -> bytes:
    try:
        if 0 < len(wrapped) <= (MAX_BLOB + 2) // 3 * 4:
            return base64.b64decode(wrapped, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise KeyMaterialError("what AWS KMS is to unwrap is no base64, or too long")


# botocore writes requests and answers to its log at level DEBUG: keys, and a session's token.
# Nothing of that is written while this room asks; what others ask for is, as ever.
_asking = threading.local()


def _may_be_logged(_record: object) -> bool:
    return not getattr(_asking, "now", False)


for _logger in (botocore.endpoint.logger, botocore.parsers.LOG, botocore.auth.logger):
    _logger.addFilter(_may_be_logged)


@contextmanager
def _unlogged() -> Iterator[None]:
    _asking.now = True
    try:
        yield
    finally:
        _asking.now = False
