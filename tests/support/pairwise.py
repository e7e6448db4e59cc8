"""Cases in which every value of an axis meets every value of every other axis."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Case: TypeAlias = dict[str, Any]


def pairwise(**axes: Sequence[Any]) -> list[Case]:
    """Return few cases in which every value of an axis meets every value of every other axis."""
    names = list(axes)
    open_pairs = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(axes[names[a]]))
        for j in range(len(axes[names[b]]))
    }
    cases: list[Case] = []
    while open_pairs:
        a, i, b, j = min(open_pairs)
        chosen = {a: i, b: j}
        for axis in range(len(names)):
            if axis not in chosen:
                size = len(axes[names[axis]])
                useful = _usefulness(axis, chosen, open_pairs)
                turned = [(value + len(cases)) % size for value in range(size)]
                chosen[axis] = max(turned, key=useful)
        open_pairs -= {(a, chosen[a], b, chosen[b]) for a, b in itertools.combinations(chosen, 2)}
        open_pairs -= {(b, chosen[b], a, chosen[a]) for a, b in itertools.combinations(chosen, 2)}
        cases.append({name: axes[name][chosen[n]] for n, name in enumerate(names)})
    return cases


def _usefulness(
    axis: int, chosen: Mapping[int, int], open_pairs: set[tuple[int, int, int, int]]
) -> Callable[[int], int]:
    def count_new_pairs(value: int) -> int:
        pairs = ((axis, value, other, at) for other, at in chosen.items())
        return sum(p in open_pairs or (*p[2:], *p[:2]) in open_pairs for p in pairs)

    return count_new_pairs


def case_name(case: Case) -> str:
    """Name a case by its values."""
    return "-".join(str(value) for value in case.values())
