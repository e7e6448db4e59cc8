#!/bin/sh
# PyArrow's key of a struct also encrypts a column beside it whose name begins with the struct's and a dot.
#
# Versions: PyArrow 26.0.1 and Polars 2.1.0.
# Behaviour: `column_keys` takes names of nested columns, and names of their parents: `s` stands for every
# path that begins with `s.`. A column that is itself named `s.z`, as flattened data have them, has the
# same path as a field of `s`, so it gets the key, too, and readers without that key lose it. Naming the
# struct `s` in Polars is an error, as there only leaves have keys, and so is `s.p` where both exist.
# Seen: `s.z` cannot be read without the key of `s`; `sx` and `id` can.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1 polars==2.1.0

cd "$folder"
new/bin/python - <<'PYTHON'
import base64

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe


class Kms(pe.KmsClient):
    """A stand-in for a key service, which only has to return what it was given."""

    def __init__(self, config):
        super().__init__()

    def wrap_key(self, key, master_key):
        return base64.b64encode(key)

    def unwrap_key(self, wrapped, master_key):
        return base64.b64decode(wrapped)


rows = pa.table({"id": [1], "s": [{"p": 1, "q": 2}], "s.p": [3], "s.z": [4], "sx": [5]})


def write_pyarrow(name):
    how = pe.EncryptionConfiguration("footer", column_keys={"key": [name]}, plaintext_footer=True)
    properties = pe.CryptoFactory(Kms).file_encryption_properties(pe.KmsConnectionConfig(), how)
    pq.write_table(rows, "f.parquet", encryption_properties=properties)
    return [column for column in rows.column_names if not can_read(column)]


def can_read(column):
    try:
        return pq.ParquetFile("f.parquet").read([column]).num_rows == 1
    except OSError:
        return False


def write_polars(name):
    keys = pl.ParquetEncryptionProperties(footer_key=b"f" * 16, column_keys={name: b"c" * 16})
    try:
        pl.from_arrow(rows).write_parquet("p.parquet", encryption=keys)
        return "written"
    except pl.exceptions.ComputeError as error:
        return "not found" if "not found in the schema" in str(error) else "several" * ("multiple" in str(error))


found = {name: (write_pyarrow(name), write_polars(name)) for name in ("s", "s.p", "s.q")}
print(*found.items(), sep="\n")
assert found == {
    "s": (["s", "s.p", "s.z"], "not found"),
    "s.p": (["s", "s.p"], "several"),
    "s.q": (["s"], "written"),
}, "the behaviour has changed"
PYTHON
