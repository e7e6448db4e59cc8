"""The tables of docs/reference/peers.md, from the data about peers."""

from __future__ import annotations

from collections.abc import Iterator

from tools.docs.markdown_table import draw_table
from tools.peers.data import CASES, Peer, load_peers


def draw_peers() -> str:
    """Return a table of all peers and cases, and one for each peer."""
    peers = list(load_peers().values())
    return "\n\n".join([_draw_overview(peers), *(_draw_peer(peer) for peer in peers)])


def _draw_overview(peers: list[Peer]) -> str:
    rows = [[f"{peer.name} {peer.version}", *_list_results(peer)] for peer in peers]
    return f"## At a glance\n\n{draw_table(['peer', *CASES.values()], rows)}"


def _list_results(peer: Peer) -> Iterator[str]:
    for case in CASES:
        yield peer.cases[case].result if case in peer.cases else ""


def _draw_peer(peer: Peer) -> str:
    about = f"Version {peer.version}, {peer.date}. Keys: {peer.api}."
    found = ((title, peer.cases.get(name)) for name, title in CASES.items())
    rows = [[title, case.result, case.text] for title, case in found if case]
    return f"## {peer.name}\n\n{about}\n\n{draw_table(['case', 'result', 'what it does'], rows)}"
