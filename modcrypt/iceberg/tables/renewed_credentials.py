"""Renew the credentials for S3 that a REST catalog vends, before they expire.

s3fs signs each request with the credentials of its session, so a session that renews them serves
all files that are open. It stays in this process: a copy of the file system in another one has the
credentials of the time when it was opened.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

EXPIRY = "s3.session-token-expires-at-ms"
"""Setting of a server with the time at which its credentials expire, in milliseconds."""

ADVISORY_SECONDS, MANDATORY_SECONDS = 300, 60
"""Seconds before the expiry when renewal is tried, and when requests wait for it."""

_NAMES = {
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
        return _describe(await asyncio.to_thread(load))

    session = AioSession()
    session._credentials = AioRefreshableCredentials.create_from_metadata(
        _describe(settings), refresh_using=refresh, method="iceberg-rest",
        advisory_timeout=ADVISORY_SECONDS, mandatory_timeout=MANDATORY_SECONDS,
    )  # fmt: skip
    static = {name for _, name in _NAMES.values()}
    filesystem.session, filesystem._session_is_owned = session, False  # it must not make its own
    filesystem.client_kwargs = {
        name: value for name, value in filesystem.client_kwargs.items() if name not in static
    }


def _describe(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in the form of botocore; credentials without an expiry count as expired."""
    milliseconds = int(settings[EXPIRY]) if expires(settings) else 0
    found = {name: settings.get(key) for name, (key, _) in _NAMES.items()}
    return {**found, "expiry_time": datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()}
