"""A key service that misbehaves in one way, from one of its calls on."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tests.support.iceberg.sample_kms import SampleKms

Answer: TypeAlias = Callable[[], Any]


def _fail(error: Exception) -> Any:
    raise error


def _wrap_another(master_key_id: str) -> str:
    return SampleKms().wrap(os.urandom(16), master_key_id)


FAULTS: Mapping[str, tuple[str, bool, Callable[[Answer, str], Any]]] = {
    "throttles once": ("both", False, lambda answer, key: _fail(ConnectionError("slow down"))),
    "is gone": ("both", True, lambda answer, key: _fail(ConnectionError("unreachable"))),
    "times out once": ("both", False, lambda answer, key: _fail(TimeoutError("timed out"))),
    "token expires": ("both", True, lambda answer, key: _fail(PermissionError("expired"))),
    "refuses to wrap": ("wrap", True, lambda answer, key: _fail(PermissionError("denied"))),
    "answers nothing": ("both", False, lambda answer, key: None),
    "cuts a key": ("unwrap", False, lambda answer, key: answer()[:15]),
    "gives a wrong key": ("unwrap", True, lambda answer, key: os.urandom(16)),
    "gives a wrong key once": ("unwrap", False, lambda answer, key: os.urandom(16)),
    "wraps garbage": (
        "wrap", True, lambda answer, key: base64.b64encode(os.urandom(44)).decode()),
    "wraps another key": ("wrap", True, lambda answer, key: _wrap_another(key)),
}  # fmt: skip
"""By name: the calls that fail, whether all further ones do, and the answer."""


class FaultyKms(SampleKms):
    """The key service of Iceberg's tests, with a fault.

    Args:
        fault: A name in `FAULTS`.
        at: The number of the first call that fails, among those that can.
    """

    def __init__(self, fault: str, at: int) -> None:
        super().__init__()
        self.which, self.lasts, self.answer = FAULTS[fault]
        self.at, self.count, self.met = at, 0, False

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> Any:
        """Wrap a key, or fail."""
        wrap = super().wrap
        return self._ask("wrap", master_key_id, lambda: wrap(key, master_key_id))

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> Any:
        """Unwrap a key, or fail."""
        unwrap = super().unwrap
        return self._ask("unwrap", master_key_id, lambda: unwrap(wrapped, master_key_id))

    def _ask(self, operation: str, master_key_id: str, answer: Answer) -> Any:
        if self.which not in (operation, "both"):
            return answer()
        self.count += 1
        fails = self.count >= self.at if self.lasts else self.count == self.at
        self.met |= fails
        return self.answer(answer, master_key_id) if fails else answer()
