"""A file and its key metadata taken apart by the formats' field ids, without modcrypt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.support.jobs.lake import material_file
from tests.support.kms.memory_kms import MemoryKms
from tests.support.kms.rotating_kms import BasicKms
from tests.support.parquet_parser import thrift_struct
from tests.support.pkmt1 import open_data_key

Footer = dict[int, Any]


def split(file: bytes) -> tuple[bytes, bytes]:
    """Return the bytes before the footer, and the footer."""
    start = len(file) - 8 - int.from_bytes(file[-8:-4], "little")
    return file[:start], file[start:-8]


def chunks(footer: Footer) -> Iterator[tuple[Footer, str]]:
    """Return a footer's column key structs with their column names."""
    for row_group in footer[4]:
        for chunk in row_group[1]:
            if own := chunk.get(8, {}).get(2):
                yield own, b".".join(own[1]).decode()


class Look:
    """A file taken apart by the formats' field ids, without the package."""

    def __init__(self, path: Path, kms: BasicKms | MemoryKms) -> None:
        self.path, self._kms = path, kms
        self.file = path.read_bytes()
        self.body, tail = split(self.file)
        self.store = {}
        if material_file(path).exists():
            self.store = json.loads(material_file(path).read_bytes())
        first, end = thrift_struct(tail)
        self.module = tail[end:]  # the sealed footer, or nonce and tag of the signature
        self.crypto: Footer = {}
        if self.file.endswith(b"PARE"):
            self.crypto = first
            self.footer_metadata = self.crypto.pop(2)
            self.footer_key = self.key(self.footer_metadata)
            self.nonce = self.module[4:16]
        else:
            self.footer = first
            self.footer_metadata = self.footer.pop(9)
            self.footer_key = self.key(self.footer_metadata)
            self.body = self.file[: len(self.body)]
            self.nonce = self.module[:12]

    def open(self, prefix: bytes = b"") -> Look:
        """Open the footer, take the key metadata out of it, and unwrap all keys."""
        if self.crypto:
            (algorithm,) = self.crypto[1].values()
            aad = algorithm.get(1, prefix) + algorithm[2] + b"\0"
            plain = AESGCM(self.footer_key).decrypt(self.nonce, self.module[16:], aad)
            self.footer, _ = thrift_struct(plain)
        self.metadata = {name: own.pop(2) for own, name in chunks(self.footer)}
        self.keys = {name: self.key(metadata) for name, metadata in self.metadata.items()}
        return self

    def material(self, metadata: bytes) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(metadata)
        assert found["keyMaterialType"] == "PKMT1"
        if found["internalStorage"] in (False, "false"):
            found = json.loads(self.store[found["keyReference"]])
        return found

    def key(self, metadata: bytes) -> bytes:
        return open_data_key(self.material(metadata), self._kms.unwrap)

    @property
    def materials(self) -> list[dict[str, Any]]:
        return [
            self.material(metadata) for metadata in [self.footer_metadata, *self.metadata.values()]
        ]
