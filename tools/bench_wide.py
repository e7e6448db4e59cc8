"""Compare wide files with PyArrow, Polars and bare AES, for `tools/bench.py`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

import modcrypt as mc
from tools.bench_files import KEY, bare_aes
from tools.bench_rekey import NEW_KEY, verify
from tools.figures import Bench, Figure, Job, Row, within

WIDTHS = (200, 2_000, 10_000)


class Kms(pe.KmsClient):  # type: ignore[misc]  # pyarrow ships no types
    """A KMS client that only encodes base64, so that it costs PyArrow no time."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        """Return the key in base64."""
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        """Return the DEK."""
        return base64.b64decode(wrapped_key)


def key_material(key: bytes, *, is_footer: bool) -> bytes:
    """Return PKMT1 key material for single wrapping, stored in the file."""
    instance = {"kmsInstanceID": "DEFAULT", "kmsInstanceURL": "DEFAULT"} if is_footer else {}
    wrapped = {"masterKeyID": "bench", "wrappedDEK": base64.b64encode(key).decode()}
    material = {"keyMaterialType": "PKMT1", "internalStorage": True, "isFooterKey": is_footer}
    return json.dumps(material | instance | wrapped | {"doubleWrapping": False}).encode()


class Keys:
    """The keys of one wide file, for each of the libraries.

    PyArrow takes column keys only from its key tools, so that its files have keys of their own.
    """

    def __init__(self, columns: Sequence[str], *, keyed: bool) -> None:
        self.columns, self.keyed = columns, keyed
        numbered = enumerate(columns if keyed else (), 1)
        self.each = each = {name: n.to_bytes(16, "big") for n, name in numbered}
        self.encryption = mc.FileEncryptionProperties(
            footer_key=KEY, footer_key_metadata=key_material(KEY, is_footer=True),
            column_keys=each,
            column_key_metadata={n: key_material(k, is_footer=False) for n, k in each.items()},
        )  # fmt: skip
        self.decryption = mc.FileDecryptionProperties(footer_key=KEY, column_keys=each)
        more: dict[str, Any] = {"column_keys": each} if keyed else {}
        self.polars_encryption = pl.ParquetEncryptionProperties(footer_key=KEY, **more)
        self.polars_decryption = pl.ParquetDecryptionProperties(footer_key=KEY, **more)

    def pyarrow_encryption(self) -> Any:
        """Return properties with fresh keys, as many as `Keys` has."""
        config = pe.EncryptionConfiguration(
            footer_key="bench", double_wrapping=False, uniform_encryption=not self.keyed,
            **({"column_keys": {"bench": list(self.columns)}} if self.keyed else {}),
        )  # fmt: skip
        factory = pe.CryptoFactory(lambda _: Kms())
        return factory.file_encryption_properties(pe.KmsConnectionConfig(), config)

    def pyarrow_decryption(self) -> Any:
        """Return properties that take the keys from the file."""
        factory = pe.CryptoFactory(lambda _: Kms())
        return factory.file_decryption_properties(pe.KmsConnectionConfig())


def wide(bench: Bench) -> Iterator[Row]:
    """Measure each width, with 1 and 10 row groups, uniform and with a key per column."""
    for count in WIDTHS[:1] if bench.quick else WIDTHS:
        for row_groups in (1, 10):
            plain = bench.cached_file(
                f"wide-{count}x{row_groups}-plain", partial(write_wide, count, row_groups)
            )
            for keyed in (False, True):
                keys = Keys(pq.read_schema(plain).names, keyed=keyed)
                sealed = bench.work / "wide"
                mc.encrypt_parquet(plain, sealed, keys.encryption)
                kind = "a key each" if keyed else "uniform"
                title = f"{count:,} x {row_groups}, {kind}"
                yield from reading(bench, sealed, keys, title)
                yield from rewriting(bench, plain, sealed, keys, title)


def write_wide(count: int, row_groups: int, path: Path) -> None:
    column = pa.array(range(10), pa.int32())
    table = pa.table({f"column_{n}": column for n in range(count)})
    # A dictionary would be a second page.
    pq.write_table(table, path, row_group_size=10 // row_groups, use_dictionary=False)


def reading(bench: Bench, path: Path, keys: Keys, title: str) -> Iterator[Row]:
    """Open the file until schema and row count are known, and read one of its columns."""
    names = [keys.columns[len(keys.columns) // 2]]
    jobs: dict[str, Job] = {
        "open": partial(open_modcrypt, path, keys), "PyArrow": partial(open_pyarrow, path, keys),
        "Polars": partial(open_polars, path, keys),
        "column": partial(mc.read_table, path, keys.decryption, columns=names),
        "PyArrow column": lambda: pq.read_table(
            path, columns=names, decryption_properties=keys.pyarrow_decryption()
        ),
        "Polars column": partial(
            pl.read_parquet, path, columns=names, decryption=keys.polars_decryption
        ),
    }  # fmt: skip
    t = bench.time(jobs)
    yield within(f"{title}: open; peer PyArrow", t["open"], t["PyArrow"], 4 - 2 * keys.keyed)
    yield Row("  Polars", None, t["Polars"])
    yield within(f"{title}: one column; peer PyArrow", t["column"], t["PyArrow column"], 2)
    yield Row("  Polars", None, t["Polars column"])


def open_modcrypt(path: Path, keys: Keys) -> None:
    file = mc.ParquetFile(path, keys.decryption)
    _ = file.schema_arrow, file.num_rows


def open_pyarrow(path: Path, keys: Keys) -> None:
    file = pq.ParquetFile(path, decryption_properties=keys.pyarrow_decryption())
    _ = file.schema_arrow, file.metadata.num_rows


def open_polars(path: Path, keys: Keys) -> None:
    frame = pl.scan_parquet(path, decryption=keys.polars_decryption)
    frame.collect_schema()
    frame.select(pl.len()).collect()


def rewriting(bench: Bench, plain: Path, sealed: Path, keys: Keys, title: str) -> Iterator[Row]:
    out, theirs = bench.scratch / "a", bench.scratch / "b"
    fresh = mc.FileEncryptionProperties(footer_key=NEW_KEY)
    files = {"encrypt": plain, "decrypt": sealed}
    jobs: dict[str, Job] = {
        "encrypt": partial(mc.encrypt_parquet, plain, out, keys.encryption),
        "decrypt": partial(mc.decrypt_parquet, sealed, out, keys.decryption),
        "verify": partial(verify, sealed, keys.decryption),
        "re-key": partial(mc.rekey_parquet, sealed, out, keys.decryption, fresh),
        "PyArrow encrypt": lambda: pq.write_table(
            pq.read_table(plain), theirs, encryption_properties=keys.pyarrow_encryption()
        ),
        "PyArrow decrypt": lambda: pq.write_table(
            pq.read_table(sealed, decryption_properties=keys.pyarrow_decryption()), theirs
        ),
        "Polars encrypt": lambda: pl.read_parquet(plain).write_parquet(
            theirs, encryption=keys.polars_encryption
        ),
        "Polars decrypt": lambda: pl.read_parquet(
            sealed, decryption=keys.polars_decryption
        ).write_parquet(theirs),
    }  # fmt: skip
    jobs |= {f"AES {way}": bare_aes(way, files, headers=True, keys=keys.each) for way in files}
    jobs["rotate"] = rotation(bench, plain, keys)
    t = bench.time(jobs)
    for way in ("encrypt", "decrypt", "verify", "re-key", "rotate"):
        yield Row(f"{title}: {way}, per column chunk", per_chunk(t[way], plain))
        for peer in (f"PyArrow {way}", f"Polars {way}", f"AES {way}"):
            if peer in t:
                yield Row(f"  {peer}", None, per_chunk(t[peer], plain))


def rotation(bench: Bench, plain: Path, keys: Keys) -> Job:
    """Return a job that wraps the data keys of a file under fresh KEKs, in place."""
    folder = bench.work / f"{plain.name}-{keys.keyed}"
    folder.mkdir()
    mc.Keyring.create(folder / "keyring", passphrase="bench")
    client = mc.kms.open_kms(f"file:{folder / 'keyring'}", passphrase="bench")
    client.create_key("master")  # type: ignore[attr-defined]  # of a keyring
    policy = mc.Policy(
        footer_key="master", column_keys={"master": keys.columns} if keys.keyed else {}
    )
    tools = mc.KeyTools(client)
    mc.encrypt_parquet(plain, folder / "file.parquet", tools.encryption(policy))
    return partial(mc.jobs.rotate_keys, folder / "file.parquet", tools, what="kek")


def per_chunk(taken: Figure, plain: Path) -> Figure:
    metadata = pq.read_metadata(plain)
    return taken.times(1e6 / (metadata.num_columns * metadata.num_row_groups), "us")
