"""Reproducible bytes and patches to files, of which the test vectors are made."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "spec-vectors"
Patch = dict[str, Any]


def fixed_bytes(name: str, size: int) -> bytes:
    """Return bytes that anybody can reproduce: SHAKE128 of the project's name and this one."""
    return hashlib.shake_128(b"modcrypt spec-vectors: " + name.encode()).digest(size)


def apply(data: bytes, patches: list[Patch]) -> bytes:
    """Change a file: patches in order, each {at, remove, insert} or {swap: [a, b], size}."""
    for patch in patches:
        if "swap" in patch:
            (a, b), size = patch["swap"], patch["size"]
            first, second = data[a : a + size], data[b : b + size]
            data = data[:a] + second + data[a + size : b] + first + data[b + size :]
        else:
            at = patch["at"]
            data = data[:at] + bytes.fromhex(patch["insert"]) + data[at + patch["remove"] :]
    return data


def replace(at: int, old: bytes, new: bytes) -> Patch:
    """Return the smallest patch that turns `old`, which is at `at`, into `new`."""
    assert old != new
    start = shared_length(old, new)
    old, new = old[start:], new[start:]
    kept = shared_length(old[::-1], new[::-1])
    removed, inserted = len(old) - kept, new[: len(new) - kept]
    return {"at": at + start, "remove": removed, "insert": inserted.hex()}


def shared_length(a: bytes, b: bytes) -> int:
    """Return the length of the common beginning of two byte strings."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def flip(data: bytes, at: int) -> Patch:
    return {"at": at, "remove": 1, "insert": bytes([data[at] ^ 1]).hex()}
