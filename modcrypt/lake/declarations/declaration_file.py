"""Find and read `modcrypt.toml`."""

from __future__ import annotations

import os
import stat
import urllib.parse
from pathlib import Path

from modcrypt.lake.declarations.declaration import LakeDeclaration
from modcrypt.lake.declarations.declaration_faults import DeclarationFault
from modcrypt.lake.declarations.declaration_parsing import parse_declaration

FILE_NAME = "modcrypt.toml"

MAX_DECLARATION = 4 << 20
"""Size limit of a declaration, in bytes."""


def find_declaration(config: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the path of the declaration; None if there is none.

    It is `config`, the value of MODCRYPT_CONFIG, or the first `modcrypt.toml` in the working
    directory or a folder above it.

    Raises:
        ValueError: As `check_author`, for a file that nobody named.
    """
    named = config or os.environ.get("MODCRYPT_CONFIG")
    if named:
        return Path(named)
    here = Path.cwd()
    found = (folder / FILE_NAME for folder in (here, *here.parents))
    path = next((path for path in found if path.is_file()), None)
    if path is not None:
        check_author(path, path.stat())
    return path


def check_author(path: Path, status: os.stat_result) -> None:
    """Check that a file that was found, not named, was written by the user or root.

    In a shared folder such as /tmp, others could leave a declaration that has the user's files
    encrypted under their keys.

    Raises:
        ValueError: The file belongs to another user, or everybody can write to it.
    """
    if status.st_uid not in (os.geteuid(), 0):
        raise ValueError(
            f"{path} belongs to another user; if you trust it, pass its path (--config)"
        )
    if status.st_mode & stat.S_IWOTH:
        raise ValueError(
            f"everybody can write to {path}; run chmod o-w, or pass its path (--config)"
        )


def read_declaration(path: Path) -> tuple[LakeDeclaration | None, list[DeclarationFault]]:
    """Return the declaration in a file, or all mistakes in it.

    Raises:
        OSError: The file, or a policy that it includes, cannot be read.
        ValueError: The file is too long or not UTF-8.
    """
    with open(path, "rb") as file:
        data = file.read(MAX_DECLARATION + 1)
    if len(data) > MAX_DECLARATION:
        raise ValueError(f"{path}: the declaration is longer than {MAX_DECLARATION} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:  # the original message repeats a byte
        raise ValueError(f"{path}: the declaration is not UTF-8") from None
    return parse_declaration(text, path.absolute(), _service_of_environment())


def load_declaration(path: Path) -> LakeDeclaration:
    """Return the declaration in a file.

    Raises:
        ValueError: The declaration is invalid; the message lists all mistakes.
        OSError: As `read_declaration`.
    """
    declaration, faults = read_declaration(path)
    if declaration is None:
        raise ValueError(f"{path}: {'; '.join(map(str, faults))}")
    return declaration


def _service_of_environment() -> str | None:
    """Return the URI of the key service that environment variables name; None for none."""
    if kms := os.environ.get("MODCRYPT_KMS"):
        return kms
    if address := os.environ.get("VAULT_ADDR"):
        parts = urllib.parse.urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
        return f"hcvault://{host}/transit{'?tls=off' * (parts.scheme == 'http')}"
    return None
