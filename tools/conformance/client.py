"""A client under test: its process is restarted after a crash or a timeout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.conformance.message_schema import InvalidMessageError, check_message
from tools.conformance.process import ClientGoneError, ClientProcess, ClientTimeoutError

Json = dict[str, Any]
START_SECONDS = 90.0
MAX_TIMEOUTS = 10
"""Timeouts after which a client is asked no more, so that a run comes to an end."""
OUTCOMES = {
    ("read", "parquet"): "rows",
    ("read", "pkmt1"): "rows",
    ("read", "signatures"): "rows",
    ("read", "seals"): "findings",
    ("read", "ags1"): "bytes",
    ("read", "key-metadata"): "key",
    ("write", "key-metadata"): "encoded",
}
"""Outcome of a success by type and format of a request; of others it is `written`."""


@dataclass(frozen=True)
class Abilities:
    """The declaration of a client."""

    name: str
    version: str
    formats: Mapping[str, frozenset[str]]  # by direction
    features: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, started: Json) -> Abilities:
        """Return what a `started` message says."""
        return cls(
            started["name"],
            started["version"],
            {way: frozenset(started[way]["formats"]) for way in ("read", "write")},
            {way: frozenset(started[way]["features"]) for way in ("read", "write")},
        )


@dataclass
class Client:
    """A client by its command; call `close` at the end."""

    command: Sequence[str]
    folder: Path
    seconds: float = 20.0
    _process: ClientProcess | None = None
    _timeouts: int = 0

    def start(self) -> Abilities:
        """Start the process and return what it declares.

        Raises:
            ClientGoneError: It ended, or its answer does not fit the protocol.
            ClientTimeoutError: It did not answer in time.
        """
        self._process = ClientProcess(self.command, self.folder)
        answer = self._ask(self._process, {"type": "start", "protocol": 1}, "started")
        return Abilities.of(answer)

    def ask(self, request: Json) -> Json:
        """Send a request and return its result, or raise as `start` does."""
        if self._timeouts >= MAX_TIMEOUTS:
            raise ClientTimeoutError(f"not asked after {MAX_TIMEOUTS} timeouts")
        if self._process is None:
            self.start()
        assert self._process is not None
        answer = self._ask(self._process, request, "result")
        if problem := _mismatch(request, answer):
            self._drop()
            raise ClientGoneError(problem)
        return answer

    def close(self) -> None:
        """Stop the process."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _ask(self, process: ClientProcess, message: Json, expected: str) -> Json:
        check_message(message, message["type"])
        seconds = START_SECONDS if expected == "started" else self.seconds
        try:
            answer = process.ask(message, seconds)
            check_message(answer, expected)
        except InvalidMessageError as error:
            self._drop()
            raise ClientGoneError(f"the answer does not fit the protocol: {error}") from None
        except (ClientGoneError, ClientTimeoutError) as error:
            self._timeouts += isinstance(error, ClientTimeoutError)
            self._drop()
            raise
        return answer

    def _drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


def _mismatch(request: Json, answer: Json) -> str | None:
    """Return why an answer is not one to a request, else None."""
    if answer["id"] != request["id"]:
        return f"the answer is to {answer['id']}"
    success = OUTCOMES.get((request["type"], request["format"]), "written")
    success = "metadata" if request.get("operation") == "metadata" else success
    if answer["outcome"] not in (success, "error", "unsupported"):
        return f"answered with {answer['outcome']} instead of {success}"
    return None
