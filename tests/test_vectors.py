"""spec-vectors/ against modcrypt, and the independent verifier against everybody's files."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt
from modcrypt.aad import module_aad
from modcrypt.aead import CTR_SLACK, CtrCipher, GcmCipher
from modcrypt.errors import LimitError, ModcryptError, TagMismatchError
from modcrypt.keys import Key
from modcrypt.module_ids import ModuleId, ModuleType
from modcrypt.parquet.crypto.ciphers import FileCipher
from modcrypt.runtime.code_form import code_form
from tests.support.agreement import check_agreement
from tests.support.cases import each_case, one_in
from tests.support.forging import plain_file
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.shared_vectors import shared_vectors
from tests.support.tables import small_table
from tools import unknown_field_vectors, vectors, verify_pme
from tools.conformance.clients.arrow_rows import tagged_rows
from tools.conformance.rows import row_digest
from tools.module_vectors import flip_bit, slug
from tools.vector_files import modules
from tools.vector_patches import FOLDER
from tools.verify_pme import VerifyError, open_module, verify

Case: TypeAlias = dict[str, Any]
Mark: TypeAlias = Callable[[Callable[[Case], None]], Callable[[Case], None]]
BOTH = ("AES_GCM_V1", "AES_GCM_CTR_V1")
KEYS = {n: bytes.fromhex(k) for n, k in json.loads((FOLDER / "keys.json").read_text()).items()}
PARQUET = vectors.load("parquet/cases.json")


def each(cases: list[Case]) -> Mark:
    """Run a test for every case, under its id."""
    return each_case("case", cases, ids=[case["id"] for case in cases])


# --- AADs and modules ---------------------------------------------------------------------------


@each(vectors.load("aad.json"))
def test_aads_are_those_of_the_vectors(case: Case) -> None:
    file_aad = bytes.fromhex(case["aad_prefix"]) + bytes.fromhex(case["aad_file_unique"])
    place = dict(case["module"])
    module = ModuleId(ModuleType[place.pop("type")], **place)
    ordinals = (module.row_group, module.column, module.page)
    if case["expect"] == "limit":
        with pytest.raises(LimitError):
            module_aad(file_aad, module)
        with pytest.raises(VerifyError, match="limit"):
            verify_pme.module_aad(file_aad, module.type, *ordinals)
    else:
        assert module_aad(file_aad, module).hex() == case["aad"]
        assert verify_pme.module_aad(file_aad, module.type, *ordinals).hex() == case["aad"]


@each(vectors.load("gcm.json"))
def test_gcm_modules_open_or_fail_as_the_vectors_say(case: Case) -> None:
    module, aad = bytes.fromhex(case["module"]), bytes.fromhex(case["aad"])
    place = dict(case["module_id"])
    address = ModuleId(ModuleType[place.pop("type")], **place)
    key, cipher = KEYS[case["key"]], FileCipher(bytes.fromhex(case["file_aad"]), "AES_GCM_V1")
    if case["expect"] == "ok":
        plaintext = bytes.fromhex(case["plaintext"])
        assert cipher.decrypt(Key(key), address, module) == plaintext
        assert open_module(key, aad, module) == plaintext
        with mock.patch("modcrypt.aead.urandom", return_value=bytes.fromhex(case["nonce"])):
            assert GcmCipher(Key(key)).encrypt(plaintext, aad) == module
        return
    with pytest.raises(ModcryptError) as failure:
        cipher.decrypt(Key(key), address, module)
    assert failure.value.word == case["expect"]
    if isinstance(failure.value, TagMismatchError):
        assert failure.value.module == address
    with pytest.raises(VerifyError) as said:
        open_module(key, aad, module)
    assert said.value.word == case["expect"]


@each(vectors.load("ctr.json"))
def test_ctr_modules_open_as_the_vectors_say(case: Case) -> None:
    module, key = bytes.fromhex(case["module"]), KEYS[case["key"]]
    assert case["iv"] == case["nonce"] + "00000001"
    if case["expect"] != "ok":
        # In modcrypt the page loop checks this length: see ctr-data-page-length-flipped.
        with pytest.raises(VerifyError, match=case["expect"]):
            open_module(key, b"", module, ctr=True)
        return
    plaintext = bytes.fromhex(case["plaintext"])
    out = bytearray(len(plaintext) + CTR_SLACK)
    CtrCipher(Key(key)).decrypt_into(memoryview(module), b"", memoryview(out))
    assert out[: len(plaintext)] == plaintext
    assert open_module(key, b"", module, ctr=True) == plaintext
    with mock.patch("modcrypt.aead.urandom", return_value=bytes.fromhex(case["nonce"])):
        sealed = bytearray(len(module) + CTR_SLACK)
        end = CtrCipher(Key(key)).encrypt_into(
            memoryview(sealed), 0, plaintext, len(plaintext), b""
        )
    assert sealed[:end] == module


# --- whole files --------------------------------------------------------------------------------


def reading(case: Case) -> modcrypt.FileDecryptionProperties:
    """Return a case's keys and properties as modcrypt takes them."""
    keys, properties = case["keys"], dict(case["properties"])
    prefix = properties.pop("aad_prefix", None)
    if "algorithms" in properties:
        properties["accept_algorithms"] = properties.pop("algorithms")
    return modcrypt.FileDecryptionProperties(
        footer_key=KEYS[keys["footer"]] if keys["footer"] else None,
        column_keys={path: KEYS[name] for path, name in keys["columns"].items()},
        aad_prefix=None if prefix is None else bytes.fromhex(prefix),
        **properties,
    )


def decrypt_file(data: bytes, properties: modcrypt.FileDecryptionProperties) -> bytes:
    out = io.BytesIO()
    modcrypt.decrypt_parquet(data, out, properties)
    return out.getvalue()


@each([case for case in PARQUET if case["expect"] == "ok"])
def test_good_files_decrypt_to_the_payload(case: Case) -> None:
    payload = decrypt_file(vectors.case_bytes(case), reading(case))
    if case["payload_sha256"] is not None:
        assert hashlib.sha256(payload).hexdigest() == case["payload_sha256"]
    if case["drops"]:
        plain = FOLDER / "parquet" / case["plain"]
        schema = pq.ParquetFile(plain).schema
        leaves = [schema.column(i).path for i in range(len(schema))]
        wanted = [leaf for leaf in leaves if leaf not in case["drops"]]
        assert pq.read_table(io.BytesIO(payload)) == pq.ParquetFile(plain).read(wanted)


UNIFORM = [
    case
    for case in PARQUET
    if case["expect"] == "ok" and not case["keys"]["columns"] and not case["patches"]
    and "v2-levels-clear" not in case["tags"]  # parquet-java's layout, which PyArrow can't read
]  # fmt: skip


@each(UNIFORM)
def test_pyarrow_reads_the_uniform_files(case: Case) -> None:
    prefix = case["properties"].get("aad_prefix")
    properties = pe.create_decryption_properties(
        footer_key=KEYS[case["keys"]["footer"]],
        **({} if prefix is None else {"aad_prefix": bytes.fromhex(prefix)}),
    )
    table = pq.read_table(io.BytesIO(vectors.case_bytes(case)), decryption_properties=properties)
    assert row_digest(**tagged_rows(table)) == case["rows"]["sha256"]


@each([case for case in PARQUET if case["expect"] != "ok"])
def test_faulty_files_are_refused_with_word_and_module(case: Case) -> None:
    with pytest.raises(ModcryptError) as failure:
        decrypt_file(vectors.case_bytes(case), reading(case))
    error, expected = failure.value, case["error"]
    assert error.word == case["expect"]
    assert getattr(error, "column", None) == expected["column"]
    if expected["module"] is not None:
        place = dict(expected["module"])
        module = ModuleId(ModuleType[place.pop("type")], **place)
        if isinstance(error, TagMismatchError):
            assert error.module == module
        assert str(module) in str(error)
    else:
        assert not isinstance(error, TagMismatchError)


@each(PARQUET)
def test_verification_agrees_with_reading(case: Case) -> None:
    check_agreement(vectors.case_bytes(case), reading(case))


@each(PARQUET)
def test_the_independent_verifier_agrees(case: Case) -> None:
    assert vectors.disagreement(case, vectors.case_bytes(case)) is None


@pytest.mark.skipif(code_form() == "compiled", reason="the tool replaces interpreted functions")
def test_the_committed_vectors_are_what_the_tool_builds() -> None:
    for path, content in vectors.documents().items():
        assert (FOLDER / path).read_bytes() == content, path


def test_vectors_cover_every_word_module_type_and_region() -> None:
    ids = {case["id"] for case in PARQUET}
    for kind in ModuleType:
        for region in ("nonce", "ciphertext", "tag"):
            assert f"{slug(kind)}-{region}-flipped" in ids
        assert f"{slug(kind)}-of-another-file" in ids
    counted: list[Counter[str]] = [
        Counter(case["modules"]) for case in PARQUET if "modules" in case
    ]
    assert {name for count in counted for name in count} == {kind.name for kind in ModuleType}
    assert {case["expect"] for case in PARQUET} == {
        "ok", "tag", "signature", "format", "limit", "aad-prefix", "plaintext", "no-key",
        "unsupported", "checksum", "integrity",
    }  # fmt: skip


# --- the verifier itself ------------------------------------------------------------------------


def test_the_verifier_imports_only_cryptography_and_the_standard_library() -> None:
    tree = ast.parse(Path(verify_pme.__file__).read_text())
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module or "."] if isinstance(node, ast.ImportFrom)
            else []
        )
    }  # fmt: skip
    assert names - sys.stdlib_module_names == {"cryptography"}


@pytest.mark.parametrize("name", ["gcm-ef-columns", "gcm-pf-columns"])
def test_the_verifier_refuses_a_flip_anywhere_but_in_key_metadata(name: str) -> None:
    case = next(case for case in PARQUET if case["id"] == name)
    data = vectors.case_bytes(case)
    passed = {
        at
        for at in range(len(data))
        if not isinstance(vectors.verdict(case, flip_bit(data, at)), VerifyError)
    }
    # Before a sealed footer it is not authenticated; with keys given it carries nothing.
    at = data.index(b"kf")
    assert passed == ({at, at + 1} if name == "gcm-ef-columns" else set())


@each([case for case in PARQUET if "modules" in case])
def test_the_verifier_refuses_bytes_that_are_missing(case: Case) -> None:
    data = vectors.case_bytes(case)
    for at in range(0, len(data), 61):
        assert isinstance(vectors.verdict(case, data[:at]), VerifyError)
        # The last plaintext column of flat.parquet stands after all modules: nobody sees a gap.
        if case["plain"] != "plain/flat.parquet":
            assert isinstance(vectors.verdict(case, data[:at] + data[at + 1 :]), VerifyError)


def test_the_verifier_runs_as_a_command(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    file = FOLDER / "parquet/base/gcm-ef-uniform-192.parquet"
    command = [sys.executable, verify_pme.__file__, str(file), "--keys", str(keys)]
    keys.write_text(json.dumps({"footer_key": KEYS["footer-192"].hex()}))
    good = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert len(good.stdout.splitlines()) == len(modules("gcm-ef-uniform-192"))
    keys.write_text(json.dumps({"footer_key": KEYS["column-c-192"].hex()}))
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout, bad.stderr[:4]) == (1, "", "tag:")


# --- what modcrypt and others write -------------------------------------------------------------


def matrix() -> list[Any]:
    """Return footer mode, algorithm, keys, prefix and V2 layout in combinations that all differ."""
    group = {"column_keys": {"address": COLUMN_KEY, "id": OTHER_KEY}}
    layouts: list[dict[str, Any]] = [
        {},
        group,
        group | {"plaintext_columns": ["name", "tags"]},
        {"footer_key": b"k" * 32, "column_keys": {"score": b"c" * 24}},
    ]
    prefixes: list[dict[str, Any]] = [
        {}, {"aad_prefix": b"table/part.0"}, {"aad_prefix": b"p", "store_aad_prefix": False},
    ]  # fmt: skip
    params = []
    for footer in (False, True):
        for algorithm in BOTH:
            for n, layout in enumerate(layouts):
                prefix = prefixes[(n + footer) % 3]
                for levels in ("encrypted", "plaintext"):
                    options = {
                        "footer_key": FOOTER_KEY, "plaintext_footer": footer, **prefix, **layout,
                        "encryption_algorithm": algorithm, "data_page_v2_levels": levels,
                    }  # fmt: skip
                    params.append(pytest.param(options, id=f"{algorithm}-{footer}-{n}-{levels}"))
    return params


@pytest.fixture(scope="module")
def plaintext_files() -> list[bytes]:
    """Write V1 and V2 pages, checksums, indexes, bloom filters, three row groups, no rows."""
    table = small_table(60)
    common = {"row_group_size": 25, "write_page_index": True, "max_rows_per_page": 10}
    return [
        plain_file(table, **common, bloom_filter_options={"id": {"ndv": 60, "fpp": 0.1}}),
        plain_file(table, **common, data_page_version="2.0", write_page_checksum=True),
        plain_file(table, **common, data_page_version="2.0", compression="none"),
        plain_file(table.slice(0, 0)),
    ]


@each_case("options", matrix(), quick=one_in(2))
def test_the_verifier_finds_what_modcrypt_wrote(
    options: dict[str, Any], plaintext_files: list[bytes]
) -> None:
    given = options.get("column_keys", {})
    names = {"address": ("address.zip", "address.city")}
    column_keys = {leaf: given[name] for name in given for leaf in names.get(name, (name,))}
    for plain in plaintext_files:
        out = io.BytesIO()
        modcrypt.encrypt_parquet(plain, out, modcrypt.FileEncryptionProperties(**options))
        data = out.getvalue()
        found = verify(
            data,
            options["footer_key"],
            column_keys,
            options.get("aad_prefix"),
            accept_algorithms=BOTH,
        )
        bloom = plain is plaintext_files[0]
        assert Counter(m.type for m in found) == expected_modules(plain, options, bloom)
        inspected = modcrypt.inspect_parquet(
            data,
            modcrypt.FileDecryptionProperties(
                footer_key=options["footer_key"], column_keys=column_keys, accept_algorithms=BOTH,
                aad_prefix=options.get("aad_prefix"),
            ),
            pages=True,
        )  # fmt: skip
        outside = {ModuleType.FOOTER, ModuleType.COLUMN_METADATA}
        assert {end_of(m) for m in found if m.type not in outside} == {
            (ModuleType[r.kind.upper().replace(" ", "_")], r.row_group, r.column, r.page, r.end)
            for r in inspected.regions
            if r.column is not None and r.key is not None
        }
        (footer,) = (m for m in found if m.type == ModuleType.FOOTER)
        assert end_of(footer)[-1] == len(data) - 8


def end_of(module: verify_pme.Module) -> tuple[int | None, ...]:
    """Address and end; the start of a page with levels in clear is named in two ways."""
    assert module.offset is not None
    return (*module[:4], module.offset + module.size)


def expected_modules(
    plain: bytes, options: dict[str, Any], bloom_filter: bool = False
) -> Counter[int]:
    """Count the modules that must be there, by what PyArrow says of the plaintext file."""
    file = pq.ParquetFile(io.BytesIO(plain))
    count: Counter[int] = Counter({ModuleType.FOOTER: 1})
    for r in range(file.metadata.num_row_groups):
        for c in range(file.metadata.num_columns):
            chunk = file.metadata.row_group(r).column(c)
            top = chunk.path_in_schema.partition(".")[0]
            if top in options.get("plaintext_columns", ()):
                continue
            own = top in options.get("column_keys", {})
            pages = -(-file.metadata.row_group(r).num_rows // 10)
            count[ModuleType.COLUMN_METADATA] += own or options["plaintext_footer"]
            count[ModuleType.DATA_PAGE] += pages
            count[ModuleType.DATA_PAGE_HEADER] += pages
            count[ModuleType.DICTIONARY_PAGE] += chunk.has_dictionary_page
            count[ModuleType.DICTIONARY_PAGE_HEADER] += chunk.has_dictionary_page
            count[ModuleType.COLUMN_INDEX] += chunk.has_column_index
            count[ModuleType.OFFSET_INDEX] += chunk.has_offset_index
            if bloom_filter and chunk.path_in_schema == "id":
                count[ModuleType.BLOOM_FILTER_HEADER] += 1
                count[ModuleType.BLOOM_FILTER_BITSET] += 1
    return count


@each_case("algorithm", BOTH)
@each_case("stored", [True, False])
@each_case("version", ["1.0", "2.0"])
@each_case("plaintext_footer", [True, False])
def test_the_verifier_opens_what_pyarrow_writes(
    algorithm: str, stored: bool, version: str, plaintext_footer: bool
) -> None:
    properties = pe.create_encryption_properties(
        footer_key=FOOTER_KEY, aad_prefix=b"table/part.0", store_aad_prefix=stored,
        encryption_algorithm=algorithm, plaintext_footer=plaintext_footer,
    )  # fmt: skip
    options: dict[str, Any] = {
        "row_group_size": 25, "write_page_index": True, "max_rows_per_page": 10,
        "data_page_version": version, "write_page_checksum": True,
    }  # fmt: skip
    data = plain_file(small_table(60), **options, encryption_properties=properties)
    plain = plain_file(small_table(60), **options)
    found = verify(data, FOOTER_KEY, {}, b"table/part.0", accept_algorithms=BOTH)
    assert Counter(m.type for m in found) == expected_modules(
        plain, {"plaintext_footer": plaintext_footer}
    )
    # Uniform encryption leaves nothing between the magic and the tail that is no module.
    reached = 4
    for module in sorted(found, key=lambda m: m.offset or 0):
        if module.type in (ModuleType.FOOTER, ModuleType.COLUMN_METADATA):
            continue
        assert module.offset == reached
        reached += module.size
    assert reached == len(data) - 8 - int.from_bytes(data[-8:-4], "little")


# --- files of parquet-java and others -----------------------------------------------------------

TYPE_OF = dict(
    zip(
        ("Footer", "ColumnMetaData", "DataPage", "DictPage", "DataPageHeader", "DictPageHeader",
         "ColumnIndex", "OffsetIndex", "BloomHeader", "BloomBitset"),
        ModuleType,
        strict=True,
    )
)  # fmt: skip
"""Names in the manifests of the shared files."""


def keys_in(entry: dict[str, Any]) -> tuple[bytes, dict[str, bytes], bytes | None]:
    """Return footer key, column keys and AAD prefix of a manifest's entry."""
    encryption = entry["enc"]
    columns = (encryption["columns"] or {}).items()
    prefix = encryption["aad_prefix"]
    return (
        bytes.fromhex(encryption["footer_key"]),
        {path: bytes.fromhex(column["key"]) for path, column in columns if column["key"]},
        None if prefix is None else prefix.encode(),
    )


@pytest.mark.parametrize("writer", ["parquet-java", "pyarrow"])
def test_the_verifier_finds_every_module_of_other_writers(writer: str) -> None:
    folder = shared_vectors() / writer
    entries = json.loads((folder / "manifest.json").read_text())["entries"]
    assert entries
    for entry in entries:
        # The manifest's scanner passed over row groups without rows; their dictionaries are there.
        if entry["file"] == "enc/direct_empty_nested.parquet":
            continue
        found = verify(
            (folder / entry["file"]).read_bytes(), *keys_in(entry), accept_algorithms=BOTH
        )
        counts = {ModuleType.FOOTER: 1} | {
            TYPE_OF[name]: number for name, number in entry["modules"].items() if name in TYPE_OF
        }
        assert Counter(m.type for m in found) == counts, entry["file"]


def test_the_verifier_refuses_every_file_that_was_tampered_with_detectably() -> None:
    folder = shared_vectors() / "parquet-java"
    refused = 0
    for entry in json.loads((folder / "manifest.json").read_text())["tampered"]:
        # Entries on an unaltered file are about keys and prefixes that the reader gets wrong.
        if entry["base"] is None or not entry["expect"].startswith("detect"):
            continue
        with pytest.raises(VerifyError):
            verify(
                (folder / entry["file"]).read_bytes(), *keys_in(entry),
                accept_algorithms=(entry["enc"]["algorithm"],),
            )  # fmt: skip
        refused += 1
    assert refused > 50


# --- unknown fields -------------------------------------------------------------------------------


@each(vectors.load("parquet/unknown-fields.json"))
def test_unknown_fields_are_kept_where_the_vectors_say(case: Case) -> None:
    plain = (FOLDER / "parquet" / case["file"]).read_bytes()
    assert bytes.fromhex(case["marker"]) in plain
    assert unknown_field_vectors.problem(case, plain, KEYS) is None
