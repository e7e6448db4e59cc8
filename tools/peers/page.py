"""Write the tables of docs/reference/peers.md; a test compares: `python -m tools.peers.page`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.peers.data import CASES, Peer, load_peers

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/peers.md"
START = "<!-- tables: python -m tools.peers.page -->\n"


def make_page(page: str) -> str:
    """Return the page with its tables.

    Args:
        page: The page; what follows its marker is replaced.
    """
    head, _, _ = page.partition(START)
    peers = list(load_peers().values())
    tables = ["\n".join(_write_overview(peers)), *("\n".join(_write_peer(peer)) for peer in peers)]
    return head + START + "\n" + "\n\n".join(tables) + "\n"


def _write_overview(peers: list[Peer]) -> Iterator[str]:
    yield "## At a glance\n"
    yield "| peer | " + " | ".join(CASES.values()) + " |"
    yield "|---" * (len(CASES) + 1) + "|"
    for peer in peers:
        results = (peer.cases[case].result if case in peer.cases else "" for case in CASES)
        yield f"| {peer.name} {peer.version} | " + " | ".join(results) + " |"


def _write_peer(peer: Peer) -> Iterator[str]:
    yield f"## {peer.name}\n"
    yield f"Version {peer.version}, {peer.date}. Keys: {peer.api}.\n"
    yield "| case | result | what it does |\n|---|---|---|"
    for name, title in CASES.items():
        if case := peer.cases.get(name):
            yield f"| {title} | {case.result} | {case.text.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    PAGE.write_text(make_page(PAGE.read_text()))
