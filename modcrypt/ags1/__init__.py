"""AGS1, the AES GCM Stream that encrypts Iceberg's metadata and Avro files, or any other file.

`Ags1Writer` and `Ags1Reader` are binary file objects; `encrypt` and `decrypt` work on bytes.
"""

from __future__ import annotations

from typing import Any

from modcrypt.ags1.lengths import UNVERIFIED
from modcrypt.ags1.reader import Ags1Reader, decrypt
from modcrypt.ags1.writer import Ags1Writer, encrypt
from modcrypt.runtime.former_names import warn

__all__ = ["UNVERIFIED", "Ags1Reader", "Ags1Writer", "decrypt", "encrypt"]


def __getattr__(name: str) -> Any:
    present = {"open": "decrypt", "seal": "encrypt"}.get(name)
    if present is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn(f"the function modcrypt.ags1.{name}", present)
    return globals()[present]
