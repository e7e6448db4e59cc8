"""The time that an answer may take."""

from __future__ import annotations

import io
from typing import Any

import pytest

from modcrypt.kms.services import bounded_http
from modcrypt.kms.services.bounded_http import AnswerLimits


class Socket:
    """A connection whose timeouts are recorded."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def settimeout(self, seconds: float) -> None:
        self.timeouts.append(seconds)


@pytest.mark.parametrize(
    ("transfer", "left"),
    [(None, [60.0, 20.0]), (8.0, [60.0, 8.0 + 2.0 - 1.0])],  # two seconds' worth of bytes came
)
def test_bytes_that_arrive_extend_the_time_of_a_transfer(
    monkeypatch: pytest.MonkeyPatch, transfer: float | None, left: list[float]
) -> None:
    now, sock = [0.0], Socket()
    monkeypatch.setattr(bounded_http, "monotonic", lambda: now[0])
    body: Any = io.BytesIO(bytes(2 * bounded_http.MIN_RATE))
    limits = AnswerLimits(size=1 << 30, seconds=60.0, transfer=transfer)
    answer = bounded_http._Limited(body, sock, limits)  # type: ignore[arg-type]

    def wait(seconds: float, count: int) -> None:
        now[0] += seconds
        answer.readinto(bytearray(count))

    answer.readinto(bytearray(2 * bounded_http.MIN_RATE))
    wait(40.0 if transfer is None else 1.0, 1)
    assert sock.timeouts == left
    with pytest.raises(TimeoutError):
        wait(60.0, 1)
