"""A policy and the requirements of reading, as the options that `ModcryptCryptoFactory` reads.

The options contain the policy itself, as JSON, and not the name of its file: executors may lack the
file, and the JVM has no reader of TOML. A policy holds no key and no password.
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from modcrypt.kms.expected_keys import id_set
from modcrypt.kms.policy import Policy
from modcrypt.kms.services.pkcs11_uri import parse_pkcs11_uri

PROPERTIES = (
    "modcrypt.policy", "modcrypt.root", "modcrypt.master.key.ids", "modcrypt.require.encrypted",
)  # fmt: skip
"""Names of the options; each call sets all, so that none of a session's remains in effect."""


def policy_options(
    policy: Policy | None,
    *,
    kms: str,
    root: str | os.PathLike[str] | None,
    master_key_ids: Collection[str] | None,
    require_encrypted: bool,
) -> dict[str, str]:
    """Return the options for reading and writing by a policy.

    Without a policy, a master key that the URI of the key service names is required.
    """
    ids = None if master_key_ids is None else id_set(master_key_ids)
    named = named_key(kms)
    if policy is None and named:
        ids = (ids or frozenset()) | {named}
    values = (
        "" if policy is None else _encode(_policy_members(policy)),
        "" if root is None else _format_root(os.fspath(root)),
        "" if ids is None else _encode(sorted(ids)),
        "true" if require_encrypted else "false",
    )
    return dict(zip(PROPERTIES, values, strict=True))


def named_key(kms: str) -> str | None:
    """Return the master key that the URI of a key service names: its client's `default_key`."""
    scheme, _, rest = kms.partition(":")
    rest, _, fragment = rest.partition("#")
    location = rest.partition("?")[0].removeprefix("//")
    if scheme == "pkcs11":
        return parse_pkcs11_uri(kms).object
    if scheme == "gcp-kms":
        return location if "/cryptoKeys/" in location else None
    if scheme in ("hcvault", "azure-kms"):
        before, _, name = location.rpartition("/keys/")
        return name if before else None
    return (location if scheme == "aws-kms" else urllib.parse.unquote(fragment)) or None


def _policy_members(policy: Policy) -> dict[str, Any]:
    """Return the members that the JVM needs; those of the key service are separate options.

    Raises:
        ValueError: The policy requires signatures, which the JVM cannot check.
    """
    if policy.signed_by:
        raise ValueError(
            "the policy requires signatures (signed_by), which Spark's own Parquet cannot check; "
            "read with the data source modcrypt"
        )
    other = {"kms", "kms_aad", "signed_by", "seal_at_least"}
    names = {member.name for member in fields(policy)} - other
    members = {name: getattr(policy, name) for name in sorted(names)}
    return {**members, "column_keys": dict(policy.column_keys)}


def _format_root(root: str) -> str:
    is_uri = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", root)
    return root if is_uri else os.path.abspath(root)


def _encode(value: Any) -> str:
    return json.dumps(value).replace("$", "\\u0024")  # Hadoop substitutes ${...}
