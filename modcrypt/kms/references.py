"""URIs of key services, and `open_kms`, which opens a client for one.

    file:/etc/modcrypt/keyring.json              a local keyring; #NAME names a master key
    env:NAME                                     one master key in an environment variable
    hcvault://host:8200/transit                  HashiCorp Vault, OpenBao; .../keys/NAME
    vault://host:8200/transit                    the same as hcvault://
    aws-kms://arn:aws:kms:eu-central-1:1:key/2   AWS KMS; aws-kms:// for keys named elsewhere
    gcp-kms://projects/p/locations/l/keyRings/r  Google Cloud KMS; .../cryptoKeys/NAME
    azure-kms://name.vault.azure.net             Azure Key Vault; .../keys/NAME
    pkcs11:token=lake;object=NAME                PKCS#11 (RFC 7512)
    recipients:FOLDER?identity=PATH              public keys in files NAME.pub, and a private one

A URI names the place of keys. It never contains a key or a password; parts such as
`passphrase=env:NAME` name the place of a secret. A URI comes from the caller, never from a file's
key material, where the writer or an attacker chose the address (CVE-2026-73334).
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from modcrypt.kms.client import KmsClient
from modcrypt.report.suggestions import suggest
from modcrypt.runtime.tracebacks import hide_frames

ENTRY_POINTS = "modcrypt.kms"
"""Entry point group by which other packages add schemes: functions like `open_keyring`."""


_OWN = EntryPoints(
    EntryPoint(scheme, f"modcrypt.kms.{where}", ENTRY_POINTS)
    for scheme, where in (
        ("file", "keyring.keyring:open_keyring"),
        ("env", "services.environment:open_environment"),
        ("hcvault", "services.vault:open_vault"),
        ("aws-kms", "services.aws:open_aws"),
        ("gcp-kms", "services.gcp:open_gcp"),
        ("azure-kms", "services.azure:open_azure"),
        ("pkcs11", "services.pkcs11:open_pkcs11"),
    )
)


@hide_frames
def open_kms(uri: str, **options: Any) -> KmsClient:
    """Return the client of the key service that a URI names.

    Args:
        uri: URI as in the module's documentation, or of a scheme that an entry point in the group
            `modcrypt.kms` adds.
        options: Arguments that a service needs and a URI cannot contain: `passphrase=` of a
            keyring, `pin=` of a PKCS#11 token, `client=` for a client object of the service.

    Raises:
        TypeError: The URI is not a string.
        ValueError: The scheme is unknown, or the URI is invalid for its scheme.
        ModuleNotFoundError: The extra for the service is not installed.
        KeyRetrievalError: The service does not exist, or refuses access.
    """
    if not isinstance(uri, str):
        raise TypeError(f"a key service URI must be a string, not {type(uri).__name__}")
    scheme, colon, rest = present_uri(uri).partition(":")
    client: KmsClient = _find_opener(scheme)(f"{scheme}{colon}{rest}", **options)
    if not (hasattr(client, "wrap") and hasattr(client, "unwrap")):
        kind = type(client).__name__
        raise ValueError(f"the entry point for {scheme}: URIs returned no client, but a {kind}")
    return client


def present_uri(uri: str) -> str:
    """Return a URI with its scheme in lower case, and `hcvault` in place of its synonym `vault`."""
    scheme, colon, rest = uri.partition(":")
    scheme = scheme.lower()
    return f"{'hcvault' if scheme == 'vault' else scheme}{colon}{rest}"


def _find_opener(scheme: str) -> Any:
    """Import a service only when it is needed."""
    entries = _OWN if scheme in _OWN.names else entry_points(group=ENTRY_POINTS)
    if scheme in entries.names:
        return entries[scheme].load()
    known = sorted({"vault"} | _OWN.names | entries.names)
    raise ValueError(
        f"unknown scheme in the key service URI; known schemes are {', '.join(known)}"
        f"{_MEANT.get(scheme) or suggest(scheme, known) or _KEYRING}"
    )


# The message does not repeat the URI, where a user may have put a secret.
_KEYRING = "; a keyring is file:PATH"
_VAULT = "; a Vault is hcvault://HOST:PORT/MOUNT"
_MEANT = {"http": _VAULT, "https": _VAULT, "hashicorp": _VAULT, "openbao": _VAULT,
          "keyring": _KEYRING}  # fmt: skip


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
