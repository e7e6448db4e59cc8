"""PyArrow reads what we write, and we read what PyArrow writes.

Explicit keys in PyArrow are uniform only; its column keys go through CryptoFactory and key
material (PKMT1), which the tests wrap and unwrap on their own. PyArrow refuses to write Bloom
filters into encrypted files, and does not read them.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import ThriftStruct
from tests.support.cases import each_case
from tests.support.forging import SMALL_FILTER, edit_plain, plain_file
from tests.support.in_memory import decrypt, encrypt
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.parquet_parser import footer_of, modules_of
from tests.support.pkmt1 import open_base64, pkmt1_retriever, seal_base64
from tests.support.tables import nested_table, read_with_pyarrow, small_table

ALGORITHMS = ("AES_GCM_V1", "AES_GCM_CTR_V1")
FOOTERS = ("encrypted", "plaintext")
PREFIXES = ("none", "stored", "unstored")
KEYS = {16: bytes(range(1, 17)), 24: bytes(range(1, 25)), 32: bytes(range(1, 33))}
PREFIX = b"employees_23May2018.part0"

ENCRYPTION = {"algorithm": ALGORITHMS, "footer": FOOTERS, "key_size": (16, 24, 32)}
ENCRYPTION["prefix"] = PREFIXES
WRITER: dict[str, Any] = {
    "version": ("1.0", "2.0"),
    "codec": ("none", "snappy", "gzip", "brotli", "zstd", "lz4"),
    "dictionary": (True, False),
    "checksum": (True, False),
    "index": (True, False),
    "shape": ("flat", "nested", "empty", "row groups", "pages"),
}
BLOOM = {"bloom": (False, True)}


def table_of(case: Case) -> pa.Table:
    if case["shape"] == "nested":
        return nested_table()
    return small_table(60).slice(0, 0 if case["shape"] == "empty" else 60)


def encryption_of(case: Case) -> Case:
    """Return a case with its way to encrypt as one value for each axis."""
    return dict(zip(ENCRYPTION, case["way"], strict=True)) | case


def writer_options(case: Case) -> dict[str, Any]:
    options = {
        "data_page_version": case["version"],
        "compression": case["codec"],
        "use_dictionary": case["dictionary"],
        "write_page_checksum": case["checksum"],
        "write_page_index": case["index"],
    }
    if case.get("bloom"):
        options["bloom_filter_options"] = {"id": {"ndv": 100, "fpp": 0.05}}
    if case["shape"] == "row groups":
        options["row_group_size"] = 7
    if case["shape"] in ("pages", "nested"):
        options |= {"max_rows_per_page": 4, "write_batch_size": 4}
    return options


def properties_of(case: Case) -> dict[str, Any]:
    """The names are the same in PyArrow's function and in ours."""
    return {
        "footer_key": KEYS[case["key_size"]],
        "encryption_algorithm": case["algorithm"],
        "plaintext_footer": case["footer"] == "plaintext",
        "aad_prefix": None if case["prefix"] == "none" else PREFIX,
        "store_aad_prefix": case["prefix"] != "unstored",
    }


def reader_of(case: Case) -> dict[str, Any]:
    """A prefix is given where the file lacks it."""
    prefix = {"aad_prefix": PREFIX} if case["prefix"] == "unstored" else {}
    return {"footer_key": KEYS[case["key_size"]], **prefix}


def write(table: pa.Table, **options: Any) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, **options)
    return bytes(out.getvalue())


def open_file(data: bytes, **properties: Any) -> pq.ParquetFile:
    decryption = pe.create_decryption_properties(**properties) if properties else None
    return pq.ParquetFile(
        pa.BufferReader(data), decryption_properties=decryption, page_checksum_verification=True
    )


def check_that_pyarrow_reads(case: Case) -> None:
    table = table_of(case)
    plain = write(table, **writer_options(case))
    sealed = encrypt(plain, **properties_of(case))

    file = open_file(sealed, **reader_of(case))

    assert file.read().equals(table)
    assert file.schema.equals(open_file(plain).schema)
    assert file.metadata.num_row_groups == open_file(plain).metadata.num_row_groups
    if case["footer"] == "encrypted":  # of a plaintext footer PyArrow reads no sealed statistics
        assert statistics_of(file.metadata) == statistics_of(open_file(plain).metadata)
    for r in range(file.num_row_groups):  # each is found and opened on its own
        assert file.read_row_group(r).equals(open_file(plain).read_row_group(r))


def statistics_of(metadata: pq.FileMetaData) -> list[Any]:
    kept = ("num_values", "statistics", "encodings", "compression", "has_dictionary_page")
    return [
        {name: row_group["columns"][c][name] for name in kept}
        for row_group in metadata.to_dict()["row_groups"]
        for c in range(metadata.num_columns)
    ]


def check_that_modcrypt_reads(case: Case) -> None:
    table, options = table_of(case), writer_options(case)
    twin = write(table, **options)
    sealed = write(
        table, encryption_properties=pe.create_encryption_properties(**properties_of(case)),
        **options,
    )  # fmt: skip
    assert sealed[-4:] == (b"PARE" if case["footer"] == "encrypted" else b"PAR1")

    plain = decrypt(sealed, accept_algorithms=[case["algorithm"]], **reader_of(case))

    assert open_file(plain).read().equals(table)
    ours, theirs = modules_of(plain), modules_of(twin)
    for row_group in ours["footer"][4]:
        assert 7 in row_group  # PyArrow writes RowGroup.ordinal into encrypted files alone
        del row_group[7]
    assert ours == theirs


WAYS = {"way": tuple(itertools.product(*ENCRYPTION.values()))}
"""All combinations of the ways to encrypt, as one axis."""

READING = [encryption_of(case) for case in pairwise(**WAYS, **WRITER, **BLOOM)]
WRITING = [encryption_of(case) for case in pairwise(**WAYS, **WRITER)]


QUICK = ("none", "zstd")
SOME_CODECS = pytest.mark.parametrize(
    "codec",
    [
        pytest.param(codec, marks=[] if codec in QUICK else pytest.mark.slow)
        for codec in WRITER["codec"]
    ],
)


@SOME_CODECS
def test_pyarrow_reads_what_we_encrypt(codec: str) -> None:
    for case in READING:
        if case["codec"] == codec:
            check_that_pyarrow_reads(case)


@SOME_CODECS
def test_we_decrypt_what_pyarrow_encrypts_to_its_own_plaintext_file(codec: str) -> None:
    for case in WRITING:
        if case["codec"] == codec:
            check_that_modcrypt_reads(case)


@pytest.mark.parametrize(("cases", "options"), [(READING, WRITER | BLOOM), (WRITING, WRITER)])
def test_every_way_to_encrypt_meets_every_writer_option(
    cases: list[Case], options: dict[str, Any]
) -> None:
    for name, other in itertools.combinations(options, 2):
        met = {(case[name], case[other]) for case in cases}
        assert met == set(itertools.product(options[name], options[other]))
    for name, values in options.items():
        met = {(*(case[axis] for axis in ENCRYPTION), case[name]) for case in cases}
        assert met == set(itertools.product(*ENCRYPTION.values(), values))


def test_pyarrow_can_not_write_encrypted_bloom_filters_itself() -> None:
    with pytest.raises(OSError, match="bloom filter"):
        write(
            small_table(), bloom_filter_options={"id": SMALL_FILTER},
            encryption_properties=pe.create_encryption_properties(footer_key=FOOTER_KEY),
        )  # fmt: skip


@pytest.mark.parametrize("change", [{"footer_key": OTHER_KEY}, {"aad_prefix": b"another"}, {}])
def test_pyarrow_refuses_our_file_with_the_wrong_key_or_prefix(change: dict[str, bytes]) -> None:
    sealed = encrypt(
        write(small_table()), footer_key=FOOTER_KEY, aad_prefix=PREFIX, store_aad_prefix=False
    )
    with pytest.raises(OSError, match=r"decrypt|AAD|prefix"):
        open_file(sealed, **({"footer_key": FOOTER_KEY} | change))


def test_pyarrow_refuses_our_plaintext_footer_when_it_is_altered() -> None:
    sealed = bytearray(encrypt(write(small_table()), footer_key=FOOTER_KEY, plaintext_footer=True))
    at = sealed.rindex(b"parquet-cpp-arrow")  # created_by
    sealed[at] ^= 1
    with pytest.raises(pa.ArrowInvalid, match="signature"):
        open_file(bytes(sealed), footer_key=FOOTER_KEY)


def test_pyarrow_reads_selected_columns_and_row_groups_of_a_wide_file() -> None:
    table = pa.table({f"c{n}": pa.array(range(n, n + 20)) for n in range(300)})
    sealed = encrypt(write(table, row_group_size=5), footer_key=FOOTER_KEY)
    file = open_file(sealed, footer_key=FOOTER_KEY)
    assert file.read_row_group(2, columns=["c299", "c7"]).to_pydict() == {
        "c7": [17, 18, 19, 20, 21],
        "c299": [309, 310, 311, 312, 313],
    }


def test_hundreds_of_row_groups_and_thousands_of_pages(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array(range(6000), pa.int32()), "s": ["a", None, "b"] * 2000})
    sealed = tmp_path / "sealed.parquet"
    many_groups = write(table, row_group_size=20, write_page_index=True)
    one_row_pages = write(table, max_rows_per_page=1, write_batch_size=1, write_page_index=True)
    for plain in (many_groups, one_row_pages):
        sealed.write_bytes(encrypt(plain, footer_key=FOOTER_KEY))
        assert read_with_pyarrow(sealed, FOOTER_KEY).equals(table)
    assert open_file(many_groups).num_row_groups == 300
    assert len(modules_of(one_row_pages)["parts"][0, 0]["pages"]) == 6001  # with the dictionary


# --- plaintext footers as readers without keys see them ------------------------------------------


def test_pyarrow_without_keys_reads_the_plaintext_columns_of_our_plaintext_footer() -> None:
    table = small_table()
    sealed = encrypt(
        write(table, write_page_index=True), footer_key=FOOTER_KEY, plaintext_footer=True,
        column_keys={"address": COLUMN_KEY}, plaintext_columns=["id", "tags"],
    )  # fmt: skip
    keyless = open_file(sealed)
    assert keyless.read(columns=["id", "tags"]).equals(table.select(["id", "tags"]))
    assert keyless.schema_arrow.equals(table.schema)
    chunks = footer_of(sealed)[4][0][1]  # the signature stands after the struct's end
    plain_chunks = footer_of(write(table, write_page_index=True))[4][0][1]
    for name, chunk, plain in zip(keyless.schema.names, chunks, plain_chunks, strict=True):
        if name in ("id", "element"):
            assert chunk[3][12] == plain[3][12]  # statistics
        else:  # nothing but what a reader needs to skip the chunk
            assert chunk[3].keys() <= {1, 2, 3, 4, 5, 6, 7, 9, 11}


# --- column keys, through CryptoFactory ----------------------------------------------------------

MASTERS = {"kf": b"footer master 16", "kc1": b"column master 1!", "kc2": b"column master 2!"}


class LocalKms(pe.KmsClient):  # type: ignore[misc]  # pyarrow ships no types
    """Wraps under master keys that it knows, with the master key's id as AAD."""

    def __init__(self, configuration: Any) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        aad = master_key_identifier.encode()
        return seal_base64(MASTERS[master_key_identifier], key_bytes, aad).encode()

    def unwrap_key(self, wrapped_key: bytes | str, master_key_identifier: str) -> bytes:
        wrapped = wrapped_key if isinstance(wrapped_key, str) else wrapped_key.decode()
        aad = master_key_identifier.encode()
        return open_base64(MASTERS[master_key_identifier], wrapped, aad)


def factory() -> pe.CryptoFactory:
    return pe.CryptoFactory(LocalKms)


COLUMN_MASTERS = {
    "kc1": ["id", "address.zip", "tags.list.element"],
    "kc2": ["name", "score"],
}


@each_case("case", pairwise(
    algorithm=ALGORITHMS, footer=FOOTERS, wrapping=("single", "double"), bits=(128, 192, 256),
    version=("1.0", "2.0"), checksum=(True, False),
), ids=case_name)  # fmt: skip
def test_we_decrypt_pyarrows_column_keys_with_a_key_retriever(case: Case) -> None:
    table = small_table()
    options = {
        "write_page_index": True,
        "data_page_version": case["version"],
        "write_page_checksum": case["checksum"],
        "row_group_size": 20,
    }
    configuration = pe.EncryptionConfiguration(
        footer_key="kf",
        column_keys=COLUMN_MASTERS,
        encryption_algorithm=case["algorithm"],
        plaintext_footer=case["footer"] == "plaintext",
        double_wrapping=case["wrapping"] == "double",
        data_key_length_bits=case["bits"],
        internal_key_material=True,
    )
    properties = factory().file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    sealed = write(table, encryption_properties=properties, **options)
    retrieve, found = pkmt1_retriever(MASTERS), []

    def noting(metadata: bytes) -> bytes:
        found.append(retrieve(metadata))
        return found[-1]

    plain = decrypt(sealed, key_retriever=noting, accept_algorithms=[case["algorithm"]])

    assert open_file(plain).read().equals(table)
    assert modules_of(plain)["parts"] == modules_of(write(table, **options))["parts"]
    assert {len(key) * 8 for key in found} == {case["bits"]}
    assert len(found) == 6  # footer and five columns, each asked for once


def test_a_dropped_master_key_drops_its_columns_and_nothing_else() -> None:
    table = small_table()
    configuration = pe.EncryptionConfiguration(footer_key="kf", column_keys=COLUMN_MASTERS)
    properties = factory().file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    sealed = write(table, encryption_properties=properties)
    retrieve = pkmt1_retriever(MASTERS)

    def without_kc2(metadata: bytes) -> bytes | None:
        return None if json.loads(metadata)["masterKeyID"] == "kc2" else retrieve(metadata)

    with pytest.raises(mc.errors.KeyNotFoundError) as caught:
        decrypt(sealed, key_retriever=without_kc2)
    assert caught.value.column == "name"
    plain = decrypt(sealed, key_retriever=without_kc2, on_missing_key="drop")
    assert open_file(plain).read().equals(table.drop_columns(["name", "score"]))


def key_material(key: bytes, master_id: str, **fields: Any) -> bytes:
    material = {
        "keyMaterialType": "PKMT1",
        "internalStorage": True,
        "masterKeyID": master_id,
        "wrappedDEK": seal_base64(MASTERS[master_id], key, master_id.encode()),
        "doubleWrapping": False,
        **fields,
    }
    return json.dumps(material).encode()


@pytest.mark.parametrize("case", pairwise(
    algorithm=ALGORITHMS, footer=FOOTERS, version=("1.0", "2.0"), wrapping=("single", "double"),
), ids=case_name)  # fmt: skip
def test_pyarrow_reads_our_column_keys_and_groups(case: Case) -> None:
    table = small_table()
    keys = {"id": (COLUMN_KEY, "kc1"), "address": (OTHER_KEY, "kc2"), "tags": (OTHER_KEY, "kc2")}
    footer_fields = {"isFooterKey": True, "kmsInstanceID": "DEFAULT", "kmsInstanceURL": "DEFAULT"}
    column_metadata = {
        name: key_material(key, master, isFooterKey=False) for name, (key, master) in keys.items()
    }
    if case["wrapping"] == "double":
        column_metadata["id"] = double_wrapped_material(COLUMN_KEY, "kc1")
    sealed = encrypt(
        write(table, data_page_version=case["version"], row_group_size=20),
        footer_key=FOOTER_KEY,
        footer_key_metadata=key_material(FOOTER_KEY, "kf", **footer_fields),
        column_keys={name: key for name, (key, _) in keys.items()},
        column_key_metadata=column_metadata,
        plaintext_columns=["score"],
        plaintext_footer=case["footer"] == "plaintext",
        encryption_algorithm=case["algorithm"],
    )
    properties = factory().file_decryption_properties(pe.KmsConnectionConfig())
    file = pq.ParquetFile(pa.BufferReader(sealed), decryption_properties=properties)
    assert file.read().equals(table)


def double_wrapped_material(key: bytes, master_id: str) -> bytes:
    kek, kek_id = b"a KEK of 16 byte", b"id of that KEK!!"
    return key_material(
        key,
        master_id,
        isFooterKey=False,
        doubleWrapping=True,
        keyEncryptionKeyID=base64.b64encode(kek_id).decode(),
        wrappedKEK=seal_base64(MASTERS[master_id], kek, master_id.encode()),
        wrappedDEK=seal_base64(kek, key, kek_id),
    )


def test_an_offset_of_zero_for_no_dictionary_does_not_reach_readers(tmp_path: Path) -> None:
    """Some writers say 0 for none; Arrow C++ takes the field's presence for a dictionary."""

    def say_zero(metadata: ThriftStruct) -> None:
        for chunk in metadata.row_groups[0].columns:
            assert chunk.meta_data.dictionary_page_offset is None
            chunk.meta_data.dictionary_page_offset = 0

    table = pa.table({"a": [1, 2, 3]})
    source = edit_plain(plain_file(table, use_dictionary=False), say_zero)
    assert pq.read_table(pa.BufferReader(source)).equals(table)
    mc.encrypt_parquet(source, tmp_path / "out", mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    assert read_with_pyarrow(tmp_path / "out", FOOTER_KEY).equals(table)
    back = io.BytesIO()
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    mc.decrypt_parquet(tmp_path / "out", back, keys)
    assert pq.read_table(pa.BufferReader(back.getvalue())).equals(table)
