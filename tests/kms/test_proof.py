"""No key, file or table is replaced until its successor has opened something."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
import modcrypt.iceberg as mi
from modcrypt.errors import KeyAccessDeniedError, KeyMaterialError, KmsUnavailableError
from modcrypt.keys import Key
from modcrypt.kms.client import Capabilities
from modcrypt.kms.proof import WrapProof
from tests.support.iceberg.sample_kms import SampleKms

TABLE = pa.table({"id": [1, 2, 3], "p": [1, 1, 2]})


class Faulty(SampleKms):
    """A key service that answers `wrap` or `unwrap` wrongly."""

    def __init__(
        self, *, wrap: Callable[..., str] | None = None, unwrap: Callable[..., bytes] | None = None
    ) -> None:
        super().__init__()
        self._wrap, self._unwrap = wrap, unwrap

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        text = super().wrap(key, master_key_id)
        return text if self._wrap is None else self._wrap(text, master_key_id)

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        key = super().unwrap(wrapped, master_key_id)
        return key if self._unwrap is None else self._unwrap(key, master_key_id)


def another_key(text: str, master_key_id: str) -> str:
    return SampleKms().wrap(os.urandom(16), master_key_id)


def garbage(text: str, master_key_id: str) -> str:
    return "A" * len(text)


def another_master(text: str, master_key_id: str) -> str:
    return SampleKms().wrap(bytes(16), "keyB" if master_key_id == "keyA" else "keyA")


def refuse_b(key: bytes, master_key_id: str) -> bytes:
    if master_key_id == "keyB":
        raise PermissionError("not with this token")
    return key


def wrong_once() -> Callable[[bytes, str], bytes]:
    answers = [os.urandom(16)]
    return lambda key, master_key_id: answers.pop() if answers else key


WRONG: dict[str, dict[str, Any]] = {
    "another key": {"wrap": another_key}, "garbage": {"wrap": garbage},
    "another master": {"wrap": another_master}, "encrypt only": {"unwrap": refuse_b},
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("internal", [True, False])
def test_no_file_is_replaced(
    tmp_path: Path, fault: str, what: Any, double: bool, internal: bool
) -> None:
    policy = mc.Policy(footer_key="keyA", double_wrapping=double, internal_key_material=internal)
    path = tmp_path / "a.parquet"
    mc.write_table(TABLE, path, mc.KeyTools(SampleKms()).encryption(policy))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    tools = mc.KeyTools(Faulty(**WRONG[fault]))
    (done,) = mc.jobs.rotate_keys(path, tools, what=what, new_master_keys={"keyA": "keyB"})
    assert done.failed
    assert "nothing was replaced" in done.message
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("internal", [True, False])
def test_a_wrong_unwrapped_key_replaces_nothing(
    tmp_path: Path, double: bool, internal: bool
) -> None:
    policy = mc.Policy(
        footer_key="keyA", double_wrapping=double, internal_key_material=internal,
        plaintext_footer=True,
    )  # fmt: skip
    path = tmp_path / "a.parquet"
    mc.write_table(TABLE, path, mc.KeyTools(SampleKms()).encryption(policy))
    mc.jobs.rotate_keys(path, mc.KeyTools(Faulty(unwrap=wrong_once())))
    assert mc.read_table(path, mc.KeyTools(SampleKms()).decryption()).equals(TABLE)


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("what", ["mek", "kek"])
@pytest.mark.parametrize("policy", [
    mi.KeyPolicy(), mi.KeyPolicy(wrapping="single"), mi.KeyPolicy(kek_per="files"),
])  # fmt: skip
def test_no_table_is_committed(tmp_path: Path, fault: str, what: Any, policy: mi.KeyPolicy) -> None:
    if policy.wrapping == "single" and what == "mek":
        pytest.skip("single wrapping has no KEKs to move")
    mi.create_table(
        tmp_path, TABLE.schema, SampleKms(), master_key_id="keyA", policy=policy
    ).append(TABLE)
    masters = ["keyA", "keyB"]
    table = mi.open_table(tmp_path, Faulty(**WRONG[fault]), master_key_ids=masters)
    with pytest.raises((KeyMaterialError, KeyAccessDeniedError), match="nothing was replaced"):
        mi.rotate_table(table, what, new_master_key_id="keyB")
    again = mi.open_table(tmp_path, SampleKms(), master_key_ids=masters)
    assert again.place == table.place
    assert again.scan().num_rows == 3


def test_no_table_is_created_under_a_wrong_master_key(tmp_path: Path) -> None:
    with pytest.raises(mc.ModcryptError):
        mi.create_table(tmp_path, TABLE.schema, SampleKms(), master_key_id="kexA")
    with pytest.raises(KeyMaterialError):
        mi.create_table(tmp_path, TABLE.schema, Faulty(wrap=another_key), master_key_id="keyA")
    assert not list(tmp_path.rglob("*.json"))


REPLACE: dict[str, Callable[[Path, Any], object]] = {
    "encrypt": lambda path, new: mc.encrypt_parquet(path.with_name("plain"), path, new),
    "rekey": lambda path, new: mc.rekey_parquet(
        path, path, mc.KeyTools(SampleKms()).decryption(), new
    ),
    "write": lambda path, new: mc.write_table(TABLE, path, new),
    "dataset": lambda path, new: mc.write_dataset(
        TABLE, path.parent, new, basename_template="part-{i}.parquet",
        existing_data_behavior="overwrite_or_ignore",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("how", REPLACE)
def test_no_call_replaces_a_file(tmp_path: Path, fault: str, double: bool, how: str) -> None:
    pq.write_table(TABLE, tmp_path / "plain")
    path = tmp_path / "part-0.parquet"
    policy = mc.Policy(footer_key="keyA", double_wrapping=double)
    mc.write_table(TABLE, path, mc.KeyTools(SampleKms()).encryption(policy))
    before = path.read_bytes()
    wrong = mc.KeyTools(Faulty(**WRONG[fault])).encryption(replace(policy, footer_key="keyB"))
    for _ in range(2):  # the answer to the first stands for the others
        with pytest.raises((KeyMaterialError, KeyAccessDeniedError), match="nothing was replaced"):
            REPLACE[how](path, wrong)
    assert path.read_bytes() == before
    REPLACE[how](path, mc.KeyTools(SampleKms()).encryption(policy))
    assert mc.read_table(path, mc.KeyTools(SampleKms()).decryption()).equals(TABLE)


def test_results_of_files_say_what_was_proved(tmp_path: Path) -> None:
    policy, tools = mc.Policy(footer_key="keyA", double_wrapping=False), mc.KeyTools(SampleKms())
    for name in "abc":
        mc.write_table(TABLE, tmp_path / name, tools.encryption(policy))
    for prove, expected in (("first", [1, 0, 0]), ("all", [1, 1, 1])):
        done = mc.jobs.rotate_keys(tmp_path, tools, prove=prove, jobs=1)  # type: ignore[arg-type]
        assert sorted((file.proved for file in done), reverse=True) == expected


def test_who_may_only_encrypt_writes_new_files(tmp_path: Path) -> None:
    tools = mc.KeyTools(Faulty(unwrap=refuse_b))
    mc.write_table(TABLE, tmp_path / "a.parquet", tools.encryption(mc.Policy(footer_key="keyB")))
    table = mi.create_table(
        tmp_path / "t", TABLE.schema, Faulty(unwrap=refuse_b), master_key_id="keyB"
    )
    with pytest.raises(KeyAccessDeniedError, match="nothing was replaced"):
        table.append(TABLE)  # nobody would notice before the next append, which has to read
    assert mi.open_table(tmp_path / "t", SampleKms()).append(TABLE).scan().num_rows == 3


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("policy", [
    mi.KeyPolicy(wrapping="single"), mi.KeyPolicy(kek_per="files", files=1),
])  # fmt: skip
def test_no_append_is_committed(tmp_path: Path, fault: str, policy: mi.KeyPolicy) -> None:
    mi.create_table(
        tmp_path, TABLE.schema, SampleKms(), master_key_id="keyB", policy=policy
    ).append(TABLE)
    table = mi.open_table(tmp_path, Faulty(wrap=WRONG[fault].get("wrap", another_key)))
    with pytest.raises((KeyMaterialError, KeyAccessDeniedError), match="nothing was replaced"):
        table.append(TABLE)
    assert mi.open_table(tmp_path, SampleKms()).scan().num_rows == 3


def test_all_wraps_are_proved_on_request(tmp_path: Path) -> None:
    table = mi.create_table(
        tmp_path, TABLE.schema, SampleKms(), master_key_id="keyA",
        policy=mi.KeyPolicy(wrapping="single"),
    )  # fmt: skip
    for _ in range(3):
        table = table.append(TABLE)
    assert mi.rotate_table(table, "kek", prove="all").proved == {"keyA": 3}
    assert mi.rotate_table(table, "kek").proved == {"keyA": 1}


# --- the mechanism -------------------------------------------------------------------------------


def test_others_wait_for_the_first_proof_and_fail_with_it() -> None:
    proof, asked, begin = WrapProof(), list[int](), threading.Event()

    def opens() -> None:
        asked.append(1)
        begin.wait(10)
        raise KeyMaterialError("it unwraps to another key")

    failures = list[str]()

    def work() -> None:
        try:
            proof.check("m", "text", opens)
        except KeyMaterialError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    begin.set()
    for thread in threads:
        thread.join()
    assert (len(asked), len(failures), proof.proved) == (1, 4, {})


def test_an_unavailable_service_proves_nothing_and_is_asked_again() -> None:
    proof, answers = WrapProof(), [KmsUnavailableError("away")]

    def opens() -> None:
        if answers:
            raise answers.pop()

    with pytest.raises(KmsUnavailableError):
        proof.check("m", "text", opens)
    proof.check("m", "text", opens)
    assert proof.proved == {"m": 1}


def test_two_keys_never_have_one_wrap() -> None:
    proof, keys = WrapProof(), [Key.generate(), Key.generate()]
    with pytest.raises(KeyMaterialError, match="two different keys the same wrap"):
        proof.check_keys("m", keys, ["text", "text"], lambda texts: [keys[0]], together=False)


# --- many keys in one answer ---------------------------------------------------------------------


class Shuffling(SampleKms):
    """A service with batches, whose answers exchange the last two of several wraps."""

    capabilities = Capabilities(batch=100, rewrap=True)
    shuffles = False

    def shuffle(self, answers: list[str]) -> list[str]:
        if not self.shuffles or len(answers) < 2:
            return answers
        return [*answers[:-2], answers[-1], answers[-2]]

    def rewrap(self, wrapped: str, master_key_id: str) -> str:
        return self.wrap(self.unwrap(wrapped, master_key_id), master_key_id)

    def wrap_many(self, keys: list[bytes], master_key_id: str) -> list[str]:
        return self.shuffle([self.wrap(key, master_key_id) for key in keys])

    def unwrap_many(self, wrapped: list[str], master_key_id: str) -> list[bytes]:
        return [self.unwrap(text, master_key_id) for text in wrapped]

    def rewrap_many(self, wrapped: list[str], master_key_id: str) -> list[str]:
        return self.shuffle([self.rewrap(text, master_key_id) for text in wrapped])


@pytest.mark.parametrize(
    ("policy", "what", "new"),
    [
        (mi.KeyPolicy(kek_per="files", files=1), "mek", None),
        (mi.KeyPolicy(kek_per="files", files=1), "mek", "keyB"),
        (mi.KeyPolicy(kek_per="files", files=1), "kek", None),
        (mi.KeyPolicy(wrapping="single", kek_per="files"), "kek", "keyB"),
    ],
)
def test_wraps_in_another_order_are_not_committed(
    policy: mi.KeyPolicy, what: Any, new: str | None, tmp_path: Path
) -> None:
    kms = Shuffling()
    table = mi.create_table(
        tmp_path, TABLE.schema, kms, master_key_id="keyA", policy=policy
    )  # fmt: skip
    for _ in range(3):
        table = table.append(TABLE)
    kms.shuffles = True
    with pytest.raises(KeyMaterialError, match="nothing was replaced"):
        mi.rotate_table(table, what, new_master_key_id=new)
    assert mi.open_table(tmp_path, SampleKms()).scan().num_rows == 9


def test_data_keys_in_another_order_do_not_replace_a_file(tmp_path: Path) -> None:
    kms, path = Shuffling(), tmp_path / "a.parquet"
    table = pa.table({"a": [1], "b": [2], "c": [3]})
    policy = mc.Policy(
        footer_key="keyA", column_keys={"keyB": ["a", "b", "c"]}, double_wrapping=False
    )
    mc.write_table(table, path, mc.KeyTools(kms).encryption(policy))
    kms.shuffles = True
    (result,) = mc.jobs.rotate_keys(path, mc.KeyTools(kms), what="dek")
    assert result.result == "key-material"
    assert mc.read_table(path, mc.KeyTools(SampleKms()).decryption()).equals(table)
