"""One master key in an environment variable, as hex or base64 text: `env:NAME`.

This service is for containers and jobs that receive a secret that way. The master key's id is the
name of the variable. Keys are wrapped as a keyring wraps them, but without a version. The service
has no administration and no rotation. A keyring has both, and `Keyring.create_key` imports the key
by its argument `value`.
"""

from __future__ import annotations

import contextlib
import os
import urllib.parse

from modcrypt.aead import GcmCipher
from modcrypt.errors import KeyMaterialError, KeyNotFoundError, TagError
from modcrypt.keys import Key
from modcrypt.keys.encoding import decode_base64, decode_hex
from modcrypt.kms.client import Capabilities, UnpicklableClient
from modcrypt.kms.local_wrap import (
    check_wrappable,
    format_wrapped_key,
    local_aad,
    mismatch_error,
    parse_wrapped,
)
from modcrypt.kms.references import parse_kms_uri
from modcrypt.runtime.tracebacks import hide_frames


class EnvironmentKms(UnpicklableClient):
    """A `KmsClient` with one master key, which was read from an environment variable."""

    capabilities = Capabilities(aad=True, random_nonces=True)

    def __init__(self, name: str, key: Key) -> None:
        self.default_key = name
        self._cipher = GcmCipher(key)

    def __repr__(self) -> str:
        return f"EnvironmentKms({self.default_key!r})"

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key; raise KeyNotFoundError for any id but that of the one master key."""
        check_wrappable(key)
        self._check(master_key_id)
        return format_wrapped_key(
            None, self._cipher.encrypt_block(key, local_aad(master_key_id, aad))
        )

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key; raise KeyNotFoundError also if the wrapped key names a version."""
        self._check(master_key_id)
        version, block = parse_wrapped(wrapped)
        if version is not None:
            raise KeyNotFoundError(
                f"a key is wrapped under version {version} of master key {self.default_key}, but a "
                "master key in an environment variable has no versions; use its keyring"
            )
        with contextlib.suppress(TagError):
            return self._cipher.decrypt_block(block, local_aad(master_key_id, aad))
        raise mismatch_error(self.default_key)

    def _check(self, master_key_id: str) -> None:
        if master_key_id != self.default_key:
            raise KeyNotFoundError(
                f"the environment variable {self.default_key} contains the only master key of this "
                "key service"
            )


@hide_frames
def open_environment(uri: str) -> EnvironmentKms:
    """Read the master key that a URI of the form `env:NAME` names.

    Raise KeyNotFoundError if the variable is not set, KeyMaterialError if it has no key.
    """
    parsed = parse_kms_uri(uri)
    name = urllib.parse.unquote(parsed.location)
    if parsed.scheme != "env" or not name.isprintable() or not name or "=" in name:
        raise ValueError("the URI of a master key in an environment variable is env:NAME")
    if parsed.fragment not in ("", name):
        raise ValueError("the fragment of env:NAME names another master key; remove it")
    text = os.fsencode(name)
    if not (value := os.environb.get(text)):
        shown = name if _parse_key(text) is None else "(not repeated, it looks like a key)"
        raise KeyNotFoundError(f"the environment variable {shown} is not set")
    if (key := _parse_key(value.strip())) is None:
        raise KeyMaterialError(
            f"the environment variable {name} does not contain a key: expected the hex or base64 "
            f"text of 16, 24 or 32 bytes, found {len(value)} characters"
        )
    return EnvironmentKms(name, key)


def _parse_key(text: bytes) -> Key | None:
    raw = decode_hex(text) or decode_base64(text)
    return None if raw is None else Key(raw)
