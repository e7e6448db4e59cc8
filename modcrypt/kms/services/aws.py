"""AWS KMS, with the extra `aws`.

    aws-kms://arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab
    aws-kms://alias/footer?region=eu-central-1   with the key of an alias as default key
    aws-kms://?region=eu-central-1               without a default key; region or AWS_DEFAULT_REGION

The id of a master key is its ARN, its KMS id or its alias; a plain name NAME stands for
`alias/NAME`. boto3 finds credentials in its usual places. Files store KMS's CiphertextBlob in
base64. AAD becomes the encryption context, which CloudTrail shows in plaintext:

    {"modcrypt:aad": base64(AAD)}

Requests go to the region of the URI (or the environment), whatever a file names. modcrypt refuses
an ARN of another region and, if the URI contains an ARN, one of another account. It unwraps a blob
under the master key in the caller's material, not under the one that the blob names; except that
under an alias, which may have been re-pointed, any key of the alias's account and region unwraps.

Keys for SIGN_VERIFY of the specs ECC_NIST_EDWARDS25519 and ML_DSA_65 sign.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
)
from modcrypt.kms.client import Capabilities, MasterKey, ServiceSigner, UnpicklableClient
from modcrypt.kms.references import parse_kms_uri
from modcrypt.kms.services.aws_requests import (
    IncorrectKeyError,
    KmsRegion,
    connect_to_region,
    make_answer_error,
    require_member,
)
from modcrypt.runtime.tracebacks import hide_frames

MAX_BLOB = 6144
"""Length limit of a CiphertextBlob, in bytes (KMS API Reference, Decrypt)."""

MAX_LISTED = 1000
"""Largest number of keys for `list_keys`, which makes one request for each."""

DELETION_DAYS = 7
"""Days for which KMS keeps a destroyed key before it deletes it; the minimum of KMS."""

MAX_MESSAGE = 4096
"""Length limit of a message that KMS signs, in bytes (KMS API Reference, Sign)."""

CONTEXT = "modcrypt:aad"  # name of the AAD in the encryption context

_ARN = re.compile(
    r"arn:aws[a-z-]{0,20}:kms:(?P<region>[a-z0-9-]{1,40}):(?P<account>[0-9]{12}):"
    r"(?:key/[A-Za-z0-9-]{1,64}|alias/[A-Za-z0-9/_-]{1,250})",
    re.ASCII,
)
_KEY_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}", re.ASCII)
_ALIAS = re.compile(r"alias/[A-Za-z0-9/_-]{1,250}", re.ASCII)

_DELETED = {"PendingDeletion", "PendingReplicaDeletion"}
_SIGNING = {
    "ed25519": ("ED25519_SHA_512", bytes.fromhex("302a300506032b6570032100"), 32),
    "mldsa65": (
        "ML_DSA_SHAKE_256",
        bytes.fromhex("308207b2300b0609608648016503040312038207a100"),
        1952,
    ),
}
"""For each signature scheme KMS's name, and the header (DER) and size of a public key."""


def open_aws(uri: str, *, client: Any = None) -> AwsKms:
    """Return a client of AWS KMS in one region; it sends nothing yet.

    `client` is one of boto3 for KMS, for other credentials or another endpoint. Raise ValueError if
    the URI has another form, no region is named, the region is not the client's, or the endpoint
    would receive keys without TLS.
    """
    parts = parse_kms_uri(uri, frozenset({"region"}))
    key = parts.location.removeprefix("//") or None
    arn = _ARN.fullmatch(key or "")
    named = key is None or arn or _KEY_ID.fullmatch(key) or _ALIAS.fullmatch(key)
    if parts.fragment or not named or not parts.location.startswith("//"):
        raise ValueError(
            "the URI of a key in AWS KMS is aws-kms://arn:aws:kms:REGION:ACCOUNT:key/ID or "
            "aws-kms://alias/NAME, that of a region without a default key aws-kms://?region=REGION"
        )
    region = parts.query.get("region") or (arn["region"] if arn else None)
    if arn and region != arn["region"]:
        raise ValueError("aws-kms: the region in the ARN and region= differ; remove region=")
    if client is None:
        return AwsKms(lambda: connect_to_region(region), key, arn and arn["account"])
    if region is not None and client.meta.region_name != region:
        raise ValueError(
            f"the URI names region {region}, but the client is for {client.meta.region_name}"
        )
    return AwsKms(lambda: client, key, arn and arn["account"])


class AwsKms(UnpicklableClient):
    """AWS KMS in one region as a key service."""

    capabilities = Capabilities(aad=True, rewrap=True)

    def __init__(self, connect: Callable[[], Any], key: str | None, account: str | None) -> None:
        self.default_key = key
        self._account = account
        self._accounts: dict[str, str] = {}  # by alias
        self._kms = KmsRegion(connect)
        self.region = self._kms.name

    def __repr__(self) -> str:
        return f"AwsKms({self.region})"

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key under KMS's newest key material; see `KmsClient.wrap`."""
        name = self._check_target(master_key_id)
        context = _format_context(aad)
        request = {"KeyId": name, "Plaintext": key, "EncryptionContext": context}
        return _encode_blob(self._kms.request("encrypt", request, master_key_id))

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key under any version of the master key; see `KmsClient.unwrap`."""
        context = _format_context(aad)
        request = {"CiphertextBlob": _decode_blob(wrapped), "EncryptionContext": context}
        answer = self._request_with_source("decrypt", request, "KeyId", master_key_id)
        plain: bytes = require_member(answer, "Plaintext", bytes)  # `kms.calls` checks its length
        return plain

    @hide_frames
    def rewrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> str:
        """Rewrap a key inside KMS, under its newest key material; see `KmsClient.rewrap`."""
        name, blob = self._check_target(master_key_id), _decode_blob(wrapped)
        context = _format_context(aad)
        request = {
            "CiphertextBlob": blob,
            "SourceEncryptionContext": context,
            "DestinationKeyId": name,
            "DestinationEncryptionContext": context,
        }
        answer = self._request_with_source("re_encrypt", request, "SourceKeyId", master_key_id)
        return _encode_blob(answer)

    def _request_with_source(
        self, operation: str, request: dict[str, Any], member: str, master_key_id: str
    ) -> dict[str, Any]:
        """Request with the master key of a ciphertext; follow an alias that was re-pointed."""
        # KMS then refuses the alias, or the use of its present key, although it would decrypt under
        # the key that the ciphertext names. modcrypt asks for that, and accepts only a key of the
        # alias's account and region: the writer of a file may have a key of his own in another one.
        name = self._check_target(master_key_id)
        try:
            return self._kms.request(operation, {**request, member: name}, master_key_id)
        except (IncorrectKeyError, KeyAccessDeniedError) as error:
            if not name.startswith("alias/") and ":alias/" not in name:
                raise
            refusal = error
        answer = self._kms.request(operation, request, master_key_id)
        account = self._find_account(name, master_key_id)
        used = _ARN.fullmatch(require_member(answer, member, str))
        if used is None or (used["region"], used["account"]) != (self.region, account):
            raise IncorrectKeyError(
                f"master key {master_key_id}: the key that wrapped this belongs to another account "
                f"or region than the alias, so AWS KMS in {self.region} is not believed"
            ) from refusal
        return answer

    def _find_account(self, alias: str, master_key_id: str) -> str:
        """Return the account of an alias, which KMS alone knows if the alias is no ARN."""
        if (arn := _ARN.fullmatch(alias)) is not None:
            return arn["account"]
        if alias not in self._accounts:
            arn = _ARN.fullmatch(require_member(self._fetch_metadata(master_key_id), "Arn", str))
            if arn is None:
                raise make_answer_error("Arn")
            self._accounts[alias] = arn["account"]
        return self._accounts[alias]

    def find_signer(self, key_id: str) -> ServiceSigner:
        """Return a key that signs, of two specs; see `client.find_signer`."""
        name = self._check_target(key_id, "signing key")
        answer = self._kms.request("get_public_key", {"KeyId": name}, key_id, kind="signing key")
        scheme, public = _decode_public_key(require_member(answer, "PublicKey", bytes), key_id)
        return ServiceSigner(
            scheme=scheme, public_key=public, sign=partial(self._sign, key_id, scheme)
        )

    @hide_frames
    def _sign(self, key_id: str, scheme: str, message: bytes) -> bytes:
        if len(message) > MAX_MESSAGE:
            raise KeyRetrievalError(
                f"signing key {key_id}: AWS KMS signs at most {MAX_MESSAGE} bytes, and the message "
                f"has {len(message)}; use a shorter AAD prefix"
            )
        name, algorithm = self._check_target(key_id), _SIGNING[scheme][0]
        request = {
            "KeyId": name,
            "Message": message,
            "MessageType": "RAW",
            "SigningAlgorithm": algorithm,
        }
        answer = self._kms.request("sign", request, key_id, kind="signing key")
        signature: bytes = require_member(answer, "Signature", bytes)
        return signature

    def create_key(self, master_key_id: str) -> MasterKey:
        """Create a master key (SYMMETRIC_DEFAULT, AES-256) and its alias, `alias/NAME` or NAME.

        Raise ValueError if the alias exists, or is not valid; KMS itself chooses ids and ARNs.
        """
        alias = _format_alias(master_key_id)
        if not _ALIAS.fullmatch(alias) or alias.startswith("alias/aws/"):
            raise ValueError(
                "a new key in AWS KMS needs an alias of letters, digits, / _ and -, not alias/aws/"
            )
        try:
            self._fetch_metadata(alias)
        except KeyNotFoundError:
            answer = self._kms.request("create_key", {}, alias)
            metadata = require_member(answer, "KeyMetadata", dict)
            self._create_alias(require_member(metadata, "KeyId", str), alias)
            created = require_member(metadata, "CreationDate", datetime)
            return MasterKey(id=alias, created=created.isoformat(timespec="seconds"))
        raise ValueError(f"AWS KMS already has a key {alias} in {self.region}")

    def list_keys(self) -> list[MasterKey]:
        """Return the customer's symmetric keys, by alias or, without an alias, by id.

        Raise KeyRetrievalError if there are more than 1,000.
        """
        aliases: dict[str, list[str]] = {}
        for alias in self._list_all("list_aliases", "Aliases"):
            if "TargetKeyId" in alias:
                target, name = (
                    require_member(alias, member, str) for member in ("TargetKeyId", "AliasName")
                )
                aliases.setdefault(target, []).append(name)
        keys = []
        for entry in self._list_all("list_keys", "Keys"):
            key_id = require_member(entry, "KeyId", str)
            key = self._fetch_metadata(key_id)
            manager, spec, state = (
                require_member(key, name, str) for name in ("KeyManager", "KeySpec", "KeyState")
            )
            if manager == "CUSTOMER" and spec == "SYMMETRIC_DEFAULT":
                enabled, destroyed = state == "Enabled", state in _DELETED
                names = aliases.get(key_id, [key_id])
                keys += [MasterKey(id=name, enabled=enabled, destroyed=destroyed) for name in names]
        return sorted(keys, key=lambda key: key.id)

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Create new key material in KMS, which wraps from now on (RotateKeyOnDemand)."""
        key_id = self._fetch_metadata(master_key_id)["KeyId"]
        self._kms.request("rotate_key_on_demand", {"KeyId": key_id}, master_key_id)
        return MasterKey(id=master_key_id)

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Disable a master key until it is enabled in AWS; KMS cannot disable one version of it."""
        if version is not None:
            raise KeyRetrievalError(
                f"master key {master_key_id}: AWS KMS cannot disable a single version of a key; "
                "rewrap all that it wrapped under another master key, then disable the whole key"
            )
        key_id = self._fetch_metadata(master_key_id)["KeyId"]
        self._kms.request("disable_key", {"KeyId": key_id}, master_key_id)
        return MasterKey(id=master_key_id, enabled=False)

    def destroy_key(self, master_key_id: str) -> None:
        """Schedule a master key for deletion in 7 days; nothing that it wrapped can be read then.

        KMS disables the key at once. Until the deletion, AWS can cancel it (CancelKeyDeletion).
        """
        self._schedule_deletion(self._fetch_metadata(master_key_id)["KeyId"], master_key_id)

    def _schedule_deletion(self, key_id: str, master_key_id: str) -> None:
        request = {"KeyId": key_id, "PendingWindowInDays": DELETION_DAYS}
        self._kms.request("schedule_key_deletion", request, master_key_id)

    def _create_alias(self, key_id: str, alias: str) -> None:
        """Create the alias of a new key; on failure, delete the key, which costs money."""
        try:
            request = {"AliasName": alias, "TargetKeyId": key_id}
            self._kms.request("create_alias", request, alias)
        except KeyRetrievalError:
            self._schedule_deletion(key_id, alias)
            raise

    def _fetch_metadata(self, master_key_id: str) -> dict[str, Any]:
        """Return the metadata of a key, with its id, which KMS requires for key management."""
        name = self._check_target(master_key_id)
        answer = self._kms.request("describe_key", {"KeyId": name}, master_key_id)
        metadata: dict[str, Any] = require_member(answer, "KeyMetadata", dict)
        require_member(metadata, "KeyId", str)
        return metadata

    def _list_all(self, operation: str, member: str) -> list[dict[str, Any]]:
        def fetch_pages(kms: Any) -> list[dict[str, Any]]:
            entries: list[dict[str, Any]] = []
            for page in islice(kms.get_paginator(operation).paginate(), MAX_LISTED):
                entries += require_member(page, member, list)
                if len(entries) > MAX_LISTED:
                    return entries
            if page.get("Truncated"):  # no marker of the next page, or too many pages
                raise make_answer_error(member)
            return entries

        entries = self._kms.call(fetch_pages, operation)
        if len(entries) > MAX_LISTED:
            raise KeyRetrievalError(
                f"AWS KMS has more than {MAX_LISTED} keys or aliases in {self.region}; list them "
                f"with AWS's own tools"
            )
        return entries

    def _check_target(self, master_key_id: str, kind: str = "master key") -> str:
        """Return the key id for a request; check that it is of this region and account."""
        if (arn := _ARN.fullmatch(master_key_id)) is None:
            name = _format_alias(master_key_id)
            if _KEY_ID.fullmatch(name) or _ALIAS.fullmatch(name):
                return name
            raise KeyNotFoundError(
                f"{kind} {master_key_id[:80]!r} is not an ARN, id, alias or name of AWS KMS"
            )
        if arn["region"] != self.region:
            raise KeyNotFoundError(
                f"{kind} {master_key_id} is in another region than this client, which is for "
                f"{self.region}: open aws-kms://?region={arn['region']} for it"
            )
        if self._account not in (None, arn["account"]):
            raise KeyNotFoundError(
                f"{kind} {master_key_id} is in another account than the key in the URI: open "
                f"aws-kms://?region={arn['region']} to use keys of several accounts"
            )
        return master_key_id


def _format_alias(name: str) -> str:
    """Return the alias that a plain name stands for; return anything else unchanged."""
    plain = not name.startswith(("alias/", "arn:")) and not _KEY_ID.fullmatch(name)
    return f"alias/{name}" if plain else name


def _format_context(aad: bytes) -> dict[str, str]:
    return {CONTEXT: base64.b64encode(aad).decode("ascii")} if aad else {}


def _decode_public_key(der: bytes, key_id: str) -> tuple[str, bytes]:
    """Return scheme and encoded key; raise KeyRetrievalError for other kinds of keys."""
    for scheme, (_, header, size) in _SIGNING.items():
        if der.startswith(header) and len(der) == len(header) + size:
            return scheme, der[len(header) :]
    raise KeyRetrievalError(
        f"signing key {key_id} is of another kind; create one of the spec ECC_NIST_EDWARDS25519 or "
        "ML_DSA_65, for SIGN_VERIFY"
    )


def _encode_blob(answer: dict[str, Any]) -> str:
    blob = answer.get("CiphertextBlob")
    if not isinstance(blob, bytes) or not 0 < len(blob) <= MAX_BLOB:
        raise KeyRetrievalError(
            f"AWS KMS returned no wrapped key; expected a CiphertextBlob of 1 to {MAX_BLOB} bytes"
        )
    return base64.b64encode(blob).decode("ascii")


def _decode_blob(wrapped: str) -> bytes:
    with contextlib.suppress(ValueError):
        if 0 < len(wrapped) <= (MAX_BLOB + 2) // 3 * 4:
            return base64.b64decode(wrapped, validate=True)
    raise KeyMaterialError(
        f"the wrapped key for AWS KMS is not valid base64, or exceeds {MAX_BLOB} bytes"
    )
