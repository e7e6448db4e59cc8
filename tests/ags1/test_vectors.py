"""spec-vectors/ags1 against modcrypt and the independent verifier; and Iceberg Java's streams.

Every case goes through all ways to read: whole, byte by byte, from a pipe, block by block.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeAlias, cast
from unittest import mock

import pytest

import modcrypt
from modcrypt import ags1
from modcrypt.errors import FormatError, ModcryptError, TagMismatchError
from tests.support.cases import each_case
from tests.support.shared_vectors import shared_vectors
from tools import ags1_vectors, vector_patches, vectors, verify_ags1
from tools.ags1_vectors import each_block, key_metadata_disagreement, prefix_of, summarize
from tools.verify_ags1 import VerifyError

Case: TypeAlias = dict[str, Any]
Mark: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]

FOLDER = vector_patches.FOLDER / "ags1"
CASES = vectors.load("ags1/cases.json")
BASES = json.loads((FOLDER / "cases.json").read_text())["bases"]
KEYS = {n: bytes.fromhex(k) for n, k in json.loads((FOLDER / "keys.json").read_text()).items()}
STREAMS = {name: ags1_vectors.base_bytes(base) for name, base in BASES.items()}
KEY_METADATA = vectors.load("ags1/key_metadata.json")
LARGE = 1 << 16


def each(cases: list[Case]) -> Mark:
    """Run a test for every case: those of one stream together, which takes a third of the time."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(str(case.get("base")), []).append(case)

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def tests(group: list[Case], **fixtures: Any) -> None:
            for case in group:
                try:
                    test(case=case, **fixtures)
                except BaseException as error:
                    error.add_note(f"case {case['id']}")
                    raise

        signature = inspect.signature(test)
        names = [parameter.replace(name="group") if parameter.name == "case" else parameter
                 for parameter in signature.parameters.values()]  # fmt: skip
        tests.__signature__ = signature.replace(parameters=names)  # type: ignore[attr-defined]
        each_group = each_case("group", groups.values(), ids=groups.keys())
        marked: Callable[..., None] = each_group(tests)
        return marked

    return mark


def file_of(case: Case) -> bytes:
    return vector_patches.apply(STREAMS[case["base"]], case["patches"])


def reading(case: Case) -> dict[str, Any]:
    """Return a case's key, prefix and length as modcrypt takes them."""
    length = ags1.UNVERIFIED if case["length"] is None else case["length"]
    return {"key": KEYS[case["key"]], "aad_prefix": prefix_of(case), "length": length}


def assert_said(case: Case, error: Exception | None) -> None:
    """Hold an outcome against a case: success, the failure's word, the block at fault."""
    if case["expect"] == "usage":
        assert type(error) is ValueError
    elif case["expect"] == "ok":
        assert error is None
    else:
        assert isinstance(error, ModcryptError)
        assert error.word == case["expect"]
    if case["block"] is not None:
        assert isinstance(error, TagMismatchError)
        assert error.module == modcrypt.ags1.BlockId(case["block"])


def released_plaintext(case: Case) -> bytes:
    """Return the plaintext that a case lets a streaming reader release before it fails."""
    content = ags1_vectors.seeded_bytes(BASES[case["base"]]["plaintext"])
    found = content[: case["released"]["length"]]
    assert summarize(found) == case["released"]
    return found


def ends_empty(case: Case) -> bool:
    """Return whether the last block is empty, so that readers open it before any other."""
    data = file_of(case)
    return (len(data) - 8) % (verify_ags1.block_length(data) + 28) == 28


# --- one case, every way of reading -------------------------------------------------------------


@each(CASES)
def test_opening_the_whole_gives_the_plaintext_or_the_words_error(case: Case) -> None:
    error, plaintext = None, None
    try:
        plaintext = ags1.decrypt(file_of(case), **reading(case))
    except (ModcryptError, ValueError) as raised:
        error = raised
    assert_said(case, error)
    assert (None if plaintext is None else summarize(plaintext)) == case["plaintext"]


@each(CASES)
def test_reading_byte_by_byte_releases_the_blocks_before_the_fault_alone(case: Case) -> None:
    data, out, error = file_of(case), bytearray(), None
    size = 65_521 if len(data) > LARGE else 1
    try:
        with modcrypt.ags1.Ags1Reader(io.BytesIO(data), **reading(case)) as reader:
            read_all(reader, size, out)
    except (ModcryptError, ValueError) as raised:
        error = raised
    assert_said(case, error)
    if case["expect"] == "ok":
        assert summarize(bytes(out)) == case["plaintext"]
    elif case["expect"] == "tag" and not ends_empty(case):
        allowed = released_plaintext(case)
        assert out == allowed[: len(out)]
        # A large piece that touches the faulty block is not given at all.
        assert len(allowed) - size < len(out) <= len(allowed)
    else:
        assert not out  # refused when it is opened


def read_all(reader: modcrypt.ags1.Ags1Reader, size: int, out: bytearray) -> None:
    """Read to the end in pieces; a reader that failed keeps failing, and does not end."""
    try:
        while piece := reader.read(size):
            out += piece
    except TagMismatchError as error:
        module = error.module
        with pytest.raises(TagMismatchError) as again:
            reader.read(size)
        assert again.value.module == module
        raise


class Pipe(io.RawIOBase):
    """Gives a few bytes at a time, and can't be sought."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)
        self._most = 7 if len(data) < LARGE else 40_009

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._data.read(min(self._most, len(buffer)))
        buffer[: len(piece)] = piece
        return len(piece)


@each_case(
    ("source", "lot"),
    [("pipe", "blocks"), ("file", "many"), ("file", "blocks"), ("pipe", "many")],
    quick=lambda pairs: pairs[:2],
)
@each(CASES)
def test_decrypting_releases_the_blocks_before_the_fault_at_most(
    case: Case, source: str, lot: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if lot == "blocks":
        monkeypatch.setattr("modcrypt.ags1.files._LOT_BYTES", 1)
    data, out, error = file_of(case), io.BytesIO(), None
    give = pipe if source == "pipe" else io.BytesIO
    try:
        size = modcrypt.decrypt_ags1(give(data), out, **reading(case))
        assert size == len(out.getvalue())
    except (ModcryptError, ValueError) as raised:
        error = raised
    if case["expect"] == "ok":
        assert_said(case, error)
        assert summarize(out.getvalue()) == case["plaintext"]
        return
    assert released_plaintext(case).startswith(out.getvalue())
    assert_said(case | find_earlier_fault(case, error), error)
    with pytest.raises((ModcryptError, ValueError)):
        modcrypt.decrypt_ags1(give(data), tmp_path / "out", **reading(case))
    assert not list(tmp_path.iterdir())


def pipe(data: bytes) -> IO[bytes]:
    return cast("IO[bytes]", Pipe(data))


def find_earlier_fault(case: Case, error: Exception | None) -> Case:
    """Say what stands in for a truncation that only the end of a pipe would show.

    Blocks that moved fail before: that block which the verifier meets from front to back.
    """
    if case["expect"] != "truncation" or not isinstance(error, TagMismatchError):
        return {}
    with pytest.raises(VerifyError) as said:
        list(verify_ags1.blocks(file_of(case)[: case["length"]], KEYS[case["key"]],
                                prefix_of(case) or b""))  # fmt: skip
    return {"expect": said.value.word, "block": said.value.block}


@each([case for case in CASES if case["expect"] in ("ok", "tag")])
def test_any_range_is_given_where_its_blocks_authenticate_and_only_there(case: Case) -> None:
    data = file_of(case)
    blocks = each_block(data, KEYS[case["key"]], prefix_of(case))
    length, faulty = verify_ags1.block_length(data), set(case["faulty"])
    if ends_empty(case) and len(blocks) - 1 in faulty:
        with pytest.raises(TagMismatchError):
            modcrypt.ags1.Ags1Reader(data, **reading(case))
        return
    size = len(data) - 8 - 28 * len(blocks)
    # Bytes of a faulty block: never to be compared with anything.
    sizes = [length] * (len(blocks) - 1) + [size - length * (len(blocks) - 1)]
    known = b"".join(block or bytes(n) for block, n in zip(blocks, sizes, strict=True))
    with modcrypt.ags1.Ags1Reader(data, **reading(case)) as reader:
        assert (reader.size, reader.encrypted_length, reader.block_length) == (
            size, len(data), length,
        )  # fmt: skip
        ranges = [(n * length, length) for n in range(len(blocks))]
        ranges += [(max(0, n * length - 3), 6) for n in range(1, len(blocks))]
        ranges += [(0, size), (max(0, size - 1), 5)]
        for offset, count in [*ranges, *reversed(ranges)]:
            stop = min(offset + count, size)
            touched = set(range(offset // length, -(-stop // length))) if stop > offset else set()
            if touched & faulty:
                with pytest.raises(TagMismatchError) as failure:
                    reader.read_at(offset, count)
                assert isinstance(failure.value.module, modcrypt.ags1.BlockId)
                assert failure.value.module.index in touched & faulty
            else:
                assert reader.read_at(offset, count) == known[offset:stop]


@each([case for case in CASES if case["expect"] in ("ok", "format", "limit", "plaintext")])
def test_a_summary_needs_no_key_and_has_the_same_words(case: Case) -> None:
    data = file_of(case)
    if case["expect"] != "ok":
        with pytest.raises(ModcryptError) as failure:
            modcrypt.ags1.inspect_ags1(data)
        assert_said(case, failure.value)
        return
    blocks = each_block(data, KEYS[case["key"]], prefix_of(case))
    for source in (data, pipe(data)):
        summary = modcrypt.ags1.inspect_ags1(source)
        assert summary.block_length == verify_ags1.block_length(data)
        assert (summary.blocks, summary.encrypted_length) == (len(blocks), len(data))
        assert summary.plaintext_length == case["plaintext"]["length"]


@each(CASES)
def test_the_independent_verifier_agrees(case: Case) -> None:
    data = file_of(case)
    assert ags1_vectors.disagreement(case, data) is None
    assert ags1_vectors.disagreement(case | {"expect": "another"}, data) is not None


def test_a_flip_of_any_bit_is_refused_by_both() -> None:
    data, key, prefix = (
        STREAMS["four"],
        KEYS["stream-128"],
        bytes.fromhex(BASES["four"]["aad_prefix"]),
    )
    for bit in range(8 * len(data)):
        altered = bytearray(data)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ModcryptError) as failure:
            ags1.decrypt(bytes(altered), key, aad_prefix=prefix, length=len(data))
        with pytest.raises(VerifyError) as said:
            verify_ags1.verify(bytes(altered), key, prefix, len(data))
        assert failure.value.word == said.value.word


# --- writing ------------------------------------------------------------------------------------

Seal: TypeAlias = Callable[[bytes, dict[str, Any]], bytes]


def write_in_pieces(plaintext: bytes, options: dict[str, Any]) -> bytes:
    out, at, size = io.BytesIO(), 0, 1
    with modcrypt.ags1.Ags1Writer(out, **options, threads=1) as writer:
        while at < len(plaintext):
            at += writer.write(plaintext[at : at + size])
            assert writer.tell() == at
            size = size * 3 % 100_003
    assert writer.encrypted_length == writer.key_metadata.file_length == len(out.getvalue())
    return out.getvalue()


def encrypt_a_pipe(plaintext: bytes, options: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    length = modcrypt.encrypt_ags1(pipe(plaintext), out, **options, threads=1)
    assert length == len(out.getvalue())
    return out.getvalue()


def seal_whole(plaintext: bytes, options: dict[str, Any]) -> bytes:
    return ags1.encrypt(plaintext, **options)


SEALERS = each_case("sealer", [seal_whole, write_in_pieces, encrypt_a_pipe])


def seal_with_nonces(
    sealer: Seal, plaintext: bytes, nonces: bytes, options: dict[str, Any]
) -> bytes:
    """Seal with given nonces, every one of which must be used."""
    stream = io.BytesIO(nonces)
    with mock.patch("modcrypt.aead.urandom", stream.read):
        data = sealer(plaintext, options)
    assert not stream.read(1)
    return data


@SEALERS
@each_case("name", BASES)
def test_sealing_with_the_vectors_nonces_gives_their_bytes(name: str, sealer: Seal) -> None:
    base = BASES[name]
    options = {
        "key": KEYS[base["key"]], "aad_prefix": prefix_of(base),
        "block_length": base["block_length"],
    }  # fmt: skip
    plaintext, nonces = (ags1_vectors.seeded_bytes(base[what]) for what in ("plaintext", "nonces"))
    assert seal_with_nonces(sealer, plaintext, nonces, options) == STREAMS[name]


@each_case("name", BASES)
def test_streams_are_what_the_vectors_say_of_them(name: str) -> None:
    assert summarize(STREAMS[name]) == {what: BASES[name][what] for what in ("sha256", "length")}


def test_vectors_cover_every_word_and_flag() -> None:
    flags = json.loads((FOLDER / "cases.json").read_text())["flags"]
    assert {flag for case in CASES for flag in case["flags"]} == flags.keys()
    assert {case["expect"] for case in CASES} == {
        "ok", "tag", "truncation", "format", "limit", "plaintext", "usage",
    }  # fmt: skip


# --- key metadata -------------------------------------------------------------------------------


@each(KEY_METADATA)
def test_key_metadata_is_read_and_written_as_the_vectors_say(case: Case) -> None:
    data = bytes.fromhex(case["hex"])
    assert key_metadata_disagreement(case) is None
    if case["expect"] != "ok":
        with pytest.raises(FormatError) as failure:
            modcrypt.ags1.StandardKeyMetadata.decode(data)
        assert failure.value.word == case["expect"]
        return
    metadata = modcrypt.ags1.StandardKeyMetadata(
        key=bytes.fromhex(case["key"]), aad_prefix=prefix_of(case), file_length=case["file_length"]
    )
    assert metadata.encode() == data
    assert modcrypt.ags1.StandardKeyMetadata.decode(data) == metadata


@pytest.mark.parametrize("name", [name for name in KEYS if name.startswith("of-")])
def test_key_metadata_of_a_key_that_aes_does_not_have_is_the_callers_mistake(name: str) -> None:
    with pytest.raises(ValueError, match="16, 24 or 32") as failure:
        modcrypt.ags1.StandardKeyMetadata(key=KEYS[name])
    assert not isinstance(failure.value, ModcryptError)


# --- the verifier itself ------------------------------------------------------------------------


def test_the_verifier_imports_only_cryptography_and_the_standard_library() -> None:
    tree = ast.parse(Path(verify_ags1.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        getattr(node, "module", None) or alias.name for node in imports for alias in node.names
    }
    tops = {name.partition(".")[0] for name in names}
    assert tops - sys.stdlib_module_names == {"cryptography"}


def test_the_verifier_runs_as_a_command(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEYS["stream-128"])
    command = [
        sys.executable, verify_ags1.__file__, str(FOLDER / "base/four.ags1"),
        "--key-file", str(tmp_path / "key"), "--aad-prefix", BASES["four"]["aad_prefix"],
    ]  # fmt: skip
    for trust in (["--length", "332"], ["--unverified"]):
        good = subprocess.run([*command, *trust], capture_output=True, text=True, check=False)
        assert (good.returncode, good.stderr) == (0, "")
        assert good.stdout == "332 bytes in blocks of 64: 212 bytes of plaintext\n"
    bad = subprocess.run([*command, "--length", "331"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr == "truncation: 332 bytes, not the trusted 331\n"


# --- streams and key metadata of Iceberg's Java -------------------------------------------------


def java() -> tuple[Path, dict[str, Any]]:
    """Return the folder of Iceberg Java's files and what its manifest says of them."""
    folder = shared_vectors() / "ags1"
    return folder, json.loads((folder / "manifest.json").read_text())


def test_streams_of_java_open_in_both() -> None:
    folder, manifest = java()
    assert manifest["valid"]
    for entry in manifest["valid"]:
        data, key, prefix = (
            (folder / entry["file"]).read_bytes(),
            entry_key(entry),
            prefix_of(entry),
        )
        metadata = modcrypt.ags1.StandardKeyMetadata(
            key=key, aad_prefix=prefix, file_length=entry["file_length"]
        )
        for plaintext in (
            ags1.decrypt(data, key, aad_prefix=prefix, length=entry["file_length"]),
            ags1.decrypt(data, metadata),
            verify_ags1.verify(data, key, prefix, entry["file_length"]),
        ):
            assert hashlib.sha256(plaintext).hexdigest() == entry["plain_sha256"], entry["file"]


def entry_key(entry: dict[str, Any]) -> bytes:
    return bytes.fromhex(entry["key"])


@SEALERS
def test_sealing_with_the_nonces_of_java_gives_its_bytes(sealer: Seal) -> None:
    folder, manifest = java()
    for entry in manifest["valid"]:
        data = (folder / entry["file"]).read_bytes()
        plaintext = hashlib.shake_128(f"ags1:{entry['plain_length']}".encode()).digest(
            entry["plain_length"]
        )
        size = entry["block_length"] + 28
        nonces = b"".join(data[at : at + 12] for at in range(8, len(data), size))
        # The block length is the default one: it is that of Java.
        options = {"key": entry_key(entry), "aad_prefix": prefix_of(entry)}
        assert seal_with_nonces(sealer, plaintext, nonces, options) == data, entry["file"]


# What is said with the trusted length, and without one.
TAMPERED = {
    "magic_flip": ("format", "format"),
    "blocklen_half": ("ok", "ok"),  # a single block stays the same; Java reads no other length
    "nonce_flip": ("tag", "tag"),
    "tag_flip_first": ("tag", "tag"),
    "trunc_1": ("truncation", "tag"),
    "trunc_whole_last_block": ("truncation", "ok"),
    "trunc_magic_only": ("truncation", "truncation"),
    "dup_block0": ("tag", "tag"),
    "append_10_after_full": ("truncation", "truncation"),
    "splice_block_other_aad": ("tag", "tag"),
    "odd_trailing_empty_block": ("ok", "ok"),
    "odd_aad_bigendian": ("ok", "ok"),  # index 0 is the same in both orders
    "wrong_aad": ("tag", "tag"),
    "wrong_key": ("tag", "tag"),
    "wrong_key_empty_file": ("tag", "tag"),
    "trusted_len_block_border": ("truncation", "ok"),
}


def test_streams_of_java_that_were_tampered_with_get_their_word_from_both() -> None:
    folder, manifest = java()
    said = {}
    for entry in manifest["tampered"]:
        data, key, prefix = (
            (folder / entry["file"]).read_bytes(),
            entry_key(entry),
            prefix_of(entry),
        )
        trusted = entry["trusted_length"] or len(data)
        words = []
        for length in (trusted, None):
            given = ags1.UNVERIFIED if length is None else length
            word, plaintext = outcome(ags1.decrypt, data, key, aad_prefix=prefix, length=given)
            again = outcome(verify_ags1.verify, data, key, prefix, length)
            assert (word, plaintext) == again, entry["name"]
            if word == "ok":
                java_said = entry["java_fs_length" if length is None else "java_trusted_length"]
                known = entry["name"] == "blocklen_half" or java_said["sha256"]
                assert known in (True, hashlib.sha256(plaintext).hexdigest()), entry["name"]
            words.append(word)
        said[entry["name"]] = tuple(words)
    assert said == TAMPERED


def outcome(read: Callable[..., bytes], *args: Any, **options: Any) -> tuple[str, bytes]:
    """Return the failure word, or "ok" and the plaintext."""
    try:
        return "ok", read(*args, **options)
    except (ModcryptError, VerifyError) as error:
        return error.word, b""


def test_key_metadata_of_java_is_the_same_byte_for_byte() -> None:
    folder, _ = java()
    entries = json.loads((folder / "key_metadata.json").read_text())
    encoded = [entry for entry in entries if entry["op"] == "encode" and "hex" in entry]
    assert {entry["file_length"] for entry in encoded} >= {None, -1, 36, 5_000_000_000}
    for entry in encoded:
        metadata = modcrypt.ags1.StandardKeyMetadata(
            key=entry_key(entry), aad_prefix=prefix_of(entry), file_length=entry["file_length"]
        )
        assert metadata.encode().hex() == entry["hex"]
        assert modcrypt.ags1.StandardKeyMetadata.decode(bytes.fromhex(entry["hex"])) == metadata


def test_key_metadata_that_java_reads_loosely_is_refused() -> None:
    folder, _ = java()
    entries = json.loads((folder / "key_metadata.json").read_text())
    decoded = {entry["hex"]: entry["ok"] for entry in entries if entry["op"] == "decode"}
    # A byte is left over; a key of no bytes.
    assert {data for data, ok in decoded.items() if ok} == {
        "0120000102030405060708090a0b0c0d0e0f000000", "01000000",
    }  # fmt: skip
    for data in decoded:
        with pytest.raises(FormatError):
            modcrypt.ags1.StandardKeyMetadata.decode(bytes.fromhex(data))
        with pytest.raises(VerifyError, match="format"):
            verify_ags1.read_key_metadata(bytes.fromhex(data))
