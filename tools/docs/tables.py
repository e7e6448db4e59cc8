"""The tables that the website draws from data.

A page has a line `<!-- table: KIND NAMES -->` where the table belongs, and says where the data are.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from itertools import groupby

from tools import bench_plots, settings_tables
from tools.docs.conformance_tables import draw_results
from tools.docs.error_table import draw_errors
from tools.docs.links import ROOT
from tools.docs.markdown_table import draw_table
from tools.docs.name_index import draw_names
from tools.docs.peer_tables import draw_peers
from tools.docs.writer_tables import draw_quirks
from tools.lake_sizing import print_model

LOUD = ("wrong data", "crash", "contacted")
_PLACE = re.compile(r"^<!-- table: (\w+)(.*) -->$", re.MULTILINE)
_TIME = re.compile(r"([\d.]+) (s|ms|µs)\b(?:, CPU time)?:? ?(.*)")
_SECONDS = {"s": 1, "ms": 1e-3, "µs": 1e-6}


def fill(markdown: str) -> str:
    """Return a page with its tables."""
    return _PLACE.sub(lambda found: KINDS[found[1]](*found[2].split()), markdown)


def read_csv(path: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a file of the repository."""
    with (ROOT / path).open(newline="") as file:
        yield from csv.DictReader(file)


def draw_csv(path: str, group: str) -> str:
    """Return the rows of a group, which the first column names, without the empty columns.

    Times that are compared with others are drawn above them.
    """
    found = [row for row in read_csv(path) if next(iter(row.values())) == group]
    rows = [list(row.items())[1:] for row in found]
    used = [number for number in range(len(rows[0])) if any(row[number][1] for row in rows)]
    head = [rows[0][number][0] for number in used]
    table = draw_table(head, [[row[number][1] for number in used] for row in rows])
    times = list(_compare_times(found))
    return f"{bench_plots.draw(group, times)}\n\n{table}" if times else table


def _compare_times(rows: Iterable[Mapping[str, str]]) -> Iterator[bench_plots.Row]:
    """Yield the rows that begin with a time in both columns, as rows of a benchmark."""
    for row in rows:
        ours, peer = (_TIME.match(row.get(who, "")) for who in ("modcrypt", "compared with"))
        if ours and peer:
            factor = _SECONDS[ours[2]] / _SECONDS[peer[2]]
            about = row["what"].replace("`", "")
            yield {
                "name": f"{about}; peer {peer[3].replace('`', '')}", "target": "",
                "modcrypt": {"median": float(ours[1]) * factor, "unit": peer[2]},
                "peer": {"median": float(peer[1]), "unit": peer[2]},
            }  # fmt: skip


def draw_attacks(path: str) -> str:
    """Return the tamper matrix, a table for each group, and the reasons why attacks pass."""
    parts = []
    reasons: dict[str, list[str]] = {}
    for group, attacks in groupby(read_csv(path), key=lambda attack: attack.pop("group")):
        shown = []
        for attack in attacks:
            *cells, reason = attack.values()
            reasons.setdefault(reason, []).append(attack["number"])
            shown.append([f"**{cell}**" if cell in LOUD else cell for cell in cells])
        parts += [f"### {group}", draw_table(["", "Attack", "Keys held", *[*attack][3:-1]], shown)]
    items = (f"- {', '.join(numbers)}: {reason}" for reason, numbers in reasons.items() if reason)
    return "\n\n".join([*parts, "### What modcrypt lets pass, and what helps", "\n".join(items)])


def draw_model(executors: str) -> str:
    """Return what the model of a lake's verbs prints."""
    with redirect_stdout(io.StringIO()) as printed:
        print_model(int(executors))
    return f"```text\n{printed.getvalue()}```"


KINDS: Mapping[str, Callable[..., str]] = {
    "attacks": draw_attacks,
    "conformance": draw_results,
    "csv": draw_csv,
    "errors": draw_errors,
    "figures": bench_plots.show,
    "model": draw_model,
    "names": draw_names,
    "peers": draw_peers,
    "settings": settings_tables.draw_settings,
    "writers": draw_quirks,
}
"""Functions that draw the tables of each kind, from the names that follow it in the page."""
