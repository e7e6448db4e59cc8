"""Ctrl-C, SIGTERM and SIGHUP end the program as an error would: temporary files are removed."""

from __future__ import annotations

import signal
from types import FrameType

__all__ = ["Stopped", "raise_on_signals"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)


class Stopped(SystemExit):
    """A signal asks the program to end; the exit code is the shell's, 128 and the number."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number).name
        super().__init__(128 + number)


def raise_on_signals() -> None:
    """Turn the signals that end a program into `Stopped`, in the main thread.

    Who started the program with one of them ignored (nohup, a shell's background job) wants it so.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) in _UNTOUCHED:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    for other in _SIGNALS:  # a second Ctrl-C must not interrupt the cleaning up
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)
