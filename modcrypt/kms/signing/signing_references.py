"""References to signing keys, `file:PATH`, and the verifying keys that files and lines name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from modcrypt.kms.keyring.keyring_passphrase import (
    PROMPT,
    ask_passphrase,
    check_passphrase_reference,
    make_reference_asker,
)
from modcrypt.kms.signing.signing_keys import PREFIX, SigningKey, VerifyingKey


def check_signing_reference(key: str | None, passphrase: str | None) -> None:
    """Raise ValueError if a reference is malformed; it may be a secret, so messages omit it."""
    if key is not None:
        kind, _, where = key.partition(":")
        if kind != "file" or not where:
            raise ValueError(
                "name a signing key as file:PATH, never the key itself (not repeated here)"
            )
    if passphrase is None:
        return
    if key is None:
        raise ValueError("signing_passphrase needs signing_key")
    check_passphrase_reference(passphrase)


def load_signing_key(key: str, passphrase: str | None) -> SigningKey:
    """Return the signing key that a reference names.

    Raises:
        KeyRetrievalError: As `SigningKey.load`.
    """
    path = key.partition(":")[2]
    if passphrase is None:
        return SigningKey.load(path)
    if passphrase == PROMPT:
        hint = "name its place by signing_passphrase="
        return SigningKey.load(path, partial(ask_passphrase, f"signing key {path}", hint=hint))
    return SigningKey.load(path, make_reference_asker(passphrase))


def read_verifying_keys(
    texts: Iterable[str], folder: str | os.PathLike[str] = "."
) -> tuple[VerifyingKey, ...]:
    """Return the verifying keys of lines, or of files whose paths are relative to a folder.

    Raises:
        KeyMaterialError: A key is malformed.
        OSError: A file cannot be read.
    """
    return tuple(
        VerifyingKey.parse(text)
        if text.startswith(f"{PREFIX}:")
        else VerifyingKey.load(Path(folder) / text)
        for text in texts
    )
