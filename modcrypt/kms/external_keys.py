"""Writing external key material beside a file, so that the keys exist before the file does.

`modcrypt.pkmt1.external` describes the content of the material during the write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from secrets import token_hex

from modcrypt.errors import KeyMaterialError, ModcryptError
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.parquet.crypto.footer_keys import list_key_metadata
from modcrypt.pkmt1.external import (
    COLUMN_KEY,
    FOOTER_KEY,
    STAGED,
    read_if_present,
    settle_keys,
    staged_name,
    store_of,
    write_store,
)
from modcrypt.pkmt1.material import (
    WRITE,
    KeyMaterial,
    KeyReference,
    decode_material,
    decode_metadata,
    write_of,
)


class ExternalKeys:
    """The external key material of one new file.

    The order matters: the material is staged before the file is written, so that no file exists
    without its keys; the material of the file that it replaces stays until the new file is
    complete, so that a writer that is killed leaves a readable file; it is removed only if this run
    wrote the present file. Raise KeyMaterialError if the place of the material contains
    something else.
    """

    def __init__(self, place: Place) -> None:
        self._place = place.resolve()
        self.write: str | None = token_hex(8)  # None for files of other writers
        self._store: dict[str, str] = {}
        # When the new keys were staged: the run that wrote the file, and those whose keys had final
        # names. Afterwards, only keys of files that were published get them.
        self._replaced: str | None = None
        self._former: set[str | None] = set()
        # Raises before keys are created if the material must not be replaced.
        self._before = read_if_present(self._place)

    @classmethod
    def of_file(cls, source: Place, target: Place) -> ExternalKeys | None:
        """Return the keys of an existing file for a move or copy of it; None if it has none.

        Raise OSError (ELOOP) if the material is a symbolic link.
        """
        store_of(source).check_writable()  # a link that others made may lead to any file
        if (store := read_if_present(source)) is None:
            return None
        keys = cls(target)
        keys._place = target  # a symbolic link is replaced, not followed
        keys._before = read_if_present(target)
        keys.write = _find_write(source)
        settled = settle_keys(store, keys.write)
        own = (None, keys.write)
        keys._store = {name: text for name, text in settled.items() if _parse_write(text) in own}
        return keys

    @property
    def replaces(self) -> bool:
        """True if the place had key material before."""
        return self._before is not None

    def add(self, material: KeyMaterial) -> bytes:
        """Add the key material of the footer or the next column, and return its key metadata."""
        columns = len(self._store.keys() - {FOOTER_KEY})
        name = FOOTER_KEY if material.is_footer_key else f"{COLUMN_KEY}{columns}"
        marked = replace(material, internal=False, others={WRITE: self.write})
        self._store[name] = marked.encode()
        return KeyReference(name, self.write).encode()

    @contextmanager
    def keep_beside(self) -> Iterator[None]:
        """Keep the key material beside the file during the write and, on success, afterwards."""
        self._change(self._stage_keys)
        try:
            yield
        except BaseException:
            with suppress(OSError, KeyMaterialError):  # the first error matters
                self._change(self._remove_new_keys)
            raise
        # The file is complete and its keys can be found, so a failure here must not fail the write.
        with suppress(OSError, KeyMaterialError):
            if (
                read_if_present(self._place) or {}
            ).keys() != self._store.keys() or self._replaced is not None:
                self._change(self._publish_keys)

    def _stage_keys(self, present: dict[str, str]) -> dict[str, str]:
        with suppress(OSError):  # an unreadable file may still be replaced
            self._replaced = _find_write(self._place)
        if not present or self.write is None:
            return self._store
        final = (text for name, text in present.items() if not STAGED.search(name))
        self._former = set(map(_parse_write, final))
        own = {staged_name(name, self.write): text for name, text in self._store.items()}
        return present | own

    def _remove_new_keys(self, present: dict[str, str]) -> dict[str, str]:
        """Remove the new keys, even if they were rotated during the write."""
        if self.write is None:
            return self._before or {}
        return {
            name: text
            for name, text in present.items()
            if not name.endswith(f"-{self.write}") and _parse_write(text) != self.write
        }

    def _publish_keys(self, present: dict[str, str]) -> dict[str, str]:
        """Replace the old keys with the new ones if this run wrote the current file."""
        if self.write is None:
            return self._store
        left = self._remove_new_keys(present)
        if _find_write(self._place) != self.write:
            return left
        kept: dict[str, str] = {}
        for name, text in left.items():
            write = _parse_write(text)
            if STAGED.search(name):
                if not name.endswith(f"-{self._replaced}"):
                    kept[name] = text
            elif write in self._former - {None, self._replaced}:  # perhaps of an unfinished file
                kept[staged_name(name, write)] = text
        return kept | {name: self._find_current(present, name) for name in self._store}

    def _find_current(self, present: dict[str, str], name: str) -> str:
        """Return the current material of a key, which may have been rotated during the write."""
        for text in (present.get(staged_name(name, self.write)), present.get(name)):
            if text is not None and _parse_write(text) == self.write:
                return text
        return self._store[name]

    def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change the stored material under a lock against other processes of this machine."""
        with self._place.lock():
            present = read_if_present(self._place)
            if changed := change(present or {}):
                write_store(self._place, changed)
            elif present is not None:
                store_of(self._place).remove()


@contextmanager
def carry_keys(source: Place, target: Place, *, move: bool) -> Iterator[None]:
    """Keep a file's key material beside its new place while the block moves or copies the file.

    The material is beside the new place before the file is. If another writer's file replaces one
    with key material, the old file cannot be read until the block has replaced it. Raise
    KeyMaterialError if the material of one of the files is malformed.
    """
    if (keys := ExternalKeys.of_file(source, target)) is None:
        yield
        remove_keys(target)  # of the file that was replaced
        return
    with keys.keep_beside():
        yield
    if move:
        remove_keys(source)


def remove_keys(place: Place) -> None:
    """Remove the key material beside a file that was removed; raise OSError if it is refused."""
    if (store := store_of(place)).exists():
        store.remove()


def _parse_write(text: str) -> str | None:
    try:
        return write_of(decode_material(text).others)
    except KeyMaterialError:
        return None


def _find_write(place: Place) -> str | None:
    """Return the run that wrote the existing file; None without a file or for other writers."""
    try:
        with open_source_at(place) as source:
            metadata = list_key_metadata(source)[0][0].metadata
        reference = decode_metadata(metadata or b"")
    except (ModcryptError, FileNotFoundError):
        return None
    return reference.write if isinstance(reference, KeyReference) else None
