"""`modcrypt.parquet` in the place of `pyarrow.parquet`: names, arguments, keys and refusals."""

from __future__ import annotations

import doctest
import importlib
import inspect
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
import modcrypt.parquet as pq
from modcrypt.parquet.datasets.write_notes import NOTES
from modcrypt.runtime.lazy_names import public_names
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.kms.memory_kms import MemoryKms

TABLE = pa.table({"id": [1, 2, 3], "name": ["Ada", None, "Grace"], "year": [2025, 2026, 2026]})
ENCRYPTION = pq.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
DECRYPTION = pq.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
FOOTER_ONLY = pq.FileDecryptionProperties(footer_key=FOOTER_KEY)
KEYS: dict[str, Any] = {"decryption_properties": DECRYPTION}
NAMES = (
    "read_table", "write_table", "ParquetFile", "ParquetWriter", "ParquetDataset",
    "write_to_dataset", "read_metadata", "read_schema", "read_pandas", "write_metadata",
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "people.parquet"
    pq.write_table(TABLE, path, row_group_size=2, encryption_properties=ENCRYPTION)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "years"
    pq.write_to_dataset(TABLE, path, ["year"], encryption_properties=ENCRYPTION)
    return path


# --- names and signatures ------------------------------------------------------------------------


def signature_of(function: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters]


def list_calls(module: Any) -> dict[str, Any]:
    """Return the functions, classes and methods that a module offers, by dotted name."""
    found = {name: getattr(module, name) for name in NAMES}
    for name in [name for name in NAMES if inspect.isclass(found[name])]:
        members = inspect.getmembers(getattr(pyarrow.parquet, name), callable)
        for member in [member for member, _ in members if not member.startswith("_")]:
            found[f"{name}.{member}"] = getattr(found[name], member)
    return found


def test_arguments_have_the_names_order_kinds_and_defaults_of_pyarrow() -> None:
    ours, theirs = list_calls(pq), list_calls(pyarrow.parquet)
    assert len(theirs) > 20
    for name, function in theirs.items():
        assert signature_of(ours[name]) == signature_of(function), name


def test_it_has_the_names_and_attributes_of_pyarrow(file: Path) -> None:
    theirs = {name for name in pyarrow.parquet.core.__all__ if not name.startswith("_")}
    assert theirs - set(public_names("modcrypt.parquet")) == {
        "ParquetReader"
    }  # PyArrow's inner reader, undocumented
    for name in set(public_names("modcrypt.parquet")) & theirs - {*NAMES} - set(OWN_PROPERTIES):
        assert getattr(pq, name) is getattr(pyarrow.parquet, name)
    plain = file.with_name("plain.parquet")
    pq.write_table(TABLE, plain)
    for make, inner in (
        (pq.ParquetFile, {"reader"}),
        (pq.ParquetDataset, set[str]()),
    ):
        there = {name for name in dir(make(plain)) if not name.startswith("_")}
        assert there - {*dir(make(file, **KEYS))} == inner


def test_the_names_are_imported_on_first_use() -> None:
    script = (
        "import sys, modcrypt.parquet; assert 'FileMetaData' in dir(modcrypt.parquet);"
        "assert 'pyarrow' not in sys.modules; modcrypt.parquet.FileMetaData;"
        "assert 'pyarrow.parquet' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def defaults_of(function: Any, until: str) -> list[Any]:
    """Return the default values of the arguments up to one."""
    parameters = list(inspect.signature(function).parameters.values())
    names = [p.name for p in parameters]
    return [p.default for p in parameters[: names.index(until)] if p.default is not p.empty]


def test_every_argument_can_be_given_by_position(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "positions.parquet"
    rest = defaults_of(pyarrow.parquet.write_table, "encryption_properties")
    pq.write_table(TABLE, path, *rest, ENCRYPTION)
    assert pq.read_schema(path, False, DECRYPTION).equals(TABLE.schema)
    assert pq.read_metadata(path, False, DECRYPTION, None).num_rows == 3
    rest = defaults_of(pyarrow.parquet.ParquetWriter, "encryption_properties")
    with pq.ParquetWriter(path, TABLE.schema, *rest, ENCRYPTION) as writer:
        writer.write_table(TABLE, 2)
    assert pq.ParquetFile(path, **KEYS).num_row_groups == 2
    with pq.ParquetWriter(path, TABLE.schema, None, None, "2.6", True, "gzip") as writer:
        assert isinstance(writer, pyarrow.parquet.ParquetWriter)
        writer.write_table(TABLE)
    assert pq.read_metadata(path).row_group(0).column(0).compression == "GZIP"
    pq.write_table(TABLE, path, None, "2.6", False, "gzip", encryption_properties=ENCRYPTION)
    assert pq.read_metadata(path, **KEYS).row_group(0).column(0).compression == "GZIP"
    for wrong in (
        lambda: pq.write_table(TABLE, path, None, row_group_size=3),
        lambda: pq.read_table(path, ["id"]),
        lambda: pq.read_schema(path, False, DECRYPTION, None, True, 1),
        lambda: pq.read_table(path, nothing=1, **KEYS),
        lambda: pq.read_schema(path, read_dictionary=[], **KEYS),
    ):
        with pytest.raises(TypeError, match=r"by position|given twice|not supported"):
            wrong()


OWN_PROPERTIES = ("FileEncryptionProperties", "FileDecryptionProperties")


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_docstrings_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    value = getattr(pq, name)
    (test,) = doctest.DocTestFinder(recurse=False).find(value, name, globs={})
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_package_still_contains_its_modules() -> None:
    for name in public_names("modcrypt.parquet"):
        assert getattr(pq, name) is not None
    assert importlib.import_module("modcrypt.parquet.crypto").__name__ == "modcrypt.parquet.crypto"


# --- whose properties ----------------------------------------------------------------------------


def test_without_properties_pyarrow_reads_and_writes_plaintext(tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(TABLE, path)
    assert path.read_bytes()[:4] == b"PAR1"
    assert pq.read_table(path).equals(TABLE)
    assert isinstance(pq.ParquetFile(path), pyarrow.parquet.ParquetFile)
    assert isinstance(pq.ParquetDataset(path), pyarrow.parquet.ParquetDataset)
    with pq.ParquetWriter(path, TABLE.schema) as writer:
        assert isinstance(writer, pyarrow.parquet.ParquetWriter)
    assert pq.read_metadata(path).num_rows == 0
    assert pq.read_schema(path).equals(TABLE.schema)
    pq.write_metadata(TABLE.schema, path)
    pq.write_to_dataset(TABLE, tmp_path / "years", ["year"])
    assert pq.read_table(tmp_path / "years").num_rows == 3


def test_properties_of_pyarrow_go_to_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "uniform.parquet"
    decryption = pe.create_decryption_properties(FOOTER_KEY)
    encryption = pe.create_encryption_properties(FOOTER_KEY)
    pq.write_table(TABLE, path, encryption_properties=encryption)
    assert pq.read_table(path, decryption_properties=decryption).equals(TABLE)
    assert pq.read_table(path, decryption_properties=FOOTER_ONLY).equals(TABLE)
    file = pq.ParquetFile(path, decryption_properties=decryption)
    assert isinstance(file, pyarrow.parquet.ParquetFile)


def test_settings_serve_both_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DROP_IN_KEY", FOOTER_KEY.hex())
    settings = mc.Settings(footer_key="env:DROP_IN_KEY")
    path = tmp_path / "settings.parquet"
    pq.write_table(TABLE, path, encryption_properties=settings)
    assert pq.read_table(path, decryption_properties=settings).equals(TABLE)


@pytest.mark.parametrize(
    "call",
    [
        lambda path: pq.read_table(path, decryption_properties=7),
        lambda path: pq.ParquetFile(path, decryption_properties={"footer_key": FOOTER_KEY}),
        lambda path: pq.write_table(TABLE, path, encryption_properties=[FOOTER_KEY]),
        lambda path: pq.ParquetWriter(path, TABLE.schema, encryption_properties=DECRYPTION),
    ],
)
def test_other_objects_are_refused_and_change_nothing(
    call: Callable[[Path], object], file: Path
) -> None:
    before = file.read_bytes()
    with pytest.raises(TypeError, match="cryption must be a Key") as caught:
        call(file)
    assert FOOTER_KEY.decode() not in str(caught.value)
    assert file.read_bytes() == before


def test_plaintext_is_an_error_where_keys_are_given(tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    pyarrow.parquet.write_table(TABLE, path)
    for read in (pq.read_table, pq.ParquetFile, pq.read_schema, pq.read_metadata):
        with pytest.raises(mc.errors.PlaintextError):
            read(path, **KEYS)
    with pytest.raises(mc.errors.PlaintextError):
        _ = pq.ParquetDataset(path, **KEYS).schema


# --- one file ------------------------------------------------------------------------------------


def test_a_column_is_read_without_the_keys_of_others(file: Path) -> None:
    keys: dict[str, Any] = {"decryption_properties": FOOTER_ONLY}
    assert pq.read_table(file, columns=["id"], **keys)["id"].to_pylist() == [1, 2, 3]
    assert pq.read_schema(file, **keys).names == TABLE.schema.names
    with pq.ParquetFile(file, **keys) as opened:
        assert opened.read(["id"]).num_rows == opened.scan_contents(["id"]) == 3
        assert opened.schema.names == TABLE.schema.names
        with pytest.raises(mc.errors.KeyNotFoundError):
            opened.read()
        with pytest.raises(mc.errors.KeyNotFoundError):
            _ = opened.metadata


def test_the_footer_of_a_single_file_is_opened_once(tmp_path: Path) -> None:
    asked = []

    def find(key_metadata: bytes) -> bytes:
        asked.append(key_metadata)
        return FOOTER_KEY

    encryption = pq.FileEncryptionProperties(footer_key=FOOTER_KEY, footer_key_metadata=b"k")
    pq.write_table(TABLE, tmp_path / "file", encryption_properties=encryption)
    decryption = pq.FileDecryptionProperties(key_retriever=find)
    assert pq.read_table(tmp_path / "file", decryption_properties=decryption).equals(TABLE)
    assert asked == [b"k"]


def test_a_file_has_the_methods_of_pyarrow(file: Path) -> None:
    with pq.ParquetFile(file, memory_map=True, pre_buffer=False, **KEYS) as opened:
        assert opened.num_row_groups == opened.metadata.num_row_groups == 2
        assert opened.schema is opened.metadata.schema
        assert opened.read_row_group(1).num_rows == 1
        assert opened.read_row_groups([1, 0], ["id"])["id"].to_pylist() == [3, 1, 2]
        # As in PyArrow: the order wanted, and nothing for a name that the file does not have.
        assert opened.read(["name", "id", "nothing"]).column_names == ["name", "id"]
        assert [batch.num_rows for batch in opened.iter_batches(2)] == [2, 1]
        with pytest.raises(ValueError, match="batch_size"):
            opened.iter_batches(0)
        assert not opened.closed
    assert opened.closed


def test_a_files_object_stays_open_unless_forced(file: Path) -> None:
    stream = io.BytesIO(file.read_bytes())
    opened = pq.ParquetFile(stream, **KEYS)
    opened.close()
    assert not stream.closed
    assert not opened.closed
    opened.close(force=True)
    assert stream.closed


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"metadata": object()}, "metadata"),
        ({"common_metadata": object()}, "common_metadata"),
        ({"nothing": 1}, "nothing"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(
    file: Path, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(TypeError, match=f"^{named} is not supported"):
        pq.ParquetFile(file, **KEYS, **options)


def test_writing_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"encryption_properties": ENCRYPTION}
    with pytest.raises(TypeError, match="metadata_collector"):
        pq.write_table(TABLE, tmp_path / "a", metadata_collector=[], **keys)
    with pytest.raises(TypeError, match="metadata_collector"):
        pq.write_metadata(TABLE.schema, tmp_path / "a", [], **keys)
    with pytest.raises(TypeError, match="metadata_collector"):
        pq.write_to_dataset(TABLE, tmp_path / "b", metadata_collector=[], **keys)
    with pytest.raises(ValueError, match="not both"):
        pq.write_to_dataset(TABLE, tmp_path / "b", ["year"], partitioning=["id"], **keys)
    with pytest.raises(ValueError, match="partitioning_flavor needs names"):
        pq.write_to_dataset(TABLE, tmp_path / "b", ["year"], partitioning_flavor="hive", **keys)
    with pytest.raises(ValueError, match="file-like"):
        pq.write_table(TABLE, io.BytesIO(), filesystem=pafs.LocalFileSystem(), **keys)
    assert list(tmp_path.iterdir()) == []


def test_options_without_effect_are_checked_as_in_pyarrow(file: Path) -> None:
    calls: list[Callable[..., Any]] = [pq.ParquetDataset, pq.ParquetFile, pq.read_table]
    for call in calls:
        for size in (0, 128, None):
            call(file, buffer_size=size, pre_buffer=False, memory_map=True, **KEYS)
        with pytest.raises(ValueError, match="buffer_size"):
            call(file, buffer_size=-42, **KEYS)
        with pytest.raises(TypeError, match="binary_type"):
            call(file, binary_type=pa.int32(), **KEYS)
    with pytest.raises(ValueError, match="list of names"):
        pq.read_table(file, columns="id", **KEYS)


def test_dictionaries_are_read_of_the_columns_that_are_read(file: Path) -> None:
    for names in (["name"], ["name", "absent"]):
        for columns in (None, ["id"], ["name"]):
            for filters in (None, [("id", "<", 3)]):
                table = pq.read_table(
                    file, columns=columns, filters=filters, read_dictionary=names, **KEYS
                )
                kinds = {field.name: pa.types.is_dictionary(field.type) for field in table.schema}
                assert kinds == {name: name == "name" for name in table.column_names}
            assert pq.ParquetFile(file, read_dictionary=names, **KEYS).read(columns).num_rows == 3


def test_options_of_datasets_are_accepted_and_files_are_visited(tmp_path: Path) -> None:
    visited: list[Any] = []
    pq.write_to_dataset(
        TABLE, tmp_path / "years", ["year"], file_visitor=visited.append, create_dir=True,
        max_open_files=5, preserve_order=True, encryption_properties=ENCRYPTION,
    )  # fmt: skip
    assert {Path(file.path) for file in visited} == {*(tmp_path / "years").rglob("*.parquet")}
    assert all(Path(file.path).stat().st_size == file.size for file in visited)
    assert {file.metadata for file in visited} == {None}


def test_properties_of_key_tools_cannot_be_pickled_and_say_why() -> None:
    tools = mc.KeyTools(MemoryKms())
    for value in (tools, tools.decryption(), tools.encryption(mc.Policy(footer_key="kf"))):
        with pytest.raises(TypeError, match=r"KeyTools .* in each process"):
            pickle.dumps(value)


def test_a_writer_writes_a_batch_as_a_row_group_and_leaves_nothing_after_an_error(
    tmp_path: Path,
) -> None:
    keys: dict[str, Any] = {"encryption_properties": ENCRYPTION}
    path = tmp_path / "batches.parquet"
    with pq.ParquetWriter(path, TABLE.schema, **keys) as writer:
        for batch in TABLE.to_batches(max_chunksize=2):
            writer.write(batch)
        fraction: Any = 1.0  # which PyArrow accepts, for example from numpy
        writer.write(TABLE, row_group_size=fraction)
        assert (writer.is_open, writer.where, writer.schema) == (True, path, TABLE.schema)
    assert not writer.is_open
    assert pq.read_metadata(path, **KEYS).num_row_groups == 5
    path.unlink()

    def fail() -> None:
        with pq.ParquetWriter(path, TABLE.schema, **keys) as writer:
            writer.write_table(TABLE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not path.exists()


# --- datasets ------------------------------------------------------------------------------------


def test_a_folder_has_the_types_that_pyarrow_gives_it(folder: Path) -> None:
    dataset = pq.ParquetDataset(folder, **KEYS)
    table = dataset.read()
    assert table.schema.equals(dataset.schema)
    assert table.schema.field("year").type == pa.dictionary(pa.int32(), pa.int32())
    assert len(dataset.fragments) == len(dataset.files) == 2
    assert {fragment.to_table().num_rows for fragment in dataset.fragments} == {1, 2}
    assert isinstance(dataset.partitioning, ds.Partitioning)


def test_a_folder_is_read_without_the_keys_of_other_columns(folder: Path) -> None:
    table = pq.read_table(
        folder,
        columns=["id"],
        filters=[("year", "=", 2026)],
        decryption_properties=lambda path: FOOTER_ONLY,
    )
    assert table["id"].to_pylist() == [2, 3]


@pytest.mark.parametrize("columns", [
    ["s.x"], ["id", "s.in.y", "s"], ["l", "s.x", "s.x"], ["a.b", "s.in"],
    {"id": pc.field("id") * 2, "y": pc.field("s", "in", "y")},
], ids=str)  # fmt: skip
def test_columns_are_those_of_pyarrow(tmp_path: Path, columns: Any) -> None:
    """Fields of structs come by themselves, and expressions are evaluated."""
    structs = [{"x": 1, "in": {"y": "a"}}, {"x": None, "in": None}, None]
    table = pa.table({"id": [1, 2, 3], "s": structs, "l": [[{"q": 1}]] * 3, "a.b": [4, 5, 6]})
    key = pq.FileEncryptionProperties(footer_key=FOOTER_KEY)
    pq.write_table(table, tmp_path / "plain.parquet")
    pq.write_table(table, tmp_path / "encrypted.parquet", encryption_properties=key)
    wanted = pq.read_table(tmp_path / "plain.parquet", columns=columns)
    found = pq.read_table(tmp_path / "encrypted.parquet", columns=columns, **KEYS)
    assert found.schema.equals(wanted.schema, check_metadata=True)
    assert [column.to_pylist() for column in found] == [column.to_pylist() for column in wanted]


def test_fields_without_a_key_are_left_out(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "s": [{"x": 1, "y": 2}], "name": ["Ada"]})
    keys = pq.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"s.x": COLUMN_KEY})
    pq.write_table(table, tmp_path / "a.parquet", encryption_properties=keys)
    lenient = pq.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="drop")
    columns = ["s.x", "s.y", "id"]
    found = pq.read_table(tmp_path / "a.parquet", columns=columns, decryption_properties=lenient)
    assert found.to_pydict() == {"y": [2], "id": [1]}


def test_files_of_an_incomplete_write_are_hidden(folder: Path) -> None:
    pq.write_to_dataset(TABLE, folder, ["year"], encryption_properties=ENCRYPTION)
    files = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.parquet"))]
    hidden = files[::2]
    (folder / NOTES).mkdir()
    note = {"host": "h", "time": 0, "hidden": hidden}
    (folder / NOTES / "job.json").write_text(json.dumps(note))
    for options in ({}, {"schema": TABLE.schema}, {"ignore_prefixes": ["x"]}):
        dataset = pq.ParquetDataset(folder, **options, **KEYS)
        assert len(dataset.files) == len(files) - len(hidden)
        assert dataset.read().num_rows == sum(f.count_rows() for f in dataset.fragments)
    filesystem = fsspec.filesystem("modcrypt", decryption=DECRYPTION)
    parts = [str(part) for part in folder.glob("year=*")]
    for found in (
        filesystem.find(str(folder)), filesystem.find(str(folder.parent)),
        filesystem.glob(f"{folder}/*/*"), filesystem.glob(f"{folder.parent}/*/*/*.parquet"),
        chain.from_iterable(filesystem.ls(part, False) for part in parts),
        chain.from_iterable(map(filesystem.find, parts)),
        chain.from_iterable(pq.ParquetDataset(part, **KEYS).files for part in parts),
    ):  # fmt: skip
        assert sorted(found) == sorted(dataset.files)
    assert (
        sum(mc.read_table(part, DECRYPTION).num_rows for part in parts) == dataset.read().num_rows
    )


@pytest.mark.parametrize("options", [{}, {"schema": TABLE.schema}], ids=str)
def test_an_empty_list_of_files_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the list is empty"):
        pq.ParquetDataset([], **options, **KEYS).read()


def test_the_schema_of_the_caller_counts(folder: Path, file: Path) -> None:
    wanted = pa.schema([("id", pa.int32()), ("more", pa.string())])
    for source in (folder, file, [file], io.BytesIO(file.read_bytes())):
        table = pq.read_table(source, schema=wanted, **KEYS)
        assert table.schema.equals(wanted)
        assert sorted(table["id"].to_pylist()) == [1, 2, 3]


def test_a_view_of_a_dataset_cannot_be_written(folder: Path) -> None:
    dataset = pq.ParquetDataset(folder, **KEYS)
    with pytest.raises(OSError, match="Read-only"):
        dataset.filesystem.delete_file(dataset.files[0])
    assert Path(dataset.files[0]).exists()


def test_key_material_is_no_data_whatever_names_are_ignored(tmp_path: Path) -> None:
    tools = mc.KeyTools(MemoryKms())
    policy = mc.Policy(footer_key="kf", internal_key_material=False)
    pq.write_table(TABLE, tmp_path / "a.parquet", encryption_properties=tools.encryption(policy))
    assert len(list(tmp_path.iterdir())) == 2
    keys = tools.decryption(policy)
    table = pq.read_table(tmp_path, ignore_prefixes=["x"], decryption_properties=keys)
    assert table.num_rows == TABLE.num_rows


def test_a_prefix_with_the_path_inside_the_folder_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    mc.write_dataset(
        TABLE, folder, ENCRYPTION, max_rows_per_file=2, aad_prefix_template="people.{i}"
    )
    prefixes = {"part-0.parquet": b"people.0", "part-1.parquet": b"people.1"}

    def keys(path: str) -> mc.FileDecryptionProperties:
        return mc.FileDecryptionProperties(
            footer_key=FOOTER_KEY,
            column_keys={"name": COLUMN_KEY},
            aad_prefix=prefixes[Path(path).name],
        )

    dataset = pq.ParquetDataset(folder, decryption_properties=keys)
    assert dataset.read().equals(TABLE)
    assert dataset.schema.equals(TABLE.schema)
    first, second = sorted(folder.iterdir())
    first.write_bytes(second.read_bytes())
    with pytest.raises(mc.errors.AadPrefixError):
        dataset.read()
    with pytest.raises(mc.errors.AadPrefixError):
        _ = pq.ParquetDataset(folder, decryption_properties=keys).schema


def test_rows_that_pyarrow_loses_of_a_view_are_an_error(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = pq.ParquetDataset(file, schema=TABLE.schema, **KEYS)
    assert dataset.read().num_rows == 3
    whole = pyarrow.parquet.ParquetDataset.read
    monkeypatch.setattr(
        pyarrow.parquet.ParquetDataset, "read", lambda self, *a, **k: whole(self, *a, **k)[:2]
    )
    with pytest.raises(mc.errors.FormatError, match=r"PyArrow [\d.]+ decoded 2 of 3 rows"):
        dataset.read()


def test_arguments_of_other_functions_are_named_as_here(tmp_path: Path, file: Path) -> None:
    key = mc.Key.generate()
    with pytest.raises(TypeError, match="takes decryption_properties, as PyArrow"):
        pq.read_table(file, decryption=key)
    with pytest.raises(TypeError, match="takes encryption_properties, as PyArrow"):
        pq.write_table(pa.table({"n": [1]}), tmp_path / "n.parquet", encryption=key)
