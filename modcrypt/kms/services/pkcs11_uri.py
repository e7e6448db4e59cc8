"""Parse PKCS#11 URIs (RFC 7512) that name a token and its module."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

_PATH_NAMES = {"token", "manufacturer", "model", "serial", "slot-id", "object", "id", "type"}
_TRAITS = {"token": "label", "manufacturer": "manufacturer_id", "model": "model"}
_QUERY_NAMES = {"module-path", "pin-source"}


@dataclass(frozen=True, kw_only=True)
class Pkcs11Uri:
    """The parts of a PKCS#11 URI; None for absent parts."""

    # Required traits of the token: label, manufacturer_id, model, serial, slot_id.
    token: Mapping[str, str | bytes | int]
    object: str | None
    id: bytes | None  # required CKA_ID of the default master key
    module: str | None
    pin_source: str | None


def parse_pkcs11_uri(uri: str) -> Pkcs11Uri:
    """Parse a PKCS#11 URI (RFC 7512) with attributes between `;` and its query between `&`.

    Raises:
        ValueError: The URI is malformed, or has unknown attributes. RFC 7512 has more attributes,
            but ignoring one would admit other tokens than the URI means.
    """
    scheme, _, rest = uri.partition(":")
    if scheme != "pkcs11":
        raise ValueError("a PKCS#11 URI must start with pkcs11:")
    path, _, query = rest.partition("?")
    values = _parse_attributes(path, ";", _PATH_NAMES)
    options = _parse_attributes(query, "&", _QUERY_NAMES)
    named = {**values, **options}
    text = {name: _decode_text(name, value) for name, value in named.items() if name != "id"}
    if text.get("type", "secret-key") not in ("secret-key", "private"):
        raise ValueError(
            "PKCS#11 URI: type must be secret-key, the type of master keys, or private, that of "
            "signing keys"
        )
    if "id" in values and "object" not in values:
        raise ValueError("PKCS#11 URI: id requires object, because labels identify master keys")
    return Pkcs11Uri(
        token=_parse_token_traits(text),
        object=text.get("object"),
        id=values.get("id"),
        module=text.get("module-path"),
        pin_source=text.get("pin-source"),
    )


def _parse_token_traits(text: Mapping[str, str]) -> dict[str, str | bytes | int]:
    traits: dict[str, str | bytes | int] = {
        trait: text[name] for name, trait in _TRAITS.items() if name in text
    }
    if "serial" in text:
        traits["serial"] = text["serial"].encode()
    if "slot-id" in text:
        if not re.fullmatch(r"[0-9]{1,20}", text["slot-id"]):
            raise ValueError("PKCS#11 URI: slot-id must be a decimal number")
        traits["slot_id"] = int(text["slot-id"])
    return traits


def _parse_attributes(part: str, separator: str, allowed: set[str]) -> dict[str, bytes]:
    """Parse one half of the URI into names and decoded values; no message repeats a value."""
    values: dict[str, bytes] = {}
    for attribute in part.split(separator) if part else []:
        name, equals, value = attribute.partition("=")
        if name == "pin-value":
            raise ValueError(
                "PKCS#11 URI: remove pin-value, because URIs appear in logs, process lists and "
                "histories; use pin-source=file:PATH or pin-source=env:NAME"
            )
        if name == "module-name":
            raise ValueError(
                "PKCS#11 URI: replace module-name, which depends on the search path of the loader, "
                "by module-path=/absolute/path"
            )
        if name not in allowed or not equals:
            raise ValueError(
                f"PKCS#11 URI: attributes between {separator!r} must be NAME=VALUE with a NAME of "
                f"{', '.join(sorted(allowed))}; attribute {len(values) + 1} is not"
            )
        if name in values:
            raise ValueError(f"PKCS#11 URI: {name} is repeated")
        if re.search(r"%(?![0-9A-Fa-f]{2})", value):
            raise ValueError(f"PKCS#11 URI: {name} contains a % without two hex digits after it")
        values[name] = urllib.parse.unquote_to_bytes(value)
    return values


def _decode_text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"PKCS#11 URI: {name} is not UTF-8") from None
