"""Find and read `modcrypt.toml`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modcrypt.errors import KeyRetrievalError
from modcrypt.io.private_files import read_unalterable
from modcrypt.kms.policy import service_of_environment
from modcrypt.kms.signing.signing_keys import read_verifying_keys
from modcrypt.lake.declarations.declaration import LakeDeclaration
from modcrypt.lake.declarations.declaration_faults import DeclarationFault
from modcrypt.lake.declarations.declaration_parsing import parse_declaration
from modcrypt.lake.declarations.declaration_path import find_declaration, is_named
from modcrypt.lake.declarations.inclusions import Inclusions
from modcrypt.lake.declarations.trust import check_trust, has_word
from modcrypt.lake.erasure.erasure_record import read_record, record_path

MAX_DECLARATION = 4 << 20
"""Size limit of a declaration, in bytes."""


@dataclass(frozen=True, kw_only=True)
class ReadDeclaration:
    """The content of a declaration, whether it is trusted or not."""

    path: Path
    declaration: LakeDeclaration | None  # the declaration; None if there are mistakes
    faults: list[DeclarationFault]
    commands: Sequence[str]  # members that only a trusted declaration may have, as `MEMBER = VALUE`
    digest: str  # SHA-256 over the file and all files that it includes, in hex


def open_declaration(
    config: str | os.PathLike[str] | None = None, *, is_found: bool = False, records: bool = True
) -> ReadDeclaration | None:
    """Read the declaration that `find_declaration` returns; None if there is none.

    This is the gate for all that a declaration commands. A file that the user named, by `config` or
    MODCRYPT_CONFIG, is trusted, unless `is_found` says that `config` is not the user's word.
    Without `records`, what the record of erasures says is left out.

    Raises:
        ValueError: As `read_content`, or a file that nobody named has commands without trust.
        KeyRetrievalError: Another user may change the record of trust.
        OSError: As `read_content`.
    """
    if (path := find_declaration(config)) is None:
        return None
    if not is_found and is_named(config):
        return read_content(path, records=records)
    content = read_content(path, is_found=True, reads_outside=has_word(path), records=records)
    check_trust(path, content.digest, content.commands)
    return content


def read_content(
    path: Path, *, is_found: bool = False, reads_outside: bool = True, records: bool = True
) -> ReadDeclaration:
    """Return the content of a declaration without a check of trust.

    Args:
        is_found: Whether nobody named the file, so that no other user may be able to write it: in a
            shared folder such as /tmp, others could leave a declaration for the user's files.
        reads_outside: Whether included files outside its folder are opened.
        records: Whether erasures that are recorded beside it are added.

    Raises:
        OSError: The file, a policy that it includes, or the record of erasures cannot be read.
        ValueError: The file is too long or not UTF-8; or another user may change a file that it
            includes, the record, or the file itself, which was found; or as `read_record`.
    """
    data = _read(path, is_found)
    if len(data) > MAX_DECLARATION:
        raise ValueError(f"{path}: the declaration is longer than {MAX_DECLARATION} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:  # the original message repeats a byte
        raise ValueError(f"{path}: the declaration is not UTF-8") from None
    inclusions = Inclusions(path.absolute().parent, reads_outside)
    try:
        declaration, faults = parse_declaration(
            text, path.absolute(), service_of_environment(), inclusions
        )
    except KeyRetrievalError as error:
        raise ValueError(f"{path} includes a file of others: {error}") from None
    digest = inclusions.hash(data)
    if declaration is not None:
        declaration = replace(declaration, sha256=digest)
        declaration = _add_recorded_erasures(declaration) if records else declaration
    return ReadDeclaration(
        path=path, declaration=declaration, faults=faults, commands=inclusions.commands,
        digest=digest,
    )  # fmt: skip


def _read(path: Path, is_found: bool) -> bytes:
    if not is_found:
        with open(path, "rb") as file:
            return file.read(MAX_DECLARATION + 1)
    try:
        return read_unalterable(path, MAX_DECLARATION + 1)
    except KeyRetrievalError as error:
        raise ValueError(f"{error}; or pass its path (--config)") from None


def _add_recorded_erasures(declaration: LakeDeclaration) -> LakeDeclaration:
    """Return a declaration with the erasures that the record beside it states."""
    datasets, tables = declaration.datasets, declaration.tables
    signed = {name: dataset.members.get("signed_by") for name, dataset in datasets.items()}
    signed |= {name: table.signed_by for name, table in tables.items()}
    writers = {name: read_verifying_keys(lines) for name, lines in signed.items() if lines}
    partitions: dict[str, Any] = dict.fromkeys(tables)
    partitions |= {name: dataset.partitions for name, dataset in datasets.items()}
    try:
        found = read_record(record_path(declaration.path), partitions, writers)
    except KeyRetrievalError as error:
        raise ValueError(str(error)) from None
    recorded: dict[str, Any] = {
        name: replace(dataset, erased=(*dataset.erased, *erased))
        for name, dataset in declaration.all.items()
        if (erased := [each.erasure for each in found if each.dataset == name])
    }
    # States of files with erased columns are cached, so other columns make other states.
    columns = [each for each in found if each.erasure.columns]
    digest = hashlib.sha256(f"{declaration.digest}{columns}".encode()).hexdigest()[:16]
    return replace(
        declaration, datasets={name: recorded.get(name, each) for name, each in datasets.items()},
        tables={name: recorded.get(name, each) for name, each in tables.items()},
        digest=digest if columns else declaration.digest,
    )  # fmt: skip


def require_valid(content: ReadDeclaration) -> LakeDeclaration:
    """Return the declaration; raise ValueError, which lists all mistakes, if it is invalid."""
    if content.declaration is None:
        raise ValueError(f"{content.path}: {'; '.join(map(str, content.faults))}")
    return content.declaration
