"""The URI of a keyring: `file:PATH[?passphrase=env:NAME|file:PATH][#KEY]`."""

from __future__ import annotations

import os
import urllib.parse

from modcrypt.kms.references import KmsUri, parse_kms_uri


def passphrase_of_uri(uri: str) -> str | None:
    """Return the reference to the passphrase in a keyring's URI; None if it names none."""
    return parse_keyring_uri(uri).query.get("passphrase")


def keyring_path(uri: str) -> str:
    """Return the path of the file that a keyring's URI names, whether it exists or not."""
    return extract_path(parse_keyring_uri(uri).location)


def parse_keyring_uri(uri: str) -> KmsUri:
    """Parse the URI of a keyring; raise ValueError if it has another form."""
    parsed = parse_kms_uri(uri, frozenset({"passphrase"}))
    if parsed.scheme != "file":
        raise ValueError("the URI of a keyring must have the form file:PATH")
    return parsed


def extract_path(location: str) -> str:
    """Return the path of a URI's location, with percent-escapes and `~` resolved."""
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
