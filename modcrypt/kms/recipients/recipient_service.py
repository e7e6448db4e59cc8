"""Public keys as a key service: `recipients:FOLDER?identity=PATH`.

The master key ID is the file `ID.pub` in the folder, which has one or more recipients. All who have
the folder can wrap keys, and the identity of any of them unwraps. So policies can give columns
different recipients, and tables and streams have recipients, too. A wrapped key is JSON:

    {"modcryptWrapped":1,"recipients":[{"kind":"x25519","id":"...","wrappedKey":"..."}]}
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from pathlib import Path

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.kms.client import Capabilities, UnpicklableClient
from modcrypt.kms.keyring.keyring_passphrase import Passphrase, make_reference_asker
from modcrypt.kms.local_wrap import check_wrappable, local_aad
from modcrypt.kms.recipients.file_recipients import encrypt_entry
from modcrypt.kms.recipients.identity import Identity
from modcrypt.kms.recipients.kinds import make_info
from modcrypt.kms.recipients.recipient import Recipient, read_recipients
from modcrypt.kms.references import parse_kms_uri
from modcrypt.pkmt1.material import MAX_WRAPPED
from modcrypt.pkmt1.strict_json import decode_base64, require_members, strict_json
from modcrypt.runtime.tracebacks import hide_frames

VERSION = 1
ROLE = "wrapped key"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


class RecipientKms(UnpicklableClient):
    """A `KmsClient` whose master keys are files of recipients.

    The folder has a file `ID.pub` for each master key; without a folder, the client only unwraps,
    without an identity, it only wraps.
    """

    capabilities = Capabilities(aad=True, public_keys=True)

    def __init__(
        self, folder: Path | None, identity: Identity | None, default_key: str | None = None
    ) -> None:
        self.default_key = default_key
        self._folder, self._identity = folder, identity

    def __repr__(self) -> str:
        return f"RecipientKms({str(self._folder)!r}, {self._identity!r})"

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key to all recipients of a master key.

        Raise KeyNotFoundError without a file of this name, KeyMaterialError if it is malformed or
        has too many recipients.
        """
        check_wrappable(key)
        info = make_info(ROLE, local_aad(master_key_id, aad))
        recipients = self._read_recipients(master_key_id)
        entries = [encrypt_entry(to, key, info, "wrappedKey") for to in recipients]
        document = {"modcryptWrapped": VERSION, "recipients": entries}
        text = json.dumps(document, separators=(",", ":"))
        if len(text) > MAX_WRAPPED:
            raise KeyMaterialError(
                f"master key {master_key_id} has too many recipients for a wrapped key of "
                f"{MAX_WRAPPED} characters; use x25519, or encrypt files --to recipients"
            )
        return text

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key; raise KeyNotFoundError without an identity, or if it is for others."""
        members = require_members(strict_json(wrapped), "modcryptWrapped", "recipients")
        version, entries = members["modcryptWrapped"], members["recipients"]
        if type(version) is not int or version != VERSION or not isinstance(entries, list):
            raise KeyMaterialError("the wrapped key is not one for recipients, or a newer version")
        if self._identity is None:
            raise KeyNotFoundError("no identity is named; add ?identity=PATH to the URI")
        mine = self._identity.recipient
        parsed = (require_members(entry, "kind", "id", "wrappedKey") for entry in entries)
        found = next((e for e in parsed if decode_base64(e["id"], "id") == mine.id), None)
        if found is None:
            raise KeyNotFoundError(f"the key is not wrapped for the identity {mine.hex_id}")
        encrypted = decode_base64(found["wrappedKey"], "wrappedKey")
        try:
            return self._identity.decrypt(encrypted, make_info(ROLE, local_aad(master_key_id, aad)))
        except KeyMaterialError:
            raise KeyMaterialError(
                "a wrapped key does not open with the identity: it was altered, or wrapped under "
                "another master key or with other AAD"
            ) from None

    def _read_recipients(self, master_key_id: str) -> tuple[Recipient, ...]:
        if self._folder is None:
            raise KeyNotFoundError("no folder of recipients is named; use recipients:FOLDER")
        if not _ID.fullmatch(master_key_id):
            raise KeyNotFoundError("the id of a master key must be the name of a .pub file")
        try:
            return read_recipients(self._folder / f"{master_key_id}.pub")
        except FileNotFoundError:
            raise KeyNotFoundError(
                f"the folder {self._folder} has no file {master_key_id}.pub"
            ) from None


@hide_frames
def open_recipients(uri: str, passphrase: Passphrase | None = None) -> RecipientKms:
    """Open the public keys and the identity that a URI names.

    The URI is `recipients:FOLDER?identity=PATH&passphrase=REF#ID`; all parts but one of the first
    two are optional, and REF is `env:NAME` or `file:PATH`. Raise as `Identity.load`.
    """
    parsed = parse_kms_uri(uri, frozenset({"identity", "passphrase"}))
    folder, path = urllib.parse.unquote(parsed.location), parsed.query.get("identity")
    if not (folder or path):
        raise ValueError("the URI of recipients is recipients:FOLDER?identity=PATH")
    reference = parsed.query.get("passphrase")
    ask = make_reference_asker(reference, shown=True) if reference else passphrase
    identity = None if path is None else Identity.load(path, ask)
    where = Path(os.path.expanduser(folder)) if folder else None
    return RecipientKms(where, identity, parsed.fragment or None)
