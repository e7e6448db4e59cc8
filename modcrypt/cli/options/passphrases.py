"""The passphrase of a keyring: from a file, the environment, a descriptor or a terminal.

It is never an argument. What stands in the place of a reference to one is not repeated in a
message: it may be the passphrase itself.
"""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import dataclass

import click

from modcrypt.cli import key_refs
from modcrypt.cli.shared import together
from modcrypt.errors import KeyNotFoundError, KeyRetrievalError
from modcrypt.tracebacks import hide_frames

__all__ = ["PassphraseOptions", "asked", "by_default", "passphrase_options", "said_by_uri"]

VARIABLE = "MODCRYPT_PASSPHRASE"

passphrase_options = together(
    click.option(
        "--passphrase-file",
        metavar="PATH",
        help="Passphrase of the keyring: the first line of a file, best of mode 0600.",
    ),
    click.option(
        "--passphrase-env",
        metavar="VARIABLE",
        help="Passphrase of the keyring: an environment variable, which every child process "
        f"inherits. Default: {VARIABLE}; without it, the terminal asks for it.",
    ),
    click.option(
        "--passphrase-fd",
        metavar="N",
        type=click.IntRange(min=0),
        help="Passphrase of the keyring: the first line of an open file descriptor.",
    ),
)

_WAYS = (
    "--passphrase-file, --passphrase-env, --passphrase-fd or the environment variable " + VARIABLE
)


@dataclass(frozen=True, slots=True)
class PassphraseOptions:
    """Where the options say the passphrase is."""

    file: str | None = None
    env: str | None = None
    fd: int | None = None

    @property
    def given(self) -> bool:
        """Whether one of them is given."""
        return any(one is not None for one in (self.file, self.env, self.fd))

    def told(self) -> bytes | None:
        """Read the passphrase that an option refers to; None if none of them is given.

        Raises:
            KeyRetrievalError: it is not there.
        """
        if sum(one is not None for one in (self.file, self.env, self.fd)) > 1:
            raise click.UsageError(
                "--passphrase-file, --passphrase-env and --passphrase-fd exclude each other"
            )
        if self.file is not None:
            return _from_file(self.file)
        if self.env is not None:
            return _from_env(self.env)
        return None if self.fd is None else _first_line(key_refs.read_fd(self.fd, "passphrase"))


def by_default() -> bytes | None:
    """Give the passphrase of the variable that needs no option; None if it is not set."""
    return os.environb.get(os.fsencode(VARIABLE)) or None


def said_by_uri(uri: str) -> PassphraseOptions | None:
    """Give where the URI of a keyring says that its passphrase is; None if it doesn't.

    Raises:
        ValueError: it is none.
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
def asked(what: str, *, twice: bool = False) -> str:
    """Ask for the passphrase on the terminal, without echo.

    Raises:
        click.UsageError: there is no terminal, no answer, or not the same one twice.
    """
    if not _on_terminal():
        raise click.UsageError(
            f"the passphrase of {what} is needed, and there is no terminal to ask on: {_WAYS}"
        )
    try:
        told = getpass.getpass(f"Passphrase of {what}: ")
        if twice and getpass.getpass("The same again: ") != told:
            raise click.UsageError("the two passphrases differ")
    except EOFError:
        told = ""
    if not told:
        raise click.UsageError(f"no passphrase of {what} is given")
    return told


def _on_terminal() -> bool:
    """Tell whether somebody is there to be asked, who sees what is written to stderr."""
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    if sys.stdin is not None and sys.stdin.isatty():
        return True
    try:  # of which stdin may be a pipe
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _from_file(path: str) -> bytes:
    try:
        data, _ = key_refs.read_file(path, "passphrase", "passphrase file")
    except KeyRetrievalError as error:
        raise type(error)(
            "the passphrase's file is not there, or can't be read (its name is not repeated here, "
            "it may be the passphrase)"
        ) from None
    return _first_line(data)


def _from_env(name: str) -> bytes:
    value = os.environb.get(os.fsencode(name))
    if not value:
        raise KeyNotFoundError(
            "the passphrase's environment variable is not set (its name is not repeated here, it "
            "may be the passphrase)"
        )
    return value


def _first_line(data: bytes) -> bytes:
    return data.partition(b"\n")[0].rstrip(b"\r")
