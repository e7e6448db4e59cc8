"""Parquet Modular Encryption; with the names of `pyarrow.parquet`, as a drop-in for it.

    import modcrypt.parquet as pq

    pq.write_table(table, "people.parquet", encryption_properties=encryption)
    pq.read_table("people.parquet", decryption_properties=decryption)

It also has the results of modcrypt's functions for files, such as `Verification`.
`__init__.pyi` lists the public names; each is imported on first use.
"""

from modcrypt.runtime.lazy_names import attach

__getattr__, __dir__ = attach(__name__)
