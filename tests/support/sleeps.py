"""Note the pauses of modcrypt in place of sleeping."""

from __future__ import annotations

import sys
import time

import pytest


def note_sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Note the seconds that modcrypt would sleep, and return them.

    Others sleep: `time` has one `sleep` for the whole process, in which a thread of py4j waits for
    work, second by second, once a test has started Spark.
    """
    noted, sleep = list[float](), time.sleep

    def note(seconds: float) -> None:
        is_ours = sys._getframe(1).f_globals["__name__"].startswith("modcrypt.")
        (noted.append if is_ours else sleep)(seconds)

    monkeypatch.setattr(time, "sleep", note)
    return noted
