#!/bin/sh
# A CryptoFactory of PyArrow wraps keys at the service of its first connection, whatever the next one says.
#
# Version: PyArrow 26.0.1.
# Behaviour: a factory keeps a KMS client for each pair of access token and instance id. A later
# connection with another URL, or other `custom_kms_conf`, gets the client of the first one; the default
# token and id are the same for all. The client stays for `cache_lifetime`, ten minutes unless set.
# Reading looks the client up by the instance id in the file, which is DEFAULT where the writer's was
# empty: so a file that was wrapped at the first service is opened at the second one.
# Seen: both files wrapped at "one"; the second is unwrapped at "two".
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import base64

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

calls = []


class Kms(pe.KmsClient):
    """A stand-in for a key service, which notes where a request goes."""

    def __init__(self, config):
        super().__init__()
        self._place = config.kms_instance_url, config.custom_kms_conf["region"]

    def wrap_key(self, key, master_key):
        calls.append(("wrap", *self._place))
        return base64.b64encode(key)

    def unwrap_key(self, wrapped, master_key):
        calls.append(("unwrap", *self._place))
        return base64.b64decode(wrapped)


def connection(name, **how):
    url = f"https://{name}.example"
    return pe.KmsConnectionConfig(kms_instance_url=url, custom_kms_conf={"region": name}, **how)


factory = pe.CryptoFactory(Kms)
how = pe.EncryptionConfiguration("footer", uniform_encryption=True, double_wrapping=False)
one, two = connection("one"), connection("two")
for config in (one, two, connection("three", key_access_token="other")):
    properties = factory.file_encryption_properties(config, how)
    pq.write_table(pa.table({"n": [1]}), "f.parquet", encryption_properties=properties)
    if config is two:
        properties = factory.file_decryption_properties(two)
        pq.ParquetFile("f.parquet", decryption_properties=properties).read()
calls = [call for call, last in zip(calls, [None, *calls]) if call != last or call[0] == "wrap"]
print(*calls, sep="\n")
assert calls == [
    ("wrap", "https://one.example", "one"),
    ("wrap", "https://one.example", "one"),
    ("unwrap", "https://two.example", "two"),
    ("wrap", "https://three.example", "three"),
], "the behaviour has changed"
PYTHON
