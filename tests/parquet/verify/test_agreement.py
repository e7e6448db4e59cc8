"""Verifying is neither more lenient than reading nor stricter about what was read."""

from __future__ import annotations

import random
from typing import Any

import pytest

from modcrypt import FileDecryptionProperties
from tests.support.agreement import check_agreement
from tests.support.cases import each_case, one_in
from tests.support.file_kinds import CASES, Case
from tests.support.randomness import dice, examples
from tests.support.shared_vectors import entry_params, shared_vectors, tampered_reader
from tests.support.tamper.attacks import ATTACKS, Attack
from tests.support.tamper.files import DATA, Base
from tests.support.tamper.readers import properties


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
        check_agreement(_alter(data, rng), case.reader)


@each_case(
    ("folder", "entry"), [*entry_params("entries"), *entry_params("tampered")], quick=one_in(3)
)
def test_the_same_of_files_of_other_writers(folder: str, entry: dict[str, Any]) -> None:
    data = (shared_vectors() / folder / entry["file"]).read_bytes()
    check_agreement(data, FileDecryptionProperties(**tampered_reader(entry)))


ALTERED = [
    pytest.param(attack, base, id=f"{attack.name}; {base.name}")
    for attack in ATTACKS
    for base in attack.bases
    if not (base.reading.material or base.reading.folder)
]


@each_case(("attack", "base"), ALTERED)
def test_the_same_of_every_attack(attack: Attack, base: Base) -> None:
    check_agreement(attack.apply(base)[DATA], properties(attack.reading(base)))
