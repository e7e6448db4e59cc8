"""References to keys and passphrases: `file:PATH`, `env:NAME`, `fd:N`, and what they name.

A passphrase may also be asked for, `prompt`, and a signing key may be in a key service.
A message does not repeat an invalid reference that may be the secret itself.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Sequence

from modcrypt.errors import FormatError, KeyMaterialError, KeyNotFoundError
from modcrypt.io.private_files import check_trusted
from modcrypt.keys import Key
from modcrypt.keys.encoding import MAX_KEY_TEXT as MAX_KEY_FILE
from modcrypt.keys.encoding import decode_key
from modcrypt.keys.lookalikes import show_name
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.keys.sources import read_key_file
from modcrypt.kms.wrapped_key_metadata import is_encrypted
from modcrypt.report.suggestions import suggest
from modcrypt.runtime.tracebacks import hide_frames

MAX_METADATA_FILE = 64 << 10
"""Length limit of a key metadata file in bytes: encrypted metadata is longer than a key."""

DecryptMetadata = Callable[[bytes], StandardKeyMetadata]


PROMPT = "prompt"  # reference to a passphrase that the user enters on the terminal

FORMS = {"file": "file:PATH", "env": "env:NAME", "fd": "fd:N", PROMPT: PROMPT}
"""Kinds of references, and how each is written."""

KEY_KINDS = ("file", "env", "fd")
PASSPHRASE_KINDS = (*KEY_KINDS, PROMPT)


def is_reference(reference: str, *kinds: str) -> bool:
    """Return whether a reference has one of these kinds, and a number if it is `fd:N`."""
    kind, _, where = reference.partition(":")
    if reference == PROMPT:
        return PROMPT in kinds
    is_number = where.isascii() and where.isdigit()
    return kind in kinds and kind != PROMPT and where != "" and (kind != "fd" or is_number)


def check_reference(
    reference: str, what: str = "key", kinds: Sequence[str] = KEY_KINDS,
    services: Sequence[str] = (),
) -> None:  # fmt: skip
    """Raise ValueError if a reference is malformed; it may be a secret, so messages omit it.

    `what` is its name in messages, `services` the schemes of key services that are allowed too.
    """
    if not isinstance(reference, str):
        kind = type(reference).__name__
        raise TypeError(
            f"name the {what} by a reference such as file:PATH or env:NAME, not a {kind}"
        )
    scheme, colon, rest = reference.partition(":")
    if is_reference(reference, *kinds) or (scheme.lower() in services and rest):
        return
    known = [FORMS[kind] for kind in kinds] + [f"{service}:..." for service in services]
    forms = " or ".join(filter(None, (", ".join(known[:-1]), known[-1])))
    schemes = [form.partition(":")[0] for form in known]
    hint = suggest(scheme, schemes).replace("?", ":?") if colon and scheme not in schemes else ""
    if scheme == "fd":
        hint = "; N is a number"
    raise ValueError(
        f"name the {what} as {forms}, never the {what} itself (not repeated here){hint}"
    )


SERVICES = ("hcvault", "vault", "aws-kms", "gcp-kms", "azure-kms", "pkcs11")
"""Schemes of key services, whose URIs name master keys; `file:KEYRING#NAME` does, too."""


def names_master_key(reference: str) -> bool:
    """Return whether a reference names a master key, or a key service, rather than a key."""
    scheme, _, rest = reference.partition(":")
    if scheme == "file":
        return "#" in rest and not os.path.lexists(os.path.expanduser(rest))
    return scheme.lower() in SERVICES and rest != ""


def absolute_reference(reference: str) -> str:
    """Return a reference that has the same meaning in processes that run in other folders."""
    kind, _, where = reference.partition(":")
    if kind == "fd":
        raise ValueError("other processes cannot read a file descriptor; use file:PATH or env:NAME")
    return reference if kind == "env" else f"file:{os.path.abspath(os.path.expanduser(where))}"


@hide_frames
def read_key(reference: str, what: str) -> Key:
    """Read the key at `file:PATH`, `env:NAME` or `fd:N`, a reference checked by `check_reference`.

    Files and descriptors contain raw bytes, or hex or base64 text; variables contain text.
    Messages call the key `what`.

    Raises:
        KeyNotFoundError: The place does not exist or is empty, or a descriptor is at its end.
        KeyAccessDeniedError: The file may not be read.
        KeyMaterialError: The content is not a key.
    """
    kind, _, where = reference.partition(":")
    if kind == "file":
        return Key(decode_key(*_read_file(where, what, "key file")))
    if kind == "fd":
        data = read_descriptor(int(where), what)
        return Key(decode_key(data, f"{what}: file descriptor {where}"))
    place, value = f"environment variable {show_name(where)}", os.environb.get(os.fsencode(where))
    if not value:
        raise KeyNotFoundError(f"{what}: the {place} is not set")
    return Key(decode_key(value, f"{what}: {place}", raw=False))


@hide_frames
def read_metadata_file(path: str, decrypt: DecryptMetadata | None = None) -> StandardKeyMetadata:
    """Return Iceberg's standard key metadata from a file: raw, hex or base64.

    With `decrypt`, the metadata must be encrypted under a key service.
    """
    # Other users may read encrypted metadata.
    data, where = _read_file(path, "key", "key metadata file", MAX_METADATA_FILE, is_encrypted)
    if is_encrypted(data):
        if decrypt is None:
            raise ValueError(
                f"{where} is encrypted under a key service; name it with --kms or --policy"
            )
        return decrypt(data)
    if decrypt is not None:
        raise KeyMaterialError(
            f"{where} is not encrypted and may have replaced a file that was; if it never was, "
            "omit --kms and --policy"
        )
    if len(data) > MAX_KEY_FILE:
        raise KeyMaterialError(f"{where} has more than {MAX_KEY_FILE} bytes")
    try:
        return StandardKeyMetadata.decode(_decode_text(data))
    except FormatError as error:
        raise KeyMaterialError(f"{where}: {error}") from None


def _read_file(
    path: str, what: str, kind: str, limit: int = MAX_KEY_FILE,
    harmless: Callable[[bytes], bool] = lambda data: False,
) -> tuple[bytes, str]:  # fmt: skip
    """Return the content of a file, up to one byte more than `limit`, and its name for messages.

    Raise as `read_key`, also if other users can change a file whose content is not `harmless`.
    """
    path = os.path.expanduser(path)  # the shell leaves the ~ of name=file:~/x alone
    where = f"{what}: {kind} {show_name(path)}"
    data, status = read_key_file(path, where, limit)
    if not harmless(data):
        check_trusted(status, where)
    return data, where


@hide_frames
def read_descriptor(fd: int, what: str, limit: int = MAX_KEY_FILE) -> bytes:
    """Return the content of a file descriptor, up to a limit; raise as `read_key`."""
    data = b""
    try:
        if os.isatty(fd):
            raise ValueError(f"{what}: file descriptor {fd} is a terminal; use a pipe or file")
        while len(data) <= limit and (more := os.read(fd, limit)):
            data += more
    except OSError as error:
        raise KeyNotFoundError(f"{what}: file descriptor {fd}: {error.strerror}") from None
    except OverflowError:
        raise KeyNotFoundError(f"{what}: no such file descriptor") from None
    if not data:
        raise KeyNotFoundError(
            f"{what}: file descriptor {fd} has nothing to read; use a separate descriptor for "
            "each secret"
        )
    return data


def _decode_text(data: bytes) -> bytes:
    """Decode hex or base64; return raw key metadata, which is neither, unchanged."""
    text = data.strip()
    if re.fullmatch(rb"([0-9A-Fa-f]{2})+", text):
        return binascii.unhexlify(text)
    standard = text.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    if len(standard) % 4 != 1 and re.fullmatch(rb"[0-9A-Za-z+/]+", standard):
        return base64.b64decode(standard + b"=" * (-len(standard) % 4))
    return data
