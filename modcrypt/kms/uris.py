"""The parts of a key service's URI, of whatever scheme."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

__all__ = ["KmsUri", "missing_extra", "parse_kms_uri"]


@dataclass(frozen=True, slots=True)
class KmsUri:
    """The parts of a key service's URI: `scheme:[//]location[?query][#fragment]`."""

    scheme: str
    location: str
    query: dict[str, str]
    fragment: str


def parse_kms_uri(uri: str, allowed: frozenset[str] = frozenset()) -> KmsUri:
    """Split a URI; percent-escapes in its query and fragment are resolved, in the location not.

    Args:
        uri: as above.
        allowed: names that the query may have.

    Raises:
        ValueError: no URI, or a query with other names.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon or not scheme:
        raise ValueError(
            "a key service is named by a URI, such as file:keyring.json or hcvault://host/transit"
        )
    rest, _, fragment = rest.partition("#")
    location, _, query = rest.partition("?")
    pairs = [pair.partition("=")[::2] for pair in query.split("&")] if query else []
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names) or not allowed.issuperset(names):
        # What was given is not repeated: it may be a secret in a place where none belongs.
        raise ValueError(
            f"{scheme}: URIs take, once each and as NAME=VALUE, "
            f"{', '.join(sorted(allowed)) or 'no query'}"
        )
    values = {name: urllib.parse.unquote(value) for name, value in pairs}
    return KmsUri(scheme, location, values, urllib.parse.unquote(fragment))


def missing_extra(service: str, extra: str) -> ModuleNotFoundError:
    """Give the error for a service whose packages are not installed."""
    return ModuleNotFoundError(f'{service} needs an extra: pip install "modcrypt[{extra}]"')
