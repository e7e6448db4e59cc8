"""Compare the speed of modcrypt with PyArrow and with the bare work, side by side in one run.

    python tools/bench.py                        everything, on TPC-H lineitem, scale 1
    python tools/bench.py --scale 0.1 --quick    a fast look
    python tools/bench.py --json result.json     table on stdout, JSON in a file

Without --json the table goes to stderr and the JSON to stdout. Repetitions are interleaved
(A, B, A, B, ...) after a warm-up of each; a figure is the median [min-max]. Outputs are deleted
before a timed run, not during it: freeing 200 MB of tmpfs pages takes as long as encrypting them.
Inputs stay in a cache folder, on tmpfs where there is one. The ratio is the peer's time over
modcrypt's where the target is >=, modcrypt's over the peer's where it is <=.
"""

from __future__ import annotations

import argparse
import base64
import cProfile
import importlib.metadata
import io
import json
import os
import platform
import pstats
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
from cryptography.hazmat.backends.openssl import backend
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script

import modcrypt as mc
from modcrypt.aad import ModuleId, ModuleType, module_aad
from modcrypt.aead import GCM_OVERHEAD, GcmCipher
from modcrypt.io.buffers import Output
from modcrypt.io.sources import MemorySource
from modcrypt.io.threads import usable_cores
from modcrypt.parquet.convert import encryptor
from modcrypt.parquet.crypto.file_plan import OpenFile, Plan
from modcrypt.parquet.format.page_header import PageHeader, scan, splice
from tools import bench_ags1, bench_iceberg, bench_kms, bench_rekey
from tools.figures import (
    MIB,
    Bench,
    Figure,
    Job,
    Row,
    below,
    faster,
    figure,
    line,
    within,
)

KEY = bytes(range(1, 17))
NONCE, AAD = bytes(12), bytes(15)  # constant, for what is sealed here is thrown away


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


def plain_pages(path: Path) -> list[tuple[int, PageHeader]]:
    """Return start and header of every page, in the chunks that PyArrow locates."""
    data, metadata, pages = path.read_bytes(), pq.read_metadata(path), []
    for r in range(metadata.num_row_groups):
        for c in range(metadata.num_columns):
            chunk = metadata.row_group(r).column(c)
            at = chunk.dictionary_page_offset or chunk.data_page_offset
            end = at + chunk.total_compressed_size
            while at < end:
                pages.append((at, scan(data, at, end)))
                at = pages[-1][1].end + pages[-1][1].compressed_size
    return pages


def page_parts(path: Path, *, headers: bool) -> list[memoryview]:
    """Return the bodies of a plaintext file's pages, and their headers on request."""
    view, parts = memoryview(path.read_bytes()), []
    for start, header in plain_pages(path):
        parts += [view[start : header.end]] if headers else []
        parts.append(view[header.end : header.end + header.compressed_size])
    return parts


def bare_aes(way: str, files: dict[str, Path], *, headers: bool) -> Job:
    """Return a job that only encrypts or decrypts all pages, into a reused buffer."""
    call, calls = AESGCM(KEY).encrypt_into, []
    room = memoryview(bytearray(64 * MIB))
    if way == "encrypt":
        parts = page_parts(files["encrypt"], headers=headers)
        calls = [(NONCE, part, AAD, room[: len(part) + 16]) for part in parts]
    else:
        call, data = AESGCM(KEY).decrypt_into, files["decrypt"].read_bytes()
        view, properties = memoryview(data), mc.FileDecryptionProperties(footer_key=KEY)
        file_aad = OpenFile(MemorySource(data), properties).footer.cipher.file_aad
        for region in mc.inspect_parquet(data, properties, pages=True).regions:
            start, end, kind = region.start, region.end, region.kind
            if kind.endswith(" page") or (headers and kind.endswith(" page header")):
                place = region.row_group, region.column, region.page
                kind_number = ModuleType[kind.upper().replace(" ", "_")]
                aad = module_aad(file_aad, ModuleId(kind_number, *place))
                out = room[: end - start - GCM_OVERHEAD]
                calls.append((data[start + 4 : start + 16], view[start + 16 : end], aad, out))

    def run() -> None:
        for nonce, part, aad, out in calls:
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


def rewriting(bench: Bench) -> Iterator[Row]:
    files = lineitem(bench)
    yield from bench_rekey.rewriting(bench, files["encrypt"], files["decrypt"], KEY)
    yield from bench_rekey.small_pages(bench)


def small_pages(bench: Bench) -> Iterator[Row]:
    """Measure CPU time from memory to nowhere; the loop accounts for the time besides the parts."""
    files = lineitem(bench, "-8k", data_page_size=8192, write_batch_size=64)
    pages, parts = plain_pages(files["encrypt"]), page_parts(files["encrypt"], headers=True)
    data = files["encrypt"].read_bytes()
    jobs: dict[str, Job] = {
        "scan": lambda: [scan(data, start, len(data)) for start, _ in pages],
        "splice": lambda: [splice(data, s, h, h[3] + GCM_OVERHEAD) for s, h in pages],
        "seal": partial(seal_all, parts, memoryview(bytearray(64 * MIB))),
    }
    with open(os.devnull, "wb", buffering=0) as nowhere:
        for way, source in files.items():
            jobs[way] = job(way, source.read_bytes(), nowhere, threads=1)
            jobs[f"AES {way}"] = bare_aes(way, files, headers=True)
        taken = bench.seconds(jobs, time.process_time)
    us = {name: [s * 1e6 / len(pages) for s in all_] for name, all_ in taken.items()}

    def beyond(name: str, aes: str) -> Figure:
        return figure([a - b for a, b in zip(us[name], us[f"AES {aes}"], strict=True)], "us")

    yield page_sizes(files["encrypt"])
    for way in files:
        peer = figure(us[f"AES {way}"], "us")
        yield below(f"{way}, beyond AES; peer AES", beyond(way, way), peer, 10)
    yield Row("  of encrypt: scan the header", figure(us["scan"], "us"))
    yield Row("  of encrypt: splice the header", figure(us["splice"], "us"))
    yield Row("  of encrypt: seal header and body, beyond AES", beyond("seal", "encrypt"))


def seal_all(parts: Sequence[memoryview], room: memoryview) -> None:
    """Seal pages as the encryptor does: fresh nonce, count, framing."""
    seal = GcmCipher(mc.Key(KEY)).seal_into
    for part in parts:
        seal(room, 0, part, len(part), AAD)


def page_sizes(path: Path) -> Row:
    sizes = [header.compressed_size for _, header in plain_pages(path)]
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


# --- Arrow tables ----------------------------------------------------------------------------


def arrow_write(bench: Bench) -> Iterator[Row]:
    table = pq.read_table(lineitem(bench)["encrypt"])
    keys = {name: bytes((n + 1,)) * 16 for n, name in enumerate(table.column_names)}
    sealing = mc.FileEncryptionProperties(footer_key=KEY, column_keys=keys)
    explicit = pe.create_encryption_properties(footer_key=KEY)
    out, theirs = bench.scratch / "a", bench.scratch / "b"
    ours = partial(mc.write_table, table, out, sealing)
    t = bench.time({
        "all": ours, "one": partial(ours, threads=1),
        "PyArrow": partial(pq.write_table, table, theirs, encryption_properties=explicit),
        "plain": partial(pq.write_table, table, theirs),
    })  # fmt: skip
    name = f"write_table, {len(keys)} column keys"
    yield within(f"{name}; peer PyArrow, one key", t["all"], t["PyArrow"], 0.65)
    yield within(f"{name}, threads=1; peer PyArrow, one key", t["one"], t["PyArrow"], 1.1)
    yield Row("  PyArrow, not encrypted", None, t["plain"])
    ours()
    opening = mc.FileDecryptionProperties(footer_key=KEY, column_keys=keys)
    mc.decrypt_parquet(out, theirs, opening)
    if not pq.read_table(theirs).equals(table):
        raise SystemExit("reading did not give the table back: these figures mean nothing")


def arrow_read(bench: Bench) -> Iterator[Row]:
    files = lineitem(bench)
    plain, sealed = files["encrypt"], files["decrypt"]
    opening = mc.FileDecryptionProperties(footer_key=KEY)
    explicit = pe.create_decryption_properties(KEY)

    def viewed(read: Callable[[Any], object]) -> None:
        with mc.open_parquet(sealed, opening) as view:
            read(view)

    ours = partial(mc.read_table, sealed, opening)
    theirs = partial(pq.read_table, sealed, decryption_properties=explicit)
    arrow, polars = partial(viewed, pq.read_table), partial(viewed, pl.read_parquet)
    # In pairs: who comes after another pays for the memory that it gives back.
    t = bench.time({"modcrypt": ours, "PyArrow": theirs})
    yield within("read_table; peer PyArrow, encrypted", t["modcrypt"], t["PyArrow"], 1.05)
    t = bench.time({"view": arrow, "PyArrow": theirs})
    yield within(
        "PyArrow through open_parquet; peer PyArrow, encrypted", t["view"], t["PyArrow"], 1.15
    )
    t = bench.time({"view": polars, "Polars": partial(pl.read_parquet, plain)})
    yield within("Polars through open_parquet; peer Polars, plain", t["view"], t["Polars"], 1.3)
    if not mc.read_table(sealed, opening).equals(pq.read_table(plain)):
        raise SystemExit("read_table did not give the table: these figures mean nothing")


class Watched(io.FileIO):
    """A file that counts the bytes read from it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes and count them."""
        data = super().read(size)
        self.taken += len(data)
        return data


def arrow_bytes(bench: Bench) -> Iterator[Row]:
    sealed = lineitem(bench)["decrypt"]
    opening = mc.FileDecryptionProperties(footer_key=KEY)
    metadata = mc.ParquetFile(sealed, opening).metadata
    footer = int.from_bytes(sealed.read_bytes()[-8:-4], "little") + 8
    ways: dict[str, Callable[[Watched, str], object]] = {
        "read_table": lambda file, name: mc.read_table(file, opening, columns=[name]),
        "PyArrow through open_parquet": lambda file, name: pq.read_table(
            mc.open_parquet(file, opening), columns=[name]
        ),
    }
    for way, read in ways.items():
        worst = (0.0, 0, 0, "")
        for c in range(metadata.num_columns):
            groups = range(metadata.num_row_groups)
            chunks = sum(metadata.row_group(r).column(c).total_compressed_size for r in groups)
            name = metadata.row_group(0).column(c).path_in_schema
            with Watched(sealed) as file:
                read(file, name)
                worst = max(
                    worst, (file.taken / (chunks + footer), file.taken, chunks + footer, name)
                )
        _, taken, needed, name = worst
        what = f"one of {metadata.num_columns} columns, {way}: the worst, {name}"
        yield within(what, figure([taken / MIB], "MiB"), figure([needed / MIB], "MiB"), 1.05)


# Random integers: what neither a dictionary nor a codec makes smaller takes most memory.
STREAM = """
import os, sys, numpy as np, pyarrow as pa, modcrypt as mc
random = np.random.default_rng(1)
def batch():
    return pa.record_batch({f"c{n}": random.integers(0, 1 << 62, 1 << 16) for n in range(24)})
def peak():
    print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024)
peak()
fed, reported = 0, 0
keys = mc.FileEncryptionProperties(footer_key=bytes.fromhex(sys.argv[1]))
with open(os.devnull, "wb") as nowhere, mc.ParquetWriter(nowhere, batch().schema, keys) as writer:
    while reported < 4:
        new = batch()
        writer.write_batch(new)
        fed += new.nbytes
        if fed // 10**9 > reported:
            reported += 1
            peak()
peak()
"""


def arrow_memory(bench: Bench) -> Iterator[Row]:
    command = [sys.executable, "-c", STREAM, KEY.hex()]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    idle, *grown, end = (figure([float(peak)], "MiB") for peak in done.stdout.split())
    yield below("ParquetWriter fed 4 GB in batches; peer importing modcrypt", end, idle, 1024)
    for gigabytes, peak in enumerate(grown, 1):
        yield Row(f"  after {gigabytes} GB", peak)


# --- footers ---------------------------------------------------------------------------------


class Kms(pe.KmsClient):  # type: ignore[misc]  # pyarrow ships no types
    """A KMS client that only decodes base64, so that it costs PyArrow no time."""

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        """Return the DEK."""
        return base64.b64decode(wrapped_key)


def key_material(key: bytes, *, is_footer: bool) -> bytes:
    """Return PKMT1 key material for single wrapping, stored in the file."""
    instance = {"kmsInstanceID": "DEFAULT", "kmsInstanceURL": "DEFAULT"} if is_footer else {}
    wrapped = {"masterKeyID": "bench", "wrappedDEK": base64.b64encode(key).decode()}
    material = {"keyMaterialType": "PKMT1", "internalStorage": True, "isFooterKey": is_footer}
    return json.dumps(material | instance | wrapped | {"doubleWrapping": False}).encode()


class Nowhere:
    """A sink that discards its bytes."""

    def append(self, data: memoryview | bytes) -> None:
        """Discard `data`."""


def footers(bench: Bench) -> Iterator[Row]:
    count = bench.columns
    table = pa.table({f"column_{n}": pa.array(range(10), pa.int32()) for n in range(count)})
    plain = bench.cached_file(f"wide-{count}", partial(pq.write_table, table, row_group_size=1))
    keys = {name: os.urandom(16) for name in table.column_names}
    path = bench.work / "wide"
    sealing = mc.FileEncryptionProperties(
        footer_key=KEY, footer_key_metadata=key_material(KEY, is_footer=True), column_keys=keys,
        column_key_metadata={n: key_material(key, is_footer=False) for n, key in keys.items()},
    )  # fmt: skip
    mc.encrypt_parquet(plain, path, sealing)
    opening = mc.FileDecryptionProperties(
        key_retriever=lambda material: base64.b64decode(json.loads(material)["wrappedDEK"])
    )
    old, new = MemorySource(plain.read_bytes()), MemorySource(path.read_bytes())

    def read() -> Plan:
        return OpenFile(new, opening).select()

    read_plain = partial(encryptor.plan_encryption, old, sealing)
    nowhere = Output(Nowhere(), background=False)
    encryption, plan = encryptor.Encryption(nowhere, sealing), read_plain()
    addition = encryptor.Addition(encryption, encryptor.PlainFeed(old), plan)
    addition.write(hold_indexes=False)  # learns the new offsets that the footer is made from

    def write() -> None:
        encryption.row_groups = encryption.finish_row_groups(addition)
        encryption.close(plan.metadata)

    t = bench.time({
        "open": read, "PyArrow": partial(pyarrow_open, path, touch=True),
        "lazy": partial(pyarrow_open, path, touch=False), "plan": read_plain, "write": write,
    })  # fmt: skip
    ratio = t["PyArrow"].median / t["open"].median
    name = f"open {count:,} columns x 10 row groups, a key each; peer PyArrow"
    yield Row(name, t["open"], t["PyArrow"], ratio, "report")
    yield Row("  PyArrow's open before it decrypts column metadata", None, t["lazy"])
    yield from shares("open", read)
    yield Row("encrypt: read and check the plaintext footer", t["plan"])
    yield from shares("read", read_plain)
    yield Row("encrypt: seal column metadata, write the footer", t["write"])
    yield from shares("write", write)


def pyarrow_open(path: Path, *, touch: bool) -> None:
    """Open with PyArrow's key tools; `touch` decrypts all column metadata, as modcrypt does."""
    key_tools = pe.CryptoFactory(lambda _: Kms())
    keys = key_tools.file_decryption_properties(pe.KmsConnectionConfig())
    metadata = pq.ParquetFile(path, decryption_properties=keys).metadata
    for r in range(metadata.num_row_groups if touch else 0):
        row_group = metadata.row_group(r)
        for c in range(metadata.num_columns):
            row_group.column(c)


def shares(what: str, timed: Job) -> Iterator[Row]:
    """Profile the parts with cProfile, which exaggerates small functions."""
    profile = cProfile.Profile()
    profile.runcall(timed)
    spent: dict[str, float] = {}
    for function, (*_, own, _, callers) in vars(pstats.Stats(profile))["stats"].items():
        # What built-ins take counts for the functions that call them.
        built_in = {caller: entry[2] for caller, entry in callers.items()}
        for blamed, seconds in (built_in if function[0] == "~" else {function: own}).items():
            kind = kind_of_work(Path(blamed[0]).stem, blamed[2])
            spent[kind] = spent.get(kind, 0) + seconds
    for kind, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        if (share := 100 * seconds / sum(spent.values())) >= 2:
            yield Row(f"  of {what}: {kind}", Figure(share, share, share, "%"))


def kind_of_work(room: str, function: str) -> str:
    if room in ("aead", "aad", "keys", "ciphers"):
        return "AES, AADs and keys"
    if room == "idl" and function not in ("new", "copy"):
        writes = function.startswith(("encode", "varint", "zigzag", "_write"))
        return "encode Thrift" if writes else "decode Thrift"
    return f"in {room}.py"


# --- the run ---------------------------------------------------------------------------------

SECTIONS: dict[str, tuple[str, Callable[[Bench], Iterator[Row]]]] = {
    "pyarrow": ("Whole files against PyArrow", against_pyarrow),
    "bare": ("Whole files against the bare work", against_bare_work),
    "pages": ("8 KiB pages, CPU time per page, from memory to nowhere", small_pages),
    "threads": ("1 MiB pages, a second thread", second_thread),
    "memory": ("Peak memory", peak_memory),
    "arrow_write": ("Arrow tables against PyArrow's encrypted write", arrow_write),
    "arrow_read": ("Arrow tables against PyArrow's encrypted read", arrow_read),
    "arrow_bytes": ("One column: bytes read against its chunks and the footer", arrow_bytes),
    "arrow_memory": ("Peak memory of a stream of Arrow batches", arrow_memory),
    "footers": ("Footers", footers),
    "rekey": ("Re-key and verify", rewriting),
    "inspect": ("Inspect wide files", bench_rekey.inspecting),
    "ags1": ("AGS1 streams in memory, 1 MiB blocks", bench_ags1.streams),
    "ags1_java": ("AGS1 against Iceberg's Java", bench_ags1.java),
    "ags1_reads": ("AGS1, random reads", bench_ags1.reads),
    "ags1_memory": ("AGS1, peak memory", bench_ags1.memory),
    "kms_wrapping": ("Keys from a keyring against keys that are given", bench_kms.wrapping),
    "kms_calls": ("Calls of a key service", bench_kms.economy),
    "kms_rotation": ("Rotation on this disk against replacing files", bench_kms.rotation),
    "iceberg_scan": (
        "Encrypted Iceberg tables against pyiceberg's plaintext scan",
        bench_iceberg.scanning,
    ),
    "iceberg_rotation": ("Keys of an Iceberg table with a long history", bench_iceberg.rotation),
}


def machine() -> dict[str, str]:
    """Describe the machine and the versions on which the figures depend."""
    info = Path("/proc/cpuinfo")
    rows = info.read_text().splitlines() if info.exists() else []
    models = [row.partition(": ")[2] for row in rows if row.startswith("model name")]
    packages = ("modcrypt", "cryptography", "pyarrow")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    return {
        "cpu": f"{[*models, platform.machine()][0]}, {usable_cores()} cores",
        "load": f"{os.getloadavg()[0]:.1f} at the start",
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
        "openssl": backend.openssl_version_text(),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1, help="TPC-H scale factor")
    parser.add_argument("--repeat", type=int, default=5, help="timed runs of each job")
    parser.add_argument("--quick", action="store_true", help="3 runs, no 2 GB file, 200 columns")
    parser.add_argument("--skip-large", action="store_true", help="leave the 2 GB file out")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the JSON goes")
    shared = Path("/dev/shm")
    folder = shared if shared.is_dir() else Path(tempfile.gettempdir())
    parser.add_argument("--cache", type=Path, default=folder / f"modcrypt-bench-{os.getuid()}")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    say = partial(print, file=sys.stdout if args.json else sys.stderr, flush=True)
    facts = machine() | {"input": f"TPC-H lineitem, scale {args.scale:g}, in {args.cache}"}
    say(*(f"{name}: {value}" for name, value in facts.items()), sep="\n")
    say("\n" + line("figure", "modcrypt", "peer", "ratio", "target", "met"))
    repeat, columns = (3, 200) if args.quick else (args.repeat, 2000)
    skipped = {"memory", "arrow_memory", "ags1_memory"} if args.quick or args.skip_large else set()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.cache) as work:
        bench = Bench(repeat, args.scale, columns, args.cache, Path(work))
        bench.scratch.mkdir()
        for name in (name for name in args.only if name not in skipped):
            title, section = SECTIONS[name]
            say(f"\n{title}")
            for row in section(bench):
                say(row)
                rows.append({"section": name} | asdict(row))
    result = json.dumps({"machine": facts, "repeat": repeat, "rows": rows}, indent=1)
    if args.json:
        args.json.write_text(result + "\n")
    else:
        print(result)


if __name__ == "__main__":
    main()
