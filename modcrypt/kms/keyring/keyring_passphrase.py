"""The passphrase of a keyring: its sources, and the keys derived from it."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeAlias

from modcrypt.errors import KeyAccessDeniedError
from modcrypt.io.private_files import read_secret
from modcrypt.keys import Secret
from modcrypt.kms.key_references import PASSPHRASE_KINDS, check_reference, read_descriptor
from modcrypt.kms.keyring.passphrase_encryption import PassphraseKey, Scrypt
from modcrypt.runtime.fork_safety import fork_safe
from modcrypt.runtime.tracebacks import hide_frames

Ask: TypeAlias = Callable[[], str | bytes]
"""A function that returns a passphrase, called when the passphrase is needed."""

Passphrase: TypeAlias = str | bytes | Ask
"""A passphrase (text becomes UTF-8), or a function that returns one when it is needed."""

MAX_PASSPHRASE = 4096
"""Length limit of a passphrase, in bytes."""


@hide_frames
def make_asker(passphrase: Passphrase | None) -> Ask | None:
    """Return a function that returns the passphrase; raise now if the argument is invalid."""
    if passphrase is None or callable(passphrase):
        return passphrase
    return Secret(encode_passphrase(passphrase))


@hide_frames
def encode_passphrase(value: str | bytes) -> bytes:
    """Return the bytes of a passphrase; raise ValueError if it is empty or too long."""
    if not isinstance(value, str | bytes):
        raise TypeError(f"a passphrase must be str or bytes, not {type(value).__name__}")
    data = b""
    with contextlib.suppress(UnicodeEncodeError):  # which contains the passphrase
        # surrogateescape is for bytes of environment variables that are not UTF-8.
        data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    if not data or len(data) > MAX_PASSPHRASE:
        raise ValueError(f"a passphrase must have 1 to {MAX_PASSPHRASE} bytes of UTF-8")
    return data


class PassphraseKeys:
    """The keys derived from the passphrases that `ask` returns, each derived only once."""

    def __init__(self, path: str, ask: Ask | None) -> None:
        self.ask = ask
        self._path = path
        self._known: dict[Scrypt, PassphraseKey] = {}
        self._deriving = fork_safe(threading.Lock())  # each derivation takes 128 MiB

    @hide_frames
    def find(self, scrypt: Scrypt) -> PassphraseKey:
        """Return the derived key that encrypts a file.

        Raise KeyAccessDeniedError if the passphrase is missing or invalid; and as `Scrypt.derive`.
        """
        with self._deriving:
            if scrypt not in self._known:
                self._known[scrypt] = scrypt.derive(self._ask_passphrase(self.ask))
            return self._known[scrypt]

    def forget(self, scrypt: Scrypt) -> None:
        """Forget a derived key, because the user may enter another passphrase next time."""
        self._known.pop(scrypt, None)

    @hide_frames
    def make(self, ask: Ask | None, n: int) -> PassphraseKey | None:
        """Derive and cache a key from a new passphrase at the cost `n`; raise as `find`."""
        if ask is None:
            return None
        key = PassphraseKey.new(self._ask_passphrase(ask), n)
        self._known[key.scrypt] = key
        return key

    def _ask_passphrase(self, ask: Ask | None) -> bytes:
        if ask is None:
            raise KeyAccessDeniedError(
                f"the keyring {self._path} is encrypted: pass passphrase=, or add its place to the "
                "URI: ?passphrase=env:NAME or ?passphrase=file:PATH"
            )
        passphrase = ask()
        try:
            return encode_passphrase(passphrase)
        except ValueError as error:
            raise KeyAccessDeniedError(f"the keyring {self._path}: {error}") from None


def check_passphrase_reference(reference: str) -> None:
    """Raise ValueError if a reference is malformed; it may be a secret, so messages omit it."""
    check_reference(reference, "passphrase", PASSPHRASE_KINDS)


def make_reference_asker(reference: str, keyring: str = "", *, shown: bool = False) -> Ask:
    """Return a function that reads the passphrase at `env:NAME`, `file:PATH`, `fd:N` or `prompt`.

    `keyring` is the keyring's URI, for a prompt. Messages repeat a reference only if it is `shown`,
    as a part of a URI; elsewhere, a user may have typed the passphrase itself. Raise ValueError if
    the reference has another form, and KeyRetrievalError if the descriptor is not open, or at its
    end.
    """
    check_passphrase_reference(reference)
    kind, _, where = reference.partition(":")
    if kind == "env":
        return lambda: _read_environment(where, where if shown else _HIDDEN)
    if kind == "file":
        return lambda: _read_file(os.path.expanduser(where), where if shown else _HIDDEN)
    if kind == "fd":  # which can be read only once
        return Secret(_first_line(read_descriptor(int(where), "passphrase")))
    return lambda: ask_passphrase(keyring.partition("#")[0].partition("?")[0])


_HIDDEN = "(not repeated here, it may be the passphrase)"


def _read_environment(name: str, display: str) -> bytes:
    if not (value := os.environb.get(os.fsencode(name))):
        raise KeyAccessDeniedError(
            f"the environment variable {display} with the passphrase is not set"
        )
    return value


@hide_frames
def _read_file(path: str, display: str) -> bytes:
    try:
        return _first_line(read_secret(path, MAX_PASSPHRASE + 2, "passphrase file"))
    except OSError as error:
        raise KeyAccessDeniedError(f"the passphrase file {display}: {error.strerror}") from None


def _first_line(data: bytes) -> bytes:
    return data.partition(b"\n")[0].rstrip(b"\r")


@hide_frames
def ask_passphrase(
    keyring: str, *, twice: bool = False, hint: str = "name its place by passphrase="
) -> str:
    """Ask for the passphrase of a keyring on the terminal, without echo; if `twice`, compare.

    `hint` says what to do without a terminal.
    """
    if not _is_on_terminal():
        raise ValueError(
            f"the passphrase of {keyring} is needed, but no terminal is available to ask for it; "
            f"{hint}"
        )
    try:
        passphrase = getpass.getpass(f"Passphrase of {keyring}: ")
        if twice and getpass.getpass("Repeat the passphrase: ") != passphrase:
            raise ValueError("the two passphrases differ")
    except EOFError:
        passphrase = ""
    if not passphrase:
        raise ValueError(f"no passphrase was entered for {keyring}")
    return passphrase


def _is_on_terminal() -> bool:
    """Return whether a person can see stderr and answer on a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    if sys.stdin is not None and sys.stdin.isatty():
        return True
    try:  # stdin may be a pipe of a terminal session
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
