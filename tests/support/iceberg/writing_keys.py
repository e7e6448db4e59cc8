"""The key of one scope, as the keys of a commit are chosen."""

from __future__ import annotations

import time

from modcrypt.iceberg.format.table_metadata import EncryptedKey
from modcrypt.iceberg.keys import key_policies
from modcrypt.iceberg.keys.key_policies import KeyedTable, KeyPolicy
from modcrypt.iceberg.keys.wrapping_keys import OpenKey


def writing_key(
    table: KeyedTable, policy: KeyPolicy, scope: str = "", *, now_ms: int | None = None
) -> tuple[OpenKey, list[EncryptedKey]]:
    """Return the key that currently encrypts key metadata of a scope, and entries if it is new."""
    now = int(time.time() * 1000) if now_ms is None else now_ms
    keys, entries = key_policies._find_keys(table, policy, [scope], now)
    return keys[scope], entries
