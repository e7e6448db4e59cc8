"""Remove the wrapped keys of one file: from its footer, external key material or key metadata.

Pages are not changed. modcrypt removes internal key material from the footer by replacing the file
with a copy whose footer is encrypted or signed again; this needs the footer key, unless the footer
key is shredded too. It removes external key material from the store beside the file by replacing
the store as a whole, or by deleting it with its last key. So a file is readable or shredded at
every moment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import (
    IntegrityError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.jobs.engine import FileResult
from modcrypt.jobs.file_changes import replace_file, update_store
from modcrypt.jobs.shredding.choice import Chosen, Criteria, choose, remove_chosen_entries
from modcrypt.kms.audit import record_key
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.signing.signing_keys import SigningKey
from modcrypt.kms.wrapped_key_metadata import holds_encrypted_metadata, parse_wrapped_metadata
from modcrypt.parquet.crypto.footer_keys import (
    KeyUses,
    NewTail,
    key_uses,
    new_tail,
    refuse_lost_signature,
)
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.pkmt1.external import FOOTER_KEY, place_with_store, read_store_at, store_of
from modcrypt.pkmt1.material import (
    MAX_STORE,
    SHREDDED,
    KeyMaterial,
    KeyReference,
    decode_material,
    decode_store,
    try_decode_metadata,
)

_TEMPORARY = "_TMP"  # prefix of new key material during a rotation by other implementations


@dataclass(frozen=True, slots=True, kw_only=True)
class ShreddedFile(FileResult):
    """The result of shredding for one file, or for a master key after all files.

    Attributes:
        path: Path of the file; for a master key, its key service.
        result: `"shredded"`; `"current"`, nothing is left to shred, or the record lists the file
            as done; `"elsewhere"`, the keys are stored elsewhere, as the key metadata is not
            PKMT1; `"plaintext"`, some data is not encrypted; or an error code. For a master key
            `"destroyed"`, `"disabled"`, `"current"` if it does not exist, `"kept"`, or an error
            code.
        keys: Number of wrapped keys that were removed.
        columns: Dotted names of the selected columns, as far as they are known.
        whole: Whether the removed keys make the whole file unreadable.
        master_key_id: Id of the master key that this result is for; None for a file.
        message: Message of the error, and further notes.
    """

    keys: int = 0
    columns: tuple[str, ...] = ()
    whole: bool = False
    master_key_id: str | None = None

    @property
    def failed(self) -> bool:
        """True if the selected data is still readable, or partly readable."""
        if self.master_key_id is not None and self.result in ("destroyed", "disabled"):
            return False
        return self.result not in ("shredded", "current")


def is_ags1(source: Source) -> bool:
    """Return whether a file is an AGS1 stream; its key is in key metadata stored elsewhere."""
    return source.read_at(0, min(4, source.size)) == b"AGS1"


def is_parquet(source: Source) -> bool:
    """Return whether a file ends as a Parquet file does."""
    magics = b"PAR1", b"PARE"
    return source.size >= 12 and source.read_at(source.size - 4, 4) in magics


def parse_store(source: Source) -> dict[str, str] | None:
    """Return the entries of external key material; None if the file is of another kind."""
    if not 2 <= source.size <= MAX_STORE or source.read_at(0, 1) != b"{":
        return None
    try:
        store = decode_store(source.read_at(0, source.size))
    except KeyMaterialError:
        return None
    return store if any("PKMT1" in text for text in store.values()) else None


def _has_other_links(place: Place) -> bool:
    """Return whether a local file has other hard links, which keep its old content."""
    return place.filesystem is None and os.stat(place.path).st_nlink > 1


def stores_of(place: Place) -> tuple[Place, Place]:
    """Return the places of a file's external key material and of its temporary replacement."""
    store = store_of(place_with_store(place))
    return store, store.beside(_TEMPORARY + store.name)


class Shredding:
    """The state of one call of `shred_keys`.

    For each file, the new end is made before any key is removed, because that may need the footer
    key, which may be in the external key material. Then external key material goes, and the file
    is replaced last. A run that is killed in between leaves keys that the next run still finds.
    """

    def __init__(
        self, tools: KeyTools | None, wanted: Criteria, decryption: FileDecryptionProperties | None,
        dry_run: bool, signing_key: SigningKey | None,
    ) -> None:  # fmt: skip
        self._wanted, self._decryption, self._dry_run = wanted, decryption, dry_run
        self._signing_key = signing_key
        self._audit = None if tools is None else tools.wrapper.audit

    def run(self, place: Place) -> tuple[ShreddedFile, dict[str, Any] | None]:
        """Shred one file; return the result, and the fields to record."""
        file = self._shred_file(place)
        return file, None if file.failed else {"keys": file.keys, "columns": list(file.columns)}

    def _shred_file(self, place: Place) -> ShreddedFile:
        place.check_writable()
        with open_source_at(place) as source:
            if is_ags1(source):
                note = "an AGS1 stream: its key is in key metadata stored elsewhere"
                return ShreddedFile(path=place.listed_name, result="current", message=note)
            if holds_encrypted_metadata(source):
                return self._shred_key_metadata(place, source)
            seen = self._read_key_uses(source)
            if not seen.encrypted:
                return self._report_plaintext(place, seen)
            chosen = choose(self._wanted, seen)
            tail = self._build_tail(source, seen, chosen)
            links = _has_other_links(place)
            removed = self._shred_external(place, source, chosen)
            if tail is not None and not self._dry_run:
                replace_file(place, source, tail.data, keep=tail.start)
                if tail.lost_signature:
                    chosen.notes.append("the signature of the file's writer was dropped")
            elif not removed:  # the file may have been replaced by a version with other keys
                place.check_unchanged(source.stamp)
        self._record_removals(place, chosen, removed)
        keys = len(chosen.within) + len(set(removed.values()))
        if keys and links:
            chosen.notes.append(
                "the file has other names (hard links), which keep its keys until shredded, too"
            )
        return self._make_result(
            place, seen, chosen, keys, self._is_whole_file(seen, chosen, removed)
        )

    def _make_result(
        self, place: Place, seen: KeyUses, chosen: Chosen, keys: int, whole: bool
    ) -> ShreddedFile:
        result = "shredded" if keys else "current"
        if chosen.elsewhere and not whole:
            result = "elsewhere"
            names = ", ".join(dict.fromkeys(chosen.elsewhere))
            chosen.notes.append(
                f"{names}: the key metadata is not key material (PKMT1); the key is stored "
                "elsewhere, destroy it there"
            )
        if chosen.bare:
            result = "plaintext"
            chosen.notes.append(
                f"columns not encrypted: {', '.join(chosen.bare)}; mask or drop them"
            )
        if whole and not self._wanted.everything:
            chosen.notes.append("removing the footer key makes the whole file unreadable")
        if result == "current" and seen.shredded and seen.columns is None:
            chosen.notes.append("the footer key was removed: nothing in the file can be read")
        never_there = not seen.footer and not seen.shredded
        if result == "current" and never_there and not self._wanted.master_keys:
            result = "elsewhere"
            chosen.notes.append(
                "the file has no key metadata; its keys are stored elsewhere, destroy them there"
            )
        return ShreddedFile(
            path=place.listed_name, result=result, keys=keys, columns=tuple(chosen.columns),
            whole=whole, message="; ".join(chosen.notes),
        )  # fmt: skip

    def _is_whole_file(self, seen: KeyUses, chosen: Chosen, removed: Mapping[str, str]) -> bool:
        """Return whether nothing in a file can be read any more."""
        footer = try_decode_metadata(seen.footer)
        if isinstance(footer, KeyReference):
            names = {footer.name, f"{footer.name}-{footer.write}"}
            gone = not names.isdisjoint(removed) or (self._wanted.everything and bool(removed))
        else:
            gone = seen.footer in chosen.within
        return seen.has_encrypted_footer and gone and not chosen.bare

    def _report_plaintext(self, place: Place, seen: KeyUses) -> ShreddedFile:
        """Return the result for a plaintext file, which has no keys to remove."""
        if self._wanted.master_keys:
            note = "the file is not encrypted, so not under a master key"
            return ShreddedFile(path=place.listed_name, result="current", message=note)
        names = [column.name for column in self._wanted.columns_of(seen)]
        if self._wanted.columns and not names:
            note = f"the file has no column {', '.join(self._wanted.columns)}"
            return ShreddedFile(path=place.listed_name, result="current", message=note)
        return ShreddedFile(
            path=place.listed_name, result="plaintext", columns=tuple(names),
            message="the file is not encrypted and has no keys to shred; mask or remove it",
        )  # fmt: skip

    def _read_key_uses(self, source: Source) -> KeyUses:
        """Return the keys that a file needs; decrypt its footer if that reveals more."""
        seen = key_uses(source)
        if not seen.encrypted or self._decryption is None:
            return seen
        footer = try_decode_metadata(seen.footer)
        is_enough = seen.columns is not None or isinstance(footer, KeyReference)
        if is_enough and self._wanted.master_keys:
            return seen  # external key material states its master keys itself
        try:
            return key_uses(source, self._decryption)
        except KmsUnavailableError:
            raise  # keys in the encrypted footer must be removed, too, in a later run
        except (KeyRetrievalError, IntegrityError):
            covered = isinstance(footer, KeyMaterial) and self._wanted.covers(footer)
            elsewhere = footer is None and not self._wanted.columns
            if covered or elsewhere or self._wanted.everything or not seen.footer:
                return seen  # keys in an encrypted footer are lost or kept with the footer key
            raise

    def _build_tail(self, source: Source, seen: KeyUses, chosen: Chosen) -> NewTail | None:
        """Return the new end of the file, which replaces the old one; None to keep it.

        Raise KeyRetrievalError or IntegrityError if the footer must be encrypted or signed again,
        and can't be.
        """
        if not chosen.within:
            return None

        def change(metadata: bytes, column: str | None) -> bytes | None:
            if metadata not in chosen.within:
                return metadata
            return SHREDDED if column is None else None

        # Without the footer key nobody can check a signature, so none is needed.
        lacks_key = self._wanted.everything or not seen.footer or seen.footer in chosen.within
        if self._decryption is not None:
            try:
                tail = new_tail(source, self._decryption, change, self._signing_key)
            except (KeyRetrievalError, IntegrityError):
                if not lacks_key:
                    raise
            else:
                lost = tail is not None and tail.lost_signature and not lacks_key
                refuse_lost_signature(self._decryption, source.name, lost=lost)
                return tail
        elif not lacks_key:
            raise KeyNotFoundError(
                "the footer must be encrypted or signed again; name a key service that has the "
                "footer key"
            )
        if not seen.has_encrypted_footer:
            chosen.notes.append("the signature of the footer is no longer valid")
        return new_tail(source, None, change)

    def _shred_external(self, place: Place, source: Source, chosen: Chosen) -> dict[str, str]:
        if self._wanted.columns and not chosen.references:
            return {}
        removed: dict[str, str] = {}
        store, temporary = stores_of(place)
        for each in (temporary, store):  # a rotation moves the first over the other
            removed |= self._shred_store(place, each, source, chosen)
        return removed

    def _shred_store(
        self, place: Place, store: Place, source: Source, chosen: Chosen
    ) -> dict[str, str]:
        removed: dict[str, str] = {}

        def change(old: dict[str, str]) -> dict[str, str] | None:
            try:
                new = remove_chosen_entries(old, self._wanted, chosen)
            except KeyMaterialError as error:
                error.args = (f"{store.address}: {error}",)
                raise
            removed.clear()
            removed.update((name, text) for name, text in old.items() if text not in new.values())
            return new if removed and not self._dry_run else None

        def check() -> None:
            place.check_unchanged(source.stamp)

        old = update_store(store, lambda: self._read_entries(store), change, check)
        return removed if old else {}

    def _read_entries(self, store: Place) -> dict[str, str] | None:
        try:
            return read_store_at(store)
        except KeyMaterialError:
            if not self._wanted.everything:
                raise
            return {"": ""}  # damaged key material is removed, too

    def _shred_key_metadata(self, place: Place, source: Source) -> ShreddedFile:
        data = source.read_at(0, source.size)
        if data == SHREDDED or self._wanted.columns:
            note = "key metadata of an AGS1 stream has no columns" if self._wanted.columns else ""
            return ShreddedFile(path=place.listed_name, result="current", message=note)
        try:
            material = parse_wrapped_metadata(data)
        except KeyMaterialError:
            if not self._wanted.everything:
                raise
            material = None
        if material is not None and not self._wanted.covers(material):
            return ShreddedFile(path=place.listed_name, result="current")
        links = _has_other_links(place)
        if not self._dry_run:
            replace_file(place, source, SHREDDED)
            if material is not None:
                self._record_event(place, material, ())
        note = "the file has other names (hard links), which keep its key" if links else ""
        return ShreddedFile(
            path=place.listed_name, result="shredded", keys=1, whole=True, message=note
        )

    def _record_removals(self, place: Place, chosen: Chosen, removed: Mapping[str, str]) -> None:
        if self._dry_run:
            return
        for metadata, material in chosen.within.items():
            self._record_event(place, material, tuple(sorted(chosen.owners.get(metadata, ()))))
        for name, text in removed.items():
            with suppress(KeyMaterialError):
                columns = () if name.startswith(FOOTER_KEY) else (name,)
                self._record_event(place, decode_material(text), columns)

    def _record_event(self, place: Place, material: KeyMaterial, columns: tuple[str, ...]) -> None:
        record_key(self._audit, "shred", material, place.full_name, columns)
