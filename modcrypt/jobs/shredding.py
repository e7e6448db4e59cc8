"""Data made unreadable for good, by removing the wrapped keys that lead to it: `shred_keys`.

    a tenant       master_keys=("tenant-7",)   every key that this master key has wrapped
    a partition    everything=True             all keys of the files of a folder
    a column       columns=("ssn",)            its keys; the rest of the file stays readable

Pages stay as they are. Internal key material is removed from the footer, by a copy of the file that
takes its place: sealed or signed anew, so that the footer key is needed, unless it is itself among
what is shredded. External key material is removed from the file beside it, which is replaced as a
whole, or goes with its last key. So a file is readable or shredded at every moment.

What bytes there were may survive where nobody can remove them by name: `REMAINS` says where.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import (
    IntegrityError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.io.storage import Place, Source, copy_range
from modcrypt.jobs.file_runs import each_file, files_but, told
from modcrypt.jobs.run_record import RunRecord, stamps_of
from modcrypt.jobs.shredding_choice import (
    Chosen,
    Criteria,
    choose,
    criteria_of,
    left_of,
    material_of,
)
from modcrypt.kms.audit import AuditEvent
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.wrapped_key_metadata import begins_sealed, kek_of
from modcrypt.parquet.crypto.footer_keys import KeyUses, key_uses, new_tail, unsigned_tail
from modcrypt.parquet.crypto.properties import (
    ALGORITHMS,
    FileDecryptionProperties,
    check_decryption,
)
from modcrypt.pkmt1.external import FOOTER_KEY, place_with_store, store_of
from modcrypt.pkmt1.material import (
    MAX_STORE,
    SHREDDED,
    KeyMaterial,
    KeyReference,
    decode_material,
    decode_store,
    encode_store,
)

__all__ = [
    "REMAINS",
    "ShreddedFile",
    "entries_of",
    "is_ags1",
    "reading",
    "shred_keys",
    "stores_of",
]

REMAINS = (
    "Removed keys may survive in what was there before: freed blocks and journals of a disk, "
    "snapshots, versions of an object, replicas, backups, copies. Such a key opens the data for as "
    "long as its master key unwraps: destroy that, where it wraps nothing else."
)
"""What shredding can't reach, in words for its results."""

_ATTEMPTS = 3  # at key material that somebody else changes, too
_TEMPORARY = "_TMP"
"""What other implementations' rotation puts before the name of new key material meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShreddedFile:
    """What became of one file; or of a master key, after all files.

    Attributes:
        path: of the file; of a master key, its key service.
        result: `"shredded"`; `"current"`, there is nothing to be shredded, or nothing any more;
            `"elsewhere"`, keys are kept elsewhere: the key metadata is none of PKMT1;
            `"plaintext"`, data is there that is not encrypted; `"skipped"`, an earlier run that was
            recorded did it; or the word of an error. Of a master key `"destroyed"`, `"disabled"`,
            `"current"` where there is none, `"kept"`, or the word of an error.
        keys: how many wrapped keys were removed.
        columns: dotted names of the columns that are meant, as far as they can be told.
        whole: whether nothing of the file can be read without what was removed.
        master_key_id: of the master key that this is about; else None.
        message: of the error, and what else there is to be said.
    """

    path: str
    result: str
    keys: int = 0
    columns: tuple[str, ...] = ()
    whole: bool = False
    master_key_id: str | None = None
    message: str = ""

    @property
    def failed(self) -> bool:
        """Whether what is meant is readable as before, or in part, against the caller's will."""
        return self.result not in ("shredded", "current", "skipped", "destroyed", "disabled")

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return {
            "file": self.path,
            "result": self.result,
            "keys": self.keys,
            "columns": list(self.columns),
            "whole": self.whole,
            "master_key_id": self.master_key_id,
            "message": self.message,
        }


def shred_keys(
    where: Any,
    tools: KeyTools | None = None,
    *,
    columns: Iterable[str] = (),
    master_keys: Iterable[str] = (),
    everything: bool = False,
    destroy_master_keys: bool = False,
    filesystem: Any = None,
    decryption: FileDecryptionProperties | None = None,
    dry_run: bool = False,
    record: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    progress: Callable[[ShreddedFile, int], object] | None = None,
) -> list[ShreddedFile]:
    """Remove the wrapped keys of columns, of master keys or of whole files: nothing undoes it.

    A file that fails is as it was, and the others go on. `prove_shredded` looks afterwards at what
    can still be read.

    Args:
        where: path or URL of a file or a folder, or a list of files. Files behind symbolic links
            in a folder fail, and stay as they are: name what the links lead to.
        tools: what opens footers: needed to shred columns alone, and to look for the keys of
            columns in sealed footers that stay readable.
        columns: dotted names of columns, or of groups for all within; a column under the footer key
            can't be shredded alone.
        master_keys: ids: every key that they have wrapped is removed, and each that is wrapped by a
            KEK which they have wrapped.
        everything: remove all keys. Exactly one of these three is given.
        destroy_master_keys: in the end, and if no file has failed, have the key service destroy the
            master keys, or disable them where it can do no more. Whatever else they have wrapped
            is lost, too.
        filesystem: of pyarrow or fsspec, in which `where` is.
        decryption: for files whose AAD prefix is not stored, or whose footer key is known; by
            default `tools.decryption()`.
        dry_run: only say what would be done, and write nothing.
        record: a file that gets a line of JSON for each finished file. Files that a run like this
            has done, and which are still as it left them, are skipped.
        threads: files at once, 4 by default.
        progress: called, in the calling thread, with each file's result and the number of files.

    Returns:
        What became of each file, in the order of their paths, then of each master key.

    Raises:
        FileNotFoundError: `where` is not there.
        ValueError, TypeError: arguments of a wrong kind.
        OSError: the record can't be read or written.
    """
    wanted = criteria_of(columns, master_keys, everything)
    decryption = reading(tools, decryption)
    if destroy_master_keys and (tools is None or not wanted.master_keys):
        raise ValueError("destroy_master_keys needs master_keys, and the tools of their service")
    places = files_but(record, where, filesystem)
    shredding = _Shredding(tools, wanted, decryption, dry_run)
    with ExitStack() as stack:
        ledger = None
        if record is not None:
            run = {"what": "shred", **wanted.fields()}
            ledger = RunRecord(record, run, lambda told: True, write=not dry_run)
            stack.enter_context(ledger)
        done = each_file(
            places,
            lambda place: shredding.run(place, ledger),
            name="modcrypt-shredding",
            threads=threads,
            progress=progress,
        )
        if ledger is not None and not any(file.failed for file in done):
            ledger.end()
    if destroy_master_keys and tools is not None:
        failed = sum(file.failed for file in done)
        done += [_ended(tools, one, failed, dry_run) for one in wanted.master_keys]
    if tools is not None and not dry_run:
        tools.wrapper.forget()  # or these tools would go on opening what others can't
    return done


def reading(
    tools: KeyTools | None, decryption: FileDecryptionProperties | None
) -> FileDecryptionProperties | None:
    """Give what opens footers; None for nothing.

    Raises:
        TypeError: arguments of a wrong kind.
    """
    if not isinstance(tools, KeyTools | None):
        raise TypeError(f"tools are KeyTools, not {type(tools).__name__}")
    if decryption is not None:
        check_decryption(decryption)
        return decryption
    return None if tools is None else tools.decryption(algorithms=ALGORITHMS)  # no page is opened


# --- what is where -------------------------------------------------------------------------------


def is_ags1(source: Source) -> bool:
    """Tell an AGS1 stream, whose key lies in key metadata that is kept elsewhere."""
    return source.read_at(0, min(4, source.size)) == b"AGS1"


def stores_of(place: Place) -> tuple[Place, Place]:
    """Give the places of a file's external key material, and of what is to replace it."""
    store = store_of(place_with_store(place))
    return store, store.beside(_TEMPORARY + store.name)


def entries_of(store: Place) -> dict[str, str] | None:
    """Read external key material; None where there is none.

    Raises:
        KeyMaterialError: it is damaged.
        OSError: it can't be read.
    """
    try:
        with store.open() as source:
            if source.size > MAX_STORE:
                raise KeyMaterialError(f"more than {MAX_STORE} bytes are no key material")
            return decode_store(source.read_at(0, source.size))
    except KeyMaterialError as error:
        error.args = (f"{store.path}: {error}",)
        raise
    except OSError as error:
        # Where a name can be no longer, there can be no key material with that name.
        if isinstance(error, FileNotFoundError) or error.errno == errno.ENAMETOOLONG:
            return None
        raise


# --- one run -------------------------------------------------------------------------------------


class _Shredding:
    """One call of `shred_keys`."""

    def __init__(
        self,
        tools: KeyTools | None,
        wanted: Criteria,
        decryption: FileDecryptionProperties | None,
        dry_run: bool,
    ) -> None:
        self._wanted, self._decryption, self._dry_run = wanted, decryption, dry_run
        self._audit = None if tools is None else tools.wrapper.audit

    def run(self, place: Place, ledger: RunRecord | None) -> ShreddedFile:
        """Shred one file; what goes wrong is a result."""
        if ledger is not None:
            stamps = stamps_of(place)
            known = None if stamps[0] is None else ledger.told(place.full_name, stamps)
            if known is not None:
                names = known.get("columns")
                columns = tuple(map(str, names)) if isinstance(names, list) else ()
                return ShreddedFile(path=place.path, result="skipped", columns=columns)
        try:
            file = self._file(place)
        except Exception as error:
            word, message = told(error)
            return ShreddedFile(path=place.path, result=word, message=message)
        if ledger is not None and not file.failed:
            columns_there = list(file.columns)
            ledger.note(
                place.full_name, stamps_of(place),
                result=file.result, keys=file.keys, columns=columns_there,
            )  # fmt: skip
        return file

    def _file(self, place: Place) -> ShreddedFile:
        place.check_writable()
        with place.open() as source:
            if is_ags1(source):
                note = "an AGS1 stream: its key lies in key metadata that is kept elsewhere"
                return ShreddedFile(path=place.path, result="current", message=note)
            if begins_sealed(source):
                return self._key_metadata(place, source)
            seen = self._look(source)
            if not seen.encrypted:
                return self._plaintext(place, seen)
            chosen = choose(self._wanted, seen)
            tail = self._tail(source, seen, chosen)
            links = self._links(place)
            removed = self._beside(place, source, chosen)
            if tail is not None and not self._dry_run:
                start, data = tail
                with place.create(check=lambda: place.check_still(source)) as sink:
                    copy_range(source, sink, 0, start)
                    sink.append(data)
            elif not removed:  # or keys of another version than that would have been looked for
                place.check_still(source)
        self._note_uses(place, chosen, removed)
        keys = len(chosen.within) + len(set(removed.values()))
        if keys and links:
            chosen.notes.append(
                "it has other names (hard links), which keep its keys until they are shredded, too"
            )
        return self._result(place, seen, chosen, keys, self._whole(seen, chosen, removed))

    def _result(
        self, place: Place, seen: KeyUses, chosen: Chosen, keys: int, whole: bool
    ) -> ShreddedFile:
        result = "shredded" if keys else "current"
        if chosen.elsewhere and not whole:
            result = "elsewhere"
            names = ", ".join(dict.fromkeys(chosen.elsewhere))
            chosen.notes.append(
                f"{names}: the key metadata is none of the key tools': the key is kept elsewhere, "
                "and must be destroyed there"
            )
        if chosen.bare:
            result = "plaintext"
            chosen.notes.append(f"in plaintext, and readable by all: {', '.join(chosen.bare)}")
        if whole and not self._wanted.everything:
            chosen.notes.append("with the footer key goes the whole file")
        if result == "current" and seen.shredded and seen.columns is None:
            chosen.notes.append("its footer key is gone: nothing in the file can be read")
        never_there = not seen.footer and not seen.shredded
        if result == "current" and never_there and not self._wanted.master_keys:
            result = "elsewhere"
            chosen.notes.append(
                "there is no key metadata: the keys are kept elsewhere, and must be destroyed there"
            )
        return ShreddedFile(
            path=place.path, result=result, keys=keys, columns=tuple(chosen.columns), whole=whole,
            message="; ".join(chosen.notes),
        )  # fmt: skip

    def _whole(self, seen: KeyUses, chosen: Chosen, removed: Mapping[str, str]) -> bool:
        """Tell whether nothing can be read of a file any more."""
        footer = material_of(seen.footer)
        if isinstance(footer, KeyReference):
            names = {footer.name, f"{footer.name}-{footer.write}"}
            gone = not names.isdisjoint(removed) or (self._wanted.everything and bool(removed))
        else:
            gone = seen.footer in chosen.within
        return seen.sealed and gone and not chosen.bare

    def _plaintext(self, place: Place, seen: KeyUses) -> ShreddedFile:
        """Say that a plaintext file has no keys: the data that is meant is readable by all."""
        if self._wanted.master_keys:
            note = "a plaintext file, under no master key"
            return ShreddedFile(path=place.path, result="current", message=note)
        names = [column.name for column in self._wanted.columns_of(seen)]
        if self._wanted.columns and not names:
            note = f"it has no column {', '.join(self._wanted.columns)}"
            return ShreddedFile(path=place.path, result="current", message=note)
        return ShreddedFile(
            path=place.path, result="plaintext", columns=tuple(names),
            message="a plaintext file has no keys to be shredded: mask or remove it",
        )  # fmt: skip

    # --- which keys ------------------------------------------------------------------------------

    def _look(self, source: Source) -> KeyUses:
        """Tell which keys a file needs; its footer is opened where that says more."""
        seen = key_uses(source)
        if not seen.encrypted or self._decryption is None:
            return seen
        footer = material_of(seen.footer)
        tells = seen.columns is not None or isinstance(footer, KeyReference)
        if tells and self._wanted.master_keys:
            return seen  # external key material says by itself what it is under
        try:
            return key_uses(source, self._decryption)
        except KmsUnavailableError:
            raise  # what a sealed footer holds is to be removed, too, when it is there again
        except (KeyRetrievalError, IntegrityError):
            covered = isinstance(footer, KeyMaterial) and self._wanted.covers(footer)
            elsewhere = footer is None and not self._wanted.columns
            if covered or elsewhere or self._wanted.everything or not seen.footer:
                return seen  # whatever a sealed footer holds is lost or kept with its key
            raise

    # --- internal key material -------------------------------------------------------------------

    def _tail(self, source: Source, seen: KeyUses, chosen: Chosen) -> tuple[int, bytes] | None:
        """Give the footer that takes the place of the old one; None where none does.

        Raises:
            KeyRetrievalError, IntegrityError: it can't be sealed or signed anew, and must be.
        """
        if not chosen.within:
            return None

        def change(metadata: bytes, column: str | None) -> bytes | None:
            if metadata not in chosen.within:
                return metadata
            return SHREDDED if column is None else None

        # Whoever could check a signature is about to be gone, or is gone.
        forgotten = self._wanted.everything or not seen.footer or seen.footer in chosen.within
        if self._decryption is not None:
            try:
                return new_tail(source, self._decryption, change)
            except (KeyRetrievalError, IntegrityError):
                if not forgotten:
                    raise
        elif not forgotten:
            raise KeyNotFoundError(
                "the footer must be sealed or signed anew: a key service that has its key is needed"
            )
        if not seen.sealed:
            chosen.notes.append("the footer's signature fits no more")
        return unsigned_tail(source, change)

    def _links(self, place: Place) -> bool:
        """Tell whether a local file has other names, by which it stays as it is."""
        if place.filesystem is not None:
            return False
        return os.stat(place.path).st_nlink > 1

    # --- external key material -------------------------------------------------------------------

    def _beside(self, place: Place, source: Source, chosen: Chosen) -> dict[str, str]:
        """Remove external key material; give what was removed."""
        if self._wanted.columns and not chosen.references:
            return {}
        removed: dict[str, str] = {}
        for store in reversed(stores_of(place)):
            removed |= self._from_store(place, store, source, chosen)
        return removed

    def _from_store(
        self, place: Place, store: Place, source: Source, chosen: Chosen
    ) -> dict[str, str]:
        for _ in range(_ATTEMPTS):
            old = self._entries(store)
            if old is None:
                return {}
            try:
                new = left_of(old, self._wanted, chosen)
            except KeyMaterialError as error:
                error.args = (f"{store.path}: {error}",)
                raise
            removed = {name: text for name, text in old.items() if text not in new.values()}
            if not removed or self._dry_run:
                return removed
            with store.locked():
                if self._entries(store) != old:
                    continue  # by somebody else: perhaps a rotation
                place.check_still(source)
                if new:
                    with store.create() as sink:
                        sink.append(encode_store(new))
                else:
                    store.remove()
            return removed
        raise OSError(errno.ESTALE, "the key material is changed by somebody else", store.path)

    def _entries(self, store: Place) -> dict[str, str] | None:
        try:
            return entries_of(store)
        except KeyMaterialError:
            if not self._wanted.everything:
                raise
            return {"": ""}  # whatever it was, it goes

    # --- the rest --------------------------------------------------------------------------------

    def _key_metadata(self, place: Place, source: Source) -> ShreddedFile:
        """Shred the sealed key metadata of an AGS1 stream."""
        data = source.read_at(0, source.size)
        if data == SHREDDED or self._wanted.columns:
            note = "key metadata of an AGS1 stream has no columns" if self._wanted.columns else ""
            return ShreddedFile(path=place.path, result="current", message=note)
        try:
            material = kek_of(data)
        except KeyMaterialError:
            if not self._wanted.everything:
                raise
            material = None
        if material is not None and not self._wanted.covers(material):
            return ShreddedFile(path=place.path, result="current")
        links = self._links(place)
        if not self._dry_run:
            with place.create(check=lambda: place.check_still(source)) as sink:
                sink.append(SHREDDED)
            if material is not None:
                self._record(place, material, ())
        note = "it has other names (hard links), which keep its key" if links else ""
        return ShreddedFile(path=place.path, result="shredded", keys=1, whole=True, message=note)

    def _note_uses(self, place: Place, chosen: Chosen, removed: Mapping[str, str]) -> None:
        """Record what was removed."""
        if self._dry_run:
            return
        for metadata, material in chosen.within.items():
            self._record(place, material, tuple(sorted(chosen.owners.get(metadata, ()))))
        for name, text in removed.items():
            with suppress(KeyMaterialError):
                columns = () if name.startswith(FOOTER_KEY) else (name,)
                self._record(place, decode_material(text), columns)

    def _record(self, place: Place, material: KeyMaterial, columns: tuple[str, ...]) -> None:
        if self._audit is not None:
            kek_id = None if material.kek_id is None else material.kek_id.hex()
            self._audit(
                AuditEvent(
                    operation="shred",
                    by="file",
                    master_key_id=material.master_key_id,
                    kek_id=kek_id,
                    file=place.full_name,
                    columns=columns,
                )
            )


# --- master keys ---------------------------------------------------------------------------------


def _ended(tools: KeyTools, master_key_id: str, failed: int, dry_run: bool) -> ShreddedFile:
    """Have the key service destroy a master key, or do what comes closest."""
    word, message = "kept", "modcrypt can't destroy keys of this key service: use its own tools"
    if failed:
        message = f"{failed} files have failed, and may need the master key"
    else:
        for result, method, more in _ENDS:
            end = getattr(tools.client, method, None)
            if end is not None:
                word, message = result, more
                if not dry_run:
                    word, message = _end(tools, master_key_id, end, result, more)
                break
    return ShreddedFile(
        path=repr(tools.client), result=word, master_key_id=master_key_id, message=message
    )


def _end(
    tools: KeyTools, master_key_id: str, end: Callable[[str], object], word: str, message: str
) -> tuple[str, str]:
    """Do it; what fails is a result."""
    result = word
    try:
        end(master_key_id)
    except KeyNotFoundError:
        result, message = "current", "the key service has no such master key"
    except ModcryptError as error:
        result, message = error.word, str(error)
    if tools.wrapper.audit is not None:
        outcome = "ok" if result == word else result
        tools.wrapper.audit(
            AuditEvent(operation="shred", by="kms", master_key_id=master_key_id, result=outcome)
        )
    return result, message


_ENDS = (
    (
        "destroyed",
        "destroy_key",
        "some services keep a destroyed key for a while: AWS KMS for 7 days, in which the deletion "
        "can be cancelled; and backups of a service may have it",
    ),
    ("disabled", "disable_key", "the key service destroys none; it can be enabled again"),
)
