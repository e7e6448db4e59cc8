"""The table of the IDL is what thriftpy2 reads, and counts for no other IDL."""

from __future__ import annotations

import json
import pkgutil

import pytest

from modcrypt.parquet.format.idl_definitions import load_definitions
from tools.idl_table import IDL, PATH, format_table


def test_the_table_is_what_thriftpy2_reads() -> None:
    assert PATH.read_text() == format_table(), "run python -m tools.idl_table"


def test_an_idl_that_has_changed_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = IDL.read_bytes() + b"struct Another {\n  1: required list<PageType> kinds\n}\n"
    table = PATH.read_bytes()
    monkeypatch.setattr(
        pkgutil, "get_data", lambda _, name: text if name.endswith(".thrift") else table
    )
    structs, enums = json.loads(json.dumps(load_definitions.__wrapped__()))
    assert structs.pop("Another") == [False, [[1, 9, "kinds", True, "", 5]]]
    assert {"structs": structs, "enums": enums} == {
        name: part for name, part in json.loads(table).items() if name != "crc"
    }
