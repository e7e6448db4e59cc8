"""The lock of a table in a Hive metastore, which Iceberg's Java takes for each commit too.

A process that is killed leaves its lock behind until the metastore's timeout, and many metastores
have none. So each lock states which process holds it: anyone who waits on the same machine releases
the locks of processes that have ended.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hive_metastore.ttypes import (
    CheckLockRequest,
    HeartbeatRequest,
    LockComponent,
    LockLevel,
    LockRequest,
    LockState,
    LockType,
    NoSuchLockException,
    ShowLocksRequest,
    TxnAbortedException,
    UnlockRequest,
)
from thrift.Thrift import TException

from modcrypt.errors import CommitConflictError

if TYPE_CHECKING:
    from hive_metastore.ThriftHiveMetastore import Client
    from hive_metastore.ttypes import LockResponse, ShowLocksResponseElement

PATIENCE = 180
"""Seconds until a writer stops waiting for the lock (Java's `iceberg.hive.lock-timeout-ms`)."""

FIRST_PAUSE, MAX_PAUSE = 0.05, 5
"""Seconds between two looks at the lock; the pause grows by half each time, as in Java."""

Connect = Callable[[], AbstractContextManager["Client"]]


@dataclass(frozen=True)
class HeldLock:
    """A lock that this process holds, and the connection that acquired it."""

    client: Client
    id: int

    def ensure_held(self) -> None:
        """Raise CommitConflictError if the metastore has given the lock up."""
        try:
            self.client.heartbeat(HeartbeatRequest(lockid=self.id))
        except (NoSuchLockException, TxnAbortedException):
            raise CommitConflictError("the lock of the table has expired") from None


@contextlib.contextmanager
def table_lock(connect: Connect, database: str, table: str) -> Iterator[HeldLock]:
    """Hold the exclusive lock of a table.

    Raise CommitConflictError if another writer held the lock all the time, and TException or
    OSError if the metastore failed.
    """
    component = LockComponent(  # as Java's; pyiceberg's own is for transactional tables
        type=LockType.EXCLUSIVE, level=LockLevel.TABLE, dbname=database, tablename=table,
        operationType=None,
    )  # fmt: skip
    process = f"{_this_machine()} {os.getpid()} {_start_time(os.getpid())}"
    request = LockRequest(
        [component], user=_user_name(), hostname=socket.gethostname(),
        agentInfo=f"{process} {secrets.token_hex(8)}",  # at most 128 characters
    )  # fmt: skip
    released = False
    try:
        with connect() as client:
            lock = client.lock(request)
            _wait(client, lock, database, table)
            yield HeldLock(client, lock.lockid)
            with contextlib.suppress(TException, OSError):
                client.unlock(UnlockRequest(lockid=lock.lockid))
                released = True
    finally:
        if not released:  # the connection may be broken, or the answer with the lock's id lost
            with contextlib.suppress(TException, OSError), connect() as client:
                _release(client, database, table, lambda lock: lock.agentInfo == request.agentInfo)


def _wait(client: Client, lock: LockResponse, database: str, table: str) -> None:
    deadline, pause = time.monotonic() + PATIENCE, FIRST_PAUSE
    while lock.state == LockState.WAITING and time.monotonic() < deadline:
        _release(client, database, table, _is_abandoned)
        time.sleep(pause)
        pause = min(pause * 1.5, MAX_PAUSE)
        lock = client.check_lock(CheckLockRequest(lockid=lock.lockid))
    if lock.state != LockState.ACQUIRED:
        raise CommitConflictError(f"{database}.{table}: another writer holds the table's lock")


def _release(
    client: Client, database: str, table: str, which: Callable[[ShowLocksResponseElement], bool]
) -> None:
    shown = client.show_locks(ShowLocksRequest(dbname=database, tablename=table, isExtended=True))
    for lock in shown.locks or ():
        if which(lock):
            with contextlib.suppress(NoSuchLockException):  # it was released meanwhile
                client.unlock(UnlockRequest(lockid=lock.lockid))


def _is_abandoned(lock: ShowLocksResponseElement) -> bool:
    """Return whether the process that holds a lock has certainly ended."""
    if lock.hostname != socket.gethostname():
        return False
    agent, _, _ = (lock.agentInfo or "").rpartition(" ")
    machine, _, process = agent.partition(" ")
    number, _, started = process.partition(" ")
    if not machine or machine != _this_machine() or not number.isdecimal() or len(number) > 9:
        return False
    return _has_ended(int(number)) or _start_time(int(number)) not in {started, None}


def _this_machine() -> str:
    """Return a text that only processes which see each other's ids share; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"modcrypt:{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _has_ended(process: int) -> bool:
    """Return whether no process has this id; a zombie has ended, too."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it is another user's
    fields = _read_status(process)
    return bool(fields) and fields[0] in "ZX"


def _start_time(process: int) -> str | None:
    """Return when a process started, in ticks since the machine did; None if that is hidden."""
    fields = _read_status(process)
    return fields[19] if fields else None


def _read_status(process: int) -> list[str]:
    """Return the fields of a process's status after its name; none if they are hidden."""
    # A machine may hide the processes of other users (`hidepid`).
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _user_name() -> str:
    """Return the user's name; a container may run under an id without one."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return str(os.getuid())
