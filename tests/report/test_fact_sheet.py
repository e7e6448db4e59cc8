"""Results have short representations, for terminals and notebooks."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

import modcrypt as mc

KEY = mc.Key(b"Zq7!marker-of-16")
ENCRYPTION = mc.FileEncryptionProperties(footer_key=KEY)
DECRYPTION = mc.FileDecryptionProperties(footer_key=KEY)


def test_results_are_short_and_say_what_matters(tmp_path: Path) -> None:
    path = tmp_path / "<b>&.parquet"
    mc.write_table(pa.table({f"column_{n}": [1] for n in range(200)}), path, ENCRYPTION)
    for result, fact in (
        (mc.verify_parquet(path, DECRYPTION), "everything authenticated: yes"),
        (mc.verify_dataset([path], DECRYPTION), "files: 1, 0 with faults"),
        (mc.inspect_parquet(path), "footer: encrypted"),
        (mc.ParquetFile(path, DECRYPTION), "rows: 1, row groups: 1, columns: 200"),
    ):
        assert repr(result).startswith(f"<{type(result).__name__}")
        assert fact in repr(result)
        assert len(repr(result)) < 600
        assert "column_7" not in repr(result)
        page = result._repr_html_()
        assert "<b>&" not in page
        assert re.sub(r"</?(table|caption|tr|th|td)>", "", page).count("<") == 0


def test_a_set_counts_the_findings_of_its_files(tmp_path: Path) -> None:
    path = tmp_path / "empty.parquet"
    path.touch()
    assert "result: 1 fault, 0 warnings" in repr(mc.verify_dataset([path], DECRYPTION))


def test_names_of_hostile_files_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 200 + "\x1b[31m")
    mc.write_table(pa.table({"a": [1]}), path, ENCRYPTION)
    assert "\x1b" not in repr(mc.verify_parquet(path, DECRYPTION))
