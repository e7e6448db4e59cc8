"""References to identities, `file:PATH`, and the identities that they name."""

from __future__ import annotations

from collections.abc import Sequence

from modcrypt.kms.keyring.keyring_passphrase import check_passphrase_reference
from modcrypt.kms.recipients.identity import Identity
from modcrypt.kms.recipients.private_key_file import load_with_reference
from modcrypt.runtime.tracebacks import hide_frames

MAX_IDENTITIES = 64
"""Largest number of identities that a reader tries."""


@hide_frames
def check_references(identities: Sequence[str], passphrase: str | None) -> None:
    """Raise ValueError if a reference is malformed; it may be a secret, so messages omit it."""
    if isinstance(identities, str) or len(identities) > MAX_IDENTITIES:
        raise ValueError(f"identities takes a sequence of at most {MAX_IDENTITIES} references")
    for reference in identities:
        kind, _, where = reference.partition(":")
        if kind != "file" or not where:
            raise ValueError(
                "name an identity as file:PATH, never the private key itself (not repeated here)"
            )
    if passphrase is None:
        return
    if not identities:
        raise ValueError("identity_passphrase needs identities")
    check_passphrase_reference(passphrase)


@hide_frames
def load_identities(identities: Sequence[str], passphrase: str | None) -> tuple[Identity, ...]:
    """Return the identities that references name; `passphrase` is one for all of them.

    Raises:
        KeyRetrievalError: As `Identity.load`.
    """
    return tuple(
        load_with_reference(Identity.load, reference.partition(":")[2], passphrase, _HINT)
        for reference in identities
    )


_HINT = "name its place by identity_passphrase="
