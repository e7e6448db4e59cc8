"""Every attack against every reader, and the published table says what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tamper.attacks import ATTACKS, NOT_READ, UNUSED
from tests.support.tamper.matrix import all_readers, published_outcomes, published_table, run, title
from tests.support.tamper.readers import Reader, close
from tests.support.tamper.suite import CASES, CLIENTS, DIFFERENCES, suite_outcomes
from tools.conformance.corpus import read_cases

OURS = ["`read_table`", "`decrypt_parquet`", "`verify_parquet`"]
NATIVE = "parquet-java, modcrypt"
PEERS = [
    "PyArrow, keys", "PyArrow, KMS", "parquet-java, keys", "parquet-java, KMS", NATIVE, "Polars",
    "DuckDB",
]  # fmt: skip
REMEDY = "docs/reference/tamper-matrix.md says something else: run tools/tamper_matrix.py"


@pytest.fixture
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    name = request.param
    readers = all_readers(request.getfixturevalue("java") if "java" in name else None)
    if name not in readers:
        pytest.skip(f"{name} is not installed")
    yield readers[name]
    close(readers.values())


def differences(reader: Reader, folder: Path) -> dict[str, tuple[str, str]]:
    """Return the cells that differ from the published matrix."""
    said = published_outcomes(reader.name)
    outcomes = {name: str(cell) for name, cell in run(reader, folder).items()}
    assert said.keys() == outcomes.keys()
    return {name: (ran, said[name]) for name, ran in outcomes.items() if ran != said[name]}


@pytest.mark.parametrize("reader", OURS, indirect=True)
def test_modcrypt_does_what_the_published_table_says(reader: Reader, tmp_path: Path) -> None:
    assert differences(reader, tmp_path / "files") == {}, REMEDY


@pytest.mark.parametrize("reader", PEERS, indirect=True)
def test_a_peer_does_what_the_published_table_says(reader: Reader, tmp_path: Path) -> None:
    if reader.version not in published_table():
        pytest.skip(f"{reader.version} is here; the table was run with another version")
    assert differences(reader, tmp_path / "files") == {}, REMEDY


@pytest.mark.parametrize("name", OURS)
def test_modcrypt_detects_all_but_what_is_said_to_be_beyond_it(name: str) -> None:
    """Each exception is an attack with a reason of its own (`Attack.unseen`)."""
    said = published_outcomes(name)
    for attack in ATTACKS:
        outcome = said[title(attack)]
        if not outcome.startswith(("detected", "n/a")):
            assert outcome in ("accepted", "named", "wrong data")
            assert attack.unseen, (name, title(attack), outcome)
            if attack.unseen in (NOT_READ, UNUSED):
                assert outcome == "accepted"


def test_our_factory_detects_all_that_concerns_footers_and_keys() -> None:
    """Attacks on pages, indexes and parts without a tag remain, which parquet-java reads."""
    said, ours = published_outcomes(NATIVE), published_outcomes("`read_table`")
    for attack in ATTACKS:
        outcome = said[title(attack)]
        if attack.group in ("Signatures and labels", "Key material", "AAD prefix"):
            assert outcome.startswith(("detected", "n/a")) or outcome == ours[title(attack)], title(
                attack
            )


def test_verification_leaves_nothing_unopened_and_names_what_has_no_tag() -> None:
    said = published_outcomes("`verify_parquet`")
    for attack in ATTACKS:
        outcome = said[title(attack)]
        if attack.unseen == NOT_READ:
            assert outcome == "detected", title(attack)
        if attack.group == "Parts without a tag":
            assert outcome in ("detected", "named", "accepted"), title(attack)


def test_no_attack_is_idle() -> None:
    """Somebody notices it or is misled by it, or it is there to show that nobody is."""
    columns = [published_outcomes(name) for name in [*OURS, *PEERS]]
    for attack in ATTACKS:
        outcomes = {column[title(attack)] for column in columns}
        told = {"detected", "named", "wrong data", "crash", "token sent"}
        assert outcomes & told or attack.unseen == UNUSED, title(attack)


@pytest.mark.parametrize("name", CLIENTS)
def test_the_conformance_suite_measured_the_same(name: str) -> None:
    """Where an attack is a case, too, both runs agree, besides what `DIFFERENCES` explains."""
    said = published_outcomes(name)
    compared = {
        attack: (case, said[attack], fitting)
        for attack, case, fitting in suite_outcomes(name)
        if not said[attack].startswith("n/a")
    }
    assert compared
    assert [found for found in compared.values() if found[1] not in found[2]] == []


def test_cases_of_attacks_and_differences_exist() -> None:
    assert CASES.keys() <= {title(attack) for attack in ATTACKS}
    cases = {case.id for case in read_cases()}
    for case in CASES.values():
        assert {f"read/parquet/{case}", f"read/pkmt1/{case}"} & cases, case
    for reader, case in DIFFERENCES:
        assert reader in CLIENTS
        assert case in CASES.values()


def test_attacks_have_names_of_their_own_and_all_are_published() -> None:
    titles = [title(attack) for attack in ATTACKS]
    assert len(set(titles)) == len(titles)
    assert list(published_outcomes(OURS[0])) == titles
