"""Digests of options, which distinguish the runs in a record."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

# Parameters that do not change the resulting files.
_NOT_RECORDED = {
    "source", "destination", "paths", "html", "in_place", "glob", "jobs", "record", "dry_run",
    "fail_fast", "force", "threads", "as_json", "audit",
    "passphrase", "identity_passphrase", "sign_passphrase",
}  # fmt: skip


_SERVICES = {"kms"}  # a keyring's content changes with every rotation


def digest_of(parameters: dict[str, Any]) -> str:
    """Return a digest of typed options that distinguishes runs without storing the options.

    A policy or key file counts by its content, not by its path.
    """
    fingerprints = {
        name: value if name in _SERVICES else _fingerprint_value(value)
        for name, value in parameters.items()
        if name not in _NOT_RECORDED
    }
    return hashlib.sha256(json.dumps(fingerprints, sort_keys=True).encode()).hexdigest()[:16]


def _fingerprint_value(value: Any) -> Any:
    """Return an option's value, with the names of files replaced by hashes of their content."""
    if isinstance(value, tuple):
        return [_fingerprint_value(item) for item in value]
    if not isinstance(value, str):
        return value
    before, reference, path = value.rpartition("file:")
    path = os.path.expanduser(path if reference else value)
    try:
        with open(path, "rb") as file:
            return [before, hashlib.sha256(file.read(_MAX_FINGERPRINT_BYTES)).hexdigest()]
    except (OSError, ValueError):
        return value


_MAX_FINGERPRINT_BYTES = 4 << 20  # read from a file that an option names
