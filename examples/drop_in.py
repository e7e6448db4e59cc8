"""Encrypt what a program writes with pyarrow.parquet: another import, and properties."""

import pyarrow as pa

import modcrypt.parquet as pq

people = pa.table({"name": ["Ada", "Grace"], "ssn": ["123-45", "678-90"], "zip": [10115, 22201]})
footer_key, ssn_key = b"0123456789012345", b"a key for ssn..."  # from your key service

encryption = pq.FileEncryptionProperties(footer_key=footer_key, column_keys={"ssn": ssn_key})
pq.write_table(people, "people.parquet", encryption_properties=encryption)

everything = pq.FileDecryptionProperties(footer_key=footer_key, column_keys={"ssn": ssn_key})
assert pq.read_table("people.parquet", decryption_properties=everything).equals(people)

# Without the key of a column, the others can be read.
without_ssn = pq.FileDecryptionProperties(footer_key=footer_key)
table = pq.read_table("people.parquet", columns=["zip"], decryption_properties=without_ssn)
print(table["zip"].to_pylist())
