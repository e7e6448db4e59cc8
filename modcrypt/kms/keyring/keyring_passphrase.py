"""The passphrase of a keyring: where it comes from, and the keys that are derived from it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TypeAlias

from modcrypt.errors import KeyAccessDeniedError
from modcrypt.fork_safety import fork_safe
from modcrypt.keys import Secret
from modcrypt.kms.keyring.keyring_document import Scrypt, Seal
from modcrypt.kms.private_files import read_secret
from modcrypt.tracebacks import hide_frames

__all__ = ["Ask", "Passphrase", "Seals", "asker", "asker_of_reference"]

Ask: TypeAlias = Callable[[], str | bytes]
"""A function that asks for a passphrase when it is needed."""

Passphrase: TypeAlias = str | bytes | Ask
"""A passphrase (text is taken as UTF-8), or a function that asks for it when it is needed."""

MAX_PASSPHRASE = 4096
"""Bytes of the longest passphrase."""


@hide_frames
def asker(passphrase: Passphrase | None) -> Ask | None:
    """Give the function that tells the passphrase; a wrong argument is an error at once.

    Raises:
        ValueError: an empty or overlong passphrase.
        TypeError: no passphrase.
    """
    if passphrase is None or callable(passphrase):
        return passphrase
    return Secret(_checked(passphrase))


def _checked(value: str | bytes) -> bytes:
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


class Seals:
    """The keys derived from a keyring's passphrases, each once, however often the file is read.

    Args:
        path: of the keyring, for messages.
        ask: tells the passphrase; None where there is none.
    """

    def __init__(self, path: str, ask: Ask | None) -> None:
        self.ask = ask
        self._path = path
        self._known: dict[Scrypt, Seal] = {}
        self._deriving = fork_safe(threading.Lock())  # each derivation takes 128 MiB

    @hide_frames
    def find(self, scrypt: Scrypt) -> Seal:
        """Give the key that a file is sealed under.

        Raises:
            KeyAccessDeniedError: there is no passphrase, or it is none.
            KeyRetrievalError: there is not the memory that deriving takes.
        """
        with self._deriving:
            if scrypt not in self._known:
                self._known[scrypt] = Seal(scrypt, scrypt.cipher(self._told(self.ask)))
            return self._known[scrypt]

    def forget(self, scrypt: Scrypt) -> None:
        """Ask again next time: whoever is asked may tell another passphrase."""
        self._known.pop(scrypt, None)

    @hide_frames
    def make(self, ask: Ask | None, n: int) -> Seal | None:
        """Derive and keep a key of a new passphrase, at the cost `n`; raises as `find`."""
        if ask is None:
            return None
        seal = Seal.new(self._told(ask), n)
        self._known[seal.scrypt] = seal
        return seal

    def _told(self, ask: Ask | None) -> bytes:
        if ask is None:
            raise KeyAccessDeniedError(
                f"the keyring {self._path} is sealed: give passphrase=, or have the URI say where "
                "it is: ?passphrase=env:NAME or ?passphrase=file:PATH"
            )
        told = ask()
        try:
            return _checked(told)
        except ValueError as error:
            raise KeyAccessDeniedError(f"the keyring {self._path}: {error}") from None


# --- where a URI says it is ----------------------------------------------------------------------


def asker_of_reference(reference: str) -> Ask:
    """Give the function that reads the passphrase at `env:NAME` or `file:PATH`.

    Raises:
        ValueError: no such reference.
    """
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


@hide_frames
def _from_file(path: str) -> bytes:
    try:
        data = read_secret(path, MAX_PASSPHRASE + 2, "passphrase file")
        return data.partition(b"\n")[0].rstrip(b"\r")
    except OSError as error:
        raise KeyAccessDeniedError(f"the passphrase file {path}: {error.strerror}") from None
