"""The report of a run: engines, what was done, and what was wrong."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import modcrypt
from tests.support.java.iceberg_java import VERSION
from tests.support.spark.iceberg_spark import SPARK


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong, and the command that repeats it."""

    where: str
    wrong: str
    wrong_rows: int
    repeat: str


@dataclass(kw_only=True)
class Report:
    """The counts and findings of a run.

    Attributes:
        done: Number of turns, races, faults and kills; kills count only if they hit work.
        outcomes: How often operations were done, refused or left open, by phase and name.
        rows: Number of rows that were compared with those that must exist.
    """

    catalog: str
    seed: int
    engines: dict[str, str]
    done: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def wrong_rows(self) -> int:
        """Number of rows that were lost, surplus or altered."""
        return sum(finding.wrong_rows for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        counts = {"wrong_rows": self.wrong_rows, "ok": self.ok}
        outcomes = dict(sorted(self.outcomes.items()))
        return asdict(self) | {"done": dict(self.done), "outcomes": outcomes} | counts

    def to_text(self) -> str:
        """Return the report for people."""
        engines = ", ".join(f"{name} {version}" for name, version in self.engines.items())
        done = ", ".join(
            f"{self.done[name]} {name}" for name in ("turns", "races", "faults", "kills")
        )
        lines = [
            f"{self.catalog} (seed {self.seed}; {engines})",
            f"{done} ({self.done['tries']} tries); {self.rows} rows compared, "
            f"{self.wrong_rows} wrong rows, {len(self.findings)} findings, {self.seconds:.0f} s",
        ]
        for finding in self.findings:
            lines += [f"WRONG {finding.where}: {finding.wrong}", f"  repeat: {finding.repeat}"]
        return "\n".join(lines)

    def save(self, path: str) -> None:
        """Write the report as JSON."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.to_json(), file, indent=1)
            file.write("\n")


def engine_versions(*, spark: bool) -> dict[str, str]:
    """Return the versions of the engines that take part."""
    libraries = {name: importlib.metadata.version(name) for name in ("pyarrow", "pyiceberg")}
    engines = {"modcrypt": modcrypt.__version__, "Iceberg": VERSION}
    engines |= {"Spark": SPARK} if spark else {}
    return engines | {"Python": sys.version.split()[0]} | libraries
