"""References to identities, `file:PATH`, and the identities that they name."""

from __future__ import annotations

from collections.abc import Sequence

from modcrypt.kms.keyring.keyring_passphrase import (
    PROMPT,
    ask_passphrase,
    check_passphrase_reference,
    make_reference_asker,
)
from modcrypt.kms.recipients.identity import Identity

MAX_IDENTITIES = 64
"""Largest number of identities that a reader tries."""


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


def load_identities(identities: Sequence[str], passphrase: str | None) -> tuple[Identity, ...]:
    """Return the identities that references name; `passphrase` is one for all of them.

    Raises:
        KeyRetrievalError: As `Identity.load`.
    """
    return tuple(_load(reference.partition(":")[2], passphrase) for reference in identities)


def _load(path: str, passphrase: str | None) -> Identity:
    if passphrase is None:
        return Identity.load(path)
    if passphrase == PROMPT:
        return Identity.load(path, lambda: ask_passphrase(f"identity {path}", hint=_HINT))
    return Identity.load(path, make_reference_asker(passphrase))


_HINT = "name its place by identity_passphrase="
