"""How modcrypt waits for a key service that throttles, fails or is away; no test really waits."""

from __future__ import annotations

import email.utils
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from modcrypt.errors import KmsUnavailableError
from modcrypt.io import threads
from modcrypt.kms import pacing
from modcrypt.kms.pacing import Pacer, pacer_of, parse_retry_after, read_patience
from tests.support.cases import each_case


class Time:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class Quota:
    """A service that grants some calls in each second."""

    def __init__(self, clock: Time, rate: int, retry_after: float | None = None) -> None:
        self.clock, self.rate, self.retry_after = clock, rate, retry_after
        self.granted: dict[int, int] = {}
        self.refused = 0

    def __call__(self) -> str:
        second = int(self.clock.now)
        if self.granted.get(second, 0) >= self.rate:
            self.refused += 1
            raise KmsUnavailableError("429", throttled=True, retry_after=self.retry_after)
        self.granted[second] = self.granted.get(second, 0) + 1
        return "granted"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(pacing, "monotonic", lambda: made.now)
    monkeypatch.setattr(pacing, "pause", made.pause)
    monkeypatch.delenv("MODCRYPT_KMS_PATIENCE")
    random.seed(1)
    return made


def fail(**how: Any) -> Callable[[], str]:
    def ask() -> str:
        raise KmsUnavailableError("away", **how)

    return ask


@each_case("retry_after", [None, 0.5, 1.0])
@each_case("rate", [1, 3, 10])
def test_a_job_under_a_quota_goes_on_as_long_as_it_makes_progress(
    clock: Time, rate: int, retry_after: float | None
) -> None:
    pacer, quota = Pacer(), Quota(clock, rate, retry_after)
    start = clock.now
    assert [pacer.call(quota) for _ in range(600)] == ["granted"] * 600
    assert 600 / rate - 1 <= clock.now - start <= 4 * 600 / rate + 30
    assert quota.refused < 600


def test_a_service_that_grants_nothing_is_given_up_after_its_patience(clock: Time) -> None:
    start = clock.now
    with pytest.raises(KmsUnavailableError, match=r"gave up after \d+ attempts in 1[12]\d s"):
        Pacer().call(fail(throttled=True))
    assert 119 <= clock.now - start <= 123


def test_a_service_that_is_away_is_given_up_sooner_and_then_tried_once(clock: Time) -> None:
    pacer, start = Pacer(), clock.now
    with pytest.raises(KmsUnavailableError, match="set MODCRYPT_KMS_PATIENCE"):
        pacer.call(fail())
    assert clock.now - start == pytest.approx(20)
    clock.pauses.clear()
    with pytest.raises(KmsUnavailableError):
        pacer.call(fail())
    assert clock.pauses == []
    assert pacer.call(lambda: "back") == "back"
    with pytest.raises(KmsUnavailableError):
        pacer.call(fail())
    assert clock.pauses


def test_a_server_that_hangs_ends_after_its_patience_and_one_attempt(clock: Time) -> None:
    start = clock.now

    def hang() -> str:
        clock.now += 20
        raise KmsUnavailableError("no answer")

    with pytest.raises(KmsUnavailableError):
        Pacer().call(hang)
    assert clock.now - start <= 40


def test_a_wait_that_the_service_names_is_observed_within_the_patience(clock: Time) -> None:
    answers = [KmsUnavailableError("later", throttled=True, retry_after=7.0)]

    def ask() -> str:
        if answers:
            raise answers.pop()
        return "granted"

    assert Pacer().call(ask) == "granted"
    assert 7 <= sum(clock.pauses) <= 7.3
    clock.pauses.clear()
    with pytest.raises(KmsUnavailableError, match="asks to wait 3600 s"):
        Pacer().call(fail(throttled=True, retry_after=3600.0))
    assert clock.pauses == []


def test_other_calls_of_a_client_wait_for_the_service_that_throttles_one(
    clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    pacer, others = Pacer(), list[str]()
    answers = [KmsUnavailableError("later", throttled=True, retry_after=5.0)]

    def ask() -> str:
        if answers:
            raise answers.pop()
        return "granted"

    def pause_beside_another_call(seconds: float) -> None:
        if not others:
            others.append("begun")
            pacer.call(lambda: others.append(f"{clock.now - 1000:.1f}"))
        clock.pause(seconds)

    monkeypatch.setattr(pacing, "pause", pause_beside_another_call)
    assert pacer.call(ask) == "granted"
    assert float(others[1]) >= 5


@pytest.mark.parametrize("seconds", ["0", "0.5", "3600"])
def test_the_environment_determines_the_patience(
    clock: Time, monkeypatch: pytest.MonkeyPatch, seconds: str
) -> None:
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", seconds)
    start = clock.now
    with pytest.raises(KmsUnavailableError):
        Pacer().call(fail())
    assert clock.now - start == pytest.approx(float(seconds))


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "1e3", "86401", "9" * 400, "soon", "\u0661"])
def test_other_texts_are_no_patience(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", text)
    with pytest.raises(ValueError, match="at most a day"):
        read_patience()


def test_a_long_wait_is_reported_once(clock: Time, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KmsUnavailableError):
        Pacer().call(fail())
    assert [record.getMessage() for record in caplog.records] == [
        "the key service is unavailable; modcrypt waits and continues"
    ]


# --- clients -------------------------------------------------------------------------------------


def test_a_client_keeps_its_pacer_even_without_weak_references() -> None:
    class Client:
        pass

    class Nameless:
        __slots__ = ()

    client, wrapping = Client(), Client()
    wrapping.paced_client = client  # type: ignore[attr-defined]  # any object may have it
    assert pacer_of(client) is pacer_of(client) is pacer_of(wrapping)
    assert pacer_of(client) is not pacer_of(Client())
    nameless = Nameless()
    assert pacer_of(nameless) is pacer_of(nameless)
    assert pacer_of(nameless) is not pacer_of(Nameless())


@pytest.mark.parametrize("seconds", [float("nan"), -1.0])
def test_what_is_no_time_to_wait_is_left_out(seconds: float) -> None:
    assert KmsUnavailableError("away", throttled=True, retry_after=seconds).retry_after is None


# --- interruptions -------------------------------------------------------------------------------


def test_threads_stop_waiting_when_their_results_are_useless() -> None:
    begun = threading.Barrier(3)

    def work(item: int) -> int:
        begun.wait(60)
        if item == 2:
            raise KeyError(item)
        threads.pause(3600)
        return item

    results = threads.in_threads(work, [2, 0, 1], 3)
    with pytest.raises(KeyError):
        next(results)


def test_threads_of_threads_stop_too() -> None:
    begun = threading.Event()

    def inner(item: int) -> int:
        begun.set()
        threads.pause(3600)
        return item

    def outer(item: int) -> list[int]:
        if item:
            assert begun.wait(60)
            raise KeyError(item)
        return list(threads.in_threads(inner, [0], 1))

    with pytest.raises(KeyError):
        list(threads.in_threads(outer, [1, 0], 2))


def test_other_threads_just_wait() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(threads.pause, 0).result() is None


# --- Retry-After ---------------------------------------------------------------------------------


@each_case(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 7 "}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"x-ms-retry-after-ms": "250"}, 0.25),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9" * 65}, None),
        ({"retry-after": "Mon, 99 Jan 2026 00:00:00 GMT"}, None),
        ({"retry-after": "\u0661"}, None),
        ({"retry-after": 7}, None),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0.0),
    ],
)
def test_waits_are_read_from_headers(headers: Any, seconds: float | None) -> None:
    assert parse_retry_after(headers) == seconds


def test_a_date_is_a_wait() -> None:
    moment = datetime.now(UTC) + timedelta(seconds=90)
    text = email.utils.format_datetime(moment, usegmt=True)
    wait = parse_retry_after({"retry-after": text})
    assert wait is not None
    assert 60 < wait <= 90
