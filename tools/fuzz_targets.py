"""Seeded random edits of bytes, and targets: valid bytes, and the check of what is made of them."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from modcrypt.errors import ModcryptError

INTERESTING = (0, 1, 2, 3, 4, 15, 28, 31, 32, 127, 128, 255, 2**15, 2**31 - 1, 2**32 - 1, 2**63 - 1)


def edit(rng: random.Random, data: bytes, *, same_size: bool = False) -> bytes:
    """Change a few places of some bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if not out:
            break
        at = rng.randrange(len(out))
        kind = rng.randrange(3 if same_size else 8)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            size = rng.choice((2, 4, 8))
            raw = (rng.choice(INTERESTING) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
            out[at : at + size] = raw[: len(out) - at]
        elif kind == 3:
            del out[at : at + rng.randrange(1, 20)]
        elif kind == 4:
            out[at:at] = rng.randbytes(rng.randrange(1, 20))
        elif kind == 5:
            length = rng.randrange(1, 64)
            start = rng.randrange(len(out))
            out[at : at + length] = out[start : start + length]
        elif kind == 6:
            value = rng.choice(INTERESTING)
            out[at : at + 1] = _varint(value)
        else:
            out[at:at] = out[at : at + rng.randrange(1, 200)] * rng.choice((1, 2, 50))
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes((value,))


# --- targets --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """Valid bytes, and the check of what is made of them.

    The check raises ModcryptError if it refuses the bytes; nothing else is allowed. `finish` makes
    what is checked of the edited bytes, for example a signature of them.
    """

    data: bytes
    check: Callable[[bytes], object]
    finish: Callable[[bytes], bytes] = bytes


def rounds(label: str, seed: int, targets: Sequence[Target]) -> Iterator[tuple[int, Target, bytes]]:
    """Yield changed bytes endlessly; round `n` of a seed is always the same edit."""
    for number in itertools.count():
        rng = random.Random(f"{label} {seed}/{number}")
        target = rng.choice(targets)
        yield number, target, target.finish(edit(rng, target.data))


def run(
    label: str, seed: int, targets: Sequence[Target], number: int | None, seconds: float | None
) -> int:
    """Check rounds until a limit; raise what a round must not raise. Return their number."""
    end = None if seconds is None else time.monotonic() + seconds
    done = 0
    for done, target, data in itertools.islice(rounds(label, seed, targets), number):
        if end is not None and time.monotonic() > end:
            return done
        try:
            target.check(data)
        except ModcryptError:
            continue
        except Exception:
            print(f"{label}: seed {seed}, round {done}: {data!r}", file=sys.stderr)
            raise
    return done + 1
