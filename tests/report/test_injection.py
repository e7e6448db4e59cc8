"""Hostile names and arguments: pages and terminals only ever show them as text."""

from __future__ import annotations

import html.parser
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import modcrypt as mc
from modcrypt.cli.app import program
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY
from tests.support.randomness import dice
from tests.support.tables import write_plain

NAMES = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "$style$policy",
    "a\u202eb",
    "x\x1b]0;owned\x07",
    "--> <!--",
    "]]>",
    "'\"><svg onload=alert(3)>",
    "\u2028\u2029",
    "\ufeff",
)
OPENING = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
EVIL_FILE = "<img src=x onerror=alert(6)>\x1b[31m.parquet"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file that is hostile wherever it can be: names, key metadata, prefix."""
    table = pa.table({name: ['=HYPERLINK("http://e")', "\x1b[2J"] for name in NAMES})
    sealing = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY,
        footer_key_metadata=b"<script>alert(4)</script>\x1b[31m",
        aad_prefix=b"<b>\x1b]52;c;AAAA\x07",
        plaintext_footer=True,
    )
    mc.write_table(table, tmp_path / EVIL_FILE, sealing)
    (tmp_path / "footer.key").write_text(FOOTER_KEY.hex())
    (tmp_path / "footer.key").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Elements(html.parser.HTMLParser):
    """What a browser would run or load of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts = 0
        self.active: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.active += [tag] * (tag in ("img", "iframe", "object", "embed", "base", "form"))
        self.active += [name for name, _ in attrs if name.startswith("on") or name == "src"]


def pages(path: Path) -> Iterator[str]:
    yield mc.report.render_html(mc.inspect_parquet(path))
    yield mc.report.render_html(mc.inspect_parquet(path, OPENING))
    yield mc.report.render_html(mc.verify_parquet(path, OPENING))


def test_pages_have_no_element_and_no_character_of_a_hostile_file(folder: Path) -> None:
    for page in pages(folder / EVIL_FILE):
        found = Elements(page)
        assert (found.scripts, found.active) == (3, [])  # its own: data and programs
        assert not [c for c in set(page) if not c.isprintable() and c != "\n"]
        (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy


KEY = ("--key", "file:footer.key")


@each_case(
    "arguments",
    [
        ("inspect", EVIL_FILE),
        ("inspect", "--modules", EVIL_FILE, *KEY),
        ("inspect", "--json", EVIL_FILE),
        ("verify", EVIL_FILE, *KEY),
        ("schema", EVIL_FILE, *KEY),
        ("schema", "--parquet", EVIL_FILE, *KEY),
        ("head", EVIL_FILE, *KEY),
        ("cat", EVIL_FILE, *KEY),
        ("cat", EVIL_FILE, *KEY, "--column", "none"),
        ("cat", EVIL_FILE + "x", *KEY),
        ("keys", "scan", EVIL_FILE),
        ("decrypt", EVIL_FILE, "nowhere/out", *KEY),
        ("rekey", EVIL_FILE, "out", *KEY, "--to", EVIL_FILE),
        ("doctor", "--file", EVIL_FILE, *KEY),
        ("\x1b[2J",),
        ("encrypt", "--\x1b[2J"),
    ],
)
def test_no_output_gives_a_terminal_orders(folder: Path, arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(program, arguments, prog_name="modcrypt")
    assert result.exit_code != 70, result.output
    assert result.output
    assert not [c for c in set(result.output) if not c.isprintable() and c != "\n"]


# --- arguments -----------------------------------------------------------------------------------

COMMANDS = (
    "encrypt", "decrypt", "verify", "inspect", "schema", "head", "cat", "rekey", "mask", "share",
    "shred", "keys list", "keys create", "keys rotate", "keys scan", "keys disable",
    "ags1 encrypt", "ags1 decrypt", "ags1 cat", "ags1 inspect", "iceberg scan", "iceberg create",
    "iceberg files", "iceberg keys", "iceberg verify", "iceberg expire", "iceberg snapshots",
)  # fmt: skip
FILES = (
    "sealed.parquet", "wrapped.parquet", "junk", "cut", "empty", "/dev/null", ".", "nope", "-", "",
    "\x00", "a\nb", "memory://x", "zip://x::y", "sealed.parquet::x", "modcrypt::sealed.parquet",
    "file:///etc/passwd", "s3://", "é" * 300, "%00", "~nobody/x",
)  # fmt: skip
OPTIONS = (
    "--key file:footer.key", "--key file:junk", "--column-key a=file:footer.key", "--column-key a",
    "--kms file:ring", "--kms env:HOME", "--kms x:y", "--kms file:junk", "--policy policy.toml",
    "--policy deep.toml", "--policy junk", "--aad-prefix x", "--aad-prefix hex:zz", "--json",
    "--on-missing-key null", "--accept-algorithm AES_GCM_CTR_V1", "--allow-plaintext", "--column a",
    "--limit -1", "--format csv", "--safe", "--where a>1", "--where ((((((", "--threads 0",
    "--force", "--yes", "--html out.html", "--null b", "--drop a", "--to policy.toml",
    "--key 0123456789012345", "--key fd:99", "--key lake", "--version 1",
    "--version 99999999999999999999", "--at-least x", "--snapshot 1", "--unverified-length",
    "--length 5", "--new-key-metadata m", "--key-metadata-file junk", "--expected-rows -1",
)  # fmt: skip


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with valid and damaged files of each kind."""
    monkeypatch.chdir(tmp_path)
    write_plain(tmp_path / "plain.parquet")
    sealing = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    mc.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), "sealed.parquet", sealing)
    mc.Keyring.create("ring", plaintext=True).create_key("lake")
    wrapping = mc.KeyTools("file:ring").encryption(mc.Policy(footer_key="lake"))
    mc.write_table(pa.table({"a": [1]}), "wrapped.parquet", wrapping)
    Path("footer.key").write_text(FOOTER_KEY.hex())
    Path("policy.toml").write_text('kms = "file:ring"\nfooter_key = "lake"\n')
    Path("deep.toml").write_text("x = " + "[" * 200)
    Path("junk").write_bytes(random.Random(3).randbytes(300))
    Path("cut").write_bytes(b"PAR1" + bytes(50) + b"PAR1")
    Path("empty").touch()
    for path in tmp_path.iterdir():
        path.chmod(0o600)
    return tmp_path


@pytest.mark.seeded
@pytest.mark.usefixtures("files")
def test_no_arguments_are_a_bug_of_modcrypt() -> None:
    rng, runner = dice(7), CliRunner()
    for _ in range(250):
        arguments = rng.choice(COMMANDS).split()
        arguments += rng.choices(FILES, k=rng.choice((0, 1, 1, 2, 2, 3)))
        for option in rng.choices(OPTIONS, k=rng.choice((0, 1, 2, 2, 3))):
            arguments += option.split(" ")
        result = runner.invoke(program, arguments, prog_name="modcrypt", input="")
        assert isinstance(result.exception, SystemExit | None), arguments
        assert result.exit_code in (0, 1, 2, 3, 4, 5, 74), (arguments, result.output)
        assert "Traceback" not in result.output
        assert FOOTER_KEY.hex() not in result.output
