"""External key material beside objects, and through local URLs: written, read, replaced, rotated.

PyArrow judges the results through its own S3 client and its own key tools, boto3 by names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from tests.support import object_store
from tests.support.java.key_tools_java import MemoryKms
from tests.support.kms.pyarrow_key_tools import MASTERS, OURS, factory
from tests.support.object_store import ObjectStore
from tests.support.tables import small_table

FILE_SYSTEMS: dict[str, Callable[[ObjectStore], Any]] = {
    "pyarrow": lambda store: store.arrow(),
    "s3fs": lambda store: store.s3fs(),
}


class Bucket(object_store.Bucket):
    """An empty bucket, as PyArrow reads it and as modcrypt is given it."""

    def __init__(self, store: ObjectStore, filesystem: Any, kms: MemoryKms) -> None:
        super().__init__()
        self.filesystem, self.kms, self._arrow = filesystem, kms, store.arrow()

    def path(self, key: str) -> str:
        return f"{self.name}/{key}"

    def write(self, key: str, policy: mc.Policy, rows: int = 50) -> None:
        encryption = mc.KeyTools(self.kms).encryption(policy)
        mc.write_table(small_table(rows), self.path(key), encryption, filesystem=self.filesystem)

    def read(self, key: str) -> pa.Table:
        decryption = mc.KeyTools(self.kms).decryption()
        return mc.read_table(self.path(key), decryption, filesystem=self.filesystem)

    def rotate(self, key: str, **options: Any) -> list[str]:
        tools = mc.KeyTools(self.kms)
        files = mc.jobs.rotate_keys(self.path(key), tools, filesystem=self.filesystem, **options)
        return [file.result for file in files]

    def pyarrow_writes(self, key: str, rows: int = 50, *, internal: bool = False) -> None:
        configuration = pe.EncryptionConfiguration(
            footer_key="kf",
            column_keys={"kc1": ["id", "address.zip", "tags.list.element"], "kc2": ["name"]},
            internal_key_material=internal,
        )
        properties = factory(self.kms).file_encryption_properties(
            pe.KmsConnectionConfig(), configuration, self.path(key), self._arrow
        )
        pq.write_table(
            small_table(rows), self.path(key), filesystem=self._arrow,
            encryption_properties=properties,
        )  # fmt: skip

    def pyarrow_reads(self, key: str) -> pa.Table:
        properties = factory(self.kms).file_decryption_properties(
            pe.KmsConnectionConfig(), pe.DecryptionConfiguration(), self.path(key), self._arrow
        )
        with pq.ParquetFile(
            self.path(key),
            decryption_properties=properties,
            filesystem=self._arrow,
            pre_buffer=True,
        ) as file:
            return file.read()


@pytest.fixture
def kms() -> MemoryKms:
    """Return a new key service."""
    return MemoryKms.of(MASTERS)


@pytest.fixture(scope="module", params=["s3fs", pytest.param("pyarrow", marks=pytest.mark.slow)])
def filesystem(request: pytest.FixtureRequest, store: ObjectStore) -> Any:
    return FILE_SYSTEMS[request.param](store)


@pytest.fixture
def bucket(filesystem: Any, store: ObjectStore, kms: MemoryKms) -> Bucket:
    """Return a new bucket, through either client."""
    return Bucket(store, filesystem, kms)


def policy(**more: Any) -> mc.Policy:
    settings = {"footer_key": "kf", "column_keys": OURS, "internal_key_material": False}
    return mc.Policy(**{**settings, **more})


# --- objects -------------------------------------------------------------------------------------


@pytest.mark.parametrize("double", [True, False])
def test_key_material_lies_beside_the_object(bucket: Bucket, double: bool) -> None:
    bucket.write("lake/data.parquet", policy(double_wrapping=double))
    assert bucket.keys() == ["lake/_KEY_MATERIAL_FOR_data.parquet.json", "lake/data.parquet"]
    assert bucket.read("lake/data.parquet").equals(small_table())
    assert bucket.pyarrow_reads("lake/data.parquet").equals(small_table())


def test_what_pyarrow_stored_is_read_replaced_and_rotated(bucket: Bucket) -> None:
    bucket.pyarrow_writes("data.parquet")
    assert bucket.keys() == ["_KEY_MATERIAL_FOR_data.parquet.json", "data.parquet"]
    assert bucket.read("data.parquet").equals(small_table())
    bucket.kms.rotate()
    assert bucket.rotate("data.parquet") == ["rotated"]
    bucket.kms.destroy_old()
    assert bucket.pyarrow_reads("data.parquet").equals(small_table())
    bucket.write("data.parquet", policy(), rows=20)
    assert bucket.pyarrow_reads("data.parquet").equals(small_table(20))
    assert bucket.read("data.parquet").equals(small_table(20))
    assert bucket.keys() == ["_KEY_MATERIAL_FOR_data.parquet.json", "data.parquet"]


def test_an_object_is_replaced_as_often_as_one_likes(bucket: Bucket) -> None:
    for rows in (10, 20, 30):
        bucket.write("data.parquet", policy(), rows)
        assert bucket.read("data.parquet").equals(small_table(rows))
        assert bucket.pyarrow_reads("data.parquet").equals(small_table(rows))
    assert bucket.keys() == ["_KEY_MATERIAL_FOR_data.parquet.json", "data.parquet"]
    bucket.write("data.parquet", policy(internal_key_material=True))
    assert bucket.pyarrow_reads("data.parquet").equals(small_table())


@pytest.mark.parametrize(("what", "internal"), [("mek", True), ("dek", False)])
def test_a_folder_of_objects_is_rotated(bucket: Bucket, internal: bool, what: str) -> None:
    names = ["lake/a.parquet", "lake/deep/c.parquet"]
    for name in names:
        bucket.write(name, policy(internal_key_material=internal))
    bucket.pyarrow_writes("lake/d.parquet", internal=internal)
    before = bucket.keys()
    bucket.kms.rotate()

    assert bucket.rotate("lake", what=what) == ["rotated"] * 3

    bucket.kms.destroy_old()
    for name in [*names, "lake/d.parquet"]:
        assert bucket.pyarrow_reads(name).equals(small_table())
    assert bucket.read("lake").num_rows == 150
    assert bucket.keys() == before


@pytest.mark.parametrize("internal", [True, False])
def test_objects_are_scanned(bucket: Bucket, internal: bool) -> None:
    bucket.write("lake/a.parquet", policy(internal_key_material=internal, plaintext_footer=True))
    keys = list(mc.jobs.scan_keys(bucket.path("lake"), filesystem=bucket.filesystem))
    assert {key.file for key in keys} == {f"s3://{bucket.path('lake/a.parquet')}"}
    assert {key.storage for key in keys} == {"internal" if internal else "external"}
    reported = sorted((key.column or "", key.master_key_id) for key in keys)
    assert reported == [
        ("", "kf"), ("address.city", "kc1"), ("address.zip", "kc1"), ("id", "kc1"),
        ("name", "kc2"), ("score", "kc2"), ("tags.list.element", "kc1"),
    ]  # fmt: skip
    assert bucket.kms.count("unwrap") == 0


def test_a_dataset_of_objects_has_material_beside_each(bucket: Bucket) -> None:
    table = small_table().append_column("part", pa.array([n % 3 for n in range(50)]))
    encryption = mc.KeyTools(bucket.kms).encryption(policy(aad_prefix="lake/{name}"))
    mc.write_dataset(
        table, bucket.path("lake"), encryption, partitioning=["part"],
        filesystem=bucket.filesystem,
    )  # fmt: skip
    stored = bucket.keys()
    names = [name for name in stored if "_KEY_MATERIAL_FOR_" not in name]
    assert len(stored) == 2 * len(names) == 6
    assert sorted(bucket.kms.calls) == [("wrap", name) for name in ("kc1", "kc2", "kf")]
    found = bucket.read("lake").sort_by("id")
    assert found.drop_columns(["part"]).equals(small_table())
    for name in names:
        assert bucket.pyarrow_reads(name).num_rows in (16, 17)


def test_an_object_without_its_key_material_says_so(bucket: Bucket, store: ObjectStore) -> None:
    bucket.write("lake/data.parquet", policy())
    store.judge().delete_object(Bucket=bucket.name, Key="lake/_KEY_MATERIAL_FOR_data.parquet.json")
    missing = r"_KEY_MATERIAL_FOR_data\.parquet\.json does not exist"
    with pytest.raises(mc.errors.KeyMaterialError, match=missing):
        bucket.read("lake/data.parquet")


# --- local files, by their URLs ------------------------------------------------------------------


def test_local_urls_are_places_too(kms: MemoryKms, tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "data.parquet"
    path.parent.mkdir()
    url, tools = f"file://{path}", mc.KeyTools(kms)
    for rows in (10, 50):
        mc.write_table(small_table(rows), url, tools.encryption(policy()))
        assert mc.read_table(url, tools.decryption()).equals(small_table(rows))
        assert mc.read_table(path, tools.decryption()).equals(small_table(rows))
    kms.rotate()
    (file,) = mc.jobs.rotate_keys(url, tools, what="kek")
    assert file.result == "rotated"
    kms.destroy_old()
    assert mc.read_table(url, mc.KeyTools(kms).decryption()).equals(small_table())
    keys = list(mc.jobs.scan_keys(f"file://{path.parent}", tools))
    assert {key.storage for key in keys} == {"external"}
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        "_KEY_MATERIAL_FOR_data.parquet.json", "data.parquet",
    ]  # fmt: skip
    properties = factory(kms).file_decryption_properties(
        pe.KmsConnectionConfig(), pe.DecryptionConfiguration(), path, pafs.LocalFileSystem()
    )
    with pq.ParquetFile(path, decryption_properties=properties) as opened:
        assert opened.read().equals(small_table())


def test_results_name_objects_by_their_urls(
    filesystem: Any, bucket: Bucket, store: ObjectStore
) -> None:
    """By a path in a file system as by a URL, for each verb that lists or changes keys."""
    bucket.write("lake/a.parquet", policy(internal_key_material=True))
    url, tools = f"s3://{bucket.path('lake/a.parquet')}", mc.KeyTools(bucket.kms)
    identity = mc.Identity.generate()
    to_identity = mc.kms.RecipientEncryption(recipients=[identity.recipient])
    received = bucket.path("received.parquet")
    mc.write_table(small_table(), received, to_identity, filesystem=filesystem)

    folder, where = bucket.path("lake"), {"filesystem": filesystem}
    assert {key.file for key in mc.jobs.scan_keys(folder, tools, **where)} == {url}
    for what in ("mek", "dek"):
        (rotated,) = mc.jobs.rotate_keys(folder, tools, what=what, **where)
        assert rotated.path == url
    (listed,) = mc.jobs.list_recipients(received, **where)
    added = mc.jobs.add_recipients(
        received,
        [mc.Identity.generate().recipient],
        mc.FileDecryptionProperties(key_retriever=identity),
        **where,
    )
    assert {listed.path, *(file.path for file in added)} == {f"s3://{received}"}
    planned = mc.jobs.shred_keys(folder, tools, everything=True, dry_run=True, **where)
    shredded = mc.jobs.shred_keys(folder, tools, everything=True, **where)
    assert [file.path for file in (*planned, *shredded)] == [url, url]
    proof = mc.jobs.prove_shredded(folder, tools, everything=True, **where)
    assert [file.path for file in proof.files] == [url]
    (failed,) = mc.jobs.rotate_keys(received, tools, **where)
    assert (failed.failed, failed.path) == (True, f"s3://{received}")
