"""AGS1, the AES GCM Stream that encrypts Iceberg's metadata and Avro files, or any other file.

`Ags1Writer` and `Ags1Reader` are binary file objects; `encrypt` and `decrypt` work on bytes.
`__init__.pyi` lists the public names; each is imported on first use.
"""

from modcrypt.runtime.lazy_names import attach

_FORMER = {"open": "decrypt", "seal": "encrypt"}

__getattr__, __dir__ = attach(__name__, renamed=_FORMER)
