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

from importlib.metadata import entry_points
from typing import Any

from modcrypt.kms.client import KmsClient
from modcrypt.tracebacks import hide_frames

__all__ = ["open_kms"]

ENTRY_POINTS = "modcrypt.kms"
"""Group of entry points by which other packages add schemes: functions as `open_keyring`."""


@hide_frames
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
    scheme, colon, rest = uri.partition(":")
    scheme = scheme.lower()
    client: KmsClient = _opener(scheme)(f"{scheme}{colon}{rest}", **options)
    if not (hasattr(client, "wrap") and hasattr(client, "unwrap")):
        kind = type(client).__name__
        raise ValueError(f"what opens {scheme}: URIs gives no client, but a {kind}")
    return client


def _opener(scheme: str) -> Any:
    """Give what opens the URIs of a scheme; a service's room is only loaded when it is wanted."""
    if scheme == "file":
        from modcrypt.kms.keyring.keyring import open_keyring

        return open_keyring
    if scheme == "env":
        from modcrypt.kms.services.environment import open_environment

        return open_environment
    if scheme == "hcvault":
        from modcrypt.kms.services.vault import open_vault

        return open_vault
    if scheme == "aws-kms":
        from modcrypt.kms.services.aws import open_aws

        return open_aws
    if scheme == "gcp-kms":
        from modcrypt.kms.services.gcp import open_gcp

        return open_gcp
    if scheme == "azure-kms":
        from modcrypt.kms.services.azure import open_azure

        return open_azure
    if scheme == "pkcs11":
        from modcrypt.kms.services.pkcs11 import open_pkcs11

        return open_pkcs11
    return _added(scheme)


def _added(scheme: str) -> Any:
    found = entry_points(group=ENTRY_POINTS)
    for entry in found:
        if entry.name == scheme:
            return entry.load()
    own = ["aws-kms", "azure-kms", "env", "file", "gcp-kms", "hcvault", "pkcs11"]
    names = ", ".join(sorted({*own, *(entry.name for entry in found)}))
    raise ValueError(f"no key service has URIs of this scheme; known are {names}")
