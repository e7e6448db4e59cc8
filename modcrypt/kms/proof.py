"""Proof that the key service unwraps what it has wrapped, before anything old is replaced.

A key service may answer `wrap` with the text of another key, or grant a token the right to encrypt
but not to decrypt. A run that replaces keys therefore has its first new wrap under each master key
unwrapped again, or every one, and replaces nothing until the result has opened something.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Literal, NoReturn, TypeAlias, TypeVar

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.keys import KeyLike, as_key
from modcrypt.runtime.fork_safety import fork_safe
from modcrypt.runtime.tracebacks import hide_frames

Prove: TypeAlias = Literal["first", "all"]
"""The new wraps that are proved: the first under each master key, or every one."""

Wrapped = TypeVar("Wrapped", str, bytes)  # a wrapped key, in files or in tables

UnwrapMany: TypeAlias = Callable[[Sequence[Wrapped]], Sequence[KeyLike | KeyRetrievalError]]
"""A function that asks the key service for keys; it returns or raises the errors of keys."""

MAX_REMEMBERED = 100_000
"""Maximum number of wraps, and of outcomes, that a run remembers; then it starts anew."""


def check_prove(prove: object) -> Prove:
    """Return the argument; raise ValueError unless it is "first" or "all"."""
    if prove in ("first", "all"):
        return prove
    raise ValueError(f'prove must be "first" or "all", not {prove!r}')


class WrapProof:
    """The proofs of one run, from any thread: others wait while the first wrap is proved."""

    def __init__(self, prove: Prove = "first") -> None:
        self._prove = check_prove(prove)
        self._outcomes: dict[Hashable, KeyRetrievalError | None] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._guard = fork_safe(threading.Lock())
        self._seen = dict[bytes, int]()  # keyed digests of keys, by digests of their wraps
        self._proved = Counter[str]()
        self._of_thread = threading.local()

    @classmethod
    def of(cls, prove: Prove | WrapProof) -> WrapProof:
        """Return the argument, or the proofs of a new run."""
        return prove if isinstance(prove, WrapProof) else cls(prove)

    def __repr__(self) -> str:
        return f"WrapProof({self._prove!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a WrapProof can't be pickled or copied: each process proves its own wraps")

    @property
    def proved(self) -> dict[str, int]:
        """Number of wraps that were unwrapped and opened something, by master key id."""
        return dict(sorted(self._proved.items()))

    @property
    def proved_here(self) -> int:
        """Number of wraps that this thread has had proved: the difference is that of a file."""
        count: int = getattr(self._of_thread, "count", 0)
        return count

    def expected_calls(self, wraps: int) -> int:
        """Return the number of calls that prove a number of wraps under one master key."""
        return wraps if self._prove == "all" else min(wraps, 1)

    def restart(self) -> None:
        """Begin another run: the next wrap under each master key is proved again."""
        with self._guard:
            self._outcomes, self._locks = {}, {}

    def check(
        self, master_key_id: str, wrapped: str | bytes, opens: Callable[[], object], *,
        each: bool = False, replaces: bool = True,
    ) -> None:  # fmt: skip
        """Prove a new wrap, unless the run has proved enough.

        Args:
            master_key_id: Id of the master key that wraps.
            opens: Function that asks the key service, not a cache, to unwrap the key, and raises
                KeyRetrievalError if the result opens nothing.
            each: Whether to prove this wrap even if the run has proved enough: of an answer with
                many wraps, whose order is the service's word.
            replaces: Whether something old is replaced. Otherwise a service that refuses to unwrap
                is accepted, as writers may be allowed to encrypt only; a wrong answer never is.

        Raises:
            KeyRetrievalError: This wrap, or an earlier one under the master key, does not open.
        """
        first = self._prove == "first" and not each
        what: Hashable = master_key_id if first else (master_key_id, wrapped)
        if self._outcomes.get(what, self) is None:
            return
        with self._guard:
            if len(self._locks) >= MAX_REMEMBERED:
                self._outcomes, self._locks = {}, {}
            lock = self._locks.setdefault(what, fork_safe(threading.Lock()))
        with lock:
            if what in (outcomes := self._outcomes):
                failure = outcomes[what]
            else:
                failure = outcomes[what] = self._try(master_key_id, opens)
                outcomes.setdefault(master_key_id, failure)
        if failure is not None and (replaces or not isinstance(failure, _REFUSALS)):
            raise type(failure)(str(failure))

    @hide_frames
    def check_keys(
        self, master_key_id: str, keys: Sequence[KeyLike], wrapped: Sequence[Wrapped],
        unwrap: UnwrapMany[Wrapped], *, together: bool, replaces: bool = True,
    ) -> None:  # fmt: skip
        """Prove new wraps of keys that the caller has; raise as `check`.

        A service may return the wraps of many keys in another order. So each of them is proved if
        one call unwraps them `together`. Without a call of the service, also check that no two
        different keys have the same wrap.
        """
        has_failed = self._outcomes.get(master_key_id) is not None
        each = together and len(wrapped) > 1 and not has_failed
        answers = dict(zip(wrapped, _ask(unwrap, wrapped), strict=True)) if each else {}
        for key, text in zip(keys, wrapped, strict=True):
            self._check_distinct(master_key_id, key, text)
            opens = partial(_unwrap_and_compare, key, text, answers, unwrap)
            self.check(master_key_id, text, opens, each=each, replaces=replaces)

    @hide_frames
    def _check_distinct(self, master_key_id: str, key: KeyLike, wrapped: str | bytes) -> None:
        name = blake2b(wrapped if isinstance(wrapped, bytes) else wrapped.encode()).digest()
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        if self._seen.setdefault(name, hash(as_key(key))) != hash(as_key(key)):
            raise KeyMaterialError(
                f"the key service gave two different keys the same wrap under master key "
                f"{master_key_id}; nothing was replaced; check the key service"
            )

    def _try(self, master_key_id: str, opens: Callable[[], object]) -> KeyRetrievalError | None:
        try:
            opens()
        except KmsUnavailableError:
            raise  # not an answer: the next file asks again
        except _REFUSALS as error:
            return type(error)(
                f"the key service wraps keys under master key {master_key_id}, but refuses to "
                f"unwrap them ({error}); nothing was replaced; grant this caller the right to "
                "decrypt (unwrap) with this master key, and run again"
            )
        except KeyRetrievalError as error:
            return KeyMaterialError(
                f"the key service wrapped a key under master key {master_key_id}, but the wrap "
                f"does not open ({error}); nothing was replaced; check the key service"
            )
        self._proved[master_key_id] += 1
        self._of_thread.count = self.proved_here + 1
        return None


_REFUSALS = (KeyAccessDeniedError, KeyNotFoundError)
"""Refusals to unwrap; public keys wrap for identities that this process does not have."""


@hide_frames
def _ask(
    unwrap: UnwrapMany[Wrapped], wrapped: Sequence[Wrapped]
) -> Sequence[KeyLike | KeyRetrievalError]:
    """Have keys unwrapped; an error of the whole call becomes that of each key."""
    try:
        return unwrap(wrapped)
    except KmsUnavailableError:
        raise
    except KeyRetrievalError as error:
        return [error.with_traceback(None)] * len(wrapped)


@hide_frames
def _unwrap_and_compare(
    key: KeyLike, wrapped: Wrapped, answers: Mapping[Wrapped, KeyLike | KeyRetrievalError],
    unwrap: UnwrapMany[Wrapped],
) -> None:  # fmt: skip
    answer = answers[wrapped] if answers else unwrap([wrapped])[0]
    if isinstance(answer, KeyRetrievalError):
        raise answer
    require_same(key, answer)


@hide_frames
def require_same(key: KeyLike, unwrapped: KeyLike) -> None:
    """Raise KeyMaterialError unless both keys are the same; compare in constant time."""
    if as_key(key) != as_key(unwrapped):
        raise KeyMaterialError("it unwraps to another key")
