"""Re-keyed files: the same plaintext file under other keys and modes, or no file at all.

Who judges: `decrypt_parquet`, whose plaintext must be the one that went in, byte for byte, and
`tools/verify_pme.py`, which shares no line with the package, for the modules themselves. What peers
read is in `interop/test_rekey_peers.py`.
"""

from __future__ import annotations

import functools
import io
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import decode
from tests.support import forging
from tests.support.cases import each_case, one_in
from tests.support.forging import plain_file
from tests.support.in_memory import decrypt, encrypt
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.kms.memory_kms import MemoryKms
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.parquet_parser import modules_of
from tests.support.tables import nested_table, small_table
from tools.verify_pme import Module, verify

GCM, CTR = "AES_GCM_V1", "AES_GCM_CTR_V1"
BOTH = (GCM, CTR)
PREFIX = b"employees_23May2018.part0"
NEW_PREFIX = b"employees_24May2018.part0"
KEYS = {16: bytes(range(1, 17)), 24: bytes(range(1, 25)), 32: bytes(range(1, 33))}
NEW_KEYS = {16: bytes(range(101, 117)), 24: bytes(range(101, 125)), 32: bytes(range(101, 133))}


def rekey(
    source: Any, decryption: mc.FileDecryptionProperties, encryption: Any, **options: Any
) -> bytes:
    out = io.BytesIO()
    mc.rekey_parquet(source, out, decryption, encryption, **options)
    return out.getvalue()


# --- what a file is encrypted with ----------------------------------------------------------------


class Mode:
    """One way to encrypt a file, and what opens it.

    Column keys go to the first column and to the last; a layout with plaintext leaves the last.
    """

    def __init__(self, case: Mapping[str, Any], side: str, names: list[str]) -> None:
        get = {name.removeprefix(side): value for name, value in case.items()}
        keys = KEYS if side == "old_" else NEW_KEYS
        first, last = names[0], names[-1]
        self.footer_key, column_key = keys[get["bits"]], keys[16][::-1]
        own = {"uniform": [], "columns": [first, last], "plaintext": [first]}[get["layout"]]
        plaintext = [last] if get["layout"] == "plaintext" and last not in own else []
        self.column_keys = dict.fromkeys(own, column_key)
        self.prefix = None if get["prefix"] == "none" else PREFIX
        self.encryption = mc.FileEncryptionProperties(
            footer_key=self.footer_key,
            column_keys=self.column_keys,
            plaintext_columns=plaintext,
            plaintext_footer=get["footer"] == "plaintext",
            encryption_algorithm=get["algorithm"],
            aad_prefix=self.prefix,
            store_aad_prefix=get["prefix"] == "stored",
            data_page_v2_levels=get["levels"],
            footer_key_metadata=b"kf" if get["footer"] == "plaintext" else None,
        )
        self.decryption = mc.FileDecryptionProperties(
            footer_key=self.footer_key,
            column_keys=self.column_keys,
            aad_prefix=self.prefix,
            accept_algorithms=[get["algorithm"]],
        )

    def verify_modules(self, data: bytes, leaves: list[str]) -> list[Module]:
        """Open every module by code that is not modcrypt's."""
        keys = {
            leaf: key
            for leaf in leaves
            for name, key in self.column_keys.items()
            if leaf == name or leaf.startswith(f"{name}.")
        }
        (algorithm,) = self.decryption.accept_algorithms
        return verify(data, self.footer_key, keys, self.prefix, accept_algorithms=(algorithm,))


PAGES: dict[str, Any] = {"max_rows_per_page": 5, "write_batch_size": 5, "row_group_size": 20}
EVERYTHING = PAGES | {
    "write_page_index": True,
    "write_page_checksum": True,
    "bloom_filter_options": {"id": {"ndv": 60}, "name": {"ndv": 9}},
}


def no_row_groups() -> bytes:
    out = io.BytesIO()
    pq.ParquetWriter(out, small_table().schema).close()
    return out.getvalue()


def empty_row_groups() -> bytes:
    """Return row groups of no rows before, between and after others."""
    out, table = io.BytesIO(), small_table(10)
    with pq.ParquetWriter(out, table.schema) as writer:
        for rows in (0, 4, 0, 0, 6, 0):
            writer.write_table(table.slice(0, rows))
    return out.getvalue()


SHAPES: dict[str, Callable[[], bytes]] = {
    "small": lambda: plain_file(small_table()),
    "pages v1": lambda: plain_file(small_table(60), **EVERYTHING),
    "pages v2": lambda: plain_file(
        small_table(60), data_page_version="2.0", compression="zstd", **EVERYTHING
    ),
    "uncompressed v2": lambda: plain_file(
        small_table(60), data_page_version="2.0", compression="none", use_dictionary=False, **PAGES
    ),
    "nested": lambda: plain_file(nested_table(), write_page_index=True, **PAGES),
    "nested v2": lambda: plain_file(nested_table(), data_page_version="2.0", **PAGES),
    "many row groups": lambda: plain_file(small_table(20), row_group_size=1),
    "no rows": lambda: plain_file(small_table(0), write_page_index=True),
    "no row groups": no_row_groups,
    "empty row groups": empty_row_groups,
    "one column": lambda: plain_file(pa.table({"n": range(100_000)}), use_dictionary=False),
}


@functools.cache
def plain_of(shape: str) -> bytes:
    return SHAPES[shape]()


def names_of(plain: bytes) -> list[str]:
    names: list[str] = pq.read_schema(io.BytesIO(plain)).names
    return names


def leaves_of(plain: bytes) -> list[str]:
    schema = pq.ParquetFile(io.BytesIO(plain)).schema
    return [schema.column(n).path for n in range(len(schema))]


SIDES: dict[str, Any] = {
    "footer": ("encrypted", "plaintext"),
    "algorithm": BOTH,
    "layout": ("uniform", "columns", "plaintext"),
    "prefix": ("none", "stored", "supplied"),
    "bits": (16, 24, 32),
    "levels": ("encrypted", "plaintext"),
}
MATRIX = pairwise(
    shape=list(SHAPES),
    **{f"old_{name}": values for name, values in SIDES.items()},
    **{f"new_{name}": values for name, values in SIDES.items()},
)


@each_case("case", MATRIX, ids=case_name, quick=one_in(2))
def test_the_plaintext_file_stays_what_it_was_byte_for_byte(case: Case) -> None:
    plain = plain_of(case["shape"])
    names, leaves = names_of(plain), leaves_of(plain)
    old, new = Mode(case, "old_", names), Mode(case, "new_", names)
    sealed = forging.encrypt_bytes(plain, old.encryption)

    made = rekey(sealed, old.decryption, new.encryption)

    assert forging.decrypt_bytes(made, new.decryption) == plain
    # The same kinds of modules at the same addresses, and none that was there before.
    before, after = old.verify_modules(sealed, leaves), new.verify_modules(made, leaves)
    if case["old_layout"] == case["new_layout"] and case["old_footer"] == case["new_footer"]:
        assert Counter(module[:4] for module in after) == Counter(module[:4] for module in before)
    assert not nonces(sealed, before) & nonces(made, after)
    back = rekey(made, new.decryption, old.encryption)
    assert forging.decrypt_bytes(back, old.decryption) == plain


def nonces(data: bytes, modules: list[Module]) -> set[bytes]:
    """Return the nonces of modules that stand in the file by themselves; each must be another."""
    found = [
        data[m.offset + m.size - 28 :][:12]
        if m.type == 0 and data[-4:] == b"PAR1"  # a signature: nonce and tag
        else data[m.offset + 4 : m.offset + 16]
        for m in modules
        if m.offset is not None
    ]
    assert len(set(found)) == len(found)
    return set(found)


@each_case("shape", SHAPES)
def test_a_plaintext_source_is_encrypted_where_the_caller_takes_those(shape: str) -> None:
    plain = plain_of(shape)
    taken = mc.FileDecryptionProperties(require_encrypted=False)
    sealed = rekey(plain, taken, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    assert decrypt(sealed, footer_key=FOOTER_KEY) == plain
    with pytest.raises(mc.errors.PlaintextError):
        rekey(plain, READER, NEW)


def test_a_writers_file_without_what_others_write_decrypts_as_it_did() -> None:
    """arrow-rs and others leave out fields of row groups, which encrypting must add."""
    plain = plain_file(small_table(60), row_group_size=20, bloom_filter_options={"id": {"ndv": 60}})

    def leave_out(metadata: Any) -> None:
        for row_group in metadata.row_groups:
            row_group.file_offset = row_group.total_compressed_size = row_group.ordinal = None

    bare = forging.edit_plain(plain, leave_out)
    sealed = encrypt(bare, footer_key=FOOTER_KEY)
    assert decrypt(sealed, footer_key=FOOTER_KEY) == bare
    assert decrypt(rekey(sealed, READER, NEW), footer_key=OTHER_KEY) == bare
    # Another encrypting writer's, which made no note of what its source lacked.
    theirs = forging.change_footer(encrypt(plain, footer_key=FOOTER_KEY), FOOTER_KEY, leave_out)
    expected = decrypt(theirs, footer_key=FOOTER_KEY)
    made = rekey(theirs, READER, NEW)
    assert modules_of(decrypt(made, footer_key=OTHER_KEY)) == modules_of(expected)
    assert decrypt(made, footer_key=OTHER_KEY) == expected
    verify(made, OTHER_KEY, {})


def test_the_result_says_what_became_of_each_column() -> None:
    sealed = encrypt(plain_of("nested"), footer_key=FOOTER_KEY, plaintext_columns=["id"])
    new = mc.FileEncryptionProperties(footer_key=OTHER_KEY, plaintext_columns=["deep"])
    out = io.BytesIO()
    result = mc.rekey_parquet(sealed, out, READER, new)
    deep = tuple(leaf for leaf in leaves_of(plain_of("nested")) if leaf != "id")
    assert (result.resealed, result.plaintext, result.kept) == (("id",), deep, ())
    assert result.fields()["plaintext"] == deep


# --- from where, to where -------------------------------------------------------------------------


READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
NEW = mc.FileEncryptionProperties(footer_key=OTHER_KEY)
PLAIN = "pages v1"


@functools.cache
def sealed_small() -> bytes:
    return encrypt(plain_of(PLAIN), footer_key=FOOTER_KEY)


def check_new(data: bytes) -> None:
    verify(data, OTHER_KEY, {})
    assert decrypt(data, footer_key=OTHER_KEY) == plain_of(PLAIN)


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_a_file_may_take_its_own_place(tmp_path: Path, threads: int | None) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(sealed_small())
    path.chmod(0o640)
    mc.rekey_parquet(path, path, READER, NEW, threads=threads)
    check_new(path.read_bytes())
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_sources_and_destinations_of_all_kinds(tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    source.write_bytes(sealed_small())
    memory = fsspec.filesystem("memory")
    memory.pipe("/rekey/a.parquet", sealed_small())
    mc.rekey_parquet("memory://rekey/a.parquet", "memory://rekey/b.parquet", READER, NEW)
    check_new(memory.cat("/rekey/b.parquet"))
    mc.rekey_parquet("/rekey/a.parquet", "/rekey/a.parquet", READER, NEW, filesystem=memory)
    check_new(memory.cat("/rekey/a.parquet"))
    local = pafs.LocalFileSystem()
    mc.rekey_parquet(str(source), str(tmp_path / "c.parquet"), READER, NEW, filesystem=local)
    check_new((tmp_path / "c.parquet").read_bytes())
    with source.open("rb") as file, (tmp_path / "d.parquet").open("wb") as out:
        mc.rekey_parquet(file, out, READER, NEW)
    check_new((tmp_path / "d.parquet").read_bytes())
    check_new(rekey(sealed_small(), READER, NEW))


def test_a_prefix_by_the_files_name_is_known_for_the_source(tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    source.write_bytes(encrypt(plain_of(PLAIN), footer_key=FOOTER_KEY, aad_prefix=b"a.parquet"))
    by_name = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=lambda n: n.encode())
    mc.rekey_parquet(source, tmp_path / "b.parquet", by_name, NEW)
    check_new((tmp_path / "b.parquet").read_bytes())
    source.rename(tmp_path / "c.parquet")
    with pytest.raises(mc.errors.AadPrefixError):
        mc.rekey_parquet(tmp_path / "c.parquet", tmp_path / "d.parquet", by_name, NEW)
    assert not (tmp_path / "d.parquet").exists()


# --- mistakes of the caller, before anything is done ----------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"decryption": NEW}, TypeError, "FileDecryptionProperties"),
        ({"encryption": READER}, TypeError, "FileEncryptionProperties"),
        ({"threads": 0}, ValueError, "threads"),
    ],
)
def test_other_kinds_of_arguments_are_refused_before_the_source_is_opened(
    arguments: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"decryption": READER, "encryption": NEW} | arguments
    with pytest.raises(error, match=words):
        mc.rekey_parquet(tmp_path / "not there", tmp_path / "out", **given)


def test_unknown_columns_are_refused_before_a_key_is_asked_for(tmp_path: Path) -> None:
    kms = MemoryKms()
    policy = mc.Policy(footer_key="kf", column_keys={"kc1": ["no_such"]})
    encryption = mc.KeyTools(kms).encryption(policy)
    with pytest.raises(ValueError, match="no_such"):
        mc.rekey_parquet(sealed_small(), tmp_path / "out", READER, encryption)
    assert kms.calls == []
    assert not (tmp_path / "out").exists()


# --- what is refused leaves the old file ----------------------------------------------------------


@pytest.fixture
def old_file(tmp_path: Path) -> Iterator[Path]:
    """Yield a destination that is there already, and look that it is still there at the end."""
    path = tmp_path / "out.parquet"
    path.write_bytes(b"old")
    yield path
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


@functools.cache
def rich(plaintext_footer: bool, algorithm: str = GCM) -> bytes:
    """Return a file with modules of every type."""
    table = small_table(20).select(["id", "name"])
    plain = plain_file(
        table, write_page_index=True, max_rows_per_page=10, write_batch_size=10,
        bloom_filter_options={"id": {"ndv": 20}},
    )  # fmt: skip
    return encrypt(
        plain,
        footer_key=FOOTER_KEY,
        column_keys={"name": COLUMN_KEY},
        plaintext_footer=plaintext_footer,
        encryption_algorithm=algorithm,
    )


RICH = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_a_flipped_bit_in_any_module_is_refused(plaintext_footer: bool, old_file: Path) -> None:
    data = rich(plaintext_footer)
    modules = verify(data, FOOTER_KEY, {"name": COLUMN_KEY})
    # All types, but those that a file can't have alone: a plaintext footer seals no footer.
    assert {m.type for m in modules} == set(range(10))
    for module in modules:
        if module.offset is None:
            continue  # inside the sealed footer
        end = module.offset + module.size
        for at in (module.offset, module.offset + 4, module.offset + 16, end - 1):
            flipped = bytearray(data)
            flipped[at] ^= 0x10
            with pytest.raises(mc.ModcryptError):
                mc.rekey_parquet(bytes(flipped), old_file, RICH, NEW)
    rekey(data, RICH, NEW)


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_no_single_flipped_bit_goes_through_unseen(plaintext_footer: bool) -> None:
    """Every byte of a small file, that of the footer and of what is not sealed included."""
    plain = plain_file(pa.table({"n": [1, 2, 3]}), write_statistics=False, store_schema=False)
    data = encrypt(plain, footer_key=FOOTER_KEY, plaintext_footer=plaintext_footer)
    passed = []
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        try:
            made = rekey(bytes(flipped), READER, NEW)
        except mc.ModcryptError:
            continue
        passed.append(at)
        assert decrypt(made, footer_key=OTHER_KEY) == plain
    assert passed == []


@each_case("plaintext_footer", [False, True])
@each_case(
    ("reader", "error"),
    [
        ({}, mc.errors.KeyNotFoundError),
        ({"footer_key": OTHER_KEY}, mc.errors.IntegrityError),
        ({"footer_key": FOOTER_KEY}, mc.errors.KeyNotFoundError),
        (
            {"footer_key": FOOTER_KEY, "column_keys": {"name": OTHER_KEY}},
            mc.errors.TagMismatchError,
        ),
        (
            {"footer_key": FOOTER_KEY, "column_keys": {"name": COLUMN_KEY}, "aad_prefix": PREFIX},
            mc.errors.AadPrefixError,
        ),
        ({"column_keys": {"name": COLUMN_KEY}}, mc.errors.KeyNotFoundError),
        (
            {"column_keys": {"name": COLUMN_KEY}, "check_footer_integrity": False},
            mc.errors.KeyNotFoundError,
        ),
    ],
)
def test_wrong_and_missing_keys_and_prefixes_are_refused(
    plaintext_footer: bool, reader: dict[str, Any], error: type[Exception], old_file: Path
) -> None:
    decryption = mc.FileDecryptionProperties(**reader)
    with pytest.raises(error):
        mc.rekey_parquet(rich(plaintext_footer), old_file, decryption, NEW)


def test_columns_without_a_key_may_be_left_out_or_null() -> None:
    data = rich(False)
    plain = pq.read_table(io.BytesIO(decrypt(data, **keys_of_rich())))
    for what in ("drop", "null"):
        decryption = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key=what)
        out = io.BytesIO()
        result = mc.rekey_parquet(data, out, decryption, NEW)
        verify(out.getvalue(), OTHER_KEY, {})
        table = pq.read_table(io.BytesIO(decrypt(out.getvalue(), footer_key=OTHER_KEY)))
        assert table.column("id").equals(plain.column("id"))
        if what == "drop":
            assert (result.dropped, table.column_names) == (("name",), ["id"])
        else:
            assert result.nulls == ("name",)
            assert table.column("name").null_count == 20
        assert result.resealed == ("id",)
        expected = decrypt(data, footer_key=FOOTER_KEY, on_missing_key=what)
        assert decrypt(out.getvalue(), footer_key=OTHER_KEY) == expected


def keys_of_rich() -> dict[str, Any]:
    return {"footer_key": FOOTER_KEY, "column_keys": {"name": COLUMN_KEY}}


@pytest.mark.parametrize("check", [True, False])
def test_a_forged_plaintext_footer_is_not_signed_anew(check: bool, old_file: Path) -> None:
    """Whatever a reader puts up with: the new file would say that the forgery is genuine."""
    data = rich(True)
    body, tail, magic = forging.split_tail(data)
    at = tail.index(b"parquet-cpp-arrow")
    forged = forging.join_tail(body, tail[:at] + b"P" + tail[at + 1 :], magic)
    decryption = mc.FileDecryptionProperties(**keys_of_rich(), check_footer_integrity=check)
    with pytest.raises(mc.errors.FooterSignatureError):
        mc.rekey_parquet(forged, old_file, decryption, NEW)


def test_a_damaged_page_under_ctr_is_seen_by_its_crc(old_file: Path) -> None:
    plain = plain_file(small_table(), write_page_checksum=True)
    data = bytearray(encrypt(plain, footer_key=FOOTER_KEY, encryption_algorithm=CTR))
    pages = [
        m for m in verify(bytes(data), FOOTER_KEY, {}, accept_algorithms=(CTR,)) if m.type == 2
    ]
    assert pages[0].offset is not None
    data[pages[0].offset + 20] ^= 1
    decryption = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, accept_algorithms=[CTR])
    with pytest.raises(mc.errors.ChecksumError):
        mc.rekey_parquet(bytes(data), old_file, decryption, NEW)


def test_an_exception_of_the_callers_own_leaves_the_old_file(old_file: Path) -> None:
    def fail(_: int) -> NoReturn:
        raise RuntimeError("enough")

    for threads in (1, 2):
        with pytest.raises(RuntimeError, match="enough"):
            mc.rekey_parquet(rich(False), old_file, RICH, NEW, progress=fail, threads=threads)


def test_progress_ends_near_the_files_size() -> None:
    seen: list[int] = []
    data = encrypt(plain_of("one column"), footer_key=FOOTER_KEY)
    made = rekey(data, READER, NEW, progress=seen.append)
    assert seen == sorted(seen)
    assert abs(seen[-1] - len(made)) < 4096


# --- key services ---------------------------------------------------------------------------------


KMS_MATRIX = pairwise(
    old=("explicit", "internal", "external"), new=("explicit", "internal", "external"),
    old_wrapping=("single", "double"), new_wrapping=("single", "double"), same=(False, True),
    footer=("encrypted", "plaintext"),
)  # fmt: skip


def keyed_properties(
    case: Case, side: str, kms: MemoryKms
) -> tuple[Any, mc.FileDecryptionProperties]:  # what encrypts, what decrypts
    if case[side] == "explicit":
        encryption = mc.FileEncryptionProperties(
            footer_key=FOOTER_KEY,
            column_keys={"name": COLUMN_KEY},
            plaintext_footer=case["footer"] == "plaintext",
        )
        return encryption, RICH
    tools = mc.KeyTools(kms)
    policy = mc.Policy(
        footer_key="kf",
        column_keys={"kc1": ["name"], "kc2": ["address"]},
        internal_key_material=case[side] == "internal",
        double_wrapping=case[f"{side}_wrapping"] == "double",
        plaintext_footer=case["footer"] == "plaintext",
    )
    return tools.encryption(policy), tools.decryption()


def decrypt_file(path: Path, reader: mc.FileDecryptionProperties) -> bytes:
    out = io.BytesIO()
    mc.decrypt_parquet(path, out, reader)
    return out.getvalue()


@each_case("case", KMS_MATRIX, ids=case_name)
def test_keys_of_a_key_service_on_both_sides(case: Case, tmp_path: Path) -> None:
    kms, plain = MemoryKms(), plain_of(PLAIN)
    encryption, decryption = keyed_properties(case, "old", kms)
    source = tmp_path / "a.parquet"
    (tmp_path / "plain").write_bytes(plain)
    mc.encrypt_parquet(tmp_path / "plain", source, encryption)
    target = source if case["same"] else tmp_path / "b.parquet"
    encryption, reader = keyed_properties(case, "new", kms)

    mc.rekey_parquet(source, target, decryption, encryption)

    if case["new"] != "explicit":  # tools that know nothing yet
        reader = mc.KeyTools(kms).decryption()
    assert decrypt_file(target, reader) == plain
    beside = tmp_path / f"_KEY_MATERIAL_FOR_{target.name}.json"
    if case["new"] == "external":
        assert beside.exists()
    elif not case["same"]:
        assert not beside.exists()


def test_a_key_service_that_refuses_leaves_file_and_material(tmp_path: Path) -> None:
    kms, path = MemoryKms(), tmp_path / "a.parquet"
    tools = mc.KeyTools(kms)
    policy = mc.Policy(footer_key="kf", column_keys={"kc1": ["name"]}, internal_key_material=False)
    mc.write_table(small_table(), path, tools.encryption(policy))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for denied in ("kf", "kc1", "kc2"):
        kms.denied = {denied}
        fresh = mc.KeyTools(kms)
        new = mc.Policy(footer_key="kf", column_keys={"kc2": ["name"]}, internal_key_material=False)
        with pytest.raises(mc.errors.KeyAccessDeniedError):
            mc.rekey_parquet(path, path, fresh.decryption(), fresh.encryption(new))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    kms.denied = set()
    assert mc.read_table(path, mc.KeyTools(kms).decryption()).equals(small_table())


def test_a_bit_flipped_late_leaves_file_and_material(tmp_path: Path) -> None:
    """Fresh material lies beside the file by the time that the last page is opened."""
    kms, path = MemoryKms(), tmp_path / "a.parquet"
    tools = mc.KeyTools(kms)
    encryption = tools.encryption(mc.Policy(footer_key="kf", internal_key_material=False))
    mc.write_table(small_table(), path, encryption, row_group_size=10)
    regions = mc.inspect_parquet(path, tools.decryption(), pages=True).regions
    pages = [region for region in regions if region.kind == "data page"]
    data = bytearray(path.read_bytes())
    data[pages[-1].end - 1] ^= 1
    path.write_bytes(data)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(mc.errors.TagMismatchError):
        mc.rekey_parquet(path, path, tools.decryption(), encryption)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# --- columns that stay ----------------------------------------------------------------------------

LEAVES = leaves_of(plain_file(small_table(1)))


def pages_of(
    data: bytes, keys: dict[str, bytes], footer_key: bytes, prefix: bytes | None
) -> dict[str, list[bytes]]:
    """Return the bytes of each column's page modules, found by code that is not modcrypt's."""
    modules = verify(data, footer_key, keys, prefix, accept_algorithms=BOTH)
    found: dict[str, list[bytes]] = {leaf: [] for leaf in LEAVES}
    for m in modules:
        if m.type in (2, 3, 4, 5):
            assert m.offset is not None
            assert m.column is not None
            found[LEAVES[m.column]].append(data[m.offset : m.offset + m.size])
    return found


KEPT_CASES: dict[str, tuple[dict[str, Any], list[str] | None]] = {
    # What the new file has otherwise, and the columns whose pages stay; None for all.
    "another footer key": ({"footer_key": KEYS[16]}, ["name", "address.zip", "address.city"]),
    "another column key": (
        {"column_keys": {"name": KEYS[16], "address": OTHER_KEY}},
        [leaf for leaf in LEAVES if leaf != "name"],
    ),
    "key metadata alone": ({"footer_key_metadata": b"other"}, None),
    "footer mode alone": ({"plaintext_footer": True}, None),
    "prefix no longer stored": ({"store_aad_prefix": False}, None),
    "a column key dropped": (
        {"column_keys": {"address": OTHER_KEY}},
        [leaf for leaf in LEAVES if leaf != "name"],
    ),
    "a column key split": (
        {"column_keys": {"name": COLUMN_KEY, "address.zip": OTHER_KEY, "address.city": KEYS[16]}},
        [leaf for leaf in LEAVES if leaf != "address.city"],
    ),
    "a column in plaintext": (
        {"plaintext_columns": ["id"]},
        [leaf for leaf in LEAVES if leaf != "id"],
    ),
    "the footer's key becomes a column's own": (
        {"column_keys": {"name": COLUMN_KEY, "address": OTHER_KEY, "id": FOOTER_KEY}},
        None,
    ),
    "another prefix": ({"aad_prefix": NEW_PREFIX}, []),
    "no prefix": ({"aad_prefix": None}, []),
    "another algorithm": ({"encryption_algorithm": CTR}, []),
    "all other keys": (
        {"footer_key": KEYS[16], "column_keys": {"name": KEYS[24], "address": KEYS[32]}},
        [],
    ),
}


@each_case("name", KEPT_CASES, quick=one_in(2))
@each_case("algorithm", BOTH)
def test_what_is_said_to_be_kept_is_kept_and_nothing_else(name: str, algorithm: str) -> None:
    changes, expected = KEPT_CASES[name]
    old: dict[str, Any] = {
        "footer_key": FOOTER_KEY,
        "column_keys": {"name": COLUMN_KEY, "address": OTHER_KEY},
        "aad_prefix": PREFIX,
        "encryption_algorithm": algorithm,
    }
    if name == "another algorithm":
        changes = {"encryption_algorithm": GCM if algorithm == CTR else CTR}
    new = old | changes
    plain = plain_of("pages v1")
    sealed = encrypt(plain, **old)
    decryption = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys=old["column_keys"], accept_algorithms=BOTH
    )
    out = io.BytesIO()
    result = mc.rekey_parquet(
        sealed, out, decryption, mc.FileEncryptionProperties(**new), keep_unchanged=True
    )
    made = out.getvalue()
    prefix = new["aad_prefix"]
    assert decrypt(
        made, footer_key=new["footer_key"], column_keys=new["column_keys"],
        accept_algorithms=BOTH, aad_prefix=prefix,
    ) == plain  # fmt: skip
    before = pages_of(sealed, by_leaf(old), FOOTER_KEY, PREFIX)
    after = pages_of(made, by_leaf(new), new["footer_key"], prefix)
    kept = [leaf for leaf in LEAVES if before[leaf] == after[leaf]]
    assert kept == (LEAVES if expected is None else expected)
    assert result.kept == tuple(kept)
    plaintext = new.get("plaintext_columns", [])
    assert result.plaintext == tuple(plaintext)
    assert result.resealed == tuple(x for x in LEAVES if x not in kept and x not in plaintext)
    # What is not kept shares no module, so no nonce, with what was there.
    for leaf in set(LEAVES) - set(kept):
        assert not set(before[leaf]) & set(after[leaf])
    assert (unique_of(made) == unique_of(sealed)) == bool(kept)
    shown = collect_modules(sealed, by_leaf(old), FOOTER_KEY, PREFIX)
    for place, module in collect_modules(made, by_leaf(new), new["footer_key"], prefix).items():
        assert shown.get(place, module) == module, "a key met a nonce in two modules"


def by_leaf(properties: dict[str, Any]) -> dict[str, bytes]:
    keys: dict[str, bytes] = properties["column_keys"]
    return {leaf: key for leaf in LEAVES for name, key in keys.items() if covers(name, leaf)}


def covers(name: str, leaf: str) -> bool:
    return leaf == name or leaf.startswith(f"{name}.")


def unique_of(data: bytes) -> bytes:
    """Return the `aad_file_unique` that a file says it has."""
    _, tail, magic = forging.split_tail(data)
    name = "FileMetaData" if magic == b"PAR1" else "FileCryptoMetaData"
    union = decode(name, tail)[0].encryption_algorithm
    unique: bytes = (union.AES_GCM_V1 or union.AES_GCM_CTR_V1).aad_file_unique
    return unique


def collect_modules(
    data: bytes, keys: dict[str, bytes], footer_key: bytes, prefix: bytes | None
) -> dict[tuple[bytes, bytes], bytes]:
    """Return every module by key and nonce: those in the footer, and its signature, included."""
    file = forging.open_file(data, footer_key, prefix or b"")
    modules: list[tuple[bytes, bytes]] = []
    for m in verify(data, footer_key, keys, prefix, accept_algorithms=BOTH):
        key = footer_key if m.column is None else keys.get(LEAVES[m.column], footer_key)
        if m.offset is not None and m.type != 1:
            signature = m.type == 0 and file.magic == b"PAR1"
            at = m.offset + m.size - 32 if signature else m.offset
            modules.append((key, data[at : m.offset + m.size]))
    for row_group in file.metadata.row_groups:
        for leaf, chunk in zip(LEAVES, row_group.columns, strict=True):
            if chunk.encrypted_column_metadata is not None:
                modules.append((keys.get(leaf, footer_key), chunk.encrypted_column_metadata))
    found = {(key, module[4:16]): module for key, module in modules}
    assert len(found) == len(modules), "a key met a nonce twice in one file"
    return found


def test_kept_columns_keep_their_layout_of_levels() -> None:
    """They are not looked at: the new file's wish goes for the others alone."""
    plain = plain_of("pages v2")
    sealed = encrypt(plain, **keys_of_rich(), data_page_v2_levels="plaintext")
    new = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": OTHER_KEY})
    made = rekey(sealed, RICH, new, keep_unchanged=True)
    reader = {"footer_key": FOOTER_KEY, "column_keys": {"name": OTHER_KEY}}
    assert decrypt(made, **reader) == plain
    verify(made, FOOTER_KEY, {"name": OTHER_KEY})


def test_columns_that_move_are_sealed_again() -> None:
    """Their ordinals are in every AAD."""
    sealed = encrypt(
        plain_of("pages v1"), footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY}
    )  # fmt: skip
    out = io.BytesIO()
    decryption = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="drop")
    same = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    result = mc.rekey_parquet(sealed, out, decryption, same, keep_unchanged=True)
    assert result.kept == ("id",), "it stands before the one that is gone"
    assert result.dropped == ("name",)
    verify(out.getvalue(), FOOTER_KEY, {})


def test_nothing_is_kept_where_the_border_of_the_prefix_may_have_been_moved() -> None:
    """Bytes between it and `aad_file_unique` go over unseen; no reader takes another length."""
    sealed = encrypt(plain_of("small"), footer_key=FOOTER_KEY, aad_prefix=b"part.10")

    def move(crypto: Any) -> None:
        algorithm = crypto.encryption_algorithm.AES_GCM_V1
        algorithm.aad_prefix = b"part.1"
        algorithm.aad_file_unique = b"0" + algorithm.aad_file_unique

    moved = forging.edit_crypto(sealed, move)
    new = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"part.1")
    out = io.BytesIO()
    assert mc.rekey_parquet(moved, out, READER, new, keep_unchanged=True).kept == ()
    plain = decrypt(out.getvalue(), footer_key=FOOTER_KEY, aad_prefix=b"part.1")
    assert plain == plain_of("small")
    strict = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"part.1")
    with pytest.raises(mc.errors.AadPrefixError):
        rekey(moved, strict, new)
    with pytest.raises(mc.errors.AadPrefixError):
        mc.mask_parquet(moved, io.BytesIO(), READER, null=["id"])


def test_nothing_of_a_plaintext_source_is_kept() -> None:
    taken = mc.FileDecryptionProperties(require_encrypted=False)
    out = io.BytesIO()
    new = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    result = mc.rekey_parquet(plain_of("small"), out, taken, new, keep_unchanged=True)
    assert result.kept == ()
    assert decrypt(out.getvalue(), footer_key=FOOTER_KEY) == plain_of("small")


def test_a_kept_page_that_was_altered_is_still_seen_by_whoever_reads_it() -> None:
    data = bytearray(rich(False))
    (page, *_) = [m for m in verify(bytes(data), FOOTER_KEY, {"name": COLUMN_KEY}) if m.type == 2]
    assert page.offset is not None
    data[page.offset + 20] ^= 1
    new = mc.FileEncryptionProperties(**keys_of_rich(), footer_key_metadata=b"new")
    made = rekey(bytes(data), RICH, new, keep_unchanged=True)
    with pytest.raises(mc.errors.TagMismatchError):
        decrypt(made, **keys_of_rich())


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_big_file_does_not_go_through_memory_whole(tmp_path: Path, threads: int) -> None:
    numbers = np.random.default_rng(1).integers(0, 2**60, 5_000_000)
    path = tmp_path / "plain"
    pq.write_table(pa.table({"n": numbers}), path, compression="none", use_dictionary=False)
    sealed = tmp_path / "sealed"
    mc.encrypt_parquet(path, sealed, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    assert sealed.stat().st_size > 40_000_000
    tracemalloc.start()
    try:
        mc.rekey_parquet(sealed, tmp_path / "new", READER, NEW, threads=threads)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20
    assert os.stat(tmp_path / "new").st_size == sealed.stat().st_size


# --- readers meanwhile ----------------------------------------------------------------------------


def test_a_reader_sees_one_version_of_a_file_that_is_rewritten_meanwhile(tmp_path: Path) -> None:
    path, key = tmp_path / "x", mc.Key.generate()
    encryption = mc.FileEncryptionProperties(footer_key=key)
    decryption = mc.FileDecryptionProperties(footer_key=key)
    versions = [pa.table({"a": [n] * 400}) for n in range(2)]
    mc.write_table(versions[0], path, encryption, row_group_size=50)

    def rewrite() -> None:
        for n in range(1, 25):
            mc.write_table(versions[n % 2], path, encryption, row_group_size=50, overwrite=True)
            mc.rekey_parquet(path, path, decryption, encryption, overwrite=True)

    with ThreadPoolExecutor(1) as pool:
        rewriting = pool.submit(rewrite)
        while not rewriting.done():
            with mc.ParquetFile(path, decryption) as file:
                first = file.read_row_group(0)["a"][0].as_py()
                assert file.read().equals(versions[first])
            assert mc.read_table(path, decryption) in versions
    rewriting.result()
