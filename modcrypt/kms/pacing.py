"""The pace of calls to a key service: retries, and the waits between calls.

All threads that use one client share its pace. A service that throttles refuses calls before it
does anything, so such a call is repeated for as long as the service grants others; calls then start
one after another, at intervals that grow with each refusal and shrink with each success. A service
that is unavailable gets each call again after a random, growing wait (exponential backoff with full
jitter).

A call ends with the error of its last attempt if it has waited for its patience without success.
For `DOWN_FOR` seconds after that, calls of the same client get a single attempt.
"""

from __future__ import annotations

import email.utils
import os
import random
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import TypeVar

from modcrypt.errors import KeyRetrievalError, KmsUnavailableError
from modcrypt.io.threads import pause
from modcrypt.runtime.fork_safety import fork_safe
from modcrypt.runtime.log import LOGGER

UNAVAILABLE_PATIENCE = 20.0
"""Seconds for which a call to a service that cannot be reached is retried.

Somebody may be waiting, and a service that restarts answers within this time. An attempt that has
begun may take 20 seconds more.
"""

THROTTLED_PATIENCE = 120.0
"""Seconds without any granted call of the client, after which a throttled call is given up.

The quotas of services are by second or minute, so a longer wait means that others use the quota up.
"""

PATIENCE_VARIABLE = "MODCRYPT_KMS_PATIENCE"
"""Environment variable that replaces both: a nightly job may wait for hours, 0 never retries."""

MAX_PATIENCE = 86_400.0
"""Largest value of the variable, in seconds: a day."""

FIRST_WAIT = 0.2
"""Longest wait before the second attempt, in seconds; later ones double, up to `MAX_WAIT`."""

MAX_WAIT = 10.0
"""Longest wait that modcrypt chooses by itself, in seconds."""

DOWN_FOR = 60.0
"""Seconds after a call was given up in which others get one attempt: thousands may follow."""

FIRST_INTERVAL, MAX_INTERVAL = 0.02, 2.0
"""Seconds between the starts of calls to a service that throttles: at first, and at most."""

SLOWER, FASTER = 2.0, 0.85  # factors of that interval after a refusal and after a success

ADJUST_EVERY = 0.5
"""Seconds in which all refusals count as one: quotas are by second, so they come in groups."""

WORTH_TELLING, TELL_EVERY = 2.0, 30.0
"""Seconds that a call waits before a warning says why nothing happens, and between warnings."""

_MAX_HEADER = 64  # a date has 29 characters
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)

T = TypeVar("T")


@dataclass
class _Effort:
    """The attempts of one call since the client's last success."""

    began: float
    granted: int
    attempts: int = 0
    waited: float = 0.0
    has_turn: bool = False  # the last wait was for a turn

    def spent(self, now: float) -> float:
        """Return the seconds that the call has taken."""
        return max(now - self.began, self.waited)


class Pacer:
    """The pace of one client's calls, for any thread."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._patience = read_patience()
        self._next = 0.0  # time of the next call's start, while the service throttles
        self._interval = 0.0
        self._adjusted = 0.0  # time before which calls that are refused make nothing slower
        self._granted = 0  # number of successes
        self._down_until = 0.0
        self._gave_up = ""  # what the call that was given up says, as do those that follow it
        self._tell_from = 0.0

    def call(self, ask: Callable[[], T]) -> T:
        """Call the service, again while it is unavailable and the patience lasts."""
        effort = _Effort(monotonic(), self._granted)
        while True:
            with self._lock:  # while the service throttles, calls start one after another
                turn = 0.0
                if self._interval and not effort.has_turn:
                    turn = self._reserve(monotonic(), None)
            if turn > 0:
                pause(turn)
            sent = monotonic()
            try:
                answer = ask()
            except KmsUnavailableError as error:
                wait = self._plan_wait(error, effort, sent)
            else:
                self._note_success()
                return answer
            effort.waited += wait
            self._tell(effort)
            pause(wait)

    def _note_success(self) -> None:
        with self._lock:
            self._granted += 1
            self._down_until = 0.0
            self._interval *= FASTER
            if self._interval < FIRST_INTERVAL / 2:
                self._interval = 0.0

    def _plan_wait(self, error: KmsUnavailableError, effort: _Effort, sent: float) -> float:
        """Return the seconds until the next attempt; raise the error if there is none."""
        with self._lock:
            now = monotonic()
            if error.throttled and effort.granted != self._granted:  # others are served
                effort.began, effort.waited, effort.attempts = sent, 0.0, 0
                effort.granted = self._granted
            effort.attempts += 1
            ceiling = min(MAX_WAIT, FIRST_WAIT * 2 ** min(effort.attempts - 1, 30))
            wait = random.uniform(0, ceiling)  # noqa: S311  # no secret depends on it
            if error.retry_after is not None:
                wait = error.retry_after + random.uniform(0, FIRST_WAIT)  # noqa: S311  # as above
            left = self._find_patience(error, now) - effort.spent(now)
            if left <= 0 or (error.retry_after or 0.0) > left:
                self._give_up(error, effort, now)
            wait = min(wait, left)
            effort.has_turn = error.throttled
            if error.throttled:
                # Once for all calls that were sent before or just after the last change.
                if sent >= self._adjusted:
                    self._adjusted = now + ADJUST_EVERY
                    slower = max(FIRST_INTERVAL, self._interval * SLOWER)
                    self._interval = min(MAX_INTERVAL, slower)
                wait = max(wait, self._reserve(now, error.retry_after))
            return wait

    def _find_patience(self, error: KmsUnavailableError, now: float) -> float:
        if now < self._down_until:
            return 0.0
        if self._patience is not None:
            return self._patience
        return THROTTLED_PATIENCE if error.throttled else UNAVAILABLE_PATIENCE

    def _reserve(self, now: float, retry_after: float | None) -> float:
        """Return the seconds until the turn of a refused call, which others wait for, too."""
        begin = max(self._next, now + (retry_after or 0.0))
        self._next = begin + self._interval
        return begin - now

    def _tell(self, effort: _Effort) -> None:
        """Log a warning if a call waits for long; the command line shows it on stderr."""
        now = monotonic()
        if effort.waited >= WORTH_TELLING and now >= self._tell_from:
            self._tell_from = now + TELL_EVERY
            LOGGER.warning(
                "the key service %s; modcrypt waits and continues",
                "throttles" if effort.has_turn else "is unavailable",
            )

    def _give_up(self, error: KmsUnavailableError, effort: _Effort, now: float) -> None:
        if now >= self._down_until or not self._gave_up:
            self._gave_up = ""
            if effort.attempts > 1:
                self._gave_up = (
                    f"; gave up after {effort.attempts} attempts in {effort.spent(now):.0f} s (set "
                    f"{PATIENCE_VARIABLE} to wait longer)"
                )
            elif error.retry_after is not None:
                self._gave_up = f", and asks to wait {error.retry_after:.0f} s"
        self._down_until = now + DOWN_FOR
        error.args = (f"{error}{self._gave_up}",)
        raise error


def read_patience() -> float | None:
    """Return the seconds that the environment names; None without the variable."""
    if not (text := os.environ.get(PATIENCE_VARIABLE, "")):
        return None
    if _SECONDS.fullmatch(text) and float(text) <= MAX_PATIENCE:
        return float(text)
    raise ValueError(f"{PATIENCE_VARIABLE} must be a number of seconds, at most a day (86400)")


MAX_FIXED = 1000
"""Largest number of clients without weak references whose pacers are remembered."""

_pacers: weakref.WeakKeyDictionary[object, Pacer] = weakref.WeakKeyDictionary()
_fixed: dict[int, tuple[object, Pacer]] = {}
_guard = fork_safe(threading.Lock())


def pacer_of(client: object) -> Pacer:
    """Return the pacer of a client.

    A client that passes calls on to another one names that as its `paced_client`.
    """
    client = getattr(client, "paced_client", client)
    with _guard:
        try:
            if (found := _pacers.get(client)) is None:
                found = _pacers[client] = Pacer()
        except TypeError:  # without a hash or weak references it is kept, by its identity
            if id(client) not in _fixed:
                if len(_fixed) >= MAX_FIXED:
                    _fixed.clear()
                _fixed[id(client)] = client, Pacer()
            found = _fixed[id(client)][1]
        return found


def is_cut_short(error: Exception) -> bool:
    """Return whether a connection ended within the handshake of TLS, by the text of OpenSSL.

    A load balancer ends it so while it has no server, so the service is unavailable for a moment.
    """
    return "EOF occurred in violation of protocol" in str(error)


def is_untrusted(error: Exception) -> bool:
    """Return whether a certificate of TLS is not trusted, by the text of OpenSSL."""
    return any(reason in str(error) for reason in ("CERTIFICATE_VERIFY_FAILED", "doesn't match"))


def make_trust_error(what: str, variable: str) -> KeyRetrievalError:
    """Return the error for such a certificate; `variable` names the file of those to trust."""
    return KeyRetrievalError(
        f"{what}: its TLS certificate is not trusted here; set {variable} to the file of its "
        "authority"
    )


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds for which an answer asks to wait; None if it has no valid header.

    `headers` is a mapping that ignores case, or has names in lower case.
    """
    for name, unit in (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001)):
        if _SECONDS.fullmatch(_read_header(headers, name)):
            return float(_read_header(headers, name)) * unit
    text = _read_header(headers, "retry-after")
    if _SECONDS.fullmatch(text):
        return float(text)
    return _seconds_until(text) if text else None


def _read_header(headers: Mapping[str, str], name: str) -> str:
    text = headers.get(name)
    return text.strip() if isinstance(text, str) and len(text) <= _MAX_HEADER else ""


def _seconds_until(date: str) -> float | None:
    """Return the seconds until an HTTP date; None for other text."""
    try:
        moment = email.utils.parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:  # -0000
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
