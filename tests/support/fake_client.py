"""A client of the conformance suite that misbehaves: `fake_client.py BEHAVIOUR`.

It claims to read key metadata and refuses all of it. Asked for the case `key-only`, it does what
BEHAVIOUR says.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]
LIES = {"formats": ["key-metadata", "parquet"], "features": ["metadata", "encrypted-footer"]}
NOTHING: Json = {"formats": [], "features": []}


def started(behaviour: str) -> Json:
    """Return the answer to `start`."""
    read = write = LIES
    if behaviour != "lies":
        read, write = {"formats": ["key-metadata"], "features": []}, NOTHING
    if behaviour.startswith("writes-"):
        read, write = NOTHING, {"formats": ["ags1"], "features": []}
    names = {"type": "started", "protocol": 1, "name": "fake", "version": "1"}
    return names | {"read": read, "write": write}


def result(request: Json, outcome: str = "error", **members: object) -> Json:
    """Return an answer to a request."""
    members = members or ({} if outcome == "written" else {"message": "no"})
    return {"type": "result", "id": request["id"], "outcome": outcome, **members}


def key(request: Json) -> Json:
    """Return a key that no case has."""
    return result(request, "key", key="00" * 16, aad_prefix=None, file_length=None)


def say(answer: Json, end: str = "\n") -> None:
    """Print an answer."""
    print(json.dumps(answer), end=end, flush=True)


def say_half(request: Json) -> None:
    """Die within an answer."""
    print(json.dumps(result(request))[:20], end="", flush=True)
    sys.exit(3)


def flood(request: Json) -> None:
    """Print without an end, and without a line."""
    while True:
        os.write(1, b"x" * (1 << 16))


def flood_lines(request: Json) -> None:
    """Print the answer without an end."""
    line = json.dumps(result(request)) + "\n"
    while True:
        os.write(1, line.encode() * 100)


def flood_errors(request: Json) -> None:
    """Print 16 MiB to standard error, and the last words, before dying."""
    for _ in range(256):
        os.write(2, b"e" * (1 << 16))
    sys.exit("last words")


def nest(request: Json) -> None:
    """Answer with arrays in arrays."""
    print("[" * 100_000, flush=True)


def write(kind: str, request: Json) -> None:
    """Write something that is no file."""
    path = Path(request["path"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/dev/zero")
    say(result(request, "written"))


def close(request: Json) -> None:
    """Close standard output, and go on."""
    os.close(1)
    time.sleep(60)


def vanish(request: Json) -> None:
    """Die, and be unable to start again."""
    Path(__file__).unlink()
    sys.exit("gone")


BEHAVIOURS: dict[str, Callable[[Json], object]] = {
    "crash": lambda request: sys.exit("it hurts"),
    "hang": lambda request: time.sleep(60),
    "deaf": lambda request: time.sleep(60),
    "noise": lambda request: print("hello", flush=True),
    "unknown": lambda request: say(result(request, "maybe")),
    "other": lambda request: say(result({"id": "read/key-metadata/key-192"})),
    "other-kind": lambda request: say(result(request, "rows", columns=[], rows=[])),
    "wrong": lambda request: say(key(request)),
    "half": say_half,
    "bytes": lambda request: os.write(1, b'{"type": "result", "id": "\xff\xfe"}\n'),
    "surrogate": lambda request: say(result(request, message="\ud800")),
    "escapes": lambda request: say(result(request, message="\x1b[2J\u202e<script>")),
    "long": lambda request: say(result(request, message="x" * (1 << 24))),
    "number": lambda request: print("1" * 10_000, flush=True),
    "twice": lambda request: print(json.dumps(result(request)) + "\n{}", flush=True),
    "flood": flood,
    "flood-lines": flood_lines,
    "flood-errors": flood_errors,
    "nest": nest,
    "closes": close,
    "vanish": vanish,
    "refuses": lambda request: say(result(request)),
    "lies": lambda request: say(result(request)),
    "open": lambda request: say(key(request)),
}


def main(behaviour: str) -> None:
    """Answer messages until `stop`."""
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "stop":
            return
        if message["type"] == "start":
            say(started(behaviour))
        elif behaviour.startswith("writes-"):
            write(behaviour.removeprefix("writes-"), message)
        elif behaviour in ("open", "deaf") or message["id"].endswith("/key-only"):
            BEHAVIOURS[behaviour](message)
        else:
            say(result(message))


if __name__ == "__main__":
    main(sys.argv[1])
