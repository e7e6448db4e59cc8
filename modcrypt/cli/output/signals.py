"""Ctrl-C, SIGTERM and SIGHUP as exceptions, so that temporary files are removed."""

from __future__ import annotations

import signal
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)


class Stopped(SystemExit):
    """A signal that ends the program with the shell's exit code, 128 and its number."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number).name
        super().__init__(128 + number)


def raise_on_signals() -> None:
    """Raise `Stopped` in the main thread for each signal that ends a program.

    Signals ignored at the start (by nohup, or for a shell's background job) stay ignored.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) in _UNTOUCHED:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    for other in _SIGNALS:  # a second Ctrl-C must not interrupt the clean-up
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)
