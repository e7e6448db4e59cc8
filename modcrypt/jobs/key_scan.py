"""Which master key opens which file and column, told without any key: `scan_keys`.

What it tells is what files say. Nothing of it is authenticated, but for columns that a sealed
footer hides, and which are only listed with `tools` that open it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from modcrypt.errors import (
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    ModcryptError,
)
from modcrypt.io.storage import Place
from modcrypt.kms.client import KmsClient
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.keyring.keyring import Keyring
from modcrypt.kms.wrapped_key_metadata import begins_sealed, kek_of
from modcrypt.parquet.crypto.footer_keys import FooterKey, list_key_metadata
from modcrypt.parquet.crypto.properties import ALGORITHMS, FileDecryptionProperties
from modcrypt.parquet.datasets.discovery import list_files
from modcrypt.pkmt1.external import FOOTER_KEY, find_in, read_store
from modcrypt.pkmt1.material import KeyMaterial, KeyReference, decode_material, decode_metadata

__all__ = ["ScannedKey", "scan_keys", "wrapped_version"]

_VERSIONS = (
    re.compile(
        r'\{"masterKeyVersion":"([0-9A-Za-z._-]{1,64})"'
    ),  # the local keyring, parquet-java's
    re.compile(r"vault:v([0-9]{1,9}):"),  # Vault and OpenBao
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedKey:
    """One key that a file needs.

    Attributes:
        file: its path.
        kind: `"footer"` or `"column"`; `"key metadata"` of an AGS1 stream; `"hidden"` stands for
            column keys in a sealed footer, if there are any; `"error"` for a file that could not be
            looked into, or is under a master key that is not expected.
        column: dotted name; None where it is hidden, or there is none.
        master_key_id: under which the key stands; None where its key metadata is none of PKMT1.
        version: of the master key, where the wrapped key tells it.
        kek_id: in hex; None in single wrapping.
        storage: `"internal"`, `"external"`, `"opaque"` for key metadata of another kind, or
            `"none"`: also where the material is gone.
        message: what could not be told, and why; or `DESTROYED`, with tools of a keyring.
        word: Error code of kind "error"; "file" where the file system refused.
    """

    file: str
    kind: str
    column: str | None = None
    master_key_id: str | None = None
    version: str | None = None
    kek_id: str | None = None
    storage: str = "none"
    message: str = ""
    word: str = ""

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)


DESTROYED = "its master key is destroyed"
"""The message for a key that nothing unwraps any more."""


def scan_keys(
    where: Any,
    tools: KeyTools | None = None,
    *,
    filesystem: Any = None,
    decryption: FileDecryptionProperties | None = None,
) -> Iterator[ScannedKey]:
    """List the keys of a file, or of all files in folders.

    Args:
        where: path or URL of a file or a folder, or a list of them.
        tools: opens sealed footers, to list the keys of columns too.
        filesystem: of pyarrow or fsspec, in which `where` is.
        decryption: for files whose AAD prefix is not stored; by default `tools.decryption()`.

    Raises:
        FileNotFoundError: `where` is not there.
    """
    if not isinstance(tools, KeyTools | None):
        raise TypeError(f"tools are KeyTools, not {type(tools).__name__}")
    if decryption is None and tools is not None:
        decryption = tools.decryption(algorithms=ALGORITHMS)  # no page is opened
    found = _all_scanned(list_files(where, filesystem), decryption)
    return _with_states(found, None if tools is None else tools.client)


def _with_states(found: Iterator[ScannedKey], client: KmsClient | None) -> Iterator[ScannedKey]:
    """Say of each key whether its master key is destroyed, where the keyring has it on record."""
    masters = {key.id: key for key in client.list_keys()} if isinstance(client, Keyring) else {}
    for key in found:
        master = masters.get(key.master_key_id or "")
        gone = () if master is None else map(str, master.destroyed_versions)
        if master is not None and (master.destroyed or key.version in gone):
            yield replace(key, message=DESTROYED)
        else:
            yield key


def _all_scanned(
    places: list[Place], decryption: FileDecryptionProperties | None
) -> Iterator[ScannedKey]:
    for place in places:
        try:
            yield from _scanned(place, decryption)
        except (ModcryptError, OSError) as error:
            yield _error(place, error)


def _error(place: Place, error: ModcryptError | OSError) -> ScannedKey:
    word = error.word if isinstance(error, ModcryptError) else "file"
    return ScannedKey(file=place.path, kind="error", message=str(error), word=word)


def _scanned(place: Place, decryption: FileDecryptionProperties | None) -> Iterator[ScannedKey]:
    with place.open() as source:
        if begins_sealed(source):
            material = kek_of(source.read_at(0, source.size))
            yield _told(place, "key metadata", None, material, None)
            return
        try:
            keys, hidden = list_key_metadata(source, decryption)
        except (KeyMaterialError, KeyDisabledError) as error:
            # Under another master key than is expected, or a disabled one: list it all the same.
            if decryption is None:
                raise
            yield _error(place, error)
            keys, hidden = list_key_metadata(source)
    told: set[str] = set()
    store: dict[str, str] | None = None
    for key in keys:
        found = _material(key)
        if isinstance(found, KeyReference):
            store = read_store(place) if store is None else store
            told.add(found.name)
            try:
                found = find_in(store, found)
            except KeyNotFoundError as error:  # one key's loss is no other's
                yield ScannedKey(
                    file=place.path, kind=_kind(key), column=key.column, message=str(error)
                )
                continue
        yield _told(place, _kind(key), key.column, found, key)
    if hidden and store is None:
        yield ScannedKey(
            file=place.path,
            kind="hidden",
            message="the footer is sealed: column keys, if any, can't be told without its key",
        )
    elif hidden and store is not None:
        for name, text in store.items():
            if name not in told and not name.startswith(FOOTER_KEY):
                yield _told(place, "column", None, decode_material(text), None)


def _kind(key: FooterKey) -> str:
    return "footer" if key.column is None else "column"


def _material(key: FooterKey) -> KeyMaterial | KeyReference | None:
    """Give a key's material, or the reference to it; None where it is of another kind."""
    if not key.metadata:
        return None
    try:
        return decode_metadata(key.metadata)
    except KeyMaterialError:
        return None


def _told(
    place: Place, kind: str, column: str | None, material: KeyMaterial | None, key: FooterKey | None
) -> ScannedKey:
    if material is None:
        storage = "opaque" if key is not None and key.metadata else "none"
        return ScannedKey(file=place.path, kind=kind, column=column, storage=storage)
    return ScannedKey(
        file=place.path,
        kind=kind,
        column=column,
        master_key_id=material.master_key_id,
        version=wrapped_version(material.master_wrapped),
        kek_id=None if material.kek_id is None else material.kek_id.hex(),
        storage="internal" if material.internal else "external",
    )


def wrapped_version(wrapped: str) -> str | None:
    """Give the version of the master key that wrapped a key, where the wrapped key tells it."""
    found = (one.match(wrapped) for one in _VERSIONS)
    return next((match[1] for match in found if match), None)
