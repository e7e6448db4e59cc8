"""AES keys: their bytes, which nothing shows, their text, their sources and their metadata."""

from modcrypt.keys.arguments import as_given_key, hide_keys, wrap_key
from modcrypt.keys.key import (
    FileKeyRetriever,
    FileKeys,
    Key,
    KeyLike,
    KeyRetriever,
    Secret,
    Unpicklable,
    as_key,
    fingerprint_key,
    invocation_counter,
    key_bytes,
)

__all__ = [
    "FileKeyRetriever",
    "FileKeys",
    "Key",
    "KeyLike",
    "KeyRetriever",
    "Secret",
    "Unpicklable",
    "as_given_key",
    "as_key",
    "fingerprint_key",
    "hide_keys",
    "invocation_counter",
    "key_bytes",
    "wrap_key",
]
