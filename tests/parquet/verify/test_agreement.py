"""Verifying is neither more lenient than reading nor stricter about what was read."""

from __future__ import annotations

import io
import random

import pytest

from modcrypt import ModcryptError, decrypt_parquet, verify_parquet
from tests.support.cases import each_case
from tests.support.file_kinds import CASES, Case
from tests.support.randomness import dice, examples


def _alter(data: bytes, rng: random.Random) -> bytes:
    """Flip a bit, or set, remove, insert or copy bytes, anywhere in a file."""
    altered, at = bytearray(data), rng.randrange(len(data))
    match rng.randrange(6):
        case 0 | 1:
            altered[at] ^= 1 << rng.randrange(8)
        case 2:
            altered[at] = rng.choice([0, 127, 128, 255])
        case 3:
            del altered[at : at + rng.randrange(1, 9)]
        case 4:
            altered[at:at] = rng.randbytes(rng.randrange(1, 9))
        case _:
            start, size = rng.randrange(len(data)), rng.randrange(1, 40)
            altered[at : at + size] = data[start : start + size]
    return bytes(altered)


@pytest.mark.seeded
@each_case("case", CASES, ids=lambda case: case.name)
def test_a_file_is_read_exactly_where_verification_finds_no_fault(case: Case) -> None:
    data, rng = case.write(), dice(f"agreement {case.name}")
    for _ in range(examples(150)):
        altered = _alter(data, rng)
        checked = verify_parquet(altered, case.reader, threads=1)
        faults = [finding for finding in checked.findings if finding.severity == "fault"]
        failure = _read(altered, case)
        if failure is not None:
            assert faults, f"reading fails with {failure}, but verification finds nothing"
            continue
        # Decryption copies the parts of a plaintext column as they are.
        unread = [fault for fault in faults if "column c" not in fault.message]
        assert not unread, f"read in spite of {unread[0].message}"


def _read(data: bytes, case: Case) -> ModcryptError | None:
    try:
        decrypt_parquet(data, io.BytesIO(), case.reader, threads=1)
    except ModcryptError as error:
        return error
    return None
