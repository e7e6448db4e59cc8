"""parquet-java's key tools and our KeyTools, by one key service: files go both ways.

PropertiesDrivenCryptoFactory writes and reads, KeyToolkit rotates, with a KmsClient of the tests.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.cases import each_case, each_value
from tests.support.java.key_tools_java import JavaKeyTools, MemoryKms
from tests.support.java.parquet_java import ParquetJava, ParquetJavaError
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.shared_vectors import entry_params, reader_of, shared_vectors

GCM, CTR = "AES_GCM_V1", "AES_GCM_CTR_V1"
MASTERS = {
    "kf": b"footer master 16",
    "kc1": b"column master 1!",
    "kc2": b"column master 2, of 32 bytes !!!",
}
OURS = {"kc1": ["id", "address", "tags"], "kc2": ["name", "score"]}
THEIRS = "kc1:id,address.zip,address.city,tags.list.element;kc2:name,score"
KEYS = {"uniform": 1, "columns": 7, "complete": 7}
MASTERS_USED = {"uniform": 1, "columns": 3, "complete": 3}

SCHEMA = """message rows {
  required int64 id;
  optional binary name (STRING);
  optional double score;
  optional boolean flag;
  optional group address { optional binary zip (STRING); optional binary city (STRING); }
  optional group tags (LIST) { repeated group list { optional binary element (STRING); } }
}"""


def rows(count: int = 50) -> list[dict[str, Any]]:
    """Return rows as the file has them, without nulls."""
    return [
        {
            "id": n,
            "name": None if n % 7 == 0 else f"name-{n % 11}",
            "score": n * 1.5,
            "flag": n % 3 == 0,
            "address": {"zip": f"{n:05}", "city": None if n % 5 == 0 else "Ulm"},
            "tags": {"list": [{"element": tag} for tag in ["a", "b"][: n % 3]]},
        }
        for n in range(count)
    ]


def table(count: int = 50) -> pa.Table:
    """Return the same rows as an Arrow table."""
    text = pa.string()
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("name", text),
            ("score", pa.float64()),
            ("flag", pa.bool_()),
            ("address", pa.struct([("zip", text), ("city", text)])),
            ("tags", pa.list_(pa.field("element", text))),
        ]
    )
    flat = [row | {"tags": [tag["element"] for tag in row["tags"]["list"]]} for row in rows(count)]
    return pa.Table.from_pylist(flat, schema=schema)


@pytest.fixture(scope="module")
def compiled_java(java: ParquetJava) -> JavaKeyTools:
    """Compile the key service in Java."""
    return JavaKeyTools.of(java)


@pytest.fixture
def kms() -> MemoryKms:
    """Return a new key service."""
    return MemoryKms.of(MASTERS)


@pytest.fixture
def theirs(compiled_java: JavaKeyTools, kms: MemoryKms) -> JavaKeyTools:
    """Return parquet-java's key tools with the same master keys."""
    compiled_java.knows(kms)
    return compiled_java


def java_settings(case: Mapping[str, Any]) -> dict[str, Any]:
    uniform = case["layout"] == "uniform"
    return {
        "uniform_key": "kf" if uniform else None,
        "footer_key": None if uniform else "kf",
        "column_keys": None if uniform else THEIRS,
        "complete_columns": case["layout"] == "complete",
        "algorithm": case["algorithm"],
        "plaintext_footer": case["footer"] == "plaintext",
        "double_wrapping": case["wrapping"] == "double",
        "key_material_store_internally": case["material"] == "internal",
        "data_key_length_bits": case["bits"],
        "kek_length_bits": case["kek_bits"],
    }


def policy_of(case: Mapping[str, Any], **more: Any) -> mc.Policy:
    return mc.Policy(
        footer_key="kf",
        column_keys={} if case["layout"] == "uniform" else OURS,
        plaintext_columns=["flag"] if case["layout"] == "columns" else [],
        encryption_algorithm=case["algorithm"],
        plaintext_footer=case["footer"] == "plaintext",
        double_wrapping=case["wrapping"] == "double",
        internal_key_material=case["material"] == "internal",
        data_key_length_bits=case["bits"],
        kek_length_bits=case["kek_bits"],
        data_page_v2_levels="plaintext",
        **more,
    )


MATRIX: dict[str, Any] = {
    "wrapping": ("double", "single"),
    "material": ("internal", "external"),
    "footer": ("encrypted", "plaintext"),
    "algorithm": (GCM, CTR),
    "bits": (128, 192, 256),
    "kek_bits": (128, 192, 256),
    "layout": ("columns", "complete", "uniform"),
}
PAGES = pairwise(**MATRIX, version=("v1", "v2"))
ONE: Case = {
    "wrapping": "double", "material": "external", "footer": "encrypted", "algorithm": GCM,
    "bits": 128, "kek_bits": 128, "layout": "columns",
}  # fmt: skip


def we_read(path: Path, kms: MemoryKms, case: Mapping[str, Any]) -> pa.Table:
    return mc.read_table(path, mc.KeyTools(kms).decryption(accept_algorithms=[case["algorithm"]]))


def we_write(path: Path, kms: MemoryKms, case: Mapping[str, Any], count: int = 50) -> None:
    mc.write_table(table(count), path, mc.KeyTools(kms).encryption(policy_of(case)))


# --- both directions -----------------------------------------------------------------------------


@each_case("case", PAGES, ids=case_name, quick=each_value)
def test_we_read_what_parquet_java_wrote(
    theirs: JavaKeyTools, kms: MemoryKms, tmp_path: Path, case: Case
) -> None:
    path = tmp_path / "theirs.parquet"
    theirs.write(path, SCHEMA, rows(), page_version=case["version"], **java_settings(case))
    beside = tmp_path / "_KEY_MATERIAL_FOR_theirs.parquet.json"
    assert beside.exists() == (case["material"] == "external")

    assert we_read(path, kms, case).to_pylist() == table().to_pylist()

    double = case["wrapping"] == "double"
    calls = MASTERS_USED if double else KEYS
    assert kms.count("unwrap") == calls[case["layout"]]
    assert set(kms.lengths) == {(case["kek_bits"] if double else case["bits"]) // 8}


@each_case("case", PAGES, ids=case_name, quick=each_value)
def test_parquet_java_reads_what_we_write(
    theirs: JavaKeyTools, kms: MemoryKms, tmp_path: Path, case: Case
) -> None:
    path, plain = tmp_path / "ours.parquet", tmp_path / "plain"
    pages = {"v1": "1.0", "v2": "2.0"}[case["version"]]
    pq.write_table(table(), plain, data_page_version=pages, row_group_size=20)

    mc.encrypt_parquet(plain, path, mc.KeyTools(kms).encryption(policy_of(case)))

    assert theirs.read(path) == rows()
    unwraps = [call for call in theirs.calls() if call.startswith("unwrap")]
    assert set(unwraps) <= {f"unwrap {name}" for name in MASTERS}
    if case["wrapping"] == "double":
        assert len(unwraps) == len(kms.calls) == MASTERS_USED[case["layout"]]
    else:
        assert len(unwraps) >= len(kms.calls)


@pytest.mark.parametrize("writers", [*itertools.product(["modcrypt", "parquet-java"], repeat=2)])
def test_a_file_in_anothers_place_is_read_by_both(
    theirs: JavaKeyTools, kms: MemoryKms, tmp_path: Path, writers: tuple[str, str]
) -> None:
    path = tmp_path / "data.parquet"
    for writer, count in zip(writers, (5, 50), strict=True):
        if writer == "modcrypt":
            we_write(path, kms, ONE, count)
        else:
            theirs.write(path, SCHEMA, rows(count), **java_settings(ONE))
    assert theirs.read(path) == rows()
    assert we_read(path, kms, ONE).num_rows == 50


# --- rotation ------------------------------------------------------------------------------------


@each_case("case", pairwise(
    what=("mek", "kek", "dek"), writer=("parquet-java", "modcrypt"), to=("newest", "another"),
    **MATRIX,
), ids=case_name)  # fmt: skip
def test_parquet_java_reads_what_we_rotate(
    theirs: JavaKeyTools, kms: MemoryKms, tmp_path: Path, case: Case
) -> None:
    path = tmp_path / "data.parquet"
    if case["writer"] == "modcrypt":
        we_write(path, kms, case)
    else:
        theirs.write(path, SCHEMA, rows(), **java_settings(case))
    masters: dict[str, str] = {}
    if case["to"] == "newest":
        kms.rotate()
    else:
        masters = {name: f"new {name}" for name in MASTERS}
        kms.versions |= {new: [MASTERS[old][::-1]] for old, new in masters.items()}

    tools = mc.KeyTools(kms)
    decryption = tools.decryption(accept_algorithms=[case["algorithm"]])
    (file,) = mc.jobs.rotate_keys(
        path, tools, what=case["what"], new_master_keys=masters, decryption=decryption
    )

    assert (file.result, file.message) == ("rotated", "")
    kms.destroy_old()
    after = kms.without(*masters)
    theirs.knows(after)
    assert theirs.read(path) == rows()
    assert we_read(path, after, case).to_pylist() == table().to_pylist()


@each_case("case", pairwise(
    after=("double", "single"), writer=("parquet-java", "modcrypt"),
    **{**MATRIX, "material": ("external",)},
), ids=case_name, quick=each_value)  # fmt: skip
def test_we_read_and_rotate_what_parquet_java_has_rotated(
    theirs: JavaKeyTools, kms: MemoryKms, tmp_path: Path, case: Case
) -> None:
    paths = [tmp_path / f"part-{n}.parquet" for n in range(3)]
    for path in paths:
        if case["writer"] == "modcrypt":
            we_write(path, kms, case)
        else:
            theirs.write(path, SCHEMA, rows(), **java_settings(case))

    for who in ("parquet-java", "modcrypt", "parquet-java"):
        kms.rotate()
        theirs.knows(kms)
        if who == "parquet-java":
            theirs.rotate(tmp_path, double_wrapping=case["after"] == "double")
        else:
            tools = mc.KeyTools(kms)
            decryption = tools.decryption(accept_algorithms=[case["algorithm"]])
            rotated = mc.jobs.rotate_keys(tmp_path, tools, what="kek", decryption=decryption)
            assert [file.result for file in rotated] == ["rotated"] * 3
        kms.destroy_old()
        theirs.knows(kms)
        for path in paths:
            assert theirs.read(path) == rows()
            assert we_read(path, kms, case).to_pylist() == table().to_pylist()


@pytest.mark.parametrize("times", [1, 2])
def test_parquet_java_rotates_a_file_that_we_replaced(
    theirs: JavaKeyTools, kms: MemoryKms, tmp_path: Path, times: int
) -> None:
    """It rotates no file without a `footerKey`, and takes all other names for column keys."""
    path = tmp_path / "data.parquet"
    for count in (5, 20, 50)[-times - 1 :]:
        we_write(path, kms, ONE, count)
    kms.rotate()
    theirs.knows(kms)
    theirs.rotate(tmp_path)
    kms.destroy_old()
    theirs.knows(kms)
    assert theirs.read(path) == rows()
    assert we_read(path, kms, ONE).to_pylist() == table().to_pylist()

    we_write(path, kms, ONE)
    assert theirs.read(path) == rows()
    (file,) = mc.jobs.rotate_keys(path, mc.KeyTools(kms))
    assert file.result == "rotated"
    assert theirs.read(path) == rows()


@pytest.mark.parametrize("material", ["internal", "external"])
def test_the_checksums_that_hadoop_keeps_of_local_files_are_not_left_wrong(
    theirs: JavaKeyTools, kms: MemoryKms, tmp_path: Path, material: str
) -> None:
    """Hadoop reads no file that isn't as `.NAME.crc` says, and any that has none."""
    path, case = tmp_path / "data.parquet", {**ONE, "material": material}
    theirs.write(path, SCHEMA, rows(5), **java_settings(case))
    checksums = {f".{file.name}.crc" for file in tmp_path.glob("[!.]*")}
    assert checksums == {file.name for file in tmp_path.glob(".*")}
    mc.jobs.rotate_keys(path, mc.KeyTools(kms))
    assert theirs.read(path) == rows(5)
    we_write(path, kms, case)
    assert theirs.read(path) == rows()


# --- an AAD prefix, a key that is not there, what files cost -------------------------------------


@pytest.mark.parametrize("footer", ["encrypted", "plaintext"])
@pytest.mark.parametrize("material", ["internal", "external"])
def test_an_aad_prefix_and_a_key_service_go_together(
    theirs: JavaKeyTools, kms: MemoryKms, tmp_path: Path, material: str, footer: str
) -> None:
    """parquet-java's key tools have no way to write such a file, and read it."""
    path = tmp_path / "part-0.parquet"
    policy = policy_of({**ONE, "material": material, "footer": footer}, aad_prefix="people/{name}")
    tools = mc.KeyTools(kms)
    mc.write_table(table(), path, tools.encryption(policy))
    assert b"people/part-0.parquet" in path.read_bytes()
    assert theirs.read(path) == rows()
    assert mc.read_table(path, tools.decryption(policy)).num_rows == 50


@pytest.mark.parametrize("wrapping", ["double", "single"])
def test_neither_opens_a_column_whose_master_key_is_not_there(
    theirs: JavaKeyTools, kms: MemoryKms, tmp_path: Path, wrapping: str
) -> None:
    ours, other, less = tmp_path / "ours", tmp_path / "other", kms.without("kc2")
    case = {**ONE, "wrapping": wrapping, "material": "internal"}
    we_write(ours, kms, case)
    theirs.write(other, SCHEMA, rows(), **java_settings(case))
    theirs.knows(less)
    with pytest.raises(ParquetJavaError, match="there is no master key kc2"):
        theirs.read(ours)
    with pytest.raises(mc.errors.KeyNotFoundError, match="kc2"):
        we_read(other, less, case)
    left = mc.read_table(other, mc.KeyTools(less).decryption(on_missing_key="drop"))
    assert left.column_names == ["id", "flag", "address", "tags"]


def test_ten_files_of_either_cost_the_other_one_call_for_each_kek(
    theirs: JavaKeyTools, kms: MemoryKms, tmp_path: Path
) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    case, writing = {**ONE, "material": "internal"}, mc.KeyTools(kms)
    for n in range(10):
        theirs.write(tmp_path / "theirs" / f"{n}", SCHEMA, rows(1), **java_settings(case))
        path = tmp_path / "ours" / f"{n}"
        mc.write_table(table(1), path, writing.encryption(policy_of(case)))
    names = sorted(MASTERS)
    wrapped = sorted(call for call in theirs.calls() if call.startswith("wrap"))
    assert wrapped == [f"wrap {name}" for name in names]
    assert sorted(kms.calls) == [("wrap", name) for name in names]

    kms.calls.clear()
    assert mc.read_table(tmp_path / "theirs", mc.KeyTools(kms).decryption()).num_rows == 10
    assert sorted(kms.calls) == [("unwrap", name) for name in names]
    for n in range(10):
        assert theirs.read(tmp_path / "ours" / f"{n}") == rows(1)
    unwrapped = sorted(call for call in theirs.calls() if call.startswith("unwrap"))
    assert unwrapped == [f"unwrap {name}" for name in names]


# --- addresses in files --------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str | None]]]:
    """Yield a server's address and the tokens that it received."""
    tokens: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers["X-Token"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="listener", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/keys", tokens
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("material", ["internal", "external"])
def test_an_address_in_a_file_is_where_we_never_go(
    theirs: JavaKeyTools, kms: MemoryKms, tmp_path: Path, material: str,
    listener: tuple[str, list[str | None]],
) -> None:  # fmt: skip
    """Whoever has written a file must not learn the reader's access token."""
    (address, tokens), path = listener, tmp_path / "theirs.parquet"
    settings = java_settings({**ONE, "material": material})
    instance = {"kms.instance.url": address, "key.access.token": "of the writer"}
    theirs.write(path, SCHEMA, rows(), **settings, **instance)
    named = path if material == "internal" else tmp_path / f"_KEY_MATERIAL_FOR_{path.name}.json"
    assert address.encode() in named.read_bytes()
    tokens.clear()

    tools = mc.KeyTools(kms)
    assert mc.read_table(path, tools.decryption()).num_rows == 50
    assert list(mc.jobs.scan_keys(path))
    assert list(mc.jobs.scan_keys(path, tools))
    for what in ("mek", "kek", "dek"):
        (file,) = mc.jobs.rotate_keys(path, tools, what=what)
        assert file.result == "rotated"
        assert mc.read_table(path, mc.KeyTools(kms).decryption()).num_rows == 50
        assert (address.encode() in named.read_bytes()) == (what != "dek")
    assert tokens == []


# --- files that others wrote with key tools ------------------------------------------------------


@each_case(("folder", "entry"), entry_params("entries", lambda entry: bool(entry.get("kms"))))
def test_every_shared_file_with_key_material_is_read(folder: str, entry: dict[str, Any]) -> None:
    root = shared_vectors() / folder
    masters = entry["kms"]["master_keys"]
    kms = MemoryKms.of({name: bytes.fromhex(key) for name, key in masters.items()})
    decryption = mc.KeyTools(kms).decryption(**reader_of(entry["enc"]))

    found = mc.read_table(root / entry["file"], decryption, partitioning=None)

    assert found.equals(pq.read_table(root / entry["twin"]))
    assert {name for _, name in kms.calls} <= set(masters)
    keys = mc.jobs.scan_keys(root / entry["file"], mc.KeyTools(kms), decryption=decryption)
    reported = {key.storage for key in keys}
    assert reported == {"external" if entry["kms"]["key_material_file"] else "internal"}


def test_the_published_file_with_external_key_material_is_read() -> None:
    kms = MemoryKms.of({"kf": FOOTER_KEY, "kc1": COLUMN_KEY, "kc2": OTHER_KEY})
    name = "external_key_material_java.parquet.encrypted"
    path = shared_vectors() / "parquet-testing" / name
    found = mc.read_table(path, mc.KeyTools(kms).decryption())
    assert found.to_pydict() == {
        "integers": list(range(100)),
        "strings": [f"{'abcdefghij'[n % 10]}{n}" for n in range(100)],
    }
    assert kms.count("unwrap") == len(kms.calls) <= 3
