"""docs/reference/peers.md sums up the data about peers, which runs of the peers confirm."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools.peers.data import CASES, RESULTS, Case, Peer, load_peers, matches
from tools.peers.run import compare, run_peer
from tools.peers.samples import write_samples

PAGE = ROOT / "docs/reference/peers.md"
PEERS = load_peers()


def test_the_page_sums_up_the_data() -> None:
    rows = re.findall(r"^\| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    stated = {head: set(re.split(r"[,;] ", names)) for head, names in rows}
    results: dict[str, set[str]] = {"": set()}
    for peer in PEERS.values():
        case = peer.cases.get("all-keys")
        results.setdefault(case.result if case else "", set()).add(peer.name)
    assert stated["read a part"] == results["partly"]
    assert stated["refuses all files"] == results["refuses"]
    java = "of an encrypted Iceberg table"
    assert stated["read all rows"] == {*results["reads"], java, "Iceberg (Java)"}
    assert stated["have no decryption"] == results[""] - {"Iceberg (Java)"}
    readers = [peer for peer in PEERS.values() if peer.name in results["reads"] | results["partly"]]
    refused = {
        title: {reader.name for reader in readers if _result(reader, case) == "refuses"}
        for case, title in CASES.items()
    }
    stated[CASES["no-key"]] = {reader.name for reader in readers}  # "all"
    assert refused == {title: stated.get(title, set()) for title in CASES.values()}
    assert not any(
        case.result == "wrong" for peer in PEERS.values() for case in peer.cases.values()
    )


def _result(peer: Peer, case: str) -> str:
    return peer.cases[case].result if case in peer.cases else ""


@pytest.mark.parametrize("name", PEERS)
def test_the_data_of_a_peer_are_whole(name: str) -> None:
    peer = PEERS[name]
    assert set(peer.cases) <= set(CASES)
    assert {case.result for case in peer.cases.values()} <= set(RESULTS)
    assert all(case.text.endswith(".") for case in peer.cases.values())
    unrun = {name for name, case in peer.cases.items() if not case.steps}
    assert all(peer.cases[name].result == "source" for name in unrun)
    probe = ROOT / "tools/peers/probes" / peer.probe
    assert probe.is_file()


@pytest.mark.parametrize(
    ("seen", "expected", "same"),
    [
        ("100 x 4", "100 x 4", True),
        ("100 x 4", "100 x 3", False),
        ("OSError: no: such key", "OSError: such key", True),
        ("ValueError: no such key", "OSError: such key", False),
        ("OSError: other", "OSError: such key", False),
        ("OSError: other", "100 x 4", False),
    ],
)
def test_what_a_step_printed_is_compared(seen: str, expected: str, same: bool) -> None:
    assert matches(seen, expected) is same


def test_differences_from_the_data_are_named() -> None:
    case = Case(result="reads", text="All rows.", steps={"a": "1 x 1", "b": "2 x 1", "c": "3 x 1"})
    peer = Peer(name="p", version="1", date="", api="", probe="", packages=(), cases={"ctr": case})
    seen = {"ctr: a": "1 x 1", "ctr: b": "9 x 1", "ctr: d": "4 x 1"}
    assert compare(peer, seen) == [
        "ctr: b: expected '2 x 1', saw '9 x 1'",
        "ctr: c: not run",
        "ctr: d: not in the data, saw '4 x 1'",
    ]


def _is_installed(requirement: str) -> bool:
    name, _, pinned = re.sub(r"\[.*\]", "", requirement).partition("==")
    try:
        return version(name) == pinned
    except PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    write_samples(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_does_what_the_data_say(name: str, samples: Path) -> None:
    peer = PEERS[name]
    if not peer.packages or not all(map(_is_installed, peer.packages)):
        pytest.skip(f"needs {', '.join(peer.packages) or 'another language'}")
    assert compare(peer, run_peer(peer, samples, installed=True)) == []
