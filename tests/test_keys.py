"""Keys never show themselves, and count every seal under their bytes."""

from __future__ import annotations

import array
import base64
import copy
import gc
import hmac
import json
import pickle
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import modcrypt
from modcrypt.aead import CtrCipher, GcmCipher
from modcrypt.errors import KeyExhaustedError
from modcrypt.keys import Key, Secret, as_key, invocation_counter, invocations, key_bytes
from modcrypt.keys import key as keys
from tests.support.cases import each_case
from tests.support.module_spans import list_modules
from tests.support.tables import small_table, write_plain

VALUE = b"Zq7!marker-of-16"


@pytest.mark.parametrize("length", [16, 24, 32])
def test_keys_have_the_lengths_of_aes(length: int) -> None:
    key = Key(bytes(range(length)))
    assert len(key) == length
    assert key_bytes(key) == bytes(range(length))
    assert re.fullmatch(rf"Key\({length * 8} bits, REDACTED, [0-9a-f]{{16}}\)", repr(key))
    assert repr(key) == repr(Key(bytes(range(length)))) != repr(Key(bytes(length)))
    assert len(Key.generate(length)) == length


@each_case("length", sorted({*range(65), 128} - {16, 24, 32}))
def test_other_lengths_are_a_value_error_that_names_the_length(length: int) -> None:
    for make in (Key, as_key):
        with pytest.raises(ValueError, match=f"not {length}$"):
            make(bytes(length))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_like_value_is_taken_and_copied(kind: Callable[[bytes], Any]) -> None:
    assert key_bytes(Key(kind(VALUE))) == VALUE
    changing = bytearray(VALUE)
    key = Key(changing)
    changing[0] ^= 1
    assert key_bytes(key) == VALUE


def test_a_memoryview_is_measured_in_bytes_and_not_in_elements() -> None:
    with pytest.raises(ValueError, match=r"not 64$"):
        Key(memoryview(array.array("I", range(16))))
    assert len(Key(memoryview(array.array("H", range(8))))) == 16


@pytest.mark.parametrize("value", ["0123456789012345", 16, [1] * 16, range(16)])
def test_what_is_not_bytes_is_a_type_error_without_the_value(value: Any) -> None:
    with pytest.raises(TypeError) as caught:
        Key(value)
    assert str(value) not in str(caught.value)


# --- never shown ---------------------------------------------------------------------------------

SPELLINGS: dict[str, Callable[[Any], str]] = {
    "repr": repr,
    "str": str,
    "ascii": ascii,
    "format": format,
    "f-string": lambda key: f"{key} {key!r} {key!s} {key!a}",
    "percent": lambda key: "%s %r" % (key, key),  # noqa: UP031 (the old way is to be safe, too)
    "in a dict": lambda key: repr({"k": [key, (key,)]}),
    "dir": lambda key: repr(dir(key)),
    "as an error's argument": lambda key: repr(ValueError(key)),
    "json with default=str": lambda key: json.dumps(key, default=str),
}


@each_case("way", list(SPELLINGS))
def test_no_spelling_shows_the_bytes(way: str) -> None:
    text = SPELLINGS[way](Key(VALUE))
    assert VALUE.decode() not in text
    assert VALUE.hex() not in text.lower()
    assert "REDACTED" in text or way == "dir"


def test_a_width_or_format_code_is_refused_and_shows_nothing() -> None:
    with pytest.raises(TypeError) as caught:
        format(Key(VALUE), "x")
    assert VALUE.decode() not in str(caught.value)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_key_does_not_pickle(protocol: int) -> None:
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(Key(VALUE), protocol)
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps({"nested": [Key(VALUE)]}, protocol)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_a_key_does_not_copy(way: Callable[[Key], Key]) -> None:
    with pytest.raises(TypeError, match="copied"):
        way(Key(VALUE))


def test_a_key_gives_no_state_and_is_no_sequence_of_bytes() -> None:
    key: Any = Key(VALUE)
    assert not hasattr(key, "__dict__")
    for way in (bytes, bytearray, memoryview, iter, lambda k: k[0], lambda k: k.__getstate__()):
        with pytest.raises(TypeError):
            way(key)


# --- equality ------------------------------------------------------------------------------------


def test_equality_is_by_bytes_and_only_between_keys() -> None:
    assert Key(VALUE) == Key(VALUE)
    assert Key(VALUE) != Key(VALUE[:-1] + b"7")
    assert Key(bytes(16)) != Key(bytes(24))
    assert Key(VALUE) != VALUE
    assert len({Key(VALUE), Key(VALUE), Key(bytes(16))}) == 2


def test_keys_are_compared_by_the_constant_time_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are compared by `hmac.compare_digest`; constant time itself can't be measured here."""
    asked: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        asked.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert Key(VALUE) == Key(VALUE)
    assert Key(VALUE) != Key(bytes(16))
    assert asked == [(VALUE, VALUE), (VALUE, bytes(16))]


# --- counting ------------------------------------------------------------------------------------


def test_key_objects_of_the_same_bytes_share_one_counter() -> None:
    first = Key.generate()
    GcmCipher(first).encrypt(b"", b"")
    second = Key(bytearray(key_bytes(first)))
    assert second.invocations == 1
    GcmCipher(second).encrypt(b"", b"")
    assert first.invocations == second.invocations == 2
    assert Key.generate().invocations == 0


def test_a_counter_outlives_its_key_objects() -> None:
    key = Key.generate()
    value = key_bytes(key)
    GcmCipher(key).encrypt(b"", b"")
    del key
    gc.collect()
    assert Key(value).invocations == 1


def test_the_table_of_counters_holds_no_key_bytes() -> None:
    Key(VALUE)
    assert not any(VALUE in digest or digest in VALUE for digest in keys._counters)
    assert keys._digest_key not in keys._counters


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty_threads")
def test_threads_count_exactly() -> None:
    value = key_bytes(Key.generate())
    rounds, threads = 500, 8
    start = threading.Barrier(threads)

    def work() -> None:
        key = Key(value)  # made in the thread: the race for the counter belongs to it
        gcm, ctr = GcmCipher(key), CtrCipher(key)
        out = memoryview(bytearray(64))
        start.wait()
        for _ in range(rounds):
            gcm.encrypt(b"", b"")
            gcm.sign(b"", b"")
            ctr.encrypt_into(out, 0, b"", 0, b"")

    pool = [threading.Thread(target=work) for _ in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    assert Key(value).invocations == threads * rounds * 3


@pytest.mark.usefixtures("_hasty_threads")
def test_threads_together_do_not_pass_the_limit() -> None:
    key = Key.generate()
    invocation_counter(key).count = 2**32 - 100
    done: list[int] = []

    def work() -> None:
        cipher, sealed = GcmCipher(key), 0
        try:
            while sealed < 1000:
                cipher.encrypt(b"", b"")
                sealed += 1
        except KeyExhaustedError:
            done.append(sealed)

    pool = [threading.Thread(target=work) for _ in range(4)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    assert len(done) == 4
    assert sum(done) == 100
    assert key.invocations == 2**32


def test_encrypting_a_file_counts_its_modules(tmp_path: Path) -> None:
    footer, column = Key.generate(), Key.generate()
    plain = write_plain(tmp_path / "p", small_table(), write_page_index=True)
    properties = modcrypt.FileEncryptionProperties(footer_key=footer, column_keys={"id": column})
    modcrypt.encrypt_parquet(plain, tmp_path / "e", properties)
    opening = modcrypt.FileDecryptionProperties(footer_key=footer, column_keys={"id": column})
    spans = list_modules(tmp_path / "e", opening)
    of_id = sum(span.module.path == "id" for span in spans)
    # The column metadata under the column key lies in the footer and is not listed.
    assert column.invocations == of_id + 1
    assert footer.invocations == len(spans) - of_id
    assert of_id > 4


def test_secrets_are_equal_by_value_to_other_secrets_only() -> None:
    assert Secret(b"a") == Secret(b"a")
    assert hash(Secret(b"a")) == hash(Secret(b"a"))
    assert Secret(b"a") != Secret(b"b")
    assert Secret(b"a") != b"a"


@pytest.mark.parametrize("spread", [pickle.dumps, copy.copy, copy.deepcopy])
def test_secrets_cannot_be_pickled_or_copied(spread: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="a Secret can't be pickled or copied"):
        spread(Secret(b"a"))


# --- from hex, files and variables ---------------------------------------------------------------


def test_a_key_comes_from_hex() -> None:
    assert Key.from_hex("00112233445566778899AABBCCDDEEFF") == Key(bytes(range(0, 256, 17)))
    assert len(Key.from_hex(f"{'ab' * 32}\n")) == 32


@each_case("text", [b"raw", b"hex", b"base64"])
def test_a_key_comes_from_a_file_or_a_variable(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = {b"raw": VALUE, b"hex": VALUE.hex().encode(), b"base64": base64.b64encode(VALUE)}[text]
    path = tmp_path / "a.key"
    path.write_bytes(form if form == VALUE else form + b"\n")
    path.chmod(0o600)
    assert Key.from_file(path) == Key(VALUE)
    if form != VALUE:
        monkeypatch.setenv("A_KEY", form.decode())
        assert Key.from_env("A_KEY") == Key(VALUE)


@each_case("mode", [0o640, 0o604, 0o644, 0o620, 0o660])
def test_a_file_that_others_may_use_is_refused(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    path.write_bytes(VALUE)
    path.chmod(mode)
    with pytest.raises(modcrypt.errors.KeyRetrievalError, match="chmod 600"):
        Key.from_file(path)


def test_what_is_no_key_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = VALUE.hex()[:-1]
    path = tmp_path / "a.key"
    path.write_text(wrong)
    path.chmod(0o600)
    monkeypatch.setenv("A_KEY", wrong)
    for make in (
        lambda: Key.from_hex(wrong), lambda: Key.from_file(path), lambda: Key.from_env("A_KEY")
    ):  # fmt: skip
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (its text is checked below)
            make()  # type: ignore[no-untyped-call]
        shown = "".join(traceback.format_exception(caught.value))
        assert wrong[:12] not in shown
        frames = [frame for frame, _ in traceback.walk_tb(caught.tb)]
        assert all(frame.f_code.co_filename == __file__ for frame in frames)


def test_a_missing_file_or_variable_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(modcrypt.errors.KeyNotFoundError, match="does not exist"):
        Key.from_file(tmp_path / "absent.key")
    with pytest.raises(modcrypt.errors.KeyNotFoundError, match="NOT_A_KEY"):
        Key.from_env("NOT_A_KEY")


@each_case("path", [".", "a\0b", "a" * 300])
def test_what_cannot_be_read_has_an_error_of_modcrypt(path: str) -> None:
    with pytest.raises(modcrypt.errors.KeyMaterialError, match="the key file"):
        Key.from_file(path)


def test_a_key_in_hex_may_have_any_length_of_aes(tmp_path: Path) -> None:
    for length in (16, 24, 32):
        path = tmp_path / f"{length}.key"
        path.write_text(bytes(range(length)).hex())
        path.chmod(0o600)
        assert Key.from_file(path) == Key(bytes(range(length)))


def test_a_fingerprint_has_eight_bytes() -> None:
    print_ = keys.fingerprint_key(Key(bytes(range(16))))
    assert len(print_) == 8
    assert print_ == keys.fingerprint_key(Key(bytes(range(16))))
    assert print_ != keys.fingerprint_key(Key(bytes(16)))


def test_a_key_is_worn_at_half_of_its_limit() -> None:
    assert (invocations.INVOCATION_LIMIT, invocations.WARN_WRAPS) == (2**32, 2**31)
