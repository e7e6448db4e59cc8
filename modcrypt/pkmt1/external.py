"""External key material: the file `_KEY_MATERIAL_FOR_NAME.json` beside the file `NAME`.

The material always contains the keys to which the data file refers. modcrypt writes the material of
a new file before the file. While it replaces a file, it keeps the old keys and stores the new keys
beside them, under names that end in the id of the run that writes them (W):

    before                 meanwhile                                           after
    footerKey, columnKey0  footerKey, columnKey0, footerKey-W, columnKey0-W    footerKey, columnKey0

In the end, the names are therefore those that other implementations write and rotate. Other
implementations refuse a file between its publication and the step "after", and one that a crash
left in this state; modcrypt finds its keys, and a rotation completes the step. Keys of writers that
were killed before publication remain, unused.
"""

from __future__ import annotations

import errno
import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.pkmt1.material import (
    MAX_STORE,
    KeyMaterial,
    KeyReference,
    decode_material,
    decode_store,
    encode_store,
    external_name,
    write_of,
)

FOOTER_KEY = "footerKey"
"""Name of the footer key in a file of key material, as the key tools write it."""

COLUMN_KEY = "columnKey"  # beginning of the names of column keys; a number follows

STAGED = re.compile(r"-[0-9a-f]{16}\Z")
"""End of a key's name while the old version of its file still exists."""


def store_of(place: Place) -> Place:
    """Return the place of a file's key material, which is written through no symbolic link."""
    store = place.beside(external_name(place.name))
    return store if place.root is not None else replace(store, root=posixpath.dirname(place.path))


def read_store(place: Place) -> dict[str, str]:
    """Return the key material of the file at a place, from beside the file or its link target."""
    if (store := read_if_present(place_with_store(place))) is None:
        raise KeyMaterialError(
            f"{store_of(place).path} does not exist: the keys of the data file are stored in that "
            "file, and must be moved and copied with it"
        )
    return store


def place_with_store(place: Place) -> Place:
    """Return the place whose folder contains the key material: the file or its link target."""
    if place.filesystem is None and store_of(place).stamp() is None:
        return place.resolve()
    return place


def find_material(store: Mapping[str, str], reference: KeyReference) -> KeyMaterial:
    """Return the material of a key, under its own name while the file is being replaced."""
    text = store.get(staged_name(reference.name, reference.write)) or store.get(reference.name)
    if text is None:
        raise KeyNotFoundError(
            f"the external key material contains no key {reference.name!r}: the key was shredded, "
            "or the material belongs to another file"
        )
    material = decode_material(text)
    # A rotation by other implementations removes the id of the run.
    if write_of(material.others) not in (None, reference.write):
        raise KeyMaterialError(
            f"the external key material contains no key {reference.name!r} of this file: that key "
            "belongs to another file, or to another version of this one"
        )
    return material


def settle_keys(store: Mapping[str, str], write: str | None) -> dict[str, str]:
    """Return the store with the keys of a run under their final names, as after a crash."""
    names = [name for name in store if write is not None and name.endswith(f"-{write}")]
    moved = {name.removesuffix(f"-{write}"): store[name] for name in names}
    return {name: text for name, text in store.items() if name not in names} | moved


def write_store(place: Place, store: Mapping[str, str]) -> None:
    """Replace the key material of the file at a place atomically."""
    data = encode_store(store)
    with open_sink_at(store_of(place)) as sink:
        sink.append(data)


def staged_name(name: str, write: str | None) -> str:
    """Return the name of a key while the old version of its file still exists."""
    return f"{name}-{write}"


def read_if_present(place: Place) -> dict[str, str] | None:
    """Return the key material beside a file, as `read_store_at`; None if it does not exist."""
    return read_store_at(store_of(place))


def read_store_at(store: Place) -> dict[str, str] | None:
    """Return the key material at a place; None if it does not exist."""
    try:
        with open_source_at(store) as source:
            if source.size > MAX_STORE:
                raise KeyMaterialError(f"key material is longer than {MAX_STORE} bytes")
            return decode_store(source.read_at(0, source.size))
    except KeyMaterialError as error:
        error.args = (f"{store.path}: {error}",)
        raise
    except OSError as error:
        # If the name is too long for the file system, no such key material can exist.
        if isinstance(error, FileNotFoundError) or error.errno == errno.ENAMETOOLONG:
            return None
        raise
