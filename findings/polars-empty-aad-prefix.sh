#!/bin/sh
# Polars writes an empty AAD prefix as one that readers must supply: PyArrow cannot read such a file.
#
# Versions: written by Polars 2.1.0; read by Polars 2.1.0 and PyArrow 26.0.1.
# Behaviour: `aad_prefix=b""`, as from a variable that is not set, gives the same AADs as no prefix.
# Polars nevertheless notes in the file that readers have to supply a prefix. PyArrow takes an empty
# prefix for none, so neither `aad_prefix=None` nor `aad_prefix=b""` opens the file there; Polars
# wants b"". PyArrow, asked to write with b"", writes a file that needs no prefix.
# Seen: "AAD prefix used for file encryption, but not stored in file and not supplied" from PyArrow.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check polars==2.1.0 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import polars as pl
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

KEY = b"0123456789abcdef"
rows = pl.DataFrame({"n": [1, 2, 3]})
rows.write_parquet("p.parquet", encryption=pl.ParquetEncryptionProperties(footer_key=KEY, aad_prefix=b""))
pq.write_table(
    rows.to_arrow(), "a.parquet",
    encryption_properties=pe.create_encryption_properties(footer_key=KEY, aad_prefix=b""),
)


def read_polars(path, **prefix):
    pl.read_parquet(path, decryption=pl.ParquetDecryptionProperties(footer_key=KEY, **prefix))


def read_pyarrow(path, **prefix):
    properties = pe.create_decryption_properties(footer_key=KEY, **prefix)
    pq.ParquetFile(path, decryption_properties=properties).read()


def outcome(read, path, prefix):
    try:
        read(path, **prefix)
        return "read"
    except (OSError, pl.exceptions.ComputeError) as error:
        print(error)
        return "refused"


found = [
    outcome(read, path, prefix)
    for path in ("p.parquet", "a.parquet")
    for read in (read_polars, read_pyarrow)
    for prefix in ({}, {"aad_prefix": b""})
]
print(found)
seen = ["refused", "read", "refused", "refused", "read", "read", "read", "read"]
assert found == seen, "the behaviour has changed"
PYTHON
