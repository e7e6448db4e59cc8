"""The behaviour of peers, as data: one TOML file in `data/` for each peer.

A file has `name`, `version`, `date`, `api` (how the peer is given keys), `packages` (what is
installed to run it) and `probe` (a file in `probes/`), and a table `cases.CASE` for each case with

- `result`: "reads", "partly", "refuses", "wrong" or "source" (read in its source, not run);
- `text`: what it does, in our words;
- `steps`: what the probe prints for each step of the case: the rows and columns that were read,
  or the class of an error, a colon, and a part of its message.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "data"
RESULTS = ("reads", "partly", "refuses", "wrong", "source")
CASES = {
    "all-keys": "all keys at hand",
    "no-key": "no key, encrypted footer",
    "missing-key": "the key of one column missing",
    "plaintext-footer": "plaintext footer",
    "key-material": "key material files in the folder",
    "aad-stored": "AAD prefix that the file stores",
    "aad-supplied": "AAD prefix that readers supply",
    "aad-empty": "empty AAD prefix supplied",
    "ctr": "AES_GCM_CTR_V1",
    "data-page-v2": "data pages V2",
    "restored": "module that restores every byte",
    "mixed-folder": "folder of encrypted and plaintext files",
    "encrypted-table": "encrypted Iceberg table",
    "row-groups-32768": "32,768 row groups",
    "chunk-2-31": "encrypted column chunk of 2^31 bytes",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """The behaviour of a peer in one case."""

    result: str
    text: str
    steps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A version of a peer, and what it does."""

    name: str
    version: str
    date: str
    api: str
    probe: str
    packages: tuple[str, ...]
    cases: Mapping[str, Case]

    def steps(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each step, `case: step`, and what it is expected to print."""
        for name, case in self.cases.items():
            for step, seen in case.steps.items():
                yield f"{name}: {step}", seen


def load_peer(path: Path) -> Peer:
    """Return the peer that a file describes."""
    content = tomllib.loads(path.read_text())
    cases = {name: Case(**case) for name, case in content.pop("cases").items()}
    content["date"] = content["date"].isoformat()
    return Peer(**content | {"packages": tuple(content["packages"]), "cases": cases})


def load_peers() -> dict[str, Peer]:
    """Return all peers by the names of their files, in the order of the page."""
    peers = {path.stem: load_peer(path) for path in FOLDER.glob("*.toml")}
    return dict(sorted(peers.items(), key=lambda item: item[1].name.lower()))


def matches(seen: str, expected: str) -> bool:
    """Return whether a step printed what is expected of it."""
    kind, colon, part = expected.partition(": ")
    if not colon:
        return seen == expected
    found, _, message = seen.partition(": ")
    return found == kind and part in message
