#!/bin/sh
# A PyArrow dataset writes external key material that PyArrow's datasets cannot read back.
#
# Version: PyArrow 26.0.1.
# Behaviour: with `internal_key_material=False`, `write_dataset` writes a file of key material beside
# each file of the dataset. Reading the dataset gives decryption the file's key metadata, but neither
# the path nor the file system that it needs to find that material, so no dataset can be opened.
# `pyarrow.parquet.write_table` in the same configuration writes nothing: it misses the path as well.
# Seen: "The Parquet file path must be specified when using external key material" from the dataset.
# One file at a time can be read, by `file_decryption_properties` with its path and a file system.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import base64
import os

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
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


factory, connection = pe.CryptoFactory(Kms), pe.KmsConnectionConfig()
how = pe.EncryptionConfiguration("footer", uniform_encryption=True, internal_key_material=False)
rows = pa.table({"n": range(10)})

encryption = ds.ParquetEncryptionConfig(factory, connection, how)
options = ds.ParquetFileFormat().make_write_options(encryption_config=encryption)
ds.write_dataset(rows, "lake", format="parquet", file_options=options)
written = sorted(os.listdir("lake"))
print("written:", *written)
assert written == ["_KEY_MATERIAL_FOR_part-0.parquet.json", "part-0.parquet"]

decryption = ds.ParquetDecryptionConfig(factory, connection, pe.DecryptionConfiguration())
scan = ds.ParquetFragmentScanOptions(decryption_config=decryption)
try:
    ds.dataset("lake", format=ds.ParquetFileFormat(default_fragment_scan_options=scan))
    raise SystemExit("the behaviour has changed: the dataset opens")
except OSError as error:
    print("dataset:", error)
    assert "path must be specified" in str(error), "the behaviour has changed"

path, where = "lake/part-0.parquet", pyarrow.fs.LocalFileSystem()
properties = factory.file_decryption_properties(connection, None, path, where)
assert pq.ParquetFile(path, decryption_properties=properties).read().equals(rows)
print("one file with its path: read")
PYTHON
