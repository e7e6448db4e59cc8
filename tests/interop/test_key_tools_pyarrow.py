"""PyArrow's CryptoFactory and our KeyTools, by one key service: files go both ways.

Files with internal and external key material, as written and after either has rotated them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from pyarrow._parquet_encryption import FileSystemKeyMaterialStore

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.java.key_tools_java import MemoryKms
from tests.support.kms.pyarrow_key_tools import (
    LOCAL,
    MASTERS,
    OURS,
    ArrowKms,
    factory,
    pyarrow_configuration,
    pyarrow_reads,
    pyarrow_writes,
)
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.pkmt1 import pkmt1_retriever
from tests.support.tables import small_table

GCM, CTR = "AES_GCM_V1", "AES_GCM_CTR_V1"

KEYS = {"uniform": 1, "columns": 6}
MASTERS_USED = {"uniform": 1, "columns": 3}


@pytest.fixture
def kms() -> MemoryKms:
    """Return a new key service."""
    return MemoryKms.of(MASTERS)


def policy_of(case: Mapping[str, Any], **more: Any) -> mc.Policy:
    return mc.Policy(
        footer_key="kf",
        column_keys={} if case["layout"] == "uniform" else OURS,
        plaintext_columns=[] if case["layout"] == "uniform" else ["flag"],
        encryption_algorithm=case["algorithm"],
        plaintext_footer=case["footer"] == "plaintext",
        double_wrapping=case["wrapping"] == "double",
        internal_key_material=case["material"] == "internal",
        data_key_length_bits=case["bits"],
        **more,
    )


def write_with(
    writer: str, path: Path, kms: MemoryKms, case: Mapping[str, Any], table: pa.Table
) -> None:
    if writer == "pyarrow":
        pyarrow_writes(path, table, kms, case)
    else:
        mc.write_table(table, path, mc.KeyTools(kms).encryption(policy_of(case)))


def data_key_lengths(path: Path, kms: MemoryKms, algorithm: str) -> set[int]:
    """Unwrap the file's keys by code that is neither PyArrow's nor modcrypt's."""
    beside = path.with_name(f"_KEY_MATERIAL_FOR_{path.name}.json")
    external = json.loads(beside.read_text()) if beside.exists() else None
    unwrap, found = pkmt1_retriever(kms.newest(), external), set()

    def retrieve(metadata: bytes) -> bytes:
        key = unwrap(metadata)
        found.add(len(key))
        return key

    properties = mc.FileDecryptionProperties(key_retriever=retrieve, accept_algorithms=[algorithm])
    mc.decrypt_parquet(path, io.BytesIO(), properties)
    return found


MATRIX: dict[str, Any] = {
    "wrapping": ("double", "single"),
    "material": ("internal", "external"),
    "footer": ("encrypted", "plaintext"),
    "algorithm": (GCM, CTR),
    "bits": (128, 192, 256),
    "layout": ("columns", "uniform"),
}
CASES = pairwise(**MATRIX)
PAGES_MATRIX = {**MATRIX, "version": ("1.0", "2.0"), "codec": ("none", "snappy", "zstd")}
PAGES = pairwise(**PAGES_MATRIX)


# --- both directions -----------------------------------------------------------------------------


@each_case("case", PAGES, ids=case_name)
def test_we_read_what_pyarrow_wrote(kms: MemoryKms, tmp_path: Path, case: Case) -> None:
    table, path = small_table(), tmp_path / "theirs.parquet"
    options = {"data_page_version": case["version"], "compression": case["codec"]}
    pyarrow_writes(path, table, kms, case, row_group_size=20, **options)
    beside = tmp_path / "_KEY_MATERIAL_FOR_theirs.parquet.json"
    assert beside.exists() == (case["material"] == "external")

    kms.calls.clear()
    found = mc.read_table(path, mc.KeyTools(kms).decryption(accept_algorithms=[case["algorithm"]]))

    assert found.equals(table)
    calls = MASTERS_USED if case["wrapping"] == "double" else KEYS
    assert kms.count("unwrap") == calls[case["layout"]]
    assert kms.count("wrap") == 0
    assert data_key_lengths(path, kms, case["algorithm"]) == {case["bits"] // 8}


@each_case("case", pairwise(**PAGES_MATRIX, kek=(128, 192, 256)), ids=case_name)
def test_pyarrow_reads_what_we_write(kms: MemoryKms, tmp_path: Path, case: Case) -> None:
    table, path = small_table(), tmp_path / "ours.parquet"
    plain = tmp_path / "plain"
    options = {"data_page_version": case["version"], "compression": case["codec"]}
    pq.write_table(table, plain, row_group_size=20, **options)

    policy = policy_of(case, kek_length_bits=case["kek"])
    mc.encrypt_parquet(plain, path, mc.KeyTools(kms).encryption(policy))

    calls = MASTERS_USED if case["wrapping"] == "double" else KEYS
    assert kms.count("wrap") == calls[case["layout"]]
    assert path.read_bytes()[-4:] == (b"PAR1" if case["footer"] == "plaintext" else b"PARE")
    assert pyarrow_reads(path, kms).equals(table)
    assert set(kms.lengths) == {case["kek" if case["wrapping"] == "double" else "bits"] // 8}
    assert data_key_lengths(path, kms, case["algorithm"]) == {case["bits"] // 8}


@pytest.mark.parametrize("wrapping", ["double", "single"])
def test_pyarrow_finds_our_external_key_material_as_it_would_write_it(
    kms: MemoryKms, tmp_path: Path, wrapping: str
) -> None:
    case = {**CASES[0], "layout": "columns", "material": "external", "wrapping": wrapping}
    mc.write_table(small_table(), tmp_path / "ours", mc.KeyTools(kms).encryption(policy_of(case)))
    pyarrow_writes(tmp_path / "theirs", small_table(), kms, case)

    ours, theirs = (reported_by_pyarrow(tmp_path / name) for name in ("ours", "theirs"))

    assert ours == theirs
    assert len(ours) == 6
    assert sorted(key["master_key_id"] for key in ours) == ["kc1"] * 3 + ["kc2"] * 2 + ["kf"]


def reported_by_pyarrow(path: Path) -> list[dict[str, Any]]:
    store = FileSystemKeyMaterialStore.for_file(path, LOCAL)
    found = [(name.decode(), store.get_key_material(name)) for name in store.get_key_id_set()]
    assert {name for name, _ in found} == {"footerKey", *(f"columnKey{n}" for n in range(5))}
    reported = [
        {
            "master_key_id": material.master_key_id,
            "footer": (name == "footerKey", material.is_footer_key),
            "double": material.is_double_wrapped,
            "dek": len(material.wrapped_dek),
            "kek": len(material.wrapped_kek) if material.is_double_wrapped else None,
            "instance": (material.kms_instance_id, material.kms_instance_url)
            if material.is_footer_key
            else None,
        }
        for name, material in found
    ]
    return sorted(reported, key=str)


@pytest.mark.parametrize("second", ["modcrypt", "pyarrow"])
@pytest.mark.parametrize("first", ["modcrypt", "pyarrow"])
def test_a_file_with_external_material_is_replaced_by_either_and_read_by_both(
    kms: MemoryKms, tmp_path: Path, first: str, second: str
) -> None:
    path, case = tmp_path / "data.parquet", {**CASES[0], "material": "external"}
    for rows, writer in ((10, first), (50, second)):
        write_with(writer, path, kms, case, small_table(rows))
    assert pyarrow_reads(path, kms).equals(small_table())
    decryption = mc.KeyTools(kms).decryption(accept_algorithms=[case["algorithm"]])
    assert mc.read_table(path, decryption).equals(small_table())
    beside = json.loads((tmp_path / "_KEY_MATERIAL_FOR_data.parquet.json").read_text())
    assert len(beside) == KEYS[case["layout"]]  # none of what was replaced


@pytest.mark.parametrize("ends", ["well", "badly"])
@pytest.mark.parametrize("first", ["modcrypt", "pyarrow"])
def test_pyarrow_reads_the_old_file_until_there_is_a_new_one(
    kms: MemoryKms, tmp_path: Path, first: str, ends: str
) -> None:
    path, case = tmp_path / "data.parquet", {**CASES[0], "material": "external"}
    beside = tmp_path / "_KEY_MATERIAL_FOR_data.parquet.json"
    write_with(first, path, kms, case, small_table(10))
    before, encryption = beside.read_bytes(), mc.KeyTools(kms).encryption(policy_of(case))

    def replace_it() -> None:
        with mc.ParquetWriter(path, small_table().schema, encryption) as writer:
            writer.write_table(small_table())
            assert beside.read_bytes() != before  # the new keys are there already
            assert pyarrow_reads(path, kms).equals(small_table(10))
            if ends == "badly":
                raise ZeroDivisionError

    if ends == "badly":
        with pytest.raises(ZeroDivisionError):
            replace_it()
        assert json.loads(beside.read_bytes()) == json.loads(before)
    else:
        replace_it()
    assert pyarrow_reads(path, kms).num_rows == (10 if ends == "badly" else 50)


@pytest.mark.parametrize("footer", ["encrypted", "plaintext"])
@pytest.mark.parametrize("material", ["internal", "external"])
def test_an_aad_prefix_and_a_key_service_go_together(
    kms: MemoryKms, tmp_path: Path, material: str, footer: str
) -> None:
    """PyArrow has no way to write such a file, and reads it."""
    path, other = tmp_path / "part-0.parquet", tmp_path / "part-1.parquet"
    case = {**CASES[0], "algorithm": GCM, "footer": footer, "material": material}
    policy = policy_of(case, aad_prefix="people/{name}")
    tools = mc.KeyTools(kms)
    mc.write_table(small_table(), path, tools.encryption(policy))

    assert b"people/part-0.parquet" in path.read_bytes()
    assert pyarrow_reads(path, kms).equals(small_table())
    assert mc.read_table(path, tools.decryption(policy)).equals(small_table())

    path.rename(other)
    for beside in tmp_path.glob("_KEY_MATERIAL_FOR_part-0*"):
        beside.rename(tmp_path / "_KEY_MATERIAL_FOR_part-1.parquet.json")
    assert pyarrow_reads(other, kms).equals(small_table())  # it takes the prefix of the file
    with pytest.raises(mc.errors.AadPrefixError):
        mc.read_table(other, tools.decryption(policy))


@pytest.mark.parametrize("material", ["internal", "external"])
def test_an_aad_prefix_that_is_not_stored_shuts_pyarrow_out(
    kms: MemoryKms, tmp_path: Path, material: str
) -> None:
    case = {**CASES[0], "algorithm": GCM, "material": material}
    policy = policy_of(case, aad_prefix="people", store_aad_prefix=False)
    path, tools = tmp_path / "data.parquet", mc.KeyTools(kms)
    mc.write_table(small_table(), path, tools.encryption(policy))
    with pytest.raises(OSError, match="AAD prefix"):
        pyarrow_reads(path, kms)
    assert mc.read_table(path, tools.decryption(policy)).equals(small_table())


@pytest.mark.parametrize("wrapping", ["double", "single"])
@pytest.mark.parametrize("material", ["internal", "external"])
def test_a_master_key_that_is_not_there_costs_its_columns_alone(
    kms: MemoryKms, tmp_path: Path, material: str, wrapping: str
) -> None:
    path, table = tmp_path / "theirs.parquet", small_table()
    case = {**CASES[0], "algorithm": GCM, "wrapping": wrapping, "material": material}
    pyarrow_writes(path, table, kms, {**case, "layout": "columns"})
    tools = mc.KeyTools(kms.without("kc2"))
    with pytest.raises(mc.errors.KeyNotFoundError, match="kc2") as caught:
        mc.read_table(path, tools.decryption())
    assert "column" in str(caught.value)
    assert mc.read_table(path, tools.decryption(), columns=["id", "day"]).num_columns == 2
    left = mc.read_table(path, tools.decryption(on_missing_key="drop"))
    assert left.equals(table.drop_columns(["name", "score"]))


def test_our_clients_serve_pyarrow_and_pyarrows_serve_us(kms: MemoryKms, tmp_path: Path) -> None:
    path, case = tmp_path / "data.parquet", {**CASES[0], "layout": "columns"}
    ours = pe.CryptoFactory(mc.kms.as_pyarrow_client(kms))
    properties = ours.file_encryption_properties(
        pe.KmsConnectionConfig(), pyarrow_configuration({**case, "material": "internal"})
    )
    pq.write_table(small_table(), path, encryption_properties=properties)
    assert kms.count("wrap") == 3
    theirs = mc.kms.from_pyarrow_client(ArrowKms(kms))
    decryption = mc.KeyTools(theirs).decryption(accept_algorithms=[case["algorithm"]])
    assert mc.read_table(path, decryption).equals(small_table())
    assert kms.count("unwrap") == 3


# --- rotation ------------------------------------------------------------------------------------

ROTATION: dict[str, Any] = {
    "what": ("mek", "kek", "dek"),
    "to": ("newest versions", "another master key"),
    "writer": ("pyarrow", "modcrypt"),
    **MATRIX,
}


def body(path: Path) -> bytes:
    """Return the bytes before the footer."""
    data = path.read_bytes()
    return data[: len(data) - 8 - int.from_bytes(data[-8:-4], "little")]


@each_case("case", pairwise(**ROTATION), ids=case_name)
def test_pyarrow_reads_what_we_rotate(kms: MemoryKms, tmp_path: Path, case: Case) -> None:
    path, table, bits = tmp_path / "data.parquet", small_table(), case["bits"] // 8
    write_with(case["writer"], path, kms, case, table)
    before, pages = path.read_bytes(), body(path)
    masters: dict[str, str] = {}
    if case["to"] == "newest versions":
        kms.rotate()
    else:
        masters = {name: f"new {name}" for name in MASTERS}
        for old, new in masters.items():
            kms.versions[new] = [MASTERS[old][::-1]]
    tools = mc.KeyTools(kms)
    decryption = tools.decryption(accept_algorithms=[case["algorithm"]])

    (file,) = mc.jobs.rotate_keys(
        path, tools, what=case["what"], new_master_keys=masters, decryption=decryption
    )

    assert (file.result, file.message) == ("rotated", "")
    kms.destroy_old()
    after = kms.without(*masters)
    assert pyarrow_reads(path, after).equals(table)
    decryption = mc.KeyTools(after).decryption(accept_algorithms=[case["algorithm"]])
    assert mc.read_table(path, decryption).equals(table)
    assert data_key_lengths(path, after, case["algorithm"]) == {bits}
    if case["what"] != "dek":
        assert body(path) == pages
    if case["material"] == "external":
        assert (path.read_bytes() == before) == (case["what"] != "dek")


@each_case("case", pairwise(
    after=("double", "single"), writer=("pyarrow", "modcrypt"), **MATRIX,
), ids=case_name)  # fmt: skip
def test_we_read_and_rotate_what_pyarrow_has_rotated(
    kms: MemoryKms, tmp_path: Path, case: Case
) -> None:
    """PyArrow rotates external key material alone; it may turn single into double wrapping."""
    path, table, case = tmp_path / "data.parquet", small_table(), {**case, "material": "external"}
    write_with(case["writer"], path, kms, case, table)
    algorithms = [case["algorithm"]]

    for who in ("pyarrow", "modcrypt", "pyarrow"):
        kms.rotate()
        if who == "pyarrow":
            factory(kms).rotate_master_keys(
                pe.KmsConnectionConfig(), path, LOCAL, double_wrapping=case["after"] == "double"
            )
        else:
            tools = mc.KeyTools(kms)
            decryption = tools.decryption(accept_algorithms=algorithms)
            (file,) = mc.jobs.rotate_keys(path, tools, what="kek", decryption=decryption)
            assert file.result == "rotated"
        kms.destroy_old()
        assert pyarrow_reads(path, kms).equals(table)
        decryption = mc.KeyTools(kms).decryption(accept_algorithms=algorithms)
        assert mc.read_table(path, decryption).equals(table)

    beside = json.loads((tmp_path / "_KEY_MATERIAL_FOR_data.parquet.json").read_text())
    doubles = {json.loads(text)["doubleWrapping"] for text in beside.values()}
    assert doubles == {case["after"] == "double"}


@each_case("times", [1, 2])
@each_case("case", pairwise(after=("double", "single"), **MATRIX), ids=case_name)
def test_pyarrow_rotates_a_file_that_we_replaced(
    kms: MemoryKms, tmp_path: Path, case: Case, times: int
) -> None:
    """It rotates no file without a `footerKey`, and takes all other names for column keys."""
    path, table, case = tmp_path / "data.parquet", small_table(), {**case, "material": "external"}
    for rows in (5, 20, 50)[-times - 1 :]:
        write_with("modcrypt", path, kms, case, small_table(rows))
    kms.rotate()
    factory(kms).rotate_master_keys(
        pe.KmsConnectionConfig(), path, LOCAL, double_wrapping=case["after"] == "double"
    )
    kms.destroy_old()
    decryption = mc.KeyTools(kms).decryption(accept_algorithms=[case["algorithm"]])
    assert mc.read_table(path, decryption).equals(table)
    assert pyarrow_reads(path, kms).equals(table)

    write_with("modcrypt", path, kms, case, table)
    assert pyarrow_reads(path, kms).equals(table)
    tools = mc.KeyTools(kms)
    decryption = tools.decryption(accept_algorithms=[case["algorithm"]])
    (file,) = mc.jobs.rotate_keys(path, tools, decryption=decryption)
    assert file.result == "rotated"
    assert pyarrow_reads(path, kms).equals(table)


# --- datasets, and what they cost the key service ------------------------------------------------


def test_we_read_the_dataset_that_pyarrow_wrote(kms: MemoryKms, tmp_path: Path) -> None:
    table = small_table().append_column("part", pa.array([n % 4 for n in range(50)]))
    encryption = ds.ParquetEncryptionConfig(
        factory(kms),
        pe.KmsConnectionConfig(),
        pyarrow_configuration({**CASES[0], "algorithm": GCM, "layout": "columns"}),
    )
    written = ds.ParquetFileFormat().make_write_options(encryption_config=encryption)
    ds.write_dataset(
        table, tmp_path, format="parquet", file_options=written, partitioning=["part"],
        partitioning_flavor="hive",
    )  # fmt: skip
    kms.calls.clear()
    found = mc.read_table(tmp_path, mc.KeyTools(kms).decryption())
    assert found.sort_by("id").select(table.column_names).equals(table.cast(found.schema))
    assert sorted(kms.calls) == [("unwrap", name) for name in ("kc1", "kc2", "kf")]


@pytest.mark.parametrize("wrapping", ["double", "single"])
def test_pyarrow_reads_the_dataset_that_we_wrote(
    kms: MemoryKms, tmp_path: Path, wrapping: str
) -> None:
    table = small_table().append_column("part", pa.array([n % 4 for n in range(50)]))
    case = {**CASES[0], "algorithm": GCM, "material": "internal", "layout": "columns"}
    policy = policy_of({**case, "wrapping": wrapping}, aad_prefix="people/{name}")
    mc.write_dataset(table, tmp_path, mc.KeyTools(kms).encryption(policy), partitioning=["part"])
    decryption = ds.ParquetDecryptionConfig(
        factory(kms), pe.KmsConnectionConfig(), pe.DecryptionConfiguration()
    )
    options = ds.ParquetFragmentScanOptions(decryption_config=decryption)
    format_ = ds.ParquetFileFormat(default_fragment_scan_options=options)
    found = ds.dataset(tmp_path, format=format_, partitioning="hive").to_table()
    assert found.sort_by("id").select(table.column_names).equals(table.cast(found.schema))


FILES = 40


@pytest.mark.parametrize("material", ["internal", "external"])
def test_many_files_cost_one_call_for_each_kek(
    kms: MemoryKms, tmp_path: Path, material: str
) -> None:
    case = {**CASES[0], "algorithm": GCM, "material": material, "layout": "columns"}
    case["wrapping"] = "double"
    writing, table = mc.KeyTools(kms), small_table(1)
    for n in range(FILES):
        mc.write_table(table, tmp_path / f"{n:03}.parquet", writing.encryption(policy_of(case)))
    assert sorted(kms.calls) == [("wrap", name) for name in ("kc1", "kc2", "kf")]

    kms.calls.clear()
    found = mc.read_table(tmp_path, mc.KeyTools(kms).decryption())
    assert found.num_rows == FILES
    assert sorted(kms.calls) == [("unwrap", name) for name in ("kc1", "kc2", "kf")]

    kms.calls.clear()
    pyarrow = factory(kms)  # does with one factory what we do
    for path in sorted(tmp_path.glob("*.parquet"))[:10]:
        properties = pyarrow.file_decryption_properties(
            pe.KmsConnectionConfig(), pe.DecryptionConfiguration(), path, LOCAL
        )
        with pq.ParquetFile(path, decryption_properties=properties) as file:
            assert file.read().num_rows == 1
    assert sorted(kms.calls) == [("unwrap", name) for name in ("kc1", "kc2", "kf")]

    kms.calls.clear()
    kms.rotate()
    rotated = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))
    assert [file.result for file in rotated] == ["rotated"] * FILES
    opened = 1 if material == "internal" else 0  # the footers, which are sealed anew
    proofs = 3  # one for each master key
    assert (kms.count("unwrap"), kms.count("wrap")) == (3 + opened + proofs, 3)
    kms.destroy_old()
    for n in (0, 20, FILES - 1):
        assert pyarrow_reads(tmp_path / f"{n:03}.parquet", kms).equals(table)


def test_many_files_of_pyarrow_cost_one_call_for_each_kek_to_read(
    kms: MemoryKms, tmp_path: Path
) -> None:
    case = {**CASES[0], "algorithm": GCM, "layout": "columns", "wrapping": "double"}
    pyarrow, configuration = factory(kms), pyarrow_configuration({**case, "material": "internal"})
    for n in range(FILES):
        properties = pyarrow.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
        pq.write_table(small_table(1), tmp_path / f"{n:03}", encryption_properties=properties)
    assert sorted(kms.calls) == [("wrap", name) for name in ("kc1", "kc2", "kf")]
    kms.calls.clear()
    assert mc.read_table(tmp_path, mc.KeyTools(kms).decryption()).num_rows == FILES
    assert sorted(kms.calls) == [("unwrap", name) for name in ("kc1", "kc2", "kf")]
