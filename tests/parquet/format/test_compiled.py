"""Compiled and interpreted code, from the same source, agree on any bytes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modcrypt.errors import FormatError
from modcrypt.parquet.format import compact, idl, page_header, page_header_scan, structs
from modcrypt.runtime.code_form import code_form
from tests.support.randomness import examples
from tests.support.thrift_judge import STRUCTS, footer_of, of_rich_types

pytestmark = pytest.mark.skipif(
    code_form() != "compiled", reason="nothing is compiled; `make native` does it"
)


def load_interpreted(module: ModuleType, **replaced: ModuleType) -> ModuleType:
    """Load a module once more from its source, with interpreted ones in place of others."""
    name = module.__name__.rpartition(".")[2]
    source = Path(idl.__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"interpreted_{name}", source)
    assert spec is not None
    assert spec.loader is not None
    twin = importlib.util.module_from_spec(spec)
    others = {f"modcrypt.parquet.format.{other}": it for other, it in replaced.items()}
    with mock.patch.dict(sys.modules, others):
        spec.loader.exec_module(twin)
    return twin


COMPACT = load_interpreted(compact)
CLASSES = load_interpreted(structs, compact=COMPACT)
IDL = load_interpreted(idl, compact=COMPACT, structs=CLASSES)
PAGE_HEADER = load_interpreted(page_header, compact=COMPACT, idl=IDL)
SCAN = load_interpreted(page_header_scan, compact=COMPACT, idl=IDL, page_header=PAGE_HEADER).scan

FOOTER = footer_of(of_rich_types())
BYTES = st.sampled_from([0, 1, 2, 12, 16, 21, 22, 24, 25, 28, 44, 127, 128, 249, 252, 255])
ANY = st.binary(max_size=80) | st.lists(BYTES, max_size=80).map(bytes)


def outcome(call: Callable[..., object], *arguments: object) -> object:
    try:
        return call(*arguments)
    except FormatError as error:
        return type(error), str(error)


def encode_again(codec: ModuleType, struct: str, data: bytes, lazy: int) -> object:
    value, end = codec.decode(struct, data, lazy=lazy)
    return codec.encode(value), end, codec.encode(codec.without_unknown(value) or value)


@settings(max_examples=examples(2000))
@given(st.sampled_from(STRUCTS), ANY)
def test_structs(struct: str, data: bytes) -> None:
    for lazy in (0, idl.CHUNKS):
        assert outcome(encode_again, idl, struct, data, lazy) == outcome(
            encode_again, IDL, struct, data, lazy
        )


@settings(max_examples=examples(1000))
@given(st.data())
def test_damaged_footers(data: st.DataObject) -> None:
    footer = bytearray(FOOTER)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(footer) - 1))
        footer[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    for lazy in (0, idl.STATISTICS, idl.CHUNKS):
        case = ("FileMetaData", bytes(footer), lazy)
        assert outcome(encode_again, idl, *case) == outcome(encode_again, IDL, *case)


HEADERS = [
    idl.encode(idl.new("PageHeader", type=kind, **sizes, **{name: idl.new(struct, **numbers)}))
    for kind, name, struct, numbers in (
        (0, "data_page_header", "DataPageHeader", {
            "num_values": 300, "encoding": 0, "definition_level_encoding": 3,
            "repetition_level_encoding": 3,
        }),
        (2, "dictionary_page_header", "DictionaryPageHeader", {"num_values": 5, "encoding": 2}),
    )
    for sizes in (
        {"uncompressed_page_size": 70, "compressed_page_size": 40_000},
        {"uncompressed_page_size": 0, "compressed_page_size": 0, "crc": -5},
    )
]  # fmt: skip


def scanned(scan: Callable[..., Any], *arguments: object) -> object:
    """Return what a scan finds as a tuple, or its error."""
    found: Any = outcome(scan, *arguments)
    if isinstance(found, tuple):
        return found
    return tuple(getattr(found, name) for name in PAGE_HEADER.PageHeader.__slots__)


@settings(max_examples=examples(2000))
@given(ANY, st.integers(0, 3))
def test_page_headers(data: bytes, start: int) -> None:
    for buffer in (data, bytearray(data)):
        arguments = (buffer, start, len(buffer))
        assert scanned(page_header_scan.scan, *arguments) == scanned(SCAN, *arguments)


@settings(max_examples=examples(1000))
@given(st.data())
def test_altered_page_headers(data: st.DataObject) -> None:
    header = bytearray(data.draw(st.sampled_from(HEADERS)))
    for _ in range(data.draw(st.integers(0, 2))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    arguments = (bytes(header), 0, len(header))
    assert scanned(page_header_scan.scan, *arguments) == scanned(SCAN, *arguments)


@pytest.mark.parametrize("number", [0, 1, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63])
def test_numbers(number: int) -> None:
    for name in ("offset", "compressed_page_size"):
        fields = {"offset": 0, "compressed_page_size": 0, "first_row_index": 0, name: number}
        written = outcome(idl.encode, idl.new("PageLocation", **fields))
        assert written == outcome(IDL.encode, IDL.new("PageLocation", **fields))
