"""The local keyring, a key service in one file: `file:PATH`.

`keyring_uri` has its address, `keyring_document` the format of the file, `local_wrap` that of
wrapped keys, and `keyring_file` reads and replaces the file.

Each call looks whether the file was replaced, and reads it again if so (`keyring_states`): a key
that another process has disabled must not be used any longer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from modcrypt.errors import KeyNotFoundError, TagError
from modcrypt.keys import Key, KeyLike, as_given_key
from modcrypt.keys.encoding import KEY_LENGTHS
from modcrypt.kms.client import Capabilities, MasterKey, UnpicklableClient
from modcrypt.kms.keyring.keyring_document import (
    DESTROYED,
    DISABLED,
    ENABLED,
    MAX_ID,
    Master,
    is_id,
    new_version,
)
from modcrypt.kms.keyring.keyring_passphrase import (
    Ask,
    Passphrase,
    make_asker,
    make_reference_asker,
)
from modcrypt.kms.keyring.keyring_states import KeyringStates
from modcrypt.kms.keyring.keyring_uri import extract_path, parse_keyring_uri
from modcrypt.kms.local_wrap import (
    check_wrappable,
    format_wrapped_key,
    local_aad,
    mismatch_error,
    parse_wrapped,
)
from modcrypt.report.suggestions import suggest
from modcrypt.runtime.tracebacks import hide_frames

SCRYPT_N = 2**17
"""Scrypt cost of a new passphrase: 128 MiB and about a third of a second, as OWASP recommends."""

BATCH = 1000

_LIST = "; modcrypt keys list shows those that it has, modcrypt keys create adds one"


def check_key_id(master_key_id: str) -> None:
    """Raise ValueError unless an id is valid for a master key of a keyring."""
    if not is_id(master_key_id):
        raise ValueError(f"the id of a master key must have 1 to {MAX_ID} printable characters")


class Keyring(UnpicklableClient):
    """A key service in a file: a `KmsClient` and a `KeyAdmin`, for any thread and process.

    Changes by another process apply from the next call on. Updates wait for each other and are
    atomic. Master key ids have 1 to 1024 printable characters. Methods raise KeyNotFoundError if a
    master key does not exist, and those that use it raise KeyDisabledError if it, or the version
    that they need, is disabled or destroyed.

    Args:
        path: Path of an existing file; `create` writes a new one.
        passphrase: Passphrase that encrypts the file. If given, modcrypt refuses a plaintext
            keyring, which may have replaced the encrypted one.
        default_key: Id of the master key to use if the caller names none.

    Raises:
        FileNotFoundError: The file does not exist.
        KeyAccessDeniedError: The passphrase is missing or wrong.
        KeyMaterialError: The file is not a keyring, or is malformed.
        KeyRetrievalError: The file is in plaintext, and others can read it or a passphrase was
            passed; it belongs to another user; or it is older than one that this process has read.
        ValueError: The passphrase is empty or too long.
    """

    capabilities = Capabilities(aad=True, rewrap=True, batch=BATCH, random_nonces=True)

    @hide_frames
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        passphrase: Passphrase | None = None,
        default_key: str | None = None,
    ) -> None:
        self._prepare(path, make_asker(passphrase), default_key)
        try:
            self._states.current()
        except FileNotFoundError as error:
            hint = "no such keyring; modcrypt keys create makes one"
            raise FileNotFoundError(error.errno, hint, self.path) from None

    def _prepare(
        self, path: str | os.PathLike[str], ask: Ask | None, default_key: str | None = None
    ) -> None:
        self.path = os.path.abspath(path)
        self.default_key = default_key
        self._states = KeyringStates(self.path, ask)

    @classmethod
    @hide_frames
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        passphrase: Passphrase | None = None,
        plaintext: bool = False,
    ) -> Keyring:
        """Create a keyring without keys that only its owner can read (mode 0600).

        Args:
            path: Path of the new file.
            passphrase: Passphrase that encrypts the file.
            plaintext: Whether to store the keys in plaintext instead.

        Raises:
            FileExistsError: The file exists.
            ValueError: Neither a passphrase nor `plaintext` is given, or both are.
        """
        ask = _check_protection(passphrase, plaintext)
        ring = cls.__new__(cls)
        ring._prepare(path, ask)
        ring._states.create(ask, SCRYPT_N)
        return ring

    def __repr__(self) -> str:
        return f"Keyring({self.path!r})"

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key of 16, 24 or 32 bytes under the master key's newest version."""
        return self.wrap_many([key], master_key_id, aad=aad)[0]

    @hide_frames
    def wrap_many(
        self, keys: Sequence[bytes], master_key_id: str, *, aad: bytes = b""
    ) -> list[str]:
        """Wrap several keys; raise as `wrap`."""
        for key in keys:
            check_wrappable(key)
        version = self._find_master(master_key_id).find_wrapping_version()
        encrypt, bound = version.cipher.encrypt_block, local_aad(master_key_id, aad)
        return [format_wrapped_key(version.number, encrypt(key, bound)) for key in keys]

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key under the version it names, or under any matching version without one.

        Raises:
            KeyNotFoundError: The master key, or the version, does not exist.
            KeyMaterialError: The text is not a wrapped key, or was altered, or was wrapped under
                another master key or with other AAD.
        """
        master = self._find_master(master_key_id)
        number, block = parse_wrapped(wrapped)
        bound = local_aad(master_key_id, aad)
        for version in master.find_unwrapping_versions(number):
            with contextlib.suppress(TagError):
                return version.cipher.decrypt_block(block, bound)
        raise mismatch_error(master_key_id)

    @hide_frames
    def rewrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> str:
        """Rewrap a key under the newest version of its master key; raise as `unwrap`."""
        return self.wrap(self.unwrap(wrapped, master_key_id, aad=aad), master_key_id, aad=aad)

    def is_current(self, wrapped: str, master_key_id: str) -> bool | None:
        """Return whether the newest version wrapped a key; None if that is unknown."""
        newest = self._find_master(master_key_id).versions[-1]
        number, block = parse_wrapped(wrapped)
        if number is not None:
            return number == newest.number
        if newest.key is not None:
            with contextlib.suppress(TagError):
                newest.cipher.decrypt_block(block, local_aad(master_key_id, b""))
                return True
        return None  # wrapped by an older version, or bound to AAD, which is unknown here

    @hide_frames
    def create_key(
        self, master_key_id: str, *, value: KeyLike | None = None, length: int = 32
    ) -> MasterKey:
        """Add a master key.

        Args:
            master_key_id: Id of the new master key, different even from those of destroyed ones.
            value: Key, its bytes or hex text, to import a key that is in use elsewhere.
            length: Length of a random key in bytes.

        Raises:
            ValueError: The id exists, or the id or the length is not valid.
        """
        check_key_id(master_key_id)
        if length not in KEY_LENGTHS:
            raise ValueError("a master key must have 16, 24 or 32 bytes")
        key = Key.generate(length) if value is None else as_given_key(value)

        def change(masters: dict[str, Master]) -> None:
            if master_key_id in masters:
                raise ValueError(f"{self.path} already contains a master key {master_key_id}")
            masters[master_key_id] = Master(master_key_id, True, (new_version(1, key),))

        return self._states.update(change).masters[master_key_id].describe()

    def list_keys(self) -> list[MasterKey]:
        """Return all master keys, sorted by id."""
        masters = self._states.current().masters
        return [masters[name].describe() for name in sorted(masters)]

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Add a version of 256 bits, which wraps from now on; older versions still unwrap."""

        def change(master: Master) -> Master:
            version = new_version(master.find_wrapping_version().number + 1, Key.generate(32))
            return replace(master, versions=(*master.versions, version))

        return self._update_key(master_key_id, change)

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Disable wrapping and unwrapping by a master key, or only unwrapping by older versions.

        Args:
            master_key_id: Id of the master key.
            version: Last version to disable, together with all before it; not the newest one. None
                for the whole master key.

        Raises:
            ValueError: The version does not exist, or is the newest.
        """

        def change(master: Master) -> Master:
            if version is None:
                return replace(master, enabled=False)
            _check_older(master, version)
            return master.with_states(range(1, version + 1), DISABLED)

        return self._update_key(master_key_id, change)

    def enable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Undo `disable_key`, for a whole master key or for one version.

        Args:
            master_key_id: Id of the master key.
            version: Version to enable; None for the master key, whose versions stay enabled or
                disabled as they are.

        Raises:
            KeyDisabledError: The master key, or the version, is destroyed permanently.
            ValueError: The version does not exist.
        """

        def change(master: Master) -> Master:
            number = len(master.versions) if version is None else version
            _check_version(master, number)
            master.check_kept(master.versions[number - 1])
            if version is None:
                return replace(master, enabled=True)
            return master.with_states(range(number, number + 1), ENABLED)

        return self._update_key(master_key_id, change)

    def destroy_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Remove a master key, or one older version of it, from the file permanently.

        Keys that it wrapped can never be unwrapped again, unless a copy of the file remains in a
        backup, a snapshot or the free blocks of the disk. The id and the versions stay on record.

        Args:
            master_key_id: Id of the master key.
            version: Version to destroy, not the newest one; None for all of them.

        Raises:
            ValueError: The version does not exist, or is the newest.
        """

        def change(master: Master) -> Master:
            if version is None:
                every = range(1, len(master.versions) + 1)
                return replace(master, enabled=False).with_states(every, DESTROYED)
            _check_older(master, version)
            return master.with_states(range(version, version + 1), DESTROYED)

        return self._update_key(master_key_id, change)

    @hide_frames
    def change_passphrase(
        self, passphrase: Passphrase | None = None, *, plaintext: bool = False
    ) -> None:
        """Encrypt the keyring under another passphrase, or store it in plaintext.

        The master keys stay the same: anyone with an older copy of the file and its passphrase has
        them. Other processes need the new passphrase from now on. Arguments are those of `create`.
        """
        ask = _check_protection(passphrase, plaintext)
        key = self._states.passphrase_keys.make(ask, SCRYPT_N)
        self._states.update(lambda masters: None, (ask, key))

    def _find_master(self, master_key_id: str) -> Master:
        if (master := self._states.current().masters.get(master_key_id)) is None:
            raise self._make_missing_error(master_key_id)
        return master

    def _make_missing_error(self, master_key_id: str) -> KeyNotFoundError:
        # The message repeats only valid ids, because a forged file may contain anything.
        if not is_id(master_key_id):
            return KeyNotFoundError(f"the keyring {self.path} has no master key with this id")
        hint = suggest(master_key_id, self._states.current().masters) or _LIST
        return KeyNotFoundError(f"the keyring {self.path} has no master key {master_key_id}{hint}")

    def _update_key(self, master_key_id: str, change: Callable[[Master], Master]) -> MasterKey:
        def change_key(masters: dict[str, Master]) -> None:
            if master_key_id not in masters:
                raise self._make_missing_error(master_key_id)
            masters[master_key_id] = change(masters[master_key_id])

        return self._states.update(change_key).masters[master_key_id].describe()


@hide_frames
def _check_protection(passphrase: Passphrase | None, plaintext: bool) -> Ask | None:
    if (passphrase is not None) == plaintext:
        raise ValueError(
            "a keyring is encrypted under a passphrase or, with plaintext=True, in plaintext; pass "
            "exactly one of passphrase and plaintext"
        )
    return make_asker(passphrase)


def _check_version(master: Master, version: int) -> None:
    newest = len(master.versions)
    if not 0 < version <= newest:
        raise ValueError(f"master key {master.id} has versions 1 to {newest}, but no {version}")


def _check_older(master: Master, version: int) -> None:
    _check_version(master, version)
    if version == len(master.versions):
        raise ValueError(
            f"version {version} of master key {master.id} is the newest: rotate the key first"
        )


@hide_frames
def open_keyring(uri: str, *, passphrase: Passphrase | None = None) -> Keyring:
    """Open the keyring that a URI names: `file:PATH[?passphrase=env:NAME|file:PATH][#KEY]`.

    The path has percent-escapes. The query names the place of the passphrase, which is not passed
    then; the fragment names the default master key. Raise ValueError if the URI has another form,
    or there are two passphrases; and FileNotFoundError or KeyRetrievalError as `Keyring`.
    """
    parsed = parse_keyring_uri(uri)
    path = extract_path(parsed.location)
    if "passphrase" in parsed.query:
        if passphrase is not None:
            raise ValueError(
                "two passphrases: remove passphrase=, or passphrase= from the keyring's URI"
            )
        passphrase = make_reference_asker(parsed.query["passphrase"], shown=True)
    return Keyring(path, passphrase=passphrase, default_key=parsed.fragment or None)
