"""Settings: references that travel to other processes, and become properties there."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.tables import small_table

PASSPHRASE = "of many words"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with keys in files and a keyring."""
    for name, secret in (("f.key", FOOTER_KEY.hex()), ("c.key", COLUMN_KEY.hex())):
        _write_private(tmp_path / name, secret)
    _write_private(tmp_path / "phrase", PASSPHRASE)
    ring = mc.Keyring.create(tmp_path / "lake.keyring", passphrase=PASSPHRASE)
    ring.create_key("kf")
    ring.create_key("kc")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write_private(path: Path, secret: str) -> None:
    path.touch(0o600)
    path.write_text(secret)


def by_keys() -> mc.Settings:
    return mc.Settings(footer_key="file:f.key", column_keys={"name": "file:c.key"})


def by_service() -> mc.Settings:
    policy = mc.Policy(footer_key="kf", column_keys={"kc": ["name"]})
    return mc.Settings(kms="file:lake.keyring", passphrase="file:phrase", policy=policy)


KINDS = pytest.mark.parametrize("make", [by_keys, by_service])


def read(settings: mc.Settings, path: str) -> pa.Table:
    os.chdir("/")  # references mean the same everywhere
    return mc.read_table(path, settings)


def write(settings: mc.Settings, path: str) -> None:
    os.chdir("/")
    mc.write_table(small_table(), path, settings)


@KINDS
def test_settings_travel_without_secrets(lake: Path, make: Callable[[], mc.Settings]) -> None:
    settings = make()
    mc.write_table(small_table(), "a", settings)
    assert mc.read_table("a", settings).equals(small_table())  # with keys in memory
    pickled = pickle.dumps(settings)
    shown = (pickled, repr(settings).encode(), repr(settings.__dict__).encode())
    for secret in (FOOTER_KEY, COLUMN_KEY, FOOTER_KEY.hex().encode(), PASSPHRASE.encode()):
        assert not any(secret in text for text in shown)
    copy = pickle.loads(pickled)
    assert pickle.loads(pickle.dumps(make())) is copy  # so that a process opens a service once
    assert mc.read_table("a", copy).equals(small_table())


def test_copies_use_absolute_paths(lake: Path) -> None:
    copy = pickle.loads(pickle.dumps(by_keys()))
    assert copy.footer_key == f"file:{lake}/f.key"
    uri = "file:lake.keyring?passphrase=file:phrase#kf"
    copy = pickle.loads(pickle.dumps(mc.Settings(kms=uri, root="data", audit="log")))
    assert copy.uri == f"file:{lake}/lake.keyring?passphrase=file:{lake}/phrase#kf"
    assert (copy.root, copy.audit) == (f"{lake}/data", f"{lake}/log")
    policy = mc.Policy(footer_key="kf", kms="FILE:lake.keyring?passphrase=file:phrase")
    copy = pickle.loads(pickle.dumps(mc.Settings(policy=policy)))
    assert copy.uri == f"file:{lake}/lake.keyring?passphrase=file:{lake}/phrase"
    remote = mc.Settings(kms="aws-kms://", root="s3://lake", footer_key=None)
    assert pickle.loads(pickle.dumps(remote)) == remote


@pytest.mark.parametrize(
    "settings",
    [
        mc.Settings(footer_key="fd:7"),
        mc.Settings(footer_key="env:A", column_keys={"x": "fd:7"}),
        mc.Settings(kms="file:k", passphrase="fd:7"),
        mc.Settings(kms="file:k", passphrase="prompt"),
    ],
    ids=repr,
)
def test_what_other_processes_cannot_read_does_not_travel(settings: mc.Settings) -> None:
    with pytest.raises(ValueError, match="other processes cannot"):
        pickle.dumps(settings)


def test_processes_read_and_write_with_settings(lake: Path) -> None:
    spawn, make = multiprocessing.get_context("spawn"), by_keys
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        pool.submit(write, make(), f"{lake}/a").result()
        assert pool.submit(read, make(), f"{lake}/a").result().equals(small_table())


@pytest.mark.filterwarnings("ignore")
def test_dask_processes_read_with_settings(lake: Path) -> None:
    dask, make = pytest.importorskip("dask"), by_service
    paths = [f"{lake}/{number}" for number in range(2)]
    for path in paths:
        mc.write_table(small_table(), path, make())
    tables = [dask.delayed(mc.read_table)(path, make()) for path in paths]
    for table in dask.compute(*tables, scheduler="processes", num_workers=2):
        assert table.equals(small_table())


@KINDS
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_reads_with_settings(lake: Path, make: Callable[[], mc.Settings]) -> None:
    ray = pytest.importorskip("ray", reason="there is no Ray for this version of Python")
    mc.write_table(small_table(), "a", make())
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        found = ray.get(ray.remote(read).remote(make(), f"{lake}/a"))
    finally:
        ray.shutdown()
    assert found.equals(small_table())


@KINDS
def test_every_function_takes_settings(lake: Path, make: Callable[[], mc.Settings]) -> None:
    settings, other = make(), mc.Settings(footer_key="env:OTHER")
    pq.write_table(small_table(), "plain")
    mc.encrypt_parquet("plain", "a", settings)
    mc.decrypt_parquet("a", "b", settings)
    assert Path("b").read_bytes() == Path("plain").read_bytes()
    with mc.ParquetFile("a", settings) as file:
        assert file.read().equals(small_table())
    assert pq.read_table(mc.open_parquet("a", settings)).equals(small_table())
    assert mc.verify_parquet("a", settings).complete
    assert mc.verify_dataset("a", settings).ok
    assert mc.verify_dataset("a", lambda path: settings).ok
    assert mc.inspect_parquet("a", settings).footer_authenticated
    assert pa.concat_tables([pa.table(b) for b in mc.iter_batches("a", settings)])
    assert list(mc.jobs.scan_keys("a", decryption=settings))
    os.environ["OTHER"] = OTHER_KEY.hex()
    try:
        mc.rekey_parquet("a", "c", settings, other)
        mc.share_parquet("a", "d", settings, other, columns=["id"])
        mc.mask_parquet("a", "e", settings, other, null=["name"])
        for path in "cde":
            mc.read_table(path, other)
    finally:
        del os.environ["OTHER"]
    mc.write_dataset(small_table(), "folder", settings)
    assert mc.read_table("folder", settings).equals(small_table())
    assert mc.read_table("folder", lambda path: settings).equals(small_table())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"footer_key": FOOTER_KEY.hex()}, "never the key itself"),
        ({"footer_key": "fd:x"}, "N is a number"),
        ({"kms": "env:K", "footer_key": "env:F"}, "pass exactly one of the two"),
        ({"policy": mc.Policy(footer_key="k")}, "no key service is named"),
        ({"passphrase": "env:P"}, "needs a keyring"),
        ({"kms": "file:k", "passphrase": PASSPHRASE}, "never the passphrase itself"),
        ({"kms": "file:k", "plaintext_columns": ("a",)}, "need footer_key"),
        ({"footer_key": "env:F", "encryption_options": {"x": 1}}, "unknown encryption_options: x"),
        ({"footer_key": "env:F", "audit": "log"}, "need a key service"),
        ({"footer_key": "env:F", "aad_prefix": "a/{path}"}, "need a policy"),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        mc.Settings(**arguments)
    assert FOOTER_KEY.hex() not in str(caught.value)
    assert PASSPHRASE not in str(caught.value)


def test_plaintext_columns_of_an_iterator_stay_for_all_files() -> None:
    names: Any = iter(["id"])
    assert mc.Settings(footer_key="env:F", plaintext_columns=names).plaintext_columns == ("id",)
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=iter(["id"]))  # type: ignore[arg-type]
    assert properties.plaintext_columns == ("id",)


def test_a_key_in_place_of_a_reference_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"a reference such as file:PATH .*, not a bytes"):
        mc.Settings(footer_key=FOOTER_KEY)  # type: ignore[arg-type]


def test_without_keys_nothing_is_encrypted() -> None:
    for settings in (mc.Settings(), mc.Settings(column_keys={"a": "env:HOME"})):
        with pytest.raises((ValueError, mc.errors.KeyRetrievalError)):
            mc.write_table(small_table(), "nowhere", settings)


def test_audit_notes_uses_of_the_key_service(lake: Path) -> None:
    settings = mc.Settings(
        kms="file:lake.keyring", passphrase="file:phrase", audit="log",
        policy=mc.Policy(footer_key="kf"),
    )  # fmt: skip
    mc.write_table(small_table(), "a", settings)
    assert '"kf"' in Path("log").read_text()


def test_with_keys_by_reference_bytes_are_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOOTER", FOOTER_KEY.hex())
    settings = mc.Settings(footer_key="env:FOOTER", aad_prefix=b"lake/{path}")
    encryption = settings.encryption()
    assert isinstance(encryption, mc.FileEncryptionProperties)
    assert encryption.aad_prefix == settings.decryption().aad_prefix == b"lake/{path}"
    with pytest.raises(ValueError, match="would have the same AAD prefix"):
        settings.check_distinct(["a", "b"])


# --- policies that name keys by reference --------------------------------------------------------


def test_a_policy_of_references_becomes_keys(lake: Path) -> None:
    (lake / "keys").mkdir()
    for name in ("f.key", "c.key"):
        (lake / name).rename(lake / "keys" / name)
    (lake / "keys" / "keys.toml").write_text(
        'footer_key = "file:f.key"\nplaintext_footer = true\n'
        '[column_keys]\n"file:c.key" = ["name"]\n'
    )
    policy = mc.Policy.load("keys/keys.toml")  # its paths are relative to its folder
    assert mc.Settings(policy=Path("keys/keys.toml")) == mc.Settings(policy=policy)  # type: ignore[arg-type]
    settings = pickle.loads(pickle.dumps(mc.Settings(policy=policy)))
    mc.write_table(small_table(), "out.parquet", settings)
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
    assert mc.read_table("out.parquet", keys).equals(small_table())
    assert mc.read_table("out.parquet", settings).equals(small_table())
    assert (lake / "out.parquet").read_bytes()[:4] == b"PAR1"


@pytest.mark.parametrize(
    ("more", "words"),
    [({"kms": "file:lake.keyring"}, "pass no kms"), ({"footer_key": "file:f.key"}, "other keys")],
)
def test_a_policy_of_references_goes_with_no_other_keys(
    lake: Path, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        mc.Settings(policy=mc.Policy(footer_key="env:K"), **more)
