"""Trials of the keys of one file, for a proof of shredding: which of them still open.

An error proves nothing: a key is gone or refused, it opens, or its state is unknown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeAlias

from modcrypt.errors import (
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    ModcryptError,
)
from modcrypt.io.places import Place
from modcrypt.io.sources import Source
from modcrypt.jobs.shredding.choice import Criteria
from modcrypt.jobs.shredding.file_shredding import is_ags1, is_parquet, parse_store, stores_of
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.wrapped_key_metadata import holds_encrypted_metadata, parse_wrapped_metadata
from modcrypt.kms.wrapping import Refusals
from modcrypt.parquet.crypto.footer_keys import ColumnUse, KeyUses, key_uses
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.pkmt1.external import FOOTER_KEY, STAGED, read_store_at
from modcrypt.pkmt1.material import (
    RECIPIENTS,
    SHREDDED,
    STORE_NAME,
    KeyMaterial,
    KeyReference,
    decode_material,
    try_decode_metadata,
    write_of,
)
from modcrypt.runtime.fork_safety import cached_property, fork_safe

TEMPORARY = ".modcrypt-"  # prefix of the names of unfinished files

State: TypeAlias = Literal["gone", "refused", "readable", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyProof:
    """The findings about a selected key.

    Attributes:
        key: Description of what the key encrypts.
        columns: Dotted names of the columns that the key opens, as far as they are known.
        state: `"gone"`, the file no longer contains the key; `"refused"` by the key service;
            `"readable"`, the key opens, or the data is in plaintext and needs no key; `"unknown"`,
            nothing is proven.
        why: Reason for the state.
        master_key_id: Id of the master key that wraps the key, if it is known.
    """

    key: str
    columns: tuple[str, ...] = ()
    state: State
    why: str
    master_key_id: str | None = None


def _make_result(state: State, why: str, master_key_id: str | None = None) -> KeyProof:
    """Return the findings about a key that is not described yet."""
    return KeyProof(key="", state=state, why=why, master_key_id=master_key_id)


_LOST: tuple[State, ...] = ("gone", "refused")
_WORST: tuple[State, ...] = ("readable", "unknown", "refused", "gone")


def identify(place: Place) -> str:
    """Return a path that identifies a file in its file system, with links resolved."""
    return place.resolve().path if place.filesystem is None else place.path.lstrip("/")


@dataclass(slots=True)
class Traces:
    """Traces of the files of a trial, which reveal leftovers of these files; without keys."""

    column_names: set[str] = field(default_factory=set)  # selected column names that some file has
    uniques: set[bytes] = field(default_factory=set)  # file-unique parts of the AADs of files
    names: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)  # ids of the runs that wrote files
    # References of selected columns to external key material.
    references: set[KeyReference] = field(default_factory=set)
    # Identities of external key material that was tried with its file.
    judged: set[str] = field(default_factory=set)
    streams: set[str] = field(default_factory=set)  # names of AGS1 streams in results

    def add(self, other: Traces) -> None:
        """Add the traces of other files."""
        for member in fields(self):
            getattr(self, member.name).update(getattr(other, member.name))


class Trial:
    """A trial of the keys of many files, which remembers how they are related. Thread-safe.

    Without tools, no key service unwraps keys; without `decryption`, no encrypted footer is opened.
    """

    def __init__(
        self, tools: KeyTools | None, wanted: Criteria, decryption: FileDecryptionProperties | None
    ) -> None:
        self.tools, self.wanted, self._decryption = tools, wanted, decryption
        self._lock = fork_safe(threading.Lock())
        self.traces = Traces()

    def for_file(self) -> Trial:
        """Return a trial with the same keys, whose traces are those of one file."""
        return Trial(self.tools, self.wanted, self._decryption)

    @property
    def unmet(self) -> tuple[str, ...]:
        """Selected column names that no file has."""
        return tuple(name for name in self.wanted.columns if name not in self.traces.column_names)

    def is_about(self, place: Place) -> bool:
        """Return whether a file's name suggests a copy of a named file, or an unfinished file."""
        names = self.traces.names
        return place.name.startswith(TEMPORARY) or any(name in place.name for name in names)

    def try_file(self, place: Place, source: Source) -> list[KeyProof]:
        """Try the selected keys of a file."""
        self._note(Traces(names={place.name}))
        if source.size == 0:
            return []
        if is_ags1(source):  # its key is in separate key metadata
            self._note(Traces(streams={place.listed_name}))
            return []
        if holds_encrypted_metadata(source):
            return self._try_key_metadata(source)
        seen = key_uses(source)
        if seen.encrypted:
            self._note(Traces(uniques={seen.unique} if seen.unique else set()))
            return self._try_encrypted_file(place, source, seen)
        return self._report_plaintext(seen)

    def try_leftover(self, place: Place, source: Source, near: bool) -> list[KeyProof] | None:
        """Try the keys of a leftover; return None if it is neither Parquet nor key material.

        If the leftover is only `near`, beside a named file, only copies and key material of that
        file count.
        """
        if holds_encrypted_metadata(source):
            return [] if near else self._try_key_metadata(source)
        if is_parquet(source):
            seen = key_uses(source)
            is_copy = not seen.encrypted and self.is_about(place)
            if near and seen.unique not in self.traces.uniques and not is_copy:
                return []
            if seen.encrypted:
                return self._try_encrypted_file(place, source, seen)
            return self._report_plaintext(seen) if self.wanted.columns else [_PERHAPS_A_COPY]
        if (store := parse_store(source)) is None:
            return None
        return self._try_separate_material(place, store, near)

    def _note(self, traces: Traces) -> None:
        with self._lock:
            self.traces.add(traces)

    # --- one file --------------------------------------------------------------------------------

    def _report_plaintext(self, seen: KeyUses) -> list[KeyProof]:
        if self.wanted.master_keys:
            return []
        meant = [column.name for column in self._select_columns(seen)]
        if self.wanted.columns and not meant:
            return []
        why = "the file is not encrypted"
        return [KeyProof(key="plaintext", columns=tuple(meant), state="readable", why=why)]

    def _select_columns(self, seen: KeyUses) -> list[ColumnUse]:
        """Return the selected columns, and remember which names a file has."""
        meant = self.wanted.columns_of(seen)
        present = set(self.wanted.columns) - set(self.wanted.absent_from(seen))
        self._note(Traces(column_names=present))
        return meant

    def _try_key_metadata(self, source: Source) -> list[KeyProof]:
        if self.wanted.columns:
            return []
        if (data := source.read_at(0, source.size)) == SHREDDED:
            why = "the key metadata was shredded"
            return [KeyProof(key="AGS1 stream", state="gone", why=why)]
        material = parse_wrapped_metadata(data)
        if not self.wanted.covers(material):
            return []
        return [replace(self.try_key(material, kek_alone=True), key="AGS1 stream")]

    def _try_encrypted_file(self, place: Place, source: Source, seen: KeyUses) -> list[KeyProof]:
        failure = ""
        if seen.columns is None and self._decryption is not None:
            try:
                seen = key_uses(source, self._decryption)
            except ModcryptError as error:
                failure = f"{error.word}: {error}"
        keys = _Keys(self, place, seen)
        if self.wanted.columns:
            found = list(self._try_columns(seen, keys, failure))
        else:
            found = list(self._try_keys(seen, keys, failure))
        if isinstance(try_decode_metadata(seen.footer), KeyReference) or not self.wanted.columns:
            self._note(Traces(judged={keys.store}))
        return found

    def _try_keys(self, seen: KeyUses, keys: _Keys, failure: str) -> Iterator[KeyProof]:
        under = [c.name for c in seen.columns or () if "footer key" in c.under]
        if (footer := keys.try_if_selected(seen.footer)) is not None:
            yield replace(footer, key="footer key", columns=tuple(under))
        external = isinstance(try_decode_metadata(seen.footer), KeyReference)
        lost = footer is not None and footer.state in _LOST
        if seen.columns is None and not external and not lost and footer is None:
            why = (
                "the encrypted footer may contain selected keys, and can't be decrypted "
                f"({failure or 'no key'})"
            )
            yield KeyProof(key="columns", state="unknown", why=why)
        for metadata, names in _group_columns_by_key(seen.columns or ()).items():
            if (result := keys.try_if_selected(metadata)) is not None:
                yield replace(result, key=f"column {', '.join(names)}", columns=names)
        if self.wanted.everything:
            for column in seen.columns or ():
                if "plaintext" in column.under:
                    yield _make_plaintext_proof(column)
        yield from keys.try_rest()

    def _try_columns(self, seen: KeyUses, keys: _Keys, failure: str) -> Iterator[KeyProof]:
        if seen.columns is None:
            yield from self._judge_hidden_columns(seen, keys, failure)
            return
        for column in self._select_columns(seen):
            if "plaintext" in column.under:
                yield _make_plaintext_proof(column)
            results = [keys.try_metadata(metadata) for metadata in column.metadata]
            if column.bare:
                results.append(keys.without)
            if "footer key" in column.under:
                footer = keys.try_metadata(seen.footer)
                results.append(
                    _make_result(footer.state, f"footer key: {footer.why}", footer.master_key_id)
                )
            if results:
                worst = min(results, key=lambda result: _WORST.index(result.state))
                yield replace(worst, key=f"column {column.name}", columns=(column.name,))
            materials = [try_decode_metadata(metadata) for metadata in column.metadata]
            references = {material for material in materials if isinstance(material, KeyReference)}
            writes = {ref.write for ref in references if ref.write is not None}
            self._note(Traces(references=references, writes=writes))
            yield from keys.try_other_versions(references)

    def _judge_hidden_columns(self, seen: KeyUses, keys: _Keys, failure: str) -> Iterator[KeyProof]:
        """Yield the findings about columns in an encrypted footer that can't be decrypted."""
        footer = keys.try_metadata(seen.footer)
        result = footer
        if footer.state not in _LOST:
            result = _make_result(
                "unknown", f"the encrypted footer can't be decrypted: {failure or footer.why}"
            )
        elif isinstance(try_decode_metadata(seen.footer), KeyReference):
            remaining = [
                proof for proof in keys.try_rest(of_columns=True) if proof.state not in _LOST
            ]
            if remaining:
                why = (
                    "the encrypted footer can no longer be decrypted, but column keys remain in "
                    "the external key material"
                )
                result = _make_result("unknown", why)
        if result is footer:
            result = _make_result(
                footer.state, f"in the encrypted footer, whose key is lost: {footer.why}"
            )
            self._note(Traces(column_names=set(self.wanted.columns)))
        for name in self.wanted.columns:
            yield replace(result, key=f"column {name}", columns=(name,))

    def _try_separate_material(
        self, place: Place, store: dict[str, str], near: bool
    ) -> list[KeyProof]:
        """Try key material that belongs to none of the named files."""
        match = STORE_NAME.fullmatch(place.name)
        others = near and match is not None and match[1] not in self.traces.names
        if others or identify(place) in self.traces.judged:
            return []

        def may_be_selected(name: str, material: KeyMaterial) -> bool:
            write = write_of(material.others)
            if near and write not in self.traces.writes and not self.is_about(place):
                return False
            if not self.wanted.columns:
                return self.wanted.covers(material)
            base = STAGED.sub("", name)
            return any(
                base == ref.name and (None in (write, ref.write) or write == ref.write)
                for ref in self.traces.references
            )

        return list(self.try_entries(store, Refusals(prove=True), may_be_selected))

    # --- one key ---------------------------------------------------------------------------------

    def covers(self, material: KeyMaterial) -> bool:
        """Return whether a key is selected by its material, or may be by its column."""
        return bool(self.wanted.columns) or self.wanted.covers(material)

    def try_entries(
        self,
        entries: Mapping[str, str],
        refusals: Refusals,
        select: Callable[[str, KeyMaterial], bool],
    ) -> Iterator[KeyProof]:
        """Yield the findings about selected and about damaged entries of key material."""
        for name, text in entries.items():
            try:
                material = decode_material(text)
            except KeyMaterialError:
                yield replace(_DAMAGED, key=f"key material {name}")
                continue
            if select(name, material):
                yield replace(self.try_key(material, refusals), key=f"key material {name}")

    def try_key(
        self, material: KeyMaterial, refusals: Refusals | None = None, *, kek_alone: bool = False
    ) -> KeyProof:
        """Try to unwrap a key, or with `kek_alone` its KEK, and return the result."""
        master = material.master_key_id
        if self.tools is None:
            return _make_result(
                "unknown", "a wrapped key exists, and no key service was asked", master
            )
        try:
            wrapper = self.tools.wrapper
            with (refusals or Refusals(prove=True)).count_refusals(master):
                _ = wrapper.get_reading_kek(material) if kek_alone else wrapper.unwrap(material)
        except (KeyNotFoundError, KeyDisabledError) as error:
            return _make_result("refused", f"{error.word}: {error}", master)
        except KeyRetrievalError as error:  # also access denied, which refuses this caller only
            return _make_result("unknown", f"{error.word}: {error}", master)
        return _make_result("readable", f"master key {master} unwraps it", master)


class _Keys:
    """The keys of one file; its external key material is read once."""

    def __init__(self, trial: Trial, place: Place, seen: KeyUses) -> None:
        self._trial, self._place = trial, stores_of(place)[0]
        all_metadata = (
            seen.footer,
            *(metadata for column in seen.columns or () for metadata in column.metadata),
        )
        by_tools = seen.shredded or any(
            try_decode_metadata(metadata) is not None for metadata in all_metadata
        )
        self.without = _GONE if by_tools else _ELSEWHERE  # the meaning of missing key metadata
        self._used: set[str] = set()
        self._refusals = Refusals(prove=True)

    @property
    def store(self) -> str:
        """The identity of the external key material."""
        return identify(self._place)

    @cached_property
    def _entries(self) -> dict[str, str] | None:
        """The external key material; None if it does not exist."""
        return read_store_at(self._place)

    def try_if_selected(self, metadata: bytes | None) -> KeyProof | None:
        """Try a key; return None if the key is known not to be selected."""
        material = self._find_material(metadata)
        if isinstance(material, KeyProof):
            return material
        return self._try(material) if self._trial.covers(material) else None

    def try_metadata(self, metadata: bytes | None) -> KeyProof:
        """Try a selected key."""
        material = self._find_material(metadata)
        return material if isinstance(material, KeyProof) else self._try(material)

    def _try(self, material: KeyMaterial) -> KeyProof:
        proof = self._trial.try_key(material, self._refusals)
        if RECIPIENTS in material.others and proof.state in _LOST:
            why = f"the file's recipients open it, although {proof.why}"
            return _make_result("readable", why, material.master_key_id)
        return proof

    def _find_material(self, metadata: bytes | None) -> KeyMaterial | KeyProof:
        """Return a key's material, or a result that states why it has none."""
        if not metadata:
            return self.without
        if (material := try_decode_metadata(metadata)) is None:
            return _make_result(
                "unknown",
                "the key metadata is not key material (PKMT1); the key is stored elsewhere",
            )
        return material if isinstance(material, KeyMaterial) else self._resolve_reference(material)

    def _resolve_reference(self, reference: KeyReference) -> KeyMaterial | KeyProof:
        try:
            store = self._entries
        except KeyMaterialError as error:
            return _make_result("unknown", f"{error.word}: {error}")
        if store is None:
            return _make_result("gone", f"key material {self._place.name} does not exist")
        for name in (f"{reference.name}-{reference.write}", reference.name):
            if name in store:
                try:
                    material = decode_material(store[name])
                except KeyMaterialError:
                    return _DAMAGED
                if write_of(material.others) in (None, reference.write):
                    self._used.add(name)
                    return material
        return _make_result("gone", f"the key material has no key {reference.name} of this file")

    def try_rest(self, *, of_columns: bool = False) -> Iterator[KeyProof]:
        """Try the other keys in the external key material: of hidden columns or other versions.

        Raise KeyMaterialError if the key material is damaged.
        """
        return self._try_unused(
            lambda name: not (of_columns and name.startswith(FOOTER_KEY)),
            lambda _, material: self._trial.covers(material),
        )

    def try_other_versions(self, references: set[KeyReference]) -> Iterator[KeyProof]:
        """Yield the findings about keys of the same columns that another run has written."""
        names = {ref.name for ref in references}
        if not names:
            return
        for proof in self._try_unused(lambda name: STAGED.sub("", name) in names):
            if proof.state not in _LOST:
                why = f"perhaps of another version of the file: {proof.why}"
                yield replace(proof, state="unknown", why=why)

    def _try_unused(
        self,
        named: Callable[[str], bool],
        select: Callable[[str, KeyMaterial], bool] = lambda name, material: True,
    ) -> Iterator[KeyProof]:
        entries = {
            name: text
            for name, text in (self._entries or {}).items()
            if name not in self._used and named(name)
        }
        return self._trial.try_entries(entries, self._refusals, select)


_PERHAPS_A_COPY = KeyProof(
    key="plaintext",
    state="unknown",
    why="an unencrypted Parquet file: perhaps a copy, or with statistics of the shredded data",
)
_GONE = _make_result("gone", "the file has no key metadata")
_ELSEWHERE = _make_result(
    "unknown", "the file has no key metadata; the key may always have been stored elsewhere"
)
_DAMAGED = _make_result("unknown", "damaged key material")


def _group_columns_by_key(columns: tuple[ColumnUse, ...]) -> dict[bytes | None, tuple[str, ...]]:
    """Return the column names by key metadata; None stands for missing key metadata."""
    names: dict[bytes | None, tuple[str, ...]] = {}
    for column in columns:
        for metadata in sorted(column.metadata):
            names[metadata] = (*names.get(metadata, ()), column.name)
        if column.bare:
            names[None] = (*names.get(None, ()), column.name)
    return names


def _make_plaintext_proof(column: ColumnUse) -> KeyProof:
    return KeyProof(
        key=f"column {column.name}", columns=(column.name,), state="readable",
        why="the column is not encrypted",
    )  # fmt: skip
