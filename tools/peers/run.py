"""Run peers on modcrypt's files, and compare with what the data says of them.

    python -m tools.peers.run PEER... [--installed] [--show]

PEER is the name of a file in `data/`, without suffix. Its packages are installed in a temporary
virtual environment, or `--installed` uses this interpreter's. The exit code is 1 if a peer
did something else than the data says.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tools.peers.data import FOLDER, Peer, load_peer, matches
from tools.peers.samples import write_samples

PROBES = Path(__file__).parent / "probes"
SECONDS = 1800  # for a probe, of which the slowest compiles Arrow


def main() -> int:
    """Run the peers that the command line names, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("peers", nargs="+", metavar="PEER")
    parser.add_argument("--installed", action="store_true", help="use this interpreter's packages")
    parser.add_argument("--show", action="store_true", help="print what every step did")
    arguments = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        write_samples(Path(folder))
        for name in arguments.peers:
            peer = load_peer(FOLDER / f"{name}.toml")
            seen = run_peer(peer, Path(folder), installed=arguments.installed)
            for step, text in seen.items() if arguments.show else ():
                print(f"{name}: {step}: {text}")
            for line in compare(peer, seen):
                faults += 1
                print(f"{name}: {line}")
            print(f"{name}: {len(seen)} steps run")
    return min(faults, 1)


def run_peer(peer: Peer, samples: Path, *, installed: bool = False) -> dict[str, str]:
    """Return what each step of a peer's probe printed.

    Args:
        peer: The peer.
        samples: Folder of the samples.
        installed: Whether to use this interpreter and its packages.
    """
    probe = PROBES / peer.probe
    if installed or not peer.packages:  # programs in other languages install what they need
        return _run_probe([sys.executable, str(probe)], samples)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "bin/python"))
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *peer.packages], check=True)
        return _run_probe([python, str(probe)], samples)


def _run_probe(command: list[str], samples: Path) -> dict[str, str]:
    done = subprocess.run(
        [*command, str(samples)], stdout=subprocess.PIPE, check=True, timeout=SECONDS
    )
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith('{"step"')]
    return {answer["step"]: answer["seen"] for answer in map(json.loads, lines)}


def compare(peer: Peer, seen: dict[str, str]) -> list[str]:
    """Return the steps that did something else than the data says, and those only on one side."""
    expected = dict(peer.steps())
    both = [step for step in expected if step in seen and not matches(seen[step], expected[step])]
    return [
        *(f"{step}: expected {expected[step]!r}, saw {seen[step]!r}" for step in both),
        *(f"{step}: not run" for step in expected if step not in seen),
        *(f"{step}: not in the data, saw {seen[step]!r}" for step in seen if step not in expected),
    ]


if __name__ == "__main__":
    sys.exit(main())
