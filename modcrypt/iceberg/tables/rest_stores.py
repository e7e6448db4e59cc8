"""The settings of a table's store: the user's, and those that a REST catalog adds.

A server may vend credentials, and name the endpoint that they are for. It never learns the user's:
those go only to endpoints that the user names. Other settings of a server could lead requests
elsewhere, load code, or have a client look for credentials on this machine.

Vended credentials for S3 are renewed before they expire. s3fs signs each request with the
credentials of its session, so a session that renews them serves all files that are open. It stays
in this process: a copy of the file system in another one has the credentials of the time when it
was opened.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from modcrypt.errors import FormatError, printable

Settings = Mapping[str, str]

BEGINNINGS = ("s3.", "gcs.", "adls.", "client.")
"""Beginnings of the names of settings for access to files."""

ENDPOINT = "s3.endpoint"

_KEYS = ("access-key-id", "secret-access-key", "session-token")
_PAIR = frozenset(_KEYS[:2])
_S3_CREDENTIALS = frozenset(
    {f"{store}.{name}" for store in ("s3", "client")
     for name in (*_KEYS, "profile-name", "role-arn", "role-session-name")}
) | {"s3.anonymous", "s3.signer"}  # fmt: skip

_TEXT, _LABEL = re.compile(r"[!-~]+"), re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_FLAG = re.compile("true|false", re.IGNORECASE)
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_GOOGLE_TOKEN = re.compile(r"[\w.~+=-]{20,}", re.ASCII)
"""A token. gcsfs takes other values for ways to find credentials, or for files that have some."""

_VENDED = {
    **{f"{store}.{name}": _TEXT for store in ("s3", "client") for name in _KEYS},
    "s3.endpoint": re.compile(r"https?://[^@?#\s]+"),
    "s3.region": _LABEL, "client.region": _LABEL, "s3.anonymous": _FLAG,
    "s3.force-virtual-addressing": _FLAG, "s3.server-side-encryption": _TEXT,
    "s3.sse-kms-key-id": _TEXT, "gcs.oauth2.token": _GOOGLE_TOKEN,
    "gcs.oauth2.token-expires-at": _LABEL, "gcs.project-id": _TEXT,
    "adls.sas-token": _TEXT, "adls.account-key": _TEXT, "adls.token": _TEXT,
    "adls.account-name": _ACCOUNT,
}  # fmt: skip
"""Settings that a server may make, and what their values look like. Others are ignored."""

_SAS_TOKEN = re.compile(r"adls\.sas-token\.([^.]*)(\.[a-z0-9-]+)*")
"""A setting with the token of a host, whose first label is the account."""

_ADDRESSES = frozenset({
    ENDPOINT, "s3.proxy-uri", "gcs.service.host", "adls.connection-string", "adls.account-host",
    "adls.blob-storage-authority", "adls.blob-storage-scheme", "adls.dfs-storage-authority",
    "adls.dfs-storage-scheme",
})  # fmt: skip
"""Settings that lead requests to a host."""


def merge_settings(own: Mapping[str, Any], vended: Settings, table: str) -> dict[str, Any]:
    """Return the settings of a table's store.

    Args:
        own: Settings of the user's catalog.
        vended: Settings in the server's answer.

    Raises:
        FormatError: The server names an address for the user's credentials, wants to sign requests
            itself, or a value is not one of its setting.
    """
    mine = {name: own[name] for name in own if str(name).startswith(BEGINNINGS)}
    theirs = {
        name: value
        for name, value in vended.items()
        if value and (name in _VENDED or name.startswith("adls.sas-token."))
    }
    for name, value in theirs.items():
        _check_value(name, value, table)
    if not _has_pair(theirs):  # a part of credentials is none
        theirs = {name: theirs[name] for name in theirs if not _is_key(name)}
    _check_signer(mine, vended, theirs, table)
    _check_addresses(mine, vended, theirs, table)
    replaced = _replaced(mine, theirs)
    return {name: mine[name] for name in mine if name not in replaced} | theirs


def names_address(settings: Mapping[str, Any]) -> bool:
    """Return whether settings name the host of a store, or that of a proxy."""
    return not _ADDRESSES.isdisjoint(settings)


def _is_key(name: str) -> bool:
    return name.rpartition(".")[2] in _KEYS


def _has_pair(settings: Settings) -> bool:
    return _PAIR.issubset(name.rpartition(".")[2] for name in settings if _is_key(name))


def _has_s3_access(settings: Settings) -> bool:
    """Return whether requests to S3 need no credentials besides those of the settings."""
    return _has_pair(settings) or settings.get("s3.anonymous", "").lower() == "true"


def _check_value(name: str, value: str, table: str) -> None:
    host = _SAS_TOKEN.fullmatch(name)
    fits = _VENDED.get(name, _TEXT).fullmatch(value)
    if not fits or (name not in _VENDED and not (host and _ACCOUNT.fullmatch(host[1]))):
        raise FormatError(
            f"{table}: the REST catalog's setting {printable(name, 100)} is malformed; pass "
            "filesystem= to open the table's files by settings of your own"
        )


def _check_addresses(
    mine: Mapping[str, Any], vended: Settings, theirs: Settings, table: str
) -> None:
    for name in sorted(_ADDRESSES & vended.keys()):
        if not vended[name] or _is_same(mine.get(name), vended[name]):
            continue
        if name == ENDPOINT and _has_s3_access(theirs):
            continue
        raise FormatError(
            f"{table}: the REST catalog names {printable(vended[name], 200)!r} as {name} without "
            "credentials for it, and modcrypt sends yours only to hosts that you name: have the "
            f"catalog vend credentials, set {name} in the catalog's properties, or pass filesystem="
        )


def _is_same(own: Any, vended: str) -> bool:
    return isinstance(own, str) and own.rstrip("/") == vended.rstrip("/")


def _check_signer(mine: Mapping[str, Any], vended: Settings, theirs: Settings, table: str) -> None:
    wanted = "s3.signer" in mine or ("s3.signer" in vended and not _has_pair(mine))
    if wanted and not _has_pair(theirs):
        raise FormatError(
            f"{table}: the table's requests to S3 would be signed by the REST catalog (s3.signer), "
            "which modcrypt does not support: let the catalog vend credentials, set "
            "s3.access-key-id and s3.secret-access-key, or pass filesystem="
        )


def _replaced(mine: Mapping[str, Any], theirs: Settings) -> set[str]:
    """Return which own settings credentials of the server replace: those of a store as a whole."""
    replaced: set[str] = set()
    if _has_s3_access(theirs):
        replaced |= _S3_CREDENTIALS
    if any(
        name.startswith(("adls.sas-token", "adls.account-key", "adls.token")) for name in theirs
    ):
        replaced |= {name for name in mine if name.startswith("adls.") and _is_azure_secret(name)}
    return replaced


def _is_azure_secret(name: str) -> bool:
    return name.startswith("adls.sas-token") or name in {
        "adls.connection-string", "adls.credential", "adls.account-key", "adls.token",
        "adls.tenant-id", "adls.client-id", "adls.client-secret",
    }  # fmt: skip


EXPIRY = "s3.session-token-expires-at-ms"
"""Setting of a server with the time at which its credentials expire, in milliseconds."""

ADVISORY_SECONDS, MANDATORY_SECONDS = 300, 60
"""Seconds before the expiry when renewal is tried, and when requests wait for it."""

_S3FS_NAMES = {
    "access_key": ("s3.access-key-id", "aws_access_key_id"),
    "secret_key": ("s3.secret-access-key", "aws_secret_access_key"),
    "token": ("s3.session-token", "aws_session_token"),
}
_MILLISECONDS = re.compile(r"[0-9]{1,14}")


def expires(vended: Mapping[str, str]) -> bool:
    """Return whether a server says when its credentials for S3 expire."""
    return _MILLISECONDS.fullmatch(vended.get(EXPIRY, "")) is not None


def renew_credentials(
    filesystem: Any, settings: Mapping[str, Any], load: Callable[[], Mapping[str, Any]]
) -> None:
    """Have a file system of s3fs renew its credentials.

    Args:
        filesystem: File system that has sent no request yet.
        settings: Settings that it was opened with, and `EXPIRY`.
        load: Function that returns new ones; an error of it is raised by the request that waits.
    """
    from aiobotocore.credentials import AioRefreshableCredentials
    from aiobotocore.session import AioSession

    async def refresh() -> dict[str, Any]:
        return _describe_credentials(await asyncio.to_thread(load))

    session = AioSession()
    session._credentials = AioRefreshableCredentials.create_from_metadata(
        _describe_credentials(settings), refresh_using=refresh, method="iceberg-rest",
        advisory_timeout=ADVISORY_SECONDS, mandatory_timeout=MANDATORY_SECONDS,
    )  # fmt: skip
    static = {name for _, name in _S3FS_NAMES.values()}
    filesystem.session, filesystem._session_is_owned = session, False  # it must not make its own
    filesystem.client_kwargs = {
        name: value for name, value in filesystem.client_kwargs.items() if name not in static
    }


def _describe_credentials(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in the form of botocore; credentials without an expiry count as expired."""
    milliseconds = int(settings[EXPIRY]) if expires(settings) else 0
    found = {name: settings.get(key) for name, (key, _) in _S3FS_NAMES.items()}
    return {**found, "expiry_time": datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()}
