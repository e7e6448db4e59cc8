"""What is asked of a key service, how often, and what its answers and failures become."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from modcrypt import KeyTools
from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyExhaustedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms import Capabilities, MasterKey
from modcrypt.kms.calls import is_current, rewrap, unwrap, wrap, wrap_many
from modcrypt.kms.client import capabilities_of
from tests.support.cases import each_case
from tests.support.kms.memory_kms import MASTERS, Call, MemoryKms
from tests.support.pkmt1 import open_base64

KEY = b"Fk!qZ7wv%h2Tj-16"


class Bare:
    """A client of the two methods alone, which knows no AAD: it gives what the test asks for."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = 0

    def wrap(self, key: bytes, master_key_id: str) -> Any:
        return self._next()

    def unwrap(self, wrapped: str, master_key_id: str) -> Any:
        return self._next()

    def _next(self) -> Any:
        self.asked += 1
        answer = self.answer.pop(0) if isinstance(self.answer, list) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


ASK: dict[str, Callable[[Any], Any]] = {
    "wrap": lambda client: wrap(client, KEY, "kf"),
    "unwrap": lambda client: unwrap(client, "wrapped", "kf"),
}
each_way = each_case("way", ASK)


# --- the protocol ---------------------------------------------------------------------------------


def test_a_wrapped_key_opens_with_the_master_key_and_its_id_alone() -> None:
    wrapped = wrap(MemoryKms(), KEY, "kf")
    assert open_base64(MASTERS["kf"], wrapped, b"kf") == KEY
    assert unwrap(MemoryKms(), wrapped, "kf") == KEY


def test_aad_is_bound_where_the_service_can() -> None:
    kms = MemoryKms(aad=True)
    wrapped = wrap(kms, KEY, "kf", b"lake")
    assert open_base64(MASTERS["kf"], wrapped, b"kf\0lake") == KEY
    assert unwrap(kms, wrapped, "kf", b"lake") == KEY
    for other in (b"", b"pond"):
        with pytest.raises(KeyMaterialError):
            unwrap(kms, wrapped, "kf", other)


def test_a_client_that_knows_no_aad_is_given_none() -> None:
    assert wrap(Bare("wrapped"), KEY, "kf") == "wrapped"  # type: ignore[arg-type]  # no `aad` there
    assert unwrap(Bare(KEY), "wrapped", "kf") == KEY  # type: ignore[arg-type]  # as above
    kms = MemoryKms(batch=3, rewrap=True)  # asserts that no AAD comes, not even none by name
    wrapped = wrap_many(kms, [KEY, KEY], "kf")
    rewrap(kms, wrapped[0], "kf")
    assert [call.operation for call in kms.calls] == ["wrap_many", "rewrap"]


@pytest.mark.parametrize("said", [None, "aad", {"aad": True}, True, Capabilities], ids=repr)
def test_capabilities_that_are_none_promise_nothing(said: Any) -> None:
    client = Bare("wrapped")
    client.capabilities = said  # type: ignore[attr-defined]  # any object may have it
    assert capabilities_of(client) == Capabilities(aad=False, rewrap=False, batch=1)  # type: ignore[arg-type]  # as above


def test_tools_refuse_aad_that_the_service_can_not_bind() -> None:
    for aad in ("lake", b"lake"):
        with pytest.raises(ValueError, match="AAD"):
            KeyTools(MemoryKms(), kms_aad=aad)
        KeyTools(MemoryKms(aad=True), kms_aad=aad)


# --- again, or not --------------------------------------------------------------------------------


@each_way
@each_case(
    "failure",
    [
        KmsUnavailableError("busy"),
        ConnectionResetError("reset"),
        ConnectionRefusedError(),
        TimeoutError(),
    ],
    ids=repr,
)
def test_an_unavailable_service_is_asked_again_until_the_patience_ends(
    way: str, failure: Exception, waits: list[float]
) -> None:
    client = Bare(failure)
    with pytest.raises(KmsUnavailableError):
        ASK[way](client)
    assert client.asked == len(waits) + 1 > 2
    assert sum(waits) == pytest.approx(1)  # what `conftest` allows


@each_way
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_service_that_comes_back_answers(way: str, failures: int, waits: list[float]) -> None:
    good = KEY if way == "unwrap" else "wrapped"
    client = Bare([KmsUnavailableError("busy")] * failures + [good])
    assert ASK[way](client) == good
    assert client.asked == failures + 1
    assert len(waits) == failures


def test_waits_grow_and_differ(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", "100")
    firsts = []
    for _ in range(20):
        waits.clear()
        with pytest.raises(KmsUnavailableError):
            wrap(Bare(KmsUnavailableError("busy")), KEY, "kf")  # type: ignore[arg-type]  # as above
        firsts.append(waits[0])
        for place, wait in enumerate(waits):
            assert 0 <= wait <= min(10, 0.2 * 2**place)
    assert len(set(firsts)) > 10, "clients that failed together must not come back together"


@each_way
@each_case(
    "failure",
    [
        KeyAccessDeniedError("refused"),
        KeyDisabledError("disabled"),
        KeyNotFoundError("none"),
        KeyMaterialError("altered"),
        KeyRetrievalError("other"),
        KeyExhaustedError("spent"),
        PermissionError("refused"),
        KeyError("none"),
        OSError(5, "input"),
        RuntimeError("other"),
    ],
    ids=repr,
)
def test_nothing_else_is_asked_again(way: str, failure: Exception, waits: list[float]) -> None:
    client = Bare(failure)
    with pytest.raises((KeyRetrievalError, KeyExhaustedError)):
        ASK[way](client)
    assert client.asked == 1
    assert waits == []


@each_way
def test_an_interruption_is_neither_asked_again_nor_turned_into_an_error(
    way: str, waits: list[float]
) -> None:
    client = Bare(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ASK[way](client)
    assert (client.asked, waits) == (1, [])


@pytest.mark.parametrize("operation", ["wrap_many", "rewrap", "is_current"])
def test_the_optional_methods_are_asked_again_too(operation: str, waits: list[float]) -> None:
    kms = MemoryKms(batch=5, rewrap=True)
    wrapped = wrap(kms, KEY, "kf")
    kms.failures = [KmsUnavailableError("busy"), TimeoutError()]
    if operation == "wrap_many":
        assert len(wrap_many(kms, [KEY, KEY], "kf")) == 2
    elif operation == "rewrap":
        assert rewrap(kms, wrapped, "kf") != wrapped
    else:
        current: Any = kms
        current.is_current = lambda wrapped, master: bool(kms.unwrap(wrapped, master))
        assert is_current(kms, wrapped, "kf") is True
    assert len(waits) == 2


# --- failures of others ---------------------------------------------------------------------------


@each_way
@each_case(
    ("failure", "kind"),
    [
        (KeyError("kf"), KeyNotFoundError),
        (IndexError(), KeyNotFoundError),
        (PermissionError("no"), KeyAccessDeniedError),
        (ConnectionError(), KmsUnavailableError),
        (TimeoutError(), KmsUnavailableError),
        (OSError(5, "input"), KeyRetrievalError),
        (ValueError("Fk!qZ7wv"), KeyRetrievalError),
        (UnicodeDecodeError("utf-8", KEY, 0, 1, "x"), KeyRetrievalError),
        (StopIteration(), KeyRetrievalError),
        (AssertionError(), KeyRetrievalError),
    ],
    ids=lambda value: repr(value) if isinstance(value, Exception) else "",
)
@pytest.mark.usefixtures("waits")
def test_foreign_exceptions_become_those_of_modcrypt_without_their_text(
    way: str, failure: Exception, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        ASK[way](Bare(failure))
    assert type(caught.value) is kind
    assert "Fk!q" not in str(caught.value)
    assert "kf" in str(caught.value) or kind is KmsUnavailableError


@each_way
def test_an_error_of_modcrypt_passes_as_it_is(way: str) -> None:
    failure = KeyDisabledError("version 3 is disabled")
    with pytest.raises(KeyDisabledError) as caught:
        ASK[way](Bare(failure))
    assert caught.value is failure


# --- answers of another kind ----------------------------------------------------------------------


@each_case(
    "answer",
    [None, b"wrapped", 5, True, "", ["wrapped"], "w" * (16384 + 1), bytearray(b"w"), object()],
    ids=lambda value: type(value).__name__,
)
def test_a_wrapped_key_that_is_no_text_of_fair_length_is_refused(answer: Any) -> None:
    with pytest.raises(KeyMaterialError, match="kf"):
        wrap(Bare([answer]), KEY, "kf")  # type: ignore[arg-type]  # a client without AAD


@each_case(
    "answer",
    [None, b"", bytes(15), bytes(17), bytes(31), bytes(33), bytes(64), KEY.decode(), 16, [1] * 16],
    ids=repr,
)
def test_what_unwraps_to_no_aes_key_is_refused_and_not_shown(answer: Any) -> None:
    with pytest.raises(KeyMaterialError, match="kf") as caught:
        unwrap(Bare([answer]), "wrapped", "kf")  # type: ignore[arg-type]  # a client without AAD
    assert "Fk!q" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("length", [16, 24, 32])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_keys_of_aes_lengths_are_taken(length: int, kind: Any) -> None:
    found = unwrap(Bare(kind(range(length))), "wrapped", "kf")  # type: ignore[arg-type]  # as above
    assert type(found) is bytes
    assert found == bytes(range(length))


def test_the_longest_wrapped_key_is_taken() -> None:
    assert wrap(Bare("w" * 16384), KEY, "kf") == "w" * 16384  # type: ignore[arg-type]  # as above


# --- many at once ---------------------------------------------------------------------------------


@each_case(
    ("batch", "count", "calls"),
    [
        (1, 5, [1] * 5),
        (2, 5, [2, 2, 1]),
        (5, 5, [5]),
        (200, 5, [5]),
        (3, 1, [1]),
        (3, 0, []),
        (0, 2, [1, 1]),
        (-1, 2, [1, 1]),
    ],
)
def test_keys_are_wrapped_in_as_few_calls_as_the_service_takes(
    batch: int, count: int, calls: list[int]
) -> None:
    kms = MemoryKms(batch=batch)
    keys = [os.urandom(16) for _ in range(count)]
    wrapped = wrap_many(kms, keys, "kf")
    assert [call.keys for call in kms.calls] == calls
    assert [unwrap(kms, key, "kf") for key in wrapped] == keys


def test_a_batch_is_bound_to_the_aad_too() -> None:
    kms = MemoryKms(aad=True, batch=2)
    wrap_many(kms, [KEY] * 3, "kf", b"lake")
    assert [(call.operation, call.aad) for call in kms.calls] == [
        ("wrap_many", b"lake"),
        ("wrap_many", b"lake"),
    ]


@each_case(
    "answer", [None, [], ["w"], ["w"] * 3, "ww", ("w", "w"), ["w", None], ["w", ""], ["w", b"w"]]
)
def test_a_batch_that_is_not_answered_key_by_key_is_refused(answer: Any) -> None:
    client: Any = Bare("wrapped")
    client.capabilities = Capabilities(batch=10)
    client.wrap_many = lambda keys, master: answer
    with pytest.raises(KeyMaterialError, match="kf"):
        wrap_many(client, [KEY, KEY], "kf")


def test_a_batch_that_is_promised_and_not_there_is_an_error_of_retrieval() -> None:
    client: Any = Bare("wrapped")
    client.capabilities = Capabilities(batch=10)
    with pytest.raises(KeyRetrievalError):
        wrap_many(client, [KEY, KEY], "kf")


# --- anew -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("can", "calls"), [(True, ["rewrap"]), (False, ["unwrap", "wrap"])])
def test_a_service_rewraps_or_unwraps_and_wraps(can: bool, calls: list[str]) -> None:
    kms = MemoryKms(rewrap=can, aad=True)
    wrapped = wrap(kms, KEY, "kf", b"lake")
    kms.calls.clear()
    anew = rewrap(kms, wrapped, "kf", b"lake")
    assert anew != wrapped
    assert kms.calls == [Call(call, "kf", b"lake") for call in calls]
    assert unwrap(kms, anew, "kf", b"lake") == KEY


def test_whether_a_key_is_current_is_not_known_of_a_service_that_does_not_say() -> None:
    assert is_current(MemoryKms(), "wrapped", "kf") is None
    client: Any = Bare("wrapped")
    for answer, expected in [(True, True), (False, False), (None, None), ("yes", None), (1, None)]:
        client.is_current = lambda wrapped, master, answer=answer: answer
        assert is_current(client, "wrapped", "kf") is expected


# --- small values ---------------------------------------------------------------------------------


def test_what_is_reported_of_keys_and_services_is_frozen_and_comparable() -> None:
    for value in (Capabilities(aad=True), MasterKey(id="kf", version=3)):
        with pytest.raises(AttributeError):
            value.aad = False  # type: ignore[misc, union-attr]  # the mistake
        assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("kms", [None, 5, {}, b"file:keys"], ids=repr)
def test_tools_refuse_what_is_no_client(kms: Any) -> None:
    with pytest.raises(TypeError):
        KeyTools(kms)


@pytest.mark.parametrize("seconds", [-1, float("nan"), "10", None], ids=repr)
def test_tools_refuse_another_lifetime(seconds: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        KeyTools(MemoryKms(), cache_lifetime_seconds=seconds)


@pytest.mark.parametrize("aad", [5, ["lake"], {"a": "b"}], ids=repr)
def test_tools_refuse_aad_of_another_kind(aad: Any) -> None:
    with pytest.raises(TypeError):
        KeyTools(MemoryKms(aad=True), kms_aad=aad)


def test_options_belong_to_a_uri() -> None:
    with pytest.raises(TypeError, match="passphrase") as caught:
        KeyTools(MemoryKms(), passphrase="hunter2-hunter2")
    assert "hunter2" not in str(caught.value)
