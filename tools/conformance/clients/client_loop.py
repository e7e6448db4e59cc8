"""The loop of a client in Python: it answers messages on standard output, and only those."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Operation = Callable[[Json], Json]


class UnsupportedError(Exception):
    """The client has no way to do what is asked for."""


def serve(
    started: Json, read: Operation, write: Operation, refusals: type[Exception] = Exception
) -> None:
    """Answer messages until `stop` or the end of input; other errors than `refusals` end it."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not stand among the answers
    operations = {"read": read, "write": write}
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "stop":
            return
        if message["type"] == "start":
            answer = {"type": "started", "protocol": 1, **started}
        else:
            answer = {"type": "result", "id": message["id"]}
            answer |= _attempt(operations[message["type"]], message, refusals)
        print(json.dumps(answer), file=answers, flush=True)


def _attempt(operation: Operation, message: Json, refusals: type[Exception]) -> Json:
    try:
        return operation(message)
    except (UnsupportedError, NotImplementedError) as error:
        return {"outcome": "unsupported", "message": str(error)}
    except refusals as error:
        return {"outcome": "error", "message": f"{type(error).__name__}: {error}"[:2000]}


def abilities(formats: list[str], features: list[str]) -> Json:
    """Return what a client can do in one direction."""
    return {"formats": formats, "features": sorted(features)}


def unhex_values(texts: dict[str, str]) -> dict[str, bytes]:
    """Return keys, or key metadata, by column."""
    return {path: bytes.fromhex(text) for path, text in texts.items()}


def unhex(text: str | None) -> bytes | None:
    """Return bytes, None for null."""
    return None if text is None else bytes.fromhex(text)
