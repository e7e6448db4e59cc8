"""Fresh data keys for a file that is there: what it was stays as it was."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.parquet.plan import plan_decryption
from modcrypt.storage import open_source
from tests.kms.memory_kms import MemoryKms


def tools_and_table() -> tuple[mc.KeyTools, pa.Table]:
    rows = range(3000)
    table = pa.table(
        {
            "a": [None if n % 3 == 0 else n for n in rows],
            "b": pa.array([["x"] * (n % 3) for n in rows]),
        }
    )
    return mc.KeyTools(MemoryKms()), table


def decrypted(path: Path, tools: mc.KeyTools) -> bytes:
    out = io.BytesIO()
    mc.decrypt_parquet(path, out, tools.decryption())
    return out.getvalue()


@pytest.mark.parametrize("levels", ["encrypted", "plaintext"])
def test_data_pages_keep_their_layout_and_keys_their_lengths(tmp_path: Path, levels: str) -> None:
    """parquet-java reads data pages V2 with levels in clear alone, Arrow the others alone."""
    tools, table = tools_and_table()
    policy = mc.Policy(
        footer_key="kf",
        column_keys={"kc1": ["a"]},
        data_page_v2_levels=levels,
        data_key_length_bits=192,
        kek_length_bits=256,
    )
    path = tmp_path / "a.parquet"
    mc.write_table(table, path, tools.encryption(policy), data_page_version="2.0")
    before, plain = path.read_bytes(), decrypted(path, tools)
    (rotated,) = mc.rotate_keys(path, tools, what="dek")
    assert (rotated.result, rotated.keys) == ("rotated", 2)
    assert path.read_bytes() != before
    assert decrypted(path, tools) == plain
    with open_source(path) as source:
        plan = plan_decryption(source, tools.decryption())
        assert {len(cipher.key) for cipher in plan.ciphers.values()} == {24}
    spans = mc.list_modules(path, tools.decryption())
    pages = [span for span in spans if span.module.type is mc.ModuleType.DATA_PAGE]
    # With levels in clear, a page's length field stands after them.
    whole = [
        int.from_bytes(path.read_bytes()[span.start : span.start + 4], "little")
        == span.end - span.start - 4
        for span in pages
    ]
    assert all(whole) if levels == "encrypted" else not any(whole)


def test_a_file_larger_than_what_is_held_at_once_comes_through(tmp_path: Path) -> None:
    tools = mc.KeyTools(MemoryKms())
    table = pa.table({"n": range(3_000_000)})
    path = tmp_path / "a.parquet"
    policy = mc.Policy(footer_key="kf")
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "row_group_size": 500_000}
    mc.write_table(table, path, tools.encryption(policy), write_page_index=True, **options)
    plain = decrypted(path, tools)
    assert len(plain) > 20 << 20
    (rotated,) = mc.rotate_keys(path, tools, what="dek")
    assert rotated.result == "rotated"
    assert decrypted(path, tools) == plain


@pytest.mark.parametrize("part", [0.2, 0.8])
def test_a_page_that_does_not_authenticate_leaves_the_file_alone(
    tmp_path: Path, part: float
) -> None:
    tools, table = tools_and_table()
    path = tmp_path / "a.parquet"
    mc.write_table(table, path, tools.encryption(mc.Policy(footer_key="kf")), row_group_size=500)
    damaged = bytearray(path.read_bytes())
    pages = [
        span
        for span in mc.list_modules(path, tools.decryption())
        if span.module.type is mc.ModuleType.DATA_PAGE
    ]
    page = pages[int(len(pages) * part)]
    damaged[(page.start + page.end) // 2] ^= 1
    path.write_bytes(damaged)
    (rotated,) = mc.rotate_keys(path, tools, what="dek")
    assert rotated.result == "tag"
    assert path.read_bytes() == bytes(damaged)
    assert [one.name for one in tmp_path.iterdir()] == ["a.parquet"]
