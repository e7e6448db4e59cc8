"""The explicit keys of a file, encrypted to its recipients, for readers without modcrypt.

    {"format": "modcrypt-explicit-keys", "version": 1, "fileAAD": "...",
     "recipients": [{"kind": "x25519", "id": "...", "encryptedKeys": "..."}]}

The file `_EXPLICIT_KEYS_FOR_NAME.json` lies beside the file `NAME`. What is encrypted to each
recipient is JSON: `{"footer_key": HEX, "aad_prefix": HEX}`, the latter only if readers must supply
it. It is bound to the file's AAD, and to another purpose than key metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.keys import Key, key_bytes
from modcrypt.kms.recipients.file_recipients import FileRecipients, encrypt_entry
from modcrypt.kms.recipients.kinds import ROLE_EXPLICIT_KEYS, make_info
from modcrypt.kms.recipients.recipient import Recipient
from modcrypt.pkmt1.strict_json import encode_base64
from modcrypt.runtime.tracebacks import hide_frames

FORMAT = "modcrypt-explicit-keys"
VERSION = 1


def explicit_keys_name(name: str) -> str:
    """Return the name of the file with the explicit keys of the file called `name`."""
    return f"_EXPLICIT_KEYS_FOR_{name}.json"


@dataclass
class ExplicitKeysFile:
    """The file of explicit keys beside a new file; written when the new file is complete."""

    place: Place  # place of the new file
    recipients: FileRecipients  # KEK and recipients of the new file
    key: Key  # footer key of the new file
    aad_prefix: bytes | None  # AAD prefix that readers must supply; None if they need none
    # AAD of the new file, known when its footer is made
    file_aad: bytes | None = field(default=None, repr=False)

    def make_footer_metadata(self, file_aad: bytes) -> bytes:
        """Return the footer key's metadata, and remember the file AAD."""
        self.file_aad = file_aad
        return self.recipients.make_footer_metadata(self.key)(file_aad)

    @contextmanager
    def companion(self) -> Iterator[Any]:
        """Write the keys before the new file appears; remove them if it does not."""
        keys = self.place.resolve()
        keys = keys.beside(explicit_keys_name(keys.name))
        written = False

        def write() -> None:
            nonlocal written
            assert self.file_aad is not None  # the footer is complete
            with open_sink_at(keys) as sink:
                sink.append(self._encode(self.file_aad))
            written = True

        try:
            yield write
        except BaseException:
            with suppress(OSError):
                if written:
                    keys.remove()
            raise

    def _encode(self, file_aad: bytes) -> bytes:
        info = make_info(ROLE_EXPLICIT_KEYS, file_aad)
        document = {
            "format": FORMAT,
            "version": VERSION,
            "fileAAD": encode_base64(file_aad),
            "recipients": [self._encrypt(to, info) for to in self.recipients.recipients],
        }
        return json.dumps(document, indent=1).encode() + b"\n"

    @hide_frames
    def _encrypt(self, recipient: Recipient, info: bytes) -> dict[str, str]:
        keys = {"footer_key": key_bytes(self.key).hex()}
        if self.aad_prefix is not None:
            keys["aad_prefix"] = self.aad_prefix.hex()
        return encrypt_entry(recipient, json.dumps(keys).encode(), info, "encryptedKeys")
