"""Share some columns with a partner who reads them with Polars, under a key for that partner."""

import polars as pl

import modcrypt as mc

key, partner_key = mc.Key.generate(), b"the partner's ke"
people = pl.DataFrame({"name": ["Ada", "Grace"], "ssn": ["123-45", "678-90"], "zip": [1, 2]})
mc.write_table(people, "people.parquet", mc.FileEncryptionProperties(footer_key=key))

mc.share_parquet(
    "people.parquet",
    "for-partner.parquet",
    mc.FileDecryptionProperties(footer_key=key),
    mc.FileEncryptionProperties(footer_key=partner_key),
    ["name", "zip"],
)

# The partner needs Polars alone.
properties = pl.ParquetDecryptionProperties(footer_key=partner_key)
print(pl.read_parquet("for-partner.parquet", decryption=properties).columns)
