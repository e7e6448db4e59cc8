"""AAD prefixes: verifiers, templates, and which parts of a dataset are missing or foreign."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from tests.support.cases import each_case, one_in
from tests.support.forging import (
    change_footer,
    edit_crypto,
    encrypt_bytes,
    join_tail,
    plain_file,
    split_tail,
)
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY

TEMPLATE = "people.part{i}"
KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"ssn": COLUMN_KEY})


def part_of(number: int, prefix: bytes | None = None, **how: Any) -> bytes:
    """Encrypt a file whose rows name its part."""
    plain = plain_file(pa.table({"part": [number] * 3, "ssn": ["a", "b", "c"]}))
    properties: dict[str, Any] = {
        "footer_key": FOOTER_KEY,
        "column_keys": {"ssn": COLUMN_KEY},
        "aad_prefix": b"people.part%d" % number if prefix is None else prefix,
    }
    return encrypt_bytes(plain, mc.FileEncryptionProperties(**(properties | how)))


MODES: dict[str, dict[str, Any]] = {
    "stored": {},
    "not stored": {"store_aad_prefix": False},
    "stored, plaintext footer": {"plaintext_footer": True},
    "not stored, plaintext footer": {"store_aad_prefix": False, "plaintext_footer": True},
}


@pytest.fixture(params=MODES)
def how(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODES[request.param]


def dataset(
    folder: Path, parts: int, how: dict[str, Any], name: str = "part-{:05}.parquet"
) -> Path:
    for i in range(parts):
        (folder / name.format(i)).write_bytes(part_of(i, **how))
    return folder


def parts_of(source: Any, keys: Any = KEYS, **how: Any) -> list[int]:
    """Read the parts, in both ways; what one refuses the other must."""
    arguments: dict[str, Any] = {"aad_prefix_template": TEMPLATE, "columns": ["part"]} | how
    try:
        table = mc.read_table(source, keys, **arguments)
    except Exception as error:
        with pytest.raises(type(error)):
            list(mc.iter_batches(source, keys, **arguments))
        raise
    batches = list(mc.iter_batches(source, keys, **arguments))
    assert pa.Table.from_batches(batches) == table
    found: list[int] = table["part"].to_pylist()
    return found[::3]


# --- complete datasets ---------------------------------------------------------------------------


@each_case("name", ["part-{:05}.parquet", "{}", "a-2026-{}-x", "2026.{}.1"], quick=one_in(2))
def test_all_parts_are_read_whatever_their_files_are_called(
    tmp_path: Path, how: dict[str, Any], name: str
) -> None:
    folder = dataset(tmp_path, 12, how, name)
    assert sorted(parts_of(folder, expected_parts=12)) == list(range(12))
    assert sorted(parts_of(folder)) == list(range(12))


def test_a_part_may_change_its_name_but_not_what_it_is(tmp_path: Path, how: dict[str, Any]) -> None:
    folder = dataset(tmp_path, 4, how)
    one, other = folder / "part-00001.parquet", folder / "part-00003.parquet"
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    assert parts_of(folder, expected_parts=4) == [0, 3, 2, 1]


def test_files_that_pyarrow_wrote(tmp_path: Path) -> None:
    for i in range(3):
        properties = pe.create_encryption_properties(
            footer_key=FOOTER_KEY, aad_prefix=b"people.part%d" % i, store_aad_prefix=i != 1
        )
        table = pa.table({"part": [i] * 3})
        pq.write_table(table, tmp_path / f"{i}.parquet", encryption_properties=properties)
    assert parts_of(tmp_path, expected_parts=3) == [0, 1, 2]


def test_keys_by_a_function_of_the_path(tmp_path: Path, how: dict[str, Any]) -> None:
    keys = {f"part-{i:05}.parquet": bytes([i + 1]) * 16 for i in range(3)}
    for i, (name, key) in enumerate(keys.items()):
        (tmp_path / name).write_bytes(part_of(i, **how, footer_key=key))

    def of(path: str) -> mc.FileDecryptionProperties:
        return mc.FileDecryptionProperties(footer_key=keys[Path(path).name])

    assert parts_of(tmp_path, of, expected_parts=3) == [0, 1, 2]


# --- incomplete ones, and worse ------------------------------------------------------------------


def test_a_missing_part_is_named(tmp_path: Path, how: dict[str, Any]) -> None:
    folder = dataset(tmp_path, 6, how)
    (folder / "part-00002.parquet").unlink()
    (folder / "part-00005.parquet").unlink()
    with pytest.raises(mc.errors.AadPrefixError, match=r"people\.part2.*people\.part5"):
        parts_of(folder, expected_parts=6)


def test_the_last_part_is_missed_only_when_the_number_is_known(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    folder = dataset(tmp_path, 4, how)
    (folder / "part-00003.parquet").unlink()
    assert parts_of(folder) == [0, 1, 2]
    with pytest.raises(mc.errors.AadPrefixError, match=r"people\.part3"):
        parts_of(folder, expected_parts=4)


def test_too_many_parts_are_named(tmp_path: Path, how: dict[str, Any]) -> None:
    folder = dataset(tmp_path, 4, how)
    with pytest.raises(mc.errors.AadPrefixError, match=r"part-0000[23]\.parquet"):
        parts_of(folder, expected_parts=2)


def test_a_part_that_is_there_twice_is_named(tmp_path: Path, how: dict[str, Any]) -> None:
    folder = dataset(tmp_path, 3, how)
    shutil.copy(folder / "part-00001.parquet", folder / "part-00002.parquet")
    for expected in (None, 3):
        with pytest.raises(
            mc.errors.AadPrefixError, match=r"part-00001\.parquet.*part-00002\.parquet"
        ):
            parts_of(folder, expected_parts=expected)


def test_a_file_that_is_listed_twice_is_named(tmp_path: Path, how: dict[str, Any]) -> None:
    files = sorted(dataset(tmp_path, 2, how).iterdir())
    with pytest.raises(mc.errors.AadPrefixError, match=r"occurs 2 times"):
        parts_of([*files, files[0]], expected_parts=2)


@each_case("foreign", [
    part_of(1, b"other.part1"),
    part_of(1, b"other.part1", store_aad_prefix=False),
    part_of(1, aad_prefix=None),
    part_of(1, footer_key=OTHER_KEY),
    part_of(1, footer_key=OTHER_KEY, store_aad_prefix=False),
    part_of(1, footer_key=OTHER_KEY, plaintext_footer=True),
    part_of(9, b"people.part1", footer_key=OTHER_KEY),
], ids=[
    "of another dataset", "of another dataset, not stored", "without a prefix", "another key",
    "another key, not stored", "another key, plaintext footer", "forged",
])  # fmt: skip
def test_a_foreign_file_is_named(tmp_path: Path, how: dict[str, Any], foreign: bytes) -> None:
    folder = dataset(tmp_path, 3, how)
    (folder / "part-00001.parquet").write_bytes(foreign)
    for expected in (None, 3):
        with pytest.raises(mc.errors.IntegrityError) as caught:
            parts_of(folder, expected_parts=expected)
        notes = getattr(caught.value, "__notes__", [])
        assert "part-00001.parquet" in " ".join([str(caught.value), *notes])


@each_case("required", [True, False])
def test_a_plaintext_file_is_no_part(tmp_path: Path, how: dict[str, Any], required: bool) -> None:
    folder = dataset(tmp_path, 3, how)
    (folder / "part-00001.parquet").write_bytes(plain_file(pa.table({"part": [1, 1, 1]})))
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, require_encrypted=required)
    with pytest.raises(mc.errors.PlaintextError, match=r"part-00001\.parquet"):
        parts_of(folder, keys, expected_parts=3)


# --- forged prefixes -----------------------------------------------------------------------------


@each_case("prefix", [
    b"people.part01", b"people.part+1", b"people.part-1", b"people.part 1", b"people.part1\n",
    b"people.part1_0", "people.part\N{ARABIC-INDIC DIGIT ONE}".encode(), b"people.part",
    b"people.part" + b"9" * 40, b"people.part1x", b"xpeople.part1", b"people.part1.0",
    b"people.part0x1", b"PEOPLE.part1", b"people.part{i}", b"\xff\xfe",
])  # fmt: skip
def test_numbers_have_one_spelling(tmp_path: Path, prefix: bytes) -> None:
    """The key holder wrote them so: they authenticate, and are no part all the same."""
    folder = dataset(tmp_path, 1, {})
    (folder / "part-00001.parquet").write_bytes(part_of(1, prefix))
    for expected in (None, 2):
        with pytest.raises(mc.errors.AadPrefixError, match=r"part-00001\.parquet.*foreign"):
            parts_of(folder, expected_parts=expected)


def replace_prefix(data: bytes, prefix: bytes) -> bytes:
    """Write another prefix into a file, for which no key is needed."""

    def change(crypto: Any) -> None:
        crypto.encryption_algorithm.AES_GCM_V1.aad_prefix = prefix

    return edit_crypto(data, change)


def move_border(data: bytes, by: int) -> bytes:
    """Move this many bytes of the prefix to the file-unique; both are authenticated as one."""

    def move(crypto: Any) -> None:
        algorithm = crypto.encryption_algorithm.AES_GCM_V1
        algorithm.aad_prefix, moved = algorithm.aad_prefix[:-by], algorithm.aad_prefix[-by:]
        algorithm.aad_file_unique = moved + algorithm.aad_file_unique

    return edit_crypto(data, move)


def test_a_part_that_claims_another_number_is_refused(tmp_path: Path) -> None:
    folder = dataset(tmp_path, 3, {})
    data = (folder / "part-00001.parquet").read_bytes()
    (folder / "part-00001.parquet").write_bytes(replace_prefix(data, b"people.part2"))
    with pytest.raises((mc.errors.TagMismatchError, mc.errors.AadPrefixError)):
        parts_of(folder, expected_parts=3)


def test_a_prefix_grown_by_the_bytes_after_it_is_refused(tmp_path: Path) -> None:
    """part10 | 8 bytes is part1 | 9."""
    folder = dataset(tmp_path, 10, {})
    (folder / "part-00001.parquet").write_bytes(move_border(part_of(10), 1))
    with pytest.raises(mc.errors.AadPrefixError, match="aad_file_unique"):
        parts_of(folder)


def test_a_huge_number_costs_nothing(tmp_path: Path) -> None:
    folder = dataset(tmp_path, 1, {})
    (folder / "part-00001.parquet").write_bytes(part_of(9_999_999_999))
    with pytest.raises(mc.errors.AadPrefixError, match=r"part-00001\.parquet"):
        parts_of(folder, expected_parts=2)


# --- how it is called ----------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["", "people", "{i}{i}", "{}", "{j}"])
def test_templates_without_one_number_are_refused(tmp_path: Path, template: str) -> None:
    with pytest.raises(ValueError, match=r"\{i\}"):
        parts_of(dataset(tmp_path, 1, {}), aad_prefix_template=template)


def test_expected_parts_need_a_template(tmp_path: Path) -> None:
    folder = dataset(tmp_path, 1, {})
    for source in (folder, folder / "part-00000.parquet"):
        with pytest.raises(ValueError, match="aad_prefix_template"):
            parts_of(source, aad_prefix_template=None, expected_parts=1)


@pytest.mark.parametrize("expected", [-1, "2", 1.5])
def test_expected_parts_is_a_count(tmp_path: Path, expected: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        parts_of(dataset(tmp_path, 1, {}), expected_parts=expected)
    assert not isinstance(caught.value, mc.ModcryptError)


def test_a_template_and_a_prefix_exclude_each_other(tmp_path: Path) -> None:
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"another")
    with pytest.raises((ValueError, mc.errors.AadPrefixError)):
        parts_of(dataset(tmp_path, 2, {}), keys)


def test_a_template_holds_for_a_single_file_too(tmp_path: Path) -> None:
    folder = dataset(tmp_path, 2, {})
    assert parts_of(folder / "part-00001.parquet") == [1]
    with pytest.raises(mc.errors.AadPrefixError, match=r"people\.part0"):
        parts_of(folder / "part-00001.parquet", expected_parts=2)
    with pytest.raises(mc.errors.AadPrefixError):
        parts_of(folder / "part-00001.parquet", aad_prefix_template="other{i}")


def test_the_keeper_of_the_keys_is_asked_once_for_each_file(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    asked: list[bytes] = []

    def retrieve(metadata: bytes) -> bytes:
        asked.append(metadata)
        return {b"f": FOOTER_KEY, b"s": COLUMN_KEY}[metadata[:1]]

    for i in range(4):
        data = part_of(
            i, **how, footer_key_metadata=b"f%d" % i, column_key_metadata={"ssn": b"s%d" % i}
        )
        (tmp_path / f"{9 - i}.parquet").write_bytes(data)
    keys = mc.FileDecryptionProperties(key_retriever=retrieve)
    where: dict[str, Any] = {"aad_prefix_template": TEMPLATE, "expected_parts": 4}
    assert mc.read_table(tmp_path, keys, **where, columns=["part"]).num_rows == 12
    assert sorted(asked) == [b"f0", b"f1", b"f2", b"f3"]
    asked.clear()
    assert mc.read_table(tmp_path, keys, **where).num_rows == 12
    assert sorted(asked) == [b"f0", b"f1", b"f2", b"f3", b"s0", b"s1", b"s2", b"s3"]


# --- verifiers -----------------------------------------------------------------------------------

READERS: list[Callable[..., Any]] = [
    lambda data, keys: mc.read_table(data, keys, columns=["part"]).num_rows,
    lambda data, keys: sum(b.num_rows for b in mc.iter_batches(data, keys, columns=["part"])),
    lambda data, keys: pq.read_table(mc.open_parquet(data, keys, columns=["part"])).num_rows,
]


def reader_with_verifier(verifier: Any, **more: Any) -> mc.FileDecryptionProperties:
    given: dict[str, Any] = {"footer_key": FOOTER_KEY, "column_keys": {"ssn": COLUMN_KEY}} | more
    return mc.FileDecryptionProperties(aad_prefix_verifier=verifier, **given)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_a_verifier_sees_the_prefix_once(read: Any, plaintext_footer: bool) -> None:
    seen: list[bytes] = []

    def verify(prefix: bytes) -> bool:
        seen.append(prefix)
        return True

    assert read(part_of(7, plaintext_footer=plaintext_footer), reader_with_verifier(verify)) == 3
    assert seen == [b"people.part7"]


@pytest.mark.parametrize("answer", [False, None, 0, 1, "yes", b"people.part7"])
def test_what_is_not_true_refuses(answer: Any) -> None:
    for read in READERS:
        with pytest.raises(mc.errors.AadPrefixError, match=r"people\.part7"):
            read(part_of(7), reader_with_verifier(lambda _: answer))


def test_a_verifier_sees_authenticated_prefixes_alone() -> None:
    seen: list[bytes] = []

    def verify(prefix: bytes) -> bool:
        seen.append(prefix)
        return True

    data = part_of(7)
    signed = part_of(7, plaintext_footer=True)
    body, tail, magic = split_tail(signed)
    broken = join_tail(body, tail[:-1] + bytes([tail[-1] ^ 1]), magic)
    refusals = (
        mc.errors.TagMismatchError,
        mc.errors.FooterSignatureError,
        mc.errors.AadPrefixError,
    )
    for file, keys in (
        (replace_prefix(data, b"people.part8"), reader_with_verifier(verify)),
        (data, reader_with_verifier(verify, footer_key=OTHER_KEY)),
        (broken, reader_with_verifier(verify)),
        (signed, reader_with_verifier(verify, footer_key=OTHER_KEY)),
        (move_border(data, 1), reader_with_verifier(verify)),
    ):
        for read in READERS:
            with pytest.raises(refusals):
                read(file, keys)
    assert seen == []


def test_files_without_a_prefix_to_verify_are_refused() -> None:
    for data in (part_of(7, aad_prefix=None), part_of(7, store_aad_prefix=False)):
        for read in READERS:
            with pytest.raises(mc.errors.AadPrefixError):
                read(data, reader_with_verifier(lambda _: True))


def test_an_empty_stored_prefix_is_none() -> None:
    data = replace_prefix(part_of(7, aad_prefix=None), b"")
    with pytest.raises(mc.errors.AadPrefixError):
        mc.read_table(data, reader_with_verifier(lambda _: True))


def test_a_verifiers_own_error_comes_through() -> None:
    class OutOfOrderError(Exception):
        pass

    def verify(_: bytes) -> bool:
        raise OutOfOrderError

    for read in READERS:
        with pytest.raises(OutOfOrderError):
            read(part_of(7), reader_with_verifier(verify))


# --- what must be encrypted ----------------------------------------------------------------------


def encrypt_file(**how: Any) -> bytes:
    plain = plain_file(
        pa.table({"id": [1, 2], "ssn": ["x", "y"], "a": [{"b": 1, "c": 2}, {"b": 3, "c": 4}]})
    )
    return encrypt_bytes(plain, mc.FileEncryptionProperties(**({"footer_key": FOOTER_KEY} | how)))


def insisting(required: Any, **more: Any) -> mc.FileDecryptionProperties:
    return mc.FileDecryptionProperties(
        **({"footer_key": FOOTER_KEY, "require_encrypted": required} | more)
    )


ALL_READERS: list[Callable[..., Any]] = [mc.read_table, mc.open_parquet, mc.iter_batches]


@each_case("read", ALL_READERS)
@each_case("required", [True, ["ssn"], []])
def test_a_plaintext_file_is_refused_unless_it_is_said(read: Any, required: Any) -> None:
    plain = plain_file(pa.table({"id": [1], "ssn": ["x"]}))
    with pytest.raises(mc.errors.PlaintextError):
        read(plain, insisting(required))
    with pytest.raises(mc.errors.PlaintextError):
        read(plain, mc.FileDecryptionProperties(footer_key=FOOTER_KEY))


@pytest.mark.parametrize("footer_key", [None, FOOTER_KEY])
def test_a_plaintext_file_is_read_where_it_is_said(footer_key: bytes | None) -> None:
    table = pa.table({"id": [1, 2, 3], "ssn": ["x", "y", None]})
    plain = plain_file(table, row_group_size=2)
    keys = insisting(False, footer_key=footer_key, column_keys={"ssn": COLUMN_KEY})
    assert mc.read_table(plain, keys) == table
    assert mc.read_table(plain, keys, columns=["ssn"], row_groups=[1])["ssn"].to_pylist() == [None]
    with mc.open_parquet(plain, keys) as view:
        assert pq.read_table(view) == table
    out = io.BytesIO()
    mc.decrypt_parquet(plain, out, keys)
    assert pq.read_table(out) == table


@pytest.mark.parametrize("read", ALL_READERS)
def test_a_column_in_plaintext_is_refused_where_its_key_is_given(read: Any) -> None:
    data = encrypt_file(plaintext_columns=["ssn"])
    with pytest.raises(mc.errors.PlaintextError, match="ssn"):
        read(data, insisting(True, column_keys={"ssn": COLUMN_KEY}))
    read(data, insisting(True))
    read(data, insisting(False, column_keys={"ssn": COLUMN_KEY}))


@pytest.mark.parametrize("read", ALL_READERS)
def test_named_columns_are_refused_in_plaintext(read: Any) -> None:
    data = encrypt_file(plaintext_columns=["ssn", "a.c"])
    for names in (["ssn"], ["id", "ssn"], ["a"], ["a.c"]):
        with pytest.raises(mc.errors.PlaintextError, match=r"ssn|a\.c"):
            read(data, insisting(names))
        with pytest.raises(mc.errors.PlaintextError):
            read(data, insisting(names), columns=["id"])
    read(data, insisting(["id", "a.b"]))


@pytest.mark.parametrize("read", ALL_READERS)
def test_named_columns_are_refused_under_the_footer_key_where_they_have_their_own(
    read: Any,
) -> None:
    keys = {"ssn": COLUMN_KEY}
    with pytest.raises(mc.errors.PlaintextError, match="ssn"):
        read(encrypt_file(), insisting(["ssn"], column_keys=keys))
    read(encrypt_file(column_keys=keys), insisting(["ssn"], column_keys=keys))
    read(encrypt_file(), insisting(["ssn"]))


@pytest.mark.parametrize("read", ALL_READERS)
def test_names_that_fit_no_column_are_refused(read: Any) -> None:
    """A typing mistake would turn the check off."""
    with pytest.raises((ValueError, mc.errors.PlaintextError), match="snn"):
        read(encrypt_file(plaintext_columns=["ssn"]), insisting(["snn"]))


@pytest.mark.parametrize("wrong", ["ssn", b"ssn", None, 1, [1]])
def test_what_is_required_is_a_bool_or_names(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        insisting(wrong)


@pytest.mark.parametrize("required", [True, False, ["id"]])
def test_a_footer_whose_algorithm_was_removed_is_refused(required: Any) -> None:
    from modcrypt.parquet.format.idl import decode, encode

    body, tail, magic = split_tail(
        encrypt_file(plaintext_footer=True, column_keys={"ssn": COLUMN_KEY})
    )
    metadata, _ = decode("FileMetaData", tail)
    metadata.encryption_algorithm = metadata.footer_signing_key_metadata = None
    forged = join_tail(body, encode(metadata), magic)
    for read in ALL_READERS:
        for check in (True, False):
            with pytest.raises(mc.errors.PlaintextError):
                read(forged, insisting(required, check_footer_integrity=check))


def test_a_column_swapped_to_plaintext_by_a_holder_of_the_footer_key() -> None:
    """They can write what they like under the footer key, or in plaintext, but it shows."""
    data = encrypt_file(column_keys={"ssn": COLUMN_KEY})

    def swap(metadata: Any) -> None:
        chunk = metadata.row_groups[0].columns[1]
        chunk.crypto_metadata = chunk.encrypted_column_metadata = None
        chunk.meta_data = metadata.row_groups[0].columns[0].meta_data
        chunk.meta_data.path_in_schema = [b"ssn"]

    forged = change_footer(data, FOOTER_KEY, swap)
    keys = {"ssn": COLUMN_KEY}
    for read in ALL_READERS:
        for required in (True, ["ssn"]):
            with pytest.raises((mc.errors.PlaintextError, mc.errors.FormatError)):
                read(forged, insisting(required, column_keys=keys))
        with pytest.raises(mc.errors.PlaintextError):
            read(forged, insisting(["ssn"], key_retriever=lambda _: COLUMN_KEY))


def test_of_a_prefix_that_does_not_fit_only_the_stored_one_is_shown() -> None:
    wrong = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"people.part8")
    with pytest.raises(mc.errors.AadPrefixError) as caught:
        mc.read_table(part_of(7), wrong, columns=["part"])
    assert "b'people.part7'" in str(caught.value)
    assert "people.part8" not in str(caught.value)
    assert "root is not its dataset's folder" in str(caught.value)
    long = part_of(7, b"x" * 5000)
    with pytest.raises(mc.errors.AadPrefixError) as caught:
        mc.read_table(long, wrong, columns=["part"])
    assert len(str(caught.value)) < 500
