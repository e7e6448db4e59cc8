"""A vault of subjects' keys of ten million people against the bare database and the bare cipher."""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import modcrypt as mc
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects.vault import SubjectVault, create_vault, open_vault
from tools.figures import Bench, Row, now, timing

PEOPLE, QUICK_PEOPLE = 10_000_000, 1_000_000
ERASED, UNWRAPPED = 1_000, 100_000
_STREAM = 68  # bytes


def vault(bench: Bench) -> Iterator[Row]:
    """Open a vault, erase people, and unwrap keys, beside as many others."""
    people = QUICK_PEOPLE if bench.quick else PEOPLE
    with tempfile.TemporaryDirectory(dir=bench.cache) as work:
        path, where = Path(work) / "subjects.db", Path(work)
        mc.Keyring.create(where / "keyring", plaintext=True).create_key("people")
        create_vault(str(path), KeyTools(f"file:{where / 'keyring'}"), "people").close()
        _add_others(path, people)

        def open_it() -> SubjectVault:
            return open_vault(str(path), KeyTools(f"file:{where / 'keyring'}"))

        yield from _measure(bench, path, open_it, f"{people / 1e6:g} million subjects")


def _add_others(path: Path, people: int) -> None:
    """Add rows of other people, in the order of their references, which is the fastest."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        step = (1 << 64) // people
        rows = (
            ((step * n + random.getrandbits(32)).to_bytes(8, "big") + bytes(8), 1, bytes(_STREAM))
            for n in range(people)
        )
        connection.executemany("INSERT INTO subject_key VALUES (?, ?, ?)", rows)
        connection.commit()


def _measure(
    bench: Bench, path: Path, open_it: Callable[[], SubjectVault], name: str
) -> Iterator[Row]:
    def connect() -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("SELECT * FROM vault").fetchall()

    opened = bench.time({"vault": lambda: open_it().close(), "bare": connect})
    met = opened["vault"].median <= 0.2
    yield Row(f"open a vault of {name}; peer sqlite3", opened["vault"], opened["bare"],
              opened["vault"].median / opened["bare"].median, "<= 200 ms", met)  # fmt: skip
    with closing(open_it()) as known:
        references = known.references([b"%d" % n for n in range(UNWRAPPED)])
        known.ciphers(references, create=True)
        cipher, blocks = _wrap_keys()

        def decrypt() -> None:
            for nonce, text in blocks:
                cipher.decrypt(nonce, text, None)

        found = bench.time({"keys": lambda: known.ciphers(references), "bare": decrypt})
        yield Row(f"unwrap {UNWRAPPED:,} keys of {name}; peer AES-GCM alone", found["keys"],
                  found["bare"], found["keys"].median / found["bare"].median)  # fmt: skip
        samples = []
        for turn in range(bench.repeat):
            begun = now()
            known.erase(references[turn * ERASED : (turn + 1) * ERASED], f"R-{turn}")
            samples.append(now() - begun)
    taken = timing(samples)
    yield Row(f"erase {ERASED:,} of {name}", taken, None, None, "<= 2 s", taken.median <= 2)


def _wrap_keys() -> tuple[AESGCM, list[tuple[bytes, bytes]]]:
    """Return as many wrapped keys as are unwrapped, with their nonces."""
    cipher = AESGCM(os.urandom(32))
    nonces = [os.urandom(12) for _ in range(UNWRAPPED)]
    return cipher, [(nonce, cipher.encrypt(nonce, bytes(32), None)) for nonce in nonces]
