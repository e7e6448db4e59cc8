"""AES keys: their bytes, which nothing shows, their text, their sources and their metadata."""

from modcrypt.keys.key import (
    FileKeyRetriever,
    FileKeys,
    Key,
    KeyLike,
    KeyRetriever,
    Secret,
    Unpicklable,
    as_key,
    invocation_counter,
    key_bytes,
    key_from_base64,
    key_from_hex,
)

__all__ = [
    "FileKeyRetriever",
    "FileKeys",
    "Key",
    "KeyLike",
    "KeyRetriever",
    "Secret",
    "Unpicklable",
    "as_key",
    "invocation_counter",
    "key_bytes",
    "key_from_base64",
    "key_from_hex",
]
