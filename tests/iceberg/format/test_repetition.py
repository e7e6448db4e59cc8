"""Parts that files repeat are those that each file alone has, whatever came before."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pytest

from modcrypt.errors import FormatError
from modcrypt.iceberg.format import repeated_json
from modcrypt.iceberg.format.avro_files import open_avro, read_avro
from modcrypt.iceberg.format.repeated_json import RepeatedLists
from modcrypt.iceberg.format.repeated_rows import RepeatedRows

STRETCH = 16

ITEMS: list[Any] = [{"id": number, "deep": [{"x": number % 7}]} for number in range(200)]


def histories(seed: int) -> list[list[Any]]:
    """Lists of items that grow, lose items at any place, and come in either order."""
    chance = random.Random(seed)
    lists: list[list[Any]] = []
    items: list[Any] = []
    for _ in range(60):
        items = [*items, *chance.sample(ITEMS, chance.randrange(8))]
        if chance.random() < 0.3:
            at = chance.randrange(len(items) + 1)
            items = items[:at] + items[at + chance.randrange(5) :]
        lists.append(items[chance.randrange(3) :] if chance.random() < 0.3 else items)
    return lists if seed % 2 else lists[::-1]


@pytest.mark.parametrize("seed", range(4))
def test_lists_of_json_are_parsed_as_each_alone(seed: int) -> None:
    lists = RepeatedLists("snapshots", "log")
    for number, items in enumerate(histories(seed)):
        log = [*items[::-1], 1, 12, "text", None, [items[:1]]]
        document = {"n": number, "snapshots": items, "other": items[:3], "log": log}
        indent = None if number % 5 else 1
        separators = (",", ":") if number % 3 else None
        text = json.dumps(document, indent=indent, separators=separators)
        assert lists.parse(text.encode()) == document


@pytest.mark.parametrize("part", range(1, 12))
def test_values_are_parsed_as_far_as_they_reach(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_json, "_PART", part)
    values = [
        b"12e+34", b"1.5e3", b"-0.25", b"120", b"true", b"null", '"äé𝄞\ud834"'.encode(
            "utf-8", "surrogatepass"
        ), b'"\\ud834\\udd1e"', b'{"x" : [1, {}]}', b"[]",
    ]  # fmt: skip
    lists = RepeatedLists("a")
    for text in values + values[::-1]:
        document = b'{"n":%s,"a":[%s],"m":%s, "o": %s }' % (text, b",".join(values), text, text)
        for data in (document, document.replace(b",", b" , "), document):
            assert lists.parse(data) == json.loads(data)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_other_encodings_of_unicode(encoding: str) -> None:
    document = {"n": "ä", "a": ITEMS[:3]}
    data = json.dumps(document, ensure_ascii=False).encode(encoding)
    assert RepeatedLists("a").parse(data) == document


def test_threads_parse_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = RepeatedLists("a")
    others = {"a": ITEMS[:9], "b": {"y": 2}, "c": 3, "d": 4}
    real = repeated_json._parse_value

    def parse(text: bytes, at: int) -> tuple[Any, int]:
        monkeypatch.undo()  # another thread takes its turn in the middle of a document
        assert lists.parse(json.dumps(others).encode()) == others
        return real(text, at)

    for document in ({"c": 1, "a": ITEMS[:7], "b": {"x": 1}}, {"c": 3, "b": [], "d": 4}):
        monkeypatch.setattr(repeated_json, "_parse_value", parse)
        assert lists.parse(json.dumps(document).encode()) == document


def test_objects_that_lists_repeat_are_the_same() -> None:
    lists = RepeatedLists("a")
    made: list[Any] = []
    text = json.dumps({"a": ITEMS[: 3 * STRETCH]}, separators=(",", ":")).encode()
    first, second = lists.parse(text)["a"], lists.parse(text)["a"]
    assert all(old is new for old, new in zip(first, second, strict=True))

    def make(item: dict[str, int]) -> int:
        made.append(item)
        return item["id"]

    for items in (first, second):
        assert lists.lists["a"].make(make, items) == [item["id"] for item in items]
    assert len(made) == 3 * STRETCH


def test_an_object_of_which_nothing_can_be_made_concerns_only_lists_with_it() -> None:
    lists = RepeatedLists("a")

    def make(item: dict[str, int]) -> int:
        if item["id"] == 9:
            raise ValueError("an object that is refused")
        return item["id"]

    for count in (10, 9, 10, 8):
        text = json.dumps({"a": ITEMS[:count]}, separators=(",", ":")).encode()
        items = lists.parse(text)["a"]
        if count == 10:
            with pytest.raises(ValueError, match="refused"):
                lists.lists["a"].make(make, items)
        else:
            assert lists.lists["a"].make(make, items) == list(range(count))


def test_objects_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_json, "MAX_KNOWN", 2000)
    lists = RepeatedLists("a")
    items = lists.lists["a"]
    for start in range(0, 10_000, 3):
        document = {"a": [{"id": start // 9 * 9 + number} for number in range(9)]}
        values = lists.parse(json.dumps(document).encode())["a"]
        assert values == document["a"]
        assert items.make(lambda item: item["id"], values) == [item["id"] for item in values]
        assert sum(map(len, items._known)) <= 2000
        assert len(items._made) <= 2000 // len('{"id": 0}') + len(values)


INVALID = {
    "nothing": b"",
    "a list": b"[]",
    "text after it": b'{"a":[{}]}x',
    "no colon": b'{"a"[]}',
    "a comma at the end": b'{"a":[{"x":1},]}',
    "no comma": b'{"a":[{"x":1}{"x":1}]}',
    "an open list": b'{"a":[{"x":1}',
    "an open object": b'{"a":[{"x":1}]',
    "a member twice": b'{"a":[],"a":[]}',
    "a member of an item twice": b'{"a":[{"x":1,"x":2}]}',
    "NaN": b'{"a":[{"x":NaN}]}',
    "no text for a name": b"{1:2}",
    "no UTF-8": b'{"b":"\xe4"}',
    "a text cut short": b'{"b":"\xc3',
    "no value": b'{"a":}',
    "a comma alone": b'{"a":[,]}',
    "a comma after the members": b'{"a":[],}',
    "another sign": b'{"a":[{"x":1};{"x":1}]}',
}


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_invalid_json(text: bytes) -> None:
    lists = RepeatedLists("a")
    lists.parse(b'{"a":[{"x":1},{"x":1},{"x":1}]}')
    with pytest.raises(ValueError):  # noqa: PT011  # of any kind
        lists.parse(text)


SCHEMA = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "deep", "type": {"type": "array", "items": {
            "type": "record", "name": "part", "fields": [{"name": "x", "type": "long"}],
        }}},
    ],
}  # fmt: skip


def container(rows: list[Any], interval: int = 100, name: str = "row") -> bytes:
    out = io.BytesIO()
    schema = fastavro.parse_schema({**SCHEMA, "name": name})
    fastavro.writer(out, schema, rows, sync_interval=interval)
    return out.getvalue()


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_decoded_as_in_each_file_alone(seed: int) -> None:
    known = RepeatedRows[Any]()
    for number, rows in enumerate(histories(seed)):
        data = container(rows, 16 if number % 7 == 0 else 500)
        assert known.read(open_avro(data, "x"), lambda row: row) == rows
        assert read_avro(data, "x").records == rows


def test_a_block_that_is_longer_than_its_rows() -> None:
    known = RepeatedRows[Any]()
    known.read(open_avro(container(ITEMS), "x"), lambda row: row)
    data = container(ITEMS[:1], 0)
    whole = open_avro(data, "x")
    ((count, block),) = whole.blocks
    # An uncompressed block, whose count and length are one byte each, before 16 random bytes.
    end = len(data) - 16 - len(block)
    assert data[end:-16] == block
    longer = bytes([2 * (len(block) + 2)]) + block + b"\0\0"
    damaged = data[: end - 1] + longer + data[end + len(block) :]
    for read in (lambda avro: avro.records, lambda avro: known.read(avro, lambda row: row)):
        with pytest.raises(FormatError, match="longer than its rows"):
            read(open_avro(damaged, "x"))
    assert count == 1


@pytest.mark.parametrize("schemas", [1, 300])
def test_rows_without_end_are_forgotten(schemas: int) -> None:
    most = 100 << 10
    known = RepeatedRows[Any](most)
    for number in range(300):
        rows = [{"id": number * 5 + step, "deep": []} for step in range(9)]
        data = container(rows, name=f"row{number % schemas}")
        assert known.read(open_avro(data, "x"), lambda row: row) == rows
        kept = sum(len(kind.values) for kind in known._known.values())
        assert kept <= most >> 10
        damaged = container([{"id": 9000 + number, "deep": []}] * 3, name=f"row{number % schemas}")
        with pytest.raises(FormatError):
            known.read(open_avro(damaged[:-20] + b"\0" + damaged[-19:], "x"), lambda row: row)
