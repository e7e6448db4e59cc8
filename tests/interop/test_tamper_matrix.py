"""Every attack against every reader, and the published results say what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.tamper.attacks import ATTACKS, NOT_READ, UNUSED, Attack
from tests.support.tamper.matrix import (
    RESULTS,
    all_readers,
    describe_attacks,
    run,
    title,
    unmeasured,
)
from tests.support.tamper.readers import Reader, close
from tests.support.tamper.suite import CASES
from tools.conformance import tamper_table
from tools.conformance.corpus import read_cases
from tools.conformance.page import read_runs

OURS = ["`read_table`", "`decrypt_parquet`", "`verify_parquet`"]
NATIVE = "parquet-java, modcrypt"
PEERS = [
    "PyArrow, keys", "PyArrow, KMS", "parquet-java, keys", "parquet-java, KMS", NATIVE, "Polars",
    "DuckDB",
]  # fmt: skip
REMEDY = "the published results say something else: run tools/tamper_matrix.py"
PUBLISHED = json.loads((RESULTS / tamper_table.ATTACKS).read_text())


@pytest.fixture
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    name = request.param
    readers = all_readers(request.getfixturevalue("java") if "java" in name else None)
    if name not in readers:
        pytest.skip(f"{name} is not installed")
    yield readers[name]
    close(readers.values())


@cache
def published_outcomes(name: str) -> dict[str, str]:
    return tamper_table.read_outcomes(RESULTS)[name]


def differences(reader: Reader, folder: Path, attacks: Iterable[Attack]) -> dict[str, object]:
    """Return the cells that differ from the published ones."""
    said = published_outcomes(reader.name)
    ran = {name: str(cell) for name, cell in run(reader, folder, attacks).items()}
    return {name: (cell, said[name]) for name, cell in ran.items() if cell != said[name]}


@pytest.mark.parametrize("reader", OURS, indirect=True)
def test_modcrypt_does_what_the_published_results_say(reader: Reader, tmp_path: Path) -> None:
    """Attacks that are cases are tried, too, as they alter another file here."""
    assert differences(reader, tmp_path / "files", ATTACKS) == {}, REMEDY


@pytest.mark.parametrize("reader", PEERS, indirect=True)
def test_a_peer_does_what_the_published_results_say(reader: Reader, tmp_path: Path) -> None:
    if reader.version != PUBLISHED["readers"][reader.name]["version"]:
        pytest.skip(f"{reader.version} is here; the results are of another version")
    assert differences(reader, tmp_path / "files", unmeasured(reader)) == {}, REMEDY


def test_the_document_is_what_the_results_make() -> None:
    published = tamper_table.DOCUMENT.read_text()
    assert published == tamper_table.make_document(RESULTS, published)


def test_the_results_have_the_attacks_and_leave_out_what_the_suite_has() -> None:
    assert PUBLISHED["attacks"] == describe_attacks()
    assert [*PUBLISHED["readers"]] == [*OURS, *PEERS]
    for name, found in PUBLISHED["readers"].items():
        left = [
            title(attack) for attack, told in zip(ATTACKS, PUBLISHED["attacks"], strict=True)
            if not tamper_table.case_outcome(RESULTS, name, told["case"])
        ]  # fmt: skip
        assert [*found["outcomes"]] == left


@pytest.mark.parametrize("name", tamper_table.CLIENTS)
def test_cells_of_the_suite_are_of_the_same_version_as_the_others(name: str) -> None:
    client, formats = tamper_table.CLIENTS[name]
    (found,) = (made for made in read_runs(RESULTS) if made["client"] == client)
    assert PUBLISHED["readers"][name]["version"].endswith(f" {found['version']}")
    cases = {case for attack in PUBLISHED["attacks"] if (case := attack["case"])}
    measured = [case for case in cases if tamper_table.case_outcome(RESULTS, name, case)]
    assert {case.partition("/")[0] for case in measured} == {*formats}


def test_each_verdict_of_the_suite_is_an_outcome(tmp_path: Path) -> None:
    verdicts = {
        "detected": {"verdict": "pass", "detail": "tag"},
        "accepted": {"verdict": "pass"},
        "accepted, too": {"verdict": "expected failure", "failure": "fail-open", "intact": True},
        "wrong data": {"verdict": "fail-open", "intact": False, "detail": "returned 8 rows"},
        "token sent": {"verdict": "fail-open", "detail": "connected to an address that the file "
                       "names"},
        "crash": {"verdict": "crash"},
    }  # fmt: skip
    cases = {f"read/parquet/{name}": verdict for name, verdict in verdicts.items()}
    (tmp_path / "polars.json").write_text(json.dumps({"cases": cases}))
    for name in verdicts:
        outcome = tamper_table.case_outcome(tmp_path, "Polars", f"parquet/{name}")
        assert outcome == name.partition(",")[0]
    assert tamper_table.case_outcome(tmp_path, "Polars", "parquet/absent") is None
    assert tamper_table.case_outcome(tmp_path, "Polars", "pkmt1/detected") is None


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


def test_cases_of_attacks_exist() -> None:
    assert CASES.keys() <= {title(attack) for attack in ATTACKS}
    told = {f"read/{attack['case']}" for attack in PUBLISHED["attacks"] if attack["case"]}
    assert told <= {case.id for case in read_cases()}
    assert len(told) == len(CASES)


def test_attacks_have_names_of_their_own_and_all_are_published() -> None:
    titles = [title(attack) for attack in ATTACKS]
    assert len(set(titles)) == len(titles)
    assert list(published_outcomes(OURS[0])) == titles
