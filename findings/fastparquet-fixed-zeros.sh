#!/bin/sh
# fastparquet cuts zeros off the end of fixed-length binaries: one hash in 256 comes back too short.
#
# Versions: fastparquet 2026.9.0; written by PyArrow 26.0.1, with Polars 2.1.0 as another reader.
# Behaviour: columns of FIXED_LEN_BYTE_ARRAY become numpy's type of fixed text, which takes zero bytes at the
# end for padding. Digests and ciphertexts that end in 00 lose it, and no longer equal themselves in a join.
# There is no error. Dictionaries of binaries lost them until 2020 (dask/fastparquet#504); they are right.
# Seen: of the SHA-256 digests of 0 to 9999, those that end in 00 have less than 32 bytes, also when they are
# read from a dictionary; in a column of variable length all are right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    fastparquet==2026.9.0 numpy==2.4.6 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import hashlib

import fastparquet
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

digests = [hashlib.sha256(str(number).encode()).digest() for number in range(10_000)]
ending = sum(digest[-1] == 0 for digest in digests)
found = {}
for name, kind, dictionary in (
    ("fixed", pa.binary(32), False),
    ("fixed, dictionary", pa.binary(32), True),
    ("variable", pa.binary(), False),
):
    table = pa.table({"digest": pa.array(digests, kind)})
    pq.write_table(table, "digests.parquet", use_dictionary=dictionary)
    seen = fastparquet.ParquetFile("digests.parquet").to_pandas()["digest"].tolist()
    other = pl.read_parquet("digests.parquet")["digest"].to_list()
    found[name] = sum(a != b for a, b in zip(digests, seen, strict=True)), other == digests
    assert [digest.ljust(32, b"\0") for digest in seen] == digests
print(ending, found)
assert ending > 30, "the behaviour has changed"
seen = {"fixed": ending, "fixed, dictionary": ending, "variable": 0}
assert found == {name: (wrong, True) for name, wrong in seen.items()}, "the behaviour has changed"
PYTHON
