"""No error carries a key, a passphrase, a PIN or a token in its frames, causes or attributes."""

from __future__ import annotations

import base64
import json
import os
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt import Key, Keyring, KeyTools, Policy, ags1
from modcrypt.aead import GcmCipher
from modcrypt.ags1 import StandardKeyMetadata
from modcrypt.errors import KeyAccessDeniedError, KeyMaterialError, KmsUnavailableError
from modcrypt.iceberg.keys.master_keys import MasterKeys
from modcrypt.keys import as_key
from modcrypt.kms import calls as kms
from modcrypt.kms import wrapped_key_metadata
from modcrypt.kms.client import Capabilities
from modcrypt.kms.key_references import read_key, read_metadata_file
from modcrypt.kms.keyring import keyring_file
from modcrypt.kms.proof import WrapProof, require_same
from modcrypt.kms.services.pyarrow_clients import as_pyarrow_client
from modcrypt.kms.wrapping import KeyWrapper
from modcrypt.runtime.tracebacks import hide_frames, shorten_errors
from tests.support.cases import each_case
from tests.support.frame_watch import find_secrets

MASTER = b"Qm!4vB8_zR#7pL@2"
DEK = b"Wd%6nC1^tF*9kH&3"
PASSPHRASE = "Zu$8xJ5-qT+0mS=1"
ODD = b"Pq~7hE3?rV|6sN<9wX>"
"""19 bytes: no AES key, and a secret all the same."""


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", "0")


def check(call: Callable[[], object], *secrets: bytes) -> BaseException:
    """Have a call fail, and search what the error carries."""
    error = failure(call)
    for secret in secrets:
        assert find_secrets(error, secret) == []
    return error


def failure(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    pytest.fail("it does not fail")


def test_the_watch_finds_what_an_error_carries() -> None:
    namespace: dict[str, Any] = {"master": MASTER, "Key": Key}
    exec(  # of no file of the tests', which are passed over
        "def raise_error(secret): raise ValueError\n"
        "def call_closure(secret): (lambda: [secret][1])()\n"
        "def run_generator(secret):\n"
        "    made = (1 / 0 for _ in secret)\n"
        "    next(made)\n"
        "def add_note(secret):\n"
        "    error = ValueError(); error.add_note(secret.hex()); raise error from None\n"
        "def chain_errors(secret):\n"
        "    try: raise_error(secret)\n"
        "    except ValueError: pass\n"
        "    try: raise_error(secret)\n"
        "    except ValueError as error: kept = error\n"
        "    del secret\n"
        "    raise KeyError from kept\n"
        "def safe(secret):\n"
        "    secret = Key(secret)\n"
        "    raise ValueError\n",
        namespace,
    )
    for name in ("raise_error", "call_closure", "run_generator", "add_note", "chain_errors"):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            namespace[name](MASTER)
        assert find_secrets(caught.value, MASTER), name
    with pytest.raises(ValueError) as safe:  # noqa: PT011
        namespace["safe"](MASTER)
    assert not find_secrets(safe.value, MASTER)


def test_frames_are_dropped_and_what_the_error_says_stays() -> None:
    @hide_frames
    def fail(secret: bytes) -> None:
        try:
            bytes.fromhex(secret.decode() + "x")
        except ValueError as error:
            raise KeyMaterialError("no hex") from error

    try:
        raise KeyError("the caller's")
    except KeyError as error:
        outer = error
        with pytest.raises(KeyMaterialError, match="no hex") as caught:
            fail(b"00")
    assert outer.__traceback__ is not None
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.__cause__.__traceback__ is None
    assert "fail" not in [frame.name for frame in caught.traceback]


# --- keyrings ------------------------------------------------------------------------------------


@pytest.fixture(params=["sealed", "clear"])
def ring(request: pytest.FixtureRequest, tmp_path: Path) -> Keyring:
    sealed = request.param == "sealed"
    made = Keyring.create(
        tmp_path / "k.json", passphrase=PASSPHRASE if sealed else None, plaintext=not sealed
    )
    made.create_key("kf", value=MASTER)
    made.create_key("kg", value=MASTER[::-1])
    made.create_key("off")
    made.disable_key("off")
    made.create_key("gone")
    made.destroy_key("gone")
    return made


KEYRING_FAILURES: dict[str, Callable[[Keyring], object]] = {
    "rotate unknown": lambda k: k.rotate_key("kff"),
    "rotate disabled": lambda k: k.rotate_key("off"),
    "rotate destroyed": lambda k: k.rotate_key("gone"),
    "create existing": lambda k: k.create_key("kf"),
    "create existing by value": lambda k: k.create_key("kf", value=DEK),
    "create of another length": lambda k: k.create_key("kh", value=DEK + ODD),
    "create by no id": lambda k: k.create_key("", value=DEK),
    "disable newest": lambda k: k.disable_key("kf", 1),
    "enable unknown version": lambda k: k.enable_key("kf", 9),
    "enable destroyed": lambda k: k.enable_key("gone"),
    "destroy unknown": lambda k: k.destroy_key("kff"),
    "destroy newest": lambda k: k.destroy_key("kf", 1),
    "wrap unknown": lambda k: k.wrap(DEK, "kff"),
    "wrap disabled": lambda k: k.wrap_many([DEK], "off"),
    "wrap another length": lambda k: k.wrap(DEK + ODD, "kf"),
    "rewrap to another aad": lambda k: k.rewrap(k.wrap(DEK, "kf"), "kf", aad=b"other"),
    "unwrap altered": lambda k: k.unwrap(k.wrap(DEK, "kf")[:-9] + 'AAAA=="}', "kf"),
    "unwrap under another": lambda k: k.unwrap(k.wrap(DEK, "kf"), "kg"),
    "change to no passphrase": lambda k: k.change_passphrase(""),
    "change to both": lambda k: k.change_passphrase(ODD, plaintext=True),
    "create over it": lambda k: Keyring.create(k.path, passphrase=ODD),
    "open with another passphrase": lambda k: Keyring(k.path, passphrase=ODD),
    "open a missing one": lambda k: Keyring(k.path + "x", passphrase=ODD),
    "open by URI": lambda k: mc.kms.open_kms(f"file:{k.path}", passphrase=ODD),
    "open as tools": lambda k: KeyTools(f"file:{k.path}", passphrase=ODD),
    "open as a policy's": lambda k: KeyTools.from_policy(
        Policy(footer_key="kf", kms=f"file:{k.path}"), passphrase=ODD
    ),
    "a passphrase that is too long": lambda k: Keyring(k.path, passphrase=ODD * 300),
    "an asker's that is too long": lambda k: Keyring(k.path, passphrase=lambda: ODD * 300),
    "options of no URI": lambda k: KeyTools(k, passphrase=ODD),
}

SECRETS = (MASTER, MASTER[::-1], DEK, PASSPHRASE.encode(), ODD)


@each_case("name", KEYRING_FAILURES)
def test_no_error_of_a_keyring_carries_a_key_or_a_passphrase(ring: Keyring, name: str) -> None:
    check(lambda: KEYRING_FAILURES[name](ring), *SECRETS)


@each_case("where", ["os.write", "os.fsync", "keyring_file.publish", "json.dumps"])
@each_case("error", [OSError(28, "disk full"), KeyboardInterrupt(), MemoryError()])
def test_an_update_that_fails_carries_no_key(
    ring: Keyring, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    def fail(*arguments: Any, **options: Any) -> NoReturn:
        raise error

    module, name = where.split(".")
    for change in (ring.rotate_key, ring.destroy_key):
        with monkeypatch.context() as patch:
            patch.setattr({"os": os, "json": json}.get(module, keyring_file), name, fail)
            failed = failure(lambda c=change: c("kf"))  # type: ignore[misc]
        assert isinstance(failed, type(error))
        check(lambda e=failed: throw(e), *SECRETS)  # type: ignore[misc]


def throw(error: BaseException) -> NoReturn:
    raise error


@pytest.mark.parametrize("member", ["version", "created", "state", "value"])
def test_a_malformed_keyring_in_the_clear_is_refused_without_its_keys(
    tmp_path: Path, member: str
) -> None:
    made = Keyring.create(tmp_path / "k.json", plaintext=True)
    made.create_key("kf", value=MASTER)
    made.create_key("kg", value=DEK)
    value = json.loads(Path(made.path).read_bytes())
    value["keys"]["kg"]["versions"][0][member] = base64.b64encode(ODD).decode()
    for text in (json.dumps(value), json.dumps(value)[:-9], json.dumps(value) + "\ud800"):
        Path(made.path).write_bytes(text.encode("utf-8", "surrogatepass"))
        check(lambda: made.wrap(DEK, "kf"), MASTER, DEK, ODD)
        check(lambda: Keyring(made.path), MASTER, DEK, ODD)
    Path(made.path).write_text(json.dumps({**value, "generation": -1}))
    os.chmod(made.path, 0o644)
    check(lambda: Keyring(made.path), MASTER, DEK, ODD)


# --- wrapping ------------------------------------------------------------------------------------


class Broken:
    """A client that knows keys, and fails or answers as the test asks."""

    capabilities = Capabilities(rewrap=True, batch=10)

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> Any:
        return self._answer(key)

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> Any:
        return self._answer(DEK)

    def rewrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> Any:
        return self._answer(DEK)

    def wrap_many(self, keys: Any, master_key_id: str, *, aad: bytes = b"") -> Any:
        return self._answer(keys)

    def _answer(self, known: object) -> Any:
        if isinstance(self.answer, BaseException):
            try:
                raise RuntimeError(f"the request was {known!r}")
            except RuntimeError:
                raise self.answer from None
        return self.answer


ANSWERS = {
    "refusal": KeyAccessDeniedError("no"),
    "own error": RuntimeError("the key was " + DEK.hex()),
    "lookup": KeyError(DEK),
    "away": KmsUnavailableError("away"),
    "interrupt": KeyboardInterrupt(),
    "odd key": ODD,
    "no ASCII": "é" * 20,
    "nothing": None,
    "list": [ODD],
}


@each_case("name", ANSWERS)
def test_no_error_around_a_key_service_carries_a_key(name: str) -> None:
    wrapper = KeyWrapper(Broken(ANSWERS[name]), cache_lifetime=600)
    masters, arrow = MasterKeys(wrapper.client), as_pyarrow_client(wrapper.client)(None)
    generated: list[bytes] = []
    key = Key(DEK)
    require = partial(require_same, key)
    for call in (
        lambda: wrapper.wrap([key], "kf"),
        lambda: wrapper.wrap([key, key], "kf"),
        lambda: wrapper.rewrap("text", "kf", "kf", require),
        lambda: wrapper.rewrap("text", "kf", "kg", require),
        lambda: wrapper.with_proof(WrapProof()).wrap([key], "kf"),
        lambda: wrapper.get_writing_kek("kf"),
        lambda: masters.wrap(key, "kf"),
        lambda: masters.unwrap(b"text", "kf"),
        lambda: masters.move(b"text", "kf", "kg"),
        lambda: kms.wrap(wrapper.client, DEK, "kf"),
        lambda: kms.wrap_many(wrapper.client, [DEK, DEK], "kf"),
        lambda: kms.unwrap(wrapper.client, "text", "kf"),
        lambda: arrow.wrap_key(DEK, "kf"),
        lambda: arrow.unwrap_key("text", "kf"),
    ):
        check(call, DEK, ODD, *generated)


def test_a_refused_move_carries_no_key(ring: Keyring) -> None:
    wrapper = KeyWrapper(ring, cache_lifetime=600)
    (wrapped,) = wrapper.wrap([Key(DEK)], "kf")
    check(lambda: wrapper.rewrap(wrapped, "kf", "off", print), *SECRETS)
    masters = MasterKeys(ring)
    check(lambda: masters.move(wrapped.encode(), "kf", "gone"), *SECRETS)


def test_an_audit_that_fails_carries_no_key(ring: Keyring) -> None:
    def refuse(event: mc.kms.AuditEvent) -> None:
        if event.operation == "unwrap":
            raise OSError(28, "disk full")

    wrapper = KeyWrapper(ring, cache_lifetime=600, audit=refuse)
    (wrapped,) = wrapper.wrap([Key(DEK)], "kf", replaces=False)
    check(lambda: wrapper.rewrap(wrapped, "kf", "kg", print), *SECRETS)


def test_an_exhausted_key_carries_nothing_that_it_was_to_seal(
    ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper, metadata = KeyWrapper(ring, cache_lifetime=600), StandardKeyMetadata(key=DEK)
    kek, iceberg = wrapper.get_writing_kek("kf"), MasterKeys(ring).new_kek("kf", 16)
    monkeypatch.setattr("modcrypt.keys.invocations.INVOCATION_LIMIT", 0)
    for call in (
        lambda: kek.wrap(Key(DEK)),
        lambda: kek.wrap_to_json(Key(DEK), is_footer_key=True, internal=True),
        lambda: wrapped_key_metadata.encrypt_key_metadata(wrapper, metadata, "kf"),
        lambda: iceberg.encrypt(metadata),
        lambda: ring.wrap(DEK, "kf"),
        lambda: ring.rotate_key("kf") if ring._states.passphrase_keys.ask else ring.wrap(DEK, "kf"),
    ):
        assert isinstance(check(call, *SECRETS), mc.errors.KeyExhaustedError)


# --- key metadata, references, tokens ------------------------------------------------------------


def test_no_error_about_key_metadata_carries_its_key(ring: Keyring) -> None:
    good = StandardKeyMetadata(key=DEK, aad_prefix=b"prefix").encode()
    wrapper = KeyWrapper(ring, cache_lifetime=600)
    for data in (good[:-3], good + b"x", b"\2" + good[1:], good[:1] + b"\x26" + ODD + good[18:]):
        check(lambda d=data: StandardKeyMetadata.decode(d), DEK, ODD)  # type: ignore[misc]
        kek = wrapper.get_writing_kek("kf")
        text = base64.b64encode(kek.cipher.encrypt_block(data, kek.id)).decode()
        encrypted = wrapped_key_metadata.encode_wrapped_metadata(
            kek.material(text, is_footer_key=False, internal=True)
        )
        check(lambda e=encrypted: wrapped_key_metadata.decrypt_key_metadata(wrapper, e), *SECRETS)  # type: ignore[misc]
        opened = MasterKeys(ring).new_kek("kf", 16)
        block = GcmCipher(opened._kek).encrypt_block(data, opened._aad(False))  # type: ignore[arg-type]
        check(lambda o=opened, b=block: o.open(b), *SECRETS)  # type: ignore[misc]


FOOTER: dict[str, Any] = {"footer_key": DEK}
BOTH: dict[str, Any] = {"footer_key": DEK, "column_keys": {"a": MASTER}}


@each_case("call", [
    lambda: mc.FileEncryptionProperties(footer_key=ODD),
    lambda: mc.FileEncryptionProperties(footer_key=ODD.decode()),
    lambda: mc.FileEncryptionProperties(footer_key=DEK, column_keys={"a": ODD}),
    lambda: mc.FileEncryptionProperties(**BOTH, plaintext_columns=["a"]),
    lambda: mc.FileEncryptionProperties(**FOOTER, encryption_algorithm="other"),
    lambda: mc.FileDecryptionProperties(footer_key=ODD),
    lambda: mc.FileDecryptionProperties(**BOTH, accept_algorithms=["other"]),
    lambda: ags1.decrypt(b"AGS1", ODD, length=4),
    lambda: ags1.decrypt(b"AGS1", DEK, length=4),
    lambda: ags1.decrypt(ags1.encrypt(b"x", DEK), key=MASTER, length=mc.ags1.UNVERIFIED),
    lambda: ags1.encrypt(b"x", DEK, block_length=1 << 40),
    lambda: ags1.encrypt(b"x", DEK, aad_prefix="text"),  # type: ignore[arg-type]
    lambda: mc.ags1.Ags1Reader("/nowhere/x", DEK, length=4),
    lambda: mc.ags1.Ags1Writer("/nowhere/x", DEK),
    lambda: mc.ags1.Ags1Writer("/nowhere/x", key=ODD),
    lambda: mc.encrypt_ags1("/nowhere/x", "/nowhere/y", DEK),
    lambda: mc.decrypt_ags1("/nowhere/x", "/nowhere/y", ODD, length=4),
    lambda: mc.mask_parquet(
        "/nowhere/x", "/nowhere/y", mc.FileDecryptionProperties(), hashed=["a"], hash_key=DEK
    ),
    lambda: mc.mask_parquet(
        "/nowhere/x", "/nowhere/y", mc.FileDecryptionProperties(), hashed=["a"], hash_key=ODD
    ),
])  # fmt: skip
def test_no_error_about_an_argument_carries_a_key(call: Callable[[], object]) -> None:
    check(call, ODD, DEK, MASTER)


def test_no_error_carries_what_a_key_retriever_answers(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    encryption = mc.FileEncryptionProperties(footer_key=DEK, footer_key_metadata=b"k")
    for number in range(2):
        path = folder / f"{number}.parquet"
        mc.write_table(pa.table({"a": [1]}), path, encryption)
    path.write_bytes(path.read_bytes()[:-60] + bytes(60))
    for key in (ODD, DEK):
        decryption = mc.FileDecryptionProperties(key_retriever=lambda _, k=key: k)  # type: ignore[misc]
        check(lambda d=decryption: mc.read_table(folder, d), key)  # type: ignore[misc]


@pytest.mark.parametrize("call", [
    lambda: Key(ODD),
    lambda: StandardKeyMetadata(key=ODD),
    lambda: StandardKeyMetadata(key=DEK, file_length=2**63),
    lambda: as_key(ODD),
])  # fmt: skip
def test_no_error_about_a_key_carries_it(call: Callable[[], object]) -> None:
    check(call, ODD, DEK)


def test_no_error_about_a_reference_carries_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    for text in (ODD, ODD.hex().encode(), base64.b64encode(ODD), b"00" * 16 + b"\n" + ODD):
        path.write_bytes(text)
        path.chmod(0o600)
        monkeypatch.setenv("SOME_KEY", text.decode())
        read, write = os.pipe()
        os.write(write, text)
        os.close(write)
        for call in (
            lambda: read_key(f"file:{path}", "footer key"),
            lambda: read_key("env:SOME_KEY", "footer key"),
            lambda r=read: read_key(f"fd:{r}", "footer key"),
            lambda: read_metadata_file(str(path)),
            lambda: mc.kms.open_kms("env:SOME_KEY"),
        ):
            check(call, ODD)
        os.close(read)
    monkeypatch.setenv("GOOD_KEY", MASTER.hex())
    client = mc.kms.open_kms("env:GOOD_KEY")
    check(lambda: client.wrap(DEK, "other"), MASTER, DEK)
    check(lambda: client.wrap(DEK + ODD, "GOOD_KEY"), MASTER, DEK)
    check(lambda: client.unwrap("x", "GOOD_KEY"), MASTER, DEK)


def test_no_error_of_vault_carries_a_key_or_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "hcvault://127.0.0.1:9/transit?tls=off"  # nobody listens there
    check(lambda: mc.kms.open_kms(uri, token="s." + ODD.decode() + " "), ODD)
    monkeypatch.setenv("VAULT_TOKEN", "s." + ODD.decode() + "\n x")
    check(lambda: mc.kms.open_kms(uri), ODD)
    monkeypatch.delenv("VAULT_TOKEN")
    client: Any = mc.kms.open_kms(uri, token="s." + ODD.decode())
    for call in (
        lambda: client.wrap(DEK, "kf"),
        lambda: client.wrap_many([DEK, DEK], "kf"),
        lambda: client.unwrap("vault:v1:" + "A" * 60, "kf"),
        lambda: client.rewrap("vault:v1:" + "A" * 60, "kf", aad=b"x"),
        lambda: client.list_keys(),
        lambda: client.create_key("kf"),
    ):
        check(call, ODD, DEK)


def test_no_error_of_a_token_carries_the_pin_or_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from modcrypt.kms.services import pkcs11_token

    class Token:
        def open(self, user_pin: str | None = None, rw: bool = False) -> NoReturn:
            raise pkcs11_token.token_errors.PinIncorrect

    monkeypatch.setattr(pkcs11_token, "_find_token", lambda *arguments: Token())
    uri = "pkcs11:token=lake?module-path=/nowhere.so"
    check(lambda: mc.kms.open_kms(uri, pin=ODD.decode()), ODD)
    check(lambda: mc.kms.open_kms(uri, pin=ODD.decode() + "\n"), ODD)
    check(lambda: mc.kms.open_kms(uri, pin=lambda: ODD.decode() + "\n"), ODD)


# --- files ---------------------------------------------------------------------------------------


def test_no_error_while_files_are_read_or_rotated_carries_a_master_key(
    ring: Keyring, tmp_path: Path
) -> None:
    tools = KeyTools(ring)
    for name, policy in {
        "double": Policy(footer_key="kf", column_keys={"kg": ["a"]}),
        "single": Policy(footer_key="kf", column_keys={"kg": ["a"]}, double_wrapping=False),
    }.items():
        mc.write_table(
            pa.table({"a": [1], "b": [2]}), tmp_path / f"{name}.parquet", tools.encryption(policy)
        )
    ring.disable_key("kg")
    for name in ("double", "single"):
        path = tmp_path / f"{name}.parquet"
        check(lambda p=path: mc.read_table(p, KeyTools(ring).decryption()), *SECRETS)  # type: ignore[misc]
        check(
            lambda p=path: mc.write_table(  # type: ignore[misc]
                pa.table({"a": [1]}), p, KeyTools(ring).encryption(Policy(footer_key="off"))
            ),
            *SECRETS,
        )
        results = mc.jobs.rotate_keys(path, KeyTools(ring), new_master_keys={"kf": "off"})
        assert [file.result for file in results] != ["rotated"]


# --- Spark ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_iterator", [False, True])
def test_what_spark_calls_raises_errors_without_frames_unless_they_are_bugs(
    as_iterator: bool,
) -> None:
    def fail(error: Exception) -> Any:
        raise error

    def iterate(error: Exception) -> Any:
        yield fail(error)

    call = shorten_errors((lambda e: iterate(e)) if as_iterator else fail)
    for error in (mc.errors.TagMismatchError("no"), FileNotFoundError("no"), ValueError("no")):
        with pytest.raises(type(error), match="no") as caught:
            list(call(error))
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "fail" not in names
    with pytest.raises(UnicodeError) as caught:
        list(call(UnicodeError("a bug")))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fail"
