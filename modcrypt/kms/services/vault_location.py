"""URIs of Vault's transit engines, names of keys in them, and places of tokens."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modcrypt.errors import KeyAccessDeniedError, KeyNotFoundError
from modcrypt.io.private_files import read_secret
from modcrypt.keys import Secret
from modcrypt.kms.references import KmsUri, is_loopback
from modcrypt.runtime.tracebacks import hide_frames

MAX_TOKEN = 16 << 10
"""Length limit of a token, in characters."""

NAME = re.compile(r"(?=.{1,255}\Z)\w(?:[\w.-]*\w)?", re.ASCII)
"""The names that Vault's routes accept (its GenericNameRegex), but no dots alone, as in paths."""

_LOCATION = re.compile(
    r"//(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?P<path>/.*)",
    re.ASCII,
)
_TOKEN = re.compile(r"[!-~]+", re.ASCII)

_FORM = "hcvault://HOST[:PORT]/MOUNT[/keys/NAME]"


@dataclass(frozen=True)
class Engine:
    """A transit engine: its address, and the use of its keys."""

    address: str
    loopback: bool
    namespace: str | None
    mount: str
    derived: bool

    def __str__(self) -> str:
        return f"{self.address.partition('://')[2]}/{self.mount}"


def parse_location(parts: KmsUri) -> tuple[Engine, str | None]:
    """Return the engine that a URI names, and the default key.

    The message of a ValueError does not repeat the URI, which may contain a password.
    """
    found = _LOCATION.fullmatch(parts.location)
    if found is None or parts.fragment or int(found["port"] or 0) >= 1 << 16:
        raise ValueError(
            f"the URI of a Vault engine must have the form {_FORM}, such as "
            "hcvault://vault.example.com:8200/transit"
        )
    host, port = found["host"], found["port"]
    steps = found["path"][1:].split("/")
    name = steps.pop() if len(steps) > 2 and steps[-2] == "keys" else None
    if name is not None:
        steps.pop()
    if not all(NAME.fullmatch(step) for step in (*steps, *([] if name is None else [name]))):
        raise ValueError(f"in {_FORM}, MOUNT and NAME must be plain names")
    loopback = is_loopback(host)
    tls = _parse_switch(parts.query.get("tls", "on"), "tls", "on", "off")
    if not tls and not loopback:
        raise ValueError(
            "hcvault: tls=off is only for loopback addresses, because it exposes the token"
        )
    address = f"{'https' if tls else 'http'}://{host}{f':{port}' if port else ''}"
    derived = _parse_switch(parts.query.get("derived", "false"), "derived", "true", "false")
    namespace = parts.query.get("namespace") or None
    if namespace and not all(NAME.fullmatch(step) for step in namespace.strip("/").split("/")):
        raise ValueError("hcvault: namespace= must be plain names with / in between")
    return Engine(address, loopback, namespace, "/".join(steps), derived), name


def _parse_switch(value: str, name: str, yes: str, no: str) -> bool:
    if value not in (yes, no):
        raise ValueError(f"hcvault: {name} must be {yes} or {no}")
    return value == yes


def make_token_source(
    given: str | Callable[[], str] | None, place: str | None, address: str
) -> Callable[[], str]:
    """Return a function that reads the token again at each call.

    A token that neither an argument nor the URI names belongs to the address that the environment
    names; the function raises KeyAccessDeniedError if `address` is another one.
    """
    if given is None:
        return lambda: _check_token(_find_token(place, address))
    source = given if callable(given) else Secret(given)
    return lambda: _check_token(source())


def _find_token(place: str | None, address: str) -> str:
    if place is None:
        return _find_ambient_token(address)
    kind, _, name = place.partition(":")
    if kind == "env" and name:
        return os.environ.get(name, "")
    if kind == "file" and name:
        return _read_token(Path(name))
    raise ValueError("hcvault: token= must be env:NAME or file:PATH, never the token itself")


_TOKENS: Final = ("VAULT_TOKEN", "BAO_TOKEN")


def _home_token() -> Path:
    return Path.home() / ".vault-token"


def has_ambient_token() -> bool:
    """Return whether Vault's or OpenBao's own programs have a token."""
    return any(map(os.environ.get, _TOKENS)) or _home_token().is_file()


def _find_ambient_token(address: str) -> str:
    """Return the token of Vault's or OpenBao's own programs; "" if there is none."""
    get = os.environ.get
    vault, bao = get("VAULT_ADDR"), get("BAO_ADDR")
    for name, own in zip(_TOKENS, (vault or bao, bao or vault), strict=True):
        if token := get(name):
            _check_ambient(name, address, own)
            return token
    if not (home := _home_token()).is_file():
        return ""
    _check_ambient("~/.vault-token", address, vault or bao)
    return _read_token(home)


def _check_ambient(token: str, address: str, own: str | None) -> None:
    """Check that a token goes only to the server that it is for, if the environment says which."""
    if own and _split_server(own) != _split_server(address):
        raise KeyAccessDeniedError(
            f"{token} is for the server in VAULT_ADDR or BAO_ADDR, and is not sent to "
            f"{address.partition('://')[2]}: name the place of a token for this server by "
            "token=env:NAME or token=file:PATH in the URI"
        )


def _split_server(address: str) -> tuple[str | None, int | None]:
    try:
        parts = urllib.parse.urlsplit(address)
        return parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:  # no valid port or IPv6 address
        return None, None


def _read_token(path: Path) -> str:
    return read_secret(path, MAX_TOKEN + 1, "token file").decode("ascii", "replace").strip()


@hide_frames
def _check_token(token: str) -> str:
    """Return a token if it is valid; `requests` would show an invalid one in its error."""
    if not token:
        raise KeyAccessDeniedError(
            "no token for Vault: set VAULT_TOKEN, or name its place in the URI by token=env:NAME "
            "or token=file:PATH"
        )
    if len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
        raise KeyAccessDeniedError(
            f"the token for Vault contains spaces, or is longer than {MAX_TOKEN} characters"
        )
    return token


def check_name(key_id: str, kind: str = "master key") -> str:
    """Return a name if it is safe in a path, because it may come from a file."""
    if not NAME.fullmatch(key_id):
        raise KeyNotFoundError(
            f"{kind} {key_id[:80]!r}: a key name in Vault consists of letters, digits, "
            "_, and . or - in between"
        )
    return key_id
