"""Values of Settings in the forms that other processes and other functions need."""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path

from modcrypt.kms.key_references import absolute_reference
from modcrypt.kms.keyring.keyring import keyring_path
from modcrypt.kms.policy import resolve_service
from modcrypt.kms.references import parse_kms_uri

ENCRYPTION_OPTIONS = frozenset(
    {
        "plaintext_footer", "encryption_algorithm", "store_aad_prefix", "data_page_v2_levels",
        "footer_key_metadata", "column_key_metadata",
    }
)  # fmt: skip
"""The arguments of `FileEncryptionProperties` that Settings accept as `encryption_options`."""


def absolute_uri(uri: str) -> str:
    """Return the URI of a key service with absolute paths of its files."""
    if uri.startswith("recipients:"):
        return resolve_service(uri, Path.cwd())
    if not uri.startswith("file:"):
        return uri
    parsed = parse_kms_uri(uri, frozenset({"passphrase"}))
    passphrase = parsed.query.get("passphrase")
    if passphrase is not None:
        passphrase = f"?passphrase={urllib.parse.quote(absolute_reference(passphrase), safe=':/')}"
    path = urllib.parse.quote(os.fsencode(os.path.abspath(keyring_path(uri))))
    key = f"#{urllib.parse.quote(parsed.fragment)}" if parsed.fragment else ""
    return f"file:{path}{passphrase or ''}{key}"


def prefix_to_bytes(prefix: str | bytes) -> bytes:
    """Return an AAD prefix as bytes."""
    return prefix if isinstance(prefix, bytes) else os.fsencode(prefix)


def prefix_to_text(prefix: str | bytes) -> str:
    """Return an AAD prefix as text, which policies need; raise ValueError if it is not UTF-8."""
    try:
        return prefix if isinstance(prefix, str) else prefix.decode()
    except UnicodeDecodeError:
        raise ValueError("with a key service the AAD prefix must be UTF-8 text") from None
