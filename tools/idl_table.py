"""Write `modcrypt/parquet/format/idl_table.py`: what thriftpy2 reads from `thrift/parquet.thrift`.

`python -m tools.idl_table` writes it; a test compares it.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from modcrypt.parquet.format.idl_definitions import parse_definitions

ROOT = Path(__file__).resolve().parent.parent
IDL = ROOT / "thrift/parquet.thrift"
PATH = ROOT / "modcrypt/parquet/format/idl_table.py"

_HEAD = '''"""Definitions of `thrift/parquet.thrift`, which `tools/idl_table.py` writes.

`idl_definitions` describes them.
"""

from __future__ import annotations

# fmt: off
'''


def format_table() -> str:
    """Return the text of the module."""
    structs, enums = parse_definitions(IDL.read_bytes())
    lines = [_HEAD, f"CRC = {crc32(IDL.read_bytes())}\n\n"]
    lines.append(
        "STRUCTS: dict[str, tuple[bool, tuple[tuple[int, int, str, bool, str, int], ...]]] = {\n"
    )
    for name, (is_union, fields) in structs.items():
        rows = "".join(f"        {row!r},\n" for row in fields)
        lines.append(f'    "{name}": ({is_union}, (\n{rows}    )),\n')
    lines.append("}\n\nENUMS: dict[str, dict[int, str]] = {\n")
    for name, values in enums.items():
        rows = "".join(f'        {number}: "{value}",\n' for number, value in values.items())
        lines.append(f'    "{name}": {{\n{rows}    }},\n')
    return "".join([*lines, "}\n"]).replace("'", '"')


if __name__ == "__main__":
    PATH.write_text(format_table())
