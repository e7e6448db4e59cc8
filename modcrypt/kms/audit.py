"""What was done with which key, as events: for a callable, a logger or a file of JSON lines.

    tools = KeyTools("file:keyring.json", audit=audit_to_json_lines("audit.jsonl"))

An event names keys, files and columns; it never holds a key, wrapped or not.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from modcrypt.errors import KeyRetrievalError, ModcryptError
from modcrypt.kms.private_files import check_trusted

__all__ = ["Audit", "AuditEvent", "audit_to_json_lines", "audit_to_logging", "recorded"]

Operation: TypeAlias = Literal["wrap", "unwrap", "rewrap", "seal", "shred"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One use of a key.

    Attributes:
        operation: `"wrap"`, `"unwrap"` or `"rewrap"` of a key under another one; `"seal"`, which
            tells how many modules of a file a data key has sealed; `"shred"` of a wrapped key, or
            by the key service of a master key.
        by: `"kms"`, a call of the key service; `"file"`, for a key of one file, under a KEK or by
            such a call.
        master_key_id: of the master key under which all of it stands.
        kek_id: of the KEK: in hex, or as an Iceberg table calls it; None in single wrapping.
        file: absolute path or URL; None for a KEK, which serves many, and for a file object that
            is written.
        columns: dotted names; empty for the footer key. Where external key material is rotated or
            shredded, what that calls the keys.
        result: `"ok"`, or the word of the error.
        count: keys wrapped by the call, or seals of the data key.
        time: when it was done, ISO 8601 in UTC.
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

    def fields(self) -> dict[str, Any]:
        """Give the event as what JSON takes."""
        return {
            "time": self.time,
            "operation": self.operation,
            "by": self.by,
            "master_key_id": self.master_key_id,
            "kek_id": self.kek_id,
            "file": self.file,
            "columns": list(self.columns),
            "result": self.result,
            "count": self.count,
        }


Audit: TypeAlias = Callable[[AuditEvent], object]
"""Called with each event, from any thread. What it raises ends the operation: no use of a key goes
unrecorded."""


@contextlib.contextmanager
def recorded(
    audit: Audit | None,
    operation: Operation,
    master_key_id: str,
    *,
    kek_ids: Sequence[str | None] = (None,),
    count: int = 1,
) -> Iterator[None]:
    """Have what is asked of the key service recorded, whatever comes of it.

    Args:
        audit: that is called; None for nothing.
        operation, master_key_id, count: as of `AuditEvent`.
        kek_ids: an event for each.
    """
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
                audit(
                    AuditEvent(
                        operation=operation,
                        by="kms",
                        master_key_id=master_key_id,
                        kek_id=kek_id,
                        result=result,
                        count=count,
                    )
                )


def audit_to_logging(logger: str | logging.Logger = "modcrypt.audit") -> Audit:
    """Give an audit that logs each event as a line of JSON, failures as warnings."""
    log = logging.getLogger(logger) if isinstance(logger, str) else logger

    def record(event: AuditEvent) -> None:
        level = logging.INFO if event.result == "ok" else logging.WARNING
        log.log(level, "%s", json.dumps(event.fields()))

    return record


def audit_to_json_lines(path: str | os.PathLike[str]) -> Audit:
    """Return an audit that appends each event to a file, mode 0600, as a line of JSON.

    The file is opened for each event, and a line is written by one call: so it may be shared by
    processes, and moved away. In a folder that others may write to, it should not be: they can
    move it away, too.

    Raises:
        OSError: the file can't be opened.
        KeyRetrievalError: it is another user's, or others may write to it; or it is no regular
            file, has several names or is a symbolic link.
    """
    where = os.path.abspath(path)  # whatever the working directory is later
    os.close(_opened(where))

    def record(event: AuditEvent) -> None:
        line = json.dumps(event.fields()).encode() + b"\n"
        fd = _opened(where)
        try:
            if os.write(fd, line) != len(line):
                raise OSError(f"{where}: the audit record was cut short")
        finally:
            os.close(fd)

    return record


def _opened(path: str) -> int:
    """Open an audit file to append to, unless an attacker may have put it there."""
    # A pipe would have us wait for its reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise KeyRetrievalError(
            f"the audit file {path} is a symbolic link; name the file that it leads to"
        ) from None
    try:
        status = os.fstat(fd)
        check_trusted(status, f"the audit file {path}")
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise KeyRetrievalError(
                f"the audit file {path} is not a regular file, or has several names (hard links): "
                "name another"
            )
    except BaseException:
        os.close(fd)
        raise
    return fd
