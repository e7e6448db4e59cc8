"""A client's process: one JSON object per line each way, with time limits."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

MAX_LINE = 256 << 20
"""Bytes of an answer that the runner reads at most."""
KEPT_ERRORS = 2000
"""Characters at the end of a client's standard error that a crash report has."""


class ClientGoneError(Exception):
    """The client died, or sent something other than an answer."""


class ClientTimeoutError(Exception):
    """The client did not answer in time, and was killed."""


class ClientProcess:
    """A running client."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._pending = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send a message and return the answer.

        Raises:
            ClientGoneError: The process ended, or what it sent is not a JSON object.
            ClientTimeoutError: It took longer than `seconds`.
        """
        try:
            self._send(message)
            answer = json.loads(self._line(time.monotonic() + seconds))
        except BrokenPipeError:
            raise self._gone("the process ended") from None
        except ValueError:
            raise self._gone("the answer is not JSON") from None
        if not isinstance(answer, dict):
            raise self._gone("the answer is not a JSON object")
        return answer

    def stop(self, seconds: float = 10) -> None:
        """Ask the client to end, and kill it if it does not."""
        assert self._process.stdin is not None
        try:
            self._send({"type": "stop"})
            self._process.stdin.close()  # some runtimes do not end while their input is open
            self._process.wait(seconds)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """End the process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        self._selector.close()
        self._errors.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        parts = [self._pending]
        while b"\n" not in parts[-1]:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise ClientTimeoutError("no answer in time")
            parts.append(os.read(self._process.stdout.fileno(), 1 << 20))
            if not parts[-1]:
                raise self._gone("the process ended")
            if sum(map(len, parts)) > MAX_LINE:
                raise self._gone("the answer is too long")
        line, _, self._pending = b"".join(parts).partition(b"\n")
        return line

    def _gone(self, why: str) -> ClientGoneError:
        try:
            status: int | None = self._process.wait(1)
        except subprocess.TimeoutExpired:
            status = None
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - KEPT_ERRORS))
        tail = self._errors.read().decode(errors="replace").strip()
        ended = "" if status is None else f", exit status {status}"
        return ClientGoneError(f"{why}{ended}: {tail}" if tail else why + ended)
