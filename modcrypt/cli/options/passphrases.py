"""The passphrase of a keyring: from a file, the environment, a descriptor or a terminal.

It is never an argument. Messages do not repeat the reference to it, because a user may have typed
the passphrase itself there.
"""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import dataclass

import click

from modcrypt.cli import key_refs
from modcrypt.cli.shared import combine_options
from modcrypt.errors import KeyNotFoundError, KeyRetrievalError
from modcrypt.tracebacks import hide_frames

__all__ = [
    "PassphraseOptions",
    "ask_passphrase",
    "default_passphrase",
    "passphrase_of_uri",
    "passphrase_options",
]

VARIABLE = "MODCRYPT_PASSPHRASE"

passphrase_options = combine_options(
    click.option(
        "--passphrase-file",
        metavar="PATH",
        help="Passphrase of the keyring: first line of a file, which should have mode 0600.",
    ),
    click.option(
        "--passphrase-env",
        metavar="VARIABLE",
        help="Passphrase of the keyring: environment variable, which child processes inherit. "
        f"Default: {VARIABLE}, else a prompt on the terminal.",
    ),
    click.option(
        "--passphrase-fd",
        metavar="N",
        type=click.IntRange(min=0),
        help="Passphrase of the keyring: first line of an open file descriptor.",
    ),
)

_WAYS = (
    "--passphrase-file, --passphrase-env, --passphrase-fd or the environment variable " + VARIABLE
)


@dataclass(frozen=True, slots=True)
class PassphraseOptions:
    """The source of a passphrase that the options name."""

    file: str | None = None
    env: str | None = None
    fd: int | None = None

    @property
    def is_given(self) -> bool:
        """True if the options name a source."""
        return any(source is not None for source in (self.file, self.env, self.fd))

    def read(self) -> bytes | None:
        """Return the passphrase that an option refers to; None if no source is named.

        Raises:
            click.UsageError: Several options are given.
            KeyRetrievalError: The source does not exist or cannot be read.
        """
        if sum(source is not None for source in (self.file, self.env, self.fd)) > 1:
            raise click.UsageError(
                "--passphrase-file, --passphrase-env and --passphrase-fd exclude each other"
            )
        if self.file is not None:
            return _read_passphrase_file(self.file)
        if self.env is not None:
            return _read_passphrase_env(self.env)
        return None if self.fd is None else _first_line(key_refs.read_fd(self.fd, "passphrase"))


def default_passphrase() -> bytes | None:
    """Return the passphrase in the variable MODCRYPT_PASSPHRASE; None if it is not set."""
    return os.environb.get(os.fsencode(VARIABLE)) or None


def passphrase_of_uri(uri: str) -> PassphraseOptions | None:
    """Return the source of the passphrase that a keyring's URI names; None if it names none.

    Raises:
        click.UsageError: The reference is invalid.
        ValueError: The URI is invalid.
    """
    from modcrypt.kms.uris import parse_kms_uri

    reference = parse_kms_uri(uri, frozenset({"passphrase"})).query.get("passphrase")
    if reference is None:
        return None
    kind, _, where = reference.partition(":")
    if kind == "file" and where:
        return PassphraseOptions(file=where)
    if kind == "env" and where:
        return PassphraseOptions(env=where)
    raise click.UsageError("the URI's passphrase= takes env:NAME or file:PATH")


@hide_frames
def ask_passphrase(what: str, *, twice: bool = False) -> str:
    """Ask for the passphrase on the terminal, without echo.

    Args:
        what: Name of the keyring in the prompt.
        twice: Whether to ask a second time and compare.

    Raises:
        click.UsageError: No terminal exists, nothing is typed, or the two answers differ.
    """
    if not _on_terminal():
        raise click.UsageError(
            f"the passphrase of {what} is needed, but no terminal is available to ask for it; "
            f"use {_WAYS}"
        )
    try:
        passphrase = getpass.getpass(f"Passphrase of {what}: ")
        if twice and getpass.getpass("Repeat the passphrase: ") != passphrase:
            raise click.UsageError("the two passphrases differ")
    except EOFError:
        passphrase = ""
    if not passphrase:
        raise click.UsageError(f"no passphrase of {what} is given")
    return passphrase


def _on_terminal() -> bool:
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


def _read_passphrase_file(path: str) -> bytes:
    try:
        data, _ = key_refs.read_file(path, "passphrase", "passphrase file")
    except KeyRetrievalError as error:
        raise type(error)(
            "passphrase file does not exist or cannot be read (its name is not repeated here, "
            "it may be the passphrase)"
        ) from None
    return _first_line(data)


def _read_passphrase_env(name: str) -> bytes:
    value = os.environb.get(os.fsencode(name))
    if not value:
        raise KeyNotFoundError(
            "environment variable of the passphrase is not set (its name is not repeated here, "
            "it may be the passphrase)"
        )
    return value


def _first_line(data: bytes) -> bytes:
    return data.partition(b"\n")[0].rstrip(b"\r")
