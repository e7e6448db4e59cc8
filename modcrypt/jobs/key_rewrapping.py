"""Rewrapping of one key at a time, for the rotation of many files' keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from modcrypt.errors import KeyRetrievalError, KmsUnavailableError
from modcrypt.io.sources import Source
from modcrypt.keys import Key
from modcrypt.kms import calls as kms
from modcrypt.kms.wrapping import KeyWrapper, require_opens
from modcrypt.module_ids import ALGORITHMS
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer_keys import list_key_metadata
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.pkmt1.material import KeyMaterial
from modcrypt.runtime.fork_safety import fork_safe
from modcrypt.runtime.tracebacks import hide_frames

What: TypeAlias = Literal["mek", "kek", "dek"]


class KeyRewrapping:
    """The rewrapping of the keys of a run, which asks the key service once for each wrap.

    New material replaces the only way to a file's data, so nothing that a key service answers is
    trusted unseen:

    1. A KEK that it unwraps must open a data key that is wrapped under it (`rewrap` checks).
    2. In single wrapping, only the file shows whether a data key is the right one: the caller
       passes the file to `check_data_keys` after `rewrap`, and before it replaces anything.

    Errors are remembered like answers, since ten thousand files may share a KEK; except that the
    key service is unavailable, which may have changed for the next file.
    """

    def __init__(
        self, wrapper: KeyWrapper, what: What, new_master_keys: Mapping[str, str],
        double_wrapping: bool | None,
    ) -> None:  # fmt: skip
        self._wrapper, self._what = wrapper, what
        self._new_master_keys, self._double_wrapping = new_master_keys, double_wrapping
        # Maps master key id and wrapped key to the new wrapped key, or to the error.
        self._answers: dict[tuple[str, str], str | KeyRetrievalError] = {}
        self._current: dict[tuple[str, str], bool | None] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        # Data keys by master key id and wrapped key, until they have opened their file.
        self._deks: dict[tuple[str, str], Key] = {}
        self._guard = fork_safe(threading.Lock())

    def would_change(self, material: KeyMaterial) -> bool:
        """Return whether rotation changes the wrapping of a key; makes no key."""
        if self._what == "dek" or (self._what == "kek" and material.double_wrapping):
            return True
        if self._changes_wrapping(material):
            return True
        return not self.is_current(material)

    def is_current(self, material: KeyMaterial) -> bool:
        """Return whether a key is known to be under the newest version of the right master key."""
        master = material.master_key_id
        if self._map_master_key(material) != master:
            return False
        return self.ask_if_newest(master, material.master_wrapped) is True

    def ask_if_newest(self, master_key_id: str, wrapped: str) -> bool | None:
        """Return whether a wrap is under the newest version; None if the service does not say."""
        question = master_key_id, wrapped
        if question not in self._current:
            self._current[question] = kms.is_current(self._wrapper.client, wrapped, master_key_id)
        return self._current[question]

    def rewrap(self, material: KeyMaterial, *, may_change_wrapping: bool = True) -> KeyMaterial:
        """Return rewrapped material of the same data key."""
        new_id = self._map_master_key(material)
        wrapper = self._wrapper
        if may_change_wrapping and self._changes_wrapping(material):
            return self._change_wrapping(material, new_id)
        if self._what == "kek" and material.double_wrapping:
            kek = wrapper.get_writing_kek(new_id, wrapper.get_reading_kek(material).length)
            return replace(
                material,
                master_key_id=new_id,
                wrapped_dek=kek.wrap(wrapper.unwrap(material)),
                kek_id=kek.id,
                wrapped_kek=kek.wrapped,
            )
        return material.with_master_wrapped(self._rewrap_once(material, new_id), new_id)

    def _change_wrapping(self, material: KeyMaterial, new_id: str) -> KeyMaterial:
        """Wrap a data key under a KEK instead of the master key, or the reverse."""
        wrapper, dek = self._wrapper, self._wrapper.unwrap(material)
        if not material.double_wrapping:
            self._deks[material.master_key_id, material.wrapped_dek] = dek
        if material.double_wrapping:
            (wrapped,) = wrapper.wrap([dek], new_id)
            kek_id = wrapped_kek = None
        else:
            kek = wrapper.get_writing_kek(new_id, len(dek))  # no weaker than what it wraps
            wrapped, kek_id, wrapped_kek = kek.wrap(dek), kek.id, kek.wrapped
        return replace(
            material, master_key_id=new_id, wrapped_dek=wrapped, kek_id=kek_id,
            wrapped_kek=wrapped_kek,
        )  # fmt: skip

    def _rewrap_once(self, material: KeyMaterial, new_id: str) -> str:
        """Rewrap what the master key has wrapped, with one request per KEK of many files."""
        question = material.master_key_id, material.master_wrapped
        with self._guard:
            lock = self._locks.setdefault(question, fork_safe(threading.Lock()))
        with lock:
            if question not in self._answers:
                try:
                    self._answers[question] = self._request_rewrap(material, new_id)
                except KmsUnavailableError:
                    raise
                except KeyRetrievalError as error:
                    self._answers[question] = error
            answer = self._answers[question]
        if isinstance(answer, KeyRetrievalError):
            raise type(answer)(str(answer))
        return answer

    def _request_rewrap(self, material: KeyMaterial, new_id: str) -> str:
        if self.is_current(material):
            return material.master_wrapped
        return self._wrapper.rewrap(
            material.master_wrapped, material.master_key_id, new_id,
            lambda key: self._check_opens(material, key),
        )  # fmt: skip

    @hide_frames
    def _check_opens(self, material: KeyMaterial, key: Key) -> None:
        """Check that a KEK opens a data key; remember a data key, which has to open the file."""
        if material.double_wrapping:
            require_opens(material, key)
        else:
            self._deks[material.master_key_id, material.wrapped_dek] = key

    @property
    def has_unchecked_keys(self) -> bool:
        """True if data keys (not KEKs) were unwrapped that have not opened their file yet."""
        return bool(self._deks)

    @hide_frames
    def check_data_keys(
        self,
        source: Source,
        decryption: FileDecryptionProperties,
        decode: Callable[[bytes], KeyMaterial],
    ) -> None:
        """Check that the unwrapped data keys open the footer, and the metadata of their columns."""
        footer, deks = list_key_metadata(source)[0][0], dict[bytes, Key]()

        def find(metadata: bytes, column: str | None = None) -> Key | None:
            material = decode(metadata)
            key = self._deks.pop((material.master_key_id, material.wrapped_dek), None)
            if key is None and metadata == footer.metadata and metadata not in deks:
                key = self._wrapper.unwrap(material)
            return deks.setdefault(metadata, key) if key is not None else deks.get(metadata)

        if self._deks:
            properties = replace(
                decryption, key_retriever=find, on_missing_key="null", signed_by=(),
                require_encrypted=False, accept_algorithms=ALGORITHMS,
            )  # fmt: skip
            OpenFile(source, properties).select()

    def _changes_wrapping(self, material: KeyMaterial) -> bool:
        return self._double_wrapping not in (None, material.double_wrapping)

    def _map_master_key(self, material: KeyMaterial) -> str:
        return self._new_master_keys.get(material.master_key_id, material.master_key_id)
