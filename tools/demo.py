"""Run the main tasks on real input, with the program that users run (`make demo`).

All files are in demo-output/ and remain there.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

import modcrypt as mc

FOLDER = Path(__file__).resolve().parent.parent / "demo-output"
BIN = Path(sys.executable).parent
PLAIN, SEALED, OLD = "lineitem.parquet", "lineitem.enc.parquet", "old-copy.parquet"
PARTNER = "for-partner.parquet"
DRAWING = "tampered.html"
PRICE, COMMENT = "l_extendedprice", "l_comment"
KEYRING, POLICY, PASSPHRASE = "file:lake.keyring", "policy.toml", "passphrase.txt"
KMS = ("--kms", KEYRING, "--passphrase", f"file:{PASSPHRASE}")
BY_POLICY = ("--policy", POLICY, "--passphrase", f"file:{PASSPHRASE}")

POLICY_TEXT = f"""\
kms = "{KEYRING}"
footer_key = "lake"               # seals every column that is named nowhere

[column_keys]
prices = ["{PRICE}"]
comments = ["{COMMENT}"]
"""


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    print(f"Working in {FOLDER.name}/.")

    say("Real input: the TPC-H table lineitem")
    run("tpchgen-cli", "parquet", "-s", "0.1", "--tables=lineitem")
    original = pq.read_table(FOLDER / PLAIN)
    print(f"{original.num_rows:,} rows, {original.num_columns} columns, {size(PLAIN)}")

    make_keyring()
    encrypt_by_policy(original)
    show_modules()
    decrypt_and_compare(original)
    share(original)
    rotate()
    do_without_comments(original)
    page = flip_one_byte()

    say("Summary")
    print(f"{original.num_rows:,} rows were encrypted page by page under fresh keys, which three")
    print("master keys of a keyring wrap, and came back byte for byte. PyArrow read them, too.")
    print("A rotation shut out an old copy. One flipped byte, in")
    print(f"{page}, was refused.")
    print(f"{FOLDER.name}/{DRAWING} draws where it is: open it in a browser.")


def make_keyring() -> None:
    say("Master keys, in a keyring that is sealed under a passphrase")
    write_private(PASSPHRASE, secrets.token_urlsafe(24).encode() + b"\n")
    for master_key in ("lake", "prices", "comments"):
        run("modcrypt", "keys", "create", *KMS, master_key)
    run("modcrypt", "keys", "list", *KMS, show=True)


def encrypt_by_policy(original: pa.Table) -> None:
    say("A policy says which master key protects what")
    (FOLDER / POLICY).write_text(POLICY_TEXT)
    print(POLICY_TEXT)
    answer = run("modcrypt", "encrypt", "--json", *BY_POLICY, PLAIN, SEALED)
    result = json.loads(answer.stdout)
    growth = result["destination_bytes"] - result["source_bytes"]
    print(f"{size(SEALED)} in {result['seconds']:.2f} s, {growth:,} bytes more than the original")

    say("Which master key opens what, told without any key, and with the footer's")
    run("modcrypt", "keys", "scan", SEALED, show=True)
    run("modcrypt", "keys", "scan", *KMS, SEALED, show=True)

    say("PyArrow reads it by its own CryptoFactory, with the keyring as its key service")
    passphrase = (FOLDER / PASSPHRASE).read_text().strip()
    client = mc.kms.open_kms(f"file:{FOLDER / 'lake.keyring'}", passphrase=passphrase)
    factory = pe.CryptoFactory(mc.kms.as_pyarrow_client(client))
    properties = factory.file_decryption_properties(pe.KmsConnectionConfig())
    theirs = pq.read_table(FOLDER / SEALED, decryption_properties=properties)
    check(theirs.equals(original), "PyArrow's rows of the encrypted file equal the original's")


def show_modules() -> None:
    say("What everybody sees of it, without a key")
    run("modcrypt", "inspect", SEALED, show=True)
    say("And with keys: every module is sealed by itself, for its own place in the file")
    counts, sizes = Counter[str](), Counter[str]()
    for module in list_modules():
        counts[module["kind"]] += 1
        sizes[module["kind"]] += module["end"] - module["start"]
    for kind, number in counts.items():
        print(f"  {kind:22}  {number:6,}  {sizes[kind]:12,} bytes")
    check(sum(sizes.values()) == (FOLDER / SEALED).stat().st_size, "the sizes add up to the file's")


def decrypt_and_compare(original: pa.Table) -> None:
    say("Decrypt it: the same rows, and the same bytes")
    run("modcrypt", "decrypt", *KMS, SEALED, "back.parquet")
    check(pq.read_table(FOLDER / "back.parquet").equals(original), "the rows equal the original's")
    same = (FOLDER / "back.parquet").read_bytes() == (FOLDER / PLAIN).read_bytes()
    check(same, "the file equals the original byte for byte")


def share(original: pa.Table) -> None:
    say("A copy for a partner: two columns under a key of their own, and nothing else")
    write_private("partner.key", secrets.token_hex(16).encode() + b"\n")
    wanted = ["l_orderkey", "l_shipdate"]
    columns = [part for name in wanted for part in ("--column", name)]
    (FOLDER / "partner.toml").write_text('footer_key = "file:partner.key"\n')
    run("modcrypt", "share", *KMS, *columns, "--to", "partner.toml", SEALED, PARTNER)
    run("modcrypt", "head", "-n", "3", "--key", "file:partner.key", PARTNER, show=True)
    partner_key = bytes.fromhex((FOLDER / "partner.key").read_text())
    opening = pe.create_decryption_properties(partner_key)
    theirs = pq.read_table(FOLDER / PARTNER, decryption_properties=opening)
    check(theirs.equals(original.select(wanted)), "PyArrow reads the two columns by that key")


def rotate() -> None:
    say("Rotate: a new version of a master key, the file's keys under it, the old version disabled")
    shutil.copy(FOLDER / SEALED, FOLDER / OLD)
    run("modcrypt", "keys", "rotate", *KMS, "--key", "prices", SEALED, show=True)
    run("modcrypt", "keys", "disable", *KMS, "prices", "--version", "1")
    run("modcrypt", "decrypt", "--force", *KMS, SEALED, "back.parquet")
    print("An old copy of the file has keys under the old version:")
    run("modcrypt", "decrypt", *KMS, OLD, "old.back.parquet", code=3)


def do_without_comments(original: pa.Table) -> None:
    say("With a disabled master key: refused, or its columns left out on request")
    run("modcrypt", "keys", "disable", *KMS, "comments")
    run("modcrypt", "decrypt", *KMS, SEALED, "public.parquet", code=3)
    run("modcrypt", "decrypt", *KMS, "--on-missing-key", "drop", SEALED, "public.parquet")
    public = pq.read_table(FOLDER / "public.parquet")
    check(public.equals(original.drop_columns([COMMENT])), f"all is there but {COMMENT}")


def flip_one_byte() -> str:
    pages = [
        module
        for module in list_modules()
        if module["kind"] == "data page" and module["path"] == PRICE
    ]
    module = pages[len(pages) // 2]
    offset = (module["start"] + module["end"]) // 2
    page = f"page {module['page']} of {PRICE}, row group {module['row_group']}"
    say(f"Flip one byte, at offset {offset:,}, in {page}")
    data = bytearray((FOLDER / SEALED).read_bytes())
    data[offset] ^= 0xFF
    (FOLDER / "tampered.parquet").write_bytes(data)
    run(
        *("modcrypt", "decrypt", *KMS, "--on-missing-key", "drop"),
        *("tampered.parquet", "tampered.out.parquet"),
        code=1,
    )
    check(not (FOLDER / "tampered.out.parquet").exists(), "no output was left behind")
    run("modcrypt", "verify", *KMS, "--html", DRAWING, "tampered.parquet", code=1, show=True)
    return page


# --- running and telling -------------------------------------------------------------------------


def say(title: str) -> None:
    print(f"\n=== {title}", flush=True)


def run(
    *command: str, code: int = 0, quiet: bool = False, show: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program of the virtual environment in the demo's folder, and print the command."""
    if not quiet:
        print(f"$ {shlex.join(command)}", flush=True)
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    if not quiet or done.returncode != code:
        print(done.stderr, end="")
    if show:
        print(done.stdout, end="")
    if done.returncode != code:
        sys.exit(f"demo: exit code {done.returncode} instead of {code}: {shlex.join(command)}")
    if code:
        print(f"(exit code {code})")
    return done


def check(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"demo: FAILED: {what}")
    print(f"ok: {what}")


def write_private(name: str, data: bytes) -> None:
    fd = os.open(FOLDER / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def list_modules() -> list[dict[str, Any]]:
    command = ("modcrypt", "inspect", "--modules", "--json", *KMS, SEALED)
    regions: list[dict[str, Any]] = json.loads(run(*command, quiet=True).stdout)["regions"]
    return regions


def size(name: str) -> str:
    return f"{(FOLDER / name).stat().st_size / 2**20:.1f} MiB"


if __name__ == "__main__":
    main()
