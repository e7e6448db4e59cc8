"""Copies of files under Iceberg's read restrictions: masked columns with their types."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.errors import UnsupportedFormatError
from modcrypt.parquet.rewrite.rekey import mask_parquet, share_parquet
from tests.support.cli.program import run, to_key
from tests.support.iceberg.builder import arrow

KEY = bytes(range(16))
DAY = datetime.date(2026, 7, 14)
NOON = datetime.datetime(2026, 7, 14, 12, 30)
COLUMNS: list[tuple[str, pa.DataType, list[Any]]] = [
    ("name", pa.string(), ["Ada-1815", None, "Grace (1906)"]),
    ("card", pa.string(), ["4111-1111", "12", None]),
    ("phone", pa.string(), ["555.01234", "ab", None]),
    ("born", pa.date32(), [DAY, None, DAY]),
    ("seen", pa.timestamp("us"), [NOON, None, NOON]),
    ("code", pa.int64(), [7, None, -1]),
    ("mail", pa.string(), ["a@b.c", None, "d@e.f"]),
    ("rank", pa.int32(), [1, 2, None]),
    ("open", pa.string(), ["x", "y", None]),
]
SCHEMA = arrow([(number, name, kind) for number, (name, kind, _) in enumerate(COLUMNS, 1)])
ROWS = pa.table([values for _, _, values in COLUMNS], schema=SCHEMA)
ACTIONS = {
    1: "mask-alphanum", 2: "show-last-4", 3: "show-first-4", 4: "truncate-to-year",
    5: "truncate-to-month", 6: "sha-256-global", 7: "sha-256-global", 8: "mask-to-fixed-value",
}  # fmt: skip


def restrictions(actions: dict[int, str], **more: Any) -> dict[str, Any]:
    projections = [{"field-id": id_, "action": action} for id_, action in actions.items()]
    return {"required-column-projections": projections, **more}


def encrypted(table: pa.Table = ROWS) -> bytes:
    out = io.BytesIO()
    mc.write_table(table, out, mc.FileEncryptionProperties(footer_key=KEY))
    return out.getvalue()


def mask(data: bytes, document: dict[str, Any], **options: Any) -> tuple[pa.Table, Any]:
    out = io.BytesIO()
    keys = mc.FileDecryptionProperties(footer_key=KEY)
    done = mask_parquet(data, out, keys, read_restrictions=document, **options)
    return mc.read_table(out.getvalue(), mc.FileDecryptionProperties(footer_key=KEY)), done


def test_each_action_masks_its_column_and_keeps_its_type() -> None:
    found, done = mask(encrypted(), restrictions(ACTIONS))
    assert found.schema.types == ROWS.schema.types
    assert found.to_pydict() == {
        "name": ["xxx-nnnn", None, "xxxxxx(nnnn)"],
        "card": ["nnnn-1111", "12", None],
        "phone": ["555.nnnnn", "ab", None],
        "born": [datetime.date(2026, 1, 1), None, datetime.date(2026, 1, 1)],
        "seen": [datetime.datetime(2026, 7, 1), None, datetime.datetime(2026, 7, 1)],
        "code": [_first_number(7), None, _first_number(-1)],
        "mail": [hashlib.sha256(b"a@b.c").hexdigest(), None, hashlib.sha256(b"d@e.f").hexdigest()],
        "rank": [0, 0, 0],
        "open": ["x", "y", None],
    }
    assert set(done.masked) == {name for name, _, _ in COLUMNS} - {"open"}
    assert not done.hashed


def _first_number(value: int) -> int:
    digest = hashlib.sha256(value.to_bytes(8, "little", signed=True)).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def test_null_is_the_mask_that_has_its_own_option() -> None:
    found, done = mask(encrypted(), restrictions({1: "replace-with-null"}))
    assert found["name"].null_count == 3
    assert done.nulls == ("name",)


def test_equal_values_of_a_file_have_equal_salted_hashes() -> None:
    found, _ = mask(encrypted(), restrictions({7: "sha-256-query-local"}))
    twice, _ = mask(encrypted(), restrictions({7: "sha-256-query-local"}))
    assert found["mail"][0] != twice["mail"][0]
    assert found["mail"][1].as_py() is None


def test_no_statistics_show_what_was_masked() -> None:
    out = io.BytesIO()
    keys = mc.FileDecryptionProperties(footer_key=KEY)
    mask_parquet(encrypted(), out, keys, read_restrictions=restrictions(ACTIONS))
    plain = io.BytesIO()
    mc.decrypt_parquet(out.getvalue(), plain, keys)
    for text in (b"Ada", b"Grace", b"4111", b"01234", b"a@b.c"):
        assert text not in plain.getvalue()


def test_a_share_is_masked() -> None:
    out = io.BytesIO()
    share_parquet(
        encrypted(), out, mc.FileDecryptionProperties(footer_key=KEY),
        mc.FileEncryptionProperties(footer_key=KEY[::-1]), ["name", "open"],
        read_restrictions=restrictions(ACTIONS),
    )  # fmt: skip
    found = mc.read_table(out.getvalue(), mc.FileDecryptionProperties(footer_key=KEY[::-1]))
    assert found.to_pydict() == {
        "name": ["xxx-nnnn", None, "xxxxxx(nnnn)"], "open": ["x", "y", None],
    }  # fmt: skip


def test_a_file_is_not_masked_twice() -> None:
    out = io.BytesIO()
    keys = mc.FileDecryptionProperties(footer_key=KEY)
    mask_parquet(encrypted(), out, keys, read_restrictions=restrictions({1: "mask-alphanum"}))
    with pytest.raises(ValueError, match="have masked columns already: name"):
        mask(out.getvalue(), restrictions({1: "mask-alphanum", 2: "mask-alphanum"}))
    plain = io.BytesIO()
    mc.decrypt_parquet(out.getvalue(), plain, keys)
    assert b"mask-alphanum" in plain.getvalue()  # the note


REFUSED = {
    "a row filter": restrictions({}, **{"required-row-filter": {"type": "not-null", "term": "id"}}),
    "an unknown action": restrictions({1: "mask-everything"}),
    "an unknown member": {"required-something": []},
    "an action for another type": restrictions({4: "mask-alphanum"}),
    "two actions": {"required-column-projections": [
        {"field-id": 1, "action": "mask-alphanum"}, {"field-id": 1, "action": "show-first-4"},
    ]},
    "a field in a struct": restrictions({11: "mask-alphanum"}),
    "an id that is no number": restrictions({True: "mask-alphanum"}),
    "no list of actions": {"required-column-projections": False},
}  # fmt: skip


@pytest.mark.parametrize("document", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_applied(document: dict[str, Any]) -> None:
    inner = pa.struct([pa.field("a", pa.string(), metadata={b"PARQUET:field_id": b"11"})])
    schema = SCHEMA.append(pa.field("deep", inner, metadata={b"PARQUET:field_id": b"10"}))
    table = pa.table([*ROWS.columns, pa.array([{"a": "b"}] * 3, inner)], schema=schema)
    with pytest.raises(UnsupportedFormatError):
        mask(encrypted(table), document)


@pytest.mark.parametrize(
    ("values", "action", "options"),
    [
        (pa.array([1, None], pa.decimal128(5, 2)), "mask-to-fixed-value",
         {"store_decimal_as_integer": True}),
        (pa.array([NOON, None], pa.timestamp("ns")), "truncate-to-year",
         {"use_deprecated_int96_timestamps": True}),
    ],
    ids=["a decimal as an integer", "INT96"],
)  # fmt: skip
def test_types_that_pyarrow_would_change(values: Any, action: str, options: Any) -> None:
    plain, out = io.BytesIO(), io.BytesIO()
    pq.write_table(pa.table([values], arrow([(1, "a", values.type)])), plain, **options)
    mc.encrypt_parquet(plain.getvalue(), out, mc.FileEncryptionProperties(footer_key=KEY))
    with pytest.raises(UnsupportedFormatError, match="in another form"):
        mask(out.getvalue(), restrictions({1: action}))


def test_a_file_without_field_ids() -> None:
    with pytest.raises(UnsupportedFormatError, match="field ids, which the file does not have"):
        mask(encrypted(pa.table({"name": ["x"]})), restrictions({1: "mask-alphanum"}))


def test_a_column_without_a_field_id_may_be_the_masked_one() -> None:
    schema = SCHEMA.append(pa.field("card2", pa.string()))
    data = encrypted(pa.table([*ROWS.columns, pa.array(["x"] * 3)], schema=schema))
    assert mask(data, restrictions({1: "mask-alphanum"}))[1].masked
    with pytest.raises(UnsupportedFormatError, match="columns without field ids"):
        mask(data, restrictions({1: "mask-alphanum", 99: "mask-alphanum"}))


def test_no_second_column_has_the_field_id_of_a_masked_one() -> None:
    schema = arrow([(1, "name", pa.string()), (1, "alias", pa.string()), (2, "id", pa.int64())])
    data = encrypted(pa.table([["a"], ["a"], [1]], schema=schema))
    with pytest.raises(UnsupportedFormatError, match="the same field id"):
        mask(data, restrictions({1: "mask-alphanum"}))


def test_fields_that_a_file_lacks_are_no_error() -> None:
    found, done = mask(encrypted(), restrictions({99: "mask-alphanum"}), drop=["open"])
    assert found.num_columns == ROWS.num_columns - 1
    assert not done.masked


def test_the_command_line(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY.hex())
    key.chmod(0o600)
    (tmp_path / "in.parquet").write_bytes(encrypted())
    document = tmp_path / "restrictions.json"
    document.write_text(json.dumps(restrictions({1: "mask-alphanum"})))
    given = ["--key", f"file:{key}", "--read-restrictions", str(document)]
    files = [str(tmp_path / "in.parquet"), str(tmp_path / "out.parquet")]
    new = to_key(tmp_path, "key")
    assert run(tmp_path, "mask", *files, *given).returncode == 0
    keys = mc.FileDecryptionProperties(footer_key=KEY)
    assert mc.read_table(files[1], keys)["name"][0].as_py() == "xxx-nnnn"
    shared = [files[0], str(tmp_path / "shared.parquet"), "--column", "name"]
    assert run(tmp_path, "share", *shared, *given, *new).returncode == 0
    assert mc.read_table(shared[1], keys).to_pydict() == {
        "name": ["xxx-nnnn", None, "xxxxxx(nnnn)"]
    }
    # A copy without masks is never taken for one with them.
    assert run(tmp_path, "share", *shared, *given[:2], *new, "--force").returncode == 0
    assert mc.read_table(shared[1], keys)["name"][0].as_py() == "Ada-1815"
    assert run(tmp_path, "share", *shared, *given, *new, "--force").returncode == 0
    assert mc.read_table(shared[1], keys)["name"][0].as_py() == "xxx-nnnn"
    for text in ("{", '{"required-column-projections": [], "required-column-projections": []}'):
        document.write_text(text)
        assert run(tmp_path, "mask", *files, *given, "--force").returncode == 2


@pytest.mark.parametrize(
    ("command", "more"), [("mask", ()), ("share", ("--column", "code", "--to", "key.toml"))]
)
def test_names_of_folders_may_state_what_is_masked(
    tmp_path: Path, command: str, more: tuple[str, ...]
) -> None:
    """Those of Iceberg's partitions do; the copies would have the same names."""
    to_key(tmp_path, "key")
    (tmp_path / "key").write_text(KEY.hex())
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "lake" / "name=Ada").mkdir(parents=True)
    (tmp_path / "lake" / "name=Ada" / "a=b.parquet").write_bytes(encrypted())
    (tmp_path / "restrictions.json").write_text(json.dumps(restrictions({1: "mask-alphanum"})))
    given = ("--key", "file:key", "--read-restrictions", "restrictions.json", *more)
    refused = run(tmp_path, command, "lake", "out", *given)
    assert refused.returncode == 5
    assert "names of folders may state masked values" in refused.stdout + refused.stderr
    assert not list((tmp_path / "out").rglob("*.parquet"))
    done = run(tmp_path, command, "lake/name=Ada", "out", *given)
    assert (done.returncode, [path.name for path in (tmp_path / "out").iterdir()]) == (
        0, ["a=b.parquet"],
    )  # fmt: skip
