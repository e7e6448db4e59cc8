"""External key material: the file `_KEY_MATERIAL_FOR_NAME.json` beside the file `NAME`.

It is never without what its data file refers to. A new file's material is there before the file
is. That of a file that is replaced stays until it has been, and the new keys stand beside it with
the run that wrote them (W) in their names:

    before                 meanwhile                                           after
    footerKey, columnKey0  footerKey, columnKey0, footerKey-W, columnKey0-W    footerKey, columnKey0

So the names are those that other implementations write and rotate. They refuse a file that is read
just between its publication and what comes "after", or left so by a crash; modcrypt finds its
keys, and a rotation puts them in their place. Keys of writers that were killed before stay, unused.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from secrets import token_hex

from modcrypt.errors import KeyMaterialError, KeyNotFoundError, ModcryptError
from modcrypt.io.storage import Place
from modcrypt.parquet.crypto.footer_keys import list_key_metadata
from modcrypt.pkmt1.material import (
    MAX_STORE,
    WRITE,
    KeyMaterial,
    KeyReference,
    decode_material,
    decode_metadata,
    decode_store,
    encode_store,
    external_name,
    write_of,
)

__all__ = [
    "ExternalKeys",
    "find_in",
    "place_with_store",
    "read_store",
    "settled",
    "store_of",
    "write_store",
]

FOOTER_KEY = "footerKey"
"""What the key tools call the footer key in a file of key material."""

COLUMN_KEY = "columnKey"
"""What they call column keys, before a number."""


_STAGED = re.compile(r"-[0-9a-f]{16}\Z")


def store_of(place: Place) -> Place:
    """Give the place of the key material of the file at a place.

    The caller named the file, not its material: of that no symbolic link is written through.
    """
    store = place.beside(external_name(place.name))
    return store if place.root is not None else replace(store, root=posixpath.dirname(place.path))


def read_store(place: Place) -> dict[str, str]:
    """Read the key material of the file at a place: beside it, or beside what it is a link to.

    Raises:
        KeyMaterialError: there is none, or it is damaged.
        OSError: it can't be read.
    """
    found = _present(place_with_store(place))
    if found is None:
        raise KeyMaterialError(
            f"{store_of(place).path} is not there: the file's keys are stored externally, in that "
            "file, and must be moved and copied with it"
        )
    return found


def place_with_store(place: Place) -> Place:
    """Give the place that key material lies beside: the file's own, or what it is a link to."""
    if place.filesystem is None and store_of(place).stamp() is None:
        return place.real()
    return place


def find_in(store: Mapping[str, str], reference: KeyReference) -> KeyMaterial:
    """Find the material of a key, under its own name while the file is being replaced.

    Raises:
        KeyNotFoundError: it is not there: shredded, or lost.
        KeyMaterialError: it is that of another file, or damaged.
    """
    text = store.get(_staged(reference.name, reference.write)) or store.get(reference.name)
    if text is None:
        raise KeyNotFoundError(
            f"the external key material has no {reference.name!r}: it was shredded, or the "
            "material is that of another file"
        )
    material = decode_material(text)
    # Other implementations' rotation takes the mark off.
    if write_of(material.others) not in (None, reference.write):
        raise KeyMaterialError(
            f"the external key material has no {reference.name!r} of this file: it is that of "
            "another file, or of another version of this one"
        )
    return material


def settled(store: Mapping[str, str], write: str | None) -> dict[str, str]:
    """Put the keys of a run in their place: what a crash has left to be done."""
    names = [name for name in store if write is not None and name.endswith(f"-{write}")]
    moved = {name.removesuffix(f"-{write}"): store[name] for name in names}
    return {name: text for name, text in store.items() if name not in names} | moved


def write_store(place: Place, store: Mapping[str, str]) -> None:
    """Replace the key material of the file at a place: it is the old or the new, and never none."""
    data = encode_store(store)
    with store_of(place).create() as sink:
        sink.append(data)


def _staged(name: str, write: str | None) -> str:
    return f"{name}-{write}"


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


# --- writing -------------------------------------------------------------------------------------


class ExternalKeys:
    """The key material of one file that is to be written to a place.

    Raises:
        KeyMaterialError: there is something in the material's place that is none.
        OSError: it can't be read.
    """

    def __init__(self, place: Place) -> None:
        self._place = place.real()
        self.write = token_hex(8)
        self._store: dict[str, str] = {}
        _present(self._place)  # raises for what will not be replaced, before a key is made

    def add(self, material: KeyMaterial) -> bytes:
        """Take in the material of the footer's or of one more column's key; give its metadata."""
        columns = len(self._store.keys() - {FOOTER_KEY})
        name = FOOTER_KEY if material.is_footer_key else f"{COLUMN_KEY}{columns}"
        marked = replace(material, internal=False, others={WRITE: self.write})
        self._store[name] = marked.encode()
        return KeyReference(name, self.write).encode()

    @contextmanager
    def kept_beside(self) -> Iterator[None]:
        """Keep the key material beside the file while it is written and, if it is, afterwards.

        Raises:
            OSError, KeyMaterialError: the key material can't be written.
        """
        replaced = None
        with suppress(OSError):  # what can't be read can be replaced
            replaced = _write_there(self._place)
        self._change(self._enter)
        try:
            yield
        except BaseException:
            with suppress(OSError, KeyMaterialError):  # what went wrong first is what matters
                self._change(self._undo)
            raise
        # The file is there by now, and its keys are found: no reason to call it a failure.
        with suppress(OSError, KeyMaterialError):
            if (_present(self._place) or {}).keys() != self._store.keys() or replaced is not None:
                self._change(lambda present: self._leave(present, replaced))

    def _enter(self, present: dict[str, str]) -> dict[str, str]:
        if not present:
            return self._store
        own = {_staged(name, self.write): text for name, text in self._store.items()}
        return present | own

    def _undo(self, present: dict[str, str]) -> dict[str, str]:
        """Take the new keys out again, rotated meanwhile or not."""
        return {
            name: text
            for name, text in present.items()
            if not name.endswith(f"-{self.write}") and _write_in(text) != self.write
        }

    def _leave(self, present: dict[str, str], replaced: str | None) -> dict[str, str]:
        """Put the new keys in the place of the old ones, if the file that is there is ours."""
        left = self._undo(present)
        if _write_there(self._place) != self.write:
            return left
        kept: dict[str, str] = {}
        for name, text in left.items():
            write = _write_in(text)
            if _STAGED.search(name):
                if not name.endswith(f"-{replaced}"):
                    kept[name] = text
            elif write not in (None, replaced):  # of a file that somebody else is writing
                kept[_staged(name, write)] = text
        return kept | {name: self._as_it_is(present, name) for name in self._store}

    def _as_it_is(self, present: dict[str, str], name: str) -> str:
        """Give the material of one of the keys: somebody may have rotated it meanwhile."""
        for text in (present.get(_staged(name, self.write)), present.get(name)):
            if text is not None and _write_in(text) == self.write:
                return text
        return self._store[name]

    def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change what is there; nobody else of this machine does meanwhile."""
        with self._place.locked():
            present = _present(self._place)
            changed = change(present or {})
            if changed:
                write_store(self._place, changed)
            elif present is not None:
                store_of(self._place).remove()


def _write_in(text: str) -> str | None:
    try:
        return write_of(decode_material(text).others)
    except KeyMaterialError:
        return None


def _write_there(place: Place) -> str | None:
    """Say which run wrote the file that is there; None where there is none, or another's.

    Raises:
        OSError: it can't be read.
    """
    try:
        with place.open() as source:
            metadata = list_key_metadata(source)[0][0].metadata
        reference = decode_metadata(metadata or b"")
    except (ModcryptError, FileNotFoundError):
        return None
    return reference.write if isinstance(reference, KeyReference) else None
