"""Compare whole files with PyArrow and with the bare work, for `tools/bench.py`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import modcrypt as mc
from modcrypt.aad import module_aad
from modcrypt.aead import GCM_OVERHEAD
from modcrypt.io.sources import MemorySource
from modcrypt.module_ids import ModuleId, ModuleType
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.format.page_header import PageHeader
from modcrypt.parquet.format.page_header_scan import scan
from tools.figures import MIB, Bench, Figure, Job, Row, below, faster, figure, within

KEY = b"only-for-a-bench"  # text, for DuckDB takes no other keys of 16 bytes
NONCE, AAD = bytes(12), bytes(15)  # constant, because the output is discarded


def lineitem(bench: Bench, kind: str = "", **options: Any) -> dict[str, Path]:
    """Return lineitem as PyArrow writes it with these options, and as `encrypt_parquet` does."""
    write = partial(write_lineitem, bench.scale, options)
    plain = bench.cached_file(f"lineitem-{bench.scale:g}{kind}", write)
    sealed = bench.work / f"{plain.stem}.encrypted"
    job("encrypt", plain, sealed)()
    return {"encrypt": plain, "decrypt": sealed}


def write_lineitem(scale: float, options: dict[str, Any], path: Path) -> None:
    tpchgen = str(Path(sys.executable).with_name("tpchgen-cli"))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [tpchgen, "parquet", "-s", f"{scale:g}", "--tables=lineitem", "-o", folder]
        subprocess.run(command, check=True, capture_output=True)
        table = pq.read_table(Path(folder) / "lineitem.parquet")
    # tpchgen says string_view; what PyArrow's users have, and what it is fast at, are strings.
    fields = [f.with_type(pa.string()) if f.type == pa.string_view() else f for f in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), path, compression="snappy", **options)


def job(
    way: str, source: Any, to: Any, *, threads: int | None = None, keys: Any = MappingProxyType({})
) -> Job:
    """Return a call of encrypt_parquet or decrypt_parquet with `KEY` and column keys."""
    if way == "encrypt":
        sealing = mc.FileEncryptionProperties(footer_key=KEY, column_keys=keys)
        return partial(mc.encrypt_parquet, source, to, sealing, threads=threads)
    opening = mc.FileDecryptionProperties(footer_key=KEY, column_keys=keys)
    return partial(mc.decrypt_parquet, source, to, opening, threads=threads)


# --- the bare work ---------------------------------------------------------------------------


def copy_file(source: Path, destination: Path | str) -> None:
    """Copy a file through one reused buffer, which stays in the processor's cache."""
    buffer = memoryview(bytearray(MIB))
    with open(source, "rb", buffering=0) as old, open(destination, "wb", buffering=0) as new:
        while size := old.readinto(buffer):
            new.write(buffer[:size])


def plain_pages(path: Path) -> list[tuple[int, int, PageHeader]]:
    """Return column, start and header of every page, in the chunks that PyArrow locates."""
    data, metadata, pages = path.read_bytes(), pq.read_metadata(path), []
    for r in range(metadata.num_row_groups):
        for c in range(metadata.num_columns):
            chunk = metadata.row_group(r).column(c)
            at = chunk.dictionary_page_offset or chunk.data_page_offset
            end = at + chunk.total_compressed_size
            while at < end:
                header = scan(data, at, end)
                pages.append((c, at, header))
                at += len(header.raw) + header.compressed_size
    return pages


def page_parts(path: Path, *, headers: bool) -> list[tuple[int, memoryview]]:
    """Return column and body of a plaintext file's pages, and their headers on request."""
    view, parts = memoryview(path.read_bytes()), []
    for column, start, header in plain_pages(path):
        body = start + len(header.raw)
        parts += [(column, view[start:body])] if headers else []
        parts.append((column, view[body : body + header.compressed_size]))
    return parts


def bare_aes(
    way: str, files: dict[str, Path], *, headers: bool, keys: Mapping[str, bytes] | None = None
) -> Job:
    """Return a job that only encrypts or decrypts all pages, into a reused buffer.

    `keys` are those of the columns; without them, all pages are under `KEY`.
    """
    names = pq.read_schema(files["encrypt"]).names
    aes = [AESGCM((keys or {}).get(name, KEY)) for name in names]
    buffer, calls = memoryview(bytearray(64 * MIB)), []
    if way == "encrypt":
        for column, part in page_parts(files["encrypt"], headers=headers):
            calls.append((aes[column].encrypt_into, NONCE, part, AAD, buffer[: len(part) + 16]))
    else:
        data = files["decrypt"].read_bytes()
        view = memoryview(data)
        properties = mc.FileDecryptionProperties(footer_key=KEY, column_keys=keys or {})
        file_aad = OpenFile(MemorySource(data), properties).footer.cipher.file_aad
        for region in mc.inspect_parquet(data, properties, pages=True).regions:
            start, end, kind = region.start, region.end, region.kind
            if kind.endswith(" page") or (headers and kind.endswith(" page header")):
                place = region.row_group, region.column, region.page
                kind_number = ModuleType[kind.upper().replace(" ", "_")]
                aad = module_aad(file_aad, ModuleId(kind_number, *place))
                out = buffer[: end - start - GCM_OVERHEAD]
                nonce, module = data[start + 4 : start + 16], view[start + 16 : end]
                calls.append((aes[region.column or 0].decrypt_into, nonce, module, aad, out))

    def run() -> None:
        for call, nonce, part, aad, out in calls:
            call(nonce, part, aad, out)

    return run


def in_turn(first: Job, second: Job) -> None:
    first()
    second()


def at_once(first: Job, second: Job) -> None:
    thread = threading.Thread(target=first)
    thread.start()
    second()
    thread.join()


# --- sections --------------------------------------------------------------------------------


def against_pyarrow(bench: Bench) -> Iterator[Row]:
    files, out, theirs = lineitem(bench), bench.scratch / "a", bench.scratch / "b"
    names = pq.read_schema(files["encrypt"]).names
    keys = {name: bytes((n + 1,)) * 16 for n, name in enumerate(names)}
    keyed = files | {"decrypt": bench.work / "column-keys"}
    job("encrypt", keyed["encrypt"], keyed["decrypt"], keys=keys)()
    for way, source in files.items():
        t = bench.time({
            "one key": job(way, source, out),
            "column keys": job(way, keyed[way], out, keys=keys),
            "PyArrow": partial(pyarrow_rewrite, way, source, theirs),
        })  # fmt: skip
        yield faster(f"{way}, one key; peer PyArrow", t["one key"], t["PyArrow"], 20)
        name = f"{way}, {len(keys)} column keys; peer PyArrow, one key"
        yield faster(name, t["column keys"], t["PyArrow"], 20)
    job("decrypt", keyed["decrypt"], out, keys=keys)()
    if out.read_bytes() != files["encrypt"].read_bytes():
        raise SystemExit("decrypting did not give the input back: these figures mean nothing")


def pyarrow_rewrite(way: str, source: Path, destination: Path) -> None:
    if way == "encrypt":
        keys = pe.create_encryption_properties(footer_key=KEY)
        pq.write_table(pq.read_table(source), destination, encryption_properties=keys)
    else:
        keys = pe.create_decryption_properties(footer_key=KEY)
        pq.write_table(pq.read_table(source, decryption_properties=keys), destination)


def against_bare_work(bench: Bench) -> Iterator[Row]:
    files, out, raw = lineitem(bench), bench.scratch / "a", bench.scratch / "b"
    for way, source in files.items():
        copy, aes = partial(copy_file, source, raw), bare_aes(way, files, headers=False)
        t = bench.time({
            "threads=1": job(way, source, out, threads=1), "bare 1": partial(in_turn, copy, aes),
            "threads=2": job(way, source, out, threads=2), "bare 2": partial(at_once, copy, aes),
            "copy": copy, "copyfile": partial(shutil.copyfile, source, raw), "AES": aes,
        })  # fmt: skip
        yield within(f"{way}, threads=1; peer copy, then AES", t["threads=1"], t["bare 1"], 2)
        yield within(f"{way}, threads=2; peer copy beside AES", t["threads=2"], t["bare 2"], 2)
        yield Row("  AES of the page bodies alone", None, t["AES"])
        yield Row("  copy through one buffer", None, t["copy"])
        yield Row("  shutil.copyfile", None, t["copyfile"])


def page_sizes(path: Path) -> Row:
    sizes = [header.compressed_size for *_, header in plain_pages(path)]
    return Row(f"({len(sizes):,} pages of {sum(sizes) // len(sizes):,} stored bytes)", None)


def second_thread(bench: Bench) -> Iterator[Row]:
    files = lineitem(bench, "-1m", data_page_size=MIB, max_rows_per_page=1 << 30)
    yield page_sizes(files["encrypt"])
    out = bench.scratch / "a"
    for way, source in files.items():
        data = source.read_bytes()
        with open(os.devnull, "wb", buffering=0) as nowhere:
            t = bench.time({
                "two": job(way, source, out, threads=2), "one": job(way, source, out, threads=1),
                "memory": job(way, data, nowhere, threads=1),
                "read": partial(copy_file, source, os.devnull),
                "write": partial(out.write_bytes, data),
            })  # fmt: skip
        yield faster(f"{way}, threads=2; peer threads=1", t["two"], t["one"], 1.5)
        yield Row("  from memory to nowhere, threads=1", t["memory"])
        yield Row("  bare read of the file", None, t["read"])
        yield Row("  bare write of the file, a bound for both", None, t["write"])


# VmHWM is this process's own; Linux hands the ru_maxrss of a parent down through exec.
PEAK = """
import resource, sys, modcrypt as mc
way, source, destination, key = sys.argv[1:]
mc.encrypt_parquet, mc.decrypt_parquet  # imported on first use
keys = {"footer_key": bytes.fromhex(key)}
if way == "encrypt":
    mc.encrypt_parquet(source, destination, mc.FileEncryptionProperties(**keys))
elif way == "decrypt":
    mc.decrypt_parquet(source, destination, mc.FileDecryptionProperties(**keys))
try:
    peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
except OSError:
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
print(peak / 1e6)
"""


def peak_memory(bench: Bench) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=bench.work) as folder:
        plain, sealed = Path(folder) / "plain", Path(folder) / "sealed"
        schema = pa.schema([(f"c{n}", pa.int64()) for n in range(8)])
        random = np.random.default_rng(1)
        with pq.ParquetWriter(plain, schema, compression="none", use_dictionary=False) as writer:
            for _ in range(30):
                columns = [random.integers(0, 1 << 62, MIB) for _ in schema]
                writer.write_table(pa.table(columns, schema=schema))
        size, idle = f"{plain.stat().st_size / 1e9:.1f} GB file", peak_of("idle", plain, sealed)
        for way, source, destination in (("encrypt", plain, sealed), ("decrypt", sealed, plain)):
            peak = peak_of(way, source, destination)
            yield below(f"peak memory, {way} a {size}; peer importing modcrypt", peak, idle, 256)


def peak_of(way: str, source: Path, destination: Path) -> Figure:
    command = [sys.executable, "-c", PEAK, way, str(source), str(destination), KEY.hex()]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return figure([float(done.stdout)], "MB")
