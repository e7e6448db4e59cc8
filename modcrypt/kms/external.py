"""External key material: the file `_KEY_MATERIAL_FOR_NAME.json` beside the file `NAME`.

It is never without what its data file refers to. A new file's material is there before the file
is; that of a file that is replaced stays until it has been. For that, keys of a replacing file
have names of their own:

    before                 meanwhile                               after
    footerKey, columnKey0  footerKey, columnKey0, footerKey-8c21,  footerKey-8c21, columnKey0-8c21,
                           columnKey0-8c21                         footerKey (the same once more)

parquet-java rotates no file without a `footerKey`, which is why there is one to the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from secrets import token_hex

from modcrypt.errors import KeyMaterialError
from modcrypt.kms.material import MAX_STORE, decode_store, encode_store, external_name
from modcrypt.storage import Place

__all__ = ["FOOTER_KEY", "KeyNames", "kept_beside", "read_store", "write_store"]

FOOTER_KEY = "footerKey"
"""What the key tools call the footer key in a file of key material."""

COLUMN_KEY = "columnKey"
"""What they call column keys, before a number."""


def store_of(place: Place) -> Place:
    """Give the place of the key material of the file at a place."""
    return place.beside(external_name(place.name))


def read_store(place: Place) -> dict[str, str]:
    """Read the key material of the file at a place.

    Raises:
        KeyMaterialError: there is none, or it is damaged.
        OSError: it can't be read.
    """
    where = store_of(place)
    try:
        with where.open() as source:
            if source.size > MAX_STORE:
                raise KeyMaterialError(
                    f"{where.path}: more than {MAX_STORE} bytes, no key material"
                )
            data = source.read_at(0, source.size)
    except FileNotFoundError:
        raise KeyMaterialError(
            f"{where.path} is not there: the file's keys are stored externally, in that file, and "
            "must be moved and copied with it"
        ) from None
    return decode_store(data)


def write_store(place: Place, store: Mapping[str, str]) -> None:
    """Replace the key material of the file at a place: it is the old or the new, and never none."""
    with store_of(place).create() as sink:
        sink.append(encode_store(store))


class KeyNames:
    """The names of one new file's keys in its key material."""

    def __init__(self, place: Place) -> None:
        try:
            self.replaced: frozenset[str] = frozenset(read_store(place))
        except KeyMaterialError:
            self.replaced = frozenset()
        self._suffix = f"-{token_hex(4)}" if self.replaced else ""
        self._columns = 0

    def footer(self) -> str:
        """Give the footer key's name."""
        return FOOTER_KEY + self._suffix

    def column(self) -> str:
        """Give the name of one more column key."""
        name = f"{COLUMN_KEY}{self._columns}{self._suffix}"
        self._columns += 1
        return name


@contextmanager
def kept_beside(place: Place, names: KeyNames, store: Mapping[str, str]) -> Iterator[None]:
    """Keep key material beside a file while it is written and, if it comes to be, afterwards.

    Raises:
        OSError: the key material can't be written.
    """
    with place.locked():
        write_store(place, {**_present(place), **store})
    try:
        yield
    except BaseException:
        with place.locked():
            _without(place, frozenset(store))
        raise
    if names.replaced:
        with place.locked():
            _without(place, names.replaced, {FOOTER_KEY: store[names.footer()]})


def _present(place: Place) -> dict[str, str]:
    try:
        return read_store(place)
    except KeyMaterialError:
        return {}


def _without(place: Place, gone: frozenset[str], more: Mapping[str, str] | None = None) -> None:
    """Take names out of the key material; what others have put there meanwhile stays."""
    present = _present(place)
    left = {name: text for name, text in present.items() if name not in gone} | dict(more or {})
    if left:
        write_store(place, left)
    elif present:
        store_of(place).remove()
