"""Listing of the master keys that protect files and columns, without any key: `scan_keys`.

The result repeats what the files state. It is not authenticated, except for columns that an
encrypted footer hides; these are only listed with `tools` that decrypt the footer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from modcrypt.errors import KeyDisabledError, KeyMaterialError, KeyNotFoundError
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.jobs.engine import Job, run_job
from modcrypt.jobs.failures import describe_failure
from modcrypt.keys import hide_keys
from modcrypt.kms.client import MasterKey
from modcrypt.kms.key_tools import KeyTools, check_tools
from modcrypt.kms.keyring.keyring import Keyring
from modcrypt.kms.wrapped_key_metadata import holds_encrypted_metadata, parse_wrapped_metadata
from modcrypt.module_ids import ALGORITHMS
from modcrypt.parquet.crypto.footer_keys import FooterKey, list_key_metadata
from modcrypt.parquet.crypto.properties import (
    AnyDecryption,
    FileDecryptionProperties,
    as_decryption,
)
from modcrypt.parquet.datasets.discovery import list_files
from modcrypt.pkmt1.external import FOOTER_KEY, find_material, read_store
from modcrypt.pkmt1.key_info import key_info
from modcrypt.pkmt1.material import KeyMaterial, KeyReference, decode_material, try_decode_metadata
from modcrypt.report.json_fields import JsonFields
from modcrypt.runtime.former_names import accept_former_names

# Versions as the local keyring and parquet-java write them, and Vault and OpenBao.
_VERSIONS = (
    re.compile(r'\{"masterKeyVersion":"([0-9A-Za-z._-]{1,64})"'),
    re.compile(r"vault:v([0-9]{1,9}):"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedKey(JsonFields):
    """One key that a file needs.

    Attributes:
        file: Path of the file.
        kind: `"footer"` or `"column"`; `"key metadata"` of an AGS1 stream; `"hidden"` for the
            possible column keys in an encrypted footer; `"error"` for a file that could not be
            inspected, or whose master key is not expected.
        column: Dotted name of the column; None if it is hidden or the key is not a column's.
        master_key_id: Id of the master key that protects the key; None if its key metadata is not
            PKMT1.
        version: Version of the master key, if the wrapped key states it.
        kek_id: Id of the KEK in hex; None in single wrapping.
        storage: `"internal"`, `"external"`, `"recipients"` for a key that is encrypted to
            recipients alone, `"opaque"` for key metadata of another kind, or `"none"`, also if the
            material is missing.
        message: Reason why something is unknown; or `DESTROYED`, with tools of a keyring.
        word: Error code of kind "error"; "file" for errors of the file system.
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

    @property
    def failed(self) -> bool:
        """True if the file could not be inspected, or its master key is not expected."""
        return self.kind == "error"


DESTROYED = "its master key is destroyed"
"""Message for a key that can't be unwrapped because its master key was destroyed."""


@hide_keys
@accept_former_names(where="source")
def scan_keys(
    source: Any,
    tools: KeyTools | None = None,
    *,
    filesystem: Any = None,
    decryption: AnyDecryption | None = None,
) -> Iterator[ScannedKey]:
    """Yield the keys of a file, or of all files in folders.

    Args:
        source: Path or URL of a file or a folder, or a list of them.
        tools: Key tools that decrypt encrypted footers, to list the keys of columns too.
        filesystem: The pyarrow or fsspec filesystem of `source`.
        decryption: Decryption properties for files that do not store their AAD prefix; by default
            `tools.decryption()`.

    Raises:
        FileNotFoundError: `source` does not exist.
    """
    job = Job(make_scanner(tools, decryption))
    return (key for keys in run_job(job, list_files(source, filesystem)) for key in keys)


def make_scanner(
    tools: KeyTools | None, decryption: AnyDecryption | None
) -> Callable[[Place], list[ScannedKey]]:
    """Return the function that lists the keys of a file."""
    properties = resolve_decryption(tools, decryption)
    client = None if tools is None else tools.client
    masters = {key.id: key for key in client.list_keys()} if isinstance(client, Keyring) else {}
    return lambda place: [_mark_destroyed(key, masters) for key in _scan_file(properties, place)]


def resolve_decryption(
    tools: KeyTools | None, decryption: AnyDecryption | None
) -> FileDecryptionProperties | None:
    """Return the properties that decrypt footers; None without tools and properties."""
    if tools is not None:
        check_tools(tools)
    if decryption is not None:
        return as_decryption(decryption)
    # No page is opened, so any page algorithm is acceptable.
    return None if tools is None else tools.decryption(accept_algorithms=ALGORITHMS)


def _mark_destroyed(key: ScannedKey, masters: Mapping[str, MasterKey]) -> ScannedKey:
    """Set the message of a key if its master key is listed as destroyed."""
    master = masters.get(key.master_key_id or "")
    gone = () if master is None else map(str, master.destroyed_versions)
    if master is not None and (master.destroyed or key.version in gone):
        return replace(key, message=DESTROYED)
    return key


def _make_error_row(place: Place, error: Exception) -> ScannedKey:
    word, message = describe_failure(error)
    return ScannedKey(file=place.listed_name, kind="error", message=message, word=word)


def _scan_file(decryption: FileDecryptionProperties | None, place: Place) -> list[ScannedKey]:
    """Return the keys of a file; an error ends them."""
    keys: list[ScannedKey] = []
    try:
        for key in _iterate_keys(place, decryption):
            keys.append(key)  # noqa: PERF402  # keeps those before an error
    except Exception as error:
        keys.append(_make_error_row(place, error))
    return keys


def _iterate_keys(
    place: Place, decryption: FileDecryptionProperties | None
) -> Iterator[ScannedKey]:
    with open_source_at(place) as source:
        if holds_encrypted_metadata(source):
            kek_material = parse_wrapped_metadata(source.read_at(0, source.size))
            yield _describe_key(place, "key metadata", None, kek_material, None)
            return
        try:
            keys, hidden = list_key_metadata(source, decryption)
        except (KeyMaterialError, KeyDisabledError) as error:
            # List files under an unexpected or disabled master key nevertheless.
            if decryption is None:
                raise
            yield _make_error_row(place, error)
            keys, hidden = list_key_metadata(source)
    names: set[str] = set()
    store: dict[str, str] | None = None
    for key in keys:
        kind = "footer" if key.column is None else "column"
        material = try_decode_metadata(key.metadata)
        if isinstance(material, KeyReference):
            store = read_store(place) if store is None else store
            names.add(material.name)
            try:
                material = find_material(store, material)
            except KeyNotFoundError as error:  # still list the other keys
                yield ScannedKey(
                    file=place.listed_name, kind=kind, column=key.column, message=str(error)
                )
                continue
        yield _describe_key(place, kind, key.column, material, key)
    if hidden and store is None:
        message = "the footer is encrypted; name a key service to list its column keys, if any"
        yield ScannedKey(file=place.listed_name, kind="hidden", message=message)
    elif hidden and store is not None:
        for name, text in store.items():
            if name not in names and not name.startswith(FOOTER_KEY):
                yield _describe_key(place, "column", None, decode_material(text), None)


def _describe_key(
    place: Place, kind: str, column: str | None, material: KeyMaterial | None, key: FooterKey | None
) -> ScannedKey:
    if material is None:
        metadata = None if key is None else key.metadata
        storage = "none" if not metadata else "opaque"
        if metadata and key_info(metadata).kind == "recipients":
            storage = "recipients"
        return ScannedKey(file=place.listed_name, kind=kind, column=column, storage=storage)
    return ScannedKey(
        file=place.listed_name,
        kind=kind,
        column=column,
        master_key_id=material.master_key_id,
        version=parse_wrapped_version(material.master_wrapped),
        kek_id=None if material.kek_id is None else material.kek_id.hex(),
        storage="internal" if material.internal else "external",
    )


def parse_wrapped_version(wrapped: str) -> str | None:
    """Return the version of the master key that wrapped a key, or None if it is not stated."""
    matches = (pattern.match(wrapped) for pattern in _VERSIONS)
    return next((match[1] for match in matches if match), None)
