"""A client's process: one JSON object per line each way, with time limits."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

MAX_LINE = 64 << 20
"""Bytes of an answer that the runner reads at most."""
KEPT_ERRORS = 2000
"""Bytes at the end of a client's standard error that a crash report has."""


class ClientGoneError(Exception):
    """The client died, or sent something other than an answer."""


class ClientTimeoutError(Exception):
    """The client did not answer in time, and was killed."""


class ClientProcess:
    """A running client; every wait for it has a limit."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        try:
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ClientGoneError(str(error)) from None
        self._stdin, self._stdout = _pipe(self._process.stdin), _pipe(self._process.stdout)
        os.set_blocking(self._stdin.fileno(), False)  # a client may never read
        self._errors = _ErrorTail(_pipe(self._process.stderr))
        self._pending = b""

    def ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send a message and return the answer.

        Raises:
            ClientGoneError: The process ended, or what it sent is not one JSON object in a line.
            ClientTimeoutError: It took longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        if _is_ready(self._stdout, select.POLLIN, 0):
            self._read_more(deadline)
            raise self._wrong("output came before the request")
        try:
            self._send(message, deadline)
            answer = json.loads(self._line(deadline))
        except BrokenPipeError:
            raise self._gone() from None
        except (ValueError, RecursionError):
            raise self._wrong("the answer is not JSON") from None
        if not isinstance(answer, dict):
            raise self._wrong("the answer is not a JSON object")
        if self._pending:
            raise self._wrong("output follows the answer")
        return answer

    def stop(self, seconds: float = 10) -> None:
        """Ask the client to end, and kill it if it does not."""
        with suppress(OSError, ClientTimeoutError, subprocess.TimeoutExpired):
            self._send({"type": "stop"}, time.monotonic() + seconds)
            self._stdin.close()  # some runtimes do not end while their input is open
            self._process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """End the process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._stdin, self._stdout):
            with suppress(BrokenPipeError):
                stream.close()
        self._errors.read(1)

    def _send(self, message: Mapping[str, Any], deadline: float) -> None:
        left = json.dumps(message).encode() + b"\n"
        while left:
            _wait(self._stdin, select.POLLOUT, deadline)
            with suppress(BlockingIOError):
                left = left[os.write(self._stdin.fileno(), left) :]

    def _line(self, deadline: float) -> bytes:
        parts, size = [self._pending], len(self._pending)
        while b"\n" not in parts[-1]:
            parts.append(self._read_more(deadline))
            size += len(parts[-1])
            if size > MAX_LINE:
                raise self._wrong("the answer is too long")
        line, _, self._pending = b"".join(parts).partition(b"\n")
        return line

    def _read_more(self, deadline: float) -> bytes:
        _wait(self._stdout, select.POLLIN, deadline)
        found = os.read(self._stdout.fileno(), 1 << 20)
        if not found:
            raise self._gone()
        return found

    def _wrong(self, why: str) -> ClientGoneError:
        return ClientGoneError(": ".join(filter(None, (why, self._errors.read(0)))))

    def _gone(self) -> ClientGoneError:
        """Return the error of a process that closed its output, which may end a little later."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        status = self._process.returncode
        ended = "the process ended" + ("" if status is None else f", exit status {status}")
        return ClientGoneError(": ".join(filter(None, (ended, self._errors.read(1)))))


class _ErrorTail:
    """The end of what a client prints to standard error, however much that is."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept = stream, b""
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def read(self, seconds: float) -> str:
        """Return the end of the text, which a process may hold open for longer than `seconds`."""
        self._thread.join(seconds)
        return self._kept.decode(errors="replace").strip()

    def _drain(self) -> None:
        with self._stream:
            while found := os.read(self._stream.fileno(), 1 << 16):
                self._kept = (self._kept + found)[-KEPT_ERRORS:]


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # as Popen was asked for it
    return stream


def _wait(stream: IO[bytes], event: int, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0 or not _is_ready(stream, event, left):
        raise ClientTimeoutError("no answer in time")


def _is_ready(stream: IO[bytes], event: int, seconds: float) -> bool:
    waiting = select.poll()
    waiting.register(stream, event)
    return bool(waiting.poll(seconds * 1000))
