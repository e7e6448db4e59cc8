"""The files that the tamper matrix attacks, and how they are read.

Of each kind there are two, with different rows under the same keys. Every reader reads them right
before anything happens to them, or isn't tried.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias
from unittest.mock import patch

import pyarrow as pa

from modcrypt import FileDecryptionProperties, FileEncryptionProperties, Policy, SigningKey
from modcrypt.io.sources import MemorySource
from modcrypt.keys import Secret
from modcrypt.kms import VerifyingKey
from modcrypt.kms.signing.ledger import SEAL_NAME
from modcrypt.kms.signing.schemes import find_scheme
from modcrypt.kms.signing.seal_format import DATASET, SealedFile, encode_files
from modcrypt.kms.signing.sealed_statements import Draft, encode_statement
from modcrypt.parquet import ModuleType
from modcrypt.parquet.format.framing import close_tail, read_tail
from modcrypt.parquet.signatures.signers import hash_footer
from tests.support.forging import SMALL_FILTER, encrypt_bytes, plain_file
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.module_spans import ModuleSpan, list_modules
from tests.support.pkmt1 import seal_base64

Rows: TypeAlias = "list[dict[str, Any]]"
Files: TypeAlias = "dict[str, bytes]"

DATA = "data.parquet"
MATERIAL = f"_KEY_MATERIAL_FOR_{DATA}.json"
ADDRESS = "http://127.0.0.1:00000/keys"
"""Of the attacker's server; whoever writes the files to disk puts its port in."""

BOTH = ("AES_GCM_V1", "AES_GCM_CTR_V1")
MASTERS = {
    "kf": b"footer master 16", "kc1": b"column master 1!", "kc2": b"column master 2!",
    "ko": b"another master!!",
}  # fmt: skip
"""Master keys of the reader; nothing that is read should be under `ko`."""

POLICY = Policy(
    footer_key="kf",
    column_keys={"kc1": ["salary"], "kc2": ["name"]},
    plaintext_columns=["city"],
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Arguments and demands of a reader."""

    column_keys: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    aad_prefix: bytes | None = None
    columns: tuple[str, ...] = ()  # all, if none is named
    where: tuple[str, int | str] | None = None  # rows wanted, by a filter
    ctr: bool = False  # AES_GCM_CTR_V1 is accepted
    crc: bool = False  # page checksums are verified where present
    own_key: tuple[str, ...] = ()  # columns that must have their own keys
    rows: int | None = None  # number of rows, known from elsewhere
    drop: bool = False  # columns whose key isn't found are left out
    material: bool = False  # keys come through key material alone
    policy: bool = False  # which names their master keys
    folder: bool = False  # of files: a dataset
    template: str | None = None  # its AAD prefixes
    parts: int | None = None
    signed: bool = False  # a signature of the writer is required
    sealed: bool = False  # the newest seal of the writer is required

    def select(self, rows: Rows) -> Rows:
        """Return the rows of a file that are read."""
        if self.where is not None:
            column, value = self.where
            rows = [row for row in rows if row[column] == value]
        if self.columns:
            rows = [{name: row[name] for name in self.columns} for row in rows]
        return rows


@contextmanager
def seed_random(*seed: object) -> Iterator[None]:
    """Seed all random bytes, so that every run produces the same files.

    What a reader takes random bytes for decides whether it gives an error or runs out of memory.
    """
    dice = random.Random(repr(seed))
    with ExitStack() as stack:
        for name in (
            "os.urandom",
            "modcrypt.aead.urandom",
            "modcrypt.parquet.convert.encryptor.urandom",
        ):
            stack.enter_context(patch(name, dice.randbytes))
        yield


@dataclass(frozen=True)
class Base:
    """A kind of file, made twice, with different rows under the same keys."""

    name: str
    make: Callable[[int], Files]
    reading: Reading = Reading()
    count: int = 20

    @cached_property
    def files(self) -> Files:
        """Return the attacked file and the files beside it."""
        with seed_random(self.name, 0):
            return self.make(0)

    @cached_property
    def others(self) -> Files:
        """Return the other one: an earlier version, or another file."""
        with seed_random(self.name, 1):
            return self.make(1)

    @property
    def data(self) -> bytes:
        return self.files[DATA]

    @property
    def other(self) -> bytes:
        return self.others[DATA]

    @cached_property
    def modules(self) -> list[ModuleSpan]:
        return list_modules(self.data, _keys(self.reading))

    @property
    def rows(self) -> Rows:
        rows: Rows = people(0, self.count).to_pylist()
        return rows

    def module(
        self, kind: ModuleType, column: str | None = "bonus", *, row_group: int = 0, page: int = 0
    ) -> ModuleSpan:
        """Find a module."""
        has_page, in_chunk = kind.has_page, kind is not ModuleType.FOOTER
        (span,) = (
            span
            for span in self.modules
            if span.module.type is kind
            and (not in_chunk or (span.module.path, span.module.row_group) == (column, row_group))
            and (not has_page or span.module.page == page)
        )
        return span


def _keys(reading: Reading) -> FileDecryptionProperties:
    return FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys=dict(reading.column_keys), accept_algorithms=BOTH
    )


# --- files ---------------------------------------------------------------------------------------


def people(version: int = 0, count: int = 20, first: int = 0) -> pa.Table:
    """Return rows in which no value occurs in two versions, and pages come in equal sizes."""
    numbers = range(first, first + count)
    whole = pa.int64()
    fields = [pa.field(name, whole, nullable=False) for name in ("id", "salary", "bonus")]
    schema = pa.schema([*fields, ("name", pa.string()), ("city", pa.string())])
    shift = 100_000 * version
    return pa.table(
        [
            [n + shift for n in numbers],
            [1000 + 37 * n + shift for n in numbers],
            [5000 + 11 * n + shift for n in numbers],
            [None if n % 5 == 3 else f"name-{n % 3}.{version}" for n in numbers],
            [f"city-{n:02}.{version}" for n in numbers],
        ],
        schema=schema,
    )


NUMBERS = ["id", "salary", "bonus"]
CITY = "city-07.0"
PLAIN: dict[str, Any] = {
    "compression": "none", "row_group_size": 10, "use_dictionary": ["name"],
    "write_page_index": True, "store_schema": False,
}  # fmt: skip
PAGES = PLAIN | {"max_rows_per_page": 5, "write_batch_size": 5}
RICH = PAGES | {"bloom_filter_options": {"id": SMALL_FILTER, "city": SMALL_FILTER}}
CRC = {"write_page_checksum": True}


def material(master: str, key: bytes, *, footer: bool = False, **more: Any) -> dict[str, Any]:
    """Return key material as the key tools of parquet-java and PyArrow do (PKMT1)."""
    instance = {"kmsInstanceID": "DEFAULT", "kmsInstanceURL": "DEFAULT"} if footer else {}
    wrapped = seal_base64(MASTERS[master], key, master.encode())
    return {
        "keyMaterialType": "PKMT1",
        "internalStorage": True,
        "isFooterKey": footer,
        **instance,
        "masterKeyID": master,
        "wrappedDEK": wrapped,
        "doubleWrapping": False,
        **more,
    }


def encode_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


with seed_random("key metadata"):  # of which every wrapped key has random bytes
    UNIFORM: dict[str, Any] = {
        "footer_key": FOOTER_KEY,
        "footer_key_metadata": encode_json(material("kf", FOOTER_KEY, footer=True)),
    }
    PARTIAL = UNIFORM | {"plaintext_columns": ["city"]}
    MIXED = PARTIAL | {
        "column_keys": {"salary": COLUMN_KEY, "name": OTHER_KEY},
        "column_key_metadata": {
            "salary": encode_json(material("kc1", COLUMN_KEY)),
            "name": encode_json(material("kc2", OTHER_KEY)),
        },
    }
PF = {"plaintext_footer": True}
CTR = {"encryption_algorithm": "AES_GCM_CTR_V1"}
OWN_KEYS = Reading(column_keys=(("salary", COLUMN_KEY), ("name", OTHER_KEY)))


def sealed_file(
    properties: Mapping[str, Any], options: Mapping[str, Any] = RICH,
    columns: Sequence[str] | None = None, count: int = 20,
) -> Callable[[int], Files]:  # fmt: skip
    """Return a function that makes a file in both versions."""

    def make(version: int) -> Files:
        table = people(version, count)
        table = table if columns is None else table.select(columns)
        kept = dict(options)
        if isinstance(kept["use_dictionary"], list) and columns is not None:
            kept["use_dictionary"] = False
        return {
            DATA: encrypt_bytes(plain_file(table, **kept), FileEncryptionProperties(**properties))
        }

    return make


def _with_prefix(*, stored: bool) -> Callable[[int], Files]:
    def make(version: int) -> Files:
        prefix = {"aad_prefix": (b"part.1", b"part.10")[version], "store_aad_prefix": stored}
        return sealed_file(UNIFORM | prefix)(version)

    return make


def _with_nulls(version: int) -> Files:
    """Data pages V2 with their levels in clear, as parquet-java has them."""
    properties = FileEncryptionProperties(**UNIFORM, data_page_v2_levels="plaintext")
    options = PLAIN | {"data_page_version": "2.0"}
    return {DATA: encrypt_bytes(plain_file(people(version), **options), properties)}


def _external(version: int) -> Files:
    """Key material beside the file, as parquet-java's key tools lay it there."""

    def reference(name: str) -> bytes:
        return encode_json(
            {"keyMaterialType": "PKMT1", "internalStorage": False, "keyReference": name}
        )

    names = {"salary": "columnKey0", "name": "columnKey1"}
    properties = MIXED | {
        "footer_key_metadata": reference("footerKey"),
        "column_key_metadata": {column: reference(name) for column, name in names.items()},
    }
    keys = {column: _own(version, key) for column, key in properties["column_keys"].items()}
    footer_key = _own(version, FOOTER_KEY)
    outside = {"internalStorage": False}
    store = {
        "footerKey": material("kf", footer_key, footer=True, **outside),
        "columnKey0": material("kc1", keys["salary"], **outside),
        "columnKey1": material("kc2", keys["name"], **outside),
    }
    files = sealed_file(properties | {"footer_key": footer_key, "column_keys": keys})(version)
    return files | {
        MATERIAL: encode_json({name: encode_json(each).decode() for name, each in store.items()})
    }


def _internal(version: int) -> Files:
    """Key material in the file, of which each has keys of its own, as the key tools make them."""
    footer_key = _own(version, FOOTER_KEY)
    metadata = encode_json(material("kf", footer_key, footer=True))
    properties = MIXED | {"footer_key": footer_key, "footer_key_metadata": metadata}
    return sealed_file(properties)(version)


def under_masters(footer: str, column: str) -> Files:
    """Return other rows, whose keys are wrapped under master keys of the writer's choice."""
    footer_key, key = _own(1, FOOTER_KEY), _own(1, COLUMN_KEY)
    names = ("salary", "name")
    properties = PARTIAL | {
        "footer_key": footer_key,
        "footer_key_metadata": encode_json(material(footer, footer_key, footer=True)),
        "column_keys": dict.fromkeys(names, key),
        "column_key_metadata": dict.fromkeys(names, encode_json(material(column, key))),
    }
    return sealed_file(properties)(1)


def _own(version: int, key: bytes) -> bytes:
    return key if version == 0 else key[::-1]


def _dataset(version: int) -> Files:
    """Three parts with AAD prefixes of their own."""
    return {
        f"part-{part}.parquet": encrypt_bytes(
            plain_file(people(version, 10, 10 * part), **PLAIN),
            FileEncryptionProperties(
                **UNIFORM, aad_prefix=b"people.v%d.part%d" % (2 - version, part)
            ),
        )
        for part in range(3)
    }


def _sealed(version: int) -> Files:
    """Three signed parts and their seal; the seal of version 0 is the newer one."""
    encryption = FileEncryptionProperties(**UNIFORM | SIGNED)
    files = {
        f"part-{part}.parquet": encrypt_bytes(
            plain_file(people(version, 10, 10 * part), **PLAIN), encryption
        )
        for part in range(3)
    }
    described = {name: _describe(data) for name, data in files.items()}
    draft = Draft("people", {"since": []}, encode_files(described))
    after = (1 - version, None)
    return {**files, SEAL_NAME: encode_statement([WRITER], DATASET, draft, after)}


def _describe(data: bytes) -> SealedFile:
    tail = read_tail(MemorySource(data))
    footer = hash_footer(close_tail(tail.data, tail.magic))
    return SealedFile(len(data), hashlib.sha256(data).hexdigest(), footer)


class _Numbers(Base):
    """Whole numbers alone, uncompressed: whatever a page opens to, is numbers again."""

    @property
    def rows(self) -> Rows:
        return [{name: row[name] for name in NUMBERS} for row in super().rows]


rich = Base("rich", sealed_file(UNIFORM))
_SECRET = bytes(range(32))
WRITER = SigningKey(
    VerifyingKey("ed25519", find_scheme("ed25519").encode_public(_SECRET)), Secret(_SECRET)
)
SIGNED: dict[str, Any] = {"signing_key": WRITER}

signed = Base("signed", sealed_file(PARTIAL | SIGNED), Reading(signed=True))
signed_pf = Base(
    "signed, plaintext footer", sealed_file(PARTIAL | PF | SIGNED), Reading(signed=True)
)
signed_ctr = _Numbers(
    "signed, CTR", sealed_file(UNIFORM | CTR | SIGNED, PAGES, NUMBERS),
    Reading(signed=True, ctr=True),
)  # fmt: skip
#: What DuckDB reads too: one data page a chunk, no Bloom filters.
simple = Base("simple", sealed_file(UNIFORM, PLAIN))
rich_pf = Base("rich, plaintext footer", sealed_file(UNIFORM | PF))
partial = Base("partial", sealed_file(PARTIAL))
partial_pf = Base("partial, plaintext footer", sealed_file(PARTIAL | PF))
partial_crc = Base("partial, CRC", sealed_file(PARTIAL, RICH | CRC))
mixed = Base("mixed", sealed_file(MIXED), OWN_KEYS)
mixed_pf = Base("mixed, plaintext footer", sealed_file(MIXED | PF), OWN_KEYS)
stored = Base("stored prefix", _with_prefix(stored=True))
unstored = Base("unstored prefix", _with_prefix(stored=False), Reading(aad_prefix=b"part.1"))
numbers = _Numbers("numbers", sealed_file(UNIFORM, PLAIN, NUMBERS))
ctr = _Numbers("CTR", sealed_file(UNIFORM | CTR, PAGES, NUMBERS), Reading(ctr=True))
ctr_crc = _Numbers("CTR, CRC", sealed_file(UNIFORM | CTR, PAGES | CRC, NUMBERS), Reading(ctr=True))
clear_levels = Base("levels in clear", _with_nulls)
external = Base("external material", _external, replace(OWN_KEYS, material=True))
internal = Base("internal material", _internal, replace(OWN_KEYS, material=True))
dataset = Base(
    "dataset", _dataset, Reading(folder=True, template="people.v2.part{i}", parts=3), count=30
)  # fmt: skip
sealed = Base("sealed dataset", _sealed, Reading(folder=True, signed=True, sealed=True), count=30)
