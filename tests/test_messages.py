"""Messages repeat no bytes of a file that was taken for another one, and names only in part."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import re
import shutil
import traceback
import urllib.parse
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import click
import fsspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from fsspec import AbstractFileSystem

import modcrypt
from modcrypt import errors, iceberg
from modcrypt.ags1 import StandardKeyMetadata
from modcrypt.cli.app import program
from modcrypt.cli.output.failures import _OPTION_NAMES
from modcrypt.doctor import machine_checks
from modcrypt.subjects.vault import create_vault
from tests.support.cases import each_case, one_in
from tests.support.tables import write_plain

SECRET = bytes.fromhex("d3d7f1e5c9b6a8939b87f2c4de91b0e6")
"""Four bytes of it in a row stand nowhere by accident, in any spelling."""

SECRET_FILES = {
    "raw.key": SECRET,
    "hex.key": SECRET.hex().encode() + b"\n",
    "base64.key": base64.b64encode(SECRET) + b"\n",
    "secrets.env": f"{SECRET.hex()}_\xd3 = {SECRET.hex()}\n".encode("latin-1"),
    "secrets.toml": f'"{SECRET.hex()}" = 1\n'.encode(),
    "secrets.json": json.dumps({SECRET.hex(): base64.b64encode(SECRET).decode()}).encode(),
}

VALID = """
encrypt --key file:{footer.key} --column-key name=file:{name.key} {plain.parquet} out
encrypt --policy {policy.toml} --passphrase file:{pass} {plain.parquet} out
encrypt --kms file:{ring} --master-key lake --aad-prefix file:{prefix} {plain.parquet} out
decrypt --key file:{footer.key} --aad-prefix file:{prefix} {sealed.parquet} out
decrypt --kms file:{ring} {kms.parquet} out
schema --key file:{footer.key} {sealed.parquet}
head --key file:{footer.key} {sealed.parquet}
cat --kms file:{ring} {kms.parquet}
inspect --key file:{footer.key} {sealed.parquet}
verify --policy {policy.toml} --passphrase file:{pass} {kms.parquet}
verify --config {lake.toml}
status --config {lake.toml} --files
apply --config {lake.toml} --dry-run
report --config {lake.toml} --json
why --config {lake.toml} kms.parquet
keys impact --config {lake.toml} lake
trust --print {lake.toml}
rekey --key file:{footer.key} --to {next.toml} {sealed.parquet} out
mask --hash name --hash-key file:{name.key} --key file:{footer.key} {sealed.parquet} out
share --column id --key file:{footer.key} --to {next.toml} {sealed.parquet} out
shred --kms file:{ring} {kms.parquet} --column name --yes
keys create --kms file:{ring} new --import file:{name.key}
keys list --kms file:{ring} --passphrase file:{pass}
keys list --policy {policy.toml}
keys disable --kms file:{ring} lake
keys enable --kms file:{ring} lake
keys destroy --kms file:{ring} lake
keys rotate --kms file:{ring} --key lake --record {record} {kms.parquet}
keys scan --kms file:{ring} {kms.parquet}
leaks --policy {policy.toml} {plain.parquet}
keys generate --kind signing new.key
seals create --sign file:{writer.key} .
seals add --sign file:{writer.key} . plain.parquet
seals remove --sign file:{writer.key} . plain.parquet
seals cosign --sign file:{writer.key} .
seals record --sign file:{writer.key} new -- encrypt --key file:footer.key plain.parquet new/out
seals writers --sign file:{writer.key} . {writer.pub}
seals witness --sign file:{writer.key} --signed-by {writer.pub} --store new .
seals log --signed-by {writer.pub} .
seals verify --signed-by {writer.pub} .
seals export file:{writer.key} new.pub
keys generate --kind recipient --scheme x25519 new.key
recipients list {sealed.parquet}
recipients add --key file:{footer.key} --to {me.pub} {sealed.parquet}
recipients remove --identity file:{me.key} --recipient {me.pub} {sealed.parquet}
ags1 encrypt --key file:{footer.key} {plain.parquet} out
ags1 encrypt --key-metadata-file {fresh.key} {plain.parquet} out
ags1 decrypt --key-metadata-file {notes.key} {notes.ags1} out
ags1 cat --key file:{footer.key} --unverified-length {notes.ags1}
ags1 inspect {notes.ags1}
iceberg create --kms file:{ring} --like {plain.parquet} --master-key lake new
iceberg append --kms file:{ring} {metadata.json} {plain.parquet}
iceberg encrypt --kms file:{ring} --master-key lake {metadata.json} new
iceberg snapshots {metadata.json} --key-store {store}
iceberg files --kms file:{ring} {metadata.json}
iceberg scan --kms file:{ring} {metadata.json}
iceberg admin policy {metadata.json}
iceberg seal --sign file:{writer.key} {metadata.json}
iceberg rotate mek --kms file:{ring} {metadata.json}
iceberg admin prune --kms file:{ring} {metadata.json}
iceberg expire --kms file:{ring} {metadata.json} --yes
iceberg admin repair --kms file:{ring} {metadata.json}
iceberg admin remove-orphans --kms file:{ring} {metadata.json} --yes
iceberg purge --kms file:{ring} {metadata.json} --yes
iceberg shred --kms file:{ring} {metadata.json} --partition name=Ada --yes
iceberg verify --kms file:{ring} {metadata.json}
iceberg keys {metadata.json} --key-store {store}
iceberg tree --kms file:{ring} {metadata.json}
subjects create --kms file:{ring} lake --vault new
subjects status --kms file:{ring} --vault {people}?keys={keks}
subjects erase --kms file:{ring} --vault {people}?keys={keks} 7 --request R --yes
subjects prove --kms file:{ring} --vault {people}?keys={keks} 7 {plain.parquet}
subjects export --kms file:{ring} --vault {people}?keys={keks} 7 {plain.parquet}
subjects rotate --kms file:{ring} --vault {people}?keys={keks} --yes
doctor --policy {policy.toml} --file {sealed.parquet} --key file:{footer.key}
doctor --kms file:{ring} --spark-event-log {events}
""".strip().splitlines()


def spellings() -> Iterator[bytes]:
    """Spell each part of the secret of some bytes as programs do that show bytes."""
    for start in range(len(SECRET) - 3):
        part = SECRET[start : start + 4]
        yield from (part, part.hex().encode(), part.hex(" ").encode(), repr(part)[2:-1].encode())
        yield from (repr(list(part))[1:-1].encode(), urllib.parse.quote(part).encode())
        yield part.decode("latin-1").encode()
    text = base64.b64encode(SECRET)
    yield from (text[start : start + 6] for start in range(len(text) - 7))


SPELLINGS = {spelling.lower() for spelling in spellings()}


def check_hidden(text: str) -> None:
    shown = text.encode("utf-8", "surrogateescape").lower()
    assert not [spelling for spelling in SPELLINGS if spelling in shown], text
    assert "ecodeError" not in text  # they name the byte that they stumble over


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one valid file of each kind."""
    folder = tmp_path_factory.mktemp("valid")
    write_plain(folder / "plain.parquet")
    texts = {"footer.key": "00" * 15 + "01", "name.key": "00" * 15 + "02", "pass": "pw\n"}
    texts |= {"prefix": "prefix", "events": "", "store": ""}
    texts["policy.toml"] = 'kms = "file:ring"\nfooter_key = "lake"\n'
    texts["next.toml"] = 'footer_key = "file:name.key"\n'
    texts["lake.toml"] = '[dataset.a]\nlocation = "kms.parquet"\npolicy = "policy.toml"\n'
    texts["lake.toml"] = f'kms = "file:ring"\n{texts["lake.toml"]}'
    for name, text in texts.items():
        (folder / name).write_text(text)
    ring = modcrypt.Keyring.create(folder / "ring", plaintext=True)
    ring.create_key("lake")
    tools = modcrypt.KeyTools(f"file:{folder / 'ring'}")
    create_vault(f"{folder}/people?keys={folder}/keks", tools, "lake").close()
    policy = modcrypt.Policy(footer_key="lake", column_keys={"lake": ["name"]})
    modcrypt.encrypt_parquet(
        folder / "plain.parquet", folder / "kms.parquet", tools.encryption(policy)
    )
    key = bytes(15) + b"\1"
    modcrypt.encrypt_parquet(
        folder / "plain.parquet",
        folder / "sealed.parquet",
        modcrypt.FileEncryptionProperties(footer_key=key, aad_prefix=b"prefix"),
    )
    length = modcrypt.encrypt_ags1(folder / "plain.parquet", folder / "notes.ags1", key=key)
    (folder / "notes.key").write_bytes(StandardKeyMetadata(key=key, file_length=length).encode())
    (folder / "fresh.key").write_bytes(StandardKeyMetadata(key=key).encode())
    (folder / "metadata.json").write_text("{}")
    writer = modcrypt.SigningKey.generate()
    writer.save(folder / "writer.key")
    (folder / "writer.pub").write_text(f"{writer.verifier}\n")
    me = modcrypt.Identity.generate("x25519")
    me.save(folder / "me.key")
    (folder / "me.pub").write_text(f"{me.recipient}\n")
    for path in folder.iterdir():
        path.chmod(0o600)
    return folder


@pytest.fixture
def folder(valid: Path, tmp_path: Path) -> Path:
    shutil.copytree(valid, tmp_path, dirs_exist_ok=True)
    for name, data in SECRET_FILES.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o600)
    return tmp_path


def verbs(command: click.Command, name: str = "") -> Iterator[str]:
    if isinstance(command, click.Group):
        for below, subcommand in command.commands.items():
            yield from verbs(subcommand, f"{name} {below}".strip())
    else:
        yield name


def test_every_verb_is_tried() -> None:
    tried = {verb for verb in verbs(program) for line in VALID if line.startswith(f"{verb} ")}
    read_no_file = {"completion", "man", "spark jar", "spark package"}
    assert set(verbs(program)) - tried == read_no_file


@each_case("line", VALID, lambda line: line.split(" {")[0][:40], quick=one_in(2))
def test_no_verb_repeats_bytes_of_a_file_in_the_place_of_another(
    folder: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "machine", lambda: ())  # takes its time, and no file
    files = [part.split("}")[0] for part in line.split("{")[1:]]
    runner = CliRunner()
    with contextlib.chdir(folder):
        for secret in SECRET_FILES:
            # Each by itself, and all at once.
            for swapped in ({name} for name in files), [set(files)]:
                for names in swapped:
                    chosen = {name: secret if name in names else name for name in files}
                    text = line
                    for name, other in chosen.items():
                        text = text.replace(f"{{{name}}}", other)
                    result = runner.invoke(program, text.split(), prog_name="modcrypt")
                    if files:  # without one, what is shown is the random id of a new key
                        check_hidden(result.output)
                    assert result.exit_code != 70, result.output
                    for out in ("out", "new"):
                        remove(folder / out)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class NoCredentialsError(Exception):
    """An error outside the usual hierarchy, as boto and Google's client raise."""


class LostStore(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A store for which there are no credentials."""

    protocol = "lost"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        raise NoCredentialsError(f"none for http://host/{path}?signature=c2lnbmF0dXJl")

    def ls(self, path: str, **_: Any) -> list[Any]:
        raise NoCredentialsError(f"none for http://host/{path}?signature=c2lnbmF0dXJl")

    def _open(self, path: str, *_: Any, **__: Any) -> Any:
        raise NoCredentialsError(f"none for http://host/{path}?signature=c2lnbmF0dXJl")


@pytest.fixture
def failing_store() -> str:
    """A folder in a store that fails."""
    fsspec.register_implementation("lost", LostStore, clobber=True)
    return "lost://bucket"


DATA = ("plain.parquet", "sealed.parquet", "kms.parquet", "notes.ags1", "metadata.json")


def test_no_credentials_for_a_store_are_a_file_error_of_every_verb(
    folder: Path, failing_store: str
) -> None:
    for line in VALID:
        text = line
        for name in DATA:
            text = text.replace(f"{{{name}}}", f"{failing_store}/{name}")
        text = text.replace("{", "").replace("}", "")
        if failing_store not in text:
            continue
        with contextlib.chdir(folder):
            result = CliRunner().invoke(program, text.split(), prog_name="modcrypt")
        assert result.exit_code == 74, result.output
        assert f"{failing_store}/" in result.output
        assert "NoCredentialsError: none for http://host/bucket" in result.output
        assert "c2lnbmF0dXJl" not in result.output


def test_messages_name_files_in_stores_by_their_urls(folder: Path) -> None:
    fsspec.filesystem("memory").pipe(
        "/bucket/plain.parquet", (folder / "plain.parquet").read_bytes()
    )
    for line in (
        "inspect memory://bucket/none", "verify memory://none",
        "encrypt --to {me.pub} memory://bucket/none out",
        "encrypt --to {me.pub} memory://none out",
        "recipients list memory://bucket/plain.parquet", "recipients list memory://none",
        "recipients add --identity file:{me.key} --to {me.pub} memory://bucket/plain.parquet",
        "iceberg snapshots memory://bucket",
    ):  # fmt: skip
        with contextlib.chdir(folder):
            arguments = line.replace("{", "").replace("}", "").split()
            result = CliRunner().invoke(program, arguments, prog_name="modcrypt")
        assert result.exit_code in (1, 2), result.output
        *_, where = re.findall(r"memory://\w+", line)
        assert f"{where}/" in result.output or f"{where}:" in result.output


def test_advice_names_no_option_that_the_command_lacks(folder: Path) -> None:
    keys = ("--key", "file:footer.key", "--column-key", "name=file:name.key")
    lacking, share = ("--key", "file:footer.key"), ("--to", "next.toml", "two", "out")
    with contextlib.chdir(folder):
        CliRunner().invoke(program, ["encrypt", *keys, "plain.parquet", "two"])
        for line, is_offered in (
            (("cat", *lacking, "two"), True),
            (("share", *lacking, "--column", "name", *share), False),
            (("mask", *lacking, "--drop", "id", *share), False),
        ):
            result = CliRunner().invoke(program, line, prog_name="modcrypt")
            assert "no key for column name; give it with --column-key" in result.output
            assert ("--on-missing-key" in result.output) is is_offered


@pytest.mark.parametrize(
    "use",
    [
        lambda url: modcrypt.inspect_parquet(url),
        lambda url: modcrypt.read_table(url, modcrypt.FileDecryptionProperties()),
        lambda url: modcrypt.encrypt_ags1(b"x", f"{url}/out", key=bytes(15) + b"\1"),
        lambda url: list(modcrypt.jobs.scan_keys(url, modcrypt.KeyTools("env:NO_KEY"))),
        lambda url: iceberg.open_table(url, modcrypt.KeyTools("env:NO_KEY")),
    ],
)
def test_no_credentials_for_a_store_are_an_os_error_with_the_url(
    use: Callable[[str], Any], failing_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_KEY", "00" * 15 + "01")
    with pytest.raises(OSError, match="NoCredentialsError: none for") as caught:
        use(f"{failing_store}/key")
    assert caught.value.errno == errno.EIO
    assert str(caught.value.filename).startswith(f"{failing_store}/key")


READERS: dict[str, Callable[[Path], Any]] = {
    "read_table": lambda path: modcrypt.read_table(
        path, modcrypt.FileDecryptionProperties(footer_key=bytes(15) + b"\1")
    ),
    "inspect_parquet": modcrypt.inspect_parquet,
    "inspect_ags1": modcrypt.ags1.inspect_ags1,
    "Policy.load": modcrypt.Policy.load,
    "Keyring": modcrypt.Keyring,
    "StandardKeyMetadata": lambda path: StandardKeyMetadata.decode(path.read_bytes()),
    "open_table": lambda path: iceberg.open_table(str(path), modcrypt.KeyTools("env:NO_KEY")),
    "FileKeyStore": lambda path: iceberg.FileKeyStore(path).keys(),
    "SqliteKeyStore": lambda path: iceberg.SqliteKeyStore(path).keys(),
}


@each_case("reader", READERS)
def test_no_function_repeats_bytes_of_a_file_in_the_place_of_another(
    folder: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_KEY", "00" * 15 + "01")
    for name in SECRET_FILES:
        with pytest.raises(Exception) as caught:  # noqa: PT011  # of several kinds
            READERS[reader](folder / name)
        check_hidden(f"{caught.value!s} {caught.value!r}")
        check_hidden("".join(traceback.format_exception(caught.value)))


# --- names from files ----------------------------------------------------------------------------

HOSTILE = "\x1b[2J\u202e\n" + "x" * (1 << 20)


@each_case("kind", [name for name in errors.__all__ if name.endswith("Error")])
def test_an_error_is_printable_and_bounded_whatever_it_names(kind: str) -> None:
    error = getattr(errors, kind)(HOSTILE)
    assert str(error).isprintable()
    assert len(str(error)) < 5000
    assert "\\x1b[2J\\u202e\\n" in str(error)


def test_an_unknown_column_lists_those_of_a_hostile_file_in_part(tmp_path: Path) -> None:
    write_plain(tmp_path / "f.parquet", pa.table({HOSTILE: [1], "b": [2]}))
    properties = modcrypt.FileEncryptionProperties(
        footer_key=bytes(15) + b"\1", plaintext_columns=["c"]
    )
    with pytest.raises(ValueError, match=r"not have these columns: c; it has .*, b$") as caught:
        modcrypt.encrypt_parquet(tmp_path / "f.parquet", tmp_path / "out", properties)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("compresion", "; did you mean compression?"),
        ("use_dictionray", "; did you mean use_dictionary?"),
        ("row_groupsize", "; did you mean row_group_size?"),
        ("zzz", ""),
    ],
)
def test_a_misspelt_option_of_a_writer_is_named(name: str, hint: str, tmp_path: Path) -> None:
    encryption = modcrypt.FileEncryptionProperties(footer_key=bytes(15) + b"\1")
    table, out = pa.table({"a": [1]}), tmp_path / "out"
    options: dict[str, Any] = {name: 1}
    writers: list[Callable[[], Any]] = [
        lambda: modcrypt.write_table(table, out, encryption, **options),
        lambda: modcrypt.ParquetWriter(out, table.schema, encryption, **options),
        lambda: modcrypt.write_dataset(table, out, encryption, **options),
    ]
    for write in writers:
        with pytest.raises(TypeError, match=rf"^unknown option {name}{re.escape(hint)}$"):
            write()
    assert not list(tmp_path.rglob("*.parquet"))
    assert not out.is_file()


def test_every_phrase_that_the_command_line_translates_is_in_a_message_of_the_library() -> None:
    """Otherwise advice names an argument of the library, and nobody notices."""
    package = Path(modcrypt.__file__).parent
    texts = "\n".join(
        text
        for path in package.rglob("*.py")
        if not path.is_relative_to(package / "cli")
        for text in _texts_in(SourceFileLoader(path.stem, str(path)).get_code(path.stem))
    )
    for phrase, _ in _OPTION_NAMES:
        start = phrase.partition('"')[0]  # values stand in a part of their own of an f-string
        assert start in texts, phrase


def _texts_in(code: Any) -> Iterator[str]:
    """Yield the texts of code, which Python has compiled already: that is quicker than parsing."""
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from (text for text in constant if isinstance(text, str))
        elif isinstance(constant, CodeType):
            yield from _texts_in(constant)
