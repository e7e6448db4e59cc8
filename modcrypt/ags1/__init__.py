"""AGS1, the AES GCM Stream that encrypts Iceberg's metadata and Avro files, or any other file.

`Ags1Writer` and `Ags1Reader` are binary file objects; `seal` and `open` work on bytes.
"""

from __future__ import annotations

from modcrypt.ags1.lengths import UNVERIFIED
from modcrypt.ags1.reader import Ags1Reader, open  # noqa: A004 (as in gzip and others)
from modcrypt.ags1.writer import Ags1Writer, seal

__all__ = ["UNVERIFIED", "Ags1Reader", "Ags1Writer", "open", "seal"]
