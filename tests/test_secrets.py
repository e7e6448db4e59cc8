"""No key, plaintext or key metadata in anything that is shown, logged, raised or left behind."""

from __future__ import annotations

import base64
import copy
import dataclasses
import functools
import gc
import io
import json
import logging
import os
import pickle
import pprint
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from dask.tokenize import tokenize

import modcrypt
from modcrypt import (
    FileDecryptionProperties,
    FileEncryptionProperties,
    Key,
    Keyring,
    KeyTools,
    Policy,
    ags1,
    decrypt_ags1,
    decrypt_parquet,
    encrypt_ags1,
    encrypt_parquet,
    errors,
    iceberg,
    inspect_parquet,
)
from modcrypt.aead import CtrCipher, GcmCipher
from modcrypt.ags1 import UNVERIFIED, Ags1Reader, Ags1Writer, StandardKeyMetadata, inspect_ags1
from modcrypt.ags1.blocks import block_cipher
from modcrypt.cli import app
from modcrypt.io import buffers
from modcrypt.io.places import place_of
from modcrypt.io.sources import open_source
from modcrypt.jobs import rotate_keys, scan_keys
from modcrypt.keys import invocation_counter
from modcrypt.kms import open_kms
from modcrypt.kms.wrapping import Kek
from modcrypt.parquet.crypto.ciphers import ChunkCipher, ColumnKey, FileCipher
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer_keys import list_key_metadata
from modcrypt.pkmt1.material import decode_metadata
from tests.support.cases import each_case
from tests.support.kms.memory_kms import MemoryKms, PyArrowKms
from tests.support.leaks import (
    COLUMN,
    COLUMN_ID,
    COLUMN_MASTER,
    FOOTER,
    FOOTER_ID,
    KEYS,
    MASTER,
    PASSPHRASE,
    SECRETS,
    SHORT,
    SPENT,
    leaks,
    spellings,
)
from tests.support.module_spans import list_modules
from tests.support.pkmt1 import open_base64
from tests.support.sleeps import note_sleeps
from tests.support.tables import write_plain
from tests.support.unfinished_files import unfinished_files

VALUES = ["one Vq*zjx7w-kmnp", "two Vq*zjx7w-kmnp"]
NUMBER = int.from_bytes(b"Pn$8byte", "little")


@each_case("name", list(SECRETS))
def test_the_search_finds_what_it_looks_for(name: str) -> None:
    secret = SECRETS[name]
    ways: list[Callable[[bytes], str | bytes]] = [
        bytes,
        repr,
        lambda data: data.hex(),
        lambda data: data.hex().upper(),
        lambda data: repr(list(data)),
        lambda data: repr({"key": data}),
    ]
    if len(secret) > 15:
        ways += [base64.b64encode, lambda data: base64.urlsafe_b64encode(b"xy" + data)]
    for way in ways:
        assert leaks(way(secret)) == [name]
    assert leaks(b"nothing of the kind") == []


# --- the scene -----------------------------------------------------------------------------------


def marked_table() -> pa.Table:
    return pa.table(
        {
            "name": VALUES * 20,
            "number": pa.array([NUMBER] * 40, pa.int64()),
            "other": pa.array([{"value": VALUES[n % 2]} for n in range(40)]),
        }
    )


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_plain(
        tmp_path / "plain",
        marked_table(),
        compression="none",
        write_page_index=True,
        write_page_checksum=True,
        bloom_filter_options={"name": {"ndv": 10, "fpp": 0.1}},
    )


def encryption(**changes: Any) -> FileEncryptionProperties:
    given = {
        "footer_key": FOOTER,
        "column_keys": {"name": COLUMN},
        "footer_key_metadata": FOOTER_ID,
        "column_key_metadata": {"name": COLUMN_ID},
        "aad_prefix": b"prefix",
    }
    return FileEncryptionProperties(**(given | changes))


def decryption(**changes: Any) -> FileDecryptionProperties:
    given = {"footer_key": FOOTER, "column_keys": {"name": COLUMN}, "aad_prefix": b"prefix"}
    return FileDecryptionProperties(**(given | changes))


def sealed_bytes(plain: Path, **changes: Any) -> bytes:
    out = io.BytesIO()
    encrypt_parquet(plain, out, encryption(**changes))
    return out.getvalue()


def replace_bytes(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


# --- what is shown -------------------------------------------------------------------------------


def public_objects(plain: Path) -> list[object]:
    lookup = {FOOTER_ID: FOOTER, COLUMN_ID: COLUMN}
    key = Key(COLUMN)
    sealed = sealed_bytes(plain)
    cipher = FileCipher(b"", "AES_GCM_CTR_V1")
    cipher.page_cipher(key, cipher.gcm(key))
    with open_source(sealed) as source:
        footer = OpenFile(source, decryption()).footer
    return [
        key,
        invocation_counter(key),
        encryption(),
        decryption(),
        decryption(key_retriever=functools.partial(dict.get, lookup)),
        decryption(key_retriever=lookup.get),
        inspect_parquet(sealed, decryption(), pages=True),
        GcmCipher(key),
        CtrCipher(key),
        cipher,
        ChunkCipher(cipher, key, 0, 0, "name"),
        ColumnKey(key, own=True),
        footer.cipher,
        footer.footer_key,
        modcrypt.errors.KeyNotFoundError("no key", "name"),
    ]


def test_no_object_shows_a_secret(plain: Path) -> None:
    for shown in public_objects(plain):
        check_texts(shown, getattr(shown, "__dict__", None) and _without_metadata(vars(shown)))


def check_texts(shown: object, fields: object) -> None:
    texts = [repr(shown), str(shown), f"{shown}", ascii(shown)]
    for text in [*texts, pprint.pformat(shown), pprint.pformat(fields)]:
        assert leaks(text) == [], type(shown)


def _without_metadata(fields: dict[str, Any]) -> dict[str, Any]:
    """Keep what a debugger would show; key metadata and retrievers are the caller's own values."""
    own = {"footer_key_metadata", "column_key_metadata", "key_retriever"}
    return {name: value for name, value in fields.items() if name not in own}


SERIALIZERS: dict[str, Callable[[Any], object]] = {
    "pickle": pickle.dumps,
    "old pickle": lambda value: pickle.dumps(value, 2),
    "cloudpickle": cloudpickle.dumps,
    "copy": lambda value: repr(copy.copy(value)),
    "deep copy": lambda value: repr(copy.deepcopy(value)),
    "fields": lambda value: repr(dataclasses.asdict(value)),
    "JSON": lambda value: json.dumps(value, default=str),
    "JSON of fields": lambda value: json.dumps(_without_metadata(vars(value)), default=str),
    "token of Dask": lambda value: tokenize(value),
}


@each_case("way", SERIALIZERS)
def test_no_serializer_shows_a_key(way: str, plain: Path) -> None:
    """Programs hand whatever they have to caches, queues and logs; here it is refused or empty."""
    for value in (*public_objects(plain), StandardKeyMetadata(key=COLUMN, aad_prefix=b"p")):
        try:
            shown = SERIALIZERS[way](value)
        except Exception as error:
            shown = "".join(traceback.format_exception(error))
        assert leaks(shown if isinstance(shown, bytes) else str(shown), KEYS) == [], type(value)


def test_no_key_outlives_its_use(plain: Path) -> None:
    key = Key.generate()
    held = sys.getrefcount(key)
    out = io.BytesIO()
    encrypt_parquet(plain, out, FileEncryptionProperties(footer_key=key))
    modcrypt.read_table(out.getvalue(), FileDecryptionProperties(footer_key=key))
    gc.collect()
    assert sys.getrefcount(key) == held


def test_properties_do_not_pickle_or_copy_their_keys() -> None:
    for properties in (encryption(), decryption()):
        for way in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError) as caught:
                way(properties)
            assert leaks("".join(traceback.format_exception(caught.value))) == []


# --- what is raised ------------------------------------------------------------------------------


def last_of(data: bytes, what: bytes) -> int:
    return data.rindex(what)


def scenes(plain: Path) -> dict[str, tuple[type[Exception], Callable[[], object]]]:
    """Name every way to fail: the error, and what brings it about."""
    sealed, signed = sealed_bytes(plain), sealed_bytes(plain, plaintext_footer=True)
    original = plain.read_bytes()
    spans = list_modules(sealed, decryption())
    page = next(s for s in spans if s.module.type is modcrypt.parquet.ModuleType.DATA_PAGE)

    def encrypt(source: bytes = original, **changes: Any) -> Callable[[], object]:
        return lambda: encrypt_parquet(source, io.BytesIO(), encryption(**changes))

    def decrypt(source: bytes = sealed, **changes: Any) -> Callable[[], object]:
        return lambda: decrypt_parquet(source, io.BytesIO(), decryption(**changes))

    def decrypt_with_retriever(retriever: Callable[[bytes], Any]) -> Callable[[], object]:
        return decrypt(column_keys={}, key_retriever=retriever)

    def fail_with(error: Exception) -> Callable[[bytes], Any]:
        def retrieve(metadata: bytes) -> Any:
            raise error

        return retrieve

    known: dict[bytes, bytes] = {}
    spent = Key(SPENT[:16])
    invocation_counter(spent).count = 2**32
    value_at = last_of(original, VALUES[0].encode())
    return {
        "key of 15 bytes": (ValueError, lambda: Key(SHORT)),
        "footer key of 15 bytes": (ValueError, lambda: encryption(footer_key=SHORT)),
        "column key of 15 bytes": (ValueError, lambda: decryption(column_keys={"name": SHORT})),
        "key as text": (TypeError, lambda: Key(FOOTER.decode())),  # type: ignore[arg-type]  # the mistake
        "keys in a list": (TypeError, lambda: encryption(footer_key=[FOOTER])),
        "hex key": (ValueError, lambda: Key(FOOTER.hex()[:-2].encode())),
        "base64 key": (ValueError, lambda: decryption(footer_key=base64.b64encode(SHORT))),
        "all zeros": (ValueError, lambda: encryption(footer_key=bytes(16))),
        "key and plaintext": (ValueError, lambda: encryption(plaintext_columns=["name"])),
        "unknown column": (
            ValueError,
            encrypt(column_keys={"nome": COLUMN}, column_key_metadata={}),
        ),
        "metadata without a key": (
            ValueError,
            lambda: encryption(column_key_metadata={"number": COLUMN_ID}),
        ),
        "wrong footer key": (modcrypt.errors.TagMismatchError, decrypt(footer_key=COLUMN)),
        "wrong column key": (
            modcrypt.errors.TagMismatchError,
            decrypt(column_keys={"name": FOOTER}),
        ),
        "altered page": (
            modcrypt.errors.TagMismatchError,
            decrypt(replace_bytes(sealed, page.end - 20, bytes(4))),
        ),
        "altered signature": (
            modcrypt.errors.FooterSignatureError,
            decrypt(replace_bytes(signed, len(signed) - 20, bytes(4))),
        ),
        "no signature of the writer": (
            modcrypt.errors.WriterSignatureError,
            decrypt(signed, signed_by=[modcrypt.SigningKey.generate().verifier]),
        ),
        "altered plaintext page": (
            modcrypt.errors.ChecksumError,
            encrypt(replace_bytes(original, original.index(VALUES[0].encode()), b"!")),
        ),
        "wrong prefix": (modcrypt.errors.AadPrefixError, decrypt(aad_prefix=b"another")),
        "length field altered": (
            modcrypt.errors.TruncationError,
            decrypt(replace_bytes(sealed, 4, b"\x01\0\0\0")),
        ),
        "plaintext file": (modcrypt.errors.PlaintextError, decrypt(original)),
        "no footer key": (modcrypt.errors.KeyNotFoundError, decrypt(footer_key=None)),
        "no column key": (modcrypt.errors.KeyNotFoundError, decrypt(column_keys={})),
        "retriever knows nothing": (
            modcrypt.errors.KeyNotFoundError,
            decrypt_with_retriever(known.__getitem__),
        ),
        "retriever gives nothing": (
            modcrypt.errors.KeyNotFoundError,
            decrypt_with_retriever(known.get),
        ),
        "retriever is refused": (
            modcrypt.errors.KeyAccessDeniedError,
            decrypt_with_retriever(fail_with(PermissionError("refused"))),
        ),
        "retriever fails": (
            modcrypt.errors.KeyRetrievalError,
            decrypt_with_retriever(fail_with(RuntimeError("boom"))),
        ),
        "retriever gives 15 bytes": (
            modcrypt.errors.KeyMaterialError,
            decrypt_with_retriever(lambda _: SHORT),
        ),
        "retriever gives text": (
            modcrypt.errors.KeyMaterialError,
            decrypt_with_retriever(lambda _: FOOTER.decode()),
        ),
        "retriever gives a list": (
            modcrypt.errors.KeyMaterialError,
            decrypt_with_retriever(lambda _: [COLUMN]),
        ),
        "spent key": (modcrypt.errors.KeyExhaustedError, encrypt(footer_key=spent)),
        "encrypted already": (modcrypt.errors.UnsupportedFormatError, encrypt(sealed)),
        "algorithm": (
            modcrypt.errors.UnsupportedFormatError,
            decrypt(sealed_bytes(plain, encryption_algorithm="AES_GCM_CTR_V1")),
        ),
        "cut short": (modcrypt.errors.FormatError, decrypt(sealed[:-9])),
        "cut plaintext": (modcrypt.errors.FormatError, encrypt(original[: value_at + 5])),
        "huge footer": (
            modcrypt.errors.LimitError,
            decrypt(replace_bytes(sealed, len(sealed) - 8, b"\xff\xff\xff\x7f")),
        ),
        "key for the footer as a path": (
            OSError,
            lambda: decrypt_parquet("/no/such/file", io.BytesIO(), decryption()),
        ),
    }


def catch(work: Callable[[], object], expected: type[Exception]) -> Exception:
    with pytest.raises(expected) as caught:
        work()
    return caught.value


def test_no_error_shows_a_secret(plain: Path, no_waiting: None) -> None:
    met = set()
    for name, (expected, work) in (scenes(plain) | kms_scenes(plain)).items():
        error = catch(work, expected)
        met.add(type(error))
        chain: BaseException | None = error
        while chain is not None:
            shown = [str(chain), repr(chain), repr(chain.args), repr(vars(chain))]
            if type(chain).__module__.startswith("modcrypt") or chain is error:
                assert leaks("\n".join(shown)) == [], name
            chain = chain.__cause__ or chain.__context__
        # As a program prints it that catches nothing, with the source lines of this test left out.
        text = "".join(traceback.TracebackException.from_exception(error).format_exception_only())
        assert leaks(text) == [], name
        printed = "".join(traceback.format_exception(error))
        assert leaks(printed, KEYS) == [], name
    classes: list[type] = [getattr(errors, name) for name in errors.__all__]
    leaves = {cls for cls in classes if not cls.__subclasses__()}
    assert leaves <= met, "an error that no scene brings about"


def test_a_tag_error_holds_on_to_no_bytes(plain: Path) -> None:
    error: BaseException | None = catch(scenes(plain)["altered page"][1], errors.TagMismatchError)
    while error is not None:
        assert not [value for value in error.args if not isinstance(value, str)]
        error = error.__cause__ or error.__context__


# --- what is written -----------------------------------------------------------------------------


@each_case("threads", [1, 2])
@each_case("plaintext_footer", [False, True])
@each_case("algorithm", ["AES_GCM_V1", "AES_GCM_CTR_V1"])
def test_nothing_is_printed_logged_or_warned_of_and_no_file_holds_a_secret(
    plain: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    plaintext_footer: bool,
    threads: int,
) -> None:
    monkeypatch.setattr(buffers, "BLOCK", 1024)
    temporary_folder = tmp_path / "tmp"
    temporary_folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary_folder))
    out = tmp_path / "out"
    out.mkdir()
    seen: list[bytes] = []

    def look(_: int) -> None:
        """Read what lies there while the work is under way."""
        seen.extend((*unfinished_files(out), *(path.read_bytes() for path in out.iterdir())))

    properties = encryption(encryption_algorithm=algorithm, plaintext_footer=plaintext_footer)
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        encrypt_parquet(plain, out / "sealed", properties, threads=threads, progress=look)
        sealed = (out / "sealed").read_bytes()
        decrypt_parquet(
            out / "sealed",
            tmp_path / "back",
            decryption(accept_algorithms=[algorithm]),
            threads=threads,
        )
    assert seen, "nothing was there to look at"
    in_the_open = {"footer key metadata", "column key metadata"}  # that is what they are for
    for data in (*seen, sealed):
        assert set(leaks(data)) <= in_the_open
    assert set(leaks(sealed)) & in_the_open
    back = (tmp_path / "back").read_bytes()
    assert leaks(back) == ["plaintext", "plaintext number"]
    assert back == plain.read_bytes()
    assert os.listdir(temporary_folder) == []
    assert sorted(os.listdir(out)) == ["sealed"]
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert warned == []


def test_failing_prints_and_logs_nothing(
    plain: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    no_waiting: None,
) -> None:
    with caplog.at_level(logging.DEBUG):
        for expected, work in (scenes(plain) | kms_scenes(plain)).values():
            catch(work, expected)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_plaintext_columns_are_plaintext_and_all_others_are_not(plain: Path) -> None:
    """The search above would pass on a file that lost its values: here they are to be found."""
    out = io.BytesIO()
    properties = FileEncryptionProperties(footer_key=FOOTER, plaintext_columns=["name"])
    encrypt_parquet(plain, out, properties)
    assert leaks(out.getvalue()) == ["plaintext"]


def test_dropping_a_column_leaves_none_of_its_values(plain: Path) -> None:
    opened = io.BytesIO()
    properties = decryption(column_keys={}, on_missing_key="drop")
    decrypt_parquet(sealed_bytes(plain), opened, properties)
    assert leaks(opened.getvalue()) == ["plaintext", "plaintext number"]  # of those that stay
    opened = io.BytesIO()
    keys = {"name": COLUMN, "other": COLUMN}
    sealed = sealed_bytes(plain, column_keys=keys, column_key_metadata={})
    decrypt_parquet(sealed, opened, properties)
    assert leaks(opened.getvalue()) == ["plaintext number"]


# --- AGS1 and key metadata -----------------------------------------------------------------------

MARKED = b"".join(value.encode() for value in VALUES) * 20
METADATA = StandardKeyMetadata(key=FOOTER, aad_prefix=COLUMN_ID)


def ags1_objects() -> list[Any]:
    """Return objects that a debugger may show in the middle of reading and writing."""
    writer = Ags1Writer(io.BytesIO(), METADATA, block_length=100)
    writer.write(MARKED)
    done = Ags1Writer(io.BytesIO(), COLUMN, aad_prefix=COLUMN_ID)
    done.write(MARKED)
    done.close()
    stream = ags1.encrypt(MARKED, METADATA, block_length=100)
    reader = Ags1Reader(stream, METADATA, length=len(stream))
    reader.read(150)
    reader.read(150)
    return [
        METADATA,
        METADATA.with_length(len(stream)),
        StandardKeyMetadata.decode(METADATA.encode()),
        done.key_metadata,
        writer,
        done,
        reader,
        block_cipher(METADATA, None),
        inspect_ags1(stream),
        UNVERIFIED,
        modcrypt.errors.TagMismatchError(modcrypt.ags1.BlockId(3)),
    ]


def test_no_object_of_ags1_shows_a_secret() -> None:
    for shown in ags1_objects():
        check_texts(shown, getattr(shown, "__dict__", None))
        if isinstance(shown, Ags1Writer | Ags1Reader):
            for value in vars(shown).values():
                assert leaks(repr(value)) == [], type(shown)
            shown.close()


def test_objects_of_ags1_do_not_pickle_or_copy_their_keys() -> None:
    for value in ags1_objects():
        if not isinstance(value, StandardKeyMetadata | Ags1Writer | Ags1Reader):
            continue
        ways: list[Callable[[Any], object]] = [pickle.dumps, copy.deepcopy]
        if not isinstance(value, StandardKeyMetadata):
            ways.append(copy.copy)  # a twin would close the file of both
        for way in ways:
            with pytest.raises(TypeError) as caught:
                way(value)
            assert leaks("".join(traceback.format_exception(caught.value))) == []


def ags1_scenes(folder: Path) -> dict[str, tuple[type[Exception], Callable[[], object]]]:
    """Name the ways to fail, of reading, writing and decoding."""
    stream = ags1.encrypt(MARKED, METADATA, block_length=100)
    encoded = METADATA.with_length(len(stream)).encode()
    spent = Key(SPENT)
    invocation_counter(spent).count = 2**32

    def open_stream(
        data: bytes = stream, key: Any = METADATA, **options: Any
    ) -> Callable[[], object]:
        given = {"length": UNVERIFIED} | options
        return lambda: ags1.decrypt(data, key, **given)

    def decrypt_stream(data: bytes) -> Callable[[], object]:
        return lambda: decrypt_ags1(data, io.BytesIO(), METADATA, length=UNVERIFIED)

    def decode_metadata(data: bytes) -> Callable[[], object]:
        return lambda: StandardKeyMetadata.decode(data)

    def make_writer(**options: Any) -> Callable[[], object]:
        return lambda: Ags1Writer(folder / "out", **({"key": METADATA} | options))

    def write_stream(sink: Any, key: Any = METADATA) -> object:
        with Ags1Writer(sink, key) as writer:
            return writer.write(MARKED)

    altered = replace_bytes(stream, 150, bytes(4))
    return {
        "no length": (TypeError, open_stream(length=None)),
        "length as text": (TypeError, open_stream(length=FOOTER.decode())),
        "length": (modcrypt.errors.TruncationError, open_stream(length=len(stream) + 1)),
        "two lengths": (ValueError, open_stream(key=METADATA.with_length(5), length=6)),
        "two prefixes": (ValueError, open_stream(aad_prefix=COLUMN)),
        "prefix as text": (TypeError, make_writer(key=FOOTER, aad_prefix=FOOTER.decode())),
        "wrong key": (
            modcrypt.errors.TagMismatchError,
            open_stream(key=COLUMN, aad_prefix=COLUMN_ID),
        ),
        "wrong prefix": (
            modcrypt.errors.TagMismatchError,
            open_stream(key=FOOTER, aad_prefix=COLUMN),
        ),
        "altered": (modcrypt.errors.TagMismatchError, open_stream(altered)),
        "altered file": (modcrypt.errors.TagMismatchError, decrypt_stream(altered)),
        "cut": (modcrypt.errors.TruncationError, open_stream(stream[:20])),
        "plaintext": (modcrypt.errors.FormatError, open_stream(MARKED)),
        "plaintext file": (modcrypt.errors.FormatError, decrypt_stream(MARKED)),
        "key where a stream is due": (modcrypt.errors.FormatError, open_stream(FOOTER * 3)),
        "block length": (ValueError, make_writer(block_length=0)),
        "key of 15 bytes": (ValueError, make_writer(key=SHORT)),
        "key as text": (ValueError, make_writer(key=FOOTER.decode())),
        "metadata as a key": (ValueError, make_writer(key=encoded)),
        "metadata with a length": (ValueError, make_writer(key=METADATA.with_length(36))),
        "spent key": (modcrypt.errors.KeyExhaustedError, lambda: write_stream(io.BytesIO(), spent)),
        "full": (OSError, lambda: write_stream("/dev/full")),
        "text written": (TypeError, lambda: Ags1Writer(io.BytesIO(), METADATA).write("text")),
        "metadata cut": (modcrypt.errors.FormatError, decode_metadata(encoded[:-1])),
        "metadata too long": (modcrypt.errors.FormatError, decode_metadata(encoded + FOOTER)),
        "metadata without its version": (modcrypt.errors.FormatError, decode_metadata(encoded[1:])),
        "metadata of a key": (modcrypt.errors.FormatError, decode_metadata(FOOTER)),
        "metadata of a short key": (
            modcrypt.errors.FormatError,
            decode_metadata(b"\x01\x1e" + SHORT + b"\0\0"),
        ),
        "file length": (
            TypeError,
            lambda: StandardKeyMetadata(key=FOOTER, file_length=cast(Any, FOOTER.decode())),
        ),
    }


def test_no_error_of_ags1_shows_a_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name, (expected, work) in ags1_scenes(tmp_path).items():
        with caplog.at_level(logging.DEBUG):
            error: BaseException | None = catch(work, expected)
        printed = "".join(traceback.format_exception(error))
        assert leaks(printed) == [], name
        while error is not None:
            shown = [str(error), repr(error), repr(error.args), repr(vars(error))]
            assert leaks("\n".join(shown)) == [], name
            assert not [value for value in error.args if isinstance(value, bytes | memoryview)]
            error = error.__cause__ or error.__context__
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_no_file_of_ags1_holds_a_secret_while_it_is_written(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary_folder, out = tmp_path / "tmp", tmp_path / "out"
    temporary_folder.mkdir()
    out.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary_folder))
    seen: list[bytes] = []
    with Ags1Writer(out / "stream", METADATA, block_length=100, threads=threads) as writer:
        for _ in range(20):
            writer.write(MARKED)
            seen.extend(unfinished_files(out))
    assert len(max(seen)) > 1000
    seen.append((out / "stream").read_bytes())
    for data in seen:
        assert leaks(data) == []
    # Key metadata is what holds the key in the clear; the search finds it there.
    assert "footer key" in leaks(writer.key_metadata.encode())
    encrypt_ags1(MARKED, out / "again", METADATA, threads=threads)
    assert leaks((out / "again").read_bytes()) == []
    assert ags1.decrypt((out / "stream").read_bytes(), writer.key_metadata) == MARKED * 20
    assert os.listdir(temporary_folder) == []
    assert sorted(os.listdir(out)) == ["again", "stream"]


# --- keys from key services ----------------------------------------------------------------------

MASTERS = {"kf": MASTER, "kc": COLUMN_MASTER}
COLUMNS = {"kc": ["name", "number"]}
POLICY = Policy(footer_key="kf", column_keys=COLUMNS, aad_prefix="lake/{name}")
POLICIES = {
    f"{storage}, {wrapping}": replace(
        POLICY, internal_key_material=storage == "internal", double_wrapping=wrapping == "double"
    )
    for storage in ("internal", "external")
    for wrapping in ("single", "double")
}
by_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    note_sleeps(monkeypatch)


def data_keys(path: Path) -> set[bytes]:
    """Unwrap all keys of a file by `cryptography` alone, KEKs too."""
    beside = path.with_name(f"_KEY_MATERIAL_FOR_{path.name}.json")
    if beside.exists():
        texts = [json.loads(text) for text in json.loads(beside.read_text()).values()]
    else:
        with open_source(path) as source:
            keys, _ = list_key_metadata(source)
        texts = [json.loads(key.metadata or b"") for key in keys]
    found = set()
    for material in texts:
        name = material["masterKeyID"]
        master, dek_aad = MASTERS[name], name.encode()
        if material["doubleWrapping"]:
            master = open_base64(master, material["wrappedKEK"], dek_aad)
            dek_aad = base64.b64decode(material["keyEncryptionKeyID"])
            found.add(master)
        found.add(open_base64(master, material["wrappedDEK"], dek_aad))
    return found


def keys_in(data: str | bytes, keys: set[bytes]) -> int:
    """Count the keys, those made at random, that something shows."""
    data = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    return sum(any(spelling in data for spelling in spellings(key)) for key in keys)


def clear_ring(folder: Path, name: str = "clear.keyring") -> Keyring:
    ring = Keyring.create(folder / name, plaintext=True)
    for key_id, value in MASTERS.items():
        ring.create_key(key_id, value=value)
    return ring


def kms_scenes(plain: Path) -> dict[str, tuple[type[Exception], Callable[[], object]]]:
    """Name every way in which keys from a key service can fail."""
    folder = plain.parent / "kms"
    folder.mkdir()
    by_memory = folder / "memory"
    by_memory.mkdir()
    for name, policy in POLICIES.items():
        encrypt_parquet(plain, by_memory / name, KeyTools(MemoryKms(MASTERS)).encryption(policy))
    beside = by_memory / "_KEY_MATERIAL_FOR_external, single.json"

    def with_service(change: Callable[[MemoryKms], object], name: str) -> Callable[[], object]:
        def work() -> object:
            kms = MemoryKms(MASTERS)
            change(kms)
            return decrypt_parquet(by_memory / name, io.BytesIO(), KeyTools(kms).decryption(POLICY))

        return work

    def answering(answer: object) -> Callable[[MemoryKms], object]:
        return lambda kms: vars(kms).update(unwrap=lambda *_, **__: answer)

    def writing(change: Callable[[MemoryKms], object]) -> Callable[[], object]:
        def work() -> None:
            kms = MemoryKms(MASTERS)
            change(kms)
            encrypt_parquet(plain, folder / "new", KeyTools(kms).encryption(POLICY))

        return work

    def lost_race() -> None:
        rows = pq.read_table(plain)
        table = iceberg.create_table(
            folder / "table", rows.schema, MemoryKms(MASTERS), master_key_id="kf"
        )
        table.append(rows)
        table.versions.commit(table.place, table.metadata)

    def unwrap_damaged(metadata: bytes) -> Callable[[], object]:
        tools = KeyTools(MemoryKms(MASTERS))
        sealed = sealed_bytes(plain, footer_key_metadata=metadata)
        return lambda: decrypt_parquet(sealed, io.BytesIO(), tools.decryption())

    def damaged_store(data: bytes) -> Callable[[], object]:
        def work() -> object:
            kept = beside.read_bytes()
            beside.write_bytes(data)
            try:
                return with_service(lambda kms: None, "external, single")()
            finally:
                beside.write_bytes(kept)

        return work

    material = {
        "keyMaterialType": "PKMT1", "internalStorage": True, "isFooterKey": True,
        "masterKeyID": "kf", "doubleWrapping": False,
        "wrappedDEK": base64.b64encode(FOOTER).decode(),
    }  # fmt: skip

    def material_with(**members: object) -> Callable[[], object]:
        return unwrap_damaged(json.dumps(material | members).encode())

    def disabled_ring() -> object:
        ring = clear_ring(folder, "disabled.keyring")
        out = folder / "by keyring"
        encrypt_parquet(plain, out, KeyTools(ring).encryption(POLICY))
        ring.disable_key("kf")
        return decrypt_parquet(out, io.BytesIO(), KeyTools(ring).decryption(POLICY))

    def ring_of(data: str | bytes) -> Callable[[], object]:
        path = folder / "damaged.keyring"

        def work() -> object:
            path.write_bytes(data.encode() if isinstance(data, str) else data)
            path.chmod(0o600)
            return Keyring(path)

        return work

    def variable(value: str) -> Callable[[], object]:
        def work() -> object:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MODCRYPT_TEST_MASTER", value)
                return open_kms("env:MODCRYPT_TEST_MASTER")

        return work

    ring = clear_ring(folder)
    clear = Path(ring.path).read_text()
    value = base64.b64encode(MASTER).decode()
    revealing = RuntimeError(f"{MASTER!r} {MASTER.hex()} {value}")
    short = base64.b64encode(SHORT).decode()
    denied, refused = modcrypt.errors.KeyAccessDeniedError, modcrypt.errors.KeyMaterialError
    one_of = {"broken": lambda kms: kms.broken.update(kf=revealing)}
    return {
        "lost race": (modcrypt.errors.CommitConflictError, lost_race),
        "denied": (denied, with_service(lambda kms: kms.denied.add("kf"), "internal, double")),
        "denied, a column": (
            denied,
            with_service(lambda kms: kms.denied.add("kc"), "external, single"),
        ),
        "denied, in writing": (denied, writing(lambda kms: kms.denied.add("kc"))),
        "disabled": (
            modcrypt.errors.KeyDisabledError,
            with_service(lambda kms: kms.disabled.add("kf"), "internal, single"),
        ),
        "disabled in a keyring": (modcrypt.errors.KeyDisabledError, disabled_ring),
        "unavailable": (
            modcrypt.errors.KmsUnavailableError,
            with_service(lambda kms: vars(kms).update(unavailable=True), "external, double"),
        ),
        "unavailable, in writing": (
            modcrypt.errors.KmsUnavailableError,
            writing(lambda kms: kms.broken.update(kf=ConnectionError(MASTER.decode()))),
        ),
        "no master key": (
            modcrypt.errors.KeyNotFoundError,
            with_service(lambda kms: kms.masters.pop("kf"), "internal, single"),
        ),
        "the service tells the key": (
            modcrypt.errors.KeyRetrievalError,
            with_service(one_of["broken"], "internal, double"),
        ),
        "the service tells the key, in writing": (
            modcrypt.errors.KeyRetrievalError,
            writing(one_of["broken"]),
        ),
        "another master key": (
            refused,
            with_service(lambda kms: kms.masters.update(kf=COLUMN_MASTER), "internal, double"),
        ),
        "15 bytes unwrapped": (refused, with_service(answering(SHORT), "internal, single")),
        "text unwrapped": (refused, with_service(answering(value), "internal, double")),
        "a list unwrapped": (refused, with_service(answering([MASTER]), "internal, single")),
        "the key itself wrapped": (
            refused,
            writing(lambda kms: vars(kms).update(wrap=lambda *_, **__: MASTER)),
        ),
        "a key as metadata": (refused, unwrap_damaged(FOOTER)),
        "no JSON": (refused, unwrap_damaged(json.dumps(material).encode() + FOOTER)),
        "a key not wrapped": (refused, material_with()),
        "a number for a key": (refused, material_with(wrappedDEK=int.from_bytes(FOOTER, "big"))),
        "bytes for a key": (refused, material_with(wrappedDEK=FOOTER.decode() + "\x01")),
        "a name with a key in it": (refused, material_with(masterKeyID=FOOTER.decode() + "\n")),
        "a KEK's id": (
            refused,
            material_with(doubleWrapping=True, keyEncryptionKeyID=short, wrappedKEK=value),
        ),
        "no material beside": (
            refused,
            lambda: decrypt_parquet(
                (by_memory / "external, double").read_bytes(),
                io.BytesIO(),
                KeyTools(MemoryKms(MASTERS)).decryption(),
            ),
        ),
        "damaged material beside": (refused, damaged_store(b"{" + FOOTER)),
        "other material beside": (
            refused,
            damaged_store(json.dumps({"footerKey": FOOTER.decode()}).encode()),
        ),
        "a list of material beside": (
            refused,
            damaged_store(json.dumps({"footerKey": [value]}).encode()),
        ),
        "no passphrase": (denied, lambda: Keyring(_sealed_ring(folder))),
        "wrong passphrase": (
            denied,
            lambda: Keyring(_sealed_ring(folder), passphrase=PASSPHRASE[::-1]),
        ),
        "passphrase of a clear keyring": (
            modcrypt.errors.KeyRetrievalError,
            lambda: Keyring(ring.path, passphrase=PASSPHRASE),
        ),
        "two passphrases": (
            ValueError,
            lambda: Keyring.create(folder / "x", passphrase=PASSPHRASE, plaintext=True),
        ),
        "passphrase in the URI": (
            ValueError,
            lambda: open_kms(f"file:{ring.path}?passphrase={PASSPHRASE}"),
        ),
        "passphrase of a policy": (
            ValueError,
            lambda: Policy.loads(f'footer_key = "kf"\npassphrase = "{PASSPHRASE}"'),
        ),
        "passphrase for a client": (
            TypeError,
            lambda: KeyTools(MemoryKms(MASTERS), passphrase=PASSPHRASE),
        ),
        "keyring cut": (refused, ring_of(clear[:-5])),
        "keyring with a short key": (refused, ring_of(clear.replace(value, short))),
        "keyring with a hex key": (refused, ring_of(clear.replace(value, MASTER.hex() + "="))),
        "keyring of another version": (
            refused,
            ring_of(clear.replace('"version": 1', f'"version": "{value}"', 1)),
        ),
        "imported key of 15 bytes": (ValueError, lambda: ring.create_key("new", value=SHORT)),
        "imported key that is there": (ValueError, lambda: ring.create_key("kf", value=FOOTER)),
        "a variable without a key": (refused, variable(MASTER.hex()[:-2])),
        "a variable's name that is a key": (
            modcrypt.errors.KeyNotFoundError,
            lambda: open_kms(f"env:{MASTER.hex()}"),
        ),
        "a key as a URI": (ValueError, lambda: open_kms(MASTER.hex())),
        "a key as a service": (TypeError, lambda: KeyTools(cast(Any, MASTER))),
    }


def _sealed_ring(folder: Path) -> Path:
    path = folder / "sealed.keyring"
    if not path.exists():
        Keyring.create(path, passphrase=PASSPHRASE).create_key("kf", value=MASTER)
    return path


def kms_objects(plain: Path, folder: Path) -> list[object]:
    """Return objects of key services that a debugger may show."""
    kms, out = MemoryKms(MASTERS), folder / "sealed"
    events: list[object] = []
    tools = KeyTools(kms, audit=events.append)
    encrypt_parquet(plain, out, tools.encryption(POLICY))
    encrypt_parquet(plain, folder / "beside", tools.encryption(POLICIES["external, single"]))
    decrypt_parquet(out, io.BytesIO(), tools.decryption(POLICY))
    with open_source(out) as source:
        materials = [decode_metadata(key.metadata or b"") for key in list_key_metadata(source)[0]]
    ring = clear_ring(plain.parent)
    rotated = rotate_keys(folder, tools, what="dek")
    assert {result.result for result in rotated} == {"rotated"}
    keyed = tools.encryption(POLICY)
    master = {"MODCRYPT_TEST_MASTER": MASTER.hex()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*master.popitem())
        environment = open_kms("env:MODCRYPT_TEST_MASTER")
    kek = tools.wrapper.get_writing_kek("kf")
    assert isinstance(kek, Kek)
    assert events
    assert materials
    return [
        tools,
        tools.wrapper,
        vars(tools.wrapper),
        KeyTools(ring),
        keyed,
        keyed.for_check(),
        keyed.for_file(place_of(out)),
        tools.decryption(POLICY),
        POLICY,
        ring,
        ring.list_keys(),
        environment,
        vars(environment),
        modcrypt.kms.as_pyarrow_client(ring)(None),
        modcrypt.kms.from_pyarrow_client(PyArrowKms(masters=MASTERS)),
        kek,
        *materials,
        *events,
        *rotated,
        *scan_keys(folder, tools),
    ]


def test_no_object_of_the_key_tools_shows_a_secret(plain: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    made: set[bytes] = set()
    with noting_keys(made):
        objects = kms_objects(plain, folder)
    assert len(made) > 5
    for value in objects:
        for text in (repr(value), str(value), f"{value}", ascii(value), pprint.pformat(value)):
            assert leaks(text) == [], type(value)
            assert keys_in(text, made) == 0, type(value)


@contextmanager
def noting_keys(made: set[bytes]) -> Iterator[None]:
    """Note the bytes of all keys that come into being, data keys and KEKs."""
    make = Key.__init__

    def noting(self: Key, value: Any) -> None:
        make(self, value)
        made.add(bytes(value))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Key, "__init__", noting)
        yield


def test_what_has_keys_does_not_pickle_or_copy_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODCRYPT_TEST_MASTER", MASTER.hex())
    ring = clear_ring(tmp_path)
    tools = KeyTools(ring)
    for value in (
        ring,
        tools,
        tools.wrapper,
        tools.wrapper.get_writing_kek("kf"),
        tools.encryption(POLICY),
        tools.encryption(POLICY).for_check(),
        tools.decryption(POLICY),
        open_kms("env:MODCRYPT_TEST_MASTER"),
        modcrypt.kms.as_pyarrow_client(ring)(None),
        modcrypt.kms.from_pyarrow_client(PyArrowKms(masters=MASTERS)),
    ):
        for way in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError) as caught:
                way(value)
            assert leaks("".join(traceback.format_exception(caught.value))) == [], type(value)


@by_policy
def test_no_record_of_the_key_tools_holds_a_secret(
    policy: Policy,
    plain: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, lines, record = tmp_path / "lake", tmp_path / "audit.jsonl", tmp_path / "record.jsonl"
    folder.mkdir()
    to_lines = modcrypt.kms.audit_to_json_lines(lines)
    to_logging = modcrypt.kms.audit_to_logging()
    kms, made = MemoryKms(MASTERS), set[bytes]()
    tools = KeyTools(kms, audit=lambda event: (to_lines(event), to_logging(event)))
    with caplog.at_level(logging.DEBUG), noting_keys(made):
        encrypt_parquet(plain, folder / "a", tools.encryption(policy))
        results: list[object] = []
        for what in ("mek", "kek", "dek"):
            results += rotate_keys(folder, tools, what=cast(Any, what), record=record)
            made |= data_keys(folder / "a")
        results += scan_keys(folder, tools)
        results += scan_keys(folder)
        decrypt_parquet(folder / "a", io.BytesIO(), tools.decryption(policy))
        kms.denied.add("kf")
        tools.wrapper.forget()
        with pytest.raises(modcrypt.errors.KeyAccessDeniedError):
            decrypt_parquet(folder / "a", io.BytesIO(), tools.decryption(policy))
        results += rotate_keys(folder, tools, record=record)
        results += scan_keys(folder, tools)
    printed = capfd.readouterr()
    texts = [lines.read_text(), record.read_text(), caplog.text, repr(results), str(kms.calls)]
    assert all(len(text) > 100 for text in texts)
    assert "denied" in texts[0]
    for text in (*texts, printed.out, printed.err):
        assert leaks(text) == []
        assert keys_in(text, made) == 0
    assert len(made) >= 6


STEPS = ("fsync", "replace", "rename", "link", "unlink", "open")


@by_policy
@each_case("what", ["new", "replaced", "mek", "kek", "dek"])
def test_no_file_holds_a_secret_at_any_step_of_writing_by_the_key_tools(
    what: str, policy: Policy, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, temporary_folder = tmp_path / "lake", tmp_path / "tmp"
    folder.mkdir()
    temporary_folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary_folder))
    target, made, seen = folder / "a", set[bytes](), set[tuple[str, bytes]]()
    tools = KeyTools(MemoryKms(MASTERS))
    opened = os.open

    def look() -> None:
        for path in (*folder.iterdir(), *temporary_folder.iterdir()):
            seen.add((path.name, path.read_bytes()))

    def stepping(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def step(*arguments: Any, **options: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:  # looking is no step
                patch.setattr(os, "open", opened)
                look()
            return real(*arguments, **options)

        return step

    with noting_keys(made):
        if what != "new":
            encrypt_parquet(plain, target, tools.encryption(policy))
            made |= data_keys(target)
        with pytest.MonkeyPatch.context() as patch:
            for name in STEPS:
                patch.setattr(os, name, stepping(name))
            if what in ("new", "replaced"):
                encrypt_parquet(plain, target, tools.encryption(policy))
            else:
                results = rotate_keys(folder, tools, what=cast(Any, what), jobs=1)
                assert [result.result for result in results] == ["rotated"]
        look()
    made |= data_keys(target)
    names = {name for name, _ in seen}
    assert "a" in names
    assert any(name.endswith(".tmp") for name in names), "nothing was there to look at"
    assert ("_KEY_MATERIAL_FOR_a.json" in names) is not policy.internal_key_material
    assert len(made) >= 2
    for name, data in seen:
        assert leaks(data) == [], name
        assert keys_in(data, made) == 0, name
    assert os.listdir(temporary_folder) == []
    opened_again = io.BytesIO()
    decrypt_parquet(target, opened_again, tools.decryption(policy))
    assert opened_again.getvalue() == plain.read_bytes()


def test_the_program_prints_and_records_no_secret(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secrets come by files and variables; a keyring in the clear is the file that has them."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MODCRYPT_TEST_MASTER", base64.b64encode(COLUMN_MASTER).decode())
    monkeypatch.setenv("MODCRYPT_TEST_PHRASE", PASSPHRASE)
    master = folder / "master.key"
    master.write_text(MASTER.hex())
    master.chmod(0o600)
    ring, audit = ("--kms", "file:r"), ("--audit", "audit")
    phrase = ("--passphrase", "env:MODCRYPT_TEST_PHRASE")
    imported = ("--plaintext", "--import", "file:master.key")
    keyed = ("--kms", "file:r#kf", "--column-master-key", "name=kc", *audit)
    commands: list[tuple[int, tuple[str, ...]]] = [
        (
            0,
            ("keys", "create", *ring, "kf", *imported, "--json"),
        ),
        (0, ("keys", "create", *ring, "kc", "--import", "env:MODCRYPT_TEST_MASTER", "--json")),
        (0, ("encrypt", *keyed, "--json", str(plain), "a")),
        (0, ("inspect", *ring, "--modules", "--json", "a")),
        (0, ("keys", "rotate", *ring, *audit, "--record", "record", "--key", "kf", "--json", "a")),
        (0, ("keys", "rotate", *ring, *audit, "--what", "kek", "--json", "a")),
        (0, ("keys", "rotate", *ring, *audit, "--what", "dek", "a")),
        (0, ("keys", "scan", *ring, *audit, "--json", "a")),
        (0, ("keys", "scan", "--json", "a")),
        (0, ("keys", "disable", *ring, "kf", "--version", "1", "--json")),
        (0, ("decrypt", *ring, *audit, "--json", "a", "b")),
        (0, ("keys", "disable", *ring, "kf", "--json")),
        (0, ("keys", "list", *ring, "--json")),
        (3, ("decrypt", *ring, *audit, "--json", "a", "c")),
        (3, ("keys", "rotate", *ring, *audit, "--what", "kek", "--json", "a")),
        (3, ("keys", "list", *ring, *phrase, "--json")),
        (2, ("keys", "list", "--kms", f"file:r?passphrase={PASSPHRASE}", "--json")),
        (2, ("keys", "list", "--kms", MASTER.hex(), "--json")),
        (0, ("keys", "create", "--kms", "file:sealed", "kf", *phrase, "--json")),
    ]
    made: set[bytes] = set()
    for code, command in commands:
        with noting_keys(made):
            result = CliRunner().invoke(app.program, command)
        shown = result.output_bytes + result.stdout_bytes + result.stderr_bytes
        assert (result.exit_code, leaks(shown)) == (code, []), (command, result.output)
        assert shown, command
        assert keys_in(shown, made) == 0, command
    assert "master key" in leaks((folder / "r").read_bytes())
    for name in ("audit", "record", "sealed", "a"):
        data = (folder / name).read_bytes()
        assert data
        assert leaks(data) == [], name
        assert keys_in(data, made) == 0, name
