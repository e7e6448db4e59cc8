"""Every attack against modcrypt's readers, and the published matrix says what came of it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.java.parquet_java import ParquetJava
from tests.support.tamper.attacks import ATTACKS, NOT_READ, UNUSED
from tests.support.tamper.matrix import all_readers, run, title
from tests.support.tamper.readers import close
from tools import tamper_matrix

OURS = ["`read_table`", "`decrypt_parquet`", "`verify_parquet`"]
NATIVE = "parquet-java, modcrypt"
GUARDED = ("Signatures and labels", "Key material", "AAD prefix")
"""Groups of attacks on footers and keys, which our factory checks inside parquet-java."""
FILE = tamper_matrix.FILE.read_text()
PUBLISHED = tamper_matrix.read_outcomes(FILE)


@pytest.mark.parametrize("name", OURS)
def test_modcrypt_does_what_the_published_matrix_says(name: str, tmp_path: Path) -> None:
    ran = run(all_readers(None)[name], tmp_path / "files")
    found = {attack: str(cell) for attack, cell in ran.items()}
    assert found == PUBLISHED[name], "run tools/tamper_matrix.py"


def test_the_file_has_the_readers_and_is_what_its_outcomes_make() -> None:
    assert [*PUBLISHED] == OURS
    assert tamper_matrix.write_outcomes(PUBLISHED) == FILE


def test_the_page_counts_the_outcomes() -> None:
    page = tamper_matrix.FILE.with_suffix(".md").read_text()
    rows = re.findall(r"^\| \**([\w /]+)\** \|.*" + r" (\d+) \|" * len(OURS) + "$", page, re.M)
    stated = {outcome: [int(count) for count in counts] for outcome, *counts in rows}
    found = [Counter(cell.partition(":")[0] for cell in PUBLISHED[name].values()) for name in OURS]
    assert stated == {outcome: [column[outcome] for column in found] for outcome in stated}
    assert [sum(column) for column in zip(*stated.values(), strict=True)] == [len(ATTACKS)] * 3


@pytest.mark.parametrize("name", OURS)
def test_modcrypt_detects_all_but_what_is_said_to_be_beyond_it(name: str) -> None:
    """Each exception is an attack with a reason of its own (`Attack.unseen`)."""
    said = PUBLISHED[name]
    for attack in ATTACKS:
        outcome = said[title(attack)]
        if not outcome.startswith(("detected", "n/a")):
            assert outcome in ("accepted", "named", "wrong data")
            assert attack.unseen, (name, title(attack), outcome)
            if attack.unseen in (NOT_READ, UNUSED):
                assert outcome == "accepted"


def test_our_factory_detects_all_that_concerns_footers_and_keys(
    java: ParquetJava, tmp_path: Path
) -> None:
    reader = all_readers(java)[NATIVE]
    attacks = [attack for attack in ATTACKS if attack.group in GUARDED]
    try:
        ran = run(reader, tmp_path / "files", attacks)
    finally:
        close([reader])
    for name, cell in ran.items():
        tried = cell.outcome in ("detected", "n/a")
        assert tried or cell.outcome == PUBLISHED["`read_table`"][name], name


def test_verification_leaves_nothing_unopened_and_names_what_has_no_tag() -> None:
    said = PUBLISHED["`verify_parquet`"]
    for attack in ATTACKS:
        outcome = said[title(attack)]
        if attack.unseen == NOT_READ:
            assert outcome == "detected", title(attack)
        if attack.group == "Parts without a tag":
            assert outcome in ("detected", "named", "accepted"), title(attack)


def test_no_attack_is_idle() -> None:
    """An entry point notices it or is misled by it, or it is there to show that none is."""
    for attack in ATTACKS:
        outcomes = {column[title(attack)] for column in PUBLISHED.values()}
        reported = {"detected", "named", "wrong data"}
        assert outcomes & reported or attack.unseen == UNUSED, title(attack)


def test_attacks_have_names_of_their_own() -> None:
    titles = [title(attack) for attack in ATTACKS]
    assert len(set(titles)) == len(titles)
