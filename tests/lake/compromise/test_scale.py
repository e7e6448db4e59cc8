"""The answer to a leak opens and writes the exposed files alone, and asks for few keys."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.io.sources import FileSource
from modcrypt.lake.compromise import leak_record
from modcrypt.lake.lake import Lake
from tests.support.lake_folder import DECLARATION, make_lake
from tools.lake_sizing import CountingClient

# Copies of one file stand for many, so the AAD prefix does not bind them to their paths.
PER_DAY = DECLARATION.replace("orders/{path}", "orders").replace("\npii =", '\n"{partition.day}" =')
LEAKED = "2026-11-02"


def make_days(folder: Path, days: int, files: int) -> Path:
    """Make an encrypted lake with a master key for each day, whose files are copies of one."""
    config = make_lake(folder, days=days, files=1, declaration=PER_DAY)
    keyring = mc.Keyring(folder / "lake.keyring")
    for day in range(1, days + 1):
        keyring.create_key(f"2026-11-{day:02}")
    Lake.open(config).apply()
    for first in sorted((folder / "orders").rglob("part-0.parquet")):
        for number in range(1, files):
            first.with_name(f"part-{number}.parquet").write_bytes(first.read_bytes())
    return config


class Watch:
    """The files that a run opens, by path, and its calls of the key service."""

    def __init__(self, config: Path) -> None:
        self.lake = Lake.open(config)
        self.client: Any = CountingClient(mc.Keyring(config.parent / "lake.keyring"))
        self.lake.__dict__["client"] = self.client
        self.opened: Counter[str] = Counter()

    @property
    def calls(self) -> int:
        """Number of calls of the key service."""
        calls: int = self.client.calls
        return calls

    def days(self) -> set[str]:
        """Return the days of which files were opened."""
        return {Path(path).parent.name.removeprefix("day=") for path in self.opened}


@contextmanager
def watch(config: Path) -> Iterator[Watch]:
    """Watch what the lake in the body of the `with` statement opens."""
    seen, begin = Watch(config), FileSource.__init__

    def note(self: FileSource, path: str) -> None:
        if path.endswith(".parquet"):
            seen.opened[path] += 1
        begin(self, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileSource, "__init__", note)
        yield seen


def check_answer(config: Path, days: int, files: int) -> None:
    """Check what each verb opens and asks, from the status before the leak to the one after it."""
    with watch(config) as seen:
        assert seen.lake.status()[0].counts == {"declared": days * files}
    assert seen.opened.total() == days * files
    mc.Keyring(config.parent / "lake.keyring").rotate_key(LEAKED)
    config.write_text(f'compromised = ["{LEAKED}@1"]\n{PER_DAY}')
    with watch(config) as seen:
        others = (days - 1) * files
        counts = {"declared": others, "compromised": files}
        assert seen.lake.status()[0].counts == counts
    assert seen.opened.total() <= days  # one file of each KEK, as a key may have been disabled
    assert seen.calls <= 2 * days + 1
    stamps = {path: os.stat(path) for path in config.parent.rglob("*.parquet")}
    with watch(config) as seen:
        assert seen.lake.apply(jobs=1)[0].totals.results == {"renewed": files}
    changed = {path for path, stamp in stamps.items() if os.stat(path) != stamp}
    assert {path.parent.name for path in changed} == {f"day={LEAKED}"}
    assert len(changed) == files
    of_leak = {path: n for path, n in seen.opened.items() if LEAKED in path}
    # Each is opened for its columns, and to be encrypted again; one was looked at before.
    assert sum(of_leak.values()) <= 2 * files + 1
    assert seen.opened.total() - sum(of_leak.values()) <= days - 1
    assert seen.calls <= 2 * days + 8
    with watch(config) as seen:
        assert seen.lake.status()[0].counts == {"declared": days * files}
    assert seen.opened.total() <= files + days
    assert seen.calls <= 2 * days + 3


def test_an_answer_opens_the_exposed_files_alone(tmp_path: Path) -> None:
    check_answer(make_days(tmp_path, 4, 6), 4, 6)


@pytest.mark.slow
def test_an_answer_of_a_thousand_files_of_five_thousand(tmp_path: Path) -> None:
    check_answer(make_days(tmp_path, 5, 1000), 5, 1000)


def test_the_record_is_read_once_for_many_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = "".join(
        f'\n[dataset.more{n}]\nlocation = "orders/day=2026-11-0{n}"\nfooter_key = "footer"\n'
        for n in (1, 2)
    )
    config = make_lake(tmp_path, declaration=DECLARATION)
    Lake.open(config).apply()
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("pii")
    config.write_text(f'compromised = ["pii@1"]\n{DECLARATION}{more}')
    Lake.open(config).apply("orders")
    reads: list[str] = []
    read = leak_record.read_record

    def note(declaration: str) -> leak_record.LeakRecord:
        reads.append(declaration)
        return read(declaration)

    monkeypatch.setattr(leak_record, "read_record", note)
    lake = Lake.open(config)
    assert len(lake.status()) == 3
    assert len(reads) == 1
    with config.with_suffix(".leaks.jsonl").open("a") as record:
        record.write('{"kind": "inventory", "dataset": "d", "key": "pii@1", "time": 1}\n')
    lake.status()
    assert len(reads) == 2
