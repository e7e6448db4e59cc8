"""The user's word that a declaration which is found, not named, may command modcrypt.

`modcrypt trust` records the path of a declaration with the SHA-256 over its text and all files that
it includes, so that any change asks again. Each record is a file in the user's state folder that
only the user can write. In CI, MODCRYPT_TRUST has the SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modcrypt.io.private_files import read_unalterable, replace_private, state_folder

MAX_RECORD = 64 << 10
"""Size limit of a record in bytes, far above the longest path."""

MAX_SHOWN = 20
"""Number of commands that a message lists."""

_RECORD = re.compile(rb"([0-9a-f]{64}) (.+)\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TrustRecord:
    """A declaration that the user trusts."""

    path: Path  # absolute path of the declaration
    digest: str  # SHA-256 over it and the files that it includes, in hex


def trust_folder() -> Path:
    """Return the folder of the records."""
    return state_folder() / "trust"


def resolve_declaration(path: Path) -> Path:
    """Return the path under which a declaration is recorded: that of its folder is resolved."""
    # A link that is itself the declaration is kept, because it decides what relative paths mean.
    return Path(os.path.realpath(path.parent)) / path.name


def find_record(path: Path) -> TrustRecord | None:
    """Return the record of a declaration; None if there is none.

    Raise KeyRetrievalError if another user may change the record, and OSError if it cannot be read.
    """
    try:
        data = read_unalterable(_file_of(path), MAX_RECORD)
    except FileNotFoundError:
        return None
    record = _parse(data)
    return record if record and record.path == resolve_declaration(path) else None


def list_records() -> Iterator[TrustRecord]:
    """Yield all records; raise as `find_record`."""
    for file in sorted(trust_folder().glob("[0-9a-f]*")):
        if record := _parse(read_unalterable(file, MAX_RECORD)):
            yield record


def write_record(path: Path, digest: str) -> None:
    """Record that the user trusts a declaration, in place of an older record.

    Raise KeyRetrievalError if others may write to the folder of the records, and OSError if the
    record cannot be written.
    """
    file = _file_of(path)
    record = f"{digest} ".encode() + os.fsencode(resolve_declaration(path)) + b"\n"
    replace_private(file, record, check=lambda temporary: read_unalterable(temporary, 1))


def remove_record(path: Path) -> bool:
    """Trust a declaration no more; return whether it was trusted."""
    try:
        os.unlink(_file_of(path))
    except FileNotFoundError:
        return False
    return True


def has_word(path: Path) -> bool:
    """Return whether the user ever trusted a declaration, or the environment names a hash."""
    return bool(os.environ.get("MODCRYPT_TRUST")) or find_record(path) is not None


def check_trust(path: Path, digest: str, commands: Sequence[str]) -> None:
    """Check that a declaration which was found, not named, may give its commands.

    `digest` is the SHA-256 over it and the files that it includes. Raise ValueError if it has
    commands, and the user has not trusted it in this form; and KeyRetrievalError if another user
    may change the record of trust.
    """
    named = os.environ.get("MODCRYPT_TRUST", "").strip().lower()
    if commands and named and not re.fullmatch(r"[0-9a-f]{64}", named, re.ASCII):
        raise ValueError("MODCRYPT_TRUST must be a SHA-256 in hex, as modcrypt trust --print")
    if not commands or named == digest:
        return
    if (record := find_record(path)) is not None and record.digest == digest:
        return
    what = "was not named, only found" if record is None else "has changed since it was trusted"
    shown = "; ".join(commands[:MAX_SHOWN])
    more = f"; and {len(commands) - MAX_SHOWN} more" if len(commands) > MAX_SHOWN else ""
    raise ValueError(
        f"{path} {what}, so it may not command: {shown}{more}. If you agree, run modcrypt trust "
        f"{path}, or pass its path (--config); in CI, set MODCRYPT_TRUST={digest}"
    )


def _file_of(path: Path) -> Path:
    name = os.fsencode(resolve_declaration(path))
    return trust_folder() / hashlib.sha256(name).hexdigest()


def _parse(data: bytes) -> TrustRecord | None:
    record = _RECORD.fullmatch(data)
    return record and TrustRecord(Path(os.fsdecode(record[2])), record[1].decode())
