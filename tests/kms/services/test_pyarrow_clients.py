"""Key services for PyArrow's CryptoFactory, and PyArrow's for modcrypt, with the real PyArrow."""

from __future__ import annotations

import base64
import functools
import gc
import io
import json
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms import calls as kms
from modcrypt.kms.client import capabilities_of
from modcrypt.kms.keyring.keyring import Keyring
from modcrypt.kms.services.pyarrow_clients import as_pyarrow_client, from_pyarrow_client
from tests.support.kms.memory_kms import MASTERS, MemoryKms, PyArrowKms
from tests.support.pkmt1 import open_base64, open_data_key, unwrap_by
from tests.support.sleeps import note_sleeps

TABLE = pa.table({"a": list(range(100)), "b": [f"value {n}" for n in range(100)]})


class Theirs(PyArrowKms):
    """A PyArrow KmsClient as its documentation has them; `text` says what it answers with."""

    def __init__(self, text: Callable[[str], str | bytes] = str) -> None:
        super().__init__()
        self.text = text
        self.failure: Exception | None = None

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> Any:
        if self.failure:
            raise self.failure
        return self.text(super().wrap_key(key_bytes, master_key_identifier))


def write(factory: Any, **options: Any) -> bytes:
    """Write the table with PyArrow's CryptoFactory."""
    settings = pe.EncryptionConfiguration(
        footer_key="kf", **{"column_keys": {"kc1": ["a"]}, **options}
    )
    sink = io.BytesIO()
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), settings)
    pq.write_table(TABLE, sink, encryption_properties=properties)
    return sink.getvalue()


def read(factory: Any, data: bytes) -> pa.Table:
    """Read a file with PyArrow's CryptoFactory."""
    properties = factory.file_decryption_properties(
        pe.KmsConnectionConfig(), pe.DecryptionConfiguration()
    )
    return pq.read_table(pa.BufferReader(data), decryption_properties=properties)


def read_with(data: bytes, unwrap: Callable[[str, str], bytes]) -> pa.Table:
    """Read a file with the keys that its key material leads to."""
    keys = mc.FileDecryptionProperties(
        key_retriever=lambda metadata: open_data_key(json.loads(metadata), unwrap)
    )
    return mc.read_table(data, decryption=keys)


# --- ours for PyArrow ----------------------------------------------------------------------------


@pytest.mark.parametrize("double_wrapping", [True, False], ids=["double", "single"])
@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_pyarrow_writes_and_reads_by_a_modcrypt_client(
    double_wrapping: bool, plaintext_footer: bool
) -> None:
    service = MemoryKms(aad=True)
    data = write(
        pe.CryptoFactory(as_pyarrow_client(service)),
        double_wrapping=double_wrapping,
        plaintext_footer=plaintext_footer,
    )
    for operation in ("wrap", "unwrap"):
        assert {call.master_key_id for call in service.calls} == {"kc1", "kf"}
        assert {(call.operation, call.aad) for call in service.calls} == {(operation, b"")}
        service.calls.clear()
        assert read(pe.CryptoFactory(as_pyarrow_client(service)), data).equals(TABLE)

    assert read_with(data, unwrap_by(MASTERS)).equals(TABLE)


def test_pyarrow_writes_and_reads_by_a_keyring(tmp_path: Path) -> None:
    keyring = Keyring.create(tmp_path / "keyring.json", plaintext=True)
    for name in ("kf", "kc1"):
        keyring.create_key(name)
    data = write(pe.CryptoFactory(as_pyarrow_client(keyring)))
    assert read(pe.CryptoFactory(as_pyarrow_client(keyring)), data).equals(TABLE)
    assert read_with(data, keyring.unwrap).equals(TABLE)
    keyring.rotate_key("kf")
    assert read(pe.CryptoFactory(as_pyarrow_client(keyring)), data).equals(TABLE)


def test_aad_is_bound_to_every_key_and_needed_to_read() -> None:
    service = MemoryKms(aad=True)
    factory = as_pyarrow_client(service, aad=b"table-1")
    data = write(pe.CryptoFactory(factory))
    assert {call.aad for call in service.calls} == {b"table-1"}
    assert read(pe.CryptoFactory(factory), data).equals(TABLE)
    for other in (as_pyarrow_client(service), as_pyarrow_client(service, aad=b"table-2")):
        with pytest.raises(KeyMaterialError, match="this does not unwrap"):
            read(pe.CryptoFactory(other), data)


def test_aad_for_a_client_that_binds_none_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="does not support AAD"):
        as_pyarrow_client(from_pyarrow_client(Theirs()), aad=b"x")


@pytest.mark.parametrize(
    ("raised", "error", "said"),
    [
        (KeyAccessDeniedError("kf is refused to you"), KeyAccessDeniedError, "kf is refused"),
        (KeyNotFoundError("no kf here"), KeyNotFoundError, "no kf here"),
        (PermissionError("x"), KeyAccessDeniedError, "refuses the use of master key kf"),
        (RuntimeError("x"), KeyRetrievalError, "failed with RuntimeError"),
    ],
)
def test_pyarrow_passes_the_clients_errors_on_as_they_are(
    raised: Exception, error: type[KeyRetrievalError], said: str
) -> None:
    service = MemoryKms(aad=True)
    data = write(pe.CryptoFactory(as_pyarrow_client(service)), plaintext_footer=False)
    for action in (
        lambda: write(pe.CryptoFactory(as_pyarrow_client(service))),
        lambda: read(pe.CryptoFactory(as_pyarrow_client(service)), data),
    ):
        service.failures = [raised]
        with pytest.raises(error, match=said) as caught:
            action()
        assert type(caught.value) is error


def test_an_unavailable_service_is_asked_again_under_pyarrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = note_sleeps(monkeypatch)
    service = MemoryKms(aad=True)
    service.failures = [KmsUnavailableError("later"), ConnectionResetError("later")]
    data = write(pe.CryptoFactory(as_pyarrow_client(service)))
    assert len(waits) == 2
    assert read(pe.CryptoFactory(as_pyarrow_client(service)), data).equals(TABLE)


@pytest.mark.parametrize("answer", [b"", b"too short", bytes(64), None, "text" * 4])
def test_what_is_no_key_does_not_reach_pyarrow(answer: Any) -> None:
    service = MemoryKms(aad=True)
    data = write(pe.CryptoFactory(as_pyarrow_client(service)))
    service.unwrap = lambda *_, **__: answer  # type: ignore[method-assign]  # a broken service
    with pytest.raises(KeyMaterialError, match="returned no AES key"):
        read(pe.CryptoFactory(as_pyarrow_client(service)), data)


def test_pyarrow_keeps_all_that_it_needs_alive() -> None:
    service = MemoryKms(aad=True)
    configuration = pe.EncryptionConfiguration(footer_key="kf", column_keys={"kc1": ["a"]})
    sink = io.BytesIO()

    def properties() -> Any:
        factory = pe.CryptoFactory(as_pyarrow_client(service))
        return factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)

    made = properties()
    gc.collect()
    pq.write_table(TABLE, sink, encryption_properties=made)
    factory = pe.CryptoFactory(as_pyarrow_client(service))
    del made
    gc.collect()
    assert read(factory, sink.getvalue()).equals(TABLE)


def test_the_address_of_a_configuration_is_not_used() -> None:
    service = MemoryKms(aad=True)
    config = pe.KmsConnectionConfig(
        kms_instance_url="http://evil.example", key_access_token="the-token"
    )
    made = as_pyarrow_client(service)(config)
    assert made.unwrap_key(made.wrap_key(b"k" * 16, "kf"), "kf") == b"k" * 16
    assert "evil" not in repr(vars(made))
    assert "token" not in repr(vars(made))


# --- PyArrow's for us ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", [str, str.encode], ids=["str", "bytes"])
@pytest.mark.parametrize("double_wrapping", [True, False], ids=["double", "single"])
def test_a_pyarrow_client_unwraps_what_pyarrow_wrote(
    double_wrapping: bool, text: Callable[[str], str | bytes]
) -> None:
    data = write(pe.CryptoFactory(lambda config: Theirs(text)), double_wrapping=double_wrapping)
    ours = from_pyarrow_client(Theirs(text))
    assert read_with(data, functools.partial(kms.unwrap, ours)).equals(TABLE)


@pytest.mark.parametrize("text", [str, str.encode], ids=["str", "bytes"])
def test_what_a_pyarrow_client_wraps_for_us_is_text(text: Callable[[str], str | bytes]) -> None:
    ours = from_pyarrow_client(Theirs(text))
    wrapped = kms.wrap(ours, b"k" * 24, "kc1")
    assert open_base64(MASTERS["kc1"], wrapped, b"kc1") == b"k" * 24
    assert kms.unwrap(ours, wrapped, "kc1") == b"k" * 24


def test_pyarrow_reads_by_its_own_client_after_two_turns() -> None:
    """PyArrow's client, adapted to ours, adapted to PyArrow's."""
    turned = as_pyarrow_client(from_pyarrow_client(Theirs(str.encode)))
    data = write(pe.CryptoFactory(turned))
    assert read(pe.CryptoFactory(lambda config: Theirs()), data).equals(TABLE)


def test_a_pyarrow_client_that_answers_no_text_is_an_error() -> None:
    answers: list[Any] = [b"\xff\xfe", None, 7, bytearray(b"text")]
    while answers:
        ours = from_pyarrow_client(Theirs(lambda _: answers.pop()))
        with pytest.raises(KeyMaterialError, match="wrapped key is not UTF-8 text"):
            kms.wrap(ours, b"k" * 16, "kf")


def test_a_pyarrow_clients_failures_have_our_names(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Theirs()
    ours = from_pyarrow_client(theirs)
    with pytest.raises(KeyNotFoundError, match="no master key nowhere"):
        kms.wrap(ours, b"k" * 16, "nowhere")  # KeyError
    theirs.failure = PermissionError("because")
    with pytest.raises(KeyAccessDeniedError):
        kms.wrap(ours, b"k" * 16, "kf")
    note_sleeps(monkeypatch)
    theirs.failure = TimeoutError("because")
    with pytest.raises(KmsUnavailableError):
        kms.wrap(ours, b"k" * 16, "kf")


def test_a_pyarrow_client_takes_no_aad() -> None:
    ours = from_pyarrow_client(Theirs())
    assert not capabilities_of(ours).aad
    with pytest.raises(ValueError, match="not support AAD"):
        ours.wrap(b"k" * 16, "kf", aad=b"x")
    with pytest.raises(ValueError, match="not support AAD"):
        ours.unwrap("", "kf", aad=b"x")


# --- secrets -------------------------------------------------------------------------------------


def test_neither_shows_a_key_or_leaves_its_process(caplog: pytest.LogCaptureFixture) -> None:
    key = b"Qz8-secret-key-1"
    config = pe.KmsConnectionConfig()
    adapters: list[tuple[Any, str]] = [
        (as_pyarrow_client(MemoryKms(aad=True), aad=b"a")(config), "as_pyarrow_client("),
        (from_pyarrow_client(Theirs()), "from_pyarrow_client(Theirs)"),
    ]
    for adapter, shown in adapters:
        wrap = getattr(adapter, "wrap_key", None) or adapter.wrap
        with caplog.at_level(logging.DEBUG):
            wrap(key, "kf")
            with pytest.raises((KeyRetrievalError, KeyError)) as caught:
                wrap(key, "nowhere")
        assert repr(adapter).startswith(shown)
        text = "".join([repr(adapter), caplog.text, *traceback.format_exception(caught.value)])
        for spelling in (key.decode(), key.hex(), base64.b64encode(key).decode()):
            assert spelling not in text
        with pytest.raises(TypeError, match="can't be pickled"):
            pickle.dumps(adapter)
