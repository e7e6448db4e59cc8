"""Parsing key service URIs of any scheme."""

from __future__ import annotations

import ipaddress
import urllib.parse
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KmsUri:
    """The parts of a key service's URI: `scheme:[//]location[?query][#fragment]`."""

    scheme: str
    location: str
    query: dict[str, str]
    fragment: str


def parse_kms_uri(uri: str, allowed: frozenset[str] = frozenset()) -> KmsUri:
    """Split a URI and decode percent-escapes in its query and fragment, but not in its location."""
    scheme, colon, rest = uri.partition(":")
    if not colon or not scheme:
        raise ValueError(
            "a key service URI has the form SCHEME:LOCATION, such as file:keyring.json or "
            "hcvault://host/transit"
        )
    rest, _, fragment = rest.partition("#")
    location, _, query = rest.partition("?")
    pairs = [pair.partition("=")[::2] for pair in query.split("&")] if query else []
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names) or not allowed.issuperset(names):
        # The message does not repeat the query: a user may have put a secret there.
        raise ValueError(
            f"{scheme}: invalid query in the URI; it takes NAME=VALUE, each name once, of: "
            f"{', '.join(sorted(allowed)) or 'none (no query)'}"
        )
    values = {name: urllib.parse.unquote(value) for name, value in pairs}
    return KmsUri(scheme, location, values, urllib.parse.unquote(fragment))


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address belongs to the loopback interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def missing_extra(service: str, extra: str) -> ModuleNotFoundError:
    """Return the error for a service whose packages are not installed."""
    return ModuleNotFoundError(f'{service} needs an extra: pip install "modcrypt[{extra}]"')
