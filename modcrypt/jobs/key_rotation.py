"""Key rotation for existing files: `rotate_keys`.

    mek   rewrap what master keys have wrapped under their newest versions, or under other master
          keys: the KEK in double wrapping, the data key in single wrapping
    kek   wrap data keys under fresh KEKs
    dek   decrypt pages and encrypt them with fresh data keys under the same master keys

Each can also change the wrapping: from single to double, so that fewer requests open many files, or
back. That wraps data keys anew, so it needs a request for each data key in single wrapping.

`mek` and `kek` do not change data keys or pages. modcrypt replaces external key material as a
whole, and internal key material by writing a copy of the file with a new footer over the file. A
file is therefore readable at every moment, with old or new material, even if the process is killed.
A copy of the old material stays usable for as long as the old version of the master key unwraps.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from modcrypt.errors import KeyMaterialError, PlaintextError
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.jobs.data_key_rotation import replace_data_keys
from modcrypt.jobs.engine import FileResult
from modcrypt.jobs.file_changes import replace_file, update_store
from modcrypt.jobs.key_rewrapping import KeyRewrapping, What
from modcrypt.jobs.run_record import Record, list_files_except, rotation_fields, run_recorded
from modcrypt.keys import hide_keys
from modcrypt.kms.audit import record_key
from modcrypt.kms.file_keys import expect_also
from modcrypt.kms.key_tools import KeyTools, check_tools
from modcrypt.kms.proof import Prove, WrapProof
from modcrypt.kms.signing.signing_keys import SigningKey
from modcrypt.kms.wrapped_key_metadata import (
    encode_wrapped_metadata,
    holds_encrypted_metadata,
    parse_wrapped_metadata,
)
from modcrypt.module_ids import ALGORITHMS
from modcrypt.parquet.crypto.footer_keys import list_key_metadata, new_tail, refuse_lost_signature
from modcrypt.parquet.crypto.properties import (
    AnyDecryption,
    FileDecryptionProperties,
    as_decryption,
    properties_of_file,
)
from modcrypt.pkmt1.external import (
    FOOTER_KEY,
    find_material,
    place_with_store,
    read_store,
    settle_keys,
    store_of,
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
from modcrypt.runtime.former_names import accept_former_names


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedFile(FileResult):
    """The result of key rotation for one file.

    Attributes:
        path: Path of the file.
        result: `"rotated"`; `"current"`, nothing to do, or the record lists the file as done;
            `"plaintext"`, the file is not encrypted; or an error code. The error code may also be
            `"plaintext"`, if a column that must be encrypted is not.
        keys: Number of keys that were rewrapped.
        message: Message of the error.
        lost_signature: Whether the file was signed by its writer, and no longer is.
        proved: Number of new wraps that the key service unwrapped again for the file, and that
            opened what they should; see `prove`.
    """

    keys: int = 0
    lost_signature: bool = False
    proved: int = 0

    @property
    def failed(self) -> bool:
        """True if an error left the file unchanged."""
        return bool(self.message) or self.result not in ("rotated", "current", "plaintext")


@hide_keys
@accept_former_names(where="source", threads="jobs")
def rotate_keys(
    source: Any,
    tools: KeyTools,
    *,
    what: What = "mek",
    new_master_keys: Mapping[str, str] | None = None,
    double_wrapping: bool | None = None,
    filesystem: Any = None,
    decryption: AnyDecryption | None = None,
    record: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    jobs: int | None = None,
    progress: Callable[[RotatedFile, int], object] | None = None,
    signing_key: SigningKey | None = None,
    prove: Prove | WrapProof = "first",
) -> list[RotatedFile]:
    """Rewrap the keys of a file or of all files in folders, or re-encrypt the files with new keys.

    Files whose keys are already wrapped under the newest version are not changed, if the key
    service can report versions. A file that fails is not changed; the run continues with the
    others.

    Args:
        source: Path or URL of a file or a folder, or a list of files. Files behind symbolic links
            in a folder fail and are not changed; pass the targets of the links instead.
        tools: Key tools that unwrap the old material and wrap the new.
        what: `"mek"` rewraps what master keys have wrapped; `"kek"` wraps data keys under fresh
            KEKs; neither changes a page. `"dek"` decrypts every page and encrypts it under fresh
            data keys, with the same algorithm, footer mode and AAD prefix.
        new_master_keys: Mapping of master key ids to the ids that replace them. Keys under both
            are expected, whatever the policy of `decryption` names.
        double_wrapping: Whether data keys are wrapped under KEKs afterwards, as in `Policy`: True
            changes single wrapping to double, False the reverse. None keeps the wrapping of each
            key. The encrypted key metadata of AGS1 streams keeps its form.
        filesystem: The pyarrow or fsspec filesystem of `source`.
        decryption: Decryption properties for files that do not store their AAD prefix; by default
            `tools.decryption()`.
        record: Path of a file that receives a line of JSON for each finished file. An interrupted
            run resumes: files that it finished, and that have not changed since, are `"current"`.
            After a complete run, only files whose keys are still the newest are.
        dry_run: Whether to only report what would be done, and write nothing. Requests a key only
            if an encrypted footer hides the keys of columns.
        jobs: Number of files processed concurrently, 4 by default; use more if requests to a
            store are slow.
        progress: Function called in the calling thread with each file's result and the number of
            files.
        signing_key: Key that signed the files, which signs those again whose signature would else
            be dropped: `"mek"` and `"kek"` keep it if the file has no column keys and its footer
            is encrypted. A file that this key did not sign fails.
        prove: Which new wraps the key service must unwrap again before a file is replaced: the
            `"first"` under each master key, or `"all"`. A `WrapProof` states afterwards how many
            were, and several runs may share one.

    Returns:
        The result of each file, in the order of their paths.

    Raises:
        FileNotFoundError: `source` does not exist.
        ValueError, TypeError: An argument has a wrong value or type.
        OSError: The record can't be read or written.
    """
    renamed = check_rotation(what, new_master_keys, double_wrapping)
    check_tools(tools)
    proof = WrapProof.of(prove)
    places = list_files_except(record, source, filesystem)
    rotation = Rotation(
        tools, what, renamed, decryption, dry_run, signing_key, double_wrapping, proof
    )
    ledger = None
    if record is not None:
        run = rotation_fields(what, rotation.new_master_keys, double_wrapping)
        ledger = Record(record, run, rotation.is_done, write=not dry_run)
    return run_recorded(
        places, rotation.run, RotatedFile, record=ledger, jobs=jobs, progress=progress
    )


def check_rotation(
    what: str, new_master_keys: Mapping[str, str] | None, double_wrapping: bool | None = None
) -> dict[str, str]:
    """Check three arguments of `rotate_keys`; return the second as a dictionary."""
    if what not in ("mek", "kek", "dek"):
        raise ValueError('what must be "mek", "kek" or "dek"')
    if not isinstance(new_master_keys, Mapping | None):
        raise TypeError("new_master_keys must be a mapping of master key ids to new master key ids")
    if not isinstance(double_wrapping, bool | None):
        raise TypeError("double_wrapping must be True, False or None")
    for new_id in (new_master_keys or {}).values():
        check_id(new_id)
    return dict(new_master_keys or {})


class Rotation:
    """The state of one call of `rotate_keys`.

    For each file, in this order, so that a failure at any step leaves the file as it was:

    1. Every master key must be expected, before the key service is asked about it.
    2. All keys are rewrapped, and the data keys among them must open the file.
    3. New key material must decode to what was encoded.
    4. The file, or its store of key material, is replaced as a whole, unless it has changed.
    5. The events are recorded for the audit, and the file in the record of the run.
    """

    def __init__(
        self, tools: KeyTools, what: What, new_master_keys: dict[str, str],
        decryption: AnyDecryption | None, dry_run: bool, signing_key: SigningKey | None,
        double_wrapping: bool | None, proof: WrapProof,
    ) -> None:  # fmt: skip
        self.what, self.new_master_keys = what, new_master_keys
        self.proof = proof
        self._wrapper, self._dry_run = tools.wrapper.with_proof(proof), dry_run
        self._signing_key, self._double_wrapping = signing_key, double_wrapping
        self._lost: set[str] = set()  # paths of files whose signature was dropped
        tools.wrapper.forget()  # so that fresh KEKs and the newest master key versions wrap
        # mek and kek open no page, so any page algorithm is acceptable.
        accepted = ALGORITHMS[:1] if what == "dek" else ALGORITHMS
        given = tools.decryption(accept_algorithms=accepted) if decryption is None else decryption
        # OLD=NEW expects both ids: files that an earlier run has rotated are under NEW.
        self._renamed = {*new_master_keys, *new_master_keys.values()}
        self._expected = tools.expected_keys().also(self._renamed)
        self._expect(as_decryption(given))
        self._rewrapping = KeyRewrapping(self._wrapper, what, new_master_keys, double_wrapping)

    def _expect(self, decryption: FileDecryptionProperties) -> None:
        self._decryption, expected = expect_also(decryption, self._renamed)
        self._expected = expected or self._expected

    def _of_file(self, source: Source) -> Rotation:
        """Return the same rotation with the master keys of a file, if they depend on it."""
        decryption = properties_of_file(self._decryption, source)
        if decryption is self._decryption:
            return self
        rotation = copy.copy(self)
        rotation._expect(decryption)
        return rotation

    def run(self, place: Place) -> tuple[RotatedFile, dict[str, Any] | None]:
        """Rotate one file; return the result, and the fields to record."""
        under: set[tuple[str, str]] = set()  # pairs of master key id and wrapped key
        before = self.proof.proved_here
        if (keys := self._rotate_file(place, under)) is None:
            return RotatedFile(path=place.listed_name, result="plaintext"), None
        file = RotatedFile(
            path=place.listed_name, result="rotated" if keys else "current", keys=keys,
            lost_signature=place.path in self._lost, proved=self.proof.proved_here - before,
        )  # fmt: skip
        return file, {"keys": keys, "under": sorted(under)}

    def is_done(self, entry: dict[str, Any]) -> bool:
        """Return whether a file that the record lists needs no more work.

        After an interrupted run, it needs work only if a key is known to be under an older version
        by now. After a complete run, it needs none only for mek, and only if all keys are known to
        be under the newest version.
        """
        is_complete = "ended" in entry
        answers = [
            self._rewrapping.ask_if_newest(master, wrapped) for master, wrapped in entry["under"]
        ]
        if is_complete:
            return self.what == "mek" and bool(answers) and all(answers)
        return False not in answers

    def _rotate_file(self, place: Place, under: set[tuple[str, str]]) -> int | None:
        """Rotate one file; return the number of rewrapped keys, or None for a plaintext file."""
        place.check_writable()
        with open_source_at(place) as source:
            own = self._of_file(source)
            if holds_encrypted_metadata(source):
                return own._rotate_key_metadata(place, source, under)
            try:
                keys, hidden = list_key_metadata(source)
            except PlaintextError:
                return None
            footer = keys[0]
            if footer.metadata == SHREDDED:
                return 0
            if not footer.metadata:
                raise KeyMaterialError(f"{place.address}: the footer key has no key metadata")
            if own.what == "dek":
                return own._replace_data_keys(place, source, len(keys))
            material = decode_metadata(footer.metadata)
            if isinstance(material, KeyMaterial):
                if own._dry_run and not hidden:  # the key metadata is not encrypted
                    unique = dict.fromkeys(key.metadata for key in keys if key.metadata)
                    materials = [own._decode_internal(place, metadata) for metadata in unique]
                    return sum(map(own._rewrapping.would_change, materials))
                return own._rotate_internal(place, source, under)
        return own._rotate_external(place, source, material, under)

    def _rotate_external(
        self, place: Place, source: Source, footer: KeyReference, under: set[tuple[str, str]]
    ) -> int:
        place = place_with_store(place)
        new: dict[str, str] = {}

        def check() -> None:  # `settle_keys` drops the keys of a file that replaced this one
            place.check_unchanged(source.stamp)

        def change(old: dict[str, str]) -> dict[str, str] | None:
            find_material(old, footer)  # raises if the store belongs to another file
            if self._dry_run:
                return None
            new.clear()
            new.update((name, self._rotate_text(place, name, old[name], under)) for name in old)
            if self._rewrapping.has_unchecked_keys:
                with open_source_at(place) as present:
                    self._rewrapping.check_data_keys(
                        present, self._decryption, lambda metadata: _find_in_store(old, metadata)
                    )
            settled = settle_keys(new, footer.write)
            return None if settled == old else settled

        old = update_store(store_of(place), lambda: read_store(place), change, check)
        if self._dry_run:
            return sum(
                self._rewrapping.would_change(self._check_expected(decode_material(text), place))
                for text in {*old.values()}
            )
        names = [name for name, text in old.items() if new[name] != text]
        for name in names:
            column = None if name == FOOTER_KEY else name
            self._record_event(place, column, decode_material(new[name]))
        return len({old[name] for name in names})

    def _rotate_key_metadata(
        self, place: Place, source: Source, under: set[tuple[str, str]]
    ) -> int:
        """Rotate the encrypted key metadata of an AGS1 stream."""
        material = parse_wrapped_metadata(source.read_at(0, source.size))
        self._expected.check(material, None, place.address)
        if self.what != "mek" or self._dry_run:
            return int(self.what == "mek" and not self._rewrapping.is_current(material))
        rotated = self._rotate_material(material, under, may_change_wrapping=False)
        if rotated == material:
            return 0
        replace_file(place, source, encode_wrapped_metadata(rotated))
        self._record_event(place, None, rotated)
        return 1

    def _rotate_text(self, place: Place, name: str, text: str, under: set[tuple[str, str]]) -> str:
        material = self._check_expected(decode_material(text), place)
        # Rotations by other implementations mark the footer key as a column key.
        is_footer_key = material.is_footer_key or name.startswith(FOOTER_KEY)
        rotated = self._rotate_material(material, under)
        if rotated.is_footer_key != is_footer_key:
            rotated = replace(rotated, is_footer_key=is_footer_key)
        return text if rotated == material else _encode_and_check(rotated)

    def _rotate_internal(self, place: Place, source: Source, under: set[tuple[str, str]]) -> int:
        changed: set[bytes] = set()
        rewrapped: list[tuple[str | None, KeyMaterial]] = []

        def change(metadata: bytes, column: str | None) -> bytes:
            material = self._decode_internal(place, metadata)
            if self._dry_run:
                changed.update({metadata} if self._rewrapping.would_change(material) else ())
                return metadata
            if (rotated := self._rotate_material(material, under)) == material:
                return metadata
            changed.add(metadata)
            rewrapped.append((column, rotated))
            return _encode_and_check(rotated).encode()

        tail = new_tail(source, self._decryption, change, self._signing_key)
        lost = tail is not None and tail.lost_signature
        refuse_lost_signature(self._decryption, place.address, lost=lost)
        if tail is None:
            return len(changed)
        self._rewrapping.check_data_keys(
            source, self._decryption, lambda metadata: self._decode_internal(place, metadata)
        )
        replace_file(place, source, tail.data, keep=tail.start)
        self._lost.update({place.path} if tail.lost_signature else ())
        for column, material in rewrapped:
            self._record_event(place, column, material)
        return len(changed)

    def _rotate_material(
        self, material: KeyMaterial, under: set[tuple[str, str]], *,
        may_change_wrapping: bool = True,
    ) -> KeyMaterial:  # fmt: skip
        """Return rewrapped material of the same data key; add its master key to `under`."""
        rotated = self._rewrapping.rewrap(material, may_change_wrapping=may_change_wrapping)
        under.add((rotated.master_key_id, rotated.master_wrapped))
        return rotated

    def _decode_internal(self, place: Place, metadata: bytes) -> KeyMaterial:
        material = decode_metadata(metadata)
        if not isinstance(material, KeyMaterial):
            raise KeyMaterialError(
                f"{place.address}: key material is both in the file and in a separate store"
            )
        return self._check_expected(material, place)

    def _record_event(self, place: Place, column: str | None, material: KeyMaterial) -> None:
        record_key(self._wrapper.audit, "rewrap", material, place.full_name, column)

    def _replace_data_keys(self, place: Place, source: Source, keys: int) -> int:
        if self._dry_run:
            return keys
        done, lost = replace_data_keys(
            place, source, self._wrapper, self._decryption, self._expected, self.new_master_keys,
            self._double_wrapping, self._signing_key,
        )  # fmt: skip
        self._lost.update({place.path} if lost else ())
        return done

    def _check_expected(self, material: KeyMaterial, place: Place) -> KeyMaterial:
        """Return the key material if its master key is expected; called before any request."""
        # Readers still check which column needs which master key: rotation keeps the master key of
        # each key, unless the caller replaces that master key everywhere.
        self._expected.check_any(material, place.address)
        return material


def _find_in_store(store: Mapping[str, str], metadata: bytes) -> KeyMaterial:
    reference = decode_metadata(metadata)
    assert isinstance(reference, KeyReference)  # as the footer's is
    return find_material(dict(store), reference)


def _encode_and_check(material: KeyMaterial) -> str:
    """Encode key material and check that it decodes to the same, as it replaces the old."""
    text = material.encode()
    if material.others.keys() <= {WRITE}:  # the rest was checked when it was read
        return text
    again = decode_metadata(text.encode()) if material.internal else decode_material(text)
    if again != material:
        raise KeyMaterialError("new key material does not decode to what was encoded")
    return text
