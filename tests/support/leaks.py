"""Secrets whose spellings can be searched, and the search for them."""

from __future__ import annotations

import base64
import functools
import urllib.parse
from typing import Any

# Markers: no eight bytes of them occur by accident, and every spelling of them can be searched.
FOOTER = b"Fk!qZ7wv%h2Tj-16"
COLUMN = bytes(range(0xC1, 0xD9))  # 24 bytes, none of them ASCII
SPENT = bytes(range(0xA1, 0xB9))  # the same; no other test may seal with it
SHORT = b"Sk?xW4ce@9MnVt!"
FOOTER_ID, COLUMN_ID = b"Mf:pLo9&e4nUyRb+1", b"Mc:x8Hd~sGk5Qw=2"
MASTER, COLUMN_MASTER = b"Mk@5rYw!eT9_zGu~", b"Mc%8uHn&kP3^sJ;w"
PASSPHRASE = "Zx9!kQ2vLw8@mN4p"
KEYS = {
    "footer key": FOOTER,
    "column key": COLUMN,
    "key of 15 bytes": SHORT,
    "spent key": SPENT,
    "master key": MASTER,
    "column master key": COLUMN_MASTER,
    "passphrase": PASSPHRASE.encode(),
}
SECRETS = {
    **KEYS,
    "footer key metadata": FOOTER_ID,
    "column key metadata": COLUMN_ID,
    "plaintext": b"Vq*zjx7w-kmnp",
    "plaintext number": b"Pn$8byte",
}
WINDOW = 8
"""A part of so many bytes counts as a leak, too."""


@functools.cache
def spellings(secret: bytes) -> set[bytes]:
    """Spell a secret, and each part of it, as programs do that show bytes."""
    out = set()
    for at in range(len(secret) - WINDOW + 1):
        part = secret[at : at + WINDOW]
        out |= {part, part.hex().encode(), part.hex(" ").encode(), repr(part)[2:-1].encode()}
        out |= {repr(list(part))[1:-1].encode(), urllib.parse.quote(part).encode()}
        # Six or nine bytes make whole characters of base64, whatever stands around them.
        if at + 9 <= len(secret):
            out.add(base64.b64encode(secret[at : at + 9]))
            out.add(base64.urlsafe_b64encode(secret[at : at + 9]))
    out.add(str(int.from_bytes(secret, "big")).encode())
    out.add(str(int.from_bytes(secret, "little")).encode())
    return out


SEARCHED = {name: spellings(secret) for name, secret in SECRETS.items()}


def leaks(shown: str | bytes, names: Any = tuple(SECRETS)) -> list[str]:
    data = shown.encode("utf-8", "surrogateescape") if isinstance(shown, str) else shown
    lower = data.lower()
    return [
        name
        for name in names
        if any(spelling in data or spelling.lower() in lower for spelling in SEARCHED[name])
    ]
