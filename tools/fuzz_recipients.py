"""Check that hostile recipients, identities and key metadata raise ModcryptError, nothing else.

    python -m tools.fuzz_recipients [--seconds N] [--rounds N] [--seed N]

Each round changes one of the vectors of spec-vectors/recipients with seeded random edits, and
parses or opens it. Whatever opens must give the keys of the unchanged vector.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import modcrypt as mc
from modcrypt.errors import ModcryptError
from modcrypt.keys import Key, Secret, key_bytes
from modcrypt.kms.recipients.identity import IDENTITY_FILE
from modcrypt.kms.recipients.identity_retriever import IdentityKeys
from modcrypt.kms.recipients.private_key_file import decode_private_key
from modcrypt.kms.recipients.recipient import parse_recipients
from tools.fuzz import edit
from tools.recipient_vectors import RECIPIENTS, TABLE

Check = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """Valid bytes, and the check of what is made of them."""

    data: bytes
    check: Check


@cache
def identity(name: str) -> mc.Identity:
    """Return an identity of the vectors, whatever the mode of its file."""
    document = decode_private_key((RECIPIENTS / name).read_bytes(), IDENTITY_FILE)
    return mc.Identity(mc.Recipient.parse(document.public), Secret(document.key))


def check_lines(data: bytes) -> object:
    return [str(recipient) for recipient in parse_recipients(data)]


def check_identity(data: bytes) -> object:
    document = decode_private_key(data, IDENTITY_FILE)
    # Not the scrypt of every round, which takes 20 ms or more.
    return mc.Recipient.parse(document.public).hex_id


def check_metadata(name: str, aad: bytes, wanted: str) -> Check:
    def check(data: bytes) -> object:
        keys = IdentityKeys((identity(name),), None, lenient=False)
        keys.accept_file(data, aad)
        key = keys.retrieve(data, None)
        assert isinstance(key, Key)
        assert key_bytes(key).hex() == wanted, "another key"
        return len(key)

    return check


def check_file(name: str) -> Check:
    def check(data: bytes) -> object:
        decryption = mc.FileDecryptionProperties(key_retriever=identity(name))
        assert mc.read_table(io.BytesIO(data), decryption) == TABLE, "other rows"
        return list(mc.inspect_parquet(data).footer_key.recipients)

    return check


def targets() -> list[Target]:
    """Return what is changed: every valid vector."""
    found = [Target(p.read_bytes(), check_identity) for p in sorted(RECIPIENTS.glob("*.key"))]
    lines = json.loads((RECIPIENTS / "lines.json").read_text())["cases"]
    text = "".join(f"{case['line']}\n" for case in lines if case["expect"] == "ok")
    found.append(Target(f"# partners\n{text}".encode(), check_lines))
    for case in json.loads((RECIPIENTS / "key_metadata.json").read_text())["cases"]:
        if case["expect"] == "ok":
            aad = bytes.fromhex(case["file_aad"])
            check = check_metadata(case["identity"], aad, case["footer_key"])
            found += [Target(case["footer"].encode(), check)] * 4
    for name in ("encrypted-footer", "plaintext-footer", "beside-a-key-service"):
        data = (RECIPIENTS / f"{name}.parquet").read_bytes()
        found.append(Target(data, check_file("x25519.key")))
    return found


def rounds(seed: int, found: list[Target]) -> Iterator[tuple[int, Target, bytes]]:
    """Yield changed bytes endlessly; round `n` of a seed is always the same edit."""
    for number in itertools.count():
        rng = random.Random(f"recipients {seed}/{number}")
        target = rng.choice(found)
        yield number, target, edit(rng, target.data)


def run(seed: int, number: int | None, seconds: float | None) -> int:
    """Check rounds until a limit; raise what a round must not raise. Return their number."""
    end = None if seconds is None else time.monotonic() + seconds
    done = 0
    for done, target, data in itertools.islice(rounds(seed, targets()), number):
        if end is not None and time.monotonic() > end:
            break
        try:
            target.check(data)
        except ModcryptError:
            continue
        except Exception:
            print(f"seed {seed}, round {done}", file=sys.stderr)
            raise
    return done


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float)
    arguments.add_argument("--rounds", type=int)
    arguments.add_argument("--seed", type=int)
    options = arguments.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    print(f"{run(seed, options.rounds, options.seconds)} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
