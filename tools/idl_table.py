"""Write `modcrypt/parquet/format/idl_table.json`: what thriftpy2 reads from `parquet.thrift`.

`python -m tools.idl_table` writes it; a test compares it.
"""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

from modcrypt.parquet.format.idl_definitions import parse_definitions

ROOT = Path(__file__).resolve().parent.parent
IDL = ROOT / "thrift/parquet.thrift"
PATH = ROOT / "modcrypt/parquet/format/idl_table.json"


def format_table() -> str:
    """Return the text of the table: a line for each struct and each enum."""
    structs, enums = parse_definitions(IDL.read_bytes())
    structs_text, enums_text = (
        ",\n".join(f"{json.dumps(name)}: {json.dumps(content)}" for name, content in part.items())
        for part in (structs, enums)
    )
    return (
        f'{{"crc": {crc32(IDL.read_bytes())},\n"structs": {{\n{structs_text}\n}},\n'
        f'"enums": {{\n{enums_text}\n}}}}\n'
    )


if __name__ == "__main__":
    PATH.write_text(format_table())
