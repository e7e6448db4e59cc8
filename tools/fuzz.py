"""Check that any bytes either give a result or raise ModcryptError, nothing else.

Also check that `decrypt_parquet` restores everything that `encrypt_parquet` accepts: a file that
can be encrypted but not decrypted is lost data.

    python tools/fuzz.py [--seconds N] [--rounds N] [--seed N] [--folder DIR] [--keep-going]
    python tools/fuzz.py --only documents
    python tools/fuzz.py --replay FILE

Each round takes one of a few small files, changes it with seeded random edits, and encrypts and
decrypts it. Some edits are those of a hostile key holder: a footer, page header or index is
decrypted, changed and encrypted again, so that authentication does not detect them. After a failure
the changed file is written to the folder, and the seed and round are printed.

As many rounds follow for what stands beside files: recipients and their key metadata, seals, public
keys, and the TOML of policies and lakes (`fuzz_recipients`, `fuzz_documents`).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# After the path: a script's own folder alone is on it.
from modcrypt import FileDecryptionProperties, FileEncryptionProperties, ModcryptError
from modcrypt.aad import module_aad
from modcrypt.parquet import ModuleType
from tests.support import forging
from tests.support.forging import SMALL_FILTER
from tests.support.module_spans import list_modules
from tools import fuzz_documents, fuzz_recipients, fuzz_targets
from tools.fuzz_targets import edit

FOOTER_KEY = b"0123456789012345"
COLUMN_KEY = b"1234567890123450"
ALGORITHMS = ("AES_GCM_V1", "AES_GCM_CTR_V1")

WRITERS = [
    FileEncryptionProperties(footer_key=FOOTER_KEY),
    FileEncryptionProperties(
        footer_key=FOOTER_KEY, plaintext_footer=True, data_page_v2_levels="plaintext"
    ),
    FileEncryptionProperties(footer_key=FOOTER_KEY, encryption_algorithm="AES_GCM_CTR_V1"),
]
READERS = [
    FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"b": COLUMN_KEY}, accept_algorithms=ALGORITHMS
    ),
    FileDecryptionProperties(
        footer_key=FOOTER_KEY, on_missing_key="drop", check_footer_integrity=False
    ),
]
OWN_READER = FileDecryptionProperties(footer_key=FOOTER_KEY, accept_algorithms=ALGORITHMS)


@dataclass(frozen=True)
class Base:
    """A valid file to start from."""

    plain: bool
    data: bytes


@functools.cache
def bases() -> tuple[Base, ...]:
    """Write small files that together have every kind of module."""
    table = pa.table(
        {
            "a": [1, 1, None, 7],
            "b": ["x", "yy", "x", None],
            "s": [{"n": 1.5, "l": [1, 2]}, {"n": None, "l": []}, None, {"n": 2.5, "l": None}],
        }
    )
    full: dict[str, Any] = {
        "row_group_size": 2,
        "write_page_index": True,
        "bloom_filter_options": {"a": SMALL_FILTER, "b": SMALL_FILTER},
    }
    plain = [
        forging.plain_file(table, **full),
        forging.plain_file(
            table, data_page_version="2.0", write_page_checksum=True, store_schema=False, **full
        ),
        forging.plain_file(table, compression="none", use_dictionary=False, data_page_size=1),
    ]
    keyed: dict[str, Any] = {"column_keys": {"b": COLUMN_KEY}, "plaintext_columns": ["s.n"]}
    writers = [
        FileEncryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"part"),
        FileEncryptionProperties(footer_key=FOOTER_KEY, footer_key_metadata=b"kf", **keyed),
        FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True, **keyed),
        FileEncryptionProperties(
            footer_key=FOOTER_KEY, plaintext_footer=True, data_page_v2_levels="plaintext"
        ),
        FileEncryptionProperties(footer_key=FOOTER_KEY, encryption_algorithm="AES_GCM_CTR_V1"),
    ]
    sealed = [forging.encrypt_bytes(data, writer) for data in plain for writer in writers]
    return (*(Base(True, data) for data in plain), *(Base(False, data) for data in sealed))


# --- edits ----------------------------------------------------------------------------------------


def alter_bytes(rng: random.Random, data: bytes) -> bytes:
    return edit(rng, data)


def alter_footer(rng: random.Random, data: bytes) -> bytes:
    """Change the bytes between the modules and the final length, which stays correct."""
    body, tail, magic = forging.split_tail(data)
    return forging.join_tail(body, edit(rng, tail), magic)


def alter_behind_footer_lock(rng: random.Random, data: bytes) -> bytes:
    """Change the footer's bytes and encrypt or sign it again."""
    body, tail, magic = forging.split_tail(data)
    file = forging.open_file(data, FOOTER_KEY)
    aad = file.file_aad + forging.FOOTER_SUFFIX
    if magic == b"PAR1":
        footer = edit(rng, tail[:-28])
        return forging.join_tail(body, footer + forging.sign(FOOTER_KEY, footer, aad), magic)
    plain = forging.open_module(FOOTER_KEY, tail[len(file.crypto) :], aad)
    sealed = forging.seal(FOOTER_KEY, edit(rng, plain), aad)
    return forging.join_tail(body, file.crypto + sealed, magic)


def alter_behind_module_lock(rng: random.Random, data: bytes) -> bytes:
    """Change the plaintext of some modules without changing sizes, and encrypt them again."""
    out = bytearray(data)
    file_aad = forging.open_file(data, FOOTER_KEY).file_aad
    modules = [
        span
        for span in list_modules(data, READERS[0])
        if span.module.type not in (ModuleType.FOOTER, ModuleType.DATA_PAGE)
    ]
    for span in rng.sample(modules, min(len(modules), rng.choice((1, 1, 2, 5)))):
        aad = module_aad(file_aad, span.module)
        module = data[span.start : span.end]
        for key in (FOOTER_KEY, COLUMN_KEY):
            try:
                plain = forging.open_module(key, module, aad)
            except Exception:  # the other key's module, or a CTR page
                continue
            altered = edit(rng, plain, same_size=True)
            out[span.start : span.end] = forging.seal(key, altered, aad)
    return bytes(out)


Alter = Callable[[random.Random, bytes], bytes]
PLAIN_EDITS: list[Alter] = [alter_bytes, alter_footer]
SEALED_EDITS: list[Alter] = [
    alter_bytes, alter_footer, alter_behind_footer_lock, alter_behind_footer_lock,
    alter_behind_module_lock, alter_behind_module_lock,
]  # fmt: skip


# --- the invariant --------------------------------------------------------------------------------


def check(data: bytes) -> str:
    """Encrypt and decrypt some bytes; return the outcome, or raise an unexpected error."""
    outcomes = []
    for writer in WRITERS:
        try:
            sealed = forging.encrypt_bytes(data, writer)
        except ModcryptError as error:
            outcomes.append(error.word)
            continue
        outcomes.append("sealed")
        forging.decrypt_bytes(sealed, OWN_READER)
    for reader in READERS:
        try:
            forging.decrypt_bytes(data, reader)
            outcomes.append("opened")
        except ModcryptError as error:
            outcomes.append(error.word)
    return " ".join(outcomes)


def rounds(seed: int, files: Sequence[Base]) -> Iterator[tuple[int, bytes]]:
    """Yield changed files endlessly; round `n` of a seed is always the same edit."""
    for number in itertools.count():
        rng = random.Random(f"{seed}/{number}")
        base = rng.choice(files)
        alter = rng.choice(PLAIN_EDITS if base.plain else SEALED_EDITS)
        yield number, alter(rng, base.data)


def reproducer(folder: Path, seed: int, number: int, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fuzz-{seed}-{number}.parquet"
    path.write_bytes(data)
    return path


def main() -> int:
    arguments = argparse.ArgumentParser(description="Fuzz both directions.")
    arguments.add_argument("--seconds", type=float, help="stop then; without it, never")
    arguments.add_argument("--rounds", type=int, help="stop after so many; without it, never")
    arguments.add_argument("--seed", type=int, default=None, help="default: a random one")
    arguments.add_argument("--folder", type=Path, default=Path("fuzz-failures"))
    arguments.add_argument("--keep-going", action="store_true", help="count failures, go on")
    arguments.add_argument("--replay", type=Path, help="run one file and show its traceback")
    arguments.add_argument("--only", choices=("files", *BESIDE), help="default: all, one by one")
    options = arguments.parse_args()
    if options.replay is not None:
        print(check(options.replay.read_bytes()))
        return 0
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    for label, targets in BESIDE.items():
        if options.only in (None, label):
            done = fuzz_targets.run(label, seed, targets(), options.rounds, options.seconds)
            print(f"{done} rounds of {label}", flush=True)
    if options.only not in (None, "files"):
        return 0
    files = itertools.islice(rounds(seed, bases()), options.rounds)
    return run(seed, files, options.seconds, options.folder, keep_going=options.keep_going)


BESIDE = {"recipients": fuzz_recipients.targets, "documents": fuzz_documents.targets}
"""Makers of the targets beside Parquet files."""


def run(
    seed: int, files: Iterator[tuple[int, bytes]], seconds: float | None, folder: Path, *,
    keep_going: bool,
) -> int:  # fmt: skip
    """Check files until the time is over or a round fails; return the exit code."""
    end = None if seconds is None else time.monotonic() + seconds
    failures: dict[str, int] = {}
    number = 0
    for number, data in files:
        if end is not None and time.monotonic() > end:
            break
        try:
            check(data)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {error}"
            failures.setdefault(what, number)
            if failures[what] == number:
                path = reproducer(folder, seed, number, data)
                print(f"seed {seed}, round {number}: {what}\n  {path}", flush=True)
            if not keep_going:
                traceback.print_exc()
                return 1
    print(f"{number} rounds, {len(failures)} kinds of failure")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
