"""Audit of key use: events for a callable, a logger or a file of JSON lines.

    tools = KeyTools("file:keyring.json", audit=audit_to_json_lines("audit.jsonl"))

An event names keys, files and columns. It never contains a key, wrapped or not.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from modcrypt.errors import KeyRetrievalError, ModcryptError
from modcrypt.io.private_files import check_trusted
from modcrypt.pkmt1.material import KeyMaterial
from modcrypt.report.json_fields import JsonFields

Operation: TypeAlias = Literal["wrap", "unwrap", "rewrap", "seal", "shred"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent(JsonFields):
    """One use of a key.

    Attributes:
        operation: `"wrap"`, `"unwrap"` or `"rewrap"` of a key under another key; `"seal"`, which
            counts the modules of a file that a data key encrypted; `"shred"` of a wrapped key, or
            of a master key by the key service.
        by: `"kms"` for a call of the key service; `"file"` for the use of a key of one file, under
            a KEK or by such a call.
        master_key_id: Id of the master key that protects the other keys.
        kek_id: Id of the KEK, in hex or as an Iceberg table names it; None in single wrapping.
        file: Absolute path or URL; None for a KEK, which serves many files, and when writing to a
            file object.
        columns: Dotted column names; empty for the footer key. For the rotation or shredding of
            external key material, the names of the keys in it.
        result: `"ok"`, or the error code.
        count: Number of keys that the call wrapped, or of modules that the data key encrypted.
        time: Time of the event, ISO 8601 in UTC.
    """

    operation: Operation
    by: Literal["kms", "file"]
    master_key_id: str
    kek_id: str | None = None
    file: str | None = None
    columns: tuple[str, ...] = ()
    result: str = "ok"
    count: int = 1
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    _first = ("time",)


Audit: TypeAlias = Callable[[AuditEvent], object]
"""A function that is called with each event, from any thread. If it raises an error, the operation
fails, so that every use of a key is recorded."""


@contextlib.contextmanager
def record_use(
    audit: Audit | None, operation: Operation, master_key_id: str, *,
    kek_ids: Sequence[str | None] = (None,), count: int = 1,
) -> Iterator[None]:  # fmt: skip
    """Record calls of the key service in the `with` body, failed ones too: one event per KEK id."""
    result = "error"
    try:
        yield
        result = "ok"
    except ModcryptError as error:
        result = error.word
        raise
    finally:
        for kek_id in kek_ids:
            if audit is not None:
                event = AuditEvent(
                    operation=operation, by="kms", master_key_id=master_key_id, kek_id=kek_id,
                    result=result, count=count,
                )  # fmt: skip
                audit(event)


def record_key(
    audit: Audit | None, operation: Operation, material: KeyMaterial, file: str | None,
    column: str | Iterable[str] | None = None, *, result: str = "ok", count: int = 1,
) -> None:  # fmt: skip
    """Record the use of one key of a file; `column` is None for the footer key."""
    if audit is None:
        return
    columns = (column,) if isinstance(column, str) else tuple(column or ())
    kek_id = None if material.kek_id is None else material.kek_id.hex()
    event = AuditEvent(
        operation=operation, by="file", master_key_id=material.master_key_id, kek_id=kek_id,
        file=file, columns=columns, result=result, count=count,
    )  # fmt: skip
    audit(event)


def audit_to_logging(logger: str | logging.Logger = "modcrypt.audit") -> Audit:
    """Return an audit that logs each event as a line of JSON, and failures as warnings."""
    log = logging.getLogger(logger) if isinstance(logger, str) else logger

    def record(event: AuditEvent) -> None:
        level = logging.INFO if event.result == "ok" else logging.WARNING
        log.log(level, "%s", json.dumps(event.fields()))

    return record


def audit_to_json_lines(path: str | os.PathLike[str]) -> Audit:
    """Return an audit that appends each event to a file, mode 0600, as a line of JSON.

    Each event opens the file again and writes its line in one call. Processes may therefore share
    the file, and it may be moved away. Its folder should not be writable by others, because they
    could move the file away, too.

    Raises:
        OSError: The file cannot be opened.
        KeyRetrievalError: The file belongs to another user, is writable by others, is not a regular
            file, has several names or is a symbolic link.
    """
    where = os.path.abspath(path)  # independent of later changes of the working directory
    os.close(_open_audit_file(where))

    def record(event: AuditEvent) -> None:
        line = json.dumps(event.fields()).encode() + b"\n"
        fd = _open_audit_file(where)
        try:
            if os.write(fd, line) != len(line):
                raise OSError(f"{where}: the audit record was written incompletely")
        finally:
            os.close(fd)

    return record


def _open_audit_file(path: str) -> int:
    """Open an audit file for appending, unless an attacker may have placed it there."""
    # O_NONBLOCK: opening a named pipe would wait for its reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise KeyRetrievalError(
            f"the audit file {path} is a symbolic link; pass the path of the file it points to"
        ) from None
    try:
        status = os.fstat(fd)
        check_trusted(status, f"the audit file {path}")
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise KeyRetrievalError(
                f"the audit file {path} is not a regular file, or has several names (hard links); "
                "choose another file"
            )
    except BaseException:
        os.close(fd)
        raise
    return fd
