"""`modcrypt keys generate`: files with new keys of every kind."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import modcrypt
from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.references import new_passphrase_option
from modcrypt.cli.shared import print_json, print_line, read_passphrase, refuse_existing
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import printable

_EXAMPLE = """\b
Examples: a key for files; a pair that signs; a partner's pair, under a passphrase
  modcrypt keys generate footer.key
  modcrypt keys generate --kind signing writer.key
  modcrypt keys generate --kind recipient --passphrase prompt partner.key"""


@dataclass(frozen=True)
class _Pair:
    """A kind of key pair: its schemes, the default first, and the words for its two files."""

    schemes: tuple[str, ...]
    private: str
    public: str
    json_schema: str

    def generate(self, scheme: str) -> Any:
        """Return a new private key."""
        owner: Any = modcrypt.Identity if self.public == "recipient" else modcrypt.SigningKey
        return owner.generate(scheme)


_PAIRS = {
    "signing": _Pair(("ed25519", "mldsa65"), "signing key", "verifier", "seals.pair"),
    "recipient": _Pair(
        ("mlkem768-x25519", "x25519"), "identity", "recipient", "recipients.pair"
    ),
}  # fmt: skip
_SCHEMES = {
    "key": ("aes128", "aes192", "aes256"), **{kind: pair.schemes for kind, pair in _PAIRS.items()}
}  # fmt: skip


@verb(epilog=_EXAMPLE)
@click.argument("path", metavar="FILE.key")
@option(
    "--kind",
    type=click.Choice([*_SCHEMES]),
    default="key",
    show_default=True,
    help="key: an AES key for --key; signing: a pair that signs and verifies; recipient: a "
    "pair that files are encrypted --to and opened with as --identity.",
)
@option(
    "--scheme",
    type=click.Choice([scheme for schemes in _SCHEMES.values() for scheme in schemes]),
    help="Scheme of the keys. Default: aes128, ed25519 for signing, mlkem768-x25519 for a "
    "recipient. mldsa65 and mlkem768-x25519 resist quantum computers; x25519 is short.",
)
@new_passphrase_option()
def generate(
    *, path: str, kind: str, scheme: str | None, passphrase: str | None, as_json: bool
) -> None:
    """Make a key file, or a key pair: FILE.key is secret, FILE.pub is public.

    FILE.key has mode 0600; neither file may exist. FILE.pub is one line of text: give it to those
    who verify your files or encrypt files for you, and compare the id with them.
    """
    scheme = scheme or _SCHEMES[kind][0]
    if scheme not in _SCHEMES[kind]:
        raise click.UsageError(f"--kind {kind} has the schemes {', '.join(_SCHEMES[kind])}")
    if Path(path).suffix != ".key":
        raise click.UsageError("the name of a file with a secret key ends in .key")
    if kind == "key":
        refuse({"passphrase"}, "this needs --kind signing or recipient")
        _write_key(Path(path), int(scheme[3:]), as_json)
        return
    pair, files = _PAIRS[kind], _choose_files(path)
    key = pair.generate(scheme)
    secret = read_passphrase(f"the new {pair.private} {path}", passphrase, twice=True)
    key.save(files[0], passphrase=secret)
    public_key = getattr(key, pair.public)
    with files[1].open("x", encoding="ascii") as file:
        file.write(f"{public_key}\n")
    _print_pair(pair, files, public_key.hex_id, as_json)


def _write_key(path: Path, bits: int, as_json: bool) -> None:
    from modcrypt.kms.keyring.keyring_file import create  # not to be loaded for the help

    refuse_existing(path)
    create(str(path), f"{secrets.token_hex(bits // 8)}\n".encode())
    if as_json:
        print_json("keys.file", {"key": str(path), "bits": bits})
        return
    print_line(printable(f"key  {path} (secret), {bits} bits"))


def _choose_files(path: str) -> tuple[Path, Path]:
    """Return the paths of FILE.key and FILE.pub, of which neither may exist."""
    files = Path(path), Path(path).with_suffix(".pub")
    for file in files:
        refuse_existing(file)
    return files


def _print_pair(pair: _Pair, files: tuple[Path, Path], id_: str, as_json: bool) -> None:
    names = pair.private, pair.public
    if as_json:
        fields = {
            name.replace(" ", "_"): str(file) for name, file in zip(names, files, strict=True)
        }
        print_json(pair.json_schema, {**fields, "id": id_})
        return
    width = max(map(len, names)) + 2
    print_line(printable(f"{names[0]:{width}}{files[0]} (secret)"))
    print_line(printable(f"{names[1]:{width}}{files[1]}, id {id_}"))
