"""Files that jobs cannot work on, and random edits of files that they can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

import modcrypt as mc
from tests.support.jobs.lake import TABLE, material_file, write_lake
from tests.support.kms.rotating_kms import RotatingKms


def uses_key_tools(entry: dict[str, Any]) -> bool:
    return bool(entry.get("kms"))


def spoil(kind: str, lake: Path, kms: RotatingKms, policy: mc.Policy) -> Path:
    """Put a file into a lake that can't be rotated."""
    path = lake / "part-0001b.parquet"
    if kind == "plaintext":
        pq.write_table(TABLE, path)
    elif kind == "no parquet":
        path.write_bytes(b"a,b\n1,2\n")
    elif kind == "empty":
        path.touch()
    elif kind == "opaque":
        properties = mc.FileEncryptionProperties(
            footer_key=b"0123456789012345", footer_key_metadata=b"key 17"
        )
        mc.write_table(TABLE, path, properties)
    elif kind == "no key metadata":
        mc.write_table(TABLE, path, mc.FileEncryptionProperties(footer_key=b"0123456789012345"))
    else:
        secret = mc.Policy(
            footer_key="secret",
            internal_key_material=policy.internal_key_material,
            plaintext_footer=kind == "signature",
        )
        mc.write_table(TABLE, path, mc.KeyTools(kms).encryption(secret))
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    elif kind == "signature":
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
    elif kind == "material":
        material_file(path).unlink()
    elif kind == "garbage":
        material_file(path).write_bytes(b"{}}")
    elif kind == "foreign":
        material_file(path).write_text('{"footerKey": "{}"}')
    elif kind == "huge":
        with material_file(path).open("wb") as file:
            file.truncate(65 << 20)
    elif kind == "denied":
        kms.denied.add("secret")
    elif kind == "removed":
        del kms.newest["secret"]
    return path


@st.composite
def edits(draw: st.DrawFn, size: int = 10_000) -> list[tuple[int, int, bytes]]:
    """Return replacements near the end: position from the end, length, new bytes."""
    position = st.integers(0, size)
    edit = st.tuples(position, st.integers(0, 20), st.binary(max_size=20))
    return draw(st.lists(edit, min_size=1, max_size=4))


def apply_edits(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for position, length, new in changes:
        at = len(data) - position % (len(data) + 1)
        data = data[:at] + new + data[at + length :]
    return data


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, bytes | None]]:
    """Return files of every kind with their external key material."""
    folder, found = tmp_path_factory.mktemp("seeds"), {}
    for internal in (True, False):
        for plaintext_footer in (True, False):
            policy = mc.Policy(
                footer_key="kf", column_keys={"k1": ["id"]}, internal_key_material=internal,
                plaintext_footer=plaintext_footer,
            )  # fmt: skip
            (path,) = write_lake(folder, RotatingKms(kf=1, k1=1), policy, 1)
            beside = material_file(path)
            name = f"{'internal' if internal else 'external'} {plaintext_footer}"
            found[name] = path.read_bytes(), beside.read_bytes() if not internal else None
            path.unlink()
            beside.unlink(missing_ok=True)
    return found


SEEDS = pytest.mark.parametrize(
    "seed", ["internal True", "internal False", "external True", "external False"]
)
