"""Write an encrypted file from pandas by a URL, and query it with DuckDB."""

from pathlib import Path

import duckdb
import fsspec
import pandas as pd

import modcrypt as mc

key = mc.Key.generate()
encryption = mc.FileEncryptionProperties(footer_key=key)
decryption = mc.FileDecryptionProperties(footer_key=key)

frame = pd.DataFrame({"name": ["Ada", "Grace"], "zip": [10115, 22201]})
path = Path("people.parquet").absolute()
url = f"modcrypt::{path.as_uri()}"  # or modcrypt::s3://bucket/people.parquet
frame.to_parquet(url, storage_options={"modcrypt": {"encryption": encryption}})
assert pd.read_parquet(url, storage_options={"decryption": decryption}).equals(frame)

with duckdb.connect() as connection:
    connection.register_filesystem(fsspec.filesystem("modcrypt", decryption=decryption))
    people = connection.read_parquet(f"modcrypt://{path}")
    print(people.filter("zip < 20000").select("name").fetchall())
