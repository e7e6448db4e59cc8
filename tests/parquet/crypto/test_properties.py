"""A caller's mistakes are reported at once, by name, and never by a foreign error."""

from __future__ import annotations

import io
import mmap
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.tables import small_table, write_plain


@each_case(
    ("arguments", "error", "named"),
    [
        (
            {"footer_key": b"short"},
            ValueError,
            "footer key: an AES key must have 16, 24 or 32 bytes",
        ),
        ({"footer_key": "0123456789012345"}, ValueError, "footer key: .* hex digits"),
        ({"footer_key": bytes(16)}, ValueError, "footer key is all zeros"),
        ({"column_keys": {"id": b"short"}}, ValueError, "key of id"),
        ({"column_keys": [("id", COLUMN_KEY)]}, TypeError, "column_keys must map names to keys"),
        ({"column_keys": {("address", "zip"): COLUMN_KEY}}, TypeError, "names must be str"),
        ({"plaintext_columns": {"id": True}}, TypeError, "must be a list of names, not dict"),
        ({"plaintext_columns": "id"}, ValueError, "plaintext_columns takes several names"),
        ({"plaintext_columns": b"id"}, ValueError, "plaintext_columns takes several names"),
        (
            {"column_keys": {"id": COLUMN_KEY}, "plaintext_columns": ["id"]},
            ValueError,
            "have a key, but are also declared plaintext: id",
        ),
        ({"column_key_metadata": {"id": b"k"}}, ValueError, "column_keys lacks: id"),
        ({"aad_prefix": "text"}, TypeError, "aad_prefix must be bytes"),
        ({"aad_prefix": b""}, ValueError, "aad_prefix is empty"),
        ({"aad_prefix": bytes(65537)}, ValueError, "longer than 65536 bytes"),
        ({"plaintext_footer": "no"}, TypeError, "plaintext_footer must be True or False, not str"),
        ({"column_key_metadata": None}, TypeError, "column_key_metadata must map names to bytes"),
        ({"plaintext_columns": None}, TypeError, "plaintext_columns must be a list of names"),
        ({"footer_key_metadata": "kf"}, TypeError, "footer_key_metadata must be bytes"),
        ({"encryption_algorithm": "AES"}, ValueError, "AES_GCM_V1, AES_GCM_CTR_V1"),
        ({"data_page_v2_levels": "java"}, ValueError, "data_page_v2_levels"),
    ],
)
def test_mistakes_in_encryption_properties(
    arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named) as caught:
        mc.FileEncryptionProperties(**{"footer_key": FOOTER_KEY, **arguments})
    assert not isinstance(caught.value, mc.ModcryptError)


@each_case(
    ("arguments", "error", "named"),
    [
        ({"footer_key": b"short"}, ValueError, "footer key"),
        ({"column_keys": {"id": 7}}, TypeError, "key of id"),
        ({"key_retriever": {b"kf": FOOTER_KEY}}, TypeError, "must be a function"),
        ({"accept_algorithms": "AES_GCM_V1"}, ValueError, "accept_algorithms takes several names"),
        ({"accept_algorithms": []}, ValueError, "one or more of"),
        ({"on_missing_key": "nulls"}, ValueError, "on_missing_key"),
        ({"require_encrypted": "ssn"}, ValueError, "takes several names"),
        ({"require_encrypted": [1]}, TypeError, "names must be str"),
        ({"check_footer_integrity": None}, TypeError, "must be True or False, not NoneType"),
        ({"aad_prefix_verifier": b"prefix"}, TypeError, "must be a function"),
        ({"aad_prefix": b"x", "aad_prefix_verifier": bool}, ValueError, "not both"),
        ({"aad_prefix": "text"}, TypeError, "aad_prefix must be bytes"),
    ],
)
def test_mistakes_in_decryption_properties(
    arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        mc.FileDecryptionProperties(**arguments)


@each_case("answer", [None, "a.parquet", lambda name: b"a.parquet"])
def test_a_function_that_returns_no_prefix_waives_no_check(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    mc.write_table(small_table(), path, FOOTER_KEY)
    by_name = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=lambda name: answer)
    with pytest.raises(TypeError, match="what aad_prefix returns must be bytes, not"):
        mc.read_table(path, by_name)


def test_unknown_columns_are_all_named_before_anything_is_written(tmp_path: Path) -> None:
    source = write_plain(tmp_path / "plain.parquet")
    properties = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"zzz": COLUMN_KEY}, plaintext_columns=["aaa"]
    )
    with pytest.raises(ValueError, match=r"not have these columns: aaa, zzz; it has id, name"):
        mc.encrypt_parquet(source, tmp_path / "out", properties)
    assert not (tmp_path / "out").exists()


def test_a_name_that_fits_a_dotted_leaf_and_a_nested_one_is_refused(tmp_path: Path) -> None:
    table = pa.table({"a.b": [1], "a": [{"b": 2, "c": 3}]})
    source = write_plain(tmp_path / "plain.parquet", table)
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["a.b"])
    with pytest.raises(
        ValueError, match=r"several columns because column names contain dots: a\.b"
    ):
        mc.encrypt_parquet(source, io.BytesIO(), properties)


@pytest.mark.parametrize("destination", [None, b"out", 7])
def test_a_destination_of_another_kind_is_a_type_error(destination: Any, tmp_path: Path) -> None:
    source = write_plain(tmp_path / "plain.parquet")
    with pytest.raises(TypeError, match="a destination is a path"):
        mc.encrypt_parquet(source, destination, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))


@pytest.mark.parametrize("source", [None, 7, small_table(1)])
def test_a_source_of_another_kind_is_a_type_error(source: Any) -> None:
    with pytest.raises(TypeError, match="a source is a path"):
        mc.encrypt_parquet(source, io.BytesIO(), mc.FileEncryptionProperties(footer_key=FOOTER_KEY))


def test_properties_of_the_other_direction_are_a_type_error(tmp_path: Path) -> None:
    source: Any = write_plain(tmp_path / "plain.parquet")
    encryption: Any = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    decryption: Any = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    with pytest.raises(TypeError, match=r"encryption must be .* pass FileEncryptionProperties"):
        mc.encrypt_parquet(source, io.BytesIO(), decryption)
    with pytest.raises(TypeError, match=r"decryption must be .* pass FileDecryptionProperties"):
        mc.decrypt_parquet(source, io.BytesIO(), encryption)


@pytest.mark.parametrize(
    "error",
    [
        mc.errors.TagMismatchError(
            mc.parquet.ModuleId(mc.parquet.ModuleType.DATA_PAGE, 0, 1, 2, "a"), "a hint"
        ),
        mc.errors.KeyNotFoundError("no key", "a"),
        mc.errors.FormatError("bad"),
    ],
)
def test_errors_survive_a_worker_process(error: mc.ModcryptError) -> None:
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin)) == (type(error), str(error))
    for name in ("module", "column"):
        assert getattr(twin, name, None) == getattr(error, name, None)


def test_what_was_checked_cannot_be_changed() -> None:
    properties: Any = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"id": COLUMN_KEY}
    )
    with pytest.raises(TypeError):
        properties.column_keys["id"] = bytes(16)


@pytest.mark.parametrize("opened_as_object", [False, True])
def test_a_file_object_on_the_source_is_no_destination(
    opened_as_object: bool, tmp_path: Path
) -> None:
    source = write_plain(tmp_path / "plain.parquet")
    before = source.read_bytes()
    with (
        source.open("r+b") as destination,
        source.open("rb") as file,
        pytest.raises(ValueError, match="on the source itself"),
    ):
        mc.encrypt_parquet(
            file if opened_as_object else source,
            destination,
            mc.FileEncryptionProperties(footer_key=FOOTER_KEY),
        )
    assert source.read_bytes() == before


def test_a_source_may_be_mapped_or_anything_with_a_buffer(tmp_path: Path) -> None:
    source = write_plain(tmp_path / "plain.parquet")
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    data: Any
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for data in (mapped, pa.py_buffer(source.read_bytes())):
            encrypted, plain = io.BytesIO(), io.BytesIO()
            mc.encrypt_parquet(data, encrypted, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
            mc.decrypt_parquet(encrypted.getvalue(), plain, keys)
            assert plain.getvalue() == source.read_bytes()


def by_name(metadata: bytes) -> bytes:
    return {b"kf": FOOTER_KEY}[metadata]


def test_properties_without_a_key_are_picklable_and_those_with_one_are_not() -> None:
    properties = mc.FileDecryptionProperties(key_retriever=by_name, on_missing_key="null")
    again = pickle.loads(pickle.dumps(properties))
    assert again == properties
    for keys in ({"footer_key": FOOTER_KEY}, {"column_keys": {"id": FOOTER_KEY}}):
        with pytest.raises(TypeError, match="can't be pickled"):
            pickle.dumps(mc.FileDecryptionProperties(**keys))
