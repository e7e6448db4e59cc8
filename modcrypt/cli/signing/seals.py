"""`modcrypt seals`: sign what files a dataset has, and compare them with the seal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup

import modcrypt
from modcrypt.cli.options.kms_options import passphrase_options
from modcrypt.cli.output.progress import batch_bar
from modcrypt.cli.shared import (
    choose_key_pair,
    combine_options,
    end_with_help,
    exclude_each_other,
    format_table,
    json_option,
    make_reference,
    print_json,
    print_line,
    refuse_existing,
    threads_option,
)
from modcrypt.errors import printable

# click keeps the lines of a paragraph after \b as they are.
_GROUP_EXAMPLE = """\b
Example: a writer signs the files of a folder, and a reader compares them
  modcrypt seals generate writer.key
  modcrypt seals create --sign writer.key lake
  modcrypt seals verify --verify-key writer.pub lake"""

_GENERATE_EXAMPLE = """\b
Example: against quantum computers, too, under a passphrase that modcrypt asks for
  modcrypt seals generate --scheme mldsa65 --passphrase archive.key"""

_EXPORT_EXAMPLE = """\b
Example: a key of Vault's transit engine, which never leaves it
  modcrypt seals export "hcvault://vault.example.com/transit/keys/writer" writer.pub"""

_CREATE_EXAMPLE = """\b
Example:
  modcrypt seals create --sign writer.key lake"""

_VERIFY_EXAMPLE = """\b
Example: a seal that is not older than number 7
  modcrypt seals verify --verify-key writer.pub --at-least 7 lake"""

_verify_key_option = click.option(
    "--verify-key",
    "verify_keys",
    metavar="VERIFIER",
    multiple=True,
    help="Accept signatures of this writer: its .pub file or line. Repeatable.",
)
_threads = threads_option("Number of files read concurrently. Default: 4.")
_passphrase_options = combine_options(
    click.option("--passphrase", "ask", is_flag=True, help="Ask for the passphrase of the key."),
    passphrase_options,
    exclude_each_other("ask", "passphrase_file", "passphrase_env", "passphrase_fd"),
)


@cloup.group(epilog=_GROUP_EXAMPLE, invoke_without_command=True)
@click.pass_context
def seals(context: click.Context) -> None:
    """Sign what files a dataset has, and compare its files with the seal.

    Whoever can read an encrypted file can forge it, because its keys are symmetric. A seal lists
    the hashes of whole files, signed by their writer, and so detects what readers have made or
    altered, and files that are missing, foreign or moved.
    """
    end_with_help(context)


@seals.command(epilog=_GENERATE_EXAMPLE)
@click.argument("path", metavar="FILE.key")
@click.option(
    "--scheme",
    type=click.Choice(["ed25519", "mldsa65"]),
    default="ed25519",
    show_default=True,
    help="Signature scheme; mldsa65 resists quantum computers.",
)
@_passphrase_options
@json_option
def generate(*, path: str, scheme: str, ask: bool, as_json: bool, **options: Any) -> None:
    """Make a key pair: FILE.key signs, FILE.pub verifies.

    FILE.key has mode 0600 and must stay secret. FILE.pub is one line of text; give it to readers,
    and compare the id with them.
    """
    private, public = choose_key_pair(path, "a signing key", "verifier")
    key = modcrypt.SigningKey.generate(scheme)
    key.save(private, passphrase=_read_passphrase(path, ask, options, twice=True))
    with public.open("x", encoding="ascii") as file:
        file.write(f"{key.verifier}\n")
    id_ = key.verifier.hex_id
    if as_json:
        fields = {"signing_key": str(private), "verifier": str(public), "id": id_}
        print_json("seals.pair", fields)
        return
    print_line(f"signing key  {private} (secret)")
    print_line(f"verifier     {public}, id {id_}")


@seals.command(epilog=_EXPORT_EXAMPLE)
@click.argument("key")
@click.argument("path", metavar="FILE.pub")
@_passphrase_options
@json_option
def export(*, key: str, path: str, ask: bool, as_json: bool, **options: Any) -> None:
    """Write the verifying key of a signing key to FILE.pub, which must not exist.

    KEY is a file of `generate`, or the URI of a key that signs inside Vault or OpenBao (type
    ed25519), AWS KMS (ECC_NIST_EDWARDS25519 or ML_DSA_65) or a PKCS#11 token (edwards25519). Give
    FILE.pub to readers, and compare the id with them.
    """
    refuse_existing(Path(path))
    verifier = _load_key(key, ask, options).verifier
    with open(path, "x", encoding="ascii") as file:
        file.write(f"{verifier}\n")
    if as_json:
        print_json("seals.verifier", {"verifier": path, "id": verifier.hex_id})
        return
    print_line(f"verifier  {path}, id {verifier.hex_id}")


def _load_key(key: str, ask: bool, options: dict[str, Any]) -> modcrypt.SigningKey:
    from modcrypt.kms.signing.signing_references import names_service

    if not names_service(key):
        return modcrypt.SigningKey.load(key, _read_passphrase(key, ask, options))
    if ask or make_reference(options, "--passphrase") is not None:
        raise click.UsageError("a passphrase is for a signing key in a file")
    return modcrypt.SigningKey.open(key)


def _read_passphrase(path: str, ask: bool, options: dict[str, Any], *, twice: bool = False) -> Any:
    from modcrypt.kms.keyring.keyring_passphrase import ask_passphrase, make_reference_asker

    if ask:
        return ask_passphrase(f"the signing key {path}", twice=twice)
    reference = make_reference(options, "--passphrase")
    return None if reference is None else make_reference_asker(reference)


@seals.command(epilog=_CREATE_EXAMPLE)
@click.argument("folder")
@click.option(
    "--sign",
    metavar="KEY",
    required=True,
    help="Signing key: a file, or the URI of a key in a key service.",
)
@_passphrase_options
@_verify_key_option
@_threads
@json_option
def create(
    *, folder: str, sign: str, ask: bool, verify_keys: tuple[str, ...], threads: int | None,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Sign what files FOLDER has, in FOLDER/_modcrypt_seal.json.

    Every visible file is read and hashed; no other key is needed. An older seal must be signed with
    the same key, or one that --verify-key names; the new one has the next number.
    """
    key = _load_key(sign, ask, options)
    with batch_bar("Hashing", 0, None) as bar:
        sealed = modcrypt.seal_dataset(
            folder, key, signed_by=_read_keys(verify_keys), threads=threads,
            progress=lambda done, total: bar(0, done),
        )  # fmt: skip
    _print_result(sealed, as_json)


@seals.command(epilog=_VERIFY_EXAMPLE)
@click.argument("folder")
@_verify_key_option
@click.option(
    "--at-least",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    help="Require seal number N or a newer one, to detect a folder that was rolled back.",
)
@_threads
@json_option
def verify(
    *, folder: str, verify_keys: tuple[str, ...], at_least: int, threads: int | None, as_json: bool
) -> int:
    """Compare the files of FOLDER with its seal.

    The exit code is 1 if a file is missing, foreign, hidden or changed, or the seal is not signed
    by one of the writers.
    """
    if not verify_keys:
        raise click.UsageError("no writer is named; use --verify-key")
    with batch_bar("Hashing", 0, None) as bar:
        result = modcrypt.verify_seal(
            folder, _read_keys(verify_keys), at_least=at_least, threads=threads,
            progress=lambda done, total: bar(0, done),
        )  # fmt: skip
    _print_result(result, as_json)
    return 0 if result.ok else 1


def _read_keys(texts: tuple[str, ...]) -> tuple[modcrypt.VerifyingKey, ...]:
    from modcrypt.kms.signing.signing_references import read_verifying_keys

    return read_verifying_keys(texts)


def _print_result(result: modcrypt.SealVerification, as_json: bool) -> None:
    if as_json:
        print_json("seals.result", {**result.fields(), "ok": result.ok})
        return
    if result.findings:
        rows = [(printable(finding.path), finding.problem) for finding in result.findings]
        print_line(format_table(("file", "problem"), rows, left=(0, 1)))
    print_line(
        f"seal {result.sequence}: {result.files} files, signed by {result.signer}; "
        f"{len(result.findings)} differences"
    )
