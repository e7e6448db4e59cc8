"""Files written and read with keys from a key service, by every way that modcrypt has."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from modcrypt import KeyTools, Policy
from modcrypt.errors import (
    AadPrefixError,
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    PlaintextError,
    UnsupportedFormatError,
)
from tests.support.cases import each_case
from tests.support.kms.memory_kms import MASTERS, MemoryKms, PyArrowKms
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.pkmt1 import open_data_key, unwrap_by
from tests.support.sleeps import note_sleeps
from tests.support.tables import small_table

TABLE = small_table(20)
POLICY = Policy(
    footer_key="kf",
    column_keys={"kc1": ["name", "address"], "kc2": ["score"]},
    plaintext_columns=["day"],
)
FLAT = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"], "c": [0.5, 1.5, 2.5]})
FLAT_POLICY = Policy(footer_key="kf", column_keys={"kc1": ["a"], "kc2": ["b"]})


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    note_sleeps(monkeypatch)


def material_in(path: Path) -> list[dict[str, Any]]:
    """Return a file's key material, internal or external, without modcrypt."""
    beside = path.with_name(f"_KEY_MATERIAL_FOR_{path.name}.json")
    if beside.exists():
        return [json.loads(text) for text in json.loads(beside.read_text()).values()]
    found = re.findall(rb'\{"keyMaterialType":"PKMT1"[^}]*\}', path.read_bytes())
    return [json.loads(material) for material in found]


def data_key(material: dict[str, Any]) -> bytes:
    """Unwrap the data key of material by `cryptography` alone."""
    return open_data_key(material, unwrap_by(MASTERS))


# --- all of it together ---------------------------------------------------------------------------


@each_case("case", pairwise(
    prefix=((None, True), ("lake", True), ("lake", False), ("x/{name}", True), ("x/{name}", False)),
    algorithm=("AES_GCM_V1", "AES_GCM_CTR_V1"), plaintext_footer=(False, True),
    double=(True, False), internal=(True, False), bits=((128, 256), (192, 128), (256, 192)),
), ids=case_name)  # fmt: skip
def test_every_kind_of_file_comes_back(case: Case, tmp_path: Path) -> None:
    (prefix, stored), (data_bits, kek_bits) = case["prefix"], case["bits"]
    algorithm, plaintext_footer = case["algorithm"], case["plaintext_footer"]
    path, double, internal = tmp_path / "a.parquet", case["double"], case["internal"]
    policy = replace(
        POLICY,
        aad_prefix=prefix,
        store_aad_prefix=stored,
        encryption_algorithm=algorithm,
        plaintext_footer=plaintext_footer,
        double_wrapping=double,
        internal_key_material=internal,
        data_key_length_bits=data_bits,
        kek_length_bits=kek_bits,
    )
    kms = MemoryKms()
    mc.write_table(TABLE, path, KeyTools.from_policy(policy, kms=kms).encryption(policy))
    assert path.read_bytes()[:4] == (b"PAR1" if plaintext_footer else b"PARE")
    if not internal or plaintext_footer:
        found = material_in(path)
        assert {len(data_key(material)) for material in found} == {data_bits // 8}
        assert {material["doubleWrapping"] for material in found} == {double}
    assert {len(key) for key in kms.learned} == {(kek_bits if double else data_bits) // 8}
    assert mc.read_table(path, KeyTools(kms).decryption(policy)).equals(TABLE)
    if algorithm == "AES_GCM_CTR_V1":
        with pytest.raises(UnsupportedFormatError):
            mc.read_table(path, KeyTools(kms).decryption())
    if prefix is not None:
        free = KeyTools(kms).decryption(accept_algorithms=[algorithm])
        if stored:
            assert mc.read_table(path, free).equals(TABLE)
        else:
            with pytest.raises(AadPrefixError):
                mc.read_table(path, free)


@pytest.mark.parametrize("levels", ["encrypted", "plaintext"])
def test_the_policys_layout_of_data_pages_is_kept(levels: str, tmp_path: Path) -> None:
    """Levels in the clear are what parquet-java reads, and what PyArrow doesn't."""
    tools = KeyTools(MemoryKms())
    policy = replace(FLAT_POLICY, data_page_v2_levels=levels, internal_key_material=False)
    path = tmp_path / "a"
    mc.write_table(FLAT, path, tools.encryption(policy), data_page_version="2.0")
    assert mc.read_table(path, tools.decryption(policy)).equals(FLAT)
    properties = pe.CryptoFactory(PyArrowKms).file_decryption_properties(
        pe.KmsConnectionConfig(), parquet_file_path=str(path)
    )
    if levels == "encrypted":
        assert pq.read_table(path, decryption_properties=properties).equals(FLAT)
    else:
        with pytest.raises(OSError, match="ciphertext length"):
            pq.read_table(path, decryption_properties=properties)


def test_columns_lie_under_the_keys_that_the_policy_says(tmp_path: Path) -> None:
    kms = MemoryKms()
    tools = KeyTools(kms)
    path = tmp_path / "a.parquet"
    mc.write_table(TABLE, path, tools.encryption(POLICY))
    scanned = {row.column: row.master_key_id for row in mc.jobs.scan_keys(path, tools)}
    assert scanned == {
        None: "kf",
        "name": "kc1",
        "address.zip": "kc1",
        "address.city": "kc1",
        "score": "kc2",
    }
    kms.denied |= {"kc1", "kc2"}
    readable = KeyTools(kms).decryption(on_missing_key="drop")
    assert set(mc.read_table(path, readable).column_names) == set(TABLE.column_names) - {
        "name",
        "address",
        "score",
    }


# --- every way in and out -------------------------------------------------------------------------


READERS: dict[str, Callable[[Path, Any], pa.Table]] = {
    "read_table": lambda path, how: mc.read_table(path, how),
    "open_parquet": lambda path, how: pq.read_table(mc.open_parquet(path, how)),
    "ParquetFile": lambda path, how: _whole(path, how),
    "iter_batches": lambda path, how: pa.Table.from_batches(
        list(_batches(path, how)), schema=TABLE.schema
    ),
    "read_table of a list": lambda path, how: mc.read_table([path], how),
    "a file system": lambda path, how: mc.read_table(
        path.name, how, filesystem=pafs.SubTreeFileSystem(str(path.parent), pafs.LocalFileSystem())
    ),
    "a URL": lambda path, how: mc.read_table(path.as_uri(), how),
    "a str": lambda path, how: mc.read_table(str(path), how),
}


def _whole(path: Path, how: Any) -> pa.Table:
    with mc.ParquetFile(path, how) as file:
        return file.read()


def _batches(path: Path, how: Any) -> Any:
    with mc.ParquetFile(path, how) as file:
        yield from file.iter_batches(batch_size=7)


@each_case("reader", READERS)
@each_case("internal", [True, False], ids=["internal", "external"])
def test_every_reader_takes_keys_from_the_service(
    internal: bool, reader: str, tmp_path: Path
) -> None:
    policy = replace(POLICY, internal_key_material=internal, aad_prefix="lake/{name}")
    path = tmp_path / "a.parquet"
    mc.write_table(TABLE, path, KeyTools(MemoryKms()).encryption(policy))
    found = READERS[reader](path, KeyTools(MemoryKms()).decryption(policy))
    assert found.equals(TABLE)


@pytest.mark.parametrize("internal", [True, False], ids=["internal", "external"])
def test_a_dataset_in_folders_comes_back(internal: bool, tmp_path: Path) -> None:
    policy = replace(FLAT_POLICY, internal_key_material=internal, aad_prefix="lake/{name}")
    table = FLAT.append_column("day", pa.array([1, 2, 1], pa.int32()))
    kms = MemoryKms()
    paths = mc.write_dataset(
        table, tmp_path / "lake", KeyTools(kms).encryption(policy), partitioning=["day"]
    )
    assert len(paths) == 2
    assert kms.count() == 3, "one call for each KEK"
    kms.calls.clear()
    found = mc.read_table(tmp_path / "lake", KeyTools(kms).decryption(policy))
    assert found.sort_by("a").equals(table.sort_by("a"))
    assert kms.count() == 3
    for path in paths:
        beside = (tmp_path / "lake" / path).with_name(f"_KEY_MATERIAL_FOR_{Path(path).name}.json")
        assert beside.exists() != internal


def test_a_dataset_numbers_its_files_by_a_template(tmp_path: Path) -> None:
    tools = KeyTools(MemoryKms())
    for internal in (True, False):
        folder = tmp_path / str(internal)
        policy = replace(FLAT_POLICY, internal_key_material=internal)
        paths = mc.write_dataset(
            FLAT,
            folder,
            tools.encryption(policy),
            aad_prefix_template="lake.part{i}",
            max_rows_per_file=1,
        )
        found = mc.read_table(
            folder, tools.decryption(), aad_prefix_template="lake.part{i}", expected_parts=3
        )
        assert found.equals(FLAT)
        (folder / paths[1]).unlink()
        with pytest.raises(AadPrefixError, match="missing"):
            mc.read_table(
                folder, tools.decryption(), aad_prefix_template="lake.part{i}", expected_parts=3
            )


@pytest.mark.parametrize("prefix", ["lake", "lake/{name}"])
def test_a_template_and_a_prefix_of_the_policys_do_not_go_together(
    prefix: str, tmp_path: Path
) -> None:
    kms = MemoryKms()
    with pytest.raises(ValueError, match="not both"):
        mc.write_dataset(
            FLAT,
            tmp_path / "lake",
            KeyTools(kms).encryption(replace(FLAT_POLICY, aad_prefix=prefix)),
            aad_prefix_template="part{i}",
        )
    assert kms.calls == []
    assert not (tmp_path / "lake").exists()


def test_a_function_gives_each_file_of_a_dataset_a_policy(tmp_path: Path) -> None:
    kms = MemoryKms({**MASTERS, "t1": b"1" * 16, "t2": b"2" * 16})
    tools = KeyTools(kms)
    table = pa.table({"tenant": ["1", "2", "1"], "x": [1, 2, 3]})
    mc.write_dataset(
        table,
        tmp_path / "lake",
        lambda path: tools.encryption(Policy(footer_key=f"t{path[7]}")),
        partitioning=["tenant"],
    )
    del kms.masters["t2"]  # crypto-shredding
    found = mc.read_table(tmp_path / "lake" / "tenant=1", KeyTools(kms).decryption())
    assert found.column("x").to_pylist() == [1, 3]
    with pytest.raises(KeyNotFoundError):
        mc.read_table(tmp_path / "lake" / "tenant=2", KeyTools(kms).decryption())


def test_file_objects_hold_internal_material() -> None:
    tools = KeyTools(MemoryKms())
    sealed = io.BytesIO()
    mc.write_table(TABLE, sealed, tools.encryption(POLICY))
    for source in (sealed.getvalue(), io.BytesIO(sealed.getvalue())):
        assert mc.read_table(source, tools.decryption()).equals(TABLE)
    again = io.BytesIO()
    with mc.ParquetWriter(again, TABLE.schema, tools.encryption(POLICY)) as writer:
        writer.write_table(TABLE)
    assert mc.read_table(again.getvalue(), tools.decryption()).equals(TABLE)


# --- mistakes, before anything is asked or written ------------------------------------------------

Doing = Callable[[Path, Any], object]


def _encrypt(path: Path, how: Any, **options: Any) -> None:
    plain = io.BytesIO()
    pq.write_table(FLAT, plain)
    mc.encrypt_parquet(plain.getvalue(), path, how, **options)


WRITERS: dict[str, Doing] = {
    "write_table": lambda path, how: mc.write_table(FLAT, path, how),
    "ParquetWriter": lambda path, how: mc.ParquetWriter(path, FLAT.schema, how),
    "encrypt_parquet": _encrypt,
    "write_dataset": lambda path, how: mc.write_dataset(FLAT, path, how),
    "write_dataset, by path": lambda path, how: mc.write_dataset(FLAT, path, lambda _: how),
    "write_dataset, partitioned": lambda path, how: mc.write_dataset(
        FLAT, path, how, partitioning=["c"]
    ),
}
each_writer = pytest.mark.parametrize("writer", WRITERS)


@each_writer
@each_case("internal", [True, False], ids=["internal", "external"])
def test_unknown_columns_are_all_listed_before_a_key_is_made(
    internal: bool, writer: str, tmp_path: Path
) -> None:
    kms = MemoryKms()
    policy = Policy(
        footer_key="kf",
        column_keys={"kc1": ["zeta", "a"], "kc2": ["alpha.beta", "b"]},
        plaintext_columns=["gamma"],
        internal_key_material=internal,
    )
    with pytest.raises(ValueError, match=r"alpha\.beta, gamma, zeta"):
        WRITERS[writer](tmp_path / "x", KeyTools(kms).encryption(policy))
    assert kms.calls == []
    assert os.listdir(tmp_path) == []


def test_columns_in_the_names_of_folders_take_no_key(tmp_path: Path) -> None:
    kms = MemoryKms()
    with pytest.raises(ValueError, match=r"names of folders.*: a"):
        mc.write_dataset(
            FLAT, tmp_path / "x", KeyTools(kms).encryption(FLAT_POLICY), partitioning=["a"]
        )
    assert kms.calls == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"internal_key_material": False}, "beside"), ({"aad_prefix": "x/{name}"}, "name")],
)
@pytest.mark.parametrize("writer", ["write_table", "ParquetWriter", "encrypt_parquet"])
def test_what_needs_a_path_refuses_a_file_object(
    writer: str, changes: dict[str, Any], match: str
) -> None:
    kms, target = MemoryKms(), io.BytesIO()
    encryption = KeyTools(kms).encryption(replace(FLAT_POLICY, **changes))
    with pytest.raises(ValueError, match=match):
        WRITERS[writer](target, encryption)  # type: ignore[arg-type]  # a file object is taken too
    assert kms.calls == []
    assert target.getvalue() == b""


@pytest.mark.parametrize("writer", ["write_table", "ParquetWriter", "encrypt_parquet"])
@pytest.mark.parametrize("internal", [True, False], ids=["internal", "external"])
def test_other_mistakes_of_the_callers_cost_no_call_either(
    internal: bool, writer: str, tmp_path: Path
) -> None:
    kms = MemoryKms()
    how = KeyTools(kms).encryption(replace(FLAT_POLICY, internal_key_material=internal))
    path = tmp_path / "x"
    doing: dict[str, Callable[..., object]] = {
        "write_table": lambda **options: mc.write_table(FLAT, path, how, **options),
        "ParquetWriter": lambda **options: mc.ParquetWriter(path, FLAT.schema, how, **options),
        "encrypt_parquet": lambda **options: _encrypt(path, how, **options),
    }
    with pytest.raises(ValueError, match="threads"):
        doing[writer](threads=0)
    if writer != "encrypt_parquet":
        with pytest.raises(pa.ArrowException):
            doing[writer](compression="gzipp")
        with pytest.raises(TypeError):
            doing[writer](no_such_option=1)
    assert kms.calls == []
    assert os.listdir(tmp_path) == []


def test_a_broken_source_costs_no_call(tmp_path: Path) -> None:
    kms = MemoryKms()
    how = KeyTools(kms).encryption(FLAT_POLICY)
    plain = io.BytesIO()
    pq.write_table(FLAT, plain)
    for data in (plain.getvalue()[:-5], b"", b"PAR1PAR1", plain.getvalue()[4:]):
        with pytest.raises(mc.errors.FormatError):
            mc.encrypt_parquet(data, tmp_path / "x", how)
    assert kms.calls == []
    assert os.listdir(tmp_path) == []


# --- AAD prefixes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("plaintext_footer", [False, True], ids=["sealed", "signed"])
def test_a_renamed_file_is_refused_by_who_knows_the_policy(
    plaintext_footer: bool, stored: bool, tmp_path: Path
) -> None:
    policy = replace(
        POLICY, aad_prefix="{name}", store_aad_prefix=stored, plaintext_footer=plaintext_footer
    )
    tools = KeyTools(MemoryKms())
    path, renamed = tmp_path / "part-1.parquet", tmp_path / "part-2.parquet"
    mc.write_table(TABLE, path, tools.encryption(policy))
    assert mc.read_table(path, tools.decryption(policy)).equals(TABLE)
    path.rename(renamed)
    for reader in READERS.values():
        with pytest.raises(mc.errors.IntegrityError) as caught:
            reader(renamed, tools.decryption(policy))
        if stored:
            assert isinstance(caught.value, AadPrefixError)
    if stored:
        assert mc.read_table(renamed, tools.decryption()).equals(TABLE)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    renamed.rename(moved / path.name)
    assert mc.read_table(moved / path.name, tools.decryption(policy)).equals(TABLE)


def test_files_that_change_names_within_a_dataset_are_refused(tmp_path: Path) -> None:
    policy = replace(FLAT_POLICY, aad_prefix="lake/{name}")
    tools = KeyTools(MemoryKms())
    one, other = (
        tmp_path / path
        for path in mc.write_dataset(FLAT, tmp_path, tools.encryption(policy), max_rows_per_file=2)
    )
    assert mc.read_table(tmp_path, tools.decryption(policy)).equals(FLAT)
    one.rename(tmp_path / "swap")
    other.rename(one)
    (tmp_path / "swap").rename(other)
    with pytest.raises(AadPrefixError):
        mc.read_table(tmp_path, tools.decryption(policy))


def test_a_file_without_a_prefix_is_refused_where_the_policy_has_one(tmp_path: Path) -> None:
    tools = KeyTools(MemoryKms())
    mc.write_table(TABLE, tmp_path / "a", tools.encryption(POLICY))
    for prefix in ("lake", "{name}"):
        with pytest.raises(AadPrefixError):
            mc.read_table(tmp_path / "a", tools.decryption(replace(POLICY, aad_prefix=prefix)))


def test_a_prefix_of_the_files_name_needs_a_name_to_read(tmp_path: Path) -> None:
    policy = replace(POLICY, aad_prefix="{name}")
    tools = KeyTools(MemoryKms())
    mc.write_table(TABLE, tmp_path / "a", tools.encryption(policy))
    data = (tmp_path / "a").read_bytes()
    with pytest.raises(ValueError, match="name"):
        mc.read_table(data, tools.decryption(policy))
    assert mc.read_table(data, tools.decryption()).equals(TABLE)


def test_a_name_that_is_no_utf_8_binds_the_file_too(tmp_path: Path) -> None:
    policy = replace(FLAT_POLICY, aad_prefix="x/{name}")
    tools = KeyTools(MemoryKms())
    odd, other = (os.fsdecode(os.fsencode(tmp_path) + name) for name in (b"/a\xff", b"/a\xfe"))
    _encrypt(Path(odd), tools.encryption(policy))
    with mc.ParquetFile(odd, tools.decryption(policy)) as file:
        assert file.read().equals(FLAT)
    os.rename(odd, other)
    with pytest.raises(AadPrefixError), mc.ParquetFile(other, tools.decryption(policy)):
        pass


def test_properties_of_the_callers_win_over_the_policys(tmp_path: Path) -> None:
    tools = KeyTools(MemoryKms())
    policy = replace(POLICY, aad_prefix="lake", encryption_algorithm="AES_GCM_CTR_V1")
    mc.write_table(TABLE, tmp_path / "a", tools.encryption(policy))
    both = tools.decryption(policy, accept_algorithms=["AES_GCM_V1", "AES_GCM_CTR_V1"])
    assert mc.read_table(tmp_path / "a", both).equals(TABLE)
    with pytest.raises(UnsupportedFormatError):
        mc.read_table(tmp_path / "a", tools.decryption(policy, accept_algorithms=["AES_GCM_V1"]))
    with pytest.raises(AadPrefixError):
        mc.read_table(tmp_path / "a", tools.decryption(policy, aad_prefix=b"pond"))
    pond = replace(policy, aad_prefix="pond")
    with pytest.raises(AadPrefixError):  # None waives nothing
        mc.read_table(tmp_path / "a", tools.decryption(pond, aad_prefix=None))


# --- who is refused -------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[MemoryKms, str], object], type[KeyRetrievalError]]] = {
    "denied": (lambda kms, key: kms.denied.add(key), KeyAccessDeniedError),
    "disabled": (lambda kms, key: kms.disabled.add(key), KeyDisabledError),
    "missing": (lambda kms, key: kms.masters.pop(key), KeyNotFoundError),
    "forbidden in its own words": (
        lambda kms, key: kms.broken.update({key: PermissionError("no")}),
        KeyAccessDeniedError,
    ),
    "unknown in its own words": (
        lambda kms, key: kms.broken.update({key: KeyError(key)}),
        KeyNotFoundError,
    ),
}
FAILED: dict[str, tuple[Callable[[MemoryKms, str], object], type[KeyRetrievalError]]] = {
    "unavailable": (
        lambda kms, key: kms.broken.update({key: KmsUnavailableError("busy")}),
        KmsUnavailableError,
    ),
    "broken": (lambda kms, key: kms.broken.update({key: RuntimeError()}), KeyRetrievalError),
    "another key by now": (
        lambda kms, key: kms.masters.update({key: b"another key, yes"}),
        KeyMaterialError,
    ),
}
each_wrapping = pytest.mark.parametrize("double", [True, False], ids=["double", "single"])


def three_columns(folder: Path, double: bool, internal: bool = True) -> Path:
    path = folder / "a.parquet"
    policy = replace(FLAT_POLICY, double_wrapping=double, internal_key_material=internal)
    mc.write_table(FLAT, path, KeyTools(MemoryKms()).encryption(policy))
    return path


@each_wrapping
@each_case("internal", [True, False], ids=["internal", "external"])
@each_case("how", REFUSED)
def test_a_refused_column_is_dropped_or_null_where_that_is_asked_for(
    how: str, internal: bool, double: bool, tmp_path: Path
) -> None:
    path = three_columns(tmp_path, double, internal)
    refuse, kind = REFUSED[how]
    kms = MemoryKms()
    refuse(kms, "kc1")
    with pytest.raises(kind, match="column a") as caught:
        mc.read_table(path, KeyTools(kms).decryption())
    if isinstance(caught.value, KeyNotFoundError):
        assert caught.value.column == "a"
    dropped = mc.read_table(path, KeyTools(kms).decryption(on_missing_key="drop"))
    assert dropped.equals(FLAT.drop_columns("a"))
    nulls = mc.read_table(path, KeyTools(kms).decryption(on_missing_key="null"))
    assert nulls.equals(FLAT.set_column(0, "a", pa.nulls(3, pa.int64())))
    # It may be said later, too.
    later = replace(KeyTools(kms).decryption(), on_missing_key="drop")
    assert mc.read_table(path, later).equals(dropped)


@each_wrapping
@each_case("what", ["drop", "null"])
@each_case("how", FAILED)
def test_what_is_no_refusal_stays_an_error(
    how: str, what: Any, double: bool, tmp_path: Path
) -> None:
    """Or a moment of trouble would make nulls of data, silently."""
    path = three_columns(tmp_path, double)
    fail, kind = FAILED[how]
    kms = MemoryKms()
    fail(kms, "kc1")
    with pytest.raises(kind, match="column a"):
        mc.read_table(path, KeyTools(kms).decryption(on_missing_key=what))


@each_wrapping
@each_case("what", ["error", "drop", "null"])
@each_case("how", [*REFUSED, *FAILED])
def test_a_refused_footer_key_is_an_error(
    how: str, what: Any, double: bool, tmp_path: Path
) -> None:
    path = three_columns(tmp_path, double)
    fail, kind = {**REFUSED, **FAILED}[how]
    kms = MemoryKms()
    fail(kms, "kf")
    with pytest.raises(kind, match="footer key"):
        mc.read_table(path, KeyTools(kms).decryption(on_missing_key=what))


def test_a_thousand_refusals_cost_one_call(tmp_path: Path) -> None:
    tools = KeyTools(MemoryKms())
    for n in range(6):
        mc.write_table(FLAT, tmp_path / f"{n}.parquet", tools.encryption(FLAT_POLICY))
    for refuse, _ in REFUSED.values():
        kms = MemoryKms()
        refuse(kms, "kc1")
        nulls = mc.read_table(tmp_path, KeyTools(kms).decryption(on_missing_key="null"))
        assert nulls.column("a").null_count == 18
        assert kms.count(None, "kc1") == 1


def test_an_unavailable_service_writes_nothing(tmp_path: Path) -> None:
    kms = MemoryKms()
    kms.unavailable = True
    for internal in (True, False):
        how = KeyTools(kms).encryption(replace(FLAT_POLICY, internal_key_material=internal))
        for writer in WRITERS.values():
            with pytest.raises(KmsUnavailableError):
                writer(tmp_path / "x", how)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_plaintext_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(FLAT, tmp_path / "a")
    tools = KeyTools(MemoryKms())
    for how in (tools.decryption(), tools.decryption(FLAT_POLICY)):
        with pytest.raises(PlaintextError):
            mc.read_table(tmp_path / "a", how)
    free = tools.decryption(require_encrypted=False)
    assert mc.read_table(tmp_path / "a", free).equals(FLAT)


def test_a_file_of_explicit_keys_says_that_no_key_tools_wrote_it(tmp_path: Path) -> None:
    tools = KeyTools(MemoryKms())
    given = mc.FileEncryptionProperties(footer_key=MASTERS["kf"], footer_key_metadata=b"kf")
    mc.write_table(FLAT, tmp_path / "a", given)
    with pytest.raises(KeyMaterialError, match="PKMT1"):
        mc.read_table(tmp_path / "a", tools.decryption())
    mc.write_table(FLAT, tmp_path / "b", mc.FileEncryptionProperties(footer_key=MASTERS["kf"]))
    with pytest.raises(KeyNotFoundError):
        mc.read_table(tmp_path / "b", tools.decryption())


def test_a_footer_key_that_is_given_spares_the_service(tmp_path: Path) -> None:
    kms = MemoryKms()
    path = three_columns(tmp_path, double=False)
    (footer,) = (material for material in material_in(path) if material["isFooterKey"])
    table = mc.read_table(
        path, KeyTools(kms).decryption(footer_key=data_key(footer)), columns=["a"]
    )
    assert table.equals(FLAT.select(["a"]))
    assert [call.master_key_id for call in kms.calls] == ["kc1"]


# --- fresh keys -----------------------------------------------------------------------------------


@each_wrapping
@each_writer
def test_every_file_has_keys_of_its_own(writer: str, double: bool, tmp_path: Path) -> None:
    tools = KeyTools(MemoryKms())
    policy = replace(
        FLAT_POLICY, double_wrapping=double, internal_key_material=False, plaintext_columns=()
    )
    how = tools.encryption(policy)
    for n in range(3):
        done: Any = WRITERS[writer](tmp_path / str(n), how)
        if isinstance(done, mc.ParquetWriter):
            done.write_table(FLAT)
            done.close()
    found = [
        data_key(json.loads(text))
        for path in tmp_path.rglob("_KEY_MATERIAL_FOR_*")
        for text in set(json.loads(path.read_text()).values())
    ]
    files = len([path for path in tmp_path.rglob("*") if path.is_file()]) // 2
    assert files == (9 if writer == "write_dataset, partitioned" else 3)
    assert len(set(found)) == 3 * files


def test_footer_and_columns_never_share_a_key_even_under_one_master_key(tmp_path: Path) -> None:
    policy = Policy(
        footer_key="kf", column_keys={"kf": ["a", "b", "c"]}, internal_key_material=False
    )
    mc.write_table(FLAT, tmp_path / "a", KeyTools(MemoryKms()).encryption(policy))
    keys = {data_key(material) for material in material_in(tmp_path / "a")}
    assert len(keys) == 4
    assert not keys & set(MASTERS.values())


def test_throw_away_keys_of_a_check_are_in_no_file() -> None:
    """`write_dataset` checks a policy with keys that nobody has."""
    kms = MemoryKms()
    tools = KeyTools(kms)
    how = tools.encryption(FLAT_POLICY)
    checked = how.for_check()
    assert kms.calls == []
    written = how.for_file(None)
    keys = [
        {encryption.footer_key, *encryption.column_keys.values()}
        for encryption in (checked, written)
    ]
    assert not keys[0] & keys[1]
    assert checked.footer_key_metadata is None


# --- small things ---------------------------------------------------------------------------------


def test_tools_are_made_from_a_policy_with_all_that_it_says() -> None:
    kms = MemoryKms(aad=True)
    policy = replace(FLAT_POLICY, kms_aad="lake", kek_length_bits=256, cache_lifetime_seconds=0)
    tools = KeyTools.from_policy(policy, kms=kms)
    for _ in range(2):
        tools.encryption(policy).for_file(None)
    assert {call.aad for call in kms.calls} == {b"lake"}
    assert {len(key) for key in kms.learned} == {32}
    assert kms.count() == 6, "nothing is kept for no time at all"
