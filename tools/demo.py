"""The main job on real input, with the program that users run (`make demo`).

Everything is made in demo-output/ and may be looked at afterwards.
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

FOLDER = Path(__file__).resolve().parent.parent / "demo-output"
BIN = Path(sys.executable).parent
PLAIN, UNIFORM, MIXED = "lineitem.parquet", "uniform.parquet", "column-keys.parquet"
PRICE, COMMENT = "l_extendedprice", "l_comment"


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    print(f"Working in {FOLDER.name}/.")

    say("Real input: the TPC-H table lineitem")
    run("tpchgen-cli", "parquet", "-s", "0.1", "--tables=lineitem")
    original = pq.read_table(FOLDER / PLAIN)
    print(f"{original.num_rows:,} rows, {original.num_columns} columns, {size(PLAIN)}")

    say("Fresh keys, in files that only their owner can read")
    keys = {name: write_key(f"{name}.key") for name in ("footer", "price", "comment")}
    print(f"{', '.join(f'{name}.key' for name in keys)}: 128 bits each, mode 0600")

    encrypt_uniformly(original, keys["footer"])
    column_keys = encrypt_with_column_keys()
    show_modules(column_keys)
    decrypt_and_compare(original, column_keys)
    page = flip_one_byte(column_keys)

    say("Summary")
    print(f"{original.num_rows:,} rows were encrypted page by page under three keys and came back")
    print("byte for byte. PyArrow read the copy under one key. One flipped byte, in")
    print(f"{page}, was refused.")


def encrypt_uniformly(original: pa.Table, footer_key: bytes) -> None:
    say("Encrypt every column under the footer key; PyArrow reads the result")
    print("(explicit keys of PyArrow are for files under one key; column keys follow below)")
    run("modcrypt", "encrypt", "--key-file", "footer.key", PLAIN, UNIFORM)
    properties = pe.create_decryption_properties(footer_key=footer_key)
    theirs = pq.read_table(FOLDER / UNIFORM, decryption_properties=properties)
    check(theirs.equals(original), "PyArrow's rows of the encrypted file equal the original's")


def encrypt_with_column_keys() -> list[str]:
    say("Encrypt prices and comments under keys of their own, the rest under the footer key")
    column_keys = [
        *("--column-key", f"{PRICE}=file:price.key"),
        *("--column-key", f"{COMMENT}=file:comment.key"),
    ]
    answer = run(
        *("modcrypt", "encrypt", "--json", "--key-file", "footer.key"), *column_keys, PLAIN, MIXED
    )
    result = json.loads(answer.stdout)
    growth = result["destination_bytes"] - result["source_bytes"]
    print(f"{size(MIXED)} in {result['seconds']:.2f} s, {growth:,} bytes more than the original")
    return column_keys


def show_modules(column_keys: list[str]) -> None:
    say("Its module table: every one is sealed by itself, for its own place in the file")
    answer = run("modcrypt", "modules", "--key-file", "footer.key", *column_keys, MIXED)
    lines = answer.stdout.splitlines()
    print("\n".join([*lines[:8], f"... {len(lines) - 11:,} more ...", *lines[-3:]]))
    print("\nIn all:")
    counts, sizes = Counter[str](), Counter[str]()
    for module in list_modules(column_keys):
        counts[module["type"]] += 1
        sizes[module["type"]] += module["size"]
    for kind, number in counts.items():
        print(f"  {kind:22}  {number:6,} modules  {sizes[kind]:12,} bytes")


def decrypt_and_compare(original: pa.Table, column_keys: list[str]) -> None:
    say("Decrypt it: the same rows, and the same bytes")
    run("modcrypt", "decrypt", "--key-file", "footer.key", *column_keys, MIXED, "back.parquet")
    check(pq.read_table(FOLDER / "back.parquet").equals(original), "the rows equal the original's")
    same = (FOLDER / "back.parquet").read_bytes() == (FOLDER / PLAIN).read_bytes()
    check(same, "the file equals the original byte for byte")

    say("Without the comments' key: refused, or those columns left out on request")
    without = ["--key-file", "footer.key", *column_keys[:2]]
    run("modcrypt", "decrypt", *without, MIXED, "public.parquet", code=3)
    run("modcrypt", "decrypt", *without, "--on-missing-key", "drop", MIXED, "public.parquet")
    public = pq.read_table(FOLDER / "public.parquet")
    check(public.equals(original.drop_columns([COMMENT])), f"all is there but {COMMENT}")


def flip_one_byte(column_keys: list[str]) -> str:
    pages = [
        module
        for module in list_modules(column_keys)
        if module["type"] == "data page" and module["path"] == PRICE
    ]
    module = pages[len(pages) // 2]
    offset = module["offset"] + module["size"] // 2
    page = f"page {module['page']} of {PRICE}, row group {module['row_group']}"
    say(f"Flip one byte, at offset {offset:,}, in {page}")
    data = bytearray((FOLDER / MIXED).read_bytes())
    data[offset] ^= 0xFF
    (FOLDER / "tampered.parquet").write_bytes(data)
    run(
        *("modcrypt", "decrypt", "--key-file", "footer.key"),
        *column_keys,
        *("tampered.parquet", "tampered.out.parquet"),
        code=1,
    )
    check(not (FOLDER / "tampered.out.parquet").exists(), "no output was left behind")
    return page


# --- running and telling -------------------------------------------------------------------------


def say(title: str) -> None:
    print(f"\n=== {title}", flush=True)


def run(*command: str, code: int = 0, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a program of the virtual environment in the demo's folder, showing what is typed."""
    if not quiet:
        # Wide commands are easier to read with a column key a line.
        shown = shlex.join(command).replace(" --column-key ", " \\\n    --column-key ")
        print(f"$ {shown}", flush=True)
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    if not quiet or done.returncode != code:
        print(done.stderr, end="")
    if done.returncode != code:
        sys.exit(f"demo: exit code {done.returncode} instead of {code}: {shlex.join(command)}")
    if code:
        print(f"(exit code {code})")
    return done


def check(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"demo: FAILED: {what}")
    print(f"ok: {what}")


def write_key(name: str) -> bytes:
    key = secrets.token_bytes(16)
    fd = os.open(FOLDER / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(key)
    return key


def list_modules(column_keys: list[str]) -> list[dict[str, Any]]:
    command = ("modcrypt", "modules", "--json", "--key-file", "footer.key", *column_keys, MIXED)
    modules: list[dict[str, Any]] = json.loads(run(*command, quiet=True).stdout)["modules"]
    return modules


def size(name: str) -> str:
    return f"{(FOLDER / name).stat().st_size / 2**20:.1f} MiB"


if __name__ == "__main__":
    main()
