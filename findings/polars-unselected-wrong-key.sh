#!/bin/sh
# Polars needs no key for a column that a query leaves out, but refuses the query if that key is wrong.
#
# Version: Polars 2.1.0.
# Behaviour: the metadata of every column with a key are decrypted when a file is opened. A column whose
# key is missing is left aside; one whose key is wrong ends the query, although it does not read the
# column, and even where it only counts rows. So a keyring with an old key of one column does worse than
# one without it. With several files, one that has another key for such a column stops all of them.
# Seen: "Unable to decrypt metadata for column 'salary', the column key may be wrong".
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check polars==2.1.0

cd "$folder"
new/bin/python - <<'PYTHON'
import polars as pl

FOOTER, NAME, SALARY = (letter * 16 for letter in (b"f", b"n", b"s"))
rows = pl.DataFrame({"name": ["a", "b"], "salary": [1, 2], "team": [3, 4]})
rows.write_parquet(
    "f.parquet",
    encryption=pl.ParquetEncryptionProperties(
        footer_key=FOOTER, column_keys={"name": NAME, "salary": SALARY}
    ),
)


def read(columns, **keys):
    decryption = pl.ParquetDecryptionProperties(footer_key=FOOTER, column_keys=keys)
    try:
        query = pl.scan_parquet("f.parquet", decryption=decryption).select(columns)
        return query.collect().to_dict(as_series=False)
    except pl.exceptions.ComputeError as error:
        assert "metadata for column 'salary', the column key may be wrong" in str(error), error
        return "refused"


names, count = {"name": ["a", "b"]}, {"len": [2]}
found = [
    read(columns, name=NAME, **other)
    for other in ({"salary": SALARY}, {}, {"salary": b"another key here"})
    for columns in ("name", pl.len())
]
print(*found, sep="\n")
assert found == [names, count, names, count, "refused", "refused"], "the behaviour has changed"
PYTHON
