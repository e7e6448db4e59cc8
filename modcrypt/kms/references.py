"""From a URI to a key service's client: `open_kms`.

    file:/etc/modcrypt/keyring.json              a local keyring; #NAME names a master key
    env:NAME                                     one master key in an environment variable
    hcvault://host:8200/transit                  HashiCorp Vault, OpenBao; .../keys/NAME
    aws-kms://arn:aws:kms:eu-central-1:1:key/2   AWS KMS; aws-kms:// for keys named elsewhere
    gcp-kms://projects/p/locations/l/keyRings/r  Google Cloud KMS; .../cryptoKeys/NAME
    azure-kms://name.vault.azure.net             Azure Key Vault; .../keys/NAME
    pkcs11:token=lake;object=NAME                PKCS#11 (RFC 7512)

A URI names where keys are, and never holds one, nor a password: `passphrase=env:NAME` and the like
say where that is. It comes from the caller, never from a file's key material: an address in there
is the writer's, or an attacker's (CVE-2026-73334).
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from modcrypt.kms.client import KmsClient

__all__ = ["KmsUri", "missing_extra", "open_kms", "parse_kms_uri"]

ENTRY_POINTS = "modcrypt.kms"
"""Group of entry points by which other packages add schemes: functions as `open_keyring`."""


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
        ValueError: no URI, or a query with other names: all of them.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon or not scheme:
        raise ValueError(
            "a key service is named by a URI, such as file:keyring.json or hcvault://host/transit"
        )
    rest, _, fragment = rest.partition("#")
    location, _, query = rest.partition("?")
    pairs = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    if unknown := sorted({name for name, _ in pairs} - allowed):
        raise ValueError(
            f"{scheme}: URIs take no {', '.join(unknown)}; they take "
            f"{', '.join(sorted(allowed)) or 'no query'}"
        )
    return KmsUri(scheme, location, dict(pairs), urllib.parse.unquote(fragment))


def open_kms(uri: str, **options: Any) -> KmsClient:
    """Give the client of the key service that a URI names.

    Args:
        uri: as at the head of this room; or of a scheme that an entry point `modcrypt.kms` adds.
        options: what the service needs and a URI can't hold: `passphrase=` of a keyring, `pin=` of
            a PKCS#11 token, `client=` for one of the service's own clients.

    Raises:
        ValueError: no such scheme, or a URI that it doesn't take.
        ModuleNotFoundError: the extra is not installed that the service needs.
        KeyRetrievalError: the service is not there, or refuses.
    """
    scheme = uri.partition(":")[0]
    if scheme == "file":
        from modcrypt.kms.keyring import open_keyring as opener
    elif scheme == "env":
        from modcrypt.kms.environment import open_environment as opener
    elif scheme == "hcvault":
        from modcrypt.kms.vault import open_vault as opener
    elif scheme == "aws-kms":
        from modcrypt.kms.aws import open_aws as opener
    elif scheme == "gcp-kms":
        from modcrypt.kms.gcp import open_gcp as opener
    elif scheme == "azure-kms":
        from modcrypt.kms.azure import open_azure as opener
    elif scheme == "pkcs11":
        from modcrypt.kms.pkcs11 import open_pkcs11 as opener
    else:
        opener = _added(scheme)
    client: KmsClient = opener(uri, **options)
    return client


def _added(scheme: str) -> Any:
    found = entry_points(group=ENTRY_POINTS)
    for entry in found:
        if entry.name == scheme:
            return entry.load()
    own = ["aws-kms", "azure-kms", "env", "file", "gcp-kms", "hcvault", "pkcs11"]
    names = ", ".join(sorted({*own, *(entry.name for entry in found)}))
    raise ValueError(f"no key service has URIs of this scheme; known are {names}")


def missing_extra(service: str, extra: str) -> ModuleNotFoundError:
    """Give the error for a service whose packages are not installed."""
    return ModuleNotFoundError(f'{service} needs an extra: pip install "modcrypt[{extra}]"')
