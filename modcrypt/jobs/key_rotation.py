"""Keys of files that are there already, wrapped anew: `rotate_keys`.

    mek   what master keys have wrapped is wrapped under their newest versions, or other master
          keys: the KEK in double wrapping, the data key in single wrapping
    kek   data keys are wrapped under fresh KEKs
    dek   pages are opened and sealed again with fresh data keys under the same master keys

The first two leave data keys and pages. External key material is replaced as a whole; internal key
material by a new footer on a copy of the file, which takes the file's place. So a file is readable
at every moment, with old or new material, and whatever kills the process. Old material of which
somebody has a copy stays good for as long as the old version of the master key unwraps.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from modcrypt.errors import (
    KeyMaterialError,
    KeyRetrievalError,
    KmsUnavailableError,
    PlaintextError,
)
from modcrypt.fork_safety import fork_safe
from modcrypt.io.storage import Place, Source, copy_range
from modcrypt.jobs.file_runs import each_file, files_but, told
from modcrypt.jobs.run_record import Record
from modcrypt.kms import client as kms
from modcrypt.kms.key_tools import KeyedEncryption, KeyTools, expect_also, file_event
from modcrypt.kms.policy import Policy
from modcrypt.kms.wrapped_key_metadata import begins_sealed, kek_of, with_kek
from modcrypt.parquet.crypto.footer_keys import FooterKey, layout_of, list_key_metadata, new_tail
from modcrypt.parquet.crypto.properties import (
    ALGORITHMS,
    FileDecryptionProperties,
    check_decryption,
)
from modcrypt.parquet.rewrite.rekey import rekey_in_place
from modcrypt.pkmt1.external import (
    FOOTER_KEY,
    find_in,
    place_with_store,
    read_store,
    settled,
    store_of,
    write_store,
)
from modcrypt.pkmt1.material import (
    SHREDDED,
    WRITE,
    KeyMaterial,
    KeyReference,
    check_id,
    decode_material,
    decode_metadata,
)

__all__ = ["RotatedFile", "rotate_keys"]

What: TypeAlias = Literal["mek", "kek", "dek"]

_ATTEMPTS = 3  # at key material that somebody else changes, too


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedFile:
    """What became of one file.

    Attributes:
        path: of the file.
        result: `"rotated"`; `"current"`, nothing was to be done; `"plaintext"`; `"skipped"`, an
            earlier run that was recorded did it; or the word of an error.
        keys: how many were wrapped anew.
        message: of the error.
    """

    path: str
    result: str
    keys: int = 0
    message: str = ""

    @property
    def failed(self) -> bool:
        """Whether the file is as it was, against the caller's will."""
        return self.result not in ("rotated", "current", "plaintext", "skipped")


def rotate_keys(
    where: Any,
    tools: KeyTools,
    *,
    what: What = "mek",
    new_master_keys: Mapping[str, str] | None = None,
    filesystem: Any = None,
    decryption: FileDecryptionProperties | None = None,
    record: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Callable[[RotatedFile, int], object] | None = None,
) -> list[RotatedFile]:
    """Wrap the keys of a file, or of all files in folders, anew; or give the files fresh keys.

    Files whose keys are wrapped under the newest version already are left alone, where the key
    service can tell. One that fails is as it was, and the others go on.

    Args:
        where: path or URL of a file or a folder, or a list of files. Files behind symbolic links
            in a folder fail, and stay as they are: name what the links lead to.
        tools: what unwraps the old material and wraps the new.
        what: `"mek"` wraps anew what master keys have wrapped; `"kek"` wraps data keys under fresh
            KEKs; both leave all pages. `"dek"` opens every page and seals it again, under fresh
            data keys, with the same algorithm, footer mode and AAD prefix.
        new_master_keys: ids of master keys to those that are to take their place. Keys under both
            are expected, whatever the policy of `decryption` names.
        filesystem: of pyarrow or fsspec, in which `where` is.
        decryption: for files whose AAD prefix is not stored; by default `tools.decryption()`.
        record: a file that gets a line of JSON for each finished file. A run that did not come to
            its end is taken up: files that it has done, and which are still as it left them, are
            skipped. After its end, files are skipped whose keys are still the newest.
        dry_run: only say what would be done, and write nothing. A key is only asked for where a
            sealed footer hides those of columns.
        threads: files at once, 4 by default; more pay where each request of a store takes long.
        progress: called, in the calling thread, with each file's result and the number of files.

    Returns:
        What became of each file, in the order of their paths.

    Raises:
        FileNotFoundError: `where` is not there.
        ValueError, TypeError: arguments of a wrong kind.
        OSError: the record can't be read or written.
    """
    if what not in ("mek", "kek", "dek"):
        raise ValueError('what is to be rotated is "mek", "kek" or "dek"')
    if not isinstance(tools, KeyTools):
        raise TypeError(f"tools are KeyTools, not {type(tools).__name__}")
    if decryption is not None:
        check_decryption(decryption)
    if not isinstance(new_master_keys, Mapping | None):
        raise TypeError("new_master_keys maps ids of master keys to others")
    for new_id in (new_master_keys or {}).values():
        check_id(new_id)
    places = files_but(record, where, filesystem)
    tools.wrapper.forget()  # so that fresh KEKs wrap, and the newest versions of master keys
    rotation = _Rotation(tools, what, dict(new_master_keys or {}), decryption, dry_run)
    with ExitStack() as stack:
        ledger = None
        if record is not None:
            ledger = Record(
                record, what, rotation.new_master_keys, rotation.is_done, write=not dry_run
            )
            stack.enter_context(ledger)
        done = each_file(
            places,
            lambda place: rotation.run(place, ledger),
            name="modcrypt-rotation",
            threads=threads,
            progress=progress,
        )
        if ledger is not None and not any(file.failed for file in done):
            ledger.end()
    return done


class _Rotation:
    """One call of `rotate_keys`."""

    def __init__(
        self,
        tools: KeyTools,
        what: What,
        new_master_keys: dict[str, str],
        decryption: FileDecryptionProperties | None,
        dry_run: bool,
    ) -> None:
        self.what, self.new_master_keys = what, new_master_keys
        self._tools, self._dry_run = tools, dry_run
        if decryption is None:
            # Where no page is opened, what it was sealed with makes no difference.
            decryption = tools.decryption(
                algorithms=ALGORITHMS[:1] if what == "dek" else ALGORITHMS
            )
        # Who says OLD=NEW expects both: files that an earlier run has rotated are under NEW.
        renamed = {*new_master_keys, *new_master_keys.values()}
        self._decryption, expected = expect_also(decryption, renamed)
        self._expected = expected or tools.expected_keys().also(renamed)
        # Master key id and wrapped key to the new one, or to why there is none.
        self._answers: dict[tuple[str, str], str | KeyRetrievalError] = {}
        self._current: dict[tuple[str, str], bool | None] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._guard = fork_safe(threading.Lock())

    def run(self, place: Place, ledger: Record | None) -> RotatedFile:
        """Rotate one file; what goes wrong is a result."""
        if ledger is not None and ledger.has(place):
            return RotatedFile(path=place.path, result="skipped")
        under: set[tuple[str, str]] = set()  # master key ids, and what they have wrapped
        try:
            keys = self._file(place, under)
            file = RotatedFile(path=place.path, result="rotated" if keys else "current", keys=keys)
        except PlaintextError:
            return RotatedFile(path=place.path, result="plaintext")
        except Exception as error:
            word, message = told(error)
            return RotatedFile(path=place.path, result=word, message=message)
        if ledger is not None:
            ledger.add(place, file.result, file.keys, under)
        return file

    def is_done(self, told: dict[str, Any]) -> bool:
        """Tell whether what a record says of a file is all that is to be done with it.

        Of a run that is taken up it is, unless a key is known to be under an older version by now.
        Of one that has ended, only for mek, and where all are known to be under the newest.
        """
        ended = "ended" in told
        answers = [self._newest(master, wrapped) for master, wrapped in told["under"]]
        if ended:
            return self.what == "mek" and bool(answers) and all(answers)
        return False not in answers

    def _file(self, place: Place, under: set[tuple[str, str]]) -> int:
        """Rotate one file; give how many keys were wrapped anew."""
        place.check_writable()
        with place.open() as source:
            if begins_sealed(source):
                return self._key_metadata(place, source, under)
            keys, hidden = list_key_metadata(source)
            footer = keys[0]
            if footer.metadata == SHREDDED:
                return 0
            if not footer.metadata:
                raise KeyMaterialError(f"{place.path}: the footer key has no key metadata")
            if self.what == "dek":
                return self._fresh_keys(place, source)
            found = decode_metadata(footer.metadata)
            if isinstance(found, KeyMaterial):
                if self._dry_run and not hidden:  # all there is to see is in the clear
                    materials = {
                        key.metadata: self._found(place, key) for key in keys if key.metadata
                    }
                    return sum(map(self._would_change, materials.values()))
                return self._internal(place, source, under)
        return self._external(place, found, under)

    # --- where the material is -------------------------------------------------------------------

    def _external(self, place: Place, footer: KeyReference, under: set[tuple[str, str]]) -> int:
        place = place_with_store(place)
        for _ in range(_ATTEMPTS):
            store = store_of(place)
            stamp, old = store.stamp(), read_store(place)
            find_in(old, footer)  # or it is another file's
            if self._dry_run:
                return sum(
                    self._would_change(self._expect(decode_material(text), place))
                    for text in {*old.values()}
                )
            new = {name: self._new_text(place, name, text, under) for name, text in old.items()}
            settled_new = settled(new, footer.write)
            if settled_new == old:
                return 0
            with place.locked():
                changed = store.filesystem is not None or store.stamp() != stamp
                if changed and read_store(place) != old:
                    continue  # by somebody else: perhaps another rotation
                write_store(place, settled_new)
            names = [name for name, text in old.items() if new[name] != text]
            for name in names:
                self._record(
                    place, None if name == FOOTER_KEY else name, decode_material(new[name])
                )
            return len({old[name] for name in names})
        raise OSError(errno.ESTALE, "the key material is changed by somebody else", store.path)

    def _key_metadata(self, place: Place, source: Source, under: set[tuple[str, str]]) -> int:
        """Rotate the sealed key metadata of an AGS1 stream."""
        material = kek_of(source.read_at(0, source.size))
        self._expected.check(material, None, place.path)
        if self.what != "mek" or self._dry_run:
            return int(self.what == "mek" and self._would_change(material))
        rotated = self._rotated(material, under)
        if rotated == material:
            return 0
        with place.create(check=lambda: place.check_still(source)) as sink:
            sink.append(with_kek(rotated))
        self._record(place, None, rotated)
        return 1

    def _new_text(self, place: Place, name: str, text: str, under: set[tuple[str, str]]) -> str:
        material = self._expect(decode_material(text), place)
        # What other implementations' rotation takes for a column key, while a file is replaced.
        is_footer_key = material.is_footer_key or name.startswith(FOOTER_KEY)
        rotated = self._rotated(material, under)
        if rotated.is_footer_key != is_footer_key:
            rotated = replace(rotated, is_footer_key=is_footer_key)
        return text if rotated == material else _readable(rotated)

    def _internal(self, place: Place, source: Source, under: set[tuple[str, str]]) -> int:
        changed: set[bytes] = set()
        rewrapped: list[tuple[str | None, KeyMaterial]] = []

        def change(metadata: bytes, column: str | None) -> bytes:
            material = decode_metadata(metadata)
            if not isinstance(material, KeyMaterial):
                raise KeyMaterialError(f"{place.path}: key material both within and beside it")
            self._expect(material, place)
            if self._dry_run:
                changed.update({metadata} if self._would_change(material) else ())
                return metadata
            rotated = self._rotated(material, under)
            if rotated == material:
                return metadata
            changed.add(metadata)
            rewrapped.append((column, rotated))
            return _readable(rotated).encode()

        tail = new_tail(source, self._decryption, change)
        if tail is None:
            return len(changed)
        start, data = tail
        with place.create(check=lambda: place.check_still(source)) as sink:
            copy_range(source, sink, 0, start)
            sink.append(data)
        for column, material in rewrapped:
            self._record(place, column, material)
        return len(changed)

    def _record(self, place: Place, column: str | None, material: KeyMaterial) -> None:
        if self._tools.wrapper.audit is not None:
            event = file_event("rewrap", material, place.full_name, column, "ok")
            self._tools.wrapper.audit(event)

    # --- fresh data keys -------------------------------------------------------------------------

    def _fresh_keys(self, place: Place, source: Source) -> int:
        if self._dry_run:
            return len(list_key_metadata(source)[0])
        policy, prefix = self._like(place, source)
        encryption = KeyedEncryption(self._tools, policy, prefix)
        rekey_in_place(source, place, self._decryption, encryption)
        return 1 + len(policy.key_of_column)

    def _like(self, place: Place, source: Source) -> tuple[Policy, bytes | None]:
        """Say how the file is encrypted, and its AAD prefix, by its authenticated footer."""
        layout = layout_of(source, self._decryption)
        materials = {key.column: self._found(place, key) for key in layout.keys}
        footer = materials.pop(None)
        columns: dict[str, list[str]] = {}
        for column, material in materials.items():
            columns.setdefault(self._new_id(material), []).append(str(column))
        kek = self._tools.wrapper.reading_kek(footer) if footer.double_wrapping else None
        policy = Policy(
            footer_key=self._new_id(footer),
            column_keys=columns,
            plaintext_columns=layout.plaintext_columns,
            encryption_algorithm=layout.algorithm,
            plaintext_footer=layout.plaintext_footer,
            store_aad_prefix=layout.store_aad_prefix,
            double_wrapping=footer.double_wrapping,
            internal_key_material=footer.internal,
            data_key_length_bits=8 * layout.key_length,
            kek_length_bits=128 if kek is None else 8 * kek.length,
        )
        return policy, layout.aad_prefix

    def _found(self, place: Place, key: FooterKey) -> KeyMaterial:
        if not key.metadata:
            raise KeyMaterialError(f"{place.path}: column {key.column} has no key metadata")
        found = decode_metadata(key.metadata)
        if not isinstance(found, KeyMaterial):
            found = find_in(read_store(place), found)
        return self._expect(found, place)

    def _expect(self, material: KeyMaterial, place: Place) -> KeyMaterial:
        """Return key material whose master key is expected, before the key service is asked.

        Which column needs it stays for readers to judge: a key keeps its master key, unless the
        caller names another one for all keys under it.
        """
        self._expected.check_any(material, place.path)
        return material

    def _new_id(self, material: KeyMaterial) -> str:
        return self.new_master_keys.get(material.master_key_id, material.master_key_id)

    # --- one key ---------------------------------------------------------------------------------

    def _would_change(self, material: KeyMaterial) -> bool:
        if self.what == "dek" or (self.what == "kek" and material.double_wrapping):
            return True
        return not self._is_current(material)

    def _is_current(self, material: KeyMaterial) -> bool:
        master = material.master_key_id
        if self._new_id(material) != master:
            return False
        return self._newest(master, material.master_wrapped) is True

    def _newest(self, master_key_id: str, wrapped: str) -> bool | None:
        question = master_key_id, wrapped
        if question not in self._current:
            self._current[question] = kms.is_current(self._tools.client, wrapped, master_key_id)
        return self._current[question]

    def _rotated(self, material: KeyMaterial, under: set[tuple[str, str]]) -> KeyMaterial:
        """Give the same data key's material, wrapped anew; note in `under` what it is under."""
        rotated = self._rewrapped(material)
        under.add((rotated.master_key_id, rotated.master_wrapped))
        return rotated

    def _rewrapped(self, material: KeyMaterial) -> KeyMaterial:
        new_id = self._new_id(material)
        wrapper = self._tools.wrapper
        if self.what == "kek" and material.double_wrapping:
            kek = wrapper.writing_kek(new_id, wrapper.reading_kek(material).length)
            return replace(
                material,
                master_key_id=new_id,
                wrapped_dek=kek.wrap(wrapper.unwrap(material)),
                kek_id=kek.id,
                wrapped_kek=kek.wrapped,
            )
        return material.with_master_wrapped(self._answer(material, new_id), new_id)

    def _answer(self, material: KeyMaterial, new_id: str) -> str:
        """Wrap anew what the master key has wrapped; a KEK of many files is asked for once."""
        question = material.master_key_id, material.master_wrapped
        with self._guard:
            lock = self._locks.setdefault(question, fork_safe(threading.Lock()))
        with lock:
            if question not in self._answers:
                try:
                    self._answers[question] = self._asked(material, new_id)
                except KmsUnavailableError:
                    raise  # it may be there again for the next file
                except KeyRetrievalError as error:  # not to be asked for ten thousand times
                    self._answers[question] = error
            answer = self._answers[question]
        if isinstance(answer, KeyRetrievalError):
            raise type(answer)(str(answer))
        return answer

    def _asked(self, material: KeyMaterial, new_id: str) -> str:
        if self._is_current(material):
            return material.master_wrapped
        wrapper = self._tools.wrapper
        if new_id == material.master_key_id:
            return wrapper.rewrap(material.master_wrapped, new_id)
        return wrapper.move(material.master_wrapped, material.master_key_id, new_id)


def _readable(material: KeyMaterial) -> str:
    """Spell key material, and see that it can be read again: what it replaces will be gone.

    Raises:
        KeyMaterialError: it can't.
    """
    text = material.encode()
    if material.others.keys() <= {WRITE}:  # the rest was checked when it was read
        return text
    again = decode_metadata(text.encode()) if material.internal else decode_material(text)
    if again != material:
        raise KeyMaterialError("the key material would not be read again as it was")
    return text
