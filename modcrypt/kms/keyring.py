"""The local keyring: master keys by id and version in one file, sealed under a passphrase.

    {"format": "modcrypt-keyring", "version": 1, "protection": "scrypt",
     "scrypt": {"n": 131072, "r": 8, "p": 1, "salt": "..."},
     "sealed": base64( nonce (12) | ciphertext | tag (16) )}

What is sealed are the keys, ids and all: AES-256-GCM under the key that scrypt (RFC 7914) makes of
the passphrase, with the other members as AAD. A keyring in the clear has `"protection": "none"`
and, in place of the last two, the keys themselves:

    {"keys": {"kf": {"enabled": true, "versions": [
        {"version": 1, "created": "2026-01-31T12:00:00Z", "state": "enabled", "value": base64}]}}}

The file is only ever replaced as a whole: locked, written beside, synced, renamed. So readers need
no lock, and a process that is killed leaves the old file or the new one. What an update leaves on
the disk's free blocks, in snapshots and in backups is still sealed under the old passphrase.

Wrapped keys have the form of parquet-java's LocalWrap:

    {"masterKeyVersion":"3","encryptedKey":"base64( nonce (12) | ciphertext | tag (16) )"}

AAD: the master key's id in UTF-8; then a zero byte and the caller's AAD, if there is one. The bare
base64 of PyArrow's and parquet-java's samples, and their version NO_VERSION, unwrap as well.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NoReturn, TypeAlias

from modcrypt.aead import BLOCK_OVERHEAD, GcmCipher, TagError
from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
)
from modcrypt.keys import KEY_LENGTHS, Key
from modcrypt.kms.client import Capabilities, MasterKey
from modcrypt.kms.uris import parse_kms_uri
from modcrypt.storage import FileSource

__all__ = ["Keyring", "Passphrase", "local_aad", "open_keyring", "parse_wrapped", "wrapped_text"]

Passphrase: TypeAlias = str | bytes | Callable[[], str | bytes]
"""A passphrase (text is taken as UTF-8), or a function that asks for it when it is needed."""

FORMAT = "modcrypt-keyring"
FORMAT_VERSION = 1

SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**17, 8, 1
"""Cost of a passphrase: 128 MiB and about a third of a second, as OWASP recommends for scrypt."""
SALT_SIZE = 16

MIN_SCRYPT_N, MAX_SCRYPT_N = 2**14, 2**20
"""Costs that are taken from a file: up to 1 GiB of memory with the largest `r`."""
MAX_SCRYPT_R, MAX_SCRYPT_P = 8, 4

MAX_FILE = 64 << 20
"""Bytes of the largest keyring file."""
MAX_VERSIONS = 100_000
"""Most versions, over all master keys of a file."""
MAX_ID = 1024
"""Characters of the longest master key id."""
MAX_PASSPHRASE = 4096
"""Bytes of the longest passphrase."""
MAX_LOCAL_WRAPPED = 1024
"""Characters of the longest wrapped key; those made here have 130 at most."""
BATCH = 1000

ENABLED, DISABLED, DESTROYED = "enabled", "disabled", "destroyed"
NO_VERSION = "NO_VERSION"

_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_NUMBER = re.compile(r"[1-9]\d{0,8}", re.ASCII)


# --- wrapped keys --------------------------------------------------------------------------------


def wrapped_text(version: int | None, block: bytes) -> str:
    """Give the text of a wrapped key; a version of None is NO_VERSION."""
    encoded = base64.b64encode(block).decode()
    return f'{{"masterKeyVersion":"{version or NO_VERSION}","encryptedKey":"{encoded}"}}'


def parse_wrapped(text: str) -> tuple[int | None, bytes]:
    """Give version, None if it has none, and block of a wrapped key.

    Raises:
        KeyMaterialError: it is no wrapped key in one of the forms above.
    """
    if len(text) > MAX_LOCAL_WRAPPED:
        raise KeyMaterialError(f"a wrapped key of more than {MAX_LOCAL_WRAPPED} characters")
    version, encoded = NO_VERSION, text
    if text.startswith("{"):
        members = _members(_json(text), "masterKeyVersion", "encryptedKey")
        version, encoded = members["masterKeyVersion"], members["encryptedKey"]
    if version != NO_VERSION and not (isinstance(version, str) and _NUMBER.fullmatch(version)):
        raise KeyMaterialError("the masterKeyVersion of a wrapped key is no number")
    block = _from_base64(encoded, "a wrapped key")
    if len(block) - BLOCK_OVERHEAD not in KEY_LENGTHS:
        raise KeyMaterialError(f"a wrapped key of {len(block)} bytes holds no AES key")
    return (None if version == NO_VERSION else int(version)), block


def local_aad(master_key_id: str, aad: bytes) -> bytes:
    """Give what a wrapped key is bound to; an id has no zero byte, so the two can't be confused."""
    return master_key_id.encode() + (b"\x00" + aad if aad else b"")


# --- what a file says ----------------------------------------------------------------------------


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is there twice")
    return members


def _no_number(text: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")


def _json(data: str | bytes) -> Any:
    """Parse JSON in UTF-8, strictly; the errors of `json` hold all of the text, so none is kept."""
    with contextlib.suppress(ValueError, RecursionError):
        text = data if isinstance(data, str) else data.decode()
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    raise KeyMaterialError("no JSON, or a member of it is there twice")


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _members(value: Any, *names: str) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise KeyMaterialError(f"an object with exactly {', '.join(names)} is wanted")
    return value


def _from_base64(text: Any, what: str) -> bytes:
    with contextlib.suppress(binascii.Error, ValueError):
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
        # Bits that the padding hides would make two texts of one key.
        if data and base64.b64encode(data).decode() == text:
            return data
    raise KeyMaterialError(f"{what} is no standard padded base64")


def _is_count(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high  # a bool is an int, too


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and value.isprintable()


@dataclass(frozen=True)
class _Version:
    """One version of a master key; `key` is None once it is destroyed."""

    number: int
    created: str
    state: str
    key: Key | None

    @cached_property
    def cipher(self) -> GcmCipher:
        assert self.key is not None  # who asks has looked at the state
        return GcmCipher(self.key)

    @classmethod
    def parse(cls, value: Any, number: int) -> _Version:
        state = value.get("state") if isinstance(value, dict) else None
        names = ["version", "created", "state", *(["value"] if state != DESTROYED else [])]
        members = _members(value, *names)
        created, key = members["created"], None
        if not _is_count(members["version"], number, number):
            raise KeyMaterialError(f"version {number} is not where it should be")
        if state not in (ENABLED, DISABLED, DESTROYED):
            raise KeyMaterialError(f"version {number} is in an unknown state")
        if not isinstance(created, str) or not _CREATED.fullmatch(created):
            raise KeyMaterialError(f"version {number} was created at no time in UTC")
        if state != DESTROYED:
            raw = _from_base64(members["value"], f"version {number}")
            if len(raw) not in KEY_LENGTHS:
                raise KeyMaterialError(f"version {number} is no AES key")
            key = Key(raw)
        return cls(number, created, state, key)


@dataclass(frozen=True)
class _Master:
    """A master key with all its versions, from 1 on."""

    id: str
    enabled: bool
    versions: tuple[_Version, ...]

    @classmethod
    def parse(cls, name: str, value: Any) -> _Master:
        members = _members(value, "enabled", "versions")
        enabled, versions = members["enabled"], members["versions"]
        if not isinstance(enabled, bool) or not isinstance(versions, list) or not versions:
            raise KeyMaterialError(f"master key {name} is malformed")
        parsed = (_Version.parse(one, number) for number, one in enumerate(versions, 1))
        return cls(name, enabled, tuple(parsed))

    def wrapping(self) -> _Version:
        """Give the version that wraps; raises KeyDisabledError."""
        newest = self.versions[-1]
        self._check(newest)
        return newest

    def unwrapping(self, number: int | None) -> Sequence[_Version]:
        """Give the versions that may open what was wrapped under `number`, the newest first."""
        if number is None:
            if able := [v for v in reversed(self.versions) if self.enabled and v.state == ENABLED]:
                return able
            number = len(self.versions)
        if number > len(self.versions):
            raise KeyNotFoundError(
                f"the keyring has no version {number} of master key {self.id}; its newest is "
                f"{len(self.versions)}"
            )
        version = self.versions[number - 1]
        self._check(version)
        return (version,)

    def _check(self, version: _Version) -> None:
        if version.state == DESTROYED:
            raise KeyDisabledError(f"version {version.number} of master key {self.id} is destroyed")
        if not self.enabled:
            raise KeyDisabledError(f"master key {self.id} is disabled in its keyring")
        if version.state != ENABLED:
            raise KeyDisabledError(
                f"version {version.number} of master key {self.id} is disabled in its keyring"
            )

    def described(self) -> MasterKey:
        """Give what may be told of it."""
        newest = self.versions[-1]
        return MasterKey(
            id=self.id,
            version=newest.number,
            enabled=self.enabled and newest.state == ENABLED,
            created=newest.created,
            disabled_versions=tuple(v.number for v in self.versions[:-1] if v.state != ENABLED),
        )


def _masters(keys: Any) -> dict[str, _Master]:
    """Read the keys of a file, down to the last one.

    Raises:
        KeyMaterialError: they are malformed, or too many.
    """
    if not isinstance(keys, dict) or not all(map(_is_id, keys)):
        raise KeyMaterialError("its keys are no object whose names are master key ids")
    masters = {name: _Master.parse(name, value) for name, value in keys.items()}
    if sum(len(master.versions) for master in masters.values()) > MAX_VERSIONS:
        raise KeyMaterialError(f"it has more than {MAX_VERSIONS} versions of master keys")
    return masters


# --- under a passphrase --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scrypt:
    """How a passphrase becomes a key (RFC 7914)."""

    n: int
    r: int
    p: int
    salt: bytes

    @classmethod
    def parse(cls, value: Any) -> _Scrypt:
        members = _members(value, "n", "r", "p", "salt")
        n, r, p = members["n"], members["r"], members["p"]
        if not (
            _is_count(n, MIN_SCRYPT_N, MAX_SCRYPT_N)
            and n & (n - 1) == 0
            and _is_count(r, 1, MAX_SCRYPT_R)
            and _is_count(p, 1, MAX_SCRYPT_P)
        ):
            raise KeyMaterialError("its scrypt parameters pass the limits")
        salt = _from_base64(members["salt"], "its salt")
        if len(salt) != SALT_SIZE:
            raise KeyMaterialError(f"its salt has {len(salt)} bytes, not {SALT_SIZE}")
        return cls(n, r, p, salt)

    def header(self) -> dict[str, Any]:
        """Give what stands in the file beside the sealed keys."""
        salt = base64.b64encode(self.salt).decode()
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "protection": "scrypt",
            "scrypt": {"n": self.n, "r": self.r, "p": self.p, "salt": salt},
        }

    def cipher(self, passphrase: bytes) -> GcmCipher:
        """Derive the key.

        Raises:
            KeyRetrievalError: there is not the memory that it takes.
        """
        size = 128 * self.n * self.r
        room = size + 128 * self.r * (self.p + 2) + (1 << 20)
        with contextlib.suppress(ValueError, MemoryError):
            return GcmCipher(
                Key(
                    hashlib.scrypt(
                        passphrase,
                        salt=self.salt,
                        n=self.n,
                        r=self.r,
                        p=self.p,
                        maxmem=room,
                        dklen=32,
                    )
                )
            )
        raise KeyRetrievalError(f"a keyring's passphrase takes {size >> 20} MiB of memory to try")


@dataclass(frozen=True)
class _Seal:
    """A key derived from a passphrase, and how it was."""

    scrypt: _Scrypt
    cipher: GcmCipher

    @classmethod
    def new(cls, passphrase: bytes) -> _Seal:
        scrypt = _Scrypt(SCRYPT_N, SCRYPT_R, SCRYPT_P, secrets.token_bytes(SALT_SIZE))
        return cls(scrypt, scrypt.cipher(passphrase))


def _passphrase_bytes(value: str | bytes) -> bytes:
    if not isinstance(value, str | bytes):
        raise TypeError(f"a passphrase is a str or bytes, not {type(value).__name__}")
    data = None
    if isinstance(value, bytes):
        data = value
    else:
        with contextlib.suppress(UnicodeEncodeError):  # which holds the passphrase
            data = value.encode("utf-8", "surrogateescape")  # as environment variables have it
    if not data or len(data) > MAX_PASSPHRASE:
        raise ValueError(f"a passphrase has 1 to {MAX_PASSPHRASE} bytes of UTF-8")
    return data


def _asker(passphrase: Passphrase | None) -> Callable[[], str | bytes] | None:
    """Give the function that tells the passphrase; a wrong argument is an error at once."""
    if passphrase is None or callable(passphrase):
        return passphrase
    known = _passphrase_bytes(passphrase)
    return lambda: known


def _file_bytes(keys: dict[str, Any], seal: _Seal | None) -> bytes:
    if seal is None:
        document = {"format": FORMAT, "version": FORMAT_VERSION, "protection": "none", "keys": keys}
    else:
        header = seal.scrypt.header()
        sealed = seal.cipher.seal_block(_compact(keys), _compact(header))
        document = {**header, "sealed": base64.b64encode(sealed).decode()}
    return json.dumps(document, indent=1).encode() + b"\n"


# --- the file ------------------------------------------------------------------------------------

_Stamp: TypeAlias = tuple[int, int, int, int]


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _read(path: str) -> tuple[bytes, os.stat_result]:
    with contextlib.closing(FileSource(path)) as source:
        if source.size > MAX_FILE:
            raise KeyMaterialError(f"it has more than {MAX_FILE >> 20} MiB")
        return source.read_at(0, source.size), os.fstat(source.fd)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[os.stat_result]:
    """Keep other updates out, of this process and others, and give the file's status.

    The lock is on the file itself, so nothing is left behind. Whoever waited for it may hold the
    lock of a file that was replaced meanwhile, and tries again.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # NFS locks only what is open for writing
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                status = os.fstat(fd)
                if os.path.samestat(status, os.stat(path)):
                    yield status
                    return
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)  # a fork may have copied the descriptor
        finally:
            os.close(fd)


def _replace(path: str, data: bytes, old: os.stat_result, mode: int) -> os.stat_result:
    """Replace the file, whose lock is held; gives the new one's status."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.tmp")
    with _naming(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # left by a process that was killed
        try:
            status = _write_private(temporary, data, old, mode)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    _sync_folder(folder)
    return status


def _create(path: str, data: bytes) -> None:
    """Write a new file.

    Raises:
        FileExistsError: there is one.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
    with _naming(path):
        try:
            _write_private(temporary, data, None, 0o600)
            _link(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    _sync_folder(folder)


def _link(temporary: str, path: str) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, refuses a file that is there
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        if os.path.lexists(path):  # no hard links on this file system: look, then rename
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.replace(temporary, path)


def _write_private(path: str, data: bytes, old: os.stat_result | None, mode: int) -> os.stat_result:
    """Write and sync a new file that nobody else can read before it is whole."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        status = os.fstat(fd)
        if old is not None and status.st_uid != old.st_uid:  # root updates a service's keyring
            os.fchown(fd, old.st_uid, -1)
        if old is not None and mode & stat.S_IRWXG and status.st_gid != old.st_gid:
            os.fchown(fd, -1, old.st_gid)
        os.fchmod(fd, mode)
        # Clocks of file systems are coarse, and inodes are used again: two updates in a row must
        # not look the same to who compares `_stamp`.
        os.utime(fd, ns=(now := time.time_ns(), now))
        os.fsync(fd)
        return os.fstat(fd)
    finally:
        os.close(fd)


def _sync_folder(folder: str) -> None:
    """Make the new name durable; the file is published by now, so a failure is none of it."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


# --- the keyring ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    """What was read of a file, and by what one sees that it is another one now."""

    stamp: _Stamp
    masters: dict[str, _Master]
    seal: _Seal | None


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
        KeyRetrievalError: it is in the clear and others can read it, or it was not to be.
        ValueError: an empty or overlong passphrase.
    """

    capabilities = Capabilities(aad=True, rewrap=True, batch=BATCH)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        passphrase: Passphrase | None = None,
        default_key: str | None = None,
    ) -> None:
        self._prepare(path, _asker(passphrase), default_key)
        self._state = self._load(self.path)[0]

    def _prepare(
        self,
        path: str | os.PathLike[str],
        ask: Callable[[], str | bytes] | None,
        default_key: str | None = None,
    ) -> None:
        self.path = os.path.abspath(path)
        self.default_key = default_key
        self._ask = ask
        self._seals: dict[_Scrypt, _Seal] = {}
        self._deriving = threading.Lock()  # each derivation takes 128 MiB

    @classmethod
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
        if os.path.lexists(ring.path):  # before anyone is asked for a passphrase
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), ring.path)
        seal = ring._adopt(ask)
        _create(ring.path, _file_bytes({}, seal))
        ring._state = ring._load(ring.path)[0]
        return ring

    def __repr__(self) -> str:
        return f"Keyring({self.path!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Keyring can't be pickled or copied: open its URI again instead")

    # --- as a KmsClient ---

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key of 16, 24 or 32 bytes under the master key's newest version.

        Raises:
            KeyNotFoundError: there is no such master key.
            KeyDisabledError: it is disabled or destroyed.
            ValueError: a key of another length.
        """
        return self.wrap_many([key], master_key_id, aad=aad)[0]

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

    def create_key(
        self, master_key_id: str, *, value: bytes | None = None, length: int = 32
    ) -> MasterKey:
        """Add a master key.

        Args:
            master_key_id: its id: not that of a destroyed one either.
            value: its bytes, 16, 24 or 32, if it is one that is in use elsewhere.
            length: of a random one, in bytes.

        Raises:
            ValueError: there is one of that id, or the id or the length is none.
        """
        if not _is_id(master_key_id):
            raise ValueError(f"a master key's id has 1 to {MAX_ID} printable characters")
        if value is not None and not isinstance(value, bytes):
            raise TypeError(f"a master key is bytes, not {type(value).__name__}")
        if (length if value is None else len(value)) not in KEY_LENGTHS:
            raise ValueError("a master key has 16, 24 or 32 bytes")

        def change(keys: dict[str, Any]) -> None:
            if master_key_id in keys:
                raise ValueError(f"{self.path} has a master key {master_key_id} already")
            raw = secrets.token_bytes(length) if value is None else value
            keys[master_key_id] = {"enabled": True, "versions": [_new_version(1, raw)]}

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

        def change(master: _Master, key: dict[str, Any]) -> None:
            number = master.wrapping().number + 1
            key["versions"].append(_new_version(number, secrets.token_bytes(32)))

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

        def change(master: _Master, key: dict[str, Any]) -> None:
            if version is None:
                key["enabled"] = False
                return
            _check_older(master, version)
            for one in key["versions"][:version]:
                if one["state"] == ENABLED:
                    one["state"] = DISABLED

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

        def change(master: _Master, key: dict[str, Any]) -> None:
            versions = key["versions"]
            if version is None:
                key["enabled"] = False
            else:
                _check_older(master, version)
                versions = versions[version - 1 : version]
            for one in versions:
                one["state"] = DESTROYED
                one.pop("value", None)

        return self._update_key(master_key_id, change)

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
        self._update(lambda keys: None, reseal=(ask, self._adopt(ask)))

    # --- the file behind it ---

    def _master(self, master_key_id: str) -> _Master:
        master = self._current().masters.get(master_key_id)
        if master is None:
            raise self._unknown(master_key_id)
        return master

    def _unknown(self, master_key_id: str) -> KeyNotFoundError:
        # An id may come from a file that someone made up.
        shown = master_key_id if _is_id(master_key_id) else "of such an id"
        return KeyNotFoundError(f"the keyring {self.path} has no master key {shown}")

    def _current(self) -> _State:
        """Give what the file says now."""
        if _stamp(os.stat(self.path)) != self._state.stamp:
            self._state = self._load(self.path)[0]
        return self._state

    def _load(self, path: str) -> tuple[_State, dict[str, Any]]:
        """Read the file; the keys are given in the clear, too, for an update."""
        try:
            data, status = _read(path)
            keys, seal = self._opened(_json(data), status)
            return _State(_stamp(status), _masters(keys), seal), keys
        except KeyMaterialError as error:
            raise KeyMaterialError(f"the keyring {self.path}: {error}") from None

    def _opened(self, document: Any, status: os.stat_result) -> tuple[Any, _Seal | None]:
        kind = document if isinstance(document, dict) else {}
        if kind.get("format") != FORMAT:
            raise KeyMaterialError(f"it is none: its format is not {FORMAT}")
        if not _is_count(kind.get("version"), FORMAT_VERSION, FORMAT_VERSION):
            raise KeyMaterialError(f"only version {FORMAT_VERSION} of its format is known here")
        if kind.get("protection") == "none":
            self._check_clear(status)
            return _members(document, "format", "version", "protection", "keys")["keys"], None
        if kind.get("protection") == "scrypt":
            return self._unsealed(
                _members(document, "format", "version", "protection", "scrypt", "sealed")
            )
        raise KeyMaterialError("it is protected in an unknown way")

    def _check_clear(self, status: os.stat_result) -> None:
        if self._ask is not None:
            raise KeyRetrievalError(
                f"a passphrase is given, but the keyring {self.path} is in the clear; it may have "
                "been put in the place of a sealed one: if not, open it without a passphrase"
            )
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise KeyRetrievalError(
                f"the keyring {self.path} has its keys in the clear, and others may use the file "
                f"(mode {stat.S_IMODE(status.st_mode):04o}): chmod 600 keeps it private"
            )

    def _unsealed(self, document: dict[str, Any]) -> tuple[Any, _Seal]:
        sealed = _from_base64(document["sealed"], "what is sealed")
        seal = self._seal_for(_Scrypt.parse(document["scrypt"]))
        with contextlib.suppress(TagError):
            return _json(seal.cipher.open_block(sealed, _compact(seal.scrypt.header()))), seal
        self._seals.pop(seal.scrypt, None)  # whoever asks again may be told another passphrase
        raise KeyAccessDeniedError(
            f"the keyring {self.path} does not open: a wrong passphrase or altered bytes; AES-GCM "
            "cannot tell which"
        )

    def _seal_for(self, scrypt: _Scrypt) -> _Seal:
        """Give the key derived so; that is done once, however often the file is read."""
        with self._deriving:
            if scrypt not in self._seals:
                self._seals[scrypt] = _Seal(scrypt, scrypt.cipher(self._passphrase(self._ask)))
            return self._seals[scrypt]

    def _adopt(self, ask: Callable[[], str | bytes] | None) -> _Seal | None:
        """Make and keep the seal of a new passphrase."""
        if ask is None:
            return None
        seal = _Seal.new(self._passphrase(ask))
        self._seals[seal.scrypt] = seal
        return seal

    def _passphrase(self, ask: Callable[[], str | bytes] | None) -> bytes:
        if ask is None:
            raise KeyAccessDeniedError(
                f"the keyring {self.path} is sealed: give passphrase=, or have the URI say where "
                "it is: ?passphrase=env:NAME or ?passphrase=file:PATH"
            )
        told = ask()
        try:
            return _passphrase_bytes(told)
        except ValueError as error:
            raise KeyAccessDeniedError(f"the keyring {self.path}: {error}") from None

    def _update_key(
        self, master_key_id: str, change: Callable[[_Master, dict[str, Any]], None]
    ) -> MasterKey:
        def change_it(keys: dict[str, Any]) -> None:
            if master_key_id not in keys:
                raise self._unknown(master_key_id)
            key = keys[master_key_id]
            change(_Master.parse(master_key_id, key), key)

        return self._update(change_it).masters[master_key_id].described()

    def _update(
        self,
        change: Callable[[dict[str, Any]], None],
        reseal: tuple[Callable[[], str | bytes] | None, _Seal | None] | None = None,
    ) -> _State:
        """Read, change and replace the file while no one else does."""
        self._current()  # asks for a passphrase, if it must, before others have to wait
        path = os.path.realpath(self.path)  # a symbolic link stays one
        with _locked(path) as old:
            state, keys = self._load(path)
            change(keys)
            seal = state.seal if reseal is None else reseal[1]
            masters = _masters(keys)  # nothing is written that could not be read again
            data = _file_bytes(keys, seal)
            if len(data) > MAX_FILE:
                raise ValueError(f"{self.path}: a keyring has at most {MAX_FILE >> 20} MiB")
            mode = stat.S_IMODE(old.st_mode) & (0o700 if seal is None else 0o777)
            status = _replace(path, data, old, mode)
            if reseal is not None:
                self._ask = reseal[0]
            self._state = _State(_stamp(status), masters, seal)
            return self._state


def _checked_protection(
    passphrase: Passphrase | None, plaintext: bool
) -> Callable[[], str | bytes] | None:
    if (passphrase is not None) == plaintext:
        raise ValueError(
            "a keyring is sealed under a passphrase or, with plaintext=True, in the clear: give "
            "one of the two"
        )
    return _asker(passphrase)


def _check_older(master: _Master, version: int) -> None:
    newest = len(master.versions)
    if version == newest:
        raise ValueError(
            f"version {version} is the newest of master key {master.id}: rotate the key first"
        )
    if not 0 < version < newest:
        raise ValueError(f"master key {master.id} has no version {version}, but 1 to {newest}")


def _new_version(number: int, raw: bytes) -> dict[str, Any]:
    return {
        "version": number,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "state": ENABLED,
        "value": base64.b64encode(raw).decode(),
    }


# --- its URI -------------------------------------------------------------------------------------


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
    parsed = parse_kms_uri(uri, frozenset({"passphrase"}))
    if parsed.scheme != "file":
        raise ValueError("the URI of a keyring is file:PATH")
    path = _path_of(parsed.location)
    if "passphrase" in parsed.query:
        if passphrase is not None:
            raise ValueError("the passphrase is given, and the keyring's URI says where it is, too")
        passphrase = _referred(parsed.query["passphrase"])
    return Keyring(path, passphrase=passphrase, default_key=parsed.fragment or None)


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


def _referred(reference: str) -> Callable[[], bytes]:
    kind, _, where = reference.partition(":")
    if kind == "env" and where:
        return lambda: _from_environment(where)
    if kind == "file" and where:
        return lambda: _from_file(os.path.expanduser(where))
    raise ValueError(
        "passphrase= takes env:NAME or file:PATH, never the passphrase itself (it is not repeated "
        "here)"
    )


def _from_environment(name: str) -> bytes:
    value = os.environb.get(os.fsencode(name))
    if not value:
        raise KeyAccessDeniedError(
            f"the environment variable {name} should hold a keyring's passphrase; it is not set"
        )
    return value


def _from_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.readline(MAX_PASSPHRASE + 2).rstrip(b"\r\n")
    except OSError as error:
        raise KeyAccessDeniedError(f"the passphrase file {path}: {error.strerror}") from None
