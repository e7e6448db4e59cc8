"""Processes that create the keys of the same subjects in one vault at the same time."""

from __future__ import annotations

from pathlib import Path

from tests.support.crash import run_together

_PROCESS = """
import json, sys
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects.vault import open_vault
from tests.support.sample_vault import fingerprints

step, count, address, keyring = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
vault = open_vault(address, KeyTools(f"file:{keyring}"))
subjects = vault.references([b"%d" % number for number in range(count)])
print("ready", flush=True)
sys.stdin.readline()
found = {}
for at in range(0, count, step):
    part = subjects[at:at + step]
    found |= dict(zip(part, fingerprints(vault, part, create=True)))
assert fingerprints(vault, subjects) == [found[each] for each in subjects]
print(json.dumps([found[each] for each in subjects]))
"""


def run_writers(count: int, steps: tuple[int, ...], address: str) -> list[list[str]]:
    """Let a process for each step create the keys of as many subjects; return what each has."""
    keyring = Path("lake.keyring").resolve()
    return run_together(_PROCESS, *[(step, count, address, keyring) for step in steps])
