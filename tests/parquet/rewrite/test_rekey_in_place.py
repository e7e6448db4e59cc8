"""Fresh data keys for a file that is there: what it was stays as it was."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.io.sources import open_source
from modcrypt.parquet.crypto.file_plan import OpenFile
from tests.support.kms.memory_kms import MemoryKms
from tests.support.kms.rotating_kms import RotatingKms


def tools_and_table() -> tuple[mc.KeyTools, pa.Table]:
    rows = range(3000)
    table = pa.table(
        {
            "a": [None if n % 3 == 0 else n for n in rows],
            "b": pa.array([["x"] * (n % 3) for n in rows]),
        }
    )
    return mc.KeyTools(MemoryKms()), table


def decrypt_file(path: Path, tools: mc.KeyTools) -> bytes:
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
    before, plain = path.read_bytes(), decrypt_file(path, tools)
    (rotated,) = mc.jobs.rotate_keys(path, tools, what="dek")
    assert (rotated.result, rotated.keys) == ("rotated", 2)
    assert path.read_bytes() != before
    assert decrypt_file(path, tools) == plain
    with open_source(path) as source:
        plan = OpenFile(source, tools.decryption()).select()
        assert {len(cipher.key) for cipher in plan.ciphers.values()} == {24}
    regions = mc.inspect_parquet(path, tools.decryption(), pages=True).regions
    pages = [region for region in regions if region.kind == "data page"]
    assert pages
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
    options: dict[str, Any] = {
        "compression": "none",
        "use_dictionary": False,
        "row_group_size": 500_000,
    }
    mc.write_table(table, path, tools.encryption(policy), write_page_index=True, **options)
    plain = decrypt_file(path, tools)
    assert len(plain) > 20 << 20
    (rotated,) = mc.jobs.rotate_keys(path, tools, what="dek")
    assert rotated.result == "rotated"
    assert decrypt_file(path, tools) == plain


@pytest.mark.parametrize("part", [0.2, 0.8])
def test_a_page_that_does_not_authenticate_leaves_the_file_alone(
    tmp_path: Path, part: float
) -> None:
    tools, table = tools_and_table()
    path = tmp_path / "a.parquet"
    mc.write_table(table, path, tools.encryption(mc.Policy(footer_key="kf")), row_group_size=500)
    damaged = bytearray(path.read_bytes())
    regions = mc.inspect_parquet(path, tools.decryption(), pages=True).regions
    pages = [region for region in regions if region.kind == "data page"]
    page = pages[int(len(pages) * part)]
    damaged[(page.start + page.end) // 2] ^= 1
    path.write_bytes(damaged)
    (rotated,) = mc.jobs.rotate_keys(path, tools, what="dek")
    assert rotated.result == "tag"
    assert path.read_bytes() == bytes(damaged)
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_what_is_missing_is_not_put_in_its_place_for_good(tmp_path: Path) -> None:
    """Reading may put up with columns without a key; a rotation that did would lose them."""
    kms, table = MemoryKms(), tools_and_table()[1]
    path = tmp_path / "a.parquet"
    policy = mc.Policy(footer_key="kf", column_keys={"kc1": ["a"]})
    mc.write_table(table, path, mc.KeyTools(kms).encryption(policy))
    before = path.read_bytes()
    kms.denied.add("kc1")
    tools = mc.KeyTools(kms)
    for mode in ("null", "drop"):
        lenient = tools.decryption(on_missing_key=mode)
        (rotated,) = mc.jobs.rotate_keys(path, tools, what="dek", decryption=lenient)
        assert rotated.failed
        assert path.read_bytes() == before


def test_a_moved_border_of_the_aad_prefix_does_not_become_the_true_one(tmp_path: Path) -> None:
    """Bytes between the two may be moved unseen: a fresh file would seal that."""
    tools, table = tools_and_table()
    path = tmp_path / "a.parquet"
    mc.write_table(table, path, tools.encryption(mc.Policy(footer_key="kf", aad_prefix="part.10")))
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    start = len(data) - 8 - length
    tail = data[start:-8]
    at = tail.index(b"part.10")
    # 1: aad_prefix (7 bytes), 2: aad_file_unique (8 bytes): one byte from the one to the other.
    assert tail[at - 1] == 7
    assert tail[at + 7 : at + 9] == b"\x18\x08"
    moved = tail[: at - 1] + b"\x06part.1" + b"\x18\x09" + b"0" + tail[at + 9 :]
    path.write_bytes(data[:start] + moved + data[-8:])
    assert mc.read_table(path, tools.decryption()).num_rows == table.num_rows
    (rotated,) = mc.jobs.rotate_keys(path, tools, what="dek")
    assert rotated.result == "aad-prefix"


def test_key_metadata_of_ags1_streams_is_rotated_with_the_files_beside_it(tmp_path: Path) -> None:
    kms = RotatingKms(kf=1)
    tools = mc.KeyTools(kms)
    metadata = mc.ags1.StandardKeyMetadata.generate()
    where = tmp_path / "stream.key"
    where.write_bytes(tools.encrypt_key_metadata(metadata, "kf"))
    (found,) = mc.jobs.scan_keys(where)
    assert (found.kind, found.master_key_id, found.version) == ("key metadata", "kf", "1")
    kms.rotate()
    assert [file.result for file in mc.jobs.rotate_keys(tmp_path, tools)] == ["rotated"]
    assert [file.result for file in mc.jobs.rotate_keys(tmp_path, tools)] == ["current"]
    kms.disable_old()
    assert mc.KeyTools(kms).decrypt_key_metadata(where.read_bytes()) == metadata
