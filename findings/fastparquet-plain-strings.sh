#!/bin/sh
# fastparquet reads strings as null once the dictionary of a chunk has ended: long columns lose most rows.
#
# Versions: fastparquet 2026.9.0 with pandas 3.1.1; written by PyArrow 26.0.1; Polars 2.1.0 as another reader.
# Behaviour: writers end a dictionary that grows too large, PyArrow at 1 MiB of distinct strings, and the pages
# after it have the strings themselves. fastparquet returns null for their rows, without an error, also in
# a column that is required. Binaries, integers, and strings without any dictionary are right.
# Seen: of 60,000 distinct strings in a file with PyArrow's settings, 35,904 are null, and none of those of
# the file without dictionaries.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    fastparquet==2026.9.0 numpy==2.4.6 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import fastparquet
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

NAMES = [f"{number:040}" for number in range(60_000)]
CASES = {
    "strings": (pa.array(NAMES), True, True),
    "required strings": (pa.array(NAMES), False, True),
    "strings, no dictionary": (pa.array(NAMES), True, False),
    "binaries": (pa.array([name.encode() for name in NAMES]), True, True),
    "integers": (pa.array(range(300_000)), True, True),
}
found = {}
for name, (rows, nullable, dictionary) in CASES.items():
    table = pa.table([rows], schema=pa.schema([pa.field("c", rows.type, nullable)]))
    pq.write_table(table, "rows.parquet", use_dictionary=dictionary)
    seen = fastparquet.ParquetFile("rows.parquet").to_pandas()["c"].tolist()
    assert pl.read_parquet("rows.parquet")["c"].to_list() == rows.to_pylist()
    found[name] = sum(value is None for value in seen)
    wrong = sum(value != row for value, row in zip(seen, rows.to_pylist(), strict=True))
    assert wrong == found[name], "the behaviour has changed"
    print(name, len(seen), found[name], sep="\t")
lost = {"strings": 35_904, "required strings": 35_904}
assert found == dict.fromkeys(CASES, 0) | lost, "the behaviour has changed"
PYTHON
