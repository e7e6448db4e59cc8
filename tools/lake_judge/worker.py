"""A process that carries out one operation and kills itself in the middle.

    python -m tools.lake_judge.worker JSON

It prints `working` before it writes for the first time, and `done` with the number of its steps if
it ends before it is killed. A step is a call that changes files, or connects to a server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

from tests.support.iceberg.sample_kms import MASTERS
from tests.support.iceberg.table_races import find_named
from tools.lake_judge.model import Change
from tools.lake_judge.operations import BY_NAME

STEPS = {"os.rename", "os.remove", "os.link", "os.mkdir", "socket.connect", "sqlite3.connect"}


class Killer:
    """Counts steps, and kills the process some time after one of them."""

    def __init__(self, at: int, delay: float) -> None:
        self.at, self.delay, self.steps = at, delay, 0
        self._woken, self._wake = os.pipe()  # the step may come while locks are held
        threading.Thread(target=self._kill, daemon=True).start()

    def watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count an audit event."""
        if event not in STEPS and not (event == "open" and _writes(arguments)):
            return
        self.steps += 1
        if self.steps == 1:
            os.write(1, b"working\n")
        if self.steps == self.at:
            os.write(self._wake, b"k")

    def _kill(self) -> None:
        os.read(self._woken, 1)
        time.sleep(self.delay)
        os.kill(os.getpid(), signal.SIGKILL)


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def main() -> None:
    told = json.loads(sys.argv[1])
    table = find_named(told["uri"], told["name"]).load(master_key_ids=list(MASTERS))
    killer = Killer(told["at"], told["delay"])
    sys.addaudithook(killer.watch)
    BY_NAME[told["operation"]].run(table, Change(**told["change"]))
    os.write(1, f"done {killer.steps}\n".encode())


if __name__ == "__main__":
    main()
