#!/bin/sh
# With single wrapping, PyArrow asks the key service several times for each column chunk that it reads.
#
# Version: PyArrow 26.0.1.
# Behaviour: with double wrapping, key-encryption keys are cached, and a column of a file costs one
# request. With single wrapping, data keys are not: each module reader unwraps the column's key again.
# `cache_lifetime` changes nothing about that.
# Seen: 10 columns with a master key each, in 4 row groups: 11 requests with double wrapping, and 201
# with single wrapping, which is five for each column chunk and one for the footer. Writing asks 11 times
# in both cases. A key service that answers in 20 ms makes reading such a file take four seconds.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import base64
import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

calls = {"wrap": 0, "unwrap": 0}


class Kms(pe.KmsClient):
    """A stand-in for a key service, which counts its requests."""

    def __init__(self, config):
        super().__init__()

    def wrap_key(self, key, master_key):
        calls["wrap"] += 1
        return base64.b64encode(key)

    def unwrap_key(self, wrapped, master_key):
        calls["unwrap"] += 1
        return base64.b64decode(wrapped)


factory, connection = pe.CryptoFactory(Kms), pe.KmsConnectionConfig()
hour = datetime.timedelta(hours=1)
names = [f"c{number}" for number in range(10)]
rows = pa.table({name: range(400) for name in names})
seen = []
for double in (True, False):
    calls.update(wrap=0, unwrap=0)
    how = pe.EncryptionConfiguration(
        "footer", column_keys={f"key of {name}": [name] for name in names},
        double_wrapping=double, cache_lifetime=hour,
    )
    encryption = factory.file_encryption_properties(connection, how)
    pq.write_table(rows, "f.parquet", row_group_size=100, encryption_properties=encryption)
    opening = pe.DecryptionConfiguration(cache_lifetime=hour)
    decryption = factory.file_decryption_properties(connection, opening)
    assert pq.ParquetFile("f.parquet", decryption_properties=decryption).read().equals(rows)
    print("double" if double else "single", "wrapping:", calls)
    seen.append((calls["wrap"], calls["unwrap"]))
assert seen == [(11, 11), (11, 201)], "the behaviour has changed"
PYTHON
