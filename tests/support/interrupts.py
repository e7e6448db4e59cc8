"""End processes by signals."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from typing import Any


def interrupt(process: subprocess.Popen[Any], send: Callable[[], object]) -> None:
    """Send a signal by `send` until the process has ended, which prints little.

    Python loses a signal that comes after it has looked for one, and before it begins to read or to
    sleep: it then handles it at the next one.
    """
    while process.poll() is None:
        send()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
