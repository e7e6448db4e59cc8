"""Which of a file's keys still open, found out by trying them: the work of a proof, file by file.

Nothing that goes wrong is taken for a proof: a key is gone or refused, it opens, or it is unknown.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    ModcryptError,
)
from modcrypt.fork_safety import fork_safe
from modcrypt.io.storage import Place, Source
from modcrypt.jobs.shredding import entries_of, is_ags1, stores_of
from modcrypt.jobs.shredding_choice import Criteria, material_of
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.wrapped_key_metadata import begins_sealed, kek_of
from modcrypt.kms.wrapping import Refusals
from modcrypt.parquet.crypto.footer_keys import ColumnUse, KeyUses, key_uses
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.pkmt1.external import FOOTER_KEY
from modcrypt.pkmt1.material import (
    MAX_STORE,
    SHREDDED,
    KeyMaterial,
    KeyReference,
    decode_material,
    decode_store,
    write_of,
)

__all__ = ["TEMPORARY", "KeyProof", "Trial", "identity"]

TEMPORARY = ".modcrypt-"
"""How names of unfinished files begin."""

State: TypeAlias = Literal["gone", "refused", "readable", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyProof:
    """What is known of a key that is meant.

    Attributes:
        key: what it is the key of, in words.
        columns: dotted names of what it opens, as far as that can be told.
        state: `"gone"`, the file says nothing of it any more; `"refused"` by the key service;
            `"readable"`, it opens, or there is no key to it as the data is in plaintext;
            `"unknown"`, nothing is proven.
        why: in words.
        master_key_id: that wraps it, where that can be told.
    """

    key: str
    columns: tuple[str, ...] = ()
    state: State
    why: str
    master_key_id: str | None = None

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return {**asdict(self), "columns": list(self.columns)}


@dataclass(frozen=True, slots=True)
class _Tried:
    """What trying a key gave."""

    state: State
    why: str
    master_key_id: str | None = None

    def of(self, key: str, columns: tuple[str, ...] = ()) -> KeyProof:
        return KeyProof(
            key=key, columns=columns, state=self.state, why=self.why,
            master_key_id=self.master_key_id,
        )  # fmt: skip


_LOST: tuple[State, ...] = ("gone", "refused")
_WORST: tuple[State, ...] = ("readable", "unknown", "refused", "gone")


def identity(place: Place) -> str:
    """Give what tells files of one file system apart, whatever links lead to them."""
    return place.real().path if place.filesystem is None else place.path.lstrip("/")


class Trial:
    """Tries the keys of files, and keeps what they tell about one another. Any thread may use it.

    Args:
        tools: of the key service that is asked; None for none.
        wanted: which keys are meant.
        decryption: opens sealed footers; None for nothing.
    """

    def __init__(
        self,
        tools: KeyTools | None,
        wanted: Criteria,
        decryption: FileDecryptionProperties | None,
    ) -> None:
        self._tools, self._wanted, self._decryption = tools, wanted, decryption
        self._lock = fork_safe(threading.Lock())
        self._met: set[str] = set()  # names of columns
        self._uniques: set[bytes] = set()
        self._names: set[str] = set()  # of files
        self._writes: set[str] = set()
        self._references: set[KeyReference] = set()  # of columns that are meant
        self._judged: set[str] = set()  # key material that went with a file

    @property
    def unmet(self) -> tuple[str, ...]:
        """Names of columns that no file has."""
        return tuple(name for name in self._wanted.columns if name not in self._met)

    def is_about(self, place: Place) -> bool:
        """Tell by its name whether a file may be about those that were named, or unfinished."""
        return place.name.startswith(TEMPORARY) or any(one in place.name for one in self._names)

    def of_file(self, place: Place, source: Source) -> list[KeyProof]:
        """Try the keys of a file that are meant.

        Raises:
            ModcryptError, OSError: it can't be looked into.
        """
        with self._lock:
            self._names.add(place.name)
        if source.size == 0 or is_ags1(source):  # its key lies in key metadata
            return []
        if begins_sealed(source):
            return self._key_metadata(source)
        seen = key_uses(source)
        if seen.encrypted:
            with self._lock:
                self._uniques.update({seen.unique} if seen.unique else ())
            return self._encrypted(place, source, seen)
        return self._plaintext(seen)

    def of_leftover(self, place: Place, source: Source, near: bool) -> list[KeyProof] | None:
        """Try the keys of a file that lies around; None for neither Parquet nor key material.

        Args:
            place: where it is.
            source: the file.
            near: whether it is only beside a file that was named: then it is a matter of its copies
                and key material alone.

        Raises:
            ModcryptError, OSError: it can't be looked into.
        """
        if begins_sealed(source):
            return [] if near else self._key_metadata(source)
        if _is_parquet(source):
            seen = key_uses(source)
            is_copy = not seen.encrypted and self.is_about(place)
            if near and seen.unique not in self._uniques and not is_copy:
                return []
            if seen.encrypted:
                return self._encrypted(place, source, seen)
            return self._plaintext(seen) if self._wanted.columns else [_PERHAPS_A_COPY]
        store = _as_store(source)
        if store is None:
            return None
        return self._stray(place, store, near)

    # --- one file --------------------------------------------------------------------------------

    def _plaintext(self, seen: KeyUses) -> list[KeyProof]:
        if self._wanted.master_keys:
            return []
        meant = [column.name for column in self._meant(seen)]
        if self._wanted.columns and not meant:
            return []
        why = "the file is not encrypted"
        return [KeyProof(key="plaintext", columns=tuple(meant), state="readable", why=why)]

    def _meant(self, seen: KeyUses) -> list[ColumnUse]:
        """Give the columns that are named, and note which names a file has."""
        meant = self._wanted.columns_of(seen)
        with self._lock:
            self._met |= set(self._wanted.columns) - set(self._wanted.absent_from(seen))
        return meant

    def _key_metadata(self, source: Source) -> list[KeyProof]:
        """Try the sealed key metadata of an AGS1 stream."""
        if self._wanted.columns:
            return []
        data = source.read_at(0, source.size)
        if data == SHREDDED:
            return [_Tried("gone", "the key metadata was shredded").of("AGS1 stream")]
        material = kek_of(data)
        if not self._wanted.covers(material):
            return []
        return [self.try_key(material, kek_alone=True).of("AGS1 stream")]

    def _encrypted(self, place: Place, source: Source, seen: KeyUses) -> list[KeyProof]:
        failure = ""
        if seen.columns is None and self._decryption is not None:
            try:
                seen = key_uses(source, self._decryption)
            except ModcryptError as error:
                failure = f"{error.word}: {error}"
        keys = _Keys(self, place, seen)
        if self._wanted.columns:
            found = list(self._by_columns(seen, keys, failure))
        else:
            found = list(self._by_keys(seen, keys, failure))
        if isinstance(material_of(seen.footer), KeyReference) or not self._wanted.columns:
            with self._lock:
                self._judged.add(keys.store)
        return found

    def _by_keys(self, seen: KeyUses, keys: _Keys, failure: str) -> Iterator[KeyProof]:
        """Try the keys that are under master keys, or all."""
        under = [c.name for c in seen.columns or () if "footer key" in c.under]
        footer = keys.tried(seen.footer)
        if footer is not None:
            yield footer.of("footer key", tuple(under))
        external = isinstance(material_of(seen.footer), KeyReference)
        lost = footer is not None and footer.state in _LOST
        if seen.columns is None and not external and not lost and footer is None:
            why = f"the sealed footer may hold such keys, and does not open ({failure or 'no key'})"
            yield KeyProof(key="columns", state="unknown", why=why)
        for metadata, names in _own_keys(seen.columns or ()).items():
            tried = keys.tried(metadata)
            if tried is not None:
                yield tried.of(f"column {', '.join(names)}", names)
        if self._wanted.everything:
            for column in seen.columns or ():
                if "plaintext" in column.under:
                    yield _open_to_all(column)
        yield from keys.rest()

    def _by_columns(self, seen: KeyUses, keys: _Keys, failure: str) -> Iterator[KeyProof]:
        """Try the keys of columns."""
        if seen.columns is None:
            yield from self._hidden(seen, keys, failure)
            return
        for column in self._meant(seen):
            if "plaintext" in column.under:
                yield _open_to_all(column)
            found = [keys.tried_all(one) for one in column.metadata]
            if column.bare:
                found.append(keys.without)
            if "footer key" in column.under:
                footer = keys.tried_all(seen.footer)
                found.append(
                    _Tried(footer.state, f"footer key: {footer.why}", footer.master_key_id)
                )
            if found:
                worst = min(found, key=lambda one: _WORST.index(one.state))
                yield worst.of(f"column {column.name}", (column.name,))
            materials = [material_of(one) for one in column.metadata]
            references = {one for one in materials if isinstance(one, KeyReference)}
            self._note_references(references)
            yield from keys.other_versions(references)

    def _note_references(self, references: set[KeyReference]) -> None:
        with self._lock:
            self._references |= references
            self._writes |= {one.write for one in references if one.write is not None}

    def _hidden(self, seen: KeyUses, keys: _Keys, failure: str) -> Iterator[KeyProof]:
        """Say what is known of columns in a sealed footer that does not open."""
        footer = keys.tried_all(seen.footer)
        tried = footer
        if footer.state not in _LOST:
            tried = _Tried("unknown", f"the sealed footer does not open: {failure or footer.why}")
        elif isinstance(material_of(seen.footer), KeyReference):
            rest = [one for one in keys.rest(of_columns=True) if one.state not in _LOST]
            if rest:
                why = "the sealed footer opens no more, and keys of columns are left beside it"
                tried = _Tried("unknown", why)
        if tried is footer:
            tried = _Tried(footer.state, f"in the sealed footer, whose key is lost: {footer.why}")
            with self._lock:
                self._met |= set(self._wanted.columns)
        for name in self._wanted.columns:
            yield tried.of(f"column {name}", (name,))

    def _stray(self, place: Place, store: dict[str, str], near: bool) -> list[KeyProof]:
        """Try key material that goes with no file that was named."""
        match = _STORE.fullmatch(place.name)
        others = near and match is not None and match[1] not in self._names
        if others or identity(place) in self._judged:
            return []
        found, refusals = [], Refusals(prove=True)
        for name, text in store.items():
            try:
                material = decode_material(text)
            except KeyMaterialError:
                found.append(_DAMAGED.of(f"key material {name}"))
                continue
            write = write_of(material.others)
            if near and write not in self._writes and not self.is_about(place):
                continue
            if self._wanted.columns:
                if not self._may_be_of_columns(name, write):
                    continue
            elif not self._wanted.covers(material):
                continue
            found.append(self.try_key(material, refusals).of(f"key material {name}"))
        return found

    def _may_be_of_columns(self, name: str, write: str | None) -> bool:
        base = _STAGED.sub("", name)
        return any(
            base == one.name and (None in (write, one.write) or write == one.write)
            for one in self._references
        )

    # --- one key ---------------------------------------------------------------------------------

    def covers(self, material: KeyMaterial) -> bool:
        """Tell whether a key is meant, whatever it is of."""
        return bool(self._wanted.columns) or self._wanted.covers(material)

    def try_key(
        self, material: KeyMaterial, refusals: Refusals | None = None, *, kek_alone: bool = False
    ) -> _Tried:
        """Have a key unwrapped, to see whether that can be done; or the KEK that it is under."""
        master = material.master_key_id
        if self._tools is None:
            return _Tried("unknown", "a wrapped key is there, and no key service is asked", master)
        try:
            wrapper = self._tools.wrapper
            with (refusals or Refusals(prove=True)).counted(master):
                _ = wrapper.reading_kek(material) if kek_alone else wrapper.unwrap(material)
        except (KeyNotFoundError, KeyDisabledError) as error:
            return _Tried("refused", f"{error.word}: {error}", master)
        except KeyAccessDeniedError as error:  # to this caller: others may be allowed
            return _Tried("unknown", f"{error.word}: {error}", master)
        except KeyRetrievalError as error:
            return _Tried("unknown", f"{error.word}: {error}", master)
        return _Tried("readable", f"master key {master} unwraps it", master)


class _Keys:
    """The keys of one file, with its external key material, which is read once."""

    def __init__(self, trial: Trial, place: Place, seen: KeyUses) -> None:
        self._trial, self._place = trial, stores_of(place)[0]
        metadata = (seen.footer, *(one for column in seen.columns or () for one in column.metadata))
        by_tools = seen.shredded or any(material_of(one) is not None for one in metadata)
        self.without = _GONE if by_tools else _ELSEWHERE  # what key metadata that is missing means
        self._read: dict[str, str] | None = None
        self._is_read = False
        self._used: set[str] = set()
        self._refusals = Refusals(prove=True)

    @property
    def store(self) -> str:
        """What the key material is known by."""
        return identity(self._place)

    def _store(self) -> dict[str, str] | None:
        if not self._is_read:
            self._read, self._is_read = entries_of(self._place), True
        return self._read

    def tried(self, metadata: bytes | None) -> _Tried | None:
        """Try a key; None where it is known not to be meant."""
        found = self._found(metadata)
        if isinstance(found, _Tried):
            return found
        return self._try(found) if self._trial.covers(found) else None

    def tried_all(self, metadata: bytes | None) -> _Tried:
        """Try a key that is meant."""
        found = self._found(metadata)
        return found if isinstance(found, _Tried) else self._try(found)

    def _try(self, material: KeyMaterial) -> _Tried:
        return self._trial.try_key(material, self._refusals)

    def _found(self, metadata: bytes | None) -> KeyMaterial | _Tried:
        """Find a key's material, or say why there is none."""
        if not metadata:
            return self.without
        found = material_of(metadata)
        if found is None:
            return _Tried("unknown", "the key metadata is none of the key tools': kept elsewhere")
        return found if isinstance(found, KeyMaterial) else self._referred_to(found)

    def _referred_to(self, reference: KeyReference) -> KeyMaterial | _Tried:
        try:
            store = self._store()
        except KeyMaterialError as error:
            return _Tried("unknown", f"{error.word}: {error}")
        if store is None:
            return _Tried("gone", f"there is no key material {self._place.name}")
        for name in (f"{reference.name}-{reference.write}", reference.name):
            if name in store:
                try:
                    material = decode_material(store[name])
                except KeyMaterialError:
                    return _DAMAGED
                if write_of(material.others) in (None, reference.write):
                    self._used.add(name)
                    return material
        return _Tried("gone", f"the key material has no {reference.name} of this file")

    def rest(self, *, of_columns: bool = False) -> Iterator[KeyProof]:
        """Try what else is in the key material: of hidden columns, or of other versions.

        Raises:
            KeyMaterialError: it is damaged.
        """
        for name, text in (self._store() or {}).items():
            if name in self._used or (of_columns and name.startswith(FOOTER_KEY)):
                continue
            try:
                material = decode_material(text)
            except KeyMaterialError:
                yield _DAMAGED.of(f"key material {name}")
                continue
            if self._trial.covers(material):
                yield self._try(material).of(f"key material {name}")

    def other_versions(self, references: set[KeyReference]) -> Iterator[KeyProof]:
        """Name keys of the same columns that another run has written."""
        names = {one.name for one in references}
        for name, text in (self._store() or {}).items() if names else ():
            if name in self._used or _STAGED.sub("", name) not in names:
                continue
            try:
                tried = self._try(decode_material(text))
            except KeyMaterialError:
                tried = _DAMAGED
            if tried.state not in _LOST:
                why = f"perhaps of another version of the file: {tried.why}"
                yield _Tried("unknown", why, tried.master_key_id).of(f"key material {name}")


_PERHAPS_A_COPY = KeyProof(
    key="plaintext",
    state="unknown",
    why="a plaintext Parquet file lies here: perhaps a copy, or with statistics of what is gone",
)
_GONE = _Tried("gone", "there is no key metadata")
_ELSEWHERE = _Tried("unknown", "there is no key metadata, and never may have been: kept elsewhere")
_DAMAGED = _Tried("unknown", "damaged key material")
_STAGED = re.compile(r"-[0-9a-f]{16}\Z")
_STORE = re.compile(r"(?:_TMP)?_KEY_MATERIAL_FOR_(.*)\.json", re.DOTALL)


def _own_keys(columns: tuple[ColumnUse, ...] | tuple[()]) -> dict[bytes | None, tuple[str, ...]]:
    """Give the key metadata of columns to the columns that have it, None for none."""
    found: dict[bytes | None, tuple[str, ...]] = {}
    for column in columns:
        for metadata in sorted(column.metadata):
            found[metadata] = (*found.get(metadata, ()), column.name)
        if column.bare:
            found[None] = (*found.get(None, ()), column.name)
    return found


def _open_to_all(column: ColumnUse) -> KeyProof:
    return KeyProof(
        key=f"column {column.name}", columns=(column.name,), state="readable",
        why="the column is not encrypted",
    )  # fmt: skip


def _is_parquet(source: Source) -> bool:
    magics = b"PAR1", b"PARE"
    return source.size >= 12 and source.read_at(source.size - 4, 4) in magics


def _as_store(source: Source) -> dict[str, str] | None:
    """Take in what may be external key material."""
    if not 2 <= source.size <= MAX_STORE or source.read_at(0, 1) != b"{":
        return None
    try:
        store = decode_store(source.read_at(0, source.size))
    except KeyMaterialError:
        return None
    return store if any("PKMT1" in text for text in store.values()) else None
