"""The local keyring, a key service in one file: `file:PATH`.

What the file says is `keyring_document`'s, how it is read and replaced `keyring_file`'s, and the
form of wrapped keys `local_wrap`'s.
"""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from modcrypt.aead import TagError
from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
)
from modcrypt.keys import KEY_LENGTHS, Key, KeyLike, as_key
from modcrypt.kms.client import Capabilities, MasterKey
from modcrypt.kms.keyring import keyring_file
from modcrypt.kms.keyring.keyring_document import (
    DESTROYED,
    DISABLED,
    ENABLED,
    FIRST,
    MAX_ID,
    Edition,
    Master,
    Seal,
    Sealed,
    decode_document,
    encode_document,
    is_id,
    new_version,
)
from modcrypt.kms.keyring.keyring_passphrase import (
    Ask,
    Passphrase,
    Seals,
    asker,
    asker_of_reference,
)
from modcrypt.kms.local_wrap import local_aad, parse_wrapped, wrapped_text
from modcrypt.kms.private_files import check_owner, check_private
from modcrypt.kms.uris import KmsUri, parse_kms_uri
from modcrypt.tracebacks import hide_frames

__all__ = ["Keyring", "Passphrase", "check_key_id", "keyring_path", "open_keyring"]

SCRYPT_N = 2**17
"""Cost of a new passphrase: 128 MiB and about a third of a second, as OWASP recommends."""

BATCH = 1000


def check_key_id(master_key_id: str) -> None:
    """Check that a keyring can have a master key of this id.

    Raises:
        ValueError: it can't.
    """
    if not is_id(master_key_id):
        raise ValueError(f"a master key's id has 1 to {MAX_ID} printable characters")


@dataclass(frozen=True)
class _State:
    """What was read of a file, and by what one sees that it is another one now."""

    stamp: keyring_file.Stamp
    edition: Edition
    masters: dict[str, Master]
    seal: Seal | None


_newest: dict[str, dict[str | None, int]] = {}
"""Path to the keyrings, by id, that this process has seen there: the newest generation of each."""


class Keyring:
    """A key service in a file: a `KmsClient` and a `KeyAdmin`, from any thread and process.

    What another process changes holds from the next call on. Updates wait for each other and are
    complete or not there. Master key ids have 1 to 1024 printable characters.

    Args:
        path: of the file, which `create` makes.
        passphrase: under which it is sealed; with one, a keyring in the clear is refused, since
            it may have been put in the place of the sealed one.
        default_key: id of the master key to use where none is named.

    Raises:
        FileNotFoundError: there is no such file.
        KeyAccessDeniedError: the passphrase is missing or wrong.
        KeyMaterialError: the file is no keyring, or a malformed one.
        KeyRetrievalError: it is in the clear and others can read it, or it was not to be; it
            belongs to another user; or it is older than one that this process has seen.
        ValueError: an empty or overlong passphrase.
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
        self._prepare(path, asker(passphrase), default_key)
        self._state = self._load(self.path)

    def _prepare(
        self,
        path: str | os.PathLike[str],
        ask: Ask | None,
        default_key: str | None = None,
    ) -> None:
        self.path = os.path.abspath(path)
        self.default_key = default_key
        self._seals = Seals(self.path, ask)

    @classmethod
    @hide_frames
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        passphrase: Passphrase | None = None,
        plaintext: bool = False,
    ) -> Keyring:
        """Make a new keyring, without keys, that only its owner can read (mode 0600).

        Args:
            path: of the file.
            passphrase: to seal it under.
            plaintext: whether its keys shall be in the clear instead.

        Raises:
            FileExistsError: there is a file.
            ValueError: neither a passphrase nor `plaintext`, or both.
        """
        ask = _checked_protection(passphrase, plaintext)
        ring = cls.__new__(cls)
        ring._prepare(path, ask)
        keyring_file.check_absent(ring.path)  # before anyone is asked for a passphrase
        seal = ring._seals.make(ask, SCRYPT_N)
        keyring_file.create(ring.path, encode_document({}, seal, FIRST.following()))
        ring._state = ring._load(ring.path)
        return ring

    def __repr__(self) -> str:
        return f"Keyring({self.path!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Keyring can't be pickled or copied: open its URI again instead")

    # --- as a KmsClient ---

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key of 16, 24 or 32 bytes under the master key's newest version.

        Raises:
            KeyNotFoundError: there is no such master key.
            KeyDisabledError: it is disabled or destroyed.
            ValueError: a key of another length.
        """
        return self.wrap_many([key], master_key_id, aad=aad)[0]

    @hide_frames
    def wrap_many(
        self, keys: Sequence[bytes], master_key_id: str, *, aad: bytes = b""
    ) -> list[str]:
        """Wrap several keys; raises as `wrap`."""
        for key in keys:
            if len(key) not in KEY_LENGTHS:
                raise ValueError(f"an AES key has 16, 24 or 32 bytes, not {len(key)}")
        version = self._master(master_key_id).wrapping()
        seal, bound = version.cipher.seal_block, local_aad(master_key_id, aad)
        return [wrapped_text(version.number, seal(key, bound)) for key in keys]

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key under the version that wrapped it, or any that fits if it doesn't say.

        Raises:
            KeyNotFoundError: there is no such master key, or no such version.
            KeyDisabledError: it, or that version, is disabled or destroyed.
            KeyMaterialError: no wrapped key; or altered, of another master key or other AAD.
        """
        master = self._master(master_key_id)
        number, block = parse_wrapped(wrapped)
        bound = local_aad(master_key_id, aad)
        for version in master.unwrapping(number):
            with contextlib.suppress(TagError):
                return version.cipher.open_block(block, bound)
        raise KeyMaterialError(
            f"a wrapped key does not unwrap under master key {master_key_id}: altered, wrapped "
            "under another one or for another use; AES-GCM cannot tell which"
        )

    @hide_frames
    def rewrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key anew under the master key's newest version; raises as `unwrap`."""
        return self.wrap(self.unwrap(wrapped, master_key_id, aad=aad), master_key_id, aad=aad)

    def is_current(self, wrapped: str, master_key_id: str) -> bool | None:
        """Tell whether the newest version wrapped a key; None where the text doesn't tell."""
        newest = self._master(master_key_id).versions[-1]
        number, block = parse_wrapped(wrapped)
        if number is not None:
            return number == newest.number
        if newest.key is not None:
            with contextlib.suppress(TagError):
                newest.cipher.open_block(block, local_aad(master_key_id, b""))
                return True
        return None  # of an older version, or bound to an AAD that isn't known here

    # --- as a KeyAdmin ---

    @hide_frames
    def create_key(
        self, master_key_id: str, *, value: KeyLike | None = None, length: int = 32
    ) -> MasterKey:
        """Add a master key.

        Args:
            master_key_id: its id: not that of a destroyed one either.
            value: Key, or its 16, 24 or 32 bytes, if it is one that is in use elsewhere.
            length: of a random one, in bytes.

        Raises:
            ValueError: there is one of that id, or the id or the length is none.
        """
        check_key_id(master_key_id)
        if value is not None and not isinstance(value, Key | bytes):
            raise TypeError(f"a master key is bytes, not {type(value).__name__}")
        if (length if value is None else len(value)) not in KEY_LENGTHS:
            raise ValueError("a master key has 16, 24 or 32 bytes")
        key = Key.generate(length) if value is None else as_key(value)

        def change(masters: dict[str, Master]) -> None:
            if master_key_id in masters:
                raise ValueError(f"{self.path} has a master key {master_key_id} already")
            masters[master_key_id] = Master(master_key_id, True, (new_version(1, key),))

        return self._update(change).masters[master_key_id].described()

    def list_keys(self) -> list[MasterKey]:
        """Give all master keys, by id."""
        masters = self._current().masters
        return [masters[name].described() for name in sorted(masters)]

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Add a version of 256 bits, which wraps from now on; older ones unwrap as before.

        Raises:
            KeyNotFoundError: there is no such master key.
            KeyDisabledError: it is disabled or destroyed.
        """

        def change(master: Master) -> Master:
            version = new_version(master.wrapping().number + 1, Key.generate(32))
            return replace(master, versions=(*master.versions, version))

        return self._update_key(master_key_id, change)

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Stop a master key from wrapping and unwrapping; or only older versions from unwrapping.

        Args:
            master_key_id: its id.
            version: up to which, this one included, versions unwrap no more; not the newest.

        Raises:
            KeyNotFoundError: there is no such master key.
            ValueError: there is no such version, or it is the newest.
        """

        def change(master: Master) -> Master:
            if version is None:
                return replace(master, enabled=False)
            _check_older(master, version)
            return master.in_states(range(1, version + 1), DISABLED)

        return self._update_key(master_key_id, change)

    def enable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Undo `disable_key`: have a master key wrap and unwrap again, or one version unwrap.

        Args:
            master_key_id: its id.
            version: the one version to enable; None for the master key, whose versions are each
                enabled or disabled as before.

        Raises:
            KeyNotFoundError: there is no such master key.
            KeyDisabledError: it, or that version, is destroyed: for good.
            ValueError: there is no such version.
        """

        def change(master: Master) -> Master:
            number = len(master.versions) if version is None else version
            _check_version(master, number)
            master.check_kept(master.versions[number - 1])
            if version is None:
                return replace(master, enabled=True)
            return master.in_states(range(number, number + 1), ENABLED)

        return self._update_key(master_key_id, change)

    def destroy_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Take a master key, or one older version of it, out of the file for good.

        What it wrapped can never be unwrapped again, where no copy of the file is left: in a
        backup, a snapshot or the disk's free blocks. Its id and versions stay on record.

        Args:
            master_key_id: its id.
            version: the one version to destroy, not the newest; None for all of them.

        Raises:
            KeyNotFoundError: there is no such master key.
            ValueError: there is no such version, or it is the newest.
        """

        def change(master: Master) -> Master:
            if version is None:
                every = range(1, len(master.versions) + 1)
                return replace(master, enabled=False).in_states(every, DESTROYED)
            _check_older(master, version)
            return master.in_states(range(version, version + 1), DESTROYED)

        return self._update_key(master_key_id, change)

    @hide_frames
    def change_passphrase(
        self, passphrase: Passphrase | None = None, *, plaintext: bool = False
    ) -> None:
        """Seal the keyring under another passphrase, or no longer.

        The master keys stay the same: who has an older copy of the file and its passphrase has
        them. Other processes need the new passphrase from now on.

        Args:
            passphrase: the new one.
            plaintext: whether the keys shall be in the clear instead.

        Raises:
            ValueError: neither a passphrase nor `plaintext`, or both.
        """
        ask = _checked_protection(passphrase, plaintext)
        self._update(lambda masters: None, reseal=(ask, self._seals.make(ask, SCRYPT_N)))

    # --- the file behind it ---

    def _master(self, master_key_id: str) -> Master:
        master = self._current().masters.get(master_key_id)
        if master is None:
            raise self._unknown(master_key_id)
        return master

    def _unknown(self, master_key_id: str) -> KeyNotFoundError:
        # An id may come from a file that someone made up.
        shown = master_key_id if is_id(master_key_id) else "of such an id"
        return KeyNotFoundError(f"the keyring {self.path} has no master key {shown}")

    def _current(self) -> _State:
        """Return what the file says now."""
        if keyring_file.stamp(os.stat(self.path)) != self._state.stamp:
            self._state = self._load(self.path)
        return self._state

    @hide_frames  # a document in the clear among them
    def _load(self, path: str) -> _State:
        """Read the file, and refuse one that is older than another that was seen at its place."""
        while True:
            try:
                state = self._read(path)
            except KeyMaterialError as error:
                raise KeyMaterialError(f"the keyring {self.path}: {error}") from None
            if self._seen(state.edition):
                return state
            if keyring_file.stamp(os.stat(path)) == state.stamp:  # or it was replaced meanwhile
                raise KeyRetrievalError(
                    f"the keyring {self.path} is older than this process has seen it: it was "
                    "rolled back to a state in which keys may work that were disabled or destroyed "
                    "since; restart the process if you restored a backup on purpose"
                )

    def _read(self, path: str) -> _State:
        data, status = keyring_file.read(path)
        check_owner(status, f"the keyring {self.path}")
        document = decode_document(data)
        stamp, content, seal = keyring_file.stamp(status), document.content, None
        if isinstance(content, Sealed):
            content, seal = self._unsealed(content)
        else:
            self._check_clear(status)
        return _State(stamp, document.edition, content, seal)

    def _seen(self, edition: Edition) -> bool:
        """Note an edition; return False if it is older than one that was seen in its place.

        Another keyring may take the place of one, but not one from before keyrings had ids.
        """
        for path in {self.path, os.path.realpath(self.path)}:
            seen = _newest.setdefault(path, {})
            if edition.generation < (
                max(seen.values(), default=0) if edition.id is None else seen.get(edition.id, 0)
            ):
                return False
            seen[edition.id] = edition.generation
        return True

    def _check_clear(self, status: os.stat_result) -> None:
        if self._seals.ask is not None:
            raise KeyRetrievalError(
                f"a passphrase is given, but the keyring {self.path} is in the clear; it may have "
                "been put in the place of a sealed one: if not, open it without a passphrase"
            )
        check_private(status, f"the keyring {self.path} has its keys in the clear")

    def _unsealed(self, sealed: Sealed) -> tuple[dict[str, Master], Seal]:
        seal = self._seals.find(sealed.scrypt)
        with contextlib.suppress(TagError):
            return sealed.opened(seal), seal
        self._seals.forget(sealed.scrypt)
        raise KeyAccessDeniedError(
            f"the keyring {self.path} does not open: a wrong passphrase or altered bytes; AES-GCM "
            "cannot tell which"
        )

    def _update_key(self, master_key_id: str, change: Callable[[Master], Master]) -> MasterKey:
        def change_it(masters: dict[str, Master]) -> None:
            if master_key_id not in masters:
                raise self._unknown(master_key_id)
            masters[master_key_id] = change(masters[master_key_id])

        return self._update(change_it).masters[master_key_id].described()

    def _update(
        self,
        change: Callable[[dict[str, Master]], None],
        reseal: tuple[Ask | None, Seal | None] | None = None,
    ) -> _State:
        """Read, change and replace the file while no one else does.

        Args:
            change: takes the master keys as the file has them, and alters the dict.
            reseal: what tells the passphrase from now on, and the key derived from it.
        """
        self._current()  # asks for a passphrase, if it must, before others have to wait
        path = os.path.realpath(self.path)  # a symbolic link stays one
        with keyring_file.locked(path) as old:
            state = self._load(path)
            masters, edition = dict(state.masters), state.edition.following()
            change(masters)
            ask, seal = reseal or (self._seals.ask, state.seal)
            # No local variable holds the document: it may be in the clear.
            status = keyring_file.replace(
                path, encode_document(masters, seal, edition), old, private=seal is None
            )
            self._seals.ask = ask
            self._state = _State(keyring_file.stamp(status), edition, masters, seal)
            self._seen(edition)
            return self._state


@hide_frames
def _checked_protection(passphrase: Passphrase | None, plaintext: bool) -> Ask | None:
    if (passphrase is not None) == plaintext:
        raise ValueError(
            "a keyring is sealed under a passphrase or, with plaintext=True, in the clear: give "
            "one of the two"
        )
    return asker(passphrase)


def _check_version(master: Master, version: int) -> None:
    newest = len(master.versions)
    if not 0 < version <= newest:
        raise ValueError(f"master key {master.id} has no version {version}, but 1 to {newest}")


def _check_older(master: Master, version: int) -> None:
    _check_version(master, version)
    if version == len(master.versions):
        raise ValueError(
            f"version {version} is the newest of master key {master.id}: rotate the key first"
        )


# --- its URI -------------------------------------------------------------------------------------


@hide_frames
def open_keyring(uri: str, *, passphrase: Passphrase | None = None) -> Keyring:
    """Open the keyring that a URI names: `file:PATH[?passphrase=env:NAME|file:PATH][#KEY]`.

    Args:
        uri: its path is relative or absolute, with percent-escapes. The query says where the
            passphrase is: in an environment variable, or in the first line of a file. The
            fragment names the default master key.
        passphrase: if the URI doesn't say where it is.

    Raises:
        ValueError: no such URI, or a passphrase is given twice.
        FileNotFoundError: there is no such file; `Keyring.create` makes one.
        KeyRetrievalError: as of `Keyring`.
    """
    parsed = _parsed(uri)
    path = _path_of(parsed.location)
    if "passphrase" in parsed.query:
        if passphrase is not None:
            raise ValueError("the passphrase is given, and the keyring's URI says where it is, too")
        passphrase = asker_of_reference(parsed.query["passphrase"])
    return Keyring(path, passphrase=passphrase, default_key=parsed.fragment or None)


def keyring_path(uri: str) -> str:
    """Give the path of the file that a keyring's URI names, whether it is there or not.

    Raises:
        ValueError: no such URI.
    """
    return _path_of(_parsed(uri).location)


def _parsed(uri: str) -> KmsUri:
    parsed = parse_kms_uri(uri, frozenset({"passphrase"}))
    if parsed.scheme != "file":
        raise ValueError("the URI of a keyring is file:PATH")
    return parsed


def _path_of(location: str) -> str:
    if location.startswith("//"):
        host, _, rest = location[2:].partition("/")
        if host not in ("", "localhost"):
            raise ValueError("a file: URI names no other machine: file:PATH or file:///PATH")
        location = "/" + rest
    path = os.fsdecode(urllib.parse.unquote_to_bytes(os.fsencode(location)))
    if not path.strip("/"):
        raise ValueError("the URI of a keyring names its file: file:PATH")
    return os.path.expanduser(path)  # the shell leaves the ~ of file:~/x alone
