#!/bin/sh
# DuckDB reads an encrypted file of PyArrow, and refuses the same file with a filter as under a wrong key.
#
# Versions: DuckDB 2.0.0, with a file of PyArrow 26.0.1.
# Behaviour: a filter that a chunk's statistics decide works, and so does a query without a filter. A
# filter that has to look at the values fails, even on 10 rows in one page, and so does ORDER BY with
# LIMIT, and joins, for which DuckDB makes filters of its own. Files that DuckDB encrypted can be filtered.
# Without the optimizer that hands filters to the reader (`filter_pushdown`), the same queries work.
# Seen: "Computed AES tag differs from read AES tag, are you using the right key?"
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check duckdb==2.0.0 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

rows = pa.table({"n": range(10), "s": [str(n) for n in range(10)]})
keys = pe.create_encryption_properties(footer_key=b"0123456789012345")
pq.write_table(rows, "f.parquet", encryption_properties=keys)

database = duckdb.connect()
database.execute("PRAGMA add_parquet_key('k', '0123456789012345')")
source = "read_parquet('f.parquet', encryption_config={footer_key: 'k'})"
queries = {
    f"SELECT sum(n) FROM {source}": 45,
    f"SELECT sum(n) FROM {source} WHERE n >= 0": 45,  # statistics: all rows
    f"SELECT count(*) FROM {source} WHERE n < 0": 0,  # statistics: no row
    f"SELECT sum(n) FROM {source} WHERE n = 3": "refused",
    f"SELECT sum(n) FROM {source} WHERE n > 3": "refused",
    f"SELECT count(*) FROM {source} WHERE s = '3'": "refused",
    f"SELECT s FROM {source} ORDER BY n DESC LIMIT 1": "refused",
    f"SELECT sum(a.n) FROM {source} a JOIN {source} b USING (n)": "refused",
}
found = {}
for query in queries:
    try:
        found[query] = database.sql(query).fetchall()[0][0]
    except duckdb.InvalidInputException as error:
        assert "are you using the right key?" in str(error), error
        found[query] = "refused"
    print(found[query], query, sep="\t")
database.execute("SET disabled_optimizers = 'filter_pushdown'")
without = database.sql(f"SELECT sum(n) FROM {source} WHERE n = 3").fetchall()[0][0]
print(without, "without filter_pushdown", sep="\t")
assert (found, without) == (queries, 3), "the behaviour has changed"
PYTHON
