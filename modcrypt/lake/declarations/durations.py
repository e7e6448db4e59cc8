"""Durations in a declaration, such as "90d"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from modcrypt.lake.declarations.declaration_faults import FaultList
from modcrypt.lake.declarations.toml_lines import MemberPath

_DURATION = re.compile(r"([0-9]{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_durations(
    faults: FaultList, path: MemberPath, given: Mapping[str, Any], names: Iterable[str]
) -> dict[str, float]:
    """Return the durations in a table in seconds, by name; add a mistake for each other value."""
    seconds = {}
    for name in names:
        match = _DURATION.fullmatch(str(given.get(name, "")))
        if match is not None:
            seconds[name] = float(int(match[1]) * _SECONDS[match[2]])
        elif name in given:
            message = f"{name} must be a number of minutes, hours, days or weeks, such as 90d"
            faults.add((*path, name), message)
    return seconds
