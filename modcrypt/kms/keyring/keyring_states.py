"""The states of a keyring's file: read again when it was replaced, and replaced under a lock.

An older state than the newest one that this process has seen is refused, because keys may work in
it that were disabled or destroyed since.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from modcrypt.errors import KeyAccessDeniedError, KeyMaterialError, KeyRetrievalError, TagError
from modcrypt.io.private_files import check_owner, check_private
from modcrypt.kms.keyring import keyring_file
from modcrypt.kms.keyring.keyring_document import (
    FIRST,
    Edition,
    Master,
    decode_document,
    decode_keys,
    encode_document,
)
from modcrypt.kms.keyring.keyring_passphrase import Ask, PassphraseKeys
from modcrypt.kms.keyring.passphrase_encryption import EncryptedPart, PassphraseKey
from modcrypt.pkmt1.strict_json import strict_json
from modcrypt.runtime.tracebacks import hide_frames


@dataclass(frozen=True)
class State:
    """The content of a file, and the stamp that reveals a replacement of the file."""

    stamp: keyring_file.Stamp
    edition: Edition
    masters: dict[str, Master]
    passphrase_key: PassphraseKey | None


_newest: dict[str, dict[str | None, int]] = {}
"""Newest generation of each keyring that this process has read, by path and keyring id."""


def is_plaintext(path: str) -> bool:
    """Return whether a file is a keyring that no passphrase encrypts."""
    try:
        return isinstance(decode_document(keyring_file.read(path)[0]).content, dict)
    except (OSError, KeyMaterialError):  # opening it fails with a message
        return False


class KeyringStates:
    """The file at a path, its last known state, and the passphrases that decrypt it."""

    def __init__(self, path: str, ask: Ask | None) -> None:
        self.path = path
        self.passphrase_keys = PassphraseKeys(path, ask)
        self._state: State | None = None

    @hide_frames
    def create(self, ask: Ask | None, cost: int) -> None:
        """Create the file of a keyring without keys; raise FileExistsError if it exists.

        `cost` is that of scrypt.
        """
        keyring_file.check_absent(self.path)  # before a user has to enter a passphrase
        key = self.passphrase_keys.make(ask, cost)
        keyring_file.create(self.path, encode_document({}, key, FIRST.next_edition()))
        self.current()

    def current(self) -> State:
        """Return the current content of the file; read it again if it was replaced."""
        state = self._state
        if state is None or keyring_file.make_stamp(os.stat(self.path)) != state.stamp:
            state = self._state = self._load(self.path)
        return state

    @hide_frames  # a frame may contain a plaintext document
    def _load(self, path: str) -> State:
        """Read the file; refuse a file older than one that this process has read at its path."""
        while True:
            try:
                state = self._read(path)
            except KeyMaterialError as error:
                raise KeyMaterialError(f"the keyring {self.path}: {error}") from None
            if self._record_edition(state.edition):
                return state
            # If the file was replaced meanwhile, read it again.
            if keyring_file.make_stamp(os.stat(path)) == state.stamp:
                raise KeyRetrievalError(
                    f"the keyring {self.path} is older than the one that this process has read: it "
                    "was rolled back to a state in which keys may work that were disabled or "
                    "destroyed since; restart the process if you restored a backup on purpose"
                )

    def _read(self, path: str) -> State:
        data, status = keyring_file.read(path)
        check_owner(status, f"the keyring {self.path}")
        document, stamp = decode_document(data), keyring_file.make_stamp(status)
        content = document.content
        if isinstance(content, EncryptedPart):
            return State(stamp, document.edition, *self._decrypt(content))
        if self.passphrase_keys.ask is not None:
            raise KeyRetrievalError(
                f"a passphrase was passed, but the keyring {self.path} is in plaintext and may "
                "have replaced an encrypted one; if it has not, open it without a passphrase"
            )
        check_private(status, f"the keyring {self.path} contains its keys in plaintext")
        return State(stamp, document.edition, content, None)

    def _decrypt(self, content: EncryptedPart) -> tuple[dict[str, Master], PassphraseKey]:
        key = self.passphrase_keys.find(content.scrypt)
        with contextlib.suppress(TagError):
            return decode_keys(strict_json(content.decrypt(key))), key
        self.passphrase_keys.forget(content.scrypt)
        raise KeyAccessDeniedError(
            f"the keyring {self.path} does not decrypt: the passphrase is wrong or bytes were "
            "altered; AES-GCM cannot tell which"
        )

    def _record_edition(self, edition: Edition) -> bool:
        """Record an edition; return False if it is older than one recorded for its path."""
        # Another keyring may replace this one, but not a keyring of the format without ids.
        for path in {self.path, os.path.realpath(self.path)}:
            generations = _newest.setdefault(path, {})
            newest = max(generations.values(), default=0)
            if edition.id is not None:
                newest = generations.get(edition.id, 0)
            if edition.generation < newest:
                return False
            generations[edition.id] = edition.generation
        return True

    def update(
        self,
        change: Callable[[dict[str, Master]], None],
        protection: tuple[Ask | None, PassphraseKey | None] | None = None,
    ) -> State:
        """Read, change and replace the file under a lock.

        `protection` is the function that returns a new passphrase, with the key derived from it.
        """
        self.current()  # may ask for a passphrase, before others have to wait for the lock
        path = os.path.realpath(self.path)  # so that a symbolic link remains one
        with keyring_file.lock_file(path) as old:
            state = self._load(path)
            masters, edition = dict(state.masters), state.edition.next_edition()
            change(masters)
            ask, key = protection or (self.passphrase_keys.ask, state.passphrase_key)
            # No local variable holds the document, because it may be in plaintext.
            status = keyring_file.replace(
                path, encode_document(masters, key, edition), old, private=key is None
            )
            self.passphrase_keys.ask = ask
            self._state = State(keyring_file.make_stamp(status), edition, masters, key)
            self._record_edition(edition)
            return self._state
