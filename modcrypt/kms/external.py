"""External key material: the file `_KEY_MATERIAL_FOR_NAME.json` beside the file `NAME`.

It is never without what its data file refers to. A new file's material is there before the file
is; that of a file that is replaced stays until it has been. For that, the keys of each file that
is written have names of their own, also where two writers are at it at once:

    before                 meanwhile                             after
    footerKey, columnKey0  footerKey, columnKey0,                footerKey-8c21, columnKey0-8c21,
                           footerKey-8c21, columnKey0-8c21       footerKey

parquet-java rotates no file without a `footerKey`: it is the footer key's material once more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from secrets import token_hex

from modcrypt.errors import KeyMaterialError, ModcryptError
from modcrypt.kms.material import (
    MAX_STORE,
    decode_metadata,
    decode_store,
    encode_store,
    external_name,
)
from modcrypt.parquet.footer_keys import list_key_metadata
from modcrypt.storage import Place

__all__ = ["FOOTER_KEY", "KeyNames", "kept_beside", "read_store", "store_of", "write_store"]

FOOTER_KEY = "footerKey"
"""What the key tools call the footer key in a file of key material."""

COLUMN_KEY = "columnKey"
"""What they call column keys, before a number."""

_SUFFIX = re.compile(r"-[0-9a-f]{8}\Z")


def store_of(place: Place) -> Place:
    """Give the place of the key material of the file at a place."""
    return place.beside(external_name(place.name))


def read_store(place: Place) -> dict[str, str]:
    """Read the key material of the file at a place: beside it, or beside what it is a link to.

    Raises:
        KeyMaterialError: there is none, or it is damaged.
        OSError: it can't be read.
    """
    for where in dict.fromkeys((place, place.real())):
        found = _present(where)
        if found is not None:
            return found
    raise KeyMaterialError(
        f"{store_of(place).path} is not there: the file's keys are stored externally, in that "
        "file, and must be moved and copied with it"
    )


def write_store(place: Place, store: Mapping[str, str]) -> None:
    """Replace the key material of the file at a place: it is the old or the new, and never none."""
    with store_of(place).create() as sink:
        sink.append(encode_store(store))


def _present(place: Place) -> dict[str, str] | None:
    """Read the key material just there; None where there is none."""
    where = store_of(place)
    try:
        with where.open() as source:
            if source.size > MAX_STORE:
                raise KeyMaterialError(f"more than {MAX_STORE} bytes are no key material")
            return decode_store(source.read_at(0, source.size))
    except FileNotFoundError:
        return None
    except KeyMaterialError as error:
        error.args = (f"{where.path}: {error}",)
        raise


class KeyNames:
    """The names of one file's keys, to be written to a place, in its key material.

    Raises:
        KeyMaterialError: there is something in the material's place that is none.
        OSError: it can't be read.
    """

    def __init__(self, place: Place) -> None:
        present = _present(place) or {}
        self.replaced = _names_of_file(place, present) if present else frozenset()
        self._suffix = f"-{token_hex(4)}"
        self._columns = 0

    def footer(self) -> str:
        """Give the footer key's name."""
        return FOOTER_KEY + self._suffix

    def column(self) -> str:
        """Give the name of one more column key."""
        name = f"{COLUMN_KEY}{self._columns}{self._suffix}"
        self._columns += 1
        return name


def _names_of_file(place: Place, present: Mapping[str, str]) -> frozenset[str]:
    """Say which of the keys that are there the file refers to that is there.

    All others may be those of a file that somebody else is writing, and stay.
    """
    try:
        with place.open() as source:
            metadata = list_key_metadata(source)[0][0].metadata
        reference = decode_metadata(metadata or b"")
    except (ModcryptError, OSError):
        return frozenset()
    if not isinstance(reference, str):
        return frozenset()
    suffix = _suffix(reference)
    return frozenset(name for name in present if _suffix(name) == suffix) - {FOOTER_KEY}


def _suffix(name: str) -> str:
    match = _SUFFIX.search(name)
    return match[0] if match else ""


@contextmanager
def kept_beside(place: Place, names: KeyNames, store: Mapping[str, str]) -> Iterator[None]:
    """Keep key material beside a file while it is written and, if it comes to be, afterwards.

    Raises:
        OSError, KeyMaterialError: the key material can't be written.
    """
    alias = {FOOTER_KEY: store[names.footer()]}
    _change(place, lambda present: {**alias, **present, **store})
    try:
        yield
    except BaseException:
        _change(place, lambda present: _left(present, frozenset(store), alias))
        raise
    if names.replaced or (_present(place) or {}).get(FOOTER_KEY) != alias[FOOTER_KEY]:
        _change(place, lambda present: {**_left(present, names.replaced), **alias})


def _left(
    present: Mapping[str, str], gone: frozenset[str], own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Give what is left without some names, and without members that are just so."""
    return {
        name: text
        for name, text in present.items()
        if name not in gone and (own or {}).get(name) != text
    }


def _change(place: Place, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Change what is there; nobody else of this machine does meanwhile."""
    with place.locked():
        present = _present(place)
        changed = change(present or {})
        if changed:
            write_store(place, changed)
        elif present is not None:
            store_of(place).remove()
