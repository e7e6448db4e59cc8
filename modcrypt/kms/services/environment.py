"""One master key in an environment variable: `env:NAME`, its hex or base64 text.

For containers and jobs that are given a secret that way. The master key's id is the variable's
name; keys are wrapped as the keyring wraps them, without a version. There are no administration
and no rotation: a keyring has both, and takes the key over (`Keyring.create_key`, `value=`).
"""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from typing import NoReturn

from modcrypt.aead import GcmCipher, TagError
from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.key_text import key_from_base64, key_from_hex
from modcrypt.keys import KEY_LENGTHS, Key
from modcrypt.kms.client import Capabilities
from modcrypt.kms.local_wrap import local_aad, parse_wrapped, wrapped_text
from modcrypt.kms.uris import parse_kms_uri
from modcrypt.tracebacks import hide_frames

__all__ = ["EnvironmentKms", "open_environment"]


class EnvironmentKms:
    """A `KmsClient` of one master key, which was read from an environment variable.

    Args:
        name: of the master key.
        key: its value.
    """

    capabilities = Capabilities(aad=True)

    def __init__(self, name: str, key: Key) -> None:
        self.default_key = name
        self._cipher = GcmCipher(key)

    def __repr__(self) -> str:
        return f"EnvironmentKms({self.default_key!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an EnvironmentKms can't be pickled or copied: open its URI again instead")

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key of 16, 24 or 32 bytes.

        Raises:
            KeyNotFoundError: another master key is asked for.
            ValueError: a key of another length.
        """
        if len(key) not in KEY_LENGTHS:
            raise ValueError(f"an AES key has 16, 24 or 32 bytes, not {len(key)}")
        self._check(master_key_id)
        return wrapped_text(None, self._cipher.seal_block(key, local_aad(master_key_id, aad)))

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key.

        Raises:
            KeyNotFoundError: another master key is asked for, or a version of one.
            KeyMaterialError: no wrapped key; or altered, of another master key or other AAD.
        """
        self._check(master_key_id)
        version, block = parse_wrapped(wrapped)
        if version is not None:
            raise KeyNotFoundError(
                f"a key is wrapped under version {version} of master key {self.default_key}; one "
                "in an environment variable has no versions"
            )
        with contextlib.suppress(TagError):
            return self._cipher.open_block(block, local_aad(master_key_id, aad))
        raise KeyMaterialError(
            f"a wrapped key does not unwrap under master key {self.default_key}: altered, wrapped "
            "under another one or for another use; AES-GCM cannot tell which"
        )

    def _check(self, master_key_id: str) -> None:
        if master_key_id != self.default_key:
            raise KeyNotFoundError(
                f"the environment variable {self.default_key} is the only master key here"
            )


@hide_frames
def open_environment(uri: str) -> EnvironmentKms:
    """Read the master key that a URI names: `env:NAME`.

    Raises:
        KeyNotFoundError: the variable is not set.
        KeyMaterialError: no key is in it.
        ValueError: no such URI.
    """
    parsed = parse_kms_uri(uri)
    name = urllib.parse.unquote(parsed.location)
    if parsed.scheme != "env" or not name.isprintable() or not name or "=" in name:
        raise ValueError("a master key in an environment variable is named by env:NAME")
    if parsed.fragment not in ("", name):
        raise ValueError("env:NAME has one master key, of that name; its URI names no other")
    text = os.fsencode(name)
    value = os.environb.get(text)
    if not value:
        shown = name if _key(text) is None else "(not repeated, it looks like a key)"
        raise KeyNotFoundError(f"the environment variable {shown} is not set")
    key = _key(value.strip())
    if key is None:
        raise KeyMaterialError(
            f"the environment variable {name} holds no key: the hex or base64 text of 16, 24 or "
            f"32 bytes is wanted, it has {len(value)} characters"
        )
    return EnvironmentKms(name, key)


def _key(text: bytes) -> Key | None:
    return key_from_hex(text) or key_from_base64(text)
