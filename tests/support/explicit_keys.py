"""A reader of the explicit keys beside a file, as partners without modcrypt have one."""

from __future__ import annotations

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.keys import Key
from modcrypt.kms.recipients.explicit_keys import FORMAT, VERSION
from modcrypt.kms.recipients.file_recipients import PrivateKey
from modcrypt.kms.recipients.kinds import ROLE_EXPLICIT_KEYS, make_info
from modcrypt.pkmt1.material import MAX_SHARED_METADATA
from modcrypt.pkmt1.recipient_metadata import MAX_RECIPIENTS
from modcrypt.pkmt1.strict_json import decode_base64, require_members, strict_json


def decrypt_explicit_keys(data: bytes, identity: PrivateKey) -> tuple[Key, bytes | None]:
    """Return the footer key and the AAD prefix in a file of explicit keys.

    Raise KeyMaterialError if it is malformed or altered, KeyNotFoundError if it is for others.
    """
    document = strict_json(data) if len(data) <= MAX_SHARED_METADATA else None
    members = require_members(document, "format", "version", "fileAAD", "recipients")
    if members["format"] != FORMAT or members["version"] != VERSION or members["version"] is True:
        raise KeyMaterialError(f"the format is not {FORMAT}, version {VERSION}")
    info = make_info(ROLE_EXPLICIT_KEYS, decode_base64(members["fileAAD"], "fileAAD"))
    entries = members["recipients"]
    if not isinstance(entries, list) or len(entries) > MAX_RECIPIENTS:
        raise KeyMaterialError(f"recipients is not a list of at most {MAX_RECIPIENTS}")
    for entry in entries:
        found = require_members(entry, "kind", "id", "encryptedKeys")
        if decode_base64(found["id"], "id") == identity.recipient.id:
            return _parse_keys(
                identity.decrypt(decode_base64(found["encryptedKeys"], "encryptedKeys"), info)
            )
    raise KeyNotFoundError("the keys are not encrypted to this identity")


def _parse_keys(plain: bytes) -> tuple[Key, bytes | None]:
    keys = strict_json(plain)
    if not isinstance(keys, dict):
        raise KeyMaterialError("the explicit keys are not an object")
    try:
        prefix = keys.get("aad_prefix")
        aad_prefix = None if prefix is None else bytes.fromhex(prefix)
        return Key(bytes.fromhex(keys["footer_key"])), aad_prefix
    except (KeyError, TypeError, ValueError):
        raise KeyMaterialError("the explicit keys are malformed") from None
