"""Ask a key retriever once for each key metadata, because the files of a dataset share keys."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import replace

from modcrypt.keys import KeyLike, Secret
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.runtime.fork_safety import fork_safe


def ask_once(properties: FileDecryptionProperties) -> FileDecryptionProperties:
    """Return properties whose key retriever is called only once for each key metadata."""
    ask = properties.key_retriever
    if ask is None or not callable(ask):  # A retriever bound to a file caches keys itself.
        return properties
    answers: dict[bytes, Secret[KeyLike | None]] = {}
    locks: defaultdict[bytes, threading.Lock] = defaultdict(lambda: fork_safe(threading.Lock()))

    def find_key(metadata: bytes) -> KeyLike | None:
        with locks[metadata]:
            if metadata not in answers:
                answers[metadata] = Secret(ask(metadata))
            return answers[metadata]()

    return replace(properties, key_retriever=find_key)
