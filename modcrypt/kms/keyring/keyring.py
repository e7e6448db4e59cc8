"""The local keyring, a key service in one file: `file:PATH`.

`keyring_document` has the format of the file, `keyring_file` reads and replaces the file, and
`local_wrap` has the format of wrapped keys.

Each call looks whether the file was replaced, and reads it again if so: a key that another process
has disabled must not be used any longer. An older state than the newest one that this process has
seen is refused, because keys may work in it that were disabled or destroyed since.
"""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    TagError,
)
from modcrypt.io.private_files import check_owner, check_private
from modcrypt.keys import Key, KeyLike, as_given_key
from modcrypt.keys.encoding import KEY_LENGTHS
from modcrypt.kms.client import Capabilities, MasterKey, UnpicklableClient
from modcrypt.kms.keyring import keyring_file
from modcrypt.kms.keyring.keyring_document import (
    DESTROYED,
    DISABLED,
    ENABLED,
    FIRST,
    MAX_ID,
    Edition,
    Master,
    decode_document,
    decode_keys,
    encode_document,
    is_id,
    new_version,
)
from modcrypt.kms.keyring.keyring_passphrase import (
    Ask,
    Passphrase,
    PassphraseKeys,
    make_asker,
    make_reference_asker,
)
from modcrypt.kms.keyring.passphrase_encryption import EncryptedPart, PassphraseKey
from modcrypt.kms.local_wrap import (
    check_wrappable,
    format_wrapped_key,
    local_aad,
    mismatch_error,
    parse_wrapped,
)
from modcrypt.kms.references import KmsUri, parse_kms_uri
from modcrypt.pkmt1.strict_json import strict_json
from modcrypt.report.suggestions import suggest
from modcrypt.runtime.tracebacks import hide_frames

SCRYPT_N = 2**17
"""Scrypt cost of a new passphrase: 128 MiB and about a third of a second, as OWASP recommends."""

BATCH = 1000


def check_key_id(master_key_id: str) -> None:
    """Raise ValueError unless an id is valid for a master key of a keyring."""
    if not is_id(master_key_id):
        raise ValueError(f"the id of a master key must have 1 to {MAX_ID} printable characters")


@dataclass(frozen=True)
class _State:
    """The content of a file, and the stamp that reveals a replacement of the file."""

    stamp: keyring_file.Stamp
    edition: Edition
    masters: dict[str, Master]
    passphrase_key: PassphraseKey | None


_newest: dict[str, dict[str | None, int]] = {}
"""Newest generation of each keyring that this process has read, by path and keyring id."""


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

    capabilities = Capabilities(aad=True, rewrap=True, batch=BATCH)

    @hide_frames
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        passphrase: Passphrase | None = None,
        default_key: str | None = None,
    ) -> None:
        self._prepare(path, make_asker(passphrase), default_key)
        self._state = self._load(self.path)

    def _prepare(
        self,
        path: str | os.PathLike[str],
        ask: Ask | None,
        default_key: str | None = None,
    ) -> None:
        self.path = os.path.abspath(path)
        self.default_key = default_key
        self._passphrase_keys = PassphraseKeys(self.path, ask)

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
        keyring_file.check_absent(ring.path)  # before a user has to enter a passphrase
        key = ring._passphrase_keys.make(ask, SCRYPT_N)
        keyring_file.create(ring.path, encode_document({}, key, FIRST.next_edition()))
        ring._state = ring._load(ring.path)
        return ring

    def __repr__(self) -> str:
        return f"Keyring({self.path!r})"

    # --- as a KmsClient ---

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

    # --- as a KeyAdmin ---

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

        return self._update(change).masters[master_key_id].describe()

    def list_keys(self) -> list[MasterKey]:
        """Return all master keys, sorted by id."""
        masters = self._load_current().masters
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
        self._update(lambda masters: None, (ask, self._passphrase_keys.make(ask, SCRYPT_N)))

    # --- the file ---

    def _find_master(self, master_key_id: str) -> Master:
        master = self._load_current().masters.get(master_key_id)
        if master is None:
            raise self._make_missing_error(master_key_id)
        return master

    def _make_missing_error(self, master_key_id: str) -> KeyNotFoundError:
        # The message repeats only valid ids, because a forged file may contain anything.
        if not is_id(master_key_id):
            return KeyNotFoundError(f"the keyring {self.path} has no master key with this id")
        hint = suggest(master_key_id, self._load_current().masters)
        return KeyNotFoundError(f"the keyring {self.path} has no master key {master_key_id}{hint}")

    def _load_current(self) -> _State:
        """Return the current content of the file; read it again if it was replaced."""
        if keyring_file.make_stamp(os.stat(self.path)) != self._state.stamp:
            self._state = self._load(self.path)
        return self._state

    @hide_frames  # a frame may contain a plaintext document
    def _load(self, path: str) -> _State:
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

    def _read(self, path: str) -> _State:
        data, status = keyring_file.read(path)
        check_owner(status, f"the keyring {self.path}")
        document, stamp = decode_document(data), keyring_file.make_stamp(status)
        content = document.content
        if isinstance(content, EncryptedPart):
            return _State(stamp, document.edition, *self._decrypt(content))
        if self._passphrase_keys.ask is not None:
            raise KeyRetrievalError(
                f"a passphrase was passed, but the keyring {self.path} is in plaintext and may "
                "have replaced an encrypted one; if it has not, open it without a passphrase"
            )
        check_private(status, f"the keyring {self.path} contains its keys in plaintext")
        return _State(stamp, document.edition, content, None)

    def _decrypt(self, content: EncryptedPart) -> tuple[dict[str, Master], PassphraseKey]:
        key = self._passphrase_keys.find(content.scrypt)
        with contextlib.suppress(TagError):
            return decode_keys(strict_json(content.decrypt(key))), key
        self._passphrase_keys.forget(content.scrypt)
        raise KeyAccessDeniedError(
            f"the keyring {self.path} does not decrypt: the passphrase is wrong or bytes were "
            "altered; AES-GCM cannot tell which"
        )

    def _record_edition(self, edition: Edition) -> bool:
        """Record an edition; return False if it is older than one recorded for its path.

        Another keyring may replace this one, but not a keyring of the format without ids.
        """
        for path in {self.path, os.path.realpath(self.path)}:
            generations = _newest.setdefault(path, {})
            newest = max(generations.values(), default=0)
            if edition.id is not None:
                newest = generations.get(edition.id, 0)
            if edition.generation < newest:
                return False
            generations[edition.id] = edition.generation
        return True

    def _update_key(self, master_key_id: str, change: Callable[[Master], Master]) -> MasterKey:
        def change_key(masters: dict[str, Master]) -> None:
            if master_key_id not in masters:
                raise self._make_missing_error(master_key_id)
            masters[master_key_id] = change(masters[master_key_id])

        return self._update(change_key).masters[master_key_id].describe()

    def _update(
        self,
        change: Callable[[dict[str, Master]], None],
        protection: tuple[Ask | None, PassphraseKey | None] | None = None,
    ) -> _State:
        """Read, change and replace the file under a lock.

        `protection` is the function that returns a new passphrase, with the key derived from it.
        """
        self._load_current()  # may ask for a passphrase, before others have to wait for the lock
        path = os.path.realpath(self.path)  # so that a symbolic link remains one
        with keyring_file.lock_file(path) as old:
            state = self._load(path)
            masters, edition = dict(state.masters), state.edition.next_edition()
            change(masters)
            ask, key = protection or (self._passphrase_keys.ask, state.passphrase_key)
            # No local variable holds the document, because it may be in plaintext.
            status = keyring_file.replace(
                path, encode_document(masters, key, edition), old, private=key is None
            )
            self._passphrase_keys.ask = ask
            self._state = _State(keyring_file.make_stamp(status), edition, masters, key)
            self._record_edition(edition)
            return self._state


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


# --- the URI -------------------------------------------------------------------------------------


@hide_frames
def open_keyring(uri: str, *, passphrase: Passphrase | None = None) -> Keyring:
    """Open the keyring that a URI names: `file:PATH[?passphrase=env:NAME|file:PATH][#KEY]`.

    The path has percent-escapes. The query names the place of the passphrase, which is not passed
    then; the fragment names the default master key.

    Raises:
        ValueError: The URI has another form, or there are two passphrases.
        FileNotFoundError, KeyRetrievalError: As `Keyring`.
    """
    parsed = _parse_keyring_uri(uri)
    path = _extract_path(parsed.location)
    if "passphrase" in parsed.query:
        if passphrase is not None:
            raise ValueError(
                "two passphrases: remove passphrase=, or passphrase= from the keyring's URI"
            )
        passphrase = make_reference_asker(parsed.query["passphrase"], shown=True)
    return Keyring(path, passphrase=passphrase, default_key=parsed.fragment or None)


def passphrase_of_uri(uri: str) -> str | None:
    """Return the reference to the passphrase in a keyring's URI; None if it names none."""
    return _parse_keyring_uri(uri).query.get("passphrase")


def keyring_path(uri: str) -> str:
    """Return the path of the file that a keyring's URI names, whether it exists or not."""
    return _extract_path(_parse_keyring_uri(uri).location)


def _parse_keyring_uri(uri: str) -> KmsUri:
    parsed = parse_kms_uri(uri, frozenset({"passphrase"}))
    if parsed.scheme != "file":
        raise ValueError("the URI of a keyring must have the form file:PATH")
    return parsed


def _extract_path(location: str) -> str:
    if location.startswith("//"):
        host, _, rest = location[2:].partition("/")
        if host not in ("", "localhost"):
            raise ValueError(
                "a file: URI must not name another machine: use file:PATH or file:///PATH"
            )
        location = "/" + rest
    path = os.fsdecode(urllib.parse.unquote_to_bytes(os.fsencode(location)))
    if not path.strip("/"):
        raise ValueError("the URI of a keyring must name a file: file:PATH")
    return os.path.expanduser(path)  # because shells do not expand the ~ of file:~/x
